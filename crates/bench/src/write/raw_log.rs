//! The upper bound of speed for a file system with a log of its operations: content goes to its place, a record of the
//! operation goes as a block of 4 KiB to the end of a log, and one flush makes both durable. There is no file system
//! here; names lead nowhere.

use super::file_ops::FileOps;
use crate::error::Trying;
use crate::{Error, Result};
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const BLOCK: u64 = 4096;
/// Bytes of the log, at the front; it is written round and round.
const LOG: u64 = 32 << 20;
/// Bytes that a file may have.
const EXTENT: u64 = 16 << 20;

/// A file or device, used so.
pub(crate) struct RawLog {
    device: File,
    path: PathBuf,
    /// First byte and length of each file.
    files: HashMap<String, (u64, u64)>,
    next: u64,
    log: u64,
    changed: bool,
}

impl RawLog {
    pub(crate) fn new(path: &Path) -> Result<Self> {
        let device = File::options().read(true).write(true).open(path).trying("open", path)?;
        Ok(Self { device, path: path.to_owned(), files: HashMap::new(), next: LOG, log: 0, changed: false })
    }

    fn put(&mut self, path: &str, offset: u64, content: &[u8]) -> Result<()> {
        let (start, len) = self.files.get_mut(path).ok_or_else(|| Error::Failed(format!("{path} is not there")))?;
        let end = offset + content.len() as u64;
        if end > EXTENT {
            return Err(Error::Failed(format!("{path} gets too long")));
        }
        *len = end.max(*len);
        self.changed = true;
        self.device.write_all_at(content, *start + offset).trying("write to", &self.path)
    }

    fn flush(&mut self) -> Result<()> {
        if std::mem::take(&mut self.changed) {
            self.device.write_all_at(&[0x55; BLOCK as usize], self.log).trying("write to", &self.path)?;
            self.log = (self.log + BLOCK) % LOG;
            self.device.sync_data().trying("sync", &self.path)?;
        }
        Ok(())
    }
}

fn not_here() -> Error {
    Error::Unsupported("a raw log only has files that are written and synced: the set fsync".into())
}

impl FileOps for RawLog {
    fn create(&mut self, path: &str, content: &[u8]) -> Result<()> {
        // files that follow each other lie apart, as a file system has them in different places
        self.files.insert(path.to_owned(), (self.next, 0));
        self.next += if content.is_empty() { EXTENT } else { (content.len() as u64).next_multiple_of(BLOCK) };
        self.put(path, 0, content)
    }

    fn mkdir(&mut self, _: &str) -> Result<()> {
        Ok(())
    }

    fn stat(&mut self, _: &str) -> Result<()> {
        Err(not_here())
    }

    fn statx(&mut self, _: &str) -> Result<()> {
        Err(not_here())
    }

    fn read(&mut self, _: &str) -> Result<u64> {
        Err(not_here())
    }

    fn append(&mut self, path: &str, content: &[u8]) -> Result<()> {
        let end = self.files.get(path).map_or(0, |(_, len)| *len);
        self.put(path, end, content)
    }

    fn unlink(&mut self, _: &str) -> Result<()> {
        Err(not_here())
    }

    fn rmdir(&mut self, _: &str) -> Result<()> {
        Err(not_here())
    }

    fn write_at(&mut self, path: &str, offset: u64, content: &[u8]) -> Result<()> {
        self.put(path, offset, content)
    }

    fn read_at(&mut self, _: &str, _: u64, _: &mut [u8]) -> Result<()> {
        Err(not_here())
    }

    fn fsync(&mut self, _: &str) -> Result<()> {
        self.flush()
    }

    fn sync(&mut self) -> Result<()> {
        self.flush()
    }
}
