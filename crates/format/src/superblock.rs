//! The superblock: its bytes, and the geometry of the volume derived from them.

use crate::checksum::crc32c;
use crate::feature::{Compat, Extant, ExtantRo, Features, Incompat, RoCompat};
use crate::{Error, FsBlock, GroupNo, InodeNo, Result, Structure};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

/// `s_magic`
pub const MAGIC: u16 = 0xEF53;
/// The offset of the first superblock, in bytes from the volume's start.
pub const OFFSET: u64 = 1024;

disk_struct! {
    /// The superblock (`ext4_super_block`).
    pub struct DiskSuperblock[1024] {
        /// inodes
        0x000 s_inodes_count: U32,
        /// blocks, low half
        0x004 s_blocks_count_lo: U32,
        /// blocks reserved for the superuser, low half
        0x008 s_r_blocks_count_lo: U32,
        /// free blocks (clusters under bigalloc, counted in blocks), low half
        0x00C s_free_blocks_count_lo: U32,
        /// free inodes
        0x010 s_free_inodes_count: U32,
        /// the block of the superblock: 1 with blocks of 1 024 bytes, otherwise 0
        0x014 s_first_data_block: U32,
        /// block size is `2 ^ (10 + this)` bytes
        0x018 s_log_block_size: U32,
        /// cluster size is `2 ^ (10 + this)` bytes
        0x01C s_log_cluster_size: U32,
        /// blocks in a group
        0x020 s_blocks_per_group: U32,
        /// clusters in a group
        0x024 s_clusters_per_group: U32,
        /// inodes in a group
        0x028 s_inodes_per_group: U32,
        /// last mount, seconds, low half
        0x02C s_mtime: U32,
        /// last write, seconds, low half
        0x030 s_wtime: U32,
        /// mounts since the last check
        0x034 s_mnt_count: U16,
        /// mounts after which a check is due; -1 for never
        0x036 s_max_mnt_count: U16,
        /// 0xEF53
        0x038 s_magic: U16,
        /// [`State`](crate::superblock::State)
        0x03A s_state: U16,
        /// behaviour on errors: 1 continue, 2 read-only, 3 panic
        0x03C s_errors: U16,
        /// minor revision
        0x03E s_minor_rev_level: U16,
        /// last check, seconds, low half
        0x040 s_lastcheck: U32,
        /// longest time between checks, seconds; 0 for none
        0x044 s_checkinterval: U32,
        /// creator: 0 Linux, 1 Hurd, 2 Masix, 3 FreeBSD, 4 Lites
        0x048 s_creator_os: U32,
        /// 0 for the first revision (fixed inode size, no features), 1 for the dynamic one
        0x04C s_rev_level: U32,
        /// user that may use reserved blocks
        0x050 s_def_resuid: U16,
        /// group that may use reserved blocks
        0x052 s_def_resgid: U16,
        /// first inode that is not reserved
        0x054 s_first_ino: U32,
        /// bytes in an inode
        0x058 s_inode_size: U16,
        /// the group of this copy
        0x05A s_block_group_nr: U16,
        /// compatible features
        0x05C s_feature_compat: U32,
        /// incompatible features
        0x060 s_feature_incompat: U32,
        /// features a reader may ignore
        0x064 s_feature_ro_compat: U32,
        /// the volume's UUID
        0x068 s_uuid: [u8; 16],
        /// the volume's label
        0x078 s_volume_name: [u8; 16],
        /// last mount point
        0x088 s_last_mounted: [u8; 64],
        /// compression algorithms (unused)
        0x0C8 s_algorithm_usage_bitmap: U32,
        /// blocks to preallocate for files (unused)
        0x0CC s_prealloc_blocks: u8,
        /// blocks to preallocate for directories (unused)
        0x0CD s_prealloc_dir_blocks: u8,
        /// descriptor blocks reserved for growth
        0x0CE s_reserved_gdt_blocks: U16,
        /// UUID of an external journal
        0x0D0 s_journal_uuid: [u8; 16],
        /// the journal's inode
        0x0E0 s_journal_inum: U32,
        /// device number of an external journal
        0x0E4 s_journal_dev: U32,
        /// head of the list of orphan inodes
        0x0E8 s_last_orphan: U32,
        /// seed of directory hashes
        0x0EC s_hash_seed: [U32; 4],
        /// hash of new directories
        0x0FC s_def_hash_version: u8,
        /// content of `s_jnl_blocks`: 1 for the journal inode's block map
        0x0FD s_jnl_backup_type: u8,
        /// bytes in a group descriptor under 64bit
        0x0FE s_desc_size: U16,
        /// default mount options
        0x100 s_default_mount_opts: U32,
        /// first meta group that has its own descriptors
        0x104 s_first_meta_bg: U32,
        /// time of creation, seconds, low half
        0x108 s_mkfs_time: U32,
        /// copy of the journal inode's `i_block`, then its size: high half, low half
        0x10C s_jnl_blocks: [U32; 17],
        /// blocks, high half
        0x150 s_blocks_count_hi: U32,
        /// reserved blocks, high half
        0x154 s_r_blocks_count_hi: U32,
        /// free blocks, high half
        0x158 s_free_blocks_count_hi: U32,
        /// extra bytes in every inode
        0x15C s_min_extra_isize: U16,
        /// extra bytes that new inodes should have
        0x15E s_want_extra_isize: U16,
        /// [`Flags`](crate::superblock::Flags)
        0x160 s_flags: U32,
        /// RAID stride in blocks
        0x164 s_raid_stride: U16,
        /// seconds between checks of the multiple-mount-protection block
        0x166 s_mmp_interval: U16,
        /// the multiple-mount-protection block
        0x168 s_mmp_block: U64,
        /// RAID stripe width in blocks
        0x170 s_raid_stripe_width: U32,
        /// groups in a flexible group is `2 ^ this`
        0x174 s_log_groups_per_flex: u8,
        /// 1 for CRC32C
        0x175 s_checksum_type: u8,
        /// encryption version (unused)
        0x176 s_encryption_level: u8,
        /// unused
        0x177 s_reserved_pad: u8,
        /// KiB ever written
        0x178 s_kbytes_written: U64,
        /// snapshot inode (unused)
        0x180 s_snapshot_inum: U32,
        /// snapshot number (unused)
        0x184 s_snapshot_id: U32,
        /// snapshot reservation (unused)
        0x188 s_snapshot_r_blocks_count: U64,
        /// snapshot list (unused)
        0x190 s_snapshot_list: U32,
        /// errors seen
        0x194 s_error_count: U32,
        /// first error, seconds
        0x198 s_first_error_time: U32,
        /// inode of the first error
        0x19C s_first_error_ino: U32,
        /// block of the first error
        0x1A0 s_first_error_block: U64,
        /// function that saw the first error
        0x1A8 s_first_error_func: [u8; 32],
        /// line that saw the first error
        0x1C8 s_first_error_line: U32,
        /// last error, seconds
        0x1CC s_last_error_time: U32,
        /// inode of the last error
        0x1D0 s_last_error_ino: U32,
        /// line that saw the last error
        0x1D4 s_last_error_line: U32,
        /// block of the last error
        0x1D8 s_last_error_block: U64,
        /// function that saw the last error
        0x1E0 s_last_error_func: [u8; 32],
        /// mount options
        0x200 s_mount_opts: [u8; 64],
        /// user quota's inode
        0x240 s_usr_quota_inum: U32,
        /// group quota's inode
        0x244 s_grp_quota_inum: U32,
        /// blocks of bitmaps and tables (unused)
        0x248 s_overhead_blocks: U32,
        /// groups of the two backups under sparse_super2
        0x24C s_backup_bgs: [U32; 2],
        /// encryption algorithms
        0x254 s_encrypt_algos: [u8; 4],
        /// encryption salt
        0x258 s_encrypt_pw_salt: [u8; 16],
        /// lost+found's inode (unused)
        0x268 s_lpf_ino: U32,
        /// project quota's inode
        0x26C s_prj_quota_inum: U32,
        /// seed of checksums under metadata_csum_seed
        0x270 s_checksum_seed: U32,
        /// last write, seconds, bits 32-39
        0x274 s_wtime_hi: u8,
        /// last mount, bits 32-39
        0x275 s_mtime_hi: u8,
        /// time of creation, bits 32-39
        0x276 s_mkfs_time_hi: u8,
        /// last check, bits 32-39
        0x277 s_lastcheck_hi: u8,
        /// first error, bits 32-39
        0x278 s_first_error_time_hi: u8,
        /// last error, bits 32-39
        0x279 s_last_error_time_hi: u8,
        /// code of the first error
        0x27A s_first_error_errcode: u8,
        /// code of the last error
        0x27B s_last_error_errcode: u8,
        /// encoding of names under casefold: 1 for UTF-8 12.1
        0x27C s_encoding: U16,
        /// 1 for strict encoding
        0x27E s_encoding_flags: U16,
        /// inode of the orphan file
        0x280 s_orphan_file_inum: U32,
        /// default reserved uid, high half
        0x284 s_def_resuid_hi: U16,
        /// default reserved gid, high half
        0x286 s_def_resgid_hi: U16,
        /// unused
        0x288 s_reserved: [U32; 14],
        /// Extant's own features, under the feature extant: [`Extant`]
        0x2C0 x_features: U32,
        /// initial blocks of a group's metadata region, under regions
        0x2C4 x_region_blocks: U32,
        /// Extant's own features that a reader may ignore, under the feature extant_ro: [`ExtantRo`]
        0x2C8 x_ro_features: U32,
        /// groups in a metablockgroup, under space_maps
        0x2CC x_map_groups: U32,
        /// first block of the table of heads, under space_maps; the log follows the table
        0x2D0 x_map_start: U64,
        /// blocks of the log, under space_maps
        0x2D8 x_space_map_log: U32,
        /// unused except for the pointer to a redo log, see [`redo`](crate::redo)
        0x2DC s_reserved2: [U32; 72],
        /// CRC32C of the superblock without this field
        0x3FC s_checksum: U32,
    }
}

