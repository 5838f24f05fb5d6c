//! ioctl(2): flags, generation numbers, project attributes, and fstrim.

use super::Ops;
use fuse_wire::{Answer, Caller, Errno, Reply};

/// FS_IOC_GETFLAGS, which lsattr(1) uses.
const GET_FLAGS: u32 = 0x8008_6601;
/// FS_IOC_SETFLAGS, which chattr(1) uses.
pub(super) const SET_FLAGS: u32 = 0x4008_6602;
/// FS_IOC_FSGETXATTR.
const GET_FSXATTR: u32 = 0x801c_581f;
/// FS_IOC_FSSETXATTR.
pub(super) const SET_FSXATTR: u32 = 0x401c_5820;
/// FITRIM, which fstrim(8) uses.
const TRIM: u32 = 0xc018_5879;
/// FS_IOC_GETVERSION: the inode's generation.
const GET_VERSION: u32 = 0x8008_7601;

impl Ops {
    pub(super) fn ioctl(
        &self,
        node: u64,
        (command, input, output): (u32, &[u8], u32),
        caller: &Caller,
        reply: &mut Reply<'_>,
    ) -> Answer<()> {
        // EXT4_FL_USER_VISIBLE: other flags are internal to the file system
        const VISIBLE: u32 = 0x725B_DFFF;
        let number = |number: u32, reply: &mut Reply<'_>| reply.ioctl(zerocopy::IntoBytes::as_bytes(&number));
        match command {
            GET_FLAGS if output >= 4 => number(self.getattr(node)?.flags.bits() & VISIBLE, reply),
            GET_VERSION if output >= 4 => number(self.getattr(node)?.generation, reply),
            GET_FSXATTR if output >= 28 => self.fsxattr(node, reply),
            SET_FLAGS | SET_FSXATTR => {
                let set = if command == SET_FLAGS { Self::set_flags } else { Self::set_fsxattr };
                set(self, node, input)?;
                // ctime
                reply.attributes_changed(node);
                reply.ioctl(&[])
            }
            TRIM if output >= 24 => self.trim(input, caller, reply),
            _ => Err(Errno::NOTTY),
        }
    }
}
