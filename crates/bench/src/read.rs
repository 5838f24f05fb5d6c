//! Reading through FUSE, compared with the kernel's own mount of the same volume and with the upper bound of FUSE
//! itself.

use crate::cache::drop_cached;
use crate::environment::Environment;
use crate::figures::{Measured, Samples};
use crate::interruption::Folder;
use crate::mount::{Attached, FileSystem};
use crate::processors::Processors;
use crate::runner::{Peer, Reported, Sample, Watch, Worker, interleave, sample_count, timed};
use crate::upper_bound::Tree;
use crate::volumes::{self, Kind};
use crate::{Error, IoUring, Result, SequentialRead, Transport, Walk, Workload};
use serde::Serialize;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Minimum size in bytes of a file for the sequential read.
const LARGE: u64 = 256 << 20;

/// Options of the read benchmark.
#[derive(Debug, Clone)]
pub struct Options {
    /// The volume; where unset, one of [`Kind::ReadExt4`] is created and removed afterwards.
    pub volume: Option<PathBuf>,
    /// The program `extant`.
    pub extant: PathBuf,
    /// The transports of Extant and of the upper bound, each a peer; where empty the one that `extant mount` chooses.
    pub transports: Vec<Transport>,
    /// The number of processors for the work and its servers; `None` for all.
    pub processors: Option<usize>,
    /// Samples of each peer.
    pub runs: usize,
}

/// The result.
#[derive(Debug, Clone, Serialize)]
pub struct Bench {
    /// The environment of the measurement.
    pub environment: Environment,
    /// The volume's file.
    pub volume: PathBuf,
    /// Each workload.
    pub workloads: Vec<Measured>,
}

/// A workload on a file system, mounted afresh for each sample.
struct OnMount<'a> {
    file_system: FileSystem<'a>,
    volume: &'a Path,
    workload: &'a dyn Workload,
    amount: u64,
    attached: Option<Attached>,
    /// The transport that the mount reported.
    transport: Option<String>,
}

impl Peer for OnMount<'_> {
    fn name(&self) -> &str {
        self.file_system.name()
    }

    fn prepare(&mut self) -> Result<()> {
        // the kernel's caches of a mounted file system are dropped at unmount, the volume's pages by this
        drop_cached(self.volume)?;
        let attached = self.file_system.attach()?;
        self.transport = attached.transport(self.file_system.transport())?;
        if self.workload.warm() {
            self.workload.run(attached.path())?;
        }
        self.attached = Some(attached);
        Ok(())
    }

    fn sample(&mut self) -> Result<Sample> {
        let Some(attached) = self.attached.take() else {
            return Err(Error::Failed("a sample was not prepared".into()));
        };
        let worker = Worker::Mounted { server: attached.server() };
        let (amount, sample) = timed(worker, || self.workload.run(attached.path()));
        attached.detach()?;
        let (amount, peer) = (amount?, self.name());
        if amount != self.amount {
            let (name, unit) = (self.workload.name(), self.workload.unit());
            let expected = self.amount;
            return Err(Error::Failed(format!("{name}: {peer} has {amount} {unit}, the kernel {expected}")));
        }
        Ok(sample)
    }
}

/// Runs the benchmark. `watch` is called before each step.
///
/// # Errors
/// [`Error::Unsupported`] without root, where the kernel does not offer io_uring and it is asked for, or where there
/// are fewer processors; otherwise the first error.
pub fn run(options: &Options, watch: &Watch<'_>) -> Result<Bench> {
    let io_uring = IoUring::here();
    for &transport in &options.transports {
        io_uring.allow(&format!("transport {transport}"), Some(transport))?;
    }
    let processors = Processors::bind(options.processors)?;
    if !rustix::process::geteuid().is_root() {
        return Err(Error::Unsupported("the kernel's mount is one of the peers, and that needs root".into()));
    }
    let Some(volume) = &options.volume else {
        let folder = Folder::in_dir(&std::env::temp_dir())?;
        let volume = folder.join(Kind::ReadExt4.name());
        volumes::make(Kind::ReadExt4, Kind::ReadExt4.files(), &volume, watch)?;
        return measured(&volume, options, processors, watch);
    };
    measured(volume, options, processors, watch)
}

