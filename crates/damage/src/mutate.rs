//! Random changes of fields regardless of their meaning: limits, numbers that are valid elsewhere on the volume, values
//! of neighbouring fields.

use crate::structures::{StructureRange, Structures, What};
use fastrand::Rng;

/// Offsets of superblock fields with locations or counts.
const SUPERBLOCK: [u16; 60] = [
    0x00, 0x04, 0x08, 0x0C, 0x10, 0x14, 0x18, 0x1C, 0x20, 0x24, 0x28, 0x2C, 0x30, 0x34, 0x36, 0x3A, 0x3C, 0x48, 0x4C,
    0x54, 0x58, 0x5A, 0x5C, 0x60, 0x64, 0xCE, 0xE0, 0xE4, 0xE8, 0xFC, 0xFE, 0x100, 0x104, 0x10C, 0x14C, 0x150, 0x154,
    0x158, 0x15C, 0x15E, 0x160, 0x166, 0x168, 0x174, 0x194, 0x240, 0x244, 0x248, 0x24C, 0x250, 0x254, 0x26C, 0x270,
    0x274, 0x27C, 0x27E, 0x280, 0x2C0, 0x2C4, 0x178,
];
/// The same for an inode.
const INODE: [u16; 38] = [
    0x00, 0x02, 0x04, 0x08, 0x0C, 0x10, 0x14, 0x18, 0x1A, 0x1C, 0x20, 0x24, 0x28, 0x2A, 0x2C, 0x2E, 0x30, 0x34, 0x36,
    0x38, 0x3A, 0x3C, 0x40, 0x44, 0x50, 0x58, 0x5C, 0x60, 0x64, 0x68, 0x6C, 0x74, 0x76, 0x78, 0x80, 0x84, 0x9C, 0xA0,
];
/// Flags that change the meaning of an inode's blocks.
const FLAGS: [u32; 13] = [
    0x8_0000,
    0x1000,
    0x1000_0000,
    0x20_0000,
    0x800,
    0x4_0000,
    0x4000_0000,
    0x2000_0000,
    0x10,
    0x20,
    0x10_0000,
    0x40_0000,
    0x8000_0000,
];
/// The same for a native superblock: its own fields, and the index and the physical block of map log entries.
const NATIVE: [u16; 16] =
    [0x08, 0x0C, 0x20, 0x28, 0x30, 0x38, 0x3C, 0x40, 0x48, 0x4C, 0x50, 0x1F8, 0x240, 0x248, 0x268, 0x270];
const NUMBERS: [u32; 31] = [
    0,
    1,
    2,
    3,
    4,
    5,
    7,
    8,
    10,
    11,
    12,
    13,
    15,
    16,
    31,
    32,
    64,
    127,
    128,
    255,
    256,
    512,
    1000,
    1020,
    1024,
    4096,
    32768,
    49151,
    65535,
    65536,
    0x0100_0000,
];
const LIMITS: [u32; 9] =
    [u32::MAX, u32::MAX - 1, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_0000, 0xFFFF_FFF0, 0x7FFF, 0x8000, 0x8001];
const STEPS: [i64; 12] = [-1, 1, 2, -2, 4, -4, 8, -8, 12, -12, 256, -256];

/// The weight of a structure in the random choice.
fn weight(what: What) -> u32 {
    match what {
        What::Inode(_) => 8,
        What::Names(_) => 6,
        What::Extents(_) => 5,
        What::Index(_) | What::Attributes | What::MapNode => 4,
        What::Superblock | What::Descriptor(_) | What::Pointers | What::Snapshots | What::NativeSuperblock => 3,
        What::Journal => 3,
        What::BlockBitmap(_) | What::InodeBitmap(_) | What::JournalSuperblock => 2,
        What::Orphans(_) | What::Quota | What::ChunkTable => 2,
        What::Link | What::MultipleMount => 1,
    }
}

/// The kind of a structure without its owner.
fn kind(what: What) -> std::mem::Discriminant<What> {
    std::mem::discriminant(&what)
}

