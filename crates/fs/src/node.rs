//! Inodes in use: their locks, their lookup counts, and their state that is only in memory.
//!
//! The authoritative state of an inode is its slot in the inode table, in the store's cache. A [`Node`] is the
//! additional state while it is in use.
//!
//! Locks are taken in this order, and an operation of the store begins after all of them:
//! 1. the volume's rename lock, by a rename between directories;
//! 2. directories, a parent before its child; of two of which neither is an ancestor of the other, the lower number
//!    first;
//! 3. other inodes, the lower number first.
//!
//! Readers take a node's lock shared, writers take it exclusively.
//!
//! An inode with a lookup count only costs a number and a count: there may be millions of them. Nodes are for inodes in
//! use; a bounded number of idle nodes is cached.

use crate::alloc::Reservation;
use crate::delayed::Delayed;
use crate::rewritten::Rewritten;
use crate::{Inode, InodeNo};
use format::ByNumber;
use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

const SHARDS: usize = 64;
/// Number of nodes in a shard above which idle ones are dropped.
const IDLE_CACHED: usize = 256;

/// An inode in use.
pub(crate) struct Node {
    state: RwLock<NodeState>,
    /// The newest generation in which its inode, map or content changed.
    datasync_generation: AtomicU64,
    /// The newest generation in which anything of it changed, including times only.
    sync_generation: AtomicU64,
    /// For a plain directory, the hint for finding space for a name: the block times 2^16, plus the start of an entry
    /// in it.
    space_hint: AtomicU64,
    /// For a directory: whether names were added or removed since its list was last queried.
    renamed: AtomicBool,
    /// Whether its inode was freed; the next one with that number has a different node.
    gone: AtomicBool,
    /// Whether it was used since idle nodes were last dropped.
    used: AtomicBool,
}

/// The state of an inode that is only in memory.
#[derive(Default)]
pub(crate) struct NodeState {
    /// Delayed data.
    pub(crate) delayed: Delayed,
    /// The blocks reserved for it.
    pub(crate) reservation: Option<Reservation>,
    /// The file's size, if delayed data makes it larger than the size in the inode.
    pub(crate) size: Option<u64>,
    /// Blocks of the file that are known to be unallocated.
    pub(crate) hole: Option<Range<u64>>,
    /// Whether content was lost since a caller last requested durability, because the map was damaged.
    pub(crate) lost: bool,
    /// The size that callers which looked the file up may still assume: the one before a rollback, which changed it.
    pub(crate) assumed: Option<u64>,
    /// The memory of `delayed` in bytes included in the volume's total.
    counted: usize,
}

impl NodeState {
    /// The file's size.
    pub(crate) fn size_of(&self, inode: &Inode) -> u64 {
        self.size.unwrap_or(inode.size)
    }

    /// Drops delayed data, and cached knowledge of the map.
    pub(crate) fn drop_delayed(&mut self) {
        *self = Self { counted: self.counted, lost: self.lost, assumed: self.assumed, ..Self::default() };
    }
}

