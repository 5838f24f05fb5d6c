//! Detection of content that should not be overwritten without confirmation.

use blockdev::BlockDevice;
use format::superblock::{DiskSuperblock, Geometry, MAGIC, OFFSET};

/// The first bytes of a native superblock.
const NATIVE: &[u8] = b"ExtantFS";

/// Signatures: offset, bytes, and description. The first match counts.
const SIGNATURES: [(usize, &[u8], &str); 35] = [
    (0, NATIVE, "a native Extant volume"),
    (0x1000, NATIVE, "a native Extant volume"),
    (0, b"XFSB", "an XFS file system"),
    (0x1_0040, b"_BHRfS_M", "a Btrfs file system"),
    (0x400, b"\x10\x20\xF5\xF2", "an F2FS file system"),
    (0x400, b"\xE2\xE1\xF5\xE0", "an EROFS file system"),
    (0x1018, b"\xC6\x85\x73\xF6\x4E\x1A\x45\xCA", "a bcachefs file system"),
    (0x1018, b"\xC6\x85\x73\xF6\x66\xCE\x90\xA9", "a bcachefs file system or a bcache device"),
    (0x1_0034, b"ReIsEr", "a ReiserFS file system"),
    (0x8000, b"JFS1", "a JFS file system"),
    (0x406, b"\x34\x34", "a NILFS file system"),
    (3, b"NTFS    ", "an NTFS file system"),
    (3, b"EXFAT   ", "an exFAT file system"),
    (0x52, b"FAT32   ", "a FAT file system"),
    (0x36, b"FAT1", "a FAT file system"),
    (0, b"hsqs", "a squashfs image"),
    (0x8001, b"CD001", "an ISO 9660 image"),
    (0xFF6, b"SWAPSPACE2", "swap space"),
    (0xFF6, b"SWAP-SPACE", "swap space"),
    (0, b"LUKS\xBA\xBE", "a LUKS container"),
    (0x218, b"LVM2 001", "an LVM physical volume"),
    (0x18, b"LVM2 001", "an LVM physical volume"),
    (0x1000, b"\xFC\x4E\x2B\xA9", "a member of a RAID array"),
    (0, b"\xFC\x4E\x2B\xA9", "a member of a RAID array"),
    (0x200, b"EFI PART", "a GPT partition table"),
    (0x1000, b"EFI PART", "a GPT partition table"),
    // not file systems: the user has probably specified the wrong file
    (0, b"\x1F\x8B\x08", "data compressed with gzip"),
    (0, b"\xFD7zXZ\0", "data compressed with xz"),
    (0, b"\x28\xB5\x2F\xFD", "data compressed with zstd"),
    (0, b"BZh", "data compressed with bzip2"),
    (0, b"PK\x03\x04", "a ZIP archive"),
    (0, b"QFI\xFB", "a QCOW2 image"),
    (0, b"SQLite format 3\0", "an SQLite database"),
    (0, b"\x7FELF", "an ELF binary"),
    (257, b"ustar", "a tar archive"),
];

/// The content of the device, as a phrase ("an ext4 volume labelled `data`"); `None` where nothing is detected.
///
/// # Errors
/// Where the device cannot be read.
pub fn contents(device: &dyn BlockDevice) -> blockdev::Result<Option<String>> {
    let bytes = beginning(device)?;
    Ok(ext(&bytes).or_else(|| known(&bytes)))
}

/// As [`contents`], for a device that cannot be opened as a volume: `None` also if a signature of ext2, ext3, ext4 or
/// the native format remains, whatever the rest is.
///
/// # Errors
/// Where the device cannot be read.
pub fn foreign_contents(device: &dyn BlockDevice) -> blockdev::Result<Option<String>> {
    let bytes = beginning(device)?;
    let disk = bytes.get(OFFSET as usize..).and_then(DiskSuperblock::from_slice);
    let is_own = disk.is_some_and(|disk| disk.s_magic.get() == MAGIC)
        || SIGNATURES.iter().any(|row| row.1 == NATIVE && has(&bytes, row.0, row.1));
    Ok(if is_own { None } else { known(&bytes) })
}

/// The part of the device that contains signatures.
fn beginning(device: &dyn BlockDevice) -> blockdev::Result<Vec<u8>> {
    const SPAN: u64 = 72 << 10;
    let mut bytes = vec![0; SPAN.min(device.geometry().len) as usize];
    device.read(0, &mut bytes)?;
    Ok(bytes)
}

fn has(bytes: &[u8], at: usize, signature: &[u8]) -> bool {
    bytes.get(at..).is_some_and(|rest| rest.starts_with(signature))
}

/// The first matching signature, or a partition table.
fn known(bytes: &[u8]) -> Option<String> {
    let signature = SIGNATURES.iter().find(|row| has(bytes, row.0, row.1)).map(|row| row.2.to_owned());
    signature.or_else(|| partition_table(bytes).then(|| "a partition table".to_owned()))
}

fn ext(bytes: &[u8]) -> Option<String> {
    let disk = DiskSuperblock::from_slice(bytes.get(OFFSET as usize..)?)?;
    // a magic number of two bytes also occurs by chance
    Geometry::of(&disk).ok()?;
    let kind = disk.features().format_name();
    Some(match disk.label() {
        label if label.is_empty() => format!("an {kind} volume"),
        label => format!("an {kind} volume labelled `{}`", label.escape_debug()),
    })
}

/// A master boot record with at least one partition.
fn partition_table(bytes: &[u8]) -> bool {
    let Some(entries) = bytes.get(446..510) else { return false };
    let marked = bytes.get(510..512) == Some(&[0x55, 0xAA]);
    let mut entries = entries.chunks_exact(16);
    let valid = entries.clone().all(|entry| entry[0] & 0x7F == 0);
    marked && valid && entries.any(|entry| entry[4] != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockdev::MemoryDevice;

    fn contents_with(at: usize, what: &[u8]) -> Option<String> {
        let mut bytes = vec![0; 1 << 20];
        bytes[at..at + what.len()].copy_from_slice(what);
        contents(&MemoryDevice::from_vec(bytes)).unwrap()
    }

    #[test]
    fn signatures_are_detected() {
        for (at, what, name) in SIGNATURES {
            assert!(contents_with(at, what).is_some(), "{name}");
        }
        assert_eq!(contents_with(0, b"XFSB").as_deref(), Some("an XFS file system"));
        assert_eq!(contents_with(0, &[]), None);
        assert_eq!(contents_with(1024 + 56, &[0x53, 0xEF]), None);
        let foreign = |at: usize, what: &[u8]| {
            let mut bytes = vec![0; 1 << 20];
            bytes[at..at + what.len()].copy_from_slice(what);
            foreign_contents(&MemoryDevice::from_vec(bytes)).unwrap()
        };
        assert_eq!(foreign(0, b"XFSB").as_deref(), Some("an XFS file system"));
        assert_eq!((foreign(0, NATIVE), foreign(1024 + 56, &[0x53, 0xEF])), (None, None), "damaged volumes");
        let mut record = [0; 512];
        record[510..].copy_from_slice(&[0x55, 0xAA]);
        assert_eq!(contents_with(0, &record), None);
        record[446 + 4] = 0x83;
        assert_eq!(contents_with(0, &record).as_deref(), Some("a partition table"));
        assert_eq!(contents(&MemoryDevice::from_vec(vec![0; 100])).unwrap(), None);
    }
}
