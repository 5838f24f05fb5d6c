//! Sizes and counts: the superblock's numbers, from the options and the device's length.
//!
//! The numbers depend on each other (a last group too short for its own metadata is cut off, which changes the number
//! of groups, which changes the inodes of a group), so they are computed by iteration until they no longer change.

use super::error::{Result, refuse};
use super::options::Usage;
use super::physical_layer::{NewMap, PhysicalLayer};
use super::{MkfsOptions, OnError, Warning, features};
use format::feature::{Compat, Extant, ExtantRo, Features, Incompat, RoCompat};
use format::native::{BLOCK_SIZE, GROUP_BLOCKS, Layout as NativeLayout};
use format::superblock::{Backups, DiskSuperblock, Flags, Geometry, MAGIC, State};
use format::{GroupNo, space_map};
use std::ffi::c_char;

/// Number of inodes before the first for files.
pub(super) const RESERVED_INODES: u32 = 10;
/// Maximum number of blocks (or clusters) in a group: a group's counts have 16 bits, rounded down to a multiple of 8.
const GROUP_BLOCKS_MAX: u32 = 65528;
/// Minimum number of free blocks of a short last group beyond its metadata; else it is cut off.
const LAST_GROUP_SPARE: u64 = 50;
/// `s_default_mount_opts`: user_xattr and acl.
const MOUNT_OPTIONS: u32 = 0xC;
/// Minimum number of blocks of a journal: the kernel refuses shorter ones.
const JOURNAL_MIN: u64 = 1024;
/// Maximum number of blocks of a journal.
const JOURNAL_MAX: u64 = 10_240_000;
/// Default bytes of a metablockgroup.
const METABLOCKGROUP: u64 = 8 << 30;
/// Default blocks of the log of space maps.
const MAP_LOG: u32 = 256;
/// Default seconds between updates of the multiple-mount-protection block.
const MMP_INTERVAL: u16 = 5;

/// The numbers of a volume to be created.
#[derive(Debug, Clone)]
pub(super) struct VolumePlan {
    /// The superblock except for fields that depend on placement: free counts, journal, checksums.
    pub(super) disk: DiskSuperblock,
    pub(super) features: Features,
    pub(super) geometry: Geometry,
    /// Blocks of the journal with its fast-commit area, and of that area; 0 without one.
    pub(super) journal_blocks: u32,
    pub(super) fast_commit_blocks: u32,
    pub(super) warnings: Vec<Warning>,
    /// The layer beneath the volume.
    pub(super) layer: PhysicalLayer,
}

/// Values that are set or derived from the usage.
struct Basics {
    block_size: u32,
    cluster_blocks: u32,
    inode_size: u32,
    bytes_per_inode: u64,
}

/// Maximum number of groups of a new volume: a PiB with blocks of 4 KiB. All of them are planned in memory.
const MOST_GROUPS: u32 = 1 << 23;

impl VolumePlan {
    pub(super) fn new(device_len: u64, sector: u32, options: &MkfsOptions) -> Result<Self> {
        let mut features = features::resolve(options)?;
        let len = options.len.unwrap_or(device_len);
        if len > device_len {
            return refuse(format!("a volume of {len} bytes does not fit onto a device of {device_len}"));
        }
        if len == 0 {
            return refuse("the size is 0: specify the size of the volume");
        }
        if options.kind.has_map() {
            return Self::native(len, sector, features, options);
        }
        let basics = Basics::new(len, sector, &features, options)?;
        let mut warnings = Vec::new();
        let pages = basics.whole_pages(len, options.len.is_none());
        let blocks = pages / u64::from(basics.cluster_blocks) * u64::from(basics.cluster_blocks);
        if blocks > u64::from(u32::MAX) {
            if !features.incompat.contains(Incompat::BIT64) {
                return refuse(format!(
                    "{blocks} blocks are more than 32 bits can count: use larger blocks (-b) or the feature 64bit"
                ));
            }
            if !features.incompat.contains(Incompat::EXTENT) {
                return refuse(format!(
                    "{blocks} blocks are more than block maps can address: use larger blocks (-b) or the feature extent"
                ));
            }
            features.compat -= Compat::RESIZE_INODE;
        }
        let disk = fixed_fields(options, &features, &basics)?;
        let mut plan = Self::fit(disk, features, blocks, &basics, options)?;
        plan.reserve(pages, blocks, options)?;
        plan.plan_journal(options, &mut warnings)?;
        plan.warnings = warnings;
        Ok(plan)
    }

