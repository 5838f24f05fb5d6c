//! Writing below a directory of this machine with names that nobody vouches for: they come from a volume.
//!
//! 1. A name is one component. The empty name, `.`, `..`, and names with a slash or a NUL are refused.
//! 2. Every step is relative to a directory that is open, and follows no symbolic link, so whatever was put there (by the
//!    volume a moment ago, or by anyone else) nothing is written outside the directory the user named.
//! 3. Nothing that exists is opened for writing: files are made new, and what is to be replaced stays until the new one is
//!    whole and takes its name. Device nodes, pipes and sockets are never replaced by anything but their like.

use fs::{FileKind, Timestamp};
use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags, chownat, fchmod, fsetxattr, fstatvfs,
    linkat, lsetxattr, makedev, mkdirat, mknodat, openat, renameat, statat, symlinkat, unlinkat, utimensat,
};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

/// An open directory, and whether names in it that are taken may be replaced.
#[derive(Debug)]
pub(super) struct Below {
    fd: OwnedFd,
    replace: bool,
}

/// What a file is beside its content.
#[derive(Debug)]
pub(super) struct Dress {
    /// Owner and group, where they are to be set.
    pub(super) owner: Option<(u32, u32)>,
    /// Permission bits.
    pub(super) mode: u16,
    pub(super) atime: Timestamp,
    pub(super) mtime: Timestamp,
    pub(super) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// An attribute that could not be set.
pub(super) type Undressed = (Vec<u8>, io::Error);

/// Each directory on the way is open: as many as the system lets this process have.
pub(super) fn more_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    // where it cannot be had the usual number is left
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

impl Below {
    /// Opens a directory that the user names; links on the way are the user's own.
    pub(super) fn open(path: &Path, replace: bool) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self { fd: openat(rustix::fs::CWD, path, flags, Mode::empty())?, replace })
    }

    /// Whether what exists is replaced.
    pub(super) fn replaces(&self) -> bool {
        self.replace
    }

    /// Opens the directory of that name.
    pub(super) fn enter(&self, name: &[u8]) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(Self { fd: openat(&self.fd, component(name)?, flags, Mode::empty())?, replace: self.replace })
    }

    /// Opens the directory that names lead to, one after the other.
    pub(super) fn descend(&self, names: &[&[u8]]) -> io::Result<Self> {
        let mut at = Self { fd: self.fd.try_clone()?, replace: self.replace };
        for name in names {
            at = at.enter(name)?;
        }
        Ok(at)
    }

    /// The directory of that name, and whether it was made just now.
    pub(super) fn make_directory(&self, name: &[u8]) -> io::Result<(Self, bool)> {
        let made = match mkdirat(&self.fd, component(name)?, Mode::RWXU) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(e) => return Err(e.into()),
        };
        match self.enter(name) {
            Ok(dir) => Ok((dir, made)),
            // of something else, say what everyone knows
            Err(_) if !made => Err(Errno::EXIST.into()),
            Err(e) => Err(e),
        }
    }

    /// A new empty file, for this user alone. Where it is to replace another it has the name that is given back, until
    /// [`Below::settle`].
    pub(super) fn create_file(&self, name: &[u8]) -> io::Result<(File, Option<Vec<u8>>)> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let (fd, temporary) = self.begin(name, None, |name| openat(&self.fd, name, flags, Mode::RUSR | Mode::WUSR))?;
        Ok((File::from(fd), temporary))
    }

    /// Has a new file replace the one of that name, or go where it is not whole.
    pub(super) fn settle(&self, temporary: &[u8], name: &[u8], whole: bool) -> io::Result<()> {
        let renamed = if whole { renameat(&self.fd, temporary, &self.fd, component(name)?) } else { Ok(()) };
        // a name that leads to the same file as the other is left by the renaming
        if !whole || renamed.is_err() || statat(&self.fd, temporary, AtFlags::SYMLINK_NOFOLLOW).is_ok() {
            unlinkat(&self.fd, temporary, AtFlags::empty())?;
        }
        Ok(renamed?)
    }

    /// Removes a file that was made just now.
    pub(super) fn remove(&self, name: &[u8]) -> io::Result<()> {
        Ok(unlinkat(&self.fd, component(name)?, AtFlags::empty())?)
    }

    /// Bytes that are free for this user.
    pub(super) fn free(&self) -> u64 {
        fstatvfs(&self.fd).map_or(0, |there| there.f_bavail.saturating_mul(there.f_frsize))
    }

    pub(super) fn create_symlink(&self, name: &[u8], target: &[u8]) -> io::Result<()> {
        self.put(name, None, |name| symlinkat(target, &self.fd, name))
    }

    /// A device, pipe or socket, with these permission bits: the process has no umask.
    pub(super) fn create_node(&self, name: &[u8], kind: FileKind, device: (u32, u32), mode: u16) -> io::Result<()> {
        let file_type = match kind {
            FileKind::CharDevice => FileType::CharacterDevice,
            FileKind::BlockDevice => FileType::BlockDevice,
            FileKind::Socket => FileType::Socket,
            _ => FileType::Fifo,
        };
        let (major, minor) = device;
        let number = makedev(major, minor);
        let like = (file_type, if number_matters(file_type) { number } else { 0 });
        self.put(name, Some(like), |name| mknodat(&self.fd, name, file_type, permissions(mode), number))
    }

    /// One more name for the file `old` of the directory `from`.
    pub(super) fn link(&self, name: &[u8], from: &Self, old: &[u8]) -> io::Result<()> {
        let old = component(old)?;
        self.put(name, None, |name| linkat(&from.fd, old, &self.fd, name, AtFlags::empty()))
    }

    /// Makes something of that name, in place of what has it already where that was asked for.
    fn put(&self, name: &[u8], like: Option<Node>, make: impl Fn(&[u8]) -> rustix::io::Result<()>) -> io::Result<()> {
        match self.begin(name, like, make)? {
            ((), Some(temporary)) => self.settle(&temporary, name, true),
            ((), None) => Ok(()),
        }
    }

    /// Makes something of that name, or under one that is free where the name is taken and may be replaced: that one comes
    /// back as well. `like` is the only kind of node that is replaced.
    fn begin<T>(
        &self,
        name: &[u8],
        like: Option<Node>,
        make: impl Fn(&[u8]) -> rustix::io::Result<T>,
    ) -> io::Result<(T, Option<Vec<u8>>)> {
        let name = component(name)?;
        match make(name) {
            Err(Errno::EXIST) if self.replace => {}
            made => return Ok((made?, None)),
        }
        let there = statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let kind = FileType::from_raw_mode(there.st_mode);
        if kind == FileType::Directory {
            return Err(Errno::ISDIR.into());
        }
        if let Some(what) = node_name(kind)
            && like != Some((kind, if number_matters(kind) { there.st_rdev } else { 0 }))
        {
            return Err(io::Error::other(format!("there is {what} of that name, which --force does not replace")));
        }
        for count in 0u64.. {
            let temporary = format!(".extant-{}-{count}", std::process::id()).into_bytes();
            match make(&temporary) {
                Err(Errno::EXIST) => {}
                made => return Ok((made?, Some(temporary))),
            }
        }
        Err(Errno::EXIST.into())
    }

    /// Dresses what was made under that name and is neither file nor directory. Its mode it has already.
    pub(super) fn dress_node(&self, name: &[u8], dress: &Dress) -> io::Result<Vec<Undressed>> {
        let name = component(name)?;
        if let Some((uid, gid)) = dress.owner {
            let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
            chownat(&self.fd, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
        }
        // there is no call that sets an attribute relative to an open directory
        let path = [format!("/proc/self/fd/{}/", self.fd.as_raw_fd()).as_bytes(), name].concat();
        let undressed = set_all(&dress.xattrs, |key, value| lsetxattr(&path[..], key, value, XattrFlags::empty()));
        utimensat(&self.fd, name, &dress.times(), AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(undressed)
    }

    /// Dresses the directory itself.
    pub(super) fn dress(&self, dress: &Dress) -> io::Result<Vec<Undressed>> {
        dress_open(&self.fd, dress)
    }
}

/// A device, pipe or socket: its type, and a device's number.
type Node = (FileType, u64);

/// Whether a node of a type is told from others by its number.
fn number_matters(kind: FileType) -> bool {
    matches!(kind, FileType::CharacterDevice | FileType::BlockDevice)
}

/// What a device, pipe or socket is called; `None` for everything else.
pub(super) fn node_name(kind: FileType) -> Option<&'static str> {
    match kind {
        FileType::CharacterDevice => Some("a character device"),
        FileType::BlockDevice => Some("a block device"),
        FileType::Fifo => Some("a pipe"),
        FileType::Socket => Some("a socket"),
        _ => None,
    }
}

