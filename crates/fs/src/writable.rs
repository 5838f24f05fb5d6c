//! Opening for writing: its requirements, and its beginning.
//!
//! The reason for a refusal is one sentence; the caller may then open the volume for reading only.

use crate::alloc::{Space, SpaceOptions};
use crate::base::Writing;
use crate::engine::{NewEngine, PossibleMode};
use crate::{Consistency, Error, Maps, OpenOptions, Result, Timestamp, Warning, WriteOptions};
use format::feature::{Compat, Features, RoCompat};
use format::space_map::SpaceMaps;
use format::superblock::{DiskSuperblock, State};
use std::sync::Arc;

/// The read-only compatible features that a volume open for writing may have.
const WRITABLE: RoCompat = RoCompat::SPARSE_SUPER
    .union(RoCompat::LARGE_FILE)
    .union(RoCompat::HUGE_FILE)
    .union(RoCompat::GDT_CSUM)
    .union(RoCompat::DIR_NLINK)
    .union(RoCompat::EXTRA_ISIZE)
    .union(RoCompat::METADATA_CSUM)
    .union(RoCompat::ORPHAN_PRESENT)
    .union(RoCompat::EXTANT_RO);

/// Minimum number of groups whose bitmaps stay cached between generations, whatever the options; else as many as fit
/// into the cache.
const LEAST_BITMAPS: usize = 16;
/// Maximum number of bytes of delayed data on a volume with a heartbeat, so that writing them does not delay it.
const MOST_BETWEEN_HEARTBEATS: usize = 64 << 20;

/// The reason why a volume with these features cannot be written; `None` if the features do not prevent it.
#[must_use]
pub fn unwritable(features: &Features) -> Option<String> {
    let unknown = Features { ro_compat: features.ro_compat - WRITABLE, ..Features::default() };
    let names = || format!("writing is not supported with {}", unknown.names().join(", "));
    (!unknown.ro_compat.is_empty()).then(names)
}

impl Maps {
    /// Begins writing to a volume whose journal, if it has one, is empty. The cache has `cache` bytes.
    pub(crate) fn start_writing(&mut self, mut options: WriteOptions, cache: usize) -> Result<()> {
        if self.sb.mmp_block().is_some() {
            options.delayed_bytes = options.delayed_bytes.min(MOST_BETWEEN_HEARTBEATS);
        }
        let mode = self.mode_for(&options)?;
        let engine = mode.engine(self, &options)?;
        self.start_with(engine, mode.consistency, options, cache)
    }

    /// As [`Maps::start_writing`], with this engine.
    pub(crate) fn start_with(
        &mut self,
        engine: NewEngine,
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
            copies: options.data.copies_content(),
            placement: options.placement,
            seed: options.seed(),
            journal: self.journal_blocks(),
            bitmaps: (cache / (2 * block_size as usize)).max(LEAST_BITMAPS),
            clock: Arc::clone(&options.clock),
        };
        let superblock = mounted(&self.sb.disk, &options, (options.clock)());
        let space = Arc::new(Space::load(self, superblock, space)?);
        engine.start(&self.base.disk.store, Arc::clone(&space), options.commit)?;
        self.base.writing = Some(Writing::new(options, consistency, &limits, space));
        Ok(())
    }

    /// Checks the requirements for writing that do not depend on the replay of the journal.
    pub(crate) fn may_be_written(&self, open: &OpenOptions) -> Result<()> {
        if let Some(write) = &open.write {
            // before anything is written, such as a replayed journal
            self.possible_mode(write)?;
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
            return refuse("it was opened with a backup superblock");
        }
        if open.snapshot.is_some() {
            return refuse("it is a snapshot");
        }
        if open.ignore_journal {
            return refuse("it was opened without its journal (norecovery)");
        }
        if self.warnings().iter().any(|warning| matches!(warning, Warning::Truncated { .. })) {
            return refuse("the device ends before the volume does");
        }
        if self.has_journal() && self.sb.journal_inode().is_none() {
            return refuse("its journal is on another device");
        }
        self.has_no_errors()
    }

    /// Checks that the content of the journal may be written home.
    pub(crate) fn may_be_replayed(&self) -> Result<()> {
        for warning in self.warnings() {
            match warning {
                Warning::JournalDamaged(_) => {
                    return refuse("its journal is damaged; it needs a check first: run `extant check -fy`");
                }
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
            return refuse("it is marked as having errors; it needs a check first: run `extant check -fy`");
        }
        Ok(())
    }

    /// The consistency mode requested by the options, if the volume can have it.
    fn mode_for(&self, options: &WriteOptions) -> Result<&'static PossibleMode> {
        let mode = self.possible_mode(options)?;
        // replay may have marked the volume as having errors
        self.has_no_errors()?;
        if !self.state().contains(State::VALID) && !mode.takes_unclean {
            return refuse("it was not unmounted; it needs a check first: run `extant check -fy`");
        }
        Ok(mode)
    }
}

fn refuse<T>(why: &str) -> Result<T> {
    Err(Error::ReadOnly(format!("the volume cannot be written: {why}")))
}

/// The superblock of a volume at the beginning of a mount.
fn mounted(disk: &DiskSuperblock, options: &WriteOptions, now: Timestamp) -> DiskSuperblock {
    let mut sb = *disk;
    sb.s_mnt_count = sb.s_mnt_count.get().saturating_add(1).into();
    sb.s_mtime = (now.seconds as u32).into();
    sb.s_mtime_hi = (now.seconds >> 32) as u8;
    if let Some(path) = &options.mounted_at {
        // terminated by a zero byte
        let length = path.len().min(sb.s_last_mounted.len() - 1);
        sb.s_last_mounted = [0; 64];
        sb.s_last_mounted[..length].copy_from_slice(&path[..length]);
    }
    sb
}
