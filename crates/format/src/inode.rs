//! Inodes: the first 128 bytes, and the extra fields of larger ones.

use crate::checksum::crc32c;
use crate::feature::{Incompat, RoCompat};
use crate::superblock::{Geometry, Superblock};
use crate::{Error, FsBlock, InodeNo, Result, Structure};
use bitflags::bitflags;
use zerocopy::FromBytes;
use zerocopy::little_endian::{U16, U32};

mod buf;

pub use buf::{EXTRA_ISIZE, InodeBuf, set_slot_checksum};

disk_struct! {
    /// The first 128 bytes of an inode (`ext4_inode`), which all volumes have.
    pub struct DiskInode[128] {
        /// file type and permissions
        0x00 i_mode: U16,
        /// owner, low half
        0x02 i_uid_lo: U16,
        /// size in bytes, low half
        0x04 i_size_lo: U32,
        /// last access, seconds
        0x08 i_atime: U32,
        /// last change of the inode, seconds; in an attribute inode the value's hash
        0x0C i_ctime: U32,
        /// last change of the data, seconds
        0x10 i_mtime: U32,
        /// when it was deleted, seconds; next orphan while on the orphan list
        0x14 i_dtime: U32,
        /// group, low half
        0x18 i_gid_lo: U16,
        /// number of names
        0x1A i_links_count: U16,
        /// space used, in units of 512 bytes (or blocks, see `HUGE_FILE`), low half
        0x1C i_blocks_lo: U32,
        /// [`InodeFlags`]
        0x20 i_flags: U32,
        /// version, low half; in an attribute inode the reference count's low half
        0x24 i_version_lo: U32,
        /// block map, extent tree, link target, device number or inline data
        0x28 i_block: [u8; 60],
        /// generation, for NFS
        0x64 i_generation: U32,
        /// block of extended attributes, low half
        0x68 i_file_acl_lo: U32,
        /// size in bytes, high half
        0x6C i_size_high: U32,
        /// fragment (never implemented)
        0x70 i_obso_faddr: U32,
        /// space used, high half
        0x74 i_blocks_high: U16,
        /// block of extended attributes, high half
        0x76 i_file_acl_high: U16,
        /// owner, high half
        0x78 i_uid_high: U16,
        /// group, high half
        0x7A i_gid_high: U16,
        /// checksum, low half
        0x7C i_checksum_lo: U16,
        /// unused
        0x7E i_reserved: U16,
    }
}

disk_struct! {
    /// The fields after the first 128 bytes of inodes of 256 bytes and more; `i_extra_isize` is the number of bytes in
    /// use.
    pub struct DiskInodeExtra[32] {
        /// bytes of this structure that are in use
        0x00 i_extra_isize: U16,
        /// checksum, high half
        0x02 i_checksum_hi: U16,
        /// last change of the inode: nanoseconds, and two more bits of the seconds
        0x04 i_ctime_extra: U32,
        /// last change of the data, likewise
        0x08 i_mtime_extra: U32,
        /// last access, likewise
        0x0C i_atime_extra: U32,
        /// creation, seconds
        0x10 i_crtime: U32,
        /// creation, nanoseconds and more bits
        0x14 i_crtime_extra: U32,
        /// version, high half
        0x18 i_version_hi: U32,
        /// project
        0x1C i_projid: U32,
    }
}

bitflags! {
    /// `i_flags`
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct InodeFlags: u32 {
        /// overwrite on deletion (never implemented)
        const SECRM = 0x1;
        /// preserve for undeletion (never implemented)
        const UNRM = 0x2;
        /// compressed
        const COMPR = 0x4;
        /// writes are synchronous
        const SYNC = 0x8;
        /// may not be changed
        const IMMUTABLE = 0x10;
        /// may only grow
        const APPEND = 0x20;
        /// left out of dumps
        const NODUMP = 0x40;
        /// access times are not recorded
        const NOATIME = 0x80;
        /// encrypted
        const ENCRYPT = 0x800;
        /// hashed directory
        const INDEX = 0x1000;
        /// created by AFS
        const IMAGIC = 0x2000;
        /// data goes through the journal
        const JOURNAL_DATA = 0x4000;
        /// tail is not merged
        const NOTAIL = 0x8000;
        /// directory changes are synchronous
        const DIRSYNC = 0x1_0000;
        /// top of a directory hierarchy
        const TOPDIR = 0x2_0000;
        /// `i_blocks` counts blocks
        const HUGE_FILE = 0x4_0000;
        /// mapped by extents
        const EXTENTS = 0x8_0000;
        /// verity file
        const VERITY = 0x10_0000;
        /// contains the value of an extended attribute
        const EA_INODE = 0x20_0000;
        /// blocks past the end were allocated on purpose (retired)
        const EOFBLOCKS = 0x40_0000;
        /// snapshot (never in mainline)
        const SNAPFILE = 0x100_0000;
        /// DAX
        const DAX = 0x200_0000;
        /// data is in the inode
        const INLINE_DATA = 0x1000_0000;
        /// children inherit the project
        const PROJINHERIT = 0x2000_0000;
        /// names are compared without case
        const CASEFOLD = 0x4000_0000;
    }
}

