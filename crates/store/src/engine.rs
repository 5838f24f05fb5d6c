//! Consistency engines: how a closed generation reaches the device so that a crash leaves something consistent.
//!
//! An engine turns a closed generation into a [`Plan`] and never writes to the device itself. The store executes the
//! plan, one generation at a time, while operations go on in the next one.

mod copy_on_write;
mod dirty_bit;
mod journal;
mod linked;
mod map_writer;
mod native_unordered;
mod new_volume;
mod none;
mod rollback;

pub use copy_on_write::CopyOnWrite;
pub use dirty_bit::DirtyBit;
pub use journal::{Journal, JournalOptions};
pub use linked::{Linked, LinkedCounts};
pub use native_unordered::NativeUnordered;
pub use new_volume::{first_chunks, make};
pub use none::Unordered;
pub use rollback::Rollback;

use crate::{
    ClosedGeneration, CommitReason, FreshExtent, Kind, Plan, PlannedWrite, Result, Stage, StateSource, VolumeState,
};
use format::FsBlock;
use std::time::Duration;

/// The capabilities of an engine, and its requirements on the file system.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Most blocks that a generation may change.
    pub dirty_blocks: usize,
    /// Most blocks that a generation may change which is open for a transaction; at least `dirty_blocks`.
    pub transaction_blocks: usize,
    /// The superblock's state while a generation is on its way.
    pub in_use: VolumeState,
    /// File data is written as metadata is.
    pub journals_data: bool,
    /// The engine needs to know which blocks were freed.
    pub wants_forgotten: bool,
    /// The engine needs the [change records](crate::ChangeRecord) of operations.
    pub wants_change_records: bool,
    /// A crash may bring back what was freed as if it were consistent: blocks of data, too, must not be allocated again
    /// before their generation is durable. Those of metadata never are.
    pub defers_reuse: bool,
    /// A crash leaves a generation whole or not at all. Otherwise an inode number that was freed must not be allocated
    /// again before its generation is durable: two files would have had it in what a crash leaves.
    pub atomic: bool,
    /// The open generation can be thrown away, so the volume can have transactions.
    pub can_discard: bool,
    /// A block that a generation changed back to what it was costs no write.
    pub elides_unchanged: bool,
    /// After so long without an operation everything should be on the device, delayed data as well.
    pub rests_after: Option<Duration>,
}

impl Limits {
    /// Generations of at most so many blocks, which are not atomic, and nothing else.
    #[must_use]
    pub const fn new(in_use: VolumeState, dirty_blocks: usize) -> Self {
        Self {
            dirty_blocks,
            transaction_blocks: dirty_blocks,
            in_use,
            journals_data: false,
            wants_forgotten: false,
            wants_change_records: false,
            defers_reuse: false,
            atomic: false,
            can_discard: false,
            elides_unchanged: false,
            rests_after: None,
        }
    }
}

/// The work that an engine would do in a quiet moment.
#[derive(Debug)]
pub enum Idle {
    /// Nothing.
    Nothing,
    /// Close the open generation and write it.
    Commit,
    /// Execute this.
    Run(Plan),
}

/// A consistency engine. One that stores metadata in space of its own is an
/// [`EngineWithSpace`](crate::EngineWithSpace) besides.
pub trait Engine: Send {
    /// The capabilities of the engine; they do not change.
    fn limits(&self) -> Limits;

    /// The plan to execute before the first operation.
    ///
    /// # Errors
    /// Where the volume cannot be used with this engine.
    fn open(&mut self, superblock: &dyn StateSource) -> Result<Plan>;

    /// Plans how a closed generation reaches the device. [`Plan::durable`] says what is durable then; with
    /// [`CommitReason::Sync`] that is at least the generation before.
    ///
    /// # Errors
    /// Where the generation cannot be written; the volume is read-only then.
    fn plan(&mut self, closed: ClosedGeneration, superblock: &dyn StateSource) -> Result<Plan>;

    /// The work to do when no operation ended for `quiet`; `dirty` says whether the open generation contains changes.
    fn idle(&mut self, quiet: Duration, dirty: bool, superblock: &dyn StateSource) -> Idle;

    /// The time without an operation after which [`Engine::idle`] has something to do, as things are and with this
    /// `dirty`; `None` where it has nothing to do however long it is quiet.
    fn idle_after(&self, dirty: bool) -> Option<Duration>;

    /// The plan to execute after the last generation, before the volume is unmounted. All is durable then.
    ///
    /// # Errors
    /// As [`Engine::plan`].
    fn close(&mut self, superblock: &dyn StateSource) -> Result<Plan>;
}

/// Every changed block to its home location, in any order; with a flush where there is something to flush, and a
/// process waits or the time has come.
fn all_home(closed: &ClosedGeneration, block_size: usize) -> Stage {
    let location = |block: FsBlock| block.get() * block_size as u64;
    let writes = closed.blocks.iter();
    let writes = writes.map(|w| PlannedWrite { at: location(w.block), data: w.data.clone(), kind: w.tag.kind });
    let writes = writes.chain(fresh_writes(closed, location)).collect();
    // at the dirty limit no process waits for it to be durable
    let flush = closed.reason != CommitReason::DirtyLimit && (closed.unflushed || !closed.blocks.is_empty());
    Stage { writes, flush }
}

/// The writes of the blocks that a generation has beside its changed blocks: home before these count, or in any order
/// with them where nothing is promised before the next flush.
fn fresh_writes(closed: &ClosedGeneration, at: impl Fn(FsBlock) -> u64) -> impl Iterator<Item = PlannedWrite> {
    closed.fresh_extents.iter().map(move |run: &FreshExtent| PlannedWrite {
        at: at(run.first),
        data: run.data.clone(),
        kind: run.kind,
    })
}

/// The superblock with a state, on the device before anything that follows.
fn state_stage(superblock: &dyn StateSource, state: VolumeState) -> Stage {
    let (at, data) = superblock.with_state(state);
    Stage { writes: vec![PlannedWrite { at, data, kind: Kind::Superblock }], flush: true }
}