bitflags::bitflags! {
    /// `s_state`
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct State: u16 {
        /// unmounted cleanly
        const VALID = 1;
        /// errors were found
        const ERROR = 2;
        /// orphans are being recovered
        const ORPHAN = 4;
        /// fast-commit replay is in progress
        const FC_REPLAY = 0x20;
    }

    /// `s_flags`
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct Flags: u32 {
        /// directory hashes use signed characters
        const SIGNED_HASH = 1;
        /// directory hashes use unsigned characters
        const UNSIGNED_HASH = 2;
        /// for tests of development code
        const TEST_FILESYS = 4;
    }
}

impl DiskSuperblock {
    /// An unchecked superblock; `None` where there are fewer than 1 024 bytes.
    #[must_use]
    pub fn from_slice(bytes: &[u8]) -> Option<Self> {
        Self::read_from_prefix(bytes).ok().map(|(sb, _)| sb)
    }

    /// The feature words; none in the first revision, where they do not exist.
    #[must_use]
    pub fn features(&self) -> Features {
        if self.s_rev_level.get() == 0 {
            return Features::default();
        }
        Features::from_words(self.s_feature_compat.get(), self.s_feature_incompat.get(), self.s_feature_ro_compat.get())
    }

    /// Extant's own features; none without the feature extant.
    #[must_use]
    pub fn extant(&self) -> Extant {
        if self.features().incompat.contains(Incompat::EXTANT) {
            Extant::from_bits_retain(self.x_features.get())
        } else {
            Extant::empty()
        }
    }

