//! `extant mount`: a volume in the directory tree.
//!
//! In the background it works with two processes. The first starts the program again with the same command line, and an
//! environment variable that says so; that one opens the volume, mounts it, says "ready" through a pipe and serves. The
//! first ends with success on that word, and with the second's exit status where it ends before: it has said why. No
//! process forks after it has threads or an open device.

use crate::failure::{Failure, Result, say, with_place, without_errno};
use crate::fill::heard;
use crate::source::{Opened, Source};
use crate::watchdog;
use check::render::escape;
use clap::Args;
use fuse::{MountOptions, Session, Transport};
use rustix::stdio::{dup2_stderr, dup2_stdout};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal, Write};
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
/// mount(8): the mount failed.
const MOUNT_FAILED: u8 = 32;

#[derive(Debug, Args)]
#[command(
    about = "Mount a volume through FUSE",
    after_help = "Examples:
  extant mount volume.img ./mnt
  extant mount -o ro,allow_other /dev/sdb1 /mnt
  extant mount -o consistency=dirty-bit,commit=30 old-ext2.img ./mnt
  extant mount -o remount,ro /dev/sdb1 /mnt
  extant mount -f -o ro,norecovery damaged.img ./mnt

It returns when the volume can be used, and a process in the background serves it until `extant \
    umount DIR`, umount(8), fusermount3 -u or SIGTERM. Damaged files are errors for those who read \
    them; each is told of once, in the system's log (with -f: on standard error). A volume that cannot \
    be written (marked as having errors, write-protected, with features that only can be read) is \
    mounted read-only with the reason; with -o rw it is not mounted (mount(8) always says rw, so that \
    means nothing from there). Options that the volume cannot honour, as consistency=journal where it \
    has no journal, are errors. A volume that is mounted for writing already, by whatever way (a loop \
    device, a partition, another name), is not mounted at all.

No privilege is needed. Users other than root get nosuid and nodev; root gets what mount(8) gives: \
    devices and set-user-id programs work unless nosuid and nodev are given.

What is on the device when a call returns:
  fsync        the file (and with a journal all that was done to names before)
  sync, umount everything, where root mounted it (the list of mounts says fuseblk): a loop device is
               laid over the volume for that, and where none can be had it is not mounted (in a
               container without loop devices: mounted, with a warning). Where another user mounted
               it, or with nofuseblk, the kernel does not pass sync(2) on, and umount(8) does not
               wait: all is on the device when `extant umount` or `extant mount -o remount,ro`
               returns, or after SIGTERM when the process has ended, and otherwise after the seconds
               of `commit`

By mount(8) and /etc/fstab: link the program as /sbin/mount.extant, and the type is extant; as \
    /sbin/mount.fuse.extant, and it is also fuse.extant, which `mount -o remount` asks for where the \
    list of mounts says so. What root mounts in this way is for all users (allow_other), other than by \
    `extant mount`. UUID= and LABEL= work for ext2, ext3 and ext4 volumes on block devices, and for \
    Extant's own with the rule for udev that comes with the program (contrib). `umount -a` knows the \
    types as fuseblk.extant and fuse.extant.

