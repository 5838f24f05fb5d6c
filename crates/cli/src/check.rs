//! `extant check`, also under e2fsck's names: checks and repairs a volume.

use crate::device::{Device, IN_USE, is_locked, open_volume};
use crate::error_report::{Failure, say, warn, warnings, without_errno};
use crate::output::{json_is_empty, print_json, stdout};
use crate::source::{block_size, for_writing};
use blockdev::BlockDevice;
use check::problem::Limits;
use check::render::{escape, step_of_verdict};
use check::report::{Counts, Kind, Report, Scan, exit};
use check::{Estimate, Options, Refusal, Repair};
use clap::builder::RangedU64ValueParser;
use clap::{ArgAction, Args};
use serde::Serialize;
use serde_json::Value;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

mod clean_flag;
mod config;
mod extended_options;
mod log;
mod online;
pub(crate) mod progress_output;
mod summary;

use blockdev::Mounted;
use config::Settings;
use extended_options::Extended;
use log::Logs;
use progress_output::Watch;
use summary::{Detail, REBOOT};

#[derive(Debug, Args)]
#[command(
    about = "Check a file system and repair it",
    after_help = "Examples:
  extant check -fn volume.img             check it, change nothing
  extant check volume.img                 the same, unless it is marked clean
  extant check --estimate /dev/sdb1       how long a check would take
  extant check -fn -b 32768 volume.img    with a backup superblock (8193 with blocks of 1 KiB)
  extant check --online /mnt              while it is mounted and in use (native volumes)
  extant check -fn --json volume.img | jq -r '.problems[].text'
  extant check -fn --json --max-problems 0 volume.img | jq '.kinds'
  extant check -fy -z before volume.img   repair everything, with an undo file
  fsck.ext4 -a -C0 /dev/sdb1              as fsck(8) calls it at boot

Without -p or -y nothing is changed. -p makes only repairs that cannot lose data (a name whose inode was deleted is removed); where a decision is needed, it \
    replays the journal, marks the volume as having errors, so that no later run skips the check, and changes \
    nothing else. -z records the old content for `extant undo` (not for native volumes; no file where nothing is \
    changed: on a volume without errors times and counts of the superblock may change, and a few free blocks, to which they \
    are written first; the file restores these). A repair that is interrupted between two writes has changed nothing but \
    free blocks, or is finished by the next one. A mounted volume is only read. \
    Without -f an ext2, ext3, ext4 or rext3 volume that is marked clean is not checked, as with e2fsck.

-y repairs little on a native volume: it rewrites a damaged superblock, and where the newest generation cannot be read \
    but the one before is intact, it goes back to that one and says so. All other damage is reported only: \
    where only snapshots are damaged, delete them; otherwise copy the data off, or roll back to a snapshot, which loses \
    later changes.

On a native volume -p has one exception: where the newest of its two superblocks is destroyed, which cannot be distinguished \
    in general from one torn by a loss of power, -p goes back to the generation of the other one, if that has no errors. This \
    drops at most the changes of the newest generation, as a mount after such a loss of power does.

In JSON each of the `problems` has `fixed`, and if that is true `repair`: what was done, else null.

Problem codes are the same as e2fsck's, and /etc/e2fsck.conf (or the file that E2FSCK_CONFIG names) is read. With -C FD, lines \
    'PASS DONE OF DEVICE' go to that file descriptor, as with e2fsck; 0 shows a bar on the terminal; with a negative FD \
    progress is written from SIGUSR1 on. SIGUSR2 stops it.

Called as fsck.ext2, fsck.ext3, fsck.ext4, fsck.rext3, fsck.extant or e2fsck, the program reads its command line as e2fsck \
    does, and without -n, -p or -y it asks on the terminal whether to repair.

Exit status, the sum of: 0 no errors, 1 errors repaired, 2 reboot (the root was repaired), 4 errors are left, 8 operational error, 16 wrong usage, 32 cancelled."
)]
pub(crate) struct Check {
    /// Volume: a path, or `mem:SIZE`
    #[arg(value_name = "DEVICE")]
    device: Device,

    /// Check only, change nothing
    #[arg(short = 'n', conflicts_with_all = ["preen", "yes"])]
    no_change: bool,

    /// Repair only what is safe, without asking
    #[arg(short = 'p', visible_short_alias = 'a', conflicts_with = "yes")]
    preen: bool,

    /// Answer yes to all repairs
    #[arg(short = 'y')]
    yes: bool,

