//! Changes to the bytes of a directory block: inserting, removing and redirecting entries.
//!
//! A *part* is the space for entries: a block without its checksum tail, or one area of an inline directory. All
//! functions work on a part that was read as consistent before; `None` means that it is not, and that nothing was
//! written.

use format::dir::{
    DirEntry, DirFormat, Entries, FileType, Head, LeafTail, decode_rec_len, encode_rec_len, entry_len, write_entry,
};
use format::{FileBlock, InodeNo};
use zerocopy::FromBytes;

/// An entry to be written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewEntry<'a> {
    pub(crate) inode: InodeNo,
    pub(crate) name: &'a [u8],
    pub(crate) kind: Option<FileType>,
}

/// Bytes needed by an entry with this name.
pub(crate) fn needed(name: &[u8]) -> usize {
    // names have at most 255 bytes
    entry_len(name.len() as u8, false)
}

/// The identity of a leaf block, and its tail.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Leaf {
    pub(crate) tail: LeafTail,
    pub(crate) owner: InodeNo,
    pub(crate) at: FileBlock,
}

/// The offset of the first entry at or after `from` with `need` spare bytes: an unused one, or the end of a used one.
pub(crate) fn find_space(part: &[u8], from: usize, need: usize, format: DirFormat) -> format::Result<Option<usize>> {
    let has_space = |entry: &Head<'_>| {
        // most records are too short for both
        entry.rec_len >= need && {
            let taken = if entry.inode != 0 { entry_len(entry.name_len, format.hashed) } else { 0 };
            entry.rec_len.saturating_sub(taken) >= need
        }
    };
    let entries = Entries::new(part.get(from..).unwrap_or_default(), format);
    Ok(entries.seek(has_space)?.map(|entry| from + entry.offset))
}

fn head(part: &mut [u8], at: usize) -> Option<&mut DirEntry> {
    DirEntry::mut_from_prefix(part.get_mut(at..)?).ok().map(|(head, _)| head)
}

fn set_rec_len(part: &mut [u8], at: usize, len: usize, format: DirFormat) -> Option<()> {
    let raw = encode_rec_len(u32::try_from(len).ok()?, format.block_size)?;
    head(part, at)?.rec_len = raw.into();
    Some(())
}

/// Inserts an entry into the spare bytes of the entry at `at`, and returns the offset of the new one.
pub(crate) fn insert(part: &mut [u8], at: usize, new: &NewEntry<'_>, format: DirFormat) -> Option<usize> {
    let old = *head(part, at)?;
    let rec_len = decode_rec_len(old.rec_len.get(), format.block_size) as usize;
    let taken = if old.inode.get() == 0 { 0 } else { entry_len(old.name_len, format.hashed) };
    let space = part.get_mut(at + taken..at.checked_add(rec_len)?)?;
    write_entry(space, new.inode, new.name, new.kind, None, format)?;
    if taken > 0 {
        set_rec_len(part, at, taken, format)?;
    }
    Some(at + taken)
}

/// Removes the entry at `at`: the entry before it is extended over it; if there is none, it becomes unused.
pub(crate) fn remove(part: &mut [u8], at: usize, format: DirFormat) -> Option<()> {
    let (mut before, mut offset) = (None, 0);
    let found = Entries::new(part, format).seek(|entry| {
        let here = offset == at;
        if !here {
            before = Some((offset, entry.rec_len));
            offset += entry.rec_len;
        }
        here
    });
    let rec_len = found.ok()??.rec_len;
    match before {
        Some((offset, len)) => {
            set_rec_len(part, offset, len + rec_len, format)?;
            part.get_mut(at..at + rec_len)?.fill(0);
        }
        None => {
            let raw_len = head(part, at)?.rec_len;
            part.get_mut(at..at + rec_len)?.fill(0);
            head(part, at)?.rec_len = raw_len;
        }
    }
    Some(())
}

/// Points the entry at `at` to another inode.
pub(crate) fn point(
    part: &mut [u8],
    at: usize,
    inode: InodeNo,
    kind: Option<FileType>,
    format: DirFormat,
) -> Option<()> {
    let entry = head(part, at)?;
    entry.inode = inode.get().into();
    if format.file_type {
        entry.file_type = kind.map_or(0, FileType::raw);
    }
    Some(())
}

