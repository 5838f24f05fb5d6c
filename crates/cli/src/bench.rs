//! `extant bench`: measures Extant and other implementations in one run.

use crate::copy_in::not_ignored;
use crate::error_report::{Failure, Result, say};
use crate::output::{print_json, print_json_error, stdout};
use crate::progress::Bar;
use bench::volumes::{self, Kind};
use bench::{Step, Transport, check, interruption, kero, linked, maps, paper, read, write};
use clap::{Args, Subcommand, ValueEnum};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io::Write;
use std::path::{Path, PathBuf};

#[derive(Debug, Args)]
#[command(
    about = "Benchmark Extant against e2fsck, the kernel and fuse2fs",
    after_help = "Examples:
  extant bench check --volume volume.img                        the checker and e2fsck
  extant bench check --make many-ext4 --dir /tmp/volumes        on a volume made for it (as root)
  extant bench paper --dir /tmp                                 rext3 and ext3 on a modelled disk
  extant bench read --volume volume.img                         reading, and the kernel (as root)
  extant bench write --on kernel:ext4 --on extant:ext4          writing, and the kernel (as root)

Exit status: 0 results printed, 1 failed, 2 wrong usage, 128 + N ended by signal N."
)]
pub(crate) struct Bench {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Check(Check),
    Paper(Paper),
    Maps(Maps),
    Linked(Linked),
    Kero(Kero),
    Read(Read),
    Write(WriteSets),
}

#[derive(Debug, Args)]
#[command(
    about = "Compare `check -fn` with `e2fsck -fn`",
    long_about = "Measure `extant check -fn` and `e2fsck -fn`, alternately, and as a lower bound reading what the check \
                  reads, each byte once, in order, with a CRC32C over it. Prints wall time with its spread, \
                  processor time, resident memory and, where strace is installed, how many reads do not follow the \
                  one before.

With --model the reads of both are also timed on a modelled disk: virtual seconds, seeks, bytes. That is the time of the \
                  device alone: no processor time between reads, no page cache, no readahead by the kernel. The \
                  figures of Extant are the same in each run: it is timed with one thread, whatever --threads says, \
                  so that the order of its reads is fixed. e2fsck's reads are those that strace reports, one of its \
                  threads after the other, so that their order is fixed too and its figures are the same in each run. \
                  Each read waits for the one before; 'extant, batches' submits Extant's reads in batches, as it does \
                  to a disk with a queue.",
    after_help = "Examples:
  extant bench check --volume a.img --volume b.img --threads 2
  extant bench check --volume a.img --model hdd -n 1
  extant bench check --volume a.img --cold -n 11 --json
  extant bench check --make aged-ext3 --dir /tmp/volumes --files 2000

Exit status: 0 results printed, 1 failed, 2 wrong usage, 128 + N ended by signal N."
)]
struct Check {
    /// A volume; it is only read. May be repeated
    #[arg(long = "volume", value_name = "FILE")]
    volumes: Vec<PathBuf>,

    /// Create a volume of this kind in DIR, or reuse the existing one, and measure on it. Needs root
    #[arg(long, value_enum, value_name = "KIND", requires = "dir")]
    make: Vec<VolumeKind>,

    /// Directory for the volumes of --make
    #[arg(long, value_name = "DIR", requires = "make")]
    dir: Option<PathBuf>,

    /// Number of files in a new volume
    #[arg(long, value_name = "N", requires = "make", value_parser = clap::value_parser!(u64).range(10..=100_000_000))]
    files: Option<u64>,

    /// Number of runs of each checker
    #[arg(short = 'n', long, value_name = "RUNS", default_value_t = 7, value_parser = runs)]
    runs: usize,

    /// Drop the volume from the page cache before each run
    #[arg(long)]
    cold: bool,

    /// Threads of Extant's checker
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: Option<u16>,

    /// Plot the positions of the reads of both on the last volume, as SVG. Needs strace
    #[arg(long, value_name = "FILE")]
    picture: Option<PathBuf>,

