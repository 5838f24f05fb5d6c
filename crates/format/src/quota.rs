//! Quota files, version 2: usage and limits of users, groups and projects.
//!
//! The file is an array of blocks of 1 024 bytes whatever the volume's block size is. Block 0 is a header; block 1 is
//! the root of a radix tree of four levels, indexed by the bytes of the id, highest first. The fourth level points to
//! data blocks, each with the entries of several ids.

use crate::{Error, Result, Structure};
use std::collections::HashMap;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

/// Bytes in a block of a quota file.
pub const BLOCK_SIZE: usize = 1024;
/// The tree's root.
const ROOT: u32 = 1;
/// Levels of references above the data blocks.
const DEPTH: usize = 4;

/// The type of the quotas in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Of users.
    User,
    /// Of groups.
    Group,
    /// Of projects.
    Project,
}

impl Kind {
    /// `dqh_magic` of a file of this kind.
    pub const fn magic(self) -> u32 {
        match self {
            Self::User => 0xD9C0_1F11,
            Self::Group => 0xD9C0_1927,
            Self::Project => 0xD9C0_3F14,
        }
    }
}

disk_struct! {
    /// The start of a quota file (`v2_disk_dqheader` and `v2_disk_dqinfo`).
    pub struct DiskQuotaHeader[32] {
        /// 0xD9C01F11 for users, 0xD9C01927 for groups, 0xD9C03F14 for projects
        0x00 dqh_magic: U32,
        /// 0 or 1: the format of the entries
        0x04 dqh_version: U32,
        /// seconds for which the soft limit of blocks may be exceeded
        0x08 dqi_bgrace: U32,
        /// seconds for which the soft limit of inodes may be exceeded
        0x0C dqi_igrace: U32,
        /// flags (none stored on the device)
        0x10 dqi_flags: U32,
        /// blocks in the file
        0x14 dqi_blocks: U32,
        /// first free block; 0 for none
        0x18 dqi_free_blk: U32,
        /// first data block with space for an entry; 0 for none
        0x1C dqi_free_entry: U32,
    }
}

disk_struct! {
    /// The start of a data block (`qt_disk_dqdbheader`); entries follow.
    pub struct DiskDataHeader[16] {
        /// next data block with space, or next free block
        0x00 dqdh_next_free: U32,
        /// the one before
        0x04 dqdh_prev_free: U32,
        /// entries in use
        0x08 dqdh_entries: U16,
        /// unused
        0x0A dqdh_pad1: U16,
        /// unused
        0x0C dqdh_pad2: U32,
    }
}

disk_struct! {
    /// An entry of version 0 (`v2r0_disk_dqblk`). All zero bytes: a free slot.
    pub struct DiskEntry0[48] {
        /// user, group or project
        0x00 dqb_id: U32,
        /// hard limit of inodes; 0 for no limit
        0x04 dqb_ihardlimit: U32,
        /// soft limit of inodes; 0 for no limit
        0x08 dqb_isoftlimit: U32,
        /// inodes in use
        0x0C dqb_curinodes: U32,
        /// hard limit in KiB; 0 for no limit
        0x10 dqb_bhardlimit: U32,
        /// soft limit in KiB; 0 for no limit
        0x14 dqb_bsoftlimit: U32,
        /// bytes in use
        0x18 dqb_curspace: U64,
        /// end of the grace period for KiB, seconds
        0x20 dqb_btime: U64,
        /// end of the grace period for inodes, seconds
        0x28 dqb_itime: U64,
    }
}

disk_struct! {
    /// An entry of version 1 (`v2r1_disk_dqblk`). All zero bytes: a free slot.
    pub struct DiskEntry1[72] {
        /// user, group or project
        0x00 dqb_id: U32,
        /// unused
        0x04 dqb_pad: U32,
        /// hard limit of inodes; 0 for no limit
        0x08 dqb_ihardlimit: U64,
        /// soft limit of inodes; 0 for no limit
        0x10 dqb_isoftlimit: U64,
        /// inodes in use
        0x18 dqb_curinodes: U64,
        /// hard limit in KiB; 0 for no limit
        0x20 dqb_bhardlimit: U64,
        /// soft limit in KiB; 0 for no limit
        0x28 dqb_bsoftlimit: U64,
        /// bytes in use
        0x30 dqb_curspace: U64,
        /// end of the grace period for KiB, seconds
        0x38 dqb_btime: U64,
        /// end of the grace period for inodes, seconds
        0x40 dqb_itime: U64,
    }
}

