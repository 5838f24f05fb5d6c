//! The same work by the kernel's ext4, on a loop device over a sparse file.
//!
//! 1. The volumes are mke2fs's: with its defaults, and with flexible groups as large as a metablockgroup and no copies
//!    of the superblock among them. Needs root.
//! 2. Requests are those to the loop device, after merging; their locations are compared with those of the bitmaps and
//!    the journal, found by Extant, as for Extant's own volumes. The kernel has no modelled disk, so there are no
//!    seconds.
//! 3. Where a generation of Extant closes, a transaction of the journal is committed, by fsync(2) of the directory or
//!    file changed last. The kernel also writes blocks to their locations when it wants to, and all of them at the end
//!    of a work, by syncfs(2); so its counts contain writes that Extant's journal defers beyond the end.
//! 4. Its cache is not limited to that of Extant: all bitmaps that it has read stay in memory.

use super::contents::Contents;
use super::disk::groups_per_flex;
use super::figures::{Figures, Free, Options, Worked};
use super::free_space;
use super::work::{BLOCK, COUNTED_ROUNDS, Job, Plan, ROUNDS, Tree};
use crate::block_events::BlockEvents;
use crate::error::Trying;
use crate::interruption;
use crate::mount::Attached;
use crate::process::{must, need};
use crate::{Error, Result};
use blockdev::{BlockDevice, FileDevice};
use rustix::fs::{FallocateFlags, fallocate, syncfs};
use std::cell::RefCell;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The kernel with mke2fs's defaults.
const DEFAULTS: &str = "kernel";
/// The kernel in the layout of the space maps.
const FLEXIBLE: &str = "kernel, flexible groups of 8 GiB";
/// The UUID and the hash seed for mke2fs.
const UUID: &str = "07070707-0707-0707-0707-070707070707";

/// Adds the kernel's figures. Without root, or where a step fails, the remaining ones are missing, and the reason is
/// added and passed to `say`.
pub(super) fn measure(options: &Options, figures: &mut Figures, say: &dyn Fn(&str)) {
    let missing = if rustix::process::geteuid().is_root() {
        [DEFAULTS, FLEXIBLE].into_iter().try_for_each(|layout| works(options, layout, figures, say)).err()
    } else {
        Some(Error::Unsupported("a mount needs root".into()))
    };
    if let Some(why) = missing {
        let sentence = format!("Figures of the kernel are missing: {why}.");
        say(&sentence);
        figures.kernel_missing = Some(sentence);
    }
}

/// All work on one layout.
fn works(options: &Options, layout: &'static str, figures: &mut Figures, say: &dyn Fn(&str)) -> Result<()> {
    let plan = Plan::of(options);
    for (files, name) in plan.postmarks() {
        say(&format!("{layout}: {name}"));
        let work = |image: &Image| image.measured(name, layout, |job| plan.postmark(job, files));
        figures.work.push(Image::with(options, layout, work)?);
    }
    Image::with(options, layout, |image| {
        for round in 1..=ROUNDS {
            let name = format!("trees and large files, round {round}");
            say(&format!("{layout}: {name}"));
            let worked = image.measured(name, layout, |job| plan.mixed(job, round))?;
            if round <= COUNTED_ROUNDS {
                figures.work.push(worked);
            }
        }
        figures.free.push(image.free(layout)?);
        Ok(())
    })
}

/// A volume in a file.
struct Image {
    path: PathBuf,
    contents: Contents,
}

impl Image {
    /// Runs `work` on a new volume in `options.dir`, which is removed afterwards.
    fn with<T>(options: &Options, layout: &str, work: impl FnOnce(&Self) -> Result<T>) -> Result<T> {
        let path = options.dir.join("maps.img");
        let _registered = interruption::file(&path)?;
        let outcome = Self::make(&path, layout, options.size).and_then(|image| work(&image));
        let removed = fs::remove_file(&path).trying("remove", &path);
        outcome.and_then(|outcome| removed.map(|()| outcome))
    }

    fn make(path: &Path, layout: &str, size: u64) -> Result<Self> {
        File::create(path).and_then(|file| file.set_len(size)).trying("make", path)?;
        let args = arguments(layout).into_iter().map(OsString::from).chain([path.as_os_str().to_owned()]);
        must(&need("mke2fs", "e2fsprogs")?, args)?;
        let contents = Contents::of(device(path)?)?;
        Ok(Self { path: path.to_owned(), contents })
    }

