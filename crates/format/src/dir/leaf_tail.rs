//! The tail of a directory's leaf block under metadata_csum, and the check of its checksum.

use super::FileType;
use crate::checksum::crc32c;
use crate::superblock::Geometry;
use crate::{Error, FileBlock, InodeNo, Result, Structure};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, IntoBytes};

disk_struct! {
    /// The last 12 bytes of a directory's leaf block under metadata_csum (`ext4_dir_entry_tail`).
    pub struct DirTail [12] {
        /// 0, as the inode number of an unused entry.
        0x00 det_reserved_zero1: U32,
        /// 12.
        0x04 det_rec_len: U16,
        /// 0, as the length of a name.
        0x06 det_reserved_zero2: u8,
        /// 0xDE, a file type that no entry has.
        0x07 det_reserved_ft: u8,
        /// CRC32C of the block before the tail.
        0x08 det_checksum: U32,
    }
}

disk_struct! {
    /// The last 20 bytes of a directory's leaf block under [`Extant::OWNED`](crate::feature::Extant::OWNED): a
    /// [`DirTail`] with the owner.
    pub struct OwnedDirTail [20] {
        /// 0, as the inode number of an unused entry.
        0x00 dt_reserved_zero1: U32,
        /// 20.
        0x04 dt_rec_len: U16,
        /// 0, as the length of a name.
        0x06 dt_reserved_zero2: u8,
        /// 0xDE, a file type that no entry has.
        0x07 dt_reserved_ft: u8,
        /// The directory.
        0x08 dt_owner: U32,
        /// The directory block number.
        0x0C dt_block: U32,
        /// CRC32C of the directory's seed and the block up to this field.
        0x10 dt_checksum: U32,
    }
}

/// The result of the check of a stored checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChecksumState {
    /// Stored and computed agree.
    Good,
    /// Both differ.
    Bad {
        /// The checksum on the device.
        stored: u32,
        /// The checksum of the bytes.
        computed: u32,
    },
    /// The structure has no space for a checksum.
    Missing,
}

impl ChecksumState {
    /// The state for a stored and a computed checksum.
    #[must_use]
    pub fn compare(stored: u32, computed: u32) -> Self {
        if stored == computed { ChecksumState::Good } else { ChecksumState::Bad { stored, computed } }
    }

    /// Returns an error unless the checksum is good.
    ///
    /// # Errors
    /// Corruption of `structure` where the checksum is bad or missing.
    pub fn require(self, structure: Structure) -> Result<()> {
        match self {
            ChecksumState::Good => Ok(()),
            ChecksumState::Bad { .. } => Err(Error::corrupt(structure, "the checksum does not match")),
            ChecksumState::Missing => Err(Error::corrupt(structure, "there is no space for the checksum")),
        }
    }
}

impl DirTail {
    /// The tail of `block`, if its last 12 bytes are one.
    #[must_use]
    pub fn of(block: &[u8]) -> Option<&DirTail> {
        let (_, tail) = DirTail::ref_from_suffix(block).ok()?;
        let is_tail = tail.det_reserved_zero1.get() == 0
            && tail.det_rec_len.get() == DirTail::SIZE as u16
            && tail.det_reserved_zero2 == 0
            && tail.det_reserved_ft == FileType::TAIL;
        is_tail.then_some(tail)
    }

    /// Writes a tail into the last 12 bytes of `block` with the checksum of the bytes before it; `seed` as for
    /// [`leaf_checksum`]. Returns `None`, with nothing written, where `block` is shorter.
    pub fn write(block: &mut [u8], seed: u32) -> Option<()> {
        let (body, tail) = block.split_at_mut_checked(block.len().checked_sub(DirTail::SIZE)?)?;
        let new = DirTail {
            det_reserved_zero1: 0.into(),
            det_rec_len: (DirTail::SIZE as u16).into(),
            det_reserved_zero2: 0,
            det_reserved_ft: FileType::TAIL,
            det_checksum: crc32c(seed, body).into(),
        };
        tail.copy_from_slice(new.as_bytes());
        Some(())
    }
}

