//! The wakeup of the thread in the background before its time.

use parking_lot::{Condvar, Mutex};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// The interval at which the background thread looks at the clock.
const TICK: Duration = Duration::from_millis(100);
/// Wakes the background thread before its time.
#[derive(Default)]
pub(crate) struct Wakeup {
    call: Mutex<Call>,
    changed: Condvar,
    /// It was rung, and what it was rung for may not be done yet.
    pub(crate) rung: AtomicBool,
}

/// The reasons for which the background thread is called.
#[derive(Default, Clone, Copy)]
pub(crate) struct Call {
    pub(crate) tick: bool,
    pub(crate) stop: bool,
}

impl Wakeup {
    pub(crate) fn ring(&self, set: impl FnOnce(&mut Call)) {
        set(&mut self.call.lock());
        self.changed.notify_all();
    }

    /// Waits for a call, or for the next tick.
    pub(crate) fn wait(&self) -> Call {
        let waits = |call: &mut Call| !call.tick && !call.stop;
        let mut call = self.call.lock();
        self.changed.wait_while_for(&mut call, waits, TICK);
        let heard = *call;
        call.tick = false;
        heard
    }
}
