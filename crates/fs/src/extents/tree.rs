//! Changing an extent tree, as arithmetic on nodes that were read: no I/O, no allocation.
//!
//! Every change is one of a single leaf: some of its entries are replaced ([`carve`]), and what follows from that runs up
//! the [`Path`] that leads to it ([`Path::replace`]): keys, a split where a node overflows, a level more where the root
//! does, removal of a node that became empty. The key of a child is always the first block its own first entry speaks
//! for, as e2fsck wants it.

use format::extent::{Child, Extent, MAX_INIT_LEN, room, write_inner, write_leaf};
use format::{FileBlock, FsBlock};

/// One more than the last block an extent can name.
pub(super) const END: u64 = 1 << 32;
/// Bytes of the root, which is `i_block`.
const ROOT: usize = 60;

/// The most blocks one extent can have.
pub(super) fn longest(unwritten: bool) -> u32 {
    u32::from(MAX_INIT_LEN) - u32::from(unwritten)
}

/// The first block of the file behind an extent.
pub(super) fn end_of(extent: &Extent) -> u64 {
    extent.logical.get() + u64::from(extent.len)
}

/// The part of an extent that covers `from..to` of the file, which it does.
fn part(extent: &Extent, from: u64, to: u64) -> Extent {
    let skipped = from - extent.logical.get();
    Extent {
        logical: FileBlock(from),
        physical: FsBlock(extent.physical.get() + skipped),
        // shorter than the extent
        len: (to - from) as u32,
        unwritten: extent.unwritten,
    }
}

/// What a leaf becomes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Carved {
    pub(super) entries: Vec<Extent>,
    /// What was mapped in the range before.
    pub(super) removed: Vec<Extent>,
}

/// A leaf in which `from..to` of the file is mapped by `new` alone, or not at all. Entries that continue each other
/// become one.
pub(super) fn carve(entries: &[Extent], from: u64, to: u64, new: Option<Extent>) -> Carved {
    let mut carved = Carved { entries: Vec::with_capacity(entries.len() + 2), removed: Vec::new() };
    let mut new = new;
    for entry in entries {
        let (start, end) = (entry.logical.get(), end_of(entry));
        if start < from {
            push(&mut carved.entries, part(entry, start, end.min(from)));
        }
        let (a, b) = (start.max(from), end.min(to));
        if a < b {
            carved.removed.push(part(entry, a, b));
        }
        if end > to {
            if let Some(new) = new.take() {
                push(&mut carved.entries, new);
            }
            push(&mut carved.entries, part(entry, start.max(to), end));
        }
    }
    if let Some(new) = new {
        push(&mut carved.entries, new);
    }
    carved
}

/// Appends an extent, or lengthens the last one by it.
fn push(entries: &mut Vec<Extent>, extent: Extent) {
    if let Some(last) = entries.last_mut()
        && end_of(last) == extent.logical.get()
        && last.physical.get() + u64::from(last.len) == extent.physical.get()
        && last.unwritten == extent.unwritten
        && last.len + extent.len <= longest(last.unwritten)
    {
        last.len += extent.len;
    } else {
        entries.push(extent);
    }
}

/// A node on the way to a leaf.
#[derive(Debug)]
pub(super) struct Inner {
    /// Its block; `None` for the root.
    pub(super) block: Option<FsBlock>,
    pub(super) children: Vec<Child>,
    /// Which of them the way takes.
    pub(super) at: usize,
}

/// The way from the root to the leaf that speaks for a block.
#[derive(Debug)]
pub(super) struct Path {
    /// The root first; empty where the root is the leaf.
    pub(super) inner: Vec<Inner>,
    /// The leaf's block; `None` where it is the root.
    pub(super) block: Option<FsBlock>,
    pub(super) extents: Vec<Extent>,
    /// The first block that the leaf does not speak for.
    pub(super) end: u64,
    /// The leaf behind it, whose entries this one takes over.
    pub(super) absorbed: Option<FsBlock>,
}

