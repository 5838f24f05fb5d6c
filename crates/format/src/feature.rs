//! Feature words of the superblock, and which of them this version can read.
//!
//! `compat` features may be ignored, `ro_compat` features by readers only, `incompat` features never.

use crate::{Error, Result};
use bitflags::bitflags;

bitflags! {
    /// `s_feature_compat`
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct Compat: u32 {
        /// directory preallocation (never implemented)
        const DIR_PREALLOC = 0x1;
        /// "imagic" inodes of AFS
        const IMAGIC_INODES = 0x2;
        /// a journal
        const HAS_JOURNAL = 0x4;
        /// extended attributes
        const EXT_ATTR = 0x8;
        /// descriptor blocks reserved for growth, owned by inode 7
        const RESIZE_INODE = 0x10;
        /// hashed directories
        const DIR_INDEX = 0x20;
        /// lazy_bg (never in mainline)
        const LAZY_BG = 0x40;
        /// exclude inode (never in mainline)
        const EXCLUDE_INODE = 0x80;
        /// exclude bitmap (never in mainline)
        const EXCLUDE_BITMAP = 0x100;
        /// two backup superblocks at most, in the groups in `s_backup_bgs`
        const SPARSE_SUPER2 = 0x200;
        /// fast commits in the journal
        const FAST_COMMIT = 0x400;
        /// inode numbers must not change (encryption uses them)
        const STABLE_INODES = 0x800;
        /// orphans are listed in a file
        const ORPHAN_FILE = 0x1000;
    }

    /// `s_feature_incompat`
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct Incompat: u32 {
        /// compressed files (never in mainline)
        const COMPRESSION = 0x1;
        /// directory entries carry the file type
        const FILETYPE = 0x2;
        /// the journal must be replayed
        const NEEDS_RECOVERY = 0x4;
        /// this volume is an external journal
        const JOURNAL_DEV = 0x8;
        /// descriptor blocks are in their meta group
        const META_BG = 0x10;
        /// extent trees
        const EXTENT = 0x40;
        /// block numbers of 64 bits
        const BIT64 = 0x80;
        /// multiple-mount protection
        const MMP = 0x100;
        /// bitmaps and inode tables of several groups are contiguous
        const FLEX_BG = 0x200;
        /// large attribute values are in inodes of their own
        const EA_INODE = 0x400;
        /// data in directory entries (never implemented)
        const DIRDATA = 0x1000;
        /// the seed of checksums is stored in the superblock
        const CSUM_SEED = 0x2000;
        /// directories over 2 GiB and hash trees of three levels
        const LARGE_DIR = 0x4000;
        /// small files and directories inside the inode
        const INLINE_DATA = 0x8000;
        /// encrypted files
        const ENCRYPT = 0x10000;
        /// directories that compare names without case
        const CASEFOLD = 0x20000;
        /// the volume has Extant's own features, see [`Extant`]
        const EXTANT = 0x1000_0000;
    }

    /// `s_feature_ro_compat`
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct RoCompat: u32 {
        /// backup superblocks only in groups 0, 1 and powers of 3, 5, 7
        const SPARSE_SUPER = 0x1;
        /// files over 2 GiB
        const LARGE_FILE = 0x2;
        /// B-tree directories (never implemented)
        const BTREE_DIR = 0x4;
        /// `i_blocks` of 48 bits, in units of blocks for inodes with the flag
        const HUGE_FILE = 0x8;
        /// CRC-16 checksums of group descriptors, uninitialised groups
        const GDT_CSUM = 0x10;
        /// directories with more than 65 000 subdirectories
        const DIR_NLINK = 0x20;
        /// inodes have fields beyond 128 bytes
        const EXTRA_ISIZE = 0x40;
        /// has a snapshot (never in mainline)
        const HAS_SNAPSHOT = 0x80;
        /// quota inodes are part of the volume
        const QUOTA = 0x100;
        /// allocation in clusters of blocks
        const BIGALLOC = 0x200;
        /// CRC32C checksums of all metadata
        const METADATA_CSUM = 0x400;
        /// replicas (never in mainline)
        const REPLICA = 0x800;
        /// the volume may not be written at all
        const READONLY = 0x1000;
        /// project quota
        const PROJECT = 0x2000;
        /// blocks may be shared by several files (Android)
        const SHARED_BLOCKS = 0x4000;
        /// verity files
        const VERITY = 0x8000;
        /// the orphan file has entries
        const ORPHAN_PRESENT = 0x10000;
        /// the volume has Extant's own features that a reader may ignore, see [`ExtantRo`]
        const EXTANT_RO = 0x1000_0000;
    }

    /// `x_features`: Extant's own features. They are valid only under [`Incompat::EXTANT`], and none of them may be
    /// ignored.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct Extant: u32 {
        /// metadata is in regions, which are recorded in the group descriptors
        const REGIONS = 1;
        /// indirect blocks, extent nodes and directory blocks have their owner in a tail
        const OWNED = 2;
    }

    /// `x_ro_features`: Extant's own features that a reader may ignore. They are valid only under
    /// [`RoCompat::EXTANT_RO`].
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct ExtantRo: u32 {
        /// free space is recorded in [space maps](crate::space_map), and there are no block bitmaps
        const SPACE_MAPS = 1;
    }
}

