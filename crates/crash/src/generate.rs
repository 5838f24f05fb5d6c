//! Generates workloads: all of one operation, all or some of two, random longer ones.
//!
//! As in ACE (the generator of CrashMonkey): every operation on a small fixed set of names, followed by every placement
//! of fsync, fdatasync and sync. The prerequisites of an operation are created before it, and are durable: they are the
//! setup of the workload.
//!
//! 1. The same arguments yield the same workloads.
//! 2. A workload of one or two operations succeeds on the model.
//! 3. Each write has its own number, so that its bytes differ from those of all others.

use std::sync::Arc;

use crate::model::{Body, Node, State};
use crate::op::{FallocateHow, Op, Workload};

/// An operation to explore, and the setup it needs.
const CORE: [(&str, &str); 61] = [
    ("", "create foo"),
    ("mkdir A", "create A/foo"),
    ("mkdir A; create A/bar", "create A/foo"),
    ("", "mkdir A"),
    ("mkdir A", "mkdir A/C"),
    ("mkdir A", "rmdir A"),
    ("mkdir A; mkdir A/C", "rmdir A/C"),
    ("", "symlink foo bar"),
    ("mkdir A", "symlink a-target-that-is-longer-than-the-sixty-bytes-that-an-inode-has-room-for A/bar"),
    (FOO, "link foo bar"),
    ("mkdir A; create foo", "link foo A/bar"),
    ("mkdir A; create A/foo; append A/foo 3000 =1", "link A/foo bar"),
    ("mkdir A; create A/foo", "link A/foo A/bar"),
    ("mkdir A; mkdir B; create A/foo", "link A/foo B/foo"),
    (FOO, "unlink foo"),
    ("mkdir A; create A/foo; append A/foo 20000 =1", "unlink A/foo"),
    ("create foo; append foo 3000 =1; link foo bar", "unlink foo"),
    ("create foo; append foo 3000 =1; open foo", "unlink foo"),
    (FOO, "rename foo bar"),
    ("create foo; append foo 3000 =1; create bar; append bar 5000 =2", "rename foo bar"),
    ("mkdir A; create A/foo", "rename A/foo A/bar"),
    ("mkdir A; create A/foo; append A/foo 3000 =1", "rename A/foo bar"),
    ("mkdir A; create foo; create A/bar; append A/bar 3000 =1", "rename foo A/bar"),
    ("mkdir A; mkdir B; create A/foo; create B/foo", "rename A/foo B/foo"),
    ("mkdir A; create A/foo", "rename A B"),
    ("mkdir A; mkdir B; mkdir A/C", "rename A/C B/C"),
    ("mkdir A; mkdir B; create A/foo", "rename A B"),
    ("create foo", "rename foo bar noreplace"),
    ("create foo; append foo 3000 =1; create bar; append bar 500 =2", "rename foo bar exchange"),
    ("mkdir A; create A/foo; create bar; mkdir B; create B/bar", "rename A bar exchange"),
    ("mkdir A; mkdir A/C; mkdir B; create B/bar", "rename A/C B/bar exchange"),
    (FOO, "write foo 0 4096 =9"),
    (FOO, "write foo 100 300 =9"),
    (FOO, "write foo 1024 2048 =9"),
    (FOO, "write foo 2000 8000 =9"),
    (FOO, "write foo 40960 3000 =9"),
    ("create foo", "write foo 0 5000 =9"),
    ("mkdir A; create A/foo; truncate A/foo 30000", "write A/foo 9000 3000 =9"),
    (FOO, "append foo 100 =9"),
    (FOO, "append foo 9000 =9"),
    ("mkdir A; create A/foo; append A/foo 1024 =1", "append A/foo 1024 =9"),
    ("create foo; append foo 300000 =1", "append foo 3000 =9"),
    (FOO, "truncate foo 0"),
    (FOO, "truncate foo 1024"),
    (FOO, "truncate foo 700"),
    (FOO, "truncate foo 20000"),
    ("mkdir A; create A/foo; append A/foo 300000 =1", "truncate A/foo 2000"),
    (FOO, "fallocate foo plain 0 20000"),
    (FOO, "fallocate foo keep 8192 8192"),
    (FOO, "fallocate foo zero 1000 3000"),
    (FOO, "fallocate foo zero 2048 16384"),
    (FOO, "fallocate foo zero-keep 2048 16384"),
    (FOO, "fallocate foo punch 1000 2500"),
    (FOO, "fallocate foo collapse 1024 1024"),
    (FOO, "fallocate foo insert 1024 2048"),
    (FOO, "setxattr foo user.a 40 =9"),
    ("create foo; setxattr foo user.a 40 =1", "setxattr foo user.b 700 =9"),
    ("mkdir A; setxattr A user.a 700 =1", "setxattr A user.a 300 =9"),
    ("create foo; setxattr foo user.a 700 =1", "removexattr foo user.a"),
    (FOO, "chmod foo 600"),
    ("mkdir A", "chmod A 700"),
];

