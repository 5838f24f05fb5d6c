//! `extant crash`: compares the states that a loss of power can leave with the guarantees of each mode.

use crate::error_report::{Failure, Result};
use crate::output::{counted, human, print_json, stdout};
use crate::progress::{Bar, Unit};
use ::crash::campaign::{self, FaultReport, Report};
use ::crash::explore::{Counts, Finding, FindingKind, Options};
use ::crash::extant_system::Ext;
use ::crash::generate::{self, Pairs};
use ::crash::op::Workload;
use ::crash::{full_volume, paper_workloads};
use check::render::escape;
use clap::builder::{PossibleValuesParser, RangedU64ValueParser, TypedValueParser};
use clap::{Args, ValueEnum};
use fs::mkfs::Kind;
use fs::{MODES, Mode};
use serde::Serialize;
use std::io::Write;
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(
    about = "Explore power-loss states and verify each mode's guarantees",
    long_about = "Run workloads on small volumes in memory, record writes and flushes, and construct every state in \
                  which a loss of power could have left the device: all writes before the last flush, and any of those after \
                  it, in any order, torn or not. Each state is recovered as in its mode, checked, and compared \
                  with the mode's guarantees; some are worked on, some lose power again during recovery. A workload that \
                  breaks a guarantee is minimized and printed with the command that repeats it.",
    after_help = "Examples:
  extant crash                                       every workload of one operation, in every mode
  extant crash --mode journal --ops two --count 300 --seed 7
  extant crash --mode none --format ext4 --ops random --length 40
  extant crash --ops papers                          samples of PostMark, dbench, unpacking, mail …
  extant crash --ops full                            on a volume that is nearly full
  extant crash --ops two --slice 17/1000             a slice of all workloads of two operations
  extant crash --mode dirty-bit --ops two --count 20 --faults 12
  extant crash --mode journal --workload 'create a | append a 5000 =1; fsync a; rename a b'

A workload is operations separated by `;`, those before `|` done and durable before: create, mkdir, \
    rmdir and unlink P; symlink TARGET P; link P P; rename P P [noreplace|exchange]; write P OFFSET \
    LEN =N; append P LEN =N; read P; truncate P SIZE; fallocate P \
    plain|keep|zero|zero-keep|punch|collapse|insert OFFSET LEN; setxattr P NAME LEN =N; removexattr P \
    NAME; chmod P MODE; open P; close P; tmpfile DIR P; fsync P; fdatasync P; sync; wait SECONDS; \
    snapshot create|delete NAME; begin; commit; rollback. N chooses the bytes; @P is an open file.

Exit status: 0 all guarantees were met, 1 one was broken or nothing could be explored, 2 wrong \
    usage."
)]
pub(crate) struct Crash {
    /// A mode; may be repeated. All modes by default
    #[arg(long = "mode", value_name = "MODE", value_parser = PossibleValuesParser::new(MODES.map(|mode| mode.name)).try_map(|name| name.parse::<Mode>()))]
    modes: Vec<Mode>,

    /// Format of the volumes in the modes without snapshots; by default ext2 without a journal and ext4 with one. The
    /// modes snapshot and snapshot-cow use native volumes
    #[arg(long, value_parser = PossibleValuesParser::new(Kind::ALL.iter().map(|kind| kind.name())).try_map(|name| name.parse::<Kind>()))]
    format: Option<Kind>,

    /// Size of the volumes, at least 1M, and 16M in the modes snapshot and snapshot-cow. By default 9M, in those modes
    /// 24M; with --ops full 2560K, in those modes 16M
    #[arg(long, value_name = "SIZE", value_parser = blockdev::parse_size)]
    size: Option<u64>,

    /// Kind of workloads
    #[arg(long, value_enum, value_name = "WHICH", default_value_t = Ops::One)]
    ops: Ops,

