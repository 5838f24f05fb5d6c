//! The phases of a check, as e2fsck counts its passes.
//!
//! | module | phase |
//! | --- | --- |
//! | `superblock` | 0: superblock, group descriptors, journal, resize inode, orphans, multiple-mount protection |
//! | `inodes` | 1: inodes, block maps, attributes |
//! | `multiply_claimed` | 1B: the owners of multiply-claimed blocks |
//! | `directories` | 2: directory blocks and hash trees |
//! | `connectivity` | 3: the connection of every directory to the root |
//! | `links` | 4: link counts |
//! | `bitmaps` | 5: bitmaps and free counts |
//! | `quota` | after all: the quota files |

pub(crate) mod bitmaps;
pub(crate) mod connectivity;
pub(crate) mod directories;
pub(crate) mod inodes;
pub(crate) mod links;
pub(crate) mod multiply_claimed;
pub(crate) mod quota;
pub(crate) mod superblock;
