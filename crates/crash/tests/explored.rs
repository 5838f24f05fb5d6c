//! A short slice of what `extant crash` explores.

use extant_crash::campaign;
use extant_crash::explore::Options;
use extant_crash::ext::Ext;
use extant_crash::generate;
use fs::mkfs::Kind;

/// One in so many of the workloads of one operation.
fn slice(mode: &str, kind: Kind, every: usize) {
    let ext = Ext::new(mode, kind).expect("a mode");
    let workloads: Vec<_> = generate::one().into_iter().step_by(every).collect();
    let report = campaign::run(&ext, &workloads, &Options::default(), 2, 3, &|_| {});
    println!("{mode} {kind:?}: {:?} in {} s", report.counts, report.seconds);
    let found: Vec<_> = report.findings.iter().map(ToString::to_string).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
    assert!(report.counts.distinct > 100, "{:?}", report.counts);
}

#[test]
fn none_keeps_its_promise() {
    slice("none", Kind::Ext2, 7);
}

#[test]
fn dirty_bit_keeps_its_promise() {
    slice("dirty-bit", Kind::Ext2, 7);
}

#[test]
fn journal_keeps_its_promise() {
    slice("journal", Kind::Ext4, 7);
}
