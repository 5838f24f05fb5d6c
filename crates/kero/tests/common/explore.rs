//! The states that a loss of power can leave, each opened and compared with the guarantees of the layer.
//!
//! 1. A state: all epochs of the underlying device, and of the following one any subset of its writes, one of them
//!    torn.
//! 2. It must open, and its content must be that of one flush, not before the last one that had returned, and not after
//!    the last one that had begun. Blocks that were written fresh since that flush have undefined content.
//! 3. On some states there is more work, which is recorded and interrupted in turn.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use blockdev::{BlockDevice, MemoryDevice, Overlay};
use extant_kero::{BLOCK, Gap, Kero, Mutant, Options, Stats, format};
use simdev::{Log, Logged, Record};
use testkit::Rng;

use super::{Content, MIB, Model, Step, format_options, mutated};

const SECTOR: usize = 512;

/// The parameters of an exploration.
#[derive(Clone)]
pub(crate) struct Plan {
    pub(crate) device: u64,
    pub(crate) log: u64,
    pub(crate) steps: u64,
    /// The blocks that are written, as runs.
    pub(crate) pool: Vec<std::ops::Range<u64>>,
    /// The maximum number of blocks of a write.
    pub(crate) write: u64,
    /// The maximum number of blocks of a group.
    pub(crate) group: u64,
    /// The maximum number of states of an epoch.
    pub(crate) most: usize,
    /// One of this number of states gets more work.
    pub(crate) nested: u64,
    pub(crate) depth: u32,
    /// The unused blocks of the log before groups, in a part of the openings.
    pub(crate) gap: u32,
}

impl Plan {
    /// A log of 512 KiB in segments of 32 KiB.
    pub(crate) fn narrow() -> Self {
        Self {
            device: 3 << 20,
            log: 512 << 10,
            steps: 420,
            pool: vec![0..5, 14..19, 240..270, 500..512, 512..524, 600..620],
            write: 5,
            group: 9,
            most: 56,
            nested: 400,
            depth: 2,
            gap: 2,
        }
    }

    /// As narrow, with more work on more of the states.
    pub(crate) fn deep() -> Self {
        Self { steps: 90, most: 40, nested: 60, ..Self::narrow() }
    }

    /// A log of 4 MiB in segments of 256 KiB: records of many entries.
    pub(crate) fn wide() -> Self {
        Self {
            device: 7 << 20,
            log: 4 << 20,
            steps: 640,
            pool: vec![0..20, 250..330, 520..640],
            write: 40,
            group: 90,
            most: 40,
            gap: 16,
            ..Self::narrow()
        }
    }

    fn blocks(&self) -> impl Iterator<Item = u64> + '_ {
        self.pool.iter().cloned().flatten()
    }

    fn draw(&self, rng: &mut Rng) -> (u64, u64) {
        let run = rng.pick(&self.pool).clone();
        let first = run.start + rng.below(run.end - run.start);
        (first, rng.between(1, self.write).min(run.end - first))
    }
}

/// Counts of states and of the layer's work.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Count {
    pub(crate) states: u64,
    pub(crate) nested: u64,
    pub(crate) torn: u64,
    pub(crate) laps: f64,
    pub(crate) stats: Stats,
}

impl Count {
    pub(crate) fn add(&mut self, other: &Self) {
        self.states += other.states;
        self.nested += other.nested;
        self.torn += other.torn;
        self.laps += other.laps;
        self.stats.cleaning_groups += other.stats.cleaning_groups;
        self.stats.checkpoints += other.stats.checkpoints;
        self.stats.gone_home_bytes += other.stats.gone_home_bytes;
        self.stats.again_bytes += other.stats.again_bytes;
    }
}

/// The content that the layer must have after a flush.
struct Boundary {
    /// The checksum of each block of the pool; `None` if its content is undefined.
    blocks: Vec<Option<u32>>,
    blank: BTreeSet<u64>,
    /// The number of fresh writes before it.
    fresh: usize,
}

