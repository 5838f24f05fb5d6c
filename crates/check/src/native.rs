//! Native volumes: a reading of the map that is this crate's own, and what must be so below the ext4 volume above it.
//!
//! First the map of the newest generation and of each snapshot is walked, then every block that one of them leads to is read
//! once, in the order of the device, and compared with the checksum in its entry. Places in use must be exactly those that
//! the generation's place table names. Then the volume above the map of the newest generation is checked as any ext4 volume;
//! that its bitmaps show the chunks of the regions as used is told to that check beforehand.

mod image;

pub(crate) use image::Image;

use crate::problem::{Problem, Problems};
use crate::table::Code;
use blockdev::{BlockDevice, Read};
use format::FsBlock;
use format::native::map::{BlockKind, ENTRIES, Entry, Node, Position};
use format::native::places::{self, Chunk};
use format::native::superblock::{COPIES, NativeSuperblock};
use format::native::{BLOCK_SIZE, CHUNK_BLOCKS, Shape, snapshots};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

const SIZE: u64 = BLOCK_SIZE as u64;
/// Blocks that are read in one batch.
const BATCH: usize = 256;

/// What is known of a native volume before the volume above its map is checked.
pub(crate) struct Below {
    pub(crate) superblock: NativeSuperblock,
    /// Where the blocks of the newest generation lie, by index.
    entries: BTreeMap<u64, Entry>,
    /// Blocks of the volume above that are in use by what lies below it.
    pub(crate) taken: Vec<Range<u64>>,
    /// What is wrong: the device's block, and what with it.
    pub(crate) wrong: Vec<(u64, String)>,
}

/// Whether a device begins as a native volume does.
pub(crate) fn is_native(device: &dyn BlockDevice) -> bool {
    (0..COPIES).any(|copy| {
        let mut start = [0; 512];
        device.read(copy * SIZE, &mut start).is_ok() && NativeSuperblock::is_there(&start)
    })
}

/// A generation: its map, walked.
#[derive(Default)]
struct Generation {
    entries: BTreeMap<u64, Entry>,
    /// Nodes of the map, by place.
    nodes: BTreeSet<u64>,
}

struct Reader<'a> {
    device: &'a dyn BlockDevice,
    shape: Shape,
    seed: u32,
    wrong: Vec<(u64, String)>,
    /// Nodes that were read already, with their place and generation: snapshots share most.
    known: BTreeMap<(u64, u64, u32), Node>,
    /// What blocks must sum up to, by place.
    sums: BTreeMap<u64, (Position, u32)>,
}

/// Reads everything that lies below the volume above.
///
/// # Errors
/// A sentence, where there is no superblock to go on with.
pub(crate) fn read(device: &dyn BlockDevice) -> Result<Below, String> {
    let mut blocks = vec![0; (COPIES * SIZE) as usize];
    device.read(0, &mut blocks).map_err(|e| e.to_string())?;
    let (superblock, _) = NativeSuperblock::newest(&blocks).map_err(|e| e.to_string())?;
    let mut reader = Reader {
        device,
        shape: superblock.shape,
        seed: superblock.seed(),
        wrong: Vec::new(),
        known: BTreeMap::new(),
        sums: BTreeMap::new(),
    };
    if superblock.unordered {
        reader.wrong(0, "the volume was in use without consistency and was not unmounted");
    }
    let live = reader.walk(&superblock.root, superblock.generation);
    let table = reader.table(&live, superblock.chunks);
    reader.compare(&live, &table);
    let list = reader.list(&live, superblock.snapshots);
    for snapshot in &list {
        let kept = reader.walk(&snapshot.root, snapshot.generation);
        let chunks = reader.table(&kept, snapshot.chunks);
        reader.compare(&kept, &chunks);
    }
    reader.sums();
    let shape = superblock.shape;
    let mut taken: Vec<Range<u64>> = table.iter().map(|chunk| blocks_of(chunk.number)).collect();
    // the front is claimed as the ext4 superblock's and descriptors'
    taken.push(shape.blocks()..shape.metadata_start());
    taken.iter_mut().for_each(|run| run.start = run.start.max(shape.front().min(run.end)));
    Ok(Below { superblock, entries: live.entries, taken, wrong: reader.wrong })
}

