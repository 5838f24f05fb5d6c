//! The native superblock: the one thing with a fixed place. There are two, in blocks 0 and 1, written in turn.
//!
//! A write of 4 KiB may be torn between sectors, so each sector ends with the number of the generation: a superblock counts
//! where all eight agree and its checksum matches, and the one with the higher number is the volume.

use super::map::{DiskEntry, Entry, Position};
use super::{Shape, corrupt};
use crate::checksum::crc32c;
use crate::{Error, Result, Structure};
use std::mem::offset_of;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

/// `n_magic`
pub const MAGIC: [u8; 8] = *b"ExtantFS";
/// The version of the format that is described here.
pub const VERSION: u32 = 1;
/// Superblocks, in as many blocks from the device's start.
pub const COPIES: u64 = 2;

disk_struct! {
    /// A sector of the native superblock behind the first.
    pub struct DiskSector[512] {
        /// 0
        0x000 n_unused: [u8; 504],
        /// as in the first sector
        0x1F8 n_generation: U64,
    }
}

disk_struct! {
    /// The native superblock, in blocks 0 and 1 of the device.
    pub struct DiskNativeSuperblock[4096] {
        /// `ExtantFS`
        0x000 n_magic: [u8; 8],
        /// 1
        0x008 n_version: U32,
        /// 1: in use by an engine that keeps no order
        0x00C n_flags: U32,
        /// the volume's UUID, as in the ext4 superblock
        0x010 n_uuid: [u8; 16],
        /// blocks of the device that belong to the volume
        0x020 n_blocks: U64,
        /// the entry of the map's root node
        0x028 n_root: DiskEntry,
        /// records of the place table that may be in use, from its start
        0x048 n_chunks: U32,
        /// records of the list of snapshots that may be in use, from its start
        0x04C n_snapshots: U32,
        /// 0
        0x050 n_reserved: [u8; 420],
        /// CRC32C of the 4 096 bytes, this field as 0
        0x1F4 n_checksum: U32,
        /// number of the generation
        0x1F8 n_generation: U64,
        /// seven more sectors
        0x200 n_sectors: [DiskSector; 7],
    }
}

/// `n_flags`: the volume is in use, and a crash may leave anything.
const UNORDERED: u32 = 1;

/// A native superblock that can be relied on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NativeSuperblock {
    /// The volume's numbers.
    pub shape: Shape,
    /// The volume's UUID.
    pub uuid: [u8; 16],
    /// The generation it is the superblock of.
    pub generation: u64,
    /// It is in use by an engine that keeps no order: what a crash left needs a check.
    pub unordered: bool,
    /// The entry of the map's root.
    pub root: Entry,
    /// Records of the place table that may be in use, from its start.
    pub chunks: u32,
    /// Records of the list of snapshots that may be in use, from its start.
    pub snapshots: u32,
}

impl NativeSuperblock {
    /// Whether these bytes, the start of a device, look like a native volume, sound or not.
    #[must_use]
    pub fn is_there(bytes: &[u8]) -> bool {
        bytes.starts_with(&MAGIC)
    }

    /// Reads one of the two superblocks.
    ///
    /// # Errors
    /// `Corrupt` where it is none, torn or damaged; `Unsupported` for another version.
    pub fn parse(block: &[u8]) -> Result<Self> {
        let bad = |what| corrupt(Structure::NativeSuperblock, what);
        let (disk, _) = DiskNativeSuperblock::read_from_prefix(block).map_err(|_| bad("cut short"))?;
        if disk.n_magic != MAGIC {
            return Err(bad("no magic number"));
        }
        if disk.n_sectors.iter().any(|sector| sector.n_generation != disk.n_generation) {
            return Err(bad("its sectors are of different generations"));
        }
        if disk.n_checksum.get() != disk.checksum() {
            return Err(bad("checksum does not match"));
        }
        if disk.n_version.get() != VERSION {
            return Err(Error::Unsupported(format!("version {} of the native format", disk.n_version.get())));
        }
        let shape = Shape::new(disk.n_blocks.get())?;
        let root = Entry::parse(&disk.n_root, &shape)?.ok_or_else(|| bad("there is no map"))?;
        let sb = Self {
            shape,
            uuid: disk.n_uuid,
            generation: disk.n_generation.get(),
            unordered: disk.n_flags.get() & UNORDERED != 0,
            root,
            chunks: disk.n_chunks.get(),
            snapshots: disk.n_snapshots.get(),
        };
        if disk.n_flags.get() & !UNORDERED != 0 {
            return Err(Error::Unsupported("a flag of the native format that this version does not know".to_owned()));
        }
        if sb.chunks > shape.chunks() || u64::from(sb.snapshots) > super::snapshots::MOST {
            return Err(bad("a count is out of range"));
        }
        if root.generation > sb.generation {
            return Err(bad("its numbers contradict each other"));
        }
        Ok(sb)
    }

