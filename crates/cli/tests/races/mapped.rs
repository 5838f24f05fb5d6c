//! A mapped file: a helper process changes its pages, others read and copy it, and msync(2) and fsync(2) must be
//! effective.

use crate::agent::Agent;
use crate::looks;
use crate::members::MEMBERS_PAGES;
use crate::world::{Actor, Ending, World};
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::Duration;
use testkit::Rng;

const PAGE: u64 = 4096;
/// Number of pages of the file; the owner does not change those that members change.
const PAGES: u64 = 64;
/// Length in bytes of the stamp at the start of a page.
const STAMP: usize = 64;

/// A value that is not the phase of any transaction.
const NEVER: u64 = u64::MAX;

/// The expected content of a page.
#[derive(Debug, Clone, Copy, Default)]
struct Page {
    /// The newest number written.
    newest: u64,
    /// The newest number that is durable.
    synced: u64,
    /// The world's phase at that write.
    phase: u64,
}

/// The owner of a mapped file.
#[derive(Debug)]
pub(crate) struct Mapper {
    name: String,
    rng: Rng,
    count: u64,
    pages: Vec<Page>,
}

impl Mapper {
    pub(crate) fn new(name: &str, rng: Rng) -> Self {
        Self { name: name.to_owned(), rng, count: 0, pages: vec![Page::default(); PAGES as usize] }
    }

    fn put(&mut self, world: &World, agent: &mut Agent) -> Option<()> {
        let at = self.rng.below(MEMBERS_PAGES.start);
        self.count += 1;
        // if a transaction begins in between, the write belongs to either phase
        let before = world.phase();
        let answer = agent.ask(&format!("put {at} {}:{at}:{}", self.name, self.count))?;
        let after = world.phase();
        let phase = if before == after { before } else { after | 1 };
        if answer == "ok" {
            self.pages[at as usize] = Page { newest: self.count, phase, ..self.pages[at as usize] };
        }
        Some(())
    }

    /// Calls msync(2) or fsync(2). On success everything written before is durable, unless it was part of a transaction
    /// rolled back since.
    fn sync(&mut self, world: &World, agent: &mut Agent) -> Option<()> {
        let (phase, doomed) = (world.phase(), world.doomed());
        let how = *self.rng.pick(&["msync", "fsync"]);
        let answer = agent.ask(how)?;
        world.log(&self.name, format_args!("{how}: {answer} (doomed transaction: {doomed}, then {})", world.doomed()));
        if answer != "ok" {
            // the error reported that they may be lost: later answers do not cover them
            self.pages.iter_mut().filter(|page| page.synced < page.newest).for_each(|page| page.phase = NEVER);
            return Some(());
        }
        // a terminated server rolls back the running transaction
        let within = doomed != 0 && world.doomed() == doomed && !world.is_ending();
        for page in &mut self.pages {
            let calm = page.phase.is_multiple_of(2) && page.phase == phase;
            let in_transaction = within && (page.phase == phase || page.phase.checked_add(1) == Some(phase));
            if calm || in_transaction {
                page.synced = page.newest;
            }
        }
        Some(())
    }

    /// The error in the content of a page, if any.
    fn difference(&self, at: u64, seen: &[u8], exactly: bool) -> Option<String> {
        let page = self.pages[at as usize];
        let text = String::from_utf8_lossy(seen);
        let text = text.trim_end_matches(['.', '\0']);
        let number = match text.strip_prefix(&format!("{}:{at}:", self.name)) {
            Some(number) => number.parse().ok(),
            None if text.is_empty() => Some(0),
            None => None,
        };
        let least = if exactly { page.newest } else { page.synced };
        let right = number.is_some_and(|number| (least..=page.newest).contains(&number));
        (!right).then(|| {
            format!(
                "{}, page {at} is \"{}\", should be {least} to {} (durable: {})",
                self.name,
                text.escape_debug(),
                page.newest,
                page.synced
            )
        })
    }

    /// Reads a file as cp(1) does, without the content of holes.
    fn copy(file: &File) -> io::Result<Vec<u8>> {
        let mut all = vec![0; (PAGES * PAGE) as usize];
        let mut at = 0;
        loop {
            let from = match seek(file, SeekFrom::Data(at)) {
                Ok(from) => from,
                Err(Errno::NXIO) => return Ok(all),
                Err(e) => return Err(e.into()),
            };
            let to = seek(file, SeekFrom::Hole(from))?.min(PAGES * PAGE);
            file.read_exact_at(&mut all[from as usize..to as usize], from)?;
            at = to;
        }
    }

    /// Reads and compares all pages, in calm only: then the owner's writes are there, and those of members are not.
    fn look(&self, world: &World, way: u64) {
        let path = world.at(&self.name);
        let _ = world.in_calm(|| {
            let phase = world.phase();
            let found = File::open(&path).and_then(|file| match way {
                0 => Self::copy(&file),
                _ => {
                    let mut all = vec![0; (PAGES * PAGE) as usize];
                    file.read_exact_at(&mut all, 0).map(|()| all)
                }
            });
            match found {
                Ok(all) => self.compare(world, &all, phase, way == 0),
                Err(e) => world.failed(&self.name, "read", &e),
            }
        });
    }

    fn compare(&self, world: &World, all: &[u8], phase: u64, copied: bool) {
        let class = if copied { "copy of mapped" } else { "mapped" };
        for (at, page) in all.chunks(PAGE as usize).enumerate() {
            let at = at as u64;
            if MEMBERS_PAGES.contains(&at) {
                if let Some(from) = page.iter().position(|byte| *byte != 0) {
                    let text = String::from_utf8_lossy(&page[from..from + STAMP / 2]).escape_debug().to_string();
                    let what = "a change by a member through a mapping is there after the rollback";
                    world.wrong("mapped by a member", format!("{}, page {at}: {what}: {text}", self.name));
                }
                continue;
            }
            let exactly = self.pages[at as usize].phase == phase && phase.is_multiple_of(2);
            if let Some(difference) = self.difference(at, &page[..STAMP], exactly) {
                world.wrong(class, difference);
            }
        }
    }

