//! The structures on the device: superblock, placeholder, header of a record. FORMAT.md has the tables.
//!
//! Parsing is validation: any bytes are accepted as input, and impossible values never become a structure.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use crate::layout::{BLOCK, Layout};

/// `s_magic`.
pub const SUPERBLOCK_MAGIC: [u8; 8] = *b"KeroSupr";
/// `p_magic`.
pub const PLACEHOLDER_MAGIC: [u8; 8] = *b"KeroHere";
/// `r_magic`.
pub const RECORD_MAGIC: [u8; 8] = *b"KeroReco";
/// The version of the format. In version 1 each record directly follows the last one.
pub const VERSION: u32 = 2;
/// The defect of a superblock with another version: a newer program wrote it.
pub(crate) const UNKNOWN_VERSION: &str = "superblock of an unknown version";
/// The version of placeholders.
pub const PLACEHOLDER_VERSION: u32 = 1;
/// Numbers of groups, records and superblocks stay below this: enough for one each nanosecond for a century.
const MOST: u64 = 1 << 62;
/// The maximum number of entries of one record.
pub const ENTRIES: usize = 255;
/// The human-readable text of a placeholder.
pub const NOTICE: &[u8; 128] = b"This device has a Kero layer of Extant: blocks are mapped. Open it as kero:DEVICE, or remove the layer with extant kero drain. \n";

/// The location of a field in a disk structure: the row of its table in FORMAT.md.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FieldAt {
    /// The field's name.
    pub name: &'static str,
    /// Offset in bytes from the start of the structure.
    pub offset: usize,
    /// Size in bytes.
    pub size: usize,
}

macro_rules! disk_struct {
    ($(#[$meta:meta])* pub struct $name:ident [$size:literal] {
        $( $(#[$fmeta:meta])* $off:literal $field:ident : $ty:ty, )*
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq,
                 zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::KnownLayout, zerocopy::Immutable, zerocopy::Unaligned)]
        #[repr(C)]
        pub struct $name { $( $(#[$fmeta])* pub $field: $ty, )* }

        const _: () = {
            assert!(core::mem::size_of::<$name>() == $size);
            $( assert!(core::mem::offset_of!($name, $field) == $off); )*
        };

        impl $name {
            /// Size on the device in bytes.
            pub const SIZE: usize = $size;
            /// The fields in order, as FORMAT.md lists them.
            pub const FIELDS: &'static [FieldAt] = &[ $( FieldAt {
                name: stringify!($field), offset: $off, size: core::mem::size_of::<$ty>(),
            }, )* ];
        }
    };
}

disk_struct! {
    /// Kero's superblock, the first sector of its block.
    pub struct DiskSuperblock[512] {
        /// "KeroSupr"
        0x00 s_magic: [u8; 8],
        /// the layer's UUID, set by format
        0x08 s_uuid: [u8; 16],
        /// 2; while one of the superblocks has 1, there are no gaps between records
        0x18 s_version: U32,
        /// 1 being formatted, 2 in use, 3 being removed
        0x1C s_state: U32,
        /// incremented at each write of a superblock; the higher one is valid
        0x20 s_generation: U64,
        /// blocks of the device
        0x28 s_blocks: U64,
        /// blocks of data, from block 0
        0x30 s_data_blocks: U64,
        /// first block of the log
        0x38 s_log_first: U64,
        /// blocks of the log
        0x40 s_log_blocks: U32,
        /// blocks of a segment
        0x44 s_segment_blocks: U32,
        /// first record of the newest checkpoint, a block of the log
        0x48 s_checkpoint: U32,
        /// `r_checksum` of that record
        0x4C s_checkpoint_checksum: U32,
        /// `r_sequence` of that record
        0x50 s_checkpoint_sequence: U64,
        /// `r_group` of that record
        0x58 s_checkpoint_group: U64,
        /// `r_instance` of the opening that writes to the layer
        0x60 s_instance: U64,
        /// 0
        0x68 s_reserved: [u8; 404],
        /// CRC32C of the preceding 508 bytes
        0x1FC s_checksum: U32,
    }
}

disk_struct! {
    /// The placeholder in blocks 0 and 16, the first sector of its block.
    pub struct DiskPlaceholder[512] {
        /// "KeroHere"
        0x00 p_magic: [u8; 8],
        /// the layer's UUID
        0x08 p_uuid: [u8; 16],
        /// 1
        0x18 p_version: U32,
        /// the block that contains it, 0 or 16
        0x1C p_block: U32,
        /// blocks of the device
        0x20 p_blocks: U64,
        /// block of the first superblock
        0x28 p_superblock_a: U64,
        /// block of the second superblock
        0x30 p_superblock_b: U64,
        /// the first block that is on another device; 0 if everything is on one
        0x38 p_split: U64,
        /// a human-readable notice
        0x40 p_notice: [u8; 128],
        /// 0
        0xC0 p_reserved_2: [u8; 316],
        /// CRC32C of the preceding 508 bytes
        0x1FC p_checksum: U32,
    }
}

disk_struct! {
    /// The start of a record's header block; entries follow, then zeroes.
    pub struct DiskRecord[64] {
        /// "KeroReco"
        0x00 r_magic: [u8; 8],
        /// the layer's UUID
        0x08 r_uuid: [u8; 16],
        /// that of the previous record plus one
        0x18 r_sequence: U64,
        /// number of the group
        0x20 r_group: U64,
        /// random, new at each opening for writing
        0x28 r_instance: U64,
        /// `r_checksum` of the previous record
        0x30 r_before: U32,
        /// entries
        0x34 r_entries: U16,
        /// blocks after the header
        0x36 r_payload: U16,
        /// 1 last record of its group, 2 part of a checkpoint
        0x38 r_flags: U32,
        /// CRC32C of the 4 096 bytes of the block with this field 0
        0x3C r_checksum: U32,
    }
}

disk_struct! {
    /// An entry of a record.
    pub struct DiskEntry[12] {
        /// first block of data, first MiB, or number of the part
        0x00 e_address: U32,
        /// reserved, 0
        0x04 e_reserved: u8,
        /// 1 block, 2 home, 3 drop, 4 discard, 5 part of a checkpoint
        0x05 e_kind: u8,
        /// their number, at least 1
        0x06 e_count: U16,
        /// CRC32C of the content; 0 if there is none
        0x08 e_checksum: U32,
    }
}

const LAST: u32 = 1;
const CHECKPOINT: u32 = 2;

/// The state of the layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// `format` has not ended.
    Formatting,
    /// In use.
    Active,
    /// `drain` has not ended.
    Removing,
}