/// The progress of the calls, from the recording's marks.
#[derive(Clone, Copy, Default)]
struct Moment {
    begun: usize,
    returned: usize,
    fresh: usize,
}

fn with_gap(mutant: Mutant, gap: u32) -> Options {
    Options { gap: Gap::Fixed(gap), ..mutated(mutant) }
}

type Device = Arc<Record<Overlay, Vec<u8>>>;

/// A layer at work on a recorded device.
struct Work<'a> {
    plan: &'a Plan,
    mutant: Mutant,
    device: Device,
    kero: Kero<Device>,
    model: Model,
    boundaries: Vec<Boundary>,
    fresh: Vec<BTreeSet<u64>>,
    moment: Moment,
    now: u64,
    /// Blocks written since the last flush.
    written: u64,
    /// The statistics of the layers before the last reopening.
    stats: Stats,
    history: Vec<String>,
}

fn sums(plan: &Plan, content: &Content) -> Vec<Option<u32>> {
    plan.blocks()
        .map(|block| {
            let at = (block * BLOCK) as usize;
            let bytes = content.bytes.get(at..at + BLOCK as usize)?;
            (!content.any.contains(&block)).then(|| crc32c::crc32c(bytes))
        })
        .collect()
}

impl<'a> Work<'a> {
    fn new(plan: &'a Plan, mutant: Mutant, base: Overlay, content: Option<Content>) -> Result<Self, String> {
        let device = Arc::new(Record::in_memory(base));
        let kero = Kero::open(device.clone(), with_gap(mutant, plan.gap)).map_err(|error| error.to_string())?;
        let mut bytes = vec![0; kero.geometry().len as usize];
        kero.read(0, &mut bytes).map_err(|error| error.to_string())?;
        let mut model = Model::new(&bytes, bytes.len() as u64, false);
        if let Some(content) = content {
            model.now.blank.clone_from(&content.blank);
            model.durable.blank = content.blank;
        }
        let first = Boundary { blocks: sums(plan, &model.now), blank: model.now.blank.clone(), fresh: 0 };
        let mut work = Self {
            plan,
            mutant,
            device,
            kero,
            model,
            boundaries: vec![first],
            fresh: Vec::new(),
            moment: Moment::default(),
            now: 0,
            written: 0,
            stats: Stats::default(),
            history: Vec::new(),
        };
        work.mark();
        Ok(work)
    }

    fn mark(&mut self) {
        let Moment { begun, returned, fresh } = self.moment;
        self.device.mark(&format!("{begun} {returned} {fresh}")).unwrap();
    }

    fn flush(&mut self, by: impl FnOnce(&Kero<Device>) -> Result<bool, String>) -> Result<(), String> {
        let fresh = self.fresh.len();
        let blank = self.model.now.blank.clone();
        self.boundaries.push(Boundary { blocks: sums(self.plan, &self.model.now), blank, fresh });
        self.moment.begun += 1;
        self.mark();
        if by(&self.kero)? {
            self.model.flushed();
            self.moment.returned = self.moment.begun;
            self.written = 0;
        } else {
            self.boundaries.pop();
            self.moment.begun -= 1;
        }
        self.mark();
        Ok(())
    }

