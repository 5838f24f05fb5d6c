//! Content moved within a file by FALLOC_FL_COLLAPSE_RANGE or FALLOC_FL_INSERT_RANGE and then overwritten: a crash must
//! not restore the old map with the new content at other offsets.

use extant_crash::campaign;
use extant_crash::explore::Options;
use extant_crash::extant_system::Ext;
use extant_crash::op::Workload;

#[test]
fn moved_content_is_not_written_over_before_the_move_is_durable() {
    let workloads: Vec<Workload> = [
        "create f; append f 20000 =1 | fallocate f collapse 4096 4096; write f 4096 8192 =19",
        "create f; append f 20000 =1 | link f g; fallocate f insert 4096 8192; write g 16000 1339 =108",
        "create f; append f 20000 =1 | fallocate f collapse 0 8192; truncate f 5000; append f 3000 =4",
    ]
    .iter()
    .map(|text| text.parse().expect("a workload"))
    .collect();
    let mut failed = Vec::new();
    for mode in ["dirty-bit", "journal", "journal-data", "journal-writeback", "snapshot", "snapshot-cow"] {
        let ext = Ext::new(mode, (!mode.starts_with("snapshot")).then_some("ext4")).expect("a mode");
        let report = campaign::run(&ext, &workloads, &Options::default(), 2, 3, &|_| {});
        assert!(report.counts.operations >= 9, "{mode}: {:?}", report.counts);
        failed.extend(report.findings.iter().map(|finding| format!("{mode}: {finding}")));
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
