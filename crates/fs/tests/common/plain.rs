//! Conversion of rext3 volumes for checkers that do not know them: the owner in each metadata block is verified, and
//! the block is converted to its ext4 form, so that e2fsck can check all else.
//!
//! A file mapped by indirect blocks is converted to a shorter one than on ext4: behind the first of them its blocks
//! appear at lower offsets. Its size is adapted, so that e2fsck finds no error; directories and journals of such a
//! length cannot be converted.

use extant_fs::mkfs::{FeatureEdits, Kind, MkfsOptions, make};
use extant_fs::{FileKind, FsBlock, GroupNo, InodeFlags, InodeNo};
use format::dir::{ChecksumState, DirFormat, DirTail, Entries, LeafTail, OwnedDirTail};
use format::extent::{self, Node, OwnedExtentTail};
use format::feature::Incompat;
use format::group::{Group, GroupFlags};
use format::htree::{count_limit_offset, index_checksum, index_owner, write_index_checksum, write_index_owner};
use format::indirect::{IndirectFormat, IndirectTail};
use format::inode::{InodeBuf, RawInode};
use format::superblock::{Geometry, OFFSET, Superblock};
use std::ops::Range;
use testkit::Image;
use zerocopy::IntoBytes;

/// A volume of `len` bytes by `args`: `-t`, `-b` and `-O` with one word each. For the type rext3 from Extant's mkfs,
/// else from mke2fs.
pub(crate) fn image(args: &[&str], len: u64) -> Image {
    if !args.contains(&"rext3") {
        return Image::mke2fs(args, len).build();
    }
    let mut options = MkfsOptions::new(Kind::Rext3);
    (options.uuid, options.hash_seed) = ([7; 16], [9; 16]);
    for pair in args.chunks(2) {
        match pair {
            ["-t", "rext3"] => {}
            ["-b", size] => options.block_size = Some(size.parse().expect("a number")),
            ["-N", count] => options.inodes = Some(count.parse().expect("a number")),
            ["-g", count] => options.blocks_per_group = Some(count.parse().expect("a number")),
            ["-E", region] => {
                let bytes = region.strip_prefix("region=").expect("region=");
                options.region_bytes = Some(bytes.parse().expect("a number"));
            }
            ["-O", list] => {
                let mut edits = FeatureEdits::default();
                edits.add(list).expect("features");
                options.features = edits;
            }
            other => panic!("{other:?}"),
        }
    }
    let device = blockdev::MemoryDevice::zeroed(len).expect("memory");
    make(&device, &options).expect("mkfs");
    let mut bytes = vec![0; len as usize];
    blockdev::BlockDevice::read(&device, 0, &mut bytes).expect("reading");
    Image::from_bytes(&bytes)
}

/// A volume in its ext4 form.
pub(crate) struct Plain {
    pub(crate) bytes: Vec<u8>,
    /// Blocks of metadata outside of metadata regions.
    pub(crate) strays: Vec<u64>,
    /// Blocks of content inside of them.
    pub(crate) guests: Vec<u64>,
    /// Blocks of metadata regions, behind each group's inode table.
    pub(crate) region: u64,
}

/// The ext4 form of a rext3 volume; `None` for a volume of another type. Panics if a block does not contain its owner.
pub(crate) fn plain(bytes: Vec<u8>) -> Option<Plain> {
    let sb = Superblock::parse(&bytes[OFFSET as usize..]).expect("a superblock");
    if !sb.geometry.is_owned() {
        return None;
    }
    let mut walk = Walk { sb, plain: Plain { bytes, strays: vec![], guests: vec![], region: 0 }, regions: vec![] };
    let geometry = walk.sb.geometry.clone();
    let groups: Vec<Group> = geometry.group_numbers().map(|number| walk.group(number)).collect();
    for (number, group) in geometry.group_numbers().zip(&groups) {
        walk.regions.extend(geometry.region_blocks(number, group.regions));
    }
    for (number, group) in geometry.group_numbers().zip(&groups) {
        let own_end = group.inode_table.get() + u64::from(geometry.itable_blocks);
        let runs = geometry.region_blocks(number, group.regions);
        walk.plain.region += runs.map(|run| run.end.saturating_sub(run.start.max(own_end))).sum::<u64>();
    }
    for (number, group) in geometry.group_numbers().zip(&groups) {
        if group.flags.contains(GroupFlags::INODE_UNINIT) {
            continue;
        }
        let bitmap = walk.block(group.inode_bitmap.get()).to_vec();
        for index in (0..geometry.inodes_per_group).filter(|n| bitmap[*n as usize / 8] >> (n % 8) & 1 == 1) {
            let at = group.inode_table.get() * u64::from(geometry.block_size) + u64::from(index * geometry.inode_size);
            walk.inode(geometry.inode_at(number, index), at as usize);
        }
    }
    let mut disk = walk.sb.disk;
    let mut features = disk.features();
    features.incompat -= Incompat::EXTANT;
    // 64-bit block numbers are used without extents here, which e2fsck rejects
    features.incompat |= Incompat::EXTENT;
    disk.set_features(features);
    disk.x_features = 0.into();
    disk.set_checksum();
    walk.plain.bytes[OFFSET as usize..][..1024].copy_from_slice(disk.as_bytes());
    Some(walk.plain)
}

