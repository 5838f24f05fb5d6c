//! Checks the structure of the design chapters and the length of the glossary.

use crate::report::Report;
use crate::workspace::Workspace;
use std::path::Path;

/// The folder of the chapters, and the file in it that is their index.
const CHAPTERS: &str = "docs/design";
const INDEX: &str = "README.md";
/// Maximum number of lines of a chapter.
const LINES: usize = 150;
/// The headings of a chapter, in order; others may stand between. Words may follow: `## Decisions: pages`.
const HEADINGS: [&str; 5] = ["Problem", "Figure", "Terms", "Decisions", "Alternatives rejected"];

const GLOSSARY: &str = "docs/GLOSSARY.md";
/// Maximum number of terms of the glossary.
const TERMS: usize = 60;

pub(crate) fn check(workspace: &Workspace) -> Result<Report, String> {
    let mut findings = too_many_terms(&workspace.required_text(GLOSSARY)?);
    let chapters = || workspace.files.iter().filter(|file| is_chapter(file));
    for file in chapters() {
        let text = workspace.required_text(&file.to_string_lossy())?;
        findings.extend(faults(&text).into_iter().map(|fault| format!("{} {fault}", file.display())));
    }
    if chapters().next().is_none() {
        findings.push(format!("{CHAPTERS} has no chapters."));
    }
    Ok(Report { findings, notes: Vec::new() })
}

fn is_chapter(file: &Path) -> bool {
    file.parent().is_some_and(|folder| folder == Path::new(CHAPTERS))
        && file.extension().is_some_and(|e| e == "md")
        && !file.ends_with(INDEX)
}

/// The ends of the sentences on a chapter that is too long, or lacks a heading or its drawing.
fn faults(text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let lines = text.lines().count();
    if lines > LINES {
        faults.push(format!("has {lines} lines; a chapter has at most {LINES}: split it."));
    }
    let sections: Vec<(&str, &str)> =
        text.split("\n## ").skip(1).map(|section| section.split_once('\n').unwrap_or((section, ""))).collect();
    let mut rest = sections.iter();
    for heading in HEADINGS {
        let named = |title: &str| title == heading || title.strip_prefix(heading).is_some_and(|t| t.starts_with(':'));
        let Some((_, body)) = rest.find(|(title, _)| named(title)) else {
            faults.push(format!("has no heading `## {heading}` where expected: the order is {}.", HEADINGS.join(", ")));
            break;
        };
        if heading == "Figure" && !has_drawing(body) {
            faults.push("has no drawing below `## Figure`: a code block or a picture.".to_owned());
        }
    }
    faults
}

/// Whether a section has a code block of several lines, or a picture.
fn has_drawing(section: &str) -> bool {
    let block = section.split("```").nth(1).is_some_and(|block| block.lines().count() > 2);
    block || section.contains("![")
}

/// A sentence if the glossary has more terms than allowed, or none.
fn too_many_terms(glossary: &str) -> Vec<String> {
    let section = glossary.split("\n## ").find(|section| section.starts_with("Terms\n")).unwrap_or_default();
    let rows = section.lines().filter(|line| line.starts_with('|')).count();
    match rows.saturating_sub(2) {
        0 => vec![format!("{GLOSSARY} has no table of terms where expected.")],
        terms if terms > TERMS => vec![format!("{GLOSSARY} has {terms} terms; at most {TERMS} are allowed.")],
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHAPTER: &str = "# A\n\n## Problem\nx\n\n## Figure: parts\n```\na\nb\n```\n\n## Terms\nx\n
## Decisions\nx\n\n## Trait, files\nx\n\n## Alternatives rejected\nx\n";

    #[test]
    fn a_long_chapter_is_found() {
        let long = |more: usize| format!("{CHAPTER}{}", "x\n".repeat(LINES - CHAPTER.lines().count() + more));
        assert_eq!(faults(&long(0)), [""; 0]);
        assert_eq!(faults(&long(1)), ["has 151 lines; a chapter has at most 150: split it."]);
    }

    #[test]
    fn planted_faults_of_structure_are_found() {
        assert_eq!(faults(CHAPTER), [""; 0]);
        for heading in HEADINGS {
            let found = faults(&CHAPTER.replace(&format!("## {heading}"), "## Other"));
            assert_eq!(found.len(), 1, "{heading}: {found:?}");
            assert!(found[0].contains(heading), "{found:?}");
        }
        assert_eq!(faults(&CHAPTER.replace("## Terms", "## Termsx")).len(), 1);
        let swapped = CHAPTER.replace("Problem", "Other").replace("Terms", "Problem").replace("Other", "Terms");
        assert_eq!(faults(&swapped).len(), 1, "the order");
        assert_eq!(faults("").len(), 1);
    }

    #[test]
    fn a_missing_drawing_is_found() {
        let with = |figure: &str| faults(&CHAPTER.replace("```\na\nb\n```\n", figure));
        assert_eq!(with("![a](a.svg)\n"), [""; 0]);
        for figure in ["See the text.\n", "``` ```\n"] {
            assert_eq!(with(figure), ["has no drawing below `## Figure`: a code block or a picture."], "{figure}");
        }
    }

    #[test]
    fn only_chapters_have_this_structure() {
        assert!(is_chapter(Path::new("docs/design/a.md")));
        for other in ["docs/design/README.md", "docs/a.md", "docs/design/a.svg", "docs/design/b/a.md"] {
            assert!(!is_chapter(Path::new(other)), "{other}");
        }
    }

    #[test]
    fn too_many_planted_terms_are_found() {
        let glossary = |terms: usize| {
            let rows = "| a | b |\n".repeat(terms);
            format!("# Glossary\n\n## Terms\n\n| term | meaning |\n| --- | --- |\n{rows}\n## Retired\n\n| c | d |\n")
        };
        assert_eq!(too_many_terms(&glossary(TERMS)), [""; 0]);
        assert_eq!(too_many_terms(&glossary(TERMS + 1)), ["docs/GLOSSARY.md has 61 terms; at most 60 are allowed."]);
        assert_eq!(too_many_terms(&glossary(0)).len(), 1);
        assert_eq!(too_many_terms("# Glossary\n").len(), 1);
    }
}
