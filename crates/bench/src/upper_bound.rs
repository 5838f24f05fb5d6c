//! A FUSE file system in memory with names, types and sizes, but no file data: reads return zeros, and writes are
//! discarded. All of its time is spent in FUSE itself, so no FUSE file system with the same front end can be faster.
//!
//! It is mounted by Extant's own front end, through the same transport, and lets the kernel cache as much.

use crate::error::Trying;
use crate::{Result, Transport};
use fuse_wire::{
    Answer, AttachOptions, Attr, Entry, Errno, Features, Filesystem, Operation, Reply, Request, Session, StatFs,
    Unmounter,
};
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::collections::HashMap;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Timeout of attributes and names in the kernel: ten years, in seconds.
const ALWAYS: u64 = 10 * 365 * 24 * 3600;
/// The inode number of `..` in a listing, which is not used.
const PARENT: u64 = 1;
/// Directories, as the type in a mode.
const DIRECTORY: u32 = 0o040_000;

/// A file system in memory. Node `n` is `nodes[n - 1]`, the root is node 1.
#[derive(Debug)]
pub(crate) struct Tree {
    nodes: RwLock<Vec<Node>>,
}

#[derive(Debug, Clone)]
struct Node {
    attr: Attr,
    /// The entries in the order of the listing, without `.` and `..`; `None` for removed ones.
    entries: Vec<Option<(Box<[u8]>, u64)>>,
    /// The index in `entries` of each name.
    names: HashMap<Box<[u8]>, usize>,
    target: Box<[u8]>,
}

/// A mounted tree.
pub(crate) struct Served {
    unmounter: Unmounter,
    thread: JoinHandle<fuse_wire::Result<()>>,
}

impl std::fmt::Debug for Served {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Served").finish_non_exhaustive()
    }
}

impl Served {
    /// Unmounts it, and returns after its server has ended.
    pub(crate) fn end(self) -> io::Result<()> {
        self.unmounter.unmount().map_err(io::Error::other)?;
        let ended = self.thread.join().map_err(|_| io::Error::other("the server panicked"))?;
        ended.map_err(io::Error::other)
    }
}

impl Tree {
    /// An empty directory.
    pub(crate) fn empty() -> Self {
        let root = Node::new(DIRECTORY | 0o755, 1);
        Self { nodes: RwLock::new(vec![root]) }
    }

    /// The tree below `root`, including file systems mounted in it.
    pub(crate) fn of(root: &Path) -> Result<Self> {
        let mut nodes = vec![Node::of(root, &fs::symlink_metadata(root).trying("stat", root)?, 1)?];
        let mut dirs = vec![(root.to_owned(), 0)];
        while let Some((dir, at)) = dirs.pop() {
            for entry in fs::read_dir(&dir).trying("list", &dir)? {
                let entry = entry.trying("list", &dir)?;
                let metadata = entry.metadata().trying("stat an entry of", &dir)?;
                let number = nodes.len() as u64 + 1;
                if metadata.is_dir() {
                    dirs.push((entry.path(), nodes.len()));
                }
                nodes.push(Node::of(&entry.path(), &metadata, number)?);
                nodes[at].put(entry.file_name().as_bytes(), number);
            }
        }
        Ok(Self { nodes: RwLock::new(nodes) })
    }

    /// Mounts it on `dir`; without a transport with the best that the kernel offers.
    pub(crate) fn mount(self: &Arc<Self>, dir: &Path, transport: Option<Transport>) -> Result<Served> {
        let transport = transport.map(Transport::of_session).unwrap_or_default();
        let options = AttachOptions { source: Some("upper-bound".to_owned()), transport, ..AttachOptions::default() };
        let front = Arc::clone(self) as Arc<dyn Filesystem>;
        let mounted = Session::mount(front, dir, &options).map_err(io::Error::other);
        let session = mounted.trying("mount a file system in memory on", dir)?;
        Ok(Served { unmounter: session.unmounter(), thread: std::thread::spawn(|| session.run()) })
    }

