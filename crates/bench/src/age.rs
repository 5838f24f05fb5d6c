//! Aged volumes, created in minutes by the method of Ma et al. (*ffsck: The Fast File System Checker*, section 3.2),
//! without writing the data of files.
//!
//! 1. A directory for each group; in each, files of 1 to 512 blocks until they fill a fifth of a group. (512 or
//!    [`Options::largest`]: section 7.3 measures a volume of large files.)
//! 2. Until the volume has the requested fill level: in a random directory a new file, or up to half as many blocks
//!    appended to an existing file.
//! 3. Rounds: in each directory one of these, or a file is truncated at a random block, or removed, all with the same
//!    probability. After each round the volume is filled again as in 2. (The paper discards volumes that ended below 90
//!    %.)
//!
//! Blocks are allocated operation by operation, as for a program that syncs each file. Blocks freed in a round can be
//! reused from the next one on, as a commit follows each round. No data is written into them: the cost of a check, an
//! allocation or a layout does not depend on it. The result depends on the seed alone.

use crate::{Error, Result};
use fs::{FileKind, InodeNo, NewFile, Volume};

/// Maximum number of blocks of a new file in the paper.
pub const LARGEST: u64 = 512;
/// Divisor of a group's blocks: the initial files of a directory fill this fraction of it.
const SHARE: u64 = 5;

/// Options for ageing a volume.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Seed of the random numbers.
    pub seed: u64,
    /// Fraction of the volume's blocks in use at the end, from 0 to 1.
    pub fill: f64,
    /// Operations in each directory, after the volume was filled.
    pub rounds: u32,
    /// Maximum number of blocks of a new file, at least 2; half of it is the maximum growth of a file. [`LARGEST`] in
    /// the paper.
    pub largest: u64,
}

/// The outcome of ageing a volume.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize)]
pub struct Aged {
    /// Directories, one for each group.
    pub directories: u64,
    /// Files at the end.
    pub files: u64,
    /// Files created in total.
    pub created: u64,
    /// Appends.
    pub appended: u64,
    /// Truncations.
    pub truncated: u64,
    /// Files removed.
    pub removed: u64,
    /// Rounds done.
    pub rounds: u32,
    /// Fraction of the volume's blocks in use at the end.
    pub fill: f64,
    /// Whether it was stopped before the end.
    pub stopped: bool,
}

/// A file, and its length in blocks.
struct File {
    number: InodeNo,
    name: u64,
    blocks: u64,
}

struct Dir {
    number: InodeNo,
    files: Vec<File>,
}

struct Ager<'a> {
    volume: &'a Volume,
    random: fastrand::Rng,
    dirs: Vec<Dir>,
    next: u64,
    largest: u64,
    block_size: u64,
    /// Blocks that the volume has on its device.
    blocks: u64,
    done: Aged,
    progress: &'a mut dyn FnMut(u64, u64) -> bool,
    /// Parts of the work that are done, and all parts.
    parts: (u64, u64),
}

/// Ages a volume that is open for writing and preferably empty. `progress` is called with the parts done and all parts;
/// where it returns false the ageing ends early, with the volume consistent.
///
/// # Errors
/// [`Error::Failed`] with the error of the volume. Earlier operations remain on it.
pub fn age(volume: &Volume, options: &Options, progress: &mut dyn FnMut(u64, u64) -> bool) -> Result<Aged> {
    let geometry = &volume.superblock().geometry;
    // half the groups of a native volume have metadata block numbers and no space
    let blocks = volume.summary().map_err(failed)?.blocks;
    let groups = u64::from(geometry.groups);
    let mut ager = Ager {
        volume,
        random: fastrand::Rng::with_seed(options.seed),
        dirs: Vec::new(),
        next: 0,
        largest: options.largest.max(2),
        block_size: geometry.block_size.into(),
        blocks,
        done: Aged::default(),
        progress,
        parts: (0, groups * (2 + u64::from(options.rounds))),
    };
    let finished = ager.begin(groups, u64::from(geometry.blocks_per_group) / SHARE, options.fill)?
        && ager.fill(options.fill, groups)?
        && ager.rounds(options)?;
    volume.sync().map_err(failed)?;
    let files = ager.dirs.iter().map(|dir| dir.files.len() as u64).sum();
    Ok(Aged { directories: ager.dirs.len() as u64, files, fill: ager.used(), stopped: !finished, ..ager.done })
}

fn failed(e: fs::Error) -> Error {
    Error::Failed(e.to_string())
}

