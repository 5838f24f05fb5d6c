//! A slot of the list: encoding and parsing.

use super::{
    DiskListCopy, DiskListFresh, DiskListGroup, DiskListInode, DiskListPointers, DiskListRun, DiskListSlot,
    INODE_SIZE_MAX, MAGIC, SECTOR, WHOLE,
};
use crate::checksum::crc32c;
use crate::{Error, Result, Structure};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// A changed sector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Copied {
    /// Its location and checksums.
    pub head: DiskListCopy,
    /// Its content after the generation.
    pub after: Box<[u8; SECTOR]>,
}

/// A slot: one generation of changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    /// Its header. Counts, length and checksum are set by [`Slot::encode`].
    pub header: DiskListSlot,
    /// Inodes, each once.
    pub inodes: Vec<DiskListInode>,
    /// Pointers in indirect blocks.
    pub pointers: Vec<DiskListPointers>,
    /// Blocks allocated or freed.
    pub runs: Vec<DiskListRun>,
    /// Groups, each once.
    pub groups: Vec<DiskListGroup>,
    /// Blocks of metadata that are written with the slot.
    pub fresh: Vec<DiskListFresh>,
    /// Inode table slots of the inodes with [`WHOLE`](super::WHOLE), in their order.
    pub whole: Vec<Box<[u8]>>,
    /// Changed sectors of directories and attributes.
    pub copies: Vec<Copied>,
}

fn bad(what: &'static str) -> Error {
    Error::corrupt(Structure::LinkedList, what)
}

fn take<'a>(rest: &mut &'a [u8], len: usize) -> Result<&'a [u8]> {
    let (head, tail) = rest.split_at_checked(len).ok_or_else(|| bad("a slot is cut short"))?;
    *rest = tail;
    Ok(head)
}

/// Removes `count` structures from the front of `rest`. Memory is limited by the length of `rest`, whatever the count.
fn parts<T: FromBytes + KnownLayout + Immutable + Copy>(rest: &mut &[u8], count: u32) -> Result<Vec<T>> {
    let len = (count as usize).checked_mul(size_of::<T>()).ok_or_else(|| bad("a slot's counts are too large"))?;
    let bytes = take(rest, len)?;
    Ok(bytes.chunks_exact(size_of::<T>()).filter_map(|chunk| T::read_from_bytes(chunk).ok()).collect())
}

impl Slot {
    /// A slot without changes, for inodes of `inode_size` bytes.
    #[must_use]
    pub fn empty(uuid: [u8; 16], counter: u64, block_size: u32, inode_size: u32) -> Self {
        let mut header = DiskListSlot::new_zeroed();
        header.ll_magic = MAGIC.into();
        header.ll_uuid = uuid;
        header.ll_counter = counter.into();
        header.ll_block_size = block_size.into();
        header.ll_inode_size = inode_size.into();
        let (inodes, pointers, runs, groups) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { header, inodes, pointers, runs, groups, fresh: Vec::new(), whole: Vec::new(), copies: Vec::new() }
    }

