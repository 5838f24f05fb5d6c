//! Recovery after a loss of power in the middle of a generation, beside a full check.

use super::device::Watched;
use super::work::{Clock, Job, Syncs};
use super::{LINKED, Options, disk, failed, format_for, known, locations, on_new_volume, writing};
use crate::table::grouped;
use crate::{Error, Result};
use blockdev::BlockDevice;
use fs::{InodeNo, Mode, Volume, Warning};
use serde::Serialize;
use simdev::Report;
use std::path::Path;
use std::sync::Arc;

/// GiB of the volumes at full size.
const SIZES: [u64; 3] = [1, 16, 256];
/// Bytes of the smallest volume.
const SMALLEST: u64 = 64 << 20;
/// Numbers of files that the interrupted generation changes, at full size.
const CHANGED: [u64; 2] = [100, 10_000];
/// The least of these numbers.
const LEAST: u64 = 9;
/// Bytes of a file, and of an addition to it.
const CONTENT: usize = 4096;

/// Opening of a volume after a loss of power, which left the slot of a generation and half of its other writes.
#[derive(Debug, Clone, Serialize)]
pub struct Recovered {
    /// Bytes of the volume.
    pub size: u64,
    /// Files that were created, removed or extended before the loss of power.
    pub changed: u64,
    /// Inodes in the list.
    pub listed: u64,
    /// New files among them that had not reached the disk.
    pub lost: u64,
    /// The disk's time until the volume is repaired and open for writing, in seconds.
    pub seconds: f64,
    /// Reads until then.
    pub reads: u64,
    /// Bytes read until then.
    pub read_bytes: u64,
    /// Bytes written until then.
    pub written_bytes: u64,
    /// The disk's time for opening the same volume after it was unmounted, in seconds.
    pub clean_seconds: f64,
    /// The disk's time for a full check of it, in seconds.
    pub check_seconds: f64,
    /// Reads of the check.
    pub check_reads: u64,
    /// Bytes read by the check.
    pub check_bytes: u64,
}

/// Interrupts and recovers sparse volumes of each size; `say` is called before each.
///
/// # Errors
/// The first error; a volume that is not repaired from its list, or is damaged afterwards.
pub(super) fn run(options: &Options, say: &dyn Fn(&str)) -> Result<Vec<Recovered>> {
    let (mode, seed) = (known(LINKED)?, options.seed);
    let mut rows = Vec::new();
    for gib in SIZES {
        let size = options.volume(gib << 30, SMALLEST);
        on_new_volume(options, size, |path| {
            format_for(path, mode, 0)?;
            for (n, files) in CHANGED.into_iter().enumerate() {
                let changed = options.scaled(files).max(LEAST);
                say(&format!("recovery of {} MiB after changes of {} files", grouped(size >> 20), grouped(changed)));
                interrupt(path, mode, &format!("work{n}"), changed, seed)?;
                rows.push(Recovered { size, changed, ..recover(path, mode, seed)? });
            }
            Ok(())
        })?;
    }
    Ok(rows)
}

/// Changes files in a new directory of the volume, and drops it when the loss of power has passed.
fn interrupt(path: &Path, mode: Mode, name: &str, changed: u64, seed: u64) -> Result<()> {
    let disk = Arc::new(disk(path)?);
    let device = Arc::new(Watched::new(Arc::clone(&disk), locations(&disk, mode)?));
    let clock = Arc::new(Clock::new(disk));
    let below = Arc::clone(&device) as Arc<dyn BlockDevice>;
    let volume = Volume::open(below, &writing(mode, &clock, seed)).map_err(failed)?;
    let job = Job { volume: &volume, clock: &clock, syncs: Syncs::Once };
    change(&job, name, changed, &device).map_err(failed)
}

/// Creates files and makes them durable; then creates as many as it removes and extends, with a loss of power.
fn change(job: &Job<'_>, name: &str, changed: u64, device: &Watched) -> fs::Result<()> {
    let content = vec![0x5A; CONTENT];
    let third = changed.div_ceil(3);
    let dir = job.dir(InodeNo::ROOT, name)?;
    let mut old = Vec::new();
    for n in 0..2 * third {
        old.push(job.filled(dir, &format!("old{n}"), &content)?);
    }
    job.volume.sync()?;
    for n in 0..third {
        job.unlink(dir, format!("old{n}").as_bytes())?;
    }
    for number in old.into_iter().skip(third as usize) {
        job.add(number, CONTENT as u64, &content)?;
    }
    for n in 0..third {
        job.filled(dir, &format!("new{n}"), &content)?;
    }
    device.cut();
    job.volume.sync()
}

/// Opens the volume, which repairs it; opens it again, and checks it.
fn recover(path: &Path, mode: Mode, seed: u64) -> Result<Recovered> {
    let (report, warnings) = opened(path, mode, seed)?;
    let repaired = warnings.iter().find_map(|warning| match warning {
        Warning::ListRepaired { inodes, lost } => Some((*inodes as u64, *lost as u64)),
        _ => None,
    });
    let Some((listed, lost)) = repaired else {
        return Err(Error::Failed("the interrupted volume was not repaired from its list".into()));
    };
    let (clean, _) = opened(path, mode, seed)?;
    let checked = disk(path)?;
    let how = check::Options { threads: 1, ..Default::default() };
    let found = check::check(&path.to_string_lossy(), &checked, &how, &());
    if !found.map_err(|no| Error::Failed(no.to_string()))?.clean {
        return Err(Error::Failed("the repaired volume is damaged".into()));
    }
    let check = checked.report();
    Ok(Recovered {
        size: 0,
        changed: 0,
        listed,
        lost,
        seconds: report.time.as_secs_f64(),
        reads: report.reads,
        read_bytes: report.bytes_read,
        written_bytes: report.bytes_written,
        clean_seconds: clean.time.as_secs_f64(),
        check_seconds: check.time.as_secs_f64(),
        check_reads: check.reads,
        check_bytes: check.bytes_read,
    })
}

/// Opens the volume for writing with empty caches, and unmounts it; returns the requests until it was open, and the
/// warnings.
fn opened(path: &Path, mode: Mode, seed: u64) -> Result<(Report, Vec<Warning>)> {
    let disk = Arc::new(disk(path)?);
    let clock = Arc::new(Clock::new(Arc::clone(&disk)));
    let device = Arc::clone(&disk) as Arc<dyn BlockDevice>;
    let volume = Volume::open(device, &writing(mode, &clock, seed)).map_err(failed)?;
    let (report, warnings) = (disk.report(), volume.warnings().to_vec());
    volume.unmount().map_err(failed)?;
    Ok((report, warnings))
}
