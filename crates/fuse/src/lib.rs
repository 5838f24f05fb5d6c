//! Volumes in the directory tree, through FUSE.
//!
//! | file | holds |
//! | --- | --- |
//! | `options` | what `-o` may say |
//! | `mount` | attaching the file system to a directory and detaching it, as root or through fusermount3 |
//! | `session` | the transport: requests of the kernel to calls of `ops`, answers back |
//! | `ops` | what each request means on a [`fs::Volume`] |
//! | `errno` | the one table from errors to the numbers the kernel knows |
//! | `problems` | telling the user of damage, once for each file |
//!
//! `ops` knows nothing of the transport, and the transport nothing of volumes, so either can be exchanged.
//!
//! 1. A request that fails is an error for that request. A corrupt file is an error for that file; a panic is caught and
//!    becomes EIO. Neither ends the session.
//! 2. The volume is ours alone and does not change, so names, attributes and content that the kernel has once seen stay
//!    in its caches as long as it likes.
//! 3. What the transport cannot carry is missing, not wrong: the time of creation and the attribute bits of statx(2), and
//!    the volume's number in statfs(2). lsattr(1) shows the flags all the same.
//! 4. The kernel checks permissions, access control lists included (`default_permissions`, FUSE_POSIX_ACL).
#![forbid(unsafe_code)]

mod errno;
mod error;
mod mount;
mod ops;
mod options;
mod problems;
mod session;

pub use error::{Error, Result};
pub use mount::unmount;
pub use options::{Access, MountOptions};
pub use session::{Session, Unmounter, mount};
