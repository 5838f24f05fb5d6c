//! Copying files into a volume: common code of `mkfs -d` and `put`.
//!
//! A [`Filler`] creates them one by one. An error of one file is reported, and the others follow; an error of the
//! volume or its device ends the work ([`Stop`]), as does a signal. Either way the volume remains consistent: the
//! caller, who opened it, unmounts it.

use crate::error_report::{Complaints, report_file_error, say, say_error, short, without_errno};
use crate::output::{counted, human};
use crate::progress::Bar;
use check::render::escape;
use fs::{Error, FileKind, InodeNo, NewFile, SetAttributes, Timestamp, Volume, XattrMode};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

mod acl;
mod archive;
mod folder;
mod reach;
mod tar;

use tar::fill;

pub(crate) use tar::is_header;

pub(crate) use archive::unpack;
pub(crate) use folder::{Folder, bytes_below};

/// Size of a read in bytes.
const BUFFER: usize = 1 << 20;

/// The reason why no more files can be copied.
#[derive(Debug)]
pub(crate) enum Stop {
    /// A signal requested it.
    Interrupted,
    /// The volume is full: the path of the file being copied.
    Full(Vec<u8>),
    /// The storage of the volume itself is full: the path of the file being copied.
    FullBelow(Vec<u8>),
    /// The volume refuses changes: the path in it that this concerns, and the reason.
    Failed(Vec<u8>, String),
    /// The source cannot be read: its path, and the reason.
    Unreadable(Vec<u8>, String),
}

/// The metadata of a file other than its content.
#[derive(Debug, Clone, Default)]
pub(crate) struct FileAttributes {
    pub(crate) mode: u16,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) atime: Timestamp,
    pub(crate) mtime: Timestamp,
    /// Names with their prefixes, and their values.
    pub(crate) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Whether a file system or device beneath the volume is out of space, as opposed to the volume itself. An error that
/// occurred earlier is available only as a sentence.
pub(crate) fn is_full_below(error: &Error) -> bool {
    matches!(error, Error::ReadOnly(_) | Error::Io(_)) && error.to_string().contains("(os error 28)")
}

/// The numbers of files and bytes copied into the volume.
#[derive(Debug, Default)]
struct Copied {
    directories: u64,
    files: u64,
    bytes: u64,
}

/// Creates files in a volume that is open for writing.
pub(crate) struct Filler<'a> {
    pub(crate) volume: &'a Volume,
    pub(crate) bar: Bar,
    /// Replace existing files.
    force: bool,
    complaints: Complaints<'a>,
    /// Number of errors of the source.
    failed: u64,
    interrupted: Arc<AtomicBool>,
    buffer: Vec<u8>,
    copied: Copied,
    /// Computes the number of bytes to copy; called only if the copy is incomplete, since it takes time.
    pub(crate) total: Option<Box<dyn Fn() -> u64 + 'a>>,
    /// Bytes of data of the file being copied, if known where `total` is not.
    size: Option<u64>,
    /// The unfinished file: its directory, its name, and the number of bytes copied before it.
    making: Option<(InodeNo, Vec<u8>, u64)>,
    /// The existing file that the unfinished one is to replace.
    replacing: Option<Replacing>,
}

/// A file that takes the name of another when it is complete.
struct Replacing {
    number: InodeNo,
    dir: InodeNo,
    /// The name until then.
    temporary: Vec<u8>,
    name: Vec<u8>,
    /// Not all of it could be copied.
    broken: bool,
}

/// A flag set by the termination signals, which have no other effect from now on; the second one ends the process at
/// once, in case it waits for something that never happens.
///
/// Signals that this process ignores (`nohup`, or `&` in a script) stay ignored.
pub(crate) fn on_signals() -> io::Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in not_ignored([SIGINT, SIGTERM, SIGHUP]) {
        signal_hook::flag::register_conditional_shutdown(signal, 1, Arc::clone(&flag))?;
        signal_hook::flag::register(signal, Arc::clone(&flag))?;
    }
    Ok(flag)
}

/// Those of the signals that this process does not ignore.
pub(crate) fn not_ignored<const N: usize>(signals: [i32; N]) -> impl Iterator<Item = i32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    signals.into_iter().filter(move |signal| ignored >> (signal - 1) & 1 == 0)
}

