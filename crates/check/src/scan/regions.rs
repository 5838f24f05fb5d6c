//! Trees assembled from metadata regions: one pass instead of one for each level.
//!
//! On volumes whose tree blocks lie in regions and have their owner in a tail, round 0 reads the regions too: the block
//! bitmap, which is read first, shows which of their blocks are in use. A tree block is checked by its own fields when
//! it is read, and its data is claimed for its owner. A [`Record`] of 16 bytes is stored for it, and for its file two
//! sums for each layer of the tree: of the blocks that parents point to, and of the blocks that were read for the
//! layer. When all sums of a file agree, its tree is complete: its size and space are checked, and its records are
//! dropped. So memory use depends on the number of files that are open at a time, those whose blocks lie in several
//! regions.
//!
//! Other blocks in regions, mostly of directories, can be checked only when all inodes are known: up to
//! [`CACHED_BYTES`] of them are cached until then, and the others are read again.
//!
//! Invariants
//! 1. Only the totals of files whose layers agree are reported here. Any inconsistency (a wrong field, number or order,
//!    a multiply-claimed block, sums that never agree) makes the file a *leftover*: the claims are repeated without its
//!    tree blocks, and its tree is walked from the inode, as on any other volume. Only that walk reports its problems.
//! 2. A file is known before its tree blocks are checked: in each batch the inodes are checked first
//!    ([`Feed`](crate::scan::Feed)). Blocks of files whose inode lies after them on the device, and blocks outside
//!    regions that parents point to, are read in separate passes.
//! 3. A block that is read after its file was closed has no parent that points to it. It is recorded as stale, so that
//!    it claims nothing when the scan is retraced.

use crate::context::Context;
use crate::inode_records::Marks;
use crate::phases::inodes::block_maps::Trees;
use crate::phases::inodes::file_totals::{FileFields, OpenFile, Tally, beyond_limit, check_sums};
use crate::report::Counts;
use crate::scan::found::{DirRun, Found, Node, NodeKind};
use crate::scan::walk::Claimer;
use crate::scan::{Item, REQUEST};
use format::extent::{OwnedExtentTail, RawNode};
use format::indirect::IndirectTail;
use format::inode::{FileKind, InodeFlags};
use format::{FileBlock, FsBlock, GroupNo, InodeNo};
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;

/// Maximum size of the cache of directory blocks and the like, in bytes.
const CACHED_BYTES: usize = 16 << 20;
/// Number of locks over which files are distributed.
const SHARDS: usize = 64;

/// The assembler of trees.
pub(crate) struct Layers<'a> {
    ctx: &'a Context<'a>,
    open: Box<[Mutex<HashMap<InodeNo, Pending>>]>,
    /// A random key that prevents crafted blocks from matching sums.
    key: u64,
    /// Blocks still to be read in a separate pass.
    aside: Mutex<BTreeSet<u64>>,
    /// Blocks that were read in a separate pass.
    was_aside: Mutex<BTreeSet<u64>>,
    stale: Mutex<HashSet<u64>>,
    cached: Mutex<HashMap<u64, Box<[u8]>>>,
    whole: Mutex<Whole>,
}

/// The findings in the assembled trees, which are passed on to later rounds.
#[derive(Debug, Default)]
pub(crate) struct Whole {
    pub(crate) dir_runs: Vec<DirRun>,
    pub(crate) counts: Counts,
}

/// Files whose trees have to be walked.
#[derive(Debug, Default)]
pub(crate) struct Leftover {
    pub(crate) files: Vec<OpenFile>,
    /// The nodes that their inodes point to.
    pub(crate) nodes: Vec<Node>,
}

/// A file whose tree is not complete yet.
#[derive(Debug)]
struct Pending {
    fields: FileFields,
    /// The totals of its inode.
    root: Tally,
    tops: Vec<Node>,
    /// The totals of its tree blocks.
    sum: Tally,
    layers: Vec<Layer>,
    records: Vec<Record>,
    dir_runs: Vec<DirRun>,
    /// Whether an inconsistency was found.
    broken: bool,
}

/// The two sums of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Layer {
    pointed_to: u64,
    came: u64,
}

/// The record of a tree block until its file is complete; ordered by layer and key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Record {
    /// Its layer.
    layer: u16,
    /// For an extent node the first file block that it maps, for an indirect block its own block number.
    key: u32,
    /// For an indirect block the index of its last number in use; otherwise 0.
    last_place: u16,
    /// For an extent node the last file block in its own entries, for an indirect block its last number.
    last: u32,
}

