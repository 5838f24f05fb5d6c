//! The native superblock: the only structure with a fixed location. There are two, in blocks 0 and 1, written
//! alternately.
//!
//! A write of 4 KiB may be torn between sectors, so each sector ends with the number of the generation: a superblock is
//! valid if all eight agree and its checksum matches, and the valid one with the higher number is active.

use super::Layout;
use super::map::{BlockKind, DiskEntry, Entry, Position};
use crate::checksum::crc32c;
use crate::{Error, Result, Structure};
use std::collections::BTreeSet;
use std::mem::offset_of;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

/// `n_magic`
pub const MAGIC: [u8; 8] = *b"ExtantFS";
/// The version of the format in this module.
pub const VERSION: u32 = 1;
pub use super::layout::COPIES;

disk_struct! {
    /// An entry that is newer than the map.
    pub struct DiskMapLogEntry[40] {
        /// the index of the metadata block
        0x00 l_index: U64,
        /// its entry, which replaces that in the leaf
        0x08 l_entry: DiskEntry,
    }
}

disk_struct! {
    /// A sector of the native superblock after the first.
    pub struct DiskSector[512] {
        /// 0
        0x000 n_unused: [u8; 64],
        /// entries of the map log
        0x040 n_entries: [DiskMapLogEntry; 11],
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
        /// 1: in use by an engine without write order; 2: reserved blocks
        0x00C n_flags: U32,
        /// the volume's UUID, as in the ext4 superblock
        0x010 n_uuid: [u8; 16],
        /// blocks of the device that belong to the volume
        0x020 n_blocks: U64,
        /// the entry of the map's root node
        0x028 n_root: DiskEntry,
        /// records of the chunk table from its start; the last one is in use
        0x048 n_chunks: U32,
        /// records of the list of snapshots from its start; the last one is in use
        0x04C n_snapshots: U32,
        /// entries of the map log that are in use, in the order of the sectors; the others are 0
        0x050 n_log_entries: U32,
        /// 0
        0x054 n_reserved: [u8; 416],
        /// CRC32C of the 4 096 bytes, this field as 0
        0x1F4 n_checksum: U32,
        /// number of the generation
        0x1F8 n_generation: U64,
        /// seven more sectors
        0x200 n_sectors: [DiskSector; 7],
    }
}

/// Maximum distance of a torn superblock's number: each interrupted attempt to mount adds one.
const MOST_TRIED: u64 = 1 << 16;

/// Maximum number of consecutive attempts that may have been interrupted and completely overwritten in the superblock's
/// block.
const MOST_UNSEEN: u64 = 4;

/// Maximum valid generation number: no volume in use reaches a higher one, and numbers after it would run out.
pub const LAST_GENERATION: u64 = u64::MAX / 2;

/// Maximum generation number of a volume that is written: no single mount writes so many generations that it could
/// reach the last number from below this one.
pub const LAST_TO_WRITE: u64 = LAST_GENERATION - (1 << 40);

/// Capacity of the map log in entries.
pub const MAX_LOG_ENTRIES: usize = 77;

/// `n_flags`: in use by an engine without write order, so that a crash may leave any state.
const UNORDERED: u32 = 1;
/// `n_flags`: the blocks where other programs search for their superblocks are unused.
const RESERVED: u32 = 2;

/// A validated native superblock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NativeSuperblock {
    /// The volume's layout.
    pub layout: Layout,
    /// The volume's UUID.
    pub uuid: [u8; 16],
    /// Its generation.
    pub generation: u64,
    /// Whether the volume is in use by an engine without write order: after a crash it needs a check.
    pub unordered: bool,
    /// Whether [`HEAD`](super::HEAD) and [`Layout::backup_blocks`] are unused, so that no file data can be taken for
    /// the superblock of another file system.
    pub reserved: bool,
    /// The entry of the map's root.
    pub root: Entry,
    /// Records of the chunk table that may be in use, from its start.
    pub chunks: u32,
    /// Records of the list of snapshots that may be in use, from its start.
    pub snapshots: u32,
    /// The map log: entries that replace those in the leaves of the map, ascending by index; `None` for a free block.
    /// At most [`MAX_LOG_ENTRIES`]. The chunk table describes the map without them.
    pub map_log: Vec<(u64, Option<Entry>)>,
}

