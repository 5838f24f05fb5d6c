//! The journal engine on real volumes, compared with the kernel and e2fsck.

#[path = "../common/mod.rs"]
mod common;
mod crash;
mod shared;
mod toy;
