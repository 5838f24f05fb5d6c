//! Names: directory entries, hash trees, the tree they make, and link counts, each spoilt by hand.
//!
//! Every spoilt volume is shown to e2fsck too: it must call sound what the check calls sound, and the other way round,
//! but for the few cases that say so.

mod entries;
mod htree;
mod paths;
mod random;
mod tree;
mod volume;
