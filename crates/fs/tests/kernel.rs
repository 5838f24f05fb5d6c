//! Volumes filled by the kernel, compared with what the kernel returns of them.

mod common;

use common::{manifest, open};
use testkit::oracle::kernel_mount;
use testkit::{Image, Spec, Times, fill, need, tools, walk};

const VARIANTS: &[&[&str]] = &[
    &["-t", "ext2", "-b", "1024"],
    &["-t", "ext3", "-b", "4096"],
    &["-t", "ext4", "-b", "1024"],
    &["-t", "ext4", "-b", "4096"],
    &["-t", "ext4", "-b", "4096", "-I", "512", "-O", "inline_data,ea_inode"],
    &["-t", "ext4", "-b", "1024", "-I", "1024", "-O", "inline_data"],
    &["-t", "ext4", "-b", "2048", "-O", "^has_journal"],
    &["-t", "ext4", "-b", "4096", "-O", "bigalloc", "-C", "16384"],
    &["-t", "ext4", "-b", "1024", "-O", "meta_bg,^resize_inode,^extent,^64bit", "-g", "2048"],
];

#[test]
fn the_kernel_shows_the_same() {
    if !need(&["mke2fs", "mount", "umount"]) || !tools::has_loop() {
        return;
    }
    for (number, args) in VARIANTS.iter().enumerate() {
        eprintln!("{args:?}");
        let image = Image::mke2fs(args, 96 << 20).build();
        let mounted = kernel_mount(image.path(), "").expect("mount");
        let times = if args.contains(&"ext4") { Times::Far } else { Times::Seconds };
        let spec = Spec { times, xattr_bytes: 900, ..Spec::medium() };
        fill(mounted.path(), 30 + number as u64, &spec).expect("filling a volume");
        mounted.unmount();
        let mounted = kernel_mount(image.path(), "ro,noload").expect("mount");
        let volume = open(image.path());
        walk(mounted.path()).expect("walk").assert_same(&manifest(&volume));
        let theirs = rustix::fs::statvfs(mounted.path()).expect("statvfs");
        let ours = volume.statfs();
        assert_eq!(
            (theirs.f_blocks, theirs.f_bfree, theirs.f_bavail, theirs.f_files, theirs.f_ffree, theirs.f_fsid),
            (ours.blocks, ours.blocks_free, ours.blocks_available, ours.files, ours.files_free, ours.id),
            "{args:?}"
        );
        assert_eq!((theirs.f_bsize, theirs.f_namemax), (ours.block_size.into(), ours.name_max.into()));
    }
}