/// The mode of a file copied without its access control list: its group bits are the mask of the list, and are reduced
/// to the permissions that the list grants to the owning group.
fn without_list(mode: u16, group: u16) -> u16 {
    mode & (!0o070 | group << 3)
}

/// A source that may block for a long time: a signal ends the wait.
pub(crate) struct Input<F> {
    file: F,
    interrupted: Arc<AtomicBool>,
}

/// Timeout of a wait: a signal may arrive just before it.
const WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

impl<F: AsFd> Input<F> {
    pub(crate) fn new(file: F, interrupted: Arc<AtomicBool>) -> Self {
        Self { file, interrupted }
    }
}

impl<F: AsFd> Read for Input<F> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.interrupted.load(Ordering::Relaxed) {
                return Err(io::Error::other("interrupted"));
            }
            match poll(&mut [PollFd::new(&self.file, PollFlags::IN)], Some(&WAIT)) {
                Ok(0) | Err(Errno::INTR) => {}
                // the read also detects the end
                Ok(_) => match rustix::io::read(&self.file, &mut *buffer) {
                    Err(Errno::INTR | Errno::AGAIN) => {}
                    read => return Ok(read?),
                },
                Err(e) => return Err(e.into()),
            }
        }
    }
}

/// A directory, and a name in it.
pub(crate) type ParentAndName<'p> = (InodeNo, &'p [u8]);

