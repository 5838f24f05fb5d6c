//! A peer with its volume on a modelled disk, and measured work on it.

use crate::Result;
use crate::interruption::Folder;
use crate::kero::device::{Unflushed, disk, failed};
use crate::kero::sizes::Sizes;
use blockdev::{BlockDevice, Overlay};
use fs::mkfs::{Kind, MkfsOptions, make};
use fs::{Consistency, DataMode, FileKind, InodeNo, Log, NewFile, OpenOptions, Timestamp, Volume, WriteOptions};
use kero::{BLOCK, FormatOptions, Gap, Kero, Layout, Stats};
use serde::Serialize;
use simdev::Model;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Cache size in bytes for metadata; half of it for bitmaps.
const CACHE: usize = 4 << 20;
/// Maximum number of bytes of delayed data.
const DELAYED: usize = 64 << 20;
/// Bytes of content that are written or read at once, at most.
const PIECE: usize = 1 << 20;
/// Number of files created or removed after which a generation closes.
const GENERATION_FILES: u64 = 2000;
/// The time at which the modelled clock begins, in seconds since 1970.
const BEGUN: i64 = 1_700_000_000;

/// The kinds of a layer beneath a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Under {
    /// Formatted without content, then mkfs: blank blocks are written in place.
    Blank,
    /// The same with a short log, which wraps.
    Short,
    /// Formatted below an existing volume: the whole device counts as content, so all writes go to the log.
    Used,
}

/// An implementation to be measured.
pub(crate) struct Peer {
    pub(crate) name: &'static str,
    kind: Kind,
    consistency: Consistency,
    data: DataMode,
    layer: Option<Under>,
    /// The peers that its ratios are computed to.
    bases: [&'static str; 2],
}

const fn ext3(name: &'static str, data: DataMode, bases: [&'static str; 2]) -> Peer {
    Peer { name, kind: Kind::Ext3, consistency: Consistency::Journal, data, layer: None, bases }
}

const fn ext2(name: &'static str, layer: Option<Under>) -> Peer {
    let bases = if matches!(layer, Some(Under::Short)) { SHORT } else { LONG };
    Peer { name, kind: Kind::Ext2, consistency: Consistency::None, data: DataMode::Ordered, layer, bases }
}

/// The peers that ratios are computed to: data=journal and ordered, with a journal as long as the log.
const LONG: [&str; 2] = ["ext3 data=journal", "ext3 ordered"];
/// The same with a journal as long as the short log.
const SHORT: [&str; 2] = ["ext3 data=journal, short journal", "ext3 ordered, short journal"];

/// All peers.
pub(crate) static PEERS: [Peer; 8] = [
    ext3(LONG[0], DataMode::Journal, LONG),
    ext3(LONG[1], DataMode::Ordered, LONG),
    ext3(SHORT[0], DataMode::Journal, SHORT),
    ext3(SHORT[1], DataMode::Ordered, SHORT),
    ext2("ext2", None),
    ext2("ext2 on Kero", Some(Under::Blank)),
    ext2("ext2 on Kero, short log", Some(Under::Short)),
    ext2("ext2 on Kero, used device", Some(Under::Used)),
];

/// The figures of one kind of work of one peer. Times are the disk's, in seconds.
#[derive(Debug, Clone, Serialize)]
pub struct Worked {
    /// The name of the work.
    pub work: String,
    /// The peer.
    pub peer: &'static str,
    /// The time until the last sync.
    pub seconds: f64,
    /// Its ratio to that of ext3 data=journal with a journal as long as the log.
    pub to_journal: f64,
    /// Its ratio to that of ext3 ordered with such a journal.
    pub to_ordered: f64,
    /// The time until the volume is also unmounted and, on a layer, the layer is removed by `drain`, which moves the
    /// whole log home, whatever work it is from.
    pub home_seconds: f64,
    /// Its ratio to that of ext3 data=journal with a journal as long as the log.
    pub home_to_journal: f64,
    /// Its ratio to that of ext3 ordered with such a journal.
    pub home_to_ordered: f64,
    /// Bytes of content written by the work.
    pub written: u64,
    /// Bytes of content read by the work.
    pub read: u64,
    /// The part of `seconds` in which the work waited for reads.
    pub read_seconds: f64,
    /// Bytes of content written per second of the other part; 0 if nothing was written.
    pub write_bandwidth: f64,
    /// Bytes that the disk wrote until the last sync.
    pub device_bytes: u64,
    /// Bytes that the disk wrote for each byte of content, until the last sync; 0 if no content was written.
    pub factor: f64,
    /// The same until everything is at home.
    pub home_factor: f64,
    /// Flushes of the disk until the last sync.
    pub flushes: u64,
    /// The figures of the layer, if there is one.
    pub layer: Option<Layered>,
}

