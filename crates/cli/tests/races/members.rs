//! Consecutive transactions: some are committed, the others fail, exceed their time limit or are killed, and all
//! changes of those must be undone.

use crate::agent;
use crate::looks::{self, Tree, fill};
use crate::world::{Actor, Ending, STUCK, World, extant};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use testkit::Rng;

/// Files and folders that each transaction creates for all to open, if it is to be rolled back.
pub(crate) const PUBLIC_FILES: u64 = 24;
pub(crate) const PUBLIC_FOLDERS: u64 = 6;
/// Files that only rolled-back transactions change.
const VICTIMS: u64 = 8;
/// Pages of a mapped file that members may change.
pub(crate) const MEMBERS_PAGES: std::ops::Range<u64> = 48..56;
/// A victim with eight empty pages.
const MAPPED_VICTIM: &str = "v/map";
/// Time limit of a transaction with a short one (whole seconds).
const LIMIT: Duration = Duration::from_secs(1);
/// Time limit of the others. They need a second; a member that waits for a process that waits for the transaction,
/// without help, exhausts the limit.
const LONGEST: Duration = Duration::from_secs(20);

pub(crate) fn public_file(transaction: u64, n: u64) -> String {
    format!("pub/{transaction}-f{n}")
}

pub(crate) fn public_folder(transaction: u64, n: u64) -> String {
    format!("pub/{transaction}-d{n}")
}

/// The way in which a transaction ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Commit,
    Fail,
    TooLong,
    MemberKilled,
    Killed,
}

/// The entries of the members' own folder: modes and content.
type Own = BTreeMap<String, (u32, Vec<u8>)>;

/// Runs transactions.
#[derive(Debug)]
pub(crate) struct Members {
    rng: Rng,
    count: u64,
    own: Own,
    /// The alternative content after an interrupted commit.
    maybe: Option<Own>,
    victims: Tree,
    /// Files of other actors, which change them continuously: logs, documents and mapped files.
    shared: Vec<String>,
    mapped: Vec<String>,
}

/// The operations of a member, one per line.
struct Script(String);

impl Script {
    fn add(&mut self, words: &[&str]) {
        self.0 += &words.join("\t");
        self.0.push('\n');
    }
}

impl Members {
    pub(crate) fn new(rng: Rng, shared: Vec<String>, mapped: Vec<String>) -> Self {
        Self { rng, count: 0, own: Own::new(), maybe: None, victims: Tree::new(), shared, mapped }
    }

    /// Operations in the members' own folder; returns its content after them.
    fn own_operations(&mut self, world: &World, script: &mut Script, number: u64) -> Own {
        let mut own = self.own.clone();
        let at = |name: &str| world.at(&format!("m/{name}")).to_str().unwrap().to_owned();
        for n in 0..self.rng.between(3, 14) {
            let tag = format!("transaction {number}, step {n}. ");
            let names: Vec<_> = own.keys().cloned().collect();
            let new = format!("f{}", self.rng.below(12));
            let old = self.rng.pick(&names).clone();
            let length = self.rng.magnitude(40_000) as usize;
            let text = length.to_string();
            match self.rng.below(9) {
                0 | 1 => {
                    script.add(&["create", &at(&new), "640", &tag, &text]);
                    own.insert(new, (0o640, fill(&tag, length)));
                }
                2 => {
                    script.add(&["append", &at(&old), &tag, &text]);
                    own.get_mut(&old).unwrap().1.extend(fill(&tag, length));
                }
                3 => {
                    let content = &mut own.get_mut(&old).unwrap().1;
                    let size = self.rng.index(content.len() * 2 + 1);
                    script.add(&["truncate", &at(&old), &size.to_string()]);
                    content.resize(size, 0);
                }
                4 => {
                    let content = &mut own.get_mut(&old).unwrap().1;
                    let from = self.rng.index(content.len() + 1);
                    script.add(&["write", &at(&old), &from.to_string(), &tag, &text]);
                    content.resize(content.len().max(from + length), 0);
                    content[from..from + length].copy_from_slice(&fill(&tag, length));
                }
                5 if new != old => {
                    script.add(&["rename", &at(&old), &at(&new)]);
                    let moved = own.remove(&old).unwrap();
                    own.insert(new, moved);
                }
                6 if own.len() > 2 => {
                    script.add(&["unlink", &at(&old)]);
                    own.remove(&old);
                }
                7 => {
                    let mode = *self.rng.pick(&[0o600, 0o644, 0o755]);
                    script.add(&["chmod", &at(&old), &format!("{mode:o}")]);
                    own.get_mut(&old).unwrap().0 = mode;
                }
                _ => script.add(&["fsync", &at(&old)]),
            }
        }
        own
    }