fn measured(volume: &Path, options: &Options, processors: Processors, watch: &Watch<'_>) -> Result<Bench> {
    let workloads = on_volume(volume, options, processors.count(), watch)?;
    // the environment is that of the whole machine
    drop(processors);
    let environment = Environment::here().with("extant", &options.extant, "--version");
    Ok(Bench { environment, volume: volume.to_owned(), workloads })
}

/// Extant and the upper bound with each transport, and the kernel.
fn peers<'a>(options: &'a Options, volume: &'a Path, tree: &'a Arc<Tree>) -> Vec<FileSystem<'a>> {
    let transports = match &options.transports[..] {
        [] => vec![None],
        asked => asked.iter().copied().map(Some).collect(),
    };
    let extant = |&transport| FileSystem::Extant { program: &options.extant, volume, transport };
    let upper_bound = |&transport| FileSystem::UpperBound { tree, transport };
    let ours = transports.iter().map(extant);
    ours.chain([FileSystem::Kernel { volume }]).chain(transports.iter().map(upper_bound)).collect()
}

fn on_volume(volume: &Path, options: &Options, processors: usize, watch: &Watch<'_>) -> Result<Vec<Measured>> {
    let kernel = FileSystem::Kernel { volume };
    let samples = sample_count(1 + 2 * options.transports.len().max(1), options.runs);
    let reported = Reported::new(watch, samples * 3);
    reported.say(&format!("{}: listing its files", volume.display()));
    let attached = kernel.attach()?;
    let tree = Arc::new(Tree::of(attached.path())?);
    let mut workloads: Vec<Box<dyn Workload>> = Vec::new();
    match largest_file(attached.path())? {
        Some((size, file)) if size >= LARGE => workloads.push(Box::new(SequentialRead { file })),
        _ => reported.skip(samples),
    }
    workloads.extend([false, true].map(|warm| Box::new(Walk { warm }) as Box<dyn Workload>));
    let amounts: Vec<u64> = workloads.iter().map(|workload| workload.run(attached.path())).collect::<Result<_>>()?;
    attached.detach()?;

    let file_systems = peers(options, volume, &tree);
    let is_base = |file_system: &&FileSystem<'_>| !matches!(file_system, FileSystem::Extant { .. });
    let bases: Vec<&str> = file_systems.iter().filter(is_base).map(|file_system| file_system.name()).collect();
    let mut results = Vec::new();
    for (workload, amount) in workloads.iter().zip(amounts) {
        let (workload, mut mounts) = (&**workload, Vec::new());
        for &file_system in &file_systems {
            mounts.push(OnMount { file_system, volume, workload, amount, attached: None, transport: None });
        }
        let begin_sample = |what: &str| reported.begin_sample(&format!("{}: {what}", workload.name()));
        let series = {
            let mut peers: Vec<&mut dyn Peer> = mounts.iter_mut().map(|mount| mount as &mut dyn Peer).collect();
            interleave(&mut peers, options.runs, &begin_sample)?
        };
        let taken = series.into_iter().zip(mounts).map(|(series, mount)| Samples {
            peer: series.name,
            transport: mount.transport,
            processors,
            wall: series.wall,
            cpu: series.cpu,
            written: Vec::new(),
        });
        let (what, unit) = (workload.name().to_owned(), workload.unit());
        results.push(Measured::new(what, unit, amount, &taken.collect::<Vec<_>>(), &bases));
    }
    Ok(results)
}

/// Size and path, as seen from `root`, of the largest regular file without holes.
fn largest_file(root: &Path) -> Result<Option<(u64, PathBuf)>> {
    let mut largest = None;
    let mut dirs = vec![root.to_owned()];
    while let Some(dir) = dirs.pop() {
        let failed = |source| Error::Io { what: format!("cannot list {}", dir.display()), source };
        for entry in fs::read_dir(&dir).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let metadata = entry.metadata().map_err(failed)?;
            if metadata.is_dir() {
                dirs.push(entry.path());
            } else if metadata.is_file()
                // holes are read without a device
                && metadata.blocks().saturating_mul(512) >= metadata.len()
                && largest.as_ref().is_none_or(|(size, _)| metadata.len() > *size)
            {
                largest = Some((metadata.len(), entry.path()));
            }
        }
    }
    Ok(largest.map(|(size, path)| (size, path.strip_prefix(root).map_or(path.clone(), Path::to_owned))))
}

impl Bench {
    /// The result as Markdown tables.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = format!("{}\n{}\n", self.environment.lines(), self.volume.display());
        text.extend(self.workloads.iter().map(Measured::text));
        text
    }
}
