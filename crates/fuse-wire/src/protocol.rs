//! The kernel's FUSE protocol, version 7: structures and numbers as `linux/fuse.h` has them, in the byte order of the
//! machine. Only the requests served here.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The major version of the protocol.
pub(crate) const MAJOR: u32 = 7;
/// The minor version: the newest that is fully implemented here. The kernel uses the older of its own and this one.
pub(crate) const MINOR: u32 = 45;
/// The oldest usable minor version: 7.31 (Linux 5.2), in which a structure changed for the last time.
pub(crate) const OLDEST_MINOR: u32 = 31;

/// The opcodes of requests.
pub(crate) mod opcode {
    macro_rules! opcodes {
        ($($name:ident = $number:literal,)*) => {
            $(pub(crate) const $name: u32 = $number;)*
            /// All opcodes, with their names.
            pub(crate) const NAMES: &[(u32, &str)] = &[$(($number, stringify!($name))),*];
        };
    }
    opcodes! {
        LOOKUP = 1,
        FORGET = 2,
        GETATTR = 3,
        SETATTR = 4,
        READLINK = 5,
        SYMLINK = 6,
        MKNOD = 8,
        MKDIR = 9,
        UNLINK = 10,
        RMDIR = 11,
        RENAME = 12,
        LINK = 13,
        OPEN = 14,
        READ = 15,
        WRITE = 16,
        STATFS = 17,
        RELEASE = 18,
        FSYNC = 20,
        SETXATTR = 21,
        GETXATTR = 22,
        LISTXATTR = 23,
        REMOVEXATTR = 24,
        FLUSH = 25,
        INIT = 26,
        OPENDIR = 27,
        READDIR = 28,
        RELEASEDIR = 29,
        FSYNCDIR = 30,
        ACCESS = 34,
        CREATE = 35,
        INTERRUPT = 36,
        DESTROY = 38,
        IOCTL = 39,
        BATCH_FORGET = 42,
        FALLOCATE = 43,
        READDIRPLUS = 44,
        RENAME2 = 45,
        LSEEK = 46,
        COPY_FILE_RANGE = 47,
        SYNCFS = 50,
        TMPFILE = 51,
        STATX = 52,
        COPY_FILE_RANGE_64 = 53,
    }
    /// The upper bound of the opcodes, exclusive.
    pub(crate) const KINDS: usize = 64;
}

bitflags::bitflags! {
    /// The features that the kernel offers when a session begins; an answer contains those that are enabled.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Features: u64 {
        /// Concurrent reads of one file.
        const ASYNC_READ = 1 << 0;
        /// Lookups of "." and ".." work, so that file handles can be opened.
        const EXPORT_SUPPORT = 1 << 4;
        /// Writes of more than a page.
        const BIG_WRITES = 1 << 5;
        /// The umask is applied by the file system.
        const DONT_MASK = 1 << 6;
        /// ioctl(2) on directories.
        const HAS_IOCTL_DIR = 1 << 11;
        /// Listings with attributes.
        const DO_READDIRPLUS = 1 << 13;
        /// … where the kernel expects that they will be used.
        const READDIRPLUS_AUTO = 1 << 14;
        /// O_DIRECT without waiting for each request in turn.
        const ASYNC_DIO = 1 << 15;
        /// The kernel caches written data, with sizes and times.
        const WRITEBACK_CACHE = 1 << 16;
        /// ENOSYS to OPEN: no further OPEN requests.
        const NO_OPEN_SUPPORT = 1 << 17;
        /// Concurrent lookups and listings of one directory.
        const PARALLEL_DIROPS = 1 << 18;
        /// The kernel evaluates access control lists (and checks permissions).
        const POSIX_ACL = 1 << 20;
        /// Requests of more than 32 pages.
        const MAX_PAGES = 1 << 22;
        /// The kernel caches the targets of symbolic links.
        const CACHE_SYMLINKS = 1 << 23;
        /// ENOSYS to OPENDIR: no further OPENDIR requests.
        const NO_OPENDIR_SUPPORT = 1 << 24;
        /// The kernel drops pages on notification only, not because attributes changed.
        const EXPLICIT_INVAL_DATA = 1 << 25;
        /// Set-user-id bits and capabilities are removed by the file system when a file is written.
        const HANDLE_KILLPRIV_V2 = 1 << 28;
        /// SETXATTR has more fields.
        const SETXATTR_EXT = 1 << 29;
        /// More than 32 feature bits.
        const INIT_EXT = 1 << 30;
        /// Requests through io_uring.
        const OVER_IO_URING = 1 << 41;
    }
}

