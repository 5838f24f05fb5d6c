//! A POSIX file system in memory: the expected content of a volume, and the expected result of each operation.
//!
//! As the oracle it is as simple as possible: numbered nodes, a copy of the node map for each state, and the results of
//! Linux. The content of a volume after a crash is read into the same [`State`], with inode numbers as node numbers.
//!
//! 1. A [`State`] is a value. States share nodes as long as these do not change, so that a history of states needs
//!    memory only for the differences.
//! 2. A failed operation changes nothing.
//! 3. Holes are zeros: the model knows bytes, not blocks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rustix::io::Errno;

use crate::op::{FallocateHow, Op, RenameHow, pattern};

/// The number of a node: an inode number if the node was read from a volume.
pub type Id = u64;

/// First number of nodes created by the model, beyond all inode numbers.
const FIRST_NEW: Id = 1 << 32;

/// The type of a node, and its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body {
    /// A regular file and its bytes.
    File(Arc<Vec<u8>>),
    /// A directory and its entries, without `.` and `..`.
    Dir(BTreeMap<String, Id>),
    /// A symbolic link and its target.
    Symlink(String),
    /// Any other type, as a word.
    Other(&'static str),
}

/// A file, directory or symbolic link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Permission bits, with set-id and sticky bits.
    pub mode: u16,
    /// Number of names; for a directory 2 plus the number of its subdirectories.
    pub links: u32,
    /// Extended attributes by full name.
    pub xattrs: BTreeMap<String, Arc<[u8]>>,
    /// Type and content.
    pub body: Body,
}

impl Node {
    fn new(mode: u16, links: u32, body: Body) -> Arc<Self> {
        Arc::new(Self { mode, links, xattrs: BTreeMap::new(), body })
    }

    /// The bytes of a regular file.
    #[must_use]
    pub fn data(&self) -> Option<&Arc<Vec<u8>>> {
        match &self.body {
            Body::File(data) => Some(data),
            _ => None,
        }
    }

    /// The entries of a directory.
    #[must_use]
    pub fn entries(&self) -> Option<&BTreeMap<String, Id>> {
        match &self.body {
            Body::Dir(entries) => Some(entries),
            _ => None,
        }
    }

    fn is_dir(&self) -> bool {
        self.entries().is_some()
    }

    /// The attributes, to change one with that name: user attributes are limited to files and directories (xattr(7)).
    fn xattrs_for(&mut self, name: &str) -> Result<&mut BTreeMap<String, Arc<[u8]>>, Errno> {
        match self.body {
            Body::Symlink(_) | Body::Other(_) if name.starts_with("user.") => Err(Errno::PERM),
            _ => Ok(&mut self.xattrs),
        }
    }
}

/// The content of a volume at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    /// Nodes by number, including open ones without a name.
    pub nodes: BTreeMap<Id, Arc<Node>>,
    /// The number of the root directory.
    pub root: Id,
    /// Open files, by the name after `@`.
    pub open: BTreeMap<String, Id>,
    /// Files that never had a name: they may get one, in contrast to files that lost their last name.
    pub unnamed: BTreeSet<Id>,
    /// The content of snapshots by name; only their trees are relevant.
    pub snapshots: BTreeMap<String, Arc<State>>,
    /// During a transaction, the state at its beginning.
    pub before: Option<Arc<State>>,
    /// The lowest number available for a new node: numbers are not reused, since the new node would be taken for the
    /// old one.
    pub next: Id,
}

/// Maximum length of a file of the model in bytes: workloads are small, and a mistake in one must not exhaust memory.
const MAX_SIZE: u64 = 64 << 20;

/// Maximum number of symbolic links in a path, as in Linux.
const MAX_LINKS: u32 = 40;

type Result<T, E = Errno> = std::result::Result<T, E>;

impl State {
    /// An empty volume with only a root directory.
    #[must_use]
    pub fn empty() -> Self {
        let root = Node::new(0o755, 2, Body::Dir(BTreeMap::new()));
        Self::of(BTreeMap::from([(2, root)]), 2)
    }

