//! Linked writes, explored further than the slices of other modes, and with mutants.

use extant_crash::campaign::{self, Report};
use extant_crash::explore::Options;
use extant_crash::extant_system::Ext;
use extant_crash::generate::{self, Pairs};
use extant_crash::op::Workload;
use store::Mutant;
use testkit::tools;

fn explore(ext: &Ext, workloads: &[Workload], e2fsck_every: u64) -> Report {
    let mut options = Options::default();
    if e2fsck_every > 0 && tools::need(&["e2fsck"]) {
        options.e2fsck_every = e2fsck_every;
        options.e2fsck = tools::find("e2fsck").unwrap_or_else(|| options.e2fsck.clone());
    }
    campaign::run(ext, workloads, &options, 2, 3, &|_| {})
}

fn linked(block_size: u32) -> Ext {
    let mut ext = Ext::new("linked", None).expect("a mode");
    ext.block_size = block_size;
    ext
}

/// Workloads by seed, with blocks of 1 and 4 KiB; e2fsck checks one state in five.
#[test]
fn workloads_by_seed() {
    for (block_size, seed) in [(1024, 5), (4096, 6)] {
        let mut workloads = Pairs::new().sample(seed, 40);
        workloads.extend((0..12).map(|n| generate::random(seed * 100 + n, 30)));
        let report = explore(&linked(block_size), &workloads, 5);
        println!("blocks of {block_size}: {:?} in {} s", report.counts, report.seconds);
        let found: Vec<_> = report.findings.iter().map(ToString::to_string).collect();
        assert!(found.is_empty(), "{}", found.join("\n"));
        assert!(report.counts.distinct > 500, "{:?}", report.counts);
    }
}

/// Workloads; each mutant is detected in one of them.
const SHOWING: [&str; 6] = [
    "create a; append a 3000 =1; sync; create b; append b 20000 =2; sync; unlink a; sync; create c; append c 9000 =3; sync",
    "mkdir d; create d/a; append d/a 20000 =1; sync; append d/a 20000 =2; rename d/a b; sync; truncate b 100; sync",
    "create a; append a 15000 =1; sync; create b; append b 15000 =2; rename b a; wait 6; mkdir d; link a d/l; wait 6; sync",
    "create a; wait 6; create b; wait 6; unlink a; wait 6; mkdir d; wait 6; rmdir d; create e; append e 40000 =1; wait 6",
    "create a; sync; sync; create b; sync; unlink a; create c; wait 6; rename b d; wait 6; append c 14000 =1; wait 6",
    "mkdir d; create d/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa; sync; unlink d/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa; create f; append f 30000 =1; fsync f; setxattr f user.x 300 =1; sync; setxattr f user.x 300 =2; sync",
];

#[test]
fn every_mutant_is_caught() {
    let workloads: Vec<Workload> = SHOWING.iter().map(|text| text.parse().expect("a workload")).collect();
    let right = explore(&linked(1024), &workloads, 0);
    let found: Vec<_> = right.findings.iter().map(ToString::to_string).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
    let mut missed = Vec::new();
    for mutant in [
        Mutant::ListAfterChanges,
        Mutant::NoFlushAfterList,
        Mutant::OneSlot,
        Mutant::FreshAfterList,
        Mutant::LoseRun,
        Mutant::LoseCopy,
        Mutant::TrustFresh,
        Mutant::TrustStale,
        Mutant::UnloggedRepair,
    ] {
        let mut broken = linked(1024);
        broken.mutant = fs::Mutant::Store(mutant);
        let report = explore(&broken, &workloads, 0);
        let first = report.findings.first().map(|finding| finding.to_string().lines().next().unwrap_or("").to_owned());
        println!("{mutant:?}: {} findings, {first:?}", report.findings.len());
        if report.findings.is_empty() {
            missed.push(mutant);
        }
    }
    assert!(missed.is_empty(), "not caught: {missed:?}");
}
