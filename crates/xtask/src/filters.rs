//! Checks that every `cargo test` of the Makefile and TESTING.md selects a test: Cargo succeeds where a filter matches
//! none.

use crate::report::Report;
use crate::workspace::{Package, Workspace};
use std::path::{Path, PathBuf};

/// The files with commands, and the character that separates a command from other text.
const FILES: [(&str, char); 2] = [("Makefile", '\n'), ("TESTING.md", '`')];

/// The tests selected by a command: all where nothing is named.
#[derive(Debug, Default, PartialEq, Eq)]
struct Selection<'a> {
    package: Option<&'a str>,
    /// A program of the folder `tests`.
    program: Option<&'a str>,
    /// A part of the path of a test.
    filter: Option<&'a str>,
}

/// A test.
#[derive(Debug)]
struct Test {
    package: String,
    program: Option<String>,
    /// Its module and its name: `module::name`.
    path: String,
}

impl Selection<'_> {
    fn contains(&self, test: &Test) -> bool {
        self.package.is_none_or(|package| package == test.package)
            && self.program.is_none_or(|program| test.program.as_deref() == Some(program))
            && self.filter.is_none_or(|filter| test.path.contains(filter))
    }
}

pub(crate) fn check(workspace: &Workspace) -> Result<Report, String> {
    let tests = tests(workspace)?;
    let mut report = Report::default();
    for (file, separator) in FILES {
        report.findings.extend(unmatched(file, &workspace.required_text(file)?, separator, &tests));
    }
    Ok(report)
}

/// One sentence for each command in a file that selects no test, or if there is no command.
fn unmatched(file: &str, text: &str, separator: char, tests: &[Test]) -> Vec<String> {
    let commands: Vec<_> = text.split(separator).filter_map(selection).collect();
    if commands.is_empty() {
        return vec![format!("{file} has no `cargo test` where expected.")];
    }
    let wrong = commands.iter().filter(|command| !tests.iter().any(|test| command.contains(test)));
    let name = |name: Option<&str>| name.unwrap_or("any").to_owned();
    wrong
        .map(|command| {
            let (package, program, filter) = (name(command.package), name(command.program), name(command.filter));
            format!(
                "{file}: no test is selected by `cargo test`: package {package}, program {program}, filter {filter}."
            )
        })
        .collect()
}

/// The selection by a `cargo test` in a text.
fn selection(text: &str) -> Option<Selection<'_>> {
    let mut words = text.split_whitespace();
    words.find(|word| *word == "cargo")?;
    words.next().filter(|word| *word == "test")?;
    let mut selection = Selection::default();
    while let Some(word) = words.next() {
        match word {
            "--" => break,
            "-p" => selection.package = words.next(),
            "--test" => selection.program = words.next(),
            _ if word.starts_with('-') || !word.is_ascii() => {}
            _ => selection.filter = Some(word),
        }
    }
    Some(selection)
}

/// All tests of the workspace.
fn tests(workspace: &Workspace) -> Result<Vec<Test>, String> {
    let mut tests = Vec::new();
    for package in &workspace.packages {
        let Some(folder) = folder(&workspace.root, package) else { continue };
        for file in workspace.files.iter().filter(|file| file.extension().is_some_and(|e| e == "rs")) {
            let Ok(inside) = file.strip_prefix(&folder) else { continue };
            let Some(text) = workspace.text(file)? else { continue };
            let module = inside.file_stem().unwrap_or_default().to_string_lossy();
            tests.extend(names(&text).map(|name| Test {
                package: package.name.clone(),
                program: program(inside),
                path: format!("{module}::{name}"),
            }));
        }
    }
    Ok(tests)
}

/// The folder of a package, relative to the top folder.
fn folder(root: &Path, package: &Package) -> Option<PathBuf> {
    let source = package.roots.iter().find_map(|file| file.strip_prefix(root).ok())?;
    source.ancestors().find(|path| path.ends_with("src"))?.parent().map(Path::to_path_buf)
}

/// The program with the tests of a file; none for those inside the crate.
fn program(inside: &Path) -> Option<String> {
    let first = inside.strip_prefix("tests").ok()?.components().next()?;
    Some(Path::new(first.as_os_str()).file_stem()?.to_string_lossy().into_owned())
}

/// The names of the tests in a source file.
fn names(text: &str) -> impl Iterator<Item = &str> {
    text.split("#[test]").skip(1).filter_map(|rest| rest.split_once("fn ")?.1.split('(').next())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "#[test]\n#[cfg(unix)]\nfn a_planted_one() {}\nfn none() {}\n";

    #[test]
    fn planted_filters_are_found() {
        let test = |name: &str| Test {
            package: "extant-a".to_owned(),
            program: program(Path::new("tests/damage/pairs.rs")),
            path: format!("pairs::{name}"),
        };
        let tests: Vec<_> = names(SOURCE).map(test).collect();
        assert_eq!(tests.iter().map(|test| &test.path[..]).collect::<Vec<_>>(), ["pairs::a_planted_one"]);
        let found = |text: &str| unmatched("Makefile", text, '\n', &tests).len();
        let command = "\tN=1 cargo test --release -p extant-a --test damage planted -- --nocapture";
        assert_eq!(found(command), 0);
        assert_eq!(found("\tcargo build\n\tcargo test --workspace\n\tcargo test …"), 0);
        for (from, to) in [("planted", "renamed"), ("planted", "none"), ("extant-a", "extant-b"), ("damage", "kinds")] {
            assert_eq!(found(&command.replace(from, to)), 1, "{to}");
        }
        let none = unmatched("Makefile", "all:\n\tcargo build\n", '\n', &tests);
        assert_eq!(none, ["Makefile has no `cargo test` where expected."]);
    }

    #[test]
    fn programs_are_files_or_folders_of_tests() {
        let name = |path: &str| program(Path::new(path));
        assert_eq!(name("tests/table.rs").as_deref(), Some("table"));
        assert_eq!(name("tests/damage/main.rs").as_deref(), Some("damage"));
        assert_eq!(name("src/tests/more.rs"), None);
    }
}
