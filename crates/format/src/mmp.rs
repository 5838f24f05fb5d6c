//! Multiple-mount protection: a block that shows other hosts with access to the device that the volume is in use.

use crate::checksum::crc32c;
use crate::{Error, Result, Structure};
use std::mem::offset_of;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

/// `mmp_magic`
pub const MAGIC: u32 = 0x004D_4D50;
/// `mmp_seq` of a volume that is not in use.
pub const SEQ_CLEAN: u32 = 0xFF4D_4D50;
/// `mmp_seq` of a volume that is being checked.
pub const SEQ_FSCK: u32 = 0xE24D_4D50;
/// The largest `mmp_seq` of a mounted volume.
pub const SEQ_MAX: u32 = 0xE24D_4D4F;

disk_struct! {
    /// The block `s_mmp_block` (`mmp_struct`); the rest of a larger block is unused.
    pub struct DiskMmp[1024] {
        /// 0x004D4D50
        0x000 mmp_magic: U32,
        /// changes while the volume is mounted; 0xFF4D4D50 not in use, 0xE24D4D50 being checked
        0x004 mmp_seq: U32,
        /// when it was last written, seconds
        0x008 mmp_time: U64,
        /// the host that wrote it, ended by a zero byte where it is shorter
        0x010 mmp_nodename: [u8; 64],
        /// the device's name on that host
        0x050 mmp_bdevname: [u8; 32],
        /// seconds after which a mounted volume's sequence number must have changed
        0x070 mmp_check_interval: U16,
        /// unused
        0x072 mmp_pad1: U16,
        /// unused
        0x074 mmp_pad2: [U32; 226],
        /// with metadata_csum: CRC32C from the volume's seed over all bytes before
        0x3FC mmp_checksum: U32,
    }
}

/// The user of a volume by its MMP block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// No process.
    Clean,
    /// A checker.
    Fsck,
    /// A process that increments this number while the volume is mounted.
    Mounted(u32),
    /// A number that is never written.
    Invalid(u32),
}

impl DiskMmp {
    /// The block of a volume that is not in use, written at `time` (seconds since 1970) without a host name;
    /// `check_interval` in seconds. `seed` is the volume's where it has metadata_csum.
    #[must_use]
    pub fn clean(time: u64, check_interval: u16, seed: Option<u32>) -> Self {
        let Ok(mut mmp) = Self::read_from_bytes(&[0; Self::SIZE]) else {
            unreachable!("the array has the structure's size")
        };
        mmp.mmp_magic = MAGIC.into();
        mmp.mmp_seq = SEQ_CLEAN.into();
        mmp.mmp_time = time.into();
        mmp.mmp_check_interval = check_interval.into();
        mmp.mmp_checksum = seed.map_or(0, |seed| mmp.checksum(seed)).into();
        mmp
    }

    /// The correct value of `mmp_checksum`; `seed` is the volume's.
    pub fn checksum(&self, seed: u32) -> u32 {
        crc32c(seed, &self.as_bytes()[..offset_of!(Self, mmp_checksum)])
    }

    /// The user of the volume.
    pub fn usage(&self) -> Use {
        match self.mmp_seq.get() {
            SEQ_CLEAN => Use::Clean,
            SEQ_FSCK => Use::Fsck,
            seq @ ..=SEQ_MAX => Use::Mounted(seq),
            seq => Use::Invalid(seq),
        }
    }
}

/// A validated MMP block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mmp {
    disk: DiskMmp,
}

impl Mmp {
    /// Reads the MMP block; `seed` is the volume's where it has metadata_csum.
    ///
    /// # Errors
    /// `Corrupt` for a missing magic number, a wrong checksum or a sequence number that is never written.
    pub fn parse(block: &[u8], seed: Option<u32>) -> Result<Self> {
        let bad = |what| Error::corrupt(Structure::Mmp, what);
        let (disk, _) = DiskMmp::read_from_prefix(block).map_err(|_| bad("cut short"))?;
        if disk.mmp_magic != MAGIC {
            return Err(bad("no magic number"));
        }
        if seed.is_some_and(|seed| disk.mmp_checksum != disk.checksum(seed)) {
            return Err(bad("checksum does not match"));
        }
        if matches!(disk.usage(), Use::Invalid(_)) {
            return Err(bad("sequence number out of range"));
        }
        Ok(Self { disk })
    }

    /// The block's fields.
    pub fn disk(&self) -> &DiskMmp {
        &self.disk
    }

    /// The host that wrote it, without the zero bytes at the end.
    pub fn node_name(&self) -> &[u8] {
        until_zero(&self.disk.mmp_nodename)
    }

    /// The device's name on that host, without the zero bytes at the end.
    pub fn device_name(&self) -> &[u8] {
        until_zero(&self.disk.mmp_bdevname)
    }
}

fn until_zero(bytes: &[u8]) -> &[u8] {
    bytes.split(|&b| b == 0).next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mounted() -> DiskMmp {
        let mut mmp = DiskMmp::read_from_bytes(&[0; 1024]).unwrap();
        mmp.mmp_magic = MAGIC.into();
        mmp.mmp_seq = 77.into();
        mmp.mmp_nodename[..4].copy_from_slice(b"host");
        mmp.mmp_bdevname = [b'x'; 32];
        mmp.mmp_checksum = mmp.checksum(3).into();
        mmp
    }

    #[test]
    fn parse_checks_what_it_promises() {
        let good = Mmp::parse(mounted().as_bytes(), Some(3)).unwrap();
        assert_eq!(good.node_name(), b"host");
        assert_eq!(good.device_name(), [b'x'; 32]);
        assert_eq!(good.disk().usage(), Use::Mounted(77));
        assert!(Mmp::parse(mounted().as_bytes(), Some(4)).is_err());
        assert!(Mmp::parse(&mounted().as_bytes()[1..], None).is_err());
        let mut bad = mounted();
        bad.mmp_magic = 0.into();
        assert!(Mmp::parse(bad.as_bytes(), None).is_err());
    }

    #[test]
    fn a_clean_block_is_nobodys() {
        let mmp = Mmp::parse(DiskMmp::clean(9, 5, Some(3)).as_bytes(), Some(3)).unwrap();
        assert_eq!((mmp.disk().usage(), mmp.node_name()), (Use::Clean, &b""[..]));
    }

    #[test]
    fn sequence_numbers_say_who_uses_the_volume() {
        let usage = |seq: u32| {
            let mut mmp = mounted();
            mmp.mmp_seq = seq.into();
            (mmp.usage(), Mmp::parse(mmp.as_bytes(), None).is_ok())
        };
        assert_eq!(usage(SEQ_CLEAN), (Use::Clean, true));
        assert_eq!(usage(SEQ_FSCK), (Use::Fsck, true));
        assert_eq!(usage(SEQ_MAX), (Use::Mounted(SEQ_MAX), true));
        assert_eq!(usage(SEQ_FSCK + 1), (Use::Invalid(SEQ_FSCK + 1), false));
    }
}
