//! Strangers have descriptors of files created by a transaction that was rolled back, and continue to use them; makers
//! create files and folders meanwhile, which no other process may change.

use crate::looks::{self, bytes, fill};
use crate::members::{PUBLIC_FILES, PUBLIC_FOLDERS, public_file, public_folder};
use crate::world::{Actor, Ending, World};
use rustix::fs::{
    AtFlags, FallocateFlags, Mode, OFlags, Timespec, Timestamps, XattrFlags, fallocate, fchmod, fsetxattr, ftruncate,
    futimens, mkdirat, open, openat, unlinkat,
};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::time::Duration;
use testkit::Rng;

/// Maximum number of descriptors that a stranger has open.
const MAX_OPEN: usize = 80;
/// Maximum number of files and folders of a maker.
const MADE: usize = 30;

/// Uses descriptors of rolled-back files.
#[derive(Debug)]
pub(crate) struct Stranger {
    rng: Rng,
    /// The index of this stranger, and the number of strangers.
    part: (u64, u64),
    seen: u64,
    files: VecDeque<OwnedFd>,
    folders: VecDeque<OwnedFd>,
}

impl Stranger {
    pub(crate) fn new(rng: Rng, part: (u64, u64)) -> Self {
        Self { rng, part, seen: 0, files: VecDeque::new(), folders: VecDeque::new() }
    }

    /// Opens its share of the files created by the transaction.
    fn open(&mut self, world: &World, transaction: u64) {
        let (first, step) = self.part;
        for n in (first..PUBLIC_FILES).step_by(step as usize) {
            let flags = OFlags::RDWR | OFlags::CLOEXEC;
            if let Ok(file) = open(world.at(&public_file(transaction, n)), flags, Mode::empty()) {
                self.files.push_back(file);
            }
        }
        for n in (first..PUBLIC_FOLDERS).step_by(step as usize) {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            if let Ok(folder) = open(world.at(&public_folder(transaction, n)), flags, Mode::empty()) {
                self.folders.push_back(folder);
            }
        }
        self.files.drain(..self.files.len().saturating_sub(MAX_OPEN));
        self.folders.drain(..self.folders.len().saturating_sub(MAX_OPEN));
        world.log("stranger", format_args!("has {} descriptors", self.files.len() + self.folders.len()));
    }

    fn use_a_file(&mut self) -> (&'static str, Result<(), Errno>) {
        let file = &self.files[self.rng.index(self.files.len())];
        match self.rng.below(8) {
            0..=2 => ("fchmod", fchmod(file, Mode::from_raw_mode(0o666))),
            3 => ("pwrite", rustix::io::pwrite(file, b"A STRANGER WROTE THIS", 0).map(drop)),
            4 => ("ftruncate", ftruncate(file, 7)),
            5 => ("fsetxattr", fsetxattr(file, "user.stranger", b"was here", XattrFlags::empty())),
            6 => ("fallocate", fallocate(file, FallocateFlags::empty(), 0, 9000)),
            _ => {
                let time = Timespec { tv_sec: 1_000_000, tv_nsec: 7 };
                ("futimens", futimens(file, &Timestamps { last_access: time, last_modification: time }))
            }
        }
    }

    fn use_a_folder(&mut self) -> (&'static str, Result<(), Errno>) {
        let folder = &self.folders[self.rng.index(self.folders.len())];
        match self.rng.below(5) {
            0 => ("mkdirat", mkdirat(folder, "stranger-d", Mode::RWXU)),
            1 => ("unlinkat", unlinkat(folder, "in", AtFlags::empty())),
            2 => ("fchmod of a folder", fchmod(folder, Mode::from_raw_mode(0o777))),
            _ => {
                let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
                ("openat", openat(folder, "stranger-f", flags, Mode::RWXU).map(drop))
            }
        }
    }
}

impl Actor for Stranger {
    fn prepare(&mut self, _: &World) {}

    fn act(&mut self, world: &World) {
        while !world.stops() {
            let doomed = world.doomed();
            if doomed != 0 && doomed != self.seen {
                self.seen = doomed;
                self.open(world, doomed);
            }
            let done = match (self.files.is_empty(), self.folders.is_empty()) {
                (true, _) => None,
                (false, false) if self.rng.chance(25) => Some(self.use_a_folder()),
                _ => Some(self.use_a_file()),
            };
            if let Some((what, Ok(()))) = done {
                world.wrong("stale descriptor", format!("{what} works on a file created in a transaction rolled back"));
            }
            world.pause(Duration::from_micros(200 + self.rng.below(2000)));
        }
        self.files.clear();
        self.folders.clear();
    }

    fn verify(&mut self, _: &World, _: Ending) {}
}

