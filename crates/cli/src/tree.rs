//! `extant tree`: shows a directory and everything below it.

use crate::error_report::{Complaints, Failure, Result};
use crate::file_meta::{FileMeta, target_of};
use crate::output::{Stream, Taker, Text, counted, print_json_object, stdout};
use crate::path_stack::PathStack;
use crate::source::{Opened, Source};
use check::render::escape;
use clap::Args;
use fs::{DirEntry, FileKind, Inode, InodeNo};
use serde::Serialize;
use std::cell::Cell;
use std::collections::HashSet;
use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

#[derive(Debug, Args)]
#[command(
    about = "Show a directory of a volume and all below it",
    after_help = "Examples:
  extant tree volume.img                the whole volume
  extant tree -L 2 volume.img /home     two levels below /home
  extant tree --json volume.img | jq -r '.entries[] | select(.size > 1e6).path'

PATH may also be an inode's number in angle brackets, '<12>', as in debugfs. Symbolic links are shown, not \
    followed. Names that do not print are escaped; in JSON they are not, and a path that is not UTF-8 has its bytes \
    in path_bytes.

Exit status: 0 all was shown, 1 something could not be read, 2 wrong usage."
)]
pub(crate) struct Tree {
    #[command(flatten)]
    source: Source,

    /// Directory of the volume
    #[arg(value_name = "PATH", default_value = "/")]
    path: OsString,

    /// Include names that begin with a dot
    #[arg(short, long)]
    all: bool,

    /// Descend at most N levels
    #[arg(short = 'L', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    level: Option<u32>,

    /// Show directories only
    #[arg(short, long)]
    directories: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A file as JSON.
#[derive(Serialize)]
struct Entry {
    /// Relative to the requested directory.
    #[serde(flatten)]
    path: Text,
    /// 1 for the entries of that directory itself.
    depth: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    inode: Option<u32>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    meta: Option<FileMeta>,
}

#[derive(Debug, Default, Clone, Copy, Serialize)]
struct Summary {
    /// Number of directories, without the requested one.
    directories: u64,
    /// Number of other files.
    files: u64,
}

#[derive(Serialize)]
struct Report<'a, E> {
    device: &'a str,
    #[serde(flatten)]
    path: Text,
    entries: E,
    /// Known only after the entries.
    summary: &'a Cell<Summary>,
}

/// The destination of the files found by a walk.
enum Out<'a> {
    Text(&'a mut dyn Write),
    Json(Taker<'a, Entry>),
}

/// A directory on the path from the root of the walk to the current position.
struct Level {
    /// Length of the indent of its lines.
    indent: usize,
    entries: std::vec::IntoIter<DirEntry>,
}

impl Tree {
    pub(crate) fn run(&self) -> Result<u8> {
        let opened = self.source.open()?;
        let path = self.path.as_bytes();
        let start = opened.find(&self.path, false).map_err(|e| self.failure(&e))?;
        if start.kind != FileKind::Directory {
            return Err(self.failure(&fs::Error::NotADirectory));
        }
        let summary = Cell::default();
        let mut walk =
            Walk { args: self, opened: &opened, complaints: Complaints::new(&self.source.device), summary: &summary };
        if self.json {
            let entries = Stream::new(|each| walk.run(&start, Out::Json(each)));
            let path = Text::new("path", path);
            print_json_object(&Report { device: &self.source.device, path, entries, summary: &summary })?;
        } else {
            let mut out = stdout()?;
            writeln!(out, "{}", escape(path))?;
            walk.run(&start, Out::Text(&mut out))?;
            let Summary { directories, files } = summary.get();
            let directories = counted(directories, "directory", "directories");
            let files = counted(files, "file", "files");
            let counts = if self.directories { directories } else { format!("{directories}, {files}") };
            writeln!(out, "\n{counts}")?;
            out.flush()?;
        }
        Ok(walk.complaints.exit())
    }

    fn failure(&self, why: &fs::Error) -> Failure {
        Failure::on(&self.source.device, format!("{}: {why}", escape(self.path.as_bytes())))
    }
}

struct Walk<'a> {
    args: &'a Tree,
    opened: &'a Opened,
    complaints: Complaints<'a>,
    summary: &'a Cell<Summary>,
}

