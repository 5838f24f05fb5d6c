//! The results of stat(2) and statfs(2), as the kernel would return them.

use crate::inline_data::is_inline;
use crate::{FileKind, GroupNo, Inode, InodeFlags, InodeNo, Inodes, Timestamp};
use format::feature::{Compat, RoCompat};
use format::group::Group;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// Maximum number of groups whose descriptors are read to answer one question on a volume open for reading: 128 TiB in
/// groups of 128 MiB. Reading those of a hostile superblock with tens of millions of groups takes a minute.
pub const COUNTED_GROUPS: u32 = 1 << 20;

/// The attributes of a file for stat(2), and further ones of ext4.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attributes {
    /// The inode's number.
    pub inode: InodeNo,
    /// Its type.
    pub kind: FileKind,
    /// Type and permission bits, as on the device.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Number of names. A directory with more subdirectories than can be counted has 1.
    pub links: u16,
    /// Size in bytes; 0 for devices, pipes and sockets.
    pub size: u64,
    /// Space used, in units of 512 bytes.
    pub blocks: u64,
    /// Bytes in a block of the volume.
    pub block_size: u32,
    /// Major and minor number, for devices.
    pub device: Option<(u32, u32)>,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of the content.
    pub mtime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Creation, if the inode records it.
    pub crtime: Option<Timestamp>,
    /// Project.
    pub project: u32,
    /// Flags, including unknown bits.
    pub flags: InodeFlags,
    /// Generation, which distinguishes this use of the number from earlier ones.
    pub generation: u32,
}

/// The statistics of a volume for statfs(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatFs {
    /// Bytes in a block, the unit of all counts of blocks here.
    pub block_size: u32,
    /// Blocks that can contain data: all except the volume's own metadata and its journal.
    pub blocks: u64,
    /// Free blocks.
    pub blocks_free: u64,
    /// Free blocks for users other than root.
    pub blocks_available: u64,
    /// Inodes.
    pub files: u64,
    /// Free inodes.
    pub files_free: u64,
    /// Maximum length of a name in bytes.
    pub name_max: u32,
    /// The volume's ID: the halves of its UUID combined by exclusive or.
    pub id: u64,
}

impl Inodes {
    /// The attributes of an inode for stat(2).
    #[must_use]
    pub fn attributes(&self, inode: &Inode) -> Attributes {
        let raw = inode.raw();
        let device = matches!(inode.kind, FileKind::CharDevice | FileKind::BlockDevice).then(|| raw.device());
        let mut blocks = inode.sectors(&self.sb);
        if inode.kind == FileKind::Regular && is_inline(inode) {
            // as in the kernel, so that tools do not consider such a file one hole
            blocks = blocks.saturating_add(inode.size.div_ceil(512));
        }
        // the size of an encrypted link is that of its no-key name
        let shown = if inode.kind == FileKind::Symlink && raw.flags().contains(InodeFlags::ENCRYPT) {
            self.read_link(inode).ok()
        } else {
            None
        };
        Attributes {
            inode: inode.number,
            kind: inode.kind,
            mode: raw.disk.i_mode.get(),
            uid: raw.uid(),
            gid: raw.gid(),
            links: raw.disk.i_links_count.get(),
            size: shown.map_or(inode.size, |text| text.len() as u64),
            blocks,
            block_size: self.sb.geometry.block_size,
            device,
            atime: raw.atime(),
            mtime: raw.mtime(),
            ctime: raw.ctime(),
            crtime: raw.crtime(),
            project: raw.project(),
            flags: raw.flags(),
            generation: raw.disk.i_generation.get(),
        }
    }

