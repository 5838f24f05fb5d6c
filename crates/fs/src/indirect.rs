//! Files mapped by `i_block` and up to three levels of indirect blocks.
//!
//! The path down has at most four steps whatever the blocks contain, so blocks that point to each other are harmless.

use crate::{Error, FileExtent, Inode, Mapping, Maps, Result};
use format::indirect::DIRECT;
use format::superblock::Superblock;
use format::tail::Tailed;
use format::{FileBlock, FsBlock, Structure, Where};
use space::Purpose;
use std::sync::Arc;
use zerocopy::little_endian::U32;

mod edit;

/// Maps in the form of block lists and indirect blocks.
pub(crate) struct Indirect;

/// `i_block` as pointers.
type BlockPointers = [U32; 15];

impl Maps {
    pub(crate) fn map_indirect(&self, inode: &Inode, from: FileBlock) -> Result<FileExtent> {
        let format = self.sb.geometry.indirect();
        let Some(path) = format.path(from) else { return Ok(FileExtent::hole(from, u64::MAX)) };
        let indexes = path.indexes();
        let depth = indexes.len().saturating_sub(1) as u32;
        let into = from.get() - format.first_of_level(depth).get();
        let words: BlockPointers = inode.raw().block_words::<15>().map(U32::new);
        let mut at = Where::Inode(inode.number);
        let mut block: Arc<[u8]>;
        // the pointers from the followed one to the end of their block; the direct ones end where the indirect begin
        let mut list: &[U32] = &[];
        for (&index, level) in indexes.iter().zip((0..=depth).rev()) {
            if level == depth {
                let (start, direct) = (index as usize, DIRECT as usize);
                list = words.get(start..(start + 1).max(direct)).unwrap_or_default();
            } else {
                let child = pointed(&self.sb, list, at)?;
                at = Where::Block(child);
                block = self.indirect_block(inode, child, level + 1)?;
                list = format.pointers(&block).get(index as usize..).unwrap_or_default();
            }
            let zeroes = list.iter().take_while(|p| p.get() == 0).count() as u64;
            if zeroes > 0 {
                let span = format.span(level);
                return Ok(FileExtent::hole(from, from.get() + zeroes * span - into % span));
            }
        }
        let start = pointed(&self.sb, list, at)?;
        // a pointer out of range ends the run before it, and is an error when it is looked up itself
        let len = list.iter().zip(start.get()..self.sb.geometry.blocks).take_while(|(p, b)| u64::from(p.get()) == *b);
        Ok(FileExtent { logical: from, len: len.count() as u64, mapping: Mapping::Data(start) })
    }
}

impl Maps {
    /// An indirect block with `level` levels down to data. Its owner is verified on volumes where blocks have one.
    fn indirect_block(&self, inode: &Inode, block: FsBlock, level: u32) -> Result<Arc<[u8]>> {
        let tail = self.sb.geometry.tail(Tailed::Indirect);
        self.may_lead_to(inode, block, 1, Purpose::Metadata)?;
        let bad = |what| Error::corrupt(Structure::IndirectBlock, Where::Block(block), what);
        self.read_around(block);
        let bytes = self.store.checked(block, |bytes| {
            let matches = tail.checksum_matches(bytes, block, self.seed(inode));
            if matches { Ok(()) } else { Err(bad("the checksum does not match")) }
        })?;
        if tail.says(&bytes, inode.number, Some(level.into())) {
            Ok(bytes)
        } else {
            Err(bad("it belongs to another inode or another level"))
        }
    }
}

/// The block that the first of some pointers refers to.
fn pointed(sb: &Superblock, list: &[U32], at: Where) -> Result<FsBlock> {
    let block = list.first().map_or(0, |p| u64::from(p.get()));
    if block <= u64::from(sb.geometry.first_data_block) || block >= sb.geometry.blocks {
        return Err(Error::corrupt(Structure::IndirectBlock, at, "a block number lies outside the volume"));
    }
    Ok(FsBlock(block))
}
