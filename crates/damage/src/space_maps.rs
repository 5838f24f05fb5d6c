//! Damage to space maps: heads, trees, the log, and descriptor fields for block bitmaps.

use crate::error::{Error, Result};
use crate::recipe::Recipe;
use crate::volume::Volume;
use format::space_map::SpaceMaps;
use format::space_map::head::Head;
use format::space_map::ring::{Record, RingBlock};
use format::space_map::tree::Tree;
use format::superblock::Superblock;
use format::{FsBlock, GroupNo};

/// The parts of a volume's space maps that damage needs.
struct Found {
    maps: SpaceMaps,
    heads: Vec<Head>,
    log: Vec<RingBlock>,
}

impl Found {
    fn of(v: &Volume<'_>) -> Result<Self> {
        let sb = Superblock { disk: v.sb, features: v.sb.features(), geometry: v.geometry.clone() };
        let maps = SpaceMaps::of(&sb)?.ok_or(Error::Unfit("the volume has block bitmaps"))?;
        let head = |map| Ok(Head::parse(&v.block(maps.head_at(map).0.get())?, &maps, map)?);
        let heads = (0..maps.maps()).map(head).collect::<Result<_>>()?;
        let block = |(place, block)| Ok(RingBlock::parse(&v.block(block)?, &maps, place)?);
        let log = (0..).zip(maps.ring()).map(block).collect::<Result<Vec<_>>>()?.into_iter().flatten().collect();
        Ok(Self { maps, heads, log })
    }

    /// Appends a generation of one record to the log, with `left` as its number of following blocks.
    fn log(&self, v: &mut Volume<'_>, record: Record, left: u32) -> Result<()> {
        let position = self.log.iter().map(|block| block.position + 1).max().unwrap_or(0);
        let sequences = self.heads.iter().map(|head| head.sequence);
        let sequence = sequences.chain(self.log.iter().map(|block| block.sequence)).max().unwrap_or(0) + 1;
        let block = RingBlock { sequence, position, left, records: vec![record] };
        v.edit_block(self.maps.ring_block(position).get(), |bytes| block.write(bytes, &self.maps))
    }

    /// A block that is free in its tree and not in the log.
    fn free_block(&self, v: &mut Volume<'_>) -> Result<FsBlock> {
        let head = *v.rng.choice(&self.heads).ok_or(Error::Unfit("the volume has no space maps"))?;
        let first = head.tree(&self.maps).get();
        let blocks = (first..first + self.maps.place_blocks(head.number)).map(|block| v.block(block));
        let tree = Tree::parse(&blocks.collect::<Result<Vec<_>>>()?.concat(), &self.maps, &head)?;
        let groups = self.maps.groups_of(head.number).map(GroupNo);
        let free = groups.zip(&tree.groups).flat_map(|(group, free)| {
            let start = self.maps.geometry().group_start(group).get();
            free.runs(self.maps.units(group)).map(move |run| start + u64::from(run.start))
        });
        let said = |block: &u64| {
            let runs = self.log.iter().flat_map(|logged| &logged.records);
            runs.map(|r| r.start.get()..r.start.get() + u64::from(r.blocks)).any(|run| run.contains(block))
        };
        let free: Vec<u64> = free.filter(|block| !said(block)).collect();
        v.rng.choice(&free).copied().map(FsBlock).ok_or(Error::Unfit("no block is free"))
    }
}

/// Flips a random bit in the `len` bytes from byte `at` of a block on.
fn flip(v: &mut Volume<'_>, block: FsBlock, at: usize, len: usize) -> Result<()> {
    let (byte, bit) = (at + v.rng.usize(..len.max(1)), v.rng.u8(..8));
    v.edit_block(block.get(), |bytes| {
        if let Some(byte) = bytes.get_mut(byte) {
            *byte ^= 1 << bit;
        }
    })
}

fn one(start: FsBlock, allocated: bool) -> Record {
    Record { start, blocks: 1, allocated }
}

pub(crate) const RECIPES: &[(u32, Recipe)] = &[
    (0x0E_0030, |v| {
        let found = Found::of(v)?;
        let (block, at) = found.maps.head_at(v.rng.u32(..found.maps.maps()));
        flip(v, block, at, 64)
    }),
    (0x0E_0031, |v| {
        let found = Found::of(v)?;
        let head = *v.rng.choice(&found.heads).ok_or(Error::Unfit("the volume has no space maps"))?;
        let len = v.block_size().min(head.length as usize);
        flip(v, head.tree(&found.maps), 0, len)
    }),
    (0x0E_0032, |v| {
        let found = Found::of(v)?;
        let block = found.free_block(v)?;
        found.log(v, one(block, true), 1)
    }),
    (0x0E_0033, |v| {
        let found = Found::of(v)?;
        let block = found.free_block(v)?;
        found.log(v, one(block, false), 0)
    }),
    (0x0E_0034, |v| {
        let found = Found::of(v)?;
        found.log(v, one(FsBlock(found.maps.table().start), true), 0)
    }),
    (0x0E_0035, |v| {
        Found::of(v)?;
        let group = GroupNo(v.rng.u32(..v.geometry.groups));
        v.group(group, |group| group.free_clusters += 1)
    }),
];
