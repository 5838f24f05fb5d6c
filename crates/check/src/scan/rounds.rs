//! The rounds: one ascending pass over the group metadata, then one per level of the trees below it.
//!
//! Round 0 reads bitmaps and the used parts of the inode tables. Each later round reads, in one ascending pass, the
//! blocks that the previous round found for all files together: nodes of extent trees and indirect blocks of one level,
//! directory blocks, attribute blocks, link targets. There are at most seven: a tree has five levels.
//!
//! On volumes with metadata regions round 0 reads these as well, and [`Layers`] assembles the trees: later rounds then
//! only read the remaining blocks.
//!
//! Where blocks are multiply-claimed, parts of the rounds are run a second time, without checking, with a [`Claimer`]
//! that records owners instead of the block map.

use crate::context::Context;
use crate::phases::inodes::block_maps::Trees;
use crate::phases::inodes::file_totals::{OpenFiles, Tally, check_sums};
use crate::phases::inodes::{Harvest, InodeCheck};
use crate::phases::multiply_claimed::Recount;
use crate::phases::superblock::resize_inode;
use crate::phases::{bitmaps, quota};
use crate::problem::Problem;
use crate::report::Counts;
use crate::scan::found::{DirRun, Edge, Found, LinkTarget, Node, NodeKind, XattrRef};
use crate::scan::log::{Planned, ScanLog, Segment};
use crate::scan::regions::{Layers, Leftover, claiming_fields};
use crate::scan::walk::{BitmapKind, Claimer, GroupPart, Visitor};
use crate::scan::{Feed, Item, REQUEST, Scanner};
use crate::system_zone;
use crate::table::Code;
use format::native::map::BlockKind;
use format::{FileBlock, FsBlock, GroupNo, InodeNo};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Range;

/// The growth of round 0: the block bitmap of a group leads to the blocks of its regions, which come after the inodes.
struct Regions<'a> {
    ctx: &'a Context<'a>,
    layers: Option<&'a Layers<'a>>,
}

impl Regions<'_> {
    fn bitmap_block(&self, tag: &GroupPart) -> Option<(GroupNo, u64)> {
        let GroupPart::Bitmap(group, BitmapKind::Block) = tag else { return None };
        Some((*group, self.ctx.volume.group(*group)?.block_bitmap.get()))
    }
}

impl Feed<GroupPart> for Regions<'_> {
    fn leads_to(&self, tag: &GroupPart) -> Option<u64> {
        let (group, bitmap) = self.bitmap_block(tag)?;
        let mut regions = self.layers?.regions(group);
        let first = regions.find(|region| region.end > bitmap)?.start.max(bitmap + 1);
        self.ctx.volume.offset(first)
    }

    fn led_to(&self, tag: &GroupPart, bytes: &[u8]) -> Vec<Item<GroupPart>> {
        let (Some(layers), Some((group, bitmap))) = (self.layers, self.bitmap_block(tag)) else { return Vec::new() };
        layers.in_use(group, bitmap + 1, bytes, GroupPart::Region)
    }

    fn comes_first(&self, tag: &GroupPart) -> bool {
        self.layers.is_some() && matches!(tag, GroupPart::Table(..))
    }

    fn comes_after(&self, tag: &GroupPart) -> bool {
        matches!(tag, GroupPart::Region)
    }
}

/// A part that later rounds read: an index into the list of its kind.
#[derive(Debug, Clone, Copy)]
enum Part {
    Node(u32),
    /// A part of a directory's run: index of the run, and first block in it.
    Dir(u32, u32),
    Xattr(u32),
    Link(u32),
}

/// The results of the rounds for the volume as a whole.
pub(crate) struct Outcome {
    pub(crate) counts: Counts,
    /// The first regular file of 2 GiB or more.
    pub(crate) large_file: Option<InodeNo>,
    /// The first directory of 2 GiB or more.
    pub(crate) large_directory: Option<InodeNo>,
    /// Every run of blocks that directories map, in no particular order.
    pub(crate) dir_runs: Vec<DirRun>,
    /// The usage of every user, group and project.
    pub(crate) quota: quota::Usage,
}

