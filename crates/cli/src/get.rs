//! `extant get`: copies files of a volume to this machine.
//!
//! The result is that of `cp -a` from a mounted volume: holes, hard links, modes and times are preserved, and as root
//! owners and device nodes. [`beneath`] confines names to the destination.

use crate::copy_in::on_signals;
use crate::device::volume_in_use;
use crate::error_report::{Complaints, Failure, Result, say, short, without_errno};
use crate::output::{counted, human};
use crate::path_stack::{Folders, PathStack};
use crate::progress::{Bar, Unit, on_terminal};
use crate::source::{Identity, Opened, Source};
use beneath::{Beneath, FileAttributes, UnsetXattr, set_open_attributes};
use check::render::escape;
use clap::Args;
use fs::{Attributes, FileKind, Inode, InodeNo, ReadDir, Volume};
use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

mod beneath;

/// Size of a read in bytes.
const BUFFER: usize = 1 << 20;
/// Maximum amount of data copied per PATH, as a multiple of the volume's size. A consistent volume contains at most its
/// size; on a damaged one many files may share one map, and would fill any disk.
const SHARED: u64 = 2;

#[derive(Debug, Args)]
#[command(
    about = "Copy files of a volume to this machine",
    after_help = "Examples:
  extant get volume.img /etc/fstab .             one file
  extant get -r volume.img /home/ada /srv/ada    a directory and all below
  extant get -r volume.img / restored            the whole volume
  extant get volume.img /a /b /c some-directory

Where DEST is a directory, files go into it under their own names; otherwise DEST is the new name of the one that is \
    copied. Existing files are left alone unless --force is used, and then stay until the new one is \
    complete: there must be space for both. The volume being read is never replaced, \
    nor is a volume in use: one that is mounted or locked, or, for DEST and the PATHs directly in it, beneath a \
    loop device. Directories are merged. Device nodes and pipes of this machine are replaced only by \
    nodes of the same kind. Symbolic links are \
    copied as they are, except PATH itself, which is followed inside the volume. Nothing is \
    written outside DEST, whatever the names on the volume are, and at most twice the volume's size is copied for each PATH. Owners, device nodes and the \
    set-user-id bits of other owners are preserved only for root. PATH may also be an inode's number in angle brackets, '<12>'.

Exit status: 0 all was copied, 1 something could not be copied, 2 wrong usage."
)]
pub(crate) struct Get {
    #[command(flatten)]
    source: Source,

    /// Files of the volume, then the destination on this machine
    #[arg(value_names = ["PATH", "DEST"], num_args = 2.., required = true)]
    paths: Vec<OsString>,

    /// Copy directories recursively
    #[arg(short, long)]
    recursive: bool,

    /// Replace files that exist
    #[arg(short, long)]
    force: bool,
}

/// A directory being copied.
struct Level<'a> {
    into: Beneath,
    /// Its index in `folders`.
    folder: usize,
    entries: ReadDir<'a>,
    /// The inode with its attributes, which are set at the end; `None` if they do not change.
    inode: Option<Arc<Inode>>,
}

struct Copier<'a> {
    opened: &'a Opened,
    complaints: Complaints<'a>,
    is_root: bool,
    /// The directory in which the copy begins; the base of the paths of earlier files, for hard links.
    base: Beneath,
    /// Directories created below the base.
    folders: Folders,
    /// Files with several names, and the first copy of each: its directory, and its name there.
    linked: HashMap<InodeNo, (usize, Vec<u8>)>,
    /// Remaining number of bytes of data that may be copied for this PATH: no two files of a consistent volume share
    /// blocks.
    left: u64,
    /// The number of attributes that could not be set, and the first of them.
    unset: (u64, Option<String>),
    buffer: Vec<u8>,
    copied: Copied,
    bar: Bar,
    interrupted: Arc<AtomicBool>,
    /// A signal interrupted the copy.
    cut: bool,
    /// The destination is full: the reason, and the first path that was not copied.
    full: Option<(String, String)>,
}

