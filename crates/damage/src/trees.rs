//! Damage to the hash trees of directories.

use crate::error::{Error, Result, need};
use crate::recipe::Recipe;
use crate::volume::{Volume, put};
use format::InodeNo;
use format::htree::count_limit_offset;

/// The byte offset of the entries in an index root.
const ROOT: usize = 32;

/// Changes the root of a hash tree of at least three leaves.
fn root(v: &mut Volume<'_>, edit: impl FnOnce(&mut [u8])) -> Result<()> {
    let dir = indexed(v, 4)?;
    let block = v.block_of(dir, 0)?;
    v.edit_index(dir, block, edit)
}

fn indexed(v: &mut Volume<'_>, blocks: usize) -> Result<InodeNo> {
    v.directory(blocks, Some(true))
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|b| b.first_chunk().copied()).map_or(0, u32::from_le_bytes)
}

fn half(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..).and_then(|b| b.first_chunk().copied()).map_or(0, u16::from_le_bytes)
}

/// Changes the count of the root's entries.
fn count(v: &mut Volume<'_>, other: fn(count: u16, limit: u16) -> u16) -> Result<()> {
    root(v, |bytes| {
        let (limit, count) = (half(bytes, ROOT), half(bytes, ROOT + 2));
        put(bytes, ROOT + 2, &other(count, limit).to_le_bytes());
    })
}

pub(crate) const RECIPES: &[(u32, Recipe)] = &[
    (0x01_0049, |v| root(v, |bytes| put(bytes, 24, &1u32.to_le_bytes()))),
    (0x01_004A, |v| root(v, |bytes| put(bytes, 28, &[9]))),
    (0x01_004B, |v| root(v, |bytes| put(bytes, 31, &[1]))),
    (0x01_004C, |v| root(v, |bytes| put(bytes, 30, &[7]))),
    (0x01_008E, |v| root(v, |bytes| put(bytes, 28, &[6]))),
    (0x02_0034, |v| count(v, |count, _| count - 1)),
    (0x02_0035, |v| {
        root(v, |bytes| {
            let first = word(bytes, ROOT + 4);
            put(bytes, ROOT + 8 + 4, &first.to_le_bytes());
        })
    }),
    (0x02_0036, |v| {
        root(v, |bytes| {
            let (one, two) = (word(bytes, ROOT + 8), word(bytes, ROOT + 16));
            put(bytes, ROOT + 8, &((one / 2 + two / 2) & !1).to_le_bytes());
        })
    }),
    (0x02_0037, |v| {
        root(v, |bytes| {
            let one = word(bytes, ROOT + 8);
            put(bytes, ROOT + 8, &((one / 2) & !1).to_le_bytes());
        })
    }),
    (0x02_0038, |v| count(v, |count, _| count - 1)),
    (0x02_003A, |v| root(v, |bytes| put(bytes, ROOT + 8 + 4, &0x0FFF_FFF0u32.to_le_bytes()))),
    (0x02_003C, |v| root(v, |bytes| put(bytes, 30, &[3]))),
    (0x02_003D, |v| {
        root(v, |bytes| {
            let limit = half(bytes, ROOT);
            put(bytes, ROOT, &(limit - 1).to_le_bytes());
        })
    }),
    (0x02_003E, |v| count(v, |_, limit| limit + 1)),
    (0x02_003F, |v| {
        root(v, |bytes| {
            let (one, two) = (word(bytes, ROOT + 8), word(bytes, ROOT + 16));
            put(bytes, ROOT + 8, &two.to_le_bytes());
            put(bytes, ROOT + 16, &one.to_le_bytes());
        })
    }),
    (0x02_0040, |v| root(v, |bytes| put(bytes, 30, &[1 - bytes.get(30).copied().unwrap_or(0).min(1)]))),
    (0x02_0049, |v| {
        need(v.geometry.metadata_csum, "the volume has no checksums")?;
        let dir = indexed(v, 3)?;
        let block = v.block_of(dir, 0)?;
        v.edit_block(block, |bytes| {
            if let Some(last) = bytes.last_mut() {
                *last ^= 0x55;
            }
        })
    }),
    (0x02_004A, |v| {
        need(v.geometry.metadata_csum, "the volume has no checksums")?;
        let dir = v.pick("no hash tree has nodes", |v, raw| {
            let indexed = raw.flags().contains(format::inode::InodeFlags::INDEX);
            let first = v.map(raw)?.data.first().map(|(_, block)| *block);
            let deep = |block| Ok::<_, Error>(v.block(block)?.get(30).is_some_and(|levels| *levels > 0));
            Ok(indexed && first.map(deep).transpose()?.unwrap_or(false))
        })?;
        let node = nodes(v, dir)?.first().copied().ok_or(Error::Unfit("no hash tree has nodes"))?;
        v.edit_block(node, |bytes| {
            if let Some(last) = bytes.last_mut() {
                *last ^= 0x55;
            }
        })
    }),
];

/// The blocks of a hash tree that are neither root nor leaf.
fn nodes(v: &Volume<'_>, dir: InodeNo) -> Result<Vec<u64>> {
    let mut found = Vec::new();
    for (at, block) in v.map_of(dir)?.data {
        if at != 0 && count_limit_offset(&v.block(block)?, v.geometry.block_size).is_some() {
            found.push(block);
        }
    }
    Ok(found)
}
