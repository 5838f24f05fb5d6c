//! Plans: the writes of a closed generation, as data.
//!
//! A plan can be printed, counted, tested without a disk, and all crash states in it enumerated.

use crate::{Error, Kind, Result};
use blockdev::{BlockDevice, Write};
use format::FsBlock;
use std::sync::Arc;

/// The maximum length of a request for adjacent writes, in bytes.
const MAX_REQUEST: usize = 1 << 20;
/// The maximum number of bytes submitted to the device together: joined writes are copied, and the copies of a long log
/// need not all be in memory at the same time.
const MAX_BATCH: usize = 8 << 20;

/// One write of a plan.
#[derive(Debug, Clone)]
pub struct PlannedWrite {
    /// First byte on the device.
    pub at: u64,
    /// The bytes.
    pub data: Arc<[u8]>,
    /// Their kind.
    pub kind: Kind,
}

/// Writes that may reach the device in any order, with or without a flush after them.
#[derive(Debug, Clone, Default)]
pub struct Stage {
    /// The writes. No two overlap.
    pub writes: Vec<PlannedWrite>,
    /// The next stage begins only when these writes, and all before, are durable.
    pub flush: bool,
}

/// A sequence of stages: a stage's writes are submitted to the device when those of the previous stage have returned.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// The stages.
    pub stages: Vec<Stage>,
    /// Blocks that lose a closed generation's pin in the cache once the plan is executed: the content by the generation
    /// is home, or a later generation has changed or freed the block. Each block is listed once, in this or a later
    /// plan, for each generation that changed it.
    pub home: Vec<FsBlock>,
    /// The newest generation that is durable after the execution, as far as the engine guarantees it; 0 if the plan
    /// makes no further one durable.
    pub durable: u64,
}

impl Plan {
    /// Executes the plan.
    pub(crate) fn execute(&self, device: &dyn BlockDevice) -> Result<()> {
        for stage in &self.stages {
            write_all(device, &stage.writes)?;
            if stage.flush {
                device.flush()?;
            }
        }
        Ok(())
    }
}

/// Submits all writes to the device in ascending order, adjacent ones in one request.
fn write_all(device: &dyn BlockDevice, writes: &[PlannedWrite]) -> Result<()> {
    let mut order: Vec<&PlannedWrite> = writes.iter().collect();
    order.sort_unstable_by_key(|w| w.at);
    let mut buffer = Vec::new();
    let mut rest = &order[..];
    while !rest.is_empty() {
        let mut len = 0;
        let fit = rest.iter().take_while(|w| {
            len += w.data.len();
            len <= MAX_BATCH
        });
        let (batch, after) = rest.split_at(fit.count().max(1));
        rest = after;
        write_batch(device, batch, &mut buffer)?;
    }
    Ok(())
}

fn write_batch(device: &dyn BlockDevice, order: &[&PlannedWrite], buffer: &mut Vec<u8>) -> Result<()> {
    let mut in_run = 0;
    let runs: Vec<&[&PlannedWrite]> = order
        .chunk_by(|a, b| {
            in_run += a.data.len();
            let joined = a.at + a.data.len() as u64 == b.at && in_run + b.data.len() <= MAX_REQUEST;
            in_run = if joined { in_run } else { 0 };
            joined
        })
        .collect();
    buffer.clear();
    for run in runs.iter().filter(|run| run.len() > 1) {
        run.iter().for_each(|w| buffer.extend_from_slice(&w.data));
    }
    let mut joined = &buffer[..];
    let mut requests: Vec<Write<'_>> = Vec::with_capacity(runs.len());
    for run in runs {
        let bytes = match run {
            [alone] => &alone.data[..],
            _ => {
                let (bytes, after) = joined.split_at(run.iter().map(|w| w.data.len()).sum());
                joined = after;
                bytes
            }
        };
        requests.push(Write::new(run[0].at, bytes));
    }
    device.write_many(&mut requests);
    requests.into_iter().try_for_each(|w| w.result).map_err(Error::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockdev::MemoryDevice;
    use simdev::Trace;

    #[test]
    fn long_runs_are_cut() {
        let blocks = 12 << 10;
        let device = Trace::new(MemoryDevice::from_vec(vec![0; blocks * 1024 + 512]));
        let write = |n: usize| PlannedWrite {
            at: n as u64 * 1024 + 512,
            data: Arc::from([(n % 251) as u8; 1024]),
            kind: Kind::Engine,
        };
        let stage = Stage { writes: (0..blocks).rev().map(write).collect(), flush: false };
        Plan { stages: vec![stage], ..Plan::default() }.execute(&device).unwrap();
        assert_eq!(device.counters().writes.requests, 12);
        let mut bytes = vec![0; blocks * 1024];
        device.read(512, &mut bytes).unwrap();
        assert!(bytes.chunks(1024).enumerate().all(|(n, block)| block.iter().all(|b| *b == (n % 251) as u8)));
    }

    #[test]
    fn neighbours_are_written_in_one_request() {
        let device = Trace::new(MemoryDevice::from_vec(vec![0; 64 * 1024]));
        let write = |n: u64| PlannedWrite { at: n * 1024, data: Arc::from([n as u8; 1024]), kind: Kind::InodeTable };
        let plan = Plan {
            stages: vec![
                Stage { writes: [9, 3, 4, 2, 30].map(write).to_vec(), flush: true },
                Stage { writes: vec![write(1)], flush: false },
            ],
            ..Plan::default()
        };
        plan.execute(&device).unwrap();
        let counts = device.counters();
        assert_eq!((counts.writes.requests, counts.flushes), (4, 1));
        for n in [1, 2, 3, 4, 9, 30] {
            let mut bytes = [0; 1024];
            device.read(n * 1024, &mut bytes).unwrap();
            assert_eq!(bytes, [n as u8; 1024]);
        }
    }
}
