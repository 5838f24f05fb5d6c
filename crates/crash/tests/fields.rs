//! Every field of every structure of the native format, as listed in FORMAT.md, is changed separately, with all
//! checksums above it updated, and the check must detect it. Undetectable changes are listed here, with the reason why
//! the volume is still consistent.

use blockdev::{BlockDevice, MemoryDevice};
use check::{Options, check};
use format::checksum::crc32c;
use format::native::Layout;
use format::native::map::{BlockKind, Position};
use format::native::superblock::NativeSuperblock;
use fs::mkfs::{Kind, MkfsOptions, make};
use fs::{FileKind, InodeNo, NewFile, OpenOptions, Volume, WriteOptions, XattrMode};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const BLOCK: u64 = 4096;
/// Length of a volume in bytes, small for fast checks.
const LEN: u64 = 32 << 20;

/// Changes after which a volume is still consistent, with the reason.
const HARMLESS: [(&str, &str, &str); 5] = [
    (
        "DiskEntry",
        "e_generation",
        "a lower number, of an entry in the map: the same block, written earlier and not changed since. Values of 0 or \
         later than the node above it, in the map log earlier than the map, and differences between snapshots are \
         detected",
    ),
    ("DiskSnapshot", "s_name", "a snapshot may have any name"),
    ("DiskSnapshot", "s_time", "the time of the clock, which may have been wrong"),
    ("DiskSector", "n_generation", TORN),
    ("DiskNativeSuperblock", "n_generation", TORN),
];

const TORN: &str = "a loss of power leaves sectors of two generations in a superblock, and the other one is used";

/// A row of a table of FORMAT.md.
#[derive(Debug, Clone)]
struct Field {
    offset: usize,
    size: usize,
    name: String,
}

/// The tables of the native format's structures, by the last component of their names.
fn tables() -> BTreeMap<String, Vec<Field>> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../FORMAT.md");
    let text = std::fs::read_to_string(path).expect("FORMAT.md");
    let mut tables: BTreeMap<String, Vec<Field>> = BTreeMap::new();
    let mut current = None;
    for line in text.lines() {
        if line.starts_with('#') {
            let named = line.strip_prefix("### `format::native::").and_then(|rest| rest.strip_suffix('`'));
            current = named.and_then(|name| name.rsplit(':').next()).map(str::to_owned);
        }
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        if let (Some(name), [_, offset, size, field, ..]) = (&current, cells.as_slice())
            && let Some(offset) = offset.strip_prefix("0x")
        {
            let offset = usize::from_str_radix(offset, 16).expect("an offset");
            let (size, field) = (size.parse().expect("a size"), field.trim_matches('`').to_owned());
            tables.entry(name.clone()).or_default().push(Field { offset, size, name: field });
        }
    }
    tables
}

/// Whether a field of this name consists of others, which are changed instead.
fn is_made_of_others(field: &str) -> bool {
    matches!(field, "n_root" | "n_sectors" | "l_entry" | "n_entries" | "s_root")
}

/// Alternative values of a field.
fn others(value: &[u8]) -> Vec<Vec<u8>> {
    let flipped = |at: usize, mask: u8| {
        let mut bytes = value.to_vec();
        bytes[at] ^= mask;
        bytes
    };
    let mut all = vec![vec![0; value.len()], flipped(value.len() - 1, 0x80)];
    if value.len() <= 8 {
        let mut wide = [0; 8];
        wide[..value.len()].copy_from_slice(value);
        let number = u64::from_le_bytes(wide);
        let near = [number.wrapping_add(1), number.wrapping_sub(1), 1];
        all.extend(near.map(|other| other.to_le_bytes()[..value.len()].to_vec()));
    } else {
        all.extend([vec![0xFF; value.len()], flipped(0, 1), flipped(value.len() / 2, 0x10)]);
    }
    all.retain(|other| other != value);
    all.sort_unstable();
    all.dedup();
    all
}

