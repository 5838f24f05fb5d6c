//! An array as the model of a layer, and random steps for both.
#![allow(dead_code, reason = "each test uses only a part")]

pub(crate) mod explore;

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use blockdev::BlockDevice;
use extant_kero::{BLOCK, FormatOptions, Kero, Mutant, Options};
use testkit::Rng;

pub(crate) const MIB: u64 = 1 << 20;

pub(crate) fn format_options(log: u64, empty: bool) -> FormatOptions {
    FormatOptions { log: Some(log), least_log: 256 << 10, empty, uuid: Some([7; 16]), ..FormatOptions::default() }
}

pub(crate) fn options() -> Options {
    Options { hot: Duration::from_secs(3), by_time: true, ..Options::default() }
}

pub(crate) fn mutated(mutant: Mutant) -> Options {
    Options { mutant, ..options() }
}

/// Content that is known in part.
#[derive(Clone)]
pub(crate) struct Content {
    pub(crate) bytes: Vec<u8>,
    /// Blocks with undefined content.
    pub(crate) any: BTreeSet<u64>,
    /// MiB that were discarded and not written since.
    pub(crate) blank: BTreeSet<u64>,
}

impl Content {
    /// Applies a write of these bytes.
    fn write(&mut self, at: u64, data: &[u8]) {
        let end = at + data.len() as u64;
        for mib in at / MIB..=(end - 1) / MIB {
            if self.blank.remove(&mib) {
                let last = ((mib + 1) * MIB).min(self.bytes.len() as u64);
                self.any.extend(mib * MIB / BLOCK..last / BLOCK);
            }
        }
        for block in at / BLOCK..=(end - 1) / BLOCK {
            if at <= block * BLOCK && end >= (block + 1) * BLOCK {
                self.any.remove(&block);
            }
        }
        self.bytes[at as usize..end as usize].copy_from_slice(data);
    }

    fn discard(&mut self, at: u64, len: u64) {
        let end = at + len;
        for block in at.div_ceil(BLOCK)..end / BLOCK {
            if !self.blank.contains(&(block * BLOCK / MIB)) {
                self.any.insert(block);
            }
        }
        for mib in at.div_ceil(MIB)..end.div_ceil(MIB) {
            let last = ((mib + 1) * MIB).min(self.bytes.len() as u64);
            if last <= end {
                self.blank.insert(mib);
                self.bytes[(mib * MIB) as usize..last as usize].fill(0);
                self.any.retain(|block| block * BLOCK / MIB != mib);
            }
        }
    }

    /// The first block that differs from the content of `device`.
    pub(crate) fn differs(&self, device: &dyn BlockDevice, at: u64, len: u64) -> Option<u64> {
        let end = (at + len).min(self.bytes.len() as u64);
        let mut bytes = vec![0; (end - at) as usize];
        if device.read(at, &mut bytes).is_err() {
            return Some(at / BLOCK);
        }
        if self.any.is_empty() && bytes == self.bytes[at as usize..end as usize] {
            return None;
        }
        (at / BLOCK..end.div_ceil(BLOCK)).find(|block| {
            let (from, to) = ((block * BLOCK).max(at), ((block + 1) * BLOCK).min(end));
            !self.any.contains(block)
                && bytes[(from - at) as usize..(to - at) as usize] != self.bytes[from as usize..to as usize]
        })
    }
}

/// The content that the layer must have now, and after a crash.
pub(crate) struct Model {
    pub(crate) now: Content,
    /// The content of the last flush.
    pub(crate) durable: Content,
    /// Blocks that were written fresh since: their previous content is undefined.
    pub(crate) fresh: BTreeSet<u64>,
    /// Blocks that are written frequently.
    pub(crate) favourites: Vec<u64>,
}

impl Model {
    pub(crate) fn new(bytes: &[u8], len: u64, empty: bool) -> Self {
        let mut bytes = bytes[..len as usize].to_vec();
        let mut blank = BTreeSet::new();
        if empty {
            bytes.fill(0);
            blank.extend(0..len.div_ceil(MIB));
        }
        let now = Content { bytes, any: BTreeSet::new(), blank };
        let favourites = (0..24).map(|n| n * 37 % (len / BLOCK)).chain([16, 17]).collect();
        Self { durable: now.clone(), now, fresh: BTreeSet::new(), favourites }
    }

    pub(crate) fn len(&self) -> u64 {
        self.now.bytes.len() as u64
    }

    pub(crate) fn flushed(&mut self) {
        self.durable = self.now.clone();
        self.fresh.clear();
    }

