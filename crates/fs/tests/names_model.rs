//! Random operations on the name space, compared with a model of a tree: each returns the model's result, and the final
//! tree is the model's for Extant, for e2fsck and for the kernel.

mod common;

use common::plain::image;
use common::{assert_valid, manifest, open, open_writable};
use extant_fs::{
    Error, FileKind, InodeFlags, InodeNo, NewFile, RenameFlags, SetAttributes, Timestamp, Volume, WriteOptions,
    XattrMode,
};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use testkit::oracle::kernel_mount;
use testkit::{ContentHash, Entry, Field, Manifest, Rng, Time, cases, need, tools, walk};

/// Volumes, and whether all is done in a directory that compares names case-insensitively.
const SHAPES: &[(&[&str], bool)] = &[
    (&["-t", "ext2", "-b", "1024"], false),
    (&["-t", "ext2", "-b", "4096", "-I", "128", "-O", "^filetype,^dir_index"], false),
    (&["-t", "ext3", "-b", "1024"], false),
    (&["-t", "ext4", "-b", "1024"], false),
    (&["-t", "ext4", "-b", "4096"], false),
    (&["-t", "ext4", "-b", "1024", "-O", "^dir_index,^metadata_csum"], false),
    (&["-t", "ext4", "-b", "1024", "-I", "512", "-O", "inline_data"], false),
    (&["-t", "ext4", "-b", "4096", "-O", "inline_data,ea_inode,orphan_file"], false),
    (&["-t", "ext4", "-b", "1024", "-O", "casefold", "-E", "encoding=utf8"], true),
    (&["-t", "rext3", "-b", "4096"], false),
    (&["-t", "rext3", "-b", "1024", "-O", "extents"], false),
];

struct File {
    kind: FileKind,
    mode: u16,
    owner: (u32, u32),
    links: u64,
    target: Vec<u8>,
    device: (u32, u32),
    mtime: Option<Timestamp>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// By the comparison form of the name: the name itself, and the file.
    names: BTreeMap<Vec<u8>, (Vec<u8>, usize)>,
    parent: usize,
    number: InodeNo,
}

struct Model {
    files: Vec<Option<File>>,
    folds: bool,
}

type Outcome = Result<(), &'static str>;

/// The error's kind in the model.
fn kind_of(e: &Error) -> &'static str {
    match e {
        Error::NotFound => "NotFound",
        Error::NotADirectory => "NotADirectory",
        Error::IsADirectory => "IsADirectory",
        Error::Exists => "Exists",
        Error::NotEmpty => "NotEmpty",
        Error::Invalid(_) => "Invalid",
        Error::NotPermitted(_) => "NotPermitted",
        Error::NoAttribute => "NoAttribute",
        Error::NoSpace => "NoSpace",
        other => panic!("{other}"),
    }
}

fn outcome<T>(result: extant_fs::Result<T>) -> Outcome {
    result.map(drop).map_err(|e| kind_of(&e))
}

impl Model {
    fn new(root: InodeNo, folds: bool) -> Self {
        let mut model = Self { files: Vec::new(), folds };
        model.add(File::new(FileKind::Directory, 0o755, root), 0);
        model
    }

    fn add(&mut self, mut file: File, parent: usize) -> usize {
        file.parent = parent;
        self.files.push(Some(file));
        self.files.len() - 1
    }

    fn file(&self, n: usize) -> &File {
        self.files[n].as_ref().expect("it lives")
    }

    fn file_mut(&mut self, n: usize) -> &mut File {
        self.files[n].as_mut().expect("it lives")
    }

    fn key(&self, name: &[u8]) -> Vec<u8> {
        if self.folds { name.to_ascii_lowercase() } else { name.to_vec() }
    }

    fn find(&self, dir: usize, name: &[u8]) -> Option<usize> {
        self.file(dir).names.get(&self.key(name)).map(|(_, n)| *n)
    }

