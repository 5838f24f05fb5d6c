//! The workspace as known to Cargo and git: packages with their dependencies, and the files of the repository.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The use of a dependency.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// In the crate itself or its build script.
    Normal,
    /// Only in its tests, examples and benchmarks.
    Dev,
}

/// A package of the workspace.
#[derive(Debug, Clone)]
pub(crate) struct Package {
    /// The package's name: `extant-format`.
    pub(crate) name: String,
    /// Packages that it depends on by path, by package name.
    pub(crate) local: Vec<(String, Kind)>,
    /// The root source files of its library and programs.
    pub(crate) roots: Vec<PathBuf>,
}

/// The input of all checks.
#[derive(Debug)]
pub(crate) struct Workspace {
    /// The top folder.
    pub(crate) root: PathBuf,
    /// Packages in the order in which Cargo lists them.
    pub(crate) packages: Vec<Package>,
    /// Files that are, or would be, in the repository; relative to `root`.
    pub(crate) files: Vec<PathBuf>,
}

impl Workspace {
    /// Runs `cargo metadata` and `git ls-files`. Fails with a sentence if either fails.
    pub(crate) fn load() -> Result<Self, String> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let json = output(Command::new(cargo).args(["metadata", "--no-deps", "--format-version", "1"]))?;
        let json: Value = serde_json::from_slice(&json).map_err(|e| format!("cargo metadata: {e}"))?;
        let root = json["workspace_root"].as_str().ok_or("cargo metadata names no workspace_root")?;
        let root = PathBuf::from(root);
        let listed = output(Command::new("git").current_dir(&root).args([
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ]))?;
        let files = String::from_utf8_lossy(&listed)
            .split('\0')
            .filter(|name| !name.is_empty())
            .map(PathBuf::from)
            .filter(|path| root.join(path).is_file()) // a file deleted without a commit is still listed
            .collect();
        Ok(Self { packages: packages(&json)?, root, files })
    }

    /// The text of a file, or `None` if it is not UTF-8.
    pub(crate) fn text(&self, file: &Path) -> Result<Option<String>, String> {
        let bytes = std::fs::read(self.root.join(file)).map_err(|e| format!("{}: {e}", file.display()))?;
        Ok(String::from_utf8(bytes).ok())
    }

    /// The text of a file that must be UTF-8.
    pub(crate) fn required_text(&self, file: &str) -> Result<String, String> {
        self.text(Path::new(file))?.ok_or_else(|| format!("{file} is not a text"))
    }
}

fn output(command: &mut Command) -> Result<Vec<u8>, String> {
    let done = command.output().map_err(|e| format!("{command:?} does not start: {e}"))?;
    if !done.status.success() {
        return Err(format!("{command:?} failed: {}", String::from_utf8_lossy(&done.stderr).trim()));
    }
    Ok(done.stdout)
}

/// The packages in the output of `cargo metadata`.
pub(crate) fn packages(metadata: &Value) -> Result<Vec<Package>, String> {
    let list = metadata["packages"].as_array().ok_or("cargo metadata lists no packages")?;
    list.iter().map(package).collect::<Option<_>>().ok_or_else(|| "cargo metadata: a package is not as expected".into())
}

fn package(json: &Value) -> Option<Package> {
    let local = |dependency: &Value| {
        dependency["path"].as_str()?; // only a dependency inside the workspace has a path
        let kind = if dependency["kind"] == "dev" { Kind::Dev } else { Kind::Normal };
        Some((dependency["name"].as_str()?.to_owned(), kind))
    };
    let root = |target: &Value| {
        // a target that requires a feature is a fuzz target: its macro exports a function to C
        let of_the_product = target["required-features"].is_null()
            && target["kind"].as_array()?.iter().any(|kind| kind == "lib" || kind == "bin");
        of_the_product.then(|| target["src_path"].as_str().map(PathBuf::from))?
    };
    Some(Package {
        name: json["name"].as_str()?.to_owned(),
        local: json["dependencies"].as_array()?.iter().filter_map(local).collect(),
        roots: json["targets"].as_array()?.iter().filter_map(root).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_required_file_that_is_not_a_text_is_refused() {
        let root = std::env::temp_dir().join(format!("xtask-{}", std::process::id()));
        std::fs::create_dir_all(&root).expect("a folder");
        std::fs::write(root.join("a.md"), "text").expect("a file");
        std::fs::write(root.join("b.md"), [0xff]).expect("a file");
        let workspace = Workspace { root: root.clone(), packages: Vec::new(), files: Vec::new() };
        let (a, b) = (workspace.required_text("a.md"), workspace.required_text("b.md"));
        let missing = workspace.required_text("c.md");
        std::fs::remove_dir_all(&root).expect("the folder is removed");
        assert_eq!((a, b), (Ok("text".to_owned()), Err("b.md is not a text".to_owned())));
        assert!(missing.is_err_and(|why| why.starts_with("c.md: ")));
    }
}