    /// The ext4 volume above the map of a native one.
    fn native(len: u64, sector: u32, features: Features, options: &MkfsOptions) -> Result<Self> {
        if options.block_size.is_some_and(|size| size != BLOCK_SIZE)
            || options.blocks_per_group.is_some_and(|blocks| blocks != GROUP_BLOCKS)
            || options.groups_per_flex.is_some()
        {
            return refuse(format!(
                "a volume of type extant has blocks of {BLOCK_SIZE} bytes and groups of {GROUP_BLOCKS}"
            ));
        }
        let native = NativeLayout::new(len / u64::from(BLOCK_SIZE)).or_else(|e| refuse(e.to_string()))?;
        // the metadata groups have inodes, too, but no space of their own
        let options = MkfsOptions {
            block_size: Some(BLOCK_SIZE),
            groups_per_flex: Some(1),
            backup_superblocks: 0,
            ..options.clone()
        };
        let mut basics = Basics::new(len, sector, &features, &options)?;
        basics.bytes_per_inode *= native.logical_blocks() / native.blocks();
        let disk = fixed_fields(&options, &features, &basics)?;
        let blocks = native.logical_blocks();
        let mut plan = Self::fit(disk, features, blocks, &basics, &options)?;
        plan.reserve(native.blocks(), blocks, &options)?;
        plan.layer = PhysicalLayer::Map(NewMap::new(native)?);
        Ok(plan)
    }

    /// Groups of a metablockgroup and blocks of the log, if the volume has space maps.
    pub(super) fn maps(&mut self, options: &MkfsOptions) -> Option<(u32, u32)> {
        let maps = self.features.ro_compat.contains(RoCompat::EXTANT_RO);
        maps.then(|| {
            // with the default, half of a small volume would be log
            let usual = (self.geometry.blocks / 64).clamp(8, MAP_LOG.into()) as u32;
            let log = options.space_map_log.unwrap_or(usual);
            self.disk.x_space_map_log = log.into();
            (self.disk.x_map_groups.get(), log)
        })
    }

