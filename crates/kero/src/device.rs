//! The device as callers see it.
//!
//! Locks: a call that writes to the log locks `log`, and then `state`. Reads lock `state` shared while they read, so
//! that the locations they found stay valid; a write in place has neither lock while it is in progress, and its blocks
//! are in `State::in_flight`. The flush of a group runs without `state`: the next group grows meanwhile.

use parking_lot::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use blockdev::{BlockDevice, Extent, Geometry, Op, Read, Write};

use crate::bytes::{Phase, VERSION};
use crate::error::{Error, Result};
use crate::gap::{Gap, Gaps};
use crate::group::{NumberSet, Open, device_runs};
use crate::layout::{BLOCK, Layout, MIB};
use crate::locate::{Located, locate};
use crate::mutant::Mutant;
use crate::recover::recover;
use crate::ring::Ring;
use crate::state::{Source, State};

/// The options for opening a layer.
#[derive(Debug, Clone)]
pub struct Options {
    /// Refuses every change.
    pub read_only: bool,
    /// Opens the layer although a placeholder is missing: data written without the layer may be lost. Damaged content
    /// leaves the log as it is.
    pub force: bool,
    /// A block that is written again within this time is hot.
    pub hot: Duration,
    /// The unused blocks of the log before a group.
    pub gap: Gap,
    /// [`Kero::tick`] ends groups. Then the writes between two flushes may survive in part, and the geometry guarantees
    /// no group.
    pub by_time: bool,
    /// The time without a change by a caller after which a tick ends the group.
    pub quiet: Duration,
    /// The age at which a tick ends the group.
    pub age: Duration,
    /// The defect that a test requests.
    #[cfg(feature = "mutants")]
    pub mutant: Mutant,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            read_only: false,
            force: false,
            hot: Duration::from_secs(30),
            gap: Gap::Fixed(0),
            by_time: false,
            quiet: Duration::from_secs(1),
            age: Duration::from_secs(5),
            #[cfg(feature = "mutants")]
            mutant: Mutant::Identity,
        }
    }
}

impl Options {
    /// The defect that a test requests; none without the feature `mutants`.
    pub(crate) fn mutant(&self) -> Mutant {
        #[cfg(feature = "mutants")]
        return self.mutant;
        #[cfg(not(feature = "mutants"))]
        Mutant::Identity
    }
}

/// The statistics of a layer since it was opened, and the fill of its log. Sizes in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Bytes that callers read.
    pub read_bytes: u64,
    /// Of these, bytes from the log or from memory: the hits.
    pub hit_bytes: u64,
    /// Bytes that callers wrote.
    pub written_bytes: u64,
    /// Bytes written to the log: blocks and headers.
    pub log_bytes: u64,
    /// Bytes of checkpoints, in the log and the superblocks.
    pub checkpoint_bytes: u64,
    /// Bytes written to superblocks.
    pub superblock_bytes: u64,
    /// Bytes written in place immediately.
    pub in_place_bytes: u64,
    /// Bytes moved from the log to their home locations.
    pub gone_home_bytes: u64,
    /// Hot blocks that were appended to the log again.
    pub again_bytes: u64,
    /// Groups of the caller.
    pub groups: u64,
    /// Groups that ended without a flush of the caller because they were too large.
    pub split: u64,
    /// Groups that [`Kero::tick`] ended.
    pub by_time: u64,
    /// Groups that moved blocks home to make space.
    pub cleaning_groups: u64,
    /// Checkpoints.
    pub checkpoints: u64,
    /// Size of the log.
    pub log_size: u64,
    /// The part of it that cannot be overwritten now.
    pub log_used: u64,
    /// The part of it that contains the newest content of a block.
    pub log_mapped: u64,
    /// Memory of the table.
    pub table_memory: u64,
}

