//! The free space of a group compared with a simple set of units, and the guarantees of the policy.

use extant_space::{Container, ContainerMap, GroupTotals, Policy, Pool, Privilege, Run, Sum, Totals};
use proptest::prelude::*;
use std::ops::Range;
use testkit::Rng;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Unit {
    Used,
    Free,
    Deferred,
}

#[derive(Debug, Clone)]
enum Step {
    Allocate(Run),
    Free(Run, bool),
    Release(Run),
    ReleaseSet([u64; 5]),
    Pin(Option<[u64; 5]>),
    Unpin([u64; 5]),
    Defer(Run),
    Find(Vec<Run>, u32, u32),
    Next(Range<u32>, u32),
}

fn step(units: u32) -> impl Strategy<Value = Step> {
    let run = (0..units + 70, prop_oneof![1..8u32, 1..units + 70]).prop_map(|(start, len)| Run { start, len });
    prop_oneof![
        run.clone().prop_map(Step::Allocate),
        (run.clone(), any::<bool>()).prop_map(|(run, deferred)| Step::Free(run, deferred)),
        run.clone().prop_map(Step::Release),
        run.clone().prop_map(Step::Defer),
        (run, 1..9u32).prop_map(|(run, least)| Step::Next(run.start..run.end(), least)),
        proptest::option::of(any::<[u64; 5]>()).prop_map(Step::Pin),
        any::<[u64; 5]>().prop_map(Step::Unpin),
        any::<[u64; 5]>().prop_map(Step::ReleaseSet),
        (within(units), 0..units + 9, 1..units + 9).prop_map(|(within, from, want)| Step::Find(within, from, want)),
    ]
}

/// All units, or some separate runs of them, the last of which may extend beyond the end.
fn within(units: u32) -> impl Strategy<Value = Vec<Run>> {
    let some = proptest::collection::vec((1..40u32, 1..60u32), 0..9).prop_map(|gaps| {
        let mut at = 0;
        let runs = gaps.into_iter().map(|(gap, len)| {
            let run = Run { start: at + gap - 1, len };
            at = run.end() + 1;
            run
        });
        runs.collect()
    });
    prop_oneof![Just(vec![Run { start: 0, len: units }]), some]
}

fn case() -> impl Strategy<Value = (u32, Vec<u8>, Vec<Step>)> {
    (1..300u32).prop_flat_map(|units| {
        let bytes = proptest::collection::vec(prop_oneof![Just(0u8), Just(255), any::<u8>()], 40);
        (Just(units), bytes, proptest::collection::vec(step(units), 1..60))
    })
}

fn longest_from(model: &[Unit], at: usize) -> u32 {
    model.get(at..).unwrap_or_default().iter().take_while(|unit| **unit == Unit::Free).count() as u32
}

/// The model with pinned units as used: neither may be allocated.
fn available(model: &[Unit], pinned: &[bool]) -> Vec<Unit> {
    model.iter().zip(pinned).map(|(unit, pinned)| if *pinned { Unit::Used } else { *unit }).collect()
}

fn check_find(model: &[Unit], within: &[Run], from: u32, want: u32, found: Option<Run>) {
    let inside = |at: usize| within.iter().any(|run| (run.start..run.end()).contains(&(at as u32)));
    // units that may not be allocated count as used
    let model: Vec<Unit> =
        model.iter().enumerate().map(|(at, unit)| if inside(at) { *unit } else { Unit::Used }).collect();
    let model = &model[..];
    let starts = |at: &usize| model[*at] == Unit::Free && (*at == 0 || model[*at - 1] != Unit::Free);
    let from = (from as usize).min(model.len());
    // a run that begins before `from` and extends beyond it may be used from `from` on
    let behind = (from..model.len()).filter(|&at| starts(&at) || at == from && model[at] == Unit::Free);
    let all = behind.chain((0..from).filter(starts));
    let runs: Vec<(usize, u32)> = all.map(|at| (at, longest_from(model, at))).collect();
    let Some(best) = runs.iter().map(|run| run.1.min(want)).max() else {
        assert_eq!(found, None);
        return;
    };
    let found = found.expect("a free unit");
    assert_eq!(found.len, best);
    let first = runs.iter().find(|run| run.1 >= best).expect("the best run");
    assert_eq!(found.start as usize, first.0);
}

fn set_of(words: &[u64], units: u32) -> Container {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    Container::from_set_bits(&bytes, units)
}

