//! Damage to directory blocks and their entries, and to the tree of files.

use crate::attributes::remove_name;
use crate::error::{Error, Result, need};
use crate::recipe::Recipe;
use crate::volume::{Named, Volume, put};
use format::InodeNo;
use format::feature::Incompat;
use format::inode::{FileKind, InodeFlags};

/// An entry of a directory without a hash tree, and the directory.
fn any_entry(v: &mut Volume<'_>, fits: impl Fn(&Named) -> bool + Copy) -> Result<(InodeNo, Named)> {
    for _ in 0..64 {
        let dir = v.directory(1, Some(false))?;
        if let Ok(entry) = v.entry(dir, fits) {
            return Ok((dir, entry));
        }
    }
    Err(Error::Unfit("no directory has such an entry"))
}

/// Sets the inode of an entry.
fn point(v: &mut Volume<'_>, dir: InodeNo, entry: &Named, to: u32) -> Result<()> {
    v.edit_leaf(dir, entry.block, |bytes| put(bytes, entry.offset, &to.to_le_bytes()))
}

/// Changes the first block of a small directory.
fn first_block(v: &mut Volume<'_>, edit: impl FnOnce(&mut [u8])) -> Result<()> {
    let dir = v.directory(1, Some(false))?;
    let block = v.block_of(dir, 0)?;
    v.edit_leaf(dir, block, edit)
}

/// Sets another name of an entry, of the same length or less.
fn rename(v: &mut Volume<'_>, dir: InodeNo, entry: &Named, name: &[u8]) -> Result<()> {
    v.edit_leaf(dir, entry.block, |bytes| {
        put(bytes, entry.offset + 6, &[name.len() as u8]);
        put(bytes, entry.offset + 8, name);
    })
}

fn unused(v: &Volume<'_>, uninit: bool) -> Result<u32> {
    need(v.geometry.metadata_csum || v.geometry.gdt_csum, "the volume has no checksums")?;
    let flag = format::group::GroupFlags::INODE_UNINIT;
    let found =
        (0u32..).zip(&v.groups).find(|(_, group)| group.flags.contains(flag) == uninit && group.itable_unused > 0);
    let (n, _) = found.ok_or(Error::Unfit("no inode table has such a part"))?;
    Ok(v.geometry.inode_at(format::GroupNo(n), v.geometry.inodes_per_group - 1).get())
}

fn directory_with_child(v: &mut Volume<'_>) -> Result<(InodeNo, InodeNo, Named)> {
    for _ in 0..64 {
        let dir = v.directory(1, Some(false))?;
        let children: Vec<_> = v.entries(dir)?;
        let named = children.into_iter().filter(|e| e.name != b"." && e.name != b"..");
        for child in named {
            let inode = v.inode(child.inode)?;
            if inode.kind() != Some(FileKind::Directory) || inode.raw().flags().contains(InodeFlags::INDEX) {
                continue;
            }
            if let Ok(entry) = v.entry(child.inode, |_| true) {
                return Ok((dir, child.inode, entry));
            }
        }
    }
    Err(Error::Unfit("no directory has such a child"))
}

