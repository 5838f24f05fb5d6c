//! The bytes of ext2, ext3, ext4 and jbd2.
//!
//! There are two kinds of types. A *disk structure* (declared with `disk_struct!`) is any bytes, not validated, with
//! the field names of the kernel's format documentation. A *validated* type is created from bytes by a `parse` function
//! that checks all of the type's guarantees. The file system reads through validated types; the checker reads the disk
//! structures and checks field by field.
//!
//! No I/O, no unsafe, no panic on any input. FORMAT.md shows the same tables and is tested against them.
#![forbid(unsafe_code)]

#[macro_use]
mod disk;
mod error;
mod layout;
mod units;

pub mod acl;
pub mod casefold;
pub mod checksum;
pub mod dir;
pub mod extent;
pub mod feature;
pub mod group;
pub mod hash;
pub mod htree;
pub mod indirect;
pub mod inline;
pub mod inode;
pub mod jbd2;
pub mod linked;
pub mod mmp;
pub mod native;
pub mod orphan;
pub mod quota;
pub mod redo;
pub mod space_map;
pub mod superblock;
pub mod tail;
pub mod xattr;

#[cfg(test)]
mod testing;

pub use disk::FieldAt;
pub use error::{Error, Result, Structure, Where};
pub use layout::InodeSlot;
pub use units::{ByNumber, ByteLen, FileBlock, FsBlock, GroupNo, InodeNo, NumberHasher};
