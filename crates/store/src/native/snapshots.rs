//! The list of snapshots in memory, and the blocks that they pin.

use super::chunk_table::{table, unite};
use super::{Bits, Map, MapLog, Mapped, node_over, slot_at};
use crate::Result;
use format::native::chunk_table::{Chunk, RECORDS as TABLE_RECORDS};
use format::native::map::{Entry, Node, Position};
use format::native::snapshots::{RECORDS, Snapshot, parse};
use format::{Error as FormatError, FsBlock, Structure};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// The maximum number of cached nodes of snapshots' maps, all snapshots together: 20 MiB.
const CACHED: usize = 1 << 12;

/// The list, in its order; `None` for a record that is not in use.
pub type List = Arc<[Option<Snapshot>]>;

/// A change to the list of snapshots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SnapshotChange {
    /// The generation as a whole becomes a snapshot.
    Create {
        /// A name that [`Snapshot::is_name`] accepts, and that no snapshot has.
        name: Vec<u8>,
        /// The time of creation, in seconds since 1970.
        time: i64,
    },
    /// A snapshot is deleted.
    Delete {
        /// Its name.
        name: Vec<u8>,
    },
}

/// The state of its snapshots that the users of a volume share.
#[derive(Default)]
pub(crate) struct Shared {
    lists: Mutex<Lists>,
    /// Requested changes of generations that are not planned yet, with their numbers.
    requests: Mutex<Vec<(u64, SnapshotChange)>>,
    /// By physical block, generation and checksum: a physical block may be reused when no snapshot pins it any more.
    nodes: Mutex<HashMap<(u64, u64, u32), Arc<Node>>>,
}

#[derive(Default)]
struct Lists {
    /// The list of the newest durable generation, once it was read.
    now: Option<List>,
    /// The list of the generation being written.
    next: Option<List>,
}

impl Shared {
    /// Sets the list of the generation being written.
    pub(crate) fn prepare(&self, list: List) {
        self.lists.lock().next = Some(list);
    }

    pub(crate) fn has_requests(&self, generation: u64) -> bool {
        self.requests.lock().iter().any(|(of, _)| *of == generation)
    }

    /// Removes and returns the requested changes of a generation that is planned.
    pub(crate) fn take_requests(&self, generation: u64) -> Vec<SnapshotChange> {
        self.requests.lock().extract_if(.., |(of, _)| *of == generation).map(|(_, change)| change).collect()
    }

    /// Discards the changes requested for the open generation.
    pub(crate) fn discard_requests(&self) {
        self.requests.lock().clear();
    }
}

/// Reads the list of a generation.
fn load(map: &Map, count: u32) -> Result<Vec<Option<Snapshot>>> {
    let mut records = Vec::new();
    for block in 0..u64::from(count).div_ceil(RECORDS as u64) {
        match map.block(map.layout.list().start + block)? {
            Some(bytes) => records.extend(parse(&bytes, &map.layout)?),
            None => records.extend(vec![None; RECORDS]),
        }
    }
    records.truncate(count as usize);
    let mut names: Vec<&[u8]> = records.iter().flatten().map(|record| &record.name[..]).collect();
    names.sort_unstable();
    if names.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(FormatError::corrupt(Structure::SnapshotList, "a name is listed twice").into());
    }
    Ok(records)
}

impl Mapped {
    /// The list of snapshots of the newest durable generation. Empty for a snapshot that is open as a volume.
    ///
    /// # Errors
    /// Those of the device; [`Error::Format`](crate::Error::Format) for a damaged list.
    pub fn snapshots(&self) -> Result<List> {
        if let Some(list) = &self.shared.lists.lock().now {
            return Ok(Arc::clone(list));
        }
        let list: List = load(&self.map, self.count)?.into();
        Ok(Arc::clone(self.shared.lists.lock().now.get_or_insert(list)))
    }

    /// Requests a change of the list with the commit of the open generation, which has this number. To be called within
    /// an operation; the caller ensures that the change is possible.
    pub fn request(&self, generation: u64, change: SnapshotChange) {
        self.shared.requests.lock().push((generation, change));
    }

