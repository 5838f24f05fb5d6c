//! The table of the blocks in the slots of the log, and of the MiB that have content.
//!
//! 1. A bucket is the number of a slot, 4 bytes; the address is stored once per slot: 4 + 4/0.9 bytes a slot, however
//!    many are mapped.
//! 2. Open addressing with linear probing; removal moves following buckets back, so no tombstones are needed.
//! 3. A count per 2 MiB allows to skip a range without a mapping.

use crate::bytes::Entry;
use crate::layout::{Layout, MIB};

/// An address that no block has.
const NONE: u32 = u32::MAX;
/// An empty bucket; others contain the slot plus one.
const EMPTY: u32 = 0;
/// The bit of a bucket for hot blocks: written again soon after they were written.
const HOT: u32 = 1 << 31;
/// The number of blocks of a span, the unit of counts.
const SPAN: u32 = 512;

/// The table. Its memory is fixed by the layout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Table {
    buckets: Vec<u32>,
    /// The block of each slot.
    addresses: Vec<u32>,
    /// Mapped blocks of each span.
    spans: Vec<u16>,
    /// A bit per MiB: whether it has content.
    content: Vec<u8>,
    mapped: u32,
}

impl Table {
    /// Creates an empty table. `content` is whether all MiB have content.
    pub(crate) fn new(layout: &Layout, content: bool) -> Self {
        let slots = layout.log as usize;
        Self {
            buckets: vec![EMPTY; slots + slots / 9 + 8],
            addresses: vec![NONE; slots],
            spans: vec![0; layout.data.div_ceil(SPAN) as usize],
            content: vec![if content { 0xFF } else { 0 }; layout.mibs().div_ceil(8) as usize],
            mapped: 0,
        }
    }

    /// The number of mapped blocks.
    pub(crate) fn mapped(&self) -> u32 {
        self.mapped
    }

    /// The memory of the table in bytes.
    pub(crate) fn bytes(&self) -> usize {
        4 * (self.buckets.len() + self.addresses.len()) + 2 * self.spans.len() + self.content.len()
    }

    fn bucket(&self, address: u32) -> usize {
        let hash = u64::from(address).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        ((hash * self.buckets.len() as u64) >> 32) as usize
    }

    fn after(&self, bucket: usize) -> usize {
        if bucket + 1 == self.buckets.len() { 0 } else { bucket + 1 }
    }

    /// The slot of a bucket that is not empty.
    fn slot_in(&self, bucket: usize) -> u32 {
        (self.buckets[bucket] & !HOT).wrapping_sub(1)
    }

    fn address_in(&self, bucket: usize) -> u32 {
        self.addresses.get(self.slot_in(bucket) as usize).copied().unwrap_or(NONE)
    }

    /// The bucket of `address`, or the empty one where it would be inserted: there is always an empty one, as there are
    /// more buckets than slots.
    fn find(&self, address: u32) -> (usize, bool) {
        let mut bucket = self.bucket(address);
        while self.buckets[bucket] != EMPTY {
            if self.address_in(bucket) == address {
                return (bucket, true);
            }
            bucket = self.after(bucket);
        }
        (bucket, false)
    }

    /// Whether none of `count` blocks from `address` is mapped. May return `false` although none is.
    pub(crate) fn unmapped(&self, address: u32, count: u32) -> bool {
        let (first, last) = (address / SPAN, (u64::from(address) + u64::from(count.max(1)) - 1) / u64::from(SPAN));
        let spans = self.spans.get(first as usize..=last as usize).unwrap_or_default();
        spans.iter().all(|mapped| *mapped == 0)
    }

    /// The slot of a block.
    pub(crate) fn get(&self, address: u32) -> Option<u32> {
        if self.unmapped(address, 1) {
            return None;
        }
        let (bucket, found) = self.find(address);
        found.then(|| self.slot_in(bucket))
    }

    /// The block that is mapped to a slot.
    pub(crate) fn address_of(&self, slot: u32) -> Option<u32> {
        self.addresses.get(slot as usize).copied().filter(|address| *address != NONE)
    }

    /// Whether a block is mapped and hot.
    pub(crate) fn is_hot(&self, address: u32) -> bool {
        let (bucket, found) = self.find(address);
        found && self.buckets[bucket] & HOT != 0
    }

