//! Requests of the kernel, read from their bytes.
//!
//! A request is its header, the arguments of its kind (a structure), and what follows them: names, each ended by a zero
//! byte, or data. Transports hand over the three separately. Whatever the bytes are, parsing returns a request or
//! `None`.

use crate::handle::is_direct;
use crate::protocol::{self as wire, Features, InHeader, Valid, opcode};
use rustix::fs::OFlags;
use zerocopy::FromBytes;

/// A request of the kernel.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// Its number, which an interruption names.
    pub unique: u64,
    /// The file that it is about, by the number an [`Entry`](crate::Entry) named it; 1 is the root.
    pub node: u64,
    /// The process that asks.
    pub caller: Caller,
    /// The operation that is asked for.
    pub operation: Operation<'a>,
}

/// The process whose call became the request. The kernel's own requests come from 0.
#[derive(Debug, Clone, Copy, Default)]
pub struct Caller {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Process.
    pub pid: u32,
}

/// A point in time to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    /// The present.
    Now,
    /// Seconds since 1970 and nanoseconds.
    At(i64, u32),
}

/// The attributes that SETATTR changes; `None` stays as it is.
#[derive(Debug, Clone, Copy, Default)]
pub struct Changes {
    /// Permission bits; the type in it counts for nothing.
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
    /// Set-user-id goes, and set-group-id where the group may execute the file.
    pub kill_privileges: bool,
}

