//! Extended attributes: invalid ones are dropped, and what cannot be assigned or read.

use super::work::Work;
use crate::phases::inodes::xattrs::title;
use crate::problem::Problem;
use crate::table::Code;
use blockdev::Result;
use format::inode::{InodeBuf, InodeFlags};
use format::xattr::{self, MAGIC, XattrEntry, XattrHeader, XattrIbodyHeader, entry_hash};
use format::{FsBlock, InodeNo};
use std::collections::HashSet;
use zerocopy::{FromBytes, IntoBytes};

/// Drops all attributes in an inode.
pub(super) fn drop_all(inode: &mut InodeBuf) {
    inode.attribute_area_mut().fill(0);
}

/// Drops all attributes in an inode except its inline data, where that can be read.
pub(super) fn drop_all_but_data(inode: &mut InodeBuf) {
    let data = inode
        .raw()
        .flags()
        .contains(InodeFlags::INLINE_DATA)
        .then(|| inline_attribute(inode))
        .flatten()
        .filter(|data| data.inum == 0);
    let area = inode.attribute_area_mut();
    area.fill(0);
    if let (Some(data), Some((header, bytes))) = (data, area.split_at_mut_checked(XattrIbodyHeader::SIZE)) {
        header.copy_from_slice(XattrIbodyHeader { h_magic: MAGIC.into() }.as_bytes());
        // in an inode the hash may be 0; that of the entry may have been wrong
        let _ = write(bytes, 0, &[Attribute { hash: 0, ..data }]);
    }
}

/// Drops the invalid attributes in an inode, and those after a name that cannot be read. `false`, with nothing changed,
/// where all are valid as far as the inode shows.
pub(super) fn drop_invalid(inode: &mut InodeBuf) -> bool {
    let Some((header, bytes)) = inode.attribute_area_mut().split_at_mut_checked(XattrIbodyHeader::SIZE) else {
        return false;
    };
    if XattrIbodyHeader::ref_from_bytes(header).map_or(0, |header| header.h_magic.get()) != MAGIC {
        return false;
    }
    let (mut valid, all_valid) = valid_in(bytes, 0, true);
    if all_valid {
        return false;
    }
    // there may be no space for what ends the names
    while write(bytes, 0, &valid).is_none() {
        let Some(last) = valid.iter().rposition(|a| !a.is_data()) else {
            drop_all_but_data(inode);
            break;
        };
        valid.remove(last);
    }
    true
}

/// The valid attributes from `at` on, and whether all are valid. The names end where the values begin. Of values that
/// overlap none can be assigned.
fn valid_in(bytes: &[u8], mut at: usize, in_inode: bool) -> (Vec<Attribute>, bool) {
    let (mut valid, mut all_valid, mut names_end) = (Vec::new(), true, bytes.len());
    let mut values: Vec<std::ops::Range<usize>> = Vec::new();
    while bytes.get(at..at + 4).is_some_and(|start| start != [0; 4]) {
        let entry = bytes.get(at..names_end).and_then(|rest| XattrEntry::ref_from_prefix(rest).ok());
        let Some((entry, name)) =
            entry.and_then(|(entry, rest)| Some((entry, rest.get(..usize::from(entry.e_name_len))?)))
        else {
            return (valid, false);
        };
        at += xattr::entry_len(entry.e_name_len);
        let (size, inum) = (entry.e_value_size.get(), entry.e_value_inum.get());
        let start = usize::from(entry.e_value_offs.get());
        let end = start.saturating_add((size as usize).next_multiple_of(4));
        // a value among the names is none
        let words = if inum != 0 || size == 0 { Some(&[][..]) } else { bytes.get(start..end).filter(|_| start >= at) };
        let named = !name.contains(&0) && (in_inode || entry.e_name_index != 0);
        let Some(words) = words.filter(|_| (inum == 0 || size > 0) && named) else {
            all_valid = false;
            continue;
        };
        let hash = entry.e_hash.get();
        let hashed =
            inum != 0 || hash == 0 && in_inode || [false, true].iter().any(|s| entry_hash(name, words, *s) == hash);
        all_valid &= hashed && (inum != 0 || size > 0 || start <= bytes.len());
        let value = words.get(..size as usize).unwrap_or_default().to_vec();
        // the stored one may cover bytes after the value; in an inode it may be 0
        let hash = match inum {
            0 if in_inode => 0,
            0 => entry_hash(name, &padded(&value), false),
            _ => hash,
        };
        let attribute = Attribute { index: entry.e_name_index, name: name.to_vec(), value, inum, size, hash };
        if hashed || attribute.is_data() {
            if !words.is_empty() {
                names_end = names_end.min(start);
                values.push(start..end);
            }
            valid.push(attribute);
        }
    }
    values.sort_unstable_by_key(|value| value.start);
    if !values.is_sorted_by(|a, b| a.end <= b.start) {
        valid.retain(Attribute::is_data);
    }
    (valid, all_valid)
}