impl Ager<'_> {
    /// Fraction of the blocks in use.
    fn used(&self) -> f64 {
        1.0 - self.volume.statfs().blocks_free as f64 / self.blocks.max(1) as f64
    }

    /// Adds `parts` to the progress; returns whether to continue.
    fn advance(&mut self, parts: u64) -> bool {
        self.parts.0 = (self.parts.0 + parts).min(self.parts.1);
        (self.progress)(self.parts.0, self.parts.1)
    }

    /// Runs `work`, and once more after a commit of the frees where there was no space. Returns whether it succeeded.
    fn with_space(&self, work: impl Fn() -> fs::Result<()>) -> Result<bool> {
        match work() {
            Err(fs::Error::NoSpace) => self.volume.sync().map_err(failed)?,
            Err(e) => return Err(failed(e)),
            Ok(()) => return Ok(true),
        }
        match work() {
            Err(fs::Error::NoSpace) => Ok(false),
            outcome => outcome.map(|()| true).map_err(failed),
        }
    }

    fn begin(&mut self, groups: u64, blocks: u64, fill: f64) -> Result<bool> {
        for n in 0..groups {
            let new = NewFile { kind: FileKind::Directory, mode: 0o755, umask: 0, uid: 0, gid: 0, device: (0, 0) };
            let made = match self.volume.create(InodeNo::ROOT, format!("d{n}").as_bytes(), &new) {
                Err(fs::Error::Exists) => {
                    return Err(Error::Failed(format!("/d{n} exists: age an empty volume, or remove it first")));
                }
                made => made.map_err(failed)?,
            };
            self.dirs.push(Dir { number: made.number, files: Vec::new() });
        }
        for at in 0..self.dirs.len() {
            let mut there = 0;
            while there < blocks && self.used() < fill {
                let Some(more) = self.create(at)? else { return Ok(true) };
                there += more;
            }
            if !self.advance(1) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Fills the volume; `parts` are counted until it is full.
    fn fill(&mut self, fill: f64, parts: u64) -> Result<bool> {
        let start = self.used();
        let mut counted = 0;
        loop {
            let used = self.used();
            if used >= fill {
                return Ok(self.advance(parts - counted));
            }
            let part = ((used - start) / (fill - start) * parts as f64) as u64;
            if !self.advance(part.saturating_sub(counted)) {
                return Ok(false);
            }
            counted = counted.max(part);
            let at = self.random.usize(..self.dirs.len());
            let done = if self.random.bool() { self.create(at)? } else { self.append(at)? };
            if done.is_none() {
                return Ok(self.advance(parts - counted));
            }
        }
    }

    fn rounds(&mut self, options: &Options) -> Result<bool> {
        for _ in 0..options.rounds {
            for at in 0..self.dirs.len() {
                match self.random.u8(..4) {
                    0 => self.create(at).map(drop)?,
                    1 => self.append(at).map(drop)?,
                    2 => self.truncate(at)?,
                    _ => self.remove(at)?,
                }
                if !self.advance(1) {
                    return Ok(false);
                }
            }
            if !self.fill(options.fill, 0)? {
                return Ok(false);
            }
            self.volume.sync().map_err(failed)?;
            self.done.rounds += 1;
        }
        Ok(true)
    }

    /// Creates a file and returns its blocks; `None` where there is no space.
    fn create(&mut self, at: usize) -> Result<Option<u64>> {
        let blocks = self.random.u64(1..=self.largest);
        let name = self.next;
        let dir = &self.dirs[at];
        let new = NewFile { kind: FileKind::Regular, mode: 0o644, umask: 0, uid: 0, gid: 0, device: (0, 0) };
        let made = match self.volume.create(dir.number, name.to_string().as_bytes(), &new) {
            Ok(made) => made.number,
            // the maximum number of inodes is reached
            Err(fs::Error::NoSpace) => return Ok(None),
            Err(e) => return Err(failed(e)),
        };
        self.next += 1;
        self.done.created += 1;
        self.dirs[at].files.push(File { number: made, name, blocks: 0 });
        let last = self.dirs[at].files.len() - 1;
        Ok(self.grow(at, last, blocks)?.then_some(blocks))
    }

    fn append(&mut self, at: usize) -> Result<Option<u64>> {
        let blocks = self.random.u64(1..=self.largest / 2);
        let Some(which) = self.pick(at) else { return self.create(at) };
        self.done.appended += 1;
        Ok(self.grow(at, which, blocks)?.then_some(blocks))
    }

    fn truncate(&mut self, at: usize) -> Result<()> {
        let Some(which) = self.pick(at) else { return Ok(()) };
        let (number, blocks) = (self.dirs[at].files[which].number, self.dirs[at].files[which].blocks);
        let left = self.random.u64(..=blocks);
        self.volume.truncate(number, left * self.block_size).map_err(failed)?;
        self.dirs[at].files[which].blocks = left;
        self.done.truncated += 1;
        Ok(())
    }

    fn remove(&mut self, at: usize) -> Result<()> {
        let Some(which) = self.pick(at) else { return Ok(()) };
        let dir = &mut self.dirs[at];
        let file = dir.files.swap_remove(which);
        self.volume.unlink(dir.number, file.name.to_string().as_bytes()).map_err(failed)?;
        self.done.removed += 1;
        Ok(())
    }

    fn pick(&mut self, at: usize) -> Option<usize> {
        let count = self.dirs[at].files.len();
        (count > 0).then(|| self.random.usize(..count))
    }

    /// Appends `blocks` blocks to a file; false where there was not enough space.
    fn grow(&mut self, at: usize, which: usize, blocks: u64) -> Result<bool> {
        let file = &self.dirs[at].files[which];
        let (number, start, len) = (file.number, file.blocks * self.block_size, blocks * self.block_size);
        let fits = self.with_space(|| self.volume.allocate_stale(number, start, len))?;
        self.dirs[at].files[which].blocks += blocks;
        Ok(fits)
    }
}
