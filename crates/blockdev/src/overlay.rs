//! A device whose changes stay in memory, over a base that is never changed; cheap to clone and to compare.
//!
//! For exploring very many states of one volume, as after a loss of power: each state is a clone of another with a few
//! further writes.
//!
//! 1. A clone shares everything with its original and costs nothing until one of them is written; then a map of
//!    pointers is copied, and every unwritten page stays shared.
//! 2. Only pages that differ from the base are stored. A page that is changed back to the content in the base is freed.
//! 3. So the fingerprint depends only on the content: it is the sum, over the pages that differ, of a hash of the page
//!    and its position. A write updates it for the pages it changes.

use parking_lot::RwLock;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_128_with_seed;

use crate::{BlockDevice, Geometry, Op, Read, Result};

/// The unit of copying for changes in bytes: the usual block size of a volume.
const PAGE: u64 = 4096;
/// The maximum number of pages whose content in the base is read at once.
const PAGES_AT_ONCE: u64 = 256;

#[derive(Clone)]
struct Page {
    bytes: [u8; PAGE as usize],
    hash: u128,
}

/// The differences from the base.
#[derive(Clone, Default)]
struct Changes {
    pages: BTreeMap<u64, Arc<Page>>,
    fingerprint: u128,
}

impl Changes {
    /// Sets the content of page `number` to `bytes`; `below` is its content in the base.
    fn set(&mut self, number: u64, bytes: &[u8; PAGE as usize], below: &[u8; PAGE as usize]) {
        let before = if bytes == below {
            self.pages.remove(&number)
        } else {
            let hash = xxh3_128_with_seed(bytes, number);
            self.fingerprint = self.fingerprint.wrapping_add(hash);
            self.pages.insert(number, Arc::new(Page { bytes: *bytes, hash }))
        };
        self.fingerprint = self.fingerprint.wrapping_sub(before.map_or(0, |page| page.hash));
    }
}

/// Copy-on-write memory over a base that is only read. A flush does nothing; a discard zeroes.
pub struct Overlay {
    base: Arc<dyn BlockDevice>,
    geometry: Geometry,
    changes: RwLock<Arc<Changes>>,
}

impl Overlay {
    /// A device with the content of `base` that can be written even if the base is read-only. The base must not change
    /// while an overlay exists.
    pub fn new(base: Arc<dyn BlockDevice>) -> Self {
        let geometry = Geometry { read_only: false, group: 0, ..base.geometry() };
        Self { base, geometry, changes: RwLock::default() }
    }

    /// An overlay with the content of `self` over the content of `below`; both have the same base.
    ///
    /// # Errors
    /// The error of the base.
    pub fn over(&self, below: &Self) -> Result<Self> {
        let (own, others) = (self.changes(), below.changes());
        let over = Self::new(Arc::new(below.clone()));
        let numbers: BTreeSet<u64> = own.pages.keys().chain(others.pages.keys()).copied().collect();
        for number in numbers {
            let start = number * PAGE;
            let mut bytes = vec![0; PAGE.min(self.geometry.len.saturating_sub(start)) as usize];
            self.read(start, &mut bytes)?;
            over.write(start, &bytes)?;
        }
        Ok(over)
    }

    /// A hash of the content: overlays over the same base with equal content have equal fingerprints, whatever the
    /// order of writes, and those with different content have different ones except with a probability of 2^-128. An
    /// overlay with the content of its base has 0. Costs nothing.
    pub fn fingerprint(&self) -> u128 {
        self.changes().fingerprint
    }

    /// The number of pages of 4 KiB that differ from the base and are stored in memory, shared or not.
    pub fn pages(&self) -> usize {
        self.changes().pages.len()
    }

    /// Calls `see` with all pages that differ from the base, ascending: the offset of each on the device, and its
    /// bytes. The last page ends with the device.
    pub fn each_change(&self, mut see: impl FnMut(u64, &[u8])) {
        for (number, page) in &self.changes().pages {
            let start = number * PAGE;
            let inside = PAGE.min(self.geometry.len.saturating_sub(start)) as usize;
            see(start, &page.bytes[..inside]);
        }
    }

