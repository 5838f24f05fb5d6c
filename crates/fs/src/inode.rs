//! Inodes by number, and a small cache of them.

use crate::{Error, Inode, InodeNo, Result, Volume};
use std::sync::{Arc, Mutex, PoisonError};

/// The inodes that were asked for last: one place for each by the low bits of the number, so that neighbours in a table do
/// not push each other out.
pub(crate) struct InodeCache {
    places: Box<[Mutex<Option<Arc<Inode>>>]>,
}

impl InodeCache {
    /// A cache of so many.
    pub(crate) fn new(most: usize) -> Self {
        Self { places: (0..most.max(1)).map(|_| Mutex::new(None)).collect() }
    }

    fn place(&self, number: InodeNo) -> &Mutex<Option<Arc<Inode>>> {
        &self.places[number.get() as usize % self.places.len()]
    }

    /// Reads an inode while nobody else can put a newer one in its place.
    fn get_or(&self, number: InodeNo, load: impl FnOnce() -> Result<Arc<Inode>>) -> Result<Arc<Inode>> {
        let mut place = self.place(number).lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(inode) = place.as_ref().filter(|inode| inode.number == number) {
            return Ok(Arc::clone(inode));
        }
        let inode = load()?;
        *place = Some(Arc::clone(&inode));
        Ok(inode)
    }

    /// The inode as it is from now on.
    pub(crate) fn put(&self, inode: Arc<Inode>) {
        let mut place = self.place(inode.number).lock().unwrap_or_else(PoisonError::into_inner);
        *place = Some(inode);
    }

    /// Nothing is known any more.
    pub(crate) fn clear(&self) {
        for place in &self.places {
            *place.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }

    /// The inode was freed.
    pub(crate) fn forget(&self, number: InodeNo) {
        let mut place = self.place(number).lock().unwrap_or_else(PoisonError::into_inner);
        place.take_if(|inode| inode.number == number);
    }
}

impl Volume {
    /// The inode of that number: in use, its checksum and its fields right.
    ///
    /// # Errors
    /// [`Error::NotFound`] for 0 and for numbers beyond the last, [`Error::Stale`] for an inode that is not in use,
    /// [`Error::Corrupt`] for one that is damaged.
    pub fn inode(&self, number: InodeNo) -> Result<Arc<Inode>> {
        if self.is_pinned(number) {
            // what its slot holds, if it was ever written, is not a file's
            return Err(Error::Stale(number));
        }
        let inode = self.any_inode(number)?;
        if inode.raw().disk.i_links_count.get() == 0 && !self.is_orphan(number) {
            return Err(Error::Stale(number));
        }
        Ok(inode)
    }

    /// Whether a number is held from outside for a file that a rollback took back.
    pub(crate) fn is_pinned(&self, number: InodeNo) -> bool {
        self.writing.as_ref().is_some_and(|writing| writing.space.is_pinned(number))
    }

    /// [`Volume::inode`] for a number that a directory names.
    pub(crate) fn named_inode(&self, number: InodeNo) -> Result<Arc<Inode>> {
        self.inode(number).map_err(Error::of_named)
    }

    /// The inode as it is now, whether or not it has links.
    pub(crate) fn any_inode(&self, number: InodeNo) -> Result<Arc<Inode>> {
        self.inodes.get_or(number, || self.load_inode(number))
    }

    /// Whether a directory may name this inode: the root, or one that is not reserved.
    pub(crate) fn may_be_named(&self, number: InodeNo) -> bool {
        let geometry = &self.sb.geometry;
        number == InodeNo::ROOT || (geometry.first_inode..=geometry.inodes).contains(&number.get())
    }

    /// The start of the checksums of an inode's own structures.
    pub(crate) fn seed(&self, inode: &Inode) -> u32 {
        inode.raw().seed(&self.sb.geometry, inode.number)
    }
}
