//! `extant bench`: Extant beside its peers, measured in one run.

use crate::failure::{Failure, Result};
use crate::output::{print_json, stdout};
use crate::progress::Bar;
use bench::volumes::{self, Kind};
use bench::{Step, check, maps, paper, read, write};
use clap::{Args, Subcommand, ValueEnum};
use std::io::Write;
use std::path::{Path, PathBuf};

#[derive(Debug, Args)]
#[command(
    about = "Measure Extant beside its peers",
    after_help = "Examples:
  extant bench check --volume volume.img                        the checker beside e2fsck
  extant bench check --make many-ext4 --dir /tmp/volumes        on a volume made for it (as root)
  extant bench paper --dir /tmp                                 rext3 beside ext3 on a modelled disk
  extant bench read --volume volume.img                         reading beside the kernel (as root)
  extant bench write --on kernel:ext4 --on extant:ext4          writing beside the kernel (as root)

Exit status: 0 figures are printed, 1 they could not be had, 2 wrong usage."
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
    Read(Read),
    Write(WriteSets),
}

#[derive(Debug, Args)]
#[command(
    about = "Measure `check -fn` beside `e2fsck -fn`",
    long_about = "Measures `extant check -fn` beside `e2fsck -fn`, turn by turn, and beside the floor: reading what the \
                  check reads, each byte once, in order, with a CRC32C over it. Tells wall time with its spread, \
                  processor time, resident memory and, where strace is installed, how many reads do not follow the \
                  one before.

With --model the reads of both are timed on a modelled disk too: virtual seconds, seeks, bytes. That is the time of the \
                  device alone: no processor time between reads, no page cache, no reading ahead by the kernel. The \
                  figures of Extant are the same in each run: it is timed with one thread, whatever --threads says, \
                  so that the order of its reads is fixed. e2fsck's reads are those that strace tells, one of its threads \
                  after the other, so that the order is fixed too and its figures are the same in each run. \
                  Each read waits for the one before; 'extant, batches' hands Extant's over in batches, as it does to \
                  a disk with a queue.",
    after_help = "Examples:
  extant bench check --volume a.img --volume b.img --threads 2
  extant bench check --volume a.img --model hdd -n 1
  extant bench check --volume a.img --cold -n 11 --json
  extant bench check --make aged-ext3 --dir /tmp/volumes --files 2000

Exit status: 0 figures are printed, 1 they could not be had, 2 wrong usage."
)]
struct Check {
    /// A volume; it is only read. May be given more than once
    #[arg(long = "volume", value_name = "FILE")]
    volumes: Vec<PathBuf>,

    /// Make a volume of this kind and measure on it; it stays in DIR and is used again. Needs root
    #[arg(long, value_enum, value_name = "KIND", requires = "dir")]
    make: Vec<Shape>,

    /// Where volumes are made
    #[arg(long, value_name = "DIR", requires = "make")]
    dir: Option<PathBuf>,

    /// How many files a volume that is made has
    #[arg(long, value_name = "N", requires = "make", value_parser = clap::value_parser!(u64).range(10..=100_000_000))]
    files: Option<u64>,

    /// How many turns each peer has
    #[arg(short = 'n', long, value_name = "RUNS", default_value_t = 7, value_parser = runs)]
    runs: usize,

    /// Drop the volume from the page cache before each turn
    #[arg(long)]
    cold: bool,

    /// Threads of Extant's checker
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: Option<u16>,

    /// Draw where the reads of both fall on the last volume, as SVG. Needs strace
    #[arg(long, value_name = "FILE")]
    picture: Option<PathBuf>,

    /// Time the reads of both on a modelled disk too: hdd, ssd or a file of parameters. e2fsck's need strace
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
    about = "Measure reading through FUSE beside the kernel's own mount",
    long_about = "Mounts a volume by Extant and by the kernel, turn by turn, and reads its largest file in sequence and \
                  walks its tree with stat; beside both, a FUSE file system in memory with the same tree shows what \
                  FUSE itself costs. Needs root, for the kernel's mount.",
    after_help = "Examples:
  extant bench read                        on a volume of 3 GiB that is made in $TMPDIR, and removed
  extant bench read --volume volume.img -n 11 --json

Exit status: 0 figures are printed, 1 they could not be had, 2 wrong usage."
)]
struct Read {
    /// The volume; it is only read. One is made where none is given
    #[arg(long, value_name = "FILE")]
    volume: Option<PathBuf>,