impl NativeSuperblock {
    /// Whether these bytes, the start of a device, look like a native volume, damaged or not.
    #[must_use]
    pub fn is_there(bytes: &[u8]) -> bool {
        bytes.starts_with(&MAGIC)
    }

    /// Reads one of the two superblocks.
    ///
    /// # Errors
    /// `Corrupt` where it is missing, torn or damaged; `Unsupported` for another version.
    pub fn parse(block: &[u8]) -> Result<Self> {
        let bad = |what| Error::corrupt(Structure::NativeSuperblock, what);
        let (disk, _) = DiskNativeSuperblock::read_from_prefix(block).map_err(|_| bad("cut short"))?;
        if disk.n_magic != MAGIC {
            return Err(bad("no magic number"));
        }
        if disk.n_sectors.iter().any(|sector| sector.n_generation != disk.n_generation) {
            return Err(bad("its sectors belong to different generations"));
        }
        if disk.n_checksum.get() != disk.checksum() {
            return Err(bad("checksum does not match"));
        }
        if disk.n_version.get() != VERSION {
            return Err(Error::Unsupported(format!("version {} of the native format", disk.n_version.get())));
        }
        let layout = Layout::new(disk.n_blocks.get())?;
        let root = Entry::parse(&disk.n_root, &layout)?.ok_or_else(|| bad("there is no map"))?;
        let mut sb = Self {
            layout,
            uuid: disk.n_uuid,
            generation: disk.n_generation.get(),
            unordered: disk.n_flags.get() & UNORDERED != 0,
            reserved: disk.n_flags.get() & RESERVED != 0,
            root,
            chunks: disk.n_chunks.get(),
            snapshots: disk.n_snapshots.get(),
            map_log: Vec::new(),
        };
        if disk.n_flags.get() & !(UNORDERED | RESERVED) != 0 {
            return Err(Error::Unsupported("a flag of the native format that this version does not know".to_owned()));
        }
        if sb.chunks > layout.chunks() || u64::from(sb.snapshots) > super::snapshots::MOST {
            return Err(bad("a count is out of range"));
        }
        if sb.generation > LAST_GENERATION {
            return Err(bad("its generation number is above the maximum"));
        }
        if root.generation > sb.generation || root.kind != BlockKind::MapNode {
            return Err(bad("its numbers contradict each other"));
        }
        let log_entries = usize::try_from(disk.n_log_entries.get()).unwrap_or(usize::MAX);
        if log_entries > MAX_LOG_ENTRIES {
            return Err(bad("a count is out of range"));
        }
        if disk.has_unused_bytes_set(log_entries) {
            return Err(bad("its unused bytes are set"));
        }
        for entry in disk.n_sectors.iter().flat_map(|sector| &sector.n_entries).take(log_entries) {
            let index = entry.l_index.get();
            if index >= layout.indexes() || sb.map_log.last().is_some_and(|(last, _)| *last >= index) {
                return Err(bad("its map log is not in order"));
            }
            let entry = Entry::parse(&entry.l_entry, &layout)?;
            if entry.is_some_and(|entry| entry.kind == BlockKind::MapNode) {
                return Err(bad("a map log entry leads to a node"));
            }
            if entry.is_none() && index < layout.front() {
                return Err(bad("a map log entry frees the superblock or descriptors of the volume above the map"));
            }
            sb.map_log.push((index, entry));
        }
        Ok(sb)
    }

    /// Whether a block that is not a valid superblock was one before, by the numbers at the ends of its sectors.
    #[must_use]
    pub fn was_there(block: &[u8]) -> bool {
        let Ok((disk, _)) = DiskNativeSuperblock::read_from_prefix(block) else { return false };
        let like = |number: u64| {
            let sectors = disk.n_sectors.iter().filter(|sector| sector.n_unused == [0; 64]);
            number != 0 && sectors.filter(|sector| sector.n_generation.get() == number).count() > 4
        };
        disk.n_sectors.iter().any(|sector| like(sector.n_generation.get()))
    }

