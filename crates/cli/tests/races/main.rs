//! The race hunt: threads and processes that hold descriptors, append, map, lock and save, while transactions,
//! rollbacks, snapshots and unmounts run on a real FUSE mount. Each file has one owner, who knows what it must hold:
//! after each rollback, in each snapshot, and when the volume is mounted again after whatever ended its mount.
//!
//! A seed determines what is drawn, not which thread comes first: a round that found something may have to be
//! run more than once.

mod agent;
mod looks;
mod mapped;
mod members;
mod owners;
mod snapshots;
mod strangers;
mod world;

use mapped::{Counters, Mapper};
use members::Members;
use owners::{Nameless, Saver, Writer};
use rustix::process::Signal;
use snapshots::Snapshots;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use strangers::{Maker, Stranger};
use testkit::{Case, Rng, cases, need, rounds, tools};
use world::{Actor, Ending, STUCK, World};

/// Space and inodes that a volume may have less before it is unmounted than after: what is set aside for a moment.
const SLACK: (u64, u64) = (1 << 20, 8);

/// The minimum number of transactions in a round: on a loaded machine one may take seconds.
const LEAST: u64 = 4;

/// The time for which all are at work in a round.
fn time(rng: &mut Rng) -> Duration {
    let most = if rounds(1) > 1 { 6000 } else { 1800 };
    Duration::from_millis(rng.between(700, most))
}

/// The actors of a round.
fn draw(rng: &mut Rng, native: bool) -> Vec<Box<dyn Actor>> {
    let mut fork = || Rng::new(rng.next_u64());
    let (logs, saves, maps) = (["log0", "log1"], ["save0", "save1"], ["map0"]);
    let mut actors: Vec<Box<dyn Actor>> = Vec::new();
    for name in logs {
        actors.push(Box::new(Writer::new(name, true, fork())));
    }
    actors.push(Box::new(Writer::new("blocks", false, fork())));
    for name in saves {
        actors.push(Box::new(Saver::new(name, fork())));
    }
    for name in maps {
        actors.push(Box::new(Mapper::new(name, fork())));
    }
    actors.push(Box::new(Nameless::new(fork())));
    actors.push(Box::new(Counters::new(fork())));
    for name in ["one", "two"] {
        actors.push(Box::new(Maker::new(name, fork())));
    }
    if native {
        let (shared, mapped) = (logs.iter().chain(&saves), maps.iter());
        let names = |names: &mut dyn Iterator<Item = &&str>| names.map(|name| (*name).to_owned()).collect();
        let (shared, mapped) = (names(&mut shared.into_iter()), names(&mut mapped.into_iter()));
        actors.push(Box::new(Members::new(fork(), shared, mapped)));
        for n in 0..3 {
            actors.push(Box::new(Stranger::new(fork(), (n, 3))));
        }
        if rng.chance(50) {
            actors.push(Box::new(Snapshots::new(Rng::new(rng.next_u64()))));
        }
    }
    actors
}

/// Has all work for a while and then ends the mount.
fn work(world: &World, actors: &mut [Box<dyn Actor>], ending: Ending, rng: &mut Rng) {
    let (after, long) = (time(rng), rng.between(20, 200));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watched = scope.spawn(|| watch(world, &done));
        std::thread::scope(|scope| {
            actors.iter_mut().for_each(|actor| drop(scope.spawn(|| actor.act(world))));
            std::thread::sleep(after);
            let until = Instant::now() + STUCK;
            while world.native && world.phase() < 2 * LEAST && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(5));
            }
            if ending != Ending::Unmount {
                world.hurry();
                std::thread::sleep(Duration::from_millis(long));
            }
            world.log("everybody", format_args!("{ending:?}"));
            match ending {
                Ending::Unmount => {}
                Ending::Lazy => {
                    world.detach();
                    std::thread::sleep(Duration::from_millis(long));
                }
                Ending::Terminate | Ending::Kill => {
                    world.end();
                    world.signal(if ending == Ending::Kill { Signal::KILL } else { Signal::TERM });
                    world.await_server();
                }
            }
            world.stop();
        });
        done.store(true, Ordering::SeqCst);
        watched.join().expect("the watch");
    });
}

/// Ends a round in which an actor waits for ever, by ending the server.
fn watch(world: &World, done: &AtomicBool) {
    let mut stopped = None;
    while !done.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_millis(20));
        if stopped.is_none() && world.stops() {
            stopped = Some(Instant::now());
        }
        if stopped.is_some_and(|stopped| stopped.elapsed() > STUCK) {
            world.wrong("stuck", format!("an actor did not come to an end {STUCK:?} after all were to stop"));
            world.end();
            world.signal(Signal::KILL);
            stopped = Some(Instant::now());
        }
    }
}

/// Free space and inodes when all that was freed has come back.
fn settled(world: &World) -> (u64, u64) {
    world.syncfs();
    let mut before = world.free();
    loop {
        std::thread::sleep(Duration::from_millis(100));
        let now = world.free();
        if now == before {
            return now;
        }
        before = now;
    }
}

fn end(world: &World, ending: Ending) {
    let mut free = None;
    match ending {
        Ending::Unmount => {
            free = Some(settled(world));
            world.unmount();
        }
        Ending::Lazy => {
            world.leave();
            world.await_server();
        }
        Ending::Terminate | Ending::Kill => {
            world.leave();
            world.detach();
        }
    }
    if ending.is_orderly() || world.native {
        world.check(&format!("after {ending:?}"));
    }
    world.mount();
    if let Some(free) = free {
        let now = settled(world);
        if free.0 + SLACK.0 < now.0 || free.1 + SLACK.1 < now.1 {
            world.wrong("leak", format!("{free:?} bytes and inodes free before it was unmounted, {now:?} after"));
        }
    }
}

fn round(case: &Case, native: bool) {
    let mut rng = case.rng();
    let ending = *rng.pick(&[Ending::Unmount, Ending::Lazy, Ending::Terminate, Ending::Terminate, Ending::Kill]);
    let mut options = vec![*rng.pick(&["transport=best", "transport=device"])];
    if native && rng.chance(30) {
        options.push("data=cow");
    }
    // pages that the kernel caches are lost with a server that is terminated
    if !native && ending != Ending::Terminate && rng.chance(30) {
        options.push("writeback_cache");
    }
    let folder = tempfile::tempdir().unwrap();
    let world = World::new(folder.path(), native, &options.join(","));
    let mut actors = draw(&mut rng, native);
    actors.iter_mut().for_each(|actor| actor.prepare(&world));
    std::fs::write(world.at("gate"), "").unwrap();
    world.syncfs();
    work(&world, &mut actors, ending, &mut rng);
    end(&world, ending);
    actors.iter_mut().for_each(|actor| actor.verify(&world, ending));
    world.unmount();
    world.check("in the end");
    let report = world.report();
    drop(world);
    if let Some(report) = report {
        // it stays, for inspection
        let _ = folder.keep();
        panic!("found in a round that ended with {ending:?}:\n{report}");
    }
}

fn ready() -> bool {
    need(&["python3", "umount"]) && tools::has_fuse() && tools::is_root()
}

/// A round takes some seconds: two in `make test`, a hundred in `make long`.
#[test]
fn native() {
    if ready() {
        let usual = if rounds(1) > 1 { 5 } else { 2 };
        cases("races native", usual).for_each(|case| round(&case, true));
    }
}

#[test]
fn journal() {
    if ready() {
        cases("races journal", 3).for_each(|case| round(&case, false));
    }
}
