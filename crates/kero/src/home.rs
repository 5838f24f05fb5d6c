//! Moving home: committed content leaves the log for its home location.
//!
//! 1. Only content in the durable table moves home, ascending and merged. When the layer is idle, its entry is a home
//!    entry with the checksum, in the record of the same flush: if the home write did not survive, neither did the
//!    group that drops the entry. To free space, many blocks move at once: they are flushed first, and then dropped.
//! 2. When half a lap or less remains before the head reaches them, cold blocks move home and hot ones are appended
//!    again, when the layer is idle ([`idle`](crate::Kero::idle)).
//! 3. When less than a fifth of a lap remains, all blocks in that fifth move home before a group is written, and the
//!    cold ones in the next part of the log with them: the more blocks at once, the shorter the way of a disk's arm from
//!    one to the next. They have a group of their own, after the newest durable one, so that no group of the caller is
//!    split.

use std::collections::{BTreeMap, BTreeSet};

use blockdev::BlockDevice;

use crate::bytes::Entry;
use crate::error::{Error, Result};
use crate::group::{NumberSet, drop_entries};
use crate::layout::{BLOCK, MIB};
use crate::mutant::Mutant;
use crate::state::{MOST_SCATTERED, State};

/// The maximum number of blocks of a group that moves home.
const MOST: usize = 1024;

/// The maximum number of segments of which blocks move home when the layer is idle: the longest time for their headers.
const MOST_SEGMENTS: usize = 4;

impl State {
    /// The number of blocks of the log that groups never use: for two checkpoints, and for moving blocks home.
    fn reserve(&self) -> u32 {
        2 * self.layout.checkpoint_cost() + 4 + self.layout.segment + self.gaps.most()
    }

    /// Ensures that a group of `cost` blocks fits, and that a fifth of the log is free. All groups must be durable, no
    /// record of the open one written, and the state settled.
    pub(crate) fn ensure_space(&mut self, device: &dyn BlockDevice, cost: u32) -> Result<()> {
        let done = self.try_ensure_space(device, cost);
        self.fail(done)
    }

    fn try_ensure_space(&mut self, device: &dyn BlockDevice, cost: u32) -> Result<()> {
        let least = cost.saturating_add(self.reserve());
        let wanted = least.max(self.layout.log / 5);
        let mut checkpoints = 0;
        for _ in 0..4 * self.ring.segments.len() {
            if self.ring.free() >= wanted {
                break;
            }
            if self.ring.blocked().is_some() {
                let needed = self.ring.within(wanted).len();
                let segments = self.ring.within(wanted.max(self.layout.log / 2));
                if self.clean(device, &segments, needed)? > 0 {
                    continue;
                }
            }
            if checkpoints == 3 {
                break;
            }
            checkpoints += 1;
            self.checkpoint(device)?;
        }
        if self.ring.free() < least {
            return Err(Error::LogFull { blocks: u64::from(cost) });
        }
        Ok(())
    }

    /// Moves everything in the first `needed` of these segments home, and cold blocks in the others, in a group of its
    /// own, and returns the number of entries for that.
    pub(crate) fn clean(&mut self, device: &dyn BlockDevice, segments: &[u32], needed: usize) -> Result<usize> {
        let mut early = BTreeMap::new();
        let done = self.try_clean(device, segments, needed, &mut early);
        if done.is_err() {
            // the blocks are at home nevertheless: reads still work
            self.open.homes.extend(early);
        }
        done
    }

