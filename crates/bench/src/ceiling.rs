//! A read-only FUSE file system in memory: the names and sizes of a real tree, and nothing behind them. What takes time
//! here is FUSE itself, so no FUSE file system with the same front end can be faster.
//!
//! It lets the kernel keep as much, and answers with as many threads, as Extant's own mount.

use crate::Result;
use crate::error::Trying;
use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyDirectoryPlus,
    ReplyEntry, ReplyOpen, Request, SessionACL,
};
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// How long the kernel may keep what it was told: ten years.
const ALWAYS: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// The number of `..` in a listing: nobody asks for it.
const PARENT: INodeNo = INodeNo(1);

/// What a tree looks like from outside. Node `n` is `nodes[n - 1]`, the root is node 1.
#[derive(Debug)]
pub(crate) struct Tree {
    nodes: Vec<Node>,
}

#[derive(Debug)]
struct Node {
    attr: FileAttr,
    /// In the order of the listing; `.` and `..` are not among them.
    entries: Vec<(OsString, INodeNo)>,
    names: HashMap<OsString, INodeNo>,
    target: OsString,
}

impl Tree {
    /// The tree below `root`, which other file systems mounted in it belong to as well.
    pub(crate) fn of(root: &Path) -> Result<Self> {
        let mut nodes = vec![Node::of(root, &fs::symlink_metadata(root).trying("look at", root)?, 1)?];
        let mut dirs = vec![(root.to_owned(), 0)];
        while let Some((dir, at)) = dirs.pop() {
            for entry in fs::read_dir(&dir).trying("list", &dir)? {
                let entry = entry.trying("list", &dir)?;
                let metadata = entry.metadata().trying("look at something in", &dir)?;
                let number = nodes.len() as u64 + 1;
                if metadata.is_dir() {
                    dirs.push((entry.path(), nodes.len()));
                }
                nodes.push(Node::of(&entry.path(), &metadata, number)?);
                nodes[at].entries.push((entry.file_name(), INodeNo(number)));
                nodes[at].names.insert(entry.file_name(), INodeNo(number));
            }
        }
        Ok(Self { nodes })
    }

    /// Mounts it on `dir`, until the session is dropped.
    pub(crate) fn mount(self: &Arc<Self>, dir: &Path) -> Result<BackgroundSession> {
        let mut config = Config::default();
        config.mount_options = vec![
            MountOption::RO,
            MountOption::DefaultPermissions,
            MountOption::FSName("ceiling".to_owned()),
            MountOption::Subtype("extant-ceiling".to_owned()),
        ];
        config.acl = SessionACL::All;
        config.n_threads = Some(std::thread::available_parallelism().map_or(2, usize::from).clamp(2, 16));
        config.clone_fd = true;
        fuser::spawn_mount(Front(Arc::clone(self)), dir, &config).trying("mount a file system in memory on", dir)
    }

    fn node(&self, node: INodeNo) -> Option<&Node> {
        self.nodes.get(usize::try_from(node.0).ok()?.checked_sub(1)?)
    }
}

impl Node {
    fn of(path: &Path, metadata: &Metadata, number: u64) -> Result<Self> {
        let kind = FileType::from_std(metadata.file_type()).unwrap_or(FileType::RegularFile);
        let epoch = SystemTime::UNIX_EPOCH;
        let time = metadata.modified().unwrap_or(epoch);
        let attr = FileAttr {
            ino: INodeNo(number),
            size: metadata.size(),
            blocks: metadata.blocks(),
            atime: time,
            mtime: time,
            ctime: time,
            crtime: epoch,
            kind,
            perm: (metadata.mode() & 0o7777) as u16,
            nlink: metadata.nlink() as u32,
            uid: metadata.uid(),
            gid: metadata.gid(),
            rdev: metadata.rdev() as u32,
            blksize: 4096,
            flags: 0,
        };
        let target = match kind {
            FileType::Symlink => fs::read_link(path).trying("read", path)?.into_os_string(),
            _ => OsString::new(),
        };
        Ok(Self { attr, entries: Vec::new(), names: HashMap::new(), target })
    }

