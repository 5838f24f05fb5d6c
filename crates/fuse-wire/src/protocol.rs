//! The kernel's FUSE protocol, version 7: structures and numbers as `linux/fuse.h` has them, in the byte order of the
//! machine. Only what is served here.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The version that is spoken.
pub(crate) const MAJOR: u32 = 7;
/// Its revision: the newest whose meanings are honoured here. The kernel speaks the older of its own and this one.
pub(crate) const MINOR: u32 = 45;
/// The oldest revision that has all that is needed: 7.31 (Linux 5.2), which had the last change of a structure.
pub(crate) const OLDEST_MINOR: u32 = 31;

/// The numbers of requests.
pub(crate) mod opcode {
    macro_rules! opcodes {
        ($($name:ident = $number:literal,)*) => {
            $(pub(crate) const $name: u32 = $number;)*
            /// All of them, with their names.
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
    /// They are below this.
    pub(crate) const KINDS: usize = 64;
}

bitflags::bitflags! {
    /// The features that the kernel offers when a session begins, and those of them that are taken.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Features: u64 {
        /// Several reads of one file at once.
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
        /// … where the kernel thinks that they will be wanted.
        const READDIRPLUS_AUTO = 1 << 14;
        /// O_DIRECT without waiting for each part.
        const ASYNC_DIO = 1 << 15;
        /// The kernel caches written bytes, and sizes and times with them.
        const WRITEBACK_CACHE = 1 << 16;
        /// ENOSYS to OPEN: no more of them.
        const NO_OPEN_SUPPORT = 1 << 17;
        /// Lookups and listings of one directory at once.
        const PARALLEL_DIROPS = 1 << 18;
        /// The kernel honours access control lists (and checks permissions).
        const POSIX_ACL = 1 << 20;
        /// Requests of more than 32 pages.
        const MAX_PAGES = 1 << 22;
        /// The kernel caches the targets of symbolic links.
        const CACHE_SYMLINKS = 1 << 23;
        /// ENOSYS to OPENDIR: no more of them.
        const NO_OPENDIR_SUPPORT = 1 << 24;
        /// The kernel's pages are dropped on notification, and not by what attributes say.
        const EXPLICIT_INVAL_DATA = 1 << 25;
        /// Set-user-id bits and capabilities are removed by the file system when a file is written.
        const HANDLE_KILLPRIV_V2 = 1 << 28;
        /// SETXATTR says more.
        const SETXATTR_EXT = 1 << 29;
        /// There are more than 32 of these.
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
    /// Length of what follows the arguments, in units of 8 bytes.
    pub(crate) extensions: u16,
    pub(crate) padding: u16,
}

/// The header of every answer.
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct OutHeader {
    pub(crate) len: u32,
    /// 0, or an error's number with a minus.
    pub(crate) error: i32,
    pub(crate) unique: u64,
}

/// FUSE_NOTIFY_INVAL_INODE: what stands in place of the error where a message answers nothing.
pub(crate) const NOTIFY_INVAL_INODE: i32 = 2;

/// FUSE_NOTIFY_INVAL_ENTRY: the same, of a name.
pub(crate) const NOTIFY_INVAL_ENTRY: i32 = 3;

/// The structure behind the header of [`NOTIFY_INVAL_ENTRY`]; then the name, with a zero byte.
#[repr(C)]
#[derive(Debug, Clone, Copy, IntoBytes, Immutable)]
pub(crate) struct NotifyInvalEntryOut {
    pub(crate) dir: u64,
    pub(crate) length: u32,
    pub(crate) flags: u32,
}

/// FUSE_NOTIFY_PRUNE: the same, of nodes that are not in use (7.45, Linux 6.18).
pub(crate) const NOTIFY_PRUNE: i32 = 9;

/// The structure behind the header of [`NOTIFY_PRUNE`]; behind it stand the numbers of the nodes, 64 bits each.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, IntoBytes, Immutable)]
pub(crate) struct NotifyPruneOut {
    pub(crate) count: u32,
    pub(crate) padding: u32,
    pub(crate) spare: u64,
}

/// FUSE_NOTIFY_STORE: the same, of content that the kernel takes into its pages. The size that it has of the file
/// grows.
pub(crate) const NOTIFY_STORE: i32 = 4;

/// The structure behind the header of [`NOTIFY_STORE`]; then the content.
#[repr(C)]
#[derive(Debug, Clone, Copy, IntoBytes, Immutable)]
pub(crate) struct NotifyStoreOut {
    pub(crate) node: u64,
    pub(crate) offset: u64,
    pub(crate) size: u32,
    pub(crate) padding: u32,
}

/// The structure behind the header of [`NOTIFY_INVAL_INODE`].
#[repr(C)]
#[derive(Debug, Clone, Copy, IntoBytes, Immutable)]
pub(crate) struct NotifyInvalInodeOut {
    pub(crate) node: u64,
    /// The first byte of the content that is to be forgotten; below 0: the attributes alone.
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
    /// Times are exact to so many nanoseconds.
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
    /// Names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// A device's numbers: 12 bits of the major, 20 of the minor, as the kernel packs them.
    pub rdev: u32,
    /// Best size of a read or write in bytes.
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

/// In [`OpenOut::flags`]: what is read and written goes past the pages, and no mapping is shared.
pub(crate) const OPEN_DIRECT_IO: u32 = 1 << 0;
/// In [`OpenOut::flags`]: pages of earlier openings stay.
pub(crate) const OPEN_KEEP_CACHE: u32 = 1 << 1;
/// In [`OpenOut::flags`]: so does the listing.
pub(crate) const OPEN_CACHE_DIR: u32 = 1 << 3;
/// In [`OpenOut::flags`]: close(2) sends nothing.
pub(crate) const OPEN_NOFLUSH: u32 = 1 << 5;
/// FOPEN_PARALLEL_DIRECT_WRITES: writes past the kernel's pages may be sent while others are on their way.
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
    /// Which fields of [`SetattrIn`] count.
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

/// In [`WriteIn::write_flags`]: the kernel's pages are written, at a time of its own choice.
pub(crate) const WRITE_CACHE: u32 = 1 << 0;

/// In [`WriteIn::write_flags`]: set-user-id and set-group-id are to go.
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

/// In [`SetxattrIn::setxattr_flags`]: with this access control list set-group-id is to go.
pub(crate) const SETXATTR_ACL_KILL_SGID: u32 = 1;

/// GETXATTR and LISTXATTR, both ways.
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

/// The statistics of a file system as statfs(2) shows them.
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Default)]
pub struct StatFs {
    /// Blocks.
    pub blocks: u64,
    /// Free blocks.
    pub blocks_free: u64,
    /// Free blocks for users other than root.
    pub blocks_available: u64,
    /// Inodes.
    pub files: u64,
    /// Free inodes.
    pub files_free: u64,
    /// Bytes in a block.
    pub block_size: u32,
    /// Longest name in bytes.
    pub name_max: u32,
    /// Bytes in the unit in which blocks are counted.
    pub fragment_size: u32,
    /// Nothing.
    pub padding: u32,
    /// Nothing.
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
