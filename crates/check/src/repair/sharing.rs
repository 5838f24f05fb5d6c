//! Multiply-claimed blocks: cloned for each file but one.
//!
//! The owners move to their copies in the order of their numbers, and the last one retains the block; file system
//! metadata never moves, and the bad blocks inode retains its blocks. Linear in the claims and in the multiply-claimed
//! clusters, however long the claims are: a count for each cluster has the number of remaining owners. The copies of a
//! file are read and written by runs, once its map is known.
//!
//! A file for whose copies there is no space is cleared, as e2fsck does. Its claims do not count for the files after it,
//! so they do not need copies because of it. A journal for whose copies there is no space is discarded instead, as a new
//! one can be made. The blocks of a cleared file are not used before the next check: where the volume has no space for
//! a redo log, blocks in use must not be overwritten by copies.

use super::attributes;
use super::clusters::push;
use super::journal;
use super::maps::{self, Pointer};
use super::system_inodes;
use super::work::Work;
use crate::phases::inodes::has_no_map;
use crate::phases::multiply_claimed::Sharing;
use crate::problem::Problem;
use crate::table::Code;
use blockdev::Result;
use format::extent::Extent;
use format::inode::{InodeBuf, InodeFlags};
use format::{FileBlock, FsBlock, InodeNo};
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// Maximum number of times that the clusters of the volume are allocated for files that are cleared after all.
const MOST_WASTED: u64 = 8;
/// Maximum number of blocks that are copied at once.
const COPIED: u64 = 256;

/// Clones multiply-claimed blocks.
pub(super) fn repair(work: &Work<'_>) -> Result<()> {
    work.make_stale();
    let Some(walk) = work.walk() else { return Ok(()) };
    let owners = owners_of_each(walk.sharing);
    let mut inodes: Vec<InodeNo> = walk.sharing.records.iter().map(|record| record.inode).collect();
    inodes.dedup();
    let released = Released::new(owners.len());
    let mut clones = Clones {
        work,
        owners,
        released,
        copies: Vec::new(),
        counted: Vec::new(),
        taken: Vec::new(),
        spare: Vec::new(),
        wasted: 0,
        shared: HashMap::new(),
        attributes: HashMap::new(),
    };
    for number in inodes.into_iter().filter(|inode| inode.get() != 0) {
        clones.separate(number)?;
    }
    let attributes = std::mem::take(&mut clones.attributes);
    move_attributes(work, &attributes)
}

/// A sentence with the reason where there are not enough free blocks to clone all shared blocks.
pub(super) fn lacks_space(work: &Work<'_>) -> Option<String> {
    let walk = work.walk()?;
    let claims = walk.sharing.claims_on_each(|inode| inode.get() != 0);
    let needed: u64 = claims.into_iter().map(|count| u64::from(count.saturating_sub(1))).sum();
    let free = work.free_clusters();
    let blocks = u64::from(work.volume().geometry.cluster_blocks);
    let (needed, free) = (needed * blocks, free * blocks);
    (needed > free).then(|| {
        format!("the files share {needed} blocks, and only {free} are free: make the volume larger first (resize2fs)")
    })
}

/// The owners of a cluster.
#[derive(Debug, Clone, Copy)]
struct Owners {
    /// Files that have not moved to a copy yet.
    left: u32,
    /// Whether it contains file system metadata.
    reserved: bool,
    /// Whether it is in the bad blocks inode.
    bad: bool,
}

/// The owners of each multiply-claimed cluster, by [place](Sharing::place).
fn owners_of_each(sharing: &Sharing) -> Vec<Owners> {
    let files = sharing.claims_on_each(|inode| inode.get() != 0 && inode != InodeNo::BAD_BLOCKS);
    let reserved = sharing.claims_on_each(|inode| inode.get() == 0);
    let bad = sharing.claims_on_each(|inode| inode == InodeNo::BAD_BLOCKS);
    let all = files.into_iter().zip(reserved).zip(bad);
    all.map(|((left, reserved), bad)| Owners { left, reserved: reserved > 0, bad: bad > 0 }).collect()
}

