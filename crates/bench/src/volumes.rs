//! Typical volumes, created by mke2fs and filled by the kernel, so that the kernel and e2fsck are measured on their own
//! layout. Needs root and loop devices.
//!
//! The same kind, number of files and seed result in the same names, sizes and order of operations; the kernel's
//! allocation of blocks differs slightly from run to run.

use crate::error::Trying;
use crate::interruption;
use crate::mount::Attached;
use crate::process::{must, need};
use crate::{Error, Result, Step, Watch};
use rustix::fs::{FallocateFlags, fallocate};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::RangeInclusive;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};

/// A kind of volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// ext4 with mke2fs's defaults and many small files: a hundred per directory on average, a few directories with
    /// thousands; 1 byte to 32 KiB, allocated but not written.
    ManyExt4,
    /// ext3, 80 % full, with sixteen files written concurrently and changed repeatedly: most files are fragmented.
    AgedExt3,
    /// The same on ext4.
    AgedExt4,
    /// ext4 with small files as in [`Kind::ManyExt4`], and one of 1 GiB, `large`, in its root.
    ReadExt4,
}

/// A random number generator with a fixed seed, so that a volume can be recreated.
type Random = fastrand::Rng;

/// Allowed numbers of files in a volume.
const FILES: RangeInclusive<u64> = 10..=100_000_000;

/// Seed of every volume.
const SEED: u64 = 0x0045_5854_414e_5400;
/// The UUID and the hash seed for mke2fs.
const UUID: &str = "6a7f3b58-0c1d-4e2f-8a9b-0123456789ab";
/// Bytes of the large file of [`Kind::ReadExt4`].
const LARGE: u64 = 1 << 30;

impl Kind {
    /// The default number of files.
    #[must_use]
    pub fn files(self) -> u64 {
        match self {
            Self::ManyExt4 => 150_000,
            Self::AgedExt3 | Self::AgedExt4 => 6_000,
            Self::ReadExt4 => 20_000,
        }
    }

    /// The name of this kind, for the names of volumes' files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::ManyExt4 => "many-ext4",
            Self::AgedExt3 => "aged-ext3",
            Self::AgedExt4 => "aged-ext4",
            Self::ReadExt4 => "read-ext4",
        }
    }

    fn format(self) -> &'static str {
        if self == Self::AgedExt3 { "ext3" } else { "ext4" }
    }

    /// The size in bytes of a volume with `files` files.
    fn size(self, files: u64) -> u64 {
        let bytes = match self {
            // mke2fs makes an inode for each 16 KiB
            Self::ManyExt4 => files.saturating_mul(44 << 10),
            Self::AgedExt3 | Self::AgedExt4 => files.saturating_mul(450 << 10),
            Self::ReadExt4 => files.saturating_mul(44 << 10).saturating_add(2 * LARGE),
        };
        bytes.max(64 << 20).next_multiple_of(1 << 20)
    }
}

/// Creates a volume of `kind` with about `files` files, from 10 to 100 million, in the file `path`, which is replaced.
/// `watch` receives the progress.
///
/// # Errors
/// [`Error::Unsupported`] without root or mke2fs; [`Error::Io`], for example where the disk is full.
pub fn make(kind: Kind, files: u64, path: &Path, watch: &Watch<'_>) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Err(Error::Unsupported("the kernel fills the volume, and mounting it there needs root".into()));
    }
    if !FILES.contains(&files) {
        return Err(Error::Failed(format!("a volume has {} to {} files, not {files}", FILES.start(), FILES.end())));
    }
    let mke2fs = need("mke2fs", "e2fsprogs")?;
    let size = kind.size(files);
    let what = format!("making {}: {} with {files} files, {} MiB", path.display(), kind.name(), size >> 20);
    watch(&Step { what: &what, done: 0, of: 1 });
    let _registered = interruption::file(path)?;
    let file = File::create(path).trying("make", path)?;
    or_removed(path, || {
        file.set_len(size).trying("make", path)?;
        drop(file);
        build(kind, files, path, &mke2fs)
    })
}

/// Does work on a new file, which is removed if the work fails: a partial volume is of no use.
fn or_removed(path: &Path, work: impl FnOnce() -> Result<()>) -> Result<()> {
    let outcome = work();
    if outcome.is_err() {
        // the first error is the one to report
        let _ = fs::remove_file(path);
    }
    outcome
}

