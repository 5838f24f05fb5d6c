//! The walk through the log.

use super::journal::{JournalLocation, Window};
use super::{Damage, LoggedCopy, Recovered};
use crate::Result;
use format::FsBlock;
use format::jbd2::{BlockType, Header, LogFormat, TagFlags, crc32_be, fast_commit};
use std::{collections::BTreeMap, sync::Arc};

/// Finds the newest copy of every block in the journal of a volume that has `volume_blocks` blocks. Writes nothing.
///
/// # Errors
/// Those of the device; `Unsupported` and `Corrupt` for a journal superblock that cannot be used, and `Unsupported` for
/// fast commits with unknown features. Damage in the log is not an error: see [`Recovered::damage`].
pub fn recover(journal: &JournalLocation, volume_blocks: u64) -> Result<Recovered> {
    let superblock = journal.read_superblock()?;
    let mut recovered = Recovered {
        journal: journal.clone(),
        copies: Arc::default(),
        transactions: 0,
        next_sequence: superblock.sequence(),
        damage: Vec::new(),
        fast_commits: 0,
        fast_commit_changes: 0,
        errno: superblock.errno(),
    };
    let Some(start) = superblock.start() else { return Ok(recovered) };

    let log = superblock.log_blocks();
    let mut walk = Walk {
        journal,
        format: superblock.log(),
        window: Window::new(journal, log.clone()),
        position: start,
        left: log.end - log.start,
        first: log.start,
        end: log.end,
        volume_blocks,
        sequence: superblock.sequence(),
        committed_at: 0,
        copies: BTreeMap::new(),
        transactions: 0,
        damage: Vec::new(),
    };
    walk.run()?;
    recovered.copies = Arc::new(walk.copies);
    recovered.transactions = walk.transactions;
    recovered.next_sequence = walk.sequence;
    recovered.damage = walk.damage;
    // fast commits are based on the last transaction; if that is in doubt, so are they
    if recovered.damage.is_empty() {
        let area = superblock.fast_commit_blocks();
        let mut window = Window::new(journal, area.clone());
        let mut scan = fast_commit::Scan::new(recovered.next_sequence);
        for block in area {
            if !scan.block(window.block(block)?)? {
                break;
            }
        }
        recovered.fast_commits = scan.commits();
        recovered.fast_commit_changes = scan.changes();
    }
    Ok(recovered)
}

struct Walk<'a> {
    journal: &'a JournalLocation,
    format: &'a LogFormat,
    window: Window<'a>,
    /// the next block to read
    position: u32,
    /// blocks of the log not yet visited
    left: u32,
    first: u32,
    end: u32,
    volume_blocks: u64,
    /// the sequence number that the next transaction must have
    sequence: u32,
    /// the time of the last commit, in seconds
    committed_at: u64,
    copies: BTreeMap<FsBlock, LoggedCopy>,
    transactions: u32,
    damage: Vec<Damage>,
}

/// The part read so far of a transaction whose commit block has not been found yet.
struct Pending {
    copies: Vec<(FsBlock, LoggedCopy)>,
    /// Revoke blocks, read again at the commit: they may list far more blocks than are logged.
    revoke_blocks: Vec<u32>,
    /// The checksum over descriptor and data blocks (first scheme).
    checksum: u32,
    /// A descriptor or revoke block whose checksum does not match.
    suspect: Option<u32>,
    damage: Vec<Damage>,
}

impl Pending {
    fn new() -> Self {
        Self { copies: Vec::new(), revoke_blocks: Vec::new(), checksum: !0, suspect: None, damage: Vec::new() }
    }
}

