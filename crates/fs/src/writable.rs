//! Opening for writing: whether a volume may be written, and how it is begun.
//!
//! What stands in the way is one sentence; the caller may then open the volume for reading only.

use crate::alloc::{Space, SpaceOptions};
use crate::writing::Writing;
use crate::{Consistency, Error, Note, OpenOptions, Result, Timestamp, Volume, WriteOptions};
use format::feature::{Compat, Features, Incompat, RoCompat};
use format::superblock::{DiskSuperblock, State};
use std::sync::Arc;
use store::engine::{DirtyBit, Unordered};
use store::{Engine, Mark};

/// Features a volume may have that is written.
const WRITABLE: RoCompat = RoCompat::SPARSE_SUPER
    .union(RoCompat::LARGE_FILE)
    .union(RoCompat::HUGE_FILE)
    .union(RoCompat::GDT_CSUM)
    .union(RoCompat::DIR_NLINK)
    .union(RoCompat::EXTRA_ISIZE)
    .union(RoCompat::METADATA_CSUM)
    .union(RoCompat::ORPHAN_PRESENT);

/// Bytes of bitmaps kept between generations.
const BITMAP_BYTES: usize = 32 << 20;

impl Volume {
    /// Begins writing to a volume that was opened.
    pub(crate) fn start_writing(&mut self, open: &OpenOptions, options: WriteOptions) -> Result<()> {
        let consistency = self.may_be_written(open, &options)?;
        let state = State::from_bits_retain(self.sb.disk.s_state.get());
        let now = (options.clock)();
        let in_use = if consistency == Consistency::Journal { Mark::NeedsReplay } else { Mark::NeedsCheck };
        let block_size = self.sb.geometry.block_size;
        let seed = options.seed.unwrap_or((now.seconds as u64) << 30 ^ u64::from(now.nanos));
        let space = SpaceOptions {
            in_use,
            was_valid: state.contains(State::VALID),
            hold_data: consistency == Consistency::Journal,
            seed,
            bitmaps: (BITMAP_BYTES / (2 * block_size as usize)).max(64),
            clock: Arc::clone(&options.clock),
        };
        let space = Arc::new(Space::load(self, mounted(&self.sb.disk, &options, now), space)?);
        let dirty_blocks = (options.dirty_bytes / block_size as usize).max(256);
        let engine: Box<dyn Engine> = match consistency {
            Consistency::None => Box::new(Unordered::new(block_size, dirty_blocks)),
            Consistency::DirtyBit | Consistency::Journal => Box::new(DirtyBit::new(block_size, dirty_blocks)),
        };
        self.store.start_writing(engine, Arc::clone(&space) as Arc<dyn store::Client>, options.commit)?;
        self.writing = Some(Writing::new(options, consistency, space));
        Ok(())
    }

    /// Whether the volume may be written, and with which consistency.
    fn may_be_written(&self, open: &OpenOptions, options: &WriteOptions) -> Result<Consistency> {
        let refuse = |why: &str| Err(Error::ReadOnly(format!("the volume can only be read: {why}")));
        let Features { compat, incompat, ro_compat } = self.sb.features;
        let unknown =
            Features { compat: Compat::empty(), incompat: Incompat::empty(), ro_compat: ro_compat - WRITABLE };
        if !unknown.ro_compat.is_empty() {
            return refuse(&format!("writing is not supported with {}", unknown.names().join(", ")));
        }
        if self.device().geometry().read_only {
            return refuse("the device is read-only");
        }
        if self.backup.is_some() {
            return refuse("it was opened with a copy of its superblock");
        }
        if open.ignore_journal {
            return refuse("its journal was ignored");
        }
        for note in self.notes() {
            match note {
                Note::Truncated { .. } => return refuse("the device ends before the volume does"),
                Note::HasErrors => return refuse("it is marked as having errors; it needs a check first"),
                Note::JournalDamaged(_) => return refuse("its journal is damaged; it needs a check first"),
                Note::FastCommits { .. } => return refuse("its journal ends in fast commits, which are not replayed"),
                Note::JournalReplayed => return refuse("its journal has to be replayed first"),
                _ => {}
            }
        }
        if incompat.contains(Incompat::MMP) {
            return refuse("multiple-mount protection is not supported for writing");
        }
        let has_journal = compat.contains(Compat::HAS_JOURNAL);
        if has_journal && self.sb.journal_inode().is_none() {
            return refuse("its journal is on another device");
        }
        let consistency = options.consistency.unwrap_or(Consistency::DirtyBit);
        if consistency == Consistency::Journal {
            return refuse("it has no journal");
        }
        let sound = State::from_bits_retain(self.sb.disk.s_state.get()).contains(State::VALID);
        if !sound && consistency != Consistency::None {
            return refuse("it was not unmounted; it needs a check first");
        }
        Ok(consistency)
    }
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
