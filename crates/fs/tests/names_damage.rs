//! Changing names on damaged volumes: no call panics, hangs, or runs for ever.

mod common;

use blockdev::{BlockDevice, MemoryDevice};
use extant_fs::{FileKind, InodeNo, NewFile, OpenOptions, RenameFlags, SetAttributes, Volume, WriteOptions, XattrMode};
use std::sync::Arc;
use testkit::damage::{Damager, metadata_ranges};
use testkit::{Image, Rng, Spec, Tree, cases, need, repair_checksums};

fn open_damaged(bytes: Vec<u8>) -> Option<Volume> {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::from_vec(bytes));
    let write = Some(WriteOptions { seed: Some(3), ..WriteOptions::default() });
    Volume::open(device, &OpenOptions { write, ..OpenOptions::default() }).ok()
}

/// Some directories and names found on the volume.
fn some_names(volume: &Volume) -> Vec<(InodeNo, Vec<u8>)> {
    let mut found = Vec::new();
    let mut dirs = vec![InodeNo::ROOT];
    for (_, inode) in volume.walk(InodeNo::ROOT).take(2000) {
        let Ok(inode) = inode else { continue };
        if inode.kind == FileKind::Directory && dirs.len() < 20 {
            dirs.push(inode.number);
        }
    }
    for number in dirs {
        let Ok(dir) = volume.inode(number) else { continue };
        let Ok(entries) = volume.read_dir(&dir, 0) else { continue };
        found.extend(entries.take(300).filter_map(|entry| Some((number, entry.ok()?.name))));
    }
    found
}

/// Changes names and attributes in every way; returns the number of successful calls.
fn change_everything(volume: &Volume, rng: &mut Rng) -> u64 {
    let names = some_names(volume);
    if names.is_empty() {
        return 0;
    }
    let mut done = 0;
    for n in 0..400 {
        let ((dir, name), (other, second)) = (rng.pick(&names).clone(), rng.pick(&names).clone());
        let new = format!("a name that was not there before {n}").into_bytes();
        let kind = *rng.pick(&[FileKind::Regular, FileKind::Directory, FileKind::Fifo]);
        let file = NewFile { kind, mode: 0o755, umask: 0, uid: 0, gid: 0, device: (0, 0) };
        let target = volume.inode(dir).and_then(|dir| volume.lookup(&dir, &name)).unwrap_or(dir);
        let flags = RenameFlags { exchange: rng.chance(30), whiteout: false, no_replace: false };
        let ok = match rng.below(10) {
            0 | 1 => volume.create(dir, &new, &file).is_ok(),
            2 => volume.symlink(dir, &new, &[b't'; 300], 0, 0).is_ok(),
            3 => volume.link(target, other, &new).is_ok(),
            4 => volume.unlink(dir, &name).is_ok(),
            5 => volume.rmdir(dir, &name).is_ok(),
            6 => volume.rename(dir, &name, other, &second, flags).is_ok(),
            7 => volume.rename(dir, &name, other, &new, RenameFlags::default()).is_ok(),
            8 => volume.set_xattr(target, b"user.new", &[9; 200], XattrMode::Any).is_ok(),
            _ => {
                let set = SetAttributes { mode: Some(0o700), ..SetAttributes::default() };
                volume.set_attributes(target, &set).is_ok()
            }
        };
        done += u64::from(ok);
    }
    // the volume may have detected its damage
    let _ = volume.unmount();
    done
}

#[test]
fn any_damage_is_survived_by_changes() {
    if !need(&["mke2fs", "e2fsck", "dumpe2fs", "debugfs"]) {
        return;
    }
    let tree = Tree::new(72, &Spec { wide: 150, largest: 30_000, largest_sparse: 100_000, ..Spec::small() });
    let make = |args: &[&str], block| (Image::mke2fs(args, 8 << 20).with_tree(&tree).indexed().build(), block);
    let bases = [
        make(&["-t", "ext2", "-b", "1024"], 1024),
        make(&["-t", "ext4", "-b", "1024", "-g", "2048", "-O", "^has_journal"], 1024),
        make(&["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,inline_data,orphan_file", "-I", "512"], 1024),
        make(&["-t", "ext4", "-b", "4096", "-O", "^metadata_csum,ea_inode,^has_journal"], 4096),
    ];
    let (mut changed, mut total) = (0, 0);
    for case in cases("any_damage_is_survived_by_changes", 150) {
        let mut rng = case.rng();
        let (image, block) = rng.pick(&bases);
        let mut bytes = image.bytes();
        let ranges = metadata_ranges(image.path(), *block);
        let damager = Damager::within(*block, ranges);
        for _ in 0..rng.between(1, 4) {
            damager.any(&mut bytes, &mut rng);
        }
        repair_checksums(&mut bytes);
        total += 1;
        if let Some(volume) = open_damaged(bytes) {
            changed += u64::from(change_everything(&volume, &mut rng) > 0);
        }
    }
    assert!(total == 1 || changed > total / 5, "{changed} of {total}");
}
