//! Writing a recovered journal home.
//!
//! 1. All copies are written and flushed before the log is emptied, and the log is emptied and flushed before the
//!    volume is marked as needing no replay. After an interruption at any point it can be repeated from the start, with
//!    the same result.
//! 2. The sequence number that the log continues with was never used: blocks of an interrupted transaction cannot be
//!    mistaken for part of a later one.

use super::replayed::{ESCAPED, Replayed};
use super::{Recovered, Recovery};
use crate::{Error, Result};
use blockdev::{BlockDevice, Read, Write};
use format::feature::Incompat;
use format::superblock::{self, DiskSuperblock, State};
use format::{FsBlock, Structure};
use std::sync::Arc;
use zerocopy::IntoBytes;

/// Bytes copied at a time.
const BATCH: usize = 8 << 20;

impl Recovery for Recovered {
    /// Whether no block of the volume has a newer copy in the journal.
    fn is_empty(&self) -> bool {
        self.copies.is_empty()
    }

    fn overlay(&self, volume: Arc<dyn BlockDevice>) -> Arc<dyn BlockDevice> {
        Arc::new(Replayed::new(volume, self))
    }

    /// Writes the journal's copies to their home locations on `volume`, empties the journal, and clears the mark in the
    /// volume's superblock that asks for a replay. Afterwards the volume is the same as after the kernel's replay.
    ///
    /// An error that made the kernel abort the journal ([`Recovered::errno`]) is moved into the volume's superblock: it
    /// is marked as having errors.
    ///
    /// # Errors
    /// [`Error::Journal`] if the log is damaged or contains fast commits, before anything is written. Those of the
    /// devices. `Corrupt` if the volume has no superblock after the copies are home.
    fn apply(&self, volume: &dyn BlockDevice) -> Result<()> {
        if let Some(first) = self.damage.first() {
            let more = match self.damage.len() {
                1 => String::new(),
                n => format!(" (and {} more)", n - 1),
            };
            return Err(Error::Journal(format!("the journal is damaged and was not replayed: {first}{more}")));
        }
        if self.fast_commits > 0 {
            let what =
                "the journal contains fast commits, which only the kernel or e2fsck can replay; nothing was written";
            return Err(Error::Journal(what.to_owned()));
        }
        write_home(self, volume)?;
        if self.errno != 0 {
            edit_superblock(volume, |sb| sb.s_state = (sb.s_state.get() | State::ERROR.bits()).into())?;
        }
        volume.flush()?;
        empty_log(self)?;
        edit_superblock(volume, |sb| {
            sb.s_feature_incompat = (sb.s_feature_incompat.get() & !Incompat::NEEDS_RECOVERY.bits()).into();
        })?;
        Ok(volume.flush()?)
    }
}

fn write_home(recovered: &Recovered, volume: &dyn BlockDevice) -> Result<()> {
    let size = recovered.journal.block_size as usize;
    let copies: Vec<_> = recovered.copies.iter().map(|(home, copy)| (*home, *copy)).collect();
    let mut buffer = vec![0; copies.len().min(BATCH / size) * size];
    for batch in copies.chunks(BATCH / size) {
        let bytes = &mut buffer[..batch.len() * size];
        let mut reads = Vec::new();
        let mut rest = &mut *bytes;
        for run in batch.chunk_by(|(_, a), (_, b)| a.at + size as u64 == b.at) {
            let (part, after) = rest.split_at_mut(run.len() * size);
            rest = after;
            reads.push(Read::new(run[0].1.at, part));
        }
        recovered.journal.device.read_many(&mut reads);
        reads.into_iter().try_for_each(|read| read.result)?;
        for (block, (_, copy)) in bytes.chunks_exact_mut(size).zip(batch) {
            if copy.escaped {
                block[..ESCAPED.len()].copy_from_slice(&ESCAPED);
            }
        }
        let mut writes = Vec::new();
        let mut rest = &*bytes;
        for run in batch.chunk_by(|(a, _), (b, _)| follows(*a, *b)) {
            let (part, after) = rest.split_at(run.len() * size);
            rest = after;
            // it fits: every home block was checked to be on the volume
            writes.push(Write::new(run[0].0.get().saturating_mul(size as u64), part));
        }
        volume.write_many(&mut writes);
        writes.into_iter().try_for_each(|write| write.result)?;
    }
    Ok(())
}

fn follows(a: FsBlock, b: FsBlock) -> bool {
    a.checked_add(1) == Some(b)
}

fn empty_log(recovered: &Recovered) -> Result<()> {
    let journal = &recovered.journal;
    let superblock = journal.read_superblock()?;
    let mut disk = *superblock.disk();
    if superblock.start().is_none() && superblock.errno() == 0 {
        return Ok(());
    }
    if superblock.start().is_some() {
        disk.s_sequence = recovered.next_sequence.wrapping_add(1).into();
    }
    disk.s_start = 0.into();
    disk.s_errno = 0.into();
    disk.set_checksum();
    journal.device.write(journal.superblock_position()?, disk.as_bytes())?;
    Ok(journal.device.flush()?)
}

/// Changes the volume's superblock with a single write.
fn edit_superblock(volume: &dyn BlockDevice, change: impl FnOnce(&mut DiskSuperblock)) -> Result<()> {
    let mut bytes = [0; DiskSuperblock::SIZE];
    volume.read(superblock::OFFSET, &mut bytes)?;
    let mut sb = DiskSuperblock::from_slice(&bytes)
        .filter(|sb| sb.s_magic == superblock::MAGIC)
        .ok_or_else(|| format::Error::corrupt(Structure::Superblock, "missing after its journal was replayed"))?;
    let before = sb;
    change(&mut sb);
    if sb != before {
        sb.set_checksum();
        volume.write(superblock::OFFSET, sb.as_bytes())?;
    }
    Ok(())
}
