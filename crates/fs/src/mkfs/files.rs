//! The content of a new volume: root, lost+found, and the system inodes.
//!
//! Inodes are created in the order in which their blocks are allocated: root, lost+found, the map of blocks reserved
//! for descriptors, journal, multiple-mount-protection block, quota files, orphan file.

mod linked_list;

use super::error::{Result, refuse};
use super::plan::VolumePlan;
use super::used::Used;
use super::{MkfsOptions, QuotaKinds};
use format::dir::{DirEntry, DirFormat, FileType, encode_rec_len, entry_len, write_entry};
use format::extent::{self, Child, Extent, MAX_INIT_LEN};
use format::feature::{Compat, Incompat, RoCompat};
use format::indirect::DIRECT;
use format::inode::{EXTRA_ISIZE, InodeBuf, InodeFlags};
use format::mmp::DiskMmp;
use format::quota::{self, Kind};
use format::superblock::DiskSuperblock;
use format::tail::Tailed;
use format::{FileBlock, FsBlock, GroupNo, InodeNo, jbd2, orphan};
use space::Purpose;
use std::ops::Range;
use zerocopy::IntoBytes;

/// Bytes preallocated in lost+found, so that a checker need not allocate.
const LOST_FOUND_LEN: u64 = 16 << 10;
const LOST_FOUND: InodeNo = InodeNo(11);
/// The divisor of the volume's blocks for the length of the orphan file, which has from 32 to 512 blocks.
const ORPHAN_SHARE: u64 = 4096;

/// Inodes and blocks to write, and blocks to zero.
#[derive(Debug, Clone, Default)]
pub(super) struct Content {
    /// Inodes in use, and reserved ones that need a checksum, which is not set yet.
    pub(super) inodes: Vec<(InodeNo, InodeBuf)>,
    /// Blocks of these inodes.
    pub(super) blocks: Vec<OwnBlock>,
    /// Blocks of the journal.
    pub(super) journal: Vec<Range<u64>>,
    /// The last inode in use.
    pub(super) last_inode: u32,
}

/// A whole block of an inode.
#[derive(Debug, Clone)]
pub(super) struct OwnBlock {
    pub(super) at: FsBlock,
    pub(super) kind: store::Kind,
    pub(super) owner: InodeNo,
    pub(super) bytes: Vec<u8>,
}

/// Creates all files: allocates their blocks, and sets their fields in the superblock. `regions` are the metadata
/// regions, ascending.
pub(super) fn make(
    plan: &mut VolumePlan,
    used: &mut Used,
    regions: Vec<Range<u64>>,
    options: &MkfsOptions,
) -> Result<Content> {
    let mut maker = Maker { plan, used, regions, options, content: Content::default(), usage: Vec::new() };
    maker.content.last_inode = LOST_FOUND.get();
    maker.reserved();
    maker.directories()?;
    if maker.plan.features.compat.contains(Compat::RESIZE_INODE) {
        maker.resize_inode()?;
    }
    if maker.plan.journal_blocks > 0 {
        maker.journal()?;
    }
    if maker.plan.features.incompat.contains(Incompat::MMP) {
        maker.mmp()?;
    }
    if maker.plan.features.ro_compat.contains(RoCompat::QUOTA) {
        maker.quota()?;
    }
    if maker.plan.features.compat.contains(Compat::ORPHAN_FILE) && maker.plan.journal_blocks > 0 {
        maker.orphan_file()?;
    }
    if let Some(len) = maker.options.linked_len {
        maker.linked_list(len)?;
    }
    Ok(maker.content)
}

struct Maker<'a> {
    plan: &'a mut VolumePlan,
    used: &'a mut Used,
    /// The metadata regions, ascending; none on most volumes.
    regions: Vec<Range<u64>>,
    options: &'a MkfsOptions,
    content: Content,
    /// The space in use by owner: user, group, bytes.
    usage: Vec<(u32, u32, u64)>,
}

/// The blocks of a file, in order.
#[derive(Default)]
struct Taken {
    runs: Vec<Range<u64>>,
    /// Their space in whole clusters, in units of 512 bytes.
    sectors: u64,
}

