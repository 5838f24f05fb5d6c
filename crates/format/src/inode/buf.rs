//! A writable inode: the bytes of its slot, with setters for its fields and the checksum.

use super::{DiskInode, DiskInodeExtra, FileKind, InodeFlags, RawInode, Timestamp};
use crate::superblock::Geometry;
use crate::{FsBlock, InodeNo};
use zerocopy::FromBytes;
use zerocopy::little_endian::U16;

/// Size in bytes of the known extra fields: `i_extra_isize` of new inodes of 256 bytes and more.
pub const EXTRA_ISIZE: u16 = DiskInodeExtra::SIZE as u16;

/// An inode that is being created or changed: a copy of the bytes of its slot.
///
/// Setters write all halves of a field. Those of the extra fields do nothing where `i_extra_isize` does not cover the
/// field. [`set_checksum`](Self::set_checksum) comes last, before the bytes go to the device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InodeBuf {
    bytes: Box<[u8]>,
}

impl InodeBuf {
    /// A slot of `inode_size` bytes, all zero except `i_extra_isize`, which is `extra_isize` limited to the slot's
    /// space. Sizes below 128 are treated as 128.
    #[must_use]
    pub fn new(inode_size: u32, extra_isize: u16) -> Self {
        let size = (inode_size as usize).max(DiskInode::SIZE);
        let mut inode = Self { bytes: vec![0; size].into() };
        let space = size - DiskInode::SIZE;
        if let Some(extra) = inode.extra_mut() {
            extra.i_extra_isize = extra_isize.min(space.min(usize::from(u16::MAX)) as u16).into();
        }
        inode
    }

    /// A copy of a slot; `None` where there are fewer than 128 bytes.
    #[must_use]
    pub fn from_slot(bytes: &[u8]) -> Option<Self> {
        (bytes.len() >= DiskInode::SIZE).then(|| Self { bytes: bytes.into() })
    }