    /// Runs `job` on the newly mounted volume, and counts the requests until all of it is at its location.
    fn measured(
        &self,
        work: String,
        layout: &'static str,
        job: impl FnOnce(&mut Job<'_, Mounted>) -> Result<()>,
    ) -> Result<Worked> {
        // the kernel would write inode tables in the background
        let attached = Attached::by_kernel(&self.path, Some("ext4"), "loop,noinit_itable")?;
        let events = BlockEvents::of(&self.path)?;
        // the mount's own
        events.take();
        let mounted = Mounted::at(attached.path());
        job(&mut Job::new(&mounted))?;
        mounted.write_back()?;
        let seen = events.take();
        drop(events);
        attached.detach()?;
        let seen = seen.ok_or_else(|| Error::Failed("block events of the kernel were lost".into()))?;
        Ok(Worked::new(work, layout, self.contents.count(&seen), None))
    }

    /// The distribution of free space now.
    fn free(&self, layout: &'static str) -> Result<Free> {
        free_space::of(device(&self.path)?, layout)
    }
}

/// The volume of a file, for Extant to read.
fn device(path: &Path) -> Result<Arc<dyn BlockDevice>> {
    Ok(Arc::new(FileDevice::open(path, blockdev::OpenOptions::default())?))
}

/// The arguments of mke2fs.
fn arguments(layout: &str) -> Vec<String> {
    // tables are not written by Extant's mkfs either
    let lazy = format!("lazy_itable_init=1,lazy_journal_init=1,nodiscard,hash_seed={UUID}");
    let (flexible, extended) = if layout == FLEXIBLE {
        let groups = groups_per_flex(BLOCK).to_string();
        // mke2fs reads the number of copies only with this feature
        let features = "sparse_super2,^resize_inode".to_owned();
        (vec!["-G".to_owned(), groups, "-O".to_owned(), features], format!("num_backup_sb=0,{lazy}"))
    } else {
        (Vec::new(), lazy)
    };
    let block_size = BLOCK.to_string();
    let plain = ["-q", "-F", "-t", "ext4", "-b", &block_size, "-U", UUID, "-E", &extended].map(str::to_owned);
    plain.into_iter().chain(flexible).collect()
}

/// A volume that the kernel has mounted.
struct Mounted {
    root: PathBuf,
    /// The directory or file changed last.
    changed: RefCell<PathBuf>,
}

impl Mounted {
    /// The volume mounted on a directory.
    fn at(root: &Path) -> Self {
        Self { root: root.to_owned(), changed: RefCell::new(root.to_owned()) }
    }

    fn note(&self, changed: &Path) {
        changed.clone_into(&mut self.changed.borrow_mut());
    }

    /// Writes all blocks to their locations.
    fn write_back(&self) -> Result<()> {
        syncfs(File::open(&self.root).trying("open", &self.root)?).trying("sync", &self.root)
    }
}

impl Tree for Mounted {
    type Node = PathBuf;

    fn top(&self) -> PathBuf {
        self.root.clone()
    }

    fn new_dir(&self, parent: &PathBuf, name: &str) -> Result<PathBuf> {
        let path = parent.join(name);
        fs::create_dir(&path).trying("make", &path)?;
        self.note(parent);
        Ok(path)
    }

    fn new_file(&self, parent: &PathBuf, name: &str) -> Result<PathBuf> {
        let path = parent.join(name);
        File::create_new(&path).trying("make", &path)?;
        self.note(parent);
        Ok(path)
    }

    fn fill(&self, file: &PathBuf, from: u64, bytes: u64) -> Result<()> {
        let open = OpenOptions::new().write(true).open(file).trying("open", file)?;
        fallocate(&open, FallocateFlags::empty(), from, bytes).trying("allocate blocks of", file)?;
        self.note(file);
        Ok(())
    }

    fn remove(&self, parent: &PathBuf, name: &str) -> Result<()> {
        let path = parent.join(name);
        fs::remove_file(&path).trying("remove", &path)?;
        self.note(parent);
        Ok(())
    }

    fn commit(&self) -> Result<()> {
        let changed = self.changed.borrow();
        File::open(&*changed).and_then(|file| file.sync_all()).trying("sync", &changed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bitmaps_of_mke2fs_are_found_in_both_layouts() {
        if !testkit::need(&["mke2fs"]) {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let options = Options { dir: dir.path().to_owned(), size: 256 << 20, seed: 1 };
        let bitmaps = |layout| Image::with(&options, layout, |image| Ok(image.contents.allocation())).unwrap();
        let [usual, flexible] = [DEFAULTS, FLEXIBLE].map(bitmaps);
        // groups of 8 MiB, whose bitmaps are contiguous in each flexible group
        let runs = |bitmaps: &[u64]| 1 + bitmaps.windows(2).filter(|pair| pair[1] != pair[0] + 1024).count();
        assert_eq!((usual.len(), runs(&usual)), (32, 2));
        assert_eq!((flexible.len(), runs(&flexible)), (32, 1));
        assert!(dir.path().read_dir().unwrap().next().is_none());
    }

    #[test]
    fn work_on_a_directory_leaves_the_files_that_it_did_not_remove() {
        let dir = tempfile::tempdir().unwrap();
        let mounted = Mounted::at(dir.path());
        let options = Options { dir: dir.path().to_owned(), size: 1 << 29, seed: 1 };
        Plan::of(&options).postmark(&mut Job::new(&mounted), 40).unwrap();
        mounted.commit().unwrap();
        let files = dir.path().join("s0").read_dir().unwrap();
        let lengths: Vec<u64> = files.map(|file| file.unwrap().metadata().unwrap().len()).collect();
        // 20 transactions make and remove about as many
        assert!((20..=60).contains(&lengths.len()) && lengths.iter().all(|bytes| *bytes >= 500), "{lengths:?}");
    }
}