/// A volume with entries of every kind, a snapshot, and a map log.
fn volume() -> MemoryDevice {
    let device = Arc::new(MemoryDevice::zeroed(LEN).expect("memory"));
    let mut options = MkfsOptions::new(Kind::Extant);
    (options.uuid, options.hash_seed) = (*b"each field of it", [3; 16]);
    make(&*device, &options).expect("a volume");
    let write = WriteOptions { seed: Some(3), ..WriteOptions::default() };
    let options = OpenOptions { write: Some(write), ..OpenOptions::default() };
    let volume = Volume::open(Arc::clone(&device) as Arc<dyn BlockDevice>, &options).expect("opening");
    let new = |kind| NewFile { kind, mode: 0o755, umask: 0, uid: 0, gid: 0, device: (0, 0) };
    let dir = volume.create(InodeNo::ROOT, b"large", &new(FileKind::Directory)).expect("a directory").number;
    for n in 0..90 {
        let name = format!("{n:>120}");
        volume.create(dir, name.as_bytes(), &new(FileKind::Regular)).expect("a file");
    }
    let file = volume.create(InodeNo::ROOT, b"pieces", &new(FileKind::Regular)).expect("a file").number;
    for n in 0..10 {
        volume.write_at(file, n * 3 * BLOCK, &[n as u8; 4096]).expect("writing");
        volume.sync().expect("a sync");
    }
    volume.set_xattr(file, b"user.long", &[7; 2000], XattrMode::Any).expect("an attribute");
    volume.symlink(InodeNo::ROOT, b"link", &[b'x'; 300], 0, 0).expect("a link");
    volume.create_snapshot(b"snapshot").expect("a snapshot");
    volume.write_at(file, 0, &[9; 9000]).expect("writing");
    let other = volume.create(dir, b"other", &new(FileKind::Regular)).expect("a file").number;
    volume.write_at(other, 0, &[5; 9000]).expect("writing");
    volume.sync().expect("a sync");
    // a loss of power after the map was written and a little more was done
    volume.create_snapshot(b"gone").expect("a snapshot");
    volume.delete_snapshot(b"gone").expect("a snapshot");
    volume.write_at(file, 90 * BLOCK, &[5; 9000]).expect("writing");
    volume.sync().expect("a sync");
    let mut bytes = vec![0; LEN as usize];
    device.read(0, &mut bytes).expect("reading");
    MemoryDevice::from_vec(bytes)
}

/// The owner of the map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Of {
    Live,
    /// The snapshot at this record of the first block of the list.
    Snapshot(usize),
}

/// A block with structures in it; determines the checksums above it.
#[derive(Debug, Clone, Copy)]
enum Location {
    /// The active superblock.
    Superblock,
    /// A node: its level, and its index in the level.
    Node(Of, u8, u64),
    /// A block referenced by a leaf.
    Mapped(Of, u64),
}

/// A structure on the volume.
struct Site {
    what: String,
    location: Location,
    offset: usize,
}

/// The volume as a device of blocks.
struct Bytes<'a> {
    device: &'a MemoryDevice,
    /// The block of the active superblock.
    at: u64,
    layout: Layout,
    seed: u32,
    /// Blocks in their state before a change.
    before: BTreeMap<u64, Vec<u8>>,
}

impl<'a> Bytes<'a> {
    fn new(device: &'a MemoryDevice) -> Self {
        let mut blocks = vec![0; 2 * BLOCK as usize];
        device.read(0, &mut blocks).expect("reading");
        let (sb, at) = NativeSuperblock::newest(&blocks).expect("a superblock");
        Self { device, at, layout: sb.layout, seed: sb.seed(), before: BTreeMap::new() }
    }

    fn block(&self, physical: u64) -> Vec<u8> {
        let mut bytes = vec![0; BLOCK as usize];
        self.device.read(physical * BLOCK, &mut bytes).expect("reading");
        bytes
    }

    fn write(&mut self, physical: u64, bytes: &[u8]) {
        let before = self.block(physical);
        self.before.entry(physical).or_insert(before);
        self.device.write(physical * BLOCK, bytes).expect("writing");
    }

    fn restore(&mut self) {
        for (physical, bytes) in std::mem::take(&mut self.before) {
            self.device.write(physical * BLOCK, &bytes).expect("writing");
        }
    }

    /// The location of the entry for a root, and the entry's offset in it.
    fn root_at(&self, of: Of) -> (Location, usize) {
        match of {
            Of::Live => (Location::Superblock, 0x28),
            Of::Snapshot(n) => (Location::Mapped(Of::Live, self.layout.list().start), n * 256 + 0x80),
        }
    }

    /// The location of the entry for another location, and the entry's offset in it.
    fn above(&self, location: Location) -> Option<(Location, usize)> {
        let (of, level, number) = match location {
            Location::Superblock => return None,
            Location::Node(of, level, number) if level + 1 == self.layout.levels() => {
                assert_eq!(number, 0);
                return Some(self.root_at(of));
            }
            Location::Node(of, level, number) => (of, level + 1, number),
            Location::Mapped(of, index) => match self.log_entry(index).filter(|_| of == Of::Live) {
                Some(offset) => return Some((Location::Superblock, offset + 8)),
                None => (of, 0, index),
            },
        };
        Some((Location::Node(of, level, number / 128), (number % 128) as usize * 32))
    }

