//! A regular file during a change: locked, with its current inode.

use crate::change::Change;
use crate::inline_data::is_inline;
use crate::map::{CLEARING, Steps};
use crate::node::{Node, NodeState};
use crate::{CallGuard, Error, FileExtent, FileKind, Files, Inode, InodeFlags, InodeNo, Mapping, Result, Timestamp};
use format::FileBlock;
use format::inode::InodeBuf;
use space::Privilege;
use std::sync::Arc;

/// Granularity of the times of changes in nanoseconds: a tick of the kernel, as for times set by the kernel.
const TICK: i64 = 4_000_000;
/// Bytes; a file with a quarter of this amount of delayed data writes it out, as it is probably written sequentially
/// and the device should not be idle meanwhile.
const STREAM: usize = 64 << 20;

/// A regular file during a change.
pub(crate) struct FileEdit<'a> {
    pub(crate) volume: &'a Files,
    pub(crate) node: &'a Node,
    pub(crate) state: &'a mut NodeState,
    pub(crate) inode: Arc<Inode>,
    /// Changes of the content do not change the times.
    pub(crate) preserve_times: bool,
}

impl Files {
    /// Changes a regular file. If there is no space, `work` is retried once after all delayed data got blocks and freed
    /// space may be used again: it must tolerate that its first attempt was partly done.
    pub(crate) fn edit_file<R>(&self, number: InodeNo, work: impl Fn(&mut FileEdit<'_>) -> Result<R>) -> Result<R> {
        self.with_space(|| self.try_file(number, &work))
    }

    /// As [`Admission::change_guard`](crate::Admission::change_guard), for one change of a file or a name. A change
    /// that finds the generation full closes it while nodes are locked, so the content of rewritten files is written
    /// before.
    pub(crate) fn admit_change(&self) -> Result<CallGuard<'_>> {
        let guard = self.change_guard()?;
        if self.store.is_half_full() {
            self.flush_rewritten();
        }
        Ok(guard)
    }

    /// Calls `work`; if there is no space, once more after delayed data got blocks and freed space may be used. On that
    /// error it must leave everything unchanged, or tolerate that a part was done. Must be called outside of a change
    /// and without a node's lock. Waits for transactions of others.
    ///
    /// # Errors
    /// Those of `work`, and of a sync.
    pub(crate) fn with_space<R>(&self, work: impl Fn() -> Result<R>) -> Result<R> {
        let _guard = self.admit_change()?;
        match work() {
            Err(Error::NoSpace) => {
                // files whose delayed data finds no space report it at fsync
                let _ = self.flush_all_delayed();
                self.wait_for_space()?;
                work()
            }
            outcome => outcome,
        }
    }

    /// A change that allocates only the nodes needed to split others: space for these is always reserved.
    pub(crate) fn splitting(&self, credits: usize) -> Result<Change<'_>> {
        let change = self.change_reserved(credits)?;
        change.set_privilege(Privilege::Reserved);
        Ok(change)
    }

    fn try_file<R>(&self, number: InodeNo, work: &impl Fn(&mut FileEdit<'_>) -> Result<R>) -> Result<R> {
        let writing = self.writing()?;
        if let Some(why) = self.store.failure() {
            return Err(Error::ReadOnly(why.to_string()));
        }
        let node = self.node(number);
        let mut state = node.write();
        // checked under the lock: unmounting sees all changes accepted before
        writing.space.is_open()?;
        let inode = self.inode(number)?;
        let flags = inode.raw().flags();
        match inode.kind {
            FileKind::Regular => {}
            FileKind::Directory => return Err(Error::IsADirectory),
            _ => return Err(Error::Invalid("not a regular file")),
        }
        if flags.contains(InodeFlags::ENCRYPT) {
            return Err(Error::Encrypted);
        }
        if flags.intersects(InodeFlags::IMMUTABLE | InodeFlags::VERITY | InodeFlags::EA_INODE) {
            return Err(Error::NotPermitted("the file may not be changed"));
        }
        self.record_inode(number);
        let mut file = FileEdit { volume: self, node: &node, state: &mut state, inode, preserve_times: false };
        file.finish_cut()?;
        let mut outcome = work(&mut file);
        if !file.state.delayed.is_empty() {
            self.nodes.rewritten.record_content(number);
        }
        // a caller that exceeds the limit writes out its own data; with journaled data, one write must not be split
        // between allocated and delayed blocks
        let (own, limit) = (file.state.delayed.bytes(), writing.most_delayed());
        let much = self.nodes.count_delayed(file.state) > limit || own > limit.min(STREAM) / 4;
        if outcome.is_ok() && (much || own > 0 && self.store.journals_data()) {
            outcome = file.flush().and(outcome);
        }
        self.nodes.count_delayed(&mut state);
        self.record_delayed();
        self.wake_background();
        outcome
    }
}

