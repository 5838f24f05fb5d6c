//! Workloads in a mounted tree.

use crate::Result;
use crate::error::Trying;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

/// Work on the tree below a directory of any file system.
pub trait Workload {
    /// The workload's name in the table.
    fn name(&self) -> &str;

    /// The unit of the amount that [`Workload::run`] returns.
    fn unit(&self) -> &'static str;

    /// Whether it runs once untimed first, so that all names and attributes are cached.
    fn warm(&self) -> bool;

    /// Runs it once and returns the amount of work, which is always the same for the same tree.
    ///
    /// # Errors
    /// The first error of the file system.
    fn run(&self, root: &Path) -> Result<u64>;
}

/// Sequential read of one file that is not cached.
#[derive(Debug, Clone)]
pub struct SequentialRead {
    /// The file, as seen from the root.
    pub file: PathBuf,
}

impl Workload for SequentialRead {
    fn name(&self) -> &'static str {
        "sequential read, cold"
    }

    fn unit(&self) -> &'static str {
        "bytes"
    }

    fn warm(&self) -> bool {
        false
    }

    fn run(&self, root: &Path) -> Result<u64> {
        let path = root.join(&self.file);
        let mut file = File::open(&path).trying("open", &path)?;
        let mut buf = vec![0; 1 << 20];
        let mut total = 0;
        loop {
            match file.read(&mut buf).trying("read", &path)? {
                0 => return Ok(total),
                some => total += some as u64,
            }
        }
    }
}

/// Walk that lists every directory and reads the attributes of every entry, as `find -size +1` does.
#[derive(Debug, Clone, Copy)]
pub struct Walk {
    /// Whether the same walk was made immediately before.
    pub warm: bool,
}

impl Workload for Walk {
    fn name(&self) -> &'static str {
        if self.warm { "walk with stat, warm" } else { "walk with stat, cold" }
    }

    fn unit(&self) -> &'static str {
        "entries"
    }

    fn warm(&self) -> bool {
        self.warm
    }

    fn run(&self, root: &Path) -> Result<u64> {
        let mut entries = 0;
        let mut dirs = vec![root.to_owned()];
        while let Some(dir) = dirs.pop() {
            for entry in fs::read_dir(&dir).trying("list", &dir)? {
                let entry = entry.trying("list", &dir)?;
                let metadata = entry.metadata().trying("stat an entry of", &dir)?;
                entries += 1;
                if metadata.is_dir() {
                    dirs.push(entry.path());
                }
            }
        }
        Ok(entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_those_of_the_tree() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("a/b")).unwrap();
        fs::write(root.path().join("a/file"), vec![1; 3_000_000]).unwrap();
        // which the walk must not follow
        std::os::unix::fs::symlink("..", root.path().join("a/b/up")).unwrap();
        assert_eq!(Walk { warm: true }.run(root.path()).unwrap(), 4);
        assert_eq!(SequentialRead { file: "a/file".into() }.run(root.path()).unwrap(), 3_000_000);
        let error = SequentialRead { file: "b".into() }.run(root.path()).unwrap_err().to_string();
        assert!(error.starts_with("cannot open "), "{error}");
    }
}
