//! Writing the image of a new volume to a device.
//!
//! 1. The old volume is wiped first: its primary superblock, then all copies.
//! 2. Then zeroes, then everything else in ascending order, in large batches.
//! 3. The primary superblock is written last, after a flush, so that a device contains no volume if this was
//!    interrupted.

use super::VolumeImage;
use super::error::{Error, Result};
use super::physical_layer::{NewMap, PhysicalLayer};
use super::wipe::wipe;
use blockdev::{BlockDevice, Write};
use format::group::GroupFlags;
use format::native::BLOCK_SIZE;
use format::space_map::SpaceMaps;
use format::superblock::OFFSET;
use format::{FsBlock, GroupNo, InodeNo};
use std::ops::Range;
use std::sync::Arc;
use store::{BlockWrite, Kind, Tag};
use zerocopy::IntoBytes;

/// Bytes collected before they are written.
const BATCH_BYTES: usize = 16 << 20;
/// Bytes zeroed in one step, so that progress can be shown.
const ZERO_STEP: u64 = 256 << 20;

/// Blocks to be written, by their source.
enum PlannedBlocks<'a> {
    /// A group's copy of the superblock.
    Superblock(GroupNo),
    /// Blocks of the descriptor table.
    Descriptors(Range<u32>),
    BlockBitmap(GroupNo),
    InodeBitmap(GroupNo),
    Bytes(Kind, InodeNo, &'a [u8]),
}

impl VolumeImage {
    /// Writes the volume and flushes it; all previous content of the device is lost. Calls `progress` with the number
    /// of bytes done and the total.
    ///
    /// # Errors
    /// [`super::Error::Device`]: the previous content of the device is lost all the same, and it contains no volume.
    pub fn write(&self, device: &dyn BlockDevice, progress: &mut dyn FnMut(u64, u64)) -> Result<()> {
        let geometry = &self.superblock().geometry;
        let block_size = u64::from(geometry.block_size);
        let len = self.device_blocks() * block_size;
        let zeroes = if self.layer.writes_zeroes() { self.zeroes() } else { Vec::new() };
        let total = zeroes.iter().map(|run| run.end - run.start).sum::<u64>() * block_size;
        let mut done = 0;
        progress(done, total);
        if self.options.discard {
            device.discard(0, len)?;
        }
        wipe(device, len)?;
        for run in zeroes {
            let (mut at, end) = (run.start * block_size, run.end * block_size);
            while at < end {
                let step = ZERO_STEP.min(end - at);
                device.write_zeroes(at, step)?;
                at += step;
                done += step;
                progress(done, total);
            }
        }
        match &self.layer {
            PhysicalLayer::Device => self.write_pieces(device),
            PhysicalLayer::Map(map) => self.write_through(map, device),
        }
    }

    /// Blocks that must read as zeroes, in order: inode tables, and the journal.
    fn zeroes(&self) -> Vec<Range<u64>> {
        let geometry = &self.superblock().geometry;
        let table = u64::from(geometry.itable_blocks);
        let mut runs: Vec<Range<u64>> = self
            .groups()
            .iter()
            .filter(|group| {
                // a table marked as unused is zeroed by the kernel, or on first use
                !(self.options.lazy_inode_tables && group.flags.contains(GroupFlags::INODE_UNINIT))
            })
            .map(|group| group.inode_table.get()..group.inode_table.get() + table)
            .collect();
        runs.extend(self.maps.iter().map(SpaceMaps::ring));
        if !self.options.lazy_journal {
            runs.extend(self.content().journal.iter().cloned());
        }
        runs.sort_unstable_by_key(|run| run.start);
        let mut joined: Vec<Range<u64>> = Vec::new();
        for run in runs {
            match joined.last_mut().filter(|last| last.end == run.start) {
                Some(last) => last.end = run.end,
                None => joined.push(run),
            }
        }
        joined
    }

    /// Writes all blocks except zeroes to the device itself, the primary superblock last.
    fn write_pieces(&self, device: &dyn BlockDevice) -> Result<()> {
        let block_size = u64::from(self.superblock().geometry.block_size);
        let mut batch = Batch { device, runs: Vec::new(), bytes: 0 };
        self.each_piece(|at, _, _, bytes| batch.add(at.get() * block_size, bytes))?;
        batch.write()?;
        device.flush()?;
        let primary = self.superblock().disk.copy_for(GroupNo(0));
        device.write(OFFSET, primary.as_bytes())?;
        device.flush()?;
        Ok(())
    }

    /// Writes all blocks except zeroes through a new map: those of the metadata groups, and of the front.
    fn write_through(&self, map: &NewMap, device: &dyn BlockDevice) -> Result<()> {
        let size = u64::from(BLOCK_SIZE);
        for block in map.layout.backup_blocks() {
            device.write_zeroes(block * size, size)?;
        }
        let write = |block, kind, owner, data: &[u8]| {
            let tag = Tag::new(kind, owner);
            BlockWrite { block: FsBlock(block), tag, data: Arc::from(data), fresh: true, before: None }
        };
        let mut first = vec![0; BLOCK_SIZE as usize];
        let superblock = self.superblock().disk.copy_for(GroupNo(0));
        first[OFFSET as usize..][..superblock.as_bytes().len()].copy_from_slice(superblock.as_bytes());
        let mut blocks = vec![write(0, Kind::Superblock, InodeNo(0), &first)];
        self.each_piece(|at, kind, owner, bytes| {
            let block = bytes.chunks(BLOCK_SIZE as usize).zip(at.get()..);
            blocks.extend(block.map(|(data, at)| write(at, kind, owner, data)));
            Ok(())
        })?;
        blocks.sort_unstable_by_key(|write| write.block);
        let uuid = self.superblock().disk.s_uuid;
        store::engine::make(device, map.layout, uuid, &map.chunks, blocks).map_err(|e| match e {
            store::Error::Device(e) => Error::Device(e),
            other => Error::Options(other.to_string()),
        })
    }