#[derive(Default)]
struct Copied {
    directories: u64,
    files: u64,
    bytes: u64,
}

impl Get {
    pub(crate) fn run(&self) -> Result<u8> {
        let Some((dest, paths)) = self.paths.split_last() else {
            return Err(Failure::Message("specify a PATH of the volume and a DEST".into()));
        };
        beneath::more_descriptors();
        let opened = self.source.open()?;
        let own = self.source.identities();
        let (base, name) = self.destination(dest, paths, own)?;
        // modes are set as on the volume
        rustix::process::umask(rustix::fs::Mode::empty());
        let mut copier = Copier {
            opened: &opened,
            complaints: Complaints::new(&self.source.device),
            is_root: rustix::process::geteuid().is_root(),
            base,
            folders: Folders::default(),
            linked: HashMap::new(),
            left: 0,
            unset: (0, None),
            buffer: vec![0; BUFFER],
            copied: Copied::default(),
            bar: Bar::hidden(),
            interrupted: on_signals()?,
            cut: false,
            full: None,
        };
        let mut sources = Vec::new();
        for path in paths {
            match opened.find(path, true) {
                Ok(inode) if inode.kind == FileKind::Directory && !self.recursive => {
                    copier.complaints.about(path.as_bytes(), "is a directory: use -r to copy it recursively");
                }
                Ok(inode) => sources.push((path.as_bytes(), inode)),
                Err(e) => copier.complaints.about(path.as_bytes(), e),
            }
        }
        if on_terminal() {
            let counting = Bar::new("counting files", 0, Unit::Files);
            let each = sources.iter().map(|(_, inode)| data_below(&opened.volume, inode, &counting));
            let total = each.fold(0, u64::saturating_add);
            counting.finish();
            copier.bar = Bar::new("copying", total, Unit::Bytes);
        }
        for (path, inode) in &sources {
            if copier.stopped() {
                break;
            }
            let own_name = name.as_deref().unwrap_or_else(|| last_name(path));
            copier.copy(path, inode, own_name);
        }
        if let Some((why, first)) = &copier.full {
            let all = sources.iter().map(|(_, inode)| data_below(&opened.volume, inode, &Bar::hidden()));
            let left = human(all.fold(0, u64::saturating_add).saturating_sub(copier.copied.bytes));
            let free = human(copier.base.free());
            let dest = escape(dest.as_bytes());
            say(&format!(
                "{dest}: {why}: {left} of data left to copy, {free} free; {first} and all that follows was not copied"
            ));
        }
        Ok(copier.finish(self.source.verbose))
    }

    /// The directory to copy into, and the file's name there if it differs. `own`: the files that contain the volume.
    fn destination(
        &self,
        dest: &OsString,
        paths: &[OsString],
        own: [Option<Identity>; 2],
    ) -> Result<(Beneath, Option<Vec<u8>>)> {
        let path = Path::new(dest);
        let failure = |why: &dyn ToString| Failure::on(&path.display().to_string(), why.to_string());
        let there = rustix::fs::stat(path);
        if let Ok(there) = &there
            && own.contains(&Some((there.st_dev, there.st_ino)))
        {
            return Err(failure(&"it is the volume being read"));
        }
        if let Ok(there) = there
            && let Some(what) = beneath::node_name(rustix::fs::FileType::from_raw_mode(there.st_mode))
        {
            let why = format!("it is {what}, which is not replaced by a file: use `extant cat` to write a file to it");
            return Err(failure(&why));
        }
        // of files further below only the locks are examined, by `Beneath`
        let targets: Vec<PathBuf> = if path.is_dir() {
            paths.iter().map(|source| path.join(OsStr::from_bytes(last_name(source.as_bytes())))).collect()
        } else {
            vec![path.to_path_buf()]
        };
        let is_own = |target: &PathBuf| {
            rustix::fs::stat(target).is_ok_and(|found| own.contains(&Some((found.st_dev, found.st_ino))))
        };
        // the volume being read is refused when the copy comes to it
        for target in targets.iter().filter(|target| self.force && !is_own(target)) {
            if let Some(why) = volume_in_use(target) {
                return Err(Failure::on(&target.display().to_string(), why));
            }
        }
        if path.is_dir() {
            return Ok((Beneath::open(path, self.force).map_err(|e| failure(&e))?.without(own), None));
        }
        if paths.len() > 1 {
            return Err(failure(&"not a directory: several files need one as their destination"));
        }
        let Some(name) = path.file_name() else { return Err(failure(&"no such directory")) };
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let parent = parent.map_or(PathBuf::from("."), Path::to_path_buf);
        let base = Beneath::open(&parent, self.force).map_err(|e| Failure::on(&parent.display().to_string(), e))?;
        Ok((base.without(own), Some(name.as_bytes().to_vec())))
    }
}

