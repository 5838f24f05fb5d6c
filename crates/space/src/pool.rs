//! The counts of the volume's free units, and the privileges for allocating them.

/// The units that an allocation may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Privilege {
    /// Units that are neither reserved nor set aside.
    Ordinary,
    /// The root reserve, too.
    Superuser,
    /// All units: for data that has a reservation, and the metadata it needs.
    Reserved,
}

/// The purpose of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Content of files.
    Data,
    /// Content of the store's cache: directories, extent nodes, attributes …
    Metadata,
}

/// Counts of free units: the sums over all groups, so that no group has to be searched to find that there is no space.
///
/// `available + deferred + quarantined` is the free count that the volume shows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pool {
    available: u64,
    deferred: u64,
    quarantined: u64,
    reserved: u64,
    for_reservations: u64,
    root_reserve: u64,
}

impl Pool {
    /// Creates a pool of `available` free units, of which `for_reservations` are for [`Privilege::Reserved`] only and
    /// `root_reserve` for the superuser (and reservations).
    #[must_use]
    pub fn new(available: u64, for_reservations: u64, root_reserve: u64) -> Self {
        Self { available, for_reservations, root_reserve, ..Self::default() }
    }

    /// The number of units that may be allocated now.
    #[must_use]
    pub fn available(&self, privilege: Privilege) -> u64 {
        let behind = match privilege {
            Privilege::Reserved => 0,
            Privilege::Superuser => self.reserved.saturating_add(self.for_reservations),
            Privilege::Ordinary => {
                self.reserved.saturating_add(self.for_reservations).saturating_add(self.root_reserve)
            }
        };
        self.available.saturating_sub(behind)
    }

    /// Allocates up to `want` units, and returns their number.
    pub fn allocate(&mut self, want: u64, privilege: Privilege) -> u64 {
        let allocated = self.available(privilege).min(want);
        self.available -= allocated;
        allocated
    }

    /// Adds freed units that may be used immediately.
    pub fn free(&mut self, units: u64) {
        self.available += units;
    }

    /// Adds freed units that may not be used yet.
    pub fn defer(&mut self, units: u64) {
        self.deferred += units;
    }

    /// Makes deferred units available.
    pub fn release(&mut self, units: u64) {
        let units = units.min(self.deferred);
        self.deferred -= units;
        self.available += units;
    }

    /// Removes free units from use: the map that counts them is damaged.
    pub fn quarantine(&mut self, units: u64) {
        let units = units.min(self.available);
        self.available -= units;
        self.quarantined += units;
    }

    /// Reserves units for data that will allocate them later with [`Privilege::Reserved`]. `false` if there is no
    /// space.
    #[must_use]
    pub fn reserve(&mut self, units: u64, privilege: Privilege) -> bool {
        let fits = units <= self.available(privilege);
        if fits {
            self.reserved += units;
        }
        fits
    }

    /// Reduces the reservation by units that were allocated, or are not needed any more.
    pub fn unreserve(&mut self, units: u64) {
        self.reserved = self.reserved.saturating_sub(units);
    }

    /// The number of units that the volume shows as free.
    #[must_use]
    pub fn free_units(&self) -> u64 {
        self.available + self.deferred + self.quarantined
    }

    /// The number of units that were freed and may not be used yet.
    #[must_use]
    pub fn deferred(&self) -> u64 {
        self.deferred
    }

    /// The number of reserved units.
    #[must_use]
    pub fn reserved(&self) -> u64 {
        self.reserved
    }
}