    /// Whether the generation becomes a snapshot.
    #[must_use]
    pub fn becomes_snapshot(&self, generation: u64) -> bool {
        let creates =
            |(of, change): &(u64, SnapshotChange)| *of == generation && matches!(change, SnapshotChange::Create { .. });
        self.shared.requests.lock().iter().any(creates)
    }

    /// Publishes the list of the generation that was written: it is durable.
    pub fn publish_snapshots(&self) {
        let mut lists = self.shared.lists.lock();
        if let Some(next) = lists.next.take() {
            lists.now = Some(next);
        }
    }

    /// The volume of a snapshot.
    #[must_use]
    pub fn at(&self, snapshot: &Snapshot) -> Self {
        let Map { device, layout, seed, .. } = &*self.map;
        let map = Map::new(Arc::clone(device), *layout, *seed, Some(snapshot.root), MapLog::new());
        Self { map: Arc::new(map), count: 0, shared: Arc::default(), regions: Arc::clone(&self.regions) }
    }

    /// The map entry of a metadata block in the newest planned generation; `None` if it was never written.
    ///
    /// # Errors
    /// Those of the device; [`Error::Format`](crate::Error::Format) for a damaged map.
    pub fn entry_of(&self, block: FsBlock) -> Result<Option<Entry>> {
        self.map.layout.index_of(block).map_or(Ok(None), |index| self.map.entry(index))
    }

    /// The map entry of a metadata block in a snapshot.
    ///
    /// # Errors
    /// As [`Mapped::entry_of`].
    pub fn entry_at(&self, snapshot: &Snapshot, block: FsBlock) -> Result<Option<Entry>> {
        self.map.layout.index_of(block).map_or(Ok(None), |index| self.entry_below(&snapshot.root, index))
    }

    /// The content of a metadata block of a snapshot.
    ///
    /// # Errors
    /// As [`Mapped::entry_of`]; if the content does not match the entry.
    pub fn read_entry(&self, block: FsBlock, entry: &Entry) -> Result<Vec<u8>> {
        let index = self.map.layout.index_of(block).unwrap_or(u64::MAX);
        self.map.read(entry, Position::Block(index))
    }

    fn entry_below(&self, root: &Entry, index: u64) -> Result<Option<Entry>> {
        let mut entry = *root;
        for level in (0..self.map.layout.levels()).rev() {
            let key = (entry.physical, entry.generation, entry.checksum);
            let there = self.shared.nodes.lock().get(&key).cloned();
            let node = match there {
                Some(node) => node,
                None => {
                    let node = Arc::new(self.map.read_node(node_over(index, level), &entry)?);
                    let mut nodes = self.shared.nodes.lock();
                    if nodes.len() >= CACHED {
                        nodes.clear();
                    }
                    nodes.insert(key, Arc::clone(&node));
                    node
                }
            };
            match node.get(slot_at(index, level)) {
                Some(next) => entry = next,
                None => return Ok(None),
            }
        }
        Ok(Some(entry))
    }

    /// The number of physical blocks pinned by a snapshot but neither by another one nor used by the newest durable
    /// generation.
    ///
    /// # Errors
    /// As [`Mapped::snapshots`].
    pub fn physical_blocks_pinned_by(&self, snapshot: &Snapshot) -> Result<u64> {
        let list = self.snapshots()?;
        let mut others = BTreeMap::new();
        for other in list.iter().flatten().filter(|other| other.name != snapshot.name) {
            unite(&mut others, self.table_at(other)?.iter().flatten());
        }
        let (superblock, _) = super::superblock(&*self.map.device)?;
        unite(&mut others, table(&self.map, superblock.chunks)?.iter().flatten());
        let own = |chunk: &Chunk| {
            let pinned = others.get(&chunk.number).copied().unwrap_or_default();
            chunk.used.iter().zip(pinned).map(|(used, pinned)| u64::from((used & !pinned).count_ones())).sum::<u64>()
        };
        Ok(self.table_at(snapshot)?.iter().flatten().map(own).sum())
    }

    fn table_at(&self, snapshot: &Snapshot) -> Result<Vec<Option<Chunk>>> {
        table(&self.at(snapshot).map, snapshot.chunks)
    }
}