/// The content of a valid superblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Superblock {
    /// The version of the format, at most [`VERSION`].
    pub version: u32,
    /// The layer's UUID.
    pub uuid: [u8; 16],
    /// The state of the layer.
    pub phase: Phase,
    /// The higher one is valid.
    pub generation: u64,
    /// The layout of the device.
    pub layout: Layout,
    /// The block of the log at which the checkpoint begins.
    pub checkpoint: u32,
    /// The checksum of the header there.
    pub checksum: u32,
    /// The sequence number of the record there.
    pub sequence: u64,
    /// The group of the record there.
    pub group: u64,
    /// The number of the instance that writes: random, new at each opening for writing.
    pub instance: u64,
}

impl Superblock {
    /// Encodes the block.
    #[must_use]
    pub fn encode(&self) -> Box<[u8]> {
        let state = match self.phase {
            Phase::Formatting => 1,
            Phase::Active => 2,
            Phase::Removing => 3,
        };
        let mut disk = DiskSuperblock {
            s_magic: SUPERBLOCK_MAGIC,
            s_uuid: self.uuid,
            s_version: self.version.into(),
            s_state: U32::new(state),
            s_generation: self.generation.into(),
            s_blocks: self.layout.blocks.into(),
            s_data_blocks: u64::from(self.layout.data).into(),
            s_log_first: self.layout.log_first.into(),
            s_log_blocks: self.layout.log.into(),
            s_segment_blocks: self.layout.segment.into(),
            s_checkpoint: self.checkpoint.into(),
            s_checkpoint_checksum: self.checksum.into(),
            s_checkpoint_sequence: self.sequence.into(),
            s_checkpoint_group: self.group.into(),
            s_instance: self.instance.into(),
            s_reserved: [0; 404],
            s_checksum: 0.into(),
        };
        disk.s_checksum = sector_checksum(disk.as_bytes()).into();
        block_of(disk.as_bytes())
    }

