//! Checks numbers and lists in the documents: crates and their layers, formats, modes, lines to read.

use crate::layers;
use crate::report::Report;
use crate::workspace::Workspace;
use std::collections::{BTreeMap, BTreeSet};

/// The files with the names of modes, the table of modes, the names of formats, and the help of `extant mount`.
pub(crate) const MODES: &str = "crates/fs/src/mode.rs";
const ENGINES: &str = "crates/fs/src/engine.rs";
pub(crate) const FORMATS: &str = "crates/fs/src/mkfs/options.rs";
const MOUNT: &str = "crates/cli/src/mount.rs";

const NUMBERS: [&str; 31] = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
    "twenty",
    "twenty-one",
    "twenty-two",
    "twenty-three",
    "twenty-four",
    "twenty-five",
    "twenty-six",
    "twenty-seven",
    "twenty-eight",
    "twenty-nine",
    "thirty",
];

pub(crate) fn check(workspace: &Workspace) -> Result<Report, String> {
    let text = |file: &str| workspace.required_text(file);
    let (readme, architecture) = (text("README.md")?, text("ARCHITECTURE.md")?);
    let names: Vec<&str> = workspace.packages.iter().map(|package| &package.name[..]).collect();
    let mut findings = crates(&names, section(&architecture, "## Crates"));
    let (modes, mount) = (text(MODES)?, text(MOUNT)?);
    let (consistencies, data) = (named(&modes, "Consistency"), named(&modes, "DataMode"));
    findings.extend(lists("mount help", &mount, &[("consistency=", &consistencies), ("data=", &data)]));
    let own = section(&architecture, "## Formats and modes");
    findings.extend(missing("ARCHITECTURE.md", own, consistencies.iter().map(|name| format!("`{name}`"))));
    let format_text = text(FORMATS)?;
    let formats = named(&format_text, "Kind");
    findings.extend(missing("ARCHITECTURE.md", own, formats.iter().map(|name| format!("`{name}`"))));
    findings.extend(readme_lists(&readme, &consistencies, &formats));
    findings.extend(rows(&coded(&text(ENGINES)?, &format_text, &modes), &documented(own)));
    findings.extend(unnamed(&[&formats, &consistencies, &data]));
    let reading = section(&architecture, "## Where to read");
    let mut lines = 0;
    for file in files(reading) {
        lines += code_lines(&text(&file)?);
    }
    findings.extend(stated_lines(reading, lines));
    Ok(Report { findings, notes: Vec::new() })
}

/// The part of a document from a heading to the next one of the same level.
fn section<'a>(text: &'a str, heading: &str) -> &'a str {
    let rest = text.split_once(heading).map_or("", |(_, rest)| rest);
    rest.split("\n## ").next().unwrap_or_default()
}

/// All parts of a text between two delimiters.
fn between<'a>(text: &'a str, before: &str, after: &str) -> Vec<&'a str> {
    text.split(before).skip(1).filter_map(|rest| Some(rest.split_once(after)?.0)).collect()
}

/// The values of a type with their names, from `names!`.
pub(crate) fn values<'a>(text: &'a str, of: &str) -> Vec<(&'a str, &'a str)> {
    let list = between(text, &format!("names!({of} {{"), "}").first().copied().unwrap_or_default();
    let pairs = list.split(',').filter_map(|pair| pair.split_once('='));
    pairs.map(|(value, name)| (value.trim(), name.trim().trim_matches('"'))).collect()
}

/// The names of the values of a type.
fn named<'a>(text: &'a str, of: &str) -> Vec<&'a str> {
    values(text, of).into_iter().map(|(_, name)| name).collect()
}

/// The modes available on a format.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct FormatModes {
    /// The data modes available, by name of the consistency mode.
    data: BTreeMap<String, BTreeSet<String>>,
    /// Whether it can have a journal.
    journal: bool,
}

impl std::fmt::Display for FormatModes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (mode, data) in &self.data {
            let data = data.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
            let data = if data.is_empty() { data } else { format!(" ({data})") };
            write!(f, "{mode}{data}, ")?;
        }
        f.write_str(if self.journal { "a journal" } else { "no journal" })
    }
}

