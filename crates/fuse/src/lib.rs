//! Volumes in the directory tree, through FUSE.
//!
//! | file | holds |
//! | --- | --- |
//! | `options`, `options/others` | what `-o` may say: ours, and what comes of the options of mount(8) and ext4(5) |
//! | `mount` | attaching the file system to a directory and detaching it, as root or through fusermount3 |
//! | `remount`, `mountinfo` | changing the flags of a mount, and what the kernel's list of mounts says of it |
//! | `watchdog` | the process that ends the connection of a server that was killed |
//! | `programs` | where losetup and fusermount3 lie |
//! | `claim` | a block device for the kernel to mount, so that it tells of sync(2) and umount(2) |
//! | `session` | a mounted file system from its mounting to its end |
//! | `protocol` | the kernel's structures and numbers |
//! | `request`, `reply` | requests read from bytes, answers written to them |
//! | `transport` | the two ways of a request to a file system, and of its answer back: /dev/fuse and io_uring |
//! | `ops`, `ops/write` | what each request means on a [`fs::Volume`]: those that look, those that change |
//! | `snapshots` | `.extant/snapshots`: the versions of a native volume, beside it |
//! | `mounted` | the same, asked for by another process |
//! | `transactions` | what happens whole or not at all: its members, and who waits |
//! | `pages` | what the kernel has of files and has not sent yet: what came, and having it write back the rest |
//! | `errno` | the one table from errors to the numbers the kernel knows |
//! | `problems` | telling the user of damage, once for each file |
//!
//! `ops` knows nothing of the transport, and the transport nothing of volumes, so either can be exchanged.
//!
//! 1. A request that fails is an error for that request. A corrupt file is an error for that file; a panic is caught and
//!    becomes EIO. Neither ends the session.
//! 2. The volume is ours alone, so names, attributes and content that the kernel has once seen stay in its caches as long
//!    as it likes.
//! 3. What the protocol cannot carry is missing, not wrong: the volume's number in statfs(2).
//! 4. The kernel checks permissions, access control lists included (`default_permissions`, FUSE_POSIX_ACL), except where
//!    only root gets in: see [`MountOptions::kernel_checks`].
#![deny(unsafe_code)]

mod claim;
mod errno;
mod error;
mod losses;
mod mount;
mod mounted;
mod mountinfo;
mod ops;
mod options;
mod pages;
mod problems;
mod programs;
mod protocol;
mod remount;
mod reply;
mod request;
mod seen;
mod session;
mod snapshots;
mod transactions;
mod transport;
mod watchdog;

pub use error::{Error, Result};
pub use mount::{mount_point, unmount};
pub use mounted::MountedSnapshots;
pub use options::{Access, Atime, MountOptions, OnDamage, SnapshotFolder};
pub use protocol::{Attr, Features, StatFs};
pub use remount::remount;
pub use reply::{Answer, Entry, Reply};
pub use request::{Caller, Changes, Operation, Request, SetTime};
pub use rustix::io::Errno;
pub use session::{Session, Unmounter, answering, mount, mount_filesystem};
pub use transactions::MountedTransaction;
pub use transport::{Filesystem, Kernel, Messages, Transport};
pub use watchdog::watchdog;