/// The owner and the kind in a block's tail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stated {
    owner: InodeNo,
    kind: NodeKind,
}

/// A claimer that claims through another one without checking.
struct Quiet<'a>(&'a dyn Claimer);

impl Claimer for Quiet<'_> {
    fn claim(&self, inode: InodeNo, clusters: Range<u64>) -> bool {
        self.0.claim(inode, clusters)
    }

    fn is_checking(&self) -> bool {
        false
    }
}

impl<'a> Layers<'a> {
    /// The assembler for volumes with regions whose blocks have owners in their tails; `None` for all others.
    pub(crate) fn of(ctx: &'a Context<'a>) -> Option<Self> {
        let geometry = &ctx.volume.geometry;
        (geometry.has_regions() && geometry.is_owned() && geometry.cluster_blocks == 1).then(|| Self {
            ctx,
            open: (0..SHARDS).map(|_| Mutex::default()).collect(),
            key: RandomState::new().hash_one(geometry.blocks),
            aside: Mutex::default(),
            was_aside: Mutex::default(),
            stale: Mutex::default(),
            cached: Mutex::default(),
            whole: Mutex::default(),
        })
    }

    /// The blocks of a group's regions.
    pub(crate) fn regions(&self, group: GroupNo) -> impl Iterator<Item = Range<u64>> + use<> {
        let mask = self.ctx.volume.group(group).map_or(0, |descriptor| descriptor.regions);
        self.ctx.volume.geometry.region_blocks(group, mask)
    }

    /// The blocks of a group's regions that are in use by its bitmap, as items to read, without the system zone. Those
    /// before block `from` are left for a separate pass.
    pub(crate) fn in_use<T: Copy>(&self, group: GroupNo, from: u64, bitmap: &[u8], tag: T) -> Vec<Item<T>> {
        let volume = self.ctx.volume;
        let block_size = volume.geometry.block_size;
        let start = volume.geometry.group_blocks(group).start;
        let mut items: Vec<Item<T>> = Vec::new();
        for block in self.regions(group).flatten() {
            let place = (block - start) as usize;
            let used = bitmap.get(place / 8).is_some_and(|byte| byte >> (place % 8) & 1 == 1);
            if !used || self.ctx.claims.is_metadata(self.ctx.claims.cluster_of(block)) {
                continue;
            }
            if block < from {
                self.aside.lock().insert(block);
                continue;
            }
            let Some(offset) = volume.offset(block) else { continue };
            match items.last_mut() {
                Some(last)
                    if last.offset + u64::from(last.len) == offset && last.len + block_size <= REQUEST as u32 =>
                {
                    last.len += block_size;
                }
                _ => items.push(Item { offset, len: block_size, tag }),
            }
        }
        items
    }

    /// Adds a file whose map continues in blocks, where its tree can be assembled; otherwise returns it. `tops` are the
    /// nodes that its inode points to.
    pub(crate) fn open(&self, file: OpenFile, tops: Vec<Node>) -> Option<(OpenFile, Vec<Node>)> {
        let fits = match file.fields.kind {
            Some(FileKind::Regular) => file.fields.inode != InodeNo::RESIZE,
            // the blocks of a directory must be known from its single indirect block
            Some(FileKind::Directory) => {
                tops.iter().all(|top| matches!(top.kind, NodeKind::Extents(_) | NodeKind::Indirect(1)))
            }
            _ => false,
        };
        let root = file.tally.lock().clone();
        if !fits || root.incomplete {
            return Some((file, tops));
        }
        let layers = tops.iter().map(|top| layer_of(top.kind) + 1).max().unwrap_or(0);
        let mut pending = Pending {
            fields: file.fields,
            root,
            sum: Tally::default(),
            layers: vec![Layer::default(); usize::from(layers)],
            records: Vec::new(),
            dir_runs: Vec::new(),
            broken: false,
            tops,
        };
        let tops = std::mem::take(&mut pending.tops);
        for top in &tops {
            self.point_to(&mut pending, top);
        }
        pending.tops = tops;
        self.shard(pending.fields.inode).lock().insert(pending.fields.inode, pending);
        None
    }

    fn shard(&self, inode: InodeNo) -> &Mutex<HashMap<InodeNo, Pending>> {
        &self.open[inode.get() as usize % SHARDS]
    }

