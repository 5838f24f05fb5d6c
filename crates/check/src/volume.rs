//! The volume as phase 0 accepted it.

use crate::space_maps;
use format::feature::Features;
use format::group::Group;
use format::superblock::{DiskSuperblock, Geometry};
use format::{FsBlock, GroupNo, InodeNo};
use std::collections::BTreeSet;

/// The volume as phase 0 accepted it. Where the superblock or descriptors had to be taken from a backup or corrected to
/// make sense, these are the values the check goes on with.
#[derive(Debug)]
pub(crate) struct Volume {
    /// The superblock's bytes.
    pub(crate) disk: DiskSuperblock,
    /// They are a copy's, not the primary's.
    pub(crate) is_copy: bool,
    /// Its feature words.
    pub(crate) features: Features,
    /// The geometry that follows.
    pub(crate) geometry: Geometry,
    /// The group descriptors.
    pub(crate) groups: Vec<Group>,
    /// For each group, how many inodes at the start of its table may be in use: fewer than the table has only where a
    /// checksummed descriptor says so.
    pub(crate) used_inodes: Vec<u32>,
    /// Groups whose descriptor carries a wrong checksum, ascending: that their bitmaps were never written is not
    /// believed.
    pub(crate) untrusted: Vec<GroupNo>,
    /// Inodes without a name that stay as they are: those that were open when a snapshot was made.
    pub(crate) orphans: BTreeSet<InodeNo>,
    /// Its space maps, where it has them in the place of block bitmaps.
    pub(crate) space_maps: Option<space_maps::Recorded>,
}

impl Volume {
    /// The descriptor of a group; `None` where the group does not exist.
    pub(crate) fn group(&self, group: GroupNo) -> Option<&Group> {
        self.groups.get(group.get() as usize)
    }

    /// Whether file data or metadata of a file may lie at `block`.
    #[inline]
    pub(crate) fn contains(&self, block: u64) -> bool {
        block >= u64::from(self.geometry.first_data_block).max(1) && block < self.geometry.blocks
    }

    /// Whether the superblock names the inode as a file of quota or orphans; e2fsck asks no feature in this.
    #[inline]
    pub(crate) fn is_quota_or_orphan_file(&self, inode: InodeNo) -> bool {
        let disk = &self.disk;
        [disk.s_usr_quota_inum, disk.s_grp_quota_inum, disk.s_prj_quota_inum, disk.s_orphan_file_inum]
            .iter()
            .any(|own| own.get() == inode.get())
    }

    /// A block's first byte on the device; blocks outside the volume have none.
    #[inline]
    pub(crate) fn offset(&self, block: u64) -> Option<u64> {
        self.geometry.byte_offset(FsBlock(block))
    }
}
