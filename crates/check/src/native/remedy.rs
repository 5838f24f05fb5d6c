//! The steps that are possible after errors in a native volume, apart from a repair: which snapshots are intact.

use super::layer::{PhysicalLayer, Version};
use crate::report::{NativeState, Report};
use std::collections::HashMap;

/// The outcomes of the checks of the volumes in snapshots, by map: whether the volume has no errors; `None` where there
/// was no volume to check.
#[derive(Default)]
pub(crate) struct VersionsChecked {
    outcomes: HashMap<(u64, u32), Option<bool>>,
}

impl VersionsChecked {
    /// Records the outcome for a snapshot.
    pub(crate) fn add(&mut self, snapshot: &Version, outcome: Option<&Report>) {
        self.outcomes.insert(snapshot.root_name(), outcome.map(|report| report.clean));
    }

    /// The state of the volume; `unchecked` where the volume of the newest generation could not be checked, `intact`
    /// where it has no errors.
    pub(crate) fn state(&self, layer: &PhysicalLayer, unchecked: bool, intact: bool) -> NativeState {
        // each is a walk through the map
        let whole: Vec<(&Version, bool)> =
            layer.snapshots.iter().map(|snapshot| (snapshot, layer.is_intact(snapshot))).collect();
        let newest = |fits: &dyn Fn(&Version, bool) -> bool| -> Option<String> {
            let fitting = whole.iter().filter(|(snapshot, whole)| fits(snapshot, *whole)).map(|(snapshot, _)| snapshot);
            fitting.max_by_key(|snapshot| snapshot.root.generation)?.name.clone()
        };
        let outcome = |snapshot: &Version| self.outcomes.get(&snapshot.root_name()).copied();
        // one with the map of the newest generation is not checked again
        let has_volume = |snapshot: &Version| outcome(snapshot).map_or(!unchecked, |outcome| outcome.is_some());
        let intact = intact && !unchecked && layer.live_is_intact();
        // one with the map of the newest generation is in the same state
        let is_damaged = |(snapshot, whole): &&(&Version, bool)| {
            !whole || !outcome(snapshot).map_or(intact, |outcome| outcome == Some(true))
        };
        let damaged: Vec<&Version> = whole.iter().filter(is_damaged).map(|(snapshot, _)| *snapshot).collect();
        NativeState {
            live_is_intact: intact,
            stuck: damaged.iter().any(|snapshot| !layer.can_be_deleted(snapshot)),
            damaged: damaged.iter().filter_map(|snapshot| snapshot.name.clone()).collect(),
            unreadable: unchecked || layer.unreadable.is_some(),
            unchecked,
            unordered: layer.superblock.unordered,
            snapshots: layer.snapshots.len(),
            intact: newest(&|snapshot, whole| whole && outcome(snapshot) == Some(Some(true))),
            mountable: newest(&|snapshot, _| layer.can_be_mounted(snapshot) && has_volume(snapshot)),
            truncated: layer.truncated,
            remedy: None,
        }
    }
}