    /// Parses a superblock of a device with at least the number of blocks it states.
    ///
    /// # Errors
    /// A description of the defect.
    pub fn parse(bytes: &[u8]) -> Result<Self, &'static str> {
        let (disk, _) = DiskSuperblock::read_from_prefix(bytes).map_err(|_| "superblock cut short")?;
        if disk.s_magic != SUPERBLOCK_MAGIC {
            return Err("not a superblock of the layer");
        }
        if sector_checksum(disk.as_bytes()) != disk.s_checksum.get() {
            return Err("superblock with a wrong checksum");
        }
        let version = disk.s_version.get();
        if !(1..=VERSION).contains(&version) {
            return Err(UNKNOWN_VERSION);
        }
        let phase = match disk.s_state.get() {
            1 => Phase::Formatting,
            2 => Phase::Active,
            3 => Phase::Removing,
            _ => return Err("superblock with an unknown state"),
        };
        let layout = Layout::new(disk.s_blocks.get(), disk.s_log_blocks.get(), disk.s_segment_blocks.get())?;
        if u64::from(layout.data) != disk.s_data_blocks.get() || layout.log_first != disk.s_log_first.get() {
            return Err("superblock that contradicts itself");
        }
        let numbers = [disk.s_generation.get(), disk.s_checkpoint_sequence.get(), disk.s_checkpoint_group.get()];
        if numbers.iter().any(|number| *number >= MOST) {
            return Err("superblock with an impossible number");
        }
        if disk.s_checkpoint.get() >= layout.log {
            return Err("superblock whose checkpoint is beyond the log");
        }
        Ok(Self {
            version,
            uuid: disk.s_uuid,
            phase,
            generation: disk.s_generation.get(),
            layout,
            checkpoint: disk.s_checkpoint.get(),
            checksum: disk.s_checkpoint_checksum.get(),
            sequence: disk.s_checkpoint_sequence.get(),
            group: disk.s_checkpoint_group.get(),
            instance: disk.s_instance.get(),
        })
    }
}

/// The content of blocks 0 and 16.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placeholder {
    /// The layer's UUID.
    pub uuid: [u8; 16],
    /// 0 or 16.
    pub block: u32,
    /// The number of blocks of the device.
    pub blocks: u64,
    /// The blocks of the two superblocks.
    pub superblocks: [u64; 2],
    /// The first block that is on another device; 0 if everything is on one.
    pub split: u64,
}

impl Placeholder {
    /// Encodes the block: all but its first sector is zero.
    #[must_use]
    pub fn encode(&self) -> Box<[u8]> {
        let [a, b] = self.superblocks;
        let mut disk = DiskPlaceholder {
            p_magic: PLACEHOLDER_MAGIC,
            p_uuid: self.uuid,
            p_version: PLACEHOLDER_VERSION.into(),
            p_block: self.block.into(),
            p_blocks: self.blocks.into(),
            p_superblock_a: a.into(),
            p_superblock_b: b.into(),
            p_split: self.split.into(),
            p_notice: *NOTICE,
            p_reserved_2: [0; 316],
            p_checksum: 0.into(),
        };
        disk.p_checksum = sector_checksum(disk.as_bytes()).into();
        block_of(disk.as_bytes())
    }

    /// Parses the content of block `block`; `None` unless it is the placeholder of that block.
    #[must_use]
    pub fn parse(bytes: &[u8], block: u32) -> Option<Self> {
        let (disk, _) = DiskPlaceholder::read_from_prefix(bytes).ok()?;
        let right = disk.p_magic == PLACEHOLDER_MAGIC
            && sector_checksum(disk.as_bytes()) == disk.p_checksum.get()
            && disk.p_version.get() == PLACEHOLDER_VERSION
            && disk.p_block.get() == block;
        right.then_some(Self {
            uuid: disk.p_uuid,
            block,
            blocks: disk.p_blocks.get(),
            superblocks: [disk.p_superblock_a.get(), disk.p_superblock_b.get()],
            split: disk.p_split.get(),
        })
    }
}

/// The content of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    /// The next block after the header is the new content of this block.
    Block {
        /// The block of data.
        address: u32,
        /// CRC32C of the content.
        checksum: u32,
    },
    /// These blocks are in their home locations, and no longer in the log.
    Home {
        /// First block of data.
        address: u32,
        /// The number of blocks.
        count: u16,
        /// The CRC32C of all of them.
        checksum: u32,
    },
    /// These blocks are no longer in the log, and their content is undefined.
    Drop {
        /// First block of data.
        address: u32,
        /// The number of blocks.
        count: u16,
    },
    /// These MiB have no content.
    Discard {
        /// First MiB of data.
        mib: u32,
        /// The number of MiB.
        count: u16,
    },
    /// The next block after the header is this part of a checkpoint.
    Part {
        /// The number of the part, from 0.
        number: u32,
        /// CRC32C of the part.
        checksum: u32,
    },
}

