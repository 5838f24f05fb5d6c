//! Rollback of an unused native volume to a snapshot.
//!
//! One generation does it: the volume gets the snapshot's map, with the current list of snapshots. It differs from the
//! snapshot only in the data groups' counts of blocks pinned by the other snapshots, and in the chunks allocated to the
//! new generation. Until it is durable the volume is unchanged.

use crate::alloc::{in_use, used_by};
use crate::native::{find, unreadable};
use crate::open::over_map;
use crate::{Base, Error, OpenOptions, Result, native};
use blockdev::BlockDevice;
use format::group::{Group, GroupFlags, bitmap_checksum};
use format::native::snapshots::Snapshot;
use format::native::{BLOCK_SIZE, CHUNK_BLOCKS};
use format::superblock::{DiskSuperblock, OFFSET};
use format::{FsBlock, GroupNo, InodeNo};
use space::{Container, Run};
use std::sync::Arc;
use store::engine::Rollback;
use store::native::Mapped;
use store::{BlockWrite, Kind, Tag};
use zerocopy::IntoBytes;

/// Maximum number of changed blocks besides the descriptors: bitmaps of groups that grant chunks, the superblock.
const OTHERS: usize = 64;

/// A data group of the volume after the rollback.
struct Data {
    number: GroupNo,
    descriptor: Group,
    /// The block bitmap, if the group granted chunks.
    changed: Option<Container>,
}

/// Rolls a native volume back to a snapshot: later changes are lost, unless another snapshot contains them. All
/// snapshots stay. The volume must not be in use.
///
/// # Errors
/// [`Error::Unsupported`] on volumes that are not native; [`Error::NotFound`]; [`Error::NoSpace`] if no space is left
/// for a new generation; [`Error::ReadOnly`] if the device cannot be written or ends before the volume does; those of
/// the device; [`Error::Corrupt`].
pub fn rollback(device: Arc<dyn BlockDevice>, name: &[u8]) -> Result<()> {
    if device.geometry().read_only {
        return Err(Error::ReadOnly("the device is read-only".into()));
    }
    let (superblock, mapped) = native::open(&device, None)?.ok_or_else(native::no_versions)?;
    if device.geometry().len / u64::from(BLOCK_SIZE) < superblock.layout.blocks() {
        return Err(Error::ReadOnly("the device ends before the volume does".into()));
    }
    let snapshot = find(&mapped, name)?;
    let options = OpenOptions::default();
    let now = over_map(&superblock, Arc::clone(&mapped), &options).map_err(|e| unreadable(e, false))?;
    let then = over_map(&superblock, Arc::new(mapped.at(&snapshot)), &options).map_err(|e| unreadable(e, true))?;
    let plan = Rollback::new(&mapped, &snapshot, superblock.layout.front() as usize + OTHERS)?;
    let others: Vec<Snapshot> =
        mapped.snapshots()?.iter().flatten().filter(|other| other.name != name).cloned().collect();
    let mut chunks = Vec::new();
    let mut groups = Vec::new();
    for number in 0..superblock.layout.data_groups() {
        let want = plan.wanted_chunks().saturating_sub(chunks.len() as u64);
        groups.push(then.group_of_snapshot(&now, &mapped, &others, GroupNo(number), want, &mut chunks)?);
    }
    let taken = chunks.len() as u64 * u64::from(CHUNK_BLOCKS);
    let blocks = then.changed_blocks(groups, taken)?;
    Ok(plan.carry_out(&chunks, blocks)?)
}

