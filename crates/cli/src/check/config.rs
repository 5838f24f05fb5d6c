//! e2fsck.conf: an administrator's settings for checks on this machine, in the file that e2fsck also reads.
//!
//! Sections `[name]` contain relations `tag = value` and `tag = {` … `}`; `;` and `#` begin comments; values with
//! spaces are quoted. Unknown sections and tags are ignored, as are those for e2fsck's memory use, readahead and
//! questions.

use crate::error_report::{Failure, Result, without_errno};
use check::table::Code;
use check::{ProblemSetting, ProblemSettings};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// The path of the file unless `E2FSCK_CONFIG` names another.
const PLACE: &str = "/etc/e2fsck.conf";

/// Maximum length of the file in bytes.
const MOST_BYTES: u64 = 1 << 20;
/// Maximum depth of nested sections and tags; three levels are used.
const DEEPEST: usize = 16;

/// The settings of the file that Extant supports.
#[derive(Debug, Default)]
pub(super) struct Settings {
    /// An interrupted check of a volume that is not marked as damaged ends with status 0.
    pub(super) allow_cancellation: bool,
    /// Dates in the future are ignored.
    pub(super) broken_clock: bool,
    /// On battery, checks due by time or mounts are due after twice the limit.
    pub(super) defer_on_battery: bool,
    pub(super) verbose: bool,
    pub(super) times: bool,
    /// The file for a copy of the output; with percent expressions.
    pub(super) log: Option<PathBuf>,
    /// The file for the codes of the problems; with percent expressions.
    pub(super) problem_log: Option<PathBuf>,
    /// The actions that repair may take, for each problem code.
    pub(super) problem_settings: ProblemSettings,
    /// The maximum number of problems shown per code; `None` for no limit.
    pub(super) most: Option<u64>,
    /// The settings for reporting problems, by code.
    pub(super) shown: BTreeMap<Code, Shown>,
}

/// The settings for reporting problems of one code.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Shown {
    /// The maximum number of problems shown.
    pub(super) most: Option<u64>,
    /// Not reported with -p.
    pub(super) not_preening: bool,
    /// Not reported where it is not repaired.
    pub(super) not_declined: bool,
    /// If not repaired, the volume still counts as clean.
    pub(super) clean_with_it: bool,
}