    /// Save the old content of changed blocks to the new file UNDO first, for `extant undo`
    #[arg(short = 'z', long, value_name = "UNDO")]
    undo: Option<PathBuf>,

    /// Check even if the volume is marked clean
    #[arg(short, long)]
    force: bool,

    /// Use the backup superblock in block SB
    #[arg(short = 'b', long, value_name = "SB")]
    superblock: Option<u64>,

    /// Block size for -b; all sizes are tried if omitted
    #[arg(short = 'B', long, value_name = "BYTES", value_parser = block_size)]
    block_size: Option<u32>,

    /// Write progress to file descriptor FD; 0 shows a bar, negative disables it
    #[arg(short = 'C', value_name = "FD", allow_negative_numbers = true, value_parser = descriptor)]
    completion: Option<i32>,

    /// Extended options of e2fsck: journal_only, log_filename=FILE, problem_log=FILE; fixes_only, nodiscard and others,
    /// which have no effect; scan_segments=N, 1 to 10000 parts of a pass, to find owners of multiply-claimed blocks
    /// faster; unshare_blocks: with -y, files that share blocks on purpose get blocks of their own; empty_tables: with
    /// -y, an inode table that cannot be found is replaced by an empty one, and its files are lost
    #[arg(short = 'E', value_name = "OPTIONS", value_delimiter = ',', value_parser = extended_options::parse)]
    extended: Vec<Extended>,

    /// Use NAME for the volume in messages
    #[arg(short = 'N', long, value_name = "NAME")]
    name: Option<String>,

    /// Check a mounted native volume while it is in use: a snapshot of it, taken for the check and deleted afterwards,
    /// and all other snapshots. Parts that could not be checked are listed, and the volume is then not reported as
    /// clean. DEVICE may be a directory on it
    #[arg(long, conflicts_with_all = ["preen", "yes", "undo", "superblock", "block_size", "estimate"])]
    online: bool,

    /// Print how long a check would take, and check nothing; not for native volumes
    #[arg(long)]
    estimate: bool,

    /// Number of worker threads
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..=256))]
    threads: Option<usize>,

    /// Number of problems listed of each kind, 0 for all; memory grows with it, by about 1 KiB per problem. Without the
    /// option 1000 of each kind and 10000 in total, and with -p or -y all that were repaired. All problems are counted,
    /// and repaired, listed or not
    #[arg(long, value_name = "N")]
    max_problems: Option<u32>,

    /// Print JSON
    #[arg(long)]
    json: bool,

    /// Print statistics of the volume, and time, reads, seeks and memory
    #[arg(short, long)]
    verbose: bool,

    /// Print time, reads, seeks and memory
    #[arg(short, action = ArgAction::Count)]
    times: u8,

    /// Behave as fsck(8) expects of a checker
    #[arg(long, hide = true)]
    as_fsck: bool,
}

/// A report as JSON.
#[derive(Serialize)]
struct Printed<'a> {
    #[serde(flatten)]
    report: &'a Report,
    /// The number of problems of each kind, found and listed.
    kinds: Vec<Kind>,
    /// The volume is marked clean and was not checked. Counts that its superblock lacks are null.
    skipped: bool,
    /// The reason why the check is incomplete.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'static str>,
    /// The next step where the volume is not clean.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
    /// The warnings that were printed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

/// The outcome of one check.
struct Outcome {
    status: u8,
    /// Whether there are errors of which a repair can remove some.
    repairable: bool,
}

impl Outcome {
    /// The outcome without a report, so that nothing can be repaired.
    const fn of(status: u8) -> Self {
        Self { status, repairable: false }
    }
}

/// An estimate as JSON.
#[derive(Serialize)]
struct Estimated<'a> {
    device: &'a str,
    format: Option<&'static str>,
    #[serde(flatten)]
    estimate: Estimate,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

/// The JSON output where nothing can be checked.
#[derive(Serialize)]
struct Refused<'a> {
    device: &'a str,
    format: Option<&'a str>,
    clean: bool,
    exit: u8,
    problems: [(); 0],
    error: &'a str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

/// Estimated seconds from which on a check reports its duration before it begins.
const LONG: f64 = 10.0;

/// The counts that the superblock of a volume has: others are unknown where it was not checked.
const COUNTED_BY_SUPERBLOCK: [&str; 4] = ["inodes", "inodes_total", "blocks", "blocks_total"];

