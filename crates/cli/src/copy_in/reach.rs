//! Files of this machine below a folder, at any depth: a path that is longer than the kernel accepts is walked in
//! parts, each relative to an open directory.

use crate::path_stack::PathStack;
use rustix::fs::{CWD, Dir, Mode, OFlags, openat, readlinkat};
use rustix::io::Errno;
use std::ffi::{CStr, OsString};
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Maximum length of a part of a path: with a further name and a prefix `/proc/self/fd/N/` it is shorter than the 4 096
/// bytes that the kernel accepts.
const PART: usize = 3800;

/// A file of this machine, addressed by its path.
pub(super) struct Reach {
    stack: PathStack,
    /// Open directories on the path, each with the length of the path to it.
    open_dirs: Vec<(usize, OwnedFd)>,
}

impl Reach {
    pub(super) fn new(start: &Path) -> Self {
        Self { stack: PathStack::new(start.as_os_str().as_bytes()), open_dirs: Vec::new() }
    }

    /// The whole path.
    pub(super) fn path(&self) -> &[u8] {
        self.stack.path()
    }

    /// Appends a name to the path.
    pub(super) fn enter(&mut self, name: &[u8]) {
        self.stack.enter(name);
    }

    /// Removes the last name of the path.
    pub(super) fn leave(&mut self) {
        self.stack.leave();
        let length = self.path().len();
        while self.open_dirs.last().is_some_and(|(at, _)| *at > length) {
            self.open_dirs.pop();
        }
    }

    /// The open directory that the rest of the path is relative to, and that rest.
    fn parts(&self) -> (BorrowedFd<'_>, &Path) {
        let Some((at, fd)) = self.open_dirs.last() else { return (CWD, Path::new(bytes(self.path()))) };
        let rest = self.path().get(*at..).unwrap_or_default();
        let rest = rest.strip_prefix(b"/").unwrap_or(rest);
        (fd.as_fd(), Path::new(bytes(if rest.is_empty() { b"." } else { rest })))
    }

    fn open_with(&self, flags: OFlags) -> io::Result<OwnedFd> {
        let (from, path) = self.parts();
        Ok(openat(from, path, flags | OFlags::CLOEXEC, Mode::empty())?)
    }

    /// The metadata of the file; with `follow`, of the target of a symbolic link.
    pub(super) fn metadata(&self, follow: bool) -> io::Result<Metadata> {
        let flags = if follow { OFlags::PATH } else { OFlags::PATH | OFlags::NOFOLLOW };
        File::from(self.open_with(flags)?).metadata()
    }

    /// Opens a file for reading.
    pub(super) fn open(&self) -> io::Result<File> {
        Ok(File::from(self.open_with(OFlags::RDONLY | OFlags::NOFOLLOW)?))
    }

    /// The target of a symbolic link.
    pub(super) fn link(&self) -> io::Result<Vec<u8>> {
        let (from, path) = self.parts();
        Ok(readlinkat(from, path, Vec::new())?.into_bytes())
    }

    /// The names in a directory, which stays open if its files are reachable only through it.
    pub(super) fn names(&mut self) -> io::Result<Vec<OsString>> {
        let fd = self.open_with(OFlags::RDONLY | OFlags::DIRECTORY)?;
        let mut names = Vec::new();
        for entry in Dir::read_from(&fd)? {
            let entry = entry?;
            if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
                names.push(OsString::from_vec(entry.file_name().to_bytes().to_vec()));
            }
        }
        let (length, start) = (self.path().len(), self.open_dirs.last().map_or(0, |(at, _)| *at));
        if length > start + PART {
            self.open_dirs.push((length, fd));
        }
        Ok(names)
    }

    /// The extended attributes of a file; symbolic links are not followed.
    pub(super) fn xattrs(&self) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let (from, path) = self.parts();
        let path = match self.open_dirs.last() {
            None => path.to_owned(),
            // no system call takes a directory and a name
            Some(_) => PathBuf::from(format!("/proc/self/fd/{}", from.as_raw_fd())).join(path),
        };
        // the largest list that Linux returns
        let mut names = vec![0; 65536];
        let len = match rustix::fs::llistxattr(&path, &mut names) {
            Ok(len) => len,
            Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
            Err(e) => return Err(e.into()),
        };
        names.truncate(len);
        let mut found = Vec::new();
        for name in names.split_inclusive(|byte| *byte == 0) {
            let Ok(name) = CStr::from_bytes_with_nul(name) else { continue };
            let mut value = vec![0; 65536];
            match rustix::fs::lgetxattr(&path, name, &mut value) {
                Ok(len) => value.truncate(len),
                Err(Errno::NODATA) => continue,
                Err(e) => return Err(e.into()),
            }
            found.push((name.to_bytes().to_vec(), value));
        }
        Ok(found)
    }
}

fn bytes(path: &[u8]) -> &std::ffi::OsStr {
    std::ffi::OsStr::from_bytes(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_found_behind_paths_that_the_kernel_refuses() {
        let folder = tempfile::tempdir().unwrap();
        let name = [b'n'; 250];
        let mut at = OwnedFd::from(File::open(folder.path()).unwrap());
        for _ in 0..40 {
            rustix::fs::mkdirat(&at, &name[..], Mode::RWXU).unwrap();
            at = openat(&at, &name[..], OFlags::DIRECTORY | OFlags::RDONLY, Mode::empty()).unwrap();
        }
        rustix::fs::symlinkat("there", &at, "link").unwrap();
        let mut reach = Reach::new(folder.path());
        for depth in 0..=40 {
            assert!(reach.metadata(false).unwrap().is_dir());
            let names = reach.names().unwrap();
            assert_eq!(names.len(), 1, "{depth}");
            reach.enter(names[0].as_bytes());
        }
        assert_eq!(reach.link().unwrap(), b"there");
        assert!(reach.path().len() > 10_000 && reach.open_dirs.len() < 6);
        assert!(reach.xattrs().is_ok());
        for _ in 0..=40 {
            reach.leave();
        }
        assert!(reach.open_dirs.is_empty() && reach.path() == folder.path().as_os_str().as_bytes());
    }
}
