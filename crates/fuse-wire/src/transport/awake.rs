//! A processor that stays awake while requests follow closely, where waking it costs more than a request.
//!
//! A program and the server that answers it take turns, and while one works the processor of the other falls asleep. To
//! wake it is an interrupt, which a virtual machine pays with two exits to its host: some 30 µs, as much as the request
//! itself. Two remedies, both without a part in the requests:
//!
//! | remedy | does | costs |
//! | --- | --- | --- |
//! | `Yield` | a thread of the lowest priority that only yields, so that one processor more is awake | what is idle of one processor |
//! | `LowLatency` | `/dev/cpu_dma_latency` is open with 0, for root only, so that idle processors wait awake | no time of a processor; power, and in a virtual machine the host's time |
//!
//! Which of them helps depends on the machine: with two processors the first prevents that any sleeps, with more it
//! does not; the second needs a driver of idle states that has a choice. So both are tried, and what counts is what is
//! measured:
//! 1. Where at least [`BATCH`] requests came within [`DENSE`], the helper thread wakes another thread a few times and
//!    sees how long that takes. Where it is [`CHEAP`] nothing is done.
//! 2. It does so again with a remedy, and takes the first that halves the time.
//! 3. The decision counts for [`VALID`]. One that was made while the requests ended counts for nothing.
//! 4. A remedy ends [`LINGER`] after the last request. Without requests the threads sleep until they are called.
//! 5. Where yielding takes longer than [`AWAY`], another program has the processor: nothing stays awake for a while,
//!    and each time in a row for twice as long. The priority alone would not do: control groups share the time before
//!    it counts.

use super::counters::AwakeCounts;
use std::fs::File;
use std::io::{self, Write};
use std::num::NonZero;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};
use std::thread::{Builder, JoinHandle, Thread, available_parallelism, park, park_timeout, sleep, yield_now};
use std::time::{Duration, Instant};

/// So many requests, in at most this time, are dense: 2 000 in a second.
const BATCH: u64 = 16;
const DENSE: Duration = Duration::from_millis(8);
/// The time without a request after which nothing stays awake. With what it takes to notice it: less than 1 ms.
const LINGER: Duration = Duration::from_micros(600);
/// The interval at which it is noticed where no thread yields.
const NOTICE: Duration = Duration::from_micros(250);
/// A wakeup that takes no longer is cheap.
const CHEAP: Duration = Duration::from_micros(8);
/// The time for which a decision counts.
const VALID: Duration = Duration::from_secs(5);
/// A thread that yields and comes back later than this found another program on its processor, not a request.
const AWAY: Duration = Duration::from_micros(200);
/// The least and the most time for which nothing stays awake then.
const PAUSE: (Duration, Duration) = (Duration::from_millis(4), Duration::from_millis(256));
/// Wakeups that are measured for a decision, and the time between two.
const SAMPLES: usize = 9;
const BETWEEN: Duration = Duration::from_micros(200);
/// The longest that a wakeup is waited for.
const LONGEST: Duration = Duration::from_millis(10);
/// The lowest priority.
const NICE: i32 = 19;
/// The file by which a program asks that processors wake within so many microseconds, as long as it is open.
const LATENCY: &str = "/dev/cpu_dma_latency";

/// When requests came, and what was done about it. Times are in nanoseconds from when this was made.
pub(super) struct Awake {
    began: Instant,
    /// When the last request came.
    last: AtomicU64,
    requests: AtomicU64,
    /// When the batch of requests began.
    batch: AtomicU64,
    /// The helper has something to do, or does it.
    called: AtomicBool,
    /// It is not called before this.
    not_before: AtomicU64,
    stop: AtomicBool,
    /// The helper; while there is none, nothing is counted.
    helper: OnceLock<Thread>,
    /// The thread that is woken to see how long that takes has been asked, and when it ran.
    asked: AtomicBool,
    ran: AtomicU64,
    /// The time that a wakeup took when that was last measured.
    waking: AtomicU64,
    bursts: AtomicU64,
    /// The total time that the helper yielded.
    spent: AtomicU64,
    /// The total time for which processors were asked not to sleep.
    low_latency: AtomicU64,
}