    /// Also time the reads of both on a modelled disk: hdd, ssd or a parameter file. Needs strace for e2fsck
    #[arg(long, value_name = "hdd|ssd|FILE")]
    model: Option<String>,

    /// The e2fsck to compare with
    #[arg(long, value_name = "PATH")]
    e2fsck: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
#[command(
    about = "Compare reading through FUSE with the kernel's own mount",
    long_about = "Mount a volume by Extant and by the kernel, alternately, read its largest file in sequence and \
                  walk its tree with stat; for comparison, a FUSE file system in memory with the same tree shows \
                  the cost of FUSE itself. Needs root, for the kernel's mount.

Tables show the transport of FUSE requests, the number of processors, and CPU time per operation, in microseconds: user \
                  and system time of the process that reads and of the one that serves the mount, without the kernel's \
                  own threads (of loop devices, for example).",
    after_help = "Examples:
  extant bench read                        on a temporary volume of 3 GiB in $TMPDIR
  extant bench read --volume volume.img -n 11 --json
  extant bench read --transport dev-fuse --transport io_uring
  extant bench read --volume volume.img --processors 1

Exit status: 0 results printed, 1 failed, 2 wrong usage, 128 + N ended by signal N."
)]
struct Read {
    /// The volume; it is only read. A temporary one is created if omitted
    #[arg(long, value_name = "FILE")]
    volume: Option<PathBuf>,

    /// Transport of FUSE requests; by default as `extant mount` chooses. May be repeated, to compare both
    #[arg(long = "transport", value_name = "dev-fuse|io_uring")]
    transports: Vec<Transport>,

    /// Run the work and the servers of the mounts on N processors
    #[arg(long, visible_alias = "cpus", value_name = "N", value_parser = processors)]
    processors: Option<usize>,

    /// Number of runs of each peer
    #[arg(short = 'n', long, value_name = "RUNS", default_value_t = 5, value_parser = runs)]
    runs: usize,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
#[command(
    about = "Compare writing with the kernel and fuse2fs",
    long_about = "Create a new volume for each peer and each run, do the same work on all of them, alternately, and \
                  check each volume with e2fsck afterwards. Each time includes a final sync. A peer is \
                  kernel:FORMAT, extant:FORMAT[:MODE] (through FUSE), library:FORMAT[:MODE] (no FUSE) or \
                  fuse2fs:FORMAT, or upper-bound:FORMAT (files in memory through FUSE), or raw-log:log (no file \
                  system: content, a record of 4 KiB in a log, and one flush, for the set fsync). MODE is a mode \
                  of `extant crash`, or data=writeback or data=journal, and for the others the value of their -o option. \
                  Needs root, except for the library.

After extant:FORMAT[:MODE] and upper-bound:FORMAT may follow @dev-fuse or @io_uring, the transport of FUSE requests; \
                  without it the peer is mounted as `extant mount` does, over io_uring where the kernel has it enabled.

Tables show the transport, the number of processors, and CPU time per operation (for bytes: per MiB), in microseconds: \
                  user and system time of the process that does the work and of the one that serves the mount, without \
                  the kernel's own threads (of loop devices and journals, for example), which --processors does not \
                  restrict either.

Where available, tables show the writes: bytes, requests, requests that do not begin where the one before \
                  ended (seeks), and flushes. For the library these are its requests to the device, for the kernel \
                  those to its loop device.",
    after_help = "Examples:
  extant bench write --on kernel:ext4 --on extant:ext4 --on fuse2fs:ext4
  extant bench write --on library:ext2:none --on library:ext2:dirty-bit --set postmark -n 7
  extant bench write --on library:extant --on kernel:btrfs --set create-delete
  extant bench write --on library:extant --on kernel:ext4 --set dbench --load client.txt
  extant bench write --on kernel:ext4 --on extant:ext4 --scale 0.1 --json
  extant bench write --on extant:ext4@dev-fuse --on extant:ext4@io_uring --set empty
  extant bench write --on kernel:ext4 --on extant:ext4:journal@dev-fuse --processors 1

Exit status: 0 results printed, 1 failed, 2 wrong usage, 128 + N ended by signal N."
)]
struct WriteSets {
    /// A peer to measure; may be repeated
    #[arg(long = "on", value_name = "PEER", required = true)]
    peers: Vec<write::Spec>,

