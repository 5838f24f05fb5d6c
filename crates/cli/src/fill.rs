//! Files that come into a volume: what `mkfs -d` and `put` share.
//!
//! A [`Filler`] makes them one by one. What is wrong with one file is a complaint, and the others follow; what is wrong
//! with the volume or its device ends the work ([`Stop`]), as a signal does. Either way the volume is left sound: who
//! opened it unmounts it.

use crate::failure::{Complaints, say, without_errno};
use crate::output::{counted, human};
use crate::progress::Bar;
use check::render::escape;
use fs::{Error, FileKind, InodeNo, NewFile, SetAttributes, Timestamp, Volume, XattrMode};
use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

mod archive;
mod folder;
mod tar;

use tar::fill;

pub(crate) use archive::unpack;
pub(crate) use folder::{Folder, bytes_below};

/// Bytes read at once.
const BUFFER: usize = 1 << 20;

/// Why no more files can come.
#[derive(Debug)]
pub(crate) enum Stop {
    /// A signal asked for it.
    Interrupted,
    /// The volume can take no more, or what is read from is broken: a sentence.
    Failed(String),
}

/// What a file is beside its content.
#[derive(Debug, Clone, Default)]
pub(crate) struct Dress {
    pub(crate) mode: u16,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) atime: Timestamp,
    pub(crate) mtime: Timestamp,
    /// Names with their prefixes, and values.
    pub(crate) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// What came into the volume.
#[derive(Debug, Default)]
struct Copied {
    directories: u64,
    files: u64,
    bytes: u64,
}

/// Makes files in a volume that is open for writing.
pub(crate) struct Filler<'a> {
    pub(crate) volume: &'a Volume,
    pub(crate) bar: Bar,
    /// Files that exist are replaced.
    force: bool,
    complaints: Complaints<'a>,
    /// Complaints about what is read from.
    failed: u64,
    interrupted: Arc<AtomicBool>,
    buffer: Vec<u8>,
    copied: Copied,
}

/// Set by the signals that ask a program to end, which do nothing else from now on; the second one ends it at once, in
/// case it waits for something that never comes.
pub(crate) fn on_signals() -> io::Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register_conditional_shutdown(signal, 1, Arc::clone(&flag))?;
        signal_hook::flag::register(signal, Arc::clone(&flag))?;
    }
    Ok(flag)
}

/// A directory, and a name in it.
pub(crate) type Place<'p> = (InodeNo, &'p [u8]);

impl<'a> Filler<'a> {
    /// `device` is the volume's name in complaints.
    pub(crate) fn new(volume: &'a Volume, device: &'a str, force: bool, interrupted: Arc<AtomicBool>) -> Self {
        Self {
            volume,
            bar: Bar::hidden(),
            force,
            complaints: Complaints::new(device),
            failed: 0,
            interrupted,
            buffer: vec![0; BUFFER],
            copied: Copied::default(),
        }
    }

    /// Complains about a file of the volume.
    pub(crate) fn complain(&mut self, path: &[u8], why: impl ToString) {
        self.complaints.about(path, why);
    }

    /// Complains about what is read from.
    pub(crate) fn complain_of_source(&mut self, name: &[u8], why: impl ToString) {
        self.failed += 1;
        say(&format!("{}: {}", escape(name), without_errno(&why.to_string())));
    }

    /// To be asked between files.
    pub(crate) fn go_on(&self) -> Result<(), Stop> {
        if self.interrupted.load(Ordering::Relaxed) { Err(Stop::Interrupted) } else { Ok(()) }
    }

    /// What the file system answered: a value, a complaint about this file, or the end.
    fn judge<T>(&mut self, path: &[u8], outcome: fs::Result<T>) -> Result<Option<T>, Stop> {
        match outcome {
            Ok(value) => Ok(Some(value)),
            Err(e @ (Error::NoSpace | Error::ReadOnly(_) | Error::Io(_))) => {
                Err(Stop::Failed(format!("{}: {e}", escape(path))))
            }
            Err(e) => {
                self.complain(path, e);
                Ok(None)
            }
        }
    }

