//! The copies of the superblock and of the group descriptors, compared with those that the check uses.
//!
//! A copy is not read until the primary is damaged, and then it decides what can be repaired. So a damaged or outdated
//! copy is reported although the volume is consistent. Fields that mounts and checks change in the primary alone are
//! not compared: free counts, states, times, labels, checksums of descriptors, and features that are set at their first
//! use.

use super::{differing, space_map_layout};
use crate::phases::superblock::accepted::{Accepted, Rejection, accept_at};
use crate::phases::superblock::descriptors::{numbered, read_descriptors};
use crate::problem::{Problem, Problems};
use crate::scan::Scanner;
use crate::table::Code;
use crate::volume::Volume;
use format::feature::{Compat, Features, Incompat, RoCompat};
use format::group::Group;
use format::superblock::{DiskSuperblock, OFFSET};
use format::{FsBlock, GroupNo};
use std::sync::atomic::{AtomicU64, Ordering};

/// Maximum number of copies that are compared: where each group has one, reading them all would take as long as a
/// check.
const COMPARED: usize = 64;

/// The groups with copies to compare that are on the device, with the byte offset of each.
fn groups(scanner: &Scanner<'_>, volume: &Volume) -> Vec<(GroupNo, u64)> {
    let (geometry, end) = (&volume.geometry, scanner.device.geometry().len);
    let placed = geometry.backup_groups().filter_map(|group| {
        let at = geometry.superblock_block(group).and_then(|block| geometry.byte_offset(block))?;
        (at.checked_add(DiskSuperblock::SIZE as u64)? <= end).then_some((group, at))
    });
    placed.take(COMPARED).collect()
}

/// Reports the copies that differ from the volume, in one pass, as a group's descriptors follow its superblock.
pub(crate) fn check(scanner: &Scanner<'_>, volume: &Volume, problems: &Problems) {
    let own = Accepted { disk: volume.disk, geometry: volume.geometry.clone(), at: OFFSET };
    // from the first meta group on each block of the table has two copies of its own, independent of the superblock
    let tables = if volume.geometry.first_meta_group == 0 { 1 } else { COMPARED };
    for (n, (group, at)) in groups(scanner, volume).into_iter().enumerate() {
        if (scanner.cancelled)() {
            return;
        }
        // read when the volume was opened
        let compared = volume.compared.as_ref().filter(|compared| compared.at == at);
        let copy = match compared {
            Some(compared) => Ok(Accepted { disk: compared.disk, geometry: volume.geometry.clone(), at }),
            None => accept_at(scanner, at),
        };
        if let Some(what) = superblock(&own, copy) {
            let problem = Problem::new(Code::SuperblockCopyDiffers).group(group);
            problems.report(problem.block(FsBlock(at / u64::from(volume.geometry.block_size))).name(what));
        }
        let elsewhere = match compared {
            Some(compared) => compared.elsewhere,
            None if n < tables => descriptors(scanner, volume, group),
            None => 0,
        };
        if elsewhere > 0 {
            problems.report(Problem::new(Code::DescriptorCopyDiffers).group(group).found(elsewhere));
        }
    }
}

/// The reason why a copy cannot replace the superblock.
fn superblock(own: &Accepted, copy: Result<Accepted, Rejection>) -> Option<String> {
    match copy {
        Ok(copy) => {
            Some(outdated(own, &copy)).filter(|fields| !fields.is_empty()).map(|f| format!("{} differs", f.join(", ")))
        }
        Err(Rejection::Corrupt(what) | Rejection::Field(what) | Rejection::Final(what)) => Some(what),
    }
}

/// The number of groups for which the copy of the descriptors in `group` has other bitmap or inode table locations.
fn descriptors(scanner: &Scanner<'_>, volume: &Volume, group: GroupNo) -> u64 {
    let differing = AtomicU64::new(0);
    read_descriptors(scanner, &volume.geometry, group, |first, bytes| {
        let differs = |(number, bytes): &(GroupNo, &[u8])| {
            volume.group(*number).is_some_and(|own| Group::from_bytes(bytes).is_elsewhere(own))
        };
        let count = numbered(&volume.geometry, first, bytes).filter(differs).count();
        differing.fetch_add(count as u64, Ordering::Relaxed);
    });
    differing.into_inner()
}

/// The fields in which a copy differs from the superblock: layout, identity, and the features needed to read the
/// volume.
fn outdated(own: &Accepted, copy: &Accepted) -> Vec<&'static str> {
    let mut fields = differing(own, copy);
    // the first use of a new feature raises it in the primary
    fields.retain(|field| *field != "s_rev_level");
    let (a, b) = (&own.disk, &copy.disk);
    let (ours, theirs) = (lasting(a.features()), lasting(b.features()));
    let more = [
        ("s_feature_compat", ours.compat != theirs.compat),
        ("s_feature_incompat", ours.incompat != theirs.incompat),
        ("s_feature_ro_compat", ours.ro_compat != theirs.ro_compat),
        ("s_uuid", a.s_uuid != b.s_uuid),
        ("x_features", (a.extant(), a.extant_ro()) != (b.extant(), b.extant_ro())),
    ];
    let more = more.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name);
    let more: Vec<_> = more.chain(space_map_layout::differing(a, b)).filter(|name| !fields.contains(name)).collect();
    fields.extend(more);
    fields
}

/// Features without those that a mount sets in the primary when they are first used.
fn lasting(features: Features) -> Features {
    let Features { compat, incompat, ro_compat } = features;
    Features {
        compat: compat - (Compat::EXT_ATTR | Compat::FAST_COMMIT),
        incompat: incompat - (Incompat::NEEDS_RECOVERY | Incompat::EXTENT | Incompat::ENCRYPT | Incompat::LARGE_DIR),
        ro_compat: ro_compat
            - (RoCompat::LARGE_FILE
                | RoCompat::HUGE_FILE
                | RoCompat::DIR_NLINK
                | RoCompat::EXTRA_ISIZE
                | RoCompat::VERITY
                | RoCompat::ORPHAN_PRESENT),
    }
}