    /// The peer that ratios are relative to; by default the first. May be repeated
    #[arg(long = "to", value_name = "PEER")]
    to: Vec<write::Spec>,

    /// Run only this set; may be repeated
    #[arg(long = "set", value_enum, value_name = "SET")]
    sets: Vec<WriteSet>,

    /// Load file that dbench's clients replay; adds the set dbench
    #[arg(long, value_name = "FILE")]
    load: Option<PathBuf>,

    /// Fraction of the full size
    #[arg(long, value_name = "PART", default_value_t = 1.0, value_parser = part)]
    scale: f64,

    /// Run the work and the servers of the mounts on N processors
    #[arg(long, visible_alias = "cpus", value_name = "N", value_parser = processors)]
    processors: Option<usize>,

    /// Number of runs of each peer
    #[arg(short = 'n', long, value_name = "RUNS", default_value_t = 3, value_parser = runs)]
    runs: usize,

    /// Directory for the volumes, which take up to 2 GiB
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A set of operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum WriteSet {
    /// 100 000 empty files in 1 000 directories: created, examined, deleted
    Empty,
    /// The same files created and deleted, three times, with one sync at the end
    CreateDelete,
    /// PostMark: 20 000 files of 500 B to 16 KB, 100 000 transactions
    Postmark,
    /// A source tree of 20 000 files: unpacked and deleted
    Untar,
    /// 1 GiB written and read, 4 KiB reads and synced writes
    Data,
    /// 2 000 times 4 KiB, appended, overwritten or in a new file, each with an fsync
    Fsync,
    /// The load file of dbench, replayed by 1, 4, 8, 16 and 32 clients at once
    Dbench,
}

impl From<WriteSet> for write::Set {
    fn from(set: WriteSet) -> Self {
        match set {
            WriteSet::Empty => Self::Empty,
            WriteSet::Postmark => Self::Postmark,
            WriteSet::Untar => Self::Untar,
            WriteSet::CreateDelete => Self::CreateDelete,
            WriteSet::Data => Self::Data,
            WriteSet::Fsync => Self::Fsync,
            WriteSet::Dbench => Self::Dbench,
        }
    }
}

/// A fraction of the full size.
fn part(text: &str) -> std::result::Result<f64, String> {
    match text.parse() {
        Ok(part) if part > 0.0 && part <= 100.0 => Ok(part),
        _ => Err("must be above 0, at most 100".into()),
    }
}

/// Options of the benchmarks on a modelled disk.
#[derive(Debug, Clone, Args)]
struct Modelled {
    /// Directory for the volumes: sparse files, one at a time
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,

    /// Random seed
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
#[command(
    about = "Compare rext3 with ext3 on a modelled disk, as in the paper on ffsck",
    long_about = "Age ext3 and rext3 volumes as in the paper on ffsck (FAST '13, section 3.2), check them on a modelled hard \
                  disk, and print seconds, throughput relative to the disk's sequential throughput, and the error of the \
                  estimate. Then do the same ordinary work on ext3, on ext3 with metadata_csum and on \
                  rext3. All seconds are the disk's.",
    after_help = "Examples:
  extant bench paper
  extant bench paper --size 13G --rounds 0 --rounds 200 --json

Exit status: 0 results printed, 1 failed, 2 wrong usage, 128 + N ended by signal N."
)]
struct Paper {
    /// Size of the volumes
    #[arg(long, value_name = "SIZE", default_value = "64G", value_parser = size)]
    size: u64,

    /// An age: the number of rounds after filling, each with one operation in each directory. May be repeated
    #[arg(long, value_name = "COUNT", default_values_t = [0, 100, 400])]
    rounds: Vec<u32>,

    #[command(flatten)]
    modelled: Modelled,
}

