//! The hash trees of indexed directories.
//!
//! Blocks arrive in any order and on several threads, so the tree is unknown when a block is read. For each block of an
//! indexed directory only its kind and the range of its names' hashes are recorded, for each index entry its target and
//! its range of hashes. At the end [`HashTrees::finish`] compares the two.
//!
//! Invariants
//! 1. A leaf's hashes are computed on arrival with the hash function in the superblock. Where the root of the directory
//!    has another, [`HashTrees::foreign`] returns the directory, and the leaves are read once more.
//! 2. No walk in a tree takes more steps than the deepest possible tree has levels, whatever its blocks refer to.

use crate::context::Context;
use crate::inode_records::Directory;
use crate::problem::Problem;
use crate::table::Code;
use format::dir::{ChecksumState, DirEntry, decode_rec_len};
use format::feature::RoCompat;
use format::hash::{CONTINUES, HashVersion, Hasher};
use format::htree::{DxEntry, DxRootInfo, DxTail, IndexFormat, index_checksum};
use format::superblock::Flags;
use format::tail::Tailed;
use format::{FileBlock, InodeNo, casefold};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use zerocopy::FromBytes;

/// The offset of the file type in an entry.
const FILE_TYPE: usize = 7;
/// The offset of [`DxRootInfo`] in block 0.
const ROOT_INFO: usize = 24;
/// Levels of the deepest tree there can be, under large_dir, the root's included.
const MAX_DEPTH: u8 = 3;
/// The valid bits of an index entry's block number.
const BLOCK_MASK: u32 = 0x0FFF_FFFF;
/// The highest hash that a block may contain.
const MAX_HASH: u32 = !CONTINUES;
/// Bit 0 of `unused_flags`: undefined in all versions of the format.
const FLAG_INCOMPATIBLE: u8 = 1;

/// The kind of a block of an indexed directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HtreeBlock {
    /// Block 0.
    Root,
    /// One unused entry followed by an array of index entries of the right size.
    Node,
    /// Any other block: names.
    Leaf,
}

impl HtreeBlock {
    /// The kind of block `file_block` of an indexed directory.
    pub(crate) fn of(bytes: &[u8], file_block: u32, format: &IndexFormat) -> Self {
        if file_block == 0 {
            return Self::Root;
        }
        let Ok((head, rest)) = DirEntry::ref_from_prefix(bytes) else { return Self::Leaf };
        let limit = rest.first_chunk::<2>().map_or(0, |l| u16::from_le_bytes(*l));
        let node = head.inode.get() == 0
            && head.name_len == 0
            && decode_rec_len(head.rec_len.get(), format.dir.block_size) as usize == bytes.len()
            && usize::from(limit) == format.node_limit();
        if node { Self::Node } else { Self::Leaf }
    }
}

/// The hashes of a leaf's names: lowest and highest. `min > max` where there are none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HashRange {
    min: u32,
    max: u32,
}

impl HashRange {
    /// The range of no names.
    pub(crate) const EMPTY: Self = Self { min: u32::MAX, max: 0 };

    /// Extends the range by the hash of a name; `folded` where the directory compares names without case.
    #[inline]
    pub(crate) fn add(&mut self, hasher: &Hasher, name: &[u8], folded: bool) {
        let hash = hash_of(hasher, name, folded);
        self.min = self.min.min(hash);
        self.max = self.max.max(hash);
    }
}

/// The hash of a name; `folded` where the directory compares names without case.
#[inline]
pub(crate) fn hash_of(hasher: &Hasher, name: &[u8], folded: bool) -> u32 {
    match folded.then(|| casefold::fold(name)).flatten() {
        Some(folded) => hasher.hash(&folded).hash,
        None => hasher.hash(name).hash,
    }
}

/// A block of an indexed directory.
#[derive(Debug, Clone, Copy)]
struct Block {
    dir: InodeNo,
    file_block: u32,
    kind: Kind,
}

