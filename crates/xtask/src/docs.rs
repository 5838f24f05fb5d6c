//! Links in the documents lead somewhere, and no file speaks of the machine it was written on.

use crate::report::Report;
use crate::workspace::Workspace;
use std::path::Path;

/// Folders of the machines that build and test Extant; written in pieces, so that this file does not name them.
const MACHINE_PATHS: [&str; 4] =
    [concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/fa", "rm/"), concat!("/tmp/", "t-")];
/// Hosts of package registries: which of them a machine uses is its own affair.
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
            report.findings.push(format!("{name}:{line} names {named}, which is of one machine only."));
        }
        if file.extension().is_some_and(|e| e == "md") {
            let folder = file.parent().unwrap_or(Path::new(""));
            for (line, target) in relative_links(&text) {
                if !workspace.root.join(folder).join(&target).exists() {
                    report.findings.push(format!("{name}:{line} links to {target}, which does not exist."));
                }
            }
        }
    }
    Ok(report)
}

/// Line number and name of each path or host that does not belong in the repository.
fn machine_names(text: &str) -> Vec<(usize, &'static str)> {
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        for path in MACHINE_PATHS {
            // a name in the middle of a relative path is none of the machine's; only an absolute path is meant
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

/// Line number and target, without its fragment, of each link in Markdown that is no address and not inside a code
/// block.
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
