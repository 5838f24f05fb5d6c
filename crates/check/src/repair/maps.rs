//! Block maps: the valid part is read, and a new map with exactly that is written.

use super::clusters;
use super::work::Work;
use crate::phases::inodes::block_maps::{check_header, is_possible, root_header_fits};
use crate::phases::inodes::extent_order::Order;
use crate::phases::inodes::file_totals::{FileFields, beyond_limit};
use crate::phases::inodes::has_no_map;
use blockdev::Result;
use format::extent::{self, Child, Extent, RawNode};
use format::feature::{Incompat, RoCompat};
use format::inode::{InodeBuf, InodeFlags};
use format::tail::Tailed;
use format::{FileBlock, FsBlock, InodeNo};
use std::collections::HashSet;
use std::ops::Range;

/// Number of impossible blocks at which an inode is cleared, as in e2fsck: it is probably not an inode.
pub(super) const TOO_MANY: u32 = 12;
/// Number of extents in an inode.
const IN_INODE: usize = 4;
/// Maximum number of nodes and indirect blocks of a file that are followed.
const MOST_NODES: usize = 1 << 22;

/// Maximum number of nodes of all files with shared blocks that are followed.
const MOST_SHARED: usize = 1 << 18;
/// Number of ranges of clusters that are collected before they are merged.
const MERGED_AT: usize = 1 << 20;

/// The valid part of an extent tree.
#[derive(Debug, Default)]
pub(super) struct Extents {
    /// Ascending, disjoint.
    pub(super) extents: Vec<Extent>,
    /// The blocks of the tree.
    pub(super) nodes: Vec<u64>,
    /// Something invalid was left out.
    pub(super) incomplete: bool,
}

/// The fields of an inode that the limits of its file depend on.
pub(super) fn fields(work: &Work<'_>, number: InodeNo, inode: &InodeBuf) -> FileFields {
    let volume = work.volume();
    let raw = inode.raw();
    FileFields {
        inode: number,
        kind: raw.kind(),
        flags: raw.flags(),
        size: raw.size(),
        sectors: raw.sectors(volume.features.ro_compat.contains(RoCompat::HUGE_FILE), volume.geometry.block_size),
        seed: raw.seed(&volume.geometry, number),
    }
}

/// Reads the valid part of the tree in `i_block`.
pub(super) fn read_extents(work: &Work<'_>, number: InodeNo, inode: &InodeBuf) -> Result<Extents> {
    read_valid(work, number, inode, u64::from(work.volume().geometry.cluster_blocks))
}

/// As [`read_extents`], with clusters of `ratio` blocks; with 1 blocks may be anywhere in a cluster.
fn read_valid(work: &Work<'_>, number: InodeNo, inode: &InodeBuf, ratio: u64) -> Result<Extents> {
    let (fields, found) = (fields(work, number, inode), Extents::default());
    let mut reader = Reader { work, fields, ratio, found, overrun: HashSet::new(), seen: HashSet::new() };
    let end = inode.raw().size().div_ceil(work.block_size() as u64);
    reader.node(&inode.raw().disk.i_block, None, end)?;
    let Reader { mut found, overrun, .. } = reader;
    let is_overrun = |extent: &Extent| overrun.contains(&extent.logical.get());
    let lengths = Order { follower: None, is_overrun, ratio }.lengths(&found.extents);
    for (extent, len) in found.extents.iter_mut().zip(lengths) {
        found.incomplete |= len < extent.len;
        extent.len = len;
    }
    found.extents.retain(|extent| extent.len > 0);
    Ok(found)
}

struct Reader<'a, 'w> {
    work: &'a Work<'w>,
    fields: FileFields,
    /// The number of blocks of a cluster in which they have their positions.
    ratio: u64,
    found: Extents,
    /// The first blocks of extents that extend beyond their node or the end of the file.
    overrun: HashSet<u64>,
    seen: HashSet<u64>,
}

