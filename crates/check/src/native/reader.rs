//! The reader of the physical layer, which checks it as well.

use super::identity;
use super::layer::{BITS, MapLog, NodeName, Nodes, SIZE, Version, entry_of};
use super::used_blocks::{Used, blocks_of};
use blockdev::{BlockDevice, Read};
use format::native::chunk_table::{Chunk, bit_of};
use format::native::map::{BlockKind, ENTRIES, Entry, Node, Position};
use format::native::snapshots::Snapshot;
use format::native::superblock::NativeSuperblock;
use format::native::{BLOCK_SIZE, HEAD, Layout, chunk_table, snapshots};
use format::superblock::{self, Superblock};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::{Range, RangeInclusive};

/// Blocks that are read in one batch.
const BATCH: usize = 256;

pub(super) struct Reader<'a> {
    pub(super) device: &'a dyn BlockDevice,
    pub(super) layout: Layout,
    pub(super) seed: u32,
    /// The blocks reserved without an owner, and the chunks that they lie in.
    pub(super) reserved: BTreeSet<u64>,
    pub(super) reserved_chunks: BTreeSet<u32>,
    /// The snapshot that is being read.
    pub(super) snapshot: Option<String>,
    pub(super) wrong: Vec<(u64, String)>,
    /// As [`PhysicalLayer::unreadable`].
    pub(super) unreadable: Option<(u64, String)>,
    /// As [`PhysicalLayer::no_mount`].
    pub(super) no_mount: BTreeSet<u64>,
    /// As [`PhysicalLayer::faulty`].
    pub(super) faulty: BTreeSet<String>,
    /// As [`PhysicalLayer::bad`].
    pub(super) bad: BTreeSet<u64>,
    /// As [`PhysicalLayer::lost_tables`].
    pub(super) lost_tables: BTreeSet<String>,
    /// As [`PhysicalLayer::live_is_faulty`].
    pub(super) live_is_faulty: bool,
    pub(super) nodes: Nodes,
    /// Leaves whose entries were checked.
    pub(super) checked: HashSet<NodeName>,
    /// The targets of the entries read so far, by physical block.
    pub(super) led: BTreeMap<u64, Led>,
}

/// The target of an entry.
pub(super) struct Led {
    pub(super) position: Position,
    pub(super) entry: Entry,
    /// The first snapshot with an entry for it.
    pub(super) snapshot: Option<String>,
}

/// The starting point of a generation.
pub(super) struct Start {
    pub(super) root: Entry,
    pub(super) map_log: MapLog,
    pub(super) generation: u64,
    /// Number of records in its chunk table.
    pub(super) records: u32,
}

impl<'a> Reader<'a> {
    pub(super) fn new(device: &'a dyn BlockDevice, superblock: &NativeSuperblock) -> Self {
        let layout = superblock.layout;
        let mut reserved = BTreeSet::new();
        let mut reserved_chunks = BTreeSet::new();
        if superblock.reserved {
            reserved = layout.backup_blocks();
            reserved.extend(HEAD);
            reserved_chunks = layout.backup_chunks();
        }
        Self {
            device,
            layout,
            seed: superblock.seed(),
            reserved,
            reserved_chunks,
            snapshot: None,
            wrong: Vec::new(),
            unreadable: None,
            no_mount: BTreeSet::new(),
            faulty: BTreeSet::new(),
            bad: BTreeSet::new(),
            lost_tables: BTreeSet::new(),
            live_is_faulty: false,
            nodes: HashMap::new(),
            checked: HashSet::new(),
            led: BTreeMap::new(),
        }
    }

    /// Reads the nodes on the path to an index.
    pub(super) fn go_to(&mut self, root: &Entry, index: u64) {
        let mut entry = *root;
        for level in (0..self.layout.levels()).rev() {
            let number = index >> (BITS * (u32::from(level) + 1));
            let Some(node) = self.node(&entry, level, number) else { return };
            let Some(next) = node.get((index >> (BITS * u32::from(level))) as usize % ENTRIES) else { return };
            entry = next;
        }
    }