    /// Whether an invalid block may be the result of a write torn by a power failure. The next generation is written
    /// over it.
    ///
    /// Such a block has sectors of its previous generation, which is the one before this one, and of attempts after
    /// this one. Each attempt has the number after the highest present one, so few are missing among them. Where only
    /// one sector's number differs, the sector must have had it before that attempt, or be the only written one of the
    /// next attempt.
    #[must_use]
    pub fn may_be_torn(&self, block: &[u8]) -> bool {
        let Some(numbers) = numbers(block) else { return false };
        // the very first generation has a block of zeros beside it
        let first = self.generation == 1;
        if first && block.iter().all(|byte| *byte == 0) {
            return true;
        }
        let near = |number: u64| (number != 0 || first) && number.abs_diff(self.generation) <= MOST_TRIED;
        let starts = block.starts_with(&MAGIC) || first && numbers[0] == 0;
        let distinct = BTreeSet::from(numbers);
        if !starts || !numbers.iter().all(|n| near(*n)) || distinct.len() < 2 || distinct.contains(&self.generation) {
            return false;
        }
        let before = distinct.range(..self.generation).count();
        let last = distinct.last().map_or(0, |last| last.saturating_sub(self.generation));
        let unseen = last.saturating_sub((distinct.len() - before) as u64);
        let fits = match Self::but_for_a_number(block) {
            Some((whole, sector)) if whole.generation > self.generation => match numbers[sector] {
                number if number < self.generation => self.generation - number <= MOST_UNSEEN + 1,
                number => number <= whole.generation.saturating_add(1),
            },
            _ => true,
        };
        before <= 1 && unseen <= MOST_UNSEEN && fits
    }

    /// The superblock in a block in which only the generation number of one sector is wrong, and that sector.
    #[must_use]
    pub fn but_for_a_number(block: &[u8]) -> Option<(Self, usize)> {
        let numbers = numbers(block)?;
        let count = |number: u64| numbers.iter().filter(|n| **n == number).count();
        let number = *numbers.iter().find(|number| count(**number) + 1 == numbers.len())?;
        let sector = numbers.iter().position(|n| *n != number)?;
        let mut block = block.get(..DiskNativeSuperblock::SIZE)?.to_vec();
        let at = sector * DiskSector::SIZE + offset_of!(DiskSector, n_generation);
        block.get_mut(at..at + 8)?.copy_from_slice(&number.to_le_bytes());
        Some((Self::parse(&block).ok()?, sector))
    }

    /// The superblock in a block that is damaged only by a number above its maximum. Instead of that number it has no
    /// snapshots, or the generation of its newest entry, as each generation writes one.
    #[must_use]
    pub fn but_for_a_maximum(block: &[u8]) -> Option<Self> {
        let (mut disk, _) = DiskNativeSuperblock::read_from_prefix(block).ok()?;
        let agree = disk.n_sectors.iter().all(|sector| sector.n_generation == disk.n_generation);
        if !agree || disk.n_checksum.get() != disk.checksum() {
            return None;
        }
        if u64::from(disk.n_snapshots.get()) > super::snapshots::MOST {
            disk.n_snapshots = 0u32.into();
        }
        if disk.n_generation.get() > LAST_GENERATION {
            let logged = disk.n_sectors.iter().flat_map(|sector| &sector.n_entries);
            let logged = logged.map(|entry| entry.l_entry.e_generation.get()).max().unwrap_or(0);
            let newest = logged.max(disk.n_root.e_generation.get());
            disk.n_generation = newest.into();
            disk.n_sectors.iter_mut().for_each(|sector| sector.n_generation = newest.into());
        }
        disk.n_checksum = disk.checksum().into();
        Self::parse(disk.as_bytes()).ok()
    }

