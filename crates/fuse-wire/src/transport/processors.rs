//! The processors of the machine: over io_uring the kernel has a queue for each.

use std::io;

/// The maximum number of processors of this machine, which is the number of the kernel's queues.
pub(super) fn possible() -> io::Result<u16> {
    let last = listed("possible")?.last().and_then(|last| last.checked_add(1));
    last.ok_or_else(|| io::Error::other("no list of processors"))
}

/// The processors that are online: the queues of others get no requests.
pub(super) fn online() -> io::Result<Vec<u16>> {
    listed("online")
}

fn listed(which: &str) -> io::Result<Vec<u16>> {
    let list = std::fs::read_to_string(format!("/sys/devices/system/cpu/{which}"))?;
    numbers(&list).ok_or_else(|| io::Error::other("no list of processors"))
}

/// Parses a list like `0-3` or `0,2-5`.
fn numbers(list: &str) -> Option<Vec<u16>> {
    let parts = list.trim().split(',').map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse().ok()?)
    });
    Some(parts.collect::<Option<Vec<_>>>()?.into_iter().flatten().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors() {
        assert_eq!(numbers("0\n"), Some(vec![0]));
        assert_eq!(numbers("0,2-5\n"), Some(vec![0, 2, 3, 4, 5]));
        assert_eq!([numbers(""), numbers("a-b")], [None, None]);
    }
}
