//! `extant mount`: mounts a volume in the directory tree.
//!
//! A background mount uses two processes. The first starts the program again with the same command line and an
//! environment variable that marks it; the second opens the volume, mounts it, writes "ready" to a pipe and serves. The
//! first exits with success when it reads that word, or with the second's exit status if that exits earlier: the second
//! has reported the reason. No process forks while it has threads or an open device.

use crate::copy_in::not_ignored;
use crate::device::Device;
use crate::error_report::{Failure, Result, say, with_place, without_errno};
use crate::source::{Opened, Source};
use crate::watchdog;
use check::render::escape;
use clap::Args;
use fuse::{MountOptions, Session, Transport};
use rustix::stdio::{dup2_stderr, dup2_stdout};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Environment variable of the serving process in the background.
const BEHIND: &str = "EXTANT_SERVE_BEHIND";
/// Written to standard output by that process when the volume can be used.
const READY: &str = "ready\n";
/// Time for which open files delay the end after a termination signal.
const GRACE: Duration = Duration::from_secs(1);
/// mount(8)'s exit status for a failed mount.
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

The command returns when the volume can be used, and a background process serves it until `extant \
    umount DIR`, umount(8), fusermount3 -u or SIGTERM. Damaged files cause errors for programs that read \
    them; each is logged once, to syslog (with -f: on standard error). A volume that cannot \
    be written (marked as having errors, write-protected, with features that are only supported for reading) is \
    mounted read-only with the reason; with -o rw it is not mounted (mount(8) always passes rw, so that \
    has no effect from there). Options that the volume cannot honour, such as consistency=journal where it \
    has no journal, are errors. A volume that is mounted for writing already, under whatever name (a loop \
    device, a partition, another name), is not mounted at all.

No privilege is needed. Users other than root get nosuid and nodev; root gets the defaults of mount(8): \
    devices and set-user-id programs work unless nosuid and nodev are specified.

On the device when a call returns:
  fsync        the file; with consistency=linked, journal and snapshot also its names, and all that
               was done to names, attributes and sizes before its last change (but not to the size
               of another file by writing to it: that is durable with its data); an overwrite within
               4 ms of the last change (a second in inodes of 128 bytes) is no change of this kind
  sync, umount everything, where root mounted it (the mount table says fuseblk): a loop device is
               attached to the volume for that; if none is available the mount fails (in a
               container without loop devices: mounted, with a warning). For mounts by other users,
               and with nofuseblk, the kernel does not pass on sync(2), and umount(8) does not
               wait: all is on the device when `extant umount` or `extant mount -o remount,ro`
               returns, or after SIGTERM when the process has ended, and otherwise after the seconds
               of `commit`

For mount(8) and /etc/fstab, link the program as /sbin/mount.extant: the type is then extant. With a \
    second link, /sbin/mount.fuse.extant, the type fuse.extant works as well, which `mount -o remount` \
    uses where the mount table shows it. All users may access what root mounts in this way \
    (allow_other), unlike with `extant mount`. UUID= and LABEL= work for ext2, ext3 and ext4 volumes on block devices, and for \
    Extant's own with the rule for udev that comes with the program (contrib). `umount -a` knows the \
    types as fuseblk.extant and fuse.extant.

