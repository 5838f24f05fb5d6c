//! A file system that contains only the blocks of one file: each is metadata, free, or file data.

use crate::common::{block_size, content, journal_runs, runs_of};
use blockdev::{BlockDevice, MemoryDevice};
use extant_store::engine::{Journal, JournalOptions};
use extant_store::recovery::{self, BlockExtent, Recovery};
use extant_store::{Closing, CommitHooks, Kind, Result, StateSource, Store, Tag, VolumeState};
use format::feature::{Incompat, RoCompat};
use format::jbd2;
use format::superblock::DiskSuperblock;
use format::{FsBlock, InodeNo};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use testkit::{Image, Rng};
use zerocopy::{FromBytes, IntoBytes};

/// A volume with a journal and a file whose blocks may have any content.
pub(crate) struct Volume {
    pub(crate) bytes: Vec<u8>,
    pub(crate) size: usize,
    pub(crate) journal: Vec<BlockExtent>,
    /// The file's blocks.
    pub(crate) blocks: Vec<u64>,
}

impl Volume {
    /// A volume made by mke2fs, with a file of `blocks` blocks.
    pub(crate) fn new(args: &[&str], mib: u64, blocks: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let image = Image::mke2fs(args, mib << 20);
        let probe = Image::mke2fs(args, mib << 20).build();
        let size = block_size(&probe.bytes()) as usize;
        std::fs::write(folder.path().join("file"), vec![0xEE; blocks * size]).unwrap();
        let image = image.with_folder(folder.path()).build();
        let journal = journal_runs(&image);
        let runs = runs_of(&image, "/file");
        let blocks = runs.iter().flat_map(|run| run.first.get()..run.first.get() + run.count).collect();
        Self { bytes: image.bytes(), size, journal, blocks }
    }

    /// Changes the journal's superblock.
    pub(crate) fn set_journal(&mut self, change: impl FnOnce(&mut jbd2::DiskSuperblock)) {
        let at = self.journal[0].first.get() as usize * self.size;
        let mut sb = jbd2::DiskSuperblock::read_from_bytes(&self.bytes[at..at + 1024]).unwrap();
        change(&mut sb);
        sb.set_checksum();
        self.bytes[at..at + 1024].copy_from_slice(sb.as_bytes());
    }

    pub(crate) fn device(&self) -> Arc<MemoryDevice> {
        Arc::new(MemoryDevice::from_vec(self.bytes.clone()))
    }

    pub(crate) fn place(&self, device: Arc<dyn BlockDevice>) -> recovery::JournalLocation {
        recovery::JournalLocation::internal(device, self.size as u32, self.journal.iter().copied())
    }

    pub(crate) fn options(&self) -> JournalOptions {
        let features = DiskSuperblock::from_slice(&self.bytes[1024..]).unwrap().features();
        JournalOptions {
            journal_data: false,
            checksums: features.ro_compat.contains(RoCompat::METADATA_CSUM),
            wide: features.incompat.contains(Incompat::BIT64),
            dirty_blocks: 1 << 20,
            clock: Arc::new(|| Duration::new(1_600_000_000, 77)),
        }
    }

    /// Recovers the journal and writes it home.
    pub(crate) fn replay(&self, device: &Arc<dyn BlockDevice>) -> Result<()> {
        let recovered = recovery::recover(&self.place(Arc::clone(device)), self.bytes.len() as u64 / self.size as u64)?;
        recovered.apply(&**device)
    }

    pub(crate) fn read(&self, device: &dyn BlockDevice, block: u64) -> Vec<u8> {
        let mut bytes = vec![0; self.size];
        device.read(block * self.size as u64, &mut bytes).unwrap();
        bytes
    }
}

/// The commit hooks: own the superblock, and add it to every generation.
pub(crate) struct Toy {
    superblock: Mutex<DiskSuperblock>,
    size: usize,
    pub(crate) durable: AtomicU64,
}

pub(crate) fn tag(kind: Kind) -> Tag {
    Tag::new(kind, InodeNo(12))
}

impl Toy {
    pub(crate) fn new(device: &dyn BlockDevice, size: usize) -> Self {
        let mut bytes = [0; 1024];
        device.read(1024, &mut bytes).unwrap();
        let superblock = Mutex::new(DiskSuperblock::from_slice(&bytes).unwrap());
        Self { superblock, size, durable: AtomicU64::new(0) }
    }
}

fn needs_recovery(sb: &mut DiskSuperblock, needs: bool) {
    let others = sb.s_feature_incompat.get() & !Incompat::NEEDS_RECOVERY.bits();
    sb.s_feature_incompat = (others | if needs { Incompat::NEEDS_RECOVERY.bits() } else { 0 }).into();
    sb.set_checksum();
}

