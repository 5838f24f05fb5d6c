//! Linked writes (after Henson, Brown, Ts'o, van de Ven: *Reducing fsck time for ext2 file systems*, section 6): before
//! blocks are overwritten, a list on the volume describes the changes, so that only the changed structures are repaired
//! after a crash.
//!
//! 1. Stage 1 of a generation's plan: its slot of the list, the blocks that nothing durable references, and the in-use
//!    mark if the volume was marked clean; a flush. Stage 2: all other changed blocks. So at every instant the device
//!    has the previous generation completely, this one in part, and this one's slot completely.
//! 2. Slots are numbered in the order of writing and alternate between two areas. A slot states whether the changes
//!    described by the previous one were durable when it was written.
//! 3. Stage 1's flush makes the previous generation durable. A second flush, for callers that wait, makes this one
//!    durable.
//! 4. If the slot contains a whole inode, so that recovery may roll it forward, a flush precedes stage 1 if content was
//!    written: the content that the inode references is on the device.
//! 5. A generation that a slot cannot describe writes an *incomplete* one. Until the generation is durable, a crash is
//!    followed by a full check.
//!
//! The clean mark is that of [`DirtyBit`](super::DirtyBit): see [`CleanMark`].

mod describe;

use super::clean_mark::{CleanMark, QUIET};
use super::{Engine, Idle, Limits, home_writes};
use crate::mutant::{Injected, Mutant};
use crate::recovery::linked::List;
use crate::{ClosedGeneration, CommitReason, Kind, Plan, PlannedWrite, Result, Stage, StateSource, VolumeState};
use describe::Describe;
use format::linked::{PREVIOUS_DURABLE, Slot, mount_sum};
use format::superblock::{DiskSuperblock, Superblock};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Totals of the engine's writes to the list. Bytes are those in use, without padding.
#[derive(Debug, Default)]
pub struct LinkedCounts {
    /// Slots.
    pub slots: AtomicU64,
    /// Incomplete slots.
    pub incomplete: AtomicU64,
    /// Bytes of records, including headers and whole inodes.
    pub record_bytes: AtomicU64,
    /// Bytes of copies of sectors.
    pub copy_bytes: AtomicU64,
    /// Plans with a flush before stage 1.
    pub flushes_before: AtomicU64,
}

/// The engine `linked`.
#[derive(Debug)]
pub struct Linked {
    list: List,
    limits: Limits,
    block_size: u32,
    inode_size: u32,
    uuid: [u8; 16],
    mount_before: u32,
    /// The volume's free blocks and inodes after the previous generation.
    free: (u32, u32),
    mark: CleanMark,
    counts: Arc<LinkedCounts>,
    mutant: Injected<Mutant>,
}

impl Linked {
    /// Creates the engine of a volume that is marked clean, whose superblock on the device is `sb`, with generations of
    /// at most `dirty_blocks` blocks.
    #[must_use]
    pub fn new(sb: &Superblock, list: List, dirty_blocks: usize) -> Self {
        let block_size = sb.geometry.block_size;
        // the changes of two generations fit into the redo area, unless operations are too large for that
        let most = (list.areas.redo / 2 / u64::from(block_size)) as usize;
        let limits = Limits {
            wants_change_records: true,
            defers_reuse: true,
            rests_after: Some(QUIET),
            ..Limits::new(VolumeState::NeedsCheck, dirty_blocks.min(most.max(LEAST_DIRTY)))
        };
        Self {
            list,
            limits,
            block_size,
            inode_size: sb.geometry.inode_size,
            uuid: sb.disk.s_uuid,
            mount_before: mount_sum(&sb.disk),
            free: (sb.disk.s_free_blocks_count_lo.get(), sb.disk.s_free_inodes_count.get()),
            mark: CleanMark::new(),
            counts: Arc::default(),
            mutant: Injected::default(),
        }
    }

    /// Injects a defect; only before the first plan.
    #[cfg(feature = "mutants")]
    #[doc(hidden)]
    #[must_use]
    pub fn mutated(self, mutant: Mutant) -> Self {
        Self { mutant: Injected::new(mutant), ..self }
    }

    /// The totals of its writes, which it updates while it is in use.
    #[must_use]
    pub fn counts(&self) -> Arc<LinkedCounts> {
        Arc::clone(&self.counts)
    }

    /// The next slot, without any description.
    fn next_slot(&self, superblock: &DiskSuperblock) -> Slot {
        let mut slot = Slot::empty(self.uuid, self.list.counter + 1, self.block_size, self.inode_size);
        let header = &mut slot.header;
        header.ll_mount_before = self.mount_before.into();
        header.ll_mount_after = mount_sum(superblock).into();
        header.ll_last_orphan = superblock.s_last_orphan;
        header.ll_compat = superblock.s_feature_compat;
        header.ll_ro_compat = superblock.s_feature_ro_compat;
        header.ll_free_blocks = self.free.0.into();
        header.ll_free_inodes = self.free.1.into();
        if !self.mark.unflushed {
            header.ll_flags = PREVIOUS_DURABLE.into();
        }
        slot
    }

