//! Allocation on volumes of many layouts, checked by e2fsck.

use super::{Purpose, Role};
use crate::{Clock, Consistency, Error, FileKind, InodeNo, OpenOptions, Timestamp, Volume, WriteOptions};
use blockdev::{BlockDevice, FileDevice, MemoryDevice};
use format::group::Group;
use format::inode::InodeBuf;
use format::superblock::Geometry;
use format::{FsBlock, GroupNo};
use std::path::Path;
use std::sync::Arc;
use testkit::{Image, Rng, oracle, tools};

const SHAPES: &[&[&str]] = &[
    &["-t", "ext2", "-b", "1024"],
    &["-t", "ext2", "-b", "4096", "-r", "0"],
    &["-t", "ext3", "-b", "2048"],
    &["-t", "ext4", "-b", "1024"],
    &["-t", "ext4", "-b", "4096", "-O", "^has_journal"],
    &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,uninit_bg,^64bit"],
    &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,^uninit_bg,^flex_bg"],
    &["-t", "ext4", "-b", "1024", "-O", "meta_bg,^resize_inode", "-g", "512"],
    &["-t", "ext4", "-b", "1024", "-O", "sparse_super2,64bit", "-G", "4", "-N", "8000"],
];

fn options(consistency: Consistency) -> OpenOptions {
    let clock: Clock = Arc::new(|| Timestamp { seconds: 1_800_000_000, nanos: 0 });
    let write = WriteOptions { consistency: Some(consistency), clock, seed: Some(7), ..WriteOptions::default() };
    OpenOptions { cache_bytes: 64 << 10, write: Some(write), ..OpenOptions::default() }
}

/// Opens with the smallest cache between generations: bitmaps are dropped and read again.
fn open(image: &Path, consistency: Consistency) -> Volume {
    let writable = blockdev::OpenOptions { write: true, ..blockdev::OpenOptions::default() };
    let device: Arc<dyn BlockDevice> = Arc::new(FileDevice::open(image, writable).expect("opening an image"));
    Volume::open(device, &options(consistency)).expect("opening a volume")
}

/// A new inode that is not in use: its slot is that of a freed inode.
fn put_empty(volume: &Volume, kind: FileKind) -> InodeNo {
    let root = volume.inode(InodeNo::ROOT).expect("the root");
    let change = volume.change(4).expect("a change");
    let (number, _) = change.allocate_inode(&root, kind).expect("an inode");
    change.put_freed_inode(number, InodeBuf::new(volume.sb.geometry.inode_size, 0)).expect("its slot");
    number
}

#[test]
fn allocating_and_freeing_leaves_a_consistent_volume() {
    if !tools::need(&["mke2fs", "e2fsck"]) {
        return;
    }
    for (n, shape) in SHAPES.iter().enumerate() {
        let image = Image::mke2fs(shape, 20 << 20).build();
        let before = oracle::debugfs(image.path(), "stats");
        let volume = open(image.path(), if n % 2 == 0 { Consistency::DirtyBit } else { Consistency::None });
        let free = volume.statfs();
        let mut rng = Rng::new(n as u64);
        let (mut blocks, mut inodes) = (Vec::new(), Vec::new());
        for round in 0..400u32 {
            if rng.chance(66) {
                let change = volume.change(0).expect("a change");
                let goal = FsBlock(rng.below(volume.sb.geometry.blocks + 5));
                let want = 1 << rng.below(9);
                match change.allocate(InodeNo::ROOT, goal, want, Role::Content) {
                    Ok(extent) => {
                        assert!((1..=want).contains(&extent.count));
                        blocks.push(extent);
                    }
                    Err(e) => assert!(matches!(e, Error::NoSpace), "{e}"),
                }
                drop(change);
                inodes.push((put_empty(&volume, FileKind::Directory), true));
                inodes.push((put_empty(&volume, FileKind::Regular), false));
            } else if !blocks.is_empty() {
                let extent = blocks.swap_remove(rng.below(blocks.len() as u64) as usize);
                let (number, directory) = inodes.swap_remove(rng.below(inodes.len() as u64) as usize);
                let change = volume.change(0).expect("a change");
                change.free(extent.first, extent.count.into(), Purpose::Metadata).expect("free");
                change.free_inode(number, directory).expect("free");
            }
            if round % 50 == 0 {
                volume.sync().expect("sync");
                // space freed in this generation is deferred until it is durable, and its maps stay for the next one
                volume.sync().expect("sync");
                let space = volume.space().expect("writable");
                assert!(space.loaded.lock().len() <= space.options.bitmaps, "{shape:?}");
            }
        }
        blocks.sort_by_key(|extent| extent.first);
        assert!(blocks.windows(2).all(|w| w[0].first.get() + u64::from(w[0].count) <= w[1].first.get()), "{shape:?}");
        let numbers: std::collections::BTreeSet<_> = inodes.iter().map(|(number, _)| *number).collect();
        assert_eq!(numbers.len(), inodes.len());
        for (number, directory) in inodes {
            volume.change(0).expect("a change").free_inode(number, directory).expect("free");
        }
        for extent in blocks {
            let change = volume.change(0).expect("a change");
            change.free(extent.first, extent.count.into(), Purpose::Data).expect("free");
        }
        volume.sync().expect("sync");
        assert_eq!(volume.statfs(), free, "{shape:?}");
        assert_eq!(volume.damaged_groups(), []);
        volume.unmount().expect("unmount");
        let verdict = oracle::e2fsck(image.path());
        assert!(verdict.clean, "{shape:?}: {}\n{before}", verdict.text);
    }
}

