//! The interface that only an engine needs which stores metadata in space of its own: copy-on-write takes new blocks
//! before it can free the old ones, so the space has to be there before a generation closes.

use crate::CommitReason;

/// The most blocks that a generation may change, by the kind of operation that changes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirtyLimits {
    /// Any operation.
    pub ordinary: usize,
    /// One that allocates blocks for delayed data, for which space is reserved.
    pub reserved: usize,
    /// One that frees, or only changes what is there.
    pub freeing: usize,
    /// One that takes a snapshot.
    pub snapshot: usize,
    /// One that deletes a snapshot.
    pub deletion: usize,
}

impl DirtyLimits {
    /// As much as [`Limits`](crate::engine::Limits) allow.
    pub const ANY: Self = Self {
        ordinary: usize::MAX,
        reserved: usize::MAX,
        freeing: usize::MAX,
        snapshot: usize::MAX,
        deletion: usize::MAX,
    };
}

/// The amount that is needed, and the amount that would be good to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Need<T> {
    /// At least this.
    pub must: T,
    /// Rather this, where there is plenty.
    pub should: T,
}

/// The space that an engine stores metadata in: chunks of the volume, granted and returned when a generation closes.
pub trait MetadataSpace {
    /// The maximum number of blocks that a generation may change which opens when all before it are durable.
    fn limits(&self) -> DirtyLimits;

    /// As [`MetadataSpace::limits`], while a generation of so many blocks is on its way.
    fn limits_behind(&self, blocks: usize) -> DirtyLimits;

    /// Chunks of the volume's data that are needed before a generation of so many blocks is planned.
    fn wanted_chunks(&self, blocks: usize) -> Need<u64>;

    /// These chunks are the engine's from the closing generation on, or from one that is open for a transaction.
    fn grant_chunks(&mut self, chunks: &[u32]);

    /// Chunks that the engine can do without, as much as the reason says; they are not its own any more.
    fn surplus_chunks(&mut self, reason: CommitReason) -> Vec<u32>;

    /// Whether nothing would be gained by [`CommitReason::Compact`].
    fn is_compact(&self) -> bool;

    /// Whether the engine itself has something to write with the generation of this number, changed blocks or not.
    fn has_requests(&self, generation: u64) -> bool;

    /// The open generation was thrown away, and with it the chunks and requests of that generation.
    fn discard(&mut self);

    /// Everything that was planned is durable.
    fn durable(&mut self);
}
