//! A generation as a run of log blocks: revoke blocks, descriptor blocks each followed by the copies that it describes,
//! and the commit block.

use super::log::Log;
use crate::{BlockWrite, Kind, PlannedWrite, Result};
use format::FsBlock;
use format::jbd2::{LoggedBlock, needs_escape};
use std::sync::Arc;
use std::time::Duration;

/// The writes of a transaction.
pub(super) struct Written {
    /// Everything but the commit block, in the order of the log.
    pub(super) writes: Vec<PlannedWrite>,
    /// The commit block, which makes the transaction valid.
    pub(super) commit: PlannedWrite,
}

/// Writes a transaction to the log from its head on. `revoked` is ascending. The copies are the generation's own bytes,
/// except where a block must be escaped.
///
/// # Errors
/// If a block of the log is not on the device.
///
/// # Panics
/// If the log has too few free blocks.
pub(super) fn write(
    log: &mut Log,
    sequence: u32,
    uuid: &[u8; 16],
    blocks: &[BlockWrite],
    revoked: &[FsBlock],
    time: Duration,
) -> Result<Written> {
    let format = log.format().clone();
    let mut writes = Vec::with_capacity(log.blocks_for(blocks.len(), revoked.len()));
    let mut put = |log: &mut Log, data: Arc<[u8]>| -> Result<()> {
        writes.push(PlannedWrite { at: log.take()?, data, kind: Kind::Engine });
        Ok(())
    };
    for revoked in revoked.chunks(format.revokes_per_block()) {
        put(log, Arc::from(format.revoke(sequence, revoked)))?;
    }
    let mut sum = !0;
    for blocks in blocks.chunks(format.tags_per_block()) {
        let copies: Vec<(Arc<[u8]>, bool)> = blocks.iter().map(|write| as_logged(&write.data)).collect();
        let logged: Vec<LoggedBlock<'_>> = blocks
            .iter()
            .zip(&copies)
            .map(|(write, (data, escaped))| LoggedBlock { home: write.block, escaped: *escaped, data })
            .collect();
        let descriptor = format.descriptor(sequence, uuid, &logged);
        sum = format.sum_transaction(sum, &descriptor);
        put(log, Arc::from(descriptor))?;
        for (data, _) in copies {
            sum = format.sum_transaction(sum, &data);
            put(log, data)?;
        }
    }
    let data = Arc::from(format.commit(sequence, time, sum));
    let commit = PlannedWrite { at: log.take()?, data, kind: Kind::Engine };
    Ok(Written { writes, commit })
}

/// A block as it is logged, and whether it had to be escaped.
fn as_logged(data: &Arc<[u8]>) -> (Arc<[u8]>, bool) {
    if !needs_escape(data) {
        return (Arc::clone(data), false);
    }
    let mut copy = Arc::clone(data);
    Arc::make_mut(&mut copy)[..4].fill(0);
    (copy, true)
}
