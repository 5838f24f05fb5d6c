//! Independent oracles: e2fsck, debugfs, the kernel.

use crate::tools;
use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;

/// The result of e2fsck on a volume.
#[derive(Debug, Clone)]
pub struct Verdict {
    /// Whether it found no errors: exit status 0.
    pub clean: bool,
    /// Exit status as in e2fsck(8): 0 clean, 4 errors left, 8 operational error. `None`: no result, because e2fsck
    /// crashed or did not end in time: some damaged volumes make it loop.
    pub exit: Option<i32>,
    /// Its output.
    pub text: String,
}

/// Runs `e2fsck -fn` on `image`, which it does not change, for at most 30 seconds.
pub fn e2fsck(image: &Path) -> Verdict {
    let mut command = tools::command("e2fsck");
    let ran = tools::run_with(command.arg("-fn").arg(image), b"", Duration::from_secs(30));
    Verdict { clean: ran.exit == Some(0), exit: ran.exit, text: ran.text() }
}

/// The content of the regular file `inside` (a path, or an inode as `<12>`) of `image`, read by debugfs. Panics if
/// debugfs fails.
pub fn debugfs_dump(image: &Path, inside: &str) -> Vec<u8> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let out = folder.path().join("out");
    let said = debugfs(image, &format!("dump \"{inside}\" {}", out.display()));
    std::fs::read(&out).unwrap_or_else(|e| panic!("debugfs dumped no {inside}: {e}; {said}"))
}

/// The output of debugfs for one read-only command.
pub fn debugfs(image: &Path, command: &str) -> String {
    let args = [OsStr::new("-R"), OsStr::new(command), image.as_os_str()];
    tools::must("debugfs", &args).text()
}

/// A volume mounted by the kernel through a loop device; unmounted when dropped.
#[derive(Debug)]
pub struct Mounted {
    folder: tempfile::TempDir,
}

/// Mounts `image` with the kernel's ext4, which also reads ext2 and ext3. `options` as for mount(8), `loop` is added:
/// `"ro,noload"` to read a volume without any write to it, `""` to change it. The error is the kernel's message. Needs
/// [`tools::has_loop`].
pub fn kernel_mount(image: &Path, options: &str) -> Result<Mounted, String> {
    let folder = tempfile::Builder::new().prefix("extant-mount-").tempdir().expect("a temporary folder");
    let options = if options.is_empty() { "loop".to_owned() } else { format!("loop,{options}") };
    let args: [&OsStr; 6] =
        ["-t".as_ref(), "ext4".as_ref(), "-o".as_ref(), options.as_ref(), image.as_ref(), folder.path().as_ref()];
    let ran = tools::run("mount", &args);
    if ran.exit == Some(0) { Ok(Mounted { folder }) } else { Err(ran.text()) }
}

impl Mounted {
    /// The mount point.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Unmounts it, so that all data is in the image. Panics on failure.
    pub fn unmount(self) {
        drop(self);
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // another process may have the folder open for a moment (an indexer, a shell)
        let mut ran = tools::run("umount", &[self.folder.path()]);
        for _ in 0..20 {
            if ran.exit == Some(0) {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
            ran = tools::run("umount", &[self.folder.path()]);
        }
        tools::run("umount", &[OsStr::new("-l"), self.folder.path().as_os_str()]);
        assert!(std::thread::panicking(), "umount {}: {}", self.folder.path().display(), ran.text());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ContentHash, Field, FileKind, Image, Spec, Times, Tree, fill, walk};

    /// Fields that differ between any two file systems, or that are not in the model.
    const OWN_WAY: [Field; 2] = [Field::DirectorySize, Field::Blocks];

    #[test]
    fn e2fsck_distinguishes_clean_from_damaged() {
        if !tools::need(&["mke2fs", "e2fsck"]) {
            return;
        }
        let image = Image::mke2fs(&["-t", "ext4"], 4 << 20).build();
        let verdict = e2fsck(image.path());
        assert_eq!((verdict.clean, verdict.exit), (true, Some(0)), "{}", verdict.text);
        let mut bytes = image.bytes();
        bytes[1024 + 12] ^= 1; // s_free_blocks_count_lo
        let verdict = e2fsck(Image::from_bytes(&bytes).path());
        assert!(!verdict.clean && verdict.exit.is_some(), "{}", verdict.text);
        let verdict = e2fsck(Image::from_bytes(&[0; 8192]).path());
        assert_eq!(verdict.exit, Some(8), "{}", verdict.text);
    }

    #[test]
    fn debugfs_reads_what_the_tree_wrote() {
        if !tools::need(&["mke2fs", "debugfs"]) {
            return;
        }
        let tree = Tree::new(11, &Spec::small());
        let image = Image::mke2fs(&["-t", "ext4", "-b", "1024"], 24 << 20).with_tree(&tree).build();
        let plain = |path: &Path| path.to_str().is_some_and(|p| !p.contains(['\n', '"']));
        let files = tree.model().0.iter().filter(|(path, entry)| entry.kind == FileKind::Regular && plain(path));
        let mut compared = 0;
        for (path, entry) in files.take(10) {
            let content = debugfs_dump(image.path(), &format!("/{}", path.display()));
            assert_eq!(Some(ContentHash::of(&content[..]).expect("hash")), entry.content, "{}", path.display());
            compared += 1;
        }
        assert_eq!(compared, 10);
    }

    #[test]
    fn the_kernel_reads_what_the_tree_wrote() {
        if !tools::need(&["mke2fs", "mount", "umount"]) || !tools::has_loop() {
            return;
        }
        let tree = Tree::new(12, &Spec::small());
        for args in [&["-t", "ext2", "-b", "1024"][..], &["-t", "ext4", "-b", "4096"]] {
            let image = Image::mke2fs(args, 24 << 20).with_tree(&tree).build();
            let mounted = kernel_mount(image.path(), "ro,noload").expect("mount");
            let walked = walk(mounted.path()).expect("walk").without("lost+found");
            tree.model().assert_same(&walked.forget(&[Field::Blocks]));
        }
    }

    #[test]
    fn the_kernel_writes_a_tree_of_its_own() {
        if !tools::need(&["mke2fs", "e2fsck", "mount", "umount"]) || !tools::has_loop() {
            return;
        }
        let image = Image::mke2fs(&["-t", "ext4"], 64 << 20).build();
        let mounted = kernel_mount(image.path(), "").expect("mount");
        let spec = Spec { times: Times::Far, ..Spec::small() };
        let model = fill(mounted.path(), 13, &spec).expect("fill");
        mounted.unmount();
        let verdict = e2fsck(image.path());
        assert!(verdict.clean, "{}", verdict.text);
        let mounted = kernel_mount(image.path(), "ro,noload").expect("mount");
        model.assert_same(&walk(mounted.path()).expect("walk").without("lost+found").forget(&OWN_WAY));
    }

    #[test]
    fn the_kernel_refuses_what_is_no_volume() {
        if !tools::need(&["mount"]) || !tools::has_loop() {
            return;
        }
        let refusal = kernel_mount(Image::from_bytes(&[0; 1 << 20]).path(), "ro").expect_err("zeros are no volume");
        assert!(refusal.contains("mount"), "{refusal}");
    }
}