impl Reader<'_, '_> {
    /// Reads a node that ends before file block `end`.
    fn node(&mut self, bytes: &[u8], expected: Option<u16>, end: u64) -> Result<()> {
        let Some(node) = RawNode::from_bytes(bytes) else {
            self.found.incomplete = true;
            return Ok(());
        };
        let fits = match expected {
            None => root_header_fits(&node),
            Some(depth) => {
                let owner = self.fields.owner();
                check_header(&node, owner, depth, bytes, &self.work.volume().geometry).fits
            }
        };
        if !fits {
            self.found.incomplete = true;
            return Ok(());
        }
        let depth = expected.unwrap_or(node.header.eh_depth.get());
        if depth == 0 {
            for extent in node.extents().iter().map(Extent::from) {
                match self.valid(extent) {
                    Some(extent) => {
                        if extent.logical.get() + u64::from(extent.len) > end {
                            self.overrun.insert(extent.logical.get());
                        }
                        self.found.extents.push(extent);
                    }
                    None => self.found.incomplete = true,
                }
            }
            return Ok(());
        }
        let indexes = node.indexes();
        for (n, index) in indexes.iter().enumerate() {
            let child = index.child().get();
            let end = indexes.get(n + 1).map_or(end, |next| u64::from(next.ei_block.get()));
            let is_new = self.work.volume().contains(child) && self.seen.len() < MOST_NODES && self.seen.insert(child);
            let Some(bytes) = self.work.block(child)?.filter(|_| is_new) else {
                self.found.incomplete = true;
                continue;
            };
            self.found.nodes.push(child);
            self.node(&bytes, Some(depth - 1), end)?;
        }
        Ok(())
    }

    /// The extent, if it is valid by itself.
    fn valid(&self, mut extent: Extent) -> Option<Extent> {
        if !is_possible(self.work.walk()?.ctx, &self.fields, &extent)
            || extent.physical.get() % self.ratio != extent.logical.get() % self.ratio
        {
            return None;
        }
        if self.fields.is_directory() {
            extent.unwritten = false;
        }
        Some(extent)
    }
}

/// Writes a tree of these extents, ascending and disjoint, into `i_block` and blocks: first those of `nodes`, then free
/// ones. `false` where there is no free block; the blocks of the inode are then unchanged.
pub(super) fn write_extents(
    work: &Work<'_>,
    number: InodeNo,
    inode: &mut InodeBuf,
    extents: &[Extent],
    nodes: &[u64],
) -> Result<bool> {
    let geometry = &work.volume().geometry;
    let seed = inode.raw().seed(geometry, number);
    let mut spare = nodes.iter().copied();
    let mut root = [0; 60];
    if extents.len() <= IN_INODE {
        if extent::write_leaf(&mut root, extents).is_none() {
            return Ok(false);
        }
        inode.set_block(root);
        return Ok(true);
    }
    let tail = geometry.tail(Tailed::ExtentNode);
    let capacity = node_capacity(work);
    let mut place = |bytes: &mut [u8], depth: u16| -> Result<Option<FsBlock>> {
        let Some(block) = spare.next().or_else(|| work.allocate_metadata()) else { return Ok(None) };
        // there is space: a node has as many entries as the tail leaves
        let _ = tail.write(bytes, number, depth.into());
        let _ = tail.set_checksum(bytes, FsBlock(block), seed);
        work.put_block(block, bytes)?;
        Ok(Some(FsBlock(block)))
    };
    let mut children = Vec::new();
    for chunk in extents.chunks(capacity) {
        let mut bytes = vec![0; work.block_size()];
        let (Some(()), Some(first)) = (extent::write_leaf(&mut bytes, chunk), chunk.first()) else { return Ok(false) };
        let Some(block) = place(&mut bytes, 0)? else { return Ok(false) };
        children.push(Child { logical: first.logical, block });
    }
    let mut depth = 1;
    while children.len() > IN_INODE {
        let mut above = Vec::new();
        for chunk in children.chunks(capacity) {
            let mut bytes = vec![0; work.block_size()];
            let written = extent::write_inner(&mut bytes, depth, chunk);
            let (Some(()), Some(first)) = (written, chunk.first()) else { return Ok(false) };
            let Some(block) = place(&mut bytes, depth)? else { return Ok(false) };
            above.push(Child { logical: first.logical, block });
        }
        children = above;
        depth += 1;
    }
    if extent::write_inner(&mut root, depth, &children).is_none() {
        return Ok(false);
    }
    inode.set_block(root);
    Ok(true)
}