impl Block {
    fn key(&self) -> (InodeNo, u32) {
        (self.dir, self.file_block)
    }
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Root { version: u8, levels: u8 },
    Node,
    Leaf(HashRange),
}

/// An index entry: block `node` of the directory refers to block `child`.
#[derive(Debug, Clone, Copy)]
struct Link {
    dir: InodeNo,
    child: u32,
    node: u32,
    /// The lowest and the highest hash of its range.
    low: u32,
    high: u32,
}

/// The records of all indexed directories.
pub(crate) struct HashTrees<'a> {
    ctx: &'a Context<'a>,
    /// The hash function in the superblock; `None` where that cannot be computed.
    hasher: Option<Hasher>,
    blocks: Mutex<Vec<Block>>,
    links: Mutex<Vec<Link>>,
}

impl<'a> HashTrees<'a> {
    /// No records yet.
    pub(crate) fn new(ctx: &'a Context<'a>) -> Self {
        let hasher = HashVersion::from_raw(ctx.volume.disk.s_def_hash_version).and_then(|named| hasher(ctx, named));
        Self { ctx, hasher, blocks: Mutex::default(), links: Mutex::default() }
    }

    /// The hash function for leaves on arrival.
    pub(crate) fn hasher(&self) -> Option<&Hasher> {
        self.hasher.as_ref()
    }

    /// Records a leaf.
    pub(crate) fn leaf(&self, dir: InodeNo, file_block: u32, range: HashRange) {
        self.push(Block { dir, file_block, kind: Kind::Leaf(range) });
    }

    fn push(&self, block: Block) {
        self.blocks.lock().push(block);
    }

    /// Checks a root or node by itself and records its references.
    pub(crate) fn index_block(
        &self,
        directory: &Directory,
        file_block: u32,
        htree_block: HtreeBlock,
        bytes: &[u8],
        format: &IndexFormat,
    ) {
        self.check_checksum(directory, file_block, bytes, format);
        let start = if htree_block == HtreeBlock::Root {
            let Some(info) = DxRootInfo::of(bytes) else { return };
            let kind = Kind::Root { version: info.hash_version, levels: info.indirect_levels };
            self.push(Block { dir: directory.inode, file_block, kind });
            self.check_root(directory.inode, info, format);
            ROOT_INFO + usize::from(info.info_length)
        } else {
            self.push(Block { dir: directory.inode, file_block, kind: Kind::Node });
            DirEntry::SIZE
        };
        let capacity = if htree_block == HtreeBlock::Root {
            let tail = if format.checksums { DxTail::SIZE } else { 0 };
            bytes.len().saturating_sub(start + tail) / DxEntry::SIZE
        } else {
            format.node_limit()
        };
        self.take_entries(directory, file_block, bytes.get(start..).unwrap_or_default(), capacity);
    }

    fn check_checksum(&self, directory: &Directory, file_block: u32, bytes: &[u8], format: &IndexFormat) {
        if !format.checksums {
            return;
        }
        let state = match bytes.get(FILE_TYPE) {
            // the unused entry of a node has no type; the kernel does not check that, but e2fsck then finds no checksum
            Some(1..) if file_block != 0 => ChecksumState::Missing,
            _ => index_checksum(bytes, format.dir.block_size, directory.seed),
        };
        // block 0 may still be a leaf with a valid checksum
        let geometry = &self.ctx.volume.geometry;
        let foreign = !geometry.tail(Tailed::Index).says(bytes, directory.inode, None);
        if state == ChecksumState::Good && !foreign
            || geometry.leaf_tail().check(bytes, directory.seed) == ChecksumState::Good
        {
            return;
        }
        let code = if file_block == 0 { Code::HtreeRootChecksumWrong } else { Code::HtreeNodeChecksumWrong };
        let problem = Problem::new(code).dir(directory.inode).file_block(FileBlock(u64::from(file_block)));
        self.ctx.report(match state {
            ChecksumState::Bad { stored, computed } => problem
                .name(format!("{stored:#x}, should be {computed:#x}"))
                .found(u64::from(stored))
                .expected(u64::from(computed)),
            ChecksumState::Good => problem.name("block of another directory"),
            ChecksumState::Missing => problem.name("none"),
        });
    }

