//! Commit hooks without a file system, an engine that shows its input, and a device that can be blocked.

use blockdev::{BlockDevice, Geometry, MemoryDevice, Read, Write};
use extant_store::engine::{Engine, Idle, Limits};
use extant_store::{
    BlockWrite, ChangeRecord, ClosedGeneration, Closing, CommitHooks, CommitReason, Kind, Plan, PlannedWrite,
};
use extant_store::{Result, Stage, StateSource, Store, Tag, VolumeState};
use format::{FsBlock, InodeNo};
use parking_lot::{Condvar, Mutex};
use simdev::Record;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

pub(crate) const SIZE: usize = 1024;
pub(crate) const BLOCKS: usize = 256;
pub(crate) const INTERVAL: Duration = Duration::from_secs(5);
pub(crate) const TAG: Tag = Tag::new(Kind::InodeTable, InodeNo(0));
/// The offset of the client's superblock, which contains only a mark.
pub(crate) const MARK_AT: u64 = 255 * SIZE as u64;

/// A device whose blocks are filled with their numbers.
pub(crate) fn memory() -> MemoryDevice {
    MemoryDevice::from_vec((0..BLOCKS).flat_map(|n| [n as u8; SIZE]).collect())
}

pub(crate) fn block(device: &dyn BlockDevice, number: u64) -> u8 {
    let mut bytes = [0; SIZE];
    device.read(number * SIZE as u64, &mut bytes).unwrap();
    assert!(bytes.iter().all(|b| *b == bytes[0]), "block {number} is torn");
    bytes[0]
}

/// Fills one block in an operation of its own; returns the generation.
pub(crate) fn fill(store: &Store, number: u64, byte: u8) -> u64 {
    let op = store.begin(1).unwrap();
    op.edit(FsBlock(number), TAG, |bytes| bytes.fill(byte)).unwrap();
    op.generation()
}

/// Commit hooks that record the calls of the store.
#[derive(Default)]
pub(crate) struct Listener {
    pub(crate) durable: AtomicU64,
    pub(crate) finished: Mutex<Vec<u64>>,
    pub(crate) checksums: AtomicU64,
    /// The block that closing changes, and its byte.
    pub(crate) adds: Mutex<Option<(u64, u8)>>,
    /// The credits that closing announces.
    pub(crate) credits: usize,
    /// Closing panics.
    pub(crate) panics: AtomicBool,
}

impl CommitHooks for Listener {
    fn finish(&self, closing: &Closing<'_>) -> Result<()> {
        assert!(!self.panics.load(Ordering::SeqCst), "requested by the test");
        self.finished.lock().push(closing.generation());
        if let Some((block, byte)) = *self.adds.lock() {
            closing.edit(FsBlock(block), TAG, |bytes| bytes.fill(byte))?;
        }
        Ok(())
    }

    fn closing_credits(&self) -> usize {
        self.credits
    }

    fn set_checksum(&self, _: FsBlock, _: &Tag, _: &mut [u8]) {
        self.checksums.fetch_add(1, Ordering::SeqCst);
    }

    fn durable(&self, generation: u64) {
        self.durable.store(generation, Ordering::SeqCst);
    }
}

impl StateSource for Listener {
    fn with_state(&self, state: VolumeState) -> (u64, Arc<[u8]>) {
        let byte = match state {
            VolumeState::Clean => b'c',
            VolumeState::NeedsCheck => b'n',
            VolumeState::NeedsReplay => b'r',
        };
        (MARK_AT, Arc::from([byte; SIZE]))
    }
}

/// The input of a [`Showing`] engine.
#[derive(Debug, Clone)]
pub(crate) struct Shown {
    pub(crate) number: u64,
    pub(crate) reason: CommitReason,
    pub(crate) blocks: Vec<BlockWrite>,
    pub(crate) forgotten: Vec<(u64, u64)>,
    pub(crate) unflushed: bool,
    pub(crate) change_records: Vec<ChangeRecord>,
}

/// An engine that writes everything home, or withholds it, and shows its input.
pub(crate) struct Showing {
    pub(crate) limits: Limits,
    pub(crate) shown: Arc<Mutex<Vec<Shown>>>,
    /// While this is not set, nothing is written, and so nothing is home.
    pub(crate) home: Arc<AtomicBool>,
    /// A plan makes the previous generation durable, not its own.
    pub(crate) lags: bool,
    withheld: Vec<FsBlock>,
    withheld_writes: Vec<PlannedWrite>,
}

impl Showing {
    pub(crate) fn new(dirty_blocks: usize) -> Self {
        Self {
            limits: Limits {
                wants_forgotten: true,
                defers_reuse: true,
                atomic: true,
                transaction_blocks: usize::MAX,
                ..Limits::new(VolumeState::NeedsReplay, dirty_blocks)
            },
            lags: false,
            shown: Arc::default(),
            home: Arc::new(AtomicBool::new(true)),
            withheld: Vec::new(),
            withheld_writes: Vec::new(),
        }
    }
}

