//! Native volumes: a reading of the map that is this crate's own, and what must be so below the ext4 volume above it.
//!
//! 1. The map of the newest generation and of each snapshot is walked; nodes that several share are read and judged once.
//! 2. Every block that one of them leads to is read once, in the order of the device, and compared with the checksum in its
//!    entry.
//! 3. The places that a generation uses must be exactly those that its place table names ([`places`]), and what snapshots
//!    hold must be neither anybody else's nor counted wrong ([`held`]).
//! 4. Then the volume above each map is checked as any ext4 volume; that its bitmaps show the chunks of the regions as used
//!    is told to that check beforehand.

mod copies;
mod held;
mod image;
mod mend;
mod places;

pub(crate) use image::Image;
pub(crate) use mend::repair;

use crate::problem::{Problem, Problems};
use crate::table::Code;
use blockdev::{BlockDevice, Read};
use format::FsBlock;
use format::native::map::{BlockKind, ENTRIES, Entry, Node, Position};
use format::native::places::{Chunk, bit_of};
use format::native::snapshots::{self, Snapshot};
use format::native::superblock::{COPIES, NativeSuperblock};
use format::native::{BLOCK_SIZE, HEAD, Shape};
use places::{Used, blocks_of};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Range;

const SIZE: u64 = BLOCK_SIZE as u64;
/// Blocks that are read in one batch.
const BATCH: usize = 256;
/// Bits of an index that choose an entry of a node.
const BITS: u32 = ENTRIES.ilog2();

/// What is known of a native volume before the volumes above its maps are checked.
pub(crate) struct Below {
    pub(crate) superblock: NativeSuperblock,
    nodes: Nodes,
    /// The newest generation.
    pub(crate) live: Version,
    /// The snapshots that can be looked at, in the order of their list.
    pub(crate) snapshots: Vec<Version>,
    /// What is wrong: the device's block, and what with it.
    pub(crate) wrong: Vec<(u64, String)>,
    /// The superblock that is damaged, of the two: its block, and what with it.
    damaged: Option<(u64, String)>,
}

/// A generation: the newest, or one that a snapshot keeps.
pub(crate) struct Version {
    /// The snapshot's.
    pub(crate) name: Option<String>,
    pub(crate) root: Entry,
    /// Entries that are newer than its map; only the newest generation has any.
    late: Late,
    /// The chunks of its regions, ascending.
    chunks: Vec<Chunk>,
    /// Blocks of the volume above that are in use by what lies below it.
    pub(crate) taken: Vec<Range<u64>>,
}

/// Entries that count instead of those in the leaves, by index.
type Late = BTreeMap<u64, Option<Entry>>;

/// Nodes of the map that were read and are sound.
type Nodes = HashMap<NodeName, Node>;

/// A node as an entry leads to it, in a position of the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct NodeName {
    level: u8,
    number: u64,
    place: u64,
    checksum: u32,
}

impl NodeName {
    fn new(entry: &Entry, level: u8, number: u64) -> Self {
        Self { level, number, place: entry.place, checksum: entry.checksum }
    }
}

/// Whether a device begins as a native volume does.
pub fn is_native(device: &dyn BlockDevice) -> bool {
    (0..COPIES).any(|copy| {
        let mut block = vec![0; BLOCK_SIZE as usize];
        let read = device.read(copy * SIZE, &mut block).is_ok();
        read && (NativeSuperblock::is_there(&block) || NativeSuperblock::was_there(&block))
    })
}

/// The entry of a metadata block in the map below a root; `None` where it was never written, or a node on the way is not
/// sound.
fn entry_of(nodes: &Nodes, shape: &Shape, root: &Entry, index: u64) -> Option<Entry> {
    let mut entry = *root;
    for level in (0..shape.levels()).rev() {
        let number = index >> (BITS * (u32::from(level) + 1));
        let slot = (index >> (BITS * u32::from(level))) as usize % ENTRIES;
        entry = nodes.get(&NodeName::new(&entry, level, number))?.get(slot)?;
    }
    Some(entry)
}