/// Capacity in entries of a node outside the inode.
fn node_capacity(work: &Work<'_>) -> usize {
    work.volume().geometry.tail(Tailed::ExtentNode).extent_node_entries().max(1)
}

/// Writes the tail of an indirect block with owner, level and checksum, where the volume has such tails.
fn set_indirect_checksum(work: &Work<'_>, owner: InodeNo, level: u32, block: u64, bytes: &mut [u8]) {
    let tail = work.volume().geometry.tail(Tailed::Indirect);
    // a block is longer than a tail, whose checksum does not use the inode's seed
    let _ = tail.write(bytes, owner, level.into());
    let _ = tail.set_checksum(bytes, FsBlock(block), 0);
}

/// A block number in an indirect block map.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pointer {
    /// The block that it points to; not 0.
    pub(super) block: u64,
    /// 0 for data, otherwise the level of the indirect block.
    pub(super) level: u32,
    /// The first block of the file below it.
    pub(super) first: u64,
}

/// Calls `check` for every block number of a map, parents first, and writes its result: another number or 0. A block
/// with a new number is copied there. A block that is referenced twice is followed once, and the second reference is
/// dropped. Children of a multiply-claimed block are skipped: the check did not follow all of its references, so the
/// claims below it are unknown, and the apparent indirect block may be other metadata.
pub(super) fn edit_indirect(
    work: &Work<'_>,
    number: InodeNo,
    inode: &mut InodeBuf,
    check: &mut dyn FnMut(Pointer) -> Result<u64>,
) -> Result<()> {
    let format = work.volume().geometry.indirect();
    let mut words: [u32; 15] = inode.raw().block_words();
    let mut editor = Editor { work, owner: number, check, seen: HashSet::new() };
    for (n, word) in (0u32..).zip(&mut words) {
        let level = n.saturating_sub(11);
        let first = if level == 0 { u64::from(n) } else { format.first_of_level(level).get() };
        *word = editor.pointer(Pointer { block: u64::from(*word), level, first })?;
    }
    inode.set_block_words(&words);
    Ok(())
}

struct Editor<'a, 'w> {
    work: &'a Work<'w>,
    owner: InodeNo,
    check: &'a mut dyn FnMut(Pointer) -> Result<u64>,
    seen: HashSet<u64>,
}

impl Editor<'_, '_> {
    fn pointer(&mut self, pointer: Pointer) -> Result<u32> {
        if pointer.block == 0 {
            return Ok(0);
        }
        let to = (self.check)(pointer)?;
        if to == 0 || pointer.level == 0 {
            return Ok(to as u32);
        }
        if self.seen.len() >= MOST_NODES || !self.seen.insert(pointer.block) {
            return Ok(0);
        }
        if exclusive(self.work, &[pointer.block]).is_empty() {
            return Ok(to as u32);
        }
        let Some(mut bytes) = self.work.block(pointer.block)? else { return Ok(0) };
        let before = bytes.clone();
        let level = pointer.level - 1;
        let format = self.work.volume().geometry.indirect();
        let span = format.span(level);
        for (n, number) in (0..format.per_block()).zip(bytes.chunks_exact_mut(4)) {
            let block = <[u8; 4]>::try_from(&*number).map_or(0, u32::from_le_bytes);
            let first = pointer.first.saturating_add(n.saturating_mul(span));
            let new = self.pointer(Pointer { block: u64::from(block), level, first })?;
            number.copy_from_slice(&new.to_le_bytes());
        }
        set_indirect_checksum(self.work, self.owner, pointer.level, to, &mut bytes);
        if to != pointer.block || bytes != before {
            self.work.put_block(to, &bytes)?;
        }
        Ok(to as u32)
    }
}

