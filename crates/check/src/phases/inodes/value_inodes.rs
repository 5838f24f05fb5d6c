//! Attribute values stored in inodes of their own.

use format::InodeNo;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};

/// A reference to a value in an inode of its own, from an attribute's entry.
#[derive(Debug, Clone)]
pub(super) struct ValueRef {
    pub(super) target: InodeNo,
    pub(super) owner: InodeNo,
    pub(super) size: u32,
    pub(super) hash: u32,
    /// Hash of the name alone, as far as the entry's hash depends on it: signed and unsigned characters.
    pub(super) name: [u32; 2],
    /// Inodes that share the entry, through its block.
    pub(super) shares: u32,
    /// The attribute's name, for messages.
    pub(super) title: Box<[u8]>,
}

/// The fields of an inode that contains a value.
#[derive(Debug, Clone, Copy)]
pub(super) struct ValueInode {
    pub(super) mode: u16,
    /// Whether `mode` is that of a regular file.
    pub(super) regular: bool,
    pub(super) size: u64,
    pub(super) hash: u32,
    pub(super) refs: u64,
    pub(super) links: u16,
    /// The parent's number, in the form that Lustre wrote before values could be shared.
    pub(super) parent: u32,
}

impl ValueInode {
    /// The hash of an entry whose name has this hash.
    pub(super) fn entry_hash(&self, name: u32) -> u32 {
        name.rotate_left(16) ^ self.hash
    }

    /// Whether the entry's hash matches the value in the inode.
    pub(super) fn hashes(&self, value: &ValueRef) -> bool {
        value.name.iter().any(|name| self.entry_hash(*name) == value.hash)
    }
}

/// A size that does not match the blocks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mismatch {
    pub(super) size: u64,
    pub(super) by_blocks: u64,
}

/// Values in inodes of their own, and the references to them.
#[derive(Debug, Default)]
pub(crate) struct Values {
    pub(super) refs: Mutex<Vec<ValueRef>>,
    pub(super) inodes: Mutex<HashMap<InodeNo, ValueInode>>,
    /// The size by its blocks of each inode whose size does not match them.
    pub(super) mapped: Mutex<BTreeMap<InodeNo, Mismatch>>,
    /// The number of values that an inode shares, for those that share any; an inode may be listed twice.
    pub(super) charges: Mutex<Vec<(InodeNo, u64)>>,
}

impl Values {
    /// Removes and returns the number of values that each inode shares.
    pub(crate) fn take_charges(&self) -> Vec<(InodeNo, u64)> {
        std::mem::take(&mut *self.charges.lock())
    }
}