    /// Operations that must be undone: on files that never change, and on files that belong to others.
    fn doomed_operations(&mut self, world: &World, script: &mut Script, number: u64, kind: Kind) {
        let at = |name: &str| world.at(name).to_str().unwrap().to_owned();
        for n in 0..PUBLIC_FILES {
            script.add(&["create", &at(&public_file(number, n)), "666", "never was. ", "300"]);
        }
        for n in 0..PUBLIC_FOLDERS {
            let folder = at(&public_folder(number, n));
            script.add(&["mkdir", &folder]);
            script.add(&["chmod", &folder, "777"]);
        }
        for n in 0..self.rng.between(4, 12) {
            let tag = format!("<undone {number}.{n}> ");
            let length = self.rng.magnitude(9000).to_string();
            let victim = match self.rng.chance(50) {
                true => at(&format!("v/x{}", self.rng.below(VICTIMS))),
                false => at(&self.rng.pick(&self.shared).clone()),
            };
            match self.rng.below(10) {
                0..=2 => script.add(&["append", &victim, &tag, &length]),
                3 | 4 => script.add(&["truncate", &victim, &self.rng.below(300).to_string()]),
                5 => script.add(&["write", &victim, &self.rng.below(200).to_string(), &tag, &length]),
                6 => {
                    let new = at(&format!("v/new{n}"));
                    script.add(&["create", &new, "611", &tag, &length]);
                    script.add(&["rename", &new, &victim]);
                }
                7 => script.add(&["unlink", &victim]),
                8 => script.add(&["link", &victim, &at(&format!("v/link{n}"))]),
                _ => script.add(&["chmod", &victim, "777"]),
            }
        }
        // stores in a mapping after the rollback count as those of any process: none if the rollback may come first
        if kind != Kind::TooLong && self.rng.chance(60) {
            // a file that others sync continuously, or one that is never synced
            let (file, pages) = match self.rng.chance(50) {
                true => (at(&self.rng.pick(&self.mapped).clone()), MEMBERS_PAGES),
                false => (at(MAPPED_VICTIM), 0..8),
            };
            let (page, tag) = (self.rng.between(pages.start, pages.end - 1), format!("<mapped-{number}>"));
            script.add(&["map", &file, &page.to_string(), &tag, &self.rng.between(0, 400).to_string()]);
        }
    }

    fn start(&self, world: &World, kind: Kind, number: u64, files: &[PathBuf; 3]) -> Child {
        let mut command = extant();
        let seconds = if kind == Kind::TooLong { LIMIT } else { LONGEST };
        command.args(["txn", "--rollback-on-failure", "--timeout", &seconds.as_secs().to_string()]);
        command.arg(world.at("")).arg("--").arg(agent::python()).args(agent::FLAGS).arg(world.outside(agent::SCRIPT));
        command.arg("member").args(files).stdin(Stdio::null());
        let log = fs::File::create(world.outside("txn.log")).unwrap();
        world.log("members", format_args!("transaction {number} begins: {kind:?}"));
        command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap()
    }

