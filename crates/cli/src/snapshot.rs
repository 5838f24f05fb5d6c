//! `extant snapshot`: creates, lists, deletes and rolls back to snapshots of a native volume.

use crate::device::{IN_USE, is_locked};
use crate::error_report::{Failure, Result, say, warn, with_place};
use crate::output::{MINUTES, Text, human, local_time, print_json, stdout, utc_time};
use crate::source::Target;
use check::render::{escape, shell_word};
use clap::{Args, Subcommand};
use fs::{SnapshotInfo, Timestamp};
use fuse::MountedSnapshots;
use serde::Serialize;
use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

#[derive(Debug, Args)]
#[command(
    about = "Create, list, delete and roll back to snapshots of a native volume",
    after_help = "Examples:
  extant snapshot create volume.img before-upgrade
  extant snapshot create /mnt monday             on a mounted volume, while it is in use
  extant snapshot list /mnt
  extant mount -o snapshot=monday volume.img ./then
  ls /mnt/.extant/snapshots/monday/etc
  extant snapshot rollback volume.img before-upgrade
  extant snapshot delete volume.img before-upgrade

Creating a snapshot takes no space, and a time that does not depend on the size of the volume. It \
    preserves everything that is changed or deleted later. DEVICE is a path of an unmounted volume, or a directory on one mounted with `extant mount`. There mkdir and rmdir \
    in .extant/snapshots also create and delete snapshots; rmdir does not require an empty one.

Exit status: 0 done, 1 not done, 2 wrong usage."
)]
pub(crate) struct Snapshot {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Create(Create),
    List(List),
    Delete(Delete),
    Rollback(Rollback),
}

#[derive(Debug, Args)]
#[command(
    about = "Take a snapshot of the volume",
    after_help = "Examples:
  extant snapshot create volume.img before-upgrade
  extant snapshot create /mnt monday

A name has 1 to 128 bytes and no slash. A volume has at most 4096 snapshots. A snapshot of a mounted volume contains everything \
    that programs have written, also through mappings.

Files in a snapshot have the modes of the time when it was taken: a file that was readable by all users stays so there when \
    it is made private later. So the snapshots of a mounted volume are for root and the user who mounted it, unless it is \
    mounted with snapdir=all.

Exit status: 0 created and durable, 1 not created, 2 wrong usage."
)]
struct Create {
    #[command(flatten)]
    target: Target,

    /// Name of the snapshot
    #[arg(value_name = "NAME")]
    name: OsString,
}

#[derive(Debug, Args)]
#[command(
    about = "List snapshots with creation time and unique (reclaimable) space",
    after_help = "Examples:
  extant snapshot list volume.img
  extant snapshot list --json /mnt

The space is the amount freed if only that snapshot is deleted. For a mounted volume it is shown only to root and the \
    user who mounted it; for others (where the mount option snapdir=all lets them list at all) it is -, in JSON null. \
    Times are local (TZ), in JSON UTC.

For the image of a volume that is mounted, its mount is asked. Where that is not possible, as in another mount \
    namespace, the snapshots on the device are listed, and `rollback` in JSON is null: the device does not show whether \
    a rollback is scheduled.

Exit status: 0 listed, 1 failed, 2 wrong usage."
)]
struct List {
    #[command(flatten)]
    target: Target,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
#[command(
    about = "Delete snapshots and free the space only they use",
    after_help = "Examples:
  extant snapshot delete volume.img before-upgrade
  extant snapshot delete /mnt monday tuesday

If one of the names is not that of a snapshot, or a rollback to it is scheduled, none is deleted.

Exit status: 0 all deleted, 1 at least one was not, 2 wrong usage."
)]
struct Delete {
    #[command(flatten)]
    target: Target,

    /// Names of the snapshots
    #[arg(value_name = "NAME", required = true)]
    names: Vec<OsString>,
}

#[derive(Debug, Args)]
#[command(
    about = "Roll the volume back to a snapshot",
    after_help = "Examples:
  extant snapshot rollback volume.img before-upgrade
  extant snapshot rollback /mnt before-upgrade     done at unmount
  extant snapshot rollback --cancel /mnt           cancel that

Changes made since are lost, unless another snapshot has them; all snapshots stay. Files of a mounted volume are in \
    use, so it is rolled back when it is unmounted. A scheduled rollback is cancelled through the mount: with the image of a \
    mounted volume as DEVICE, --cancel is refused.