/// The message for `-E journal_only` on a journal that can be replayed only in part.
const DAMAGED_JOURNAL: &str = "the journal is damaged and nothing was changed; check -fy recovers what can be";

impl Check {
    /// The exit status of a [`Failure`].
    pub(crate) const FAILURE: u8 = exit::OPERATIONAL;
    /// The exit status for a wrong command line.
    pub(crate) const USAGE: u8 = exit::USAGE;

    pub(crate) fn run(&self) -> Result<u8, Failure> {
        match self.start() {
            // with the fields of a report
            Err(Failure::Message(sentence) | Failure::Refused(sentence)) if self.json && json_is_empty() => {
                say(&sentence);
                self.print_refused(Self::FAILURE, &sentence)?;
                Ok(Self::FAILURE)
            }
            outcome => outcome,
        }
    }

    fn start(&self) -> Result<u8, Failure> {
        let settings = Settings::load()?;
        let repair = match (self.preen, self.yes) {
            (_, true) => Repair::All,
            (true, _) => Repair::Safe,
            _ => Repair::No,
        };
        if self.as_fsck && repair != Repair::Safe && !self.json {
            // as e2fsck does, so that a log shows which program ran
            let _ = writeln!(io::stderr().lock(), "extant {}", env!("CARGO_PKG_VERSION"));
        }
        let asks = self.as_fsck && repair == Repair::No && !self.no_change && !self.estimate;
        if asks && !(io::stdin().is_terminal() && io::stdout().is_terminal()) {
            return Err(Failure::on(&self.device, "stdin or stdout is not a terminal: use -n, -p or -y"));
        }
        if self.undo.is_some() && repair == Repair::No && !asks {
            self.warn("-z: no undo file is written without -p or -y");
        }
        let watch = Watch::new(self.called(), self.completion)?;
        if self.online {
            return self.online(&settings, &watch);
        }
        self.refuse_mount()?;
        let Outcome { status, repairable } = self.check_once(repair, &settings, &watch, asks)?;
        if asks && repairable && status & exit::CANCELLED == 0 && self.agreed()? {
            return self.check_once(Repair::All, &settings, &watch, false).map(|outcome| outcome.status);
        }
        Ok(status)
    }

    /// Refuses a directory on a mounted native volume: only --online checks through a mount.
    fn refuse_mount(&self) -> Result<(), Failure> {
        let dir: &Path = self.device.as_ref();
        if !dir.is_dir() || fuse::MountedSnapshots::of(dir).is_err() {
            return Ok(());
        }
        let why = "it is a directory on a mounted native volume: use --online to check that while it is in use";
        Err(Failure::on(self.called(), why))
    }

    /// Runs one check, and with it one repair.
    fn check_once(&self, repair: Repair, settings: &Settings, watch: &Watch, asks: bool) -> Result<Outcome, Failure> {
        let mounted = blockdev::mounted(&self.device);
        let write = repair != Repair::No && !self.estimate;
        let root = write && self.may_write(mounted.as_ref())?;
        let patience = if write { for_writing(&self.device) } else { blockdev::OpenOptions::default() };
        let open = blockdev::OpenOptions { planned: true, write, mounted: root, ..patience };
        let device = open_volume(&self.device, open)?;
        let options = self.options(repair, settings);
        if !write && mounted.is_none() && is_locked(&self.device) {
            self.warn(&format!("{IN_USE}; results are unreliable meanwhile"));
        }
        if self.estimate {
            return self.estimate(&*device, &options, watch).map(Outcome::of);
        }
        let is_mounted = mounted.is_some() && !root;
        if let Some(mounted) = mounted.filter(|_| !root) {
            let place = escape(mounted.place().as_bytes());
            self.warn(&format!("it is mounted {place}; results are unreliable while it is mounted"));
        }
        if self.extended.contains(&Extended::JournalOnly) {
            return self.only_replay(&device, &options).map(Outcome::of);
        }
        let unshare = self.extended.contains(&Extended::UnshareBlocks);
        if !self.force && !unshare && self.superblock.is_none() && !check::half_written(&*device) {
            match self.left_clean(&device, &options, settings, watch) {
                Ok(clean) => return self.skipped(&clean).map(Outcome::of),
                Err(Some(why)) if !self.json => {
                    print_text(format!("{} {why}, check forced.\n", self.shown_name()).as_bytes())?;
                }
                Err(_) => {}
            }
        }
        if !self.no_change && repair == Repair::No && !asks {
            self.say("read-only check; add -p or -y to repair");
        }
        if self.undo.is_some() && repair != Repair::No && !check::Capabilities::of(&*device).undo {
            self.warn("-z: undo is not supported for native volumes, so nothing is changed; omit -z");
        }
        let name = self.called();
        let forecast = self.estimate_if_long(&*device, &options, watch);
        let outcome = match repair {
            Repair::No => check::check(name, &*device, &options, watch),
            _ => check::repair(name, &device, &options, watch, self.undo.as_deref()),
        };
        watch.finish();
        let forgives = || settings.allow_cancellation && !clean_flag::is_marked(&*device);
        let mut report = match outcome {
            Ok(mut report) => {
                (report.mounted, report.asked) = (is_mounted, repair);
                report.scan.estimate_seconds = forecast.or(report.scan.estimate_seconds);
                report
            }
            Err(refusal) => {
                let status = self.refused(&refusal)?;
                return Ok(Outcome::of(if refusal.is_cancelled() && forgives() { exit::CLEAN } else { status }));
            }
        };
        apply_no_ok(&mut report, settings);
        if root && report.exit & exit::REPAIRED != 0 {
            report.exit |= REBOOT;
        }
        let status = self.report(&report, settings)?;
        if report.cut_short() {
            self.hint_at_copy(&*device);
        }
        let forgiven = status == exit::CANCELLED && report.problems.is_empty() && forgives();
        let repairable = report.errors > 0 && !report.clean && report.is_repairable();
        Ok(Outcome { status: if forgiven { exit::CLEAN } else { status }, repairable })
    }