    fn alive(&self, wanted: impl Fn(&File) -> bool) -> Vec<usize> {
        (0..self.files.len()).filter(|&n| self.files[n].as_ref().is_some_and(&wanted)).collect()
    }

    fn put(&mut self, dir: usize, name: &[u8], n: usize) {
        let key = self.key(name);
        self.file_mut(dir).names.insert(key, (name.to_vec(), n));
        if self.file(n).kind == FileKind::Directory {
            self.file_mut(n).parent = dir;
        }
    }

    fn take(&mut self, dir: usize, name: &[u8]) {
        let key = self.key(name);
        self.file_mut(dir).names.remove(&key);
    }

    fn lose(&mut self, n: usize) {
        let file = self.file_mut(n);
        file.links -= 1;
        if file.links == 0 || file.kind == FileKind::Directory {
            self.files[n] = None;
        }
    }

    fn is_above(&self, above: usize, below: usize) -> bool {
        let mut at = below;
        loop {
            if at == above {
                return true;
            }
            if at == 0 {
                return false;
            }
            at = self.file(at).parent;
        }
    }

    fn is_dir(&self, n: usize) -> bool {
        self.file(n).kind == FileKind::Directory
    }

    fn remove(&mut self, dir: usize, name: &[u8], directory: bool) -> Outcome {
        let n = self.find(dir, name).ok_or("NotFound")?;
        match (self.is_dir(n), directory) {
            (true, false) => return Err("IsADirectory"),
            (false, true) => return Err("NotADirectory"),
            (true, true) if !self.file(n).names.is_empty() => return Err("NotEmpty"),
            _ => {}
        }
        self.take(dir, name);
        self.lose(n);
        Ok(())
    }

    fn rename(&mut self, from: (usize, &[u8]), to: (usize, &[u8]), flags: RenameFlags) -> Outcome {
        if flags.exchange && (flags.no_replace || flags.whiteout) {
            return Err("Invalid");
        }
        let source = self.find(from.0, from.1).ok_or("NotFound")?;
        let target = self.find(to.0, to.1);
        if flags.no_replace && target.is_some() {
            return Err("Exists");
        }
        if flags.exchange && target.is_none() {
            return Err("NotFound");
        }
        if self.is_dir(source) && self.is_above(source, to.0) {
            return Err("Invalid");
        }
        if let Some(target) = target
            && self.is_dir(target)
            && self.is_above(target, from.0)
        {
            return Err(if flags.exchange { "Invalid" } else { "NotEmpty" });
        }
        if target == Some(source) {
            return Ok(());
        }
        if let Some(target) = target
            && flags.exchange
        {
            let names = [from, to].map(|(dir, name)| self.file(dir).names[&self.key(name)].0.clone());
            self.put(from.0, &names[0], target);
            self.put(to.0, &names[1], source);
            return Ok(());
        }
        let mut new_name = to.1.to_vec();
        if let Some(target) = target {
            match (self.is_dir(source), self.is_dir(target)) {
                (true, false) => return Err("NotADirectory"),
                (false, true) => return Err("IsADirectory"),
                (true, true) if !self.file(target).names.is_empty() => return Err("NotEmpty"),
                _ => {}
            }
            // the entry stays, with its case
            new_name = self.file(to.0).names[&self.key(to.1)].0.clone();
            self.lose(target);
        }
        let old_name = self.file(from.0).names[&self.key(from.1)].0.clone();
        self.take(from.0, from.1);
        self.put(to.0, &new_name, source);
        if flags.whiteout {
            let owner = self.file(from.0).owner;
            let n = self.add(File::new(FileKind::CharDevice, 0, InodeNo(0)), from.0);
            self.file_mut(n).owner = owner;
            self.put(from.0, &old_name, n);
        }
        Ok(())
    }

