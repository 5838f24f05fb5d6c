//! Limits the places in the code that depend on the name of a format or mode.
//!
//! A difference between formats or modes is a property that one of the tables states. Elsewhere the property is read.

use crate::report::Report;
use crate::statements;
use crate::workspace::Workspace;
use std::collections::BTreeMap;
use std::path::Path;
use syn::visit::{self, Visit};

/// The files that may name formats and modes: they state their properties, or choose the code for them.
const TABLES: &[&str] = &[
    "crates/check/src/capabilities.rs",
    "crates/check/src/volume_format.rs",
    "crates/crash/src/guarantee.rs",
    "crates/fs/src/engine.rs",
    "crates/fs/src/layout.rs",
    "crates/fs/src/mkfs/options.rs",
    "crates/fs/src/mkfs/physical_layer.rs",
    "crates/fs/src/mode.rs",
];

/// Other files with the number of their uses, which only shrinks. Some are of other things with the same name: a kind of
/// block, the signature of native volumes.
const USES: &[(&str, usize)] = &[
    ("crates/bench/src/kero/stage.rs", 4),
    ("crates/bench/src/linked.rs", 2),
    ("crates/bench/src/maps/disk.rs", 2),
    ("crates/bench/src/paper.rs", 6),
    ("crates/check/src/checker.rs", 3),
    ("crates/check/src/repair.rs", 1),
    ("crates/cli/src/age.rs", 1),
    ("crates/cli/src/crash.rs", 1),
    ("crates/cli/src/mkfs.rs", 1),
    ("crates/damage/src/mutate.rs", 1),
    ("crates/fs/src/alloc/record/space_maps.rs", 1),
    ("crates/fs/src/alloc/record/space_maps/close.rs", 2),
    ("crates/fs/src/mkfs/files/linked_list.rs", 1),
    ("crates/fs/src/mkfs/probe.rs", 3),
    ("crates/fs/src/mkfs/write.rs", 1),
    ("crates/fs/src/native.rs", 1),
    ("crates/store/src/engine/linked/describe.rs", 1),
    ("crates/store/src/engine/map_writer.rs", 1),
];

/// Names of functions and constants that distinguish the native format from the others.
const NAMES: [&str; 2] = ["is_native", "NATIVE"];

/// The uses in one file.
struct Uses<'a> {
    /// The types with the names of their values.
    types: &'a [(&'a str, Vec<&'a str>)],
    count: usize,
}

pub(crate) fn check(workspace: &Workspace) -> Result<Report, String> {
    let modes = workspace.required_text(statements::MODES)?;
    let formats = workspace.required_text(statements::FORMATS)?;
    let types = [("Consistency", values(&modes, "Consistency")), ("Kind", values(&formats, "Kind"))];
    let mut found = BTreeMap::new();
    for file in workspace.files.iter().filter(|file| is_limited(file)) {
        let Some(text) = workspace.text(file)? else { continue };
        let count = uses(&text, &types).map_err(|why| format!("{}: {why}", file.display()))?;
        found.insert(file.to_string_lossy().into_owned(), count);
    }
    let mut report = compared(USES, &found);
    if let Some((name, _)) = types.iter().find(|(_, values)| values.is_empty()) {
        report.findings.push(format!("no values of {name} where expected: nothing was counted."));
    }
    Ok(report)
}

fn values<'a>(text: &'a str, of: &str) -> Vec<&'a str> {
    statements::values(text, of).into_iter().map(|(value, _)| value).collect()
}

/// Whether a file is code of a crate, not a test or a table.
fn is_limited(file: &Path) -> bool {
    let parts: Vec<_> = file.iter().map(|part| part.to_string_lossy()).collect();
    let [first, name, src, inner @ ..] = &parts[..] else { return false };
    let tests = inner.iter().any(|part| part == "tests.rs" || part == "tests");
    file.extension().is_some_and(|e| e == "rs")
        && (first == "crates" && src == "src" && !tests && name != "xtask")
        && !TABLES.iter().any(|table| file == Path::new(table))
}

/// Compares the uses with the table.
fn compared(known: &[(&str, usize)], found: &BTreeMap<String, usize>) -> Report {
    let mut report = Report::default();
    for (file, count) in found {
        let allowed = known.iter().find(|(known, _)| known == file).map_or(0, |(_, count)| *count);
        if *count > allowed {
            let instead = "read a property from a table (crates/xtask/src/formats.rs lists them) instead";
            report
                .findings
                .push(format!("{file} depends on formats or modes in {count} places, more than {allowed}: {instead}."));
        }
    }
    for (file, allowed) in known {
        let count = found.get(*file).copied().unwrap_or_default();
        if count < *allowed {
            report.notes.push(format!("{file} depends on formats or modes in only {count} places: update the table."));
        }
    }
    report
}

/// The number of uses in the code of a file, without its tests.
fn uses(text: &str, types: &[(&str, Vec<&str>)]) -> syn::Result<usize> {
    let mut uses = Uses { types, count: 0 };
    uses.visit_file(&syn::parse_file(text)?);
    Ok(uses.count)
}

