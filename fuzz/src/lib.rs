//! The fuzz targets: for each, a function that takes any bytes and panics only where a guarantee is violated.
//!
//! The functions are plain Rust: the programs in `fuzz_targets/` hand them to libFuzzer, and the tests here run them on
//! every seed and on random changes of the seeds, so that `make test` notices a target that has gone stale.
//!
//! Parts of the program that are no library are compiled in here: `copy_in.rs`, `copy_in/` and `path_stack.rs` are
//! links to its files, and `error_report.rs`, `output.rs` and `progress.rs` replace its modules that print.
//!
//! A checksum stops a random change at the door. So each target repairs, or does without, the checksums that stand
//! before what it is after; the tests of the crates see to it that wrong checksums are refused.

#![forbid(unsafe_code)]

mod archive;
#[allow(dead_code, unused_imports, reason = "the program uses what the target does not")]
mod copy_in;
mod error_report;
mod layer;
mod linked_list;
mod made;
mod nbd;
mod output;
#[allow(dead_code, reason = "the program uses what the target does not")]
mod path_stack;
mod progress;
mod reading;
mod seeds;
mod session;
mod space_map;
mod text_parsers;
mod undo;
mod volumes;
mod writing;

pub use archive::{archive, fill};
pub use layer::layer;
pub use linked_list::linked_list;
pub use nbd::nbd;
pub use reading::read;
pub use session::session;
pub use space_map::space_map;
pub use text_parsers::text;
pub use undo::undo;
pub use volumes::{check, repair, repair_cut, repair_undo};
pub use writing::write;

use blockdev::{BlockDevice, MemoryDevice};
use format::dir::{DirFormat, Entries, LeafTail};
use format::extent::{Extent, Node, RawNode};
use format::htree::{DxRoot, Index, IndexFormat};
use format::superblock::{DiskSuperblock, Geometry, Superblock};
use format::xattr::{Value, XattrArea};
use format::{FsBlock, GroupNo, InodeNo, jbd2};
use fuse_wire::{Features, Operation, Request};
use std::sync::Arc;
use store::recovery::{BlockExtent, JournalLocation, Recovered, Replayed};
use zerocopy::{FromBytes, IntoBytes};

/// A fuzz target.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Its name: that of its program, and of its folder of seeds.
    pub name: &'static str,
    /// Takes any bytes.
    pub run: fn(&[u8]),
    /// Makes inputs to start from, with volumes that mke2fs makes on the spot.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All targets.
pub const TARGETS: [Target; 21] = [
    Target { name: "superblock", run: superblock, seeds: seeds::superblocks },
    Target { name: "directory_block", run: directory_block, seeds: seeds::blocks },
    Target { name: "extent_tree", run: extent_tree, seeds: seeds::blocks },
    Target { name: "xattr", run: xattr, seeds: seeds::blocks },
    Target { name: "journal", run: journal, seeds: seeds::journals },
    Target { name: "archive", run: archive, seeds: archive::seeds },
    Target { name: "fuse_request", run: fuse_request, seeds: seeds::requests },
    Target { name: "check", run: check, seeds: volumes::patches },
    Target { name: "repair", run: repair, seeds: volumes::patches },
    Target { name: "linked_list", run: linked_list, seeds: linked_list::lists },
    Target { name: "space_map", run: space_map, seeds: space_map::space_maps },
    Target { name: "undo", run: undo, seeds: undo::files },
    Target { name: "repair_cut", run: repair_cut, seeds: volumes::cuts },
    Target { name: "repair_undo", run: repair_undo, seeds: volumes::patches },
    Target { name: "read", run: read, seeds: volumes::patches },
    Target { name: "write", run: write, seeds: writing::workloads },
    Target { name: "fill", run: fill, seeds: archive::fillings },
    Target { name: "session", run: session, seeds: session::sequences },
    Target { name: "layer", run: layer, seeds: layer::changes },
    Target { name: "nbd", run: nbd, seeds: nbd::conversations },
    Target { name: "text", run: text, seeds: text_parsers::texts },
];