/// A value with zeroes up to the next word.
fn padded(value: &[u8]) -> Vec<u8> {
    let mut bytes = value.to_vec();
    bytes.resize(value.len().next_multiple_of(4), 0);
    bytes
}

/// An attribute with its value in the same area.
#[derive(Debug, Clone)]
struct Attribute {
    index: u8,
    name: Vec<u8>,
    value: Vec<u8>,
    inum: u32,
    size: u32,
    hash: u32,
}

impl Attribute {
    /// Whether it is `system.data`.
    fn is_data(&self) -> bool {
        (self.index, self.name.as_slice()) == (xattr::index::SYSTEM, b"data")
    }
}

/// The attributes from `at` on in an area with value offsets relative to its start; `None` where they cannot be read.
fn read(bytes: &[u8], at: usize) -> Option<Vec<Attribute>> {
    let mut all = Vec::new();
    read_into(&mut all, bytes, at)?;
    Some(all)
}

/// As [`read`]; `all` receives those before the first that cannot be read.
fn read_into(all: &mut Vec<Attribute>, bytes: &[u8], mut at: usize) -> Option<()> {
    while bytes.get(at..at + 4)? != [0; 4] {
        let (entry, rest) = XattrEntry::ref_from_prefix(bytes.get(at..)?).ok()?;
        let name = rest.get(..usize::from(entry.e_name_len))?.to_vec();
        let (size, inum) = (entry.e_value_size.get(), entry.e_value_inum.get());
        let start = usize::from(entry.e_value_offs.get());
        let value = match inum {
            0 if size == 0 => Vec::new(),
            0 => bytes.get(start..start.checked_add(size as usize)?)?.to_vec(),
            _ => Vec::new(),
        };
        all.push(Attribute { index: entry.e_name_index, name, value, inum, size, hash: entry.e_hash.get() });
        at += xattr::entry_len(entry.e_name_len);
    }
    Some(())
}

/// Writes attributes from `at` on, with their values at the end of the area. `None`, with nothing written, where they
/// do not fit. The file system has separate code for this, so that the two share no mistakes.
fn write(bytes: &mut [u8], at: usize, all: &[Attribute]) -> Option<()> {
    let names: usize = all.iter().map(|a| xattr::entry_len(a.name.len() as u8)).sum();
    let values: usize = all.iter().map(|a| a.value.len().next_multiple_of(4)).sum();
    if at + names + 4 + values > bytes.len() {
        return None;
    }
    bytes.get_mut(at..)?.fill(0);
    let (mut next, mut end) = (at, bytes.len() & !3);
    for a in all {
        end -= a.value.len().next_multiple_of(4);
        let start = if a.value.is_empty() { 0 } else { end };
        let entry = XattrEntry {
            e_name_len: a.name.len() as u8,
            e_name_index: a.index,
            e_value_offs: (start as u16).into(),
            e_value_inum: a.inum.into(),
            e_value_size: a.size.into(),
            e_hash: a.hash.into(),
        };
        let name_at = next + XattrEntry::SIZE;
        bytes.get_mut(next..name_at)?.copy_from_slice(entry.as_bytes());
        bytes.get_mut(name_at..name_at + a.name.len())?.copy_from_slice(&a.name);
        bytes.get_mut(end..end + a.value.len())?.copy_from_slice(&a.value);
        next += xattr::entry_len(a.name.len() as u8);
    }
    Some(())
}

/// Drops the attributes of the inode whose value is in one of these inodes.
pub(super) fn drop_values(work: &Work<'_>, inode: &mut InodeBuf, targets: &HashSet<u32>) -> Result<()> {
    drop_those(work, inode, |a| targets.contains(&a.inum)).map(drop)
}

