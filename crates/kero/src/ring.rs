//! The log as a ring of segments: the position of the head, and the space that it may overwrite.
//!
//! 1. A segment may be overwritten if no entry of the durable table, or of records written since, references it, and it
//!    contains no record from the second newest checkpoint on.
//! 2. A freed slot counts as used until the group that frees it is durable.
//! 3. The head passes the segments in their order; a record is in one segment.

use std::time::Duration;

use crate::layout::Layout;

/// A segment of the log.
#[derive(Debug, Clone, Default)]
pub(crate) struct Segment {
    /// Slots that are referenced by an entry, or were until a group that is not durable yet.
    pub(crate) live: u32,
    /// The time when it was begun.
    pub(crate) begun: Duration,
}

/// The state of the ring.
#[derive(Debug, Clone)]
pub(crate) struct Ring {
    log: u32,
    segment: u32,
    /// The block of the log for the next record.
    pub(crate) head: u32,
    pub(crate) segments: Vec<Segment>,
    /// First block of the newest checkpoint that a superblock names.
    pub(crate) newest: u32,
    /// First block of the checkpoint before it.
    pub(crate) before: u32,
    /// Blocks written since the newest checkpoint.
    pub(crate) since: u32,
}

impl Ring {
    pub(crate) fn new(layout: &Layout, head: u32, newest: u32, before: u32) -> Self {
        let since = (head + layout.log - newest) % layout.log;
        let count = (layout.log / layout.segment) as usize;
        let segments = vec![Segment::default(); count];
        Self { log: layout.log, segment: layout.segment, head, segments, newest, before, since }
    }

    fn count(&self) -> u32 {
        self.log / self.segment
    }

    /// The segment of a block of the log.
    pub(crate) fn of(&mut self, slot: u32) -> Option<&mut Segment> {
        self.segments.get_mut((slot / self.segment) as usize)
    }

    /// The number of blocks that are left in the segment of the head; all, if that is not begun.
    pub(crate) fn left(&self) -> u32 {
        self.segment - self.head % self.segment
    }

    /// Whether the head is about to begin a segment. It never begins the one that contains the oldest checkpoint.
    pub(crate) fn at_start(&self) -> bool {
        self.head.is_multiple_of(self.segment)
    }

    /// The segments from the next one that the head begins, in their order, without those from the second newest
    /// checkpoint on.
    fn ahead(&self) -> impl Iterator<Item = u32> + use<> {
        let (count, segment) = (self.count(), self.segment);
        let oldest = self.before / segment;
        let written = (self.head + self.log - oldest * segment) % self.log;
        let written = if written == 0 { self.log } else { written };
        let first = self.head.div_ceil(segment) % count;
        (0..count - written.div_ceil(segment)).map(move |step| (first + step) % count)
    }

    fn is_free(&self, segment: u32) -> bool {
        self.segments.get(segment as usize).is_some_and(|segment| segment.live == 0)
    }

    /// The number of blocks that the head can write from its position.
    pub(crate) fn free(&self) -> u32 {
        let begun = if self.at_start() { 0 } else { self.left() };
        begun + self.segment * self.ahead().take_while(|segment| self.is_free(*segment)).count() as u32
    }

    /// The first segment ahead that an entry references; `None` if only checkpoints are in the way.
    pub(crate) fn blocked(&self) -> Option<u32> {
        self.ahead().find(|segment| !self.is_free(*segment))
    }

    /// The segments that the head reaches within `blocks` blocks.
    pub(crate) fn within(&self, blocks: u32) -> Vec<u32> {
        self.ahead().take(blocks.div_ceil(self.segment) as usize).collect()
    }

    /// The slots of a segment.
    pub(crate) fn slots(&self, segment: u32) -> std::ops::Range<u32> {
        segment * self.segment..(segment + 1) * self.segment
    }

    /// Whether the head may begin the segment that it is at.
    pub(crate) fn may_begin(&self) -> bool {
        self.ahead().next().is_some_and(|segment| self.is_free(segment))
    }

    /// Moves the head past a record of `blocks` blocks.
    pub(crate) fn advance(&mut self, blocks: u32) {
        self.head = (self.head + blocks) % self.log;
        self.since = self.since.saturating_add(blocks);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(head: u32, newest: u32, before: u32) -> Ring {
        Ring::new(&Layout::new(4096, 64, 8).unwrap(), head, newest, before)
    }

    #[test]
    fn what_follows_the_checkpoint_is_not_free() {
        assert_eq!(ring(2, 0, 0).free(), 6 + 56);
        assert_eq!(ring(8, 0, 0).free(), 56);
        assert_eq!(ring(9, 4, 4).free(), 7 + 48);
        assert_eq!(ring(3, 60, 50).free(), 5 + 8 * 5);
        assert_eq!(ring(8, 8, 8).free(), 0, "a whole lap");
    }

    #[test]
    fn live_slots_stand_in_the_way() {
        let mut ring = ring(2, 0, 0);
        ring.of(25).unwrap().live = 1;
        assert_eq!((ring.free(), ring.blocked()), (6 + 16, Some(3)));
        assert_eq!(ring.within(17), [1, 2, 3]);
    }
}
