//! The journal engine over real volumes, with the kernel and e2fsck as witnesses.

#[path = "../common/mod.rs"]
mod common;
mod crash;
mod shared;
mod toy;
