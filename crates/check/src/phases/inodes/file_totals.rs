//! The totals of a file's map, and their comparison with the inode.

use super::value_inodes::Mismatch;
use crate::context::Context;
use crate::problem::Problem;
use crate::table::Code;
use format::feature::Incompat;
use format::inode::{FileKind, InodeFlags};
use format::superblock::Geometry;
use format::{FileBlock, InodeNo};
use parking_lot::Mutex;

/// The fields of an inode by which the map of its file is checked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FileFields {
    pub(crate) inode: InodeNo,
    pub(crate) kind: Option<FileKind>,
    pub(crate) flags: InodeFlags,
    /// `i_size`
    pub(crate) size: u64,
    /// `i_blocks`, in units of 512 bytes
    pub(crate) sectors: u64,
    /// Start of the checksums of its blocks.
    pub(crate) seed: u32,
}

impl FileFields {
    /// The inode, and the start of the checksums of its blocks.
    pub(crate) fn owner(&self) -> (InodeNo, u32) {
        (self.inode, self.seed)
    }

    pub(crate) fn is_directory(&self) -> bool {
        self.kind == Some(FileKind::Directory)
    }

    pub(crate) fn is_symlink(&self) -> bool {
        self.kind == Some(FileKind::Symlink)
    }

    /// Mapped by extents.
    pub(crate) fn has_extents(&self) -> bool {
        self.flags.contains(InodeFlags::EXTENTS)
    }
}

/// The totals found while walking a file's map.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tally {
    /// Clusters that belong to the file: data, tree blocks, attribute block.
    pub(crate) clusters: u64,
    /// The highest block of the file that is mapped.
    pub(crate) last: Option<u64>,
    /// The highest one that is mapped and written.
    pub(crate) last_written: Option<u64>,
    /// Runs of extents that are not contiguous with the one before.
    pub(crate) runs: u32,
    /// The blocks that an indirect map refers to.
    pub(crate) named: NamedBlocks,
    /// Whether extents are in a leaf below the root.
    pub(crate) has_leaves: bool,
    /// Whether part of the map could not be followed, so that the totals prove nothing.
    pub(crate) incomplete: bool,
}

/// The blocks that an indirect map refers to, its own and those of data, in any order of reading its blocks.
#[derive(Debug, Clone, Default)]
pub(crate) struct NamedBlocks {
    /// The lowest and the highest of them on the volume.
    ends: Option<(u64, u64)>,
    count: u64,
    /// Whether some do not ascend, or leave a gap after the block of the last level.
    scattered: bool,
}

impl NamedBlocks {
    /// Counts the blocks that an inode or a block of a map refers to; `node` is that block. In a block of the last
    /// level (`is_last`) each must be contiguous with the one before; in others, with more blocks between, only higher.
    pub(crate) fn add(&mut self, node: Option<u64>, is_last: bool, pointers: impl Iterator<Item = u32>) {
        let mut before = node;
        for block in pointers.map(u64::from).filter(|block| *block != 0) {
            self.scattered |= before.is_some_and(|before| if is_last { block != before + 1 } else { block <= before });
            self.ends = Some(self.ends.map_or((block, block), |(first, last)| (first.min(block), last.max(block))));
            self.count += 1;
            before = Some(block);
        }
    }

    /// Adds the blocks that other blocks of the same map refer to.
    pub(crate) fn join(&mut self, other: &Self) {
        self.ends = match (self.ends, other.ends) {
            (Some((first, last)), Some((start, end))) => Some((first.min(start), last.max(end))),
            (one, other) => one.or(other),
        };
        self.count += other.count;
        self.scattered |= other.scattered;
    }

    /// Whether they are not contiguous, in the order of the file with each block of the map before its targets.
    fn are_scattered(&self) -> bool {
        self.scattered || self.ends.is_some_and(|(first, last)| last - first + 1 != self.count)
    }
}

impl Tally {
    /// Whether e2fsck counts the file as non-contiguous: files of a group or more cannot be contiguous, and the resize
    /// inode is not meant to be, so neither counts.
    pub(crate) fn is_fragmented(&self, fields: &FileFields, geometry: &Geometry) -> bool {
        fields.inode != InodeNo::RESIZE
            && self.clusters < u64::from(geometry.blocks_per_group)
            && (self.runs > 1 || self.named.are_scattered())
    }

    /// Counts a run of data blocks, from `first` to `last`.
    pub(crate) fn cover(&mut self, last: u64, written: bool) {
        self.last = self.last.max(Some(last));
        if written {
            self.last_written = self.last_written.max(Some(last));
        }
    }
}

/// A file whose map continues outside the inode: open until the rounds have read the rest.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub(crate) fields: FileFields,
    pub(crate) tally: Mutex<Tally>,
}

/// The files left open after round 0.
pub(crate) struct OpenFiles {
    /// Ascending by inode.
    files: Vec<OpenFile>,
    /// Their inodes: each tree block searches for its file, and this list fits into the processor's cache.
    inodes: Vec<InodeNo>,
}

impl OpenFiles {
    /// The files, sorted.
    pub(crate) fn new(mut files: Vec<OpenFile>) -> Self {
        files.sort_unstable_by_key(|f| f.fields.inode);
        let inodes = files.iter().map(|f| f.fields.inode).collect();
        Self { files, inodes }
    }

