//! The content of a device that is not an ext2, ext3 or ext4 volume, by the magic numbers of other formats.

use blockdev::BlockDevice;

/// The byte offset of a magic number, the number, and the format.
const MARKS: &[(u64, &[u8], &str)] = &[
    (0, b"XFSB", "it looks like an XFS volume"),
    (0x10040, b"_BHRfS_M", "it looks like a Btrfs volume"),
    (0xFF6, b"SWAPSPACE2", "it looks like swap space"),
    (0xFF6, b"SWAP-SPACE", "it looks like swap space"),
    (0, b"LUKS\xBA\xBE", "it is encrypted with LUKS; open it first"),
    (1024, b"\x10\x20\xF5\xF2", "it looks like an F2FS volume"),
    (0x10034, b"ReIsEr", "it looks like a ReiserFS volume"),
    (0x8000, b"JFS1", "it looks like a JFS volume"),
    (0, b"hsqs", "it looks like a SquashFS image"),
    (0x8001, b"CD001", "it looks like an ISO 9660 image"),
    (3, b"NTFS    ", "it looks like an NTFS volume"),
    (3, b"EXFAT   ", "it looks like an exFAT volume"),
    (0x36, b"FAT1", "it looks like a FAT volume"),
    (0x52, b"FAT32", "it looks like a FAT volume"),
    (0x218, b"LVM2 001", "it is part of an LVM volume group; check the logical volume"),
    (4096, b"\xFC\x4E\x2B\xA9", "it is part of a RAID array; check the array"),
    (512, b"EFI PART", "it has a partition table; check one of the partitions"),
    (0, b"\x1F\x8B", "it is compressed with gzip; unpack it first"),
    (0, b"\xFD7zXZ\0", "it is compressed with xz; unpack it first"),
    (0, b"\x28\xB5\x2F\xFD", "it is compressed with zstd; unpack it first"),
    (0, b"BZh", "it is compressed with bzip2; unpack it first"),
    (0, b"PK\x03\x04", "it is a ZIP archive"),
    (0, b"QFI\xFB", "it is a QCOW2 image; attach it with qemu-nbd first"),
    // last: many of the above may have it too
    (0x1FE, b"\x55\xAA", "it has a boot sector, perhaps with a partition table"),
];

/// The number of bytes that are read.
const LOOK: u64 = 68 << 10;

/// The phrase for a device whose beginning is all zeros.
const ZEROS: &str = "all zeros at its beginning: not formatted, or the wrong partition";

/// The beginning of the device; `None` where it cannot be read.
fn beginning(device: &dyn BlockDevice) -> Option<Vec<u8>> {
    // fits: at most `LOOK`
    let mut bytes = vec![0; device.geometry().len.min(LOOK) as usize];
    device.read(0, &mut bytes).ok().map(|()| bytes)
}

/// A phrase, the end of a sentence, where the beginning of the device is all zeros.
#[must_use]
pub fn begins_with_zeros(device: &dyn BlockDevice) -> Option<&'static str> {
    beginning(device)?.iter().all(|b| *b == 0).then_some(ZEROS)
}

/// The likely content of the device, as the end of a sentence; `None` where it is not identified.
pub(crate) fn look(device: &dyn BlockDevice) -> Option<&'static str> {
    if device.geometry().len == 0 {
        return Some("it is empty");
    }
    let bytes = beginning(device)?;
    if bytes.iter().all(|b| *b == 0) {
        return Some(ZEROS);
    }
    let bears = |offset: u64, mark: &[u8]| bytes.get(offset as usize..).is_some_and(|rest| rest.starts_with(mark));
    MARKS.iter().find(|(offset, mark, _)| bears(*offset, mark)).map(|(.., kind)| *kind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockdev::MemoryDevice;

    #[test]
    fn every_mark_is_identified() {
        for (offset, mark, kind) in MARKS {
            let mut bytes = vec![0; LOOK as usize];
            bytes[*offset as usize..][..mark.len()].copy_from_slice(mark);
            assert_eq!(look(&MemoryDevice::from_vec(bytes)), Some(*kind));
        }
        assert_eq!(look(&MemoryDevice::from_vec(vec![])), Some("it is empty"));
        let zeros = MemoryDevice::from_vec(vec![0; 100]);
        assert_eq!((look(&zeros), begins_with_zeros(&zeros)), (Some(ZEROS), Some(ZEROS)));
        assert_eq!(begins_with_zeros(&MemoryDevice::from_vec(b"\0text".to_vec())), None);
        assert_eq!(look(&MemoryDevice::from_vec(b"text".to_vec())), None);
    }
}
