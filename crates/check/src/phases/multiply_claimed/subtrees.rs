//! The blocks beneath shared nodes of block maps.
//!
//! The scan follows a node once, for the inode that claimed it first, so no second claim is recorded for the blocks
//! beneath it, although all inodes with this node share them. The nodes beneath shared ones are read once more, each of
//! them once, and their blocks counted: linear in the nodes, however many inodes share one.

use super::Sharing;
use crate::context::Context;
use crate::phases::inodes::block_maps::Trees;
use crate::phases::inodes::file_totals::Tally;
use crate::scan::found::{Found, Node, NodeKind};
use crate::scan::log::ScanLog;
use crate::scan::regions::claiming_fields;
use crate::scan::walk::Claimer;
use crate::scan::{Item, Scanner};
use format::InodeNo;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// A reference to a node: block, kind and inode.
type Reference = (u64, NodeKind, InodeNo);

/// A number of clusters.
#[derive(Debug, Clone, Copy, Default)]
struct Clusters {
    all: u64,
    /// Those that were claimed once.
    once: u64,
}

/// A shared node, as its first owner claimed it.
struct Shared {
    node: Node,
    /// The clusters beneath it, without those beneath other shared nodes.
    clusters: Clusters,
    /// The shared nodes beneath it, each with its block.
    beneath: BTreeSet<u64>,
}

/// The results of reading one node.
struct NodeRead {
    node: Node,
    /// The block of the shared node above it, or its own.
    top: u64,
    clusters: Clusters,
    children: Vec<Node>,
}

/// Counts the clusters of a node.
struct Counter<'a> {
    sharing: &'a Sharing,
    clusters: Mutex<Clusters>,
}

impl Claimer for Counter<'_> {
    fn claim(&self, _inode: InodeNo, clusters: Range<u64>) -> bool {
        let len = clusters.end.saturating_sub(clusters.start);
        let again = self.sharing.clusters_among(clusters);
        let mut counted = self.clusters.lock();
        counted.all = counted.all.saturating_add(len);
        counted.once = counted.once.saturating_add(len.saturating_sub(again));
        true
    }

    fn is_checking(&self) -> bool {
        false
    }
}

/// The number of clusters that each inode shares beneath shared nodes, without the multiply-claimed ones that it
/// claimed itself.
pub(super) fn count(
    ctx: &Context<'_>,
    scanner: &Scanner<'_>,
    log: &ScanLog,
    sharing: &Sharing,
) -> BTreeMap<InodeNo, u64> {
    let (repeated, mut shared) = shared_nodes(log);
    let mut level: Vec<(Node, u64)> = shared.values().map(|top| (top.node, top.node.block)).collect();
    let mut seen: BTreeSet<u64> = shared.keys().copied().collect();
    while !level.is_empty() && !(scanner.cancelled)() {
        level.sort_unstable();
        let mut next = Vec::new();
        for NodeRead { node, top, clusters, children } in read(ctx, scanner, sharing, &level) {
            let Some(entry) = shared.get_mut(&top) else { continue };
            entry.clusters.all = entry.clusters.all.saturating_add(clusters.all);
            entry.clusters.once = entry.clusters.once.saturating_add(clusters.once);
            for child in children {
                let other = shared.get(&child.block).map(|other| depth(&other.node));
                if other.is_some_and(|other| other < depth(&node)) {
                    if let Some(entry) = shared.get_mut(&top) {
                        entry.beneath.insert(child.block);
                    }
                } else if !repeated.contains(&reference(&child)) && seen.insert(child.block) {
                    next.push((child, top));
                }
            }
        }
        level = next;
    }
    of_inodes(&repeated, &shared)
}

