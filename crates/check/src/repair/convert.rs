//! Conversion between block bitmaps and space maps. The other form is built from all claims of a check and written
//! through the redo log, so that after an interruption the volume has one form or the other, or the next run finishes
//! the conversion.

use super::bitmaps::filled;
use super::work::Work;
use super::{copies, failed, space_maps};
use crate::capabilities::Capabilities;
use crate::checker::Checker;
use crate::options::{Options, Progress, Refusal};
use crate::redo::{self, FreeBlocks};
use crate::report::exit;
use crate::table::Code;
use crate::view::View;
use blockdev::{BlockDevice, Overlay, Result};
use format::feature::{ExtantRo, Incompat, RoCompat};
use format::group::{GroupFlags, bitmap_checksum};
use format::space_map::{LEAST_LOG, MOST_GROUPS, SpaceMaps};
use format::superblock::{DiskSuperblock, Geometry, OFFSET, Superblock};
use format::{FsBlock, GroupNo};
use std::ops::Range;
use std::sync::Arc;

/// Default size of a metablockgroup in bytes.
const METABLOCKGROUP: u64 = 8 << 30;
/// Preferred size of the log in blocks.
const LOG: u32 = 256;

/// The form in which a volume records its free space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FreeSpaceForm {
    /// Block bitmaps, as ext4 has them.
    Bitmaps,
    /// Space maps.
    SpaceMaps {
        /// Groups in a metablockgroup, a power of two; `None` for as many as cover 8 GiB, if the format permits that many.
        groups: Option<u32>,
    },
}

/// Converts the volume on `device`, called `name` in messages, to another form of free space. Nothing else is written;
/// `false` where it has that form already.
///
/// # Errors
/// [`Refusal`] where the volume is damaged, is neither ext4 nor has space maps, has a feature that is incompatible with
/// space maps or lacks one that they need, or has too little contiguous free space (with the amount), and where the
/// device fails.
pub fn convert(
    name: &str,
    device: &Arc<dyn BlockDevice>,
    to: FreeSpaceForm,
    options: &Options,
    progress: &dyn Progress,
) -> Result<bool, Refusal> {
    if !Capabilities::of(&**device).conversion {
        return Err(refused("convert changes ext4 volumes only; a native volume needs no conversion"));
    }
    redo::finish(&**device, None).map_err(failed)?;
    if to == FreeSpaceForm::Bitmaps {
        not_another_format(&**device)?;
    }
    let overlay = Overlay::new(Arc::clone(device));
    let checker = Checker { name, device: &overlay, options, progress };
    let (report, built) = checker.examine(|view| build(view, &overlay, to))?;
    if report.exit & exit::CANCELLED != 0 {
        return Err(Refusal { exit: exit::CANCELLED, ..refused("cancelled; nothing was changed") });
    }
    if !report.clean {
        return Err(Refusal { exit: exit::LEFT, ..refused("the volume has errors: run `extant check -fy` first") });
    }
    let Some(free) = built? else { return Ok(false) };
    copies::write_all(&overlay, free.geometry()).map_err(failed)?;
    if !redo::has_space(&**device, &overlay, &free).map_err(failed)? {
        return Err(refused("too few blocks are free for a conversion that survives a crash"));
    }
    redo::write(&**device, &overlay, Some(&free), None).map_err(failed)?;
    Ok(true)
}

fn refused(sentence: impl Into<String>) -> Refusal {
    Refusal::new(sentence)
}

/// Refuses a volume with block bitmaps that is not ext4: another program can make it ext4. A superblock that cannot be
/// read is left to the check.
fn not_another_format(device: &dyn BlockDevice) -> Result<(), Refusal> {
    let mut bytes = [0; DiskSuperblock::SIZE];
    let read = device.read(OFFSET, &mut bytes).ok().and_then(|()| Superblock::parse(&bytes).ok());
    let Some(features) = read.map(|sb| sb.features) else { return Ok(()) };
    if features.ro_compat.contains(RoCompat::EXTANT_RO) {
        return Ok(());
    }
    let what = match features.format_name() {
        "ext2" => "`tune2fs -O has_journal,extent` makes it ext4",
        "ext3" => "`tune2fs -O extent` makes it ext4",
        "rext3" => "copy its files to a new volume",
        _ => return Ok(()),
    };
    let name = features.format_name();
    Err(refused(format!("it is {name}, and convert only changes how ext4 volumes record their free space; {what}")))
}

