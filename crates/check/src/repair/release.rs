//! Orphans of a volume marked clean, which are released without a check, as by a mount. Anything unexpected is left to
//! the check.

use super::work::Work;
use crate::phases::inodes::block_maps::{check_header, root_header_fits};
use crate::phases::inodes::has_no_map;
use crate::system_zone;
use blockdev::Result;
use format::extent::{MAX_DEPTH, RawNode};
use format::feature::{Compat, Incompat, RoCompat};
use format::group::{GroupFlags, bitmap_checksum};
use format::inode::{FileKind, InodeBuf, InodeFlags};
use format::xattr::{self, MAGIC, XattrHeader};
use format::{FsBlock, GroupNo, InodeNo};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Range;
use zerocopy::FromBytes;

/// Maximum number of orphans that are released without a check.
const MOST: usize = 1 << 16;
/// Maximum number of blocks that are freed without a check: each is stored in memory, and a damaged map may repeat
/// them.
const MOST_BLOCKS: u64 = 1 << 22;

/// The blocks and inodes to be freed.
#[derive(Default)]
struct Freed {
    blocks: BTreeSet<u64>,
    inodes: Vec<(InodeNo, bool)>,
    /// Shared attribute blocks, with the number of references to drop.
    shared: BTreeMap<u64, u32>,
}

/// Releases the inodes on the orphan list, updates bitmaps and counts, and empties the list. Returns their number;
/// `None` where a check is required, with no metadata changed.
pub(super) fn list(work: &Work<'_>) -> Result<Option<usize>> {
    let volume = work.volume();
    let (features, geometry) = (&volume.features, &volume.geometry);
    let plain =
        !features.ro_compat.intersects(
            RoCompat::BIGALLOC | RoCompat::QUOTA | RoCompat::PROJECT | RoCompat::ORPHAN_PRESENT | RoCompat::READONLY,
        ) && !features.incompat.intersects(Incompat::EA_INODE | Incompat::NEEDS_RECOVERY | Incompat::JOURNAL_DEV)
            && !geometry.has_regions()
            && volume.untrusted.is_empty();
    let own: Vec<Range<u64>> = {
        let mut own: Vec<_> = system_zone::blocks(volume).collect();
        own.sort_unstable_by_key(|blocks| blocks.start);
        own
    };
    if !plain {
        return Ok(None);
    }
    let mut freed = Freed::default();
    let mut seen = HashSet::new();
    let mut files: Vec<(InodeNo, InodeBuf)> = Vec::new();
    let mut next = volume.disk.s_last_orphan.get();
    while next != 0 {
        let number = InodeNo(next);
        let ordinary =
            (geometry.first_inode..=geometry.inodes).contains(&next) && !volume.is_quota_or_orphan_file(number);
        if !ordinary || !seen.insert(next) || seen.len() > MOST {
            return Ok(None);
        }
        let Some(mut inode) = work.inode(number)? else { return Ok(None) };
        let raw = inode.raw();
        let valid = !geometry.metadata_csum || raw.checksum(geometry, number) == raw.stored_checksum();
        let Some(kind) = raw.kind().filter(|_| valid) else { return Ok(None) };
        next = raw.disk.i_dtime.get();
        let Some(mapped) = mapped_by(work, number, &inode)? else { return Ok(None) };
        if raw.disk.i_links_count.get() > 0 {
            // one to be truncated that is already as short as its size
            let blocks = raw.size().div_ceil(u64::from(geometry.block_size));
            let longer = mapped.last.is_some_and(|last| last >= blocks);
            if kind != FileKind::Regular || raw.flags().contains(InodeFlags::INLINE_DATA) || longer {
                return Ok(None);
            }
            inode.disk_mut().i_dtime = 0.into();
        } else {
            if freed.blocks.len() as u64 + mapped.blocks.len() as u64 > MOST_BLOCKS {
                return Ok(None);
            }
            for block in mapped.blocks {
                let at = own.partition_point(|blocks| blocks.end <= block);
                let metadata = own.get(at).is_some_and(|blocks| blocks.contains(&block));
                if metadata || !volume.contains(block) || !freed.blocks.insert(block) {
                    return Ok(None);
                }
            }
            if !attributes(work, &inode, &mut freed)? {
                return Ok(None);
            }
            freed.inodes.push((number, kind == FileKind::Directory));
            inode.disk_mut().i_dtime = work.now32().into();
        }
        files.push((number, inode));
    }
    // a freed file block cannot be a shared attribute block as well
    if freed.shared.keys().any(|block| freed.blocks.contains(block)) || !free(work, &freed)? {
        return Ok(None);
    }
    let count = files.len();
    for (number, inode) in files {
        work.put_inode(number, inode)?;
    }
    let (blocks, inodes) = (freed.blocks.len() as u64, freed.inodes.len() as u32);
    work.edit_superblock(|sb| {
        sb.s_last_orphan = 0.into();
        sb.set_free_blocks_count(sb.free_blocks_count().saturating_add(blocks));
        sb.s_free_inodes_count = sb.s_free_inodes_count.get().saturating_add(inodes).into();
    })?;
    Ok(Some(count))
}