/// The number of claims on each multiply-claimed cluster by files that were cleared, as sums of differences in a tree
/// (after Fenwick): a claim on very many clusters is two changes.
struct Released(Vec<i64>);

impl Released {
    fn new(places: usize) -> Self {
        Self(vec![0; places + 2])
    }

    /// Adds `count` to the places from `from` on.
    fn add_from(&mut self, from: usize, count: i64) {
        let mut at = from + 1;
        while let Some(sum) = self.0.get_mut(at) {
            *sum += count;
            at += at & at.wrapping_neg();
        }
    }

    /// Adds `count` to a range of places.
    fn add(&mut self, places: Range<usize>, count: i64) {
        self.add_from(places.start, count);
        self.add_from(places.end, -count);
    }

    fn at(&self, place: usize) -> i64 {
        let (mut at, mut sum) = (place + 1, 0);
        while at > 0 {
            sum += self.0.get(at).copied().unwrap_or_default();
            at -= at & at.wrapping_neg();
        }
        sum
    }
}

struct Clones<'a, 'w> {
    work: &'a Work<'w>,
    /// The owners of each multiply-claimed cluster, by [place](Sharing::place).
    owners: Vec<Owners>,
    released: Released,
    /// The places at which a claim of the current file was counted as decided.
    counted: Vec<usize>,
    /// The clusters allocated for the current file.
    taken: Vec<u64>,
    /// The clusters that were allocated for files that were cleared, for the copies of others.
    spare: Vec<u64>,
    /// The number of clusters that were allocated for files that were cleared.
    wasted: u64,
    /// The blocks of the current file that are still to be copied: source and destination. Until then the blocks with
    /// other owners are not changed, and the copies not read.
    copies: Vec<(u64, u64)>,
    /// Under bigalloc: the copies of the current file's clusters, by cluster and cluster number in the file; `None` for
    /// metadata.
    shared: HashMap<(u64, Option<u64>), u64>,
    /// Attribute blocks and their copies.
    attributes: HashMap<u64, u64>,
}

/// The decision on one claim on a block.
enum Outcome {
    Stays,
    Goes(u64),
    NoSpace,
}

impl Clones<'_, '_> {
    /// Clones the multiply-claimed blocks of one file.
    fn separate(&mut self, number: InodeNo) -> Result<()> {
        let work = self.work;
        self.shared.clear();
        self.counted.clear();
        self.taken.clear();
        if number == InodeNo::RESIZE {
            return system_inodes::make_resize_inode(work);
        }
        let Some(mut inode) = work.inode(number)? else { return Ok(()) };
        if number == InodeNo::BAD_BLOCKS {
            // metadata blocks in the bad blocks inode are dropped from it
            let volume = work.volume();
            maps::edit_indirect(work, number, &mut inode, &mut |pointer| {
                let reserved = self.owners_of(pointer.block).is_some_and(|of| of.reserved);
                Ok(if reserved || !volume.contains(pointer.block) { 0 } else { pointer.block })
            })?;
            return work.put_inode(number, inode);
        }
        let has_space = if has_no_map(&inode.raw()) {
            // it shares its attribute block alone
            true
        } else if inode.raw().flags().contains(InodeFlags::EXTENTS) {
            self.separate_extents(number, &mut inode)?
        } else {
            self.separate_indirect(number, &mut inode)?
        };
        if !has_space {
            return self.abandon(number);
        }
        let wide = work.volume().features.incompat.contains(format::feature::Incompat::BIT64);
        let acl = inode.raw().file_acl(wide).get();
        work.put_inode(number, inode)?;
        if acl != 0 && !self.attributes.contains_key(&acl) {
            match self.decide(acl, None)? {
                Outcome::Stays => {}
                Outcome::Goes(to) => _ = self.attributes.insert(acl, to),
                Outcome::NoSpace => work.edit_inode(number, |inode| inode.set_file_acl(FsBlock(0)))?,
            }
        }
        self.copy()
    }

