//! Writing beneath a directory of this machine with untrusted names, which come from a volume.
//!
//! 1. A name is one component. The empty name, `.`, `..`, and names with a slash or a NUL are refused.
//! 2. Every step is relative to an open directory and follows no symbolic link, so that nothing is written outside the
//!    directory that the user specified, whatever is in it (from the volume, or from others).
//! 3. No existing file is opened for writing: files are created, and a file to be replaced stays until the new one is
//!    complete and takes its name. Device nodes, pipes and sockets are replaced only by nodes of the same kind. The
//!    files that contain the volume being read, and links to them, are never replaced, nor are files that another
//!    process has locked for writing, as a mount of a volume has. That is looked up in the kernel's list of locks,
//!    without opening the file.

use crate::source::Identity;
use fs::{FileKind, Timestamp};
use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags, chownat, fchmod, fsetxattr, fstatvfs,
    linkat, lsetxattr, makedev, mkdirat, mknodat, openat, renameat, statat, symlinkat, unlinkat, utimensat,
};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// An open directory, and whether existing names in it may be replaced.
#[derive(Debug)]
pub(super) struct Beneath {
    fd: OwnedFd,
    replace: bool,
    /// Files that are never replaced, nor are links to them: those that contain the volume being read.
    own: [Option<Identity>; 2],
}

