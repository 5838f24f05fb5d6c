//! The redo log: writes a set of changed blocks to a device so that an interruption at any write is harmless.
//!
//! 1. Blocks that were not in use are written at once: nothing refers to them before step 5. So are blocks that were
//!    free until they were allocated for the new content (`FreeBlocks::hand_out`).
//! 2. The new content of all other blocks is written to further free blocks first, the redo log, with an index of their
//!    home locations. Then a flush.
//! 3. The superblock is written with a pointer to the log, which changes one sector of it; a sector write is atomic. Then
//!    a flush.
//! 4. Where the superblock is marked clean, it is written with the state of a volume with errors. Then a flush: until
//!    the end no other program, which does not read the log, treats the volume as clean.
//! 5. The blocks are written to their home locations, a flush; the new superblock with the pointer, a flush; the
//!    superblock without the pointer, which changes one sector, a flush.
//!
//! Each of these superblocks matches its checksum, so other programs can open the volume at any time; if a write of
//! step 4 or 5 is torn, the pointer is still valid.
//!
//! After an interruption before the end of step 3 the volume is unchanged but for free blocks; after a later one, the
//! next run that finds the pointer repeats steps 4 and 5. The pointer states the contents of the superblock's first
//! sector under which it is valid: the old one, with or without the mark of step 4, and the new one. Any other writer
//! of the volume changes a time there, so the log is never written over its work.
//!
//! A journal is replayed and emptied before step 1 ([`Before`]): another program would replay it over the repair, and
//! remove the pointer with the superblock that the journal contains.
//!
//! Where there are not enough free blocks, or the geometry of the volume is unknown, the superblock is marked as in
//! step 4, and the blocks are written directly: those that were allocated for new content first, then a flush, the
//! others, a flush, and the superblock last. An interrupted run has then to be repeated, as with e2fsck.

mod interrupted_write;

use blockdev::undo::{self, Planned};
use blockdev::{BlockDevice, Overlay, Result, Write};
use format::GroupNo;
use format::checksum::crc32c;
use format::feature::RoCompat;
use format::redo::{DiskRedoEntry, DiskRedoIndex, DiskRedoPointer, INDEX_MAGIC, POINTER_AT, POINTER_MAGIC, SUPERBLOCK};
use format::superblock::{self, DiskSuperblock, Geometry, OFFSET, State};
pub(crate) use interrupted_write::{Finished, InterruptedWrite, has_lost_log, interrupted};
pub use interrupted_write::{finish, half_written, unfinished};
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;
use zerocopy::{FromBytes, IntoBytes};

/// The unit in bytes that a device writes atomically.
const SECTOR: u64 = 512;
/// Writes handed to the device at once.
const BATCH: usize = 64;

/// The blocks of a volume that are not in use, available for a log.
pub struct FreeBlocks {
    geometry: Geometry,
    /// A bit for each cluster in use, group by group.
    used: Vec<Vec<u64>>,
    /// Clusters that were free until they were allocated for the new content.
    handed_out: BTreeSet<u64>,
    /// All clusters that were allocated for the new content: nothing refers to them on the current volume.
    allocated: BTreeSet<u64>,
}

impl FreeBlocks {
    /// All blocks of a volume, before any is excluded.
    #[must_use]
    pub fn all(geometry: &Geometry) -> Self {
        let words = geometry.clusters_per_group().div_ceil(64) as usize;
        let used = geometry.group_numbers().map(|_| vec![0; words]).collect();
        Self { used, geometry: geometry.clone(), handed_out: BTreeSet::new(), allocated: BTreeSet::new() }
    }

    /// Excludes the clusters in use: `used` returns the bits of 64 clusters of a group, from `64 * n` on.
    pub fn exclude(&mut self, used: impl Fn(GroupNo, usize) -> u64) {
        for (group, words) in self.geometry.group_numbers().zip(&mut self.used) {
            for (n, word) in words.iter_mut().enumerate() {
                *word |= used(group, n);
            }
        }
    }

    /// Records clusters that were allocated for the new content: nothing on the current volume refers to them, and
    /// their content there is unused. Clusters that were in use before are skipped.
    pub(crate) fn hand_out(&mut self, clusters: impl IntoIterator<Item = u64>) {
        let free: Vec<u64> = clusters.into_iter().filter(|cluster| !self.is_used(*cluster)).collect();
        self.handed_out.extend(free);
    }

