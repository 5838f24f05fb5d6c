//! Changes to an extent tree as computations on nodes in memory: no I/O, no allocation.
//!
//! Each change affects one leaf: some of its entries are replaced ([`carve`]), and the consequences are propagated up
//! the [`Path`] to it ([`Path::replace`]): keys, a split of a node that overflows, another level if that is the root,
//! removal of a node that became empty. The key of a child is always the first block of its own first entry, as e2fsck
//! requires.

use format::extent::{Child, Extent, MAX_INIT_LEN, capacity, write_inner, write_leaf};
use format::tail::Tail;
use format::{FileBlock, FsBlock, InodeNo};

/// One more than the highest block number in an extent.
pub(super) const END: u64 = 1 << 32;
/// Bytes of the root, which is `i_block`.
const ROOT: usize = 60;

/// The parameters of a tree's nodes.
#[derive(Debug, Clone, Copy)]
pub(super) struct NodeForm {
    /// Bytes in a block.
    pub(super) len: usize,
    /// The kind of tail at its end.
    pub(super) tail: Tail,
    /// The inode that owns them.
    pub(super) owner: InodeNo,
}

impl NodeForm {
    /// Maximum number of entries of a node other than the root.
    pub(super) fn capacity(self) -> usize {
        self.tail.extent_node_entries()
    }
}

/// The maximum number of blocks of one extent.
pub(super) fn longest(unwritten: bool) -> u32 {
    u32::from(MAX_INIT_LEN) - u32::from(unwritten)
}

/// The end of an extent: the first block of the file behind it.
pub(super) fn end_of(extent: &Extent) -> u64 {
    extent.logical.get() + u64::from(extent.len)
}

/// The part of an extent that covers `from..to` of the file, which must be inside it.
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

/// The new content of a leaf.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Carved {
    pub(super) entries: Vec<Extent>,
    /// The extents that were mapped in the range before.
    pub(super) removed: Vec<Extent>,
}

/// Computes a leaf in which `from..to` of the file is mapped by `new` alone, or not at all. Adjacent entries are
/// merged.
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

/// Appends an extent, merged with the last one if possible.
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

/// A node on the path to a leaf.
#[derive(Debug)]
pub(super) struct Inner {
    /// Its block; `None` for the root.
    pub(super) block: Option<FsBlock>,
    pub(super) children: Vec<Child>,
    /// The index of the entry on the path.
    pub(super) at: usize,
}

/// The path from the root to the leaf whose range contains a block.
#[derive(Debug)]
pub(super) struct Path {
    /// The root first; empty if the root is the leaf.
    pub(super) inner: Vec<Inner>,
    /// The leaf's block; `None` if it is the root.
    pub(super) block: Option<FsBlock>,
    pub(super) extents: Vec<Extent>,
    /// The end of the leaf's range.
    pub(super) end: u64,
    /// The leaf behind it, whose entries are merged into this one.
    pub(super) absorbed: Option<FsBlock>,
}

/// The new content of a node, encoded.
#[derive(Debug)]
pub(super) struct NodeWrite {
    pub(super) block: FsBlock,
    pub(super) bytes: Vec<u8>,
    /// The block is newly allocated.
    pub(super) fresh: bool,
}

/// The edits to the tree that result from a change of a leaf.
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

    /// Writes the entries as a node of `depth`. `None` if a number is too large for an entry.
    pub(super) fn write(&self, depth: u16, node: &mut [u8]) -> Option<()> {
        match self {
            Content::Leaf(extents) => write_leaf(node, extents),
            Content::Inner(children) => write_inner(node, depth, children),
        }
    }
}

impl Path {
    /// Number of blocks needed for the tree if the leaf gets `entries` entries, at most two more than fit.
    pub(super) fn blocks_needed(&self, entries: usize, form: NodeForm) -> usize {
        let capacity_of = |block: Option<FsBlock>| if block.is_some() { form.capacity() } else { capacity(ROOT) };
        if entries <= capacity_of(self.block) {
            return 0;
        }
        let full = self.inner.iter().rev().take_while(|node| node.children.len() >= capacity_of(node.block)).count();
        // one for each node that splits; a root moves into a block of its own, which has more space
        1 + full
    }

