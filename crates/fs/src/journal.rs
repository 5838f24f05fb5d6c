//! The location of the journal inside a volume.

use crate::{Error, Mapping, Maps, Result};
use format::feature::Compat;
use format::inode::FileKind;
use format::{FileBlock, InodeNo, Structure, Where};
use std::ops::Range;
use std::sync::Arc;
use store::recovery::{BlockExtent, JournalLocation};

/// Maximum number of extents of a journal's file: it is created at once and has only a few.
const MAX_JOURNAL_RUNS: usize = 1 << 20;

impl Maps {
    /// The journal inside the volume.
    pub(crate) fn journal(&self) -> Result<JournalLocation> {
        let inode = self.sb.journal_inode().ok_or_else(|| Error::Unsupported("an external journal".to_owned()))?;
        let device = Arc::clone(self.store.device());
        Ok(JournalLocation::internal(device, self.sb.geometry.block_size, self.journal_runs(inode)?))
    }

    /// The blocks of the journal inside the volume, ascending; none if their location cannot be read.
    pub(crate) fn journal_blocks(&self) -> Vec<Range<u64>> {
        let inode = self.sb.journal_inode().filter(|_| self.sb.features.compat.contains(Compat::HAS_JOURNAL));
        let runs = inode.and_then(|inode| self.journal_runs(inode).ok()).unwrap_or_default();
        let mut blocks: Vec<_> = runs.iter().map(|run| run.first.get()..run.first.get() + run.count).collect();
        blocks.sort_unstable_by_key(|run| run.start);
        blocks
    }

    /// The blocks of the journal's inode, in the order of the file.
    fn journal_runs(&self, number: InodeNo) -> Result<Vec<BlockExtent>> {
        let inode = self.load_inode(number)?;
        if inode.raw().disk.i_links_count.get() == 0 {
            return Err(Error::Stale(number));
        }
        let bad = |what| Err(Error::corrupt(Structure::Journal, Where::Inode(number), what));
        if inode.kind != FileKind::Regular {
            return bad("its inode is not a regular file");
        }
        let end = inode.size / u64::from(self.sb.geometry.block_size);
        let (mut runs, mut at) = (Vec::new(), FileBlock(0));
        while at.get() < end {
            let run = self.map(&inode, at)?;
            let Mapping::Data(first) = run.mapping else { return bad("its file has a hole") };
            if runs.len() == MAX_JOURNAL_RUNS {
                return bad("its file has too many extents");
            }
            runs.push(BlockExtent { first, count: run.len.min(end - at.get()) });
            at = run.end();
        }
        Ok(runs)
    }
}
