//! Requirements for opening a volume, and the errors and warnings for one that does not meet them.

mod common;

use blockdev::{BlockDevice, MemoryDevice};
use common::{manifest, open, open_bytes};
use extant_fs::{COUNTED_GROUPS, Error, FsBlock, GroupNo, InodeNo, OpenOptions, Volume, Warning};
use format::superblock::DiskSuperblock;
use std::sync::Arc;
use testkit::oracle::kernel_mount;
use testkit::{Field, Image, Spec, Tree, fill, need, tools};
use zerocopy::IntoBytes;

fn memory(bytes: &[u8]) -> Arc<dyn BlockDevice> {
    Arc::new(MemoryDevice::from_vec(bytes.to_vec()))
}

fn refusal(bytes: Vec<u8>) -> String {
    open_bytes(bytes).err().expect("a refusal").to_string()
}

/// Changes the superblock and updates its checksum.
fn change(bytes: &mut [u8], edit: impl FnOnce(&mut DiskSuperblock)) {
    let mut sb = DiskSuperblock::from_slice(&bytes[1024..2048]).unwrap();
    edit(&mut sb);
    sb.s_checksum = sb.checksum().into();
    bytes[1024..2048].copy_from_slice(sb.as_bytes());
}

#[test]
fn what_is_no_volume_is_refused_in_a_sentence() {
    if !need(&["mke2fs"]) {
        return;
    }
    for len in [0, 1, 1023, 1024, 2047, 2048, 1 << 20] {
        let text = refusal(vec![0; len]);
        assert!(text.contains("superblock") && text.contains("-b"), "{text}");
    }
    let good = Image::mke2fs(&["-t", "ext4"], 4 << 20).build().bytes();
    let mut bytes = good.clone();
    bytes[1024 + 4] ^= 1;
    assert!(refusal(bytes).contains("s_checksum does not match"));
    let mut bytes = good.clone();
    change(&mut bytes, |sb| sb.s_feature_incompat = (sb.s_feature_incompat.get() | 0x1000 | 1 << 30).into());
    let text = refusal(bytes);
    assert!(text.contains("dirdata") && text.contains("FEATURE_I30") && !text.contains("-b"), "{text}");
    let journal = Image::mke2fs(&["-O", "journal_dev"], 4 << 20).build();
    assert!(refusal(journal.bytes()).contains("external journal"));
}

#[test]
fn a_copy_of_the_superblock_opens_the_volume() {
    if !need(&["mke2fs"]) {
        return;
    }
    let tree = Tree::new(51, &Spec::small());
    let cases: &[(&[&str], u64, u32)] = &[
        (&["-t", "ext4", "-b", "1024"], 8193, 1024),
        (&["-t", "ext2", "-b", "1024", "-g", "2048"], 2049, 1024),
        (&["-t", "ext4", "-b", "4096", "-g", "2048"], 2048, 4096),
        (&["-t", "ext4", "-b", "1024", "-g", "1024", "-O", "meta_bg,^resize_inode"], 1025, 1024),
    ];
    for &(args, block, block_size) in cases {
        let image = Image::mke2fs(args, 24 << 20).with_tree(&tree).build();
        let mut bytes = image.bytes();
        let intact = manifest(&open(image.path()));
        // the primary superblock and the descriptors behind it are destroyed
        bytes[1024..2048].fill(0);
        let behind = if block_size == 1024 { 2048..3072 } else { 4096..8192 };
        if !args.iter().any(|a| a.contains("meta_bg")) {
            bytes[behind].fill(0);
        }
        assert!(matches!(open_bytes(bytes.clone()), Err(Error::NoSuperblock(_))));
        for size in [None, Some(block_size)] {
            let options = OpenOptions { superblock: Some(FsBlock(block)), block_size: size, ..OpenOptions::default() };
            let volume = Volume::open(memory(&bytes), &options).unwrap_or_else(|e| panic!("{args:?}: {e}"));
            assert!(volume.warnings().contains(&Warning::BackupSuperblock(FsBlock(block))));
            intact.assert_same(&manifest(&volume));
        }
        for block in [0, 7, u64::MAX, 1 << 40] {
            let options = OpenOptions { superblock: Some(FsBlock(block)), ..OpenOptions::default() };
            assert!(matches!(Volume::open(memory(&bytes), &options), Err(Error::NoSuperblock(_))), "{block}");
        }
    }
}

