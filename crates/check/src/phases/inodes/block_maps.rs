//! Block maps: extent trees and indirect blocks, checked node by node in whatever order they are read.
//!
//! Contract with the rounds
//! - A node is checked against its parent's entry: level, and the range of file blocks. Since children of one parent
//!   cover disjoint ranges, order and overlap are checked without the neighbours.
//! - Blocks of data are claimed here, at once. Blocks that will be read (tree nodes, directories, links) are passed on
//!   in [`Found`] and claimed at the start of the round that reads them, in disk order: the first claim does not depend
//!   on threads, and a block that two maps share is followed only once, so a walk of a map with a loop ends.

use crate::context::Context;
use crate::phases::inodes::extent_order::Order;
use crate::phases::inodes::file_totals::{FileFields, Tally, beyond_limit};
use crate::problem::Problem;
use crate::scan::found::{DirRun, Edge, Found, LinkTarget, Node, NodeKind};
use crate::scan::walk::Claimer;
use crate::table::Code;
use format::extent::{self, DiskExtent, Extent, RawNode};
use format::superblock::Geometry;
use format::tail::Tailed;
use format::{FileBlock, FsBlock, InodeNo, indirect};
use std::ops::Range;
use zerocopy::little_endian::U32;

/// The checker of block maps.
pub(crate) struct Trees<'a> {
    pub(crate) ctx: &'a Context<'a>,
    pub(crate) claimer: &'a dyn Claimer,
}

/// The position of a node in its tree.
struct NodePosition {
    block: Option<FsBlock>,
    depth: u16,
    range: Range<u64>,
}