impl OwnedDirTail {
    /// The tail of `block`, if its last 20 bytes are one.
    #[must_use]
    pub fn of(block: &[u8]) -> Option<&Self> {
        let (_, tail) = Self::ref_from_suffix(block).ok()?;
        let is_tail = tail.dt_reserved_zero1.get() == 0
            && tail.dt_rec_len.get() == Self::SIZE as u16
            && tail.dt_reserved_zero2 == 0
            && tail.dt_reserved_ft == FileType::TAIL;
        is_tail.then_some(tail)
    }
}

/// The tail of the leaf blocks of a volume's directories.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeafTail {
    /// No tail: no metadata_csum.
    None,
    /// A [`DirTail`].
    Checksum,
    /// An [`OwnedDirTail`].
    Owned,
}

impl Geometry {
    /// The tail of the leaf blocks of this volume's directories.
    #[inline]
    #[must_use]
    pub fn leaf_tail(&self) -> LeafTail {
        match (self.metadata_csum, self.is_owned()) {
            (false, _) => LeafTail::None,
            (true, false) => LeafTail::Checksum,
            (true, true) => LeafTail::Owned,
        }
    }
}

impl LeafTail {
    /// Its length in bytes.
    #[inline]
    #[must_use]
    pub fn size(self) -> usize {
        match self {
            LeafTail::None => 0,
            LeafTail::Checksum => DirTail::SIZE,
            LeafTail::Owned => OwnedDirTail::SIZE,
        }
    }

    /// Whether `block` ends in such a tail; true for [`LeafTail::None`].
    #[must_use]
    pub fn ends(self, block: &[u8]) -> bool {
        match self {
            LeafTail::None => true,
            LeafTail::Checksum => DirTail::of(block).is_some(),
            LeafTail::Owned => OwnedDirTail::of(block).is_some(),
        }
    }

    /// Writes a tail at the end of `block`, which is block `at` of directory `owner`;
    /// [`set_checksum`](Self::set_checksum) adds its checksum. `None`, with nothing written, where `block` is shorter,
    /// or `at` exceeds 32 bits.
    pub fn write(self, block: &mut [u8], owner: InodeNo, at: FileBlock) -> Option<()> {
        match self {
            LeafTail::None => Some(()),
            LeafTail::Checksum => DirTail::write(block, 0),
            LeafTail::Owned => {
                let tail = OwnedDirTail {
                    dt_reserved_zero1: 0.into(),
                    dt_rec_len: (OwnedDirTail::SIZE as u16).into(),
                    dt_reserved_zero2: 0,
                    dt_reserved_ft: FileType::TAIL,
                    dt_owner: owner.get().into(),
                    dt_block: u32::try_from(at.get()).ok()?.into(),
                    dt_checksum: 0.into(),
                };
                let (_, place) = block.split_at_mut_checked(block.len().checked_sub(OwnedDirTail::SIZE)?)?;
                place.copy_from_slice(tail.as_bytes());
                Some(())
            }
        }
    }

    /// Writes the checksum into the tail of `block`; `seed` as for [`leaf_checksum`]. `None`, with nothing written,
    /// where it has no tail.
    pub fn set_checksum(self, block: &mut [u8], seed: u32) -> Option<()> {
        match self {
            LeafTail::None => Some(()),
            LeafTail::Checksum => DirTail::of(block).is_some().then(|| DirTail::write(block, seed))?,
            LeafTail::Owned => {
                OwnedDirTail::of(block)?;
                let (covered, place) = block.split_at_mut_checked(block.len().checked_sub(4)?)?;
                place.copy_from_slice(&crc32c(seed, covered).to_le_bytes());
                Some(())
            }
        }
    }

