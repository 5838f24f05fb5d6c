//! The system inodes (journal, orphan file, quota), read before or after everything else: an inode and its whole
//! map.
//!
//! The rounds check these inodes like any other. Here only their maps are followed, so that their content can be
//! checked.

use crate::phases::inodes::block_maps::words;
use crate::scan::{Item, Scanner};
use crate::volume::Volume;
use format::InodeNo;
use format::extent::{self, RawNode};
use format::inode::{FileKind, InodeFlags, RawInode};
use parking_lot::Mutex;
use std::collections::HashSet;

/// Maximum number of map blocks that are read; no system inode has more.
const MAP_BLOCKS: usize = 1 << 16;

/// A run of blocks of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct MappedRange {
    first: u64,
    block: u64,
    len: u64,
}

/// A map block to read: the first file block that it maps, and the levels below it.
#[derive(Debug, Clone, Copy)]
struct MapBlock {
    block: u64,
    first: u64,
    levels: u32,
}

/// A system inode.
#[derive(Debug)]
pub(crate) struct SystemInode {
    /// `i_size`
    pub(crate) size: u64,
    /// Its type.
    pub(crate) kind: Option<FileKind>,
    /// `i_links_count`
    pub(crate) links: u16,
    /// Start of the checksums of its blocks.
    pub(crate) seed: u32,
    /// Whether the map could be followed to its end.
    pub(crate) valid: bool,
    /// The mapped ranges, ascending.
    runs: Vec<MappedRange>,
}

impl SystemInode {
    /// Reads an inode and its map; `None` where the inode cannot be read.
    pub(crate) fn read(scanner: &Scanner<'_>, volume: &Volume, inode: InodeNo) -> Option<Self> {
        let bytes = read_slot(scanner, volume, inode)?;
        let raw = RawInode::from_slot(&bytes)?;
        let mut file = Self {
            size: raw.size(),
            kind: raw.kind(),
            links: raw.disk.i_links_count.get(),
            seed: raw.seed(&volume.geometry, inode),
            valid: true,
            runs: Vec::new(),
        };
        if raw.flags().contains(InodeFlags::EXTENTS) {
            file.follow(scanner, volume, |file, next| file.extent_node(volume, &raw.disk.i_block, None, next));
        } else {
            file.follow(scanner, volume, |file, next| file.direct(volume, &raw.block_words(), next));
        }
        Some(file)
    }

    /// A file of `size` bytes with this `i_block`: the root of an extent tree where it has an extent header, else a
    /// block map.
    pub(crate) fn of_map(scanner: &Scanner<'_>, volume: &Volume, root: &[u8; 60], size: u64) -> Self {
        let kind = Some(FileKind::Regular);
        let mut file = Self { size, kind, links: 1, seed: 0, valid: true, runs: Vec::new() };
        if is_extent_root(root) {
            file.follow(scanner, volume, |file, next| file.extent_node(volume, root, None, next));
        } else {
            let map = words(root);
            file.follow(scanner, volume, |file, next| file.direct(volume, &map, next));
        }
        file
    }

    /// The block of the volume that contains block `n` of the file.
    pub(crate) fn block(&self, n: u64) -> Option<u64> {
        let at = self.runs.partition_point(|run| run.first <= n).checked_sub(1)?;
        let run = self.runs.get(at)?;
        let skip = n.checked_sub(run.first).filter(|skip| *skip < run.len)?;
        run.block.checked_add(skip)
    }

    /// The first blocks of the file, up to the first hole.
    pub(crate) fn blocks_without_hole(&self) -> u64 {
        self.runs.iter().fold(0, |end, run| if run.first == end { end + run.len } else { end })
    }

    /// The number of its blocks up to the last mapped one, holes included.
    pub(crate) fn end(&self) -> u64 {
        self.runs.last().map_or(0, |run| run.first.saturating_add(run.len))
    }

    /// Whether the map has a block of the file twice.
    pub(crate) fn overlaps(&self) -> bool {
        self.runs.iter().zip(self.runs.iter().skip(1)).any(|(run, next)| run.first.saturating_add(run.len) > next.first)
    }

    /// Reads block `n` of the file; `None` for a hole or an error of the device.
    pub(crate) fn read_block(&self, scanner: &Scanner<'_>, volume: &Volume, n: u64) -> Option<Vec<u8>> {
        scanner.read_block(volume, self.block(n)?)
    }

