//! A regular file while it is changed: locked, and its inode as it is now.

use crate::change::Change;
use crate::inline_data::is_inline;
use crate::map::{CLEARING, Steps};
use crate::node::{Node, NodeState};
use crate::{Error, FileExtent, FileKind, Files, Inode, InodeFlags, InodeNo, Mapping, Result, Timestamp};
use format::FileBlock;
use format::inode::InodeBuf;
use space::Privilege;
use std::sync::Arc;

/// Times of changes are stored as exactly as the kernel stores them, by its own tick: in nanoseconds.
const TICK: i64 = 4_000_000;
/// A file that has a quarter of this waiting for its place brings it to the device: it is one that is written in one
/// go, and the device should not stand still meanwhile. Bytes.
const STREAM: usize = 64 << 20;

/// A regular file while it is changed.
pub(crate) struct FileEdit<'a> {
    pub(crate) volume: &'a Files,
    pub(crate) node: &'a Node,
    pub(crate) state: &'a mut NodeState,
    pub(crate) inode: Arc<Inode>,
    /// The times do not show what is done to the content.
    pub(crate) preserve_times: bool,
}

impl Files {
    /// Changes a regular file. Where there is no space, `work` is tried once more after all delayed content got its
    /// place and what was freed may be used again: it must not mind that its first try did a part.
    pub(crate) fn edit_file<R>(&self, number: InodeNo, work: impl Fn(&mut FileEdit<'_>) -> Result<R>) -> Result<R> {
        self.with_space(|| self.try_file(number, &work))
    }

    /// Does `work`; where there is no space, once more, when content in memory has its place and what was freed may be
    /// used. It must leave everything as it was then, or not mind that a part was done. To be called outside of a
    /// change and without a node's lock.
    /// Waits for transactions of others.
    ///
    /// # Errors
    /// Those of `work`, and of a sync.
    pub(crate) fn with_space<R>(&self, work: impl Fn() -> Result<R>) -> Result<R> {
        let _guard = self.changing()?;
        match work() {
            Err(Error::NoSpace) => {
                // whose content finds no place hears of it from fsync
                let _ = self.flush_all_delayed();
                self.wait_for_space()?;
                work()
            }
            outcome => outcome,
        }
    }

    /// A change that allocates no more than the nodes it needs to split others: there is always space for these.
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
        // asked with the lock: an unmount sees what is accepted before
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
        // the caller that exceeds the limit brings its own to the device; where data is journaled, one write is not to
        // be torn between what has a place and what has none yet
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
    /// Refuses what an append-only file must not suffer.
    pub(crate) fn may_shrink(&self) -> Result<()> {
        if self.inode.raw().flags().contains(InodeFlags::APPEND) {
            return Err(Error::NotPermitted("the file may only grow"));
        }
        Ok(())
    }

    pub(crate) fn block_size(&self) -> usize {
        self.volume.sb.geometry.block_size as usize
    }

    /// The file's size, with delayed content.
    pub(crate) fn size(&self) -> u64 {
        self.state.size_of(&self.inode)
    }

    /// Forgets what is known of the map, which is not true any more.
    pub(crate) fn map_changes(&mut self) {
        self.state.hole = None;
    }

    /// Reads what the file holds before its end, with delayed content.
    pub(crate) fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        if is_inline(&self.inode) {
            return self.volume.read_content(&self.inode, offset, buf).map(drop);
        }
        self.volume.read_mapped(&self.inode, offset, buf)?;
        self.state.delayed.lay_over(self.block_size(), offset, buf);
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

    /// The content changes now. A time is written when it differs by a tick.
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

    /// Zeroes bytes on the device, as far as they have a place that was written. No content is delayed there.
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
                    // what is done next may make the file longer
                    self.flush()?;
                }
                at += done as u64;
            } else {
                at = end;
            }
        }
        Ok(())
    }

    /// Zeroes what lies behind the end in the last block, so that a file that grows shows nothing of it.
    pub(crate) fn zero_tail(&mut self) -> Result<()> {
        let (size, block_size) = (self.size(), self.block_size());
        let end = size.next_multiple_of(block_size as u64);
        // delayed blocks hold zeroes behind the end
        if end == size || self.state.delayed.here(block_size, size / block_size as u64) > 0 {
            return Ok(());
        }
        self.zero(size, end)
    }

    /// Sets the size in the inode; nothing is delayed.
    pub(crate) fn set_size(&mut self, size: u64) -> Result<()> {
        let change = self.volume.change(1)?;
        let now = change.now();
        self.inode = change.update_inode(&self.inode, |buf| {
            buf.set_size(size);
            stamp(buf, now);
        })?;
        Ok(())
    }

    /// Frees the blocks of a range, in as many changes as it takes.
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

/// Whether an inode's times say that its content changed in this tick.
pub(crate) fn is_stamped(inode: &Inode, now: Timestamp) -> bool {
    let raw = inode.raw();
    let wide = raw.extra_isize() >= 0x10;
    let same = |time: Timestamp| {
        let nanos = (i64::from(now.nanos) - i64::from(time.nanos)).abs();
        time.seconds == now.seconds && (!wide || nanos < TICK)
    };
    same(raw.mtime()) && same(raw.ctime())
}

/// The content changed at `now`.
pub(crate) fn stamp(buf: &mut InodeBuf, now: Timestamp) {
    buf.set_mtime(now);
    buf.set_ctime(now);
}
