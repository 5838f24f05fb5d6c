//! Nanoseconds of each operation on the free space of groups of 32 768 units in several states.
//!
//! `cargo run --release -p extant-space --example maps [ROUNDS [STATE]]` prints the median of ROUNDS (default 15) and its
//! quartiles.

use extant_space::{ContainerMap, Longest, Run};
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

/// A bitmap with these runs in use.
fn fill(used: &[Run]) -> Vec<u8> {
    let mut bytes = vec![0; UNITS as usize / 8];
    for unit in used.iter().flat_map(|run| run.start..run.end()) {
        bytes[unit as usize / 8] |= 1 << (unit % 8);
    }
    bytes
}

/// Creates and deletes files until 70 % is in use.
fn aged(rng: &mut Rng, most: u64) -> Vec<u8> {
    let mut map = ContainerMap::new(UNITS);
    let mut files: Vec<Run> = Vec::new();
    for _ in 0..20_000 {
        let in_use = UNITS - map.free_units();
        if in_use < UNITS * 7 / 10 || rng.below(2) == 0 && in_use < UNITS * 8 / 10 {
            let found = map.find(&ALL, rng.below(u64::from(UNITS)) as u32, rng.between(1, most) as u32);
            let Some(run) = found else { continue };
            assert!(map.allocate(run), "found before");
            files.push(run);
        } else {
            let run = files.swap_remove(rng.below(files.len() as u64) as usize);
            assert!(map.free(run, false), "in use");
        }
    }
    while UNITS - map.free_units() > UNITS * 7 / 10 {
        let run = files.swap_remove(rng.below(files.len() as u64) as usize);
        assert!(map.free(run, false), "in use");
    }
    let mut bytes = vec![0; UNITS as usize / 8];
    map.write(&mut bytes);
    bytes
}

/// The time of one of `count` calls in nanoseconds.
fn time(count: usize, calls: impl FnOnce()) -> f64 {
    let begin = Instant::now();
    calls();
    begin.elapsed().as_nanos() as f64 / count as f64
}

/// Measures searches from random goals.
fn find(map: &ContainerMap, goals: &[u32], want: u32) -> f64 {
    time(goals.len(), || {
        for goal in goals {
            black_box(map.find(black_box(&ALL), *goal, black_box(want)));
        }
    })
}

/// Measures the allocation of free runs, and their frees in another order; nanoseconds of each.
fn change(map: &mut ContainerMap, runs: &[Run]) -> (f64, f64) {
    let allocated = time(runs.len(), || {
        for run in runs {
            assert!(map.allocate(black_box(*run)), "free");
        }
    });
    let freed = time(runs.len(), || {
        for run in runs.iter().rev() {
            assert!(map.free(black_box(*run), false), "in use");
        }
    });
    (allocated, freed)
}

/// Measures deferred frees of runs in use, and their release; nanoseconds of both.
fn defer(map: &mut ContainerMap, runs: &[Run]) -> f64 {
    for run in runs {
        assert!(map.allocate(*run), "free");
    }
    time(runs.len(), || {
        for run in runs.iter().rev() {
            assert!(map.free(black_box(*run), true), "in use");
        }
        runs.iter().for_each(|run| map.release(black_box(*run)));
    })
}

/// Separate free runs of at most `want` units, in random order.
fn free_runs(rng: &mut Rng, map: &ContainerMap, want: u32) -> Vec<Run> {
    let mut map = map.clone();
    let mut runs = Vec::new();
    while runs.len() < 400
        && let Some(run) = map.find(&ALL, rng.below(u64::from(UNITS)) as u32, want)
    {
        assert!(map.allocate(run), "found before");
        runs.push(run);
    }
    runs
}

fn nearest(map: &ContainerMap, goals: &[u32], want: u32) -> f64 {
    time(goals.len(), || {
        for goal in goals {
            black_box(map.nearest(black_box(*goal), black_box(want)));
        }
    })
}

/// Measures a combination of all operations: finds, allocates and frees runs, in turn.
fn churn(map: &mut ContainerMap, goals: &[u32], want: u32) -> f64 {
    time(goals.len(), || {
        let mut last: Option<Run> = None;
        for goal in goals {
            let run = map.find(black_box(&ALL), *goal, want);
            if let Some(run) = run {
                assert!(map.allocate(run), "found before");
            }
            if let Some(last) = last {
                assert!(map.free(last, false), "in use");
            }
            last = run;
        }
        last.into_iter().for_each(|run| assert!(map.free(run, false), "in use"));
    })
}

/// The rounds of one operation.
struct Row {
    name: String,
    rounds: Vec<f64>,
}

fn quartiles(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [1, 2, 3].map(|n| values[(values.len() - 1) * n / 4])
}

impl Row {
    fn print(&self) {
        let [low, median, high] = quartiles(self.rounds.clone());
        println!("{:<44} {median:>8.1} ({low:.1}-{high:.1})", self.name);
    }
}

fn main() {
    let rounds = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(15);
    println!("{:<44} {:>20}", "ns", "median (quartiles)");
    let only = std::env::args().nth(2).unwrap_or_default();
    for (state, bytes) in STATES.iter().filter(|(state, _)| state.contains(&only)) {
        let mut rng = Rng::new(7);
        let bytes = bytes(&mut rng);
        let mut map = ContainerMap::from_bytes(&bytes, UNITS);
        let set = map.available_units();
        println!("{state}: {:?}, {} runs, {} bytes of {}", set.form(), set.run_count(), set.memory(), bytes.len());
        let goals: Vec<u32> = (0..300).map(|_| rng.below(u64::from(UNITS)) as u32).collect();
        for want in WANTED {
            let mut rows =
                ["find", "nearest", "allocate", "free", "find+allocate+free", "defer+release", "find at rest"]
                    .map(|what| Row { name: format!("{state}: {what} {want}"), rounds: Vec::new() });
            let runs = free_runs(&mut rng, &map, want);
            for _ in 0..rounds {
                let found = find(&map, &goals, want);
                let near = nearest(&map, &goals, want);
                let (allocated, freed) = change(&mut map, &runs);
                let churned = churn(&mut map, &goals, want);
                let deferred = defer(&mut map, &runs);
                let mut at_rest = map.clone();
                at_rest.compact();
                let all = [found, near, allocated, freed, churned, deferred, find(&at_rest, &goals, want)];
                rows.iter_mut().zip(all).for_each(|(row, round)| row.rounds.push(round));
            }
            rows.iter().for_each(Row::print);
        }
        Row { name: format!("{state}: read a bitmap"), rounds: (0..rounds).map(|_| read(&bytes)).collect() }.print();
    }
    next_group(rounds).print();
}

/// Measures the search for the next of 65 536 groups whose bound is large enough: one in 1000 is.
fn next_group(rounds: usize) -> Row {
    let mut rng = Rng::new(7);
    let bounds: Vec<u32> = (0..65_536).map(|_| if rng.below(1000) == 0 { 4096 } else { 100 }).collect();
    let tree = Longest::from(bounds);
    let goals: Vec<u32> = (0..300).map(|_| rng.below(65_536) as u32).collect();
    let search = |_| {
        time(goals.len(), || {
            for goal in &goals {
                black_box(tree.next_from(black_box(*goal), 4096));
            }
        })
    };
    Row { name: "next of 65 536 groups with a run of 4096".into(), rounds: (0..rounds).map(search).collect() }
}

fn read(bytes: &[u8]) -> f64 {
    time(200, || {
        for _ in 0..200 {
            black_box(ContainerMap::from_bytes(black_box(bytes), UNITS));
        }
    })
}
