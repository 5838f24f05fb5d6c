//! The physical layer of a native volume: its metadata maps, chunk table and snapshots.

use crate::problem::{Problem, Problems};
use crate::report::Scan;
use crate::table::Code;
use format::FsBlock;
use format::native::chunk_table::Chunk;
use format::native::map::{BlockKind, ENTRIES, Entry, Node};
use format::native::superblock::NativeSuperblock;
use format::native::{BLOCK_SIZE, Layout};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Range;

pub(super) const SIZE: u64 = BLOCK_SIZE as u64;
/// Bits of an index that choose an entry of a node.
pub(super) const BITS: u32 = ENTRIES.ilog2();

/// The physical layer, read and checked before the volumes above its maps.
pub(crate) struct PhysicalLayer {
    pub(crate) superblock: NativeSuperblock,
    /// The cost of reading it.
    pub(crate) scan: Scan,
    pub(super) nodes: Nodes,
    /// The newest generation.
    pub(crate) live: Version,
    /// The snapshots that can be checked, in the order of their list.
    pub(crate) snapshots: Vec<Version>,
    /// The errors: block of the device, and description.
    pub(crate) wrong: Vec<(u64, String)>,
    /// The reason why the newest generation cannot be read: block and description of the error in its map, or in a block that
    /// every mount reads.
    pub(crate) unreadable: Option<(u64, String)>,
    /// The blocks of such errors, of whichever version.
    pub(super) no_mount: BTreeSet<u64>,
    /// The snapshots with errors of their own, by name.
    pub(super) faulty: BTreeSet<String>,
    /// The blocks with errors that concern every version that uses them.
    pub(super) bad: BTreeSet<u64>,
    /// The snapshots whose chunk table cannot be read, by name.
    pub(super) lost_tables: BTreeSet<String>,
    /// Whether an error concerns the newest generation, not only snapshots.
    pub(super) live_is_faulty: bool,
    /// The blocks of the device and of the volume, where the device has fewer.
    pub(crate) truncated: Option<(u64, u64)>,
    /// The damaged one of the two superblocks: its block, and a description.
    pub(super) damaged: Option<(u64, String)>,
    /// The active superblock, where its number of snapshots is not that of its list: its block, and a description. The
    /// number of the list is used instead.
    pub(super) miscounted: Option<(u64, String)>,
    /// The superblock of a later generation that a torn write left, complete but for a number: its block and its
    /// generation.
    pub(super) torn: Option<(u64, u64)>,
    /// Whether the damaged one is newer and intact, but leads to no map.
    pub(crate) abandoned: bool,
    /// Snapshots in the list that were not checked.
    pub(crate) left_out: Vec<String>,
}

/// A generation: the newest, or one that a snapshot pins.
pub(crate) struct Version {
    /// The name of the snapshot.
    pub(crate) name: Option<String>,
    pub(crate) root: Entry,
    /// The map log, entries that are newer than its map; only the newest generation has any.
    pub(super) map_log: MapLog,
    /// The chunks of its regions, ascending.
    pub(super) chunks: Vec<Chunk>,
    /// Blocks of the volume that the physical layer uses.
    pub(crate) taken: Vec<Range<u64>>,
}

/// A map log: entries that replace those in the leaves, by index.
pub(super) type MapLog = BTreeMap<u64, Option<Entry>>;

/// Nodes of the map that were read and are intact.
pub(super) type Nodes = HashMap<NodeName, Node>;

/// The identity of a node: the entry that leads to it, and its position in the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct NodeName {
    pub(super) level: u8,
    pub(super) number: u64,
    pub(super) physical: u64,
    pub(super) checksum: u32,
}

impl NodeName {
    pub(super) fn new(entry: &Entry, level: u8, number: u64) -> Self {
        Self { level, number, physical: entry.physical, checksum: entry.checksum }
    }
}