impl Engine for Showing {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn open(&mut self, _: &dyn StateSource) -> Result<Plan> {
        Ok(Plan::default())
    }

    fn plan(&mut self, closed: ClosedGeneration, _: &dyn StateSource) -> Result<Plan> {
        for write in &closed.blocks {
            let at = write.block.get() * SIZE as u64;
            self.withheld.push(write.block);
            // a newer content of a block replaces an older one
            self.withheld_writes.retain(|withheld| withheld.at != at);
            self.withheld_writes.push(PlannedWrite { at, data: write.data.clone(), kind: write.tag.kind });
        }
        let flush = closed.reason == CommitReason::Sync;
        let mut plan = Plan { durable: closed.number - u64::from(self.lags), ..Plan::default() };
        if self.home.load(Ordering::SeqCst) {
            plan.home = std::mem::take(&mut self.withheld);
            plan.stages.push(Stage { writes: std::mem::take(&mut self.withheld_writes), flush });
        }
        self.shown.lock().push(Shown {
            number: closed.number,
            reason: closed.reason,
            blocks: closed.blocks,
            forgotten: closed.forgotten.iter().map(|run| (run.first.get(), run.count)).collect(),
            unflushed: closed.unflushed,
            change_records: closed.change_records,
        });
        Ok(plan)
    }

    fn idle(&mut self, _: Duration, _: bool, _: &dyn StateSource) -> Idle {
        Idle::Nothing
    }

    fn close(&mut self, _: &dyn StateSource) -> Result<Plan> {
        Ok(Plan::default())
    }
}

/// A store over `device` with a [`Showing`] engine.
pub(crate) struct Rig {
    pub(crate) store: Store,
    pub(crate) client: Arc<Listener>,
    pub(crate) shown: Arc<Mutex<Vec<Shown>>>,
    pub(crate) home: Arc<AtomicBool>,
}

impl Rig {
    pub(crate) fn new(device: Arc<dyn BlockDevice>, engine: Showing) -> Self {
        let (shown, home) = (engine.shown.clone(), engine.home.clone());
        let (store, client) = start(device, Box::new(engine));
        Self { store, client, shown, home }
    }

    pub(crate) fn shown(&self) -> Vec<Shown> {
        self.shown.lock().clone()
    }
}

pub(crate) fn start(device: Arc<dyn BlockDevice>, engine: Box<dyn Engine>) -> (Store, Arc<Listener>) {
    start_with(device, engine, Listener::default())
}

pub(crate) fn start_with(
    device: Arc<dyn BlockDevice>,
    engine: Box<dyn Engine>,
    client: Listener,
) -> (Store, Arc<Listener>) {
    let store = Store::new(device, SIZE as u32, 32 * SIZE);
    let client = Arc::new(client);
    store.start_writing(engine, client.clone(), INTERVAL).unwrap();
    (store, client)
}

/// A device that records its requests in memory.
pub(crate) fn recorded() -> Arc<Record<MemoryDevice, Vec<u8>>> {
    Arc::new(Record::in_memory(memory()))
}

/// A device whose flushes can be blocked.
pub(crate) struct Blocked {
    device: MemoryDevice,
    /// The number of flushes begun, and whether they may continue.
    state: Mutex<(u64, bool)>,
    changed: Condvar,
    pub(crate) returned: AtomicU64,
}

impl Blocked {
    pub(crate) fn new() -> Self {
        Self { device: memory(), state: Mutex::new((0, true)), changed: Condvar::new(), returned: AtomicU64::new(0) }
    }

    pub(crate) fn hold(&self) {
        self.state.lock().1 = false;
    }

    pub(crate) fn release(&self) {
        self.state.lock().1 = true;
        self.changed.notify_all();
    }

    /// Returns when that many flushes have begun.
    pub(crate) fn wait_for_flush(&self, count: u64) {
        let mut state = self.state.lock();
        self.changed.wait_while(&mut state, |(begun, _)| *begun < count);
    }
}

impl BlockDevice for Blocked {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> blockdev::Result<()> {
        self.device.read(offset, buf)
    }

    fn read_many(&self, reads: &mut [Read<'_>]) {
        self.device.read_many(reads);
    }

    fn write(&self, offset: u64, data: &[u8]) -> blockdev::Result<()> {
        self.device.write(offset, data)
    }

    fn write_many(&self, writes: &mut [Write<'_>]) {
        self.device.write_many(writes);
    }

    fn flush(&self) -> blockdev::Result<()> {
        let mut state = self.state.lock();
        state.0 += 1;
        self.changed.notify_all();
        self.changed.wait_while(&mut state, |(_, go)| !*go);
        self.returned.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> blockdev::Result<()> {
        self.device.discard(offset, len)
    }
}
