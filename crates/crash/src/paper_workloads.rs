//! The workloads of the papers that this project implements, as short samples of the same operations.
//!
//! A benchmark of a hundred thousand operations is reduced to its mixture: the order of operations, the numbers of
//! files and directories, their sizes, and the points of durability. Sizes are limited to 48 KiB: an explored volume
//! has a few megabytes.
//!
//! | name | source | description |
//! | --- | --- | --- |
//! | `empty-files` | meta-data snapshotting, microbenchmark | empty files are created in some directories, then removed |
//! | `postmark` | all five | a pool of small files; each transaction creates or removes one and reads or appends to one |
//! | `postmark-sync` | dirty bit | the same, with a sync at the end |
//! | `dbench` | meta-data snapshotting | clients with a directory each: files are created, written, flushed, read, renamed, removed |
//! | `kuntar` | dirty bit, space maps | a source tree is unpacked, then a sync |
//! | `krmtar` | dirty bit | a source tree is removed, then a sync |
//! | `tpc` | Kero | transactions on accounts, tellers and branches of 1 000 bytes each, and a history, each made durable |
//! | `bonnie` | Kero | a large file is written, rewritten, changed at random; small files are created and removed |
//! | `varmail` | ffsck, Filebench | mail: files are removed, created and appended to with fsync, and read |
//! | `fileserver` | ffsck, Filebench | whole files are written, appended to, read, removed |
//! | `small-and-large` | space maps | source trees are unpacked while large files are copied |

use std::collections::BTreeSet;

use crate::op::{Op, Workload};

/// Maximum length of a file in bytes, except for large ones.
const MOST: u64 = 48 << 10;

/// Generates one kind of workload.
type Make = fn(&mut Script);

/// All kinds, by name.
pub const PAPERS: [(&str, Make); 11] = [
    ("empty-files", empty_files),
    ("postmark", |script| postmark(script, false)),
    ("postmark-sync", |script| postmark(script, true)),
    ("dbench", dbench),
    ("kuntar", |script| {
        unpack(script, "src", 14);
        script.ops.push(Op::Sync);
    }),
    ("krmtar", krmtar),
    ("tpc", tpc),
    ("bonnie", bonnie),
    ("varmail", varmail),
    ("fileserver", fileserver),
    ("small-and-large", small_and_large),
];

/// `count` workloads, of each kind in turn, with consecutive seeds from this one.
#[must_use]
pub fn sample(seed: u64, count: usize) -> Vec<Workload> {
    let seeds = seed..seed.saturating_add(count as u64);
    seeds.zip(PAPERS.iter().cycle()).map(|(seed, (_, make))| one(*make, seed)).collect()
}

fn one(make: Make, seed: u64) -> Workload {
    let numbers = fastrand::Rng::with_seed(seed);
    let mut script = Script { numbers, writes: 0, setup: Vec::new(), ops: Vec::new(), files: BTreeSet::new() };
    make(&mut script);
    Workload { setup: script.setup, ops: script.ops }
}

/// A workload under construction.
pub struct Script {
    numbers: fastrand::Rng,
    /// The number of the newest write.
    writes: u32,
    setup: Vec<Op>,
    ops: Vec<Op>,
    /// The files to choose from.
    files: BTreeSet<String>,
}

impl Script {
    /// Moves the operations so far to the end of the setup.
    fn is_setup(&mut self) {
        self.setup.append(&mut self.ops);
    }

    fn some(&mut self, least: u64, most: u64) -> u64 {
        self.numbers.u64(least..=most)
    }

    /// A random file.
    fn file(&mut self) -> Option<String> {
        self.numbers.choice(&self.files).cloned()
    }

    fn dirs(&mut self, stem: &str, count: u64) {
        self.ops.extend((0..count).map(|n| Op::Mkdir { path: format!("{stem}{n}") }));
    }

    fn append(&mut self, path: &str, len: u64) {
        self.writes += 1;
        self.ops.push(Op::Append { path: path.to_owned(), len, seed: self.writes });
    }

    fn write(&mut self, path: &str, offset: u64, len: u64) {
        self.writes += 1;
        self.ops.push(Op::Write { path: path.to_owned(), offset, len, seed: self.writes });
    }

    fn read(&mut self, path: &str) {
        self.ops.push(Op::Read { path: path.to_owned() });
    }

    fn fsync(&mut self, path: &str) {
        self.ops.push(Op::Fsync { path: path.to_owned() });
    }

    /// Creates a file of `len` bytes, written in parts of at most 16 KiB.
    fn create(&mut self, path: &str, len: u64) {
        self.ops.push(Op::Create { path: path.to_owned() });
        self.files.insert(path.to_owned());
        let mut left = len;
        while left > 0 {
            let piece = left.min(16 << 10);
            self.append(path, piece);
            left -= piece;
        }
    }