    /// Computes matching numbers of blocks, groups and inodes.
    fn fit(
        mut disk: DiskSuperblock,
        mut features: Features,
        mut blocks: u64,
        basics: &Basics,
        options: &MkfsOptions,
    ) -> Result<Self> {
        let all_blocks = blocks;
        let wanted_inodes = wanted_inodes(blocks, basics, options)?;
        let mut group_clusters = group_clusters(basics, options)?;
        let first = u64::from(disk.s_first_data_block.get());
        loop {
            let group_blocks = group_clusters.checked_mul(basics.cluster_blocks).map(u64::from);
            let Some(group_blocks) = group_blocks else {
                return refuse("clusters of that size make groups of more than 2^32 blocks: set fewer with -g");
            };
            let groups = group_count(blocks.saturating_sub(first), group_blocks, basics)?;
            let Some(inodes_per_group) = inodes_per_group(wanted_inodes, groups, basics) else {
                // fewer blocks in a group make more groups, with fewer inodes each
                if group_clusters < 264 {
                    return refuse(format!("{wanted_inodes} inodes are more than the groups can contain"));
                }
                group_clusters -= 8;
                blocks = all_blocks;
                continue;
            };
            disk.set_blocks_count(blocks);
            disk.s_blocks_per_group = (group_blocks as u32).into();
            disk.s_clusters_per_group = group_clusters.into();
            disk.s_inodes_per_group = inodes_per_group.into();
            disk.s_inodes_count = inodes_per_group.saturating_mul(groups).into();
            disk.s_reserved_gdt_blocks = 0.into();
            disk.s_first_meta_bg = 0.into();
            if features.compat.contains(Compat::SPARSE_SUPER2) {
                disk.s_backup_bgs = backup_groups(groups, options.backup_superblocks);
            }
            disk.set_features(features);
            let mut geometry = geometry(&disk)?;
            if features.compat.contains(Compat::RESIZE_INODE) {
                let reserved = reserved_descriptor_blocks(&geometry, blocks, options)?;
                disk.s_reserved_gdt_blocks = reserved.into();
                geometry.reserved_descriptor_blocks = u32::from(reserved);
            }
            if !features.incompat.contains(Incompat::META_BG) {
                let heads = u64::from(geometry.descriptor_blocks) + u64::from(geometry.reserved_descriptor_blocks);
                if heads > u64::from(geometry.blocks_per_group) * 3 / 4 {
                    // the descriptors would leave too little space in each group that has a copy
                    features.incompat |= Incompat::META_BG;
                    features.compat -= Compat::RESIZE_INODE;
                    continue;
                }
            }
            if features.incompat.contains(Incompat::META_BG) {
                // all of them are in their meta groups
                disk.s_first_meta_bg = 0.into();
                geometry = self::geometry(&disk)?;
            }
            let last = GroupNo(groups - 1);
            let own = last_group_overhead(&geometry, last);
            let rest = (blocks - first) % group_blocks;
            if groups == 1 && rest > 0 && rest < own {
                return too_small();
            }
            if rest > 0 && rest < own + LAST_GROUP_SPARE && groups > 1 {
                blocks -= rest;
                continue;
            }
            return Ok(Self {
                disk,
                features,
                geometry,
                journal_blocks: 0,
                fast_commit_blocks: 0,
                warnings: Vec::new(),
                layer: PhysicalLayer::Device,
            });
        }
    }

    /// Reserves blocks for the superuser: a share of the device's `pages`, scaled to those of the `blocks` that were
    /// not cut off with a short last group.
    fn reserve(&mut self, pages: u64, blocks: u64, options: &MkfsOptions) -> Result<()> {
        let percent = options.reserved_percent;
        if !(0.0..=50.0).contains(&percent) {
            return refuse(format!("{percent} percent cannot be reserved for the superuser: use 0 to 50"));
        }
        let reserved = (pages as f64 * percent / 100.0) as u64;
        let scaled = u128::from(reserved) * u128::from(self.geometry.blocks) / u128::from(blocks.max(1));
        // at most half: e2fsck considers more invalid
        self.disk.set_reserved_blocks_count((scaled as u64).min(self.geometry.blocks / 2));
        Ok(())
    }

    fn plan_journal(&mut self, options: &MkfsOptions, warnings: &mut Vec<Warning>) -> Result<()> {
        if !self.features.compat.contains(Compat::HAS_JOURNAL) {
            return Ok(());
        }
        let blocks = self.geometry.blocks;
        let block_size = u64::from(self.geometry.block_size);
        let log = match options.journal_mib {
            None => match default_journal_blocks(blocks) {
                Some(log) => log,
                None => {
                    // an orphan file needs a journal
                    self.features.compat -= Compat::HAS_JOURNAL | Compat::ORPHAN_FILE;
                    self.disk.set_features(self.features);
                    warnings.push(Warning::NoJournal);
                    return Ok(());
                }
            },
            Some(mib) => (u64::from(mib) << 20) / block_size,
        };
        let fast = if !self.features.compat.contains(Compat::FAST_COMMIT) {
            0
        } else if let Some(kib) = options.fast_commit_kib {
            (u64::from(kib) << 10) / block_size
        } else {
            log / 64
        };
        let all = log.saturating_add(fast);
        if !(JOURNAL_MIN..=JOURNAL_MAX).contains(&log) || all > JOURNAL_MAX {
            return refuse(format!(
                "a journal has from {JOURNAL_MIN} to {JOURNAL_MAX} blocks: {} to {} MiB here",
                (JOURNAL_MIN * block_size).div_ceil(1 << 20),
                (JOURNAL_MAX * block_size) >> 20
            ));
        }
        if all > blocks / 2 {
            return refuse(format!("a journal of {all} blocks takes more than half of a volume of {blocks}"));
        }
        // both are at most JOURNAL_MAX
        self.journal_blocks = all as u32;
        self.fast_commit_blocks = fast as u32;
        Ok(())
    }
}