    /// Extant's own features that a reader may ignore; none without the feature extant_ro.
    #[must_use]
    pub fn extant_ro(&self) -> ExtantRo {
        if self.features().ro_compat.contains(RoCompat::EXTANT_RO) {
            ExtantRo::from_bits_retain(self.x_ro_features.get())
        } else {
            ExtantRo::empty()
        }
    }

    /// The volume's length in blocks, as written.
    #[must_use]
    pub fn blocks_count(&self) -> u64 {
        self.wide(self.s_blocks_count_lo, self.s_blocks_count_hi)
    }

    /// Free blocks, as written.
    #[must_use]
    pub fn free_blocks_count(&self) -> u64 {
        self.wide(self.s_free_blocks_count_lo, self.s_free_blocks_count_hi)
    }

    /// Blocks reserved for the superuser, as written.
    #[must_use]
    pub fn reserved_blocks_count(&self) -> u64 {
        self.wide(self.s_r_blocks_count_lo, self.s_r_blocks_count_hi)
    }

    /// Writes the volume's length in blocks, both halves. Without 64bit the high half must be 0.
    pub fn set_blocks_count(&mut self, blocks: u64) {
        (self.s_blocks_count_lo, self.s_blocks_count_hi) = halves(blocks);
    }

    /// Writes the free blocks, both halves; under bigalloc whole clusters, counted in blocks.
    pub fn set_free_blocks_count(&mut self, blocks: u64) {
        (self.s_free_blocks_count_lo, self.s_free_blocks_count_hi) = halves(blocks);
    }

