//! The list of linked writes: the content of inode 5, contiguous.

use super::{BlockMap, Maker, OwnBlock, map_blocks};
use crate::Consistency;
use crate::mkfs::error::{Result, refuse};
use format::FsBlock;
use format::feature::{Compat, Incompat};
use format::linked::{Areas, INODE, INODE_SIZE_MAX, LEAST, MOST, Slot};
use space::Purpose;

/// The divisor of the volume's size for the default size of the list.
const SHARE: u64 = 64;

impl Maker<'_> {
    /// Creates the list of `len` bytes; 0 for a size by the volume's, as far as there is a free run.
    pub(super) fn linked_list(&mut self, len: u64) -> Result<()> {
        let geometry = self.plan.geometry.clone();
        let block_size = u64::from(geometry.block_size);
        let (features, whole) = (&self.plan.features, geometry.blocks * block_size);
        if !Consistency::Linked.formats().any(|kind| kind == self.options.kind)
            || features.incompat.intersects(Incompat::FILETYPE.complement())
            || features.compat.intersects(Compat::HAS_JOURNAL)
            || geometry.has_descriptor_checksums()
        {
            return refuse("linked needs the type ext2 without features of ext3 and ext4");
        }
        if geometry.inode_size > INODE_SIZE_MAX {
            return refuse("linked needs inodes of at most 512 bytes");
        }
        let wanted = if len == 0 { (whole / SHARE).clamp(LEAST, MOST) } else { len };
        let mut size = wanted.next_multiple_of(block_size);
        if Areas::of(size, geometry.block_size).is_none() {
            return refuse("linked=SIZE: use 128K to 16M, and at least four blocks");
        }
        let first = loop {
            match self.used.find(0..geometry.blocks, size / block_size, 1) {
                Some(first) => break first,
                None if len == 0 && size > LEAST => size = (size / 2).max(LEAST).next_multiple_of(block_size),
                None => return refuse("linked: no contiguous free space is long enough for the list"),
            }
        };
        let Some(areas) = Areas::of(size, geometry.block_size) else {
            return refuse("linked needs blocks of at most 32 KiB here");
        };
        let count = size / block_size;
        self.used.take(first..first + count);
        let pointers = geometry.indirect().per_block();
        let of_tables = self.take(first + count, map_blocks(count, pointers), Purpose::Metadata)?;
        let (mut data, mut tables) = (first..first + count, of_tables.runs.iter().cloned().flatten());
        let mut next = |level: u32| if level > 0 { tables.next() } else { data.next() };
        let mut map = BlockMap { next: &mut next, pointers, left: count, data: Vec::new(), tables: Vec::new() };
        let words = map.make()?;
        let tables = map.tables.into_iter().map(|table| {
            let mut bytes: Vec<u8> = table.words.iter().flat_map(|word| word.to_le_bytes()).collect();
            bytes.resize(geometry.block_size as usize, 0);
            OwnBlock { at: FsBlock(table.block), kind: store::Kind::Indirect, owner: INODE, bytes }
        });
        self.content.blocks.extend(tables);
        let mut inode = self.inode(0o100_600, 1, size);
        inode.set_block_words(&words);
        let sectors = self.sectors_of(count) + of_tables.sectors;
        self.set_sectors(&mut inode, sectors)?;
        self.put_inode(INODE, inode);
        for counter in [0, 1] {
            let slot = Slot::empty(self.options.uuid, counter, geometry.block_size, geometry.inode_size);
            let mut bytes = slot.encode();
            bytes.resize(geometry.block_size as usize, 0);
            self.put_block(first + areas.slot_at(counter) / block_size, store::Kind::Data, INODE, bytes);
        }
        Ok(())
    }
}