    /// How many turns each peer has
    #[arg(short = 'n', long, value_name = "RUNS", default_value_t = 5, value_parser = runs)]
    runs: usize,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
#[command(
    about = "Measure writing beside the kernel and fuse2fs",
    long_about = "Makes a fresh volume for each peer and each turn, does the same work on all of them, turn by turn, and \
                  has e2fsck look at each volume afterwards. Each time includes a final sync. A peer is \
                  kernel:FORMAT, extant:FORMAT[:MODE] (through FUSE), library:FORMAT[:MODE] (no FUSE) or \
                  fuse2fs:FORMAT, or ceiling:FORMAT (files in memory through FUSE), or bare:log (no file system: \
                  content, a record of 4 KiB in a log, and one flush, for the set fsync). MODE is a mode of \
                  `extant crash`, or data=writeback or data=journal, and for the others what their -o takes. Needs \
                  root, but for the library.

Where it can be counted, tables tell what was written: bytes, requests, requests that do not begin where the one before \
                  ended (seeks), and flushes. Of the library that is what it asks the device for, of the kernel what \
                  it asks its loop device for.",
    after_help = "Examples:
  extant bench write --on kernel:ext4 --on extant:ext4 --on fuse2fs:ext4
  extant bench write --on library:ext2:none --on library:ext2:dirty-bit --set postmark -n 7
  extant bench write --on library:extant --on library:extant:none --on kernel:btrfs --set thrice
  extant bench write --on library:extant --on kernel:ext4 --set dbench --load client.txt
  extant bench write --on kernel:ext4 --on extant:ext4 --scale 0.1 --json

Exit status: 0 figures are printed, 1 they could not be had, 2 wrong usage."
)]
struct WriteSets {
    /// A peer; may be given more than once
    #[arg(long = "on", value_name = "PEER", required = true)]
    peers: Vec<write::Spec>,

    /// The peer that ratios are to, one of those; the first if not given. May be given more than once
    #[arg(long = "to", value_name = "PEER")]
    to: Vec<write::Spec>,

    /// Only this set; may be given more than once
    #[arg(long = "set", value_enum, value_name = "SET")]
    sets: Vec<WriteSet>,

    /// The load file that dbench's clients replay; the set dbench is done where it is given
    #[arg(long, value_name = "FILE")]
    load: Option<PathBuf>,

    /// Part of the full size
    #[arg(long, value_name = "PART", default_value_t = 1.0, value_parser = part)]
    scale: f64,

    /// How many turns each peer has
    #[arg(short = 'n', long, value_name = "RUNS", default_value_t = 3, value_parser = runs)]
    runs: usize,

    /// Where volumes are made; they take up to 2 GiB
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum WriteSet {
    /// 100 000 empty files in 1 000 directories: made, looked at, removed
    Empty,
    /// The same made and removed, three times, with one sync at the end
    Thrice,
    /// PostMark: 20 000 files of 500 B to 16 KB, 100 000 transactions
    Postmark,
    /// A source tree of 20 000 files: unpacked and removed
    Untar,
    /// 1 GiB written and read, 4 KiB reads and synced writes
    Data,
    /// 2 000 times 4 KiB appended, overwritten, in a new file: an fsync each
    Fsync,
    /// What the load file of dbench says, by 1, 4, 8, 16 and 32 clients at once
    Dbench,
}

impl From<WriteSet> for write::Set {
    fn from(set: WriteSet) -> Self {
        match set {
            WriteSet::Empty => Self::Empty,
            WriteSet::Postmark => Self::Postmark,
            WriteSet::Untar => Self::Untar,
            WriteSet::Thrice => Self::Thrice,
            WriteSet::Data => Self::Data,
            WriteSet::Fsync => Self::Fsync,
            WriteSet::Dbench => Self::Dbench,
        }
    }
}

/// A part of the full size.
fn part(text: &str) -> std::result::Result<f64, String> {
    match text.parse() {
        Ok(part) if part > 0.0 && part <= 100.0 => Ok(part),
        _ => Err("give a number above 0, at most 100".into()),
    }
}

#[derive(Debug, Args)]
#[command(
    about = "Measure rext3 beside ext3 on a modelled disk, as the paper on ffsck does",
    long_about = "Ages ext3 and rext3 volumes as the paper on ffsck does (FAST '13, section 3.2), checks them on a modelled hard \
                  disk, and tells seconds, bytes a second in parts of what the disk gives in order, and how far the \
                  estimate was from that. Then does the same ordinary work on ext3, on ext3 with metadata_csum and on \
                  rext3. All seconds are the disk's.",
    after_help = "Examples:
  extant bench paper
  extant bench paper --size 13G --rounds 0 --rounds 200 --json

Exit status: 0 figures are printed, 1 they could not be had, 2 wrong usage."
)]
struct Paper {
    /// Where volumes are made, one at a time: sparse files
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,

    /// Length of the volumes that are aged
    #[arg(long, value_name = "SIZE", default_value = "64G", value_parser = size)]
    size: u64,