/// The entry of a metadata block in the map of a root; `None` where it was never written, or a node on the path is
/// damaged.
pub(super) fn entry_of(nodes: &Nodes, layout: &Layout, root: &Entry, index: u64) -> Option<Entry> {
    let mut entry = *root;
    for level in (0..layout.levels()).rev() {
        let number = index >> (BITS * (u32::from(level) + 1));
        let slot = (index >> (BITS * u32::from(level))) as usize % ENTRIES;
        entry = nodes.get(&NodeName::new(&entry, level, number))?.get(slot)?;
    }
    Some(entry)
}

/// Whether the nodes on the path to an index are intact.
pub(super) fn has_path(nodes: &Nodes, layout: &Layout, root: &Entry, index: u64) -> bool {
    let mut entry = *root;
    for level in (0..layout.levels()).rev() {
        let number = index >> (BITS * (u32::from(level) + 1));
        let slot = (index >> (BITS * u32::from(level))) as usize % ENTRIES;
        let Some(node) = nodes.get(&NodeName::new(&entry, level, number)) else { return false };
        let Some(below) = node.get(slot) else { return true };
        entry = below;
    }
    true
}

impl Version {
    /// The identity of its map, without a map log.
    pub(super) fn root_name(&self) -> (u64, u32) {
        (self.root.physical, self.root.checksum)
    }

    /// A newest generation with this root and no other data yet.
    pub(super) fn of_root(root: Entry) -> Self {
        Self { name: None, root, map_log: MapLog::new(), chunks: Vec::new(), taken: Vec::new() }
    }

    pub(super) fn entry(&self, nodes: &Nodes, layout: &Layout, index: u64) -> Option<Entry> {
        self.map_log.get(&index).copied().unwrap_or_else(|| entry_of(nodes, layout, &self.root, index))
    }
}

/// The problem of a wrong block of the device. A description that begins with `it` continues the sentence.
pub(crate) fn wrong_structure(physical: u64, what: &str) -> Problem {
    Problem::new(Code::NativeStructureWrong).block(FsBlock(physical)).name(predicate(what))
}

/// The description of an error after the words "block N of the device".
pub(super) fn predicate(what: &str) -> String {
    match what.strip_prefix("it ") {
        Some(rest) => format!(" {rest}"),
        None => format!(": {what}"),
    }
}

impl PhysicalLayer {
    /// The entry of a metadata block in a generation.
    pub(super) fn entry(&self, version: &Version, index: u64) -> Option<Entry> {
        version.entry(&self.nodes, &self.superblock.layout, index)
    }

    /// Calls `see` with every entry of a generation that leads to a metadata block, as far as the nodes on the path are
    /// intact.
    pub(super) fn each_entry(&self, version: &Version, mut see: impl FnMut(u64, Entry)) {
        let mut above = vec![(0u64, version.root)];
        for level in (0..self.superblock.layout.levels()).rev() {
            let mut below = Vec::new();
            for (number, entry) in above {
                let Some(node) = self.nodes.get(&NodeName::new(&entry, level, number)) else { continue };
                below.extend(node.present().map(|(slot, entry)| (number << BITS | slot as u64, entry)));
            }
            above = below;
        }
        let old = above.into_iter().filter(|(index, _)| !version.map_log.contains_key(index));
        let log = version.map_log.iter().filter_map(|(index, entry)| Some((*index, (*entry)?)));
        old.chain(log).for_each(|(index, entry)| see(index, entry));
    }

    /// Reports the errors.
    pub(crate) fn report(&self, problems: &Problems) {
        for (physical, what) in self.damaged.iter().chain(&self.miscounted) {
            problems.report(Problem::new(Code::NativeSuperblockDamaged).block(FsBlock(*physical)).name(what));
        }
        if let Some((physical, generation)) = self.torn {
            let problem = Problem::new(Code::NativeSuperblockTorn).block(FsBlock(physical));
            problems.report(problem.found(generation).expected(self.superblock.generation));
        }
        if self.superblock.unordered {
            problems.report(Problem::new(Code::NativeNotUnmounted));
        }
        if let Some((device, volume)) = self.truncated {
            problems.report(Problem::new(Code::NativeTruncated).found(device).expected(volume));
        }
        let mut wrong = self.wrong.clone();
        wrong.sort_unstable();
        wrong.dedup();
        for (physical, what) in wrong {
            problems.report(wrong_structure(physical, &what));
        }
    }

