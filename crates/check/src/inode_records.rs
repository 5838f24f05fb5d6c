//! The checker's records of inodes: six bytes for each that may be in use, and a record for each directory.

use format::inode::FileKind;
use format::superblock::Geometry;
use format::{GroupNo, InodeNo};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};

bitflags::bitflags! {
    /// The known properties of an inode beyond its type.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub(crate) struct Marks: u16 {
        /// in use: has links, or is one of the volume's own
        const USED = 0x0010;
        /// its encryption context is in the inode itself
        const CONTEXT = 0x0020;
        /// hashed directory
        const INDEX = 0x0040;
        /// contains an attribute's value
        const EA_INODE = 0x0080;
        /// encrypted
        const ENCRYPTED = 0x0100;
        /// directory that compares names without case
        const CASEFOLD = 0x0200;
        /// data is in the inode (inline data)
        const INLINE = 0x0400;
        /// connected to the root
        const CONNECTED = 0x0800;
        /// one of the volume's own (below the first inode, or named by the superblock): needs no name
        const OWN = 0x1000;
        /// neither content nor attributes
        const EMPTY = 0x2000;
        /// an attribute refers to it for its value
        const VALUE = 0x4000;
        /// its tree was put together from metadata regions
        const LAYERED = 0x8000;
    }
}

const KIND_MASK: u16 = 0x000F;

/// The record of one inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct InodeRecord {
    /// Its type; `None` where the mode names none.
    pub(crate) kind: Option<FileKind>,
    /// The rest.
    pub(crate) marks: Marks,
    /// `i_links_count`
    pub(crate) links: u16,
}

#[derive(Default)]
struct Slot {
    state: AtomicU16,
    links: AtomicU16,
    counted: AtomicU16,
}

/// The records of all inodes that may be in use.
pub(crate) struct Inodes {
    groups: Box<[OnceLock<Box<[Slot]>>]>,
    inodes: u32,
    per_group: u32,
    /// names beyond what the slot can count
    overflow: Mutex<HashMap<InodeNo, u32>>,
}

impl Inodes {
    /// Empty records for all inodes of a volume.
    pub(crate) fn new(geometry: &Geometry) -> Self {
        Self {
            groups: geometry.group_numbers().map(|_| OnceLock::new()).collect(),
            inodes: geometry.inodes,
            per_group: geometry.inodes_per_group,
            overflow: Mutex::new(HashMap::new()),
        }
    }

    fn place(&self, inode: InodeNo) -> Option<(usize, usize)> {
        let n = inode.get().checked_sub(1).filter(|_| inode.get() <= self.inodes)?;
        Some(((n / self.per_group) as usize, (n % self.per_group) as usize))
    }

    fn slot(&self, inode: InodeNo) -> Option<&Slot> {
        let (group, index) = self.place(inode)?;
        self.groups.get(group)?.get()?.get(index)
    }

    /// Allocates records for the first `used` inodes of a group, the only ones that can be in use; called once, before
    /// any of them is recorded.
    pub(crate) fn open_group(&self, group: GroupNo, used: u32) {
        if let Some(cell) = self.groups.get(group.get() as usize) {
            cell.get_or_init(|| (0..used.min(self.per_group)).map(|_| Slot::default()).collect());
        }
    }

    /// Records an inode; ignored for an inode for which [`open_group`](Self::open_group) allocated no record.
    pub(crate) fn put(&self, inode: InodeNo, record: InodeRecord) {
        if let Some(slot) = self.slot(inode) {
            slot.state.store(u16::from(kind_number(record.kind)) | record.marks.bits(), Ordering::Relaxed);
            slot.links.store(record.links, Ordering::Relaxed);
        }
    }

    /// Adds marks to a recorded inode.
    pub(crate) fn mark(&self, inode: InodeNo, marks: Marks) {
        if let Some(slot) = self.slot(inode) {
            slot.state.fetch_or(marks.bits(), Ordering::Relaxed);
        }
    }

    /// The record of an inode in use; `None` for one that is free or does not exist.
    #[inline]
    pub(crate) fn get(&self, inode: InodeNo) -> Option<InodeRecord> {
        let slot = self.slot(inode)?;
        let state = slot.state.load(Ordering::Relaxed);
        let marks = Marks::from_bits_retain(state & !KIND_MASK);
        marks.contains(Marks::USED).then(|| InodeRecord {
            kind: number_kind(state & KIND_MASK),
            marks,
            links: slot.links.load(Ordering::Relaxed),
        })
    }

    /// Whether an inode is in use.
    #[inline]
    pub(crate) fn is_used(&self, inode: InodeNo) -> bool {
        self.slot(inode).is_some_and(|s| s.state.load(Ordering::Relaxed) & Marks::USED.bits() != 0)
    }