    /// Maps a block to a slot that has none, and returns the slot that it had before.
    pub(crate) fn set(&mut self, address: u32, slot: u32, hot: bool) -> Option<u32> {
        let (bucket, found) = self.find(address);
        let left = found.then(|| self.slot_in(bucket));
        if let Some(left) = left {
            self.addresses[left as usize] = NONE;
        } else {
            self.mapped += 1;
            if let Some(span) = self.spans.get_mut((address / SPAN) as usize) {
                *span += 1;
            }
        }
        self.buckets[bucket] = (slot + 1) | if hot { HOT } else { 0 };
        self.addresses[slot as usize] = address;
        left
    }

    /// Removes a block, and returns the slot that it had.
    pub(crate) fn remove(&mut self, address: u32) -> Option<u32> {
        if self.unmapped(address, 1) {
            return None;
        }
        let (mut hole, found) = self.find(address);
        if !found {
            return None;
        }
        let slot = self.slot_in(hole);
        let mut bucket = hole;
        loop {
            bucket = self.after(bucket);
            if self.buckets[bucket] == EMPTY {
                break;
            }
            let wanted = self.bucket(self.address_in(bucket));
            // blocks whose own bucket is between here and the hole, without the hole, stay
            let stays =
                if hole <= bucket { hole < wanted && wanted <= bucket } else { hole < wanted || wanted <= bucket };
            if !stays {
                self.buckets[hole] = self.buckets[bucket];
                hole = bucket;
            }
        }
        self.buckets[hole] = EMPTY;
        self.addresses[slot as usize] = NONE;
        self.mapped -= 1;
        if let Some(span) = self.spans.get_mut((address / SPAN) as usize) {
            *span -= 1;
        }
        Some(slot)
    }

    /// Whether a MiB has content.
    pub(crate) fn content(&self, mib: u32) -> bool {
        self.content.get((mib / 8) as usize).is_none_or(|byte| byte >> (mib % 8) & 1 == 1)
    }

    pub(crate) fn set_content(&mut self, mib: u32, content: bool) {
        if let Some(byte) = self.content.get_mut((mib / 8) as usize) {
            *byte = *byte & !(1 << (mib % 8)) | u8::from(content) << (mib % 8);
        }
    }

    /// Applies an entry, and adds the slots that it frees to `left`. A block with content is mapped to `slot`.
    pub(crate) fn apply(&mut self, entry: &Entry, slot: u32, hot: bool, left: &mut Vec<u32>) {
        match *entry {
            Entry::Block { address, .. } => {
                left.extend(self.set(address, slot, hot));
                self.set_content(address / MIB, true);
            }
            Entry::Home { address, count, .. } => {
                self.remove_all(address, u32::from(count), left);
                let last = address.saturating_add(u32::from(count) - 1);
                (address / MIB..=last / MIB).for_each(|mib| self.set_content(mib, true));
            }
            Entry::Drop { address, count } => self.remove_all(address, u32::from(count), left),
            Entry::Discard { mib, count } => {
                for mib in mib..mib.saturating_add(u32::from(count)) {
                    self.remove_all(mib * MIB, MIB, left);
                    self.set_content(mib, false);
                }
            }
            Entry::Part { .. } => {}
        }
    }

    fn remove_all(&mut self, address: u32, count: u32, left: &mut Vec<u32>) {
        if !self.unmapped(address, count) {
            left.extend((address..address.saturating_add(count)).filter_map(|address| self.remove(address)));
        }
    }

