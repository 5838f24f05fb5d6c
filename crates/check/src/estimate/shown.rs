//! An estimate as text: two lines with its figures, or one sentence.

use super::{Estimate, Work};
use std::fmt;

impl Estimate {
    /// One line, as `about 4 min: 1.0 GiB of 4.0 GiB to read, 3.4 M inodes; 2 min disk, 2 min processor`.
    #[must_use]
    pub fn sentence(&self) -> String {
        let [all, disk, processor] = [self.seconds, self.disk_seconds, self.processor_seconds].map(duration);
        let (read, volume) = (in_1024s(self.work.bytes), in_1024s(self.volume_bytes));
        let inodes = in_thousands(self.work.inodes);
        let inodes = inodes.trim_end();
        format!("about {all}: {read} of {volume} to read, {inodes} inodes; {disk} disk, {processor} processor")
    }
}

impl fmt::Display for Estimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let Work { bytes, known_bytes, requests, seeks, inodes, directories, .. } = self.work;
        writeln!(
            f,
            "{inodes} inodes, {directories} directories: about {:.1} MiB to read ({:.1} known exactly), {requests} requests, \
             {seeks} seeks",
            mib(bytes),
            mib(known_bytes)
        )?;
        write!(
            f,
            "about {:.2} s: {:.2} s disk, at {:.0} MiB/s and {:.3} ms a seek ({}), and {:.2} s processor",
            self.seconds,
            self.disk_seconds,
            self.speed.bytes_per_second / f64::from(1 << 20),
            self.speed.seek_seconds * 1e3,
            if self.measured { "measured just now" } else { "as specified" },
            self.processor_seconds
        )
    }
}

/// A time in the unit in which it is shortest.
fn duration(seconds: f64) -> String {
    match seconds {
        ..9.95 => format!("{seconds:.1} s"),
        ..99.5 => format!("{seconds:.0} s"),
        ..5970.0 => format!("{:.0} min", seconds / 60.0),
        _ => format!("{:.1} h", seconds / 3600.0),
    }
}

/// A number of bytes in the largest unit of which there is one.
fn in_1024s(bytes: u64) -> String {
    let mut value = bytes as f64;
    let mut units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"].into_iter();
    let mut unit = "bytes";
    while value >= 1023.95
        && let Some(next) = units.next()
    {
        (value, unit) = (value / 1024.0, next);
    }
    format!("{value:.1} {unit}")
}

/// A number in units, thousands, millions and so on, followed by a space and the letter of the unit.
fn in_thousands(n: u64) -> String {
    let mut value = n as f64;
    let mut units = ["", "k", "M", "G", "T", "P", "E"].iter();
    let mut unit = units.next();
    while value >= 999.5
        && let Some(next) = units.next()
    {
        (value, unit) = (value / 1000.0, Some(next));
    }
    let unit = unit.copied().unwrap_or_default();
    if !unit.is_empty() && value < 9.95 { format!("{value:.1} {unit}") } else { format!("{value:.0} {unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::estimate::DeviceSpeed;

    #[test]
    fn estimates_for_people() {
        let work = Work { bytes: 300_000_000, seeks: 100, inodes: 3_400_000, ..Work::default() };
        let speed = DeviceSpeed { bytes_per_second: 150e6, seek_seconds: 8e-3, scattered_seconds: 2e-3 };
        let (volume_bytes, disk_seconds, processor_seconds) = (1_200_000_000_000, 121.2, 118.9);
        let seconds = disk_seconds + processor_seconds;
        let shown = Estimate { work, speed, measured: false, volume_bytes, seconds, disk_seconds, processor_seconds };
        assert_eq!(
            shown.sentence(),
            "about 4 min: 286.1 MiB of 1.1 TiB to read, 3.4 M inodes; 2 min disk, 2 min processor"
        );
        let text = shown.to_string();
        for part in
            ["286.1 MiB", "about 240.10 s: 121.20 s disk", "8.000 ms a seek (as specified)", "118.90 s processor"]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn times_and_numbers_are_short() {
        let times = [0.04, 9.9, 12.4, 99.6, 5000.0, 6000.0, 36_000.0].map(duration);
        assert_eq!(times, ["0.0 s", "9.9 s", "12 s", "2 min", "83 min", "1.7 h", "10.0 h"]);
        let numbers = [0, 999, 1000, 12_345, 999_600, 64_000_000_000, u64::MAX].map(in_thousands);
        assert_eq!(numbers, ["0 ", "999 ", "1.0 k", "12 k", "1.0 M", "64 G", "18 E"]);
    }
}
