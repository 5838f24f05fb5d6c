//! Inputs to start from, cut out of volumes that mke2fs and debugfs make.

use crate::made;
use damage::Structures;
use fs::mkfs::Kind;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::OnceLock;
use testkit::damage::metadata_ranges;
use testkit::{Image, Spec, Tree};

/// A volume, small, since every byte of its metadata is mutated.
pub(crate) struct Volume {
    /// All of it.
    pub(crate) bytes: Vec<u8>,
    /// The bytes of its metadata.
    pub(crate) metadata: Vec<Range<usize>>,
    /// Its structures.
    pub(crate) structures: Structures,
}

impl Volume {
    /// A volume of a format that other programs know.
    fn known(image: &Image) -> Self {
        let bytes = image.bytes();
        let structures = Structures::of(&bytes).expect("a consistent volume");
        Self { bytes, metadata: metadata_ranges(image.path(), 1024), structures }
    }

    /// One of this project's own formats.
    fn own(bytes: Vec<u8>) -> Self {
        let structures = Structures::of(&bytes).expect("a consistent volume");
        Self { bytes, metadata: structures.ranges(), structures }
    }
}

/// Volumes that between them hold every structure mke2fs writes, and those of this project's own formats; made when
/// they are first asked for.
pub(crate) fn volumes() -> &'static [Volume] {
    const KINDS: [&[&str]; 7] = [
        &["-t", "ext2", "-b", "1024"],
        &["-t", "ext3", "-b", "1024", "-J", "size=1"],
        &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,^has_journal,inline_data"],
        &["-t", "ext4", "-b", "2048", "-O", "^has_journal,metadata_csum_seed,ea_inode,large_dir,quota,project"],
        &["-t", "ext4", "-b", "1024", "-O", "^has_journal,^resize_inode,meta_bg,mmp,^flex_bg,64bit", "-g", "1024"],
        &["-t", "ext4", "-b", "1024", "-O", "^has_journal,bigalloc", "-C", "4096"],
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-O",
            "^metadata_csum,uninit_bg,sparse_super2,casefold,orphan_file",
            "-J",
            "size=1",
        ],
    ];
    static VOLUMES: OnceLock<Vec<Volume>> = OnceLock::new();
    VOLUMES.get_or_init(|| {
        let tree = Tree::new(1, &Spec { files: 60, directories: 6, wide: 120, largest: 20_000, ..Spec::small() });
        let volume = |args: &&[&str]| {
            let made = Image::mke2fs(args, 4 << 20).with_tree(&tree);
            // e2fsck, which makes the indexes, waits 11 seconds before it touches a volume with mmp
            let mmp = args.iter().any(|options| options.contains("mmp"));
            let image = if mmp { made } else { made.indexed() }.build();
            Volume::known(&image)
        };
        let own = [
            made::volume(Kind::Rext3, 4 << 20, Some(1024), "^has_journal"),
            made::volume(Kind::Rext3, 8 << 20, Some(4096), "has_journal"),
            made::volume(Kind::Extant, 16 << 20, None, ""),
        ];
        KINDS.iter().map(volume).chain([needs_recovery()]).chain(own.map(Volume::own)).collect()
    })
}

/// A volume whose journal holds transactions, which write into free blocks.
fn needs_recovery() -> Volume {
    let image = Image::mke2fs(&["-t", "ext3", "-b", "1024", "-J", "size=1"], 4 << 20).build();
    log_transactions(&image, "jo");
    Volume::known(&image)
}

/// Writes two transactions into the journal, a revocation, and a block that has to be escaped.
fn log_transactions(image: &Image, open: &str) {
    const BLOCK: usize = 1024;
    let content = image.beside("content");
    let escaped = [&format::jbd2::MAGIC.to_be_bytes()[..], &[7; BLOCK - 4]].concat();
    std::fs::write(&content, [&escaped[..], &[1; BLOCK], &[2; BLOCK]].concat()).expect("writing a file");
    let write = format!("jw -b 3000,3001,3002 {}", content.display());
    image.debugfs(&[open, &write, "jw -r 3001,2999", &write, "jc"]);
}

/// The superblock of each volume.
pub(crate) fn superblocks() -> Vec<Vec<u8>> {
    volumes().iter().map(|volume| volume.bytes[1024..2048].to_vec()).collect()
}

/// Every block of metadata that is a directory, an extent node or holds attributes, and what of these stands in inodes.
/// One byte of flags comes first, as the targets for blocks expect it.
pub(crate) fn blocks() -> Vec<Vec<u8>> {
    const EXTENTS: [u8; 2] = [0x0A, 0xF3];
    const ATTRIBUTES: [u8; 4] = [0x00, 0x00, 0x02, 0xEA];
    let mut seeds = BTreeSet::new();
    for volume in volumes() {
        for block in volume.metadata.iter().flat_map(|range| volume.bytes[range.clone()].chunks(1024)) {
            let directory = block[4..].starts_with(&[12, 0]) && block[8..].starts_with(b".\0\0\0");
            if directory || block.starts_with(&EXTENTS) || block.starts_with(&ATTRIBUTES) {
                seeds.insert([&[8], block].concat());
                seeds.insert([&[8 | 32], block].concat());
            }
            for at in (0..block.len()).step_by(4) {
                if block[at..].starts_with(&EXTENTS) && at + 60 <= block.len() {
                    seeds.insert([&[1], &block[at..at + 60]].concat());
                } else if block[at..].starts_with(&ATTRIBUTES) && at > 0 {
                    seeds.insert([&[1], &block[at..(at + 96).min(block.len())]].concat());
                }
            }
        }
    }
    seeds.into_iter().collect()
}

/// Journals of 64 blocks: each version of the checksums, narrow and wide.
pub(crate) fn journals() -> Vec<Vec<u8>> {
    const BLOCKS: u32 = 64;
    let mut seeds = Vec::new();
    for (features, open) in [
        ("^64bit", "jo"),
        ("64bit", "jo"),
        ("^64bit", "jo -c"),
        ("64bit,metadata_csum", "jo -c -v 2"),
        ("64bit", "jo -c -v 3"),
    ] {
        let image = Image::mke2fs(&["-t", "ext4", "-b", "1024", "-O", features, "-J", "size=1"], 4 << 20).build();
        log_transactions(&image, open);
        let out = image.beside("journal");
        image.debugfs(&[&format!("dump <8> {}", out.display())]);
        let mut journal = std::fs::read(&out).expect("debugfs dumps the journal");
        journal.truncate(BLOCKS as usize * 1024);
        journal[16..20].copy_from_slice(&BLOCKS.to_be_bytes()); // s_maxlen
        seeds.push(journal);
    }
    seeds
}

/// A message of each kind that the kernel knows, with names and data behind its arguments, and a byte for the session
/// before it.
pub(crate) fn requests() -> Vec<Vec<u8>> {
    const HEADER: usize = 40;
    let mut seeds = Vec::new();
    for kind in 1..=60u32 {
        for tail in [&b"name\0other name\0"[..], &[0; 128]] {
            let mut message = vec![1; 1 + HEADER];
            message[5..9].copy_from_slice(&kind.to_le_bytes());
            // arguments of up to 88 bytes, in which lengths are small
            message.extend([4, 0, 0, 0].repeat(22));
            message.extend(tail);
            let length = message.len() as u32 - 1;
            message[1..5].copy_from_slice(&length.to_le_bytes());
            seeds.push(message);
        }
    }
    seeds
}
