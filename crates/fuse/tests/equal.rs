//! The content of a mounted volume equals the model of what was written, and the kernel's view of the same volume.

mod common;

use common::{open, ready, serve};
use std::path::Path;
use testkit::{Field, Image, Manifest, Spec, Times, Tree, fill, oracle, tools, walk};

/// The manifest without the directory that only volumes have.
fn seen(root: &Path) -> Manifest {
    walk(root).expect("walk").without("lost+found")
}

#[test]
fn equals_what_was_written() {
    if !ready() {
        return;
    }
    let tree = Tree::new(21, &Spec { wide: 800, ..Spec::small() });
    for args in [
        &["-t", "ext2", "-b", "1024"][..],
        &["-t", "ext2", "-b", "4096", "-O", "^filetype"],
        &["-t", "ext3", "-b", "2048"],
        &["-t", "ext4", "-b", "1024"],
        &["-t", "ext4", "-b", "4096", "-O", "bigalloc", "-C", "16384"],
        &["-t", "ext4", "-b", "4096", "-I", "128"],
    ] {
        let image = Image::mke2fs(args, 48 << 20).with_tree(&tree).indexed().build();
        let served = serve(image.path());
        tree.model().assert_same(&seen(served.path()).forget(&[Field::Blocks, Field::DirectorySize]));
        assert_eq!(served.problems(), Vec::<String>::new(), "{args:?}");
    }
}

#[test]
fn equals_what_the_kernel_shows() {
    if !ready() || !testkit::need(&["mount", "umount"]) || !tools::has_loop() {
        return;
    }
    let spec = Spec { times: Times::Far, wide: 3000, ..Spec::medium() };
    for args in [
        &["-t", "ext2", "-b", "1024"][..],
        &["-t", "ext3", "-b", "4096"],
        &["-t", "ext4", "-b", "1024", "-I", "1024"],
        &["-t", "ext4", "-b", "4096", "-O", "inline_data,ea_inode"],
    ] {
        let image = Image::mke2fs(args, 160 << 20).build();
        let writing = oracle::kernel_mount(image.path(), "").expect("mount");
        fill(writing.path(), 22, &spec).expect("fill");
        writing.unmount();
        let kernel = oracle::kernel_mount(image.path(), "ro,noload").expect("mount");
        let served = serve(image.path());
        walk(kernel.path()).expect("walk").assert_same(&walk(served.path()).expect("walk"));

        let (theirs, ours) = (statvfs(kernel.path()), statvfs(served.path()));
        assert_eq!(theirs, ours, "{args:?}");
    }
}

fn statvfs(path: &Path) -> [u64; 8] {
    let s = rustix::fs::statvfs(path).expect("statvfs");
    [s.f_bsize, s.f_frsize, s.f_blocks, s.f_bfree, s.f_bavail, s.f_files, s.f_ffree, s.f_namemax]
}

#[test]
fn inode_numbers_are_the_volumes_own() {
    use std::os::unix::fs::{DirEntryExt, MetadataExt};
    if !ready() {
        return;
    }
    let tree = Tree::new(23, &Spec::small());
    let image = Image::mke2fs(&["-t", "ext4"], 24 << 20).with_tree(&tree).build();
    let volume = open(image.path());
    let served = serve(image.path());
    let inode_of = |path: &Path| path.symlink_metadata().expect("stat").ino();
    assert_eq!(inode_of(served.path()), 2);
    // ".." of a directory in the root, and the root again after that lookup
    assert_eq!(inode_of(&served.path().join("lost+found/..")), 2);
    assert_eq!(inode_of(served.path()), 2);
    let root = volume.inode(fs::InodeNo::ROOT).expect("the root");
    let mut compared = 0;
    for entry in served.path().read_dir().expect("listing") {
        let entry = entry.expect("entry");
        let name = entry.file_name();
        let expected = volume.lookup(&root, name.as_encoded_bytes()).expect("lookup");
        assert_eq!((entry.ino(), inode_of(&entry.path())), (u64::from(expected.get()), u64::from(expected.get())));
        compared += 1;
    }
    assert!(compared > 5);
}