/// A file with some bytes, the usual setup.
const FOO: &str = "create foo; append foo 5000 =1";

fn parse(text: &str) -> Vec<Op> {
    text.split(';').filter_map(|op| op.parse().ok()).collect()
}

/// The operations that may follow an operation to make it durable: none, sync, fsync and fdatasync of its objects,
/// fsync of their directories, of a file and then of its directory, and of the root, and time.
fn placements(op: &Op) -> Vec<Vec<Op>> {
    let fsync = |path: &String| Op::Fsync { path: path.clone() };
    let dir_of = |path: &String| path.rsplit_once('/').map_or_else(|| ".".to_owned(), |(dir, _)| dir.to_owned());
    let mut found = vec![vec![], vec![Op::Sync], vec![Op::Wait { seconds: 12 }]];
    for path in &after(op) {
        found.push(vec![fsync(path)]);
        found.push(vec![Op::Fdatasync { path: path.clone() }]);
        found.push(vec![fsync(path), fsync(&dir_of(path))]);
    }
    let mut dirs: Vec<String> = about(op).iter().map(dir_of).collect();
    dirs.push(".".into());
    dirs.sort_unstable();
    dirs.dedup();
    found.extend(dirs.iter().map(|path| vec![fsync(path)]));
    found
}

/// The paths of an operation.
fn about(op: &Op) -> Vec<String> {
    match op {
        Op::Create { path }
        | Op::Mkdir { path }
        | Op::Rmdir { path }
        | Op::Unlink { path }
        | Op::Symlink { path, .. }
        | Op::Write { path, .. }
        | Op::Append { path, .. }
        | Op::Truncate { path, .. }
        | Op::Fallocate { path, .. }
        | Op::SetXattr { path, .. }
        | Op::RemoveXattr { path, .. }
        | Op::Chmod { path, .. } => vec![path.clone()],
        Op::Link { from, to } | Op::Rename { from, to, .. } => vec![from.clone(), to.clone()],
        _ => Vec::new(),
    }
}

/// The paths that may exist afterwards and can be synced separately.
fn after(op: &Op) -> Vec<String> {
    match op {
        Op::Rmdir { .. } | Op::Unlink { .. } | Op::Symlink { .. } => Vec::new(),
        Op::Rename { to, .. } => vec![to.clone()],
        _ => about(op),
    }
}

/// Every workload of one operation with its placements of durability.
#[must_use]
pub fn one() -> Vec<Workload> {
    let mut workloads = Vec::new();
    for (setup, op) in CORE {
        let Ok(op) = op.parse::<Op>() else { continue };
        // open files are opened on the explored volume, not in the setup
        let (open, setup): (Vec<_>, Vec<_>) = parse(setup).into_iter().partition(|op| matches!(op, Op::Open { .. }));
        for placement in placements(&op) {
            let mut ops = open.clone();
            ops.push(op.clone());
            ops.extend(placement);
            workloads.push(Workload { setup: setup.clone(), ops });
        }
    }
    workloads
}

/// The operations around a successful one: before it on the explored volume, and after it.
const AROUND: [(&str, &str); 9] = [
    ("snapshot create s", ""),
    ("snapshot create s", "sync; snapshot create t; snapshot delete s"),
    ("", "snapshot create s"),
    ("", "snapshot create s; create z; append z 9000 =8; sync; snapshot delete s; create y; append y 9000 =7; sync"),
    ("snapshot create s; snapshot create t", "sync; snapshot delete t; snapshot delete s"),
    ("begin", "commit"),
    ("begin; create z; append z 9000 =8", "rename z y; commit; sync"),
    ("begin; create z", "rollback; create y; append y 5000 =8; sync"),
    ("snapshot create s; begin", "commit; snapshot create t; begin; create z; rollback; snapshot delete s"),
];