    /// The options of a check.
    fn options(&self, repair: Repair, settings: &Settings) -> Options {
        let options = Options::default();
        Options {
            superblock: self.superblock,
            block_size: self.block_size,
            threads: self.threads.unwrap_or(options.threads),
            repair,
            now: std::env::var("E2FSCK_TIME").ok().and_then(|time| time.parse().ok()),
            empty_tables: self.extended.contains(&Extended::EmptyTables),
            unshare_blocks: self.extended.contains(&Extended::UnshareBlocks),
            problem_settings: settings.problem_settings.clone(),
            limits: self.limits(settings),
            scan_segments: self.extended.iter().find_map(|option| match option {
                Extended::ScanSegments(n) => Some(*n),
                _ => None,
            }),
            ..options
        }
    }

    /// The number of problems to list: that of the option, else the default, or a larger one of the configuration.
    fn limits(&self, settings: &Settings) -> Limits {
        let number = |most: u64| usize::try_from(most).unwrap_or(usize::MAX);
        match (self.max_problems, settings.largest_count()) {
            (Some(most), _) => Limits::of_each(number(most.into())),
            (None, Some(most)) if number(most) > Limits::default().per_code => Limits::of_each(number(most)),
            _ => Limits::default(),
        }
    }

    /// The estimated duration in seconds, where an estimate is worthwhile; reports a long one.
    fn estimate_if_long(&self, device: &dyn BlockDevice, options: &Options, watch: &Watch) -> Option<f64> {
        let forecast = check::estimate_if_long(device, options, watch)?;
        if forecast.seconds >= LONG && !self.json {
            self.say(&forecast.sentence());
        }
        watch.expect(forecast.seconds);
        Some(forecast.seconds)
    }

    /// Suggests a backup superblock after an aborted check, where there is one.
    fn hint_at_copy(&self, device: &dyn BlockDevice) {
        if self.superblock.is_some() || !check::Capabilities::of(device).backup_superblocks {
            return;
        }
        if let Some((block, size)) = clean_flag::copy_of_superblock(device) {
            self.say(&format!("try a backup superblock: -b {block} -B {size}"));
        }
    }

    /// Whether the volume is the root file system, mounted read-only: then it may be written although it is mounted.
    fn may_write(&self, mounted: Option<&Mounted>) -> Result<bool, Failure> {
        match mounted {
            None => Ok(false),
            Some(Mounted { root: true, read_only: true, .. }) => Ok(true),
            Some(mounted) => {
                let place = escape(mounted.place().as_bytes());
                let sentence = format!(
                    "is mounted {place}; unmount it, use -n to check without repairing, or --online for a native volume in use"
                );
                Err(Failure::Message(format!("{} {sentence}", self.shown_name())))
            }
        }
    }