/// Replaces an indirect block map by extents; the caller sets the flag. `false` where there is no free block for them.
pub(super) fn convert(work: &Work<'_>, number: InodeNo, inode: &mut InodeBuf) -> Result<bool> {
    let volume = work.volume();
    let ratio = u64::from(volume.geometry.cluster_blocks);
    let mut extents: Vec<Extent> = Vec::new();
    edit_indirect(work, number, &mut inode.clone(), &mut |pointer| {
        if !volume.contains(pointer.block) {
            return Ok(0);
        }
        // parents precede their children, so data blocks are in order
        if pointer.level == 0 && pointer.block % ratio == pointer.first % ratio && pointer.first < 1 << 32 {
            let (logical, physical) = (FileBlock(pointer.first), FsBlock(pointer.block));
            match extents.last_mut() {
                Some(last)
                    if last.logical.get() + u64::from(last.len) == pointer.first
                        && last.physical.get() + u64::from(last.len) == pointer.block
                        && last.len < u32::from(extent::MAX_INIT_LEN) =>
                {
                    last.len += 1;
                }
                _ => extents.push(Extent { logical, physical, len: 1, unwritten: false }),
            }
        }
        Ok(pointer.block)
    })?;
    write_extents(work, number, inode, &extents, &[])
}

/// Drops invalid entries of an inode's map. `false` where so many are impossible that it is probably not an inode.
pub(super) fn clean(work: &Work<'_>, number: InodeNo, inode: &mut InodeBuf) -> Result<bool> {
    if has_no_map(&inode.raw()) {
        return Ok(true);
    }
    if inode.raw().flags().contains(InodeFlags::EXTENTS) {
        let found = read_valid(work, number, inode, 1)?;
        let own = exclusive(work, &found.nodes);
        return write_extents(work, number, inode, &clusters::align(work, found.extents)?, &own);
    }
    let fields = fields(work, number, inode);
    let volume = work.volume();
    let Some(walk) = work.walk() else { return Ok(true) };
    let mut impossible = 0;
    edit_indirect(work, number, inode, &mut |pointer| {
        if !volume.contains(pointer.block) {
            impossible += 1;
            return Ok(0);
        }
        let beyond = match pointer.level {
            0 => beyond_limit(walk.ctx, &fields, FileBlock(pointer.first)).is_some(),
            _ => pointer.first > u64::from(u32::MAX),
        };
        Ok(if beyond { 0 } else { pointer.block })
    })?;
    Ok(impossible < TOO_MANY || number.get() < volume.geometry.first_inode)
}

/// The members of `blocks` that no other inode claims.
pub(super) fn exclusive(work: &Work<'_>, blocks: &[u64]) -> Vec<u64> {
    let Some(walk) = work.walk() else { return Vec::new() };
    let conflicts = &walk.sharing.conflicts;
    let shared = |block: u64| {
        let cluster = walk.ctx.claims.cluster_of(block);
        let at = conflicts.partition_point(|c| c.end <= cluster);
        conflicts.get(at).is_some_and(|c| c.contains(&cluster))
    };
    blocks.iter().copied().filter(|block| !shared(*block)).collect()
}

/// The blocks of a file in order, dense from block 0, and the blocks of its map. Holes are left out.
pub(super) fn dense(work: &Work<'_>, number: InodeNo, inode: &InodeBuf) -> Result<(Vec<u64>, Vec<u64>)> {
    dense_in(work, number, inode, u64::from(work.volume().geometry.cluster_blocks))
}

/// As [`dense`], with clusters of `ratio` blocks; with 1 blocks may be anywhere in a cluster.
pub(super) fn dense_in(work: &Work<'_>, number: InodeNo, inode: &InodeBuf, ratio: u64) -> Result<(Vec<u64>, Vec<u64>)> {
    if inode.raw().flags().contains(InodeFlags::INLINE_DATA) {
        return Ok((Vec::new(), Vec::new()));
    }
    if inode.raw().flags().contains(InodeFlags::EXTENTS) {
        let found = read_valid(work, number, inode, ratio)?;
        let blocks = found.extents.iter().flat_map(|e| (0..u64::from(e.len)).map(|n| e.physical.get() + n)).collect();
        return Ok((blocks, found.nodes));
    }
    let (mut blocks, mut nodes) = (Vec::new(), Vec::new());
    let mut copy = inode.clone();
    edit_indirect(work, number, &mut copy, &mut |pointer| {
        if !work.volume().contains(pointer.block) {
            return Ok(0);
        }
        if pointer.level == 0 { &mut blocks } else { &mut nodes }.push(pointer.block);
        Ok(pointer.block)
    })?;
    Ok((blocks, nodes))
}

