//! A bounded cache of blocks.
//!
//! 1. A block's bytes never change once they are in the cache; whoever holds the `Arc` may keep it as long as they like.
//! 2. A shard's lock is held for a look-up or an insertion, never across I/O.
//! 3. Two threads that miss the same block may both read it; the first insertion wins and both get that one.
//! 4. At most `capacity` blocks are held by the cache (blocks still held by callers count on top).
//!
//! Eviction is CLOCK: a hit sets a mark, the hand clears marks and takes the first block without one. A shard's lock is
//! then enough for a hit, and one scan through a large tree does not push out what is asked for again and again.

use crate::Result;
use blockdev::{BlockDevice, Error as DeviceError, Op, Read};
use format::FsBlock;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

const SHARD_BITS: u32 = 4;
/// Longest single request made for neighbouring blocks, in bytes.
const MAX_REQUEST: usize = 1 << 20;

pub(crate) struct BlockCache {
    device: Arc<dyn BlockDevice>,
    block_size: u32,
    shards: Vec<Mutex<Shard>>,
}

struct Shard {
    index: HashMap<FsBlock, usize>,
    slots: Vec<Slot>,
    capacity: usize,
    hand: usize,
}

struct Slot {
    block: FsBlock,
    data: Arc<[u8]>,
    used: bool,
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
        let slot = Slot { block, data: Arc::clone(&data), used: false };
        let at = if self.slots.len() < self.capacity {
            self.slots.push(slot);
            self.slots.len() - 1
        } else {
            let at = self.victim();
            self.index.remove(&self.slots[at].block);
            self.slots[at] = slot;
            at
        };
        self.index.insert(block, at);
        data
    }

    /// The slot to reuse. Ends: after one turn of the hand no mark is left.
    fn victim(&mut self) -> usize {
        loop {
            let at = self.hand;
            self.hand = (self.hand + 1) % self.slots.len();
            if !std::mem::take(&mut self.slots[at].used) {
                return at;
            }
        }
    }
}

impl BlockCache {
    pub(crate) fn new(device: Arc<dyn BlockDevice>, block_size: u32, bytes: usize) -> Self {
        assert!(block_size.is_power_of_two(), "block size {block_size} is not a power of two");
        let capacity = ((bytes / block_size as usize) >> SHARD_BITS).max(1);
        let shard = || Mutex::new(Shard { index: HashMap::new(), slots: Vec::new(), capacity, hand: 0 });
        Self { device, block_size, shards: (0..1 << SHARD_BITS).map(|_| shard()).collect() }
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
        // no code that holds the lock leaves a shard half changed, so a panic elsewhere in that thread did no harm
        self.shards[shard as usize].lock().unwrap_or_else(PoisonError::into_inner)
    }
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
