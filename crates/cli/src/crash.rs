//! `extant crash`: what a loss of power can leave, state by state, against what each mode promises.

use crate::failure::Result;
use crate::output::{print_json, stdout};
use crate::progress::{Bar, Unit};
use ::crash::campaign::{self, Report};
use ::crash::explore::{Finding, Kind as Wrong, Options};
use ::crash::ext::Ext;
use ::crash::generate::{self, Pairs};
use ::crash::op::Workload;
use ::crash::promise::PROMISES;
use check::render::escape;
use clap::{Args, ValueEnum};
use fs::mkfs::Kind;
use serde::Serialize;
use std::io::Write;
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(
    about = "Try every state that a loss of power can leave, against what a mode promises",
    long_about = "Runs workloads on small volumes in memory, records what is written and flushed, and makes every state in \
                  which a loss of power could have left the device: all writes before the last flush, and of those after \
                  it any, in any order, torn or not. Each state is recovered as its mode recovers, checked, and compared \
                  with what the mode promises; some are worked on, some are cut again during recovery. What breaks a \
                  promise is made small and printed with the command that repeats it.",
    after_help = "Examples:
  extant crash                                       every workload of one operation, in every mode
  extant crash --mode journal --ops two --count 300 --seed 7
  extant crash --mode none --format ext4 --ops random --length 40
  extant crash --mode journal --workload 'create a | append a 5000 =1; fsync a; rename a b'

A workload is operations parted by `;`, those before `|` done and durable before: create, mkdir, rmdir and unlink P;
symlink TARGET P; link P P; rename P P [noreplace|exchange]; write P OFFSET LEN =N; append P LEN =N; truncate P SIZE;
fallocate P plain|keep|zero|zero-keep|punch|collapse|insert OFFSET LEN; setxattr P NAME LEN =N; removexattr P NAME;
chmod P MODE; open P; close P; tmpfile DIR P; fsync P; fdatasync P; sync; wait SECONDS. N chooses the bytes; @P is an
open file.

Exit status: 0 every promise was kept, 1 one was broken or nothing could be explored, 2 wrong usage."
)]
pub(crate) struct Crash {
    /// The mode: none, dirty-bit, journal, journal-data or journal-writeback. May be given more than once; every mode
    /// unless given
    #[arg(long = "mode", value_name = "MODE", value_parser = mode)]
    modes: Vec<&'static str>,

    /// The format of the volumes. ext2 where there is no journal and ext4 where there is one, unless given
    #[arg(long, value_enum, value_name = "FORMAT")]
    format: Option<Format>,

    /// What the workloads consist of
    #[arg(long, value_enum, value_name = "WHICH", default_value_t = Ops::One)]
    ops: Ops,

    /// Explore this workload alone
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["ops", "count", "length"])]
    workload: Option<Workload>,

    /// How many workloads: those of one operation all, others 300, unless given
    #[arg(long, value_name = "N")]
    count: Option<usize>,

    /// Operations in a random workload
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u16).range(1..=1000))]
    length: u16,

    /// The seed of everything random
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Make every subset of up to N writes between two flushes, and samples of more
    #[arg(long = "states", value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=16))]
    subsets: u32,

    /// Let every N-th state bear more work; 0 for none
    #[arg(long, value_name = "N", default_value_t = 20)]
    work_on: u64,

    /// Cut the recovery of every N-th state; 0 for none
    #[arg(long, value_name = "N", default_value_t = 50)]
    nested: u64,

    /// Show every N-th recovered state to e2fsck; 0 for none
    #[arg(long, value_name = "N", default_value_t = 0)]
    e2fsck_every: u64,

    /// The e2fsck to ask
    #[arg(long, value_name = "PATH", default_value = "e2fsck")]
    e2fsck: PathBuf,

    /// Stop a mode after so many findings
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    findings: u16,

    /// Threads; as many as the machine runs at once, unless given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: Option<u16>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Block maps, no checksums
    Ext2,
    /// The same with a journal
    Ext3,
    /// Extents and checksums
    Ext4,
}

/// Where workloads come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Ops {
    /// Every operation, with every placement of fsync, fdatasync and sync
    One,
    /// Two such, drawn by the seed
    Two,
    /// Longer ones from the seed
    Random,
}

fn mode(text: &str) -> std::result::Result<&'static str, String> {
    let modes = PROMISES.iter().map(|promise| promise.mode);
    modes.clone().find(|mode| *mode == text).ok_or_else(|| {
        let all: Vec<_> = modes.collect();
        format!("the modes are {}", all.join(", "))
    })
}

