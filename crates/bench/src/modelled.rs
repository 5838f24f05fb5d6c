//! The reads of both checkers on a modelled disk: virtual seconds, which depend on the reads and their order alone.
//!
//! 1. Only the device's time is counted. CPU time between two reads and effects of the kernel (page cache, read-ahead)
//!    are excluded. A block that is read twice is read from the disk twice, unless it is in the disk's own buffer.
//! 2. Each read of a peer waits for the one before it. Extant submits reads in batches, which a disk with a queue
//!    serves in its own order: that is a separate peer, `extant, batches`. e2fsck does not use batches.
//! 3. Extant reads with one thread here, as only then the order of its reads is deterministic. e2fsck reads the bitmaps
//!    with several threads, in an order that depends on the scheduler: its reads are timed one thread after the other,
//!    each inserted where it was started.
//! 4. So the figures of both are the same in each run, to the last digit.

use crate::table::{Table, grouped};
use crate::{Error, Result};
use blockdev::{BlockDevice, FileDevice, OpenOptions};
use serde::Serialize;
use simdev::{Event, Model, Parameters, Report, Trace, time_trace};
use std::path::Path;

/// The figures of both checkers' reads on one modelled disk.
#[derive(Debug, Clone, Serialize)]
pub struct Modelled {
    /// `hdd`, `ssd` or the file of parameters.
    pub model: String,
    /// `extant`, `extant, batches` and, where strace could be used, `e2fsck`, one thread after the other.
    pub peers: Vec<ModelledFigures>,
}

/// The figures of one peer's reads.
#[derive(Debug, Clone, Serialize)]
pub struct ModelledFigures {
    /// The peer whose reads these are.
    pub peer: String,
    /// The device's time, in seconds.
    pub virtual_seconds: f64,
    /// Moves of the arm to another cylinder; a flash disk has no arm, and none of these.
    pub seeks: u64,
    /// Reads that reached the device.
    pub reads: u64,
    /// Bytes in these reads.
    pub bytes: u64,
    /// Ratio of the device's time to e2fsck's; `None` where that is unknown.
    pub to_e2fsck: Option<f64>,
}

impl Modelled {
    /// Times the reads of a check of `volume` by Extant, run here, and those of e2fsck as traced, in a fixed order.
    ///
    /// # Errors
    /// [`Error::Device`] where the disk is smaller than the volume, or the volume cannot be read; [`Error::Failed`]
    /// where it cannot be checked.
    pub(crate) fn of(model: &str, parameters: &Parameters, volume: &Path, e2fsck: Option<&[Event]>) -> Result<Self> {
        let device = Trace::with_events(FileDevice::open(volume, OpenOptions::default())?, usize::MAX);
        let bytes = device.geometry().len;
        let device = Model::new(device, parameters)?;
        let how = check::Options { threads: 1, ..Default::default() };
        check::check(&volume.to_string_lossy(), &device, &how, &()).map_err(|no| Error::Failed(no.to_string()))?;
        let batches = device.report();
        let timed = |events: &[Event]| {
            // an empty read at the end of a file does not reach the disk
            let events: Vec<_> = events.iter().copied().filter(|event| event.len > 0).collect();
            time_trace(parameters, bytes, &events)
        };
        let base = e2fsck.map(timed).transpose()?;
        let figures = |(peer, report): (&str, Report)| ModelledFigures {
            peer: peer.into(),
            virtual_seconds: report.time.as_secs_f64(),
            seeks: report.seeks,
            reads: report.reads,
            bytes: report.bytes_read,
            to_e2fsck: base.map(|base| report.time.as_secs_f64() / base.time.as_secs_f64()).filter(|r| r.is_finite()),
        };
        let extant = [("extant", timed(&device.into_inner().events())?), ("extant, batches", batches)];
        let peers = extant.into_iter().chain(base.map(|base| ("e2fsck", base))).map(figures);
        Ok(Self { model: model.to_owned(), peers: peers.collect() })
    }

    /// A table in Markdown, with a line above it.
    pub(crate) fn text(&self) -> String {
        let mut table = Table::new(["reads of", "virtual s", "/ e2fsck", "seeks", "reads", "bytes"]);
        for figures in &self.peers {
            table.row([
                figures.peer.clone(),
                format!("{:.6}", figures.virtual_seconds),
                figures.to_e2fsck.map_or_else(|| "–".to_owned(), |ratio| format!("{ratio:.4}")),
                grouped(figures.seeks),
                grouped(figures.reads),
                grouped(figures.bytes),
            ]);
        }
        format!("\nOn the modelled disk {}, device time only, one thread at a time:\n\n{}", self.model, table.text())
    }
}