Exit status: 0 done, scheduled for the unmount, or nothing to cancel; 1 not done, 2 wrong usage."
)]
struct Rollback {
    #[command(flatten)]
    target: Target,

    /// Name of the snapshot
    #[arg(value_name = "NAME", required_unless_present = "cancel")]
    name: Option<OsString>,

    /// Cancel the rollback of a mounted volume
    #[arg(long, conflicts_with = "name")]
    cancel: bool,
}

impl Snapshot {
    pub(crate) fn run(&self) -> Result<u8> {
        match &self.command {
            Command::Create(command) => command.run(),
            Command::List(command) => command.run(),
            Command::Delete(command) => command.run(),
            Command::Rollback(command) => command.run(),
        }
    }
}

/// The mounted volume, if DEVICE is a folder.
fn mounted(target: &Target) -> Result<Option<MountedSnapshots>> {
    let path = Path::new(&target.device);
    if !path.is_dir() {
        return Ok(None);
    }
    MountedSnapshots::of(path).map(Some).map_err(|e| Failure::on(&target.device, e))
}

/// The mount point on which Extant serves the volume in this file or block device; `None` for none, or if it is not in
/// the list of mounts.
fn mount_point(target: &Target) -> Option<PathBuf> {
    blockdev::mounted(&target.device).filter(|mounted| mounted.ours)?.at
}

/// The mounted volume in this file or block device, if its mount can be asked.
fn mounted_image(target: &Target) -> Option<MountedSnapshots> {
    let identity = |path: &Path| path.metadata().ok().map(|metadata| (metadata.dev(), metadata.ino()));
    let (at, own) = (mount_point(target)?, identity(Path::new(&target.device))?);
    // another volume may be mounted over it
    let is_own = blockdev::sources_at(&at).iter().any(|source| identity(source) == Some(own));
    MountedSnapshots::of(&at).ok().filter(|_| is_own)
}

/// An error that shows whether a snapshot of the name is missing, or exists.
trait Reason: ToString {
    fn is_missing(&self) -> bool;
    fn exists(&self) -> bool;
}

impl Reason for std::io::Error {
    fn is_missing(&self) -> bool {
        self.kind() == std::io::ErrorKind::NotFound
    }

    fn exists(&self) -> bool {
        self.kind() == std::io::ErrorKind::AlreadyExists
    }
}

impl Reason for fs::Error {
    fn is_missing(&self) -> bool {
        matches!(self, fs::Error::NotFound)
    }

    fn exists(&self) -> bool {
        matches!(self, fs::Error::Exists)
    }
}

/// A failure that concerns a snapshot that should not exist.
fn about_new(target: &Target, name: &OsString, why: &dyn Reason) -> Failure {
    if !why.exists() {
        return about(target, name, why.to_string());
    }
    Failure::on(&target.device, format!("a snapshot named {} already exists", shown(name)))
}

/// A failure that concerns a snapshot that should exist.
fn about_existing(target: &Target, name: &OsString, why: &dyn Reason) -> Failure {
    if !why.is_missing() {
        return about(target, name, why.to_string());
    }
    let (name, device) = (shown(name), shell_word(&escape(target.device.as_bytes())));
    let why = format!("there is no snapshot named {name}; `extant snapshot list {device}` shows them");
    Failure::on(&target.device, why)
}

/// A failure that concerns a snapshot.
fn about(target: &Target, name: &OsString, why: impl ToString) -> Failure {
    Failure::on(&target.device, format!("snapshot {}: {}", shown(name), why.to_string()))
}

/// A snapshot's name for a message.
fn shown(name: &OsString) -> String {
    if name.is_empty() { "''".to_owned() } else { escape(name.as_bytes()) }
}

impl Create {
    fn run(&self) -> Result<u8> {
        let name = self.name.as_bytes();
        let failed = |e: &dyn Reason| about_new(&self.target, &self.name, e);
        if let Some(mounted) = mounted(&self.target)? {
            mounted.create(name).map_err(|e| failed(&e))?;
            return Ok(0);
        }
        let opened = self.target.open_for_writing(fs::WriteOptions::default())?;
        let made = opened.volume.create_snapshot(name);
        opened.unmount()?;
        made.map_err(|e| failed(&e))?;
        Ok(0)
    }
}

/// A snapshot's information, and its unique space where that is known.
type InfoAndSpace = (SnapshotInfo, Option<u64>);

