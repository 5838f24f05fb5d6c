//! The free space of a group as containers.

use crate::{Container, Run};
use std::ops::Range;

/// The number of runs at which a map in use becomes bits: from here on these are changed faster.
const RUNS: u32 = 16;

/// The free units of a group, as sets, each in its smallest form.
///
/// The stored state shows deferred and pinned units as free. A unit is in at most one of three sets: *available*;
/// *deferred*, freed but not to be allocated yet; *pinned and free*, freed but used by an older version of the volume.
/// A unit in none of them is in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerMap {
    available: Container,
    /// `None` if it would be empty.
    deferred: Option<Box<Container>>,
    /// `None` if no older version uses a unit.
    pinned: Option<Box<Pinned>>,
}

/// The units that older versions of the volume use.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Pinned {
    /// All units that they use, whether the live version uses them or not. None of them is available or deferred.
    all: Container,
    /// Those that the live version does not use.
    free: Container,
}

impl ContainerMap {
    /// Creates a map with all of `units` units available.
    #[must_use]
    pub fn new(units: u32) -> Self {
        Self::from_available(Container::full(units))
    }

    /// Reads a bitmap stored as `bytes`, the lowest bit of a byte first. Units beyond `bytes` are in use, and so are
    /// bits after the last unit.
    #[must_use]
    pub fn from_bytes(bytes: &[u8], units: u32) -> Self {
        Self::from_available(Container::from_bitmap_to_change(bytes, units, RUNS))
    }

    /// Creates a map in which these units are available and all others in use.
    #[must_use]
    pub fn from_available(mut available: Container) -> Self {
        available.limit_runs(RUNS);
        Self { available, deferred: None, pinned: None }
    }

    /// Changes to the smallest forms, for a group that is not used for some time. It can be used all the same.
    pub fn compact(&mut self) {
        self.available.compact();
        self.deferred.iter_mut().for_each(|deferred| deferred.compact());
        if let Some(pinned) = &mut self.pinned {
            pinned.all.compact();
            pinned.free.compact();
        }
    }

    /// Writes the bitmap into a block, deferred and pinned units as free; all bits after the last unit are set.
    pub fn write(&self, block: &mut [u8]) {
        self.available.write_bitmap(block);
        for set in self.deferred.as_deref().into_iter().chain(self.pinned_free()) {
            set.clear_bits(block);
        }
    }

    /// The units that the stored bitmap shows as free, including deferred and pinned ones.
    #[must_use]
    pub fn as_stored(&self) -> Container {
        let mut free = self.available.clone();
        for set in self.deferred.as_deref().into_iter().chain(self.pinned_free()) {
            free.union_with(set);
        }
        free
    }

    /// The units that may be allocated.
    #[must_use]
    pub fn available_units(&self) -> &Container {
        &self.available
    }

    /// The number of deferred units.
    #[must_use]
    pub fn deferred(&self) -> u32 {
        self.deferred.as_ref().map_or(0, |deferred| deferred.count())
    }

    /// The number of pinned units: an older version of the volume uses them, and this one does not.
    #[must_use]
    pub fn pinned(&self) -> u32 {
        self.pinned_free().map_or(0, Container::count)
    }

    /// Memory on the heap in bytes.
    #[must_use]
    pub fn memory(&self) -> usize {
        let deferred = self.deferred.as_ref().map_or(0, |deferred| size_of::<Container>() + deferred.memory());
        let pinned = self.pinned.as_ref();
        let pinned = pinned.map_or(0, |pinned| size_of::<Pinned>() + pinned.all.memory() + pinned.free.memory());
        self.available.memory() + deferred + pinned
    }

    fn pinned_free(&self) -> Option<&Container> {
        self.pinned.as_ref().map(|pinned| &pinned.free)
    }

    /// Pins units that an older version of the volume uses, in addition to those pinned before. None of them may be
    /// deferred.
    pub fn pin(&mut self, units: &Container) {
        if units.is_empty() {
            return;
        }
        let free = units.intersection(&self.available);
        self.available.subtract(&free);
        match &mut self.pinned {
            Some(pinned) => {
                pinned.free.union_with(&free);
                pinned.all.union_with(units);
            }
            None => self.pinned = Some(Box::new(Pinned { all: units.clone(), free })),
        }
    }

    /// Pins the units in use now: they are part of an older version of the volume.
    pub fn pin_used(&mut self) {
        let mut used = self.available.complement();
        if let Some(deferred) = &self.deferred {
            used.subtract(deferred);
        }
        match &mut self.pinned {
            // units pinned before are in use, or pinned and free: none of them is available or deferred
            Some(pinned) => pinned.all = used,
            None if used.is_empty() => {}
            None => {
                let free = Container::empty(used.units());
                self.pinned = Some(Box::new(Pinned { all: used, free }));
            }
        }
    }

    /// Unpins units that no older version of the volume uses any more. Those of them that were pinned and free become
    /// deferred, and are returned.
    pub fn unpin(&mut self, units: &Container) -> Container {
        let Some(pinned) = &mut self.pinned else { return Container::empty(self.available.units()) };
        let freed = pinned.free.intersection(units);
        pinned.all.subtract(units);
        pinned.free.subtract(&freed);
        if pinned.all.is_empty() {
            self.pinned = None;
        }
        if !freed.is_empty() {
            match &mut self.deferred {
                Some(deferred) => deferred.union_with(&freed),
                None => self.deferred = Some(Box::new(freed.clone())),
            }
        }
        freed
    }

