//! A tree of this machine into a volume, as `cp -a` copies it.

use super::{Dress, Filler, Input, Place, Stop};
use crate::ls::join;
use crate::progress::Bar;
use fs::{FileKind, InodeNo, Timestamp};
use rustix::fs::{lgetxattr, llistxattr, major, minor};
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::{CStr, OsString};
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Copies of trees into one volume, which share their hard links.
pub(crate) struct Folder<'f, 'v> {
    filler: &'f mut Filler<'v>,
    /// Files with several names, by device and inode, and what they became.
    linked: HashMap<(u64, u64), InodeNo>,
    /// Device and inode of the file that holds the volume: it is not copied into itself.
    own: Option<(u64, u64)>,
}

/// A directory that is being copied.
struct Level {
    source: PathBuf,
    number: InodeNo,
    path: Vec<u8>,
    names: std::vec::IntoIter<OsString>,
    /// What it is dressed as at the end, where it is to be.
    dress: Option<Dress>,
}

impl<'f, 'v> Folder<'f, 'v> {
    /// `device` is the path of the volume, where it has one.
    pub(crate) fn new(filler: &'f mut Filler<'v>, device: &str) -> Self {
        let own = std::fs::metadata(device).ok().map(|metadata| (metadata.dev(), metadata.ino()));
        Self { filler, linked: HashMap::new(), own }
    }

    /// Copies what is in a folder into a directory of the volume, which is dressed as the folder where `dress` says so
    /// (with what `change` makes of it).
    pub(crate) fn contents(
        &mut self,
        source: &Path,
        into: InodeNo,
        path: &[u8],
        change: Option<&dyn Fn(&mut Dress)>,
    ) -> Result<(), Stop> {
        let Some(metadata) = self.metadata(source, true) else { return Ok(()) };
        let dress = change.map(|change| {
            let mut dress = self.dress_of(source, &metadata);
            change(&mut dress);
            dress
        });
        let level = self.level(source.to_owned(), into, path.to_vec(), dress);
        self.levels(Vec::from_iter(level))
    }

    /// Copies a file or folder to a place in the volume.
    pub(crate) fn one(&mut self, source: &Path, place: Place<'_>, path: &[u8]) -> Result<(), Stop> {
        let Some(metadata) = self.metadata(source, false) else { return Ok(()) };
        if !metadata.is_dir() {
            return self.leaf(source, &metadata, place, path);
        }
        let Some(level) = self.enter(source.to_owned(), &metadata, place, path.to_vec())? else { return Ok(()) };
        self.levels(vec![level])
    }

    /// Makes a file of what standard input gives, owned by who runs this.
    pub(crate) fn standard_input(&mut self, place: Place<'_>, path: &[u8], now: Timestamp) -> Result<(), Stop> {
        let Some(number) = self.filler.node(place, path, FileKind::Regular, (0, 0))? else { return Ok(()) };
        let mut input = Input::new(io::stdin(), Arc::clone(&self.filler.interrupted));
        self.filler.stream(number, path, &mut input, (0, u64::MAX))?;
        let dress = Dress {
            mode: 0o644,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            atime: now,
            mtime: now,
            xattrs: Vec::new(),
        };
        self.filler.dress(number, path, &dress)
    }

    pub(crate) fn complain_of_source(&mut self, name: &[u8], why: impl ToString) {
        self.filler.complain_of_source(name, why);
    }

    fn levels(&mut self, mut levels: Vec<Level>) -> Result<(), Stop> {
        while let Some(level) = levels.last_mut() {
            let Some(name) = level.names.next() else {
                if let Some(Level { number, path, dress: Some(dress), .. }) = levels.pop() {
                    self.filler.dress(number, &path, &dress)?;
                }
                continue;
            };
            let (source, path, into) = (level.source.join(&name), join(&level.path, name.as_bytes()), level.number);
            let Some(metadata) = self.metadata(&source, false) else { continue };
            let place = (into, name.as_bytes());
            if metadata.is_dir() {
                levels.extend(self.enter(source, &metadata, place, path)?);
            } else {
                self.leaf(&source, &metadata, place, &path)?;
            }
        }
        Ok(())
    }

    fn metadata(&mut self, source: &Path, follow: bool) -> Option<Metadata> {
        let metadata = if follow { source.metadata() } else { source.symlink_metadata() };
        metadata.map_err(|e| self.wrong(source, e)).ok()
    }

    fn wrong(&mut self, source: &Path, why: impl ToString) {
        self.filler.complain_of_source(source.as_os_str().as_bytes(), why);
    }