    /// Writes the blocks reserved for the superuser, both halves.
    pub fn set_reserved_blocks_count(&mut self, blocks: u64) {
        (self.s_r_blocks_count_lo, self.s_r_blocks_count_hi) = halves(blocks);
    }

    /// Writes the feature words.
    pub fn set_features(&mut self, features: Features) {
        self.s_feature_compat = features.compat.bits().into();
        self.s_feature_incompat = features.incompat.bits().into();
        self.s_feature_ro_compat = features.ro_compat.bits().into();
    }

    /// Writes the checksum under metadata_csum, otherwise 0. The last step before the bytes go to the device.
    pub fn set_checksum(&mut self) {
        let summed = self.features().ro_compat.contains(RoCompat::METADATA_CSUM);
        self.s_checksum = if summed { self.checksum() } else { 0 }.into();
    }

    /// The copy of this superblock for `group`, with that group's number and the checksum. The kernel and e2fsck expect
    /// a number of 16 bits; higher ones are truncated.
    #[must_use]
    pub fn copy_for(&self, group: GroupNo) -> Self {
        let mut copy = *self;
        copy.s_block_group_nr = (group.get() as u16).into();
        copy.set_checksum();
        copy
    }

    fn wide(&self, lo: U32, hi: U32) -> u64 {
        let high = if self.features().incompat.contains(Incompat::BIT64) { hi.get() } else { 0 };
        u64::from(high) << 32 | u64::from(lo.get())
    }

    /// The right checksum of the superblock under metadata_csum.
    #[must_use]
    pub fn checksum(&self) -> u32 {
        let bytes = self.as_bytes();
        crc32c(!0, bytes.get(..Self::SIZE - 4).unwrap_or_default())
    }

    /// The volume's label, up to the first NUL, invalid UTF-8 replaced.
    #[must_use]
    pub fn label(&self) -> String {
        text(&self.s_volume_name)
    }

    /// The last mount point.
    #[must_use]
    pub fn last_mounted(&self) -> String {
        text(&self.s_last_mounted)
    }

    /// The seed of directory hashes.
    #[must_use]
    pub fn hash_seed(&self) -> [u32; 4] {
        self.s_hash_seed.map(U32::get)
    }

    /// The first inode that is not reserved: 11 in the first revision.
    #[must_use]
    pub fn first_inode(&self) -> u32 {
        if self.s_rev_level.get() == 0 { 11 } else { self.s_first_ino.get() }
    }

    /// Bytes in an inode: 128 in the first revision.
    #[must_use]
    pub fn inode_size(&self) -> u32 {
        if self.s_rev_level.get() == 0 { 128 } else { u32::from(self.s_inode_size.get()) }
    }
}

fn halves(count: u64) -> (U32, U32) {
    (U32::new(count as u32), U32::new((count >> 32) as u32))
}

fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(bytes.get(..end).unwrap_or_default()).into_owned()
}