    /// The node that an entry leads to, from memory if it was already read.
    fn node(&mut self, entry: &Entry, level: u8, number: u64) -> Option<&Node> {
        let name = NodeName::new(entry, level, number);
        if !self.nodes.contains_key(&name) {
            let bytes = self.block(entry, Position::Node { level, number })?;
            match Node::parse(&bytes, level, &self.layout) {
                Ok(node) => drop(self.nodes.insert(name, node)),
                Err(e) => {
                    self.no_mount(entry.physical, e.to_string());
                    return None;
                }
            }
        }
        self.nodes.get(&name)
    }

    pub(super) fn wrong(&mut self, physical: u64, what: impl Into<String>) {
        self.bad.insert(physical);
        self.wrong_here(physical, what);
    }

    /// Records an error about a block that concerns only the version that is being read.
    fn wrong_here(&mut self, physical: u64, what: impl Into<String>) {
        let what = what.into();
        self.live_is_faulty |= self.snapshot.is_none();
        self.faulty.extend(self.snapshot.clone());
        self.wrong.push((
            physical,
            match &self.snapshot {
                Some(name) => format!("in the snapshot {name}, {what}"),
                None => what,
            },
        ));
    }

    /// Records an error in the record of a snapshot, which the description names.
    pub(super) fn wrong_record(&mut self, name: &str, physical: u64, what: String) {
        self.faulty.insert(name.to_owned());
        self.wrong.push((physical, what));
    }

    /// Records an error in a block that every mount needs.
    pub(super) fn no_mount(&mut self, physical: u64, what: impl Into<String>) {
        let what = what.into();
        self.no_mount.insert(physical);
        if self.snapshot.is_none() {
            self.unreadable.get_or_insert_with(|| (physical, what.clone()));
        }
        self.wrong(physical, what);
    }

    /// Reads and checks the generation of a snapshot, whose record is in the list of a later one.
    pub(super) fn snapshot(&mut self, name: String, record: &Snapshot, newest: u64) -> Version {
        let Snapshot { root, generation, chunks, .. } = *record;
        if generation >= newest {
            self.bad.insert(root.physical);
            let what = format!("the generation of snapshot {name} is newer than the volume's");
            self.wrong_record(&name, root.physical, what);
        }
        if generation != root.generation {
            let what = format!("the record of snapshot {name} has generation {generation}, but its map has another");
            self.wrong_record(&name, root.physical, what);
        }
        self.snapshot = Some(name.clone());
        let version = self.version(Some(name), Start { root, map_log: MapLog::new(), generation, records: chunks });
        self.snapshot = None;
        version
    }

    /// Reads and checks a generation.
    pub(super) fn version(&mut self, name: Option<String>, start: Start) -> Version {
        let used = self.walk(&start);
        if self.lacks_superblock(&start) {
            self.no_mount(start.root.physical, "the map leads to no superblock of the volume above it");
        }
        let chunks = self.table(&start);
        for (physical, what) in used.compare(&chunks) {
            self.wrong_here(physical, what);
        }
        let layout = self.layout;
        for physical in used.of(&self.reserved) {
            self.wrong(physical, RESERVED);
        }
        let regions: BTreeSet<u32> = chunks.iter().map(|chunk| chunk.number).collect();
        for chunk in self.reserved_chunks.intersection(&regions).copied().collect::<Vec<_>>() {
            self.wrong(blocks_of(chunk).start, RESERVED_CHUNK);
        }
        let mut taken: Vec<Range<u64>> = chunks.iter().map(|chunk| blocks_of(chunk.number)).collect();
        // in use without an owner: a claim on one of them is a second claim
        let apart = self.reserved.iter().filter(|physical| !regions.contains(&bit_of(**physical).0));
        taken.extend(apart.map(|physical| *physical..physical + 1));
        // the front is claimed for the ext4 superblock and descriptors
        taken.push(layout.blocks()..layout.metadata_start());
        taken.iter_mut().for_each(|run| run.start = run.start.max(layout.front().min(run.end)));
        Version { name, root: start.root, map_log: start.map_log, chunks, taken }
    }

    pub(super) fn entry(&self, version: &Version, index: u64) -> Option<Entry> {
        version.entry(&self.nodes, &self.layout, index)
    }