    /// Records clusters that were allocated for the new content, among them those that the volume's own record says are
    /// in use.
    pub(crate) fn allocate(&mut self, clusters: impl IntoIterator<Item = u64>) {
        self.allocated.extend(clusters);
    }

    /// Reverts both for clusters, in ascending ranges, that have another claim as well.
    pub(crate) fn take_back(&mut self, clusters: &[Range<u64>]) {
        for set in [&mut self.handed_out, &mut self.allocated] {
            for range in clusters {
                let disputed: Vec<u64> = set.range(range.clone()).copied().collect();
                disputed.iter().for_each(|cluster| _ = set.remove(cluster));
            }
        }
    }

    /// The volume's geometry.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn contains(&self, block: u64) -> bool {
        self.cluster_of(block).is_some_and(|cluster| !self.is_used(cluster))
    }

    /// Whether a block may be written before the log: it is free, or was until it was allocated for the new content.
    fn is_fresh(&self, block: u64) -> bool {
        let handed_out = |cluster| self.handed_out.contains(&cluster);
        self.cluster_of(block).is_some_and(|cluster| !self.is_used(cluster) || handed_out(cluster))
    }

    /// Whether a block was allocated for the new content.
    fn is_allocated(&self, block: u64) -> bool {
        self.cluster_of(block).is_some_and(|cluster| self.allocated.contains(&cluster))
    }

    /// The cluster of a block; `None` for the volume's first blocks and outside the volume.
    fn cluster_of(&self, block: u64) -> Option<u64> {
        let geometry = &self.geometry;
        let first = u64::from(geometry.first_data_block);
        (block >= first.max(1) && block < geometry.blocks).then(|| (block - first) / u64::from(geometry.cluster_blocks))
    }

    fn is_used(&self, cluster: u64) -> bool {
        let per_group = u64::from(self.geometry.clusters_per_group());
        let (group, place) = (cluster / per_group, cluster % per_group);
        let word = self.used.get(group as usize).and_then(|used| used.get((place / 64) as usize));
        word.is_none_or(|word| word >> (place % 64) & 1 == 1)
    }
}

/// The changes to write.
struct Plan<'a> {
    overlay: &'a Overlay,
    block_size: u64,
    /// Blocks that are free before and after the change, or were free until they were allocated for it; ascending.
    fresh: Vec<u64>,
    /// All other blocks, without the superblock.
    homes: Vec<u64>,
    /// Those of them that were allocated for the new content, although they are not known to be free.
    allocated: Vec<u64>,
    /// The superblock before the change and after it.
    before: Vec<u8>,
    after: Vec<u8>,
    /// The superblock while the blocks are written, marked with errors, where it differs from `before`.
    marked: Option<Vec<u8>>,
}

impl Plan<'_> {
    fn block(&self, block: u64) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.block_size as usize];
        self.overlay.read(block * self.block_size, &mut bytes)?;
        Ok(bytes)
    }

    /// The superblocks that are written with the pointer to a log, in this order.
    fn superblocks(&self) -> impl Iterator<Item = &Vec<u8>> {
        std::iter::once(&self.before).chain(&self.marked).chain([&self.after])
    }

    fn is_empty(&self) -> bool {
        self.fresh.is_empty() && self.homes.is_empty() && self.before == self.after
    }
}

/// Writes the blocks of the overlay to its underlying device, which must be `device`: all of them or none, where the
/// free blocks are known and have space for a log. `undo` names a file that receives the old content of every block
/// written.
///
/// # Errors
/// The error of the device or of the undo file.
pub fn write(
    device: &dyn BlockDevice,
    overlay: &Overlay,
    free: Option<&FreeBlocks>,
    undo: Option<&Path>,
) -> Result<()> {
    write_after(device, &Before { interrupted: None, finished: device, steps: Vec::new() }, overlay, free, undo)
}

/// The changes that precede a write.
pub(crate) struct Before<'a> {
    /// An interrupted write, which is finished first.
    pub(crate) interrupted: Option<&'a InterruptedWrite>,
    /// The state of the device after that.
    pub(crate) finished: &'a dyn BlockDevice,
    /// The states after the steps of a journal replay, each over the one before. They are written without a log or a
    /// mark: an interrupted replay is repeated, as the journal and the flag that requires it are still there.
    pub(crate) steps: Vec<Overlay>,
}