/// The usage and the limits of one user, group or project.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// User, group or project.
    pub id: u32,
    /// Hard limit of inodes; 0 for no limit.
    pub inode_hard_limit: u64,
    /// Soft limit of inodes; 0 for no limit.
    pub inode_soft_limit: u64,
    /// Inodes in use.
    pub inodes: u64,
    /// Hard limit in KiB; 0 for no limit.
    pub kib_hard_limit: u64,
    /// Soft limit in KiB; 0 for no limit.
    pub kib_soft_limit: u64,
    /// Bytes in use.
    pub bytes: u64,
    /// End of the grace period for KiB, in seconds.
    pub kib_deadline: u64,
    /// End of the grace period for inodes, in seconds.
    pub inode_deadline: u64,
}

impl From<DiskEntry0> for Entry {
    fn from(e: DiskEntry0) -> Self {
        Self {
            id: e.dqb_id.get(),
            inode_hard_limit: e.dqb_ihardlimit.get().into(),
            inode_soft_limit: e.dqb_isoftlimit.get().into(),
            inodes: e.dqb_curinodes.get().into(),
            kib_hard_limit: e.dqb_bhardlimit.get().into(),
            kib_soft_limit: e.dqb_bsoftlimit.get().into(),
            bytes: e.dqb_curspace.get(),
            kib_deadline: e.dqb_btime.get(),
            inode_deadline: e.dqb_itime.get(),
        }
    }
}

impl From<DiskEntry1> for Entry {
    fn from(e: DiskEntry1) -> Self {
        Self {
            id: e.dqb_id.get(),
            inode_hard_limit: e.dqb_ihardlimit.get(),
            inode_soft_limit: e.dqb_isoftlimit.get(),
            inodes: e.dqb_curinodes.get(),
            kib_hard_limit: e.dqb_bhardlimit.get(),
            kib_soft_limit: e.dqb_bsoftlimit.get(),
            bytes: e.dqb_curspace.get(),
            kib_deadline: e.dqb_btime.get(),
            inode_deadline: e.dqb_itime.get(),
        }
    }
}

fn bad(what: &'static str) -> Error {
    Error::corrupt(Structure::Quota, what)
}

/// A quota file with a validated header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuotaFile {
    disk: DiskQuotaHeader,
    blocks: u32,
}

impl QuotaFile {
    /// Reads the header from block 0 of a file of `len` bytes.
    ///
    /// # Errors
    /// `Corrupt` for another magic number than that of `kind`, or a file shorter than the header states; `Unsupported`
    /// for a version other than 0 and 1.
    pub fn parse(block: &[u8], kind: Kind, len: u64) -> Result<Self> {
        let (disk, _) = DiskQuotaHeader::read_from_prefix(block).map_err(|_| bad("header cut short"))?;
        if disk.dqh_magic != kind.magic() {
            return Err(bad("no magic number of this kind of quota"));
        }
        if disk.dqh_version.get() > 1 {
            return Err(Error::Unsupported(format!("quota file of version {}", disk.dqh_version)));
        }
        let blocks = disk.dqi_blocks.get();
        if u64::from(blocks) > len / BLOCK_SIZE as u64 {
            return Err(bad("more blocks than the file has"));
        }
        if disk.dqi_free_blk.get() >= blocks.max(1) || disk.dqi_free_entry.get() >= blocks.max(1) {
            return Err(bad("list of free blocks begins beyond the end"));
        }
        Ok(Self { disk, blocks })
    }

    /// The header's fields.
    pub fn disk(&self) -> &DiskQuotaHeader {
        &self.disk
    }

    /// Reads every entry once, in the order of the tree, and passes it to `visit`.
    ///
    /// `read` fills a block of [`BLOCK_SIZE`] bytes, by its number in the file. Repeated blocks are not read again, so
    /// that the walk terminates on any bytes; memory depends on the number of referenced blocks, not on the length in
    /// the header.
    ///
    /// # Errors
    /// `Corrupt` for a reference beyond the end or to a block of another level; those of `read`.
    pub fn walk<E: From<Error>>(
        &self,
        mut read: impl FnMut(u32, &mut [u8; BLOCK_SIZE]) -> Result<(), E>,
        mut visit: impl FnMut(Entry),
    ) -> Result<(), E> {
        if self.blocks <= ROOT {
            return Ok(());
        }
        let mut level_of = HashMap::from([(ROOT, 1u8)]);
        // a stack of blocks to read; level 1 is the root, level 5 is data
        let mut todo = vec![(ROOT, 1u8)];
        let mut block = [0; BLOCK_SIZE];
        while let Some((number, level)) = todo.pop() {
            read(number, &mut block)?;
            if usize::from(level) > DEPTH {
                self.entries(&block)?.for_each(&mut visit);
                continue;
            }
            let children = level + 1;
            let from = todo.len();
            for child in block.chunks_exact(4).filter_map(|raw| U32::read_from_bytes(raw).ok()).filter(|&c| c != 0) {
                if child.get() >= self.blocks {
                    return Err(bad("reference beyond the end").into());
                }
                match level_of.insert(child.get(), children) {
                    None => todo.push((child.get(), children)),
                    // one data block may have several ids
                    Some(before) if before == children && usize::from(children) > DEPTH => {}
                    Some(_) => return Err(bad("block referred to twice").into()),
                }
            }
            todo[from..].reverse();
        }
        Ok(())
    }

