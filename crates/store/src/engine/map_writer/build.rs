//! A generation's new physical blocks, bottom up.

use super::{MapWriter, Overwrite};
use crate::mutant::Mutant;
use crate::native::{NodeName, above, first_below, leaf_of, node_over};
use crate::{Kind, PlannedWrite, Result};
use format::native::BLOCK_SIZE;
use format::native::map::{BlockKind, Entry, Node, Position};
use format::native::superblock::MAX_LOG_ENTRIES;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The change to a metadata block.
pub(in crate::engine) enum Change {
    /// The block gets this content.
    Write {
        /// Its kind, for its entry.
        kind: BlockKind,
        /// Its owner; 0 for the volume's own.
        owner: u32,
        /// Its content.
        data: Arc<[u8]>,
        /// Its kind, for the plan.
        tag: Kind,
    },
    /// The block is freed.
    Drop,
}

/// A changed node of the map.
struct Changed {
    node: Node,
    physical: u64,
}

/// A generation under construction.
#[derive(Default)]
struct Draft {
    /// Changed nodes, the highest level last.
    nodes: BTreeMap<NodeName, Changed>,
    /// The new physical block of each metadata block by index; `None` for a dropped block.
    physical: BTreeMap<u64, Option<u64>>,
}

impl MapWriter {
    /// Builds a generation from these changes, adds its writes, and makes the superblock describe it; `nodes` of the
    /// map move to other physical blocks in any case. `false` if nothing changes.
    pub(in crate::engine) fn build(
        &mut self,
        mut changes: BTreeMap<u64, Change>,
        nodes: &[NodeName],
        writes: &mut Vec<PlannedWrite>,
    ) -> Result<bool> {
        if changes.is_empty() && nodes.is_empty() {
            return Ok(false);
        }
        let mut draft = Draft::default();
        self.chunk_table.aim(changes.len() + changes.len() / 64 + 8);
        let leaves = if self.mutant.is(Mutant::SkipLogLeaves) { Vec::new() } else { self.log_leaves() };
        for leaf in leaves {
            self.relocate_nodes(&mut draft, first_below(leaf), 0)?;
        }
        for (index, change) in &changes {
            self.relocate_block(&mut draft, *index, matches!(change, Change::Write { .. }))?;
        }
        for &(level, number) in nodes {
            self.relocate_nodes(&mut draft, first_below((level, number)), level)?;
        }
        // each block of the table needs a physical block itself, whose allocation may change another block of the table
        while let Some(block) = self.chunk_table.next_dirty() {
            let index = self.map.layout.table().start + block;
            if !draft.physical.contains_key(&index) {
                let stays = self.chunk_table.has_table_block(block);
                self.relocate_block(&mut draft, index, stays)?;
                if !stays {
                    changes.insert(index, Change::Drop);
                    continue;
                }
                let data = Arc::from([]);
                changes.insert(index, Change::Write { kind: BlockKind::ChunkTable, owner: 0, data, tag: Kind::Engine });
            }
        }
        let generation = self.superblock.generation + 1;
        self.write_blocks(&mut draft, changes, generation, writes);
        let root = self.write_nodes(&mut draft, generation, writes);
        self.map.install(root, draft.nodes.into_iter().map(|(name, changed)| (name, changed.node)));
        self.superblock.root = root;
        self.superblock.generation = generation;
        self.superblock.chunks = self.chunk_table.records();
        self.superblock.map_log.clear();
        self.has_other_chunks = false;
        Ok(true)
    }

    /// The leaves that are older than their entries in the map log.
    pub(super) fn log_leaves(&self) -> Vec<NodeName> {
        let mut leaves: Vec<NodeName> = self.superblock.map_log.iter().map(|(index, _)| leaf_of(*index).0).collect();
        leaves.dedup();
        leaves
    }

