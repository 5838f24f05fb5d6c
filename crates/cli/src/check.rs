//! `extant check`, and e2fsck's names for it: finds what is wrong with a volume, and mends it.

use crate::failure::{Failure, say};
use crate::output::{counted, human, print_json, stdout};
use blockdev::BlockDevice;
use check::report::{Counts, Report, Scan, exit};
use check::{Estimate, Options, Refusal, Repair};
use clap::Args;
use clap::builder::RangedU64ValueParser;
use serde::Serialize;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;

mod skip;
mod watch;

use check::render::escape;
use watch::Watch;

#[derive(Debug, Args)]
#[command(
    about = "Find what is wrong with a volume, and mend it",
    after_help = "Examples:
  extant check -fn volume.img             check it, change nothing
  extant check volume.img                 the same, unless it was left clean
  extant check --estimate /dev/sdb1       how long a check would take
  extant check -fn -b 32768 volume.img    with a copy of the superblock
  extant check -fn --json volume.img | jq -r '.problems[].text'
  extant check -fy -z before volume.img   mend everything, and keep a way back

Without -p or -y nothing is changed. -p mends only what cannot lose anything; where a person has to decide, it \
    changes nothing but replays the journal. -z keeps what is changed for `extant undo`. A repair that is cut at any \
    moment is finished by the next one. Problems have e2fsck's numbers. With -C FD, lines 'PASS DONE OF DEVICE' go to that file descriptor, as from e2fsck; 0 stands for the \
    bar on the terminal.

Exit status, the sum of: 0 sound, 1 mended, 4 errors are left, 8 the check could not be done, 16 wrong usage, 32 cancelled."
)]
pub(crate) struct Check {
    /// Volume: a path, or `mem:SIZE`
    #[arg(value_name = "DEVICE")]
    device: String,

    /// Change nothing
    #[arg(short = 'n', conflicts_with_all = ["preen", "yes"])]
    no_change: bool,

    /// Mend what is safe to mend
    #[arg(short = 'p', visible_short_alias = 'a', conflicts_with = "yes")]
    preen: bool,

    /// Mend everything
    #[arg(short = 'y')]
    yes: bool,

    /// Write what the changed places held to the new file UNDO first, for `extant undo`
    #[arg(short = 'z', long, value_name = "UNDO")]
    undo: Option<PathBuf>,

    /// Check even where the volume says that it was left clean
    #[arg(short, long)]
    force: bool,

    /// Use the copy of the superblock in block SB
    #[arg(short = 'b', long, value_name = "SB")]
    superblock: Option<u64>,

    /// Block size by which SB is counted; without it every size is tried
    #[arg(short = 'B', long, value_name = "BYTES")]
    block_size: Option<u32>,

    /// Tell how far the check is on file descriptor FD; 0 is the bar on the terminal, a negative one is none
    #[arg(short = 'C', value_name = "FD", allow_negative_numbers = true)]
    completion: Option<i32>,

    /// Say how long a check would take, and check nothing
    #[arg(long)]
    estimate: bool,

    /// Threads that read and judge
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..=256))]
    threads: Option<usize>,

    /// Print JSON
    #[arg(long)]
    json: bool,

    /// Say what is on the volume and what the check cost
    #[arg(short, long)]
    verbose: bool,
}

/// A report as JSON.
#[derive(Serialize)]
struct Printed<'a> {
    #[serde(flatten)]
    report: &'a Report,
    /// The volume was taken at its word and not read.
    skipped: bool,
}

/// An estimate as JSON.
#[derive(Serialize)]
struct Foretold<'a> {
    device: &'a str,
    #[serde(flatten)]
    estimate: Estimate,
}

/// What is said in place of a report where there is nothing to check.
#[derive(Serialize)]
struct Refused<'a> {
    device: &'a str,
    format: Option<&'a str>,
    clean: bool,
    exit: u8,
    problems: [(); 0],
    error: &'a str,
}

impl Check {
    /// The exit status where the command ends in a [`Failure`].
    pub(crate) const FAILURE: u8 = exit::OPERATIONAL;
    /// The exit status for a wrong command line.
    pub(crate) const USAGE: u8 = exit::USAGE;

    pub(crate) fn run(&self) -> Result<u8, Failure> {
        let repair = match (self.preen, self.yes) {
            (_, true) => Repair::All,
            (true, _) => Repair::Safe,
            _ => Repair::No,
        };
        let write = repair != Repair::No && !self.estimate;
        let open = blockdev::OpenOptions { planned: true, write, ..blockdev::OpenOptions::default() };
        let device = blockdev::open(&self.device, open)?;
        let now = std::env::var("E2FSCK_TIME").ok().and_then(|time| time.parse().ok());
        let mut options =
            Options { superblock: self.superblock, block_size: self.block_size, repair, now, ..Options::default() };
        if let Some(threads) = self.threads {
            options.threads = threads;
        }
        if self.estimate {
            return self.estimate(&*device, &options);
        }
        if !self.force
            && self.superblock.is_none()
            && !check::unfinished(&*device)
            && let Some(clean) = self.left_clean(&device, &options)
        {
            return self.skipped(&clean);
        }
        if !self.no_change && repair == Repair::No {
            self.tell("checking as with -n, nothing will be changed; -p or -y mends");
        }
        let watch = Watch::new(&self.device, self.completion)?;
        let outcome = match repair {
            Repair::No => check::check(&self.device, &*device, &options, &watch),
            _ => check::repair(&self.device, &device, &options, &watch, self.undo.as_deref()),
        };
        watch.finish();
        match outcome {
            Ok(report) => self.report(&report),
            Err(refusal) => self.refused(&refusal),
        }
    }

