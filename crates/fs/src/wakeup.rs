//! Sleep and wakeup of the background thread.
//!
//! The thread checks the volume, computes when something is next due (a generation, delayed data, marking the volume
//! clean), and sleeps until then; if nothing is due, until it is woken. Operations do not report what they leave to do:
//! they only report that there may be something, and the thread checks. As each operation does so, it must cost next to
//! nothing: a state records whether a report is needed.
//!
//! | state | the thread | an operation that reports work |
//! | --- | --- | --- |
//! | `CHECKING` | has begun to check, and nothing was reported since | sets `PENDING` |
//! | `PENDING` | checks again after a tick at most | does nothing |
//! | `SLEEPING` | sleeps until something is due; nothing was reported since it began to check | sets `PENDING` and wakes
//! it |
//!
//! So while a volume is in use the thread checks ten times a second, which also measures how long it has been idle, and
//! no operation makes a system call for it except the first after an idle time.
//!
//! No wakeup is lost:
//! 1. An operation does its work, then reads the state, with a fence between. The thread sets `CHECKING`, then checks
//!    for work, with a fence between. So an operation that still reads the previous `PENDING` did its work early enough
//!    for the thread to see it. Any other replaces the value it reads by `PENDING`.
//! 2. `SLEEPING` is set only from `CHECKING`, atomically: if something was reported since, the thread sleeps for a
//!    tick.
//! 3. Only one operation reads `SLEEPING`, and it sets a flag in the call, under the lock under which the thread reads
//!    the call before it waits: either it is set before that, and the thread does not wait, or later, and the thread is
//!    notified.
//! 4. A call that arrives when the thread is already awake (its timeout had expired) causes one unnecessary check.

use parking_lot::{Condvar, Mutex};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering, fence};
use std::time::Duration;

/// The interval of checks while the volume is in use.
const TICK: Duration = Duration::from_millis(100);

const CHECKING: u8 = 0;
const PENDING: u8 = 1;
const SLEEPING: u8 = 2;

/// Wakes the background thread before its timeout.
#[derive(Default)]
pub(crate) struct Wakeup {
    call: Mutex<Call>,
    changed: Condvar,
    /// The thread was woken for a tick, which may not be done yet.
    pub(crate) requested: AtomicBool,
    /// The state; see above.
    state: AtomicU8,
    /// The number of times that the thread has woken.
    woken: AtomicU64,
}

/// The reasons for waking the background thread.
#[derive(Default, Clone, Copy)]
pub(crate) struct Call {
    pub(crate) tick: bool,
    pub(crate) stop: bool,
    work: bool,
}

impl Wakeup {
    pub(crate) fn wake(&self, set: impl FnOnce(&mut Call)) {
        set(&mut self.call.lock());
        self.changed.notify_all();
    }

    /// Reports that something was done that may become due.
    pub(crate) fn report_work(&self) {
        fence(Ordering::SeqCst);
        self.used();
    }

    /// Reports that the volume was used. As [`Wakeup::report_work`], but a report concurrent with the thread's check
    /// may be lost, until the next use repeats it.
    pub(crate) fn used(&self) {
        if self.state.load(Ordering::Relaxed) != PENDING && self.state.swap(PENDING, Ordering::SeqCst) == SLEEPING {
            self.wake(|call| call.work = true);
        }
    }

    /// Begins a check; returns whether something was reported since the last one.
    pub(crate) fn begin_check(&self) -> bool {
        let reported = self.state.swap(CHECKING, Ordering::SeqCst) == PENDING;
        fence(Ordering::SeqCst);
        reported
    }

    /// Waits for a call, or for the time until something is due (`None`: no timeout); for at least a tick, and at most
    /// a tick if something was reported since the check.
    pub(crate) fn wait(&self, due: Option<Duration>) -> Call {
        let change = |from, to| self.state.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        let most = if due.is_none_or(|due| due > TICK) && change(CHECKING, SLEEPING) { due } else { Some(TICK) };
        let waits = |call: &mut Call| !call.tick && !call.stop && !call.work;
        let mut call = self.call.lock();
        match most {
            Some(most) => {
                self.changed.wait_while_for(&mut call, waits, most);
            }
            None => self.changed.wait_while(&mut call, waits),
        }
        self.woken.fetch_add(1, Ordering::Relaxed);
        let received = *call;
        (call.tick, call.work) = (false, false);
        received
    }

    /// The number of times that the thread has woken.
    #[cfg(test)]
    pub(crate) fn woken(&self) -> u64 {
        self.woken.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn reported_work_wakes_a_thread_that_would_sleep_for_ever() {
        const EACH: u64 = 20_000;
        let (wakeup, work) = (Arc::new(Wakeup::default()), Arc::new(AtomicU64::new(0)));
        let thread = {
            let (wakeup, work) = (Arc::clone(&wakeup), Arc::clone(&work));
            std::thread::spawn(move || {
                loop {
                    wakeup.begin_check();
                    let seen = work.load(Ordering::Relaxed);
                    if seen == 2 * EACH {
                        return;
                    }
                    // a lost wakeup would wait for ever
                    wakeup.wait(None);
                }
            })
        };
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for n in 0..EACH {
                        work.fetch_add(1, Ordering::Relaxed);
                        wakeup.report_work();
                        if n % 1000 == 0 {
                            std::thread::sleep(Duration::from_millis(1));
                        }
                    }
                });
            }
        });
        thread.join().expect("a thread");
    }

    #[test]
    fn with_reported_work_it_waits_for_a_tick_and_without_until_something_is_due() {
        let wakeup = Wakeup::default();
        let waited = |due| {
            let begun = std::time::Instant::now();
            wakeup.wait(due);
            begun.elapsed()
        };
        wakeup.report_work();
        assert!(waited(None) >= TICK);
        assert!(wakeup.begin_check());
        let due = TICK * 3;
        assert!(waited(Some(due)) >= due);
        assert!(!wakeup.begin_check(), "nothing was reported");
        assert!(waited(Some(Duration::ZERO)) >= TICK);
        assert_eq!(wakeup.woken(), 3);
    }

    #[test]
    fn a_call_is_received_once() {
        let wakeup = Wakeup::default();
        wakeup.wake(|call| call.tick = true);
        assert!(wakeup.wait(None).tick);
        assert!(!wakeup.wait(Some(Duration::ZERO)).tick);
        wakeup.wake(|call| call.stop = true);
        assert!(wakeup.wait(None).stop && wakeup.wait(None).stop, "an end is for good");
    }
}
