//! Nanoseconds of each operation on the bitmap and on containers, on groups of 32 768 units in several states.
//!
//! `cargo run --release -p extant-space --example maps [ROUNDS [STATE]]` prints the median of ROUNDS (default 15) and its quartiles,
//! each round on the bitmap and on the containers in turn, and the ratio of the medians.

use extant_space::{ContainerMap, FreeMap, GroupMap, Longest, Run};
use std::hint::black_box;
use std::time::Instant;
use testkit::Rng;

const UNITS: u32 = 32_768;
const ALL: [Run; 1] = [Run { start: 0, len: UNITS }];
const WANTED: [u32; 4] = [1, 16, 256, 4096];

/// The bytes of a bitmap in some state.
type State = (&'static str, fn(&mut Rng) -> Vec<u8>);

const STATES: &[State] = &[
    ("fresh", |_| fill(&[Run { start: 0, len: 40 }])),
    ("random 70 % full", |rng| fill(&(0..UNITS).filter(|_| rng.below(10) < 7).map(one).collect::<Vec<_>>())),
    ("aged, files of 1-64", |rng| aged(rng, 64)),
    ("aged, files of 1-1024", |rng| aged(rng, 1024)),
    ("every second", |_| fill(&(0..UNITS / 2).map(|n| one(n * 2)).collect::<Vec<_>>())),
];

fn one(start: u32) -> Run {
    Run { start, len: 1 }
}

/// A bitmap in which these runs are in use.
fn fill(used: &[Run]) -> Vec<u8> {
    let mut bytes = vec![0; UNITS as usize / 8];
    for unit in used.iter().flat_map(|run| run.start..run.end()) {
        bytes[unit as usize / 8] |= 1 << (unit % 8);
    }
    bytes
}

/// Files are made and deleted until 70 % is in use.
fn aged(rng: &mut Rng, most: u64) -> Vec<u8> {
    let mut map = GroupMap::new(UNITS);
    let mut files: Vec<Run> = Vec::new();
    for _ in 0..20_000 {
        let in_use = UNITS - map.free();
        if in_use < UNITS * 7 / 10 || rng.below(2) == 0 && in_use < UNITS * 8 / 10 {
            let found = map.find(&ALL, rng.below(u64::from(UNITS)) as u32, rng.between(1, most) as u32);
            let Some(run) = found else { continue };
            assert!(map.take(run), "it was found");
            files.push(run);
        } else {
            let run = files.swap_remove(rng.below(files.len() as u64) as usize);
            assert!(map.give(run, false), "it is in use");
        }
    }
    while UNITS - map.free() > UNITS * 7 / 10 {
        let run = files.swap_remove(rng.below(files.len() as u64) as usize);
        assert!(map.give(run, false), "it is in use");
    }
    let mut bytes = vec![0; UNITS as usize / 8];
    map.write(&mut bytes);
    bytes
}

/// Nanoseconds of one of `count` calls.
fn time(count: usize, calls: impl FnOnce()) -> f64 {
    let begin = Instant::now();
    calls();
    begin.elapsed().as_nanos() as f64 / count as f64
}

/// Searches from random goals.
fn find(map: &impl FreeMap, goals: &[u32], want: u32) -> f64 {
    time(goals.len(), || {
        for goal in goals {
            black_box(map.find(black_box(&ALL), *goal, black_box(want)));
        }
    })
}

/// Allocates runs that are free and frees them in another order; nanoseconds of each.
fn change(map: &mut impl FreeMap, runs: &[Run]) -> (f64, f64) {
    let allocated = time(runs.len(), || {
        for run in runs {
            assert!(map.take(black_box(*run)), "it is free");
        }
    });
    let freed = time(runs.len(), || {
        for run in runs.iter().rev() {
            assert!(map.give(black_box(*run), false), "it is in use");
        }
    });
    (allocated, freed)
}

/// Frees runs that are in use, to be used again later, and then releases them; nanoseconds of both.
fn defer(map: &mut impl FreeMap, runs: &[Run]) -> f64 {
    for run in runs {
        assert!(map.take(*run), "it is free");
    }
    time(runs.len(), || {
        for run in runs.iter().rev() {
            assert!(map.give(black_box(*run), true), "it is in use");
        }
        runs.iter().for_each(|run| map.release(black_box(*run)));
    })
}

/// Free runs of at most `want` units, apart from each other, in random order.
fn free_runs(rng: &mut Rng, map: &GroupMap, want: u32) -> Vec<Run> {
    let mut map = map.clone();
    let mut runs = Vec::new();
    while runs.len() < 400
        && let Some(run) = map.find(&ALL, rng.below(u64::from(UNITS)) as u32, want)
    {
        assert!(map.take(run), "it was found");
        runs.push(run);
    }
    runs
}

/// An operation of which all is asked: find, allocate and free a run, in turn.
fn churn(map: &mut impl FreeMap, goals: &[u32], want: u32) -> f64 {
    time(goals.len(), || {
        let mut last: Option<Run> = None;
        for goal in goals {
            let run = map.find(black_box(&ALL), *goal, want);
            if let Some(run) = run {
                assert!(map.take(run), "it was found");
            }
            if let Some(last) = last {
                assert!(map.give(last, false), "it is in use");
            }
            last = run;
        }
        last.into_iter().for_each(|run| assert!(map.give(run, false), "it is in use"));
    })
}

/// The rounds of one operation on both maps.
struct Row {
    name: String,
    rounds: Vec<(f64, f64)>,
}

fn quartiles(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [1, 2, 3].map(|n| values[(values.len() - 1) * n / 4])
}

impl Row {
    fn print(&self) {
        let [old, new] =
            [|r: &(f64, f64)| r.0, |r: &(f64, f64)| r.1].map(|of| quartiles(self.rounds.iter().map(of).collect()));
        let ratio = quartiles(self.rounds.iter().map(|(old, new)| old / new).collect());
        println!(
            "{:<44} {:>8.1} ({:.1}-{:.1}) {:>8.1} ({:.1}-{:.1})  {:>6.2} ({:.2}-{:.2})",
            self.name, old[1], old[0], old[2], new[1], new[0], new[2], ratio[1], ratio[0], ratio[2]
        );
    }
}

fn main() {
    let rounds = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(15);
    println!("{:<44} {:>20} {:>20}  {:>20}", "ns: median (quartiles)", "bitmap", "containers", "bitmap / containers");
    let only = std::env::args().nth(2).unwrap_or_default();
    for (state, bytes) in STATES.iter().filter(|(state, _)| state.contains(&only)) {
        let mut rng = Rng::new(7);
        let bytes = bytes(&mut rng);
        let (mut old, mut new) = (GroupMap::from_bytes(&bytes, UNITS), ContainerMap::from_bytes(&bytes, UNITS));
        let set = new.available_units();
        println!("{state}: {:?}, {} runs, {} bytes of {}", set.form(), set.run_count(), set.memory(), bytes.len());
        let goals: Vec<u32> = (0..300).map(|_| rng.below(u64::from(UNITS)) as u32).collect();
        for want in WANTED {
            let mut rows = ["find", "allocate", "free", "find+allocate+free", "defer+release", "find at rest"]
                .map(|what| Row { name: format!("{state}: {what} {want}"), rounds: Vec::new() });
            let runs = free_runs(&mut rng, &old, want);
            for _ in 0..rounds {
                let found = (find(&old, &goals, want), find(&new, &goals, want));
                let (a, b) = (change(&mut old, &runs), change(&mut new, &runs));
                let churned = (churn(&mut old, &goals, want), churn(&mut new, &goals, want));
                let deferred = (defer(&mut old, &runs), defer(&mut new, &runs));
                let mut at_rest = new.clone();
                at_rest.compact();
                let rested = (find(&old, &goals, want), find(&at_rest, &goals, want));
                let all = [found, (a.0, b.0), (a.1, b.1), churned, deferred, rested];
                for (row, round) in rows.iter_mut().zip(all) {
                    row.rounds.push(round);
                }
            }
            rows.iter().for_each(Row::print);
        }
        let read = Row {
            name: format!("{state}: read a bitmap"),
            rounds: (0..rounds).map(|_| (read::<GroupMap>(&bytes), read::<ContainerMap>(&bytes))).collect(),
        };
        read.print();
    }
    next_group(rounds).print();
}

/// The next of 65 536 groups whose bound is large enough, one by one and by the tree: one in 1000 is.
fn next_group(rounds: usize) -> Row {
    let mut rng = Rng::new(7);
    let bounds: Vec<u32> = (0..65_536).map(|_| if rng.below(1000) == 0 { 4096 } else { 100 }).collect();
    let mut tree = Longest::new(65_536, 0);
    (0..).zip(&bounds).for_each(|(group, bound)| tree.set(group, *bound));
    let goals: Vec<u32> = (0..300).map(|_| rng.below(65_536) as u32).collect();
    let one_by_one = |goal: u32| (goal..65_536).chain(0..goal).find(|group| bounds[*group as usize] >= 4096);
    let time_both = |_| {
        let old = time(goals.len(), || {
            for goal in &goals {
                black_box(one_by_one(black_box(*goal)));
            }
        });
        let new = time(goals.len(), || {
            for goal in &goals {
                black_box(tree.next_from(black_box(*goal), 4096));
            }
        });
        (old, new)
    };
    Row { name: "next of 65 536 groups with a run of 4096".into(), rounds: (0..rounds).map(time_both).collect() }
}

/// A map that is made from bytes.
trait Read {
    fn read(bytes: &[u8]) -> Self;
}

impl Read for GroupMap {
    fn read(bytes: &[u8]) -> Self {
        Self::from_bytes(bytes, UNITS)
    }
}

impl Read for ContainerMap {
    fn read(bytes: &[u8]) -> Self {
        Self::from_bytes(bytes, UNITS)
    }
}

fn read<M: Read>(bytes: &[u8]) -> f64 {
    time(200, || {
        for _ in 0..200 {
            black_box(M::read(black_box(bytes)));
        }
    })
}
