//! Adjacent units of a group.

/// Adjacent units (blocks, clusters, inodes).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Run {
    /// The first unit.
    pub start: u32,
    /// The number of units; at least 1 in all returned runs.
    pub len: u32,
}

impl Run {
    /// The unit after the last; saturates.
    #[must_use]
    pub fn end(self) -> u32 {
        self.start.saturating_add(self.len)
    }
}