/// The figures of a layer until the last sync.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Layered {
    /// Bytes written to the device for each byte that the file system wrote.
    pub write_factor: f64,
    /// Groups.
    pub groups: u64,
    /// Of these, groups that ended without a flush of the file system because they were too large.
    pub split: u64,
    /// Bytes moved from the log to their home locations to make space.
    pub home_bytes: u64,
    /// Bytes of hot blocks that were appended to the log again.
    pub again_bytes: u64,
    /// Bytes written to the log divided by its length.
    pub laps: f64,
    /// Bytes of newest content in the log at the last sync.
    pub in_log: u64,
    /// Bytes that `drain` then moved home.
    pub drained_bytes: u64,
}

/// The disk of a peer.
type Disk = Arc<Model<Arc<Unflushed>>>;

/// A peer with its volume.
pub(crate) struct Stage {
    peer: &'static Peer,
    sizes: Sizes,
    pub(crate) seed: u64,
    base: Arc<Unflushed>,
    disk: Disk,
    layer: Option<Arc<Kero<Disk>>>,
}

/// The removal of a layer.
#[derive(Debug, Default)]
struct Drained {
    time: Duration,
    device_bytes: u64,
    home_bytes: u64,
}

impl Stage {
    /// Runs `work` with a new volume of the peer in a temporary folder in `dir`.
    ///
    /// # Errors
    /// Those of the file, of mkfs and of `work`.
    pub(crate) fn with<T>(
        (dir, sizes, seed): (&Path, &Sizes, u64),
        peer: &'static Peer,
        work: impl FnOnce(&Self) -> Result<T>,
    ) -> Result<T> {
        let folder = Folder::in_dir(dir)?;
        let base = Arc::new(Unflushed::make(&folder.join("volume.img"), sizes.device)?);
        let parameters = disk(sizes.device)?;
        new_volume(&base, peer, sizes)?;
        let disk = Arc::new(Model::new(Arc::clone(&base), &parameters)?);
        let open = |_| {
            Kero::open(Arc::clone(&disk), kero::Options { gap: Gap::Measured, ..kero::Options::default() })
                .map(Arc::new)
                .map_err(failed)
        };
        let layer = peer.layer.map(open).transpose()?;
        work(&Self { peer, sizes: *sizes, seed, base, disk, layer })
    }

    fn open(&self) -> Result<Volume> {
        let disk = Arc::clone(&self.disk);
        let clock = move || {
            let now = disk.clock();
            Timestamp { seconds: BEGUN + now.as_secs() as i64, nanos: now.subsec_nanos() }
        };
        let write = WriteOptions {
            consistency: Some(self.peer.consistency),
            data: self.peer.data,
            data_insisted: self.peer.data != DataMode::default(),
            delayed_bytes: DELAYED,
            clock: Arc::new(clock),
            seed: Some(self.seed),
            superuser: true,
            ..WriteOptions::default()
        };
        let device = match &self.layer {
            Some(layer) => Arc::clone(layer) as Arc<dyn BlockDevice>,
            None => Arc::clone(&self.disk) as Arc<dyn BlockDevice>,
        };
        let options = OpenOptions { write: Some(write), cache_bytes: CACHE, ..OpenOptions::default() };
        Volume::open(device, &options).map_err(failed)
    }

    fn job<'a>(&'a self, volume: &'a Volume) -> Job<'a> {
        let mut content = vec![0; PIECE];
        fastrand::Rng::with_seed(self.seed).fill(&mut content);
        Job {
            volume,
            disk: &self.disk,
            layer: self.layer.as_deref(),
            generation: self.sizes.generation,
            content,
            buffer: vec![0; PIECE],
            pending: 0,
            files: 0,
            written: 0,
            read: 0,
            read_time: Duration::ZERO,
        }
    }