/// Formats and fills the file.
fn build(kind: Kind, files: u64, path: &Path, mke2fs: &Path) -> Result<()> {
    let hash_seed = format!("hash_seed={UUID}");
    must(
        mke2fs,
        ["-q", "-F", "-t", kind.format(), "-U", UUID, "-E", &hash_seed]
            .map(AsRef::as_ref)
            .into_iter()
            .chain([path.as_os_str()]),
    )?;
    // the kernel would write inode tables in the background for minutes
    let mounted = Attached::by_kernel(path, Some(kind.format()), "loop,noinit_itable")?;
    let mut random = Random::with_seed(SEED);
    let filled = match kind {
        Kind::ManyExt4 => many(mounted.path(), files, &mut random),
        Kind::AgedExt3 | Kind::AgedExt4 => Ageing::new(mounted.path(), files, &mut random).and_then(Ageing::run),
        Kind::ReadExt4 => many(mounted.path(), files, &mut random).and_then(|()| large(&mounted.path().join("large"))),
    };
    filled.trying("fill", path)?;
    mounted.detach()
}

/// Many small files.
fn many(root: &Path, files: u64, random: &mut Random) -> io::Result<()> {
    const DEEPEST: usize = 6;
    let mut dirs = vec![(root.to_owned(), 0)];
    for number in 1..(files / 100).max(2) {
        let (parent, depth) = loop {
            let (path, depth) = &dirs[random.usize(..dirs.len())];
            if *depth < DEEPEST {
                break (path, *depth);
            }
        };
        let dir = parent.join(format!("folder-{number:x}"));
        fs::create_dir(&dir)?;
        dirs.push((dir, depth + 1));
    }
    // few directories have most of the files
    let weights: Vec<f64> = dirs.iter().map(|_| (1.0 - random.f64()).powf(-0.75).min(300.0)).collect();
    let unit = files as f64 / weights.iter().sum::<f64>();
    let mut order: Vec<usize> = (0..dirs.len()).collect();
    random.shuffle(&mut order);
    for which in order {
        let dir = &dirs[which].0;
        for number in 0..(weights[which] * unit).round() as u64 {
            let path = dir.join(name(number, random));
            match random.u32(..100) {
                0 => symlink("../somewhere/else", path)?,
                1..5 => drop(File::create_new(path)?),
                _ => {
                    let size = logarithmic(random, 1, 32 << 10);
                    fallocate(File::create_new(path)?, FallocateFlags::empty(), 0, size)?;
                }
            }
        }
    }
    Ok(())
}

/// The name of a file, of random length; unique in its directory, since the number follows the only hyphen.
fn name(number: u64, random: &mut Random) -> String {
    let letters: String = (0..random.usize(..14)).map(|_| random.lowercase()).collect();
    format!("{letters}-{number:x}.dat")
}

/// Writes a file that has to be read from the device.
fn large(path: &Path) -> io::Result<()> {
    let file = File::create_new(path)?;
    // not zero, and not the same everywhere
    let mut chunk: Vec<u8> = (0..1u32 << 20).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for at in (0..LARGE).step_by(chunk.len()) {
        chunk[..8].copy_from_slice(&at.to_le_bytes());
        file.write_all_at(&chunk, at)?;
    }
    file.sync_all()
}

/// A random number between `low` and `high`, log-uniformly distributed.
fn logarithmic(random: &mut Random, low: u64, high: u64) -> u64 {
    let (from, to) = ((low as f64).ln(), (high as f64).ln());
    ((from + random.f64() * (to - from)).exp() as u64).clamp(low, high)
}

/// Years of use.
struct Ageing<'a> {
    random: &'a mut Random,
    dirs: Vec<PathBuf>,
    files: Vec<Aged>,
    /// The target number of files.
    wanted: usize,
    /// Bytes in files.
    live: u64,
    /// At most this many bytes in files.
    limit: u64,
    next: u64,
}

/// A file that ages.
struct Aged {
    path: PathBuf,
    size: u64,
}

impl<'a> Ageing<'a> {
    /// The number of files that grow at once.
    const WRITERS: usize = 16;
    const LARGEST: u64 = 2 << 20;

    fn new(root: &Path, files: u64, random: &'a mut Random) -> io::Result<Self> {
        let dirs: Vec<PathBuf> = (0..(files / 100).max(1)).map(|dir| root.join(format!("folder-{dir}"))).collect();
        for dir in &dirs {
            fs::create_dir(dir)?;
        }
        let limit = files.saturating_mul(360 << 10);
        Ok(Self { random, dirs, files: Vec::new(), wanted: files as usize, live: 0, limit, next: 0 })
    }

