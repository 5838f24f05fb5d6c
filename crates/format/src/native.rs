//! The native format: a copy-on-write map beneath an ordinary ext4 volume.
//!
//! Above the map the volume is an ext4 volume (extents, hashed directories, checksums, no journal) of twice as many
//! groups as the device has. The first half of its block numbers are the device's own blocks, used for file data
//! without a map. The second half are *metadata groups*: block numbers that exist only where the map has a *physical
//! block* of the device for them. The *front*, superblock and descriptors at the start of group 0, is mapped too. So
//! every metadata block has a constant number, which the rest of the volume uses, and moves to another physical block
//! in each generation that changes it.
//!
//! - [`superblock`]: two superblocks, written alternately, each with its generation's number in every sector.
//! - [`map`]: from the *index* of a metadata block to its physical block; kind, owner and checksum of a block are in
//!   the entry that leads to it.
//! - [`chunk_table`]: which blocks of the metadata regions are in use.
//! - [`snapshots`]: generations that are pinned.
//!
//! Indexes, in this order: the front; the blocks of the metadata groups; the blocks of the chunk table; the blocks of
//! the list of snapshots.

pub mod chunk_table;
mod layout;
pub mod map;
pub mod snapshots;
pub mod superblock;

pub use layout::{BLOCK_SIZE, CHUNK_BLOCKS, GROUP_BLOCKS, HEAD, LEAST_BLOCKS, Layout, MOST_BLOCKS};
