//! The background thread: it sleeps while the volume is idle, and later work is not lost.

use crate::{Consistency, FileKind, InodeNo, NewFile, OpenOptions, Volume, WriteOptions};
use blockdev::{BlockDevice, FileDevice};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use testkit::{Image, need};

/// Longer than any idle time after which an engine acts.
const QUIET: Duration = Duration::from_secs(6);
/// Timeout for work of some seconds on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

fn open(image: &Image, consistency: Consistency) -> Arc<Volume> {
    let writable = blockdev::OpenOptions { write: true, ..blockdev::OpenOptions::default() };
    let device: Arc<dyn BlockDevice> = Arc::new(FileDevice::open(image.path(), writable).expect("an image"));
    let commit = Duration::from_millis(300);
    let write = WriteOptions { consistency: Some(consistency), commit, ..WriteOptions::default() };
    let open = OpenOptions { write: Some(write), ..OpenOptions::default() };
    Arc::new(Volume::open(device, &open).expect("a volume"))
}

fn make(volume: &Volume, name: &str) {
    let new = NewFile { kind: FileKind::Regular, mode: 0o644, umask: 0, uid: 0, gid: 0, device: (0, 0) };
    let file = volume.create(InodeNo::ROOT, name.as_bytes(), &new).expect("a file");
    volume.write_at(file.number, 0, b"content").expect("written");
}

/// The number of times that the background threads have woken.
fn woken(volumes: &[Arc<Volume>]) -> u64 {
    volumes.iter().map(|volume| volume.writing().expect("writable").wakeup.woken()).sum()
}

/// Waits until no background thread has woken for longer than any engine's idle time.
fn wait_until_idle(volumes: &[Arc<Volume>]) {
    let end = Instant::now() + PATIENCE;
    loop {
        let before = woken(volumes);
        std::thread::sleep(QUIET);
        if woken(volumes) == before {
            return;
        }
        assert!(Instant::now() < end, "the threads wake again and again");
    }
}

#[test]
fn in_quiet_the_background_sleeps_and_what_comes_then_is_written() {
    if !need(&["mke2fs"]) {
        return;
    }
    let images = ["ext4", "ext2", "ext2"].map(|format| Image::mke2fs(&["-t", format], 16 << 20).build());
    let modes = [Consistency::Journal, Consistency::DirtyBit, Consistency::None];
    let volumes = [0, 1, 2].map(|n: usize| open(&images[n], modes[n]));
    volumes.iter().for_each(|volume| volume.start_background());
    for name in ["first", "second"] {
        let opened: Vec<_> = volumes.iter().map(|volume| volume.store.open_generation()).collect();
        volumes.iter().for_each(|volume| make(volume, name));
        wait_until_idle(&volumes);
        for (volume, opened) in volumes.iter().zip(opened) {
            assert_eq!(volume.nodes.delayed(), 0, "{name}: data is still delayed");
            assert!(volume.store.durable_generation() >= opened, "{name}: it was not written");
            assert_eq!(volume.next_due(Duration::ZERO), None, "{name}: something is left to do");
        }
    }
    // reading uses memory, which is checked: a few times
    let before = woken(&volumes);
    for volume in &volumes {
        let inode = volume.inode(volume.resolve(b"/first").expect("a name")).expect("a file");
        assert_eq!(volume.read_at(&inode, 0, &mut [0; 7]).expect("its content"), 7);
    }
    wait_until_idle(&volumes);
    assert!(woken(&volumes) > before);
    volumes.iter().for_each(|volume| volume.unmount().expect("unmounted"));
}

#[test]
fn the_background_ends_with_the_volume() {
    if !need(&["mke2fs"]) {
        return;
    }
    let image = Image::mke2fs(&["-t", "ext4"], 16 << 20).build();
    let volume = open(&image, Consistency::Journal);
    volume.start_background();
    let wakeup = Arc::downgrade(&volume.writing().expect("writable").wakeup);
    drop(volume);
    let end = Instant::now() + PATIENCE;
    while Weak::strong_count(&wakeup) > 0 {
        assert!(Instant::now() < end, "the thread sleeps for ever");
        std::thread::sleep(Duration::from_millis(5));
    }
}