    fn changes(&self) -> Arc<Changes> {
        self.changes.read().clone()
    }

    /// Changes `len` bytes at `offset`, which the geometry has admitted; `fill` is called with each piece and its
    /// offset in them.
    fn change(&self, offset: u64, len: u64, mut fill: impl FnMut(usize, &mut [u8])) -> Result<()> {
        let mut changes = self.changes.write();
        let end = offset + len;
        let mut at = offset;
        let mut all_below: Vec<u8> = Vec::new();
        while at < end {
            let first = at / PAGE;
            let pages = (end.div_ceil(PAGE) - first).min(PAGES_AT_ONCE);
            all_below.clear();
            all_below.resize((pages * PAGE) as usize, 0);
            let inside = (pages * PAGE).min(self.geometry.len - first * PAGE) as usize;
            self.base.read(first * PAGE, &mut all_below[..inside])?;
            for (number, below) in (first..).zip(all_below.as_chunks::<{ PAGE as usize }>().0) {
                let start = number * PAGE;
                let mut bytes = changes.pages.get(&number).map_or(*below, |page| page.bytes);
                let piece = (at - start) as usize..(end - start).min(PAGE) as usize;
                let next = start + piece.end as u64;
                fill((at - offset) as usize, &mut bytes[piece]);
                Arc::make_mut(&mut changes).set(number, &bytes, below);
                at = next;
            }
        }
        Ok(())
    }
}

impl Clone for Overlay {
    fn clone(&self) -> Self {
        Self { base: self.base.clone(), geometry: self.geometry, changes: RwLock::new(self.changes()) }
    }
}

impl fmt::Debug for Overlay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let changes = self.changes();
        f.debug_struct("Overlay")
            .field("geometry", &self.geometry)
            .field("pages", &changes.pages.len())
            .field("fingerprint", &changes.fingerprint)
            .finish_non_exhaustive()
    }
}

/// Replaces the changed pages in bytes that were read from the base.
fn cover(changes: &Changes, offset: u64, buf: &mut [u8]) {
    let end = offset + buf.len() as u64;
    for (number, page) in changes.pages.range(offset / PAGE..end.div_ceil(PAGE)) {
        let start = number * PAGE;
        let (from, to) = (offset.max(start), end.min(start + PAGE));
        let bytes = &page.bytes[(from - start) as usize..(to - start) as usize];
        buf[(from - offset) as usize..(to - offset) as usize].copy_from_slice(bytes);
    }
}

fn cover_all(changes: &Changes, reads: &mut [Read<'_>]) {
    for r in reads.iter_mut().filter(|r| r.result.is_ok() && !r.buf.is_empty()) {
        cover(changes, r.offset, r.buf);
    }
}

impl BlockDevice for Overlay {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let changes = self.changes();
        self.base.read(offset, buf)?; // refuses reads beyond the end
        if !buf.is_empty() {
            cover(&changes, offset, buf);
        }
        Ok(())
    }

    fn read_many(&self, reads: &mut [Read<'_>]) {
        let changes = self.changes();
        self.base.read_many(reads);
        cover_all(&changes, reads);
    }

    fn read_cached(&self, reads: &mut [Read<'_>]) -> usize {
        let changes = self.changes();
        let made = self.base.read_cached(reads);
        cover_all(&changes, reads.get_mut(..made).unwrap_or_default());
        made
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.geometry.admit(Op::Write, offset, data.len() as u64)?;
        self.change(offset, data.len() as u64, |from, piece| {
            piece.copy_from_slice(&data[from..from + piece.len()]);
        })
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.geometry.admit(Op::Discard, offset, len)?;
        self.change(offset, len, |_, piece| piece.fill(0))
    }
}