    /// The statistics of the volume for statfs(2): blocks without the overhead of metadata, and free space according to
    /// the group descriptors, without blocks pinned by snapshots. A group whose descriptor cannot be read counts as
    /// full.
    ///
    /// On a volume open for reading with more than [`COUNTED_GROUPS`] groups, other than a native one, free space is
    /// the one that the superblock counts. With that many groups the overhead, too, is the one in the superblock, or
    /// without one that of bitmaps, inode tables and descriptors.
    #[must_use]
    pub fn statfs(&self) -> StatFs {
        let geometry = &self.sb.geometry;
        let (free_clusters, free_inodes) = self.free_counts();
        let blocks_free = free_clusters.saturating_mul(u64::from(geometry.cluster_blocks)).min(geometry.blocks);
        let reserved = self.sb.disk.reserved_blocks_count().saturating_add(self.layout.reserved_for_extents());
        let (low, high) = self.sb.disk.s_uuid.split_at(8);
        let half = |bytes: &[u8]| bytes.iter().rev().fold(0u64, |word, &byte| word << 8 | u64::from(byte));
        StatFs {
            block_size: geometry.block_size,
            blocks: geometry.blocks.saturating_sub(self.overhead_blocks()),
            blocks_free,
            blocks_available: blocks_free.saturating_sub(reserved),
            files: u64::from(geometry.inodes),
            files_free: free_inodes.min(u64::from(geometry.inodes)),
            name_max: 255,
            id: half(low) ^ half(high),
        }
    }

    /// The number of groups whose descriptors fit on the device: a bound for loops, whatever a superblock claims.
    fn groups_there(&self) -> u32 {
        let there = self.device().geometry().len / u64::from(self.sb.geometry.descriptor_size);
        u32::try_from(there).unwrap_or(u32::MAX).min(self.sb.geometry.groups)
    }

    /// Free clusters and free inodes of all groups, without clusters reserved for delayed data.
    fn free_counts(&self) -> (u64, u64) {
        if let Ok(space) = self.space() {
            let pool = space.pool.lock();
            let free_inodes = space.free_inodes.load(Ordering::Relaxed);
            return (pool.free_units().saturating_sub(pool.reserved()), free_inodes);
        }
        if let Ok(Some(free)) = crate::alloc::free_blocks(self) {
            let inodes = self.sb.disk.s_free_inodes_count.get();
            return (free, inodes.into());
        }
        if self.groups_there() > COUNTED_GROUPS && self.layout.counts_free_data() {
            let clusters = self.sb.disk.free_blocks_count() / u64::from(self.sb.geometry.cluster_blocks.max(1));
            return (clusters, self.sb.disk.s_free_inodes_count.get().into());
        }
        let of_data = |n: u32, group: &Group| {
            if self.layout.is_pool_group(n) { self.layout.available(n, group).into() } else { 0 }
        };
        (0..self.groups_there())
            .filter_map(|g| Some((g, self.group(GroupNo(g)).ok()?)))
            .fold((0, 0), |(clusters, inodes), (n, group)| {
                (clusters + of_data(n, &group), inodes + u64::from(group.free_inodes))
            })
    }

    /// Blocks used by the volume's own structures.
    fn overhead_blocks(&self) -> u64 {
        match &self.writing {
            Some(writing) => *writing.overhead.get_or_init(|| self.layout.overhead(|| self.count_overhead())),
            None => self.layout.overhead(|| self.count_overhead()),
        }
    }

    fn count_overhead(&self) -> u64 {
        let geometry = &self.sb.geometry;
        let cluster = u64::from(geometry.cluster_blocks);
        let recorded = u64::from(self.sb.disk.s_overhead_blocks.get()).saturating_mul(cluster);
        let groups = self.groups_there();
        let is_used = groups > COUNTED_GROUPS || self.sb.features.ro_compat.contains(RoCompat::BIGALLOC);
        if is_used && recorded > 0 && recorded <= geometry.blocks {
            return recorded;
        }
        let journal = match self.sb.journal_inode() {
            Some(number) if self.sb.features.compat.contains(Compat::HAS_JOURNAL) => {
                self.inode(number).map_or(0, |inode| inode.size / u64::from(geometry.block_size))
            }
            _ => 0,
        };
        let heads: u64 = if groups > COUNTED_GROUPS {
            u64::from(geometry.descriptor_blocks)
        } else {
            let length = |head: Range<u64>| head.end - head.start;
            (0..groups).map(|group| length(geometry.group_head(GroupNo(group)))).sum()
        };
        let others = u64::from(groups) * (u64::from(geometry.itable_blocks) + 2);
        u64::from(geometry.first_data_block).saturating_add(heads).saturating_add(others).saturating_add(journal)
    }
}