    /// Processes a block that was read. `again` where it is read in a separate pass, when all inodes are known.
    pub(crate) fn arrive(
        &self,
        block: u64,
        bytes: Result<&[u8], &blockdev::Error>,
        claimer: &dyn Claimer,
        again: bool,
    ) {
        // a block that cannot be read is missing in the sums
        let Ok(bytes) = bytes else { return };
        let Some(stated) = self.stated(block, bytes) else {
            if claimer.is_checking() {
                self.cache(block, bytes);
            }
            return;
        };
        if !claimer.is_checking() {
            return self.claim_again(block, bytes, stated, claimer);
        }
        let mut open = self.shard(stated.owner).lock();
        if let Some(pending) = open.get_mut(&stated.owner) {
            self.take(pending, block, bytes, stated, claimer);
            if !pending.broken && pending.layers.iter().all(|layer| layer.pointed_to == layer.came) {
                if let Some(tally) = self.whole_tally(pending) {
                    self.close(pending, &tally);
                    self.ctx.inodes.mark(stated.owner, Marks::LAYERED);
                    open.remove(&stated.owner);
                } else {
                    pending.broken = true;
                }
            }
            return;
        }
        match self.ctx.inodes.get(stated.owner) {
            Some(record) if record.marks.contains(Marks::LAYERED) => drop(self.stale.lock().insert(block)),
            None if !again => drop(self.aside.lock().insert(block)),
            _ => {}
        }
    }

    fn cache(&self, block: u64, bytes: &[u8]) {
        let mut cached = self.cached.lock();
        if (cached.len() + 1).saturating_mul(bytes.len()) <= CACHED_BYTES {
            cached.insert(block, bytes.into());
        }
    }

    /// Removes these blocks from the cache and returns their concatenated bytes, if all of them are cached.
    pub(crate) fn take_cached(&self, blocks: Range<u64>) -> Option<Vec<u8>> {
        let mut cached = self.cached.lock();
        if !blocks.clone().all(|block| cached.contains_key(&block)) {
            return None;
        }
        let bytes = blocks.filter_map(|block| cached.remove(&block));
        Some(bytes.fold(Vec::new(), |mut all, bytes| {
            all.extend_from_slice(&bytes);
            all
        }))
    }

    /// The owner and the kind in the tail of a tree block; `None` for other blocks.
    fn stated(&self, block: u64, bytes: &[u8]) -> Option<Stated> {
        let geometry = &self.ctx.volume.geometry;
        let exists = |owner: u32| (1..=geometry.inodes).contains(&owner).then_some(InodeNo(owner));
        if let Some(tail) = IndirectTail::of(bytes)
            && (1..=3).contains(&tail.it_level)
            && let Some(owner) = exists(tail.it_owner.get())
            && IndirectTail::checksum_matches(bytes, FsBlock(block), geometry.checksum_seed)
        {
            return Some(Stated { owner, kind: NodeKind::Indirect(u16::from(tail.it_level)) });
        }
        let node = RawNode::from_bytes(bytes)?;
        let tail = OwnedExtentTail::of(bytes).filter(|_| node.header.eh_magic.get() == format::extent::MAGIC)?;
        let depth = node.header.eh_depth.get();
        let fits = tail.xt_depth.get() == u32::from(depth) && depth < format::extent::MAX_DEPTH;
        let owner = exists(tail.xt_owner.get()).filter(|_| fits)?;
        Some(Stated { owner, kind: NodeKind::Extents(depth) })
    }

    /// Adds a tree block to its file.
    fn take(&self, pending: &mut Pending, block: u64, bytes: &[u8], stated: Stated, claimer: &dyn Claimer) {
        let fields = pending.fields;
        let extents = matches!(stated.kind, NodeKind::Extents(_));
        let fits = extents == fields.has_extents()
            && usize::from(layer_of(stated.kind)) < pending.layers.len()
            && (!extents || OwnedExtentTail::checksum_matches(fields.seed, bytes));
        if pending.broken || !fits || !claimer.claim(fields.inode, self.cluster(block)) {
            pending.broken = true;
            return;
        }
        let node = node_of(&fields, block, bytes, stated.kind);
        let (mut tally, mut found) = (Tally::default(), Found::default());
        self.walk(&fields, &node, bytes, claimer, &mut tally, &mut found);
        if tally.incomplete {
            pending.broken = true;
            return;
        }
        let came = self.mix(block, extents.then_some(node.first));
        if let Some(layer) = pending.layers.get_mut(usize::from(layer_of(stated.kind))) {
            layer.came = layer.came.wrapping_add(came);
        }
        let Some(record) = record_of(&node, &tally, &found, self.ctx.volume.geometry.indirect().span(1)) else {
            pending.broken = true;
            return;
        };
        pending.records.push(record);
        pending.sum.clusters += tally.clusters;
        pending.sum.runs = pending.sum.runs.saturating_add(tally.runs);
        pending.sum.named.join(&tally.named);
        if extents {
            pending.sum.last = pending.sum.last.max(tally.last);
            pending.sum.last_written = pending.sum.last_written.max(tally.last_written);
        }
        for child in &found.nodes {
            self.point_to(pending, child);
        }
        pending.dir_runs.append(&mut found.dir_runs);
    }

