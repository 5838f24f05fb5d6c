//! Space maps: rebuilt from the blocks that the check found in use, with an empty log.

use super::work::Work;
use crate::space_maps::Recorded;
use crate::table::Code;
use blockdev::Result;
use format::space_map::head::Head;
use format::space_map::tree::TreeWriter;
use format::space_map::{MOST_SEQUENCE, SpaceMaps};
use format::{FsBlock, GroupNo};

use std::ops::Range;

/// Writes all space maps and empties their log, where the check found problems in them. They must not overlap other
/// metadata.
pub(super) fn repair(work: &Work<'_>) -> Result<()> {
    let (Some(recorded), Some(walk)) = (&work.volume().space_maps, work.walk()) else { return Ok(()) };
    if !work.view.problems.to_vec().iter().any(|problem| is_of_maps(problem.code)) {
        return Ok(());
    }
    let word = |group: GroupNo, n: usize| walk.ctx.claims.word(group, n);
    let Recorded { maps, places, highest, .. } = recorded;
    // the last number has no successor; numbering restarts, as the log and all heads are rewritten
    let sequence = if *highest < MOST_SEQUENCE { highest + 1 } else { 1 };
    write(maps, places, sequence, &word, &mut |block, bytes| work.put_block(block, bytes))
}

/// Whether a problem concerns the space maps or their record of free space.
fn is_of_maps(code: Code) -> bool {
    matches!(
        code,
        Code::SpaceMapHeadWrong
            | Code::SpaceMapTreeWrong
            | Code::SpaceMapLogBlockWrong
            | Code::SpaceMapRecordFreesFree
            | Code::SpaceMapRecordTakesUsed
            | Code::BlockMarkedButUnused
            | Code::BlockUsedButUnmarked
            | Code::BlockRangeMarkedButUnused
            | Code::BlockRangeUsedButUnmarked
    )
}

/// Writes space maps in which a block is free where the bit of `used` is clear: trees in their first locations, which
/// begin at `places`, heads with this sequence, and an empty log.
pub(crate) fn write(
    maps: &SpaceMaps,
    places: &[FsBlock],
    sequence: u64,
    used: &dyn Fn(GroupNo, usize) -> u64,
    put: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
) -> Result<()> {
    let size = maps.geometry().block_size as usize;
    let table = maps.table();
    let mut heads = vec![vec![0; size]; (table.end - table.start) as usize];
    for (map, places) in (0..).zip(places) {
        let mut writer = TreeWriter::new(maps, map);
        for group in maps.groups_of(map).map(GroupNo) {
            writer.group(free_runs(maps.units(group), |n| used(group, n)).into_iter());
        }
        let mut head = Head {
            number: map,
            sequence,
            places: *places,
            second: false,
            length: 0,
            tree_checksum: 0,
            longest: 0,
            free: 0,
        };
        let tree = writer.finish(sequence, &mut head);
        for (block, bytes) in (places.get()..).zip(tree.chunks(size)) {
            let mut whole = vec![0; size];
            whole.get_mut(..bytes.len()).unwrap_or_default().copy_from_slice(bytes);
            put(block, &whole)?;
        }
        let block = map as usize / (maps.heads_per_block() as usize).max(1);
        if let Some(block) = heads.get_mut(block) {
            head.write(block, maps);
        }
    }
    for (block, bytes) in (table.start..).zip(&heads) {
        put(block, bytes)?;
    }
    let empty = vec![0; size];
    (maps.ring().start..maps.ring().end).try_for_each(|block| put(block, &empty))
}

/// The runs of clear bits among the first `units`.
fn free_runs(units: u32, word: impl Fn(usize) -> u64) -> Vec<Range<u32>> {
    let mut runs: Vec<Range<u32>> = Vec::new();
    for n in 0..units.div_ceil(64) {
        let mut free = !word(n as usize);
        let start = n * 64;
        if units - start < 64 {
            free &= (1 << (units - start)) - 1;
        }
        while free != 0 {
            let first = free.trailing_zeros();
            let len = (!(free >> first)).trailing_zeros();
            let run = start + first..start + first + len;
            match runs.last_mut() {
                Some(last) if last.end == run.start => last.end = run.end,
                _ => runs.push(run),
            }
            let gone = if len == 64 { u64::MAX } else { ((1 << len) - 1) << first };
            free &= !gone;
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_go_on_over_words() {
        assert_eq!(free_runs(200, |_| 0), vec![0..200]);
        assert!(free_runs(200, |_| u64::MAX).is_empty());
        let words = [!(0b110 | 1 << 63), !1u64, !0, !(1 << 3)];
        assert_eq!(free_runs(200, |n| words[n]), vec![1..3, 63..65, 195..196]);
        assert_eq!(free_runs(195, |n| words[n]), vec![1..3, 63..65]);
    }
}