    /// The tree in a directory of the volume, as far as the model contains it.
    fn manifest(&self) -> Manifest {
        let mut manifest = Manifest::default();
        let mut first: BTreeMap<usize, PathBuf> = BTreeMap::new();
        let mut open = vec![(PathBuf::from("."), 0)];
        let mut paths = Vec::new();
        while let Some((path, n)) = open.pop() {
            for (name, child) in self.file(n).names.values() {
                let name = OsString::from_vec(name.clone());
                let path = if n == 0 { PathBuf::from(name) } else { path.join(name) };
                open.push((path, *child));
            }
            paths.push((path, n));
        }
        paths.sort();
        for (path, n) in paths {
            let file = self.file(n);
            let kind = common::kind(file.kind);
            let dirs = file.names.values().filter(|(_, n)| self.is_dir(*n)).count() as u64;
            let is_dir = file.kind == FileKind::Directory;
            let entry = Entry {
                owner: Some(file.owner),
                links: Some(if is_dir { 2 + dirs } else { file.links }),
                size: match file.kind {
                    FileKind::Directory => None,
                    _ => Some(file.target.len() as u64),
                },
                modified: file.mtime.map(|t| Time { seconds: t.seconds, nanoseconds: t.nanos }),
                target: (file.kind == FileKind::Symlink).then(|| file.target.clone()),
                device: matches!(file.kind, FileKind::CharDevice | FileKind::BlockDevice).then_some(file.device),
                xattrs: Some(file.xattrs.iter().map(|(k, v)| (OsString::from_vec(k.clone()), v.clone())).collect()),
                content: (file.kind == FileKind::Regular).then(|| ContentHash::of(&[][..]).expect("no content")),
                first_name: Some(first.entry(n).or_insert_with(|| path.clone()).clone()),
                ..Entry::new(kind, file.mode.into())
            };
            manifest.0.insert(path, entry);
        }
        manifest
    }
}

impl File {
    fn new(kind: FileKind, mode: u16, number: InodeNo) -> Self {
        Self {
            kind,
            mode,
            owner: (0, 0),
            links: 1,
            target: Vec::new(),
            device: (0, 0),
            mtime: None,
            xattrs: BTreeMap::new(),
            names: BTreeMap::new(),
            parent: 0,
            number,
        }
    }
}

struct Bed<'a> {
    volume: &'a Volume,
    model: &'a mut Model,
    rng: &'a mut Rng,
    /// Bytes of a suffix that makes names long.
    tail: usize,
}

