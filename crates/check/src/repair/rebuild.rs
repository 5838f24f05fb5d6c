//! Rebuilds a directory: all its names, each once, in as many blocks as needed, with a hash tree where the volume has
//! the feature and there is more than one block.

use super::directories::format_of;
use super::entries::{self, EntryCheck, Verdict};
use super::inline;
use super::maps;
use super::renames::{Named, make_unique};
use super::work::Work;
use crate::phases::directories::hash_tree::hasher;
use blockdev::Result;
use format::dir::{DirEntry, DirFormat, FileType, entry_len, write_entry};
use format::feature::Compat;
use format::hash::{CONTINUES, HashVersion, NameHash};
use format::htree::IndexFormat;
use format::inode::{FileKind, InodeBuf, InodeFlags};
use format::{InodeNo, casefold};
use std::collections::HashSet;

/// The entries "." and ".." in bytes.
const DOTS: usize = 24;
/// Bytes of a root before its entries: the dots and [`format::htree::DxRootInfo`].
const ROOT_HEAD: usize = 32;
/// Bytes of a node before its entries: one empty directory entry.
const NODE_HEAD: usize = 8;

/// The blocks of a directory before it is rebuilt.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Old<'a> {
    /// Its blocks, which are used again.
    pub(super) blocks: &'a [u64],
    /// The blocks of its map, which are used again.
    pub(super) nodes: &'a [u64],
    /// Whether it retains its size where it needs fewer blocks.
    pub(super) retains_size: bool,
}

/// The name of the directory for unattached inodes.
pub(super) const LOST: &[u8] = b"lost+found";

/// Maximum number of blocks of a directory that retains its size; mke2fs makes lost+found of 16 KiB.
const RETAINED: usize = 4096;

/// Rebuilds a directory with its names and those of `more`; an old entry with the same name as one in `more` is
/// dropped.
pub(super) fn replace(work: &Work<'_>, dir: InodeNo, more: Vec<Named>) -> Result<bool> {
    let taken: HashSet<Vec<u8>> = more.iter().map(|named| named.name.clone()).collect();
    rebuild_retaining(work, dir, more, false, |name| !taken.contains(name))
}

/// Rebuilds a directory with its names and those of `more`, which are renamed where they are in use. Returns whether
/// there was space.
pub(super) fn rebuild(work: &Work<'_>, dir: InodeNo, more: Vec<Named>) -> Result<bool> {
    rebuild_retaining(work, dir, more, false, |_| true)
}

/// The directory lost+found, if the root has an entry for it.
pub(super) fn find_lost(work: &Work<'_>) -> Result<Option<InodeNo>> {
    let Some(walk) = work.walk() else { return Ok(None) };
    let Some(root) = work.inode(InodeNo::ROOT)? else { return Ok(None) };
    let hashed = format_of(work, &root).is_some_and(|format| format.dir.hashed);
    for (n, block) in maps::dense(work, InodeNo::ROOT, &root)?.0.into_iter().enumerate() {
        let Some(bytes) = directory_block(work, n, block)? else { continue };
        let named = entries::all(work, &bytes, hashed).into_iter().find(|named| named.name == LOST);
        if let Some(named) = named
            && let Some(record) = walk.ctx.inodes.get(named.inode)
            && record.kind == Some(FileKind::Directory)
        {
            let encrypted = record.marks.contains(crate::inode_records::Marks::ENCRYPTED);
            return Ok(Some(named.inode).filter(|_| !encrypted));
        }
    }
    Ok(None)
}

/// Block `n` of a directory; the entry "." in the first one has its right length.
fn directory_block(work: &Work<'_>, n: usize, block: u64) -> Result<Option<Vec<u8>>> {
    let mut bytes = work.block(block)?;
    if let Some(bytes) = bytes.as_mut().filter(|_| n == 0) {
        entries::correct_dot(bytes, work.volume().geometry.block_size);
    }
    Ok(bytes)
}

/// As [`rebuild`], for lost+found, which retains its size: mke2fs allocates its blocks in advance, so that a repair of
/// a full volume can link files into it.
pub(super) fn rebuild_lost_and_found(work: &Work<'_>, dir: InodeNo, more: Vec<Named>) -> Result<bool> {
    rebuild_retaining(work, dir, more, true, |_| true)
}

