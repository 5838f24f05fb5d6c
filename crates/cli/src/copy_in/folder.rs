//! Copies a tree of this machine into a volume, as `cp -a` does.

use super::reach::Reach;
use super::{FileAttributes, Filler, Input, ParentAndName, Stop};
use crate::error_report::{say, short};
use crate::path_stack::PathStack;
use crate::progress::Bar;
use fs::{FileKind, InodeNo, Timestamp};
use rustix::fs::{major, minor};
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

/// Copies trees into one volume, with hard links between them.
pub(crate) struct Folder<'f, 'v> {
    filler: &'f mut Filler<'v>,
    /// Files with several names: device and inode of the source, inode of the copy.
    linked: HashMap<(u64, u64), InodeNo>,
    /// Device and inode of the file that contains the volume: it is not copied into itself.
    own: Option<(u64, u64)>,
}

/// The position of a copy. Both paths are as long as the tree is deep, so they are stored once, not per level.
struct Paths {
    from: Reach,
    /// The path in the volume.
    into: PathStack,
}

impl Paths {
    fn new(source: &Path, path: &[u8]) -> Self {
        Self { from: Reach::new(source), into: PathStack::new(path) }
    }

    fn enter(&mut self, name: &[u8]) {
        self.from.enter(name);
        self.into.enter(name);
    }

    fn leave(&mut self) {
        self.from.leave();
        self.into.leave();
    }
}

/// A directory being copied.
struct Level {
    number: InodeNo,
    names: std::vec::IntoIter<OsString>,
    /// Set at the end; `None` if the directory's attributes do not change.
    attributes: Option<FileAttributes>,
}

impl<'f, 'v> Folder<'f, 'v> {
    /// `device` is the path of the volume, if it has one.
    pub(crate) fn new(filler: &'f mut Filler<'v>, device: impl AsRef<Path>) -> Self {
        let own = std::fs::metadata(device).ok().map(|metadata| (metadata.dev(), metadata.ino()));
        Self { filler, linked: HashMap::new(), own }
    }

    /// Copies the content of a folder into a directory of the volume. With `change`, the directory gets the folder's
    /// attributes after that modification.
    pub(crate) fn contents(
        &mut self,
        source: &Path,
        into: InodeNo,
        path: &[u8],
        change: Option<&dyn Fn(&mut FileAttributes)>,
    ) -> Result<(), Stop> {
        let mut paths = Paths::new(source, path);
        let Some(metadata) = self.metadata(&paths, true) else { return Ok(()) };
        let attributes = change.map(|change| {
            let mut attributes = self.attributes_of(&paths, &metadata);
            change(&mut attributes);
            attributes
        });
        let level = self.level(&mut paths, into, attributes);
        self.levels(&mut paths, Vec::from_iter(level))
    }

    /// Copies a file or folder into a directory of the volume, under the specified name. The file that contains the
    /// volume is an error, unlike where it is found in a folder.
    pub(crate) fn one(&mut self, source: &Path, to: ParentAndName<'_>, path: &[u8]) -> Result<(), Stop> {
        let mut paths = Paths::new(source, path);
        let identity = paths.from.metadata(false).map(|metadata| (metadata.dev(), metadata.ino()));
        if self.own.is_some() && self.own == identity.ok() {
            self.wrong(&paths, "it is the image being written");
            return Ok(());
        }
        let level = self.entry(&mut paths, to)?;
        self.levels(&mut paths, Vec::from_iter(level))
    }

    /// Creates a file from standard input, owned by the user of this process.
    pub(crate) fn standard_input(&mut self, to: ParentAndName<'_>, path: &[u8], now: Timestamp) -> Result<(), Stop> {
        let Some(number) = self.filler.node(to, path, FileKind::Regular, (0, 0))? else { return Ok(()) };
        let mut input = Input::new(io::stdin(), Arc::clone(&self.filler.interrupted));
        self.filler.stream(number, path, &mut input, (0, u64::MAX))?;
        let attributes = FileAttributes {
            mode: 0o644,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            atime: now,
            mtime: now,
            xattrs: Vec::new(),
        };
        self.filler.set_attributes(number, path, &attributes)
    }