impl Bed<'_> {
    fn name(&mut self) -> Vec<u8> {
        let n = self.rng.below(120);
        let mut name = match self.rng.below(3) {
            0 => format!("name{n}"),
            1 => format!("Name{n}"),
            _ => format!("name{n}{}", "-long".repeat((n as usize * 7) % self.tail)),
        };
        name.truncate(255);
        name.into_bytes()
    }

    fn dir(&mut self) -> usize {
        // the first directories get most of the names
        let dirs = self.model.alive(|file| file.kind == FileKind::Directory);
        if self.rng.chance(50) { dirs[0] } else { *self.rng.pick(&dirs) }
    }

    fn number(&self, n: usize) -> InodeNo {
        self.model.file(n).number
    }

    fn step(&mut self) -> String {
        let (dir, name) = (self.dir(), self.name());
        let parent = self.number(dir);
        let label = |what: &str| format!("{what} {dir}/{}", name.escape_ascii());
        match self.rng.below(100) {
            0..35 => {
                let kinds = [
                    FileKind::Regular,
                    FileKind::Regular,
                    FileKind::Directory,
                    FileKind::Fifo,
                    FileKind::Socket,
                    FileKind::CharDevice,
                    FileKind::BlockDevice,
                    FileKind::Symlink,
                ];
                let kind = *self.rng.pick(&kinds);
                let owner = (self.rng.below(100_000) as u32, self.rng.below(100_000) as u32);
                let mut made = File::new(kind, self.rng.below(0o1000) as u16, InodeNo(0));
                made.owner = owner;
                made.device = (self.rng.below(4000) as u32, self.rng.below(1_000_000) as u32);
                let result = if kind == FileKind::Symlink {
                    made.mode = 0o777;
                    made.target = vec![b't'; self.rng.magnitude(800) as usize];
                    self.volume.symlink(parent, &name, &made.target, owner.0, owner.1)
                } else {
                    let umask = self.rng.below(0o1000) as u16;
                    let (uid, gid) = owner;
                    let file = NewFile { kind, mode: made.mode, umask, uid, gid, device: made.device };
                    made.mode &= !umask;
                    self.volume.create(parent, &name, &file)
                };
                let expected = if self.model.find(dir, &name).is_some() { Err("Exists") } else { Ok(()) };
                let above = self.model.file(dir);
                if above.mode & 0o2000 != 0 {
                    made.owner.1 = above.owner.1;
                    made.mode |= if kind == FileKind::Directory { 0o2000 } else { 0 };
                }
                if let (Ok(()), Ok(inode)) = (expected, &result) {
                    made.number = inode.number;
                    let n = self.model.add(made, dir);
                    self.model.put(dir, &name, n);
                }
                assert_eq!(outcome(result), expected, "{}", label("create"));
                label("create")
            }
            35..45 => {
                let files = self.model.alive(|_| true);
                let n = *self.rng.pick(&files);
                let result = outcome(self.volume.link(self.number(n), parent, &name));
                let expected = if self.model.is_dir(n) {
                    Err("NotPermitted")
                } else if self.model.find(dir, &name).is_some() {
                    Err("Exists")
                } else {
                    self.model.put(dir, &name, n);
                    self.model.file_mut(n).links += 1;
                    Ok(())
                };
                assert_eq!(result, expected, "{}", label("link"));
                label("link")
            }
            45..62 => {
                let directory = self.rng.chance(40);
                let result = outcome(if directory {
                    self.volume.rmdir(parent, &name)
                } else {
                    self.volume.unlink(parent, &name)
                });
                assert_eq!(result, self.model.remove(dir, &name, directory), "{}", label("remove"));
                label("remove")
            }
            62..82 => {
                let (to, new) = (if self.rng.chance(40) { dir } else { self.dir() }, self.name());
                let flags = RenameFlags {
                    no_replace: self.rng.chance(15),
                    exchange: self.rng.chance(20),
                    whiteout: self.rng.chance(8),
                };
                let result = outcome(self.volume.rename(parent, &name, self.number(to), &new, flags));
                let expected = self.model.rename((dir, &name), (to, &new), flags);
                let label = format!("{} to {to}/{} {flags:?}", label("rename"), new.escape_ascii());
                assert_eq!(result, expected, "{label}");
                // the number of a whiteout device is chosen by the volume
                if flags.whiteout
                    && expected.is_ok()
                    && let Some(n) = self.model.find(dir, &name)
                {
                    let dir = self.volume.inode(parent).expect("the directory");
                    self.model.file_mut(n).number = self.volume.lookup(&dir, &name).expect("it stays");
                }
                label
            }
            82..90 => {
                let files = self.model.alive(|file| file.kind != FileKind::Symlink);
                let n = *self.rng.pick(&files);
                let (mode, uid) = (self.rng.below(0o10000) as u16, self.rng.below(1 << 32) as u32);
                // later than 2038 if the inode can store it
                let mtime = Timestamp { seconds: self.rng.below(2_000_000_000) as i64, nanos: 0 };
                let set = SetAttributes {
                    mode: Some(mode),
                    uid: Some(uid),
                    mtime: (self.model.file(n).kind != FileKind::Directory).then_some(mtime),
                    ..SetAttributes::default()
                };
                self.volume.set_attributes(self.number(n), &set).expect("set attributes");
                let file = self.model.file_mut(n);
                file.mode = mode;
                file.owner.0 = uid;
                file.mtime = set.mtime;
                format!("set attributes of {n}")
            }
            _ => {
                let plain = |file: &File| matches!(file.kind, FileKind::Regular | FileKind::Directory);
                let files = self.model.alive(plain);
                let n = *self.rng.pick(&files);
                let name = format!("user.a{}", self.rng.below(4)).into_bytes();
                let number = self.number(n);
                if self.rng.chance(70) {
                    let length = self.rng.magnitude(150) as usize - 1;
                    let value = self.rng.bytes(length);
                    let result = outcome(self.volume.set_xattr(number, &name, &value, XattrMode::Any));
                    assert_eq!(result, Ok(()), "set {n}");
                    self.model.file_mut(n).xattrs.insert(name, value);
                } else {
                    let result = outcome(self.volume.remove_xattr(number, &name));
                    let there = self.model.file_mut(n).xattrs.remove(&name).is_some();
                    assert_eq!(result, if there { Ok(()) } else { Err("NoAttribute") });
                }
                format!("attributes of {n}")
            }
        }
    }
}

