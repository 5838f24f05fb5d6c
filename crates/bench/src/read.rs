//! Reading through FUSE, compared with the kernel's own mount of the same volume and with the upper bound of FUSE
//! itself.

use crate::cache::drop_cached;
use crate::environment::Environment;
use crate::figures::Measured;
use crate::interruption::Folder;
use crate::mount::{Attached, FileSystem};
use crate::runner::{Peer, Reported, Sample, Watch, Worker, interleave, sample_count, timed};
use crate::upper_bound::Tree;
use crate::volumes::{self, Kind};
use crate::{Error, Result, SequentialRead, Walk, Workload};
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
}

impl Peer for OnMount<'_> {
    fn name(&self) -> &str {
        self.file_system.name()
    }

    fn prepare(&mut self) -> Result<()> {
        // the kernel's caches of a mounted file system are dropped at unmount, the volume's pages by this
        drop_cached(self.volume)?;
        let attached = self.file_system.attach()?;
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
        let (amount, sample) = timed(Worker::Others, || self.workload.run(attached.path()));
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

/// Extant, the kernel and the upper bound.
const PEERS: usize = 3;

/// Runs the benchmark. `watch` is called before each step.
///
/// # Errors
/// [`Error::Unsupported`] without root; otherwise the first error.
pub fn run(options: &Options, watch: &Watch<'_>) -> Result<Bench> {
    if !rustix::process::geteuid().is_root() {
        return Err(Error::Unsupported("the kernel's mount is one of the peers, and that needs root".into()));
    }
    let Some(volume) = &options.volume else {
        let folder = Folder::in_dir(&std::env::temp_dir())?;
        let volume = folder.join(Kind::ReadExt4.name());
        volumes::make(Kind::ReadExt4, Kind::ReadExt4.files(), &volume, watch)?;
        return on_volume(&volume, options, watch);
    };
    on_volume(volume, options, watch)
}

fn on_volume(volume: &Path, options: &Options, watch: &Watch<'_>) -> Result<Bench> {
    let kernel = FileSystem::Kernel { volume };
    let extant = FileSystem::Extant { program: &options.extant, volume };
    let reported = Reported::new(watch, sample_count(PEERS, options.runs) * 3);
    reported.say(&format!("{}: listing its files", volume.display()));
    let attached = kernel.attach()?;
    let tree = Arc::new(Tree::of(attached.path())?);
    let mut workloads: Vec<Box<dyn Workload>> = Vec::new();
    match largest_file(attached.path())? {
        Some((size, file)) if size >= LARGE => workloads.push(Box::new(SequentialRead { file })),
        _ => reported.skip(sample_count(PEERS, options.runs)),
    }
    workloads.extend([false, true].map(|warm| Box::new(Walk { warm }) as Box<dyn Workload>));
    let amounts: Vec<u64> = workloads.iter().map(|workload| workload.run(attached.path())).collect::<Result<_>>()?;
    attached.detach()?;

    let mut results = Vec::new();
    for (workload, amount) in workloads.iter().zip(amounts) {
        let peer = |file_system| OnMount { file_system, volume, workload: &**workload, amount, attached: None };
        let (mut extant, mut kernel) = (peer(extant), peer(kernel));
        let mut upper_bound = peer(FileSystem::UpperBound { tree: &tree });
        let begin_sample = |what: &str| reported.begin_sample(&format!("{}: {what}", workload.name()));
        let series = interleave(&mut [&mut extant, &mut kernel, &mut upper_bound], options.runs, &begin_sample)?;
        let walls: Vec<_> = series.into_iter().map(|series| (series.name, series.wall)).collect();
        let (what, unit) = (workload.name().to_owned(), workload.unit());
        results.push(Measured::new(what, unit, amount, &walls, &["kernel", "upper-bound"]));
    }
    let environment = Environment::here().with("extant", &options.extant, "--version");
    Ok(Bench { environment, volume: volume.to_owned(), workloads: results })
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