impl Entry {
    /// Whether the entry has a block after the header.
    #[must_use]
    pub fn has_payload(&self) -> bool {
        matches!(self, Self::Block { .. } | Self::Part { .. })
    }

    fn encode(self) -> DiskEntry {
        let (kind, address, count, checksum) = match self {
            Self::Block { address, checksum } => (1, address, 1, checksum),
            Self::Home { address, count, checksum } => (2, address, count, checksum),
            Self::Drop { address, count } => (3, address, count, 0),
            Self::Discard { mib, count } => (4, mib, count, 0),
            Self::Part { number, checksum } => (5, number, 1, checksum),
        };
        DiskEntry {
            e_address: address.into(),
            e_reserved: 0,
            e_kind: kind,
            e_count: count.into(),
            e_checksum: checksum.into(),
        }
    }

    fn parse(disk: &DiskEntry, layout: &Layout) -> Result<Self, &'static str> {
        let (address, count, checksum) = (disk.e_address.get(), disk.e_count.get(), disk.e_checksum.get());
        let end = u64::from(address) + u64::from(count);
        let entry = match disk.e_kind {
            1 => Self::Block { address, checksum },
            2 => Self::Home { address, count, checksum },
            3 => Self::Drop { address, count },
            4 => Self::Discard { mib: address, count },
            5 => Self::Part { number: address, checksum },
            _ => return Err("record with an entry of an unknown kind"),
        };
        let most = match entry {
            Self::Discard { .. } => u64::from(layout.mibs()),
            Self::Part { .. } => u64::from(layout.log),
            _ => u64::from(layout.data),
        };
        if count == 0 || (entry.has_payload() && count != 1) {
            return Err("record with an entry of a wrong length");
        }
        if end > most {
            return Err("record with an address beyond the data");
        }
        Ok(entry)
    }
}

/// The header of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The previous record's sequence number plus one.
    pub sequence: u64,
    /// The number of its group.
    pub group: u64,
    /// A random number, new at each opening for writing.
    pub instance: u64,
    /// The checksum of the previous header.
    pub before: u32,
    /// Whether it is the last record of its group.
    pub last: bool,
    /// Whether it is part of a checkpoint.
    pub checkpoint: bool,
    /// Its entries, in the order in which they apply.
    pub entries: Vec<Entry>,
}

impl Record {
    /// The number of blocks after the header.
    #[must_use]
    pub fn payload(&self) -> u32 {
        self.entries.iter().filter(|entry| entry.has_payload()).count() as u32
    }

    /// Encodes the header block; returns it and its checksum.
    #[must_use]
    pub fn encode(&self, uuid: &[u8; 16]) -> (Box<[u8]>, u32) {
        let flags = if self.last { LAST } else { 0 } | if self.checkpoint { CHECKPOINT } else { 0 };
        let mut disk = DiskRecord {
            r_magic: RECORD_MAGIC,
            r_uuid: *uuid,
            r_sequence: self.sequence.into(),
            r_group: self.group.into(),
            r_instance: self.instance.into(),
            r_before: self.before.into(),
            r_entries: U16::new(self.entries.len() as u16),
            r_payload: U16::new(self.payload() as u16),
            r_flags: flags.into(),
            r_checksum: 0.into(),
        };
        let mut bytes = block_of(disk.as_bytes());
        for (place, entry) in bytes[DiskRecord::SIZE..].chunks_exact_mut(DiskEntry::SIZE).zip(&self.entries) {
            place.copy_from_slice(entry.encode().as_bytes());
        }
        let checksum = crc32c::crc32c(&bytes);
        disk.r_checksum = checksum.into();
        bytes[..DiskRecord::SIZE].copy_from_slice(disk.as_bytes());
        (bytes, checksum)
    }

    /// The sequence number and the group of a header with a valid checksum, whatever the rest contains.
    #[must_use]
    pub fn numbers(bytes: &[u8], uuid: &[u8; 16]) -> Option<(u64, u64)> {
        let disk = Self::header(bytes, uuid).ok()?;
        (whole_checksum(bytes) == disk.r_checksum.get()).then_some((disk.r_sequence.get(), disk.r_group.get()))
    }

