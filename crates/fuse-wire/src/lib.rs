//! FUSE for any file system: the kernel's protocol, the transports that carry it, and mounts.
//!
//! A file system implements [`Filesystem`]; [`Session::mount`] attaches it to a directory and [`Session::run`] answers
//! the kernel's requests. Nothing here depends on volumes.
//!
//! | file | content |
//! | --- | --- |
//! | `protocol` | the kernel's structures and numbers |
//! | `request`, `reply` | requests read from bytes, answers written to them |
//! | `handle` | the numbers of open files |
//! | `filesystem` | the interface of a file system, and the notifications that it can send to the kernel |
//! | `transport` | the two transports of requests and answers: /dev/fuse and io_uring |
//! | `mount` | attaching a file system to a directory and detaching it, as root or through fusermount3 |
//! | `mountinfo` | entries of /proc/self/mountinfo |
//! | `loop_device` | a block device for the kernel to mount, so that it sends sync(2) and waits in umount(2) |
//! | `programs` | the paths of losetup and fusermount3 |
//! | `connection_watchdog` | the process that aborts the connection of a server that was killed |
//! | `writeback` | waiting until the kernel has written back its dirty pages |
//! | `statistics` | messages by kind and time spent polling, read through the mount |
//! | `session` | a mounted file system from mount to unmount |
//!
//! 1. A request that fails is an error for that request; a panic is caught and becomes EIO. Neither ends the session.
//! 2. Whatever the bytes of a request are, parsing returns a request or `None`.
#![deny(unsafe_code)]

mod connection_watchdog;
mod error;
mod filesystem;
mod handle;
mod loop_device;
mod mount;
mod mountinfo;
mod programs;
mod protocol;
mod reply;
mod request;
mod session;
mod statistics;
mod transport;
mod writeback;

pub use connection_watchdog::watchdog;
pub use error::{Error, Result};
pub use filesystem::{Filesystem, Kernel};
pub use handle::new_handle;
pub use mount::{Access, Atime, AttachOptions, DAEMON, SYNC, SYNC_ONCE, is_ours, mount_point};
pub use mount::{read_sync, resolve, unmount};
pub use mountinfo::{MountInfo, mounted_on};
pub use protocol::{Attr, Features, StatFs, StatxOut, StatxTime};
pub use reply::{Answer, Entry, Reply};
pub use request::{Caller, Changes, Operation, Request, SetTime};
pub use rustix::io::Errno;
pub use session::{Session, Unmounter};
pub use statistics::Statistics;
pub use transport::{Messages, Transport, io_uring_is_off};
pub use writeback::{Writeback, WritebackError};
