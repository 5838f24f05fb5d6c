//! Ways to corrupt a volume. Each returns a description, for reports without the bytes.

use crate::rng::Rng;
use crate::tools;
use std::ops::Range;
use std::path::Path;

/// The ranges to corrupt, and the block size.
#[derive(Debug, Clone)]
pub struct Damager {
    /// Block size in bytes.
    block: usize,
    /// Byte ranges to corrupt; they do not overlap.
    ranges: Vec<Range<usize>>,
}

impl Damager {
    /// Corrupts any byte of a volume of `len` bytes with equal probability.
    #[must_use]
    pub fn anywhere(block: usize, len: usize) -> Self {
        Self::within(block, std::iter::once(0..len))
    }

    /// Corrupts only these ranges, each byte with equal probability; see [`metadata_ranges`].
    #[must_use]
    pub fn within(block: usize, ranges: impl IntoIterator<Item = Range<usize>>) -> Self {
        Self { block: block.max(1), ranges: ranges.into_iter().collect() }
    }

    /// Applies one kind of damage, chosen at random. Bytes beyond the end of a shorter volume are not affected.
    pub fn any(&self, bytes: &mut Vec<u8>, rng: &mut Rng) -> String {
        match rng.below(16) {
            0 => truncate(bytes, rng),
            1 => self.zero_block(bytes, rng),
            2 => self.copy_block(bytes, rng),
            3 => self.swap_blocks(bytes, rng),
            4 => self.noise_block(bytes, rng),
            5..9 => self.extreme_number(bytes, rng),
            9..13 => {
                let count = rng.magnitude(16);
                self.flip_bits(bytes, rng, count)
            }
            _ => {
                let count = rng.magnitude(64);
                self.flip_bytes(bytes, rng, count)
            }
        }
    }

    /// Flips `count` bits.
    pub fn flip_bits(&self, bytes: &mut [u8], rng: &mut Rng, count: u64) -> String {
        self.each(bytes, rng, count, "flipped bits at", |byte, rng| *byte ^= 1 << rng.below(8))
    }

    /// Changes `count` bytes to other values.
    pub fn flip_bytes(&self, bytes: &mut [u8], rng: &mut Rng, count: u64) -> String {
        self.each(bytes, rng, count, "changed bytes at", |byte, rng| *byte ^= rng.between(1, 255) as u8)
    }

    fn each(&self, bytes: &mut [u8], rng: &mut Rng, count: u64, what: &str, change: fn(&mut u8, &mut Rng)) -> String {
        let mut said = what.to_owned();
        for _ in 0..count {
            let at = self.place(rng);
            if let Some(byte) = bytes.get_mut(at) {
                let before = *byte;
                change(byte, rng);
                said.push_str(&format!(" {at:#x} ({before:#04x} to {:#04x})", *byte));
            }
        }
        said
    }

    /// Sets an aligned number of 2 or 4 bytes to a limit value.
    pub fn extreme_number(&self, bytes: &mut [u8], rng: &mut Rng) -> String {
        let width = *rng.pick(&[2usize, 4]);
        let at = self.place(rng) / width * width;
        let value = *rng.pick(&[0u32, 1, 2, 0x7F, 0x7FFF, 0x8000, 0xFFFE, 0xFFFF, 0x7FFF_FFFF, 0x8000_0000, u32::MAX]);
        if let Some(field) = bytes.get_mut(at..at + width) {
            field.copy_from_slice(&value.to_le_bytes()[..width]);
        }
        format!("set the {width} bytes at {at:#x} to {value:#x}")
    }

    /// Fills one block with zeros.
    pub fn zero_block(&self, bytes: &mut [u8], rng: &mut Rng) -> String {
        let at = self.hit_block(rng);
        self.block_mut(bytes, at).fill(0);
        format!("zeroed the block at {at:#x}")
    }

    /// Fills one block with random bytes.
    pub fn noise_block(&self, bytes: &mut [u8], rng: &mut Rng) -> String {
        let at = self.hit_block(rng);
        rng.fill(self.block_mut(bytes, at));
        format!("filled the block at {at:#x} with noise")
    }

    /// Copies one block over another.
    pub fn copy_block(&self, bytes: &mut [u8], rng: &mut Rng) -> String {
        let (from, to) = (self.hit_block(rng), self.hit_block(rng));
        let source = self.block_mut(bytes, from).to_vec();
        let target = self.block_mut(bytes, to);
        let length = target.len().min(source.len());
        target[..length].copy_from_slice(&source[..length]);
        format!("copied the block at {from:#x} over the one at {to:#x}")
    }