impl Stats {
    /// The number of bytes written to the device for each byte that callers wrote; 1 before the first.
    #[must_use]
    pub fn write_factor(&self) -> f64 {
        let device = self.log_bytes + self.superblock_bytes + self.in_place_bytes + self.gone_home_bytes;
        if self.written_bytes == 0 { 1.0 } else { device as f64 / self.written_bytes as f64 }
    }
}

/// A device on top of another: all writes between two flushes survive together or not at all, in groups of up to
/// [`Kero::group_bytes`].
///
/// Blocks have 4 KiB; smaller writes are merged in memory, where everything waits for the next flush. There is no
/// background work: the caller invokes [`Kero::idle`] and [`Kero::tick`].
#[derive(Debug)]
pub struct Kero<D> {
    device: D,
    options: Options,
    read_only: bool,
    layout: Layout,
    /// The moment from which times are measured.
    opened: Instant,
    log: Mutex<()>,
    state: RwLock<State>,
    /// The number of completed writes in place, for threads that wait for one.
    landed: Mutex<u64>,
    landing: Condvar,
    read_bytes: AtomicU64,
    hit_bytes: AtomicU64,
}

/// The outcome of a step of a write.
enum Step {
    Done,
    /// The open group has to be written to the log first.
    Heavy,
    /// A write of a part of a block that is being written in place as a whole.
    InFlight,
}

impl<D: BlockDevice> Kero<D> {
    /// Opens the layer of a device. Nothing is written; the time is bounded by the length of the log.
    ///
    /// # Errors
    /// Those of the device, and a description for a layer that cannot be used.
    pub fn open(device: D, options: Options) -> Result<Self> {
        let located = locate(&device, options.force)?;
        match located.newest.phase {
            Phase::Formatting => return Err(Error::Unfinished),
            Phase::Removing => return Err(Error::Draining),
            Phase::Active => {}
        }
        Self::open_located(device, &located, options)
    }

    pub(crate) fn open_located(device: D, located: &Located, options: Options) -> Result<Self> {
        let layout = located.newest.layout;
        let read_only = options.read_only || device.geometry().read_only;
        if !read_only {
            // the last writes of a killed process may not be durable yet, and the next header proves that they are
            device.flush()?;
        }
        let found = recover(&device, &located.superblocks, (layout, located.newest.uuid), options.mutant())?;
        let [newest, before] = found.checkpoints;
        let mut ring = Ring::new(&layout, found.head, newest, before);
        for (number, segment) in (0..).zip(&mut ring.segments) {
            let slots = number * layout.segment..(number + 1) * layout.segment;
            segment.live = slots.filter(|slot| found.table.address_of(*slot).is_some()).count() as u32;
        }
        let state = State {
            layout,
            uuid: located.newest.uuid,
            blank: (0..layout.mibs()).map(|mib| !found.table.content(mib)).collect(),
            unwritten: HashMap::new(),
            stats: Stats { table_memory: found.table.bytes() as u64, ..Stats::default() },
            table: found.table,
            ring,
            open: Open::default(),
            gaps: Gaps::new(options.gap, &layout),
            continued: false,
            older_version: located.superblocks.iter().flatten().any(|superblock| superblock.version < VERSION),
            sequence: found.sequence,
            group: found.group,
            instance: fastrand::u64(..),
            before: found.before,
            left: Vec::new(),
            homes: [found.homes, NumberSet::default()],
            discards: NumberSet::default(),
            in_flight: BTreeSet::new(),
            now: Duration::ZERO,
            unverified: options.force,
            hot: options.hot,
            failed: None,
            refused: found.refused,
            unproved: Some(found.unproved),
            superblock: found.used,
            taken: false,
            generation: located.newest.generation,
            mutant: options.mutant(),
            deferred_home: BTreeMap::new(),
        };
        Ok(Self {
            device,
            options,
            read_only,
            layout,
            opened: Instant::now(),
            log: Mutex::new(()),
            state: RwLock::new(state),
            landed: Mutex::new(0),
            landing: Condvar::new(),
            read_bytes: AtomicU64::new(0),
            hit_bytes: AtomicU64::new(0),
        })
    }