/// As [`write`], after other changes; `overlay` is over the state after them. The undo file covers all of them: nothing
/// is written before it is complete.
///
/// # Errors
/// The error of the device or of the undo file.
pub(crate) fn write_after(
    device: &dyn BlockDevice,
    before: &Before<'_>,
    overlay: &Overlay,
    free: Option<&FreeBlocks>,
    undo: Option<&Path>,
) -> Result<()> {
    let mut below = before.finished;
    let mut plans = Vec::new();
    for step in &before.steps {
        plans.push((Plan { marked: None, ..plan(below, step, None)? }, None));
        below = step;
    }
    let last = plan(below, overlay, free)?;
    let log = if last.is_empty() { None } else { log(&last, free, below)? };
    plans.push((last, log));
    plans.retain(|(plan, _)| !plan.is_empty());
    if plans.is_empty() && before.interrupted.is_none() {
        return Ok(());
    }
    if let Some(path) = undo {
        let first = before.interrupted.into_iter().flat_map(|interrupted| interrupted.changes(device));
        let planned = plans.iter().flat_map(|(plan, log)| changes(plan, log.as_ref()));
        undo::record(path, device, first.chain(planned))?;
    }
    if let Some(interrupted) = before.interrupted {
        interrupted.finish(device)?;
    }
    plans.into_iter().try_for_each(|(plan, log)| carry_out(device, &plan, log))
}

/// All writes of a plan, and the mark that an undo of them writes first.
fn changes<'a>(plan: &'a Plan<'_>, log: Option<&'a Log>) -> impl Iterator<Item = Result<Planned>> + 'a {
    let blocks = plan.fresh.iter().chain(&plan.homes);
    let blocks = blocks.map(|block| Ok(Planned { offset: block * plan.block_size, data: plan.block(*block)? }));
    let logged = log.into_iter().flat_map(|log| &log.blocks);
    let logged =
        logged.map(|(block, from)| Ok(Planned { offset: block * plan.block_size, data: log_bytes(plan, from)? }));
    let pointed = log.into_iter().flat_map(|log| plan.superblocks().map(|superblock| log.pointed(superblock)));
    let marked = if log.is_none() { plan.marked.clone() } else { None };
    let superblocks = pointed.chain(marked).chain([plan.after.clone()]).chain(marked_superblock(&plan.after));
    blocks.chain(logged).chain(superblocks.map(|data| Ok(Planned { offset: OFFSET, data })))
}

/// Carries out a plan, through the log where there is one.
fn carry_out(device: &dyn BlockDevice, plan: &Plan<'_>, log: Option<Log>) -> Result<()> {
    write_fresh(device, plan)?;
    let homes = plan.homes.iter().copied();
    let Some(log) = log else {
        if let Some(marked) = &plan.marked {
            device.write(OFFSET, marked)?;
            device.flush()?;
        }
        // file data in new locations, before the inodes that refer to them
        if !plan.allocated.is_empty() {
            write_all(device, plan.block_size, plan.allocated.iter().copied(), |block| plan.block(block))?;
            device.flush()?;
        }
        let others = homes.filter(|block| plan.allocated.binary_search(block).is_err());
        write_all(device, plan.block_size, others, |block| plan.block(block))?;
        device.flush()?;
        device.write(OFFSET, &plan.after)?;
        return device.flush();
    };
    write_all(device, plan.block_size, log.blocks.iter().map(|(block, _)| *block), |block| {
        let from = log.blocks.binary_search_by_key(&block, |(block, _)| *block);
        match from.ok().and_then(|n| log.blocks.get(n)) {
            Some((_, from)) => log_bytes(plan, from),
            None => Ok(vec![0; plan.block_size as usize]),
        }
    })?;
    device.flush()?;
    for superblock in std::iter::once(&plan.before).chain(&plan.marked) {
        device.write(OFFSET, &log.pointed(superblock))?;
        device.flush()?;
    }
    complete(device, plan.block_size, homes, |block| plan.block(block), &log.pointer, &plan.after)
}

