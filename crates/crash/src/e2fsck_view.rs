//! A volume as shown to e2fsck: the content of the device, or of a native volume the logical volume above its map.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use blockdev::BlockDevice;
use format::native::BLOCK_SIZE;
use store::native::{Mapped, superblock};

use crate::system::Refused;

/// Size of a read or write in bytes.
const PART: u64 = 1 << 20;

/// Copies a whole device to a file.
///
/// # Errors
/// The error of the device or the file.
pub(crate) fn copy(device: &dyn BlockDevice, file: &File) -> Result<(), Refused> {
    part(device, file, 0..device.geometry().len)
}

/// Writes the logical volume above the map of a native volume to a file. File data is omitted, since e2fsck does not
/// read it.
///
/// # Errors
/// Those of [`copy`]; a device without a native volume.
pub(crate) fn write(device: &Arc<dyn BlockDevice>, file: &File) -> Result<(), Refused> {
    let (sb, _) = superblock(&**device).map_err(|e| e.to_string())?;
    let mapped = Mapped::new(Arc::clone(device), &sb);
    let first = u64::from(BLOCK_SIZE) * sb.layout.metadata_start();
    part(&mapped, file, 0..PART.min(first))?;
    part(&mapped, file, first..mapped.geometry().len)
}

fn part(device: &dyn BlockDevice, file: &File, range: std::ops::Range<u64>) -> Result<(), Refused> {
    let len = device.geometry().len;
    if file.metadata().map_err(|e| e.to_string())?.len() < len {
        file.set_len(len).map_err(|e| e.to_string())?;
    }
    let mut bytes = vec![0; PART as usize];
    let mut at = range.start;
    while at < range.end {
        let piece = &mut bytes[..PART.min(range.end - at) as usize];
        device.read(at, piece).map_err(|e| e.to_string())?;
        // zero ranges stay holes
        if piece.iter().any(|byte| *byte != 0) {
            file.write_all_at(piece, at).map_err(|e| e.to_string())?;
        }
        at += piece.len() as u64;
    }
    Ok(())
}

/// Whether e2fsck reports only known differences above the map: blocks of the metadata regions, in use without an owner
/// for e2fsck, and the mere advice to shorten extent trees (by itself with exit status 0).
pub(crate) fn has_only_expected(said: &str) -> bool {
    let known = |line: &str| {
        line.is_empty()
            || line.starts_with("Pass ")
            || line.starts_with("Block bitmap differences:")
            || line.starts_with("Fix?")
            || line.ends_with("could be shorter.  Optimize? no")
            || line.ends_with("could be narrower.  Optimize? no")
            || line.starts_with("Free blocks count wrong")
            || line.starts_with(" -")
            || line.contains("WARNING: Filesystem still has errors")
            || line.contains(" files (")
    };
    // "+": in use by a file and free in the bitmap
    said.lines().all(known) && !said.contains(" +")
}

#[cfg(test)]
mod tests {
    use super::has_only_expected;

    #[test]
    fn only_blocks_of_regions_may_lack_an_owner() {
        let head = "Pass 1: Checking inodes, blocks, and sizes\nPass 5: Checking group summary information\n";
        let regions = "Block bitmap differences:  -(2--99)\nFix? no\n";
        assert!(has_only_expected(&format!("{head}{regions}")));
        assert!(!has_only_expected(&format!("{head}Block bitmap differences:  +77 -(2--99)\nFix? no\n")));
        assert!(!has_only_expected(&format!("{head}Unattached inode 12\n{regions}")));
    }

    #[test]
    fn advice_is_no_finding() {
        let advice = "Inode 12 extent tree (at level 1) could be shorter.  Optimize? no";
        assert!(has_only_expected(&format!("Pass 1: Checking inodes\n{advice}\n\n")));
        assert!(!has_only_expected(&format!("{advice}\nInode 12, i_size is 5, should be 6.  Fix? no\n")));
    }
}
