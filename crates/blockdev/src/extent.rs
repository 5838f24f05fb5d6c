//! The byte ranges of a file that take no storage, as reported by its file system.

use std::fs::File;

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

/// A range of bytes, with the information that a device has of it without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// The number of bytes, from the requested offset on, to which it applies.
    pub len: u64,
    /// The bytes read as zeroes and take no storage. Otherwise nothing is known of them.
    pub hole: bool,
}

/// The extent at `offset`, of `len` bytes at most, all of them in the file. If the system does not answer, it is not a
/// hole.
///
/// Moves the file's position, which no request of a device depends on.
pub(crate) fn extent(file: &File, offset: u64, len: u64) -> Extent {
    match seek(file, SeekFrom::Data(offset)) {
        Ok(data) if data > offset => Extent { len: len.min(data - offset), hole: true },
        Ok(_) => {
            let hole = seek(file, SeekFrom::Hole(offset)).ok().and_then(|hole| hole.checked_sub(offset));
            Extent { len: hole.filter(|known| *known > 0).map_or(len, |known| known.min(len)), hole: false }
        }
        // no data after it; unless the file was truncated, so that a read fails
        Err(Errno::NXIO) => {
            Extent { len, hole: file.metadata().is_ok_and(|found| found.len() >= offset.saturating_add(len)) }
        }
        Err(_) => Extent { len, hole: false },
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::{BlockDevice, FileDevice, OpenOptions, ReadOnly};

    #[test]
    fn holes_of_a_file_are_found() -> io::Result<()> {
        const MIB: u64 = 1 << 20;
        let file = tempfile::NamedTempFile::new()?;
        file.as_file().set_len(4 * MIB)?;
        let options = OpenOptions { write: true, ..OpenOptions::default() };
        let device = FileDevice::open(file.path(), options).map_err(io::Error::other)?;
        device.write(MIB, &[1; 1 << 20]).map_err(io::Error::other)?;
        let device = ReadOnly::new(Box::new(device));
        let at = |offset, len| device.extent(offset, len).map_err(io::Error::other);
        // a file system without holes reports only data
        if at(0, MIB)?.hole {
            assert_eq!(at(0, 4 * MIB)?, Extent { len: MIB, hole: true });
            assert_eq!(at(MIB, 3 * MIB)?, Extent { len: MIB, hole: false });
            assert_eq!(at(2 * MIB, 2 * MIB)?, Extent { len: 2 * MIB, hole: true });
            assert_eq!(at(MIB - 1, 2)?, Extent { len: 1, hole: true });
        }
        assert!(device.extent(4 * MIB, 1).is_err());
        file.as_file().set_len(3 * MIB)?;
        assert!(!at(2 * MIB, 2 * MIB)?.hole);
        Ok(())
    }
}