/// Every operation between snapshots and in transactions, for volumes that support them.
#[must_use]
pub fn versions() -> Vec<Workload> {
    let mut workloads = Vec::new();
    for (setup, op) in CORE {
        let (open, setup): (Vec<_>, Vec<_>) = parse(setup).into_iter().partition(|op| matches!(op, Op::Open { .. }));
        for (before, after) in AROUND {
            let ops = [open.clone(), parse(before), parse(op), parse(after)].concat();
            workloads.push(Workload { setup: setup.clone(), ops });
        }
    }
    workloads
}

/// The workloads of two operations with their placements of durability, by number.
#[derive(Debug)]
pub struct Pairs(Vec<Workload>);

impl Pairs {
    /// All pairs.
    #[must_use]
    pub fn new() -> Self {
        Self(one())
    }

    /// The number of pairs; they are numbered from 0.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.len() as u64 * self.0.len() as u64
    }

    /// The workload of this number; `None` if its second operation fails after its first.
    #[must_use]
    pub fn get(&self, number: u64) -> Option<Workload> {
        let count = self.0.len() as u64;
        join(self.0.get((number / count) as usize)?, self.0.get((number % count) as usize)?)
    }

    /// Slice `slice`, from 0, of `of` slices: every `of`-th number. All slices together are all workloads of two
    /// operations.
    #[must_use]
    pub fn slice(&self, slice: u64, of: u64) -> Vec<Workload> {
        let step = usize::try_from(of.max(1)).unwrap_or(usize::MAX);
        (slice..self.count()).step_by(step).filter_map(|number| self.get(number)).collect()
    }

    /// `count` pairs, chosen by the seed.
    #[must_use]
    pub fn sample(&self, seed: u64, count: usize) -> Vec<Workload> {
        let mut numbers = fastrand::Rng::with_seed(seed);
        let draws = count.saturating_mul(20);
        (0..draws).filter_map(|_| self.get(numbers.u64(..self.count()))).take(count).collect()
    }
}

impl Default for Pairs {
    fn default() -> Self {
        Self::new()
    }
}

/// Joins two workloads, on a volume with the prerequisites of both.
fn join(first: &Workload, second: &Workload) -> Option<Workload> {
    let mut state = State::empty();
    let mut setup = Vec::new();
    for op in first.setup.iter().chain(&second.setup) {
        // prerequisites that exist are not created again
        if state.apply(op, 1).is_ok() {
            setup.push(op.clone());
        }
    }
    let mut ops = first.ops.clone();
    ops.extend(second.ops.iter().map(renumber));
    ops.iter().all(|op| state.apply(op, 1024).is_ok()).then_some(Workload { setup, ops })
}

/// The same operation with a seed of its own.
fn renumber(op: &Op) -> Op {
    let mut op = op.clone();
    if let Op::Write { seed, .. } | Op::Append { seed, .. } | Op::SetXattr { seed, .. } = &mut op {
        *seed += 10;
    }
    op
}

/// A random workload of `length` operations; some of them fail.
#[must_use]
pub fn random(seed: u64, length: usize) -> Workload {
    random_of(seed, length, false)
}

/// A random workload with snapshots and transactions in it.
#[must_use]
pub fn random_versions(seed: u64, length: usize) -> Workload {
    random_of(seed, length, true)
}

fn random_of(seed: u64, length: usize, versions: bool) -> Workload {
    let mut random = Random { numbers: fastrand::Rng::with_seed(seed), writes: 100, open: Vec::new(), versions };
    let mut state = State::empty();
    // a mount begins without open files
    let setup: Vec<Op> = random.ops(length / 2, &mut state).into_iter().filter(|op| !uses_open(op)).collect();
    random.open.clear();
    state = State::empty();
    for op in &setup {
        let _ = state.apply(op, 1024);
    }
    let ops = random.ops(length, &mut state);
    Workload { setup, ops }
}

fn uses_open(op: &Op) -> bool {
    matches!(op, Op::Open { .. } | Op::Close { .. } | Op::Tmpfile { .. }) || op.to_string().contains('@')
}

struct Random {
    numbers: fastrand::Rng,
    writes: u32,
    open: Vec<String>,
    /// Whether to use snapshots and transactions.
    versions: bool,
}