/// Runs the rounds.
pub(crate) struct Rounds<'a> {
    pub(crate) ctx: &'a Context<'a>,
    pub(crate) scanner: &'a Scanner<'a>,
    pub(crate) claimer: &'a dyn Claimer,
    /// The assembler of trees, on volumes with suitable regions.
    pub(crate) layers: Option<&'a Layers<'a>>,
    pub(crate) log: &'a ScanLog,
    /// The groups whose inodes are read, and the range of inodes in each, for a sample; `None` for all.
    pub(crate) only: Option<&'a BTreeMap<GroupNo, Range<u32>>>,
}

impl Rounds<'_> {
    /// Runs all rounds, from the inode tables to the last level.
    pub(crate) fn run(&self, visitor: &dyn Visitor) -> Outcome {
        self.log.end(&self.ctx.claims, Segment::Metadata);
        let mut harvest = self.round_zero(Some(visitor));
        if let Some(layers) = self.layers {
            self.take_assembled(layers, &mut harvest);
        }
        let files = OpenFiles::new(std::mem::take(&mut harvest.files));
        harvest.links.sort_unstable();
        // with part of the inodes unread, valid names would seem to refer to unused inodes
        if !(self.scanner.cancelled)() {
            visitor.directories(std::mem::take(&mut harvest.directories), std::mem::take(&mut harvest.inline));
        }
        let mut found = std::mem::take(&mut harvest.found);
        let mut edges = std::mem::take(&mut found.edges);
        let mut xattrs = std::mem::take(&mut harvest.xattrs);
        let mut dir_runs = Vec::new();
        while !(found.nodes.is_empty() && found.dir_runs.is_empty() && found.links.is_empty() && xattrs.is_empty()) {
            dir_runs.extend_from_slice(&found.dir_runs);
            let number = self.log.rounds.lock().len();
            let round = self.plan(&files, std::mem::take(&mut found), std::mem::take(&mut xattrs));
            self.log.end(&self.ctx.claims, Segment::Planned(number));
            found = self.read(number, &round, &files, &harvest.links, visitor);
            edges.append(&mut found.edges);
            self.log.rounds.lock().push(Planned { nodes: round.nodes, repeated: round.repeated, others: round.others });
        }
        self.claim_edges(&files, edges);
        if !(self.scanner.cancelled)() {
            self.close(&files, &mut harvest.counts);
        }
        let Harvest { counts, large_file, large_directory, quota, .. } = harvest;
        Outcome { counts, large_file, large_directory, dir_runs, quota }
    }

    /// Reads bitmaps, inode tables and regions in disk order; without a visitor only those that claim blocks.
    fn round_zero(&self, visitor: Option<&dyn Visitor>) -> Harvest {
        if visitor.is_some() {
            for (group, inodes) in self.groups() {
                self.ctx.inodes.open_group(group, inodes.end);
            }
        }
        let items = self.group_parts(visitor.is_some());
        let mut harvest = Harvest::default();
        for segment in self.segments(&items, |tag| self.leads_to(tag)) {
            harvest.append(&mut self.tables(segment, visitor));
            self.log.end(&self.ctx.claims, Segment::Tables(bytes_of(segment)));
        }
        harvest
    }

    /// The groups to read, each with the part of its inode table that may be in use, until the check is cancelled.
    fn groups(&self) -> impl Iterator<Item = (GroupNo, Range<u32>)> {
        let volume = self.ctx.volume;
        let groups = volume.geometry.group_numbers().zip(volume.used_inodes.iter().copied());
        let cancelled = self.scanner.cancelled;
        let groups = groups.take_while(move |_| !cancelled());
        groups.filter_map(|(group, used)| match self.only {
            None => Some((group, 0..used)),
            Some(only) => only.get(&group).map(|part| (group, part.start.min(used)..part.end.min(used))),
        })
    }

    /// The parts that round 0 reads, in disk order. `all` includes those that claim no blocks.
    fn group_parts(&self, all: bool) -> Vec<Item<GroupPart>> {
        let volume = self.ctx.volume;
        let mut items = Vec::new();
        for (group, inodes) in self.groups() {
            let Some(descriptor) = volume.group(group) else { continue };
            for (block, kind) in
                [(descriptor.block_bitmap, BitmapKind::Block), (descriptor.inode_bitmap, BitmapKind::Inode)]
            {
                let wanted = all || kind == BitmapKind::Block && self.layers.is_some();
                let written = wanted && bitmaps::is_written(volume, group, kind);
                if let Some(offset) = volume.geometry.byte_offset(block).filter(|_| written) {
                    let tag = GroupPart::Bitmap(group, kind);
                    items.push(Item { offset, len: volume.geometry.block_size, tag });
                }
            }
            self.table_items(group, descriptor.inode_table, inodes, &mut items);
        }
        items.sort_by_key(|i| i.offset);
        items
    }

    /// The maximum size of the blocks to which a block bitmap leads, in bytes, and their end on the device.
    fn leads_to(&self, tag: &GroupPart) -> (u64, u64) {
        let (GroupPart::Bitmap(group, BitmapKind::Block), Some(layers)) = (tag, self.layers) else { return (0, 0) };
        let volume = self.ctx.volume;
        let of = |(bytes, end): (u64, u64), region: Range<u64>| {
            let (from, to) = (volume.offset(region.start), volume.offset(region.end));
            from.zip(to).map_or((bytes, end), |(from, to)| (bytes + (to - from), end.max(to)))
        };
        layers.regions(*group).fold((0, 0), of)
    }

    /// Divides a pass into segments, only at items beyond everything to which earlier items lead.
    fn segments<'i, T>(&self, items: &'i [Item<T>], leads_to: impl Fn(&T) -> (u64, u64)) -> Vec<&'i [Item<T>]> {
        let weight = |item: &Item<T>| u64::from(item.len) + leads_to(&item.tag).0;
        // from the page cache, reading everything again is as fast as finding the right part
        let size = if self.scanner.counters.is_cached() {
            u64::MAX
        } else {
            self.log.segment_bytes(items.iter().map(weight).sum())
        };
        let mut segments = Vec::new();
        let (mut start, mut bytes, mut behind) = (0, 0, 0);
        for (n, item) in items.iter().enumerate() {
            if bytes >= size && item.offset >= behind {
                segments.extend(items.get(start..n));
                (start, bytes) = (n, 0);
            }
            bytes += weight(item);
            behind = behind.max(leads_to(&item.tag).1);
        }
        segments.extend(items.get(start..).filter(|rest| !rest.is_empty()));
        segments
    }

    /// Reads a segment of round 0.
    fn tables(&self, items: &[Item<GroupPart>], visitor: Option<&dyn Visitor>) -> Harvest {
        let volume = self.ctx.volume;
        let low_dtime = low_dtime_means_orphan(volume);
        let check =
            InodeCheck { ctx: self.ctx, claimer: self.claimer, scanner: self.scanner, layers: self.layers, low_dtime };
        let block_size = u64::from(volume.geometry.block_size);
        let feed = Regions { ctx: self.ctx, layers: self.layers };
        let all = Mutex::new(Harvest::default());
        self.scanner.read_growing(items, &feed, |item, bytes| match item.tag {
            GroupPart::Bitmap(group, kind) => {
                if let Some(visitor) = visitor {
                    visitor.bitmap(group, kind, bytes);
                }
            }
            GroupPart::Table(group, first) => {
                let bytes = match bytes {
                    Ok(bytes) => bytes,
                    Err(error) => {
                        let block = FsBlock(item.offset / block_size);
                        let problem = Problem::new(Code::ReadError).group(group).block(block);
                        return self.report(problem.name(error.to_string()));
                    }
                };
                let mut harvest = Harvest::default();
                for (n, slot) in (first..).zip(bytes.chunks_exact(volume.geometry.inode_size as usize)) {
                    check.check(volume.geometry.inode_at(group, n), slot, &mut harvest);
                }
                all.lock().append(&mut harvest);
            }
            GroupPart::Region => self.region_blocks(item, bytes, false),
        });
        all.into_inner()
    }

    fn region_blocks<T>(&self, item: &Item<T>, bytes: Result<&[u8], &blockdev::Error>, again: bool) {
        let Some(layers) = self.layers else { return };
        let block_size = self.ctx.volume.geometry.block_size as usize;
        for (n, block) in (item.offset / block_size as u64..).take(item.len as usize / block_size).enumerate() {
            let bytes = bytes.map(|b| b.get(n * block_size..(n + 1) * block_size).unwrap_or_default());
            layers.arrive(block, bytes, self.claimer, again);
        }
    }

    /// Reads the blocks missing from the regions and takes the assembled trees; the others are left for the rounds.
    fn take_assembled(&self, layers: &Layers<'_>, harvest: &mut Harvest) {
        loop {
            let blocks = layers.take_aside();
            if blocks.is_empty() {
                break;
            }
            self.read_aside(&blocks);
        }
        self.log.end(&self.ctx.claims, Segment::Aside);
        let (mut whole, Leftover { mut files, mut nodes }) = layers.finish();
        if !files.is_empty() && !(self.scanner.cancelled)() {
            self.recount(layers);
        }
        harvest.files.append(&mut files);
        harvest.found.nodes.append(&mut nodes);
        harvest.found.dir_runs.append(&mut whole.dir_runs);
        harvest.counts += &whole.counts;
    }

    fn read_aside(&self, blocks: &[u64]) {
        let volume = self.ctx.volume;
        let len = volume.geometry.block_size;
        let items: Vec<_> =
            blocks.iter().filter_map(|block| Some(Item { offset: volume.offset(*block)?, len, tag: () })).collect();
        self.scanner.read_ascending(&items, |item, bytes| self.region_blocks(item, bytes, true));
    }

    /// Repeats all claims of round 0, except those of tree blocks of files that were not assembled.
    fn recount(&self, layers: &Layers<'_>) {
        self.ctx.claims.clear();
        self.log.clear();
        system_zone::claim_again(self.ctx);
        self.log.end(&self.ctx.claims, Segment::Metadata);
        let recount = Recount(&self.ctx.claims);
        let again = Rounds { claimer: &recount, ..*self };
        again.round_zero(None);
        again.read_aside(&layers.read_aside());
        self.log.end(&self.ctx.claims, Segment::Aside);
    }

    /// Reads parts of the scan once more and repeats their claims.
    pub(crate) fn retrace(&self, segments: &[Segment]) {
        let parts = self.group_parts(false);
        for segment in segments {
            match segment {
                Segment::Metadata => {}
                Segment::Tables(bytes) => {
                    let from = parts.partition_point(|item| item.offset < bytes.start);
                    let to = parts.partition_point(|item| item.offset < bytes.end);
                    self.tables(parts.get(from..to).unwrap_or_default(), None);
                }
                Segment::Aside => self.read_aside(&self.layers.map(Layers::read_aside).unwrap_or_default()),
                Segment::Planned(round) => self.plan_again(*round),
                Segment::Nodes(round, bytes) => self.nodes_again(*round, bytes),
                Segment::Edges => {
                    for (inode, cluster) in self.log.edges.lock().iter() {
                        self.claimer.claim(*inode, *cluster..cluster + 1);
                    }
                }
            }
        }
    }

    fn plan_again(&self, round: usize) {
        let rounds = self.log.rounds.lock();
        let Some(planned) = rounds.get(round) else { return };
        for node in planned.nodes.iter().filter(|node| !node.is_growth_copy()) {
            self.claim_block(node.inode, node.block);
        }
        for (start, len, inode) in &planned.others {
            self.claimer.claim(*inode, *start..start + u64::from(*len));
        }
    }

    fn nodes_again(&self, round: usize, bytes: &Range<u64>) {
        let volume = self.ctx.volume;
        let rounds = self.log.rounds.lock();
        let nodes = rounds.get(round).map_or(&[][..], |planned| &planned.nodes);
        let len = volume.geometry.block_size;
        let items = nodes.iter().filter_map(|node| Some(Item { offset: volume.offset(node.block)?, len, tag: *node }));
        let items: Vec<_> = items.filter(|item| bytes.contains(&item.offset)).collect();
        let trees = Trees { ctx: self.ctx, claimer: self.claimer };
        self.scanner.read_ascending(&items, |item, bytes| {
            let (Ok(bytes), node) = (bytes, &item.tag) else { return };
            let fields = claiming_fields(node.inode, self.ctx.inodes.get(node.inode).and_then(|record| record.kind));
            if !node.is_growth_copy() {
                trees.node(&fields, node, bytes, &mut Tally::default(), &mut Found::default());
            }
        });
    }

    /// A part of a group's inode table, divided into requests.
    fn table_items(&self, group: GroupNo, table: FsBlock, part: Range<u32>, items: &mut Vec<Item<GroupPart>>) {
        let geometry = &self.ctx.volume.geometry;
        let Some(start) = geometry.byte_offset(table) else { return };
        let per_piece = (REQUEST as u32) / geometry.inode_size;
        let mut first = part.start;
        while first < part.end {
            let inodes = per_piece.min(part.end - first);
            let offset = start.saturating_add(u64::from(first) * u64::from(geometry.inode_size));
            items.push(Item { offset, len: inodes * geometry.inode_size, tag: GroupPart::Table(group, first) });
            first += inodes;
        }
    }

    /// Sorts the found blocks in disk order and claims them; a block already claimed by another map is not followed.
    fn plan(&self, files: &OpenFiles, mut found: Found, mut xattrs: Vec<XattrRef>) -> Round {
        let (mut others, mut repeated) = (Vec::new(), Vec::new());
        let one = |block: u64| self.ctx.claims.clusters_of(&(block..block + 1));
        found.nodes.sort_unstable();
        found.nodes.retain(|node| {
            let fresh = self.claims_of_node(files, node);
            if !fresh && let Some(file) = files.get(node.inode) {
                file.tally.lock().incomplete = true;
            }
            if !fresh {
                others.push((one(node.block).start, 1, node.inode));
                repeated.push(*node);
            }
            fresh
        });
        let mut claim = |inode: InodeNo, clusters: Range<u64>| {
            // fits: a run of a directory at most
            others.push((clusters.start, (clusters.end - clusters.start) as u32, inode));
            self.claimer.claim(inode, clusters)
        };
        found.dir_runs.sort_unstable();
        found.dir_runs.retain(|run| {
            let all = self.ctx.claims.clusters_of(&(run.block..run.block + u64::from(run.len)));
            let start = all.start + u64::from(run.shares_first);
            claim(run.inode, start..all.end.saturating_sub(u64::from(run.shares_last)).max(start))
        });
        found.links.sort_unstable();
        found.links.retain(|link| claim(link.inode, one(link.block)));
        xattrs.sort_unstable();
        let mut xattr_groups = Vec::new();
        let mut start = 0;
        for same in xattrs.chunk_by(|a, b| a.block == b.block) {
            let end = start + same.len();
            // shared by design: claimed once for all owners
            if let Some(first) = same.first()
                && claim(first.inode, one(first.block))
            {
                xattr_groups.push(start..end);
            }
            start = end;
        }
        Round {
            nodes: found.nodes,
            repeated,
            dir_runs: found.dir_runs,
            links: found.links,
            xattrs,
            xattr_groups,
            others,
        }
    }

    fn claims_of_node(&self, files: &OpenFiles, node: &Node) -> bool {
        // inode 7's numbers name the descriptor blocks reserved for growth, which the groups claim themselves: only the
        // doubly indirect block above them is its own
        if node.is_growth_copy() {
            return files.get(node.inode).is_some();
        }
        self.claim_block(node.inode, node.block)
    }

    fn claim_block(&self, inode: InodeNo, block: u64) -> bool {
        self.claimer.claim(inode, self.ctx.claims.clusters_of(&(block..block + 1)))
    }

    fn read(
        &self,
        number: usize,
        round: &Round,
        files: &OpenFiles,
        links: &[(InodeNo, u64)],
        visitor: &dyn Visitor,
    ) -> Found {
        let reader = Reader { rounds: self, round, files, links, visitor, found: Mutex::default() };
        let (cached, items) = self.split_cached(round.items(self.ctx));
        self.scanner.check_all(&cached, |item, bytes| reader.check(item, bytes));
        drop(cached);
        if round.nodes.is_empty() {
            self.scanner.read_ascending(&items, |item, bytes| reader.check(item, bytes));
        } else {
            for segment in self.segments(&items, |_| (0, 0)) {
                self.scanner.read_ascending(segment, |item, bytes| reader.check(item, bytes));
                self.log.end(&self.ctx.claims, Segment::Nodes(number, bytes_of(segment)));
            }
        }
        reader.found.into_inner()
    }

    /// Separates the items cached from the regions from those to be read.
    fn split_cached(&self, mut items: Vec<Item<Part>>) -> (Vec<CachedItem>, Vec<Item<Part>>) {
        let mut cached = Vec::new();
        let Some(layers) = self.layers else { return (cached, items) };
        let block_size = u64::from(self.ctx.volume.geometry.block_size);
        items.retain(|item| {
            let first = item.offset / block_size;
            let bytes = match item.tag {
                Part::Node(_) => None,
                _ => layers.take_cached(first..first + u64::from(item.len) / block_size),
            };
            let is_cached = bytes.is_some();
            cached.extend(bytes.map(|bytes| (*item, bytes)));
            !is_cached
        });
        (cached, items)
    }

    fn check_node(
        &self,
        trees: &Trees<'_>,
        files: &OpenFiles,
        node: &Node,
        bytes: Result<&[u8], &blockdev::Error>,
        found: &mut Found,
    ) {
        let Some(file) = files.get(node.inode) else { return };
        let kind = match node.kind {
            NodeKind::Extents(_) => BlockKind::ExtentNode,
            NodeKind::Indirect(_) => BlockKind::Indirect,
        };
        self.ctx.identify(FsBlock(node.block), kind, &[node.inode]);
        let mut tally = file.tally.lock();
        let bytes = match bytes {
            Ok(bytes) => bytes,
            Err(error) => {
                tally.incomplete = true;
                let problem = Problem::new(Code::ReadError).inode(node.inode).block(FsBlock(node.block));
                return self.report(problem.name(error.to_string()));
            }
        };
        if node.is_growth_copy() {
            if !resize_inode::names_copies(self.ctx.volume, node.block, bytes) {
                self.report(Problem::new(Code::ResizeInodeBad).inode(node.inode).block(FsBlock(node.block)));
            }
            // the groups claim those blocks themselves: only their number and the last one matter here
            for (n, pointer) in (0..).zip(format::indirect::pointers(bytes)).filter(|(_, pointer)| pointer.get() != 0) {
                tally.clusters += 1;
                tally.cover(u64::from(node.first) + n, true);
                let block = u64::from(pointer.get());
                if !self.ctx.volume.contains(block) {
                    tally.incomplete = true;
                    let problem = Problem::new(Code::BlockOutOfRange).inode(node.inode).found(block);
                    self.report(problem.block(FsBlock(node.block)).file_block(FileBlock(u64::from(node.first) + n)));
                }
            }
        } else {
            trees.node(&file.fields, node, bytes, &mut tally, found);
        }
    }

    /// Checks a link's target in a block: its length is `i_size`, and a NUL follows.
    fn check_link(&self, link: &LinkTarget, links: &[(InodeNo, u64)], bytes: Result<&[u8], &blockdev::Error>) {
        let bytes = match bytes {
            Ok(bytes) => bytes,
            Err(error) => {
                let problem = Problem::new(Code::ReadError).inode(link.inode).block(FsBlock(link.block));
                return self.report(problem.name(error.to_string()));
            }
        };
        self.ctx.identify(FsBlock(link.block), BlockKind::Data, &[link.inode]);
        let Ok(at) = links.binary_search_by_key(&link.inode, |l| l.0) else { return };
        let Some((_, size)) = links.get(at).copied() else { return };
        let encrypted =
            self.ctx.inodes.get(link.inode).is_some_and(|r| r.marks.contains(crate::inode_records::Marks::ENCRYPTED));
        let length = match bytes {
            [low, high, ..] if encrypted => u64::from(*low) + u64::from(*high) * 256 + 2,
            _ => bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len()) as u64,
        };
        if length != size {
            self.report(
                Problem::new(Code::SymlinkInvalid)
                    .inode(link.inode)
                    .block(FsBlock(link.block))
                    .found(length)
                    .expected(size),
            );
        }
    }

    /// Claims the clusters that leaves of one file may share, once for each part of a file.
    fn claim_edges(&self, files: &OpenFiles, mut edges: Vec<Edge>) {
        edges.sort_unstable();
        self.check_edges(&edges);
        edges.dedup();
        for Edge { inode, cluster, .. } in edges {
            if let Some(file) = files.get(inode) {
                file.tally.lock().clusters += 1;
            }
            self.claimer.claim(inode, cluster..cluster + 1);
            self.log.edges.lock().push((inode, cluster));
        }
        self.log.end(&self.ctx.claims, Segment::Edges);
    }

    /// Checks that a file cluster in which one leaf ends and the next begins is one cluster of the volume.
    fn check_edges(&self, edges: &[Edge]) {
        let geometry = &self.ctx.volume.geometry;
        let ratio = u64::from(geometry.cluster_blocks);
        for pair in edges.windows(2) {
            if let [a, b] = pair
                && (a.inode, a.logical) == (b.inode, b.logical)
                && a.cluster != b.cluster
            {
                let block = u64::from(geometry.first_data_block) + b.cluster * ratio;
                let problem = Problem::new(Code::ClusterMisaligned).inode(b.inode).count(1);
                self.report(problem.file_block(FileBlock(b.logical * ratio)).found(block));
            }
        }
    }

    /// Checks the totals of the open files, after all maps were walked.
    fn close(&self, files: &OpenFiles, counts: &mut Counts) {
        for file in files.iter() {
            let tally = file.tally.lock();
            if tally.is_fragmented(&file.fields, &self.ctx.volume.geometry) {
                counts.count_fragmented(file.fields.kind);
            }
            check_sums(self.ctx, &file.fields, &tally);
        }
    }

    fn report(&self, problem: Problem) {
        self.ctx.report_if(self.claimer.is_checking(), || problem);
    }
}

