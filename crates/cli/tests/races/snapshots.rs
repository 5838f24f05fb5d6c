//! Snapshots that are taken, read and deleted during all other work: a snapshot shows the state at its creation, and a
//! deleted one cannot be read.

use crate::looks::{self, Tree, bytes, fill};
use crate::world::{Actor, Ending, World};
use std::fs::{self, File};
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use testkit::Rng;

/// Size of a read in bytes.
const BLOCK: usize = 64 << 10;
/// Blocks of the big file.
const BLOCKS: u64 = 256;
/// Threads that read while a snapshot is deleted.
const READERS: usize = 3;

/// A snapshot that exists for a while.
#[derive(Debug)]
struct Saved {
    name: String,
    version: u64,
    tree: Tree,
}

/// Takes and deletes snapshots of a folder that no other actor changes, and of a big file.
#[derive(Debug)]
pub(crate) struct Snapshots {
    rng: Rng,
    count: u64,
    version: u64,
    saved: Vec<Saved>,
    maybe: bool,
    /// Another process interfered, so the big file does not have all its blocks.
    torn: bool,
}

fn block(version: u64, number: u64) -> Vec<u8> {
    fill(&format!("version {version}, block {number}. "), BLOCK)
}

impl Snapshots {
    pub(crate) fn new(rng: Rng) -> Self {
        Self { rng, count: 0, version: 0, saved: Vec::new(), maybe: false, torn: false }
    }

    fn write_big(&mut self, world: &World) -> std::io::Result<()> {
        let path = world.at("s/big");
        let _ = fs::remove_file(&path);
        let mut file = File::create(&path)?;
        for number in 0..BLOCKS {
            file.write_all(&block(self.version, number))?;
        }
        file.sync_all()
    }

    fn change_small(&mut self, world: &World) -> std::io::Result<()> {
        for n in 0..self.rng.between(1, 5) {
            let path = world.at(&format!("s/small-{}", self.rng.below(6)));
            match self.rng.below(4) {
                0 => drop(fs::remove_file(&path)),
                _ => fs::write(&path, fill(&format!("small {}.{n}. ", self.version), self.rng.index(20_000)))?,
            }
        }
        Ok(())
    }

    fn snapshot(&self, world: &World, what: &str, name: &str) -> bool {
        let ran = world.run(&["snapshot".as_ref(), what.as_ref(), world.at("").as_os_str(), name.as_ref()]);
        world.log("snapshots", format_args!("{what} {name}: {:?}", ran.exit));
        let text = ran.text();
        let reachable = !world.is_ending() && !world.is_detached();
        if ran.exit != Some(0) && reachable && !text.contains("busy") && !text.contains("No space") {
            world.wrong("answer", format!("snapshot {what} {name}: {text}"));
        }
        ran.exit == Some(0)
    }

    /// Reads the big file of a snapshot, bypassing the page cache, until `stop` is set.
    fn read_on(world: &World, file: &File, version: u64, gone: &AtomicBool, stop: &AtomicBool, mut rng: Rng) {
        while !stop.load(Ordering::SeqCst) {
            let number = rng.below(BLOCKS);
            let was_gone = gone.load(Ordering::SeqCst);
            let Ok(seen) = looks::read_direct(file, number * BLOCK as u64, BLOCK) else { continue };
            if let Some(difference) = bytes(&block(version, number), &seen) {
                world.wrong("snapshot", format!("version {version}, block {number}: {difference}"));
            } else if was_gone {
                world.wrong("deleted snapshot", format!("version {version}, block {number} can still be read"));
            }
        }
    }

    /// Deletes a snapshot while it is read, and has its blocks reallocated.
    fn delete_read(&mut self, world: &World, name: &str) -> bool {
        let path = world.at(&format!(".extant/snapshots/{name}/s/big"));
        let (gone, stop) = (AtomicBool::new(false), AtomicBool::new(false));
        let Ok(files) = (0..READERS).map(|_| looks::open_direct(&path)).collect::<Result<Vec<_>, _>>() else {
            return self.snapshot(world, "delete", name);
        };
        let version = self.version;
        let rngs: Vec<_> = files.iter().map(|_| Rng::new(self.rng.next_u64())).collect();
        std::thread::scope(|scope| {
            for (file, rng) in files.iter().zip(rngs) {
                let (gone, stop) = (&gone, &stop);
                scope.spawn(move || Self::read_on(world, file, version, gone, stop, rng));
            }
            let _ = fs::remove_file(world.at("s/big"));
            world.syncfs();
            std::thread::sleep(Duration::from_millis(self.rng.below(50)));
            let deleted = self.snapshot(world, "delete", name);
            gone.store(deleted, Ordering::SeqCst);
            self.version += 1;
            // new content for its blocks
            if let Err(e) = self.write_big(world) {
                world.failed("snapshots", "the big file", &e);
                self.torn = true;
            }
            std::thread::sleep(Duration::from_millis(30));
            stop.store(true, Ordering::SeqCst);
            deleted
        })
    }

    /// Compares a snapshot with the recorded state.
    fn look(&self, world: &World, saved: &Saved) {
        let at = |name: &str| world.at(&format!(".extant/snapshots/{}/{name}", saved.name));
        let seen = looks::all(&at("s")).map(without_place);
        let difference = match seen {
            Ok(seen) => looks::differences(&saved.tree, &seen),
            Err(e) => Some(e.to_string()),
        };
        if world.is_ending() {
            return;
        }
        if let Some(difference) = difference {
            world.wrong("snapshot", format!("{} (version {}): {difference}", saved.name, saved.version));
        }
    }

    fn one(&mut self, world: &World) -> std::io::Result<()> {
        self.count += 1;
        if self.torn {
            self.write_big(world)?;
            self.torn = false;
        }
        self.change_small(world)?;
        let name = format!("snap{}", self.count);
        let mut tree = without_place(looks::all(&world.at("s"))?);
        self.maybe = true;
        let made = self.snapshot(world, "create", &name);
        self.maybe = !made;
        if !made {
            return Ok(());
        }
        if self.rng.chance(50) {
            self.maybe = true;
            self.maybe = !self.delete_read(world, &name);
        } else {
            // a big file in many snapshots would fill the volume
            tree.retain(|name, _| name != "big");
            self.saved.push(Saved { name, version: self.version, tree });
        }
        if !self.saved.is_empty() {
            let index = self.rng.index(self.saved.len());
            self.look(world, &self.saved[index]);
            if self.saved.len() > 3 {
                let old = self.saved.remove(index);
                self.maybe = !self.snapshot(world, "delete", &old.name);
            }
        }
        Ok(())
    }
}

/// Removes the differences of a snapshot: inode numbers, which contain its number, and the big file.
fn without_place(mut tree: Tree) -> Tree {
    tree.retain(|name, _| name != "big");
    tree.values_mut().for_each(|seen| seen.inode = 0);
    tree
}

impl Actor for Snapshots {
    fn prepare(&mut self, world: &World) {
        fs::create_dir(world.at("s")).unwrap();
        self.write_big(world).unwrap();
    }

    fn act(&mut self, world: &World) {
        while !world.stops() {
            if let Err(e) = self.one(world) {
                world.failed("snapshots", "change", &e);
                if world.is_ending() {
                    return;
                }
            }
            world.pause(Duration::from_millis(self.rng.below(40)));
        }
    }

    fn verify(&mut self, world: &World, _: Ending) {
        for saved in &self.saved {
            self.look(world, saved);
        }
    }
}