/// The geometry of a volume: all numbers of its layout, validated so that arithmetic with them cannot fail.
///
/// Guarantees: sizes are powers of two in range, `groups >= 1`, every group but the last has `blocks_per_group` blocks,
/// `inodes == groups * inodes_per_group`, the inode table of a group is shorter than the group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes in a block: 1 024 to 65 536.
    pub block_size: u32,
    /// Blocks in a cluster; 1 without bigalloc.
    pub cluster_blocks: u32,
    /// Blocks of the volume, those before [`first_data_block`](Self::first_data_block) included.
    pub blocks: u64,
    /// The first block of group 0.
    pub first_data_block: u32,
    /// Blocks in a group; the last group may be shorter.
    pub blocks_per_group: u32,
    /// Groups.
    pub groups: u32,
    /// Inodes.
    pub inodes: u32,
    /// Inodes in a group.
    pub inodes_per_group: u32,
    /// Bytes in an inode: a power of two from 128 to the block size.
    pub inode_size: u32,
    /// Blocks of a group's inode table.
    pub itable_blocks: u32,
    /// The first inode that is not reserved.
    pub first_inode: u32,
    /// Bytes in a group descriptor.
    pub descriptor_size: u32,
    /// Blocks of the whole descriptor table (`ceil(groups / descriptors in a block)`).
    pub descriptor_blocks: u32,
    /// Descriptor blocks reserved for growth, after the table in each group that has a superblock.
    pub reserved_descriptor_blocks: u32,
    /// First meta group with its descriptors in the meta group itself; `u32::MAX` without meta_bg.
    pub first_meta_group: u32,
    /// Groups in a flexible group; 1 without flex_bg.
    pub flex_groups: u32,
    /// The groups with backup superblocks.
    pub backups: Backups,
    /// Seed of every CRC32C of this volume.
    pub checksum_seed: u32,
    /// Whether metadata has CRC32C checksums.
    pub metadata_csum: bool,
    /// Whether group descriptors have CRC-16 checksums.
    pub gdt_csum: bool,
    /// Whether group descriptors have high halves.
    pub wide_descriptors: bool,
    /// Extant's own features.
    pub extant: Extant,
}

/// The groups with a copy of the superblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backups {
    /// All.
    Every,
    /// Groups 0, 1 and the powers of 3, 5 and 7 (sparse_super).
    Sparse,
    /// Group 0 and these two; 0 for none (sparse_super2).
    Two([u32; 2]),
}

impl Backups {
    /// Whether `group` has a superblock. Group 0 always does.
    #[must_use]
    pub fn contains(&self, group: GroupNo) -> bool {
        let power_of = |base: u32| {
            let mut n = group.get();
            while n > 1 && n.is_multiple_of(base) {
                n /= base;
            }
            n == 1
        };
        match self {
            _ if group.get() == 0 => true,
            Backups::Every => true,
            Backups::Sparse => group.get() == 1 || power_of(3) || power_of(5) || power_of(7),
            Backups::Two(list) => list.contains(&group.get()),
        }
    }

    /// The first group after `group` that has a superblock, in a volume with enough groups.
    #[must_use]
    pub fn after(&self, group: GroupNo) -> Option<GroupNo> {
        let group = group.get();
        let power_of = |base: u32| {
            std::iter::successors(Some(1_u32), |power| power.checked_mul(base)).find(|power| *power > group)
        };
        let next = match self {
            Backups::Every => group.checked_add(1),
            Backups::Sparse => [3, 5, 7].into_iter().filter_map(power_of).min(),
            Backups::Two(list) => list.iter().copied().filter(|listed| *listed > group).min(),
        };
        next.map(GroupNo)
    }
}

impl Geometry {
    /// The geometry that a superblock describes.
    ///
    /// # Errors
    /// [`Error::Corrupt`] with the first field that contradicts the others. Features are not checked here.
    pub fn of(sb: &DiskSuperblock) -> Result<Self> {
        if sb.s_magic.get() != MAGIC {
            return bad("no superblock magic: this is not an ext2, ext3 or ext4 volume");
        }
        let features = sb.features();
        let sizes = BlockSizes::of(sb, &features)?;
        let groups = GroupSizes::of(sb, sizes)?;
        let descriptors = Descriptors::of(sb, &features, sizes, groups.count)?;
        let first_inode = sb.first_inode();
        if first_inode < 11 || first_inode > sb.s_inodes_count.get() {
            return bad("s_first_ino is less than 11 or more than the inodes");
        }
        let reserved_descriptor_blocks =
            if features.compat.contains(Compat::RESIZE_INODE) { u32::from(sb.s_reserved_gdt_blocks.get()) } else { 0 };
        if reserved_descriptor_blocks > sizes.block / 4 {
            return bad("s_reserved_gdt_blocks is more than the pointers of an indirect block");
        }
        let flex_groups = if features.incompat.contains(Incompat::FLEX_BG) {
            1u32.checked_shl(u32::from(sb.s_log_groups_per_flex)).unwrap_or(0)
        } else {
            1
        };
        if flex_groups == 0 {
            return bad("s_log_groups_per_flex is 32 or more");
        }
        let metadata_csum = features.ro_compat.contains(RoCompat::METADATA_CSUM);
        if metadata_csum && sb.s_checksum_type != 1 {
            return bad("s_checksum_type is not 1 (CRC32C)");
        }
        let extant = sb.extant();
        if extant.contains(Extant::REGIONS) && (!descriptors.wide || sizes.bigalloc) {
            return bad("x_features: regions need the feature 64bit and exclude bigalloc");
        }
        if extant.contains(Extant::OWNED) && (!metadata_csum || features.compat.contains(Compat::RESIZE_INODE)) {
            return bad("x_features: owned blocks need the feature metadata_csum and exclude resize_inode");
        }
        Ok(Self {
            block_size: sizes.block,
            cluster_blocks: sizes.cluster_blocks,
            blocks: sb.blocks_count(),
            first_data_block: sizes.first_data_block,
            blocks_per_group: groups.blocks,
            groups: groups.count,
            inodes: sb.s_inodes_count.get(),
            inodes_per_group: groups.inodes,
            inode_size: sb.inode_size(),
            itable_blocks: groups.itable_blocks,
            first_inode,
            descriptor_size: descriptors.size,
            descriptor_blocks: descriptors.blocks,
            reserved_descriptor_blocks,
            first_meta_group: descriptors.first_meta_group,
            flex_groups,
            backups: Backups::of(sb, &features),
            checksum_seed: if features.incompat.contains(Incompat::CSUM_SEED) {
                sb.s_checksum_seed.get()
            } else {
                crc32c(!0, &sb.s_uuid)
            },
            metadata_csum,
            gdt_csum: features.ro_compat.contains(RoCompat::GDT_CSUM) && !metadata_csum,
            wide_descriptors: descriptors.wide,
            extant,
        })
    }
}