    fn walk(
        &self,
        fields: &FileFields,
        node: &Node,
        bytes: &[u8],
        claimer: &dyn Claimer,
        tally: &mut Tally,
        found: &mut Found,
    ) {
        let quiet = Quiet(claimer);
        let trees = Trees { ctx: self.ctx, claimer: &quiet };
        trees.node(fields, node, bytes, tally, found);
    }

    /// Records that a parent points to a block.
    fn point_to(&self, pending: &mut Pending, child: &Node) {
        let extents = matches!(child.kind, NodeKind::Extents(_));
        let sum = self.mix(child.block, extents.then_some(child.first));
        match pending.layers.get_mut(usize::from(layer_of(child.kind))) {
            Some(layer) => layer.pointed_to = layer.pointed_to.wrapping_add(sum),
            None => pending.broken = true,
        }
        if !self.is_in_region(child.block) {
            self.aside.lock().insert(child.block);
        }
    }

    fn is_in_region(&self, block: u64) -> bool {
        let geometry = &self.ctx.volume.geometry;
        let Some(group) = geometry.group_of(FsBlock(block)) else { return false };
        let chunk = (block - geometry.group_blocks(group).start) / u64::from(geometry.chunk_blocks());
        self.ctx.volume.group(group).is_some_and(|descriptor| descriptor.regions >> chunk.min(63) & 1 == 1)
    }

    fn cluster(&self, block: u64) -> Range<u64> {
        self.ctx.claims.clusters_of(&(block..block + 1))
    }

    /// A keyed 64-bit hash of a block and its position in the file, which is unpredictable.
    fn mix(&self, block: u64, first: Option<u32>) -> u64 {
        let once = |x: u64| {
            let x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            let x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
            x ^ x >> 31
        };
        let first = first.map_or(0, |first| u64::from(first) + 1);
        once(once(block ^ self.key).wrapping_add(first).wrapping_add(self.key.rotate_left(32)))
    }

    /// The totals of a file whose layers agree; `None` where its tree blocks contradict one another.
    fn whole_tally(&self, pending: &mut Pending) -> Option<Tally> {
        let mut tally = pending.root.clone();
        tally.clusters += pending.sum.clusters;
        tally.runs = tally.runs.saturating_add(pending.sum.runs);
        tally.named.join(&pending.sum.named);
        tally.last = tally.last.max(pending.sum.last);
        tally.last_written = tally.last_written.max(pending.sum.last_written);
        pending.records.sort_unstable();
        if pending.fields.has_extents() {
            // children in one layer are in file order, whichever their parents are
            let ordered = pending.records.windows(2).all(|pair| match pair {
                [a, b] => a.layer != b.layer || a.last < b.key,
                _ => true,
            });
            return ordered.then_some(tally);
        }
        let last = self.last_of(pending)?;
        if beyond_limit(self.ctx, &pending.fields, FileBlock(last)).is_some() {
            return None;
        }
        tally.cover(last, true);
        Some(tally)
    }

    /// The last block of a file with an indirect block map, found from the last number of each indirect block, top
    /// down.
    fn last_of(&self, pending: &Pending) -> Option<u64> {
        let format = self.ctx.volume.geometry.indirect();
        let top = pending.tops.iter().max_by_key(|top| layer_of(top.kind))?;
        let mut layer = layer_of(top.kind);
        let mut last = format.first_of_level(u32::from(layer) + 1).get();
        // multiply-claimed blocks were excluded; so numbers fit 32 bits here
        let mut block = u32::try_from(top.block).ok()?;
        loop {
            let at = pending.records.binary_search_by_key(&(layer, block), |r| (r.layer, r.key));
            let record = match at {
                Ok(at) => pending.records.get(at)?,
                Err(_) => return None,
            };
            last = last.checked_add(u64::from(record.last_place).checked_mul(format.span(u32::from(layer)))?)?;
            if layer == 0 {
                return u32::try_from(last).is_ok().then_some(last);
            }
            layer -= 1;
            block = record.last;
        }
    }