    /// A state of these nodes, with the number of the root; without open files.
    #[must_use]
    pub fn of(nodes: BTreeMap<Id, Arc<Node>>, root: Id) -> Self {
        let (open, unnamed, snapshots) = Default::default();
        Self { nodes, root, open, unnamed, snapshots, before: None, next: FIRST_NEW }
    }

    /// The part that would be left if power were lost now and everything were durable: without the effects of a running
    /// transaction.
    #[must_use]
    pub fn outside(&self) -> &Self {
        self.before.as_deref().unwrap_or(self)
    }

    /// The number of the node at `path` (`@x` for an open file, `.` or an empty path for the root). A symbolic link at
    /// the end is not followed; others are.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR, ENAMETOOLONG, ELOOP, and EBADF for a file that is not open.
    pub fn resolve(&self, path: &str) -> Result<Id> {
        if let Some(name) = path.strip_prefix('@') {
            return self.open.get(name).copied().ok_or(Errno::BADF);
        }
        let mut at = self.root;
        let mut names = parts(path).peekable();
        while let Some(name) = names.next() {
            let dir = at;
            at = self.entry(dir, name)?.ok_or(Errno::NOENT)?;
            if names.peek().is_some() {
                at = self.follow(dir, at, MAX_LINKS)?;
            }
        }
        Ok(at)
    }

    /// Follows a symbolic link in `dir`, by names alone; other nodes are returned unchanged.
    fn follow(&self, dir: Id, id: Id, links: u32) -> Result<Id> {
        let Some(Body::Symlink(target)) = self.node(id).map(|node| &node.body) else { return Ok(id) };
        let links = links.checked_sub(1).ok_or(Errno::LOOP)?;
        let mut at = dir;
        for name in parts(target) {
            let inside = at;
            at = self.follow(inside, self.entry(inside, name)?.ok_or(Errno::NOENT)?, links)?;
        }
        Ok(at)
    }

    /// The node of this number; `None` for an invalid number on a damaged volume.
    #[must_use]
    pub fn node(&self, id: Id) -> Option<&Arc<Node>> {
        self.nodes.get(&id)
    }

    /// Every path from the root, with the number of its node; directories before their content.
    #[must_use]
    pub fn paths(&self) -> Vec<(String, Id)> {
        let mut found = vec![(String::new(), self.root)];
        let mut seen = BTreeSet::from([self.root]);
        let mut next = 0;
        while let Some((path, id)) = found.get(next).cloned() {
            next += 1;
            for (name, &child) in self.node(id).and_then(|node| node.entries()).into_iter().flatten() {
                let path = if path.is_empty() { name.clone() } else { format!("{path}/{name}") };
                // a directory that contains itself is walked once
                if self.node(child).is_none_or(|node| !node.is_dir()) || seen.insert(child) {
                    found.push((path, child));
                }
            }
        }
        found
    }

