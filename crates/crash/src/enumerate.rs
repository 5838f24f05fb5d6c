//! The states that a loss of power can leave, constructed from a log of writes and flushes.
//!
//! Between two flushes the device may make writes durable in any order. A state therefore has all earlier epochs, and a
//! subset of the writes of one epoch. A write of more than 4 KiB counts as several, split at multiples of 4 KiB; a
//! single part may be torn at any sector of 512 bytes, or may have lost any of its sectors.
//!
//! 1. Writes are applied in the order of the log, regardless of their order of arrival: states differ only in the set
//!    of writes. If an earlier write to a block overwrites a later one, the state equals that without the later one.
//! 2. For an epoch with few writes, all subsets are constructed; for a larger one, the most effective: all prefixes,
//!    all but one, single writes, all but two, and random subsets from a seed. Of very many states of an epoch a sample
//!    is drawn.
//! 3. A state is compared with the operations that had returned by the end of its epoch, before the flush: earlier
//!    guarantees of that epoch must hold then, too.
//! 4. A discard counts as a write of zeros.
//! 5. A range that the format assumes to be written atomically is not torn: ext4's superblock of 1 KiB.

use std::fmt;
use std::ops::{ControlFlow, Range};

use blockdev::{BlockDevice, Overlay, Result};
use simdev::{Log, Logged};

use crate::guarantee::Moment;

/// Size in bytes of a sector, which is written atomically.
const SECTOR: usize = 512;

/// The limits on the number of states.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of writes of an epoch for which every subset is constructed.
    pub every_subset: u32,
    /// Maximum number of writes for which every subset without two of them is constructed.
    pub lacking_two: usize,
    /// Number of random subsets of an epoch with more writes than `every_subset`.
    pub samples: u32,
    /// Whether writes are torn.
    pub torn: bool,
    /// Whether a torn write may also have only its last sectors, besides only its first.
    pub ends: bool,
    /// Maximum number of states of an epoch; of more, a random sample of this size.
    pub most: usize,
    /// Byte range on the device that is written atomically, also by a torn write; whole sectors.
    pub whole: Range<u64>,
    /// Seed of the random choices.
    pub seed: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            every_subset: 10,
            lacking_two: 24,
            samples: 64,
            torn: true,
            ends: false,
            most: 3000,
            whole: 0..0,
            seed: 1,
        }
    }
}

/// The subset of an epoch's writes in a state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The epoch, from 0.
    pub epoch: usize,
    /// Number of writes in the epoch.
    pub of: usize,
    /// The indices of the writes in the state, ascending.
    pub there: Vec<usize>,
    /// A torn write among them, and the sectors of it that were written.
    pub torn: Option<(usize, Vec<usize>)>,
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "epoch {}, of {} writes", self.epoch, self.of)?;
        match self.there.len() {
            0 => f.write_str(" none")?,
            len if len == self.of => f.write_str(" all")?,
            _ => {
                let numbers: Vec<_> = self.there.iter().map(ToString::to_string).collect();
                write!(f, " {}", numbers.join(","))?;
            }
        }
        match &self.torn {
            Some((write, sectors)) => write!(f, ", {write} with sectors {sectors:?} alone"),
            None => Ok(()),
        }
    }
}

/// One state: a device, its origin, and the progress of the operations.
#[derive(Debug)]
pub struct Crash<'a> {
    /// The content of the storage.
    pub device: &'a Overlay,
    /// The writes that it contains.
    pub choice: &'a Choice,
    /// The progress of the operations.
    pub moment: Moment,
}

/// A change that may be lost.
enum PendingChange<'a> {
    Write(u64, &'a [u8]),
    Discard(u64, u64),
}

