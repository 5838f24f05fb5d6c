//! The volume as phase 0 accepted it.

use crate::space_maps;
use format::feature::Features;
use format::group::Group;
use format::superblock::{DiskSuperblock, Geometry};
use format::{FsBlock, GroupNo, InodeNo};
use std::collections::BTreeSet;

/// The volume as phase 0 accepted it. Where the superblock or descriptors had to be taken from a backup or corrected to
/// make sense, these are the values that the check uses.
#[derive(Debug)]
pub(crate) struct Volume {
    /// The superblock's bytes.
    pub(crate) disk: DiskSuperblock,
    /// Whether they come from a copy instead of the primary.
    pub(crate) is_copy: bool,
    /// Its feature words.
    pub(crate) features: Features,
    /// The geometry by the superblock.
    pub(crate) geometry: Geometry,
    /// The group descriptors.
    pub(crate) groups: Vec<Group>,
    /// For each group, how many inodes at the start of its table may be in use: fewer than the table has only with a
    /// checksummed descriptor.
    pub(crate) used_inodes: Vec<u32>,
    /// Groups whose descriptor has a wrong checksum, ascending: their uninit flags are not trusted.
    pub(crate) untrusted: Vec<GroupNo>,
    /// Inodes without a name that are valid: those that were open when a snapshot was created.
    pub(crate) orphans: BTreeSet<InodeNo>,
    /// In a repair, inodes on the orphan list or in the orphan file: they are to be deleted, or truncated to their size.
    pub(crate) pending: BTreeSet<InodeNo>,
    /// Its space maps, where it has them instead of block bitmaps.
    pub(crate) space_maps: Option<space_maps::Recorded>,
    /// The copy of superblock and descriptors that was read when the volume was opened.
    pub(crate) compared: Option<ComparedCopy>,
}

/// A copy of the superblock and of the descriptors that was compared with the primary ones.
#[derive(Debug, Clone)]
pub(crate) struct ComparedCopy {
    /// Its first byte on the device.
    pub(crate) at: u64,
    /// The superblock.
    pub(crate) disk: DiskSuperblock,
    /// The number of groups for which it has other bitmap or inode table locations.
    pub(crate) elsewhere: u64,
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

    /// Whether the superblock names the inode as a quota file or the orphan file; as in e2fsck, whatever the features.
    #[inline]
    pub(crate) fn is_quota_or_orphan_file(&self, inode: InodeNo) -> bool {
        let disk = &self.disk;
        [disk.s_usr_quota_inum, disk.s_grp_quota_inum, disk.s_prj_quota_inum, disk.s_orphan_file_inum]
            .iter()
            .any(|own| own.get() == inode.get())
    }

    /// A block's byte offset on the device; `None` outside the volume.
    #[inline]
    pub(crate) fn offset(&self, block: u64) -> Option<u64> {
        self.geometry.byte_offset(FsBlock(block))
    }
}
