//! Checks that links in the documents are valid, and that no file names the machine on which it was written.

use crate::report::Report;
use crate::workspace::Workspace;
use std::path::Path;

/// Folders of the machines that build and test Extant; split, so that this file does not contain them.
const MACHINE_PATHS: [&str; 4] =
    [concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/fa", "rm/"), concat!("/tmp/", "t-")];
/// Hosts of package registries: the choice depends on the machine.
const REGISTRY_HOSTS: [&str; 8] = [
    concat!("crates.io", "/api"),
    concat!("index.", "crates.io"),
    concat!("static.", "crates.io"),
    concat!("deb.", "debian.org"),
    concat!("security.", "debian.org"),
    concat!("pypi", ".org"),
    concat!("registry.", "npmjs.org"),
    concat!("proxy.", "golang.org"),
];

pub(crate) fn check(workspace: &Workspace) -> Result<Report, String> {
    let mut report = Report::default();
    for file in &workspace.files {
        let Some(text) = workspace.text(file)? else { continue };
        let name = file.display();
        for (line, named) in machine_names(&text) {
            report.findings.push(format!("{name}:{line} contains {named}, which is specific to one machine."));
        }
        if file.extension().is_some_and(|e| e == "rs") {
            let found = without_noun(&text).into_iter();
            report
                .findings
                .extend(found.map(|line| format!("{name}:{line}: begin the comment with a noun or a verb.")));
        }
        if file.extension().is_some_and(|e| e == "md") {
            report.findings.extend(broken_links(file, &text, |target| workspace.root.join(target).exists()));
        }
    }
    Ok(report)
}

/// Line numbers of doc comments that begin with a pronoun or a question instead of a noun or a verb.
fn without_noun(text: &str) -> Vec<usize> {
    const PRONOUNS: [&str; 11] =
        ["What ", "Who ", "Whose ", "Whom ", "Why ", "Where ", "When ", "How ", "Which ", "There ", "They "];
    let comment = |line: &str| {
        let line = line.trim_start();
        line.strip_prefix("/// ").or_else(|| line.strip_prefix("//! ")).map(str::to_owned)
    };
    let mut found = Vec::new();
    let mut inside = false;
    for (number, line) in text.lines().enumerate() {
        let said = comment(line);
        if !inside && said.as_ref().is_some_and(|said| PRONOUNS.iter().any(|word| said.starts_with(word))) {
            found.push(number + 1);
        }
        inside = said.is_some() || inside && ["///", "//!"].contains(&line.trim());
    }
    found
}

/// The links of a document without a target.
fn broken_links(file: &Path, text: &str, exists: impl Fn(&Path) -> bool) -> Vec<String> {
    let folder = file.parent().unwrap_or(Path::new(""));
    let broken = relative_links(text).into_iter().filter(|(_, target)| !exists(&folder.join(target)));
    broken.map(|(line, target)| format!("{}:{line} links to {target}, which does not exist.", file.display())).collect()
}

/// Line number and name of each path or host that must not be in the repository.
fn machine_names(text: &str) -> Vec<(usize, &'static str)> {
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        for path in MACHINE_PATHS {
            // only absolute paths count, not the same name within a relative path
            let absolute = |(at, _): (usize, &str)| {
                !line[..at].chars().next_back().is_some_and(|c| c.is_alphanumeric() || "._-*}/".contains(c))
            };
            if line.match_indices(path).any(absolute) {
                found.push((number + 1, path));
            }
        }
        found.extend(REGISTRY_HOSTS.iter().filter(|host| line.contains(**host)).map(|host| (number + 1, *host)));
    }
    found
}

/// Line number and target, without its fragment, of each link in Markdown that is not a URL and not in a code block.
fn relative_links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut in_code = false;
    for (number, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        if in_code {
            continue;
        }
        for (at, opened) in line.match_indices("](") {
            let rest = &line[at + opened.len()..];
            let Some(target) = rest.split([')', ' ']).next() else { continue };
            let path = target.split('#').next().unwrap_or_default();
            if !path.is_empty() && !path.contains(':') {
                found.push((number + 1, path.to_owned()));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_found() {
        let text = "see [a](A.md), [b](docs/b.md#part \"title\") and ![c](c.svg)\n[d](https://example.org/d) [e](#e)\n```\n[f](f.md)\n```\n[g](g.md)";
        let found = relative_links(text);
        let expected = [(1, "A.md"), (1, "docs/b.md"), (1, "c.svg"), (6, "g.md")].map(|(n, t)| (n, t.to_owned()));
        assert_eq!(found, expected);
    }

    #[test]
    fn a_planted_link_is_found() {
        let file = Path::new("docs/design/a.md");
        let broken = broken_links(file, "[b](b.md)\n[c](../c.md#part)", |target| target.ends_with("b.md"));
        assert_eq!(broken, ["docs/design/a.md:2 links to ../c.md, which does not exist."]);
    }

    #[test]
    fn a_planted_pronoun_is_found() {
        let text = "//! The parts.\n//! What follows counts.\n\n    /// What it is.\n    fn a() {}\n/// A part.\n///\n/// What is more.\n";
        assert_eq!(without_noun(text), [4]);
        for text in ["Why it fails.", "Where it is.", "When it ends.", "How it ends.", "Which it is.", "They differ."] {
            assert_eq!(without_noun(&format!("/// {text}\n")), [1], "{text}");
        }
        assert_eq!(without_noun("fn a() {}\n//! There is none.\n"), [2]);
        assert!(without_noun("// What a line\n/// Whatever\n").is_empty());
    }

    #[test]
    fn machine_names_are_found() {
        for path in MACHINE_PATHS {
            assert_eq!(machine_names(&format!("ok\nsee {path}main")), [(2, path)]);
            assert_eq!(machine_names(&format!("\"{path}x\"")), [(1, path)]);
        }
        for host in REGISTRY_HOSTS {
            assert_eq!(machine_names(&format!("https://{host}/x")), [(1, host)]);
        }
    }

    #[test]
    fn other_paths_are_not() {
        assert!(
            machine_names(concat!("volume/ro", "ot/a and target/wo", "rk/x, /home, /usr/share/doc, crates.io"))
                .is_empty()
        );
    }
}
