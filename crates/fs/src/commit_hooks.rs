//! Additions of the file system to a closing generation: bitmaps, descriptors and the superblock, and the checksums of
//! changed blocks.

use crate::alloc::{Space, with_errors};
use format::feature::{Features, Incompat};
use format::inode::set_slot_checksum;
use format::superblock::{DiskSuperblock, OFFSET, State};
use format::tail::Tailed;
use format::{FsBlock, InodeNo, orphan, xattr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use store::{Closing, CommitHooks, Kind, Need, SpaceHooks, StateSource, Tag, VolumeState};
use zerocopy::IntoBytes;

impl Space {
    /// The superblock at a close, marked as in use: blocks of a generation may reach the device in any order, so its
    /// superblock must not claim consistency.
    fn close_superblock(&self) -> DiskSuperblock {
        let mut sb = self.superblock.lock();
        let free = self.pool.lock().free_units() * u64::from(self.sb.geometry.cluster_blocks);
        sb.set_free_blocks_count(free + self.pinned_blocks() + self.free_metadata());
        sb.s_free_inodes_count = (self.free_inodes.load(Ordering::Relaxed) as u32).into();
        let now = (self.options.clock)().seconds;
        sb.s_wtime = (now as u32).into();
        sb.s_wtime_hi = (now >> 32) as u8;
        let kilobytes = self.written.load(Ordering::Relaxed) / 1024;
        self.written.fetch_sub(kilobytes * 1024, Ordering::Relaxed);
        sb.s_kbytes_written = sb.s_kbytes_written.get().wrapping_add(kilobytes).into();
        let closed = *sb;
        drop(sb);
        *self.closed.lock() = closed;
        self.marked(closed, self.options.in_use)
    }

    /// Sets the deferred checksums of the inodes in a block of an inode table.
    fn set_inode_checksums(&self, tag: &Tag, table: &mut [u8]) -> Option<()> {
        let geometry = &self.sb.geometry;
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

    /// A superblock with a state. A volume that was not clean when it was opened does not become clean by unmounting.
    fn marked(&self, mut sb: DiskSuperblock, volume: VolumeState) -> DiskSuperblock {
        let mut state = State::from_bits_retain(sb.s_state.get());
        let Features { compat, mut incompat, ro_compat } = sb.features();
        incompat.set(Incompat::NEEDS_RECOVERY, volume == VolumeState::NeedsReplay);
        state.set(State::VALID, volume != VolumeState::NeedsCheck && self.options.was_valid);
        sb.s_state = state.bits().into();
        // the first revision has no features, and so no journal to replay
        if sb.s_rev_level.get() > 0 {
            sb.set_features(Features { compat, incompat, ro_compat });
        }
        sb.set_checksum();
        sb
    }
}

impl CommitHooks for Space {
    fn finish(&self, closing: &Closing<'_>) -> store::Result<()> {
        self.close_versions(closing.generation());
        self.finish_groups(closing)?;
        self.forget_allocated();
        let sb = self.close_superblock();
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
        self.written.fetch_add(bytes.len() as u64, Ordering::Relaxed);
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
            Kind::InodeTable => self.set_inode_checksums(tag, bytes),
            // the checksum is set where the block is written, or there is none
            _ => None,
        };
    }

    fn durable(&self, generation: u64) {
        self.versions_are_durable();
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
        let mut sb = *self.closed.lock();
        // errors of the volume are recorded without waiting for the next generation
        with_errors(&mut sb, &self.superblock.lock());
        let sb = self.marked(sb, state);
        (OFFSET, Arc::from(sb.as_bytes()))
    }
}
