//! Owners of files: only the thread that writes a file knows its content. Members of transactions that are rolled back
//! change these files too, which must not be visible afterwards.

use crate::looks::{self, bytes, fill};
use crate::world::{Actor, Ending, World};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat, openat};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::time::Duration;
use testkit::Rng;

/// The data of its owner that a file must contain.
#[derive(Debug, Default)]
struct Written {
    /// The data acknowledged by write(2).
    answered: Vec<u8>,
    /// The length of it acknowledged by fsync(2).
    synced: usize,
    /// The data being written when an error occurred.
    maybe: Vec<u8>,
}

impl Written {
    /// The first forbidden difference from the content found.
    fn compare(&self, seen: &[u8], ending: Ending) -> Option<String> {
        let all = [&self.answered[..], &self.maybe].concat();
        let least = if ending.is_orderly() { self.answered.len() } else { self.synced };
        if !all.starts_with(seen) {
            let expected = &all[..all.len().min(seen.len().max(least))];
            return bytes(expected, seen);
        }
        (seen.len() < least).then(|| {
            format!("{} bytes are there; write answered {}, fsync {}", seen.len(), self.answered.len(), self.synced)
        })
    }
}

/// Appends lines to a log (O_APPEND), or blocks to a file (pwrite), as fast as possible.
#[derive(Debug)]
pub(crate) struct Writer {
    name: String,
    appends: bool,
    rng: Rng,
    file: Option<File>,
    written: Written,
    count: u64,
    /// Number of writes per fsync, with a comparison of the whole file.
    syncs: u64,
}

impl Writer {
    pub(crate) fn new(name: &str, appends: bool, mut rng: Rng) -> Self {
        let syncs = rng.between(4, 60);
        Self { name: name.to_owned(), appends, rng, file: None, written: Written::default(), count: 0, syncs }
    }

    /// The next data: the repeated name and number.
    fn next(&mut self) -> Vec<u8> {
        self.count += 1;
        let tag = format!("{} writes {:08}. ", self.name, self.count);
        let length = if self.appends { 20 + self.rng.index(180) } else { 512 };
        let mut line = fill(&tag, length - 1);
        line.push(b'\n');
        line
    }

    fn write(&mut self, world: &World) -> bool {
        let line = self.next();
        let Some(file) = &self.file else { return false };
        let doomed = world.doomed();
        let wrote = match self.appends {
            true => (&mut &*file).write(&line),
            false => file.write_at(&line, self.written.answered.len() as u64),
        };
        match wrote {
            Ok(length) => {
                if length != line.len() || doomed != 0 {
                    world.log(&self.name, format_args!("wrote {length} of {} ({})", line.len(), self.count));
                }
                self.written.answered.extend(&line[..length]);
                // the kernel sends a write across a page boundary in two parts; the second may be there without an
                // answer
                self.written.maybe = line[length..].to_vec();
                if doomed != 0 {
                    world.look_after_rollback(doomed, &mut self.rng);
                }
                true
            }
            Err(e) => {
                let what = format!("write {} at {}", self.count, self.written.answered.len());
                world.failed(&self.name, &what, &e);
                if world.is_ending() && self.written.maybe.is_empty() {
                    self.written.maybe = line;
                }
                // another process blocks a member: try again
                !world.is_ending()
            }
        }
    }

    fn sync(&mut self, world: &World) {
        let Some(file) = &self.file else { return };
        let length = self.written.answered.len();
        match file.sync_all() {
            Ok(()) => self.written.synced = length,
            Err(e) => world.failed(&self.name, "fsync", &e),
        }
    }

    /// Between transactions the complete content must be visible, for all processes.
    fn look(&self, world: &World) {
        let found = world.in_calm(|| std::fs::read(world.at(&self.name)));
        match found {
            Some(Ok(seen)) => {
                if let Some(difference) = self.written.compare(&seen, Ending::Unmount) {
                    world.wrong("content", format!("{}: {difference}", self.name));
                }
            }
            Some(Err(e)) => world.failed(&self.name, "read", &e),
            None => {}
        }
    }
}

impl Actor for Writer {
    fn prepare(&mut self, world: &World) {
        let mut options = OpenOptions::new();
        let options = if self.appends { options.append(true) } else { options.write(true) };
        self.file = Some(options.create(true).open(world.at(&self.name)).unwrap());
    }

    fn act(&mut self, world: &World) {
        while !world.stops() {
            if !self.write(world) {
                break;
            }
            if self.count.is_multiple_of(self.syncs) {
                self.sync(world);
            }
            if self.count.is_multiple_of(37) {
                self.look(world);
            }
            world.pause(Duration::from_micros(self.rng.below(3000)));
        }
        self.file = None;
    }

    fn verify(&mut self, world: &World, ending: Ending) {
        match std::fs::read(world.at(&self.name)) {
            Ok(seen) => {
                if let Some(difference) = self.written.compare(&seen, ending) {
                    world.wrong("lost", format!("{}, after {ending:?}: {difference}", self.name));
                }
            }
            Err(e) => world.wrong("lost", format!("{}, after {ending:?}: {e}", self.name)),
        }
    }
}