    fn unlink(&mut self, path: &str) {
        self.ops.push(Op::Unlink { path: path.to_owned() });
        self.files.remove(path);
    }
}

fn empty_files(script: &mut Script) {
    let (dirs, count) = (script.some(2, 5), script.some(12, 30));
    script.dirs("d", dirs);
    if script.numbers.bool() {
        script.is_setup();
    }
    for n in 0..count {
        script.create(&format!("d{}/f{n}", n % dirs), 0);
    }
    for path in std::mem::take(&mut script.files) {
        script.unlink(&path);
    }
}

/// Equal bias for read and append, create and delete; sizes from 500 bytes to 16 KiB.
fn postmark(script: &mut Script, sync: bool) {
    let (dirs, count) = (script.some(1, 4), script.some(6, 16));
    script.dirs("d", dirs);
    for n in 0..count {
        let len = script.some(500, 16 << 10);
        script.create(&format!("d{}/{n}", n % dirs), len);
    }
    script.is_setup();
    for n in count..count + 14 {
        if script.numbers.bool() {
            let (dir, len) = (script.some(0, dirs - 1), script.some(500, 16 << 10));
            script.create(&format!("d{dir}/{n}"), len);
        } else if let Some(path) = script.file() {
            script.unlink(&path);
        }
        let (append, len) = (script.numbers.bool(), script.some(1, 4096));
        match script.file() {
            Some(path) if append => script.append(&path, len),
            Some(path) => script.read(&path),
            None => {}
        }
    }
    if sync {
        script.ops.push(Op::Sync);
    }
}

fn dbench(script: &mut Script) {
    let clients = script.some(1, 3);
    script.dirs("client", clients);
    for n in 0..12 {
        let dir = format!("client{}", script.some(0, clients - 1));
        let path = format!("{dir}/{n}");
        let len = script.some(1000, MOST);
        script.create(&path, len);
        if script.numbers.bool() {
            script.fsync(&path); // flushing out data
        }
        script.read(&path);
        match script.some(0, 5) {
            0 => {
                script.ops.push(Op::Rename {
                    from: path.clone(),
                    to: format!("{dir}/r{n}"),
                    how: crate::op::RenameHow::Replace,
                });
                script.files.remove(&path);
                script.files.insert(format!("{dir}/r{n}"));
            }
            1 => script.unlink(&path),
            2 => {
                let path = format!("{dir}/sub{n}");
                script.ops.extend([Op::Mkdir { path: path.clone() }, Op::Rmdir { path }]);
            }
            3 => {
                let (offset, len) = (script.some(0, len), script.some(1, 4096));
                script.write(&path, offset, len);
            }
            _ => {}
        }
    }
    for path in script.files.clone().into_iter().step_by(2) {
        script.unlink(&path);
    }
}

/// A source tree in `top`: few directories, files of a few kilobytes and rarely a large one, links, modes.
fn unpack(script: &mut Script, top: &str, files: u64) {
    script.ops.push(Op::Mkdir { path: top.to_owned() });
    let mut dir = top.to_owned();
    for n in 0..files {
        if n % 5 == 4 {
            dir = if script.numbers.bool() { format!("{top}/d{n}") } else { format!("{dir}/d{n}") };
            script.ops.push(Op::Mkdir { path: dir.clone() });
        }
        let path = format!("{dir}/f{n}.c");
        let len = if script.some(0, 7) == 0 { script.some(10_000, MOST) } else { script.some(100, 6000) };
        script.create(&path, len);
        let mode = if script.some(0, 4) == 0 { 0o755 } else { 0o644 };
        script.ops.push(Op::Chmod { path: path.clone(), mode });
        if script.some(0, 6) == 0 {
            script.ops.push(Op::Symlink { target: format!("f{n}.c"), path: format!("{dir}/l{n}") });
        }
    }
}

/// Removes the files of an existing tree, and its directories from the innermost on.
fn krmtar(script: &mut Script) {
    unpack(script, "src", 18);
    script.is_setup();
    let of = |make: fn(&Op) -> Option<&String>| script.setup.iter().rev().filter_map(make).cloned().collect::<Vec<_>>();
    let dirs = of(|op| if let Op::Mkdir { path } = op { Some(path) } else { None });
    let names = of(|op| match op {
        Op::Create { path } | Op::Symlink { path, .. } => Some(path),
        _ => None,
    });
    for dir in dirs {
        let inside = names.iter().filter(|path| path.rsplit_once('/').is_some_and(|(parent, _)| parent == dir));
        script.ops.extend(inside.map(|path| Op::Unlink { path: path.clone() }));
        script.ops.push(Op::Rmdir { path: dir });
    }
    script.ops.push(Op::Sync);
}

