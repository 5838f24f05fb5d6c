//! The volume's free units as a whole, and who may take them.

/// Whose turn it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Claim {
    /// Anybody: neither what is promised nor what is kept.
    Ordinary,
    /// The superuser: what is kept for the superuser as well.
    Superuser,
    /// Content that was promised its space, and the metadata it needs: all there is.
    Promised,
}

/// What blocks are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Content of files.
    Data,
    /// What the store's cache holds: directories, extent nodes, attributes …
    Metadata,
}

/// Counts of free units. The sum of what the groups' maps say, so that nobody has to look at a group to learn that there is
/// no room.
///
/// `available + held + lost` is what the volume shows as free.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pool {
    available: u64,
    held: u64,
    lost: u64,
    promised: u64,
    kept: u64,
    kept_for_superuser: u64,
}

impl Pool {
    /// `available` free units, of which `kept` are for [`Claim::Promised`] only and `kept_for_superuser` for the superuser
    /// (and promises).
    #[must_use]
    pub fn new(available: u64, kept: u64, kept_for_superuser: u64) -> Self {
        Self { available, kept, kept_for_superuser, ..Self::default() }
    }

    /// Units that a claim may take now.
    #[must_use]
    pub fn room(&self, claim: Claim) -> u64 {
        let behind = match claim {
            Claim::Promised => 0,
            Claim::Superuser => self.promised.saturating_add(self.kept),
            Claim::Ordinary => self.promised.saturating_add(self.kept).saturating_add(self.kept_for_superuser),
        };
        self.available.saturating_sub(behind)
    }

    /// Takes up to `want` units and says how many.
    pub fn take(&mut self, want: u64, claim: Claim) -> u64 {
        let taken = self.room(claim).min(want);
        self.available -= taken;
        taken
    }

    /// Units came back, to be used at once.
    pub fn give(&mut self, units: u64) {
        self.available += units;
    }

    /// Units came back that may not be used yet.
    pub fn hold(&mut self, units: u64) {
        self.held += units;
    }

    /// Held units may be used now.
    pub fn release(&mut self, units: u64) {
        let units = units.min(self.held);
        self.held -= units;
        self.available += units;
    }

    /// Free units turned out to be out of reach: the map that counts them is damaged.
    pub fn lose(&mut self, units: u64) {
        let units = units.min(self.available);
        self.available -= units;
        self.lost += units;
    }

    /// Promises units to content that will take them later with [`Claim::Promised`]. False where there is no room.
    #[must_use]
    pub fn promise(&mut self, units: u64, claim: Claim) -> bool {
        let fits = units <= self.room(claim);
        if fits {
            self.promised += units;
        }
        fits
    }

    /// A promise was kept, or is not needed any more.
    pub fn settle(&mut self, units: u64) {
        self.promised = self.promised.saturating_sub(units);
    }

    /// Units that the volume shows as free.
    #[must_use]
    pub fn free(&self) -> u64 {
        self.available + self.held + self.lost
    }

    /// Units that were freed and may not be used yet.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.held
    }

    /// Units that are promised.
    #[must_use]
    pub fn promised(&self) -> u64 {
        self.promised
    }
}
