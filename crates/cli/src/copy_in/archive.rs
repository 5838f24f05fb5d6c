//! Unpacks a tar archive into a volume.
//!
//! Names are relative to the destination directory; nothing is written outside it, and symbolic links are not followed.

use super::acl::{self, Names};
use super::tar::{Member, Reader};
use super::{FileAttributes, Filler, ParentAndName, Stop, without_list};
use crate::error_report::short;
use crate::output::counted;
use crate::path_stack::Folders;
use fs::{FileKind, InodeNo};
use std::cell::OnceCell;
use std::collections::HashMap;
use std::io::{self, Read};

struct Unpacker<'f, 'v, R> {
    filler: &'f mut Filler<'v>,
    archive: Reader<R>,
    /// Directories, by parent and name. Paths are as long as the tree is deep, so none is stored.
    known: HashMap<(usize, Vec<u8>), usize>,
    folders: Folders,
    /// The inode of each directory.
    numbers: Vec<InodeNo>,
    /// The final attributes of each directory, set after everything else, so that its files inherit nothing.
    last: Vec<FinalStep>,
    /// Bytes of attributes in `last`.
    waiting: usize,
    /// Loaded for the first access control list in text form.
    names: OnceCell<Names>,
    without_list: WithoutList,
}

/// The last step for a directory.
enum FinalStep {
    Nothing,
    All(FileAttributes),
    /// All attributes but the times are set.
    Times(FileAttributes),
}

/// Maximum number of bytes of attributes that wait for the end; beyond it all waiting attributes are set at once.
const WAITING_MAX: usize = 16 << 20;

/// Files whose access control lists were omitted.
#[derive(Default)]
struct WithoutList {
    count: u64,
    /// The first of their paths.
    first: Vec<String>,
}

impl WithoutList {
    /// Maximum number of paths named.
    const NAMED: usize = 3;

    fn add(&mut self, path: &[u8]) {
        self.count += 1;
        if self.first.len() < Self::NAMED {
            self.first.push(short(path));
        }
    }

    /// The message about these files.
    fn sentence(&self) -> Option<String> {
        let more = self.count - self.first.len() as u64;
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let files = counted(self.count, "file", "files");
        let why = "copied without the access control list (unreadable, or with names that this machine does not know)";
        (self.count > 0).then(|| {
            format!(
                "{files} {why}, and with no more permissions for the group than the list grants: {}{more}",
                self.first.join(", ")
            )
        })
    }
}

/// Unpacks an archive into the directory `into`. `name` denotes the archive in messages.
pub(crate) fn unpack(filler: &mut Filler<'_>, from: impl Read, name: &[u8], into: InodeNo) -> Result<(), Stop> {
    let broken = |e: io::Error| Stop::Unreadable(name.to_vec(), e.to_string());
    let mut unpacker = Unpacker {
        filler,
        archive: Reader::new(from),
        known: HashMap::new(),
        folders: Folders::default(),
        numbers: vec![into],
        last: vec![FinalStep::Nothing],
        waiting: 0,
        names: OnceCell::new(),
        without_list: WithoutList::default(),
    };
    let outcome = loop {
        match unpacker.archive.next() {
            Ok(None) => break Ok(()),
            Ok(Some(member)) => unpacker.member(member)?,
            Err(_) if unpacker.filler.check_interrupted().is_err() => break Err(Stop::Interrupted),
            Err(e) => break Err(broken(e)),
        }
    };
    unpacker.filler.size = None;
    // the content of a directory before the directory
    for folder in (0..unpacker.last.len()).rev() {
        unpacker.complete(folder, true)?;
    }
    if let Some(why) = unpacker.without_list.sentence() {
        unpacker.filler.report_source_error(name, why);
    }
    outcome
}

impl<R: Read> Unpacker<'_, '_, R> {
    fn member(&mut self, mut member: Member) -> Result<(), Stop> {
        self.filler.check_interrupted()?;
        self.filler.size = None;
        let Some(path) = clean(&member.path) else {
            self.filler.report_file_error(&member.path, "the path leads outside the archive");
            return Ok(());
        };
        let attributes = self.attributes_of(&mut member, &path);
        if member.kind == b'5' {
            if let Some(folder) = self.directory(&path)? {
                self.waiting += bytes_of(&attributes);
                // of several entries for one directory the last applies
                self.wait(folder, FinalStep::All(attributes));
                if self.waiting > WAITING_MAX {
                    (0..self.last.len()).try_for_each(|folder| self.complete(folder, false))?;
                }
            }
            return Ok(());
        }
        let (parent, last) = split(&path);
        let Some(parent) = self.directory(parent)? else { return Ok(()) };
        let to = (self.number(parent), last);
        let number = match member.kind {
            b'0' => self.regular(&member, to, &path)?,
            b'1' => {
                self.link(&member.target, to, &path)?;
                None
            }
            b'2' => self.filler.symlink(to, &path, &member.target)?,
            b'3' => self.filler.node(to, &path, FileKind::CharDevice, member.device)?,
            b'4' => self.filler.node(to, &path, FileKind::BlockDevice, member.device)?,
            b'6' => self.filler.node(to, &path, FileKind::Fifo, (0, 0))?,
            _ => {
                self.filler.report_file_error(&path, "unknown entry type in the archive");
                None
            }
        };
        match number {
            Some(number) => self.filler.set_attributes(number, &path, &attributes),
            None => Ok(()),
        }
    }

    /// Replaces the pending last step of a directory.
    fn wait(&mut self, folder: usize, last: FinalStep) {
        if let Some(before) = self.last.get_mut(folder)
            && let FinalStep::All(before) = std::mem::replace(before, last)
        {
            self.waiting -= bytes_of(&before);
        }
    }

