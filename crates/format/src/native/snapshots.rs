//! The list of snapshots: generations that are pinned.
//!
//! A snapshot is the root of the map at the end of a generation. A physical block or a block of file data is free if
//! neither the live generation nor any snapshot uses it; each records its blocks in its own chunk table and bitmaps, so
//! nothing else has to be stored.

use super::map::{DiskEntry, Entry};
use super::{BLOCK_SIZE, Layout};
use crate::{Error, Result, Structure};
use zerocopy::little_endian::{I64, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

/// Records of a block of the list.
pub const RECORDS: usize = BLOCK_SIZE as usize / DiskSnapshot::SIZE;
pub use super::layout::LIST_BLOCKS as BLOCKS;
/// Maximum number of snapshots of a volume.
pub const MOST: u64 = BLOCKS * RECORDS as u64;
/// Maximum length of a snapshot's name in bytes.
pub const NAME_LEN: usize = 128;

disk_struct! {
    /// A record of the list of snapshots.
    pub struct DiskSnapshot[256] {
        /// its name, padded with zeros; all zeros for a record that is not in use
        0x00 s_name: [u8; 128],
        /// the root of the map, as in its generation's superblock
        0x80 s_root: DiskEntry,
        /// number of the generation, as in the entry of the root
        0xA0 s_generation: U64,
        /// time of creation, seconds since 1970
        0xA8 s_time: I64,
        /// `n_chunks` of its generation
        0xB0 s_chunks: U32,
        /// 0
        0xB4 s_reserved: [u8; 76],
    }
}

/// A generation that is pinned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The name: 1 to [`NAME_LEN`] bytes without zero and `/`.
    pub name: Vec<u8>,
    /// The entry of the root of its map.
    pub root: Entry,
    /// Its generation.
    pub generation: u64,
    /// Time of creation, in seconds since 1970.
    pub time: i64,
    /// Records of its chunk table that may be in use.
    pub chunks: u32,
}

impl Snapshot {
    /// Whether a name is valid for a snapshot.
    #[must_use]
    pub fn is_name(name: &[u8]) -> bool {
        (1..=NAME_LEN).contains(&name.len())
            && !name.iter().any(|byte| matches!(byte, 0 | b'/'))
            && name != b"."
            && name != b".."
    }
}

/// Reads a block of the list: its records, `None` for one that is not in use.
///
/// # Errors
/// `Corrupt` for a truncated block, and for a record that contradicts itself.
pub fn parse(block: &[u8], layout: &Layout) -> Result<Vec<Option<Snapshot>>> {
    let bad = |what| Error::corrupt(Structure::SnapshotList, what);
    let mut records = block.chunks_exact(DiskSnapshot::SIZE);
    let mut list = Vec::with_capacity(RECORDS);
    for _ in 0..RECORDS {
        let bytes = records.next().ok_or_else(|| bad("cut short"))?;
        if bytes.iter().all(|byte| *byte == 0) {
            list.push(None);
            continue;
        }
        let disk = DiskSnapshot::read_from_bytes(bytes).map_err(|_| bad("cut short"))?;
        let len = disk.s_name.iter().position(|byte| *byte == 0).unwrap_or(NAME_LEN);
        let (name, rest) = disk.s_name.split_at(len);
        if !Snapshot::is_name(name) || rest.iter().any(|byte| *byte != 0) {
            return Err(bad("a name is invalid"));
        }
        let root = Entry::parse(&disk.s_root, layout)?.ok_or_else(|| bad("a snapshot has no map"))?;
        if disk.s_reserved != [0; 76] {
            return Err(bad("a record's unused bytes are set"));
        }
        if root.generation > disk.s_generation.get() || disk.s_chunks.get() > layout.chunks() {
            return Err(bad("a snapshot's numbers contradict each other"));
        }
        list.push(Some(Snapshot {
            name: name.to_vec(),
            root,
            generation: disk.s_generation.get(),
            time: disk.s_time.get(),
            chunks: disk.s_chunks.get(),
        }));
    }
    Ok(list)
}

/// The bytes of a block of the list with the first [`RECORDS`] of these records.
#[must_use]
pub fn to_bytes(records: &[Option<Snapshot>]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(BLOCK_SIZE as usize);
    for record in records.iter().take(RECORDS) {
        let Some(snapshot) = record else {
            bytes.extend_from_slice(&[0; DiskSnapshot::SIZE]);
            continue;
        };
        let mut name = [0; NAME_LEN];
        name.iter_mut().zip(&snapshot.name).for_each(|(to, from)| *to = *from);
        let disk = DiskSnapshot {
            s_name: name,
            s_root: snapshot.root.to_disk(),
            s_generation: snapshot.generation.into(),
            s_time: snapshot.time.into(),
            s_chunks: snapshot.chunks.into(),
            s_reserved: [0; 76],
        };
        bytes.extend_from_slice(disk.as_bytes());
    }
    bytes.resize(BLOCK_SIZE as usize, 0);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::native::map::BlockKind;

    #[test]
    fn a_block_of_the_list_is_read_as_it_was_written() {
        let layout = Layout::new(40000).unwrap();
        let root = Entry { physical: 700, generation: 4, kind: BlockKind::MapNode, owner: 0, checksum: 1 };
        let named = |name: &[u8]| Snapshot { name: name.to_vec(), root, generation: 4, time: -5, chunks: 2 };
        let mut records = vec![None; RECORDS];
        records[0] = Some(named(b"monday"));
        records[15] = Some(named(&[b'x'; NAME_LEN]));
        let bytes = to_bytes(&records);
        assert_eq!(parse(&bytes, &layout).unwrap(), records);
        for (at, byte) in [(0, 0), (1, b'/'), (100, 1), (0x90, 99), (0xA0, 3), (0xB2, 9), (0xB4, 1), (0xFF, 1)] {
            let mut wrong = bytes.clone();
            wrong[at] = byte;
            assert!(parse(&wrong, &layout).is_err(), "byte {at}");
        }
        assert!(parse(&bytes[..4000], &layout).is_err());
        assert!(!Snapshot::is_name(b"") && !Snapshot::is_name(b"..") && !Snapshot::is_name(&[b'x'; NAME_LEN + 1]));
    }
}