    /// The generation number of a superblock that was written completely, whatever it contains.
    #[must_use]
    pub fn intact_generation(block: &[u8]) -> Option<u64> {
        let (disk, _) = DiskNativeSuperblock::read_from_prefix(block).ok()?;
        let agree = disk.n_sectors.iter().all(|sector| sector.n_generation == disk.n_generation);
        (disk.n_magic == MAGIC && agree && disk.n_checksum.get() == disk.checksum()).then(|| disk.n_generation.get())
    }

    /// The generation number of a damaged superblock beside this one, if enough of its sectors agree on it.
    #[must_use]
    pub fn number_of(&self, block: &[u8]) -> Option<u64> {
        let sectors = block.chunks_exact(DiskSector::SIZE).take(8);
        let numbers: Vec<u64> =
            sectors.filter_map(|sector| Some(DiskSector::read_from_bytes(sector).ok()?.n_generation.get())).collect();
        let count = |number: u64| numbers.iter().filter(|n| **n == number).count();
        let near = |number: u64| number != 0 && number.abs_diff(self.generation) <= MOST_TRIED;
        numbers.iter().copied().find(|number| near(*number) && count(*number) > 4)
    }

    /// The newest valid superblock in the blocks at the device's start, and its block.
    ///
    /// # Errors
    /// The error of the first one, where none is valid; [`Error::Unsupported`], where the newest one is of another
    /// version, whatever the other one is.
    pub fn newest(blocks: &[u8]) -> Result<(Self, u64)> {
        let size = DiskNativeSuperblock::SIZE;
        let block = |n: u64| blocks.get(n as usize * size..);
        let parsed = (0..COPIES).map(|n| (block(n).map_or(Ok(None), |b| Self::parse(b).map(Some)), n));
        let (mut first_error, mut unsupported) = (None, None);
        let mut best: Option<(Self, u64)> = None;
        for (outcome, n) in parsed {
            match outcome {
                Ok(Some(sb)) if best.as_ref().is_none_or(|(best, _)| best.generation < sb.generation) => {
                    best = Some((sb, n))
                }
                Ok(_) => {}
                Err(e @ Error::Unsupported(_)) => unsupported = Some((block(n).and_then(Self::intact_generation), e)),
                Err(e) => first_error = first_error.or(Some(e)),
            }
        }
        if let Some((generation, error)) = unsupported
            && best.as_ref().is_none_or(|(best, _)| Some(best.generation) < generation)
        {
            return Err(error);
        }
        best.ok_or_else(|| first_error.unwrap_or_else(|| Error::corrupt(Structure::NativeSuperblock, "cut short")))
    }

    /// The highest generation number in any sector of the two superblocks, at the start of `blocks`: that of a torn
    /// superblock, or this one's. A later generation must have a higher number, or sectors of the torn superblock and
    /// of a later torn one could together be taken for a valid one. Numbers far beyond this one's do not come from torn
    /// writes and are ignored.
    #[must_use]
    pub fn last_tried(&self, blocks: &[u8]) -> u64 {
        let sectors = blocks.chunks_exact(DiskSector::SIZE).take(COPIES as usize * 8);
        let numbers = sectors.filter_map(|sector| Some(DiskSector::read_from_bytes(sector).ok()?.n_generation.get()));
        let tried = numbers.filter(|number| number.checked_sub(self.generation).is_some_and(|more| more <= MOST_TRIED));
        tried.max().unwrap_or(self.generation)
    }

