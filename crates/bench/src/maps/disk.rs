//! Volumes of Extant on a modelled disk, whose requests are counted.

use super::contents::Contents;
use super::figures::{BITMAPS, FLEXIBLE, Free, Mounted, Options, SPACE_MAPS, Worked};
use super::free_space;
use super::work::{FILE, Job, LARGE, METABLOCKGROUP};
use crate::error::{Trying, failed};
use crate::interruption;
use crate::{Error, Result};
use blockdev::{BlockDevice, FileDevice};
use fs::mkfs::{FeatureEdits, Kind, MkfsOptions, make};
use fs::{AllocateMode, InodeNo, OpenOptions, Timestamp, Volume, WriteOptions};
use simdev::{Model, Parameters, Trace};
use std::path::Path;
use std::sync::Arc;

/// Block size of the volume that is opened in the paper, in bytes.
pub(super) const LARGE_BLOCK: u32 = 4096;
/// Bytes of the modelled disk, or more where the volume is longer.
const DISK: u64 = 1_465_149_168 * 512;
/// One-block holes in each metablockgroup of the volume that is opened, except the last tenth, which is empty.
const HOLES: u64 = 2000;
/// Cache size in bytes for metadata; half of it for bitmaps.
const CACHE: usize = 4 << 20;

/// The size of a volume.
#[derive(Debug, Clone, Copy)]
pub(super) struct VolumeSize {
    /// Length in bytes.
    pub(super) size: u64,
    /// Block size in bytes.
    pub(super) block_size: u32,
}

/// A modelled disk with a volume.
pub(super) struct Disk {
    device: Arc<Trace<Arc<Model<FileDevice>>>>,
    model: Arc<Model<FileDevice>>,
    contents: Contents,
    seed: u64,
}

impl Disk {
    /// Runs `work` on a new volume in `options.dir`, which is removed afterwards.
    ///
    /// # Errors
    /// Those of making the volume, and of the work.
    pub(super) fn with<T>(
        options: &Options,
        volume_size: VolumeSize,
        layout: &'static str,
        work: impl FnOnce(&Self) -> Result<T>,
    ) -> Result<T> {
        let path = options.dir.join("maps.img");
        let _registered = interruption::file(&path)?;
        let outcome = Self::make(&path, layout, volume_size, options.seed).and_then(|disk| work(&disk));
        let removed = std::fs::remove_file(&path).trying("remove", &path);
        outcome.and_then(|outcome| removed.map(|()| outcome))
    }

    fn make(path: &Path, layout: &str, volume_size: VolumeSize, seed: u64) -> Result<Self> {
        std::fs::File::create(path).and_then(|file| file.set_len(volume_size.size)).trying("make", path)?;
        let write = blockdev::OpenOptions { write: true, ..Default::default() };
        let capacity = volume_size.size.max(DISK);
        let disk = Parameters::parse(&format!("kind = disk\ncapacity = {capacity}"))?;
        let model = Arc::new(Model::new(FileDevice::open(path, write)?, &disk)?);
        let kind = if layout == SPACE_MAPS { Kind::SpaceMap } else { Kind::Ext4 };
        let plain = MkfsOptions::new(kind);
        let mut made =
            MkfsOptions { uuid: [7; 16], hash_seed: [9; 16], block_size: Some(volume_size.block_size), ..plain };
        made.lazy_inode_tables = true;
        made.discard = false;
        if layout != BITMAPS {
            let mut edits = FeatureEdits::default();
            for feature in ["sparse_super2", "^resize_inode"] {
                edits.add(feature).map_err(|e| Error::Failed(e.to_string()))?;
            }
            made.features = edits;
            made.backup_superblocks = 0;
        }
        if layout == FLEXIBLE {
            made.groups_per_flex = Some(groups_per_flex(volume_size.block_size));
        }
        make(model.as_ref(), &made).map_err(|e| Error::Failed(e.to_string()))?;
        let device = Arc::new(Trace::with_events(Arc::clone(&model), usize::MAX));
        let contents = Contents::of(Arc::clone(&device) as Arc<dyn BlockDevice>)?;
        Ok(Self { device, model, contents, seed })
    }