    fn close(&self, pending: &mut Pending, tally: &Tally) {
        check_sums(self.ctx, &pending.fields, tally);
        let mut whole = self.whole.lock();
        if tally.is_fragmented(&pending.fields, &self.ctx.volume.geometry) {
            whole.counts.count_fragmented(pending.fields.kind);
        }
        whole.dir_runs.append(&mut pending.dir_runs);
    }

    /// Repeats the claims of a tree block.
    fn claim_again(&self, block: u64, bytes: &[u8], stated: Stated, claimer: &dyn Claimer) {
        let record = self.ctx.inodes.get(stated.owner).filter(|record| record.marks.contains(Marks::LAYERED));
        let Some(record) = record.filter(|_| !self.stale.lock().contains(&block)) else { return };
        claimer.claim(stated.owner, self.cluster(block));
        let fields = claiming_fields(stated.owner, record.kind);
        let node = node_of(&fields, block, bytes, stated.kind);
        self.walk(&fields, &node, bytes, claimer, &mut Tally::default(), &mut Found::default());
    }

    /// Removes and returns the blocks still to be read in a separate pass, ascending.
    pub(crate) fn take_aside(&self) -> Vec<u64> {
        let blocks = std::mem::take(&mut *self.aside.lock());
        let mut done = self.was_aside.lock();
        blocks.into_iter().filter(|block| done.insert(*block)).collect()
    }

    /// The blocks that were read in a separate pass, ascending.
    pub(crate) fn read_aside(&self) -> Vec<u64> {
        self.was_aside.lock().iter().copied().collect()
    }

    /// Ends the assembly: returns the assembled trees and the leftovers.
    pub(crate) fn finish(&self) -> (Whole, Leftover) {
        let mut leftover = Leftover::default();
        for shard in &self.open {
            for (_, pending) in std::mem::take(&mut *shard.lock()) {
                let Pending { fields, root, mut tops, .. } = pending;
                leftover.files.push(OpenFile { fields, tally: Mutex::new(root) });
                leftover.nodes.append(&mut tops);
            }
        }
        (std::mem::take(&mut *self.whole.lock()), leftover)
    }
}

/// The fields of a file that claims depend on.
pub(crate) fn claiming_fields(inode: InodeNo, kind: Option<FileKind>) -> FileFields {
    FileFields { inode, kind, flags: InodeFlags::empty(), size: 0, sectors: 0, seed: 0 }
}

/// The layer of a tree block; 0 for leaves and for indirect blocks with numbers of data blocks.
fn layer_of(kind: NodeKind) -> u16 {
    match kind {
        NodeKind::Extents(depth) => depth,
        NodeKind::Indirect(level) => level.saturating_sub(1),
    }
}

/// A tree block with the file range that is known without its parent: an extent node has its first block; a directory
/// has a single indirect block, whose first block is known; all others count from 0.
fn node_of(fields: &FileFields, block: u64, bytes: &[u8], kind: NodeKind) -> Node {
    let starts_at = RawNode::from_bytes(bytes).and_then(|node| match kind {
        NodeKind::Extents(0) => node.extents().first().map(|e| e.ee_block.get()),
        _ => node.indexes().first().map(|e| e.ei_block.get()),
    });
    let first = match kind {
        NodeKind::Extents(_) => starts_at.unwrap_or(0),
        NodeKind::Indirect(1) if fields.is_directory() => format::indirect::DIRECT as u32,
        NodeKind::Indirect(_) => 0,
    };
    Node { block, inode: fields.inode, first, last: u32::MAX, kind }
}

/// The record of a tree block; `None` for one without entries. `numbers` is the capacity of an indirect block.
fn record_of(node: &Node, tally: &Tally, found: &Found, numbers: u64) -> Option<Record> {
    let layer = layer_of(node.kind);
    let last_child = found.nodes.last();
    match node.kind {
        NodeKind::Extents(0) => {
            let last = u32::try_from(tally.last?).ok()?;
            Some(Record { layer, last_place: 0, key: node.first, last })
        }
        NodeKind::Extents(_) => Some(Record { layer, last_place: 0, key: node.first, last: last_child?.first }),
        NodeKind::Indirect(level) => {
            let key = u32::try_from(node.block).ok()?;
            let (last, place) = match last_child {
                Some(child) if level > 1 => {
                    let span = numbers.checked_pow(u32::from(level) - 1)?;
                    (u32::try_from(child.block).ok()?, u64::from(child.first) / span)
                }
                _ if level == 1 => (0, tally.last?.checked_sub(u64::from(node.first))?),
                _ => return None,
            };
            Some(Record { layer, last_place: u16::try_from(place).ok()?, key, last })
        }
    }
}
