//! Inode tables with a wrong location in their descriptor: the blocks there do not match the group's inode bitmap,
//! while those at a location where mkfs puts tables do. A descriptor has a copy only on volumes of several groups; but
//! the location follows from those of the bitmaps and of the neighbours' tables, and the content there can be compared.
//!
//! Tables are read only where there is a reason: an impossible location, a first group without the root, or an odd
//! location, which is possible but not where mkfs puts tables ([`Seeker::odd`]).

use crate::phases::superblock::descriptors::{Table, allowed_range, denies_inodes, is_unwritten, lies_in, own_blocks};
use crate::problem::Problem;
use crate::scan::Scanner;
use crate::table::Code;
use format::dir::{DirFormat, dot_entries};
use format::extent::{self, RawNode};
use format::feature::{Features, Incompat};
use format::group::{Group, GroupFlags};
use format::inode::{FileKind, InodeFlags, RawInode};
use format::superblock::Geometry;
use format::{FsBlock, GroupNo, InodeNo};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of groups whose tables are searched for: more are not the result of a few damaged sectors.
const MOST: usize = 4096;

/// Maximum number of odd locations that are compared although a copy of the descriptors has the same: a volume that was
/// enlarged has some, and reading all tables would double the time of a check.
const CONFIRMED: usize = 16;

/// The search for tables on a volume of which only the superblock is known.
pub(crate) struct Seeker<'a> {
    pub(crate) scanner: &'a Scanner<'a>,
    pub(crate) geometry: &'a Geometry,
    pub(crate) features: &'a Features,
}

/// The result of a comparison of another table with the present one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// It matches the bitmap better, or as well and is where mkfs puts it.
    Better,
    /// It matches the bitmap as well.
    Equal,
}

/// The agreement of a table with its group's bitmap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Agreement {
    /// Inodes of users' files that are in use by the bitmap.
    pub(crate) members: u32,
    /// Those of them that are in use in the table.
    matched: u32,
    /// Inodes in which bitmap and table differ.
    differing: u32,
    /// Whether the table is certainly the group's, whatever the bitmap states: it contains the root, or inodes with
    /// right checksums, which cover their numbers.
    proved: bool,
}

impl Agreement {
    /// Whether bitmap and table agree well enough: a crash may leave a few differences, but at a wrong location hardly
    /// any inode agrees.
    fn is_good(self) -> bool {
        u64::from(self.differing) * 4 <= u64::from(self.members)
    }

    /// The weight of the agreement: a difference counts as much as four inodes that match.
    fn score(self) -> i64 {
        i64::from(self.matched) - 4 * i64::from(self.differing)
    }

    /// Inodes of users' files that are in use in the table.
    fn in_use(self) -> u32 {
        (self.differing + 2 * self.matched).saturating_sub(self.members)
    }

    /// Whether the bitmap has files in use, but the table is not theirs.
    pub(crate) fn is_lost(self) -> bool {
        self.members > 0 && !self.proved && !self.is_good()
    }
}