    fn step(&mut self, rng: &mut Rng) -> Result<(), String> {
        self.now += 1;
        let (first, count) = self.plan.draw(rng);
        let (at, len) = (first * BLOCK, count * BLOCK);
        let bytes = |rng: &mut Rng, len: u64| rng.bytes(8).repeat(len as usize / 8);
        let text = |error: extant_kero::Error| error.to_string();
        let step = match rng.below(100) {
            0..42 => Step::Write(at, bytes(rng, len)),
            42..48 => Step::Write(at + 512 * rng.below(7), bytes(rng, 512)),
            48..62 => Step::Fresh(at, bytes(rng, len)),
            62..64 => Step::Discard(at, len),
            64..68 => {
                let end = self.model.len();
                let mib = rng.below(end.div_ceil(MIB));
                Step::Discard(mib * MIB, ((mib + 1) * MIB).min(end) - mib * MIB)
            }
            68..86 => Step::Flush,
            86..95 => Step::Idle(rng.index(10)),
            95..97 => Step::Tick,
            97..99 => Step::Reopen,
            _ => Step::Kill,
        };
        self.history.push(format!("{step:?}"));
        if self.written + count > self.plan.group {
            self.flush(|kero| kero.flush().map(|()| true).map_err(|error| error.to_string()))?;
        }
        match &step {
            Step::Flush => return self.flush(|kero| kero.flush().map(|()| true).map_err(|error| error.to_string())),
            Step::Tick => {
                let now = Duration::from_millis(100 * self.now);
                return self.flush(|kero| {
                    let before = kero.stats().by_time;
                    kero.tick(now).map_err(|error| error.to_string())?;
                    Ok(kero.stats().by_time > before)
                });
            }
            Step::Reopen | Step::Kill => {
                if matches!(step, Step::Reopen) {
                    self.flush(|kero| kero.flush().map(|()| true).map_err(|error| error.to_string()))?;
                } else {
                    self.model.killed();
                }
                self.written = 0;
                self.count();
                let gap = if rng.chance(50) { self.plan.gap } else { 0 };
                self.kero = Kero::open(self.device.clone(), with_gap(self.mutant, gap)).map_err(text)?;
            }
            Step::Fresh(at, data) => {
                self.fresh.push((at / BLOCK..(at + data.len() as u64) / BLOCK).collect());
                self.moment.fresh += 1;
                self.mark();
                step.run(&self.kero, &mut self.model).map_err(text)?;
                self.written += count;
            }
            Step::Write(..) => {
                step.run(&self.kero, &mut self.model).map_err(text)?;
                self.written += count;
            }
            _ => step.run(&self.kero, &mut self.model).map_err(text)?,
        }
        Ok(())
    }

    /// Adds the layer's statistics to those of the previous ones.
    fn count(&mut self) {
        let stats = self.kero.stats();
        self.stats.split += stats.split;
        self.stats.cleaning_groups += stats.cleaning_groups;
        self.stats.checkpoints += stats.checkpoints;
        self.stats.gone_home_bytes += stats.gone_home_bytes;
        self.stats.again_bytes += stats.again_bytes;
    }

    /// Checks all reads while the layer is at work.
    fn compare(&self) -> Result<(), String> {
        for run in &self.plan.pool {
            let (at, len) = (run.start * BLOCK, (run.end - run.start) * BLOCK);
            if let Some(block) = self.model.now.differs(&self.kero, at, len) {
                return Err(format!("block {block} reads wrong at work, after the last kill at the latest"));
            }
        }
        Ok(())
    }

    /// The boundary that a layer shows, of those that are allowed.
    fn boundary(&self, device: &Overlay, moment: Moment) -> Result<usize, String> {
        let kero = Kero::open(device, mutated(self.mutant)).map_err(|error| format!("does not open: {error}"))?;
        let mut found = Vec::new();
        for run in &self.plan.pool {
            let mut bytes = vec![0; ((run.end - run.start) * BLOCK) as usize];
            kero.read(run.start * BLOCK, &mut bytes).map_err(|error| error.to_string())?;
            found.extend(bytes.chunks(BLOCK as usize).map(crc32c::crc32c));
        }
        let blocks: Vec<u64> = self.plan.blocks().collect();
        let mut reasons = Vec::new();
        for number in (moment.returned..=moment.begun).rev() {
            let boundary = &self.boundaries[number];
            let free = |block: u64| self.fresh[boundary.fresh..moment.fresh].iter().any(|fresh| fresh.contains(&block));
            let wrong = blocks.iter().zip(&found).zip(&boundary.blocks).find(|((block, found), expected)| {
                expected.is_some_and(|expected| expected != **found) && !free(**block)
            });
            match wrong {
                None => return Ok(number),
                Some(((block, _), _)) => reasons.push(format!("block {block} is not that of flush {number}")),
            }
        }
        Err(reasons.join(", "))
    }
}

