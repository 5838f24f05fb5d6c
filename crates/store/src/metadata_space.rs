//! The interface of engines that store metadata in space of their own: copy-on-write allocates new blocks before it can
//! free the old ones, so the space has to exist before a generation closes.

use crate::{Engine, OperationKind};
use std::time::Duration;

/// The maximum number of blocks that a generation may change, by the kind of operation that changes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirtyLimits {
    /// The limit of [`OperationKind::Ordinary`].
    pub ordinary: usize,
    /// The limit of [`OperationKind::Reserved`].
    pub reserved: usize,
    /// The limit of [`OperationKind::Freeing`].
    pub freeing: usize,
    /// The limit of [`OperationKind::Snapshot`].
    pub snapshot: usize,
    /// The limit of [`OperationKind::Deletion`].
    pub deletion: usize,
}

impl DirtyLimits {
    /// No limits beyond those of [`Limits`](crate::engine::Limits).
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

/// An amount that is needed, and an amount that is desirable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Need<T> {
    /// The minimum.
    pub must: T,
    /// The desirable amount, if there is plenty of space.
    pub should: T,
}

/// The extent to which an engine compacts its space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compaction {
    /// In a quiet moment: chunks that the next work would need again stay.
    Quiet,
    /// On request: all chunks are returned that the engine does not need.
    Full,
}

/// An engine that stores metadata in space of its own.
pub trait EngineWithSpace: Engine {
    /// The engine's space.
    fn metadata_space(&mut self) -> &mut dyn MetadataSpace;
}

/// The space that an engine stores metadata in: chunks of the volume, granted and returned when a generation closes.
pub trait MetadataSpace {
    /// The maximum number of changed blocks of a generation that opens when all before it are durable.
    fn limits(&self) -> DirtyLimits;

    /// As [`MetadataSpace::limits`], while a generation of `blocks` blocks is being written.
    fn limits_behind(&self, blocks: usize) -> DirtyLimits;

    /// The number of chunks of the volume's data that are needed before a generation of `blocks` blocks is planned.
    fn wanted_chunks(&self, blocks: usize) -> Need<u64>;

    /// Adds chunks to the space, from the closing generation on, or from one that is open for a transaction.
    fn grant_chunks(&mut self, chunks: &[u32]);

    /// The time without an operation after which the space should be compacted, if the open generation is empty then;
    /// `None` if that would free nothing.
    fn compaction_after(&self) -> Option<Duration>;

    /// Makes the generation that is planned next compact the space.
    fn compact(&mut self, compaction: Compaction);

    /// Removes chunks that the engine does not need from its space, and returns them. None if the generation that is
    /// planned next does not [compact](MetadataSpace::compact).
    fn surplus_chunks(&mut self) -> Vec<u32>;

    /// Whether [`Compaction::Full`] would free nothing.
    fn is_compact(&self) -> bool;

    /// Whether the engine itself has something to write with the generation of this number, changed blocks or not.
    fn has_requests(&self, generation: u64) -> bool;

    /// Discards the chunks and requests of the open generation, together with that generation.
    fn discard(&mut self);

    /// Records that everything planned is durable.
    fn durable(&mut self);
}
