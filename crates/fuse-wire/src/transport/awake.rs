//! A processor that stays awake while requests are dense, where waking it costs more than a request.
//!
//! A program and its server run alternately, and while one runs the processor of the other goes to sleep. Waking it
//! takes an interrupt, which costs a virtual machine two exits to its host: about 30 µs, as much as the request itself.
//! There are two remedies, neither of which handles requests:
//!
//! | remedy | method | cost |
//! | --- | --- | --- |
//! | `Yield` | a thread of the lowest priority that only yields, so that one more processor is awake | the idle time of one processor |
//! | `LowLatency` | `/dev/cpu_dma_latency` open with the value 0, as root only, so that idle processors poll | no processor time; power, and in a virtual machine the host's time |
//!
//! Which of them helps depends on the machine: with two processors the first prevents both from sleeping, with more it
//! does not; the second needs an idle driver with more than one idle state. So both are tried, and measurements decide:
//! 1. When at least [`BATCH`] requests arrived within [`DENSE`], the helper thread wakes another thread several times
//!    and measures the latency. If it is below [`CHEAP`] nothing is done.
//! 2. It repeats the measurement with each remedy, and uses the first that halves the latency.
//! 3. The decision is valid for [`VALID`]. A decision made while the requests ended is discarded.
//! 4. A remedy ends [`LINGER`] after the last request. Without requests the threads sleep until they are woken.
//! 5. Where yielding takes longer than [`AWAY`], another program is using the processor: nothing stays awake for a
//!    pause, which doubles each time in a row. The lowest priority alone would not suffice: control groups share the
//!    time before priorities apply.

use super::counters::AwakeCounts;
use std::fs::File;
use std::io::{self, Write};
use std::num::NonZero;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};
use std::thread::{Builder, JoinHandle, Thread, available_parallelism, park, park_timeout, sleep, yield_now};
use std::time::{Duration, Instant};

/// The number of requests that are dense within [`DENSE`]: 2 000 per second.
const BATCH: u64 = 16;
const DENSE: Duration = Duration::from_millis(8);
/// The time without a request after which nothing stays awake. Including the delay of noticing it: less than 1 ms.
const LINGER: Duration = Duration::from_micros(600);
/// The interval of checks for it where no thread yields.
const NOTICE: Duration = Duration::from_micros(250);
/// The longest wakeup that counts as cheap.
const CHEAP: Duration = Duration::from_micros(8);
/// The time for which a decision is valid.
const VALID: Duration = Duration::from_secs(5);
/// The longest yield; after a longer one another program was using the processor, not a request.
const AWAY: Duration = Duration::from_micros(200);
/// The shortest and the longest pause after that.
const PAUSE: (Duration, Duration) = (Duration::from_millis(4), Duration::from_millis(256));
/// The number of wakeups measured for a decision, and the time between two.
const SAMPLES: usize = 9;
const BETWEEN: Duration = Duration::from_micros(200);
/// The maximum wait for one wakeup.
const LONGEST: Duration = Duration::from_millis(10);
/// The lowest priority.
const NICE: i32 = 19;
/// The file through which a program limits the wakeup latency of processors, in microseconds, as long as it is open.
const LATENCY: &str = "/dev/cpu_dma_latency";

/// The times of requests, and the state of the remedies. Times are in nanoseconds since this was created.
pub(super) struct Awake {
    began: Instant,
    /// The time of the last request.
    last: AtomicU64,
    requests: AtomicU64,
    /// The time at which the batch of requests began.
    batch: AtomicU64,
    /// The helper has been woken and is not finished.
    called: AtomicBool,
    /// The helper is not woken before this time.
    not_before: AtomicU64,
    stop: AtomicBool,
    /// The helper thread; without it nothing is counted.
    helper: OnceLock<Thread>,
    /// The probe thread has been woken to measure the latency, and the time at which it ran.
    asked: AtomicBool,
    ran: AtomicU64,
    /// The time that a wakeup took in the last measurement.
    waking: AtomicU64,
    bursts: AtomicU64,
    /// The total time that the helper yielded.
    spent: AtomicU64,
    /// The total time for which processors were asked not to sleep.
    low_latency: AtomicU64,
}

/// The two threads; dropping this ends them.
pub(super) struct Helper {
    awake: Arc<Awake>,
    threads: Vec<JoinHandle<()>>,
}

/// The remedy in use while requests are dense.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Remedy {
    Nothing,
    Yield,
    LowLatency,
}

