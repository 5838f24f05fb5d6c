//! Orphans: inodes without a name that have a lookup count, and files whose truncation has not finished.
//!
//! They are recorded on the device, so that a crash loses no space: in the slots of the orphan file if the volume has
//! one, else in a chain that begins in the superblock and continues through `i_dtime`.
//!
//! 1. An inode is added to the list, and removed from it, under the lock of its node, in the change that makes it an
//!    orphan or ends that. The list in memory contains the position on the device.
//! 2. The link of an inode in the chain is protected by the chain's lock, not by the inode's: it changes when the next
//!    one is removed. Code that writes an inode gets the link here (see `Change::put_inode`).
//! 3. An orphan is freed by one thread: the one for which [`OrphanList::begin_freeing`] returned `true`.

use crate::change::Change;
use crate::error::OfInode;
use crate::layers::stands_on;
use crate::map::{CLEARING, Steps, has_blocks};
use crate::node::Locked;
use crate::orphan_list::{Chain, LISTING, Orphan, OrphanEntry, OrphanFile, OrphanList};
use crate::{Directories, Error, FileKind, Inode, InodeNo, Maps, Result};
use format::feature::{Compat, Features, RoCompat};
use format::inode::InodeBuf;
use format::orphan::{OrphanBlock, slots};
use format::{FileBlock, Structure, Where};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use store::{Kind, Tag};

impl Change<'_> {
    fn orphans(&self) -> Result<&OrphanList> {
        let writing = self.volume.writing.as_ref();
        writing.map(|w| &w.orphans).ok_or_else(|| Error::ReadOnly("the volume is open for reading".into()))
    }

    /// Adds an inode to the list unless it is already there. The caller has the inode's lock.
    pub(crate) fn add_orphan(&self, inode: &Arc<Inode>, may_be_linked: bool) -> Result<Arc<Inode>> {
        match self.list_orphan(inode.number, may_be_linked)? {
            // writes the inode, and with it its link
            true => self.update_inode(inode, |_| {}),
            false => Ok(Arc::clone(inode)),
        }
    }

    /// As [`Change::add_orphan`]; returns whether the inode must be written, with its link, which is left to the
    /// caller.
    pub(crate) fn list_orphan(&self, number: InodeNo, may_be_linked: bool) -> Result<bool> {
        let orphans = self.orphans()?;
        let mut chain = orphans.lock();
        if chain.all.contains_key(&number) {
            return Ok(false);
        }
        let in_file = self.add_to_file(&mut chain, number)?;
        let entry = match in_file {
            Some(block) => OrphanEntry::File { block },
            None => {
                let next = std::mem::replace(&mut chain.first, number.get());
                self.edit_superblock(|sb| sb.s_last_orphan = number.get().into())?;
                if let Some(Orphan { entry: OrphanEntry::Chain { before, .. }, .. }) = chain.all.get_mut(&InodeNo(next))
                {
                    *before = number.get();
                }
                OrphanEntry::Chain { before: 0, next }
            }
        };
        chain.all.insert(number, Orphan { entry, may_be_linked, being_freed: false });
        orphans.count.fetch_add(1, Ordering::Release);
        Ok(in_file.is_none())
    }

    /// Allocates a slot of the orphan file; `None` if none is free.
    fn add_to_file(&self, chain: &mut Chain, number: InodeNo) -> Result<Option<usize>> {
        let Some(file) = &mut chain.file else { return Ok(None) };
        let most = slots(self.volume.sb.geometry.block_size);
        let Some(n) = file.blocks.iter().position(|(_, used)| *used < most) else { return Ok(None) };
        let Some((block, used)) = file.blocks.get_mut(n) else { return Ok(None) };
        let put = self.edit(*block, file.tag, |bytes| set_slot(bytes, most, 0, number.get()))?;
        if !put {
            // the count was wrong: the block is full
            *used = most;
            return Ok(None);
        }
        *used += 1;
        Ok(Some(n))
    }

    /// Removes an inode from the list if it is there. The caller must write its own `i_dtime`.
    pub(crate) fn remove_orphan(&self, number: InodeNo) -> Result<()> {
        let orphans = self.orphans()?;
        let mut chain = orphans.lock();
        let Some(orphan) = chain.all.remove(&number) else { return Ok(()) };
        orphans.count.fetch_sub(1, Ordering::Release);
        match orphan.entry {
            OrphanEntry::File { block } => {
                let most = slots(self.volume.sb.geometry.block_size);
                let Some(file) = &mut chain.file else { return Ok(()) };
                let Some((at, used)) = file.blocks.get_mut(block) else { return Ok(()) };
                *used = used.saturating_sub(1);
                self.edit(*at, file.tag, |bytes| set_slot(bytes, most, number.get(), 0))?;
            }
            OrphanEntry::Chain { before, next } => {
                if let Some(Orphan { entry: OrphanEntry::Chain { before: link, .. }, .. }) =
                    chain.all.get_mut(&InodeNo(next))
                {
                    *link = before;
                }
                if let Some(Orphan { entry: OrphanEntry::Chain { next: link, .. }, .. }) =
                    chain.all.get_mut(&InodeNo(before))
                {
                    *link = next;
                    let other = self.volume.any_inode(InodeNo(before))?;
                    let mut buf = InodeBuf::from(other.raw());
                    buf.disk_mut().i_dtime = next.into();
                    self.store_inode(other.number, buf)?;
                } else {
                    chain.first = next;
                    self.edit_superblock(|sb| sb.s_last_orphan = next.into())?;
                }
            }
        }
        Ok(())
    }

    /// Removes an inode that stays in use from the list.
    pub(crate) fn end_orphan(&self, inode: &Arc<Inode>) -> Result<Arc<Inode>> {
        self.remove_orphan(inode.number)?;
        self.update_inode(inode, |buf| buf.disk_mut().i_dtime = 0.into())
    }
}