fn rebuild_retaining(
    work: &Work<'_>,
    dir: InodeNo,
    more: Vec<Named>,
    retains_size: bool,
    retain: impl Fn(&[u8]) -> bool,
) -> Result<bool> {
    work.make_stale();
    let Some(mut inode) = work.inode(dir)? else { return Ok(false) };
    let Some(format) = format_of(work, &inode) else { return Ok(false) };
    // inline data is not a map
    if inode.raw().flags().contains(InodeFlags::INLINE_DATA) && !inline::move_out(work, dir, &mut inode)? {
        return Ok(false);
    }
    let (blocks, nodes) = maps::dense(work, dir, &inode)?;
    let mut check = EntryCheck::new(work, dir)?;
    let mut names = Vec::new();
    let mut parent = None;
    for (n, block) in blocks.iter().enumerate() {
        let Some(bytes) = directory_block(work, n, *block)? else { continue };
        let tail = work.leaf_tail(&bytes);
        let chain = bytes.get(..bytes.len() - tail).unwrap_or_default();
        for named in entries::all(work, chain, format.dir.hashed) {
            match named.name.as_slice() {
                b".." if n == 0 => parent = parent.or(Some(named.inode)),
                name => match check.check(named.inode, name) {
                    Verdict::Clear => {}
                    Verdict::Retain { file_type } => names.push(Named { file_type, ..named }),
                    Verdict::Rename { name, file_type } => names.push(Named { name, file_type, ..named }),
                },
            }
        }
    }
    names.retain(|named| retain(&named.name));
    names.extend(more);
    let parent = parent.unwrap_or(InodeNo::ROOT);
    let own = maps::exclusive(work, &nodes);
    // one with a hash tree is larger than mke2fs makes it, and needs the tree
    let retains_size = retains_size && !inode.raw().flags().contains(InodeFlags::INDEX);
    let old = Old { blocks: &blocks, nodes: &own, retains_size };
    let written = write(work, dir, &mut inode, parent, names, old)?;
    if written {
        work.put_inode(dir, inode)?;
    }
    Ok(written)
}

/// Writes these names into a directory with the blocks of `old`; further blocks are allocated. Changes `inode`, which
/// the caller writes. `false` where there is no free block.
pub(super) fn write(
    work: &Work<'_>,
    dir: InodeNo,
    inode: &mut InodeBuf,
    parent: InodeNo,
    names: Vec<Named>,
    old: Old<'_>,
) -> Result<bool> {
    let Some(format) = format_of(work, inode) else { return Ok(false) };
    let flags = inode.raw().flags();
    let names = make_unique(names, flags.contains(InodeFlags::CASEFOLD), flags.contains(InodeFlags::ENCRYPT));
    let geometry = &work.volume().geometry;
    let seed = inode.raw().seed(geometry, dir);
    let builder = Builder { work, format, seed, dir, parent, folded: flags.contains(InodeFlags::CASEFOLD) };
    let at_size = old.retains_size.then(|| builder.at_size(&names, old.blocks.len().min(RETAINED))).flatten();
    let (contents, indexed) = at_size.map_or_else(|| builder.contents(&names), |contents| (contents, false));
    let ratio = geometry.cluster_blocks as usize;
    let mut places: Vec<u64> = old.blocks.iter().copied().take(contents.len()).collect();
    while places.len() < contents.len() {
        // the blocks of a cluster are contiguous
        let next = match places.last() {
            Some(last) if !places.len().is_multiple_of(ratio) => Some(last + 1),
            _ => work.allocate_metadata(),
        };
        let Some(block) = next else { return Ok(false) };
        places.push(block);
    }
    for (block, bytes) in places.iter().zip(&contents) {
        work.put_block(*block, bytes)?;
    }
    let extra = u64::from(inode.raw().file_acl(true).get() != 0);
    if !maps::write_dense(work, dir, inode, &places, old.nodes, extra)? {
        return Ok(false);
    }
    inode.set_size((contents.len() * work.block_size()) as u64);
    let mut flags = inode.raw().flags();
    flags.set(InodeFlags::INDEX, indexed);
    inode.set_flags(flags);
    Ok(true)
}

struct Builder<'a, 'w> {
    work: &'a Work<'w>,
    format: IndexFormat,
    seed: u32,
    dir: InodeNo,
    parent: InodeNo,
    folded: bool,
}

impl Builder<'_, '_> {
    fn dir_format(&self) -> DirFormat {
        self.format.dir
    }

    fn block_size(&self) -> usize {
        self.work.block_size()
    }

