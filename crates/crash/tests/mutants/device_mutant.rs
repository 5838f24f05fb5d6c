//! A deliberately faulty device between the file system and the recorder, so that the file system appears broken
//! without a change to its code.

use blockdev::{BlockDevice, Geometry, Op, Result};
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;

/// The fault of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DeviceMutant {
    /// No fault.
    None,
    /// A flush is acknowledged and has no effect.
    NoFlush,
    /// A flush is acknowledged, but takes effect at the next write.
    LateFlush,
    /// The commit block of a transaction is written before its blocks.
    CommitBeforeBlocks,
    /// File data and blocks at home locations are written after the next commit.
    HomeAfterCommit,
    /// Blocks are written to their home locations before the journal.
    HomeBeforeJournal,
    /// The journal's tail advances before the blocks are at their home locations.
    TailBeforeHome,
    /// The superblock is written in halves.
    HalfSuperblock,
    /// Revoked blocks are not listed.
    LostRevoke,
    /// The mark that the volume is in use is not written.
    NoDirtyMark,
    /// The clean mark is written before the data that it covers.
    CleanMarkFirst,
    /// fsync does nothing; the device is correct.
    FsyncForgotten,
    /// Recovery does not read the journal; the device is correct.
    NoReplay,
    /// The flush between a transaction and its commit block is omitted.
    NoFlushBeforeCommit,
    /// The flush after a commit block is omitted.
    NoFlushAfterCommit,
    /// The orphan list is never started.
    NoOrphans,
    /// No backup superblock; the device is correct.
    NoCopy,
    /// Freed blocks are reallocated before the free is durable; the device is correct.
    ReuseAtOnce,
    /// Recovery empties the journal before the blocks are at their home locations.
    RecoveryTailFirst,
    /// The native superblock is written before the generation that it refers to.
    SuperblockFirst,
    /// Both native superblocks are in one block.
    OneSuperblock,
    /// Content pinned by a snapshot is overwritten; the device is correct.
    OverwritePinned,
    /// Transactions have no effect; the device is correct.
    NoTransactions,
    /// The flush between a native generation and its superblock is omitted.
    NoFlushBeforeSuperblock,
    /// The flush after a native superblock is omitted.
    NoFlushAfterSuperblock,
    /// The flush after the mark that the volume is in use is omitted.
    NoFlushAfterDirtyMark,
    /// The flush before the clean mark is omitted.
    NoFlushBeforeCleanMark,
    /// Physical blocks are reallocated in the generation that frees them; the device is correct.
    ReusePhysical,
    /// The number of a generation whose superblock was torn is reused; the device is correct.
    ReuseNumber,
    /// Leaves of the map remain older than their entries in the map log; the device is correct.
    SkipLogLeaves,
    /// fsync makes only the previous generation durable; the device is correct.
    ShortSync,
    /// Every fifth write is lost.
    LostWrite,
    /// Every ninth write goes to the next block.
    MisplacedWrite,
}

/// The class of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Superblock { clean: bool },
    JournalSuperblock,
    Commit,
    Revoke,
    Log,
    Home,
}

#[derive(Default)]
struct State {
    delayed: Vec<(u64, Vec<u8>)>,
    writes: u64,
    committed: bool,
    flush_owed: bool,
    /// Blocks of a transaction without a commit were written.
    logged: bool,
    /// The last write was a commit.
    just_committed: bool,
    /// The last write was a superblock, and its state: clean or in use.
    just_marked: Option<bool>,
    /// Time passes, and no caller waits for a flush.
    idle: bool,
}

/// The device. Writes are split into blocks of the volumes' block size.
pub(crate) struct Mutated {
    device: Arc<dyn BlockDevice>,
    mutant: DeviceMutant,
    block_size: u64,
    journal: Range<u64>,
    state: Mutex<State>,
}

/// Block size in bytes of a native volume, whose two superblocks are in its first two blocks.
const NATIVE: u64 = 4096;