/// The two threads; they end when this is dropped.
pub(super) struct Helper {
    awake: Arc<Awake>,
    threads: Vec<JoinHandle<()>>,
}

/// The remedy that is used while requests follow closely.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Remedy {
    Nothing,
    Yield,
    LowLatency,
}

/// The helper's knowledge.
struct Decision<'a> {
    awake: &'a Awake,
    probe: &'a Thread,
    remedy: Remedy,
    made: Option<Instant>,
    /// The time for which nothing stayed awake when another program had the processor last.
    pause: Duration,
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Awake {
    pub(super) fn new() -> Self {
        let (zero, no) = (|| AtomicU64::new(0), || AtomicBool::new(false));
        Self {
            began: Instant::now(),
            last: zero(),
            requests: zero(),
            batch: zero(),
            called: no(),
            not_before: zero(),
            stop: no(),
            helper: OnceLock::new(),
            asked: no(),
            ran: zero(),
            waking: zero(),
            bursts: zero(),
            spent: zero(),
            low_latency: zero(),
        }
    }

    fn now(&self) -> u64 {
        nanos(self.began.elapsed())
    }

    /// A request came. Wakes the helper at most, once for each burst.
    pub(super) fn request(&self) {
        let Some(helper) = self.helper.get() else { return };
        let now = self.now();
        self.last.store(now, Relaxed);
        if self.requests.fetch_add(1, Relaxed) % BATCH != BATCH - 1 {
            return;
        }
        let dense = now.saturating_sub(self.batch.swap(now, Relaxed)) <= nanos(DENSE);
        if dense
            && now >= self.not_before.load(Relaxed)
            && !self.called.load(Relaxed)
            && !self.called.swap(true, Release)
        {
            helper.unpark();
        }
    }

    /// The figures up to now.
    pub(super) fn counts(&self) -> AwakeCounts {
        let time = |counter: &AtomicU64| Duration::from_nanos(counter.load(Relaxed));
        AwakeCounts {
            polled: time(&self.spent),
            waking: time(&self.waking),
            bursts: self.bursts.load(Relaxed),
            low_latency: time(&self.low_latency),
        }
    }

    /// Whether nothing is to stay awake any more.
    fn is_over(&self) -> bool {
        let quiet = self.now().saturating_sub(self.last.load(Relaxed));
        quiet > nanos(LINGER) || self.stop.load(Acquire)
    }

    /// The work of the thread that is woken.
    fn run_when_asked(&self) {
        while !self.stop.load(Acquire) {
            if self.asked.swap(false, Acquire) {
                self.ran.store(self.now().max(1), Release);
                if let Some(helper) = self.helper.get() {
                    helper.unpark();
                }
            } else {
                park();
            }
        }
    }

    /// The time from waking the thread `probe` until it runs. `wait` is what is done meanwhile, again and again.
    fn time_to_wake(&self, probe: &Thread, wait: impl Fn()) -> u64 {
        self.ran.store(0, Relaxed);
        let begun = self.now();
        self.asked.store(true, Release);
        probe.unpark();
        loop {
            let (ran, now) = (self.ran.load(Acquire), self.now());
            if ran != 0 {
                return ran.saturating_sub(begun);
            }
            if now.saturating_sub(begun) > nanos(LONGEST) || self.stop.load(Acquire) {
                return nanos(LONGEST);
            }
            wait();
        }
    }
}

impl Helper {
    /// # Errors
    /// A thread cannot be started.
    pub(super) fn start(awake: &Arc<Awake>) -> io::Result<Self> {
        let mut helper = Self { awake: Arc::clone(awake), threads: Vec::with_capacity(2) };
        let shared = Arc::clone(awake);
        let probe = Builder::new().name("fuse-probe".to_owned()).spawn(move || shared.run_when_asked())?;
        let (shared, probed) = (Arc::clone(awake), probe.thread().clone());
        helper.threads.push(probe);
        let work = move || Decision::new(&shared, &probed).work();
        let thread = Builder::new().name("fuse-awake".to_owned()).spawn(work)?;
        // there is one helper
        let _ = awake.helper.set(thread.thread().clone());
        helper.threads.push(thread);
        Ok(helper)
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.awake.stop.store(true, Release);
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            // one that panicked has reported it
            let _ = thread.join();
        }
    }
}

