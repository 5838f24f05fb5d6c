//! Changes to extent trees on the volume: reads and verifies nodes, allocates blocks for new ones, and updates
//! `i_blocks`.
//!
//! The inode is a copy ([`InodeBuf`]) that the caller writes into its table at the end. After each function here, also
//! after an error, the copy and the tree's blocks are consistent with each other.

use super::Extents;
use super::tree::{Content, END, Edits, Inner, NodeForm, Path, carve, end_of, longest};
use crate::alloc::Role;
use crate::change::Change;
use crate::error::OfInode;
use crate::map::{Freed, MapForm, Steps, role};
use crate::{Error, Inode, Maps, Result};
use format::extent::{Child, Extent, Node, capacity};
use format::inode::InodeBuf;
use format::superblock::Geometry;
use format::tail::Tailed;
use format::{FileBlock, FsBlock, Structure, Where};
use space::Purpose;
use std::ops::Range;
use store::{Kind, Part};

impl Maps {
    /// The path to the leaf whose range contains a block.
    fn extent_path(&self, owner: &Inode, buf: &InodeBuf, at: FileBlock) -> Result<Path> {
        let blocks = self.sb.geometry.blocks;
        let mut path = Path { inner: Vec::new(), block: None, extents: Vec::new(), end: END, absorbed: None };
        let root = buf.raw().disk.i_block;
        let mut node = Node::parse(&root, None, blocks).of(owner.number)?;
        let mut bytes;
        let mut start = 0;
        loop {
            let (children, depth) = match node {
                Node::Leaf(extents) => {
                    path.extents = extents.iter().map(Extent::from).collect();
                    break;
                }
                Node::Inner(indexes, depth) => (indexes.iter().map(Child::from).collect::<Vec<_>>(), depth),
            };
            let after = children.partition_point(|c| c.logical <= at);
            let index = after.saturating_sub(1);
            let Some(&child) = children.get(index) else {
                let what = "an index node is empty";
                return Err(Error::corrupt(Structure::ExtentTree, Where::Inode(owner.number), what));
            };
            if let Some(next) = children.get(index + 1) {
                path.end = path.end.min(next.logical.get());
            }
            start = child.logical.get().max(start);
            path.inner.push(Inner { block: path.block, children, at: index });
            path.block = Some(child.block);
            bytes = self.extent_block(owner, child.block)?;
            node = Node::parse(&bytes, Some(depth), blocks).map_err(|e| e.at(Where::Block(child.block)))?;
        }
        // reads from such a tree are bounded, but writes would not be
        let inside = path.extents.iter().all(|e| e.logical.get() >= start && end_of(e) <= path.end);
        if !inside {
            let at = path.block.map_or(Where::Inode(owner.number), Where::Block);
            return Err(Error::corrupt(Structure::ExtentTree, at, "its range overlaps that of another node"));
        }
        Ok(path)
    }

    /// The parameters of the nodes of an inode's tree.
    fn node_form(&self, owner: &Inode) -> NodeForm {
        let geometry = &self.sb.geometry;
        let (len, tail) = (geometry.block_size as usize, geometry.tail(Tailed::ExtentNode));
        NodeForm { len, tail, owner: owner.number }
    }

    /// The extents of a leaf that is not the root.
    fn leaf(&self, owner: &Inode, block: FsBlock) -> Result<Vec<Extent>> {
        let bytes = self.extent_block(owner, block)?;
        let node = Node::parse(&bytes, Some(0), self.sb.geometry.blocks).map_err(|e| e.at(Where::Block(block)))?;
        Ok(match node {
            Node::Leaf(extents) => extents.iter().map(Extent::from).collect(),
            Node::Inner(..) => Vec::new(),
        })
    }

    /// The end of the last extent of a file mapped by extents.
    pub(crate) fn extents_end(&self, inode: &Inode) -> Result<u64> {
        let path = self.extent_path(inode, &InodeBuf::from(inode.raw()), FileBlock(END - 1))?;
        Ok(path.extents.last().map_or(0, end_of))
    }
}

