//! `extant ls`: lists the names in directories, with the content of their inodes where requested.

use crate::error_report::{Complaints, Result};
use crate::file_meta::{FileMeta, target_of};
use crate::output::{MINUTES, Stream, Taker, Text, human, local_time, mode_letters, print_json_object, stdout};
use crate::path_stack::Folders;
use crate::source::{Opened, Source};
use check::render::escape;
use clap::Args;
use fs::{Attributes, FileKind, Inode, InodeNo};
use serde::Serialize;
use std::collections::HashSet;
use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

#[derive(Debug, Args)]
#[command(
    about = "List directories of a volume",
    after_help = "Examples:
  extant ls volume.img                     names in the root directory
  extant ls -la volume.img /etc /home      all names, with details
  extant ls -lR --human volume.img /var    a whole tree, sizes in KiB, MiB, …
  extant ls --json volume.img / | jq -r '.paths[].entries[].name'

PATH may also be an inode's number in angle brackets, '<12>', as in debugfs. A symbolic link is shown, not \
    followed; end its PATH with a slash to list the directory it leads to. Names that do not print are escaped; in \
    JSON they are not, and a name that is not UTF-8 has its bytes in name_bytes.

Times are local, as ls shows them: of the zone that TZ names, else of this machine's. In JSON they are UTC.

Exit status: 0 all was listed, 1 something could not be read, 2 wrong usage."
)]
pub(crate) struct Ls {
    #[command(flatten)]
    source: Source,

    /// Directories or files of the volume; the root directory if omitted
    #[arg(value_name = "PATH", default_value = "/")]
    paths: Vec<OsString>,

    /// Show type, mode, links, owner, group, size and time
    #[arg(short, long)]
    long: bool,

    /// Include names that begin with a dot
    #[arg(short, long)]
    all: bool,

    /// Show inode numbers
    #[arg(short, long)]
    inode: bool,

    /// List subdirectories recursively
    #[arg(short = 'R', long)]
    recursive: bool,

    /// List a directory itself, not its content
    #[arg(short, long)]
    directory: bool,

    /// Sizes in KiB, MiB and so on
    #[arg(long)]
    human: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// One line of a list.
struct Row {
    name: Vec<u8>,
    number: InodeNo,
    /// `None` if not needed or not readable.
    inode: Option<Arc<Inode>>,
    target: Option<Vec<u8>>,
}

/// One directory, or one file specified by itself.
#[derive(Serialize)]
struct Listed {
    #[serde(flatten)]
    path: Text,
    entries: Vec<Entry>,
}

#[derive(Serialize)]
struct Entry {
    #[serde(flatten)]
    name: Text,
    /// The only information on a file that cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    inode: Option<u32>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    meta: Option<FileMeta>,
}

#[derive(Serialize)]
struct Report<'a, P> {
    device: &'a str,
    paths: P,
}

/// The destination of the output.
enum Out<'a> {
    Text(&'a mut dyn Write),
    Json(Taker<'a, Listed>),
}

impl Ls {
    pub(crate) fn run(&self) -> Result<u8> {
        let opened = self.source.open()?;
        let mut list = List { args: self, opened: &opened, complaints: Complaints::new(&self.source.device) };
        if self.json {
            let paths = Stream::new(|each| list.run(&mut Out::Json(each)));
            print_json_object(&Report { device: &self.source.device, paths })?;
        } else {
            let mut out = stdout()?;
            list.run(&mut Out::Text(&mut out))?;
            out.flush()?;
        }
        Ok(list.complaints.exit())
    }

    fn wants_inodes(&self) -> bool {
        self.long || self.json
    }
}

struct List<'a> {
    args: &'a Ls,
    opened: &'a Opened,
    complaints: Complaints<'a>,
}