#[test]
fn a_device_that_is_too_short_fails_only_where_it_ends() {
    if !need(&["mke2fs"]) {
        return;
    }
    let image = Image::mke2fs(&["-t", "ext4", "-b", "1024"], 32 << 20).build();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("first"), [1; 50_000]).unwrap();
    let mut bytes = Image::mke2fs(&["-t", "ext4", "-b", "1024"], 32 << 20).with_folder(folder.path()).build().bytes();
    assert_eq!(bytes.len() as u64, image.bytes().len() as u64);
    bytes.truncate(16 << 20);
    let volume = open_bytes(bytes).unwrap();
    assert_eq!(volume.warnings(), [Warning::Truncated { device: 16 << 20, volume: 32 << 20 }]);
    let first = volume.inode(volume.resolve(b"/first").unwrap()).unwrap();
    let mut content = vec![0; 50_001];
    assert_eq!(volume.read_at(&first, 0, &mut content).unwrap(), 50_000);
    assert!(content[..50_000].iter().all(|&b| b == 1));
    let mut far = [0; 1024];
    let beyond = volume.device().read(20 << 20, &mut far);
    assert!(matches!(beyond, Err(blockdev::Error::OutOfRange { .. })));
}

#[test]
fn a_wrong_descriptor_is_an_error_for_its_group_only() {
    if !need(&["mke2fs"]) {
        return;
    }
    let tree = Tree::new(52, &Spec::small());
    let image = Image::mke2fs(&["-t", "ext4", "-b", "1024", "-g", "2048"], 24 << 20).with_tree(&tree).build();
    let intact = open(image.path());
    let geometry = intact.superblock().geometry.clone();
    assert!(geometry.groups > 4);
    let mut bytes = image.bytes();
    bytes[2048 + 64 * 3 + 8] ^= 1; // bg_inode_table_lo of group 3
    let volume = open_bytes(bytes).unwrap();
    assert!(matches!(volume.group(GroupNo(3)), Err(Error::Corrupt { .. })));
    let lost = geometry.inode_at(GroupNo(3), 0);
    assert!(matches!(volume.inode(lost), Err(Error::Corrupt { .. })));
    assert!(matches!(volume.group(GroupNo(geometry.groups)), Err(Error::NotFound)));
    assert_eq!(volume.group(GroupNo(2)).unwrap(), intact.group(GroupNo(2)).unwrap());
    assert!(volume.statfs().blocks_free < intact.statfs().blocks_free);
    assert!(volume.inode(InodeNo::ROOT).is_ok());
}

/// A hostile superblock on a sparse device makes statfs(2) read nothing of its millions of groups.
#[test]
fn the_descriptors_of_very_many_groups_are_not_summed() {
    if !need(&["mke2fs"]) {
        return;
    }
    let features = "64bit,meta_bg,^has_journal,^metadata_csum,^resize_inode,^flex_bg";
    let args = ["-t", "ext4", "-b", "1024", "-g", "256", "-N", "64", "-O", features];
    let mut bytes = Image::mke2fs(&args, 4 << 20).build().bytes();
    let groups = COUNTED_GROUPS + 1000;
    let blocks = groups * 256 + 1;
    change(&mut bytes, |sb| {
        sb.s_blocks_count_lo = blocks.into();
        sb.s_inodes_count = (groups * sb.s_inodes_per_group.get()).into();
        sb.s_free_inodes_count = 321.into();
        sb.s_overhead_blocks = 765.into();
        sb.set_free_blocks_count(4321);
    });
    // as many descriptors as groups fit on the device, so that all of them could be read
    bytes.resize(65 << 20, 0);
    let volume = open_bytes(bytes.clone()).unwrap();
    assert_eq!(volume.superblock().geometry.groups, groups);
    let counts = volume.statfs();
    assert_eq!((counts.blocks_free, counts.files_free), (4321, 321));
    assert_eq!(counts.blocks, u64::from(blocks) - 765);
    // on a shorter device they are few
    bytes.truncate(4 << 20);
    let counts = open_bytes(bytes).unwrap().statfs();
    assert!(counts.blocks_free != 4321 && counts.files_free != 321, "{counts:?}");
}