fn word_at(bytes: &[u8], at: usize) -> Option<[u8; 2]> {
    bytes.get(at..at + 2)?.try_into().ok()
}

impl Mutated {
    /// `journal` is the range of the volume's journal, in bytes.
    pub(crate) fn new(
        device: Arc<dyn BlockDevice>,
        mutant: DeviceMutant,
        block_size: u64,
        journal: Range<u64>,
    ) -> Self {
        Self { device, mutant, block_size, journal, state: Mutex::default() }
    }

    fn class(&self, at: u64, bytes: &[u8]) -> Class {
        let word = |from: usize| bytes.get(from..from + 4).map(|b| u32::from_be_bytes(b.try_into().unwrap()));
        if self.block_size == NATIVE {
            return if at < 2 * NATIVE { Class::Superblock { clean: false } } else { Class::Home };
        }
        if at == 1024 {
            // s_state, whose lowest bit says that the volume is clean
            return Class::Superblock { clean: bytes.get(0x3A).is_some_and(|state| state & 1 == 1) };
        }
        if !self.journal.contains(&at) {
            return Class::Home;
        }
        match (word(0) == Some(0xC03B_3998), word(4)) {
            (true, Some(2)) => Class::Commit,
            (true, Some(3 | 4)) => Class::JournalSuperblock,
            (true, Some(5)) => Class::Revoke,
            _ => Class::Log,
        }
    }

    /// Sets whether time passes; meanwhile no caller waits for the device.
    pub(crate) fn waits(&self, idle: bool) -> Result<()> {
        let mut state = self.state.lock();
        state.idle = idle;
        if !idle && std::mem::take(&mut state.flush_owed) { self.device.flush() } else { Ok(()) }
    }

    fn release(&self, state: &mut State) -> Result<()> {
        state.delayed.drain(..).try_for_each(|(at, bytes)| self.device.write(at, &bytes))
    }

    fn block(&self, state: &mut State, at: u64, bytes: &[u8]) -> Result<()> {
        state.writes += 1;
        let class = self.class(at, bytes);
        let in_journal = self.journal.contains(&at);
        state.logged = matches!(class, Class::Log | Class::Revoke) || state.logged && class != Class::Commit;
        state.just_committed = class == Class::Commit;
        state.just_marked = if let Class::Superblock { clean } = class { Some(clean) } else { None };
        let left_out = self.mutant == DeviceMutant::NoFlushBeforeCleanMark && state.just_marked == Some(true);
        if std::mem::take(&mut state.flush_owed) && !left_out {
            self.device.flush()?;
        }
        let delay = |state: &mut State| {
            state.delayed.push((at, bytes.to_vec()));
            Ok(())
        };
        // writes this first, then the delayed writes
        let jump = |state: &mut State| {
            self.device.write(at, bytes)?;
            self.device.flush()?;
            self.release(state)
        };
        match (self.mutant, class) {
            (DeviceMutant::CommitBeforeBlocks, Class::Log | Class::Revoke) => delay(state),
            (DeviceMutant::CommitBeforeBlocks, Class::Commit) => jump(state),
            (DeviceMutant::HomeAfterCommit, Class::Home) => delay(state),
            (DeviceMutant::HomeAfterCommit, Class::Commit) => {
                state.committed = true;
                self.device.write(at, bytes)
            }
            (DeviceMutant::HomeBeforeJournal, _) if in_journal && class != Class::JournalSuperblock => delay(state),
            (DeviceMutant::HomeBeforeJournal, Class::Home) => jump(state),
            (DeviceMutant::TailBeforeHome | DeviceMutant::RecoveryTailFirst, Class::Home) => delay(state),
            (DeviceMutant::TailBeforeHome | DeviceMutant::RecoveryTailFirst, Class::JournalSuperblock) => jump(state),
            (DeviceMutant::HalfSuperblock, Class::Superblock { .. }) => {
                let (first, second) = bytes.split_at(bytes.len().min(512));
                self.device.write(at, first)?;
                self.device.flush()?;
                self.device.write(at + 512, second)
            }
            (DeviceMutant::LostRevoke, Class::Revoke) => {
                let mut none = bytes.to_vec();
                none[12..16].copy_from_slice(&16u32.to_be_bytes()); // r_count: the header alone
                self.device.write(at, &none)
            }
            (DeviceMutant::NoOrphans, _) if word_at(bytes, 0x38) == Some([0x53, 0xEF]) => {
                let mut none = bytes.to_vec();
                none[0xE8..0xEC].fill(0); // s_last_orphan
                self.device.write(at, &none)
            }
            (DeviceMutant::SuperblockFirst, Class::Home) => delay(state),
            (DeviceMutant::SuperblockFirst, Class::Superblock { .. }) => jump(state),
            (DeviceMutant::OneSuperblock, Class::Superblock { .. }) => self.device.write(at % NATIVE, bytes),
            (DeviceMutant::NoDirtyMark, Class::Superblock { clean: false }) => Ok(()),
            (DeviceMutant::CleanMarkFirst, Class::Home) => delay(state),
            (DeviceMutant::CleanMarkFirst, Class::Superblock { clean: true }) => jump(state),
            (DeviceMutant::LostWrite, Class::Home) if state.writes.is_multiple_of(5) => Ok(()),
            (DeviceMutant::MisplacedWrite, Class::Home) if state.writes.is_multiple_of(9) => {
                self.device.write(at + self.block_size, bytes)
            }
            _ => self.device.write(at, bytes),
        }
    }
}