impl Maker<'_> {
    fn block_size(&self) -> usize {
        self.plan.geometry.block_size as usize
    }

    fn cluster(&self) -> u64 {
        u64::from(self.plan.geometry.cluster_blocks)
    }

    fn extents(&self) -> bool {
        self.plan.features.incompat.contains(Incompat::EXTENT)
    }

    /// The checksum seed of an inode's own structures, on volumes with checksums; generations are 0.
    fn seed(&self, inode: InodeNo) -> Option<u32> {
        let geometry = &self.plan.geometry;
        geometry.metadata_csum.then(|| InodeBuf::new(geometry.inode_size, 0).raw().seed(geometry, inode))
    }

    fn disk(&mut self) -> &mut DiskSuperblock {
        &mut self.plan.disk
    }

    fn inode(&self, mode: u16, links: u16, size: u64) -> InodeBuf {
        let mut inode = InodeBuf::new(self.plan.geometry.inode_size, EXTRA_ISIZE);
        inode.set_mode(mode);
        inode.set_links(links);
        inode.set_size(size);
        let time = self.options.time;
        inode.set_atime(time);
        inode.set_ctime(time);
        inode.set_mtime(time);
        inode.set_crtime(time);
        inode
    }

    fn set_sectors(&self, inode: &mut InodeBuf, sectors: u64) -> Result<()> {
        let huge = self.plan.features.ro_compat.contains(RoCompat::HUGE_FILE);
        match inode.set_sectors(sectors, huge, self.plan.geometry.block_size) {
            Some(()) => Ok(()),
            None => refuse("a system inode would be longer than an inode can count"),
        }
    }

    fn sectors_of(&self, clusters: u64) -> u64 {
        clusters * self.cluster() * u64::from(self.plan.geometry.block_size / 512)
    }

    /// Allocates `count` blocks, the first free ones from `goal` on, then from the volume's start. On volumes with
    /// metadata regions, prefers the blocks for the purpose.
    fn take(&mut self, goal: u64, count: u64, purpose: Purpose) -> Result<Taken> {
        let (cluster, end) = (self.cluster(), self.plan.geometry.blocks);
        // the blocks that may be allocated now: those not in use, and not for another purpose
        let mut view = self.used.clone();
        let elsewhere = self.reserved_from(purpose);
        elsewhere.iter().for_each(|run| view.take(run.clone()));
        let mut choosy = !elsewhere.is_empty();
        let mut runs: Vec<Range<u64>> = Vec::new();
        let (mut left, mut from, mut clusters) = (count, goal, 0);
        while left > 0 {
            let Some(free) = view.first_free(from..end, cluster) else {
                if from == 0 && !choosy {
                    return refuse("the volume is too small for its system inodes");
                }
                if from == 0 {
                    (choosy, from, view) = (false, goal, self.used.clone());
                } else {
                    from = 0;
                }
                continue;
            };
            let run = free.start..free.end.min(free.start + left);
            left -= run.end - run.start;
            clusters += (run.end - run.start).div_ceil(cluster);
            let whole = run.start..run.end.next_multiple_of(cluster).min(end);
            view.take(whole.clone());
            self.used.take(whole);
            from = run.end;
            match runs.last_mut().filter(|last| last.end == run.start) {
                Some(last) => last.end = run.end,
                None => runs.push(run),
            }
        }
        Ok(Taken { runs, sectors: self.sectors_of(clusters) })
    }

    /// The blocks reserved for another purpose, which are allocated only if no others are free.
    fn reserved_from(&self, purpose: Purpose) -> Vec<Range<u64>> {
        if purpose == Purpose::Data || self.regions.is_empty() {
            return self.regions.clone();
        }
        let ends = self.regions.iter().map(|run| run.end);
        let starts = self.regions.iter().map(|run| run.start).chain([self.plan.geometry.blocks]);
        std::iter::once(0)
            .chain(ends)
            .zip(starts)
            .map(|(start, end)| start..end)
            .filter(|run| !run.is_empty())
            .collect()
    }

    /// Maps `count` blocks, allocated from `goal` on, in `inode`. Returns the blocks, in order.
    fn assign_blocks(
        &mut self,
        number: InodeNo,
        inode: &mut InodeBuf,
        goal: u64,
        count: u64,
        purpose: Purpose,
    ) -> Result<Vec<Range<u64>>> {
        if self.extents() {
            let mut taken = self.take(goal, count, purpose)?;
            self.map_by_extents(number, inode, &mut taken)?;
            self.set_sectors(inode, taken.sectors)?;
            return Ok(taken.runs);
        }
        let geometry = self.plan.geometry.clone();
        let (format, tail) = (geometry.indirect(), geometry.tail(Tailed::Indirect));
        let tables = map_blocks(count, format.per_block());
        let apart = !self.regions.is_empty();
        // on volumes with regions the indirect blocks are in one, else between the blocks that they list
        let of_tables = if apart { self.take(self.near(number), tables, Purpose::Metadata)? } else { Taken::default() };
        let taken = self.take(goal, if apart { count } else { count + tables }, purpose)?;
        let mut next = taken.runs.iter().cloned().flatten();
        let mut next_table = of_tables.runs.iter().cloned().flatten();
        let mut hand_out = |level: u32| if apart && level > 0 { next_table.next() } else { next.next() };
        let mut map = BlockMap {
            next: &mut hand_out,
            pointers: format.per_block(),
            left: count,
            data: Vec::new(),
            tables: Vec::new(),
        };
        inode.set_block_words(&map.make()?);
        let BlockMap { data, tables, .. } = map;
        self.content.blocks.extend(tables.into_iter().map(|table| {
            let mut bytes = table.words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
            bytes.resize(geometry.block_size as usize, 0);
            let at = FsBlock(table.block);
            // a block is longer than a tail, whose checksum does not depend on the inode's seed
            let _ = tail.write(&mut bytes, number, table.level.into());
            let _ = tail.set_checksum(&mut bytes, at, 0);
            OwnBlock { at, kind: store::Kind::Indirect, owner: number, bytes }
        }));
        self.set_sectors(inode, taken.sectors + of_tables.sectors)?;
        Ok(runs_of(&data))
    }

    fn map_by_extents(&mut self, number: InodeNo, inode: &mut InodeBuf, taken: &mut Taken) -> Result<()> {
        let mut extents = Vec::new();
        let mut logical = 0;
        for run in &taken.runs {
            let mut start = run.start;
            while start < run.end {
                let len = (run.end - start).min(u64::from(MAX_INIT_LEN));
                extents.push(Extent {
                    logical: FileBlock(logical),
                    physical: FsBlock(start),
                    len: len as u32,
                    unwritten: false,
                });
                logical += len;
                start += len;
            }
        }
        let scattered = || refuse("free space is too fragmented for a system inode");
        let mut root = [0; 60];
        if extents.len() <= extent::capacity(root.len()) {
            if extent::write_leaf(&mut root, &extents).is_none() {
                return scattered();
            }
        } else {
            let mut children = Vec::new();
            let tail = self.plan.geometry.tail(Tailed::ExtentNode);
            for part in extents.chunks(tail.extent_node_entries()) {
                // right before the data if that is free: the position it would have if the tree had grown
                let before = taken.runs.first().map_or(0, |run| run.start.saturating_sub(self.cluster()));
                let near = if self.regions.is_empty() { before } else { self.near(number) };
                let block = self.take(near, 1, Purpose::Metadata)?;
                taken.sectors += block.sectors;
                let at = block.runs.first().map_or(0, |run| run.start);
                let mut node = vec![0; self.block_size()];
                if extent::write_leaf(&mut node, part).is_none() {
                    return scattered();
                }
                if let Some(seed) = self.seed(number) {
                    // there is space: the number of entries of a node leaves space for the tail
                    let _ = tail.write(&mut node, number, 0);
                    let _ = tail.set_checksum(&mut node, FsBlock(at), seed);
                }
                self.put_block(at, store::Kind::ExtentNode, number, node);
                children.push(Child { logical: part[0].logical, block: FsBlock(at) });
            }
            if children.len() > extent::capacity(root.len()) || extent::write_inner(&mut root, 1, &children).is_none() {
                return scattered();
            }
        }
        inode.set_flags(inode.raw().flags() | InodeFlags::EXTENTS);
        inode.set_block(root);
        Ok(())
    }

    /// The bad blocks inode, empty; and under metadata_csum all other reserved inodes, for their checksum.
    fn reserved(&mut self) {
        let size = self.plan.geometry.inode_size;
        let mut bad_blocks = InodeBuf::new(size, 0);
        bad_blocks.set_atime(self.options.time);
        bad_blocks.set_ctime(self.options.time);
        bad_blocks.set_mtime(self.options.time);
        self.content.inodes.push((InodeNo::BAD_BLOCKS, bad_blocks));
        if self.plan.geometry.metadata_csum {
            let others = (1..LOST_FOUND.get()).map(InodeNo).filter(|n| ![InodeNo(1), InodeNo::ROOT].contains(n));
            self.content.inodes.extend(others.map(|number| (number, InodeBuf::new(size, 0))));
        }
    }

    fn put_inode(&mut self, number: InodeNo, inode: InodeBuf) {
        self.content.inodes.retain(|(other, _)| *other != number);
        self.content.inodes.push((number, inode));
    }

    /// The next inode that is not in use.
    fn put_block(&mut self, at: u64, kind: store::Kind, owner: InodeNo, bytes: Vec<u8>) {
        self.content.blocks.push(OwnBlock { at: FsBlock(at), kind, owner, bytes });
    }

    fn new_inode(&mut self) -> Result<InodeNo> {
        self.content.last_inode += 1;
        if self.content.last_inode > self.plan.geometry.inodes {
            return refuse("there are too few inodes for the system inodes: set more with -N");
        }
        Ok(InodeNo(self.content.last_inode))
    }

    fn directories(&mut self) -> Result<()> {
        let block_size = self.block_size() as u64;
        let mut root = self.inode(0o40755, 3, block_size);
        let (user, group) = self.options.root_owner;
        root.set_uid(user);
        root.set_gid(group);
        let at = self.assign_blocks(InodeNo::ROOT, &mut root, 0, 1, Purpose::Metadata)?;
        let entries = [(InodeNo::ROOT, &b"."[..]), (InodeNo::ROOT, b".."), (LOST_FOUND, b"lost+found")];
        let block = self.directory_block(InodeNo::ROOT, FileBlock(0), &entries);
        for at in at.into_iter().flatten() {
            self.put_block(at, store::Kind::Directory, InodeNo::ROOT, block.clone());
        }
        self.own(&root);
        self.put_inode(InodeNo::ROOT, root);

        // a directory that was inline at first has one block less
        let inline = self.plan.features.incompat.contains(Incompat::INLINE_DATA);
        let grown = (LOST_FOUND_LEN.div_ceil(block_size).max(2) - 1).min(DIRECT - 1);
        let count = grown + u64::from(!inline);
        let mut lost = self.inode(0o40700, 2, count * block_size);
        let goal = self.near(LOST_FOUND);
        let at = self.assign_blocks(LOST_FOUND, &mut lost, goal, count, Purpose::Metadata)?;
        let dots = [(LOST_FOUND, &b"."[..]), (InodeNo::ROOT, b"..")];
        for (place, at) in (0..).zip(at.into_iter().flatten()) {
            let block = self.directory_block(LOST_FOUND, FileBlock(place), if place == 0 { &dots } else { &[] });
            self.put_block(at, store::Kind::Directory, LOST_FOUND, block);
        }
        self.own(&lost);
        self.put_inode(LOST_FOUND, lost);
        Ok(())
    }

    /// The goal for the blocks of an inode's file: the start of its group, or flexible group.
    fn near(&self, inode: InodeNo) -> u64 {
        let geometry = &self.plan.geometry;
        let group = geometry.inode_slot(inode).map_or(0, |slot| slot.group.get());
        geometry.group_start(GroupNo(group / geometry.flex_groups * geometry.flex_groups)).get()
    }

    fn own(&mut self, inode: &InodeBuf) {
        let raw = inode.raw();
        let huge = self.plan.features.ro_compat.contains(RoCompat::HUGE_FILE);
        self.usage.push((raw.uid(), raw.gid(), raw.sectors(huge, self.plan.geometry.block_size) * 512));
    }

    /// A block of a directory with these entries, the last of which extends to the end; without entries, one free
    /// entry.
    fn directory_block(&self, directory: InodeNo, at: FileBlock, entries: &[(InodeNo, &[u8])]) -> Vec<u8> {
        let mut block = vec![0; self.block_size()];
        let tail = self.plan.geometry.leaf_tail();
        let end = block.len() - tail.size();
        let place = at;
        let format = DirFormat {
            block_size: self.plan.geometry.block_size,
            file_type: self.plan.features.incompat.contains(Incompat::FILETYPE),
            hashed: false,
        };
        let mut at = 0;
        for (place, (inode, name)) in entries.iter().enumerate() {
            let to = if place + 1 == entries.len() { end } else { at + entry_len(name.len() as u8, false) };
            let written = write_entry(&mut block[at..to], *inode, name, Some(FileType::Directory), None, format);
            debug_assert!(written.is_some(), "three short names fit into any block");
            at = to;
        }
        if entries.is_empty()
            && let Some(rec_len) = encode_rec_len(end as u32, format.block_size)
        {
            let free = DirEntry { inode: 0.into(), rec_len: rec_len.into(), name_len: 0, file_type: 0 };
            block[..DirEntry::SIZE].copy_from_slice(free.as_bytes());
        }
        let _ = tail.write(&mut block, directory, place);
        let _ = tail.set_checksum(&mut block, self.seed(directory).unwrap_or_default());
        block
    }

    /// The inode for the blocks reserved for descriptors: the double indirect block lists the primary ones, each of
    /// which lists its copies, as if they were indirect blocks.
    fn resize_inode(&mut self) -> Result<()> {
        let geometry = self.plan.geometry.clone();
        let pointers = geometry.indirect().per_block();
        // the end of group 0's inode table if it were right behind its bitmaps
        let tables = geometry.descriptor_blocks + geometry.reserved_descriptor_blocks + geometry.itable_blocks;
        let goal = geometry.first_data_block + 2 + tables;
        let taken = self.take(u64::from(goal), 1, Purpose::Data)?;
        let at = taken.runs.first().map_or(0, |run| run.start);
        let mut table = vec![0; self.block_size()];
        let mut blocks = 1;
        for n in geometry.descriptor_blocks..geometry.descriptor_blocks + geometry.reserved_descriptor_blocks {
            let primary = geometry.descriptor_block(n);
            put_word(&mut table, u64::from(n) % pointers, primary);
            let mut copies = vec![0; self.block_size()];
            for (place, copy) in (0..pointers).zip(geometry.descriptor_block_backups(n)) {
                put_word(&mut copies, place, copy);
                blocks += 1;
            }
            blocks += 1;
            self.put_block(primary.get(), store::Kind::Indirect, InodeNo::RESIZE, copies);
        }
        self.put_block(at, store::Kind::Indirect, InodeNo::RESIZE, table);
        let reach = pointers * pointers + pointers + DIRECT;
        let len = reach * u64::from(geometry.block_size);
        if len > i32::MAX as u64 {
            // it is longer than the limit without this feature
            self.plan.features.ro_compat |= RoCompat::LARGE_FILE;
        }
        let mut inode = self.inode(0o100_600, 1, len);
        let mut words = [0; 14];
        words[13] = at as u32;
        inode.set_block_words(&words);
        let sectors = self.sectors_of(blocks);
        self.set_sectors(&mut inode, sectors)?;
        self.put_inode(InodeNo::RESIZE, inode);
        Ok(())
    }

    fn journal(&mut self) -> Result<()> {
        let count = self.plan.journal_blocks;
        let len = u64::from(count) * self.block_size() as u64;
        let goal = if !self.extents() || self.options.packed_meta_blocks { 0 } else { self.middle() };
        let mut inode = self.inode(0o100_600, 1, len);
        let runs = self.assign_blocks(InodeNo::JOURNAL, &mut inode, goal, u64::from(count), Purpose::Data)?;
        let fast = self.plan.fast_commit_blocks;
        let journal = jbd2::DiskSuperblock::empty(self.plan.geometry.block_size, count, fast, self.options.uuid);
        let mut first = journal.as_bytes().to_vec();
        first.resize(self.block_size(), 0);
        let at = runs.first().map_or(0, |run| run.start);
        self.put_block(at, store::Kind::Data, InodeNo::JOURNAL, first);
        self.content.journal = runs;
        // a copy of the inode's map, which lets a checker find the journal if the inode is lost
        let map = inode.raw().block_words::<15>();
        let disk = self.disk();
        for (word, value) in disk.s_jnl_blocks.iter_mut().zip(map) {
            *word = value.into();
        }
        disk.s_jnl_blocks[15] = ((len >> 32) as u32).into();
        disk.s_jnl_blocks[16] = (len as u32).into();
        disk.s_jnl_backup_type = 1;
        disk.s_journal_inum = InodeNo::JOURNAL.get().into();
        self.put_inode(InodeNo::JOURNAL, inode);
        Ok(())
    }

    /// The goal for a journal, close to all groups: the start of the emptiest of the groups around the middle.
    fn middle(&self) -> u64 {
        let geometry = &self.plan.geometry;
        let half = (geometry.blocks - u64::from(geometry.first_data_block)) / 2;
        let middle = geometry.group_of(FsBlock(half)).map_or(0, |group| group.get());
        let flex = geometry.flex_groups;
        let (start, end) = match middle / flex * flex {
            first if flex > 1 && middle > flex => (first, first + 1),
            _ => (middle.saturating_sub(1), middle + 1),
        };
        let last = geometry.groups - 1;
        let taken = |group: u32| -> u64 {
            let blocks = geometry.group_blocks(GroupNo(group));
            let full = u64::from(geometry.blocks_per_group) - (blocks.end - blocks.start);
            self.used.inside(blocks).map(|run| run.end - run.start).sum::<u64>() + full
        };
        let best = (start..=end.min(last)).min_by_key(|group| taken(*group)).unwrap_or(0);
        geometry.group_start(GroupNo(best)).get()
    }

    fn mmp(&mut self) -> Result<()> {
        let taken = self.take(0, 1, Purpose::Data)?;
        let at = taken.runs.first().map_or(0, |run| run.start);
        let seed = self.plan.geometry.metadata_csum.then_some(self.plan.geometry.checksum_seed);
        let interval = self.plan.disk.s_mmp_interval.get();
        let mut block = DiskMmp::clean(self.options.time.seconds.unsigned_abs(), interval, seed).as_bytes().to_vec();
        block.resize(self.block_size(), 0);
        self.put_block(at, store::Kind::Data, InodeNo(0), block);
        self.disk().s_mmp_block = at.into();
        Ok(())
    }

    fn quota(&mut self) -> Result<()> {
        let project = self.plan.features.ro_compat.contains(RoCompat::PROJECT);
        let kinds = self.options.quota.unwrap_or(QuotaKinds { user: true, group: true, project });
        if kinds.user {
            self.quota_file(Kind::User, InodeNo::USER_QUOTA)?;
            self.disk().s_usr_quota_inum = InodeNo::USER_QUOTA.get().into();
        }
        if kinds.group {
            self.quota_file(Kind::Group, InodeNo::GROUP_QUOTA)?;
            self.disk().s_grp_quota_inum = InodeNo::GROUP_QUOTA.get().into();
        }
        if kinds.project || project {
            let number = self.new_inode()?;
            self.quota_file(Kind::Project, number)?;
            self.disk().s_prj_quota_inum = number.get().into();
        }
        Ok(())
    }

    fn quota_file(&mut self, kind: Kind, number: InodeNo) -> Result<()> {
        let mut entries: Vec<quota::Entry> = Vec::new();
        for (user, group, bytes) in self.usage.iter().rev() {
            let id = match kind {
                Kind::User => *user,
                Kind::Group => *group,
                Kind::Project => 0,
            };
            match entries.iter_mut().find(|entry| entry.id == id) {
                Some(entry) => {
                    entry.inodes += 1;
                    entry.bytes += bytes;
                }
                None => entries.push(quota::Entry {
                    id,
                    inode_hard_limit: 0,
                    inode_soft_limit: 0,
                    inodes: 1,
                    kib_hard_limit: 0,
                    kib_soft_limit: 0,
                    bytes: *bytes,
                    kib_deadline: 0,
                    inode_deadline: 0,
                }),
            }
        }
        let bytes = quota::write_file(kind, &entries);
        let mut inode = self.inode(0o100_600, 1, bytes.len() as u64);
        inode.set_flags(InodeFlags::IMMUTABLE);
        let count = bytes.len().div_ceil(self.block_size()) as u64;
        let at = self.assign_blocks(number, &mut inode, 0, count, Purpose::Data)?;
        for (at, part) in at.into_iter().flatten().zip(bytes.chunks(self.block_size())) {
            let mut block = part.to_vec();
            block.resize(self.block_size(), 0);
            self.put_block(at, store::Kind::Data, number, block);
        }
        self.put_inode(number, inode);
        Ok(())
    }

    fn orphan_file(&mut self) -> Result<()> {
        let block_size = self.block_size() as u64;
        let count = match self.options.orphan_file_len {
            None => (self.plan.geometry.blocks / ORPHAN_SHARE).clamp(32, 512),
            Some(len) => len.div_ceil(block_size),
        };
        if !(1..=1 << 20).contains(&count) {
            return refuse(format!("an orphan file of {count} blocks: use 1 to 1048576"));
        }
        let number = self.new_inode()?;
        let mut inode = self.inode(0o100_600, 1, count * block_size);
        let at = self.assign_blocks(number, &mut inode, 0, count, Purpose::Data)?;
        let seed = self.seed(number);
        for at in at.into_iter().flatten().map(FsBlock) {
            let mut block = vec![0; self.block_size()];
            let _ = orphan::set_checksum(&mut block, at, seed);
            self.put_block(at.get(), store::Kind::OrphanFile, number, block);
        }
        self.disk().s_orphan_file_inum = number.get().into();
        self.put_inode(number, inode);
        Ok(())
    }
}