/// The formats with their modes, by the name for `mkfs -t`.
type Formats = BTreeMap<String, FormatModes>;

/// The formats and modes in the table of modes, with the names defined in the other texts.
fn coded(engines: &str, formats: &str, modes: &str) -> Formats {
    let (kinds, consistencies, data) =
        (values(formats, "Kind"), values(modes, "Consistency"), values(modes, "DataMode"));
    let table = between(engines, "static TABLE", "\n];").first().copied().unwrap_or_default();
    let mut all = Formats::new();
    for row in table.split("PossibleMode {").skip(1) {
        for kind in in_row(row, "Kind", &kinds) {
            let format = all.entry(kind).or_default();
            format.journal |= row.contains("Log::Journal");
            for mode in in_row(row, "Consistency", &consistencies) {
                format.data.entry(mode).or_default().extend(in_row(row, "DataMode", &data));
            }
        }
    }
    all
}

/// The names of all values of a type in a row.
fn in_row(row: &str, of: &str, names: &[(&str, &str)]) -> Vec<String> {
    let of = format!("{of}::");
    let values = row.split(&of[..]).skip(1);
    let values = values.filter_map(|rest| rest.split(|c: char| !c.is_alphanumeric()).next());
    let name = |value: &str| names.iter().find(|row| row.0 == value).map_or(value, |row| row.1).to_owned();
    values.map(name).collect()
}

/// The formats and modes in a table of a document: format, names for `mkfs -t`, engines, journal. A cell may have `as`
/// and the name of an earlier format.
fn documented(text: &str) -> Formats {
    let mut all = Formats::new();
    for line in text.lines().filter(|line| line.starts_with('|')).skip(2) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [_, names, engines, journal] = cells[..] else { continue };
        let like = |cell: &str| cell.strip_prefix("as ").map(|name| all.get(name).cloned().unwrap_or_default());
        let data = like(engines).map_or_else(|| modes_in(engines), |other| other.data);
        let journal = like(journal).map_or_else(|| journal.starts_with("yes"), |other| other.journal);
        let modes = FormatModes { data, journal };
        all.extend(names.split('`').skip(1).step_by(2).map(|name| (name.to_owned(), modes.clone())));
    }
    all
}

/// The modes listed in a cell, each with the names in parentheses after it.
fn modes_in(cell: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut modes: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let (mut mode, mut inside) = ("", false);
    for (number, part) in cell.split('`').enumerate() {
        if number % 2 == 0 {
            inside = part.contains('(') || inside && !part.contains(')');
        } else if inside {
            let data = part.strip_prefix("data=").unwrap_or(part);
            modes.entry(mode.to_owned()).or_default().insert(data.to_owned());
        } else {
            mode = part;
            modes.entry(mode.to_owned()).or_default();
        }
    }
    modes
}

/// One sentence for each format for which the document differs from the table of modes.
fn rows(coded: &Formats, documented: &Formats) -> Vec<String> {
    if coded.is_empty() {
        return vec![format!("{ENGINES} has no table of modes where expected.")];
    }
    let names: BTreeSet<&String> = coded.keys().chain(documented.keys()).collect();
    let said = |formats: &Formats, name: &String| formats.get(name).map_or("nothing".to_owned(), ToString::to_string);
    let wrong = names.into_iter().filter(|name| coded.get(*name) != documented.get(*name));
    wrong
        .map(|name| {
            let (code, document) = (said(coded, name), said(documented, name));
            format!("ARCHITECTURE.md says of the format {name}: {document}. {ENGINES} says: {code}.")
        })
        .collect()
}

/// One sentence for each text missing from a document.
fn missing(document: &str, text: &str, wanted: impl Iterator<Item = String>) -> Vec<String> {
    let wanted = wanted.filter(|wanted| !text.contains(&wanted[..]));
    wanted.map(|wanted| format!("{document} does not name {wanted} in its complete list.")).collect()
}

/// One sentence for each mode or format missing from README.md.
fn readme_lists(readme: &str, consistencies: &[&str], formats: &[&str]) -> Vec<String> {
    let modes = consistencies.iter().map(|name| format!("`consistency={name}"));
    missing("README.md", readme, modes.chain(formats.iter().map(|name| format!("{name}`"))))
}

