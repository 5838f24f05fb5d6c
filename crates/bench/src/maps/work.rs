//! The paper's kinds of work, the same on a modelled disk and through the kernel.

use super::figures::Options;
use crate::error::failed;
use crate::table::grouped;
use crate::{Error, Result};
use fs::{FileKind, InodeNo, NewFile, Volume};

/// Length of the paper's volume in bytes; all amounts are in proportion to it.
const PAPER: u64 = 50 << 30;
/// Block size of the paper's volume in bytes.
pub(super) const BLOCK: u32 = 1024;
/// Bytes in a metablockgroup, and in a large flexible group.
pub(super) const METABLOCKGROUP: u64 = 8 << 30;
/// Bytes of the free extents that the paper calls large.
pub(super) const LARGE: u64 = 1 << 30;
/// Rounds of trees and large files after which free space is measured.
pub(super) const ROUNDS: u64 = 7;
/// Rounds of these whose requests are counted.
pub(super) const COUNTED_ROUNDS: u64 = 5;
/// Bytes of allocated file data after which a generation closes, equivalent to five seconds of work.
const GENERATION: u64 = 256 << 20;
/// Number of files created or removed after which a generation closes.
const GENERATION_FILES: u64 = 2000;
/// Bytes that a large file grows by at once.
const PIECE: u64 = 16 << 20;
/// Share of the volume that all rounds fill.
const FILL: f64 = 0.89;

/// Attributes of a new file.
pub(super) const FILE: NewFile =
    NewFile { kind: FileKind::Regular, mode: 0o644, umask: 0, uid: 0, gid: 0, device: (0, 0) };

/// A mounted or open file system that work is done on.
pub(super) trait Tree {
    /// A file or directory.
    type Node: Clone;

    /// The root directory.
    fn top(&self) -> Self::Node;

    /// Creates a directory.
    ///
    /// # Errors
    /// Those of the file system.
    fn new_dir(&self, parent: &Self::Node, name: &str) -> Result<Self::Node>;

    /// Creates an empty file.
    ///
    /// # Errors
    /// Those of the file system.
    fn new_file(&self, parent: &Self::Node, name: &str) -> Result<Self::Node>;

    /// Allocates the blocks of `bytes` bytes from byte `from` on without writing them, and extends the file to their
    /// end.
    ///
    /// # Errors
    /// Those of the file system.
    fn fill(&self, file: &Self::Node, from: u64, bytes: u64) -> Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// Those of the file system.
    fn remove(&self, parent: &Self::Node, name: &str) -> Result<()>;

    /// Makes everything done so far durable, as a timer does.
    ///
    /// # Errors
    /// Those of the file system.
    fn commit(&self) -> Result<()>;
}

impl Tree for Volume {
    type Node = InodeNo;

    fn top(&self) -> InodeNo {
        InodeNo::ROOT
    }

    fn new_dir(&self, parent: &InodeNo, name: &str) -> Result<InodeNo> {
        let new = NewFile { kind: FileKind::Directory, mode: 0o755, ..FILE };
        Ok(self.create(*parent, name.as_bytes(), &new).map_err(failed)?.number)
    }

    fn new_file(&self, parent: &InodeNo, name: &str) -> Result<InodeNo> {
        Ok(self.create(*parent, name.as_bytes(), &FILE).map_err(failed)?.number)
    }

    fn fill(&self, file: &InodeNo, from: u64, bytes: u64) -> Result<()> {
        self.allocate_stale(*file, from, bytes).map_err(failed)
    }

    fn remove(&self, parent: &InodeNo, name: &str) -> Result<()> {
        self.unlink(*parent, name.as_bytes()).map_err(failed)
    }

    fn commit(&self) -> Result<()> {
        self.sync().map_err(failed)
    }
}

/// Work on a tree whose generations close by amount of work instead of by time.
pub(super) struct Job<'a, T: Tree> {
    tree: &'a T,
    bytes: u64,
    files: u64,
}

impl<'a, T: Tree> Job<'a, T> {
    /// Work on a tree, which begins with a generation.
    pub(super) fn new(tree: &'a T) -> Self {
        Self { tree, bytes: 0, files: 0 }
    }

    /// Counts work, and closes the generation after enough of it.
    pub(super) fn add_work(&mut self, files: u64, bytes: u64) -> Result<()> {
        (self.files, self.bytes) = (self.files + files, self.bytes + bytes);
        if self.files >= GENERATION_FILES || self.bytes >= GENERATION {
            (self.files, self.bytes) = (0, 0);
            self.tree.commit()?;
        }
        Ok(())
    }

    /// Creates a directory.
    pub(super) fn dir(&mut self, parent: &T::Node, name: &str) -> Result<T::Node> {
        self.add_work(1, 0)?;
        self.tree.new_dir(parent, name)
    }

    /// Creates a file of `bytes` bytes.
    pub(super) fn file(&mut self, dir: &T::Node, name: &str, bytes: u64) -> Result<T::Node> {
        let file = self.tree.new_file(dir, name)?;
        self.grow(&file, 0, bytes)?;
        self.add_work(1, 0)?;
        Ok(file)
    }

    /// Extends a file of `from` bytes by `bytes` bytes.
    pub(super) fn grow(&mut self, file: &T::Node, from: u64, bytes: u64) -> Result<()> {
        self.tree.fill(file, from, bytes)?;
        self.add_work(0, bytes)
    }