/// One mode as JSON.
#[derive(Debug, Serialize)]
struct Explored {
    #[serde(flatten)]
    report: Report,
    seed: u64,
    findings: Vec<Found>,
}

/// One finding as JSON.
#[derive(Debug, Serialize)]
struct Found {
    kind: Wrong,
    workload: String,
    state: Option<String>,
    why: String,
    text: String,
}

impl From<&Finding> for Found {
    fn from(finding: &Finding) -> Self {
        Self {
            kind: finding.kind,
            workload: finding.workload.to_string(),
            state: finding.at.as_ref().map(|(choice, _)| choice.to_string()),
            why: finding.why.clone(),
            text: finding.to_string(),
        }
    }
}

impl Crash {
    pub(crate) fn run(&self) -> Result<u8> {
        let all: Vec<_> = PROMISES.iter().map(|promise| promise.mode).collect();
        let modes = if self.modes.is_empty() { &all } else { &self.modes };
        let workloads = self.workloads();
        let threads = self
            .threads
            .map_or_else(|| std::thread::available_parallelism().map_or(1, std::num::NonZero::get), usize::from);
        let mut explored = Vec::new();
        for &mode in modes {
            let Some(ext) = Ext::new(mode, self.kind(mode)) else { continue };
            let bar = Bar::new(mode, workloads.len() as u64, Unit::Share);
            let told = |_| bar.advance(1);
            let report = campaign::run(&ext, &workloads, &self.options(), threads, usize::from(self.findings), &told);
            bar.finish();
            if !self.json {
                self.print(&report)?;
            }
            explored.push(Explored {
                findings: report.findings.iter().map(Found::from).collect(),
                report,
                seed: self.seed,
            });
        }
        if self.json {
            print_json(&explored)?;
        }
        Ok(u8::from(explored.iter().any(|mode| !mode.findings.is_empty())))
    }

    fn kind(&self, mode: &str) -> Kind {
        match self.format {
            Some(Format::Ext2) => Kind::Ext2,
            Some(Format::Ext3) => Kind::Ext3,
            Some(Format::Ext4) => Kind::Ext4,
            None if mode.starts_with("journal") => Kind::Ext4,
            None => Kind::Ext2,
        }
    }

    fn workloads(&self) -> Vec<Workload> {
        if let Some(workload) = &self.workload {
            return vec![workload.clone()];
        }
        let count = self.count.unwrap_or(300);
        match self.ops {
            Ops::One => {
                let mut all = generate::one();
                all.truncate(self.count.unwrap_or(usize::MAX));
                all
            }
            Ops::Two => Pairs::new().sample(self.seed, count),
            Ops::Random => {
                let seeds = self.seed..self.seed.saturating_add(count as u64);
                seeds.map(|seed| generate::random(seed, usize::from(self.length))).collect()
            }
        }
    }

    fn options(&self) -> Options {
        let mut options = Options {
            work_on_every: self.work_on,
            nested_every: self.nested,
            e2fsck_every: self.e2fsck_every,
            e2fsck: self.e2fsck.clone(),
            ..Options::default()
        };
        options.limits.every_subset = self.subsets;
        options.limits.seed = self.seed;
        options
    }

    fn print(&self, report: &Report) -> Result<()> {
        let mut out = stdout()?;
        let c = &report.counts;
        writeln!(
            out,
            "{}: {} workloads, {} operations, {} writes, {} flushes; {} states, {} of them different, in {} s \
             ({:.0} a second and thread); {} worked on, {} recoveries cut, {} seen by e2fsck; seed {}: {}",
            report.mode,
            c.workloads,
            c.operations,
            c.writes,
            c.flushes,
            c.states,
            c.distinct,
            report.seconds,
            (c.distinct + c.nested) as f64 / report.seconds.max(0.001) / report.threads as f64,
            c.worked_on,
            c.nested,
            c.e2fsck,
            self.seed,
            match report.findings.len() {
                0 => "every promise kept".to_owned(),
                1 => "1 finding".to_owned(),
                n => format!("{n} findings"),
            },
        )?;
        for finding in &report.findings {
            for line in finding.to_string().lines() {
                writeln!(out, "  {}", escape(line.as_bytes()))?;
            }
        }
        Ok(out.flush()?)
    }
}