/// The 1 024 bytes of a superblock. Guarantee: an accepted geometry has every group, descriptor and inode table inside
/// what its numbers can express, whatever group or inode is asked for.
pub fn superblock(data: &[u8]) {
    let mut bytes = data.to_vec();
    bytes.resize(DiskSuperblock::SIZE, 0);
    let disk = DiskSuperblock::read_from_bytes(&bytes).expect("1 024 bytes");
    std::hint::black_box((disk.label(), disk.last_mounted(), disk.features().names(), disk.hash_seed()));
    let geometry = Geometry::of(&disk);
    let mut repaired = disk;
    repaired.s_checksum = disk.checksum().into();
    let Ok(accepted) = Superblock::parse(repaired.as_bytes()) else { return };
    assert_eq!(geometry.as_ref(), Ok(&accepted.geometry));
    let g = &accepted.geometry;
    assert!(g.groups > 0 && g.inodes == g.groups * g.inodes_per_group);
    let last = GroupNo(g.groups - 1);
    for group in [GroupNo(0), GroupNo(g.groups / 2), last] {
        let blocks = g.group_blocks(group);
        assert!(blocks.start < blocks.end && blocks.end <= g.blocks, "group {group}: {blocks:?}");
        let (first, end) = (FsBlock(blocks.start), FsBlock(blocks.end - 1));
        assert_eq!((g.group_of(first), g.group_of(end)), (Some(group), Some(group)));
        std::hint::black_box((g.group_head(group), g.superblock_block(group)));
        let inode = g.inode_at(group, g.inodes_per_group - 1);
        assert_eq!(g.inode_slot(inode).map(|slot| slot.group), Some(group));
    }
    assert_eq!(g.inode_slot(InodeNo(0)), None);
    assert!(g.inodes == u32::MAX || g.inode_slot(InodeNo(g.inodes + 1)).is_none());
    for n in [0, g.descriptor_blocks - 1] {
        std::hint::black_box((g.descriptor_block(n), g.descriptor_block_backups(n).len()));
    }
    std::hint::black_box(g.backup_groups().take(100).count());
}

/// A directory block: leaf, hash tree root or hash tree node. The first byte selects the kind of volume. Guarantee:
/// entries tile the block from its start, names lie inside it, and an index leads to as many blocks as it counts.
pub fn directory_block(data: &[u8]) {
    let Some((&flags, block)) = data.split_first() else { return };
    // a bigger block size than the part's length is how an inline directory is read
    let block_size = 1024 << (flags & 7).min(6);
    let format = DirFormat { block_size, file_type: flags & 8 != 0, hashed: flags & 16 != 0 };
    let mut end = 0;
    let mut entries = Entries::new(block, format);
    for entry in entries.by_ref() {
        let Ok(entry) = entry else { break };
        assert_eq!(entry.offset, end);
        assert!(entry.rec_len >= 8 && entry.name.len() + 8 <= entry.rec_len);
        end += entry.rec_len;
        assert!(end <= block.len());
        std::hint::black_box((entry.kind(&format), entry.is_dot(), format::casefold::fold(entry.name)));
    }
    assert_eq!(entries.offset(), end);
    let _ = std::hint::black_box(Entries::new(block, format).find(b".."));
    let _ = std::hint::black_box(format::dir::dot_entries(block, format));
    for tail in [LeafTail::Checksum, LeafTail::Owned] {
        std::hint::black_box(format::htree::block_checksum(block, block_size, tail, 0));
    }

    let format = IndexFormat { dir: format, checksums: flags & 32 != 0, large_dir: flags & 64 != 0 };
    let root = DxRoot::parse(block, &format).map(|root| root.index);
    for index in [root, Index::parse_node(block, &format)].into_iter().flatten() {
        assert_eq!(index.iter().count(), index.len());
        for hash in [0, 1, 0x8000_0000, u32::MAX] {
            let at = index.position(hash);
            assert!(at < index.len() && index.hash(at).is_some_and(|lowest| lowest <= hash));
            std::hint::black_box(index.next_may_contain(at, hash));
        }
    }
}

/// A node of an extent tree. The first byte says whether it lies in an inode and, if that is known, how deep it must
/// be. Guarantee: an accepted leaf has ascending runs that do not overlap and lie inside the volume; so have the
/// children of a node.
pub fn extent_tree(data: &[u8]) {
    const BLOCKS: u64 = 1 << 20;
    let Some((&flags, bytes)) = data.split_first() else { return };
    let bytes = if flags & 1 != 0 { bytes.get(..60).unwrap_or(bytes) } else { bytes };
    let depth = (flags & 9 == 0).then_some(u16::from(flags >> 1 & 3));
    std::hint::black_box(format::extent::block_checksum_matches(0, bytes));
    let Some(raw) = RawNode::from_bytes(bytes) else { return };
    assert!(raw.extents().len() <= usize::from(raw.capacity()) && raw.indexes().len() <= usize::from(raw.capacity()));
    match Node::parse(bytes, depth, BLOCKS) {
        Ok(Node::Leaf(extents)) => {
            let mut next = 0;
            for extent in extents.iter().map(Extent::from) {
                assert!(extent.len > 0 && extent.logical.get() >= next);
                assert!(extent.physical.get() + u64::from(extent.len) <= BLOCKS);
                next = extent.logical.get() + u64::from(extent.len);
            }
        }
        Ok(Node::Inner(children, below)) => {
            assert!(depth.is_none_or(|depth| depth == below + 1));
            assert!(children.iter().all(|child| (1..BLOCKS).contains(&child.child().get())));
        }
        Err(_) => {}
    }
}

