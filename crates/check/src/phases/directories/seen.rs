//! The set of names in a directory block, to find duplicates.

use format::casefold;
use std::collections::HashSet;

/// The names of one block.
pub(super) enum Seen {
    /// Names compare byte by byte.
    Bytes(Table),
    /// Names compare by their folded forms.
    Folded(HashSet<Vec<u8>>),
}

impl Seen {
    /// An empty set for a part of `len` bytes; `folded` where the directory compares names without case.
    pub(super) fn new(len: usize, folded: bool) -> Self {
        if folded { Self::Folded(HashSet::new()) } else { Self::Bytes(Table::new(len)) }
    }

    /// Inserts the name of the entry at `offset` of `part`; `false` for a duplicate. Parts of later calls may be
    /// longer, with the same bytes at the start.
    #[inline]
    pub(super) fn insert(&mut self, part: &[u8], offset: usize, name: &[u8]) -> bool {
        match self {
            Self::Bytes(table) => table.insert(part, offset, name),
            Self::Folded(names) => names.insert(casefold::fold(name).unwrap_or_else(|| name.to_vec())),
        }
    }
}

/// An open-addressing table of entry offsets: the names themselves stay in the block.
///
/// A slot has 16 bits of the name's hash above the entry's position (offset / 4 + 1, at most 16 384 in the largest
/// block); 0 is free. At most half of the slots are used.
pub(super) struct Table {
    slots: Vec<u32>,
}

const PLACE_BITS: u32 = 16;
/// The shortest entry.
const ENTRY: usize = 12;

impl Table {
    fn new(len: usize) -> Self {
        Self { slots: vec![0; (len / ENTRY * 2).next_power_of_two()] }
    }

    #[inline]
    fn insert(&mut self, part: &[u8], offset: usize, name: &[u8]) -> bool {
        let hash = hash(name);
        let new = (hash >> PLACE_BITS) << PLACE_BITS | (offset / 4 + 1) as u32;
        let mask = self.slots.len() - 1;
        let mut at = hash as usize & mask;
        for _ in 0..self.slots.len() {
            let Some(slot) = self.slots.get_mut(at) else { return true };
            if *slot == 0 {
                *slot = new;
                return true;
            }
            if *slot >> PLACE_BITS == new >> PLACE_BITS {
                let other = ((*slot & 0xFFFF) as usize - 1) * 4;
                if name_at(part, other) == Some(name) {
                    return false;
                }
            }
            at = (at + 1) & mask;
        }
        true
    }
}

/// The name of the entry at `offset`.
fn name_at(part: &[u8], offset: usize) -> Option<&[u8]> {
    let entry = part.get(offset..)?;
    let len = usize::from(*entry.get(6)?);
    entry.get(8..8 + len)
}

/// A hash of a name that is good enough for the table of one block; eight bytes per step.
#[inline]
fn hash(name: &[u8]) -> u32 {
    const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;
    let mut hash = name.len() as u64;
    let mut mix = |word: u64| {
        hash = (hash ^ word).wrapping_mul(FACTOR);
        hash ^= hash >> 32;
    };
    let (words, rest) = name.as_chunks::<8>();
    for word in words {
        mix(u64::from_le_bytes(*word));
    }
    // the rest together with the bytes before it, so that no copy of odd length is needed
    if let Some(last) = name.last_chunk::<8>() {
        mix(u64::from_le_bytes(*last));
    } else {
        mix(rest.iter().fold(0, |word, byte| word << 8 | u64::from(*byte)));
    }
    hash as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use format::InodeNo;
    use format::dir::{DirFormat, entry_len, write_entry};

    const FORMAT: DirFormat = DirFormat { block_size: 65536, file_type: false, hashed: false };

    fn part(names: &[&[u8]]) -> (Vec<u8>, Vec<usize>) {
        let mut bytes = Vec::new();
        let mut offsets = Vec::new();
        for name in names {
            let at = bytes.len();
            offsets.push(at);
            bytes.resize(at + entry_len(name.len() as u8, false), 0);
            write_entry(&mut bytes[at..], InodeNo(12), name, None, None, FORMAT).unwrap();
        }
        (bytes, offsets)
    }

    fn first_repeat(names: &[&[u8]], folded: bool) -> Option<usize> {
        let (bytes, offsets) = part(names);
        let mut seen = Seen::new(bytes.len(), folded);
        names.iter().zip(offsets).position(|(name, offset)| !seen.insert(&bytes, offset, name))
    }

    #[test]
    fn finds_a_second_name() {
        assert_eq!(first_repeat(&[b"a", b"b", b"ab", b"a\0", b"a"], false), Some(4));
        assert_eq!(first_repeat(&[b"12345678", b"123456789", b"1234567", b"12345678x"], false), None);
        assert_eq!(first_repeat(&[&[7; 255], &[7; 254], &[7; 255]], false), Some(2));
    }

    #[test]
    fn a_full_block_of_the_largest_size() {
        let names: Vec<Vec<u8>> = (0..5461u32).map(|n| format!("{n:04x}").into_bytes()).collect();
        let names: Vec<&[u8]> = names.iter().map(|n| n.as_slice()).collect();
        assert_eq!(first_repeat(&names, false), None);
        let mut again = names.clone();
        again[5460] = again[3];
        assert_eq!(first_repeat(&again, false), Some(5460));
    }

    #[test]
    fn names_without_case() {
        assert_eq!(first_repeat(&[b"Abc", b"abd", b"aBC"], true), Some(2));
        assert_eq!(first_repeat(&["É".as_bytes(), "e\u{301}".as_bytes()], true), Some(1));
        assert_eq!(first_repeat(&[b"\xFFa", b"\xFFA"], true), None);
    }
}
