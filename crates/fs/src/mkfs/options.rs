//! The options of a new volume, with mke2fs's defaults.

use super::error::{Result, refuse};
use crate::mode::names;
use format::feature::{Compat, Features, Incompat, RoCompat};
use format::inode::Timestamp;
use format::native;

/// The type to create: determines the features unless they are edited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// No journal, block maps.
    Ext2,
    /// ext2 with a journal.
    Ext3,
    /// Journal, extents, checksums, flexible groups.
    Ext4,
    /// ext3 with metadata in regions and in blocks that contain their owner; only Extant can use it.
    Rext3,
    /// ext4 with free space recorded in space maps; the kernel can only read it.
    SpaceMap,
    /// The native format: ext4 above a copy-on-write map, consistent at every instant; only Extant can use it.
    Extant,
}

names!(Kind {
    Extant = "extant",
    Ext2 = "ext2",
    Ext3 = "ext3",
    Ext4 = "ext4",
    Rext3 = "rext3",
    SpaceMap = "spacemap",
});

impl Kind {
    /// Whether the kernel and e2fsprogs can write such volumes.
    #[must_use]
    pub const fn kernel_writes(self) -> bool {
        matches!(self, Self::Ext2 | Self::Ext3 | Self::Ext4)
    }

    /// The adjective for its volumes in messages.
    #[must_use]
    pub const fn adjective(self) -> &'static str {
        match self {
            Self::Extant => "native",
            _ => self.name(),
        }
    }

    /// Whether the volume is above a map, so that programs for ext do not find it directly on the device.
    #[must_use]
    pub const fn has_map(self) -> bool {
        matches!(self, Self::Extant)
    }

    /// Whether its groups have regions for metadata.
    pub(super) const fn has_regions(self) -> bool {
        matches!(self, Self::Rext3)
    }

    /// Whether its free space is always recorded in space maps.
    pub(super) const fn has_space_maps(self) -> bool {
        matches!(self, Self::SpaceMap)
    }

    /// Whether the feature 64bit is only a default that is dropped without the feature extent, which it needs.
    pub(super) const fn drops_64bit_without_extents(self) -> bool {
        matches!(self, Self::Ext4)
    }

    /// Number of groups in a flexible group, unless set. With regions so many that reading takes more time in a check
    /// than seeking.
    pub(super) const fn usual_flex_groups(self) -> u32 {
        if self.has_regions() { 32 } else { 16 }
    }

    /// The type of a volume of this type to which a journal is added; `None` if the type cannot have one.
    #[must_use]
    pub const fn with_journal(self) -> Option<Self> {
        match self {
            Self::Extant => None,
            Self::Ext2 => Some(Self::Ext3),
            Self::Ext3 | Self::Ext4 | Self::Rext3 | Self::SpaceMap => Some(self),
        }
    }

    /// Bytes in a block, if fixed for the type.
    #[must_use]
    pub const fn fixed_block_size(self) -> Option<u32> {
        if self.has_map() { Some(native::BLOCK_SIZE) } else { None }
    }

    /// Minimum length of a volume in bytes, if fixed for the type.
    #[must_use]
    pub const fn least_len(self) -> Option<u64> {
        if self.has_map() { Some(native::LEAST_BLOCKS * native::BLOCK_SIZE as u64) } else { None }
    }

    /// The name of a volume of this type with these features: one of the kernel's formats becomes another by its
    /// features.
    #[must_use]
    pub fn name_with(self, features: &Features) -> &'static str {
        match self {
            Self::Extant | Self::SpaceMap => self.name(),
            Self::Ext2 | Self::Ext3 | Self::Ext4 | Self::Rext3 => features.format_name(),
        }
    }

    /// The features of the type before any edit (`mke2fs.conf` of Debian's 1.47; rext3 is ext3 with its required
    /// features).
    #[must_use]
    pub fn features(self) -> Features {
        if self == Self::Extant {
            return Features {
                compat: Compat::EXT_ATTR | Compat::DIR_INDEX | Compat::SPARSE_SUPER2,
                incompat: Incompat::FILETYPE | Incompat::EXTENT | Incompat::BIT64 | Incompat::FLEX_BG,
                ro_compat: RoCompat::LARGE_FILE
                    | RoCompat::HUGE_FILE
                    | RoCompat::METADATA_CSUM
                    | RoCompat::DIR_NLINK
                    | RoCompat::EXTRA_ISIZE,
            };
        }
        let mut features = Features {
            compat: Compat::EXT_ATTR | Compat::RESIZE_INODE | Compat::DIR_INDEX,
            incompat: Incompat::FILETYPE,
            ro_compat: RoCompat::SPARSE_SUPER | RoCompat::LARGE_FILE,
        };
        if self != Self::Ext2 {
            features.compat |= Compat::HAS_JOURNAL;
        }
        if self == Self::Rext3 {
            // the block lists of this inode have no space for an owner
            features.compat -= Compat::RESIZE_INODE;
            features.incompat |= Incompat::BIT64 | Incompat::FLEX_BG | Incompat::EXTANT;
            features.ro_compat |= RoCompat::METADATA_CSUM;
        }
        if self == Self::SpaceMap {
            // no copies of the superblock among the groups of a metablockgroup, and no growth of the volume
            features.compat -= Compat::RESIZE_INODE;
            features.compat |= Compat::SPARSE_SUPER2;
            features.ro_compat -= RoCompat::SPARSE_SUPER;
            features.ro_compat |= RoCompat::EXTANT_RO;
        }
        if matches!(self, Self::Ext4 | Self::SpaceMap) {
            features.incompat |= Incompat::EXTENT | Incompat::BIT64 | Incompat::FLEX_BG;
            features.ro_compat |=
                RoCompat::HUGE_FILE | RoCompat::METADATA_CSUM | RoCompat::DIR_NLINK | RoCompat::EXTRA_ISIZE;
        }
        features
    }
}

