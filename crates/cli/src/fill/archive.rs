//! A tar archive into a volume.
//!
//! Names are taken as paths from where it is unpacked; nothing is written elsewhere, and symbolic links are not followed.

use super::tar::{Member, Reader};
use super::{Dress, Filler, Place, Stop};
use crate::trail::Folders;
use fs::{FileKind, InodeNo};
use std::collections::HashMap;
use std::io::{self, Read};

struct Unpacker<'f, 'v, R> {
    filler: &'f mut Filler<'v>,
    archive: Reader<R>,
    /// Directories, by the one that each is in and its name there. A path is as long as the tree is deep, so none is stored.
    known: HashMap<(usize, Vec<u8>), usize>,
    folders: Folders,
    /// The inode of each directory.
    numbers: Vec<InodeNo>,
    /// Directories that are dressed when all is there.
    dresses: Vec<(usize, Dress)>,
}

/// Unpacks an archive into the directory `into`. `name` is what the archive is called in complaints.
pub(crate) fn unpack(filler: &mut Filler<'_>, from: impl Read, name: &[u8], into: InodeNo) -> Result<(), Stop> {
    let broken = |e: io::Error| Stop::Failed(format!("{}: {e}", check::render::escape(name)));
    let mut unpacker = Unpacker {
        filler,
        archive: Reader::new(from),
        known: HashMap::new(),
        folders: Folders::default(),
        numbers: vec![into],
        dresses: Vec::new(),
    };
    let mut lists = 0;
    let outcome = loop {
        match unpacker.archive.next() {
            Ok(None) => break Ok(()),
            Ok(Some(member)) => {
                lists += u64::from(member.has_acl_text);
                unpacker.member(member)?;
            }
            Err(_) if unpacker.filler.go_on().is_err() => break Err(Stop::Interrupted),
            Err(e) => break Err(broken(e)),
        }
    };
    for (folder, dress) in std::mem::take(&mut unpacker.dresses).iter().rev() {
        let path = unpacker.folders.path(*folder);
        unpacker.filler.dress(unpacker.number(*folder), &path, dress)?;
    }
    if lists > 0 {
        let why = format!("the access control lists of {lists} files are text with names, and are left out");
        unpacker.filler.complain_of_source(name, why);
    }
    outcome
}

impl<R: Read> Unpacker<'_, '_, R> {
    fn member(&mut self, member: Member) -> Result<(), Stop> {
        self.filler.go_on()?;
        let Some(path) = clean(&member.path) else {
            self.filler.complain(&member.path, "a name in the archive leads out of it");
            return Ok(());
        };
        let dress = Dress {
            mode: member.mode,
            uid: member.uid,
            gid: member.gid,
            atime: member.atime,
            mtime: member.mtime,
            xattrs: member.xattrs.clone(),
        };
        if member.kind == b'5' {
            if let Some(folder) = self.directory(&path)? {
                // of two looks for one directory the archive's own counts, and it is older on this list
                self.dresses.retain(|(other, _)| *other != folder);
                self.dresses.push((folder, dress));
            }
            return Ok(());
        }
        let (parent, last) = split(&path);
        let Some(parent) = self.directory(parent)? else { return Ok(()) };
        let place = (self.number(parent), last);
        let number = match member.kind {
            b'0' => self.regular(&member, place, &path)?,
            b'1' => {
                self.link(&member.target, place, &path)?;
                None
            }
            b'2' => self.filler.symlink(place, &path, &member.target)?,
            b'3' => self.filler.node(place, &path, FileKind::CharDevice, member.device)?,
            b'4' => self.filler.node(place, &path, FileKind::BlockDevice, member.device)?,
            b'6' => self.filler.node(place, &path, FileKind::Fifo, (0, 0))?,
            _ => {
                self.filler.complain(&path, "an entry of unknown type in the archive");
                None
            }
        };
        match number {
            Some(number) => self.filler.dress(number, &path, &dress),
            None => Ok(()),
        }
    }

    fn number(&self, folder: usize) -> InodeNo {
        self.numbers.get(folder).copied().unwrap_or(InodeNo::ROOT)
    }

    /// The directory at a path; those on the way that the archive did not name are made.
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
            if new {
                self.dresses.push((folder, Dress { mode: 0o755, ..Dress::default() }));
            }
        }
        Ok(Some(folder))
    }

    /// The directory at a path, if the archive had anything there.
    fn known(&self, path: &[u8]) -> Option<InodeNo> {
        let mut names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
        let folder = names.try_fold(Folders::START, |folder, name| self.known.get(&(folder, name.to_vec())).copied());
        folder.map(|folder| self.number(folder))
    }

    fn link(&mut self, target: &[u8], place: Place<'_>, path: &[u8]) -> Result<(), Stop> {
        let target = clean(target).unwrap_or_default();
        let (parent, last) = split(&target);
        let found = match self.known(parent) {
            Some(parent) if !last.is_empty() => self.filler.at((parent, last), &target)?,
            _ => None,
        };
        match found {
            Some(number) => self.filler.link(number, place, path),
            None => {
                self.filler.complain(path, "what it is a link to is not in the archive");
                Ok(())
            }
        }
    }

    fn regular(&mut self, member: &Member, place: Place<'_>, path: &[u8]) -> Result<Option<InodeNo>, Stop> {
        let Some(number) = self.filler.node(place, path, FileKind::Regular, (0, 0))? else { return Ok(None) };
        let mut end = 0;
        for (offset, len) in member.pieces.iter().filter(|piece| piece.1 > 0) {
            end = self.filler.stream(number, path, &mut self.archive, (*offset, *len))?;
        }
        if end < member.len {
            self.filler.set_len(number, path, member.len)?;
        }
        Ok(Some(number))
    }
}

/// A name in an archive as a path without `.`, empty components and slashes at the ends; `None` where it has `..`.
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