    /// Its encoded size in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.records_len() + self.copies.len() * (DiskListCopy::SIZE + SECTOR)
    }

    /// Its encoded size in bytes without the copies.
    #[must_use]
    pub fn records_len(&self) -> usize {
        DiskListSlot::SIZE
            + self.inodes.len() * DiskListInode::SIZE
            + self.pointers.len() * DiskListPointers::SIZE
            + self.runs.len() * DiskListRun::SIZE
            + self.groups.len() * DiskListGroup::SIZE
            + self.fresh.len() * DiskListFresh::SIZE
            + self.whole.iter().map(|slot| slot.len()).sum::<usize>()
    }

    /// Whether it has no changes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == DiskListSlot::SIZE
    }

    /// Drops all its changes and sets [`INCOMPLETE`](super::INCOMPLETE).
    pub fn make_incomplete(&mut self) {
        let mut header = self.header;
        header.ll_flags = (header.ll_flags.get() | super::INCOMPLETE).into();
        *self = Self { header, ..Self::empty(header.ll_uuid, 0, 0, 0) };
    }

    /// The bytes with the counts and the checksum in the header, a multiple of the sector size.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let len = self.len();
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX).into();
        let mut header = self.header;
        header.ll_checksum = 0.into();
        header.ll_length = count(len);
        header.ll_inodes = count(self.inodes.len());
        header.ll_pointers = count(self.pointers.len());
        header.ll_runs = count(self.runs.len());
        header.ll_groups = count(self.groups.len());
        header.ll_fresh = count(self.fresh.len());
        header.ll_whole = count(self.whole.len());
        header.ll_copies = count(self.copies.len());
        let mut bytes = Vec::with_capacity(len.next_multiple_of(SECTOR));
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(self.inodes.as_bytes());
        bytes.extend_from_slice(self.pointers.as_bytes());
        bytes.extend_from_slice(self.runs.as_bytes());
        bytes.extend_from_slice(self.groups.as_bytes());
        bytes.extend_from_slice(self.fresh.as_bytes());
        self.whole.iter().for_each(|slot| bytes.extend_from_slice(slot));
        for copy in &self.copies {
            bytes.extend_from_slice(copy.head.as_bytes());
            bytes.extend_from_slice(&*copy.after);
        }
        let checksum = crc32c(!0, &bytes);
        if let Some(place) = bytes.get_mut(4..8) {
            place.copy_from_slice(&checksum.to_le_bytes());
        }
        bytes.resize(len.next_multiple_of(SECTOR), 0);
        bytes
    }

    /// Reads a slot from its area. Uses at most the memory of `area`.
    ///
    /// # Errors
    /// `Corrupt` where it is incomplete or damaged: no magic number, an impossible length, a wrong checksum, counts
    /// that do not match the length, a copy outside its block or with a wrong checksum.
    pub fn parse(area: &[u8]) -> Result<Self> {
        let (mut header, _) = DiskListSlot::read_from_prefix(area).map_err(|_| bad("a slot is cut short"))?;
        if header.ll_magic.get() != MAGIC {
            return Err(bad("a slot has no magic number"));
        }
        let used = area.get(..header.ll_length.get() as usize).ok_or_else(|| bad("a slot is longer than its area"))?;
        let mut rest = used.get(DiskListSlot::SIZE..).ok_or_else(|| bad("a slot is shorter than its header"))?;
        let checksum = header.ll_checksum.get();
        header.ll_checksum = 0.into();
        if crc32c(crc32c(!0, header.as_bytes()), rest) != checksum {
            return Err(bad("the checksum of a slot does not match"));
        }
        header.ll_checksum = checksum.into();
        let (block_size, inode_size) = (header.ll_block_size.get(), header.ll_inode_size.get());
        if !block_size.is_power_of_two() || !(1024..=65536).contains(&block_size) {
            return Err(bad("a slot is for an impossible block size"));
        }
        if !inode_size.is_power_of_two() || !(128..=INODE_SIZE_MAX).contains(&inode_size) {
            return Err(bad("a slot is for an impossible inode size"));
        }
        let rest = &mut rest;
        let inodes: Vec<DiskListInode> = parts(rest, header.ll_inodes.get())?;
        let pointers: Vec<DiskListPointers> = parts(rest, header.ll_pointers.get())?;
        let runs = parts(rest, header.ll_runs.get())?;
        let groups = parts(rest, header.ll_groups.get())?;
        let fresh = parts(rest, header.ll_fresh.get())?;
        let whole = (header.ll_whole.get() as usize)
            .checked_mul(inode_size as usize)
            .ok_or_else(|| bad("a slot's counts are too large"))?;
        let whole: Vec<Box<[u8]>> = take(rest, whole)?.chunks_exact(inode_size as usize).map(Box::from).collect();
        if inodes.iter().filter(|inode| inode.li_flags.get() & WHOLE != 0).count() != whole.len() {
            return Err(bad("a slot's number of whole inodes is wrong"));
        }
        if pointers.iter().any(|p| (u32::from(p.lp_index.get()) + u32::from(p.lp_count.get())) * 4 > block_size) {
            return Err(bad("a slot has pointers beyond their block"));
        }
        let mut copies = Vec::new();
        for _ in 0..header.ll_copies.get() {
            copies.push(Self::copy(rest, block_size)?);
        }
        if !rest.is_empty() {
            return Err(bad("a slot is longer than its counts"));
        }
        Ok(Self { header, inodes, pointers, runs, groups, fresh, whole, copies })
    }

    fn copy(rest: &mut &[u8], block_size: u32) -> Result<Copied> {
        let head = take(rest, DiskListCopy::SIZE)?;
        let head = DiskListCopy::read_from_bytes(head).map_err(|_| bad("a slot is cut short"))?;
        let after = take(rest, SECTOR)?;
        if (u32::from(head.lc_sector.get()) + 1) * SECTOR as u32 > block_size {
            return Err(bad("a slot has a sector beyond its block"));
        }
        if super::sum(after) != head.lc_after.get() {
            return Err(bad("a slot has a sector with another checksum"));
        }
        let after = <[u8; SECTOR]>::try_from(after).map_err(|_| bad("a slot is cut short"))?;
        Ok(Copied { head, after: Box::new(after) })
    }
}