impl BlockDevice for Mutated {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let state = self.state.lock();
        self.device.read(offset, buf)?;
        let end = offset + buf.len() as u64;
        for (at, bytes) in &state.delayed {
            let (from, to) = ((*at).max(offset), (at + bytes.len() as u64).min(end));
            if from < to {
                buf[(from - offset) as usize..(to - offset) as usize]
                    .copy_from_slice(&bytes[(from - at) as usize..(to - at) as usize]);
            }
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.geometry().admit(Op::Write, offset, data.len() as u64)?;
        let mut state = self.state.lock();
        let (mut at, mut rest) = (offset, data);
        while !rest.is_empty() {
            let (block, after) = rest.split_at(rest.len().min((self.block_size - at % self.block_size) as usize));
            self.block(&mut state, at, block)?;
            at += block.len() as u64;
            rest = after;
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        let mut state = self.state.lock();
        match self.mutant {
            DeviceMutant::NoFlush => Ok(()),
            DeviceMutant::NoFlushBeforeCommit if state.logged => Ok(()),
            DeviceMutant::NoFlushAfterCommit if state.just_committed => Ok(()),
            DeviceMutant::NoFlushBeforeSuperblock if state.just_marked.is_none() => Ok(()),
            DeviceMutant::NoFlushAfterSuperblock if state.just_marked.is_some() => Ok(()),
            DeviceMutant::NoFlushAfterDirtyMark if state.just_marked == Some(false) => Ok(()),
            DeviceMutant::NoFlushBeforeCleanMark if state.idle => {
                state.flush_owed = true;
                Ok(())
            }
            DeviceMutant::LateFlush => {
                state.flush_owed = true;
                Ok(())
            }
            _ => {
                self.device.flush()?;
                if std::mem::take(&mut state.committed) { self.release(&mut state) } else { Ok(()) }
            }
        }
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.device.discard(offset, len)
    }
}

impl Drop for Mutated {
    /// Writes what is still delayed: without a crash the mutant has no effect.
    fn drop(&mut self) {
        let mut state = std::mem::take(&mut *self.state.lock());
        let _ = self.release(&mut state).and_then(|()| self.device.flush());
    }
}