impl<'a> Copier<'a> {
    /// Whether the copy must stop; called while work remains.
    fn stopped(&mut self) -> bool {
        self.cut |= self.interrupted.load(Ordering::Relaxed);
        self.cut || self.full.is_some()
    }

    /// Records that something could not be created. A lack of space applies to the rest as well, and is reported at the
    /// end.
    fn failed(&mut self, path: &[u8], why: Trouble) {
        match why {
            Trouble::Full(why) => self.full = Some((why, short(path))),
            Trouble::Only(why) => self.complaints.about(path, why),
        }
    }

    /// Copies the file or directory at `path` under `name`. An empty name denotes the destination itself.
    fn copy(&mut self, path: &[u8], inode: &Arc<Inode>, name: &[u8]) {
        let base = match self.base.descend(&[]) {
            Ok(base) => base,
            Err(e) => return self.complaints.about(path, e),
        };
        let geometry = &self.opened.volume.superblock().geometry;
        self.left = geometry.blocks.saturating_mul(u64::from(geometry.block_size)).saturating_mul(SHARED);
        if inode.kind != FileKind::Directory {
            return self.leaf((&base, Folders::START), path, name, inode);
        }
        let mut entered = HashSet::from([inode.number]);
        let mut stack = PathStack::new(path);
        let first = if name.is_empty() {
            self.open_level((base, Folders::START), false, path, inode)
        } else {
            self.directory((&base, Folders::START), path, name, inode)
        };
        let mut levels = Vec::from_iter(first);
        while let Some(level) = levels.last_mut() {
            if self.stopped() {
                return;
            }
            if self.left == 0 {
                let why = "files share blocks, and more was copied than the volume's size: check it first. The rest was not copied";
                return self.complaints.about(path, why);
            }
            let entry = match level.entries.next() {
                Some(Ok(entry)) if matches!(&entry.name[..], b"." | b"..") => continue,
                Some(Ok(entry)) => entry,
                Some(Err(e)) => {
                    self.complaints.about(stack.path(), e);
                    continue;
                }
                None => {
                    if let Some(done) = levels.pop() {
                        self.close(&done, stack.path());
                    }
                    stack.leave();
                    continue;
                }
            };
            stack.enter(&entry.name);
            let (path, into) = (stack.path(), (&level.into, level.folder));
            match self.opened.volume.inode(entry.inode) {
                Err(e) => self.complaints.about(path, e),
                Ok(inode) if inode.kind != FileKind::Directory => self.leaf(into, path, &entry.name, &inode),
                // a damaged volume may name a directory twice, and so form a loop
                Ok(inode) if !entered.insert(inode.number) => {
                    self.complaints.about(path, "this directory was copied already, under another name");
                }
                Ok(inode) => {
                    if let Some(next) = self.directory(into, path, &entry.name, &inode) {
                        levels.push(next);
                        continue;
                    }
                }
            }
            stack.leave();
        }
    }