    /// Calls `see` for everything except the primary superblock, ascending: its first block, its kind, the inode it
    /// belongs to (0 for none), and whole blocks of bytes.
    fn each_piece(&self, mut see: impl FnMut(FsBlock, Kind, InodeNo, &[u8]) -> Result<()>) -> Result<()> {
        let geometry = &self.superblock().geometry;
        let block_size = geometry.block_size as usize;
        let descriptors = self.descriptors();
        let inode_blocks = self.inode_blocks();
        let no_inode = InodeNo(0);
        let map_runs = self.map_runs();
        let mut planned = self.group_blocks();
        planned.extend(map_runs.iter().map(|(at, bytes)| (*at, PlannedBlocks::Bytes(Kind::SpaceMap, no_inode, bytes))));
        let blocks = self
            .content()
            .blocks
            .iter()
            .map(|block| (block.at, PlannedBlocks::Bytes(block.kind, block.owner, &block.bytes)));
        planned.extend(blocks);
        planned.extend(
            inode_blocks.iter().map(|(at, bytes)| (*at, PlannedBlocks::Bytes(Kind::InodeTable, no_inode, bytes))),
        );
        planned.sort_unstable_by_key(|(at, _)| *at);
        for (at, piece) in &planned {
            match piece {
                PlannedBlocks::Superblock(group) => {
                    let mut block = self.superblock().disk.copy_for(*group).as_bytes().to_vec();
                    block.resize(block_size, 0);
                    see(*at, Kind::Superblock, no_inode, &block)?;
                }
                PlannedBlocks::Descriptors(which) => {
                    let bytes = which.start as usize * block_size..which.end as usize * block_size;
                    see(*at, Kind::Descriptors, no_inode, &descriptors[bytes])?;
                }
                PlannedBlocks::BlockBitmap(group) => see(*at, Kind::BlockBitmap, no_inode, &self.block_bitmap(*group))?,
                PlannedBlocks::InodeBitmap(group) => see(*at, Kind::InodeBitmap, no_inode, &self.inode_bitmap(*group))?,
                PlannedBlocks::Bytes(kind, owner, bytes) => see(*at, *kind, *owner, bytes)?,
            }
        }
        Ok(())
    }

    /// Copies of the superblock (except the primary one), descriptors and bitmaps.
    fn group_blocks(&self) -> Vec<(FsBlock, PlannedBlocks<'static>)> {
        let geometry = &self.superblock().geometry;
        let mut planned = Vec::new();
        // descriptors before the meta groups are consecutive behind each superblock
        let row = geometry.descriptor_blocks.min(geometry.first_meta_group);
        for number in geometry.group_numbers() {
            if let Some(at) = geometry.superblock_block(number) {
                if number.get() > 0 {
                    planned.push((at, PlannedBlocks::Superblock(number)));
                }
                if row > 0 {
                    planned.push((FsBlock(at.get() + 1), PlannedBlocks::Descriptors(0..row)));
                }
            }
        }
        for n in row..geometry.descriptor_blocks {
            let copies = geometry.descriptor_block_backups(n).into_iter();
            let all = std::iter::once(geometry.descriptor_block(n)).chain(copies);
            planned.extend(all.map(|at| (at, PlannedBlocks::Descriptors(n..n + 1))));
        }
        for (number, group) in geometry.group_numbers().zip(self.groups()) {
            // a bitmap marked as uninitialized follows from the descriptor
            if !group.flags.contains(GroupFlags::BLOCK_UNINIT) && self.maps.is_none() {
                planned.push((group.block_bitmap, PlannedBlocks::BlockBitmap(number)));
            }
            if !group.flags.contains(GroupFlags::INODE_UNINIT) {
                planned.push((group.inode_bitmap, PlannedBlocks::InodeBitmap(number)));
            }
        }
        planned
    }
}

/// Collects writes: contiguous ones are merged.
struct Batch<'a> {
    device: &'a dyn BlockDevice,
    runs: Vec<(u64, Vec<u8>)>,
    bytes: usize,
}

impl Batch<'_> {
    fn add(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        match self.runs.last_mut().filter(|(start, run)| start + run.len() as u64 == offset) {
            Some((_, run)) => run.extend_from_slice(bytes),
            None => self.runs.push((offset, bytes.to_vec())),
        }
        self.bytes += bytes.len();
        if self.bytes >= BATCH_BYTES {
            self.write()?;
        }
        Ok(())
    }

    fn write(&mut self) -> Result<()> {
        let mut writes: Vec<_> = self.runs.iter().map(|(offset, bytes)| Write::new(*offset, bytes)).collect();
        self.device.write_many(&mut writes);
        for write in writes {
            write.result?;
        }
        self.runs.clear();
        self.bytes = 0;
        Ok(())
    }
}
