//! Multiply-claimed blocks: cloned for each file but one.
//!
//! The owners move to their copies one after the other, and the last one retains the block; file system metadata never
//! moves, and the bad blocks inode retains its blocks. The first ones are those that are probably wrong: files with a
//! damaged map, then those that share most blocks; reserved inodes precede them, the root and lost+found follow. Linear
//! in the claims and in the multiply-claimed clusters, however long the claims are: a count for each cluster has the
//! number of remaining owners. The copies of a file are read and written by runs, once its map is known.
//!
//! A number that leads to a block of another owner which is no attribute block or no indirect block is removed.
//!
//! Where there is no space for all copies, files with a damaged map first lose the parts of it that lead to blocks of
//! others. A file for whose copies there is still no space is cleared, as e2fsck does, but never the root. Its claims do
//! not count for the files after it, so they do not need copies because of it. A journal for whose copies there is no
//! space is discarded instead, as a new one can be made. The blocks of a cleared file are not used before the next
//! check: where the volume has no space for a redo log, blocks in use must not be overwritten by copies.

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
use std::cmp::Reverse;
use std::collections::HashMap;
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
    let inodes = in_order(work, walk.sharing);
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
    // the next check finds what is still shared
    if clones.remove_misleading(&inodes)? || clones.trim_damaged(&inodes)? {
        return Ok(());
    }
    for number in inodes {
        clones.separate(number)?;
    }
    let attributes = std::mem::take(&mut clones.attributes);
    move_attributes(work, &attributes)
}

/// The order in which inodes move to copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// The journal, the resize inode and other reserved inodes.
    CanBeMadeAgain,
    /// A file whose map is damaged.
    Damaged,
    File,
    /// The root and lost+found.
    FilesDependOnIt,
}