impl Version {
    fn entry(&self, nodes: &Nodes, shape: &Shape, index: u64) -> Option<Entry> {
        self.late.get(&index).copied().unwrap_or_else(|| entry_of(nodes, shape, &self.root, index))
    }
}

struct Reader<'a> {
    device: &'a dyn BlockDevice,
    shape: Shape,
    seed: u32,
    /// What is reserved for nobody, and the chunks that it lies in.
    reserved: BTreeSet<u64>,
    reserved_chunks: BTreeSet<u32>,
    /// The snapshot that is looked at.
    snapshot: Option<String>,
    wrong: Vec<(u64, String)>,
    nodes: Nodes,
    /// Leaves whose entries were judged.
    judged: HashSet<NodeName>,
    /// What blocks must sum up to, by place, and the snapshot that led to each first.
    sums: BTreeMap<u64, (Position, u32, Option<String>)>,
}

/// Reads what lies below the volume of a snapshot, and nothing else: the device may be in use, and what a snapshot
/// keeps stays as it is.
///
/// # Errors
/// A sentence, where there is no such snapshot, or none to be found.
pub(crate) fn read_held(device: &dyn BlockDevice, name: &[u8]) -> Result<Below, String> {
    let mut why = String::new();
    for _ in 0..TRIES {
        // what leads to the list may be written over while it is read
        match find(device, name) {
            Ok((superblock, Some(found))) => {
                let mut reader = Reader::new(device, &superblock);
                let name = crate::render::escape(name);
                let live = reader.version(Some(name), found.root, Late::new(), found.generation, found.chunks);
                reader.sums();
                let Reader { nodes, wrong, .. } = reader;
                return Ok(Below { superblock, nodes, live, snapshots: Vec::new(), wrong, damaged: None });
            }
            Ok((_, None)) => why = "there is no such snapshot".to_owned(),
            Err(e) => why = e,
        }
        std::thread::sleep(PAUSE);
    }
    Err(why)
}

/// Looks a snapshot up in the newest generation.
fn find(device: &dyn BlockDevice, name: &[u8]) -> Result<(NativeSuperblock, Option<Snapshot>), String> {
    let mut blocks = vec![0; (COPIES * SIZE) as usize];
    device.read(0, &mut blocks).map_err(|e| e.to_string())?;
    let (superblock, _) = NativeSuperblock::newest(&blocks).map_err(|e| e.to_string())?;
    let mut reader = Reader::new(device, &superblock);
    let live = Version { name: None, root: superblock.root, late: Late::new(), chunks: Vec::new(), taken: Vec::new() };
    for block in 0..u64::from(superblock.snapshots).div_ceil(snapshots::RECORDS as u64) {
        reader.go_to(&live.root, superblock.shape.list().start + block);
    }
    let list = reader.list(&live, superblock.snapshots);
    match reader.wrong.pop() {
        Some((place, what)) => Err(format!("block {place} of the device: {what}")),
        None => Ok((superblock, list.into_iter().find(|snapshot| snapshot.name == name))),
    }
}

/// How often a snapshot is looked for on a device that is in use, and how long it waits in between.
const TRIES: u32 = 50;
const PAUSE: std::time::Duration = std::time::Duration::from_millis(10);

/// Reads everything that lies below the volumes above.
///
/// # Errors
/// A sentence, where there is no superblock to go on with.
pub(crate) fn read(device: &dyn BlockDevice) -> Result<Below, String> {
    let blocks = copies::read(device);
    let (superblock, at) = NativeSuperblock::newest(&blocks).map_err(|e| format!("{}: {e}", copies::NONE_LEFT))?;
    let damaged = copies::damage(&blocks, &superblock, at);
    Ok(Below { damaged, ..read_generation(device, superblock) })
}