struct Walk {
    sb: Superblock,
    plain: Plain,
    regions: Vec<Range<u64>>,
}

impl Walk {
    fn geometry(&self) -> &Geometry {
        &self.sb.geometry
    }

    fn range(&self, block: u64) -> Range<usize> {
        let size = self.geometry().block_size as usize;
        block as usize * size..(block as usize + 1) * size
    }

    fn block(&mut self, block: u64) -> &mut [u8] {
        let range = self.range(block);
        &mut self.plain.bytes[range]
    }

    fn group(&mut self, group: GroupNo) -> Group {
        let per_block = self.geometry().descriptors_per_block();
        let size = self.geometry().descriptor_size as usize;
        let block = self.geometry().descriptor_block(group.get() / per_block);
        let at = (group.get() % per_block) as usize * size;
        Group::from_bytes(&self.block(block.get())[at..at + size])
    }

    fn metadata(&mut self, block: u64) {
        if !self.regions.iter().any(|run| run.contains(&block)) {
            self.plain.strays.push(block);
        }
    }

    fn content(&mut self, blocks: Range<u64>) {
        let inside = blocks.filter(|block| self.regions.iter().any(|run| run.contains(block)));
        let inside: Vec<u64> = inside.collect();
        self.plain.guests.extend(inside);
    }

    fn inode(&mut self, number: InodeNo, at: usize) {
        let size = self.geometry().inode_size as usize;
        let slot = self.plain.bytes[at..at + size].to_vec();
        let raw = RawInode::from_slot(&slot).expect("a slot");
        let Some(kind) = raw.kind() else { return };
        if raw.file_acl(true).get() != 0 {
            self.metadata(raw.file_acl(true).get());
        }
        let fast = kind == FileKind::Symlink && raw.sectors(false, 1024) == 0;
        if fast || !matches!(kind, FileKind::Regular | FileKind::Directory | FileKind::Symlink) {
            return;
        }
        let seed = raw.seed(self.geometry(), number);
        // the blocks of the file, and their offsets for e2fsck
        let mut blocks: Vec<(u64, u64, u64)> = Vec::new();
        if raw.flags().contains(InodeFlags::EXTENTS) {
            self.extents(number, seed, &raw.disk.i_block, &mut blocks);
        } else {
            let format = self.geometry().indirect();
            let wide = IndirectFormat::new(self.geometry().block_size, false);
            for (n, word) in (0u32..).zip(raw.block_words::<15>()) {
                let level = n.saturating_sub(11);
                let first = |of: IndirectFormat| if level == 0 { n.into() } else { of.first_of_level(level).get() };
                self.indirect(number, u64::from(word), level, (first(format), first(wide)), &mut blocks);
            }
        }
        let block_size = u64::from(self.geometry().block_size);
        match kind {
            FileKind::Regular => {
                blocks.iter().for_each(|(_, _, block)| self.content(*block..*block + 1));
                let seen = blocks.iter().map(|(_, seen, _)| (seen + 1) * block_size).max().unwrap_or(0);
                let moved = blocks.iter().any(|(own, seen, _)| own != seen);
                if moved && seen > raw.size() {
                    let mut buf = InodeBuf::from(raw);
                    buf.set_size(seen);
                    buf.set_checksum(self.geometry(), number);
                    self.plain.bytes[at..at + size].copy_from_slice(buf.bytes());
                }
            }
            FileKind::Directory => {
                for (own, seen, block) in blocks {
                    assert_eq!(own, seen, "directory {number} is too long for this");
                    self.metadata(block);
                    self.directory(number, seed, own, block);
                }
            }
            _ => blocks.iter().for_each(|(_, _, block)| self.metadata(*block)),
        }
    }