    /// Encodes the table: both counts, then slot and block of each entry, then the bits of the MiB.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(8 + 8 * self.mapped as usize + self.content.len());
        bytes.extend(self.mapped.to_le_bytes());
        bytes.extend((self.content.len() as u32).to_le_bytes());
        for (slot, address) in self.addresses.iter().enumerate().filter(|(_, address)| **address != NONE) {
            bytes.extend((slot as u32).to_le_bytes());
            bytes.extend(address.to_le_bytes());
        }
        bytes.extend_from_slice(&self.content);
        bytes
    }

    /// Decodes the output of [`Table::encode`], which may be padded with zeroes.
    ///
    /// # Errors
    /// A description of the defect.
    pub(crate) fn decode(bytes: &[u8], layout: &Layout) -> Result<Self, &'static str> {
        let mut table = Self::new(layout, false);
        let number = |at: usize| {
            let four = bytes.get(at..at.checked_add(4)?)?;
            Some(u32::from_le_bytes(four.try_into().ok()?))
        };
        let (Some(count), Some(content)) = (number(0), number(4)) else { return Err("checkpoint cut short") };
        if count > layout.log || content as usize != table.content.len() {
            return Err("checkpoint with impossible counts");
        }
        for index in 0..count as usize {
            let (Some(slot), Some(address)) = (number(8 + 8 * index), number(12 + 8 * index)) else {
                return Err("checkpoint cut short");
            };
            if slot >= layout.log || address >= layout.data {
                return Err("checkpoint with an address beyond the data");
            }
            if table.addresses[slot as usize] != NONE || table.set(address, slot, false).is_some() {
                return Err("checkpoint with a duplicate entry");
            }
        }
        let at = 8 + 8 * count as usize;
        table.content.copy_from_slice(bytes.get(at..at + content as usize).ok_or("checkpoint cut short")?);
        Ok(table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn layout() -> Layout {
        Layout::new(4096, 128, 8).unwrap()
    }

    #[test]
    fn a_slot_takes_no_more_than_the_bound() {
        let layout = Layout::new(1 << 26, 1 << 20, 256).unwrap();
        let table = Table::new(&layout, true);
        let fixed = 2 * table.spans.len() + table.content.len();
        assert!((table.bytes() - fixed) as f64 / f64::from(layout.log) <= 8.5);
    }

    #[test]
    fn it_maps_as_a_map_does_also_when_it_is_full() {
        let (layout, mut model) = (layout(), BTreeMap::new());
        let mut table = Table::new(&layout, true);
        let mut random = fastrand::Rng::with_seed(7);
        let mut vacant: Vec<u32> = (0..layout.log).collect();
        for step in 0..20_000 {
            let address = random.u32(0..200);
            if !vacant.is_empty() && (model.len() < 100 || step % 3 > 0) {
                let slot = vacant.swap_remove(random.usize(..vacant.len()));
                let hot = random.bool();
                let left = table.set(address, slot, hot);
                assert_eq!(left, model.insert(address, (slot, hot)).map(|(slot, _)| slot));
                vacant.extend(left);
            } else {
                let left = table.remove(address);
                assert_eq!(left, model.remove(&address).map(|(slot, _)| slot));
                vacant.extend(left);
            }
            assert_eq!(table.mapped() as usize, model.len());
            let some = random.u32(0..200);
            assert_eq!(table.get(some), model.get(&some).map(|(slot, _)| *slot));
            assert_eq!(table.is_hot(some), model.get(&some).is_some_and(|(_, hot)| *hot));
        }
        assert!(model.iter().all(|(address, (slot, _))| table.address_of(*slot) == Some(*address)));
        let read = Table::decode(&table.encode(), &layout).unwrap();
        assert!(model.iter().all(|(address, (slot, _))| read.get(*address) == Some(*slot)));
    }

    #[test]
    fn a_discard_takes_content_and_entries() {
        let mut table = Table::new(&layout(), true);
        table.set(256, 3, false);
        table.set(512, 4, false);
        let mut left = Vec::new();
        table.apply(&Entry::Discard { mib: 1, count: 1 }, 0, false, &mut left);
        assert_eq!((left, table.get(256), table.get(512)), (vec![3], None, Some(4)));
        assert!(!table.content(1) && table.content(0) && table.content(2));
        table.apply(&Entry::Home { address: 300, count: 1, checksum: 0 }, 0, false, &mut Vec::new());
        assert!(table.content(1));
    }

    proptest! {
        #[test]
        fn any_bytes_are_no_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600), small in any::<bool>()) {
            let mut bytes = bytes;
            if small && bytes.len() > 8 {
                bytes[1..8].copy_from_slice(&[0, 0, 0, 2, 0, 0, 0]);
            }
            let layout = layout();
            if let Ok(table) = Table::decode(&bytes, &layout) {
                let again = Table::decode(&table.encode(), &layout).unwrap();
                prop_assert_eq!(again.encode(), table.encode());
            }
        }
    }
}