    /// Creates a directory, or uses an existing one, and begins to copy its content.
    fn directory(
        &mut self,
        (into, folder): (&Beneath, usize),
        path: &[u8],
        name: &[u8],
        inode: &Arc<Inode>,
    ) -> Option<Level<'a>> {
        match into.make_directory(name) {
            // the attributes of an existing directory do not change, as with a file
            Ok((dir, made)) => {
                let folder = self.folders.add(folder, name);
                self.open_level((dir, folder), made || into.replaces(), path, inode)
            }
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                let why = "already exists in the destination and is not a directory: remove it first";
                self.complaints.about(path, why);
                None
            }
            Err(e) => {
                self.failed(path, creation(&e));
                None
            }
        }
    }

    fn open_level(
        &mut self,
        (into, folder): (Beneath, usize),
        set_attributes: bool,
        path: &[u8],
        inode: &Arc<Inode>,
    ) -> Option<Level<'a>> {
        self.copied.directories += 1;
        match self.opened.volume.read_dir(inode, 0) {
            Ok(entries) => Some(Level { into, folder, entries, inode: set_attributes.then(|| Arc::clone(inode)) }),
            Err(e) => {
                self.complaints.about(path, e);
                None
            }
        }
    }

    /// Sets the attributes of a directory after its content has been copied.
    fn close(&mut self, level: &Level<'_>, path: &[u8]) {
        if let Some(inode) = &level.inode {
            let attributes = self.attributes_of(path, inode);
            let done = level.into.set_attributes(&attributes);
            self.record_unset(path, done);
        }
    }

    /// Copies a file that is not a directory.
    fn leaf(&mut self, (into, folder): (&Beneath, usize), path: &[u8], name: &[u8], inode: &Arc<Inode>) {
        let several_names = inode.raw().disk.i_links_count.get() > 1;
        if several_names && let Some(first) = self.linked.get(&inode.number) {
            match self.link(into, name, first) {
                Ok(()) => self.copied.files += 1,
                Err(e) => self.failed(path, creation(&e)),
            }
            return;
        }
        let done = match inode.kind {
            FileKind::Regular => self.regular(into, path, name, inode),
            FileKind::Symlink => self.symlink(into, path, name, inode),
            _ => self.node(into, path, name, inode),
        };
        match done {
            Ok(()) => {
                self.copied.files += 1;
                if several_names {
                    self.linked.insert(inode.number, (folder, name.to_vec()));
                }
            }
            Err(why) => self.failed(path, why),
        }
    }

    /// Adds another name to a file that was copied to `first`.
    fn link(&self, into: &Beneath, name: &[u8], (folder, old): &(usize, Vec<u8>)) -> io::Result<()> {
        into.link(name, &self.base.descend(&self.folders.names(*folder))?, old)
    }

    fn regular(&mut self, into: &Beneath, path: &[u8], name: &[u8], inode: &Inode) -> Result<(), Trouble> {
        // before an empty file is created
        self.opened.volume.readable(inode)?;
        let (file, temporary) = into.create_file(name).map_err(|e| creation(&e))?;
        let before = self.copied.bytes;
        let content = self.content(&file, inode);
        if content.as_ref().is_err_and(|why| self.cut || matches!(why, Trouble::Full(_))) {
            // an incomplete file is of no use
            let unfinished = temporary.as_deref().unwrap_or(name);
            let removed = into.remove(unfinished);
            self.copied.bytes = before;
            let end = match (removed, &temporary) {
                (Err(e), _) => format!("the unfinished file {} could not be removed: {e}", escape(unfinished)),
                (Ok(()), None) => "the unfinished file was removed".to_owned(),
                (Ok(()), Some(_)) => "the existing file is left unchanged".to_owned(),
            };
            return content.map_err(|why| match why {
                Trouble::Only(why) => Trouble::Only(format!("{why}; {end}")),
                full => full,
            });
        }
        let attributes = self.attributes_of(path, inode);
        let done = set_open_attributes(&file, &attributes);
        self.record_unset(path, done);
        let Some(temporary) = temporary else { return content };
        let settled = into.settle(&temporary, name, content.is_ok());
        content.map_err(|why| match why {
            Trouble::Only(why) => Trouble::Only(format!("{why}; the existing file is left unchanged")),
            full => full,
        })?;
        settled.map_err(|e| creation(&e))
    }

    /// Copies the data of a file and omits the holes.
    fn content(&mut self, file: &File, inode: &Inode) -> Result<(), Trouble> {
        let opened = self.opened;
        let volume = &opened.volume;
        let geometry = &volume.superblock().geometry;
        // a damaged map may name the same blocks repeatedly
        let most = geometry.blocks.saturating_mul(u64::from(geometry.block_size));
        let (mut at, mut copied) = (0, 0u64);
        let ended =
            |at: u64, why: &dyn ToString| Trouble::Only(format!("copy stopped at byte {at}: {}", why.to_string()));
        let unwritten = |at: u64, e: io::Error| full(&e).unwrap_or_else(|| ended(at, &e));
        while let Some(start) = volume.seek_data(inode, at).map_err(|e| ended(at, &e))? {
            let end = volume.seek_hole(inode, start).map_err(|e| ended(start, &e))?.unwrap_or(inode.size);
            at = start;
            while at < end {
                if self.stopped() {
                    return Err(ended(at, &"interrupted"));
                }
                let len = usize::try_from(end - at).map_or(BUFFER, |left| left.min(BUFFER));
                let buffer = &mut self.buffer[..len];
                let len = volume.read_at(inode, at, buffer).map_err(|e| ended(at, &e))?;
                file.write_all_at(&buffer[..len], at).map_err(|e| unwritten(at, e))?;
                if len == 0 {
                    break;
                }
                at += len as u64;
                copied += len as u64;
                self.copied.bytes += len as u64;
                self.bar.advance(len as u64);
                self.left = self.left.saturating_sub(len as u64);
                if copied > most || self.left == 0 {
                    return Err(ended(at, &"its map names more blocks than the volume has"));
                }
            }
        }
        file.set_len(inode.size).map_err(|e| unwritten(at, e))
    }

    fn symlink(&mut self, into: &Beneath, path: &[u8], name: &[u8], inode: &Inode) -> Result<(), Trouble> {
        let target = self.opened.volume.read_link(inode)?;
        into.create_symlink(name, &target).map_err(|e| creation(&e))?;
        self.set_node_attributes(into, path, name, inode);
        Ok(())
    }

    fn node(&mut self, into: &Beneath, path: &[u8], name: &[u8], inode: &Inode) -> Result<(), Trouble> {
        let attributes = self.opened.volume.attributes(inode);
        let device = attributes.device;
        into.create_node(name, inode.kind, device.unwrap_or_default(), self.mode(&attributes)).map_err(
            |e| match device {
                Some(_) if e.kind() == io::ErrorKind::PermissionDenied => {
                    Trouble::Only("only root can create device nodes".into())
                }
                _ => creation(&e),
            },
        )?;
        self.set_node_attributes(into, path, name, inode);
        Ok(())
    }

    fn set_node_attributes(&mut self, into: &Beneath, path: &[u8], name: &[u8], inode: &Inode) {
        let attributes = self.attributes_of(path, inode);
        let done = into.set_node_attributes(name, &attributes);
        self.record_unset(path, done);
    }

    /// The attributes of a file; reports those that cannot be read.
    fn attributes_of(&mut self, path: &[u8], inode: &Inode) -> FileAttributes {
        let volume = &self.opened.volume;
        let attributes = volume.attributes(inode);
        let mut xattrs = Vec::new();
        match volume.list_xattrs(inode) {
            Err(e) => self.complaints.about(path, e),
            Ok(names) => {
                for name in names {
                    match volume.get_xattr(inode, &name) {
                        Ok(value) => xattrs.push((name, value)),
                        Err(e) => self.complaints.about(path, format!("{}: {e}", escape(&name))),
                    }
                }
            }
        }
        FileAttributes {
            owner: self.is_root.then_some((attributes.uid, attributes.gid)),
            mode: self.mode(&attributes),
            atime: attributes.atime,
            mtime: attributes.mtime,
            xattrs,
        }
    }

    /// The permission bits to set: set-id bits are dropped if the owner or group is not preserved, since they would
    /// confer the rights of a different one.
    fn mode(&self, attributes: &Attributes) -> u16 {
        let mut mode = attributes.mode & 0o7777;
        if !self.is_root && attributes.uid != rustix::process::geteuid().as_raw() {
            mode &= !0o4000;
        }
        if !self.is_root && attributes.gid != rustix::process::getegid().as_raw() {
            mode &= !0o2000;
        }
        mode
    }

    fn record_unset(&mut self, path: &[u8], done: io::Result<Vec<UnsetXattr>>) {
        match done {
            Err(e) => self.complaints.about(path, format!("cannot set owner, mode or times: {e}")),
            Ok(unset) => {
                let (count, first) = &mut self.unset;
                *count += unset.len() as u64;
                if let Some((name, e)) = unset.first() {
                    first.get_or_insert_with(|| {
                        let why = without_errno(&e.to_string());
                        format!("{} of {}: {why}", escape(name), short(path))
                    });
                }
            }
        }
    }

    fn finish(self, verbose: bool) -> u8 {
        self.bar.finish();
        if self.cut {
            say("interrupted: not all was copied");
        }
        if let (count, Some(first)) = &self.unset {
            let count = counted(*count, "extended attribute", "extended attributes");
            say(&format!("{count} could not be set in the destination, the first: {first}"));
        }
        if verbose {
            let Copied { directories, files, bytes } = self.copied;
            let directories = counted(directories, "directory", "directories");
            let files = counted(files, "file", "files");
            say(&format!("{directories} and {files} copied, {} of data", human(bytes)));
        }
        self.complaints.exit().max(u8::from(self.cut || self.full.is_some()))
    }
}

