//! Containers, sets of a volume and the tree of bounds, each compared with a simple model.

use extant_space::{BlockRun, Container, ContainerMap, Form, Longest, Run, RunSet, SetError};
use proptest::prelude::*;
use std::collections::BTreeSet;
use testkit::Rng;

/// Numbers of units at boundaries: words, halves of the limits, the largest groups with runs, larger ones.
const UNITS: &[u32] = &[1, 31, 64, 65, 127, 1000, 4096, 32_768, 65_535, 65_536, 65_537, 80_000];

fn run(start: u32, len: u32) -> Run {
    Run { start, len }
}

/// A set as a list.
#[derive(Clone)]
struct Model(Vec<bool>);

impl Model {
    fn of(bytes: &[u8], units: u32) -> Self {
        Self((0..units as usize).map(|n| bytes.get(n / 8).is_some_and(|byte| byte >> (n % 8) & 1 == 0)).collect())
    }

    fn part(&self, run: Run) -> &[bool] {
        let units = self.0.len();
        &self.0[(run.start as usize).min(units)..(run.end() as usize).min(units)]
    }

    fn part_mut(&mut self, run: Run) -> &mut [bool] {
        let units = self.0.len();
        &mut self.0[(run.start as usize).min(units)..(run.end() as usize).min(units)]
    }

    fn is_inside(&self, run: Run) -> bool {
        run.start as usize + run.len as usize <= self.0.len()
    }

    fn count(&self, run: Run) -> u32 {
        self.part(run).iter().filter(|there| **there).count() as u32
    }

    fn runs(&self) -> Vec<Run> {
        let mut at = 0;
        let chunks = self.0.chunk_by(|a, b| a == b).map(|chunk| {
            let found = (chunk[0], run(at, chunk.len() as u32));
            at += chunk.len() as u32;
            found
        });
        chunks.filter(|(there, _)| *there).map(|(_, run)| run).collect()
    }

    /// The first part of a run whose units are in the set, or are not.
    fn first(&self, whole: Run, present: bool) -> Run {
        let part = self.part(whole);
        let skip = part.iter().position(|there| *there == present).expect("at least one");
        run(whole.start + skip as u32, part[skip..].iter().take_while(|there| **there == present).count() as u32)
    }
}

/// Compares the set with the model, and checks the invariants.
fn compare(set: &Container, model: &Model) {
    let runs = model.runs();
    assert!(set.runs().eq(runs.iter().copied()), "{:?}", set.form());
    assert_eq!(set.count(), model.count(run(0, set.units())));
    assert_eq!((set.is_empty(), set.is_full()), (runs.is_empty(), !model.0.contains(&false)));
    assert_eq!(set.run_count() as usize, runs.len());
    let longest = runs.iter().map(|run| run.len).max().unwrap_or(0);
    let first = runs.iter().find(|run| run.len == longest);
    assert_eq!(set.longest(), first.copied());
    check_memory(set);
}

fn check_memory(set: &Container) {
    let bitmap = set.units().div_ceil(64) as usize * 8;
    assert!(set.memory() <= bitmap + Container::SLACK, "{:?}: {} of {bitmap}", set.form(), set.memory());
    let runs = set.run_count() as usize;
    let all_of_it = matches!(set.form(), Form::Runs | Form::Bits);
    assert!(!all_of_it || set.memory() >= bitmap.min(runs * 4), "{:?} of {runs}: {}", set.form(), set.memory());
}

fn find_in_model(model: &Model, within: &[Run], from: u32, want: u32) -> Option<Run> {
    let behind = within.iter().map(|part| (part.start.max(from), part.end()));
    let before = within.iter().map(|part| (part.start, part.end().min(from)));
    let ends = within.iter().chain(within).map(|part| part.end().min(model.0.len() as u32));
    let mut best: Option<Run> = None;
    for ((start, to), limit) in behind.chain(before).zip(ends) {
        let mut at = start;
        while at < to.min(limit) {
            let len = model.part(run(at, limit - at)).iter().take_while(|there| **there).count() as u32;
            if len.min(want) > best.map_or(0, |best| best.len) {
                best = Some(run(at, len.min(want)));
            }
            at += len.max(1);
        }
    }
    best
}

