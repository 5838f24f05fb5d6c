//! A volume for the tests of this crate.

use crate::feature::{Features, Incompat, RoCompat};
use crate::superblock::{DiskSuperblock, MAGIC, Superblock};
use zerocopy::IntoBytes;

/// An empty volume of one group with metadata_csum and 64bit.
pub(crate) fn volume() -> Superblock {
    let mut sb = DiskSuperblock::from_slice(&[0; 1024]).expect("1 024 bytes");
    sb.s_magic = MAGIC.into();
    sb.s_rev_level = 1.into();
    sb.s_log_block_size = 2.into();
    sb.s_log_cluster_size = 2.into();
    sb.s_inode_size = 256.into();
    sb.s_first_ino = 11.into();
    sb.s_blocks_per_group = 32768.into();
    sb.s_clusters_per_group = 32768.into();
    sb.s_inodes_per_group = 1024.into();
    sb.s_inodes_count = 1024.into();
    sb.s_desc_size = 64.into();
    sb.s_checksum_type = 1;
    sb.s_uuid = [7; 16];
    sb.set_features(Features::from_words(0, Incompat::BIT64.bits(), RoCompat::METADATA_CSUM.bits()));
    sb.set_blocks_count(20_000);
    sb.set_checksum();
    Superblock::parse(sb.as_bytes()).expect("a valid superblock")
}