/// Eight accounts per file, ten branches, a hundred tellers (here thirty), each of 1 000 bytes, and a history.
fn tpc(script: &mut Script) {
    let files = script.some(3, 8);
    for n in 0..files {
        script.create(&format!("account{n}"), 8000);
    }
    script.create("branch", 10_000);
    script.create("teller", 30_000);
    script.create("history", 0);
    script.is_setup();
    for _ in 0..7 {
        let account = format!("account{}", script.some(0, files - 1));
        script.read(&account);
        for (path, records) in [(account.as_str(), 8), ("teller", 30), ("branch", 10)] {
            let record = script.some(0, records - 1);
            script.write(path, record * 1000, 1000);
        }
        script.append("history", 50);
        for path in [account.as_str(), "teller", "branch", "history"] {
            script.fsync(path);
        }
    }
}

fn bonnie(script: &mut Script) {
    let pieces = script.some(4, 10);
    let chunk = 16 << 10;
    script.create("large", pieces * chunk);
    script.ops.push(Op::Fsync { path: "large".into() });
    for n in 0..pieces {
        script.write("large", n * chunk, chunk);
    }
    for _ in 0..4 {
        let at = script.some(0, pieces * 2 - 1) * (chunk / 2);
        script.read("large");
        script.write("large", at, chunk / 2);
    }
    script.ops.push(Op::Sync);
    script.ops.push(Op::Mkdir { path: "d".into() });
    script.files.clear();
    for n in 0..10 {
        let len = if script.numbers.bool() { 0 } else { script.some(1, 2000) };
        script.create(&format!("d/{n:04}"), len);
    }
    while let Some(path) = script.file() {
        script.unlink(&path);
    }
}

fn varmail(script: &mut Script) {
    script.ops.push(Op::Mkdir { path: "mail".into() });
    for n in 0..8 {
        let len = script.some(200, 16 << 10);
        script.create(&format!("mail/{n}"), len);
    }
    script.is_setup();
    for n in 8..13 {
        if let Some(path) = script.file() {
            script.unlink(&path);
        }
        let (path, len) = (format!("mail/{n}"), script.some(200, 16 << 10));
        script.create(&path, len);
        script.fsync(&path);
        if let Some(path) = script.file() {
            let len = script.some(200, 16 << 10);
            script.read(&path);
            script.append(&path, len);
            script.fsync(&path);
        }
        if let Some(path) = script.file() {
            script.read(&path);
        }
    }
}

fn fileserver(script: &mut Script) {
    let dirs = script.some(2, 4);
    script.dirs("d", dirs);
    script.is_setup();
    for n in 0..10 {
        let (dir, len) = (script.some(0, dirs - 1), script.some(4000, MOST));
        script.create(&format!("d{dir}/{n}"), len);
        if let Some(path) = script.file() {
            let len = script.some(1, 16 << 10);
            script.append(&path, len);
        }
        if let Some(path) = script.file() {
            script.read(&path);
            if script.numbers.bool() {
                script.unlink(&path);
            }
        }
    }
}

fn small_and_large(script: &mut Script) {
    script.ops.extend(["large0", "large1"].map(|path| Op::Create { path: path.into() }));
    for (n, top) in ["src0", "src1"].into_iter().enumerate() {
        let begun = script.ops.len();
        unpack(script, top, 8);
        // the copies continue between the files
        let mut small = script.ops.split_off(begun).into_iter();
        while let Some(op) = small.next() {
            script.ops.push(op);
            script.ops.extend(small.by_ref().take(3));
            script.append(&format!("large{n}"), 24 << 10);
        }
    }
    script.ops.push(Op::Sync);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::State;
    use std::collections::HashSet;

    #[test]
    fn every_kind_succeeds_and_comes_from_its_seed() {
        for (name, make) in PAPERS {
            for seed in 0..20 {
                let workload = one(make, seed);
                assert_eq!(workload, one(make, seed), "{name}");
                assert_eq!(workload.to_string().parse(), Ok(workload.clone()), "{name}");
                assert!((10..200).contains(&workload.ops.len()), "{name}: {}", workload.ops.len());
                let mut state = State::empty();
                for op in workload.setup.iter().chain(&workload.ops) {
                    state.apply(op, 1024).unwrap_or_else(|e| panic!("{name}: {workload}: `{op}` {e}"));
                    // fits into a volume of 96 inodes and 9 MiB
                    let bytes: usize = state.nodes.values().filter_map(|node| Some(node.data()?.len())).sum();
                    assert!(state.nodes.len() < 80 && bytes < 3 << 20, "{name}: {}, {bytes}", state.nodes.len());
                }
            }
        }
        let some = sample(5, 40);
        assert_eq!(some[..30], sample(5, 30));
        assert_eq!(some.iter().collect::<HashSet<_>>().len(), 40);
    }
}
