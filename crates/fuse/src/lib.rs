//! Volumes in the directory tree, through FUSE.
//!
//! | file | content |
//! | --- | --- |
//! | `options`, `options/others` | the options of `-o`: our own, and those of mount(8) and ext4(5) |
//! | `remount` | changing the flags of a mount |
//! | `volume` | a volume as a [`Filesystem`], and mounting it |
//! | `ops`, `ops/*` | each request as a call of an [`fs::Volume`]: those that read, those that change |
//! | `snapshots` | `.extant/snapshots`: the snapshots of a native volume, in its mount; `snapshots/client`: access from another process |
//! | `transactions` | atomic groups of calls: their members, and the requests that wait for them |
//! | `preconditions` | the state that a request relies on while it waits for a transaction |
//! | `errno` | the mapping from errors to error numbers |
//! | `problem_reports` | reports of damage to the user, once for each file |
//!
//! The protocol, the transports and mounting are in the crate `fuse-wire`, which does not depend on volumes.
//!
//! 1. A request that fails is an error for that request. A corrupt file is an error for that file; a panic is caught
//!    and becomes EIO. Neither ends the session.
//! 2. No other program changes the volume, so names, attributes and content stay in the kernel's caches without a time
//!    limit.
//! 3. Values that the protocol cannot carry are omitted, not wrong: the volume's ID in statfs(2).
//! 4. The kernel checks permissions, access control lists included (`default_permissions`, FUSE_POSIX_ACL), except
//!    where only root has access: see [`AttachOptions::kernel_checks`](fuse_wire::AttachOptions::kernel_checks).
#![forbid(unsafe_code)]

mod errno;
mod ops;
mod options;
mod preconditions;
mod problem_reports;
mod remount;
mod snapshots;
mod transactions;
mod volume;

pub use fuse_wire::{Access, Atime, AttachOptions, Error, Filesystem, Messages, Result, Session, Transport, Unmounter};
pub use fuse_wire::{Statistics, io_uring_is_off, mount_point, unmount, watchdog};
pub use options::{MountOptions, OnDamage, SnapshotFolder};
pub use remount::remount;
pub use snapshots::MountedSnapshots;
pub use transactions::MountedTransaction;
pub use volume::{answering, mount};