/// Builds the other form in the overlay. Returns the blocks that were free before; `None` where there is nothing to do.
fn build(view: &View<'_>, overlay: &Overlay, to: FreeSpaceForm) -> Result<Option<FreeBlocks>, Refusal> {
    let Some(walk) = view.walk else { return Err(refused("the volume has errors: run `extant check -fy` first")) };
    let unreplayed = [Code::JournalNotReplayed, Code::JournalRecoveryOfNothing, Code::JournalRecoveryFlagMissing];
    if unreplayed.into_iter().any(|code| view.problems.count(code) > 0) {
        return Err(refused("the journal was not replayed: run `extant check -y` first"));
    }
    let has_maps = view.volume.space_maps.is_some();
    if has_maps == matches!(to, FreeSpaceForm::SpaceMaps { .. }) {
        return Ok(None);
    }
    let geometry = &view.volume.geometry;
    let mut free = FreeBlocks::all(geometry);
    free.exclude(|group, n| walk.ctx.claims.word(group, n));
    let mut used = Used::new(geometry, |group, n| walk.ctx.claims.word(group, n));
    let work = Work::new(view, overlay, 0);
    match to {
        FreeSpaceForm::Bitmaps => to_bitmaps(&work, &mut used).map_err(failed)?,
        FreeSpaceForm::SpaceMaps { groups } => {
            let (maps, places) = place(view, &mut used, groups)?;
            to_maps(&work, &used, &maps, &places).map_err(failed)?;
        }
    }
    Ok(Some(free))
}

/// The blocks in use in each group, 64 to a word.
struct Used<'a> {
    geometry: &'a Geometry,
    groups: Vec<Vec<u64>>,
}

impl<'a> Used<'a> {
    fn new(geometry: &'a Geometry, word: impl Fn(GroupNo, usize) -> u64) -> Self {
        let words = geometry.blocks_per_group.div_ceil(64) as usize;
        let groups = geometry.group_numbers().map(|group| (0..words).map(|n| word(group, n)).collect()).collect();
        Self { geometry, groups }
    }

    fn word(&self, group: GroupNo, n: usize) -> u64 {
        self.groups.get(group.get() as usize).and_then(|words| words.get(n)).copied().unwrap_or(u64::MAX)
    }

    fn set(&mut self, blocks: Range<u64>, used: bool) {
        for block in blocks {
            let Some(group) = self.geometry.group_of(FsBlock(block)) else { continue };
            let at = block - self.geometry.group_start(group).get();
            let words = self.groups.get_mut(group.get() as usize);
            let Some(word) = words.and_then(|words| words.get_mut((at / 64) as usize)) else { continue };
            *word = if used { *word | 1 << (at % 64) } else { *word & !(1 << (at % 64)) };
        }
    }

    fn is_used(&self, block: u64) -> bool {
        let Some(group) = self.geometry.group_of(FsBlock(block)) else { return true };
        let at = block - self.geometry.group_start(group).get();
        self.word(group, (at / 64) as usize) >> (at % 64) & 1 == 1
    }

    /// Allocates a run of `blocks` free blocks in `within`; returns the first of them, or the length of the longest
    /// free run.
    fn take(&mut self, blocks: u64, within: Range<u64>) -> Result<u64, u64> {
        let (mut start, mut longest) = (within.start, 0);
        for block in within {
            if self.is_used(block) {
                start = block + 1;
            }
            longest = longest.max(block + 1 - start);
            if longest == blocks {
                self.set(start..start + blocks, true);
                return Ok(start);
            }
        }
        Err(longest)
    }

    /// The free blocks of all groups.
    fn free(&self) -> u64 {
        let units = |group| self.geometry.group_blocks(group);
        let free = |group: GroupNo| units(group).filter(|block| !self.is_used(*block)).count() as u64;
        self.geometry.group_numbers().map(free).sum()
    }
}

