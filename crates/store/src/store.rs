//! The volume as the file system sees it: metadata blocks through the cache, file data directly from the device.
//!
//! File data does not enter the cache: the kernel's page cache above FUSE contains it already. Data that an engine
//! journals is treated like metadata, and reads return it.

use crate::native::Mapped;
use crate::writer::Writer;
use crate::{Result, cache::BlockCache};
use blockdev::{BlockDevice, Read};
use format::FsBlock;
use std::sync::{Arc, OnceLock};

/// A volume's blocks. All methods may be called from many threads at once.
pub struct Store {
    pub(crate) device: Arc<dyn BlockDevice>,
    /// The device that plans are executed on: the same, or the underlying device if blocks are mapped.
    pub(crate) storage: Arc<dyn BlockDevice>,
    pub(crate) cache: BlockCache,
    /// Set once the volume is open for writing.
    pub(crate) writer: OnceLock<Writer>,
}

/// A read of file data: fills `buf` from byte `offset` of block `first` on, across as many blocks as needed.
#[derive(Debug)]
pub struct DataRead<'a> {
    /// The block that `offset` is counted from.
    pub first: FsBlock,
    /// Bytes from the start of that block; may exceed the block size.
    pub offset: u64,
    /// The buffer for the bytes; its length is the length of the read.
    pub buf: &'a mut [u8],
}

impl Store {
    /// Creates a store over `device` with blocks of `block_size` bytes (a power of two) and a cache of at most
    /// `cache_bytes` (at least one block is reserved for each of its few shards).
    ///
    /// For a volume that was not unmounted, `device` is a [`recovery::Replayed`](crate::recovery::Replayed).
    ///
    /// # Panics
    /// If `block_size` is not a power of two: the caller has to validate the superblock first.
    pub fn new(device: Arc<dyn BlockDevice>, block_size: u32, cache_bytes: usize) -> Self {
        let storage = Arc::clone(&device);
        Self::with_storage(device, storage, block_size, cache_bytes)
    }

    /// Creates a store over the ext4 volume of a native one.
    pub fn native(mapped: Arc<Mapped>, cache_bytes: usize) -> Self {
        let storage = Arc::clone(mapped.device());
        Self::with_storage(mapped, storage, format::native::BLOCK_SIZE, cache_bytes)
    }

    fn with_storage(
        device: Arc<dyn BlockDevice>,
        storage: Arc<dyn BlockDevice>,
        block_size: u32,
        cache_bytes: usize,
    ) -> Self {
        let cache = BlockCache::new(Arc::clone(&device), block_size, cache_bytes);
        Self { device, storage, cache, writer: OnceLock::new() }
    }

    /// The underlying device, with the journal's content if there is any.
    pub fn device(&self) -> &Arc<dyn BlockDevice> {
        &self.device
    }

    /// Bytes in a block.
    pub fn block_size(&self) -> u32 {
        self.cache.block_size()
    }

    /// One metadata block, from the cache or read into it.
    pub fn block(&self, block: FsBlock) -> Result<Arc<[u8]>> {
        self.cache.get(block)
    }

    /// As [`Store::block`], for a block of an inode table: also returns the bitmap of its inodes with deferred
    /// checksums, [`Tag::deferred_slots`](crate::Tag::deferred_slots).
    ///
    /// # Errors
    /// Those of the device.
    pub fn table_block(&self, block: FsBlock) -> Result<(Arc<[u8]>, u32)> {
        self.cache.get_table(block)
    }

    /// As [`Store::block`], for content that must be verified before its use: `check` is called at least once between
    /// the read and the first use. A block that was changed since is not checked: the operation that changed it ensured
    /// its validity, and its checksum is computed when its generation closes.
    ///
    /// # Errors
    /// Those of the device, and of `check`.
    pub fn checked<E: From<crate::Error>>(
        &self,
        block: FsBlock,
        check: impl FnOnce(&[u8]) -> Result<(), E>,
    ) -> Result<Arc<[u8]>, E> {
        self.cache.get_checked(block, check)
    }