    /// Entries of a listing from `cookie` on, each with the cookie of the next.
    fn listing(&self, cookie: u64) -> impl Iterator<Item = (u64, &OsStr, INodeNo)> {
        let own = [(OsStr::new("."), self.attr.ino), (OsStr::new(".."), PARENT)];
        let all = own.into_iter().chain(self.entries.iter().map(|(name, node)| (name.as_os_str(), *node)));
        let skip = usize::try_from(cookie).unwrap_or(usize::MAX);
        all.enumerate().skip(skip).map(|(at, (name, node))| (at as u64 + 1, name, node))
    }
}

/// The side of the tree that `fuser` sees.
struct Front(Arc<Tree>);

impl Filesystem for Front {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let wanted = InitFlags::FUSE_DO_READDIRPLUS
            | InitFlags::FUSE_READDIRPLUS_AUTO
            | InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_CACHE_SYMLINKS;
        let offered = config.capabilities();
        let refused = |_| io::Error::other("the kernel refuses what it offered");
        config.add_capabilities(wanted & offered).map_err(refused)?;
        // the largest request, and how many may wait: the kernel takes them or less
        config.set_max_write(1 << 20).map_err(|_| io::Error::other("the kernel refuses large requests"))?;
        config.set_max_background(64).map_err(|_| io::Error::other("the kernel refuses a queue"))?;
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = self.0.node(parent).and_then(|dir| self.0.node(*dir.names.get(name)?));
        match found {
            Some(node) => reply.entry(&ALWAYS, &node.attr, Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, node: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.0.node(node) {
            Some(node) => reply.attr(&ALWAYS, &node.attr),
            None => reply.error(Errno::ESTALE),
        }
    }

    fn readlink(&self, _: &Request, node: INodeNo, reply: ReplyData) {
        match self.0.node(node) {
            Some(node) => reply.data(node.target.as_bytes()),
            None => reply.error(Errno::ESTALE),
        }
    }

    // answered so, the kernel asks for neither again
    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.error(Errno::ENOSYS);
    }

    fn opendir(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.error(Errno::ENOSYS);
    }

    fn read(
        &self,
        _: &Request,
        node: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        static ZEROS: [u8; 1 << 20] = [0; 1 << 20];
        let left = self.0.node(node).map_or(0, |node| node.attr.size.saturating_sub(offset));
        let size = (size as usize).min(ZEROS.len());
        reply.data(&ZEROS[..usize::try_from(left).map_or(size, |left| left.min(size))]);
    }

    fn readdir(&self, _: &Request, node: INodeNo, _: FileHandle, cookie: u64, mut reply: ReplyDirectory) {
        let Some(dir) = self.0.node(node) else { return reply.error(Errno::ESTALE) };
        for (next, name, node) in dir.listing(cookie) {
            let kind = self.0.node(node).map_or(FileType::Directory, |node| node.attr.kind);
            if reply.add(node, next, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn readdirplus(&self, _: &Request, node: INodeNo, _: FileHandle, cookie: u64, mut reply: ReplyDirectoryPlus) {
        let Some(dir) = self.0.node(node) else { return reply.error(Errno::ESTALE) };
        for (next, name, node) in dir.listing(cookie) {
            // the kernel remembers nothing for `.` and `..`
            let attr = self.0.node(node).map_or(&dir.attr, |node| &node.attr);
            if reply.add(node, next, name, &ALWAYS, attr, Generation(0)) {
                break;
            }
        }
        reply.ok();
    }
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
        let mounted = FileSystem::Ceiling { tree: &tree }.attach().unwrap();
        let cannot_know = [Field::Accessed, Field::Changed, Field::Blocks, Field::DirectorySize];
        // nor does it have any content but zeros, which is what the files were made of
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
