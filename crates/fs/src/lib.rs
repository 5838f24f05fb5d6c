//! Volumes: inodes, block maps, files, directories, extended attributes, paths.
//!
//! [`Volume::open`] takes a device and gives a volume that many threads may read at once. Everything hangs off it:
//!
//! | to | call |
//! | --- | --- |
//! | find a name | [`Volume::lookup`], [`Volume::resolve`], [`Volume::read_dir`], [`Volume::walk`] |
//! | look at an inode | [`Volume::inode`], [`Volume::attributes`] |
//! | read content | [`Volume::read_at`], [`Volume::seek_data`], [`Volume::read_link`], [`Volume::map`] |
//! | read attributes | [`Volume::list_xattrs`], [`Volume::get_xattr`] |
//! | see the volume as a whole | [`Volume::superblock`], [`Volume::group`], [`Volume::statfs`], [`Volume::notes`] |
//! | change content | [`Volume::write_at`], [`Volume::truncate`], [`Volume::allocate`], [`Volume::fsync`], [`Volume::attributes_of`] |
//! | change names | [`Volume::create`], [`Volume::symlink`], [`Volume::link`], [`Volume::unlink`], [`Volume::rmdir`], [`Volume::rename`] |
//! | change what an inode says | [`Volume::set_attributes`], [`Volume::set_xattr`], [`Volume::remove_xattr`] |
//! | use a file without a name | [`Volume::tmpfile`], [`Volume::hold`], [`Volume::release`] |
//! | do several things at once or not at all | [`Volume::transaction`] |
//! | keep versions | [`Volume::create_snapshot`], [`Volume::snapshots`], [`Volume::open_snapshot`], [`Volume::delete_snapshot`], [`rollback`] |
//! | write | [`OpenOptions::write`], then [`Volume::sync`], [`Volume::tick`], [`Volume::unmount`]; [`Volume::on_behalf_of`], [`Volume::trim`] |
//!
//! An [`Inode`] is what the inode was when it was read, and never changes under its holder. A corrupt structure is an
//! error for the file it belongs to and for no other; nothing here panics, loops, or takes memory by what a damaged
//! volume claims.
#![forbid(unsafe_code)]

mod acl;
mod alloc;
mod attributes;
mod behalf;
mod change;
mod delayed;
mod dir;
mod error;
mod extents;
mod fallocate;
mod file;
mod finish;
mod gate;
mod indirect;
mod inline;
mod inode;
mod layout;
mod lookup;
mod map;
mod memory;
pub mod mkfs;
mod mmp;
mod names;
mod native;
mod node;
mod nokey;
mod notes;
mod orphan;
mod path;
mod rollback;
mod snapshots;
mod stat;
mod transaction;
mod trim;
mod truncate;
mod volume;
mod walk;
mod writable;
mod writing;
mod xattr;

pub use alloc::DamagedGroup;
pub use attributes::SetAttributes;
pub use dir::{DirEntry, ReadDir};
pub use error::{Error, Result};
pub use fallocate::AllocateMode;
pub use file::{WriteHow, Written, without_privileges};
pub use format::inode::{FileKind, Inode, InodeFlags, Timestamp};
pub use format::{FileBlock, FsBlock, GroupNo, InodeNo};
pub use gate::{Inside, Pass, Touched};
pub use map::{Place, Run};
pub use names::{NewFile, RenameFlags};
pub use notes::Note;
pub use rollback::rollback;
pub use snapshots::SnapshotInfo;
pub use stat::{Attributes, StatFs};
#[doc(hidden)]
pub use store::engine::Broken;
pub use store::native::Facts as NativeFacts;
pub use transaction::Transaction;
pub use volume::{OpenOptions, Volume};
pub use walk::Walk;
pub use writable::unwritable;
pub use writing::{Clock, Consistency, DataMode, LetGo, Placement, WriteOptions};
pub use xattr::XattrMode;