impl Trees<'_> {
    /// Checks the root of an extent tree in `i_block`.
    pub(crate) fn extent_root(&self, fields: &FileFields, i_block: &[u8], tally: &mut Tally, found: &mut Found) {
        let Some(node) = RawNode::from_bytes(i_block) else { return };
        let depth = node.header.eh_depth.get();
        if !root_header_fits(&node) {
            tally.incomplete = true;
            self.report(fields, Code::ExtentHeaderInvalid, None);
            return;
        }
        // the kernel rejects a tree with levels but no entries
        let most = if node.header.eh_entries.get() == 0 { 0 } else { extent::MAX_DEPTH };
        if depth > most {
            let problem = Problem::new(Code::ExtentTreeTooDeep).inode(fields.inode).found(depth.into());
            self.ctx.report_if(self.claimer.is_checking(), || problem.expected(most.into()));
        }
        let position = NodePosition { block: None, depth, range: 0..extent::MAX_BLOCKS };
        self.extent_entries(fields, &node, &position, tally, found);
    }

    /// Checks a tree block.
    pub(crate) fn node(&self, fields: &FileFields, at: &Node, bytes: &[u8], tally: &mut Tally, found: &mut Found) {
        match at.kind {
            NodeKind::Extents(_) => self.extent_node(fields, at, bytes, tally, found),
            NodeKind::Indirect(_) => self.indirect_node(fields, at, bytes, tally, found),
        }
    }

    /// Checks a node of an extent tree.
    fn extent_node(&self, fields: &FileFields, at: &Node, bytes: &[u8], tally: &mut Tally, found: &mut Found) {
        let NodeKind::Extents(depth) = at.kind else { return };
        let block = FsBlock(at.block);
        let Some(node) = RawNode::from_bytes(bytes) else { return };
        let seen = check_header(&node, fields.owner(), depth, bytes, &self.ctx.volume.geometry);
        if !seen.fits || !seen.depth_right {
            self.report(fields, Code::ExtentHeaderInvalid, Some(block));
        }
        if !seen.fits {
            tally.incomplete = true;
            return;
        }
        if !seen.checksum_right {
            self.report(fields, Code::ExtentBlockChecksumWrong, Some(block));
        }
        let position = NodePosition { block: Some(block), depth, range: u64::from(at.first)..u64::from(at.last) + 1 };
        let starts_at = match depth {
            0 => node.extents().first().map(|e| e.ee_block.get()),
            _ => node.indexes().first().map(|e| e.ei_block.get()),
        };
        if let Some(start) = starts_at
            && start != at.first
        {
            self.ctx.report_if(self.claimer.is_checking(), || {
                Problem::new(Code::ExtentIndexStartWrong)
                    .inode(fields.inode)
                    .block(block)
                    .found(u64::from(start))
                    .expected(u64::from(at.first))
            });
        }
        self.extent_entries(fields, &node, &position, tally, found);
    }

    fn extent_entries(
        &self,
        fields: &FileFields,
        node: &RawNode<'_>,
        position: &NodePosition,
        tally: &mut Tally,
        found: &mut Found,
    ) {
        if position.depth > 0 {
            self.extent_children(fields, node, position, tally, found);
        } else {
            self.extent_leaf(fields, node.extents(), position, tally, found);
        }
    }

    fn extent_children(
        &self,
        fields: &FileFields,
        node: &RawNode<'_>,
        position: &NodePosition,
        tally: &mut Tally,
        found: &mut Found,
    ) {
        let entries = node.indexes();
        for (n, entry) in entries.iter().enumerate() {
            let first = entry.ei_block.get();
            let end = entries.get(n + 1).map_or(position.range.end, |next| u64::from(next.ei_block.get()));
            let child = entry.child().get();
            let problem = if !self.ctx.volume.contains(child) {
                Some(Code::ExtentStartInvalid)
            } else if end <= u64::from(first) || u64::from(first) < position.range.start || end > position.range.end {
                Some(Code::ExtentsOutOfOrder)
            } else {
                None
            };
            if let Some(code) = problem {
                tally.incomplete = true;
                self.report_entry(fields, code, position.block, FileBlock(u64::from(first)), child);
                continue;
            }
            tally.clusters += 1;
            found.nodes.push(Node {
                block: child,
                inode: fields.inode,
                first,
                // fits: `end` is at most 2^32 and more than `first`
                last: (end - 1) as u32,
                kind: NodeKind::Extents(position.depth - 1),
            });
        }
    }

    fn extent_leaf(
        &self,
        fields: &FileFields,
        extents: &[DiskExtent],
        position: &NodePosition,
        tally: &mut Tally,
        found: &mut Found,
    ) {
        tally.has_leaves |= position.block.is_some();
        let mut last_cluster = None;
        let mut last_end = None;
        // extents next to the root's are all in the root; those next to a deeper leaf's may be in another leaf
        let edges = if position.block.is_some() { self.edges_of(extents) } else { Vec::new() };
        let inode = fields.inode;
        found.edges.extend(edges.iter().map(|&(logical, cluster)| Edge { inode, logical, cluster }));
        let lengths = self.valid_lengths(fields, extents, &position.range);
        for (n, e) in extents.iter().enumerate() {
            let (logical, len) = (u64::from(e.ee_block.get()), u64::from(e.len()));
            let valid = lengths.get(n).copied().unwrap_or(e.len());
            let start = e.start().get();
            if let Some(code) = self.extent_problem(e, valid, &position.range) {
                tally.incomplete = true;
                self.report_run(fields, code, position.block, FileBlock(logical), start, len);
                // one that is only too long remains in part
                if code != Code::ExtentTooLong {
                    continue;
                }
            }
            let len = len.min(u64::from(valid));
            let last = FileBlock(logical + len - 1);
            if let Some(code) = beyond_limit(self.ctx, fields, last) {
                self.report_entry(fields, code, position.block, last, start);
                tally.incomplete = true;
                continue;
            }
            if last_end != Some(start) {
                tally.runs = tally.runs.saturating_add(1);
            }
            last_end = Some(start + len);
            tally.cover(last.get(), !e.is_unwritten());
            let clusters = self.run_clusters(fields, start..start + len, logical, &edges, &mut last_cluster);
            tally.clusters += clusters.end - clusters.start;
            if fields.is_directory() {
                if e.is_unwritten() {
                    self.report_run(
                        fields,
                        Code::DirectoryExtentUninit,
                        position.block,
                        FileBlock(logical),
                        start,
                        len,
                    );
                }
                self.found_directory(fields, start..start + len, logical, &clusters, found);
            } else if fields.is_symlink() {
                found.links.push(LinkTarget { block: start, inode: fields.inode });
            } else {
                self.content(fields, &(start..start + len));
                self.claimer.claim(fields.inode, clusters);
            }
        }
    }

    /// The valid length of each extent of a leaf by the others; its own where it is impossible by itself. Empty where
    /// none overlap.
    fn valid_lengths(&self, fields: &FileFields, extents: &[DiskExtent], range: &Range<u64>) -> Vec<u32> {
        let ascends = |(a, b): (&DiskExtent, &DiskExtent)| {
            u64::from(a.ee_block.get()) + u64::from(a.len()) <= b.ee_block.get().into()
        };
        if extents.iter().zip(extents.iter().skip(1)).all(ascends) {
            return Vec::new();
        }
        let mut lengths: Vec<u32> = extents.iter().map(DiskExtent::len).collect();
        let follower = (range.end < extent::MAX_BLOCKS).then_some(range.end);
        let limit = follower.unwrap_or_else(|| fields.size.div_ceil(self.ctx.volume.geometry.block_size.into()));
        let is_overrun = |extent: &Extent| extent.logical.get() + u64::from(extent.len) > limit;
        let possible = |(n, e): (usize, &DiskExtent)| {
            let extent = Extent::from(e);
            let unwritten = extent.unwritten && !fields.is_directory();
            is_possible(self.ctx, fields, &extent).then_some((n, Extent { unwritten, ..extent }))
        };
        let (places, possible): (Vec<usize>, Vec<Extent>) = extents.iter().enumerate().filter_map(possible).unzip();
        // the repair moves blocks into their clusters
        let valid = Order { follower, is_overrun, ratio: 1 }.lengths(&possible);
        for (place, len) in places.into_iter().zip(valid) {
            if let Some(length) = lengths.get_mut(place) {
                *length = len;
            }
        }
        lengths
    }

    /// The problem of an extent in a node for `range`, of which `valid` blocks remain beside the other extents.
    fn extent_problem(&self, e: &DiskExtent, valid: u32, range: &Range<u64>) -> Option<Code> {
        let (logical, len) = (u64::from(e.ee_block.get()), u64::from(e.len()));
        impossible(self.ctx, &Extent::from(e)).or_else(|| {
            if valid == 0 {
                Some(Code::ExtentsOutOfOrder)
            } else if u64::from(valid) < len {
                Some(Code::ExtentTooLong)
            } else if logical < range.start || logical + len > range.end {
                Some(Code::ExtentEndOutOfBounds)
            } else {
                None
            }
        })
    }

    /// Under bigalloc: the clusters at both ends of a leaf that the adjacent leaves may share, each with its cluster
    /// number in the file.
    fn edges_of(&self, extents: &[DiskExtent]) -> Vec<(u64, u64)> {
        let ratio = u64::from(self.ctx.volume.geometry.cluster_blocks);
        let (Some(first), Some(last)) = (extents.first(), extents.last()) else { return Vec::new() };
        let end = last.start().get().saturating_add(u64::from(last.len()));
        let last_block = (u64::from(last.ee_block.get()) + u64::from(last.len())).saturating_sub(1);
        let mut edges = Vec::new();
        if ratio > 1 && !first.start().get().is_multiple_of(ratio) {
            let logical = u64::from(first.ee_block.get()) / ratio;
            edges.push((logical, self.ctx.claims.cluster_of(first.start().get())));
        }
        if ratio > 1 && !end.is_multiple_of(ratio) {
            edges.push((last_block / ratio, self.ctx.claims.cluster_of(end.saturating_sub(1))));
        }
        edges
    }

    /// The clusters of a run, without those of the previous run in the same node and without the edges.
    fn run_clusters(
        &self,
        fields: &FileFields,
        blocks: Range<u64>,
        logical: u64,
        edges: &[(u64, u64)],
        last_cluster: &mut Option<(u64, u64)>,
    ) -> Range<u64> {
        let ratio = u64::from(self.ctx.volume.geometry.cluster_blocks);
        let mut clusters = self.ctx.claims.clusters_of(&blocks);
        if ratio == 1 {
            return clusters;
        }
        let elsewhere = |(before, at): (u64, u64)| before == logical / ratio && at != clusters.start;
        if blocks.start % ratio != logical % ratio || last_cluster.is_some_and(elsewhere) {
            self.report_entry(fields, Code::ClusterMisaligned, None, FileBlock(logical), blocks.start);
        }
        let end = logical + (blocks.end - blocks.start) - 1;
        let last = (end / ratio, self.ctx.claims.cluster_of(blocks.end - 1));
        // the same cluster for another part of the file is a second claim
        let taken = |at: (u64, u64)| edges.contains(&at) || *last_cluster == Some(at);
        if !clusters.is_empty() && taken((logical / ratio, clusters.start)) {
            clusters.start += 1;
        }
        if !clusters.is_empty() && taken(last) {
            clusters.end -= 1;
        }
        *last_cluster = Some(last);
        clusters
    }

    /// Passes on a run of a directory, of whose clusters it claims only `claimed`.
    fn found_directory(
        &self,
        fields: &FileFields,
        blocks: Range<u64>,
        logical: u64,
        claimed: &Range<u64>,
        found: &mut Found,
    ) {
        let all = self.ctx.claims.clusters_of(&blocks);
        // fits: an extent has at most 32 768 blocks and starts below 2^32
        found.dir_runs.push(DirRun {
            block: blocks.start,
            len: (blocks.end - blocks.start) as u32,
            inode: fields.inode,
            first: logical as u32,
            shares_first: claimed.start != all.start,
            shares_last: claimed.end != all.end,
        });
    }

    /// Checks the block numbers in `i_block` of a file with an indirect block map.
    pub(crate) fn indirect_root(&self, fields: &FileFields, words: &[u32; 15], tally: &mut Tally, found: &mut Found) {
        let format = self.ctx.volume.geometry.indirect();
        let (direct, trees) = words.split_at(12);
        tally.named.add(None, false, words.iter().copied());
        self.data_pointers(fields, direct.iter().copied(), 0, None, tally, found);
        for (level, &block) in (1u16..).zip(trees) {
            let first = format.first_of_level(u32::from(level)).get();
            self.found_indirect(fields, u64::from(block), level, first, None, tally, found);
        }
    }

    /// Checks an indirect block.
    fn indirect_node(&self, fields: &FileFields, at: &Node, bytes: &[u8], tally: &mut Tally, found: &mut Found) {
        let NodeKind::Indirect(level) = at.kind else { return };
        let geometry = &self.ctx.volume.geometry;
        let (format, tail) = (geometry.indirect(), geometry.tail(Tailed::Indirect));
        let pointers = format.pointers(bytes);
        let block = Some(FsBlock(at.block));
        let (inode, seed) = fields.owner();
        let good =
            || tail.says(bytes, inode, Some(level.into())) && tail.checksum_matches(bytes, FsBlock(at.block), seed);
        if self.claimer.is_checking() && !good() {
            self.report(fields, Code::IndirectBlockForeign, block);
        }
        let first = u64::from(at.first);
        tally.named.add(Some(at.block), level == 1, pointers.iter().map(|p| p.get()));
        if level == 1 {
            self.data_pointers(fields, pointers.iter().map(|p| p.get()), first, block, tally, found);
            return;
        }
        let span = format.span(u32::from(level) - 1);
        for (n, pointer) in (0u64..).zip(pointers) {
            let child = u64::from(pointer.get());
            self.found_indirect(fields, child, level - 1, first.saturating_add(n * span), block, tally, found);
        }
    }

    #[expect(clippy::too_many_arguments, reason = "all of them come from the walk; two call sites")]
    fn found_indirect(
        &self,
        fields: &FileFields,
        block: u64,
        level: u16,
        first: u64,
        parent: Option<FsBlock>,
        tally: &mut Tally,
        found: &mut Found,
    ) {
        if block == 0 {
            return;
        }
        let Ok(first_block) = u32::try_from(first) else {
            tally.incomplete = true;
            return self.report_entry(fields, Code::RegularFileTooBig, parent, FileBlock(first), block);
        };
        if !self.ctx.volume.contains(block) {
            tally.incomplete = true;
            return self.report_entry(fields, Code::BlockOutOfRange, parent, FileBlock(first), block);
        }
        tally.clusters += 1;
        found.nodes.push(Node {
            block,
            inode: fields.inode,
            first: first_block,
            last: u32::MAX,
            kind: NodeKind::Indirect(level),
        });
    }

    /// Checks the numbers of the data blocks of file blocks `first`, `first + 1` ….
    fn data_pointers(
        &self,
        fields: &FileFields,
        pointers: impl Iterator<Item = u32>,
        first: u64,
        parent: Option<FsBlock>,
        tally: &mut Tally,
        found: &mut Found,
    ) {
        let mut run: Option<(u64, Range<u64>)> = None;
        for (logical, pointer) in (first..).zip(pointers) {
            let block = u64::from(pointer);
            if block == 0 {
                continue;
            }
            if !self.ctx.volume.contains(block) {
                tally.incomplete = true;
                self.report_entry(fields, Code::BlockOutOfRange, parent, FileBlock(logical), block);
                continue;
            }
            if let Some(code) = beyond_limit(self.ctx, fields, FileBlock(logical)) {
                tally.incomplete = true;
                self.report_entry(fields, code, parent, FileBlock(logical), block);
                continue;
            }
            match &mut run {
                Some((at, blocks)) if blocks.end == block && *at + (blocks.end - blocks.start) == logical => {
                    blocks.end += 1;
                }
                _ => {
                    self.finish_run(fields, run.replace((logical, block..block + 1)), tally, found);
                }
            }
        }
        self.finish_run(fields, run, tally, found);
    }

    fn finish_run(&self, fields: &FileFields, run: Option<(u64, Range<u64>)>, tally: &mut Tally, found: &mut Found) {
        let Some((logical, blocks)) = run else { return };
        let len = blocks.end - blocks.start;
        tally.cover(logical + len - 1, true);
        tally.clusters += len;
        if fields.is_directory() {
            let clusters = self.ctx.claims.clusters_of(&blocks);
            self.found_directory(fields, blocks, logical, &clusters, found);
        } else if fields.is_symlink() {
            found.links.push(LinkTarget { block: blocks.start, inode: fields.inode });
        } else {
            self.content(fields, &blocks);
            self.claimer.claim(fields.inode, self.ctx.claims.clusters_of(&blocks));
        }
    }

    fn content(&self, fields: &FileFields, blocks: &Range<u64>) {
        if self.claimer.is_checking() {
            self.ctx.identify_content(fields.inode, blocks);
        }
    }

    fn report(&self, fields: &FileFields, code: Code, block: Option<FsBlock>) {
        self.ctx.report_if(self.claimer.is_checking(), || {
            let problem = Problem::new(code).inode(fields.inode);
            match block {
                Some(block) => problem.block(block).name(format!("at block {block}")),
                None => problem.name("in the inode"),
            }
        });
    }

    fn report_entry(&self, fields: &FileFields, code: Code, node: Option<FsBlock>, at: FileBlock, points_to: u64) {
        self.report_run(fields, code, node, at, points_to, 1);
    }

    /// Reports a map entry for the `blocks` blocks from `points_to` on.
    fn report_run(
        &self,
        fields: &FileFields,
        code: Code,
        node: Option<FsBlock>,
        at: FileBlock,
        points_to: u64,
        blocks: u64,
    ) {
        self.ctx.report_if(self.claimer.is_checking(), || {
            let problem = Problem::new(code).inode(fields.inode).file_block(at).found(points_to).count(blocks);
            match node {
                Some(block) => problem.block(block),
                None => problem,
            }
        });
    }
}