/// Extended attributes: a whole block, or with bit 0 of the first byte the space in an inode. Guarantee: every name
/// and every value that is marked as here lies inside, and what is listed is found.
pub fn xattr(data: &[u8]) {
    let Some((&flags, bytes)) = data.split_first() else { return };
    std::hint::black_box(format::xattr::block_checksum(bytes, FsBlock(7), 1));
    let area = if flags & 1 != 0 { XattrArea::in_inode(bytes) } else { XattrArea::in_block(bytes).map(Some) };
    let Ok(Some(area)) = area else { return };
    for xattr in area.iter().take(5000) {
        let index = xattr.entry.e_name_index;
        assert!(xattr.name.len() == usize::from(xattr.entry.e_name_len) && xattr.offset < bytes.len());
        assert!(area.find(index, xattr.name).is_some());
        if let Some(full) = format::xattr::full_name(index, xattr.name) {
            // some prefixes are whole names, which another prefix can begin: only the text has to come back
            if let Some((index, rest)) = format::xattr::split_name(&full) {
                assert_eq!(format::xattr::full_name(index, rest).as_ref(), Some(&full));
            }
        }
        if let Ok(Value::Here(value)) = area.value(&xattr) {
            assert!(value.len() as u64 == u64::from(xattr.entry.e_value_size.get()) && value.len() < bytes.len());
            std::hint::black_box(format::xattr::entry_hash(xattr.name, value, flags & 2 != 0));
        }
    }
    std::hint::black_box((area.block_hash(), area.overlap()));
}

/// Bytes in a block of the journals.
const BLOCK: usize = 1024;
/// Blocks of the volume that the journals belong to.
const VOLUME_BLOCKS: u64 = 4096;

/// A whole journal with blocks of 1 KB: superblock, log, fast commits. Guarantee: recovery ends, names only blocks of
/// the volume, and each of them can be read as it will be.
pub fn journal(data: &[u8]) {
    for record in jbd2::fast_commit::records(data) {
        std::hint::black_box(record.is_ok());
    }
    let Some(recovered) = recover(data) else { return };
    let volume = MemoryDevice::zeroed(VOLUME_BLOCKS * BLOCK as u64).expect("memory");
    let replayed = Replayed::new(Arc::new(volume), &recovered);
    let mut buf = [0; BLOCK];
    for block in recovered.blocks().take(64) {
        assert!(block.get() < VOLUME_BLOCKS);
        replayed.read(block.get() * BLOCK as u64, &mut buf).expect("a block of the volume");
    }
}

/// Recovers the journal that these bytes are once its superblock has the right checksum.
fn recover(data: &[u8]) -> Option<Recovered> {
    let mut bytes = data[..data.len() / BLOCK * BLOCK].to_vec();
    let (mut disk, _) = jbd2::DiskSuperblock::read_from_prefix(&bytes).ok()?;
    disk.s_checksum = disk.checksum().into();
    bytes[..BLOCK].copy_from_slice(disk.as_bytes());
    let all = BlockExtent { first: FsBlock(0), count: (bytes.len() / BLOCK) as u64 };
    let journal = JournalLocation::internal(Arc::new(MemoryDevice::from_vec(bytes)), BLOCK as u32, [all]);
    store::recovery::recover(&journal, VOLUME_BLOCKS).ok()
}

