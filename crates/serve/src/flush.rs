//! Flushes for all connections: one at a time, each for all waiting requests.
//!
//! 1. A flush returns after a flush of the device that *began* after it was requested. A request that arrives during a
//!    flush waits for the next one, which serves all requests that arrived meanwhile.
//! 2. After a failed flush, durability of earlier acknowledged writes is no longer guaranteed, and nothing is written:
//!    every later flush and change fails. Reads continue.

use parking_lot::{Condvar, Mutex, MutexGuard};

use blockdev::Error;

/// The order of flushes of one device.
#[derive(Debug, Default)]
pub(crate) struct Flushes {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The number of device flushes that began, and of the newest that succeeded.
    begun: u64,
    done: u64,
    running: bool,
    failed: bool,
}

/// The reason why a flush did not succeed.
#[derive(Debug)]
pub(crate) enum Unflushed {
    /// This one failed.
    Now(Error),
    /// Another one failed before, or on behalf of several waiting requests.
    Before,
}

impl Flushes {
    /// Makes all returned writes of any client durable; `device` flushes the device.
    pub(crate) fn flush(&self, device: impl Fn() -> Result<(), Error>) -> Result<(), Unflushed> {
        let mut state = self.state();
        let needed = state.begun + 1;
        loop {
            if state.failed {
                return Err(Unflushed::Before);
            }
            if state.done >= needed {
                return Ok(());
            }
            if state.running {
                self.changed.wait(&mut state);
                continue;
            }
            state.running = true;
            state.begun += 1;
            let this = state.begun;
            drop(state);
            let flushed = device();
            state = self.state();
            state.running = false;
            match &flushed {
                Ok(()) => state.done = this,
                Err(_) => state.failed = true,
            }
            self.changed.notify_all();
            flushed.map_err(Unflushed::Now)?;
        }
    }

    /// Whether a flush has failed, so that no further write is permitted.
    pub(crate) fn failed(&self) -> bool {
        self.state().failed
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}
