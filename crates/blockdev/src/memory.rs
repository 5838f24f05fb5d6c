//! A device in memory: for tests, for volumes that are built before they are transferred, and for `mem:SIZE`.

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::io;

use crate::{BlockDevice, Error, Geometry, Op, Result};

/// Bytes in memory. Nothing survives the process, so a flush does nothing; a discard zeroes.
#[derive(Debug)]
pub struct MemoryDevice {
    bytes: RwLock<Vec<u8>>,
    len: u64,
}

impl MemoryDevice {
    /// A device of `len` zero bytes. The system allocates the memory page by page as it is written.
    ///
    /// # Errors
    /// [`Error::Open`] if the system cannot allocate that much memory.
    pub fn zeroed(len: u64) -> Result<Self> {
        let refused =
            || Error::Open { device: format!("{len} bytes of memory"), source: io::ErrorKind::OutOfMemory.into() };
        let size = usize::try_from(len).map_err(|_| refused())?;
        // `vec!` alone would end the process, and `resize` would write every page
        Vec::<u8>::new().try_reserve_exact(size).map_err(|_| refused())?;
        Ok(Self::from_vec(vec![0; size]))
    }

    /// A device with the content `bytes`; its length is theirs.
    pub fn from_vec(bytes: Vec<u8>) -> Self {
        Self { len: bytes.len() as u64, bytes: RwLock::new(bytes) }
    }

    /// The content of the device.
    pub fn into_vec(self) -> Vec<u8> {
        self.bytes.into_inner()
    }

    // A thread that panicked inside a copy leaves the bytes like an interrupted write: usable.
    fn shared(&self) -> RwLockReadGuard<'_, Vec<u8>> {
        self.bytes.read()
    }

    fn exclusive(&self) -> RwLockWriteGuard<'_, Vec<u8>> {
        self.bytes.write()
    }
}

impl BlockDevice for MemoryDevice {
    fn geometry(&self) -> Geometry {
        Geometry::new(self.len)
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.geometry().admit(Op::Read, offset, buf.len() as u64)?;
        let start = offset as usize; // within a Vec's length, by the check above
        buf.copy_from_slice(&self.shared()[start..start + buf.len()]);
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.geometry().admit(Op::Write, offset, data.len() as u64)?;
        let start = offset as usize;
        self.exclusive()[start..start + data.len()].copy_from_slice(data);
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.geometry().admit(Op::Discard, offset, len)?;
        let start = offset as usize;
        self.exclusive()[start..start + len as usize].fill(0);
        Ok(())
    }
}