    /// Whether the user agrees to repair the problems found.
    fn agreed(&self) -> Result<bool, Failure> {
        let mut out = io::stdout().lock();
        write!(out, "\nRepair these problems? [y/N] ")?;
        out.flush()?;
        let mut answer = String::new();
        let read = io::stdin().read_line(&mut answer);
        Ok(read.is_ok() && answer.trim_start().starts_with(['y', 'Y']))
    }

    /// Replays the journal and checks nothing.
    fn only_replay(&self, device: &Arc<dyn BlockDevice>, options: &Options) -> Result<u8, Failure> {
        if options.repair == Repair::No {
            return Err(Failure::on(self.called(), "-E journal_only writes to the volume: use -p or -y"));
        }
        match check::replay(device, options) {
            Ok(check::Replay::Whole) => self.say("recovered the journal"),
            Ok(check::Replay::Nothing) => self.say("the journal has nothing to recover"),
            Ok(check::Replay::Damaged) => {
                self.say(DAMAGED_JOURNAL);
                return Ok(exit::LEFT);
            }
            Err(refusal) => return self.refused(&refusal),
        }
        Ok(exit::CLEAN)
    }

    /// Whether the volume is marked clean and the mark can be trusted; else the reason for a check, where the
    /// superblock records one. With -p and -y the journal is replayed first, which is often sufficient.
    fn left_clean(
        &self,
        device: &Arc<dyn BlockDevice>,
        options: &Options,
        settings: &Settings,
        watch: &Watch,
    ) -> Result<clean_flag::LeftClean, Option<String>> {
        // it has no flag that could be trusted, and no journal
        if !check::Capabilities::of(&**device).clean_mark {
            return Err(None);
        }
        let word = |orphans| match clean_flag::left_clean(&**device, options.now, settings, orphans) {
            Ok(_) if !check::first_sight(&**device, options, watch) => Err(None),
            word => word,
        };
        // a read-only check leaves the orphan list to one that repairs
        let mut clean = word(options.repair == Repair::No);
        if clean.is_ok() || options.repair == Repair::No || self.undo.is_some() || check::Progress::cancelled(watch) {
            return clean;
        }
        // the check reports errors of a volume that cannot be opened
        let replayed = check::replay(device, options).unwrap_or(check::Replay::Nothing);
        match replayed {
            check::Replay::Nothing => {}
            check::Replay::Whole => {
                self.say("recovered the journal");
                clean = word(false);
            }
            check::Replay::Damaged => return Err(Some("has a damaged journal".to_owned())),
        }
        // nothing but files deleted while open
        if clean.is_err() && word(true).is_ok() {
            let freed = check::release_orphans(device, options).unwrap_or(0);
            if freed > 0 {
                let files = if freed == 1 { "file" } else { "files" };
                self.say(&format!("freed {freed} {files} of the orphan list"));
                return word(false);
            }
        }
        clean
    }

    fn say(&self, sentence: &str) {
        say(&format!("{}: {sentence}", self.shown_name()));
    }

    fn warn(&self, sentence: &str) {
        warn(&format!("{}: {sentence}", self.shown_name()));
    }

