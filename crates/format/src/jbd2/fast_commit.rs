//! Fast commits: small records of the changes since the last full commit, little-endian, in an area after the log.
//!
//! The area is a sequence of records (tag, length, value). The first record of the area is a head; each fast commit
//! ends with a tail with the sequence number and a CRC32C over all records since the previous tail, including the
//! tail's own first half. Records do not cross blocks; a pad record fills the rest of one.

use crate::checksum::crc32c;
use crate::{Error, FileBlock, InodeNo, Result, Structure};
use zerocopy::FromBytes;
use zerocopy::little_endian::{U16, U32};

disk_struct! {
    /// The head of every record (`ext4_fc_tl`).
    pub struct DiskRecord[4] {
        /// kind of the record: 1 add range, 2 delete range, 3 create, 4 link, 5 unlink, 6 inode, 7 pad, 8 tail, 9 head
        0x00 fc_tag: U16,
        /// bytes of the value that follows
        0x02 fc_len: U16,
    }
}

disk_struct! {
    /// Value of a head record (`ext4_fc_head`).
    pub struct DiskHead[8] {
        /// features of the fast commits (none defined)
        0x00 fc_features: U32,
        /// sequence number of the transaction after the log's last
        0x04 fc_tid: U32,
    }
}

disk_struct! {
    /// Value of an add-range record (`ext4_fc_add_range`).
    pub struct DiskAddRange[16] {
        /// inode
        0x00 fc_ino: U32,
        /// the extent, as in an extent tree's leaf
        0x04 fc_ex: [u8; 12],
    }
}

disk_struct! {
    /// Value of a delete-range record (`ext4_fc_del_range`).
    pub struct DiskDelRange[12] {
        /// inode
        0x00 fc_ino: U32,
        /// first block of the file
        0x04 fc_lblk: U32,
        /// blocks
        0x08 fc_len: U32,
    }
}

disk_struct! {
    /// Start of the value of a create, link or unlink record (`ext4_fc_dentry_info`); the name follows.
    pub struct DiskEntry[8] {
        /// directory
        0x00 fc_parent_ino: U32,
        /// inode the name points to
        0x04 fc_ino: U32,
    }
}

disk_struct! {
    /// Start of the value of an inode record (`ext4_fc_inode`); the inode as on the volume follows.
    pub struct DiskInodeRecord[4] {
        /// inode
        0x00 fc_ino: U32,
    }
}

disk_struct! {
    /// Start of the value of a tail record (`ext4_fc_tail`); the rest of the block belongs to it and is unused.
    pub struct DiskTail[8] {
        /// sequence number, as in the head
        0x00 fc_tid: U32,
        /// CRC32C (from 0) over the records since the last tail, this one up to here included
        0x04 fc_crc: U32,
    }
}

/// The longest name of a directory entry, in bytes.
const MAX_NAME: usize = 255;
/// The smallest inode, in bytes.
const MIN_INODE: usize = 128;

/// The content of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change<'a> {
    /// Start of the area.
    Head {
        /// Features; none is defined, so only 0 is supported.
        features: u32,
        /// Sequence number.
        sequence: u32,
    },
    /// A range of the file is mapped by this extent.
    AddRange {
        /// The file.
        inode: InodeNo,
        /// The extent, as in a leaf of an extent tree; not checked.
        extent: [u8; 12],
    },
    /// A range of the file is no longer mapped.
    DelRange {
        /// The file.
        inode: InodeNo,
        /// Start of the range.
        first: FileBlock,
        /// Blocks.
        count: u32,
    },
    /// A name was created together with its inode.
    Create(Entry<'a>),
    /// A name was created for an existing inode.
    Link(Entry<'a>),
    /// A name was removed.
    Unlink(Entry<'a>),
    /// The new state of an inode.
    Inode {
        /// Its number.
        inode: InodeNo,
        /// Its bytes, 128 at least; not checked.
        raw: &'a [u8],
    },
    /// Fills a block.
    Pad,
    /// A fast commit is complete.
    Tail {
        /// Sequence number.
        sequence: u32,
        /// CRC32C over the records of this fast commit.
        checksum: u32,
    },
}

/// A directory entry that was created or removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The directory.
    pub parent: InodeNo,
    /// The inode that the name points to.
    pub inode: InodeNo,
    /// 1 to 255 bytes.
    pub name: &'a [u8],
}

/// A record, and its bytes that the fast commit's checksum covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// Its content.
    pub change: Change<'a>,
    /// Tag, length and value; for a tail only up to the sequence number.
    pub summed: &'a [u8],
}