    /// The layer's UUID.
    pub fn uuid(&self) -> [u8; 16] {
        self.shared().uuid
    }

    /// The layout of the device.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Whether the newest content of the block at this byte is in the log or in memory.
    pub fn is_mapped(&self, offset: u64) -> bool {
        let state = self.shared();
        u32::try_from(offset / BLOCK).is_ok_and(|address| !state.all_home(address, address.saturating_add(1)))
    }

    /// The first byte, on the underlying device, of the newest content of the block with the byte at `offset`: in the
    /// log or at its home location. `None` if that content is in memory, if there is none, or beyond the data.
    pub fn location(&self, offset: u64) -> Option<u64> {
        let address = u32::try_from(offset / BLOCK).ok().filter(|address| *address < self.layout.data)?;
        match self.shared().source(address) {
            Source::Device(at) => Some(at),
            Source::Memory(_) | Source::Nothing => None,
        }
    }

    /// The number of the newest group.
    pub fn newest_group(&self) -> u64 {
        self.shared().group
    }

    /// The underlying device.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// Ends the use of the layer. Data that was not flushed is lost.
    pub fn into_device(self) -> D {
        self.device
    }

    /// The number of bytes of whole blocks that survive together or not at all if nothing else is written between two
    /// flushes. Larger groups are split in the order of arrival, and counted.
    pub fn group_bytes(&self) -> u64 {
        let limit = self.layout.group();
        let headers = limit / (self.layout.segment - 1) + 5;
        u64::from(limit.saturating_sub(headers)) * BLOCK
    }

    /// The statistics since the layer was opened.
    pub fn stats(&self) -> Stats {
        let state = self.shared();
        let log = u64::from(self.layout.log) * BLOCK;
        Stats {
            log_size: log,
            log_used: log.saturating_sub(u64::from(state.ring.free()) * BLOCK),
            log_mapped: u64::from(state.table.mapped()) * BLOCK,
            read_bytes: self.read_bytes.load(Ordering::Relaxed),
            hit_bytes: self.hit_bytes.load(Ordering::Relaxed),
            ..state.stats
        }
    }