    /// Counts one more name of an inode.
    #[inline]
    pub(crate) fn count_name(&self, inode: InodeNo) {
        let Some(slot) = self.slot(inode) else { return };
        let counted = slot.counted.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_add(1));
        if counted.is_err() {
            let mut overflow = self.overflow.lock();
            let more = overflow.entry(inode).or_insert(0);
            *more = more.saturating_add(1);
        }
    }

    /// The names counted for an inode.
    pub(crate) fn names(&self, inode: InodeNo) -> u32 {
        let Some(slot) = self.slot(inode) else { return 0 };
        let counted = slot.counted.load(Ordering::Relaxed);
        if counted < u16::MAX {
            return u32::from(counted);
        }
        let overflow = self.overflow.lock();
        u32::from(counted).saturating_add(overflow.get(&inode).copied().unwrap_or(0))
    }

    /// The inodes in use, ascending.
    pub(crate) fn used(&self) -> impl Iterator<Item = (InodeNo, InodeRecord)> + '_ {
        self.groups.iter().enumerate().flat_map(move |(group, cell)| {
            let first = group as u32 * self.per_group + 1;
            let slots = cell.get().map_or(0, |slots| slots.len() as u32);
            (first..first + slots).filter_map(|n| Some((InodeNo(n), self.get(InodeNo(n))?)))
        })
    }

    /// The used inodes of a group as bits, the lowest first and without those at the end that have no record; and the
    /// number of directories among them.
    pub(crate) fn used_in_group(&self, group: GroupNo) -> (Vec<u64>, u32) {
        let directory = u16::from(kind_number(Some(FileKind::Directory)));
        let mut directories = 0;
        let slots = self.groups.get(group.get() as usize).and_then(OnceLock::get).map_or(&[][..], |slots| slots);
        let word = |slots: &[Slot]| {
            let (mut word, mut found) = (0u64, 0u32);
            for (n, slot) in slots.iter().enumerate() {
                let state = slot.state.load(Ordering::Relaxed);
                let used = state & Marks::USED.bits() != 0;
                found += u32::from(used & (state & KIND_MASK == directory));
                word |= u64::from(used) << n;
            }
            directories += found;
            word
        };
        (slots.chunks(64).map(word).collect(), directories)
    }
}

/// The number of a type as directory entries have it; 0 for none.
pub(crate) fn kind_number(kind: Option<FileKind>) -> u8 {
    match kind {
        None => 0,
        Some(FileKind::Regular) => 1,
        Some(FileKind::Directory) => 2,
        Some(FileKind::CharDevice) => 3,
        Some(FileKind::BlockDevice) => 4,
        Some(FileKind::Fifo) => 5,
        Some(FileKind::Socket) => 6,
        Some(FileKind::Symlink) => 7,
    }
}

fn number_kind(number: u16) -> Option<FileKind> {
    Some(match number {
        1 => FileKind::Regular,
        2 => FileKind::Directory,
        3 => FileKind::CharDevice,
        4 => FileKind::BlockDevice,
        5 => FileKind::Fifo,
        6 => FileKind::Socket,
        7 => FileKind::Symlink,
        _ => return None,
    })
}

/// The record of a directory until its place in the tree is known.
#[derive(Debug)]
pub(crate) struct Directory {
    /// Its inode.
    pub(crate) inode: InodeNo,
    /// Start of its blocks' checksums ([`format::inode::RawInode::seed`]).
    pub(crate) seed: u32,
    /// `i_size`, in blocks; 0 where the entries are in the inode.
    pub(crate) blocks: u32,
    /// The directory whose entry names it; 0 until one is found.
    parent: AtomicU32,
    /// The target of its `..`; 0 until that is read.
    dotdot: AtomicU32,
}

impl Directory {
    /// A directory whose names were not read yet.
    pub(crate) fn new(inode: InodeNo, seed: u32, blocks: u32) -> Self {
        Self { inode, seed, blocks, parent: AtomicU32::new(0), dotdot: AtomicU32::new(0) }
    }

    /// The directory whose entry names it, where one was found.
    pub(crate) fn parent(&self) -> Option<InodeNo> {
        Some(InodeNo(self.parent.load(Ordering::Relaxed))).filter(|i| i.get() != 0)
    }

    /// Records that `parent` has an entry for it. `false` where another entry was found before.
    pub(crate) fn set_parent(&self, parent: InodeNo) -> bool {
        self.parent.compare_exchange(0, parent.get(), Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Replaces the parent that was found first by `parent`.
    pub(crate) fn choose_parent(&self, parent: InodeNo) {
        self.parent.store(parent.get(), Ordering::Relaxed);
    }

    /// The target of its `..`, where that was read.
    pub(crate) fn dotdot(&self) -> Option<InodeNo> {
        Some(InodeNo(self.dotdot.load(Ordering::Relaxed))).filter(|i| i.get() != 0)
    }

    /// Records the target of its `..`.
    pub(crate) fn set_dotdot(&self, target: InodeNo) {
        self.dotdot.store(target.get(), Ordering::Relaxed);
    }
}

/// All directories, ascending by inode.
#[derive(Debug, Default)]
pub(crate) struct Directories(Vec<Directory>);

impl Directories {
    /// The directories that the inode pass found, sorted.
    pub(crate) fn new(mut found: Vec<Directory>) -> Self {
        found.sort_unstable_by_key(|d| d.inode);
        Self(found)
    }

    /// The record of a directory.
    pub(crate) fn get(&self, inode: InodeNo) -> Option<&Directory> {
        self.nth(self.place(inode)?)
    }

    /// The position of a directory among all of them.
    pub(crate) fn place(&self, inode: InodeNo) -> Option<usize> {
        self.0.binary_search_by_key(&inode, |d| d.inode).ok()
    }

    /// The directory at a position.
    pub(crate) fn nth(&self, place: usize) -> Option<&Directory> {
        self.0.get(place)
    }

    /// All of them.
    pub(crate) fn iter(&self) -> std::slice::Iter<'_, Directory> {
        self.0.iter()
    }
}
