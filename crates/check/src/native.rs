//! Native volumes: a reading of the map that is this crate's own, and what must be so below the ext4 volume above it.
//!
//! 1. The map of the newest generation and of each snapshot is walked; nodes that several share are read and judged once.
//! 2. Every block that one of them leads to is read once, in the order of the device, and compared with the checksum in its
//!    entry.
//! 3. The places that a generation uses must be exactly those that its place table names ([`used`]), and what snapshots
//!    hold must be neither anybody else's nor counted wrong ([`held`]).
//! 4. Then the volume above each map is checked as any ext4 volume; that its bitmaps show the chunks of the regions as used
//!    is told to that check beforehand, and what it finds each block to be is compared with what the map says
//!    ([`identity`]).
//!
//! On a volume in use all of that is done for the generation that a snapshot keeps ([`in_use`]).

mod copies;
mod held;
mod identity;
mod image;
mod in_use;
mod mend;
mod used;

pub(crate) use identity::Identities;
pub(crate) use image::Image;
pub use in_use::{Glance, InUse};
pub(crate) use in_use::{gone_of, read_in_use};
pub(crate) use mend::repair;

use self::used::{Used, blocks_of};
use crate::problem::{Problem, Problems};
use crate::table::Code;
use blockdev::{BlockDevice, Read};
use format::FsBlock;
use format::native::map::{BlockKind, ENTRIES, Entry, Node, Position};
use format::native::places::{Chunk, bit_of};
use format::native::snapshots::Snapshot;
use format::native::superblock::{COPIES, LAST_GENERATION, NativeSuperblock};
use format::native::{BLOCK_SIZE, HEAD, Shape, places, snapshots};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::{Range, RangeInclusive};

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
    /// Why the newest generation cannot be read: what is wrong with its map, or with what every mount reads.
    pub(crate) unreadable: Option<(u64, String)>,
    /// The superblock that is damaged, of the two: its block, and what with it.
    damaged: Option<(u64, String)>,
    /// Snapshots that stand in the list and were not looked at.
    pub(crate) left_out: Vec<String>,
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
    /// The newest generation, of which nothing is known yet.
    fn of_root(root: Entry) -> Self {
        Self { name: None, root, late: Late::new(), chunks: Vec::new(), taken: Vec::new() }
    }

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
    /// As [`Below::unreadable`].
    unreadable: Option<(u64, String)>,
    nodes: Nodes,
    /// Leaves whose entries were judged.
    judged: HashSet<NodeName>,
    /// What was led to, by place.
    led: BTreeMap<u64, Led>,
}

/// What an entry leads to.
struct Led {
    position: Position,
    entry: Entry,
    /// The snapshot that led to it first.
    snapshot: Option<String>,
}

/// Where a generation begins.
struct Start {
    root: Entry,
    late: Late,
    generation: u64,
    /// Records of its place table.
    records: u32,
}

/// Reads everything that lies below the volumes above.
///
/// # Errors
/// A sentence, where there is no superblock to go on with.
pub(crate) fn read(device: &dyn BlockDevice) -> Result<Below, String> {
    let blocks = copies::read(device);
    let (superblock, at) = copies::in_force(device, &blocks).map_err(|e| format!("{}: {e}", copies::NONE_LEFT))?;
    let damaged = copies::damage(device, &blocks, &superblock, at);
    let generation = superblock.generation;
    let mut below = Below { damaged, ..read_generation(device, superblock) };
    if generation > LAST_GENERATION {
        below.wrong.push((at, format!("the number of its generation, {generation}, is too high for another one")));
    }
    Ok(below)
}

/// Reads everything that lies below the volumes above, as a superblock has it.
pub(crate) fn read_generation(device: &dyn BlockDevice, superblock: NativeSuperblock) -> Below {
    let listed = Some(superblock.snapshots);
    read_listed(device, superblock, listed, &|_| true)
}

