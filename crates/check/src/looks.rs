//! Inodes whose type cannot be right: what is said to be a device, pipe or socket, or nothing at all, may have the map and
//! the first block of a directory, which then has lost nothing but the four bits that say so.

use crate::context::Volume;
use crate::ownfile;
use crate::scan::Scanner;
use format::InodeNo;
use format::dir::{DirEntry, decode_rec_len};
use format::extent::{self, RawNode};
use format::feature::Incompat;
use format::inode::{FileKind, InodeFlags, RawInode};

/// Words of `i_block` that a device's number may take.
const DEVICE_WORDS: usize = 4;

/// Whether an inode of another type is a directory by its map and its first block. What has no map is not asked, nor is a
/// device with a link and a number, so that few blocks are read for this.
pub(crate) fn like_directory(scanner: &Scanner<'_>, volume: &Volume, inode: InodeNo, raw: &RawInode<'_>) -> bool {
    let kind = raw.kind();
    let words = raw.block_words::<15>();
    let [first, ..] = words;
    // the root can be nothing else, whatever it says
    let believed = match kind {
        Some(FileKind::Regular | FileKind::Symlink) => inode != InodeNo::ROOT,
        Some(FileKind::Directory) => true,
        _ => false,
    };
    if believed || first == 0 {
        return false;
    }
    let flags = raw.flags();
    if flags.contains(InodeFlags::INLINE_DATA) && volume.features.incompat.contains(Incompat::INLINE_DATA) {
        return false;
    }
    let (block, is_map) = if flags.contains(InodeFlags::EXTENTS) && volume.features.incompat.contains(Incompat::EXTENT)
    {
        let Some(node) = RawNode::from_bytes(&raw.disk.i_block) else { return false };
        let leaf = node.header.eh_magic.get() == extent::MAGIC && node.header.eh_depth.get() == 0;
        let Some(extent) = node.extents().first().filter(|e| leaf && e.ee_block.get() == 0) else { return false };
        (extent.start().get(), true)
    } else {
        if words.iter().any(|word| *word != 0 && !volume.holds((*word).into())) {
            return false;
        }
        (first.into(), words.iter().skip(DEVICE_WORDS).any(|word| *word != 0))
    };
    let device = matches!(kind, Some(FileKind::CharDevice | FileKind::BlockDevice));
    if device && !is_map && raw.disk.i_links_count.get() == 1 || !volume.holds(block) {
        return false;
    }
    ownfile::read_block(scanner, volume, block).is_some_and(|bytes| begins_as_directory(&bytes, inode))
}

/// Whether a block begins with '.' for this inode, and '..'.
fn begins_as_directory(bytes: &[u8], inode: InodeNo) -> bool {
    let block_size = bytes.len();
    let entry = |at: usize| {
        let [i0, i1, i2, i3, r0, r1, name_len, _] = *bytes.get(at..)?.first_chunk::<{ DirEntry::SIZE }>()?;
        let rec_len = decode_rec_len(u16::from_le_bytes([r0, r1]), block_size as u32) as usize;
        let name = bytes.get(at + DirEntry::SIZE..)?.get(..usize::from(name_len))?;
        (rec_len >= 12 && rec_len.is_multiple_of(4)).then_some((u32::from_le_bytes([i0, i1, i2, i3]), rec_len, name))
    };
    let Some((number, rec_len, b".")) = entry(0) else { return false };
    number == inode.get() && rec_len < block_size - 12 && matches!(entry(rec_len), Some((_, _, b"..")))
}

/// What an inode's type is called.
pub(crate) fn kind_name(kind: Option<FileKind>) -> &'static str {
    match kind {
        Some(FileKind::Regular) => "regular file",
        Some(FileKind::Directory) => "directory",
        Some(FileKind::Symlink) => "symbolic link",
        Some(FileKind::CharDevice) => "character device",
        Some(FileKind::BlockDevice) => "block device",
        Some(FileKind::Fifo) => "named pipe",
        Some(FileKind::Socket) => "socket",
        None => "file of no known type",
    }
}
