//! The file system over a changed volume: all that can be read of it.

use crate::volumes::changed;
use blockdev::{BlockDevice, Geometry, MemoryDevice, Result};
use fs::{FileKind, Inode, OpenOptions, Volume};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Entries of a tree that are looked at.
const ENTRIES: usize = 5_000;
/// Bytes of content that are read.
const CONTENT: u64 = 32 << 20;
/// Bytes that the device may be asked for, for each byte of the volume, for each entry looked at, and for each byte
/// read.
const DEVICE: (u64, u64, u64) = (8, 64 << 10, 4);

/// Counts what is read.
struct Counted {
    device: MemoryDevice,
    read: AtomicU64,
}

impl BlockDevice for Counted {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.read.fetch_add(buf.len() as u64, Ordering::Relaxed);
        self.device.read(offset, buf)
    }

    fn write(&self, _: u64, _: &[u8]) -> Result<()> {
        panic!("a volume that is open for reading is written")
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn discard(&self, _: u64, _: u64) -> Result<()> {
        panic!("a volume that is open for reading is discarded")
    }
}

/// The part of a budget that is used: directory entries, and bytes of content.
struct Budget {
    entries: usize,
    content: u64,
}

/// A changed volume is opened for reading, its tree walked, and everything in it read, up to a limit. Guarantee: it
/// ends, writes nothing, and asks the device for no more than a few times the bytes that the volume has and that were
/// read; errors are those of single files. An unchanged volume causes no error.
pub fn read(data: &[u8]) {
    let Some((bytes, unchanged)) = changed(data) else { return };
    let len = bytes.len() as u64;
    let device = Arc::new(Counted { device: MemoryDevice::from_vec(bytes), read: AtomicU64::new(0) });
    let as_device: Arc<dyn BlockDevice> = Arc::<Counted>::clone(&device);
    let mut budget = Budget { entries: 0, content: 0 };
    let options = OpenOptions { cache_bytes: 4 << 20, ..OpenOptions::default() };
    match Volume::open(Arc::clone(&as_device), &options) {
        Ok(volume) => {
            let errors = tree(&volume, unchanged, &mut budget);
            assert!(errors == 0 || !unchanged, "{errors} errors on an unchanged volume");
            for snapshot in volume.snapshots().unwrap_or_default().iter().take(4) {
                if let Ok(view) = volume.open_snapshot(&snapshot.name, 4 << 20) {
                    tree(&view, unchanged, &mut budget);
                }
                let _ = std::hint::black_box(volume.snapshot_space(&snapshot.name));
            }
        }
        Err(refusal) => assert!(!unchanged && !refusal.to_string().is_empty(), "{refusal}"),
    }
    let (of_volume, of_entry, of_byte) = DEVICE;
    let most = len * of_volume + budget.entries as u64 * of_entry + budget.content * of_byte;
    let read = device.read.load(Ordering::Relaxed);
    assert!(read <= most, "{read} bytes asked for; {} entries, {} bytes of content", budget.entries, budget.content);
}

/// Walks a tree and reads what is in it; how many errors there were.
fn tree(volume: &Volume, unchanged: bool, budget: &mut Budget) -> usize {
    std::hint::black_box((volume.statfs(), volume.warnings().len(), volume.superblock().geometry.groups));
    let mut errors = 0;
    for (path, found) in volume.walk(fs::InodeNo::ROOT) {
        budget.entries += 1;
        if budget.entries > ENTRIES {
            break;
        }
        let Ok(inode) = found else {
            errors += 1;
            continue;
        };
        // a name may be there twice, and hold any bytes
        let found = volume.resolve_nofollow(&path);
        let same = path.is_empty() || found.as_ref().is_ok_and(|number| *number == inode.number);
        assert!(same || !unchanged, "{path:?} leads to {found:?}");
        std::hint::black_box(volume.attributes(&inode));
        errors += usize::from(file(volume, &inode, budget).is_err()) + usize::from(attributes(volume, &inode).is_err());
    }
    errors
}

fn file(volume: &Volume, inode: &Inode, budget: &mut Budget) -> fs::Result<()> {
    match inode.kind {
        FileKind::Symlink => {
            let target = volume.read_link(inode)?;
            budget.content += target.len() as u64;
        }
        FileKind::Regular => {
            let mut buf = vec![0; 64 << 10];
            let mut at = 0;
            while let Some(start) = volume.seek_data(inode, at)?.filter(|_| budget.content < CONTENT) {
                assert!(start >= at);
                let read = volume.read_at(inode, start, &mut buf)?;
                assert!(read > 0 && read <= buf.len());
                budget.content += read as u64;
                at = start + read as u64;
            }
            let hole = volume.seek_hole(inode, 0)?;
            assert!(hole.is_none_or(|hole| hole <= volume.attributes(inode).size));
        }
        _ => {}
    }
    Ok(())
}

fn attributes(volume: &Volume, inode: &Inode) -> fs::Result<()> {
    for name in volume.list_xattrs(inode)? {
        std::hint::black_box(volume.get_xattr(inode, &name)?.len());
    }
    Ok(())
}