    /// Whether there are errors other than the mark of a volume that was in use without consistency.
    pub(crate) fn is_damaged(&self) -> bool {
        self.unreadable.is_some() || self.truncated.is_some() || !self.wrong.is_empty()
    }

    /// The number of errors that [`PhysicalLayer::report`] reports.
    pub(crate) fn errors(&self) -> u64 {
        let problems = Problems::default();
        self.report(&problems);
        problems.finish().errors()
    }

    /// Whether the newest generation has no errors in this layer, whatever errors its snapshots have. A damaged
    /// superblock is not one, as the other one is used.
    pub(super) fn live_is_intact(&self) -> bool {
        let usable = self.unreadable.is_none() && self.truncated.is_none();
        usable && !self.live_is_faulty && !self.abandoned && !self.superblock.unordered
    }

    /// The snapshots whose volumes are checked besides the newest generation: those that differ from it and from all
    /// before them in the list. One with the map of a newest generation that has changes in its map log is checked only
    /// where that has errors.
    pub(crate) fn others(&self, newest_is_clean: bool) -> Vec<&Version> {
        let mut seen = HashSet::new();
        if newest_is_clean || self.live.map_log.is_empty() {
            seen.insert(self.live.root_name());
        }
        self.snapshots.iter().filter(|version| seen.insert(version.root_name())).collect()
    }

    /// Whether no error lies in a block that a snapshot uses.
    pub(super) fn is_intact(&self, snapshot: &Version) -> bool {
        let named = snapshot.name.as_ref().is_some_and(|name| self.faulty.contains(name));
        let mut intact = !named && self.truncated.is_none();
        let whole = self.walk(snapshot, |entry| intact &= !self.bad.contains(&entry.physical));
        whole && intact
    }

    /// Whether the structures that the deletion of a snapshot reads are intact: its map, chunk table and block bitmaps.
    pub(super) fn can_be_deleted(&self, snapshot: &Version) -> bool {
        let mut intact = snapshot.name.as_ref().is_none_or(|name| !self.lost_tables.contains(name));
        let whole = self.walk(snapshot, |entry| {
            intact &= entry.kind != BlockKind::BlockBitmap || !self.bad.contains(&entry.physical);
        });
        whole && intact
    }

    /// Calls `see` with every entry in the map of a snapshot, also those of nodes; returns whether all nodes are
    /// intact.
    fn walk(&self, snapshot: &Version, mut see: impl FnMut(&Entry)) -> bool {
        let mut whole = true;
        let mut above = vec![(0u64, snapshot.root)];
        for level in (0..self.superblock.layout.levels()).rev() {
            let mut below = Vec::new();
            for (number, entry) in above {
                see(&entry);
                let node = self.nodes.get(&NodeName::new(&entry, level, number));
                whole &= node.is_some();
                let present = node.into_iter().flat_map(Node::present);
                below.extend(present.map(|(slot, entry)| (number << BITS | slot as u64, entry)));
            }
            above = below;
        }
        above.iter().for_each(|(_, entry)| see(entry));
        whole
    }

    /// Whether the blocks of a snapshot that every mount reads are intact.
    pub(super) fn can_be_mounted(&self, snapshot: &Version) -> bool {
        let damaged = |entry: Entry| self.no_mount.contains(&entry.physical);
        self.entry(snapshot, 0).is_some()
            && !(0..self.superblock.layout.front()).any(|index| self.entry(snapshot, index).is_some_and(damaged))
    }
}