impl ExtantRo {
    /// The names of all features set; a bit without a name as `FEATURE_Y31` and the like.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        names(self.bits(), EXTANT_RO_NAMES, 'Y')
    }

    /// Refuses features that this version cannot write, with their names.
    ///
    /// # Errors
    /// [`Error::Unsupported`] that lists the features.
    pub fn check_writable(&self) -> Result<()> {
        let unknown = self.bits() & !Self::all().bits();
        if unknown == 0 {
            return Ok(());
        }
        let list = names(unknown, EXTANT_RO_NAMES, 'Y').join(", ");
        Err(Error::Unsupported(format!("the volume uses {list}, which this version cannot write")))
    }
}

impl Extant {
    /// The features that this version can read.
    pub const READABLE: Self = Self::REGIONS.union(Self::OWNED);

    /// The names of all features set; a bit without a name as `FEATURE_X31` and the like.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        names(self.bits(), EXTANT_NAMES, 'X')
    }

    /// Refuses features that this version cannot read, with their names.
    ///
    /// # Errors
    /// [`Error::Unsupported`] that lists the features.
    pub fn check_readable(&self) -> Result<()> {
        let unknown = self.bits() & !Self::READABLE.bits();
        if unknown == 0 {
            return Ok(());
        }
        let list = names(unknown, EXTANT_NAMES, 'X').join(", ");
        Err(Error::Unsupported(format!("the volume uses {list}, which this version cannot read")))
    }
}

impl Incompat {
    /// The features that this version can read. Encrypted names and contents are shown encrypted.
    pub const READABLE: Self = Self::FILETYPE
        .union(Self::NEEDS_RECOVERY)
        .union(Self::META_BG)
        .union(Self::EXTENT)
        .union(Self::BIT64)
        .union(Self::MMP)
        .union(Self::FLEX_BG)
        .union(Self::EA_INODE)
        .union(Self::CSUM_SEED)
        .union(Self::LARGE_DIR)
        .union(Self::INLINE_DATA)
        .union(Self::ENCRYPT)
        .union(Self::CASEFOLD)
        .union(Self::EXTANT);
}

const COMPAT_NAMES: &[(u32, &str)] = &[
    (0x1, "dir_prealloc"),
    (0x2, "imagic_inodes"),
    (0x4, "has_journal"),
    (0x8, "ext_attr"),
    (0x10, "resize_inode"),
    (0x20, "dir_index"),
    (0x40, "lazy_bg"),
    (0x80, "snapshot"),
    (0x100, "exclude_bitmap"),
    (0x200, "sparse_super2"),
    (0x400, "fast_commit"),
    (0x800, "stable_inodes"),
    (0x1000, "orphan_file"),
];