impl Seeker<'_> {
    /// Corrects the table locations in descriptors that make no sense, or of which the first group's does not lead to
    /// the root. Returns the changes as problems. Nothing is changed unless all descriptors make sense afterwards.
    pub(crate) fn seek(&self, table: &mut Table) -> Vec<Problem> {
        let suspects = self.suspects(table);
        if suspects.is_empty() || suspects.len() > MOST {
            return Vec::new();
        }
        let before = table.groups.clone();
        let mut problems = Vec::new();
        for &number in &suspects {
            let Some(group) = table.groups.get(number.get() as usize).copied() else { continue };
            if self.is_place(number, &group, group.inode_table.get()) || self.has_own_inodes(number, &group) {
                continue;
            }
            let elsewhere = || {
                let mut places = self.places(number, &group, &table.groups, &suspects).into_iter();
                let place = places.find(|place| self.is_place(number, &group, *place))?;
                Some(Group { inode_table: FsBlock(place), ..group })
            };
            let Some(right) = self.as_made(number, &group, &table.groups).or_else(elsewhere) else { continue };
            let problem = Problem::new(Code::InodeTableElsewhere).group(number).block(right.inode_table);
            problems.push(problem.found(group.inode_table.get()));
            if let Some(group) = table.groups.get_mut(number.get() as usize) {
                *group = right;
            }
        }
        if problems.is_empty() || !table.makes_sense(self.geometry, self.features) {
            table.groups = before;
            problems.clear();
        }
        problems
    }

    /// Compares tables whose location is doubtful, because a copy of the descriptors has another one or because it is
    /// odd, with those at other possible locations, and corrects the locations where others match the inode bitmap
    /// better. Returns the changes as problems, and groups of which two tables match equally well.
    pub(crate) fn seek_better(&self, table: &mut Table, copied: &[Group]) -> Vec<Problem> {
        let own_table = |number: GroupNo| table.groups.get(number.get() as usize).map(|group| group.inode_table);
        let copy_of = |number: GroupNo| copied.get(number.get() as usize).filter(|copy| copy.inode_table.get() != 0);
        let differs =
            |number: &GroupNo| copy_of(*number).is_some_and(|copy| own_table(*number) != Some(copy.inode_table));
        let mut suspects: BTreeSet<GroupNo> = self.geometry.group_numbers().filter(differs).collect();
        let odd: Vec<_> = self.odd(&table.groups).into_iter().filter(|number| !suspects.contains(number)).collect();
        if odd.len() <= CONFIRMED {
            suspects.extend(odd);
        }
        if suspects.is_empty() || suspects.len() > MOST {
            return Vec::new();
        }
        let (mut right, mut problems, mut indifferent) = (Vec::new(), Vec::new(), Vec::new());
        for &number in &suspects {
            match self.better(number, copied, &table.groups, &suspects) {
                Some((Verdict::Better, group)) => right.push((number, group)),
                Some((Verdict::Equal, group)) => {
                    let problem = Problem::new(Code::InodeTableUnclear).group(number).block(group.inode_table);
                    problems.push(problem.found(own_table(number).map_or(0, FsBlock::get)));
                }
                None => indifferent.extend(copy_of(number).map(|copy| (number, *copy))),
            }
        }
        // a table without files, which may be where another one belongs, goes where the copy states
        if !right.is_empty() {
            let displaced = indifferent.into_iter().filter_map(|(number, copy): (GroupNo, Group)| {
                let own = *table.groups.get(number.get() as usize)?;
                let found = self.agreement(number, &own, copy.inode_table.get());
                let is_empty = found.is_none_or(|found| found.members == 0);
                is_empty.then_some((number, Group { inode_table: copy.inode_table, ..own }))
            });
            right.extend(displaced.collect::<Vec<_>>());
        }
        let before = if right.is_empty() { Vec::new() } else { table.groups.clone() };
        let mut moved = Vec::new();
        for (number, better) in right {
            let Some(group) = table.groups.get_mut(number.get() as usize) else { continue };
            let problem = Problem::new(Code::InodeTableElsewhere).group(number).block(better.inode_table);
            moved.push(problem.found(group.inode_table.get()));
            *group = better;
        }
        if !moved.is_empty() && !table.makes_sense(self.geometry, self.features) {
            table.groups = before;
            // some of the locations are wrong, but it is unclear which
            moved.retain_mut(|problem| {
                problem.code = Code::InodeTableUnclear;
                problem.group.is_some_and(|number| !self.matches_entirely(number, &table.groups))
            });
        }
        moved.extend(problems);
        moved
    }

    /// Whether a group's table and bitmap have the same inodes in use, and some.
    fn matches_entirely(&self, number: GroupNo, groups: &[Group]) -> bool {
        let group = groups.get(number.get() as usize);
        let agreement = group.and_then(|group| self.agreement(number, group, group.inode_table.get()));
        agreement.is_some_and(|found| found.members > 0 && found.differing == 0)
    }

    /// A descriptor of this group whose table matches the inode bitmap better than the one at the present location, or
    /// equally well. The inode bitmap is that of the present descriptor; that of a copy only where the block bitmaps
    /// prove that the copy is right: an abandoned pair of bitmap and table matches itself.
    fn better(
        &self,
        number: GroupNo,
        copied: &[Group],
        groups: &[Group],
        suspects: &BTreeSet<GroupNo>,
    ) -> Option<(Verdict, Group)> {
        let own = groups.get(number.get() as usize)?;
        let is_root = |group: &Group| number.get() != 0 || self.contains_root(group.inode_table.get());
        if number.get() == 0 && is_root(own) || is_unwritten(self.geometry, number, own) {
            return None;
        }
        let range = allowed_range(self.geometry, self.features, number);
        let compare = |group: &Group| {
            let [_, _, bitmap, table] = own_blocks(self.geometry, number, group);
            let possible = lies_in(&bitmap, &range) && lies_in(&table, &range) && is_root(group);
            self.agreement(number, group, table.start).filter(|_| possible)
        };
        let copy = copied.get(number.get() as usize).filter(|copy| copy.inode_table.get() != 0);
        let pair = copy.filter(|copy| copy.inode_bitmap != own.inode_bitmap && copy.inode_table != own.inode_table);
        let pair = pair.map(|copy| Group { inode_bitmap: copy.inode_bitmap, inode_table: copy.inode_table, ..*own });
        let is_proved = |pair: &Group| {
            self.is_allocated(own, groups) == Some(false)
                && self.is_allocated(pair, groups) == Some(true)
                && compare(pair).is_some_and(|agreement| agreement.members > 0 && agreement.is_good())
        };
        if let Some(pair) = pair.filter(is_proved) {
            return Some((Verdict::Better, pair));
        }
        let present = compare(own);
        let now = present.map_or(0, Agreement::score);
        // a few differences are left by a crash, so other locations are read only if there are some
        let places = match present {
            Some(agreement) if agreement.differing == 0 && agreement.members > 0 => Vec::new(),
            _ => self.places(number, own, groups, suspects),
        };
        let places = copy.map(|copy| copy.inode_table.get()).into_iter().chain(places);
        let candidates = places.map(|place| Group { inode_table: FsBlock(place), ..*own });
        let candidates = candidates.filter(|group| group.inode_table != own.inode_table);
        // no table without files replaces one with files, unless bitmap and descriptor agree that there are none
        let has_files = present.is_some_and(|present| present.in_use() > 0)
            && (own.free_inodes < self.geometry.inodes_per_group || !self.is_padded(own));
        let found = candidates.filter_map(|group| Some((compare(&group)?, group)));
        let found = found.filter(|(found, _)| found.matched > 0 || !has_files);
        let scored = found.map(|(found, group)| (found.score(), group));
        // the first of equals: that of the copy
        let (score, best) = scored.reduce(|best, next| if next.0 > best.0 { next } else { best })?;
        let is_made = |group: &Group| self.is_made(number, group);
        // that of another group, by the copy
        let is_others =
            || (0u32..).zip(copied).any(|(n, other)| n != number.get() && other.inode_table == own.inode_table);
        match score.cmp(&now) {
            Ordering::Greater => Some((Verdict::Better, best)),
            Ordering::Equal if score > 0 && !is_made(own) && is_others() => {
                Some((if is_made(&best) { Verdict::Better } else { Verdict::Equal }, best))
            }
            _ => None,
        }
    }

    /// Whether the block bitmaps have all blocks of a group's inode bitmap and table in use, and all of them are written;
    /// `None` where one cannot be read.
    pub(crate) fn is_allocated(&self, group: &Group, groups: &[Group]) -> Option<bool> {
        let geometry = self.geometry;
        let checksums = geometry.metadata_csum || geometry.gdt_csum;
        let table = group.inode_table.get();
        let blocks = table..table.checked_add(geometry.itable_blocks.into())?;
        let mut bitmap: Option<(GroupNo, Vec<u8>)> = None;
        for block in std::iter::once(group.inode_bitmap.get()).chain(blocks) {
            let number = geometry.group_of(FsBlock(block))?;
            if bitmap.as_ref().is_none_or(|(read, _)| *read != number) {
                let descriptor = groups.get(number.get() as usize)?;
                let unwritten = checksums && descriptor.flags.contains(GroupFlags::BLOCK_UNINIT);
                let bits = if unwritten { Vec::new() } else { self.block(descriptor.block_bitmap.get())? };
                bitmap = Some((number, bits));
            }
            let index = block.checked_sub(geometry.group_start(number).get())? / u64::from(geometry.cluster_blocks);
            let (_, bits) = bitmap.as_ref()?;
            if bits.get(index as usize / 8).is_none_or(|byte| byte >> (index % 8) & 1 == 0) {
                return Some(false);
            }
        }
        Some(true)
    }

    /// The groups whose table is not where mkfs puts it, by the descriptors alone: neither after the group's bitmaps, nor
    /// directly beside the table of a neighbour in the same flexible group, nor as far from the head as most tables. On
    /// new volumes there are next to none.
    pub(crate) fn odd(&self, groups: &[Group]) -> BTreeSet<GroupNo> {
        let length = u64::from(self.geometry.itable_blocks);
        let flex = self.geometry.flex_groups.max(1);
        let usual = if flex == 1 { self.usual_distance(groups) } else { None };
        let table = |n: u32| groups.get(n as usize).map(|group| group.inode_table.get());
        let is_odd = |number: GroupNo, group: &Group| {
            let (n, place) = (number.get(), group.inode_table.get());
            let (bitmap, inodes) = (group.block_bitmap.get(), group.inode_bitmap.get());
            // a flexible group has as many inode bitmaps as block bitmaps before its first table
            let apart = inodes.checked_sub(bitmap).and_then(|apart| inodes.checked_add(apart));
            let after_bitmaps = inodes.checked_add(1) == Some(place) || apart == Some(place);
            let (first, last) = (n.is_multiple_of(flex), (n + 1).is_multiple_of(flex));
            let before = if first { None } else { table(n - 1).and_then(|before| before.checked_add(length)) };
            let next = if last { None } else { table(n + 1) };
            let beside = before == Some(place) || next.is_some() && next == place.checked_add(length);
            let as_usual = usual.is_some() && usual == self.distance(number, group);
            let made = || self.made_places(number).is_some_and(|[_, _, made]| made == place);
            !(after_bitmaps || beside || as_usual || made())
        };
        let groups = self.geometry.group_numbers().zip(groups);
        groups.filter(|&(number, group)| is_odd(number, group)).map(|(number, _)| number).collect()
    }

    /// The distance of a table from the head of its group.
    fn distance(&self, number: GroupNo, group: &Group) -> Option<u64> {
        group.inode_table.get().checked_sub(self.geometry.group_head(number).end)
    }

    /// The distance of most tables from the heads of their groups; `None` where no two have the same.
    fn usual_distance(&self, groups: &[Group]) -> Option<u64> {
        let mut counts: BTreeMap<u64, u32> = BTreeMap::new();
        let groups = self.geometry.group_numbers().zip(groups);
        for distance in groups.filter_map(|(number, group)| self.distance(number, group)) {
            *counts.entry(distance).or_default() += 1;
        }
        let most = counts.into_iter().max_by_key(|(_, count)| *count);
        most.filter(|(_, count)| *count > 1).map(|(distance, _)| distance)
    }

    /// Whether the first group's table contains the root, by that one inode.
    pub(crate) fn leads_to_root(&self, table: &Table) -> bool {
        let Some(group) = table.groups.first() else { return false };
        self.slot(group.inode_table.get(), 1)
            .and_then(|slot| Some(RawInode::from_slot(&slot)?.kind() == Some(FileKind::Directory)))
            .unwrap_or(false)
    }

    /// Whether the first group's table contains the root, or inodes with right checksums as its bitmap states.
    pub(crate) fn leads_to_files(&self, table: &Table) -> bool {
        let Some(group) = table.groups.first() else { return false };
        let place = group.inode_table.get();
        let is_proved = |found: Agreement| found.proved && found.is_good();
        self.contains_root(place) || self.agreement(GroupNo(0), group, place).is_some_and(is_proved)
    }

    /// Whether the first group's table contains the root, or one of the locations where mkfs puts this table does.
    pub(crate) fn finds_root(&self, groups: &[Group]) -> bool {
        let Some(group) = groups.first() else { return false };
        let made = self.made_places(GroupNo(0)).map(|[_, _, table]| table);
        let places = self.places(GroupNo(0), group, groups, &BTreeSet::new());
        let mut places = places.into_iter().chain(made).chain([group.inode_table.get()]);
        places.any(|place| self.contains_root(place))
    }

    /// The groups whose table is at an invalid location or overlaps other metadata; and the first, if its table does
    /// not contain the root.
    fn suspects(&self, table: &Table) -> BTreeSet<GroupNo> {
        let mut suspects = BTreeSet::new();
        let mut parts = Vec::new();
        for (number, group) in self.geometry.group_numbers().zip(&table.groups) {
            let [head, block_bitmap, inode_bitmap, own] = own_blocks(self.geometry, number, group);
            if !lies_in(&own, &allowed_range(self.geometry, self.features, number)) {
                suspects.insert(number);
            }
            parts.extend([head, block_bitmap, inode_bitmap, own].map(|blocks| (blocks, number)));
        }
        parts.retain(|(blocks, _)| !blocks.is_empty());
        parts.sort_unstable_by_key(|(blocks, number)| (blocks.start, *number));
        let mut last: Option<(u64, GroupNo)> = None;
        for (blocks, number) in parts {
            match last {
                Some((end, holder)) if blocks.start < end => {
                    suspects.extend([holder, number]);
                    last = Some(if blocks.end > end { (blocks.end, number) } else { (end, holder) });
                }
                _ => last = Some((blocks.end, number)),
            }
        }
        if !self.leads_to_root(table) {
            suspects.insert(GroupNo(0));
        }
        suspects
    }

    /// The locations where mkfs may have put a group's table, the likeliest first.
    fn places(&self, number: GroupNo, group: &Group, groups: &[Group], suspects: &BTreeSet<GroupNo>) -> Vec<u64> {
        let (bitmap, inodes) = (group.block_bitmap.get(), group.inode_bitmap.get());
        // a flexible group reserves space for the bitmaps of all its groups
        let apart = inodes.checked_sub(bitmap).filter(|apart| *apart <= u64::from(self.geometry.blocks_per_group));
        let head = self.geometry.group_head(number).end;
        let mut places: Vec<u64> = apart.and_then(|apart| inodes.checked_add(apart)).into_iter().collect();
        places.extend([inodes.saturating_add(1), bitmap.saturating_add(2), head.saturating_add(2)]);
        // after the table of the previous group, before that of the next one, or as far from the head as theirs
        let trusted = |n: u32| {
            let neighbour = GroupNo(n);
            let group = groups.get(n as usize).filter(|_| !suspects.contains(&neighbour))?;
            Some((neighbour, group.inode_table.get()))
        };
        let length = u64::from(self.geometry.itable_blocks);
        let n = number.get();
        let near = n.saturating_sub(16)..n.saturating_add(17).min(self.geometry.groups);
        for (neighbour, place) in near.filter_map(trusted) {
            let between = u64::from(n.abs_diff(neighbour.get())) * length;
            places.extend(if neighbour < number { place.checked_add(between) } else { place.checked_sub(between) });
            let behind = place.checked_sub(self.geometry.group_head(neighbour).end);
            places.extend(behind.and_then(|behind| head.checked_add(behind)));
        }
        let mut seen = BTreeSet::new();
        places.retain(|place| seen.insert(*place));
        places
    }

    /// A descriptor without possible inode bitmap and table, with the locations that mkfs assigns, where the table there
    /// is the group's. An empty group proves nothing by itself; that the first group has these locations does.
    fn as_made(&self, number: GroupNo, group: &Group, groups: &[Group]) -> Option<Group> {
        let range = allowed_range(self.geometry, self.features, number);
        let [_, block_bitmap, inode_bitmap, found] = own_blocks(self.geometry, number, group);
        if lies_in(&inode_bitmap, &range) || lies_in(&found, &range) {
            return None;
        }
        let [of_blocks, of_inodes, table] = self.made_places(number)?;
        let mut made = Group { inode_bitmap: FsBlock(of_inodes), inode_table: FsBlock(table), ..*group };
        if !lies_in(&block_bitmap, &range) {
            made.block_bitmap = FsBlock(of_blocks);
        }
        let is_empty = || {
            let agreement = self.agreement(number, &made, table);
            let first = groups.first().filter(|_| number.get() > 0).map(|first| first.inode_table.get());
            let made_first = self.made_places(GroupNo(0)).map(|[_, _, table]| table);
            agreement.is_some_and(|agreement| agreement.members == 0 && agreement.differing == 0)
                && first == made_first
                && first.is_some_and(|place| self.contains_root(place))
        };
        (self.is_place(number, &made, table) || is_empty()).then_some(made)
    }

    /// The locations that mkfs assigns to block bitmap, inode bitmap and inode table of a group: a flexible group has
    /// the block bitmaps of all its groups first, then their inode bitmaps, then their tables.
    fn made_places(&self, number: GroupNo) -> Option<[u64; 3]> {
        let flex = self.geometry.flex_groups.max(1);
        let index = number.get() % flex;
        let first = number.get() - index;
        let head = self.geometry.group_head(GroupNo(first)).end;
        // the last flexible group may have fewer groups
        let flex = flex.min(self.geometry.groups.saturating_sub(first));
        let (flex, index) = (u64::from(flex), u64::from(index));
        let block_bitmap = head.checked_add(index)?;
        let inode_bitmap = block_bitmap.checked_add(flex)?;
        let tables = head.checked_add(flex.checked_mul(2)?)?;
        let table = tables.checked_add(index.checked_mul(self.geometry.itable_blocks.into())?)?;
        Some([block_bitmap, inode_bitmap, table])
    }

    /// Whether a group's table is at this location, by all available evidence.
    fn is_place(&self, number: GroupNo, group: &Group, place: u64) -> bool {
        let blocks = place..place.saturating_add(self.geometry.itable_blocks.into());
        if !lies_in(&blocks, &allowed_range(self.geometry, self.features, number)) {
            return false;
        }
        let first = number.get() == 0;
        if first && !self.contains_root(place) {
            return false;
        }
        match self.agreement(number, group, place) {
            // a group without files proves nothing; the root does
            Some(Agreement { members: 0, differing: 0, .. }) | None => first,
            Some(agreement) => agreement.is_good(),
        }
    }

    /// Whether a group's bitmap ends after as many inodes as the table has: the inodes in it are those in use, those that
    /// the descriptor states as unused are free, and all bits after them are set. A group whose bitmap was never written
    /// has as many free inodes.
    pub(crate) fn is_as_long_as_its_bitmap(&self, number: GroupNo, group: &Group, groups: &[Group]) -> bool {
        if is_unwritten(self.geometry, number, group) {
            return group.free_inodes == self.geometry.inodes_per_group;
        }
        let Some(agreement) = self.agreement(number, group, group.inode_table.get()) else { return true };
        let Some(bitmap) = self.block(group.inode_bitmap.get()) else { return false };
        let inodes = self.geometry.inodes_per_group;
        let used = self.used_inodes(number, group);
        let is_set = |bit: u32| bitmap.get(bit as usize / 8).is_some_and(|byte| byte >> (bit % 8) & 1 == 1);
        let bits = bitmap.len() as u32 * 8;
        // a longer table, with all its inodes in use, would look like the bits after a short one
        let next = group.inode_table.get().saturating_add(self.geometry.itable_blocks.into());
        let is_other =
            |other: &Group| [other.inode_table, other.inode_bitmap, other.block_bitmap].contains(&FsBlock(next));
        let goes_on = || {
            let slot =
                self.block(next).and_then(|block| Some(block.get(..self.geometry.inode_size as usize)?.to_vec()));
            let raw = slot.as_deref().and_then(RawInode::from_slot);
            raw.is_some_and(|raw| raw.disk.i_links_count.get() != 0 && raw.kind().is_some())
        };
        agreement.is_good()
            && !(used..inodes).any(is_set)
            && (inodes..bits).all(is_set)
            && (groups.iter().any(is_other) || !goes_on())
    }

    /// The number of inodes at the start of a group's table that may be in use; all where the descriptor contradicts
    /// itself.
    fn used_inodes(&self, number: GroupNo, group: &Group) -> u32 {
        let checksums = self.geometry.metadata_csum || self.geometry.gdt_csum;
        let stated = checksums && !denies_inodes(self.geometry, number, group);
        self.geometry.inodes_per_group.saturating_sub(if stated { group.itable_unused } else { 0 })
    }

    /// Whether the table at the location in a group's descriptor is certainly the group's, or matches its bitmap, by all
    /// its inodes: the number of those that were never used may be wrong, and so may the location of the bitmap.
    pub(crate) fn is_at_its_place(&self, number: GroupNo, group: &Group) -> bool {
        let whole = Group { itable_unused: 0, ..*group };
        let agreement = self.agreement(number, &whole, group.inode_table.get());
        agreement.is_some_and(|found| found.proved || found.members > 0 && found.is_good())
            || self.has_own_inodes(number, group)
    }

    /// Whether the table at the location in a group's descriptor is the group's by its inodes and the location, whatever
    /// the bitmap states. Where it has no inodes in use, the descriptor counts none.
    pub(crate) fn has_own_inodes(&self, number: GroupNo, group: &Group) -> bool {
        let counts_none = group.free_inodes == self.geometry.inodes_per_group;
        self.look_like_own(number, group).is_some_and(|in_use| in_use > 0 || counts_none)
            || is_unwritten(self.geometry, number, group) && self.is_made(number, group)
    }

    /// Whether a bitmap in the table at the location in a group's descriptor is wrong, not the table: that is certainly the
    /// group's, or is empty, and is where mkfs puts it.
    pub(crate) fn outweighs_bitmaps(&self, number: GroupNo, group: &Group) -> bool {
        self.is_at_its_place(number, group) || self.look_like_own(number, group).is_some()
    }

    /// Whether a group's table is where mkfs puts it.
    fn is_made(&self, number: GroupNo, group: &Group) -> bool {
        self.made_places(number).is_some_and(|[_, _, made]| made == group.inode_table.get())
    }

    /// The number of users' inodes in use in a group's table, if the blocks contain inodes and hardly anything else, and
    /// either directories in it state their own numbers, or it is where mkfs puts it.
    fn look_like_own(&self, number: GroupNo, group: &Group) -> Option<u32> {
        let geometry = self.geometry;
        let [.., table] = own_blocks(geometry, number, group);
        if !lies_in(&table, &allowed_range(geometry, self.features, number)) {
            return None;
        }
        // what follows the inodes that may be in use was possibly never written
        let used = self.used_inodes(number, group);
        let per_block = (geometry.block_size / geometry.inode_size).max(1);
        // one that was deleted has its mode
        let is_free = |raw: &RawInode<'_>| {
            raw.disk.i_links_count.get() == 0
                && (raw.kind().is_some() || raw.disk.i_mode.get() == 0 && raw.block_words::<15>() == [0; 15])
        };
        let (mut in_use, mut other, mut named, mut misnamed) = (0, 0, 0, 0);
        for (block, first) in table.zip((0..).step_by(per_block as usize)) {
            let bytes = self.block(block)?;
            let slots = (first..geometry.inodes_per_group).zip(bytes.chunks_exact(geometry.inode_size as usize));
            for (index, slot) in slots {
                let inode = geometry.inode_at(number, index);
                let Some(raw) = RawInode::from_slot(slot).filter(|_| inode.get() >= geometry.first_inode) else {
                    continue;
                };
                if self.is_in_use(inode, slot) {
                    in_use += 1;
                    let dots = self.dots(&raw);
                    named += u32::from(dots.is_some_and(|(own, _)| own == inode));
                    misnamed += u32::from(dots.is_some_and(|(own, _)| own != inode));
                } else {
                    other += u32::from(index < used && !is_free(&raw));
                }
            }
        }
        ((named > misnamed || self.is_made(number, group)) && other * 4 <= in_use).then_some(in_use)
    }

    /// Whether all bits after the last inode in a group's inode bitmap are set, as in any that was written.
    fn is_padded(&self, group: &Group) -> bool {
        let bitmap = self.block(group.inode_bitmap.get()).unwrap_or_default();
        bitmap.iter().skip(self.geometry.inodes_per_group.div_ceil(8) as usize).all(|byte| *byte == 0xFF)
    }

    /// Compares a possible inode table of a group with its inode bitmap; `None` where one of them cannot be read, or
    /// the bitmap was never written.
    pub(crate) fn agreement(&self, number: GroupNo, group: &Group, place: u64) -> Option<Agreement> {
        let geometry = self.geometry;
        if is_unwritten(geometry, number, group) {
            return None;
        }
        let bitmap = self.block(group.inode_bitmap.get())?;
        let used = self.used_inodes(number, group);
        let per_block = (geometry.block_size / geometry.inode_size).max(1);
        let proved = number.get() == 0 && self.contains_root(place);
        let mut agreement = Agreement { members: 0, matched: 0, differing: 0, proved };
        for n in 0..used.div_ceil(per_block) {
            let block = self.block(place.checked_add(n.into())?);
            for index in n * per_block..used.min((n + 1) * per_block) {
                let inode = geometry.inode_at(number, index);
                if inode.get() < geometry.first_inode {
                    continue;
                }
                let marked = bitmap.get(index as usize / 8).is_some_and(|byte| byte >> (index % 8) & 1 == 1);
                let at = (index % per_block * geometry.inode_size) as usize;
                let slot = block.as_ref().and_then(|block| block.get(at..)?.get(..geometry.inode_size as usize));
                let in_use = slot.is_some_and(|slot| self.is_in_use(inode, slot));
                agreement.members += u32::from(marked);
                agreement.matched += u32::from(marked && in_use);
                agreement.differing += u32::from(marked != in_use);
                agreement.proved |= in_use && geometry.metadata_csum;
            }
        }
        Some(agreement)
    }

    fn is_in_use(&self, inode: InodeNo, slot: &[u8]) -> bool {
        RawInode::from_slot(slot).is_some_and(|raw| {
            raw.disk.i_links_count.get() != 0
                && raw.kind().is_some()
                && (!self.geometry.metadata_csum || raw.checksum(self.geometry, inode) == raw.stored_checksum())
        })
    }

    /// Whether the second slot of a table is the root: a directory whose '.' and '..' name it.
    pub(crate) fn contains_root(&self, place: u64) -> bool {
        let Some(slot) = self.slot(place, 1) else { return false };
        let Some(raw) = RawInode::from_slot(&slot).filter(|raw| raw.kind() == Some(FileKind::Directory)) else {
            return false;
        };
        if raw.flags().contains(InodeFlags::INLINE_DATA) {
            let [parent, ..] = raw.block_words::<15>();
            return parent == InodeNo::ROOT.get();
        }
        // a root with a tree of extents: its own fields are sufficient
        let node = raw.flags().contains(InodeFlags::EXTENTS).then(|| RawNode::from_bytes(&raw.disk.i_block)).flatten();
        node.is_some_and(|node| node.header.eh_magic.get() == extent::MAGIC && node.header.eh_depth.get() != 0)
            || self.dots(&raw) == Some((InodeNo::ROOT, InodeNo::ROOT))
    }

    /// The directories that '.' and '..' name in the first block of one; `None` where it has no such block, or leads to it
    /// by a tree of extents.
    fn dots(&self, raw: &RawInode<'_>) -> Option<(InodeNo, InodeNo)> {
        if raw.kind() != Some(FileKind::Directory) || raw.flags().contains(InodeFlags::INLINE_DATA) {
            return None;
        }
        let block = if raw.flags().contains(InodeFlags::EXTENTS) {
            let node = RawNode::from_bytes(&raw.disk.i_block)?;
            let is_leaf = node.header.eh_magic.get() == extent::MAGIC && node.header.eh_depth.get() == 0;
            node.extents().first().filter(|_| is_leaf)?.start().get()
        } else {
            let [first, ..] = raw.block_words::<15>();
            first.into()
        };
        let file_type = self.features.incompat.contains(Incompat::FILETYPE);
        let format = DirFormat { block_size: self.geometry.block_size, file_type, hashed: false };
        dot_entries(&self.block(block)?, format).ok()
    }

    fn slot(&self, table: u64, index: u32) -> Option<Vec<u8>> {
        let size = self.geometry.inode_size;
        let per_block = (self.geometry.block_size / size).max(1);
        let block = table.checked_add((index / per_block).into()).filter(|_| table != 0)?;
        let offset = self.geometry.byte_offset(FsBlock(block))? + u64::from(index % per_block * size);
        self.read(offset, size)
    }

    fn block(&self, block: u64) -> Option<Vec<u8>> {
        let offset = self.geometry.byte_offset(FsBlock(block)).filter(|_| block != 0)?;
        self.read(offset, self.geometry.block_size)
    }

    fn read(&self, offset: u64, len: u32) -> Option<Vec<u8>> {
        let mut bytes = vec![0; len as usize];
        self.scanner.counters.count(offset, len.into());
        self.scanner.device.read(offset, &mut bytes).ok()?;
        Some(bytes)
    }
}