/// As [`read_generation`], with those of its snapshots that are `wanted`: what others hold is not looked at, nor, where any are
/// left out, what all of them hold together. The list has `listed` records, where that is known.
fn read_listed(
    device: &dyn BlockDevice,
    superblock: NativeSuperblock,
    listed: Option<u32>,
    wanted: &dyn Fn(&Snapshot) -> bool,
) -> Below {
    let mut reader = Reader::new(device, &superblock);
    if superblock.unordered {
        reader.wrong(0, "the volume was in use without consistency and was not unmounted");
    }
    let start = Start {
        root: superblock.root,
        late: superblock.late.iter().copied().collect(),
        generation: superblock.generation,
        records: superblock.chunks,
    };
    let live = reader.version(None, start);
    let (list, left_out): (Vec<_>, Vec<_>) = reader.list(&live, listed).into_iter().partition(wanted);
    let mut snapshots: Vec<Version> = Vec::new();
    for snapshot in list {
        let name = crate::render::escape(&snapshot.name);
        if snapshots.iter().any(|other| other.name.as_ref() == Some(&name)) {
            reader.wrong(snapshot.root.place, format!("the snapshot {name} stands in the list twice"));
        }
        snapshots.push(reader.snapshot(name, &snapshot, superblock.generation));
    }
    reader.sums();
    if left_out.is_empty() {
        held::judge(&mut reader, &live, &snapshots);
    }
    let left_out = left_out.iter().map(|snapshot| crate::render::escape(&snapshot.name)).collect();
    let Reader { nodes, wrong, unreadable, .. } = reader;
    Below { superblock, nodes, live, snapshots, wrong, unreadable, damaged: None, left_out }
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
            unreadable: None,
            nodes: HashMap::new(),
            judged: HashSet::new(),
            led: BTreeMap::new(),
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
                    self.no_mount(entry.place, e.to_string());
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

    /// Notes what is wrong with a block without which no mount can do.
    fn no_mount(&mut self, place: u64, what: impl Into<String>) {
        let what = what.into();
        if self.snapshot.is_none() {
            self.unreadable.get_or_insert_with(|| (place, what.clone()));
        }
        self.wrong(place, what);
    }

    /// Looks at the generation of a snapshot, whose record stands in the list of a later one.
    fn snapshot(&mut self, name: String, record: &Snapshot, newest: u64) -> Version {
        let Snapshot { root, generation, chunks, .. } = *record;
        if generation >= newest {
            self.wrong(root.place, format!("the snapshot {name} is of a generation that is yet to come"));
        }
        if generation != root.generation {
            let what =
                format!("the snapshot {name} is said to be of generation {generation}, and its map is of another");
            self.wrong(root.place, what);
        }
        self.snapshot = Some(name.clone());
        let version = self.version(Some(name), Start { root, late: Late::new(), generation, records: chunks });
        self.snapshot = None;
        version
    }

    /// Looks at a generation.
    fn version(&mut self, name: Option<String>, start: Start) -> Version {
        let used = self.walk(&start);
        let chunks = self.table(&start);
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
        Version { name, root: start.root, late: start.late, chunks, taken }
    }

    fn entry(&self, version: &Version, index: u64) -> Option<Entry> {
        version.entry(&self.nodes, &self.shape, index)
    }

    /// What an entry of the map's own blocks leads to, where it is what it should be.
    fn block(&mut self, entry: &Entry, position: Position) -> Option<Vec<u8>> {
        let mut bytes = vec![0; BLOCK_SIZE as usize];
        if let Err(e) = self.device.read(entry.place * SIZE, &mut bytes) {
            self.no_mount(entry.place, e.to_string());
            return None;
        }
        if position.checksum(self.seed, &bytes) != entry.checksum {
            self.no_mount(entry.place, MISMATCH);
            return None;
        }
        Some(bytes)
    }

    /// Walks a map, and gives the places that it uses. The tree has as many levels as its shape says, so it ends on any
    /// bytes.
    fn walk(&mut self, start: &Start) -> Used {
        let mut used = Used::default();
        let mut above = vec![(0u64, start.root, start.generation)];
        for level in (0..self.shape.levels()).rev() {
            let mut below = Vec::new();
            for (number, entry, newest) in above {
                if !self.leads_to_node(&mut used, &entry, level, number, newest) {
                    continue;
                }
                let Some(node) = self.node(&entry, level, number) else { continue };
                let entries: Vec<_> =
                    node.present().map(|(slot, entry)| (number << BITS | slot as u64, entry)).collect();
                if level == 0 {
                    self.leaf(&mut used, start, NodeName::new(&entry, level, number), entry.generation, entries);
                } else {
                    below.extend(entries.into_iter().map(|(number, below)| (number, below, entry.generation)));
                }
            }
            above = below;
        }
        used
    }

    /// Judges an entry that leads to a node; whether the node is to be followed.
    fn leads_to_node(&mut self, used: &mut Used, entry: &Entry, level: u8, number: u64, newest: u64) -> bool {
        if entry.generation > newest {
            self.wrong(entry.place, LATER);
        }
        if entry.kind != BlockKind::MapNode {
            self.no_mount(entry.place, "what should be a node of the map is something else");
            return false;
        }
        if entry.owner != 0 {
            self.wrong(entry.place, format!("the entry of a node of the map says that it is inode {}'s", entry.owner));
        }
        if !used.add(entry.place) {
            self.wrong(entry.place, TWICE);
            return false;
        }
        self.leads(Position::Node { level, number }, entry);
        true
    }

    /// Judges what a leaf of a generation and the late entries in its place lead to.
    fn leaf(&mut self, used: &mut Used, start: &Start, leaf: NodeName, written: u64, mut entries: Vec<(u64, Entry)>) {
        let Start { root, late, generation, .. } = start;
        let newer = late.range(leaf.number << BITS..(leaf.number + 1) << BITS);
        entries.retain(|(index, _)| !late.contains_key(index));
        // the same leaf may be a snapshot's as it stands
        let known = newer.clone().next().is_none() && !self.judged.insert(leaf);
        for (index, entry) in entries {
            self.in_use(used, start, index, &entry);
            if !known {
                self.judge(index, &entry, 0..=written);
            }
        }
        for (index, entry) in newer {
            if *index >= self.shape.table().start {
                self.wrong(root.place, format!("a late entry is that of index {index}, which may have none"));
            }
            let Some(entry) = entry else { continue };
            self.in_use(used, start, *index, entry);
            self.judge(*index, entry, root.generation + 1..=*generation);
        }
    }

    /// A place that an entry of a generation leads to.
    fn in_use(&mut self, used: &mut Used, start: &Start, index: u64, entry: &Entry) {
        if !used.add(entry.place) {
            self.wrong(entry.place, TWICE);
        }
        let table = self.shape.table();
        if table.contains(&index) && index - table.start >= u64::from(start.records.div_ceil(places::RECORDS)) {
            self.wrong(entry.place, "it is a block of the place table behind the table's end");
        }
    }

    /// What an entry says of its block, against the block's index, and the generations that may have written it.
    fn judge(&mut self, index: u64, entry: &Entry, written: RangeInclusive<u64>) {
        let shape = self.shape;
        let own = |kind| matches!(kind, BlockKind::PlaceTable | BlockKind::SnapshotList | BlockKind::MapNode);
        let (fits, everybodys) = match entry.kind {
            _ if index >= shape.indexes() => (false, true),
            kind if shape.table().contains(&index) => (kind == BlockKind::PlaceTable, true),
            kind if shape.list().contains(&index) => (kind == BlockKind::SnapshotList, true),
            kind if index == 0 => (kind == BlockKind::Superblock, true),
            kind if index < shape.front() => (kind == BlockKind::Descriptors, true),
            kind => (!own(kind) && !matches!(kind, BlockKind::Superblock | BlockKind::Descriptors), false),
        };
        if !fits {
            self.wrong(
                entry.place,
                format!("its entry, of index {index}, says that it is {}", identity::called(entry.kind)),
            );
        } else if everybodys && entry.owner != 0 {
            self.wrong(entry.place, format!("its entry, of index {index}, says that it is inode {}'s", entry.owner));
        }
        if entry.generation > *written.end() {
            self.wrong(entry.place, LATER);
        } else if entry.generation < *written.start() {
            self.wrong(entry.place, "its late entry is of no later generation than the map");
        }
        self.leads(Position::Block(index), entry);
    }

    /// All generations that an entry leads from say the same of it.
    fn leads(&mut self, position: Position, entry: &Entry) {
        let snapshot = self.snapshot.clone();
        match self.led.get(&entry.place) {
            None => drop(self.led.insert(entry.place, Led { position, entry: *entry, snapshot })),
            Some(led) if (led.position, led.entry) == (position, *entry) => {}
            Some(led) if (led.position, led.entry.checksum) == (position, entry.checksum) => {
                self.wrong(entry.place, "two generations say different things of what it is, whose, or since when");
            }
            Some(_) => self.wrong(entry.place, "two generations take it for different blocks"),
        }
    }

    /// The chunks of a generation's regions, ascending.
    fn table(&mut self, start: &Start) -> Vec<Chunk> {
        let Start { root, late, records, .. } = start;
        let mut chunks: Vec<Chunk> = Vec::new();
        let (mut in_use, mut sound) = (0, true);
        for block in 0..u64::from(records.div_ceil(places::RECORDS)) {
            let index = self.shape.table().start + block;
            let Some(entry) = entry_of(&self.nodes, &self.shape, root, index) else { continue };
            let parsed = self.block(&entry, Position::Block(index)).map(|bytes| places::parse(&bytes, &self.shape));
            let Some(found) = self.parsed(entry.place, parsed) else {
                sound = false;
                continue;
            };
            if let Some(last) = found.iter().rposition(Option::is_some) {
                in_use = block * u64::from(places::RECORDS) + last as u64 + 1;
            }
            chunks.extend(found.into_iter().flatten());
        }
        if sound && in_use != u64::from(*records) {
            let what = format!(
                "{records} records of the place table are said to be in use, and the last one is the {in_use}th"
            );
            self.wrong(root.place, what);
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

    /// What was read of a block, unless it is not sound, which is said.
    fn parsed<T>(&mut self, place: u64, parsed: Option<format::Result<T>>) -> Option<T> {
        match parsed? {
            Ok(found) => Some(found),
            Err(e) => {
                self.no_mount(place, e.to_string());
                None
            }
        }
    }

    /// The snapshots in the list of a generation, which has so many records, where that is known.
    fn list(&mut self, live: &Version, listed: Option<u32>) -> Vec<Snapshot> {
        let mut list = Vec::new();
        let (mut in_use, mut sound) = (0, true);
        for (block, index) in (0u64..).zip(self.shape.list()) {
            let Some(entry) = self.entry(live, index) else { continue };
            let parsed = self.block(&entry, Position::Block(index)).map(|bytes| snapshots::parse(&bytes, &self.shape));
            let Some(found) = self.parsed(entry.place, parsed) else {
                sound = false;
                continue;
            };
            match found.iter().rposition(Option::is_some) {
                Some(last) => in_use = block * snapshots::RECORDS as u64 + last as u64 + 1,
                None => self.wrong(entry.place, "it is a block of the list of snapshots, and names none"),
            }
            list.extend(found.into_iter().flatten());
        }
        if let Some(listed) = listed.filter(|listed| sound && u64::from(*listed) != in_use) {
            let what = format!(
                "{listed} records of the list of snapshots are said to be in use, and the last one is the {in_use}th"
            );
            self.wrong(live.root.place, what);
        }
        list
    }

    /// Reads every block that a map leads to, in the order of the device.
    fn sums(&mut self) {
        let mut all: Vec<_> = std::mem::take(&mut self.led).into_iter().collect();
        // nodes were read on the way
        all.retain(|(_, led)| matches!(led.position, Position::Block(_)));
        let mut buffer = vec![0; BATCH * BLOCK_SIZE as usize];
        for batch in all.chunks(BATCH) {
            let mut reads: Vec<Read<'_>> = batch
                .iter()
                .zip(buffer.chunks_mut(BLOCK_SIZE as usize))
                .map(|((place, _), buf)| Read::new(place * SIZE, buf))
                .collect();
            self.device.read_many(&mut reads);
            for (read, (place, led)) in reads.into_iter().zip(batch) {
                self.snapshot.clone_from(&led.snapshot);
                let what = match read.result {
                    Err(e) => e.to_string(),
                    Ok(()) if led.position.checksum(self.seed, read.buf) != led.entry.checksum => MISMATCH.to_owned(),
                    Ok(()) => continue,
                };
                match led.position {
                    Position::Block(index) if index < self.shape.front() => self.no_mount(*place, what),
                    _ => self.wrong(*place, what),
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

    /// Shows every entry of a generation that leads to a metadata block, as far as the nodes on the way are sound.
    fn each_entry(&self, version: &Version, mut see: impl FnMut(u64, Entry)) {
        let mut above = vec![(0u64, version.root)];
        for level in (0..self.superblock.shape.levels()).rev() {
            let mut below = Vec::new();
            for (number, entry) in above {
                let Some(node) = self.nodes.get(&NodeName::new(&entry, level, number)) else { continue };
                below.extend(node.present().map(|(slot, entry)| (number << BITS | slot as u64, entry)));
            }
            above = below;
        }
        let old = above.into_iter().filter(|(index, _)| !version.late.contains_key(index));
        let late = version.late.iter().filter_map(|(index, entry)| Some((*index, (*entry)?)));
        old.chain(late).for_each(|(index, entry)| see(index, entry));
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