Options for -o, in lists as mount(8) takes them:
  ro, rw        read-only, or not at all unless it can be written
  consistency=none|dirty-bit|linked|journal|snapshot
                how the volume stays sound through a crash: not; by a mark that asks for a check; by
                a list of what is being written, from which a mount repairs (ext2 made with `mkfs -t
                ext2 -E linked`); by its journal (the default where it has one, else dirty-bit); on
                a native volume, by whole generations (the default there; the only other is none)
  data=ordered|writeback|journal|cow
                with a journal: file content before the metadata that leads to it (the default), in
                any order, through the journal; on a native volume ordered, or cow: content is never
                overwritten in its place, so a crash leaves that of the newest whole generation
  sync, dirsync all that is changed, or changes of names alone, are on the device before the call
                returns; slow
  errors=continue|remount-ro
                when damage is met, the volume is marked as needing a check, and with remount-ro
                nothing is written to it any more; without it, what `tune2fs -e` says: remount-ro
                (and panic) as here, else damage is an error for its file alone
  commit=N      changes reach the device after N seconds at the latest (5)
  placement=hint
                new metadata goes to the front of each group, so that a check has to go to fewer
                places; the format stays as it is
  noatime, relatime or atime, strictatime
                whether reading is recorded in files: no (the default), if the record is older than
                the last change or a day, always; what one opening reads twice is recorded once
  remount       with ro, rw, nodev, nosuid, noexec, nosymfollow or their opposites: change these of
                a mounted volume, and nothing else
  nodev, nosuid, noexec, nosymfollow
                ignore device nodes, set-user-id bits, programs (they cannot be run), symbolic links
  allow_other   all users may use it, as far as modes and access control lists let them (for users
                other than root, /etc/fuse.conf must say user_allow_other); noallow_other: only who
                mounts it
  allow_root    root may use it too, if another user mounts it
  default_permissions
                the kernel checks permissions even where only root can use the volume
  writeback_cache
                the kernel keeps what is written until the last close, fsync, sync or unmount: quick
                for many small writes to open files; a full volume, or a file that may not be
                written, is then told of by close and fsync, not by write; du shows an empty file as
                one block
  nofuseblk     without a loop device, and without what it is for (see sync above)
  auto_unmount  unmounted by fusermount3 even if the serving process is killed (for users other than
                root, only with allow_other or allow_root)
  transport=best|device
                requests come through io_uring where the kernel has it and it is switched on (`echo
                Y > /sys/module/fuse/parameters/enable_uring`), or through /dev/fuse; `extant info
                --fuse DIR` shows which
  norecovery, noload
                with ro: show what is on the device, without what the journal holds
  snapshot=NAME a native volume as that snapshot has it, read-only (the snapshots of a mounted
                volume are also in its folder .extant/snapshots, which is not listed); a comma in
                NAME is written \\,
  snapdir=owner|all
                who may look into the folder .extant: whoever mounted the volume, and root (the
                default), or all users. Files in a snapshot have the modes that they had when it was
                made: one that was made private since is still readable there for whoever could read
                it then
  sb=N          with ro: use the copy of the superblock at N, in units of 1024 bytes (as ext4
                counts)
  fsname=NAME   what the list of mounts shows as the source, instead of DEVICE

The options of mount(8) and ext4(5) are accepted where they change nothing or are done anyway \
    (defaults, nofail, _netdev, x-*, user_xattr, acl, barrier, delalloc, nodiscard, lazytime, stripe=, \
    and others), and refused with the reason where they ask for what is not done (discard, usrquota, \
    nodelalloc, ...).

Memory: caches and what waits to be written take less than half of what the machine has, or of the \
    memory limit of the process's control group, which should allow 64 MiB at least. When there is \
    none left, the kernel may kill the process that serves: all users lose the volume, and what was \
    not synced is lost. Where that matters, set OOMScoreAdjust=-900 in the systemd unit that mounts \
    with -f, or as root:
  choom -n -900 -p $(getfattr --only-values -n extant.daemon DIR)

Exit status: 0 mounted (with -f: and unmounted again), 1 not mounted, 2 wrong usage. With -f also \
    1 if something that was written did not reach the device. Called by mount(8), 32 if it is not \
    mounted."
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

    /// Behave as mount(8) expects of its helpers
    #[arg(long, hide = true)]
    as_mount: bool,
}

/// For administrators, at a terminal.
const TRANSPORT_IS_OFF: &str = "requests take the slower way, /dev/fuse: FUSE over io_uring is switched off in the kernel; for mounts \
    from now on `echo Y > /sys/module/fuse/parameters/enable_uring` switches it on, and a line `options fuse enable_uring=1` in \
    /etc/modprobe.d/fuse.conf after each start";

/// So long a volume that is not mounted may still be in use: umount(8) returns a moment before the process that served it
/// has ended, and of a mount that does not hear of sync(2) before everything is on the device.
const LETTING_GO: Duration = Duration::from_secs(10);