impl PendingChange<'_> {
    fn apply(&self, device: &Overlay) -> Result<()> {
        match *self {
            Self::Write(at, bytes) => device.write(at, bytes),
            Self::Discard(at, len) => device.discard(at, len),
        }
    }

    fn sectors(&self) -> usize {
        match self {
            Self::Write(_, bytes) => bytes.len().div_ceil(SECTOR),
            Self::Discard(..) => 1,
        }
    }

    /// Whether `there`, a set of sectors, is possible: of the atomic range all or none.
    fn can_tear(&self, there: &[usize], whole: &Range<u64>) -> bool {
        let Self::Write(at, _) = *self else { return false };
        let inside = |sector: &usize| whole.contains(&(at + (sector * SECTOR) as u64));
        let all = (0..self.sectors()).filter(inside).count();
        let here = there.iter().filter(|sector| inside(sector)).count();
        here == 0 || here == all
    }

    fn apply_sectors(&self, sectors: &[usize], device: &Overlay) -> Result<()> {
        let Self::Write(at, bytes) = *self else { return self.apply(device) };
        for (number, sector) in bytes.chunks(SECTOR).enumerate() {
            if sectors.contains(&number) {
                device.write(at + (number * SECTOR) as u64, sector)?;
            }
        }
        Ok(())
    }
}

/// The mark in the log at the beginning of an operation.
pub(crate) const BEGIN: &str = "begin";
/// The mark in the log at its end.
pub(crate) const END: &str = "end";

/// The changes between two flushes.
struct Epoch<'a> {
    number: usize,
    changes: Vec<PendingChange<'a>>,
    moment: Moment,
}