/// The state of a series of changes.
struct Mutation<'a> {
    structures: &'a Structures,
    bytes: &'a mut Vec<u8>,
    rng: Rng,
}

impl Structures {
    /// Makes `changes` random changes to the structures of the volume in `bytes`, and returns their descriptions. The
    /// same seed makes the same changes. Checksums are not changed: [`Structures::set_checksum`] corrects them.
    pub fn mutate(&self, bytes: &mut Vec<u8>, seed: u64, changes: usize) -> Vec<String> {
        let mut mutation = Mutation { structures: self, bytes, rng: Rng::with_seed(seed) };
        (0..changes).map(|_| mutation.one()).collect()
    }
}

impl Mutation<'_> {
    /// A random structure: its kind is chosen first, so that inodes do not dominate.
    fn structure(&mut self) -> Option<StructureRange> {
        let list = &self.structures.list;
        let mut kinds: Vec<What> = Vec::new();
        for structure in list {
            if !kinds.iter().any(|what| kind(*what) == kind(structure.what)) {
                kinds.push(structure.what);
            }
        }
        let mut left = self.rng.u32(0..kinds.iter().map(|what| weight(*what)).sum::<u32>().max(1));
        let chosen = kinds.iter().find(|what| {
            let found = left < weight(**what);
            left = left.saturating_sub(weight(**what));
            found
        })?;
        let of_kind: Vec<&StructureRange> =
            list.iter().filter(|structure| kind(structure.what) == kind(*chosen)).collect();
        self.rng.choice(of_kind).copied()
    }

    fn one(&mut self) -> String {
        let Some(structure) = self.structure().filter(|structure| structure.range().end <= self.bytes.len()) else {
            return "nothing".to_owned();
        };
        let said = if self.rng.u8(0..100) < 8 { self.whole(&structure) } else { self.part(&structure) };
        format!("{:?} at {:#x}: {said}", structure.what, structure.at)
    }

    /// Overwrites a structure with another one or with zeros.
    fn whole(&mut self, structure: &StructureRange) -> String {
        let same: Vec<_> =
            self.structures.list.iter().filter(|other| kind(other.what) == kind(structure.what)).copied().collect();
        match self.rng.choice(same).filter(|other| other.at != structure.at && other.len == structure.len) {
            Some(other) if other.range().end <= self.bytes.len() && self.rng.bool() => {
                self.bytes.copy_within(other.range(), structure.at);
                format!("the one at {:#x}", other.at)
            }
            _ => {
                let zeros = self.rng.usize(1..=structure.len);
                self.bytes[structure.at..structure.at + zeros].fill(0);
                format!("{zeros} zeros")
            }
        }
    }

    fn part(&mut self, structure: &StructureRange) -> String {
        let width = if self.rng.bool() { 4 } else { 2 };
        let within = |offsets: &[u16], rng: &mut Rng| {
            rng.choice(offsets).copied().map_or(0, usize::from).min(structure.len.saturating_sub(width))
        };
        let at = match structure.what {
            What::Superblock => {
                let at = within(&SUPERBLOCK, &mut self.rng);
                if matches!(at, 0x5C | 0x60 | 0x64) && self.rng.u8(0..10) < 8 {
                    let bit = 1 << self.rng.u32(0..18);
                    return self.flip(structure.at + at, bit);
                }
                at
            }
            What::Inode(_) => match self.rng.u8(0..20) {
                0 | 1 => {
                    let bit = self.rng.choice(FLAGS).unwrap_or(0);
                    return self.flip(structure.at + 0x20, bit);
                }
                2 => {
                    let kind = self.rng.u8(0..16) << 4;
                    let byte = &mut self.bytes[structure.at + 1];
                    *byte = *byte & 0x0F | kind;
                    return format!("its type is {:#x}", kind >> 4);
                }
                _ => within(&INODE, &mut self.rng),
            },
            What::Names(_) | What::Index(_) if self.rng.u8(0..5) < 4 => match self.entry(structure) {
                Some(said) => return said,
                None => self.anywhere(structure.len, width),
            },
            What::Index(_) => self.anywhere(64, width),
            What::Extents(_) => {
                let entries = self.number(structure.at + 2, 2) as usize;
                let entry = self.rng.usize(0..entries.clamp(1, structure.len / 12 - 1));
                if self.rng.u8(0..4) == 0 {
                    2 * self.rng.usize(0..4)
                } else {
                    12 + 12 * entry + 2 * self.rng.usize(0..6)
                }
            }
            What::Attributes => self.anywhere(160, width),
            What::JournalSuperblock => self.anywhere(0x60, width),
            What::Journal | What::MultipleMount => self.anywhere(200, width),
            What::NativeSuperblock => within(&NATIVE, &mut self.rng),
            What::Snapshots => 256 * self.rng.usize(0..3) + self.anywhere(256, width),
            What::ChunkTable => 72 * self.rng.usize(0..56) + self.anywhere(72, width),
            _ => self.anywhere(structure.len, width),
        };
        let at = structure.at + at.min(structure.len - width);
        // the journal is big-endian
        let big = matches!(structure.what, What::Journal | What::JournalSuperblock);
        let old = if big { self.number(at, width).swap_bytes() >> (32 - 8 * width) } else { self.number(at, width) };
        let value = self.value(old, width);
        let bytes = if big { value.to_be_bytes()[4 - width..].to_vec() } else { value.to_le_bytes()[..width].to_vec() };
        self.bytes[at..at + width].copy_from_slice(&bytes);
        format!("byte {:#x}, {width} bytes, {old:#x} to {value:#x}", at - structure.at)
    }

    fn anywhere(&mut self, most: usize, width: usize) -> usize {
        self.rng.usize(0..(most / width).max(1)) * width
    }

    fn number(&self, at: usize, width: usize) -> u32 {
        let mut wide = [0; 4];
        if let Some(bytes) = self.bytes.get(at..at + width) {
            wide[..width].copy_from_slice(bytes);
        }
        u32::from_le_bytes(wide)
    }

    fn flip(&mut self, at: usize, bit: u32) -> String {
        let value = self.number(at, 4) ^ bit;
        self.bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        format!("the flags {value:#x}, with {bit:#x} turned")
    }

    /// Changes an entry of a directory block.
    fn entry(&mut self, structure: &StructureRange) -> Option<String> {
        let mut entries = Vec::new();
        let mut at = 0;
        while at + 12 <= structure.len {
            let len = self.number(structure.at + at + 4, 2) as usize;
            if len < 8 || at + len > structure.len {
                break;
            }
            entries.push(at);
            at += len;
        }
        let entry = self.rng.choice(&entries).copied()?;
        let start = structure.at + entry;
        let name = usize::from(self.bytes[start + 6]);
        let space = (self.number(start + 4, 2) as usize).saturating_sub(8).min(structure.len - entry - 8);
        let which = self.rng.u8(0..7);
        match which {
            0 => {
                let value = self.value(self.number(start, 4), 4);
                self.bytes[start..start + 4].copy_from_slice(&value.to_le_bytes());
            }
            1 => {
                let inode = self.rng.choice(&self.structures.inodes).map_or(0, |inode| inode.get());
                self.bytes[start..start + 4].copy_from_slice(&inode.to_le_bytes());
            }
            2 => {
                let value = self.value(self.number(start + 4, 2), 2) as u16;
                self.bytes[start + 4..start + 6].copy_from_slice(&value.to_le_bytes());
            }
            3 => self.bytes[start + 6] = self.value(name as u32, 1) as u8,
            4 => self.bytes[start + 7] = self.rng.choice([0, 1, 2, 3, 4, 5, 6, 7, 8, 0xDE, 255])?,
            5 if name > 0 => {
                let letter = self.rng.usize(0..name.min(space).max(1));
                self.bytes[start + 8 + letter] = self.rng.choice([0, b'/', b'.', b'\n', 0x1B, 0xFF, b'A'])?;
            }
            _ => {
                // a duplicate name
                let other = structure.at + self.rng.choice(&entries).copied()?;
                let len = usize::from(self.bytes[other + 6]).min(space).min(structure.range().end - other - 8);
                self.bytes.copy_within(other + 8..other + 8 + len, start + 8);
                self.bytes[start + 6] = len as u8;
            }
        }
        Some(format!("entry {entry:#x}, change {which}"))
    }

    /// A new value for a field of `width` bytes.
    fn value(&mut self, old: u32, width: usize) -> u32 {
        let geometry = &self.structures.geometry;
        let value = match self.rng.u8(0..10) {
            0 => self.rng.choice(NUMBERS).unwrap_or(0),
            1 => self.rng.choice(LIMITS).unwrap_or(0),
            2 => (i64::from(old) + self.rng.choice(STEPS).unwrap_or(1)) as u32,
            3 => old ^ 1 << self.rng.usize(0..8 * width),
            4 => self.rng.choice(&self.structures.inodes).map_or(2, |inode| inode.get()),
            5 => self.rng.choice(&self.structures.list).map_or(1, |structure| structure.block.get() as u32),
            6 => self.rng.u64(0..geometry.blocks + 8) as u32,
            7 => {
                let (blocks, inodes, size) = (geometry.blocks as u32, geometry.inodes, geometry.block_size);
                let groups = (geometry.inodes_per_group, geometry.blocks_per_group);
                let ends = [
                    blocks,
                    blocks - 1,
                    blocks + 1,
                    inodes,
                    inodes + 1,
                    inodes - 1,
                    size,
                    size - 12,
                    groups.0,
                    groups.1,
                ];
                self.rng.choice(ends).unwrap_or(0)
            }
            8 => self.rng.u32(..),
            _ if self.rng.bool() => old.wrapping_mul(2),
            _ => old / 2,
        };
        value & (u32::MAX >> (32 - 8 * width))
    }
}

