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

use crate::alloc::Reservation;
use crate::delayed::Delayed;
use crate::{Inode, InodeNo, Result, Volume};
use format::ByNumber;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
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
    /// The newest generation in which anything of it changed, and be it a time only.
    touched: AtomicU64,
    /// Of a plain directory, where to look for room for a name: the block times 2^16, and the start of an entry in it.
    room: AtomicU64,
    /// Its inode was freed, and the next one of that number has another node.
    gone: AtomicBool,
}

/// What of an inode is only in memory.
#[derive(Default)]
pub(crate) struct NodeState {
    /// Content that has no place on the device yet.
    pub(crate) delayed: Delayed,
    /// The blocks it was promised.
    pub(crate) promise: Option<Reservation>,
    /// The file's size, where delayed content makes it larger than the inode says.
    pub(crate) size: Option<u64>,
    /// Blocks of the file that are known to have no place.
    pub(crate) hole: Option<Range<u64>>,
    /// Content was lost since somebody last asked for it to be durable: the map was damaged.
    pub(crate) lost: bool,
    /// How much of `delayed` the volume's total has counted.
    counted: usize,
}

impl NodeState {
    /// The file's size.
    pub(crate) fn size_of(&self, inode: &Inode) -> u64 {
        self.size.unwrap_or(inode.size)
    }

    /// Forgets what has no place yet, and what is known of the map.
    pub(crate) fn drop_delayed(&mut self) {
        *self = Self { counted: self.counted, lost: self.lost, ..Self::default() };
    }
}

impl Node {
    fn new() -> Self {
        // what happened before the node existed is not known, so it counts as changed just now
        let (changed, touched) = (AtomicU64::new(u64::MAX), AtomicU64::new(u64::MAX));
        Self {
            state: RwLock::default(),
            holds: AtomicU64::new(0),
            changed,
            touched,
            room: AtomicU64::new(0),
            gone: AtomicBool::new(false),
        }
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
        self.touched.store(generation, Ordering::Release);
    }

    /// The last change was one of times only: what counts for the content is as `before`.
    pub(crate) fn only_times(&self, before: u64) {
        self.changed.store(before, Ordering::Release);
    }

    /// What was not known of changes up to a generation does not matter any more: that generation is durable.
    pub(crate) fn settle(&self, generation: u64) {
        for newest in [&self.changed, &self.touched] {
            // where it fails, a change is known
            let _ = newest.compare_exchange(u64::MAX, generation, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// The newest generation in which it changed; the largest number where that is not known.
    pub(crate) fn changed(&self) -> u64 {
        self.changed.load(Ordering::Acquire)
    }

    /// As [`Node::changed`], with changes of times.
    pub(crate) fn touched(&self) -> u64 {
        self.touched.load(Ordering::Acquire)
    }

    /// Where to look for room for a name: a block, and the start of an entry in it.
    pub(crate) fn room_hint(&self) -> (u64, usize) {
        let room = self.room.load(Ordering::Relaxed);
        (room >> 16, (room & 0xFFFF) as usize)
    }

    /// Whoever changes where entries start sets it anew.
    pub(crate) fn set_room_hint(&self, block: u64, entry: usize) {
        self.room.store(block << 16 | (entry as u64 & 0xFFFF), Ordering::Relaxed);
    }

    fn is_idle(&self) -> bool {
        !self.is_held() && self.state.try_read().is_ok_and(|state| state.delayed.is_empty() && !state.lost)
    }
}

type Shard = Mutex<Map>;
type Map = HashMap<InodeNo, Arc<Node>, ByNumber>;

/// All nodes of a volume.
pub(crate) struct Nodes {
    shards: Box<[Shard]>,
    /// Held by a rename between directories, so that what is above what does not change meanwhile.
    rename: Mutex<()>,
    /// Held while the users of an attribute inode are counted, which belongs to several files. Nothing is locked under it.
    values: Mutex<()>,
    /// Bytes of delayed content of all of them.
    delayed: AtomicUsize,
}

/// Nodes that are locked alone, by the number of their inode.
pub(crate) struct Locked<'a>(Vec<(InodeNo, RwLockWriteGuard<'a, NodeState>)>);

impl Locked<'_> {
    /// What of an inode is only in memory; `None` for one that is not among those locked.
    pub(crate) fn state(&mut self, number: InodeNo) -> Option<&mut NodeState> {
        self.0.iter_mut().find(|(n, _)| *n == number).map(|(_, state)| &mut **state)
    }
}

impl Nodes {
    pub(crate) fn new() -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        Self { shards, rename: Mutex::default(), values: Mutex::default(), delayed: AtomicUsize::new(0) }
    }

    fn shard(&self, number: InodeNo) -> MutexGuard<'_, Map> {
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
        if let Some(node) = self.shard(number).remove(&number) {
            node.gone.store(true, Ordering::Release);
        }
    }

    /// Counts what of a node is delayed now, and gives the total.
    pub(crate) fn count_delayed(&self, state: &mut NodeState) -> usize {
        let now = state.delayed.bytes();
        let before = std::mem::replace(&mut state.counted, now);
        if now >= before {
            self.delayed.fetch_add(now - before, Ordering::Relaxed) + (now - before)
        } else {
            self.delayed.fetch_sub(before - now, Ordering::Relaxed) - (before - now)
        }
    }

    /// How many bytes of content are in memory only.
    pub(crate) fn delayed(&self) -> usize {
        self.delayed.load(Ordering::Relaxed)
    }

    /// Whatever of inodes is in memory only is thrown away. Who holds which inode stays.
    pub(crate) fn undo(&self) {
        for shard in &self.shards {
            for node in shard.lock().unwrap_or_else(PoisonError::into_inner).values() {
                let mut state = node.write();
                state.drop_delayed();
                self.count_delayed(&mut state);
                node.set_room_hint(0, 0);
            }
        }
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

    /// Runs `work` with these nodes locked alone. They are locked in the order given (see the rules above); a number that
    /// stands twice counts once.
    pub(crate) fn locked<R>(&self, numbers: &[InodeNo], work: impl FnOnce(&mut Locked<'_>) -> Result<R>) -> Result<R> {
        if let [number] = *numbers {
            loop {
                let node = self.node(number);
                let state = node.write();
                if !node.gone.load(Ordering::Acquire) {
                    return work(&mut Locked(vec![(number, state)]));
                }
            }
        }
        let mut once: Vec<InodeNo> = Vec::with_capacity(numbers.len());
        numbers.iter().for_each(|number| {
            if !once.contains(number) {
                once.push(*number);
            }
        });
        loop {
            let nodes: Vec<_> = once.iter().map(|&number| (number, self.node(number))).collect();
            let mut locked = Locked(nodes.iter().map(|(number, node)| (*number, node.write())).collect());
            // an inode that was freed while we waited has another node now
            if nodes.iter().all(|(_, node)| !node.gone.load(Ordering::Acquire)) {
                return work(&mut locked);
            }
        }
    }

    /// The lock that a rename between directories holds.
    pub(crate) fn rename_lock(&self) -> MutexGuard<'_, ()> {
        self.nodes.rename.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lock for the users of attribute inodes.
    pub(crate) fn values_lock(&self) -> MutexGuard<'_, ()> {
        self.nodes.values.lock().unwrap_or_else(PoisonError::into_inner)
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
