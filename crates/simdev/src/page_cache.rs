//! A device with the kernel's page cache on top of it, and the cache's behaviour when a write fails.

use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use blockdev::{BlockDevice, Geometry, Op, Result};

const PAGE: u64 = 4096;

#[derive(Debug)]
struct Page {
    bytes: Vec<u8>,
    dirty: bool,
}

/// A cache over a device, like that of the system. Writes stay in memory until a flush passes them to the device. A
/// page that could not be written then stays readable and counts as written: that flush reports it, and no later one
/// does.
#[derive(Debug)]
pub struct PageCache<D> {
    device: D,
    pages: Mutex<BTreeMap<u64, Page>>,
}

impl<D: BlockDevice> PageCache<D> {
    /// Creates an empty cache over a device.
    pub fn new(device: D) -> Self {
        Self { device, pages: Mutex::default() }
    }

    /// The device after a loss of power: the content of memory is lost.
    pub fn into_inner(self) -> D {
        self.device
    }

    fn pages(&self) -> MutexGuard<'_, BTreeMap<u64, Page>> {
        self.pages.lock()
    }

    /// Calls a function for each page of a range, with the affected bytes of the page and of the range.
    fn each(
        &self,
        offset: u64,
        len: usize,
        mut see: impl FnMut(&mut Page, std::ops::Range<usize>, std::ops::Range<usize>),
    ) -> Result<()> {
        let (mut pages, end, mut done) = (self.pages(), self.device.geometry().len, 0);
        while done < len {
            let (at, within) = ((offset + done as u64) / PAGE * PAGE, (offset + done as u64) % PAGE);
            let part = (len - done).min((PAGE - within) as usize);
            let page = match pages.entry(at) {
                Entry::Occupied(page) => page.into_mut(),
                Entry::Vacant(place) => {
                    let mut bytes = vec![0; PAGE.min(end - at) as usize];
                    self.device.read(at, &mut bytes)?;
                    place.insert(Page { bytes, dirty: false })
                }
            };
            see(page, within as usize..within as usize + part, done..done + part);
            done += part;
        }
        Ok(())
    }
}

impl<D: BlockDevice> BlockDevice for PageCache<D> {
    fn geometry(&self) -> Geometry {
        Geometry { group: 0, ..self.device.geometry() }
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.geometry().admit(Op::Read, offset, buf.len() as u64)?;
        self.each(offset, buf.len(), |page, from, to| buf[to].copy_from_slice(&page.bytes[from]))
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.geometry().admit(Op::Write, offset, data.len() as u64)?;
        self.each(offset, data.len(), |page, to, from| {
            page.bytes[to].copy_from_slice(&data[from]);
            page.dirty = true;
        })
    }

    fn flush(&self) -> Result<()> {
        let mut done = Ok(());
        for (at, page) in self.pages().iter_mut().filter(|(_, page)| page.dirty) {
            page.dirty = false;
            done = done.and(self.device.write(*at, &page.bytes));
        }
        done.and(self.device.flush())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.geometry().admit(Op::Discard, offset, len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Fault, Faulty};
    use blockdev::MemoryDevice;

    #[test]
    fn what_could_not_be_written_is_read_and_never_arrives() {
        let below = Faulty::new(MemoryDevice::zeroed(3 * PAGE).unwrap(), vec![Fault::RequestError { request: 1 }]);
        let cache = PageCache::new(below);
        cache.write(10, &[1; 20]).unwrap();
        assert!(cache.flush().is_err());
        cache.write(PAGE, &[2; 20]).unwrap();
        cache.flush().unwrap();
        let byte = |device: &dyn BlockDevice, at| {
            let mut byte = [0];
            device.read(at, &mut byte).unwrap();
            byte[0]
        };
        assert_eq!((byte(&cache, 10), byte(&cache, PAGE)), (1, 2));
        let device = cache.into_inner();
        assert_eq!((byte(&device, 10), byte(&device, PAGE)), (0, 2));
    }
}
