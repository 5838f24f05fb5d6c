//! Files mapped by a tree of extents.
//!
//! The path down is determined by the requested block, so it is at most as long as the depth of the tree (a node
//! contains its depth, which must be one less than its parent's). The neighbours of the followed entry bound the range
//! of the child: what a damaged child claims beyond is ignored, and the runs of a file never overlap.

use crate::error::OfInode;
use crate::{Error, FileExtent, Inode, Mapping, Maps, Result};
use format::extent::{Extent, Node};
use format::tail::Tailed;
use format::{FileBlock, FsBlock, Structure, Where};
use space::Purpose;
use std::sync::Arc;

mod edit;
mod tree;

use tree::END;

/// Maps in the form of extent trees.
pub(crate) struct Extents;

/// The result of looking up a block in a node.
enum Step {
    Found(FileExtent),
    Down { child: FsBlock, depth: u16, end: u64 },
}

impl Maps {
    pub(crate) fn map_extents(&self, inode: &Inode, from: FileBlock) -> Result<FileExtent> {
        if from.get() >= END {
            return Ok(FileExtent::hole(from, u64::MAX));
        }
        let blocks = self.sb.geometry.blocks;
        let root = Node::parse(&inode.raw().disk.i_block, None, blocks).of(inode.number)?;
        let mut step = look(root, from, END);
        // terminates: the depth decreases by one each time
        loop {
            let (child, depth, end) = match step {
                Step::Found(run) => return Ok(run),
                Step::Down { child, depth, end } => (child, depth, end),
            };
            let block = self.extent_block(inode, child)?;
            let node = Node::parse(&block, Some(depth), blocks).map_err(|e| e.at(Where::Block(child)))?;
            step = look(node, from, end);
        }
    }

    /// A node's block, its checksum verified.
    fn extent_block(&self, inode: &Inode, block: FsBlock) -> Result<Arc<[u8]>> {
        let tail = self.sb.geometry.tail(Tailed::ExtentNode);
        let bad = |what| Error::corrupt(Structure::ExtentTree, Where::Block(block), what);
        self.may_lead_to(inode, block, 1, Purpose::Metadata)?;
        self.read_around(block);
        let bytes = self.store.checked(block, |bytes| {
            let matches = tail.checksum_matches(bytes, block, self.seed(inode));
            if matches { Ok(()) } else { Err(bad("the checksum does not match")) }
        })?;
        if !tail.says(&bytes, inode.number, None) {
            return Err(bad("the node belongs to another inode"));
        }
        Ok(bytes)
    }
}

/// Looks up `from` in `node`, whose range ends at `end`.
fn look(node: Node<'_>, from: FileBlock, end: u64) -> Step {
    match node {
        Node::Leaf(extents) => {
            let after = extents.partition_point(|e| u64::from(e.ee_block.get()) <= from.get());
            let next = extents.get(after).map_or(end, |e| u64::from(e.ee_block.get()).min(end));
            let before = after.checked_sub(1).and_then(|i| extents.get(i)).map(Extent::from);
            Step::Found(match before {
                Some(e) if from.get() < e.logical.get() + u64::from(e.len) => inside(&e, from, end),
                _ => FileExtent::hole(from, next),
            })
        }
        Node::Inner(indexes, depth) => {
            let after = indexes.partition_point(|e| u64::from(e.ei_block.get()) <= from.get());
            let next = indexes.get(after).map_or(end, |e| u64::from(e.ei_block.get()).min(end));
            match after.checked_sub(1).and_then(|i| indexes.get(i)) {
                Some(e) => Step::Down { child: e.child(), depth, end: next },
                None => Step::Found(FileExtent::hole(from, next)),
            }
        }
    }
}

/// The part of an extent from `from` on.
fn inside(extent: &Extent, from: FileBlock, end: u64) -> FileExtent {
    let skipped = from.get() - extent.logical.get();
    let start = FsBlock(extent.physical.get() + skipped);
    let extent_end = extent.logical.get() + u64::from(extent.len);
    FileExtent {
        logical: from,
        len: extent_end.min(end) - from.get(),
        mapping: if extent.unwritten { Mapping::Unwritten(start) } else { Mapping::Data(start) },
    }
}