impl Basics {
    fn new(len: u64, sector: u32, features: &Features, options: &MkfsOptions) -> Result<Self> {
        let by_size = [Usage::of_size(len)];
        let usages = if options.usage.is_empty() { &by_size[..] } else { &options.usage };
        let (mut block_size, mut inode_size, mut bytes_per_inode) = (4096, 256, 16384);
        for values in usages.iter().map(|usage| usage.values()) {
            block_size = values.block_size.unwrap_or(block_size);
            inode_size = values.inode_size.unwrap_or(inode_size);
            bytes_per_inode = values.bytes_per_inode.unwrap_or(bytes_per_inode);
        }
        let block_size = options.block_size.unwrap_or(block_size.max(sector));
        if !block_size.is_power_of_two() || !(1024..=65536).contains(&block_size) {
            return refuse(format!("blocks of {block_size} bytes: a power of two from 1024 to 65536 is needed"));
        }
        if block_size < sector {
            return refuse(format!("blocks of {block_size} bytes are smaller than the device's sectors of {sector}"));
        }
        let cluster_blocks = if features.ro_compat.contains(RoCompat::BIGALLOC) {
            let cluster = options.cluster_size.unwrap_or(block_size.saturating_mul(16));
            if !cluster.is_power_of_two() || cluster <= block_size || cluster > 256 << 20 {
                return refuse(format!(
                    "clusters of {cluster} bytes: a power of two from two blocks to 256 MiB is needed"
                ));
            }
            cluster / block_size
        } else {
            1
        };
        let inode_size = options.inode_size.unwrap_or(inode_size);
        if !inode_size.is_power_of_two() || !(128..=block_size).contains(&inode_size) {
            return refuse(format!(
                "inodes of {inode_size} bytes: a power of two from 128 to the block size of {block_size} is needed"
            ));
        }
        for (used, name) in [
            (features.incompat.contains(Incompat::INLINE_DATA), "inline_data"),
            (features.ro_compat.contains(RoCompat::PROJECT), "project"),
        ] {
            if used && inode_size == 128 {
                return refuse(format!("inodes of 128 bytes are too small for the feature {name}"));
            }
        }
        let least = u64::from(block_size) * u64::from(cluster_blocks);
        let bytes_per_inode = match options.bytes_per_inode {
            Some(ratio) if !(1024..=64 << 20).contains(&ratio) => {
                return refuse(format!("bytes per inode {ratio} is invalid: use 1024 to 67108864"));
            }
            Some(ratio) => ratio,
            None => bytes_per_inode.max(least),
        };
        Ok(Self { block_size, cluster_blocks, inode_size, bytes_per_inode })
    }

    /// Number of blocks in this many bytes. For the device's own length, whole pages of 4 KiB, which every kernel can
    /// cache.
    fn whole_pages(&self, len: u64, of_device: bool) -> u64 {
        let blocks = len / u64::from(self.block_size);
        let page = if of_device { u64::from(4096 / self.block_size).max(1) } else { 1 };
        blocks / page * page
    }
}