/// Maps these blocks densely from block 0 on; the map's own blocks are first those of `nodes`. Sets `i_blocks` as well;
/// `extra` further blocks are counted as the file's. `false` where there is no free block.
pub(super) fn write_dense(
    work: &Work<'_>,
    number: InodeNo,
    inode: &mut InodeBuf,
    blocks: &[u64],
    nodes: &[u64],
    extra: u64,
) -> Result<bool> {
    let sectors = work.sectors(1);
    let ratio = u64::from(work.volume().geometry.cluster_blocks);
    let data = (blocks.len() as u64).div_ceil(ratio);
    if inode.raw().flags().contains(InodeFlags::EXTENTS) {
        let mut extents: Vec<Extent> = Vec::new();
        for (n, block) in (0u64..).zip(blocks) {
            match extents.last_mut() {
                Some(last)
                    if last.physical.get() + u64::from(last.len) == *block
                        && last.len < u32::from(extent::MAX_INIT_LEN) =>
                {
                    last.len += 1;
                }
                _ => {
                    extents.push(Extent { logical: FileBlock(n), physical: FsBlock(*block), len: 1, unwritten: false })
                }
            }
        }
        if !write_extents(work, number, inode, &extents, nodes)? {
            return Ok(false);
        }
        let tree = tree_blocks(extents.len(), node_capacity(work));
        work.set_sectors(inode, (data + tree + extra) * sectors);
        return Ok(true);
    }
    let mut builder = Builder { work, owner: number, blocks, at: 0, spare: nodes.iter().copied(), made: 0 };
    let mut words = [0u32; 15];
    for (n, word) in (0u32..).zip(&mut words) {
        match builder.below(n.saturating_sub(11))? {
            Some(block) => *word = block,
            None => return Ok(false),
        }
    }
    let made = builder.made;
    inode.set_block_words(&words);
    work.set_sectors(inode, (data + made + extra) * sectors);
    Ok(true)
}

/// Number of blocks of a tree with `extents` extents and nodes of `capacity` entries.
fn tree_blocks(extents: usize, capacity: usize) -> u64 {
    let (mut level, mut sum) = (extents, 0);
    while level > IN_INODE {
        level = level.div_ceil(capacity);
        sum += level as u64;
    }
    sum
}

struct Builder<'a, 'w, I> {
    work: &'a Work<'w>,
    owner: InodeNo,
    blocks: &'a [u64],
    at: usize,
    spare: I,
    made: u64,
}

impl<I: Iterator<Item = u64>> Builder<'_, '_, I> {
    /// The block number for the next blocks in a tree of this level; 0 where none remain, `None` where there is no free
    /// block.
    fn below(&mut self, level: u32) -> Result<Option<u32>> {
        let Some(next) = self.blocks.get(self.at) else { return Ok(Some(0)) };
        if level == 0 {
            self.at += 1;
            return Ok(Some(*next as u32));
        }
        let Some(block) = self.spare.next().or_else(|| self.work.allocate_metadata()) else { return Ok(None) };
        self.made += 1;
        let mut bytes = vec![0; self.work.block_size()];
        let per_block = self.work.volume().geometry.indirect().per_block() as usize;
        for number in bytes.chunks_exact_mut(4).take(per_block) {
            match self.below(level - 1)? {
                Some(0) => break,
                Some(child) => number.copy_from_slice(&child.to_le_bytes()),
                None => return Ok(None),
            }
        }
        set_indirect_checksum(self.work, self.owner, level, block, &mut bytes);
        self.work.put_block(block, &bytes)?;
        Ok(Some(block as u32))
    }
}

