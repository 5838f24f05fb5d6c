//! A bounded cache of blocks, with the set of those that the open generation has changed.
//!
//! 1. Returned bytes never change: the owner of an `Arc` may use it indefinitely. A change is made in place only where
//!    the bytes have no other owner, otherwise in a copy; so a closed generation that is being written retains its
//!    content while the next one changes the same block.
//! 2. A shard is locked for a look-up, an insertion or a change in memory, never across I/O.
//! 3. Two threads that miss the same block may both read it; the first insertion wins and both get that one.
//! 4. A block is *dirty* if the open generation has changed it, and *pinned* once for each closed generation that
//!    changed it and whose content has not reached its home location. Such a block is never evicted: the device does
//!    not have its content.
//! 5. Stale content never returns to the cache: a read that began before a change of the block, and ends after the
//!    changed block was evicted, is repeated.
//! 6. The cache contains at most `capacity` blocks; only dirty and pinned blocks may exceed that. Evicted blocks that
//!    callers still use take memory in addition.
//!
//! Eviction is CLOCK: a hit sets a mark, the hand clears marks and evicts the first block without one. A hit needs only
//! the shard's lock, and one scan through a large tree does not evict frequently used blocks.

use crate::recovery::BlockExtent;
use crate::{BlockWrite, Kind, Result, Tag};
use blockdev::{BlockDevice, Error as DeviceError, Op, Read};
use format::{ByNumber, FsBlock};
use parking_lot::{Mutex, MutexGuard};
use std::{
    collections::HashMap,
    sync::Arc,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
};

const SHARD_BITS: u32 = 4;
/// The maximum length of a read of adjacent blocks, in bytes.
const MAX_REQUEST: usize = 1 << 20;
/// Ranges of more blocks than this are forgotten by a scan of the cache instead of a look-up of each block.
const FORGET_SINGLY: u64 = 1 << 12;

pub(crate) struct BlockCache {
    device: Arc<dyn BlockDevice>,
    block_size: u32,
    shards: Vec<Mutex<Shard>>,
    dirty: AtomicUsize,
    /// The engine needs the previous content of blocks, of the kinds that recovery compares.
    wants_before: AtomicBool,
}

struct Shard {
    index: HashMap<FsBlock, usize, ByNumber>,
    slots: Vec<Slot>,
    capacity: usize,
    hand: usize,
    /// Blocks that became dirty in the open generation; a block whose slot is not dirty any more was forgotten.
    dirty: Vec<FsBlock>,
    /// The number of changed blocks that were removed so far.
    changed_gone: u64,
}

struct Slot {
    block: FsBlock,
    data: Arc<[u8]>,
    used: bool,
    /// The content was verified by a reader, or written by an operation.
    checked: bool,
    /// The block was changed since it was read.
    changed: bool,
    /// The tag of the open generation's changes; `None` if there are none.
    dirty: Option<Tag>,
    /// The open generation allocated the block.
    fresh: bool,
    /// The content before the open generation's first change, if the engine needs it.
    before: Option<Arc<[u8]>>,
    /// The number of closed generations that changed the block and are not home.
    pins: u32,
    /// The block was freed; it is removed with its last pin.
    forgotten: bool,
    /// The block contains file data that may not be on the device.
    is_data: bool,
}

impl Slot {
    fn clean(block: FsBlock, data: Arc<[u8]>) -> Self {
        Self {
            block,
            data,
            used: false,
            checked: false,
            changed: false,
            dirty: None,
            fresh: false,
            before: None,
            pins: 0,
            forgotten: false,
            is_data: false,
        }
    }

    fn may_go(&self) -> bool {
        self.dirty.is_none() && self.pins == 0
    }
}

impl Shard {
    fn get(&mut self, block: FsBlock) -> Option<Arc<[u8]>> {
        let slot = &mut self.slots[*self.index.get(&block)?];
        slot.used = true;
        Some(Arc::clone(&slot.data))
    }

    /// Inserts a block that was read when `changed_gone` was `then`; `None` if its content may be older than a change.
    fn insert(&mut self, block: FsBlock, data: Arc<[u8]>, then: u64) -> Option<Arc<[u8]>> {
        if let Some(there) = self.get(block) {
            return Some(there);
        }
        if self.changed_gone != then {
            return None;
        }
        self.place(Slot::clean(block, Arc::clone(&data)));
        Some(data)
    }