/// The fields that depend only on the options.
fn fixed_fields(options: &MkfsOptions, features: &Features, basics: &Basics) -> Result<DiskSuperblock> {
    let Some(mut sb) = DiskSuperblock::from_slice(&[0; DiskSuperblock::SIZE]) else {
        unreachable!("the array has the structure's size")
    };
    let bigalloc = features.ro_compat.contains(RoCompat::BIGALLOC);
    let log_block = basics.block_size.ilog2() - 10;
    sb.s_first_data_block = u32::from(log_block == 0 && !bigalloc).into();
    sb.s_log_block_size = log_block.into();
    sb.s_log_cluster_size = (log_block + basics.cluster_blocks.ilog2()).into();
    sb.s_magic = MAGIC.into();
    sb.s_state = State::VALID.bits().into();
    sb.s_errors = match options.on_error {
        OnError::Continue => 1,
        OnError::RemountReadOnly => 2,
        OnError::Panic => 3,
    }
    .into();
    sb.s_rev_level = 1.into();
    sb.s_max_mnt_count = u16::MAX.into();
    sb.s_first_ino = (RESERVED_INODES + 1).into();
    sb.s_inode_size = (basics.inode_size as u16).into();
    sb.s_uuid = options.uuid;
    copy_text(&mut sb.s_volume_name, &options.label, 16, "label")?;
    copy_text(&mut sb.s_last_mounted, &options.last_mounted, 63, "directory of the last mount")?;
    for (word, bytes) in sb.s_hash_seed.iter_mut().zip(options.hash_seed.chunks_exact(4)) {
        *word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]).into();
    }
    sb.s_def_hash_version = 1;
    sb.s_default_mount_opts = MOUNT_OPTIONS.into();
    if features.incompat.contains(Incompat::BIT64) {
        sb.s_desc_size = 64.into();
    }
    set_times(&mut sb, options)?;
    if basics.inode_size > 128 {
        sb.s_min_extra_isize = format::inode::EXTRA_ISIZE.into();
        sb.s_want_extra_isize = format::inode::EXTRA_ISIZE.into();
    }
    // the signedness of characters in names on this processor
    let mut flags = if c_char::MIN != 0 { Flags::SIGNED_HASH } else { Flags::UNSIGNED_HASH };
    flags.set(Flags::TEST_FILESYS, options.test_volume);
    sb.s_flags = flags.bits().into();
    sb.s_raid_stride = options.stride.into();
    sb.s_raid_stripe_width = options.stripe_width.into();
    if features.incompat.contains(Incompat::MMP) {
        sb.s_mmp_interval = if options.mmp_interval == 0 { MMP_INTERVAL } else { options.mmp_interval }.into();
    }
    if features.incompat.contains(Incompat::FLEX_BG) {
        let by_maps = space_maps(&mut sb, features, options, basics)?;
        let usual = by_maps.unwrap_or_else(|| options.kind.usual_flex_groups());
        let groups = options.groups_per_flex.unwrap_or(usual);
        if !groups.is_power_of_two() {
            return refuse(format!("flexible groups of {groups} groups: use a power of two (-G)"));
        }
        sb.s_log_groups_per_flex = groups.ilog2() as u8;
    }
    if features.ro_compat.contains(RoCompat::METADATA_CSUM) {
        sb.s_checksum_type = 1;
    }
    if features.incompat.contains(Incompat::CSUM_SEED) {
        sb.s_checksum_seed = format::checksum::crc32c(!0, &options.uuid).into();
    }
    if features.incompat.contains(Incompat::EXTANT) {
        sb.x_features = (Extant::REGIONS | Extant::OWNED).bits().into();
    }
    if features.incompat.contains(Incompat::ENCRYPT) {
        // AES-256-XTS for contents, AES-256-CTS for names
        sb.s_encrypt_algos = [1, 4, 0, 0];
    }
    if features.incompat.contains(Incompat::CASEFOLD) {
        sb.s_encoding = format::casefold::ENCODING_UTF8_12_1.into();
        let strict = options.encoding.is_some_and(|encoding| encoding.strict);
        sb.s_encoding_flags = if strict { format::casefold::FLAG_STRICT } else { 0 }.into();
    }
    Ok(sb)
}

/// Sets the fields of space maps, if there are any; returns the number of groups of a metablockgroup.
fn space_maps(
    sb: &mut DiskSuperblock,
    features: &Features,
    options: &MkfsOptions,
    basics: &Basics,
) -> Result<Option<u32>> {
    if !features.ro_compat.contains(RoCompat::EXTANT_RO) {
        return Ok(None);
    }
    let groups = map_groups(options, basics)?;
    sb.x_ro_features = ExtantRo::SPACE_MAPS.bits().into();
    sb.x_map_groups = groups.into();
    Ok(Some(groups))
}