    /// The volume's name in messages.
    fn called(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.device)
    }

    /// The volume's name, escaped for the terminal.
    fn shown_name(&self) -> String {
        escape(self.called().as_bytes())
    }

    fn estimate(&self, device: &dyn BlockDevice, options: &Options, watch: &Watch) -> Result<u8, Failure> {
        match check::estimate(device, options, None, watch) {
            Err(_) if !check::Capabilities::of(device).estimate => {
                let why = "--estimate is not available for native volumes; use check -fn";
                Err(Failure::on(self.called(), why))
            }
            Err(refusal) => self.refused(&refusal),
            Ok(estimate) if self.json => {
                let format = check::format_name(device);
                print_json(&Estimated { device: self.called(), format, estimate, warnings: warnings() })?;
                Ok(exit::CLEAN)
            }
            Ok(estimate) => {
                let mut out = stdout()?;
                writeln!(out, "{}: {estimate}", self.shown_name())?;
                out.flush()?;
                Ok(exit::CLEAN)
            }
        }
    }

    /// Reports a volume that is marked clean, without a check, as e2fsck does.
    fn skipped(&self, clean: &clean_flag::LeftClean) -> Result<u8, Failure> {
        if self.json {
            let format = clean.format.to_owned();
            let report = Report::new(
                self.called().to_owned(),
                format,
                &Default::default(),
                Scan::default(),
                clean.counts.clone(),
            );
            return self.print_report(&report, true).map(|()| exit::CLEAN);
        }
        let Counts { inodes, inodes_total, blocks, blocks_total, .. } = clean.counts;
        let mut out = stdout()?;
        writeln!(out, "{}: clean, {inodes}/{inodes_total} files, {blocks}/{blocks_total} blocks", self.shown_name())?;
        out.flush()?;
        if self.verbose {
            self.say("marked clean, check skipped; use -f to force");
        }
        Ok(exit::CLEAN)
    }

    /// Prints the report; returns the exit status of the check even if the output is not read to the end.
    fn report(&self, report: &Report, settings: &Settings) -> Result<u8, Failure> {
        let detail = Detail {
            settings,
            most: self.max_problems.map(u64::from),
            preen: self.preen,
            verbose: self.verbose || settings.verbose,
            times: self.times > 0 || settings.times,
        };
        let logs = Logs::new(settings, &self.extended, &self.device);
        logs.text(|| detail.text(report, true));
        logs.problems(report);
        let printed =
            if self.json { self.print_report(report, false) } else { print_text(&detail.text(report, false)) };
        match printed {
            Err(Failure::Message(message) | Failure::Refused(message) | Failure::Usage(message)) => {
                say(&message);
                Ok(report.exit | exit::OPERATIONAL)
            }
            Err(Failure::ReaderGone) | Ok(()) => Ok(report.exit),
        }
    }

    fn print_report(&self, report: &Report, skipped: bool) -> Result<(), Failure> {
        let error = match report.exit {
            status if status & exit::CANCELLED != 0 => Some("the check was cancelled"),
            status if status & exit::OPERATIONAL != 0 => Some("not everything could be checked"),
            _ => None,
        };
        // a repair lists everything that it repaired
        let most = self.max_problems.map(u64::from).filter(|most| *most > 0);
        let shortened = most.filter(|most| report.kinds().iter().any(|kind| kind.listed > *most)).map(|most| {
            let mut report = report.clone();
            report.list_at_most(most);
            report
        });
        let next = step_of_verdict(report);
        let report = shortened.as_ref().unwrap_or(report);
        let printed = Printed { report, kinds: report.kinds(), skipped, error, next, warnings: warnings() };
        if !skipped {
            return print_json(&printed);
        }
        let mut printed = serde_json::to_value(&printed).map_err(io::Error::from)?;
        for (name, count) in printed.get_mut("counts").and_then(Value::as_object_mut).into_iter().flatten() {
            if !COUNTED_BY_SUPERBLOCK.contains(&name.as_str()) {
                *count = Value::Null;
            }
        }
        print_json(&printed)
    }

    /// Reports a volume that cannot be checked.
    fn refused(&self, refusal: &Refusal) -> Result<u8, Failure> {
        // an error of the device or of an undo file
        let sentence = without_errno(&refusal.sentence);
        self.say(&sentence);
        if self.json {
            self.print_refused(refusal.exit, &sentence)?;
        }
        Ok(refusal.exit)
    }

    fn print_refused(&self, exit: u8, error: &str) -> Result<(), Failure> {
        // also of a volume that is mounted or in use
        let device = open_volume(&self.device, blockdev::OpenOptions::default()).ok();
        let format = device.and_then(|device| check::format_name(&*device));
        let warnings = warnings();
        print_json(&Refused { device: self.called(), format, clean: false, exit, problems: [], error, warnings })
    }
}

/// Parses a file descriptor as e2fsck's -C does.
fn descriptor(word: &str) -> Result<i32, String> {
    word.parse().map_err(|_| "-C takes the number of a file descriptor: 0 shows a bar".into())
}

fn print_text(text: &[u8]) -> Result<(), Failure> {
    let mut out = stdout()?;
    out.write_all(text)?;
    Ok(out.flush()?)
}

/// Applies `no_ok` of the configuration: a volume whose only errors are tolerated counts as clean.
fn apply_no_ok(report: &mut Report, settings: &Settings) {
    let tolerated = |code| settings.shown.get(code).is_some_and(|shown| shown.clean_with_it);
    let mut errors = report.problems.iter().filter(|p| p.severity.is_error() && !p.fixed).peekable();
    let all = report.exit & (exit::OPERATIONAL | exit::CANCELLED) == 0;
    if all && report.exit & exit::LEFT != 0 && errors.peek().is_some() && errors.all(|p| tolerated(&p.code)) {
        report.exit &= !exit::LEFT;
        report.clean = true;
    }
}