/// The scheduled rollback of a volume.
enum Scheduled {
    /// To the snapshot of this name; `None` for none.
    Known(Option<Vec<u8>>),
    /// The volume is in use, and its mount cannot be asked.
    Unknown,
}

impl Scheduled {
    /// Whether the volume is rolled back to this snapshot at unmount; `None` if that is not known.
    fn is_to(&self, name: &[u8]) -> Option<bool> {
        match self {
            Self::Known(to) => Some(to.as_deref() == Some(name)),
            Self::Unknown => None,
        }
    }
}

impl List {
    fn run(&self) -> Result<u8> {
        let (list, scheduled) = self.find()?;
        if self.json {
            let one = |(info, space): &InfoAndSpace| Listed {
                name: Text::new("name", &info.name),
                time: utc_time(time(info)),
                generation: info.generation,
                bytes: *space,
                rollback: scheduled.is_to(&info.name),
            };
            print_json(&list.iter().map(one).collect::<Vec<_>>())?;
            return Ok(0);
        }
        let mut out = stdout()?;
        for (info, space) in &list {
            let space = space.map_or_else(|| "-".to_owned(), human);
            let back = if scheduled.is_to(&info.name) == Some(true) { "  (rollback at unmount)" } else { "" };
            writeln!(out, "{}  {space:>10}  {}{back}", local_time(time(info), MINUTES), escape(&info.name))?;
        }
        out.flush()?;
        Ok(0)
    }

    /// The snapshots and the scheduled rollback, from the mount of the volume if there is one.
    fn find(&self) -> Result<(Vec<InfoAndSpace>, Scheduled)> {
        let failed = |e: &dyn ToString| Failure::on(&self.target.device, e.to_string());
        if let Some(mounted) = mounted(&self.target)?.or_else(|| mounted_image(&self.target)) {
            let back_to = mounted.scheduled_rollback().map_err(|e| failed(&e))?;
            let list = mounted.list(true).map_err(|e| failed(&e))?;
            return Ok((list, Scheduled::Known(back_to)));
        }
        let in_use = blockdev::mounted(&self.target.device).is_some() || is_locked(&self.target.device);
        let volume = self.target.open()?.volume.clone();
        let list = volume.snapshots().map_err(|e| failed(&e))?;
        let space = |info: SnapshotInfo| volume.snapshot_space(&info.name).map(|space| (info, Some(space)));
        let list = list.into_iter().map(space).collect::<fs::Result<Vec<_>>>().map_err(|e| failed(&e))?;
        if !in_use {
            return Ok((list, Scheduled::Known(None)));
        }
        let why = "a rollback may be scheduled: `extant snapshot list DIR` with the directory on which it is mounted shows that";
        warn(&format!("{}: {why}", escape(self.target.device.as_bytes())));
        Ok((list, Scheduled::Unknown))
    }
}

/// A snapshot as JSON.
#[derive(Serialize)]
struct Listed {
    #[serde(flatten)]
    name: Text,
    time: String,
    generation: u64,
    bytes: Option<u64>,
    /// The volume is rolled back to this snapshot at unmount; `None` if that is not known.
    rollback: Option<bool>,
}

fn time(info: &SnapshotInfo) -> Timestamp {
    Timestamp { seconds: info.time, nanos: 0 }
}

impl Delete {
    /// The reason why the snapshot of a rollback is not deleted.
    fn scheduled(&self) -> String {
        let device = shell_word(&escape(self.target.device.as_bytes()));
        format!("a rollback to it is scheduled: cancel it first with `extant snapshot rollback --cancel {device}`")
    }

