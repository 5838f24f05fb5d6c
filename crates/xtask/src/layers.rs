//! The allowed dependencies between crates. Cargo rejects cycles; this table rejects other wrong dependencies.
//!
//! A new crate needs a row here before its first dependency. ARCHITECTURE.md explains which crates must not depend on
//! each other.

use crate::report::Report;
use crate::workspace::{Kind, Package, Workspace};

/// A crate of the workspace, existing or planned.
struct Layer {
    name: &'static str,
    /// Dependencies point to lower numbers only.
    level: u8,
    /// The crates that it may depend on.
    may_use: &'static [&'static str],
}

const fn layer(name: &'static str, level: u8, may_use: &'static [&'static str]) -> Layer {
    Layer { name, level, may_use }
}

const CLI: &str = "extant";
const TESTKIT: &str = "extant-testkit";
const SIMDEV: &str = "extant-simdev";
/// The crates that the tests of every crate may use, even those of lower layers.
const INSTRUMENTS: [&str; 2] = [TESTKIT, SIMDEV];

/// The crates, including planned ones.
const TABLE: &[Layer] = &[
    layer("extant-blockdev", 0, &[]),
    layer("extant-format", 0, &[]),
    // devices that measure, record and fail: used by tests, and by crates that measure and explore
    layer(SIMDEV, 1, &["extant-blockdev"]),
    layer("extant-space", 1, &["extant-format"]),
    // it writes what the format calls wrong; if it used the checker, it would write only what that detects
    layer("extant-damage", 1, &["extant-blockdev", "extant-format"]),
    // a device over a device, independent of ext formats
    layer("extant-kero", 1, &["extant-blockdev"]),
    // FUSE for any file system, independent of volumes
    layer("extant-fuse-wire", 1, &[]),
    layer("extant-store", 2, &["extant-blockdev", "extant-format", "extant-space"]),
    layer("extant-fs", 3, &["extant-blockdev", "extant-format", "extant-space", "extant-store"]),
    // a checker that shares the file system's code shares its mistakes: neither fs nor store
    layer("extant-check", 3, &["extant-blockdev", "extant-format"]),
    layer("extant-fuse", 4, &["extant-fuse-wire", "extant-format", "extant-fs"]),
    layer("extant-serve", 4, &["extant-blockdev", "extant-fuse-wire"]),
    layer(
        "extant-bench",
        5,
        &[
            "extant-blockdev",
            "extant-format",
            "extant-simdev",
            "extant-space",
            "extant-kero",
            "extant-store",
            "extant-fs",
            "extant-check",
            "extant-fuse-wire",
            "extant-serve",
            "extant-damage",
        ],
    ),
    layer(
        "extant-crash",
        5,
        &["extant-blockdev", "extant-format", "extant-simdev", "extant-store", "extant-fs", "extant-check"],
    ),
    layer(
        CLI,
        6,
        &[
            "extant-blockdev",
            "extant-format",
            "extant-simdev",
            "extant-space",
            "extant-kero",
            "extant-store",
            "extant-fs",
            "extant-check",
            "extant-fuse-wire",
            "extant-fuse",
            "extant-serve",
            "extant-bench",
            "extant-crash",
            "extant-damage",
        ],
    ),
    layer(
        "extant-fuzz",
        6,
        &[
            "extant-blockdev",
            "extant-simdev",
            "extant-format",
            "extant-kero",
            "extant-store",
            "extant-fs",
            "extant-check",
            "extant-fuse-wire",
            "extant-fuse",
            "extant-serve",
            "extant-damage",
            TESTKIT,
        ],
    ),
    layer(TESTKIT, 1, &["extant-blockdev", "extant-format"]),
    layer("xtask", 0, &[]),
];

pub(crate) fn check(workspace: &Workspace) -> Result<Report, String> {
    Ok(Report { findings: wrong_edges(&workspace.packages), notes: Vec::new() })
}

/// One sentence for each crate without a row in the table, and for each dependency that it does not allow.
fn wrong_edges(packages: &[Package]) -> Vec<String> {
    let mut wrong = Vec::new();
    for package in packages {
        let Some(row) = find(&package.name) else {
            wrong.push(format!(
                "The crate {} has no row in the layer table (crates/xtask/src/layers.rs).",
                package.name
            ));
            continue;
        };
        for (used, kind) in &package.local {
            let Some(below) = find(used) else {
                wrong.push(format!("{} depends on {used}, which has no row in the layer table.", row.name));
                continue;
            };
            match kind {
                Kind::Normal if !row.may_use.contains(&below.name) => {
                    wrong.push(format!("{} must not depend on {}: {}.", row.name, below.name, allowed(row)));
                }
                Kind::Dev if used != &package.name && !INSTRUMENTS.contains(&below.name) && below.level >= row.level => wrong.push(format!(
                    "The tests of {} (layer {}) must not depend on {} (layer {}): only {} and lower layers may be added.",
                    row.name, row.level, below.name, below.level, INSTRUMENTS.join(", ")
                )),
                _ => {}
            }
        }
    }
    wrong
}

/// The layer of a crate.
pub(crate) fn level(name: &str) -> Option<u8> {
    find(name).map(|row| row.level)
}

fn find(name: &str) -> Option<&'static Layer> {
    TABLE.iter().find(|row| row.name == name)
}