    /// Explore only this workload
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["ops", "count", "length"])]
    workload: Option<Workload>,

    /// Number of workloads; by default all of one operation, and 300 of the others
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    count: Option<usize>,

    /// Only slice I (from 0) of N slices of all workloads of two operations
    #[arg(long, value_name = "I/N", value_parser = slice, conflicts_with_all = ["count", "workload"])]
    slice: Option<(u64, u64)>,

    /// Number of operations in a random workload
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u16).range(1..=1000))]
    length: u16,

    /// Random seed
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Construct every subset of up to N writes between two flushes, and samples of more
    #[arg(long = "states", value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=16))]
    subsets: u32,

    /// Construct at most N states between two flushes, a random sample if there are more
    #[arg(long, value_name = "N", default_value_t = 3000)]
    most: usize,

    /// Continue work on every N-th state; 0 for none
    #[arg(long, value_name = "N", default_value_t = 20)]
    work_on: u64,

    /// Interrupt the recovery of every N-th state; 0 for none
    #[arg(long, value_name = "N", default_value_t = 50)]
    nested: u64,

    /// Interrupt the recovery again in every N-th state left by such an interruption; 0 for none
    #[arg(long, value_name = "N", default_value_t = 20)]
    deeper: u64,

    /// Lose power again after some work on every N-th state; 0 for none
    #[arg(long = "again", value_name = "N", default_value_t = 50)]
    again: u64,

    /// Without a loss of power, let every read, write and flush fail, once and permanently, at most N of each kind in a
    /// workload, evenly spread
    #[arg(long, value_name = "N", conflicts_with_all = ["subsets", "most", "work_on", "nested", "deeper", "again", "e2fsck_every"])]
    faults: Option<usize>,

    /// Check every N-th recovered state with e2fsck; 0 for none
    #[arg(long, value_name = "N", default_value_t = 0)]
    e2fsck_every: u64,

    /// The e2fsck to use
    #[arg(long, value_name = "PATH", default_value = "e2fsck")]
    e2fsck: PathBuf,

    /// Stop exploring a mode after N findings
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    findings: u16,

    /// Number of threads; by default the number of processors
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: Option<u16>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The source of workloads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Ops {
    /// Every operation, with every placement of fsync, fdatasync and sync
    One,
    /// Two such operations, chosen by the seed
    Two,
    /// Longer workloads, from the seed
    Random,
    /// Every operation between snapshots and in transactions; for the mode snapshot
    Versions,
    /// Longer workloads, from the seed, with snapshots and transactions; for the mode snapshot
    RandomVersions,
    /// Short samples of the workloads that papers measured, from the seed
    Papers,
    /// Workloads on a nearly full volume, from the seed
    Full,
}

fn slice(text: &str) -> std::result::Result<(u64, u64), String> {
    let parts = text.split_once('/').and_then(|(slice, of)| Some((slice.parse().ok()?, of.parse().ok()?)));
    parts.filter(|(slice, of)| slice < of).ok_or_else(|| "expected I/N, with I from 0 to N - 1".to_owned())
}

/// Whether a mode exists only on formats that the kernel does not write.
fn is_own(mode: &Mode) -> bool {
    !mode.consistency.formats().any(Kind::kernel_writes)
}