    /// The names, each once.
    fn distinct(&self) -> Vec<&OsString> {
        let mut names: Vec<&OsString> = Vec::new();
        for name in &self.names {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }

    /// The failures of the names that cannot be deleted from a mounted volume.
    fn wrong_names(&self, mounted: &MountedSnapshots, names: &[&OsString]) -> Vec<Failure> {
        // without an answer the deletion reports the error
        let back_to = mounted.scheduled_rollback().ok().flatten();
        let wrong = |name: &&OsString| {
            if back_to.as_deref() == Some(name.as_bytes()) {
                return Some(about(&self.target, name, self.scheduled()));
            }
            mounted.check_exists(name.as_bytes()).err().map(|e| about_existing(&self.target, name, &e))
        };
        names.iter().filter_map(wrong).collect()
    }

    /// Reports wrong names, because of which nothing is deleted; returns the exit status.
    fn refuse(&self, wrong: Vec<Failure>) -> u8 {
        report(wrong);
        if self.names.len() > 1 {
            say(&format!("{}: no snapshot was deleted", escape(self.target.device.as_bytes())));
        }
        1
    }

    fn run(&self) -> Result<u8> {
        let names = self.distinct();
        if let Some(mounted) = mounted(&self.target)? {
            let wrong = self.wrong_names(&mounted, &names);
            if !wrong.is_empty() {
                return Ok(self.refuse(wrong));
            }
            let delete = |name: &&OsString| {
                mounted.delete(name.as_bytes()).err().map(|e| match e.kind() {
                    std::io::ErrorKind::ResourceBusy => about(&self.target, name, self.scheduled()),
                    _ => about_existing(&self.target, name, &e),
                })
            };
            let failures: Vec<Failure> = names.iter().filter_map(delete).collect();
            return Ok(report(failures));
        }
        let opened = self.target.open_for_writing(fs::WriteOptions::default())?;
        let there = match opened.volume.snapshots() {
            Ok(there) => there,
            Err(e) => {
                opened.unmount()?;
                return Err(Failure::on(&self.target.device, e));
            }
        };
        let is_missing = |name: &&&OsString| !there.iter().any(|info| info.name == name.as_bytes());
        let wrong =
            names.iter().filter(is_missing).map(|name| about_existing(&self.target, name, &fs::Error::NotFound));
        let wrong: Vec<Failure> = wrong.collect();
        if !wrong.is_empty() {
            opened.unmount()?;
            return Ok(self.refuse(wrong));
        }
        let delete = |name: &&OsString| {
            let deleted = opened.volume.delete_snapshot(name.as_bytes());
            deleted.err().map(|e| about_existing(&self.target, name, &e))
        };
        let status = report(names.iter().filter_map(delete).collect());
        // frees the rest of its space
        let compacted = opened.volume.compact();
        opened.unmount()?;
        compacted.map_err(|e| Failure::on(&self.target.device, e))?;
        Ok(status)
    }
}

/// Reports failures; returns the exit status.
fn report(failures: Vec<Failure>) -> u8 {
    let status = u8::from(!failures.is_empty());
    for failure in failures {
        if let Failure::Message(sentence) = failure {
            say(&sentence);
        }
    }
    status
}

impl Rollback {
    fn run(&self) -> Result<u8> {
        let none = OsString::new();
        let name = self.name.as_ref().unwrap_or(&none);
        let failed = |e: &dyn Reason| about_existing(&self.target, name, e);
        if let Some(mounted) = mounted(&self.target)? {
            let to = self.name.as_ref().map(|name| name.as_bytes());
            if to.is_none() && mounted.scheduled_rollback().map_err(|e| failed(&e))?.is_none() {
                return self.nothing_to_cancel();
            }
            mounted.rollback(to).map_err(|e| failed(&e))?;
            if to.is_some() {
                say(
                    "the volume is rolled back when it is unmounted: all changes since the snapshot will be lost (--cancel undoes this)",
                );
            }
            return Ok(0);
        }
        if self.cancel {
            self.check_unused()?;
            // it has to be a native volume
            self.target.open()?.volume.snapshots().map_err(|e| Failure::on(&self.target.device, e))?;
            return self.nothing_to_cancel();
        }
        let device = crate::device::open_volume(&self.target.device, crate::source::for_writing(&self.target.device))
            .map_err(|e| with_place(&self.target.device, e))?;
        fs::rollback(device, name.as_bytes()).map_err(|e| failed(&e))?;
        Ok(0)
    }

    /// Refuses a volume in use: only its mount shows and cancels a scheduled rollback.
    fn check_unused(&self) -> Result<()> {
        let device = &self.target.device;
        let why = match mount_point(&self.target) {
            Some(at) => {
                let at = escape(at.as_os_str().as_bytes());
                format!("it is mounted at {at}: use `extant snapshot rollback --cancel {}`", shell_word(&at))
            }
            None if is_locked(device) => {
                format!(
                    "{IN_USE}; if it is mounted, use `extant snapshot rollback --cancel` with the mount's directory"
                )
            }
            None => return Ok(()),
        };
        Err(Failure::on(device, why))
    }

    /// A rollback is only ever scheduled while the volume is mounted, and carried out when it is unmounted.
    fn nothing_to_cancel(&self) -> Result<u8> {
        say(&format!("{}: no rollback is scheduled", escape(self.target.device.as_bytes())));
        Ok(0)
    }
}