    /// Bytes for entries in a leaf.
    fn capacity(&self) -> usize {
        self.block_size() - self.work.volume().geometry.leaf_tail().size()
    }

    fn len_of(&self, named: &Named) -> usize {
        entry_len(named.name.len() as u8, self.format.dir.hashed)
    }

    /// The blocks of the directory, and whether they begin with a hash tree.
    fn contents(&self, names: &[Named]) -> (Vec<Vec<u8>>, bool) {
        let all: usize = names.iter().map(|named| self.len_of(named)).sum();
        let index = self.work.volume().features.compat.contains(Compat::DIR_INDEX) && !self.format.dir.hashed;
        if DOTS + all > self.capacity()
            && index
            && let Some(contents) = self.indexed(names)
        {
            return (contents, true);
        }
        (self.linear(names), false)
    }

    /// The blocks of an unindexed directory.
    fn linear(&self, names: &[Named]) -> Vec<Vec<u8>> {
        let mut blocks = Vec::new();
        let mut rest = names;
        loop {
            let mut block = vec![0; self.block_size()];
            let start = if blocks.is_empty() { self.put_dots(&mut block, DOTS) } else { 0 };
            rest = self.fill(&mut block, blocks.len() as u64, start, rest);
            blocks.push(block);
            if rest.is_empty() {
                return blocks;
            }
        }
    }

    /// The blocks of an unindexed directory of `size` blocks, of which the last may be empty; `None` where it needs
    /// more.
    fn at_size(&self, names: &[Named], size: usize) -> Option<Vec<Vec<u8>>> {
        let mut blocks = self.linear(names);
        while blocks.len() < size {
            let mut block = vec![0; self.block_size()];
            self.fill(&mut block, blocks.len() as u64, 0, &[]);
            blocks.push(block);
        }
        (blocks.len() == size).then_some(blocks)
    }

    /// Writes "." and "..", which extends to `end`; returns the offset of further entries.
    fn put_dots(&self, block: &mut [u8], end: usize) -> usize {
        for (from, to, inode, name) in [(0, 12, self.dir, b".".as_slice()), (12, end, self.parent, b"..")] {
            if let Some(space) = block.get_mut(from..to) {
                let _ = write_entry(space, inode, name, Some(FileType::Directory), None, self.dir_format());
            }
        }
        end
    }

