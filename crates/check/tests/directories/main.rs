//! Names: directory entries, hash trees, the tree they make, and link counts, each damaged by hand.
//!
//! Every damaged volume is shown to e2fsck too: it must call clean what the check calls clean, and the other way round,
//! but for the few cases that say so.

mod entries;
mod htree;
mod paths;
mod random;
mod tree;
mod volume;
