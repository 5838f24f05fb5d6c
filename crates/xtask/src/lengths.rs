//! Limits the length of functions and the number of methods of a type.
//!
//! A function that is one flat match may be longer, since each arm is read separately. Tests do not count.

use crate::report::Report;
use crate::workspace::Workspace;
use std::collections::BTreeMap;
use std::path::Path;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// Maximum number of lines of a function.
const LINES: usize = 80;
/// Maximum number of methods of a type, in all files of its crate.
const METHODS: usize = 60;

/// Known longer functions: crate and name, and number of lines. These only shrink.
const LONG: &[(&str, usize)] = &[];
/// Known larger types: crate and name, and number of methods. These only shrink.
const LARGE: &[(&str, usize)] = &[];

/// The functions and types of one crate.
#[derive(Default)]
struct Found {
    /// Functions by name, with their number of lines; the longest of several with one name.
    functions: BTreeMap<String, usize>,
    /// Types by name, with their number of methods.
    methods: BTreeMap<String, usize>,
    /// The type whose methods are being visited.
    owner: Option<String>,
}

pub(crate) fn check(workspace: &Workspace) -> Result<Report, String> {
    let mut crates: BTreeMap<String, Found> = BTreeMap::new();
    for file in workspace.files.iter().filter(|file| file.extension().is_some_and(|e| e == "rs")) {
        let Some(name) = limited(file) else { continue };
        let Some(text) = workspace.text(file)? else { continue };
        let parsed = syn::parse_file(&text).map_err(|why| format!("{}: {why}", file.display()))?;
        crates.entry(name).or_default().visit_file(&parsed);
    }
    let mut report = Report::default();
    let (mut functions, mut methods) = (BTreeMap::new(), BTreeMap::new());
    for (name, found) in crates {
        functions.extend(found.functions.into_iter().map(|(function, lines)| (format!("{name} {function}"), lines)));
        methods.extend(found.methods.into_iter().map(|(owner, count)| (format!("{name} {owner}"), count)));
    }
    ratchet("lines", LINES, LONG, &functions, &mut report);
    ratchet("methods", METHODS, LARGE, &methods, &mut report);
    Ok(report)
}

/// The crate of a source file to which the limits apply: not of tests and fuzz targets.
fn limited(file: &Path) -> Option<String> {
    let parts: Vec<_> = file.iter().map(|part| part.to_string_lossy()).collect();
    let [first, name, src, inner @ ..] = &parts[..] else { return None };
    let tests = inner.iter().any(|part| part == "tests.rs" || part == "tests");
    (first == "crates" && src == "src" && !tests).then(|| name.to_string())
}

/// Compares counts with the limit and with the known exceptions, which only shrink.
fn ratchet(unit: &str, limit: usize, known: &[(&str, usize)], found: &BTreeMap<String, usize>, report: &mut Report) {
    for (name, count) in found {
        let allowed = known.iter().find(|(known, _)| known == name).map_or(limit, |(_, count)| *count);
        if *count > allowed {
            report.findings.push(format!("{name} has {count} {unit}, more than {allowed}: split it."));
        }
    }
    for (name, allowed) in known {
        let count = found.get(*name).copied().unwrap_or_default();
        if count < *allowed {
            let by = if count <= limit { "remove it from".to_owned() } else { format!("write {count} in") };
            report.notes.push(format!("{name} now has {count} {unit}: {by} the table."));
        }
    }
}

/// Whether a body is one match, or a few lines and one match, with short arms. Its value may be stored or wrapped.
fn is_flat_match(block: &syn::Block) -> bool {
    let matched = block.stmts.iter().find_map(|statement| match statement {
        syn::Stmt::Expr(value, _) => wrapped_match(value),
        syn::Stmt::Local(local) => wrapped_match(&local.init.as_ref()?.expr),
        _ => None,
    });
    let lines = |span: proc_macro2::Span| span.end().line - span.start().line + 1;
    matched.is_some_and(|matched| {
        let beside = lines(block.span()).saturating_sub(lines(matched.span()));
        beside <= 30 && matched.arms.iter().all(|arm| lines(arm.span()) <= 25)
    })
}

/// The match that is a value itself, or the only argument of `Some`, `Ok` or another constructor.
fn wrapped_match(value: &syn::Expr) -> Option<&syn::ExprMatch> {
    match value {
        syn::Expr::Match(matched) => Some(matched),
        syn::Expr::Call(call) if call.args.len() == 1 => wrapped_match(call.args.first()?),
        _ => None,
    }
}

impl Found {
    fn function(&mut self, name: &syn::Ident, from: proc_macro2::Span, block: &syn::Block) {
        let lines = block.brace_token.span.close().end().line - from.start().line + 1;
        if !is_flat_match(block) {
            let name = self.owner.as_ref().map_or(name.to_string(), |owner| format!("{owner}::{name}"));
            let longest = self.functions.entry(name).or_default();
            *longest = lines.max(*longest);
        }
    }
}

fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| attribute.path().is_ident("cfg") || attribute.path().is_ident("test"))
}

impl<'a> Visit<'a> for Found {
    fn visit_item_mod(&mut self, item: &'a syn::ItemMod) {
        if !is_test(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'a syn::ItemFn) {
        if !is_test(&item.attrs) {
            self.function(&item.sig.ident, item.sig.fn_token.span, &item.block);
            visit::visit_item_fn(self, item);
        }
    }

    fn visit_item_impl(&mut self, item: &'a syn::ItemImpl) {
        if is_test(&item.attrs) {
            return;
        }
        let owner = match &*item.self_ty {
            syn::Type::Path(path) => path.path.segments.last().map(|segment| segment.ident.to_string()),
            _ => None,
        };
        let methods = item.items.iter().filter(|item| matches!(item, syn::ImplItem::Fn(_))).count();
        if let Some(owner) = owner.clone().filter(|_| item.trait_.is_none()) {
            *self.methods.entry(owner).or_default() += methods;
        }
        let before = std::mem::replace(&mut self.owner, owner);
        visit::visit_item_impl(self, item);
        self.owner = before;
    }

    fn visit_impl_item_fn(&mut self, item: &'a syn::ImplItemFn) {
        if !is_test(&item.attrs) {
            self.function(&item.sig.ident, item.sig.fn_token.span, &item.block);
            visit::visit_impl_item_fn(self, item);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Found {
        let mut found = Found::default();
        found.visit_file(&syn::parse_file(text).expect("Rust"));
        found
    }

    fn findings(unit: &str, limit: usize, known: &[(&str, usize)], found: &BTreeMap<String, usize>) -> (usize, usize) {
        let mut report = Report::default();
        ratchet(unit, limit, known, found, &mut report);
        (report.findings.len(), report.notes.len())
    }

    #[test]
    fn a_planted_long_function_is_found() {
        let body = "    let _ = 1;\n".repeat(LINES);
        let text = format!("struct A;\nimpl A {{\n    fn long(&self) {{\n{body}    }}\n}}\nfn short() {{}}\n");
        let long = found(&text).functions;
        assert_eq!((long["A::long"], long["short"]), (LINES + 2, 1));
        assert_eq!(findings("lines", LINES, &[], &long), (1, 0));
        assert_eq!(findings("lines", LINES, &[("A::long", LINES + 2)], &long), (0, 0));
        assert_eq!(findings("lines", LINES, &[("A::long", LINES + 1)], &long), (1, 0));
        assert_eq!(findings("lines", LINES, &[("A::long", 200)], &long), (0, 1), "it only shrinks");
        assert!(found(&format!("#[cfg(test)]\nmod tests {{ fn long() {{\n{body}}} }}")).functions.is_empty());
    }

    #[test]
    fn a_flat_match_may_be_long() {
        let arms = "        1 => {}\n".repeat(LINES);
        assert!(found(&format!("fn f(n: u8) {{\n    match n {{\n{arms}    }}\n}}")).functions.is_empty());
        for (before, after) in [("let a = ", ";\n    Ok(a)"), ("Some(", ")"), ("let a = Some(", ");\n    a")] {
            let text = format!("fn f(n: u8) {{\n    {before}match n {{\n{arms}    }}{after}\n}}");
            assert!(found(&text).functions.is_empty(), "{before}");
        }
        let two = format!("fn f(n: u8) {{\n    g(match n {{\n{arms}    }}, 1)\n}}");
        assert_eq!(found(&two).functions.len(), 1, "more than the match");
        let deep = format!("        1 => {{\n{}        }}\n", "            let _ = 1;\n".repeat(LINES));
        assert_eq!(found(&format!("fn f(n: u8) {{\n    match n {{\n{deep}    }}\n}}")).functions.len(), 1);
    }

    #[test]
    fn tests_and_fuzz_targets_are_not_limited() {
        let of = |file: &str| limited(Path::new(file));
        assert_eq!(of("crates/fs/src/a/b.rs").as_deref(), Some("fs"));
        for file in ["crates/fs/src/a/tests.rs", "crates/fs/src/tests/a.rs", "crates/fs/tests/a.rs", "fuzz/src/a.rs"] {
            assert_eq!(of(file), None, "{file}");
        }
    }

    #[test]
    fn planted_methods_are_counted_over_all_files() {
        let some = |from: usize| (from..from + 40).map(|n| format!("fn f{n}(&self) {{}}")).collect::<String>();
        let text =
            format!("impl A {{ {} }} impl A {{ {} }} impl Clone for A {{ fn clone(&self) {{}} }}", some(0), some(40));
        let methods = found(&text).methods;
        assert_eq!(methods["A"], 80);
        assert_eq!(findings("methods", METHODS, &[], &methods), (1, 0));
    }
}