/// Calls `see` with every state, until it breaks. `base` has the initial content of the recorded device.
///
/// # Errors
/// Those of the device.
pub fn states<B>(
    log: &Log,
    base: &Overlay,
    limits: &Limits,
    mut see: impl FnMut(Crash<'_>) -> ControlFlow<B>,
) -> Result<Option<B>> {
    let before = base.clone();
    let mut moment = Moment { returned: 0, begun: 0, torn: false };
    let mut epoch = Epoch { number: 0, changes: Vec::new(), moment };
    let mut maker = Maker { limits: limits.clone(), numbers: fastrand::Rng::with_seed(limits.seed) };
    for (index, entry) in log.entries().iter().enumerate() {
        match &entry.what {
            Logged::Write { .. } => {
                epoch.changes.extend(log.parts(index).map(|(at, bytes)| PendingChange::Write(at, bytes)))
            }
            Logged::Discard { offset, len } => epoch.changes.push(PendingChange::Discard(*offset, *len)),
            Logged::Mark(mark) if mark == BEGIN => moment.begun += 1,
            Logged::Mark(mark) if mark == END => moment.returned += 1,
            Logged::Mark(_) => {}
            Logged::Flush => {
                epoch.moment = moment;
                if let ControlFlow::Break(found) = maker.epoch(&epoch, &before, &mut see)? {
                    return Ok(Some(found));
                }
                epoch.changes.drain(..).try_for_each(|change| change.apply(&before))?;
                epoch.number += 1;
            }
        }
    }
    epoch.moment = moment;
    Ok(maker.epoch(&epoch, &before, &mut see)?.break_value())
}

/// The writes in a state, and a torn one among them with its sectors.
type Chosen = (Vec<usize>, Option<(usize, Vec<usize>)>);

/// A choice without a torn write.
fn whole(there: Vec<usize>) -> Chosen {
    (there, None)
}

struct Maker {
    limits: Limits,
    numbers: fastrand::Rng,
}

impl Maker {
    fn epoch<B>(
        &mut self,
        epoch: &Epoch<'_>,
        before: &Overlay,
        see: &mut impl FnMut(Crash<'_>) -> ControlFlow<B>,
    ) -> Result<ControlFlow<B>> {
        let of = epoch.changes.len();
        let mut chosen = Vec::new();
        self.subsets(of, &mut chosen);
        if self.limits.torn {
            self.torn(&epoch.changes, &mut chosen);
        }
        let mut wanted = self.limits.most.max(1);
        let mut left = chosen.len();
        for (there, torn) in chosen {
            // selection sampling: each remaining one with equal probability
            let taken = self.numbers.usize(..left.max(1)) < wanted;
            left -= 1;
            if !taken {
                continue;
            }
            wanted -= 1;
            let device = before.clone();
            for &number in &there {
                match &torn {
                    Some((write, sectors)) if *write == number => {
                        epoch.changes[number].apply_sectors(sectors, &device)?;
                    }
                    _ => epoch.changes[number].apply(&device)?,
                }
            }
            let moment = Moment { torn: torn.is_some(), ..epoch.moment };
            let choice = Choice { epoch: epoch.number, of, there, torn };
            if let ControlFlow::Break(found) = see(Crash { device: &device, choice: &choice, moment }) {
                return Ok(ControlFlow::Break(found));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// The states in which one write is torn.
    fn torn(&mut self, changes: &[PendingChange<'_>], into: &mut Vec<Chosen>) {
        for (number, change) in changes.iter().enumerate() {
            let sectors = change.sectors();
            let mut parts: Vec<Vec<usize>> = (1..sectors).map(|written| (0..written).collect()).collect();
            if self.limits.ends {
                parts.extend((1..sectors).map(|lost| (lost..sectors).collect()));
            }
            if sectors > 2 {
                parts.push((0..sectors).filter(|_| self.numbers.bool()).collect());
            }
            for part in parts.into_iter().filter(|part| change.can_tear(part, &self.limits.whole)) {
                if number > 0 {
                    into.push((vec![number], Some((number, part.clone()))));
                }
                into.push(((0..=number).collect(), Some((number, part))));
            }
        }
    }

    /// The subsets of `0..of` to construct.
    fn subsets(&mut self, of: usize, into: &mut Vec<Chosen>) {
        if of as u64 <= u64::from(self.limits.every_subset.min(20)) {
            into.extend((0..1u32 << of).map(|mask| whole((0..of).filter(|bit| mask >> bit & 1 == 1).collect())));
            return;
        }
        into.extend((0..=of).map(|end| whole((0..end).collect())));
        let lacking = |a: usize, b: usize| whole((0..of).filter(|&n| n != a && n != b).collect());
        into.extend((0..of).map(|n| lacking(n, n)));
        into.extend((0..of).map(|n| whole(vec![n])));
        if of <= self.limits.lacking_two {
            into.extend((0..of).flat_map(|a| (a + 1..of).map(move |b| (a, b))).map(|(a, b)| lacking(a, b)));
        }
        for _ in 0..self.limits.samples {
            into.push(whole((0..of).filter(|_| self.numbers.bool()).collect()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockdev::MemoryDevice;
    use simdev::Record;
    use std::collections::BTreeSet;
    use std::sync::Arc;

    fn base() -> Overlay {
        Overlay::new(Arc::new(MemoryDevice::zeroed(1 << 20).unwrap()))
    }

    fn all(log: &Log, limits: &Limits) -> Vec<(u128, Choice, Moment)> {
        let mut seen = Vec::new();
        let ended = states(log, &base(), limits, |crash| {
            seen.push((crash.device.fingerprint(), crash.choice.clone(), crash.moment));
            ControlFlow::<()>::Continue(())
        });
        assert_eq!(ended.unwrap(), None);
        seen
    }

    const UNTORN: Limits = Limits {
        every_subset: 10,
        lacking_two: 24,
        samples: 64,
        torn: false,
        ends: false,
        most: 3000,
        whole: 0..0,
        seed: 1,
    };

    #[test]
    fn every_subset_of_every_epoch() {
        let record = Record::in_memory(base());
        record.mark(BEGIN).unwrap();
        for n in 0..3u8 {
            record.write(u64::from(n) * 4096, &[n + 1; 4096]).unwrap();
        }
        record.flush().unwrap();
        record.mark(END).unwrap();
        record.mark(BEGIN).unwrap();
        record.write(0, &[9; 8192]).unwrap(); // two changes
        let seen = all(&record.log().unwrap(), &UNTORN);
        assert_eq!(seen.len(), 8 + 4);
        let different: BTreeSet<u128> = seen.iter().map(|(print, ..)| *print).collect();
        assert_eq!(different.len(), 8 + 4 - 1, "all of epoch 0 is none of epoch 1");
        let moments: BTreeSet<_> = seen.iter().map(|(_, choice, m)| (choice.epoch, m.returned, m.begun)).collect();
        assert_eq!(moments, BTreeSet::from([(0, 0, 1), (1, 1, 2)]));
        assert_eq!(seen[0].1.to_string(), "epoch 0, of 3 writes none");
        assert_eq!(seen[5].1.to_string(), "epoch 0, of 3 writes 0,2");
        assert_eq!(seen[7].1.to_string(), "epoch 0, of 3 writes all");
    }

    #[test]
    fn torn_writes_change_some_sectors() {
        let record = Record::in_memory(base());
        record.write(0, &[1; 2048]).unwrap();
        record.write(4096, &[2; 512]).unwrap();
        let seen = all(&record.log().unwrap(), &Limits { torn: true, ..UNTORN });
        let torn: Vec<_> = seen.iter().filter_map(|(_, choice, m)| choice.torn.clone().filter(|_| m.torn)).collect();
        assert_eq!(torn[..3], [(0, vec![0]), (0, vec![0, 1]), (0, vec![0, 1, 2])]);
        assert!(torn.iter().all(|(write, _)| *write == 0), "a sector cannot be torn");
        let different: BTreeSet<u128> = seen.iter().map(|(print, ..)| *print).collect();
        assert!((4 + 3..=4 + 4).contains(&different.len()), "{}", different.len());
    }

    #[test]
    fn what_is_whole_is_not_torn() {
        let record = Record::in_memory(base());
        record.write(0, &[1; 4096]).unwrap();
        let seen = all(&record.log().unwrap(), &Limits { torn: true, whole: 1024..2048, ..UNTORN });
        let torn: Vec<_> = seen.iter().filter_map(|(_, choice, _)| choice.torn.clone()).collect();
        assert!(torn.len() >= 6, "{torn:?}");
        assert!(torn.iter().all(|(_, sectors)| sectors.contains(&2) == sectors.contains(&3)), "{torn:?}");
        assert!(torn.iter().any(|(_, sectors)| sectors.len() == 2));
    }

    #[test]
    fn many_writes_are_sampled() {
        let record = Record::in_memory(base());
        for n in 0..20u8 {
            record.write(u64::from(n) * 512, &[n + 1; 512]).unwrap();
        }
        let seen = all(&record.log().unwrap(), &UNTORN);
        assert_eq!(seen.len(), 21 + 20 + 20 + 190 + 64);
        let again = all(&record.log().unwrap(), &UNTORN);
        assert!(seen.iter().zip(&again).all(|(a, b)| a.0 == b.0), "one seed makes one walk");
        let ended = states(&record.log().unwrap(), &base(), &UNTORN, |crash| {
            if crash.choice.there.len() == 5 {
                ControlFlow::Break(crash.choice.to_string())
            } else {
                ControlFlow::Continue(())
            }
        });
        assert_eq!(ended.unwrap().unwrap(), "epoch 0, of 20 writes 0,1,2,3,4");
        let few = all(&record.log().unwrap(), &Limits { most: 50, ..UNTORN });
        assert_eq!(few.len(), 50);
        assert_eq!(few, all(&record.log().unwrap(), &Limits { most: 50, ..UNTORN }));
        assert!(few.iter().all(|one| seen.iter().any(|other| other.0 == one.0 && other.1 == one.1)));
    }
}