fn nearest_in_model(model: &Model, goal: u32, want: u32) -> Option<Run> {
    let goal = goal.min(model.0.len() as u32);
    let ends = model.runs().into_iter().filter(|run| run.len >= want);
    let starts = ends.map(|run| goal.clamp(run.start, run.end() - want));
    let nearest = starts.min_by_key(|start| (start.abs_diff(goal), *start < goal))?;
    Some(run(nearest, want))
}

/// A random run, usually a short one, sometimes beyond the end.
fn some_run(rng: &mut Rng, units: u32) -> Run {
    let start = rng.below(u64::from(units) + 2) as u32;
    let most = if rng.below(50) == 0 { u64::from(units) + 9 } else { 1 + u64::from(units).min(64) };
    run(start, rng.magnitude(most) as u32)
}

/// One random change or query; in one phase additions prevail, in the other removals.
fn step(rng: &mut Rng, set: &mut Container, model: &mut Model, adds: bool) {
    let units = set.units();
    let part = some_run(rng, units);
    let adds = adds != (rng.below(4) == 0);
    match rng.below(12) {
        0..5 => {
            let expected = match (model.is_inside(part), model.count(part)) {
                (false, _) => Err(SetError::Outside(part)),
                (_, there) if adds && there > 0 => Err(SetError::Present(model.first(part, true))),
                (_, there) if !adds && there < part.len => Err(SetError::Absent(model.first(part, false))),
                _ => {
                    model.part_mut(part).fill(adds);
                    Ok(())
                }
            };
            assert_eq!(if adds { set.insert(part) } else { set.remove(part) }, expected);
        }
        5 => {
            let there = model.count(part);
            let len = model.part(part).len() as u32;
            model.part_mut(part).fill(adds);
            assert_eq!(if adds { set.add(part) } else { set.cut(part) }, if adds { len - there } else { there });
        }
        6 => {
            let (there, len) = (model.count(part), model.part(part).len() as u32);
            assert_eq!(set.count_in(part), there);
            assert_eq!(set.intersects(part), there > 0);
            assert_eq!(set.contains(part), model.is_inside(part) && there == len);
        }
        7 => {
            let len = model.part(part).iter().take_while(|there| **there).count() as u32;
            assert_eq!(set.run_at(part.start, part.len), len);
        }
        8..11 => {
            let (from, want) = (rng.below(u64::from(units) + 9) as u32, rng.magnitude(u64::from(units) + 9) as u32);
            let half = units / 2;
            let within = match rng.below(4) {
                0 => vec![run(0, half), run(half + 1, units)],
                1 => vec![run(half / 2, half)],
                _ => vec![run(0, units)],
            };
            // requests are about as large as the longest run, so that both results occur
            let want = want.min(set.longest().map_or(0, |longest| longest.len) + 2).max(1);
            assert_eq!(set.find(&within, from, want), find_in_model(model, &within, from, want));
        }
        _ => {
            let most = if rng.below(3) == 0 { u64::from(units) } else { 40 };
            let (goal, want) = (part.start, rng.magnitude(most) as u32);
            assert_eq!(set.nearest(goal, want), nearest_in_model(model, goal, want));
        }
    }
    check_memory(set);
}

/// With EXTANT_CAMPAIGN=50 this takes ten million steps.
#[test]
fn a_container_is_a_set() {
    let steps = 200_000 / 40;
    for case in testkit::cases("a_container_is_a_set", 40) {
        let mut rng = case.rng();
        let units = UNITS[rng.below(UNITS.len() as u64) as usize];
        // the model examines all units at each step
        let steps = if units > 4096 { steps / 3 } else { steps * 3 / 2 };
        let mut bytes = vec![if rng.below(2) == 0 { 0 } else { 255 }; units.div_ceil(8) as usize];
        if rng.below(2) == 0 {
            rng.fill(&mut bytes);
        }
        let (mut set, mut model) = (Container::from_bitmap(&bytes, units), Model::of(&bytes, units));
        compare(&set, &model);
        if rng.below(2) == 0 {
            set.limit_runs(rng.below(40) as u32);
        }
        for n in 0..steps {
            step(&mut rng, &mut set, &mut model, n / (steps / 6) % 2 == 0);
            if n % 256 == 0 {
                compare(&set, &model);
                if n % 1024 == 0 {
                    set.compact();
                    compare(&set, &model);
                }
            }
        }
        compare(&set, &model);
    }
}

