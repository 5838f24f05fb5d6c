//! The memory of this process and of the machine, and the limit that it sets to the number of a volume's groups.

use crate::options::Refusal;

/// Groups up to which no volume is refused: those of a PiB with blocks of 4 KiB, the most that `mkfs` makes.
const ALWAYS: u32 = 1 << 23;
/// Approximate number of bytes that a check needs for each group: its descriptor, block map and bitmaps, the records of
/// its inodes, and the list of its parts to read.
const FOR_A_GROUP: u64 = 400;

/// The largest resident set this process had so far, in bytes, where the system reports it.
pub(crate) fn peak() -> Option<u64> {
    bytes_of("/proc/self/status", "VmHWM:")
}

/// The memory that the system has available now, in bytes, where it reports that.
pub(crate) fn available() -> Option<u64> {
    bytes_of("/proc/meminfo", "MemAvailable:")
}

/// Refuses a volume of very many groups where the machine has too little memory for them.
pub(crate) fn check_groups(groups: u32) -> Result<(), Refusal> {
    check_groups_with(groups, || {
        // memory freed by an earlier pass may still belong to this process
        let own = bytes_of("/proc/self/status", "VmRSS:").unwrap_or(0);
        let swap = bytes_of("/proc/meminfo", "SwapFree:").unwrap_or(0);
        Some(available()?.saturating_add(swap).saturating_add(own))
    })
}

fn check_groups_with(groups: u32, available: impl FnOnce() -> Option<u64>) -> Result<(), Refusal> {
    if groups <= ALWAYS {
        return Ok(());
    }
    let needed = u64::from(groups) * FOR_A_GROUP;
    match available() {
        Some(available) if available < needed => {
            let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
            Err(Refusal::new(format!(
                "the volume has {groups} groups, for which a check needs about {:.1} GiB of memory; {:.1} GiB are \
                 available",
                gib(needed),
                gib(available)
            )))
        }
        _ => Ok(()),
    }
}

/// A field of a file in /proc that is a number of KiB, in bytes.
fn bytes_of(path: &str, field: &str) -> Option<u64> {
    let text = std::fs::read_to_string(path).ok()?;
    let value = text.lines().find_map(|line| line.strip_prefix(field))?;
    let kib: u64 = value.split_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::exit;

    #[test]
    fn groups_are_refused_only_where_they_are_very_many_and_memory_is_short() {
        assert_eq!(check_groups_with(ALWAYS, || Some(0)), Ok(()));
        assert_eq!(check_groups_with(16_777_216, || Some(8 << 30)), Ok(()));
        assert_eq!(check_groups_with(16_777_216, || None), Ok(()));
        let refusal = check_groups_with(16_777_216, || Some(3 << 30)).unwrap_err();
        assert_eq!(refusal.exit, exit::OPERATIONAL);
        let sentence = refusal.sentence;
        assert!(sentence.contains("16777216 groups") && sentence.ends_with("3.0 GiB are available"), "{sentence}");
    }

    #[test]
    fn the_system_reports_memory() {
        assert!(peak() > Some(0) && available() > Some(0));
    }
}