/// The reason why something was not copied.
enum Trouble {
    /// An error of this file alone.
    Only(String),
    /// The destination is full.
    Full(String),
}

impl From<fs::Error> for Trouble {
    fn from(e: fs::Error) -> Self {
        Self::Only(e.to_string())
    }
}

/// The reason, if the destination is full.
fn full(e: &io::Error) -> Option<Trouble> {
    let full = matches!(e.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
    full.then(|| Trouble::Full(without_errno(&e.to_string())))
}

/// The reason why something could not be created.
fn creation(e: &io::Error) -> Trouble {
    if let Some(full) = full(e) {
        return full;
    }
    Trouble::Only(match e.kind() {
        io::ErrorKind::AlreadyExists => "already exists in the destination (--force replaces files)".to_owned(),
        _ => format!("cannot create it in the destination: {e}"),
    })
}

/// The last component of a path; empty if there is none.
fn last_name(path: &[u8]) -> &[u8] {
    match path.rsplit(|byte| *byte == b'/').find(|name| !name.is_empty()) {
        None | Some(b"." | b"..") => b"",
        Some(name) => name,
    }
}

/// Approximate number of bytes of data in a file, or in all files below a directory.
fn data_below(volume: &Volume, inode: &Inode, counting: &Bar) -> u64 {
    let of = |inode: &Inode| match inode.kind {
        FileKind::Regular => inode.size.min(inode.sectors(volume.superblock()).saturating_mul(512)),
        _ => 0,
    };
    if inode.kind != FileKind::Directory {
        return of(inode);
    }
    let all = volume.walk(inode.number).filter_map(|(_, found)| found.ok());
    all.inspect(|_| counting.advance(1)).map(|inode| of(&inode)).fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_names() {
        for (path, name) in [("/a/b", "b"), ("/a/b/", "b"), ("a", "a"), ("/", ""), ("", ""), ("a/..", ""), ("a/.", "")]
        {
            assert_eq!(last_name(path.as_bytes()), name.as_bytes(), "{path}");
        }
    }
}