    /// Checks the checksum of a leaf block; `seed` as for [`leaf_checksum`]. Good on volumes without them.
    #[must_use]
    pub fn check(self, block: &[u8], seed: u32) -> ChecksumState {
        match self {
            LeafTail::None => ChecksumState::Good,
            LeafTail::Checksum => leaf_checksum(block, seed),
            LeafTail::Owned => match OwnedDirTail::of(block) {
                Some(tail) => ChecksumState::compare(tail.dt_checksum.get(), crc32c(seed, &block[..block.len() - 4])),
                None => ChecksumState::Missing,
            },
        }
    }
}

/// Checks the checksum of a directory's leaf block. `seed` is the directory inode's: CRC32C of the volume's seed, the
/// inode number and the inode's generation, both little-endian.
#[must_use]
pub fn leaf_checksum(block: &[u8], seed: u32) -> ChecksumState {
    match DirTail::of(block) {
        Some(tail) => {
            ChecksumState::compare(tail.det_checksum.get(), crc32c(seed, &block[..block.len() - DirTail::SIZE]))
        }
        None => ChecksumState::Missing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dir::{DirFormat, Entries, write_entry};

    const FORMAT: DirFormat = DirFormat { block_size: 1024, file_type: true, hashed: false };

    #[test]
    fn tail() {
        let mut bytes = vec![0; 1024];
        write_entry(&mut bytes[..1012], InodeNo(5), b"name", None, None, FORMAT).unwrap();
        assert_eq!(leaf_checksum(&bytes, 7), ChecksumState::Missing);
        DirTail::write(&mut bytes, 7).unwrap();
        assert_eq!(leaf_checksum(&bytes, 7), ChecksumState::Good);
        assert!(leaf_checksum(&bytes, 8).require(Structure::Directory).is_err());
        let last = Entries::new(&bytes, FORMAT).last().unwrap().unwrap();
        assert_eq!((last.offset, last.is_used(), last.file_type), (1012, false, FileType::TAIL));
        bytes[9] ^= 1;
        assert!(matches!(leaf_checksum(&bytes, 7), ChecksumState::Bad { .. }));
        assert_eq!(leaf_checksum(&[0; 11], 7), ChecksumState::Missing);
        assert_eq!(DirTail::write(&mut [0; 11], 7), None);
    }

    #[test]
    fn tails_of_each_kind() {
        for (tail, size) in [(LeafTail::None, 0), (LeafTail::Checksum, 12), (LeafTail::Owned, 20)] {
            let mut bytes = vec![0; 1024];
            assert_eq!(tail.size(), size);
            write_entry(&mut bytes[..1024 - size], InodeNo(5), b"name", None, None, FORMAT).unwrap();
            assert_eq!(tail.ends(&bytes), size == 0);
            assert_eq!(tail.set_checksum(&mut bytes, 7).is_some(), size == 0);
            tail.write(&mut bytes, InodeNo(12), FileBlock(3)).unwrap();
            tail.set_checksum(&mut bytes, 7).unwrap();
            assert_eq!((tail.ends(&bytes), tail.check(&bytes, 7)), (true, ChecksumState::Good));
            assert_eq!(tail.check(&bytes, 8) == ChecksumState::Good, size == 0);
            assert_eq!(Entries::new(&bytes, FORMAT).last().unwrap().unwrap().is_used(), size == 0);
            for other in [LeafTail::Checksum, LeafTail::Owned] {
                assert_eq!(other.ends(&bytes), other == tail);
            }
        }
        let mut bytes = vec![0; 64];
        LeafTail::Owned.write(&mut bytes, InodeNo(12), FileBlock(3)).unwrap();
        let tail = OwnedDirTail::of(&bytes).unwrap();
        assert_eq!((tail.dt_owner.get(), tail.dt_block.get()), (12, 3));
        assert!(LeafTail::Owned.write(&mut bytes, InodeNo(12), FileBlock(1 << 32)).is_none());
        assert!(LeafTail::Owned.write(&mut [0; 19], InodeNo(12), FileBlock(0)).is_none());
        assert_eq!(LeafTail::Owned.check(&[0; 19], 1), ChecksumState::Missing);
    }
}
