//! The locations of allocation metadata and of the journal on a volume, and the requests for them.

use crate::error::failed;
use crate::{Error, Result};
use blockdev::{BlockDevice, Op};
use format::space_map::SpaceMaps;
use format::{FileBlock, GroupNo};
use fs::{InodeNo, Mapping, OpenOptions, Volume};
use simdev::Event;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// The kind of content of a part of the volume, as far as that is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ContentKind {
    /// Block bitmaps, or the table of heads, the log and the trees of space maps.
    Allocation,
    Journal,
}

/// The parts of a volume whose content is known.
#[derive(Debug, Default)]
pub(super) struct Contents {
    /// First byte to length and kind.
    parts: BTreeMap<u64, (u64, ContentKind)>,
}

/// Numbers of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Counted {
    /// Requests that contain allocation metadata.
    pub(super) requests: u64,
    /// The requests among them that do not begin at the end of the previous request.
    pub(super) elsewhere: u64,
    /// All requests that do not begin at the end of the previous request.
    pub(super) all_elsewhere: u64,
    /// Bytes written to the journal.
    pub(super) journal_bytes: u64,
}

impl Contents {
    /// Determines the locations on the volume of a device.
    ///
    /// # Errors
    /// [`Error::Failed`] if the volume cannot be read.
    pub(super) fn of(device: Arc<dyn BlockDevice>) -> Result<Self> {
        let volume = Volume::open(device, &OpenOptions::default()).map_err(failed)?;
        let sb = volume.superblock();
        let size = u64::from(sb.geometry.block_size);
        let mut contents = Self::default();
        let mut add = |blocks: Range<u64>, what| {
            contents.parts.insert(blocks.start * size, ((blocks.end - blocks.start) * size, what));
        };
        let bitmap = |group: GroupNo| volume.group(group).map(|group| group.block_bitmap).map_err(failed);
        match SpaceMaps::of(sb).map_err(|e| Error::Failed(e.to_string()))? {
            Some(maps) => {
                for map in 0..maps.maps() {
                    let places = maps.places(map, bitmap(GroupNo(maps.groups_of(map).start))?);
                    places.into_iter().for_each(|place| add(place, ContentKind::Allocation));
                }
                add(maps.table(), ContentKind::Allocation);
                add(maps.ring(), ContentKind::Allocation);
            }
            None => {
                for group in sb.geometry.group_numbers() {
                    let block = bitmap(group)?.get();
                    add(block..block + 1, ContentKind::Allocation);
                }
            }
        }
        let journal = volume.inode(InodeNo(sb.disk.s_journal_inum.get())).map_err(failed)?;
        let (mut at, end) = (0, journal.size / size);
        while at < end {
            let run = volume.map(&journal, FileBlock(at)).map_err(failed)?;
            if let Mapping::Data(block) | Mapping::Unwritten(block) = run.mapping {
                add(block.get()..block.get() + run.len, ContentKind::Journal);
            }
            at = run.end().get();
        }
        Ok(contents)
    }

    /// The kinds of content of `length` bytes from byte `offset` on, and the number of bytes of each part.
    fn within(&self, offset: u64, length: u64) -> impl Iterator<Item = (ContentKind, u64)> {
        let end = offset + length;
        let before = self.parts.range(..=offset).next_back();
        let parts = before.into_iter().chain(self.parts.range(offset + 1..end.max(offset + 1)));
        parts.filter_map(move |(start, (length, what))| {
            let bytes = end.min(start + length).saturating_sub(offset.max(*start));
            (bytes > 0).then_some((*what, bytes))
        })
    }

    /// Counts reads and writes, in their order. A request counts as one for allocation metadata if it contains some:
    /// the kernel and Extant both merge adjacent blocks, so that it may begin in the descriptors before.
    pub(super) fn count(&self, events: &[Event]) -> Counted {
        let mut counted = Counted::default();
        let mut position = None;
        for event in events.iter().filter(|event| matches!(event.op, Op::Read | Op::Write)) {
            let elsewhere = position.is_some_and(|position| position != event.offset);
            position = Some(event.offset + event.len);
            counted.all_elsewhere += u64::from(elsewhere);
            let mut allocates = false;
            for (what, bytes) in self.within(event.offset, event.len) {
                match what {
                    ContentKind::Allocation => allocates = true,
                    ContentKind::Journal if event.op == Op::Write => counted.journal_bytes += bytes,
                    ContentKind::Journal => {}
                }
            }
            counted.requests += u64::from(allocates);
            counted.elsewhere += u64::from(allocates && elsewhere);
        }
        counted
    }

    /// First bytes of the parts with allocation metadata, ascending.
    #[cfg(test)]
    pub(super) fn allocation(&self) -> Vec<u64> {
        let parts = self.parts.iter().filter(|(_, (_, what))| *what == ContentKind::Allocation);
        parts.map(|(start, _)| *start).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_count_for_what_they_contain() {
        let parts = [(4096, (1024, ContentKind::Allocation)), (8192, (4096, ContentKind::Journal))];
        let contents = Contents { parts: parts.into() };
        let at = |op, offset, len| Event { op, offset, len };
        let events = [
            at(Op::Read, 4096, 1024),
            at(Op::Write, 5120, 1024),
            at(Op::Flush, 0, 0),
            at(Op::Write, 8192, 2048),
            at(Op::Read, 10_240, 512),
            // begins before the metadata, and ends behind it
            at(Op::Write, 3072, 4096),
            at(Op::Discard, 4096, 512),
            at(Op::Write, 12_000, 1024),
            at(Op::Read, 4095, 1),
            at(Op::Read, 4096, 0),
        ];
        let expected = Counted { requests: 2, elsewhere: 1, all_elsewhere: 4, journal_bytes: 2048 + 288 };
        assert_eq!(contents.count(&events), expected);
        assert_eq!(contents.count(&[]), Counted::default());
    }
}
