//! A metablockgroup in memory: its head, the records of the log that are not in its tree, and its free space once
//! needed.

use crate::alloc::record::contract::LoadError;
use format::space_map::SpaceMaps;
use format::space_map::head::Head;
use format::space_map::ring::{MOST_BLOCKS, Record};
use format::space_map::tree::{FreeBlocks, Tree};
use format::{FsBlock, GroupNo};
use space::{Container, Run};
use store::Store;

/// A metablockgroup.
pub(super) struct Area {
    /// The head in the closing generation; absent if it is untrusted.
    head: Option<Head>,
    corrupt: Option<&'static str>,
    /// Free blocks, tree and log together.
    free: u64,
    /// Records of the log that are not in the tree, until the tree is in memory.
    waiting: Vec<Record>,
    /// The free blocks of each group at the last close.
    groups: Option<Box<[Container]>>,
    /// The position of the oldest block of the ring with a record that is not in the tree.
    pub(super) oldest: Option<u64>,
    /// The generation whose head switched away from the inactive copy.
    pub(super) moved: u64,
    /// The records of the changes in the closing generation.
    pub(super) changed: Vec<Record>,
}

impl Area {
    /// An area with the counts of its head.
    pub(super) fn new(head: Result<Head, &'static str>) -> Self {
        let free = head.as_ref().map_or(0, |head| head.free);
        Self {
            head: head.as_ref().ok().copied(),
            corrupt: head.err(),
            free,
            waiting: Vec::new(),
            groups: None,
            oldest: None,
            moved: 0,
            changed: Vec::new(),
        }
    }

    /// The reason why it must not be used.
    pub(super) fn corrupt(&self) -> Option<&'static str> {
        self.corrupt
    }

    /// Marks it as unusable; it does not retain any block of the ring any more.
    pub(super) fn mark_corrupt(&mut self, what: &'static str) {
        self.corrupt.get_or_insert(what);
        (self.groups, self.oldest) = (None, None);
        self.changed.clear();
        self.waiting.clear();
    }

    /// Its head.
    pub(super) fn head(&self) -> Option<&Head> {
        self.head.as_ref()
    }

    /// Sets a new head, written in `generation`.
    pub(super) fn set_head(&mut self, head: Head, generation: u64) {
        (self.head, self.moved, self.oldest) = (Some(head), generation, None);
        self.changed.clear();
    }

    /// Free blocks.
    pub(super) fn free(&self) -> u64 {
        self.free
    }

    /// Memory on the heap in bytes.
    pub(super) fn memory(&self) -> usize {
        let groups = self.groups.as_deref().unwrap_or_default();
        let groups: usize = groups.iter().map(|set| size_of::<Container>() + set.memory()).sum();
        groups + (self.waiting.capacity() + self.changed.capacity()) * size_of::<Record>()
    }

    /// Number of records of the log that are not in the tree, before the tree is read.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Adds a record of the log that is not in the tree, at this position.
    pub(super) fn add_record(&mut self, record: Record, position: u64) {
        let blocks = u64::from(record.blocks);
        let free = if record.allocated { self.free.checked_sub(blocks) } else { self.free.checked_add(blocks) };
        match free.filter(|_| self.corrupt.is_none()) {
            Some(free) => {
                self.free = free;
                self.oldest.get_or_insert(position);
                self.waiting.push(record);
            }
            None => self.mark_corrupt("its log allocates more than is free"),
        }
    }

    /// The free blocks of its groups; reads them if necessary.
    ///
    /// # Errors
    /// Those of the device, and contradictions to the volume, which persist.
    pub(super) fn groups(&mut self, store: &Store, maps: &SpaceMaps) -> Result<&[Container], LoadError> {
        if let Some(what) = self.corrupt {
            return Err(LoadError::Corrupt(what));
        }
        if self.groups.is_none() {
            match self.read(store, maps) {
                Ok(groups) => self.groups = Some(groups),
                Err(LoadError::Corrupt(what)) => {
                    self.mark_corrupt(what);
                    return Err(LoadError::Corrupt(what));
                }
                Err(error) => return Err(error),
            }
            self.waiting = Vec::new();
        }
        Ok(self.groups.as_deref().unwrap_or_default())
    }

    fn read(&self, store: &Store, maps: &SpaceMaps) -> Result<Box<[Container]>, LoadError> {
        let Some(head) = &self.head else { return Err(LoadError::Corrupt("its head cannot be read")) };
        let mut bytes = vec![0; head.length as usize];
        store.read(head.tree(maps), 0, &mut bytes).map_err(LoadError::read)?;
        let tree = Tree::parse(&bytes, maps, head).map_err(|_| LoadError::Corrupt("its space map is damaged"))?;
        let first = maps.groups_of(head.number).start;
        let numbers = (first..).map(GroupNo);
        let mut groups: Box<[Container]> =
            numbers.zip(&tree.groups).map(|(group, free)| container(free, maps.units(group))).collect();
        for record in &self.waiting {
            let geometry = maps.geometry();
            let group = geometry.group_of(record.start).unwrap_or_default();
            let start = record.start.get() - geometry.group_start(group).get();
            // a record is inside one group
            let run = Run { start: start as u32, len: record.blocks };
            let set = groups.get_mut(group.get().wrapping_sub(first) as usize);
            let applied = set.map(|set| if record.allocated { set.remove(run) } else { set.insert(run) });
            if !matches!(applied, Some(Ok(()))) {
                return Err(LoadError::Corrupt("its log contradicts its space map"));
            }
        }
        groups.iter_mut().for_each(Container::compact);
        Ok(groups)
    }

    /// Sets the free blocks of the group that begins at `start`; returns whether they changed.
    pub(super) fn change(&mut self, place: usize, start: FsBlock, free: Container) -> bool {
        let Some(before) = self.groups.as_mut().and_then(|groups| groups.get_mut(place)) else { return false };
        let (mut allocated, mut freed) = (before.clone(), free.clone());
        allocated.subtract(&free);
        freed.subtract(before);
        if allocated.is_empty() && freed.is_empty() {
            return false;
        }
        self.free = self.free + u64::from(freed.count()) - u64::from(allocated.count());
        for (set, allocated) in [(&allocated, true), (&freed, false)] {
            for run in set.runs() {
                let parts = (run.start..run.end()).step_by(MOST_BLOCKS as usize);
                self.changed.extend(parts.map(|at| Record {
                    start: FsBlock(start.get() + u64::from(at)),
                    blocks: (run.end() - at).min(MOST_BLOCKS),
                    allocated,
                }));
            }
        }
        *before = free;
        before.compact();
        true
    }
}

/// Converts the free blocks of a group in a tree.
fn container(free: &FreeBlocks, units: u32) -> Container {
    match free {
        FreeBlocks::Empty => Container::empty(units),
        FreeBlocks::Full => Container::full(units),
        FreeBlocks::Bits(bits) => Container::from_set_bits(bits, units),
        FreeBlocks::Runs(runs) => {
            let mut set = Container::empty(units);
            for run in runs {
                set.add(Run { start: run.start, len: run.end - run.start });
            }
            set
        }
    }
}