    /// Inserts a block that is not in the shard, and returns the index of its slot.
    fn place(&mut self, slot: Slot) -> usize {
        let block = slot.block;
        let victim = if self.slots.len() < self.capacity { None } else { self.victim() };
        let at = match victim {
            None => {
                self.slots.push(slot);
                self.slots.len() - 1
            }
            Some(at) => {
                let old = std::mem::replace(&mut self.slots[at], slot);
                self.index.remove(&old.block);
                self.changed_gone += u64::from(old.changed);
                at
            }
        };
        self.index.insert(block, at);
        at
    }

    /// The slot to reuse, if any can be evicted: after one round of the hand no mark is left.
    fn victim(&mut self) -> Option<usize> {
        for _ in 0..2 * self.slots.len() {
            let at = self.hand;
            self.hand = (self.hand + 1) % self.slots.len();
            let slot = &mut self.slots[at];
            if slot.may_go() && !std::mem::take(&mut slot.used) {
                return Some(at);
            }
        }
        None
    }

    fn slot(&mut self, block: FsBlock) -> Option<&mut Slot> {
        let at = *self.index.get(&block)?;
        self.slots.get_mut(at)
    }

    /// Removes a block. The last slot moves to its index.
    fn remove(&mut self, block: FsBlock) {
        let Some(at) = self.index.remove(&block) else { return };
        self.changed_gone += u64::from(self.slots.swap_remove(at).changed);
        if let Some(moved) = self.slots.get(at) {
            self.index.insert(moved.block, at);
        }
        if self.hand >= self.slots.len() {
            self.hand = 0;
        }
    }

    /// Removes slots beyond the capacity, which dirty and pinned blocks required, as soon as they can be evicted.
    fn shrink(&mut self) {
        while self.slots.len() > self.capacity {
            let Some(at) = self.victim() else { return };
            self.remove(self.slots[at].block);
        }
    }
}

/// Whether recovery compares blocks of this kind with their previous content.
const fn is_compared(kind: Kind) -> bool {
    matches!(kind, Kind::Indirect | Kind::Directory | Kind::DirectoryIndex | Kind::Attributes)
}

impl BlockCache {
    pub(crate) fn new(device: Arc<dyn BlockDevice>, block_size: u32, bytes: usize) -> Self {
        assert!(block_size.is_power_of_two(), "block size {block_size} is not a power of two");
        let capacity = ((bytes / block_size as usize) >> SHARD_BITS).max(1);
        let empty = || Shard {
            index: HashMap::default(),
            slots: Vec::new(),
            capacity,
            hand: 0,
            dirty: Vec::new(),
            changed_gone: 0,
        };
        let shards = (0..1 << SHARD_BITS).map(|_| Mutex::new(empty())).collect();
        Self { device, block_size, shards, dirty: AtomicUsize::new(0), wants_before: AtomicBool::new(false) }
    }

    pub(crate) fn block_size(&self) -> u32 {
        self.block_size
    }

    /// Records the previous content of blocks from now on, for [`BlockWrite::before`].
    pub(crate) fn record_previous(&self) {
        self.wants_before.store(true, Ordering::Relaxed);
    }

    /// Sets the capacity to `bytes` and evicts blocks beyond it, except dirty and pinned ones.
    pub(crate) fn set_capacity(&self, bytes: usize) {
        let capacity = self.capacity_of(bytes);
        for shard in &self.shards {
            let mut shard = shard.lock();
            if shard.capacity != capacity {
                shard.capacity = capacity;
                shard.shrink();
            }
        }
    }

    /// The capacity of a shard in blocks, with `bytes` for all shards.
    fn capacity_of(&self, bytes: usize) -> usize {
        ((bytes / self.block_size as usize) >> SHARD_BITS).max(1)
    }

    /// The position of byte `offset` of `block` on the device, in bytes; an error if that exceeds 64 bits.
    pub(crate) fn position(&self, block: FsBlock, offset: u64, len: u64) -> Result<u64> {
        block.get().checked_mul(self.block_size.into()).and_then(|at| at.checked_add(offset)).ok_or_else(|| {
            let end = self.device.geometry().len;
            DeviceError::OutOfRange { op: Op::Read, offset: u64::MAX, len, end }.into()
        })
    }