/// A file or folder, by its number.
#[derive(Debug, Clone, Copy)]
struct Made {
    number: u64,
    is_folder: bool,
    synced: bool,
}

/// Creates files with mode 600 and folders with mode 700, and verifies them.
#[derive(Debug)]
pub(crate) struct Maker {
    name: String,
    rng: Rng,
    count: u64,
    made: VecDeque<Made>,
    maybe: Option<Made>,
}

impl Maker {
    pub(crate) fn new(name: &str, rng: Rng) -> Self {
        Self { name: name.to_owned(), rng, count: 0, made: VecDeque::new(), maybe: None }
    }

    fn path(&self, number: u64) -> String {
        format!("made/{}-{number}", self.name)
    }

    fn content(&self, number: u64) -> Vec<u8> {
        fill(&format!("{} alone writes {number}. ", self.name), 700)
    }

    fn make(&mut self, world: &World, made: &mut Made) -> io::Result<()> {
        let path = world.at(&self.path(made.number));
        let mut file = if made.is_folder {
            fs::DirBuilder::new().mode(0o700).create(&path)?;
            File::create(path.join("in"))?
        } else {
            fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?
        };
        file.set_permissions(Permissions::from_mode(0o600))?;
        file.write_all(&self.content(made.number))?;
        if made.synced {
            file.sync_all()?;
        }
        Ok(())
    }

    fn remove(&self, world: &World, made: Made) -> io::Result<()> {
        let path = world.at(&self.path(made.number));
        match made.is_folder {
            true => fs::remove_dir_all(path),
            false => fs::remove_file(path),
        }
    }

    /// The difference from the created state.
    fn difference(&self, world: &World, made: Made) -> io::Result<Option<String>> {
        let path = world.at(&self.path(made.number));
        let mut file = path.clone();
        if made.is_folder {
            let seen = looks::one(&path)?;
            if seen.mode != 0o40700 {
                return Ok(Some(format!("a folder's mode is {:o}", seen.mode)));
            }
            let names: Vec<_> =
                fs::read_dir(&path)?.map(|entry| entry.map(|e| e.file_name())).collect::<Result<_, _>>()?;
            if names != ["in"] {
                return Ok(Some(format!("a folder has {names:?}")));
            }
            file.push("in");
        }
        let seen = looks::one(&file)?;
        if (seen.mode, seen.links) != (0o100600, 1) {
            return Ok(Some(format!("mode {:o}, {} links", seen.mode, seen.links)));
        }
        let mut value = [0; 64];
        if rustix::fs::getxattr(&file, "user.stranger", &mut value[..]).is_ok() {
            return Ok(Some("it has a stranger's attribute".to_owned()));
        }
        Ok(bytes(&self.content(made.number), &looks::content_direct(&file)?))
    }

    fn look(&self, world: &World, made: Made, class: &'static str) {
        match self.difference(world, made) {
            Ok(None) => {}
            Ok(Some(difference)) => world.wrong(class, format!("{}: {difference}", self.path(made.number))),
            Err(e) => world.failed(&self.name, &format!("check of {}", made.number), &e),
        }
    }
}

impl Actor for Maker {
    fn prepare(&mut self, world: &World) {
        let _ = fs::create_dir(world.at("made"));
    }

    fn act(&mut self, world: &World) {
        while !world.stops() {
            self.count += 1;
            let is_folder = self.rng.chance(20);
            let mut made = Made { number: self.count, is_folder, synced: self.rng.chance(15) };
            match self.make(world, &mut made) {
                Ok(()) => self.made.push_back(made),
                Err(e) => {
                    world.failed(&self.name, &format!("make {}", made.number), &e);
                    if world.is_ending() {
                        self.maybe = Some(made);
                        return;
                    }
                }
            }
            if !self.made.is_empty() {
                let one = self.made[self.rng.index(self.made.len())];
                self.look(world, one, "foreign change");
            }
            if self.made.len() > MADE
                && let Some(oldest) = self.made.pop_front()
            {
                self.look(world, oldest, "foreign change");
                if let Err(e) = self.remove(world, oldest) {
                    world.failed(&self.name, "remove", &e);
                    if world.is_ending() {
                        return;
                    }
                }
            }
            world.pause(Duration::from_micros(self.rng.below(4000)));
        }
    }

    fn verify(&mut self, world: &World, ending: Ending) {
        for made in &self.made {
            if ending.is_orderly() || made.synced {
                self.look(world, *made, "lost");
            } else if let Ok(seen) = looks::one(&world.at(&self.path(made.number)))
                && ![0o40700, 0o100600, 0o100644].contains(&seen.mode)
            {
                world.wrong("foreign change", format!("{}: mode {:o}", self.path(made.number), seen.mode));
            }
        }
    }
}