    /// Opens the volume for writing, with the cache of the paper.
    ///
    /// # Errors
    /// [`Error::Failed`] if it cannot be opened.
    pub(super) fn open(&self) -> Result<Volume> {
        let time = Timestamp { seconds: 1_700_000_000, nanos: 0 };
        let write = WriteOptions {
            clock: Arc::new(move || time),
            seed: Some(self.seed),
            superuser: true,
            ..WriteOptions::default()
        };
        let device = Arc::clone(&self.device) as Arc<dyn BlockDevice>;
        let options = OpenOptions { write: Some(write), cache_bytes: CACHE, ..OpenOptions::default() };
        Volume::open(device, &options).map_err(failed)
    }

    /// Runs `job` on a newly opened volume, and counts the requests until all of it is durable.
    ///
    /// # Errors
    /// Those of the work.
    pub(super) fn measured(
        &self,
        work: String,
        layout: &'static str,
        job: impl FnOnce(&mut Job<'_, Volume>) -> Result<()>,
    ) -> Result<Worked> {
        let volume = self.open()?;
        self.device.reset();
        let start = self.model.report().time;
        job(&mut Job::new(&volume))?;
        volume.sync().map_err(failed)?;
        let seconds = (self.model.report().time - start).as_secs_f64();
        let counted = self.contents.count(&self.device.events());
        volume.unmount().map_err(failed)?;
        Ok(Worked::new(work, layout, counted, Some(seconds)))
    }

    /// Creates holes all over the volume, and opens it.
    ///
    /// # Errors
    /// Those of the volume.
    pub(super) fn opened(&self, layout: &'static str) -> Result<Mounted> {
        let volume = self.open()?;
        let size = volume.superblock().geometry.blocks * u64::from(LARGE_BLOCK);
        let count = size / METABLOCKGROUP;
        let full = count - count.div_ceil(10);
        holes(&volume, full)?;
        volume.unmount().map_err(failed)?;
        self.device.reset();
        let start = self.model.report().time;
        let passed = || (self.model.report().time - start).as_secs_f64();
        let volume = self.open()?;
        let open = passed();
        let near = volume.create(InodeNo::ROOT, b"near", &FILE).map_err(failed)?.number;
        volume.allocate_stale(near, 0, LARGE_BLOCK.into()).map_err(failed)?;
        let block = passed();
        let far = volume.create(InodeNo::ROOT, b"far", &FILE).map_err(failed)?.number;
        volume.allocate_stale(far, 0, LARGE).map_err(failed)?;
        let gib = passed();
        let requests = self.device.counters().reads.requests + self.device.counters().writes.requests;
        volume.unmount().map_err(failed)?;
        Ok(Mounted { layout, size, open, block, gib, requests })
    }

    /// The distribution of free space now.
    ///
    /// # Errors
    /// Those of the volume.
    pub(super) fn free(&self, layout: &'static str) -> Result<Free> {
        free_space::of(Arc::clone(&self.device) as Arc<dyn BlockDevice>, layout)
    }
}

/// Groups in a flexible group as large as a metablockgroup.
pub(super) fn groups_per_flex(block_size: u32) -> u32 {
    (METABLOCKGROUP / (8 * u64::from(block_size).pow(2))) as u32
}

/// Creates a file that fills each of the first metablockgroups, with holes at equal distances.
fn holes(volume: &Volume, metablockgroups: u64) -> Result<()> {
    let mut job = Job::new(volume);
    let dir = job.dir(&InodeNo::ROOT, "full")?;
    let step = METABLOCKGROUP / HOLES / u64::from(LARGE_BLOCK) * u64::from(LARGE_BLOCK);
    for n in 0..metablockgroups {
        let file = job.file(&dir, &n.to_string(), METABLOCKGROUP)?;
        for hole in 0..HOLES {
            volume.allocate(file, AllocateMode::PunchHole, hole * step, LARGE_BLOCK.into()).map_err(failed)?;
        }
        volume.sync().map_err(failed)?;
    }
    Ok(())
}
