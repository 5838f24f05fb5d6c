//! Inodes by number, with a small cache.

use crate::layers::stands_on;
use crate::node::{Locked, Node, Nodes};
use crate::{Error, Inode, InodeNo, Maps, Result, memory_budget};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The most recently used inodes: one slot for each value of the low bits of the number, so that neighbours in a table
/// do not evict each other.
pub(crate) struct InodeCache {
    places: Box<[Mutex<Option<Arc<Inode>>>]>,
}

impl InodeCache {
    /// A cache of this size.
    pub(crate) fn new(most: usize) -> Self {
        Self { places: (0..most.max(1)).map(|_| Mutex::new(None)).collect() }
    }

    fn place(&self, number: InodeNo) -> &Mutex<Option<Arc<Inode>>> {
        &self.places[number.get() as usize % self.places.len()]
    }

    /// Reads an inode while no other thread can cache a newer version of it.
    fn get_or(&self, number: InodeNo, load: impl FnOnce() -> Result<Arc<Inode>>) -> Result<Arc<Inode>> {
        let mut place = self.place(number).lock();
        if let Some(inode) = place.as_ref().filter(|inode| inode.number == number) {
            return Ok(Arc::clone(inode));
        }
        let inode = load()?;
        *place = Some(Arc::clone(&inode));
        Ok(inode)
    }

    /// Replaces the cached inode.
    pub(crate) fn put(&self, inode: Arc<Inode>) {
        let mut place = self.place(inode.number).lock();
        *place = Some(inode);
    }

    /// Clears the cache.
    pub(crate) fn clear(&self) {
        for place in &self.places {
            *place.lock() = None;
        }
    }

    /// Removes a freed inode.
    pub(crate) fn forget(&self, number: InodeNo) {
        let mut place = self.place(number).lock();
        place.take_if(|inode| inode.number == number);
    }
}

/// Inodes by number: those in use with their locks, and a cache of others.
pub struct Inodes {
    maps: Maps,
    pub(crate) cache: InodeCache,
    pub(crate) nodes: Nodes,
}

stands_on!(Inodes, maps: Maps);

impl Inodes {
    pub(crate) fn over(maps: Maps) -> Self {
        Self { maps, cache: InodeCache::new(memory_budget::budget().inodes), nodes: Nodes::new() }
    }

    /// The inode with that number: in use, with a valid checksum and valid fields.
    ///
    /// # Errors
    /// [`Error::NotFound`] for 0 and for numbers beyond the last, [`Error::Stale`] for an inode that is not in use,
    /// [`Error::Corrupt`] for one that is damaged.
    pub fn inode(&self, number: InodeNo) -> Result<Arc<Inode>> {
        if self.is_parked(number) {
            // the content of its slot, if it was ever written, is not a file
            return Err(Error::Stale(number));
        }
        let inode = self.any_inode(number)?;
        if inode.raw().disk.i_links_count.get() == 0 && !self.is_orphan(number) {
            return Err(Error::Stale(number));
        }
        Ok(inode)
    }

    /// [`Inodes::inode`] for a number from a directory entry.
    pub(crate) fn named_inode(&self, number: InodeNo) -> Result<Arc<Inode>> {
        self.inode(number).map_err(Error::of_named)
    }

    /// The current inode, whether or not it has links.
    pub(crate) fn any_inode(&self, number: InodeNo) -> Result<Arc<Inode>> {
        self.cache.get_or(number, || self.load_inode(number))
    }

    pub(crate) fn node(&self, number: InodeNo) -> Arc<Node> {
        self.record_use();
        self.nodes.get(number)
    }

    /// Runs `work` with only these nodes locked, in the order of `numbers` (see the rules above); a duplicate number
    /// counts once.
    pub(crate) fn locked<R>(&self, numbers: &[InodeNo], work: impl FnOnce(&mut Locked<'_>) -> Result<R>) -> Result<R> {
        if let [number] = *numbers {
            loop {
                let node = self.node(number);
                let state = node.write();
                if !node.is_gone() {
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
            // an inode that was freed during the wait has a different node now
            if nodes.iter().all(|(_, node)| !node.is_gone()) {
                return work(&mut locked);
            }
        }
    }

    /// Increments the lookup count of an inode: it stays, with its content, until it is
    /// [forgotten](crate::Orphans::forget) the same number of times, even if its last name is removed meanwhile.
    pub fn add_lookup(&self, number: InodeNo) {
        self.record_use();
        self.nodes.add_lookup(number);
    }

    /// Whether an inode has a lookup count.
    #[must_use]
    pub fn is_looked_up(&self, number: InodeNo) -> bool {
        self.nodes.is_looked_up(number)
    }

    /// Whether names were added to or removed from a directory since the last call: then it will probably change again.
    #[must_use]
    pub fn names_changed(&self, dir: InodeNo) -> bool {
        self.writing.is_some() && self.node(dir).names_changed()
    }

    /// Subtracts `times` from the lookup count of an inode and returns whether it is 0.
    pub(crate) fn drop_lookups(&self, number: InodeNo, times: u64) -> bool {
        self.nodes.drop_lookups(number, times)
    }

    /// The number of inodes with a [lookup count](crate::Inodes::add_lookup).
    #[must_use]
    pub fn looked_up(&self) -> usize {
        self.nodes.looked_up()
    }

    /// Whether delayed data uses half of its limit.
    pub(crate) fn has_much_delayed(&self) -> bool {
        self.writing.as_ref().is_some_and(|writing| self.nodes.delayed() > writing.most_delayed() / 2)
    }

    /// Whether operations will soon have to wait until memory is released by writing.
    pub(crate) fn is_half_full(&self) -> bool {
        self.store.is_half_full() || self.has_much_delayed()
    }

    /// Records that the volume is in use: the background thread then checks its memory.
    fn record_use(&self) {
        if let Some(writing) = &self.writing {
            writing.wakeup.used();
        }
    }

    /// Records that data is delayed: the background thread has to check when it is due.
    pub(crate) fn record_delayed(&self) {
        if let Some(writing) = &self.writing {
            writing.wakeup.report_work();
        }
    }

    /// Wakes the background thread if it has work to do before operations have to wait for it.
    pub(crate) fn wake_background(&self) {
        let Some(writing) = self.writing.as_ref().filter(|_| self.is_half_full()) else { return };
        if !writing.wakeup.requested.swap(true, Ordering::Relaxed) {
            writing.wakeup.wake(|call| call.tick = true);
        }
    }
}
