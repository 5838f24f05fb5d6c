//! Every 16-bit field of one structure of each kind, with the values that a checker is most likely to accept.

use crate::structures::{StructureRange, Structures, What};
use std::collections::BTreeSet;
use std::ops::Range;

/// Bits of a mode with the type of the inode.
const TYPE: u16 = 0xF000;
/// Flags that change the meaning of an inode's blocks: index, extents, attribute value, inline data.
const LAYOUT_FLAGS: u32 = 0x1000 | 0x8_0000 | 0x20_0000 | 0x1000_0000;
/// The first inode that is not reserved.
const FIRST: u32 = 11;

/// A 16-bit field of a structure.
#[derive(Debug, Clone)]
pub struct Field {
    /// A description: its structure, and its offset in that.
    pub said: String,
    at: usize,
    big: bool,
}

impl Field {
    /// Its value in these bytes.
    #[must_use]
    pub fn get(&self, bytes: &[u8]) -> u16 {
        let found = bytes.get(self.at..).and_then(<[u8]>::first_chunk).copied().unwrap_or_default();
        if self.big { u16::from_be_bytes(found) } else { u16::from_le_bytes(found) }
    }

    /// Writes a value.
    pub fn set(&self, bytes: &mut [u8], value: u16) {
        let value = if self.big { value.to_be_bytes() } else { value.to_le_bytes() };
        if let Some(field) = bytes.get_mut(self.at..self.at + 2) {
            field.copy_from_slice(&value);
        }
    }

    /// Values to try: 0, 1, all bits set, the highest bit flipped, one more; without the present one.
    #[must_use]
    pub fn values(&self, bytes: &[u8]) -> BTreeSet<u16> {
        let now = self.get(bytes);
        let all = [0, 1, u16::MAX, now ^ 0x8000, now.wrapping_add(1)];
        all.into_iter().filter(|value| *value != now).collect()
    }
}

impl Structures {
    /// The fields of one structure of each kind on the volume in `bytes`; for inodes, one of each type and layout.
    #[must_use]
    pub fn fields(&self, bytes: &[u8]) -> Vec<Field> {
        let mut seen = BTreeSet::new();
        let mut fields = Vec::new();
        for structure in &self.list {
            let Some((kind, ranges)) = sample(structure, bytes).filter(|(kind, _)| seen.insert(kind.clone())) else {
                continue;
            };
            let big = structure.what == What::JournalSuperblock;
            let ranges = ranges.into_iter().map(|range| range.start..range.end.min(structure.len));
            let offsets: BTreeSet<usize> = ranges.flat_map(|range| range.step_by(2)).collect();
            fields.extend(offsets.into_iter().map(|offset| Field {
                said: format!("{kind} ({:?}), byte {offset:#x}", structure.what),
                at: structure.at + offset,
                big,
            }));
        }
        fields
    }
}

/// The kind of a structure, and its bytes without repeated parts; `None` for those without fields.
fn sample(structure: &StructureRange, bytes: &[u8]) -> Option<(String, Vec<Range<usize>>)> {
    let found = bytes.get(structure.range())?;
    let word = |at: usize| found.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |word| u16::from_le_bytes(*word));
    let ends = |first: usize, last: usize| vec![0..first, structure.len - last..structure.len];
    let up_to = |end: usize| std::iter::once(0..end).collect::<Vec<_>>();
    let whole = up_to(structure.len);
    // whether the first entry is "."
    let first = found.get(6).zip(found.get(8)) == Some((&1, &b'.'));
    Some(match structure.what {
        What::Superblock => ("superblock".to_owned(), whole),
        What::Descriptor(group) => (format!("descriptor {}", u8::from(group.get() > 0)), whole),
        What::Inode(number) if number.get() < FIRST => (format!("inode {}", number.get()), whole),
        What::Inode(_) => {
            let flags = u32::from(word(0x20)) | u32::from(word(0x22)) << 16;
            let attributes = if word(0x68) > 0 { ", attributes" } else { "" };
            (format!("inode of type {:o}, flags {:x}{attributes}", word(0) & TYPE, flags & LAYOUT_FLAGS), whole)
        }
        What::Names(_) => (format!("names, first {first}"), ends(96, 16)),
        What::Index(_) => (format!("index, root {first}"), ends(64, 8)),
        What::Extents(_) => (format!("extents, depth {}", word(6)), ends(40, 4)),
        What::Pointers => ("pointers".to_owned(), ends(16, 4)),
        What::Attributes => ("attributes".to_owned(), ends(96, 32)),
        What::Orphans(_) => ("orphan file".to_owned(), ends(8, 16)),
        What::JournalSuperblock => ("journal superblock".to_owned(), up_to(0x100)),
        What::MultipleMount => ("multiple mount".to_owned(), ends(0x80, 4)),
        What::Quota => ("quota".to_owned(), up_to(0x40)),
        _ => return None,
    })
}
