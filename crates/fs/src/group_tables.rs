//! Group descriptors and inode tables: their location, and reading them.
//!
//! Descriptors are read and verified when they are needed, so that the cost of opening a volume does not depend on its
//! size, and a damaged descriptor is an error for its own group only.

use crate::error::OfInode;
use crate::layout::MetadataGoes;
use crate::{Base, Disk, Error, Inode, Result};
use format::group::{Group, descriptor_checksum};
use format::{FsBlock, GroupNo, InodeNo, Structure, Where};
use std::sync::Arc;

/// Number of blocks of a metadata region that are read at once.
const AROUND: u64 = 64;

impl Disk {
    /// [`Base::group`] from its block, which may be older than the state in memory.
    pub(crate) fn read_descriptor(&self, group: GroupNo) -> Result<Group> {
        let geometry = &self.sb.geometry;
        let per_block = geometry.descriptors_per_block();
        let block = self.store.block(self.descriptor_block(group.get() / per_block))?;
        let size = geometry.descriptor_size as usize;
        let at = (group.get() % per_block) as usize * size;
        let bytes = block.get(at..at + size).unwrap_or_default();
        let found = Group::from_bytes(bytes);
        let bad = |what| Err(Error::corrupt(Structure::GroupDescriptor, Where::Group(group), what));
        if (geometry.metadata_csum || geometry.gdt_csum)
            && descriptor_checksum(&self.sb.disk, geometry, group, bytes) != found.checksum
        {
            return bad("bg_checksum does not match");
        }
        let table_end = found.inode_table.get().saturating_add(u64::from(geometry.itable_blocks));
        if found.inode_table.get() <= u64::from(geometry.first_data_block) || table_end > geometry.blocks {
            return bad("bg_inode_table lies outside the volume");
        }
        Ok(found)
    }

    /// The location of block `n` of the descriptor table: the primary, or the copy that belongs to the superblock the
    /// volume was opened with.
    fn descriptor_block(&self, n: u32) -> FsBlock {
        let geometry = &self.sb.geometry;
        match self.backup {
            None => geometry.descriptor_block(n),
            Some(superblock) if n < geometry.first_meta_group => {
                FsBlock(superblock.get().saturating_add(1 + u64::from(n)))
            }
            Some(_) => {
                let copies = geometry.descriptor_block_backups(n);
                copies.first().copied().unwrap_or_else(|| geometry.descriptor_block(n))
            }
        }
    }

    /// Prefetches blocks of the descriptor table.
    pub(crate) fn prefetch_descriptors(&self, first: u32, count: u32) {
        let end = first.saturating_add(count).min(self.sb.geometry.descriptor_blocks);
        let blocks: Vec<FsBlock> = (first..end).map(|n| self.descriptor_block(n)).collect();
        self.store.prefetch(&blocks);
    }

    /// The bit for the deferred checksum of the inode at `offset` in its block; 0 if checksums are written with the
    /// inode: without metadata_csum, and if a block has more inodes than there are bits.
    pub(crate) fn deferred_checksum(&self, offset: usize) -> u32 {
        let geometry = &self.sb.geometry;
        let deferred = geometry.metadata_csum && geometry.block_size / geometry.inode_size <= u32::BITS;
        if deferred { 1 << (offset as u32 / geometry.inode_size) } else { 0 }
    }
}

impl Base {
    /// The descriptor of a group, its checksum verified and its blocks inside the volume.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for that group, [`Error::NotFound`] for a group number beyond the last.
    pub fn group(&self, group: GroupNo) -> Result<Group> {
        let geometry = &self.sb.geometry;
        if group.get() >= geometry.groups {
            return Err(Error::NotFound);
        }
        if let Ok(space) = self.space() {
            return space.descriptor(group).ok_or(Error::NotFound);
        }
        self.read_descriptor(group)
    }

    /// Reads an uncached block of a tree together with its neighbours in a metadata region. These are blocks of the
    /// trees of files that were created at about the same time, each of which would cost a seek to the region and back.
    pub(crate) fn read_around(&self, block: FsBlock) {
        let geometry = &self.sb.geometry;
        if self.layout.metadata_goes() != MetadataGoes::IntoRegions || self.store.contains(block) {
            return;
        }
        let Some(group) = geometry.group_of(block) else { return };
        // without a descriptor, the block is read alone
        let mask = self.group(group).map_or(0, |found| found.regions);
        if let Some(region) = geometry.region_blocks(group, mask).find(|region| region.contains(&block.get())) {
            let start = block.get() - (block.get() - region.start) % AROUND;
            let blocks: Vec<_> = (start..region.end.min(start + AROUND)).map(FsBlock).collect();
            self.store.prefetch(&blocks);
        }
    }

    /// The first block of a group's inode table.
    fn inode_table(&self, group: GroupNo) -> Result<FsBlock> {
        match self.space() {
            Ok(space) => space.cell(group).map(|cell| cell.table).ok_or(Error::NotFound),
            Err(_) => Ok(self.group(group)?.inode_table),
        }
    }

    /// The block of the inode table that contains an inode, and the inode's byte offset in it.
    pub(crate) fn inode_place(&self, inode: InodeNo) -> Result<(FsBlock, usize)> {
        let slot = self.sb.geometry.inode_slot(inode).ok_or(Error::NotFound)?;
        let table = self.inode_table(slot.group)?;
        // `group` checked that the table is inside the volume
        Ok((FsBlock(table.get() + u64::from(slot.table_block)), slot.offset as usize))
    }

    /// Reads an inode from its table and validates it.
    pub(crate) fn load_inode(&self, number: InodeNo) -> Result<Arc<Inode>> {
        let (block, offset) = self.inode_place(number)?;
        let (block, waiting) = self.store.table_block(block)?;
        let slot = block.get(offset..offset + self.sb.geometry.inode_size as usize).unwrap_or_default();
        // in a slot that was never used, or was freed, nothing but i_mode and i_links_count needs to be valid
        if slot.get(..2) == Some(&[0; 2]) && slot.get(26..28) == Some(&[0; 2]) {
            return Err(Error::Stale(number));
        }
        let is_waiting = waiting & self.deferred_checksum(offset) != 0;
        let inode = if is_waiting {
            Inode::without_checksum(&self.sb, number, slot.into())
        } else {
            Inode::parse(&self.sb, number, slot)
        };
        Ok(Arc::new(inode.of(number)?))
    }

    /// Prefetches the table blocks of inodes in one batch. Inodes without a valid location are left out; their error is
    /// returned when they are read.
    pub fn prefetch_inodes(&self, inodes: impl IntoIterator<Item = InodeNo>) {
        let slots = inodes.into_iter().filter_map(|n| self.sb.geometry.inode_slot(n));
        let mut places: Vec<_> = slots.map(|slot| (slot.group, slot.table_block)).collect();
        places.sort_unstable();
        places.dedup();
        let tables = places.chunk_by(|a, b| a.0 == b.0).filter_map(|of_group| {
            let table = self.inode_table(of_group.first()?.0).ok()?;
            // `group` checked that the table is inside the volume
            Some(of_group.iter().map(move |place| FsBlock(table.get() + u64::from(place.1))))
        });
        let mut blocks: Vec<FsBlock> = tables.flatten().collect();
        blocks.sort_unstable();
        self.store.prefetch(&blocks);
    }
}
