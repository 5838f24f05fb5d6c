//! The DEVICE argument of commands that read a volume, and how they find files on it.

use crate::copy_in::is_full_below;
use crate::device::{Device, IN_USE, is_locked, open_volume};
use crate::error_report::{Failure, Result, say, warn, with_place};
use crate::output::human;
use blockdev::BlockDevice;
use check::render::{escape, shell_word};
use clap::Args;
use format::superblock::{DiskSuperblock, Superblock};
use fs::{FsBlock, Inode, InodeNo, Volume};
use simdev::Trace;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::Duration;

/// The volume, and the options to open it.
#[derive(Debug, Args)]
pub(crate) struct Source {
    /// Volume: a path, or `mem:SIZE`
    #[arg(value_name = "DEVICE")]
    pub(crate) device: Device,

    /// Use the backup superblock in block SB
    #[arg(short = 'b', long, value_name = "SB", help_heading = "Opening the volume")]
    pub(crate) superblock: Option<u64>,

    /// Block size for -b; all sizes are tried if omitted
    #[arg(short = 'B', long, value_name = "BYTES", value_parser = block_size, help_heading = "Opening the volume")]
    block_size: Option<u32>,

    /// Device with the volume's external journal
    #[arg(short = 'j', long, value_name = "DEVICE", help_heading = "Opening the volume")]
    journal: Option<Device>,

    /// Do not replay the journal, even in memory
    #[arg(long, help_heading = "Opening the volume")]
    no_replay: bool,

    /// Print how the volume was opened and what was read
    #[arg(short, long)]
    pub(crate) verbose: bool,
}

/// The volume of a command that writes or uses snapshots. It has no options to open the volume: one that was opened with
/// a backup superblock or without its journal is never written, and a native volume has neither.
#[derive(Debug, Args)]
pub(crate) struct Target {
    /// Volume: a path, or `mem:SIZE`
    #[arg(value_name = "DEVICE")]
    pub(crate) device: Device,

    /// Print how the volume was opened and what was read
    #[arg(short, long)]
    pub(crate) verbose: bool,
}

impl Target {
    /// Opens the volume for reading, and prints warnings on standard error.
    pub(crate) fn open(&self) -> Result<Opened> {
        self.source().open()
    }

    /// Opens the volume for writing, locked against all other processes. [`Opened::unmount`] must follow.
    pub(crate) fn open_for_writing(&self, write: fs::WriteOptions) -> Result<Opened> {
        let way = fs::OpenOptions { write: Some(write), ..fs::OpenOptions::default() };
        let access = for_writing(&self.device);
        let opened = self.source().open_any(&[way], access).map_err(|e| with_place(&self.device, e))?;
        opened.volume.start_background();
        Ok(opened)
    }

    fn source(&self) -> Source {
        Source {
            device: self.device.clone(),
            superblock: None,
            block_size: None,
            journal: None,
            no_replay: false,
            verbose: self.verbose,
        }
    }
}

/// Parses a block size, the value of -B.
pub(crate) fn block_size(word: &str) -> Result<u32, String> {
    let size = word.parse::<u32>().ok().filter(|size| size.is_power_of_two() && (1024..=65536).contains(size));
    size.ok_or_else(|| "a block size is a power of two from 1024 to 65536".to_owned())
}

/// The device and inode number of a file.
pub(crate) type Identity = (u64, u64);

/// An open volume.
pub(crate) struct Opened {
    pub(crate) volume: Arc<Volume>,
    /// Counts reads; only for `-v`.
    trace: Option<Arc<Trace<Arc<dyn BlockDevice>>>>,
    device: String,
}

impl Source {
    /// Opens the volume, and prints warnings on standard error.
    pub(crate) fn open(&self) -> Result<Opened> {
        self.open_any(&[fs::OpenOptions::default()], blockdev::OpenOptions::default())
    }

    /// Opens the volume as it is on the device, without its journal.
    pub(crate) fn open_as_it_stands(&self) -> Result<Opened> {
        let way = fs::OpenOptions { ignore_journal: true, ..fs::OpenOptions::default() };
        self.open_any(&[way], blockdev::OpenOptions::default())
    }

