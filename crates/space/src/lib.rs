//! Free space: what is free, where to look first, and what is reserved.
//!
//! - A [`ContainerMap`] knows what is free in one group of the volume, and alone allocates. It consists of
//!   [`Container`]s, each of which is a set of units in its smallest form.
//! - [`Longest`] finds the next group that may have a run long enough, and [`RunSet`] is a set of blocks of a whole
//!   volume.
//! - A [`Policy`] sees totals for each group and names groups in the order in which they should be tried. A wrong
//!   policy can be slow, never corrupt.
//! - A [`Pool`] counts the volume's free units as a whole: what may be taken by whom, what is reserved for delayed
//!   data, and what was freed but is still needed by what a crash would bring back.
//!
//! Nothing here does I/O, and nothing knows how the maps are stored.
#![forbid(unsafe_code)]

mod container;
mod container_map;
mod longest;
mod policy;
mod pool;
mod run;
mod run_set;

pub use container::{Container, Form, SetError};
pub use container_map::ContainerMap;
pub use longest::Longest;
pub use policy::{GroupTotals, Policy, Sum, Totals};
pub use pool::{Pool, Privilege, Purpose};
pub use run::Run;
pub use run_set::{BlockRun, RunSet};