/// The problem of an extent by itself.
fn impossible(ctx: &Context<'_>, extent: &Extent) -> Option<Code> {
    let start = extent.physical.get();
    if extent.len == 0 {
        Some(Code::ExtentLengthZero)
    } else if !ctx.volume.contains(start) {
        Some(Code::ExtentStartInvalid)
    } else if start.saturating_add(u64::from(extent.len)) > ctx.volume.geometry.blocks {
        Some(Code::ExtentLengthInvalid)
    } else {
        None
    }
}

/// Whether a file may have this extent.
pub(crate) fn is_possible(ctx: &Context<'_>, fields: &FileFields, extent: &Extent) -> bool {
    let end = extent.logical.get() + u64::from(extent.len);
    impossible(ctx, extent).is_none()
        && end <= extent::MAX_BLOCKS
        && beyond_limit(ctx, fields, FileBlock(end - 1)).is_none()
}

/// Maximum depth of a tree that is read: a deeper one is not the result of a single error.
const MOST_LEVELS: u16 = 32;

/// Whether `i_block` begins with a valid root header. A root with more levels than the kernel accepts can still be
/// read.
pub(crate) fn root_header_fits(node: &RawNode<'_>) -> bool {
    // the kernel requires less of `eh_max`; e2fsck rejects a root with such a small maximum
    entries_fit(node) && node.header.eh_depth.get() <= MOST_LEVELS
}

