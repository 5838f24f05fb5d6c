//! Blocks of a volume, cached, and the recovery of its journal.
//!
//! The store stands between the file system and the device. [`Store`] hands out metadata blocks through a bounded cache
//! and file data straight from the device; [`recovery`] reads a journal that was not emptied and makes a device on which
//! every block has its recovered content, without a write.
//!
//! It knows blocks, transactions and journals. It knows neither names nor directories.
#![forbid(unsafe_code)]

mod cache;
mod error;
pub mod recovery;
mod volume;

pub use error::{Error, Result};
pub use volume::{DataRead, Store};
