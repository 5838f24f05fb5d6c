//! Inodes in use: their locks, who holds them, and what of them is only in memory.
//!
//! The truth about an inode is its slot in the inode table, in the store's cache. A [`Node`] is what goes with it while it
//! is worked on.
//!
//! Locks are taken in this order, and an operation of the store begins after all of them:
//! 1. the volume's rename lock, by a rename between directories;
//! 2. directories, a parent before its child; of two that are not above each other the lower number first;
//! 3. other inodes, the lower number first.
//!
//! Reading takes a node's lock shared, changing takes it alone.

use crate::delayed::Delayed;
use crate::{InodeNo, Volume};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

const SHARDS: usize = 64;
/// Nodes a shard keeps that nobody needs, before it looks which these are.
const IDLE_KEPT: usize = 256;

/// An inode in use.
pub(crate) struct Node {
    state: RwLock<NodeState>,
    /// How often it is held from outside; while it is, it is not freed, even when its last name is gone.
    holds: AtomicU64,
    /// The newest generation in which its inode, map or content changed.
    changed: AtomicU64,
}

/// What of an inode is only in memory.
#[derive(Default)]
pub(crate) struct NodeState {
    /// Content that has no place on the device yet.
    pub(crate) delayed: Delayed,
}

impl Node {
    fn new() -> Self {
        // what happened before the node existed is not known, so it counts as changed just now
        let changed = AtomicU64::new(u64::MAX);
        Self { state: RwLock::default(), holds: AtomicU64::new(0), changed }
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, NodeState> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, NodeState> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_held(&self) -> bool {
        self.holds.load(Ordering::Acquire) > 0
    }

    pub(crate) fn note_change(&self, generation: u64) {
        self.changed.store(generation, Ordering::Release);
    }

    /// The newest generation in which it changed; the largest number where that is not known.
    pub(crate) fn changed(&self) -> u64 {
        self.changed.load(Ordering::Acquire)
    }

    fn is_idle(&self) -> bool {
        !self.is_held() && self.state.try_read().is_ok_and(|state| state.delayed.is_empty())
    }
}

/// All nodes of a volume.
pub(crate) struct Nodes {
    shards: Box<[Mutex<HashMap<InodeNo, Arc<Node>>>]>,
}

impl Nodes {
    pub(crate) fn new() -> Self {
        Self { shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }

    fn shard(&self, number: InodeNo) -> MutexGuard<'_, HashMap<InodeNo, Arc<Node>>> {
        self.shards[number.get() as usize % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The node of an inode.
    pub(crate) fn get(&self, number: InodeNo) -> Arc<Node> {
        let mut shard = self.shard(number);
        if let Some(node) = shard.get(&number) {
            return Arc::clone(node);
        }
        if shard.len() >= IDLE_KEPT && shard.len().is_power_of_two() {
            shard.retain(|_, node| Arc::strong_count(node) > 1 || !node.is_idle());
        }
        Arc::clone(shard.entry(number).or_insert_with(|| Arc::new(Node::new())))
    }

    /// The inode was freed: what was known of it is of no use to the next inode of that number.
    pub(crate) fn forget(&self, number: InodeNo) {
        self.shard(number).remove(&number);
    }

    /// All inodes that have content in memory only.
    pub(crate) fn with_delayed(&self) -> Vec<(InodeNo, Arc<Node>)> {
        let all = self.shards.iter().flat_map(|shard| {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.iter().map(|(number, node)| (*number, Arc::clone(node))).collect::<Vec<_>>()
        });
        let mut found: Vec<_> = all.filter(|(_, node)| !node.read().delayed.is_empty()).collect();
        found.sort_unstable_by_key(|(number, _)| *number);
        found
    }
}

impl Volume {
    pub(crate) fn node(&self, number: InodeNo) -> Arc<Node> {
        self.nodes.get(number)
    }

    /// Holds an inode: it stays, with its content, until it is released as often as it was held, even when its last name
    /// is removed meanwhile.
    pub fn hold(&self, number: InodeNo) {
        self.node(number).holds.fetch_add(1, Ordering::AcqRel);
    }

    /// Takes `times` holds off a node and says whether none is left.
    pub(crate) fn unhold(&self, number: InodeNo, times: u64) -> bool {
        let node = self.node(number);
        let before = node.holds.fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| Some(n.saturating_sub(times)));
        before.is_ok_and(|n| n > 0 && n <= times)
    }
}
