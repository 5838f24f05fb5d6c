//! Volumes in the directory tree, through FUSE.
//!
//! | file | holds |
//! | --- | --- |
//! | `options`, `options/others` | what `-o` may say: ours, and what comes of the options of mount(8) and ext4(5) |
//! | `remount` | changing the flags of a mount |
//! | `volume` | a volume as a [`Filesystem`], and mounting it |
//! | `ops`, `ops/*` | what each request means on a [`fs::Volume`]: those that look, those that change |
//! | `snapshots` | `.extant/snapshots`: the versions of a native volume, beside it; `snapshots/client`: asking for them from another process |
//! | `transactions` | what happens whole or not at all: its members, and who waits |
//! | `losses` | open files that have to hear that content was lost |
//! | `preconditions` | what a request relies on that waits for a transaction of others |
//! | `errno` | the one table from errors to the numbers the kernel knows |
//! | `problem_reports` | reports of damage to the user, once for each file |
//!
//! The protocol, the transports and mounting are the crate `fuse-wire`, which knows nothing of volumes.
//!
//! 1. A request that fails is an error for that request. A corrupt file is an error for that file; a panic is caught
//!    and becomes EIO. Neither ends the session.
//! 2. The volume is ours alone, so names, attributes and content that the kernel has once seen stay in its caches as
//!    long as it likes.
//! 3. What the protocol cannot carry is missing, not wrong: the volume's number in statfs(2).
//! 4. The kernel checks permissions, access control lists included (`default_permissions`, FUSE_POSIX_ACL), except
//!    where only root gets in: see [`AttachOptions::kernel_checks`](fuse_wire::AttachOptions::kernel_checks).
#![forbid(unsafe_code)]

mod errno;
mod losses;
mod ops;
mod options;
mod preconditions;
mod problem_reports;
mod remount;
mod snapshots;
mod transactions;
mod volume;

pub use fuse_wire::{Access, Atime, AttachOptions, Error, Filesystem, Messages, Result, Session, Transport, Unmounter};
pub use fuse_wire::{Statistics, StayAwake, io_uring_is_off, mount_point, unmount, watchdog};
pub use options::{MountOptions, OnDamage, SnapshotFolder};
pub use remount::remount;
pub use snapshots::MountedSnapshots;
pub use transactions::MountedTransaction;
pub use volume::{answering, mount};
