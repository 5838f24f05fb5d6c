//! The layout of the space maps by the superblock, or by a copy where that does not fit.
//!
//! Only mkfs and a conversion write these numbers, into all superblocks. So copies are read only where the maps by the
//! primary have errors.

use crate::options::Refusal;
use crate::phases::superblock::accepted::Accepted;
use crate::problem::Problem;
use crate::scan::Scanner;
use crate::space_maps::Recorded;
use crate::system_zone;
use crate::table::Code;
use crate::volume::Volume;
use format::space_map::SpaceMaps;
use format::superblock::{DiskSuperblock, Superblock};

/// Reads the volume's space maps, where it has them, by the superblock or by the first of `copies` with fewer errors;
/// then the superblock's numbers are reported as wrong.
///
/// # Errors
/// [`Refusal`] where under every superblock table or log are outside the volume or overlap its superblocks and
/// descriptors.
pub(super) fn read(
    scanner: &Scanner<'_>,
    volume: &mut Volume,
    copies: impl Iterator<Item = Accepted>,
) -> Result<Option<Problem>, Refusal> {
    let (own, stated) = (volume.disk, by(scanner, volume, volume.disk));
    if matches!(stated, Ok(0)) {
        return Ok(None);
    }
    for copy in copies {
        let fields = differing(&own, &copy.disk);
        if fields.is_empty() || copy.disk.x_ro_features != own.x_ro_features {
            continue;
        }
        let mut disk = own;
        disk.x_map_groups = copy.disk.x_map_groups;
        disk.x_map_start = copy.disk.x_map_start;
        disk.x_space_map_log = copy.disk.x_space_map_log;
        let Ok(wrong) = by(scanner, volume, disk) else { continue };
        if stated.as_ref().map_or(true, |stated| wrong < *stated) {
            let problem = Problem::new(Code::SuperblockFieldTryBackup);
            let problem = problem.name(format!("invalid {}", fields.join(", ")));
            return Ok(Some(problem.group(copy.group()).block(copy.block())));
        }
    }
    by(scanner, volume, own).map(|_| None)
}

/// Reads the space maps by a superblock, makes that the volume's, and returns the number of errors.
fn by(scanner: &Scanner<'_>, volume: &mut Volume, disk: DiskSuperblock) -> Result<usize, Refusal> {
    volume.disk = disk;
    let sb = Superblock { disk, features: volume.features, geometry: volume.geometry.clone() };
    let maps = SpaceMaps::of(&sb).map_err(|e| Refusal::new(e.to_string()))?;
    volume.space_maps = maps.map(|maps| Recorded::read(scanner, maps, &volume.groups));
    if !system_zone::space_map_log_lies_alone(volume) {
        return Err(Refusal::new(
            "the superblock places the table or the log of the space maps over superblocks or descriptors \
             (x_map_start, x_space_map_log): nothing was changed; try a backup superblock with -b",
        ));
    }
    let crossing = usize::from(!system_zone::space_maps_lie_alone(volume));
    Ok(volume.space_maps.as_ref().map_or(0, |maps| maps.problems.len()) + crossing)
}

/// The space map fields in which two superblocks differ.
pub(super) fn differing(one: &DiskSuperblock, other: &DiskSuperblock) -> Vec<&'static str> {
    let fields = [
        ("x_map_groups", one.x_map_groups != other.x_map_groups),
        ("x_map_start", one.x_map_start != other.x_map_start),
        ("x_space_map_log", one.x_space_map_log != other.x_space_map_log),
    ];
    fields.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect()
}