impl Node {
    /// The node of an inode that did not change in any generation later than `generation`.
    fn new(generation: u64) -> Self {
        Self {
            state: RwLock::default(),
            datasync_generation: AtomicU64::new(generation),
            sync_generation: AtomicU64::new(generation),
            space_hint: AtomicU64::new(0),
            renamed: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            used: AtomicBool::new(true),
        }
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, NodeState> {
        self.state.read()
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, NodeState> {
        self.state.write()
    }

    /// Whether its inode has been freed.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    pub(crate) fn record_change(&self, generation: u64) {
        self.datasync_generation.store(generation, Ordering::Release);
        self.sync_generation.store(generation, Ordering::Release);
    }

    /// Records that the last change was one of times only: the generation of content is `before` again.
    pub(crate) fn only_times(&self, before: u64) {
        self.datasync_generation.store(before, Ordering::Release);
    }

    /// Replaces unknown generations of change by this one, which is durable, so that the exact number no longer
    /// matters.
    pub(crate) fn set_synced(&self, generation: u64) {
        for newest in [&self.datasync_generation, &self.sync_generation] {
            // on failure, the generation is known
            let _ = newest.compare_exchange(u64::MAX, generation, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// The newest generation in which it changed; the largest number if that is unknown.
    pub(crate) fn datasync_generation(&self) -> u64 {
        self.datasync_generation.load(Ordering::Acquire)
    }

    /// As [`Node::datasync_generation`], including changes of times.
    pub(crate) fn sync_generation(&self) -> u64 {
        self.sync_generation.load(Ordering::Acquire)
    }

    /// The hint for finding space for a name: a block, and the start of an entry in it.
    pub(crate) fn space_hint(&self) -> (u64, usize) {
        let hint = self.space_hint.load(Ordering::Relaxed);
        (hint >> 16, (hint & 0xFFFF) as usize)
    }

    /// Sets the hint; called by code that changes the starts of entries.
    pub(crate) fn set_space_hint(&self, block: u64, entry: usize) {
        self.space_hint.store(block << 16 | (entry as u64 & 0xFFFF), Ordering::Relaxed);
    }

    /// Records that a directory's names have changed.
    pub(crate) fn record_names(&self) {
        self.renamed.store(true, Ordering::Relaxed);
    }

    /// Whether names were added or removed since the last call.
    pub(crate) fn names_changed(&self) -> bool {
        self.renamed.swap(false, Ordering::Relaxed)
    }

    fn is_idle(&self) -> bool {
        self.state.try_read().is_some_and(|state| state.delayed.is_empty() && !state.lost)
    }

    /// Whether callers which looked it up may assume another size than it has; `true` if that cannot be determined now.
    fn is_assumed(&self) -> bool {
        self.state.try_read().is_none_or(|state| state.assumed.is_some())
    }
}

/// Nodes and lookup counts, by the low bits of the numbers.
struct Shard {
    nodes: HashMap<InodeNo, Arc<Node>, ByNumber>,
    /// The lookup count of each inode that has one; such an inode is not freed, even after its last name was removed. A
    /// count that reaches the maximum stays there, and the inode is never forgotten.
    lookup_counts: HashMap<InodeNo, u32, ByNumber>,
    /// The number of nodes above which idle ones are dropped.
    most: usize,
}

impl Shard {
    fn new() -> Self {
        Self { nodes: HashMap::default(), lookup_counts: HashMap::default(), most: IDLE_CACHED }
    }

    /// Drops idle nodes: first those not used since the last call, and if too many are left, also those that were.
    /// Directories with a space hint are dropped later. Their generations of change are lost: `newest` is raised to at
    /// least these.
    fn drop_idle(&mut self, newest: &AtomicU64) {
        for mercy in [2, 1, 0] {
            let mut spared = 0;
            self.nodes.retain(|number, node| {
                let used = node.used.swap(false, Ordering::Relaxed);
                // an assumed size is stored nowhere else
                let assumed = || self.lookup_counts.contains_key(number) && node.is_assumed();
                if Arc::strong_count(node) > 1 || !node.is_idle() || assumed() {
                    return true;
                }
                let has_hint = node.space_hint.load(Ordering::Relaxed) != 0;
                let stays = (mercy == 2 && used) || (mercy > 0 && has_hint);
                if stays {
                    spared += 1;
                } else {
                    newest.fetch_max(node.sync_generation().max(node.datasync_generation()), Ordering::AcqRel);
                }
                stays
            });
            if spared <= IDLE_CACHED / 2 {
                break;
            }
        }
        self.most = (2 * self.nodes.len()).max(IDLE_CACHED);
        self.nodes.shrink_to(self.most);
    }

    fn drop_lookups(&mut self, number: InodeNo, times: u64) -> bool {
        let Some(count) = self.lookup_counts.get_mut(&number).filter(|count| **count < u32::MAX) else { return false };
        if let Some(left) = u64::from(*count).checked_sub(times).filter(|left| *left > 0) {
            *count = left as u32;
            return false;
        }
        self.lookup_counts.remove(&number);
        if self.lookup_counts.len() < self.lookup_counts.capacity() / 8 {
            self.lookup_counts.shrink_to(2 * self.lookup_counts.len());
        }
        true
    }
}

/// All nodes of a volume.
pub(crate) struct Nodes {
    shards: Box<[Mutex<Shard>]>,
    /// Inodes without a node have not changed in a later generation than this.
    newest_dropped: AtomicU64,
    /// The next shard to search for inodes that only have a lookup count.
    next_looked_up: AtomicUsize,
    /// Bytes of delayed data of all of them.
    delayed: AtomicUsize,
    /// Files that were truncated to nothing.
    pub(crate) rewritten: Rewritten,
}

/// Nodes locked exclusively, by the number of their inode.
pub(crate) struct Locked<'a>(pub(crate) Vec<(InodeNo, RwLockWriteGuard<'a, NodeState>)>);

impl Locked<'_> {
    /// The in-memory state of an inode; `None` if it is not among those locked.
    pub(crate) fn state(&mut self, number: InodeNo) -> Option<&mut NodeState> {
        self.0.iter_mut().find(|(n, _)| *n == number).map(|(_, state)| &mut **state)
    }
}

impl Nodes {
    pub(crate) fn new() -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::new(Shard::new())).collect();
        Self {
            shards,
            newest_dropped: AtomicU64::new(0),
            next_looked_up: AtomicUsize::new(0),
            delayed: AtomicUsize::new(0),
            rewritten: Rewritten::default(),
        }
    }

    fn shard(&self, number: InodeNo) -> MutexGuard<'_, Shard> {
        self.shards[number.get() as usize % SHARDS].lock()
    }

    /// The node of an inode.
    pub(crate) fn get(&self, number: InodeNo) -> Arc<Node> {
        let mut shard = self.shard(number);
        if let Some(node) = shard.nodes.get(&number) {
            node.used.store(true, Ordering::Relaxed);
            return Arc::clone(node);
        }
        if shard.nodes.len() >= shard.most {
            shard.drop_idle(&self.newest_dropped);
        }
        let newest = &self.newest_dropped;
        Arc::clone(shard.nodes.entry(number).or_insert_with(|| Arc::new(Node::new(newest.load(Ordering::Acquire)))))
    }

    /// Drops nodes that were idle for a while, if there are many.
    pub(crate) fn drop_idle(&self) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            if shard.nodes.len() > IDLE_CACHED / 2 {
                shard.drop_idle(&self.newest_dropped);
            } else {
                shard.nodes.values().for_each(|node| node.used.store(false, Ordering::Relaxed));
            }
        }
    }

    pub(crate) fn add_lookup(&self, number: InodeNo) {
        let mut shard = self.shard(number);
        let count = shard.lookup_counts.entry(number).or_default();
        *count = count.saturating_add(1);
    }

    /// Subtracts `times` from the lookup count of an inode and returns whether it is 0.
    pub(crate) fn drop_lookups(&self, number: InodeNo, times: u64) -> bool {
        self.shard(number).drop_lookups(number, times)
    }

    /// Whether an inode has a lookup count.
    pub(crate) fn is_looked_up(&self, number: InodeNo) -> bool {
        self.shard(number).lookup_counts.contains_key(&number)
    }

    /// The number of inodes with a lookup count.
    pub(crate) fn looked_up(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().lookup_counts.len()).sum()
    }

    /// Inodes that have a lookup count and were not used recently, `most` or a few more. The next call continues where
    /// this one ended.
    pub(crate) fn only_looked_up(&self, most: usize) -> Vec<InodeNo> {
        let mut found = Vec::new();
        for _ in 0..SHARDS {
            if found.len() >= most {
                break;
            }
            let next = self.next_looked_up.fetch_add(1, Ordering::Relaxed) % SHARDS;
            let shard = self.shards[next].lock();
            let in_use =
                |node: &Arc<Node>| node.used.load(Ordering::Relaxed) || Arc::strong_count(node) > 1 || !node.is_idle();
            found.extend(shard.lookup_counts.keys().filter(|number| !shard.nodes.get(number).is_some_and(in_use)));
        }
        found
    }

    /// Removes the node of a freed inode: it does not apply to the next inode with that number.
    pub(crate) fn remove(&self, number: InodeNo) {
        let node = self.shard(number).nodes.remove(&number);
        self.rewritten.forget(number);
        if let Some(node) = node {
            node.gone.store(true, Ordering::Release);
        }
    }

    /// Updates the count of a node's delayed data, and returns the total.
    pub(crate) fn count_delayed(&self, state: &mut NodeState) -> usize {
        let now = state.delayed.memory();
        let before = std::mem::replace(&mut state.counted, now);
        if now >= before {
            self.delayed.fetch_add(now - before, Ordering::Relaxed) + (now - before)
        } else {
            self.delayed.fetch_sub(before - now, Ordering::Relaxed) - (before - now)
        }
    }

    /// The number of bytes of delayed data.
    pub(crate) fn delayed(&self) -> usize {
        self.delayed.load(Ordering::Relaxed)
    }

    /// Discards the state of inodes that is only in memory. Lookup counts stay.
    pub(crate) fn undo(&self) {
        for shard in &self.shards {
            for node in shard.lock().nodes.values() {
                let mut state = node.write();
                state.drop_delayed();
                self.count_delayed(&mut state);
                node.set_space_hint(0, 0);
            }
        }
    }

    /// All inodes with delayed data.
    pub(crate) fn with_delayed(&self) -> Vec<(InodeNo, Arc<Node>)> {
        let all = self.shards.iter().flat_map(|shard| {
            let shard = shard.lock();
            shard.nodes.iter().map(|(number, node)| (*number, Arc::clone(node))).collect::<Vec<_>>()
        });
        let mut found: Vec<_> = all.filter(|(_, node)| !node.read().delayed.is_empty()).collect();
        found.sort_unstable_by_key(|(number, _)| *number);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory_budget::LOOKED_UP_BYTES;

    fn nodes(nodes: &Nodes) -> usize {
        nodes.shards.iter().map(|shard| shard.lock().nodes.len()).sum()
    }

    #[test]
    fn an_inode_that_is_only_looked_up_has_no_node() {
        let all = Nodes::new();
        for number in (1..=100_000).map(InodeNo) {
            all.get(number).record_change(u64::from(number.get() / 1000) + 1);
            *all.shard(number).lookup_counts.entry(number).or_default() += 1;
        }
        assert!(nodes(&all) <= SHARDS * IDLE_CACHED, "{} nodes", nodes(&all));
        assert_eq!(all.looked_up(), 100_000);
        // an inode whose node was dropped is assumed to have changed in the latest generation of those
        let newest = all.get(InodeNo(1)).datasync_generation();
        assert!((1..=101).contains(&newest), "{newest}");
        for _ in 0..2 {
            all.drop_idle();
        }
        assert!(nodes(&all) <= SHARDS * IDLE_CACHED / 2, "{} nodes", nodes(&all));
        let bytes: usize = all
            .shards
            .iter()
            .map(|shard| shard.lock().lookup_counts.capacity() * 8 / 7 * (size_of::<(InodeNo, u32)>() + 1))
            .sum();
        assert!(bytes <= 100_000 * LOOKED_UP_BYTES, "{bytes} bytes");
        let found = all.only_looked_up(1000);
        assert!((1000..5000).contains(&found.len()), "{}", found.len());
        // after all are forgotten, nothing is left
        (1..=100_000).map(InodeNo).for_each(|number| assert!(all.shard(number).drop_lookups(number, 1)));
        assert_eq!(all.looked_up(), 0);
        let places: usize = all.shards.iter().map(|shard| shard.lock().lookup_counts.capacity()).sum();
        assert!(places <= SHARDS * 16, "{places} places");
    }

    #[test]
    fn nodes_with_content_stay() {
        let all = Nodes::new();
        for number in (1..=20_000).map(InodeNo) {
            all.get(number).write().delayed.add(16, 0, 0, b"content");
        }
        assert_eq!(nodes(&all), 20_000);
        assert_eq!(all.with_delayed().len(), 20_000);
    }

    #[test]
    fn lookups_are_counted() {
        let all = Nodes::new();
        let number = InodeNo(77);
        *all.shard(number).lookup_counts.entry(number).or_default() = 3;
        assert!(!all.shard(number).drop_lookups(number, 2) && all.is_looked_up(number));
        assert!(all.shard(number).drop_lookups(number, 5) && !all.is_looked_up(number));
        assert!(!all.shard(number).drop_lookups(number, 1), "it was not looked up");
        // more than can be counted: the count stays at the maximum
        *all.shard(number).lookup_counts.entry(number).or_default() = u32::MAX;
        assert!(!all.shard(number).drop_lookups(number, 1) && all.is_looked_up(number));
    }
}
