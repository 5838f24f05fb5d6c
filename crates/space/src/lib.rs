//! Free space: what is free, where to look first, and what is promised.
//!
//! - A [`FreeMap`] knows what is free in one stretch of the volume, and is the only one that sets bits. [`GroupMap`] is the
//!   one for a bitmap.
//! - A [`Policy`] sees totals for each group and names groups in the order in which they should be tried. A wrong policy
//!   can be slow, never corrupt.
//! - A [`Pool`] counts the volume's free units as a whole: what may be taken by whom, what is promised to content that has
//!   no place yet, and what was freed but is still needed by what a crash would bring back.
//!
//! Nothing here does I/O, and nothing knows how the maps are stored.
#![forbid(unsafe_code)]

mod map;
mod policy;
mod pool;

pub use map::{FreeMap, GroupMap, Run};
pub use policy::{GroupTotals, Policy, Sum, Totals};
pub use pool::{Claim, Pool, Purpose};