    // A thread that panicked leaves an incomplete group at worst.
    fn shared(&self) -> RwLockReadGuard<'_, State> {
        self.state.read()
    }

    pub(crate) fn exclusive(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write()
    }

    pub(crate) fn log(&self) -> MutexGuard<'_, ()> {
        self.log.lock()
    }

    /// Locks the state for a change.
    fn writable(&self, op: &'static str) -> Result<RwLockWriteGuard<'_, State>> {
        if self.read_only {
            return Err(Error::ReadOnly(op));
        }
        let state = self.exclusive();
        state.not_taken()?;
        match &state.failed {
            Some(why) => Err(Error::Failed(why.clone())),
            None => Ok(state),
        }
    }

    /// Ends the open group and returns when it is durable. `count` is applied to the statistics.
    fn commit(&self, op: &'static str, count: fn(&mut Stats)) -> Result<()> {
        let log = self.log();
        let mut state = self.writable(op)?;
        if state.open.is_empty() {
            return Ok(());
        }
        count(&mut state.stats);
        self.commit_locked(state)?;
        drop(log);
        Ok(())
    }

    /// As [`Kero::commit`]; the caller has locked the log.
    fn commit_locked(&self, mut state: RwLockWriteGuard<'_, State>) -> Result<()> {
        state.settle(&self.device)?;
        if state.open.written == 0 {
            let cost = state.open.cost(&self.layout);
            state.ensure_space(&self.device, cost)?;
        }
        let begun = self.clock();
        let blocks = state.write_pending(&self.device, true)?;
        drop(state);
        let flushed = self.device.flush().map_err(Error::from);
        let time = self.clock().saturating_sub(begun);
        let mut state = self.exclusive();
        state.fail(flushed)?;
        state.gaps.measured(time, blocks);
        state.durable(&self.device);
        if state.checkpoint_is_due() {
            state.checkpoint(&self.device)?;
        }
        Ok(())
    }

    /// The time since a fixed moment; that of the model, if the device is one.
    fn clock(&self) -> Duration {
        self.device.virtual_clock().unwrap_or_else(|| self.opened.elapsed())
    }

    /// Writes pending changes to the log if there are many, and ends the group if they would not fit.
    fn limit_pending(&self) -> Result<()> {
        if !self.shared().is_heavy() {
            return Ok(());
        }
        let _log = self.log();
        let mut state = self.writable("write")?;
        if !state.is_heavy() {
            return Ok(());
        }
        let limit = self.layout.group();
        if state.open.written + state.open.cost(&self.layout) >= limit {
            state.stats.split += 1;
            return self.commit_locked(state);
        }
        state.settle(&self.device)?;
        if state.open.written == 0 {
            // and as much more as one step may add before the next check
            state.ensure_space(&self.device, limit + limit / 2)?;
        }
        let written = state.write_pending(&self.device, false).map(drop);
        // the time of a group with several parts says nothing about its gap
        state.gaps.not_used();
        written
    }

    /// Moves up to `budget` blocks of 4 KiB home, or appends hot ones again; these changes become durable with the next
    /// group. Returns the number of blocks. To be called when the layer is idle.
    ///
    /// # Errors
    /// Those of the device; after one, nothing is written any more.
    pub fn idle(&self, budget: usize) -> Result<usize> {
        let _log = self.log();
        let mut state = self.writable("write")?;
        if state.open.written > 0 {
            return Ok(0);
        }
        state.move_home(&self.device, budget)
    }

    /// Whether a group is open that [`Kero::tick`] would end. `false` after a failure that ended writing.
    #[must_use]
    pub fn has_open_group(&self) -> bool {
        let state = self.shared();
        self.options.by_time && state.failed.is_none() && state.open.begun.is_some()
    }

    /// Sets the time, since any fixed moment, and ends the open group if the options require that and the group is
    /// quiet or old enough.
    ///
    /// # Errors
    /// Those of a flush.
    pub fn tick(&self, now: Duration) -> Result<()> {
        if self.read_only {
            return Ok(());
        }
        let due = {
            let mut state = self.exclusive();
            state.now = now;
            let open = &state.open;
            open.begun.filter(|_| self.options.by_time).is_some_and(|begun| {
                now.saturating_sub(open.changed) >= self.options.quiet || now.saturating_sub(begun) >= self.options.age
            })
        };
        if due { self.commit("write", |stats| stats.by_time += 1) } else { Ok(()) }
    }

    fn admit(&self, op: Op, offset: u64, len: u64) -> Result<()> {
        Ok(self.geometry().admit(op, offset, len)?)
    }

    fn put(&self, offset: u64, data: &[u8], fresh: bool) -> Result<()> {
        self.admit(Op::Write, offset, data.len() as u64)?;
        // steps that cannot make a group much larger than its limit
        let step = (u64::from((self.layout.group() / 4).clamp(1, 1024)) * BLOCK) as usize;
        let (mut at, mut rest) = (offset, data);
        while !rest.is_empty() {
            let len = (step - (at % BLOCK) as usize).min(rest.len());
            let (part, later) = rest.split_at(len);
            loop {
                let landed = *self.landed.lock();
                match self.put_step(at, part, fresh)? {
                    Step::Done => break,
                    Step::Heavy => self.limit_pending()?,
                    Step::InFlight => {
                        self.landing.wait_while(&mut self.landed.lock(), |now| *now == landed);
                    }
                }
            }
            self.limit_pending()?;
            (at, rest) = (at + len as u64, later);
        }
        Ok(())
    }

    fn put_step(&self, offset: u64, data: &[u8], fresh: bool) -> Result<Step> {
        let mut in_place: Vec<(u32, &[u8])> = Vec::new();
        {
            let mut state = self.writable("write")?;
            // the group always fits, however many threads write at the same time
            if state.is_heavy() {
                return Ok(Step::Heavy);
            }
            let mut parts = blocks_of(offset, data).filter(|(_, _, part)| (part.len() as u64) < BLOCK);
            if parts.any(|(address, _, _)| state.in_flight.contains(&address)) {
                return Ok(Step::InFlight);
            }
            state.changed();
            state.stats.written_bytes += data.len() as u64;
            for (address, within, part) in blocks_of(offset, data) {
                if part.len() as u64 == BLOCK {
                    if state.is_written_in_place(address, fresh) {
                        state.settle_once(&self.device)?;
                        state.in_flight.insert(address);
                        in_place.push((address, part));
                    } else {
                        state.open.blocks.insert(address, part.into());
                    }
                    continue;
                }
                let mut bytes = vec![0; BLOCK as usize].into_boxed_slice();
                state.read_block(&self.device, address, &mut bytes)?;
                if let Some(place) = bytes.get_mut(within..within + part.len()) {
                    place.copy_from_slice(part);
                }
                state.open.blocks.insert(address, bytes);
            }
        }
        if !in_place.is_empty() {
            self.put_in_place(&in_place)?;
        }
        Ok(Step::Done)
    }

    fn put_in_place(&self, blocks: &[(u32, &[u8])]) -> Result<()> {
        let addresses: Vec<u32> = blocks.iter().map(|(address, _)| *address).collect();
        let contents: Vec<&[u8]> = blocks.iter().map(|(_, bytes)| *bytes).collect();
        let runs: Vec<(u64, Vec<u8>)> = device_runs(&addresses)
            .into_iter()
            .filter_map(|run| Some((self.layout.home(*addresses.get(run.start)?), contents.get(run)?.concat())))
            .collect();
        let mut writes: Vec<Write<'_>> = runs.iter().map(|(at, bytes)| Write::new(*at, bytes)).collect();
        self.device.write_many(&mut writes);
        let done = writes.into_iter().try_for_each(|write| write.result).map_err(Error::from);
        let mut state = self.exclusive();
        for address in &addresses {
            state.in_flight.remove(address);
        }
        *self.landed.lock() += 1;
        self.landing.notify_all();
        state.fail(done)?;
        let mut before = None;
        for (address, bytes) in blocks {
            let joins = before == address.checked_sub(1)
                || address.checked_sub(1).is_some_and(|one| state.open.homes.contains_key(&one));
            state.open.scattered += u32::from(!joins);
            before = Some(*address);
            // a write of the same block in the meantime is in memory: either may be the newer one
            state.open.homes.insert(*address, crc32c::crc32c(bytes));
        }
        state.changed();
        state.stats.in_place_bytes += blocks.len() as u64 * BLOCK;
        Ok(())
    }

    fn get(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.admit(Op::Read, offset, buf.len() as u64)?;
        if buf.is_empty() {
            return Ok(());
        }
        self.read_bytes.fetch_add(buf.len() as u64, Ordering::Relaxed);
        let state = self.shared();
        state.not_taken()?;
        if state.all_home_in(offset, buf.len()) {
            return Ok(self.device.read(offset, buf)?);
        }
        let mut reads: Vec<Read<'_>> = Vec::new();
        self.gather(&state, offset, buf, &mut reads);
        self.device.read_many(&mut reads);
        Ok(reads.into_iter().try_for_each(|read| read.result)?)
    }

    /// Copies parts that are in memory, and adds the device reads for the rest.
    fn gather<'b>(&self, state: &State, offset: u64, buf: &'b mut [u8], reads: &mut Vec<Read<'b>>) {
        let (mut rest, mut at, mut hits) = (buf, offset, 0);
        while !rest.is_empty() {
            let within = at % BLOCK;
            let (from, mut len) = match state.source((at / BLOCK) as u32) {
                Source::Device(from) => (Some(from + within), BLOCK - within),
                Source::Nothing => (None, BLOCK - within),
                Source::Memory(bytes) => {
                    let len = rest.len().min((BLOCK - within) as usize);
                    let (part, later) = rest.split_at_mut(len);
                    hits += len as u64;
                    part.copy_from_slice(bytes.get(within as usize..within as usize + len).unwrap_or_default());
                    (rest, at) = (later, at + len as u64);
                    continue;
                }
            };
            // extend the read while the blocks are adjacent on the device, too
            while let Some(from) = from
                && len < rest.len() as u64
                && matches!(state.source(((at + len) / BLOCK) as u32), Source::Device(next) if next == from + len)
            {
                len += BLOCK;
            }
            let len = len.min(rest.len() as u64);
            let (part, later) = rest.split_at_mut(len as usize);
            match from {
                Some(from) => {
                    hits += if from >= self.layout.slot(0) { len } else { 0 };
                    reads.push(Read::new(from, part));
                }
                None => part.fill(0),
            }
            (rest, at) = (later, at + len);
        }
        self.hit_bytes.fetch_add(hits, Ordering::Relaxed);
    }

    fn get_many(&self, reads: &mut [Read<'_>]) {
        let state = self.shared();
        let (mut pieces, mut owners) = (Vec::new(), Vec::new());
        for (number, read) in reads.iter_mut().enumerate() {
            let len = read.buf.len() as u64;
            let taken = || state.not_taken().map_err(|error| error.into_device(Op::Read, read.offset, len));
            read.result = self.geometry().admit(Op::Read, read.offset, len).and_then(|()| taken());
            if read.result.is_ok() {
                self.read_bytes.fetch_add(len, Ordering::Relaxed);
                if state.all_home_in(read.offset, read.buf.len()) {
                    pieces.push(Read::new(read.offset, read.buf));
                } else {
                    self.gather(&state, read.offset, read.buf, &mut pieces);
                }
                owners.resize(pieces.len(), number);
            }
        }
        self.device.read_many(&mut pieces);
        let results: Vec<_> = pieces.into_iter().map(|piece| piece.result).collect();
        for (number, result) in owners.into_iter().zip(results) {
            if let Some(read) = reads.get_mut(number)
                && read.result.is_ok()
            {
                read.result = result;
            }
        }
    }

    /// The end of the blocks from `first` on, at most `end`, that all have content or all have none; and whether they
    /// have none.
    fn blank_run(&self, first: u32, end: u32) -> (u32, bool) {
        let state = self.shared();
        let blank = |mib: u32| {
            let blocks = mib * MIB..(mib + 1).saturating_mul(MIB);
            (state.open.discards.contains(mib) || !state.table.content(mib))
                && state.open.blocks.range(blocks.clone()).next().is_none()
                && state.open.homes.range(blocks).next().is_none()
        };
        let (mut mib, kind) = (first / MIB, blank(first / MIB));
        while mib.saturating_mul(MIB) < end && blank(mib) == kind {
            mib += 1;
        }
        (mib.saturating_mul(MIB).min(end), kind)
    }

    fn forget(&self, offset: u64, len: u64) -> Result<()> {
        self.admit(Op::Discard, offset, len)?;
        {
            let mut state = self.writable("discard")?;
            let (first, end) = (offset.div_ceil(BLOCK) as u32, ((offset + len) / BLOCK) as u32);
            // the last MiB may be short
            let end_mib = if end == self.layout.data { self.layout.mibs() } else { end / MIB };
            let mibs = first.div_ceil(MIB)..end_mib.max(first.div_ceil(MIB));
            let mut edges = first..end;
            if !mibs.is_empty() {
                state.open.discard(mibs.start, mibs.end);
                state.changed();
                edges.end = mibs.start * MIB;
            }
            let behind = mibs.end.saturating_mul(MIB).clamp(edges.end, end.max(edges.end))..end;
            for address in edges.chain(behind) {
                state.open.blocks.remove(&address);
                let dropped = state.table.get(address).is_some()
                    && !state.open.homes.contains_key(&address)
                    && !state.open.discards.contains(address / MIB);
                if dropped {
                    state.open.drops.insert(address);
                    state.changed();
                }
            }
        }
        self.limit_pending()
    }
}