/// The blocks and inodes of one group to be freed.
#[derive(Default)]
struct Bits {
    blocks: Vec<u64>,
    /// Indexes of the inodes in the group, and whether each is a directory.
    inodes: Vec<(u32, bool)>,
}

/// The blocks that an inode maps.
#[derive(Default)]
struct Mapped {
    blocks: Vec<u64>,
    /// The last block of the file that is mapped.
    last: Option<u64>,
}

/// The blocks that an inode maps; `None` where any of its map is invalid.
fn mapped_by(work: &Work<'_>, number: InodeNo, inode: &InodeBuf) -> Result<Option<Mapped>> {
    let raw = inode.raw();
    let mut mapped = Mapped::default();
    let flags = raw.flags();
    if has_no_map(&raw) {
        return Ok(Some(mapped));
    }
    let valid = if flags.contains(InodeFlags::EXTENTS) {
        extents(work, number, inode, &raw.disk.i_block, None, &mut mapped)?
    } else {
        let format = work.volume().geometry.indirect();
        let mut valid = true;
        for (n, word) in (0u32..).zip(raw.block_words::<15>()) {
            let level = n.saturating_sub(11);
            let first = if level == 0 { u64::from(n) } else { format.first_of_level(level).get() };
            valid = valid && indirect(work, word, level, first, &mut mapped)?;
        }
        valid
    };
    Ok(valid.then_some(mapped))
}

