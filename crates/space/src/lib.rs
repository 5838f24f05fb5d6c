//! Free space: the free units, the order in which groups are searched, and reservations.
//!
//! - A [`ContainerMap`] is the free space of one group of the volume, and the only place where units are allocated. It
//!   consists of [`Container`]s, each of which is a set of units in its smallest form.
//! - [`Longest`] finds the next group that may have a long enough run, and [`RunSet`] is a set of blocks of a whole
//!   volume.
//! - A [`Policy`] uses totals of each group and returns groups in the order in which they should be tried. A wrong
//!   policy can be slow, but cannot corrupt anything.
//! - A [`Pool`] counts the volume's free units as a whole: those available for each privilege, those reserved for
//!   delayed data, and those that were freed but are still needed in case of a crash.
//!
//! Nothing here does I/O or depends on how the maps are stored.
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