    /// The bytes of the superblock: a whole block.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let Ok(mut disk) = DiskNativeSuperblock::read_from_bytes(&[0; DiskNativeSuperblock::SIZE]) else {
            unreachable!("the array has the structure's size")
        };
        disk.n_magic = MAGIC;
        disk.n_version = VERSION.into();
        let flag = |set: bool, flag: u32| if set { flag } else { 0 };
        disk.n_flags = (flag(self.unordered, UNORDERED) | flag(self.reserved, RESERVED)).into();
        disk.n_uuid = self.uuid;
        disk.n_blocks = self.layout.blocks().into();
        disk.n_root = self.root.to_disk();
        disk.n_chunks = self.chunks.into();
        disk.n_snapshots = self.snapshots.into();
        disk.n_log_entries = (self.map_log.len().min(MAX_LOG_ENTRIES) as u32).into();
        let slots = disk.n_sectors.iter_mut().flat_map(|sector| &mut sector.n_entries);
        for (slot, (index, entry)) in slots.zip(&self.map_log) {
            slot.l_index = (*index).into();
            if let Some(entry) = entry {
                slot.l_entry = entry.to_disk();
            }
        }
        disk.n_generation = self.generation.into();
        disk.n_sectors.iter_mut().for_each(|sector| sector.n_generation = self.generation.into());
        disk.n_checksum = disk.checksum().into();
        disk.as_bytes().to_vec()
    }

    /// The seed of all checksums of the volume.
    #[must_use]
    pub fn seed(&self) -> u32 {
        crc32c(!0, &self.uuid)
    }

    /// The position that the root node's checksum covers in addition to its bytes.
    #[must_use]
    pub fn root_position(&self) -> Position {
        Position::Node { level: self.layout.levels() - 1, number: 0 }
    }
}

/// The numbers at the ends of a superblock's sectors.
fn numbers(block: &[u8]) -> Option<[u64; 8]> {
    let (disk, _) = DiskNativeSuperblock::read_from_prefix(block).ok()?;
    let mut numbers = [disk.n_generation.get(); 8];
    numbers.iter_mut().skip(1).zip(&disk.n_sectors).for_each(|(number, sector)| *number = sector.n_generation.get());
    Some(numbers)
}

impl DiskNativeSuperblock {
    /// Whether unused bytes, including those after the entries of the map log in use, are not all zeros. A count of
    /// entries that is too low would otherwise restore older states of blocks.
    fn has_unused_bytes_set(&self, log_entries: usize) -> bool {
        let behind = self.n_sectors.iter().flat_map(|sector| &sector.n_entries).skip(log_entries);
        let mut unused = self.n_sectors.iter().map(|sector| &sector.n_unused[..]).chain([&self.n_reserved[..]]);
        let mut entries = behind.map(IntoBytes::as_bytes);
        let set = |bytes: &[u8]| bytes.iter().any(|byte| *byte != 0);
        unused.any(set) || entries.any(set)
    }

    /// The correct value of `n_checksum`.
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

    fn superblock(generation: u64) -> NativeSuperblock {
        let root = Entry { physical: 77, generation, kind: BlockKind::MapNode, owner: 0, checksum: 0xABCD };
        NativeSuperblock {
            layout: Layout::new(40000).unwrap(),
            uuid: [7; 16],
            generation,
            unordered: false,
            reserved: true,
            root,
            chunks: 3,
            snapshots: 1,
            map_log: Vec::new(),
        }
    }

    /// A superblock with a full map log.
    fn full(generation: u64) -> NativeSuperblock {
        let entry = |n: u64| Entry {
            physical: 100 + n,
            generation: 0xEF53_EF53,
            kind: BlockKind::InodeTable,
            ..superblock(1).root
        };
        let map_log = (0..MAX_LOG_ENTRIES as u64).map(|n| (3 * n, (n % 5 != 2).then(|| entry(n)))).collect();
        NativeSuperblock { map_log, ..superblock(generation) }
    }

    #[test]
    fn what_is_written_is_read() {
        for sb in [
            superblock(9),
            full(0xEF53_EF53),
            NativeSuperblock { unordered: true, reserved: false, ..superblock(LAST_GENERATION) },
        ] {
            let bytes = sb.to_bytes();
            assert_eq!(NativeSuperblock::parse(&bytes), Ok(sb));
            assert_ne!(bytes[1080..1082], crate::superblock::MAGIC.to_le_bytes(), "it looks like an ext volume");
        }
    }