/// The outcome of checking the header and the tail of a node.
pub(crate) struct NodeHeader {
    /// Whether its entries can be read. The kernel rejects a node whose depth differs from its parent's; e2fsck uses
    /// the parent's depth, so a node in which only the depth is wrong retains its entries.
    pub(crate) fits: bool,
    depth_right: bool,
    /// Whether the checksum is right; also true on volumes without such checksums.
    checksum_right: bool,
}

impl NodeHeader {
    /// Whether the node is valid.
    pub(crate) fn is_valid(&self) -> bool {
        self.fits && self.depth_right && self.checksum_right
    }
}

/// Checks the header of a node in a block, which should have depth `depth` by its parent.
pub(crate) fn check_header(
    node: &RawNode<'_>,
    (inode, seed): (InodeNo, u32),
    depth: u16,
    bytes: &[u8],
    geometry: &Geometry,
) -> NodeHeader {
    let tail = geometry.tail(Tailed::ExtentNode);
    // the location of the node is not part of its checksum
    let checksum_right = tail.says(bytes, inode, Some(depth.into())) && tail.checksum_matches(bytes, FsBlock(0), seed);
    let depth_right = node.header.eh_depth.get() == depth;
    // e2fsck clears a file with an empty node
    let fits = entries_fit(node) && node.header.eh_entries.get() > 0 && (depth_right || checksum_right);
    NodeHeader { fits, depth_right, checksum_right }
}

/// Whether the magic number is right and the entries fit; the format leaves at most two entries' space for a tail.
fn entries_fit(node: &RawNode<'_>) -> bool {
    let (entries, max) = (node.header.eh_entries.get(), node.header.eh_max.get());
    node.header.eh_magic.get() == extent::MAGIC
        && entries <= max
        && max <= node.capacity()
        && max + 2 >= node.capacity()
}

/// The fifteen words of `i_block`.
pub(crate) fn words(i_block: &[u8; 60]) -> [u32; 15] {
    let mut words = [0; 15];
    for (word, pointer) in words.iter_mut().zip(indirect::pointers(i_block)) {
        *word = U32::get(*pointer);
    }
    words
}
