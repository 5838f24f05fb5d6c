//! The clients of a file server, which have many files open at a time.

use super::file_ops::{FileOps, Library, Mounted, failed};
use crate::error::Trying;
use crate::{Error, Result};
use fs::{FileKind, InodeNo, RenameFlags, SetAttributes};
use rustix::fs::{Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, fsync, futimens, statvfs};
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;

/// The options with which a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Make {
    /// Opens a directory.
    directory: bool,
    /// Creates the file if it does not exist.
    create: bool,
    /// Creates the file, which must not exist.
    new: bool,
    /// Truncates the file.
    empty: bool,
}

impl Make {
    /// The options of an SMB create disposition.
    pub(crate) fn of(directory: bool, disposition: u64) -> Option<Self> {
        let (create, new, empty) = match disposition {
            1 => (false, false, false),
            2 => (true, true, false),
            3 => (true, false, false),
            4 => (false, false, true),
            0 | 5 => (true, false, true),
            _ => return None,
        };
        Some(Self { directory, create, new, empty })
    }
}

/// A client. It identifies its files by numbers that it chooses.
pub(crate) trait Client: Send {
    /// The operations that need no open file.
    fn tree(&mut self) -> &mut dyn FileOps;
    fn open(&mut self, handle: u32, path: &str, make: Make) -> Result<()>;
    fn close(&mut self, handle: u32) -> Result<()>;
    fn close_all(&mut self) -> Result<()>;
    /// Reads up to the end of the file; returns the number of bytes.
    fn read_some(&mut self, handle: u32, offset: u64, buf: &mut [u8]) -> Result<usize>;
    fn write_all(&mut self, handle: u32, offset: u64, content: &[u8]) -> Result<()>;
    fn flush(&mut self, handle: u32) -> Result<()>;
    /// Reads the attributes.
    fn look(&mut self, handle: u32) -> Result<()>;
    /// Sets the time of the last change.
    fn touch(&mut self, handle: u32) -> Result<()>;
    /// The names in a directory, and whether they are directories.
    fn list(&mut self, path: &str) -> Result<Vec<(String, bool)>>;
    fn rename(&mut self, old: &str, new: &str) -> Result<()>;
    /// Reads the free space.
    fn space(&mut self) -> Result<()>;
}

fn unknown(handle: u32) -> Error {
    Error::Failed(format!("no file is open under the number {handle}"))
}

/// A client of a mounted tree.
pub(crate) struct MountedClient {
    tree: Mounted,
    files: HashMap<u32, File>,
}

impl MountedClient {
    pub(crate) fn new(tree: Mounted) -> Self {
        Self { tree, files: HashMap::new() }
    }

    fn file(&self, handle: u32) -> Result<&File> {
        self.files.get(&handle).ok_or_else(|| unknown(handle))
    }
}

/// A client of a volume through the library.
pub(crate) struct LibraryClient {
    tree: Library,
    files: HashMap<u32, InodeNo>,
}

impl LibraryClient {
    pub(crate) fn new(tree: Library) -> Self {
        Self { tree, files: HashMap::new() }
    }

    fn file(&self, handle: u32) -> Result<InodeNo> {
        self.files.get(&handle).copied().ok_or_else(|| unknown(handle))
    }
}

impl Client for MountedClient {
    fn tree(&mut self) -> &mut dyn FileOps {
        &mut self.tree
    }

    fn open(&mut self, handle: u32, path: &str, make: Make) -> Result<()> {
        let whole = self.tree.path(path);
        if make.directory && make.create {
            let made = std::fs::create_dir(&whole);
            if make.new {
                made.trying("make", &whole)?;
            }
        }
        let mut how = OpenOptions::new();
        how.read(true).write(!make.directory).truncate(make.empty);
        if !make.directory {
            how.create(make.create && !make.new).create_new(make.new);
        }
        let file = match how.open(&whole) {
            // a directory that was not opened as one
            Err(e) if e.raw_os_error() == Some(rustix::io::Errno::ISDIR.raw_os_error()) => File::open(&whole),
            other => other,
        };
        self.files.insert(handle, file.trying("open", &whole)?);
        Ok(())
    }

    fn close(&mut self, handle: u32) -> Result<()> {
        self.files.remove(&handle).map(drop).ok_or_else(|| unknown(handle))
    }

    fn close_all(&mut self) -> Result<()> {
        self.files.clear();
        Ok(())
    }

    fn read_some(&mut self, handle: u32, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.file(handle)?.read_at(buf, offset).trying("read in", self.tree.root())
    }

    fn write_all(&mut self, handle: u32, offset: u64, content: &[u8]) -> Result<()> {
        self.file(handle)?.write_all_at(content, offset).trying("write in", self.tree.root())
    }

    fn flush(&mut self, handle: u32) -> Result<()> {
        fsync(self.file(handle)?).map_err(std::io::Error::from).trying("sync in", self.tree.root())
    }

    fn look(&mut self, handle: u32) -> Result<()> {
        self.file(handle)?.metadata().map(drop).trying("stat a file in", self.tree.root())
    }

