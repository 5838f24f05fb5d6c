//! The log of a volume's free space: a ring of blocks with the allocations and frees of each generation.
//!
//! 1. Each block has a *position*, the number of blocks written to the ring before it; it is at the position modulo the
//!    ring's length. Positions have no gaps: a missing position means a lost block.
//! 2. The blocks of a generation have its sequence and are consecutive; [`RingBlock::left`] is the number of those that
//!    follow. Sequences ascend with positions.
//! 3. A block that was never written is all zeros.
//! 4. The records of a generation have no block twice, and no run crosses a group boundary.

use super::{MOST_SEQUENCE, SpaceMaps};
use crate::checksum::crc32c;
use crate::{Error, FsBlock, Result, Structure};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

/// `l_magic`: "SMlg" in ASCII.
pub const MAGIC: u32 = 0x676C_4D53;
/// Maximum number of blocks in a record.
pub const MOST_BLOCKS: u32 = 1 << 14;

disk_struct! {
    /// The start of a block of the ring; records follow.
    pub struct DiskRingHeader[32] {
        /// 0x676C4D53
        0x00 l_magic: U32,
        /// records that follow
        0x04 l_count: U32,
        /// the generation's sequence
        0x08 l_sequence: U64,
        /// blocks that were written to the ring before this one
        0x10 l_position: U64,
        /// blocks of the same generation that follow
        0x18 l_left: U32,
        /// CRC32C of the header before this field and of the records, from the volume seed
        0x1C l_checksum: U32,
    }
}

disk_struct! {
    /// A record of the ring.
    pub struct DiskRecord[8] {
        /// bits 0-47 the first block, bits 48-61 the number of blocks minus 1, bit 62 set if they were allocated and
        /// clear if they were freed, bit 63 0
        0x00 lr_run: U64,
    }
}

/// Blocks that were allocated, or freed, in a generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// The first block.
    pub start: FsBlock,
    /// The number of blocks: 1 to [`MOST_BLOCKS`].
    pub blocks: u32,
    /// Whether they were allocated.
    pub allocated: bool,
}

impl Record {
    fn from_disk(disk: DiskRecord) -> Self {
        let bits = disk.lr_run.get();
        Self {
            start: FsBlock(bits & ((1 << 48) - 1)),
            blocks: (bits >> 48) as u32 % MOST_BLOCKS + 1,
            allocated: bits >> 62 & 1 == 1,
        }
    }

    fn to_disk(self) -> DiskRecord {
        let length = u64::from(self.blocks.clamp(1, MOST_BLOCKS) - 1);
        let bits = (self.start.get() & ((1 << 48) - 1)) | length << 48 | u64::from(self.allocated) << 62;
        DiskRecord { lr_run: bits.into() }
    }
}

/// A validated block of the ring.
///
/// Guarantees: its location matches its position; each record's run is inside one group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RingBlock {
    /// The generation.
    pub sequence: u64,
    /// Blocks that were written to the ring before.
    pub position: u64,
    /// Blocks of the same generation that follow.
    pub left: u32,
    /// The records of allocated and freed blocks.
    pub records: Vec<Record>,
}

impl RingBlock {
    /// Capacity of a block of the ring in records.
    #[must_use]
    pub fn space(maps: &SpaceMaps) -> usize {
        (maps.geometry().block_size as usize - DiskRingHeader::SIZE) / DiskRecord::SIZE
    }

    /// Reads the block at `place` of the ring, counted from its start; `None` for one that was never written.
    ///
    /// # Errors
    /// `Corrupt` if a guarantee of the type does not hold.
    pub fn parse(block: &[u8], maps: &SpaceMaps, place: u64) -> Result<Option<Self>> {
        let bad = |what| Error::corrupt(Structure::SpaceMap, what);
        if !block.is_empty() && block.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let (header, rest) =
            DiskRingHeader::read_from_prefix(block).map_err(|_| bad("a block of the log is cut short"))?;
        if header.l_magic.get() != MAGIC {
            return Err(bad("a block of the log has no magic number"));
        }
        let bytes = (header.l_count.get() as usize).checked_mul(DiskRecord::SIZE);
        let records = bytes.and_then(|bytes| rest.get(..bytes));
        let records = records.ok_or_else(|| bad("a block of the log counts more records than it has space for"))?;
        if header.l_checksum.get() != header.checksum(maps, records) {
            return Err(bad("the checksum of a block of the log does not match"));
        }
        let position = header.l_position.get();
        let length = maps.ring().end - maps.ring().start;
        if position % length != place {
            return Err(bad("a block of the log is at another's location"));
        }
        if header.l_sequence.get() == 0 || header.l_sequence.get() > MOST_SEQUENCE || position > MOST_SEQUENCE {
            return Err(bad("a block of the log has an impossible sequence"));
        }
        if u64::from(header.l_left.get()) >= length {
            return Err(bad("a generation is longer than the log"));
        }
        let records: Vec<Record> = records
            .chunks_exact(DiskRecord::SIZE)
            .filter_map(|bytes| DiskRecord::read_from_bytes(bytes).ok())
            .map(|disk| {
                let record = Record::from_disk(disk);
                let known = disk.lr_run.get() >> 63 == 0;
                (known && maps.is_in_one_group(record.start.get(), record.blocks)).then_some(record)
            })
            .collect::<Option<_>>()
            .ok_or_else(|| bad("a record of the log is not inside one group"))?;
        let (sequence, left) = (header.l_sequence.get(), header.l_left.get());
        Ok(Some(Self { sequence, position, left, records }))
    }