/// The metadata of a file other than its content.
#[derive(Debug)]
pub(super) struct FileAttributes {
    /// Owner and group, if they are to be set.
    pub(super) owner: Option<(u32, u32)>,
    /// Permission bits.
    pub(super) mode: u16,
    pub(super) atime: Timestamp,
    pub(super) mtime: Timestamp,
    pub(super) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// An attribute that could not be set.
pub(super) type UnsetXattr = (Vec<u8>, io::Error);

/// Raises the limit of open files to its maximum, since every directory on the path is open.
pub(super) fn more_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    // on failure the usual limit applies
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

impl Beneath {
    /// Opens a directory that the user specified; symbolic links in the path are the user's own.
    pub(super) fn open(path: &Path, replace: bool) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self { fd: openat(rustix::fs::CWD, path, flags, Mode::empty())?, replace, own: [None; 2] })
    }

    /// Excludes the files that contain the volume being read from replacement.
    pub(super) fn without(self, own: [Option<Identity>; 2]) -> Self {
        Self { own, ..self }
    }

    /// Whether existing files are replaced.
    pub(super) fn replaces(&self) -> bool {
        self.replace
    }

    /// Opens the directory of that name.
    pub(super) fn enter(&self, name: &[u8]) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = openat(&self.fd, component(name)?, flags, Mode::empty())?;
        Ok(Self { fd, replace: self.replace, own: self.own })
    }

    /// Opens the directory at a path of names.
    pub(super) fn descend(&self, names: &[&[u8]]) -> io::Result<Self> {
        let mut at = Self { fd: self.fd.try_clone()?, replace: self.replace, own: self.own };
        for name in names {
            at = at.enter(name)?;
        }
        Ok(at)
    }

    /// The directory of that name, and whether it was created now.
    pub(super) fn make_directory(&self, name: &[u8]) -> io::Result<(Self, bool)> {
        let made = match mkdirat(&self.fd, component(name)?, Mode::RWXU) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(e) => return Err(e.into()),
        };
        match self.enter(name) {
            Ok(dir) => Ok((dir, made)),
            // the name belongs to something else
            Err(_) if !made => Err(Errno::EXIST.into()),
            Err(e) => Err(e),
        }
    }

    /// Creates an empty file, accessible only to this user. If it is to replace another, it has the returned temporary
    /// name until [`Beneath::settle`].
    pub(super) fn create_file(&self, name: &[u8]) -> io::Result<(File, Option<Vec<u8>>)> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let (fd, temporary) = self.begin(name, None, |name| openat(&self.fd, name, flags, Mode::RUSR | Mode::WUSR))?;
        Ok((File::from(fd), temporary))
    }

    /// Replaces the file of that name by a new one, or removes the new one if it is incomplete.
    pub(super) fn settle(&self, temporary: &[u8], name: &[u8], whole: bool) -> io::Result<()> {
        let renamed = if whole { renameat(&self.fd, temporary, &self.fd, component(name)?) } else { Ok(()) };
        // renaming does nothing if both names lead to the same file
        if !whole || renamed.is_err() || statat(&self.fd, temporary, AtFlags::SYMLINK_NOFOLLOW).is_ok() {
            unlinkat(&self.fd, temporary, AtFlags::empty())?;
        }
        Ok(renamed?)
    }

    /// Removes a file that was just created.
    pub(super) fn remove(&self, name: &[u8]) -> io::Result<()> {
        Ok(unlinkat(&self.fd, component(name)?, AtFlags::empty())?)
    }

    /// Free space for this user, in bytes.
    pub(super) fn free(&self) -> u64 {
        fstatvfs(&self.fd).map_or(0, |there| there.f_bavail.saturating_mul(there.f_frsize))
    }

    pub(super) fn create_symlink(&self, name: &[u8], target: &[u8]) -> io::Result<()> {
        self.put(name, None, |name| symlinkat(target, &self.fd, name))
    }

    /// Creates a device, pipe or socket with these permission bits: the process has no umask.
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

    /// Adds another name for the file `old` of the directory `from`.
    pub(super) fn link(&self, name: &[u8], from: &Self, old: &[u8]) -> io::Result<()> {
        let old = component(old)?;
        self.put(name, None, |name| linkat(&from.fd, old, &self.fd, name, AtFlags::empty()))
    }

    /// Creates something of that name; replaces an existing file if requested.
    fn put(&self, name: &[u8], like: Option<Node>, make: impl Fn(&[u8]) -> rustix::io::Result<()>) -> io::Result<()> {
        match self.begin(name, like, make)? {
            ((), Some(temporary)) => self.settle(&temporary, name, true),
            ((), None) => Ok(()),
        }
    }

    /// Creates something of that name, or under a free temporary name, also returned, if the name exists and may be
    /// replaced. `like` is the only kind of node that is replaced.
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
        let target = statat(&self.fd, name, AtFlags::NO_AUTOMOUNT);
        if target.is_ok_and(|target| self.own.contains(&Some((target.st_dev, target.st_ino)))) {
            return Err(io::Error::other("a file of that name exists, and it is the volume being read"));
        }
        let there = statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let kind = FileType::from_raw_mode(there.st_mode);
        if kind == FileType::Directory {
            return Err(Errno::ISDIR.into());
        }
        if let Some(what) = node_name(kind)
            && like != Some((kind, if number_matters(kind) { there.st_rdev } else { 0 }))
        {
            return Err(io::Error::other(format!("{what} of that name exists, which --force does not replace")));
        }
        if kind == FileType::RegularFile && blockdev::is_locked_for_writing(self.path_of(name)) {
            let why =
                "a file of that name exists, and another process has it locked for writing, as a mounted volume is";
            return Err(io::Error::other(why));
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

    /// A path to a name in the directory, whatever the directory's own path is.
    fn path_of(&self, name: &[u8]) -> PathBuf {
        Path::new("/proc/self/fd").join(self.fd.as_raw_fd().to_string()).join(OsStr::from_bytes(name))
    }

    /// Sets the attributes of a new file of that name that is neither a regular file nor a directory. Its mode is
    /// already set.
    pub(super) fn set_node_attributes(&self, name: &[u8], attributes: &FileAttributes) -> io::Result<Vec<UnsetXattr>> {
        let name = component(name)?;
        if let Some((uid, gid)) = attributes.owner {
            let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
            chownat(&self.fd, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
        }
        // no system call sets an attribute relative to an open directory
        let path = self.path_of(name);
        let unset =
            set_all(&attributes.xattrs, |key, value| lsetxattr(path.as_path(), key, value, XattrFlags::empty()));
        utimensat(&self.fd, name, &attributes.times(), AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(unset)
    }

    /// Sets the attributes of the directory itself.
    pub(super) fn set_attributes(&self, attributes: &FileAttributes) -> io::Result<Vec<UnsetXattr>> {
        set_open_attributes(&self.fd, attributes)
    }
}

/// A device, pipe or socket: its type, and a device's number.
type Node = (FileType, u64);

/// Whether nodes of a type are distinguished by device number.
fn number_matters(kind: FileType) -> bool {
    matches!(kind, FileType::CharacterDevice | FileType::BlockDevice)
}

/// The noun for a device, pipe or socket; `None` for other kinds.
pub(super) fn node_name(kind: FileType) -> Option<&'static str> {
    match kind {
        FileType::CharacterDevice => Some("a character device"),
        FileType::BlockDevice => Some("a block device"),
        FileType::Fifo => Some("a pipe"),
        FileType::Socket => Some("a socket"),
        _ => None,
    }
}

/// Sets the attributes of an open file or directory: the owner first, since that removes capabilities; the mode after
/// the extended attributes, since an access control list changes it; the times last.
pub(super) fn set_open_attributes(fd: impl AsFd, attributes: &FileAttributes) -> io::Result<Vec<UnsetXattr>> {
    let fd = fd.as_fd();
    if let Some((uid, gid)) = attributes.owner {
        rustix::fs::fchown(fd, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
    }
    let unset = set_all(&attributes.xattrs, |key, value| fsetxattr(fd, key, value, XattrFlags::empty()));
    fchmod(fd, permissions(attributes.mode))?;
    rustix::fs::futimens(fd, &attributes.times())?;
    Ok(unset)
}

fn set_all(xattrs: &[(Vec<u8>, Vec<u8>)], set: impl Fn(&[u8], &[u8]) -> rustix::io::Result<()>) -> Vec<UnsetXattr> {
    let failed = |(key, value): &(Vec<u8>, Vec<u8>)| Some((key.clone(), set(key, value).err()?.into()));
    xattrs.iter().filter_map(failed).collect()
}

impl FileAttributes {
    fn times(&self) -> Timestamps {
        // the system interprets some values beyond 10^9 as commands
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

/// Checks that a name is a single, harmless component.
fn component(name: &[u8]) -> io::Result<&[u8]> {
    if matches!(name, b"" | b"." | b"..") || name.contains(&b'/') || name.contains(&0) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "this name could lead outside the destination"));
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn destination() -> (tempfile::TempDir, Beneath) {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("dest")).unwrap();
        std::fs::write(folder.path().join("outside"), "untouched").unwrap();
        let beneath = Beneath::open(&folder.path().join("dest"), false).unwrap();
        (folder, beneath)
    }

    #[test]
    fn names_that_lead_out_are_refused() {
        let (folder, beneath) = destination();
        for name in [&b""[..], b".", b"..", b"../outside", b"/etc/passwd", b"a/b", b"a\0b"] {
            assert!(beneath.create_file(name).is_err(), "{name:?}");
            assert!(beneath.create_symlink(name, b"x").is_err(), "{name:?}");
            assert!(beneath.create_node(name, FileKind::Fifo, (0, 0), 0o600).is_err(), "{name:?}");
            assert!(beneath.make_directory(name).is_err(), "{name:?}");
            assert!(beneath.enter(name).is_err(), "{name:?}");
            assert!(
                beneath.link(name, &beneath, b"x").is_err() && beneath.link(b"x", &beneath, name).is_err(),
                "{name:?}"
            );
        }
        assert_eq!(std::fs::read_dir(folder.path().join("dest")).unwrap().count(), 0);
    }

    #[test]
    fn links_in_the_destination_are_not_followed() {
        for replace in [false, true] {
            let (folder, mut beneath) = destination();
            beneath.replace = replace;
            beneath.create_symlink(b"up", b"..").unwrap();
            beneath.create_symlink(b"file", b"../outside").unwrap();
            assert!(beneath.enter(b"up").is_err());
            assert!(beneath.descend(&[b"up", b"dest"]).is_err());
            assert!(beneath.make_directory(b"up").is_err());
            let made = beneath.create_file(b"file");
            assert_eq!(made.is_ok(), replace);
            if let Ok((_, temporary)) = made {
                beneath.settle(&temporary.unwrap(), b"file", true).unwrap();
            }
            assert_eq!(std::fs::read(folder.path().join("outside")).unwrap(), b"untouched");
            let is_link = folder.path().join("dest/file").symlink_metadata().unwrap().is_symlink();
            assert_eq!(is_link, !replace);
        }
    }

    #[test]
    fn nodes_are_replaced_by_their_like_alone() {
        let (folder, mut beneath) = destination();
        beneath.replace = true;
        let names = || std::fs::read_dir(folder.path().join("dest")).unwrap().count();
        for _ in 0..2 {
            beneath.create_node(b"pipe", FileKind::Fifo, (0, 0), 0o600).unwrap();
        }
        assert!(beneath.create_node(b"pipe", FileKind::Socket, (0, 0), 0o600).is_err());
        assert!(beneath.create_symlink(b"pipe", b"x").is_err() && beneath.create_file(b"pipe").is_err());
        assert_eq!(names(), 1);
        // a second name for a file replaces that file's own
        drop(beneath.create_file(b"a").unwrap());
        beneath.link(b"b", &beneath, b"a").unwrap();
        beneath.link(b"b", &beneath, b"a").unwrap();
        assert_eq!(names(), 3);
    }

    #[test]
    fn the_users_own_link_is_the_users_choice() {
        let (folder, _) = destination();
        symlink("dest", folder.path().join("way")).unwrap();
        let beneath = Beneath::open(&folder.path().join("way"), false).unwrap();
        beneath.make_directory(b"a").unwrap().0.create_file(b"b").unwrap();
        assert!(folder.path().join("dest/a/b").is_file());
        assert!(beneath.descend(&[b"a"]).unwrap().enter(b"b").is_err());
    }
}