    /// The block of the map's own structures that an entry leads to, where it is valid.
    pub(super) fn block(&mut self, entry: &Entry, position: Position) -> Option<Vec<u8>> {
        let mut bytes = vec![0; BLOCK_SIZE as usize];
        if let Err(e) = self.device.read(entry.physical * SIZE, &mut bytes) {
            self.no_mount(entry.physical, e.to_string());
            return None;
        }
        if position.checksum(self.seed, &bytes) != entry.checksum {
            self.no_mount(entry.physical, MISMATCH);
            return None;
        }
        Some(bytes)
    }

    /// Walks a map and returns the physical blocks that it uses. The depth of the tree is that of the layout, so the
    /// walk ends on any bytes.
    fn walk(&mut self, start: &Start) -> Used {
        let mut used = Used::default();
        let mut above = vec![(0u64, start.root, start.generation)];
        for level in (0..self.layout.levels()).rev() {
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

    /// Whether a map that was walked has no entry for the first block of the volume above it, which contains the
    /// superblock. `false` where a node on the path is damaged, as that is reported already.
    fn lacks_superblock(&self, start: &Start) -> bool {
        if let Some(logged) = start.map_log.get(&0) {
            return logged.is_none();
        }
        let mut entry = start.root;
        for level in (0..self.layout.levels()).rev() {
            let Some(node) = self.nodes.get(&NodeName::new(&entry, level, 0)) else { return false };
            let Some(below) = node.get(0) else { return true };
            entry = below;
        }
        false
    }

    /// Checks an entry that leads to a node, and returns whether to follow it.
    fn leads_to_node(&mut self, used: &mut Used, entry: &Entry, level: u8, number: u64, newest: u64) -> bool {
        if entry.generation > newest {
            self.wrong(entry.physical, LATER);
        }
        if entry.kind != BlockKind::MapNode {
            self.no_mount(entry.physical, "it should be a node of the map, but is something else");
            return false;
        }
        if entry.owner != 0 {
            self.wrong(entry.physical, format!("the entry of a node of the map has owner inode {}", entry.owner));
        }
        if !used.add(entry.physical) {
            self.wrong(entry.physical, TWICE);
            return false;
        }
        self.leads(Position::Node { level, number }, entry);
        true
    }

    /// Checks the targets of a leaf's entries and of the log entries that replace them.
    fn leaf(&mut self, used: &mut Used, start: &Start, leaf: NodeName, written: u64, mut entries: Vec<(u64, Entry)>) {
        let Start { root, map_log, generation, .. } = start;
        let newer = map_log.range(leaf.number << BITS..(leaf.number + 1) << BITS);
        entries.retain(|(index, _)| !map_log.contains_key(index));
        // snapshots may share the unchanged leaf
        let known = newer.clone().next().is_none() && !self.checked.insert(leaf);
        for (index, entry) in entries {
            self.in_use(used, start, index, &entry);
            if !known {
                self.check(index, &entry, 0..=written);
            }
        }
        for (index, entry) in newer {
            if *index >= self.layout.table().start {
                self.wrong(root.physical, format!("a map log entry has index {index}, which is invalid"));
            }
            let Some(entry) = entry else { continue };
            self.in_use(used, start, *index, entry);
            self.check(*index, entry, root.generation + 1..=*generation);
        }
    }

    /// Records that an entry of a generation uses a physical block.
    fn in_use(&mut self, used: &mut Used, start: &Start, index: u64, entry: &Entry) {
        if !used.add(entry.physical) {
            self.wrong(entry.physical, TWICE);
        }
        let table = self.layout.table();
        if table.contains(&index) && index - table.start >= u64::from(start.records.div_ceil(chunk_table::RECORDS)) {
            self.wrong(entry.physical, "it is a block of the chunk table beyond the table's end");
        }
    }

    /// Checks an entry against the index of its block and the generations that may have written it.
    fn check(&mut self, index: u64, entry: &Entry, written: RangeInclusive<u64>) {
        let layout = self.layout;
        let own = |kind| matches!(kind, BlockKind::ChunkTable | BlockKind::SnapshotList | BlockKind::MapNode);
        let (fits, everybodys) = match entry.kind {
            _ if index >= layout.indexes() => (false, true),
            kind if layout.table().contains(&index) => (kind == BlockKind::ChunkTable, true),
            kind if layout.list().contains(&index) => (kind == BlockKind::SnapshotList, true),
            kind if index == 0 => (kind == BlockKind::Superblock, true),
            kind if index < layout.front() => (kind == BlockKind::Descriptors, true),
            kind => (!own(kind) && !matches!(kind, BlockKind::Superblock | BlockKind::Descriptors), false),
        };
        if !fits {
            self.wrong(
                entry.physical,
                format!("its entry, of index {index}, says that it is {}", identity::called(entry.kind)),
            );
        } else if everybodys && entry.owner != 0 {
            self.wrong(entry.physical, format!("its entry, of index {index}, has owner inode {}", entry.owner));
        }
        if entry.generation > *written.end() {
            self.wrong(entry.physical, LATER);
        } else if entry.generation < *written.start() {
            self.wrong(entry.physical, "its map log entry is not newer than the map");
        }
        self.leads(Position::Block(index), entry);
    }

    /// Checks that all entries for a physical block, of whatever generation, agree.
    fn leads(&mut self, position: Position, entry: &Entry) {
        let snapshot = self.snapshot.clone();
        match self.led.get(&entry.physical) {
            None => drop(self.led.insert(entry.physical, Led { position, entry: *entry, snapshot })),
            Some(led) if (led.position, led.entry) == (position, *entry) => {}
            Some(led) => {
                // the newest generation is read first, and its entry may be the wrong one
                self.live_is_faulty |= led.snapshot.is_none();
                let what = if (led.position, led.entry.checksum) == (position, entry.checksum) {
                    "two generations have different kinds, owners or generation numbers for it"
                } else {
                    "two generations use it for different blocks"
                };
                self.wrong(entry.physical, what);
            }
        }
    }

    /// The chunks of a generation's regions, ascending.
    fn table(&mut self, start: &Start) -> Vec<Chunk> {
        let Start { root, map_log, records, .. } = start;
        let mut chunks: Vec<Chunk> = Vec::new();
        let (mut in_use, mut intact) = (0, true);
        for block in 0..u64::from(records.div_ceil(chunk_table::RECORDS)) {
            let index = self.layout.table().start + block;
            let Some(entry) = entry_of(&self.nodes, &self.layout, root, index) else {
                self.lost_tables.extend(self.snapshot.clone());
                continue;
            };
            let parsed =
                self.block(&entry, Position::Block(index)).map(|bytes| chunk_table::parse(&bytes, &self.layout));
            let Some(found) = self.parsed(entry.physical, parsed) else {
                self.lost_tables.extend(self.snapshot.clone());
                intact = false;
                continue;
            };
            if let Some(last) = found.iter().rposition(Option::is_some) {
                in_use = block * u64::from(chunk_table::RECORDS) + last as u64 + 1;
            }
            chunks.extend(found.into_iter().flatten());
        }
        if intact && in_use != u64::from(*records) {
            let what =
                format!("the chunk table should have {records} records in use, but the last one is number {in_use}");
            self.wrong(root.physical, what);
        }
        chunks.sort_unstable_by_key(|chunk| chunk.number);
        if let Some(twice) = chunks.windows(2).find(|pair| pair[0].number == pair[1].number) {
            self.wrong(blocks_of(twice[0].number).start, "the chunk from here on is in the chunk table twice");
        }
        // the chunk table describes the map without the map log
        let before = map_log.keys().filter_map(|index| entry_of(&self.nodes, &self.layout, root, *index));
        let before: Vec<Entry> = before.collect();
        let after = map_log.values().flatten().map(|entry| (entry, true));
        for (entry, used) in before.iter().map(|entry| (entry, false)).chain(after) {
            let (number, word, bit) = bit_of(entry.physical);
            if let Ok(at) = chunks.binary_search_by_key(&number, |chunk| chunk.number)
                && let Some(word) = chunks.get_mut(at).and_then(|chunk| chunk.used.get_mut(word))
            {
                *word = if used { *word | bit } else { *word & !bit };
            }
        }
        chunks
    }

    /// The parsed content of a block, unless it is damaged, which is reported.
    fn parsed<T>(&mut self, physical: u64, parsed: Option<format::Result<T>>) -> Option<T> {
        match parsed? {
            Ok(found) => Some(found),
            Err(e) => {
                self.no_mount(physical, e.to_string());
                None
            }
        }
    }

    /// The snapshots in the list of a generation; `listed` is the number of records, where known.
    pub(super) fn list(&mut self, live: &Version, listed: Option<u32>) -> Vec<Snapshot> {
        let (list, in_use) = self.records(live);
        if let (Some(listed), Some(in_use)) = (listed, in_use)
            && u64::from(listed) != in_use
        {
            let what = format!(
                "the list of snapshots should have {listed} records in use, but the last one is number {in_use}"
            );
            self.wrong(live.root.physical, what);
        }
        list
    }

    /// The snapshots in the list of a generation, and the number of records up to the last one in use; `None` where a
    /// block of the list is damaged.
    pub(super) fn records(&mut self, live: &Version) -> (Vec<Snapshot>, Option<u64>) {
        let mut list = Vec::new();
        let (mut in_use, mut intact) = (0, true);
        for (block, index) in (0u64..).zip(self.layout.list()) {
            let Some(entry) = self.entry(live, index) else { continue };
            let parsed = self.block(&entry, Position::Block(index)).map(|bytes| snapshots::parse(&bytes, &self.layout));
            let Some(found) = self.parsed(entry.physical, parsed) else {
                intact = false;
                continue;
            };
            match found.iter().rposition(Option::is_some) {
                Some(last) => in_use = block * snapshots::RECORDS as u64 + last as u64 + 1,
                None => self.wrong(entry.physical, "it is a block of the list of snapshots, but has no record"),
            }
            list.extend(found.into_iter().flatten());
        }
        (list, intact.then_some(in_use))
    }

    /// Reads every block that a map leads to, in the order of the device, and compares its checksum.
    pub(super) fn sums(&mut self) {
        let mut all: Vec<_> = std::mem::take(&mut self.led).into_iter().collect();
        // nodes were already read
        all.retain(|(_, led)| matches!(led.position, Position::Block(_)));
        let mut buffer = vec![0; BATCH * BLOCK_SIZE as usize];
        for batch in all.chunks(BATCH) {
            let mut reads: Vec<Read<'_>> = batch
                .iter()
                .zip(buffer.chunks_mut(BLOCK_SIZE as usize))
                .map(|((physical, _), buf)| Read::new(physical * SIZE, buf))
                .collect();
            self.device.read_many(&mut reads);
            for (read, (physical, led)) in reads.into_iter().zip(batch) {
                self.snapshot.clone_from(&led.snapshot);
                let what = match read.result {
                    Err(e) => e.to_string(),
                    Ok(()) if led.position.checksum(self.seed, read.buf) != led.entry.checksum => MISMATCH.to_owned(),
                    Ok(()) => match no_superblock(led.position, read.buf) {
                        Some(what) => what,
                        None => continue,
                    },
                };
                match led.position {
                    Position::Block(index) if index < self.layout.front() => self.no_mount(*physical, what),
                    _ => self.wrong(*physical, what),
                }
            }
        }
        self.snapshot = None;
    }
}

/// The reason why a mount rejects the superblock in the first block of the volume above a map; `None` where it accepts
/// it, and for other blocks.
fn no_superblock(position: Position, bytes: &[u8]) -> Option<String> {
    if position != Position::Block(0) {
        return None;
    }
    let there = bytes.get(superblock::OFFSET as usize..).unwrap_or_default();
    match Superblock::parse(there) {
        // another version of the format is not damage
        Ok(_) | Err(format::Error::Unsupported(_)) => None,
        Err(format::Error::Corrupt { what, .. }) => {
            let what = what.split(": this is").next().unwrap_or(what);
            Some(format!("the superblock of the volume above the map is damaged: {what}"))
        }
    }
}

pub(super) const MISMATCH: &str = "it does not match the checksum recorded for it";
pub(super) const LATER: &str = "its generation is later than that of the block that leads to it";
pub(super) const RESERVED: &str = "it is reserved, but an entry leads to it";
pub(super) const RESERVED_CHUNK: &str = "a chunk with a reserved block is part of the metadata regions";
pub(super) const TWICE: &str = "two entries lead to it";
