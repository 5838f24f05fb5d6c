//! Snapshots and transactions of the native format through every crash: in any state of a volume, each snapshot has the
//! content at its creation, and a transaction is complete or absent.

use extant_crash::campaign;
use extant_crash::explore::Options;
use extant_crash::extant_system::Ext;
use extant_crash::generate;
use extant_crash::op::Workload;

/// Explores workloads with fewer states per stage than a campaign.
fn explored(mode: &str, workloads: &[Workload]) {
    let system = Ext::new(mode, None).expect("a mode");
    let mut options = Options { nested_every: 200, work_on_every: 100, ..Options::default() };
    options.limits.every_subset = 4;
    options.limits.most = 60;
    let report = campaign::run(&system, workloads, &options, 2, 1, &|_| ());
    assert!(report.findings.is_empty(), "{}", report.findings[0]);
    assert!(report.counts.distinct > 5 * workloads.len() as u64, "{:?}", report.counts);
    println!("{:?} in {:.1} s", report.counts, report.seconds);
}

fn factor() -> usize {
    testkit::cases("versions", 1).count()
}

#[test]
fn every_operation_among_versions() {
    let all = generate::versions();
    let step = (23 / factor()).max(1);
    explored("snapshot", &all.into_iter().step_by(step).collect::<Vec<_>>());
}

#[test]
fn random_operations_among_versions() {
    let workloads: Vec<_> = (0..3 * factor() as u64).map(|seed| generate::random_versions(seed, 60)).collect();
    explored("snapshot", &workloads);
}

#[test]
fn versions_where_content_goes_to_new_blocks() {
    let step = (71 / factor()).max(1);
    let mut workloads: Vec<_> = generate::versions().into_iter().step_by(step).collect();
    workloads.push(generate::random_versions(7, 40));
    explored("snapshot-cow", &workloads);
}
