//! Changes to the bytes of a hash tree: index blocks created, filled and split, and leaves split in the order of
//! hashes.

use super::block::{NewEntry, needed};
use format::dir::{DirEntry, DirFormat, encode_rec_len};
use format::hash::{CONTINUES, HashVersion, NameHash};
use format::htree::{DxCountLimit, DxEntry, DxRootInfo, Index, IndexFormat};
use format::{FileBlock, InodeNo};
use zerocopy::{FromBytes, IntoBytes};

/// The offset in bytes of the entries of an index: in the root behind "..", and in any other index block.
const ROOT_ENTRIES: usize = 32;
const NODE_ENTRIES: usize = 8;
const ROOT_INFO: usize = 24;

/// An entry of an index: the lowest hash, and the block.
pub(crate) type Child = (u32, FileBlock);

fn start(is_root: bool) -> usize {
    if is_root { ROOT_ENTRIES } else { NODE_ENTRIES }
}

fn entry(child: Child) -> Option<DxEntry> {
    Some(DxEntry { hash: child.0.into(), block: u32::try_from(child.1.get()).ok()?.into() })
}

/// Fills an index block with exactly these entries. The hash of the first one is not stored.
fn set_entries(block: &mut [u8], start: usize, limit: usize, entries: &[Child]) -> Option<()> {
    let space = block.get_mut(start..)?;
    for (slot, &child) in space.chunks_exact_mut(DxEntry::SIZE).zip(entries) {
        slot.copy_from_slice(entry(child)?.as_bytes());
    }
    let head = DxCountLimit {
        limit: u16::try_from(limit).ok()?.into(),
        count: u16::try_from(entries.len()).ok().filter(|&count| usize::from(count) <= limit && count > 0)?.into(),
    };
    space.get_mut(..DxCountLimit::SIZE)?.copy_from_slice(head.as_bytes());
    // clears the rest; the space for a checksum follows the index
    let used = entries.len() * DxEntry::SIZE;
    space.get_mut(used..)?.fill(0);
    Some(())
}

/// Creates the root of an index with one leaf.
pub(crate) fn make_root(
    block: &mut [u8],
    own: InodeNo,
    parent: (InodeNo, u8),
    version: HashVersion,
    leaf: FileBlock,
    format: &IndexFormat,
) -> Option<()> {
    let kind = parent.1;
    block.fill(0);
    let dots = [(0, own, &b"."[..], 12), (12, parent.0, b"..", block.len() - 12)];
    for (at, inode, name, len) in dots {
        let rec_len = encode_rec_len(u32::try_from(len).ok()?, format.dir.block_size)?;
        let head = DirEntry {
            inode: inode.get().into(),
            rec_len: rec_len.into(),
            name_len: name.len() as u8,
            file_type: kind,
        };
        block.get_mut(at..at + DirEntry::SIZE)?.copy_from_slice(head.as_bytes());
        block.get_mut(at + DirEntry::SIZE..at + DirEntry::SIZE + name.len())?.copy_from_slice(name);
    }
    let info = DxRootInfo {
        reserved_zero: 0.into(),
        hash_version: version.raw(),
        info_length: DxRootInfo::SIZE as u8,
        indirect_levels: 0,
        unused_flags: 0,
    };
    block.get_mut(ROOT_INFO..ROOT_ENTRIES)?.copy_from_slice(info.as_bytes());
    set_entries(block, ROOT_ENTRIES, format.root_limit(), &[(0, leaf)])
}

/// Creates an index block that is not the root.
pub(crate) fn make_node(block: &mut [u8], entries: &[Child], format: &IndexFormat) -> Option<()> {
    block.fill(0);
    let head = DirEntry {
        inode: 0.into(),
        rec_len: encode_rec_len(format.dir.block_size, format.dir.block_size)?.into(),
        name_len: 0,
        file_type: 0,
    };
    block.get_mut(..DirEntry::SIZE)?.copy_from_slice(head.as_bytes());
    set_entries(block, NODE_ENTRIES, format.node_limit(), entries)
}

/// Inserts an entry after the one at `position`. There must be space.
pub(crate) fn insert_below(block: &mut [u8], is_root: bool, position: usize, child: Child) -> Option<()> {
    let space = block.get_mut(start(is_root)..)?;
    let (head, _) = DxCountLimit::mut_from_prefix(space).ok()?;
    let (count, limit) = (usize::from(head.count.get()), usize::from(head.limit.get()));
    if count >= limit || position >= count {
        return None;
    }
    head.count = (count as u16 + 1).into();
    let at = (position + 1) * DxEntry::SIZE;
    space.get(..(count + 1) * DxEntry::SIZE)?;
    space.copy_within(at..count * DxEntry::SIZE, at + DxEntry::SIZE);
    space.get_mut(at..at + DxEntry::SIZE)?.copy_from_slice(entry(child)?.as_bytes());
    Some(())
}

/// Truncates an index block to its first `count` entries.
pub(crate) fn truncate(block: &mut [u8], is_root: bool, count: usize) -> Option<()> {
    let space = block.get_mut(start(is_root)..)?;
    let (head, _) = DxCountLimit::mut_from_prefix(space).ok()?;
    head.count = u16::try_from(count).ok()?.into();
    Some(())
}

