//! Discard of free blocks, as for fstrim(8).

use crate::{Error, Result, Volume};
use format::{FsBlock, GroupNo};

impl Volume {
    /// Discards the free blocks among `length` bytes from byte `start` on, in runs of at least `least` bytes; returns
    /// the number of bytes discarded. Freed blocks that a crash could restore count as free when that is durable, and
    /// blocks pinned by a snapshot do not. Waits for transactions of others, whose content is copied to free blocks.
    ///
    /// While the device works, the blocks of at most one group are unavailable for allocation.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a range that begins behind the volume or is shorter than a block, and for a `least`
    /// larger than a group; [`Error::ReadOnly`] if the volume was not opened for writing; those of the device.
    pub fn trim(&self, start: u64, length: u64, least: u64) -> Result<u64> {
        self.writing()?;
        let _guard = self.change_guard_outside()?;
        let geometry = &self.sb.geometry;
        let size = u64::from(geometry.block_size);
        let (first, least) = (start / size, least.div_ceil(size).max(1));
        let blocks = self.layout.device_blocks();
        if first >= blocks || length < size || least > u64::from(geometry.blocks_per_group) {
            return Err(Error::Invalid("the range to trim is invalid"));
        }
        let first = first.max(u64::from(geometry.first_data_block));
        let end = (start / size).saturating_add(length / size).min(blocks);
        let mut trimmed = 0;
        let mut at = first;
        while at < end {
            let Some(group) = geometry.group_of(FsBlock(at)) else { break };
            let blocks = geometry.group_blocks(group);
            trimmed += self.trim_group(
                group,
                (at - blocks.start) as u32,
                (end.min(blocks.end) - blocks.start) as u32,
                least as u32,
            )?;
            at = blocks.end;
        }
        Ok(trimmed * size)
    }

    /// As [`Volume::trim`], in blocks of a group; returns the number of blocks.
    fn trim_group(&self, group: GroupNo, from: u32, to: u32, least: u32) -> Result<u64> {
        let space = self.space()?;
        let size = u64::from(self.sb.geometry.block_size);
        let start = self.sb.geometry.group_start(group).get();
        let (mut at, mut trimmed) = (from, 0);
        while let Some(run) = space.set_aside(self.change(0)?.operation(), group, at..to, least)? {
            let outcome = self.device().discard((start + u64::from(run.start)) * size, u64::from(run.len) * size);
            space.release_run(group.get(), run);
            outcome?;
            trimmed += u64::from(run.len);
            at = run.end();
        }
        Ok(trimmed)
    }
}