    /// The entries of a data block without free slots.
    ///
    /// # Errors
    /// `Corrupt` where the count of the block is larger than its capacity, or wrong.
    pub fn entries<'a>(&self, block: &'a [u8; BLOCK_SIZE]) -> Result<impl Iterator<Item = Entry> + use<'a>> {
        let v1 = self.disk.dqh_version == 1;
        let size = if v1 { DiskEntry1::SIZE } else { DiskEntry0::SIZE };
        let (header, slots) = DiskDataHeader::read_from_prefix(block).map_err(|_| bad("data block cut short"))?;
        let used = slots.chunks_exact(size).filter(|slot| slot.iter().any(|&b| b != 0));
        if used.clone().count() != usize::from(header.dqdh_entries.get()) {
            return Err(bad("data block with a wrong count of entries"));
        }
        Ok(used.filter_map(move |slot| {
            if v1 {
                DiskEntry1::read_from_bytes(slot).ok().map(Entry::from)
            } else {
                DiskEntry0::read_from_bytes(slot).ok().map(Entry::from)
            }
        }))
    }
}

/// A quota file of version 1 with these entries, whose ids differ; the grace period of each soft limit is a week.
#[must_use]
pub fn write_file(kind: Kind, entries: &[Entry]) -> Vec<u8> {
    const GRACE: u32 = 7 * 24 * 3600;
    const IN_A_BLOCK: usize = (BLOCK_SIZE - DiskDataHeader::SIZE) / DiskEntry1::SIZE;
    let mut file = Blocks(vec![0; 2 * BLOCK_SIZE]);
    // the data block for the next entry, and its number of entries
    let (mut data, mut used) = (0, IN_A_BLOCK);
    for entry in entries {
        let mut block = ROOT as usize;
        for (level, byte) in (1..).zip(entry.id.to_be_bytes()) {
            let slot = block * BLOCK_SIZE + usize::from(byte) * 4;
            let next = file.word(slot) as usize;
            block = if next != 0 {
                next
            } else if level < DEPTH {
                file.add()
            } else {
                if used == IN_A_BLOCK {
                    (data, used) = (file.add(), 0);
                }
                data
            };
            file.put(slot, &(block as u32).to_le_bytes());
        }
        file.put(
            block * BLOCK_SIZE + DiskDataHeader::SIZE + used * DiskEntry1::SIZE,
            DiskEntry1::from(*entry).as_bytes(),
        );
        used += 1;
        file.put(block * BLOCK_SIZE + 8, &(used as u16).to_le_bytes());
    }
    let header = DiskQuotaHeader {
        dqh_magic: kind.magic().into(),
        dqh_version: 1.into(),
        dqi_bgrace: GRACE.into(),
        dqi_igrace: GRACE.into(),
        dqi_flags: 0.into(),
        dqi_blocks: ((file.0.len() / BLOCK_SIZE) as u32).into(),
        dqi_free_blk: 0.into(),
        dqi_free_entry: (if used < IN_A_BLOCK { data as u32 } else { 0 }).into(),
    };
    file.put(0, header.as_bytes());
    file.0
}

/// The blocks of a quota file that is being created.
struct Blocks(Vec<u8>);

impl Blocks {
    fn add(&mut self) -> usize {
        self.0.resize(self.0.len() + BLOCK_SIZE, 0);
        self.0.len() / BLOCK_SIZE - 1
    }

    fn word(&self, at: usize) -> u32 {
        let bytes = self.0.get(at..at + 4).and_then(|bytes| U32::read_from_bytes(bytes).ok());
        bytes.map_or(0, U32::get)
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        if let Some(space) = self.0.get_mut(at..at + bytes.len()) {
            space.copy_from_slice(bytes);
        }
    }
}