    /// The inode that stands at a place.
    pub(crate) fn at(&mut self, (dir, name): Place<'_>, path: &[u8]) -> Result<Option<InodeNo>, Stop> {
        let found = self.volume.inode(dir).and_then(|dir| self.volume.lookup(&dir, name));
        match found {
            Err(Error::NotFound) => Ok(None),
            other => self.judge(path, other),
        }
    }

    /// Whether a file can be made at a place: nothing is there, or was replaced.
    fn clear(&mut self, place: Place<'_>, path: &[u8]) -> Result<bool, Stop> {
        self.go_on()?;
        let Some(number) = self.at(place, path)? else { return Ok(true) };
        let kind = self.volume.inode(number).map(|inode| inode.kind);
        if kind.is_ok_and(|kind| kind == FileKind::Directory) {
            self.complain(path, "there is a directory of that name");
            return Ok(false);
        }
        if !self.force {
            self.complain(path, "exists already (--force replaces files)");
            return Ok(false);
        }
        let removed = self.volume.unlink(place.0, place.1);
        Ok(self.judge(path, removed)?.is_some())
    }

    /// Makes a directory, or joins one that exists; the flag says that it is new. It gets its looks last
    /// ([`dress`](Self::dress)), so that its files inherit nothing.
    pub(crate) fn directory(&mut self, place: Place<'_>, path: &[u8]) -> Result<Option<(InodeNo, bool)>, Stop> {
        self.go_on()?;
        if let Some(number) = self.at(place, path)? {
            let inode = self.volume.inode(number);
            return match self.judge(path, inode)? {
                Some(inode) if inode.kind == FileKind::Directory => {
                    self.copied.directories += 1;
                    Ok(Some((number, false)))
                }
                Some(_) => {
                    self.complain(path, "exists already, and is no directory");
                    Ok(None)
                }
                None => Ok(None),
            };
        }
        let new = NewFile { kind: FileKind::Directory, mode: 0o700, umask: 0, uid: 0, gid: 0, device: (0, 0) };
        let made = self.volume.create(place.0, place.1, &new);
        let made = self.judge(path, made)?;
        self.copied.directories += u64::from(made.is_some());
        Ok(made.map(|inode| (inode.number, true)))
    }

    /// Makes a file of any kind but a directory or symbolic link.
    pub(crate) fn node(
        &mut self,
        place: Place<'_>,
        path: &[u8],
        kind: FileKind,
        device: (u32, u32),
    ) -> Result<Option<InodeNo>, Stop> {
        if !self.clear(place, path)? {
            return Ok(None);
        }
        let made =
            self.volume.create(place.0, place.1, &NewFile { kind, mode: 0o600, umask: 0, uid: 0, gid: 0, device });
        let made = self.judge(path, made)?;
        self.count_file(made.is_some());
        Ok(made.map(|inode| inode.number))
    }

    pub(crate) fn symlink(&mut self, place: Place<'_>, path: &[u8], target: &[u8]) -> Result<Option<InodeNo>, Stop> {
        if !self.clear(place, path)? {
            return Ok(None);
        }
        let made = self.volume.symlink(place.0, place.1, target, 0, 0);
        let made = self.judge(path, made)?;
        self.count_file(made.is_some());
        Ok(made.map(|inode| inode.number))
    }

    /// Gives a file one more name.
    pub(crate) fn link(&mut self, number: InodeNo, place: Place<'_>, path: &[u8]) -> Result<(), Stop> {
        if self.at(place, path)? == Some(number) || !self.clear(place, path)? {
            return Ok(());
        }
        let made = self.volume.link(number, place.0, place.1);
        let made = self.judge(path, made)?.is_some();
        self.count_file(made);
        Ok(())
    }

    fn count_file(&mut self, made: bool) {
        self.copied.files += u64::from(made);
    }