    fn check_root(&self, dir: InodeNo, info: &DxRootInfo, format: &IndexFormat) {
        let report = |code, found: u8| self.ctx.report(Problem::new(code).inode(dir).dir(dir).found(u64::from(found)));
        let head = info.reserved_zero.get() == 0 && usize::from(info.info_length) >= DxRootInfo::SIZE;
        if !head {
            report(Code::HtreeRootBad, info.info_length);
        }
        match HashVersion::from_raw(info.hash_version) {
            Some(HashVersion::SipHash) if format.dir.hashed => {}
            Some(HashVersion::SipHash) => report(Code::HtreeCannotUseSiphash, info.hash_version),
            // the unsigned versions are never written: the superblock's flags decide
            Some(HashVersion::Legacy | HashVersion::HalfMd4 | HashVersion::Tea) => {
                if format.dir.hashed {
                    report(Code::HtreeNeedsSiphash, info.hash_version);
                }
            }
            _ => report(Code::HtreeHashVersionUnknown, info.hash_version),
        }
        if info.unused_flags & FLAG_INCOMPATIBLE != 0 {
            report(Code::HtreeFlagsUnknown, info.unused_flags);
        }
        if info.indirect_levels >= MAX_DEPTH {
            let problem = Problem::new(Code::HtreeTooDeep).inode(dir).found(u64::from(info.indirect_levels));
            self.ctx.report(problem.expected(u64::from(format.max_indirect_levels())));
        }
        if !head || info.indirect_levels > format.max_indirect_levels() {
            report(Code::HtreeRootInvalid, info.indirect_levels);
        }
    }

    /// Checks the array of an index block, which starts with `bytes` and has space for `capacity` entries.
    fn take_entries(&self, directory: &Directory, file_block: u32, bytes: &[u8], capacity: usize) {
        let report = |code, found: u64, expected: u64| {
            let place = Problem::new(code).dir(directory.inode).file_block(FileBlock(u64::from(file_block)));
            self.ctx.report(place.found(found).expected(expected));
        };
        let Some([a, b, c, d]) = bytes.first_chunk::<4>() else { return };
        let (limit, count) = (u16::from_le_bytes([*a, *b]), u16::from_le_bytes([*c, *d]));
        if usize::from(limit) != capacity {
            report(Code::HtreeLimitWrong, u64::from(limit), capacity as u64);
        }
        if usize::from(count) > capacity {
            report(Code::HtreeCountWrong, u64::from(count), capacity as u64);
        }
        let count = usize::from(count).min(capacity);
        let Ok((entries, _)) = <[DxEntry]>::ref_from_prefix_with_elems(bytes, count) else { return };
        let hash = |n: usize| match n {
            0 => Some(0),
            _ => entries.get(n).map(|e| e.hash.get() & !CONTINUES),
        };
        let mut links = Vec::with_capacity(count);
        let mut before = 0;
        for (n, entry) in entries.iter().enumerate() {
            let child = entry.block.get() & BLOCK_MASK;
            let low = hash(n).unwrap_or(0);
            let high = hash(n + 1).unwrap_or(MAX_HASH);
            if child >= directory.blocks {
                report(Code::HtreeBlockOutOfRange, u64::from(child), u64::from(directory.blocks));
                continue;
            }
            if low < before {
                report(Code::HtreeHashOrderWrong, u64::from(low), u64::from(before));
            }
            before = low;
            links.push(Link { dir: directory.inode, child, node: file_block, low, high });
        }
        self.links.lock().append(&mut links);
    }