/// Writes `new` into the first slot that contains `old`; returns whether there is one.
fn set_slot(bytes: &mut [u8], slots: u32, old: u32, new: u32) -> bool {
    let slot = bytes.chunks_exact_mut(4).take(slots as usize).find(|slot| **slot == old.to_le_bytes());
    if let Some(slot) = slot {
        slot.copy_from_slice(&new.to_le_bytes());
        return true;
    }
    false
}

/// Inodes without a name, and freeing them.
pub struct Orphans {
    directories: Directories,
}

stands_on!(Orphans, directories: Directories);

impl Orphans {
    pub(crate) fn over(maps: Maps) -> Self {
        Self { directories: Directories::over(maps) }
    }

    /// Frees an orphan with all its content, unless another thread does. The caller has no lock.
    pub(crate) fn free_orphan(&self, number: InodeNo) -> Result<()> {
        if !self.writing.as_ref().is_some_and(|w| w.orphans.begin_freeing(number)) {
            return Ok(());
        }
        let outcome = self.locked(&[number], |locked| self.free_locked(number, locked));
        let dropped = outcome.inspect_err(|_| {
            if let Some(writing) = &self.writing {
                // what could not be freed now may be later
                writing.orphans.stop_freeing(number);
            }
        })?;
        dropped.into_iter().try_for_each(|value_inode| self.free_orphan(value_inode))
    }

    /// Frees a locked inode that is on the list: its content, including delayed data, in as many changes as necessary,
    /// and the inode in the last of them. Returns attribute inodes to free afterwards.
    fn free_locked(&self, number: InodeNo, locked: &mut Locked<'_>) -> Result<Vec<InodeNo>> {
        if let Some(state) = locked.state(number) {
            state.drop_delayed();
            self.nodes.count_delayed(state);
        }
        let mut inode = self.inode(number)?;
        let mut at = has_blocks(self, &inode).then_some(0);
        loop {
            let change = self.change_freeing(4 + LISTING + at.map_or(0, |_| CLEARING))?;
            let Some(from) = at else { return self.free_emptied(&change, &inode) };
            let mut buf = InodeBuf::from(inode.raw());
            let cleared = change.map_clear(&inode, &mut buf, from, u64::MAX, &mut Steps::new());
            if matches!(cleared, Ok(None)) {
                return self.free_emptied(&change, &inode).or_else(|e| {
                    // its content is freed; the inode is freed by a later attempt
                    change.put_inode(number, buf)?;
                    Err(e)
                });
            }
            inode = change.put_inode(number, buf)?;
            at = cleared?;
        }
    }