    fn touch(&mut self, handle: u32) -> Result<()> {
        let time = |tv_nsec| Timespec { tv_sec: 0, tv_nsec };
        let times = Timestamps { last_access: time(UTIME_OMIT), last_modification: time(UTIME_NOW) };
        futimens(self.file(handle)?, &times).map_err(std::io::Error::from).trying("touch in", self.tree.root())
    }

    fn list(&mut self, path: &str) -> Result<Vec<(String, bool)>> {
        let whole = self.tree.path(path);
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&whole).trying("list", &whole)? {
            let entry = entry.trying("list", &whole)?;
            let kind = entry.file_type().trying("list", &whole)?;
            names.push((entry.file_name().to_string_lossy().into_owned(), kind.is_dir()));
        }
        Ok(names)
    }

    fn rename(&mut self, old: &str, new: &str) -> Result<()> {
        let old = self.tree.path(old);
        std::fs::rename(&old, self.tree.path(new)).trying("rename", &old)
    }

    fn space(&mut self) -> Result<()> {
        statvfs(self.tree.root()).map(drop).map_err(std::io::Error::from).trying("statfs", self.tree.root())
    }
}

impl Client for LibraryClient {
    fn tree(&mut self) -> &mut dyn FileOps {
        &mut self.tree
    }

    fn open(&mut self, handle: u32, path: &str, make: Make) -> Result<()> {
        let kind = if make.directory { FileKind::Directory } else { FileKind::Regular };
        let mode = if make.directory { 0o755 } else { 0o644 };
        let file = match self.tree.find(path) {
            Ok(_) if make.new => return Err(Error::Failed(format!("{path} is there"))),
            Ok(file) => file,
            Err(_) if make.create => self.tree.make(path, kind, mode)?,
            Err(e) => return Err(e),
        };
        let volume = self.tree.volume();
        volume.add_lookup(file);
        if make.empty {
            volume.truncate(file, 0).map_err(|e| failed("cut", path, &e))?;
        }
        self.files.insert(handle, file);
        Ok(())
    }

    fn close(&mut self, handle: u32) -> Result<()> {
        let file = self.files.remove(&handle).ok_or_else(|| unknown(handle))?;
        self.tree.volume().forget(file, 1).map_err(|e| failed("close", "a file", &e))
    }

    fn close_all(&mut self) -> Result<()> {
        let handles: Vec<u32> = self.files.keys().copied().collect();
        handles.into_iter().try_for_each(|handle| self.close(handle))
    }

    fn read_some(&mut self, handle: u32, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let (volume, file) = (self.tree.volume(), self.file(handle)?);
        let read = volume.inode(file).and_then(|inode| volume.read_at(&inode, offset, buf));
        read.map_err(|e| failed("read", "a file", &e))
    }

    fn write_all(&mut self, handle: u32, offset: u64, content: &[u8]) -> Result<()> {
        self.tree.write(self.file(handle)?, "a file", offset, content)
    }

    fn flush(&mut self, handle: u32) -> Result<()> {
        self.tree.volume().fsync(self.file(handle)?, false).map_err(|e| failed("sync", "a file", &e))
    }

    fn look(&mut self, handle: u32) -> Result<()> {
        let seen = self.tree.volume().attributes_of(self.file(handle)?);
        seen.map(|seen| _ = std::hint::black_box(seen)).map_err(|e| failed("stat", "a file", &e))
    }

    fn touch(&mut self, handle: u32) -> Result<()> {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let now = fs::Timestamp { seconds: since.as_secs() as i64, nanos: since.subsec_nanos() };
        let set = SetAttributes { mtime: Some(now), ..SetAttributes::default() };
        self.tree.volume().set_attributes(self.file(handle)?, &set).map(drop).map_err(|e| failed("touch", "a file", &e))
    }

    fn list(&mut self, path: &str) -> Result<Vec<(String, bool)>> {
        let volume = self.tree.volume();
        let wrong = |e: fs::Error| failed("list", path, &e);
        let dir = volume.inode(self.tree.find(path)?).map_err(wrong)?;
        let mut names = Vec::new();
        for entry in volume.read_dir(&dir, 0).map_err(wrong)? {
            let entry = entry.map_err(wrong)?;
            if entry.name != b"." && entry.name != b".." {
                let is_dir = entry.kind == Some(FileKind::Directory);
                names.push((String::from_utf8_lossy(&entry.name).into_owned(), is_dir));
            }
        }
        Ok(names)
    }

    fn rename(&mut self, old: &str, new: &str) -> Result<()> {
        let (old_dir, old_name) = self.tree.parent(old)?;
        let (new_dir, new_name) = self.tree.parent(new)?;
        let renamed = self.tree.volume().rename(old_dir, old_name, new_dir, new_name, RenameFlags::default());
        renamed.map_err(|e| failed("rename", old, &e))
    }

    fn space(&mut self) -> Result<()> {
        std::hint::black_box(self.tree.volume().statfs());
        Ok(())
    }
}