impl Base {
    /// A data group of this volume, a snapshot, with the count of blocks pinned by the other snapshots; allocates up to
    /// `want` unused chunks.
    fn group_of_snapshot(
        &self,
        now: &Self,
        mapped: &Mapped,
        others: &[Snapshot],
        number: GroupNo,
        want: u64,
        chunks: &mut Vec<u32>,
    ) -> Result<Data> {
        let mut descriptor = self.group(number)?;
        let mut used = in_use(&self.store.block(descriptor.block_bitmap)?);
        let pinned = used_by(mapped, others, descriptor.block_bitmap)?;
        let mut free = pinned.clone();
        free.subtract(&used);
        descriptor.set_pinned(free.count().into());
        let mut changed = None;
        if want > 0 {
            let present = in_use(&now.store.block(now.group(number)?.block_bitmap)?);
            let chunks_there = self.layout.chunks_of(number);
            let (first, all) = (chunks_there.start, chunks_there.end - chunks_there.start);
            let blocks = |chunk: u32| Run { start: chunk * CHUNK_BLOCKS, len: CHUNK_BLOCKS };
            let is_free = |chunk: &u32| [&used, &pinned, &present].iter().all(|set| !set.intersects(blocks(*chunk)));
            let found: Vec<u32> = (0..all).filter(is_free).take(usize::try_from(want).unwrap_or(usize::MAX)).collect();
            for chunk in &found {
                used.add(blocks(*chunk));
                chunks.push(first + chunk);
                descriptor.free_clusters = descriptor.free_clusters.saturating_sub(CHUNK_BLOCKS);
            }
            if !found.is_empty() {
                descriptor.flags.remove(GroupFlags::BLOCK_UNINIT);
                changed = Some(used);
            }
        }
        Ok(Data { number, descriptor, changed })
    }

    /// The blocks that differ from this volume, which is a snapshot: descriptors, bitmaps, and the superblock if blocks
    /// were allocated.
    fn changed_blocks(&self, groups: Vec<Data>, taken: u64) -> Result<Vec<BlockWrite>> {
        let geometry = &self.sb.geometry;
        let tag = |kind| Tag::new(kind, InodeNo(0));
        let (mut blocks, mut bitmaps) = (Vec::new(), Vec::new());
        if taken > 0 {
            let mut sb = self.sb.disk;
            sb.set_free_blocks_count(sb.free_blocks_count().saturating_sub(taken));
            sb.set_checksum();
            let mut bytes = self.store.block(FsBlock(0))?.to_vec();
            if let Some(place) = bytes.get_mut(OFFSET as usize..OFFSET as usize + DiskSuperblock::SIZE) {
                place.copy_from_slice(sb.as_bytes());
            }
            blocks.push(BlockWrite {
                block: FsBlock(0),
                tag: tag(Kind::Superblock),
                data: bytes.into(),
                fresh: false,
                before: None,
            });
        }
        let per_block = geometry.descriptors_per_block();
        let size = geometry.descriptor_size as usize;
        let mut groups = groups;
        for groups in groups.chunk_by_mut(|a, b| a.number.get() / per_block == b.number.get() / per_block) {
            let Some(first) = groups.first().map(|group| group.number.get()) else { continue };
            let block = geometry.descriptor_block(first / per_block);
            let mut bytes = self.store.block(block)?.to_vec();
            for Data { number, descriptor, changed } in groups {
                if let Some(used) = changed {
                    let mut bitmap = vec![0; geometry.block_size as usize];
                    used.complement().write_bitmap(&mut bitmap);
                    descriptor.block_bitmap_csum = bitmap_checksum(geometry, &bitmap, geometry.clusters_per_group());
                    let (block, data) = (descriptor.block_bitmap, bitmap.into());
                    bitmaps.push(BlockWrite { block, tag: tag(Kind::BlockBitmap), data, fresh: false, before: None });
                }
                let at = (number.get() % per_block) as usize * size;
                if let Some(place) = bytes.get_mut(at..at + size) {
                    descriptor.set_checksum(&self.sb.disk, geometry, *number, place);
                }
            }
            blocks.push(BlockWrite {
                block,
                tag: tag(Kind::Descriptors),
                data: bytes.into(),
                fresh: false,
                before: None,
            });
        }
        bitmaps.sort_unstable_by_key(|write: &BlockWrite| write.block);
        blocks.extend(bitmaps);
        Ok(blocks)
    }
}