    /// The goal of an allocation for `at`: the block at which it would continue the last extent before it; `None` if
    /// the leaf has no extent before it.
    pub(super) fn goal(&self, at: FileBlock) -> Option<FsBlock> {
        let before = self.extents.iter().rev().find(|e| e.logical < at)?;
        before.physical.checked_add(at.get() - before.logical.get())
    }

    /// The number of unmapped blocks from `at` on, within the leaf's range.
    pub(super) fn hole(&self, at: FileBlock) -> u64 {
        let next = self.extents.iter().find(|e| end_of(e) > at.get());
        next.map_or(self.end, |e| e.logical.get()).saturating_sub(at.get())
    }

    /// The neighbour that the leaf could be merged with when it has `entries` entries: a leaf of the same parent, and
    /// whether it is the one behind. Only if the leaf has lost entries and is at most half full.
    pub(super) fn neighbour(&self, entries: usize, form: NodeForm) -> Option<(FsBlock, bool)> {
        let parent = self.inner.last()?;
        if entries >= self.extents.len() || entries == 0 || entries > form.capacity() / 2 {
            return None;
        }
        let before = || Some((parent.children.get(parent.at.checked_sub(1)?)?.block, false));
        parent.children.get(parent.at + 1).map(|child| (child.block, true)).or_else(before)
    }

