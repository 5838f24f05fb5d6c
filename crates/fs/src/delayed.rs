//! Delayed data: file content that was written and has no blocks yet.
//!
//! Blocks are allocated when the content is written out, many at once: so a file that grows in small steps has one
//! extent, and a short-lived file costs nothing.
//!
//! Content is collected in buffers of whole blocks. A write that continues a buffer extends it, so sequential writes
//! are written out as large writes.

use std::collections::BTreeMap;
use std::ops::Range;

/// The longest buffer in bytes: one write to the device.
const LONGEST: usize = 1 << 20;
/// Approximate memory in bytes of a buffer besides its content: an entry in the tree of buffers, and for the first
/// buffer the file's node.
const BUFFER_OVERHEAD: usize = 512;

/// The delayed data of one file.
#[derive(Default)]
pub(crate) struct Delayed {
    /// Buffers by the number of their first block in the file: whole blocks, none empty, no overlap.
    buffers: BTreeMap<u64, Vec<u8>>,
    bytes: usize,
}

impl Delayed {
    /// Whether there is no delayed data.
    pub(crate) fn is_empty(&self) -> bool {
        self.buffers.is_empty()
    }

    /// The amount of delayed data, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Its approximate memory in bytes.
    pub(crate) fn memory(&self) -> usize {
        self.bytes + BUFFER_OVERHEAD * self.buffers.len()
    }

    /// The buffer that contains a block: its first block, and its bytes.
    fn buffer(&self, block_size: usize, block: u64) -> Option<(u64, &Vec<u8>)> {
        let (first, bytes) = self.buffers.range(..=block).next_back()?;
        (block - first < (bytes.len() / block_size) as u64).then_some((*first, bytes))
    }

    /// Number of consecutive delayed blocks from `block` on in one buffer; 0 if it is not delayed.
    pub(crate) fn here(&self, block_size: usize, block: u64) -> u64 {
        self.buffer(block_size, block).map_or(0, |(first, bytes)| first + (bytes.len() / block_size) as u64 - block)
    }

    /// The first delayed block at or after `block`.
    pub(crate) fn next(&self, block_size: usize, block: u64) -> Option<u64> {
        if self.here(block_size, block) > 0 {
            return Some(block);
        }
        self.buffers.range(block..).next().map(|(first, _)| *first)
    }

    /// Overwrites blocks that are all delayed, from byte `offset` of the file on.
    pub(crate) fn overwrite(&mut self, block_size: usize, offset: u64, data: &[u8]) {
        let (mut at, mut rest) = (offset, data);
        while !rest.is_empty() {
            let block = at / block_size as u64;
            let Some((first, bytes)) = self.buffers.range_mut(..=block).next_back() else { return };
            let from = (at - first * block_size as u64) as usize;
            let Some(place) = bytes.get_mut(from..).filter(|place| !place.is_empty()) else { return };
            let (part, after) = rest.split_at(rest.len().min(place.len()));
            place[..part.len()].copy_from_slice(part);
            at += part.len() as u64;
            rest = after;
        }
    }

    /// Adds blocks from `block` on, none of which is delayed: `data`, at byte `into` of the first, padded with zeroes
    /// to whole blocks.
    pub(crate) fn add(&mut self, block_size: usize, block: u64, into: usize, data: &[u8]) {
        let len = (into + data.len()).next_multiple_of(block_size);
        self.bytes += len;
        let before = self.buffers.range_mut(..block).next_back();
        let buffer = match before {
            Some((first, bytes))
                if first + (bytes.len() / block_size) as u64 == block && bytes.len() + len <= LONGEST =>
            {
                bytes
            }
            _ => self.buffers.entry(block).or_default(),
        };
        let end = buffer.len() + len;
        buffer.reserve(len);
        buffer.resize(buffer.len() + into, 0);
        buffer.extend_from_slice(data);
        buffer.resize(end, 0);
    }

    /// Removes the blocks of a range.
    pub(crate) fn remove(&mut self, block_size: usize, blocks: Range<u64>) {
        if self.buffers.is_empty() || blocks.is_empty() {
            return;
        }
        let count = |bytes: &Vec<u8>| (bytes.len() / block_size) as u64;
        let reaches = |(first, bytes): &(&u64, &Vec<u8>)| **first + count(bytes) > blocks.start;
        let start = self.buffers.range(..blocks.start).next_back().filter(reaches).map_or(blocks.start, |(n, _)| *n);
        let overlapping: Vec<u64> = self.buffers.range(start..blocks.end).map(|(first, _)| *first).collect();
        for first in overlapping {
            let Some(mut bytes) = self.buffers.remove(&first) else { continue };
            self.bytes -= bytes.len();
            let end = first + count(&bytes);
            if end > blocks.end {
                let tail = bytes.split_off((blocks.end - first) as usize * block_size);
                self.bytes += tail.len();
                self.buffers.insert(blocks.end, tail);
            }
            if first < blocks.start {
                bytes.truncate((blocks.start - first) as usize * block_size);
                self.bytes += bytes.len();
                self.buffers.insert(first, bytes);
            }
        }
    }

    /// Copies delayed data over `buf`, which contains the file's content from byte `offset` on.
    pub(crate) fn copy_over(&self, block_size: usize, offset: u64, buf: &mut [u8]) {
        let end = offset.saturating_add(buf.len() as u64);
        let block = offset / block_size as u64;
        let start = self.buffer(block_size, block).map_or(block, |(first, _)| first);
        for (first, bytes) in self.buffers.range(start..) {
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

    /// The first range of consecutive blocks: its first block, its length, and its buffers, at most `buffers`.
    pub(crate) fn first_range(&self, block_size: usize, buffers: usize) -> Option<(u64, u64, Vec<&[u8]>)> {
        let first = *self.buffers.first_key_value()?.0;
        let (mut end, mut run) = (first, Vec::new());
        for (start, bytes) in self.buffers.iter().take(buffers) {
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

    /// The delayed data, byte by byte.
    fn content(delayed: &Delayed) -> Vec<Option<u8>> {
        let mut all = vec![None; LEN];
        let mut block = 0;
        while let Some(first) = delayed.next(BLOCK, block) {
            let count = delayed.here(BLOCK, first);
            let mut bytes = vec![0; count as usize * BLOCK];
            delayed.copy_over(BLOCK, first * BLOCK as u64, &mut bytes);
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
                if let Some((first, count, buffers)) = delayed.first_range(BLOCK, usize::MAX) {
                    let from = first as usize * BLOCK;
                    let bytes: Vec<_> = buffers.concat().into_iter().map(Some).collect();
                    assert!(model[..from].iter().all(Option::is_none));
                    assert!(bytes.len() == count as usize * BLOCK && model[from..from + bytes.len()] == bytes);
                }
            }
        }
    }
}