/// The header of every request.
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct InHeader {
    pub(crate) len: u32,
    pub(crate) opcode: u32,
    pub(crate) unique: u64,
    pub(crate) node: u64,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) pid: u32,
    /// The length of the data after the arguments, in units of 8 bytes.
    pub(crate) extensions: u16,
    pub(crate) padding: u16,
}

/// The header of every answer.
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct OutHeader {
    pub(crate) len: u32,
    /// 0, or a negated errno.
    pub(crate) error: i32,
    pub(crate) unique: u64,
}

/// FUSE_NOTIFY_INVAL_INODE: the code in the error field of a notification.
pub(crate) const NOTIFY_INVAL_INODE: i32 = 2;

/// FUSE_NOTIFY_INVAL_ENTRY: the same for a name.
pub(crate) const NOTIFY_INVAL_ENTRY: i32 = 3;

/// The structure after the header of [`NOTIFY_INVAL_ENTRY`]; followed by the name and a zero byte.
#[repr(C)]
#[derive(Debug, Clone, Copy, IntoBytes, Immutable)]
pub(crate) struct NotifyInvalEntryOut {
    pub(crate) dir: u64,
    pub(crate) length: u32,
    pub(crate) flags: u32,
}

/// FUSE_NOTIFY_PRUNE: the same for nodes that are not in use (7.45, Linux 6.18).
pub(crate) const NOTIFY_PRUNE: i32 = 9;

/// The structure after the header of [`NOTIFY_PRUNE`]; followed by the node numbers, 64 bits each.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, IntoBytes, Immutable)]
pub(crate) struct NotifyPruneOut {
    pub(crate) count: u32,
    pub(crate) padding: u32,
    pub(crate) spare: u64,
}

/// FUSE_NOTIFY_STORE: the same for content that the kernel stores in its pages. The cached size of the file grows if
/// necessary.
pub(crate) const NOTIFY_STORE: i32 = 4;

/// The structure after the header of [`NOTIFY_STORE`]; followed by the content.
#[repr(C)]
#[derive(Debug, Clone, Copy, IntoBytes, Immutable)]
pub(crate) struct NotifyStoreOut {
    pub(crate) node: u64,
    pub(crate) offset: u64,
    pub(crate) size: u32,
    pub(crate) padding: u32,
}

/// The structure after the header of [`NOTIFY_INVAL_INODE`].
#[repr(C)]
#[derive(Debug, Clone, Copy, IntoBytes, Immutable)]
pub(crate) struct NotifyInvalInodeOut {
    pub(crate) node: u64,
    /// The first byte of the content to invalidate; below 0: the attributes only.
    pub(crate) offset: i64,
    pub(crate) length: i64,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct InitIn {
    pub(crate) major: u32,
    pub(crate) minor: u32,
    pub(crate) max_readahead: u32,
    pub(crate) flags: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Default)]
pub(crate) struct InitOut {
    pub(crate) major: u32,
    pub(crate) minor: u32,
    pub(crate) max_readahead: u32,
    pub(crate) flags: u32,
    pub(crate) max_background: u16,
    pub(crate) congestion_threshold: u16,
    pub(crate) max_write: u32,
    /// The resolution of times, in nanoseconds.
    pub(crate) time_granularity: u32,
    pub(crate) max_pages: u16,
    pub(crate) map_alignment: u16,
    pub(crate) flags2: u32,
    pub(crate) max_stack_depth: u32,
    pub(crate) request_timeout: u16,
    pub(crate) unused: [u16; 11],
}

