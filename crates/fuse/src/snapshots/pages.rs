//! What the kernel has of a mount's files and has not handed over yet.

use super::{DIRECTORY, LIST};
use crate::request::Operation;
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Where the kernel does not wait for what it handed over, all has come when nothing came for so long.
const QUIET: Duration = Duration::from_millis(50);
/// Longest that is waited for that, and for a time in which no page is refused: somebody may write all the time.
const LONGEST: Duration = Duration::from_secs(5);

/// What comes from the kernel's pages.
#[derive(Default)]
pub(super) struct Pages {
    /// Writes that are being answered.
    answering: AtomicUsize,
    /// How many came.
    came: AtomicU64,
    /// How often the kernel asked for all to be durable.
    synced: AtomicU64,
    /// How many could not be written, and why the last one could not.
    failed: Mutex<(u64, Option<Errno>)>,
}

/// A write that is being answered.
pub(super) struct Coming<'p>(&'p Pages);

impl Coming<'_> {
    /// It could not be written. Pages of a file that has become immutable or append-only are refused in any case.
    pub(super) fn failed(&self, why: Errno) {
        if why != Errno::PERM {
            let mut failed = self.0.failed.lock().unwrap_or_else(PoisonError::into_inner);
            *failed = (failed.0 + 1, Some(why));
        }
    }
}

impl Drop for Coming<'_> {
    fn drop(&mut self) {
        self.0.answering.fetch_sub(1, SeqCst);
    }
}

/// Why nothing can be said of what the kernel has.
pub(super) enum Error {
    /// The program that asks for it cannot be started.
    Start(String),
    /// It did not reach the server, or this is not where the volume is mounted.
    Write(String),
    /// Some of it cannot be written.
    Refused(Errno),
}

impl Pages {
    /// Notes what comes from the kernel's pages, as long as the result lives.
    pub(super) fn note(&self, operation: &Operation<'_>) -> Option<Coming<'_>> {
        match operation {
            Operation::Write { late: true, .. } => {
                self.answering.fetch_add(1, SeqCst);
                self.came.fetch_add(1, SeqCst);
                Some(Coming(self))
            }
            Operation::SyncFs => {
                self.synced.fetch_add(1, SeqCst);
                None
            }
            _ => None,
        }
    }

    /// Has the kernel hand over all that programs wrote, through mappings too, and returns when that was answered. `dir` is
    /// where the volume is mounted.
    ///
    /// By syncfs(2), and by another process: a thread of this one could not be killed while it waits for requests that its
    /// own process has to answer, and as long as one thread is left the connection stays open, so that the wait would
    /// never end.
    pub(super) fn take_over(&self, dir: &Path) -> Result<(), Error> {
        let (before, failed_before) = (self.synced.load(SeqCst), self.failed().0);
        // found in this mount alone, so that nothing else that may be mounted over it is meant
        let place = dir.join(OsStr::from_bytes(DIRECTORY)).join(OsStr::from_bytes(LIST));
        let run = || {
            let mut command = Command::new("sync");
            command.args(["-f", "--"]).arg(&place).current_dir("/").stdin(Stdio::null()).stdout(Stdio::null());
            command.output().map_err(|e| Error::Start(format!("the program sync cannot be started: {e}")))
        };
        // the kernel says once that pages could not be written, which may be long ago, or have been those of a transaction that
        // was rolled back: their writers were told, and members that have not ended yet may change more of them
        let (began, mut ran) = (Instant::now(), run()?);
        while !ran.status.success() && began.elapsed() < LONGEST {
            std::thread::sleep(QUIET / 10);
            ran = run()?;
        }
        if !ran.status.success() {
            return Err(Error::Write(String::from_utf8_lossy(&ran.stderr).trim().to_owned()));
        }
        // a kernel that asks for this has waited for its writes; of mounts on no block device it only sends them off
        if self.synced.load(SeqCst) == before {
            self.wait_for_quiet();
        }
        match self.failed() {
            (count, Some(why)) if count != failed_before => Err(Error::Refused(why)),
            _ => Ok(()),
        }
    }

    fn failed(&self) -> (u64, Option<Errno>) {
        *self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_for_quiet(&self) {
        let began = Instant::now();
        let (mut quiet_since, mut came) = (began, self.came.load(SeqCst));
        while quiet_since.elapsed() < QUIET && began.elapsed() < LONGEST {
            std::thread::sleep(QUIET / 10);
            let now = self.came.load(SeqCst);
            if now != came || self.answering.load(SeqCst) > 0 {
                (quiet_since, came) = (Instant::now(), now);
            }
        }
    }
}
