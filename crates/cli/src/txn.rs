//! `extant txn`: a command whose changes to a mounted volume happen whole or not at all.

use crate::failure::{Failure, Result, say, without_errno};
use check::render::escape;
use clap::Args;
use fuse::MountedTransaction;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

/// What `extant txn` itself fails with, as env(1) and timeout(1) do.
pub(crate) const FAILURE: u8 = 125;
/// How long another transaction is waited for before it is asked again.
const AGAIN: Duration = Duration::from_millis(50);

#[derive(Debug, Args)]
#[command(
    about = "Run a command whose changes happen whole or not at all",
    after_help = "Examples:
  extant txn /mnt -- tar -xf new-release.tar -C /mnt/app
  extant txn --rollback-on-failure /mnt -- sh -c 'cd /mnt/app && ./upgrade'

What COMMAND and the processes below it change on the volume is one generation: after a crash all of it is
there, or nothing. It is durable when this command returns. The volume must be of Extant's own format (mkfs -t
extant); one transaction runs at a time, and begins when the one before has ended.

Meanwhile others see the changes, and wait before they change anything. fsync by a member returns at once.
Space that is freed can be used afterwards. A transaction can change as much metadata as a generation can hold:
64 MiB, less on volumes below 4 GiB or nearly full; then, and when the time is over, calls of COMMAND fail
(file too large; operation canceled), and all is rolled back. So it is when this process is killed.
A mapped page that is written back meanwhile (mmap) is part of the transaction, whoever wrote it.

Exit status: that of COMMAND; 128 and the number of the signal that ended it; 125 where the transaction failed, 126
where COMMAND cannot be run, 127 where it is not found."
)]
pub(crate) struct Txn {
    /// Roll back where COMMAND fails
    #[arg(long)]
    rollback_on_failure: bool,
    /// Most seconds that it may take, at most a day
    #[arg(long, value_name = "S", default_value_t = 60)]
    timeout: u64,
    /// Folder or file in the mounted volume
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Command to run, with its arguments
    #[arg(value_name = "COMMAND", required = true, last = true)]
    command: Vec<OsString>,
}

impl Txn {
    pub(crate) fn run(&self) -> Result<u8> {
        let failed =
            |e: io::Error| Failure::on(&self.dir.to_string_lossy(), escape(without_errno(&e.to_string()).as_bytes()));
        let transaction = self.begin().map_err(failed)?;
        let Some((program, arguments)) = self.command.split_first() else { return Ok(FAILURE) };
        let ran = match Command::new(program).args(arguments).status() {
            Ok(ran) => ran,
            Err(e) => {
                // its error would say less than this one
                let _ = transaction.rollback();
                let program = program.to_string_lossy();
                say(&format!("{}: {}", escape(program.as_bytes()), without_errno(&e.to_string())));
                return Ok(if e.kind() == io::ErrorKind::NotFound { 127 } else { 126 });
            }
        };
        if self.rollback_on_failure && !ran.success() {
            transaction.rollback().map_err(failed)?;
        } else {
            transaction.commit().map_err(failed)?;
        }
        Ok(status(ran))
    }

    /// Begins, when whatever transaction there is has ended.
    fn begin(&self) -> io::Result<MountedTransaction> {
        let start = Instant::now();
        loop {
            match MountedTransaction::begin(&self.dir, self.timeout) {
                Err(e) if e.kind() == io::ErrorKind::ResourceBusy && start.elapsed().as_secs() < self.timeout => {
                    std::thread::sleep(AGAIN);
                }
                Err(e) if e.kind() == io::ErrorKind::ResourceBusy => {
                    return Err(io::Error::other("another transaction is under way"));
                }
                outcome => return outcome,
            }
        }
    }
}

/// As a shell has it.
fn status(ran: ExitStatus) -> u8 {
    let code = ran.code().or_else(|| ran.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(FAILURE)
}
