//! A volume's record of its free space, in whatever form, which phase 5 compares with the claims.

use crate::problem::Problem;
use format::GroupNo;

/// A record of free space: the block bitmaps, or any other structure that states for each cluster whether it is free.
pub(crate) trait FreeSpaceRecord {
    /// The record of the clusters of a group. Errors in the record itself are passed to `report`.
    fn of_group(&self, group: GroupNo, report: &dyn Fn(Problem)) -> Recorded<'_>;
}

/// The record of a group.
pub(crate) enum Recorded<'a> {
    /// The record could not be read.
    Unknown,
    /// No record: exactly these clusters are in use.
    NeverWritten(Vec<u64>),
    /// The blocks in use, 64 to a word.
    Map(&'a [u64]),
    /// The clusters in use, and those that are in use whatever the record states.
    Used(&'a Bits, Vec<u64>),
}

/// A bit for each cluster or inode of a group; set where it is in use.
pub(crate) enum Bits {
    /// The device returned an error instead.
    Unreadable(Box<str>),
    /// Every bit is set.
    Full,
    /// The bits, the lowest first; missing words at the end are zero.
    Words(Box<[u64]>),
}

impl Bits {
    pub(crate) fn of(bytes: &[u8], bits: u32) -> Self {
        let mut words: Vec<u64> =
            bytes.chunks_exact(8).take(bits.div_ceil(64) as usize).map(|c| u64::from_le_bytes(array(c))).collect();
        let rest = bits % 64;
        if words.len() == bits.div_ceil(64) as usize {
            if let Some(last) = words.last_mut().filter(|_| rest > 0) {
                *last |= u64::MAX << rest;
            }
            if words.iter().all(|w| *w == u64::MAX) {
                return Bits::Full;
            }
            if let Some(last) = words.last_mut().filter(|_| rest > 0) {
                *last &= !(u64::MAX << rest);
            }
        }
        words.truncate(words.iter().rposition(|w| *w != 0).map_or(0, |n| n + 1));
        Bits::Words(words.into())
    }

    #[inline]
    pub(crate) fn word(&self, n: usize) -> u64 {
        match self {
            Bits::Full => u64::MAX,
            Bits::Words(words) => words.get(n).copied().unwrap_or(0),
            Bits::Unreadable(_) => 0,
        }
    }
}

fn array(bytes: &[u8]) -> [u8; 8] {
    bytes.try_into().unwrap_or_default()
}