Options for -o, in lists as mount(8) takes them:
  ro, rw        read-only; read-write, and fail where that is not possible
  consistency=none|dirty-bit|linked|journal|snapshot
                how the volume stays consistent after a crash: not; by a flag that requests a check;
                by a list of unfinished writes, from which a mount repairs (ext2 made with `mkfs -t
                ext2 -E linked`); by its journal (the default where it has one, else dirty-bit); on
                a native volume, by atomic generations (the default there; the only other is none)
  data=ordered|writeback|journal|cow
                with a journal: file content before the metadata that refers to it (the default), in
                any order, through the journal; on a native volume ordered, or cow: content is never
                overwritten in place, so a crash leaves that of the newest complete generation
  sync, dirsync all changes, or changes of names alone, are on the device before a call
                returns; slow
  errors=continue|remount-ro
                on damage the volume is marked as needing a check, and with remount-ro nothing is
                written to it any more; without it, the setting of `tune2fs -e`: remount-ro
                (and panic) as here, else damage is an error of its file alone
  commit=N      changes reach the device after N seconds at the latest (5)
  placement=hint
                new metadata goes to the front of each group, to make later checks faster; the
                format is unchanged
  noatime, relatime or atime, strictatime
                access times: never updated (the default), as relatime in mount(8), always;
                several reads of one open file update it once
  remount       with ro, rw, nodev, nosuid, noexec, nosymfollow or their opposites: change these of
                a mounted volume, and nothing else
  nodev, nosuid, noexec, nosymfollow
                ignore device nodes / ignore set-user-id bits / forbid execution / do not follow
                symbolic links
  allow_other   all users may use it, as far as modes and access control lists allow (for users
                other than root, /etc/fuse.conf must set user_allow_other); noallow_other: only the
                user who mounts it
  allow_root    root may use it too, if another user mounts it
  default_permissions
                the kernel checks permissions even where only root can use the volume
  writeback_cache
                the kernel buffers writes until the last close, fsync, sync or unmount: fast for
                many small writes to open files; on a full volume, or a file that may not be
                written, errors are then reported by close and fsync instead of write; writes that
                find the volume full may be accepted and lost, while the file's size grows, which
                fsync and `extant umount` report; du shows an empty file as one block
  nofuseblk     without a loop device, and without its advantages (see sync above)
  auto_unmount  unmounted by fusermount3 even if the serving process is killed (for users other than
                root, only with allow_other or allow_root)
  transport=best|device
                requests use io_uring where the kernel supports it and it is enabled (`echo
                Y > /sys/module/fuse/parameters/enable_uring`), else /dev/fuse; `extant info
                --fuse DIR` shows which
  norecovery, noload
                with ro: do not replay the journal, even in memory
  snapshot=NAME the version of a native volume in that snapshot, read-only (the snapshots of a
                mounted volume are also in its directory .extant/snapshots, not listed); a comma in
                NAME is written \\,
  snapdir=owner|all
                users who may access .extant, which only native volumes have: the user who mounted
                the volume, and root (the default), or all. Files in a snapshot have the modes of
                the time when it was taken: one that was made private since is still readable there
                for users who could read it then
  sb=N          with ro: use the backup superblock at N, in units of 1024 bytes (as ext4
                counts)
  fsname=NAME   the source shown in the list of mounts, instead of the path of DEVICE: other
                commands then find the volume locked, but not where it is mounted, and check
                --online refuses it; no effect where root mounts it for writing without nofuseblk:
                there the kernel shows the loop device

The options of mount(8) and ext4(5) are accepted where they have no effect or their effect is the default \
    (defaults, nofail, _netdev, x-*, user_xattr, acl, barrier, delalloc, nodiscard, lazytime, stripe=, \
    and others), and refused with the reason where they request something unsupported (discard, usrquota, \
    nodelalloc, ...).

Memory: caches and unwritten data take less than half of the machine's memory, or of the \
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

    /// Directory to mount it on
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
const TRANSPORT_IS_OFF: &str = "requests use the slower transport, /dev/fuse: FUSE over io_uring is disabled in the kernel; for mounts \
    from now on `echo Y > /sys/module/fuse/parameters/enable_uring` enables it, and a line `options fuse enable_uring=1` in \
    /etc/modprobe.d/fuse.conf after each boot";

/// Time for which a volume that is not mounted may still be in use: umount(8) returns shortly before the process that
/// served it exits, and for a mount without sync(2) before all data is on the device.
const UNMOUNT_PATIENCE: Duration = Duration::from_secs(10);