/// Bytes of a bitmap: whole parts of it free, in use, mixed.
fn bitmap(most: usize) -> impl Strategy<Value = Vec<u8>> {
    let part = (prop_oneof![Just(0u8), Just(255), any::<u8>()], 1..60usize);
    let part = part.prop_map(|(byte, len)| vec![byte; len]);
    let noise = proptest::collection::vec(any::<u8>(), 1..200);
    let parts = proptest::collection::vec(prop_oneof![3 => part, 1 => noise], 0..40);
    parts.prop_map(move |parts| parts.concat().into_iter().take(most).collect())
}

fn units() -> impl Strategy<Value = u32> {
    prop_oneof![proptest::sample::select(UNITS), 1..9000u32]
}

proptest! {
    #[test]
    fn any_bytes_are_a_bitmap(bytes in bitmap(9000), units in units(), size in 0..9000usize) {
        let (free, used) = (Container::from_bitmap(&bytes, units), Container::from_set_bits(&bytes, units));
        let model = Model::of(&bytes, units);
        compare(&free, &model);
        let covered = (bytes.len() * 8).min(units as usize) as u32;
        prop_assert_eq!(free.count() + used.count(), covered);
        let mut gaps = free.complement();
        gaps.cut(run(covered, units - covered));
        prop_assert_eq!(&gaps, &used);
        compare(&free.complement(), &Model(model.0.iter().map(|there| !there).collect()));
        let mut block = vec![0x5A; size];
        free.write_bitmap(&mut block);
        let stored = (0..size * 8).map(|n| block[n / 8] >> (n % 8) & 1 == 0);
        prop_assert!(stored.eq((0..size * 8).map(|n| model.0.get(n).copied().unwrap_or(false))));
        let again = Container::from_bitmap(&block, units);
        let mut expected = free.clone();
        let end = (size as u32 * 8).min(units);
        expected.cut(run(end, units - end));
        prop_assert_eq!(again, expected);
    }

    #[test]
    fn two_sets_make_one(a in bitmap(9000), b in bitmap(9000), units in units(), other in units(), same: bool) {
        let other = if same { units } else { other };
        let (x, y) = (Container::from_bitmap(&a, units), Container::from_bitmap(&b, other));
        let (p, q) = (Model::of(&a, units), Model::of(&b, other));
        let with = |both: fn(bool, bool) -> bool| {
            let q = q.0.iter().copied().chain(std::iter::repeat(false));
            Model(p.0.iter().zip(q).map(|(p, q)| both(*p, q)).collect())
        };
        let mut union = x.clone();
        union.union_with(&y);
        compare(&union, &with(|p, q| p | q));
        let mut rest = x.clone();
        rest.subtract(&y);
        compare(&rest, &with(|p, q| p & !q));
        let mut both = x.clone();
        both.intersect_with(&y);
        compare(&both, &with(|p, q| p & q));
        prop_assert_eq!(&x.intersection(&y), &both);
        prop_assert_eq!(x == y, units == other && p.0 == q.0);
        for from in [0, 1, units / 2, units, u32::MAX] {
            let mut later = x.clone();
            later.cut(run(0, from));
            prop_assert!(x.runs_from(from).eq(later.runs()));
        }
    }

    #[test]
    fn a_set_of_a_volume_is_a_set(
        size in prop_oneof![Just(8u32), Just(100), Just(64)],
        steps in proptest::collection::vec((0..8u8, 0..1000u64, 1..300u64), 1..60),
    ) {
        let mut sets = [RunSet::new(size), RunSet::new(size), RunSet::new(77)];
        let mut models: [BTreeSet<u64>; 3] = Default::default();
        for (kind, start, len) in steps {
            let (n, other) = (start as usize % 3, len as usize % 3);
            let run = BlockRun { start, len };
            let there = models[n].range(start..start + len).count() as u64;
            prop_assert_eq!(sets[n].count_in(start..start + len), there);
            prop_assert_eq!((sets[n].contains(run), sets[n].intersects(run)), (there == len, there > 0));
            let all = start..start + len;
            let others = (models[other].clone(), sets[other].clone());
            match kind {
                0 => {
                    prop_assert_eq!(sets[n].insert(run).is_ok(), there == 0);
                    if there == 0 { models[n].extend(all) }
                }
                1 => {
                    prop_assert_eq!(sets[n].remove(run).is_ok(), there == len);
                    if there == len { models[n].retain(|block| !all.contains(block)) }
                }
                2 | 3 => {
                    prop_assert_eq!(sets[n].add(run), len - there);
                    models[n].extend(all);
                }
                4 => {
                    prop_assert_eq!(sets[n].cut(run), there);
                    models[n].retain(|block| !all.contains(block));
                }
                5 => {
                    sets[n].union_with(&others.1);
                    models[n].extend(others.0);
                }
                6 => {
                    sets[n].subtract(&others.1);
                    models[n].retain(|block| !others.0.contains(block));
                }
                _ => {
                    sets[n].intersect_with(&others.1);
                    models[n].retain(|block| others.0.contains(block));
                }
            }
            prop_assert_eq!(sets[n].count(), models[n].len() as u64);
            prop_assert_eq!(sets[n].is_empty(), models[n].is_empty());
            let runs: Vec<BlockRun> = sets[n].runs_from(start / 2).collect();
            prop_assert!(runs.windows(2).all(|pair| pair[0].end() < pair[1].start));
            let blocks = runs.iter().flat_map(|run| run.start..run.end());
            prop_assert!(blocks.eq(models[n].range(start / 2..).copied()));
            prop_assert!(sets[n].groups().all(|(_, blocks)| !blocks.is_empty()));
        }
        let mut whole = sets[0].clone();
        let taken: Vec<u64> = whole.groups().map(|(group, _)| group).collect();
        for group in taken {
            let blocks = whole.take_group(group).expect("present");
            sets[1].add_group(group, &blocks);
            models[1].extend(blocks.runs().flat_map(|run| run.start..run.end()).map(|unit| group * u64::from(size) + u64::from(unit)));
        }
        prop_assert!(whole.is_empty() && whole.memory() == 0);
        prop_assert!(sets[1].runs().flat_map(|run| run.start..run.end()).eq(models[1].iter().copied()));
    }

    #[test]
    fn the_tree_finds_the_next_group(
        groups in prop_oneof![0..40u32, Just(256), Just(257), 4000..5000u32],
        steps in proptest::collection::vec((any::<u32>(), 0..50u32, any::<bool>()), 1..200),
    ) {
        let mut tree = Longest::new(groups, 20);
        let mut model = vec![20; groups as usize];
        for (at, bound, raises) in steps {
            // every other number is at an end, where few groups are large
            let group = if at % 2 == 0 { at % groups.max(1) } else { at % 16 };
            let old = tree.bound(group);
            if raises { tree.raise(group, bound) } else { tree.set(group, bound / 3) }
            if let Some(there) = model.get_mut(group as usize) {
                *there = if raises { bound.max(old) } else { bound / 3 };
            }
            prop_assert_eq!(tree.largest(), model.iter().copied().max().unwrap_or(0));
            for goal in [0, group, groups / 2, groups.saturating_sub(1), groups] {
                let order = || (goal..groups).chain(0..goal.min(groups));
                let next = order().find(|group| model[*group as usize] >= bound.max(1));
                prop_assert_eq!(tree.next_from(goal, bound.max(1)), next);
                let inside = (goal..(goal + 20).min(groups)).find(|group| model[*group as usize] >= bound);
                prop_assert_eq!(tree.next_in(goal..goal + 20, bound), inside);
            }
        }
        prop_assert!((0..groups).all(|group| tree.bound(group) == model[group as usize]));
        prop_assert_eq!((tree.groups(), tree.bound(groups)), (groups, 0));
    }
}

