//! Compares the kind and the owner of a block in the map with those that the check of the volume finds.
//!
//! Blocks that belong to an inode are checked when they are read ([`Identities::check`]); blocks of the groups, and
//! entries of unused blocks, at the end ([`Identities::check_rest`]).

use super::layer::{PhysicalLayer, Version, wrong_structure};
use crate::context::Context;
use crate::problem::{Problem, Problems};
use crate::system_zone;
use crate::table::Code;
use format::inode::FileKind;
use format::native::map::{BlockKind, Entry};
use format::{FsBlock, InodeNo};
use std::ops::Range;

/// The entries of a generation.
#[derive(Clone, Copy)]
pub(crate) struct Identities<'a> {
    below: &'a PhysicalLayer,
    version: &'a Version,
}

impl<'a> Identities<'a> {
    pub(crate) fn new(below: &'a PhysicalLayer, version: &'a Version) -> Self {
        Self { below, version }
    }

    /// Compares the entry of a block with the possible kinds and owners. Blocks among the file data have no entry.
    pub(crate) fn check(&self, problems: &Problems, block: FsBlock, kinds: &[BlockKind], owners: &[InodeNo]) {
        let layout = &self.below.superblock.layout;
        // the front is checked by its indexes
        let Some(index) = layout.index_of(block).filter(|index| *index >= layout.front()) else { return };
        if let Some(entry) = self.below.entry(self.version, index) {
            compare(problems, index, &entry, kinds, owners);
        }
    }

    /// Compares the data blocks of a file, which have entries only where they are written as metadata.
    pub(crate) fn check_content(&self, ctx: &Context<'_>, inode: InodeNo, blocks: &Range<u64>) {
        let is_directory = ctx.inodes.get(inode).is_some_and(|record| record.kind == Some(FileKind::Directory));
        let kinds: &[BlockKind] = match ctx.volume.disk.s_orphan_file_inum.get() == inode.get() {
            true => &[BlockKind::OrphanFile],
            // an inode without a name is walked like any other
            false if is_directory => &[BlockKind::Directory, BlockKind::DirectoryIndex],
            false => &[BlockKind::Data],
        };
        for block in blocks.start.max(self.below.superblock.layout.metadata_start())..blocks.end {
            self.check(ctx.problems, FsBlock(block), kinds, &[inode]);
        }
    }

    /// Compares the entries of the groups' blocks and of unused blocks.
    pub(crate) fn check_rest(&self, ctx: &Context<'_>) {
        let layout = &self.below.superblock.layout;
        let parts = system_zone::kinds(ctx.volume);
        let (mut unused, mut first) = (0u64, None);
        self.below.each_entry(self.version, |index, entry| {
            let Some(block) = layout.block_of(index).filter(|_| index >= layout.front()) else { return };
            let at = parts.partition_point(|(blocks, _)| blocks.end <= block.get());
            match parts.get(at).filter(|(blocks, _)| blocks.contains(&block.get())) {
                Some((_, kind)) => compare(ctx.problems, index, &entry, &[*kind], &[InodeNo(0)]),
                None if ctx.claims.contains(ctx.claims.cluster_of(block.get())) => {}
                None => {
                    unused += 1;
                    first = first.or(Some(entry.physical));
                }
            }
        });
        if let Some(physical) = first {
            let what = match unused - 1 {
                0 => format!("block {physical} of the device, but nothing in the volume uses it"),
                1 => format!("block {physical} of the device and 1 more, but nothing in the volume uses them"),
                more => format!("block {physical} of the device and {more} more, but nothing in the volume uses them"),
            };
            ctx.report(Problem::new(Code::NativeBlockUnused).block(FsBlock(physical)).name(what));
        }
    }
}

fn compare(problems: &Problems, index: u64, entry: &Entry, kinds: &[BlockKind], owners: &[InodeNo]) {
    if kinds.contains(&entry.kind) && owners.iter().any(|owner| owner.get() == entry.owner) {
        return;
    }
    let owner = owners.first().map_or(0, |owner| owner.get());
    let is = kinds.first().map_or_else(String::new, |kind| of(*kind, owner));
    let said = of(entry.kind, entry.owner);
    let what = format!("its entry, of index {index}, says that it is {said}, and it is {is}");
    problems.report(wrong_structure(entry.physical, &what));
}

fn of(kind: BlockKind, owner: u32) -> String {
    match owner {
        0 => called(kind).to_owned(),
        inode => format!("{} of inode {inode}", called(kind)),
    }
}

/// The name of a kind in messages.
pub(super) fn called(kind: BlockKind) -> &'static str {
    match kind {
        BlockKind::Superblock => "the superblock",
        BlockKind::Descriptors => "group descriptors",
        BlockKind::BlockBitmap => "a block bitmap",
        BlockKind::InodeBitmap => "an inode bitmap",
        BlockKind::InodeTable => "part of an inode table",
        BlockKind::ExtentNode => "an extent node",
        BlockKind::Indirect => "an indirect block",
        BlockKind::Directory => "a directory block",
        BlockKind::DirectoryIndex => "a directory index",
        BlockKind::Attributes => "an attribute block",
        BlockKind::OrphanFile => "a block of the orphan file",
        BlockKind::Data => "content",
        BlockKind::MapNode => "a node of the map",
        BlockKind::ChunkTable => "a block of the chunk table",
        BlockKind::SnapshotList => "a block of the list of snapshots",
    }
}
