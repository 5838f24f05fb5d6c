//! `extant rm`: removes files of a volume.

use crate::copy_in::on_signals;
use crate::error_report::{Complaints, Result, say, say_error};
use crate::output::{counted, print_json_object};
use crate::path_stack::PathStack;
use crate::progress::{Bar, Unit};
use crate::source::Target;
use clap::Args;
use fs::{Error, FileKind, InodeNo, Volume};
use serde_json::json;
use std::collections::HashSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Debug, Args)]
#[command(
    about = "Remove files of a volume",
    after_help = "Examples:
  extant rm volume.img /etc/motd
  extant rm -r volume.img /var/cache /tmp/old    directories and all below
  extant rm -f volume.img /perhaps               no error if the file does not exist

A symbolic link is removed, not its target. The volume must not be mounted. SIGINT and SIGTERM stop the \
    removal and leave the volume consistent.

Exit status: 0 all was removed, 1 something could not be removed, 2 wrong usage."
)]
pub(crate) struct Rm {
    #[command(flatten)]
    source: Target,

    /// Files of the volume
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<OsString>,

    /// Remove directories and their contents recursively
    #[arg(short, long)]
    recursive: bool,

    /// Ignore files that do not exist
    #[arg(short, long)]
    force: bool,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

struct Remover<'a> {
    volume: &'a Volume,
    complaints: Complaints<'a>,
    interrupted: Arc<AtomicBool>,
    /// Directories that were entered: a damaged volume may contain loops.
    entered: HashSet<InodeNo>,
    directories: u64,
    files: u64,
    bar: Bar,
}

/// A directory being emptied.
struct Level {
    parent: InodeNo,
    name: Vec<u8>,
    number: InodeNo,
    entries: std::vec::IntoIter<(Vec<u8>, InodeNo)>,
}

impl Rm {
    pub(crate) fn run(&self) -> Result<u8> {
        let interrupted = on_signals()?;
        let opened = self.source.open_for_writing(fs::WriteOptions::default())?;
        let mut remover = Remover {
            volume: &opened.volume,
            complaints: Complaints::new(&self.source.device),
            interrupted,
            entered: HashSet::new(),
            directories: 0,
            files: 0,
            bar: Bar::new("removing", 0, Unit::Files),
        };
        for path in &self.paths {
            if remover.stopped() {
                break;
            }
            remover.path(path.as_bytes(), self.recursive, self.force);
        }
        let stopped = remover.stopped();
        remover.bar.finish();
        let Remover { complaints, directories, files, .. } = remover;
        opened.unmount()?;
        if stopped {
            let why = "interrupted: not all was removed; the volume is consistent";
            say_error(&complaints.sentence(None, why));
        }
        if self.source.verbose {
            let gone = counted(directories, "directory", "directories");
            say(&format!("{gone} and {} removed", counted(files, "file", "files")));
        }
        if self.json {
            print_json_object(&json!({ "directories": directories, "files": files }))?;
        }
        Ok(complaints.exit().max(u8::from(stopped)))
    }
}

impl Remover<'_> {
    fn stopped(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }

    /// Removes the file or directory at a path.
    fn path(&mut self, path: &[u8], recursive: bool, force: bool) {
        let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |at| at + 1);
        let (parent, name) = match path[..end].iter().rposition(|byte| *byte == b'/') {
            Some(at) => (&path[..=at], &path[at + 1..end]),
            None => (&b"/"[..], &path[..end]),
        };
        if matches!(name, b"" | b"." | b"..") {
            return self.complaints.about(path, "refusing to remove '/', '.' or '..'");
        }
        let found = self.volume.resolve(parent).and_then(|parent| {
            let number = self.volume.lookup(&*self.volume.inode(parent)?, name)?;
            Ok((parent, number))
        });
        let (parent, number) = match found {
            Ok(found) => found,
            Err(Error::NotFound) if force => return,
            Err(e) => return self.complaints.about(path, e),
        };
        if !self.is_directory(number) {
            self.unlink(parent, name, path);
        } else if recursive {
            self.tree(parent, name.to_vec(), number, &path[..end]);
        } else {
            self.complaints.about(path, "is a directory: use -r to remove it recursively");
        }
    }

    /// Whether an inode is a directory; `false` for an unreadable one, whose name may be removed.
    fn is_directory(&self, number: InodeNo) -> bool {
        self.volume.inode(number).is_ok_and(|inode| inode.kind == FileKind::Directory)
    }

    fn unlink(&mut self, dir: InodeNo, name: &[u8], path: &[u8]) {
        match self.volume.unlink(dir, name) {
            Ok(()) => {
                self.files += 1;
                self.bar.advance(1);
            }
            Err(e) => self.complaints.about(path, e),
        }
    }

    fn tree(&mut self, parent: InodeNo, name: Vec<u8>, number: InodeNo, path: &[u8]) {
        let mut stack = PathStack::new(path);
        let mut levels = Vec::from_iter(self.level(parent, name, number, path));
        while let Some(level) = levels.last_mut() {
            if self.stopped() {
                return;
            }
            let Some((name, number)) = level.entries.next() else {
                let done = self.volume.rmdir(level.parent, &level.name);
                match done {
                    Ok(()) => self.directories += 1,
                    Err(e) => self.complaints.about(stack.path(), e),
                }
                levels.pop();
                stack.leave();
                continue;
            };
            let dir = level.number;
            stack.enter(&name);
            if self.is_directory(number) {
                if let Some(level) = self.level(dir, name, number, stack.path()) {
                    levels.push(level);
                    continue;
                }
            } else {
                self.unlink(dir, &name, stack.path());
            }
            stack.leave();
        }
    }

    fn level(&mut self, parent: InodeNo, name: Vec<u8>, number: InodeNo, path: &[u8]) -> Option<Level> {
        if !self.entered.insert(number) {
            self.complaints.about(path, "this directory was entered already, under another name");
            return None;
        }
        // all names are read before the first is removed
        let entries = self.volume.inode(number).and_then(|inode| {
            let entries = self.volume.read_dir(&inode, 0)?;
            entries
                .filter(|entry| entry.as_ref().map_or(true, |entry| !matches!(&entry.name[..], b"." | b"..")))
                .map(|entry| entry.map(|entry| (entry.name, entry.inode)))
                .collect::<fs::Result<Vec<_>>>()
        });
        match entries {
            Ok(entries) => Some(Level { parent, name, number, entries: entries.into_iter() }),
            Err(e) => {
                self.complaints.about(path, e);
                None
            }
        }
    }
}
