//! Types for numbers with a unit, so that a block of a file cannot be used as a block of the volume.

use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};

macro_rules! unit {
    ($(#[$meta:meta])* $name:ident($int:ty)) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $int);

        impl $name {
            /// The number itself.
            #[inline]
            pub const fn get(self) -> $int { self.0 }

            /// `self + n`, or `None` where that overflows.
            #[inline]
            #[must_use]
            pub const fn checked_add(self, n: $int) -> Option<Self> {
                match self.0.checked_add(n) { Some(v) => Some(Self(v)), None => None }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { self.0.fmt(f) }
        }
    };
}

unit!(
    /// A block of the volume, counted from its start; the unit is the volume's block size.
    FsBlock(u64)
);
unit!(
    /// A block of a file, counted from the file's start ("logical block").
    FileBlock(u64)
);
unit!(
    /// A block group.
    GroupNo(u32)
);
unit!(
    /// An inode number; the first inode is 1.
    InodeNo(u32)
);
unit!(
    /// A length in bytes.
    ByteLen(u64)
);

impl InodeNo {
    /// The list of bad blocks.
    pub const BAD_BLOCKS: Self = Self(1);
    /// The root directory.
    pub const ROOT: Self = Self(2);
    /// User quota.
    pub const USER_QUOTA: Self = Self(3);
    /// Group quota.
    pub const GROUP_QUOTA: Self = Self(4);
    /// Boot loader.
    pub const BOOT_LOADER: Self = Self(5);
    /// Undelete directory (never used).
    pub const UNDELETE: Self = Self(6);
    /// The group descriptor blocks reserved for growth.
    pub const RESIZE: Self = Self(7);
    /// The journal.
    pub const JOURNAL: Self = Self(8);
}

/// Hasher for one of these numbers as a key: a multiplication, as the standard hash takes as long as the rest of a
/// look-up. Chosen numbers can collide, so the map must be bounded.
#[derive(Debug, Clone, Copy, Default)]
pub struct NumberHasher(u64);

/// Hash builder for maps with one of these numbers as key; see [`NumberHasher`].
pub type ByNumber = BuildHasherDefault<NumberHasher>;

impl Hasher for NumberHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    #[inline]
    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }

    #[inline]
    fn write_u64(&mut self, number: u64) {
        let mixed = (self.0 ^ number).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        self.0 = mixed ^ (mixed >> 32);
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}