/// Truncates a file to its first `blocks` blocks. `false`, with nothing changed, where the map is not entirely valid:
/// blocks before the end would be lost.
pub(super) fn truncate(work: &Work<'_>, number: InodeNo, inode: &mut InodeBuf, blocks: u64) -> Result<bool> {
    if inode.raw().flags().contains(InodeFlags::EXTENTS) {
        let mut found = read_extents(work, number, inode)?;
        if found.incomplete {
            return Ok(false);
        }
        for extent in &mut found.extents {
            let left = blocks.saturating_sub(extent.logical.get());
            extent.len = extent.len.min(u32::try_from(left).unwrap_or(u32::MAX));
        }
        found.extents.retain(|extent| extent.len > 0);
        let own = exclusive(work, &found.nodes);
        return write_extents(work, number, inode, &found.extents, &own);
    }
    edit_indirect(work, number, inode, &mut |pointer| Ok(if pointer.first < blocks { pointer.block } else { 0 }))?;
    Ok(true)
}

/// The clusters beneath shared nodes of maps that have no claim, ascending and disjoint: the scan follows a node for its
/// first owner alone, and not at all where that has it as data.
pub(super) fn beneath_shared(work: &Work<'_>) -> Vec<Range<u64>> {
    let Some(walk) = work.walk().filter(|walk| !walk.sharing.conflicts.is_empty()) else { return Vec::new() };
    let mut inodes: Vec<InodeNo> = walk.sharing.records.iter().map(|record| record.inode).collect();
    inodes.dedup();
    let claims = &walk.ctx.claims;
    let (mut clusters, mut merged, mut nodes) = (Vec::new(), 0, 0);
    for number in inodes {
        let mut blocks = Vec::new();
        // of what cannot be read nothing is known
        let inode = work.inode(number).ok().flatten();
        let Some(inode) = inode.filter(|inode| nodes < MOST_SHARED && !has_no_map(&inode.raw())) else { continue };
        if inode.raw().flags().contains(InodeFlags::EXTENTS) {
            let Ok(found) = read_valid(work, number, &inode, 1) else { continue };
            nodes += found.nodes.len();
            blocks.extend(found.nodes.iter().map(|node| *node..node + 1));
            blocks.extend(found.extents.iter().map(|e| e.physical.get()..e.physical.get() + u64::from(e.len)));
        } else {
            for (n, word) in (0u32..).zip(inode.raw().block_words::<15>()) {
                beneath_indirect(work, word, n.saturating_sub(11), &mut nodes, &mut blocks);
            }
        }
        // of a node that was followed both ends of each run are claimed
        let is_claimed = |block: u64| claims.contains(claims.cluster_of(block));
        blocks.retain(|run| !is_claimed(run.start) || !is_claimed(run.end - 1));
        clusters.extend(blocks.iter().map(|blocks| claims.clusters_of(blocks)));
        // very many files may have the same blocks
        if clusters.len() > 2 * merged + MERGED_AT {
            merge(&mut clusters);
            merged = clusters.len();
        }
    }
    merge(&mut clusters);
    clusters
}

/// Sorts ranges and joins those that overlap or touch.
fn merge(ranges: &mut Vec<Range<u64>>) {
    ranges.sort_unstable_by_key(|range| range.start);
    ranges.dedup_by(|next, range| {
        let joins = next.start <= range.end;
        range.end = if joins { range.end.max(next.end) } else { range.end };
        joins
    });
}

/// Adds the blocks of an indirect block of this level and beneath it, or a data block at level 0.
fn beneath_indirect(work: &Work<'_>, block: u32, level: u32, nodes: &mut usize, blocks: &mut Vec<Range<u64>>) {
    let at = u64::from(block);
    if !work.volume().contains(at) || *nodes >= MOST_SHARED {
        return;
    }
    match blocks.last_mut() {
        Some(last) if last.end == at => last.end += 1,
        _ => blocks.push(at..at + 1),
    }
    let Some(bytes) = (if level == 0 { None } else { work.block(at).ok().flatten() }) else { return };
    *nodes += 1;
    for pointer in work.volume().geometry.indirect().pointers(&bytes) {
        beneath_indirect(work, pointer.get(), level - 1, nodes, blocks);
    }
}

/// The flags of a new file: extents where the volume has them.
pub(super) fn new_file_flags(work: &Work<'_>) -> InodeFlags {
    if work.volume().features.incompat.contains(Incompat::EXTENT) { InodeFlags::EXTENTS } else { InodeFlags::empty() }
}