    pub(crate) fn report_source_error(&mut self, name: &[u8], why: impl ToString) {
        self.filler.report_source_error(name, why);
    }

    fn levels(&mut self, paths: &mut Paths, mut levels: Vec<Level>) -> Result<(), Stop> {
        while let Some(level) = levels.last_mut() {
            let Some(name) = level.names.next() else {
                if let Some(Level { number, attributes: Some(attributes), .. }) = levels.pop() {
                    self.filler.set_attributes(number, paths.into.path(), &attributes)?;
                }
                paths.leave();
                continue;
            };
            let into = level.number;
            paths.enter(name.as_bytes());
            match self.entry(paths, (into, name.as_bytes()))? {
                Some(level) => levels.push(level),
                None => paths.leave(),
            }
        }
        Ok(())
    }

    /// Copies the file at the end of the path; for a directory, the content is left to the caller.
    fn entry(&mut self, paths: &mut Paths, to: ParentAndName<'_>) -> Result<Option<Level>, Stop> {
        let Some(metadata) = self.metadata(paths, false) else { return Ok(None) };
        if metadata.is_dir() {
            return self.enter(paths, &metadata, to);
        }
        self.leaf(paths, &metadata, to)?;
        Ok(None)
    }

    fn metadata(&mut self, paths: &Paths, follow: bool) -> Option<Metadata> {
        paths.from.metadata(follow).map_err(|e| self.wrong(paths, e)).ok()
    }

    fn wrong(&mut self, paths: &Paths, why: impl ToString) {
        self.filler.report_source_error(paths.from.path(), why);
    }

    /// Creates a directory, or uses an existing one, whose attributes do not change.
    fn enter(&mut self, paths: &mut Paths, metadata: &Metadata, to: ParentAndName<'_>) -> Result<Option<Level>, Stop> {
        let Some((number, new)) = self.filler.directory(to, paths.into.path())? else { return Ok(None) };
        let attributes = (new || self.filler.force).then(|| self.attributes_of(paths, metadata));
        Ok(self.level(paths, number, attributes))
    }

    fn level(&mut self, paths: &mut Paths, number: InodeNo, attributes: Option<FileAttributes>) -> Option<Level> {
        match paths.from.names() {
            Ok(mut names) => {
                // equal folders make equal volumes
                names.sort_unstable();
                Some(Level { number, names: names.into_iter(), attributes })
            }
            Err(e) => {
                self.wrong(paths, e);
                None
            }
        }
    }

    /// Copies a file that is not a directory.
    fn leaf(&mut self, paths: &Paths, metadata: &Metadata, to: ParentAndName<'_>) -> Result<(), Stop> {
        let path = paths.into.path();
        let identity = (metadata.dev(), metadata.ino());
        if self.own == Some(identity) {
            // expected where the image is inside the folder: not a failure
            say(&format!("{}: skipped: it is the image being written", short(paths.from.path())));
            return Ok(());
        }
        if let Some(number) = self.linked.get(&identity) {
            return self.filler.link(*number, to, path);
        }
        let kind = metadata.file_type();
        let number = if kind.is_file() {
            self.regular(paths, metadata, to)?
        } else if kind.is_symlink() {
            match paths.from.link() {
                Ok(target) => self.filler.symlink(to, path, &target)?,
                Err(e) => {
                    self.wrong(paths, e);
                    None
                }
            }
        } else {
            let node = if kind.is_char_device() {
                FileKind::CharDevice
            } else if kind.is_block_device() {
                FileKind::BlockDevice
            } else if kind.is_fifo() {
                FileKind::Fifo
            } else {
                FileKind::Socket
            };
            let device = (major(metadata.rdev()), minor(metadata.rdev()));
            self.filler.node(to, path, node, device)?
        };
        let Some(number) = number else { return Ok(()) };
        if metadata.nlink() > 1 {
            self.linked.insert(identity, number);
        }
        let attributes = self.attributes_of(paths, metadata);
        self.filler.set_attributes(number, path, &attributes)
    }