#[test]
fn state_is_reported_as_a_warning() {
    if !need(&["mke2fs"]) {
        return;
    }
    let good = Image::mke2fs(&["-t", "ext2"], 4 << 20).build().bytes();
    let warnings = |state: u16| {
        let mut bytes = good.clone();
        change(&mut bytes, |sb| sb.s_state = state.into());
        open_bytes(bytes).unwrap().warnings().to_vec()
    };
    assert_eq!(warnings(1), []);
    assert_eq!(warnings(0), [Warning::NotUnmounted]);
    assert_eq!(warnings(3), [Warning::HasErrors]);
    for warning in warnings(2) {
        assert!(warning.to_string().contains("check"), "{warning}");
    }
}

/// A volume whose image was copied while the kernel was writing to it; and the copy that `at_that_time` makes of more.
fn cut_off<T>(args: &[&str], seed: u64, at_that_time: impl FnOnce() -> T) -> (Image, T) {
    let image = Image::mke2fs(args, 64 << 20).build();
    let mounted = kernel_mount(image.path(), "").expect("mount");
    fill(mounted.path(), seed, &Spec::small()).expect("filling a volume");
    let handle = std::fs::File::open(mounted.path()).unwrap();
    rustix::fs::syncfs(&handle).unwrap();
    let copies = (Image::from_bytes(&image.bytes()), at_that_time());
    drop(handle);
    mounted.unmount();
    copies
}

#[test]
fn a_journal_is_replayed_in_memory() {
    if !need(&["mke2fs", "mount", "umount"]) || !tools::has_loop() {
        return;
    }
    for (seed, args) in [
        (61, &["-t", "ext3", "-b", "1024"][..]),
        (62, &["-t", "ext4", "-b", "4096"]),
        (63, &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"]),
    ] {
        let (image, ()) = cut_off(args, seed, || ());
        let before = image.bytes();
        let volume = open(image.path());
        assert_eq!(volume.warnings(), [Warning::JournalReplayed], "{args:?}");
        let ours = manifest(&volume);
        assert!(image.bytes() == before, "{args:?}: reading changed the volume");
        // the kernel replays it, too, in the image
        kernel_mount(image.path(), "").expect("mount").unmount();
        let mounted = kernel_mount(image.path(), "ro,noload").expect("mount");
        testkit::walk(mounted.path()).expect("walk").assert_same(&ours);
        drop(mounted);
        let options = OpenOptions { ignore_journal: true, ..OpenOptions::default() };
        let stale = Volume::open(memory(&before), &options).unwrap();
        assert_eq!(stale.warnings(), [Warning::JournalIgnored]);
    }
}

#[test]
fn a_journal_on_another_device_has_to_be_specified() {
    if !need(&["mke2fs", "mount", "umount", "losetup"]) || !tools::has_loop() {
        return;
    }
    let journal = Image::mke2fs(&["-O", "journal_dev", "-b", "4096"], 8 << 20).build();
    let attached = tools::must("losetup", &["-f".as_ref(), "--show".as_ref(), journal.path().as_os_str()]).text();
    let loop_device = attached.trim().to_owned();
    let place = format!("device={loop_device}");
    let args = ["-t", "ext4", "-b", "4096", "-J", &place];
    let made = std::panic::catch_unwind(|| cut_off(&args, 64, || journal.bytes()));
    tools::must("losetup", &["-d", &loop_device]);
    let (image, journal) = made.expect("a volume with an external journal");
    let refused = refusal(image.bytes());
    assert!(refused.contains("journal is on another device"), "{refused}");
    let journal = memory(&journal);
    let options = OpenOptions { external_journal: Some(journal), ..OpenOptions::default() };
    let volume = Volume::open(memory(&image.bytes()), &options).unwrap();
    assert_eq!(volume.warnings(), [Warning::JournalReplayed]);
    let tree = Tree::new(64, &Spec::small());
    let ours = manifest(&volume).without("lost+found");
    tree.model().assert_same(&ours.forget(&[Field::Blocks]));
}
