//! Copies of a check's output, in files that e2fsck.conf or `-E` names: the text, and the codes in the format of
//! e2fsck's problem log.

use super::config::Settings;
use super::extended_options::Extended;
use crate::error_report::{say, without_errno};
use crate::output::hex;
use check::report::Report;
use jiff::tz::TimeZone;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// The log files, with their names expanded.
#[derive(Debug)]
pub(super) struct Logs {
    text: Option<PathBuf>,
    problems: Option<PathBuf>,
}

impl Logs {
    /// The command line takes precedence over the configuration.
    pub(super) fn new(settings: &Settings, extended: &[Extended], device: &str) -> Self {
        let mut logs = Self { text: settings.log.clone(), problems: settings.problem_log.clone() };
        for option in extended {
            match option {
                Extended::Log(path) => logs.text = Some(path.clone()),
                Extended::ProblemLog(path) => logs.problems = Some(path.clone()),
                Extended::JournalOnly
                | Extended::ScanSegments(_)
                | Extended::EmptyTables
                | Extended::UnshareBlocks
                | Extended::Nothing => {}
            }
        }
        for path in [&mut logs.text, &mut logs.problems].into_iter().flatten() {
            *path = PathBuf::from(expanded(&path.to_string_lossy(), device));
        }
        logs
    }

    pub(super) fn text(&self, said: impl FnOnce() -> Vec<u8>) {
        if let Some(path) = &self.text {
            save(path, &said());
        }
    }

    pub(super) fn problems(&self, report: &Report) {
        if let Some(path) = &self.problems {
            save(path, problem_log(report).as_bytes());
        }
    }
}

/// Writes a log. A failure does not stop the check.
fn save(path: &Path, bytes: &[u8]) {
    if let Err(e) = std::fs::write(path, bytes) {
        say(&format!("cannot write the log {}: {}", path.display(), without_errno(&e.to_string())));
    }
}

/// Expands e2fsck.conf's percent expressions in a name.
fn expanded(name: &str, device: &str) -> String {
    let zone = if name.contains("%U") { TimeZone::UTC } else { TimeZone::system() };
    let now = jiff::Timestamp::now().to_zoned(zone);
    let mut out = String::new();
    let mut letters = name.chars();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            out.push(letter);
            continue;
        }
        match letters.next() {
            Some(letter @ ('d' | 'H' | 'm' | 'M' | 's' | 'S' | 'y' | 'Y')) => {
                out += &now.strftime(&format!("%{letter}")).to_string();
            }
            Some('D') => out += &now.strftime("%Y%m%d").to_string(),
            Some('T') => out += &now.strftime("%H%M%S").to_string(),
            Some('h') => out += &rustix::system::uname().nodename().to_string_lossy(),
            Some('N') => {
                out += &Path::new(device).file_name().map_or_else(|| device.into(), |name| name.to_string_lossy());
            }
            Some('p') => out += &std::process::id().to_string(),
            Some('u') => out += &std::env::var("USER").unwrap_or_default(),
            Some('U') => {}
            Some(other) => out.push(other),
            None => out.push('%'),
        }
    }
    out
}

/// The problems in XML, one element each, with e2fsck's attribute names.
fn problem_log(report: &Report) -> String {
    let mut out = String::from("<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<problem_log>\n");
    // writing to a String cannot fail
    let _ = writeln!(out, "<filesystem dev=\"{}\"/>", attribute(&report.device));
    for problem in &report.problems {
        let answer = u8::from(problem.fixed);
        let _ = write!(out, "<problem code=\"{}\" answer=\"{answer}\"", problem.code);
        if problem.fixed {
            out += " fixed=\"1\"";
        }
        for (name, number) in [
            ("ino", problem.inode.map(u64::from)),
            ("dir", problem.dir.map(u64::from)),
            ("blk", problem.block),
            ("blkcount", problem.file_block),
            ("group", problem.group.map(u64::from)),
            ("num", problem.expected.or(problem.count)),
        ] {
            if let Some(number) = number {
                let _ = write!(out, " {name}=\"{number}\"");
            }
        }
        out += "/>\n";
    }
    out + "</problem_log>\n"
}

/// Escapes a text for an XML attribute; characters not allowed in XML are written in hexadecimal.
fn attribute(text: &str) -> String {
    let mut out = String::new();
    for letter in text.chars() {
        match letter {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '"' => out += "&quot;",
            letter if letter.is_control() => {
                let _ = write!(out, "\\x{}", hex(letter.to_string().as_bytes()));
            }
            letter => out.push(letter),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_logs() {
        assert_eq!(expanded("/var/log/%N.log", "/dev/sda1"), "/var/log/sda1.log");
        let name = expanded("%Y-%D-%T-%p-%%-%U", "x");
        let parts: Vec<_> = name.split('-').map(str::len).collect();
        assert_eq!((&parts[..3], &parts[4..]), (&[4, 8, 6][..], &[1, 0][..]), "{name}");
        assert_eq!(expanded("100%", "x"), "100%");
    }

    #[test]
    fn text_in_xml() {
        assert_eq!(attribute("a<b>&\"\n"), "a&lt;b>&amp;&quot;\\x0a");
    }
}
