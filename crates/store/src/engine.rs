//! Consistency engines: how a closed generation is written so that a crash leaves a consistent volume.
//!
//! An engine turns a closed generation into a [`Plan`] and never writes to the device itself. The store executes the
//! plan, one generation at a time, while operations continue in the next one.

mod clean_mark;
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
    /// The maximum number of blocks that a generation may change.
    pub dirty_blocks: usize,
    /// The same for a generation that is open for a transaction; at least `dirty_blocks`.
    pub transaction_blocks: usize,
    /// The superblock's state while a generation is being written.
    pub in_use: VolumeState,
    /// File data is written in the same way as metadata.
    pub journals_data: bool,
    /// The engine needs the list of freed blocks.
    pub wants_forgotten: bool,
    /// The engine needs the [change records](crate::ChangeRecord) of operations.
    pub wants_change_records: bool,
    /// A crash may restore references to freed blocks without a visible inconsistency: blocks of data, too, must not be
    /// allocated again before their generation is durable. Metadata blocks never are.
    pub defers_reuse: bool,
    /// A crash leaves a generation complete or not at all. Otherwise a freed inode number must not be allocated again
    /// before its generation is durable: after a crash two files could have it.
    pub atomic: bool,
    /// The open generation can be discarded, so the volume can have transactions.
    pub can_discard: bool,
    /// A block that a generation changed back to its previous content is not written.
    pub elides_unchanged: bool,
    /// The time without an operation after which everything should be on the device, including delayed data.
    pub rests_after: Option<Duration>,
}

impl Limits {
    /// Limits of an engine with generations of at most `dirty_blocks` blocks, which are not atomic, and without further
    /// capabilities.
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

/// The work of an engine in a quiet moment.
#[derive(Debug)]
pub enum Idle {
    /// No work, however long the volume is quiet.
    Nothing,
    /// No work before the volume was quiet for this time.
    After(Duration),
    /// Close the open generation and write it.
    Commit,
    /// Execute this plan.
    Run(Plan),
}

/// A consistency engine. An engine that stores metadata in space of its own also implements
/// [`EngineWithSpace`](crate::EngineWithSpace).
pub trait Engine: Send {
    /// The capabilities of the engine; constant.
    fn limits(&self) -> Limits;

    /// Returns the plan to execute before the first operation.
    ///
    /// # Errors
    /// If the volume cannot be used with this engine.
    fn open(&mut self, superblock: &dyn StateSource) -> Result<Plan>;

    /// Returns the plan that writes a closed generation. [`Plan::durable`] is the newest generation that is durable
    /// afterwards; with [`CommitReason::Sync`] it is at least the previous one.
    ///
    /// # Errors
    /// If the generation cannot be written; the volume is read-only then.
    fn plan(&mut self, closed: ClosedGeneration, superblock: &dyn StateSource) -> Result<Plan>;

    /// Returns the work to do when no operation ended for `quiet`; `dirty`: whether the open generation contains
    /// changes. Does nothing itself.
    fn idle(&mut self, quiet: Duration, dirty: bool, superblock: &dyn StateSource) -> Idle;

    /// Returns the plan to execute after the last generation, before the volume is unmounted. Everything is durable
    /// then.
    ///
    /// # Errors
    /// As [`Engine::plan`].
    fn close(&mut self, superblock: &dyn StateSource) -> Result<Plan>;
}

/// Writes every changed block to its home location; with a flush if there is something to flush, and a process waits or
/// the commit interval has passed. No flush separates the two stages: the order protects from the end of the process
/// alone, after which no inode leads to a block of references that was not written and still has those of a file that
/// was removed.
fn all_home(closed: &ClosedGeneration, block_size: usize) -> Vec<Stage> {
    let location = |block: FsBlock| block.get() * block_size as u64;
    let home = |fresh| home_writes(closed, block_size, fresh);
    let fresh: Vec<_> = fresh_writes(closed, location).chain(home(true)).collect();
    let fresh = (!fresh.is_empty()).then_some(Stage { writes: fresh, flush: false });
    // at the dirty limit no process waits for durability
    let flush = closed.reason != CommitReason::DirtyLimit && (closed.unflushed || !closed.blocks.is_empty());
    let others = Stage { writes: home(false).collect(), flush };
    // an empty last stage would hide that the writes before it are not flushed
    let others = (flush || !others.writes.is_empty()).then_some(others);
    fresh.into_iter().chain(others).collect()
}

/// The writes of a generation's changed blocks to their home locations: of those that are `fresh`, or of the others.
fn home_writes(closed: &ClosedGeneration, block_size: usize, fresh: bool) -> impl Iterator<Item = PlannedWrite> {
    let writes = closed.blocks.iter().filter(move |write| write.fresh == fresh);
    writes.map(move |write| PlannedWrite {
        at: write.block.get() * block_size as u64,
        data: write.data.clone(),
        kind: write.tag.kind,
    })
}

/// The writes of a generation's fresh extents: home before its changed blocks are valid, or in any order with them in
/// modes that guarantee nothing before the next flush.
fn fresh_writes(closed: &ClosedGeneration, at: impl Fn(FsBlock) -> u64) -> impl Iterator<Item = PlannedWrite> {
    closed.fresh_extents.iter().map(move |run: &FreshExtent| PlannedWrite {
        at: at(run.first),
        data: run.data.clone(),
        kind: run.kind,
    })
}

/// A stage that writes the superblock with a state and makes it durable before anything that follows.
fn state_stage(superblock: &dyn StateSource, state: VolumeState) -> Stage {
    let (at, data) = superblock.with_state(state);
    Stage { writes: vec![PlannedWrite { at, data, kind: Kind::Superblock }], flush: true }
}
