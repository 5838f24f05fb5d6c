//! Units of a group that follow each other.

/// Units (blocks, clusters, inodes) that follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Run {
    /// The first unit.
    pub start: u32,
    /// The number of units; at least 1 in whatever is returned.
    pub len: u32,
}

impl Run {
    /// The unit behind the last; saturates.
    #[must_use]
    pub fn end(self) -> u32 {
        self.start.saturating_add(self.len)
    }
}
