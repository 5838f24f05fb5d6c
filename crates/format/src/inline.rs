//! Inline data: a small file or directory inside its inode.
//!
//! The first 60 bytes are in `i_block`, the rest is the value of the attribute `system.data`. An inline directory has
//! no "." and "..": its first four bytes are the parent's inode number, followed by entries in two chains, one in the
//! rest of `i_block` and one in the attribute's value. No entry crosses from one to the other.

use crate::dir::{DirFormat, Entries, Entry};
use crate::xattr::index;
use crate::{Error, InodeNo, Result, Structure};

/// Bytes in `i_block`.
pub const I_BLOCK_LEN: usize = 60;

/// Prefix and name of the attribute with the rest.
pub const DATA_XATTR: (u8, &[u8]) = (index::SYSTEM, b"data");

/// Bytes of the parent's inode number at the start of an inline directory.
const PARENT_LEN: usize = 4;

/// The content of an inline file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InlineData<'a> {
    head: &'a [u8],
    tail: &'a [u8],
}

impl<'a> InlineData<'a> {
    /// The content of a file of `size` bytes; `value` is that of [`DATA_XATTR`]. Bytes beyond `size` are ignored.
    ///
    /// # Errors
    /// Corruption where `size` is larger than both together.
    pub fn new(i_block: &'a [u8; I_BLOCK_LEN], value: &'a [u8], size: u64) -> Result<Self> {
        let too_long = || Error::corrupt(Structure::InlineData, "the file is longer than the data in its inode");
        let size = usize::try_from(size).map_err(|_| too_long())?;
        let head = &i_block[..size.min(I_BLOCK_LEN)];
        let tail = value.get(..size - head.len()).ok_or_else(too_long)?;
        Ok(InlineData { head, tail })
    }

    /// The content's two parts, in order.
    #[must_use]
    pub fn parts(&self) -> [&'a [u8]; 2] {
        [self.head, self.tail]
    }

    /// Copies content from `offset` on into `out`, and returns the number of bytes: fewer than the length of `out` only
    /// at the end.
    #[must_use]
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> usize {
        // an offset beyond usize is beyond the content too
        let mut skip = usize::try_from(offset).unwrap_or(usize::MAX);
        let mut done = 0;
        for part in self.parts() {
            let from = skip.min(part.len());
            skip -= from;
            let len = (part.len() - from).min(out.len() - done);
            out[done..done + len].copy_from_slice(&part[from..from + len]);
            done += len;
        }
        done
    }
}

/// An inline directory.
#[derive(Debug, Clone, Copy)]
pub struct InlineDir<'a> {
    /// The inode of "..".
    pub parent: InodeNo,
    head: &'a [u8],
    tail: &'a [u8],
    format: DirFormat,
}

impl<'a> InlineDir<'a> {
    /// An inline directory; `value` is that of [`DATA_XATTR`].
    #[must_use]
    pub fn new(i_block: &'a [u8; I_BLOCK_LEN], value: &'a [u8], format: DirFormat) -> Self {
        let [a, b, c, d, head @ ..] = i_block;
        InlineDir { parent: InodeNo(u32::from_le_bytes([*a, *b, *c, *d])), head, tail: value, format }
    }

    /// The entries, unused ones too, without "." and ".."; their offsets are relative to the start of `i_block`, as if
    /// the attribute's value followed it. An error ends only the chain in which it is found.
    pub fn entries(&self) -> impl Iterator<Item = Result<Entry<'a>>> + use<'a> {
        let format = self.format;
        let chain = move |part: &'a [u8], start: usize| {
            Entries::new(part, format)
                .map(move |entry| entry.map(|entry| Entry { offset: entry.offset + start, ..entry }))
        };
        chain(self.head, PARENT_LEN).chain(chain(self.tail, I_BLOCK_LEN))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dir::write_entry;
    use proptest::prelude::*;

    const FORMAT: DirFormat = DirFormat { block_size: 1024, file_type: true, hashed: false };

    #[test]
    fn file() {
        let i_block: [u8; 60] = std::array::from_fn(|i| i as u8);
        let value: Vec<u8> = (60..100).collect();
        for size in 0..=100u8 {
            let data = InlineData::new(&i_block, &value, u64::from(size)).unwrap();
            let whole: Vec<u8> = (0..size).collect();
            assert_eq!(data.parts().concat(), whole);
            for offset in [0, 5, 59, 60, 61, 99, 100, u64::MAX] {
                let mut out = [0xFF; 10];
                let len = data.read_at(offset, &mut out);
                let expected = whole.iter().skip(usize::try_from(offset).unwrap()).take(10);
                assert!(out[..len].iter().eq(expected), "{size} {offset}");
            }
        }
        assert!(InlineData::new(&i_block, &value, 101).is_err());
        assert!(InlineData::new(&i_block, &[], 61).is_err());
        assert!(InlineData::new(&i_block, &[], u64::MAX).is_err());
    }

    #[test]
    fn directory() {
        let mut i_block = [0; 60];
        i_block[0] = 2;
        write_entry(&mut i_block[4..16], InodeNo(12), b"a", None, None, FORMAT).unwrap();
        write_entry(&mut i_block[16..], InodeNo(13), b"bb", None, None, FORMAT).unwrap();
        let mut value = [0; 28];
        write_entry(&mut value, InodeNo(14), b"ccc", None, None, FORMAT).unwrap();
        let read = |i_block: &[u8; 60], value: &[u8]| -> (u32, Vec<_>) {
            let dir = InlineDir::new(i_block, value, FORMAT);
            let entries = dir.entries().map(|e| e.map(|e| (e.offset, e.inode.0, e.name.to_vec())).ok()).collect();
            (dir.parent.0, entries)
        };
        let all = [Some((4, 12, b"a".to_vec())), Some((16, 13, b"bb".to_vec())), Some((60, 14, b"ccc".to_vec()))];
        assert_eq!(read(&i_block, &value), (2, all.to_vec()));
        assert_eq!(read(&i_block, &[]), (2, all[..2].to_vec()));
        assert_eq!(read(&i_block, &value[..24]).1[2], None);
        i_block[20] = 0;
        assert_eq!(read(&i_block, &value).1, [all[0].clone(), None, all[2].clone()]);
    }

    proptest! {
        #[test]
        fn any_bytes(i_block: [u8; 60], value in proptest::collection::vec(any::<u8>(), 0..100), size in 0u64..200) {
            let _ = InlineData::new(&i_block, &value, size);
            for entry in InlineDir::new(&i_block, &value, FORMAT).entries().flatten() {
                prop_assert!(entry.offset + entry.rec_len <= 60 + value.len());
            }
        }
    }
}
