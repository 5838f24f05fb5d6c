//! Renaming.

use super::remove::REMOVING;
use super::{NAMING, check_name};
use crate::acl::Inherited;
use crate::change::Change;
use crate::dir::NewEntry;
use crate::lookup::Found;
use crate::node::{Locked, Node};
use crate::{Error, FileKind, Inode, InodeNo, Names, NewFile, Result};
use format::dir::FileType;
use std::sync::Arc;

/// The maximum number of ancestors of a directory that are followed: beyond that the tree must have a loop.
const DEEPEST: usize = 1 << 16;

/// The flags of a rename.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct RenameFlags {
    /// The new name must not exist.
    pub no_replace: bool,
    /// Both names exist and are exchanged.
    pub exchange: bool,
    /// The old name stays, and becomes a character device 0:0.
    pub whiteout: bool,
}

/// One of the two names in a rename.
struct Side<'a> {
    name: &'a [u8],
    dir: Arc<Inode>,
    found: Found,
    inode: Arc<Inode>,
}

/// A directory and its ancestors, up to the root.
struct Ancestors {
    start: Arc<Node>,
    dirs: Vec<InodeNo>,
}

impl Ancestors {
    /// Whether a directory is among them, including the first one and the root.
    fn leads_over(&self, dir: InodeNo) -> bool {
        self.dirs.contains(&dir)
    }
}

impl Side<'_> {
    fn is_dir(&self) -> bool {
        self.inode.kind == FileKind::Directory
    }

    fn kind(&self) -> Option<FileType> {
        FileType::from_mode(self.inode.raw().disk.i_mode.get())
    }
}

impl Names {
    /// Renames a file, within a directory or to another one. A file with the new name loses it atomically; an empty
    /// directory can be replaced by another. Two names of the same file both stay.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Exists`] depending on the flags; [`Error::Invalid`] if a directory would become
    /// its own ancestor, and for "." and ".."; [`Error::NotADirectory`] and [`Error::IsADirectory`] for incompatible
    /// kinds, [`Error::NotEmpty`]; and as [`Names::create`] and [`Names::unlink`].
    pub fn rename(
        &self,
        old_dir: InodeNo,
        old_name: &[u8],
        new_dir: InodeNo,
        new_name: &[u8],
        flags: RenameFlags,
    ) -> Result<()> {
        check_name(old_name)?;
        check_name(new_name)?;
        if flags.exchange && (flags.no_replace || flags.whiteout) {
            return Err(Error::Invalid("an exchange cannot be combined with no-replace or whiteout"));
        }
        let is_dot = |name: &[u8]| matches!(name, b"." | b"..");
        if is_dot(old_name) || is_dot(new_name) {
            return Err(Error::Invalid("\".\" and \"..\" cannot be renamed"));
        }
        self.writing()?;
        self.with_space(|| self.rename_now(old_dir, old_name, new_dir, new_name, flags))
    }

    fn rename_now(
        &self,
        old_dir: InodeNo,
        old_name: &[u8],
        new_dir: InodeNo,
        new_name: &[u8],
        flags: RenameFlags,
    ) -> Result<()> {
        self.record_name(old_dir, old_name);
        self.record_name(new_dir, new_name);
        self.settle_content(old_dir, old_name, new_dir, new_name)?;
        let across = old_dir != new_dir;
        let _guard = across.then(|| self.rename.lock());
        let above = if across { Some((self.ancestors(old_dir)?, self.ancestors(new_dir)?)) } else { None };
        let first = match &above {
            // an ancestor of the other first; else the lower number
            Some((_, new)) if new.leads_over(old_dir) => old_dir,
            Some((old, _)) if old.leads_over(new_dir) => new_dir,
            _ => old_dir.min(new_dir),
        };
        let second = if first == old_dir { new_dir } else { old_dir };
        let goes = self.locked(&[first, second], |_| {
            let from = self.dir_to_change(old_dir)?;
            let to = self.dir_to_change(new_dir)?;
            let source = self.find_named(&from, old_name)?;
            let target = match self.find(&to, new_name)? {
                Some(_) => Some(self.find_named(&to, new_name)?),
                None => None,
            };
            if flags.no_replace && target.is_some() {
                return Err(Error::Exists);
            }
            if flags.exchange && target.is_none() {
                return Err(Error::NotFound);
            }
            // neither name may refer to its own directory
            if source.inode == old_dir || target.is_some_and(|target| target.inode == new_dir) {
                return Err(Self::directory_loop(old_dir));
            }
            if let Some((old, new)) = &above {
                Self::no_loops(old, new, &source, target.as_ref(), flags.exchange)?;
            }
            if target.is_some_and(|target| target.inode == source.inode) {
                return Ok(Vec::new());
            }
            let mut children = vec![source.inode];
            children.extend(target.map(|target| target.inode));
            self.sort_children(&mut children);
            self.locked(&children, |locked| {
                let source = Side { name: old_name, inode: self.named_inode(source.inode)?, dir: from, found: source };
                let target = match target {
                    Some(found) => {
                        let inode = self.named_inode(found.inode)?;
                        Some(Side { name: new_name, inode, dir: Arc::clone(&to), found })
                    }
                    None => None,
                };
                self.rename_checked(&source, &to, target.as_ref(), new_name, flags, locked)
            })
        })?;
        self.free_all(goes)
    }