/// The blocks that contain the bytes at `offset`: each block's address, the offset in the block, and its bytes.
fn blocks_of(offset: u64, data: &[u8]) -> impl Iterator<Item = (u32, usize, &[u8])> {
    let (mut at, mut rest) = (offset, data);
    std::iter::from_fn(move || {
        let within = (at % BLOCK) as usize;
        let (part, later) = rest.split_at(rest.len().min(BLOCK as usize - within));
        let address = (at / BLOCK) as u32;
        (at, rest) = (at + part.len() as u64, later);
        (!part.is_empty()).then_some((address, within, part))
    })
}

impl<D: BlockDevice> BlockDevice for Kero<D> {
    fn geometry(&self) -> Geometry {
        Geometry {
            len: u64::from(self.layout.data) * BLOCK,
            sector: BLOCK as u32,
            read_only: self.read_only,
            group: if self.options.by_time { 0 } else { self.group_bytes() },
        }
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> blockdev::Result<()> {
        let len = buf.len() as u64;
        self.get(offset, buf).map_err(|error| error.into_device(Op::Read, offset, len))
    }

    fn read_many(&self, reads: &mut [Read<'_>]) {
        self.get_many(reads);
    }

    fn read_cached(&self, reads: &mut [Read<'_>]) -> usize {
        let state = self.shared();
        let home = |read: &Read<'_>| {
            let len = read.buf.len() as u64;
            !state.taken
                && self.geometry().admit(Op::Read, read.offset, len).is_ok()
                && state.all_home_in(read.offset, len as usize)
        };
        let first = reads.iter().take_while(|read| home(read)).count();
        let done = reads.get_mut(..first).map_or(0, |first| self.device.read_cached(first));
        let bytes: u64 = reads.iter().take(done).map(|read| read.buf.len() as u64).sum();
        self.read_bytes.fetch_add(bytes, Ordering::Relaxed);
        done
    }

    /// MiB without content are holes.
    fn extent(&self, offset: u64, len: u64) -> blockdev::Result<Extent> {
        self.geometry().admit(Op::Read, offset, len)?;
        let (to, hole) = self.blank_run((offset / BLOCK) as u32, (offset + len).div_ceil(BLOCK) as u32);
        Ok(Extent { len: (u64::from(to) * BLOCK).saturating_sub(offset).min(len), hole })
    }

    fn virtual_clock(&self) -> Option<Duration> {
        self.device.virtual_clock()
    }

    fn write(&self, offset: u64, data: &[u8]) -> blockdev::Result<()> {
        self.put(offset, data, false).map_err(|error| error.into_device(Op::Write, offset, data.len() as u64))
    }

    /// Writes whole blocks in place immediately, and only once.
    fn write_fresh(&self, offset: u64, data: &[u8]) -> blockdev::Result<()> {
        self.put(offset, data, true).map_err(|error| error.into_device(Op::Write, offset, data.len() as u64))
    }

    fn flush(&self) -> blockdev::Result<()> {
        self.commit("flush", |_| {}).map_err(|error| error.into_device(Op::Flush, 0, 0))
    }

    /// Discards whole MiB, which read as zeroes until they are written; smaller parts only leave the log, and their
    /// content is undefined.
    fn discard(&self, offset: u64, len: u64) -> blockdev::Result<()> {
        self.forget(offset, len).map_err(|error| error.into_device(Op::Discard, offset, len))
    }
}
