//! Images, oracles and models for the tests of every crate.
//!
//! - [`Image`] creates volumes with mke2fs and modifies them with debugfs; [`Tree`] writes a folder with every kind of
//!   file and records its content.
//! - [`device::conforms`] is the conformance test of every block device.
//! - [`oracle`] runs independent implementations: e2fsck, debugfs, the kernel's mount. [`Manifest`] contains everything
//!   visible to a walk over a tree, and lists each difference to another.
//! - [`damage`] corrupts bytes; [`cases`] sets a seed for each random case; a failing one prints the line that
//!   reproduces it.
//! - [`repair_checksums`] corrects checksums that would otherwise reject a damaged volume.
//! - [`tools`] finds and runs programs. A missing one fails the test; a missing capability of the machine is a visible
//!   skip.
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