    /// Opens the volume in the first of several ways that succeeds. The command line sets the options that a way leaves
    /// open.
    pub(crate) fn open_any(&self, ways: &[fs::OpenOptions], access: blockdev::OpenOptions) -> Result<Opened> {
        let external_journal = self.journal.as_ref().map(open_device).transpose()?;
        let mut device = open_volume(&self.device, access)?;
        if !access.write && !access.exclusive {
            self.warn_of_writers();
        }
        if device.geometry().len == 0 {
            return Err(Failure::on(&self.device, "not an ext2/3/4 or Extant volume: it is empty"));
        }
        let mut trace = None;
        if self.verbose {
            let counting = Arc::new(Trace::new(device));
            device = Arc::clone(&counting) as Arc<dyn BlockDevice>;
            trace = Some(counting);
        }
        let mut ignore_journal = self.no_replay;
        let open = |way: &fs::OpenOptions| {
            ignore_journal |= way.ignore_journal;
            let options = fs::OpenOptions {
                superblock: way.superblock.or(self.superblock.map(FsBlock)),
                block_size: way.block_size.or(self.block_size),
                external_journal: external_journal.clone(),
                ignore_journal,
                ..way.clone()
            };
            Volume::open(Arc::clone(&device), &options)
        };
        let asked = self.superblock.is_some() || ways.iter().any(|way| way.superblock.is_some());
        let snapshot = ways.iter().find_map(|way| way.snapshot.as_deref());
        let opened = ways.iter().map(open).reduce(|before, next| before.or(next));
        let opened = opened.ok_or_else(|| Failure::on(&self.device, "no backup superblock can be at that location"))?;
        let volume = Arc::new(opened.map_err(|e| {
            match Failure::on(&self.device, no_volume(&*device, &e, asked, snapshot, &self.next_step(access.write))) {
                Failure::Message(sentence) if matches!(e, fs::Error::Impossible(_)) => Failure::Refused(sentence),
                failure => failure,
            }
        })?);
        for note in volume.warnings() {
            // no warning of a requested effect
            if !(ignore_journal && *note == fs::Warning::JournalIgnored) {
                warn(&format!("{}: {note}", escape(self.device.as_bytes())));
            }
        }
        let opened = Opened { volume, trace, device: self.device.to_string() };
        if self.verbose {
            let geometry = &opened.volume.superblock().geometry;
            let length = geometry.blocks.saturating_mul(u64::from(geometry.block_size));
            opened.report(&format!("{} in blocks of {}", human(length), human(u64::from(geometry.block_size))));
        }
        Ok(opened)
    }
}

impl Source {
    /// The files or block devices that contain the volume and its external journal.
    pub(crate) fn identities(&self) -> [Option<Identity>; 2] {
        [Some(&self.device), self.journal.as_ref()].map(|device| {
            let metadata = device?.path()?.metadata().ok()?;
            Some((metadata.dev(), metadata.ino()))
        })
    }

    /// Warns that another process may change the volume meanwhile.
    fn warn_of_writers(&self) {
        let why = match blockdev::mounted(&self.device) {
            Some(mounted) if mounted.read_only => return,
            Some(mounted) => format!("it is mounted for writing {}", escape(mounted.place().as_bytes())),
            None if is_locked(&self.device) => IN_USE.to_owned(),
            None => return,
        };
        let device = escape(self.device.as_bytes());
        warn(&format!("{device}: {why}: what is shown may be outdated or inconsistent"));
    }

    /// The next step for a damaged volume. A backup superblock is only read from.
    fn next_step(&self, write: bool) -> String {
        if write {
            return format!("run `extant check -fy {}`", shell_word(&escape(self.device.as_bytes())));
        }
        "try a backup superblock: -b 32768, or -b 8193 for blocks of 1 KiB".to_owned()
    }
}

impl Opened {
    /// The inode at `path`. `<N>` is inode N, as in debugfs. A symbolic link at the end is followed with `follow`.
    pub(crate) fn find(&self, path: &OsStr, follow: bool) -> fs::Result<Arc<Inode>> {
        let by_number = path.to_str().and_then(|path| path.strip_prefix('<')?.strip_suffix('>')?.parse().ok());
        let number = match by_number {
            Some(number) => InodeNo(number),
            None if follow => self.volume.resolve(path.as_bytes())?,
            None => self.volume.resolve_nofollow(path.as_bytes())?,
        };
        self.volume.inode(number)
    }