impl MapForm for Extents {
    fn reach(&self, _: &Geometry) -> u64 {
        END
    }

    fn allocate(
        &self,
        change: &Change<'_>,
        owner: &Inode,
        buf: &mut InodeBuf,
        at: FileBlock,
        want: u64,
        unwritten: bool,
    ) -> Result<Extent> {
        let path = change.volume.extent_path(owner, buf, at)?;
        let want = want.min(path.hole(at)).min(u64::from(longest(unwritten))) as u32;
        if want == 0 {
            return Err(Error::FileTooLarge);
        }
        let goal = path.goal(at).unwrap_or_else(|| change.volume.goal(owner));
        let data = change.allocate(owner.number, goal, want, role(owner))?;
        let new = Extent { logical: at, physical: data.first, len: data.count, unwritten };
        let entries = carve(&path.extents, at.get(), end_of(&new), Some(new)).entries;
        let outcome = change.put_leaf(owner, buf, path, entries, u64::from(new.len));
        if outcome.is_err() {
            change.free(data.first, u64::from(data.count), role(owner).purpose())?;
        }
        outcome.map(|()| new)
    }

    fn clear_leaf(
        &self,
        change: &Change<'_>,
        owner: &Inode,
        buf: &mut InodeBuf,
        range: Range<u64>,
        steps: &mut Steps,
        freed: &mut Freed,
    ) -> Result<Option<u64>> {
        let (at, to) = (range.start, range.end);
        let path = change.volume.extent_path(owner, buf, FileBlock(at))?;
        let mut next = path.end;
        let mut carved = carve(&path.extents, at, to, None);
        if carved.removed.is_empty() {
            return Ok(Some(next));
        }
        match steps.take(carved.removed.iter().map(|e| (e.logical.get(), u64::from(e.len)))) {
            None => return Ok(None),
            Some(stop) if stop < next.min(to) => {
                carved = carve(&path.extents, at, stop, None);
                next = stop;
            }
            Some(_) => {}
        }
        change.prepare_to_free_all(&carved.removed)?;
        change.put_leaf(owner, buf, path, carved.entries, 0)?;
        carved.removed.iter().for_each(|e| freed.add(e.physical, u64::from(e.len), e.logical.get()));
        Ok(Some(next))
    }
}