/// The helper's state.
struct Decision<'a> {
    awake: &'a Awake,
    probe: &'a Thread,
    remedy: Remedy,
    made: Option<Instant>,
    /// The length of the last pause for another program.
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

    /// Records a request. Its only other effect is to wake the helper, once for each burst.
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

    /// The current figures.
    pub(super) fn counts(&self) -> AwakeCounts {
        let time = |counter: &AtomicU64| Duration::from_nanos(counter.load(Relaxed));
        AwakeCounts {
            polled: time(&self.spent),
            waking: time(&self.waking),
            bursts: self.bursts.load(Relaxed),
            low_latency: time(&self.low_latency),
        }
    }

    /// Whether no processor should stay awake any longer.
    fn is_over(&self) -> bool {
        let quiet = self.now().saturating_sub(self.last.load(Relaxed));
        quiet > nanos(LINGER) || self.stop.load(Acquire)
    }

    /// The loop of the probe thread.
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

    /// The time from waking the thread `probe` until it runs. `wait` is called repeatedly meanwhile.
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
    /// A thread could not be started.
    pub(super) fn start(awake: &Arc<Awake>) -> io::Result<Self> {
        let mut helper = Self { awake: Arc::clone(awake), threads: Vec::with_capacity(2) };
        let shared = Arc::clone(awake);
        let probe = Builder::new().name("fuse-probe".to_owned()).spawn(move || shared.run_when_asked())?;
        let (shared, probed) = (Arc::clone(awake), probe.thread().clone());
        helper.threads.push(probe);
        let work = move || Decision::new(&shared, &probed).work();
        let thread = Builder::new().name("fuse-awake".to_owned()).spawn(work)?;
        // set once: there is one helper
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
            // a panic has been reported
            let _ = thread.join();
        }
    }
}

impl<'a> Decision<'a> {
    fn new(awake: &'a Awake, probe: &'a Thread) -> Self {
        Self { awake, probe, remedy: Remedy::Nothing, made: None, pause: Duration::ZERO }
    }

    /// Waits for bursts of requests, until the helper is stopped.
    fn work(&mut self) {
        // for this thread only. If it fails, the pause for other programs still applies
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

    /// Applies the remedy while requests are dense. Returns the length of the pause after that.
    fn burst(&mut self) -> Duration {
        if self.is_old() {
            self.remedy = Remedy::Nothing;
            self.made = None;
            let remedy = self.choose();
            if self.awake.is_over() {
                // the requests ended: the measurement is of an idle machine
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

    /// Returns the first remedy that helps, by the current cost of a wakeup.
    fn choose(&self) -> Remedy {
        // with one processor it is awake anyway; a control group may be limited to one, too
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

    /// The time that a wakeup takes without a remedy: the second longest of the samples. Single samples may be longer
    /// for any reason; others are shorter because a processor was still awake from answering a request.
    fn asleep(&self) -> u64 {
        let one = |_: usize| {
            sleep(BETWEEN);
            self.awake.time_to_wake(self.probe, || park_timeout(LONGEST))
        };
        nth_of_samples(one, SAMPLES - 2)
    }

    /// The time that a wakeup takes while this thread yields: the third shortest of the samples. Longer ones waited for
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

    /// Yields until the requests end, the decision expires, or another program wants the processor.
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

    /// Forbids processors to sleep until the requests end or the decision expires.
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

/// Returns the sample at index `place` of [`SAMPLES`] sorted samples, shortest first.
fn nth_of_samples(sample: impl FnMut(usize) -> u64, place: usize) -> u64 {
    let mut all: Vec<_> = (0..SAMPLES).map(sample).collect();
    all.sort_unstable();
    all.get(place).copied().unwrap_or(0)
}

/// Opens the file that prevents processors from sleeping while it is open. `None` without the privilege, or where the
/// kernel has no such file.
fn low_latency() -> Option<File> {
    let mut file = File::options().write(true).open(LATENCY).ok()?;
    // the value is a 32-bit number
    file.write_all(&[0; 4]).ok()?;
    Some(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sets this thread as the helper.
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
        // no request for long
        sleep(LINGER * 2);
        decision.pause = PAUSE.0;
        let pause = decision.stay_awake();
        // a busy machine may take the processor here, too
        assert!(pause == Duration::ZERO || pause == PAUSE.0 * 2, "{pause:?}");
        decision.pause = PAUSE.1;
        let pause = decision.stay_awake();
        assert!(pause == Duration::ZERO || pause == PAUSE.1, "{pause:?}");
    }
}
