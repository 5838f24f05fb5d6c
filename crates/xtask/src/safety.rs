//! Unsafe code is confined to two files, one for each use of io_uring, and the root of every crate declares this.

use crate::report::Report;
use crate::workspace::Workspace;
use std::path::Path;

/// The only files that may contain unsafe code.
const EXCEPTIONS: [&str; 2] = ["crates/blockdev/src/uring.rs", "crates/fuse-wire/src/transport/uring.rs"];
/// The only crates whose roots have `deny` instead of `forbid`, which the files above could not override.
const DENY: [&str; 2] = ["extant-blockdev", "extant-fuse-wire"];

pub(crate) fn check(workspace: &Workspace) -> Result<Report, String> {
    let mut report = Report::default();
    for package in &workspace.packages {
        for root in &package.roots {
            let file = root.strip_prefix(&workspace.root).unwrap_or(root);
            let text = workspace.text(file)?.unwrap_or_default();
            report.findings.extend(missing_attribute(&package.name, file, &text));
        }
    }
    for file in workspace.files.iter().filter(|file| file.extension().is_some_and(|e| e == "rs")) {
        let text = workspace.text(file)?.unwrap_or_default();
        report.findings.extend(refused(file, &text));
    }
    Ok(report)
}

/// One sentence for each line with unsafe code in a file that may have none.
fn refused(file: &Path, text: &str) -> Vec<String> {
    if EXCEPTIONS.iter().any(|exception| file == Path::new(exception)) {
        return Vec::new();
    }
    let only = EXCEPTIONS.join(" and ");
    unsafe_lines(text).map(|line| format!("{}:{line} contains unsafe code; only {only} may.", file.display())).collect()
}

/// A finding if the root of a crate does not refuse unsafe code as required.
fn missing_attribute(package: &str, file: &Path, text: &str) -> Option<String> {
    let denies = DENY.contains(&package) && file.ends_with("src/lib.rs");
    let attribute = if denies { "#![deny(unsafe_code)]" } else { "#![forbid(unsafe_code)]" };
    let says = text.lines().any(|line| line.trim() == attribute);
    (!says).then(|| format!("{} has no {attribute}.", file.display()))
}

/// The numbers of the lines with the word `unsafe` in code; not `unsafe_code`, comments and strings.
fn unsafe_lines(text: &str) -> impl Iterator<Item = usize> {
    let code = code_only(text);
    let mut found = Vec::new();
    for (number, line) in code.lines().enumerate() {
        if line.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == "unsafe") {
            found.push(number + 1);
        }
    }
    found.into_iter()
}