impl<'a> Filler<'a> {
    /// Creates a filler; `device` is the volume's name in messages.
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
            total: None,
            size: None,
            making: None,
            replacing: None,
        }
    }

    /// Reports an error of a file of the volume.
    pub(crate) fn report_file_error(&mut self, path: &[u8], why: impl ToString) {
        self.complaints.about(path, why);
    }

    /// Reports an error of the source.
    pub(crate) fn report_source_error(&mut self, name: &[u8], why: impl ToString) {
        self.failed += 1;
        let why = without_errno(&why.to_string());
        report_file_error(name, &why, &format!("{}: {why}", short(name)));
    }

    /// Returns an error after a signal; called between files.
    pub(crate) fn check_interrupted(&self) -> Result<(), Stop> {
        if self.interrupted.load(Ordering::Relaxed) { Err(Stop::Interrupted) } else { Ok(()) }
    }

    /// Converts a result of the file system: a value, a reported error of this file, or the end.
    fn checked<T>(&mut self, path: &[u8], outcome: fs::Result<T>) -> Result<Option<T>, Stop> {
        match outcome {
            Ok(value) => Ok(Some(value)),
            Err(Error::NoSpace) => Err(Stop::Full(path.to_vec())),
            Err(e) if is_full_below(&e) => Err(Stop::FullBelow(path.to_vec())),
            Err(e @ (Error::ReadOnly(_) | Error::Io(_))) => Err(Stop::Failed(path.to_vec(), e.to_string())),
            Err(e) => {
                self.report_file_error(path, e);
                Ok(None)
            }
        }
    }

    /// The inode of that name in the directory, if any.
    pub(crate) fn at(&mut self, (dir, name): ParentAndName<'_>, path: &[u8]) -> Result<Option<InodeNo>, Stop> {
        let found = self.volume.inode(dir).and_then(|dir| self.volume.lookup(&dir, name));
        match found {
            Err(Error::NotFound) => Ok(None),
            other => self.checked(path, other),
        }
    }

    /// The name under which to create a file: its own if that is free, else a temporary one until the file is complete.
    fn name_for(&mut self, to: ParentAndName<'_>, path: &[u8]) -> Result<Option<Vec<u8>>, Stop> {
        self.check_interrupted()?;
        let Some(number) = self.at(to, path)? else { return Ok(Some(to.1.to_vec())) };
        let kind = self.volume.inode(number).map(|inode| inode.kind);
        if kind.is_ok_and(|kind| kind == FileKind::Directory) {
            self.report_file_error(path, "a directory of that name exists");
            return Ok(None);
        }
        if !self.force {
            self.report_file_error(path, "already exists (--force replaces files)");
            return Ok(None);
        }
        for count in 0u64.. {
            let name = format!(".extant-{}-{count}", std::process::id()).into_bytes();
            if self.at((to.0, &name), path)?.is_none() {
                return Ok(Some(name));
            }
        }
        Ok(None)
    }

    /// Records the name under which a file was created; returns its inode number.
    fn made(&mut self, (dir, name): ParentAndName<'_>, temporary: Vec<u8>, made: Option<InodeNo>) -> Option<InodeNo> {
        self.count_file(made.is_some());
        self.making = made.map(|_| (dir, temporary.clone(), self.copied.bytes));
        if let Some(number) = made.filter(|_| temporary != name) {
            self.replacing = Some(Replacing { number, dir, temporary, name: name.to_vec(), broken: false });
        }
        made
    }

    /// Records that the unfinished file could not be copied completely.
    pub(crate) fn incomplete(&mut self) {
        if let Some(replacing) = &mut self.replacing {
            replacing.broken = true;
        }
    }

    /// Completes a file: it replaces the existing one, which stays if the new one is incomplete.
    fn replace(&mut self, number: InodeNo, path: &[u8]) -> Result<(), Stop> {
        self.making = None;
        let Some(new) = self.replacing.take_if(|replacing| replacing.number == number) else { return Ok(()) };
        if new.broken {
            self.report_file_error(path, "the existing file is left unchanged");
            self.copied.files = self.copied.files.saturating_sub(1);
            let removed = self.volume.unlink(new.dir, &new.temporary);
            return self.checked(path, removed).map(drop);
        }
        // Where operations can reach the device in part, the new file is durable before it has the name, and the
        // existing one is removed when it durably has the name no more.
        let (volume, in_steps) = (self.volume, !self.volume.is_atomic());
        let flags = fs::RenameFlags { exchange: in_steps, ..fs::RenameFlags::default() };
        let durable = if in_steps { volume.fsync(new.number, false) } else { Ok(()) };
        let renamed = durable.and_then(|()| volume.rename(new.dir, &new.temporary, new.dir, &new.name, flags));
        if renamed.is_err() {
            self.replacing = Some(new);
            self.checked(path, renamed)?;
            self.abandon();
        } else if in_steps {
            let removed = volume.fsync(new.dir, false).and_then(|()| volume.unlink(new.dir, &new.temporary));
            self.checked(path, removed)?;
        }
        Ok(())
    }

    /// Removes a file that can no longer replace the existing one.
    fn abandon(&mut self) {
        if let Some(new) = self.replacing.take() {
            // where writing is no longer possible it stays under its temporary name
            let _ = self.volume.unlink(new.dir, &new.temporary);
        }
    }

    /// Creates a directory, or uses an existing one; the flag is set for a new one. Its attributes are set last
    /// ([`set_attributes`](Self::set_attributes)), so that its files inherit nothing.
    pub(crate) fn directory(&mut self, to: ParentAndName<'_>, path: &[u8]) -> Result<Option<(InodeNo, bool)>, Stop> {
        self.check_interrupted()?;
        if let Some(number) = self.at(to, path)? {
            let inode = self.volume.inode(number);
            return match self.checked(path, inode)? {
                Some(inode) if inode.kind == FileKind::Directory => {
                    self.copied.directories += 1;
                    Ok(Some((number, false)))
                }
                Some(_) => {
                    self.report_file_error(path, "already exists and is not a directory");
                    Ok(None)
                }
                None => Ok(None),
            };
        }
        let new = NewFile { kind: FileKind::Directory, mode: 0o700, umask: 0, uid: 0, gid: 0, device: (0, 0) };
        let made = self.volume.create(to.0, to.1, &new);
        let made = self.checked(path, made)?;
        self.copied.directories += u64::from(made.is_some());
        Ok(made.map(|inode| (inode.number, true)))
    }

    /// Creates a file of any kind except a directory or symbolic link.
    pub(crate) fn node(
        &mut self,
        to: ParentAndName<'_>,
        path: &[u8],
        kind: FileKind,
        device: (u32, u32),
    ) -> Result<Option<InodeNo>, Stop> {
        let Some(name) = self.name_for(to, path)? else { return Ok(None) };
        let new = NewFile { kind, mode: 0o600, umask: 0, uid: 0, gid: 0, device };
        let made = self.volume.create(to.0, &name, &new);
        let made = self.checked(path, made)?.map(|inode| inode.number);
        Ok(self.made(to, name, made))
    }

    pub(crate) fn symlink(
        &mut self,
        to: ParentAndName<'_>,
        path: &[u8],
        target: &[u8],
    ) -> Result<Option<InodeNo>, Stop> {
        let Some(name) = self.name_for(to, path)? else { return Ok(None) };
        let made = self.volume.symlink(to.0, &name, target, 0, 0);
        let made = self.checked(path, made)?.map(|inode| inode.number);
        Ok(self.made(to, name, made))
    }

    /// Adds another name to a file.
    pub(crate) fn link(&mut self, number: InodeNo, to: ParentAndName<'_>, path: &[u8]) -> Result<(), Stop> {
        if self.at(to, path)? == Some(number) {
            return Ok(());
        }
        let Some(name) = self.name_for(to, path)? else { return Ok(()) };
        let made = self.volume.link(number, to.0, &name);
        let made = self.checked(path, made)?.map(|_| number);
        self.made(to, name, made);
        self.replace(number, path)
    }

    fn count_file(&mut self, made: bool) {
        self.copied.files += u64::from(made);
    }

    /// Sets owner, permissions, attributes and times of a file: the last step for each file.
    pub(crate) fn set_attributes(
        &mut self,
        number: InodeNo,
        path: &[u8],
        attributes: &FileAttributes,
    ) -> Result<(), Stop> {
        self.apply(number, path, attributes)?;
        self.replace(number, path)
    }

    fn apply(&mut self, number: InodeNo, path: &[u8], attributes: &FileAttributes) -> Result<(), Stop> {
        let inode = self.volume.inode(number);
        let Some(inode) = self.checked(path, inode)? else {
            self.incomplete();
            return Ok(());
        };
        let mode = (inode.kind != FileKind::Symlink).then_some(attributes.mode & 0o7777);
        let owner_and_mode =
            SetAttributes { mode, uid: Some(attributes.uid), gid: Some(attributes.gid), ..SetAttributes::default() };
        let inherited = self.volume.list_xattrs(&inode);
        for name in self.checked(path, inherited)?.unwrap_or_default() {
            if !attributes.xattrs.iter().any(|(other, _)| *other == name) {
                let removed = self.volume.remove_xattr(number, &name);
                self.checked(path, removed)?;
            }
        }
        let set = self.volume.set_attributes(number, &owner_and_mode);
        self.checked(path, set)?;
        for (name, value) in &attributes.xattrs {
            let set = match self.volume.set_xattr(number, name, value, XattrMode::Any) {
                // no space beside the other attributes: an error of this file alone
                Err(e @ Error::NoSpace) => {
                    self.report_file_error(path, format!("{}: {e}", escape(name)));
                    None
                }
                Err(Error::Unsupported(_)) => {
                    self.report_file_error(path, format!("{}: attribute not supported", escape(name)));
                    None
                }
                other => self.checked(path, other)?,
            };
            if set.is_none() && name == b"system.posix_acl_access" && mode.is_some() {
                let mode = Some(without_list(attributes.mode, acl::group_of(value)));
                let mode = SetAttributes { mode, ..SetAttributes::default() };
                if let Err(e) = self.volume.set_attributes(number, &mode) {
                    self.report_file_error(path, e);
                }
            }
        }
        self.set_times(number, path, attributes)
    }

    /// Sets a file's times.
    pub(crate) fn set_times(&mut self, number: InodeNo, path: &[u8], attributes: &FileAttributes) -> Result<(), Stop> {
        let times =
            SetAttributes { atime: Some(attributes.atime), mtime: Some(attributes.mtime), ..SetAttributes::default() };
        let set = self.volume.set_attributes(number, &times);
        self.checked(path, set)?;
        Ok(())
    }

    /// Writes a stream, up to its end or to `most` bytes, into a file from `start` on; returns the offset of the end. A
    /// read error of the stream is reported.
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
            if let Err(stop) = self.check_interrupted() {
                break Err(stop);
            }
            let len = (most - (at - start)).min(BUFFER as u64) as usize;
            let filled = match fill(from, &mut buffer[..len]) {
                Ok(0) => break Ok(at),
                Ok(filled) => filled,
                Err(_) if self.check_interrupted().is_err() => break Err(Stop::Interrupted),
                Err(e) => {
                    self.report_file_error(path, format!("copy stopped at byte {at}: {e}"));
                    self.incomplete();
                    break Ok(at);
                }
            };
            match self.write(number, path, at, &buffer[..filled]) {
                Ok(true) => at += filled as u64,
                Ok(false) => {
                    self.incomplete();
                    break Ok(at);
                }
                Err(stop) => break Err(stop),
            }
        };
        self.buffer = buffer;
        outcome
    }

    /// Writes into a file; the flag is set if everything was written.
    fn write(&mut self, number: InodeNo, path: &[u8], at: u64, data: &[u8]) -> Result<bool, Stop> {
        let written = self.volume.write_at(number, at, data);
        let Some(written) = self.checked(path, written)? else { return Ok(false) };
        if written < data.len() {
            return Err(Stop::Full(path.to_vec()));
        }
        self.copied.bytes += data.len() as u64;
        self.bar.advance(data.len() as u64);
        Ok(true)
    }

    /// Sets the length of a file that ends with a hole.
    pub(crate) fn set_len(&mut self, number: InodeNo, path: &[u8], len: u64) -> Result<(), Stop> {
        let set = self.volume.truncate(number, len);
        if self.checked(path, set)?.is_none() {
            self.incomplete();
        }
        Ok(())
    }

    /// The resource that a full volume lacks: space or inodes.
    fn missing(&self) -> String {
        let there = self.volume.statfs();
        let free = human(there.blocks_available.saturating_mul(u64::from(there.block_size)));
        if there.files_free == 0 {
            return format!("all {} inodes are in use", there.files);
        }
        match self.total.as_ref().map(|total| total().saturating_sub(self.copied.bytes)) {
            Some(more) => format!("{} of data left to copy, {free} free", human(more)),
            None => match self.size.filter(|size| *size > 0) {
                Some(size) => format!("{} of data in this file, {free} free", human(size)),
                None => format!("{free} free"),
            },
        }
    }

    /// Reports the outcome and the amounts copied; returns the exit status, and the numbers for JSON.
    pub(crate) fn finish(mut self, outcome: Result<(), Stop>, verbose: bool) -> (u8, serde_json::Value) {
        self.bar.finish();
        let mut remains = String::new();
        if let (Err(Stop::Full(_) | Stop::Interrupted), Some((dir, name, bytes))) = (&outcome, self.making.take()) {
            // an incomplete file is of no use
            if let Err(e) = self.volume.unlink(dir, &name) {
                remains = format!("; the unfinished file {} could not be removed: {e}", short(&name));
            }
            self.copied.files = self.copied.files.saturating_sub(1);
            self.copied.bytes = bytes;
            self.replacing = None;
        }
        self.abandon();
        let Copied { directories, files, bytes } = self.copied;
        let status = match outcome {
            Ok(()) => u8::from(self.failed > 0).max(self.complaints.exit()),
            Err(stop) => {
                let of_source = matches!(stop, Stop::Unreadable(..));
                let (path, why) = match stop {
                    Stop::Interrupted => (None, "interrupted: not all was copied; the volume is consistent".to_owned()),
                    Stop::Full(path) => {
                        (Some(path), format!("{}; not all was copied: {}", Error::NoSpace, self.missing()))
                    }
                    Stop::FullBelow(path) => {
                        let why = "no space left on the disk beneath the volume; not all was copied";
                        (Some(path), why.to_owned())
                    }
                    Stop::Failed(path, why) | Stop::Unreadable(path, why) => {
                        (Some(path), format!("{}; not all was copied", without_errno(&why)))
                    }
                };
                let why = why + &remains;
                match path {
                    Some(path) if of_source => report_file_error(&path, &why, &format!("{}: {why}", short(&path))),
                    Some(path) => report_file_error(&path, &why, &self.complaints.sentence(Some(&path), &why)),
                    None => say_error(&self.complaints.sentence(None, &why)),
                }
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
