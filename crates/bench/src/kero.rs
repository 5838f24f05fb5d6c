//! The experiments of *Decoupled Address Updates* (Kero; section 7) on a modelled disk: ext2 on the layer, plain ext2,
//! ext3 ordered and ext3 data=journal, through the library.
//!
//! 1. *PostMark*: 1 000 files of 512 bytes to 1 MiB and 1 000 transactions, with content.
//! 2. *Bonnie++*, its phases: a file of 1 GiB written, rewritten and read; small files created, read and deleted.
//! 3. *Random writes* of 4 KiB, with an fsync after each and after eight, before a short log wraps and later; after
//!    them a sequential read.
//! 4. *A full log*: opening after a crash, the memory of the table, and look-ups.
//!
//! Each work is measured until the last sync, and until everything is at home: the volume unmounted, the layer removed
//! by `drain`. The layer has no idle time, in which it would move blocks home at no cost to the work. All reads of
//! content reach the disk, as there is no page cache. A generation closes after an amount of work, a 16th of the log.
//!
//! There are three volumes on the layer: on a device that was empty, where blank blocks are written in place; the same
//! with a log of a 16th, which wraps; and on a device that was in use, where all content goes to the log. Each ext3 has
//! a journal as long as the log and one as long as the short log, which is the usual length on such a device; a layer is
//! compared with those of its length. The paper compares a log longer than all content with journals of the usual
//! length. Except for the look-ups, which take the machine's time, the result depends on the seed alone.

mod device;
mod full_log;
mod sizes;
mod stage;
mod works;

pub use full_log::Opened;
pub use stage::{Layered, Worked};

use crate::Result;
use crate::table::{Table, grouped};
use serde::Serialize;
use sizes::Sizes;
use stage::{PEERS, Stage, compare};
use std::path::PathBuf;

/// Options of the measurement.
#[derive(Debug, Clone)]
pub struct Options {
    /// A directory for volumes, one at a time: sparse files.
    pub dir: PathBuf,
    /// Fraction of the full size.
    pub scale: f64,
    /// Seed of the choice of files and locations.
    pub seed: u64,
}

/// The result.
#[derive(Debug, Clone, Serialize)]
pub struct Figures {
    /// Fraction of the full size.
    pub scale: f64,
    /// Bytes of the device, log included.
    pub device: u64,
    /// Bytes of the log, and of a journal.
    pub log: u64,
    /// Bytes of the short log.
    pub short_log: u64,
    /// The figures of each kind of work and peer.
    pub work: Vec<Worked>,
    /// One for each length of a log: the usual one, and the default limit.
    pub opened: Vec<Opened>,
}

/// A set of work on a volume of its own.
type Set<'a> = (&'a str, &'a dyn Fn(&Stage) -> Result<Vec<Worked>>);

/// Runs the experiments. `say` is called before each step.
///
/// # Errors
/// The first error.
pub fn run(options: &Options, say: &dyn Fn(&str)) -> Result<Figures> {
    let sizes = Sizes::of(options.scale);
    let sets: [Set<'_>; 4] = [
        ("PostMark", &|stage| works::postmark(stage, &sizes)),
        ("Bonnie++", &|stage| works::bonnie(stage, &sizes)),
        ("random writes, one writer", &|stage| works::random(stage, &sizes, 1)),
        ("random writes, eight writers", &|stage| works::random(stage, &sizes, 8)),
    ];
    let mut work = Vec::new();
    for (name, run) in sets {
        let mut rows = Vec::new();
        for peer in &PEERS {
            say(&format!("{}: {name}", peer.name));
            rows.push(Stage::with((options.dir.as_path(), &sizes, options.seed), peer, run)?);
        }
        // the peers of each work together
        let mut rows: Vec<_> = rows.into_iter().map(Vec::into_iter).collect();
        loop {
            let together: Vec<Worked> = rows.iter_mut().filter_map(Iterator::next).collect();
            if together.is_empty() {
                break;
            }
            work.extend(together);
        }
    }
    compare(&mut work);
    let mut opened = Vec::new();
    for log in [sizes.log, sizes.long_log] {
        say(&format!("opening a layer with a full log of {} MiB", grouped(log >> 20)));
        opened.push(full_log::opened(log, options.seed)?);
    }
    let Sizes { device, log, short_log, .. } = sizes;
    Ok(Figures { scale: options.scale, device, log, short_log, work, opened })
}

