//! Paths of inodes for reports: found after the check, by reading the directories that name these inodes once more.
//!
//! A directory's parent is known from phase 2, so that only the directories between it and the root are read. The
//! directory that names any other inode is not recorded: that would take more memory than all other records. So for
//! such an inode all directories are read once more, in disk order. A consistent volume costs nothing.

use crate::context::Context;
use crate::inode_records::{Directories, Directory, Marks};
use crate::phases::directories::entry::{DOT_LEN, wrong_dot_len};
use crate::scan::found::DirRun;
use crate::scan::{Item, REQUEST, Scanner};
use format::InodeNo;
use format::dir::{DirFormat, Entries, Entry};
use format::feature::Incompat;
use format::inline::{DATA_XATTR, InlineDir};
use format::inode::RawInode;
use format::xattr::{Value, XattrArea};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};

/// Names of inodes, and of the directories that lead to them.
#[derive(Debug, Default)]
pub(crate) struct Paths(HashMap<InodeNo, Name>);

/// An entry that names an inode. Of several the first by directory, block and position is recorded.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Name {
    dir: InodeNo,
    file_block: u32,
    offset: usize,
    name: Box<[u8]>,
}

impl Paths {
    /// Searches for the names of these inodes. `runs` are the locations of all directory blocks.
    pub(crate) fn find(
        ctx: &Context<'_>,
        scanner: &Scanner<'_>,
        directories: &Directories,
        runs: &[DirRun],
        inodes: impl IntoIterator<Item = InodeNo>,
    ) -> Self {
        let mut search = Search { ctx, directories, wanted: HashSet::new(), found: Mutex::default() };
        let mut files = false;
        for inode in inodes {
            match directories.get(inode) {
                Some(_) => search.add_with_ancestors(inode),
                None => files |= search.wanted.insert(inode),
            }
        }
        if files {
            search.read(scanner, runs, |_| true);
            let dirs: Vec<_> = search.found().values().map(|name| name.dir).collect();
            for dir in dirs {
                search.add_with_ancestors(dir);
            }
            search.forget_found();
        }
        let dirs = search.parents();
        if !dirs.is_empty() {
            search.read(scanner, runs, |dir| dirs.contains(&dir));
        }
        Self(search.found.into_inner())
    }

    /// The path of an inode, lossy where names are not UTF-8. A path that is not connected to the root starts with the
    /// number of the topmost directory, as `<12>/name`; `None` for an inode without a name.
    pub(crate) fn get(&self, inode: InodeNo) -> Option<String> {
        if inode == InodeNo::ROOT {
            return Some("/".to_owned());
        }
        let mut parts = Vec::new();
        let mut at = inode;
        // directories may form a loop
        while let Some(name) = self.0.get(&at).filter(|_| at != InodeNo::ROOT && parts.len() <= self.0.len()) {
            parts.push(String::from_utf8_lossy(&name.name));
            at = name.dir;
        }
        if parts.is_empty() {
            return None;
        }
        let top = if at == InodeNo::ROOT { String::new() } else { format!("<{at}>") };
        Some(parts.iter().rev().fold(top, |path, part| path + "/" + part))
    }
}

struct Search<'a> {
    ctx: &'a Context<'a>,
    directories: &'a Directories,
    wanted: HashSet<InodeNo>,
    found: Mutex<HashMap<InodeNo, Name>>,
}

/// A part to read: directory blocks from this one on, or the inode of an inline directory.
#[derive(Debug, Clone, Copy)]
enum Part {
    Blocks(InodeNo, u32),
    Inode(InodeNo),
}

