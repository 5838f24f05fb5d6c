//! `extant txn`: runs a command whose changes to a mounted volume are one atomic transaction.

use crate::copy_in::not_ignored;
use crate::error_report::{Failure, Result, say, without_errno};
use check::render::escape;
use clap::Args;
use fuse::MountedTransaction;
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, getpid, pidfd_open, pidfd_send_signal, set_child_subreaper, wait,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// The exit status where `extant txn` itself fails, as with env(1) and timeout(1).
pub(crate) const FAILURE: u8 = 125;
/// Polling interval while waiting for another transaction, or for remaining processes.
const AGAIN: Duration = Duration::from_millis(50);
/// Time after the timeout by which the serving process has rolled back a transaction.
const ROLLED_BACK: Duration = Duration::from_millis(500);

#[derive(Debug, Args)]
#[command(
    about = "Run a command as one atomic transaction",
    after_help = "Examples:
  extant txn /mnt -- tar -xf new-release.tar -C /mnt/app
  extant txn --timeout 600 /mnt -- sh -c 'cd /mnt/app && ./upgrade'

All changes that COMMAND and its descendants make on the volume are one transaction: after a crash or a \
    loss of power either all of them are present, or none. They are on the device when this command returns 0, \
    and not before: fsync by COMMAND returns at once and makes nothing durable. If COMMAND fails, all \
    changes are rolled back (unless --commit-on-failure is used). The volume must be mounted, and of \
    Extant's own format (mkfs -t extant). One transaction runs at a time: the next one waits for its \
    end, and fails after the timeout; transactions cannot be nested.

The commit waits for processes that COMMAND leaves behind. On timeout all changes are rolled back, \
    and COMMAND gets SIGTERM. SIGTERM, SIGINT and SIGHUP are passed on to COMMAND, and all changes are \
    rolled back when it has ended. All changes are rolled back as well if extant is killed, or if the \
    volume is unmounted by force (umount -l, SIGTERM to the process that serves it); without force it \
    is busy. After a rollback the remaining processes of COMMAND cannot change the volume: their calls fail \
    (operation canceled) until they end. There are three exceptions: memory that COMMAND mapped from a file and \
    changes after the rollback is written as by any other process; so are bytes of a failed call, if \
    another program has the file mapped and stores beside them; and if this process is killed by SIGKILL, a \
    process that at that moment has neither its parents nor its environment (EXTANT_TXN) any more is not \
    identified as a member.

Until the end other processes see the changes, and wait before they change anything themselves. Space \
    that COMMAND frees can be used after the commit. A transaction can change as much metadata as \
    a generation can contain: 64 MiB, less on volumes below 4 GiB or nearly full. Beyond that limit, and after the \
    timeout, calls of COMMAND fail (file too large; operation canceled), and all changes are rolled back. \
    Processes that wait get EBUSY only if COMMAND needs a file that they are writing, or a directory in which \
    they are creating, renaming or removing a name, and they cannot release it: a call with a path from elsewhere \
    can; one with a name alone, in the current directory or at the top of the mount, can only if the volume is \
    mounted with allow_other or default_permissions. A mapped page that is written back meanwhile \
    (mmap) is part of the transaction, regardless of the process that wrote it. fsync and msync by others of a file with such \
    pages, and sync, wait for the end; after a rollback they fail (EIO). Processes in other \
    PID namespaces than that of the process that serves the volume are never members: they wait.

Exit status: that of COMMAND; 128 and the number of the signal that ended it; 125 where the \
    transaction failed, 126 where COMMAND cannot be run, 127 where it is not found."
)]
pub(crate) struct Txn {
    /// Commit even if COMMAND fails
    #[arg(long)]
    commit_on_failure: bool,
    /// Roll back if COMMAND fails, which is the default
    #[arg(long, hide = true, conflicts_with = "commit_on_failure")]
    rollback_on_failure: bool,
    /// Timeout in seconds, from 1 to a day
    #[arg(long, value_name = "S", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86400))]
    timeout: u64,
    /// Directory or file on the mounted volume
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Command to run, with its arguments
    #[arg(value_name = "COMMAND", required = true, last = true)]
    command: Vec<OsString>,
}

/// The signals received by this process, and the process to pass them on to.
#[derive(Default)]
struct Signalled {
    last: AtomicI32,
    command: OnceLock<OwnedFd>,
}

impl Signalled {
    /// Catches signals, which no longer end this process.
    fn catch() -> io::Result<Arc<Self>> {
        let this = Arc::new(Self::default());
        let mut signals = Signals::new(not_ignored([SIGTERM, SIGINT, SIGHUP]))?;
        let forwarder = Arc::clone(&this);
        std::thread::spawn(move || {
            for signal in signals.forever() {
                forwarder.last.store(signal, Ordering::SeqCst);
                forwarder.forward_signal(signal);
            }
        });
        Ok(this)
    }

    fn forward_signal(&self, signal: i32) {
        let signal = match signal {
            SIGINT => Signal::INT,
            SIGHUP => Signal::HUP,
            _ => Signal::TERM,
        };
        if let Some(command) = self.command.get() {
            // a process that has ended needs no signal
            let _ = pidfd_send_signal(command, signal);
        }
    }

    /// Passes signals on to a process, including earlier ones.
    fn to(&self, command: Pid) -> io::Result<()> {
        // it exists, since no process has waited for it yet
        let _ = self.command.set(pidfd_open(command, PidfdFlags::empty())?);
        if let Some(signal) = self.any() {
            self.forward_signal(signal);
        }
        Ok(())
    }

