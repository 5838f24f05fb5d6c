//! The connections to the root: the root itself, parents, lost+found, and link counts.

use super::entries;
use super::maps;
use super::rebuild;
use super::renames::Named;
use super::superblock;
use super::work::Work;
use crate::inode_records::kind_number;
use crate::problem::Problem;
use crate::table::Code;
use blockdev::Result;
use format::InodeNo;
use format::feature::Incompat;
use format::inode::{FileKind, InodeBuf, InodeFlags, Timestamp};
use std::collections::HashSet;

/// Its mode, as set by mke2fs.
const LOST_MODE: u16 = 0o040_700;
/// The mode of a new root.
const ROOT_MODE: u16 = 0o040_755;

/// Creates a new, empty root.
pub(super) fn make_root(work: &Work<'_>) -> Result<()> {
    work.make_stale();
    work.open_inode(InodeNo::ROOT)?;
    make_directory(work, InodeNo::ROOT, InodeNo::ROOT, ROOT_MODE).map(|_| ())
}

/// Creates an empty directory; `false` where there is no free block.
fn make_directory(work: &Work<'_>, number: InodeNo, parent: InodeNo, mode: u16) -> Result<bool> {
    let mut inode = work.blank_inode();
    inode.set_mode(mode);
    inode.set_links(2);
    inode.set_flags(maps::new_file_flags(work));
    let now = Timestamp { seconds: work.now.cast_signed(), nanos: 0 };
    inode.set_atime(now);
    inode.set_ctime(now);
    inode.set_mtime(now);
    inode.set_crtime(now);
    if !rebuild::write(work, number, &mut inode, parent, Vec::new(), rebuild::Old::default())? {
        return Ok(false);
    }
    work.put_inode(number, inode)?;
    Ok(true)
}

/// Repairs connectivity: root, `..`, unattached directories.
pub(super) fn connect(work: &Work<'_>, problems: &[&Problem]) -> Result<()> {
    if problems.iter().any(|p| p.code == Code::RootMissing) {
        return make_root(work);
    }
    work.make_stale();
    let astray: Vec<InodeNo> = problems
        .iter()
        .filter(|p| matches!(p.code, Code::DirectoryUnconnected | Code::DirectoryLoop))
        .filter_map(|p| p.inode)
        .filter(|inode| *inode != InodeNo::ROOT)
        .collect();
    for problem in problems.iter().filter(|p| p.code == Code::DotDotWrong) {
        if let (Some(dir), Some(parent)) = (problem.inode, problem.expected.and_then(|n| u32::try_from(n).ok())) {
            set_dotdot(work, dir, InodeNo(parent))?;
        }
    }
    let missing = problems.iter().any(|p| matches!(p.code, Code::LostAndFoundMissing));
    if missing || !astray.is_empty() {
        attach(work, &astray)?;
    }
    Ok(())
}

/// Links inodes into lost+found. If that is missing it is created, and the next iteration links them.
fn attach(work: &Work<'_>, inodes: &[InodeNo]) -> Result<()> {
    work.make_stale();
    let Some(walk) = work.walk() else { return Ok(()) };
    let with_types = work.volume().features.incompat.contains(Incompat::FILETYPE);
    let type_of = |kind| if with_types { kind_number(kind) } else { 0 };
    let Some(lost) = rebuild::find_lost(work)? else {
        let Some(number) = work.allocate_inode()? else { return Ok(()) };
        if !make_directory(work, number, InodeNo::ROOT, LOST_MODE)? {
            return Ok(());
        }
        let entry = Named {
            inode: number,
            name: rebuild::LOST.to_vec(),
            file_type: type_of(Some(FileKind::Directory)),
            hash: None,
        };
        if !rebuild::replace(work, InodeNo::ROOT, vec![entry])? {
            work.wipe_inode(number)?;
        }
        return Ok(());
    };
    let mut seen = HashSet::new();
    let found: Vec<_> = inodes.iter().filter(|inode| **inode != lost && seen.insert(**inode)).collect();
    let names: Vec<Named> = found
        .iter()
        .map(|inode| {
            let kind = walk.ctx.inodes.get(**inode).and_then(|record| record.kind);
            Named { inode: **inode, name: format!("#{inode}").into_bytes(), file_type: type_of(kind), hash: None }
        })
        .collect();
    if names.is_empty() || !rebuild::rebuild_lost_and_found(work, lost, names)? {
        return Ok(());
    }
    for inode in found {
        if walk.directories.get(*inode).is_some() {
            set_dotdot(work, *inode, lost)?;
        }
    }
    Ok(())
}

/// Sets the `..` of a directory to `parent`.
fn set_dotdot(work: &Work<'_>, dir: InodeNo, parent: InodeNo) -> Result<()> {
    let Some(mut inode) = work.inode(dir)? else { return Ok(()) };
    if inode.raw().flags().contains(InodeFlags::INLINE_DATA) {
        let mut block = inode.raw().disk.i_block;
        entries::set_inode(&mut block, 0, parent);
        inode.set_block(block);
        return work.put_inode(dir, inode);
    }
    let (blocks, _) = maps::dense(work, dir, &inode)?;
    let Some(first) = blocks.first() else { return Ok(()) };
    let Some(mut bytes) = work.block(*first)? else { return Ok(()) };
    let block_size = work.volume().geometry.block_size;
    let with_types = work.volume().features.incompat.contains(Incompat::FILETYPE);
    entries::correct_dot(&mut bytes, block_size);
    let file_type = if with_types { kind_number(Some(FileKind::Directory)) } else { 0 };
    entries::repair_dots(&mut bytes, block_size, dir, Some(parent), file_type);
    let seed = inode.raw().seed(&work.volume().geometry, dir);
    if work.leaf_tail(&bytes) > 0 {
        work.set_leaf_checksum(&mut bytes, dir, 0, seed);
    } else {
        work.set_index_checksum(&mut bytes, dir, seed);
    }
    work.put_block(*first, &bytes)
}

/// Repairs link counts, and links unattached inodes into lost+found.
pub(super) fn count(work: &Work<'_>, problems: &[&Problem]) -> Result<()> {
    superblock::add_features(work, problems)?;
    let empty: HashSet<InodeNo> =
        problems.iter().filter(|p| p.code == Code::InodeUnattachedEmpty).filter_map(|p| p.inode).collect();
    let mut nameless = Vec::new();
    for problem in problems {
        let Some(number) = problem.inode else { continue };
        match problem.code {
            Code::LinkCountWrong => {
                let links = problem.expected.and_then(|n| u16::try_from(n).ok()).unwrap_or(1);
                work.edit_inode(number, |inode| inode.set_links(links))?;
            }
            Code::DirectoryLinkCountOverflow => work.edit_inode(number, |inode| inode.set_links(1))?,
            Code::InodeUnattachedEmpty => work.clear_inode(number)?,
            Code::InodeUnattached if !empty.contains(&number) => nameless.push(number),
            Code::XattrValueInodeFlagStray => work.edit_inode(number, |inode| {
                let flags = inode.raw().flags() - InodeFlags::EA_INODE;
                inode.set_flags(flags);
            })?,
            Code::XattrValueInodeRefcountWrong => {
                let count = problem.expected.unwrap_or(1);
                work.edit_inode(number, |inode: &mut InodeBuf| {
                    let disk = inode.disk_mut();
                    disk.i_ctime = ((count >> 32) as u32).into();
                    disk.i_version_lo = (count as u32).into();
                })?;
            }
            _ => {}
        }
    }
    if nameless.is_empty() { Ok(()) } else { attach(work, &nameless) }
}