    /// The fields, to be read.
    #[must_use]
    pub fn raw(&self) -> RawInode<'_> {
        match RawInode::from_slot(&self.bytes) {
            Some(raw) => raw,
            None => unreachable!("every constructor has 128 bytes"),
        }
    }

    /// The slot's bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The slot's bytes, owned.
    #[must_use]
    pub fn into_bytes(self) -> Box<[u8]> {
        self.bytes
    }

    /// The first 128 bytes, to be changed.
    pub fn disk_mut(&mut self) -> &mut DiskInode {
        match DiskInode::mut_from_prefix(&mut self.bytes) {
            Ok((disk, _)) => disk,
            Err(_) => unreachable!("every constructor has 128 bytes"),
        }
    }

    /// The fields beyond 128 bytes, whether or not `i_extra_isize` covers them; `None` where the slot ends before.
    pub fn extra_mut(&mut self) -> Option<&mut DiskInodeExtra> {
        let (extra, _) = DiskInodeExtra::mut_from_prefix(self.bytes.get_mut(DiskInode::SIZE..)?).ok()?;
        Some(extra)
    }

    /// The extra fields where `i_extra_isize` covers their first `covered` bytes.
    fn covered_mut(&mut self, covered: usize) -> Option<&mut DiskInodeExtra> {
        self.extra_mut().filter(|extra| usize::from(extra.i_extra_isize.get()) >= covered)
    }

    /// File type and permissions, `i_mode` as a whole.
    pub fn set_mode(&mut self, mode: u16) {
        self.disk_mut().i_mode = mode.into();
    }

    /// Owner.
    pub fn set_uid(&mut self, uid: u32) {
        let disk = self.disk_mut();
        (disk.i_uid_lo, disk.i_uid_high) = halves16(uid);
    }

    /// Group.
    pub fn set_gid(&mut self, gid: u32) {
        let disk = self.disk_mut();
        (disk.i_gid_lo, disk.i_gid_high) = halves16(gid);
    }

    /// Size in bytes, both halves.
    pub fn set_size(&mut self, size: u64) {
        let disk = self.disk_mut();
        disk.i_size_lo = (size as u32).into();
        disk.i_size_high = ((size >> 32) as u32).into();
    }

    /// `i_links_count`.
    pub fn set_links(&mut self, links: u16) {
        self.disk_mut().i_links_count = links.into();
    }

    /// `i_flags`, unknown bits preserved.
    pub fn set_flags(&mut self, flags: InodeFlags) {
        self.disk_mut().i_flags = flags.bits().into();
    }

    /// Space used, in units of 512 bytes, in the narrowest form that the volume supports; sets the inode's flag
    /// `HUGE_FILE` accordingly. `None`, with nothing changed, where `i_blocks` is too small for it.
    #[must_use]
    pub fn set_sectors(&mut self, sectors: u64, huge_file: bool, block_size: u32) -> Option<()> {
        let in_blocks = huge_file && sectors >= 1 << 48;
        let count = if in_blocks { sectors / u64::from(block_size / 512).max(1) } else { sectors };
        if count >= if huge_file { 1 << 48 } else { 1 << 32 } {
            return None;
        }
        let mut flags = self.raw().flags();
        flags.set(InodeFlags::HUGE_FILE, in_blocks);
        self.set_flags(flags);
        let disk = self.disk_mut();
        disk.i_blocks_lo = (count as u32).into();
        disk.i_blocks_high = ((count >> 32) as u16).into();
        Some(())
    }

    /// The block of extended attributes, 0 for none.
    pub fn set_file_acl(&mut self, block: FsBlock) {
        let disk = self.disk_mut();
        disk.i_file_acl_lo = (block.get() as u32).into();
        disk.i_file_acl_high = ((block.get() >> 32) as u16).into();
    }

    /// Last access.
    pub fn set_atime(&mut self, time: Timestamp) {
        let (seconds, extra) = time.split(self.covered_mut(0x10).is_some());
        self.disk_mut().i_atime = seconds.into();
        if let Some(fields) = self.covered_mut(0x10) {
            fields.i_atime_extra = extra.into();
        }
    }

    /// Last change of the inode.
    pub fn set_ctime(&mut self, time: Timestamp) {
        let (seconds, extra) = time.split(self.covered_mut(0x08).is_some());
        self.disk_mut().i_ctime = seconds.into();
        if let Some(fields) = self.covered_mut(0x08) {
            fields.i_ctime_extra = extra.into();
        }
    }

    /// Last change of the data.
    pub fn set_mtime(&mut self, time: Timestamp) {
        let (seconds, extra) = time.split(self.covered_mut(0x0C).is_some());
        self.disk_mut().i_mtime = seconds.into();
        if let Some(fields) = self.covered_mut(0x0C) {
            fields.i_mtime_extra = extra.into();
        }
    }

    /// Creation, where the inode can record it.
    pub fn set_crtime(&mut self, time: Timestamp) {
        if let Some(fields) = self.covered_mut(0x18) {
            let (seconds, extra) = time.split(true);
            fields.i_crtime = seconds.into();
            fields.i_crtime_extra = extra.into();
        }
    }

    /// The project, where the inode can record it.
    pub fn set_project(&mut self, project: u32) {
        if let Some(fields) = self.covered_mut(0x20) {
            fields.i_projid = project.into();
        }
    }

    /// `i_block` as a whole.
    pub fn set_block(&mut self, block: [u8; 60]) {
        self.disk_mut().i_block = block;
    }

    /// The first words of `i_block`; the others become zero.
    pub fn set_block_words(&mut self, words: &[u32]) {
        let mut block = [0; 60];
        for (bytes, word) in block.chunks_exact_mut(4).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        self.set_block(block);
    }

    /// The device's major and minor number: the old form where both fit into 8 bits, else the newer.
    pub fn set_device(&mut self, major: u32, minor: u32) {
        if major < 256 && minor < 256 {
            self.set_block_words(&[major << 8 | minor]);
        } else {
            self.set_block_words(&[0, minor & 0xFF | (major & 0xFFF) << 8 | (minor & !0xFF) << 12]);
        }
    }

    /// The space for attributes after the extra fields; empty where [`RawInode::attribute_area`] is.
    pub fn attribute_area_mut(&mut self) -> &mut [u8] {
        let length = self.raw().attribute_area().len();
        let start = self.bytes.len() - length;
        self.bytes.get_mut(start..).unwrap_or_default()
    }

    /// The type in `i_mode`.
    #[must_use]
    pub fn kind(&self) -> Option<FileKind> {
        self.raw().kind()
    }

    /// Writes the checksum of the inode as number `number` of the volume; zeros without metadata_csum.
    pub fn set_checksum(&mut self, geometry: &Geometry, number: InodeNo) {
        set_slot_checksum(&mut self.bytes, geometry, number);
    }
}

/// As [`InodeBuf::set_checksum`], for a slot in the inode table. A slot that is too short is not changed.
pub fn set_slot_checksum(slot: &mut [u8], geometry: &Geometry, number: InodeNo) {
    let Some(raw) = RawInode::from_slot(slot) else { return };
    let crc = if geometry.metadata_csum { raw.checksum(geometry, number) } else { 0 };
    let wide = raw.extra_isize() >= 4;
    let (low, high) = halves16(crc);
    let Ok((disk, rest)) = DiskInode::mut_from_prefix(slot) else { return };
    disk.i_checksum_lo = low;
    if wide && let Ok((extra, _)) = DiskInodeExtra::mut_from_prefix(rest) {
        extra.i_checksum_hi = high;
    }
}