/// Dresses a file or directory that is open. The owner comes first, for that takes capabilities away; the mode after
/// the attributes, for an access control list changes it; the times last.
pub(super) fn dress_open(fd: impl AsFd, dress: &Dress) -> io::Result<Vec<Undressed>> {
    let fd = fd.as_fd();
    if let Some((uid, gid)) = dress.owner {
        rustix::fs::fchown(fd, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
    }
    let undressed = set_all(&dress.xattrs, |key, value| fsetxattr(fd, key, value, XattrFlags::empty()));
    fchmod(fd, permissions(dress.mode))?;
    rustix::fs::futimens(fd, &dress.times())?;
    Ok(undressed)
}

fn set_all(xattrs: &[(Vec<u8>, Vec<u8>)], set: impl Fn(&[u8], &[u8]) -> rustix::io::Result<()>) -> Vec<Undressed> {
    let failed = |(key, value): &(Vec<u8>, Vec<u8>)| Some((key.clone(), set(key, value).err()?.into()));
    xattrs.iter().filter_map(failed).collect()
}

impl Dress {
    fn times(&self) -> Timestamps {
        // beyond 10^9 the system takes some numbers for commands
        let spec = |time: Timestamp| Timespec {
            tv_sec: time.seconds,
            tv_nsec: if time.nanos < 1_000_000_000 { i64::from(time.nanos) } else { 0 },
        };
        Timestamps { last_access: spec(self.atime), last_modification: spec(self.mtime) }
    }
}

fn permissions(mode: u16) -> Mode {
    Mode::from_raw_mode(u32::from(mode & 0o7777))
}

/// A name that can do no harm.
fn component(name: &[u8]) -> io::Result<&[u8]> {
    if matches!(name, b"" | b"." | b"..") || name.contains(&b'/') || name.contains(&0) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "this name could lead out of the destination"));
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn destination() -> (tempfile::TempDir, Below) {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("dest")).unwrap();
        std::fs::write(folder.path().join("outside"), "untouched").unwrap();
        let below = Below::open(&folder.path().join("dest"), false).unwrap();
        (folder, below)
    }

    #[test]
    fn names_that_lead_out_are_refused() {
        let (folder, below) = destination();
        for name in [&b""[..], b".", b"..", b"../outside", b"/etc/passwd", b"a/b", b"a\0b"] {
            assert!(below.create_file(name).is_err(), "{name:?}");
            assert!(below.create_symlink(name, b"x").is_err(), "{name:?}");
            assert!(below.create_node(name, FileKind::Fifo, (0, 0), 0o600).is_err(), "{name:?}");
            assert!(below.make_directory(name).is_err(), "{name:?}");
            assert!(below.enter(name).is_err(), "{name:?}");
            assert!(below.link(name, &below, b"x").is_err() && below.link(b"x", &below, name).is_err(), "{name:?}");
        }
        assert_eq!(std::fs::read_dir(folder.path().join("dest")).unwrap().count(), 0);
    }

    #[test]
    fn links_in_the_destination_are_not_followed() {
        for replace in [false, true] {
            let (folder, mut below) = destination();
            below.replace = replace;
            below.create_symlink(b"up", b"..").unwrap();
            below.create_symlink(b"file", b"../outside").unwrap();
            assert!(below.enter(b"up").is_err());
            assert!(below.descend(&[b"up", b"dest"]).is_err());
            assert!(below.make_directory(b"up").is_err());
            let made = below.create_file(b"file");
            assert_eq!(made.is_ok(), replace);
            if let Ok((_, temporary)) = made {
                below.settle(&temporary.unwrap(), b"file", true).unwrap();
            }
            assert_eq!(std::fs::read(folder.path().join("outside")).unwrap(), b"untouched");
            let is_link = folder.path().join("dest/file").symlink_metadata().unwrap().is_symlink();
            assert_eq!(is_link, !replace);
        }
    }

    #[test]
    fn nodes_are_replaced_by_their_like_alone() {
        let (folder, mut below) = destination();
        below.replace = true;
        let names = || std::fs::read_dir(folder.path().join("dest")).unwrap().count();
        for _ in 0..2 {
            below.create_node(b"pipe", FileKind::Fifo, (0, 0), 0o600).unwrap();
        }
        assert!(below.create_node(b"pipe", FileKind::Socket, (0, 0), 0o600).is_err());
        assert!(below.create_symlink(b"pipe", b"x").is_err() && below.create_file(b"pipe").is_err());
        assert_eq!(names(), 1);
        // a second name for a file takes the place of that file's own
        drop(below.create_file(b"a").unwrap());
        below.link(b"b", &below, b"a").unwrap();
        below.link(b"b", &below, b"a").unwrap();
        assert_eq!(names(), 3);
    }

    #[test]
    fn the_users_own_link_is_the_users_choice() {
        let (folder, _) = destination();
        symlink("dest", folder.path().join("way")).unwrap();
        let below = Below::open(&folder.path().join("way"), false).unwrap();
        below.make_directory(b"a").unwrap().0.create_file(b"b").unwrap();
        assert!(folder.path().join("dest/a/b").is_file());
        assert!(below.descend(&[b"a"]).unwrap().enter(b"b").is_err());
    }
}