/// The expected use of a volume, which determines block size and number of inodes unless they are set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Usage {
    /// Under 3 MiB.
    Floppy,
    /// Under 512 MiB.
    Small,
    /// From 512 MiB to 4 TiB.
    Default,
    /// From 4 TiB on.
    Big,
    /// From 16 TiB on.
    Huge,
    /// Many small files.
    News,
    /// Files of a megabyte and more.
    LargeFile,
    /// Files of four megabytes and more.
    LargeFile4,
    /// For the Hurd: inodes of 128 bytes.
    Hurd,
}

/// The values determined by a usage.
#[derive(Debug, Clone, Copy)]
pub(super) struct UsageValues {
    pub(super) block_size: Option<u32>,
    pub(super) inode_size: Option<u32>,
    pub(super) bytes_per_inode: Option<u64>,
}

impl Usage {
    /// All usages with their names for `-T`.
    pub const NAMES: [(&'static str, Self); 9] = [
        ("floppy", Self::Floppy),
        ("small", Self::Small),
        ("default", Self::Default),
        ("big", Self::Big),
        ("huge", Self::Huge),
        ("news", Self::News),
        ("largefile", Self::LargeFile),
        ("largefile4", Self::LargeFile4),
        ("hurd", Self::Hurd),
    ];

    /// The usage with that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|row| row.0 == name).map(|row| row.1)
    }

    /// The usage of a volume of this many bytes.
    #[must_use]
    pub fn of_size(bytes: u64) -> Self {
        match bytes >> 20 {
            0..3 => Self::Floppy,
            3..512 => Self::Small,
            0x40_0000..0x100_0000 => Self::Big,
            0x100_0000.. => Self::Huge,
            _ => Self::Default,
        }
    }

    pub(super) fn values(self) -> UsageValues {
        let (block_size, inode_size, bytes_per_inode) = match self {
            Self::Floppy => (Some(1024), None, Some(8192)),
            Self::Small => (Some(1024), None, Some(4096)),
            Self::Default => (None, None, None),
            Self::Big => (None, None, Some(32768)),
            Self::Huge => (None, None, Some(65536)),
            Self::News => (None, None, Some(4096)),
            Self::LargeFile => (None, None, Some(1 << 20)),
            Self::LargeFile4 => (None, None, Some(4 << 20)),
            Self::Hurd => (Some(4096), Some(128), None),
        };
        UsageValues { block_size, inode_size, bytes_per_inode }
    }
}

/// Changes to the features of a [`Kind`], in the specified order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FeatureEdits {
    steps: Vec<Edit>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Edit {
    Set(Features),
    Clear(Features),
    ClearAll,
}