    /// The first units of a run that are all pinned, or all not: their number, and whether they are.
    #[must_use]
    pub fn pinned_at(&self, run: Run) -> (u32, bool) {
        let Some(pinned) = &self.pinned else { return (run.len, false) };
        match pinned.all.run_at(run.start, run.len) {
            0 => {
                let next = pinned.all.runs_from(run.start).next();
                (next.map_or(run.len, |next| run.len.min(next.start - run.start)), false)
            }
            len => (len, true),
        }
    }

    /// Defers an available run; does nothing if a part of it is not available.
    pub fn defer_available(&mut self, run: Run) {
        if self.available.remove(run).is_ok() {
            self.defer(run);
        }
    }

    fn defer(&mut self, run: Run) {
        let units = self.available.units();
        let empty = || {
            let mut deferred = Container::empty(units);
            deferred.limit_runs(RUNS);
            Box::new(deferred)
        };
        self.deferred.get_or_insert_with(empty).add(run);
    }

    /// Makes the deferred units of a set available, in one step: the deferred units of a generation that is durable.
    pub fn release_set(&mut self, units: &Container) {
        let Some(deferred) = &mut self.deferred else { return };
        let due = deferred.intersection(units);
        deferred.subtract(&due);
        self.available.union_with(&due);
        if deferred.is_empty() {
            self.deferred = None;
        }
    }

    /// Whether all units of a run are in use in the stored state. `true` for a run that extends beyond the last unit.
    #[must_use]
    pub fn is_used(&self, run: Run) -> bool {
        !self.available.intersects(run)
            && self.deferred.as_ref().is_none_or(|deferred| !deferred.intersects(run))
            && self.pinned_free().is_none_or(|free| !free.intersects(run))
    }

    /// The first run of at least `least` available units that begins in a range, cut to the range.
    #[must_use]
    pub fn next_run(&self, range: Range<u32>, least: u32) -> Option<Run> {
        self.available.next_run(range, least)
    }

    /// The number of units of the group.
    #[must_use]
    pub fn units(&self) -> u32 {
        self.available.units()
    }

    /// The number of units that the stored bitmap shows as free: available, deferred, and pinned ones.
    #[must_use]
    pub fn free_units(&self) -> u32 {
        self.available.count() + self.deferred() + self.pinned()
    }

    /// The number of units that may be allocated.
    #[must_use]
    pub fn available(&self) -> u32 {
        self.available.count()
    }

    /// The number of available units from `at` on, at most `most`.
    #[must_use]
    pub fn run_at(&self, at: u32, most: u32) -> u32 {
        self.available.run_at(at, most)
    }

    /// The first run of `want` available units at or after `from`, then before it; as [`Container::find`].
    #[must_use]
    pub fn find(&self, within: &[Run], from: u32, want: u32) -> Option<Run> {
        self.available.find(within, from, want)
    }

    /// The run of `want` available units that begins nearest to `goal`; as [`Container::nearest`].
    #[must_use]
    pub fn nearest(&self, goal: u32, want: u32) -> Option<Run> {
        self.available.nearest(goal, want)
    }

    /// Allocates a run. `false`, with nothing changed, if not all of it is available.
    #[must_use]
    pub fn allocate(&mut self, run: Run) -> bool {
        run.start < self.available.units() && self.available.remove(run).is_ok()
    }

    /// Frees a run. Pinned units of it stay pinned; the others become available, or `deferred` until
    /// [`ContainerMap::release`]. `false`, with nothing changed, if not all of it is in use.
    #[must_use]
    pub fn free(&mut self, run: Run, deferred: bool) -> bool {
        let units = self.available.units();
        if run.start >= units || run.len > units - run.start {
            return false;
        }
        if self.pinned.is_none() {
            return match &mut self.deferred {
                Some(there) if deferred => !self.available.intersects(run) && there.insert(run).is_ok(),
                Some(there) => !there.intersects(run) && self.available.insert(run).is_ok(),
                None if deferred => {
                    let is_used = !self.available.intersects(run);
                    if is_used {
                        self.defer(run);
                    }
                    is_used
                }
                None => self.available.insert(run).is_ok(),
            };
        }
        if !self.is_used(run) {
            return false;
        }
        let mut at = run.start;
        while at < run.end() {
            let (len, is_pinned) = self.pinned_at(Run { start: at, len: run.end() - at });
            let part = Run { start: at, len };
            at += len;
            match &mut self.pinned {
                Some(pinned) if is_pinned => {
                    pinned.free.add(part);
                }
                _ if deferred => self.defer(part),
                _ => {
                    self.available.add(part);
                }
            }
        }
        true
    }

    /// Makes the deferred units of a run available.
    pub fn release(&mut self, run: Run) {
        let Some(deferred) = &mut self.deferred else { return };
        if deferred.remove(run).is_ok() {
            self.available.add(run);
        } else {
            let end = run.end();
            let parts: Vec<Run> = deferred.runs_from(run.start).take_while(|part| part.start < end).collect();
            for part in parts {
                let part = Run { start: part.start, len: part.len.min(end - part.start) };
                deferred.cut(part);
                self.available.add(part);
            }
        }
        if deferred.is_empty() {
            self.deferred = None;
        }
    }
}