    /// Clears the current file, for which there is no space; its claims count no more.
    fn abandon(&mut self, number: InodeNo) -> Result<()> {
        self.copies.clear();
        for place in self.counted.drain(..) {
            self.released.add(place..place + 1, -1);
        }
        if let Some(walk) = self.work.walk() {
            for places in walk.sharing.places_of(number) {
                self.released.add(places, 1);
            }
        }
        // each of very many files may take all that is free, in vain
        self.wasted += self.taken.len() as u64;
        if self.wasted <= self.work.clusters() * MOST_WASTED {
            self.spare.append(&mut self.taken);
        }
        if number == InodeNo::JOURNAL && number.get() == self.work.volume().disk.s_journal_inum.get() {
            return journal::discard(self.work);
        }
        self.work.report(Problem::new(Code::FileClearedForSpace).inode(number));
        self.work.clear_inode(number)
    }

    /// Allocates a cluster for a copy.
    fn allocate(&mut self, metadata: bool) -> Option<u64> {
        let in_region = metadata && self.work.volume().geometry.has_regions();
        let to = match metadata {
            true => self.work.allocate_metadata(),
            false => self.work.allocate(),
        };
        let to = to.or_else(|| if in_region { None } else { self.spare.pop() })?;
        self.taken.push(to);
        Some(to)
    }

    /// Makes the scheduled copies, with contiguous blocks in one request.
    fn copy(&mut self) -> Result<()> {
        let mut copies = std::mem::take(&mut self.copies).into_iter().peekable();
        while let Some((from, to)) = copies.next() {
            let mut blocks = 1;
            while blocks < COPIED && copies.next_if_eq(&(from + blocks, to + blocks)).is_some() {
                blocks += 1;
            }
            self.work.copy_blocks(from, to, blocks)?;
        }
        Ok(())
    }

    fn owners_of(&self, block: u64) -> Option<Owners> {
        let walk = self.work.walk()?;
        self.owners.get(walk.sharing.place(walk.ctx.claims.cluster_of(block))?).copied()
    }

    /// Decides on one claim on a block, and schedules a copy of the block if it moves. `logical` is the file block;
    /// `None` for metadata.
    fn decide(&mut self, block: u64, logical: Option<u64>) -> Result<Outcome> {
        let work = self.work;
        let Some(walk) = work.walk() else { return Ok(Outcome::Stays) };
        let cluster = walk.ctx.claims.cluster_of(block);
        let geometry = &work.volume().geometry;
        let ratio = u64::from(geometry.cluster_blocks);
        let within = block.saturating_sub(u64::from(geometry.first_data_block)) % ratio;
        let place = (cluster, logical.map(|logical| logical / ratio));
        if let Some(to) = self.shared.get(&place).filter(|_| ratio > 1) {
            return Ok(if *to == block - within { Outcome::Stays } else { Outcome::Goes(to + within) });
        }
        let Some(number) = walk.sharing.place(cluster) else { return Ok(Outcome::Stays) };
        let Some(of) = self.owners.get_mut(number) else { return Ok(Outcome::Stays) };
        let stays = !of.reserved && !of.bad && i64::from(of.left) - self.released.at(number) <= 1;
        of.left = of.left.saturating_sub(1);
        self.counted.push(number);
        if stays {
            self.shared.insert(place, block - within);
            return Ok(Outcome::Stays);
        }
        let Some(to) = self.allocate(logical.is_none()) else { return Ok(Outcome::NoSpace) };
        self.copies.extend((0..ratio).map(|n| (block - within + n, to + n)));
        self.shared.insert(place, to);
        Ok(Outcome::Goes(to + within))
    }

    fn separate_indirect(&mut self, number: InodeNo, inode: &mut InodeBuf) -> Result<bool> {
        let mut has_space = true;
        let work = self.work;
        maps::edit_indirect(work, number, inode, &mut |pointer: Pointer| {
            if !work.volume().contains(pointer.block) || !has_space {
                return Ok(pointer.block);
            }
            if self.leads_into_metadata(&pointer)? {
                return Ok(0);
            }
            Ok(match self.decide(pointer.block, (pointer.level == 0).then_some(pointer.first))? {
                Outcome::Stays => pointer.block,
                Outcome::Goes(to) => to,
                Outcome::NoSpace => {
                    has_space = false;
                    pointer.block
                }
            })
        })?;
        Ok(has_space)
    }