impl Change<'_> {
    /// Replaces mapped blocks from `at` on by newly allocated ones, marked as written: at most `want`, and as many as
    /// are contiguous both before and after. The old ones are freed.
    pub(crate) fn extents_replace(
        &self,
        owner: &Inode,
        buf: &mut InodeBuf,
        at: FileBlock,
        want: u64,
    ) -> Result<Extent> {
        let path = self.volume.extent_path(owner, buf, at)?;
        let old = path.extents.iter().find(|e| e.logical <= at && at.get() < end_of(e));
        let Some(old) = old else { return Err(Error::Invalid("the blocks to be replaced are not mapped")) };
        let want = want.min(end_of(old) - at.get()).min(u64::from(longest(false))) as u32;
        let goal = path.goal(at).unwrap_or(old.physical);
        let data = self.allocate(owner.number, goal, want, role(owner))?;
        let new = Extent { logical: at, physical: data.first, len: data.count, unwritten: false };
        let carved = carve(&path.extents, at.get(), end_of(&new), Some(new));
        let outcome = self
            .prepare_to_free_all(&carved.removed)
            .and_then(|()| self.put_leaf(owner, buf, path, carved.entries, u64::from(new.len)));
        if let Err(e) = outcome {
            self.free(data.first, u64::from(data.count), role(owner).purpose())?;
            return Err(e);
        }
        let mut freed = Freed::default();
        carved.removed.iter().for_each(|e| freed.add(e.physical, u64::from(e.len), e.logical.get()));
        self.release(owner, buf, freed)?;
        Ok(new)
    }

    /// Marks mapped blocks, which are part of one extent, as written or unwritten.
    pub(crate) fn extents_convert(&self, owner: &Inode, buf: &mut InodeBuf, run: Extent) -> Result<()> {
        let path = self.volume.extent_path(owner, buf, run.logical)?;
        let carved = carve(&path.extents, run.logical.get(), end_of(&run), Some(run));
        let same = |e: &Extent| e.physical == run.physical && e.len == run.len;
        if !matches!(&carved.removed[..], [one] if same(one)) {
            return Err(Error::Invalid("the blocks to be converted are not mapped as expected"));
        }
        self.put_leaf(owner, buf, path, carved.entries, 0)
    }

    /// Moves all extents from block `from` on by `by` blocks: to the end if `up`, else to the start, where there must
    /// be space for them. `rest` bounds what is still to be moved, also after an error: the next call continues there.
    /// Returns whether the move is complete.
    pub(crate) fn extents_shift(
        &self,
        owner: &Inode,
        buf: &mut InodeBuf,
        (from, rest): (u64, &mut u64),
        by: u64,
        up: bool,
        steps: &mut Steps,
    ) -> Result<bool> {
        loop {
            let limit = END.min(*rest);
            let at = if up { limit.saturating_sub(1) } else { limit };
            if at >= END || up && limit <= from {
                return Ok(true);
            }
            let path = self.volume.extent_path(owner, buf, FileBlock(at))?;
            let moves = |e: &Extent| if up { end_of(e) > from && e.logical.get() < limit } else { end_of(e) > limit };
            let first = path.extents.first().map_or(END, |e| e.logical.get());
            if up && first > at {
                // this is the first leaf, and no extent before the limit is left
                return Ok(true);
            }
            let next = if up { first } else { path.end };
            if path.extents.iter().any(moves) {
                if steps.take(std::iter::empty()).is_none() {
                    return Ok(false);
                }
                let mut entries = Vec::with_capacity(path.extents.len() + 1);
                for e in &path.extents {
                    match (moves(e), up) {
                        (false, _) => entries.push(*e),
                        (true, true) if e.logical.get() < from => {
                            let stays = (from - e.logical.get()) as u32;
                            entries.push(Extent { len: stays, ..*e });
                            let physical = FsBlock(e.physical.get() + u64::from(stays));
                            let logical = FileBlock(from + by);
                            entries.push(Extent { logical, physical, len: e.len - stays, ..*e });
                        }
                        (true, true) => entries.push(Extent { logical: FileBlock(e.logical.get() + by), ..*e }),
                        (true, false) => {
                            let logical = FileBlock(e.logical.get().saturating_sub(by));
                            entries.push(Extent { logical, ..*e });
                        }
                    }
                }
                self.put_leaf(owner, buf, path, entries, 0)?;
            }
            *rest = next;
        }
    }

    /// Sets the entries of a leaf, with all resulting edits; it maps `data` more blocks than before.
    fn put_leaf(&self, owner: &Inode, buf: &mut InodeBuf, path: Path, entries: Vec<Extent>, data: u64) -> Result<()> {
        let form = self.volume.node_form(owner);
        let (mut path, mut entries) = (path, entries);
        if let Some(neighbour) = path.neighbour(entries.len(), form) {
            let others = self.volume.leaf(owner, neighbour.0)?;
            if let Some(joined) = path.join(&entries, neighbour, &others, form) {
                entries = joined;
            }
        }
        let needed = path.blocks_needed(entries.len(), form);
        let grown = data + needed as u64;
        self.volume.count_blocks(buf, grown, 0)?;
        let near = entries.first().map_or_else(|| self.volume.goal(owner), |e| e.physical);
        let outcome = self.allocate_nodes(owner, path.block.unwrap_or(near), needed).and_then(|blocks| {
            let edits = path.replace(entries, &blocks, form).ok_or(Error::FileTooLarge);
            let edits = edits.and_then(|edits| {
                edits.freed.iter().try_for_each(|block| self.prepare_to_free(*block, 1))?;
                Ok(edits)
            });
            edits.or_else(|e| self.free_nodes(owner, &blocks).and(Err(e)))
        });
        match outcome {
            Ok(edits) => self.apply(owner, buf, edits),
            Err(e) => {
                self.volume.count_blocks(buf, 0, grown)?;
                Err(e)
            }
        }
    }

    fn apply(&self, owner: &Inode, buf: &mut InodeBuf, edits: Edits) -> Result<()> {
        let tag = self.tag(Kind::ExtentNode, owner);
        for node in edits.nodes {
            if node.fresh {
                self.fresh(node.block, tag, |bytes| bytes.copy_from_slice(&node.bytes));
            } else {
                self.edit(node.block, tag, |bytes| bytes.copy_from_slice(&node.bytes))?;
            }
        }
        let gone = edits.freed.len() as u64;
        self.volume.count_blocks(buf, 0, gone)?;
        if let Some(root) = edits.root {
            buf.set_block(root);
        }
        self.free_nodes(owner, &edits.freed)?;
        if gone > 0 { self.collapse(owner, buf) } else { Ok(()) }
    }

    /// Allocates blocks for nodes, either `count` of them or none.
    fn allocate_nodes(&self, owner: &Inode, near: FsBlock, count: usize) -> Result<Vec<FsBlock>> {
        let mut blocks = Vec::with_capacity(count);
        let mut goal = near;
        while blocks.len() < count {
            // a few: one for each level
            match self.allocate(owner.number, goal, (count - blocks.len()) as u32, Role::Metadata) {
                Ok(run) => {
                    self.record_run(owner.number, Part::Map, (run.first, run.count.into()), true);
                    blocks.extend((0..u64::from(run.count)).map(|n| FsBlock(run.first.get() + n)));
                    goal = FsBlock(run.first.get() + u64::from(run.count));
                }
                Err(e) => {
                    self.free_nodes(owner, &blocks)?;
                    return Err(e);
                }
            }
        }
        Ok(blocks)
    }

    fn free_nodes(&self, owner: &Inode, blocks: &[FsBlock]) -> Result<()> {
        blocks.iter().try_for_each(|block| {
            self.record_run(owner.number, Part::Map, (*block, 1), false);
            self.free(*block, 1, Purpose::Metadata)
        })
    }

    fn prepare_to_free_all(&self, extents: &[Extent]) -> Result<()> {
        extents.iter().try_for_each(|e| self.prepare_to_free(e.physical, u64::from(e.len)))
    }

    /// Removes levels while the root has a single child whose entries fit into it. The tree is already consistent
    /// before: an unreadable child stays.
    fn collapse(&self, owner: &Inode, buf: &mut InodeBuf) -> Result<()> {
        let blocks = self.volume.sb.geometry.blocks;
        loop {
            let root = buf.raw().disk.i_block;
            let Node::Inner([only], depth) = Node::parse(&root, None, blocks).of(owner.number)? else {
                return Ok(());
            };
            let child = only.child();
            let Ok(bytes) = self.prepare_to_free(child, 1).and_then(|()| self.volume.extent_block(owner, child)) else {
                return Ok(());
            };
            let content = match Node::parse(&bytes, Some(depth), blocks) {
                Ok(Node::Leaf(extents)) => Content::Leaf(extents.iter().map(Extent::from).collect()),
                Ok(Node::Inner(indexes, _)) => Content::Inner(indexes.iter().map(Child::from).collect()),
                Err(_) => return Ok(()),
            };
            let mut root = [0; 60];
            if content.len() > capacity(root.len()) || content.write(depth, &mut root).is_none() {
                return Ok(());
            }
            buf.set_block(root);
            self.volume.count_blocks(buf, 0, 1)?;
            self.free_nodes(owner, &[child])?;
        }
    }
}