fn bad<T>(what: &'static str) -> Result<T> {
    Err(Error::corrupt(Structure::Superblock, what))
}

impl Backups {
    fn of(sb: &DiskSuperblock, features: &Features) -> Self {
        if features.compat.contains(Compat::SPARSE_SUPER2) {
            Self::Two(sb.s_backup_bgs.map(U32::get))
        } else if features.ro_compat.contains(RoCompat::SPARSE_SUPER) {
            Self::Sparse
        } else {
            Self::Every
        }
    }
}

/// Sizes of blocks and clusters, in powers of two.
#[derive(Clone, Copy)]
struct BlockSizes {
    /// In bytes.
    block: u32,
    cluster_blocks: u32,
    first_data_block: u32,
    bigalloc: bool,
}

impl BlockSizes {
    fn of(sb: &DiskSuperblock, features: &Features) -> Result<Self> {
        let log_block = sb.s_log_block_size.get();
        if log_block > 6 {
            return bad("s_log_block_size: blocks would be over 64 KiB");
        }
        let bigalloc = features.ro_compat.contains(RoCompat::BIGALLOC);
        let cluster_blocks = if bigalloc {
            let log_cluster = sb.s_log_cluster_size.get();
            if log_cluster < log_block || log_cluster > 19 {
                return bad("s_log_cluster_size: clusters are smaller than blocks or over 512 MiB");
            }
            1u32 << (log_cluster - log_block)
        } else {
            1
        };
        let first_data_block = sb.s_first_data_block.get();
        if first_data_block != u32::from(log_block == 0 && !bigalloc) && !(log_block == 0 && first_data_block <= 1) {
            return bad("s_first_data_block does not fit the block size");
        }
        Ok(Self { block: 1024 << log_block, cluster_blocks, first_data_block, bigalloc })
    }
}

/// Block groups: their number and sizes.
struct GroupSizes {
    count: u32,
    blocks: u32,
    inodes: u32,
    itable_blocks: u32,
}