/// The formats on which a mode is explored: native volumes only in their own modes.
fn formats(mode: &Mode) -> impl Iterator<Item = Kind> {
    let own = is_own(mode);
    mode.consistency.formats().filter(move |kind| own || *kind != Kind::Extant)
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
    kind: FindingKind,
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
        let modes = if self.modes.is_empty() { &MODES[..] } else { &self.modes };
        let workloads = self.workloads();
        let threads = self
            .threads
            .map_or_else(|| std::thread::available_parallelism().map_or(1, std::num::NonZero::get), usize::from);
        let versions = matches!(self.ops, Ops::Versions | Ops::RandomVersions) && self.workload.is_none();
        if let (true, Some(mode)) = (versions, self.modes.iter().find(|mode| !is_own(mode))) {
            let name = mode.name;
            return Err(Failure::Usage(format!("--mode {name}: workloads with snapshots require mode snapshot")));
        }
        let fits = |mode: &Mode| self.format.is_none_or(|format| formats(mode).any(|kind| kind == format));
        if let (Some(mode), Some(format)) = (self.modes.iter().find(|mode| !fits(mode)), self.format) {
            let formats = formats(mode).map(Kind::adjective).collect::<Vec<_>>().join(" or ");
            return Err(Failure::Usage(format!("--format {format}: mode {} requires {formats} volumes", mode.name)));
        }
        let modes: Vec<_> = modes.iter().filter(|mode| fits(mode) && (!versions || is_own(mode))).collect();
        if modes.is_empty() {
            return Err(Failure::Usage("no mode has both this --format and snapshots, as --ops requires".into()));
        }
        let systems =
            modes.into_iter().filter_map(|mode| Some((mode.name, Ext::new(mode.name, self.format.map(Kind::name))?)));
        let systems = systems.map(|(mode, ext)| Ok((mode, self.sized(mode, ext)?))).collect::<Result<Vec<_>>>()?;
        let systems = systems.into_iter();
        let found = match self.faults {
            Some(limit) => self.fail(systems, &workloads, limit, threads)?,
            None => self.explore(systems, &workloads, threads)?,
        };
        Ok(u8::from(found))
    }

    /// Volumes of the requested size.
    fn sized(&self, mode: &str, mut ext: Ext) -> Result<Ext> {
        let least = ext.shortest();
        if let Some(size) = self.size.filter(|size| *size < least) {
            let (size, least) = (human(size), human(least));
            return Err(Failure::Usage(format!("--size: {size} is too small for mode {mode}, which needs {least}")));
        }
        let full = (self.ops == Ops::Full).then(|| full_volume::LEN.max(least));
        ext.len = self.size.or(full).unwrap_or(ext.len);
        Ok(ext)
    }

    /// Explores power-loss states of a mode; `true` if there are findings.
    fn explore(
        &self,
        systems: impl Iterator<Item = (&'static str, Ext)>,
        workloads: &[Workload],
        threads: usize,
    ) -> Result<bool> {
        let mut explored = Vec::new();
        for (mode, ext) in systems {
            let bar = Bar::new(mode, workloads.len() as u64, Unit::Share);
            let advance = |_| bar.advance(1);
            let report = campaign::run(&ext, workloads, &self.options(), threads, usize::from(self.findings), &advance);
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
        } else if explored.len() > 1 {
            self.print_sum(&explored)?;
        }
        Ok(explored.iter().any(|mode| !mode.findings.is_empty()))
    }

    /// Injects faults in a mode; `true` if there are findings.
    fn fail(
        &self,
        systems: impl Iterator<Item = (&'static str, Ext)>,
        workloads: &[Workload],
        limit: usize,
        threads: usize,
    ) -> Result<bool> {
        let mut reports = Vec::new();
        for (mode, ext) in systems {
            let bar = Bar::new(mode, workloads.len() as u64, Unit::Share);
            let advance = |_| bar.advance(1);
            let report = campaign::fail(&ext, workloads, limit, threads, usize::from(self.findings), &advance);
            bar.finish();
            if !self.json {
                self.print_faults(&report)?;
            }
            reports.push(report);
        }
        if self.json {
            print_json(&reports)?;
        }
        Ok(reports.iter().any(|report| !report.findings.is_empty()))
    }

    fn workloads(&self) -> Vec<Workload> {
        if let Some(workload) = &self.workload {
            return vec![workload.clone()];
        }
        let count = self.count.unwrap_or(300);
        match (self.ops, self.slice) {
            (Ops::Two, Some((slice, of))) => Pairs::new().slice(slice, of),
            (Ops::One, _) => {
                let mut all = generate::one();
                all.truncate(self.count.unwrap_or(usize::MAX));
                all
            }
            (Ops::Two, None) => Pairs::new().sample(self.seed, count),
            (Ops::Random, _) => {
                let seeds = self.seed..self.seed.saturating_add(count as u64);
                seeds.map(|seed| generate::random(seed, usize::from(self.length))).collect()
            }
            (Ops::Versions, _) => {
                let mut all = generate::versions();
                all.truncate(self.count.unwrap_or(usize::MAX));
                all
            }
            (Ops::RandomVersions, _) => {
                let seeds = self.seed..self.seed.saturating_add(count as u64);
                seeds.map(|seed| generate::random_versions(seed, usize::from(self.length))).collect()
            }
            (Ops::Papers, _) => paper_workloads::sample(self.seed, count),
            (Ops::Full, _) => full_volume::sample(self.seed, count),
        }
    }

    fn options(&self) -> Options {
        let mut options = Options {
            work_on_every: self.work_on,
            nested_every: self.nested,
            deeper_every: self.deeper,
            again_every: self.again,
            e2fsck_every: self.e2fsck_every,
            e2fsck: self.e2fsck.clone(),
            ..Options::default()
        };
        options.limits.every_subset = self.subsets;
        options.limits.most = self.most;
        options.limits.seed = self.seed;
        options
    }

    fn print(&self, report: &Report) -> Result<()> {
        let mut out = stdout()?;
        writeln!(out, "{}: {}", report.mode, summary(&report.counts, report.findings.len()))?;
        writeln!(
            out,
            "  {}, {:.0} a second and thread; seed {}",
            details(&report.counts, report.seconds),
            (report.counts.distinct + report.counts.nested + report.counts.deeper) as f64
                / report.seconds.max(0.001)
                / report.threads as f64,
            self.seed,
        )?;
        for finding in &report.findings {
            for line in finding.to_string().lines() {
                writeln!(out, "  {}", escape(line.as_bytes()))?;
            }
        }
        Ok(out.flush()?)
    }

    fn print_sum(&self, explored: &[Explored]) -> Result<()> {
        let mut counts = Counts::default();
        explored.iter().for_each(|mode| counts += mode.report.counts);
        let seconds = explored.iter().map(|mode| mode.report.seconds).sum();
        let findings = explored.iter().map(|mode| mode.findings.len()).sum();
        let mut out = stdout()?;
        writeln!(out, "all {} modes: {}", explored.len(), summary(&counts, findings))?;
        writeln!(out, "  {}; seed {}", details(&counts, seconds), self.seed)?;
        Ok(out.flush()?)
    }

    fn print_faults(&self, report: &FaultReport) -> Result<()> {
        let mut out = stdout()?;
        let c = &report.counts;
        writeln!(
            out,
            "{}: {} workloads; {} reads, {} writes and {} flushes failed, {} runs returned an error, after {} \
             the volume was unmounted, in {} s; seed {}: {}",
            report.mode,
            c.workloads,
            c.reads,
            c.writes,
            c.flushes,
            c.answered,
            c.unmounted,
            report.seconds,
            self.seed,
            match report.findings.len() {
                0 => "all answers correct".to_owned(),
                n => counted(n as u64, "finding", "findings"),
            },
        )?;
        for line in report.findings.iter().flat_map(|finding| finding.lines()) {
            writeln!(out, "  {}", escape(line.as_bytes()))?;
        }
        Ok(out.flush()?)
    }
}

/// The numbers of states and workloads, and whether the guarantees were met.
fn summary(c: &Counts, findings: usize) -> String {
    let states = counted(c.distinct + c.nested + c.deeper + c.again, "state", "states");
    let workloads = counted(c.workloads, "workload", "workloads");
    let verdict = match findings {
        0 => "all guarantees were met".to_owned(),
        n => format!("not all guarantees were met, {}", counted(n as u64, "finding", "findings")),
    };
    format!("explored {states} that a loss of power can leave, of {workloads}: {verdict}")
}

/// The remaining counts.
fn details(c: &Counts, seconds: f64) -> String {
    format!(
        "{} ({} out of space), {} writes, {} flushes; {} states made, {} of them distinct, {} worked on, {} \
         and {} of recoveries interrupted once and twice, {} of second crashes, {} checked by e2fsck, in {seconds:.1} s",
        counted(c.operations, "operation", "operations"),
        c.no_space,
        c.writes,
        c.flushes,
        c.states,
        c.distinct,
        c.worked_on,
        c.nested,
        c.deeper,
        c.again,
        c.e2fsck,
    )
}
