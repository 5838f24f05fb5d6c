//! Volumes: inodes, block maps, files, directories, extended attributes, paths.
//!
//! [`Volume::open`] takes a device and returns a volume that many threads may read at once. All else is reached from
//! it:
//!
//! | to | call |
//! | --- | --- |
//! | find a name | [`Directories::lookup`], [`Directories::resolve`], [`Directories::read_dir`], [`Directories::walk`] |
//! | read an inode | [`Inodes::inode`], [`Inodes::attributes`] |
//! | read content | [`Files::read_at`], [`Files::seek_data`], [`Base::read_link`], [`Base::map`] |
//! | read attributes | [`Xattrs::list_xattrs`], [`Xattrs::get_xattr`] |
//! | get information on the volume | [`Disk::superblock`], [`Disk::summary`], [`Base::group`], [`Inodes::statfs`],
//! [`Base::warnings`], [`Volume::free_space_memory`] |
//! | change content | [`Files::write_at`], [`Files::truncate`], [`Files::allocate`], [`Files::fsync`], [`Files::attributes_of`] |
//! | change names | [`Names::create`], [`Names::symlink`], [`Names::link`], [`Names::unlink`], [`Names::rmdir`], [`Names::rename`] |
//! | change attributes of an inode | [`Files::set_attributes`], [`Files::set_xattr`], [`Files::remove_xattr`] |
//! | use a file without a name | [`Names::tmpfile`], [`Inodes::add_lookup`], [`Orphans::forget`] |
//! | make several changes atomically | [`Volume::transaction`] |
//! | take snapshots | [`Volume::create_snapshot`], [`Volume::snapshots`], [`Volume::open_snapshot`], [`Volume::delete_snapshot`], [`rollback`] |
//! | write | [`OpenOptions::write`], then [`Volume::sync`], [`Volume::tick`], [`Volume::unmount`]; [`Base::on_behalf_of`], [`Volume::trim`] |
//!
//! An [`Inode`] is a copy of the inode at the time it was read, and never changes. A corrupt structure is an error only
//! for the file it belongs to; no function here panics, loops, or allocates memory by sizes that a damaged volume
//! claims.
#![forbid(unsafe_code)]

mod acl;
mod admission;
mod alloc;
mod attributes;
mod base;
mod change;
mod commit_hooks;
mod content;
mod delayed;
mod dir;
mod disk;
mod engine;
mod error;
mod extents;
mod fallocate;
mod file;
mod free_space;
mod gate;
mod group_tables;
mod indirect;
mod inline_data;
mod inode;
mod journal;
mod layers;
mod layout;
mod linked;
mod lookup;
mod map;
mod memory_budget;
pub mod mkfs;
mod mmp;
mod mode;
mod mutant;
mod names;
mod native;
mod new_inodes;
mod node;
mod nokey;
mod open;
mod options;
mod orphan;
mod orphan_list;
mod path;
mod privilege;
mod rewritten;
mod rollback;
mod snapshots;
mod stat;
mod summary;
mod transaction;
mod trim;
mod truncate;
mod volume;
mod wakeup;
mod walk;
mod warnings;
mod writable;
mod writer;
mod xattr;

pub use admission::Admission;
pub use alloc::{DamagedGroup, FreeSpaceMemory, SpaceMapHead, SpaceMapSummary, SpaceMapTree, StoredFreeSpace};
pub use attributes::SetAttributes;
pub use base::Base;
pub use dir::{DirEntry, Directories, ReadDir};
pub use disk::Disk;
pub use error::{Error, Result};
pub use fallocate::AllocateMode;
pub use file::{Files, WriteHow, Written, without_privileges};
pub use format::inode::{FileKind, Inode, InodeFlags, Timestamp};
pub use format::{FileBlock, FsBlock, GroupNo, InodeNo};
pub use gate::{CallGuard, DirtySet, Member};
pub use inode::Inodes;
pub use map::{FileExtent, Mapping, Maps};
pub use mode::{Consistency, DataMode, Log, MODES, Mode, Placement, UnknownName};
#[cfg(feature = "mutants")]
#[doc(hidden)]
pub use mutant::Mutant;
pub use names::{Names, NewFile, RenameFlags};
pub use options::{Clock, OpenOptions, WriteOptions};
pub use orphan::Orphans;
pub use rollback::rollback;
pub use snapshots::SnapshotInfo;
pub use stat::{Attributes, COUNTED_GROUPS, StatFs};
pub use store::native::Summary as Generations;
pub use summary::VolumeSummary;
pub use transaction::Transaction;
pub use volume::Volume;
pub use walk::Walk;
pub use warnings::Warning;
pub use writable::unwritable;
pub use writer::Prune;
pub use xattr::{XattrMode, Xattrs};