/// A change that may have reached the device.
#[derive(Clone)]
pub(crate) enum PendingChange {
    Write(u64, Vec<u8>),
    Discard(u64, u64),
}

impl PendingChange {
    pub(crate) fn apply(&self, device: &Overlay, sectors: Option<&[usize]>) {
        match (self, sectors) {
            (Self::Write(at, bytes), None) => device.write(*at, bytes).unwrap(),
            (Self::Write(at, bytes), Some(sectors)) => {
                for (number, sector) in bytes.chunks(SECTOR).enumerate().filter(|(n, _)| sectors.contains(n)) {
                    device.write(at + (number * SECTOR) as u64, sector).unwrap();
                }
            }
            (Self::Discard(at, len), _) => device.discard(*at, *len).unwrap(),
        }
    }
}

/// The changes that are there, and one that is torn, with its sectors.
type Chosen = (Vec<usize>, Option<(usize, Vec<usize>)>);

fn choices(changes: &[PendingChange], most: usize, rng: &mut Rng) -> Vec<Chosen> {
    let of = changes.len();
    let mut chosen: Vec<Chosen> = Vec::new();
    if of <= 5 {
        chosen.extend((0..1u32 << of).map(|mask| ((0..of).filter(|bit| mask >> bit & 1 == 1).collect(), None)));
    } else {
        chosen.extend((0..=of).map(|end| ((0..end).collect(), None)));
        chosen.extend((0..of).map(|lost| ((0..of).filter(|n| *n != lost).collect(), None)));
        chosen.extend((0..of).map(|one| (vec![one], None)));
        for percent in [20, 50, 80, 90] {
            chosen.extend((0..8).map(|_| ((0..of).filter(|_| rng.chance(percent)).collect(), None)));
        }
    }
    for (number, change) in changes.iter().enumerate() {
        let PendingChange::Write(_, bytes) = change else { continue };
        let sectors = bytes.len().div_ceil(SECTOR);
        if sectors < 2 {
            continue;
        }
        let prefix: Vec<usize> = (0..rng.magnitude(sectors as u64 - 1) as usize).collect();
        let some: Vec<usize> = (0..sectors).filter(|_| rng.chance(50)).collect();
        chosen.push(((0..of).collect(), Some((number, prefix.clone()))));
        chosen.push(((0..=number).collect(), Some((number, prefix))));
        chosen.push(((0..of).filter(|_| rng.chance(85)).chain([number]).collect(), Some((number, some))));
    }
    // if there are more than wanted, a selection, half of them torn
    let (mut torn, mut chosen): (Vec<Chosen>, Vec<Chosen>) = chosen.into_iter().partition(|(_, torn)| torn.is_some());
    for some in [&mut torn, &mut chosen] {
        while some.len() > most / 2 {
            let index = rng.index(some.len());
            some.swap_remove(index);
        }
    }
    chosen.extend(torn);
    chosen
}

pub(crate) fn changes(log: &Log, index: usize) -> Vec<PendingChange> {
    match log.entries()[index].what {
        Logged::Write { .. } => log.parts(index).map(|(at, bytes)| PendingChange::Write(at, bytes.to_vec())).collect(),
        Logged::Discard { offset, len } => vec![PendingChange::Discard(offset, len)],
        _ => Vec::new(),
    }
}

/// Interrupts the recording of `work` at every point.
fn cut(work: &Work<'_>, base: &Overlay, rng: &mut Rng, depth: u32) -> Result<Count, String> {
    let log = work.device.log().unwrap();
    let before = base.clone();
    let (mut epoch, mut moment, mut count) = (Vec::new(), Moment::default(), Count::default());
    let mut seen = HashSet::new();
    for (index, entry) in log.entries().iter().enumerate() {
        match &entry.what {
            Logged::Mark(mark) => {
                let numbers: Vec<usize> = mark.split(' ').map(|number| number.parse().unwrap()).collect();
                moment = Moment { begun: numbers[0], returned: numbers[1], fresh: numbers[2] };
            }
            Logged::Flush => {
                states(work, &before, &epoch, moment, rng, depth, &mut seen, &mut count)?;
                epoch.drain(..).for_each(|change: PendingChange| change.apply(&before, None));
            }
            _ => epoch.extend(changes(&log, index)),
        }
    }
    states(work, &before, &epoch, moment, rng, depth, &mut seen, &mut count)?;
    Ok(count)
}