/// A message of the kernel to a FUSE server. Its first byte is the negotiated state of the session. Guarantee: what is
/// read from it lies inside it, and names have no zero byte.
pub fn fuse_request(data: &[u8]) {
    let Some((&flags, message)) = data.split_first() else { return };
    let features = if flags & 1 != 0 { Features::SETXATTR_EXT } else { Features::empty() };
    let Some(request) = Request::from_message(message, features) else { return };
    let names: Vec<&[u8]> = match request.operation {
        Operation::Lookup { name }
        | Operation::MkNod { name, .. }
        | Operation::MkDir { name, .. }
        | Operation::Unlink { name }
        | Operation::RmDir { name }
        | Operation::Link { name, .. }
        | Operation::GetXattr { name, .. }
        | Operation::RemoveXattr { name } => vec![name],
        Operation::Symlink { name, target } => vec![name, target],
        Operation::Rename { name, new_name, .. } => vec![name, new_name],
        Operation::Create { name, .. } => name.into_iter().collect(),
        Operation::SetXattr { name, value, .. } => {
            assert!(name.len() + value.len() < message.len());
            vec![name]
        }
        Operation::Write { data, .. } | Operation::Ioctl { input: data, .. } => {
            assert!(data.len() < message.len());
            Vec::new()
        }
        _ => Vec::new(),
    };
    assert!(names.iter().all(|name| name.len() < message.len() && !name.contains(&0)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use store::recovery::Recovery;
    use testkit::damage::Damager;
    use testkit::{cases, need};

    /// KiB of memory that all targets together take, each on a thread of its own.
    const MOST_MEMORY: u64 = 2 << 20;

    /// The program's own files are links, so that the targets test what users run.
    #[test]
    fn files_of_the_program_are_links() {
        for name in ["copy_in", "copy_in.rs", "path_stack.rs"] {
            let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(name);
            assert!(path.is_symlink() && path.exists(), "{name} is a copy");
        }
    }

    /// Every seed as it is, and random changes of it.
    fn smoke(name: &str, rounds: u64) {
        if !need(&["mke2fs", "debugfs", "e2image"]) {
            return;
        }
        let target = TARGETS.iter().find(|target| target.name == name).expect("a target");
        let seeds = (target.seeds)();
        assert!(!seeds.is_empty());
        seeds.iter().for_each(|seed| (target.run)(seed));
        for case in cases(name, rounds) {
            let mut rng = case.rng();
            let mut input = rng.pick(&seeds).clone();
            let damager = Damager::anywhere(64, input.len());
            for _ in 0..rng.magnitude(4) {
                damager.any(&mut input, &mut rng);
            }
            (target.run)(&input);
        }
        let status = std::fs::read_to_string("/proc/self/status").expect("proc(5)");
        let peak =
            status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse().ok());
        assert!(peak.is_some_and(|kib: u64| kib < MOST_MEMORY), "{name}: {peak:?} KiB of memory");
    }

    /// The structures that a target reads are among its seeds; else it would only ever refuse its input.
    #[test]
    fn seeds_hold_what_they_should() {
        if !need(&["mke2fs", "debugfs", "e2image"]) {
            return;
        }
        let blocks = seeds::blocks();
        let count = |is: &dyn Fn(u8, &[u8]) -> bool| blocks.iter().filter(|seed| is(seed[0], &seed[1..])).count();
        let dir = DirFormat { block_size: 1024, file_type: true, hashed: false };
        let index = IndexFormat { dir, checksums: false, large_dir: false };
        let found = [
            count(&|_, block| Entries::new(block, dir).filter(Result::is_ok).count() > 5),
            count(&|_, block| DxRoot::parse(block, &index).is_ok()),
            count(
                &|_, node| matches!(Node::parse(node, None, 1 << 20), Ok(Node::Leaf(extents)) if !extents.is_empty()),
            ),
            count(&|flags, space| flags == 1 && XattrArea::in_inode(space).is_ok_and(|area| area.is_some())),
            count(&|_, block| XattrArea::in_block(block).is_ok()),
        ];
        assert!(found.iter().all(|&n| n > 0), "directories, roots, leaves, attributes in inodes, in blocks: {found:?}");
        for seed in seeds::journals() {
            let recovered = recover(&seed).expect("a consistent journal");
            assert!(recovered.transactions >= 2 && !recovered.is_empty() && recovered.damage.is_empty());
        }
    }

    #[test]
    fn superblock() {
        smoke("superblock", 20_000);
    }

    #[test]
    fn directory_block() {
        smoke("directory_block", 20_000);
    }

    #[test]
    fn extent_tree() {
        smoke("extent_tree", 20_000);
    }

    #[test]
    fn xattr() {
        smoke("xattr", 20_000);
    }

    #[test]
    fn journal() {
        smoke("journal", 2_000);
    }

    #[test]
    fn archive() {
        smoke("archive", 20_000);
    }

    #[test]
    fn fuse_request() {
        smoke("fuse_request", 20_000);
    }

    #[test]
    fn check() {
        smoke("check", 1_000);
    }

    #[test]
    fn repair() {
        smoke("repair", 100);
    }

    #[test]
    fn layer() {
        smoke("layer", 300);
    }

    #[test]
    fn nbd() {
        smoke("nbd", 1_000);
    }

    #[test]
    fn space_map() {
        smoke("space_map", 2_000);
    }

    #[test]
    fn linked_list() {
        smoke("linked_list", 2_000);
    }

    #[test]
    fn undo() {
        smoke("undo", 2_000);
    }

    #[test]
    fn repair_cut() {
        smoke("repair_cut", 60);
    }

    #[test]
    fn repair_undo() {
        smoke("repair_undo", 60);
    }

    #[test]
    fn read() {
        smoke("read", 200);
    }

    #[test]
    fn write() {
        smoke("write", 60);
    }

    #[test]
    fn fill() {
        smoke("fill", 80);
    }

    #[test]
    fn session() {
        smoke("session", 60);
    }

    #[test]
    fn text() {
        smoke("text", 20_000);
    }
}