/// Collects the blocks below a node of an extent tree; returns whether all are valid.
fn extents(
    work: &Work<'_>,
    number: InodeNo,
    inode: &InodeBuf,
    bytes: &[u8],
    depth: Option<u16>,
    mapped: &mut Mapped,
) -> Result<bool> {
    let geometry = &work.volume().geometry;
    let Some(node) = RawNode::from_bytes(bytes) else { return Ok(false) };
    let at = node.header.eh_depth.get();
    let valid = match depth {
        None => root_header_fits(&node) && at <= MAX_DEPTH,
        Some(depth) => {
            let seed = inode.raw().seed(geometry, number);
            let seen = check_header(&node, (number, seed), depth, bytes, geometry);
            seen.is_valid()
        }
    };
    if !valid {
        return Ok(false);
    }
    if at == 0 {
        for extent in node.extents() {
            let (start, len) = (extent.start().get(), u64::from(extent.len()));
            let end = start.saturating_add(len);
            let all = mapped.blocks.len() as u64 + len;
            if len == 0 || !work.volume().contains(start) || end > geometry.blocks || all > MOST_BLOCKS {
                return Ok(false);
            }
            mapped.blocks.extend(start..end);
            mapped.last = mapped.last.max(Some(u64::from(extent.ee_block.get()) + len - 1));
        }
        return Ok(true);
    }
    for index in node.indexes() {
        let child = index.child().get();
        let Some(bytes) = work.block(child)?.filter(|_| work.volume().contains(child)) else { return Ok(false) };
        if mapped.blocks.len() as u64 >= MOST_BLOCKS {
            return Ok(false);
        }
        mapped.blocks.push(child);
        if !extents(work, number, inode, &bytes, Some(at - 1), mapped)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Collects the blocks below an indirect block of this level, or a data block at level 0.
fn indirect(work: &Work<'_>, block: u32, level: u32, first: u64, mapped: &mut Mapped) -> Result<bool> {
    if block == 0 {
        return Ok(true);
    }
    let (volume, block) = (work.volume(), u64::from(block));
    // the limit ends a map with a loop
    if !volume.contains(block) || mapped.blocks.len() as u64 >= MOST_BLOCKS {
        return Ok(false);
    }
    mapped.blocks.push(block);
    if level == 0 {
        mapped.last = mapped.last.max(Some(first));
        return Ok(true);
    }
    let format = volume.geometry.indirect();
    let Some(bytes) = work.block(block)? else { return Ok(false) };
    let span = format.span(level - 1);
    for (n, pointer) in (0u64..).zip(format.pointers(&bytes)) {
        if !indirect(work, pointer.get(), level - 1, first.saturating_add(n.saturating_mul(span)), mapped)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Records the change to an inode's attribute block; returns whether the block is valid.
fn attributes(work: &Work<'_>, inode: &InodeBuf, freed: &mut Freed) -> Result<bool> {
    let wide = work.volume().features.incompat.contains(Incompat::BIT64);
    let block = inode.raw().file_acl(wide).get();
    if block == 0 {
        return Ok(true);
    }
    let ext_attr = work.volume().features.compat.contains(Compat::EXT_ATTR) && work.volume().contains(block);
    let Some(bytes) = work.block(block)?.filter(|_| ext_attr) else { return Ok(false) };
    let Ok((header, _)) = XattrHeader::ref_from_prefix(&bytes) else { return Ok(false) };
    let going = freed.shared.entry(block).or_default();
    *going += 1;
    let (going, users) = (*going, header.h_refcount.get());
    if header.h_magic.get() != MAGIC || going > users {
        return Ok(false);
    }
    if going == users {
        freed.shared.remove(&block);
        return Ok(freed.blocks.insert(block));
    }
    Ok(true)
}

/// Clears the bits of the freed blocks and inodes and updates the counts; `false`, with nothing changed, where one of
/// them is not set.
fn free(work: &Work<'_>, freed: &Freed) -> Result<bool> {
    let geometry = &work.volume().geometry;
    let mut changes: BTreeMap<GroupNo, Bits> = BTreeMap::new();
    for block in &freed.blocks {
        let Some(group) = geometry.group_of(FsBlock(*block)) else { return Ok(false) };
        changes.entry(group).or_default().blocks.push(*block - geometry.group_blocks(group).start);
    }
    for (inode, directory) in &freed.inodes {
        let Some(slot) = geometry.inode_slot(*inode) else { return Ok(false) };
        changes.entry(slot.group).or_default().inodes.push((slot.index, *directory));
    }
    let mut ready = Vec::new();
    for (number, Bits { blocks, inodes }) in changes {
        let Some(mut group) = work.group(number) else { return Ok(false) };
        let (Some(mut of_blocks), Some(mut of_inodes)) =
            (work.block(group.block_bitmap.get())?, work.block(group.inode_bitmap.get())?)
        else {
            return Ok(false);
        };
        let unwritten = |flag, any: bool| any && group.flags.contains(flag);
        if unwritten(GroupFlags::BLOCK_UNINIT, !blocks.is_empty())
            || unwritten(GroupFlags::INODE_UNINIT, !inodes.is_empty())
            || !blocks.iter().all(|bit| clear(&mut of_blocks, *bit))
            || !inodes.iter().all(|(bit, _)| clear(&mut of_inodes, u64::from(*bit)))
        {
            return Ok(false);
        }
        let directories = inodes.iter().filter(|(_, directory)| *directory).count() as u32;
        group.free_clusters = group.free_clusters.saturating_add(blocks.len() as u32);
        group.free_inodes = group.free_inodes.saturating_add(inodes.len() as u32);
        group.directories = group.directories.saturating_sub(directories);
        if geometry.metadata_csum && !blocks.is_empty() {
            group.block_bitmap_csum = bitmap_checksum(geometry, &of_blocks, geometry.clusters_per_group());
        }
        if geometry.metadata_csum && !inodes.is_empty() {
            group.inode_bitmap_csum = bitmap_checksum(geometry, &of_inodes, geometry.inodes_per_group);
        }
        ready.push((number, group, of_blocks, of_inodes));
    }
    for (number, group, of_blocks, of_inodes) in ready {
        work.put_block(group.block_bitmap.get(), &of_blocks)?;
        work.put_block(group.inode_bitmap.get(), &of_inodes)?;
        work.put_group(number, group)?;
    }
    for (block, going) in &freed.shared {
        let Some(mut bytes) = work.block(*block)? else { continue };
        if let Ok((header, _)) = XattrHeader::mut_from_prefix(&mut bytes) {
            header.h_refcount = header.h_refcount.get().saturating_sub(*going).into();
        }
        if geometry.metadata_csum {
            let _ = xattr::write_block_checksum(&mut bytes, FsBlock(*block), geometry.checksum_seed);
        }
        work.put_block(*block, &bytes)?;
    }
    Ok(true)
}

/// Clears a bit; returns whether it was set.
fn clear(bitmap: &mut [u8], bit: u64) -> bool {
    let Some(byte) = bitmap.get_mut((bit / 8) as usize) else { return false };
    let was = *byte >> (bit % 8) & 1 == 1;
    *byte &= !(1 << (bit % 8));
    was
}