    /// Runs an operation, on a volume with blocks of `block_size` bytes.
    ///
    /// # Errors
    /// The errno of Linux; nothing is changed. EBADF and EBUSY also for a workload that uses a file that is not open,
    /// or opens one under a name in use.
    pub fn apply(&mut self, op: &Op, block_size: u64) -> Result<()> {
        // the interaction of transactions with open files, and nested transactions, have no defined result here
        let apart = matches!(
            op,
            Op::Open { .. }
                | Op::Close { .. }
                | Op::Tmpfile { .. }
                | Op::CreateSnapshot { .. }
                | Op::DeleteSnapshot { .. }
                | Op::Begin
        );
        if apart && self.before.is_some() || matches!(op, Op::Commit | Op::Rollback) && self.before.is_none() {
            return Err(Errno::BUSY);
        }
        match op {
            Op::Create { path } => self.make(path, Node::new(0o644, 1, Body::File(Arc::default()))),
            Op::Mkdir { path } => self.make(path, Node::new(0o755, 2, Body::Dir(BTreeMap::new()))),
            Op::Symlink { target, path } => self.make(path, Node::new(0o777, 1, Body::Symlink(target.clone()))),
            Op::Rmdir { path } => self.rmdir(path),
            Op::Unlink { path } => self.unlink(path),
            Op::Link { from, to } => self.link(from, to),
            Op::Rename { from, to, how } => self.rename(from, to, *how),
            Op::Write { path, offset, len, seed } => self.write(path, *offset, *len, *seed),
            Op::Append { path, len, seed } => {
                let size = self.node_of(path)?.data().map_or(0, |data| data.len() as u64);
                self.write(path, size, *len, *seed)
            }
            Op::Read { path } => match self.node_of(path)?.body {
                Body::File(_) => Ok(()),
                Body::Dir(_) => Err(Errno::ISDIR),
                _ => Err(Errno::INVAL),
            },
            Op::Truncate { path, size } => {
                let size = bounded(*size)?;
                self.change_data(path, |data| data.resize(size, 0))
            }
            Op::Fallocate { path, how, offset, len } => self.fallocate(path, *how, *offset, *len, block_size),
            Op::SetXattr { path, name, len, seed } => {
                let value: Arc<[u8]> = pattern(*seed, 0, *len).into();
                self.change(path, |node| {
                    node.xattrs_for(name)?.insert(name.clone(), value);
                    Ok(())
                })
            }
            Op::RemoveXattr { path, name } => {
                self.change(path, |node| node.xattrs_for(name)?.remove(name).map(|_| ()).ok_or(Errno::NODATA))
            }
            Op::Chmod { path, mode } => self.change(path, |node| {
                node.mode = *mode;
                Ok(())
            }),
            Op::Open { path } => {
                let id = self.resolve(path)?;
                self.open_as(path, id)
            }
            Op::Close { path } => self.close(path),
            Op::Tmpfile { dir, path } => {
                if !self.node_of(dir)?.is_dir() {
                    return Err(Errno::NOTDIR);
                }
                let id = self.next_id();
                self.open_as(path, id)?;
                self.nodes.insert(id, Node::new(0o644, 0, Body::File(Arc::default())));
                self.unnamed.insert(id);
                Ok(())
            }
            Op::Fsync { path } | Op::Fdatasync { path } => self.resolve(path).map(|_| ()),
            Op::Sync | Op::Wait { .. } => Ok(()),
            Op::CreateSnapshot { name } => {
                if self.snapshots.contains_key(name) {
                    return Err(Errno::EXIST);
                }
                self.snapshots.insert(name.clone(), Arc::new(Self::of(self.nodes.clone(), self.root)));
                Ok(())
            }
            Op::DeleteSnapshot { name } => self.snapshots.remove(name).map(drop).ok_or(Errno::NOENT),
            Op::Begin => {
                self.before = Some(Arc::new(self.clone()));
                Ok(())
            }
            Op::Commit => {
                self.before = None;
                Ok(())
            }
            Op::Rollback => {
                if let Some(before) = self.before.take() {
                    *self = Self::clone(&before);
                }
                Ok(())
            }
        }
    }