/// Whether a [`write`] of these may be interrupted at any moment: there is space for a log, or no block needs one.
///
/// # Errors
/// The error of the device.
pub(crate) fn has_space(device: &dyn BlockDevice, overlay: &Overlay, free: &FreeBlocks) -> Result<bool> {
    let plan = plan(device, overlay, Some(free))?;
    Ok(plan.homes.is_empty() || log(&plan, Some(free), device)?.is_some())
}

/// The last steps, which may be repeated: the blocks, the new superblock with the pointer to the log, and without it.
/// The second of these writes changes one sector alone. If the first is torn, the pointer is still valid.
fn complete(
    device: &dyn BlockDevice,
    block_size: u64,
    homes: impl Iterator<Item = u64>,
    bytes: impl Fn(u64) -> Result<Vec<u8>>,
    pointer: &DiskRedoPointer,
    superblock: &[u8],
) -> Result<()> {
    write_all(device, block_size, homes, bytes)?;
    device.flush()?;
    device.write(OFFSET, &with_pointer(superblock, pointer))?;
    device.flush()?;
    device.write(OFFSET, superblock)?;
    device.flush()
}

/// Writes the blocks that were free, contiguous ones in one request, as there may be very many of them.
fn write_fresh(device: &dyn BlockDevice, plan: &Plan<'_>) -> Result<()> {
    let runs = plan.fresh.chunk_by(|block, next| block + 1 == *next);
    for run in runs.flat_map(|run| run.chunks(BATCH)) {
        let Some(offset) = run.first().map(|first| first * plan.block_size) else { continue };
        let mut bytes = vec![0; run.len() * plan.block_size as usize];
        plan.overlay.read(offset, &mut bytes)?;
        device.write(offset, &bytes)?;
    }
    Ok(())
}

/// Writes blocks in batches.
fn write_all(
    device: &dyn BlockDevice,
    block_size: u64,
    blocks: impl Iterator<Item = u64>,
    bytes: impl Fn(u64) -> Result<Vec<u8>>,
) -> Result<()> {
    let mut blocks = blocks.peekable();
    while blocks.peek().is_some() {
        let batch = blocks.by_ref().take(BATCH).map(|block| Ok((block, bytes(block)?))).collect::<Result<Vec<_>>>()?;
        let mut writes: Vec<Write<'_>> =
            batch.iter().map(|(block, bytes)| Write::new(block * block_size, bytes)).collect();
        device.write_many(&mut writes);
        for write in writes {
            write.result?;
        }
    }
    Ok(())
}

/// The differences between the overlay and the device, in blocks.
fn plan<'a>(device: &dyn BlockDevice, overlay: &'a Overlay, free: Option<&FreeBlocks>) -> Result<Plan<'a>> {
    let block_size = free.map_or(1024, |free| u64::from(free.geometry.block_size));
    let mut changed = BTreeSet::new();
    let mut failed = None;
    overlay.each_change(|offset, bytes| {
        // a change of a block or less, outside the superblock's block, is known to differ and needs no comparison
        if bytes.len() as u64 <= block_size && offset > OFFSET {
            changed.insert(offset / block_size);
            return;
        }
        let mut below = vec![0; bytes.len()];
        if let Err(error) = device.read(offset, &mut below) {
            failed = Some(error);
            return;
        }
        let sectors = bytes.chunks(SECTOR as usize).zip(below.chunks(SECTOR as usize));
        for (n, _) in (0u64..).zip(sectors).filter(|(_, (new, old))| new != old) {
            let at = offset + n * SECTOR;
            if !(OFFSET..OFFSET + DiskSuperblock::SIZE as u64).contains(&at) {
                changed.insert(at / block_size);
            }
        }
    });
    if let Some(error) = failed {
        return Err(error);
    }
    let (fresh, homes): (Vec<u64>, Vec<u64>) =
        changed.into_iter().partition(|block| free.is_some_and(|free| free.is_fresh(*block)));
    let mut before = vec![0; DiskSuperblock::SIZE];
    device.read(OFFSET, &mut before)?;
    let mut after = vec![0; DiskSuperblock::SIZE];
    overlay.read(OFFSET, &mut after)?;
    if after != before || DiskRedoPointer::of(&after).is_some() {
        clear_pointer(&mut after);
    }
    let allocated = homes.iter().filter(|block| free.is_some_and(|free| free.is_allocated(**block))).copied().collect();
    let marked = if homes.is_empty() { None } else { marked_superblock(&before) };
    Ok(Plan { overlay, block_size, fresh, homes, allocated, before, after, marked })
}