    /// Creates a file of `bytes` bytes that grows by [`PIECE`] at a time.
    pub(super) fn file_in_pieces(&mut self, dir: &T::Node, name: &str, bytes: u64) -> Result<T::Node> {
        let file = self.file(dir, name, bytes.min(PIECE))?;
        let mut length = bytes.min(PIECE);
        while length < bytes {
            let more = (bytes - length).min(PIECE);
            self.grow(&file, length, more)?;
            length += more;
        }
        Ok(file)
    }
}

/// The amounts of work on a volume.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    /// Length of the volume in lengths of the paper's.
    pub(super) scale: f64,
    /// Bytes of a round of trees and large files.
    share: u64,
    seed: u64,
}

/// A file of PostMark.
struct Live<N> {
    dir: N,
    name: String,
    file: N,
    bytes: u64,
}

impl Plan {
    /// The amounts in proportion to the length of the volume.
    pub(super) fn of(options: &Options) -> Self {
        let share = (options.size as f64 * FILL / ROUNDS as f64) as u64;
        Self { scale: options.size as f64 / PAPER as f64, share, seed: options.seed }
    }

    /// The numbers of files for PostMark, each for a volume of its own; and the names of this work.
    pub(super) fn postmarks(&self) -> [(u64, String); 5] {
        [1e5, 2e5, 3e5, 4e5, 5e5].map(|files: f64| {
            let files = (files * self.scale) as u64;
            (files, format!("PostMark, {} files", grouped(files)))
        })
    }

    /// PostMark as the paper runs it, by its defaults: files of 500 bytes to 10 KB, half as many transactions as files,
    /// each of which reads or appends, and makes or removes a file.
    pub(super) fn postmark<T: Tree>(&self, job: &mut Job<'_, T>, files: u64) -> Result<()> {
        let mut random = fastrand::Rng::with_seed(self.seed);
        let top = job.tree.top();
        let mut dirs = Vec::new();
        for n in 0..files.div_ceil(1000) {
            dirs.push(job.dir(&top, &format!("s{n}"))?);
        }
        let (mut live, mut next) = (Vec::new(), 0u64);
        let mut make = |job: &mut Job<'_, T>, random: &mut fastrand::Rng, live: &mut Vec<Live<T::Node>>| {
            let dir = dirs[random.usize(..dirs.len())].clone();
            let (name, bytes) = (next.to_string(), random.u64(500..10_000));
            next += 1;
            let file = job.file(&dir, &name, bytes)?;
            live.push(Live { dir, name, file, bytes });
            Ok::<_, Error>(())
        };
        for _ in 0..files {
            make(job, &mut random, &mut live)?;
        }
        for _ in 0..files / 2 {
            if random.bool() {
                let which = random.usize(..live.len());
                let more = random.u64(500..10_000);
                let grown = &mut live[which];
                job.grow(&grown.file, grown.bytes, more)?;
                grown.bytes += more;
            }
            if random.bool() {
                make(job, &mut random, &mut live)?;
            } else if live.len() > 1 {
                let removed = live.swap_remove(random.usize(..live.len()));
                job.tree.remove(&removed.dir, &removed.name)?;
                job.add_work(1, 0)?;
            }
        }
        Ok(())
    }

    /// Five trees of small files and five large files, alternating.
    pub(super) fn mixed<T: Tree>(&self, job: &mut Job<'_, T>, round: u64) -> Result<()> {
        const AT_ONCE: usize = 5;
        let mut random = fastrand::Rng::with_seed(self.seed ^ round);
        // a kernel source tree of the paper's time has some 31 000 files of 12 KB on average
        let mut small = (31_000.0 * self.scale) as u64 * AT_ONCE as u64;
        let (mut dirs, mut large) = (Vec::new(), Vec::new());
        let root = job.tree.top();
        let top = job.dir(&root, &format!("r{round}"))?;
        for n in 0..AT_ONCE {
            dirs.push(vec![job.dir(&top, &format!("tree{n}"))?]);
            large.push((job.file(&top, &format!("large{n}"), 1)?, 0));
        }
        let pieces = self.share / PIECE;
        let (per_piece, mut left, mut n) = (small.div_ceil(pieces.max(1)), self.share, 0u64);
        while left >= PIECE {
            for _ in 0..per_piece.min(small) {
                let tree = &mut dirs[(n % AT_ONCE as u64) as usize];
                n += 1;
                if n % 60 < AT_ONCE as u64 {
                    let parent = tree[random.usize(tree.len().saturating_sub(32)..tree.len())].clone();
                    tree.push(job.dir(&parent, &format!("d{n}"))?);
                }
                let bytes = 2f64.powf(random.f64() * 8.0 + 8.0) as u64;
                job.file(tree.last().unwrap_or(&top), &format!("f{n}"), bytes)?;
                left = left.saturating_sub(bytes.next_multiple_of(BLOCK.into()));
            }
            small -= per_piece.min(small);
            let which = (left / PIECE) as usize % AT_ONCE;
            let (file, length) = &mut large[which];
            job.grow(file, *length, PIECE)?;
            *length += PIECE;
            left = left.saturating_sub(PIECE);
        }
        Ok(())
    }
}