    /// An age: operations in each directory after the volume was filled. May be given more than once
    #[arg(long, value_name = "COUNT", default_values_t = [0, 100, 400])]
    rounds: Vec<u32>,

    /// What everything follows from
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
#[command(
    about = "Measure space maps beside block bitmaps on a modelled disk, as the paper on space maps does",
    long_about = "Does the work of the paper on space maps (section 4) on ext4 with block bitmaps, with bitmaps in flexible \
                  groups of 8 GiB, and with space maps: PostMark, and trees of small files beside large files. Says how many \
                  requests for allocation metadata the disk got, how many of them began elsewhere than the request before \
                  ended, and where free space lies at the end. Files have blocks whose content is not written. All seconds \
                  are the disk's.",
    after_help = "Examples:
  extant bench maps --size 5G
  extant bench maps --dir /var/tmp --size 50G --json       the paper's size

Exit status: 0 figures are printed, 1 they could not be had, 2 wrong usage."
)]
struct Maps {
    /// Where volumes are made, one at a time: sparse files
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,

    /// Length of the volumes; the paper's are 50G, and all amounts are in proportion to that
    #[arg(long, value_name = "SIZE", default_value = "5G", value_parser = size)]
    size: u64,

    /// What everything follows from
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn size(text: &str) -> std::result::Result<u64, String> {
    blockdev::parse_size(text).map_err(|e| e.to_string())
}

/// A volume that can be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Shape {
    /// Many small files on ext4: 150 000 unless --files says so
    ManyExt4,
    /// ext3 with files in many pieces: 6 000 files in 3 GiB
    AgedExt3,
    /// The same on ext4
    AgedExt4,
}

impl From<Shape> for Kind {
    fn from(shape: Shape) -> Self {
        match shape {
            Shape::ManyExt4 => Self::ManyExt4,
            Shape::AgedExt3 => Self::AgedExt3,
            Shape::AgedExt4 => Self::AgedExt4,
        }
    }
}

/// A number of turns.
fn runs(text: &str) -> std::result::Result<usize, String> {
    match text.parse() {
        Ok(runs @ 1..=1000) => Ok(runs),
        _ => Err("give a number from 1 to 1000".into()),
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
        match &self.what {
            What::Check(check) => check.run(extant),
            What::Paper(paper) => paper.run(),
            What::Maps(maps) => maps.run(),
            What::Read(read) => read.run(extant),
            What::Write(sets) => sets.run(extant),
        }
    }
}

impl Paper {
    fn run(&self) -> Result<u8> {
        let options =
            paper::Options { dir: self.dir.clone(), size: self.size, rounds: self.rounds.clone(), seed: self.seed };
        let figures = paper::run(&options, &|line| crate::failure::say(line))?;
        if self.json {
            print_json(&figures)?
        } else {
            print(&figures.text())?
        }
        Ok(0)
    }
}

impl Maps {
    fn run(&self) -> Result<u8> {
        let options = maps::Options { dir: self.dir.clone(), size: self.size, seed: self.seed };
        let figures = maps::run(&options, &|line| crate::failure::say(line))?;
        if self.json {
            print_json(&figures)?
        } else {
            print(&figures.text())?
        }
        Ok(0)
    }
}

impl Check {
    fn run(&self, extant: PathBuf) -> Result<u8> {
        let mut volumes = self.volumes.clone();
        for shape in &self.make {
            volumes.push(self.made((*shape).into())?);
        }
        if volumes.is_empty() {
            return Err(Failure::Message("name a volume with --volume, or have one made with --make and --dir".into()));
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

    /// The volume of this kind in the folder, made unless it is there.
    fn made(&self, kind: Kind) -> Result<PathBuf> {
        let files = self.files.unwrap_or(kind.files());
        let dir = self.dir.as_deref().unwrap_or(Path::new("."));
        let path = dir.join(format!("{}-{files}.img", kind.name()));
        if !path.exists() {
            // under another name first, so that half a volume is never taken for a whole one
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
        let options = read::Options { volume: self.volume.clone(), extant, runs: self.runs };
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
        let load = self.load.as_deref().map(write::Load::read).transpose()?;
        if sets.is_empty() {
            sets.extend(write::SETS);
            sets.extend(load.is_some().then_some(write::Set::Dbench));
        }
        let dir = self.dir.clone().unwrap_or_else(std::env::temp_dir);
        let peers = self.peers.clone();
        let to = self.to.clone();
        let options = write::Options { peers, to, sets, scale: self.scale, load, runs: self.runs, dir, extant };
        let bench = watched(|bar| write::run(&options, &|step| show(bar, step)))?;
        if self.json {
            print_json(&bench)?
        } else {
            print(&bench.text())?
        }
        Ok(0)
    }
}

/// Does what takes long, with a bar for those who wait at a terminal.
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
