//! Adaptive polling: over io_uring the thread of a ring entry stays awake while requests are dense.
//!
//! The kernel's scheduler puts a woken process on an idle processor rather than on the one that made its answer. With
//! two processors a program that sends one request after another moves with every answer to the processor that just
//! went to sleep, and wakes it: in a virtual machine, where that takes two exits to the host, about 30 µs for each
//! request, twice the time of the request itself. While one thread stays awake no processor is idle, and the program
//! stays where it is. The cost is at most that processor's idle time: the thread yields to all others, and after one of
//! them ran, nothing stays awake for [`PAUSE`]. With more processors some would still be idle; there, and without
//! requests, nothing stays awake.

use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// The longest time between two requests that are dense enough to stay awake for. A program that only sends requests
/// has a third of it between two.
const CLOSELY: Duration = Duration::from_micros(100);
/// The longest yield; after a longer one another thread was using the processor.
const YIELDED: Duration = Duration::from_micros(50);
/// The time for which nothing stays awake after that.
const PAUSE: Duration = Duration::from_millis(4);

/// The times of requests. Times are in nanoseconds since this was created.
pub(super) struct Polling {
    began: Instant,
    /// The time of the last request.
    last: AtomicU64,
    /// The time between the last two requests.
    gap: AtomicU64,
    /// A thread stays awake.
    awake: AtomicBool,
    /// No thread stays awake before this time.
    not_before: AtomicU64,
    /// The total time that threads were awake without work.
    spent: AtomicU64,
}

/// Permission to stay awake. There is at most one.
pub(super) struct Awake<'p> {
    polling: &'p Polling,
    since: u64,
    /// The time at which it last returned from yielding.
    back: u64,
}

impl Drop for Awake<'_> {
    fn drop(&mut self) {
        self.polling.spent.fetch_add(self.polling.now().saturating_sub(self.since), Relaxed);
        self.polling.awake.store(false, Relaxed);
    }
}

impl Polling {
    /// The state for this machine.
    pub(super) fn new() -> Self {
        Self::on(std::thread::available_parallelism().map_or(1, NonZero::get))
    }

    /// The state for a machine with this number of processors.
    fn on(processors: usize) -> Self {
        Self {
            began: Instant::now(),
            last: AtomicU64::new(0),
            gap: AtomicU64::new(u64::MAX),
            awake: AtomicBool::new(false),
            not_before: AtomicU64::new(if processors == 2 { 0 } else { u64::MAX }),
            spent: AtomicU64::new(0),
        }
    }

    fn now(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    /// Records a request.
    pub(super) fn request(&self) {
        let now = self.now();
        let last = self.last.swap(now, Relaxed);
        self.gap.store(now.saturating_sub(last), Relaxed);
    }

    /// The total time that threads were awake without work.
    pub(super) fn spent(&self) -> Duration {
        Duration::from_nanos(self.spent.load(Relaxed))
    }

    /// Returns the permission to stay awake, where the calling thread should, now that it has no work.
    pub(super) fn stay_awake(&self) -> Option<Awake<'_>> {
        let closely = u128::from(self.gap.load(Relaxed)) < CLOSELY.as_nanos();
        let worth = closely && self.last.load(Relaxed) >= self.not_before.load(Relaxed);
        let now = || self.now();
        (worth && !self.awake.swap(true, Relaxed)).then(|| Awake { polling: self, since: now(), back: now() })
    }
}

impl Awake<'_> {
    /// Yields the processor; returns whether to stay awake.
    pub(super) fn goes_on(&mut self) -> bool {
        for _ in 0..32 {
            std::hint::spin_loop();
        }
        std::thread::yield_now();
        let now = self.polling.now();
        let away = Duration::from_nanos(now.saturating_sub(self.back));
        self.back = now;
        if away > YIELDED {
            self.polling.not_before.store(now.saturating_add(PAUSE.as_nanos() as u64), Relaxed);
            return false;
        }
        let last = Duration::from_nanos(now.saturating_sub(self.polling.last.load(Relaxed)));
        last < CLOSELY
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates two requests as close as the clock distinguishes.
    fn busy(polling: &Polling) {
        polling.gap.store(0, Relaxed);
        polling.last.store(polling.now(), Relaxed);
    }

    #[test]
    fn one_stays_awake_while_requests_follow_closely() {
        let polling = Polling::on(2);
        assert!(polling.stay_awake().is_none(), "no request came yet");
        busy(&polling);
        let awake = polling.stay_awake();
        assert!(awake.is_some() && polling.stay_awake().is_none(), "not one");
        drop(awake);
        assert!(polling.stay_awake().is_some(), "never again");
        assert!(polling.spent() > Duration::ZERO);
    }

    #[test]
    fn none_stays_awake_for_requests_far_apart() {
        let polling = Polling::on(2);
        busy(&polling);
        polling.gap.store(1_000_000, Relaxed);
        assert!(polling.stay_awake().is_none());
    }

    #[test]
    fn it_ends_with_the_requests() {
        let polling = Polling::on(2);
        busy(&polling);
        if let Some(mut awake) = polling.stay_awake() {
            while awake.goes_on() {}
        }
    }

    #[test]
    fn where_another_ran_none_stays_awake_for_a_while() {
        let polling = Polling::on(2);
        busy(&polling);
        if let Some(mut awake) = polling.stay_awake() {
            awake.back = 0;
            std::thread::sleep(YIELDED);
            assert!(!awake.goes_on());
        }
        let until = polling.not_before.load(Relaxed);
        polling.last.store(until - 1, Relaxed);
        assert!(polling.stay_awake().is_none());
        polling.last.store(until, Relaxed);
        assert!(polling.stay_awake().is_some());
    }

    #[test]
    fn with_one_or_many_processors_none_does() {
        for processors in [1, 3, 4] {
            let polling = Polling::on(processors);
            busy(&polling);
            assert!(polling.stay_awake().is_none(), "{processors} processors");
        }
    }
}
