//! Runs many workloads on all cores: counts, progress, minimized findings.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::explore::{Counts, Explorer, Finding, FindingKind, Options};
use crate::faults;
use crate::minimise::minimise;
use crate::op::Workload;
use crate::system::System;

/// Maximum number of runs for minimizing a finding.
const TRIES: u32 = 120;

/// The counts and findings of a campaign.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Name of the mode.
    pub mode: &'static str,
    /// The counts, summed over all threads.
    pub counts: Counts,
    /// Wall time in seconds.
    pub seconds: f64,
    /// Number of worker threads.
    pub threads: usize,
    /// The findings, minimized; at most the requested number.
    #[serde(skip)]
    pub findings: Vec<Finding>,
}

/// Explores `workloads` on `threads` threads until all are done or there are `most` findings. `progress` is called
/// after each workload, with the number of workloads done so far.
pub fn run(
    system: &dyn System,
    workloads: &[Workload],
    options: &Options,
    threads: usize,
    most: usize,
    progress: &(dyn Fn(usize) + Sync),
) -> Report {
    let begun = Instant::now();
    let all = Mutex::new((Counts::default(), Vec::<Finding>::new()));
    let threads = threads.clamp(1, workloads.len().max(1));
    let next = Next::new(workloads, progress);
    on_threads(threads, || {
        let mut explorer = Explorer::new(system, options);
        next.each(|workload| {
            if let Some(finding) = explorer.explore(workload) {
                let mut all = all.lock();
                if all.1.len() < most {
                    // other threads wait here: findings are rare, and reported in full
                    let small = smallest(system, options, finding);
                    all.1.push(small);
                }
                if all.1.len() >= most {
                    next.stop();
                }
            }
        });
        all.lock().0 += explorer.counts;
    });
    let (counts, findings) = all.into_inner();
    Report { mode: system.guarantee().mode.name, counts, seconds: seconds(begun.elapsed()), threads, findings }
}

/// The counts and findings of a campaign with failing requests.
#[derive(Debug, Serialize)]
pub struct FaultReport {
    /// Name of the mode.
    pub mode: &'static str,
    /// The counts, summed over all threads.
    pub counts: faults::Counts,
    /// Wall time in seconds.
    pub seconds: f64,
    /// The findings, each with the arguments, the workload and the failure that reproduce it.
    pub findings: Vec<String>,
}

/// Makes every request of the workloads fail, at most `limit` per kind and workload, see [`faults::every_request`];
/// otherwise like [`run`].
pub fn fail(
    system: &dyn System,
    workloads: &[Workload],
    limit: usize,
    threads: usize,
    most: usize,
    progress: &(dyn Fn(usize) + Sync),
) -> FaultReport {
    let begun = Instant::now();
    let all = Mutex::new((faults::Counts::default(), Vec::<String>::new()));
    let next = Next::new(workloads, progress);
    on_threads(threads.clamp(1, workloads.len().max(1)), || {
        next.each(|workload| {
            let mut counts = faults::Counts::default();
            let found = faults::every_request(system, workload, limit, &mut counts);
            let mut all = all.lock();
            all.0 += counts;
            all.1.extend(found);
            if all.1.len() >= most {
                next.stop();
            }
        });
    });
    let (counts, mut findings) = all.into_inner();
    findings.truncate(most);
    FaultReport { mode: system.guarantee().mode.name, counts, seconds: seconds(begun.elapsed()), findings }
}

fn on_threads(threads: usize, work: impl Fn() + Sync) {
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(&work);
        }
    });
}

/// Distributes workloads to threads.
struct Next<'a> {
    workloads: &'a [Workload],
    progress: &'a (dyn Fn(usize) + Sync),
    next: AtomicUsize,
    done: AtomicUsize,
}

impl<'a> Next<'a> {
    fn new(workloads: &'a [Workload], progress: &'a (dyn Fn(usize) + Sync)) -> Self {
        Self { workloads, progress, next: AtomicUsize::new(0), done: AtomicUsize::new(0) }
    }

    /// Processes workloads not taken by other threads, until none are left.
    fn each(&self, mut work: impl FnMut(&Workload)) {
        while let Some(workload) = self.workloads.get(self.next.fetch_add(1, Ordering::Relaxed)) {
            work(workload);
            (self.progress)(self.done.fetch_add(1, Ordering::Relaxed) + 1);
        }
    }

    fn stop(&self) {
        self.next.store(self.workloads.len(), Ordering::Relaxed);
    }
}

/// Seconds with a resolution of milliseconds.
fn seconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1000.0).round() / 1000.0
}

/// The same kind of finding with as few operations as possible; a finding of e2fsck is not minimized.
fn smallest(system: &dyn System, options: &Options, finding: Finding) -> Finding {
    let kind = finding.kind;
    // every state of every run would need a process: hours
    if kind == FindingKind::E2fsck {
        return finding;
    }
    // the sample of closer checks depends on the count of states: check all of them in the way that found it
    let every = |of: FindingKind| u64::from(kind == of);
    let mut thorough = Options {
        work_on_every: every(FindingKind::WorkAfter),
        nested_every: every(FindingKind::CutRecovery),
        deeper_every: 0,
        again_every: every(FindingKind::Again),
        e2fsck_every: 0,
        ..options.clone()
    };
    let repeats = |options: &Options| Explorer::new(system, options).explore(&finding.workload);
    let is_same = |found: &Finding| found.kind == kind;
    let first = repeats(&thorough).filter(is_same).or_else(|| {
        thorough.deeper_every = every(FindingKind::CutRecovery);
        repeats(&thorough).filter(is_same)
    });
    let found = std::cell::RefCell::new(first.unwrap_or_else(|| finding.clone()));
    let _ = minimise(&finding.workload, TRIES, |smaller| match Explorer::new(system, &thorough).explore(smaller) {
        Some(same) if same.kind == kind => {
            *found.borrow_mut() = same;
            true
        }
        _ => false,
    });
    found.into_inner()
}