#[derive(Debug, Args)]
#[command(
    about = "Compare space maps with block bitmaps on a modelled disk, as in the paper on space maps",
    long_about = "Do the work of the paper on space maps (section 4) on ext4 with block bitmaps, with bitmaps in flexible \
                  groups of 8 GiB, and with space maps: PostMark, and trees of small files beside large files. Prints how many \
                  requests for allocation metadata the disk got, how many of them began elsewhere than the request before \
                  ended, and where free space lies at the end. Files have blocks whose content is not written. All seconds \
                  are the disk's.

As root the same work is also done by the kernel's ext4, on volumes by mke2fs with its defaults and with \
                  flexible groups of 8 GiB without copies of the superblock. Its requests are those to a loop \
                  device, without seconds (null in JSON). Where figures of the kernel are missing, a sentence says \
                  why (kernel_missing in JSON).

Then large files are written to an aged volume, and their fragments counted; and the memory of free space is \
                  computed, with all of it read, of a volume 160 times as long with holes and of one with every \
                  second block free.",
    after_help = "Examples:
  extant bench maps --size 5G
  sudo extant bench maps --size 5G                         and the kernel
  extant bench maps --dir /var/tmp --size 50G --json       the paper's size

Exit status: 0 results printed, 1 failed, 2 wrong usage, 128 + N ended by signal N."
)]
struct Maps {
    /// Size of the volumes; the paper's are 50G, and all amounts are in proportion to that
    #[arg(long, value_name = "SIZE", default_value = "5G", value_parser = size)]
    size: u64,

    #[command(flatten)]
    modelled: Modelled,
}

#[derive(Debug, Args)]
#[command(
    about = "Compare linked writes with the dirty bit and a journal on a modelled disk, as in the paper on both",
    long_about = "Do the four workloads of the paper on the dirty bit and linked writes (section 5) on ext2 with the modes none, \
                  dirty-bit and linked, and on ext3 with journal and journal-writeback: a tree unpacked, then removed with \
                  cold caches, PostMark, and 16 files written by turns; each with one sync at the end, with an fsync for each \
                  file, and with a generation closed each second. Prints the disk's time, and requests and bytes by their \
                  location, beside the paper's table 1. Then cut volumes of three sizes off in the middle of a generation, \
                  and print the time of their recovery and of a full check. All seconds are the disk's.",
    after_help = "Examples:
  extant bench linked --scale 0.1
  extant bench linked --dir /var/tmp --json                the paper's number of files

Exit status: 0 results printed, 1 failed, 2 wrong usage, 128 + N ended by signal N."
)]
struct Linked {
    /// Fraction of the full size: of the work, and of the volumes of 8 GiB, and of 1, 16 and 256 GiB for recovery
    #[arg(long, value_name = "PART", default_value_t = 1.0, value_parser = part)]
    scale: f64,

    #[command(flatten)]
    modelled: Modelled,
}

#[derive(Debug, Args)]
#[command(
    about = "Compare ext2 on a Kero layer with ext3 on a modelled disk, as in the paper on Kero",
    long_about = "Do the work of the paper on decoupled address updates (Kero) on a modelled hard disk: on ext3 data=journal, \
                  ext3 ordered, ext2, and ext2 on a Kero layer. PostMark, the phases of Bonnie++, and writes of 4 KiB at random \
                  with an fsync after each or after eight. Prints the disk's seconds until the last sync and until the layer is \
                  removed and everything is in its home location, the bytes that the disk wrote for each byte of content, \
                  flushes, and groups that were split. Then a layer with a full log is opened after a crash. All seconds are \
                  the disk's; the nanoseconds of look-ups in the table are the machine's.",
    after_help = "Examples:
  extant bench kero --scale 0.1
  extant bench kero --dir /var/tmp --json                  the paper's amounts

Exit status: 0 results printed, 1 failed, 2 wrong usage, 128 + N ended by signal N."
)]
struct Kero {
    /// Fraction of the full size: a device of 8 GiB, a log of 1 GiB
    #[arg(long, value_name = "PART", default_value_t = 1.0, value_parser = part)]
    scale: f64,

    #[command(flatten)]
    modelled: Modelled,
}

fn size(text: &str) -> std::result::Result<u64, String> {
    blockdev::parse_size(text).map_err(|e| e.to_string())
}