    fn regular(&mut self, paths: &Paths, metadata: &Metadata, to: ParentAndName<'_>) -> Result<Option<InodeNo>, Stop> {
        let path = paths.into.path();
        // before an empty file is created
        let file = match paths.from.open() {
            Ok(file) => file,
            Err(e) => {
                self.wrong(paths, e);
                return Ok(None);
            }
        };
        let Some(number) = self.filler.node(to, path, FileKind::Regular, (0, 0))? else { return Ok(None) };
        let end = self.content(&file, paths, number)?;
        self.filler.set_len(number, path, end.max(metadata.len()))?;
        Ok(Some(number))
    }

    /// Copies the data of a file and omits the holes; returns the offset where the data ends.
    fn content(&mut self, mut file: &File, paths: &Paths, number: InodeNo) -> Result<u64, Stop> {
        let path = paths.into.path();
        let mut at = 0;
        loop {
            let start = match rustix::fs::seek(file, rustix::fs::SeekFrom::Data(at)) {
                Ok(start) => start,
                // only a hole remains
                Err(Errno::NXIO) => return Ok(at),
                // a file system without SEEK_DATA
                Err(Errno::INVAL) if at == 0 => {
                    return self.filler.stream(number, path, &mut file, (0, u64::MAX));
                }
                Err(e) => {
                    self.wrong(paths, e);
                    self.filler.incomplete();
                    return Ok(at);
                }
            };
            let end = rustix::fs::seek(file, rustix::fs::SeekFrom::Hole(start)).unwrap_or(u64::MAX);
            if let Err(e) = rustix::fs::seek(file, rustix::fs::SeekFrom::Start(start)) {
                self.wrong(paths, e);
                self.filler.incomplete();
                return Ok(at);
            }
            let most = end.saturating_sub(start);
            at = self.filler.stream(number, path, &mut file, (start, most))?;
            if at < end {
                // the file was truncated meanwhile, or could not be read
                return Ok(at);
            }
        }
    }

    /// The attributes of a file; reports those that cannot be read.
    fn attributes_of(&mut self, paths: &Paths, metadata: &Metadata) -> FileAttributes {
        let xattrs = paths.from.xattrs().unwrap_or_else(|e| {
            self.wrong(paths, format!("extended attributes: {e}"));
            Vec::new()
        });
        // nanoseconds are below 10^9
        let time = |seconds, nanos: i64| Timestamp { seconds, nanos: nanos as u32 };
        FileAttributes {
            mode: (metadata.mode() & 0o7777) as u16,
            uid: metadata.uid(),
            gid: metadata.gid(),
            atime: time(metadata.atime(), metadata.atime_nsec()),
            mtime: time(metadata.mtime(), metadata.mtime_nsec()),
            xattrs,
        }
    }
}

/// Approximate number of bytes of data in a file, or in all files below a folder.
pub(crate) fn bytes_below(source: &Path, counting: &Bar) -> u64 {
    let mut folders = vec![source.to_owned()];
    let mut bytes = 0u64;
    while let Some(path) = folders.pop() {
        counting.advance(1);
        // the copy reports unreadable files
        let Ok(metadata) = path.symlink_metadata() else { continue };
        if metadata.is_dir() {
            let entries = std::fs::read_dir(&path).into_iter().flatten().flatten();
            folders.extend(entries.map(|entry| entry.path()));
        } else if metadata.is_file() {
            bytes = bytes.saturating_add(metadata.len().min(metadata.blocks().saturating_mul(512)));
        }
    }
    bytes
}