impl Uses<'_> {
    /// Counts the end of a path, `Type::Value` or `name`.
    fn count_path(&mut self, before: Option<&str>, last: &str) {
        let is_value = |(name, values): &(&str, Vec<&str>)| before == Some(*name) && values.contains(&last);
        if NAMES.contains(&last) || self.types.iter().any(is_value) {
            self.count += 1;
        }
    }

    /// Counts in the arguments of a macro, whose syntax is not known.
    fn count_tokens(&mut self, tokens: proc_macro2::TokenStream) {
        let (mut before, mut colons): (Option<String>, usize) = (None, 0);
        for token in tokens {
            match token {
                proc_macro2::TokenTree::Ident(name) => {
                    let name = name.to_string();
                    self.count_path(before.as_deref().filter(|_| colons == 2), &name);
                    (before, colons) = (Some(name), 0);
                }
                proc_macro2::TokenTree::Punct(mark) if mark.as_char() == ':' => colons += 1,
                proc_macro2::TokenTree::Group(group) => {
                    self.count_tokens(group.stream());
                    before = None;
                }
                _ => before = None,
            }
        }
    }
}

fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| attribute.path().is_ident("cfg") || attribute.path().is_ident("test"))
}

impl<'a> Visit<'a> for Uses<'_> {
    fn visit_item_mod(&mut self, item: &'a syn::ItemMod) {
        if !is_test(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'a syn::ItemFn) {
        if !is_test(&item.attrs) {
            visit::visit_item_fn(self, item);
        }
    }

    fn visit_path(&mut self, path: &'a syn::Path) {
        let mut names = path.segments.iter().rev().map(|segment| segment.ident.to_string());
        if let Some(last) = names.next() {
            self.count_path(names.next().as_deref(), &last);
        }
        visit::visit_path(self, path);
    }

    fn visit_expr_method_call(&mut self, call: &'a syn::ExprMethodCall) {
        self.count_path(None, &call.method.to_string());
        visit::visit_expr_method_call(self, call);
    }

    fn visit_macro(&mut self, item: &'a syn::Macro) {
        self.count_tokens(item.tokens.clone());
        visit::visit_macro(self, item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(text: &str) -> usize {
        let types = [("Consistency", vec!["None", "Journal"]), ("Kind", vec!["Ext2", "Extant"])];
        uses(text, &types).expect("Rust")
    }

    #[test]
    fn planted_uses_are_found() {
        for (text, expected) in [
            ("fn f(k: Kind) -> bool { k == Kind::Ext2 }", 1),
            ("fn f(k: Kind) -> u8 { match k { mkfs::Kind::Ext2 | Kind::Extant => 1, _ => 2 } }", 2),
            ("fn f(k: Kind) -> bool { matches!(k, Kind::Ext2 | mkfs::Kind::Extant) }", 2),
            ("fn f(m: Mode) -> bool { assert!(g(m.consistency != fs::Consistency::Journal)); true }", 1),
            ("const A: Consistency = Consistency::None;", 1),
            ("fn f(d: &D) -> bool { check::is_native(d) || d.is_native() || d.format == format::NATIVE }", 3),
        ] {
            assert_eq!(count(text), expected, "{text}");
        }
    }

    #[test]
    fn other_names_and_tests_are_not() {
        for text in [
            "use fs::mkfs::Kind; fn f() -> usize { Kind::ALL.len() + Consistency::ALL.len() }",
            "fn f(k: damage::Kind) -> bool { k == Kind::Inode && assert!(k == Kind::Other) }",
            "fn f() { let a: Option<u8> = None; g(Other::Ext2); h!(a, Other::Ext2); }",
            "/// Kind::Ext2 \nfn f() { g(\"Kind::Ext2, is_native, NATIVE\"); }",
            "#[cfg(test)]\nmod tests { fn f(k: Kind) -> bool { k == Kind::Ext2 } }",
            "#[test]\nfn f() { g(Kind::Ext2); }",
        ] {
            assert_eq!(count(text), 0, "{text}");
        }
    }

    #[test]
    fn uses_beyond_the_table_are_refused() {
        let found = |count| BTreeMap::from([("a.rs".to_owned(), count), ("b.rs".to_owned(), 0)]);
        let compare = |known: &[(&str, usize)], count| {
            let report = compared(known, &found(count));
            (report.findings.len(), report.notes.len())
        };
        assert_eq!(compare(&[], 0), (0, 0));
        assert_eq!(compare(&[], 1), (1, 0));
        assert_eq!(compare(&[("a.rs", 2)], 2), (0, 0));
        assert_eq!(compare(&[("a.rs", 2)], 3), (1, 0));
        assert_eq!(compare(&[("a.rs", 2)], 1), (0, 1), "fewer, as after another change, do not fail");
        assert_eq!(compare(&[("gone.rs", 2)], 0), (0, 1));
    }

    #[test]
    fn tables_and_tests_are_not_limited() {
        let of = |file: &str| is_limited(Path::new(file));
        assert!(of("crates/fs/src/mkfs/plan.rs") && of("crates/cli/src/mkfs.rs"));
        for file in ["crates/fs/src/tests/a.rs", "crates/fs/tests/a.rs", "fuzz/src/a.rs", "crates/fs/src/a.md"] {
            assert!(!of(file), "{file}");
        }
        assert!(TABLES.iter().all(|table| !of(table)));
    }
}
