//! The location of the list of linked writes, and the requirements for having one.

use crate::mutant::{Injected, InjectedInStore};
use crate::{Error, Mapping, Maps, Result};
use format::FileBlock;
use format::feature::{Compat, Incompat, RoCompat};
use format::inode::FileKind;
use format::linked::{Areas, INODE, INODE_SIZE_MAX};
use format::superblock::State;
use store::recovery::linked::{self, Finding, List};

/// Features incompatible with linked writes: the list cannot describe their structures.
const OTHER_COMPAT: Compat = Compat::HAS_JOURNAL.union(Compat::ORPHAN_FILE);
const OTHER_INCOMPAT: Incompat = Incompat::FILETYPE.complement();
const OTHER_RO: RoCompat = RoCompat::SPARSE_SUPER.union(RoCompat::LARGE_FILE).complement();

/// The error for a list that cannot be used, with the reason.
fn no_list<T>(why: &'static str) -> Result<T> {
    Err(Error::Impossible(why))
}

impl Maps {
    /// The reason why the volume cannot use linked writes; `None` if it can.
    pub(crate) fn unfit_for_linked(&self) -> Option<&'static str> {
        let (features, geometry) = (&self.sb.features, &self.sb.geometry);
        if features.compat.intersects(OTHER_COMPAT) {
            return Some("`consistency=linked` needs a volume without a journal");
        }
        if features.incompat.intersects(OTHER_INCOMPAT) || features.ro_compat.intersects(OTHER_RO) {
            return Some(
                "`consistency=linked` needs ext2: no extents, no metadata checksums, no other feature of ext4",
            );
        }
        if geometry.inode_size > INODE_SIZE_MAX {
            return Some("`consistency=linked` needs inodes of at most 512 bytes");
        }
        None
    }

    /// The list in inode 5.
    ///
    /// # Errors
    /// [`Error::Impossible`] if it is invalid: not a regular file, with holes, not contiguous, of an invalid size, or
    /// not written by linked writes for this volume. Those of the device.
    pub(crate) fn linked_list(&self) -> Result<List> {
        const NONE: &str = "the volume has no list of linked writes";
        if let Some(why) = self.unfit_for_linked() {
            return no_list(why);
        }
        let Ok(inode) = self.load_inode(INODE) else { return no_list(NONE) };
        if inode.raw().disk.i_links_count.get() == 0 {
            return no_list(NONE);
        }
        if inode.kind != FileKind::Regular {
            return no_list("inode 5, which stores the list of linked writes, is not a regular file");
        }
        let block_size = self.sb.geometry.block_size;
        let Some(areas) = Areas::of(inode.size, block_size) else {
            return no_list("inode 5, which stores the list of linked writes, has an invalid size");
        };
        let end = inode.size / u64::from(block_size);
        let (mut first, mut at) = (None, FileBlock(0));
        while at.get() < end {
            let run = self.map(&inode, at)?;
            let Mapping::Data(block) = run.mapping else {
                return no_list("inode 5, which stores the list of linked writes, has a hole");
            };
            if *first.get_or_insert(block.get()) + at.get() != block.get() {
                return no_list("inode 5, which stores the list of linked writes, is not contiguous");
            }
            at = run.end();
        }
        let at = first.unwrap_or_default() * u64::from(block_size);
        let counter =
            linked::read_counter(&**self.store.device(), &self.sb.disk.s_uuid, at, areas).map_err(|e| match e {
                store::Error::Linked(why) => Error::Impossible(why),
                other => other.into(),
            })?;
        Ok(List { at, areas, counter })
    }

    /// The recovery finding of a volume that was not unmounted, if it has a list.
    pub(crate) fn linked_finding(&self, mutant: Injected) -> Result<Option<Finding>> {
        let state = State::from_bits_retain(self.sb.disk.s_state.get());
        // a volume marked as having errors needs a full check in any case
        if state.intersects(State::VALID | State::ERROR) || self.backup.is_some() {
            return Ok(None);
        }
        let list = match self.linked_list() {
            Ok(list) => list,
            Err(Error::Impossible(_)) => return Ok(None),
            Err(e) if e.is_corruption() => return Ok(None),
            Err(e) => return Err(e),
        };
        let finding = mutant.find_linked(self.store.device(), &self.sb, list)?;
        Ok(Some(finding))
    }
}
