//! Directories that more than one entry names, and the choice of their parents.

use crate::context::Context;
use crate::inode_records::{Directories, Directory, Marks};
use crate::problem::Problem;
use crate::table::Code;
use format::{FileBlock, InodeNo};
use std::collections::{BTreeMap, BTreeSet};

/// An entry that names a directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ParentEntry {
    pub(super) dir: InodeNo,
    pub(super) file_block: u32,
    pub(super) offset: usize,
    /// `None` for an entry in an inline directory, which is not read a second time.
    pub(super) name: Option<Box<[u8]>>,
}

/// All directories with more than one parent.
///
/// Which entry is found first depends on the threads, and its name is no longer in memory when the second is found. So
/// the directories that contain any of them are read once more.
#[derive(Debug, Default)]
pub(super) struct Rivals {
    /// For each child the number of entries in each directory, and the entries found by the second read.
    children: BTreeMap<InodeNo, (BTreeMap<InodeNo, usize>, Vec<ParentEntry>)>,
}

impl Rivals {
    /// Records that `dir` has an entry for `child`, which already has a parent.
    pub(super) fn add(&mut self, child: &Directory, dir: InodeNo) {
        let first = || (child.parent().map(|parent| (parent, 1)).into_iter().collect(), Vec::new());
        let (dirs, _) = self.children.entry(child.inode).or_insert_with(first);
        *dirs.entry(dir).or_default() += 1;
    }

    /// The directories that contain the entries.
    pub(super) fn dirs(&self) -> BTreeSet<InodeNo> {
        self.children.values().flat_map(|(dirs, _)| dirs.keys().copied()).collect()
    }

    /// Whether entries for this directory are needed.
    pub(super) fn wants(&self, child: InodeNo) -> bool {
        self.children.contains_key(&child)
    }

    /// Adds an entry for `child` found by the second read.
    pub(super) fn found(&mut self, child: InodeNo, entry: ParentEntry) {
        if let Some((_, entries)) = self.children.get_mut(&child) {
            entries.push(entry);
        }
    }

    /// Chooses the parents and reports all other entries.
    pub(super) fn settle(self, ctx: &Context<'_>, directories: &Directories) {
        for (child, (dirs, mut entries)) in self.children {
            let Some(record) = directories.get(child) else { continue };
            let unread = dirs.into_iter().flat_map(|(dir, count)| {
                let inline = ctx.inodes.get(dir).is_some_and(|r| r.marks.contains(Marks::INLINE));
                let found = !inline && entries.iter().any(|entry| entry.dir == dir);
                std::iter::repeat_n(dir, if found { 0 } else { count })
            });
            let unread: Vec<_> = unread.map(|dir| ParentEntry { dir, file_block: 0, offset: 0, name: None }).collect();
            entries.extend(unread);
            entries.sort_unstable();
            let chosen = entries.iter().position(|entry| Some(entry.dir) == record.dotdot()).unwrap_or(0);
            for (n, entry) in entries.into_iter().enumerate() {
                if n == chosen {
                    record.choose_parent(entry.dir);
                    continue;
                }
                let mut problem = Problem::new(Code::EntryLinksDirectory)
                    .dir(entry.dir)
                    .file_block(FileBlock(u64::from(entry.file_block)))
                    .inode(child);
                problem.name = entry.name;
                ctx.report(problem);
            }
        }
    }
}