#[test]
fn forms_follow_the_set_and_do_not_flip() {
    let mut set = Container::full(32_768);
    assert_eq!((set.form(), set.memory()), (Form::Full, 0));
    let mut changes = Vec::new();
    let mut form = set.form();
    let mut note = |set: &Container, n: u32| {
        if set.form() != form {
            form = set.form();
            changes.push((form, n));
        }
        check_memory(set);
    };
    for n in 0..16_384 {
        set.remove(run(n * 2, 1)).expect("present");
        note(&set, n);
    }
    for n in (0..16_384).rev() {
        set.insert(run(n * 2, 1)).expect("absent");
        note(&set, n);
    }
    let order: Vec<Form> = changes.iter().map(|(form, _)| *form).collect();
    assert_eq!(order, [Form::Runs, Form::Bits, Form::Runs, Form::Full]);
    let (to_bits, to_runs) = (changes[1].1, changes[2].1);
    assert!((1000..=1024).contains(&to_bits) && (500..=512).contains(&to_runs), "{changes:?}");
    set.cut(run(0, 32_768));
    assert_eq!((set.form(), set.longest()), (Form::Empty, None));
    // in between, one unit more or less changes nothing
    for _ in 0..1100 {
        let at = set.runs().last().map_or(0, |last| last.end() + 1);
        set.insert(run(at, 1)).expect("absent");
    }
    assert_eq!(set.form(), Form::Bits);
    for n in 0..400 {
        set.remove(run(n * 2, 1)).expect("present");
        assert_eq!(set.form(), Form::Bits);
    }
    set.compact();
    assert_eq!((set.form(), set.run_count()), (Form::Runs, 700));
    assert_eq!(set.memory(), 2800);
}

