//! The sleep of the thread in the background, and its wakeup.
//!
//! The thread looks at the volume, finds when something is next due (a generation, content without a place, the mark of
//! a clean volume), and sleeps until then; where nothing is, until it is woken. Operations do not say what they leave
//! to do: they only say that there may be something, and the thread looks. They do so each, so it must cost next to
//! nothing: a state says whether there is anything to be said.
//!
//! | state | the thread | who comes with news |
//! | --- | --- | --- |
//! | `LOOKS` | has begun to look, and nothing came since | makes it `NEWS` |
//! | `NEWS` | looks again after a tick at most | does nothing |
//! | `SLEEPS` | sleeps until something is due; nothing came since it began to look | makes it `NEWS` and wakes it |
//!
//! So while a volume is in use the thread looks ten times a second, which also says how quiet it is, and no operation
//! makes a system call for it but the first behind a quiet time.
//!
//! No wakeup is lost:
//! 1. An operation does its work, then reads the state, with a fence between. The thread sets `LOOKS`, then looks at
//!    what there is, with a fence between. So an operation that still reads the `NEWS` of before did its work early
//!    enough for the thread to see it. Any other makes `NEWS` out of what it reads.
//! 2. `SLEEPS` comes out of `LOOKS` alone, in one step: where there were news since, the thread sleeps for a tick.
//! 3. Only one finds `SLEEPS`, and it says so in the call, under the lock under which the thread reads the call before
//!    it waits: it comes before that, and the thread does not wait, or later, and the thread is notified.
//! 4. A call that arrives when the thread was awake again (its time had come) makes it look once more, for nothing.

use parking_lot::{Condvar, Mutex};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering, fence};
use std::time::Duration;

/// The interval at which the background thread looks while the volume is in use.
const TICK: Duration = Duration::from_millis(100);

const LOOKS: u8 = 0;
const NEWS: u8 = 1;
const SLEEPS: u8 = 2;

/// Wakes the background thread before its time.
#[derive(Default)]
pub(crate) struct Wakeup {
    call: Mutex<Call>,
    changed: Condvar,
    /// It was rung, and what it was rung for may not be done yet.
    pub(crate) rung: AtomicBool,
    /// See above.
    state: AtomicU8,
    /// How often the thread has woken.
    woken: AtomicU64,
}

/// The reasons for which the background thread is called.
#[derive(Default, Clone, Copy)]
pub(crate) struct Call {
    pub(crate) tick: bool,
    pub(crate) stop: bool,
    news: bool,
}

impl Wakeup {
    pub(crate) fn ring(&self, set: impl FnOnce(&mut Call)) {
        set(&mut self.call.lock());
        self.changed.notify_all();
    }

    /// Something was done that may be due some time.
    pub(crate) fn news(&self) {
        fence(Ordering::SeqCst);
        self.used();
    }

    /// The volume was used. As [`Wakeup::news`], but where it races with the thread it may be lost: for what the next
    /// use makes up for.
    pub(crate) fn used(&self) {
        if self.state.load(Ordering::Relaxed) != NEWS && self.state.swap(NEWS, Ordering::SeqCst) == SLEEPS {
            self.ring(|call| call.news = true);
        }
    }

    /// The thread begins to look; whether there were news since it last did.
    pub(crate) fn look(&self) -> bool {
        let came = self.state.swap(LOOKS, Ordering::SeqCst) == NEWS;
        fence(Ordering::SeqCst);
        came
    }

    /// Waits for a call, or for so long as nothing is due (`None`: ever); for a tick at least, and at most where there
    /// were news since the thread looked.
    pub(crate) fn wait(&self, due: Option<Duration>) -> Call {
        let change = |from, to| self.state.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        let most = if due.is_none_or(|due| due > TICK) && change(LOOKS, SLEEPS) { due } else { Some(TICK) };
        let waits = |call: &mut Call| !call.tick && !call.stop && !call.news;
        let mut call = self.call.lock();
        match most {
            Some(most) => {
                self.changed.wait_while_for(&mut call, waits, most);
            }
            None => self.changed.wait_while(&mut call, waits),
        }
        self.woken.fetch_add(1, Ordering::Relaxed);
        let heard = *call;
        (call.tick, call.news) = (false, false);
        heard
    }

    /// How often the thread has woken.
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
    fn news_wake_a_thread_that_would_sleep_for_ever() {
        const EACH: u64 = 20_000;
        let (wakeup, work) = (Arc::new(Wakeup::default()), Arc::new(AtomicU64::new(0)));
        let thread = {
            let (wakeup, work) = (Arc::clone(&wakeup), Arc::clone(&work));
            std::thread::spawn(move || {
                loop {
                    wakeup.look();
                    let seen = work.load(Ordering::Relaxed);
                    if seen == 2 * EACH {
                        return;
                    }
                    // a lost wakeup would be for good
                    wakeup.wait(None);
                }
            })
        };
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for n in 0..EACH {
                        work.fetch_add(1, Ordering::Relaxed);
                        wakeup.news();
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
    fn with_news_it_waits_for_a_tick_and_without_until_something_is_due() {
        let wakeup = Wakeup::default();
        let waited = |due| {
            let begun = std::time::Instant::now();
            wakeup.wait(due);
            begun.elapsed()
        };
        wakeup.news();
        assert!(waited(None) >= TICK);
        assert!(wakeup.look());
        let due = TICK * 3;
        assert!(waited(Some(due)) >= due);
        assert!(!wakeup.look(), "nothing came");
        assert!(waited(Some(Duration::ZERO)) >= TICK);
        assert_eq!(wakeup.woken(), 3);
    }

    #[test]
    fn a_call_is_heard_once() {
        let wakeup = Wakeup::default();
        wakeup.ring(|call| call.tick = true);
        assert!(wakeup.wait(None).tick);
        assert!(!wakeup.wait(Some(Duration::ZERO)).tick);
        wakeup.ring(|call| call.stop = true);
        assert!(wakeup.wait(None).stop && wakeup.wait(None).stop, "an end is for good");
    }
}
