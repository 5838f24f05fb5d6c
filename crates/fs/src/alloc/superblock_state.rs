//! The superblock of a volume open for writing: for the open generation, and as the last closed one wrote it.

use crate::Clock;
use format::feature::{Features, Incompat};
use format::superblock::{DiskSuperblock, State};
use parking_lot::{Mutex, MutexGuard};
use std::sync::atomic::{AtomicU64, Ordering};
use store::VolumeState;

/// The superblock, with its state.
pub(crate) struct SuperblockState {
    open: Mutex<DiskSuperblock>,
    closed: Mutex<DiskSuperblock>,
    /// Bytes written since the last generation closed, for `s_kbytes_written`.
    written: AtomicU64,
    /// The state while generations are written.
    in_use: VolumeState,
    /// The volume was consistent when it was opened, so it may be marked clean again.
    was_valid: bool,
    clock: Clock,
}

impl SuperblockState {
    pub(super) fn new(disk: DiskSuperblock, in_use: VolumeState, was_valid: bool, clock: Clock) -> Self {
        Self { open: Mutex::new(disk), closed: Mutex::new(disk), written: AtomicU64::new(0), in_use, was_valid, clock }
    }

    /// The superblock of the open generation.
    pub(crate) fn lock(&self) -> MutexGuard<'_, DiskSuperblock> {
        self.open.lock()
    }

    /// Counts bytes written.
    pub(crate) fn record_written(&self, bytes: usize) {
        self.written.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Whether the volume is marked, or will be, as having errors.
    pub(crate) fn has_errors(&self) -> bool {
        State::from_bits_retain(self.lock().s_state.get()).contains(State::ERROR)
    }

    /// Records an inconsistency of the volume: it is marked as having errors from the next generation on.
    pub(crate) fn record_error(&self) {
        let seconds = (self.clock)().seconds;
        let mut sb = self.lock();
        let state = State::from_bits_retain(sb.s_state.get()) | State::ERROR;
        sb.s_state = state.bits().into();
        let time = seconds as u32;
        let high = (seconds >> 32) as u8;
        if sb.s_error_count.get() == 0 {
            sb.s_first_error_time = time.into();
            sb.s_first_error_time_hi = high;
        }
        sb.s_last_error_time = time.into();
        sb.s_last_error_time_hi = high;
        sb.s_error_count = sb.s_error_count.get().saturating_add(1).into();
    }

    /// The superblock at a close, with these counts, and marked as in use: blocks of a generation may reach the device
    /// in any order, so its superblock must not claim consistency.
    pub(crate) fn close(&self, free_blocks: u64, free_inodes: u32) -> DiskSuperblock {
        let mut sb = self.lock();
        sb.set_free_blocks_count(free_blocks);
        sb.s_free_inodes_count = free_inodes.into();
        let now = (self.clock)().seconds;
        sb.s_wtime = (now as u32).into();
        sb.s_wtime_hi = (now >> 32) as u8;
        let kilobytes = self.written.load(Ordering::Relaxed) / 1024;
        self.written.fetch_sub(kilobytes * 1024, Ordering::Relaxed);
        sb.s_kbytes_written = sb.s_kbytes_written.get().wrapping_add(kilobytes).into();
        let closed = *sb;
        drop(sb);
        *self.closed.lock() = closed;
        self.marked(closed, self.in_use)
    }

    /// The superblock of the last closed generation, with a state. Errors of the volume are recorded without waiting for
    /// the next generation.
    pub(crate) fn with_state(&self, state: VolumeState) -> DiskSuperblock {
        let mut sb = *self.closed.lock();
        with_errors(&mut sb, &self.lock());
        self.marked(sb, state)
    }

    /// A superblock with a state. A volume that was not clean when it was opened does not become clean by unmounting.
    fn marked(&self, mut sb: DiskSuperblock, volume: VolumeState) -> DiskSuperblock {
        let mut state = State::from_bits_retain(sb.s_state.get());
        let Features { compat, mut incompat, ro_compat } = sb.features();
        incompat.set(Incompat::NEEDS_RECOVERY, volume == VolumeState::NeedsReplay);
        state.set(State::VALID, volume != VolumeState::NeedsCheck && self.was_valid);
        sb.s_state = state.bits().into();
        // the first revision has no features, and so no journal to replay
        if sb.s_rev_level.get() > 0 {
            sb.set_features(Features { compat, incompat, ro_compat });
        }
        sb.set_checksum();
        sb
    }
}

/// Copies the error fields of a superblock.
pub(super) fn with_errors(sb: &mut DiskSuperblock, from: &DiskSuperblock) {
    let state = State::from_bits_retain(from.s_state.get()) & State::ERROR;
    sb.s_state = (sb.s_state.get() | state.bits()).into();
    sb.s_error_count = from.s_error_count;
    sb.s_first_error_time = from.s_first_error_time;
    sb.s_first_error_time_hi = from.s_first_error_time_hi;
    sb.s_last_error_time = from.s_last_error_time;
    sb.s_last_error_time_hi = from.s_last_error_time_hi;
}
