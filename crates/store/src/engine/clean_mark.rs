//! The clean mark of a volume that is marked as in use only while metadata is being written.
//!
//! After a second without an operation everything is written and flushed, including delayed data; if there was still no
//! operation in between, the volume is marked clean. It then contains everything done up to some moment, and nothing in
//! part.

use super::{Idle, state_stage};
use crate::{Plan, Stage, StateSource, VolumeState};
use std::time::Duration;

/// The quiet time after which the volume is marked clean (section 1 of Henson, Brown, Ts'o, van de Ven).
pub(super) const QUIET: Duration = Duration::from_secs(1);

/// The mark of a volume that is clean at first.
#[derive(Debug)]
pub(super) struct CleanMark {
    /// The superblock on the device has the mark of a clean volume.
    marked_clean: bool,
    /// Metadata was written and not flushed yet.
    pub(super) unflushed: bool,
}

impl CleanMark {
    pub(super) const fn new() -> Self {
        Self { marked_clean: true, unflushed: false }
    }

    /// Whether the volume was marked clean, so that the caller must mark it as in use.
    pub(super) fn take(&mut self) -> bool {
        std::mem::take(&mut self.marked_clean)
    }

    /// Returns the plan that marks the volume clean, after a flush of what is not flushed yet.
    pub(super) fn clean(&mut self, superblock: &dyn StateSource) -> Plan {
        if self.marked_clean {
            return Plan::default();
        }
        let before = Stage { writes: Vec::new(), flush: true };
        let flush = std::mem::take(&mut self.unflushed).then_some(before);
        self.marked_clean = true;
        Plan {
            stages: flush.into_iter().chain([state_stage(superblock, VolumeState::Clean)]).collect(),
            ..Plan::default()
        }
    }

    /// The implementation of [`Engine::idle`](super::Engine::idle).
    pub(super) fn idle(&mut self, quiet: Duration, dirty: bool, superblock: &dyn StateSource) -> Idle {
        match dirty {
            false if self.marked_clean => Idle::Nothing,
            _ if quiet < QUIET => Idle::After(QUIET),
            true => Idle::Commit,
            false => Idle::Run(self.clean(superblock)),
        }
    }
}