    /// The directories whose root has another hash function than the superblock, with that function. Called after all
    /// blocks were read.
    pub(crate) fn foreign(&mut self) -> BTreeMap<InodeNo, Hasher> {
        let blocks = self.blocks.get_mut();
        blocks.sort_unstable_by_key(Block::key);
        let roots = blocks.iter().filter_map(|b| match b.kind {
            Kind::Root { version, .. } => Some((b.dir, hasher(self.ctx, HashVersion::from_raw(version)?)?)),
            _ => None,
        });
        roots.filter(|(_, hasher)| Some(*hasher) != self.hasher).collect()
    }

    /// The leaves whose lowest or highest hash another leaf has too, with these hashes. In a consistent tree only such
    /// leaves can have a name in common. Called after [`foreign`](Self::foreign).
    pub(crate) fn borders(&mut self, foreign: &BTreeMap<InodeNo, Hasher>) -> BTreeMap<(InodeNo, u32), Vec<u32>> {
        let blocks = self.blocks.get_mut();
        let mut borders: BTreeMap<_, Vec<u32>> = BTreeMap::new();
        for blocks in blocks.chunk_by(|a, b| a.dir == b.dir) {
            let leaves = blocks.iter().filter(|block| !foreign.contains_key(&block.dir));
            let mut leaves: Vec<_> = leaves
                .filter_map(|block| match block.kind {
                    Kind::Leaf(range) if range.min <= range.max => Some((range.min, range.max, block.key())),
                    _ => None,
                })
                .collect();
            leaves.sort_unstable();
            for (a, b) in leaves.iter().zip(leaves.iter().skip(1)).filter(|(a, b)| a.1 == b.0) {
                borders.entry(a.2).or_default().push(a.1);
                borders.entry(b.2).or_default().push(a.1);
            }
        }
        borders
    }

    /// Sets the range of hashes of a leaf of one of these directories, by the function in its root.
    pub(crate) fn rehash(&self, dir: InodeNo, file_block: u32, range: HashRange) {
        let mut blocks = self.blocks.lock();
        if let Ok(at) = blocks.binary_search_by_key(&(dir, file_block), Block::key)
            && let Some(Block { kind: Kind::Leaf(old), .. }) = blocks.get_mut(at)
        {
            *old = range;
        }
    }

    /// Compares blocks and references.
    pub(crate) fn finish(self) {
        let mut blocks = self.blocks.into_inner();
        let mut links = self.links.into_inner();
        blocks.sort_unstable_by_key(Block::key);
        links.sort_unstable_by_key(|l| (l.dir, l.child, l.node));
        let mut links = links.as_slice();
        for blocks in blocks.chunk_by(|a, b| a.dir == b.dir) {
            let Some(dir) = blocks.first().map(|b| b.dir) else { continue };
            let (_, rest) = links.split_at(links.partition_point(|l| l.dir < dir));
            let (own, rest) = rest.split_at(rest.partition_point(|l| l.dir == dir));
            links = rest;
            Tree { ctx: self.ctx, dir, blocks, links: own }.check();
        }
    }
}

/// The hash function for a root's hash version, with the signedness in the superblock. `None` for SipHash.
pub(crate) fn hasher(ctx: &Context<'_>, version: HashVersion) -> Option<Hasher> {
    let disk = &ctx.volume.disk;
    let unsigned = Flags::from_bits_retain(disk.s_flags.get()).contains(Flags::UNSIGNED_HASH);
    Hasher::new(if unsigned { version.to_unsigned() } else { version }, disk.hash_seed())
}

/// Format of the index blocks of a directory; `hashed` where it is both casefolded and encrypted.
pub(crate) fn index_format(ctx: &Context<'_>, dir: format::dir::DirFormat) -> IndexFormat {
    let volume = ctx.volume;
    IndexFormat {
        dir,
        checksums: volume.features.ro_compat.contains(RoCompat::METADATA_CSUM),
        large_dir: volume.features.incompat.contains(format::feature::Incompat::LARGE_DIR),
    }
}

