//! The list of snapshots in memory, and what they hold.

use super::places::{table, union};
use super::{Bits, Map};
use crate::Result;
use format::native::snapshots::{RECORDS, Snapshot, parse};
use std::collections::BTreeMap;
use std::sync::Arc;

/// All snapshots of a volume, in the order of its list.
pub(crate) struct Snapshots {
    records: Vec<Option<Snapshot>>,
}

impl Snapshots {
    /// Reads the list.
    pub(crate) fn load(map: &Map, count: u32) -> Result<Self> {
        let mut records = Vec::new();
        for block in 0..u64::from(count).div_ceil(RECORDS as u64) {
            match map.block(map.shape.list().start + block)? {
                Some(bytes) => records.extend(parse(&bytes, &map.shape)?),
                None => records.extend(vec![None; RECORDS]),
            }
        }
        records.truncate(count as usize);
        Ok(Self { records })
    }

    /// Those that there are.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Snapshot> {
        self.records.iter().flatten()
    }

    /// The places that they hold, all together.
    pub(crate) fn held(&self, map: &Map) -> Result<BTreeMap<u32, Bits>> {
        let mut chunks = Vec::new();
        for snapshot in self.iter() {
            let map = Map::new(Arc::clone(&map.device), map.shape, map.seed, Some(snapshot.root));
            chunks.extend(table(&map, snapshot.chunks)?.into_iter().flatten());
        }
        Ok(union(&chunks))
    }
}
