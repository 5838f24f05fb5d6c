//! The ext volume in a native volume's map, for reading, and the checksums of the map.

use blockdev::{BlockDevice, Geometry, Op, Result};
use format::FsBlock;
use format::native::map::{DiskEntry, ENTRIES, Position};
use format::native::superblock::{COPIES, DiskNativeSuperblock, NativeSuperblock};
use format::native::{BLOCK_SIZE, Layout};
use std::collections::{BTreeMap, HashMap};
use std::mem::offset_of;
use zerocopy::{FromBytes, IntoBytes};

const BLOCK: usize = BLOCK_SIZE as usize;

/// The byte offsets on the device of a block and of the entry that leads to it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mapped {
    pub(crate) at: usize,
    pub(crate) entry: usize,
}

/// The map of an intact native volume.
#[derive(Debug)]
pub(crate) struct Map {
    pub(crate) layout: Layout,
    seed: u32,
    /// The active superblock.
    pub(crate) superblock: usize,
    /// The nodes, parents before children.
    pub(crate) nodes: Vec<(Position, Mapped)>,
    /// Blocks by index.
    pub(crate) blocks: BTreeMap<u64, Mapped>,
}

fn physical(bytes: &[u8], entry: usize) -> u64 {
    let disk = bytes.get(entry..).and_then(|rest| DiskEntry::read_from_prefix(rest).ok());
    disk.map_or(0, |(disk, _)| disk.e_physical.get())
}

/// The byte offset of the block that an entry leads to.
fn leads_to(bytes: &[u8], entry: usize) -> Option<usize> {
    let at = usize::try_from(physical(bytes, entry)).ok()?.checked_mul(BLOCK)?;
    (at > 0 && at.checked_add(BLOCK)? <= bytes.len()).then_some(at)
}

impl Map {
    /// The map of a volume, which must be intact; `None` where it is not native.
    pub(crate) fn of(bytes: &[u8]) -> crate::error::Result<Option<Self>> {
        if !NativeSuperblock::is_there(bytes) {
            return Ok(None);
        }
        let (sb, number) = NativeSuperblock::newest(bytes)?;
        let superblock = number as usize * BLOCK;
        let (seed, layout) = (sb.seed(), sb.layout);
        let mut map = Self { layout, seed, superblock, nodes: Vec::new(), blocks: BTreeMap::new() };
        let mut above = vec![(0u64, superblock + offset_of!(DiskNativeSuperblock, n_root))];
        for level in (0..layout.levels()).rev() {
            let mut below = Vec::new();
            for (number, entry) in above {
                let Some(at) = leads_to(bytes, entry) else { continue };
                map.nodes.push((Position::Node { level, number }, Mapped { at, entry }));
                let slots =
                    (0..ENTRIES).map(|slot| (number * ENTRIES as u64 + slot as u64, at + slot * DiskEntry::SIZE));
                below.extend(slots.filter(|(_, entry)| physical(bytes, *entry) != 0));
            }
            above = below;
        }
        for (index, entry) in above {
            if let Some(at) = leads_to(bytes, entry) {
                map.blocks.insert(index, Mapped { at, entry });
            }
        }
        for (index, entry) in map_log(bytes, superblock) {
            match leads_to(bytes, entry) {
                Some(at) => _ = map.blocks.insert(index, Mapped { at, entry }),
                None => _ = map.blocks.remove(&index),
            }
        }
        Ok(Some(map))
    }

    /// Corrects the checksums of all entries, children first, and those of the superblocks.
    pub(crate) fn set_checksum(&self, bytes: &mut [u8]) {
        let blocks = self.blocks.iter().map(|(index, mapped)| (Position::Block(*index), *mapped));
        for (position, mapped) in blocks.chain(self.nodes.iter().rev().copied()) {
            let Some(at) = leads_to(bytes, mapped.entry) else { continue };
            let Some(block) = bytes.get(at..at + BLOCK) else { continue };
            let sum = position.checksum(self.seed, block).to_le_bytes();
            let field = mapped.entry + offset_of!(DiskEntry, e_checksum);
            if let Some(field) = bytes.get_mut(field..field + sum.len()) {
                field.copy_from_slice(&sum);
            }
        }
        for block in bytes.chunks_mut(BLOCK).take(COPIES as usize) {
            if let Ok(mut disk) = DiskNativeSuperblock::read_from_bytes(block)
                && NativeSuperblock::is_there(block)
            {
                disk.n_checksum = disk.checksum().into();
                block.copy_from_slice(disk.as_bytes());
            }
        }
    }
}

/// The index and the byte offset of each map log entry.
fn map_log(bytes: &[u8], superblock: usize) -> Vec<(u64, usize)> {
    let disk = bytes.get(superblock..).and_then(|rest| DiskNativeSuperblock::read_from_prefix(rest).ok());
    let Some((disk, _)) = disk else { return Vec::new() };
    let start = offset_of!(DiskNativeSuperblock, n_sectors);
    let (sector, log_entry) = (size_of_val(&disk.n_sectors[0]), size_of_val(&disk.n_sectors[0].n_entries[0]));
    let first = 64;
    let offsets = (0..disk.n_sectors.len())
        .flat_map(|n| (0..disk.n_sectors[n].n_entries.len()).map(move |m| start + n * sector + first + m * log_entry));
    let indexes = disk.n_sectors.iter().flat_map(|sector| &sector.n_entries).map(|entry| entry.l_index.get());
    indexes.zip(offsets.map(|at| at + 8)).take(disk.n_log_entries.get() as usize).collect()
}

/// The ext volume in a volume's bytes.
pub(crate) struct View<'a> {
    bytes: &'a [u8],
    /// The location of each metadata block, for native volumes.
    mapped: Option<(Layout, HashMap<u64, usize>)>,
}

impl<'a> View<'a> {
    pub(crate) fn new(bytes: &'a [u8], map: Option<&Map>) -> Self {
        let mapped = map.map(|map| {
            let known =
                map.blocks.iter().filter_map(|(index, mapped)| Some((map.layout.block_of(*index)?.get(), mapped.at)));
            (map.layout, known.collect())
        });
        Self { bytes, mapped }
    }

    /// The byte offset on the device of a byte of the ext volume.
    pub(crate) fn physical(&self, offset: u64) -> Option<usize> {
        let Some((layout, known)) = &self.mapped else { return usize::try_from(offset).ok() };
        let (block, within) = (offset / BLOCK as u64, (offset % BLOCK as u64) as usize);
        match known.get(&block) {
            Some(at) => Some(at + within),
            None if layout.index_of(FsBlock(block)).is_none() => usize::try_from(offset).ok(),
            None => None,
        }
    }
}

impl BlockDevice for View<'_> {
    fn geometry(&self) -> Geometry {
        let len = match &self.mapped {
            Some((layout, _)) => layout.logical_blocks() * BLOCK as u64,
            None => self.bytes.len() as u64,
        };
        Geometry { read_only: true, ..Geometry::new(len) }
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.geometry().admit(Op::Read, offset, buf.len() as u64)?;
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let part = (buf.len() - done).min(BLOCK - (at % BLOCK as u64) as usize);
            let target = &mut buf[done..done + part];
            match self.physical(at).and_then(|at| self.bytes.get(at..at + part)) {
                Some(bytes) => target.copy_from_slice(bytes),
                None => target.fill(0),
            }
            done += part;
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.geometry().admit(Op::Write, offset, data.len() as u64)
    }

    fn flush(&self) -> Result<()> {
        self.geometry().admit(Op::Flush, 0, 0)
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.geometry().admit(Op::Discard, offset, len)
    }
}
