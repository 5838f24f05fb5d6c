//! Adaptive polling: whether a thread stays awake while requests follow one another closely.
//!
//! The kernel's scheduler puts a process that is woken on an idle processor rather than on the one where its answer was
//! made. A program that asks and asks thus moves with every answer to a processor that just fell asleep, and wakes it: in a
//! virtual machine, where that takes two exits to the host, some 30 µs for each request, twice what the request takes itself.
//! While one thread stays awake, with two processors none is idle, and the program stays where it is. Elsewhere waking may
//! be cheap, or another processor idle still. So it is not assumed but measured: by the time from request to request, with
//! a thread awake and without.
//!
//! What it may cost:
//!
//! 1. One thread at a time, and only while requests follow one another within [`CLOSELY`]. It offers its processor to all
//!    others between two looks; when one took it, nothing stays awake for [`PAUSE`]. So at most the idle time of one processor.
//! 2. Only where it shortens the time from request to request by a quarter; else it is tried for one window of requests
//!    in [`REST`].
//! 3. Nothing when no requests come: there is no timer.
//!
//! What was measured is measured again after [`STAY`] windows, as soon as windows become slower by half, and after
//! [`FORGOTTEN`] without requests.

use std::num::NonZero;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Requests that follow one another so closely are worth to stay awake for. What lies between two of a program that
/// does nothing else is a third of it.
const CLOSELY: Duration = Duration::from_micros(100);
/// A thread that yields and comes back later than this found another on its processor.
const YIELDED: Duration = Duration::from_micros(50);
/// How long nothing stays awake then.
const PAUSE: Duration = Duration::from_millis(4);
/// How long what was measured holds without requests.
const FORGOTTEN: Duration = Duration::from_secs(1);
/// Requests in a window of measurement.
const WINDOW: u32 = 256;
/// The first of them, which do not count: the scheduler needs some to settle.
const SETTLING: u32 = 32;
/// Windows with a thread awake between two without.
const STAY: u32 = 128;
/// Windows without a thread awake between two with one, where that does not pay.
const REST: u32 = 64;
/// Windows after which a slower one has it measured again.
const CALM: u32 = 8;

/// When requests came, and what staying awake was worth. Times are in nanoseconds from when this was made.
pub(super) struct Polling {
    began: Instant,
    /// When the last request came.
    last: AtomicU64,
    /// What lay between the last two.
    gap: AtomicU64,
    /// A thread stays awake.
    awake: AtomicBool,
    /// Threads may.
    may: AtomicBool,
    /// None does before this.
    not_before: AtomicU64,
    /// How long threads were awake for nothing, in all.
    spent: AtomicU64,
    /// `None` where there is one processor: staying awake would keep the program from it.
    measured: Option<Mutex<Measured>>,
}

/// Times from request to request.
#[derive(Debug, Default)]
struct Measured {
    /// Whether threads may stay awake in this window, and after how many windows they may or may not.
    awake: bool,
    windows: u32,
    /// Requests of this window, and the time between those that count.
    requests: u32,
    time: u64,
    /// The time of a whole window without and with a thread awake.
    without: Option<u64>,
    with: Option<u64>,
}

impl Measured {
    /// A request came so long after the one before. Whether threads may stay awake from now on.
    fn request(&mut self, gap: u64) -> bool {
        if u128::from(gap) > FORGOTTEN.as_nanos() {
            *self = Self::default();
        }
        // a pause of the program says nothing of what waking costs
        if u128::from(gap) >= CLOSELY.as_nanos() {
            return self.awake;
        }
        self.requests += 1;
        if self.requests > SETTLING {
            self.time += gap;
        }
        if self.requests == WINDOW {
            self.end_window();
        }
        self.awake
    }

    fn end_window(&mut self) {
        let time = std::mem::take(&mut self.time);
        self.requests = 0;
        self.windows = self.windows.saturating_sub(1);
        let (known, long) = if self.awake { (&mut self.with, STAY) } else { (&mut self.without, REST) };
        let before = known.unwrap_or(time);
        let (slower, faster) = (time > before.saturating_add(before / 2), before > time.saturating_add(time / 2));
        // what differs little is scatter
        *known = Some(if slower || faster { time } else { before.midpoint(time) });
        let (Some(without), Some(with)) = (self.without, self.with) else {
            // the other way is not known yet
            self.awake = !self.awake;
            return;
        };
        let pays = u128::from(with) * 4 < u128::from(without) * 3;
        let again = self.windows == 0 || (slower && self.windows + CALM <= long);
        if pays != self.awake {
            self.awake = pays;
            self.windows = if pays { STAY } else { REST };
        } else if again {
            // one window the other way
            self.awake = !pays;
            self.windows = 1;
        }
    }
}

