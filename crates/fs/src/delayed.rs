//! File content that was written and has no place on the device yet.
//!
//! Blocks are allocated when the content leaves memory, many at once: so a file that grows in small steps lies in one
//! piece, and one that is removed soon costs nothing.
//!
//! Content is buffered in pieces of whole blocks. A write that continues a piece lengthens it, so what was written in
//! order leaves in large writes.

use std::collections::BTreeMap;
use std::ops::Range;

/// The longest piece in bytes: one write to the device.
const LONGEST: usize = 1 << 20;
/// The bytes of memory that a piece takes besides its content, about: a place in the tree of pieces, and for the first
/// the file's node.
const PIECE: usize = 512;

/// The delayed content of one file.
#[derive(Default)]
pub(crate) struct Delayed {
    /// Pieces by the number of their first block in the file: whole blocks, none empty, none over another.
    pieces: BTreeMap<u64, Vec<u8>>,
    bytes: usize,
}

impl Delayed {
    /// There is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// The amount of content, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The memory that it takes in bytes, about.
    pub(crate) fn memory(&self) -> usize {
        self.bytes + PIECE * self.pieces.len()
    }

    /// The piece that holds a block: its first block, and its bytes.
    fn piece(&self, block_size: usize, block: u64) -> Option<(u64, &Vec<u8>)> {
        let (first, bytes) = self.pieces.range(..=block).next_back()?;
        (block - first < (bytes.len() / block_size) as u64).then_some((*first, bytes))
    }

    /// Blocks from `block` on that are here, one behind the other, in one piece; 0 where it is not here.
    pub(crate) fn here(&self, block_size: usize, block: u64) -> u64 {
        self.piece(block_size, block).map_or(0, |(first, bytes)| first + (bytes.len() / block_size) as u64 - block)
    }

    /// The first block at or after `block` that is here.
    pub(crate) fn next(&self, block_size: usize, block: u64) -> Option<u64> {
        if self.here(block_size, block) > 0 {
            return Some(block);
        }
        self.pieces.range(block..).next().map(|(first, _)| *first)
    }

    /// Writes into blocks that are all here, from byte `offset` of the file on.
    pub(crate) fn overwrite(&mut self, block_size: usize, offset: u64, data: &[u8]) {
        let (mut at, mut rest) = (offset, data);
        while !rest.is_empty() {
            let block = at / block_size as u64;
            let Some((first, bytes)) = self.pieces.range_mut(..=block).next_back() else { return };
            let from = (at - first * block_size as u64) as usize;
            let Some(place) = bytes.get_mut(from..).filter(|place| !place.is_empty()) else { return };
            let (part, after) = rest.split_at(rest.len().min(place.len()));
            place[..part.len()].copy_from_slice(part);
            at += part.len() as u64;
            rest = after;
        }
    }

    /// Adds blocks from `block` on, none of which is here: `data`, at byte `into` of the first, and zeroes around it to
    /// whole blocks.
    pub(crate) fn add(&mut self, block_size: usize, block: u64, into: usize, data: &[u8]) {
        let len = (into + data.len()).next_multiple_of(block_size);
        self.bytes += len;
        let before = self.pieces.range_mut(..block).next_back();
        let piece = match before {
            Some((first, bytes))
                if first + (bytes.len() / block_size) as u64 == block && bytes.len() + len <= LONGEST =>
            {
                bytes
            }
            _ => self.pieces.entry(block).or_default(),
        };
        let end = piece.len() + len;
        piece.reserve(len);
        piece.resize(piece.len() + into, 0);
        piece.extend_from_slice(data);
        piece.resize(end, 0);
    }

    /// Takes out the blocks of a range.
    pub(crate) fn remove(&mut self, block_size: usize, blocks: Range<u64>) {
        if self.pieces.is_empty() || blocks.is_empty() {
            return;
        }
        let count = |bytes: &Vec<u8>| (bytes.len() / block_size) as u64;
        let reaches = |(first, bytes): &(&u64, &Vec<u8>)| **first + count(bytes) > blocks.start;
        let start = self.pieces.range(..blocks.start).next_back().filter(reaches).map_or(blocks.start, |(n, _)| *n);
        let touched: Vec<u64> = self.pieces.range(start..blocks.end).map(|(first, _)| *first).collect();
        for first in touched {
            let Some(mut bytes) = self.pieces.remove(&first) else { continue };
            self.bytes -= bytes.len();
            let end = first + count(&bytes);
            if end > blocks.end {
                let tail = bytes.split_off((blocks.end - first) as usize * block_size);
                self.bytes += tail.len();
                self.pieces.insert(blocks.end, tail);
            }
            if first < blocks.start {
                bytes.truncate((blocks.start - first) as usize * block_size);
                self.bytes += bytes.len();
                self.pieces.insert(first, bytes);
            }
        }
    }