impl List<'_> {
    fn run(&mut self, out: &mut Out<'_>) -> io::Result<()> {
        // pending directories: many where paths are long
        let (mut files, mut directories, mut folders) = (Vec::new(), Vec::new(), Folders::default());
        for path in &self.args.paths {
            match self.opened.find(path, false) {
                Ok(inode) if inode.kind == FileKind::Directory && !self.args.directory => {
                    directories.push((folders.add(Folders::START, path.as_bytes()), inode));
                }
                Ok(inode) => files.push(self.row(path.as_bytes().to_vec(), path.as_bytes(), inode)),
                Err(e) => self.complaints.about(path.as_bytes(), e),
            }
        }
        let headings = self.args.recursive || self.args.paths.len() > 1;
        let mut first = files.is_empty();
        match out {
            Out::Text(out) => self.print(&files, out)?,
            Out::Json(take) => {
                files.iter().try_for_each(|row| take(self.listed(&row.name, std::slice::from_ref(row))))?
            }
        }
        // the next one last, since they are taken from the end
        directories.reverse();
        let mut seen = HashSet::new();
        while let Some((folder, dir)) = directories.pop() {
            let path = folders.path(folder);
            // a damaged volume may name a directory twice, and so form a loop
            if self.args.recursive && !seen.insert(dir.number) {
                self.complaints.about(&path, "this directory was listed already, under another name");
                continue;
            }
            let rows = self.read(&path, &dir);
            match out {
                Out::Text(out) => {
                    if headings {
                        writeln!(out, "{}{}:", if first { "" } else { "\n" }, escape(&path))?;
                    }
                    self.print(&rows, out)?;
                }
                Out::Json(take) => take(self.listed(&path, &rows))?,
            }
            first = false;
            if self.args.recursive {
                for row in rows.iter().rev() {
                    if let Some(inode) = directory_of(row) {
                        directories.push((folders.add(folder, &row.name), Arc::clone(inode)));
                    }
                }
            }
        }
        Ok(())
    }

    fn row(&mut self, name: Vec<u8>, path: &[u8], inode: Arc<Inode>) -> Row {
        let target = target_of(&self.opened.volume, &inode).unwrap_or_else(|e| {
            self.complaints.about(path, e);
            None
        });
        Row { name, number: inode.number, inode: Some(inode), target }
    }

    /// The entries of a directory, sorted by name.
    fn read(&mut self, path: &[u8], dir: &Arc<Inode>) -> Vec<Row> {
        let volume = &self.opened.volume;
        let mut rows = Vec::new();
        let entries = match volume.read_dir(dir, 0) {
            Ok(entries) => entries,
            Err(e) => {
                self.complaints.about(path, e);
                return rows;
            }
        };
        for entry in entries {
            let entry = match entry {
                Ok(entry) if entry.name.starts_with(b".") && !self.args.all => continue,
                Ok(entry) => entry,
                Err(e) => {
                    self.complaints.about(path, e);
                    continue;
                }
            };
            let may_be_directory = entry.kind.is_none_or(|kind| kind == FileKind::Directory);
            let wanted = self.args.wants_inodes() || self.args.recursive && may_be_directory;
            if !wanted {
                rows.push(Row { name: entry.name, number: entry.inode, inode: None, target: None });
                continue;
            }
            let full = join(path, &entry.name);
            match volume.inode(entry.inode) {
                Ok(inode) => rows.push(self.row(entry.name, &full, inode)),
                Err(e) => {
                    self.complaints.about(&full, e);
                    rows.push(Row { name: entry.name, number: entry.inode, inode: None, target: None });
                }
            }
        }
        rows.sort_by(|a, b| a.name.cmp(&b.name));
        rows
    }

    /// A directory as JSON.
    fn listed(&self, path: &[u8], rows: &[Row]) -> Listed {
        let volume = &self.opened.volume;
        let entry = |row: &Row| Entry {
            name: Text::new("name", &row.name),
            inode: row.inode.is_none().then(|| row.number.get()),
            meta: row.inode.as_ref().map(|inode| FileMeta::of(volume, inode, row.target.as_deref())),
        };
        Listed { path: Text::new("path", path), entries: rows.iter().map(entry).collect() }
    }

    fn print(&self, rows: &[Row], out: &mut dyn Write) -> io::Result<()> {
        let lines: Vec<_> = rows.iter().map(|row| self.columns(row)).collect();
        let mut widths = [0; COLUMNS];
        for line in &lines {
            for (width, text) in widths.iter_mut().zip(line) {
                *width = text.len().max(*width);
            }
        }
        for (row, line) in rows.iter().zip(&lines) {
            for (text, width) in line.iter().zip(widths).filter(|(_, width)| *width > 0) {
                write!(out, "{text:>width$} ")?;
            }
            out.write_all(escape(&row.name).as_bytes())?;
            if let Some(target) = row.target.as_deref().filter(|_| self.args.long) {
                write!(out, " -> {}", escape(target))?;
            }
            out.write_all(b"\n")?;
        }
        Ok(())
    }

    /// Inode number, mode, links, owner, group, size or device, time; empty where not requested.
    fn columns(&self, row: &Row) -> [String; COLUMNS] {
        let mut columns = <[String; COLUMNS]>::default();
        if self.args.inode {
            columns[0] = row.number.to_string();
        }
        if !self.args.long {
            return columns;
        }
        let Some(inode) = &row.inode else {
            // only the name is known
            columns[1] = "??????????".into();
            columns[2..].fill("?".into());
            return columns;
        };
        let Attributes { kind, mode, links, uid, gid, size, device, mtime, .. } = self.opened.volume.attributes(inode);
        columns[1] = mode_letters(kind, mode);
        columns[2] = links.to_string();
        columns[3] = uid.to_string();
        columns[4] = gid.to_string();
        columns[5] = match device {
            Some((major, minor)) => format!("{major}, {minor}"),
            None if self.args.human => human(size),
            None => size.to_string(),
        };
        columns[6] = local_time(mtime, MINUTES);
        columns
    }
}

const COLUMNS: usize = 7;

/// The directory of a row, if it is to be listed after this one.
fn directory_of(row: &Row) -> Option<&Arc<Inode>> {
    let is_dot = matches!(&row.name[..], b"." | b"..");
    row.inode.as_ref().filter(|inode| !is_dot && inode.kind == FileKind::Directory)
}

/// Appends a name to the path of a directory.
pub(crate) fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
    let slash: &[u8] = if path.ends_with(b"/") { b"" } else { b"/" };
    [path, slash, name].concat()
}
