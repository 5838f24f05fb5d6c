//! How closely requests follow one another, and whether it is worth to stay awake for the next.
//!
//! The kernel's scheduler puts a process that is woken on an idle processor rather than on the one where its answer was
//! made. With two processors a program that asks and asks thus moves with every answer to the processor that just fell
//! asleep, and wakes it: in a virtual machine, where that takes two exits to the host, some 30 µs for each request, twice
//! what the request takes itself. So as long as requests follow one another closely, one thread stays awake and its
//! processor is not idle; the program stays where it is. It costs at most that processor's idle time: the thread gives
//! way to whatever else wants to run there, and when something did it is not needed for a while.
//!
//! With more processors some would still be idle; nothing stays awake there.

use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Requests that follow one another so closely are worth to stay awake for. What lies between two of a program that
/// does nothing else is a third of it.
const CLOSELY: Duration = Duration::from_micros(100);
/// A thread that gives way and comes back later than this found another on its processor.
const GIVEN_WAY: Duration = Duration::from_micros(50);
/// How long nothing stays awake then.
const PAUSE: Duration = Duration::from_millis(4);

/// When requests came. Times are counted in nanoseconds from when this was made.
pub(super) struct Pace {
    began: Instant,
    /// When the last request came.
    last: AtomicU64,
    /// What lay between the last two.
    gap: AtomicU64,
    /// A thread stays awake.
    awake: AtomicBool,
    /// None does before this.
    not_before: AtomicU64,
}

/// Leave to stay awake. There is one at a time.
pub(super) struct Awake<'p> {
    pace: &'p Pace,
    /// When it last came back from giving way.
    back: u64,
}

impl Drop for Awake<'_> {
    fn drop(&mut self) {
        self.pace.awake.store(false, Relaxed);
    }
}

impl Pace {
    pub(super) fn new() -> Self {
        Self::on(std::thread::available_parallelism().map_or(1, NonZero::get))
    }

    /// On a machine with so many processors.
    fn on(processors: usize) -> Self {
        Self {
            began: Instant::now(),
            last: AtomicU64::new(0),
            gap: AtomicU64::new(u64::MAX),
            awake: AtomicBool::new(false),
            not_before: AtomicU64::new(if processors == 2 { 0 } else { u64::MAX }),
        }
    }

    fn now(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    /// A request came.
    pub(super) fn request(&self) {
        let now = self.now();
        let last = self.last.swap(now, Relaxed);
        self.gap.store(now.saturating_sub(last), Relaxed);
    }

    /// Whether the thread that asks shall stay awake now that it has nothing to do.
    pub(super) fn stay_awake(&self) -> Option<Awake<'_>> {
        let last = self.last.load(Relaxed);
        let worth = u128::from(self.gap.load(Relaxed)) < CLOSELY.as_nanos() && last >= self.not_before.load(Relaxed);
        (worth && !self.awake.swap(true, Relaxed)).then(|| Awake { pace: self, back: self.now() })
    }
}

impl Awake<'_> {
    /// Gives way, and says whether to go on.
    pub(super) fn goes_on(&mut self) -> bool {
        for _ in 0..32 {
            std::hint::spin_loop();
        }
        std::thread::yield_now();
        let now = self.pace.now();
        let away = Duration::from_nanos(now.saturating_sub(self.back));
        self.back = now;
        if away > GIVEN_WAY {
            self.pace.not_before.store(now.saturating_add(PAUSE.as_nanos() as u64), Relaxed);
            return false;
        }
        Duration::from_nanos(now.saturating_sub(self.pace.last.load(Relaxed))) < CLOSELY
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two requests as close as time can be told.
    fn busy(pace: &Pace) {
        pace.gap.store(0, Relaxed);
        pace.last.store(pace.now(), Relaxed);
    }

    #[test]
    fn one_stays_awake_while_requests_follow_closely() {
        let pace = Pace::on(2);
        assert!(pace.stay_awake().is_none(), "no request came yet");
        busy(&pace);
        let awake = pace.stay_awake();
        assert!(awake.is_some() && pace.stay_awake().is_none(), "not one");
        drop(awake);
        assert!(pace.stay_awake().is_some(), "never again");
    }

    #[test]
    fn nobody_stays_awake_for_requests_far_apart() {
        let pace = Pace::on(2);
        pace.gap.store(1_000_000, Relaxed);
        assert!(pace.stay_awake().is_none());
    }

    #[test]
    fn it_ends_with_the_requests() {
        let pace = Pace::on(2);
        busy(&pace);
        if let Some(mut awake) = pace.stay_awake() {
            while awake.goes_on() {}
        }
    }

    #[test]
    fn where_another_ran_nobody_stays_awake_for_a_while() {
        let pace = Pace::on(2);
        busy(&pace);
        if let Some(mut awake) = pace.stay_awake() {
            awake.back = 0;
            std::thread::sleep(GIVEN_WAY);
            assert!(!awake.goes_on());
        }
        let until = pace.not_before.load(Relaxed);
        pace.last.store(until - 1, Relaxed);
        assert!(pace.stay_awake().is_none());
        pace.last.store(until, Relaxed);
        assert!(pace.stay_awake().is_some());
    }

    #[test]
    fn with_another_number_of_processors_nobody_does() {
        for processors in [1, 3, 64] {
            let pace = Pace::on(processors);
            busy(&pace);
            assert!(pace.stay_awake().is_none());
        }
    }
}
