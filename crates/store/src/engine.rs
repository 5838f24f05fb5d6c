//! Consistency engines: how a closed generation reaches the device so that a crash leaves something sound.
//!
//! An engine turns a closed generation into a [`Plan`] and never touches the device itself. The store executes the plan,
//! one generation at a time, while operations go on in the next one.

mod dirty_bit;
mod journal;
mod none;

pub use dirty_bit::DirtyBit;
pub use journal::{Journal, JournalOptions};
pub use none::Unordered;

use crate::{Cause, Client, ClosedGeneration, Kind, Mark, Plan, PlannedWrite, Result, Stage};
use std::time::Duration;

/// What an engine can take.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Most blocks a generation may change.
    pub dirty_blocks: usize,
    /// File data goes the way of metadata.
    pub journals_data: bool,
    /// The engine needs to know which blocks were freed.
    pub wants_forgotten: bool,
}

/// What an engine would do with a quiet moment.
#[derive(Debug)]
pub enum Idle {
    /// Nothing.
    Nothing,
    /// Close the open generation and write it.
    Commit,
    /// This.
    Run(Plan),
}

/// A consistency engine.
pub trait Engine: Send {
    /// What it can take; does not change.
    fn limits(&self) -> Limits;

    /// What is to be done before the first operation.
    ///
    /// # Errors
    /// Where the volume cannot be used with this engine.
    fn open(&mut self, client: &dyn Client) -> Result<Plan>;

    /// How a closed generation is made durable. When the plan was executed, it is.
    ///
    /// # Errors
    /// Where the generation cannot be written; the volume is read-only then.
    fn plan(&mut self, closed: ClosedGeneration, client: &dyn Client) -> Result<Plan>;

    /// What to do when no operation ended for `quiet`; `dirty` says whether the open generation holds changes.
    fn idle(&mut self, quiet: Duration, dirty: bool, client: &dyn Client) -> Idle;

    /// What is to be done after the last generation, so that the volume can be put away.
    ///
    /// # Errors
    /// As [`Engine::plan`].
    fn close(&mut self, client: &dyn Client) -> Result<Plan>;
}

/// Every changed block to its home place, in any order; with a flush where somebody waits and there is something to flush.
fn all_home(closed: &ClosedGeneration, block_size: usize) -> Stage {
    let place = |block: u64| block * block_size as u64;
    let writes = closed.blocks.iter();
    let writes =
        writes.map(|w| PlannedWrite { at: place(w.block.get()), data: w.data.clone(), kind: w.tag.kind }).collect();
    let flush = closed.cause == Cause::Sync && (closed.unflushed || !closed.blocks.is_empty());
    Stage { writes, flush }
}

/// The superblock with a mark, on the device before anything that follows.
fn marked(client: &dyn Client, mark: Mark) -> Stage {
    let (at, data) = client.mark(mark);
    Stage { writes: vec![PlannedWrite { at, data, kind: Kind::Superblock }], flush: true }
}