    /// The last component of `path` and its parent directory, which must exist.
    fn parent<'p>(&self, path: &'p str) -> Result<(Id, &'p str)> {
        if path.starts_with('@') {
            return Err(Errno::INVAL);
        }
        let (dir, name) = match path.rsplit_once('/') {
            Some((dir, name)) => (self.directory(dir)?, name),
            None => (self.root, path),
        };
        self.entry(dir, name)?;
        Ok((dir, name))
    }

    /// The directory at `path`, following a symbolic link at its end, too.
    fn directory(&self, path: &str) -> Result<Id> {
        let id = self.resolve(path)?;
        let dir = path.rsplit_once('/').map_or(Ok(self.root), |(dir, _)| self.directory(dir))?;
        self.follow(dir, id, MAX_LINKS)
    }

    fn entry(&self, dir: Id, name: &str) -> Result<Option<Id>> {
        let entries = self.node(dir).and_then(|node| node.entries()).ok_or(Errno::NOTDIR)?;
        if name.len() > 255 {
            return Err(Errno::NAMETOOLONG);
        }
        Ok(entries.get(name).copied())
    }

    fn node_of(&self, path: &str) -> Result<&Arc<Node>> {
        self.nodes.get(&self.resolve(path)?).ok_or(Errno::NOENT)
    }

    fn next_id(&mut self) -> Id {
        let id = self.nodes.keys().next_back().map_or(self.next, |last| self.next.max(last + 1));
        self.next = id + 1;
        id
    }

    fn node_mut(&mut self, id: Id) -> Result<&mut Node> {
        self.nodes.get_mut(&id).map(Arc::make_mut).ok_or(Errno::NOENT)
    }

    fn change(&mut self, path: &str, with: impl FnOnce(&mut Node) -> Result<()>) -> Result<()> {
        let id = self.resolve(path)?;
        with(self.node_mut(id)?)
    }

    fn change_data(&mut self, path: &str, with: impl FnOnce(&mut Vec<u8>)) -> Result<()> {
        self.change(path, |node| match &mut node.body {
            Body::File(data) => {
                with(Arc::make_mut(data));
                Ok(())
            }
            Body::Dir(_) => Err(Errno::ISDIR),
            _ => Err(Errno::INVAL),
        })
    }

    fn set_entry(&mut self, dir: Id, name: &str, to: Option<Id>) -> Result<()> {
        match (&mut self.node_mut(dir)?.body, to) {
            (Body::Dir(entries), Some(id)) => entries.insert(name.to_owned(), id),
            (Body::Dir(entries), None) => entries.remove(name),
            _ => return Err(Errno::NOTDIR),
        };
        Ok(())
    }

    fn count_links(&mut self, id: Id, by: i32) -> Result<()> {
        let node = self.node_mut(id)?;
        node.links = node.links.saturating_add_signed(by);
        if node.links == 0 && !self.open.values().any(|&open| open == id) {
            self.nodes.remove(&id);
        }
        Ok(())
    }

    fn make(&mut self, path: &str, node: Arc<Node>) -> Result<()> {
        let (dir, name) = self.parent(path)?;
        if self.entry(dir, name)?.is_some() || name.is_empty() {
            return Err(Errno::EXIST);
        }
        if let Body::Symlink(target) = &node.body
            && target.len() > 4095
        {
            return Err(Errno::NAMETOOLONG);
        }
        let id = self.next_id();
        if node.is_dir() {
            self.count_links(dir, 1)?;
        }
        self.nodes.insert(id, node);
        self.set_entry(dir, name, Some(id))
    }

    fn rmdir(&mut self, path: &str) -> Result<()> {
        let (dir, name) = self.parent(path)?;
        let id = self.entry(dir, name)?.ok_or(Errno::NOENT)?;
        let entries = self.node(id).and_then(|node| node.entries()).ok_or(Errno::NOTDIR)?;
        if !entries.is_empty() {
            return Err(Errno::NOTEMPTY);
        }
        self.drop_dir(dir, name, id)
    }

    fn drop_dir(&mut self, dir: Id, name: &str, id: Id) -> Result<()> {
        self.set_entry(dir, name, None)?;
        self.count_links(dir, -1)?;
        self.count_links(id, -2)
    }

    fn unlink(&mut self, path: &str) -> Result<()> {
        let (dir, name) = self.parent(path)?;
        let id = self.entry(dir, name)?.ok_or(Errno::NOENT)?;
        if self.node(id).is_some_and(|node| node.is_dir()) {
            return Err(Errno::ISDIR);
        }
        self.set_entry(dir, name, None)?;
        self.count_links(id, -1)
    }

    fn link(&mut self, from: &str, to: &str) -> Result<()> {
        let id = self.resolve(from)?;
        let (dir, name) = self.parent(to)?;
        if self.entry(dir, name)?.is_some() {
            return Err(Errno::EXIST);
        }
        if self.node(id).is_some_and(|node| node.is_dir()) {
            return Err(Errno::PERM);
        }
        if self.node(id).is_some_and(|node| node.links == 0) && !self.unnamed.remove(&id) {
            return Err(Errno::NOENT);
        }
        self.count_links(id, 1)?;
        self.set_entry(dir, name, Some(id))
    }

    /// Whether `dir` is `id` or a descendant of it.
    fn lies_in(&self, dir: Id, id: Id) -> bool {
        let children = |at: &Id| self.node(*at).and_then(|node| node.entries()).map(|e| e.values().copied());
        let (mut all, mut next) = (vec![id], 0);
        while let Some(&at) = all.get(next) {
            next += 1;
            all.extend(children(&at).into_iter().flatten());
        }
        all.contains(&dir)
    }

    fn rename(&mut self, from: &str, to: &str, how: RenameHow) -> Result<()> {
        let (from_dir, from_name) = self.parent(from)?;
        let (to_dir, to_name) = self.parent(to)?;
        let id = self.entry(from_dir, from_name)?.ok_or(Errno::NOENT)?;
        let target = self.entry(to_dir, to_name)?;
        match (how, target) {
            (RenameHow::NoReplace, Some(_)) => return Err(Errno::EXIST),
            (RenameHow::Exchange, None) => return Err(Errno::NOENT),
            _ => {}
        }
        let is_dir = |id: Id| self.node(id).is_some_and(|node| node.is_dir());
        let moves_dir = is_dir(id);
        if moves_dir && self.lies_in(to_dir, id) {
            return Err(Errno::INVAL);
        }
        if target == Some(id) {
            return Ok(());
        }
        if let Some(other) = target {
            let onto_dir = is_dir(other);
            if how == RenameHow::Exchange {
                if onto_dir && self.lies_in(from_dir, other) {
                    return Err(Errno::INVAL);
                }
                self.set_entry(from_dir, from_name, Some(other))?;
                self.set_entry(to_dir, to_name, Some(id))?;
                if moves_dir != onto_dir && from_dir != to_dir {
                    let by = if moves_dir { 1 } else { -1 };
                    self.count_links(to_dir, by)?;
                    self.count_links(from_dir, -by)?;
                }
                return Ok(());
            }
            if onto_dir && self.lies_in(from_dir, other) {
                return Err(Errno::NOTEMPTY);
            }
            match (moves_dir, onto_dir) {
                (true, false) => return Err(Errno::NOTDIR),
                (false, true) => return Err(Errno::ISDIR),
                (true, true) => {
                    if self.node(other).and_then(|node| node.entries()).is_some_and(|e| !e.is_empty()) {
                        return Err(Errno::NOTEMPTY);
                    }
                    self.drop_dir(to_dir, to_name, other)?;
                }
                (false, false) => {
                    self.set_entry(to_dir, to_name, None)?;
                    self.count_links(other, -1)?;
                }
            }
        }
        self.set_entry(from_dir, from_name, None)?;
        self.set_entry(to_dir, to_name, Some(id))?;
        if moves_dir && from_dir != to_dir {
            self.count_links(from_dir, -1)?;
            self.count_links(to_dir, 1)?;
        }
        Ok(())
    }

    fn write(&mut self, path: &str, offset: u64, len: u64, seed: u32) -> Result<()> {
        let (start, end) = (bounded(offset)?, bounded(offset.saturating_add(len))?);
        self.change_data(path, |data| {
            if len > 0 {
                data.resize(data.len().max(end), 0);
                data[start..end].copy_from_slice(&pattern(seed, offset, len));
            }
        })
    }

    fn fallocate(&mut self, path: &str, how: FallocateHow, offset: u64, len: u64, block_size: u64) -> Result<()> {
        use FallocateHow::{Collapse, Insert, KeepSize, Plain, Punch, Zero, ZeroKeepSize};
        let (start, end) = (bounded(offset)?, bounded(offset.saturating_add(len))?);
        let node = self.node_of(path)?;
        if node.is_dir() {
            return Err(Errno::ISDIR);
        }
        let size = node.data().map_or(0, |data| data.len());
        let aligned = offset.is_multiple_of(block_size) && len.is_multiple_of(block_size);
        let refused = match how {
            Collapse => !aligned || end >= size,
            Insert => !aligned || start >= size,
            _ => false,
        };
        if len == 0 || refused {
            return Err(Errno::INVAL);
        }
        self.change_data(path, |data| {
            if matches!(how, Plain | Zero) {
                data.resize(size.max(end), 0);
            }
            match how {
                Plain | KeepSize => {}
                Zero | ZeroKeepSize | Punch => {
                    let end = end.min(data.len());
                    data[start.min(end)..end].fill(0);
                }
                Collapse => drop(data.drain(start..end)),
                Insert => drop(data.splice(start..start, std::iter::repeat_n(0, end - start))),
            }
        })
    }

    fn open_as(&mut self, name: &str, id: Id) -> Result<()> {
        if self.open.contains_key(name) {
            return Err(Errno::BUSY);
        }
        self.open.insert(name.to_owned(), id);
        Ok(())
    }

    fn close(&mut self, path: &str) -> Result<()> {
        let id = self.open.remove(path.trim_start_matches('@')).ok_or(Errno::BADF)?;
        if self.node(id).is_some_and(|node| node.links == 0) {
            self.count_links(id, 0)?;
        }
        Ok(())
    }
}