    /// Reduces the content to that after a process ended without a flush.
    pub(crate) fn killed(&mut self) {
        self.now = self.durable.clone();
        // blank blocks stay blank: they are not read from their home locations
        let blank = &self.durable.blank;
        self.now.any.extend(self.fresh.iter().filter(|block| !blank.contains(&(*block * BLOCK / MIB))));
        self.durable = self.now.clone();
        self.fresh.clear();
    }

    /// Makes blank blocks undefined, like their home locations.
    pub(crate) fn drained(&mut self) {
        let len = self.len();
        for mib in std::mem::take(&mut self.now.blank) {
            self.now.any.extend(mib * MIB / BLOCK..((mib + 1) * MIB).min(len) / BLOCK);
        }
    }

    pub(crate) fn check(&self, device: &dyn BlockDevice, at: u64, len: u64) {
        let differs = self.now.differs(device, at, len);
        assert_eq!(differs, None, "wrong block, read of {len} bytes at {at}");
    }
}

/// A call to the layer.
pub(crate) enum Step {
    Write(u64, Vec<u8>),
    Fresh(u64, Vec<u8>),
    Zeroes(u64, u64),
    Discard(u64, u64),
    Flush,
    Idle(usize),
    Tick,
    Reopen,
    Kill,
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let blocks = |at: u64, len: u64| format!("{}+{} for {}", at / BLOCK, at % BLOCK, len as f64 / BLOCK as f64);
        match self {
            Self::Write(at, data) => write!(f, "write {}", blocks(*at, data.len() as u64)),
            Self::Fresh(at, data) => write!(f, "fresh {}", blocks(*at, data.len() as u64)),
            Self::Zeroes(at, len) => write!(f, "zeroes {}", blocks(*at, *len)),
            Self::Discard(at, len) => write!(f, "discard {}", blocks(*at, *len)),
            Self::Flush => f.write_str("flush"),
            Self::Idle(budget) => write!(f, "idle {budget}"),
            Self::Tick => f.write_str("tick"),
            Self::Reopen => f.write_str("reopen"),
            Self::Kill => f.write_str("kill"),
        }
    }
}

impl Step {
    pub(crate) fn draw(rng: &mut Rng, model: &Model, large: bool) -> Self {
        let blocks = model.len() / BLOCK;
        let most = if large && rng.chance(5) { 300 } else { 6 };
        let count = rng.magnitude(most);
        let mut first = if rng.chance(60) { *rng.pick(&model.favourites) } else { rng.below(blocks) };
        first = first.min(blocks - count);
        let bytes = |rng: &mut Rng, len: u64| {
            let mut bytes = rng.bytes(8).repeat((len / 8 + 1) as usize);
            bytes.truncate(len as usize);
            bytes
        };
        match rng.below(100) {
            0..40 => Self::Write(first * BLOCK, bytes(rng, count * BLOCK)),
            40..48 => {
                let at = first * BLOCK + rng.below(BLOCK);
                let len = rng.magnitude((model.len() - at).min(3 * BLOCK));
                Self::Write(at, bytes(rng, len))
            }
            48..60 => Self::Fresh(first * BLOCK, bytes(rng, count * BLOCK)),
            60..63 => Self::Zeroes(first * BLOCK, count * BLOCK),
            63..67 => Self::Discard(first * BLOCK, count * BLOCK),
            67..70 => {
                let mib = rng.below(model.len() / MIB);
                let end = ((mib + rng.between(1, 2)) * MIB).min(model.len());
                Self::Discard(mib * MIB, end - mib * MIB)
            }
            70..86 => Self::Flush,
            86..93 => Self::Idle(rng.index(40)),
            93..96 => Self::Tick,
            96..98 => Self::Reopen,
            _ => Self::Kill,
        }
    }

    /// Executes the call on the layer and on the model; not for calls that need more than a layer.
    pub(crate) fn run<D: BlockDevice>(&self, kero: &Kero<D>, model: &mut Model) -> extant_kero::Result<()> {
        match self {
            Self::Write(at, data) => {
                kero.write(*at, data)?;
                model.now.write(*at, data);
            }
            Self::Fresh(at, data) => {
                kero.write_fresh(*at, data)?;
                model.now.write(*at, data);
                model.fresh.extend(at / BLOCK..(at + data.len() as u64).div_ceil(BLOCK));
            }
            Self::Zeroes(at, len) => {
                kero.write_zeroes(*at, *len)?;
                model.now.write(*at, &vec![0; *len as usize]);
            }
            Self::Discard(at, len) => {
                kero.discard(*at, *len)?;
                model.now.discard(*at, *len);
            }
            Self::Flush => {
                kero.flush()?;
                model.flushed();
            }
            Self::Idle(budget) => drop(kero.idle(*budget)?),
            Self::Tick | Self::Reopen | Self::Kill => {}
        }
        Ok(())
    }
}