impl Mount {
    pub(crate) fn run(&self) -> Result<u8> {
        let lists = self.lists();
        let parse = if self.as_mount { MountOptions::parse_of_mount } else { MountOptions::parse };
        let mut options = parse(&lists).map_err(|e| match sentence(&e) {
            Failure::Message(sentence) => Failure::Usage(with_its_name(&sentence, &lists)),
            failure => failure,
        })?;
        if options.remount {
            self.check_remounted()?;
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
            // also a volume that is mounted read-only, and could be mounted twice
            return Err(Failure::on(&self.source.device, format!("it is mounted on {} already", place.display())));
        }
        let (opened, reason) = self.open(&mut options)?;
        options.mount.source.get_or_insert_with(|| self.source_name());
        // also beneath a layer: without it sync(2) would not reach the mount
        let path = self.source.device.path().map(std::fs::canonicalize).transpose();
        options.mount.device = path.map_err(|e| Failure::on(&self.source.device, e))?;
        options.mount.watchdog = watchdog::line();
        // before the mount: afterwards a signal must not leave the mount behind
        let signals = Signals::new(not_ignored([SIGHUP]).chain([SIGINT, SIGTERM]))?;
        let report = move |problem: &str| if behind { log(problem) } else { say(problem) };
        let volume = std::sync::Arc::clone(&opened.volume);
        let session = options.fit(&volume).and_then(|()| fuse::mount(volume, &self.dir, &options, report));
        if session.is_err() && !options.mount.read_only {
            opened.unmount()?;
        }
        let session = session.map_err(|e| sentence(&e))?;
        if let Some(why) = reason {
            say(&format!("{why}; mounted read-only"));
        }
        if let Some(warning) = session.warning() {
            say(warning);
        }
        let asked_for = options.mount.transport == Transport::Best;
        if asked_for && rustix::process::geteuid().is_root() && io::stderr().is_terminal() && fuse::io_uring_is_off() {
            say(TRANSPORT_IS_OFF);
        }
        end_on(signals, &session, report);
        if behind {
            detach()?;
        }
        session.run().map_err(|e| {
            // standard error of a background process has no reader any more
            report(&e.to_string());
            sentence(&e)
        })?;
        Ok(0)
    }

    /// Checks that DIR has the volume of DEVICE, as far as the list of mounts shows that: a mount may have any name as
    /// its source (`fsname`). Where no volume is mounted, the remount reports it.
    fn check_remounted(&self) -> Result<()> {
        let device = &self.source.device;
        let Ok(place) = fuse::mount_point(&self.dir) else { return Ok(()) };
        let sources = blockdev::sources_at(&place);
        let name: &OsStr = device.as_ref();
        let Some(source) = sources.last().filter(|_| !sources.iter().any(|source| source.as_os_str() == name)) else {
            return Ok(());
        };
        let identity = |path: &Path| path.metadata().map(|found| (found.dev(), found.ino()));
        let path = device.path();
        let wanted = path.map(identity).transpose().map_err(|e| Failure::on(device, e))?;
        let mounted = Device::from(source.clone().into_os_string());
        let there = mounted.path().filter(|path| path.is_absolute()).and_then(|path| identity(path).ok());
        if there.is_none() || wanted == there {
            return Ok(());
        }
        // also through another device with the same bytes
        match path.and_then(blockdev::mounted) {
            Some(mounted) if mounted.at.as_deref() == Some(&*place) => Ok(()),
            _ => {
                let why = format!("has another volume: {}", escape(source.as_os_str().as_bytes()));
                Err(Failure::Message(format!("{} {why}", escape(self.dir.as_os_str().as_bytes()))))
            }
        }
    }

    /// The option lists. A volume that root mounts by mount(8) is for all users, as with any file system, unless the
    /// options differ.
    fn lists(&self) -> Vec<&str> {
        let for_all = (self.as_mount && rustix::process::geteuid().is_root()).then_some("allow_other");
        for_all.into_iter().chain(self.options.iter().map(String::as_str)).collect()
    }

