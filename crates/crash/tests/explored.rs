//! A short slice of what `extant crash` explores.

use extant_crash::campaign;
use extant_crash::explore::Options;
use extant_crash::ext::Ext;
use extant_crash::generate;

/// One in so many of the workloads of one operation.
fn slice(mode: &str, format: &str, every: usize) {
    let ext = Ext::new(mode, Some(format)).expect("a mode");
    let workloads: Vec<_> = generate::one().into_iter().step_by(every).collect();
    let report = campaign::run(&ext, &workloads, &Options::default(), 2, 3, &|_| {});
    println!("{mode} {format}: {:?} in {} s", report.counts, report.seconds);
    let found: Vec<_> = report.findings.iter().map(ToString::to_string).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
    assert!(report.counts.distinct > 100, "{:?}", report.counts);
}

#[test]
fn none_keeps_its_promise() {
    slice("none", "ext2", 7);
}

#[test]
fn dirty_bit_keeps_its_promise() {
    slice("dirty-bit", "ext2", 7);
}

#[test]
fn journal_keeps_its_promise() {
    slice("journal", "ext4", 7);
}

#[test]
fn journal_keeps_its_promise_where_metadata_lies_in_regions() {
    slice("journal", "rext3", 7);
}

#[test]
fn snapshot_keeps_its_promise() {
    slice("snapshot", "extant", 43);
}