    /// Starts at the inode and reads the map level by level, each in disk order.
    fn follow(&mut self, scanner: &Scanner<'_>, volume: &Volume, start: impl FnOnce(&mut Self, &mut Vec<MapBlock>)) {
        let mut level = Vec::new();
        start(self, &mut level);
        let mut seen = HashSet::new();
        while !level.is_empty() {
            level.retain(|node| seen.insert(node.block));
            if seen.len() > MAP_BLOCKS {
                self.valid = false;
                break;
            }
            let items = level.iter().filter_map(|node| {
                let offset = volume.offset(node.block)?;
                Some(Item { offset, len: volume.geometry.block_size, tag: *node })
            });
            let mut items: Vec<_> = items.collect();
            items.sort_by_key(|item| item.offset);
            let state = Mutex::new((&mut *self, Vec::new()));
            scanner.read_ascending(&items, |item, bytes| {
                let mut state = state.lock();
                let (file, next) = &mut *state;
                match bytes {
                    Ok(bytes) if item.tag.levels & EXTENTS != 0 => {
                        file.extent_node(volume, bytes, Some(item.tag.levels & !EXTENTS), next);
                    }
                    Ok(bytes) => file.pointers(volume, bytes, &item.tag, next),
                    Err(_) => file.valid = false,
                }
            });
            level = state.into_inner().1;
        }
        self.runs.sort_unstable();
    }

    /// Reads a node of an extent tree with `levels` levels below it (`None` for the root, whose header states them).
    fn extent_node(&mut self, volume: &Volume, bytes: &[u8], levels: Option<u32>, next: &mut Vec<MapBlock>) {
        let Some(node) = RawNode::from_bytes(bytes) else { return self.valid = false };
        let depth = node.header.eh_depth.get();
        let fits = levels.is_none_or(|levels| levels == u32::from(depth)) && depth <= extent::MAX_DEPTH;
        if node.header.eh_magic.get() != extent::MAGIC || !fits || node.header.eh_entries.get() > node.capacity() {
            return self.valid = false;
        }
        if depth == 0 {
            for e in node.extents() {
                self.run(volume, e.ee_block.get().into(), e.start().get(), e.len().into());
            }
            return;
        }
        for index in node.indexes() {
            let block = index.child().get();
            if volume.contains(block) {
                let levels = u32::from(depth - 1) | EXTENTS;
                next.push(MapBlock { block, first: index.ei_block.get().into(), levels });
            } else {
                self.valid = false;
            }
        }
    }

    /// Reads the fifteen block numbers of an inode without extents.
    fn direct(&mut self, volume: &Volume, map: &[u32; 15], next: &mut Vec<MapBlock>) {
        for (n, block) in (0..).zip(map) {
            let levels = u32::saturating_sub(n, 11);
            let first = if levels == 0 { n.into() } else { volume.geometry.indirect().first_of_level(levels).get() };
            self.pointer(volume, MapBlock { block: (*block).into(), first, levels }, next);
        }
    }

    fn pointers(&mut self, volume: &Volume, bytes: &[u8], node: &MapBlock, next: &mut Vec<MapBlock>) {
        let levels = node.levels.saturating_sub(1);
        let format = volume.geometry.indirect();
        let span = format.span(levels);
        for (n, block) in (0u64..).zip(format.pointers(bytes)) {
            let first = node.first.saturating_add(n.saturating_mul(span));
            self.pointer(volume, MapBlock { block: block.get().into(), first, levels }, next);
        }
    }

    fn pointer(&mut self, volume: &Volume, node: MapBlock, next: &mut Vec<MapBlock>) {
        if node.block == 0 {
            return;
        }
        if !volume.contains(node.block) {
            self.valid = false;
        } else if node.levels == 0 {
            self.run(volume, node.first, node.block, 1);
        } else {
            next.push(node);
        }
    }

    fn run(&mut self, volume: &Volume, first: u64, block: u64, len: u64) {
        if !volume.contains(block) || block.checked_add(len).is_none_or(|end| end > volume.geometry.blocks) {
            return self.valid = false;
        }
        match self.runs.last_mut() {
            Some(last) if last.first + last.len == first && last.block + last.len == block => last.len += len,
            _ => self.runs.push(MappedRange { first, block, len }),
        }
    }
}

/// The bytes of an inode, read individually.
pub(crate) fn read_slot(scanner: &Scanner<'_>, volume: &Volume, inode: InodeNo) -> Option<Vec<u8>> {
    let slot = volume.geometry.inode_slot(inode)?;
    let table = volume.group(slot.group)?.inode_table;
    let block = volume.offset(table.get().checked_add(slot.table_block.into())?)?;
    let offset = block.checked_add(slot.offset.into())?;
    let mut bytes = vec![0; volume.geometry.inode_size as usize];
    scanner.counters.count(offset, bytes.len() as u64);
    scanner.device.read(offset, &mut bytes).ok()?;
    Some(bytes)
}

/// Whether an `i_block` begins with an extent header.
pub(crate) fn is_extent_root(root: &[u8; 60]) -> bool {
    RawNode::from_bytes(root).is_some_and(|node| node.header.eh_magic.get() == extent::MAGIC)
}

/// Flag in the levels of an extent tree node, to distinguish it from an indirect block.
const EXTENTS: u32 = 1 << 31;
