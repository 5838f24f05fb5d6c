//! The map in memory: nodes are read when they are first needed.
//!
//! 1. [`Map::entry`] returns the location of the newest written content of a block. A generation being written is in
//!    the map before it is on the device: its changed blocks are pinned in the cache meanwhile, so they are not looked
//!    up here.
//! 2. Nodes that a generation changed stay in memory until the next one is planned; by then they are on the device.
//! 3. The map is not locked while a node is read. The node is inserted only if no generation changed the map meanwhile.

use crate::Result;
use blockdev::BlockDevice;
use format::native::map::{BlockKind, ENTRIES, Entry, Node, Position};
use format::native::{BLOCK_SIZE, Layout};
use format::{Error as FormatError, Structure};
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// The maximum number of nodes that are cached from one generation to the next: 64 MiB of them cover 8 GiB of metadata.
const CACHED: usize = 1 << 14;
/// Bits of an index that select an entry of a node.
const BITS: u32 = ENTRIES.ilog2();

/// A node's name: its level, 0 for leaves, and its number there.
pub(crate) type NodeName = (u8, u64);

/// The map from indexes to physical blocks.
pub(crate) struct Map {
    pub(crate) device: Arc<dyn BlockDevice>,
    pub(crate) layout: Layout,
    pub(crate) seed: u32,
    state: Mutex<State>,
}

struct State {
    root: Option<Entry>,
    /// The number of changes to the map so far.
    version: u64,
    /// Cached nodes, the leaves with their entries of the map log.
    nodes: HashMap<NodeName, Arc<Node>>,
    log: MapLog,
}

/// The map log: entries that are newer than the leaves on the device, by index.
pub(crate) type MapLog = BTreeMap<u64, Option<Entry>>;

impl State {
    /// A leaf, updated with its entries of the map log.
    fn with_log(&self, name: NodeName, mut node: Node) -> Node {
        let first = first_below(name);
        if name.0 == 0 {
            for (index, entry) in self.log.range(first..first + ENTRIES as u64) {
                node.set((index - first) as usize, *entry);
            }
        }
        node
    }
}

/// The leaf that contains the entry of an index, and the slot there.
pub(crate) fn leaf_of(index: u64) -> (NodeName, usize) {
    (node_over(index, 0), index as usize % ENTRIES)
}

/// The node of a level on the path to an index.
pub(crate) fn node_over(index: u64, level: u8) -> NodeName {
    (level, index >> (BITS * (u32::from(level) + 1)))
}

/// The first index that a node covers.
pub(crate) fn first_below((level, number): NodeName) -> u64 {
    number << (BITS * (u32::from(level) + 1))
}

/// The slot for an index in the node of a level on its path.
pub(crate) fn slot_at(index: u64, level: u8) -> usize {
    (index >> (BITS * u32::from(level))) as usize % ENTRIES
}

/// The parent of a node, and the slot there.
pub(crate) fn above((level, number): NodeName) -> (NodeName, usize) {
    ((level + 1, number >> BITS), number as usize % ENTRIES)
}

