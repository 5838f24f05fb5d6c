//! Volumes created by mke2fs and modified by debugfs.

use crate::tools::{self, Ran};
use crate::tree::Tree;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Fixed UUID, so that the same call creates the same volume.
const UUID: &str = "6a7f3b58-0c1d-4e2f-8a9b-0123456789ab";
/// Current time for e2fsprogs: 2020-09-13.
const NOW: &str = "1600000000";

/// A volume in a temporary file; removed when dropped.
#[derive(Debug)]
pub struct Image {
    folder: tempfile::TempDir,
    path: PathBuf,
}

/// A volume to be created.
#[derive(Debug)]
pub struct Mke2fs {
    args: Vec<String>,
    size: u64,
    source: Option<PathBuf>,
    commands: Vec<String>,
    indexed: bool,
}

impl Image {
    /// A volume of `size` bytes by `mke2fs ARGS`. UUID, hash seed and time are fixed unless `args` has them: without a
    /// tree, two runs write the same bytes; with one, they differ only in change times.
    #[must_use]
    pub fn mke2fs(args: &[&str], size: u64) -> Mke2fs {
        Mke2fs {
            args: args.iter().map(|&a| a.into()).collect(),
            size,
            source: None,
            commands: Vec::new(),
            indexed: false,
        }
    }

    /// A volume with these bytes.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let image = Self::empty();
        image.set_bytes(bytes);
        image
    }

    fn empty() -> Self {
        let folder = tempfile::Builder::new().prefix("extant-image-").tempdir().expect("a temporary folder");
        let path = folder.path().join("volume.img");
        Self { folder, path }
    }

    /// The path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A path for another file that is removed with the image.
    #[must_use]
    pub fn beside(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// All bytes of the volume.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        std::fs::read(&self.path).expect("reading an image")
    }

    /// Replaces the volume; blocks of zeros become holes.
    pub fn set_bytes(&self, bytes: &[u8]) {
        let mut file = std::fs::File::create(&self.path).expect("writing an image");
        file.set_len(bytes.len() as u64).expect("writing an image");
        for (number, block) in bytes.chunks(65536).enumerate() {
            if block.iter().any(|&byte| byte != 0) {
                std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(number as u64 * 65536))
                    .expect("writing an image");
                file.write_all(block).expect("writing an image");
            }
        }
    }

    /// Runs debugfs commands that change the volume. Panics if debugfs does not know one of them or cannot open the
    /// volume; returns the output, since most errors do not change the exit status.
    pub fn debugfs(&self, commands: &[&str]) -> Ran {
        let script = commands.iter().flat_map(|c| [c, "\n"]).collect::<String>();
        let mut command = tools::command("debugfs");
        command.env("E2FSPROGS_FAKE_TIME", NOW).args(["-w", "-f", "-"]).arg(&self.path);
        let ran = tools::run_with(&mut command, script.as_bytes(), tools::LIMIT);
        assert!(ran.exit == Some(0) && !ran.text().contains("Unknown request"), "debugfs {commands:?}: {}", ran.text());
        ran
    }
}

impl Mke2fs {
    /// Fills the volume with a tree.
    #[must_use]
    pub fn with_tree(self, tree: &Tree) -> Self {
        self.with_folder(tree.path())
    }

    /// Fills the volume with a folder.
    #[must_use]
    pub fn with_folder(mut self, folder: &Path) -> Self {
        self.source = Some(folder.to_owned());
        self
    }

    /// Converts directories of three blocks or more into hash trees by e2fsck, since mke2fs does not. On a volume with
    /// mmp this waits 11 seconds first.
    #[must_use]
    pub fn indexed(mut self) -> Self {
        self.indexed = true;
        self
    }

    /// Runs these debugfs commands after the volume is created; see [`Image::debugfs`].
    #[must_use]
    pub fn debugfs(mut self, commands: &[&str]) -> Self {
        self.commands.extend(commands.iter().map(|&c| c.to_owned()));
        self
    }

    /// Creates the volume. Panics with the output of mke2fs on failure.
    #[must_use]
    pub fn build(self) -> Image {
        let image = Image::empty();
        let mut command = tools::command("mke2fs");
        command.env("E2FSPROGS_FAKE_TIME", NOW).args(["-q", "-F"]);
        if !self.args.iter().any(|a| a == "-U") {
            command.args(["-U", UUID]);
        }
        let mut args = self.args.clone();
        match args.iter().position(|a| a == "-E").and_then(|at| args.get_mut(at + 1)) {
            Some(options) if !options.contains("hash_seed") => *options = format!("{options},hash_seed={UUID}"),
            Some(_) => {}
            None => args.extend(["-E".into(), format!("hash_seed={UUID}")]),
        }
        command.args(&args);
        if let Some(source) = &self.source {
            command.arg("-d").arg(source);
        }
        command.arg(&image.path).arg(format!("{}k", self.size.div_ceil(1024)));
        let ran = tools::run_with(&mut command, b"", tools::LIMIT);
        assert_eq!(ran.exit, Some(0), "{command:?}: {}", ran.text());
        if self.indexed {
            let mut command = tools::command("e2fsck");
            command.env("E2FSPROGS_FAKE_TIME", NOW).args(["-fyD"]).arg(&image.path);
            let ran = tools::run_with(&mut command, b"", tools::LIMIT);
            // 0: there was nothing to do
            assert!(matches!(ran.exit, Some(0 | 1)), "{command:?}: {}", ran.text());
        }
        if !self.commands.is_empty() {
            image.debugfs(&self.commands.iter().map(String::as_str).collect::<Vec<_>>());
        }
        image
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Spec, oracle};

    #[test]
    fn the_same_call_makes_the_same_bytes() {
        if !tools::need(&["mke2fs"]) {
            return;
        }
        let make = || Image::mke2fs(&["-t", "ext4", "-b", "1024", "-E", "lazy_itable_init=0"], 2 << 20).build();
        let (a, b) = (make(), make());
        assert!(a.bytes() == b.bytes());
        assert_eq!(a.bytes().len(), 2 << 20);
        let copy = Image::from_bytes(&a.bytes());
        assert!(copy.bytes() == a.bytes());
    }

    #[test]
    fn trees_and_commands_land_in_the_volume() {
        if !tools::need(&["mke2fs", "debugfs", "e2fsck"]) {
            return;
        }
        let tree = Tree::new(3, &Spec { wide: 800, ..Spec::small() });
        for args in [&["-t", "ext2", "-b", "1024"][..], &["-t", "ext3", "-b", "2048"], &["-t", "ext4", "-b", "4096"]] {
            let image = Image::mke2fs(args, 24 << 20).with_tree(&tree).indexed().build();
            let verdict = oracle::e2fsck(image.path());
            assert!(verdict.clean, "{args:?}: {}", verdict.text);
            let wide = oracle::debugfs(image.path(), "htree_dump /wide");
            assert!(wide.contains("Root node dump"), "{args:?}: {wide}");
            image.debugfs(&["clri <2>"]);
            assert!(!oracle::e2fsck(image.path()).clean, "{args:?}");
        }
    }
}
