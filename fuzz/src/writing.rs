//! Work on a changed volume. An input is a byte for how it is opened, a count of changes, those changes as for the
//! checker, and then operations of six bytes each.

use crate::made::{contents, new, writing};
use crate::seeds::volumes;
use crate::volumes::{CHANGE, changed};
use blockdev::{BlockDevice, MemoryDevice};
use fs::{
    AllocateMode, Consistency, DataMode, FileKind, InodeNo, OpenOptions, RenameFlags, SetAttributes, Volume,
    WriteOptions, XattrMode,
};
use std::sync::Arc;
use std::time::Duration;
use testkit::Rng;

/// Bytes of an operation.
const OPERATION: usize = 6;
/// Operations of an input.
const MOST: usize = 200;

/// Volumes unchanged and changed in a few places, and work on them.
pub(crate) fn workloads() -> Vec<Vec<u8>> {
    let mut rng = Rng::new(8);
    let mut seeds = Vec::new();
    for number in 0..volumes().len() as u8 {
        for changes in [0, 0, 1, 1, 2, 4] {
            let mut seed = vec![rng.next_u64() as u8, changes, number, 2];
            for _ in 0..changes {
                let mut change = rng.bytes(CHANGE);
                change[3] |= 0x80;
                seed.extend(change);
            }
            let operations = rng.between(10, 80) as usize;
            seed.extend(rng.bytes(operations * OPERATION));
            seeds.push(seed);
        }
    }
    seeds
}

/// The options with which an input opens its volume.
fn options(how: u8) -> OpenOptions {
    let base = writing();
    let write = base.write.clone().unwrap_or_default();
    let consistency = match how & 3 {
        1 => Some(Consistency::None),
        2 => Some(Consistency::DirtyBit),
        _ => None,
    };
    let data = match how >> 2 & 3 {
        1 => DataMode::Writeback,
        2 => DataMode::Journal,
        3 => DataMode::NewBlocks,
        _ => DataMode::Ordered,
    };
    let superuser = how & 16 != 0;
    OpenOptions { write: Some(WriteOptions { consistency, data, superuser, ..write }), ..base }
}

fn is_clean(device: &MemoryDevice) -> bool {
    let options = check::Options { threads: 1, ..check::Options::default() };
    check::check("volume", device, &options, &()).is_ok_and(|report| report.clean)
}

/// A changed volume is opened for writing and worked on. Guarantee: it ends; and where the checker finds nothing wrong
/// before, every operation is done or refused, the volume can be unmounted, and the checker finds nothing wrong behind
/// it.
pub fn write(data: &[u8]) {
    let Some((&[how, changes], input)) = data.split_first_chunk() else { return };
    let Some((head, operations)) = input.split_at_checked((2 + usize::from(changes & 15) * CHANGE).min(input.len()))
    else {
        return;
    };
    let Some((bytes, _)) = changed(head) else { return };
    let device = Arc::new(MemoryDevice::from_vec(bytes));
    let was_clean = is_clean(&device);
    let as_device: Arc<dyn BlockDevice> = Arc::<MemoryDevice>::clone(&device);
    let Ok(volume) = Volume::open(as_device, &options(how)) else { return };
    let volume = Arc::new(volume);
    let mut work = Work { volume: &volume, known: vec![InodeNo::ROOT] };
    for operation in operations.as_chunks::<OPERATION>().0.iter().take(MOST) {
        let outcome = work.one(operation);
        let broken = matches!(&outcome, Err(fs::Error::Io(_) | fs::Error::ReadOnly(_)));
        assert!(!was_clean || !broken && !outcome.as_ref().is_err_and(fs::Error::is_corruption), "{outcome:?}");
    }
    if how & 32 == 0 {
        for number in work.known.drain(1..) {
            let forgotten = volume.forget(number, 1);
            assert!(!was_clean || forgotten.is_ok(), "{forgotten:?}");
        }
    }
    let ended = volume.unmount();
    drop(volume);
    if was_clean {
        ended.expect("a consistent volume in memory");
        let options = check::Options { threads: 1, ..check::Options::default() };
        let after = MemoryDevice::from_vec(contents(&*device));
        let report = check::check("volume", &after, &options, &()).expect("a volume that was consistent");
        assert!(report.clean, "{:?}", report.problems);
    }
}

struct Work<'v> {
    volume: &'v Arc<Volume>,
    /// Inodes that were seen and are looked up, the root first.
    known: Vec<InodeNo>,
}

