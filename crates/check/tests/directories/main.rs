//! Names: directory entries, hash trees, the tree they make, and link counts, each damaged by hand.
//!
//! e2fsck checks every damaged volume too: its verdict must be the same, except in the few cases that state otherwise.

mod entries;
mod htree;
mod paths;
mod random;
mod tree;
mod volume;