    /// Subtracts `times` from the lookup count of an inode. If it becomes 0 and the inode has no name, the inode is
    /// freed.
    ///
    /// # Errors
    /// Those of freeing it; it then stays an orphan, and is freed when the volume is next opened for writing.
    pub fn forget(&self, number: InodeNo, times: u64) -> Result<()> {
        let Some(writing) = self.writing.as_ref().filter(|_| self.drop_lookups(number, times)) else { return Ok(()) };
        if writing.space.is_parked(number) {
            // the kernel no longer uses the file that was rolled back, and the next one with that number has a
            // different node
            self.nodes.remove(number);
            writing.space.unpark_inode(number);
            return Ok(());
        }
        // need not wait for the transaction: its end frees what is left
        let Some(_guard) = self.try_change() else { return Ok(()) };
        let node = self.node(number);
        let goes = {
            // the removal of the last name reads the lookup count under this lock
            let _state = node.read();
            !self.nodes.is_looked_up(number) && self.is_orphan(number) && self.has_no_links(number)
        };
        if goes { self.free_orphan(number) } else { Ok(()) }
    }

    /// Frees the inodes without a name and without a lookup count that could not be freed while a transaction ran.
    pub(crate) fn free_released(&self) -> Result<()> {
        let Some(writing) = &self.writing else { return Ok(()) };
        let all: Vec<InodeNo> = match writing.orphans.chain() {
            Some(chain) => chain.all.keys().copied().collect(),
            None => return Ok(()),
        };
        for number in all {
            let goes = {
                let node = self.node(number);
                let _state = node.read();
                !self.nodes.is_looked_up(number) && self.is_orphan(number) && self.has_no_links(number)
            };
            if goes {
                self.free_orphan(number)?;
            }
        }
        Ok(())
    }

    fn has_no_links(&self, number: InodeNo) -> bool {
        self.any_inode(number).is_ok_and(|inode| inode.raw().disk.i_links_count.get() == 0)
    }