impl<'a> Decision<'a> {
    fn new(awake: &'a Awake, probe: &'a Thread) -> Self {
        Self { awake, probe, remedy: Remedy::Nothing, made: None, pause: Duration::ZERO }
    }

    /// Waits for bursts of requests, until it is called to stop.
    fn work(&mut self) {
        // of this thread alone. Where it fails, the rule for other programs is left
        let _ = rustix::process::nice(NICE);
        while !self.awake.stop.load(Acquire) {
            if self.awake.called.load(Acquire) {
                self.awake.bursts.fetch_add(1, Relaxed);
                let pause = self.burst();
                self.awake.not_before.store(self.awake.now().saturating_add(nanos(pause)), Relaxed);
                self.awake.called.store(false, Release);
            } else {
                park();
            }
        }
    }

    /// Does what helps while the requests follow closely. Returns the time for which nothing is to be done then.
    fn burst(&mut self) -> Duration {
        if self.is_old() {
            self.remedy = Remedy::Nothing;
            self.made = None;
            let remedy = self.choose();
            if self.awake.is_over() {
                // what was measured is how an idle machine wakes
                return PAUSE.0;
            }
            (self.remedy, self.made) = (remedy, Some(Instant::now()));
        }
        match self.remedy {
            Remedy::Nothing => VALID.saturating_sub(self.made.map_or(VALID, |made| made.elapsed())),
            Remedy::Yield => self.stay_awake(),
            Remedy::LowLatency => self.forbid_sleep(),
        }
    }

    fn is_old(&self) -> bool {
        self.made.is_none_or(|made| made.elapsed() >= VALID)
    }

    /// The first remedy that helps, by what waking costs now.
    fn choose(&self) -> Remedy {
        // one processor is awake while there is work; and a control group may have the time of one only
        if available_parallelism().map_or(1, NonZero::get) < 2 {
            return Remedy::Nothing;
        }
        let cost = self.asleep();
        self.awake.waking.store(cost, Relaxed);
        if cost <= nanos(CHEAP) {
            return Remedy::Nothing;
        }
        if self.yielding() <= cost / 2 {
            return Remedy::Yield;
        }
        let asked = low_latency();
        if asked.is_some() && self.asleep() <= cost / 2 { Remedy::LowLatency } else { Remedy::Nothing }
    }

    /// The time that a wakeup takes where nothing stays awake: the second longest of some, as one may be longer for any
    /// reason and others shorter, which found a processor awake that had just answered a request.
    fn asleep(&self) -> u64 {
        let one = |_: usize| {
            sleep(BETWEEN);
            self.awake.time_to_wake(self.probe, || park_timeout(LONGEST))
        };
        nth_of_samples(one, SAMPLES - 2)
    }

    /// The time that a wakeup takes while this thread yields: the third shortest of some. Longer ones had to wait for
    /// the end of a request.
    fn yielding(&self) -> u64 {
        let begun = self.awake.now();
        let one = |_: usize| {
            let until = self.awake.now().saturating_add(nanos(BETWEEN));
            while self.awake.now() < until {
                yield_now();
            }
            self.awake.time_to_wake(self.probe, yield_now)
        };
        let cost = nth_of_samples(one, 2);
        self.awake.spent.fetch_add(self.awake.now().saturating_sub(begun), Relaxed);
        cost
    }

    /// Yields until the requests end, the decision is old, or another program wants the processor.
    fn stay_awake(&mut self) -> Duration {
        let begun = self.awake.now();
        let mut back = begun;
        let was_taken = loop {
            yield_now();
            let now = self.awake.now();
            let away = now.saturating_sub(back);
            back = now;
            if away > nanos(AWAY) {
                break true;
            }
            if self.awake.is_over() || self.is_old() {
                break false;
            }
        };
        self.awake.spent.fetch_add(back.saturating_sub(begun), Relaxed);
        self.pause = if was_taken { (self.pause * 2).clamp(PAUSE.0, PAUSE.1) } else { Duration::ZERO };
        self.pause
    }

