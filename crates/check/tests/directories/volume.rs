//! A volume whose directories are damaged.

use blockdev::MemoryDevice;
use extant_check::table::Code;
use extant_check::{Options, check};
use format::checksum::crc32c;
use format::dir::{DirEntry, DirTail, decode_rec_len};
use format::htree::write_index_checksum;
use format::superblock::Superblock;
use std::collections::BTreeSet;
use testkit::oracle::{debugfs, e2fsck};
use testkit::{Image, tools};

/// A volume in memory, and the locations of its directories.
pub(crate) struct Volume {
    pub(crate) image: Image,
    pub(crate) bytes: Vec<u8>,
    pub(crate) block_size: usize,
}

/// A directory of the volume.
#[derive(Debug, Clone)]
pub(crate) struct Dir {
    pub(crate) inode: u32,
    /// Its blocks, by their number in the directory.
    pub(crate) blocks: Vec<u64>,
}

impl Volume {
    pub(crate) fn new(image: Image) -> Self {
        let bytes = image.bytes();
        let superblock = Superblock::parse(&bytes[1024..2048]).expect("a superblock");
        Self { image, bytes, block_size: superblock.geometry.block_size as usize }
    }

    /// The directory at `path`, or `<inode>`.
    pub(crate) fn dir(&self, path: &str) -> Dir {
        let said = debugfs(self.image.path(), &format!("blocks {path}"));
        let numbers = said.lines().next().unwrap_or_default();
        let blocks = numbers.split_whitespace().filter_map(|n| n.parse().ok()).collect();
        Dir { inode: self.inode(path), blocks }
    }

    /// The inode at `path`.
    pub(crate) fn inode(&self, path: &str) -> u32 {
        let said = debugfs(self.image.path(), &format!("stat {path}"));
        let after = said.split("Inode:").nth(1).unwrap_or_else(|| panic!("no {path}: {said}"));
        after.split_whitespace().next().and_then(|n| n.parse().ok()).expect("an inode number")
    }

    /// Changes block `n` of a directory.
    pub(crate) fn edit(&mut self, dir: &Dir, n: usize, edit: impl FnOnce(&mut [u8])) {
        let start = dir.blocks[n] as usize * self.block_size;
        edit(&mut self.bytes[start..start + self.block_size]);
    }

    /// Changes block `n` of a directory and corrects its checksum.
    pub(crate) fn edit_checked(&mut self, dir: &Dir, n: usize, edit: impl FnOnce(&mut [u8])) {
        let superblock = Superblock::parse(&self.bytes[1024..2048]).expect("a superblock");
        let said = debugfs(self.image.path(), &format!("stat <{}>", dir.inode));
        let generation = said.split("Generation:").nth(1).and_then(|s| s.split_whitespace().next());
        let generation: u32 = generation.and_then(|g| g.parse().ok()).expect("a generation");
        let seed = crc32c(superblock.geometry.checksum_seed, &dir.inode.to_le_bytes());
        let seed = crc32c(seed, &generation.to_le_bytes());
        let block_size = self.block_size as u32;
        self.edit(dir, n, |block| {
            let leaf = DirTail::of(block).is_some();
            edit(block);
            if leaf {
                DirTail::write(block, seed).expect("space for a tail");
            } else {
                write_index_checksum(block, block_size, seed);
            }
        });
    }

    /// The codes that the check finds. Panics where e2fsck has another verdict.
    pub(crate) fn codes(&self) -> BTreeSet<Code> {
        let (codes, clean) = self.compare();
        self.image.set_bytes(&self.bytes);
        let verdict = e2fsck(self.image.path());
        assert_eq!(verdict.clean, clean, "e2fsck: exit {:?}, {}\nthe check: {codes:?}", verdict.exit, verdict.text);
        codes
    }

    /// The codes that the check finds where e2fsck finds nothing.
    pub(crate) fn codes_beyond_e2fsck(&self) -> BTreeSet<Code> {
        let (codes, clean) = self.compare();
        self.image.set_bytes(&self.bytes);
        assert!(!clean && e2fsck(self.image.path()).clean, "{codes:?}");
        codes
    }

    /// The codes that the check finds, whatever e2fsck's verdict.
    pub(crate) fn codes_alone(&self) -> BTreeSet<Code> {
        self.compare().0
    }

    /// The codes that the check finds, each with the path of the inode it is about.
    pub(crate) fn paths(&self) -> Vec<(Code, Option<String>)> {
        let device = MemoryDevice::from_vec(self.bytes.clone());
        let report = check("volume", &device, &Options::default(), &()).expect("a volume");
        report.problems.into_iter().map(|p| (p.code, p.path)).collect()
    }

    fn compare(&self) -> (BTreeSet<Code>, bool) {
        let device = MemoryDevice::from_vec(self.bytes.clone());
        let run = |threads| {
            let options = Options { threads, ..Options::default() };
            check("volume", &device, &options, &()).unwrap_or_else(|refusal| panic!("refused: {refusal:?}"))
        };
        let report = run(1);
        assert_eq!(report.problems, run(3).problems, "the findings depend on the threads");
        (report.problems.iter().map(|p| p.code).collect(), report.clean)
    }
}

/// All programs that these tests need.
pub(crate) fn programs() -> bool {
    tools::need(&["mke2fs", "debugfs", "e2fsck"])
}

/// The offset of the entry called `name` in a block.
pub(crate) fn entry(block: &[u8], name: &[u8]) -> usize {
    entries(block).into_iter().find(|at| entry_name(block, *at) == name).expect("an entry of this name")
}

/// The offsets of the entries of a block.
pub(crate) fn entries(block: &[u8]) -> Vec<usize> {
    let mut found = Vec::new();
    let mut at = 0;
    while at + DirEntry::SIZE <= block.len() {
        let len = rec_len(block, at);
        if len < DirEntry::SIZE {
            break;
        }
        found.push(at);
        at += len;
    }
    found
}

pub(crate) fn rec_len(block: &[u8], at: usize) -> usize {
    decode_rec_len(u16::from_le_bytes([block[at + 4], block[at + 5]]), block.len() as u32) as usize
}

fn entry_name(block: &[u8], at: usize) -> &[u8] {
    block.get(at + 8..at + 8 + usize::from(block[at + 6])).unwrap_or_default()
}

pub(crate) fn put_u16(block: &mut [u8], at: usize, value: u16) {
    block[at..at + 2].copy_from_slice(&value.to_le_bytes());
}

pub(crate) fn put_u32(block: &mut [u8], at: usize, value: u32) {
    block[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

pub(crate) fn get_u32(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(block[at..at + 4].try_into().expect("four bytes"))
}