fn halves16(value: u32) -> (U16, U16) {
    (U16::new(value as u16), U16::new((value >> 16) as u16))
}

impl Timestamp {
    /// The latest time in 34-bit seconds, in the year 2446.
    pub const MAX_WIDE: i64 = (3 << 32) + i32::MAX as i64;

    /// The two words of a time: 32 bits of seconds, and the extra word with two more bits of them and the nanoseconds.
    /// Without an extra word (`wide` false) that is 0. A time outside the range is clamped.
    #[must_use]
    pub fn split(self, wide: bool) -> (u32, u32) {
        let (min, max) = (i64::from(i32::MIN), if wide { Self::MAX_WIDE } else { i64::from(i32::MAX) });
        let seconds = self.seconds.clamp(min, max);
        let low = seconds as i32;
        let epoch = ((seconds - i64::from(low)) >> 32) as u32 & 3;
        let extra = if wide { epoch | self.nanos.min(999_999_999) << 2 } else { 0 };
        (low.cast_unsigned(), extra)
    }
}

impl From<RawInode<'_>> for InodeBuf {
    fn from(raw: RawInode<'_>) -> Self {
        Self { bytes: raw.bytes().into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::volume;
    use proptest::prelude::*;

    #[test]
    fn what_is_set_is_read() {
        for (size, extra) in [(128, 32), (256, 32), (1024, 32)] {
            let mut inode = InodeBuf::new(size, extra);
            let time = Timestamp { seconds: 5_000_000_000, nanos: 123_456_789 };
            inode.set_mode(0o100_644);
            inode.set_uid(70_000);
            inode.set_gid(80_001);
            inode.set_size(5 << 32 | 17);
            inode.set_links(3);
            inode.set_file_acl(FsBlock(6 << 32 | 9));
            inode.set_atime(time);
            inode.set_ctime(time);
            inode.set_mtime(time);
            inode.set_crtime(time);
            inode.set_project(77);
            let raw = inode.raw();
            assert_eq!((raw.uid(), raw.gid(), raw.size()), (70_000, 80_001, 5 << 32 | 17));
            assert_eq!((raw.kind(), raw.disk.i_links_count.get()), (Some(FileKind::Regular), 3));
            assert_eq!(raw.file_acl(true), FsBlock(6 << 32 | 9));
            if size == 128 {
                let last = Timestamp { seconds: i64::from(i32::MAX), nanos: 0 };
                assert_eq!((raw.atime(), raw.ctime(), raw.mtime(), raw.crtime()), (last, last, last, None));
                assert_eq!((raw.project(), raw.attribute_area().len()), (0, 0));
            } else {
                assert_eq!((raw.atime(), raw.ctime(), raw.mtime(), raw.crtime()), (time, time, time, Some(time)));
                assert_eq!((raw.project(), raw.attribute_area().len()), (77, size as usize - 160));
            }
        }
    }

    #[test]
    fn devices_take_the_form_that_fits() {
        for (major, minor, old) in [(8, 1, true), (255, 255, true), (256, 1, false), (8, 70_000, false), (0, 0, true)] {
            let mut inode = InodeBuf::new(256, 32);
            inode.set_device(major, minor);
            assert_eq!(inode.raw().device(), (major, minor));
            assert_eq!(inode.raw().block_words::<2>()[1] == 0, old);
        }
    }

    #[test]
    fn space_is_counted_in_the_narrowest_form() {
        let mut inode = InodeBuf::new(256, 32);
        for (sectors, huge_file, flag) in
            [(8, false, Some(false)), (1 << 32, false, None), (1 << 32, true, Some(false)), (1 << 50, true, Some(true))]
        {
            assert_eq!(inode.set_sectors(sectors, huge_file, 4096).is_some(), flag.is_some());
            if let Some(flag) = flag {
                assert_eq!(inode.raw().sectors(huge_file, 4096), sectors);
                assert_eq!(inode.raw().flags().contains(InodeFlags::HUGE_FILE), flag);
            }
        }
    }

    proptest! {
        #[test]
        fn times_come_back(seconds in i64::from(i32::MIN)..=Timestamp::MAX_WIDE, nanos in 0u32..1_000_000_000) {
            let time = Timestamp { seconds, nanos };
            let (low, extra) = time.split(true);
            prop_assert_eq!(Timestamp::join(low, Some(extra)), time);
        }

        #[test]
        fn inodes_get_the_right_checksum(bytes in proptest::collection::vec(any::<u8>(), 256), number: u32) {
            let sb = volume();
            let mut inode = InodeBuf::from_slot(&bytes).unwrap();
            inode.set_checksum(&sb.geometry, InodeNo(number));
            let raw = inode.raw();
            prop_assert_eq!(raw.checksum(&sb.geometry, InodeNo(number)), raw.stored_checksum());
        }
    }
}