#[test]
fn all_blocks_can_be_used_and_none_twice() {
    if !tools::need(&["mke2fs", "e2fsck"]) {
        return;
    }
    let image = Image::mke2fs(&["-t", "ext4", "-b", "1024", "-m", "10"], 20 << 20).build();
    let volume = open(image.path(), Consistency::DirtyBit);
    let available = volume.statfs().blocks_available;
    let reservation = volume.reserve(100).expect("there is space");
    assert_eq!(volume.statfs().blocks_available, available - 100);
    let mut extents = Vec::new();
    loop {
        let change = volume.change(0).expect("a change");
        match change.allocate(InodeNo::ROOT, FsBlock(9000), 700, Role::Content) {
            Ok(extent) => extents.push(extent),
            Err(Error::NoSpace) => break,
            Err(e) => panic!("{e}"),
        }
    }
    let taken: u64 = extents.iter().map(|extent| u64::from(extent.count)).sum();
    assert_eq!(taken, available - 100);
    assert!(matches!(volume.reserve(1), Err(Error::NoSpace)));
    drop(reservation);
    volume.reserve(100).expect("the reservation was released");
    // the reservation may use all free blocks
    let change = volume.change(0).expect("a change");
    change.set_privilege(space::Privilege::Reserved);
    while let Ok(extent) = change.allocate(InodeNo::ROOT, FsBlock(0), 5000, Role::Content) {
        extents.push(extent);
    }
    drop(change);
    assert_eq!(volume.statfs().blocks_free, 0);
    // blocks freed as metadata are not allocated again before they are durable
    let extent = extents.pop().expect("there are some");
    let change = volume.change(0).expect("a change");
    change.free(extent.first, extent.count.into(), Purpose::Metadata).expect("free");
    change.set_privilege(space::Privilege::Reserved);
    assert!(matches!(change.allocate(InodeNo::ROOT, FsBlock(0), 1, Role::Content), Err(Error::NoSpace)));
    drop(change);
    assert_eq!(volume.space().expect("writable").pool.lock().deferred(), u64::from(extent.count));
    volume.sync().expect("sync");
    let change = volume.change(0).expect("a change");
    change.set_privilege(space::Privilege::Reserved);
    assert_eq!(change.allocate(InodeNo::ROOT, FsBlock(0), extent.count, Role::Content).expect("it is durable"), extent);
    for extent in extents.into_iter().chain([extent]) {
        change.free(extent.first, extent.count.into(), Purpose::Data).expect("free");
        assert!(change.free(FsBlock(2), 1, Purpose::Data).is_err(), "the descriptors cannot be freed");
    }
    drop(change);
    volume.unmount().expect("unmount");
    let verdict = oracle::e2fsck(image.path());
    assert!(verdict.clean, "{}", verdict.text);
}

