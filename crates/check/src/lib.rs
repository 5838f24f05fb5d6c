//! The checker: reads all metadata of an ext2, ext3 or ext4 volume in disk order and finds what is wrong.
//!
//! It shares no code with the file system: both stand on `format` (the bytes) and `blockdev` only.
#![forbid(unsafe_code)]

mod claims;
mod context;
mod files;
mod inodes;
mod metadata;
mod multiply;
mod records;
mod rounds;
mod scan;
mod trees;
mod xattrs;

pub mod problem;
pub mod render;
pub mod report;
pub mod table;
