//! Peers that are sampled one after the other, round after round.
//!
//! 1. Every round has one sample of each peer, so that all run under the same load.
//! 2. The first peer of a round rotates, so that the order has no effect.
//! 3. [`Peer::prepare`] is not timed; only the times measured by a peer itself are used.

use crate::cpu;
use crate::{Result, Spread};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use rustix::time::{ClockId, clock_gettime};
use std::cell::Cell;
use std::time::{Duration, Instant};

/// An implementation of a piece of work, which is timed.
pub trait Peer {
    /// The peer's name in the table.
    fn name(&self) -> &str;

    /// Creates the initial state of a sample.
    ///
    /// # Errors
    /// The error of the operation; the whole measurement ends.
    fn prepare(&mut self) -> Result<()> {
        Ok(())
    }

    /// Does the work once, and returns its times.
    ///
    /// # Errors
    /// The error of the operation; the whole measurement ends.
    fn sample(&mut self) -> Result<Sample>;
}

/// The times of one sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// Wall time.
    pub wall: Duration,
    /// CPU time, user and system, of all threads of the peer, and for a mount of this process and of the server; `None`
    /// where it is unknown. The kernel's own threads are not included.
    pub cpu: Option<Duration>,
}

/// The times of all samples of a peer.
#[derive(Debug, Clone)]
pub struct Series {
    /// The peer.
    pub name: String,
    /// Wall time, in seconds.
    pub wall: Spread,
    /// Processor time, in seconds.
    pub cpu: Option<Spread>,
}

/// Progress of a measurement, reported before each step.
#[derive(Debug, Clone, Copy)]
pub struct Step<'a> {
    /// The step that comes next.
    pub what: &'a str,
    /// Samples that are over.
    pub done: u64,
    /// Samples of the whole measurement.
    pub of: u64,
}

/// Receives the progress of a measurement.
pub type Watch<'a> = dyn Fn(&Step<'_>) + 'a;

/// Counts the steps of a measurement and reports them.
pub(crate) struct Reported<'a> {
    watch: &'a Watch<'a>,
    done: Cell<u64>,
    of: u64,
}

impl<'a> Reported<'a> {
    /// A counter for `of` samples.
    pub(crate) fn new(watch: &'a Watch<'a>, of: u64) -> Self {
        Self { watch, done: Cell::new(0), of }
    }

    /// Reports a step that is not a sample.
    pub(crate) fn say(&self, what: &str) {
        (self.watch)(&Step { what, done: self.done.get(), of: self.of });
    }

    /// Reports the beginning of a sample.
    pub(crate) fn begin_sample(&self, what: &str) {
        self.say(what);
        self.skip(1);
    }

    /// Counts samples as done that are omitted or finished.
    pub(crate) fn skip(&self, samples: u64) {
        self.done.set(self.done.get() + samples);
    }
}

/// The number of samples of `peers` peers with `runs` each, including the uncounted first ones.
pub(crate) fn sample_count(peers: usize, runs: usize) -> u64 {
    (peers * (runs.max(1) + 1)) as u64
}

/// Takes `runs` samples of each peer (at least one), after one for each that is discarded. `report` is called before
/// each sample, with its round and its peer.
///
/// # Errors
/// The first error of a peer.
pub fn interleave(peers: &mut [&mut dyn Peer], runs: usize, report: &dyn Fn(&str)) -> Result<Vec<Series>> {
    let mut samples: Vec<Vec<Sample>> = vec![Vec::new(); peers.len()];
    let rounds = runs.max(1) + 1;
    for round in 0..rounds {
        for position in 0..peers.len() {
            let which = (round + position) % peers.len();
            let peer = &mut peers[which];
            report(&format!("round {} of {rounds}, {}", round + 1, peer.name()));
            peer.prepare()?;
            let sample = peer.sample()?;
            if round > 0 {
                samples[which].push(sample);
            }
        }
    }
    let series = peers.iter().zip(samples).filter_map(|(peer, samples)| {
        Some(Series {
            name: peer.name().to_owned(),
            wall: Spread::of(samples.iter().map(|s| s.wall.as_secs_f64()))?,
            cpu: Spread::of(samples.iter().filter_map(|s| Some(s.cpu?.as_secs_f64()))),
        })
    });
    Ok(series.collect())
}

