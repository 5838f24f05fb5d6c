//! A mounted directory as a [`Session`]: runs the same workloads on a FUSE mount or on the kernel's, through system
//! calls.
//!
//! 1. The process is root without a umask: modes and owners are those of the workload.
//! 2. Symbolic links at the end of a path are not followed, as in the library.
//! 3. `wait` does not wait: effects of time on a mount are not compared.

use std::collections::{BTreeMap, HashMap};
use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{self, AtFlags, CWD, FallocateFlags, FileType, Mode, OFlags, RenameFlags, XattrFlags};
use rustix::io::Errno;

use crate::extant_system::written;
use crate::model::{Body, Node, State};
use crate::op::{FallocateHow, Op, RenameHow, pattern};
use crate::system::{Refused, Session};

/// Maximum length in bytes of an attribute list and of a value, as limited by the kernel.
const XATTR_MAX: usize = 65536;

/// A mounted directory and the files that a workload has open in it.
#[derive(Debug)]
pub struct Directory {
    root: PathBuf,
    open: HashMap<String, OwnedFd>,
}

impl Directory {
    /// A session on the mount root `root`.
    #[must_use]
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_owned(), open: HashMap::new() }
    }

    /// The complete content. The numbers of nodes are their inode numbers.
    ///
    /// # Errors
    /// The first object that cannot be read, with its path.
    pub fn observe(&self) -> Result<State, Refused> {
        let at = |path: &Path, e: Errno| format!("{}: {e}", path.display());
        let root = fs::lstat(&self.root).map_err(|e| at(&self.root, e))?.st_ino;
        let mut state = State::of(BTreeMap::new(), root);
        let mut queue = vec![self.root.clone()];
        while let Some(path) = queue.pop() {
            let stat = fs::lstat(&path).map_err(|e| at(&path, e))?;
            if state.nodes.contains_key(&stat.st_ino) {
                continue;
            }
            let body = match FileType::from_raw_mode(stat.st_mode) {
                FileType::RegularFile => Body::File(Arc::new(std::fs::read(&path).map_err(|e| e.to_string())?)),
                FileType::Directory => {
                    let entries = entries(&path).map_err(|e| at(&path, e))?;
                    queue.extend(entries.keys().map(|name| path.join(name)));
                    Body::Dir(entries)
                }
                FileType::Symlink => {
                    let target = fs::readlink(&path, Vec::new()).map_err(|e| at(&path, e))?;
                    Body::Symlink(target.to_string_lossy().into_owned())
                }
                _ => Body::Other("something else"),
            };
            let xattrs = xattrs(&path).map_err(|e| at(&path, e))?;
            let links = u32::try_from(stat.st_nlink).unwrap_or(u32::MAX);
            let node = Node { mode: (stat.st_mode & 0o7777) as u16, links, xattrs, body };
            state.nodes.insert(stat.st_ino, Arc::new(node));
        }
        Ok(state)
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    fn opened(&self, path: &str) -> Option<Result<&OwnedFd, Errno>> {
        path.strip_prefix('@').map(|name| self.open.get(name).ok_or(Errno::BADF))
    }

    /// Runs an operation on a file, by path or open.
    fn with_file<T>(
        &self,
        path: &str,
        flags: OFlags,
        does: impl FnOnce(&OwnedFd) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        match self.opened(path) {
            Some(file) => {
                let file = file?;
                let is_dir = FileType::from_raw_mode(fs::fstat(file)?.st_mode) == FileType::Directory;
                // it is open only for reading
                if is_dir && flags == OFlags::WRONLY { Err(Errno::ISDIR) } else { does(file) }
            }
            None => does(&self.open_file(path, flags)?),
        }
    }

    fn open_file(&self, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
        let path = self.path(path);
        fs::open(&path, flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()).map_err(|e| {
            let link = |stat: fs::Stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink;
            // a link that is not followed is a file of the wrong type
            if e == Errno::LOOP && fs::lstat(&path).is_ok_and(link) { Errno::INVAL } else { e }
        })
    }

    fn create(&self, path: &str) -> Result<(), Errno> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        fs::open(self.path(path), flags, Mode::from_raw_mode(0o644)).map(drop)
    }

    fn write(&self, path: &str, offset: Option<u64>, len: u64, seed: u32) -> Result<u64, Errno> {
        self.with_file(path, OFlags::WRONLY, |file| {
            let end = || fs::fstat(file).map(|stat| u64::try_from(stat.st_size).unwrap_or(0));
            let offset = offset.map_or_else(end, Ok)?;
            written(rustix::io::pwrite(file, &pattern(seed, offset, len), offset))
        })
    }

    fn link(&self, from: &str, to: &str) -> Result<(), Errno> {
        let to = self.path(to);
        match self.opened(from) {
            Some(file) => {
                let path = format!("/proc/self/fd/{}", file?.as_fd().as_raw_fd());
                fs::linkat(CWD, path, CWD, to, AtFlags::SYMLINK_FOLLOW)
            }
            None => fs::linkat(CWD, self.path(from), CWD, to, AtFlags::empty()),
        }
    }

    /// Syncs a file; for a symbolic link, which cannot be opened, no system call exists.
    fn sync_file(&self, path: &str, sync: impl FnOnce(&OwnedFd) -> Result<(), Errno>) -> Result<(), Errno> {
        match self.with_file(path, OFlags::RDONLY, sync) {
            Err(Errno::INVAL) => Ok(()),
            synced => synced,
        }
    }

    fn sync(&self) -> Result<(), Errno> {
        fs::syncfs(self.open_file(".", OFlags::RDONLY | OFlags::DIRECTORY)?)
    }
}

