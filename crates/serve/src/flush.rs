//! Flushes of all connections, made one at a time, each for all who wait.
//!
//! 1. A flush returns after a flush of the device that *began* after it was asked for. Who asks while one is under
//!    way waits for the next, and that one serves all who came meanwhile.
//! 2. After a flush that failed, nothing that was acknowledged before it can be promised any more, and nothing is
//!    written any more: every later flush and change fails. Reads go on.

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
    /// Flushes of the device that began, and the newest that returned with success.
    begun: u64,
    done: u64,
    running: bool,
    failed: bool,
}

/// Why a flush did not succeed.
#[derive(Debug)]
pub(crate) enum Unflushed {
    /// This one failed.
    Now(Error),
    /// Another one did, before or for several who waited.
    Before,
}

impl Flushes {
    /// Makes durable all writes of any client that had returned; `device` flushes the device.
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

    /// Whether a flush has failed, so that nothing may be written any more.
    pub(crate) fn failed(&self) -> bool {
        self.state().failed
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}
