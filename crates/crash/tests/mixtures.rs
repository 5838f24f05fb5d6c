//! A short slice of the papers' workloads, and of those on a full volume.

use extant_crash::campaign;
use extant_crash::explore::{Counts, Options};
use extant_crash::extant_system::Ext;
use extant_crash::op::Workload;
use extant_crash::{full_volume, paper_workloads};

/// All modes of volumes that are not native.
fn modes() -> impl Iterator<Item = &'static str> {
    fs::MODES.iter().filter(|mode| mode.consistency != fs::Consistency::Snapshot).map(|mode| mode.name)
}

fn explored(mode: &str, len: Option<u64>, workloads: &[Workload]) -> Counts {
    let mut ext = Ext::new(mode, None).expect("a mode");
    ext.len = len.unwrap_or(ext.len);
    let mut options = Options::default();
    options.limits.most = 6;
    let report = campaign::run(&ext, workloads, &options, 2, 3, &|_| {});
    let found: Vec<_> = report.findings.iter().map(ToString::to_string).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
    assert!(report.counts.distinct > 30, "{:?}", report.counts);
    report.counts
}

#[test]
fn the_papers_workloads_break_no_guarantee() {
    let workloads = paper_workloads::sample(1, paper_workloads::PAPERS.len());
    for mode in modes() {
        explored(mode, None, &workloads);
    }
}

#[test]
fn full_volumes_break_no_guarantee() {
    let workloads = full_volume::sample(1, 12);
    for mode in modes() {
        let counts = explored(mode, Some(full_volume::LEN), &workloads);
        assert!(counts.no_space > 5, "{mode}: {counts:?}");
    }
}