/// Executes the steps on a map and on a model, and compares all results.
fn is_a_set(units: u32, bytes: &[u8], steps: Vec<Step>) -> Result<(), TestCaseError> {
    let (mut map, mut model) = (ContainerMap::from_bytes(bytes, units), Model::of(bytes, units));
    for step in steps {
        model.carry_out(step, &mut map)?;
        model.compare(&map)?;
    }
    let mut block = [0; 64];
    map.write(&mut block);
    for n in 0..512 {
        let used = model.units.get(n).is_none_or(|unit| *unit == Unit::Used);
        prop_assert_eq!(block[n / 8] >> (n % 8) & 1 == 1, used);
    }
    prop_assert_eq!(ContainerMap::from_bytes(&block, units).free_units(), map.free_units());
    Ok(())
}

/// A list of units.
#[derive(Clone)]
struct Model {
    units: Vec<Unit>,
    pinned: Vec<bool>,
}

impl Model {
    fn of(bytes: &[u8], units: u32) -> Self {
        let used = |n: u32| bytes[n as usize / 8] >> (n % 8) & 1 == 1;
        let all = (0..units).map(|n| if used(n) { Unit::Used } else { Unit::Free });
        Self { units: all.collect(), pinned: vec![false; units as usize] }
    }

    /// Restores the state after a crash: the stored one, which shows deferred and pinned units as free.
    fn crash(&mut self) {
        self.units.iter_mut().filter(|unit| **unit == Unit::Deferred).for_each(|unit| *unit = Unit::Free);
        self.pinned.fill(false);
    }

    fn place(&self, run: Run) -> Option<Range<usize>> {
        (run.end() as usize <= self.units.len()).then_some(run.start as usize..run.end() as usize)
    }

    fn carry_out(&mut self, step: Step, map: &mut ContainerMap) -> Result<(), TestCaseError> {
        let units = self.units.len();
        let bit = |words: &[u64; 5], n: usize| words[n / 64] >> (n % 64) & 1 == 1;
        match step {
            Step::Allocate(run) => {
                let free = |n: usize| self.units[n] == Unit::Free && !self.pinned[n];
                let fits = self.place(run).filter(|place| place.clone().all(free));
                prop_assert_eq!(map.allocate(run), fits.is_some());
                fits.into_iter().for_each(|place| self.units[place].fill(Unit::Used));
            }
            Step::Free(run, deferred) => {
                let used = |place: &Range<usize>| self.units[place.clone()].iter().all(|u| *u == Unit::Used);
                let fits = self.place(run).filter(used);
                prop_assert_eq!(map.free(run, deferred), fits.is_some());
                let now = |pinned: bool| if deferred && !pinned { Unit::Deferred } else { Unit::Free };
                fits.into_iter().flatten().for_each(|n| self.units[n] = now(self.pinned[n]));
            }
            Step::Release(run) => {
                map.release(run);
                let inside = (run.start as usize).min(units)..(run.end() as usize).min(units);
                self.units[inside].iter_mut().filter(|u| **u == Unit::Deferred).for_each(|u| *u = Unit::Free);
            }
            Step::ReleaseSet(words) => {
                map.release_set(&set_of(&words, units as u32));
                let due = |n: &usize| bit(&words, *n) && self.units[*n] == Unit::Deferred;
                (0..units).filter(due).collect::<Vec<_>>().into_iter().for_each(|n| self.units[n] = Unit::Free);
            }
            Step::Defer(run) => {
                map.defer_available(run);
                let free = |n: usize| self.units[n] == Unit::Free && !self.pinned[n];
                let fits = self.place(run).filter(|place| place.clone().all(free));
                fits.into_iter().for_each(|place| self.units[place].fill(Unit::Deferred));
            }
            Step::Pin(None) => {
                map.pin_used();
                self.pinned.iter_mut().zip(&self.units).for_each(|(pinned, unit)| *pinned |= *unit == Unit::Used);
            }
            Step::Pin(Some(mut words)) => {
                let deferred = (0..units).filter(|n| self.units[*n] == Unit::Deferred);
                deferred.for_each(|n| words[n / 64] &= !(1 << (n % 64)));
                map.pin(&set_of(&words, units as u32));
                self.pinned.iter_mut().enumerate().for_each(|(n, pinned)| *pinned |= bit(&words, n));
            }
            Step::Unpin(words) => {
                let gone = |n: &usize| bit(&words, *n) && self.pinned[*n] && self.units[*n] == Unit::Free;
                let gone: Vec<usize> = (0..units).filter(gone).collect();
                let found: Vec<Run> = map.unpin(&set_of(&words, units as u32)).runs().collect();
                let found_units = found.iter().flat_map(|run| run.start as usize..run.end() as usize);
                prop_assert_eq!(found_units.collect::<Vec<_>>(), gone.clone());
                prop_assert!(found.windows(2).all(|pair| pair[0].end() < pair[1].start));
                gone.into_iter().for_each(|n| self.units[n] = Unit::Deferred);
                self.pinned.iter_mut().enumerate().for_each(|(n, pinned)| *pinned &= !bit(&words, n));
            }
            Step::Find(within, from, want) => {
                let there = available(&self.units, &self.pinned);
                check_find(&there, &within, from, want, map.find(&within, from, want));
                let goal = from.min(units as u32);
                let fits = |at: &u32| longest_from(&there, *at as usize) >= want;
                let distance = (0..units as u32).filter(fits).map(|at| at.abs_diff(goal)).min();
                let nearest = map.nearest(from, want);
                prop_assert_eq!(nearest.map(|run| run.start.abs_diff(goal)), distance);
                prop_assert!(nearest.is_none_or(|run| run.len == want && fits(&run.start)));
            }
            Step::Next(range, least) => {
                let there = available(&self.units, &self.pinned);
                let free = |n: usize| there[n] == Unit::Free;
                let end = (range.end as usize).min(units);
                let begins = |n: &usize| free(*n) && (*n == range.start as usize || !free(*n - 1));
                let runs =
                    (range.start as usize..end).filter(begins).map(|n| (n as u32, longest_from(&there[..end], n)));
                let first = runs.map(|(start, len)| Run { start, len }).find(|run| run.len >= least);
                prop_assert_eq!(map.next_run(range, least), first);
            }
        }
        Ok(())
    }