pub(crate) const RECIPES: &[(u32, Recipe)] = &[
    (0x02_0001, |v| first_block(v, |bytes| put(bytes, 0, &2u32.to_le_bytes()))),
    (0x02_0002, |v| {
        let (dir, entry) = any_entry(v, |_| true)?;
        let beyond = v.geometry.inodes + 100;
        point(v, dir, &entry, beyond)
    }),
    (0x02_0003, |v| {
        let (dir, entry) = any_entry(v, |_| true)?;
        let free = v.free_inode()?;
        point(v, dir, &entry, free.get())
    }),
    (0x02_0004, |v| {
        let (dir, entry) = any_entry(v, |_| true)?;
        point(v, dir, &entry, dir.get())
    }),
    (0x02_0006, |v| {
        let (dir, entry) = any_entry(v, |_| true)?;
        let other = v.directory(1, None)?;
        point(v, dir, &entry, other.get())
    }),
    (0x02_0007, |v| {
        let (dir, entry) = any_entry(v, |_| true)?;
        point(v, dir, &entry, 2)
    }),
    (0x02_0008, |v| {
        let (dir, entry) = any_entry(v, |_| true)?;
        v.edit_leaf(dir, entry.block, |bytes| put(bytes, entry.offset + 8, b"/"))
    }),
    (0x02_0009, |v| first_block(v, |bytes| put(bytes, 0, &[0; 4]))),
    (0x02_000A, |v| first_block(v, |bytes| put(bytes, 12, &[0; 4]))),
    (0x02_000B, |v| first_block(v, |bytes| put(bytes, 8, b"x"))),
    (0x02_000C, |v| first_block(v, |bytes| put(bytes, 20, b"xy"))),
    (0x02_0013, |v| {
        let (dir, entry) = any_entry(v, |_| true)?;
        v.edit_leaf(dir, entry.block, |bytes| put(bytes, entry.offset + 4, &3u16.to_le_bytes()))
    }),
    (0x02_0016, |v| first_block(v, |bytes| put(bytes, 9, b"x"))),
    (0x02_0017, |v| first_block(v, |bytes| put(bytes, 22, b"x"))),
    (0x02_001A, |v| {
        let (dir, entry) = any_entry(v, |_| true)?;
        rename(v, dir, &entry, b".")
    }),
    (0x02_001B, |v| {
        let (dir, entry) = any_entry(v, |e| e.len >= 12)?;
        rename(v, dir, &entry, b"..")
    }),
    (0x02_0024, |v| {
        let tail = v.geometry.leaf_tail().size();
        let size = v.block_size();
        let whole = format::dir::encode_rec_len((size - tail) as u32, size as u32)
            .ok_or(Error::Unfit("an entry cannot fill a block"))?;
        first_block(v, |bytes| {
            put(bytes, 4, &whole.to_le_bytes());
            put(bytes, 18, &[0; 4]);
        })
    }),
    (0x0E_0029, |v| first_block(v, |bytes| put(bytes, 4, &24u16.to_le_bytes()))),
    (0x02_0027, |v| {
        need(v.has_incompat(Incompat::FILETYPE), "the volume's entries have no types")?;
        let (dir, entry) = any_entry(v, |_| true)?;
        v.edit_leaf(dir, entry.block, |bytes| put(bytes, entry.offset + 7, &[0]))
    }),
    (0x02_0028, |v| {
        need(v.has_incompat(Incompat::FILETYPE), "the volume's entries have no types")?;
        let (dir, entry) = any_entry(v, |_| true)?;
        v.edit_leaf(dir, entry.block, |bytes| {
            if let Some(kind) = bytes.get_mut(entry.offset + 7) {
                *kind = *kind % 7 + 1;
            }
        })
    }),
    (0x02_0029, |v| {
        need(!v.has_incompat(Incompat::FILETYPE), "the volume's entries have types")?;
        let (dir, entry) = any_entry(v, |_| true)?;
        v.edit_leaf(dir, entry.block, |bytes| put(bytes, entry.offset + 7, &[1]))
    }),
    (0x02_0030, |v| {
        let (dir, entry) = any_entry(v, |_| true)?;
        v.edit_leaf(dir, entry.block, |bytes| put(bytes, entry.offset + 6, &[0]))
    }),
    (0x02_0043, |v| {
        for _ in 0..64 {
            let dir = v.directory(1, Some(false))?;
            let all = v.entries(dir)?;
            let names: Vec<_> =
                all.iter().filter(|e| e.inode.get() != 0 && e.name != b"." && e.name != b"..").collect();
            let pair = names.iter().enumerate().find_map(|(n, a)| {
                names.iter().skip(n + 1).find(|b| a.name.len() + 8 <= b.len && a.block == b.block).map(|b| (*a, *b))
            });
            if let Some((a, b)) = pair {
                let (name, second) = (a.name.clone(), b.clone());
                return rename(v, dir, &second, &name);
            }
        }
        Err(Error::Unfit("no directory has two names"))
    }),
    (0x02_0046, |v| {
        let inode = unused(v, true)?;
        let (dir, entry) = any_entry(v, |_| true)?;
        point(v, dir, &entry, inode)
    }),
    (0x02_0047, |v| {
        let inode = unused(v, false)?;
        let (dir, entry) = any_entry(v, |_| true)?;
        point(v, dir, &entry, inode)
    }),
    (0x02_004C, |v| {
        let tail = v.geometry.leaf_tail().size();
        need(tail > 0, "the volume has no checksums")?;
        let dir = v.directory(1, Some(false))?;
        let last =
            v.entries(dir)?.into_iter().rfind(|e| e.file_block == 0 && e.offset + e.len + tail == v.block_size());
        let last = last.ok_or(Error::Unfit("no entry ends where the checksum begins"))?;
        let (block, len) = (last.block, (last.len + tail) as u16);
        v.edit_leaf(dir, block, |bytes| put(bytes, last.offset + 4, &len.to_le_bytes()))
    }),
    (0x02_004D, |v| {
        need(v.geometry.leaf_tail().size() > 0, "the volume has no checksums")?;
        let dir = v.directory(1, Some(false))?;
        let block = v.block_of(dir, 0)?;
        v.edit_block(block, |bytes| {
            if let Some(last) = bytes.last_mut() {
                *last ^= 0x55;
            }
        })
    }),
    (0x02_0053, |v| {
        need(v.has_incompat(Incompat::CASEFOLD), "the volume does not fold case")?;
        let (dir, entry) = any_entry(v, |e| e.name.len() > 1)?;
        v.edit_leaf(dir, entry.block, |bytes| put(bytes, entry.offset + 8, &[0xFF, 0xFE]))?;
        v.set_flags(dir, InodeFlags::CASEFOLD, true)
    }),
    (0x03_0003, |v| {
        let dir = v.directory(1, None)?;
        remove_name(v, dir)
    }),
    (0x03_0004, |v| {
        let found = v.entries(InodeNo::ROOT)?.into_iter().find(|e| e.name == b"lost+found");
        let entry = found.ok_or(Error::Unfit("the volume has no lost+found"))?;
        rename(v, InodeNo::ROOT, &entry, b"lostXfound")
    }),
    (0x03_0005, |v| {
        let (one, other) = (v.directory(1, Some(false))?, v.directory(1, None)?);
        let block = v.block_of(one, 0)?;
        v.edit_leaf(one, block, |bytes| put(bytes, 12, &other.get().to_le_bytes()))
    }),
    (0x03_001D, |v| {
        let (dir, child, entry) = directory_with_child(v)?;
        remove_name(v, dir)?;
        let to = dir.get();
        point(v, child, &entry, to)?;
        v.edit_leaf(child, entry.block, |bytes| put(bytes, entry.offset + 7, &[2]))
    }),
    (0x04_0002, |v| {
        let file = v.file(None)?;
        remove_name(v, file)
    }),
];
