//! Running the program, and volumes for it.

use serde_json::Value;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use testkit::tools::{LIMIT, Ran, run_with};
use testkit::{Image, Spec, Tree};

pub(crate) const EXTANT: &str = env!("CARGO_BIN_EXE_extant");

/// A command for the program with these arguments, in UTC.
pub(crate) fn command<A: AsRef<OsStr>>(args: &[A]) -> Command {
    let mut command = Command::new(EXTANT);
    command.args(args).env("TZ", "UTC").env_remove("COLUMNS");
    command
}

/// Runs the program.
pub(crate) fn extant<A: AsRef<OsStr>>(args: &[A]) -> Ran {
    run_with(&mut command(args), b"", LIMIT)
}

/// Runs the program; it must exit with `exit` and without a backtrace.
pub(crate) fn exits<A: AsRef<OsStr>>(exit: i32, args: &[A]) -> Ran {
    let ran = extant(args);
    let args: Vec<_> = args.iter().map(AsRef::as_ref).collect();
    assert_eq!(ran.exit, Some(exit), "{args:?}: {}", ran.text());
    assert!(!ran.text().contains("panicked"), "{args:?}: {}", ran.text());
    ran
}

/// Runs the program; it must succeed without output on standard error. Returns its output.
pub(crate) fn prints<A: AsRef<OsStr>>(args: &[A]) -> String {
    let ran = exits(0, args);
    assert_eq!(String::from_utf8_lossy(&ran.stderr), "");
    String::from_utf8(ran.stdout).expect("UTF-8")
}

/// The JSON that the program prints.
pub(crate) fn json<A: AsRef<OsStr>>(args: &[A]) -> Value {
    serde_json::from_str(&prints(args)).expect("JSON")
}

/// Runs the program; it must fail with status `exit` and one sentence, which is returned.
pub(crate) fn fails<A: AsRef<OsStr>>(exit: i32, args: &[A]) -> String {
    let ran = exits(exit, args);
    let text = String::from_utf8(ran.stderr).expect("UTF-8");
    assert!(text.starts_with("extant: ") && text.ends_with('\n') && text.lines().count() == 1, "{text}");
    text.trim_end().to_owned()
}

/// A volume and the tree that it contains.
pub(crate) struct Sample {
    pub(crate) tree: Tree,
    pub(crate) image: Image,
}

impl Sample {
    pub(crate) fn path(&self) -> &str {
        text(self.image.path())
    }
}

/// An ext4 volume with files of every kind; created once.
pub(crate) fn sample() -> &'static Sample {
    static SAMPLE: OnceLock<Sample> = OnceLock::new();
    SAMPLE.get_or_init(|| {
        let tree = Tree::new(41, &Spec::small());
        let image = Image::mke2fs(&["-t", "ext4", "-b", "1024", "-L", "sample"], 24 << 20).with_tree(&tree).build();
        Sample { tree, image }
    })
}

/// A volume with a few files of known content.
pub(crate) fn plain() -> Image {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let at = |name: &str| folder.path().join(name);
    std::fs::create_dir(at("etc")).expect("mkdir");
    std::fs::write(at("etc/hosts"), "127.0.0.1 localhost\n").expect("write");
    std::fs::write(at("etc/motd"), "welcome\n").expect("write");
    std::os::unix::fs::symlink("etc/motd", at("link")).expect("symlink");
    std::os::unix::fs::symlink("/etc", at("way")).expect("symlink");
    std::fs::write(at(".hidden"), "").expect("write");
    Image::mke2fs(&["-t", "ext4", "-L", "plain"], 8 << 20).with_folder(folder.path()).build()
}

/// A path as text.
pub(crate) fn text(path: &Path) -> &str {
    path.to_str().expect("temporary paths are UTF-8")
}

/// Whether all programs for creating the volumes are installed.
pub(crate) fn ready() -> bool {
    testkit::need(&["mke2fs", "debugfs", "e2fsck"])
}

/// Paths of the sample in its volume, sorted, without the root.
pub(crate) fn paths(sample: &Sample) -> Vec<PathBuf> {
    sample.tree.model().0.keys().filter(|path| *path != Path::new(".")).cloned().collect()
}
