//! Additions of the file system to a closing generation: bitmaps, descriptors and the superblock, and the checksums of
//! changed blocks.

use crate::alloc::Space;
use format::inode::set_slot_checksum;
use format::superblock::{DiskSuperblock, Geometry, OFFSET};
use format::tail::Tailed;
use format::{FsBlock, InodeNo, orphan, xattr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use store::{Closing, CommitHooks, Kind, Need, SpaceHooks, StateSource, Tag, VolumeState};
use zerocopy::IntoBytes;

/// Sets the deferred checksums of the inodes in a block of an inode table.
fn set_inode_checksums(geometry: &Geometry, tag: &Tag, table: &mut [u8]) -> Option<()> {
    let first = tag.owner.get() - geometry.inode_slot(tag.owner)?.offset / geometry.inode_size;
    let mut waiting = tag.deferred_slots;
    while waiting != 0 {
        let n = waiting.trailing_zeros();
        waiting &= waiting - 1;
        let start = (n * geometry.inode_size) as usize;
        let slot = table.get_mut(start..start + geometry.inode_size as usize)?;
        // a cleared inode is all zeroes, as before its first use
        if slot.iter().any(|byte| *byte != 0) {
            set_slot_checksum(slot, geometry, InodeNo(first + n));
        }
    }
    Some(())
}

impl CommitHooks for Space {
    fn finish(&self, closing: &Closing<'_>) -> store::Result<()> {
        if let Some(pins) = &self.snapshot_pins {
            pins.close(closing.generation());
        }
        self.finish_groups(closing)?;
        self.new_content.clear();
        let free = self.pool.lock().free_units() * u64::from(self.sb.geometry.cluster_blocks);
        let free_blocks = free + self.pinned_blocks() + self.free_metadata();
        let sb = self.superblock.close(free_blocks, self.free_inodes.load(Ordering::Relaxed) as u32);
        let size = u64::from(self.sb.geometry.block_size);
        let (block, offset) = (FsBlock(OFFSET / size), (OFFSET % size) as usize);
        let tag = Tag::new(Kind::Superblock, InodeNo(0));
        closing.edit(block, tag, |bytes| {
            if let Some(place) = bytes.get_mut(offset..offset + DiskSuperblock::SIZE) {
                place.copy_from_slice(sb.as_bytes());
            }
        })
    }

    fn closing_credits(&self) -> usize {
        self.record.closing_credits()
    }

    fn is_full(&self) -> bool {
        self.record.is_full()
    }

    fn set_checksum(&self, block: FsBlock, tag: &Tag, bytes: &mut [u8]) {
        let geometry = &self.sb.geometry;
        self.superblock.record_written(bytes.len());
        if tag.kind == Kind::OrphanFile {
            orphan::set_checksum(bytes, block, geometry.metadata_csum.then_some(tag.seed));
        }
        if !geometry.metadata_csum {
            return;
        }
        // a block without space for a checksum has none: it is not changed
        let _ = match tag.kind {
            Kind::ExtentNode => geometry.tail(Tailed::ExtentNode).set_checksum(bytes, block, tag.seed),
            Kind::Indirect => geometry.tail(Tailed::Indirect).set_checksum(bytes, block, tag.seed),
            Kind::Directory => geometry.tail(Tailed::Leaf).set_checksum(bytes, block, tag.seed),
            Kind::DirectoryIndex => geometry.tail(Tailed::Index).set_checksum(bytes, block, tag.seed),
            Kind::Attributes => xattr::write_block_checksum(bytes, block, geometry.checksum_seed),
            Kind::InodeTable => set_inode_checksums(geometry, tag, bytes),
            // the checksum is set where the block is written, or there is none
            _ => None,
        };
    }

    fn durable(&self, generation: u64) {
        if let Some(pins) = &self.snapshot_pins {
            pins.durable();
        }
        self.record.durable(generation);
        self.release(generation);
    }
}

impl SpaceHooks for Space {
    fn grant_chunks(&self, closing: &Closing<'_>, need: Need<u64>) -> store::Result<Vec<u32>> {
        self.take_chunks(closing, need)
    }

    fn return_chunks(&self, closing: &Closing<'_>, chunks: &[u32]) -> store::Result<()> {
        self.put_chunks_back(closing, chunks)
    }
}

impl StateSource for Space {
    fn with_state(&self, state: VolumeState) -> (u64, Arc<[u8]>) {
        let sb = self.superblock.with_state(state);
        (OFFSET, Arc::from(sb.as_bytes()))
    }
}