    fn try_clean(
        &mut self,
        device: &dyn BlockDevice,
        segments: &[u32],
        needed: usize,
        early: &mut BTreeMap<u32, u32>,
    ) -> Result<usize> {
        let (mut moved, mut again, mut meta) = (Vec::new(), Vec::new(), Vec::new());
        let mut homes = BTreeMap::new();
        let most_again = (self.ring.free() as usize / 2).max(1);
        'segments: for (number, segment) in segments.iter().enumerate() {
            let (is_needed, young) = (number < needed, self.is_young(*segment));
            for slot in self.ring.slots(*segment) {
                if moved.len() + homes.len() + meta.len() >= MOST || again.len() >= most_again {
                    break 'segments;
                }
                let Some(address) = self.table.address_of(slot) else { continue };
                let stays = || young && self.table.is_hot(address) || self.home_is_busy(address);
                if !is_needed && (stays() || self.open_group_changes(address)) {
                    continue;
                }
                if self.open.homes.contains_key(&address) && self.open.discards.contains(address / MIB) {
                    // discarded, then written home, as the block had no content: its home entry must follow the discard
                    meta.push(Entry::Drop { address, count: 1 });
                } else if let Some(checksum) = self.open.homes.remove(&address) {
                    // at home already, or written home as the block had no content: this one may apply early
                    homes.insert(address, checksum);
                    early.insert(address, checksum);
                } else if self.home_is_busy(address) {
                    again.push((address, slot));
                } else {
                    moved.push((address, slot));
                }
            }
        }
        if moved.is_empty() && again.is_empty() && homes.is_empty() && meta.is_empty() {
            return Ok(0);
        }
        let contents = self.read_slots(device, &moved)?;
        let tail_first = self.mutant == Mutant::TailBeforeHome;
        if !tail_first {
            self.write_home(device, &contents)?;
        }
        if tail_first {
            meta.extend(contents.keys().map(|address| Entry::Drop { address: *address, count: 1 }));
        } else {
            // durable before the record that drops their entries, so that opening need not read them again
            if !homes.is_empty() || !contents.is_empty() {
                device.flush()?;
            }
            let at_home = homes.keys().chain(contents.keys()).copied().collect::<BTreeSet<u32>>();
            meta.extend(drop_entries(&at_home));
        }
        let repeated = self.read_slots(device, &again)?;
        let payload: Vec<(Entry, &[u8])> = repeated
            .iter()
            .map(|(address, bytes)| {
                (Entry::Block { address: *address, checksum: crc32c::crc32c(bytes) }, bytes.as_ref())
            })
            .collect();
        self.emit(device, &meta, &payload, (true, false))?;
        self.group += 1;
        self.homes[1] = NumberSet::default();
        if self.mutant != Mutant::ReuseEarly {
            device.flush()?;
        }
        self.durable(device);
        if tail_first {
            self.write_home(device, &contents)?;
        }
        self.stats.cleaning_groups += 1;
        self.stats.again_bytes += payload.len() as u64 * BLOCK;
        Ok(meta.len() + payload.len())
    }

    /// Whether a segment was begun so recently that its blocks may be hot.
    fn is_young(&self, segment: u32) -> bool {
        let begun = self.ring.segments.get(segment as usize).map(|segment| segment.begun).unwrap_or_default();
        self.now.saturating_sub(begun) < self.hot
    }

    /// Whether the open group replaces or removes a block's content in the log.
    fn open_group_changes(&self, address: u32) -> bool {
        self.open.blocks.contains_key(&address)
            || self.open.drops.contains(&address)
            || self.open.discards.contains(address / MIB)
    }

    /// Moves up to `budget` cold blocks home, and appends hot ones to the open group again, from segments that the head
    /// reaches within half a lap. Returns the number of blocks. No record of the open group may be written, and all
    /// groups must be durable.
    pub(crate) fn move_home(&mut self, device: &dyn BlockDevice, budget: usize) -> Result<usize> {
        let done = self.try_move_home(device, budget);
        self.fail(done)
    }

    fn try_move_home(&mut self, device: &dyn BlockDevice, budget: usize) -> Result<usize> {
        self.write_deferred_home(device)?;
        self.settle(device)?;
        // the open group must not exceed its limit
        let space = self.layout.group().saturating_sub(self.open.cost(&self.layout)) / 2;
        let scattered = MOST_SCATTERED.saturating_sub(self.open.scattered) as usize;
        let budget = budget.min(space as usize).min(scattered);
        let (mut cold, mut hot) = (Vec::new(), Vec::new());
        let mut segments = 0;
        for segment in self.ring.within(self.layout.log / 2) {
            let before = cold.len() + hot.len();
            let young = self.is_young(segment);
            for slot in self.ring.slots(segment) {
                let Some(address) = self.table.address_of(slot) else { continue };
                if self.open_group_changes(address) || self.home_is_busy(address) || cold.len() + hot.len() >= budget {
                    continue;
                }
                if young && self.table.is_hot(address) {
                    hot.push((address, slot));
                } else {
                    cold.push((address, slot));
                }
            }
            segments += usize::from(cold.len() + hot.len() > before);
            if segments == MOST_SEGMENTS {
                break;
            }
        }
        if cold.is_empty() && hot.is_empty() {
            return Ok(0);
        }
        let contents = self.read_slots(device, &cold)?;
        if self.mutant == Mutant::LateHome {
            self.deferred_home = contents;
        } else {
            self.write_home(device, &contents)?;
            let homes = contents.iter().map(|(address, bytes)| (*address, crc32c::crc32c(bytes)));
            self.open.homes.extend(homes);
            self.open.scattered += cold.len() as u32;
        }
        let repeated = self.read_slots(device, &hot)?;
        self.stats.again_bytes += repeated.len() as u64 * BLOCK;
        self.open.blocks.extend(repeated);
        self.record_moved_home();
        Ok(cold.len() + hot.len())
    }

    /// Makes the home writes that a mutant deferred.
    fn write_deferred_home(&mut self, device: &dyn BlockDevice) -> Result<()> {
        let deferred = std::mem::take(&mut self.deferred_home);
        if !deferred.is_empty() {
            self.write_home(device, &deferred)?;
        }
        Ok(())
    }
}
