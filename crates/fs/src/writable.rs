//! Opening for writing: whether a volume may be written, and how it is begun.
//!
//! What stands in the way is one sentence; the caller may then open the volume for reading only.

use crate::alloc::{Space, SpaceOptions};
use crate::base::Writing;
use crate::{Consistency, DataMode, Error, Maps, OpenOptions, Result, Timestamp, Warning, WriteOptions, memory_budget};
use format::feature::{Compat, Features, Incompat, RoCompat};
use format::space_map::SpaceMaps;
use format::superblock::{DiskSuperblock, State};
use std::sync::Arc;
use std::time::Duration;
use store::Engine;
use store::engine::{CopyOnWrite, DirtyBit, Journal, JournalOptions, Linked, NativeUnordered, Unordered};

/// Features a volume may have that is written.
const WRITABLE: RoCompat = RoCompat::SPARSE_SUPER
    .union(RoCompat::LARGE_FILE)
    .union(RoCompat::HUGE_FILE)
    .union(RoCompat::GDT_CSUM)
    .union(RoCompat::DIR_NLINK)
    .union(RoCompat::EXTRA_ISIZE)
    .union(RoCompat::METADATA_CSUM)
    .union(RoCompat::ORPHAN_PRESENT)
    .union(RoCompat::EXTANT_RO);

/// Groups whose bitmaps stay cached between generations, whatever the options say; else as many as fit into the cache.
const LEAST_BITMAPS: usize = 16;
/// Blocks that a generation may hold, whatever the options say: four of the largest operations.
const LEAST_DIRTY: usize = 512;

/// Most bytes of content that may have to be written between two signs that the volume is in use.
const MOST_BETWEEN_SIGNS: usize = 64 << 20;

const SNAPSHOT_OR_NONE: Error = Error::Impossible("a native volume is written with `consistency=snapshot` or `none`");
const NEEDS_NATIVE: Error =
    Error::Impossible("`consistency=snapshot` needs a native volume, as `extant mkfs -t extant` makes it");

/// Why a volume with these features cannot be written; `None` where it can, as far as they say.
#[must_use]
pub fn unwritable(features: &Features) -> Option<String> {
    let unknown = Features { ro_compat: features.ro_compat - WRITABLE, ..Features::default() };
    let names = || format!("writing is not supported with {}", unknown.names().join(", "));
    (!unknown.ro_compat.is_empty()).then(names)
}

impl Maps {
    /// Begins writing to a volume whose journal, if it has one, is empty.
    /// The cache has `cache` bytes.
    pub(crate) fn start_writing(&mut self, mut options: WriteOptions, cache: usize) -> Result<()> {
        if self.sb.mmp_block().is_some() {
            options.delayed_bytes = options.delayed_bytes.min(MOST_BETWEEN_SIGNS);
        }
        let consistency = self.consistency_for(&options)?;
        let engine = self.engine(consistency, &options)?;
        self.start_with(engine, consistency, options, cache)
    }

    /// As [`Maps::start_writing`], with an engine that is there.
    pub(crate) fn start_with(
        &mut self,
        engine: Box<dyn Engine>,
        consistency: Consistency,
        options: WriteOptions,
        cache: usize,
    ) -> Result<()> {
        let block_size = self.sb.geometry.block_size;
        let limits = engine.limits();
        let space = SpaceOptions {
            in_use: limits.in_use,
            was_valid: self.state().contains(State::VALID),
            defer_content: limits.defers_reuse,
            defer_inodes: !limits.atomic,
            mutant: options.mutant(),
            copies: options.data == DataMode::CopyOnWrite,
            placement: options.placement,
            seed: options.seed(),
            journal: self.journal_blocks(),
            bitmaps: (cache / (2 * block_size as usize)).max(LEAST_BITMAPS),
            clock: Arc::clone(&options.clock),
        };
        let superblock = mounted(&self.sb.disk, &options, (options.clock)());
        let space = Arc::new(Space::load(self, superblock, space)?);
        self.base.disk.store.start_writing(
            engine,
            Arc::clone(&space) as Arc<dyn store::CommitHooks>,
            options.commit,
        )?;
        self.base.writing = Some(Writing::new(options, consistency, &limits, space));
        Ok(())
    }

