//! Consistency engines: how a closed generation reaches the device so that a crash leaves something sound.
//!
//! An engine turns a closed generation into a [`Plan`] and never touches the device itself. The store executes the plan,
//! one generation at a time, while operations go on in the next one.

mod dirty_bit;
mod journal;
mod none;
mod snapshot;

pub use dirty_bit::DirtyBit;
pub use journal::{Journal, JournalOptions};
pub use none::Unordered;
pub use snapshot::{Rollback, Snapshot, first_chunks, make};

use crate::{Cause, Client, ClosedGeneration, Kind, Mark, Plan, PlannedWrite, Result, Stage};
use std::time::Duration;

/// What an engine can take.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Most blocks a generation may change.
    pub dirty_blocks: usize,
    /// Most blocks that one may change which is held open; no less.
    pub held_blocks: usize,
    /// File data goes the way of metadata.
    pub journals_data: bool,
    /// The engine needs to know which blocks were freed.
    pub wants_forgotten: bool,
    /// What the superblock says while a generation is on its way.
    pub in_use: Mark,
    /// A crash may bring back what was freed as if it were sound: blocks of content, too, are not to be given out again
    /// before their generation is durable. Those of metadata never are.
    pub holds_content: bool,
    /// A crash leaves a generation whole or not at all. Otherwise a number that was freed is not to be given out again
    /// before its generation is durable: two files would have had it in what a crash leaves.
    pub atomic: bool,
}

/// What an engine would do with a quiet moment.
#[derive(Debug)]
pub enum Idle {
    /// Nothing.
    Nothing,
    /// Close the open generation and write it.
    Commit,
    /// The same, for what the engine has to put in order: [`Cause::Idle`].
    Tidy,
    /// This.
    Run(Plan),
}

/// The most blocks that a generation may change, by what changes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Any operation.
    pub ordinary: usize,
    /// One that gives a place to content for which room was promised.
    pub promised: usize,
    /// One that frees, or only changes what is there.
    pub freeing: usize,
    /// One that makes a snapshot.
    pub keeping: usize,
    /// One that deletes a snapshot.
    pub deleting: usize,
}

impl Room {
    /// As much as the engine's limits allow.
    pub const ANY: Self = Self {
        ordinary: usize::MAX,
        promised: usize::MAX,
        freeing: usize::MAX,
        keeping: usize::MAX,
        deleting: usize::MAX,
    };
}

/// How much is needed, and how much more would be good to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Need<T> {
    /// At least this.
    pub must: T,
    /// Rather this, where there is plenty.
    pub should: T,
}

/// What an engine does wrong on purpose, for tests that it is caught.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Broken {
    /// Places of metadata are given out again in the generation that leaves them.
    pub reuse_places: bool,
    /// The number of a generation whose superblock was torn is used once more.
    pub reuse_number: bool,
    /// Leaves of the map whose entries are late are not written when the late entries go.
    pub keep_leaves: bool,
    /// Whoever asks for a generation to be durable gets the one before.
    pub short_sync: bool,
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

    /// Whether after so long without an operation everything should be on the device, also file content that has no place
    /// yet.
    fn rests(&self, _quiet: Duration) -> bool {
        false
    }

    /// What is to be done after the last generation, so that the volume can be put away.
    ///
    /// # Errors
    /// As [`Engine::plan`].
    fn close(&mut self, client: &dyn Client) -> Result<Plan>;

    /// How many blocks a generation may change that opens when all before it are durable.
    fn room(&self) -> Room {
        Room::ANY
    }

    /// As [`Engine::room`], while a generation of so many blocks is on its way.
    fn room_behind(&self, _blocks: usize) -> Room {
        Room::ANY
    }

    /// Chunks of the volume's data that the engine needs before a generation of so many blocks is planned.
    fn wanted_chunks(&self, _blocks: usize) -> Need<u64> {
        Need::default()
    }

    /// These chunks are the engine's from the closing generation on, or from one that is held.
    fn give_chunks(&mut self, _chunks: &[u32]) {}

    /// The open generation was thrown away, and with it the chunks that the engine was given in it.
    fn discard(&mut self) {}

    /// Chunks that the engine can do without, as much as the cause ([`Cause::Idle`], [`Cause::Tidy`]) says; they are
    /// not its own any more.
    fn spare_chunks(&mut self, _cause: Cause) -> Vec<u32> {
        Vec::new()
    }

    /// Whether nothing would be gained by [`Cause::Tidy`].
    fn is_tidy(&self) -> bool {
        true
    }

    /// The newest plan was carried out.
    fn durable(&mut self) {}
}

/// Every changed block to its home place, in any order; with a flush where there is something to flush, and somebody
/// waits or the time has come.
fn all_home(closed: &ClosedGeneration, block_size: usize) -> Stage {
    let place = |block: u64| block * block_size as u64;
    let writes = closed.blocks.iter();
    let writes =
        writes.map(|w| PlannedWrite { at: place(w.block.get()), data: w.data.clone(), kind: w.tag.kind }).collect();
    // where room was needed, nobody waits for it to be durable
    let flush = closed.cause != Cause::DirtyLimit && (closed.unflushed || !closed.blocks.is_empty());
    Stage { writes, flush }
}

/// The superblock with a mark, on the device before anything that follows.
fn marked(client: &dyn Client, mark: Mark) -> Stage {
    let (at, data) = client.mark(mark);
    Stage { writes: vec![PlannedWrite { at, data, kind: Kind::Superblock }], flush: true }
}
