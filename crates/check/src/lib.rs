//! The checker: reads all metadata of an ext2, ext3 or ext4 volume in disk order, finds what is wrong, and mends it.
//!
//! It shares no code with the file system: both stand on `format` (the bytes) and `blockdev` only.
//!
//! | room | holds |
//! | --- | --- |
//! | `checker` | one check from beginning to end |
//! | `open`, `descriptors`, `itables`, `journal`, `special`, `system_inode`, `recognise` | phase 0: superblock, descriptors, journal, the volume's own inodes |
//! | `scan`, `rounds` | reading in disk order; one round per tree level |
//! | `regions` | trees put together from metadata regions in round 0 |
//! | `inodes`, `looks`, `trees`, `files`, `xattrs` | phase 1: inodes, block maps, sums, attributes |
//! | `trail`, `multiply` | phase 1B: who owns what was claimed twice |
//! | `dirs`, `htree` | phase 2: directory blocks and hash trees |
//! | `connect`, `links` | phases 3 and 4 |
//! | `bitmaps`, `metadata` | phase 5, and the blocks that are the volume's own |
//! | `context`, `records`, `claims` | what the phases share: what is known of each inode and block |
//! | `table`, `problem`, `report`, `render` | what can be wrong, what was, and how it is told |
//! | `repair` | what is mended, in memory first |
//! | `rules` | what an administrator has laid down for single problems |
//! | `quota` | after all: the quota files against what everyone has |
//! | `estimate` | how long it will take |
#![forbid(unsafe_code)]

mod bitmaps;
mod checker;
mod claims;
mod connect;
mod context;
mod descriptors;
mod dirs;
mod estimate;
mod files;
mod htree;
mod inodes;
mod itables;
mod journal;
mod links;
mod looks;
mod metadata;
mod multiply;
mod native;
mod open;
mod paths;
mod policies;
mod quota;
mod recognise;
mod records;
mod regions;
mod repair;
mod rounds;
mod rules;
mod scan;
mod special;
mod system_inode;
mod trail;
mod trees;
mod xattrs;

pub mod problem;
pub mod render;
pub mod report;
pub mod table;

pub use checker::{Options, Progress, Repair, check, check_in_use};
pub use estimate::{DeviceSpeed, Estimate, Work, estimate, estimate_by};
pub use native::{Glance, InUse, is_native};
pub use open::Refusal;
pub use repair::{first_sight, release_orphans, repair, replay, unfinished};
pub use rules::{Rule, Rules};