/// Groups of a metablockgroup.
fn map_groups(options: &MkfsOptions, basics: &Basics) -> Result<u32> {
    let group = u64::from(group_clusters(basics, options)?) * u64::from(basics.block_size);
    let most = group * u64::from(space_map::MOST_GROUPS);
    let Some(bytes) = options.metablockgroup_bytes else {
        // slightly less if the bytes of a group are not a power of two, or groups are short
        let groups = (METABLOCKGROUP / group).clamp(1, space_map::MOST_GROUPS.into());
        return Ok(1 << groups.ilog2());
    };
    let groups = bytes / group;
    if !bytes.is_multiple_of(group) || !groups.is_power_of_two() || bytes > most {
        return refuse(format!(
            "metablockgroup={bytes}: a power of two of groups of {group} bytes, at most {}, is needed",
            space_map::MOST_GROUPS
        ));
    }
    // at most MOST_GROUPS
    Ok(groups as u32)
}

fn set_times(sb: &mut DiskSuperblock, options: &MkfsOptions) -> Result<()> {
    let seconds = options.time.seconds;
    if !(0..1 << 40).contains(&seconds) {
        return refuse(format!("invalid creation time {seconds}: the format stores 40 bits of seconds from 1970 on"));
    }
    let (low, high) = (seconds as u32, (seconds >> 32) as u8);
    sb.s_mkfs_time = low.into();
    sb.s_mkfs_time_hi = high;
    sb.s_wtime = low.into();
    sb.s_wtime_hi = high;
    sb.s_lastcheck = low.into();
    sb.s_lastcheck_hi = high;
    Ok(())
}

fn copy_text(field: &mut [u8], text: &[u8], most: usize, what: &str) -> Result<()> {
    if text.len() > most || text.contains(&0) {
        return refuse(format!("the {what} can have at most {most} bytes, none of them zero"));
    }
    field[..text.len()].copy_from_slice(text);
    Ok(())
}

/// Clusters of a group, as requested or as many as a bitmap has bits.
fn group_clusters(basics: &Basics, options: &MkfsOptions) -> Result<u32> {
    let most = (basics.block_size * 8).min(GROUP_BLOCKS_MAX);
    let clusters = options.blocks_per_group.unwrap_or(most);
    if clusters < 256 || !clusters.is_multiple_of(8) || clusters > most {
        return refuse(format!(
            "a group has {clusters} {}: it may have from 256 to {most} in steps of 8",
            if basics.cluster_blocks > 1 { "clusters" } else { "blocks" },
        ));
    }
    Ok(clusters)
}

/// The number of groups of a volume, checked against the maximum.
fn group_count(blocks: u64, group_blocks: u64, basics: &Basics) -> Result<u32> {
    let groups = blocks.div_ceil(group_blocks);
    let Ok(groups) = u32::try_from(groups) else { return refuse("more groups than the format supports") };
    if groups == 0 {
        return too_small();
    }
    if groups > MOST_GROUPS {
        return refuse(format!(
            "{groups} groups of {} MiB are more than the {MOST_GROUPS} that a volume may have: use larger blocks (-b){} or \
             a smaller SIZE",
            (group_blocks * u64::from(basics.block_size)) >> 20,
            if basics.cluster_blocks > 1 { " or clusters (-C)" } else { "" }
        ));
    }
    Ok(groups)
}

fn too_small<T>() -> Result<T> {
    refuse("there is no space for a volume: its own metadata would not fit")
}

fn geometry(disk: &DiskSuperblock) -> Result<Geometry> {
    Geometry::of(disk).or_else(|e| refuse(format!("a volume with these options is invalid: {e}")))
}

fn wanted_inodes(blocks: u64, basics: &Basics, options: &MkfsOptions) -> Result<u32> {
    let bytes = u128::from(blocks) * u128::from(basics.block_size);
    if bytes == 0 {
        return too_small();
    }
    let least = RESERVED_INODES + 2;
    let wanted = match options.inodes {
        None => match bytes / u128::from(basics.bytes_per_inode) {
            // one for each block, or for each 4 KiB if blocks are smaller
            0 => bytes / u128::from(basics.block_size.max(4096)),
            wanted => wanted.min(u128::from(u32::MAX)),
        },
        Some(inodes) => u128::from(inodes),
    };
    if wanted * u128::from(basics.inode_size) >= bytes {
        return refuse(format!(
            "the volume is too small: {wanted} inodes of {} bytes do not fit into {bytes} bytes",
            basics.inode_size
        ));
    }
    let Ok(wanted) = u32::try_from(wanted) else {
        return refuse(format!("{wanted} inodes are more than 32 bits can count"));
    };
    Ok(wanted.max(least))
}