    fn compare(&self, map: &ContainerMap) -> Result<(), TestCaseError> {
        let units = self.units.len() as u32;
        let stored = |kind| self.units.iter().filter(|unit| **unit == kind).count() as u32;
        prop_assert_eq!(map.units(), units);
        prop_assert_eq!(map.free_units(), stored(Unit::Free) + stored(Unit::Deferred));
        let pinned = self.units.iter().zip(&self.pinned);
        let pinned = pinned.filter(|(unit, pinned)| **unit == Unit::Free && **pinned).count() as u32;
        prop_assert_eq!((map.deferred(), map.pinned()), (stored(Unit::Deferred), pinned));
        prop_assert_eq!(map.available(), stored(Unit::Free) - pinned);
        for at in 0..units {
            let run = Run { start: at, len: (units - at).min(70) };
            let here = self.pinned[at as usize];
            let same = self.pinned[at as usize..].iter().take(run.len as usize).take_while(|pinned| **pinned == here);
            prop_assert_eq!(map.pinned_at(run), (same.count() as u32, here));
        }
        let there = available(&self.units, &self.pinned);
        for at in [0, 5, 63, 64, units - 1, units] {
            prop_assert_eq!(map.run_at(at, 100), longest_from(&there, at as usize).min(100));
            let behind = self.units.get(at as usize..).unwrap_or_default();
            let used = behind.iter().take(70).all(|unit| *unit == Unit::Used);
            prop_assert_eq!(map.is_used(Run { start: at, len: 70 }), used);
        }
        Ok(())
    }
}

/// A random step for a map of `units` units.
fn any_step(rng: &mut Rng, units: u32) -> Step {
    let len = if rng.chance(70) { 8 } else { u64::from(units) + 70 };
    let run = Run { start: rng.below(u64::from(units) + 9) as u32, len: 1 + rng.below(len) as u32 };
    // sets of few units, and of many
    let words = if rng.chance(50) { u64::MAX } else { rng.next_u64() & rng.next_u64() };
    let words = [(); 5].map(|()| rng.next_u64() & rng.next_u64() & words);
    match rng.below(20) {
        0..5 => Step::Allocate(run),
        5..8 => Step::Free(run, true),
        8..10 => Step::Free(run, false),
        10 => Step::Release(run),
        11 => Step::Defer(run),
        12 => Step::Next(run.start..run.end(), 1 + rng.below(8) as u32),
        13 => Step::Pin(rng.chance(90).then_some(words)),
        14..16 => Step::Unpin(words),
        16 => Step::ReleaseSet(words),
        _ => {
            let (half, whole) = (units / 2, Run { start: 0, len: units });
            let parts = vec![Run { start: 0, len: half }, Run { start: half + 1, len: units }];
            let within = if rng.chance(70) { vec![whole] } else { parts };
            Step::Find(within, run.start, run.len)
        }
    }
}

