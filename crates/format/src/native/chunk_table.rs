//! The chunk table: which blocks of the metadata regions a generation uses.
//!
//! Regions consist of chunks of 512 blocks, allocated one by one from the data groups: all blocks of a region's chunk
//! are in use in the ext4 block bitmap. A record of the table shows which of its blocks this generation uses: the two
//! superblocks, mapped blocks, nodes of the map.

use super::{CHUNK_BLOCKS, Layout};
use crate::{Error, Result, Structure};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

/// Words in the bitmap of a chunk.
pub const WORDS: usize = CHUNK_BLOCKS as usize / 64;
/// Records in a block of the table; the rest of the block is 0.
pub const RECORDS: u32 = 56;

disk_struct! {
    /// A record of the chunk table.
    pub struct DiskChunk[72] {
        /// the chunk's number on the device, counted from 1; 0 for a record that is not in use
        0x00 c_chunk: U32,
        /// blocks in use
        0x04 c_used: U32,
        /// a bit for each block of the chunk, the lowest first; set for one in use
        0x08 c_bitmap: [U64; 8],
    }
}

/// A chunk of a metadata region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chunk {
    /// Its number on the device, from 0.
    pub number: u32,
    /// A bit for each of its blocks, set for one in use, the lowest first.
    pub used: [u64; WORDS],
}

impl Chunk {
    /// An empty chunk; the first of the device contains the superblocks.
    #[must_use]
    pub fn new(number: u32) -> Self {
        let mut used = [0; WORDS];
        if number == 0 {
            used[0] = (1 << super::superblock::COPIES) - 1;
        }
        Self { number, used }
    }

    /// Blocks in use.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.used.iter().map(|word| word.count_ones()).sum()
    }
}

/// The chunk of a block of the device, and the block's bit there: word and mask.
#[must_use]
pub fn bit_of(physical: u64) -> (u32, usize, u64) {
    let (chunk, bit) = (physical / u64::from(CHUNK_BLOCKS), physical % u64::from(CHUNK_BLOCKS));
    (u32::try_from(chunk).unwrap_or(u32::MAX), (bit / 64) as usize, 1 << (bit % 64))
}

/// Reads a block of the table: its records, `None` for one that is not in use.
///
/// # Errors
/// `Corrupt` for a block that is cut short, a chunk beyond the device, a count that its bitmap contradicts, and a first
/// chunk in which the superblocks are free.
pub fn parse(block: &[u8], layout: &Layout) -> Result<Vec<Option<Chunk>>> {
    let bad = |what| Error::corrupt(Structure::ChunkTable, what);
    let mut records = block.chunks_exact(DiskChunk::SIZE);
    let mut chunks = Vec::with_capacity(RECORDS as usize);
    for _ in 0..RECORDS {
        let bytes = records.next().ok_or_else(|| bad("cut short"))?;
        let disk = DiskChunk::read_from_bytes(bytes).map_err(|_| bad("cut short"))?;
        let Some(number) = disk.c_chunk.get().checked_sub(1) else {
            if bytes.iter().any(|byte| *byte != 0) {
                return Err(bad("an unused record is not empty"));
            }
            chunks.push(None);
            continue;
        };
        let chunk = Chunk { number, used: disk.c_bitmap.map(U64::get) };
        if number >= layout.chunks() {
            return Err(bad("a chunk lies beyond the device"));
        }
        if chunk.count() != disk.c_used.get() {
            return Err(bad("a count of blocks in use does not match its bitmap"));
        }
        if number == 0 && chunk.used[0] & 3 != 3 {
            return Err(bad("the superblocks' blocks are free"));
        }
        chunks.push(Some(chunk));
    }
    if block.get(RECORDS as usize * DiskChunk::SIZE..).is_some_and(|rest| rest.iter().any(|byte| *byte != 0)) {
        return Err(bad("the bytes after the records are not zero"));
    }
    Ok(chunks)
}

/// The bytes of a block of the table with the first [`RECORDS`] of these records.
#[must_use]
pub fn to_bytes(records: &[Option<Chunk>]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(super::BLOCK_SIZE as usize);
    for record in records.iter().take(RECORDS as usize) {
        match record {
            Some(chunk) => {
                let disk = DiskChunk {
                    c_chunk: (chunk.number + 1).into(),
                    c_used: chunk.count().into(),
                    c_bitmap: chunk.used.map(U64::new),
                };
                bytes.extend_from_slice(disk.as_bytes());
            }
            None => bytes.extend_from_slice(&[0; DiskChunk::SIZE]),
        }
    }
    bytes.resize(super::BLOCK_SIZE as usize, 0);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_of_the_table_is_read_as_it_was_written() {
        let layout = Layout::new(40000).unwrap();
        let mut records = vec![None; RECORDS as usize];
        records[0] = Some(Chunk::new(0));
        records[5] = Some(Chunk { used: [u64::MAX; WORDS], ..Chunk::new(77) });
        let bytes = to_bytes(&records);
        assert_eq!(parse(&bytes, &layout).unwrap(), records);
        assert_eq!((records[0].unwrap().count(), records[5].unwrap().count()), (2, 512));
        for (at, byte) in [(8, 1), (4, 9), (72, 0), (72 + 10, 1), (5 * 72, 79), (4095, 1)] {
            let mut wrong = bytes.clone();
            wrong[at] = byte;
            assert_eq!(parse(&wrong, &layout).is_err(), wrong != bytes, "byte {at}");
        }
        assert!(parse(&bytes[..1000], &layout).is_err());
        assert_eq!(bit_of(512 * 3 + 65), (3, 1, 2));
    }
}