    /// Of the blocks at the device's start the newest superblock that counts, and the block it lies in.
    ///
    /// # Errors
    /// Where none counts, what is wrong with the first.
    pub fn newest(blocks: &[u8]) -> Result<(Self, u64)> {
        let size = DiskNativeSuperblock::SIZE;
        let parsed =
            (0..COPIES).map(|n| (blocks.get(n as usize * size..).map_or(Ok(None), |b| Self::parse(b).map(Some)), n));
        let mut first_error = None;
        let mut best: Option<(Self, u64)> = None;
        for (outcome, n) in parsed {
            match outcome {
                Ok(Some(sb)) if best.as_ref().is_none_or(|(best, _)| best.generation < sb.generation) => {
                    best = Some((sb, n))
                }
                Ok(_) => {}
                Err(e) => first_error = first_error.or(Some(e)),
            }
        }
        best.ok_or_else(|| first_error.unwrap_or_else(|| corrupt(Structure::NativeSuperblock, "cut short")))
    }

    /// The bytes of the superblock: a whole block.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let Ok(mut disk) = DiskNativeSuperblock::read_from_bytes(&[0; DiskNativeSuperblock::SIZE]) else {
            unreachable!("the array has the structure's size")
        };
        disk.n_magic = MAGIC;
        disk.n_version = VERSION.into();
        disk.n_flags = if self.unordered { UNORDERED } else { 0 }.into();
        disk.n_uuid = self.uuid;
        disk.n_blocks = self.shape.blocks().into();
        disk.n_root = self.root.to_disk();
        disk.n_chunks = self.chunks.into();
        disk.n_snapshots = self.snapshots.into();
        disk.n_generation = self.generation.into();
        disk.n_sectors.iter_mut().for_each(|sector| sector.n_generation = self.generation.into());
        disk.n_checksum = disk.checksum().into();
        disk.as_bytes().to_vec()
    }

    /// The start of all checksums of the volume.
    #[must_use]
    pub fn seed(&self) -> u32 {
        crc32c(!0, &self.uuid)
    }

    /// What the root node's checksum covers beside its bytes.
    #[must_use]
    pub fn root_position(&self) -> Position {
        Position::Node { level: self.shape.levels() - 1, number: 0 }
    }
}

impl DiskNativeSuperblock {
    /// What `n_checksum` should be.
    #[must_use]
    pub fn checksum(&self) -> u32 {
        let at = offset_of!(Self, n_checksum);
        let bytes = self.as_bytes();
        let before = crc32c(!0, bytes.get(..at).unwrap_or_default());
        let zero = crc32c(before, &[0; 4]);
        crc32c(zero, bytes.get(at + 4..).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::native::map::BlockKind;

    fn superblock(generation: u64) -> NativeSuperblock {
        let root = Entry { place: 77, generation, kind: BlockKind::MapNode, owner: 0, checksum: 0xABCD };
        NativeSuperblock {
            shape: Shape::new(40000).unwrap(),
            uuid: [7; 16],
            generation,
            unordered: false,
            root,
            chunks: 3,
            snapshots: 1,
        }
    }

    #[test]
    fn what_is_written_is_read() {
        for sb in [superblock(9), NativeSuperblock { unordered: true, ..superblock(u64::MAX) }] {
            let bytes = sb.to_bytes();
            assert_eq!(NativeSuperblock::parse(&bytes), Ok(sb));
            assert_ne!(bytes[1080..1082], crate::superblock::MAGIC.to_le_bytes(), "it looks like an ext volume");
        }
    }

    #[test]
    fn the_newest_whole_one_counts() {
        let (old, new) = (superblock(8).to_bytes(), superblock(9).to_bytes());
        let both = [new.clone(), old.clone()].concat();
        assert_eq!(NativeSuperblock::newest(&both).unwrap(), (superblock(9), 0));
        // any state of a torn write of 9 over 7 leaves 8 or gives 9
        let before = superblock(7).to_bytes();
        for sectors in 0..256u32 {
            let mut torn = before.clone();
            for n in (0..8).filter(|n| sectors & 1 << n != 0) {
                torn[n * 512..][..512].copy_from_slice(&new[n * 512..][..512]);
            }
            let (found, _) = NativeSuperblock::newest(&[torn, old.clone()].concat()).unwrap();
            assert_eq!(found.generation, if sectors == 255 { 9 } else { 8 });
        }
        assert!(NativeSuperblock::newest(&vec![0; 8192]).is_err());
        assert!(NativeSuperblock::newest(&both[..100]).is_err());
    }

    #[test]
    fn no_flipped_bit_is_taken_for_a_superblock() {
        let bytes = superblock(9).to_bytes();
        for bit in (0..bytes.len() * 8).step_by(13) {
            let mut wrong = bytes.clone();
            wrong[bit / 8] ^= 1 << (bit % 8);
            assert!(NativeSuperblock::parse(&wrong).is_err(), "bit {bit}");
        }
    }
}
