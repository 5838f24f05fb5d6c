//! Fragments of files.

use crate::error_report::Complaints;
use crate::extents::{Extent, Extents, has_map};
use crate::output::{Text, counted, human};
use crate::progress::{Bar, Unit};
use crate::source::Opened;
use check::render::escape;
use fs::{Inode, InodeNo, Volume};
use serde::Serialize;
use std::collections::HashSet;
use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;

/// Number of files shown in addition to the specified ones: those with the most fragments.
const SHOWN: usize = 10;

/// A summary of files.
#[derive(Debug, Default, Serialize)]
pub(super) struct Files {
    /// Number of files and directories that have blocks, each counted once.
    files: u64,
    fragmented: u64,
    fragments: u64,
    blocks: u64,
    /// The specified files, in that order.
    named: Vec<File>,
    /// The other files with the most fragments, in descending order.
    most: Vec<File>,
    #[serde(skip)]
    block_size: u32,
}

#[derive(Debug, Serialize)]
struct File {
    #[serde(flatten)]
    path: Text,
    #[serde(skip)]
    name: Vec<u8>,
    fragments: u64,
    blocks: u64,
}

/// Reads the maps of the files at `paths` and below; of all files without paths.
pub(super) fn read(opened: &Opened, paths: &[OsString], complaints: &mut Complaints<'_>) -> Files {
    let root = [OsString::from("/")];
    let named = !paths.is_empty();
    let paths = if named { paths } else { &root };
    let volume = &opened.volume;
    let mut files = Files { block_size: volume.superblock().geometry.block_size, ..Files::default() };
    let mut linked: HashSet<InodeNo> = HashSet::new();
    let bar = Bar::new("files", 0, Unit::Files);
    for path in paths {
        let start = match opened.find(path, false) {
            Ok(inode) => inode,
            Err(e) => {
                complaints.about(path.as_bytes(), e);
                continue;
            }
        };
        for (below, inode) in volume.walk(start.number) {
            let name = joined(path.as_bytes(), &below);
            let read = inode.and_then(|inode| Ok((fragments(volume, &inode)?, inode)));
            match read {
                Ok(((fragments, blocks), inode)) => {
                    let first = inode.raw().disk.i_links_count.get() < 2 || linked.insert(inode.number);
                    if first && fragments > 0 {
                        files.count(fragments, blocks);
                    }
                    let file = File { path: Text::new("path", &name), name, fragments, blocks };
                    if below.is_empty() && named {
                        files.named.push(file);
                    } else if first && fragments > 1 {
                        files.rank(file);
                    }
                }
                Err(e) => complaints.about(&name, e),
            }
            bar.advance(1);
        }
    }
    bar.finish();
    files
}

fn joined(start: &[u8], below: &[u8]) -> Vec<u8> {
    let mut path = start.to_vec();
    if !below.is_empty() {
        if !path.ends_with(b"/") {
            path.push(b'/');
        }
        path.extend_from_slice(below);
    }
    path
}

/// The numbers of fragments and blocks of a file.
fn fragments(volume: &Volume, inode: &Inode) -> fs::Result<(u64, u64)> {
    if !has_map(inode) {
        return Ok((0, 0));
    }
    let mut extents = Extents::of(volume, inode);
    let (mut fragments, mut blocks) = (0, 0);
    let mut before: Option<Extent> = None;
    while let Some(extent) = extents.next_extent()? {
        if !before.is_some_and(|before| follows(&before, &extent)) {
            fragments += 1;
        }
        blocks += extent.len;
        before = Some(extent);
    }
    Ok((fragments, blocks))
}

/// Whether a reader proceeds from one extent to the next without a seek, or with a seek of exactly the length of the
/// hole.
fn follows(before: &Extent, next: &Extent) -> bool {
    let dense = before.block.checked_add(before.len);
    let gap = next.file_block.checked_sub(before.file_block);
    dense == Some(next.block) || gap.and_then(|gap| before.block.checked_add(gap)) == Some(next.block)
}

impl Files {
    fn count(&mut self, fragments: u64, blocks: u64) {
        self.files += 1;
        self.fragmented += u64::from(fragments > 1);
        self.fragments += fragments;
        self.blocks += blocks;
    }

    /// Inserts a file into the list if it is among those with the most fragments.
    fn rank(&mut self, file: File) {
        let at = self.most.partition_point(|other| other.fragments >= file.fragments);
        if at < SHOWN {
            self.most.truncate(SHOWN - 1);
            self.most.insert(at, file);
        }
    }

    /// Prints the summary as text.
    pub(super) fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let size = |blocks: u64| human(blocks.saturating_mul(u64::from(self.block_size)));
        writeln!(out, "Files")?;
        let files = counted(self.files, "file or directory", "files and directories");
        writeln!(out, "  with blocks  {files}, {}", size(self.blocks))?;
        let mean = self.fragments as f64 / self.files.max(1) as f64;
        let several = counted(self.fragmented, "has", "have");
        writeln!(out, "  fragments    {}, {mean:.2} on average; {several} more than one", self.fragments)?;
        if self.named.len() + self.most.len() > 0 {
            writeln!(out, "\n  {:>9}  {:>10}  path", "fragments", "size")?;
        }
        for file in self.named.iter().chain(&self.most) {
            writeln!(out, "  {:>9}  {:>10}  {}", file.fragments, size(file.blocks), escape(&file.name))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hole_ends_no_fragment() {
        let extent = |file_block, block, len| Extent { file_block, block, len, unwritten: false };
        let first = extent(0, 100, 10);
        assert!(follows(&first, &extent(10, 110, 1)));
        assert!(follows(&first, &extent(50, 110, 1)), "adjacent");
        assert!(follows(&first, &extent(50, 150, 1)), "where it would be without a hole");
        assert!(!follows(&first, &extent(10, 111, 1)));
        assert!(!follows(&first, &extent(10, 90, 1)));
    }

    #[test]
    fn those_of_most_fragments_are_named() {
        let mut files = Files::default();
        for n in 0..100u64 {
            files.count(n * 7 % 101, 1);
            let name = n.to_string().into_bytes();
            files.rank(File { path: Text::new("path", &name), name, fragments: n * 7 % 101, blocks: 1 });
        }
        let fragments: Vec<u64> = files.most.iter().map(|file| file.fragments).collect();
        assert_eq!(fragments, [100, 99, 98, 97, 96, 95, 93, 92, 91, 90]);
        assert_eq!((files.files, files.blocks), (100, 100));
    }
}
