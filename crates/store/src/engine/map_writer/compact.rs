//! Compaction: returns chunks that the regions do not need any more.
//!
//! A chunk can be returned when it is empty, so the blocks that remain in the emptiest one are moved: they are written
//! again unchanged, and get other physical blocks like every block that is written. One chunk at a time, some of its
//! blocks with each generation.

use super::MapWriter;
use super::build::Change;
use crate::native::NodeName;
use crate::{Compaction, Kind, PlannedWrite, Result};
use format::native::CHUNK_BLOCKS;
use format::native::map::{BlockKind, ENTRIES, Entry};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The maximum number of blocks that move with one generation.
const MOST: usize = 128;
/// With more physical blocks in use than this they are not searched for those of one chunk: 16 GiB of metadata.
const TOO_MANY: usize = 1 << 22;

/// The blocks and nodes in a chunk.
#[derive(Default)]
struct Residents {
    blocks: Vec<(u64, Entry)>,
    nodes: Vec<NodeName>,
}

impl MapWriter {
    /// As [`MapWriter::build`], and also moves blocks out of a chunk that could be returned.
    pub(super) fn build_compactly(
        &mut self,
        compaction: Compaction,
        mut changes: BTreeMap<u64, Change>,
        writes: &mut Vec<PlannedWrite>,
    ) -> Result<bool> {
        let chunk = self
            .chunk_table
            .emptiest(self.needs().physical_blocks_to_leave(compaction))
            .filter(|_| self.chunk_table.used() <= TOO_MANY);
        let Some(chunk) = chunk else {
            self.is_compact |= compaction == Compaction::Full;
            return self.build(changes, &[], writes);
        };
        let Residents { blocks, nodes } = self.residents(chunk)?;
        // nothing moves if all blocks of the chunk move already, or if those in use cannot be found
        self.is_compact = blocks.is_empty() && nodes.is_empty() && !self.chunk_table.is_empty(chunk);
        for (index, entry) in blocks {
            if changes.contains_key(&index) {
                continue;
            }
            if let Some(data) = self.map.block(index)? {
                let (kind, owner) = (entry.kind, entry.owner);
                changes.insert(index, Change::Write { kind, owner, data: Arc::from(data), tag: Kind::Engine });
            }
        }
        self.chunk_table.close_chunk(chunk, true);
        let built = self.build(changes, &nodes, writes);
        self.chunk_table.close_chunk(chunk, false);
        built
    }

    /// Blocks and nodes of the live map in a chunk, [`MOST`] at most.
    fn residents(&self, chunk: u32) -> Result<Residents> {
        let mut found = Residents::default();
        let inside = |entry: &Entry| entry.physical / u64::from(CHUNK_BLOCKS) == u64::from(chunk);
        if self.map.root().is_some_and(|root| inside(&root)) {
            found.nodes.push(self.map.top());
        }
        let mut above = vec![self.map.top()];
        while let Some((level, number)) = above.pop() {
            let Some(node) = self.map.node((level, number))? else { continue };
            for (slot, entry) in node.present() {
                let below = number * ENTRIES as u64 + slot as u64;
                match entry.kind {
                    BlockKind::MapNode => {
                        let name = (level.saturating_sub(1), below);
                        if inside(&entry) {
                            found.nodes.push(name);
                        }
                        above.push(name);
                    }
                    _ if inside(&entry) => found.blocks.push((below, entry)),
                    _ => {}
                }
            }
            if found.nodes.len() + found.blocks.len() >= MOST {
                break;
            }
        }
        found.blocks.truncate(MOST);
        Ok(found)
    }
}
