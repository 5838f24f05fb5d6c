//! The interface that only an engine needs which stores metadata in space of its own: copy-on-write takes new blocks
//! before it can free the old ones, so the space has to be there before a generation closes.

use crate::{Engine, OperationKind};
use std::time::Duration;

/// The most blocks that a generation may change, by the kind of operation that changes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirtyLimits {
    /// That of [`OperationKind::Ordinary`].
    pub ordinary: usize,
    /// That of [`OperationKind::Reserved`].
    pub reserved: usize,
    /// That of [`OperationKind::Freeing`].
    pub freeing: usize,
    /// That of [`OperationKind::Snapshot`].
    pub snapshot: usize,
    /// That of [`OperationKind::Deletion`].
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

    /// The limit of a kind of operation, in blocks.
    #[must_use]
    pub const fn of(&self, kind: OperationKind) -> usize {
        match kind {
            OperationKind::Ordinary => self.ordinary,
            OperationKind::Reserved => self.reserved,
            OperationKind::Freeing => self.freeing,
            OperationKind::Snapshot => self.snapshot,
            OperationKind::Deletion => self.deletion,
        }
    }
}

/// The amount that is needed, and the amount that would be good to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Need<T> {
    /// At least this.
    pub must: T,
    /// Rather this, where there is plenty.
    pub should: T,
}

/// The extent to which an engine compacts its space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compaction {
    /// In a quiet moment: chunks that the next work would take again stay.
    Quiet,
    /// On request: all chunks go that the engine can do without.
    Full,
}

/// An engine that stores metadata in space of its own.
pub trait EngineWithSpace: Engine {
    /// That space.
    fn metadata_space(&mut self) -> &mut dyn MetadataSpace;
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

    /// The time without an operation after which the space should be compacted, if the open generation is empty then;
    /// `None` where that would free nothing.
    fn compaction_after(&self) -> Option<Duration>;

    /// The generation that is planned next compacts the space.
    fn compact(&mut self, compaction: Compaction);

    /// Chunks that the engine can do without; they are not its own any more. None where the generation that is planned
    /// next does not [compact](MetadataSpace::compact).
    fn surplus_chunks(&mut self) -> Vec<u32>;

    /// Whether nothing would be gained by [`Compaction::Full`].
    fn is_compact(&self) -> bool;

    /// Whether the engine itself has something to write with the generation of this number, changed blocks or not.
    fn has_requests(&self, generation: u64) -> bool;

    /// The open generation was thrown away, and with it the chunks and requests of that generation.
    fn discard(&mut self);

    /// Everything that was planned is durable.
    fn durable(&mut self);
}