/// The part of a manifest under `dir`.
fn below(all: Manifest, dir: &str) -> Manifest {
    let mut found = Manifest::default();
    for (path, mut entry) in all.0 {
        let inside = |path: &PathBuf| {
            let rest = path.strip_prefix(dir).ok()?;
            Some(if rest.as_os_str().is_empty() { PathBuf::from(".") } else { rest.to_owned() })
        };
        if let Some(path) = inside(&path) {
            entry.first_name = entry.first_name.as_ref().and_then(inside);
            found.0.insert(path, entry);
        }
    }
    found
}

#[test]
fn random_operations_answer_as_a_model_does() {
    if !need(&["mke2fs", "e2fsck", "mount", "umount"]) {
        return;
    }
    for (shape, &(args, folds)) in SHAPES.iter().enumerate() {
        for case in cases(&format!("names {shape}"), 2) {
            let mut rng = case.rng();
            let image = image(args, 32 << 20);
            let mut volume = open_writable(image.path(), WriteOptions::default());
            let top = NewFile { kind: FileKind::Directory, mode: 0o755, umask: 0, uid: 0, gid: 0, device: (0, 0) };
            let root = volume.create(InodeNo::ROOT, b"top", &top).expect("mkdir").number;
            if folds {
                let flags = volume.inode(root).expect("there").raw().flags() | InodeFlags::CASEFOLD;
                let set = SetAttributes { flags: Some(flags), ..SetAttributes::default() };
                volume.set_attributes(root, &set).expect("casefold");
            }
            let mut model = Model::new(root, folds);
            let tail = *rng.pick(&[1, 4, 50]);
            for _ in 0..3 {
                for _ in 0..700 {
                    let step = Bed { volume: &volume, model: &mut model, rng: &mut rng, tail }.step();
                    if rng.chance(1) {
                        let diff = model.manifest().diff(&below(manifest(&volume), "top"));
                        assert!(diff.is_empty(), "{args:?}: after {step}: {diff:?}");
                    }
                }
                volume.unmount().expect("unmount");
                drop(volume);
                assert_valid(image.path(), &args);
                volume = open_writable(image.path(), WriteOptions::default());
            }
            volume.unmount().expect("unmount");
            drop(volume);
            assert_valid(image.path(), &args);
            model.manifest().assert_same(&below(manifest(&open(image.path())), "top"));
            // kernels without Unicode do not mount volumes with case-insensitive names
            if !folds && !args.contains(&"rext3") && tools::has_loop() {
                let mounted = kernel_mount(image.path(), "ro,noload").expect("mount");
                let theirs = walk(&mounted.path().join("top")).expect("walk");
                model.manifest().assert_same(&theirs);
                let ours = below(manifest(&open(image.path())), "top").forget(&[Field::Accessed]);
                ours.assert_same(&theirs);
            }
        }
    }
}