impl FeatureEdits {
    /// Adds a list in mke2fs's form: names separated by commas or spaces, `^` before one to clear, `none` for all of
    /// them.
    ///
    /// # Errors
    /// [`super::Error::Options`] with the name of an unknown feature, or of one that a volume cannot be created with.
    pub fn add(&mut self, list: &str) -> Result<()> {
        for word in list.split([',', ' ']).filter(|word| !word.is_empty()) {
            if word == "none" {
                self.steps.push(Edit::ClearAll);
                continue;
            }
            let (clear, name) = match word.strip_prefix('^') {
                Some(name) => (true, name),
                None => (false, word),
            };
            // Extant's own features are in a separate word, which a bit of the standard ones marks as valid
            let named = if name == "space_maps" { Some(SPACE_MAPS) } else { Features::named(name) };
            let Some(feature) = named else {
                return refuse(format!("unknown feature `{name}`"));
            };
            let makeable = name == "space_maps" || feature.without(MAKEABLE) == Features::default();
            if !clear && !makeable {
                return refuse(format!("a volume cannot be created with the feature {name}"));
            }
            self.steps.push(if clear { Edit::Clear(feature) } else { Edit::Set(feature) });
        }
        Ok(())
    }

    pub(super) fn apply(&self, features: Features) -> Features {
        self.steps.iter().fold(features, |features, step| match step {
            Edit::Set(more) => features.union(*more),
            Edit::Clear(less) => features.without(*less),
            Edit::ClearAll => Features::default(),
        })
    }

    /// Whether the list itself sets a feature.
    pub(super) fn sets(&self, feature: Features) -> bool {
        self.steps.iter().any(|step| matches!(step, Edit::Set(set) if set.intersects(feature)))
    }
}

/// The bits of the standard feature words set for the feature space_maps.
const SPACE_MAPS: Features =
    Features { compat: Compat::empty(), incompat: Incompat::empty(), ro_compat: RoCompat::EXTANT_RO };

/// Features that a new volume can have.
const MAKEABLE: Features = Features {
    compat: Compat::HAS_JOURNAL
        .union(Compat::EXT_ATTR)
        .union(Compat::RESIZE_INODE)
        .union(Compat::DIR_INDEX)
        .union(Compat::SPARSE_SUPER2)
        .union(Compat::FAST_COMMIT)
        .union(Compat::STABLE_INODES)
        .union(Compat::ORPHAN_FILE),
    incompat: Incompat::FILETYPE
        .union(Incompat::META_BG)
        .union(Incompat::EXTENT)
        .union(Incompat::BIT64)
        .union(Incompat::MMP)
        .union(Incompat::FLEX_BG)
        .union(Incompat::EA_INODE)
        .union(Incompat::CSUM_SEED)
        .union(Incompat::LARGE_DIR)
        .union(Incompat::INLINE_DATA)
        .union(Incompat::ENCRYPT)
        .union(Incompat::CASEFOLD),
    ro_compat: RoCompat::SPARSE_SUPER
        .union(RoCompat::LARGE_FILE)
        .union(RoCompat::HUGE_FILE)
        .union(RoCompat::GDT_CSUM)
        .union(RoCompat::DIR_NLINK)
        .union(RoCompat::EXTRA_ISIZE)
        .union(RoCompat::QUOTA)
        .union(RoCompat::BIGALLOC)
        .union(RoCompat::METADATA_CSUM)
        .union(RoCompat::PROJECT)
        .union(RoCompat::VERITY),
};

/// The behaviour of the kernel on an error (`s_errors`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnError {
    /// Goes on.
    Continue,
    /// Makes the volume read-only.
    RemountReadOnly,
    /// Panics.
    Panic,
}

/// The encoding for comparing names in casefolded directories.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Encoding {
    /// Names that are not valid UTF-8 are refused.
    pub strict: bool,
}

/// The kinds of quota to record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuotaKinds {
    /// Quota of users.
    pub user: bool,
    /// Quota of groups.
    pub group: bool,
    /// Quota of projects.
    pub project: bool,
}