    /// Whether an indirect block is file system metadata and does not look like an indirect block. A copy of it would
    /// be interpreted as one.
    fn leads_into_metadata(&self, pointer: &Pointer) -> Result<bool> {
        if pointer.level == 0 || !self.owners_of(pointer.block).is_some_and(|of| of.reserved) {
            return Ok(false);
        }
        let Some(bytes) = self.work.block(pointer.block)? else { return Ok(true) };
        let volume = self.work.volume();
        let impossible = |block: u64| block != 0 && !volume.contains(block);
        Ok(volume.geometry.indirect().pointers(&bytes).iter().any(|block| impossible(block.get().into())))
    }

    fn separate_extents(&mut self, number: InodeNo, inode: &mut InodeBuf) -> Result<bool> {
        let found = maps::read_extents(self.work, number, inode)?;
        let own = maps::exclusive(self.work, &found.nodes);
        let exclusive: HashSet<u64> = own.iter().copied().collect();
        // a multiply-claimed node is left to its other owners
        for node in found.nodes.iter().filter(|node| !exclusive.contains(node)) {
            if let Some(walk) = self.work.walk()
                && let Some(place) = walk.sharing.place(walk.ctx.claims.cluster_of(*node))
                && let Some(of) = self.owners.get_mut(place)
            {
                of.left = of.left.saturating_sub(1);
                self.counted.push(place);
            }
        }
        let mut extents: Vec<Extent> = Vec::new();
        for extent in &found.extents {
            let mut done = 0;
            while done < extent.len {
                let block = extent.physical.get() + u64::from(done);
                let (place, len) = match self.singly_claimed(block, extent.len - done) {
                    0 => match self.decide(block, Some(extent.logical.get() + u64::from(done)))? {
                        Outcome::Stays => (block, 1),
                        Outcome::Goes(to) => (to, 1),
                        Outcome::NoSpace => return Ok(false),
                    },
                    run => (block, run),
                };
                push(
                    &mut extents,
                    Extent {
                        logical: FileBlock(extent.logical.get() + u64::from(done)),
                        physical: FsBlock(place),
                        len,
                        unwritten: extent.unwritten,
                    },
                );
                done += len;
            }
        }
        maps::write_extents(self.work, number, inode, &extents, &own)
    }

    /// The number of blocks from `block` on, at most `most`, that have no other claim.
    fn singly_claimed(&self, block: u64, most: u32) -> u32 {
        let Some(walk) = self.work.walk() else { return most };
        let claims = &walk.ctx.claims;
        let cluster = claims.cluster_of(block);
        let conflicts = &walk.sharing.conflicts;
        let Some(next) = conflicts.get(conflicts.partition_point(|c| c.end <= cluster)) else { return most };
        if next.contains(&cluster) {
            return 0;
        }
        let geometry = &self.work.volume().geometry;
        let start = u64::from(geometry.first_data_block) + next.start * u64::from(geometry.cluster_blocks);
        u32::try_from(start - block).unwrap_or(u32::MAX).min(most)
    }
}

/// Updates all inodes that share an attribute block to its copy.
fn move_attributes(work: &Work<'_>, moved: &HashMap<u64, u64>) -> Result<()> {
    if moved.is_empty() {
        return Ok(());
    }
    let wide = work.volume().features.incompat.contains(format::feature::Incompat::BIT64);
    let geometry = &work.volume().geometry;
    for number in attributes::users(work, &moved.keys().copied().collect())? {
        work.edit_inode(number, |inode| {
            if let Some(to) = moved.get(&inode.raw().file_acl(wide).get()) {
                inode.set_file_acl(FsBlock(*to));
            }
        })?;
    }
    for to in moved.values() {
        if let Some(mut bytes) = work.block(*to)?
            && geometry.metadata_csum
        {
            let _ = format::xattr::write_block_checksum(&mut bytes, FsBlock(*to), geometry.checksum_seed);
            work.put_block(*to, &bytes)?;
        }
    }
    Ok(())
}
