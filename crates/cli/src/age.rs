//! `extant age`: ages a volume as years of use would.

use crate::copy_in::on_signals;
use crate::error_report::{Failure, Result, say};
use crate::output::{print_json, stdout};
use crate::progress::{Bar, Unit};
use crate::source::Target;
use bench::age::{self, Options};
use clap::Args;
use fs::{Consistency, Placement, Timestamp, WriteOptions};
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering;

#[derive(Debug, Args)]
#[command(
    about = "Age a volume: fill it, then create, append to, truncate and delete files",
    after_help = "Examples:
  extant mkfs -t ext3 old.img 64G && extant age --fill 95 --rounds 100 old.img
  extant mkfs new.img 10G && extant age --seed 7 --fill 80 new.img   filled, not aged
  extant mkfs near.img 64G && extant age --placement hint near.img
  extant mkfs large.img 64G && extant age --largest 65536 --fill 75 large.img   large files

The workload is that of the ffsck paper (FAST '13, section 3.2): a directory for each block group, with files of 1 to \
    512 blocks (--largest) that fill a fifth of the group; then new files, and up to 256 more blocks for existing ones, until the \
    volume is as full as --fill says; then rounds, each with one operation in each directory: a file is created, \
    appended to, truncated at a random block or deleted. After each round the volume is filled again. The seed \
    determines everything.

File content is not written. Files have all their blocks, so checkers and allocators meet ordinary metadata, but reading \
    a file returns what was on the device before: use such a volume for measurements only. An image file stays sparse.

The volume must not be mounted, and should be empty: it must not have the directories of an earlier run, /d0 and so on. No journal and no write ordering protects it meanwhile: after a \
    crash, recreate it. SIGINT and SIGTERM stop the aging and leave the volume consistent.

Exit status: 0 done, 1 not done or interrupted, 2 wrong usage."
)]
pub(crate) struct Age {
    #[command(flatten)]
    source: Target,

    /// Random seed
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,

    /// Percentage of the blocks that are in use at the end, about; on a small native volume it may be several percent more
    #[arg(long, value_name = "PERCENT", default_value_t = 90.0, value_parser = percent)]
    fill: f64,

    /// Number of rounds after filling, each with one operation in each directory
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    rounds: u32,

    /// Maximum number of blocks of a new file; files grow by at most half of it
    #[arg(long, value_name = "BLOCKS", default_value_t = age::LARGEST, value_parser = clap::value_parser!(u64).range(2..))]
    largest: u64,

    /// Block placement: usual, or hint, which puts metadata at the front of each group to make later checks faster
    #[arg(long, value_name = "WHERE", default_value = "usual")]
    placement: Placement,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

fn percent(word: &str) -> Result<f64, String> {
    match word.parse() {
        Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(percent),
        _ => Err("from 0 to 100".into()),
    }
}

impl Age {
    pub(crate) fn run(&self) -> Result<u8> {
        let interrupted = on_signals()?;
        let time = Timestamp { seconds: 1_700_000_000, nanos: 0 };
        let opened = self.source.open_for_writing(WriteOptions {
            // after a crash the volume is recreated
            consistency: Some(Consistency::None),
            clock: Arc::new(move || time),
            seed: Some(self.seed),
            superuser: true,
            placement: self.placement,
            ..WriteOptions::default()
        })?;
        let bar = Bar::new("aging", 1, Unit::Share);
        let options = Options { seed: self.seed, fill: self.fill / 100.0, rounds: self.rounds, largest: self.largest };
        let mut progress = |done, total| {
            bar.set(done, total);
            !interrupted.load(Ordering::Relaxed)
        };
        let outcome = age::age(&opened.volume, &options, &mut progress);
        bar.finish();
        let unmounted = opened.unmount();
        let aged = outcome.map_err(|e| Failure::on(&self.source.device, e))?;
        unmounted?;
        if self.json {
            print_json(&aged)?;
        } else {
            writeln!(
                stdout()?,
                "{} files in {} directories, {:.1} % in use; {} created, {} appended to, {} truncated, {} deleted",
                aged.files,
                aged.directories,
                aged.fill * 100.0,
                aged.created,
                aged.appended,
                aged.truncated,
                aged.removed
            )?;
        }
        if aged.stopped {
            say("interrupted: the volume is consistent, but aging is not complete");
        }
        Ok(aged.stopped.into())
    }
}
