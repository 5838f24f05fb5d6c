//! Content of a mount's files that the kernel has and has not handed over yet.

use crate::request::Operation;
use parking_lot::Mutex;
use rustix::io::Errno;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// Where the kernel does not wait for what it handed over, all has come when nothing came for so long and it says that
/// no request waits.
const QUIET: Duration = Duration::from_millis(50);
/// Or when nothing came for so long.
const CERTAIN: Duration = Duration::from_secs(1);
/// Longest that is waited for that, and for a time in which no page is refused: a program may write all the time.
const LONGEST: Duration = Duration::from_secs(5);
/// Longest that the end of a session waits for all of it: an init system kills after 90 seconds by default.
const AT_THE_END: Duration = Duration::from_secs(60);
/// The interval between checks whether `sync` has ended, where that has a limit.
const LOOK: Duration = Duration::from_millis(1);

/// The state of writeback from the kernel's pages. A session has one, so that all who wait for the kernel count the
/// same requests.
#[derive(Default)]
pub struct Writeback {
    /// The kernel's number of the connection, where it is known.
    connection: Option<u32>,
    /// Writes that are being answered.
    answering: AtomicUsize,
    /// The number of writes that came.
    came: AtomicU64,
    /// The number of times that the kernel asked for all to be durable.
    synced: AtomicU64,
    /// The number of writes that failed, and the error of the last one.
    failed: Mutex<(u64, Option<Errno>)>,
}

/// A write that is being answered.
pub(crate) struct PageWrite<'p>(&'p Writeback);

impl PageWrite<'_> {
    /// It could not be written. Pages of a file that has become immutable or append-only are refused in any case.
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

/// Why nothing can be said of what the kernel has.
#[derive(Debug)]
pub enum WritebackError {
    /// The program that asks for it cannot be started.
    Start(String),
    /// It did not reach the server, or this is not where the volume is mounted.
    Write(String),
    /// Some of it cannot be written.
    Refused(Errno),
}

impl Writeback {
    /// Those of the connection with this number.
    pub(crate) fn of(connection: Option<u32>) -> Self {
        Self { connection, ..Self::default() }
    }

    /// Notes what comes from the kernel's pages, as long as the result lives.
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

    /// Has the kernel write back all that programs wrote, through mappings too, and returns when that was answered,
    /// however long it takes. `place` is a file of the mount.
    ///
    /// # Errors
    /// It cannot be said that all was written.
    pub fn take_over(&self, place: &Path) -> Result<(), WritebackError> {
        // a writer who never rests is no reason against what waits for this
        self.write_back_until(place, None).map(drop)
    }

    /// As [`Writeback::take_over`], for a process that has to end soon.
    pub(crate) fn write_back(&self, place: &Path) -> Result<(), WritebackError> {
        if self.write_back_until(place, Instant::now().checked_add(AT_THE_END))? {
            return Ok(());
        }
        Err(WritebackError::Write(format!(
            "after {} s the kernel is still writing back cached data",
            AT_THE_END.as_secs()
        )))
    }

    /// False where all of it may not have come yet.
    ///
    /// By syncfs(2), and by another process: a thread of this one could not be killed while it waits for requests that
    /// its own process has to answer, and as long as one thread is left the connection stays open, so that the wait
    /// would never end.
    fn write_back_until(&self, place: &Path, end: Option<Instant>) -> Result<bool, WritebackError> {
        let (before, failed_before) = (self.synced.load(SeqCst), self.failed().0);
        // the kernel says once that pages could not be written, which may be long ago, or have been those of a
        // transaction that was rolled back: their writers got the error, and members that have not ended yet may change
        // more of them
        let (began, mut ran) = (Instant::now(), sync(place, end)?);
        while !ran.status.success() && began.elapsed() < LONGEST {
            std::thread::sleep(QUIET / 10);
            ran = sync(place, end)?;
        }
        if !ran.status.success() {
            return Err(WritebackError::Write(String::from_utf8_lossy(&ran.stderr).trim().to_owned()));
        }
        // a kernel that asks for this has waited for its writes; of mounts on no block device it only sends them off
        let quiet = self.synced.load(SeqCst) != before || self.wait_for_quiet(end);
        match self.failed() {
            (count, Some(why)) if count != failed_before => Err(WritebackError::Refused(why)),
            _ => Ok(quiet),
        }
    }

    fn failed(&self) -> (u64, Option<Errno>) {
        *self.failed.lock()
    }

    /// False where it did not become quiet until `end`.
    fn wait_for_quiet(&self, end: Option<Instant>) -> bool {
        let began = Instant::now();
        let goes_on = || end.map_or_else(|| began.elapsed() < LONGEST, |end| Instant::now() < end);
        let (mut quiet_since, mut came) = (began, self.came.load(SeqCst));
        loop {
            let quiet = quiet_since.elapsed();
            // some may be there that were not read yet, by a server that has too little time; and some wait for long
            if quiet >= QUIET && (quiet >= CERTAIN || self.nothing_waits()) {
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

    /// Whether the kernel says that no request of this connection is on its way or being answered.
    fn nothing_waits(&self) -> bool {
        let Some(number) = self.connection else { return false };
        let said = std::fs::read_to_string(format!("/sys/fs/fuse/connections/{number}/waiting"));
        said.is_ok_and(|said| said.trim() == "0")
    }
}

/// `sync -f`, until it ends or `end` comes.
fn sync(place: &Path, end: Option<Instant>) -> Result<Output, WritebackError> {
    let cannot = |e| WritebackError::Start(format!("the program sync cannot be started: {e}"));
    let mut command = Command::new("sync");
    // a group of its own: the interrupt key at a terminal, pressed again, would end it with the server's group
    command.args(["-f", "--"]).arg(place).current_dir("/").process_group(0);
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().map_err(cannot)?;
    while let Some(end) = end
        && child.try_wait().map_err(cannot)?.is_none()
    {
        if Instant::now() >= end {
            // not waited for: it may end only when this process has
            let _ = child.kill();
            return Err(WritebackError::Write("the device is too slow: sync has not ended in time".to_owned()));
        }
        std::thread::sleep(LOOK);
    }
    child.wait_with_output().map_err(cannot)
}