/// An item whose bytes are in memory.
type CachedItem = (Item<Part>, Vec<u8>);

/// The checker of the items that a round reads.
struct Reader<'r> {
    rounds: &'r Rounds<'r>,
    round: &'r Round,
    files: &'r OpenFiles,
    links: &'r [(InodeNo, u64)],
    visitor: &'r dyn Visitor,
    /// The findings that the next round reads.
    found: Mutex<Found>,
}

impl Reader<'_> {
    fn check(&self, item: &Item<Part>, bytes: Result<&[u8], &blockdev::Error>) {
        let block_size = u64::from(self.rounds.ctx.volume.geometry.block_size);
        match item.tag {
            Part::Node(n) => {
                let Some(node) = self.round.nodes.get(n as usize) else { return };
                let trees = Trees { ctx: self.rounds.ctx, claimer: self.rounds.claimer };
                let mut found = Found::default();
                self.rounds.check_node(&trees, self.files, node, bytes, &mut found);
                self.found.lock().append(&mut found);
            }
            Part::Dir(n, skip) => {
                let Some(run) = self.round.dir_runs.get(n as usize) else { return };
                let blocks = u64::from(item.len) / block_size;
                for at in 0..blocks {
                    let bytes = bytes.map(|b| {
                        let from = (at * block_size) as usize;
                        b.get(from..from + block_size as usize).unwrap_or_default()
                    });
                    let offset = u64::from(skip) + at;
                    let file_block = u64::from(run.first) + offset;
                    self.visitor.dir_block(run.inode, file_block as u32, FsBlock(run.block + offset), bytes);
                }
            }
            Part::Xattr(n) => {
                let group = self.round.xattr_groups.get(n as usize).cloned().unwrap_or_default();
                let inodes = self.round.xattrs.get(group).unwrap_or_default();
                let Some(first) = inodes.first() else { return };
                let elsewhere = self.visitor.xattr_block(FsBlock(first.block), inodes, bytes);
                for file in inodes.iter().filter_map(|user| self.files.get(user.inode)) {
                    file.tally.lock().clusters += elsewhere;
                }
            }
            Part::Link(n) => {
                if let Some(link) = self.round.links.get(n as usize) {
                    self.rounds.check_link(link, self.links, bytes);
                }
            }
        }
    }
}