/// A volume that `--make` can create.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum VolumeKind {
    /// Many small files on ext4: 150 000 by default (--files)
    ManyExt4,
    /// ext3 with fragmented files: 6 000 files in 3 GiB
    AgedExt3,
    /// The same on ext4
    AgedExt4,
}

impl From<VolumeKind> for Kind {
    fn from(kind: VolumeKind) -> Self {
        match kind {
            VolumeKind::ManyExt4 => Self::ManyExt4,
            VolumeKind::AgedExt3 => Self::AgedExt3,
            VolumeKind::AgedExt4 => Self::AgedExt4,
        }
    }
}

/// A number of runs.
fn runs(text: &str) -> std::result::Result<usize, String> {
    match text.parse() {
        Ok(runs @ 1..=1000) => Ok(runs),
        _ => Err("must be from 1 to 1000".into()),
    }
}

/// A number of processors; whether there are as many is checked before the work begins.
fn processors(text: &str) -> std::result::Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("must be at least 1".into()),
        Ok(processors) => Ok(processors),
    }
}

impl From<bench::Error> for Failure {
    fn from(e: bench::Error) -> Self {
        Self::Message(e.to_string())
    }
}

impl Bench {
    pub(crate) fn run(&self) -> Result<u8> {
        let extant =
            std::env::current_exe().map_err(|e| Failure::Message(format!("cannot find extant itself: {e}")))?;
        undo_on_signals(self.what.json())?;
        let outcome = match &self.what {
            What::Check(check) => check.run(extant),
            What::Paper(paper) => paper.run(),
            What::Maps(maps) => maps.run(),
            What::Linked(linked) => linked.run(),
            What::Kero(kero) => kero.run(),
            What::Read(read) => read.run(extant),
            What::Write(sets) => sets.run(extant),
        };
        interruption::wait_if_undone();
        outcome
    }
}

impl What {
    fn json(&self) -> bool {
        match self {
            Self::Check(check) => check.json,
            Self::Paper(paper) => paper.modelled.json,
            Self::Maps(maps) => maps.modelled.json,
            Self::Linked(linked) => linked.modelled.json,
            Self::Kero(kero) => kero.modelled.json,
            Self::Read(read) => read.json,
            Self::Write(sets) => sets.json,
        }
    }
}

/// Starts a thread that on a termination signal undoes what the benchmark did to the system, and ends the process.
fn undo_on_signals(json: bool) -> Result<()> {
    let mut signals = Signals::new(not_ignored([SIGINT, SIGTERM, SIGHUP]))?;
    std::thread::spawn(move || {
        let Some(signal) = signals.forever().next() else { return };
        interruption::undo_all();
        let sentence = format!("received signal {signal}; mounts and temporary files were removed");
        let status = u8::try_from(128 + signal).unwrap_or(1);
        say(&sentence);
        if json {
            print_json_error(&sentence, status);
        }
        std::process::exit(status.into());
    });
    Ok(())
}

/// Prints the figures, as text or as JSON.
fn print_figures(json: bool, figures: &impl serde::Serialize, text: String) -> Result<u8> {
    if json {
        print_json(figures)?
    } else {
        print(&text)?
    }
    Ok(0)
}

impl Paper {
    fn run(&self) -> Result<u8> {
        let Modelled { dir, seed, json } = self.modelled.clone();
        let options = paper::Options { dir, size: self.size, rounds: self.rounds.clone(), seed };
        let figures = paper::run(&options, &|line| say(line))?;
        print_figures(json, &figures, figures.text())
    }
}

impl Maps {
    fn run(&self) -> Result<u8> {
        let Modelled { dir, seed, json } = self.modelled.clone();
        let options = maps::Options { dir, size: self.size, seed };
        let figures = maps::run(&options, &|line| say(line))?;
        print_figures(json, &figures, figures.text())
    }
}

impl Linked {
    fn run(&self) -> Result<u8> {
        let Modelled { dir, seed, json } = self.modelled.clone();
        let options = linked::Options { dir, scale: self.scale, seed };
        let figures = linked::run(&options, &|line| say(line))?;
        print_figures(json, &figures, figures.text())
    }
}