/// Makes the root refer to one index block, which has received its entries: the tree is one level deeper.
pub(crate) fn deepen_root(block: &mut [u8], node: FileBlock, format: &IndexFormat) -> Option<()> {
    let (info, _) = DxRootInfo::mut_from_prefix(block.get_mut(ROOT_INFO..)?).ok()?;
    info.indirect_levels = info.indirect_levels.checked_add(1)?;
    set_entries(block, ROOT_ENTRIES, format.root_limit(), &[(0, node)])
}

/// Whether an index block has no space for another entry.
pub(crate) fn is_full(index: &Index<'_>, is_root: bool, format: &IndexFormat) -> bool {
    index.len() >= if is_root { format.root_limit() } else { format.node_limit() }
}

/// All entries of an index block.
pub(crate) fn all_below(index: &Index<'_>) -> Vec<Child> {
    index.iter().collect()
}

/// The change to a leaf without space for another name.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Split {
    /// All entries fit without gaps between them.
    Compact,
    /// The first `count` entries in the order of hashes stay; the others have this hash in the index.
    At { count: usize, hash: u32 },
}

/// Decides how to gain `need` bytes in a leaf of `capacity` bytes. Sorts `entries` by hash.
pub(crate) fn split(entries: &mut [(NameHash, NewEntry<'_>)], need: usize, capacity: usize) -> Option<Split> {
    let used: usize = entries.iter().map(|(_, e)| needed(e.name)).sum();
    if used + need <= capacity {
        return Some(Split::Compact);
    }
    // stable: entries with one hash stay in their order
    entries.sort_by_key(|(hash, _)| *hash);
    let (mut count, mut bytes) = (0, 0);
    while count < entries.len() && bytes < used / 2 {
        bytes += needed(entries.get(count)?.1.name);
        count += 1;
    }
    let count = count.clamp(1, entries.len().checked_sub(1)?.max(1));
    let first = entries.get(count)?.0.hash;
    let continues = entries.get(count - 1)?.0.hash == first;
    Some(Split::At { count, hash: first | if continues { CONTINUES } else { 0 } })
}

/// The entries of a leaf, or of the first block of a plain directory without its dots, as input of [`split`].
pub(crate) fn hashed_entries<'a>(
    part: &'a [u8],
    format: DirFormat,
    hash: impl Fn(&[u8]) -> NameHash,
) -> format::Result<Vec<(NameHash, NewEntry<'a>)>> {
    let mut all = Vec::new();
    for entry in format::dir::Entries::new(part, format) {
        let e = entry?;
        if e.is_used() && !e.is_dot() {
            all.push((hash(e.name), NewEntry { inode: e.inode, name: e.name, kind: e.kind(&format) }));
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use format::htree::DxRoot;

    const FORMAT: IndexFormat = IndexFormat {
        dir: DirFormat { block_size: 1024, file_type: true, hashed: false },
        checksums: true,
        large_dir: false,
    };

    #[test]
    fn a_root_takes_entries_until_it_is_full_and_deepens() {
        let mut block = vec![0; 1024];
        make_root(&mut block, InodeNo(12), (InodeNo(2), 2), HashVersion::HalfMd4, FileBlock(1), &FORMAT).unwrap();
        for n in 1..FORMAT.root_limit() as u32 {
            // each before the earlier ones
            insert_below(&mut block, true, 0, (10_000 - n * 2, FileBlock(u64::from(n) + 1))).unwrap();
        }
        assert!(insert_below(&mut block, true, 0, (2, FileBlock(9))).is_none());
        let root = DxRoot::parse(&block, &FORMAT).unwrap();
        assert!(is_full(&root.index, true, &FORMAT));
        assert_eq!(root.index.block(root.index.position(9_999)), Some(FileBlock(2)));
        let all = all_below(&root.index);
        let mut node = vec![0; 1024];
        make_node(&mut node, &all, &FORMAT).unwrap();
        deepen_root(&mut block, FileBlock(200), &FORMAT).unwrap();
        let root = DxRoot::parse(&block, &FORMAT).unwrap();
        assert_eq!((root.indirect_levels, root.index.len(), root.index.block(0)), (1, 1, Some(FileBlock(200))));
        assert_eq!(all_below(&Index::parse_node(&node, &FORMAT).unwrap()), all);
        truncate(&mut node, false, 7).unwrap();
        assert_eq!(all_below(&Index::parse_node(&node, &FORMAT).unwrap()), all[..7]);
    }

    fn entries(hashes: &[u32]) -> Vec<(NameHash, NewEntry<'static>)> {
        let new = NewEntry { inode: InodeNo(12), name: b"eight888", kind: None };
        hashes.iter().map(|&hash| (NameHash { hash, minor: 0 }, new)).collect()
    }

    #[test]
    fn leaves_split_in_the_middle_and_say_so_where_a_hash_continues() {
        assert_eq!(split(&mut entries(&[6, 2, 4, 8]), 16, 64), Some(Split::At { count: 2, hash: 6 }));
        assert_eq!(split(&mut entries(&[6, 4, 4, 4]), 16, 64), Some(Split::At { count: 2, hash: 5 }));
        assert_eq!(split(&mut entries(&[6, 2, 4]), 16, 64), Some(Split::Compact));
        assert_eq!(split(&mut entries(&[6, 2]), 16, 32), Some(Split::At { count: 1, hash: 6 }));
        assert_eq!(split(&mut entries(&[6]), 16, 20), None);
    }
}