/// The records of a block of the fast-commit area. Ends after the first that cannot be read.
pub fn records(block: &[u8]) -> impl Iterator<Item = Result<Record<'_>>> {
    let mut rest = block;
    std::iter::from_fn(move || {
        if rest.len() < DiskRecord::SIZE {
            return None;
        }
        let record = split(rest);
        rest = match record {
            Ok((_, after)) => after,
            Err(_) => &[],
        };
        Some(record.map(|(record, _)| record))
    })
}

fn split(bytes: &[u8]) -> Result<(Record<'_>, &[u8])> {
    let bad = |what| Error::corrupt(Structure::Journal, what);
    let (head, rest) = DiskRecord::read_from_prefix(bytes).map_err(|_| bad("fast-commit record cut short"))?;
    let (value, after) = rest
        .split_at_checked(head.fc_len.get().into())
        .ok_or_else(|| bad("fast-commit record reaches beyond its block"))?;
    let change = change(head.fc_tag.get(), value).ok_or_else(|| bad("fast-commit record of unknown kind or length"))?;
    let summed = match change {
        Change::Tail { .. } => DiskRecord::SIZE + 4,
        _ => DiskRecord::SIZE + value.len(),
    };
    Ok((Record { change, summed: &bytes[..summed] }, after))
}

fn change(tag: u16, value: &[u8]) -> Option<Change<'_>> {
    Some(match tag {
        1 => {
            let range = DiskAddRange::read_from_bytes(value).ok()?;
            Change::AddRange { inode: InodeNo(range.fc_ino.get()), extent: range.fc_ex }
        }
        2 => {
            let range = DiskDelRange::read_from_bytes(value).ok()?;
            Change::DelRange {
                inode: InodeNo(range.fc_ino.get()),
                first: FileBlock(range.fc_lblk.get().into()),
                count: range.fc_len.get(),
            }
        }
        3 => Change::Create(entry(value)?),
        4 => Change::Link(entry(value)?),
        5 => Change::Unlink(entry(value)?),
        6 => {
            let (head, raw) = DiskInodeRecord::read_from_prefix(value).ok()?;
            (raw.len() >= MIN_INODE).then_some(Change::Inode { inode: InodeNo(head.fc_ino.get()), raw })?
        }
        7 => Change::Pad,
        8 => {
            let (tail, _) = DiskTail::read_from_prefix(value).ok()?;
            Change::Tail { sequence: tail.fc_tid.get(), checksum: tail.fc_crc.get() }
        }
        9 => {
            let head = DiskHead::read_from_bytes(value).ok()?;
            Change::Head { features: head.fc_features.get(), sequence: head.fc_tid.get() }
        }
        _ => return None,
    })
}

fn entry(value: &[u8]) -> Option<Entry<'_>> {
    let (head, name) = DiskEntry::read_from_prefix(value).ok()?;
    let (parent, inode) = (InodeNo(head.fc_parent_ino.get()), InodeNo(head.fc_ino.get()));
    (1..=MAX_NAME).contains(&name.len()).then_some(Entry { parent, inode, name })
}

/// A scan of the fast-commit area, block by block, that counts the changes that a replay would apply.
#[derive(Debug, Clone)]
pub struct Scan {
    sequence: u32,
    begun: bool,
    checksum: u32,
    open: u32,
    commits: u32,
    changes: u32,
}

impl Scan {
    /// A scan for fast commits made after the log's last transaction; `sequence` is the number that follows it. Older
    /// ones are ignored.
    pub fn new(sequence: u32) -> Self {
        Self { sequence, begun: false, checksum: 0, open: 0, commits: 0, changes: 0 }
    }

    /// Complete fast commits seen so far.
    pub fn commits(&self) -> u32 {
        self.commits
    }

    /// Changes in these: names created or removed, ranges, inodes.
    pub fn changes(&self) -> u32 {
        self.changes
    }