/// Reads everything that lies below the volumes above, as a superblock has it.
pub(crate) fn read_generation(device: &dyn BlockDevice, superblock: NativeSuperblock) -> Below {
    let mut reader = Reader::new(device, &superblock);
    if superblock.unordered {
        reader.wrong(0, "the volume was in use without consistency and was not unmounted");
    }
    let late = superblock.late.iter().copied().collect();
    let live = reader.version(None, superblock.root, late, superblock.generation, superblock.chunks);
    let mut snapshots: Vec<Version> = Vec::new();
    for Snapshot { name, root, generation, chunks, .. } in reader.list(&live, superblock.snapshots) {
        let name = crate::render::escape(&name);
        if generation >= superblock.generation {
            reader.wrong(root.place, format!("the snapshot {name} is of a generation that is yet to come"));
        }
        if snapshots.iter().any(|other| other.name.as_ref() == Some(&name)) {
            reader.wrong(root.place, format!("the snapshot {name} stands in the list twice"));
        }
        reader.snapshot = Some(name.clone());
        snapshots.push(reader.version(Some(name), root, Late::new(), generation, chunks));
    }
    reader.snapshot = None;
    reader.sums();
    held::judge(&mut reader, &live, &snapshots);
    let Reader { nodes, wrong, .. } = reader;
    Below { superblock, nodes, live, snapshots, wrong, damaged: None }
}

impl<'a> Reader<'a> {
    fn new(device: &'a dyn BlockDevice, superblock: &NativeSuperblock) -> Self {
        let shape = superblock.shape;
        let mut reserved = BTreeSet::new();
        let mut reserved_chunks = BTreeSet::new();
        if superblock.reserved {
            reserved = shape.backup_places();
            reserved.extend(HEAD);
            reserved_chunks = shape.backup_chunks();
        }
        Self {
            device,
            shape,
            seed: superblock.seed(),
            reserved,
            reserved_chunks,
            snapshot: None,
            wrong: Vec::new(),
            nodes: HashMap::new(),
            judged: HashSet::new(),
            sums: BTreeMap::new(),
        }
    }

    /// Reads the nodes that lead to an index.
    fn go_to(&mut self, root: &Entry, index: u64) {
        let mut entry = *root;
        for level in (0..self.shape.levels()).rev() {
            let number = index >> (BITS * (u32::from(level) + 1));
            let Some(node) = self.node(&entry, level, number) else { return };
            let Some(next) = node.get((index >> (BITS * u32::from(level))) as usize % ENTRIES) else { return };
            entry = next;
        }
    }

    /// The node that an entry leads to, read unless it was before.
    fn node(&mut self, entry: &Entry, level: u8, number: u64) -> Option<&Node> {
        let name = NodeName::new(entry, level, number);
        if !self.nodes.contains_key(&name) {
            let bytes = self.block(entry, Position::Node { level, number })?;
            match Node::parse(&bytes, level, &self.shape) {
                Ok(node) => drop(self.nodes.insert(name, node)),
                Err(e) => {
                    self.wrong(entry.place, e.to_string());
                    return None;
                }
            }
        }
        self.nodes.get(&name)
    }

    fn wrong(&mut self, place: u64, what: impl Into<String>) {
        let what = what.into();
        self.wrong.push((
            place,
            match &self.snapshot {
                Some(name) => format!("in the snapshot {name}, {what}"),
                None => what,
            },
        ));
    }

    /// Looks at a generation.
    fn version(&mut self, name: Option<String>, root: Entry, late: Late, generation: u64, records: u32) -> Version {
        let used = self.walk(&root, &late, generation);
        let chunks = self.table(&root, &late, records);
        for (place, what) in used.compare(&chunks) {
            self.wrong(place, what);
        }
        let shape = self.shape;
        for place in used.of(&self.reserved) {
            self.wrong(place, RESERVED);
        }
        let regions: BTreeSet<u32> = chunks.iter().map(|chunk| chunk.number).collect();
        for chunk in self.reserved_chunks.intersection(&regions).copied().collect::<Vec<_>>() {
            self.wrong(blocks_of(chunk).start, RESERVED_CHUNK);
        }
        let mut taken: Vec<Range<u64>> = chunks.iter().map(|chunk| blocks_of(chunk.number)).collect();
        // in use for nobody: what claims one of them claims it a second time
        let apart = self.reserved.iter().filter(|place| !regions.contains(&bit_of(**place).0));
        taken.extend(apart.map(|place| *place..place + 1));
        // the front is claimed as the ext4 superblock's and descriptors'
        taken.push(shape.blocks()..shape.metadata_start());
        taken.iter_mut().for_each(|run| run.start = run.start.max(shape.front().min(run.end)));
        Version { name, root, late, chunks, taken }
    }