    /// The path to the leaf with the entries of both, `entries` and the neighbour's; `None` if these are too many to
    /// leave some space, or contradict each other.
    pub(super) fn join(
        &mut self,
        entries: &[Extent],
        neighbour: (FsBlock, bool),
        others: &[Extent],
        form: NodeForm,
    ) -> Option<Vec<Extent>> {
        let (block, is_behind) = neighbour;
        let (first, second) = if is_behind { (entries, others) } else { (others, entries) };
        let mut joined = Vec::with_capacity(first.len() + second.len());
        first.iter().chain(second).for_each(|e| push(&mut joined, *e));
        // damaged nodes are not merged
        let in_order = joined.is_sorted_by(|a, b| end_of(a) <= b.logical.get());
        if joined.len() > form.capacity() / 4 * 3 || !in_order {
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

    /// The edits for a leaf with these entries; `blocks` must be as many as [`Path::blocks_needed`] returned. `None` if
    /// a number is too large for an entry, or the blocks are too few.
    pub(super) fn replace(mut self, entries: Vec<Extent>, blocks: &[FsBlock], form: NodeForm) -> Option<Edits> {
        let mut edits = Edits::default();
        let mut blocks = blocks.iter().copied();
        let mut depth = 0u16;
        // a node that grows at its end splits there, so that a file written sequentially fills its nodes
        let mut at_end = entries.last().map(|e| e.logical) > self.extents.last().map(|e| e.logical);
        let (mut content, mut block) = (Content::Leaf(entries), self.block);
        while let Some(home) = block {
            let parent = self.inner.pop()?;
            let replacement = put(&mut edits, home, content, depth, at_end, &mut blocks, form)?;
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
        } else if content.len() > capacity(ROOT) {
            let child = blocks.next()?;
            let replacement = put(&mut edits, child, content, depth, at_end, &mut blocks, form)?;
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

/// Writes content into a node's block, or into two, or frees the block; returns the entries for its parent.
fn put(
    edits: &mut Edits,
    home: FsBlock,
    mut content: Content,
    depth: u16,
    at_end: bool,
    blocks: &mut impl Iterator<Item = FsBlock>,
    form: NodeForm,
) -> Option<Vec<Child>> {
    let Some(first) = content.first() else {
        edits.freed.push(home);
        return Some(Vec::new());
    };
    let most = form.capacity();
    let mut replacement = vec![Child { logical: first, block: home }];
    if content.len() > most {
        let right = content.split_off(if at_end { most } else { content.len() / 2 });
        let block = blocks.next()?;
        replacement.push(Child { logical: right.first()?, block });
        edits.nodes.push(encoded(block, &right, depth, true, form)?);
    }
    edits.nodes.push(encoded(home, &content, depth, false, form)?);
    Some(replacement)
}

fn encoded(block: FsBlock, content: &Content, depth: u16, fresh: bool, form: NodeForm) -> Option<NodeWrite> {
    let mut bytes = vec![0; form.len];
    content.write(depth, &mut bytes)?;
    form.tail.write(&mut bytes, form.owner, depth.into())?;
    Some(NodeWrite { block, bytes, fresh })
}

#[cfg(test)]
mod tests {
    use super::*;
    use format::dir::LeafTail;
    use format::extent::Node;
    use format::tail::Tailed;
    use std::collections::BTreeMap;
    use testkit::cases;

    const FORM: NodeForm = form(LeafTail::None);
    const OWNED: NodeForm = form(LeafTail::Owned);
    const BLOCKS: u64 = 1 << 40;

    const fn form(leaf: LeafTail) -> NodeForm {
        NodeForm { len: 128, tail: Tail::new(Tailed::ExtentNode, leaf, 128, 0), owner: InodeNo(12) }
    }

    fn extent(logical: u64, physical: u64, len: u32, unwritten: bool) -> Extent {
        Extent { logical: FileBlock(logical), physical: FsBlock(physical), len, unwritten }
    }

    #[test]
    fn a_range_is_carved_out_and_what_fits_is_joined() {
        let leaf = [extent(0, 100, 10, false), extent(10, 200, 10, false), extent(30, 300, 5, true)];
        let carved = carve(&leaf, 5, 12, None);
        assert_eq!(carved.entries, [extent(0, 100, 5, false), extent(12, 202, 8, false), leaf[2]]);
        assert_eq!(carved.removed, [extent(5, 105, 5, false), extent(10, 200, 2, false)]);
        // between two that it is adjacent to
        let carved = carve(&[leaf[0], extent(15, 115, 3, false)], 10, 15, Some(extent(10, 110, 5, false)));
        assert_eq!(carved, Carved { entries: vec![extent(0, 100, 18, false)], removed: vec![] });
        // in the middle of an unwritten one
        let carved = carve(&leaf, 31, 32, Some(extent(31, 301, 1, false)));
        let rest = [extent(30, 300, 1, true), extent(31, 301, 1, false), extent(32, 302, 3, true)];
        assert_eq!(carved.entries[2..], rest);
        // not longer than an entry permits
        let long = extent(0, 1000, 32_767, false);
        let carved = carve(&[long], 32_767, 32_769, Some(extent(32_767, 33_767, 2, false)));
        assert_eq!(carved.entries.len(), 2);
        assert!(carve(&[], 3, 9, None).entries.is_empty());
    }

    /// A tree in memory, in its stored form.
    struct Tree {
        root: [u8; ROOT],
        blocks: BTreeMap<u64, Vec<u8>>,
        next: u64,
        form: NodeForm,
    }

    impl Tree {
        fn node(&self, block: Option<FsBlock>) -> Node<'_> {
            let bytes = block.map_or(&self.root[..], |b| &self.blocks[&b.get()]);
            Node::parse(bytes, None, BLOCKS).unwrap()
        }

        fn path(&self, at: u64) -> Path {
            let mut path = Path { inner: Vec::new(), block: None, extents: Vec::new(), end: END, absorbed: None };
            loop {
                match self.node(path.block) {
                    Node::Leaf(extents) => {
                        path.extents = extents.iter().map(Extent::from).collect();
                        return path;
                    }
                    Node::Inner(children, _) => {
                        let children: Vec<_> = children.iter().map(Child::from).collect();
                        let index = children.partition_point(|c| c.logical.get() <= at).saturating_sub(1);
                        path.end = children.get(index + 1).map_or(path.end, |next| next.logical.get());
                        let block = Some(children[index].block);
                        path.inner.push(Inner { block: path.block, children, at: index });
                        path.block = block;
                    }
                }
            }
        }

        fn set(&mut self, from: u64, to: u64, new: Option<Extent>) {
            let mut path = self.path(from);
            assert!(to <= path.end);
            let mut entries = carve(&path.extents, from, to, new).entries;
            if let Some(neighbour) = path.neighbour(entries.len(), self.form) {
                let Node::Leaf(others) = self.node(Some(neighbour.0)) else { panic!("no leaf") };
                let others: Vec<_> = others.iter().map(Extent::from).collect();
                entries = path.join(&entries, neighbour, &others, self.form).unwrap_or(entries);
            }
            let blocks: Vec<_> =
                (0..path.blocks_needed(entries.len(), self.form) as u64).map(|n| FsBlock(self.next + n)).collect();
            self.next += blocks.len() as u64;
            let edits = path.replace(entries, &blocks, self.form).unwrap();
            let fresh: Vec<_> = edits.nodes.iter().filter(|n| n.fresh).map(|n| n.block).collect();
            assert!(blocks.iter().all(|block| fresh.contains(block)) && fresh.len() == blocks.len());
            for node in edits.nodes {
                assert_eq!(self.blocks.insert(node.block.get(), node.bytes).is_none(), node.fresh);
            }
            for block in edits.freed {
                assert!(self.blocks.remove(&block.get()).is_some());
            }
            self.root = edits.root.unwrap_or(self.root);
        }

        /// Returns all extents in order; checks keys and depths, and that no block is lost.
        fn check(&self) -> Vec<Extent> {
            let (mut all, mut seen) = (Vec::new(), 0);
            self.walk(None, None, &mut all, &mut seen);
            assert_eq!(seen, self.blocks.len());
            assert!(all.is_sorted_by(|a, b| end_of(a) <= b.logical.get()));
            all
        }

        fn walk(&self, block: Option<FsBlock>, key: Option<FileBlock>, all: &mut Vec<Extent>, seen: &mut usize) {
            match self.node(block) {
                Node::Leaf(extents) => {
                    assert!(block.is_none() || extents.first().map(|e| Extent::from(e).logical) == key);
                    all.extend(extents.iter().map(Extent::from));
                }
                Node::Inner(children, _) => {
                    let children: Vec<_> = children.iter().map(Child::from).collect();
                    assert!(!children.is_empty() && (block.is_none() || Some(children[0].logical) == key));
                    for child in children {
                        *seen += 1;
                        self.walk(Some(child.block), Some(child.logical), all, seen);
                    }
                }
            }
        }
    }

    #[test]
    fn a_tree_holds_what_was_set_whatever_was_split_and_joined() {
        for case in cases("a_tree_holds", 60) {
            let mut rng = case.rng();
            let form = if rng.chance(50) { FORM } else { OWNED };
            let mut root = [0; ROOT];
            write_leaf(&mut root, &[]).unwrap();
            let mut tree = Tree { root, blocks: BTreeMap::new(), next: 1 << 20, form };
            let mut model: BTreeMap<u64, (u64, bool)> = BTreeMap::new();
            let grows = rng.between(40, 90);
            for _ in 0..600 {
                let from = rng.below(3_000);
                let end = tree.path(from).end;
                let to = (from + rng.magnitude(12)).min(end);
                let new = rng
                    .chance(grows)
                    .then(|| extent(from, 5_000 * rng.between(1, 9) + from, (to - from) as u32, rng.chance(40)));
                tree.set(from, to, new);
                for block in from..to {
                    model.remove(&block);
                    if let Some(new) = new {
                        model.insert(block, (new.physical.get() + block - from, new.unwritten));
                    }
                }
                let blocks = |e: &Extent| {
                    let (first, physical, unwritten) = (e.logical.get(), e.physical.get(), e.unwritten);
                    (0..u64::from(e.len)).map(move |n| (first + n, (physical + n, unwritten)))
                };
                assert!(tree.check().iter().flat_map(blocks).eq(model.iter().map(|(n, place)| (*n, *place))));
            }
        }
    }
}