    /// Runs work that is not measured, until it is durable.
    ///
    /// # Errors
    /// Those of the volume.
    pub(crate) fn prepared(&self, work: impl FnOnce(&mut Job<'_>) -> fs::Result<()>) -> Result<()> {
        let volume = self.open()?;
        work(&mut self.job(&volume)).and_then(|()| volume.sync()).map_err(failed)?;
        volume.unmount().map_err(failed)
    }

    /// Measures work on the newly opened volume until all of it is durable, and until everything is at home.
    ///
    /// # Errors
    /// Those of the volume and of the layer.
    pub(crate) fn measured(&self, name: &str, work: impl FnOnce(&mut Job<'_>) -> fs::Result<()>) -> Result<Worked> {
        let volume = self.open()?;
        let (before, before_layer) = (self.disk.report(), self.stats());
        let (written, read, read_time) = {
            let mut job = self.job(&volume);
            work(&mut job).and_then(|()| volume.sync()).map_err(failed)?;
            (job.written, job.read, job.read_time)
        };
        let (synced, synced_layer) = (self.disk.report(), self.stats());
        volume.unmount().map_err(failed)?;
        drop(volume);
        let unmounted = self.disk.report();
        let drained = self.drained()?;
        let time = synced.time - before.time;
        let device_bytes = synced.bytes_written - before.bytes_written;
        let home_bytes = unmounted.bytes_written - before.bytes_written + drained.device_bytes;
        let for_each = |bytes: u64| if written == 0 { 0.0 } else { bytes as f64 / written as f64 };
        let writing = time.saturating_sub(read_time).as_secs_f64();
        Ok(Worked {
            work: name.to_owned(),
            peer: self.peer.name,
            seconds: time.as_secs_f64(),
            to_journal: 0.0,
            to_ordered: 0.0,
            home_seconds: (unmounted.time - before.time + drained.time).as_secs_f64(),
            home_to_journal: 0.0,
            home_to_ordered: 0.0,
            written,
            read,
            read_seconds: read_time.as_secs_f64(),
            write_bandwidth: if writing > 0.0 { written as f64 / writing } else { 0.0 },
            device_bytes,
            factor: for_each(device_bytes),
            home_factor: for_each(home_bytes),
            flushes: synced.flushes - before.flushes,
            layer: before_layer.zip(synced_layer).map(|(before, now)| layered(before, now, drained.home_bytes)),
        })
    }

    fn stats(&self) -> Option<Stats> {
        self.layer.as_ref().map(|layer| layer.stats())
    }

    /// Removes the layer from a copy of the device, in memory, so that the next work finds it unchanged. The copy is on
    /// a disk of its own, whose arm begins at the first track.
    fn drained(&self) -> Result<Drained> {
        if self.layer.is_none() {
            return Ok(Drained::default());
        }
        let copy = Overlay::new(Arc::clone(&self.base) as Arc<dyn BlockDevice>);
        let model = Model::new(copy, &disk(self.sizes.device)?)?;
        let moved = kero::drain_with(&model, kero::Options::default(), &mut |_| {}).map_err(failed)?;
        let report = model.report();
        Ok(Drained { time: report.time, device_bytes: report.bytes_written, home_bytes: moved.done })
    }
}

/// Creates the volume of a peer, with its layer; no time passes on a model.
fn new_volume(base: &Arc<Unflushed>, peer: &Peer, sizes: &Sizes) -> Result<()> {
    let time = Timestamp { seconds: BEGUN, nanos: 0 };
    let plain = MkfsOptions { uuid: [7; 16], hash_seed: [9; 16], time, ..MkfsOptions::new(peer.kind) };
    let mut options = MkfsOptions { block_size: Some(BLOCK as u32), discard: false, ..plain };
    let journal = if peer.bases == SHORT { sizes.short_log } else { sizes.log };
    options.journal_mib = (peer.consistency.log() == Log::Journal).then_some((journal >> 20) as u32);
    let Some(under) = peer.layer else { return make(base.as_ref(), &options).map(drop).map_err(failed) };
    let log = if under == Under::Short { sizes.short_log } else { sizes.log };
    let used = under == Under::Used;
    let layer = FormatOptions { log: Some(log), empty: !used, uuid: Some([5; 16]), ..FormatOptions::default() };
    if used {
        let blocks = (log / BLOCK) as u32;
        let layout = Layout::new(sizes.device / BLOCK, blocks, Layout::segment_for(blocks)).map_err(failed)?;
        options.len = Some(u64::from(layout.data) * BLOCK);
        make(base.as_ref(), &options).map_err(failed)?;
        return kero::format(base, &layer).map_err(failed);
    }
    kero::format(base, &layer).map_err(failed)?;
    let layer = Kero::open(Arc::clone(base), kero::Options::default()).map_err(failed)?;
    make(&layer, &options).map(drop).map_err(failed)
}

fn layered(before: Stats, now: Stats, drained_bytes: u64) -> Layered {
    let work = Stats {
        written_bytes: now.written_bytes - before.written_bytes,
        log_bytes: now.log_bytes - before.log_bytes,
        superblock_bytes: now.superblock_bytes - before.superblock_bytes,
        in_place_bytes: now.in_place_bytes - before.in_place_bytes,
        gone_home_bytes: now.gone_home_bytes - before.gone_home_bytes,
        ..Stats::default()
    };
    Layered {
        write_factor: work.write_factor(),
        groups: now.groups - before.groups,
        split: now.split - before.split,
        home_bytes: work.gone_home_bytes,
        again_bytes: now.again_bytes - before.again_bytes,
        laps: work.log_bytes as f64 / now.log_size.max(1) as f64,
        in_log: now.log_mapped,
        drained_bytes,
    }
}

/// Work on a volume whose generations close by amount of work instead of by time.
pub(crate) struct Job<'a> {
    volume: &'a Volume,
    disk: &'a Model<Arc<Unflushed>>,
    layer: Option<&'a Kero<Disk>>,
    /// Bytes of content after which a generation closes.
    generation: u64,
    content: Vec<u8>,
    buffer: Vec<u8>,
    pending: u64,
    files: u64,
    written: u64,
    read: u64,
    read_time: Duration,
}

const FILE: NewFile = NewFile { kind: FileKind::Regular, mode: 0o644, umask: 0, uid: 0, gid: 0, device: (0, 0) };

impl Job<'_> {
    /// Creates an empty file.
    pub(crate) fn create(&mut self, dir: InodeNo, name: &str) -> fs::Result<InodeNo> {
        let number = self.volume.create(dir, name.as_bytes(), &FILE)?.number;
        self.add_work(1, 0)?;
        Ok(number)
    }