impl Mount {
    pub(crate) fn run(&self) -> Result<u8> {
        let lists = self.lists();
        let parse = if self.as_mount { MountOptions::parse_of_mount } else { MountOptions::parse };
        let mut options = parse(&lists).map_err(|e| match sentence(&e) {
            Failure::Message(sentence) => Failure::Usage(with_its_name(&sentence, &lists)),
            failure => failure,
        })?;
        if options.remount {
            fuse::remount(&self.dir, &self.options, self.as_mount).map_err(|e| sentence(&e))?;
            return Ok(0);
        }
        let behind = std::env::var_os(BEHIND).is_some();
        if !behind {
            close_inherited();
            if !self.foreground {
                return start_behind();
            }
        }
        let place = fuse::mount_point(&self.dir).map_err(|e| sentence(&e))?;
        if blockdev::mounted(&self.source.device).is_some_and(|mounted| mounted.at.as_deref() == Some(&*place)) {
            // also one that is read there, and could be read twice
            return Err(Failure::on(&self.source.device, format!("it is mounted on {} already", place.display())));
        }
        let (opened, reason) = self.open(&mut options)?;
        options.mount.source.get_or_insert_with(|| self.source_name());
        options.mount.device = std::fs::canonicalize(&self.source.device).ok();
        options.mount.watchdog = watchdog::line();
        // before the mount: from then on a signal must not leave it behind
        let signals = Signals::new(heard([SIGHUP]).chain([SIGINT, SIGTERM]))?;
        let tell = move |problem: &str| if behind { log(problem) } else { say(problem) };
        let volume = std::sync::Arc::clone(&opened.volume);
        let session = options.fit(&volume).and_then(|()| fuse::mount(volume, &self.dir, &options, tell));
        if session.is_err() && !options.mount.read_only {
            opened.unmount()?;
        }
        let session = session.map_err(|e| sentence(&e))?;
        if let Some(why) = reason {
            say(&format!("{why}; it is mounted read-only"));
        }
        if let Some(warning) = session.warning() {
            say(warning);
        }
        let asked_for = options.mount.transport == Transport::Best;
        if asked_for && rustix::process::geteuid().is_root() && io::stderr().is_terminal() && fuse::io_uring_is_off() {
            say(TRANSPORT_IS_OFF);
        }
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

    /// The option lists. What root mounts by mount(8) is for all users, as any file system is, unless it is said.
    fn lists(&self) -> Vec<&str> {
        let for_all = (self.as_mount && rustix::process::geteuid().is_root()).then_some("allow_other");
        for_all.into_iter().chain(self.options.iter().map(String::as_str)).collect()
    }

    /// The exit status where it is not mounted.
    pub(crate) fn failure(&self) -> u8 {
        if self.as_mount { MOUNT_FAILED } else { 1 }
    }

    /// The exit status where the options mean nothing.
    pub(crate) fn usage(&self) -> u8 {
        if self.as_mount { MOUNT_FAILED } else { 2 }
    }

    /// Opens the volume as the options say; for reading only, with the reason, where it cannot be written and need not be.
    fn open(&self, options: &mut MountOptions) -> Result<(Opened, Option<String>)> {
        let open = |options: &MountOptions, patience| {
            let access = blockdev::OpenOptions {
                write: !options.mount.read_only,
                exclusive: true,
                patience,
                ..blockdev::OpenOptions::default()
            };
            self.source.open_any(&options.volume_options(), access)
        };
        let mounted = blockdev::mounted(&self.source.device);
        let patience = if mounted.is_some() { Duration::ZERO } else { LETTING_GO };
        let why = match (open(options, patience), mounted) {
            (Ok(opened), _) => return Ok((opened, None)),
            (Err(Failure::Message(why)), _) if !options.mount.read_only && !options.insist => why,
            (Err(failure), Some(_)) => return Err(with_place(&self.source.device, failure)),
            (Err(failure), None) => return Err(failure),
        };
        options.mount.read_only = true;
        match open(options, Duration::ZERO) {
            Ok(opened) => Ok((opened, Some(why))),
            Err(_) => Err(Failure::Message(why)),
        }
    }

    /// What the list of mounts names as the source: the device's path, where it has one.
    fn source_name(&self) -> String {
        let path = std::fs::canonicalize(&self.source.device);
        path.map_or_else(|_| self.source.device.to_string(), |path| path.to_string_lossy().into_owned())
    }
}

fn sentence(e: &fuse::Error) -> Failure {
    Failure::Message(without_errno(&escape(e.to_string().as_bytes())))
}

/// A sentence about options, with that name of one with two names that the user wrote.
fn with_its_name(sentence: &str, lists: &[&str]) -> String {
    let written = |name: &str| lists.iter().any(|list| list.split(',').any(|option| option == name));
    if written("noload") && !written("norecovery") {
        sentence.replace("`norecovery`", "`noload`")
    } else {
        sentence.to_owned()
    }
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

/// Lets go of what whoever started this process had open, beside the standard streams: the process that serves would have it
/// open for as long as the volume is mounted, and a pipeline would wait for its end, or a lock never be free.
fn close_inherited() {
    let names = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten().map(|entry| entry.file_name());
    let numbers: Vec<i32> = names.filter_map(|name| name.to_str()?.parse().ok()).filter(|number| *number > 2).collect();
    for number in numbers {
        // the list's own descriptor is among them, and closed by now; nothing of ours is open yet
        let _ = nix::unistd::close(number);
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

/// Unmounts on the first signal. Where files are open, that returns when the kernel has written back what it had of them;
/// they lose the volume a moment later, when all of it is on the device. A signal that comes meanwhile asks for what is being
/// done, and has it tried again where it fails.
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