/// With EXTANT_CAMPAIGN=50 this takes ten million steps. A rollback is a return to an earlier state as a whole.
#[test]
fn a_map_is_a_set_of_units_through_rollbacks_and_crashes() {
    for case in testkit::cases("a_map_is_a_set_of_units_through_rollbacks_and_crashes", 40) {
        let mut rng = case.rng();
        let units = 2 + rng.below(298) as u32;
        let bytes = rng.bytes(40);
        let (mut map, mut model) = (ContainerMap::from_bytes(&bytes, units), Model::of(&bytes, units));
        let mut earlier = (map.clone(), model.clone());
        for n in 0..200_000 / 40 {
            match rng.below(200) {
                0..2 => earlier = (map.clone(), model.clone()),
                2 => (map, model) = earlier.clone(),
                3 => {
                    map = ContainerMap::from_available(map.as_stored());
                    model.crash();
                }
                4 => map.compact(),
                _ => model.carry_out(any_step(&mut rng, units), &mut map).expect("same as the model"),
            }
            if n % 32 == 0 {
                model.compare(&map).expect("same as the model");
            }
        }
        model.compare(&map).expect("same as the model");
    }
}

proptest! {
    #[test]
    fn containers_are_a_set_of_units((units, bytes, steps) in case()) {
        is_a_set(units, &bytes, steps)?;
    }

    #[test]
    fn the_policy_names_groups_with_space(
        groups in proptest::collection::vec((0..3u32, 0..3u32, 0..5u32), 1..40),
        flex in prop_oneof![Just(1u32), Just(4), Just(16)],
        parent in 0..50u32,
        top: bool,
    ) {
        let totals = Fixed(groups.iter().map(|g| GroupTotals { blocks: g.0, inodes: g.1, directories: g.2 }).collect());
        let policy = Policy { flex, blocks_per_group: 8, inodes_per_group: 8 };
        let any = totals.0.iter().any(|t| t.inodes > 0);
        for found in [policy.directory(&totals, parent, top), policy.file(&totals, parent)] {
            prop_assert_eq!(found.is_some(), any);
            prop_assert!(found.is_none_or(|group| totals.of(group).inodes > 0));
        }
        let mut order: Vec<u32> = policy.groups_from(totals.groups(), parent).into_iter().flatten().collect();
        order.sort_unstable();
        prop_assert_eq!(order, (0..totals.groups()).collect::<Vec<_>>());
        prop_assert!(policy.content(totals.groups(), parent % totals.groups(), top) < totals.groups());
    }
}

struct Fixed(Vec<GroupTotals>);

impl Totals for Fixed {
    fn groups(&self) -> u32 {
        self.0.len() as u32
    }

    fn of(&self, group: u32) -> GroupTotals {
        self.0[group as usize]
    }

    fn all(&self) -> Sum {
        self.0.iter().copied().collect()
    }
}

#[test]
fn directories_at_the_top_are_spread_and_others_stay() {
    let full = GroupTotals { blocks: 1000, inodes: 100, directories: 0 };
    let mut totals = Fixed(vec![full; 8]);
    let policy = Policy { flex: 1, blocks_per_group: 1000, inodes_per_group: 100 };
    totals.0[0].directories = 2;
    assert_eq!(policy.directory(&totals, 0, true), Some(1));
    assert_eq!(policy.directory(&totals, 3, false), Some(3));
    totals.0[3] = GroupTotals::default();
    assert_eq!(policy.directory(&totals, 3, false), Some(4));
    assert_eq!((policy.file(&totals, 2), policy.file(&totals, 3)), (Some(2), Some(4)));
}

#[test]
fn the_pool_reserves() {
    let mut pool = Pool::new(100, 5, 10);
    assert_eq!(
        [Privilege::Ordinary, Privilege::Superuser, Privilege::Reserved].map(|c| pool.available(c)),
        [85, 95, 100]
    );
    assert!(
        pool.reserve(80, Privilege::Ordinary)
            && !pool.reserve(6, Privilege::Ordinary)
            && pool.reserve(10, Privilege::Superuser)
    );
    assert_eq!((pool.allocate(3, Privilege::Ordinary), pool.allocate(7, Privilege::Superuser)), (0, 5));
    assert_eq!(pool.allocate(1000, Privilege::Reserved), 95);
    pool.unreserve(90);
    pool.defer(20);
    assert_eq!((pool.free_units(), pool.available(Privilege::Reserved), pool.reserved()), (20, 0, 0));
    pool.release(30);
    pool.quarantine(4);
    assert_eq!((pool.free_units(), pool.available(Privilege::Reserved), pool.deferred()), (20, 16, 0));
    pool.free(1);
    assert_eq!(pool.available(Privilege::Ordinary), 2);
}