/// The options of a new volume. [`MkfsOptions::new`] has mke2fs's defaults; `None` means a value derived from the size.
#[derive(Debug, Clone, PartialEq)]
pub struct MkfsOptions {
    /// Type.
    pub kind: Kind,
    /// Usages, later ones take precedence; empty for the one that fits the size.
    pub usage: Vec<Usage>,
    /// Length of the volume in bytes; `None` for the device's. Rounded down to whole blocks.
    pub len: Option<u64>,
    /// Bytes in a block: a power of two from 1 024 to 65 536.
    pub block_size: Option<u32>,
    /// Bytes in a cluster, under bigalloc: a power of two from two blocks to 256 MiB.
    pub cluster_size: Option<u32>,
    /// Bytes in an inode: a power of two from 128 to the block size.
    pub inode_size: Option<u32>,
    /// Bytes of the volume per inode, from 1 024 to 64 MiB.
    pub bytes_per_inode: Option<u64>,
    /// Number of inodes, rounded up.
    pub inodes: Option<u64>,
    /// Blocks in a group (under bigalloc clusters): a multiple of 8, from 256 to the bits of a bitmap block.
    pub blocks_per_group: Option<u32>,
    /// Groups whose bitmaps and tables are together: a power of two. Needs flex_bg.
    pub groups_per_flex: Option<u32>,
    /// Label, at most 16 bytes.
    pub label: Vec<u8>,
    /// Directory recorded as last mounted on, at most 63 bytes.
    pub last_mounted: Vec<u8>,
    /// Share of the blocks reserved for the superuser, in percent, 0 to 50.
    pub reserved_percent: f64,
    /// The volume's UUID.
    pub uuid: [u8; 16],
    /// Seed of directory hashes.
    pub hash_seed: [u8; 16],
    /// Time of creation; only whole seconds are stored.
    pub time: Timestamp,
    /// Changes to the features of the kind.
    pub features: FeatureEdits,
    /// Journal in MiB, without the fast-commit area.
    pub journal_mib: Option<u32>,
    /// Fast-commit area in KiB, if the feature is set.
    pub fast_commit_kib: Option<u32>,
    /// RAID stride in blocks.
    pub stride: u16,
    /// RAID stripe width in blocks.
    pub stripe_width: u32,
    /// Blocks up to which the volume can grow while mounted.
    pub resize_blocks: Option<u64>,
    /// Leave inode tables unwritten, for the kernel to zero in the background; needs descriptor checksums.
    pub lazy_inode_tables: bool,
    /// Leave the journal's blocks unwritten.
    pub lazy_journal: bool,
    /// Discard the whole device first.
    pub discard: bool,
    /// All bitmaps and inode tables, and the journal, at the start of the volume. Needs flex_bg.
    pub packed_meta_blocks: bool,
    /// User and group of the root directory.
    pub root_owner: (u32, u32),
    /// Backup superblocks under sparse_super2: 0, 1 or 2.
    pub backup_superblocks: u8,
    /// The kinds of quota to record, with the feature quota; `None` for users and groups; projects are always added
    /// with the feature project.
    pub quota: Option<QuotaKinds>,
    /// Encoding of names; sets the feature casefold.
    pub encoding: Option<Encoding>,
    /// Seconds between updates of the multiple-mount-protection block; 0 for the kernel's default.
    pub mmp_interval: u16,
    /// The behaviour of the kernel on an error.
    pub on_error: OnError,
    /// Length of the orphan file in bytes, if the feature is set.
    pub orphan_file_len: Option<u64>,
    /// Length of the list of linked writes in bytes, 0 for a default by the volume's size; `None` for no list.
    pub linked_len: Option<u64>,
    /// Mark the volume as one for testing.
    pub test_volume: bool,
    /// Bytes of a metablockgroup, under space maps; 8 GiB by default.
    pub metablockgroup_bytes: Option<u64>,
    /// Blocks of the log of space maps; by default 256, or fewer on a small volume.
    pub space_map_log: Option<u32>,
    /// Bytes of initial metadata region of a rext3 volume for each of its groups; `None` for a 64th of a group, 2 MiB
    /// with blocks of 4 KiB. Those of the groups of a flexible group are together, in whole chunks, of which a group
    /// has 64.
    pub region_bytes: Option<u64>,
}

impl MkfsOptions {
    /// mke2fs's defaults for `kind`. UUID and hash seed are zero: set random ones. The time is 1970.
    #[must_use]
    pub fn new(kind: Kind) -> Self {
        Self {
            kind,
            usage: Vec::new(),
            len: None,
            block_size: None,
            cluster_size: None,
            inode_size: None,
            bytes_per_inode: None,
            inodes: None,
            blocks_per_group: None,
            groups_per_flex: None,
            label: Vec::new(),
            last_mounted: Vec::new(),
            reserved_percent: 5.0,
            uuid: [0; 16],
            hash_seed: [0; 16],
            time: Timestamp::default(),
            features: FeatureEdits::default(),
            journal_mib: None,
            fast_commit_kib: None,
            stride: 0,
            stripe_width: 0,
            resize_blocks: None,
            lazy_inode_tables: false,
            lazy_journal: false,
            discard: true,
            packed_meta_blocks: false,
            root_owner: (0, 0),
            backup_superblocks: 2,
            quota: None,
            encoding: None,
            mmp_interval: 0,
            on_error: OnError::Continue,
            orphan_file_len: None,
            linked_len: None,
            test_volume: false,
            metablockgroup_bytes: None,
            space_map_log: None,
            region_bytes: None,
        }
    }
}
