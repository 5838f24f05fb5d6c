//! A tree of this machine into a volume, as `cp -a` copies it.

use super::reach::Reach;
use super::{FileAttributes, Filler, Input, Place, Stop};
use crate::progress::Bar;
use crate::trail::Trail;
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

/// Copies of trees into one volume, which share their hard links.
pub(crate) struct Folder<'f, 'v> {
    filler: &'f mut Filler<'v>,
    /// Files with several names, by device and inode, and what they became.
    linked: HashMap<(u64, u64), InodeNo>,
    /// Device and inode of the file that holds the volume: it is not copied into itself.
    own: Option<(u64, u64)>,
}

/// Where a copy is. Both paths are as long as the tree is deep, so they are there once, and not at each level.
struct Way {
    from: Reach,
    /// The path in the volume.
    into: Trail,
}

impl Way {
    fn new(source: &Path, path: &[u8]) -> Self {
        Self { from: Reach::new(source), into: Trail::new(path) }
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

/// A directory that is being copied.
struct Level {
    number: InodeNo,
    names: std::vec::IntoIter<OsString>,
    /// What it gets in the end, where it is to get any.
    attributes: Option<FileAttributes>,
}

impl<'f, 'v> Folder<'f, 'v> {
    /// `device` is the path of the volume, where it has one.
    pub(crate) fn new(filler: &'f mut Filler<'v>, device: impl AsRef<Path>) -> Self {
        let own = std::fs::metadata(device).ok().map(|metadata| (metadata.dev(), metadata.ino()));
        Self { filler, linked: HashMap::new(), own }
    }

    /// Copies what is in a folder into a directory of the volume, which gets what the folder has where `attributes` says so
    /// (with what `change` makes of it).
    pub(crate) fn contents(
        &mut self,
        source: &Path,
        into: InodeNo,
        path: &[u8],
        change: Option<&dyn Fn(&mut FileAttributes)>,
    ) -> Result<(), Stop> {
        let mut way = Way::new(source, path);
        let Some(metadata) = self.metadata(&way, true) else { return Ok(()) };
        let attributes = change.map(|change| {
            let mut attributes = self.attributes_of(&way, &metadata);
            change(&mut attributes);
            attributes
        });
        let level = self.level(&mut way, into, attributes);
        self.levels(&mut way, Vec::from_iter(level))
    }

    /// Copies a file or folder to a place in the volume.
    pub(crate) fn one(&mut self, source: &Path, place: Place<'_>, path: &[u8]) -> Result<(), Stop> {
        let mut way = Way::new(source, path);
        let level = self.entry(&mut way, place)?;
        self.levels(&mut way, Vec::from_iter(level))
    }

    /// Makes a file of what standard input gives, owned by who runs this.
    pub(crate) fn standard_input(&mut self, place: Place<'_>, path: &[u8], now: Timestamp) -> Result<(), Stop> {
        let Some(number) = self.filler.node(place, path, FileKind::Regular, (0, 0))? else { return Ok(()) };
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

    pub(crate) fn complain_of_source(&mut self, name: &[u8], why: impl ToString) {
        self.filler.complain_of_source(name, why);
    }

    fn levels(&mut self, way: &mut Way, mut levels: Vec<Level>) -> Result<(), Stop> {
        while let Some(level) = levels.last_mut() {
            let Some(name) = level.names.next() else {
                if let Some(Level { number, attributes: Some(attributes), .. }) = levels.pop() {
                    self.filler.set_attributes(number, way.into.path(), &attributes)?;
                }
                way.leave();
                continue;
            };
            let into = level.number;
            way.enter(name.as_bytes());
            match self.entry(way, (into, name.as_bytes()))? {
                Some(level) => levels.push(level),
                None => way.leave(),
            }
        }
        Ok(())
    }

    /// Copies what is at the end of the way; a directory without what is in it, which is for the caller.
    fn entry(&mut self, way: &mut Way, place: Place<'_>) -> Result<Option<Level>, Stop> {
        let Some(metadata) = self.metadata(way, false) else { return Ok(None) };
        if metadata.is_dir() {
            return self.enter(way, &metadata, place);
        }
        self.leaf(way, &metadata, place)?;
        Ok(None)
    }

    fn metadata(&mut self, way: &Way, follow: bool) -> Option<Metadata> {
        way.from.metadata(follow).map_err(|e| self.wrong(way, e)).ok()
    }

    fn wrong(&mut self, way: &Way, why: impl ToString) {
        self.filler.complain_of_source(way.from.path(), why);
    }

    /// Makes a directory, or joins one that exists and keeps its looks.
    fn enter(&mut self, way: &mut Way, metadata: &Metadata, place: Place<'_>) -> Result<Option<Level>, Stop> {
        let Some((number, new)) = self.filler.directory(place, way.into.path())? else { return Ok(None) };
        let attributes = (new || self.filler.force).then(|| self.attributes_of(way, metadata));
        Ok(self.level(way, number, attributes))
    }

    fn level(&mut self, way: &mut Way, number: InodeNo, attributes: Option<FileAttributes>) -> Option<Level> {
        match way.from.names() {
            Ok(mut names) => {
                // the same folder makes the same volume
                names.sort_unstable();
                Some(Level { number, names: names.into_iter(), attributes })
            }
            Err(e) => {
                self.wrong(way, e);
                None
            }
        }
    }

    /// Copies what is no directory.
    fn leaf(&mut self, way: &Way, metadata: &Metadata, place: Place<'_>) -> Result<(), Stop> {
        let path = way.into.path();
        let identity = (metadata.dev(), metadata.ino());
        if self.own == Some(identity) {
            self.wrong(way, "this is the volume itself, and is left out");
            return Ok(());
        }
        if let Some(number) = self.linked.get(&identity) {
            return self.filler.link(*number, place, path);
        }
        let kind = metadata.file_type();
        let number = if kind.is_file() {
            self.regular(way, metadata, place)?
        } else if kind.is_symlink() {
            match way.from.link() {
                Ok(target) => self.filler.symlink(place, path, &target)?,
                Err(e) => {
                    self.wrong(way, e);
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
            self.filler.node(place, path, node, device)?
        };
        let Some(number) = number else { return Ok(()) };
        if metadata.nlink() > 1 {
            self.linked.insert(identity, number);
        }
        let attributes = self.attributes_of(way, metadata);
        self.filler.set_attributes(number, path, &attributes)
    }

    fn regular(&mut self, way: &Way, metadata: &Metadata, place: Place<'_>) -> Result<Option<InodeNo>, Stop> {
        let path = way.into.path();
        // before there is a file that would stay empty
        let file = match way.from.open() {
            Ok(file) => file,
            Err(e) => {
                self.wrong(way, e);
                return Ok(None);
            }
        };
        let Some(number) = self.filler.node(place, path, FileKind::Regular, (0, 0))? else { return Ok(None) };
        let end = self.content(&file, way, number)?;
        self.filler.set_len(number, path, end.max(metadata.len()))?;
        Ok(Some(number))
    }

    /// Copies the data of a file and leaves the holes. Where the data ends.
    fn content(&mut self, mut file: &File, way: &Way, number: InodeNo) -> Result<u64, Stop> {
        let path = way.into.path();
        let mut at = 0;
        loop {
            let start = match rustix::fs::seek(file, rustix::fs::SeekFrom::Data(at)) {
                Ok(start) => start,
                // nothing but a hole up to the end
                Err(Errno::NXIO) => return Ok(at),
                // a file system that does not tell holes
                Err(Errno::INVAL) if at == 0 => {
                    return self.filler.stream(number, path, &mut file, (0, u64::MAX));
                }
                Err(e) => {
                    self.wrong(way, e);
                    self.filler.incomplete();
                    return Ok(at);
                }
            };
            let end = rustix::fs::seek(file, rustix::fs::SeekFrom::Hole(start)).unwrap_or(u64::MAX);
            if let Err(e) = rustix::fs::seek(file, rustix::fs::SeekFrom::Start(start)) {
                self.wrong(way, e);
                self.filler.incomplete();
                return Ok(at);
            }
            let most = end.saturating_sub(start);
            at = self.filler.stream(number, path, &mut file, (start, most))?;
            if at < end {
                // it is shorter than it was, or could not be read
                return Ok(at);
            }
        }
    }

    /// What a file looks like; complains of attributes that cannot be read.
    fn attributes_of(&mut self, way: &Way, metadata: &Metadata) -> FileAttributes {
        let xattrs = way.from.xattrs().unwrap_or_else(|e| {
            self.wrong(way, format!("extended attributes: {e}"));
            Vec::new()
        });
        // nanoseconds are under a second's worth
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

/// About how many bytes of data a file has, or all files below a folder have.
pub(crate) fn bytes_below(source: &Path, counting: &Bar) -> u64 {
    let mut folders = vec![source.to_owned()];
    let mut bytes = 0u64;
    while let Some(path) = folders.pop() {
        counting.advance(1);
        // what cannot be read is complained of when it is copied
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
