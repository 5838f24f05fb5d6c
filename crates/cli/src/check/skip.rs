//! Whether a volume says of itself that it was left clean, so that a check can be skipped.
//!
//! As e2fsck without -f: the superblock alone is asked. In doubt the answer is no, and the volume is checked.

use blockdev::BlockDevice;
use check::report::Counts;
use format::feature::{Incompat, RoCompat};
use format::superblock::{DiskSuperblock, OFFSET, State, Superblock};
use std::time::{SystemTime, UNIX_EPOCH};

/// A volume that was left clean, in its own words.
pub(super) struct LeftClean {
    pub(super) format: &'static str,
    pub(super) counts: Counts,
}

/// What the volume says where it was left clean and no check is due.
pub(super) fn left_clean(device: &dyn BlockDevice) -> Option<LeftClean> {
    let mut bytes = [0; DiskSuperblock::SIZE];
    device.read(OFFSET, &mut bytes).ok()?;
    let sb = Superblock::parse(&bytes).ok()?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let length = sb.geometry.blocks.checked_mul(u64::from(sb.geometry.block_size))?;
    if !is_clean(&sb) || is_due(&sb.disk, now) || device.geometry().len < length {
        return None;
    }
    let inodes_total = u64::from(sb.geometry.inodes);
    let blocks_total = sb.geometry.blocks;
    let counts = Counts {
        // a count that cannot be is a reason to look
        inodes: inodes_total.checked_sub(u64::from(sb.disk.s_free_inodes_count.get()))?,
        inodes_total,
        blocks: blocks_total.checked_sub(sb.disk.free_blocks_count())?,
        blocks_total,
        ..Counts::default()
    };
    Some(LeftClean { format: sb.features.format_name(), counts })
}

fn is_clean(sb: &Superblock) -> bool {
    let state = State::from_bits_retain(sb.disk.s_state.get());
    state == State::VALID
        && !sb.features.incompat.contains(Incompat::NEEDS_RECOVERY)
        && !sb.features.ro_compat.contains(RoCompat::ORPHAN_PRESENT)
        && sb.disk.s_last_orphan.get() == 0
}

/// A check is due by the number of mounts or by time.
fn is_due(disk: &DiskSuperblock, now: u64) -> bool {
    let most = disk.s_max_mnt_count.get().cast_signed();
    let by_mounts = u16::try_from(most).is_ok_and(|most| most > 0 && disk.s_mnt_count.get() >= most);
    let checked = u64::from(disk.s_lastcheck_hi) << 32 | u64::from(disk.s_lastcheck.get());
    let interval = u64::from(disk.s_checkinterval.get());
    // a clock that was wrong says nothing about the time since then
    let by_time = interval > 0 && (checked > now || now - checked >= interval);
    by_mounts || by_time
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromZeros;

    #[test]
    fn checks_that_are_due() {
        let due = |mounts: u16, most: i16, checked: u32, interval: u32| {
            let mut disk = DiskSuperblock::new_zeroed();
            disk.s_mnt_count = mounts.into();
            disk.s_max_mnt_count = most.cast_unsigned().into();
            disk.s_lastcheck = checked.into();
            disk.s_checkinterval = interval.into();
            is_due(&disk, 1000)
        };
        assert!(!due(65535, -1, 0, 0) && !due(65535, 0, 0, 0));
        assert!(!due(9, 10, 0, 0) && due(10, 10, 0, 0));
        assert!(!due(0, -1, 900, 101) && due(0, -1, 900, 100));
        assert!(due(0, -1, 1001, 5000));
    }
}