/// A block of a snapshot's chunk table, shared by snapshots that have the same.
type Table = Arc<[Option<Chunk>]>;

/// The engine's list, with the blocks that each snapshot pins.
#[derive(Default)]
pub(crate) struct Snapshots {
    records: Vec<Option<Snapshot>>,
    /// The chunk table of each.
    tables: Vec<Vec<Table>>,
}

impl Snapshots {
    /// Reads the list and all chunk tables.
    pub(crate) fn load(mapped: &Mapped) -> Result<Self> {
        let mut all = Self { records: mapped.snapshots()?.to_vec(), tables: Vec::new() };
        for record in &all.records {
            let chunks = record.as_ref().map_or(Ok(Vec::new()), |record| mapped.table_at(record))?;
            let blocks = chunks.chunks(TABLE_RECORDS as usize).map(<[_]>::to_vec);
            let table = shared(blocks, all.tables.iter().rev().find(|table| !table.is_empty()));
            all.tables.push(table);
        }
        Ok(all)
    }

    /// The present list.
    pub(crate) fn list(&self) -> List {
        self.records.clone().into()
    }

    /// Records that may be in use, from the start of the list.
    pub(crate) fn count(&self) -> u32 {
        // at most the list's length
        self.records.len() as u32
    }

    /// Adds a snapshot with its chunk table. Returns the changed block of the list; `None` if the list is full.
    pub(crate) fn add(&mut self, snapshot: Snapshot, table: impl Iterator<Item = Vec<Option<Chunk>>>) -> Option<u64> {
        let slot = self.records.iter().position(Option::is_none).unwrap_or(self.records.len());
        if slot as u64 >= format::native::snapshots::MOST {
            return None;
        }
        let newest =
            self.records.iter().zip(&self.tables).filter_map(|(record, t)| Some((record.as_ref()?.generation, t)));
        let table = shared(table, newest.max_by_key(|(generation, _)| *generation).map(|(_, table)| table));
        if slot == self.records.len() {
            self.records.push(None);
            self.tables.push(Vec::new());
        }
        (self.records[slot], self.tables[slot]) = (Some(snapshot), table);
        Some((slot / RECORDS) as u64)
    }

    /// Removes a snapshot by name. Returns the changed block of the list; `None` if no snapshot has this name.
    pub(crate) fn remove(&mut self, name: &[u8]) -> Option<u64> {
        let slot = self.records.iter().position(|record| record.as_ref().is_some_and(|record| record.name == name))?;
        (self.records[slot], self.tables[slot]) = (None, Vec::new());
        while self.records.last().is_some_and(Option::is_none) {
            self.records.pop();
            self.tables.pop();
        }
        Some((slot / RECORDS) as u64)
    }

    /// The bytes of a block of the list; `None` if no record in it is in use.
    pub(crate) fn block(&self, block: u64) -> Option<Vec<u8>> {
        let records = self.records.chunks(RECORDS).nth(usize::try_from(block).ok()?)?;
        records.iter().any(Option::is_some).then(|| format::native::snapshots::to_bytes(records))
    }

    /// The physical blocks that all snapshots together pin.
    pub(crate) fn pinned(&self) -> BTreeMap<u32, Bits> {
        let mut pinned = BTreeMap::new();
        let blocks = self.tables.iter().map(Vec::len).max().unwrap_or(0);
        for block in 0..blocks {
            let mut before: Option<&Table> = None;
            for table in self.tables.iter().filter_map(|table| table.get(block)) {
                if before.is_none_or(|before| !Arc::ptr_eq(before, table)) {
                    unite(&mut pinned, table.iter().flatten());
                }
                before = Some(table);
            }
        }
        pinned
    }
}

/// The blocks of a table; equal blocks are shared with another one.
fn shared(blocks: impl Iterator<Item = Vec<Option<Chunk>>>, like: Option<&Vec<Table>>) -> Vec<Table> {
    let share = |(n, block): (usize, Vec<Option<Chunk>>)| match like.and_then(|like| like.get(n)) {
        Some(same) if same[..] == block[..] => Arc::clone(same),
        _ => block.into(),
    };
    blocks.enumerate().map(share).collect()
}
