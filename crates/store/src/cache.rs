//! A bounded cache of blocks, and which of them the open generation has changed.
//!
//! 1. Bytes that were handed out never change: whoever holds the `Arc` may keep it as long as they like. A change is made
//!    in place only where nobody holds the bytes, else in a copy; so a closed generation on its way to the device keeps
//!    its content while the next one changes the same block.
//! 2. A shard's lock is held for a look-up, an insertion or a change in memory, never across I/O.
//! 3. Two threads that miss the same block may both read it; the first insertion wins and both get that one.
//! 4. A block is *dirty* while the open generation has changed it, and *pinned* once for each closed generation that
//!    changed it and whose content is not in its home place yet. Such a block is never evicted: the device does not have
//!    what it holds.
//! 5. At most `capacity` blocks are held by the cache, and those that are dirty or pinned on top (blocks still held by
//!    callers count on top as well).
//!
//! Eviction is CLOCK: a hit sets a mark, the hand clears marks and takes the first block without one. A shard's lock is
//! then enough for a hit, and one scan through a large tree does not push out what is asked for again and again.

use crate::{BlockWrite, Kind, Result, Tag};
use blockdev::{BlockDevice, Error as DeviceError, Op, Read};
use format::FsBlock;
use std::{
    collections::HashMap,
    sync::atomic::{AtomicUsize, Ordering},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

const SHARD_BITS: u32 = 4;
/// Longest single request made for neighbouring blocks, in bytes.
const MAX_REQUEST: usize = 1 << 20;

pub(crate) struct BlockCache {
    device: Arc<dyn BlockDevice>,
    block_size: u32,
    shards: Vec<Mutex<Shard>>,
    dirty: AtomicUsize,
}

struct Shard {
    index: HashMap<FsBlock, usize>,
    slots: Vec<Slot>,
    capacity: usize,
    hand: usize,
    /// Blocks that became dirty in the open generation; those whose slot is not dirty any more were forgotten.
    dirty: Vec<FsBlock>,
}

struct Slot {
    block: FsBlock,
    data: Arc<[u8]>,
    used: bool,
    /// Whoever needed the content to be right has seen that it is (or has written it).
    checked: bool,
    /// Set while the open generation has changed it.
    dirty: Option<Tag>,
    /// Closed generations that changed it and are not home.
    pins: u32,
    /// Holds file data that the device may not have.
    is_data: bool,
}

impl Slot {
    fn clean(block: FsBlock, data: Arc<[u8]>) -> Self {
        Self { block, data, used: false, checked: false, dirty: None, pins: 0, is_data: false }
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

    fn insert(&mut self, block: FsBlock, data: Arc<[u8]>) -> Arc<[u8]> {
        if let Some(there) = self.get(block) {
            return there;
        }
        self.place(Slot::clean(block, Arc::clone(&data)));
        data
    }

    /// Puts a block in that is not there, and gives its slot.
    fn place(&mut self, slot: Slot) -> &mut Slot {
        let block = slot.block;
        let victim = if self.slots.len() < self.capacity { None } else { self.victim() };
        let at = match victim {
            None => {
                self.slots.push(slot);
                self.slots.len() - 1
            }
            Some(at) => {
                self.index.remove(&self.slots[at].block);
                self.slots[at] = slot;
                at
            }
        };
        self.index.insert(block, at);
        &mut self.slots[at]
    }

    /// The slot to reuse, if one may go: after one turn of the hand no mark is left.
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

    /// Takes a block out. The last slot moves into its place.
    fn remove(&mut self, block: FsBlock) {
        let Some(at) = self.index.remove(&block) else { return };
        self.slots.swap_remove(at);
        if let Some(moved) = self.slots.get(at) {
            self.index.insert(moved.block, at);
        }
        if self.hand >= self.slots.len() {
            self.hand = 0;
        }
    }

    /// Slots beyond the capacity, which dirty and pinned blocks made necessary, go as soon as they can.
    fn shrink(&mut self) {
        while self.slots.len() > self.capacity {
            let Some(at) = self.victim() else { return };
            self.remove(self.slots[at].block);
        }
    }
}

impl BlockCache {
    pub(crate) fn new(device: Arc<dyn BlockDevice>, block_size: u32, bytes: usize) -> Self {
        assert!(block_size.is_power_of_two(), "block size {block_size} is not a power of two");
        let capacity = ((bytes / block_size as usize) >> SHARD_BITS).max(1);
        let empty = || Shard { index: HashMap::new(), slots: Vec::new(), capacity, hand: 0, dirty: Vec::new() };
        let shards = (0..1 << SHARD_BITS).map(|_| Mutex::new(empty())).collect();
        Self { device, block_size, shards, dirty: AtomicUsize::new(0) }
    }

    pub(crate) fn block_size(&self) -> u32 {
        self.block_size
    }

    /// The byte at which `offset` bytes into `block` lie, if that number exists at all.
    pub(crate) fn position(&self, block: FsBlock, offset: u64, len: u64) -> Result<u64> {
        block.get().checked_mul(self.block_size.into()).and_then(|at| at.checked_add(offset)).ok_or_else(|| {
            let end = self.device.geometry().len;
            DeviceError::OutOfRange { op: Op::Read, offset: u64::MAX, len, end }.into()
        })
    }

    pub(crate) fn get(&self, block: FsBlock) -> Result<Arc<[u8]>> {
        if let Some(data) = self.shard(block).get(block) {
            return Ok(data);
        }
        let at = self.position(block, 0, self.block_size.into())?;
        let mut data: Arc<[u8]> = std::iter::repeat_n(0, self.block_size as usize).collect();
        self.device.read(at, Arc::get_mut(&mut data).expect("nobody else has it yet"))?;
        Ok(self.shard(block).insert(block, data))
    }

    /// As [`BlockCache::get`], and sees to it that `check` accepted the content at least once since it was read.
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

    /// Changes a block and counts it to the open generation.
    pub(crate) fn edit<R>(&self, block: FsBlock, tag: Tag, change: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        loop {
            let mut shard = self.shard(block);
            if let Some(slot) = shard.slot(block) {
                let outcome = change(Arc::make_mut(&mut slot.data));
                self.make_dirty(&mut shard, block, tag);
                return Ok(outcome);
            }
            drop(shard);
            // it may be evicted again before the lock is taken, but not for ever
            self.get(block)?;
        }
    }

    /// Gives a block its first content, from zeroes, and counts it to the open generation.
    pub(crate) fn fresh<R>(&self, block: FsBlock, tag: Tag, change: impl FnOnce(&mut [u8]) -> R) -> R {
        let mut data: Arc<[u8]> = std::iter::repeat_n(0, self.block_size as usize).collect();
        let outcome = change(Arc::make_mut(&mut data));
        let mut shard = self.shard(block);
        match shard.slot(block) {
            Some(slot) => slot.data = data,
            None => drop(shard.place(Slot::clean(block, data))),
        }
        self.make_dirty(&mut shard, block, tag);
        outcome
    }

    fn make_dirty(&self, shard: &mut Shard, block: FsBlock, tag: Tag) {
        let Some(slot) = shard.slot(block) else { return };
        slot.used = true;
        slot.checked = true;
        slot.is_data = tag.kind == Kind::Data;
        if slot.dirty.replace(tag).is_none() {
            shard.dirty.push(block);
            self.dirty.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Blocks the open generation has changed.
    pub(crate) fn dirty(&self) -> usize {
        self.dirty.load(Ordering::Relaxed)
    }

    /// The block was freed: nothing of it is to be written.
    pub(crate) fn forget(&self, block: FsBlock) {
        let mut shard = self.shard(block);
        let Some(slot) = shard.slot(block) else { return };
        slot.is_data = false;
        if slot.dirty.take().is_some() {
            self.dirty.fetch_sub(1, Ordering::Relaxed);
        }
        if slot.pins == 0 {
            shard.remove(block);
        }
    }

    /// Takes what the open generation has changed, ascending, each block sealed and pinned. No operation may run.
    pub(crate) fn close(&self, seal: impl Fn(FsBlock, &Tag, &mut [u8])) -> Vec<BlockWrite> {
        let mut closed = Vec::with_capacity(self.dirty());
        for shard in &self.shards {
            let mut shard = lock(shard);
            for block in std::mem::take(&mut shard.dirty) {
                let Some(slot) = shard.slot(block) else { continue };
                // forgotten, or forgotten and changed again: then it stands twice in the list
                let Some(tag) = slot.dirty.take() else { continue };
                seal(block, &tag, Arc::make_mut(&mut slot.data));
                slot.pins += 1;
                closed.push(BlockWrite { block, tag, data: Arc::clone(&slot.data) });
            }
        }
        self.dirty.store(0, Ordering::Relaxed);
        closed.sort_unstable_by_key(|write| write.block);
        closed
    }

    /// The content that a closed generation gave these blocks is home.
    pub(crate) fn unpin(&self, blocks: &[FsBlock]) {
        for &block in blocks {
            let mut shard = self.shard(block);
            let Some(slot) = shard.slot(block) else { continue };
            slot.pins = slot.pins.saturating_sub(1);
            shard.shrink();
        }
    }

    /// The newest content of a block of file data that the device may not have.
    pub(crate) fn pending_data(&self, block: FsBlock) -> Option<Arc<[u8]>> {
        self.shard(block).slot(block).filter(|slot| slot.is_data && !slot.may_go()).map(|slot| Arc::clone(&slot.data))
    }

    pub(crate) fn get_many(&self, blocks: &[FsBlock]) -> Result<Vec<Arc<[u8]>>> {
        let mut found: Vec<_> = blocks.iter().map(|&b| self.shard(b).get(b)).collect();
        let mut missing: Vec<FsBlock> =
            blocks.iter().zip(&found).filter(|(_, have)| have.is_none()).map(|(&b, _)| b).collect();
        if !missing.is_empty() {
            missing.sort_unstable();
            missing.dedup();
            let read = self.read_runs(&missing)?;
            for (slot, block) in found.iter_mut().zip(blocks).filter(|(slot, _)| slot.is_none()) {
                *slot = read.get(block).cloned();
            }
        }
        Ok(found.into_iter().flatten().collect())
    }

    /// Reads ascending blocks, neighbours in one request, and caches all that arrived; fails if any did not.
    fn read_runs(&self, missing: &[FsBlock]) -> Result<HashMap<FsBlock, Arc<[u8]>>> {
        let size = self.block_size as usize;
        let longest = (MAX_REQUEST / size).max(1);
        let mut buf = vec![0; missing.len() * size];
        let mut rest = &mut buf[..];
        let mut reads = Vec::new();
        for run in missing.chunk_by(|a, b| b.get() - a.get() == 1).flat_map(|run| run.chunks(longest)) {
            let (part, after) = rest.split_at_mut(run.len() * size);
            rest = after;
            reads.push(Read::new(self.position(run[0], 0, part.len() as u64)?, part));
        }
        self.device.read_many(&mut reads);
        let mut cached = HashMap::with_capacity(missing.len());
        let mut blocks = missing.iter();
        let mut outcome = Ok(());
        for read in reads {
            let run = read.buf.chunks_exact(size).zip(&mut blocks);
            match read.result {
                Ok(()) => run.for_each(|(data, &block)| {
                    cached.insert(block, self.shard(block).insert(block, Arc::from(data)));
                }),
                Err(e) => {
                    run.for_each(drop);
                    outcome = outcome.and(Err(e.into()));
                }
            }
        }
        outcome.map(|()| cached)
    }

    fn shard(&self, block: FsBlock) -> MutexGuard<'_, Shard> {
        // Fibonacci hashing: group metadata lies at multiples of large powers of two, which must not share a shard
        let shard = block.get().wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (u64::BITS - SHARD_BITS);
        lock(&self.shards[shard as usize])
    }
}

/// No code that holds the lock leaves a shard half changed, so a panic elsewhere in that thread did no harm.
fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockdev::{MemoryDevice, Trace};

    /// 256 blocks of 1 024 bytes, each filled with its number.
    fn device() -> Arc<Trace<MemoryDevice>> {
        Arc::new(Trace::new(MemoryDevice::from_vec((0..=255u8).flat_map(|n| [n; 1024]).collect())))
    }

    fn cache(device: &Arc<Trace<MemoryDevice>>, blocks: usize) -> BlockCache {
        BlockCache::new(Arc::clone(device) as Arc<dyn BlockDevice>, 1024, blocks * 1024)
    }

    fn held(cache: &BlockCache) -> usize {
        cache.shards.iter().map(|s| s.lock().unwrap().slots.len()).sum()
    }

    #[test]
    fn a_block_is_read_once() {
        let device = device();
        let cache = cache(&device, 256);
        let first = cache.get(FsBlock(7)).unwrap();
        assert!(first.len() == 1024 && first.iter().all(|&b| b == 7));
        assert!(Arc::ptr_eq(&first, &cache.get(FsBlock(7)).unwrap()));
        assert_eq!(device.snapshot().reads.requests, 1);
    }

    #[test]
    fn a_batch_keeps_order_and_joins_neighbours() {
        let device = device();
        let cache = cache(&device, 256);
        let ask = [9, 3, 4, 200, 3, 5].map(FsBlock);
        for requests in [3, 3] {
            let got: Vec<u8> = cache.get_many(&ask).unwrap().iter().map(|b| b[100]).collect();
            assert_eq!(got, [9, 3, 4, 200, 3, 5]);
            assert_eq!(device.snapshot().reads.requests, requests);
        }
        assert!(cache.get_many(&[]).unwrap().is_empty());
    }

    #[test]
    fn a_failed_block_fails_the_batch_and_leaves_the_others() {
        let device = device();
        let cache = cache(&device, 256);
        assert!(cache.get_many(&[FsBlock(1), FsBlock(300), FsBlock(9)]).is_err());
        assert!(cache.get(FsBlock(u64::MAX)).is_err());
        let before = device.snapshot().reads.requests;
        assert_eq!(cache.get_many(&[FsBlock(9), FsBlock(1)]).unwrap()[0][0], 9);
        assert_eq!(device.snapshot().reads.requests, before);
    }

    #[test]
    fn what_is_used_stays_and_the_bound_holds() {
        let device = device();
        let cache = cache(&device, 64);
        for n in 0..=255 {
            cache.get(FsBlock(0)).unwrap();
            cache.get(FsBlock(n)).unwrap();
        }
        assert_eq!(held(&cache), 64);
        let before = device.snapshot().reads.requests;
        cache.get(FsBlock(0)).unwrap();
        assert_eq!(device.snapshot().reads.requests, before, "a block in constant use was evicted");
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
        assert!(held(&cache) <= 16);
    }
}
