//! Words retired in docs/GLOSSARY.md must not be used in names, comments, messages and documents.
//!
//! For a word still in use, the table has the number of its remaining uses, which only shrinks.

use crate::report::Report;
use crate::workspace::Workspace;
use std::collections::{HashMap, HashSet};
use std::path::Path;

/// A retired word.
struct Retired {
    /// All its forms, in lower case.
    forms: &'static [&'static str],
    /// The word to write instead.
    instead: &'static str,
    /// Maximum number of uses in the repository.
    left: usize,
}

const fn retired(forms: &'static [&'static str], instead: &'static str, left: usize) -> Retired {
    Retired { forms, instead, left }
}

const TABLE: &[Retired] = &[
    retired(&["desk", "desks"], "ring entry", 0),
    retired(&["standin", "standins"], "spare ring entry", 0),
    retired(&["bell", "bells"], "wakeup", 0),
    retired(&["beacon", "beacons"], "MMP heartbeat", 0),
    retired(&["dress", "dresses", "dressed"], "file attributes", 0),
    retired(&["spoil", "spoils", "spoiled", "spoilt", "spoiling"], "mark corrupt; damaged", 0),
    retired(&["mend", "mends", "mended", "mending", "mender", "menders"], "repair, fix", 0),
    retired(&["told"], "reported, notified", 0),
    retired(&["tell", "tells", "teller", "telling"], "report, notify", 3),
    retired(&["whoever"], "the caller, the process, the user", 0),
    retired(&["nobody", "somebody"], "no process, a process", 0),
    retired(&["heed", "heeds", "heeded"], "read", 0),
    retired(&["stretch", "stretches"], "scan segment", 0),
    retired(&["trail", "trails"], "scan log", 0),
    retired(&["ownfile", "ownfiles"], "system inode", 0),
    retired(&["recognise", "recognises", "recognised"], "identify", 0),
    retired(&["judge", "judges", "judged", "judging"], "check, verify; compare", 1),
    retired(&["seal", "seals", "sealed", "sealing", "unsealed"], "set the checksum", 0),
    retired(&["kept"], "pinned, reserved, cached", 0),
    retired(&["keep", "keeps", "keeping", "keeper", "keepers"], "pin, reserve, cache; timeout", 63),
    retired(&["held"], "deferred, pinned, locked", 0),
    retired(&["give", "gives", "gave", "given", "giving"], "free, allocate, grant, return", 1),
    retired(&["room", "rooms"], "space; dirty limit", 1),
    retired(&["distrust", "distrusted"], "abort; untrusted", 0),
    // code that is sound, and the changelog
    retired(&["sound", "unsound"], "consistent, valid, intact; damaged", 3),
    retired(&["parted"], "has partitions; separated", 0),
    retired(&["ceiling", "ceilings"], "upper bound", 1),
    retired(&["venue", "venues"], "target", 0),
    retired(&["thrice"], "create-delete", 1),
    retired(&["bend", "bends", "bent"], "mutant", 0),
    retired(&["canary", "canaries"], "mutant", 0),
    retired(&["fate", "struck"], "injected fault", 0),
    retired(&["tidy", "tidies", "tidied"], "compact", 0),
    retired(&["facts"], "file metadata; native facts", 0),
    // too late, and names of tests
    retired(&["late"], "page write", 46),
    retired(&["letting"], "prune", 0),
    retired(&["piece", "pieces"], "part, extent, change", 278),
    retired(&["shape", "shapes"], "layout, geometry, kind, size", 77),
];

const GLOSSARY: &str = "docs/GLOSSARY.md";
/// Files that must contain the words.
const EXEMPT: &[&str] = &[GLOSSARY, "crates/xtask/src/words.rs"];

pub(crate) fn check(workspace: &Workspace) -> Result<Report, String> {
    let mut texts = Vec::new();
    for file in &workspace.files {
        let is_text = file.extension().is_some_and(|e| e == "rs" || e == "md");
        if is_text
            && !EXEMPT.iter().any(|exempt| file == Path::new(exempt))
            && let Some(text) = workspace.text(file)?
        {
            texts.push((file.display().to_string(), text));
        }
    }
    let mut report = count(TABLE, &texts);
    report.findings.extend(missing(TABLE, &workspace.required_text(GLOSSARY)?));
    Ok(report)
}