/// The type of a file, from `i_mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FileKind {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
}

impl FileKind {
    /// The type in the upper bits of a mode; `None` for an undefined value.
    #[must_use]
    pub fn of_mode(mode: u16) -> Option<Self> {
        Some(match mode & 0xF000 {
            0x1000 => Self::Fifo,
            0x2000 => Self::CharDevice,
            0x4000 => Self::Directory,
            0x6000 => Self::BlockDevice,
            0x8000 => Self::Regular,
            0xA000 => Self::Symlink,
            0xC000 => Self::Socket,
            _ => return None,
        })
    }
}

/// A point in time: seconds since 1970, and nanoseconds, usually below 10^9 (not validated).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp {
    /// Seconds since 1970, may be negative.
    pub seconds: i64,
    /// Nanoseconds.
    pub nanos: u32,
}

impl Timestamp {
    /// Joins a time's 32 bits of seconds (signed) with its extra word: two more bits of seconds, 30 of nanoseconds.
    #[must_use]
    pub fn join(seconds: u32, extra: Option<u32>) -> Self {
        let low = i64::from(seconds.cast_signed());
        match extra {
            None => Self { seconds: low, nanos: 0 },
            Some(extra) => Self { seconds: low + (i64::from(extra & 3) << 32), nanos: extra >> 2 },
        }
    }
}

/// One slot of an inode table, not validated.
#[derive(Debug, Clone, Copy)]
pub struct RawInode<'a> {
    bytes: &'a [u8],
    /// The first 128 bytes.
    pub disk: &'a DiskInode,
}

impl<'a> RawInode<'a> {
    /// A slot's bytes; `None` where there are fewer than 128.
    #[inline]
    #[must_use]
    pub fn from_slot(bytes: &'a [u8]) -> Option<Self> {
        let (disk, _) = DiskInode::ref_from_prefix(bytes).ok()?;
        Some(Self { bytes, disk })
    }