/// The first of a superblock's two sectors, which contains its state.
fn first_sector(superblock: &[u8]) -> &[u8] {
    superblock.get(..SECTOR as usize).unwrap_or_default()
}

/// The checksum of a superblock's first sector.
fn sector_sum(superblock: &[u8]) -> u32 {
    crc32c(!0, first_sector(superblock))
}

/// A superblock that is marked clean, with the state of a volume with errors; its checksum is not updated. `None` where
/// it is not marked clean.
fn marked(superblock: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = superblock.to_vec();
    let disk = DiskSuperblock::mut_from_bytes(&mut bytes).ok()?;
    let state = State::from_bits_retain(disk.s_state.get());
    if disk.s_magic.get() != superblock::MAGIC || !state.contains(State::VALID) || state.contains(State::ERROR) {
        return None;
    }
    disk.s_state = ((state - State::VALID) | State::ERROR).bits().into();
    Some(bytes)
}

/// The superblock while a volume is partly written; `None` where no program treats the current one as clean: it is
/// marked with errors, or does not match its checksum.
pub(crate) fn marked_superblock(before: &[u8]) -> Option<Vec<u8>> {
    let disk = DiskSuperblock::from_slice(before)?;
    let (summed, right) = (disk.features().ro_compat.contains(RoCompat::METADATA_CSUM), has_right_checksum(before));
    if summed && !right {
        return None;
    }
    let mut bytes = marked(before)?;
    if right {
        set_checksum(&mut bytes);
    }
    Some(bytes)
}

fn has_right_checksum(superblock: &[u8]) -> bool {
    DiskSuperblock::from_slice(superblock).is_some_and(|disk| disk.checksum() == disk.s_checksum.get())
}

fn set_checksum(superblock: &mut [u8]) {
    if let Ok(disk) = DiskSuperblock::mut_from_bytes(superblock) {
        disk.s_checksum = disk.checksum().into();
    }
}

/// Clears the pointer in a superblock.
pub(crate) fn clear_pointer(superblock: &mut [u8]) {
    let Some(pointer) = superblock.get_mut(POINTER_AT..POINTER_AT + DiskRedoPointer::SIZE) else { return };
    if !pointer.starts_with(&POINTER_MAGIC.to_le_bytes()) {
        return;
    }
    pointer.fill(0);
    if let Ok(disk) = DiskSuperblock::mut_from_bytes(superblock) {
        disk.set_checksum();
    }
}

/// A redo log: its blocks, ascending, and the pointer to it.
struct Log {
    blocks: Vec<(u64, Logged)>,
    pointer: DiskRedoPointer,
}

impl Log {
    /// A superblock with the pointer to this log.
    fn pointed(&self, superblock: &[u8]) -> Vec<u8> {
        with_pointer(superblock, &self.pointer)
    }
}

/// The content of a block of the log.
enum Logged {
    /// The new content of this block.
    Home(u64),
    /// Bytes of an index of the log.
    Own(Vec<u8>),
}

fn log_bytes(plan: &Plan<'_>, from: &Logged) -> Result<Vec<u8>> {
    match from {
        Logged::Home(block) => plan.block(*block),
        Logged::Own(bytes) => Ok(bytes.clone()),
    }
}

