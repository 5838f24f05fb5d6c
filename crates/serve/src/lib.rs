//! Block devices for other programs: an NBD server for any [`blockdev::BlockDevice`], and a FUSE file system of one
//! file.
//!
//! | file | holds |
//! | --- | --- |
//! | `wire` | numbers and bytes of the protocol; pure functions |
//! | `handshake` | options and their answers: a state machine |
//! | `command` | which requests are admitted |
//! | `served`, `flush` | a device that many use at once, and its flushes for all of them |
//! | `export` | what a request of a client does to it |
//! | `file` | the device as one file |
//! | `connection`, `budget` | one client over any `Read` and `Write`, with bounded memory |
//! | `address`, `socket` | where to listen; sockets of both kinds, and the file of one |
//! | `server` | accepting, counting and ending connections |
//!
//! 1. Nothing a client sends panics, or takes memory beyond [`connection::MEMORY`] and 64 KiB for an option.
//! 2. A reply without an error is sent when the device has returned from the request; with FUA, and to FLUSH, when a
//!    flush of the device has returned that began after all that it covers: the writes of every connection.
//! 3. After a flush that failed nothing is written any more, and no flush succeeds.
//! 4. A server that is stopped carries out the requests that have arrived as a whole, replies, and flushes.
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable)
)]

mod address;
mod budget;
pub mod command;
pub mod connection;
mod export;
mod file;
mod flush;
pub mod handshake;
mod served;
mod server;
mod socket;
pub mod wire;

pub use address::{Address, BadAddress};
pub use export::{Answer, Export};
pub use file::{File, FileOptions, PROBLEMS};
pub use server::{Error, Notice, Options, Server, Stopper};