#[allow(clippy::too_many_arguments, reason = "all of them belong to one epoch")]
fn states(
    work: &Work<'_>,
    before: &Overlay,
    epoch: &[PendingChange],
    moment: Moment,
    rng: &mut Rng,
    depth: u32,
    seen: &mut HashSet<(u128, usize, usize)>,
    count: &mut Count,
) -> Result<(), String> {
    let most = if depth == work.plan.depth { work.plan.most } else { work.plan.most / 2 };
    for (there, torn) in choices(epoch, most, rng) {
        let device = before.clone();
        for number in &there {
            let sectors = torn.as_ref().filter(|(torn, _)| torn == number).map(|(_, sectors)| &sectors[..]);
            epoch[*number].apply(&device, sectors);
        }
        if !seen.insert((device.fingerprint(), moment.returned, moment.begun)) {
            continue;
        }
        count.states += 1;
        count.torn += u64::from(torn.is_some());
        let at = |what: String| {
            format!("{what} (flush {}, {} of {} writes done, torn {torn:?})", moment.returned, there.len(), epoch.len())
        };
        let number = work.boundary(&device, moment).map_err(at)?;
        if depth > 0 && rng.below(work.plan.nested) == 0 {
            count.nested += 1;
            let content =
                Content { bytes: Vec::new(), any: BTreeSet::new(), blank: work.boundaries[number].blank.clone() };
            let deeper = explore_from(work.plan, work.mutant, &device, Some(content), (rng, depth - 1), 24);
            count.add(&deeper.map_err(|what| format!("after more work on a state: {what}"))?);
        }
    }
    Ok(())
}

fn explore_from(
    plan: &Plan,
    mutant: Mutant,
    base: &Overlay,
    content: Option<Content>,
    (rng, depth): (&mut Rng, u32),
    steps: u64,
) -> Result<Count, String> {
    let mut work = Work::new(plan, mutant, base.clone(), content)?;
    for _ in 0..steps {
        work.step(rng)?;
        work.compare()?;
    }
    let mut count = cut(&work, base, rng, depth).map_err(|what| match std::env::var("EXTANT_KERO_HISTORY") {
        Ok(_) => format!("{what}; calls: {:?}", work.history),
        Err(_) => what,
    })?;
    work.count();
    assert_eq!(work.stats.split, 0, "a group was split");
    count.laps = work.device.log().unwrap().entries().iter().map(|entry| in_log(&entry.what, plan)).sum::<u64>() as f64
        / plan.log as f64;
    count.stats = work.stats;
    Ok(count)
}

/// The number of bytes that an entry writes to the log.
fn in_log(what: &Logged, plan: &Plan) -> u64 {
    let first = plan.device - plan.log - BLOCK;
    match what {
        Logged::Write { offset, len } if *offset >= first && *offset < plan.device - BLOCK => *len,
        _ => 0,
    }
}

/// Works on a new layer and interrupts the recording at every point. An error is a state that must not occur.
pub(crate) fn explore(plan: &Plan, mutant: Mutant, rng: &mut Rng) -> Result<Count, String> {
    let base = Overlay::new(Arc::new(MemoryDevice::zeroed(plan.device).unwrap()));
    for block in plan.blocks() {
        base.write(block * BLOCK, &rng.bytes(8).repeat(BLOCK as usize / 8)).unwrap();
    }
    format(&base, &format_options(plan.log, false)).unwrap();
    explore_from(plan, mutant, &base, None, (rng, plan.depth), plan.steps)
}