const INCOMPAT_NAMES: &[(u32, &str)] = &[
    (0x1, "compression"),
    (0x2, "filetype"),
    (0x4, "needs_recovery"),
    (0x8, "journal_dev"),
    (0x10, "meta_bg"),
    (0x40, "extent"),
    (0x80, "64bit"),
    (0x100, "mmp"),
    (0x200, "flex_bg"),
    (0x400, "ea_inode"),
    (0x1000, "dirdata"),
    (0x2000, "metadata_csum_seed"),
    (0x4000, "large_dir"),
    (0x8000, "inline_data"),
    (0x1_0000, "encrypt"),
    (0x2_0000, "casefold"),
    (0x1000_0000, "extant"),
];

const EXTANT_NAMES: &[(u32, &str)] = &[(1, "regions"), (2, "owned")];

const EXTANT_RO_NAMES: &[(u32, &str)] = &[(1, "space_maps")];

const RO_COMPAT_NAMES: &[(u32, &str)] = &[
    (0x1, "sparse_super"),
    (0x2, "large_file"),
    (0x4, "btree_dir"),
    (0x8, "huge_file"),
    (0x10, "uninit_bg"),
    (0x20, "dir_nlink"),
    (0x40, "extra_isize"),
    (0x80, "snapshot"),
    (0x100, "quota"),
    (0x200, "bigalloc"),
    (0x400, "metadata_csum"),
    (0x800, "replica"),
    (0x1000, "read-only"),
    (0x2000, "project"),
    (0x4000, "shared_blocks"),
    (0x8000, "verity"),
    (0x1_0000, "orphan_present"),
    (0x1000_0000, "extant_ro"),
];

/// The three feature words of a volume, unknown bits preserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Features {
    /// Features that may be ignored.
    pub compat: Compat,
    /// Features that must not be ignored.
    pub incompat: Incompat,
    /// Features a reader may ignore.
    pub ro_compat: RoCompat,
}

impl Features {
    /// The features of three words from the device.
    #[must_use]
    pub fn from_words(compat: u32, incompat: u32, ro_compat: u32) -> Self {
        Self {
            compat: Compat::from_bits_retain(compat),
            incompat: Incompat::from_bits_retain(incompat),
            ro_compat: RoCompat::from_bits_retain(ro_compat),
        }
    }

    /// The features of a name in mke2fs's spelling or one of its older forms (`extents`, `uninit_groups`, `uninit_bg`,
    /// `gdt_csum`, `has_journal` …); `None` for an unknown name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let name = match name {
            "extents" => "extent",
            "uninit_groups" | "gdt_csum" => "uninit_bg",
            other => other,
        };
        let find = |table: &[(u32, &str)]| table.iter().find(|row| row.1 == name).map_or(0, |row| row.0);
        let words = [find(COMPAT_NAMES), find(INCOMPAT_NAMES), find(RO_COMPAT_NAMES)];
        (words != [0; 3]).then(|| Self::from_words(words[0], words[1], words[2]))
    }

    /// The features of both.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self {
            compat: self.compat | other.compat,
            incompat: self.incompat | other.incompat,
            ro_compat: self.ro_compat | other.ro_compat,
        }
    }

    /// The features that are in `self` but not in the other set.
    #[must_use]
    pub fn without(self, other: Self) -> Self {
        Self {
            compat: self.compat.difference(other.compat),
            incompat: self.incompat.difference(other.incompat),
            ro_compat: self.ro_compat.difference(other.ro_compat),
        }
    }

    /// Whether any feature is in both.
    #[must_use]
    pub fn intersects(self, other: Self) -> bool {
        self.compat.intersects(other.compat)
            || self.incompat.intersects(other.incompat)
            || self.ro_compat.intersects(other.ro_compat)
    }

    /// The names of all features set, in mke2fs's spelling; a bit without a name as `FEATURE_C31` and the like.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        [
            names(self.compat.bits(), COMPAT_NAMES, 'C'),
            names(self.incompat.bits(), INCOMPAT_NAMES, 'I'),
            names(self.ro_compat.bits(), RO_COMPAT_NAMES, 'R'),
        ]
        .concat()
    }

    /// The usual name of a volume with these features: `ext2`, `ext3` with a journal, `ext4` with features that only
    /// ext4 can read, `rext3` with features that only Extant can read.
    #[must_use]
    pub fn format_name(&self) -> &'static str {
        if self.incompat.contains(Incompat::EXTANT) {
            "rext3"
        } else if self.need_ext4() {
            "ext4"
        } else if self.compat.contains(Compat::HAS_JOURNAL) {
            "ext3"
        } else {
            "ext2"
        }
    }

    /// Whether there are features that ext2 and ext3 cannot read.
    fn need_ext4(&self) -> bool {
        let incompat =
            Incompat::EXTENT | Incompat::FLEX_BG | Incompat::BIT64 | Incompat::INLINE_DATA | Incompat::EA_INODE;
        let ro_compat = RoCompat::HUGE_FILE | RoCompat::GDT_CSUM | RoCompat::METADATA_CSUM | RoCompat::BIGALLOC;
        self.incompat.intersects(incompat) || self.ro_compat.intersects(ro_compat)
    }

    /// Whether files may have as many names as in ext4, not as in ext2 and ext3.
    #[must_use]
    pub fn counts_many_links(&self) -> bool {
        self.need_ext4() && !self.incompat.contains(Incompat::EXTANT)
    }

    /// Refuses a volume with features that this version cannot read, with their names.
    ///
    /// # Errors
    /// [`Error::Unsupported`] that lists the features.
    pub fn check_readable(&self) -> Result<()> {
        let unknown = self.incompat.bits() & !Incompat::READABLE.bits();
        if unknown == 0 {
            return Ok(());
        }
        if unknown & Incompat::JOURNAL_DEV.bits() != 0 {
            return Err(Error::Unsupported("this is an external journal, not a volume of files".into()));
        }
        let list = names(unknown, INCOMPAT_NAMES, 'I').join(", ");
        Err(Error::Unsupported(format!("the volume uses {list}, which this version cannot read")))
    }
}