    pub(crate) fn get(&self, block: FsBlock) -> Result<Arc<[u8]>> {
        loop {
            let then = {
                let mut shard = self.shard(block);
                if let Some(data) = shard.get(block) {
                    return Ok(data);
                }
                shard.changed_gone
            };
            let at = self.position(block, 0, self.block_size.into())?;
            let mut data: Arc<[u8]> = std::iter::repeat_n(0, self.block_size as usize).collect();
            self.device.read(at, Arc::get_mut(&mut data).expect("the only owner"))?;
            if let Some(data) = self.shard(block).insert(block, data, then) {
                return Ok(data);
            }
        }
    }

    pub(crate) fn contains(&self, block: FsBlock) -> bool {
        self.shard(block).slot(block).is_some()
    }

    /// As [`BlockCache::get`], for a block of an inode table: also returns the bitmap of its inodes with deferred
    /// checksums.
    pub(crate) fn get_table(&self, block: FsBlock) -> Result<(Arc<[u8]>, u32)> {
        loop {
            if let Some(slot) = self.shard(block).slot(block) {
                slot.used = true;
                let waiting = slot.dirty.map_or(0, |tag| tag.deferred_slots);
                return Ok((Arc::clone(&slot.data), waiting));
            }
            // it may be evicted again before the lock is taken, but not forever
            self.get(block)?;
        }
    }

    /// As [`BlockCache::get`], and ensures that `check` accepted the content at least once since it was read.
    pub(crate) fn get_checked<E: From<crate::Error>>(
        &self,
        block: FsBlock,
        check: impl FnOnce(&[u8]) -> Result<(), E>,
    ) -> Result<Arc<[u8]>, E> {
        if let Some(slot) = self.shard(block).slot(block).filter(|slot| slot.checked) {
            slot.used = true;
            return Ok(Arc::clone(&slot.data));
        }
        let data = self.get(block)?;
        check(&data)?;
        if let Some(slot) = self.shard(block).slot(block) {
            slot.checked |= Arc::ptr_eq(&slot.data, &data);
        }
        Ok(data)
    }

    /// Changes a block and adds it to the open generation.
    pub(crate) fn edit<R>(&self, block: FsBlock, tag: Tag, change: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        loop {
            let mut shard = self.shard(block);
            if let Some(&at) = shard.index.get(&block) {
                let slot = &mut shard.slots[at];
                if slot.dirty.is_none() && self.wants_before.load(Ordering::Relaxed) && is_compared(tag.kind) {
                    slot.before = Some(Arc::clone(&slot.data));
                }
                let outcome = change(Arc::make_mut(&mut slot.data));
                self.make_dirty(&mut shard, at, tag);
                return Ok(outcome);
            }
            drop(shard);
            // it may be evicted again before the lock is taken, but not forever
            self.get(block)?;
        }
    }

    /// Sets the first content of a block, starting from zeroes, and adds it to the open generation.
    pub(crate) fn fresh<R>(&self, block: FsBlock, tag: Tag, change: impl FnOnce(&mut [u8]) -> R) -> R {
        self.put(block, tag, true, change)
    }

    /// Sets the whole content of a block that is in use, starting from zeroes, and adds it to the open generation.
    pub(crate) fn replace<R>(&self, block: FsBlock, tag: Tag, change: impl FnOnce(&mut [u8]) -> R) -> R {
        self.put(block, tag, false, change)
    }

    fn put<R>(&self, block: FsBlock, tag: Tag, fresh: bool, change: impl FnOnce(&mut [u8]) -> R) -> R {
        let mut data: Arc<[u8]> = std::iter::repeat_n(0, self.block_size as usize).collect();
        let outcome = change(Arc::make_mut(&mut data));
        let mut shard = self.shard(block);
        let at = match shard.index.get(&block) {
            Some(&at) => {
                shard.slots[at].data = data;
                at
            }
            None => shard.place(Slot::clean(block, data)),
        };
        shard.slots[at].fresh |= fresh;
        self.make_dirty(&mut shard, at, tag);
        outcome
    }

    fn make_dirty(&self, shard: &mut Shard, at: usize, tag: Tag) {
        let slot = &mut shard.slots[at];
        slot.used = true;
        slot.checked = true;
        slot.changed = true;
        slot.forgotten = false;
        slot.is_data = tag.kind == Kind::Data;
        match slot.dirty.replace(tag) {
            None => {
                shard.dirty.push(slot.block);
                self.dirty.fetch_add(1, Ordering::Relaxed);
            }
            Some(before) if (before.kind, tag.kind) == (Kind::InodeTable, Kind::InodeTable) => {
                slot.dirty = Some(Tag { deferred_slots: before.deferred_slots | tag.deferred_slots, ..tag });
            }
            Some(_) => {}
        }
    }

