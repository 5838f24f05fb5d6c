//! The available memory, and its division by purpose.
//!
//! All limits are defined here. The options of opening a volume set the maximum for each purpose; the share of the
//! available memory limits it if that is less:
//!
//! | purpose | share | maximum, unless set when the volume is opened |
//! | --- | --- | --- |
//! | delayed data | 1/16 | 1 GiB |
//! | cached metadata; bitmaps use an additional half of that | 1/16 | 32 MiB |
//! | changed metadata of the open generation; the one being written uses the same amount again | 1/32 | 64 MiB |
//! | a generation open for a transaction; journal contents not yet checkpointed | 1/8 | 64 MiB |
//! | inodes | 1/32 | 16384 |
//! | inodes that have a lookup count and are not in use | 1/16 | none |
//!
//! Together that is less than half: the rest is for the buffers of requests, blocks being written, and allocator
//! overhead. Without the limit of a control group delayed data may use 64 MiB in any case, as a machine with little
//! memory has the disk for swapping.
//!
//! A limit may change while the volume is in use, and other programs may use the memory, so code that depends on it
//! checks it periodically.

use parking_lot::Mutex;
use std::path::Path;
use std::time::{Duration, Instant};

/// The memory in bytes that is assumed if the system does not report it.
const UNKNOWN: u64 = 1 << 30;
/// The time for which a result is cached.
const CACHE_TIME: Duration = Duration::from_secs(2);
/// Minimum for delayed data without the limit of a control group.
const LEAST_DELAYED: u64 = 64 << 20;
/// Approximate bytes of an inode in memory, and the maximum and minimum number of cached inodes.
const INODE_BYTES: u64 = 400;
const INODES: (u64, u64) = (1024, 16384);

/// Bytes of an inode that has a lookup count and is not in use: number, count and mark in a table that is at least 7/16
/// full.
pub(crate) const LOOKED_UP_BYTES: usize = 24;

/// The memory available to this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Memory {
    /// Bytes: those of the machine, or fewer if a control group of the process has a limit, as in a container.
    bytes: u64,
    /// Whether a control group has a limit.
    is_limited: bool,
    /// Whether other programs use nearly all of the machine's memory.
    is_short: bool,
}

/// The division of memory by purpose, in bytes unless stated otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Budget {
    /// Delayed data.
    pub(crate) delayed: usize,
    /// Cached metadata that is unchanged.
    pub(crate) cache: usize,
    /// Changed metadata of the open generation.
    pub(crate) dirty: usize,
    /// Changed metadata of a generation that is open for a transaction, and journal contents not yet checkpointed.
    pub(crate) transaction_blocks: usize,
    /// Number of inodes in the cache of inodes.
    pub(crate) inodes: usize,
    /// Number of inodes that have a lookup count and are not in use.
    pub(crate) looked_up: usize,
}

/// The current budget, or a recent one.
pub(crate) fn budget() -> Budget {
    static LAST: Mutex<Option<(Instant, Budget)>> = Mutex::new(None);
    let mut last = LAST.lock();
    let fresh = last.filter(|(then, _)| then.elapsed() < CACHE_TIME);
    last.insert(fresh.unwrap_or_else(|| (Instant::now(), divide(look())))).1
}

fn divide(memory: Memory) -> Budget {
    let bytes = if memory.is_short { memory.bytes / 8 } else { memory.bytes };
    let least = if memory.is_limited || memory.is_short { 0 } else { LEAST_DELAYED };
    let count = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
    Budget {
        delayed: count((bytes / 16).max(least)),
        cache: count(bytes / 16),
        dirty: count(bytes / 32),
        transaction_blocks: count(bytes / 8),
        inodes: count((bytes / 32 / INODE_BYTES).clamp(INODES.0, INODES.1)),
        looked_up: count(bytes / 16 / LOOKED_UP_BYTES as u64),
    }
}

fn look() -> Memory {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limits = limits_of(&groups, |file| std::fs::read_to_string(file).ok());
    memory_of(&info, &limits)
}