/// Number of indirect blocks for a map of `count` blocks.
fn map_blocks(count: u64, pointers: u64) -> u64 {
    let mut left = count.saturating_sub(DIRECT);
    let mut all = 0;
    for level in 1..=3 {
        let here = left.min(pointers.pow(level));
        // of each level below, and the top
        all += (1..=level).map(|height| here.div_ceil(pointers.pow(height))).sum::<u64>();
        left -= here;
    }
    all
}

/// Assigns blocks to a block map in the order in which a sequentially written file allocates them.
struct BlockMap<'a> {
    /// Returns the next block of a level: 0 for data.
    next: &'a mut dyn FnMut(u32) -> Option<u64>,
    pointers: u64,
    /// Data blocks still to be mapped.
    left: u64,
    data: Vec<u64>,
    /// Indirect blocks.
    tables: Vec<Table>,
}

/// An indirect block and its content.
struct Table {
    block: u64,
    level: u32,
    words: Vec<u32>,
}

impl BlockMap<'_> {
    /// The words of `i_block`.
    fn make(&mut self) -> Result<[u32; 15]> {
        let mut words = [0; 15];
        for (place, word) in words.iter_mut().enumerate() {
            if self.left == 0 {
                break;
            }
            *word = self.subtree((place as u32).saturating_sub(DIRECT as u32 - 1))?;
        }
        match self.left {
            0 => Ok(words),
            _ => refuse("a system inode is longer than a block map can address"),
        }
    }

    fn subtree(&mut self, level: u32) -> Result<u32> {
        let Some(block) = (self.next)(level) else { return refuse("there is no space for the system inodes") };
        // block numbers have 32 bits on a volume without extents
        let number = block as u32;
        if level == 0 {
            self.left -= 1;
            self.data.push(block);
            return Ok(number);
        }
        let mut words = Vec::new();
        while self.left > 0 && (words.len() as u64) < self.pointers {
            words.push(self.subtree(level - 1)?);
        }
        self.tables.push(Table { block, level, words });
        Ok(number)
    }
}

fn runs_of(blocks: &[u64]) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    for &block in blocks {
        match runs.last_mut().filter(|run| run.end == block) {
            Some(run) => run.end += 1,
            None => runs.push(block..block + 1),
        }
    }
    runs
}

fn put_word(table: &mut [u8], place: u64, block: FsBlock) {
    let at = place as usize * 4;
    table[at..at + 4].copy_from_slice(&(block.get() as u32).to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_maps_take_as_many_blocks_as_counted() {
        for count in [1, 12, 13, 268, 269, 12 + 256 + 65536, 12 + 256 + 65536 + 1, 70_000] {
            let mut numbers = 100..;
            let mut next = |_| numbers.next();
            let mut map =
                BlockMap { next: &mut next, pointers: 256, left: count, data: Vec::new(), tables: Vec::new() };
            map.make().unwrap();
            assert_eq!(map.data.len() as u64, count);
            let tables = map.tables.len() as u64;
            assert_eq!(map_blocks(count, 256), tables, "{count}");
            assert_eq!(numbers.start, 100 + count + tables);
        }
    }
}
