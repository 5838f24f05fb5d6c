//! The bitmap beside a plain set of units, and the policy's promises.

use extant_space::{Claim, FreeMap, GroupMap, GroupTotals, Policy, Pool, Run, Sum, Totals};
use proptest::prelude::*;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Unit {
    Used,
    Free,
    Held,
}

#[derive(Debug, Clone)]
enum Step {
    Take(Run),
    Give(Run, bool),
    Release(Run),
    Keep(Option<[u64; 5]>),
    Unkeep([u64; 5]),
    Find(Vec<Run>, u32, u32),
}

fn step(units: u32) -> impl Strategy<Value = Step> {
    let run = (0..units + 70, prop_oneof![1..8u32, 1..units + 70]).prop_map(|(start, len)| Run { start, len });
    prop_oneof![
        run.clone().prop_map(Step::Take),
        (run.clone(), any::<bool>()).prop_map(|(run, held)| Step::Give(run, held)),
        run.prop_map(Step::Release),
        proptest::option::of(any::<[u64; 5]>()).prop_map(Step::Keep),
        any::<[u64; 5]>().prop_map(Step::Unkeep),
        (within(units), 0..units + 9, 1..units + 9).prop_map(|(within, from, want)| Step::Find(within, from, want)),
    ]
}

/// All units, or some runs of them that do not touch each other, the last of which may reach beyond.
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

/// The model with what is kept as used: neither may be given out.
fn available(model: &[Unit], kept: &[bool]) -> Vec<Unit> {
    model.iter().zip(kept).map(|(unit, kept)| if *kept { Unit::Used } else { *unit }).collect()
}

fn check_find(model: &[Unit], within: &[Run], from: u32, want: u32, found: Option<Run>) {
    let inside = |at: usize| within.iter().any(|run| (run.start..run.end()).contains(&(at as u32)));
    // what may not be given is as good as used
    let model: Vec<Unit> =
        model.iter().enumerate().map(|(at, unit)| if inside(at) { *unit } else { Unit::Used }).collect();
    let model = &model[..];
    let starts = |at: &usize| model[*at] == Unit::Free && (*at == 0 || model[*at - 1] != Unit::Free);
    let from = (from as usize).min(model.len());
    // a run that begins before `from` and reaches beyond it may be used from `from` on
    let behind = (from..model.len()).filter(|&at| starts(&at) || at == from && model[at] == Unit::Free);
    let all = behind.chain((0..from).filter(starts));
    let runs: Vec<(usize, u32)> = all.map(|at| (at, longest_from(model, at))).collect();
    let Some(best) = runs.iter().map(|run| run.1.min(want)).max() else {
        assert_eq!(found, None);
        return;
    };
    let found = found.expect("something is free");
    assert_eq!(found.len, best);
    let first = runs.iter().find(|run| run.1 >= best).expect("the best is one of them");
    assert_eq!(found.start as usize, first.0);
}