/// Fills a part with these entries, consecutively; the last extends to the end.
pub(crate) fn fill(part: &mut [u8], entries: &[NewEntry<'_>], format: DirFormat) -> Option<()> {
    part.fill(0);
    let Some((last, others)) = entries.split_last() else {
        let len = part.len();
        return set_rec_len(part, 0, len, format);
    };
    let mut rest = part;
    for entry in others {
        let (space, after) = rest.split_at_mut_checked(needed(entry.name))?;
        write_entry(space, entry.inode, entry.name, entry.kind, None, format)?;
        rest = after;
    }
    write_entry(rest, last.inode, last.name, last.kind, None, format)
}

/// Fills a whole block with entries, with a tail on volumes that have them (the checksum is set later).
pub(crate) fn make_leaf(block: &mut [u8], entries: &[NewEntry<'_>], format: DirFormat, leaf: Leaf) -> Option<()> {
    let len = block.len().checked_sub(leaf.tail.size())?;
    fill(block.get_mut(..len)?, entries, format)?;
    leaf.tail.write(block, leaf.owner, leaf.at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use testkit::cases;

    const FORMAT: DirFormat = DirFormat { block_size: 1024, file_type: true, hashed: false };

    const LEAF: Leaf = Leaf { tail: LeafTail::Checksum, owner: InodeNo(2), at: FileBlock(0) };

    fn names(part: &[u8]) -> BTreeMap<Vec<u8>, u32> {
        let entries = Entries::new(part, FORMAT).map(|e| e.expect("valid"));
        entries.filter(|e| e.is_used()).map(|e| (e.name.to_vec(), e.inode.get())).collect()
    }

    #[test]
    fn a_part_holds_what_was_put_in_and_not_taken_out() {
        for case in cases("dir block", 40) {
            let mut rng = case.rng();
            let mut block = vec![0; 1024];
            make_leaf(&mut block, &[], FORMAT, LEAF).expect("an empty leaf fits");
            let part = &mut block[..1012];
            let mut model = BTreeMap::new();
            for inode in 1..400u32 {
                if rng.chance(60) {
                    let length = rng.between(1, 60) as usize;
                    let name: Vec<u8> = (0..length).map(|_| b'a' + rng.below(26) as u8).collect();
                    let space = find_space(part, 0, needed(&name), FORMAT).expect("valid");
                    if model.contains_key(&name) {
                        continue;
                    }
                    let Some(at) = space else { continue };
                    let new = NewEntry { inode: InodeNo(inode), name: &name, kind: Some(FileType::Regular) };
                    insert(part, at, &new, FORMAT).expect("there is space");
                    model.insert(name, inode);
                } else if let Some(name) = model.keys().nth(rng.index(model.len())).cloned() {
                    let at = Entries::new(part, FORMAT).find(&name).expect("valid").expect("there").offset;
                    remove(part, at, FORMAT).expect("there");
                    model.remove(&name);
                }
                assert_eq!(names(part), model);
            }
        }
    }

    #[test]
    fn a_full_part_has_no_space_and_an_emptied_one_has_all() {
        let mut part = vec![0; 1024];
        let all: Vec<_> = (0..64u32).map(|n| format!("{n:08}")).collect();
        let entries: Vec<_> =
            all.iter().map(|name| NewEntry { inode: InodeNo(12), name: name.as_bytes(), kind: None }).collect();
        fill(&mut part, &entries, FORMAT).expect("64 entries of 16 bytes fit");
        assert_eq!(find_space(&part, 0, 12, FORMAT), Ok(None));
        for name in &all {
            let at = Entries::new(&part, FORMAT).find(name.as_bytes()).expect("valid").expect("there").offset;
            remove(&mut part, at, FORMAT).expect("there");
        }
        assert_eq!(find_space(&part, 0, 1024, FORMAT), Ok(Some(0)));
        assert!(fill(&mut part[..100], &entries, FORMAT).is_none());
    }

    #[test]
    fn an_entry_is_pointed_elsewhere() {
        let mut part = vec![0; 1024];
        let one = NewEntry { inode: InodeNo(12), name: b"one", kind: Some(FileType::Regular) };
        fill(&mut part, &[one], FORMAT).expect("fits");
        point(&mut part, 0, InodeNo(13), Some(FileType::Directory), FORMAT).expect("there");
        let entry = Entries::new(&part, FORMAT).find(b"one").expect("valid").expect("there");
        assert_eq!((entry.inode, entry.kind(&FORMAT)), (InodeNo(13), Some(FileType::Directory)));
    }
}