const NAMES: [&str; 12] = [
    "foo",
    "bar",
    "A",
    "B",
    "A/foo",
    "A/bar",
    "B/foo",
    "B/bar",
    "A/C",
    "A/C/foo",
    "B/a-long-name-that-takes-a-place",
    "baz",
];

impl Random {
    /// `count` operations, based on the state of the model.
    fn ops(&mut self, count: usize, state: &mut State) -> Vec<Op> {
        let mut ops = Vec::with_capacity(count);
        for _ in 0..count {
            let op = if self.versions && self.numbers.u8(..100) < 12 { self.version(state) } else { self.op(state) };
            let _ = state.apply(&op, 1024);
            ops.push(op);
        }
        ops
    }

    /// An operation on snapshots or transactions, which do not stay open for long.
    fn version(&mut self, state: &State) -> Op {
        if state.before.is_some() {
            return if self.numbers.u8(..3) == 0 { Op::Rollback } else { Op::Commit };
        }
        let name = format!("s{}", self.numbers.u8(..4));
        match self.numbers.u8(..3) {
            0 => Op::Begin,
            _ if state.snapshots.contains_key(&name) => Op::DeleteSnapshot { name },
            _ => Op::CreateSnapshot { name },
        }
    }

    /// Mostly an existing path.
    fn there(&mut self, state: &State) -> String {
        let paths: Vec<String> =
            state.paths().into_iter().map(|(path, _)| path).filter(|path| !path.is_empty()).collect();
        match self.numbers.choice(&paths) {
            Some(path) if self.numbers.u8(..) > 12 => path.clone(),
            _ => self.name(),
        }
    }

    /// Mostly an existing path of a file or directory: not a symbolic link, which does not support all operations.
    fn object(&mut self, state: &State) -> String {
        let path = self.there(state);
        let link = |node: &Arc<Node>| matches!(node.body, Body::Symlink(_));
        if state.resolve(&path).is_ok_and(|id| state.node(id).is_some_and(link)) { ".".into() } else { path }
    }

    /// Mostly an existing regular file, or an open one.
    fn file(&mut self, state: &State) -> String {
        if self.numbers.u8(..) < 30
            && let Some(open) = self.numbers.choice(&self.open)
        {
            return format!("@{open}");
        }
        let is_file = |id: &u64| state.node(*id).is_some_and(|node| node.data().is_some());
        let paths: Vec<String> =
            state.paths().into_iter().filter(|(_, id)| is_file(id)).map(|(path, _)| path).collect();
        self.numbers.choice(&paths).cloned().unwrap_or_else(|| self.name())
    }

    fn name(&mut self) -> String {
        self.numbers.choice(NAMES).unwrap_or("foo").to_owned()
    }

    fn seed(&mut self) -> u32 {
        self.writes += 1;
        self.writes
    }

    /// A length or an offset: mostly small, sometimes close to a block boundary.
    fn size(&mut self, most: u64) -> u64 {
        match self.numbers.u8(..4) {
            0 => self.numbers.u64(1..=most / 1024) * 1024,
            1 => self.numbers.u64(1..=600),
            _ => self.numbers.u64(1..=most),
        }
    }

