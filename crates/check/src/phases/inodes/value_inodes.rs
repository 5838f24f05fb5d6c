//! Attribute values that live in inodes of their own.

use format::InodeNo;
use parking_lot::Mutex;
use std::collections::HashMap;

/// A value that lives in an inode of its own, as the entry that names it says.
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
    /// The attribute's name, for people.
    pub(super) title: Box<[u8]>,
}

/// The fields of an inode that holds a value.
#[derive(Debug, Clone, Copy)]
pub(super) struct ValueInode {
    pub(super) size: u64,
    pub(super) hash: u32,
    pub(super) refs: u64,
    pub(super) links: u16,
    /// Bytes of the blocks that it counts.
    pub(super) space: u64,
    /// The parent's number, in the form that Lustre wrote before values could be shared.
    pub(super) parent: u32,
}

impl ValueInode {
    /// The hash of an entry whose name has this hash.
    pub(super) fn entry_hash(&self, name: u32) -> u32 {
        name.rotate_left(16) ^ self.hash
    }

    /// Whether the entry's hash is that of the value here.
    pub(super) fn hashes(&self, value: &ValueRef) -> bool {
        value.name.iter().any(|name| self.entry_hash(*name) == value.hash)
    }
}

/// Values in inodes of their own, until both ends are known.
#[derive(Debug, Default)]
pub(crate) struct Values {
    pub(super) refs: Mutex<Vec<ValueRef>>,
    pub(super) inodes: Mutex<HashMap<InodeNo, ValueInode>>,
    /// The number of values that each inode shares, where it shares any; an inode may stand here twice.
    pub(super) charges: Mutex<Vec<(InodeNo, u64)>>,
}

impl Values {
    /// Takes out the number of values that each inode shares.
    pub(crate) fn take_charges(&self) -> Vec<(InodeNo, u64)> {
        std::mem::take(&mut *self.charges.lock())
    }
}
