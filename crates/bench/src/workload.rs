//! Workloads in a mounted tree.

use crate::Result;
use crate::error::Trying;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

/// A piece of work on the tree below a directory, whatever file system has it.
pub trait Workload {
    /// The workload's name in the table.
    fn name(&self) -> &str;

    /// The unit of the amount that [`Workload::run`] returns.
    fn unit(&self) -> &'static str;

    /// Whether it is done once, not timed, before it is timed: the system then has all names and attributes.
    fn warm(&self) -> bool;

    /// Does it once, and says how much was done. The same tree always yields the same amount.
    ///
    /// # Errors
    /// Whatever the file system refuses.
    fn run(&self, root: &Path) -> Result<u64>;
}

/// Reads one file from beginning to end, with nothing of it in the cache.
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

/// Lists every directory and asks for the attributes of every entry, as `find -size +1` does.
#[derive(Debug, Clone, Copy)]
pub struct Walk {
    /// Whether the same walk was just made.
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
                let metadata = entry.metadata().trying("look at something in", &dir)?;
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
        // into which a walk must not go
        std::os::unix::fs::symlink("..", root.path().join("a/b/up")).unwrap();
        assert_eq!(Walk { warm: true }.run(root.path()).unwrap(), 4);
        assert_eq!(SequentialRead { file: "a/file".into() }.run(root.path()).unwrap(), 3_000_000);
        let error = SequentialRead { file: "b".into() }.run(root.path()).unwrap_err().to_string();
        assert!(error.starts_with("cannot open "), "{error}");
    }
}