impl Walk<'_> {
    fn run(&mut self) -> Result<()> {
        let mut pending = Pending::new();
        // with asynchronous commits: a transaction whose commit block was written before its blocks
        let mut unfinished = None;
        let mut block = vec![0; self.journal.block_size as usize];
        while self.left > 0 {
            let at = self.position;
            block.copy_from_slice(self.window.block(at)?);
            let Some(header) = Header::parse(&block) else { break };
            let expected = unfinished.map_or(self.sequence, |(sequence, _)| sequence);
            if header.sequence != expected {
                break;
            }
            self.step();
            match header.block_type {
                Some(BlockType::Descriptor) => {
                    if !self.format.tail_matches(&block) {
                        pending.suspect.get_or_insert(at);
                    }
                    if !self.descriptor(&block, expected, &mut pending)? {
                        break;
                    }
                }
                Some(BlockType::Revoke) => {
                    if !self.format.tail_matches(&block) {
                        pending.suspect.get_or_insert(at);
                    }
                    pending.revoke_blocks.push(at);
                }
                Some(BlockType::Commit) => {
                    let time = self.format.commit_seconds(&block);
                    let matches = self.format.commit_matches(&block, pending.checksum);
                    if let Some((_, (sequence, block))) = unfinished {
                        // another commit after it: it was not the end of the log after all
                        self.damage.push(Damage::Checksum { sequence, block });
                        break;
                    }
                    let bad = pending.suspect.or((!matches).then_some(at));
                    match bad {
                        None => self.commit(std::mem::replace(&mut pending, Pending::new()), time)?,
                        // older than the last one: left over from an earlier cycle of the log, which ends here
                        Some(_) if time < self.committed_at => break,
                        Some(block) if self.format.async_commit() && pending.suspect.is_none() => {
                            unfinished = Some((self.sequence.wrapping_add(1), (self.sequence, block)));
                            pending = Pending::new();
                        }
                        Some(block) => {
                            self.damage.push(Damage::Checksum { sequence: self.sequence, block });
                            break;
                        }
                    }
                }
                _ => break,
            }
        }
        Ok(())
    }

    /// Advances to the next block of the log, whose first block follows its last one.
    fn step(&mut self) {
        self.left -= 1;
        self.position += 1;
        if self.position >= self.end {
            self.position = self.first;
        }
    }

    /// Adds the blocks after a descriptor block; `false` if the log has fewer blocks.
    fn descriptor(&mut self, descriptor: &[u8], sequence: u32, pending: &mut Pending) -> Result<bool> {
        let sums_transaction = self.format.sums_transactions();
        if sums_transaction {
            pending.checksum = crc32_be(pending.checksum, descriptor);
        }
        for tag in self.format.tags(descriptor) {
            if self.left == 0 {
                self.damage.push(Damage::TooLong { sequence });
                return Ok(false);
            }
            let data = self.window.block(self.position)?;
            if sums_transaction {
                pending.checksum = crc32_be(pending.checksum, data);
            }
            if !self.format.data_matches(&tag, sequence, data) {
                pending.damage.push(Damage::Copy { sequence, home: tag.home });
            } else if tag.home.get() >= self.volume_blocks {
                pending.damage.push(Damage::Beyond { sequence, home: tag.home });
            } else {
                let at = self.journal.position(self.position)?;
                let escaped = tag.flags.contains(TagFlags::ESCAPE);
                pending.copies.push((tag.home, LoggedCopy { at, escaped }));
            }
            self.step();
        }
        Ok(true)
    }

    fn commit(&mut self, pending: Pending, time: u64) -> Result<()> {
        self.copies.extend(pending.copies);
        self.damage.extend(pending.damage);
        let mut revoke = vec![0; self.journal.block_size as usize];
        for block in pending.revoke_blocks {
            self.journal.read(block, &mut revoke)?;
            match self.format.revoked(&revoke) {
                Ok(revoked) => revoked.for_each(|home| {
                    self.copies.remove(&home);
                }),
                Err(_) => self.damage.push(Damage::Revoke { sequence: self.sequence, block }),
            }
        }
        self.committed_at = time;
        self.transactions += 1;
        self.sequence = self.sequence.wrapping_add(1);
        Ok(())
    }
}
