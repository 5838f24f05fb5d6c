//! The checker compared with e2fsck and with the lower bound.
//!
//! Both checkers run as separate processes, so that time, CPU and memory are theirs alone. The lower bound runs here:
//! it reads the bytes that Extant's checker needs, each once, in order, with a checksum over them.

use crate::cache::drop_cached;
use crate::environment::Environment;
use crate::error::Trying;
use crate::lower_bound::{self, LowerBound};
use crate::modelled::Modelled;
use crate::picture::{self, Panel};
use crate::process::{self, Program};
use crate::runner::{Peer, Reported, Sample, Series, Watch, interleave, sample_count};
use crate::strace;
use crate::table::{Table, grouped, maybe, mib, spread};
use crate::{Error, Reads, Result, Spread};
use blockdev::{BlockDevice, FileDevice};
use check::report::Report;
use fs::mkfs::Kind;
use serde::Serialize;
use simdev::{Event, Parameters, Trace};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Options of the benchmark of checkers.
#[derive(Debug, Clone)]
pub struct Options {
    /// The volumes; only their metadata is read.
    pub volumes: Vec<PathBuf>,
    /// The program `extant`.
    pub extant: PathBuf,
    /// The program `e2fsck`; searched for where unset.
    pub e2fsck: Option<PathBuf>,
    /// Samples of each peer.
    pub runs: usize,
    /// Whether the volume is dropped from the page cache before each sample.
    pub cold: bool,
    /// Threads of Extant's checker; its default where unset.
    pub threads: Option<usize>,
    /// A file for a picture of the reads of both checkers on the last volume, as SVG; needs strace.
    pub picture: Option<PathBuf>,
    /// A modelled disk on which the reads of both are timed, `hdd`, `ssd` or a file of parameters; e2fsck's need
    /// strace.
    pub model: Option<String>,
}

/// The result.
#[derive(Debug, Clone, Serialize)]
pub struct Bench {
    /// The environment of the measurement.
    pub environment: Environment,
    /// One for each volume.
    pub volumes: Vec<OnVolume>,
}

/// The result on one volume.
#[derive(Debug, Clone, Serialize)]
pub struct OnVolume {
    /// The volume's file.
    pub volume: PathBuf,
    /// `ext2`, `ext3` or `ext4`; other formats, such as `rext3`, are not compared, as e2fsck does not support them.
    pub format: String,
    /// Size of the volume in bytes.
    pub bytes: u64,
    /// Inodes in use.
    pub used_inodes: u64,
    /// Whether Extant found no problem.
    pub clean: bool,
    /// Whether the page cache was empty of the volume before each sample.
    pub cold: bool,
    /// Each peer, with `lower-bound` the last.
    pub peers: Vec<PeerFigures>,
    /// Bytes that the lower bound reads: those that Extant's checker needs, each once, without gaps.
    pub lower_bound_bytes: u64,
    /// The number of contiguous ranges of these bytes.
    pub lower_bound_pieces: usize,
    /// The reads of the peers, as each [`Witness`] counted them.
    pub reads: Vec<ReadFigures>,
    /// The figures of these reads on a modelled disk, where one was specified.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modelled: Option<Modelled>,
    /// Largest resident memory of Extant's checker in bytes, divided by the inodes in use.
    pub resident_bytes_per_inode: f64,
}

/// The time and memory of one peer.
#[derive(Debug, Clone, Serialize)]
pub struct PeerFigures {
    /// `extant`, `e2fsck` or `lower-bound`.
    pub peer: String,
    /// Wall time of a sample, in seconds.
    pub wall_seconds: Spread,
    /// Time on processors, user and system, in seconds.
    pub cpu_seconds: Option<Spread>,
    /// Ratio of the wall time to e2fsck's in the same round.
    pub wall_to_e2fsck: Option<Spread>,
    /// Largest resident memory in bytes, observed in a separate run; `None` for the lower bound, which has no process.
    pub peak_rss_bytes: Option<u64>,
}