    /// Writes as many entries as fit after `start` into block `at_block`, extends the last one to the end, and sets the
    /// block's checksum. Returns the remaining names.
    fn fill<'n>(&self, block: &mut [u8], at_block: u64, start: usize, names: &'n [Named]) -> &'n [Named] {
        let capacity = self.capacity();
        let mut at = start;
        let mut count = 0;
        for named in names {
            let len = self.len_of(named);
            if at + len > capacity {
                break;
            }
            let last = names.get(count + 1).is_none_or(|next| at + len + self.len_of(next) > capacity);
            let end = if last { capacity } else { at + len };
            if let Some(space) = block.get_mut(at..end) {
                let kind = FileType::from_raw(named.file_type);
                let hash = named.hash.or(self.format.dir.hashed.then_some(NameHash { hash: 0, minor: 0 }));
                let _ = write_entry(space, named.inode, &named.name, kind, hash, self.dir_format());
            }
            at = end;
            count += 1;
        }
        let block_size = self.dir_format().block_size;
        if count == 0 {
            // only the dots, or no entries: the last entry takes the rest
            let (from, inode) = if start == 0 { (0, None) } else { (12, Some(self.parent)) };
            entries::set_rec_len(block, from, capacity - from, block_size);
            if let Some(inode) = inode {
                entries::set_inode(block, from, inode);
            }
        }
        self.work.set_leaf_checksum(block, self.dir, at_block, self.seed);
        names.get(count..).unwrap_or_default()
    }

    /// A hash tree: its root, the leaves, then the nodes between them. `None` where no hash can be computed or there
    /// are too many names.
    fn indexed(&self, names: &[Named]) -> Option<Vec<Vec<u8>>> {
        let ctx = self.work.walk()?.ctx;
        let version = HashVersion::from_raw(self.work.volume().disk.s_def_hash_version)?;
        let hasher = hasher(ctx, version)?;
        let mut sorted: Vec<(NameHash, Named)> = names
            .iter()
            .map(|named| {
                let folded = self.folded.then(|| casefold::fold(&named.name)).flatten();
                (hasher.hash(folded.as_deref().unwrap_or(&named.name)), named.clone())
            })
            .collect();
        sorted.sort_by_key(|(hash, _)| (hash.hash, hash.minor));
        let hashes: Vec<u32> = sorted.iter().map(|(hash, _)| hash.hash & !CONTINUES).collect();
        let names: Vec<Named> = sorted.into_iter().map(|(_, named)| named).collect();
        let mut contents = vec![vec![]];
        // for each block: the lowest hash in it, and its number
        let mut level: Vec<(u32, u32)> = Vec::new();
        let mut rest = names.as_slice();
        while !rest.is_empty() {
            let at = names.len() - rest.len();
            let hash = *hashes.get(at)?;
            let continues = at > 0 && hashes.get(at - 1) == Some(&hash);
            level.push((hash | if continues { CONTINUES } else { 0 }, contents.len() as u32));
            let mut block = vec![0; self.block_size()];
            rest = self.fill(&mut block, contents.len() as u64, 0, rest);
            contents.push(block);
        }
        let mut levels = 0u8;
        while level.len() > self.format.root_limit() {
            if levels >= self.format.max_indirect_levels() {
                return None;
            }
            let mut above = Vec::new();
            for chunk in level.chunks(self.format.node_limit()) {
                let mut block = vec![0; self.block_size()];
                entries::set_rec_len(&mut block, 0, self.block_size(), self.dir_format().block_size);
                self.put_index(&mut block, NODE_HEAD, self.format.node_limit(), chunk)?;
                above.push((chunk.first()?.0, contents.len() as u32));
                contents.push(block);
            }
            level = above;
            levels += 1;
        }
        let mut root = vec![0; self.block_size()];
        self.put_dots(&mut root, self.block_size());
        let version = self.work.volume().disk.s_def_hash_version;
        root.get_mut(DOTS..ROOT_HEAD)?.copy_from_slice(&[0, 0, 0, 0, version, 8, levels, 0]);
        self.put_index(&mut root, ROOT_HEAD, self.format.root_limit(), &level)?;
        *contents.first_mut()? = root;
        Some(contents)
    }

    /// Writes the entries of an index block and its checksum.
    fn put_index(&self, block: &mut [u8], at: usize, limit: usize, entries: &[(u32, u32)]) -> Option<()> {
        for (n, (hash, child)) in entries.iter().enumerate() {
            let place = block.get_mut(at + n * 8..at + n * 8 + 8)?;
            let (head, tail) = place.split_at_mut(4);
            head.copy_from_slice(&hash.to_le_bytes());
            tail.copy_from_slice(&child.to_le_bytes());
        }
        // in place of the first hash, which is 0 in any case
        block.get_mut(at..at + 2)?.copy_from_slice(&u16::try_from(limit).ok()?.to_le_bytes());
        block.get_mut(at + 2..at + 4)?.copy_from_slice(&u16::try_from(entries.len()).ok()?.to_le_bytes());
        self.work.set_index_checksum(block, self.dir, self.seed);
        Some(())
    }
}

/// The shortest entry is as long as its head and four bytes of a name.
const _: () = assert!(DirEntry::SIZE + 4 == 12);

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str, inode: u32) -> Named {
        Named { name: name.into(), inode: InodeNo(inode), file_type: 1, hash: None }
    }

    /// So many equal names that searching for a free number from the beginning each time would take hours.
    #[test]
    fn many_equal_names_become_distinct() {
        let names =
            (0..300_000).map(|n| named("same", 12 + n)).chain([named("same~7", 5), named("same", 12)]).collect();
        let unique = make_unique(names, false, false);
        assert_eq!(unique.len(), 300_001, "of two entries with the same name and inode one goes");
        let distinct: HashSet<&[u8]> = unique.iter().map(|named| named.name.as_slice()).collect();
        assert_eq!(distinct.len(), unique.len());
        assert!(unique.iter().any(|named| named.name == b"same~7" && named.inode == InodeNo(5)), "a name in use stays");
        // long names are cut so that the number fits
        let long = "x".repeat(255);
        let unique = make_unique(vec![named(&long, 12), named(&long, 13)], false, false);
        assert!(unique.iter().all(|named| named.name.len() <= 255) && unique.len() == 2);
        assert_eq!(make_unique(vec![named("a", 12), named("a", 13)], false, true).len(), 1, "encrypted names stay");
    }
}