    /// The engine that each format has for a consistency: here, and nowhere else, one is chosen.
    fn engine(&self, consistency: Consistency, options: &WriteOptions) -> Result<Box<dyn Engine>> {
        let block_size = self.sb.geometry.block_size;
        let budget = memory_budget::budget().transaction_blocks;
        let dirty_bytes = options.dirty_bytes.min(budget);
        let dirty_blocks = (dirty_bytes / block_size as usize).max(LEAST_DIRTY);
        let native = self.layout.native().map(|native| &native.mapped);
        Ok(match (consistency, native) {
            (Consistency::Snapshot, Some(mapped)) => {
                let mut engine = CopyOnWrite::new(mapped, dirty_blocks)?;
                engine.mutate(options.mutant(), mapped)?;
                Box::new(engine)
            }
            (Consistency::None, Some(mapped)) => Box::new(NativeUnordered::new(mapped, dirty_blocks)?),
            (Consistency::None, None) => Box::new(Unordered::new(block_size, dirty_blocks)),
            (Consistency::DirtyBit, None) => Box::new(DirtyBit::new(block_size, dirty_blocks)),
            (Consistency::Linked, None) => {
                Box::new(Linked::new(&self.sb, self.linked_list()?, dirty_blocks, options.mutant()))
            }
            (Consistency::Journal, None) => {
                let clock = Arc::clone(&options.clock);
                // content in the open generation, in the one that is committed, and twice as much in the log
                let content = budget / 4 / block_size as usize;
                let journals_data = options.data == DataMode::Journal;
                let dirty_blocks =
                    if journals_data { dirty_blocks.min(content.max(LEAST_DIRTY)) } else { dirty_blocks };
                let journal = JournalOptions {
                    journal_data: journals_data,
                    checksums: self.sb.geometry.metadata_csum,
                    wide: self.sb.features.incompat.contains(Incompat::BIT64),
                    dirty_blocks,
                    clock: Arc::new(move || since_1970(clock())),
                };
                Box::new(Journal::new(self.journal()?, journal)?)
            }
            // an engine that promises less would be a lie
            (Consistency::DirtyBit | Consistency::Linked | Consistency::Journal, Some(_)) => {
                return Err(SNAPSHOT_OR_NONE);
            }
            (Consistency::Snapshot, None) => return Err(NEEDS_NATIVE),
        })
    }

    /// Whether the volume may be written, as far as can be said before its journal is replayed.
    pub(crate) fn may_be_written(&self, open: &OpenOptions) -> Result<()> {
        if let Some(write) = &open.write {
            // before anything is written, as a replayed journal
            self.possible_consistency(write)?;
        }
        if let Some(why) = unwritable(&self.sb.features) {
            return refuse(&why);
        }
        if let Err(why) = SpaceMaps::of(&self.sb) {
            return refuse(&why.to_string());
        }
        if self.device().geometry().read_only {
            return refuse("the device is read-only");
        }
        if self.backup.is_some() {
            return refuse("it was opened with a copy of its superblock");
        }
        if open.snapshot.is_some() {
            return refuse("it is a snapshot");
        }
        if open.ignore_journal {
            return refuse("its journal was to be ignored");
        }
        if self.warnings().iter().any(|note| matches!(note, Warning::Truncated { .. })) {
            return refuse("the device ends before the volume does");
        }
        if self.has_journal() && self.sb.journal_inode().is_none() {
            return refuse("its journal is on another device");
        }
        self.has_no_errors()
    }

