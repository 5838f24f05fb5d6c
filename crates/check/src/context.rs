//! What all phases share: the volume's shape, the records they fill, and where they report.

use crate::claims::Claims;
use crate::native::Identities;
use crate::policies::Policies;
use crate::problem::{Problem, Problems};
use crate::records::Inodes;
use crate::xattrs::Values;
use format::feature::Features;
use format::group::Group;
use format::native::map::BlockKind;
use format::superblock::{DiskSuperblock, Geometry};
use format::{FsBlock, GroupNo, InodeNo};
use std::collections::BTreeSet;
use std::ops::Range;

/// The volume as phase 0 accepted it. Where the superblock or descriptors had to be taken from a backup or corrected to
/// make sense, these are the values the check goes on with.
#[derive(Debug)]
pub(crate) struct Volume {
    /// The superblock's bytes.
    pub(crate) disk: DiskSuperblock,
    /// Its feature words.
    pub(crate) features: Features,
    /// The shape that follows.
    pub(crate) geometry: Geometry,
    /// The group descriptors.
    pub(crate) groups: Vec<Group>,
    /// For each group, how many inodes at the start of its table may be in use: fewer than the table has only where a
    /// checksummed descriptor says so.
    pub(crate) used_inodes: Vec<u32>,
    /// Groups whose descriptor carries a wrong checksum, ascending: that their bitmaps were never written is not believed.
    pub(crate) distrusted: Vec<GroupNo>,
    /// Inodes without a name that stay as they are: those that were open when a snapshot was made.
    pub(crate) orphans: BTreeSet<InodeNo>,
}

impl Volume {
    /// The descriptor of a group; `None` where the group does not exist.
    pub(crate) fn group(&self, group: GroupNo) -> Option<&Group> {
        self.groups.get(group.get() as usize)
    }

    /// Whether file data or metadata of a file may lie at `block`.
    #[inline]
    pub(crate) fn holds(&self, block: u64) -> bool {
        block >= u64::from(self.geometry.first_data_block).max(1) && block < self.geometry.blocks
    }

    /// Whether the superblock names the inode as a file of quota or orphans; e2fsck asks no feature in this.
    #[inline]
    pub(crate) fn keeps_for_itself(&self, inode: InodeNo) -> bool {
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

/// What the phases after 0 work with.
pub(crate) struct Context<'a> {
    /// The volume.
    pub(crate) volume: &'a Volume,
    /// Where problems go.
    pub(crate) problems: &'a Problems,
    /// What is known of each inode.
    pub(crate) inodes: Inodes,
    /// Which blocks are in use.
    pub(crate) claims: Claims,
    /// Attribute values that live in inodes of their own.
    pub(crate) values: Values,
    /// Encryption policies of inodes.
    pub(crate) policies: Policies,
    /// What the map below says of the volume's blocks, where there is one.
    pub(crate) identities: Option<Identities<'a>>,
}

impl<'a> Context<'a> {
    /// Nothing was read yet.
    pub(crate) fn new(volume: &'a Volume, problems: &'a Problems) -> Self {
        Self {
            volume,
            problems,
            inodes: Inodes::new(&volume.geometry),
            claims: Claims::new(&volume.geometry),
            values: Values::default(),
            policies: Policies::default(),
            identities: None,
        }
    }

    /// A block was found to be this, and to belong to one of these inodes.
    pub(crate) fn identify(&self, block: FsBlock, kind: BlockKind, owners: &[InodeNo]) {
        if let Some(identities) = &self.identities {
            identities.judge(self.problems, block, &[kind], owners);
        }
    }

    /// Blocks were found to be content of an inode.
    pub(crate) fn identify_content(&self, inode: InodeNo, blocks: &Range<u64>) {
        if let Some(identities) = &self.identities {
            identities.judge_content(self, inode, blocks);
        }
    }

    /// Reports a problem.
    pub(crate) fn report(&self, problem: Problem) {
        self.problems.report(problem);
    }

    /// Reports a problem unless the walk only looks for owners (it was reported the first time).
    pub(crate) fn report_if(&self, judging: bool, problem: impl FnOnce() -> Problem) {
        if judging {
            self.problems.report(problem());
        }
    }
}