/// The operation of a request. Names are without `/` and zero bytes, and of any length up to a page.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "the fields are those of the system call of the same name")]
pub enum Operation<'a> {
    /// The file that a name leads to.
    Lookup { name: &'a [u8] },
    /// The attributes that stat(2) shows.
    GetAttr,
    /// access(2) and chdir(2), where the kernel does not check permissions itself.
    Access { mask: u32 },
    /// The attributes that statx(2) shows beyond those.
    StatX,
    /// chmod, chown, truncate, utimensat.
    SetAttr(Changes),
    /// The target of a symbolic link.
    ReadLink,
    /// A new symbolic link.
    Symlink { name: &'a [u8], target: &'a [u8] },
    /// A new file of any kind but directories and links. `device` is packed as in [`Attr::rdev`](crate::Attr::rdev).
    MkNod { name: &'a [u8], mode: u32, device: u32, umask: u32 },
    /// A new directory.
    MkDir { name: &'a [u8], mode: u32, umask: u32 },
    /// A name goes.
    Unlink { name: &'a [u8] },
    /// A directory goes.
    RmDir { name: &'a [u8] },
    /// A name moves to the directory `to`; flags as renameat2(2).
    Rename { name: &'a [u8], to: u64, new_name: &'a [u8], flags: u32 },
    /// The file `target` gets one more name.
    Link { target: u64, name: &'a [u8] },
    /// A file is opened; flags as open(2).
    Open { flags: u32 },
    /// A file is made and opened. `None` for a name: O_TMPFILE.
    Create { name: Option<&'a [u8]>, mode: u32, umask: u32, flags: u32 },
    /// Content is read.
    Read { offset: u64, size: u32 },
    /// Content is written. `paged`: by the kernel, from its page cache (FUSE_WRITE_CACHE), some time after
    /// programs wrote it there. `append`: to a file that was opened with O_APPEND, of which the kernel believes that it
    /// ends at `offset`. `direct`: past the kernel's pages, as [`Reply::opened_direct`](crate::Reply::opened_direct)
    /// said. `unordered`: O_DIRECT, where pieces of one write(2) are sent before others are answered. `sync`: it has to
    /// be durable before it is answered, as O_SYNC and O_DSYNC ask; the kernel sends an fsync of its own behind all
    /// writes but `direct` ones.
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
    /// The statistics that statfs(2) shows.
    StatFs,
    /// An open file is released.
    Release,
    /// A descriptor of an open file is closed.
    Flush,
    /// All that was written to a file reaches the device; `data`: fdatasync(2); `handle`: the one the file was opened
    /// with.
    Fsync { data: bool, handle: u64 },
    /// An attribute is set; flags as setxattr(2).
    SetXattr { name: &'a [u8], value: &'a [u8], flags: u32, kill_sgid: bool },
    /// The value of an attribute, in `size` bytes at most; 0 asks for its length.
    GetXattr { name: &'a [u8], size: u32 },
    /// The names of attributes, in `size` bytes at most; 0 asks for the length.
    ListXattr { size: u32 },
    /// An attribute goes.
    RemoveXattr { name: &'a [u8] },
    /// A directory is opened.
    OpenDir,
    /// A part of a listing, in `size` bytes at most.
    ReadDir { cookie: u64, size: u32, plus: bool },
    /// An open directory is released.
    ReleaseDir,
    /// A directory's names reach the device.
    FsyncDir { data: bool },
    /// An ioctl(2) with `input`, and space for `output` bytes.
    Ioctl { command: u32, input: &'a [u8], output: u32 },
    /// Space is allocated or freed; mode as fallocate(2).
    Fallocate { offset: u64, length: u64, mode: u32 },
    /// The next data or hole.
    Seek { offset: u64, whence: u32 },
    /// Bytes are copied to the file `target`. `long`: the answer may be more than 32 bits.
    CopyFileRange { offset: u64, target: u64, target_offset: u64, length: u64, flags: u64, long: bool },
    /// All that was written reaches the device.
    SyncFs,
    /// The last request of a mount whose unmounting waits.
    Destroy,
    /// One that this version does not know.
    Other,
}

/// Bytes of the arguments of a kind of request; `None` for kinds that are not known.
pub(crate) fn arguments(kind: u32, features: Features) -> Option<usize> {
    Some(match kind {
        opcode::GETATTR => size_of::<wire::GetattrIn>(),
        opcode::STATX => size_of::<wire::StatxIn>(),
        opcode::SETATTR => size_of::<wire::SetattrIn>(),
        opcode::MKNOD => size_of::<wire::MknodIn>(),
        opcode::MKDIR => size_of::<wire::MkdirIn>(),
        // a node; a mask and padding
        opcode::RENAME | opcode::LINK | opcode::ACCESS => size_of::<u64>(),
        opcode::RENAME2 => size_of::<wire::Rename2In>(),
        opcode::CREATE | opcode::TMPFILE => size_of::<wire::CreateIn>(),
        opcode::OPEN | opcode::OPENDIR => size_of::<wire::OpenIn>(),
        opcode::READ | opcode::READDIR | opcode::READDIRPLUS => size_of::<wire::ReadIn>(),
        opcode::WRITE => size_of::<wire::WriteIn>(),
        opcode::FSYNC | opcode::FSYNCDIR => size_of::<wire::FsyncIn>(),
        // the second half came with the flag
        opcode::SETXATTR if !features.contains(Features::SETXATTR_EXT) => 8,
        opcode::SETXATTR => size_of::<wire::SetxattrIn>(),
        opcode::GETXATTR | opcode::LISTXATTR => size_of::<wire::XattrSize>(),
        opcode::IOCTL => size_of::<wire::IoctlIn>(),
        opcode::FALLOCATE => size_of::<wire::FallocateIn>(),
        opcode::LSEEK => size_of::<wire::LseekIn>(),
        opcode::COPY_FILE_RANGE | opcode::COPY_FILE_RANGE_64 => size_of::<wire::CopyFileRangeIn>(),
        // nothing of theirs is looked at
        opcode::RELEASE | opcode::RELEASEDIR | opcode::FLUSH | opcode::SYNCFS | opcode::DESTROY | opcode::STATFS => 0,
        opcode::LOOKUP | opcode::READLINK | opcode::SYMLINK | opcode::UNLINK | opcode::RMDIR | opcode::REMOVEXATTR => 0,
        _ => return None,
    })
}

/// Whether the answer to a kind of request may be long, and nothing follows its arguments: then the answer can be
/// written where the request stood.
pub(crate) fn is_read(kind: u32) -> bool {
    matches!(kind, opcode::READ | opcode::READDIR | opcode::READDIRPLUS)
}

impl<'a> Request<'a> {
    /// Reads a whole message as /dev/fuse hands it over: header, arguments, and what follows. `None` where the bytes
    /// are no request.
    #[must_use]
    pub fn from_message(message: &'a [u8], features: Features) -> Option<Self> {
        let (header, body) = InHeader::read_from_prefix(message).ok()?;
        let (arguments, rest) = body.split_at_checked(arguments(header.opcode, features).unwrap_or(0))?;
        Self::parse(&header, arguments, rest)
    }

    /// `arguments` holds at least the bytes that [`arguments`] says, `rest` what follows them. `None` where the bytes
    /// are no request of that kind.
    pub(crate) fn parse(header: &InHeader, arguments: &[u8], rest: &'a [u8]) -> Option<Self> {
        let caller = Caller { uid: header.uid, gid: header.gid, pid: header.pid };
        let operation = Operation::parse(header.opcode, arguments, rest)?;
        Some(Self { unique: header.unique, node: header.node, caller, operation })
    }
}

impl<'a> Operation<'a> {
    /// Whether it changes what it is asked of, or another file.
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
            // those that change something hand something in
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
                // the flags of open(2), as the descriptor has them; pages of the kernel's have none
                let append = !paged && a.flags & OFlags::APPEND.bits() != 0;
                let direct = !paged && is_direct(a.handle);
                // the kernel sends all pieces of such a write at once
                let unordered = !paged && a.flags & OFlags::DIRECT.bits() != 0;
                let data = bytes(rest, a.size)?;
                // the bit of O_DSYNC is one of the two of O_SYNC
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
                // the shorter form has the first two fields
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

/// Takes a text that ends with a zero byte.
fn text<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let end = rest.iter().position(|&byte| byte == 0)?;
    let (text, after) = (rest.get(..end)?, rest.get(end + 1..)?);
    *rest = after;
    Some(text)
}

/// Takes so many bytes.
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
        // the kernel has no way to ask for another time than the one it says
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