/// The text with comments, strings and character literals replaced by spaces; lines are preserved.
fn code_only(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut code = String::with_capacity(text.len());
    let mut at = 0;
    while at < bytes.len() {
        let end = match bytes[at] {
            b'/' if text[at..].starts_with("//") => at + text[at..].find('\n').unwrap_or(text.len() - at),
            b'/' if text[at..].starts_with("/*") => block_comment_end(text, at),
            b'r' if !at.checked_sub(1).is_some_and(|before| is_word(bytes[before])) => {
                raw_string_end(text, at).unwrap_or(at)
            }
            b'"' => quoted_end(bytes, at, b'"'),
            b'\'' => character_end(text, at),
            _ => at,
        };
        if end == at {
            let character = text[at..].chars().next().unwrap_or(' ');
            code.push(character);
            at += character.len_utf8();
        } else {
            code.extend(text[at..end].chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
            at = end;
        }
    }
    code
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

fn block_comment_end(text: &str, start: usize) -> usize {
    let (mut depth, mut at) = (0usize, start);
    loop {
        let rest = &text[at..];
        match (rest.find("/*"), rest.find("*/")) {
            (Some(open), Some(close)) if open < close => {
                depth += 1;
                at += open + 2;
            }
            (_, Some(close)) => {
                depth -= 1;
                at += close + 2;
                if depth == 0 {
                    return at;
                }
            }
            _ => return text.len(),
        }
    }
}

/// The end of the raw string that starts with the `r` at `start`; `None` if there is none.
fn raw_string_end(text: &str, start: usize) -> Option<usize> {
    let rest = &text[start + 1..];
    let hashes = rest.bytes().take_while(|&b| b == b'#').count();
    let body = rest[hashes..].strip_prefix('"')?;
    let close = format!("\"{}", "#".repeat(hashes));
    let opened = start + 1 + hashes + 1;
    Some(body.find(&close).map_or(text.len(), |found| opened + found + close.len()))
}

fn quoted_end(bytes: &[u8], start: usize, quote: u8) -> usize {
    let mut at = start + 1;
    while at < bytes.len() && bytes[at] != quote {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(bytes.len())
}

/// The end of the character literal at `start`; `start` itself for a lifetime.
fn character_end(text: &str, start: usize) -> usize {
    let mut rest = text[start + 1..].chars();
    match (rest.next(), rest.next()) {
        (Some('\\'), _) => quoted_end(text.as_bytes(), start, b'\''),
        (Some(character), Some('\'')) => start + 1 + character.len_utf8() + 1,
        _ => start,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<usize> {
        unsafe_lines(text).collect()
    }

    #[test]
    fn a_root_that_allows_unsafe_code_is_found() {
        let root = |package, file, text| missing_attribute(package, Path::new(file), text).is_some();
        let (forbid, deny) = ("//! A\n#![forbid(unsafe_code)]\n", "#![deny(unsafe_code)]\n");
        assert!(!root("extant-fs", "crates/fs/src/lib.rs", forbid) && root("extant-fs", "crates/fs/src/lib.rs", deny));
        assert!(root("extant-fs", "crates/fs/src/lib.rs", "// #![forbid(unsafe_code)]\n"));
        assert!(!root("extant-blockdev", "crates/blockdev/src/lib.rs", deny));
        assert!(root("extant-blockdev", "crates/blockdev/tests/file.rs", deny));
    }

    #[test]
    fn only_the_exceptions_may_contain_unsafe_code() {
        let count = |file| refused(Path::new(file), "fn a() {}\nunsafe {}\n").len();
        assert_eq!(EXCEPTIONS.map(count), [0, 0]);
        let others = ["crates/blockdev/src/uring/ring.rs", "crates/fuse/src/uring.rs", "crates/fuse-wire/src/uring.rs"];
        assert_eq!(others.map(count), [1; 3]);
        let found = refused(Path::new("crates/fs/src/lib.rs"), "\nunsafe {}");
        assert!(found[0].starts_with("crates/fs/src/lib.rs:2 contains unsafe code"), "{found:?}");
    }

    #[test]
    fn code_is_found() {
        assert_eq!(lines("fn a() {\n    unsafe { b() }\n}\n"), [2]);
        assert_eq!(lines("unsafe impl Send for A {}"), [1]);
        assert_eq!(lines("#[unsafe(no_mangle)]"), [1]);
        assert_eq!(lines("let s = \"x\"; /* y */ unsafe {} // z"), [1]);
        assert_eq!(lines("let c = '\"'; let d = '\\''; fn f<'a>() {}\nunsafe {}\nlet e = '\"';"), [2]);
        assert_eq!(lines("let s = \"a\\\"b\"; unsafe {}"), [1]);
        assert_eq!(lines("/* a /* b */ c */ unsafe {}"), [1]);
        assert_eq!(lines("let r = r#\"a\" b\"#;\nunsafe {}"), [2]);
    }

    #[test]
    fn words_in_comments_strings_and_names_are_not() {
        for text in [
            "// unsafe",
            "/* unsafe\nunsafe */",
            "/* a /* b */ unsafe */",
            "let s = \"unsafe\";",
            "let s = \"a\\\" unsafe\";",
            "let s = r#\"a\" unsafe\"#;",
            "#![forbid(unsafe_code)]",
            "let ä = 'ü'; // unsafe",
        ] {
            assert_eq!(lines(text), [0usize; 0], "{text}");
        }
    }
}
