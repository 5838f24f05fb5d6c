//! Limits circular dependencies between files of one crate, since such files can only be understood together.
//!
//! A dependency is a `use` of another file's items, or a path in the code. A name that a module only re-exports counts
//! for the file that defines it. Tests do not count.

use crate::report::Report;
use crate::workspace::Workspace;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use syn::visit::{self, Visit};

/// Maximum number of files that may use each other in a circle.
const LIMIT: usize = 3;

/// A module path inside a crate; empty for the root.
type Module = Vec<String>;

/// The references of a file to other modules.
#[derive(Default)]
struct File {
    /// Imports by name: the path, and whether the name is only re-exported.
    uses: HashMap<String, (Vec<String>, bool)>,
    /// Modules imported with a glob.
    globs: Vec<Vec<String>>,
    /// Paths in the code.
    paths: BTreeSet<Vec<String>>,
}

pub(crate) fn check(workspace: &Workspace) -> Result<Report, String> {
    let mut report = Report::default();
    let mut crates: BTreeMap<String, Vec<(Module, String)>> = BTreeMap::new();
    for file in &workspace.files {
        let mut parts = file.iter().map(|part| part.to_string_lossy().into_owned());
        if parts.next().as_deref() != Some("crates") || file.extension().is_none_or(|e| e != "rs") {
            continue;
        }
        let (Some(name), Some(src)) = (parts.next(), parts.next()) else { continue };
        if src != "src" {
            continue;
        }
        let Some(text) = workspace.text(file)? else { continue };
        crates.entry(name).or_default().push((module(&parts.collect::<Vec<_>>()), text));
    }
    for (name, files) in crates {
        let circles = circles(&files).map_err(|(module, why)| format!("{name}, {}: {why}", shown(&module)))?;
        report.findings.extend(too_large(&name, &circles));
    }
    Ok(report)
}

/// One sentence for each circle of a crate with more files than allowed.
fn too_large(name: &str, circles: &[Vec<Module>]) -> Vec<String> {
    let large = circles.iter().filter(|circle| circle.len() > LIMIT);
    large
        .map(|circle| {
            let (count, files) = (circle.len(), circle.iter().map(shown).collect::<Vec<_>>().join(", "));
            let what = "use each other in a circle";
            format!("{count} files of crates/{name} {what}: {files}; no more than {LIMIT} may.")
        })
        .collect()
}

/// The module of a file below `src`.
fn module(parts: &[String]) -> Module {
    let stem = |part: &String| Path::new(part).with_extension("").to_string_lossy().into_owned();
    let mut module: Module = parts.iter().map(stem).collect();
    if module.len() == 1 && matches!(module[0].as_str(), "lib" | "main") {
        module.clear();
    }
    // a folder's own file
    module.pop_if(|last| last == "mod");
    module
}

fn shown(module: &Module) -> String {
    if module.is_empty() { "the root".into() } else { module.join("::") }
}

/// The circles of more than one file, largest first.
fn circles(files: &[(Module, String)]) -> Result<Vec<Vec<Module>>, (Module, syn::Error)> {
    let mut all = BTreeMap::new();
    for (module, text) in files {
        let parsed = syn::parse_file(text).map_err(|why| (module.clone(), why))?;
        let mut file = File::default();
        file.visit_file(&parsed);
        all.insert(module.clone(), file);
    }
    let edges: BTreeMap<&Module, BTreeSet<Module>> =
        all.iter().map(|(module, file)| (module, targets(&all, module, file))).collect();
    let mut circles: Vec<Vec<Module>> = Vec::new();
    for module in all.keys() {
        if circles.iter().any(|circle| circle.contains(module)) {
            continue;
        }
        let forth = reached(&edges, module);
        let circle: Vec<Module> = all
            .keys()
            .filter(|other| forth.contains(*other) && reached(&edges, other).contains(module))
            .cloned()
            .collect();
        if circle.len() > 1 {
            circles.push(circle);
        }
    }
    circles.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
    Ok(circles)
}

/// All modules that a module uses, directly or indirectly.
fn reached(edges: &BTreeMap<&Module, BTreeSet<Module>>, from: &Module) -> BTreeSet<Module> {
    let (mut seen, mut next) = (BTreeSet::new(), vec![from.clone()]);
    while let Some(module) = next.pop() {
        for target in edges.get(&module).into_iter().flatten() {
            if seen.insert(target.clone()) {
                next.push(target.clone());
            }
        }
    }
    seen
}

/// The modules that a file uses directly.
fn targets(all: &BTreeMap<Module, File>, module: &Module, file: &File) -> BTreeSet<Module> {
    let imported = file.uses.values().filter(|(_, only_named)| !only_named).map(|(path, _)| path);
    (imported.chain(&file.globs).chain(&file.paths))
        .filter_map(|path| resolve(all, module, path, 0))
        .filter(|target| target != module)
        .collect()
}