    /// The file of this inode, if it is open.
    pub(crate) fn get(&self, inode: InodeNo) -> Option<&OpenFile> {
        self.files.get(self.inodes.binary_search(&inode).ok()?)
    }

    /// All of them.
    pub(crate) fn iter(&self) -> std::slice::Iter<'_, OpenFile> {
        self.files.iter()
    }
}

/// Checks size and space of a file whose map was walked to its end.
pub(crate) fn check_sums(ctx: &Context<'_>, fields: &FileFields, tally: &Tally) {
    if fields.inode == InodeNo::BAD_BLOCKS || tally.incomplete {
        return;
    }
    // the flag means nothing without a type, or in an inode that no directory may name
    let nameable = fields.inode == InodeNo::ROOT || fields.inode.get() >= ctx.volume.geometry.first_inode;
    let inline = fields.flags.contains(InodeFlags::INLINE_DATA) && fields.kind.is_some() && nameable;
    if inline {
        // its size was checked with the attribute that contains the rest of the data
    } else if fields.is_directory() && tally.last.is_none() && tally.clusters == 0 {
        ctx.report(Problem::new(Code::DirectoryEmpty).inode(fields.inode));
    } else if fields.is_directory() && tally.last.is_none() {
        // it has blocks of some kind, so data is lost, which must be reported
        ctx.report(Problem::new(Code::DirectoryHole).dir(fields.inode).file_block(FileBlock(0)));
    } else if let Some(expected) = wrong_size(ctx, fields, tally).filter(|size| !is_truncated(ctx, fields, *size)) {
        if fields.flags.contains(InodeFlags::EA_INODE) {
            // the attribute that it is the value of decides about its size
            let mismatch = Mismatch { size: fields.size, by_blocks: expected };
            ctx.values.mapped.lock().insert(fields.inode, mismatch);
        } else {
            ctx.report(Problem::new(Code::InodeSizeWrong).inode(fields.inode).found(fields.size).expected(expected));
        }
    }
    let cluster_sectors =
        u64::from(ctx.volume.geometry.cluster_blocks) * u64::from(ctx.volume.geometry.block_size / 512);
    let expected = tally.clusters.saturating_mul(cluster_sectors);
    if expected != fields.sectors {
        ctx.report(
            Problem::new(Code::InodeBlockCountWrong).inode(fields.inode).found(fields.sectors).expected(expected),
        );
    }
}

/// Whether a truncation that is pending explains blocks beyond the end of a file.
fn is_truncated(ctx: &Context<'_>, fields: &FileFields, size: u64) -> bool {
    fields.kind == Some(FileKind::Regular) && size > fields.size && ctx.volume.pending.contains(&fields.inode)
}

/// The right size of the file, where its size is wrong.
///
/// A directory ends with its last block. A regular file may be longer than its blocks (a hole at the end) and may have
/// unwritten blocks beyond its end, but no written block may start beyond it; nor, as in e2fsck, at its end, if its
/// tree has leaf blocks.
fn wrong_size(ctx: &Context<'_>, fields: &FileFields, tally: &Tally) -> Option<u64> {
    let block_size = u64::from(ctx.volume.geometry.block_size);
    match fields.kind {
        Some(FileKind::Directory) => {
            let blocks = tally.last? + 1;
            let claimed = fields.size / block_size;
            // e2fsck allows at most s_prealloc_dir_blocks blocks beyond the end of a directory
            let spare = u64::from(ctx.volume.disk.s_prealloc_dir_blocks);
            let fits = claimed == blocks
                || claimed < blocks && blocks - claimed <= spare && tally.last_written.is_none_or(|w| w < claimed);
            (!fits || !fields.size.is_multiple_of(block_size)).then_some(blocks.saturating_mul(block_size))
        }
        Some(FileKind::Symlink) => None,
        _ => {
            // verity stores its hash tree beyond the end
            if !fields.flags.contains(InodeFlags::VERITY)
                && let Some(last) = tally.last_written
                && fields.size < last.saturating_mul(block_size).saturating_add(u64::from(tally.has_leaves))
            {
                return Some((last + 1).saturating_mul(block_size));
            }
            let most = largest_size(ctx, fields.has_extents());
            (fields.size > most).then_some(tally.last.map_or(0, |l| (l + 1).saturating_mul(block_size)))
        }
    }
}

/// The largest size that the map format allows.
fn largest_size(ctx: &Context<'_>, extents: bool) -> u64 {
    let block_size = u64::from(ctx.volume.geometry.block_size);
    if extents && ctx.volume.features.incompat.contains(Incompat::EXTENT) {
        return block_size.saturating_mul(1 << 32) - 1;
    }
    ctx.volume.geometry.indirect().reach().saturating_mul(block_size)
}

/// The code of the problem where block `n` of a file exceeds the maximum for its type.
pub(crate) fn beyond_limit(ctx: &Context<'_>, fields: &FileFields, n: FileBlock) -> Option<Code> {
    if fields.is_directory() {
        let most = (1u64 << 31) / u64::from(ctx.volume.geometry.block_size);
        return (!ctx.volume.features.incompat.contains(Incompat::LARGE_DIR) && n.get() > most)
            .then_some(Code::DirectoryTooBig);
    }
    (fields.is_symlink() && n.get() > 0).then_some(Code::SymlinkTooBig)
}
