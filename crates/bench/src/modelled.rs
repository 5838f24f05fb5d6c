//! The reads of both checkers on a modelled disk: virtual seconds, a function of the reads and their order alone.
//!
//! 1. Only the device's time is counted. The processor's time between two reads is not, and nothing that the kernel
//!    would do: no page cache, no reading ahead. A block that is read twice comes from the disk twice, unless the disk
//!    itself has it in its buffer.
//! 2. Each read of a peer waits for the one before it. Extant hands reads over in batches, which a disk with a queue
//!    serves in the order that suits it: that is a peer of its own, `extant, batches`. e2fsck has none.
//! 3. Extant reads with one thread here, for only then the order of its reads is always the same. e2fsck reads the
//!    bitmaps with several threads at once, in an order that the system's scheduler makes: its reads are timed one
//!    thread after the other, each from where it was begun to its end, as a machine does that runs one at a time.
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
    /// Bytes they asked for.
    pub bytes: u64,
    /// The device's time in parts of e2fsck's; unset where that is not known.
    pub to_e2fsck: Option<f64>,
}

impl Modelled {
    /// Times a check of `volume` by Extant, made here, and e2fsck's reads of it as strace saw them, in a fixed order.
    ///
    /// # Errors
    /// [`Error::Device`] where the disk does not hold the volume, or the volume cannot be read;
    /// [`Error::Failed`] where it cannot be checked.
    pub(crate) fn of(model: &str, parameters: &Parameters, volume: &Path, e2fsck: Option<&[Event]>) -> Result<Self> {
        let device = Trace::with_events(FileDevice::open(volume, OpenOptions::default())?, usize::MAX);
        let bytes = device.geometry().len;
        let device = Model::new(device, parameters)?;
        let how = check::Options { threads: 1, ..Default::default() };
        check::check(&volume.to_string_lossy(), &device, &how, &()).map_err(|no| Error::Failed(no.to_string()))?;
        let batches = device.report();
        let timed = |events: &[Event]| {
            // a read of nothing, at the end of a file, never comes to the disk
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
        format!(
            "\nOn the modelled disk {}, the device's time alone, no two threads at once:\n\n{}",
            self.model,
            table.text()
        )
    }
}