fn parts(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|name| !name.is_empty() && *name != ".")
}

fn bounded(position: u64) -> Result<usize> {
    if position > MAX_SIZE { Err(Errno::FBIG) } else { Ok(position as usize) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Workload;

    fn run(text: &str) -> (State, Vec<Result<()>>) {
        let mut state = State::empty();
        let workload: Workload = text.parse().unwrap();
        let answers = workload.ops.iter().map(|op| state.apply(op, 1024)).collect();
        (state, answers)
    }

    #[track_caller]
    fn done(text: &str) -> State {
        let (state, answers) = run(text);
        assert!(answers.iter().all(Result::is_ok), "{text}: {answers:?}");
        state
    }

    #[track_caller]
    fn fails(text: &str, errno: Errno) {
        let (_, answers) = run(text);
        let (last, before) = answers.split_last().unwrap();
        assert!(before.iter().all(Result::is_ok), "{text}: {before:?}");
        assert_eq!(*last, Err(errno), "{text}");
    }

    #[test]
    fn answers_of_linux() {
        fails("create a; create a", Errno::EXIST);
        fails("create a/b", Errno::NOENT);
        fails("create a; create a/b", Errno::NOTDIR);
        fails("mkdir a; unlink a", Errno::ISDIR);
        fails("mkdir a; create a/b; rmdir a", Errno::NOTEMPTY);
        fails("symlink x a; removexattr a user.x", Errno::PERM);
        fails("create a; rmdir a", Errno::NOTDIR);
        fails("mkdir a; link a b", Errno::PERM);
        fails("mkdir a; rename a a/b", Errno::INVAL);
        fails("mkdir a; mkdir a/b; create a/b/c; rename a/b/c a", Errno::NOTEMPTY);
        fails("mkdir a; create b; rename a b", Errno::NOTDIR);
        fails("mkdir a; create b; rename b a", Errno::ISDIR);
        fails("create a; create b; rename a b noreplace", Errno::EXIST);
        fails("create a; rename a b exchange", Errno::NOENT);
        fails("create a; removexattr a user.x", Errno::NODATA);
        fails("create a; append a 4096 =1; fallocate a collapse 0 4096", Errno::INVAL);
        fails("create a; append a 4096 =1; fallocate a collapse 0 512", Errno::INVAL);
        fails("mkdir a; truncate a 5", Errno::ISDIR);
        fails("create @a", Errno::INVAL);
        fails(&format!("create {}", "n".repeat(256)), Errno::NAMETOOLONG);
        fails("fsync @a", Errno::BADF);
        fails("symlink b l; create l/x", Errno::NOENT);
        fails("symlink l l; create l/x", Errno::LOOP);
        fails("create f; symlink f l; create l/x", Errno::NOTDIR);
    }

    #[test]
    fn links_are_counted() {
        let state = done("mkdir a; mkdir b; mkdir a/c; create f; link f a/g; rename a/c b/c; create h; rename f h");
        let links = |path: &str| state.node_of(path).unwrap().links;
        assert_eq!((links(""), links("a"), links("b"), links("a/g"), links("h")), (4, 2, 3, 2, 2));
        assert_eq!(state.resolve("f"), Err(Errno::NOENT));
        let state = done("mkdir a; create f; mkdir b; rename f b/f; rename a b/f exchange");
        assert_eq!((state.node_of("").unwrap().links, state.node_of("b").unwrap().links), (3, 3));
    }

    #[test]
    fn bytes_move_as_fallocate_says() {
        let read = |text: &str| done(text).node_of("f").unwrap().data().unwrap().to_vec();
        let old = pattern(1, 0, 4096);
        let make = "create f; append f 4096 =1";
        assert_eq!(read(&format!("{make}; fallocate f collapse 1024 1024")), [&old[..1024], &old[2048..]].concat());
        assert_eq!(
            read(&format!("{make}; fallocate f insert 1024 1024")),
            [&old[..1024], &[0; 1024], &old[1024..]].concat()
        );
        assert_eq!(read(&format!("{make}; fallocate f punch 4000 9000")), [&old[..4000], &[0; 96]].concat());
        assert_eq!(read(&format!("{make}; fallocate f zero 4000 100")).len(), 4100);
        assert_eq!(read(&format!("{make}; fallocate f keep 4000 9000")), old);
        assert_eq!(
            read(&format!("{make}; write f 5000 10 =2"))[4096..],
            [&[0; 904][..], &pattern(2, 5000, 10)].concat()
        );
    }

    #[test]
    fn links_are_followed_on_the_way() {
        let state = done("mkdir a; mkdir a/b; symlink a/b l; symlink b a/m; create l/x; create a/m/y");
        assert_eq!(state.resolve("a/b/x"), state.resolve("l/x"));
        assert_eq!(state.resolve("a/b/y"), state.resolve("a/m/y"));
        assert!(matches!(state.node_of("l").unwrap().body, Body::Symlink(_)));
    }

    #[test]
    fn snapshots_stay_and_transactions_are_atomic() {
        let state =
            done("create f; append f 10 =1; snapshot create s; append f 10 =2; snapshot create t; snapshot delete s");
        assert_eq!(state.snapshots.keys().collect::<Vec<_>>(), ["t"]);
        let snapshot = &state.snapshots["t"];
        assert_eq!(snapshot.node_of("f").unwrap().data().unwrap().len(), 20);
        let make = "create f; begin; append f 10 =1; create g";
        assert_eq!(done(make).outside().paths().len(), 2);
        assert_eq!(done(&format!("{make}; commit")).outside().paths().len(), 3);
        let back = done(&format!("{make}; rollback"));
        assert_eq!(back, done("create f"));
        fails("begin; begin", Errno::BUSY);
        fails("commit", Errno::BUSY);
        fails("begin; snapshot create s", Errno::BUSY);
        fails("snapshot delete s", Errno::NOENT);
        fails("snapshot create s; snapshot create s", Errno::EXIST);
    }

    #[test]
    fn open_files_outlive_their_names() {
        let state = done("create f; append f 10 =1; open f; unlink f; append @f 10 =2");
        assert_eq!(state.node_of("@f").unwrap().data().unwrap().len(), 20);
        assert_eq!(done("create f; open f; unlink f; close f").nodes.len(), 1);
        let state = done("tmpfile . t; append @t 5 =1; link @t g; close t");
        assert_eq!((state.node_of("g").unwrap().links, state.nodes.len()), (1, 2));
    }
}