impl Settings {
    /// Reads the file, if it exists.
    pub(super) fn load() -> Result<Self> {
        let path = std::env::var_os("E2FSCK_CONFIG").map_or(PathBuf::from(PLACE), PathBuf::from);
        let wrong = |what: &str| Failure::Message(format!("{}: {}", path.display(), without_errno(what)));
        match read_bounded(&path) {
            Ok(bytes) if bytes.len() as u64 > MOST_BYTES => Err(wrong("it is larger than 1 MiB")),
            Ok(bytes) => Self::parse(&String::from_utf8_lossy(&bytes)).map_err(|e| wrong(&e)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Self { defer_on_battery: true, ..Self::default() }),
            Err(e) => Err(wrong(&e.to_string())),
        }
    }

    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut settings = Self { defer_on_battery: true, ..Self::default() };
        let mut log_dir = None;
        for (path, value) in relations(text)? {
            let path: Vec<&str> = path.iter().map(String::as_str).collect();
            let number = || value.parse::<u64>().ok().filter(|number| *number > 0);
            match path[..] {
                ["options", "allow_cancellation"] => settings.allow_cancellation = parse_bool(&value)?,
                ["options", "broken_system_clock"] => settings.broken_clock = parse_bool(&value)?,
                ["options", "defer_check_on_battery"] => settings.defer_on_battery = parse_bool(&value)?,
                ["options", "report_verbose"] => settings.verbose = parse_bool(&value)?,
                ["options", "report_time"] => settings.times = parse_bool(&value)?,
                ["options", "log_dir"] => log_dir = Some(PathBuf::from(value)),
                ["options", "log_filename"] => settings.log = Some(value.into()),
                ["options", "problem_log_filename"] => settings.problem_log = Some(value.into()),
                ["options", "max_count_problems"] => settings.most = number(),
                ["problems", code, tag] => {
                    if let Some(code) = code_of(code) {
                        settings.set_for_problem(code, tag, &value)?;
                    }
                }
                _ => {}
            }
        }
        for file in [&mut settings.log, &mut settings.problem_log].into_iter().flatten() {
            if let Some(dir) = log_dir.as_ref().filter(|_| file.is_relative()) {
                *file = dir.join(&*file);
            }
        }
        if settings.broken_clock {
            for code in [
                Code::LastMountInFuture,
                Code::LastMountBarelyInFuture,
                Code::LastWriteInFuture,
                Code::LastWriteBarelyInFuture,
            ] {
                settings.problem_settings.of(code).never = true;
                settings.shown.entry(code).or_default().not_declined = true;
            }
        }
        Ok(settings)
    }

    /// The largest number of problems of one code to be shown, where the file sets one.
    pub(super) fn largest_count(&self) -> Option<u64> {
        self.shown.values().filter_map(|shown| shown.most).chain(self.most).max()
    }

    fn set_for_problem(&mut self, code: Code, tag: &str, value: &str) -> Result<(), String> {
        let setting: &mut ProblemSetting = self.problem_settings.of(code);
        let shown = self.shown.entry(code).or_default();
        match tag {
            "preen_ok" => setting.preen = Some(parse_bool(value)?),
            "force_no" => setting.never = parse_bool(value)?,
            "not_a_fix" => setting.not_a_fix = Some(parse_bool(value)?),
            "max_count" => shown.most = value.parse().ok(),
            "preen_nomessage" => shown.not_preening = parse_bool(value)?,
            "no_nomsg" => shown.not_declined = parse_bool(value)?,
            "no_ok" => shown.clean_with_it = parse_bool(value)?,
            _ => {}
        }
        Ok(())
    }
}