    /// The number of blocks that the open generation has changed.
    pub(crate) fn dirty(&self) -> usize {
        self.dirty.load(Ordering::Relaxed)
    }

    /// Forgets freed blocks: their content is not written.
    pub(crate) fn forget(&self, run: BlockExtent) {
        let end = run.first.get().saturating_add(run.count);
        if run.count <= FORGET_SINGLY {
            let blocks = (run.first.get()..end).map(FsBlock);
            return blocks.for_each(|block| self.forget_in(&mut self.shard(block), block));
        }
        for shard in &self.shards {
            let mut shard = shard.lock();
            let cached = shard.index.keys().copied();
            let freed: Vec<_> = cached.filter(|b| *b >= run.first && b.get() < end).collect();
            freed.into_iter().for_each(|block| self.forget_in(&mut shard, block));
        }
    }

    fn forget_in(&self, shard: &mut Shard, block: FsBlock) {
        let Some(slot) = shard.slot(block) else { return };
        slot.is_data = false;
        slot.fresh = false;
        slot.before = None;
        slot.forgotten = true;
        if slot.dirty.take().is_some() {
            self.dirty.fetch_sub(1, Ordering::Relaxed);
        }
        if slot.pins == 0 {
            shard.remove(block);
        }
    }

    /// Sets deferred checksums of inodes while operations continue, so that [`BlockCache::close`], for which they wait,
    /// has little to do.
    pub(crate) fn set_table_checksums(&self, set_checksum: impl Fn(FsBlock, &Tag, &mut [u8])) {
        for shard in &self.shards {
            let changed = shard.lock().dirty.clone();
            for block in changed {
                let mut shard = shard.lock();
                let Some(slot) = shard.slot(block) else { continue };
                let Some(tag) = slot.dirty.filter(|tag| tag.deferred_slots != 0) else { continue };
                set_checksum(block, &tag, Arc::make_mut(&mut slot.data));
                slot.dirty = Some(Tag { deferred_slots: 0, ..tag });
            }
        }
    }

    /// Closes the open generation: returns its changed blocks, ascending, each with its checksum set and pinned. No
    /// operation may be running.
    pub(crate) fn close(&self, set_checksum: impl Fn(FsBlock, &Tag, &mut [u8])) -> Vec<BlockWrite> {
        let mut closed = Vec::with_capacity(self.dirty());
        for shard in &self.shards {
            let mut shard = shard.lock();
            for block in std::mem::take(&mut shard.dirty) {
                let Some(slot) = shard.slot(block) else { continue };
                // forgotten, or forgotten and changed again: then it is in the list twice
                let Some(tag) = slot.dirty.take() else { continue };
                set_checksum(block, &tag, Arc::make_mut(&mut slot.data));
                slot.pins += 1;
                let (fresh, before) = (std::mem::take(&mut slot.fresh), slot.before.take());
                let before = before.filter(|_| !fresh);
                closed.push(BlockWrite { block, tag, data: Arc::clone(&slot.data), fresh, before });
            }
        }
        self.dirty.store(0, Ordering::Relaxed);
        closed.sort_unstable_by_key(|write| write.block);
        closed
    }