    /// Swaps two blocks.
    pub fn swap_blocks(&self, bytes: &mut [u8], rng: &mut Rng) -> String {
        let (one, two) = (self.hit_block(rng), self.hit_block(rng));
        let copy = self.block_mut(bytes, one).to_vec();
        let other = self.block_mut(bytes, two).to_vec();
        let length = copy.len().min(other.len());
        self.block_mut(bytes, one)[..length].copy_from_slice(&other[..length]);
        self.block_mut(bytes, two)[..length].copy_from_slice(&copy[..length]);
        format!("swapped the blocks at {one:#x} and {two:#x}")
    }

    /// A random offset in the ranges; 0 without ranges.
    fn place(&self, rng: &mut Rng) -> usize {
        let mut at = rng.index(self.ranges.iter().map(ExactSizeIterator::len).sum());
        for range in &self.ranges {
            if at < range.len() {
                return range.start + at;
            }
            at -= range.len();
        }
        0
    }

    fn hit_block(&self, rng: &mut Rng) -> usize {
        self.place(rng) / self.block * self.block
    }

    fn block_mut<'a>(&self, bytes: &'a mut [u8], at: usize) -> &'a mut [u8] {
        let end = bytes.len().min(at + self.block);
        bytes.get_mut(at..end).unwrap_or_default()
    }
}

/// Truncates the volume: often anywhere, sometimes within the first 64 KB, where the superblock is.
pub fn truncate(bytes: &mut Vec<u8>, rng: &mut Rng) -> String {
    let len = if rng.chance(30) { rng.index(bytes.len().min(65536)) } else { rng.index(bytes.len()) };
    bytes.truncate(len);
    format!("truncated to {len} bytes")
}

/// Byte ranges of `image` with metadata that is not zero, in whole blocks: superblocks, descriptors, bitmaps, inodes,
/// directories, maps, attributes, the journal. Determined by e2image (in e2fsprogs).
pub fn metadata_ranges(image: &Path, block: usize) -> Vec<Range<usize>> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let raw = folder.path().join("raw");
    tools::must("e2image", &["-r".as_ref(), image.as_os_str(), raw.as_os_str()]);
    let bytes = std::fs::read(&raw).expect("reading what e2image wrote");
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for (number, data) in bytes.chunks(block).enumerate() {
        if data.iter().any(|&byte| byte != 0) {
            let start = number * block;
            match ranges.last_mut() {
                Some(last) if last.end == start => last.end += data.len(),
                _ => ranges.push(start..start + data.len()),
            }
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Image, Spec, Tree, cases};

    #[test]
    fn a_seed_causes_the_same_damage_again() {
        let volume = Rng::new(1).bytes(64 << 10);
        let damager = Damager::anywhere(1024, volume.len());
        let mut changed = 0;
        for case in cases("same damage", 200) {
            let (mut a, mut b) = (volume.clone(), volume.clone());
            let said = damager.any(&mut a, &mut case.rng());
            assert_eq!(said, damager.any(&mut b, &mut case.rng()));
            assert!(a == b, "{said}");
            changed += u64::from(a != volume);
        }
        assert!(changed > 150 || std::env::var_os("EXTANT_SEED").is_some(), "{changed}");
    }

    #[test]
    fn only_the_ranges_are_hit() {
        let volume = Rng::new(2).bytes(64 << 10);
        let damager = Damager::within(1024, [2048..4096, 10_240..11_264]);
        let inside = |at: usize| (2048..4096).contains(&at) || (10_240..11_264).contains(&at);
        for case in cases("ranges", 300) {
            let mut bytes = volume.clone();
            let said = damager.any(&mut bytes, &mut case.rng());
            let outside = (0..bytes.len()).find(|&at| bytes[at] != volume[at] && !inside(at));
            assert_eq!(outside, None, "{said}");
        }
    }

    #[test]
    fn a_volume_shorter_than_the_ranges_is_no_trouble() {
        for case in cases("short", 300) {
            let mut bytes = vec![7; 100];
            Damager::anywhere(1024, 1 << 20).any(&mut bytes, &mut case.rng());
        }
    }

    #[test]
    fn metadata_is_found_and_content_is_not() {
        if !tools::need(&["mke2fs", "e2image"]) {
            return;
        }
        let tree = Tree::new(4, &Spec { largest: 2_000_000, ..Spec::small() });
        let image = Image::mke2fs(&["-t", "ext4", "-b", "1024"], 32 << 20).with_tree(&tree).build();
        let ranges = metadata_ranges(image.path(), 1024);
        let total: usize = ranges.iter().map(ExactSizeIterator::len).sum();
        assert!(ranges.iter().any(|r| r.contains(&1024)), "the superblock is missing: {ranges:?}");
        assert!((10_000..2_000_000).contains(&total), "{total} bytes of metadata: {ranges:?}");
    }
}
