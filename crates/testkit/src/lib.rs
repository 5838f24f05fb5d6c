//! Images, oracles and models for the tests of every crate.
//!
//! - [`Image`] makes volumes with mke2fs and changes them with debugfs; [`Tree`] writes a folder of every kind of file
//!   and knows what it wrote.
//! - [`device::conforms`] is what every block device must do.
//! - [`oracle`] asks what is not our code: e2fsck, debugfs, the kernel's mount. [`Manifest`] says all that a walk over
//!   a tree can see, and names each difference to another.
//! - [`damage`] corrupts bytes; [`cases`] sets a seed for each random case; a failing one prints the line that repeats
//!   it.
//! - [`repair_checksums`] puts right what would stop a damaged volume at the door.
//! - [`tools`] finds and runs programs. A missing one fails the test; what the machine itself cannot do is a skip that
//!   is seen.
//!
//! Everything here may panic with a plain sentence: its callers are tests.

#![forbid(unsafe_code)]

mod checksums;
pub mod damage;
pub mod device;
mod image;
mod manifest;
pub mod oracle;
mod rng;
pub mod space_maps;
pub mod tools;
mod tree;

pub use checksums::repair_checksums;
pub use image::{Image, Mke2fs};
pub use manifest::{ContentHash, Entry, Field, FileKind, Manifest, Time, walk};
pub use rng::{Case, Rng, cases, rounds};
pub use tools::need;
pub use tree::{Spec, Times, Tree, fill};