/// The source of a count of reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Witness {
    /// The device of Extant's checker: its requests.
    Trace,
    /// strace(1): the system calls, the same for every program. Taken with the volume in the page cache.
    Strace,
}

/// Reads of one peer.
#[derive(Debug, Clone, Serialize)]
pub struct ReadFigures {
    /// `extant` or `e2fsck`.
    pub peer: String,
    /// The source of the counts.
    pub witness: Witness,
    /// The counts.
    #[serde(flatten)]
    pub reads: Reads,
}

/// A checker as a child process.
struct Checker<'a> {
    name: &'static str,
    program: Program,
    cold: Option<&'a Path>,
}

impl Peer for Checker<'_> {
    fn name(&self) -> &str {
        self.name
    }

    fn prepare(&mut self) -> Result<()> {
        self.cold.map_or(Ok(()), drop_cached)
    }

    fn sample(&mut self) -> Result<Sample> {
        self.program.run()
    }
}

/// The lower bound, with the same state of the cache as the others.
struct LowerBoundPeer<'a> {
    reader: LowerBound,
    cold: Option<&'a Path>,
}

impl Peer for LowerBoundPeer<'_> {
    fn name(&self) -> &str {
        self.reader.name()
    }

    fn prepare(&mut self) -> Result<()> {
        self.cold.map_or(Ok(()), drop_cached)
    }

    fn sample(&mut self) -> Result<Sample> {
        self.reader.sample()
    }
}

/// Extant, e2fsck and the lower bound.
const PEERS: usize = 3;

/// Whether e2fsck can check a format.
fn known_to_e2fsck(format: &str) -> bool {
    format.parse().is_ok_and(Kind::kernel_writes)
}

/// Runs the benchmark. `watch` is called before each step.
///
/// # Errors
/// [`Error::Unsupported`] without e2fsck; otherwise the first error, with its volume or program.
pub fn run(options: &Options, watch: &Watch<'_>) -> Result<Bench> {
    let e2fsck = match &options.e2fsck {
        Some(path) => path.clone(),
        None => process::need("e2fsck", "e2fsprogs")?,
    };
    let environment = Environment::here().with("extant", &options.extant, "--version").with("e2fsck", &e2fsck, "-V");
    let named = |model| Ok::<_, Error>((model, Parameters::named(model)?));
    let model = options.model.as_deref().map(named).transpose()?;
    let reported = Reported::new(watch, sample_count(PEERS, options.runs) * options.volumes.len() as u64);
    let on_volume = |volume: &PathBuf| on_volume(volume, &e2fsck, model.as_ref(), options, &reported);
    Ok(Bench { environment, volumes: options.volumes.iter().map(on_volume).collect::<Result<_>>()? })
}