/// A node's new content, encoded.
#[derive(Debug)]
pub(super) struct NodeWrite {
    pub(super) block: FsBlock,
    pub(super) bytes: Vec<u8>,
    /// The block was just allocated.
    pub(super) fresh: bool,
}

/// What a change of a leaf makes of the tree.
#[derive(Debug, Default)]
pub(super) struct Edits {
    pub(super) nodes: Vec<NodeWrite>,
    pub(super) freed: Vec<FsBlock>,
    pub(super) root: Option<[u8; ROOT]>,
}

/// Entries of a node.
#[derive(Debug, Clone)]
pub(super) enum Content {
    Leaf(Vec<Extent>),
    Inner(Vec<Child>),
}

impl Content {
    pub(super) fn len(&self) -> usize {
        match self {
            Content::Leaf(extents) => extents.len(),
            Content::Inner(children) => children.len(),
        }
    }

    fn first(&self) -> Option<FileBlock> {
        match self {
            Content::Leaf(extents) => extents.first().map(|e| e.logical),
            Content::Inner(children) => children.first().map(|c| c.logical),
        }
    }

    fn split_off(&mut self, at: usize) -> Content {
        match self {
            Content::Leaf(extents) => Content::Leaf(extents.split_off(at)),
            Content::Inner(children) => Content::Inner(children.split_off(at)),
        }
    }

    /// Writes it as a node of `depth`. `None` where a number is more than an entry can hold.
    pub(super) fn write(&self, depth: u16, node: &mut [u8]) -> Option<()> {
        match self {
            Content::Leaf(extents) => write_leaf(node, extents),
            Content::Inner(children) => write_inner(node, depth, children),
        }
    }
}

impl Path {
    /// Blocks needed for the tree when the leaf gets `entries` entries, at most two more than fit.
    pub(super) fn blocks_needed(&self, entries: usize, block_size: usize) -> usize {
        let room_of = |block: Option<FsBlock>| room(if block.is_some() { block_size } else { ROOT });
        if entries <= room_of(self.block) {
            return 0;
        }
        let full = self.inner.iter().rev().take_while(|node| node.children.len() >= room_of(node.block)).count();
        // one for each node that splits; a root moves into a block of its own, which has room for more than it had
        1 + full
    }

    /// Where the block behind the last one mapped before `at` would lie; `None` where the leaf has none before it.
    pub(super) fn goal(&self, at: FileBlock) -> Option<FsBlock> {
        let before = self.extents.iter().rev().find(|e| e.logical < at)?;
        before.physical.checked_add(at.get() - before.logical.get())
    }

    /// How many blocks from `at` on are not mapped, as far as the leaf speaks.
    pub(super) fn hole(&self, at: FileBlock) -> u64 {
        let next = self.extents.iter().find(|e| end_of(e) > at.get());
        next.map_or(self.end, |e| e.logical.get()).saturating_sub(at.get())
    }

    /// The neighbour that the leaf could join when it has `entries` entries: a leaf of the same parent, and whether it is
    /// the one behind. Only where the leaf lost entries and is half empty.
    pub(super) fn neighbour(&self, entries: usize, block_size: usize) -> Option<(FsBlock, bool)> {
        let parent = self.inner.last()?;
        if entries >= self.extents.len() || entries == 0 || entries > room(block_size) / 2 {
            return None;
        }
        let before = || Some((parent.children.get(parent.at.checked_sub(1)?)?.block, false));
        parent.children.get(parent.at + 1).map(|child| (child.block, true)).or_else(before)
    }

