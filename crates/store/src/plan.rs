//! Plans: how a closed generation reaches the device, as data.
//!
//! A plan can be printed, counted, tested without a disk, and every crash state in it enumerated.

use crate::{Error, Kind, Result};
use blockdev::{BlockDevice, Write};
use format::FsBlock;
use std::sync::Arc;

/// Longest single request made for writes that follow each other, in bytes.
const MAX_REQUEST: usize = 1 << 20;

/// One write of a plan.
#[derive(Debug, Clone)]
pub struct PlannedWrite {
    /// First byte on the device.
    pub at: u64,
    /// The bytes.
    pub data: Arc<[u8]>,
    /// What they are.
    pub kind: Kind,
}

/// Writes that may reach the device in any order, and whether the device is flushed after them.
#[derive(Debug, Clone, Default)]
pub struct Stage {
    /// The writes. No two overlap.
    pub writes: Vec<PlannedWrite>,
    /// The next stage begins only when these, and all before, would survive a loss of power.
    pub flush: bool,
}

/// Stages one after the other: a stage's writes are handed to the device when those of the stage before it have returned.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// The stages.
    pub stages: Vec<Stage>,
    /// Blocks that the cache need not keep any longer on account of a closed generation once the plan is executed: what
    /// the generation made of them is in its home place, or a later one has changed or freed them. Each stands here
    /// once, sooner or later, for each generation that changed it.
    pub home: Vec<FsBlock>,
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

/// Hands all writes to the device as one ascending batch, those that follow each other in one request.
fn write_all(device: &dyn BlockDevice, writes: &[PlannedWrite]) -> Result<()> {
    let mut order: Vec<&PlannedWrite> = writes.iter().collect();
    order.sort_unstable_by_key(|w| w.at);
    let mut runs: Vec<(u64, Vec<&PlannedWrite>, usize)> = Vec::new();
    for write in order {
        match runs.last_mut() {
            Some((at, run, len)) if *at + *len as u64 == write.at && *len + write.data.len() <= MAX_REQUEST => {
                *len += write.data.len();
                run.push(write);
            }
            _ => runs.push((write.at, vec![write], write.data.len())),
        }
    }
    let joined: Vec<Option<Vec<u8>>> = runs
        .iter()
        .map(|(_, run, len)| {
            (run.len() > 1).then(|| {
                let mut bytes = Vec::with_capacity(*len);
                run.iter().for_each(|w| bytes.extend_from_slice(&w.data));
                bytes
            })
        })
        .collect();
    let mut batch: Vec<Write<'_>> = runs
        .iter()
        .zip(&joined)
        .map(|((at, run, _), joined)| Write::new(*at, joined.as_deref().unwrap_or(&run[0].data)))
        .collect();
    device.write_many(&mut batch);
    batch.into_iter().try_for_each(|w| w.result).map_err(Error::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockdev::{MemoryDevice, Trace};

    #[test]
    fn neighbours_are_written_in_one_request() {
        let device = Trace::new(MemoryDevice::from_vec(vec![0; 64 * 1024]));
        let write = |n: u64| PlannedWrite { at: n * 1024, data: Arc::from([n as u8; 1024]), kind: Kind::InodeTable };
        let plan = Plan {
            stages: vec![
                Stage { writes: [9, 3, 4, 2, 30].map(write).to_vec(), flush: true },
                Stage { writes: vec![write(1)], flush: false },
            ],
            home: Vec::new(),
        };
        plan.execute(&device).unwrap();
        let counts = device.snapshot();
        assert_eq!((counts.writes.requests, counts.flushes), (4, 1));
        for n in [1, 2, 3, 4, 9, 30] {
            let mut bytes = [0; 1024];
            device.read(n * 1024, &mut bytes).unwrap();
            assert_eq!(bytes, [n as u8; 1024]);
        }
    }
}