fn on_volume(
    volume: &Path,
    e2fsck: &Path,
    model: Option<&(&str, Parameters)>,
    options: &Options,
    reported: &Reported<'_>,
) -> Result<OnVolume> {
    // the statuses of a verdict: consistent, or damage found
    const VERDICTS: &[i32] = &[0, 4];
    let name = volume.display();
    reported.say(&format!("{name}: tracing a check"));
    let mut how = check::Options::default();
    how.threads = options.threads.unwrap_or(how.threads);
    let device = Trace::new(FileDevice::open(volume, blockdev::OpenOptions::default())?);
    let report = checked(volume, &device, &how)?;
    let traced = Reads::from(device.counters().reads);
    let bytes = device.geometry().len;
    // without gaps that are read through
    let device = Trace::with_events(device.into_inner(), usize::MAX);
    checked(volume, &device, &check::Options { gap: 0, ..how })?;
    let reader = LowerBound::new(volume, lower_bound::ranges(&device.events()));
    let mut lower_bound = LowerBoundPeer { reader, cold: None };
    let (lower_bound_bytes, lower_bound_pieces) = (lower_bound.reader.bytes(), lower_bound.reader.pieces());
    drop(device);

    let path = || OsString::from(volume);
    let threads = options.threads.map(|threads| ["--threads".into(), threads.to_string().into()]);
    let args = ["check".into(), "-fn".into()].into_iter().chain(threads.into_iter().flatten()).chain([path()]);
    let program = Program { path: options.extant.clone(), args: args.collect(), answers: VERDICTS };
    let mut extant = Checker { name: "extant", program, cold: None };
    let mut e2fsck = known_to_e2fsck(&report.format).then(|| {
        let program = Program { path: e2fsck.to_owned(), args: vec!["-fn".into(), path()], answers: VERDICTS };
        Checker { name: "e2fsck", program, cold: None }
    });

    let Watched { mut reads, memory, events, e2fsck_by_thread } =
        watch(std::iter::once(&extant).chain(&e2fsck), volume, reported)?;
    reads.insert(0, ReadFigures { peer: "extant".into(), witness: Witness::Trace, reads: traced });
    if let Some(file) = &options.picture {
        draw(file, &events, bytes)?;
    }
    let modelled = model.map(|(model, parameters)| {
        reported.say(&format!("{name}: the reads on the modelled disk {model}"));
        Modelled::of(model, parameters, volume, e2fsck_by_thread.as_deref())
    });
    let modelled = modelled.transpose()?;
    let cold = options.cold.then_some(volume);
    (extant.cold, lower_bound.cold) = (cold, cold);
    let mut peers: Vec<&mut dyn Peer> = vec![&mut extant];
    if let Some(e2fsck) = &mut e2fsck {
        e2fsck.cold = cold;
        peers.push(e2fsck);
    }
    peers.push(&mut lower_bound);
    let series = interleave(&mut peers, options.runs, &|what| reported.begin_sample(&format!("{name}: {what}")))?;
    Ok(OnVolume {
        volume: volume.to_owned(),
        format: report.format,
        bytes,
        used_inodes: report.counts.inodes,
        clean: report.clean,
        cold: options.cold,
        peers: figures(&series, &memory),
        lower_bound_bytes,
        lower_bound_pieces,
        reads,
        modelled,
        resident_bytes_per_inode: memory[0] as f64 / report.counts.inodes.max(1) as f64,
    })
}

/// The reads and memory of the checkers as strace and the kernel report them, each run once.
#[derive(Default)]
struct Watched {
    reads: Vec<ReadFigures>,
    /// Largest resident memory of each checker.
    memory: Vec<u64>,
    events: Vec<(&'static str, Vec<Event>)>,
    /// e2fsck's reads, one thread after the other.
    e2fsck_by_thread: Option<Vec<Event>>,
}

fn watch<'c>(
    checkers: impl Iterator<Item = &'c Checker<'c>>,
    volume: &Path,
    reported: &Reported<'_>,
) -> Result<Watched> {
    let mut watched = Watched::default();
    for checker in checkers {
        reported.say(&format!("{}: memory and reads of {}", volume.display(), checker.name));
        // the volume is in the page cache from here on
        watched.memory.push(checker.program.peak_memory()?);
        if let Some(seen) = strace::watch(&checker.program, volume)? {
            let peer = checker.name.into();
            watched.reads.push(ReadFigures { peer, witness: Witness::Strace, reads: seen.reads });
            watched.events.push((checker.name, seen.events));
            if checker.name == "e2fsck" {
                watched.e2fsck_by_thread = Some(seen.by_thread);
            }
        }
    }
    Ok(watched)
}

/// Writes a picture of the order of reads, one panel per checker.
fn draw(file: &Path, events: &[(&str, Vec<Event>)], bytes: u64) -> Result<()> {
    let drawn = |(peer, events): &(&str, Vec<Event>)| {
        (format!("{peer}: {} reads", events.len()), events.iter().map(|event| event.offset).collect::<Vec<_>>())
    };
    let drawn: Vec<_> = events.iter().map(drawn).collect();
    let panels = drawn.iter().map(|(title, offsets)| Panel { title, offsets });
    std::fs::write(file, picture::svg(&panels.collect::<Vec<_>>(), bytes)).trying("write", file)
}

