//! Inline data and entries, which are moved into a block, where they can be repaired like any other.

use super::attributes;
use super::entries;
use super::maps;
use super::rebuild;
use super::renames::Named;
use super::work::Work;
use blockdev::Result;
use format::InodeNo;
use format::inode::{FileKind, InodeBuf, InodeFlags};

/// Bytes of inline data in `i_block`.
pub(super) const I_BLOCK: usize = 60;

/// Moves the inline data of an inode into blocks. `false` where that is impossible.
pub(super) fn move_out(work: &Work<'_>, number: InodeNo, inode: &mut InodeBuf) -> Result<bool> {
    work.make_stale();
    let head = inode.raw().disk.i_block;
    let tail = attributes::inline_value(inode).unwrap_or_default();
    let flags = (inode.raw().flags() - InodeFlags::INLINE_DATA) | maps::new_file_flags(work);
    let all = [head.as_slice(), tail.as_slice()].concat();
    match inode.kind() {
        Some(FileKind::Directory) => {
            let mut names = Vec::new();
            let parent = head.first_chunk::<4>().map_or(0, |b| u32::from_le_bytes(*b));
            for part in [head.get(4..).unwrap_or_default(), tail.as_slice()] {
                names.extend(entries::all(work, part, false));
            }
            names.retain(|named: &Named| named.inode.get() != 0);
            attributes::drop_inline_value(inode);
            inode.set_flags(flags);
            rebuild::write(work, number, inode, InodeNo(parent), names, rebuild::Old::default())
        }
        Some(FileKind::Symlink) if inode.raw().size() < I_BLOCK as u64 => {
            inode.set_flags(flags - InodeFlags::EXTENTS);
            attributes::drop_inline_value(inode);
            work.set_sectors(inode, 0);
            Ok(true)
        }
        Some(FileKind::Regular | FileKind::Symlink) => {
            let size = inode.raw().size().min(all.len() as u64);
            let mut blocks = Vec::new();
            for chunk in all.get(..size as usize).unwrap_or_default().chunks(work.block_size()) {
                let Some(block) = work.allocate() else { return Ok(false) };
                let mut bytes = vec![0; work.block_size()];
                if let Some(start) = bytes.get_mut(..chunk.len()) {
                    start.copy_from_slice(chunk);
                }
                work.put_block(block, &bytes)?;
                blocks.push(block);
            }
            attributes::drop_inline_value(inode);
            inode.set_flags(flags);
            inode.set_size(size);
            let extra = u64::from(inode.raw().file_acl(true).get() != 0);
            maps::write_dense(work, number, inode, &blocks, &[], extra)
        }
        _ => Ok(false),
    }
}
