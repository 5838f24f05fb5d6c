//! The text output of a check.

use super::config::{Settings, Shown};
use crate::output::{counted, human};
use check::render::{changes, escape, next_step, step_of_verdict, write_text};
use check::report::{Counts, Report, Reported, exit};
use check::table::Code;
use std::collections::BTreeMap;
use std::io::{self, Write};

/// e2fsck's exit status for a repair of the root file system, which needs a reboot: the kernel still uses what it read
/// before.
pub(super) const REBOOT: u8 = 2;

/// The level of detail of the output.
pub(super) struct Detail<'a> {
    pub(super) settings: &'a Settings,
    /// The number of problems to show of each code, 0 for all; `None` for that of the configuration.
    pub(super) most: Option<u64>,
    pub(super) preen: bool,
    pub(super) verbose: bool,
    pub(super) times: bool,
}

impl Detail<'_> {
    /// The complete text. `all` lifts the limits on the number of problems shown, for logs.
    pub(super) fn text(&self, report: &Report, all: bool) -> Vec<u8> {
        let mut out = Vec::new();
        // writing to memory cannot fail
        let _ = self.write(report, all, &mut out);
        out
    }

    fn write(&self, report: &Report, all: bool, out: &mut Vec<u8>) -> io::Result<()> {
        let name = escape(report.device.as_bytes());
        let (problems, left_out) = self.shown(report, all);
        let shown = Report { problems, ..report.clone() };
        if report.exit & exit::CANCELLED != 0 {
            for problem in &shown.problems {
                writeln!(out, "{}", problem.text)?;
            }
            let errors = counted(report.errors, "error", "errors");
            writeln!(out, "{name}: the check was cancelled; {errors} found so far, {}.", changes(report))?;
        } else if self.preen {
            preened(&shown, &name, out)?;
        } else {
            write_text(&shown, out)?;
        }
        for (code, count) in left_out {
            writeln!(out, "{name}: {count} more of {code} are not shown.")?;
        }
        if report.exit & REBOOT != 0 {
            writeln!(out, "\n{name}: ***** REBOOT SYSTEM *****")?;
        }
        if self.preen && !report.clean && report.exit & exit::CANCELLED == 0 {
            if let Some(problem) = &report.stopped_at {
                writeln!(out, "{name}: not a problem that -p repairs: {problem}")?;
            }
            writeln!(out, "\n{name}: UNEXPECTED INCONSISTENCY; RUN fsck MANUALLY.")?;
            writeln!(out, "\t(i.e., without -a or -p options)")?;
            let step = if report.native.is_some() || report.chosen.is_some() {
                next_step(report)
            } else {
                step_of_verdict(report).unwrap_or_default()
            };
            writeln!(out, "{name}: {step}.")?;
        }
        if self.verbose {
            details(&report.counts, out)?;
        }
        if self.verbose || self.times {
            cost(report, out)?;
        }
        Ok(())
    }

    /// The problems to show, and the number of those omitted by code because of the limits.
    fn shown(&self, report: &Report, all: bool) -> (Vec<Reported>, BTreeMap<Code, u64>) {
        let mut seen = BTreeMap::<Code, u64>::new();
        let mut left_out = BTreeMap::new();
        let mut problems = report.problems.clone();
        let of_each = match self.most {
            Some(most) => Some(most).filter(|most| *most > 0),
            None => self.settings.most,
        };
        problems.retain(|problem| {
            let Shown { most, not_preening, not_declined, .. } =
                self.settings.shown.get(&problem.code).copied().unwrap_or_default();
            if not_preening && self.preen || not_declined && !problem.fixed {
                return false;
            }
            let seen = seen.entry(problem.code).or_default();
            *seen += 1;
            let is_row = problem.code == Code::TooManyProblems;
            let fits = all || is_row || most.or(of_each).is_none_or(|most| *seen <= most);
            if !fits {
                *left_out.entry(problem.code).or_default() += 1;
            }
            fits
        });
        (problems, left_out)
    }
}

/// Output in the form of e2fsck -p, for the log of a boot: each line names the device, and only important messages are
/// printed.
fn preened(report: &Report, name: &str, out: &mut Vec<u8>) -> io::Result<()> {
    let shown = |problem: &&Reported| problem.fixed || problem.severity.is_error();
    for problem in report.problems.iter().filter(shown) {
        write!(out, "{name}: {}", problem.text)?;
        if let Some(path) = &problem.path {
            write!(out, " Path: {}", escape(path.as_bytes()))?;
        }
        match problem.fixed {
            true => writeln!(out, " FIXED: {}", problem.code.repair())?,
            false => writeln!(out)?,
        }
    }
    if !report.cut_short() {
        writeln!(out, "{name}: {}", check::render::summary(report))?;
    }
    Ok(())
}

/// Prints the counts of the volume, as `e2fsck -v` does.
fn details(counts: &Counts, out: &mut Vec<u8>) -> io::Result<()> {
    writeln!(out)?;
    for (count, what) in [
        (counts.inodes, "inodes in use"),
        (counts.blocks, "blocks in use"),
        (counts.bad_blocks, "bad blocks"),
        (counts.regular, "regular files"),
        (counts.directories, "directories"),
        (counts.symlinks, "symbolic links"),
        (counts.fast_symlinks, "fast symbolic links"),
        (counts.links, "hard links"),
        (counts.character_devices, "character devices"),
        (counts.block_devices, "block devices"),
        (counts.fifos, "named pipes"),
        (counts.sockets, "sockets"),
        (counts.fragmented_files, "fragmented files"),
        (counts.fragmented_directories, "fragmented directories"),
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
    Ok(())
}

/// Time, reads, seeks and memory of the check.
fn cost(report: &Report, out: &mut Vec<u8>) -> io::Result<()> {
    let scan = &report.scan;
    let memory = scan.peak_rss_bytes.map_or(String::new(), |bytes| format!(", {} of memory at most", human(bytes)));
    writeln!(
        out,
        "\nread {} in {} requests ({} seeks) in {:.2} s{memory}",
        human(scan.bytes),
        scan.reads,
        scan.seeks,
        scan.seconds
    )
}
