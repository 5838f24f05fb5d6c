//! Names of files that did not reach the device.

use super::files::Files;
use super::work::{NOT_NAMED, Work, contradiction};
use crate::{Error, Result};
use blockdev::BlockDevice;
use format::dir::{DirEntry, decode_rec_len, encode_rec_len};
use format::linked::KIND_DIRECTORY;
use std::collections::BTreeSet;

/// Removes the names of new files that did not reach the device from the directories. Such a name is new as well, so it
/// is in a block that a slot names.
pub(super) fn remove(work: &Work<'_>, files: &Files<'_>) -> Result<()> {
    if files.lost() == 0 {
        return Ok(());
    }
    let copies = work.slots.iter().flat_map(|slot| &slot.copies);
    let copies = copies.filter(|copy| copy.head.lc_kind.get() == KIND_DIRECTORY).map(|copy| copy.head.lc_block.get());
    let fresh = work.slots.iter().flat_map(|slot| &slot.fresh);
    let fresh = fresh.filter(|fresh| fresh.lf_kind.get() == KIND_DIRECTORY.into()).map(|fresh| fresh.lf_block.get());
    let blocks: BTreeSet<u32> = copies.chain(fresh).collect();
    let mut block = vec![0; work.sb.geometry.block_size as usize];
    for number in blocks {
        let at = work.at(number)?;
        work.volume.read(at, &mut block)?;
        if remove_in(&mut block, files)? {
            work.volume.write(at, &block)?;
        }
    }
    Ok(())
}

/// The same in one block; returns whether there was any. An index block of a hashed directory looks like one unused
/// entry.
fn remove_in(block: &mut [u8], files: &Files<'_>) -> Result<bool> {
    let size = block.len() as u32;
    let (mut at, mut before, mut any) = (0usize, None, false);
    while at < block.len() {
        let word = |from: usize, len: usize| block.get(at + from..at + from + len);
        let inode = word(0, 4).and_then(|b| b.try_into().ok()).map(u32::from_le_bytes);
        let length = word(4, 2).and_then(|b| b.try_into().ok()).map(u16::from_le_bytes);
        let (Some(inode), Some(length)) = (inode, length) else { return contradiction(NOT_NAMED) };
        let length = decode_rec_len(length, size) as usize;
        if length < DirEntry::SIZE || !length.is_multiple_of(4) || at + length > block.len() {
            return contradiction(NOT_NAMED);
        }
        if inode != 0 && files.is_lost(inode) {
            any = true;
            match before {
                Some((start, own)) => {
                    let joined = encode_rec_len((own + length) as u32, size).ok_or(Error::Linked(NOT_NAMED))?;
                    put(block, start + 4, &joined.to_le_bytes());
                    before = Some((start, own + length));
                }
                None => {
                    put(block, at, &[0; 4]);
                    before = Some((at, length));
                }
            }
        } else {
            before = Some((at, length));
        }
        at += length;
    }
    Ok(any)
}

fn put(block: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(place) = block.get_mut(at..at + bytes.len()) {
        place.copy_from_slice(bytes);
    }
}