/// Reads the file, at most one byte beyond the limit: the path may name an endless device, or a pipe without a writer.
fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    if std::fs::metadata(path)?.file_type().is_fifo() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is a pipe"));
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(MOST_BYTES + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn parse_bool(value: &str) -> Result<bool, String> {
    match value.to_ascii_lowercase().as_str() {
        "y" | "yes" | "true" | "t" | "1" | "on" => Ok(true),
        "n" | "no" | "false" | "nil" | "0" | "off" => Ok(false),
        _ => Err(format!("`{value}` is neither true nor false")),
    }
}

/// A problem's number as the file writes it: `0x` and six digits.
fn code_of(text: &str) -> Option<Code> {
    let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"))?;
    u32::from_str_radix(digits, 16).ok().and_then(Code::from_number)
}

/// All relations in order: the path of section and tags, and the value.
fn relations(text: &str) -> Result<Vec<(Vec<String>, String)>, String> {
    let mut place: Vec<String> = Vec::new();
    let mut found = Vec::new();
    for (n, line) in text.lines().enumerate() {
        let line = line.trim();
        let wrong = |what: &str| Err(format!("line {}: {what}", n + 1));
        if line.is_empty() || line.starts_with([';', '#']) {
            continue;
        }
        if let Some(name) = line.strip_prefix('[') {
            let Some((name, _)) = name.split_once(']') else { return wrong("a section is written [name]") };
            if place.len() > 1 {
                return wrong("a } is missing before this section");
            }
            place = vec![name.trim().to_owned()];
        } else if line.starts_with('}') {
            if place.len() < 2 {
                return wrong("there is no { before this }");
            }
            place.pop();
        } else {
            let Some((tag, value)) = line.split_once('=') else { return wrong("a relation is written tag = value") };
            if place.is_empty() {
                return wrong("there is no section before this relation");
            }
            let mut path = place.clone();
            path.push(unquoted(tag.trim()));
            match value.trim() {
                value if value.starts_with('{') && path.len() > DEEPEST => {
                    return wrong("too many nested {");
                }
                value if value.starts_with('{') => place = path,
                value => found.push((path, unquoted(value))),
            }
        }
    }
    if place.len() > 1 { Err("a } is missing at the end".to_owned()) } else { Ok(found) }
}

/// A word without its quotes, or without a comment at its end.
fn unquoted(word: &str) -> String {
    let Some(quoted) = word.strip_prefix('"') else {
        return word.split([';', '#']).next().unwrap_or(word).trim().to_owned();
    };
    let mut out = String::new();
    let mut letters = quoted.chars();
    while let Some(letter) = letters.next().filter(|letter| *letter != '"') {
        match (letter, if letter == '\\' { letters.next() } else { None }) {
            (_, Some('n')) => out.push('\n'),
            (_, Some('t')) => out.push('\t'),
            (_, Some('b')) => out.push('\u{8}'),
            (_, Some(other)) => out.push(other),
            (letter, None) => out.push(letter),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use check::table::Preen;

    #[test]
    fn what_the_file_says() {
        let settings = Settings::parse(
            "; a comment\n[options]\n\tallow_cancellation = true # so be it\n log_filename = \"e2fsck %N.log\"\n\
             log_dir = /var/log\n max_count_problems = 16\n unknown_tag = 3\n report_verbose = on\n\
             [scratch_files]\n directory = /tmp\n\
             [problems]\n 0x040003 = {\n  preen_ok = false\n  max_count = 2\n }\n 0x0300FF = {\n  preen_ok = true\n }\n\
             0x030003 = {\n  force_no = yes\n  no_ok = 1\n  not_a_fix = on\n }\n",
        )
        .unwrap();
        assert!(settings.allow_cancellation && settings.verbose && settings.defer_on_battery && !settings.broken_clock);
        assert_eq!(settings.log, Some("/var/log/e2fsck %N.log".into()));
        assert_eq!(settings.most, Some(16));
        assert_eq!(settings.problem_settings.preen(Code::LinkCountWrong), Preen::Stops);
        assert!(settings.problem_settings.never(Code::DirectoryUnconnected));
        let shown = |code| settings.shown[&code];
        assert_eq!(shown(Code::LinkCountWrong).most, Some(2));
        assert_eq!(settings.largest_count(), Some(16));
        assert!(shown(Code::DirectoryUnconnected).clean_with_it);
    }

    #[test]
    fn a_clock_that_is_broken() {
        let settings = Settings::parse("[options]\nbroken_system_clock = true\n").unwrap();
        assert!(
            settings.problem_settings.never(Code::LastWriteInFuture)
                && settings.shown[&Code::LastMountInFuture].not_declined
        );
    }

    #[test]
    fn what_cannot_be_read_is_said_with_its_line() {
        for (text, says) in [
            ("[options]\nfoo bar\n", "line 2: a relation"),
            ("foo = bar\n", "line 1: there is no section"),
            ("[options\n", "line 1: a section"),
            ("[a]\nb = {\n[c]\n", "line 3: a } is missing"),
            ("[a]\nb = {\n", "a } is missing at the end"),
            ("[a]\n}\n", "line 2: there is no {"),
            ("[options]\nallow_cancellation = perhaps\n", "`perhaps` is neither"),
        ] {
            let said = Settings::parse(text).unwrap_err();
            assert!(said.starts_with(says), "{text}: {said}");
        }
        assert!(Settings::parse("").is_ok());
        let deep = format!("[a]\n{}", "b = {\n".repeat(200_000));
        assert!(Settings::parse(&deep).unwrap_err().contains("too many nested {"));
        assert!(Settings::parse("[a]\nb = {\nc = {\nd = {\ne = 1\n}\n}\n}\n").is_ok());
    }

    #[test]
    fn no_more_is_read_than_a_file_of_this_kind_has() {
        assert_eq!(read_bounded(Path::new("/dev/zero")).unwrap().len() as u64, MOST_BYTES + 1);
        assert_eq!(read_bounded(Path::new("/dev/null")).unwrap(), b"");
    }
}
