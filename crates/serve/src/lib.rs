//! Block devices for other programs: an NBD server for any [`blockdev::BlockDevice`], and a FUSE file system with one
//! file.
//!
//! | file | content |
//! | --- | --- |
//! | `wire` | numbers and bytes of the protocol; pure functions |
//! | `handshake` | options and their answers: a state machine |
//! | `command` | the check of requests |
//! | `served`, `flush` | a device with concurrent clients, and its flushes for all of them |
//! | `export` | the execution of a client's requests |
//! | `file` | the device as one file |
//! | `connection`, `budget` | one client over any `Read` and `Write`, with bounded memory |
//! | `address`, `socket` | listening addresses; Unix and TCP sockets, and the file of a Unix socket |
//! | `server` | accepting, counting and ending connections |
//!
//! 1. No bytes from a client cause a panic, or take memory beyond [`connection::MEMORY`] and 64 KiB for an option.
//! 2. A reply without an error is sent when the device has completed the request; with FUA, and to FLUSH, when a flush
//!    of the device has completed that began after everything it covers: the writes of every connection.
//! 3. After a failed flush nothing is written, and no flush succeeds.
//! 4. A server that is stopped executes the requests that have fully arrived, answers them, and flushes.
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
