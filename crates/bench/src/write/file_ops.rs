//! The file operations of a workload, on a mounted tree or on a volume through the library.

use crate::error::Trying;
use crate::{Error, Result};
use fs::{FileKind, InodeNo, NewFile, Volume};
use std::fs::{self as std_fs, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A tree. Paths are relative to its root, with `/` between names.
pub(crate) trait FileOps {
    /// Creates a file, which must not exist, with this content.
    fn create(&mut self, path: &str, content: &[u8]) -> Result<()>;
    fn mkdir(&mut self, path: &str) -> Result<()>;
    /// Reads the attributes of stat(2).
    fn stat(&mut self, path: &str) -> Result<()>;
    /// Reads the attributes and the time of creation.
    fn statx(&mut self, path: &str) -> Result<()>;
    /// Reads a whole file and returns its length.
    fn read(&mut self, path: &str) -> Result<u64>;
    fn append(&mut self, path: &str, content: &[u8]) -> Result<()>;
    fn unlink(&mut self, path: &str) -> Result<()>;
    fn rmdir(&mut self, path: &str) -> Result<()>;
    /// Writes into an existing file, which remains open for the next call.
    fn write_at(&mut self, path: &str, offset: u64, content: &[u8]) -> Result<()>;
    /// Fills `buf` from a file, which remains open for the next call.
    fn read_at(&mut self, path: &str, offset: u64, buf: &mut [u8]) -> Result<()>;
    fn fsync(&mut self, path: &str) -> Result<()>;
    /// Makes the whole tree durable.
    fn sync(&mut self) -> Result<()>;
}

/// A mounted tree.
pub(crate) struct Mounted {
    root: PathBuf,
    /// The volume's file.
    image: PathBuf,
    /// The file that was used last.
    open: Option<(String, File)>,
    buf: Vec<u8>,
}

impl Mounted {
    pub(crate) fn new(root: &Path, image: &Path) -> Self {
        Self { root: root.to_owned(), image: image.to_owned(), open: None, buf: vec![0; 64 << 10] }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    fn file(&mut self, path: &str) -> Result<&File> {
        if self.open.as_ref().is_none_or(|(name, _)| name != path) {
            let whole = self.path(path);
            let file = OpenOptions::new().read(true).write(true).open(&whole).trying("open", &whole)?;
            self.open = Some((path.to_owned(), file));
        }
        match &self.open {
            Some((_, file)) => Ok(file),
            None => Err(Error::Failed("the open file is missing".into())),
        }
    }
}

impl FileOps for Mounted {
    fn create(&mut self, path: &str, content: &[u8]) -> Result<()> {
        let path = self.path(path);
        let mut file = File::create_new(&path).trying("make", &path)?;
        if content.is_empty() { Ok(()) } else { file.write_all(content).trying("write to", &path) }
    }

    fn mkdir(&mut self, path: &str) -> Result<()> {
        let path = self.path(path);
        std_fs::create_dir(&path).trying("make", &path)
    }

    fn stat(&mut self, path: &str) -> Result<()> {
        let path = self.path(path);
        // the standard library's also requests the time of creation
        rustix::fs::lstat(&path).map(drop).map_err(std::io::Error::from).trying("stat", &path)
    }

    fn statx(&mut self, path: &str) -> Result<()> {
        use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
        let path = self.path(path);
        let asked = statx(CWD, &path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BASIC_STATS | StatxFlags::BTIME);
        asked.map(drop).map_err(std::io::Error::from).trying("stat", &path)
    }

    fn read(&mut self, path: &str) -> Result<u64> {
        let path = self.path(path);
        let file = File::open(&path).trying("open", &path)?;
        let mut at = 0;
        loop {
            let read = file.read_at(&mut self.buf, at).trying("read", &path)?;
            at += read as u64;
            if read < self.buf.len() {
                return Ok(at);
            }
        }
    }

    fn append(&mut self, path: &str, content: &[u8]) -> Result<()> {
        let path = self.path(path);
        let mut file = OpenOptions::new().append(true).open(&path).trying("open", &path)?;
        file.write_all(content).trying("write to", &path)
    }

    fn unlink(&mut self, path: &str) -> Result<()> {
        let path = self.path(path);
        std_fs::remove_file(&path).trying("remove", &path)
    }

    fn rmdir(&mut self, path: &str) -> Result<()> {
        let path = self.path(path);
        std_fs::remove_dir(&path).trying("remove", &path)
    }

    fn write_at(&mut self, path: &str, offset: u64, content: &[u8]) -> Result<()> {
        let whole = self.path(path);
        self.file(path)?.write_all_at(content, offset).trying("write to", &whole)
    }

    fn read_at(&mut self, path: &str, offset: u64, buf: &mut [u8]) -> Result<()> {
        let whole = self.path(path);
        self.file(path)?.read_exact_at(buf, offset).trying("read", &whole)
    }

    fn fsync(&mut self, path: &str) -> Result<()> {
        let whole = self.path(path);
        self.file(path)?.sync_all().trying("sync", &whole)
    }

    fn sync(&mut self) -> Result<()> {
        self.open = None;
        let root = File::open(&self.root).trying("open", &self.root)?;
        // a FUSE file system without a block device does not receive syncfs(2), but fsync(2) of a directory
        root.sync_all().trying("sync", &self.root)?;
        rustix::fs::syncfs(&root).map_err(std::io::Error::from).trying("sync", &self.root)?;
        // fuse2fs leaves its writes in the page cache of the volume's file; for the others nothing remains to be done
        File::open(&self.image).and_then(|image| image.sync_data()).trying("sync", &self.image)
    }
}

/// A volume through the library: no FUSE, no kernel.
pub(crate) struct Library {
    volume: Arc<Volume>,
}

impl Library {
    pub(crate) fn new(volume: Arc<Volume>) -> Self {
        Self { volume }
    }

    pub(crate) fn volume(&self) -> &Volume {
        &self.volume
    }

    pub(crate) fn find(&self, path: &str) -> Result<InodeNo> {
        path.split('/').try_fold(InodeNo::ROOT, |dir, name| {
            let dir = self.volume.inode(dir).map_err(|e| failed("look up", path, &e))?;
            self.volume.lookup(&dir, name.as_bytes()).map_err(|e| failed("look up", path, &e))
        })
    }

    /// The parent directory of a path, and its last name.
    pub(crate) fn parent<'p>(&self, path: &'p str) -> Result<(InodeNo, &'p [u8])> {
        match path.rsplit_once('/') {
            Some((dir, name)) => Ok((self.find(dir)?, name.as_bytes())),
            None => Ok((InodeNo::ROOT, path.as_bytes())),
        }
    }

    pub(crate) fn make(&self, path: &str, kind: FileKind, mode: u16) -> Result<InodeNo> {
        let (dir, name) = self.parent(path)?;
        let new = NewFile { kind, mode, umask: 0, uid: 0, gid: 0, device: (0, 0) };
        let made = self.volume.create(dir, name, &new).map_err(|e| failed("make", path, &e))?;
        Ok(made.number)
    }

    pub(crate) fn write(&self, file: InodeNo, path: &str, offset: u64, content: &[u8]) -> Result<()> {
        let written = self.volume.write_at(file, offset, content).map_err(|e| failed("write to", path, &e))?;
        if written == content.len() { Ok(()) } else { Err(Error::Failed(format!("{path}: written only in part"))) }
    }
}

pub(crate) fn failed(what: &str, path: &str, e: &fs::Error) -> Error {
    Error::Failed(format!("cannot {what} {path}: {e}"))
}

impl FileOps for Library {
    fn create(&mut self, path: &str, content: &[u8]) -> Result<()> {
        let file = self.make(path, FileKind::Regular, 0o644)?;
        if content.is_empty() { Ok(()) } else { self.write(file, path, 0, content) }
    }

    fn mkdir(&mut self, path: &str) -> Result<()> {
        self.make(path, FileKind::Directory, 0o755).map(drop)
    }

    fn stat(&mut self, path: &str) -> Result<()> {
        let inode = self.volume.inode(self.find(path)?).map_err(|e| failed("stat", path, &e))?;
        std::hint::black_box(self.volume.attributes(&inode));
        Ok(())
    }

    fn statx(&mut self, path: &str) -> Result<()> {
        self.stat(path)
    }

    fn read(&mut self, path: &str) -> Result<u64> {
        let inode = self.volume.inode(self.find(path)?).map_err(|e| failed("read", path, &e))?;
        let size = self.volume.attributes(&inode).size;
        let mut buf = vec![0; usize::try_from(size).unwrap_or(usize::MAX)];
        Ok(self.volume.read_at(&inode, 0, &mut buf).map_err(|e| failed("read", path, &e))? as u64)
    }

    fn append(&mut self, path: &str, content: &[u8]) -> Result<()> {
        let file = self.find(path)?;
        let inode = self.volume.inode(file).map_err(|e| failed("write to", path, &e))?;
        self.write(file, path, self.volume.attributes(&inode).size, content)
    }

    fn unlink(&mut self, path: &str) -> Result<()> {
        let (dir, name) = self.parent(path)?;
        self.volume.unlink(dir, name).map_err(|e| failed("remove", path, &e))
    }

    fn rmdir(&mut self, path: &str) -> Result<()> {
        let (dir, name) = self.parent(path)?;
        self.volume.rmdir(dir, name).map_err(|e| failed("remove", path, &e))
    }

    fn write_at(&mut self, path: &str, offset: u64, content: &[u8]) -> Result<()> {
        self.write(self.find(path)?, path, offset, content)
    }

    fn read_at(&mut self, path: &str, offset: u64, buf: &mut [u8]) -> Result<()> {
        let inode = self.volume.inode(self.find(path)?).map_err(|e| failed("read", path, &e))?;
        let read = self.volume.read_at(&inode, offset, buf).map_err(|e| failed("read", path, &e))?;
        if read == buf.len() { Ok(()) } else { Err(Error::Failed(format!("{path}: the file is too short"))) }
    }

    fn fsync(&mut self, path: &str) -> Result<()> {
        self.volume.fsync(self.find(path)?, false).map_err(|e| failed("sync", path, &e))
    }

    fn sync(&mut self) -> Result<()> {
        self.volume.sync().map_err(|e| failed("sync", "the volume", &e))
    }
}