    /// Discards the changes of the open generation. No operation and no read may be running, and every earlier
    /// generation must be home: the device then has the previous content of the blocks.
    pub(crate) fn discard(&self) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            for block in std::mem::take(&mut shard.dirty) {
                if shard.slot(block).is_some_and(|slot| slot.dirty.take().is_some()) {
                    shard.remove(block);
                }
            }
        }
        self.dirty.store(0, Ordering::Relaxed);
    }

    /// Removes one pin of each block: its content by a closed generation is home.
    pub(crate) fn unpin(&self, blocks: &[FsBlock]) {
        for &block in blocks {
            let mut shard = self.shard(block);
            let Some(slot) = shard.slot(block) else { continue };
            slot.pins = slot.pins.saturating_sub(1);
            // the block may contain file data by now
            if slot.forgotten && slot.may_go() {
                shard.remove(block);
            }
            shard.shrink();
        }
    }

    /// The newest content of a block of file data, if it may not be on the device.
    pub(crate) fn pending_data(&self, block: FsBlock) -> Option<Arc<[u8]>> {
        self.shard(block).slot(block).filter(|slot| slot.is_data && !slot.may_go()).map(|slot| Arc::clone(&slot.data))
    }

    pub(crate) fn get_many(&self, blocks: &[FsBlock]) -> Result<Vec<Arc<[u8]>>> {
        let mut missing = Vec::new();
        let look = |&block: &FsBlock| {
            let mut shard = self.shard(block);
            let there = shard.get(block);
            if there.is_none() {
                missing.push((block, shard.changed_gone));
            }
            there
        };
        let mut found: Vec<_> = blocks.iter().map(look).collect();
        if !missing.is_empty() {
            missing.sort_unstable();
            missing.dedup_by_key(|(block, _)| *block);
            let read = self.read_runs(&missing)?;
            for (slot, block) in found.iter_mut().zip(blocks).filter(|(slot, _)| slot.is_none()) {
                *slot = read.get(block).cloned();
            }
        }
        Ok(found.into_iter().flatten().collect())
    }

    /// Reads ascending blocks, adjacent ones in one request, and caches all that were read; fails if any read failed.
    /// Each block is paired with the value of `changed_gone` at its miss.
    fn read_runs(&self, missing: &[(FsBlock, u64)]) -> Result<HashMap<FsBlock, Arc<[u8]>>> {
        let size = self.block_size as usize;
        let longest = (MAX_REQUEST / size).max(1);
        let mut buf = vec![0; missing.len() * size];
        let mut rest = &mut buf[..];
        let mut reads = Vec::new();
        for run in missing.chunk_by(|(a, _), (b, _)| b.get() - a.get() == 1).flat_map(|run| run.chunks(longest)) {
            let (part, after) = rest.split_at_mut(run.len() * size);
            rest = after;
            reads.push(Read::new(self.position(run[0].0, 0, part.len() as u64)?, part));
        }
        self.device.read_many(&mut reads);
        let mut cached = HashMap::with_capacity(missing.len());
        let mut blocks = missing.iter();
        let mut outcome = Ok(());
        for read in reads {
            let run = read.buf.chunks_exact(size).zip(&mut blocks);
            match read.result {
                Ok(()) => {
                    for (data, &(block, then)) in run {
                        let inserted = self.shard(block).insert(block, Arc::from(data), then);
                        cached.insert(block, inserted.map_or_else(|| self.get(block), Ok)?);
                    }
                }
                Err(e) => {
                    run.for_each(drop);
                    outcome = outcome.and(Err(e.into()));
                }
            }
        }
        outcome.map(|()| cached)
    }

    fn shard(&self, block: FsBlock) -> MutexGuard<'_, Shard> {
        // Fibonacci hashing: group metadata is at multiples of large powers of two, which must not share a shard
        let shard = block.get().wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (u64::BITS - SHARD_BITS);
        self.shards[shard as usize].lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockdev::MemoryDevice;
    use simdev::Trace;

    /// 256 blocks of 1 024 bytes, each filled with its number.
    fn device() -> Arc<Trace<MemoryDevice>> {
        Arc::new(Trace::new(MemoryDevice::from_vec((0..=255u8).flat_map(|n| [n; 1024]).collect())))
    }

    fn cache(device: &Arc<Trace<MemoryDevice>>, blocks: usize) -> BlockCache {
        BlockCache::new(Arc::clone(device) as Arc<dyn BlockDevice>, 1024, blocks * 1024)
    }

    fn cached(cache: &BlockCache) -> usize {
        cache.shards.iter().map(|s| s.lock().slots.len()).sum()
    }

    #[test]
    fn a_block_is_read_once() {
        let device = device();
        let cache = cache(&device, 256);
        let first = cache.get(FsBlock(7)).unwrap();
        assert!(first.len() == 1024 && first.iter().all(|&b| b == 7));
        assert!(Arc::ptr_eq(&first, &cache.get(FsBlock(7)).unwrap()));
        assert_eq!(device.counters().reads.requests, 1);
    }

    #[test]
    fn a_batch_preserves_order_and_joins_neighbours() {
        let device = device();
        let cache = cache(&device, 256);
        let ask = [9, 3, 4, 200, 3, 5].map(FsBlock);
        for requests in [3, 3] {
            let got: Vec<u8> = cache.get_many(&ask).unwrap().iter().map(|b| b[100]).collect();
            assert_eq!(got, [9, 3, 4, 200, 3, 5]);
            assert_eq!(device.counters().reads.requests, requests);
        }
        assert!(cache.get_many(&[]).unwrap().is_empty());
    }

    #[test]
    fn a_failed_block_fails_the_batch_and_leaves_the_others() {
        let device = device();
        let cache = cache(&device, 256);
        assert!(cache.get_many(&[FsBlock(1), FsBlock(300), FsBlock(9)]).is_err());
        assert!(cache.get(FsBlock(u64::MAX)).is_err());
        let before = device.counters().reads.requests;
        assert_eq!(cache.get_many(&[FsBlock(9), FsBlock(1)]).unwrap()[0][0], 9);
        assert_eq!(device.counters().reads.requests, before);
    }

    #[test]
    fn what_is_used_stays_and_the_bound_holds() {
        let device = device();
        let cache = cache(&device, 64);
        for n in 0..=255 {
            cache.get(FsBlock(0)).unwrap();
            cache.get(FsBlock(n)).unwrap();
        }
        assert_eq!(cached(&cache), 64);
        let before = device.counters().reads.requests;
        cache.get(FsBlock(0)).unwrap();
        assert_eq!(device.counters().reads.requests, before, "a block in constant use was evicted");
    }

    /// A device that calls a function at the end of its next read.
    struct Meanwhile {
        device: MemoryDevice,
        act: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    }

    impl BlockDevice for Meanwhile {
        fn geometry(&self) -> blockdev::Geometry {
            self.device.geometry()
        }
        fn read(&self, offset: u64, buf: &mut [u8]) -> blockdev::Result<()> {
            self.device.read(offset, buf)?;
            let act = self.act.lock().take();
            act.into_iter().for_each(|act| act());
            Ok(())
        }
        fn write(&self, offset: u64, data: &[u8]) -> blockdev::Result<()> {
            self.device.write(offset, data)
        }
        fn flush(&self) -> blockdev::Result<()> {
            Ok(())
        }
        fn discard(&self, _: u64, _: u64) -> blockdev::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_slow_read_does_not_bring_back_what_was_changed_meanwhile() {
        for batch in [false, true] {
            let device = MemoryDevice::from_vec((0..=255u8).flat_map(|n| [n; 1024]).collect());
            let device = Arc::new(Meanwhile { device, act: Mutex::new(None) });
            let cache = Arc::new(BlockCache::new(Arc::clone(&device) as Arc<dyn BlockDevice>, 1024, 16 * 1024));
            let (inner, below) = (Arc::clone(&cache), Arc::clone(&device));
            // the block is changed, written home and evicted
            let act = move || {
                let tag = Tag::new(Kind::Directory, format::InodeNo(2));
                inner.edit(FsBlock(7), tag, |bytes| bytes.fill(0xCC)).unwrap();
                let closed = inner.close(|_, _, _| ());
                below.write(7 * 1024, &closed[0].data).unwrap();
                inner.unpin(&[FsBlock(7)]);
                (8..=255).for_each(|n| drop(inner.get(FsBlock(n)).unwrap()));
                assert!(inner.shard(FsBlock(7)).slot(FsBlock(7)).is_none(), "still cached: the test tests nothing");
            };
            *device.act.lock() = Some(Box::new(act));
            let got =
                if batch { cache.get_many(&[FsBlock(7)]).unwrap().remove(0) } else { cache.get(FsBlock(7)).unwrap() };
            assert_eq!(got[0], 0xCC);
            assert_eq!(cache.get(FsBlock(7)).unwrap()[0], 0xCC);
        }
    }

    #[test]
    fn many_threads_see_the_same_bytes() {
        let device = device();
        let cache = cache(&device, 16);
        std::thread::scope(|scope| {
            for thread in 0..8u64 {
                let cache = &cache;
                scope.spawn(move || {
                    for n in 0..2000 {
                        let block = (n * 31 + thread * 17) % 256;
                        assert!(cache.get(FsBlock(block)).unwrap().iter().all(|&b| u64::from(b) == block));
                    }
                });
            }
        });
        assert!(cached(&cache) <= 16);
    }
}