    fn work(&mut self, world: &World, agent: &mut Agent) -> Option<()> {
        while !world.stops() {
            match self.rng.below(10) {
                0..=5 => self.put(world, agent)?,
                6 | 7 => self.sync(world, agent)?,
                _ => {
                    let way = self.rng.below(2);
                    self.look(world, way);
                }
            }
            world.pause(Duration::from_millis(self.rng.below(8)));
        }
        Some(())
    }
}

impl Actor for Mapper {
    fn prepare(&mut self, world: &World) {
        let file = File::create(world.at(&self.name)).unwrap();
        file.set_len(PAGES * PAGE).unwrap();
    }

    fn act(&mut self, world: &World) {
        let path = world.at(&self.name);
        let mut agent = Agent::start(world, "map", &[&path, PAGES.to_string().as_ref()]);
        let worked = agent.line().and_then(|_| self.work(world, &mut agent));
        // a page that can no longer be read ends the helper (SIGBUS)
        if worked.is_none() && !world.is_ending() {
            world.wrong("answer", format!("{}: the process that has it mapped has died", self.name));
        }
    }

    fn verify(&mut self, world: &World, ending: Ending) {
        match std::fs::read(world.at(&self.name)) {
            Ok(all) if all.len() as u64 == PAGES * PAGE => self.compare(world, &all, 1, false),
            Ok(all) => world.wrong("mapped", format!("{}, after {ending:?}: {} bytes", self.name, all.len())),
            Err(e) => world.wrong("mapped", format!("{}, after {ending:?}: {e}", self.name)),
        }
    }
}

/// Threads with flock(2), and processes with fcntl(2), that increment a number in turn.
#[derive(Debug)]
pub(crate) struct Counters {
    rng: Rng,
    helpers: u64,
    added: u64,
    all_known: bool,
}

impl Counters {
    pub(crate) fn new(rng: Rng) -> Self {
        Self { rng, helpers: 2, added: 0, all_known: true }
    }

    /// Increments the number under flock(2), in two concurrent threads.
    fn add(world: &World, path: &std::path::Path, mut rng: Rng) -> (u64, bool) {
        let Ok(file) = std::fs::OpenOptions::new().read(true).write(true).open(path) else { return (0, false) };
        let mut added = 0;
        while !world.stops() {
            if file.lock().is_err() {
                return (added, false);
            }
            let result = (|| {
                let mut digits = [0; 8];
                file.read_exact_at(&mut digits, 0)?;
                let text = std::str::from_utf8(&digits).map_err(io::Error::other)?;
                let number: u64 = text.parse().map_err(io::Error::other)?;
                file.write_all_at(format!("{:08}", number + 1).as_bytes(), 0)
            })();
            let _ = file.unlock();
            match result {
                Ok(()) => added += 1,
                Err(e) if world.is_ending() => {
                    world.log("counters", e);
                    return (added, false);
                }
                Err(e) => world.failed("counters", "add", &e),
            }
            world.pause(Duration::from_micros(500 + rng.below(3000)));
        }
        (added, true)
    }
}

impl Actor for Counters {
    fn prepare(&mut self, world: &World) {
        for name in ["flock", "fcntl"] {
            std::fs::write(world.at(name), "00000000").unwrap();
        }
    }

    fn act(&mut self, world: &World) {
        let (flock, fcntl) = (world.at("flock"), world.at("fcntl"));
        let mut agents: Vec<_> = (0..self.helpers).map(|_| Agent::start(world, "count", &[&fcntl])).collect();
        let results: Vec<_> = std::thread::scope(|scope| {
            let rngs = [Rng::new(self.rng.next_u64()), Rng::new(self.rng.next_u64())];
            let threads = rngs.map(|rng| scope.spawn(|| Self::add(world, &flock, rng)));
            threads.into_iter().map(|thread| thread.join().expect("a thread that counts")).collect()
        });
        let (added, known): (Vec<_>, Vec<_>) = results.into_iter().unzip();
        let by_helpers: Vec<Option<u64>> =
            agents.iter_mut().map(|agent| agent.finish().and_then(|line| line.parse().ok())).collect();
        if !world.is_ending() {
            let number = std::fs::read_to_string(&flock).ok().and_then(|text| text.parse().ok());
            if number != Some(added.iter().sum::<u64>()) && known.iter().all(|known| *known) {
                world.wrong("lock", format!("flock: the number is {number:?}, {added:?} were added"));
            }
            let number = std::fs::read_to_string(&fcntl).ok().and_then(|text| text.parse().ok());
            if number != by_helpers.iter().copied().sum::<Option<u64>>() {
                world.wrong("lock", format!("fcntl: the number is {number:?}, {by_helpers:?} were added"));
            }
        }
        self.added = added.iter().sum();
        self.all_known = known.iter().all(|known| *known);
    }

    fn verify(&mut self, world: &World, ending: Ending) {
        let text = looks::content_direct(&world.at("flock")).unwrap_or_default();
        let number = String::from_utf8_lossy(&text).parse().unwrap_or(u64::MAX);
        let least = if ending.is_orderly() { self.added } else { 0 };
        let most = self.added + if self.all_known { 0 } else { 2 };
        if !(least..=most).contains(&number) {
            world.wrong("lost", format!("flock, after {ending:?}: {number}, should be {least} to {most}"));
        }
    }
}
