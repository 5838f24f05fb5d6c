//! How much memory there is to use.

use std::path::Path;

/// What is assumed where the system does not tell.
const UNKNOWN: u64 = 1 << 30;

/// The bytes of memory that this process may use at most: those of the machine, or fewer where a control group that it is in
/// has a limit, as in a container.
pub(crate) fn usable() -> u64 {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limits = limits_of(&groups, |file| std::fs::read_to_string(file).ok());
    of_machine(&info).into_iter().chain(limits).min().unwrap_or(UNKNOWN)
}

fn of_machine(info: &str) -> Option<u64> {
    let line = info.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// The limits of the groups that `groups` names (as proc(5) has it: number, controllers, path), and of those above them.
/// Within a container the path may be one that is not seen there; the root of the hierarchy then is the container's group.
fn limits_of(groups: &str, read: impl Fn(&Path) -> Option<String>) -> Vec<u64> {
    let mut limits = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else { continue };
        let (root, file) = match controllers {
            "" => (Path::new("/sys/fs/cgroup"), "memory.max"),
            _ if controllers.split(',').any(|controller| controller == "memory") => {
                (Path::new("/sys/fs/cgroup/memory"), "memory.limit_in_bytes")
            }
            _ => continue,
        };
        for group in Path::new(path).ancestors() {
            let folder = root.join(group.strip_prefix("/").unwrap_or(group));
            // "max" is no limit
            limits.extend(read(&folder.join(file)).and_then(|text| text.trim().parse::<u64>().ok()));
        }
    }
    limits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_says_what_it_has() {
        assert_eq!(of_machine("MemFree:  7 kB\nMemTotal:       16384 kB\n"), Some(16 << 20));
        assert_eq!(of_machine("MemFree: 7 kB\n"), None);
        assert!(usable() > 0);
    }

    #[test]
    fn a_group_or_one_above_it_may_allow_less() {
        let files = [
            ("/sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("/sys/fs/cgroup/a/memory.max", "500\n"),
            ("/sys/fs/cgroup/memory/c/memory.limit_in_bytes", "700\n"),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("/sys/fs/cgroup/cpu/memory.limit_in_bytes", "1\n"),
        ];
        let read =
            |file: &Path| files.iter().find(|(name, _)| Path::new(name) == file).map(|(_, text)| (*text).to_string());
        assert_eq!(limits_of("0::/a/b\n", read), [500]);
        assert_eq!(limits_of("4:cpu:/\n5:cpuset,memory:/c\nnonsense\n", read), [700, 9_223_372_036_854_771_712]);
        assert_eq!(limits_of("0::/elsewhere\n", read), []);
    }
}
