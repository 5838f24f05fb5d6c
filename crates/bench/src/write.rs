//! Writing: Extant through FUSE and as a library, the kernel and fuse2fs, with the same sets of operations.

mod clients;
mod file_ops;
mod load;
mod raw_log;
mod sets;
mod target;
mod written;

use crate::environment::Environment;
use crate::figures::{Measured, Samples};
use crate::interruption::Folder;
use crate::processors::Processors;
use crate::{Error, IoUring, Result, Spread, Step, Watch};
use serde::Serialize;
use sets::Size;
use std::collections::BTreeMap;
use std::path::PathBuf;

pub use load::Load;
pub use sets::{SETS, Set};
pub use target::Spec;
pub use written::Written;

/// Options of the write benchmark.
#[derive(Debug, Clone)]
pub struct Options {
    /// The peers.
    pub peers: Vec<Spec>,
    /// The peers that ratios are computed to; the first peer where empty.
    pub to: Vec<Spec>,
    /// The sets.
    pub sets: Vec<Set>,
    /// Fraction of the full size, from 0 to 1.
    pub scale: f64,
    /// The requests of dbench's clients; needed for [`Set::Dbench`] alone.
    pub load: Option<Load>,
    /// The number of processors for the work and its servers; `None` for all.
    pub processors: Option<usize>,
    /// Samples of each peer.
    pub runs: usize,
    /// The directory for the volumes, sparse files of 6 GiB, which are removed afterwards.
    pub dir: PathBuf,
    /// The program `extant`.
    pub extant: PathBuf,
}

/// The result.
#[derive(Debug, Clone, Serialize)]
pub struct Bench {
    /// The environment of the measurement.
    pub environment: Environment,
    /// Part of the full size.
    pub scale: f64,
    /// Each phase of each set.
    pub phases: Vec<Measured>,
}

/// The figures of a phase by peer; phases in the order of execution.
type Times = BTreeMap<usize, Vec<Taken>>;

/// The figures of a peer's samples of one phase.
#[derive(Debug, Clone, Default)]
struct Taken {
    /// Wall time, in seconds.
    wall: Vec<f64>,
    /// CPU time, in seconds, where it is known.
    cpu: Vec<f64>,
    /// The writes, where they were counted.
    written: Vec<Written>,
}

/// Runs the benchmark. `watch` is called before each step.
///
/// # Errors
/// [`Error::Unsupported`] without root or a program that a peer needs, or, before any volume is made, where a peer asks
/// for io_uring and the kernel does not offer it, or where there are fewer processors; otherwise the first error, which
/// may be a volume that e2fsck reports as damaged.
pub fn run(options: &Options, watch: &Watch<'_>) -> Result<Bench> {
    if options.peers.is_empty() || options.sets.is_empty() {
        return Err(Error::Failed("name at least one peer and one set".into()));
    }
    if let Some(other) = options.to.iter().find(|base| !options.peers.contains(base)) {
        return Err(Error::Failed(format!("{other}: ratios require a measured peer")));
    }
    let io_uring = IoUring::here();
    options.peers.iter().try_for_each(|peer| peer.check_transport(io_uring))?;
    let processors = Processors::bind(options.processors)?;
    let mut phases = Vec::new();
    for (number, &set) in options.sets.iter().enumerate() {
        phases.extend(measure(set, number, options, processors.count(), watch)?);
    }
    // the environment is that of the whole machine
    drop(processors);
    Ok(Bench {
        environment: Environment::here().with("extant", &options.extant, "--version"),
        scale: options.scale,
        phases,
    })
}

fn measure(set: Set, number: usize, options: &Options, processors: usize, watch: &Watch<'_>) -> Result<Vec<Measured>> {
    let rounds = options.runs.max(1);
    let each = rounds * options.peers.len();
    let mut times = Times::new();
    let mut known = Vec::new();
    let mut transports = vec![None; options.peers.len()];
    for round in 0..rounds {
        for position in 0..options.peers.len() {
            // the first peer of a round rotates
            let which = (round + position) % options.peers.len();
            let spec = &options.peers[which];
            let what = format!("{}: round {} of {rounds}, {spec}", set.name(), round + 1);
            let done = number * each + round * options.peers.len() + position;
            watch(&Step { what: &what, done: done as u64, of: (options.sets.len() * each) as u64 });
            let folder = Folder::in_dir(&options.dir)?;
            let mut stage = target::Stage::fresh(spec, &options.extant, &folder)?;
            let phases = set.run(&mut stage, Size { scale: options.scale, load: options.load.as_ref() })?;
            transports[which] = stage.transport().map(str::to_owned);
            stage.finish().map_err(|e| Error::Failed(format!("{spec}, after {}: {e}", set.name())))?;
            for (number, phase) in phases.iter().enumerate() {
                let peers = times.entry(number).or_insert_with(|| vec![Taken::default(); options.peers.len()]);
                peers[which].wall.push(phase.wall.as_secs_f64());
                peers[which].cpu.extend(phase.cpu.map(|cpu| cpu.as_secs_f64()));
                peers[which].written.extend(phase.written);
            }
            known = phases;
        }
    }
    let names: Vec<String> = options.peers.iter().map(Spec::to_string).collect();
    let bases: Vec<String> = match &options.to[..] {
        [] => names.first().cloned().into_iter().collect(),
        to => to.iter().map(Spec::to_string).collect(),
    };
    let of_phase = |(number, peers): (usize, Vec<Taken>)| {
        let phase = known.get(number)?;
        let samples = peers.into_iter().zip(names.iter().zip(&transports)).filter_map(|(taken, (peer, transport))| {
            Some(Samples {
                peer: peer.clone(),
                transport: transport.clone(),
                processors,
                wall: Spread::of(taken.wall)?,
                cpu: Spread::of(taken.cpu),
                written: taken.written,
            })
        });
        let samples: Vec<Samples> = samples.collect();
        let what = format!("{}: {}", set.name(), phase.name);
        Some(Measured::new(what, phase.unit, phase.amount, &samples, &bases))
    };
    Ok(times.into_iter().filter_map(of_phase).collect())
}

impl Bench {
    /// The result as Markdown tables.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = format!("{}\nscale {}\n", self.environment.lines(), self.scale);
        text.extend(self.phases.iter().map(Measured::text));
        text
    }
}
