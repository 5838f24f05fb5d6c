//! A full log: opening after a crash, and look-ups in the table.

use crate::Result;
use crate::kero::device::{Sparse, ZEROES, disk, failed};
use blockdev::BlockDevice;
use kero::{BLOCK, FormatOptions, Kero};
use serde::Serialize;
use simdev::Model;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

/// The length of the device in lengths of the log: those of a log of the default length.
const DEVICE: u64 = 64;
/// Blocks of a group.
const GROUP: u64 = 16;
/// The maximum number of blocks between checkpoints, in the layer.
const CHECKPOINT: u64 = 16_384;
/// Look-ups that are timed.
const LOOK_UPS: usize = 1 << 20;

/// Opening a layer with a full log after a crash, and look-ups in its table.
#[derive(Debug, Clone, Serialize)]
pub struct Opened {
    /// Bytes of the log.
    pub log: u64,
    /// Bytes of it that contain the newest content of a block.
    pub mapped: u64,
    /// The disk's time for opening, in seconds.
    pub seconds: f64,
    /// Bytes read by opening.
    pub read: u64,
    /// Memory of the table in bytes.
    pub memory: u64,
    /// Its ratio to the length of the log.
    pub of_log: f64,
    /// The machine's time for the look-up of a block that is in the log, in nanoseconds. Differs between runs.
    pub look_up_ns: f64,
    /// The same for a block at home, most of which are beside one in the log. Differs between runs.
    pub home_look_up_ns: f64,
}

/// Fills a log of `log` bytes, and opens the layer again as after a crash.
///
/// # Errors
/// Those of the layer.
pub(crate) fn opened(log: u64, seed: u64) -> Result<Opened> {
    let device = Arc::new(Sparse::new(DEVICE * log));
    let written = fill(&device, log, seed)?;
    let model = Model::new(Arc::clone(&device), &disk(DEVICE * log)?)?;
    let layer = Kero::open(&model, kero::Options::default()).map_err(failed)?;
    let (report, stats) = (model.report(), layer.stats());
    let first_of_log = layer.layout().slot(0);
    let is_in_log = |offset: u64| layer.location(offset).is_some_and(|at| at >= first_of_log);
    let in_log: Vec<u64> = written.into_iter().filter(|offset| is_in_log(*offset)).collect();
    let mut random = fastrand::Rng::with_seed(seed);
    let chosen: Vec<u64> = match in_log.len() {
        0 => Vec::new(),
        count => (0..LOOK_UPS).map(|_| in_log[random.usize(..count)]).collect(),
    };
    let beside: Vec<u64> = chosen.iter().map(|offset| offset + BLOCK).filter(|offset| !is_in_log(*offset)).collect();
    Ok(Opened {
        log,
        mapped: stats.log_mapped,
        seconds: report.time.as_secs_f64(),
        read: report.bytes_read,
        memory: stats.table_memory,
        of_log: stats.table_memory as f64 / log as f64,
        look_up_ns: look_up(&layer, &chosen),
        home_look_up_ns: look_up(&layer, &beside),
    })
}

/// Writes groups of blocks at random locations until the layer makes space and opening has to read many groups after
/// the newest checkpoint. Returns the locations, in bytes.
fn fill(device: &Arc<Sparse>, log: u64, seed: u64) -> Result<Vec<u64>> {
    let options = FormatOptions { log: Some(log), uuid: Some([5; 16]), ..FormatOptions::default() };
    kero::format(device, &options).map_err(failed)?;
    let layer = Kero::open(Arc::clone(device), kero::Options::default()).map_err(failed)?;
    let mut random = fastrand::Rng::with_seed(seed);
    let blocks = u64::from(layer.layout().data);
    let log_blocks = log / BLOCK;
    let far = (log_blocks / 8).min(CHECKPOINT) * 3 / 4;
    let (mut written, mut since, mut checkpoints) = (Vec::new(), 0, 0);
    // the log is full after as many groups as it has blocks, however often checkpoints are written
    for _ in 0..log_blocks {
        for _ in 0..GROUP {
            let offset = random.u64(..blocks) * BLOCK;
            layer.write(offset, &ZEROES)?;
            written.push(offset);
        }
        layer.flush()?;
        let stats = layer.stats();
        since = if stats.checkpoints > checkpoints { 0 } else { since + GROUP + 1 };
        checkpoints = stats.checkpoints;
        if stats.cleaning_groups > 0 && since >= far {
            break;
        }
    }
    Ok(written)
}

/// The time for a look-up in nanoseconds, on average; 0 without any.
fn look_up<D: BlockDevice>(layer: &Kero<D>, offsets: &[u64]) -> f64 {
    let begun = Instant::now();
    for offset in offsets {
        black_box(layer.location(black_box(*offset)));
    }
    begun.elapsed().as_nanos() as f64 / offsets.len().max(1) as f64
}