    /// Runs one transaction and compares the result. No other actor checks its files meanwhile.
    fn one(&mut self, world: &World) {
        self.count += 1;
        let number = self.count;
        let kind = *self.rng.pick(&[
            Kind::Commit,
            Kind::Commit,
            Kind::Commit,
            Kind::Fail,
            Kind::Fail,
            Kind::Fail,
            Kind::MemberKilled,
            Kind::Killed,
            Kind::TooLong,
        ]);
        let mut script = Script(String::new());
        let after = self.own_operations(world, &mut script, number);
        if kind != Kind::Commit {
            self.doomed_operations(world, &mut script, number, kind);
        }
        script.add(&["ready"]);
        script.add(&["wait"]);
        if kind == Kind::TooLong {
            script.add(&["create", world.at("m/late").to_str().unwrap(), "600", "too late. ", "20"]);
        }
        script.add(&["exit", if kind == Kind::Commit { "0" } else { "3" }]);
        // a script with a failed operation must not be committed
        let text = if kind == Kind::Commit { script.0.replace("exit\t0\n", "") } else { script.0 };
        let files = ["script", "ready", "go"].map(|name| world.outside(&format!("{name}-{number}")));
        fs::write(&files[0], text).unwrap();
        let before = (kind != Kind::Commit).then(|| looks::all(&world.at("m")));
        let mut child = self.start(world, kind, number, &files);
        let begun = Instant::now();
        let status = self.run(world, kind, number, &mut child, begun, &files);
        world.set_doomed(0);
        if begun.elapsed() >= LONGEST && !world.is_ending() {
            world.wrong("stuck member", format!("transaction {number} ({kind:?}) took {:?}", begun.elapsed()));
        }
        world.log("members", format_args!("transaction {number} ended: {status:?}"));
        if kind == Kind::Killed && !world.is_ending() {
            // the server rolls it back: a process that changes something waits for that, or gets EBUSY
            while let Err(e) = fs::write(world.at("gate"), number.to_string()) {
                world.failed("members", "a change after a kill", &e);
                if e.kind() != ErrorKind::ResourceBusy {
                    break;
                }
            }
        }
        files.iter().for_each(|file| drop(fs::remove_file(file)));
        self.conclude(world, kind, number, status, after, before);
    }

    fn run(
        &mut self,
        world: &World,
        kind: Kind,
        number: u64,
        child: &mut Child,
        begun: Instant,
        files: &[PathBuf; 3],
    ) -> Option<ExitStatus> {
        let [_, ready, go] = files;
        while !ready.exists() && child.try_wait().unwrap().is_none() && begun.elapsed() < STUCK {
            std::thread::sleep(Duration::from_millis(3));
        }
        let member = fs::read_to_string(ready).ok().and_then(|text| text.parse().ok()).and_then(Pid::from_raw);
        let most = if kind == Kind::TooLong { LIMIT } else { LONGEST };
        // so that it certainly runs while it is marked as doomed
        let in_time = begun.elapsed() < most / 2;
        if kind != Kind::Commit && member.is_some() && in_time {
            world.set_doomed(number);
        }
        if kind == Kind::TooLong {
            std::thread::sleep((LIMIT * 8 / 10).saturating_sub(begun.elapsed()));
            world.set_doomed(0);
            std::thread::sleep((LIMIT * 13 / 10).saturating_sub(begun.elapsed()));
        } else if member.is_some() {
            std::thread::sleep(Duration::from_millis(self.rng.below(160)));
        }
        world.set_doomed(0);
        match (kind, member) {
            (Kind::MemberKilled, Some(member)) => drop(kill_process(member, Signal::KILL)),
            (Kind::Killed, Some(_)) => child.kill().unwrap(),
            _ => fs::write(go, "").unwrap(),
        }
        let until = Instant::now() + STUCK;
        loop {
            match child.try_wait().unwrap() {
                Some(status) => return Some(status),
                None if Instant::now() > until => {
                    world.wrong("stuck", format!("transaction {number} ({kind:?}) does not end"));
                    child.kill().unwrap();
                    return child.wait().ok();
                }
                None => std::thread::sleep(Duration::from_millis(2)),
            }
        }
    }