/// The attributes of a file as stat(2) shows them.
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Default)]
pub struct Attr {
    /// The inode's number.
    pub ino: u64,
    /// Size in bytes.
    pub size: u64,
    /// Space taken, in units of 512 bytes.
    pub blocks: u64,
    /// Last access, in seconds since 1970.
    pub atime: i64,
    /// Last change of the content.
    pub mtime: i64,
    /// Last change of the inode.
    pub ctime: i64,
    /// Nanoseconds of the last access.
    pub atime_nanos: u32,
    /// Nanoseconds of the last change of the content.
    pub mtime_nanos: u32,
    /// Nanoseconds of the last change of the inode.
    pub ctime_nanos: u32,
    /// Type and permission bits.
    pub mode: u32,
    /// Number of names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// The device number of a device node: 12 bits of the major, 20 of the minor, as the kernel encodes it.
    pub rdev: u32,
    /// The preferred size of a read or write in bytes.
    pub block_size: u32,
    /// The protocol's own flags; 0.
    pub flags: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct EntryOut {
    pub(crate) node: u64,
    pub(crate) generation: u64,
    pub(crate) entry_valid: u64,
    pub(crate) attr_valid: u64,
    pub(crate) entry_valid_nanos: u32,
    pub(crate) attr_valid_nanos: u32,
    pub(crate) attr: Attr,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct AttrOut {
    pub(crate) valid: u64,
    pub(crate) valid_nanos: u32,
    pub(crate) padding: u32,
    pub(crate) attr: Attr,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct OpenOut {
    pub(crate) handle: u64,
    pub(crate) flags: u32,
    pub(crate) backing: u32,
}

/// In [`OpenOut::flags`]: reads and writes bypass the page cache, and there are no shared mappings.
pub(crate) const OPEN_DIRECT_IO: u32 = 1 << 0;
/// In [`OpenOut::flags`]: pages cached by earlier opens remain.
pub(crate) const OPEN_KEEP_CACHE: u32 = 1 << 1;
/// In [`OpenOut::flags`]: the kernel caches the listing of the directory.
pub(crate) const OPEN_CACHE_DIR: u32 = 1 << 3;
/// In [`OpenOut::flags`]: close(2) sends no FLUSH.
pub(crate) const OPEN_NOFLUSH: u32 = 1 << 5;
/// In [`OpenOut::flags`]: direct writes of one file may be sent concurrently (FOPEN_PARALLEL_DIRECT_WRITES).
pub(crate) const OPEN_PARALLEL_DIRECT_WRITES: u32 = 1 << 6;

#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct GetattrIn {
    pub(crate) flags: u32,
    pub(crate) dummy: u32,
    pub(crate) handle: u64,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct SetattrIn {
    pub(crate) valid: u32,
    pub(crate) padding: u32,
    pub(crate) handle: u64,
    pub(crate) size: u64,
    pub(crate) lock_owner: u64,
    pub(crate) atime: i64,
    pub(crate) mtime: i64,
    pub(crate) ctime: i64,
    pub(crate) atime_nanos: u32,
    pub(crate) mtime_nanos: u32,
    pub(crate) ctime_nanos: u32,
    pub(crate) mode: u32,
    pub(crate) unused4: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) unused5: u32,
}

bitflags::bitflags! {
    /// The fields of [`SetattrIn`] that are set.
    #[derive(Debug, Clone, Copy)]
    pub(crate) struct Valid: u32 {
        const MODE = 1 << 0;
        const UID = 1 << 1;
        const GID = 1 << 2;
        const SIZE = 1 << 3;
        const ATIME = 1 << 4;
        const MTIME = 1 << 5;
        const ATIME_NOW = 1 << 7;
        const MTIME_NOW = 1 << 8;
        const CTIME = 1 << 10;
        const KILL_SUIDGID = 1 << 11;
    }
}

#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct MknodIn {
    pub(crate) mode: u32,
    pub(crate) rdev: u32,
    pub(crate) umask: u32,
    pub(crate) padding: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct MkdirIn {
    pub(crate) mode: u32,
    pub(crate) umask: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct Rename2In {
    pub(crate) to: u64,
    pub(crate) flags: u32,
    pub(crate) padding: u32,
}

/// CREATE and TMPFILE.
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct CreateIn {
    pub(crate) flags: u32,
    pub(crate) mode: u32,
    pub(crate) umask: u32,
    pub(crate) open_flags: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct OpenIn {
    pub(crate) flags: u32,
    pub(crate) open_flags: u32,
}

/// READ, READDIR and READDIRPLUS.
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct ReadIn {
    pub(crate) handle: u64,
    pub(crate) offset: u64,
    pub(crate) size: u32,
    pub(crate) read_flags: u32,
    pub(crate) lock_owner: u64,
    pub(crate) flags: u32,
    pub(crate) padding: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct WriteIn {
    pub(crate) handle: u64,
    pub(crate) offset: u64,
    pub(crate) size: u32,
    pub(crate) write_flags: u32,
    pub(crate) lock_owner: u64,
    pub(crate) flags: u32,
    pub(crate) padding: u32,
}

/// In [`WriteIn::write_flags`]: a writeback from the page cache, at a time of the kernel's choice.
pub(crate) const WRITE_CACHE: u32 = 1 << 0;

/// In [`WriteIn::write_flags`]: the set-user-id and set-group-id bits are to be removed.
pub(crate) const WRITE_KILL_SUIDGID: u32 = 1 << 2;

#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct WriteOut {
    pub(crate) size: u32,
    pub(crate) padding: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct FsyncIn {
    pub(crate) handle: u64,
    pub(crate) flags: u32,
    pub(crate) padding: u32,
}

/// In [`FsyncIn::flags`]: fdatasync(2).
pub(crate) const FSYNC_DATA: u32 = 1;

#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct SetxattrIn {
    pub(crate) size: u32,
    pub(crate) flags: u32,
    pub(crate) setxattr_flags: u32,
    pub(crate) padding: u32,
}

/// In [`SetxattrIn::setxattr_flags`]: setting this access control list removes the set-group-id bit.
pub(crate) const SETXATTR_ACL_KILL_SGID: u32 = 1;

/// GETXATTR and LISTXATTR, request and answer.
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct XattrSize {
    pub(crate) size: u32,
    pub(crate) padding: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct IoctlIn {
    pub(crate) handle: u64,
    pub(crate) flags: u32,
    pub(crate) command: u32,
    pub(crate) argument: u64,
    pub(crate) in_size: u32,
    pub(crate) out_size: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Default)]
pub(crate) struct IoctlOut {
    pub(crate) result: i32,
    pub(crate) flags: u32,
    pub(crate) in_vectors: u32,
    pub(crate) out_vectors: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct BatchForgetIn {
    pub(crate) count: u32,
    pub(crate) dummy: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct ForgetOne {
    pub(crate) node: u64,
    pub(crate) lookups: u64,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct FallocateIn {
    pub(crate) handle: u64,
    pub(crate) offset: u64,
    pub(crate) length: u64,
    pub(crate) mode: u32,
    pub(crate) padding: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct LseekIn {
    pub(crate) handle: u64,
    pub(crate) offset: u64,
    pub(crate) whence: u32,
    pub(crate) padding: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct CopyFileRangeIn {
    pub(crate) handle_in: u64,
    pub(crate) offset_in: u64,
    pub(crate) node_out: u64,
    pub(crate) handle_out: u64,
    pub(crate) offset_out: u64,
    pub(crate) length: u64,
    pub(crate) flags: u64,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct StatxIn {
    pub(crate) getattr_flags: u32,
    pub(crate) reserved: u32,
    pub(crate) handle: u64,
    pub(crate) flags: u32,
    pub(crate) mask: u32,
}

/// A time in [`StatxOut`].
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Default)]
#[allow(missing_docs, reason = "the fields are those of statx(2)")]
pub struct StatxTime {
    pub seconds: i64,
    pub nanos: u32,
    pub reserved: i32,
}

/// The attributes of a file as statx(2) shows them, and the time for which the kernel may cache them.
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Default)]
#[allow(missing_docs, reason = "the fields are those of statx(2)")]
pub struct StatxOut {
    pub valid: u64,
    pub valid_nanos: u32,
    pub flags: u32,
    pub spare: [u64; 2],
    pub mask: u32,
    pub block_size: u32,
    pub attributes: u64,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub mode: u16,
    pub spare0: u16,
    pub ino: u64,
    pub size: u64,
    pub blocks: u64,
    pub attributes_mask: u64,
    pub atime: StatxTime,
    pub btime: StatxTime,
    pub ctime: StatxTime,
    pub mtime: StatxTime,
    pub rdev_major: u32,
    pub rdev_minor: u32,
    pub dev_major: u32,
    pub dev_minor: u32,
    pub spare2: [u64; 14],
}

/// The statistics of a file system as statfs(2) returns them.
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Default)]
pub struct StatFs {
    /// Number of blocks.
    pub blocks: u64,
    /// Free blocks.
    pub blocks_free: u64,
    /// Free blocks for users other than root.
    pub blocks_available: u64,
    /// Number of inodes.
    pub files: u64,
    /// Free inodes.
    pub files_free: u64,
    /// Block size in bytes.
    pub block_size: u32,
    /// Maximum length of a name in bytes.
    pub name_max: u32,
    /// Size in bytes of the unit in which blocks are counted.
    pub fragment_size: u32,
    /// Unused.
    pub padding: u32,
    /// Unused.
    pub spare: [u32; 6],
}

#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct DirentOut {
    pub(crate) ino: u64,
    pub(crate) next: u64,
    pub(crate) name_len: u32,
    pub(crate) kind: u32,
}

const _: () = {
    assert!(size_of::<InHeader>() == 40);
    assert!(size_of::<OutHeader>() == 16);
    assert!(size_of::<InitOut>() == 64);
    assert!(size_of::<Attr>() == 88);
    assert!(size_of::<EntryOut>() == 128);
    assert!(size_of::<SetattrIn>() == 88);
    assert!(size_of::<ReadIn>() == 40);
    assert!(size_of::<StatFs>() == 80);
    assert!(size_of::<StatxOut>() == 288);
};