/// Drops attributes from the inode and its block; returns whether there was one.
fn drop_those(work: &Work<'_>, inode: &mut InodeBuf, is_one: impl Fn(&Attribute) -> bool) -> Result<bool> {
    let mut found = false;
    let area = inode.attribute_area_mut();
    let retained = |all: Vec<Attribute>| all.into_iter().filter(|a| !is_one(a)).collect::<Vec<_>>();
    if let Some((_, bytes)) = area.split_at_mut_checked(XattrIbodyHeader::SIZE)
        && let Some(all) = read(bytes, 0)
        && all.iter().any(&is_one)
    {
        found = true;
        let _ = write(bytes, 0, &retained(all));
    }
    let block = FsBlock(inode.raw().file_acl(true).get());
    if let Some(mut bytes) = work.block(block.get()).map(|b| b.filter(|_| block.get() != 0))?
        && let Some(all) = read(&bytes, XattrHeader::SIZE)
        && all.iter().any(&is_one)
    {
        found = true;
        if write(&mut bytes, XattrHeader::SIZE, &retained(all)).is_some() {
            set_checksum(work, block, &mut bytes);
            work.put_block(block.get(), &bytes)?;
        }
    }
    Ok(found)
}

/// Drops the attribute with this name and hash whose value is in another inode, from the inode or its block; returns
/// whether there was one.
pub(super) fn drop_hashed(work: &Work<'_>, inode: &mut InodeBuf, name: &[u8], hash: u64) -> Result<bool> {
    // the inode may be the right value of another attribute
    drop_those(work, inode, |a| a.inum != 0 && u64::from(a.hash) == hash && title(a.index, &a.name) == name)
}

/// Sets the size in the entries of an inode, or of its block, whose value of another size is in the inode `target`.
pub(super) fn set_value_size(work: &Work<'_>, inode: &mut InodeBuf, target: u32, from: u32, to: u32) -> Result<()> {
    edit_entries(work, inode, |entry| {
        let is_it = (entry.e_value_inum.get(), entry.e_value_size.get()) == (target, from);
        if is_it {
            entry.e_value_size = to.into();
        }
        is_it
    })
}

/// Clears the offsets in the entries of an inode, or of its block, whose value is in another inode.
pub(super) fn clear_offsets(work: &Work<'_>, inode: &mut InodeBuf) -> Result<()> {
    edit_entries(work, inode, |entry| {
        let is_one = entry.e_value_inum.get() != 0 && entry.e_value_offs.get() != 0;
        if is_one {
            entry.e_value_offs = 0.into();
        }
        is_one
    })
}

/// Changes the entries of an inode, and of its block; `edit` returns whether it changed one.
fn edit_entries(work: &Work<'_>, inode: &mut InodeBuf, edit: impl Fn(&mut XattrEntry) -> bool) -> Result<()> {
    if let Some((_, bytes)) = inode.attribute_area_mut().split_at_mut_checked(XattrIbodyHeader::SIZE) {
        edit_area(bytes, 0, &edit);
    }
    let block = FsBlock(inode.raw().file_acl(true).get());
    if let Some(mut bytes) = work.block(block.get()).map(|b| b.filter(|_| block.get() != 0))?
        && edit_area(&mut bytes, XattrHeader::SIZE, &edit)
    {
        set_checksum(work, block, &mut bytes);
        work.put_block(block.get(), &bytes)?;
    }
    Ok(())
}

/// Changes the entries from `at` on; returns whether one was changed.
fn edit_area(bytes: &mut [u8], mut at: usize, edit: &impl Fn(&mut XattrEntry) -> bool) -> bool {
    let mut found = false;
    while bytes.get(at..at + 4).is_some_and(|start| start != [0; 4]) {
        let Some((entry, _)) = bytes.get_mut(at..).and_then(|rest| XattrEntry::mut_from_prefix(rest).ok()) else {
            break;
        };
        at += xattr::entry_len(entry.e_name_len);
        found |= edit(entry);
    }
    found
}

/// Writes the fields of an attribute block that depend on its attributes: hash and checksum.
fn set_checksum(work: &Work<'_>, block: FsBlock, bytes: &mut [u8]) {
    let hash = xattr::XattrArea::in_block(bytes).map_or(0, |area| area.block_hash());
    if let Ok((header, _)) = XattrHeader::mut_from_prefix(bytes) {
        header.h_hash = hash.into();
    }
    let geometry = &work.volume().geometry;
    if geometry.metadata_csum {
        let _ = xattr::write_block_checksum(bytes, block, geometry.checksum_seed);
    }
}

/// The value of `system.data` in an inode, where it can be read.
pub(super) fn inline_value(inode: &InodeBuf) -> Option<Vec<u8>> {
    inline_attribute(inode).map(|data| data.value)
}