/// Saves a document repeatedly: a new file is written, synced and renamed over it. It is always complete.
#[derive(Debug)]
pub(crate) struct Saver {
    name: String,
    rng: Rng,
    version: u64,
    durable: u64,
    maybe: u64,
}

impl Saver {
    pub(crate) fn new(name: &str, rng: Rng) -> Self {
        Self { name: name.to_owned(), rng, version: 0, durable: 0, maybe: 0 }
    }

    fn content(&self, version: u64) -> Vec<u8> {
        fill(&format!("{} is version {version}. ", self.name), 100 + (version * 977 % 9000) as usize)
    }

    fn save(&mut self, world: &World, version: u64) -> io::Result<()> {
        let new = world.at(&format!("{}.new", self.name));
        let mut file = File::create(&new)?;
        file.write_all(&self.content(version))?;
        file.sync_all()?;
        std::fs::rename(&new, world.at(&self.name))?;
        self.version = version;
        self.maybe = version;
        if self.rng.chance(40) {
            File::open(world.at(""))?.sync_all()?;
            self.durable = version;
        }
        Ok(())
    }

    fn look(&self, world: &World) {
        match world.in_calm(|| std::fs::read(world.at(&self.name))) {
            Some(Ok(seen)) => {
                if let Some(difference) = bytes(&self.content(self.version), &seen) {
                    world.wrong("document", format!("{}: {difference}", self.name));
                }
            }
            Some(Err(e)) => world.failed(&self.name, "read", &e),
            None => {}
        }
    }
}

impl Actor for Saver {
    fn prepare(&mut self, world: &World) {
        self.save(world, 1).unwrap();
        self.durable = 1;
    }

    fn act(&mut self, world: &World) {
        while !world.stops() {
            let next = self.version + 1;
            if let Err(e) = self.save(world, next) {
                world.failed(&self.name, "save", &e);
                if world.is_ending() {
                    self.maybe = next;
                    return;
                }
            }
            self.look(world);
            world.pause(Duration::from_millis(self.rng.below(12)));
        }
    }

    fn verify(&mut self, world: &World, ending: Ending) {
        let least = if ending.is_orderly() { self.version } else { self.durable };
        match std::fs::read(world.at(&self.name)) {
            Ok(seen) => {
                if !(least..=self.maybe).any(|version| seen == self.content(version)) {
                    let difference = bytes(&self.content(least), &seen).unwrap_or_default();
                    let range = format!("none of the versions {least} to {}", self.maybe);
                    world.wrong("document", format!("{}, after {ending:?}: {range}: {difference}", self.name));
                }
            }
            Err(e) => world.wrong("document", format!("{}, after {ending:?}: {e}", self.name)),
        }
    }
}

/// Files without a name, which sometimes get one for a while. Their space is freed (the round compares it).
#[derive(Debug)]
pub(crate) struct Nameless {
    rng: Rng,
    count: u64,
}

impl Nameless {
    pub(crate) fn new(rng: Rng) -> Self {
        Self { rng, count: 0 }
    }

    fn one(&mut self, world: &World) -> io::Result<()> {
        self.count += 1;
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let file: File = openat(CWD, world.at("nameless"), flags, Mode::RUSR | Mode::WUSR)?.into();
        let content = fill(&format!("nameless {}. ", self.count), 1 + self.rng.index(300_000));
        let written = file.write_at(&content, 0)?;
        let name = world.at(&format!("nameless/{}", self.count));
        let has_name = self.rng.chance(40);
        if has_name {
            let from = format!("/proc/self/fd/{}", file.as_raw_fd());
            linkat(CWD, from, CWD, &name, AtFlags::SYMLINK_FOLLOW)?;
        }
        let mut seen = vec![0; written];
        file.read_exact_at(&mut seen, 0)?;
        if let Some(difference) = bytes(&content[..written], &seen) {
            world.wrong("content", format!("a file without a name: {difference}"));
        }
        if has_name {
            let twice = looks::content_direct(&name)?;
            let length = twice.len();
            if content[..written.min(64 << 10)] != twice {
                world.wrong("content", format!("a file that got a name has {length} other bytes"));
            }
            std::fs::remove_file(&name)?;
        }
        Ok(())
    }
}

impl Actor for Nameless {
    fn prepare(&mut self, world: &World) {
        std::fs::create_dir(world.at("nameless")).unwrap();
    }

    fn act(&mut self, world: &World) {
        while !world.stops() {
            if let Err(e) = self.one(world) {
                world.failed("nameless", "a file without a name", &e);
                if world.is_ending() {
                    return;
                }
            }
            world.pause(Duration::from_millis(self.rng.below(30)));
        }
    }

    fn verify(&mut self, world: &World, ending: Ending) {
        let left = looks::all(&world.at("nameless")).map(|tree| tree.len()).unwrap_or(usize::MAX);
        // the last one, if it was killed, or if another error left it
        if ending == Ending::Unmount && left > 0 && !world.native {
            world.wrong("content", format!("{left} names are left that were removed"));
        }
    }
}
