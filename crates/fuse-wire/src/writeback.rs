//! The kernel's writeback of a mount's files: waiting until their dirty pages have arrived.

use crate::request::Operation;
use parking_lot::Mutex;
use rustix::io::Errno;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// The time without a write and without a pending request after which all writes have arrived, if the kernel's sync does
/// not wait for them.
const QUIET: Duration = Duration::from_millis(50);
/// The time without a write after which all have arrived in any case.
const ARRIVAL_TIMEOUT: Duration = Duration::from_secs(1);
/// The maximum time to wait for such a pause, and for a period in which no page write fails: a program may write all
/// the time.
const LONGEST: Duration = Duration::from_secs(5);
/// The maximum time to wait for writeback at the end of a session: an init system kills after 90 seconds by default.
const AT_THE_END: Duration = Duration::from_secs(60);
/// The interval between checks whether `sync` has ended, where a time limit applies.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The state of writeback from the kernel's pages. A session has one, so that all waiters count the same requests.
#[derive(Default)]
pub struct Writeback {
    /// The device number of the connection, where it is known.
    connection: Option<u32>,
    /// The number of page writes being answered.
    answering: AtomicUsize,
    /// The number of page writes that arrived.
    came: AtomicU64,
    /// The number of SYNCFS requests from the kernel.
    synced: AtomicU64,
    /// The number of page writes that failed, and the error of the last one.
    failed: Mutex<(u64, Option<Errno>)>,
}

/// A page write that is being answered.
pub(crate) struct PageWrite<'p>(&'p Writeback);

impl PageWrite<'_> {
    /// Records that the write failed. Pages of a file that became immutable or append-only always fail and are not
    /// counted.
    pub(crate) fn failed(&self, why: Errno) {
        if why != Errno::PERM {
            let mut failed = self.0.failed.lock();
            *failed = (failed.0 + 1, Some(why));
        }
    }
}

impl Drop for PageWrite<'_> {
    fn drop(&mut self) {
        self.0.answering.fetch_sub(1, SeqCst);
    }
}

/// The reason why it is unknown whether everything was written back.
#[derive(Debug)]
pub enum WritebackError {
    /// The sync program cannot be started.
    Start(String),
    /// The sync program failed or timed out, or the path is not on this mount.
    Write(String),
    /// Some of the pages could not be written.
    Refused(Errno),
}

impl Writeback {
    /// The state for the connection with this device number.
    pub(crate) fn of(connection: Option<u32>) -> Self {
        Self { connection, ..Self::default() }
    }

    /// Counts a write from the kernel's pages; it ends when the result is dropped.
    pub(crate) fn record(&self, operation: &Operation<'_>) -> Option<PageWrite<'_>> {
        match operation {
            Operation::Write { paged: true, .. } => {
                self.answering.fetch_add(1, SeqCst);
                self.came.fetch_add(1, SeqCst);
                Some(PageWrite(self))
            }
            Operation::SyncFs => {
                self.synced.fetch_add(1, SeqCst);
                None
            }
            _ => None,
        }
    }

    /// Makes the kernel write back all data that programs wrote, including through mappings, and returns when those
    /// writes are answered, however long that takes. `place` is a file of the mount.
    ///
    /// # Errors
    /// It is unknown whether all data was written.
    pub fn take_over(&self, place: &Path) -> Result<(), WritebackError> {
        // a program that writes all the time does not fail the caller
        self.write_back_until(place, None).map(drop)
    }

    /// As [`Writeback::take_over`], with a time limit, for a process that must end soon.
    pub(crate) fn write_back(&self, place: &Path) -> Result<(), WritebackError> {
        if self.write_back_until(place, Instant::now().checked_add(AT_THE_END))? {
            return Ok(());
        }
        Err(WritebackError::Write(format!(
            "after {} s the kernel is still writing back cached data",
            AT_THE_END.as_secs()
        )))
    }

    /// Returns `false` where some of the writes may not have arrived.
    ///
    /// It runs syncfs(2) in another process. A thread of this process could not be killed while it waits for requests
    /// that this process has to answer, and as long as one thread remains the connection stays open, so that the wait
    /// would never end.
    fn write_back_until(&self, place: &Path, end: Option<Instant>) -> Result<bool, WritebackError> {
        let (before, failed_before) = (self.synced.load(SeqCst), self.failed().0);
        // the kernel reports once that pages could not be written; that may have been long ago, or concern pages of a
        // rolled-back transaction: their writers got the error, and members that have not ended yet may change more of
        // them
        let (began, mut ran) = (Instant::now(), sync(place, end)?);
        while !ran.status.success() && began.elapsed() < LONGEST {
            std::thread::sleep(QUIET / 10);
            ran = sync(place, end)?;
        }
        if !ran.status.success() {
            return Err(WritebackError::Write(String::from_utf8_lossy(&ran.stderr).trim().to_owned()));
        }
        // a kernel that sends SYNCFS has waited for its writes; for mounts that are not on a block device it only
        // starts them
        let quiet = self.synced.load(SeqCst) != before || self.wait_for_quiet(end);
        match self.failed() {
            (count, Some(why)) if count != failed_before => Err(WritebackError::Refused(why)),
            _ => Ok(quiet),
        }
    }

    fn failed(&self) -> (u64, Option<Errno>) {
        *self.failed.lock()
    }

    /// Returns `false` where writes still arrived at `end`.
    fn wait_for_quiet(&self, end: Option<Instant>) -> bool {
        let began = Instant::now();
        let goes_on = || end.map_or_else(|| began.elapsed() < LONGEST, |end| Instant::now() < end);
        let (mut quiet_since, mut came) = (began, self.came.load(SeqCst));
        loop {
            let quiet = quiet_since.elapsed();
            // a slow server may not have read some of the requests yet, and some requests wait for long
            if quiet >= QUIET && (quiet >= ARRIVAL_TIMEOUT || self.nothing_waits()) {
                return true;
            }
            if !goes_on() {
                return false;
            }
            std::thread::sleep(QUIET / 10);
            let now = self.came.load(SeqCst);
            if now != came || self.answering.load(SeqCst) > 0 {
                (quiet_since, came) = (Instant::now(), now);
            }
        }
    }

    /// Whether the kernel reports that no request of this connection is pending.
    fn nothing_waits(&self) -> bool {
        let Some(number) = self.connection else { return false };
        let said = std::fs::read_to_string(format!("/sys/fs/fuse/connections/{number}/waiting"));
        said.is_ok_and(|said| said.trim() == "0")
    }
}

/// Runs `sync -f` until it ends, or until `end`.
fn sync(place: &Path, end: Option<Instant>) -> Result<Output, WritebackError> {
    let cannot = |e| WritebackError::Start(format!("the program sync cannot be started: {e}"));
    let mut command = Command::new("sync");
    // a process group of its own: pressing the interrupt key at a terminal again would otherwise end it with the
    // server's group
    command.args(["-f", "--"]).arg(place).current_dir("/").process_group(0);
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().map_err(cannot)?;
    while let Some(end) = end
        && child.try_wait().map_err(cannot)?.is_none()
    {
        if Instant::now() >= end {
            // not waited for: it may end only after this process
            let _ = child.kill();
            return Err(WritebackError::Write("the device is too slow: sync has not ended in time".to_owned()));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    child.wait_with_output().map_err(cannot)
}
