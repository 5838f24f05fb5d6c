//! Creation of files of every kind.

use super::{NAMING, check_name, mode_of};
use crate::acl::Inherited;
use crate::change::Change;
use crate::dir::NewEntry;
use crate::dir::inline;
use crate::xattr::Wanted;
use crate::{Error, FileKind, Inode, InodeFlags, InodeNo, Names, Result};
use format::dir::FileType;
use format::feature::Incompat;
use format::inode::InodeBuf;
use format::xattr::index;
use std::sync::Arc;

/// Set-group-id, which a directory passes on.
const SET_GROUP_ID: u16 = 0o2000;

/// Maximum length of a target stored in the inode: with a terminating zero byte it fills `i_block`.
const FAST_TARGET: usize = 59;

/// A file to be created.
#[derive(Debug, Clone, Copy)]
pub struct NewFile {
    /// Its type.
    pub kind: FileKind,
    /// Permission bits with set-user-id, set-group-id and sticky: 0 to 0o7777.
    pub mode: u16,
    /// Permission bits to clear, if the directory has no default access control list.
    pub umask: u16,
    /// Owner.
    pub uid: u32,
    /// Group, unless the directory passes on its own.
    pub gid: u32,
    /// Major and minor number, for devices.
    pub device: (u32, u32),
}

impl Names {
    /// Creates a file of any kind but a symbolic link, with a name. The caller specifies owner and permissions; the
    /// group, the project, some flags and access control lists are inherited from the directory, as in ext4.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::NotADirectory`], [`Error::NotFound`] for a directory that was removed,
    /// [`Error::NameTooLong`], [`Error::NoSpace`], [`Error::TooManyNames`] at the maximum number of subdirectories,
    /// [`Error::NotPermitted`], [`Error::Encrypted`], [`Error::Invalid`].
    pub fn create(&self, dir: InodeNo, name: &[u8], file: &NewFile) -> Result<Arc<Inode>> {
        if file.kind == FileKind::Symlink {
            return Err(Error::Invalid("a symbolic link needs a target"));
        }
        self.with_space(|| self.make(dir, name, file, None))
    }

    /// Creates a symbolic link with a name.
    ///
    /// # Errors
    /// As [`Names::create`]; [`Error::NameTooLong`] also for a target longer than a block, [`Error::Invalid`] for one
    /// that is empty or has a zero byte.
    pub fn symlink(&self, dir: InodeNo, name: &[u8], target: &[u8], uid: u32, gid: u32) -> Result<Arc<Inode>> {
        if target.is_empty() || target.contains(&0) {
            return Err(Error::Invalid("the target of a link is empty or has a zero byte"));
        }
        if target.len() >= self.sb.geometry.block_size as usize {
            return Err(Error::NameTooLong);
        }
        let file = NewFile { kind: FileKind::Symlink, mode: 0o777, umask: 0, uid, gid, device: (0, 0) };
        self.with_space(|| self.make(dir, name, &file, Some(target)))
    }

    /// Creates a regular file without a name, with an inode near the directory's. It has a lookup count of 1 for the
    /// caller: when it is forgotten it is freed, unless [`Names::link`] added a name.
    ///
    /// # Errors
    /// As [`Names::create`].
    pub fn tmpfile(&self, dir: InodeNo, file: &NewFile) -> Result<Arc<Inode>> {
        if file.kind != FileKind::Regular {
            return Err(Error::Invalid("only a regular file can be without a name"));
        }
        self.with_space(|| self.make_nameless(dir, file))
    }

    fn make_nameless(&self, dir: InodeNo, file: &NewFile) -> Result<Arc<Inode>> {
        self.locked(&[dir], |_| {
            let dir = self.dir_to_change(dir)?;
            self.may_contain(&dir, b"")?;
            let inherited = self.inherit(&dir, file.kind, file.mode, file.umask)?;
            let change = self.change(NAMING)?;
            let inode = self.new_inode(&change, &dir, file, &inherited, None)?;
            change.list_orphan(inode.number, true)?;
            self.add_lookup(inode.number);
            change.update_inode(&inode, |buf| buf.set_links(0))
        })
    }

    fn make(&self, dir: InodeNo, name: &[u8], file: &NewFile, target: Option<&[u8]>) -> Result<Arc<Inode>> {
        check_name(name)?;
        self.with_new_name(dir, name, |dir| {
            let is_dir = file.kind == FileKind::Directory;
            let links = if is_dir { Some(self.with_subdirectory(&dir)?) } else { None };
            let inherited = self.inherit(&dir, file.kind, file.mode, file.umask)?;
            let change = self.change(NAMING)?;
            let (dir, spot) = self.make_space(&change, dir, name)?;
            let inode = self.new_inode(&change, &dir, file, &inherited, target)?;
            let kind = FileType::from_mode(inode.raw().disk.i_mode.get());
            let dir = self.put_name(&change, &dir, spot, &NewEntry { inode: inode.number, name, kind })?;
            self.touch(&change, &dir, links)?;
            Ok(inode)
        })
    }

