//! `extant mount`: a volume in the directory tree.
//!
//! In the background it works with two processes. The first starts the program again with the same command line, and an
//! environment variable that says so; that one opens the volume, mounts it, says "ready" through a pipe and serves. The
//! first ends with success on that word, and with the second's exit status where it ends before: it has said why. No
//! process forks after it has threads or an open device.

use crate::failure::{Failure, Result, say, without_errno};
use crate::source::{Opened, Source};
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
    about = "Mount a volume through FUSE",
    after_help = "Examples:
  extant mount volume.img ./mnt
  extant mount -o ro,allow_other /dev/sdb1 /mnt
  extant mount -o consistency=dirty-bit,commit=30 old-ext2.img ./mnt
  extant mount -o remount,ro /dev/sdb1 /mnt
  extant mount -f -o ro,norecovery damaged.img ./mnt

It returns when the volume can be used, and a process in the background serves it until
`extant umount DIR`, umount(8), fusermount3 -u or SIGTERM. Damaged files are errors for those who read
them; each is told of once, in the system's log (with -f: on standard error). A volume that cannot be
written (marked as having errors, write-protected, with features that only can be read) is mounted
read-only with the reason; with -o rw it is not mounted.

No privilege is needed. Users other than root get nosuid and nodev; root gets what mount(8) gives:
devices and set-user-id programs work unless nosuid and nodev are given.

What is on the device when a call returns:
  fsync        the file (and with a journal all that was done to names before)
  sync, umount everything, where root mounted it (the list of mounts says fuseblk). Where another user
               did, the kernel does not tell of sync(2), and umount(8) does not wait: all is on the
               device when `extant umount` returns, or after SIGTERM when the process has ended, and
               otherwise after the seconds of `commit`

Options for -o, in lists as mount(8) takes them:
  ro, rw        read-only, or not at all unless it can be written
  consistency=none|dirty-bit|journal
                how the volume stays sound through a crash: not; by a mark that asks for a check; by
                its journal (the default where it has one, else dirty-bit)
  data=ordered|writeback|journal|cow
                with a journal: file content before the metadata that leads to it (the default),
                in any order, through the journal; on a native volume, cow: content is never
                overwritten in its place, so a crash leaves that of the newest whole generation
  commit=N      changes reach the device after N seconds at the latest (5)
  placement=hint
                new metadata goes to the front of each group, so that a check has to go to fewer places;
                the format stays as it is
  noatime, relatime, strictatime
                whether reading is recorded in files: no (the default), if the record is older than
                the last change or a day, always; the last two have each opening of a file asked for,
                and what one opening reads twice is recorded once
  remount       with ro, rw, nodev, nosuid, noexec: change a mounted volume
  nodev, nosuid, noexec
                device nodes, set-user-id bits, programs mean nothing
  allow_other   all users may use it, as far as modes and access control lists let them
                (for users other than root, /etc/fuse.conf must say user_allow_other)
  allow_root    root may use it too, if another user mounts it
  default_permissions
                the kernel checks permissions even where only root can use the volume
  writeback_cache
                the kernel keeps what is written until the last close, fsync, sync or unmount: quick for
                many small writes to open files; a full volume, or a file that may not be written, is
                then told of by close and fsync, not by write
  auto_unmount  unmounted by fusermount3 even if the serving process is killed
                (for users other than root, only with allow_other or allow_root)
  transport=best|device
                requests come through io_uring where the kernel has it, or through /dev/fuse
  norecovery, noload
                with ro: show what is on the device, without what the journal holds
  snapshot=NAME a native volume as that snapshot has it, read-only (the snapshots of a mounted volume are
                also in its folder .extant/snapshots, which is not listed)
  sb=N          with ro: use the copy of the superblock at N, in units of 1024 bytes (as ext4 counts)
  fsname=NAME   what the list of mounts shows as the source, instead of DEVICE

Exit status: 0 mounted (with -f: and unmounted again), 1 not mounted, 2 wrong usage. With -f also 1 if
something that was written did not reach the device."
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

/// So long the volume may still be in use when it is mounted: umount(8) returns when everything is on the device, a
/// moment before the process that served it has ended.
const LETTING_GO: Duration = Duration::from_secs(2);

impl Mount {
    pub(crate) fn run(&self) -> Result<u8> {
        let mut options = MountOptions::parse(&self.options).map_err(|e| sentence(&e))?;
        if options.remount {
            fuse::remount(&self.dir, &options).map_err(|e| sentence(&e))?;
            return Ok(0);
        }
        let behind = std::env::var_os(BEHIND).is_some();
        if !self.foreground && !behind {
            return start_behind();
        }
        let opened = self.open(&mut options)?;
        options.source.get_or_insert_with(|| self.source_name());
        options.device = std::fs::canonicalize(&self.source.device).ok();
        // before the mount: from then on a signal must not leave it behind
        let signals = Signals::new([SIGHUP, SIGINT, SIGTERM])?;
        let tell = move |problem: &str| if behind { log(problem) } else { say(problem) };
        let volume = std::sync::Arc::clone(&opened.volume);
        let session = fuse::mount(volume, &self.dir, &options, tell).map_err(|e| sentence(&e));
        if session.is_err() && !options.read_only {
            opened.unmount()?;
        }
        let session = session?;
        end_on(signals, &session, tell);
        if behind {
            detach()?;
        }
        session.run().map_err(|e| {
            // nobody reads the standard error of a process in the background any more
            tell(&e.to_string());
            sentence(&e)
        })?;
        Ok(0)
    }

    /// Opens the volume as the options say; for reading only where it cannot be written and need not be.
    fn open(&self, options: &mut MountOptions) -> Result<Opened> {
        let open = |options: &MountOptions, patience| {
            let access = blockdev::OpenOptions {
                write: !options.read_only,
                exclusive: true,
                patience,
                ..blockdev::OpenOptions::default()
            };
            self.source.open_any(&options.volume_options(), access)
        };
        let first = open(options, LETTING_GO);
        if options.read_only || options.insist || first.is_ok() {
            return first;
        }
        options.read_only = true;
        let Ok(opened) = open(options, Duration::ZERO) else { return first };
        if let Err(Failure::Message(why)) = first {
            say(&format!("{why}; it is mounted read-only"));
        }
        Ok(opened)
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

/// Unmounts on the first signal. Files that are open then lose the volume a moment later, when all that was written to
/// it is on the device.
fn end_on(mut signals: Signals, session: &Session, tell: impl Fn(&str) + Send + 'static) {
    let unmounter = session.unmounter();
    std::thread::spawn(move || {
        for _ in signals.forever() {
            match unmounter.unmount() {
                Ok(()) => {
                    std::thread::sleep(GRACE);
                    let finished = unmounter.finish();
                    if let Err(e) = &finished {
                        tell(&e.to_string());
                    }
                    std::process::exit(i32::from(finished.is_err()));
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
