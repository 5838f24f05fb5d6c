//! Blocks of a volume: cached, changed by operations, and written to the device by a consistency engine.
//!
//! The store is the layer between the file system and the device.
//!
//! - [`Store`] returns metadata blocks through a bounded cache and file data directly from the device.
//! - An [`Operation`] changes blocks. It belongs completely to the *generation* that was open when it began.
//! - A generation closes on a dirty limit, a timeout, or a sync; the [`Engine`] turns its changes into a [`Plan`]:
//!   writes, their order, flushes. The store executes it while the next generation is open.
//! - [`recovery`] reads a journal that was not emptied and creates a device on which every block has its recovered
//!   content, without a write.
//!
//! It handles blocks, transactions and journals, but neither names nor directories.
#![forbid(unsafe_code)]

mod cache;
mod change_record;
pub mod engine;
mod error;
mod generation;
mod metadata_space;
mod mutant;
pub mod native;
mod operation;
mod plan;
pub mod recovery;
mod store;
mod supply;
mod transaction_generation;
mod writer;

pub use change_record::{ChangeRecord, Part};
pub use engine::Engine;
pub use error::{Error, Result};
pub use generation::{
    BlockWrite, ClosedGeneration, CommitReason, FreshExtent, Kind, OperationKind, StateSource, Tag, VolumeState,
};
pub use metadata_space::{Compaction, DirtyLimits, EngineWithSpace, MetadataSpace, Need};
#[doc(hidden)]
pub use mutant::Injected;
#[cfg(feature = "mutants")]
#[doc(hidden)]
pub use mutant::Mutant;
pub use operation::{Closing, CommitHooks, Operation, SpaceHooks};
pub use plan::{Plan, PlannedWrite, Stage};
pub use store::{DataRead, Store};
