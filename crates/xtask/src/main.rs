//! Repository checks that the compiler does not make; `make test` runs them all.
//!
//! Each check returns its findings as sentences. A finding fails the run; a note is only printed.

#![forbid(unsafe_code)]

mod chapters;
mod circles;
mod docs;
mod filters;
mod formats;
mod layers;
mod lengths;
mod report;
mod safety;
mod sizes;
mod statements;
mod words;
mod workspace;

use report::Report;
use std::process::ExitCode;
use workspace::Workspace;

/// A check: its name on the command line and its function.
type Check = (&'static str, fn(&Workspace) -> Result<Report, String>);

const CHECKS: [Check; 11] = [
    ("layers", layers::check),
    ("circles", circles::check),
    ("sizes", sizes::check),
    ("lengths", lengths::check),
    ("unsafe", safety::check),
    ("docs", docs::check),
    ("chapters", chapters::check),
    ("statements", statements::check),
    ("formats", formats::check),
    ("filters", filters::check),
    ("words", words::check),
];

const USAGE: &str =
    "usage: cargo xtask layers|circles|sizes|lengths|unsafe|docs|chapters|statements|formats|filters|words|lint
  layers  no crate depends on one that its layer does not allow
  circles no more than three files of a crate use each other in a circle
  sizes   no .rs file is longer than 900 lines
  lengths no function is longer than 80 lines unless it is a flat match, and no type has more than 60 methods
  unsafe  unsafe code is only in the io_uring files of blockdev and fuse-wire
  docs    links in *.md are valid; no file contains a machine's path or a registry's host
  chapters  each chapter of docs/design has its headings and a drawing, and docs/GLOSSARY.md at most 60 terms
  statements  statements of the documents on crates, formats, modes and lines to read are true
  formats only tables and known files depend on the names of formats and modes
  filters each `cargo test` of the Makefile and TESTING.md selects a test
  words   words retired in docs/GLOSSARY.md are not used, and the glossary has all words of the list
  lint    all of these";

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let (Some(name), None) = (args.next(), args.next()) else {
        eprintln!("{USAGE}");
        return ExitCode::from(16);
    };
    let chosen: Vec<&Check> = CHECKS.iter().filter(|(check, _)| name == "lint" || name == *check).collect();
    if chosen.is_empty() {
        eprintln!("{USAGE}");
        return ExitCode::from(16);
    }
    let workspace = match Workspace::load() {
        Ok(workspace) => workspace,
        Err(why) => {
            eprintln!("xtask: {why}");
            return ExitCode::from(8);
        }
    };
    let mut failed = false;
    for (check, run) in chosen {
        match run(&workspace) {
            Ok(report) => {
                report.notes.iter().for_each(|note| eprintln!("{check}: note: {note}"));
                report.findings.iter().for_each(|finding| eprintln!("{check}: {finding}"));
                failed |= !report.findings.is_empty();
                let verdict = if report.findings.is_empty() { "ok" } else { "FAILED" };
                println!("xtask {check}: {verdict}");
            }
            Err(why) => {
                eprintln!("{check}: {why}");
                failed = true;
            }
        }
    }
    ExitCode::from(u8::from(failed))
}