/// Allocates table, log and trees.
fn place(view: &View<'_>, used: &mut Used<'_>, groups: Option<u32>) -> Result<(SpaceMaps, Vec<FsBlock>), Refusal> {
    let (geometry, features) = (&view.volume.geometry, &view.volume.features);
    if !features.incompat.contains(Incompat::FLEX_BG) {
        let add = "`tune2fs -O extents,flex_bg DEVICE` adds it";
        return Err(refused(format!("space maps need the feature flex_bg, which the volume does not have: {add}")));
    }
    for (other, name) in [
        (RoCompat::BIGALLOC, "bigalloc"),
        (RoCompat::SHARED_BLOCKS, "shared_blocks"),
        (RoCompat::READONLY, "read-only"),
    ] {
        if features.ro_compat.contains(other) {
            return Err(refused(format!("space maps are incompatible with the feature {name}, which the volume has")));
        }
    }
    if geometry.has_regions() {
        return Err(refused("space maps are incompatible with metadata regions, which the volume has"));
    }
    let bytes = u64::from(geometry.blocks_per_group) * u64::from(geometry.block_size);
    let fitting = || ((METABLOCKGROUP / bytes.max(1)).max(1) as u32).next_power_of_two().min(MOST_GROUPS);
    let groups = groups.unwrap_or_else(fitting);
    let all = u64::from(geometry.first_data_block).max(1)..geometry.blocks;
    // its size depends only on these two
    let draft = SpaceMaps::new(geometry, groups, all.start + 1, LEAST_LOG);
    let draft = draft.ok_or_else(|| refused(format!("a metablockgroup cannot have {groups} groups on this volume")))?;
    let table = draft.table().end - draft.table().start;
    let (mut log, mut start) = (LOG, used.take(table + u64::from(LOG), all.clone()));
    while start.is_err() && log > LEAST_LOG {
        log /= 2;
        start = used.take(table + u64::from(log), all.clone());
    }
    let lacking = |wanted: u64, what: &str, longest: u64| {
        refused(format!("no {wanted} contiguous blocks are free for {what}: the longest free run has {longest}"))
    };
    let start = start.map_err(|longest| lacking(table + u64::from(log), "the table and log of space maps", longest))?;
    let maps = SpaceMaps::new(geometry, groups, start, log);
    let maps = maps.ok_or_else(|| refused("the space maps do not fit into the volume"))?;
    let mut places = Vec::new();
    for map in 0..maps.maps() {
        let groups = maps.groups_of(map);
        let near = geometry.group_blocks(GroupNo(groups.start)).start.max(all.start)
            ..geometry.group_blocks(GroupNo(groups.end.saturating_sub(1))).end;
        let blocks = 2 * maps.place_blocks(map);
        let first = used.take(blocks, near).or_else(|_| used.take(blocks, all.clone()));
        places.push(FsBlock(first.map_err(|longest| lacking(blocks, "a space map", longest))?));
    }
    for descriptor in &view.volume.groups {
        used.set(descriptor.block_bitmap.get()..descriptor.block_bitmap.get() + 1, false);
    }
    Ok((maps, places))
}

fn to_maps(work: &Work<'_>, used: &Used<'_>, maps: &SpaceMaps, places: &[FsBlock]) -> Result<()> {
    space_maps::write(maps, places, 1, &|group, n| used.word(group, n), &mut |block, bytes| {
        work.put_block(block, bytes)
    })?;
    work.edit_superblock(|sb| {
        sb.s_feature_ro_compat = (sb.s_feature_ro_compat.get() | RoCompat::EXTANT_RO.bits()).into();
        sb.x_ro_features = (sb.x_ro_features.get() | ExtantRo::SPACE_MAPS.bits()).into();
        sb.x_map_groups = maps.groups_per_map().into();
        sb.x_map_start = maps.table().start.into();
        sb.x_space_map_log = ((maps.ring().end - maps.ring().start) as u32).into();
        sb.set_free_blocks_count(used.free());
    })?;
    for (map, first) in (0..).zip(places) {
        for (number, bitmap) in maps.groups_of(map).map(GroupNo).zip(first.get()..) {
            let Some(mut group) = work.group(number) else { continue };
            group.block_bitmap = FsBlock(bitmap);
            group.block_bitmap_csum = 0;
            group.free_clusters = 0;
            group.flags -= GroupFlags::BLOCK_UNINIT;
            work.put_group(number, group)?;
        }
    }
    Ok(())
}

fn to_bitmaps(work: &Work<'_>, used: &mut Used<'_>) -> Result<()> {
    let Some(recorded) = &work.volume().space_maps else { return Ok(()) };
    let geometry = &work.volume().geometry;
    for (_, blocks) in recorded.own_blocks() {
        used.set(blocks, false);
    }
    let bitmaps: Vec<u64> =
        geometry.group_numbers().filter_map(|group| recorded.bitmap_block(group)).map(FsBlock::get).collect();
    for block in &bitmaps {
        used.set(*block..*block + 1, true);
    }
    work.edit_superblock(|sb| {
        let left = sb.x_ro_features.get() & !ExtantRo::SPACE_MAPS.bits();
        sb.x_ro_features = left.into();
        if left == 0 {
            sb.s_feature_ro_compat = (sb.s_feature_ro_compat.get() & !RoCompat::EXTANT_RO.bits()).into();
        }
        (sb.x_map_groups, sb.x_map_start, sb.x_space_map_log) = (0.into(), 0.into(), 0.into());
        sb.set_free_blocks_count(used.free());
    })?;
    for (number, block) in geometry.group_numbers().zip(bitmaps) {
        let Some(mut group) = work.group(number) else { continue };
        let blocks = geometry.group_blocks(number);
        let units = (blocks.end - blocks.start) as u32;
        let (bitmap, count) = filled(work.block_size(), units, |n| used.word(number, n));
        work.put_block(block, &bitmap)?;
        group.block_bitmap = FsBlock(block);
        group.free_clusters = units - count;
        if geometry.metadata_csum {
            group.block_bitmap_csum = bitmap_checksum(geometry, &bitmap, geometry.clusters_per_group());
        }
        work.put_group(number, group)?;
    }
    Ok(())
}