    /// Allocates and writes the delayed data of a file before it replaces another, so that after a crash the name
    /// refers to the old content or to the new.
    fn settle_content(&self, old_dir: InodeNo, old_name: &[u8], new_dir: InodeNo, new_name: &[u8]) -> Result<()> {
        let new = self.inode(new_dir)?;
        let Ok(target) = self.lookup(&new, new_name) else { return Ok(()) };
        let old = self.inode(old_dir)?;
        match self.lookup(&old, old_name) {
            Ok(source) if source != target => self.flush_delayed(source),
            _ => Ok(()),
        }
    }

    /// The ancestors of a directory, up to the root. The caller has the rename lock, so that no directory changes its
    /// parent; names in them may still be added and removed, so each is locked while its parent is read. No directory
    /// beneath it may be locked then: a parent is locked before its child.
    fn ancestors(&self, below: InodeNo) -> Result<Ancestors> {
        let start = self.node(below);
        let mut dirs = vec![below];
        let mut at = below;
        while at != InodeNo::ROOT {
            let node = self.node(at);
            let _state = node.read();
            let dir = self.inode(at)?;
            self.is_directory(&dir)?;
            let parent = self.parent_of(&dir)?;
            if !self.may_be_named(parent) || parent == at || dirs.len() > DEEPEST {
                return Err(Self::directory_loop(below));
            }
            dirs.push(parent);
            at = parent;
        }
        Ok(Ancestors { start, dirs })
    }

    /// Checks that no directory becomes its own ancestor, and that no ancestor of a locked directory is replaced.
    fn no_loops(
        old: &Ancestors,
        new: &Ancestors,
        source: &Found,
        target: Option<&Found>,
        exchange: bool,
    ) -> Result<()> {
        for above in [old, new] {
            if above.start.is_gone() {
                // removed before it was locked: its number may belong to another directory now
                return Err(Error::Stale(above.dirs[0]));
            }
        }
        let own_ancestor = || Error::Invalid("a directory would become its own ancestor");
        if new.leads_over(source.inode) {
            return Err(own_ancestor());
        }
        match target {
            Some(target) if old.leads_over(target.inode) => {
                Err(if exchange { own_ancestor() } else { Error::NotEmpty })
            }
            _ => Ok(()),
        }
    }

    /// Sorts the files that are locked after their directories: directories first, then by number.
    fn sort_children(&self, children: &mut [InodeNo]) {
        let is_file = |number: &InodeNo| self.any_inode(*number).is_ok_and(|i| i.kind != FileKind::Directory);
        children.sort_by_key(|number| (is_file(number), *number));
    }

    fn rename_checked(
        &self,
        source: &Side<'_>,
        to: &Arc<Inode>,
        target: Option<&Side<'_>>,
        new_name: &[u8],
        flags: RenameFlags,
        locked: &mut Locked<'_>,
    ) -> Result<Vec<InodeNo>> {
        let from = &source.dir;
        self.may_lose_names(from)?;
        self.may_change(&source.inode)?;
        self.may_contain(from, b"")?;
        self.may_contain(to, new_name)?;
        if from.number != to.number {
            self.same_project(to, &source.inode)?;
        }
        if let Some(target) = target {
            self.may_lose_names(to)?;
            self.may_change(&target.inode)?;
            if flags.exchange && from.number != to.number {
                self.same_project(from, &target.inode)?;
            }
        }
        match target {
            Some(target) if flags.exchange => self.exchange(source, target).map(|()| Vec::new()),
            Some(target) => {
                match (source.is_dir(), target.is_dir()) {
                    (true, false) => return Err(Error::NotADirectory),
                    (false, true) => return Err(Error::IsADirectory),
                    (true, true) if !self.is_empty_dir(&target.inode)? => return Err(Error::NotEmpty),
                    _ => {}
                }
                self.replace(source, target, flags, locked)
            }
            None => self.move_to(source, to, new_name, flags).map(|()| Vec::new()),
        }
    }