    /// Completes the work left when the volume was last in use: frees inodes without a name, finishes truncations. Must
    /// be called once, right after opening for writing.
    ///
    /// # Errors
    /// Those of the device. A damaged list is read up to the damage, and the volume is marked as having errors.
    pub(crate) fn recover_orphans(&self) -> Result<()> {
        let Some(writing) = &self.writing else { return Ok(()) };
        let listed = self.read_orphans(&writing.orphans)?;
        if self.has_orphan_file() {
            let change = self.change_freeing(1)?;
            change.edit_superblock(|sb| set_present(sb, true))?;
        }
        for number in listed {
            match self.recover_orphan(number) {
                Ok(()) => {}
                Err(Error::Corrupt { .. }) => self.space()?.superblock.record_error(),
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    fn recover_orphan(&self, number: InodeNo) -> Result<()> {
        if self.has_no_links(number) {
            return self.free_orphan(number);
        }
        self.locked(&[number], |_| self.end_truncate(number).map(drop))
    }

    fn has_orphan_file(&self) -> bool {
        self.sb.features.compat.contains(Compat::ORPHAN_FILE) && self.sb.disk.s_orphan_file_inum.get() != 0
    }

    /// Reads both lists into memory. Each is read up to its first error.
    fn read_orphans(&self, orphans: &OrphanList) -> Result<Vec<InodeNo>> {
        let mut chain = Chain::default();
        let mut found = Vec::new();
        if self.has_orphan_file() {
            match self.read_orphan_file(&mut chain, &mut found) {
                Ok(()) => {}
                Err(Error::Corrupt { .. }) => {
                    (chain, found) = (Chain::default(), Vec::new());
                    self.space()?.superblock.record_error();
                }
                Err(e) => return Err(e),
            }
        }
        let first = self.space()?.superblock.lock().s_last_orphan.get();
        let (mut before, mut at) = (0, first);
        while at != 0 {
            let number = InodeNo(at);
            let is_valid = self.may_be_named(number) && number != InodeNo::ROOT && !chain.all.contains_key(&number);
            let Some(inode) = is_valid.then(|| self.any_inode(number).ok()).flatten() else {
                self.space()?.superblock.record_error();
                break;
            };
            let next = inode.raw().disk.i_dtime.get();
            let entry = OrphanEntry::Chain { before, next };
            chain.all.insert(number, Orphan { entry, may_be_linked: false, being_freed: false });
            found.push(number);
            (before, at) = (at, next);
        }
        chain.first = first;
        orphans.count.store(chain.all.len(), Ordering::Release);
        *orphans.lock() = chain;
        Ok(found)
    }

    fn read_orphan_file(&self, chain: &mut Chain, found: &mut Vec<InodeNo>) -> Result<()> {
        let number = InodeNo(self.sb.disk.s_orphan_file_inum.get());
        let inode = self.inode(number)?;
        let bad = |what| Error::corrupt(Structure::Orphans, Where::Inode(number), what);
        let count = inode.size / u64::from(self.sb.geometry.block_size);
        if inode.kind != FileKind::Regular || count > self.sb.geometry.blocks {
            return Err(bad("it is not a regular file, or too long"));
        }
        let seed = self.seed(&inode);
        let tag = Tag { seed, ..Tag::new(Kind::OrphanFile, number) };
        let mut file = OrphanFile { tag, blocks: Vec::new() };
        for n in 0..count {
            let at = self.map(&inode, FileBlock(n))?.physical().ok_or_else(|| bad("it has a hole"))?;
            let bytes = self.store.block(at)?;
            let block = OrphanBlock::parse(&bytes, at, self.sb.geometry.metadata_csum.then_some(seed));
            let mut used = 0;
            for orphan in block.of(number)?.orphans() {
                used += 1;
                if !self.may_be_named(orphan) || orphan == InodeNo::ROOT {
                    return Err(bad("it contains an inode that cannot be an orphan"));
                }
                let entry = OrphanEntry::File { block: n as usize };
                let entry = Orphan { entry, may_be_linked: false, being_freed: false };
                if chain.all.insert(orphan, entry).is_none() {
                    found.push(orphan);
                }
            }
            file.blocks.push((at, used));
        }
        chain.file = Some(file);
        Ok(())
    }

    /// Frees all orphans, whether or not they have a lookup count, and finishes truncations interrupted by an error:
    /// the last step before the volume is unmounted.
    ///
    /// # Errors
    /// Those of freeing them; the remaining ones stay on the list.
    pub(crate) fn end_orphans(&self) -> Result<()> {
        let Some(writing) = &self.writing else { return Ok(()) };
        let all: Vec<InodeNo> = writing.orphans.lock().all.keys().copied().collect();
        for number in all {
            match self.recover_orphan(number) {
                Err(Error::Corrupt { .. }) => self.space()?.superblock.record_error(),
                outcome => outcome?,
            }
        }
        if self.has_orphan_file() && writing.orphans.lock().all.is_empty() {
            let change = self.change_freeing(1)?;
            change.edit_superblock(|sb| set_present(sb, false))?;
        }
        Ok(())
    }
}

fn set_present(sb: &mut format::superblock::DiskSuperblock, present: bool) {
    let Features { compat, incompat, mut ro_compat } = sb.features();
    ro_compat.set(RoCompat::ORPHAN_PRESENT, present);
    sb.set_features(Features { compat, incompat, ro_compat });
}