    /// The offset of an index's entry in the map log.
    fn log_entry(&self, index: u64) -> Option<usize> {
        log_entries(&self.block(self.at)).into_iter().find(|(logged, _)| *logged == index).map(|(_, offset)| offset)
    }

    /// The device block of a location.
    fn lies_in(&self, location: Location) -> u64 {
        let Some((above, offset)) = self.above(location) else { return self.at };
        let bytes = self.block(self.lies_in(above));
        u64::from_le_bytes(bytes[offset..offset + 8].try_into().expect("eight bytes"))
    }

    /// Changes bytes at a location, and updates all checksums above them.
    fn change(&mut self, location: Location, offset: usize, value: &[u8]) {
        let lies_in = self.lies_in(location);
        // on the unchanged volume: the change may affect the path
        let path: Vec<_> = std::iter::successors(self.above(location), |(above, _)| self.above(*above)).collect();
        let blocks: Vec<u64> = path.iter().map(|(above, _)| self.lies_in(*above)).collect();
        let mut bytes = self.block(lies_in);
        bytes[offset..offset + value.len()].copy_from_slice(value);
        self.write(lies_in, &bytes);
        let mut below = location;
        for ((above, entry), lies_in) in path.into_iter().zip(blocks) {
            let position = match below {
                Location::Superblock => unreachable!("nothing is above it"),
                Location::Node(_, level, number) => Position::Node { level, number },
                Location::Mapped(_, index) => Position::Block(index),
            };
            let sum = position.checksum(self.seed, &bytes);
            bytes = self.block(lies_in);
            bytes[entry + 0x18..entry + 0x1C].copy_from_slice(&sum.to_le_bytes());
            self.write(lies_in, &bytes);
            below = above;
        }
        self.set_checksum();
    }

    fn set_checksum(&mut self) {
        let mut superblock = self.block(self.at);
        superblock[0x1F4..0x1F8].fill(0);
        let sum = crc32c(!0, &superblock);
        superblock[0x1F4..0x1F8].copy_from_slice(&sum.to_le_bytes());
        self.write(self.at, &superblock);
    }

    /// Whether two device blocks have the same content.
    fn has_the_same(&self, physical: &[u8], other: &[u8]) -> bool {
        let number = |physical: &[u8]| physical.try_into().map_or(0, u64::from_le_bytes);
        let (physical, other) = (number(physical), number(other));
        physical.max(other) < self.layout.blocks() && self.block(physical) == self.block(other)
    }

    /// All entries of a map, including those of nodes: the location and offset, the index, and the kind.
    fn entries(&self, of: Of) -> Vec<(Location, usize, u64, u8)> {
        let mut found = Vec::new();
        let mut above = vec![0];
        for level in (0..self.layout.levels()).rev() {
            let mut below = Vec::new();
            for number in above {
                let location = Location::Node(of, level, number);
                let bytes = self.block(self.lies_in(location));
                for (slot, entry) in bytes.chunks(32).enumerate().filter(|(_, entry)| entry[..8] != [0; 8]) {
                    let number = number * 128 + slot as u64;
                    found.push((location, slot * 32, number, entry[0x10]));
                    below.push(number);
                }
            }
            above = below;
        }
        found
    }
}

/// The index of each entry of the map log, and its offset in the superblock.
fn log_entries(superblock: &[u8]) -> Vec<(u64, usize)> {
    let number = |at: usize| u64::from_le_bytes(superblock[at..at + 8].try_into().expect("eight bytes"));
    let offsets = (1..8).flat_map(|sector| (0..11).map(move |n| sector * 512 + 64 + n * 40));
    offsets.take(number(0x50) as u32 as usize).map(|at| (number(at), at)).collect()
}

