//! Checks whether a volume is marked clean, so that a check can be skipped.
//!
//! Like e2fsck without -f, this reads only the superblock. In doubt the volume is checked.

use super::config::Settings;
use blockdev::BlockDevice;
use check::report::Counts;
use format::feature::{Incompat, RoCompat};
use format::superblock::{DiskSuperblock, OFFSET, State, Superblock};
use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// A volume that is marked clean, and the counts of its superblock.
pub(super) struct LeftClean {
    pub(super) format: &'static str,
    pub(super) counts: Counts,
}

/// Format and counts where the volume is marked clean and no check is due; else the reason for a check, where the
/// superblock has one. `now` is the time in seconds since 1970, by default the system's. `orphans` ignores the orphan
/// list.
pub(super) fn left_clean(
    device: &dyn BlockDevice,
    now: Option<u64>,
    settings: &Settings,
    orphans: bool,
) -> Result<LeftClean, Option<String>> {
    let mut bytes = [0; DiskSuperblock::SIZE];
    let sb = device.read(OFFSET, &mut bytes).ok().and_then(|()| Superblock::parse(&bytes).ok()).ok_or(None)?;
    let system = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let now = (!settings.broken_clock).then(|| now.unwrap_or_else(system));
    let patience = if settings.defer_on_battery && on_battery(Path::new("/sys/class/power_supply")) { 2 } else { 1 };
    if let Some(why) = unclean(&sb, orphans).map(str::to_owned).or_else(|| due(&sb.disk, now, patience)) {
        return Err(Some(why));
    }
    let length = sb.geometry.blocks.checked_mul(u64::from(sb.geometry.block_size)).ok_or(None)?;
    if device.geometry().len < length {
        return Err(None);
    }
    let inodes_total = u64::from(sb.geometry.inodes);
    let blocks_total = sb.geometry.blocks;
    let counts = Counts {
        // an impossible count is a reason for a check
        inodes: inodes_total.checked_sub(u64::from(sb.disk.s_free_inodes_count.get())).ok_or(None)?,
        inodes_total,
        blocks: blocks_total.checked_sub(sb.disk.free_blocks_count()).ok_or(None)?,
        blocks_total,
        ..Counts::default()
    };
    Ok(LeftClean { format: sb.features.format_name(), counts })
}

/// The first readable backup superblock with possible fields: its block, and the block size in bytes.
pub(super) fn copy_of_superblock(device: &dyn BlockDevice) -> Option<(u64, u32)> {
    let mut bytes = [0; DiskSuperblock::SIZE];
    device.read(OFFSET, &mut bytes).ok()?;
    let geometry = Superblock::parse(&bytes).ok()?.geometry;
    geometry.backup_groups().find_map(|group| {
        let block = geometry.superblock_block(group)?;
        device.read(geometry.byte_offset(block)?, &mut bytes).ok()?;
        let copy = Superblock::parse(&bytes).ok()?;
        let is_possible = copy.disk.reserved_blocks_count() <= copy.geometry.blocks / 2;
        is_possible.then_some((block.get(), geometry.block_size))
    })
}

/// The reason why a volume is not cleanly unmounted, if any.
fn unclean(sb: &Superblock, orphans: bool) -> Option<&'static str> {
    let state = State::from_bits_retain(sb.disk.s_state.get());
    let pending = sb.features.incompat.contains(Incompat::NEEDS_RECOVERY)
        || sb.features.ro_compat.contains(RoCompat::ORPHAN_PRESENT)
        || !orphans && sb.disk.s_last_orphan.get() != 0;
    if state.contains(State::ERROR) {
        Some("is marked as having errors")
    } else if state != State::VALID || pending {
        Some("was not cleanly unmounted")
    } else {
        None
    }
}

/// Whether the volume is marked as having errors.
pub(super) fn is_marked(device: &dyn BlockDevice) -> bool {
    let mut bytes = [0; DiskSuperblock::SIZE];
    let read = device.read(OFFSET, &mut bytes).ok().and_then(|()| DiskSuperblock::from_slice(&bytes));
    read.is_none_or(|disk| State::from_bits_retain(disk.s_state.get()).contains(State::ERROR))
}

/// Whether a mains supply exists and is offline.
fn on_battery(supplies: &Path) -> bool {
    let read = |path: &Path, name: &str| fs::read_to_string(path.join(name)).unwrap_or_default();
    let mains = fs::read_dir(supplies).into_iter().flatten().flatten().map(|supply| supply.path());
    let online: Vec<String> =
        mains.filter(|path| read(path, "type").trim() == "Mains").map(|path| read(&path, "online")).collect();
    !online.is_empty() && online.iter().all(|online| online.trim() == "0")
}

/// The reason why a check is due, by the number of mounts or, where there is a clock, by time; the volume's limits are
/// multiplied by `patience`.
fn due(disk: &DiskSuperblock, now: Option<u64>, patience: u64) -> Option<String> {
    const DAY: u64 = 24 * 60 * 60;
    let most = disk.s_max_mnt_count.get().cast_signed();
    let mounts = disk.s_mnt_count.get();
    if u16::try_from(most).is_ok_and(|most| most > 0 && u64::from(mounts) >= u64::from(most) * patience) {
        return Some(format!("was mounted {mounts} times without a check"));
    }
    let checked = u64::from(disk.s_lastcheck_hi) << 32 | u64::from(disk.s_lastcheck.get());
    let interval = u64::from(disk.s_checkinterval.get());
    let now = now.filter(|_| interval > 0)?;
    match now.checked_sub(checked) {
        Some(since) if since >= interval * patience => Some(format!("has gone {} days without a check", since / DAY)),
        Some(_) => None,
        // with a wrong clock the time since then is unknown
        None => Some("was last checked in the future".into()),
    }
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
            due(&disk, Some(1000), 1).is_some()
        };
        assert!(!due(65535, -1, 0, 0) && !due(65535, 0, 0, 0));
        assert!(!due(9, 10, 0, 0) && due(10, 10, 0, 0));
        assert!(!due(0, -1, 900, 101) && due(0, -1, 900, 100));
        assert!(due(0, -1, 1001, 5000));
    }

    #[test]
    fn patience_and_clocks() {
        let mut disk = DiskSuperblock::new_zeroed();
        disk.s_mnt_count = 19.into();
        disk.s_max_mnt_count = 10.into();
        assert!(due(&disk, None, 1).is_some() && due(&disk, None, 2).is_none());
        disk.s_max_mnt_count = 0.into();
        disk.s_checkinterval = 600.into();
        assert_eq!(due(&disk, Some(1000), 1).unwrap(), "has gone 0 days without a check");
        assert!(due(&disk, Some(1000), 2).is_none() && due(&disk, None, 1).is_none());
    }

    #[test]
    fn batteries() {
        let folder = tempfile::tempdir().unwrap();
        let supply = |name: &str, kind: &str, online: &str| {
            fs::create_dir_all(folder.path().join(name)).unwrap();
            fs::write(folder.path().join(name).join("type"), kind).unwrap();
            fs::write(folder.path().join(name).join("online"), online).unwrap();
        };
        assert!(!on_battery(folder.path()));
        supply("BAT0", "Battery\n", "0\n");
        assert!(!on_battery(folder.path()));
        supply("AC", "Mains\n", "0\n");
        assert!(on_battery(folder.path()));
        supply("AC2", "Mains\n", "1\n");
        assert!(!on_battery(folder.path()));
    }
}
