//! The redo area: all sectors that the repair after a crash writes, stored with a checksum before any is written, so
//! that an interrupted repair can be repeated with the same result.

use super::{SECTOR, sum};
use crate::checksum::crc32c;
use crate::{Error, Result, Structure};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

/// `ld_magic`: "Lred" in ASCII.
pub const REDO_MAGIC: u32 = 0x6465_724C;

disk_struct! {
    /// The start of the redo area. The sector numbers follow, 8 bytes each, and from the next sector boundary on the
    /// contents.
    pub struct DiskListRedo[64] {
        /// 0x6465724C
        0x00 ld_magic: U32,
        /// CRC32C of this header, this field as 0, of the numbers and of the contents
        0x04 ld_checksum: U32,
        /// the volume's `s_uuid`
        0x08 ld_uuid: [u8; 16],
        /// `ll_counter` of the newest slot that the repair follows
        0x18 ld_counter: U64,
        /// sectors of 512 bytes
        0x20 ld_count: U32,
        /// 0
        0x24 ld_reserved: [U32; 7],
    }
}

/// Sectors to be written, each with its number on the device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Redo {
    /// The volume's UUID.
    pub uuid: [u8; 16],
    /// The counter of the newest slot that the repair follows.
    pub counter: u64,
    /// The sectors: number, and content of 512 bytes.
    pub sectors: Vec<(u64, Box<[u8; SECTOR]>)>,
}

fn bad(what: &'static str) -> Error {
    Error::corrupt(Structure::LinkedList, what)
}

impl Redo {
    /// Size in bytes of `sectors` sectors in the redo area.
    #[must_use]
    pub fn len_of(sectors: usize) -> usize {
        (DiskListRedo::SIZE + sectors * 8).next_multiple_of(SECTOR) + sectors * SECTOR
    }

    /// The bytes with the checksum, a multiple of the sector size.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let count = u32::try_from(self.sectors.len()).unwrap_or(u32::MAX);
        let mut header = DiskListRedo {
            ld_magic: REDO_MAGIC.into(),
            ld_checksum: 0.into(),
            ld_uuid: self.uuid,
            ld_counter: self.counter.into(),
            ld_count: count.into(),
            ld_reserved: [0.into(); 7],
        };
        let numbers: Vec<u8> = self.sectors.iter().flat_map(|(number, _)| number.to_le_bytes()).collect();
        let checksum = crc32c(sum(header.as_bytes()), &numbers);
        header.ld_checksum = self.sectors.iter().fold(checksum, |sum, (_, bytes)| crc32c(sum, &**bytes)).into();
        let mut bytes = Vec::with_capacity(Self::len_of(self.sectors.len()));
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(&numbers);
        bytes.resize(bytes.len().next_multiple_of(SECTOR), 0);
        self.sectors.iter().for_each(|(_, content)| bytes.extend_from_slice(&**content));
        bytes
    }

    /// Reads the redo area. Uses at most twice the memory of `area`.
    ///
    /// # Errors
    /// `Corrupt` where it is incomplete or damaged.
    pub fn parse(area: &[u8]) -> Result<Self> {
        let (mut header, _) = DiskListRedo::read_from_prefix(area).map_err(|_| bad("the redo area is cut short"))?;
        if header.ld_magic.get() != REDO_MAGIC {
            return Err(bad("the redo area has no magic number"));
        }
        let count = header.ld_count.get() as usize;
        if count > area.len() / SECTOR {
            return Err(bad("the redo area counts more sectors than fit"));
        }
        let numbers_end = DiskListRedo::SIZE + count * 8;
        let numbers = area.get(DiskListRedo::SIZE..numbers_end).ok_or_else(|| bad("the redo area is cut short"))?;
        let contents = area.get(numbers_end.next_multiple_of(SECTOR)..Self::len_of(count));
        let contents = contents.ok_or_else(|| bad("the redo area is cut short"))?;
        let checksum = header.ld_checksum.get();
        header.ld_checksum = 0.into();
        if crc32c(crc32c(sum(header.as_bytes()), numbers), contents) != checksum {
            return Err(bad("the checksum of the redo area does not match"));
        }
        let numbers = numbers.chunks_exact(8).filter_map(|n| n.try_into().ok().map(u64::from_le_bytes));
        let contents = contents.chunks_exact(SECTOR).filter_map(|c| c.try_into().ok().map(Box::new));
        Ok(Self { uuid: header.ld_uuid, counter: header.ld_counter.get(), sectors: numbers.zip(contents).collect() })
    }
}