/// The reads of one round, each list in disk order.
struct Round {
    nodes: Vec<Node>,
    /// Other references to nodes that were claimed before.
    repeated: Vec<Node>,
    dir_runs: Vec<DirRun>,
    links: Vec<LinkTarget>,
    xattrs: Vec<XattrRef>,
    /// The parts of `xattrs` that name one block.
    xattr_groups: Vec<Range<usize>>,
    /// The claims except those of `nodes`: first cluster, number of clusters, and inode.
    others: Vec<(u64, u32, InodeNo)>,
}

impl Round {
    /// Everything, in disk order.
    fn items(&self, ctx: &Context<'_>) -> Vec<Item<Part>> {
        let block_size = ctx.volume.geometry.block_size;
        let mut items = Vec::with_capacity(self.nodes.len());
        let mut push = |block: u64, blocks: u32, tag| {
            if let Some(offset) = ctx.volume.offset(block) {
                items.push(Item { offset, len: blocks * block_size, tag });
            }
        };
        for (n, node) in (0u32..).zip(&self.nodes) {
            push(node.block, 1, Part::Node(n));
        }
        let most = (REQUEST as u32) / block_size;
        for (n, run) in (0u32..).zip(&self.dir_runs) {
            let mut skip = 0;
            while skip < run.len {
                let blocks = most.min(run.len - skip);
                push(run.block + u64::from(skip), blocks, Part::Dir(n, skip));
                skip += blocks;
            }
        }
        for (n, group) in (0u32..).zip(&self.xattr_groups) {
            if let Some(first) = self.xattrs.get(group.start) {
                push(first.block, 1, Part::Xattr(n));
            }
        }
        for (n, link) in (0u32..).zip(&self.links) {
            push(link.block, 1, Part::Link(n));
        }
        items.sort_by_key(|i| i.offset);
        items
    }
}

/// The range of a segment, from the offset of its first item to that of its last, inclusive.
fn bytes_of<T>(segment: &[Item<T>]) -> Range<u64> {
    match segment {
        [first, .., last] => first.offset..last.offset + 1,
        [only] => only.offset..only.offset + 1,
        [] => 0..0,
    }
}

/// Whether a deletion time below the number of inodes means that the inode was on the orphan list: not where the clock
/// was that early when the volume was written.
fn low_dtime_means_orphan(volume: &crate::volume::Volume) -> bool {
    let disk = &volume.disk;
    let inodes = volume.geometry.inodes;
    [disk.s_wtime.get(), disk.s_mtime.get(), disk.s_mkfs_time.get()].iter().all(|t| *t == 0 || *t >= inodes)
}