impl Walk<'_> {
    fn run(&mut self, start: &Arc<Inode>, mut out: Out<'_>) -> io::Result<()> {
        // a damaged volume may name a directory twice, and so form a loop
        let mut entered = HashSet::from([start.number]);
        // relative to the start, which is empty; both are as long as the tree is deep, so they are stored once
        let (mut stack, mut indent) = (PathStack::default(), String::new());
        let mut levels = vec![Level { indent: 0, entries: self.entries(b"", start) }];
        while let Some(level) = levels.last_mut() {
            indent.truncate(level.indent);
            let Some(entry) = level.entries.next() else {
                levels.pop();
                stack.leave();
                continue;
            };
            let is_last = level.entries.len() == 0;
            let (branch, stem) = if is_last { ("└── ", "    ") } else { ("├── ", "│   ") };
            let depth = levels.len();
            stack.enter(&entry.name);
            let path = stack.path();
            let inode = self.inode(path, &entry);
            self.show((&indent, branch), path, depth, &entry, inode.as_deref(), &mut out)?;
            let deeper = self.args.level.is_none_or(|most| depth < most as usize);
            match inode.filter(|inode| deeper && inode.kind == FileKind::Directory) {
                Some(dir) if entered.insert(dir.number) => {
                    indent.push_str(stem);
                    levels.push(Level { indent: indent.len(), entries: self.entries(path, &dir) });
                    continue;
                }
                Some(_) => self.complaints.about(path, "this directory was shown already, under another name"),
                None => {}
            }
            stack.leave();
        }
        Ok(())
    }

    /// The entries of a directory, sorted by name.
    fn entries(&mut self, path: &[u8], dir: &Arc<Inode>) -> std::vec::IntoIter<DirEntry> {
        let mut entries = Vec::new();
        match self.opened.volume.read_dir(dir, 0) {
            Err(e) => self.complaints.about(path, e),
            Ok(read) => {
                for entry in read {
                    match entry {
                        Ok(entry) if matches!(&entry.name[..], b"." | b"..") => {}
                        Ok(entry) if entry.name.starts_with(b".") && !self.args.all => {}
                        Ok(entry) => entries.push(entry),
                        Err(e) => self.complaints.about(path, e),
                    }
                }
            }
        }
        if self.args.directories {
            entries.retain(|entry| self.is_directory(entry.kind, entry.inode));
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        entries.into_iter()
    }

    fn is_directory(&self, kind: Option<FileKind>, number: InodeNo) -> bool {
        let kind = kind.or_else(|| self.opened.volume.inode(number).ok().map(|inode| inode.kind));
        kind == Some(FileKind::Directory)
    }

    /// The inode of an entry, if more than its name is needed.
    fn inode(&mut self, path: &[u8], entry: &DirEntry) -> Option<Arc<Inode>> {
        let more = entry.kind.is_none_or(|kind| matches!(kind, FileKind::Directory | FileKind::Symlink));
        if !self.args.json && !more {
            return None;
        }
        self.opened.volume.inode(entry.inode).map_err(|e| self.complaints.about(path, e)).ok()
    }

    fn show(
        &mut self,
        (indent, branch): (&str, &str),
        path: &[u8],
        depth: usize,
        entry: &DirEntry,
        inode: Option<&Inode>,
        out: &mut Out<'_>,
    ) -> io::Result<()> {
        let volume = &self.opened.volume;
        let target = match inode.map(|inode| target_of(volume, inode)) {
            Some(Ok(target)) => target,
            Some(Err(e)) => {
                self.complaints.about(path, e);
                None
            }
            None => None,
        };
        let mut summary = self.summary.get();
        match inode.map(|inode| inode.kind).or(entry.kind) {
            Some(FileKind::Directory) => summary.directories += 1,
            _ => summary.files += 1,
        }
        self.summary.set(summary);
        let out = match out {
            Out::Text(out) => out,
            Out::Json(take) => {
                return take(Entry {
                    path: Text::new("path", path),
                    depth,
                    inode: inode.is_none().then(|| entry.inode.get()),
                    meta: inode.map(|inode| FileMeta::of(volume, inode, target.as_deref())),
                });
            }
        };
        write!(out, "{indent}{branch}{}", escape(&entry.name))?;
        match target {
            Some(target) => writeln!(out, " -> {}", escape(&target)),
            None => writeln!(out),
        }
    }
}
