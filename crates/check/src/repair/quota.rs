//! Quota files: rewritten with the actual usage of every id, limits preserved.

use super::maps;
use super::work::Work;
use crate::phases::quota::{self, Use};
use crate::problem::Problem;
use blockdev::Result;
use format::InodeNo;
use format::inode::{FileKind, InodeFlags};
use format::quota::{BLOCK_SIZE, DiskDataHeader, DiskEntry1, DiskQuotaHeader, Entry, Kind};
use std::collections::BTreeMap;
use zerocopy::IntoBytes;

/// Default grace period in seconds (a week) for which a soft limit may be exceeded.
const GRACE: u32 = 7 * 24 * 60 * 60;
/// Levels of the tree above its entries.
const LEVELS: u32 = 4;
/// Entries of a block.
const ENTRIES: usize = (BLOCK_SIZE - DiskDataHeader::SIZE) / DiskEntry1::SIZE;

/// Rewrites the files that do not match the usage.
pub(super) fn repair(work: &Work<'_>, problems: &[&Problem]) -> Result<()> {
    let Some(walk) = work.walk() else { return Ok(()) };
    let disk = &work.volume().disk;
    for (kind, inode) in [
        (Kind::User, disk.s_usr_quota_inum),
        (Kind::Group, disk.s_grp_quota_inum),
        (Kind::Project, disk.s_prj_quota_inum),
    ] {
        let number = InodeNo(inode.get());
        if problems.iter().any(|p| p.inode == Some(number)) {
            write(work, number, kind, walk.used.of(kind))?;
        }
    }
    Ok(())
}

/// Writes one file.
fn write(work: &Work<'_>, number: InodeNo, kind: Kind, used: impl Iterator<Item = (u32, Use)>) -> Result<()> {
    work.make_stale();
    let Some(mut inode) = work.inode(number)? else { return Ok(()) };
    // the limits of an unreadable file are lost
    let stated = quota::stated(work.view.scanner, work.volume(), number, kind).unwrap_or_default();
    let mut entries: BTreeMap<u32, Entry> = BTreeMap::new();
    for entry in stated.entries {
        entries.insert(entry.id, Entry { bytes: 0, inodes: 0, ..entry });
    }
    for (id, used) in used {
        let entry = entries.entry(id).or_insert(Entry {
            id,
            inode_hard_limit: 0,
            inode_soft_limit: 0,
            inodes: 0,
            kib_hard_limit: 0,
            kib_soft_limit: 0,
            bytes: 0,
            kib_deadline: 0,
            inode_deadline: 0,
        });
        (entry.bytes, entry.inodes) = (used.bytes, used.inodes);
    }
    let content = content(kind, entries.into_values().collect(), stated.grace.unwrap_or((GRACE, GRACE)));
    let valid = inode.kind() == Some(FileKind::Regular) && !inode.raw().flags().contains(InodeFlags::INLINE_DATA);
    if !valid {
        inode = work.blank_inode();
        inode.set_mode(0o100_600);
        inode.set_links(1);
        inode.set_flags(maps::new_file_flags(work));
    }
    let (mut places, nodes) = if valid { maps::dense(work, number, &inode)? } else { Default::default() };
    let blocks: Vec<&[u8]> = content.chunks(work.block_size()).collect();
    places.truncate(blocks.len());
    // multiply-claimed blocks are not overwritten
    if maps::exclusive(work, &places).len() < places.len() {
        places.clear();
    }
    if !work.extend_dense(&mut places, blocks.len()) {
        return Ok(());
    }
    for (place, chunk) in places.iter().zip(&blocks) {
        let mut bytes = vec![0; work.block_size()];
        if let Some(start) = bytes.get_mut(..chunk.len()) {
            start.copy_from_slice(chunk);
        }
        work.put_block(*place, &bytes)?;
    }
    let own = maps::exclusive(work, &nodes);
    if !maps::write_dense(work, number, &mut inode, &places, &own, 0)? {
        return Ok(());
    }
    inode.set_size((places.len() * work.block_size()) as u64);
    work.put_inode(number, inode)
}

/// The bytes of a file with these entries, which ascend by id.
fn content(kind: Kind, entries: Vec<Entry>, grace: (u32, u32)) -> Vec<u8> {
    // header and root
    let mut file = Tree { bytes: vec![0; 2 * BLOCK_SIZE] };
    let mut open = 0;
    for chunk in entries.chunks(ENTRIES) {
        let data = file.add_block();
        for entry in chunk {
            file.name(entry.id, data);
        }
        open = if chunk.len() < ENTRIES { data } else { 0 };
        file.put_entries(data, chunk);
    }
    let header = DiskQuotaHeader {
        dqh_magic: kind.magic().into(),
        dqh_version: 1.into(),
        dqi_bgrace: grace.0.into(),
        dqi_igrace: grace.1.into(),
        dqi_flags: 0.into(),
        dqi_blocks: file.blocks().into(),
        dqi_free_blk: 0.into(),
        dqi_free_entry: open.into(),
    };
    if let Some(start) = file.bytes.get_mut(..DiskQuotaHeader::SIZE) {
        start.copy_from_slice(header.as_bytes());
    }
    file.bytes
}

struct Tree {
    bytes: Vec<u8>,
}

impl Tree {
    fn blocks(&self) -> u32 {
        (self.bytes.len() / BLOCK_SIZE) as u32
    }

    fn add_block(&mut self) -> u32 {
        let number = self.blocks();
        self.bytes.resize(self.bytes.len() + BLOCK_SIZE, 0);
        number
    }

    /// Adds the path from the root to the block with the entry of an id.
    fn name(&mut self, id: u32, data: u32) {
        let mut block = 1;
        for level in (0..LEVELS).rev() {
            let slot = block as usize * BLOCK_SIZE + (id >> (8 * level) & 0xFF) as usize * 4;
            let word = |bytes: &[u8]| <[u8; 4]>::try_from(bytes).map_or(0, u32::from_le_bytes);
            let child = match self.bytes.get(slot..slot + 4).map_or(0, word) {
                _ if level == 0 => data,
                0 => self.add_block(),
                child => child,
            };
            if let Some(place) = self.bytes.get_mut(slot..slot + 4) {
                place.copy_from_slice(&child.to_le_bytes());
            }
            block = child;
        }
    }

    fn put_entries(&mut self, block: u32, entries: &[Entry]) {
        let header = DiskDataHeader {
            dqdh_next_free: 0.into(),
            dqdh_prev_free: 0.into(),
            dqdh_entries: (entries.len() as u16).into(),
            dqdh_pad1: 0.into(),
            dqdh_pad2: 0.into(),
        };
        let start = block as usize * BLOCK_SIZE;
        let Some(bytes) = self.bytes.get_mut(start..start + BLOCK_SIZE) else { return };
        let (head, slots) = bytes.split_at_mut(DiskDataHeader::SIZE);
        head.copy_from_slice(header.as_bytes());
        for (slot, e) in slots.chunks_exact_mut(DiskEntry1::SIZE).zip(entries) {
            slot.copy_from_slice(DiskEntry1::from(*e).as_bytes());
        }
    }
}