fn memory_of(info: &str, limits: &[u64]) -> Memory {
    let total = field(info, "MemTotal:");
    let machine = total.unwrap_or(UNKNOWN);
    let limit = limits.iter().copied().min().filter(|limit| *limit < machine);
    let available = field(info, "MemAvailable:").unwrap_or(machine);
    Memory { bytes: limit.unwrap_or(machine), is_limited: limit.is_some(), is_short: available < machine / 16 }
}

fn field(info: &str, name: &str) -> Option<u64> {
    let line = info.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// The limits of the control groups in `groups` (in the format of proc(5): number, controllers, path), and of their
/// ancestors. Within a container the path may not be visible; the root of the hierarchy is then the container's group.
fn limits_of(groups: &str, read: impl Fn(&Path) -> Option<String>) -> Vec<u64> {
    let mut limits = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else { continue };
        let (root, files): (_, &[&str]) = match controllers {
            // above the second limit the system throttles the process
            "" => (Path::new("/sys/fs/cgroup"), &["memory.max", "memory.high"]),
            _ if controllers.split(',').any(|controller| controller == "memory") => {
                (Path::new("/sys/fs/cgroup/memory"), &["memory.limit_in_bytes"])
            }
            _ => continue,
        };
        for group in Path::new(path).ancestors() {
            let folder = root.join(group.strip_prefix("/").unwrap_or(group));
            // "max" means no limit
            let found = files.iter().filter_map(|file| read(&folder.join(file))?.trim().parse::<u64>().ok());
            limits.extend(found);
        }
    }
    limits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_says_what_it_has() {
        let info = "MemFree:  7 kB\nMemTotal:       16384 kB\nMemAvailable: 8192 kB\n";
        assert_eq!(memory_of(info, &[]), Memory { bytes: 16 << 20, is_limited: false, is_short: false });
        assert_eq!(memory_of(info, &[1 << 62, 5 << 20]), Memory { bytes: 5 << 20, is_limited: true, is_short: false });
        assert_eq!(memory_of("MemFree: 7 kB\n", &[]), Memory { bytes: UNKNOWN, is_limited: false, is_short: false });
        assert!(memory_of("MemTotal: 16384 kB\nMemAvailable: 1000 kB\n", &[]).is_short);
        assert!(look().bytes > 0);
        assert!(budget().inodes >= 1024);
    }

    #[test]
    fn under_a_limit_all_shares_together_take_half_at_most() {
        for bytes in [64 << 20, 128 << 20, 1 << 30, 1 << 40] {
            let all = divide(Memory { bytes, is_limited: true, is_short: false });
            let sum = all.delayed + all.cache * 3 / 2 + 2 * all.dirty + all.transaction_blocks;
            let sum = sum + all.inodes * INODE_BYTES as usize + all.looked_up * LOOKED_UP_BYTES;
            assert!(sum as u64 <= bytes / 2, "{sum} of {bytes}");
        }
    }

    #[test]
    fn without_a_limit_content_has_space_unless_memory_is_short() {
        let machine = Memory { bytes: 256 << 20, is_limited: false, is_short: false };
        assert_eq!(divide(machine).delayed, 64 << 20);
        assert_eq!(divide(Memory { is_short: true, ..machine }).delayed, 2 << 20);
        assert_eq!(divide(Memory { bytes: 32 << 30, ..machine }).delayed, 2 << 30);
    }

    #[test]
    fn a_group_or_one_above_it_may_allow_less() {
        let files = [
            ("/sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("/sys/fs/cgroup/a/memory.max", "500\n"),
            ("/sys/fs/cgroup/a/memory.high", "400\n"),
            ("/sys/fs/cgroup/memory/c/memory.limit_in_bytes", "700\n"),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("/sys/fs/cgroup/cpu/memory.limit_in_bytes", "1\n"),
        ];
        let read =
            |file: &Path| files.iter().find(|(name, _)| Path::new(name) == file).map(|(_, text)| (*text).to_string());
        assert_eq!(limits_of("0::/a/b\n", read), [500, 400]);
        assert_eq!(limits_of("4:cpu:/\n5:cpuset,memory:/c\nnonsense\n", read), [700, 9_223_372_036_854_771_712]);
        assert_eq!(limits_of("0::/elsewhere\n", read), []);
    }
}