/// The module that defines the target of a path inside `module`; `None` for other crates and local names.
fn resolve(all: &BTreeMap<Module, File>, module: &Module, path: &[String], depth: u8) -> Option<Module> {
    let (first, mut rest) = path.split_first()?;
    let mut at = match first.as_str() {
        "crate" => Vec::new(),
        "self" => module.clone(),
        "super" => parent(module)?,
        // a child module, or an import
        _ => {
            rest = path;
            let known = all.contains_key(&child(module, first)) || all.get(module)?.uses.contains_key(first);
            known.then(|| module.clone())?
        }
    };
    while let Some((name, more)) = rest.split_first() {
        if name == "super" {
            at = parent(&at)?;
        } else if all.contains_key(&child(&at, name)) {
            at = child(&at, name);
        } else {
            let file = all.get(&at)?;
            // imports from elsewhere are followed, so that they count where they are defined
            let Some((path, _)) = file.uses.get(name).filter(|_| depth < 8) else { break };
            let whole: Vec<String> = path.iter().chain(more).cloned().collect();
            return resolve(all, &at, &whole, depth + 1);
        }
        rest = more;
    }
    Some(at)
}

fn parent(module: &Module) -> Option<Module> {
    module.split_last().map(|(_, above)| above.to_vec())
}

fn child(module: &Module, name: &str) -> Module {
    module.iter().cloned().chain([name.to_owned()]).collect()
}

impl File {
    fn import(&mut self, tree: &syn::UseTree, before: &[String], only_named: bool) {
        let with = |name: &syn::Ident| before.iter().cloned().chain([name.to_string()]).collect::<Vec<_>>();
        match tree {
            syn::UseTree::Path(path) => self.import(&path.tree, &with(&path.ident), only_named),
            syn::UseTree::Name(name) if name.ident == "self" => {
                if let Some(last) = before.last() {
                    self.uses.insert(last.clone(), (before.to_vec(), only_named));
                }
            }
            syn::UseTree::Name(name) => {
                self.uses.insert(name.ident.to_string(), (with(&name.ident), only_named));
            }
            syn::UseTree::Rename(rename) => {
                self.uses.insert(rename.rename.to_string(), (with(&rename.ident), only_named));
            }
            syn::UseTree::Glob(_) => self.globs.push(before.to_vec()),
            syn::UseTree::Group(group) => group.items.iter().for_each(|tree| self.import(tree, before, only_named)),
        }
    }
}

impl<'a> Visit<'a> for File {
    fn visit_item_use(&mut self, item: &'a syn::ItemUse) {
        self.import(&item.tree, &[], !matches!(item.vis, syn::Visibility::Inherited));
    }

    fn visit_path(&mut self, path: &'a syn::Path) {
        self.paths.insert(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        visit::visit_path(self, path);
    }

    fn visit_item_mod(&mut self, item: &'a syn::ItemMod) {
        if !item.attrs.iter().any(|attribute| attribute.path().is_ident("cfg")) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_visibility(&mut self, _: &'a syn::Visibility) {
        // `pub(super)` is not a use
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        let file = |(name, text): &(&str, &str)| {
            (module(&name.split('/').map(str::to_owned).collect::<Vec<_>>()), (*text).to_owned())
        };
        let files: Vec<_> = files.iter().map(file).collect();
        let circles = circles(&files).unwrap_or_else(|(_, why)| panic!("{why}"));
        circles.iter().map(|circle| circle.iter().map(shown).collect()).collect()
    }

    #[test]
    fn a_planted_circle_is_found() {
        let files = [
            ("lib.rs", "mod a; mod b; mod c; mod d; pub use a::A;"),
            ("a.rs", "use crate::b; pub struct A; fn f() { b::g() }"),
            ("b.rs", "use super::c::C; pub fn g() {}"),
            ("c.rs", "pub struct C; fn f(_: crate::d::D) {}"),
            ("d.rs", "pub struct D(crate::A);"),
        ];
        assert_eq!(found(&files), [["a", "b", "c", "d"]]);
    }

    #[test]
    fn a_circle_of_more_than_three_files_is_refused() {
        let circle = |files: &[&str]| vec![files.iter().map(|file| vec![(*file).to_owned()]).collect::<Vec<_>>()];
        assert!(too_large("fs", &circle(&["a", "b", "c"])).is_empty());
        let refused = too_large("fs", &circle(&["a", "b", "c", "d"]));
        assert_eq!(refused, ["4 files of crates/fs use each other in a circle: a, b, c, d; no more than 3 may."]);
    }

    #[test]
    fn a_parent_that_names_its_children_uses_them_only_where_it_says_so() {
        let child = ("map/edit.rs", "use super::Map; pub fn edit(m: &Map) {}");
        assert!(found(&[("map.rs", "mod edit; pub use edit::edit; pub struct Map;"), child]).is_empty());
        let using = ("map.rs", "mod edit; pub struct Map; fn f(m: &Map) { edit::edit(m) }");
        assert_eq!(found(&[using, child]), [["map", "map::edit"]]);
    }

    #[test]
    fn a_folder_with_a_file_of_its_own_is_a_module() {
        for (child, circle) in [("use super::Map; pub fn edit(m: &Map) {}", true), ("pub fn edit() {}", false)] {
            let own = ("map/mod.rs", "mod edit; pub struct Map; fn f() { edit::edit() }");
            assert_eq!(!found(&[own, ("map/edit.rs", child)]).is_empty(), circle);
        }
    }

    #[test]
    fn tests_and_other_crates_do_not_count() {
        let files = [
            ("a.rs", "use std::b; use b::x; #[cfg(test)] mod tests { use crate::b::B; }"),
            ("b.rs", "use crate::a::A; pub struct B;"),
        ];
        assert!(found(&files).is_empty());
    }
}