    /// The way to the leaf that has the entries of both, the given ones and the neighbour's; `None` where these are too
    /// many to leave it some room, or contradict each other.
    pub(super) fn join(
        &mut self,
        entries: &[Extent],
        neighbour: (FsBlock, bool),
        others: &[Extent],
        block_size: usize,
    ) -> Option<Vec<Extent>> {
        let (block, is_behind) = neighbour;
        let (first, second) = if is_behind { (entries, others) } else { (others, entries) };
        let mut joined = Vec::with_capacity(first.len() + second.len());
        first.iter().chain(second).for_each(|e| push(&mut joined, *e));
        // what is damaged stays where it is
        let in_order = joined.is_sorted_by(|a, b| end_of(a) <= b.logical.get());
        if joined.len() > room(block_size) / 4 * 3 || !in_order {
            return None;
        }
        if is_behind {
            self.absorbed = Some(block);
        } else {
            self.absorbed = self.block.replace(block);
            self.inner.last_mut()?.at -= 1;
        }
        Some(joined)
    }

    /// The tree when the leaf has these entries; `blocks` are as many as [`Path::blocks_needed`] said. `None` where a
    /// number is more than an entry can hold, or the blocks are too few.
    pub(super) fn replace(mut self, entries: Vec<Extent>, blocks: &[FsBlock], block_size: usize) -> Option<Edits> {
        let mut edits = Edits::default();
        let mut blocks = blocks.iter().copied();
        let mut depth = 0u16;
        // a node that grows at its end splits there, so that a file written in order fills its nodes
        let mut at_end = entries.last().map(|e| e.logical) > self.extents.last().map(|e| e.logical);
        let (mut content, mut block) = (Content::Leaf(entries), self.block);
        while let Some(home) = block {
            let parent = self.inner.pop()?;
            let replacement = put(&mut edits, home, content, depth, at_end, &mut blocks, block_size)?;
            let mut children = parent.children;
            let absorbed = self.absorbed.take();
            let unchanged = matches!(&replacement[..], [one] if children.get(parent.at) == Some(one));
            if unchanged && absorbed.is_none() {
                return Some(edits);
            }
            at_end = parent.at + 1 == children.len();
            children.splice(parent.at..=parent.at + usize::from(absorbed.is_some()), replacement);
            edits.freed.extend(absorbed);
            depth += 1;
            (content, block) = (Content::Inner(children), parent.block);
        }
        let mut root = [0; ROOT];
        if content.len() == 0 {
            (content, depth) = (Content::Leaf(Vec::new()), 0);
        } else if content.len() > room(ROOT) {
            let child = blocks.next()?;
            let replacement = put(&mut edits, child, content, depth, at_end, &mut blocks, block_size)?;
            if let Some(node) = edits.nodes.last_mut() {
                node.fresh = true;
            }
            (content, depth) = (Content::Inner(replacement), depth + 1);
        }
        content.write(depth, &mut root)?;
        edits.root = Some(root);
        Some(edits)
    }
}

/// Puts content into a node's block, or into two, or frees it; gives what its parent says of it from now on.
fn put(
    edits: &mut Edits,
    home: FsBlock,
    mut content: Content,
    depth: u16,
    at_end: bool,
    blocks: &mut impl Iterator<Item = FsBlock>,
    block_size: usize,
) -> Option<Vec<Child>> {
    let Some(first) = content.first() else {
        edits.freed.push(home);
        return Some(Vec::new());
    };
    let room = room(block_size);
    let mut replacement = vec![Child { logical: first, block: home }];
    if content.len() > room {
        let right = content.split_off(if at_end { room } else { content.len() / 2 });
        let block = blocks.next()?;
        replacement.push(Child { logical: right.first()?, block });
        edits.nodes.push(encoded(block, &right, depth, true, block_size)?);
    }
    edits.nodes.push(encoded(home, &content, depth, false, block_size)?);
    Some(replacement)
}

fn encoded(block: FsBlock, content: &Content, depth: u16, fresh: bool, block_size: usize) -> Option<NodeWrite> {
    let mut bytes = vec![0; block_size];
    content.write(depth, &mut bytes)?;
    Some(NodeWrite { block, bytes, fresh })
}