    fn read(&self) -> RwLockReadGuard<'_, Vec<Node>> {
        self.nodes.read()
    }

    fn write(&self) -> RwLockWriteGuard<'_, Vec<Node>> {
        self.nodes.write()
    }

    /// Calls `look` with a node.
    fn with<T>(&self, node: u64, look: impl FnOnce(&[Node], &Node) -> Answer<T>) -> Answer<T> {
        let nodes = self.read();
        look(&nodes, at(&nodes, node)?)
    }

    fn make(&self, dir: u64, name: &[u8], mode: u32, target: &[u8]) -> Answer<Entry> {
        let mut nodes = self.write();
        let number = nodes.len() as u64 + 1;
        let mut node = Node::new(mode, number);
        node.target = target.into();
        node.attr.size = target.len() as u64;
        let parent = at_mut(&mut nodes, dir)?;
        if parent.names.contains_key(name) {
            return Err(Errno::EXIST);
        }
        parent.put(name, number);
        parent.attr.nlink += u32::from(mode & 0o170_000 == DIRECTORY);
        let entry = node.entry();
        nodes.push(node);
        Ok(entry)
    }

    fn remove(&self, dir: u64, name: &[u8], is_dir: bool) -> Answer<u64> {
        let mut nodes = self.write();
        let parent = at(&nodes, dir)?;
        let place = *parent.names.get(name).ok_or(Errno::NOENT)?;
        let node = parent.entries[place].as_ref().map_or(0, |(_, node)| *node);
        if is_dir && !at(&nodes, node)?.names.is_empty() {
            return Err(Errno::NOTEMPTY);
        }
        let parent = at_mut(&mut nodes, dir)?;
        parent.names.remove(name);
        parent.entries[place] = None;
        // a removed node may still be open, so it remains until the tree is dropped
        Ok(node)
    }

    fn rename(&self, from: (u64, &[u8]), to: (u64, &[u8])) -> Answer<()> {
        match self.remove(to.0, to.1, true) {
            Ok(_) | Err(Errno::NOENT) => {}
            Err(e) => return Err(e),
        }
        let node = self.remove(from.0, from.1, false)?;
        at_mut(&mut self.write(), to.0)?.put(to.1, node);
        Ok(())
    }

    fn list(&self, dir: u64, cookie: u64, plus: bool, reply: &mut Reply<'_>) -> Answer<()> {
        self.with(dir, |nodes, dir| {
            let own: [(&[u8], u64); 2] = [(b".", dir.attr.ino), (b"..", PARENT)];
            let names = dir.entries.iter().map(|entry| entry.as_ref().map(|(name, node)| (&**name, *node)));
            let skip = usize::try_from(cookie).unwrap_or(usize::MAX);
            for (place, entry) in own.into_iter().map(Some).chain(names).enumerate().skip(skip) {
                let (Some((name, number)), next) = (entry, place as u64 + 1) else { continue };
                let node = at(nodes, number)?;
                let added = if plus {
                    // the kernel does not cache `.` and `..`
                    let listed = if place < 2 { Entry { node: 0, ..node.entry() } } else { node.entry() };
                    reply.dirent_plus(&listed, next, name)
                } else {
                    reply.dirent(number, next, node.attr.mode >> 12, name)
                };
                if !added {
                    break;
                }
            }
            Ok(())
        })
    }
}

fn at(nodes: &[Node], node: u64) -> Answer<&Node> {
    usize::try_from(node).ok().and_then(|node| nodes.get(node.checked_sub(1)?)).ok_or(Errno::STALE)
}

fn at_mut(nodes: &mut [Node], node: u64) -> Answer<&mut Node> {
    usize::try_from(node).ok().and_then(|node| nodes.get_mut(node.checked_sub(1)?)).ok_or(Errno::STALE)
}

impl Node {
    fn new(mode: u32, number: u64) -> Self {
        let nlink = if mode & 0o170_000 == DIRECTORY { 2 } else { 1 };
        let attr = Attr { ino: number, mode, nlink, block_size: 4096, ..Attr::default() };
        Self { attr, entries: Vec::new(), names: HashMap::new(), target: Box::default() }
    }

    fn of(path: &Path, metadata: &Metadata, number: u64) -> Result<Self> {
        let attr = Attr {
            ino: number,
            size: metadata.size(),
            blocks: metadata.blocks(),
            atime: metadata.mtime(),
            mtime: metadata.mtime(),
            ctime: metadata.mtime(),
            atime_nanos: metadata.mtime_nsec() as u32,
            mtime_nanos: metadata.mtime_nsec() as u32,
            ctime_nanos: metadata.mtime_nsec() as u32,
            mode: metadata.mode(),
            nlink: metadata.nlink() as u32,
            uid: metadata.uid(),
            gid: metadata.gid(),
            rdev: metadata.rdev() as u32,
            block_size: 4096,
            flags: 0,
        };
        let mut node = Self { attr, ..Self::new(metadata.mode(), number) };
        if metadata.is_symlink() {
            node.target = fs::read_link(path).trying("read", path)?.as_os_str().as_bytes().into();
        }
        Ok(node)
    }

    fn put(&mut self, name: &[u8], node: u64) {
        self.names.insert(name.into(), self.entries.len());
        self.entries.push(Some((name.into(), node)));
    }

    fn entry(&self) -> Entry {
        Entry { node: self.attr.ino, generation: 0, name_timeout: ALWAYS, attr_timeout: ALWAYS, attr: self.attr }
    }
}

impl Filesystem for Tree {
    fn features(&self) -> Features {
        Features::DO_READDIRPLUS
            | Features::READDIRPLUS_AUTO
            | Features::PARALLEL_DIROPS
            | Features::CACHE_SYMLINKS
            | Features::EXPLICIT_INVAL_DATA
            | Features::HANDLE_KILLPRIV_V2
            | Features::NO_OPEN_SUPPORT
            | Features::NO_OPENDIR_SUPPORT
    }

