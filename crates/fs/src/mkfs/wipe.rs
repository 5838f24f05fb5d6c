//! Wiping of old content: everything that a tool could detect as a volume.

use super::error::Result;
use blockdev::{BlockDevice, Read};
use format::GroupNo;
use format::superblock::{DiskSuperblock, Geometry, MAGIC, OFFSET};
use std::collections::BTreeSet;

/// Bytes at a device's start and end that can contain signatures of other formats.
const ENDS: u64 = 1 << 20;
/// Bytes that identify a copy of a superblock.
const PROBE: usize = DiskSuperblock::SIZE;
/// Probes of one batch.
const BATCH: usize = 64;
/// Maximum number of superblock copies searched.
const PROBES_MAX: usize = 100_000;

/// Zeroes both ends of the first `len` bytes, and every copy of a superblock between them of an ext volume with the
/// usual geometry, or with that of the existing volume.
pub(super) fn wipe(device: &dyn BlockDevice, len: u64) -> Result<()> {
    let old = old_geometry(device);
    device.write_zeroes(0, ENDS.min(len))?;
    let end = len.saturating_sub(ENDS);
    device.write_zeroes(end, len - end)?;
    let places: Vec<u64> = places(len, old.as_ref()).into_iter().collect();
    let mut buffer = vec![0; BATCH * PROBE];
    for places in places.chunks(BATCH) {
        let mut reads: Vec<_> =
            places.iter().zip(buffer.chunks_mut(PROBE)).map(|(at, buf)| Read::new(*at, buf)).collect();
        device.read_many(&mut reads);
        let found: Vec<u64> =
            reads.iter().filter(|read| read.result.is_ok() && is_copy(read.buf)).map(|r| r.offset).collect();
        for at in found {
            device.write_zeroes(at, PROBE as u64)?;
        }
    }
    Ok(())
}

fn is_copy(bytes: &[u8]) -> bool {
    DiskSuperblock::from_slice(bytes).is_some_and(|sb| sb.s_magic.get() == MAGIC)
}

/// The geometry of the existing volume, whatever its features.
fn old_geometry(device: &dyn BlockDevice) -> Option<Geometry> {
    let mut bytes = [0; DiskSuperblock::SIZE];
    device.read(OFFSET, &mut bytes).ok()?;
    Geometry::of(&DiskSuperblock::from_slice(&bytes)?).ok()
}

/// The offsets in bytes of possible superblock copies in a volume of this many bytes.
fn places(len: u64, old: Option<&Geometry>) -> BTreeSet<u64> {
    let mut places = BTreeSet::new();
    for log in 10..=16u32 {
        let block_size = 1u64 << log;
        let group_blocks = (block_size * 8).min(65528);
        let first = u64::from(log == 10);
        let groups = len / (group_blocks * block_size) + 1;
        for base in [3u64, 5, 7] {
            let mut group = 1u64;
            while group <= groups {
                places.insert((first + group * group_blocks) * block_size);
                group *= base;
            }
        }
    }
    if let Some(old) = old {
        let start = |group: GroupNo| old.group_start(group).get().checked_mul(u64::from(old.block_size));
        places.extend(old.backup_groups().filter_map(start).take(PROBES_MAX));
    }
    places.retain(|at| at.checked_add(PROBE as u64).is_some_and(|end| end <= len));
    places
}