    /// Returns the write of the next slot, and counts it.
    fn write_slot(&mut self, slot: &Slot) -> PlannedWrite {
        self.list.counter += 1;
        let counter = if self.mutant.is(Mutant::OneSlot) { 0 } else { self.list.counter };
        PlannedWrite {
            at: self.list.at + self.list.areas.slot_at(counter),
            data: slot.encode().into(),
            kind: Kind::Engine,
        }
    }

    fn home(&self, closed: &ClosedGeneration, fresh: bool) -> Vec<PlannedWrite> {
        home_writes(closed, self.block_size as usize, fresh).collect()
    }

    /// The plan of a generation without changes: nothing is written.
    fn plan_nothing(&mut self, closed: &ClosedGeneration) -> Plan {
        let flush = closed.reason == CommitReason::Sync && (closed.unflushed || self.mark.unflushed);
        let durable = if flush || !(closed.unflushed || self.mark.unflushed) { closed.number } else { 0 };
        let stages = if flush { vec![Stage { writes: Vec::new(), flush }] } else { Vec::new() };
        self.mark.unflushed &= !flush;
        Plan { stages, home: Vec::new(), durable }
    }

    /// The slot of a generation, and whether it contains whole inodes.
    fn describe(&mut self, closed: &ClosedGeneration, superblock: &DiskSuperblock) -> (Slot, bool) {
        let mut slot = self.next_slot(superblock);
        self.free = (superblock.s_free_blocks_count_lo.get(), superblock.s_free_inodes_count.get());
        let described = Describe::new(&mut slot).all(closed, self.mutant);
        let areas = &self.list.areas;
        let fits =
            slot.len() as u64 <= areas.slot && describe::most_sectors(&slot) * 512 * 2 <= areas.redo - areas.redo / 16;
        self.counts.slots.fetch_add(1, Ordering::Relaxed);
        if !described || !fits {
            slot.make_incomplete();
            self.counts.incomplete.fetch_add(1, Ordering::Relaxed);
        }
        let (all, records) = (slot.len(), slot.records_len());
        self.counts.record_bytes.fetch_add(records as u64, Ordering::Relaxed);
        self.counts.copy_bytes.fetch_add((all - records) as u64, Ordering::Relaxed);
        let whole = !slot.whole.is_empty();
        (slot, whole)
    }
}

/// The minimum number of blocks that a generation may change, however short the list: four of the largest operations.
const LEAST_DIRTY: usize = 512;

fn bytes_of(superblock: &dyn StateSource, state: VolumeState) -> DiskSuperblock {
    let (_, bytes) = superblock.with_state(state);
    // the block may begin before the superblock does
    let own = bytes.get(bytes.len().saturating_sub(DiskSuperblock::SIZE)..).unwrap_or_default();
    DiskSuperblock::from_slice(own)
        .or_else(|| DiskSuperblock::from_slice(&[0; DiskSuperblock::SIZE]))
        .unwrap_or_else(|| unreachable!("the array has the structure's size"))
}

impl Engine for Linked {
    fn limits(&self) -> Limits {
        self.limits
    }

    /// Voids the content of the list up to now: the next slot describes nothing, and states that everything before it
    /// was durable.
    fn open(&mut self, superblock: &dyn StateSource) -> Result<Plan> {
        let slot = self.next_slot(&bytes_of(superblock, VolumeState::Clean));
        let writes = vec![self.write_slot(&slot)];
        Ok(Plan { stages: vec![Stage { writes, flush: true }], ..Plan::default() })
    }

    fn plan(&mut self, closed: ClosedGeneration, superblock: &dyn StateSource) -> Result<Plan> {
        if closed.blocks.is_empty() {
            return Ok(self.plan_nothing(&closed));
        }
        let (mark_at, in_use) = superblock.with_state(VolumeState::NeedsCheck);
        let (slot, whole) = self.describe(&closed, &bytes_of(superblock, VolumeState::NeedsCheck));
        let mut stages = Vec::with_capacity(3);
        if whole && closed.unflushed {
            self.counts.flushes_before.fetch_add(1, Ordering::Relaxed);
            stages.push(Stage { writes: Vec::new(), flush: true });
        }
        let mut list = vec![self.write_slot(&slot)];
        let (mut fresh, mut others) = (self.home(&closed, true), self.home(&closed, false));
        if self.mutant.is(Mutant::FreshAfterList) {
            others.append(&mut fresh);
        }
        list.append(&mut fresh);
        if self.mark.take() {
            list.push(PlannedWrite { at: mark_at, data: in_use, kind: Kind::Superblock });
        }
        let flush = closed.reason == CommitReason::Sync;
        let (first, second) = if self.mutant.is(Mutant::ListAfterChanges) { (others, list) } else { (list, others) };
        let between = !self.mutant.is(Mutant::NoFlushAfterList);
        stages.push(Stage { writes: first, flush: between });
        stages.push(Stage { writes: second, flush });
        self.mark.unflushed = !flush;
        let durable = if flush { closed.number } else { closed.number.saturating_sub(1) };
        Ok(Plan { stages, home: closed.blocks.iter().map(|w| w.block).collect(), durable })
    }

    fn idle(&mut self, quiet: Duration, dirty: bool, superblock: &dyn StateSource) -> Idle {
        self.mark.idle(quiet, dirty, superblock)
    }

    fn close(&mut self, superblock: &dyn StateSource) -> Result<Plan> {
        Ok(self.mark.clean(superblock))
    }
}
