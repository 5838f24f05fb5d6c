//! DEVICE as the commands that look into a volume take it, and how they find a file on it.

use crate::device::{Device, open_volume};
use crate::failure::{Failure, Result, say, with_place};
use crate::fill::is_full_below;
use crate::output::human;
use blockdev::BlockDevice;
use check::render::escape;
use clap::Args;
use fs::{FsBlock, Inode, InodeNo, Volume};
use simdev::Trace;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::Duration;

/// The volume, and how to open it.
#[derive(Debug, Args)]
pub(crate) struct Source {
    /// Volume: a path, or `mem:SIZE`
    #[arg(value_name = "DEVICE")]
    pub(crate) device: Device,

    /// Use the copy of the superblock in block SB
    #[arg(short = 'b', long, value_name = "SB", help_heading = "Opening the volume")]
    pub(crate) superblock: Option<u64>,

    /// Block size by which SB is counted; without it every size is tried
    #[arg(short = 'B', long, value_name = "BYTES", help_heading = "Opening the volume")]
    block_size: Option<u32>,

    /// Device with the volume's journal, where that is not in the volume
    #[arg(short = 'j', long, value_name = "DEVICE", help_heading = "Opening the volume")]
    journal: Option<Device>,

    /// Show what is on the device, without what the journal holds
    #[arg(long, help_heading = "Opening the volume")]
    no_replay: bool,

    /// Say how the volume was opened and what was read
    #[arg(short, long)]
    pub(crate) verbose: bool,
}

/// An open volume.
pub(crate) struct Opened {
    pub(crate) volume: Arc<Volume>,
    /// Counts what is read; only for `-v`.
    trace: Option<Arc<Trace<Arc<dyn BlockDevice>>>>,
    device: String,
}

impl Source {
    /// Opens the volume, and says on standard error what its user should know.
    pub(crate) fn open(&self) -> Result<Opened> {
        self.open_any(&[fs::OpenOptions::default()], blockdev::OpenOptions::default())
    }

    /// Opens the volume as it stands on the device, whatever its journal holds.
    pub(crate) fn open_as_it_stands(&self) -> Result<Opened> {
        let way = fs::OpenOptions { ignore_journal: true, ..fs::OpenOptions::default() };
        self.open_any(&[way], blockdev::OpenOptions::default())
    }

    /// Opens the volume for writing, locked against all others. [`Opened::unmount`] has to follow.
    pub(crate) fn open_for_writing(&self, write: fs::WriteOptions) -> Result<Opened> {
        let way = fs::OpenOptions { write: Some(write), ..fs::OpenOptions::default() };
        let access = for_writing(&self.device);
        let opened = self.open_any(&[way], access).map_err(|e| with_place(&self.device, e))?;
        opened.volume.start_background();
        Ok(opened)
    }