/// A figure, or a dash if there is none.
fn or_dash(value: f64, text: String) -> String {
    if value > 0.0 { text } else { "–".to_owned() }
}

/// The table of times.
fn times(work: &[Worked]) -> Table {
    let mut table = Table::new([
        "work",
        "peer",
        "disk s",
        "/ journal",
        "/ ordered",
        "at home s",
        "/ journal",
        "/ ordered",
        "read s",
        "write MB/s",
    ]);
    for row in work {
        table.row([
            row.work.clone(),
            row.peer.to_owned(),
            format!("{:.3}", row.seconds),
            format!("{:.3}", row.to_journal),
            format!("{:.3}", row.to_ordered),
            format!("{:.3}", row.home_seconds),
            format!("{:.3}", row.home_to_journal),
            format!("{:.3}", row.home_to_ordered),
            or_dash(row.read_seconds, format!("{:.3}", row.read_seconds)),
            or_dash(row.write_bandwidth, format!("{:.1}", row.write_bandwidth / 1e6)),
        ]);
    }
    table
}

/// The table of writes.
fn writes(work: &[Worked]) -> Table {
    let mut table = Table::new([
        "work",
        "peer",
        "content MiB",
        "device / content",
        "at home",
        "flushes",
        "layer's factor",
        "groups",
        "split",
        "home MiB",
        "again MiB",
        "drain MiB",
        "laps",
    ]);
    let mib = |bytes: u64| format!("{:.1}", bytes as f64 / f64::from(1 << 20));
    for row in work {
        let mut cells = vec![
            row.work.clone(),
            row.peer.to_owned(),
            mib(row.written),
            or_dash(row.factor, format!("{:.3}", row.factor)),
            or_dash(row.home_factor, format!("{:.3}", row.home_factor)),
            grouped(row.flushes),
        ];
        if let Some(layer) = &row.layer {
            cells.extend([
                format!("{:.3}", layer.write_factor),
                grouped(layer.groups),
                grouped(layer.split),
                mib(layer.home_bytes),
                mib(layer.again_bytes),
                mib(layer.drained_bytes),
                format!("{:.2}", layer.laps),
            ]);
        }
        table.row(cells);
    }
    table
}

impl Figures {
    /// The result as Markdown tables.
    #[must_use]
    pub fn text(&self) -> String {
        let mut full = Table::new([
            "full log of",
            "mapped MiB",
            "open, disk s",
            "read MiB",
            "table KiB",
            "of the log",
            "look-up in the log, ns",
            "at home, ns",
        ]);
        for row in &self.opened {
            full.row([
                format!("{} MiB", grouped(row.log >> 20)),
                grouped(row.mapped >> 20),
                format!("{:.3}", row.seconds),
                format!("{:.1}", row.read as f64 / f64::from(1 << 20)),
                grouped(row.memory >> 10),
                format!("{:.3} %", 100.0 * row.of_log),
                format!("{:.0}", row.look_up_ns),
                format!("{:.0}", row.home_look_up_ns),
            ]);
        }
        let (work, writes) = (times(&self.work).text(), writes(&self.work).text());
        let mib = |bytes: u64| grouped(bytes >> 20);
        format!(
            "scale {}: device {} MiB, log and journal {} MiB, short log {} MiB\n\n{work}\n{writes}\n{}",
            self.scale,
            mib(self.device),
            mib(self.log),
            mib(self.short_log),
            full.text()
        )
    }
}
