//! The report as text. Three forms are e2fsck's, because scripts search for them: `Pass N:` at the start of a heading,
//! the summary line, and the warning that errors remain.

use crate::options::Repair;
use crate::problem::Problem;
use crate::report::{NativeState, Remedy, Report, Reported, exit};
use crate::table::{Code, Fixer, Phase, Severity};
use std::collections::HashSet;
use std::fmt::{self, Display, Write as _};
use std::io;

/// Placeholder in a sentence for a value that the problem lacks; no check should omit one.
pub const UNKNOWN: &str = "(unknown)";

/// Maximum number of snapshots in a suggested command.
const NAMED: usize = 20;

/// The text of a problem with its values. Missing values appear as [`UNKNOWN`]; bytes from the device are escaped, so
/// that no name can forge a line or send control sequences to a terminal.
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
        "count:transactions" | "count:multiply-claimed blocks" => write_counted(out, problem.count, placeholder),
        "found:other files" => write_counted(out, problem.found, placeholder),
        "name" => write_or_unknown(out, problem.name.as_deref().map(escape)),
        "path" => write_or_unknown(out, problem.path.as_deref().map(|path| escape(path.as_bytes()))),
        other => write!(out, "{{{other}}}"),
    }
}

/// Writes a number with the noun in a placeholder, which is a plural.
fn write_counted(out: &mut String, value: Option<u64>, placeholder: &str) -> fmt::Result {
    let plural = placeholder.split_once(':').map_or("", |(_, noun)| noun);
    let noun = if value == Some(1) { plural.trim_end_matches('s') } else { plural };
    write_or_unknown(out, value.map(|value| format!("{value} {noun}")))
}

fn write_or_unknown(out: &mut String, value: Option<impl Display>) -> fmt::Result {
    match value {
        Some(value) => write!(out, "{value}"),
        None => out.write_str(UNKNOWN),
    }
}

/// The file type of a directory entry, in words.
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
        _ => return format!("{number} (invalid)"),
    };
    name.to_owned()
}