fn blocks_of(chunk: u32) -> Range<u64> {
    let start = u64::from(chunk) * u64::from(CHUNK_BLOCKS);
    start..start + u64::from(CHUNK_BLOCKS)
}

impl Reader<'_> {
    fn wrong(&mut self, place: u64, what: impl Into<String>) {
        self.wrong.push((place, what.into()));
    }

    /// What an entry leads to, where it is what it should be.
    fn block(&mut self, entry: &Entry, position: Position) -> Option<Vec<u8>> {
        let mut bytes = vec![0; BLOCK_SIZE as usize];
        if let Err(e) = self.device.read(entry.place * SIZE, &mut bytes) {
            self.wrong(entry.place, e.to_string());
            return None;
        }
        if position.checksum(self.seed, &bytes) != entry.checksum {
            self.wrong(entry.place, "it does not match the checksum in the entry that leads to it");
            return None;
        }
        Some(bytes)
    }

    /// Walks a map. The tree has as many levels as its shape says, so it ends on any bytes.
    fn walk(&mut self, root: &Entry, newest: u64) -> Generation {
        let mut generation = Generation::default();
        let mut above = vec![(0u64, *root)];
        for level in (0..self.shape.levels()).rev() {
            let mut below = Vec::new();
            for (number, entry) in above {
                if entry.generation > newest {
                    self.wrong(entry.place, "it is of a later generation than what leads to it");
                }
                if entry.kind != BlockKind::MapNode {
                    self.wrong(entry.place, "what should be a node of the map is something else");
                    continue;
                }
                if !generation.nodes.insert(entry.place) {
                    self.wrong(entry.place, "two entries lead to it");
                    continue;
                }
                let position = Position::Node { level, number };
                let name = (entry.place, entry.generation, entry.checksum);
                if !self.known.contains_key(&name) {
                    let Some(bytes) = self.block(&entry, position) else { continue };
                    match Node::parse(&bytes, level, &self.shape) {
                        Ok(node) => drop(self.known.insert(name, node)),
                        Err(e) => {
                            self.wrong(entry.place, e.to_string());
                            continue;
                        }
                    }
                }
                let Some(node) = self.known.get(&name) else { continue };
                below.extend(node.present().map(|(slot, entry)| (number * ENTRIES as u64 + slot as u64, entry)));
            }
            above = below;
        }
        let mut places = BTreeSet::new();
        for (index, entry) in above {
            self.judge(index, &entry, newest);
            if !places.insert(entry.place) || generation.nodes.contains(&entry.place) {
                self.wrong(entry.place, "two entries lead to it");
            }
            let sum = (Position::Block(index), entry.checksum);
            if self.sums.insert(entry.place, sum).is_some_and(|before| before != sum) {
                self.wrong(entry.place, "two generations take it for different blocks");
            }
            generation.entries.insert(index, entry);
        }
        generation
    }

    /// What an entry says of its block, against the block's index.
    fn judge(&mut self, index: u64, entry: &Entry, newest: u64) {
        let shape = self.shape;
        let own = |kind| matches!(kind, BlockKind::PlaceTable | BlockKind::SnapshotList | BlockKind::MapNode);
        let fits = match entry.kind {
            _ if index >= shape.indexes() => false,
            kind if shape.table().contains(&index) => kind == BlockKind::PlaceTable,
            kind if shape.list().contains(&index) => kind == BlockKind::SnapshotList,
            kind if index == 0 => kind == BlockKind::Superblock,
            kind if index < shape.front() => kind == BlockKind::Descriptors,
            kind => !own(kind) && !matches!(kind, BlockKind::Superblock | BlockKind::Descriptors),
        };
        if !fits {
            self.wrong(entry.place, format!("its entry, of index {index}, says that it is {:?}", entry.kind));
        }
        if entry.generation > newest {
            self.wrong(entry.place, "it is of a later generation than what leads to it");
        }
    }

    /// The chunks of a generation's regions.
    fn table(&mut self, generation: &Generation, records: u32) -> Vec<Chunk> {
        let mut chunks = Vec::new();
        for block in 0..u64::from(records.div_ceil(places::RECORDS)) {
            let index = self.shape.table().start + block;
            let Some(entry) = generation.entries.get(&index) else { continue };
            let Some(bytes) = self.block(entry, Position::Block(index)) else { continue };
            match places::parse(&bytes, &self.shape) {
                Ok(records) => chunks.extend(records.into_iter().flatten()),
                Err(e) => self.wrong(entry.place, e.to_string()),
            }
        }
        chunks.sort_unstable_by_key(|chunk| chunk.number);
        if let Some(twice) = chunks.windows(2).find(|pair| pair[0].number == pair[1].number) {
            self.wrong(blocks_of(twice[0].number).start, "the chunk from here on stands in the place table twice");
        }
        chunks
    }

    /// Places in use must be those that the table names.
    fn compare(&mut self, generation: &Generation, chunks: &[Chunk]) {
        let blocks = generation.entries.values().map(|entry| entry.place);
        let used: BTreeSet<u64> = (0..COPIES).chain(blocks).chain(generation.nodes.iter().copied()).collect();
        let bits = |chunk: &Chunk| {
            let start = blocks_of(chunk.number).start;
            let used = chunk.used;
            (0..u64::from(CHUNK_BLOCKS))
                .filter(move |n| used[(n / 64) as usize] >> (n % 64) & 1 == 1)
                .map(move |n| start + n)
        };
        let named: BTreeSet<u64> = chunks.iter().flat_map(bits).collect();
        for place in used.difference(&named) {
            self.wrong(*place, "it is in use, but free in the place table");
        }
        for place in named.difference(&used) {
            self.wrong(*place, "it is in use in the place table, but nothing leads to it");
        }
    }

    fn list(&mut self, live: &Generation, records: u32) -> Vec<snapshots::Snapshot> {
        let mut list = Vec::new();
        for block in 0..u64::from(records).div_ceil(snapshots::RECORDS as u64) {
            let index = self.shape.list().start + block;
            let Some(entry) = live.entries.get(&index) else { continue };
            let Some(bytes) = self.block(entry, Position::Block(index)) else { continue };
            match snapshots::parse(&bytes, &self.shape) {
                Ok(records) => list.extend(records.into_iter().flatten()),
                Err(e) => self.wrong(entry.place, e.to_string()),
            }
        }
        list
    }

    /// Reads every block that a map leads to, in the order of the device.
    fn sums(&mut self) {
        let all: Vec<(u64, (Position, u32))> = std::mem::take(&mut self.sums).into_iter().collect();
        let mut buffer = vec![0; BATCH * BLOCK_SIZE as usize];
        for batch in all.chunks(BATCH) {
            let mut reads: Vec<Read<'_>> = batch
                .iter()
                .zip(buffer.chunks_mut(BLOCK_SIZE as usize))
                .map(|((place, _), buf)| Read::new(place * SIZE, buf))
                .collect();
            self.device.read_many(&mut reads);
            let mut found = Vec::new();
            for (read, (place, (position, sum))) in reads.into_iter().zip(batch) {
                match read.result {
                    Err(e) => found.push((*place, e.to_string())),
                    Ok(()) if position.checksum(self.seed, read.buf) != *sum => {
                        found.push((*place, "it does not match the checksum in the entry that leads to it".to_owned()));
                    }
                    Ok(()) => {}
                }
            }
            self.wrong.extend(found);
        }
    }
}

impl Below {
    /// Reports what was found.
    pub(crate) fn report(&self, problems: &Problems) {
        let mut wrong = self.wrong.clone();
        wrong.sort_unstable();
        wrong.dedup();
        for (place, what) in wrong {
            problems.report(Problem::new(Code::NativeStructureWrong).block(FsBlock(place)).name(what));
        }
    }
}