    /// Writes the whole block. Records beyond its [space](Self::space) are omitted.
    pub fn write(&self, block: &mut [u8], maps: &SpaceMaps) {
        block.fill(0);
        let records = self.records.get(..Self::space(maps)).unwrap_or(&self.records);
        let bytes: Vec<u8> = records.iter().flat_map(|record| record.to_disk().lr_run.to_bytes()).collect();
        let mut header = DiskRingHeader {
            l_magic: MAGIC.into(),
            l_count: (records.len() as u32).into(),
            l_sequence: self.sequence.into(),
            l_position: self.position.into(),
            l_left: self.left.into(),
            l_checksum: 0.into(),
        };
        header.l_checksum = header.checksum(maps, &bytes).into();
        let Some((start, rest)) = block.split_at_mut_checked(DiskRingHeader::SIZE) else { return };
        start.copy_from_slice(header.as_bytes());
        if let Some(space) = rest.get_mut(..bytes.len()) {
            space.copy_from_slice(&bytes);
        }
    }
}

impl DiskRingHeader {
    /// An unchecked header at the start of a block; `None` where there are too few bytes.
    #[must_use]
    pub fn from_slice(bytes: &[u8]) -> Option<Self> {
        Self::read_from_prefix(bytes).ok().map(|(header, _)| header)
    }

    /// The right checksum for a header with these records.
    #[must_use]
    pub fn checksum(&self, maps: &SpaceMaps, records: &[u8]) -> u32 {
        let header = self.as_bytes().get(..Self::SIZE - 4).unwrap_or_default();
        crc32c(crc32c(maps.geometry().checksum_seed, header), records)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space_map::testing::maps;
    use proptest::prelude::*;

    fn ring_block() -> RingBlock {
        let records = vec![
            Record { start: FsBlock(1), blocks: 8192, allocated: true },
            Record { start: FsBlock(1 + 19 * 8192), blocks: 100, allocated: false },
        ];
        RingBlock { sequence: 5, position: 35, left: 2, records }
    }

    #[test]
    fn a_block_is_read_as_it_was_written() {
        let maps = maps();
        let mut bytes = vec![1; 1024];
        ring_block().write(&mut bytes, &maps);
        assert_eq!(RingBlock::parse(&bytes, &maps, 3).unwrap(), Some(ring_block()));
        assert_eq!(RingBlock::parse(&[0; 1024], &maps, 3).unwrap(), None);
        assert!(RingBlock::parse(&bytes, &maps, 4).unwrap_err().to_string().contains("another's location"));
        assert!(RingBlock::parse(&bytes[..40], &maps, 3).unwrap_err().to_string().contains("space for"));
        assert!(RingBlock::parse(&bytes[..31], &maps, 3).unwrap_err().to_string().contains("cut short"));
        assert!(RingBlock::parse(&[], &maps, 3).is_err());
        assert_eq!(RingBlock::space(&maps), 124);
    }

    #[test]
    fn what_a_block_promises_is_checked() {
        type Change = fn(&mut RingBlock);
        let wrong: [(&str, Change); 7] = [
            ("one group", |block| block.records[0].start = FsBlock(0)),
            ("one group", |block| block.records[0].start = FsBlock(2)),
            ("one group", |block| block.records[1].blocks = 101),
            ("impossible", |block| block.sequence = 0),
            ("impossible", |block| block.sequence = MOST_SEQUENCE + 1),
            ("impossible", |block| block.position = u64::MAX / 16 * 16 + 3),
            ("longer", |block| block.left = 16),
        ];
        for (word, change) in wrong {
            let mut block = ring_block();
            change(&mut block);
            let mut bytes = vec![0; 1024];
            block.write(&mut bytes, &maps());
            let error = RingBlock::parse(&bytes, &maps(), 3).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
        let mut many = ring_block();
        many.records = vec![many.records[0]; 200];
        let mut bytes = vec![0; 1024];
        many.write(&mut bytes, &maps());
        assert_eq!(RingBlock::parse(&bytes, &maps(), 3).unwrap().unwrap().records.len(), 124);
    }

    proptest! {
        #[test]
        fn records_go_through_their_bits(start in 0u64..1 << 48, blocks in 1..=MOST_BLOCKS, allocated: bool) {
            let record = Record { start: FsBlock(start), blocks, allocated };
            prop_assert_eq!(Record::from_disk(record.to_disk()), record);
        }

        #[test]
        fn any_bytes_are_read_or_refused(mut bytes in proptest::collection::vec(any::<u8>(), 0..200), count in 0u32..30) {
            let maps = maps();
            if let Some(mut header) = DiskRingHeader::from_slice(&bytes) {
                (header.l_magic, header.l_count) = (MAGIC.into(), count.into());
                header.l_left = (header.l_left.get() % 20).into();
                header.l_position = (header.l_position.get() >> 1 & !15).into();
                let records = bytes.get(32..32 + count as usize * 8).unwrap_or_default().to_vec();
                header.l_checksum = header.checksum(&maps, &records).into();
                bytes[..32].copy_from_slice(header.as_bytes());
            }
            if let Ok(Some(block)) = RingBlock::parse(&bytes, &maps, 0) {
                prop_assert!(block.records.iter().all(|r| maps.is_in_one_group(r.start.get(), r.blocks)));
                let mut again = vec![0; 1024];
                block.write(&mut again, &maps);
                prop_assert_eq!(RingBlock::parse(&again, &maps, 0).unwrap(), Some(block));
            }
        }

        #[test]
        fn a_flipped_bit_is_found(bit in 0usize..48 * 8) {
            let mut bytes = vec![0; 1024];
            ring_block().write(&mut bytes, &maps());
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(RingBlock::parse(&bytes, &maps(), 3).is_err());
        }
    }
}