    fn answer(&self, request: &Request<'_>, reply: &mut Reply<'_>) -> Answer<()> {
        let node = request.node;
        match request.operation {
            Operation::Lookup { name } => {
                let found = self.with(node, |nodes, dir| {
                    let entry = dir.names.get(name).and_then(|place| dir.entries.get(*place)?.as_ref());
                    entry.map(|(_, found)| at(nodes, *found).map(Node::entry)).transpose()
                })?;
                let none =
                    Entry { node: 0, generation: 0, name_timeout: ALWAYS, attr_timeout: 0, attr: Attr::default() };
                reply.entry(&found.unwrap_or(none))
            }
            Operation::GetAttr => reply.attr(&self.with(node, |_, node| Ok(node.attr))?, ALWAYS),
            Operation::SetAttr(changes) => {
                let mut nodes = self.write();
                let attr = &mut at_mut(&mut nodes, node)?.attr;
                attr.size = changes.size.unwrap_or(attr.size);
                attr.mode = changes.mode.map_or(attr.mode, |mode| attr.mode & 0o170_000 | mode & 0o7777);
                reply.attr(attr, ALWAYS)
            }
            Operation::ReadLink => self.with(node, |_, node| reply.bytes(&node.target)),
            Operation::MkDir { name, mode, .. } => {
                reply.entry(&self.make(node, name, mode & 0o7777 | DIRECTORY, b"")?)
            }
            Operation::MkNod { name, mode, .. } => reply.entry(&self.make(node, name, mode, b"")?),
            Operation::Symlink { name, target } => reply.entry(&self.make(node, name, 0o120_777, target)?),
            Operation::Unlink { name } => self.remove(node, name, false).map(drop),
            Operation::RmDir { name } => self.remove(node, name, true).map(drop),
            Operation::Rename { name, to, new_name, .. } => self.rename((node, name), (to, new_name)),
            Operation::Read { offset, size } => {
                let left = self.with(node, |_, node| Ok(node.attr.size.saturating_sub(offset)))?;
                reply.fill(size, |buf| {
                    let length = usize::try_from(left).map_or(buf.len(), |left| left.min(buf.len()));
                    buf[..length].fill(0);
                    Ok(length)
                })
            }
            Operation::Write { offset, data, .. } => {
                let mut nodes = self.write();
                let attr = &mut at_mut(&mut nodes, node)?.attr;
                attr.size = attr.size.max(offset + data.len() as u64);
                reply.written(data.len() as u32)
            }
            Operation::ReadDir { cookie, size, plus } => {
                reply.limit(size);
                self.list(node, cookie, plus, reply)
            }
            Operation::StatFs => reply.statfs(&StatFs { block_size: 4096, name_max: 255, ..StatFs::default() }),
            Operation::Fsync { .. } | Operation::FsyncDir { .. } | Operation::SyncFs | Operation::Destroy => Ok(()),
            // ENOSYS to OPEN and CREATE, among others: the kernel does not send them again, and uses MKNOD
            _ => Err(Errno::NOSYS),
        }
    }

    fn forget(&self, _: u64, _: u64) {}

    fn finish(&self) -> io::Result<()> {
        Ok(())
    }

    fn panicked(&self, _: u64, _: &str) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mount::FileSystem;
    use crate::{SequentialRead, Walk, Workload};
    use testkit::Field;

    #[test]
    fn a_mounted_tree_looks_like_the_real_one() {
        if !testkit::tools::is_root() || !testkit::tools::has_fuse() {
            testkit::tools::skip("mounting needs root and /dev/fuse");
            return;
        }
        let real = tempfile::tempdir().unwrap();
        for number in 0..3000 {
            fs::create_dir_all(real.path().join(format!("dir-{}", number % 7))).unwrap();
            fs::write(real.path().join(format!("dir-{}/file-{number}", number % 7)), vec![0; number]).unwrap();
        }
        fs::write(real.path().join("large"), vec![0; (3 << 20) + 5]).unwrap();
        std::os::unix::fs::symlink("dir-1/file-1", real.path().join("link")).unwrap();
        let tree = Arc::new(Tree::of(real.path()).unwrap());
        let mounted = FileSystem::UpperBound { tree: &tree, transport: None }.attach().unwrap();
        let cannot_know = [Field::Accessed, Field::Changed, Field::Blocks, Field::DirectorySize];
        // its content is zeros, as is that of the files
        let looks = |root| testkit::walk(root).unwrap().forget(&cannot_know);
        looks(mounted.path()).assert_same(&looks(real.path()));
        assert_eq!(Walk { warm: false }.run(mounted.path()).unwrap(), 3009);
        let large = SequentialRead { file: "large".into() };
        assert_eq!(large.run(mounted.path()).unwrap(), (3 << 20) + 5);
        let place = mounted.path().to_owned();
        mounted.detach().unwrap();
        assert!(!place.exists());
    }
}