#[test]
fn large_groups_are_bits() {
    let mut set = Container::full(8 * 65_536);
    assert_eq!((set.form(), set.memory()), (Form::Full, 0));
    set.remove(run(5, 1)).expect("present");
    assert_eq!((set.form(), set.memory()), (Form::Bits, 65_536));
    assert_eq!(set.longest(), Some(run(6, 8 * 65_536 - 6)));
    assert_eq!(set.find(&[run(0, 8 * 65_536)], 7, 500_000), Some(run(7, 500_000)));
    set.cut(run(0, 8 * 65_536));
    set.compact();
    assert_eq!((set.form(), set.memory()), (Form::Empty, 0));
}

#[test]
fn absent_groups_cost_nothing() {
    let mut set = RunSet::new(32_768);
    set.add(BlockRun { start: 1 << 40, len: 1 << 30 });
    assert_eq!((set.count(), set.groups().count()), (1 << 30, 32_768));
    let each = set.memory() / 32_768;
    assert!(each <= 64, "{each} bytes for a full group");
    assert_eq!(set.runs().collect::<Vec<_>>(), [BlockRun { start: 1 << 40, len: 1 << 30 }]);
    assert_eq!(set.cut(BlockRun { start: 0, len: u64::MAX }), 1 << 30);
    assert_eq!(set.memory(), 0);
}

#[test]
fn a_map_in_use_is_no_larger_than_bitmaps_and_small_at_rest() {
    let bitmap = 4096 + Container::SLACK;
    for case in testkit::cases("a_map_in_use_is_no_larger", 4) {
        let mut rng = case.rng();
        let mut map = ContainerMap::new(32_768);
        let whole = [run(0, 32_768)];
        let mut files = Vec::new();
        for n in 0..20_000 {
            let fills = map.available() > 10_000 + (n % 7) * 2000;
            if fills && let Some(found) = map.find(&whole, rng.below(32_768) as u32, rng.magnitude(600) as u32 + 1) {
                assert!(map.allocate(found) && !map.allocate(found));
                files.push(found);
            } else if !files.is_empty() {
                let gone = files.swap_remove(rng.below(files.len() as u64) as usize);
                assert!(map.free(gone, false) && !map.free(gone, false));
            }
            assert!(map.memory() <= bitmap);
            if n % 1000 == 999 {
                map.compact();
                let set = map.available_units();
                assert!(map.memory() <= 4 * set.run_count() as usize && set.form() == Form::Runs);
            }
        }
        let all = map.clone();
        files.into_iter().for_each(|gone| assert!(map.free(gone, true)));
        assert!(map.memory() <= 2 * bitmap + size_of::<Container>());
        assert_eq!((map.free_units(), map.available()), (32_768, all.available()));
        map.release(run(0, 32_768));
        map.compact();
        assert_eq!((map.memory(), map.available()), (0, 32_768));
    }
    let every_second = ContainerMap::from_bytes(&[0x55; 4096], 32_768);
    assert_eq!((every_second.memory(), every_second.available()), (4096, 16_384));
}