/// Leave to stay awake. There is one at a time.
pub(super) struct Awake<'p> {
    polling: &'p Polling,
    since: u64,
    /// When it last came back from yielding.
    back: u64,
}

impl Drop for Awake<'_> {
    fn drop(&mut self) {
        self.polling.spent.fetch_add(self.polling.now().saturating_sub(self.since), Relaxed);
        self.polling.awake.store(false, Relaxed);
    }
}

impl Polling {
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
            may: AtomicBool::new(false),
            not_before: AtomicU64::new(0),
            spent: AtomicU64::new(0),
            measured: (processors > 1).then(Mutex::default),
        }
    }

    fn now(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    /// A request came.
    pub(super) fn request(&self) {
        let Some(measured) = &self.measured else { return };
        let now = self.now();
        let gap = now.saturating_sub(self.last.swap(now, Relaxed));
        self.gap.store(gap, Relaxed);
        // one that is not counted does no harm
        if let Ok(mut measured) = measured.try_lock() {
            self.may.store(measured.request(gap), Relaxed);
        }
    }

    /// How long threads were awake with nothing to do.
    pub(super) fn spent(&self) -> Duration {
        Duration::from_nanos(self.spent.load(Relaxed))
    }

    /// Whether the thread that asks shall stay awake now that it has nothing to do.
    pub(super) fn stay_awake(&self) -> Option<Awake<'_>> {
        let closely = u128::from(self.gap.load(Relaxed)) < CLOSELY.as_nanos();
        let worth = closely && self.may.load(Relaxed) && self.last.load(Relaxed) >= self.not_before.load(Relaxed);
        let now = || self.now();
        (worth && !self.awake.swap(true, Relaxed)).then(|| Awake { polling: self, since: now(), back: now() })
    }
}

impl Awake<'_> {
    /// Yields the processor, and says whether to go on.
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
        last < CLOSELY && self.polling.may.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two requests as close as time can be told, of a program for which staying awake pays.
    fn busy(polling: &Polling) {
        polling.may.store(true, Relaxed);
        polling.gap.store(0, Relaxed);
        polling.last.store(polling.now(), Relaxed);
    }

    /// Windows of requests that take so long with a thread awake and without; how many requests came with one.
    fn windows(measured: &mut Measured, number: u32, (with, without): (u64, u64)) -> u32 {
        (0..number * WINDOW).map(|_| u32::from(measured.request(if measured.awake { with } else { without }))).sum()
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
    fn on_one_processor_none_does() {
        let polling = Polling::on(1);
        (0..4 * WINDOW).for_each(|_| polling.request());
        assert!(polling.stay_awake().is_none());
    }

    #[test]
    fn where_it_pays_nearly_all_requests_find_a_thread_awake() {
        let mut measured = Measured::default();
        let awake = windows(&mut measured, 1300, (10_000, 40_000));
        assert!(awake > 1280 * WINDOW, "{awake} requests of {}", 1300 * WINDOW);
    }

    #[test]
    fn where_it_does_not_pay_it_is_hardly_tried() {
        let mut measured = Measured::default();
        let awake = windows(&mut measured, 1300, (20_000, 21_000));
        assert!(awake < 25 * WINDOW, "{awake} requests of {}", 1300 * WINDOW);
    }

    #[test]
    fn it_changes_with_what_waking_costs() {
        let mut measured = Measured::default();
        windows(&mut measured, 200, (10_000, 11_000));
        assert!(windows(&mut measured, 200, (10_000, 40_000)) > 120 * WINDOW, "dear now");
        assert!(windows(&mut measured, 400, (10_000, 11_000)) < 150 * WINDOW, "cheap again");
        // a pause: all is measured anew
        measured.request(FORGOTTEN.as_nanos() as u64 + 1);
        assert!(measured.with.is_none() && measured.without.is_none() && !measured.awake);
    }

    #[test]
    fn requests_far_apart_say_nothing() {
        let mut measured = Measured::default();
        (0..10 * WINDOW).for_each(|_| assert!(!measured.request(CLOSELY.as_nanos() as u64)));
        assert!(measured.without.is_none());
    }
}