/// Inodes of a group such that all groups together have at least approximately `wanted`: whole table blocks, multiples
/// of 8. `None` if there are more than a bitmap block has bits.
fn inodes_per_group(wanted: u32, groups: u32, basics: &Basics) -> Option<u32> {
    let per_block = basics.block_size / basics.inode_size;
    let bits = basics.block_size * 8;
    let mut target = wanted.div_ceil(groups);
    if target > bits {
        return None;
    }
    // a group's count of free inodes has 16 bits
    let most = bits.min((1 << 16) - per_block);
    loop {
        let full = target.div_ceil(per_block) * per_block;
        let mut inodes = full.min(most) / 8 * 8;
        // the reserved ones and lost+found must fit
        if u64::from(inodes) * u64::from(groups) < u64::from(RESERVED_INODES + 1) {
            inodes += 8;
        }
        if u64::from(inodes) * u64::from(groups) <= u64::from(u32::MAX) {
            return Some(inodes);
        }
        // with this many groups even one inode in each is too many
        target = target.checked_sub(1)?;
    }
}

/// Descriptor blocks reserved so that the volume can grow to 1 024 times its size (or as requested), limited by 32-bit
/// block numbers and by one indirect block for their numbers.
fn reserved_descriptor_blocks(geometry: &Geometry, blocks: u64, options: &MkfsOptions) -> Result<u16> {
    let most = match options.resize_blocks {
        None => blocks.saturating_mul(1024).min(u64::from(u32::MAX)),
        Some(resize) if resize <= blocks => {
            return refuse(format!("resize={resize}: the volume already has {blocks} blocks"));
        }
        Some(resize) => resize.min(u64::from(u32::MAX)),
    };
    let groups =
        most.saturating_sub(u64::from(geometry.first_data_block)).div_ceil(u64::from(geometry.blocks_per_group));
    let table = groups.div_ceil(u64::from(geometry.descriptors_per_block()));
    let more = table.saturating_sub(u64::from(geometry.descriptor_blocks));
    // at most the numbers in a block of 64 KiB
    Ok(more.min(u64::from(geometry.block_size / 4)) as u16)
}

/// The groups of the backups under sparse_super2: the second and the last.
fn backup_groups(groups: u32, count: u8) -> [zerocopy::little_endian::U32; 2] {
    let first = if count > 0 && groups > 1 { 1 } else { 0 };
    let last = if count > 1 && groups > 2 { groups - 1 } else { 0 };
    [first.into(), last.into()]
}

/// Blocks of the last group for its own metadata.
fn last_group_overhead(geometry: &Geometry, last: GroupNo) -> u64 {
    let mut own = 2 + u64::from(geometry.itable_blocks);
    let has_copy = match geometry.backups {
        Backups::Two(list) => list.contains(&last.get()) || last.get() == 0,
        _ => geometry.backups.contains(last),
    };
    if has_copy {
        own += 1 + u64::from(geometry.descriptor_blocks) + u64::from(geometry.reserved_descriptor_blocks);
    }
    own
}

/// Default blocks of the journal of a volume of this many blocks; `None` if the volume is too small to have one.
fn default_journal_blocks(blocks: u64) -> Option<u64> {
    Some(match blocks {
        0..2048 => return None,
        2048..0x8000 => 1024,
        0x8000..0x4_0000 => 4096,
        0x4_0000..0x8_0000 => 8192,
        0x8_0000..0x40_0000 => 16384,
        0x40_0000..0x80_0000 => 32768,
        0x80_0000..0x100_0000 => 65536,
        0x100_0000..0x200_0000 => 131_072,
        _ => 262_144,
    })
}