    /// Returns metadata blocks, in the order of `blocks`; those not cached are read as one batch, adjacent ones in one
    /// request. Fails with the first error; the blocks that could be read are cached all the same.
    pub fn blocks(&self, blocks: &[FsBlock]) -> Result<Vec<Arc<[u8]>>> {
        self.cache.get_many(blocks)
    }

    /// Whether a metadata block is in the cache.
    pub fn contains(&self, block: FsBlock) -> bool {
        self.cache.contains(block)
    }

    /// Reads blocks into the cache that will soon be needed. Errors are left to the read that needs the block.
    pub fn prefetch(&self, blocks: &[FsBlock]) {
        // a caller that needs a block that failed here reads it again and gets the error with its own context
        let _ = self.cache.get_many(blocks);
    }

    /// Fills `buf` from byte `offset` of block `first` on, without the cache.
    pub fn read(&self, first: FsBlock, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.read_many(&mut [DataRead { first, offset, buf }])
    }

    /// Submits all reads of file data as one batch, without the cache. Fails with the first error.
    pub fn read_many(&self, reads: &mut [DataRead<'_>]) -> Result<()> {
        let mut batch = Vec::with_capacity(reads.len());
        // data that may not be on the device is looked up first: if it was written home between the read and the
        // look-up, both would miss it
        let mut pending = Vec::new();
        for r in reads {
            let at = self.cache.position(r.first, r.offset, r.buf.len() as u64)?;
            if self.journals_data() {
                pending.push(pending_data(&self.cache, at, r.buf.len()));
            }
            batch.push(Read::new(at, r.buf));
        }
        self.device.read_many(&mut batch);
        for (read, pending) in batch.iter_mut().zip(pending) {
            pending.iter().for_each(|(block, data)| overlay(read, block.get() * u64::from(self.block_size()), data));
        }
        Ok(batch.into_iter().try_for_each(|r| r.result)?)
    }
}

/// The blocks from byte `at` on, over `len` bytes, whose content a journal has and the device may not have.
fn pending_data(cache: &BlockCache, at: u64, len: usize) -> Vec<(FsBlock, Arc<[u8]>)> {
    let size = u64::from(cache.block_size());
    let blocks = at / size..(at + len as u64).div_ceil(size);
    blocks.filter_map(|n| Some((FsBlock(n), cache.pending_data(FsBlock(n))?))).collect()
}

/// Copies the content of a block, which begins at byte `start`, into the part of a read that it overlaps.
fn overlay(read: &mut Read<'_>, start: u64, data: &[u8]) {
    let (from, to) = (start.max(read.offset), (start + data.len() as u64).min(read.offset + read.buf.len() as u64));
    let inside = |base: u64| (from - base) as usize..(to - base) as usize;
    if from < to {
        read.buf[inside(read.offset)].copy_from_slice(&data[inside(start)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockdev::MemoryDevice;

    #[test]
    fn file_data_is_read_across_blocks() {
        let bytes: Vec<u8> = (0..16 * 1024u32).map(|n| (n / 7) as u8).collect();
        let store = Store::new(Arc::new(MemoryDevice::from_vec(bytes.clone())), 1024, 0);
        let mut whole = [0; 3000];
        store.read(FsBlock(2), 500, &mut whole).unwrap();
        assert_eq!(whole, bytes[2548..5548]);
        let (mut a, mut b) = ([0; 10], [0; 2000]);
        store
            .read_many(&mut [
                DataRead { first: FsBlock(9), offset: 1020, buf: &mut a },
                DataRead { first: FsBlock(1), offset: 0, buf: &mut b },
            ])
            .unwrap();
        assert_eq!(a, bytes[10236..10246]);
        assert_eq!(b, bytes[1024..3024]);
        let mut beyond = [DataRead { first: FsBlock(15), offset: 1020, buf: &mut a }];
        assert!(store.read_many(&mut beyond).is_err());
        assert!(store.read(FsBlock(u64::MAX), 0, &mut b).is_err());
        assert!(store.block(FsBlock(16)).is_err());
        store.prefetch(&[FsBlock(3), FsBlock(16)]);
        assert_eq!(store.block(FsBlock(3)).unwrap()[..], bytes[3072..4096]);
    }
}