    /// Opens the volume in the first of several ways that succeeds. What a way leaves open, the flags say.
    pub(crate) fn open_any(&self, ways: &[fs::OpenOptions], access: blockdev::OpenOptions) -> Result<Opened> {
        let external_journal = self.journal.as_ref().map(open_device).transpose()?;
        let mut device = open_volume(&self.device, access)?;
        if !access.write && !access.exclusive {
            self.warn_of_writers();
        }
        if device.geometry().len == 0 {
            return Err(Failure::on(&self.device, "no ext2, ext3 or ext4 volume: it is empty"));
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
        let opened = opened.ok_or_else(|| Failure::on(&self.device, "no copy of the superblock can lie there"))?;
        let volume = Arc::new(opened.map_err(|e| match Failure::on(&self.device, no_volume(&e, asked, snapshot)) {
            Failure::Message(sentence) if matches!(e, fs::Error::Impossible(_)) => Failure::Refused(sentence),
            failure => failure,
        })?);
        for note in volume.warnings() {
            // what was asked for is no news
            if !(ignore_journal && *note == fs::Warning::JournalIgnored) {
                say(&format!("{}: {note}", escape(self.device.as_bytes())));
            }
        }
        let opened = Opened { volume, trace, device: self.device.to_string() };
        if self.verbose {
            let geometry = &opened.volume.superblock().geometry;
            let length = geometry.blocks.saturating_mul(u64::from(geometry.block_size));
            opened.tell(&format!("{} in blocks of {}", human(length), human(u64::from(geometry.block_size))));
        }
        Ok(opened)
    }
}

impl Source {
    /// What somebody changes meanwhile is shown as its parts happen to be on the device.
    fn warn_of_writers(&self) {
        if let Some(mounted) = blockdev::mounted(&self.device).filter(|mounted| !mounted.read_only) {
            let (device, place) = (escape(self.device.as_bytes()), escape(mounted.place().as_bytes()));
            say(&format!("{device}: it is mounted for writing {place}: what is shown may be old, or not fit together"));
        }
    }
}

impl Opened {
    /// The inode that `path` leads to. `<N>` is inode N, as in debugfs. A link at the end is followed where `follow`.
    pub(crate) fn find(&self, path: &OsStr, follow: bool) -> fs::Result<Arc<Inode>> {
        let by_number = path.to_str().and_then(|path| path.strip_prefix('<')?.strip_suffix('>')?.parse().ok());
        let number = match by_number {
            Some(number) => InodeNo(number),
            None if follow => self.volume.resolve(path.as_bytes())?,
            None => self.volume.resolve_nofollow(path.as_bytes())?,
        };
        self.volume.inode(number)
    }

    /// Brings all changes to the device and marks the volume as sound.
    pub(crate) fn unmount(&self) -> Result<()> {
        self.volume.unmount().map_err(|e| not_written(&self.device, &e))
    }

    fn tell(&self, what: &str) {
        say(&format!("{}: {what}", escape(self.device.as_bytes())));
    }
}

/// That not all of a volume reached its device.
pub(crate) fn not_written(device: &str, error: &fs::Error) -> Failure {
    if is_full_below(error) {
        return Failure::on(device, "the disk that it lies on is full, so that not all of the volume could be written");
    }
    Failure::on(device, error)
}

/// With `-v`, says what was read.
impl Drop for Opened {
    fn drop(&mut self) {
        if let Some(trace) = &self.trace {
            let reads = trace.snapshot().reads;
            let (requests, seeks) = (reads.requests, reads.seeks);
            self.tell(&format!("{} read in {requests} requests, {seeks} of them after a seek", human(reads.bytes)));
        }
    }
}

/// Why a volume could not be opened. Most who see this gave the wrong file, and some a damaged volume. `asked`: a copy of the
/// superblock was asked for already; `snapshot`: the one that was.
fn no_volume(e: &fs::Error, asked: bool, snapshot: Option<&[u8]>) -> String {
    let why = match (e, snapshot) {
        (fs::Error::NoSuperblock(why), _) => why,
        (fs::Error::NotFound, Some(name)) => {
            return format!("it has no snapshot `{}` (`extant snapshot list` shows them)", escape(name));
        }
        _ => return e.to_string(),
    };
    let what = match &**why {
        fs::Error::Corrupt { what, .. } => what.split(": this is").next().unwrap_or(what).to_owned(),
        other => other.to_string(),
    };
    if asked {
        return format!("there is no copy of a superblock at that place ({what})");
    }
    format!(
        "this is no ext2, ext3 or ext4 volume, or a damaged one ({what}); a damaged one may have a copy of its superblock: \
         try -b 32768, or -b 8193 for blocks of 1 KiB"
    )
}

/// How long a volume that is mounted nowhere may still be in use: the program that served it ends a moment after umount(8)
/// does.
const LETTING_GO: Duration = Duration::from_secs(2);

/// How a command opens a device that it changes.
pub(crate) fn for_writing(device: &Device) -> blockdev::OpenOptions {
    let patience = if blockdev::mounted(device).is_some() { Duration::ZERO } else { LETTING_GO };
    blockdev::OpenOptions { write: true, patience, ..blockdev::OpenOptions::default() }
}

/// Opens a device for reading.
pub(crate) fn open_device(spec: impl AsRef<OsStr>) -> Result<Arc<dyn BlockDevice>> {
    open_volume(spec, blockdev::OpenOptions::default())
}
