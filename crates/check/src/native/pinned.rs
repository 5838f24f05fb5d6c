//! The blocks that snapshots pin, from all bitmaps together.
//!
//! A block of a data group is *pinned* where it is free in the newest bitmap and used in that of a snapshot; the
//! group's descriptor counts those. And no block may contain metadata in one generation and file data in another.

use super::layer::{Version, has_path};
use super::reader::Reader;
use super::used_blocks::{Bits, set_in};
use format::group::{Group, GroupFlags};
use format::native::chunk_table::WORDS;
use format::native::map::Entry;
use format::native::{CHUNK_BLOCKS, GROUP_BLOCKS};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Bytes of a group descriptor.
const DESCRIPTOR: usize = 64;
/// Chunks of a group.
const CHUNKS: u32 = GROUP_BLOCKS / CHUNK_BLOCKS;

/// A bit for each block of a group.
type GroupBits = Vec<u64>;

pub(super) fn check(reader: &mut Reader<'_>, live: &Version, snapshots: &[Version]) {
    if snapshots.is_empty() && live_counts_nothing(reader, live) {
        return;
    }
    let mut regions: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
    for chunk in std::iter::once(live).chain(snapshots).flat_map(|version| &version.chunks) {
        regions.entry(chunk.number / CHUNKS).or_default().insert(chunk.number);
    }
    for number in 0..reader.layout.data_groups() {
        let Some((group, at)) = descriptor(reader, live, number) else { continue };
        let mut bitmaps = Bitmaps { index: reader.layout.index_of(group.block_bitmap), read: HashMap::new() };
        let own = if group.flags.contains(GroupFlags::BLOCK_UNINIT) { None } else { bitmaps.entry(reader, live) };
        let entries: Vec<Option<Entry>> = snapshots.iter().map(|version| bitmaps.entry(reader, version)).collect();
        let same = entries.iter().flatten().all(|entry| Some(entry.physical) == own.map(|own| own.physical));
        let chunks = regions.get(&number);
        let mut pinned = 0;
        if !same {
            let mut union = vec![0; GROUP_BLOCKS as usize / 64];
            for entry in entries.iter().flatten() {
                let bits = bitmaps.bits(reader, Some(entry));
                union.iter_mut().zip(bits).for_each(|(union, word)| *union |= word);
            }
            let used = bitmaps.bits(reader, own.as_ref());
            pinned = union.iter().zip(used).map(|(union, used)| u64::from((union & !used).count_ones())).sum();
        }
        let mut versions: Vec<(&Version, Option<Entry>)> =
            std::iter::once((live, own)).chain(snapshots.iter().zip(entries)).collect();
        let all = versions.len();
        // the bits of a damaged bitmap prove nothing
        versions.retain(|(version, entry)| bitmaps.is_known(reader, version, entry.as_ref()));
        if pinned != group.pinned() && versions.len() == all {
            let counted = group.pinned();
            let text = format!("group {number} counts {counted} blocks pinned by snapshots, should be {pinned}");
            reader.wrong(at, text);
        }
        // nor do chunks that are missing because the table with them is damaged
        let has_table = |name: &String| !reader.lost_tables.contains(name);
        versions.retain(|(version, _)| version.name.as_ref().is_none_or(has_table));
        if same && versions.windows(2).all(|pair| same_regions(pair[0].0, pair[1].0, chunks)) {
            continue;
        }
        for &chunk in chunks.into_iter().flatten() {
            apart(reader, &mut bitmaps, chunk, &versions);
        }
    }
}

/// Whether the pinned counts are all 0, as they must be without snapshots; the check of the generation covers
/// everything else.
fn live_counts_nothing(reader: &mut Reader<'_>, live: &Version) -> bool {
    (0..reader.layout.data_groups())
        .all(|group| descriptor(reader, live, group).is_none_or(|(group, _)| group.pinned() == 0))
}

/// Whether the same chunks of a group are regions in both versions.
fn same_regions(a: &Version, b: &Version, chunks: Option<&BTreeSet<u32>>) -> bool {
    chunks.into_iter().flatten().all(|&chunk| a.blocks_in(chunk).is_some() == b.blocks_in(chunk).is_some())
}

/// Checks that no metadata block of a chunk that is a region in some generation is file data in another.
fn apart(reader: &mut Reader<'_>, bitmaps: &mut Bitmaps, chunk: u32, versions: &[(&Version, Option<Entry>)]) {
    let first = (chunk % CHUNKS) as usize * WORDS;
    let (mut metadata, mut content) = ([0; WORDS], [0; WORDS]);
    for (version, entry) in versions {
        let (into, bits): (&mut Bits, Vec<u64>) = match version.blocks_in(chunk) {
            Some(used) => (&mut metadata, used.to_vec()),
            None => {
                let bits = bitmaps.bits(reader, entry.as_ref());
                (&mut content, bits.get(first..first + WORDS).unwrap_or_default().to_vec())
            }
        };
        into.iter_mut().zip(bits).for_each(|(into, bits)| *into |= bits);
    }
    let both = std::array::from_fn(|word| metadata[word] & content[word]);
    for block in set_in(chunk, both) {
        // the file data of any of them may have been overwritten
        versions.iter().for_each(|(version, _)| reader.faulty.extend(version.name.clone()));
        reader.wrong(block, "one generation has metadata there, another one file data");
    }
}

impl Version {
    /// The physical blocks that it uses of a chunk; `None` where the chunk is not a region.
    fn blocks_in(&self, chunk: u32) -> Option<&Bits> {
        let at = self.chunks.binary_search_by_key(&chunk, |chunk| chunk.number).ok()?;
        self.chunks.get(at).map(|chunk| &chunk.used)
    }
}

/// The bitmaps of a group, by physical block.
struct Bitmaps {
    index: Option<u64>,
    read: HashMap<u64, GroupBits>,
}

impl Bitmaps {
    fn entry(&self, reader: &Reader<'_>, version: &Version) -> Option<Entry> {
        reader.entry(version, self.index?)
    }

    /// Whether the bitmap of a version is intact, or was never written.
    fn is_known(&self, reader: &Reader<'_>, version: &Version, entry: Option<&Entry>) -> bool {
        match (entry, self.index) {
            (Some(entry), _) => !reader.bad.contains(&entry.physical),
            (None, Some(index)) => has_path(&reader.nodes, &reader.layout, &version.root, index),
            (None, None) => true,
        }
    }

    /// The bits of a bitmap; all zero for one that was never written or cannot be read, which was already reported.
    fn bits(&mut self, reader: &Reader<'_>, entry: Option<&Entry>) -> &[u64] {
        let physical = entry.map_or(0, |entry| entry.physical);
        self.read.entry(physical).or_insert_with(|| {
            let mut bytes = vec![0; GROUP_BLOCKS as usize / 8];
            if physical != 0 && reader.device.read(physical * super::SIZE, &mut bytes).is_err() {
                bytes.fill(0);
            }
            bytes
                .chunks_exact(8)
                .map(|word| word.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
                .collect()
        })
    }
}

/// A group's descriptor, and the block of the device in which it lies.
fn descriptor(reader: &mut Reader<'_>, live: &Version, group: u32) -> Option<(Group, u64)> {
    let each = super::SIZE as usize / DESCRIPTOR;
    let index = 1 + u64::from(group) / each as u64;
    let entry = reader.entry(live, index)?;
    let mut bytes = [0; DESCRIPTOR];
    let at = entry.physical * super::SIZE + (group as usize % each * DESCRIPTOR) as u64;
    reader.device.read(at, &mut bytes).ok()?;
    Some((Group::from_bytes(&bytes), entry.physical))
}