impl FileEdit<'_> {
    /// Refuses operations that an append-only file forbids.
    pub(crate) fn may_shrink(&self) -> Result<()> {
        if self.inode.raw().flags().contains(InodeFlags::APPEND) {
            return Err(Error::NotPermitted("the file is append-only"));
        }
        Ok(())
    }

    pub(crate) fn block_size(&self) -> usize {
        self.volume.sb.geometry.block_size as usize
    }

    /// The size of the file, including delayed data.
    pub(crate) fn size(&self) -> u64 {
        self.state.size_of(&self.inode)
    }

    /// Clears cached mappings before a change of the map.
    pub(crate) fn map_changes(&mut self) {
        self.state.hole = None;
    }

    /// Reads content before the end of the file, including delayed data.
    pub(crate) fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        if is_inline(&self.inode) {
            return self.volume.read_content(&self.inode, offset, buf).map(drop);
        }
        self.volume.read_mapped(&self.inode, offset, buf)?;
        self.state.delayed.copy_over(self.block_size(), offset, buf);
        Ok(())
    }

    /// The run that begins at a block.
    pub(crate) fn run(&mut self, block: u64) -> Result<FileExtent> {
        if let Some(hole) = self.state.hole.as_ref().filter(|hole| hole.contains(&block)) {
            return Ok(FileExtent::hole(FileBlock(block), hole.end));
        }
        let run = self.volume.map(&self.inode, FileBlock(block))?;
        if run.mapping == Mapping::Hole {
            self.state.hole = Some(block..run.end().get());
        }
        Ok(run)
    }

    /// Marks the content as changed at the current time. A time is written if it differs by a tick.
    pub(crate) fn touch(&mut self) -> Result<()> {
        let now = self.volume.now();
        if self.preserve_times || is_stamped(&self.inode, now) {
            return Ok(());
        }
        let before = self.node.datasync_generation();
        let change = self.volume.change(1)?;
        self.inode = change.update_inode(&self.inode, |buf| stamp(buf, now))?;
        self.node.only_times(before);
        Ok(())
    }

    /// Zeroes bytes on the device, as far as they are in written blocks. No data is delayed there.
    pub(crate) fn zero(&mut self, from: u64, to: u64) -> Result<()> {
        let block_size = self.block_size() as u64;
        let mut at = from;
        while at < to {
            let run = self.run(at / block_size)?;
            let end = run.end().get().saturating_mul(block_size).min(to);
            if let Mapping::Data(first) = run.mapping {
                // callers zero less than a block at each end of a range
                let zeroes = vec![0; (end - at).min(2 * block_size) as usize];
                let mut done = self.overwrite(first, at % block_size, &zeroes)?;
                if done == 0 {
                    done = self.delay(run, at, &zeroes, 0)?;
                    // the next operation may extend the file
                    self.flush()?;
                }
                at += done as u64;
            } else {
                at = end;
            }
        }
        Ok(())
    }

    /// Zeroes the part of the last block behind the end of the file, so that an extended file does not expose it.
    pub(crate) fn zero_tail(&mut self) -> Result<()> {
        let (size, block_size) = (self.size(), self.block_size());
        let end = size.next_multiple_of(block_size as u64);
        // delayed blocks have zeroes behind the end
        if end == size || self.state.delayed.here(block_size, size / block_size as u64) > 0 {
            return Ok(());
        }
        self.zero(size, end)
    }

    /// Sets the size in the inode; no data is delayed.
    pub(crate) fn set_size(&mut self, size: u64) -> Result<()> {
        let change = self.volume.change(1)?;
        let now = change.now();
        self.inode = change.update_inode(&self.inode, |buf| {
            buf.set_size(size);
            stamp(buf, now);
        })?;
        Ok(())
    }

    /// Frees the blocks of a range, in as many changes as necessary.
    pub(crate) fn clear(&mut self, from: u64, to: u64) -> Result<()> {
        self.map_changes();
        let mut at = Some(from);
        while let Some(from) = at {
            let change = self.volume.splitting(CLEARING)?;
            let inode = Arc::clone(&self.inode);
            (self.inode, at) = change.edit_inode(&inode, |buf| {
                stamp(buf, change.now());
                change.map_clear(&inode, buf, from, to, &mut Steps::new())
            })?;
        }
        Ok(())
    }
}

/// Whether the times of an inode already record a change of content in this tick.
pub(crate) fn is_stamped(inode: &Inode, now: Timestamp) -> bool {
    let raw = inode.raw();
    let wide = raw.extra_isize() >= 0x10;
    let same = |time: Timestamp| {
        let nanos = (i64::from(now.nanos) - i64::from(time.nanos)).abs();
        time.seconds == now.seconds && (!wide || nanos < TICK)
    };
    same(raw.mtime()) && same(raw.ctime())
}

/// Sets the times of an inode for a change of content at `now`.
pub(crate) fn stamp(buf: &mut InodeBuf, now: Timestamp) {
    buf.set_mtime(now);
    buf.set_ctime(now);
}