fn inline_attribute(inode: &InodeBuf) -> Option<Attribute> {
    let area = inode.raw().attribute_area();
    let (header, bytes) = XattrIbodyHeader::ref_from_prefix(area).ok()?;
    if header.h_magic.get() != MAGIC {
        return None;
    }
    let mut all = Vec::new();
    // entries before one that cannot be read are still valid
    let _ = read_into(&mut all, bytes, 0);
    all.into_iter().find(Attribute::is_data)
}

/// Removes `system.data` from an inode.
pub(super) fn drop_inline_value(inode: &mut InodeBuf) {
    let Some((_, bytes)) = inode.attribute_area_mut().split_at_mut_checked(XattrIbodyHeader::SIZE) else { return };
    if let Some(mut all) = read(bytes, 0) {
        all.retain(|a| !a.is_data());
        let _ = write(bytes, 0, &all);
    }
}

/// Removes `system.data` from an inode, and the flag: its data is in `i_block`.
pub(super) fn drop_inline_flag(inode: &mut InodeBuf) {
    drop_inline_value(inode);
    inode.set_flags(inode.raw().flags() - InodeFlags::INLINE_DATA);
}

/// Repairs attribute blocks. Invalid attributes are removed from them; a block without a valid one is removed from
/// every inode that refers to it.
pub(super) fn repair_blocks(work: &Work<'_>, problems: &[&Problem]) -> Result<()> {
    let (mut dropped, mut rewritten): (HashSet<u64>, HashSet<u64>) = Default::default();
    for problem in problems {
        let Some(block) = problem.block else { continue };
        match problem.code {
            Code::XattrBlockUnreadable | Code::XattrBlockBad | Code::XattrBlockCountWrong => {
                _ = dropped.insert(block.get())
            }
            Code::XattrEntriesCollide | Code::XattrNameBad | Code::XattrValueBad | Code::InodeXattrHashWrong
                // several problems of a block are repaired at once
                if !rewritten.contains(&block.get()) =>
            {
                let repaired = retain_valid(work, block)?;
                if repaired { &mut rewritten } else { &mut dropped }.insert(block.get());
            }
            Code::XattrBlockChecksumWrong | Code::XattrRefcountWrong => {
                let Some(mut bytes) = work.block(block.get())? else { continue };
                if let (Code::XattrRefcountWrong, Some(count)) = (problem.code, problem.expected)
                    && let Ok((header, _)) = XattrHeader::mut_from_prefix(&mut bytes)
                {
                    header.h_refcount = u32::try_from(count).unwrap_or(u32::MAX).into();
                }
                let geometry = &work.volume().geometry;
                if geometry.metadata_csum {
                    let _ = xattr::write_block_checksum(&mut bytes, block, geometry.checksum_seed);
                }
                work.put_block(block.get(), &bytes)?;
            }
            _ => {}
        }
    }
    if dropped.is_empty() {
        return Ok(());
    }
    work.make_stale();
    for number in users(work, &dropped)? {
        work.edit_inode(number, |inode| inode.set_file_acl(FsBlock(0)))?;
    }
    Ok(())
}

/// Removes the invalid attributes from a block; `false`, with nothing changed, where none is left, or none is invalid
/// as far as the block shows.
fn retain_valid(work: &Work<'_>, block: FsBlock) -> Result<bool> {
    let Some(mut bytes) = work.block(block.get())? else { return Ok(false) };
    let (valid, all_valid) = valid_in(&bytes, XattrHeader::SIZE, false);
    if all_valid || valid.is_empty() || write(&mut bytes, XattrHeader::SIZE, &valid).is_none() {
        return Ok(false);
    }
    work.make_stale();
    set_checksum(work, block, &mut bytes);
    work.put_block(block.get(), &bytes)?;
    Ok(true)
}

/// The inodes that refer to one of these attribute blocks.
pub(super) fn users(work: &Work<'_>, blocks: &HashSet<u64>) -> Result<Vec<InodeNo>> {
    let Some(walk) = work.walk() else { return Ok(Vec::new()) };
    let wide = work.volume().features.incompat.contains(format::feature::Incompat::BIT64);
    let mut found = Vec::new();
    for (number, _) in walk.ctx.inodes.used() {
        if let Some(inode) = work.inode(number)?
            && blocks.contains(&inode.raw().file_acl(wide).get())
        {
            found.push(number);
        }
    }
    Ok(found)
}
