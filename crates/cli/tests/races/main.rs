//! Race tests: threads and processes open files, append, map, lock and save, while transactions, rollbacks, snapshots
//! and unmounts run on a real FUSE mount. Each file has one owner, which knows its expected content: after each
//! rollback, in each snapshot, and after a remount, however the mount ended.
//!
//! A seed determines the choices, not the scheduling: a round with a finding may have to be repeated several times.

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

/// Bytes and inodes that may be free less before the unmount than after it: temporary reservations.
const SLACK: (u64, u64) = (1 << 20, 8);

/// Minimum number of transactions in a round: on a loaded machine one may take seconds.
const LEAST: u64 = 4;

/// Duration of the work in a round.
fn time(rng: &mut Rng) -> Duration {
    let most = if rounds(1) > 1 { 6000 } else { 1800 };
    Duration::from_millis(rng.between(700, most))
}

/// Chooses the actors of a round.
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

/// Runs all actors for a while and then ends the mount.
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

/// Ends a round in which an actor is stuck, by ending the server.
fn watch(world: &World, done: &AtomicBool) {
    let mut stopped = None;
    while !done.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_millis(20));
        if stopped.is_none() && world.stops() {
            stopped = Some(Instant::now());
        }
        if stopped.is_some_and(|stopped| stopped.elapsed() > STUCK) {
            world.wrong("stuck", format!("an actor did not end within {STUCK:?} of the stop"));
            world.end();
            world.signal(Signal::KILL);
            stopped = Some(Instant::now());
        }
    }
}

/// Free bytes and inodes after all deferred frees.
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
    // pages cached by the kernel are lost with a server that is terminated
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
    world.check("at the end");
    let report = world.report();
    drop(world);
    if let Some(report) = report {
        // the folder remains for inspection
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