impl Map {
    /// Creates the map with a `root`; `None` for a volume under construction.
    pub(crate) fn new(
        device: Arc<dyn BlockDevice>,
        layout: Layout,
        seed: u32,
        root: Option<Entry>,
        log: MapLog,
    ) -> Self {
        let state = State { root, version: 0, nodes: HashMap::new(), log };
        Self { device, layout, seed, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// The topmost node.
    pub(crate) fn top(&self) -> NodeName {
        (self.layout.levels() - 1, 0)
    }

    /// The entry of the topmost node.
    pub(crate) fn root(&self) -> Option<Entry> {
        self.state().root
    }

    /// A node; `None` if nothing under it was ever written.
    ///
    /// # Errors
    /// Those of the device, and for a node that does not match its entry.
    pub(crate) fn node(&self, name: NodeName) -> Result<Option<Arc<Node>>> {
        let (level, number) = name;
        loop {
            let state = self.state();
            if let Some(node) = state.nodes.get(&name) {
                return Ok(Some(Arc::clone(node)));
            }
            let Some(mut entry) = state.root else { return Ok(None) };
            let (mut at, _) = self.top();
            // down to the first node that is not in memory
            let missing = loop {
                let ancestor = (at, number >> (BITS * u32::from(at - level)));
                let Some(node) = state.nodes.get(&ancestor) else { break ancestor };
                let child = number >> (BITS * u32::from(at - 1 - level));
                let Some(next) = node.get(child as usize % ENTRIES) else { return Ok(None) };
                (entry, at) = (next, at - 1);
            };
            let version = state.version;
            drop(state);
            let read = self.read_node(missing, &entry);
            let mut state = self.state();
            if state.version == version {
                let node = state.with_log(missing, read?);
                state.nodes.insert(missing, Arc::new(node));
            }
        }
    }

    pub(crate) fn read_node(&self, (level, number): NodeName, entry: &Entry) -> Result<Node> {
        if entry.kind != BlockKind::MapNode {
            return Err(FormatError::corrupt(Structure::Map, "an index entry does not point to a node").into());
        }
        let bytes = self.read(entry, Position::Node { level, number })?;
        Ok(Node::parse(&bytes, level, &self.layout)?)
    }

    /// Reads the block that an entry references.
    pub(crate) fn read(&self, entry: &Entry, position: Position) -> Result<Vec<u8>> {
        let mut bytes = vec![0; BLOCK_SIZE as usize];
        self.device.read(entry.physical * u64::from(BLOCK_SIZE), &mut bytes)?;
        if position.checksum(self.seed, &bytes) != entry.checksum {
            let what = "a node does not match the checksum in its parent";
            return Err(FormatError::corrupt(Structure::Map, what).into());
        }
        Ok(bytes)
    }

    /// The entry of a metadata block; `None` if it was never written.
    ///
    /// # Errors
    /// As [`Map::node`].
    pub(crate) fn entry(&self, index: u64) -> Result<Option<Entry>> {
        let (leaf, slot) = leaf_of(index);
        Ok(self.node(leaf)?.and_then(|node| node.get(slot)))
    }

    /// The newest written content of a metadata block; `None` if it was never written.
    pub(crate) fn block(&self, index: u64) -> Result<Option<Vec<u8>>> {
        loop {
            let Some(entry) = self.entry(index)? else { return Ok(None) };
            match self.read(&entry, Position::Block(index)) {
                // a physical block that was freed during the read may have other content by then
                Err(_) if self.entry(index)? != Some(entry) => {}
                outcome => return outcome.map(Some),
            }
        }
    }

    /// The map log.
    pub(crate) fn log(&self) -> MapLog {
        self.state().log.clone()
    }

    /// The entry in the leaf on the device for a block with a log entry.
    ///
    /// # Errors
    /// As [`Map::node`]; if there is no such leaf.
    pub(crate) fn before_log(&self, index: u64) -> Result<Option<Entry>> {
        let (leaf, slot) = leaf_of(index);
        let (parent, at) = above(leaf);
        let entry = self.node(parent)?.and_then(|parent| parent.get(at));
        let missing = || FormatError::corrupt(Structure::Map, "the leaf of a map log entry does not exist");
        Ok(self.read_node(leaf, &entry.ok_or_else(missing)?)?.get(slot))
    }

    /// Whether a leaf is on the device.
    ///
    /// # Errors
    /// As [`Map::node`].
    pub(crate) fn has_leaf(&self, leaf: NodeName) -> Result<bool> {
        let (parent, at) = above(leaf);
        Ok(self.node(parent)?.is_some_and(|parent| parent.get(at).is_some()))
    }

    /// Installs the entries of a generation that changes nothing else of the map.
    pub(crate) fn install_log(&self, entries: &[(u64, Option<Entry>)]) {
        let mut state = self.state();
        state.version += 1;
        for (index, entry) in entries {
            state.log.insert(*index, *entry);
            let (leaf, slot) = leaf_of(*index);
            if let Some(node) = state.nodes.get_mut(&leaf) {
                Arc::make_mut(node).set(slot, *entry);
            }
        }
    }

    /// Installs the nodes of a generation, including all leaves with entries in the map log.
    pub(crate) fn install(&self, root: Entry, nodes: impl IntoIterator<Item = (NodeName, Node)>) {
        let mut state = self.state();
        state.root = Some(root);
        state.version += 1;
        state.log.clear();
        state.nodes.extend(nodes.into_iter().map(|(name, node)| (name, Arc::new(node))));
    }

    /// Removes nodes from the cache if there are too many: all that were installed are on the device.
    pub(crate) fn shrink_cache(&self) {
        let mut state = self.state();
        if state.nodes.len() > CACHED {
            state.nodes.clear();
        }
    }
}