#[test]
fn many_threads_share_the_space() {
    if !tools::need(&["mke2fs", "e2fsck"]) {
        return;
    }
    let image = Image::mke2fs(&["-t", "ext4", "-b", "1024", "-N", "4000"], 24 << 20).build();
    let volume = open(image.path(), Consistency::Journal);
    let free = volume.statfs();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let volume = &volume;
            scope.spawn(move || {
                let mut rng = Rng::new(thread);
                let (mut blocks, mut inodes) = (Vec::new(), Vec::new());
                for round in 0..600u32 {
                    if rng.chance(55) {
                        let goal = FsBlock(rng.below(24_000));
                        let change = volume.change(1).expect("a change");
                        blocks.extend(change.allocate(InodeNo::ROOT, goal, 1 << rng.below(7), Role::Content).ok());
                        drop(change);
                        inodes.push(put_empty(volume, FileKind::Regular));
                    } else if let (Some(extent), Some(number)) = (blocks.pop(), inodes.pop()) {
                        let change = volume.change(1).expect("a change");
                        change.free(extent.first, extent.count.into(), Purpose::Data).expect("free");
                        change.free_inode(number, false).expect("free");
                    }
                    if round % 100 == 99 {
                        volume.store.sync().expect("sync");
                    }
                }
                let change = volume.change(1).expect("a change");
                inodes.iter().for_each(|number| change.free_inode(*number, false).expect("free"));
                for extent in blocks {
                    change.free(extent.first, extent.count.into(), Purpose::Metadata).expect("free");
                }
            });
        }
    });
    volume.sync().expect("sync");
    assert_eq!((volume.statfs(), volume.damaged_groups()), (free, vec![]));
    volume.unmount().expect("unmount");
    let verdict = oracle::e2fsck(image.path());
    assert!(verdict.clean, "{}", verdict.text);
}

#[test]
fn a_large_volume_is_opened_and_used() {
    if !tools::need(&["mke2fs", "e2fsck"]) {
        return;
    }
    let image =
        Image::mke2fs(&["-t", "ext4", "-E", "lazy_itable_init=1", "-N", "100000", "-O", "^has_journal"], 1 << 40)
            .build();
    let volume = open(image.path(), Consistency::DirtyBit);
    let free = volume.statfs().blocks_free;
    let root = volume.inode(InodeNo::ROOT).expect("the root");
    let change = volume.change(0).expect("a change");
    let mut taken: Vec<_> = [5 << 20, 200 << 20, 250 << 20, 0]
        .map(|goal| change.allocate(InodeNo::ROOT, FsBlock(goal), 30_000, Role::Content).expect("there is space"))
        .to_vec();
    taken.push(change.allocate(InodeNo::ROOT, volume.goal(&root), 1, Role::Metadata).expect("there is space"));
    drop(change);
    assert_eq!(volume.statfs().blocks_free, free - taken.iter().map(|extent| u64::from(extent.count)).sum::<u64>());
    assert!(taken.iter().take(4).all(|extent| extent.count == 30_000), "{taken:?}");
    // top-level directories are spread over groups
    let groups: std::collections::BTreeSet<u32> = (0..20)
        .map(|_| put_empty(&volume, FileKind::Directory))
        .map(|number| volume.sb.geometry.inode_slot(number).expect("it exists").group.get() / 16)
        .collect();
    assert_eq!(groups.len(), 20);
    volume.sync().expect("sync");
    let change = volume.change(0).expect("a change");
    for extent in taken {
        change.free(extent.first, extent.count.into(), Purpose::Data).expect("free");
    }
    drop(change);
    volume.unmount().expect("unmount");
    let verdict = oracle::e2fsck(image.path());
    // the directories have no names
    assert!(!verdict.text.contains("Free blocks count wrong"), "{}", verdict.text);
}