impl Work<'_> {
    /// Looks an inode up, as the kernel does before a file is opened.
    fn know(&mut self, number: InodeNo) {
        self.volume.add_lookup(number);
        self.known.push(number);
    }

    fn inode(&self, which: u8) -> InodeNo {
        self.known[usize::from(which) % self.known.len()]
    }

    /// A name: those that volumes have at first, and a few more.
    fn name(which: u8) -> Vec<u8> {
        match which % 24 {
            0 => b"dir".to_vec(),
            1 => b"deep".to_vec(),
            2 => b"pieces".to_vec(),
            3 => b"other".to_vec(),
            4 => b"link".to_vec(),
            5 => b"hard".to_vec(),
            6 => b"lost+found".to_vec(),
            7 => b"..".to_vec(),
            8 => vec![b'n'; 255],
            9 => format!("{:>90}", which / 4).into_bytes(),
            10 => "Grösse".as_bytes().to_vec(),
            11 => "GRÖSSE".as_bytes().to_vec(),
            n => vec![b'a' + n],
        }
    }

    fn one(&mut self, &[what, first, name, second, a, b]: &[u8; OPERATION]) -> fs::Result<()> {
        let volume = self.volume;
        let (one, two) = (self.inode(first), self.inode(second));
        let (name, other) = (Self::name(name), Self::name(b));
        // places up to some megabytes, and a few far away
        let place = match a {
            250.. => u64::from(b) << (32 + a % 8),
            _ => u64::from(a) * u64::from(a) * 97 + u64::from(b),
        };
        let kind = [FileKind::Regular, FileKind::Directory, FileKind::Regular, FileKind::Fifo][usize::from(a % 4)];
        match what % 26 {
            0..=2 => {
                let made = volume.create(one, &name, &new(kind))?.number;
                self.know(made);
            }
            3 => drop(volume.symlink(one, &name, &vec![b't'; 1 + usize::from(a) * 3], 0, 0)?),
            4 => drop(volume.link(two, one, &name)?),
            5 | 6 => volume.unlink(one, &name)?,
            7 => volume.rmdir(one, &name)?,
            8 | 9 => {
                let flags = RenameFlags { no_replace: a & 7 == 1, exchange: a & 7 == 2, whiteout: a & 7 == 3 };
                volume.rename(one, &name, two, &other, flags)?;
            }
            10 | 11 => drop(volume.write_at(one, place, &vec![b; 1 + usize::from(b) * 40])?),
            12 => volume.truncate(one, place)?,
            13 => {
                const MODES: [AllocateMode; 7] = [
                    AllocateMode::Extend,
                    AllocateMode::KeepSize,
                    AllocateMode::PunchHole,
                    AllocateMode::Zero,
                    AllocateMode::ZeroKeepSize,
                    AllocateMode::Collapse,
                    AllocateMode::Insert,
                ];
                let (at, len) = (u64::from(a) * 1024, u64::from(b) * 512);
                volume.allocate(one, MODES[usize::from(second) % MODES.len()], at, len)?;
            }
            14 | 15 => {
                let value = vec![b; usize::from(a) * if b & 64 != 0 { 40 } else { 3 }];
                volume.set_xattr(one, &[&b"user."[..], &name].concat(), &value, XattrMode::Any)?;
            }
            16 => volume.remove_xattr(one, &[&b"user."[..], &name].concat())?,
            17 => {
                let set = SetAttributes { mode: Some(u16::from(a)), uid: Some(b.into()), ..SetAttributes::default() };
                volume.set_attributes(one, &set)?;
            }
            18 => volume.fsync(one, a & 1 != 0)?,
            19 => volume.sync()?,
            20 | 21 => {
                let dir = volume.inode(one)?;
                let found = volume.lookup(&dir, &name)?;
                self.know(found);
            }
            22 => {
                let inode = volume.inode(one)?;
                let mut buf = vec![0; 4096];
                let _ = std::hint::black_box(volume.read_at(&inode, place, &mut buf)?);
            }
            23 => {
                let made = volume.tmpfile(one, &new(FileKind::Regular))?.number;
                volume.write_at(made, 0, &[b; 3000])?;
                let linked = if a & 1 != 0 { volume.link(made, one, &name).map(|_| self.know(made)) } else { Ok(()) };
                volume.forget(made, 1)?;
                linked?;
            }
            24 => match a % 3 {
                0 => drop(volume.create_snapshot(&name)?),
                1 => volume.delete_snapshot(&name)?,
                _ => drop(volume.snapshots()?),
            },
            _ => {
                let transaction = volume.transaction(Duration::from_secs(3600))?;
                let work = {
                    let _inside = transaction.enter();
                    volume.write_at(one, place % (1 << 20), &[b; 5000]).and_then(|_| volume.unlink(two, &name))
                };
                let ended = if a & 1 != 0 { transaction.commit() } else { transaction.rollback().map(|_| ()) };
                work.and(ended)?;
            }
        }
        Ok(())
    }
}