    fn header(bytes: &[u8], uuid: &[u8; 16]) -> Result<DiskRecord, &'static str> {
        let disk = match bytes.len() as u64 {
            BLOCK => DiskRecord::read_from_prefix(bytes).map_err(|_| "record cut short")?.0,
            _ => return Err("record cut short"),
        };
        if disk.r_magic != RECORD_MAGIC {
            return Err("not a record");
        }
        if disk.r_uuid != *uuid {
            return Err("record of another layer");
        }
        Ok(disk)
    }

    /// Parses a header block; returns it and its checksum, which the next header contains.
    ///
    /// # Errors
    /// A description of the defect: `Err(None)` if the block is incomplete, which is the ordinary end of a log;
    /// `Err(Some)` if its checksum is valid and its content impossible.
    pub fn parse(bytes: &[u8], uuid: &[u8; 16], layout: &Layout) -> Result<(Self, u32), Option<&'static str>> {
        let disk = Self::header(bytes, uuid).map_err(|_| None)?;
        let checksum = disk.r_checksum.get();
        if whole_checksum(bytes) != checksum {
            return Err(None);
        }
        let count = usize::from(disk.r_entries.get());
        let flags = disk.r_flags.get();
        if count > ENTRIES || flags & !(LAST | CHECKPOINT) != 0 {
            return Err(Some("record with an unknown flag or too many entries"));
        }
        if disk.r_sequence.get() >= MOST || disk.r_group.get() >= MOST {
            return Err(Some("record with an impossible number"));
        }
        let mut record = Self::fields(&disk);
        for bytes in bytes[DiskRecord::SIZE..].chunks_exact(DiskEntry::SIZE).take(count) {
            let disk = DiskEntry::read_from_bytes(bytes).map_err(|_| None)?;
            record.entries.push(Entry::parse(&disk, layout).map_err(Some)?);
        }
        if record.payload() != u32::from(disk.r_payload.get()) {
            return Err(Some("record that contradicts itself"));
        }
        if record.entries.iter().any(|entry| matches!(entry, Entry::Part { .. }) != record.checkpoint) {
            return Err(Some("record with parts of a checkpoint and other entries"));
        }
        Ok((record, checksum))
    }

    fn fields(disk: &DiskRecord) -> Self {
        Self {
            sequence: disk.r_sequence.get(),
            group: disk.r_group.get(),
            instance: disk.r_instance.get(),
            before: disk.r_before.get(),
            last: disk.r_flags.get() & LAST != 0,
            checkpoint: disk.r_flags.get() & CHECKPOINT != 0,
            entries: Vec::new(),
        }
    }

    /// As [`Record::parse`], but ignores the checksum: the behaviour of a mutant.
    #[doc(hidden)]
    #[must_use]
    pub fn parse_unchecked(bytes: &[u8], uuid: &[u8; 16], layout: &Layout) -> Option<(Self, u32)> {
        let disk = Self::header(bytes, uuid).ok()?;
        let mut record = Self::fields(&disk);
        let entries = bytes[DiskRecord::SIZE..].chunks_exact(DiskEntry::SIZE).take(usize::from(disk.r_entries.get()));
        record.entries =
            entries.filter_map(|bytes| Entry::parse(&DiskEntry::read_from_bytes(bytes).ok()?, layout).ok()).collect();
        Some((record, disk.r_checksum.get()))
    }
}

/// The CRC32C of all but the last four bytes of a sector.
fn sector_checksum(sector: &[u8]) -> u32 {
    crc32c::crc32c(sector.get(..508).unwrap_or_default())
}

/// The CRC32C of a header block with its own field taken as zero.
fn whole_checksum(bytes: &[u8]) -> u32 {
    let (Some(head), Some(rest)) = (bytes.get(..0x3C), bytes.get(0x40..)) else { return 0 };
    crc32c::crc32c_append(crc32c::crc32c_append(crc32c::crc32c(head), &[0; 4]), rest)
}

/// A block of `bytes`, padded with zeroes.
fn block_of(bytes: &[u8]) -> Box<[u8]> {
    let mut block = vec![0; BLOCK as usize].into_boxed_slice();
    for (to, from) in block.iter_mut().zip(bytes) {
        *to = *from;
    }
    block
}
