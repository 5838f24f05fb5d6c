//! Requests of the kernel, parsed from their bytes.
//!
//! A request consists of its header, the arguments of its kind (a structure), and the data after them: names, each
//! terminated by a zero byte, or content. Transports pass the three separately. Whatever the bytes are, parsing returns
//! a request or `None`.

use crate::handle::is_direct;
use crate::protocol::{self as wire, Features, InHeader, Valid, opcode};
use rustix::fs::OFlags;
use zerocopy::FromBytes;

/// A request of the kernel.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// Its number, which INTERRUPT refers to.
    pub unique: u64,
    /// The node number of the file, as returned in an [`Entry`](crate::Entry); 1 is the root.
    pub node: u64,
    /// The process that made the call.
    pub caller: Caller,
    /// The operation.
    pub operation: Operation<'a>,
}

/// The process whose call caused the request. In the kernel's own requests the PID is 0.
#[derive(Debug, Clone, Copy, Default)]
pub struct Caller {
    /// The user ID.
    pub uid: u32,
    /// The group ID.
    pub gid: u32,
    /// The PID.
    pub pid: u32,
}

/// A time to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    /// The current time.
    Now,
    /// Seconds since 1970 and nanoseconds.
    At(i64, u32),
}

/// The attributes that SETATTR changes; `None` leaves one unchanged.
#[derive(Debug, Clone, Copy, Default)]
pub struct Changes {
    /// Permission bits; the file type in it is ignored.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size in bytes.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last change of the content.
    pub mtime: Option<SetTime>,
    /// Last change of the inode.
    pub ctime: Option<SetTime>,
    /// The set-user-id bit is removed, and the set-group-id bit where the group may execute the file.
    pub kill_privileges: bool,
}

