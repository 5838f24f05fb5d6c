//! A short slice of the exploration of `extant crash`.

use extant_crash::campaign;
use extant_crash::enumerate::Limits;
use extant_crash::explore::Options;
use extant_crash::extant_system::Ext;
use extant_crash::generate::{self, Pairs};
use testkit::tools;

/// Every `every`-th workload of one operation.
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
fn none_meets_its_guarantee() {
    slice("none", "ext2", 7);
}

#[test]
fn dirty_bit_meets_its_guarantee() {
    slice("dirty-bit", "ext2", 7);
}

#[test]
fn journal_meets_its_guarantee() {
    slice("journal", "ext4", 7);
}

#[test]
fn journal_meets_its_guarantee_where_metadata_lies_in_regions() {
    slice("journal", "rext3", 7);
}

#[test]
fn every_mode_meets_its_guarantee_with_space_maps() {
    for mode in ["none", "dirty-bit", "journal", "journal-data", "journal-writeback"] {
        slice(mode, "spacemap", 43);
    }
}

#[test]
fn snapshot_meets_its_guarantee() {
    slice("snapshot", "extant", 43);
}

#[test]
fn snapshot_meets_its_guarantee_where_content_goes_to_new_blocks() {
    slice("snapshot-cow", "extant", 67);
}

/// Native workloads of every kind, chosen by a seed; e2fsck checks one state in 200, above the map.
#[test]
fn native_workloads_by_seed() {
    let ext = Ext::new("snapshot", None).expect("a mode");
    let mut workloads = Vec::new();
    let mut one = generate::one();
    let mut numbers = fastrand::Rng::with_seed(11);
    numbers.shuffle(&mut one);
    workloads.extend(one.into_iter().take(70));
    workloads.extend(Pairs::new().sample(11, 70));
    workloads.extend((11..41).map(|seed| generate::random(seed, 10)));
    workloads.extend((11..41).map(|seed| generate::random_versions(seed, 10)));
    assert!(workloads.len() >= 200);
    let has_e2fsck = tools::need(&["e2fsck"]);
    let mut options = Options { e2fsck_every: if has_e2fsck { 200 } else { 0 }, ..Options::default() };
    options.e2fsck = tools::find("e2fsck").unwrap_or_else(|| options.e2fsck.clone());
    options.limits = Limits { every_subset: 4, lacking_two: 6, samples: 6, most: 12, ..options.limits };
    let report = campaign::run(&ext, &workloads, &options, 2, 3, &|_| {});
    println!("{:?} in {} s", report.counts, report.seconds);
    let found: Vec<_> = report.findings.iter().map(ToString::to_string).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
    assert!(report.counts.distinct > 1000 && (!has_e2fsck || report.counts.e2fsck > 3), "{:?}", report.counts);
}

#[test]
fn linked_meets_its_guarantee() {
    slice("linked", "ext2", 7);
}