fn allowed(row: &Layer) -> String {
    if row.may_use.is_empty() {
        "it may use no other crate".into()
    } else {
        format!("it may use {}", row.may_use.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Findings for one package, in the form of `cargo metadata`.
    fn findings(name: &str, dependencies: &[(&str, Option<&str>)]) -> Vec<String> {
        let dependencies: Vec<_> = dependencies
            .iter()
            .map(|(name, kind)| json!({ "name": name, "kind": kind, "path": format!("/x/{name}") }))
            .collect();
        let metadata = json!({ "packages": [{ "name": name, "dependencies": dependencies, "targets": [] }] });
        wrong_edges(&crate::workspace::packages(&metadata).expect("metadata"))
    }

    #[test]
    fn right_edges_pass() {
        assert_eq!(
            findings("extant-fs", &[("extant-store", None), ("extant-testkit", Some("dev"))]),
            Vec::<String>::new()
        );
        assert_eq!(findings("extant-fs", &[("extant-space", Some("dev"))]), Vec::<String>::new());
        assert_eq!(findings("extant-blockdev", &[("extant-simdev", Some("dev"))]), Vec::<String>::new());
    }

    #[test]
    fn wrong_edges_are_refused() {
        for (user, used) in [
            ("extant-check", "extant-fs"),
            ("extant-check", "extant-store"),
            ("extant-format", "extant-blockdev"),
            ("extant-kero", "extant-format"),
            ("extant-blockdev", "extant-testkit"),
            ("extant-blockdev", "extant-simdev"),
            ("extant-fs", "extant-simdev"),
            ("extant-fs", "extant-fuse"),
            ("xtask", "extant-format"),
        ] {
            let found = findings(user, &[(used, None)]);
            assert_eq!(found.len(), 1, "{user} -> {used}: {found:?}");
            assert!(found[0].starts_with(&format!("{user} must not depend on {used}")), "{}", found[0]);
        }
    }

    #[test]
    fn a_build_dependency_counts_as_one_of_the_crate() {
        assert_eq!(findings("extant-check", &[("extant-fs", Some("build"))]).len(), 1);
    }

    #[test]
    fn tests_may_not_reach_upwards_or_sideways() {
        assert_eq!(findings("extant-store", &[("extant-fs", Some("dev"))]).len(), 1);
        assert_eq!(findings("extant-check", &[("extant-fs", Some("dev"))]).len(), 1);
    }

    #[test]
    fn unknown_crates_are_refused_as_user_and_as_used() {
        assert_eq!(findings("extant-mystery", &[]).len(), 1);
        assert_eq!(findings("extant-fs", &[("extant-mystery", None)]).len(), 1);
    }

    #[test]
    fn a_dependency_from_a_registry_is_not_ours_to_check() {
        let metadata = json!({ "packages": [{ "name": "extant-format", "targets": [],
            "dependencies": [{ "name": "zerocopy", "kind": null, "path": null }] }] });
        assert!(wrong_edges(&crate::workspace::packages(&metadata).expect("metadata")).is_empty());
    }

    #[test]
    fn the_table_itself_points_downwards() {
        for row in TABLE {
            for used in row.may_use {
                let below = find(used).unwrap_or_else(|| panic!("{used} has no row"));
                assert!(below.level < row.level, "{} -> {used}", row.name);
            }
        }
    }
}