/// One directory: its blocks by number, its links by child.
struct Tree<'a> {
    ctx: &'a Context<'a>,
    dir: InodeNo,
    blocks: &'a [Block],
    links: &'a [Link],
}

impl Tree<'_> {
    fn check(&self) {
        // without a root there is nothing to compare with; the missing root was reported
        let Some(Block { file_block: 0, kind: Kind::Root { levels, .. }, .. }) = self.blocks.first() else { return };
        let mut valid = true;
        for block in self.blocks {
            valid &= self.check_references(block);
            if block.file_block != 0 {
                valid &= self.check_place(block, *levels);
            }
        }
        if !valid {
            self.ctx.report(Problem::new(Code::HtreeInvalid).dir(self.dir));
        }
    }

    fn report(&self, code: Code, file_block: u32, values: Option<(u32, u32)>) -> bool {
        let mut problem = Problem::new(code).dir(self.dir).file_block(FileBlock(u64::from(file_block)));
        if let Some((found, expected)) = values {
            problem = problem.found(u64::from(found)).expected(u64::from(expected));
        }
        self.ctx.report(problem);
        false
    }

    /// The links to a block, lowest node first.
    fn links_to(&self, child: u32) -> &[Link] {
        let start = self.links.partition_point(|l| l.child < child);
        let rest = self.links.get(start..).unwrap_or_default();
        rest.get(..rest.partition_point(|l| l.child == child)).unwrap_or_default()
    }

    /// Whether a block has exactly one reference, or none if it is the root.
    fn check_references(&self, block: &Block) -> bool {
        match (self.links_to(block.file_block).len(), block.file_block) {
            (0, 0) | (1, 1..) => true,
            (0, 1..) => self.report(Code::HtreeBlockUnreferenced, block.file_block, None),
            _ => self.report(Code::HtreeBlockReferencedTwice, block.file_block, None),
        }
    }

    /// Checks the level of a referenced block, and its hashes against the ranges of all references above it. (e2fsck
    /// compares an upper bound only with the leaves directly below it, although a lookup never reaches names beyond
    /// it.)
    fn check_place(&self, block: &Block, levels: u8) -> bool {
        let Some(link) = self.links_to(block.file_block).first() else { return true };
        let (mut low, mut high) = (link.low, link.high);
        let mut depth = 1;
        let mut node = link.node;
        let mut valid = true;
        while node != 0 && depth <= MAX_DEPTH {
            let Some(above) = self.links_to(node).first() else { break };
            if depth == 1 && link.low != 0 {
                // the entry itself must be in the range of its node
                if link.low < above.low {
                    valid = self.report(Code::HtreeMinimumHashWrong, node, Some((link.low, above.low)));
                } else if link.low > above.high {
                    valid = self.report(Code::HtreeMaximumHashWrong, node, Some((link.low, above.high)));
                }
            }
            low = low.max(above.low);
            high = high.min(above.high);
            depth += 1;
            node = above.node;
        }
        let leaf_depth = levels.saturating_add(1);
        let in_place = match block.kind {
            Kind::Leaf(_) => node == 0 && depth == leaf_depth,
            _ => node == 0 && depth < leaf_depth,
        };
        if !in_place {
            let values = Some((u32::from(depth), u32::from(leaf_depth)));
            return self.report(Code::HtreeDepthWrong, block.file_block, values);
        }
        if let Kind::Leaf(range) = block.kind
            && range.min <= range.max
        {
            if range.min < low {
                valid = self.report(Code::HtreeMinimumHashWrong, block.file_block, Some((range.min, low)));
            }
            if range.max > high {
                valid = self.report(Code::HtreeMaximumHashWrong, block.file_block, Some((range.max, high)));
            }
        }
        valid
    }
}