/// Seconds since 1970 as a date of the proleptic Gregorian calendar, in UTC.
fn date(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // counted from 1 March of the year 0, so that the leap day is the last of a year
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

/// Bytes from a device as printable text on one line: valid UTF-8 is unchanged; control characters, unprintable
/// characters and invalid bytes become `\xNN` or `\u{N}`, and a backslash is doubled.
#[must_use]
pub fn escape(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        // whole parts at once: long paths of plain names are common
        for part in chunk.valid().split_inclusive(|c: char| !is_plain(c)) {
            match part.chars().next_back().filter(|c| !is_plain(*c)) {
                None => out.push_str(part),
                Some(last) => {
                    out.push_str(part.strip_suffix(last).unwrap_or_default());
                    // `escape_debug` leaves printable characters and escapes the rest, as `\n` or `\u{202e}`
                    out.extend(last.escape_debug());
                }
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(out, "\\x{byte:02x}");
        }
    }
    out
}

/// Whether a character is printable ASCII without the backslash: it is never escaped.
fn is_plain(c: char) -> bool {
    matches!(c, ' '..='[' | ']'..='~')
}

/// A word of a suggested command, quoted for a POSIX shell where it contains more than letters, digits and the
/// characters that have no meaning in one.
#[must_use]
pub fn shell_word(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._/@:+-".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// The command that mounts a snapshot, by its escaped name: in a mount option a comma has a backslash before it.
fn mount_of(snapshot: &str) -> String {
    format!("extant mount -o ro,snapshot={}", shell_word(&snapshot.replace(',', r"\,")))
}

/// Writes a report as text: a heading for each phase, its problems one per line, the summary, the verdict.
///
/// # Errors
/// Those of `out`.
pub fn write_text(report: &Report, out: &mut dyn io::Write) -> io::Result<()> {
    let device = escape(report.device.as_bytes());
    for &phase in Phase::ALL {
        let problems = || report.problems.iter().filter(|p| p.phase == phase && p.code != Code::TooManyProblems);
        let always = matches!(phase.label(), "1" | "2" | "3" | "4" | "5") && !report.cut_short();
        if !always && problems().next().is_none() {
            continue;
        }
        writeln!(out, "Pass {}: {}", phase.label(), phase.subject())?;
        for problem in problems() {
            let note = if problem.severity == Severity::Advice { "note: " } else { "" };
            write!(out, "{note}{}", problem.text)?;
            if let Some(path) = &problem.path {
                write!(out, " Path: {}", escape(path.as_bytes()))?;
            }
            match problem.fixed {
                true => writeln!(out, " FIXED: {}", problem.code.repair())?,
                false => writeln!(out)?,
            }
        }
    }
    for unlisted in report.problems.iter().filter(|problem| problem.code == Code::TooManyProblems) {
        writeln!(out, "{}", unlisted.text)?;
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

/// e2fsck's summary: `I/N files (x% non-contiguous), B/T blocks`. For a native volume these are the blocks of the
/// device, with all of its metadata regions in use.
#[must_use]
pub fn summary(report: &Report) -> String {
    let counts = &report.counts;
    let fragmented = counts.fragmented_files.saturating_add(counts.fragmented_directories);
    // in tenths of a per cent, rounded to the nearest
    let used = u128::from(counts.inodes.max(1));
    let tenths = (u128::from(fragmented) * 1000 + used / 2) / used;
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

/// The result of the check in one sentence, with the next step where there is one.
#[must_use]
pub fn verdict(report: &Report) -> String {
    let number = |n: u64, one: &str| if n == 1 { format!("1 {one}") } else { format!("{n} {one}s") };
    let errors = number(report.errors, "error");
    let notes = if report.advice == 0 { String::new() } else { format!("; {}", number(report.advice, "note")) };
    if report.exit & exit::CANCELLED != 0 {
        return format!("Check cancelled; {errors} found so far, {}.", changes(report));
    }
    if report.clean {
        return match (report.repaired, report.errors, report.advice) {
            (true, 0, 0) => "No errors found; the \"not cleanly unmounted\" flag was cleared.".into(),
            (_, 0, _) => format!("No errors found{notes}."),
            (true, ..) => format!("Repaired: {errors} fixed; no errors remain{notes}."),
            (false, ..) => format!("{errors} found, ignored as configured{notes}."),
        };
    }
    if !report.not_looked_at.is_empty() {
        let found = match report.errors {
            0 => "No errors found, but".to_owned(),
            _ => format!("{errors} found, none repaired, and"),
        };
        let parts = report.not_looked_at.join("; ");
        return format!(
            "{found} the check is incomplete. Not checked: {parts}. Unmount it first, then run `extant check`."
        );
    }
    if report.cut_short() && !report.is_unchecked() {
        return format!("Check aborted after {errors}; {}; {}.", changes(report), after_abort(report));
    }
    let next = format!("{}{}", until_repaired(report), next_step(report));
    let found = if report.advice == 0 { errors } else { format!("{errors} and {}", number(report.advice, "note")) };
    match report.errors {
        0 => format!("No errors found{notes}; {}.", repair_with(report, "-fy")),
        _ if report.repaired => format!("{found} found, not all repaired; {next}."),
        _ => format!("{found} found, none repaired; {next}."),
    }
}

/// The changes of a check that was cancelled or aborted, without a full stop: an interrupted repair is completed first.
#[must_use]
pub fn changes(report: &Report) -> &'static str {
    if report.repaired { "only an interrupted repair was completed" } else { "nothing was changed" }
}

/// The next step where errors remain, without a full stop.
#[must_use]
pub fn next_step(report: &Report) -> String {
    let left = || report.problems.iter().filter(|problem| !problem.fixed && problem.severity.is_error());
    let lost = left().next().is_some() && left().all(|problem| problem.code.fixer() == Fixer::None);
    if let Some(remedy) = report.native.as_ref().and_then(|state| state.remedy) {
        return native_step(report, remedy);
    }
    if !report.capabilities.full_repair && (lost || report.asked == Repair::All) {
        return native_is_lost(report);
    }
    if left().any(|problem| problem.code == Code::BeyondDevice) {
        return "the end of the volume is missing (truncated image?): get a complete copy before you repair, or copy the \
                data off"
            .into();
    }
    if lost || report.asked == Repair::All {
        return "what is left cannot be repaired: copy the data off".into();
    }
    let safe = preening_suffices(report);
    if !report.capabilities.full_repair && !safe {
        return native_in_general(report);
    }
    repair_with(report, if safe { "-fp" } else { "-fy" })
}

/// Whether `-p` repairs all errors that were found.
fn preening_suffices(report: &Report) -> bool {
    let problems = || report.problems.iter();
    // an empty inode without a name is cleared, not connected
    let empty: HashSet<_> =
        problems().filter(|problem| problem.code == Code::InodeUnattachedEmpty).map(|problem| problem.inode).collect();
    let is_cleared = |problem: &Reported| {
        problem.code == Code::InodeUnattached
            && !report.unlisted.contains_key(&problem.code)
            && empty.contains(&problem.inode)
    };
    // of a native volume only the superblocks are repaired
    let repaired = |problem: &Reported| {
        let in_superblock = matches!(problem.code, Code::NativeSuperblockDamaged | Code::NativeNotUnmounted);
        (in_superblock || report.capabilities.full_repair) && (problem.code.preen_safe() || is_cleared(problem))
    };
    report.asked == Repair::No
        && !report.goes_back
        && problems().filter(|problem| !problem.fixed && problem.severity.is_error()).all(repaired)
}

/// The next step that [`verdict`] names, without a full stop; `None` where there is none.
#[must_use]
pub fn step_of_verdict(report: &Report) -> Option<String> {
    if report.exit & exit::CANCELLED != 0 {
        return None;
    }
    if report.clean {
        return None;
    }
    Some(if !report.not_looked_at.is_empty() {
        "unmount it first, then run `extant check`".to_owned()
    } else if report.cut_short() && !report.is_unchecked() {
        after_abort(report)
    } else if report.errors == 0 {
        repair_with(report, "-fy")
    } else {
        next_step(report)
    })
}

/// The consequence of a problem that prevents a mount, for a verdict; empty where there is none.
fn until_repaired(report: &Report) -> &'static str {
    let prevents_mount = |problem: &Reported| {
        let code = problem.code;
        !problem.fixed && (code.severity() == Severity::Unmountable || code.is_read_from_a_copy())
    };
    match report.problems.iter().any(prevents_mount) {
        true => "the volume cannot be mounted until it is repaired; ",
        false => "",
    }
}

/// The command that repairs. A mounted volume has to be unmounted first.
fn repair_with(report: &Report, option: &str) -> String {
    match report.chosen {
        Some(chosen) if chosen.primary_is_usable => {
            let block = chosen.block;
            format!(
                "the primary superblock is usable: omit -b, as only -fy -b {block} repairs, and replaces the primary"
            )
        }
        Some(chosen) => run(report, &format!("-fy -b {}", chosen.block)),
        None => run(report, option),
    }
}

/// The command with this option that repairs.
fn run(report: &Report, option: &str) -> String {
    match report.mounted {
        true => format!("unmount it first, then run `extant check {option}`"),
        false => format!("run with {option} to repair"),
    }
}

/// The command with this option, after another step.
fn then(report: &Report, option: &str) -> String {
    match report.mounted {
        true => format!("unmount it first, then run `extant check {option}`"),
        false => format!("then run {option}"),
    }
}

/// The next step for a native volume where the possible repair was not determined, as on one in use: as a check without
/// `--online` would name it, as far as that is known.
fn native_in_general(report: &Report) -> String {
    if report.native.as_ref().is_none_or(|state| state.unreadable && state.truncated.is_none()) {
        let first = if report.mounted { "copy off what can be read" } else { "first copy off what can be read" };
        return format!("{first}, {}: it returns to the previous generation if that is intact", then(report, "-fy"));
    }
    match report.problems.iter().any(|problem| !problem.fixed && problem.code == Code::NativeSuperblockDamaged) {
        true => native_step(report, Remedy::Superblock),
        false => native_is_lost(report),
    }
}

/// The next step for a native volume where the possible repair is known.
fn native_step(report: &Report, remedy: Remedy) -> String {
    match remedy {
        Remedy::Nothing => native_is_lost(report),
        Remedy::Safe => run(report, "-fp"),
        Remedy::Generation(generation) => {
            format!("{}: it returns to generation {generation}, and later changes are lost", run(report, "-fy"))
        }
        Remedy::Superblock => {
            let first = run(report, "-fy");
            format!("{first}, but only the superblock; for the other errors: {}", native_is_lost(report))
        }
    }
}

/// The next step where a native volume has damage that no repair removes.
fn native_is_lost(report: &Report) -> String {
    let first = if report.mounted { "unmount it first, then " } else { "" };
    let Some(state) = &report.native else {
        return format!(
            "damage of a native volume cannot be repaired: copy the data off, or {first}roll back to a snapshot \
             without errors, if there is one"
        );
    };
    if let Some((device, volume)) = state.truncated {
        return format!("get a complete copy of it: the image has {device} blocks, the volume {volume}");
    }
    if state.unreadable {
        return match state.intact.as_ref().or(state.mountable.as_ref()) {
            Some(name) => format!(
                "the newest generation cannot be read: copy the data off the snapshot {}, which can be mounted with \
                 `{}`",
                shell_word(name),
                mount_of(name)
            ),
            None => {
                "neither the newest generation nor a snapshot can be read completely: copy off what `extant get -r` still \
                 reads, and restore the rest from a backup"
                    .into()
            }
        };
    }
    if state.live_is_intact {
        return only_snapshots(report, state);
    }
    let next = match &state.intact {
        Some(name) if state.unordered => {
            format!("copy the data off; the snapshot {} has no errors: `{}`", shell_word(name), mount_of(name))
        }
        Some(name) => {
            let name = shell_word(name);
            format!(
                "copy the data off, or {first}roll back to the snapshot {name}, which has no errors; changes since \
                 then are lost. Where that is refused, restore the data from a backup"
            )
        }
        None if state.snapshots == 0 => "it has no snapshots, so remove the damaged files, or copy the data off".into(),
        None => "all its snapshots have errors as well, so remove the damaged files, or copy the data off".into(),
    };
    format!("damage of a native volume cannot be repaired: {next}")
}

/// The next step where snapshots of a native volume are damaged and the newest generation is not: a rollback would lose
/// changes and repair nothing.
fn only_snapshots(report: &Report, state: &NativeState) -> String {
    let named: Vec<String> = state.damaged.iter().take(NAMED).map(|name| shell_word(name)).collect();
    if named.is_empty() {
        return "damage of a native volume cannot be repaired: copy the data off".into();
    }
    let (first, device) = match (report.mounted, &report.place) {
        (true, Some(place)) => ("", place),
        (true, None) => ("unmount it first, then ", &report.device),
        (false, _) => ("", &report.device),
    };
    let dashes = if named.iter().any(|name| name.starts_with('-')) { " --" } else { "" };
    let (device, names) = (shell_word(&escape(device.as_bytes())), named.join(" "));
    let more = match state.damaged.len().saturating_sub(named.len()) {
        0 => String::new(),
        more => format!(", and then {more} more, which a further check names"),
    };
    let otherwise = match state.stuck {
        true => "; if that fails, as structures that it reads are damaged, copy the current files off",
        false => "",
    };
    format!(
        "only snapshots have errors, the current files have none: {first}delete the damaged snapshots with \
         `extant snapshot delete{dashes} {device} {names}`{more}{otherwise}"
    )
}

/// The next step after an aborted check.
fn after_abort(report: &Report) -> String {
    let next = |problem: &Reported| match problem.code {
        Code::SuperblockFieldWrong | Code::FirstDataBlockWrong if !report.capabilities.backup_superblocks => {
            Some(native_is_lost(report))
        }
        // the only such field, on which nothing else depends
        Code::SuperblockFieldWrong => Some(format!("set the field with tune2fs -m 5 {}", shell_word(&report.device))),
        Code::FirstDataBlockWrong => Some("try a backup superblock with -b".to_owned()),
        // a mere reference to the device is cleared
        Code::JournalDeviceNotFound if problem.expected == Some(0) => None,
        Code::JournalDeviceNotFound => Some("use e2fsck -j for a journal on another device".to_owned()),
        _ => None,
    };
    match (report.problems.iter().find_map(next), report.asked) {
        (Some(next), _) => next,
        (None, Repair::All) => "copy off what can be read".to_owned(),
        (None, _) => repair_with(report, if preening_suffices(report) { "-fp" } else { "-fy" }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_without_escapes_change_nothing() {
        let one = |c: char| match c {
            '\'' | '"' => c.to_string(),
            _ => c.escape_debug().to_string(),
        };
        let all: String = (0..0x2100).filter_map(char::from_u32).flat_map(|c| ['a', c, 'b', c, c]).collect();
        assert_eq!(escape(all.as_bytes()), all.chars().map(one).collect::<String>());
        for (bytes, text) in [(&b""[..], ""), (b"/plain", "/plain"), (b"\n", "\\n"), (b"a\xffb\\", "a\\xffb\\\\")] {
            assert_eq!(escape(bytes), text);
        }
    }
}