impl Session for Directory {
    fn apply(&mut self, op: &Op) -> Result<u64, Errno> {
        let done = match op {
            Op::Create { path } => self.create(path),
            Op::Mkdir { path } => fs::mkdir(self.path(path), Mode::from_raw_mode(0o755)),
            Op::Rmdir { path } => fs::rmdir(self.path(path)),
            Op::Unlink { path } => fs::unlink(self.path(path)),
            Op::Symlink { target, path } => fs::symlink(target, self.path(path)),
            Op::Link { from, to } => self.link(from, to),
            Op::Rename { from, to, how } => {
                let flags = match how {
                    RenameHow::Replace => RenameFlags::empty(),
                    RenameHow::NoReplace => RenameFlags::NOREPLACE,
                    RenameHow::Exchange => RenameFlags::EXCHANGE,
                };
                fs::renameat_with(CWD, self.path(from), CWD, self.path(to), flags)
            }
            Op::Write { path, offset, len, seed } => return self.write(path, Some(*offset), *len, *seed),
            Op::Append { path, len, seed } => return self.write(path, None, *len, *seed),
            Op::Read { path } => return self.read(path).map(|_| 0),
            Op::Truncate { path, size } => self.with_file(path, OFlags::WRONLY, |file| fs::ftruncate(file, *size)),
            Op::Fallocate { path, how, offset, len } => {
                let flags = match how {
                    FallocateHow::Plain => FallocateFlags::empty(),
                    FallocateHow::KeepSize => FallocateFlags::KEEP_SIZE,
                    FallocateHow::Zero => FallocateFlags::ZERO_RANGE,
                    FallocateHow::ZeroKeepSize => FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
                    FallocateHow::Punch => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                    FallocateHow::Collapse => FallocateFlags::COLLAPSE_RANGE,
                    FallocateHow::Insert => FallocateFlags::INSERT_RANGE,
                };
                self.with_file(path, OFlags::WRONLY, |file| fs::fallocate(file, flags, *offset, *len))
            }
            Op::SetXattr { path, name, len, seed } => {
                let value = pattern(*seed, 0, *len);
                match self.opened(path) {
                    Some(file) => fs::fsetxattr(file?, name, &value, XattrFlags::empty()),
                    None => fs::lsetxattr(self.path(path), name, &value, XattrFlags::empty()),
                }
            }
            Op::RemoveXattr { path, name } => match self.opened(path) {
                Some(file) => fs::fremovexattr(file?, name),
                None => fs::lremovexattr(self.path(path), name),
            },
            Op::Chmod { path, mode } => {
                let mode = Mode::from_raw_mode((*mode).into());
                match self.opened(path) {
                    Some(file) => fs::fchmod(file?, mode),
                    None => fs::chmod(self.path(path), mode),
                }
            }
            Op::Open { path } => {
                // a directory cannot be opened for writing
                let file = match self.open_file(path, OFlags::RDWR) {
                    Err(Errno::ISDIR) => self.open_file(path, OFlags::RDONLY)?,
                    opened => opened?,
                };
                self.open.insert(path.clone(), file);
                Ok(())
            }
            Op::Close { path } => self.open.remove(path.trim_start_matches('@')).map(drop).ok_or(Errno::BADF),
            Op::Tmpfile { dir, path } => {
                let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
                let file = fs::open(self.path(dir), flags, Mode::from_raw_mode(0o644))?;
                self.open.insert(path.clone(), file);
                Ok(())
            }
            Op::Fsync { path } => self.sync_file(path, |file| fs::fsync(file)),
            Op::Fdatasync { path } => self.sync_file(path, |file| fs::fdatasync(file)),
            Op::Sync => self.sync(),
            Op::Wait { .. } => Ok(()),
            // not available on a mounted directory
            Op::CreateSnapshot { .. } | Op::DeleteSnapshot { .. } | Op::Begin | Op::Commit | Op::Rollback => {
                Err(Errno::OPNOTSUPP)
            }
        };
        done.map(|()| 0)
    }

    fn read(&mut self, path: &str) -> Result<Vec<u8>, Errno> {
        self.with_file(path, OFlags::RDONLY, |file| {
            let mut bytes = vec![0; usize::try_from(fs::fstat(file)?.st_size).unwrap_or(0)];
            let mut done = 0;
            while done < bytes.len() {
                match rustix::io::pread(file, &mut bytes[done..], done as u64)? {
                    0 => break,
                    read => done += read,
                }
            }
            bytes.truncate(done);
            Ok(bytes)
        })
    }

    /// Closes all files and makes everything durable; the caller unmounts the directory.
    fn unmount(mut self: Box<Self>) -> Result<(), Refused> {
        self.open.clear();
        self.sync().map_err(|e| e.to_string())
    }
}

fn entries(path: &Path) -> Result<BTreeMap<String, u64>, Errno> {
    let dir = fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let mut found = BTreeMap::new();
    for entry in fs::Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if !matches!(name, b"." | b"..") {
            found.insert(String::from_utf8_lossy(name).into_owned(), entry.ino());
        }
    }
    Ok(found)
}

fn xattrs(path: &Path) -> Result<BTreeMap<String, Arc<[u8]>>, Errno> {
    let mut list = vec![0; XATTR_MAX];
    let len = match fs::llistxattr(path, &mut list[..]) {
        Err(Errno::OPNOTSUPP) => 0,
        listed => listed?,
    };
    let mut found = BTreeMap::new();
    let mut value = vec![0; if len > 0 { XATTR_MAX } else { 0 }];
    for name in list[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let path = CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::INVAL)?;
        let len = fs::lgetxattr(&path, name, &mut value[..])?;
        found.insert(String::from_utf8_lossy(name).into_owned(), value[..len].into());
    }
    Ok(found)
}