    /// Asks the kernel not to let processors sleep until the requests end or the decision is old.
    fn forbid_sleep(&mut self) -> Duration {
        let Some(asked) = low_latency() else {
            self.made = None;
            return PAUSE.1;
        };
        let begun = self.awake.now();
        while !self.awake.is_over() && !self.is_old() {
            sleep(NOTICE);
        }
        drop(asked);
        self.awake.low_latency.fetch_add(self.awake.now().saturating_sub(begun), Relaxed);
        Duration::ZERO
    }
}

/// Of [`SAMPLES`] samples the one at a place, from the shortest on.
fn nth_of_samples(sample: impl FnMut(usize) -> u64, place: usize) -> u64 {
    let mut all: Vec<_> = (0..SAMPLES).map(sample).collect();
    all.sort_unstable();
    all.get(place).copied().unwrap_or(0)
}

/// Processors do not sleep while the file is open. `None` for who may not ask for that, and where the kernel has no
/// such file.
fn low_latency() -> Option<File> {
    let mut file = File::options().write(true).open(LATENCY).ok()?;
    // a number of 32 bits
    file.write_all(&[0; 4]).ok()?;
    Some(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With this thread in place of the helper.
    fn alone() -> Awake {
        let awake = Awake::new();
        awake.helper.set(std::thread::current()).expect("the first");
        awake
    }

    fn batch(awake: &Awake) {
        (0..BATCH).for_each(|_| awake.request());
    }

    #[test]
    fn dense_requests_call_the_helper_and_others_do_not() {
        let awake = alone();
        awake.not_before.store(0, Relaxed);
        batch(&awake);
        awake.called.store(false, Relaxed);
        batch(&awake);
        assert!(awake.called.load(Relaxed), "two batches without a pause");
        awake.called.store(false, Relaxed);
        sleep(DENSE * 2);
        batch(&awake);
        assert!(!awake.called.load(Relaxed), "they took longer");
        awake.not_before.store(u64::MAX, Relaxed);
        batch(&awake);
        assert!(!awake.called.load(Relaxed), "it is not the time");
    }

    #[test]
    fn without_a_helper_nothing_is_counted() {
        let awake = Awake::new();
        batch(&awake);
        batch(&awake);
        assert_eq!((awake.requests.load(Relaxed), awake.called.load(Relaxed)), (0, false));
    }

    #[test]
    fn it_ends_with_the_requests_and_then_nothing_is_spent() {
        let awake = Arc::new(Awake::new());
        let helper = Helper::start(&awake).expect("threads");
        let end = Instant::now() + Duration::from_secs(60);
        while awake.counts().bursts == 0 {
            assert!(Instant::now() < end, "it was not called");
            awake.request();
            yield_now();
        }
        while awake.called.load(Relaxed) {
            assert!(Instant::now() < end, "it does not end");
            sleep(Duration::from_millis(1));
        }
        let before = awake.counts();
        sleep(Duration::from_millis(100));
        assert_eq!(awake.counts(), before);
        drop(helper);
    }

    #[test]
    fn a_wakeup_takes_time() {
        let awake = Arc::new(alone());
        let shared = Arc::clone(&awake);
        let probe = std::thread::spawn(move || shared.run_when_asked());
        let decision = Decision::new(&awake, probe.thread());
        for cost in [decision.asleep(), decision.yielding()] {
            assert!(cost > 0 && cost <= nanos(LONGEST), "{cost}");
        }
        awake.stop.store(true, Release);
        probe.thread().unpark();
        probe.join().expect("a thread");
    }

    #[test]
    fn a_processor_that_another_program_has_is_left_to_it_for_longer_each_time() {
        let awake = alone();
        let probe = std::thread::current();
        let mut decision = Decision::new(&awake, &probe);
        decision.made = Some(Instant::now());
        // no request came for long
        sleep(LINGER * 2);
        decision.pause = PAUSE.0;
        let pause = decision.stay_awake();
        // a machine that is busy may take the processor here, too
        assert!(pause == Duration::ZERO || pause == PAUSE.0 * 2, "{pause:?}");
        decision.pause = PAUSE.1;
        let pause = decision.stay_awake();
        assert!(pause == Duration::ZERO || pause == PAUSE.1, "{pause:?}");
    }
}