    fn entry(&self, version: &Version, index: u64) -> Option<Entry> {
        version.entry(&self.nodes, &self.shape, index)
    }

    /// What an entry leads to, where it is what it should be.
    fn block(&mut self, entry: &Entry, position: Position) -> Option<Vec<u8>> {
        let mut bytes = vec![0; BLOCK_SIZE as usize];
        if let Err(e) = self.device.read(entry.place * SIZE, &mut bytes) {
            self.wrong(entry.place, e.to_string());
            return None;
        }
        if position.checksum(self.seed, &bytes) != entry.checksum {
            self.wrong(entry.place, MISMATCH);
            return None;
        }
        Some(bytes)
    }

    /// Walks a map, and gives the places that it uses. The tree has as many levels as its shape says, so it ends on any
    /// bytes.
    fn walk(&mut self, root: &Entry, late: &Late, newest: u64) -> Used {
        let mut used = Used::default();
        let mut above = vec![(0u64, *root)];
        for level in (0..self.shape.levels()).rev() {
            let mut below = Vec::new();
            for (number, entry) in above {
                if entry.generation > newest {
                    self.wrong(entry.place, LATER);
                }
                if entry.kind != BlockKind::MapNode {
                    self.wrong(entry.place, "what should be a node of the map is something else");
                    continue;
                }
                if !used.add(entry.place) {
                    self.wrong(entry.place, TWICE);
                    continue;
                }
                let name = NodeName::new(&entry, level, number);
                let Some(node) = self.node(&entry, level, number) else { continue };
                let mut entries: Vec<_> =
                    node.present().map(|(slot, entry)| (number << BITS | slot as u64, entry)).collect();
                if level > 0 {
                    below.extend(entries);
                    continue;
                }
                let newer = late.range(number << BITS..(number + 1) << BITS);
                // the same leaf may be a snapshot's as it stands
                let known = if newer.clone().next().is_some() {
                    entries.retain(|(index, _)| !late.contains_key(index));
                    entries.extend(newer.filter_map(|(index, entry)| Some((*index, (*entry)?))));
                    false
                } else {
                    !self.judged.insert(name)
                };
                for (index, entry) in entries {
                    if !used.add(entry.place) {
                        self.wrong(entry.place, TWICE);
                    }
                    if !known {
                        self.judge(index, &entry, newest);
                    }
                }
            }
            above = below;
        }
        used
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
            self.wrong(entry.place, LATER);
        }
        let (position, sum) = (Position::Block(index), entry.checksum);
        match self.sums.get(&entry.place) {
            None => drop(self.sums.insert(entry.place, (position, sum, self.snapshot.clone()))),
            Some((other, theirs, _)) if (*other, *theirs) == (position, sum) => {}
            Some(_) => self.wrong(entry.place, "two generations take it for different blocks"),
        }
    }

    /// The chunks of a generation's regions, ascending.
    fn table(&mut self, root: &Entry, late: &Late, records: u32) -> Vec<Chunk> {
        let mut chunks: Vec<Chunk> = Vec::new();
        for block in 0..u64::from(records.div_ceil(format::native::places::RECORDS)) {
            let index = self.shape.table().start + block;
            let Some(entry) = entry_of(&self.nodes, &self.shape, root, index) else { continue };
            let Some(bytes) = self.block(&entry, Position::Block(index)) else { continue };
            match format::native::places::parse(&bytes, &self.shape) {
                Ok(records) => chunks.extend(records.into_iter().flatten()),
                Err(e) => self.wrong(entry.place, e.to_string()),
            }
        }
        chunks.sort_unstable_by_key(|chunk| chunk.number);
        if let Some(twice) = chunks.windows(2).find(|pair| pair[0].number == pair[1].number) {
            self.wrong(blocks_of(twice[0].number).start, "the chunk from here on stands in the place table twice");
        }
        // the table is that of the map without late entries
        let before = late.keys().filter_map(|index| entry_of(&self.nodes, &self.shape, root, *index));
        let before: Vec<Entry> = before.collect();
        for (entry, used) in before.iter().map(|entry| (entry, false)).chain(late.values().flatten().map(|e| (e, true)))
        {
            let (number, word, bit) = bit_of(entry.place);
            if let Ok(at) = chunks.binary_search_by_key(&number, |chunk| chunk.number)
                && let Some(word) = chunks.get_mut(at).and_then(|chunk| chunk.used.get_mut(word))
            {
                *word = if used { *word | bit } else { *word & !bit };
            }
        }
        chunks
    }

    fn list(&mut self, live: &Version, records: u32) -> Vec<Snapshot> {
        let mut list = Vec::new();
        for block in 0..u64::from(records).div_ceil(snapshots::RECORDS as u64) {
            let index = self.shape.list().start + block;
            let Some(entry) = self.entry(live, index) else { continue };
            let Some(bytes) = self.block(&entry, Position::Block(index)) else { continue };
            match snapshots::parse(&bytes, &self.shape) {
                Ok(records) => list.extend(records.into_iter().flatten()),
                Err(e) => self.wrong(entry.place, e.to_string()),
            }
        }
        list
    }

    /// Reads every block that a map leads to, in the order of the device.
    fn sums(&mut self) {
        let all: Vec<_> = std::mem::take(&mut self.sums).into_iter().collect();
        let mut buffer = vec![0; BATCH * BLOCK_SIZE as usize];
        for batch in all.chunks(BATCH) {
            let mut reads: Vec<Read<'_>> = batch
                .iter()
                .zip(buffer.chunks_mut(BLOCK_SIZE as usize))
                .map(|((place, _), buf)| Read::new(place * SIZE, buf))
                .collect();
            self.device.read_many(&mut reads);
            for (read, (place, (position, sum, snapshot))) in reads.into_iter().zip(batch) {
                self.snapshot.clone_from(snapshot);
                match read.result {
                    Err(e) => self.wrong(*place, e.to_string()),
                    Ok(()) if position.checksum(self.seed, read.buf) != *sum => self.wrong(*place, MISMATCH),
                    Ok(()) => {}
                }
            }
        }
        self.snapshot = None;
    }
}