/// The operation of a request. Names are without `/` and zero bytes, and of any length up to a page.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "the fields are those of the system call of the same name")]
pub enum Operation<'a> {
    /// Look up a name.
    Lookup { name: &'a [u8] },
    /// The attributes that stat(2) shows.
    GetAttr,
    /// access(2) and chdir(2), where the kernel does not check permissions itself.
    Access { mask: u32 },
    /// The further attributes that statx(2) returns.
    StatX,
    /// chmod, chown, truncate, utimensat.
    SetAttr(Changes),
    /// The target of a symbolic link.
    ReadLink,
    /// A new symbolic link.
    Symlink { name: &'a [u8], target: &'a [u8] },
    /// A new file of any type but directories and links. `device` is encoded as in [`Attr::rdev`](crate::Attr::rdev).
    MkNod { name: &'a [u8], mode: u32, device: u32, umask: u32 },
    /// A new directory.
    MkDir { name: &'a [u8], mode: u32, umask: u32 },
    /// Remove a name.
    Unlink { name: &'a [u8] },
    /// Remove a directory.
    RmDir { name: &'a [u8] },
    /// Move a name to the directory `to`; flags as in renameat2(2).
    Rename { name: &'a [u8], to: u64, new_name: &'a [u8], flags: u32 },
    /// Add a name for the file `target`.
    Link { target: u64, name: &'a [u8] },
    /// Open a file; flags as in open(2).
    Open { flags: u32 },
    /// Create and open a file. A `name` of `None`: O_TMPFILE.
    Create { name: Option<&'a [u8]>, mode: u32, umask: u32, flags: u32 },
    /// Read content.
    Read { offset: u64, size: u32 },
    /// Write content. `paged`: writeback of the kernel's page cache (FUSE_WRITE_CACHE), some time after programs wrote
    /// there. `append`: to a file opened with O_APPEND, whose end is at `offset` in the kernel's view. `direct`:
    /// bypasses the page cache, as answered with [`Reply::opened_direct`](crate::Reply::opened_direct). `unordered`:
    /// O_DIRECT, where parts of one write(2) are sent before others are answered. `sync`: must be durable before it is
    /// answered, as O_SYNC and O_DSYNC demand; after all writes but `direct` ones the kernel sends an fsync of its own.
    Write {
        offset: u64,
        data: &'a [u8],
        kill_privileges: bool,
        paged: bool,
        append: bool,
        direct: bool,
        unordered: bool,
        sync: bool,
    },
    /// The statistics that statfs(2) returns.
    StatFs,
    /// Release an open file.
    Release,
    /// Close a descriptor of an open file.
    Flush,
    /// Make a file durable; `data`: fdatasync(2); `handle`: the handle of the file.
    Fsync { data: bool, handle: u64 },
    /// Set an extended attribute; flags as in setxattr(2).
    SetXattr { name: &'a [u8], value: &'a [u8], flags: u32, kill_sgid: bool },
    /// The value of an extended attribute, of at most `size` bytes; 0 returns its length.
    GetXattr { name: &'a [u8], size: u32 },
    /// The names of extended attributes, in at most `size` bytes; 0 returns their length.
    ListXattr { size: u32 },
    /// Remove an extended attribute.
    RemoveXattr { name: &'a [u8] },
    /// Open a directory.
    OpenDir,
    /// A part of a listing, of at most `size` bytes.
    ReadDir { cookie: u64, size: u32, plus: bool },
    /// Release an open directory.
    ReleaseDir,
    /// Make a directory durable.
    FsyncDir { data: bool },
    /// An ioctl(2) with `input`, and space for `output` bytes of output.
    Ioctl { command: u32, input: &'a [u8], output: u32 },
    /// Allocate or free space; mode as in fallocate(2).
    Fallocate { offset: u64, length: u64, mode: u32 },
    /// The next data or hole.
    Seek { offset: u64, whence: u32 },
    /// Copy bytes to the file `target`. `long`: the answer may exceed 32 bits.
    CopyFileRange { offset: u64, target: u64, target_offset: u64, length: u64, flags: u64, long: bool },
    /// Make everything durable.
    SyncFs,
    /// The last request of a mount whose umount(2) waits.
    Destroy,
    /// An unknown operation.
    Other,
}

/// Returns the size in bytes of the arguments of a kind of request; `None` for unknown kinds.
pub(crate) fn arguments(kind: u32, features: Features) -> Option<usize> {
    Some(match kind {
        opcode::GETATTR => size_of::<wire::GetattrIn>(),
        opcode::STATX => size_of::<wire::StatxIn>(),
        opcode::SETATTR => size_of::<wire::SetattrIn>(),
        opcode::MKNOD => size_of::<wire::MknodIn>(),
        opcode::MKDIR => size_of::<wire::MkdirIn>(),
        // RENAME and LINK: a node; ACCESS: a mask and padding
        opcode::RENAME | opcode::LINK | opcode::ACCESS => size_of::<u64>(),
        opcode::RENAME2 => size_of::<wire::Rename2In>(),
        opcode::CREATE | opcode::TMPFILE => size_of::<wire::CreateIn>(),
        opcode::OPEN | opcode::OPENDIR => size_of::<wire::OpenIn>(),
        opcode::READ | opcode::READDIR | opcode::READDIRPLUS => size_of::<wire::ReadIn>(),
        opcode::WRITE => size_of::<wire::WriteIn>(),
        opcode::FSYNC | opcode::FSYNCDIR => size_of::<wire::FsyncIn>(),
        // the second half was added with the feature
        opcode::SETXATTR if !features.contains(Features::SETXATTR_EXT) => 8,
        opcode::SETXATTR => size_of::<wire::SetxattrIn>(),
        opcode::GETXATTR | opcode::LISTXATTR => size_of::<wire::XattrSize>(),
        opcode::IOCTL => size_of::<wire::IoctlIn>(),
        opcode::FALLOCATE => size_of::<wire::FallocateIn>(),
        opcode::LSEEK => size_of::<wire::LseekIn>(),
        opcode::COPY_FILE_RANGE | opcode::COPY_FILE_RANGE_64 => size_of::<wire::CopyFileRangeIn>(),
        // their arguments are not used
        opcode::RELEASE | opcode::RELEASEDIR | opcode::FLUSH | opcode::SYNCFS | opcode::DESTROY | opcode::STATFS => 0,
        opcode::LOOKUP | opcode::READLINK | opcode::SYMLINK | opcode::UNLINK | opcode::RMDIR | opcode::REMOVEXATTR => 0,
        _ => return None,
    })
}

/// Whether the answer to a kind of request may be long and no data follows its arguments: the answer may then overwrite
/// the request's buffer.
pub(crate) fn is_read(kind: u32) -> bool {
    matches!(kind, opcode::READ | opcode::READDIR | opcode::READDIRPLUS)
}

impl<'a> Request<'a> {
    /// Parses a whole message of /dev/fuse: header, arguments, and the data after them. Returns `None` where the bytes
    /// are not a request.
    #[must_use]
    pub fn from_message(message: &'a [u8], features: Features) -> Option<Self> {
        let (header, body) = InHeader::read_from_prefix(message).ok()?;
        let (arguments, rest) = body.split_at_checked(arguments(header.opcode, features).unwrap_or(0))?;
        Self::parse(&header, arguments, rest)
    }

    /// Parses a request: `arguments` has at least the size that [`arguments`] returns, `rest` is the data after them.
    /// Returns `None` where the bytes are not a request of that kind.
    pub(crate) fn parse(header: &InHeader, arguments: &[u8], rest: &'a [u8]) -> Option<Self> {
        let caller = Caller { uid: header.uid, gid: header.gid, pid: header.pid };
        let operation = Operation::parse(header.opcode, arguments, rest)?;
        Some(Self { unique: header.unique, node: header.node, caller, operation })
    }
}

impl<'a> Operation<'a> {
    /// Whether the operation changes its node or another file.
    pub fn changes(&self) -> bool {
        match self {
            Self::SetAttr(_)
            | Self::Symlink { .. }
            | Self::MkNod { .. }
            | Self::MkDir { .. }
            | Self::Create { .. }
            | Self::Unlink { .. }
            | Self::RmDir { .. }
            | Self::Rename { .. }
            | Self::Link { .. }
            | Self::Write { .. }
            | Self::SetXattr { .. }
            | Self::RemoveXattr { .. }
            | Self::Fallocate { .. }
            | Self::CopyFileRange { .. } => true,
            // the ioctls that change something have input
            Self::Ioctl { input, .. } => !input.is_empty(),
            _ => false,
        }
    }

    fn parse(kind: u32, arguments: &[u8], mut rest: &'a [u8]) -> Option<Self> {
        let rest = &mut rest;
        Some(match kind {
            opcode::LOOKUP => Self::Lookup { name: text(rest)? },
            opcode::GETATTR => Self::GetAttr,
            opcode::ACCESS => Self::Access { mask: read(arguments)? },
            opcode::STATX => Self::StatX,
            opcode::SETATTR => Self::SetAttr(changes(&read(arguments)?)),
            opcode::READLINK => Self::ReadLink,
            opcode::SYMLINK => Self::Symlink { name: text(rest)?, target: text(rest)? },
            opcode::MKNOD => {
                let a: wire::MknodIn = read(arguments)?;
                Self::MkNod { name: text(rest)?, mode: a.mode, device: a.rdev, umask: a.umask }
            }
            opcode::MKDIR => {
                let a: wire::MkdirIn = read(arguments)?;
                Self::MkDir { name: text(rest)?, mode: a.mode, umask: a.umask }
            }
            opcode::UNLINK => Self::Unlink { name: text(rest)? },
            opcode::RMDIR => Self::RmDir { name: text(rest)? },
            opcode::RENAME => Self::Rename { to: read(arguments)?, name: text(rest)?, new_name: text(rest)?, flags: 0 },
            opcode::RENAME2 => {
                let a: wire::Rename2In = read(arguments)?;
                Self::Rename { to: a.to, name: text(rest)?, new_name: text(rest)?, flags: a.flags }
            }
            opcode::LINK => Self::Link { target: read(arguments)?, name: text(rest)? },
            opcode::OPEN => Self::Open { flags: read::<wire::OpenIn>(arguments)?.flags },
            opcode::CREATE | opcode::TMPFILE => {
                let a: wire::CreateIn = read(arguments)?;
                let name = text(rest)?;
                let name = (kind == opcode::CREATE).then_some(name);
                Self::Create { name, mode: a.mode, umask: a.umask, flags: a.flags }
            }
            opcode::READ => {
                let a: wire::ReadIn = read(arguments)?;
                Self::Read { offset: a.offset, size: a.size }
            }
            opcode::READDIR | opcode::READDIRPLUS => {
                let a: wire::ReadIn = read(arguments)?;
                Self::ReadDir { cookie: a.offset, size: a.size, plus: kind == opcode::READDIRPLUS }
            }
            opcode::WRITE => {
                let a: wire::WriteIn = read(arguments)?;
                let kill_privileges = a.write_flags & wire::WRITE_KILL_SUIDGID != 0;
                let paged = a.write_flags & wire::WRITE_CACHE != 0;
                // flags as of open(2), from the descriptor; writeback has none
                let append = !paged && a.flags & OFlags::APPEND.bits() != 0;
                let direct = !paged && is_direct(a.handle);
                // the kernel sends all parts of such a write at once
                let unordered = !paged && a.flags & OFlags::DIRECT.bits() != 0;
                let data = bytes(rest, a.size)?;
                // O_DSYNC is one of the two bits of O_SYNC
                let sync = direct && a.flags & OFlags::DSYNC.bits() != 0;
                Self::Write { offset: a.offset, data, kill_privileges, paged, append, direct, unordered, sync }
            }
            opcode::STATFS => Self::StatFs,
            opcode::RELEASE => Self::Release,
            opcode::FLUSH => Self::Flush,
            opcode::FSYNC => {
                let a: wire::FsyncIn = read(arguments)?;
                Self::Fsync { data: a.flags & wire::FSYNC_DATA != 0, handle: a.handle }
            }
            opcode::FSYNCDIR => Self::FsyncDir { data: is_data(arguments)? },
            opcode::SETXATTR => {
                // the short form consists of the first two fields
                let size: u32 = read(arguments)?;
                let flags: u32 = read(arguments.get(4..)?)?;
                let more = arguments.get(8..).and_then(read::<u32>).unwrap_or(0);
                let kill_sgid = more & wire::SETXATTR_ACL_KILL_SGID != 0;
                Self::SetXattr { name: text(rest)?, value: bytes(rest, size)?, flags, kill_sgid }
            }
            opcode::GETXATTR => Self::GetXattr { name: text(rest)?, size: read::<wire::XattrSize>(arguments)?.size },
            opcode::LISTXATTR => Self::ListXattr { size: read::<wire::XattrSize>(arguments)?.size },
            opcode::REMOVEXATTR => Self::RemoveXattr { name: text(rest)? },
            opcode::OPENDIR => Self::OpenDir,
            opcode::RELEASEDIR => Self::ReleaseDir,
            opcode::IOCTL => {
                let a: wire::IoctlIn = read(arguments)?;
                Self::Ioctl { command: a.command, input: bytes(rest, a.in_size)?, output: a.out_size }
            }
            opcode::FALLOCATE => {
                let a: wire::FallocateIn = read(arguments)?;
                Self::Fallocate { offset: a.offset, length: a.length, mode: a.mode }
            }
            opcode::LSEEK => {
                let a: wire::LseekIn = read(arguments)?;
                Self::Seek { offset: a.offset, whence: a.whence }
            }
            opcode::COPY_FILE_RANGE | opcode::COPY_FILE_RANGE_64 => {
                let a: wire::CopyFileRangeIn = read(arguments)?;
                Self::CopyFileRange {
                    offset: a.offset_in,
                    target: a.node_out,
                    target_offset: a.offset_out,
                    length: a.length,
                    flags: a.flags,
                    long: kind == opcode::COPY_FILE_RANGE_64,
                }
            }
            opcode::SYNCFS => Self::SyncFs,
            opcode::DESTROY => Self::Destroy,
            _ => Self::Other,
        })
    }
}

fn read<T: FromBytes>(bytes: &[u8]) -> Option<T> {
    T::read_from_prefix(bytes).ok().map(|(value, _)| value)
}

fn is_data(arguments: &[u8]) -> Option<bool> {
    Some(read::<wire::FsyncIn>(arguments)?.flags & wire::FSYNC_DATA != 0)
}

/// Takes a zero-terminated name from the data.
fn text<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let end = rest.iter().position(|&byte| byte == 0)?;
    let (text, after) = (rest.get(..end)?, rest.get(end + 1..)?);
    *rest = after;
    Some(text)
}

/// Takes `count` bytes from the data.
fn bytes<'a>(rest: &mut &'a [u8], count: u32) -> Option<&'a [u8]> {
    let (bytes, after) = rest.split_at_checked(count as usize)?;
    *rest = after;
    Some(bytes)
}

fn changes(a: &wire::SetattrIn) -> Changes {
    let valid = Valid::from_bits_retain(a.valid);
    let time = |set, now, seconds, nanos| {
        let asked = valid.contains(set);
        asked.then(|| if valid.contains(now) { SetTime::Now } else { SetTime::At(seconds, nanos) })
    };
    Changes {
        mode: valid.contains(Valid::MODE).then_some(a.mode),
        uid: valid.contains(Valid::UID).then_some(a.uid),
        gid: valid.contains(Valid::GID).then_some(a.gid),
        size: valid.contains(Valid::SIZE).then_some(a.size),
        atime: time(Valid::ATIME, Valid::ATIME_NOW, a.atime, a.atime_nanos),
        mtime: time(Valid::MTIME, Valid::MTIME_NOW, a.mtime, a.mtime_nanos),
        // the kernel has no way to request any other ctime than the one that it sends
        ctime: time(Valid::CTIME, Valid::empty(), a.ctime, a.ctime_nanos).map(|time| match time {
            SetTime::Now => SetTime::At(a.ctime, a.ctime_nanos),
            at @ SetTime::At(..) => at,
        }),
        kill_privileges: valid.contains(Valid::KILL_SUIDGID),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::IntoBytes;

    fn header(opcode: u32) -> InHeader {
        InHeader { len: 0, opcode, unique: 1, node: 7, uid: 0, gid: 0, pid: 0, extensions: 0, padding: 0 }
    }

    #[test]
    fn names_end_with_a_zero_byte() {
        let request = Request::parse(&header(opcode::SYMLINK), &[], b"name\0target\0").expect("a request");
        assert!(matches!(request.operation, Operation::Symlink { name: b"name", target: b"target" }));
        assert_eq!(request.node, 7);
        assert!(Request::parse(&header(opcode::SYMLINK), &[], b"name\0target").is_none());
        assert!(Request::parse(&header(opcode::LOOKUP), &[], b"").is_none());
    }

    #[test]
    fn data_is_as_long_as_it_says() {
        let arguments =
            wire::WriteIn { handle: 0, offset: 9, size: 3, write_flags: 5, lock_owner: 0, flags: 0o2001, padding: 0 };
        let request = Request::parse(&header(opcode::WRITE), arguments.as_bytes(), b"abc").expect("a request");
        let Operation::Write { offset: 9, data: b"abc", kill_privileges: true, paged: true, append: false, .. } =
            request.operation
        else {
            panic!("{request:?}")
        };
        let appended = wire::WriteIn { write_flags: 0, ..arguments };
        let request = Request::parse(&header(opcode::WRITE), appended.as_bytes(), b"abc").expect("a request");
        assert!(matches!(request.operation, Operation::Write { append: true, paged: false, .. }), "{request:?}");
        assert!(Request::parse(&header(opcode::WRITE), arguments.as_bytes(), b"ab").is_none());
        assert!(Request::parse(&header(opcode::WRITE), &arguments.as_bytes()[..20], b"abc").is_none());
    }

    #[test]
    fn no_bytes_are_a_panic() {
        let mut rng = testkit::Rng::new(1);
        for round in 0..20_000u32 {
            let length = rng.index(200);
            let bytes = rng.bytes(length);
            let (arguments, rest) = bytes.split_at(bytes.len() / 2);
            Request::parse(&header(round % 60), arguments, rest);
        }
    }
}