    /// Writes all changes to the device and marks the volume as clean.
    pub(crate) fn unmount(&self) -> Result<()> {
        self.volume.unmount().map_err(|e| not_written(&self.device, &e))
    }

    fn report(&self, what: &str) {
        say(&format!("{}: {what}", escape(self.device.as_bytes())));
    }
}

/// The failure of a volume that did not completely reach its device.
pub(crate) fn not_written(device: &str, error: &fs::Error) -> Failure {
    if is_full_below(error) {
        return Failure::on(device, "the disk beneath it is full: not all of the volume could be written");
    }
    Failure::on(device, error)
}

/// Prints, with `-v`, the reads of the volume.
impl Drop for Opened {
    fn drop(&mut self) {
        if let Some(trace) = &self.trace {
            let reads = trace.counters().reads;
            let (requests, seeks) = (reads.requests, reads.seeks);
            self.report(&format!("read {} in {requests} requests ({seeks} seeks)", human(reads.bytes)));
        }
    }
}

/// The reason why a volume could not be opened: usually the wrong file, sometimes a damaged volume. `asked`: a backup
/// superblock was already specified; `snapshot`: the specified snapshot; `next`: the next step for a damaged volume.
fn no_volume(device: &dyn BlockDevice, e: &fs::Error, asked: bool, snapshot: Option<&[u8]>, next: &str) -> String {
    let why = match (e, snapshot) {
        (fs::Error::NoSuperblock(why), _) => why,
        (fs::Error::NotFound, Some(name)) => {
            return format!("no snapshot named '{}' (see `extant snapshot list`)", escape(name));
        }
        _ => return e.to_string(),
    };
    let what = match &**why {
        fs::Error::Corrupt { what, .. } => what.split(": this is").next().unwrap_or(what).to_owned(),
        other => other.to_string(),
    };
    if asked && !check::Capabilities::of(device).backup_superblocks {
        return format!("no valid superblock at that location ({what}); a native volume has no backup superblocks");
    }
    if asked {
        return format!("no valid superblock at that location ({what})");
    }
    if let Ok(Some(content)) = fs::mkfs::foreign_contents(device) {
        return format!("not an ext2/3/4 or Extant volume, it contains {content} ({what})");
    }
    if let Some(zeros) = check::begins_with_zeros(device)
        && !has_backup(device)
    {
        return format!("not an ext2/3/4 or Extant volume: {zeros}");
    }
    let damaged = format!("not an ext2/3/4 or Extant volume, or a damaged one ({what})");
    if has_backup(device) {
        return format!("{damaged}; if it is damaged, {next}");
    }
    // one whose superblocks are both destroyed cannot be distinguished from other content
    format!("{damaged}; a native volume in this state has to be restored from a backup; if it is an ext volume, {next}")
}

/// Whether a device has a backup superblock where mke2fs puts the first one, with blocks of 1, 2 or 4 KiB.
fn has_backup(device: &dyn BlockDevice) -> bool {
    [8193_u64 << 10, 16384 << 11, 32768 << 12].into_iter().any(|offset| {
        let mut bytes = [0; DiskSuperblock::SIZE];
        device.read(offset, &mut bytes).is_ok() && Superblock::parse(&bytes).is_ok()
    })
}

/// Time for which a volume that is not mounted may still be in use: the program that served it exits shortly after
/// umount(8).
const RELEASE_PATIENCE: Duration = Duration::from_secs(2);

/// The options for opening a device for changes.
pub(crate) fn for_writing(device: &Device) -> blockdev::OpenOptions {
    let patience = if blockdev::mounted(device).is_some() { Duration::ZERO } else { RELEASE_PATIENCE };
    blockdev::OpenOptions { write: true, patience, ..blockdev::OpenOptions::default() }
}

/// Opens a device for reading.
pub(crate) fn open_device(spec: impl AsRef<OsStr>) -> Result<Arc<dyn BlockDevice>> {
    open_volume(spec, blockdev::OpenOptions::default())
}