    #[test]
    fn map_log_entries_are_in_order_and_no_more_than_there_is_space_for() {
        let map_log = full(9).map_log;
        for (wrong, why) in [
            (vec![map_log[1], map_log[0]], "order"),
            (vec![map_log[0], map_log[0]], "order"),
            (vec![(u64::MAX, None)], "order"),
            (vec![(0, Some(superblock(9).root))], "node"),
        ] {
            let refused = NativeSuperblock::parse(&NativeSuperblock { map_log: wrong, ..superblock(9) }.to_bytes());
            assert!(refused.is_err_and(|e| e.to_string().contains(why)));
        }
        // an entry of zeroes, too, as read from the space after the last entry by a count that is too high
        let freed = NativeSuperblock { map_log: vec![(0, None)], ..superblock(9) }.to_bytes();
        assert!(NativeSuperblock::parse(&freed).is_err_and(|e| e.to_string().contains("frees the superblock")));
        assert_eq!(superblock(8).number_of(&freed), Some(9));
        assert!(!superblock(8).may_be_torn(&freed));
        let Ok(mut disk) = DiskNativeSuperblock::read_from_bytes(&full(9).to_bytes()) else { panic!("the size") };
        disk.n_log_entries = (MAX_LOG_ENTRIES as u32 + 1).into();
        disk.n_checksum = disk.checksum().into();
        assert!(NativeSuperblock::parse(disk.as_bytes()).is_err());
    }

    #[test]
    fn nothing_stands_where_nothing_is_in_use() {
        let change = |change: &dyn Fn(&mut DiskNativeSuperblock)| {
            let Ok(mut disk) = DiskNativeSuperblock::read_from_bytes(&full(9).to_bytes()) else { panic!("the size") };
            change(&mut disk);
            disk.n_checksum = disk.checksum().into();
            NativeSuperblock::parse(disk.as_bytes())
        };
        assert!(change(&|_| ()).is_ok());
        for refused in [
            change(&|disk| disk.n_reserved[400] = 1),
            change(&|disk| disk.n_sectors[6].n_unused[63] = 1),
            // the last entry of the map log would be one that is not in use
            change(&|disk| disk.n_log_entries = (MAX_LOG_ENTRIES as u32 - 1).into()),
        ] {
            assert!(refused.is_err_and(|e| e.to_string().contains("unused")));
        }
    }

