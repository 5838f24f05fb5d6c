//! `extant mount`: a volume in the directory tree.
//!
//! In the background it works with two processes. The first starts the program again with the same command line, and an
//! environment variable that says so; that one opens the volume, mounts it, says "ready" through a pipe and serves. The
//! first ends with success on that word, and with the second's exit status where it ends before: it has said why. No
//! process forks after it has threads or an open device.

use crate::failure::{Failure, Result, say, without_errno};
use crate::source::Source;
use check::render::escape;
use clap::Args;
use fuse::{MountOptions, Session};
use rustix::stdio::{dup2_stderr, dup2_stdout};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Set for the process that serves behind another.
const BEHIND: &str = "EXTANT_SERVE_BEHIND";
/// What that one writes to standard output when programs can use the volume.
const READY: &str = "ready\n";
/// How long files that are still open may stay so after a signal to end.
const GRACE: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
#[command(
    about = "Mount a volume through FUSE, read-only",
    after_help = "Examples:
  extant mount -o ro volume.img ./mnt
  extant mount -o ro,allow_other /dev/sdb1 /mnt
  extant mount -f -o ro,norecovery damaged.img ./mnt

It returns when the volume can be used, and a process in the background serves it until
`extant umount DIR`, umount(8), fusermount3 -u or SIGTERM. Damaged files are errors for those who read
them; each is told of once, in the system's log (with -f: on standard error).

No privilege is needed. Users other than root get nosuid and nodev; root gets what mount(8) gives:
devices and set-user-id programs work unless nosuid and nodev are given.

Options for -o, in lists as mount(8) takes them:
  ro            read-only; required, since this version does not write
  nodev, nosuid, noexec
                device nodes, set-user-id bits, programs mean nothing
  allow_other   all users may use it, as far as modes and access control lists let them
                (for users other than root, /etc/fuse.conf must say user_allow_other)
  allow_root    root may use it too, if another user mounts it
  auto_unmount  unmounted by fusermount3 even if the serving process is killed
                (for users other than root, only with allow_other or allow_root)
  norecovery, noload
                show what is on the device, without what the journal holds
  sb=N          use the copy of the superblock at N, in units of 1024 bytes (as ext4 counts)
  fsname=NAME   what the list of mounts shows as the source, instead of DEVICE

Exit status: 0 mounted (with -f: and unmounted again), 1 not mounted, 2 wrong usage."
)]
pub(crate) struct Mount {
    #[command(flatten)]
    source: Source,

    /// Folder to mount it on
    #[arg(value_name = "DIR")]
    dir: PathBuf,

    /// Mount options, separated by commas
    #[arg(short = 'o', long = "options", value_name = "OPTIONS")]
    options: Vec<String>,

    /// Stay in the foreground
    #[arg(short, long)]
    foreground: bool,
}

impl Mount {
    pub(crate) fn run(&self) -> Result<u8> {
        let mut options = MountOptions::parse(&self.options).map_err(|e| sentence(&e))?;
        let behind = std::env::var_os(BEHIND).is_some();
        if !self.foreground && !behind {
            return start_behind();
        }
        let lock = blockdev::OpenOptions { exclusive: true, ..blockdev::OpenOptions::default() };
        let opened = self.source.open_any(&options.volume_options(), lock)?;
        options.source.get_or_insert_with(|| self.source_name());
        // before the mount: from then on a signal must not leave it behind
        let signals = Signals::new([SIGHUP, SIGINT, SIGTERM])?;
        let tell = move |problem: &str| if behind { log(problem) } else { say(problem) };
        let volume = std::sync::Arc::clone(&opened.volume);
        let session = fuse::mount(volume, &self.dir, &options, tell).map_err(|e| sentence(&e))?;
        end_on(signals, &session, tell);
        if behind {
            detach()?;
        }
        session.run().map_err(|e| sentence(&e))?;
        Ok(0)
    }

    /// What the list of mounts names as the source: the device's path, where it has one.
    fn source_name(&self) -> String {
        let path = std::fs::canonicalize(&self.source.device);
        path.map_or_else(|_| self.source.device.clone(), |path| path.to_string_lossy().into_owned())
    }
}

fn sentence(e: &fuse::Error) -> Failure {
    Failure::Message(without_errno(&escape(e.to_string().as_bytes())))
}

/// Starts the process that serves, and ends when that is ready.
fn start_behind() -> Result<u8> {
    let cannot = |e: io::Error| Failure::Message(format!("cannot start the process that serves: {e}"));
    let mut line = std::env::args_os();
    // by its path, so that lists of processes name it; that path may have gone
    let program = std::env::current_exe().ok().filter(|path| path.exists());
    let mut command = Command::new(program.unwrap_or_else(|| PathBuf::from("/proc/self/exe")));
    if let Some(name) = line.next() {
        command.arg0(name);
    }
    let mut child =
        command.args(line).env(BEHIND, "1").stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(cannot)?;
    let mut said = String::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout).read_line(&mut said).map_err(cannot)?;
    }
    if said == READY {
        return Ok(0);
    }
    match child.wait().map_err(cannot)?.code() {
        // it has said why
        Some(code) => Ok(u8::try_from(code).unwrap_or(1).max(1)),
        None => Err(Failure::Message("the process that serves was killed before it was ready".to_owned())),
    }
}

/// Leaves the terminal and the working folder, tells whoever waits that the volume can be used, and closes the way to
/// them.
fn detach() -> io::Result<()> {
    rustix::process::setsid()?;
    std::env::set_current_dir("/")?;
    let mut stdout = io::stdout().lock();
    stdout.write_all(READY.as_bytes())?;
    stdout.flush()?;
    let nowhere = File::options().read(true).write(true).open("/dev/null")?;
    dup2_stdout(&nowhere)?;
    dup2_stderr(&nowhere)?;
    Ok(())
}

/// Unmounts on the first signal. Files that are open then lose the volume a moment later.
fn end_on(mut signals: Signals, session: &Session, tell: impl Fn(&str) + Send + 'static) {
    let unmounter = session.unmounter();
    std::thread::spawn(move || {
        for _ in signals.forever() {
            match unmounter.unmount() {
                Ok(()) => {
                    std::thread::sleep(GRACE);
                    std::process::exit(0);
                }
                Err(e) => tell(&e.to_string()),
            }
        }
    });
}

/// Writes a line to the system's log, as a warning of a daemon. A system without a log does not hear of it.
fn log(problem: &str) {
    let line = format!("<28>extant[{}]: {problem}", std::process::id());
    let _ = UnixDatagram::unbound().and_then(|socket| socket.send_to(line.as_bytes(), "/dev/log"));
}