    /// Creates a directory in the root.
    pub(crate) fn dir(&mut self, name: &str) -> fs::Result<InodeNo> {
        let new = NewFile { kind: FileKind::Directory, mode: 0o755, ..FILE };
        let number = self.volume.create(InodeNo::ROOT, name.as_bytes(), &new)?.number;
        self.add_work(1, 0)?;
        Ok(number)
    }

    pub(crate) fn unlink(&mut self, dir: InodeNo, name: &str) -> fs::Result<()> {
        self.volume.unlink(dir, name.as_bytes())?;
        self.add_work(1, 0)
    }

    /// Writes `bytes` bytes of content from byte `offset` on.
    pub(crate) fn write(&mut self, file: InodeNo, offset: u64, bytes: u64) -> fs::Result<()> {
        let mut done = 0;
        while done < bytes {
            let piece = (bytes - done).min(PIECE as u64);
            self.volume.write_at(file, offset + done, &self.content[..piece as usize])?;
            done += piece;
            self.written += piece;
            self.add_work(0, piece)?;
        }
        Ok(())
    }

    /// Reads `bytes` bytes of content from byte `offset` on.
    pub(crate) fn read(&mut self, file: InodeNo, offset: u64, bytes: u64) -> fs::Result<()> {
        let begun = self.disk.clock();
        let inode = self.volume.inode(file)?;
        let mut done = 0;
        while done < bytes {
            let piece = (bytes - done).min(PIECE as u64);
            self.volume.read_at(&inode, offset + done, &mut self.buffer[..piece as usize])?;
            done += piece;
        }
        self.read += bytes;
        self.read_time += self.disk.clock() - begun;
        Ok(())
    }

    /// Makes a file durable.
    pub(crate) fn fsync(&mut self, file: InodeNo) -> fs::Result<()> {
        self.set_time();
        self.pending = 0;
        self.volume.fsync(file, false)
    }

    fn add_work(&mut self, files: u64, bytes: u64) -> fs::Result<()> {
        (self.files, self.pending) = (self.files + files, self.pending + bytes);
        if self.files >= GENERATION_FILES || self.pending >= self.generation {
            (self.files, self.pending) = (0, 0);
            self.set_time();
            self.volume.sync()?;
        }
        Ok(())
    }

    /// Sets the layer's time, which determines the hot blocks, to that of the disk.
    fn set_time(&self) {
        if let Some(layer) = self.layer {
            // no group ends by time here, so that nothing can fail
            drop(layer.tick(self.disk.clock()));
        }
    }
}

/// Sets the ratios of each row.
pub(crate) fn compare(rows: &mut [Worked]) {
    let of = |peer: &str, work: &str| {
        let row = rows.iter().find(|row| row.peer == peer && row.work == work);
        row.map_or((0.0, 0.0), |row| (row.seconds, row.home_seconds))
    };
    let bases = |row: &Worked| PEERS.iter().find(|peer| peer.name == row.peer).map_or(LONG, |peer| peer.bases);
    let times: Vec<_> = rows.iter().map(|row| bases(row).map(|peer| of(peer, &row.work))).collect();
    let ratio = |seconds: f64, base: f64| if base > 0.0 { seconds / base } else { 0.0 };
    for (row, [journal, ordered]) in rows.iter_mut().zip(times) {
        row.to_journal = ratio(row.seconds, journal.0);
        row.to_ordered = ratio(row.seconds, ordered.0);
        row.home_to_journal = ratio(row.home_seconds, journal.1);
        row.home_to_ordered = ratio(row.home_seconds, ordered.1);
    }
}