/// The inodes with multiply-claimed blocks, those that are probably wrong first.
fn in_order(work: &Work<'_>, sharing: &Sharing) -> Vec<InodeNo> {
    let mut inodes: Vec<InodeNo> = sharing.records.iter().map(|record| record.inode).collect();
    inodes.dedup();
    inodes.retain(|inode| inode.get() != 0);
    let first = work.volume().geometry.first_inode;
    inodes.sort_by_cached_key(|number| {
        let rank = match number.get() {
            // lost+found is the first inode that is not reserved
            n if *number == InodeNo::ROOT || n == first => Rank::FilesDependOnIt,
            n if n < first => Rank::CanBeMadeAgain,
            _ if work.has_damaged_map(*number) => Rank::Damaged,
            _ => Rank::File,
        };
        let shared: usize = sharing.places_of(*number).map(|places| places.len()).sum();
        (rank, Reverse(shared), *number)
    });
    inodes
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

    /// Removes numbers of multiply-claimed blocks that are no attribute blocks and no indirect blocks from the inodes
    /// and maps that name them as such. Returns whether there was one.
    fn remove_misleading(&self, inodes: &[InodeNo]) -> Result<bool> {
        let mut removed = false;
        for number in inodes {
            removed |= self.remove_no_attributes(*number)?;
            removed |= self.remove_no_trees(*number)?;
        }
        Ok(removed)
    }

    fn remove_no_attributes(&self, number: InodeNo) -> Result<bool> {
        let Some(mut inode) = self.work.inode(number)? else { return Ok(false) };
        let wide = self.work.volume().features.incompat.contains(format::feature::Incompat::BIT64);
        let acl = inode.raw().file_acl(wide).get();
        if self.place_of(acl).is_none() {
            return Ok(false);
        }
        let bytes = self.work.block(acl)?.unwrap_or_default();
        if bytes.starts_with(&format::xattr::MAGIC.to_le_bytes()) {
            return Ok(false);
        }
        inode.set_file_acl(FsBlock(0));
        self.work.put_inode(number, inode)?;
        Ok(true)
    }

    fn remove_no_trees(&self, number: InodeNo) -> Result<bool> {
        let work = self.work;
        let Some(mut inode) = work.inode(number)? else { return Ok(false) };
        if has_no_map(&inode.raw()) || inode.raw().flags().contains(InodeFlags::EXTENTS) || number == InodeNo::RESIZE {
            return Ok(false);
        }
        let mut removed = false;
        maps::edit_indirect(work, number, &mut inode, &mut |pointer: Pointer| {
            let astray = self.leads_astray(&pointer)?;
            removed |= astray;
            Ok(if astray { 0 } else { pointer.block })
        })?;
        if removed {
            work.put_inode(number, inode)?;
        }
        Ok(removed)
    }

    /// If there is no space to clone all shared blocks: removes the parts of damaged maps that lead to them, until
    /// there is. Returns whether any was removed: the next check finds what is still shared then.
    fn trim_damaged(&mut self, inodes: &[InodeNo]) -> Result<bool> {
        let work = self.work;
        // bad blocks remain listed, and the resize inode is made again
        let is_file = |number: InodeNo| ![InodeNo::BAD_BLOCKS, InodeNo::RESIZE].contains(&number);
        let damaged = inodes.iter().copied().filter(|number| is_file(*number) && work.has_damaged_map(*number));
        let damaged: Vec<InodeNo> = damaged.collect();
        if damaged.is_empty() {
            return Ok(false);
        }
        let copies = |of: &Owners| u64::from(of.left).saturating_sub(u64::from(!of.reserved && !of.bad));
        let mut missing = self.owners.iter().map(copies).sum::<u64>().saturating_sub(work.free_clusters());
        let mut trimmed = false;
        for number in damaged {
            if missing == 0 {
                break;
            }
            let Some(mut inode) = work.inode(number)?.filter(|inode| !has_no_map(&inode.raw())) else { continue };
            let before = missing;
            if inode.raw().flags().contains(InodeFlags::EXTENTS) {
                self.trim_extents(number, &mut inode, &mut missing)?;
            } else {
                maps::edit_indirect(work, number, &mut inode, &mut |pointer: Pointer| {
                    Ok(if self.release_shared(pointer.block..pointer.block + 1, &mut missing) {
                        0
                    } else {
                        pointer.block
                    })
                })?;
            }
            if missing < before {
                trimmed = true;
                work.put_inode(number, inode)?;
                work.report(Problem::new(Code::BlocksRemovedForSpace).inode(number).count(before - missing));
            }
        }
        Ok(trimmed)
    }

    /// Shortens extents with shared blocks to what is before these, extents with most of them first.
    fn trim_extents(&mut self, number: InodeNo, inode: &mut InodeBuf, missing: &mut u64) -> Result<()> {
        let found = maps::read_extents(self.work, number, inode)?;
        let own = maps::exclusive(self.work, &found.nodes);
        let blocks = |extent: &Extent| extent.physical.get()..extent.physical.get() + u64::from(extent.len);
        let mut order: Vec<usize> = (0..found.extents.len()).collect();
        order.sort_by_cached_key(|n| {
            let shared = found.extents.get(*n).map_or(0, |extent| self.shared_places(blocks(extent)).count());
            (Reverse(shared), *n)
        });
        let mut left = found.extents.clone();
        for n in order {
            if let Some(extent) = left.get_mut(n)
                && *missing > 0
                && self.release_shared(blocks(extent), missing)
            {
                extent.len = self.singly_claimed(extent.physical.get(), extent.len);
            }
        }
        left.retain(|extent| extent.len > 0);
        // fewer extents need no further node
        maps::write_extents(self.work, number, inode, &left, &own).map(drop)
    }

    /// Releases the claims on blocks if one of them has another owner. Returns whether that is so.
    fn release_shared(&mut self, blocks: Range<u64>, missing: &mut u64) -> bool {
        let places: Vec<usize> = self.shared_places(blocks).collect();
        let is_shared = |of: &Owners| of.left > u32::from(!of.reserved && !of.bad);
        if !places.iter().any(|place| self.owners.get(*place).is_some_and(is_shared)) {
            return false;
        }
        for place in places {
            if self.owners.get(place).is_some_and(is_shared) {
                *missing = missing.saturating_sub(1);
            }
            self.count_decided(place);
        }
        true
    }

    /// The places of the multiply-claimed clusters among blocks.
    fn shared_places(&self, blocks: Range<u64>) -> impl Iterator<Item = usize> + use<> {
        let places =
            self.work.walk().map_or(0..0, |walk| walk.sharing.places_within(walk.ctx.claims.clusters_of(&blocks)));
        places.start as usize..places.end as usize
    }

    fn place_of(&self, block: u64) -> Option<usize> {
        let walk = self.work.walk()?;
        walk.sharing.place(walk.ctx.claims.cluster_of(block)).filter(|_| self.work.volume().contains(block))
    }

    /// Counts a claim at a place as decided.
    fn count_decided(&mut self, place: usize) {
        if let Some(of) = self.owners.get_mut(place) {
            of.left = of.left.saturating_sub(1);
        }
    }

    /// Clears the current file, for which there is no space; its claims count no more.
    fn abandon(&mut self, number: InodeNo) -> Result<()> {
        self.copies.clear();
        if number == InodeNo::ROOT {
            return Ok(());
        }
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
        let stays = self.is_last_owner(number);
        self.count_decided(number);
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

    /// Whether the others have moved to copies, so that the current file may retain the cluster at a place.
    fn is_last_owner(&self, place: usize) -> bool {
        let left = |of: &Owners| i64::from(of.left) - self.released.at(place);
        self.owners.get(place).is_none_or(|of| !of.reserved && !of.bad && left(of) <= 1)
    }

    fn separate_indirect(&mut self, number: InodeNo, inode: &mut InodeBuf) -> Result<bool> {
        let mut has_space = true;
        let work = self.work;
        maps::edit_indirect(work, number, inode, &mut |pointer: Pointer| {
            if !work.volume().contains(pointer.block) || !has_space {
                return Ok(pointer.block);
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

    /// Whether an indirect block has another owner and does not look like an indirect block. A copy would be
    /// interpreted as one.
    fn leads_astray(&self, pointer: &Pointer) -> Result<bool> {
        if pointer.level == 0 || self.place_of(pointer.block).is_none() {
            return Ok(false);
        }
        let Some(bytes) = self.work.block(pointer.block)? else { return Ok(true) };
        let volume = self.work.volume();
        let impossible = |block: u64| block != 0 && !volume.contains(block);
        Ok(volume.geometry.indirect().pointers(&bytes).iter().any(|block| impossible(block.get().into())))
    }

    fn separate_extents(&mut self, number: InodeNo, inode: &mut InodeBuf) -> Result<bool> {
        let found = maps::read_extents(self.work, number, inode)?;
        let mut own = Vec::new();
        for node in &found.nodes {
            let Some(place) = self.place_of(*node) else {
                own.push(*node);
                continue;
            };
            // a multiply-claimed node is left to its other owners
            if self.is_last_owner(place) {
                own.push(*node);
            }
            self.count_decided(place);
            self.counted.push(place);
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