/// One sentence for each row of the table of which no form is retired in the glossary.
fn missing(table: &[Retired], glossary: &str) -> Vec<String> {
    let retired = glossary.split_once("\n## Retired words").map_or("", |(_, retired)| retired);
    // names and words in two parts have one form here: `OwnFile`, `stand-in`
    let retired = retired.to_lowercase().replace('-', "");
    let words: HashSet<&str> = retired.split(|c: char| !c.is_alphabetic()).collect();
    let rows = table.iter().filter(|row| !row.forms.iter().any(|form| words.contains(form)));
    rows.filter_map(|row| row.forms.first())
        .map(|word| format!("{GLOSSARY} does not retire `{word}`, which is counted."))
        .collect()
}

fn count(table: &[Retired], texts: &[(String, String)]) -> Report {
    let rows: HashMap<&str, usize> =
        table.iter().enumerate().flat_map(|(row, word)| word.forms.iter().map(move |form| (*form, row))).collect();
    let mut places: Vec<Vec<String>> = table.iter().map(|_| Vec::new()).collect();
    for (file, text) in texts {
        for (line, words) in text.lines().map(words).enumerate() {
            for word in words {
                if let Some(places) = rows.get(&word[..]).and_then(|row| places.get_mut(*row)) {
                    places.push(format!("{file}:{}", line + 1));
                }
            }
        }
    }
    let mut report = Report::default();
    for (word, places) in table.iter().zip(&places) {
        let (name, instead) = (word.forms.first().copied().unwrap_or_default(), word.instead);
        if places.len() > word.left {
            let first = places.iter().take(3).cloned().collect::<Vec<_>>().join(", ");
            report.findings.push(format!(
                "`{name}` occurs {} times, more than {}: write {instead}. See {first} …, and docs/GLOSSARY.md.",
                places.len(),
                word.left
            ));
        } else if places.len() < word.left {
            report.notes.push(format!("`{name}` occurs only {} times: update the table.", places.len()));
        }
    }
    report
}

/// The words of a line in lower case; `OwnFile`, `own_file` and `own file` are two words each.
fn words(line: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut before = ' ';
    for c in line.chars() {
        let begins = !before.is_ascii_alphabetic() || (before.is_ascii_lowercase() && c.is_ascii_uppercase());
        if c.is_ascii_alphabetic() {
            match words.last_mut().filter(|_| !begins) {
                Some(word) => word.push(c.to_ascii_lowercase()),
                None => words.push(c.to_ascii_lowercase().to_string()),
            }
        }
        before = c;
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLANTED: &[Retired] = &[retired(&["desk", "desks"], "ring entry", 0), retired(&["bell"], "wakeup", 2)];

    fn text(text: &str) -> Vec<(String, String)> {
        vec![("a.rs".to_owned(), text.to_owned())]
    }

    #[test]
    fn a_word_that_the_glossary_does_not_retire_is_found() {
        let glossary = "# Glossary\n| desk | \n## Retired words\n| Desks to spare, `Bell` | … |\n";
        assert_eq!(missing(PLANTED, glossary), [""; 0]);
        let found = missing(PLANTED, &glossary.replace("Desks", "Desktops"));
        assert_eq!(found, ["docs/GLOSSARY.md does not retire `desk`, which is counted."]);
        assert_eq!(missing(PLANTED, "").len(), 2);
        let parts = [retired(&["standin"], "spare", 0), retired(&["ownfile"], "system inode", 0)];
        assert_eq!(missing(&parts, "\n## Retired words\n| stand-in | …\n| `OwnFile` |"), [""; 0]);
    }

    #[test]
    fn names_and_sentences_are_taken_apart() {
        assert_eq!(
            words("fn spare_desks(DeskOf, HTTPDesk) // \"no desk\""),
            ["fn", "spare", "desks", "desk", "of", "httpdesk", "no", "desk"]
        );
    }

    #[test]
    fn a_planted_word_is_found() {
        let report = count(PLANTED, &text("let entry = 1;\nstruct SpareDesk;"));
        assert_eq!(report.findings.len(), 1);
        assert!(report.findings[0].contains("a.rs:2") && report.findings[0].contains("ring entry"), "{report:?}");
        assert!(count(PLANTED, &text("the desktop of a bell and a bell")).findings.is_empty());
        assert_eq!(count(PLANTED, &text("bell bell bell")).findings.len(), 1);
    }
}