    /// Performs the last step of a directory; before the end, only if extended attributes are waiting.
    fn complete(&mut self, folder: usize, end: bool) -> Result<(), Stop> {
        let last = match self.last.get_mut(folder) {
            Some(last) if end || matches!(&*last, FinalStep::All(attributes) if bytes_of(attributes) > 0) => last,
            _ => return Ok(()),
        };
        let last = std::mem::replace(last, FinalStep::Nothing);
        let (path, number) = (self.folders.path(folder), self.number(folder));
        match last {
            FinalStep::Nothing => Ok(()),
            FinalStep::Times(attributes) => self.filler.set_times(number, &path, &attributes),
            FinalStep::All(mut attributes) => {
                self.filler.set_attributes(number, &path, &attributes)?;
                self.waiting -= bytes_of(&attributes);
                attributes.xattrs = Vec::new();
                self.wait(folder, FinalStep::Times(attributes));
                Ok(())
            }
        }
    }

    /// The attributes of a member, with its access control lists in text form. Where one is omitted, the permissions of
    /// the group, which are the mask of the list, are reduced to those of the entry for the owning group.
    fn attributes_of(&mut self, member: &mut Member, path: &[u8]) -> FileAttributes {
        let mut xattrs = std::mem::take(&mut member.xattrs);
        let (mut mode, mut whole) = (member.mode, true);
        for (which, text) in &member.acls {
            let known = matches!(&which[..], b"access" | b"default");
            let names = self.names.get_or_init(Names::of_this_machine);
            match acl::parse(text, names).filter(|_| known) {
                Some(list) => xattrs.push(([b"system.posix_acl_", &which[..]].concat(), list.to_xattr())),
                None => {
                    whole = false;
                    if which == b"access" {
                        mode = without_list(mode, acl::group(text));
                    }
                }
            }
        }
        if !whole {
            self.without_list.add(path);
        }
        FileAttributes { mode, uid: member.uid, gid: member.gid, atime: member.atime, mtime: member.mtime, xattrs }
    }

    fn number(&self, folder: usize) -> InodeNo {
        self.numbers.get(folder).copied().unwrap_or(InodeNo::ROOT)
    }

    /// The directory at a path; missing directories on the way are created.
    fn directory(&mut self, path: &[u8]) -> Result<Option<usize>, Stop> {
        let (mut folder, mut start) = (Folders::START, 0);
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            let end = start + name.len();
            let at = path.get(..end).unwrap_or(path);
            start = end + 1;
            let key = (folder, name.to_vec());
            if let Some(known) = self.known.get(&key) {
                folder = *known;
                continue;
            }
            let Some((number, new)) = self.filler.directory((self.number(folder), name), at)? else { return Ok(None) };
            folder = self.folders.add(folder, name);
            self.numbers.push(number);
            self.known.insert(key, folder);
            let plain = || FinalStep::All(FileAttributes { mode: 0o755, ..FileAttributes::default() });
            self.last.push(if new { plain() } else { FinalStep::Nothing });
        }
        Ok(Some(folder))
    }

    /// The inode of the directory at a path, if the archive had anything in it.
    fn known(&self, path: &[u8]) -> Option<InodeNo> {
        let mut names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
        let folder = names.try_fold(Folders::START, |folder, name| self.known.get(&(folder, name.to_vec())).copied());
        folder.map(|folder| self.number(folder))
    }

    fn link(&mut self, target: &[u8], to: ParentAndName<'_>, path: &[u8]) -> Result<(), Stop> {
        let target = clean(target).unwrap_or_default();
        let (parent, last) = split(&target);
        let found = match self.known(parent) {
            Some(parent) if !last.is_empty() => self.filler.at((parent, last), &target)?,
            _ => None,
        };
        match found {
            Some(number) => self.filler.link(number, to, path),
            None => {
                self.filler.report_file_error(path, "the link's target is not in the archive");
                Ok(())
            }
        }
    }

    fn regular(&mut self, member: &Member, to: ParentAndName<'_>, path: &[u8]) -> Result<Option<InodeNo>, Stop> {
        self.filler.size = Some(member.segments.iter().fold(0u64, |sum, segment| sum.saturating_add(segment.1)));
        let Some(number) = self.filler.node(to, path, FileKind::Regular, (0, 0))? else { return Ok(None) };
        let mut end = 0;
        for (offset, len) in member.segments.iter().filter(|segment| segment.1 > 0) {
            end = self.filler.stream(number, path, &mut self.archive, (*offset, *len))?;
        }
        if end < member.len {
            self.filler.set_len(number, path, member.len)?;
        }
        Ok(Some(number))
    }
}

/// Memory used by attributes, in bytes.
fn bytes_of(attributes: &FileAttributes) -> usize {
    attributes.xattrs.iter().map(|(name, value)| name.len() + value.len() + size_of::<(Vec<u8>, Vec<u8>)>()).sum()
}

/// A name in an archive as a path without `.`, empty components, and slashes at either end; `None` if it contains `..`.
fn clean(name: &[u8]) -> Option<Vec<u8>> {
    let mut path = Vec::new();
    for part in name.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => return None,
            part => {
                if !path.is_empty() {
                    path.push(b'/');
                }
                path.extend_from_slice(part);
            }
        }
    }
    Some(path)
}

/// A path's directory and last name.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b"", path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_inside() {
        assert_eq!(clean(b"./a//b/"), Some(b"a/b".to_vec()));
        assert_eq!(clean(b"/etc"), Some(b"etc".to_vec()));
        assert_eq!(clean(b"./"), Some(Vec::new()));
        assert_eq!(clean(b"a/../b"), None);
        assert_eq!(split(b"a/b/c"), (&b"a/b"[..], &b"c"[..]));
        assert_eq!(split(b"a"), (&b""[..], &b"a"[..]));
    }
}