    /// Whether the entries of these changes fit into the superblock: then neither the map nor the chunk table has to be
    /// written.
    pub(super) fn is_small(&self, changes: &BTreeMap<u64, Change>) -> Result<bool> {
        let log = &self.superblock.map_log;
        let more = changes.keys().filter(|index| log.binary_search_by_key(*index, |(logged, _)| *logged).is_err());
        if self.overwrite == Overwrite::Live || self.has_other_chunks || log.len() + more.count() > MAX_LOG_ENTRIES {
            return Ok(false);
        }
        for index in changes.keys() {
            if !self.map.has_leaf(leaf_of(*index).0)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// As [`MapWriter::build`], for changes that are [small](MapWriter::is_small).
    pub(super) fn build_small(
        &mut self,
        changes: BTreeMap<u64, Change>,
        writes: &mut Vec<PlannedWrite>,
    ) -> Result<bool> {
        if changes.is_empty() {
            return Ok(false);
        }
        self.chunk_table.aim(changes.len());
        let generation = self.superblock.generation + 1;
        let mut entries = Vec::with_capacity(changes.len());
        for (index, change) in changes {
            let old = self.map.entry(index)?.map(|entry| entry.physical);
            let physical = match &change {
                Change::Write { .. } => Some(self.relocate(old)?),
                Change::Drop => {
                    old.map_or(Ok(()), |old| self.chunk_table.defer(old))?;
                    None
                }
            };
            entries.push((index, self.write_block(index, change, physical, generation, writes)));
        }
        self.map.install_log(&entries);
        self.superblock.map_log = self.map.log().into_iter().collect();
        self.superblock.generation = generation;
        Ok(true)
    }

    /// A new physical block for an old one, or the same one if it may be overwritten.
    fn relocate(&mut self, old: Option<u64>) -> Result<u64> {
        if let Some(old) = old.filter(|old| self.overwrite == Overwrite::Live && !self.chunk_table.is_pinned(*old)) {
            return Ok(old);
        }
        let physical = self.chunk_table.allocate()?;
        old.map_or(Ok(()), |old| self.chunk_table.defer(old))?;
        Ok(physical)
    }

    /// Moves the nodes above an index, down to level `lowest`, to new physical blocks.
    fn relocate_nodes(&mut self, draft: &mut Draft, index: u64, lowest: u8) -> Result<()> {
        let (top, _) = self.map.top();
        for level in (lowest..=top).rev() {
            let name = node_over(index, level);
            if draft.nodes.contains_key(&name) {
                continue;
            }
            let old = if level == top {
                self.map.root()
            } else {
                let (parent, slot) = above(name);
                draft.nodes.get(&parent).and_then(|parent| parent.node.get(slot))
            };
            let node = match old {
                Some(_) => self.map.node(name)?.map(|node| (*node).clone()).unwrap_or_default(),
                None => Node::default(),
            };
            let physical = self.relocate(old.map(|entry| entry.physical))?;
            draft.nodes.insert(name, Changed { node, physical });
        }
        Ok(())
    }

    /// Moves a block (unless it is dropped: `stays` is `false`) and the nodes above it to new physical blocks.
    fn relocate_block(&mut self, draft: &mut Draft, index: u64, stays: bool) -> Result<()> {
        self.relocate_nodes(draft, index, 0)?;
        let (leaf, slot) = leaf_of(index);
        let old = draft.nodes.get(&leaf).and_then(|leaf| leaf.node.get(slot)).map(|entry| entry.physical);
        let physical = if stays {
            Some(self.relocate(old)?)
        } else {
            old.map_or(Ok(()), |old| self.chunk_table.defer(old))?;
            None
        };
        draft.physical.insert(index, physical);
        Ok(())
    }

    fn write_blocks(
        &self,
        draft: &mut Draft,
        changes: BTreeMap<u64, Change>,
        generation: u64,
        writes: &mut Vec<PlannedWrite>,
    ) {
        for (index, change) in changes {
            let physical = draft.physical.get(&index).copied().flatten();
            let entry = self.write_block(index, change, physical, generation, writes);
            let (leaf, slot) = leaf_of(index);
            if let Some(leaf) = draft.nodes.get_mut(&leaf) {
                leaf.node.set(slot, entry);
            }
        }
    }

    /// Writes a block to its new physical block, and returns its entry; `None` for one that is dropped.
    fn write_block(
        &self,
        index: u64,
        change: Change,
        physical: Option<u64>,
        generation: u64,
        writes: &mut Vec<PlannedWrite>,
    ) -> Option<Entry> {
        let (Change::Write { kind, owner, data, tag }, Some(physical)) = (change, physical) else { return None };
        let data = match kind {
            // all physical blocks are allocated only now
            BlockKind::ChunkTable => Arc::from(self.chunk_table.table_block(index - self.map.layout.table().start)),
            _ => data,
        };
        let checksum = Position::Block(index).checksum(self.map.seed, &data);
        writes.push(PlannedWrite { at: physical * u64::from(BLOCK_SIZE), data, kind: tag });
        Some(Entry { physical, generation, kind, owner, checksum })
    }

    /// Writes the changed nodes, and returns the entry of the topmost.
    fn write_nodes(&self, draft: &mut Draft, generation: u64, writes: &mut Vec<PlannedWrite>) -> Entry {
        let names: Vec<NodeName> = draft.nodes.keys().copied().collect();
        let mut root = self.superblock.root;
        for name in names {
            let Some(changed) = draft.nodes.get(&name) else { continue };
            let data: Arc<[u8]> = Arc::from(changed.node.to_bytes());
            let (level, number) = name;
            let checksum = Position::Node { level, number }.checksum(self.map.seed, &data);
            let physical = changed.physical;
            let entry = Entry { physical, generation, kind: BlockKind::MapNode, owner: 0, checksum };
            writes.push(PlannedWrite { at: physical * u64::from(BLOCK_SIZE), data, kind: Kind::Engine });
            let (parent, slot) = above(name);
            match draft.nodes.get_mut(&parent) {
                Some(parent) => parent.node.set(slot, Some(entry)),
                None => root = entry,
            }
        }
        root
    }
}