    #[test]
    fn the_newest_whole_one_counts() {
        let (old, new) = (superblock(8).to_bytes(), superblock(9).to_bytes());
        let both = [new.clone(), old.clone()].concat();
        assert_eq!(NativeSuperblock::newest(&both).unwrap(), (superblock(9), 0));
        // any state of a torn write of 9 over 7 leaves 8 or yields 9
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
    fn what_a_crash_leaves_is_distinguished_from_damage() {
        let (current, new) = (superblock(8), superblock(9).to_bytes());
        let before = superblock(7).to_bytes();
        for sectors in 1..255u32 {
            let mut torn = before.clone();
            for n in (0..8).filter(|n| sectors & 1 << n != 0) {
                torn[n * 512..][..512].copy_from_slice(&new[n * 512..][..512]);
            }
            assert!(current.may_be_torn(&torn), "{sectors:b}");
        }
        for (at, bytes) in [(700, 1..2usize), (508, 0..4), (0, 0..4096), (0, 0..512), (512, 0..512), (4088, 0..8)] {
            for fill in [0, 0xA5] {
                let mut wrong = new.clone();
                wrong[at..][bytes.clone()].iter_mut().for_each(|byte| *byte = fill);
                if NativeSuperblock::parse(&wrong).is_err() {
                    assert!(!current.may_be_torn(&wrong), "{fill:#x} at {at}");
                }
                let most = bytes.len() <= 512;
                assert_eq!(current.number_of(&wrong), most.then_some(9));
                assert_eq!(NativeSuperblock::was_there(&wrong), most);
            }
        }
        // a volume of one generation has no other superblock yet
        assert!(superblock(1).may_be_torn(&vec![0; 4096]) && !current.may_be_torn(&vec![0; 4096]));
    }

    /// No torn write leaves these numbers in one sector.
    #[test]
    fn a_number_that_no_crash_leaves_is_damage() {
        let sector = |bytes: &[u8], n: usize, number: u64| {
            let mut bytes = bytes.to_vec();
            bytes[n * 512 + 504..][..8].copy_from_slice(&number.to_le_bytes());
            bytes
        };
        // the highest number has no successor
        let highest = sector(&superblock(u64::MAX).to_bytes(), 1, u64::MAX - 1);
        assert!(superblock(u64::MAX - 2).may_be_torn(&highest));
        let current = superblock(8);
        for n in 0..8 {
            let whole = superblock(9);
            for number in [0, 1, 8, 11, 13, 9 + 16, 9 + 1024, 9 + (1 << 40), u64::MAX] {
                let wrong = sector(&whole.to_bytes(), n, number);
                assert!(!current.may_be_torn(&wrong), "{number} in sector {n}");
                assert_eq!(NativeSuperblock::but_for_a_number(&wrong), Some((whole.clone(), n)));
            }
            // the previous content, and the only written sector of the next attempt
            for number in [7, 10] {
                assert!(current.may_be_torn(&sector(&whole.to_bytes(), n, number)), "{number} in sector {n}");
            }
            // the previous generation, with a number that it never had
            for number in [8, 6, 7 + 16] {
                assert!(!current.may_be_torn(&sector(&superblock(7).to_bytes(), n, number)), "{number} in sector {n}");
            }
        }
        let mut wrong = sector(&superblock(9).to_bytes(), 3, 25);
        wrong[100] ^= 1;
        assert_eq!(NativeSuperblock::but_for_a_number(&wrong), None);
        assert_eq!(NativeSuperblock::but_for_a_number(&superblock(9).to_bytes()), None);
    }

    /// A number above its maximum is damage, and can be replaced where the entries show the correct one.
    #[test]
    fn a_number_above_its_maximum_is_damage() {
        let most = u32::try_from(crate::native::snapshots::MOST).unwrap();
        let (whole, current) = (superblock(9), superblock(8));
        for wrong in [
            NativeSuperblock { generation: LAST_GENERATION + 1, ..whole.clone() },
            NativeSuperblock { generation: u64::MAX, ..whole.clone() },
            NativeSuperblock { snapshots: most + 1, ..whole.clone() },
        ] {
            let bytes = wrong.to_bytes();
            assert!(NativeSuperblock::parse(&bytes).is_err() && !current.may_be_torn(&bytes), "{wrong:?}");
            let both = [bytes.clone(), current.to_bytes()].concat();
            assert_eq!(NativeSuperblock::newest(&both), Ok((current.clone(), 1)));
            let found = NativeSuperblock::but_for_a_maximum(&bytes).expect("a superblock");
            assert_eq!(NativeSuperblock { snapshots: 1, ..found }, whole);
            // other damage remains damage
            let mut other = bytes.clone();
            other[100] ^= 1;
            assert_eq!(NativeSuperblock::but_for_a_maximum(&other), None);
        }
        let most = NativeSuperblock { snapshots: most, ..whole };
        assert_eq!(NativeSuperblock::parse(&most.to_bytes()), Ok(most));
    }

    /// A crash while 9 is written, and another while the next mount overwrites the torn superblock.
    #[test]
    fn two_torn_superblocks_make_no_whole_one() {
        let before = superblock(8);
        let (old, first) = (before.to_bytes(), superblock(9).to_bytes());
        let sector = |bytes: &[u8], n: usize| bytes[n * 512..][..512].to_vec();
        for missing in 1..8 {
            let mut torn = first.clone();
            torn[missing * 512..][..512].fill(0);
            let number = before.last_tried(&[torn.clone(), old.clone()].concat()) + 1;
            let next = NativeSuperblock { chunks: 2, ..superblock(number) }.to_bytes();
            for sectors in 0..255u32 {
                let mixed = (0..8).flat_map(|n| sector(if sectors & 1 << n != 0 { &next } else { &torn }, n)).collect();
                let (found, _) = NativeSuperblock::newest(&[mixed, old.clone()].concat()).unwrap();
                assert_eq!(found.generation, 8);
            }
        }
        let garbage = vec![0xFE; 4096];
        assert_eq!(before.last_tried(&[garbage, old].concat()), 8);
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