    fn run(mut self) -> io::Result<()> {
        self.create(self.wanted)?;
        // eight changes for each file
        for _ in 0..self.wanted * 8 {
            let full = self.live > self.limit;
            let few = self.files.len() < self.wanted / 2;
            match self.random.u32(..100) {
                0..15 if !full && self.files.len() < self.wanted * 11 / 10 => self.create(1)?,
                15..65 if !full => self.append()?,
                65..80 => self.truncate()?,
                _ if few => self.create(1)?,
                80..100 => self.delete()?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Creates files, [`Self::WRITERS`] concurrently, each by several appends.
    fn create(&mut self, count: usize) -> io::Result<()> {
        let mut growing: Vec<(usize, u64)> = Vec::new();
        let mut started = 0;
        while started < count || !growing.is_empty() {
            if started < count && growing.len() < Self::WRITERS {
                let dir = self.random.usize(..self.dirs.len());
                let path = self.dirs[dir].join(format!("{:06x}.dat", self.next));
                self.next += 1;
                File::create_new(&path)?;
                growing.push((self.files.len(), logarithmic(self.random, 4096, Self::LARGEST)));
                self.files.push(Aged { path, size: 0 });
                started += 1;
            }
            let chosen = self.random.usize(..growing.len());
            let (which, target) = growing[chosen];
            let piece = logarithmic(self.random, 4096, 128 << 10).min(target - self.files[which].size);
            self.grow(which, piece)?;
            if self.files[which].size >= target || self.live > self.limit {
                growing.swap_remove(chosen);
            }
        }
        Ok(())
    }

    fn append(&mut self) -> io::Result<()> {
        let which = self.random.usize(..self.files.len());
        let piece = logarithmic(self.random, 4096, 128 << 10);
        if self.files[which].size < 2 * Self::LARGEST { self.grow(which, piece) } else { Ok(()) }
    }

    fn truncate(&mut self) -> io::Result<()> {
        let which = self.random.usize(..self.files.len());
        let file = &mut self.files[which];
        let size = self.random.u64(..=file.size);
        OpenOptions::new().write(true).open(&file.path)?.set_len(size)?;
        self.live -= file.size - size;
        file.size = size;
        Ok(())
    }

    fn delete(&mut self) -> io::Result<()> {
        let which = self.random.usize(..self.files.len());
        let file = self.files.swap_remove(which);
        self.live -= file.size;
        fs::remove_file(file.path)
    }

    /// Writes `piece` bytes at a file's end; sometimes synced, so that blocks are allocated in the order of the writes.
    fn grow(&mut self, which: usize, piece: u64) -> io::Result<()> {
        static ZEROS: [u8; 128 << 10] = [0; 128 << 10];
        let file = &mut self.files[which];
        let open = OpenOptions::new().write(true).open(&file.path)?;
        open.write_all_at(&ZEROS[..(piece as usize).min(ZEROS.len())], file.size)?;
        file.size += piece;
        self.live += piece;
        if self.random.u32(..10) == 0 { open.sync_data() } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn small_volumes_of_each_kind_are_consistent() {
        if !testkit::need(&["mke2fs", "e2fsck"]) {
            return;
        }
        if !testkit::tools::is_root() || !testkit::tools::has_loop() {
            testkit::tools::skip("mounting needs root and loop devices");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        for (kind, files) in [(Kind::ManyExt4, 1000), (Kind::AgedExt3, 60), (Kind::AgedExt4, 60)] {
            let path = folder.path().join(kind.name());
            make(kind, files, &path, &|_| {}).unwrap();
            let verdict = testkit::oracle::e2fsck(&path);
            assert!(verdict.clean, "{kind:?}: {}", verdict.text);
            assert!(fs::metadata(&path).unwrap().len() == kind.size(files));
        }
    }

    #[test]
    fn names_are_unique() {
        let mut random = Random::with_seed(SEED);
        let names: HashSet<String> = (0..300_000).map(|number| name(number, &mut random)).collect();
        assert_eq!(names.len(), 300_000);
    }

    #[test]
    fn a_partial_volume_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("volume");
        File::create(&path).unwrap();
        or_removed(&path, || Ok(())).unwrap();
        assert!(path.exists());
        or_removed(&path, || Err(Error::Failed("full".into()))).unwrap_err();
        assert!(!path.exists());
    }

    #[test]
    fn sizes_stay_in_their_bounds() {
        let mut random = Random::with_seed(1);
        assert!((0..1000).all(|_| (4096..=131_072).contains(&logarithmic(&mut random, 4096, 131_072))));
        assert_eq!(Kind::ManyExt4.size(1), 64 << 20);
        assert_eq!(Kind::AgedExt3.size(*FILES.end()) % (1 << 20), 0);
    }
}