const MISMATCH: &str = "it does not match the checksum in the entry that leads to it";
const LATER: &str = "it is of a later generation than what leads to it";
const RESERVED: &str = "it is reserved, and an entry leads to it";
const RESERVED_CHUNK: &str = "a chunk with a reserved block is part of the metadata regions";
const TWICE: &str = "two entries lead to it";

impl Below {
    /// The entry of a metadata block in a generation.
    fn entry(&self, version: &Version, index: u64) -> Option<Entry> {
        version.entry(&self.nodes, &self.superblock.shape, index)
    }

    /// Reports what was found.
    pub(crate) fn report(&self, problems: &Problems) {
        if let Some((place, what)) = &self.damaged {
            problems.report(Problem::new(Code::NativeSuperblockDamaged).block(FsBlock(*place)).name(what));
        }
        let mut wrong = self.wrong.clone();
        wrong.sort_unstable();
        wrong.dedup();
        for (place, what) in wrong {
            problems.report(Problem::new(Code::NativeStructureWrong).block(FsBlock(place)).name(what));
        }
    }

    /// The snapshots whose volumes are to be checked beside the newest generation's: those that are not the same as it,
    /// or as one before them in the list.
    pub(crate) fn others(&self) -> Vec<&Version> {
        let mut seen = HashSet::from([(self.live.root.place, self.live.root.checksum)]);
        self.snapshots.iter().filter(|version| seen.insert((version.root.place, version.root.checksum))).collect()
    }
}