/// The nodes that were not followed because they had an owner, and the same nodes of their first owners, by block.
fn shared_nodes(log: &ScanLog) -> (BTreeSet<Reference>, BTreeMap<u64, Shared>) {
    let rounds = log.rounds.lock();
    let repeated: BTreeSet<Reference> = rounds.iter().flat_map(|planned| &planned.repeated).map(reference).collect();
    let blocks: BTreeSet<(u64, NodeKind)> = repeated.iter().map(|(block, kind, _)| (*block, *kind)).collect();
    let nodes = rounds.iter().flat_map(|planned| &planned.nodes).filter(|node| !node.is_growth_copy());
    let nodes = nodes.filter(|node| blocks.contains(&(node.block, node.kind)));
    let shared = |node: &Node| Shared { node: *node, clusters: Clusters::default(), beneath: BTreeSet::new() };
    let shared = nodes.map(|node| (node.block, shared(node))).collect();
    (repeated, shared)
}

/// Reads nodes, each with the block of the shared node above it, in ascending order.
fn read(ctx: &Context<'_>, scanner: &Scanner<'_>, sharing: &Sharing, nodes: &[(Node, u64)]) -> Vec<NodeRead> {
    let len = ctx.volume.geometry.block_size;
    let item =
        |&(node, top): &(Node, u64)| Some(Item { offset: ctx.volume.offset(node.block)?, len, tag: (node, top) });
    let items: Vec<Item<(Node, u64)>> = nodes.iter().filter_map(item).collect();
    let results = Mutex::new(Vec::new());
    scanner.read_ascending(&items, |item, bytes| {
        let Ok(bytes) = bytes else { return };
        let (node, top) = item.tag;
        let counter = Counter { sharing, clusters: Mutex::default() };
        let fields = claiming_fields(node.inode, ctx.inodes.get(node.inode).and_then(|record| record.kind));
        let mut found = Found::default();
        let trees = Trees { ctx, claimer: &counter };
        trees.node(&fields, &node, bytes, &mut Tally::default(), &mut found);
        // passed on instead of claimed
        let runs = found.dir_runs.iter().map(|run| run.block..run.block.saturating_add(u64::from(run.len)));
        let blocks = found.links.iter().map(|link| link.block).chain(found.nodes.iter().map(|child| child.block));
        for blocks in runs.chain(blocks.map(|block| block..block.saturating_add(1))) {
            counter.claim(node.inode, ctx.claims.clusters_of(&blocks));
        }
        let clusters = counter.clusters.into_inner();
        results.lock().push(NodeRead { node, top, clusters, children: found.nodes });
    });
    let mut results = results.into_inner();
    results.sort_unstable_by_key(|read| read.node);
    results
}

/// Adds up the clusters by inode: of those beneath its own nodes the first owner has recorded claims where they are
/// conflicts, and the others have none.
fn of_inodes(repeated: &BTreeSet<Reference>, shared: &BTreeMap<u64, Shared>) -> BTreeMap<InodeNo, u64> {
    let mut ascending: Vec<&Shared> = shared.values().collect();
    ascending.sort_by_key(|top| (depth(&top.node), top.node.block));
    let mut totals: BTreeMap<u64, u64> = BTreeMap::new();
    for top in ascending {
        let beneath = top.beneath.iter().filter_map(|block| totals.get(block));
        let total = beneath.fold(top.clusters.all, |sum, more| sum.saturating_add(*more));
        totals.insert(top.node.block, total);
    }
    let firsts = shared.values().map(|top| (top.node.inode, top.clusters.once));
    // an inode that names one node several times shares the blocks beneath it once
    let others: BTreeSet<(u64, InodeNo)> = repeated.iter().map(|(block, _, inode)| (*block, *inode)).collect();
    let others = others.into_iter().filter_map(|(block, inode)| {
        let is_other = shared.get(&block)?.node.inode != inode;
        totals.get(&block).filter(|_| is_other).map(|total| (inode, *total))
    });
    let mut of_inodes: BTreeMap<InodeNo, u64> = BTreeMap::new();
    for (inode, clusters) in firsts.chain(others) {
        let sum = of_inodes.entry(inode).or_default();
        *sum = sum.saturating_add(clusters);
    }
    of_inodes
}

fn reference(node: &Node) -> Reference {
    (node.block, node.kind, node.inode)
}

/// The levels from a node down to the data.
fn depth(node: &Node) -> u16 {
    match node.kind {
        NodeKind::Extents(depth) => depth,
        NodeKind::Indirect(level) => level,
    }
}