/// The layout of the log of a plan; `None` where no block has to be logged, or there is no space.
fn log(plan: &Plan<'_>, free: Option<&FreeBlocks>, device: &dyn BlockDevice) -> Result<Option<Log>> {
    let block_size = plan.block_size as usize;
    let sectors = plan.before.chunks(SECTOR as usize).zip(plan.after.chunks(SECTOR as usize));
    let changed = sectors.filter(|(old, new)| old != new).count();
    let Some(spare) = free.filter(|_| !plan.homes.is_empty() || changed >= 2 || !plan.fresh.is_empty()) else {
        return Ok(None);
    };
    // writing a home location that contains the superblock would overwrite the pointer
    if plan.homes.contains(&(OFFSET / plan.block_size)) {
        return Ok(None);
    }
    // the blocks, the superblock, and the indexes of both
    let copies = plan.homes.len() + 1;
    let capacity = DiskRedoIndex::capacity(block_size).max(1);
    let wanted = copies + copies.div_ceil(capacity);
    let taken: BTreeSet<u64> = plan.fresh.iter().copied().collect();
    let end = spare.geometry.blocks.min(device.geometry().len / plan.block_size);
    let free: Vec<u64> =
        (1..end).rev().filter(|block| spare.contains(*block) && !taken.contains(block)).take(wanted).collect();
    if free.len() < wanted {
        return Ok(None);
    }
    let (places, indexes) = free.split_at(copies);
    let mut blocks = Vec::with_capacity(wanted);
    let mut entries = Vec::with_capacity(copies);
    let mut superblock = plan.after.clone();
    superblock.resize(block_size, 0);
    let own = std::iter::once((SUPERBLOCK, Logged::Own(superblock)));
    let homes = plan.homes.iter().map(|home| (*home, Logged::Home(*home)));
    for (place, (home, from)) in places.iter().zip(homes.chain(own)) {
        let checksum = crc32c(!0, &log_bytes(plan, &from)?);
        entries.push(DiskRedoEntry {
            re_home: home.into(),
            re_copy: (*place).into(),
            re_checksum: checksum.into(),
            re_reserved: 0.into(),
        });
        blocks.push((*place, from));
    }
    // from the last index to the first, as each names the next
    let (mut next, mut next_checksum) = (0, 0);
    for (place, chunk) in indexes.iter().zip(entries.chunks(capacity)).rev() {
        let head = DiskRedoIndex {
            ri_magic: INDEX_MAGIC.into(),
            ri_count: (chunk.len() as u32).into(),
            ri_next: next.into(),
            ri_next_checksum: next_checksum.into(),
            ri_reserved: 0.into(),
        };
        let mut bytes = [head.as_bytes(), chunk.as_bytes()].concat();
        bytes.resize(block_size, 0);
        (next, next_checksum) = (*place, crc32c(!0, &bytes));
        blocks.push((*place, Logged::Own(bytes)));
    }
    blocks.sort_unstable_by_key(|(block, _)| *block);
    Ok(Some(Log { blocks, pointer: pointer_to(plan, next, next_checksum) }))
}

/// The pointer to a log that begins in block `first`.
fn pointer_to(plan: &Plan<'_>, first: u64, checksum: u32) -> DiskRedoPointer {
    let mut pointer = DiskRedoPointer {
        rp_magic: POINTER_MAGIC.into(),
        rp_block_size: (plan.block_size as u32).into(),
        rp_block: first.into(),
        rp_before: sector_sum(plan.marked.as_ref().unwrap_or(&plan.before)).into(),
        rp_after: sector_sum(&plan.after).into(),
        rp_index: checksum.into(),
        rp_checksum: 0.into(),
    };
    pointer.set_checksum();
    pointer
}

/// A superblock with a pointer; for other programs its checksum remains as valid as it was.
fn with_pointer(superblock: &[u8], pointer: &DiskRedoPointer) -> Vec<u8> {
    let right = has_right_checksum(superblock);
    let mut superblock = superblock.to_vec();
    if let Some(place) = superblock.get_mut(POINTER_AT..POINTER_AT + DiskRedoPointer::SIZE) {
        place.copy_from_slice(pointer.as_bytes());
    }
    if right {
        set_checksum(&mut superblock);
    }
    superblock
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claims::tests::geometry;

    #[test]
    fn what_was_handed_out_is_fresh_until_something_else_claims_it() {
        let mut free = FreeBlocks::all(&geometry());
        let in_use = |bits: u64| move |group: GroupNo, n: usize| if (group.get(), n) == (0, 0) { bits } else { 0 };
        free.exclude(in_use(0xF));
        free.hand_out([3, 10, 11, 12]);
        // the next check finds the allocated clusters in use
        free.exclude(in_use(0x1C0F));
        // cluster 0 is block 1
        assert!(!free.is_fresh(4), "it was in use before");
        for block in [11, 12, 13] {
            assert!(free.is_fresh(block) && !free.contains(block), "{block}");
        }
        free.take_back(&[1..2, 11..12]);
        assert_eq!([11, 12, 13].map(|block| free.is_fresh(block)), [true, false, true]);
        assert!(free.is_fresh(20) && free.contains(20), "free all along");
        assert!(!free.is_fresh(0) && !free.is_fresh(1000), "outside the volume");
    }
}