    fn extents(&mut self, number: InodeNo, seed: u32, node: &[u8], blocks: &mut Vec<(u64, u64, u64)>) {
        match Node::parse(node, None, self.geometry().blocks).expect("a node") {
            Node::Leaf(extents) => {
                for e in extents.iter().map(extent::Extent::from) {
                    let run = (0..u64::from(e.len)).map(|n| (e.logical.get() + n, e.physical.get() + n));
                    blocks.extend(run.map(|(logical, physical)| (logical, logical, physical)));
                }
            }
            Node::Inner(children, depth) => {
                for child in children.iter().map(|e| e.child().get()).collect::<Vec<_>>() {
                    self.metadata(child);
                    let mut bytes = self.block(child).to_vec();
                    let tail = OwnedExtentTail::of(&bytes).expect("a tail");
                    assert_eq!((tail.xt_owner.get(), tail.xt_depth.get()), (number.get(), depth.into()), "{child}");
                    assert!(OwnedExtentTail::checksum_matches(seed, &bytes), "{child}");
                    self.extents(number, seed, &bytes, blocks);
                    let at = extent::tail_offset(&bytes).expect("space");
                    bytes[at..at + OwnedExtentTail::SIZE].fill(0);
                    let max = u16::from_le_bytes([bytes[4], bytes[5]]) + 1;
                    bytes[4..6].copy_from_slice(&max.to_le_bytes());
                    extent::set_block_checksum(seed, &mut bytes).expect("space");
                    self.block(child).copy_from_slice(&bytes);
                }
            }
        }
    }

    fn indirect(
        &mut self,
        number: InodeNo,
        block: u64,
        level: u32,
        first: (u64, u64),
        blocks: &mut Vec<(u64, u64, u64)>,
    ) {
        if block == 0 {
            return;
        }
        if level == 0 {
            return blocks.push((first.0, first.1, block));
        }
        self.metadata(block);
        let (format, seed) = (self.geometry().indirect(), self.geometry().checksum_seed);
        let wide = IndirectFormat::new(self.geometry().block_size, false);
        let bytes = self.block(block).to_vec();
        let tail = IndirectTail::of(&bytes).expect("a tail");
        assert_eq!((tail.it_owner.get(), u32::from(tail.it_level)), (number.get(), level), "{block}");
        assert!(IndirectTail::checksum_matches(&bytes, FsBlock(block), seed), "{block}");
        for (n, pointer) in (0u64..).zip(format.pointers(&bytes)) {
            let first = (first.0 + n * format.span(level - 1), first.1 + n * wide.span(level - 1));
            self.indirect(number, pointer.get().into(), level - 1, first, blocks);
        }
        let len = bytes.len();
        self.block(block)[len - IndirectTail::SIZE..].fill(0);
    }

    fn directory(&mut self, number: InodeNo, seed: u32, at: u64, block: u64) {
        let size = self.geometry().block_size;
        let mut bytes = self.block(block).to_vec();
        if count_limit_offset(&bytes, size).is_some() {
            assert_eq!(index_checksum(&bytes, size, seed), ChecksumState::Good, "{block}");
            assert_eq!(index_owner(&bytes, size), Some(number), "{block}");
            write_index_owner(&mut bytes, size, InodeNo(0)).expect("space");
            write_index_checksum(&mut bytes, size, seed).expect("space");
        } else {
            assert_eq!(LeafTail::Owned.check(&bytes, seed), ChecksumState::Good, "{block}");
            let tail = OwnedDirTail::of(&bytes).expect("a tail");
            assert_eq!((tail.dt_owner.get(), u64::from(tail.dt_block.get())), (number.get(), at), "{block}");
            let format = DirFormat { block_size: size, file_type: true, hashed: false };
            let part = &bytes[..bytes.len() - OwnedDirTail::SIZE];
            let last = Entries::new(part, format).last().expect("an entry").expect("valid");
            let len = (last.rec_len + OwnedDirTail::SIZE - DirTail::SIZE) as u16;
            let place = last.offset + 4;
            bytes[place..place + 2].copy_from_slice(&len.to_le_bytes());
            DirTail::write(&mut bytes, seed).expect("space");
        }
        self.block(block).copy_from_slice(&bytes);
    }
}

/// Panics unless e2fsck finds no error; a rext3 volume is converted to ext4 first.
pub(crate) fn assert_valid(image: &std::path::Path, about: &dyn std::fmt::Debug) {
    let bytes = std::fs::read(image).expect("reading an image");
    let shown = plain(bytes).map(|plain| Image::from_bytes(&plain.bytes));
    let verdict = testkit::oracle::e2fsck(shown.as_ref().map_or(image, Image::path));
    assert!(verdict.clean, "{about:?}: {}", verdict.text);
}