proptest! {
    #[test]
    fn the_map_is_a_set_of_units((units, bytes, steps) in case()) {
        let mut map = GroupMap::from_bytes(&bytes, units);
        let used = |n: u32| bytes[n as usize / 8] >> (n % 8) & 1 == 1;
        let mut model: Vec<Unit> = (0..units).map(|n| if used(n) { Unit::Used } else { Unit::Free }).collect();
        let mut kept = vec![false; units as usize];
        let bit = |words: &[u64; 5], n: usize| words[n / 64] >> (n % 64) & 1 == 1;
        for step in steps {
            let place = |run: Run| (run.end() <= units).then_some(run.start as usize..run.end() as usize);
            match step {
                Step::Take(run) => {
                    let free = |n: usize| model[n] == Unit::Free && !kept[n];
                    let fits = place(run).filter(|place| place.clone().all(free));
                    prop_assert_eq!(map.take(run), fits.is_some());
                    fits.into_iter().for_each(|place| model[place].fill(Unit::Used));
                }
                Step::Give(run, held) => {
                    let held = held && !place(run).is_some_and(|place| kept[place].contains(&true));
                    let fits = place(run).filter(|place| model[place.clone()].iter().all(|u| *u == Unit::Used));
                    prop_assert_eq!(map.give(run, held), fits.is_some());
                    let now = if held { Unit::Held } else { Unit::Free };
                    fits.into_iter().for_each(|place| model[place].fill(now));
                }
                Step::Release(run) => {
                    map.release(run);
                    let inside = (run.start.min(units) as usize)..(run.end().min(units) as usize);
                    model[inside].iter_mut().filter(|u| **u == Unit::Held).for_each(|u| *u = Unit::Free);
                }
                Step::Keep(None) => {
                    map.keep_used();
                    kept.iter_mut().zip(&model).for_each(|(kept, unit)| *kept |= *unit == Unit::Used);
                }
                Step::Keep(Some(mut words)) => {
                    let held = (0..units as usize).filter(|n| model[*n] == Unit::Held);
                    held.for_each(|n| words[n / 64] &= !(1 << (n % 64)));
                    map.keep(&words);
                    kept.iter_mut().enumerate().for_each(|(n, kept)| *kept |= bit(&words, n));
                }
                Step::Unkeep(words) => {
                    let gone: Vec<usize> =
                        (0..units as usize).filter(|n| bit(&words, *n) && kept[*n] && model[*n] == Unit::Free).collect();
                    let found = map.unkeep(&words);
                    prop_assert_eq!(found.iter().flat_map(|run| run.start as usize..run.end() as usize).collect::<Vec<_>>(), gone.clone());
                    prop_assert!(found.windows(2).all(|pair| pair[0].end() < pair[1].start));
                    gone.into_iter().for_each(|n| model[n] = Unit::Held);
                    kept.iter_mut().enumerate().for_each(|(n, kept)| *kept &= !bit(&words, n));
                }
                Step::Find(within, from, want) => {
                    let there = available(&model, &kept);
                    check_find(&there, &within, from, want, map.find(&within, from, want));
                }
            }
            let stored = |kind| model.iter().filter(|unit| **unit == kind).count() as u32;
            prop_assert_eq!(map.free(), stored(Unit::Free) + stored(Unit::Held));
            let kept_units = model.iter().zip(&kept).filter(|(unit, kept)| **unit == Unit::Free && **kept).count() as u32;
            prop_assert_eq!(map.kept(), kept_units);
            prop_assert_eq!((map.available(), map.held()), (stored(Unit::Free) - kept_units, stored(Unit::Held)));
            for at in 0..units {
                let run = Run { start: at, len: (units - at).min(70) };
                let same = kept[at as usize..].iter().take(run.len as usize).take_while(|k| **k == kept[at as usize]);
                prop_assert_eq!(map.kept_at(run), (same.count() as u32, kept[at as usize]));
            }
            let there = available(&model, &kept);
            for at in [0, 5, 63, 64, units - 1, units] {
                prop_assert_eq!(map.run_at(at, 100), longest_from(&there, at as usize).min(100));
            }
        }
        let mut block = [0; 64];
        map.write(&mut block);
        for n in 0..512 {
            let used = model.get(n).is_none_or(|unit| *unit == Unit::Used);
            prop_assert_eq!(block[n / 8] >> (n % 8) & 1 == 1, used);
        }
        prop_assert_eq!(GroupMap::from_bytes(&block, units).free(), map.free());
    }

    #[test]
    fn the_policy_names_groups_with_room(
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
        let mut order: Vec<u32> = policy.groups_from(totals.groups(), parent).collect();
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
fn the_pool_keeps_what_is_promised() {
    let mut pool = Pool::new(100, 5, 10);
    assert_eq!([Claim::Ordinary, Claim::Superuser, Claim::Promised].map(|c| pool.room(c)), [85, 95, 100]);
    assert!(
        pool.promise(80, Claim::Ordinary) && !pool.promise(6, Claim::Ordinary) && pool.promise(10, Claim::Superuser)
    );
    assert_eq!((pool.take(3, Claim::Ordinary), pool.take(7, Claim::Superuser)), (0, 5));
    assert_eq!(pool.take(1000, Claim::Promised), 95);
    pool.settle(90);
    pool.hold(20);
    assert_eq!((pool.free(), pool.room(Claim::Promised), pool.promised()), (20, 0, 0));
    pool.release(30);
    pool.lose(4);
    assert_eq!((pool.free(), pool.room(Claim::Promised), pool.held()), (20, 16, 0));
    pool.give(1);
    assert_eq!(pool.room(Claim::Ordinary), 2);
}
