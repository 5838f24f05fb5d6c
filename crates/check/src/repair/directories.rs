//! Directories: blocks are repaired in place where that suffices; otherwise the directory is rebuilt.

use super::entries::{self, EntryCheck};
use super::inline;
use super::maps;
use super::rebuild;
use super::work::Work;
use crate::phases::directories::hash_tree::{HtreeBlock, index_format};
use crate::problem::Problem;
use crate::table::Code;
use blockdev::Result;
use format::InodeNo;
use format::dir::{DirEntry, DirFormat};
use format::feature::{Incompat, RoCompat};
use format::htree::IndexFormat;
use format::inode::{FileKind, InodeBuf, InodeFlags};
use std::collections::BTreeMap;

/// Repairs all directories that have a problem.
pub(super) fn repair(work: &Work<'_>, problems: &[&Problem]) -> Result<()> {
    let mut by_dir: BTreeMap<InodeNo, bool> = BTreeMap::new();
    for problem in problems {
        if let Some(dir) = problem.owner() {
            *by_dir.entry(dir).or_insert(false) |= asks_for_rebuilding(problem.code);
        }
    }
    let lost = rebuild::find_lost(work)?;
    for (dir, anew) in by_dir {
        work.make_stale();
        let Some(mut inode) = work.inode(dir)? else { continue };
        if inode.kind() != Some(FileKind::Directory) {
            continue;
        }
        if inode.raw().flags().contains(InodeFlags::INLINE_DATA | InodeFlags::INDEX) {
            // an inline directory has no blocks to index; its other problems are found when it is read again
            inode.set_flags(inode.raw().flags().difference(InodeFlags::INDEX));
            work.put_inode(dir, inode)?;
        } else if inode.raw().flags().contains(InodeFlags::INLINE_DATA) {
            if inline::move_out(work, dir, &mut inode)? {
                work.put_inode(dir, inode)?;
            } else {
                work.clear_inode(dir)?;
            }
        } else if anew || !repair_in_place(work, dir, &inode)? {
            match lost == Some(dir) {
                true => rebuild::rebuild_lost_and_found(work, dir, Vec::new())?,
                false => rebuild::rebuild(work, dir, Vec::new())?,
            };
        }
    }
    Ok(())
}

/// Whether a problem requires rebuilding the directory.
fn asks_for_rebuilding(code: Code) -> bool {
    matches!(
        code,
        Code::DirectoryHole
            | Code::HtreeBlockUnreferenced
            | Code::HtreeBlockReferencedTwice
            | Code::HtreeMinimumHashWrong
            | Code::HtreeMaximumHashWrong
            | Code::HtreeInvalid
            | Code::HtreeBlockOutOfRange
            | Code::HtreeRootInvalid
            | Code::HtreeLimitWrong
            | Code::HtreeCountWrong
            | Code::HtreeHashOrderWrong
            | Code::HtreeDepthWrong
            | Code::HtreeRootChecksumWrong
            | Code::HtreeNodeChecksumWrong
            | Code::HtreeRootBad
            | Code::HtreeHashVersionUnknown
            | Code::HtreeFlagsUnknown
            | Code::HtreeTooDeep
            | Code::HtreeNeedsSiphash
            | Code::HtreeCannotUseSiphash
            | Code::EntryDuplicate
            | Code::DirectoryChecksumTailMissing
    )
}

/// The format of the entries and index blocks of a directory.
pub(super) fn format_of(work: &Work<'_>, inode: &InodeBuf) -> Option<IndexFormat> {
    let incompat = work.volume().features.incompat;
    let flags = inode.raw().flags();
    let hashed = flags.contains(InodeFlags::ENCRYPT | InodeFlags::CASEFOLD)
        && incompat.contains(Incompat::ENCRYPT | Incompat::CASEFOLD);
    let dir = DirFormat {
        block_size: work.volume().geometry.block_size,
        file_type: incompat.contains(Incompat::FILETYPE),
        hashed,
    };
    Some(index_format(work.walk()?.ctx, dir))
}

/// Repairs the blocks of a directory in place. `false` where it has to be rebuilt.
fn repair_in_place(work: &Work<'_>, dir: InodeNo, inode: &InodeBuf) -> Result<bool> {
    let Some(format) = format_of(work, inode) else { return Ok(true) };
    let block_size = work.volume().geometry.block_size;
    let indexed = inode.raw().flags().contains(InodeFlags::INDEX);
    let seed = inode.raw().seed(&work.volume().geometry, dir);
    let sums = work.volume().features.ro_compat.contains(RoCompat::METADATA_CSUM);
    let (blocks, _) = maps::dense(work, dir, inode)?;
    let mut check = EntryCheck::new(work, dir)?;
    let dir_type = check.file_type(dir);
    for (n, block) in (0u32..).zip(blocks) {
        let Some(mut bytes) = work.block(block)? else { continue };
        let before = bytes.clone();
        if n == 0 {
            entries::correct_dot(&mut bytes, block_size);
        }
        let kind = if indexed { HtreeBlock::of(&bytes, n, &format) } else { HtreeBlock::Leaf };
        if kind == HtreeBlock::Node {
            continue;
        }
        let leaf = kind == HtreeBlock::Leaf;
        let tail = if leaf { work.leaf_tail(&bytes) } else { 0 };
        let end = bytes.len() - tail;
        let Some(chain) = bytes.get_mut(..end) else { continue };
        entries::salvage(chain, block_size, work.volume().geometry.inodes);
        if n == 0 {
            entries::repair_dots(chain, block_size, dir, None, dir_type);
        }
        for spot in entries::spots(chain, block_size).into_iter().skip(if n == 0 { 2 } else { 0 }) {
            if spot.inode == 0 {
                continue;
            }
            let start = spot.at + DirEntry::SIZE;
            let name = chain.get(start..start + spot.name_len).unwrap_or_default().to_vec();
            let verdict = check.check(InodeNo(spot.inode), &name);
            if entries::put(chain, &spot, &verdict) && indexed {
                return Ok(false);
            }
        }
        if sums && leaf {
            if tail == 0 && !make_space(&mut bytes, block_size, work.volume().geometry.leaf_tail().size()) {
                return Ok(false);
            }
            work.set_leaf_checksum(&mut bytes, dir, n.into(), seed);
        } else if sums && bytes != before {
            work.set_index_checksum(&mut bytes, dir, seed);
        }
        work.put_block(block, &bytes)?;
    }
    Ok(true)
}

/// Shortens the last entry of a block so that a tail of `tail` bytes fits after it; `false` where the entry is too
/// short.
fn make_space(bytes: &mut [u8], block_size: u32, tail: usize) -> bool {
    let Some(last) = entries::spots(bytes, block_size).pop() else { return false };
    let needed = if last.inode == 0 { 12 } else { (DirEntry::SIZE + last.name_len).next_multiple_of(4).max(12) };
    if last.rec_len < needed + tail {
        return false;
    }
    entries::set_rec_len(bytes, last.at, last.rec_len - tail, block_size);
    true
}