impl Search<'_> {
    fn found(&self) -> parking_lot::MutexGuard<'_, HashMap<InodeNo, Name>> {
        self.found.lock()
    }

    /// Adds a directory and all its ancestors to the inodes whose names are searched for.
    fn add_with_ancestors(&mut self, mut dir: InodeNo) {
        while dir != InodeNo::ROOT && self.wanted.insert(dir) {
            let Some(parent) = self.directories.get(dir).and_then(Directory::parent) else { return };
            dir = parent;
        }
    }

    /// Removes the inodes whose names were found from those still searched for.
    fn forget_found(&mut self) {
        let found = self.found.get_mut();
        self.wanted.retain(|inode| !found.contains_key(inode));
    }

    /// The parents of the directories that are searched for.
    fn parents(&self) -> HashSet<InodeNo> {
        let parents = self.wanted.iter().filter_map(|inode| self.directories.get(*inode)?.parent());
        parents.collect()
    }

    /// Reads the directories chosen.
    fn read(&self, scanner: &Scanner<'_>, runs: &[DirRun], chosen: impl Fn(InodeNo) -> bool) {
        let volume = self.ctx.volume;
        let geometry = &volume.geometry;
        let most = (REQUEST as u32) / geometry.block_size;
        let mut items = Vec::new();
        for run in runs.iter().filter(|run| chosen(run.inode)) {
            for skip in (0..run.len).step_by(most as usize) {
                let blocks = most.min(run.len - skip);
                if let Some(offset) = volume.offset(run.block.saturating_add(u64::from(skip))) {
                    let tag = Part::Blocks(run.inode, run.first.saturating_add(skip));
                    items.push(Item { offset, len: blocks * geometry.block_size, tag });
                }
            }
        }
        for dir in self.directories.iter().filter(|dir| chosen(dir.inode)) {
            let inline = self.ctx.inodes.get(dir.inode).is_some_and(|r| r.marks.contains(Marks::INLINE));
            if inline && let Some(offset) = self.inode_offset(dir.inode) {
                items.push(Item { offset, len: geometry.inode_size, tag: Part::Inode(dir.inode) });
            }
        }
        items.sort_by_key(|item| item.offset);
        scanner.read_ascending(&items, |item, bytes| {
            // what cannot be read was reported by the check
            let Ok(bytes) = bytes else { return };
            match item.tag {
                Part::Blocks(dir, first) => {
                    for (file_block, block) in (first..).zip(bytes.chunks(geometry.block_size as usize)) {
                        let is_wrong = file_block == 0 && wrong_dot_len(block, geometry.block_size).is_some();
                        let entries = block.get(if is_wrong { DOT_LEN } else { 0 }..).unwrap_or_default();
                        self.look(dir, file_block, Entries::new(entries, self.format(dir)).flatten());
                    }
                }
                Part::Inode(dir) => self.look_in_inode(dir, bytes),
            }
        });
    }

    fn inode_offset(&self, inode: InodeNo) -> Option<u64> {
        let slot = self.ctx.volume.geometry.inode_slot(inode)?;
        let table = self.ctx.volume.group(slot.group)?.inode_table;
        let block = self.ctx.volume.offset(table.get().checked_add(u64::from(slot.table_block))?)?;
        block.checked_add(u64::from(slot.offset))
    }

    fn format(&self, dir: InodeNo) -> DirFormat {
        let marks = self.ctx.inodes.get(dir).map(|r| r.marks).unwrap_or_default();
        DirFormat {
            block_size: self.ctx.volume.geometry.block_size,
            file_type: self.ctx.volume.features.incompat.contains(Incompat::FILETYPE),
            hashed: marks.contains(Marks::ENCRYPTED | Marks::CASEFOLD),
        }
    }

    fn look_in_inode(&self, dir: InodeNo, bytes: &[u8]) {
        let Some(raw) = RawInode::from_slot(bytes) else { return };
        let area = XattrArea::in_inode(raw.attribute_area()).ok().flatten();
        let value = area.as_ref().and_then(|area| area.value(&area.find(DATA_XATTR.0, DATA_XATTR.1)?).ok());
        let rest = if let Some(Value::Here(rest)) = value { rest } else { &[] };
        self.look(dir, 0, InlineDir::new(&raw.disk.i_block, rest, self.format(dir)).entries().flatten());
    }

    fn look<'b>(&self, dir: InodeNo, file_block: u32, entries: impl Iterator<Item = Entry<'b>>) {
        for entry in entries {
            if !entry.is_used() || entry.is_dot() || !self.wanted.contains(&entry.inode) {
                continue;
            }
            // of several entries for one directory only its parent's counts
            if self.directories.get(entry.inode).is_some_and(|record| record.parent() != Some(dir)) {
                continue;
            }
            let name = Name { dir, file_block, offset: entry.offset, name: entry.name.into() };
            let mut found = self.found();
            match found.get_mut(&entry.inode) {
                Some(first) if *first <= name => {}
                Some(first) => *first = name,
                None => _ = found.insert(entry.inode, name),
            }
        }
    }
}