    /// Flags that a new file of a kind inherits from its directory.
    fn inherited_flags(dir: &Inode, kind: FileKind) -> InodeFlags {
        let all = InodeFlags::SECRM
            | InodeFlags::UNRM
            | InodeFlags::COMPR
            | InodeFlags::SYNC
            | InodeFlags::NODUMP
            | InodeFlags::NOATIME
            | InodeFlags::JOURNAL_DATA
            | InodeFlags::NOTAIL
            | InodeFlags::DIRSYNC
            | InodeFlags::PROJINHERIT
            | InodeFlags::CASEFOLD
            | InodeFlags::DAX;
        let of_dirs = InodeFlags::DIRSYNC | InodeFlags::TOPDIR | InodeFlags::CASEFOLD | InodeFlags::PROJINHERIT;
        let inherited = match kind {
            FileKind::Directory => all,
            FileKind::Regular => all - of_dirs,
            _ => InodeFlags::NODUMP | InodeFlags::NOATIME,
        };
        dir.raw().flags() & inherited
    }

    /// Creates an inode with its first content and its attributes; undone if there is no space for them.
    pub(super) fn new_inode(
        &self,
        change: &Change<'_>,
        dir: &Arc<Inode>,
        file: &NewFile,
        inherited: &Inherited,
        target: Option<&[u8]>,
    ) -> Result<Arc<Inode>> {
        let is_dir = file.kind == FileKind::Directory;
        let parent = dir.raw();
        let (number, generation) = change.allocate_inode(dir, file.kind)?;
        let mut buf = InodeBuf::new(self.sb.geometry.inode_size, self.extra_isize());
        let mut mode = mode_of(file.kind, inherited.mode);
        let mut gid = file.gid;
        if parent.disk.i_mode.get() & SET_GROUP_ID != 0 {
            gid = parent.gid();
            mode |= if is_dir { SET_GROUP_ID } else { 0 };
        }
        buf.set_mode(mode);
        buf.set_uid(file.uid);
        buf.set_gid(gid);
        buf.set_links(if is_dir { 2 } else { 1 });
        buf.set_flags(Self::inherited_flags(dir, file.kind));
        buf.disk_mut().i_generation = generation.into();
        let now = change.now();
        buf.set_atime(now);
        buf.set_mtime(now);
        buf.set_ctime(now);
        buf.set_crtime(now);
        if parent.flags().contains(InodeFlags::PROJINHERIT) {
            buf.set_project(parent.project());
        }
        let mut content = None;
        match (file.kind, target) {
            (FileKind::CharDevice | FileKind::BlockDevice, _) => buf.set_device(file.device.0, file.device.1),
            (FileKind::Fifo | FileKind::Socket, _) => {}
            (_, Some(target)) if target.len() <= FAST_TARGET => {
                let mut block = [0; 60];
                block.iter_mut().zip(target).for_each(|(place, byte)| *place = *byte);
                buf.set_block(block);
                buf.set_size(target.len() as u64);
            }
            _ => {
                content = target;
                self.make_map(&mut buf);
            }
        }
        let inline = self.sb.features.incompat.contains(Incompat::INLINE_DATA);
        let is_inline = is_dir && inline && inline::make(self, &mut buf, dir.number).is_some();
        let inode = change.put_inode(number, buf)?;
        let made = self.inherit_attributes(change, inode, inherited).and_then(|inode| {
            if is_dir && !is_inline {
                self.first_block(change, &inode, dir.number)
            } else if let Some(target) = content {
                change.write_small_content(&inode, target)
            } else {
                Ok(inode)
            }
        });
        if made.is_err() {
            let inode = self.any_inode(number)?;
            self.abandon(change, &inode)?;
        }
        made
    }

    fn inherit_attributes(&self, change: &Change<'_>, inode: Arc<Inode>, inherited: &Inherited) -> Result<Arc<Inode>> {
        let lists = [(index::POSIX_ACL_ACCESS, &inherited.access), (index::POSIX_ACL_DEFAULT, &inherited.default)];
        let wanted: Vec<Wanted<'_>> = lists
            .into_iter()
            .filter(|(_, value)| value.is_some())
            .map(|(index, value)| Wanted { index, name: b"", value: value.clone() })
            .collect();
        if wanted.is_empty() {
            return Ok(inode);
        }
        Ok(self.put_attributes(change, &inode, &wanted)?.0)
    }
}