/// A sentence if one of the lists of names is empty: the other rules would find nothing.
fn unnamed(lists: &[&[&str]]) -> Option<String> {
    let empty = lists.iter().any(|names| names.is_empty());
    empty.then(|| format!("{MODES} and {FORMATS} have no names of modes or formats where expected."))
}

/// One sentence for each list of an option's values, separated by `|`, that differs from the expected one.
fn lists(document: &str, text: &str, wanted: &[(&str, &[&str])]) -> Vec<String> {
    let wanted = wanted.iter().map(|(option, names)| format!("{option}{}", names.join("|")));
    wanted
        .filter(|list| !text.contains(&format!("{list}\n")))
        .map(|list| format!("{document} should list {list}."))
        .collect()
}

/// The errors in the statements of a document on the crates.
fn crates(packages: &[&str], text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    for package in packages {
        let name = package.strip_prefix("extant-").unwrap_or(package);
        let level = layers::level(package).map_or(String::new(), |level| level.to_string());
        let said = [format!("| {level} | `{name}`"), format!("`{name}` ({level}")];
        if name != "xtask" && !said.iter().any(|said| text.contains(&said[..])) {
            wrong.push(format!("ARCHITECTURE.md does not name the crate {name} with its layer, {level}."));
        }
    }
    let number = NUMBERS.get(packages.len()).copied().unwrap_or("many");
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if !words.contains(&format!(" {number} crates")) {
        wrong.push(format!("ARCHITECTURE.md does not state that there are {number} crates."));
    }
    wrong
}

/// The source files named in a text; one without a crate belongs to the crate of the previous one.
fn files(text: &str) -> Vec<String> {
    let mut files: Vec<String> = Vec::new();
    let mut src = String::new();
    for name in text.split('`').skip(1).step_by(2).filter(|name| name.ends_with(".rs")) {
        if let Some((krate, _)) = name.split_once("/src/") {
            src = format!("crates/{krate}/src/");
            files.push(format!("crates/{name}"));
        } else {
            files.push(format!("{src}{name}"));
        }
    }
    files
}

/// The number of lines of code, without blank lines, comments and tests.
fn code_lines(text: &str) -> usize {
    let lines = text.lines().map(str::trim).take_while(|line| *line != "#[cfg(test)]");
    lines.filter(|line| !line.is_empty() && !line.starts_with("//")).count()
}