/// Every structure on the volume, with a sample of the frequent ones: each kind of entry in each map.
fn sites(bytes: &Bytes<'_>) -> BTreeMap<&'static str, Vec<Site>> {
    let mut sites: BTreeMap<&'static str, Vec<Site>> = BTreeMap::new();
    let mut add = |structure: &'static str, what: String, location: Location, offset: usize| {
        sites.entry(structure).or_default().push(Site { what, location, offset });
    };
    add("DiskNativeSuperblock", "in force".to_owned(), Location::Superblock, 0);
    for n in [1, 7] {
        add("DiskSector", format!("sector {n}"), Location::Superblock, n * 512);
    }
    add("DiskEntry", "the root's".to_owned(), Location::Superblock, 0x28);
    let log = log_entries(&bytes.block(bytes.at));
    assert!(log.len() > 2, "too few log entries");
    for (index, offset) in &log {
        add("DiskMapLogEntry", format!("of index {index}"), Location::Superblock, *offset);
        add("DiskEntry", format!("in the map log, of index {index}"), Location::Superblock, offset + 8);
    }
    for of in [Of::Live, Of::Snapshot(0)] {
        let mut seen = BTreeSet::new();
        for (location, offset, number, kind) in bytes.entries(of) {
            // entries superseded by the map log have no effect
            let counts = of != Of::Live || kind == BlockKind::MapNode as u8 || bytes.log_entry(number).is_none();
            let level = match location {
                Location::Node(_, level, _) => level,
                _ => 0,
            };
            if counts && seen.insert((kind, level)) {
                add("DiskEntry", format!("{of:?}, kind {kind}, level {level}"), location, offset);
            }
        }
        let wanted = [1, 2, 3, 4, 5, 6, 8, 9, 10, 12, 13, 14];
        let kinds: BTreeSet<u8> = seen.iter().map(|(kind, _)| *kind).collect();
        assert!(of == Of::Live || wanted.iter().all(|kind| kinds.contains(kind)), "{of:?} lacks a kind: {kinds:?}");
        let table = Location::Mapped(of, bytes.layout.table().start);
        add("DiskChunk", format!("{of:?}"), table, 0);
        add("DiskChunk", format!("{of:?}, not in use"), table, 55 * 72);
        if of != Of::Live {
            let (location, offset) = bytes.root_at(of);
            add("DiskEntry", format!("{of:?}, the root's"), location, offset);
            add("DiskSnapshot", format!("{of:?}"), location, offset - 0x80);
        }
    }
    let list = Location::Mapped(Of::Live, bytes.layout.list().start);
    add("DiskSnapshot", "not in use".to_owned(), list, 15 * 256);
    sites
}

/// Whether the check finds an error.
fn is_found(device: &MemoryDevice) -> bool {
    let options = Options { threads: 1, ..Options::default() };
    !check("volume", device, &options, &()).is_ok_and(|report| report.clean)
}

#[test]
fn every_field_of_the_native_format_is_checked() {
    let device = volume();
    let mut bytes = Bytes::new(&device);
    let report = check("volume", &device, &Options::default(), &()).expect("a volume");
    assert!(report.clean, "{:#?}", report.problems);
    let tables = tables();
    let sites = sites(&bytes);
    let structures: BTreeSet<&str> = tables.keys().map(String::as_str).collect();
    assert_eq!(structures, sites.keys().copied().collect(), "FORMAT.md has other structures than are changed here");
    let (mut missed, mut needed, mut changes) = (Vec::new(), BTreeSet::new(), 0);
    for (structure, fields) in &tables {
        for Field { offset, size, name } in fields.iter().filter(|field| !is_made_of_others(&field.name)) {
            for site in &sites[structure.as_str()] {
                let at = site.offset + offset;
                let value = bytes.block(bytes.lies_in(site.location))[at..at + size].to_vec();
                for other in others(&value) {
                    // an identical older block may exist
                    if name == "e_physical" && bytes.has_the_same(&value, &other) {
                        continue;
                    }
                    if name == "n_checksum" {
                        let mut block = bytes.block(bytes.at);
                        block[at..at + size].copy_from_slice(&other);
                        bytes.write(bytes.at, &block);
                    } else {
                        bytes.change(site.location, at, &other);
                    }
                    changes += 1;
                    if !is_found(&device) {
                        match HARMLESS.iter().find(|(of, field, _)| of == structure && field == name) {
                            Some(harmless) => _ = needed.insert(harmless.1),
                            None => missed
                                .push(format!("{structure} ({}), {name}: {value:02x?} to {other:02x?}", site.what)),
                        }
                    }
                    bytes.restore();
                }
            }
        }
    }
    assert!(missed.is_empty(), "{} of {changes} changes are not detected:\n{}", missed.len(), missed.join("\n"));
    let stale: Vec<_> = HARMLESS.iter().filter(|(_, field, _)| !needed.contains(field)).collect();
    assert!(stale.is_empty(), "these are detected: {stale:?}");
    assert!(!is_found(&device), "the volume has changed");
}