    /// All bytes of the slot.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Whether the slot is all zeros: never used, or cleared.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        self.bytes.iter().all(|b| *b == 0)
    }

    /// `i_flags`, unknown bits preserved.
    #[inline]
    #[must_use]
    pub fn flags(&self) -> InodeFlags {
        InodeFlags::from_bits_retain(self.disk.i_flags.get())
    }

    /// The file's type.
    #[inline]
    #[must_use]
    pub fn kind(&self) -> Option<FileKind> {
        FileKind::of_mode(self.disk.i_mode.get())
    }

    /// Size in bytes, both halves, whatever the type. (In the first ext2 the high half of a directory's was an ACL.)
    #[inline]
    #[must_use]
    pub fn size(&self) -> u64 {
        u64::from(self.disk.i_size_high.get()) << 32 | u64::from(self.disk.i_size_lo.get())
    }

    /// The block of extended attributes, 0 for none; the high half is used only under 64bit.
    #[inline]
    #[must_use]
    pub fn file_acl(&self, wide: bool) -> FsBlock {
        let high = if wide { self.disk.i_file_acl_high.get() } else { 0 };
        FsBlock(u64::from(high) << 32 | u64::from(self.disk.i_file_acl_lo.get()))
    }

    /// Space used, in units of 512 bytes; saturates.
    #[must_use]
    pub fn sectors(&self, huge_file: bool, block_size: u32) -> u64 {
        let low = u64::from(self.disk.i_blocks_lo.get());
        if !huge_file {
            return low;
        }
        let all = u64::from(self.disk.i_blocks_high.get()) << 32 | low;
        if self.flags().contains(InodeFlags::HUGE_FILE) { all.saturating_mul(u64::from(block_size / 512)) } else { all }
    }

    /// `i_extra_isize`, not validated; 0 where inodes have 128 bytes.
    #[inline]
    #[must_use]
    pub fn extra_isize(&self) -> u16 {
        self.extra().map_or(0, |e| e.i_extra_isize.get())
    }

    /// The fields beyond 128 bytes, whether or not `i_extra_isize` covers them.
    #[inline]
    #[must_use]
    pub fn extra(&self) -> Option<&'a DiskInodeExtra> {
        let (extra, _) = DiskInodeExtra::ref_from_prefix(self.bytes.get(DiskInode::SIZE..)?).ok()?;
        Some(extra)
    }

    /// The 32-bit word of the extra fields at `offset`, where `i_extra_isize` covers it.
    #[inline]
    fn extra_word(&self, offset: usize, word: impl Fn(&DiskInodeExtra) -> U32) -> Option<u32> {
        let extra = self.extra()?;
        (usize::from(extra.i_extra_isize.get()) >= offset + 4).then(|| word(extra).get())
    }

    /// Last access.
    #[must_use]
    pub fn atime(&self) -> Timestamp {
        Timestamp::join(self.disk.i_atime.get(), self.extra_word(0x0C, |e| e.i_atime_extra))
    }

    /// Last change of the inode.
    #[must_use]
    pub fn ctime(&self) -> Timestamp {
        Timestamp::join(self.disk.i_ctime.get(), self.extra_word(0x04, |e| e.i_ctime_extra))
    }

    /// Last change of the data.
    #[must_use]
    pub fn mtime(&self) -> Timestamp {
        Timestamp::join(self.disk.i_mtime.get(), self.extra_word(0x08, |e| e.i_mtime_extra))
    }

    /// Creation, where the inode records it.
    #[must_use]
    pub fn crtime(&self) -> Option<Timestamp> {
        let seconds = self.extra_word(0x10, |e| e.i_crtime)?;
        Some(Timestamp::join(seconds, self.extra_word(0x14, |e| e.i_crtime_extra)))
    }

    /// The project, 0 where the inode records none.
    #[must_use]
    pub fn project(&self) -> u32 {
        self.extra_word(0x1C, |e| e.i_projid).unwrap_or(0)
    }

    /// Owner.
    #[must_use]
    pub fn uid(&self) -> u32 {
        u32::from(self.disk.i_uid_high.get()) << 16 | u32::from(self.disk.i_uid_lo.get())
    }

    /// Group.
    #[must_use]
    pub fn gid(&self) -> u32 {
        u32::from(self.disk.i_gid_high.get()) << 16 | u32::from(self.disk.i_gid_lo.get())
    }

    /// The device's major and minor number, for device inodes: the old 8+8 bits in the first word of `i_block`, or the
    /// newer 12+20 bits in the second.
    #[must_use]
    pub fn device(&self) -> (u32, u32) {
        let [old, new] = self.block_words::<2>();
        if old != 0 {
            return (old >> 8 & 0xFF, old & 0xFF);
        }
        (new >> 8 & 0xFFF, new & 0xFF | new >> 12 & 0xF_FF00)
    }

    /// The first words of `i_block`.
    #[must_use]
    pub fn block_words<const N: usize>(&self) -> [u32; N] {
        let mut words = [0; N];
        for (word, bytes) in words.iter_mut().zip(self.disk.i_block.chunks_exact(4)) {
            *word = U32::read_from_bytes(bytes).map_or(0, U32::get);
        }
        words
    }

    /// The space for attributes after the extra fields; empty for inodes of 128 bytes or a wrong `i_extra_isize`.
    #[inline]
    #[must_use]
    pub fn attribute_area(&self) -> &'a [u8] {
        let start = DiskInode::SIZE + usize::from(self.extra_isize());
        if self.bytes.len() <= DiskInode::SIZE || self.extra_isize() < 4 {
            return &[];
        }
        self.bytes.get(start..).unwrap_or_default()
    }

    /// The seed of this inode's own structures: volume seed, number, generation.
    #[inline]
    #[must_use]
    pub fn seed(&self, geometry: &Geometry, number: InodeNo) -> u32 {
        let (number, generation) = (u64::from(number.get()), u64::from(self.disk.i_generation.get()));
        crc32c(geometry.checksum_seed, &(generation << 32 | number).to_le_bytes())
    }

    /// The right checksum of the inode; 32 bits where `i_extra_isize` covers `i_checksum_hi`, otherwise the low half.
    #[must_use]
    pub fn checksum(&self, geometry: &Geometry, number: InodeNo) -> u32 {
        const LOW: usize = 0x7C;
        const HIGH: usize = 0x82;
        const COPIED: usize = 256;
        // copied with zeros for the checksum itself, so that the CRC is one call instead of seven
        let (first, rest) = self.bytes.split_at(self.bytes.len().min(COPIED));
        let wide = first.len() > DiskInode::SIZE && self.has_checksum_hi();
        let mut copy = [0; 8 + COPIED];
        let (seed, inode) = copy.split_at_mut(8);
        seed[..4].copy_from_slice(&number.get().to_le_bytes());
        seed[4..].copy_from_slice(&self.disk.i_generation.get().to_le_bytes());
        inode[..first.len()].copy_from_slice(first);
        inode[LOW..LOW + 2].fill(0);
        if wide {
            inode[HIGH..HIGH + 2].fill(0);
        }
        let crc = crc32c(geometry.checksum_seed, &copy[..8 + first.len()]);
        let crc = crc32c(crc, rest);
        if wide { crc } else { crc & 0xFFFF }
    }

    /// The stored checksum.
    #[must_use]
    pub fn stored_checksum(&self) -> u32 {
        let high = match self.extra() {
            Some(extra) if self.has_checksum_hi() => extra.i_checksum_hi.get(),
            _ => 0,
        };
        u32::from(high) << 16 | u32::from(self.disk.i_checksum_lo.get())
    }

    fn has_checksum_hi(&self) -> bool {
        self.extra_isize() >= 4
    }
}