fn checked(volume: &Path, device: &dyn BlockDevice, how: &check::Options) -> Result<Report> {
    check::check(&volume.to_string_lossy(), device, how, &()).map_err(|refusal| Error::Failed(refusal.to_string()))
}

/// The figures of all peers; `memory` has those of the first ones, in their order.
fn figures(series: &[Series], memory: &[u64]) -> Vec<PeerFigures> {
    let base = series.iter().find(|peer| peer.name == "e2fsck").map(|peer| &peer.wall);
    let memory = memory.iter().copied().map(Some).chain(std::iter::repeat(None));
    let one = |(peer, peak_rss_bytes): (&Series, _)| PeerFigures {
        peer: peer.name.clone(),
        wall_seconds: peer.wall.clone(),
        cpu_seconds: peer.cpu.clone(),
        wall_to_e2fsck: base.and_then(|base| peer.wall.over(base)),
        peak_rss_bytes,
    };
    series.iter().zip(memory).map(one).collect()
}

impl Bench {
    /// The result as Markdown tables.
    #[must_use]
    pub fn text(&self) -> String {
        let volumes: String = self.volumes.iter().map(OnVolume::text).collect();
        format!("{}{volumes}", self.environment.lines())
    }
}

impl OnVolume {
    fn text(&self) -> String {
        let mut text = format!(
            "\n{}: {}, {}, {} inodes in use, {}, page cache {}\n\n",
            self.volume.display(),
            self.format,
            mib(self.bytes),
            grouped(self.used_inodes),
            if self.clean { "clean" } else { "damaged" },
            if self.cold { "cold" } else { "warm" },
        );
        let mut table = Table::new(["peer", "wall s", "wall / e2fsck", "processor s", "resident"]);
        for peer in &self.peers {
            table.row([
                peer.peer.clone(),
                spread(&peer.wall_seconds),
                maybe(peer.wall_to_e2fsck.as_ref()),
                maybe(peer.cpu_seconds.as_ref()),
                peer.peak_rss_bytes.map_or_else(|| "–".to_owned(), mib),
            ]);
        }
        text += &table.text();
        if !known_to_e2fsck(&self.format) {
            text += &format!(
                "\ne2fsck does not support {}, so there is no comparison. `extant bench paper` compares rext3 with \
                 ext3 with the same files.\n",
                self.format,
            );
        }
        text += &format!(
            "\nThe lower bound reads {} in {} ranges. Extant's checker has {:.1} resident bytes per inode in \
             use.\n\n",
            mib(self.lower_bound_bytes),
            grouped(self.lower_bound_pieces as u64),
            self.resident_bytes_per_inode,
        );
        let mut table = Table::new(["reads of", "counted by", "reads", "bytes", "non-contiguous", "backward"]);
        for ReadFigures { peer, witness, reads } in &self.reads {
            let witness = if *witness == Witness::Trace { "its device" } else { "strace" };
            let cells = [reads.reads, reads.bytes, reads.non_contiguous, reads.backward].map(grouped);
            let [count, bytes, non_contiguous, backward] = cells;
            table.row([peer.clone(), witness.into(), count, bytes, non_contiguous, backward]);
        }
        text += &table.text();
        if !self.reads.iter().any(|figures| figures.witness == Witness::Strace) {
            text += "strace is not installed or not permitted: reads of e2fsck are unknown.\n";
        }
        for figures in self.reads.iter().filter(|figures| figures.reads.unseen > 0) {
            let unseen = grouped(figures.reads.unseen);
            text += &format!("{} submitted {unseen} more to io_uring, which strace does not show.\n", figures.peer);
        }
        text += &self.modelled.as_ref().map(Modelled::text).unwrap_or_default();
        text
    }
}