    fn op(&mut self, state: &State) -> Op {
        match self.numbers.u8(..100) {
            0..=11 => Op::Create { path: self.name() },
            12..=17 => Op::Mkdir { path: self.name() },
            18..=19 => Op::Rmdir { path: self.there(state) },
            20..=21 => Op::Symlink { target: self.name(), path: self.name() },
            22..=26 => Op::Link { from: self.file(state), to: self.name() },
            27..=33 => Op::Unlink { path: self.there(state) },
            34..=42 => {
                let how = match self.numbers.u8(..6) {
                    0 => crate::op::RenameHow::Exchange,
                    1 => crate::op::RenameHow::NoReplace,
                    _ => crate::op::RenameHow::Replace,
                };
                let from = self.there(state);
                let to = if self.numbers.bool() { self.there(state) } else { self.name() };
                Op::Rename { from, to, how }
            }
            43..=53 => {
                let (offset, len) = (self.size(12_000), self.size(9_000));
                Op::Write { path: self.file(state), offset, len, seed: self.seed() }
            }
            54..=64 => {
                let len = self.size(9_000);
                Op::Append { path: self.file(state), len, seed: self.seed() }
            }
            65..=69 => {
                let size = if self.numbers.u8(..3) == 0 { 0 } else { self.size(20_000) };
                Op::Truncate { path: self.file(state), size }
            }
            70..=75 => {
                let (how, _) = *self.numbers.choice(&FallocateHow::WORDS).unwrap_or(&FallocateHow::WORDS[0]);
                let offset = self.numbers.u64(..12) * 1024;
                let (offset, len) = match how {
                    FallocateHow::Collapse | FallocateHow::Insert => (offset, self.numbers.u64(1..6) * 1024),
                    _ => (offset + self.numbers.u64(..2) * 300, self.size(9_000)),
                };
                Op::Fallocate { path: self.file(state), how, offset, len }
            }
            76..=79 => {
                let name = format!("user.{}", self.numbers.u8(..3));
                let len = self.size(1_200).min(700);
                Op::SetXattr { path: self.object(state), name, len, seed: self.seed() }
            }
            80..=81 => Op::RemoveXattr { path: self.object(state), name: format!("user.{}", self.numbers.u8(..3)) },
            82..=83 => Op::Chmod { path: self.object(state), mode: self.numbers.u16(..0o1000) },
            84..=86 => {
                let path = self.file(state);
                if path.starts_with('@') || self.open.contains(&path) {
                    return Op::Sync;
                }
                self.open.push(path.clone());
                Op::Open { path }
            }
            87..=88 => match self.open.pop() {
                Some(path) => Op::Close { path },
                None => Op::Sync,
            },
            89..=94 => Op::Fsync { path: if self.numbers.bool() { self.file(state) } else { self.object(state) } },
            95..=97 => Op::Fdatasync { path: self.file(state) },
            98 => Op::Wait { seconds: *self.numbers.choice(&[2, 6, 12]).unwrap_or(&2) },
            _ => Op::Sync,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn all_of_one_operation_succeed() {
        let workloads = one();
        for workload in &workloads {
            let mut state = State::empty();
            for op in workload.setup.iter().chain(&workload.ops) {
                state.apply(op, 1024).unwrap_or_else(|e| panic!("{workload}: `{op}` {e}"));
            }
            assert_eq!(workload.to_string().parse(), Ok(workload.clone()));
        }
        let different: HashSet<_> = workloads.iter().collect();
        assert_eq!(different.len(), workloads.len());
        assert!((430..600).contains(&workloads.len()), "{}", workloads.len());
    }

    #[test]
    fn every_operation_succeeds_among_versions() {
        for workload in &versions() {
            let mut state = State::empty();
            for op in workload.setup.iter().chain(&workload.ops) {
                // an open file remains open in a transaction
                state.apply(op, 1024).unwrap_or_else(|e| panic!("{workload}: `{op}` {e}"));
            }
            assert_eq!(workload.to_string().parse(), Ok(workload.clone()));
        }
        let many: Vec<Op> = (0..20).flat_map(|seed| random_versions(seed, 100).ops).collect();
        for wanted in ["snapshot create", "snapshot delete", "begin", "commit", "rollback"] {
            let count = many.iter().filter(|op| op.to_string().starts_with(wanted)).count();
            assert!(count > 20, "{wanted}: {count}");
        }
    }

    #[test]
    fn pairs_are_numbered() {
        let pairs = Pairs::new();
        let some: Vec<_> = (0..pairs.count()).step_by(997).filter_map(|number| pairs.get(number)).collect();
        assert!(some.len() * 997 * 4 > pairs.count() as usize * 3, "{}", some.len());
        assert!(some.iter().all(|workload| workload.ops.len() >= 2));
        assert_eq!(pairs.sample(1, 30), pairs.sample(1, 30));
        assert_eq!(pairs.sample(2, 30).len(), 30);
        assert_eq!(pairs.get(pairs.count()), None);
        assert_eq!(pairs.slice(0, 997), some);
        assert_eq!(pairs.slice(3, pairs.count()), Vec::from_iter(pairs.get(3)));
    }

    #[test]
    fn random_ones_come_from_their_seed() {
        let workload = random(7, 60);
        assert_eq!(workload, random(7, 60));
        assert_ne!(workload, random(8, 60));
        assert_eq!(workload.to_string().parse(), Ok(workload.clone()));
        let mut state = State::empty();
        let done = workload.setup.iter().chain(&workload.ops).filter(|op| state.apply(op, 1024).is_ok()).count();
        assert!(done > 40, "{done} of {workload}");
    }
}