    /// The exit status of a failed mount.
    pub(crate) fn failure(&self) -> u8 {
        if self.as_mount { MOUNT_FAILED } else { 1 }
    }

    /// The exit status for invalid options.
    pub(crate) fn usage(&self) -> u8 {
        if self.as_mount { MOUNT_FAILED } else { 2 }
    }

    /// Opens the volume according to the options; read-only, with the reason, if it cannot be written and writing is
    /// not required.
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
        let patience = if mounted.is_some() { Duration::ZERO } else { UNMOUNT_PATIENCE };
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

    /// The source in the list of mounts: the device, with an absolute path if it has one, since others read the list in
    /// other folders.
    fn source_name(&self) -> String {
        let name: &str = &self.source.device;
        let Some(path) = self.source.device.path() else { return name.to_owned() };
        let Ok(absolute) = std::fs::canonicalize(path) else { return name.to_owned() };
        // in `kero:volume.img` the path is the suffix
        let layers = name.strip_suffix(&*path.to_string_lossy()).unwrap_or_default();
        format!("{layers}{}", absolute.to_string_lossy())
    }
}

fn sentence(e: &fuse::Error) -> Failure {
    Failure::Message(without_errno(&escape(e.to_string().as_bytes())))
}

/// Replaces an option that has two names in a sentence by the name that the user wrote.
fn with_its_name(sentence: &str, lists: &[&str]) -> String {
    let written = |name: &str| lists.iter().any(|list| list.split(',').any(|option| option == name));
    if written("noload") && !written("norecovery") {
        sentence.replace("`norecovery`", "`noload`")
    } else {
        sentence.to_owned()
    }
}

/// Starts the serving process, and returns when that is ready.
fn start_behind() -> Result<u8> {
    let cannot = |e: io::Error| Failure::Message(format!("cannot start the process that serves: {e}"));
    let mut line = std::env::args_os();
    // by its path, so that process lists name it; the path may no longer exist
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
        // it has reported the reason
        Some(code) => Ok(u8::try_from(code).unwrap_or(1).max(1)),
        None => Err(Failure::Message("the process that serves was killed before it was ready".to_owned())),
    }
}

/// Closes inherited files other than the standard streams: the serving process would have them open as long as the
/// volume is mounted, so a pipeline would wait for its end, or a lock never be released.
fn close_inherited() {
    let names = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten().map(|entry| entry.file_name());
    let numbers: Vec<i32> = names.filter_map(|name| name.to_str()?.parse().ok()).filter(|number| *number > 2).collect();
    for number in numbers {
        // the list's own descriptor is among them, and already closed; nothing else was opened yet
        let _ = nix::unistd::close(number);
    }
}

/// Leaves the terminal and the working folder, notifies the waiting process that the volume can be used, and closes the
/// pipe to it.
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

/// Unmounts on the first signal. If files are open, this returns when the kernel has written back its cached writes to
/// them; they become inaccessible shortly later, when all data is on the device. A signal that arrives meanwhile has
/// the same meaning, and repeats a failed attempt.
fn end_on(mut signals: Signals, session: &Session, report: impl Fn(&str) + Send + 'static) {
    let unmounter = session.unmounter();
    std::thread::spawn(move || {
        for _ in signals.forever() {
            match unmounter.unmount() {
                Ok(()) => {
                    std::thread::sleep(GRACE);
                    let finished = unmounter.finish();
                    if let Err(e) = &finished {
                        report(&e.to_string());
                    }
                    std::process::exit(i32::from(finished.is_err()));
                }
                Err(e) => report(&e.to_string()),
            }
        }
    });
}

/// Writes a line to the system log, as a warning of a daemon. Without a log it is lost.
fn log(problem: &str) {
    let line = format!("<28>extant[{}]: {problem}", std::process::id());
    let _ = UnixDatagram::unbound().and_then(|socket| socket.send_to(line.as_bytes(), "/dev/log"));
}