impl Kero {
    fn run(&self) -> Result<u8> {
        let Modelled { dir, seed, json } = self.modelled.clone();
        let options = kero::Options { dir, scale: self.scale, seed };
        let figures = kero::run(&options, &|line| say(line))?;
        print_figures(json, &figures, figures.text())
    }
}

impl Check {
    fn run(&self, extant: PathBuf) -> Result<u8> {
        let mut volumes = self.volumes.clone();
        for kind in &self.make {
            volumes.push(self.made((*kind).into())?);
        }
        if volumes.is_empty() {
            return Err(Failure::Usage("specify a volume with --volume, or create one with --make and --dir".into()));
        }
        let options = check::Options {
            volumes,
            extant,
            e2fsck: self.e2fsck.clone(),
            runs: self.runs,
            cold: self.cold,
            threads: self.threads.map(usize::from),
            picture: self.picture.clone(),
            model: self.model.clone(),
        };
        let bench = watched(|bar| check::run(&options, &|step| show(bar, step)))?;
        if self.json {
            print_json(&bench)?
        } else {
            print(&bench.text())?
        }
        Ok(0)
    }

    /// The volume of this kind in the folder, created if it does not exist.
    fn made(&self, kind: Kind) -> Result<PathBuf> {
        let files = self.files.unwrap_or(kind.files());
        let dir = self.dir.as_deref().unwrap_or(Path::new("."));
        let path = dir.join(format!("{}-{files}.img", kind.name()));
        if !path.exists() {
            // under a temporary name first, so that a partial volume is never used as a complete one
            let partly = dir.join(format!("{}-{files}.part", kind.name()));
            let failed = |e| Failure::Message(format!("cannot make {}: {e}", path.display()));
            std::fs::create_dir_all(dir).map_err(failed)?;
            watched(|bar| volumes::make(kind, files, &partly, &|step| show(bar, step)))?;
            std::fs::rename(&partly, &path).map_err(failed)?;
        }
        Ok(path)
    }
}

impl Read {
    fn run(&self, extant: PathBuf) -> Result<u8> {
        let options = read::Options {
            volume: self.volume.clone(),
            extant,
            transports: self.transports.clone(),
            processors: self.processors,
            runs: self.runs,
        };
        let bench = watched(|bar| read::run(&options, &|step| show(bar, step)))?;
        if self.json {
            print_json(&bench)?
        } else {
            print(&bench.text())?
        }
        Ok(0)
    }
}

impl WriteSets {
    fn run(&self, extant: PathBuf) -> Result<u8> {
        let mut sets: Vec<write::Set> = self.sets.iter().map(|&set| set.into()).collect();
        if self.load.is_none() && self.sets.contains(&WriteSet::Dbench) {
            return Err(Failure::Usage("--set dbench requires --load".into()));
        }
        let load = self.load.as_deref().map(write::Load::read).transpose()?;
        if sets.is_empty() {
            sets.extend(write::SETS);
            sets.extend(load.is_some().then_some(write::Set::Dbench));
        }
        let dir = self.dir.clone().unwrap_or_else(std::env::temp_dir);
        let peers = self.peers.clone();
        let to = self.to.clone();
        let (scale, processors, runs) = (self.scale, self.processors, self.runs);
        let options = write::Options { peers, to, sets, scale, load, processors, runs, dir, extant };
        let bench = watched(|bar| write::run(&options, &|step| show(bar, step)))?;
        if self.json {
            print_json(&bench)?
        } else {
            print(&bench.text())?
        }
        Ok(0)
    }
}

/// Runs lengthy work with a progress bar on a terminal.
fn watched<T>(work: impl FnOnce(&Bar) -> bench::Result<T>) -> Result<T> {
    let bar = Bar::steps();
    let outcome = work(&bar);
    bar.finish();
    Ok(outcome?)
}

fn show(bar: &Bar, step: &Step<'_>) {
    bar.step(step.what, step.done, step.of);
}

fn print(text: &str) -> Result<()> {
    let mut out = stdout()?;
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}