impl CommitHooks for Toy {
    fn finish(&self, closing: &Closing<'_>) -> Result<()> {
        let mut sb = self.superblock.lock();
        sb.s_kbytes_written = (sb.s_kbytes_written.get() + 1).into();
        needs_recovery(&mut sb, true);
        let (block, at) = (1024 / self.size, 1024 % self.size);
        let put = |bytes: &mut [u8]| bytes[at..at + 1024].copy_from_slice(sb.as_bytes());
        closing.edit(FsBlock(block as u64), tag(Kind::Superblock), put)
    }

    fn set_checksum(&self, _: FsBlock, _: &Tag, _: &mut [u8]) {}

    fn durable(&self, generation: u64) {
        self.durable.store(generation, Ordering::SeqCst);
    }
}

impl StateSource for Toy {
    fn with_state(&self, state: VolumeState) -> (u64, Arc<[u8]>) {
        let mut sb = self.superblock.lock();
        needs_recovery(&mut sb, state == VolumeState::NeedsReplay);
        (1024, Arc::from(sb.as_bytes()))
    }
}

/// Opens a store over `device` that writes through the journal.
pub(crate) fn open(volume: &Volume, device: &Arc<dyn BlockDevice>, options: JournalOptions) -> (Arc<Toy>, Store) {
    let store = Store::new(Arc::clone(device), volume.size as u32, 64 * volume.size);
    let toy = Arc::new(Toy::new(&**device, volume.size));
    let engine = Journal::new(volume.place(Arc::clone(device)), options).unwrap();
    store.start_writing(Box::new(engine), toy.clone(), Duration::from_secs(5)).unwrap();
    (toy, store)
}

/// The content of the file's blocks: `None` for a free block, whose content is undefined.
pub(crate) type State = BTreeMap<u64, Option<Vec<u8>>>;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Metadata,
    /// Freed in that generation.
    Free(u64),
    Data,
}

/// Random work on the file's blocks, and the state that each generation leaves.
pub(crate) struct Work {
    pub(crate) rng: Rng,
    roles: BTreeMap<u64, Role>,
    now: State,
    /// The content of the volume after the recovery of that generation and no later one.
    pub(crate) states: BTreeMap<u64, State>,
    /// The maximum number of blocks that one operation changes.
    most: u64,
}

impl Work {
    pub(crate) fn new(volume: &Volume, rng: Rng, most: u64) -> Self {
        let roles = volume.blocks.iter().map(|&block| (block, Role::Metadata)).collect();
        let now: State = volume.blocks.iter().map(|&block| (block, Some(vec![0xEE; volume.size]))).collect();
        Self { rng, roles, states: BTreeMap::from([(0, now.clone())]), now, most }
    }

    /// Executes one operation.
    pub(crate) fn step(&mut self, store: &Store, size: usize) {
        let count = self.rng.between(1, self.most);
        let op = store.begin(count as usize + 4).unwrap();
        let generation = op.generation();
        let durable = store.durable_generation();
        let blocks: Vec<u64> = self.roles.keys().copied().collect();
        for _ in 0..count {
            // some blocks are hot
            let block = if self.rng.chance(30) { blocks[self.rng.index(5)] } else { *self.rng.pick(&blocks) };
            let bytes = content(&mut self.rng, size);
            let frees = self.rng.chance(25);
            let (role, now) = match self.roles[&block] {
                Role::Metadata | Role::Data if frees => {
                    match self.roles[&block] {
                        Role::Metadata => op.forget(FsBlock(block), 1),
                        _ => op.forget_data(FsBlock(block), 1),
                    }
                    (Role::Free(generation), None)
                }
                Role::Metadata => {
                    let half = size / 2;
                    let put = |old: &mut [u8]| old[half..].copy_from_slice(&bytes[half..]);
                    op.edit(FsBlock(block), tag(Kind::Directory), put).unwrap();
                    let mut now = self.now[&block].clone().unwrap();
                    now[half..].copy_from_slice(&bytes[half..]);
                    (Role::Metadata, Some(now))
                }
                // as metadata it may be reused immediately, for both contents are in the log in order
                Role::Free(_) if self.rng.chance(40) => {
                    op.fresh(FsBlock(block), tag(Kind::Directory), |new| new.copy_from_slice(&bytes));
                    (Role::Metadata, Some(bytes))
                }
                Role::Free(freed) if freed <= durable => {
                    op.write_data(InodeNo(12), FsBlock(block), 0, &bytes).unwrap();
                    (Role::Data, Some(bytes))
                }
                unchanged => (unchanged, self.now[&block].clone()),
            };
            self.roles.insert(block, role);
            self.now.insert(block, now);
        }
        drop(op);
        self.states.insert(generation, self.now.clone());
    }
}