/// The threads or processes whose CPU time is measured.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Worker {
    /// The calling thread.
    Thread,
    /// Child processes that end within the sample.
    Children,
    /// This process and the server of a mount, where that is a process of its own.
    Mounted { server: Option<u32> },
}

impl Worker {
    fn cpu(self) -> Option<Duration> {
        match self {
            // the value of getrusage(2) for a running thread is as old as the last tick
            Self::Thread => Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).ok(),
            Self::Children => {
                let usage = getrusage(UsageWho::RUSAGE_CHILDREN).ok()?;
                let microseconds = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
                u64::try_from(microseconds).ok().map(Duration::from_micros)
            }
            Self::Mounted { server } => cpu::with_server(server),
        }
    }
}

/// Times `work`.
pub(crate) fn timed<T>(worker: Worker, work: impl FnOnce() -> T) -> (T, Sample) {
    let before = worker.cpu();
    let start = Instant::now();
    let result = work();
    let wall = start.elapsed();
    let cpu = before.zip(worker.cpu()).map(|(before, after)| after.saturating_sub(before));
    (result, Sample { wall, cpu })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    struct Noted<'a> {
        name: &'static str,
        samples: u64,
        log: &'a RefCell<Vec<String>>,
    }

    impl Peer for Noted<'_> {
        fn name(&self) -> &str {
            self.name
        }

        fn prepare(&mut self) -> Result<()> {
            self.log.borrow_mut().push(format!("({}", self.name));
            Ok(())
        }

        fn sample(&mut self) -> Result<Sample> {
            self.log.borrow_mut().push(format!("{})", self.name));
            self.samples += 1;
            Ok(Sample { wall: Duration::from_secs(self.samples), cpu: None })
        }
    }

    #[test]
    fn samples_alternate_and_the_first_does_not_count() {
        let log = RefCell::default();
        let mut a = Noted { name: "a", samples: 0, log: &log };
        let mut b = Noted { name: "b", samples: 0, log: &log };
        let said = RefCell::<Vec<String>>::default();
        let series = interleave(&mut [&mut a, &mut b], 2, &|what| said.borrow_mut().push(what.to_owned())).unwrap();
        assert_eq!(said.borrow().len() as u64, sample_count(2, 2));
        assert_eq!(said.borrow()[3], "round 2 of 3, a");
        assert_eq!(log.borrow().join(" "), "(a a) (b b) (b b) (a a) (a a) (b b)");
        assert_eq!(series.len(), 2);
        assert_eq!((series[0].name.as_str(), &series[0].wall.samples[..]), ("a", &[2.0, 3.0][..]));
        assert_eq!((series[1].name.as_str(), series[1].cpu.clone()), ("b", None));
    }

    #[test]
    fn the_processor_time_of_a_thread_is_its_own() {
        let burn = || (0..2_000_000u64).fold(0u64, |sum, n| std::hint::black_box(sum.wrapping_mul(31).wrapping_add(n)));
        let (_, sample) = timed(Worker::Thread, burn);
        assert!(sample.cpu.is_some_and(|cpu| cpu > Duration::ZERO), "{sample:?}");
        let (_, sample) = timed(Worker::Mounted { server: None }, burn);
        assert!(sample.cpu.is_some_and(|cpu| cpu > Duration::ZERO), "{sample:?}");
        // no process has this number
        let (_, sample) = timed(Worker::Mounted { server: Some(u32::MAX) }, burn);
        assert_eq!(sample.cpu, None);
    }
}