impl GroupSizes {
    fn of(sb: &DiskSuperblock, sizes: BlockSizes) -> Result<Self> {
        let inode_size = sb.inode_size();
        if !inode_size.is_power_of_two() || inode_size < 128 || inode_size > sizes.block {
            return bad("s_inode_size is not a power of two from 128 to the block size");
        }
        let blocks = sb.s_blocks_per_group.get();
        let clusters = if sizes.bigalloc { sb.s_clusters_per_group.get() } else { blocks };
        if blocks < 8 || clusters > sizes.block * 8 {
            return bad("s_blocks_per_group: more than a bitmap block can count, or less than 8");
        }
        if u64::from(clusters) * u64::from(sizes.cluster_blocks) != u64::from(blocks) {
            return bad("s_clusters_per_group does not match s_blocks_per_group");
        }
        let inodes = sb.s_inodes_per_group.get();
        if inodes == 0 || inodes > sizes.block * 8 {
            return bad("s_inodes_per_group is zero or more than a bitmap block can count");
        }
        let itable_blocks = inodes.div_ceil(sizes.block / inode_size);
        if itable_blocks + 3 > blocks {
            return bad("s_inodes_per_group: the inode table does not fit into a group");
        }
        let Some(grouped) = sb.blocks_count().checked_sub(u64::from(sizes.first_data_block)).filter(|n| *n > 0) else {
            return bad("s_blocks_count is zero");
        };
        let Ok(count) = u32::try_from(grouped.div_ceil(u64::from(blocks))) else {
            return bad("s_blocks_count: more groups than the format supports");
        };
        if count.checked_mul(inodes) != Some(sb.s_inodes_count.get()) {
            return bad("s_inodes_count is not s_inodes_per_group times the number of groups");
        }
        Ok(Self { count, blocks, inodes, itable_blocks })
    }
}

/// The table of group descriptors.
struct Descriptors {
    /// Bytes of one.
    size: u32,
    /// Blocks of the table.
    blocks: u32,
    /// The first meta group with its own descriptors; `u32::MAX` without meta groups.
    first_meta_group: u32,
    /// Whether the feature 64bit is set.
    wide: bool,
}

impl Descriptors {
    fn of(sb: &DiskSuperblock, features: &Features, sizes: BlockSizes, groups: u32) -> Result<Self> {
        let wide = features.incompat.contains(Incompat::BIT64);
        let size = if wide { u32::from(sb.s_desc_size.get()) } else { 32 };
        if wide && (size < 64 || size > sizes.block.min(1024) || !size.is_power_of_two()) {
            return bad("s_desc_size is not a power of two from 64 to 1 024");
        }
        let blocks = groups.div_ceil(sizes.block / size);
        let has_meta_groups = features.incompat.contains(Incompat::META_BG);
        let first_meta_group = if has_meta_groups { sb.s_first_meta_bg.get() } else { u32::MAX };
        if has_meta_groups && first_meta_group > blocks {
            return bad("s_first_meta_bg is more than the descriptor table's blocks");
        }
        Ok(Self { size, blocks, first_meta_group, wide })
    }
}

/// A validated superblock: its bytes, its features and the geometry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Superblock {
    /// The bytes.
    pub disk: DiskSuperblock,
    /// The feature words.
    pub features: Features,
    /// The geometry of the volume.
    pub geometry: Geometry,
}

impl Superblock {
    /// Validates the 1 024 bytes of a superblock: magic number, checksum, readable features, and a possible geometry.
    ///
    /// # Errors
    /// [`Error::Corrupt`] or [`Error::Unsupported`] with the field or feature.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let Some(disk) = DiskSuperblock::from_slice(bytes) else {
            return Err(Error::corrupt(Structure::Superblock, "the volume ends before it"));
        };
        if disk.s_magic.get() != MAGIC {
            return Err(Error::corrupt(
                Structure::Superblock,
                "no superblock magic: this is not an ext2, ext3 or ext4 volume",
            ));
        }
        if disk.s_rev_level.get() > 1 {
            return Err(Error::Unsupported(format!("revision {} of the format", disk.s_rev_level)));
        }
        let features = disk.features();
        features.check_readable()?;
        disk.extant().check_readable()?;
        if features.ro_compat.contains(RoCompat::METADATA_CSUM) && disk.checksum() != disk.s_checksum.get() {
            return Err(Error::corrupt(Structure::Superblock, "s_checksum does not match"));
        }
        let geometry = Geometry::of(&disk)?;
        Ok(Self { disk, features, geometry })
    }

    /// The inode of the journal, where the volume has an internal one.
    #[must_use]
    pub fn journal_inode(&self) -> Option<InodeNo> {
        let number = self.disk.s_journal_inum.get();
        (self.features.compat.contains(Compat::HAS_JOURNAL) && number != 0).then_some(InodeNo(number))
    }

    /// The MMP block, where the volume has one.
    #[must_use]
    pub fn mmp_block(&self) -> Option<FsBlock> {
        self.features.incompat.contains(Incompat::MMP).then(|| FsBlock(self.disk.s_mmp_block.get()))
    }
}