    /// Compares the actual with the expected state.
    fn conclude(
        &mut self,
        world: &World,
        kind: Kind,
        number: u64,
        status: Option<ExitStatus>,
        after: Own,
        before: Option<std::io::Result<Tree>>,
    ) {
        let log = || fs::read_to_string(world.outside("txn.log")).unwrap_or_default();
        if kind == Kind::Commit {
            if status.is_some_and(|status| status.success()) {
                self.own = after;
            } else if world.is_ending() {
                self.maybe = Some(after);
                return;
            } else if !world.is_detached() {
                // nothing remains of a transaction that is unmounted meanwhile
                return world.wrong("answer", format!("transaction {number} is not committed: {status:?}: {}", log()));
            }
            self.look(world, "after a commit", "not committed");
            return;
        }
        if status.is_some_and(|status| status.success()) && !world.is_ending() {
            return world.wrong("answer", format!("transaction {number} ({kind:?}) succeeds: {}", log()));
        }
        let when = format!("transaction {number} ({kind:?}) was rolled back");
        let (Some(Ok(before)), now) = (before, looks::all(&world.at("m"))) else { return };
        match now {
            _ if world.is_ending() => return,
            Ok(now) => {
                if let Some(difference) = looks::differences(&before, &now) {
                    return world.wrong("not undone", format!("{when}: m/{difference}"));
                }
            }
            Err(e) => return world.failed("members", &when, &e),
        }
        self.look(world, &when, "not undone");
    }

    /// Compares the members' own files, and the victims, with the model.
    fn look(&self, world: &World, when: &str, class: &'static str) {
        let difference = self.own_difference(world, &self.own).or_else(|| self.victims_difference(world));
        if world.is_ending() {
            return;
        }
        if let Some(difference) = difference {
            world.wrong(class, format!("{when}: {difference}"));
        }
    }

    fn own_difference(&self, world: &World, own: &Own) -> Option<String> {
        let seen = match looks::all(&world.at("m")) {
            Ok(seen) => seen,
            Err(e) => return Some(format!("m: {e}")),
        };
        for (name, (mode, content)) in own {
            let Some(seen) = seen.get(name) else { return Some(format!("m/{name} is not there")) };
            if seen.mode & 0o7777 != *mode {
                return Some(format!("m/{name} has mode {:o}, should be {mode:o}", seen.mode));
            }
            if let Some(difference) = looks::bytes(content, &seen.content) {
                return Some(format!("m/{name}: {difference}"));
            }
        }
        seen.keys().find(|name| !own.contains_key(*name)).map(|name| format!("m/{name} must not exist"))
    }

    fn victims_difference(&self, world: &World) -> Option<String> {
        match looks::all(&world.at("v")) {
            Ok(seen) => looks::differences(&self.victims, &seen).map(|difference| format!("v/{difference}")),
            Err(e) => Some(format!("v: {e}")),
        }
    }
}

impl Actor for Members {
    fn prepare(&mut self, world: &World) {
        for name in ["m", "v", "pub"] {
            fs::create_dir(world.at(name)).unwrap();
        }
        for n in 0..3 {
            let (name, content) = (format!("f{n}"), fill("in the beginning. ", 1000));
            let path = world.at(&format!("m/{name}"));
            fs::write(&path, &content).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
            self.own.insert(name, (0o644, content));
        }
        for n in 0..VICTIMS {
            let length = 100 + (n * n * 500) as usize;
            fs::write(world.at(&format!("v/x{n}")), fill(&format!("victim {n}. "), length)).unwrap();
        }
        fs::File::create(world.at(MAPPED_VICTIM)).and_then(|file| file.set_len(8 * 4096)).unwrap();
        self.victims = looks::all(&world.at("v")).unwrap();
        world.set_victims(self.victims.clone());
    }

    fn act(&mut self, world: &World) {
        while !world.stops() {
            world.in_storm(|| {
                world.set_phase(2 * self.count + 3);
                self.one(world);
                world.set_phase(2 * self.count + 2);
            });
            if self.maybe.is_some() {
                return;
            }
            world.pause(Duration::from_millis(self.rng.below(60)));
        }
    }

    fn verify(&mut self, world: &World, ending: Ending) {
        let wrong = self.own_difference(world, &self.own);
        let other = self.maybe.as_ref().is_some_and(|own| self.own_difference(world, own).is_none());
        if let Some(difference) = wrong.filter(|_| !other) {
            world.wrong("not committed", format!("after {ending:?}: {difference}"));
        }
        if let Some(difference) = self.victims_difference(world) {
            world.wrong("not undone", format!("after {ending:?}: {difference}"));
        }
        let public = fs::read_dir(world.at("pub")).map(Iterator::count).unwrap_or(usize::MAX);
        if public != 0 {
            world.wrong("not undone", format!("after {ending:?}: {public} names are left of transactions rolled back"));
        }
    }
}