    /// Scans the area's next block. `Ok(false)` means that no fast commit continues after it.
    ///
    /// # Errors
    /// `Unsupported` where live fast commits have an unknown feature.
    pub fn block(&mut self, block: &[u8]) -> Result<bool> {
        for record in records(block) {
            let Ok(Record { change, summed }) = record else { return Ok(false) };
            if !self.begun && !matches!(change, Change::Head { .. }) {
                return Ok(false);
            }
            self.checksum = crc32c(self.checksum, summed);
            match change {
                Change::Head { sequence, .. } if sequence != self.sequence => return Ok(false),
                Change::Head { features: 0, .. } => self.begun = true,
                Change::Head { features, .. } => {
                    return Err(Error::Unsupported(format!("fast commits with features {features:#x}")));
                }
                Change::Pad => {}
                Change::Tail { sequence, checksum } => {
                    if sequence != self.sequence || checksum != self.checksum {
                        return Ok(false);
                    }
                    self.commits = self.commits.saturating_add(1);
                    self.changes = self.changes.saturating_add(self.open);
                    (self.checksum, self.open) = (0, 0);
                }
                _ => self.open = self.open.saturating_add(1),
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(tag: u16, value: &[u8]) -> Vec<u8> {
        [&tag.to_le_bytes()[..], &(value.len() as u16).to_le_bytes(), value].concat()
    }

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|w| w.to_le_bytes()).collect()
    }

    /// A tail that fits `before`, the records since the last tail.
    fn tail(before: &[u8], sequence: u32, rest: usize) -> Vec<u8> {
        let mut tail = record(8, &[&words(&[sequence, 0])[..], &vec![0; rest]].concat());
        let sum = crc32c(crc32c(0, before), &tail[..8]);
        tail[8..12].copy_from_slice(&sum.to_le_bytes());
        tail
    }

    fn first_commit() -> Vec<u8> {
        let mut block = record(9, &words(&[0, 5]));
        block.extend(record(3, &[&words(&[2, 12])[..], b"name"].concat()));
        block.extend(record(6, &[&words(&[12])[..], &[7; 160]].concat()));
        let end = tail(&block, 5, 20);
        block.extend(end);
        block
    }

    #[test]
    fn every_kind_is_read() {
        let mut block = record(1, &words(&[12, 1, 2, 3]));
        block.extend(record(2, &words(&[12, 8, 2])));
        block.extend(record(4, &[&words(&[2, 12])[..], b"a"].concat()));
        block.extend(record(5, &[&words(&[2, 13])[..], b"b"].concat()));
        block.extend(record(7, &[0; 3]));
        let changes: Vec<_> = records(&block).map(|r| r.unwrap().change).collect();
        assert!(matches!(changes[0], Change::AddRange { inode: InodeNo(12), .. }));
        assert_eq!(changes[1], Change::DelRange { inode: InodeNo(12), first: FileBlock(8), count: 2 });
        assert!(matches!(changes[2], Change::Link(Entry { parent: InodeNo(2), inode: InodeNo(12), name: b"a" })));
        assert!(matches!(changes[3], Change::Unlink(Entry { name: b"b", .. })));
        assert_eq!(changes[4..], [Change::Pad]);
    }

    #[test]
    fn wrong_lengths_end_the_block() {
        for bad in [record(1, &[0; 15]), record(3, &[0; 8]), record(6, &[0; 131]), record(10, &[]), vec![7, 0, 9, 0]] {
            let mut block = record(7, &[]);
            block.extend(bad);
            let read: Vec<_> = records(&block).collect();
            assert!(read[0].is_ok() && read[1].is_err() && read.len() == 2);
        }
    }

    #[test]
    fn only_complete_commits_of_this_log_count() {
        let block = first_commit();
        let mut scan = Scan::new(5);
        assert!(scan.block(&block).unwrap());
        assert_eq!((scan.commits(), scan.changes()), (1, 2));

        // a second one without its tail
        assert!(scan.block(&record(5, &[&words(&[2, 12])[..], b"name"].concat())).unwrap());
        assert_eq!((scan.commits(), scan.changes()), (1, 2));

        let mut other = Scan::new(6);
        assert!(!other.block(&block).unwrap());
        assert_eq!(other.commits(), 0);

        let mut damaged = block;
        damaged[20] ^= 1;
        let mut scan = Scan::new(5);
        assert!(!scan.block(&damaged).unwrap());
        assert_eq!(scan.commits(), 0);
    }

    #[test]
    fn unknown_features_are_refused_only_where_live() {
        let block = record(9, &words(&[1, 5]));
        assert!(Scan::new(5).block(&block).is_err());
        assert!(!Scan::new(4).block(&block).unwrap());
    }
}
