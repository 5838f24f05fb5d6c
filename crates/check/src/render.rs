//! The report as text for people. Three shapes are e2fsck's, because scripts look for them: `Pass N:` at the start of a
//! heading, the summary line, and the warning that errors are left.

use crate::problem::Problem;
use crate::report::Report;
use crate::table::Phase;
use std::fmt::{self, Display, Write as _};
use std::io;

/// What stands in a sentence for a value that the problem does not say; no check should leave one out.
pub const UNKNOWN: &str = "(not known)";

/// The sentence a problem's text makes with its values. What the problem does not say reads as [`UNKNOWN`]; bytes from the
/// device are escaped, so that no name can forge a line or drive a terminal.
#[must_use]
pub fn sentence(problem: &Problem) -> String {
    let mut out = String::new();
    let mut rest = problem.code.text();
    while let Some((before, after)) = rest.split_once('{') {
        let (placeholder, after) = after.split_once('}').unwrap_or((after, ""));
        out.push_str(before);
        // writing to a String cannot fail
        let _ = write_value(&mut out, problem, placeholder);
        rest = after;
    }
    out.push_str(rest);
    out
}

fn write_value(out: &mut String, problem: &Problem, placeholder: &str) -> fmt::Result {
    let hex = |value: Option<u64>| value.map(|value| format!("{value:#x}"));
    match placeholder {
        "inode" => write_or_unknown(out, problem.inode),
        "dir" => write_or_unknown(out, problem.dir),
        "block" => write_or_unknown(out, problem.block),
        "file_block" => write_or_unknown(out, problem.file_block),
        "group" => write_or_unknown(out, problem.group),
        "found" => write_or_unknown(out, problem.found),
        "expected" => write_or_unknown(out, problem.expected),
        "found:x" => write_or_unknown(out, hex(problem.found)),
        "expected:x" => write_or_unknown(out, hex(problem.expected)),
        "found:o" => write_or_unknown(out, problem.found.map(|value| format!("0{value:o}"))),
        "found:date" => write_or_unknown(out, problem.found.map(date)),
        "found:type" => write_or_unknown(out, problem.found.map(type_name)),
        "expected:type" => write_or_unknown(out, problem.expected.map(type_name)),
        "count" => write_or_unknown(out, problem.count),
        "name" => write_or_unknown(out, problem.name.as_deref().map(escape)),
        "path" => write_or_unknown(out, problem.path.as_deref().map(|path| escape(path.as_bytes()))),
        other => write!(out, "{{{other}}}"),
    }
}

fn write_or_unknown(out: &mut String, value: Option<impl Display>) -> fmt::Result {
    match value {
        Some(value) => write!(out, "{value}"),
        None => out.write_str(UNKNOWN),
    }
}

/// The type that a directory entry says of its inode, in words.
fn type_name(number: u64) -> String {
    let name = match number {
        0 => "unknown",
        1 => "regular file",
        2 => "directory",
        3 => "character device",
        4 => "block device",
        5 => "named pipe",
        6 => "socket",
        7 => "symbolic link",
        _ => return format!("{number}, which does not exist"),
    };
    name.to_owned()
}

/// Seconds since 1970 as a date of the proleptic Gregorian calendar, in UTC.
fn date(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // counted from the first of March of the year 0, so that the day that may be missing comes last
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02} UTC", rest / 3600, rest / 60 % 60, rest % 60)
}

/// Bytes from a device as printable text on one line: valid UTF-8 stays, control characters, what does not print and
/// invalid bytes become `\xNN` or `\u{N}`, and a backslash is doubled.
#[must_use]
pub fn escape(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\'' | '"' => out.push(c),
                // `escape_debug` leaves what prints, and names the rest `\n`, `\u{202e}`
                _ => out.extend(c.escape_debug()),
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(out, "\\x{byte:02x}");
        }
    }
    out
}

/// Writes a report as text: a heading for each phase, its problems one a line, the summary, the verdict.
///
/// # Errors
/// Those of `out`.
pub fn write_text(report: &Report, out: &mut dyn io::Write) -> io::Result<()> {
    let device = escape(report.device.as_bytes());
    for &phase in Phase::ALL {
        let problems = || report.problems.iter().filter(|problem| problem.phase == phase);
        let always = matches!(phase.label(), "1" | "2" | "3" | "4" | "5") && !report.cut_short();
        if !always && problems().next().is_none() {
            continue;
        }
        writeln!(out, "Pass {}: {}", phase.label(), phase.subject())?;
        for problem in problems() {
            write!(out, "{}", problem.text)?;
            if let Some(path) = &problem.path {
                write!(out, " Path: {}", escape(path.as_bytes()))?;
            }
            match problem.fixed {
                true => writeln!(out, " REPAIRED: {}", problem.code.repair())?,
                false => writeln!(out)?,
            }
        }
    }
    if report.repaired {
        writeln!(out, "\n{device}: ***** FILE SYSTEM WAS MODIFIED *****")?;
    }
    if !report.clean && (report.errors > 0 || report.not_looked_at.is_empty()) {
        writeln!(out, "\n{device}: ********** WARNING: Filesystem still has errors **********\n")?;
    }
    if !report.cut_short() {
        writeln!(out, "{device}: {}", summary(report))?;
    }
    writeln!(out, "{device}: {}", verdict(report))
}

/// e2fsck's summary: `I/N files (x% non-contiguous), B/T blocks`. Of a native volume these are the blocks of the device, with
/// all of its metadata regions in use.
#[must_use]
pub fn summary(report: &Report) -> String {
    let counts = &report.counts;
    let pieces = counts.fragmented_files.saturating_add(counts.fragmented_directories);
    // in tenths of a per cent, rounded to the nearest
    let used = u128::from(counts.inodes.max(1));
    let tenths = (u128::from(pieces) * 1000 + used / 2) / used;
    format!(
        "{}/{} files ({}.{}% non-contiguous), {}/{} blocks",
        counts.inodes,
        counts.inodes_total,
        tenths / 10,
        tenths % 10,
        counts.blocks,
        counts.blocks_total
    )
}

/// One sentence that says how the volume is.
#[must_use]
pub fn verdict(report: &Report) -> String {
    let number = |n: u64, one: &str, more: &str| if n == 1 { format!("1 {one}") } else { format!("{n} {more}") };
    let errors = number(report.errors, "error", "errors");
    if report.repaired {
        let advice = number(report.advice, "thing", "things");
        return match report.clean {
            true if report.errors == 0 && report.advice == 0 => {
                "The volume is sound; that it was not unmounted is forgotten.".into()
            }
            true => format!("The volume was repaired and is sound ({errors} and {advice} more)."),
            false => format!("The volume was repaired in part and is not sound ({errors} found)."),
        };
    }
    if !report.not_looked_at.is_empty() {
        let what = report.not_looked_at.join("; ");
        return match report.errors {
            0 => format!("No error was found, but not everything was looked at. Left out: {what}."),
            _ => format!("The volume is not sound: {errors} found, nothing was changed. Not looked at: {what}."),
        };
    }
    match (report.clean, report.cut_short(), report.advice) {
        (true, _, 0) => "The volume is sound.".into(),
        (true, _, advice) => {
            format!("The volume is sound; {} worth knowing.", number(advice, "thing is", "things are"))
        }
        (false, true, _) => format!("The check could not go on ({errors} found); nothing was changed."),
        (false, false, _) => format!("The volume is not sound: {errors} found, nothing was changed."),
    }
}