#[test]
fn descriptors_that_overlap_are_not_written_on() {
    if !tools::need(&["mke2fs"]) {
        return;
    }
    for shape in [&["-t", "ext2", "-b", "1024"][..], &["-t", "ext4", "-b", "1024"]] {
        let image = Image::mke2fs(shape, 20 << 20).build();
        let intact = open(image.path(), Consistency::None);
        let (geometry, second) = (&intact.sb.geometry, intact.group(GroupNo(1)).expect("a group"));
        let wrong: [fn(&mut Group, &Geometry); 4] = [
            |group, geometry| group.block_bitmap = FsBlock(geometry.blocks),
            |group, geometry| group.inode_bitmap = geometry.descriptor_block(0),
            |group, _| group.block_bitmap = group.inode_bitmap,
            |group, _| group.inode_table = FsBlock(group.inode_table.get() - 1),
        ];
        for change in wrong {
            let mut bytes = image.bytes();
            let mut group = second;
            change(&mut group, geometry);
            let at = geometry.descriptor_block(0).get() as usize * 1024 + geometry.descriptor_size as usize;
            let place = &mut bytes[at..at + geometry.descriptor_size as usize];
            group.set_checksum(&intact.sb.disk, geometry, GroupNo(1), place);
            let opened = Volume::open(Arc::new(MemoryDevice::from_vec(bytes)), &options(Consistency::None));
            assert!(opened.is_err_and(|e| e.is_corruption()), "{shape:?}");
        }
    }
}

/// An inode whose first extent points to `block`.
fn led_to(volume: &Volume, number: InodeNo, block: u64) -> crate::Inode {
    let inode = volume.inode(number).expect("an inode");
    let mut bytes = inode.raw().bytes().to_vec();
    let extent = 40 + 12;
    bytes[extent + 4..extent + 6].copy_from_slice(&1u16.to_le_bytes());
    bytes[extent + 8..extent + 12].copy_from_slice(&(block as u32).to_le_bytes());
    crate::Inode::without_checksum(&volume.sb, number, bytes.into()).expect("an inode")
}

#[test]
fn no_map_of_a_native_volume_leads_to_its_metadata() {
    let device = MemoryDevice::zeroed(64 << 20).expect("a device");
    crate::mkfs::make(&device, &crate::mkfs::MkfsOptions::new(crate::mkfs::Kind::Extant)).expect("made");
    let device: Arc<dyn BlockDevice> = Arc::new(device);
    let volume = Volume::open(Arc::clone(&device), &options(Consistency::Snapshot)).expect("opening a volume");
    let file = crate::NewFile { kind: FileKind::Regular, mode: 0o644, umask: 0, uid: 0, gid: 0, device: (0, 0) };
    let number = volume.create(InodeNo::ROOT, b"f", &file).expect("created").number;
    volume.write_at(number, 0, &[1; 4096]).expect("written");
    volume.sync().expect("synced");
    let generations = volume.summary().expect("read").generations.expect("native");
    let native = generations.layout();
    let versions = volume.layout.versions().expect("native");
    let leads = |block: u64| volume.map(&led_to(&volume, number, block), format::FileBlock(0)).is_ok();
    let own = volume.map(&volume.inode(number).expect("an inode"), format::FileBlock(0)).expect("mapped");
    assert!(leads(own.physical().expect("a block").get()));
    let descriptors = versions.mapped.entry_of(FsBlock(1)).expect("read").expect("written");
    let data = 0..native.metadata_start().min(native.blocks());
    let refused: Vec<u64> = data.filter(|block| !leads(*block)).collect();
    // the superblocks, the current descriptors, and the locations that e2fsck searches for another superblock
    let reserved = native.backup_blocks();
    assert!([0, 1, descriptors.physical].iter().chain(&reserved).all(|block| refused.contains(block)), "{refused:?}");
    assert!(refused.len() < 4096, "{} blocks", refused.len());
    // metadata above the map
    assert!(!leads(native.metadata_start() + 10));
    // a directory instead of content
    let root = volume.inode(InodeNo::ROOT).expect("the root");
    assert!(volume.map(&root, format::FileBlock(0)).is_ok());
    assert!(
        volume
            .map(&led_to(&volume, InodeNo::ROOT, own.physical().expect("a block").get()), format::FileBlock(0))
            .is_err()
    );
    volume.unmount().expect("unmounted");
}