    /// Gives a file its owner, permissions, attributes and times.
    pub(crate) fn dress(&mut self, number: InodeNo, path: &[u8], dress: &Dress) -> Result<(), Stop> {
        let inode = self.volume.inode(number);
        let Some(inode) = self.judge(path, inode)? else { return Ok(()) };
        let mode = (inode.kind != FileKind::Symlink).then_some(dress.mode & 0o7777);
        let looks = SetAttributes { mode, uid: Some(dress.uid), gid: Some(dress.gid), ..SetAttributes::default() };
        let inherited = self.volume.list_xattrs(&inode);
        for name in self.judge(path, inherited)?.unwrap_or_default() {
            if !dress.xattrs.iter().any(|(other, _)| *other == name) {
                let removed = self.volume.remove_xattr(number, &name);
                self.judge(path, removed)?;
            }
        }
        let set = self.volume.set_attributes(number, &looks);
        self.judge(path, set)?;
        for (name, value) in &dress.xattrs {
            match self.volume.set_xattr(number, name, value, XattrMode::Any) {
                // no room beside the others: that is so for this file alone
                Err(e @ Error::NoSpace) => self.complain(path, format!("{}: {e}", escape(name))),
                Err(Error::Unsupported(_)) => self.complain(path, format!("{}: no volume keeps it", escape(name))),
                other => drop(self.judge(path, other)?),
            }
        }
        let times = SetAttributes { atime: Some(dress.atime), mtime: Some(dress.mtime), ..SetAttributes::default() };
        let set = self.volume.set_attributes(number, &times);
        self.judge(path, set)?;
        Ok(())
    }

    /// Writes what a stream gives, up to its end or to `most` bytes, into a file from `start` on; the place behind it.
    /// A stream that breaks is a complaint.
    pub(crate) fn stream(
        &mut self,
        number: InodeNo,
        path: &[u8],
        from: &mut dyn Read,
        (start, most): (u64, u64),
    ) -> Result<u64, Stop> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut at = start;
        let outcome = loop {
            if let Err(stop) = self.go_on() {
                break Err(stop);
            }
            let room = (most - (at - start)).min(BUFFER as u64) as usize;
            let filled = match fill(from, &mut buffer[..room]) {
                Ok(0) => break Ok(at),
                Ok(filled) => filled,
                Err(e) => {
                    self.complain(path, format!("copied up to byte {at} only: {e}"));
                    break Ok(at);
                }
            };
            match self.write(number, path, at, &buffer[..filled]) {
                Ok(true) => at += filled as u64,
                Ok(false) => break Ok(at),
                Err(stop) => break Err(stop),
            }
        };
        self.buffer = buffer;
        outcome
    }

    /// Writes into a file; the flag says that all of it was.
    fn write(&mut self, number: InodeNo, path: &[u8], at: u64, data: &[u8]) -> Result<bool, Stop> {
        let written = self.volume.write_at(number, at, data);
        let Some(written) = self.judge(path, written)? else { return Ok(false) };
        if written < data.len() {
            return Err(Stop::Failed(format!("{}: {}", escape(path), Error::NoSpace)));
        }
        self.copied.bytes += data.len() as u64;
        self.bar.advance(data.len() as u64);
        Ok(true)
    }

    /// Gives a file its length, where it ends with a hole.
    pub(crate) fn set_len(&mut self, number: InodeNo, path: &[u8], len: u64) -> Result<(), Stop> {
        let set = self.volume.truncate(number, len);
        self.judge(path, set)?;
        Ok(())
    }

    /// Says with how it ended what was copied: the exit status, and the figures for JSON.
    pub(crate) fn finish(self, outcome: Result<(), Stop>, verbose: bool) -> (u8, serde_json::Value) {
        self.bar.finish();
        let Copied { directories, files, bytes } = self.copied;
        let status = match outcome {
            Ok(()) => u8::from(self.failed > 0).max(self.complaints.exit()),
            Err(Stop::Interrupted) => {
                say("interrupted: the volume is sound, and not all was copied");
                1
            }
            Err(Stop::Failed(why)) => {
                say(&format!("{}; not all was copied", without_errno(&why)));
                1
            }
        };
        if verbose {
            let directories = counted(directories, "directory", "directories");
            let files = counted(files, "file", "files");
            say(&format!("{directories} and {files} copied, {} of data", human(bytes)));
        }
        (status, json!({ "directories": directories, "files": files, "bytes": bytes }))
    }
}
