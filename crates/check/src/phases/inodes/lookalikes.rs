//! Inodes whose type cannot be right: an inode that is a device, pipe, socket or of no type may have the map and the
//! first block of a directory; then only the four type bits are wrong.

use crate::scan::Scanner;
use crate::volume::Volume;
use format::InodeNo;
use format::dir::{DirEntry, decode_rec_len};
use format::extent::{self, RawNode};
use format::feature::Incompat;
use format::inode::{FileKind, InodeFlags, RawInode};

/// Words of `i_block` that a device number may occupy.
const DEVICE_WORDS: usize = 4;

/// Whether an inode of another type is a directory by its map and its first block. Inodes without a map and devices
/// with a link and a number are skipped, so that few blocks are read for this.
pub(crate) fn like_directory(scanner: &Scanner<'_>, volume: &Volume, inode: InodeNo, raw: &RawInode<'_>) -> bool {
    let kind = raw.kind();
    let words = raw.block_words::<15>();
    let [first, ..] = words;
    // the root is a directory, whatever its type
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
        return is_inline_directory(volume, inode, &raw.disk.i_block);
    }
    let (block, is_map) = if flags.contains(InodeFlags::EXTENTS) && volume.features.incompat.contains(Incompat::EXTENT)
    {
        let Some(block) = first_block(scanner, volume, &raw.disk.i_block) else { return false };
        (block, true)
    } else {
        if words.iter().any(|word| *word != 0 && !volume.contains((*word).into())) {
            return false;
        }
        (first.into(), words.iter().skip(DEVICE_WORDS).any(|word| *word != 0))
    };
    let device = matches!(kind, Some(FileKind::CharDevice | FileKind::BlockDevice));
    if device && !is_map && raw.disk.i_links_count.get() == 1 || !volume.contains(block) {
        return false;
    }
    scanner.read_block(volume, block).is_some_and(|bytes| begins_as_directory(&bytes, inode))
}

/// The first block of a file by its extent tree, where that maps file block 0.
fn first_block(scanner: &Scanner<'_>, volume: &Volume, root: &[u8]) -> Option<u64> {
    let mut bytes = root.to_vec();
    for above in (0..=extent::MAX_DEPTH).rev() {
        let node = RawNode::from_bytes(&bytes).filter(|node| node.header.eh_magic.get() == extent::MAGIC)?;
        let depth = node.header.eh_depth.get();
        if depth == 0 {
            return node.extents().first().filter(|e| e.ee_block.get() == 0).map(|e| e.start().get());
        }
        // the depth decreases with every step
        let child = node.indexes().first().filter(|e| depth <= above && e.ei_block.get() == 0)?.child().get();
        bytes = scanner.read_block(volume, child).filter(|_| volume.contains(child))?;
    }
    None
}

/// Whether `i_block` contains an inline directory: the parent, and a complete chain of entries.
fn is_inline_directory(volume: &Volume, inode: InodeNo, i_block: &[u8; 60]) -> bool {
    let geometry = &volume.geometry;
    let exists = |n: u32| n == InodeNo::ROOT.get() || (geometry.first_inode..=geometry.inodes).contains(&n);
    let [p0, p1, p2, p3, entries @ ..] = i_block;
    let parent = u32::from_le_bytes([*p0, *p1, *p2, *p3]);
    let mut rest = entries.as_slice();
    while let Some([i0, i1, i2, i3, r0, r1, name_len, _]) = rest.first_chunk::<{ DirEntry::SIZE }>() {
        let number = u32::from_le_bytes([*i0, *i1, *i2, *i3]);
        let len = usize::from(u16::from_le_bytes([*r0, *r1]));
        let named = number == 0 || exists(number) && *name_len > 0;
        if len < 12 || !len.is_multiple_of(4) || usize::from(*name_len) + DirEntry::SIZE > len || !named {
            return false;
        }
        let Some(behind) = rest.get(len..) else { return false };
        rest = behind;
    }
    rest.is_empty() && exists(parent) && parent != inode.get()
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

/// The name of an inode's type.
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