impl From<Entry> for DiskEntry1 {
    fn from(e: Entry) -> Self {
        Self {
            dqb_id: e.id.into(),
            dqb_pad: 0.into(),
            dqb_ihardlimit: e.inode_hard_limit.into(),
            dqb_isoftlimit: e.inode_soft_limit.into(),
            dqb_curinodes: e.inodes.into(),
            dqb_bhardlimit: e.kib_hard_limit.into(),
            dqb_bsoftlimit: e.kib_soft_limit.into(),
            dqb_curspace: e.bytes.into(),
            dqb_btime: e.kib_deadline.into(),
            dqb_itime: e.inode_deadline.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for count in [0, 1, 2, 14, 15, 40] {
            let ids = [0, 1, 255, 256, 70_000, u32::MAX].into_iter().chain(1000..).take(count);
            let entries: Vec<_> = ids
                .map(|id| Entry {
                    id,
                    inode_hard_limit: 1,
                    inode_soft_limit: 2,
                    inodes: 3 + u64::from(id),
                    kib_hard_limit: 4,
                    kib_soft_limit: 5,
                    bytes: 6,
                    kib_deadline: 7,
                    inode_deadline: 8,
                })
                .collect();
            let file = write_file(Kind::Group, &entries);
            let quota = QuotaFile::parse(&file, Kind::Group, file.len() as u64).unwrap();
            let mut found = Vec::new();
            let read = |number: u32, block: &mut [u8; BLOCK_SIZE]| {
                block.copy_from_slice(&file[number as usize * BLOCK_SIZE..][..BLOCK_SIZE]);
                Ok::<_, Error>(())
            };
            quota.walk(read, |entry| found.push(entry)).unwrap();
            found.sort_by_key(|entry| entries.iter().position(|e| e.id == entry.id));
            assert_eq!(found, entries);
        }
    }

    fn put(file: &mut [u8], block: usize, slot: usize, to: u32) {
        let at = block * BLOCK_SIZE + slot * 4;
        file[at..at + 4].copy_from_slice(&to.to_le_bytes());
    }

    /// Version 1, ids 0 and 259 in data block 6; the paths are 1-2-3-4 and 1-2-3-5.
    fn file() -> Vec<u8> {
        let mut file = vec![0; 7 * BLOCK_SIZE];
        for (word, value) in [(0, Kind::User.magic()), (1, 1), (5, 7)] {
            put(&mut file, 0, word, value);
        }
        for (block, slot, to) in [(1, 0, 2), (2, 0, 3), (3, 0, 4), (3, 1, 5), (4, 0, 6), (5, 3, 6)] {
            put(&mut file, block, slot, to);
        }
        put(&mut file, 6, 2, 2); // entries
        put(&mut file, 6, 4 + 12, 4096); // bytes of id 0
        put(&mut file, 6, 4 + 18 * 3, 259); // the third slot after a free one
        file
    }

    fn walk(file: &[u8]) -> Result<Vec<Entry>> {
        let quota = QuotaFile::parse(file, Kind::User, file.len() as u64)?;
        let mut entries = Vec::new();
        let read = |number: u32, block: &mut [u8; BLOCK_SIZE]| {
            block.copy_from_slice(file.chunks_exact(BLOCK_SIZE).nth(number as usize).ok_or_else(|| bad("read"))?);
            Ok::<_, Error>(())
        };
        quota.walk(read, |entry| entries.push(entry))?;
        Ok(entries)
    }

    #[test]
    fn entries_are_met_once() {
        let entries = walk(&file()).unwrap();
        assert_eq!(entries.iter().map(|e| (e.id, e.bytes)).collect::<Vec<_>>(), [(0, 4096), (259, 0)]);
    }

    #[test]
    fn damage_is_found_and_loops_end() {
        let damaged = |block, slot, to| {
            let mut file = file();
            put(&mut file, block, slot, to);
            walk(&file)
        };
        assert!(damaged(0, 0, Kind::Group.magic()).is_err(), "another kind");
        assert!(matches!(damaged(0, 1, 2), Err(Error::Unsupported(_))), "version");
        assert!(damaged(0, 5, 8).is_err(), "longer than the file");
        assert!(damaged(3, 7, 1).is_err(), "loop to the root");
        assert!(damaged(2, 7, 6).is_err(), "data block among references");
        assert!(damaged(4, 1, 7).is_err(), "beyond the end");
        assert!(damaged(6, 2, 3).is_err(), "number of entries");
        assert!(damaged(0, 6, 7).is_err(), "list of free blocks");
        assert!(walk(&file()[..31]).is_err());
    }
}