    /// Ends the command at the timeout: its later changes have no effect.
    fn end_after(self: &Arc<Self>, time: Duration) {
        let this = Arc::clone(self);
        std::thread::spawn(move || {
            std::thread::sleep(time);
            this.forward_signal(SIGTERM);
        });
    }

    fn any(&self) -> Option<i32> {
        Some(self.last.load(Ordering::SeqCst)).filter(|signal| *signal != 0)
    }
}

impl Txn {
    pub(crate) fn run(&self) -> Result<u8> {
        let failed =
            |e: io::Error| Failure::on(&self.dir.to_string_lossy(), escape(without_errno(&e.to_string()).as_bytes()));
        let signalled = Signalled::catch()?;
        // processes whose parents have ended become children of this one, and so remain members
        set_child_subreaper(Some(getpid())).map_err(|e| failed(e.into()))?;
        let transaction = self.begin(&signalled).map_err(failed)?;
        let begun = Instant::now();
        let Some((program, arguments)) = self.command.split_first() else { return Ok(FAILURE) };
        let (variable, mark) = transaction.mark();
        let command = match Command::new(program).args(arguments).env(variable, mark).spawn() {
            Ok(command) => Pid::from_child(&command),
            Err(e) => {
                // an error of the rollback would be less useful than this one
                let _ = transaction.rollback();
                let program = program.to_string_lossy();
                say(&format!("{}: {}", escape(program.as_bytes()), without_errno(&e.to_string())));
                return Ok(if e.kind() == io::ErrorKind::NotFound { 127 } else { 126 });
            }
        };
        signalled.to(command)?;
        signalled.end_after(Duration::from_secs(self.timeout) + ROLLED_BACK);
        let ran = wait_for(command).map_err(failed)?;
        if signalled.any().is_some() || !(ran.success() || self.commit_on_failure) {
            return self.roll_back(transaction, &signalled, ran).map_err(failed);
        }
        if !self.wait_for_the_rest(begun, &signalled, &transaction).map_err(failed)? {
            return self.roll_back(transaction, &signalled, ran).map_err(failed);
        }
        transaction.commit().map_err(failed)?;
        Ok(status(ran))
    }

    fn roll_back(&self, transaction: MountedTransaction, signalled: &Signalled, ran: ExitStatus) -> io::Result<u8> {
        let left = names_of(&children());
        transaction.rollback()?;
        if let Some(signal) = signalled.any() {
            say(&format!("received signal {signal}; all changes were rolled back"));
        } else if ran.success() || self.commit_on_failure {
            say(&format!("processes left behind by COMMAND are still running: {left}; all changes were rolled back"));
            return Ok(FAILURE);
        } else {
            say(&format!("COMMAND failed ({ran}); all changes were rolled back"));
        }
        Ok(if ran.success() { FAILURE } else { status(ran) })
    }

    /// Begins a transaction, after the current one has ended.
    fn begin(&self, signalled: &Signalled) -> io::Result<MountedTransaction> {
        let start = Instant::now();
        loop {
            match MountedTransaction::begin(&self.dir, self.timeout) {
                Err(e) if e.kind() == io::ErrorKind::ResourceBusy => {
                    if let Some(signal) = signalled.any() {
                        return Err(io::Error::other(format!("received signal {signal}; no transaction was begun")));
                    }
                    if start.elapsed().as_secs() >= self.timeout {
                        return Err(io::Error::other("another transaction is in progress"));
                    }
                    std::thread::sleep(AGAIN);
                }
                outcome => return outcome,
            }
        }
    }

    /// Waits until no process of COMMAND is left; `false` on a timeout or a signal.
    fn wait_for_the_rest(
        &self,
        begun: Instant,
        signalled: &Signalled,
        transaction: &MountedTransaction,
    ) -> io::Result<bool> {
        loop {
            match wait(WaitOptions::NOHANG) {
                Err(Errno::CHILD) => return Ok(true),
                Err(Errno::INTR) | Ok(Some(_)) => continue,
                Err(e) => return Err(e.into()),
                Ok(None) => {}
            }
            if begun.elapsed().as_secs() >= self.timeout || signalled.any().is_some() {
                return Ok(false);
            }
            if !transaction.is_mounted() {
                // reported by the commit
                return Ok(true);
            }
            std::thread::sleep(AGAIN);
        }
    }
}

/// Waits until a process has ended, and reaps others that this one has adopted.
fn wait_for(command: Pid) -> io::Result<ExitStatus> {
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((process, status))) if process == command => return Ok(ExitStatus::from_raw(status.as_raw())),
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

/// The processes that this one has started or adopted.
fn children() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let of_task = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
    tasks.map(of_task).flat_map(|list| list.split_whitespace().map(str::to_owned).collect::<Vec<_>>()).collect()
}

/// Process ids and names for a message: `17 (sleep), 18 (cat)`.
fn names_of(processes: &[String]) -> String {
    let name = |process: &String| {
        let name = std::fs::read(format!("/proc/{process}/comm")).unwrap_or_default();
        format!("{process} ({})", escape(name.trim_ascii()))
    };
    processes.iter().map(name).collect::<Vec<_>>().join(", ")
}

/// The exit status as a shell returns it.
fn status(ran: ExitStatus) -> u8 {
    let code = ran.code().or_else(|| ran.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(FAILURE)
}
