//! The context that all phases share: the volume's geometry, the records they fill, and where they report.

use crate::claims::Claims;
use crate::inode_records::Inodes;
use crate::native::Identities;
use crate::phases::inodes::encryption_policies::Policies;
use crate::phases::inodes::value_inodes::Values;
use crate::problem::{Problem, Problems};
use crate::volume::Volume;
use format::native::map::BlockKind;
use format::{FsBlock, InodeNo};
use std::ops::Range;

/// The context of the phases after 0.
pub(crate) struct Context<'a> {
    /// The volume.
    pub(crate) volume: &'a Volume,
    /// The collector of the problems.
    pub(crate) problems: &'a Problems,
    /// The record of each inode.
    pub(crate) inodes: Inodes,
    /// The blocks in use.
    pub(crate) claims: Claims,
    /// Attribute values stored in inodes of their own.
    pub(crate) values: Values,
    /// Encryption policies of inodes.
    pub(crate) policies: Policies,
    /// The metadata map's entries for the volume's blocks, on native volumes.
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

    /// Records the kind of a block and the inodes one of which owns it.
    pub(crate) fn identify(&self, block: FsBlock, kind: BlockKind, owners: &[InodeNo]) {
        if let Some(identities) = &self.identities {
            identities.check(self.problems, block, &[kind], owners);
        }
    }

    /// Records that blocks contain the data of an inode.
    pub(crate) fn identify_content(&self, inode: InodeNo, blocks: &Range<u64>) {
        if let Some(identities) = &self.identities {
            identities.check_content(self, inode, blocks);
        }
    }

    /// Reports a problem.
    pub(crate) fn report(&self, problem: Problem) {
        self.problems.report(problem);
    }

    /// Reports a problem unless the walk only searches for owners (it was reported by the first walk).
    pub(crate) fn report_if(&self, checking: bool, problem: impl FnOnce() -> Problem) {
        if checking {
            self.problems.report(problem());
        }
    }
}