fn names(word: u32, known: &[(u32, &str)], class: char) -> Vec<String> {
    (0..32)
        .filter(|bit| word & (1 << bit) != 0)
        .map(|bit| match known.iter().find(|(value, _)| *value == 1 << bit) {
            Some((_, name)) => (*name).to_owned(),
            None => format!("FEATURE_{class}{bit}"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_has_the_name_of_its_table() {
        for (flags, table) in [
            (Compat::all().bits(), COMPAT_NAMES),
            (Incompat::all().bits(), INCOMPAT_NAMES),
            (RoCompat::all().bits(), RO_COMPAT_NAMES),
            (Extant::all().bits(), EXTANT_NAMES),
            (ExtantRo::all().bits(), EXTANT_RO_NAMES),
        ] {
            assert_eq!(flags, table.iter().map(|(bit, _)| bit).sum::<u32>());
        }
    }

    #[test]
    fn names_lead_back_to_their_features() {
        let all = Features::from_words(Compat::all().bits(), Incompat::all().bits(), RoCompat::all().bits());
        let back =
            all.names().iter().map(|name| Features::named(name).unwrap()).fold(Features::default(), Features::union);
        assert_eq!(back, all);
        assert_eq!(Features::named("extents"), Features::named("extent"));
        assert_eq!(Features::named("none"), None);
        assert_eq!(all.without(back), Features::default());
        assert!(all.intersects(Features::named("quota").unwrap()) && !all.intersects(Features::default()));
    }

    #[test]
    fn an_unknown_feature_is_refused_by_name() {
        let features = Features::from_words(0, Incompat::DIRDATA.bits() | 1 << 30, 0);
        let text = features.check_readable().unwrap_err().to_string();
        assert!(text.contains("dirdata") && text.contains("FEATURE_I30"), "{text}");
        assert!(Features::from_words(u32::MAX, Incompat::READABLE.bits(), u32::MAX).check_readable().is_ok());
        let text = Extant::from_bits_retain(1 | 1 << 31).check_readable().unwrap_err().to_string();
        assert!(text.contains("FEATURE_X31") && !text.contains("regions"), "{text}");
        assert!(Extant::READABLE.check_readable().is_ok());
        let text = ExtantRo::from_bits_retain(1 | 1 << 5).check_writable().unwrap_err().to_string();
        assert!(text.contains("FEATURE_Y5") && !text.contains("space_maps"), "{text}");
        assert!(ExtantRo::SPACE_MAPS.check_writable().is_ok());
    }
}