    /// Makes a directory, or joins one that exists and keeps its looks.
    fn enter(
        &mut self,
        source: PathBuf,
        metadata: &Metadata,
        place: Place<'_>,
        path: Vec<u8>,
    ) -> Result<Option<Level>, Stop> {
        let Some((number, new)) = self.filler.directory(place, &path)? else { return Ok(None) };
        let dress = (new || self.filler.force).then(|| self.dress_of(&source, metadata));
        Ok(self.level(source, number, path, dress))
    }

    fn level(&mut self, source: PathBuf, number: InodeNo, path: Vec<u8>, dress: Option<Dress>) -> Option<Level> {
        let names = std::fs::read_dir(&source)
            .and_then(|entries| entries.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<_>>>());
        match names {
            Ok(mut names) => {
                // the same folder makes the same volume
                names.sort_unstable();
                Some(Level { source, number, path, names: names.into_iter(), dress })
            }
            Err(e) => {
                self.wrong(&source, e);
                None
            }
        }
    }

    /// Copies what is no directory.
    fn leaf(&mut self, source: &Path, metadata: &Metadata, place: Place<'_>, path: &[u8]) -> Result<(), Stop> {
        let identity = (metadata.dev(), metadata.ino());
        if self.own == Some(identity) {
            self.wrong(source, "this is the volume itself, and is left out");
            return Ok(());
        }
        if let Some(number) = self.linked.get(&identity) {
            return self.filler.link(*number, place, path);
        }
        let kind = metadata.file_type();
        let number = if kind.is_file() {
            self.regular(source, metadata, place, path)?
        } else if kind.is_symlink() {
            match std::fs::read_link(source) {
                Ok(target) => self.filler.symlink(place, path, &target.into_os_string().into_vec())?,
                Err(e) => {
                    self.wrong(source, e);
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
        let dress = self.dress_of(source, metadata);
        self.filler.dress(number, path, &dress)
    }

    fn regular(
        &mut self,
        source: &Path,
        metadata: &Metadata,
        place: Place<'_>,
        path: &[u8],
    ) -> Result<Option<InodeNo>, Stop> {
        // before there is a file that would stay empty
        let file = match File::open(source) {
            Ok(file) => file,
            Err(e) => {
                self.wrong(source, e);
                return Ok(None);
            }
        };
        let Some(number) = self.filler.node(place, path, FileKind::Regular, (0, 0))? else { return Ok(None) };
        let end = self.content(&file, source, number, path)?;
        self.filler.set_len(number, path, end.max(metadata.len()))?;
        Ok(Some(number))
    }

    /// Copies the data of a file and leaves the holes. Where the data ends.
    fn content(&mut self, mut file: &File, source: &Path, number: InodeNo, path: &[u8]) -> Result<u64, Stop> {
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
                    self.wrong(source, e);
                    self.filler.incomplete();
                    return Ok(at);
                }
            };
            let end = rustix::fs::seek(file, rustix::fs::SeekFrom::Hole(start)).unwrap_or(u64::MAX);
            if let Err(e) = rustix::fs::seek(file, rustix::fs::SeekFrom::Start(start)) {
                self.wrong(source, e);
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
    fn dress_of(&mut self, source: &Path, metadata: &Metadata) -> Dress {
        let xattrs = xattrs(source).unwrap_or_else(|e| {
            self.wrong(source, format!("extended attributes: {e}"));
            Vec::new()
        });
        // nanoseconds are under a second's worth
        let time = |seconds, nanos: i64| Timestamp { seconds, nanos: nanos as u32 };
        Dress {
            mode: (metadata.mode() & 0o7777) as u16,
            uid: metadata.uid(),
            gid: metadata.gid(),
            atime: time(metadata.atime(), metadata.atime_nsec()),
            mtime: time(metadata.mtime(), metadata.mtime_nsec()),
            xattrs,
        }
    }
}

/// The extended attributes of a file, itself and not what it links to.
fn xattrs(source: &Path) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    // the largest that Linux gives out
    let mut names = vec![0; 65536];
    let len = match llistxattr(source, &mut names) {
        Ok(len) => len,
        Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
        Err(e) => return Err(e.into()),
    };
    names.truncate(len);
    let mut found = Vec::new();
    for name in names.split_inclusive(|byte| *byte == 0) {
        let Ok(name) = CStr::from_bytes_with_nul(name) else { continue };
        let mut value = vec![0; 65536];
        match lgetxattr(source, name, &mut value) {
            Ok(len) => value.truncate(len),
            Err(Errno::NODATA) => continue,
            Err(e) => return Err(e.into()),
        }
        found.push((name.to_bytes().to_vec(), value));
    }
    Ok(found)
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