    /// Copies what is here over `buf`, which holds the file's content from byte `offset` on.
    pub(crate) fn lay_over(&self, block_size: usize, offset: u64, buf: &mut [u8]) {
        let end = offset.saturating_add(buf.len() as u64);
        let block = offset / block_size as u64;
        let start = self.piece(block_size, block).map_or(block, |(first, _)| first);
        for (first, bytes) in self.pieces.range(start..) {
            let at = first * block_size as u64;
            if at >= end {
                break;
            }
            let (from, to) = (at.max(offset), (at + bytes.len() as u64).min(end));
            if from < to {
                let source = &bytes[(from - at) as usize..(to - at) as usize];
                buf[(from - offset) as usize..(to - offset) as usize].copy_from_slice(source);
            }
        }
    }

    /// The first blocks that follow each other: their first, how many, and the pieces they are in, at most `pieces`.
    pub(crate) fn first_run(&self, block_size: usize, pieces: usize) -> Option<(u64, u64, Vec<&[u8]>)> {
        let first = *self.pieces.first_key_value()?.0;
        let (mut end, mut run) = (first, Vec::new());
        for (start, bytes) in self.pieces.iter().take(pieces) {
            if *start != end {
                break;
            }
            end += (bytes.len() / block_size) as u64;
            run.push(&bytes[..]);
        }
        Some((first, end - first, run))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::{Rng, cases};

    const BLOCK: usize = 16;
    const LEN: usize = 40 * BLOCK;

    /// The delayed content, byte by byte.
    fn content(delayed: &Delayed) -> Vec<Option<u8>> {
        let mut all = vec![None; LEN];
        let mut block = 0;
        while let Some(first) = delayed.next(BLOCK, block) {
            let count = delayed.here(BLOCK, first);
            let mut bytes = vec![0; count as usize * BLOCK];
            delayed.lay_over(BLOCK, first * BLOCK as u64, &mut bytes);
            for (n, byte) in bytes.iter().enumerate() {
                all[first as usize * BLOCK + n] = Some(*byte);
            }
            block = first + count;
        }
        all
    }

    fn write(delayed: &mut Delayed, offset: usize, data: &[u8]) {
        let (mut at, mut rest) = (offset, data);
        while !rest.is_empty() {
            let (block, into) = ((at / BLOCK) as u64, at % BLOCK);
            let part = rest.len().min(BLOCK - into);
            if delayed.here(BLOCK, block) > 0 {
                delayed.overwrite(BLOCK, at as u64, &rest[..part]);
            } else {
                delayed.add(BLOCK, block, into, &rest[..part]);
            }
            at += part;
            rest = &rest[part..];
        }
    }

    #[test]
    fn it_holds_what_was_written() {
        for case in cases("it_holds_what_was_written", 200) {
            let mut rng: Rng = case.rng();
            let (mut delayed, mut model) = (Delayed::default(), vec![None; LEN]);
            for _ in 0..60 {
                let offset = rng.index(LEN - 1);
                let len = rng.magnitude((LEN - offset) as u64) as usize;
                let blocks = offset / BLOCK..(offset + len).div_ceil(BLOCK);
                let bytes = blocks.start * BLOCK..blocks.end * BLOCK;
                if rng.chance(70) {
                    let data = rng.bytes(len);
                    model[bytes].iter_mut().for_each(|byte| *byte = byte.or(Some(0)));
                    for (place, byte) in model[offset..].iter_mut().zip(&data) {
                        *place = Some(*byte);
                    }
                    write(&mut delayed, offset, &data);
                } else {
                    model[bytes].fill(None);
                    delayed.remove(BLOCK, blocks.start as u64..blocks.end as u64);
                }
                assert!(content(&delayed) == model);
                assert_eq!(delayed.bytes(), model.iter().flatten().count());
                if let Some((first, count, pieces)) = delayed.first_run(BLOCK, usize::MAX) {
                    let from = first as usize * BLOCK;
                    let bytes: Vec<_> = pieces.concat().into_iter().map(Some).collect();
                    assert!(model[..from].iter().all(Option::is_none));
                    assert!(bytes.len() == count as usize * BLOCK && model[from..from + bytes.len()] == bytes);
                }
            }
        }
    }
}