#[cfg(test)]
mod tests {
    use crate::Structures;
    use testkit::{Image, Rng, Spec, Tree, cases, need};

    const KINDS: [&[&str]; 8] = [
        &["-t", "ext2", "-b", "1024"],
        &["-t", "ext3", "-b", "1024", "-J", "size=1"],
        &["-t", "ext4", "-b", "1024", "-J", "size=1"],
        &["-t", "ext4", "-b", "4096", "-O", "^has_journal,^64bit,metadata_csum_seed"],
        &["-t", "ext4", "-b", "1024", "-O", "orphan_file,quota,inline_data,ea_inode", "-J", "size=1"],
        &["-t", "ext4", "-b", "1024", "-O", "^has_journal,^resize_inode,meta_bg,mmp,^flex_bg", "-g", "1024"],
        &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,uninit_bg"],
        &["-t", "ext4", "-b", "1024", "-O", "bigalloc,^has_journal", "-C", "4096"],
    ];

    #[test]
    fn checksums_of_an_intact_volume_stay_and_those_of_a_changed_one_can_be_set() {
        if !need(&["mke2fs", "debugfs", "e2fsck"]) {
            return;
        }
        let tree = Tree::new(2, &Spec::small());
        for args in KINDS {
            let made = Image::mke2fs(args, 6 << 20).with_tree(&tree);
            let mmp = args.iter().any(|options| options.contains("mmp"));
            let before = if mmp { made } else { made.indexed() }.build().bytes();
            let structures = Structures::of(&before).expect("a consistent volume");
            let mut after = before.clone();
            structures.set_checksum(&mut after);
            let first = (0..before.len()).find(|&at| before[at] != after[at]);
            assert_eq!(first, None, "{args:?}");
            assert!(structures.ranges().iter().all(|range| range.end <= before.len()));
            for case in cases("mutate", 15) {
                let changes = Rng::new(case.seed).between(1, 9) as usize;
                let (mut changed, mut again) = (before.clone(), before.clone());
                let said = structures.mutate(&mut changed, case.seed, changes);
                assert_eq!(structures.mutate(&mut again, case.seed, changes), said);
                assert!(changed == again);
                structures.set_checksum(&mut changed);
                changed.truncate(changed.len() / 2);
                structures.mutate(&mut changed, case.seed, 100);
                structures.set_checksum(&mut changed);
            }
        }
    }
}
