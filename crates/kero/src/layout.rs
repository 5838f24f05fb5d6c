//! The layout of the device.
//!
//! ```text
//! block 0                          data                                              blocks
//! │ data, each block at its own address │ SB │ home of 0 │ home of 16 │ log, a ring │ SB │
//! ```

/// The size of a block in bytes, the unit of everything here.
pub const BLOCK: u64 = 4096;
/// The number of blocks in a MiB, the unit of discards.
pub const MIB: u32 = 256;
/// Blocks whose home location is not their own address.
pub const MOVED: [u32; 2] = [0, 16];
/// The maximum length of a log in blocks: 64 GiB.
pub const MOST_LOG: u32 = 1 << 24;
/// The minimum length of a log in blocks: for tests.
pub const LEAST_LOG: u32 = 64;
/// The number of blocks in addition to data and log: two superblocks, two homes.
const OWN: u64 = 4;

/// The layout of a device. All numbers are validated, so that arithmetic with them cannot fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Blocks of the device.
    pub blocks: u64,
    /// Blocks of data.
    pub data: u32,
    /// First block of the log.
    pub log_first: u64,
    /// Blocks of the log, whole segments.
    pub log: u32,
    /// Blocks of a segment.
    pub segment: u32,
}

impl Layout {
    /// Computes the layout of a device of `blocks` blocks with a log of `log` blocks in segments of `segment`.
    ///
    /// # Errors
    /// A description of the defect.
    pub fn new(blocks: u64, log: u32, segment: u32) -> Result<Self, &'static str> {
        if !(LEAST_LOG..=MOST_LOG).contains(&log) {
            return Err("superblock with a log of an impossible size");
        }
        if !(8..=256).contains(&segment) || !log.is_multiple_of(segment) || log / segment < 8 {
            return Err("superblock with segments of an impossible size");
        }
        let data = blocks.checked_sub(u64::from(log) + OWN).ok_or("superblock of a device that is too small")?;
        let data = u32::try_from(data).map_err(|_| "superblock of a device that is too large")?;
        if data < MIB {
            return Err("superblock of a device that is too small");
        }
        let layout = Self { blocks, data, log_first: u64::from(data) + 3, log, segment };
        if layout.checkpoint_cost() > log / 8 {
            return Err("superblock with a log that is too small for a checkpoint");
        }
        Ok(layout)
    }

    /// The usual length of a segment of a log of `log` blocks.
    #[must_use]
    pub fn segment_for(log: u32) -> u32 {
        (log / 16).next_power_of_two().clamp(8, 256)
    }

    /// The blocks of the two superblocks.
    #[must_use]
    pub fn superblocks(&self) -> [u64; 2] {
        [u64::from(self.data), self.blocks - 1]
    }

    /// The first byte of the home location of a block of data.
    #[must_use]
    pub fn home(&self, address: u32) -> u64 {
        let moved = MOVED.iter().position(|moved| *moved == address);
        moved.map_or(u64::from(address), |number| u64::from(self.data) + 1 + number as u64) * BLOCK
    }

    /// The first byte of a block of the log.
    #[must_use]
    pub fn slot(&self, slot: u32) -> u64 {
        (self.log_first + u64::from(slot)) * BLOCK
    }

    /// The number of MiB of data; the last one may be short.
    #[must_use]
    pub fn mibs(&self) -> u32 {
        self.data.div_ceil(MIB)
    }

    /// The size of the largest checkpoint in bytes.
    #[must_use]
    pub fn checkpoint_bytes(&self) -> u64 {
        8 + 8 * u64::from(self.log) + u64::from(self.mibs().div_ceil(8))
    }

    /// The maximum number of blocks of the log for a checkpoint.
    #[must_use]
    pub fn checkpoint_cost(&self) -> u32 {
        self.cost(self.checkpoint_bytes().div_ceil(BLOCK), 0)
    }

    /// The maximum number of blocks of the log for a group of `payload` blocks and `entries` other entries.
    #[must_use]
    pub fn cost(&self, payload: u64, entries: u64) -> u32 {
        let headers = payload / u64::from(self.segment - 1) + entries / 255 + 3;
        u32::try_from(payload + headers).unwrap_or(u32::MAX)
    }

    /// The maximum number of unused blocks before a record.
    #[must_use]
    pub fn most_gap(&self) -> u32 {
        self.segment / 4
    }

    /// The maximum number of blocks of the log for a group that survives as a whole.
    #[must_use]
    pub fn group(&self) -> u32 {
        self.log / 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_overlaps() {
        for (blocks, log) in [(1 << 12, 128), (1 << 20, 1024), (1 << 28, 1 << 20)] {
            let layout = Layout::new(blocks, log, Layout::segment_for(log)).unwrap();
            let [a, b] = layout.superblocks();
            assert_eq!(a, u64::from(layout.data));
            assert_eq!([layout.home(0), layout.home(16)], [(a + 1) * BLOCK, (a + 2) * BLOCK]);
            assert_eq!(layout.slot(0), (a + 3) * BLOCK);
            assert_eq!(layout.slot(log - 1), (b - 1) * BLOCK);
            assert_eq!((b, layout.home(1)), (blocks - 1, BLOCK));
        }
    }

    #[test]
    fn impossible_ones_are_refused() {
        for (blocks, log, segment) in [
            (0, 128, 8),
            (1 << 12, 63, 8),
            (1 << 12, 130, 8),
            (1 << 12, 128, 0),
            (1 << 12, 128, 512),
            (200, 128, 8),
            (1 << 40, 1 << 20, 256),
            (u64::MAX, 1 << 20, 256),
            (1 << 30, 128, 8),
        ] {
            assert!(Layout::new(blocks, log, segment).is_err(), "{blocks} {log} {segment}");
        }
    }
}