/// A finding if a text states a number of lines that is wrong by more than a sixth.
fn stated_lines(text: &str, lines: usize) -> Option<String> {
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let claimed = between(&words, "About ", " lines of code").first().map(|number| number.replace(' ', ""));
    let claimed: usize = claimed.and_then(|number| number.parse().ok()).unwrap_or_default();
    (claimed.abs_diff(lines) * 6 > lines)
        .then(|| format!("ARCHITECTURE.md states {claimed} lines of code to read, but its files have {lines}."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_planted_crate_is_found() {
        let packages = ["extant-fs", "extant-testkit"];
        assert!(crates(&packages, "| 3 | `fs` | … |\nand `testkit` (1: seeds): two\ncrates").is_empty());
        assert_eq!(crates(&packages, "| 2 | `fs` | … |\nand `testkit` (1: seeds): two crates").len(), 1);
        assert_eq!(crates(&packages, "| 3 | `fs` | … |: two crates").len(), 1);
        assert_eq!(crates(&packages, "| 3 | `fs` |, `testkit` (1): three crates").len(), 1);
    }

    #[test]
    fn planted_modes_are_found() {
        let text = "names!(Consistency { None = \"none\", Linked = \"linked\" });\nnames!(DataMode { A = \"a\" });";
        let names = named(text, "Consistency");
        assert_eq!((&names[..], &named(text, "DataMode")[..]), (&["none", "linked"][..], &["a"][..]));
        assert_eq!(missing("README.md", "`none`", names.iter().map(|name| format!("`{name}`"))).len(), 1);
        let wanted: &[(&str, &[&str])] = &[("consistency=", &names)];
        assert!(lists("help", "  consistency=none|linked\n", wanted).is_empty());
        assert_eq!(lists("help", "  consistency=none\n", wanted).len(), 1);
        assert_eq!(lists("help", "  consistency=none|linked|more\n", wanted).len(), 1);
    }

    #[test]
    fn a_mode_or_format_missing_from_the_readme_is_found() {
        let found = |readme: &str| readme_lists(readme, &["none", "journal"], &["ext2", "ext4"]);
        let readme = "`consistency=none` or `consistency=journal`: `-t ext2`, `ext4`";
        assert_eq!(found(readme), [""; 0]);
        for (from, to) in [("=journal", "=jrnl"), ("ext2`", "ext`"), ("ext4`", "ext4")] {
            assert_eq!(found(&readme.replace(from, to)).len(), 1, "{from}");
        }
    }

    #[test]
    fn names_that_are_not_where_expected_are_found() {
        assert!(unnamed(&[&["ext2"], &["none"], &["ordered"]]).is_none());
        let moved = named("pub enum Kind { Ext2 }", "Kind");
        assert!(unnamed(&[&moved, &["none"], &["ordered"]]).is_some());
        assert!(unnamed(&[&["ext2"], &["none"], &[]]).is_some());
    }

    #[test]
    fn planted_rows_of_formats_are_found() {
        let engines = "static TABLE: [PossibleMode; 2] = [
    PossibleMode {
        consistency: Consistency::Journal,
        formats: &[Kind::Ext3, Kind::Own],
        log: Log::Journal,
        data: &[DataMode::Ordered, DataMode::NewBlocks],
        make: |maps| Journal::new(maps),
    },
    PossibleMode { consistency: Consistency::None, formats: &[Kind::Ext2, Kind::Ext3, Kind::Own], log: Log::Nothing },
];
const OTHER: Kind = Kind::Foreign;";
        let formats = "names!(Kind {\n    Ext2 = \"ext2\",\n    Ext3 = \"ext3\",\n    Own = \"own\",\n});";
        let modes = "names!(Consistency { None = \"none\", Journal = \"journal\" });
names!(DataMode { Ordered = \"ordered\", NewBlocks = \"cow\" });";
        let table = "| format | `mkfs -t` | engines | journal |
| --- | --- | --- | --- |
| ext2 | `ext2` | `none` | no |
| ext3 | `ext3` | `journal` (`data=ordered`, `cow`), `none` | yes, unless made without |
| mine | `own` | as ext3 | as ext3 |
";
        let coded = coded(engines, formats, modes);
        let found = |from: &str, to: &str| {
            let planted = table.replacen(from, to, 1);
            rows(&coded, &documented(&planted))
        };
        assert_eq!(found("", ""), [""; 0]);
        let sentences = found("| `none` | no |", "| `none`, `linked` | no |");
        assert_eq!(sentences.len(), 1);
        assert!(sentences[0].contains("of the format ext2: linked, none, no journal."), "{sentences:?}");
        assert_eq!(found("| `none` | no |", "| `none` | yes |").len(), 1);
        assert_eq!(found("`data=ordered`, `cow`", "`data=ordered`").len(), 2, "the row that refers to it, too");
        assert_eq!(found("), `none` |", ") |").len(), 2);
        assert_eq!(found("| as ext3 | as ext3 |", "| as ext3 | no |").len(), 1);
        assert_eq!(found("| as ext3 | as", "| as ext2 | as").len(), 1);
        assert_eq!(found("`own`", "`foreign`").len(), 2, "one is missing, and one does not exist");
        assert_eq!(rows(&Formats::new(), &documented(table)).len(), 1);
    }

    #[test]
    fn planted_lines_are_found() {
        let text = "## Where to read\n`a/src/x.rs` → `y.rs` beside `b`. About 1\n200 lines of code.\n\n## Next\n`z.rs`";
        let reading = section(text, "## Where to read");
        assert_eq!(files(reading), ["crates/a/src/x.rs", "crates/a/src/y.rs"]);
        assert!(stated_lines(reading, 1100).is_none() && stated_lines(reading, 1400).is_none());
        assert!(stated_lines(reading, 1000).is_some() && stated_lines(reading, 1500).is_some());
        assert_eq!(code_lines("//! what\n\nfn a() {\n    // why\n}\n#[cfg(test)]\nmod tests {}\n"), 2);
    }
}
