//! The raw-log baseline, an upper bound of speed for a file system with a log of its operations: data is written to its
//! location, a 4 KiB record of the operation is appended to a log, and one flush makes both durable. There is no file
//! system; names exist in memory only.

use super::file_ops::FileOps;
use crate::error::Trying;
use crate::{Error, Result};
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const BLOCK: u64 = 4096;
/// Bytes of the circular log at the beginning of the device.
const LOG: u64 = 32 << 20;
/// Maximum size of a file in bytes.
const EXTENT: u64 = 16 << 20;

/// A file or device used as raw log.
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
        let (start, len) = self.files.get_mut(path).ok_or_else(|| Error::Failed(format!("{path} does not exist")))?;
        let end = offset + content.len() as u64;
        if end > EXTENT {
            return Err(Error::Failed(format!("{path} is too long")));
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
        // consecutive files are not adjacent, as in a file system
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