    /// Whether the volume can be taken at its word. With -p a journal is replayed first, and that is often all.
    fn left_clean(&self, device: &Arc<dyn BlockDevice>, options: &Options) -> Option<skip::LeftClean> {
        let clean = skip::left_clean(&**device);
        if clean.is_some() || !self.preen || self.undo.is_some() {
            return clean;
        }
        // what is wrong with a volume that cannot be opened is for the check to say
        if check::replay(device, options).unwrap_or(false) {
            self.tell("recovered the journal");
            return skip::left_clean(&**device);
        }
        None
    }

    fn tell(&self, sentence: &str) {
        say(&format!("{}: {sentence}", self.name()));
    }

    /// The device's name for people.
    fn name(&self) -> String {
        escape(self.device.as_bytes())
    }

    fn estimate(&self, device: &dyn BlockDevice, options: &Options) -> Result<u8, Failure> {
        match check::estimate(device, options, None) {
            Err(refusal) => self.refused(&refusal),
            Ok(estimate) if self.json => {
                print_json(&Foretold { device: &self.device, estimate })?;
                Ok(exit::CLEAN)
            }
            Ok(estimate) => {
                let mut out = stdout()?;
                writeln!(out, "{}: {estimate}", self.name())?;
                out.flush()?;
                Ok(exit::CLEAN)
            }
        }
    }

    /// A volume that was left clean is taken at its word, as e2fsck takes it.
    fn skipped(&self, clean: &skip::LeftClean) -> Result<u8, Failure> {
        if self.json {
            let format = clean.format.to_owned();
            let report =
                Report::new(self.device.clone(), format, &Default::default(), Scan::default(), clean.counts.clone());
            return self.print_report(&report, true).map(|()| exit::CLEAN);
        }
        let Counts { inodes, inodes_total, blocks, blocks_total, .. } = clean.counts;
        let mut out = stdout()?;
        writeln!(out, "{}: clean, {inodes}/{inodes_total} files, {blocks}/{blocks_total} blocks", self.name())?;
        out.flush()?;
        if self.verbose {
            self.tell("the volume says that it was left clean, so nothing else was read; -f checks it all the same");
        }
        Ok(exit::CLEAN)
    }

    /// Prints the report; its status is the program's even where nobody read it to the end.
    fn report(&self, report: &Report) -> Result<u8, Failure> {
        let printed = if self.json { self.print_report(report, false) } else { self.print_text(report) };
        match printed {
            Err(Failure::Message(message)) => {
                say(&message);
                Ok(report.exit | exit::OPERATIONAL)
            }
            Err(Failure::ReaderGone) | Ok(()) => Ok(report.exit),
        }
    }

    fn print_report(&self, report: &Report, skipped: bool) -> Result<(), Failure> {
        print_json(&Printed { report, skipped })
    }

    fn print_text(&self, report: &Report) -> Result<(), Failure> {
        let mut out = stdout()?;
        if report.exit & exit::CANCELLED != 0 {
            for problem in &report.problems {
                writeln!(out, "{}", problem.text)?;
            }
            let errors = counted(report.errors, "error", "errors");
            writeln!(out, "{}: the check was cancelled; {errors} found so far, nothing was changed.", self.name())?;
        } else {
            check::render::write_text(report, &mut out)?;
            if self.preen && !report.clean {
                let name = self.name();
                writeln!(out, "\n{name}: UNEXPECTED INCONSISTENCY; RUN fsck MANUALLY.")?;
                writeln!(out, "\t(i.e., without -a or -p options)")?;
            }
        }
        if self.verbose {
            print_details(report, &mut out)?;
        }
        Ok(out.flush()?)
    }

    /// There is nothing to check.
    fn refused(&self, refusal: &Refusal) -> Result<u8, Failure> {
        self.tell(&refusal.sentence);
        if self.json {
            print_json(&Refused {
                device: &self.device,
                format: None,
                clean: false,
                exit: refusal.exit,
                problems: [],
                error: &refusal.sentence,
            })?;
        }
        Ok(refusal.exit)
    }
}

/// What is on the volume, as `e2fsck -v` tells it, and what the check cost.
fn print_details(report: &Report, out: &mut impl Write) -> io::Result<()> {
    let counts = &report.counts;
    writeln!(out)?;
    for (count, what) in [
        (counts.inodes, "inodes in use"),
        (counts.blocks, "blocks in use"),
        (counts.bad_blocks, "bad blocks"),
        (counts.regular, "regular files"),
        (counts.directories, "directories"),
        (counts.symlinks, "symbolic links"),
        (counts.fast_symlinks, "of them in the inode"),
        (counts.character_devices, "character devices"),
        (counts.block_devices, "block devices"),
        (counts.fifos, "named pipes"),
        (counts.sockets, "sockets"),
        (counts.fragmented_files, "files in more than one piece"),
        (counts.fragmented_directories, "directories in more than one piece"),
    ] {
        writeln!(out, "{count:>12}  {what}")?;
    }
    let depths = |title: &str, depths: &[u64]| {
        let last = depths.iter().rposition(|count| *count > 0)?;
        let list: Vec<_> = depths.iter().take(last + 1).map(u64::to_string).collect();
        Some(format!("{title} of depth 0, 1, …: {}", list.join(", ")))
    };
    let lines = [depths("extent trees", &counts.extent_depths), depths("block maps", &counts.indirect_depths)];
    for line in lines.iter().flatten() {
        writeln!(out, "{:>12}  {line}", "")?;
    }
    let scan = &report.scan;
    let memory = scan.peak_rss_bytes.map_or(String::new(), |bytes| format!(", {} of memory at most", human(bytes)));
    writeln!(
        out,
        "\n{} read in {} requests, {} of them after a seek, in {:.2} s{memory}",
        human(scan.bytes),
        scan.reads,
        scan.seeks,
        scan.seconds
    )
}