    /// Whether what was found in the journal may be written home.
    pub(crate) fn may_be_replayed(&self) -> Result<()> {
        for note in self.warnings() {
            match note {
                Warning::JournalDamaged(_) => return refuse("its journal is damaged; it needs a check first"),
                Warning::FastCommits { .. } => {
                    return refuse("its journal ends in fast commits, which are not replayed");
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn has_journal(&self) -> bool {
        self.sb.features.compat.contains(Compat::HAS_JOURNAL)
    }

    fn state(&self) -> State {
        State::from_bits_retain(self.sb.disk.s_state.get())
    }

    fn has_no_errors(&self) -> Result<()> {
        if self.state().contains(State::ERROR) {
            return refuse("it is marked as having errors; it needs a check first");
        }
        Ok(())
    }

    /// The mode by which the volume is to stay consistent, where it can.
    fn consistency_for(&self, options: &WriteOptions) -> Result<Consistency> {
        let consistency = self.possible_consistency(options)?;
        // the journal may have brought an error with it
        self.has_no_errors()?;
        if !self.state().contains(State::VALID) && consistency != Consistency::None {
            return refuse("it was not unmounted; it needs a check first");
        }
        Ok(consistency)
    }

    /// The consistency mode that is asked for, where a volume of this kind can have it.
    fn possible_consistency(&self, options: &WriteOptions) -> Result<Consistency> {
        let is_native = self.layout.native().is_some();
        let best = if is_native {
            Consistency::Snapshot
        } else if self.has_journal() {
            Consistency::Journal
        } else {
            Consistency::DirtyBit
        };
        let consistency = options.consistency.unwrap_or(best);
        let native = matches!(consistency, Consistency::Snapshot | Consistency::None);
        if is_native && !native {
            return Err(Error::Impossible("a native volume is written with `consistency=snapshot` or `none`"));
        }
        if !is_native && consistency == Consistency::Snapshot {
            return Err(Error::Impossible(
                "`consistency=snapshot` needs a native volume, as `extant mkfs -t extant` makes it",
            ));
        }
        if options.data == DataMode::CopyOnWrite && consistency != Consistency::Snapshot {
            return Err(Error::Impossible(
                "content is copied on write on native volumes with `consistency=snapshot` only",
            ));
        }
        if consistency == Consistency::Linked {
            self.linked_list()?;
        }
        if consistency == Consistency::Journal && !self.has_journal() {
            return Err(Error::Impossible("`consistency=journal` needs a journal, and it has none"));
        }
        let impossible = match (options.data, consistency) {
            _ if !options.data_insisted => None,
            (_, Consistency::Journal) | (DataMode::CopyOnWrite, _) | (DataMode::Ordered, Consistency::Snapshot) => None,
            (DataMode::Ordered, _) => Some("`data=ordered` needs a journal or a native volume"),
            (DataMode::Writeback, _) => Some("`data=writeback` needs a journal"),
            (DataMode::Journal, _) => Some("`data=journal` needs a journal"),
        };
        impossible.map_or(Ok(consistency), |why| Err(Error::Impossible(why)))
    }
}

fn refuse<T>(why: &str) -> Result<T> {
    Err(Error::ReadOnly(format!("the volume can only be read: {why}")))
}

/// A time before 1970 counts as 1970.
fn since_1970(time: Timestamp) -> Duration {
    Duration::new(u64::try_from(time.seconds).unwrap_or_default(), time.nanos)
}

/// The superblock of a volume that is mounted now.
fn mounted(disk: &DiskSuperblock, options: &WriteOptions, now: Timestamp) -> DiskSuperblock {
    let mut sb = *disk;
    sb.s_mnt_count = sb.s_mnt_count.get().saturating_add(1).into();
    sb.s_mtime = (now.seconds as u32).into();
    sb.s_mtime_hi = (now.seconds >> 32) as u8;
    if let Some(path) = &options.mounted_at {
        // ended by a zero byte
        let length = path.len().min(sb.s_last_mounted.len() - 1);
        sb.s_last_mounted = [0; 64];
        sb.s_last_mounted[..length].copy_from_slice(&path[..length]);
    }
    sb
}