/// A validated inode, with its own copy of the bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inode {
    /// Its number.
    pub number: InodeNo,
    /// Its type.
    pub kind: FileKind,
    /// Size in bytes.
    pub size: u64,
    bytes: Box<[u8]>,
}

impl Inode {
    /// Validates a slot of the inode table: in use, right checksum, known type, possible size.
    ///
    /// # Errors
    /// [`Error::Corrupt`] without a location, which the caller adds.
    pub fn parse(sb: &Superblock, number: InodeNo, slot: &[u8]) -> Result<Self> {
        if sb.geometry.metadata_csum
            && let Some(raw) = RawInode::from_slot(slot)
            && raw.checksum(&sb.geometry, number) != raw.stored_checksum()
        {
            return Err(Error::corrupt(Structure::Inode, "i_checksum does not match"));
        }
        Self::without_checksum(sb, number, slot.into())
    }

    /// As [`Inode::parse`], for a slot whose checksum is still to be computed.
    ///
    /// # Errors
    /// As [`Inode::parse`].
    pub fn without_checksum(sb: &Superblock, number: InodeNo, slot: Box<[u8]>) -> Result<Self> {
        let bad = |what| Err(Error::corrupt(Structure::Inode, what));
        let Some(raw) = RawInode::from_slot(&slot) else { return bad("the table ends before it") };
        let Some(kind) = raw.kind() else { return bad("i_mode names no file type") };
        let extra = usize::from(raw.extra_isize());
        if slot.len() > DiskInode::SIZE && (extra > slot.len() - DiskInode::SIZE || !extra.is_multiple_of(4)) {
            return bad("i_extra_isize is more than the inode has");
        }
        let size = match kind {
            FileKind::Regular => raw.size(),
            // the high half was an access control list in the first ext2
            FileKind::Directory if sb.features.incompat.contains(Incompat::LARGE_DIR) => raw.size(),
            FileKind::Directory | FileKind::Symlink => u64::from(raw.disk.i_size_lo.get()),
            _ => 0,
        };
        if size > i64::MAX as u64 {
            return bad("i_size is negative");
        }
        if raw.flags().contains(InodeFlags::INLINE_DATA) && !sb.features.incompat.contains(Incompat::INLINE_DATA) {
            return bad("has inline data on a volume without inline_data");
        }
        Ok(Self { number, kind, size, bytes: slot })
    }

    /// The fields.
    #[must_use]
    pub fn raw(&self) -> RawInode<'_> {
        match RawInode::from_slot(&self.bytes) {
            Some(raw) => raw,
            None => unreachable!("parse saw 128 bytes"),
        }
    }

    /// Space used, in units of 512 bytes.
    #[must_use]
    pub fn sectors(&self, sb: &Superblock) -> u64 {
        self.raw().sectors(sb.features.ro_compat.contains(RoCompat::HUGE_FILE), sb.geometry.block_size)
    }

    /// Whether it is a symbolic link with the target in `i_block`: short enough, and without data blocks.
    #[must_use]
    pub fn is_fast_symlink(&self) -> bool {
        self.kind == FileKind::Symlink
            && !self.raw().flags().intersects(InodeFlags::INLINE_DATA | InodeFlags::EXTENTS)
            && self.size < 60
    }
}