    /// Moves a name over an existing one.
    fn replace(
        &self,
        source: &Side<'_>,
        target: &Side<'_>,
        flags: RenameFlags,
        locked: &mut Locked<'_>,
    ) -> Result<Vec<InodeNo>> {
        let across = source.dir.number != target.dir.number;
        if source.is_dir() && across {
            // must be readable, as it will be changed
            self.parent_of(&source.inode)?;
        }
        let change = self.change(NAMING + REMOVING)?;
        change.may_remove_names()?;
        let whiteout = self.whiteout(&change, &source.dir, flags)?;
        change.record_whole(source.inode.number);
        let to = self.point_name(&change, &target.dir, &target.found, source.inode.number, source.kind())?;
        // within one directory, an inline one has a new inode value now
        let from = if across { Arc::clone(&source.dir) } else { Arc::clone(&to) };
        let from = self.leave_name(&change, &from, &source.found, whiteout.as_ref())?;
        let to = if across { to } else { Arc::clone(&from) };
        let lost = source.is_dir() && (across || target.is_dir());
        self.touch(&change, &from, lost.then(|| Self::without_subdirectory(&from)))?;
        if across {
            self.touch(&change, &to, None)?;
        }
        self.moved(&change, source, to.number, across)?;
        self.lose_name(&change, &target.inode, locked)
    }

    /// Moves a name to one that does not exist.
    fn move_to(&self, source: &Side<'_>, to: &Arc<Inode>, new_name: &[u8], flags: RenameFlags) -> Result<()> {
        let across = source.dir.number != to.number;
        let moves_dir = source.is_dir() && across;
        let links = if moves_dir {
            self.parent_of(&source.inode)?;
            Some(self.with_subdirectory(to)?)
        } else {
            None
        };
        let change = self.change(NAMING + REMOVING)?;
        change.may_remove_names()?;
        let (to, spot) = self.make_space(&change, Arc::clone(to), new_name)?;
        let from = if across { Arc::clone(&source.dir) } else { Arc::clone(&to) };
        let whiteout = self.whiteout(&change, &from, flags)?;
        let entry = NewEntry { inode: source.inode.number, name: new_name, kind: source.kind() };
        // making space may have moved the old name
        let found = if across { source.found } else { self.find_named(&from, source.name)? };
        let to = self.put_name(&change, &to, spot, &entry)?;
        let from = if across { from } else { Arc::clone(&to) };
        let from = self.leave_name(&change, &from, &found, whiteout.as_ref())?;
        let to = if across { to } else { Arc::clone(&from) };
        self.touch(&change, &from, moves_dir.then(|| Self::without_subdirectory(&from)))?;
        if across {
            self.touch(&change, &to, links)?;
        }
        self.moved(&change, source, to.number, across)
    }

    /// Exchanges the inodes of two names.
    fn exchange(&self, a: &Side<'_>, b: &Side<'_>) -> Result<()> {
        let across = a.dir.number != b.dir.number;
        let mut links = [None, None];
        if across {
            for (n, (here, there)) in [(a, b), (b, a)].into_iter().enumerate() {
                if here.is_dir() {
                    self.parent_of(&here.inode)?;
                }
                links[n] = match (here.is_dir(), there.is_dir()) {
                    (true, false) => Some(Self::without_subdirectory(&here.dir)),
                    (false, true) => Some(self.with_subdirectory(&here.dir)?),
                    _ => None,
                };
            }
        }
        let change = self.change(NAMING)?;
        change.record_whole(a.inode.number);
        change.record_whole(b.inode.number);
        let from = self.point_name(&change, &a.dir, &a.found, b.inode.number, b.kind())?;
        let to = if across { Arc::clone(&b.dir) } else { Arc::clone(&from) };
        let to = self.point_name(&change, &to, &b.found, a.inode.number, a.kind())?;
        if across {
            self.touch(&change, &from, links[0])?;
        }
        self.touch(&change, &to, links[1])?;
        self.moved(&change, a, b.dir.number, across)?;
        self.moved(&change, b, a.dir.number, across)
    }

    /// Updates a renamed file, and the ".." of a directory with a new parent.
    fn moved(&self, change: &Change<'_>, side: &Side<'_>, parent: InodeNo, across: bool) -> Result<()> {
        let mut inode = Arc::clone(&side.inode);
        if side.is_dir() && across {
            inode = self.set_parent(change, &inode, parent)?;
        }
        let now = change.now();
        change.update_inode(&inode, |buf| buf.set_ctime(now)).map(drop)
    }

    fn leave_name(
        &self,
        change: &Change<'_>,
        dir: &Arc<Inode>,
        found: &Found,
        whiteout: Option<&Arc<Inode>>,
    ) -> Result<Arc<Inode>> {
        match whiteout {
            Some(inode) => self.point_name(change, dir, found, inode.number, Some(FileType::CharDevice)),
            None => self.take_name(change, dir, found),
        }
    }

    /// Creates the device that stays under the old name, if requested.
    fn whiteout(&self, change: &Change<'_>, dir: &Arc<Inode>, flags: RenameFlags) -> Result<Option<Arc<Inode>>> {
        if !flags.whiteout {
            return Ok(None);
        }
        let raw = dir.raw();
        let file =
            NewFile { kind: FileKind::CharDevice, mode: 0, umask: 0, uid: raw.uid(), gid: raw.gid(), device: (0, 0) };
        let plain = Inherited { mode: 0, access: None, default: None };
        self.new_inode(change, dir, &file, &plain, None).map(Some)
    }
}
