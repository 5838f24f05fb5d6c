//! `extant stat`: shows the content of inodes.

use crate::error_report::{Complaints, Result};
use crate::extents::{Extent, Extents, has_map};
use crate::file_meta::{FileMeta, flag_names, target_of};
use crate::output::{FULL_TIME, Text, counted, hex, human, local_time, mode_letters, print_json_object, stdout};
use crate::source::{Opened, Source};
use check::render::escape;
use clap::Args;
use format::acl::{Acl, Tag};
use format::extent::RawNode;
use fs::{FileKind, Inode, InodeFlags, Volume};
use serde::Serialize;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;

#[derive(Debug, Args)]
#[command(
    about = "Show everything about files of a volume",
    after_help = "Examples:
  extant stat volume.img /etc/passwd
  extant stat --blocks volume.img /disk.raw     with the location of each extent
  extant stat volume.img '<8>'                  inode 8, as in debugfs
  extant stat --json volume.img /etc/passwd | jq '.files[0].mtime'

A symbolic link is shown, not followed; end its PATH with a slash to see the directory it leads to. Times are \
    local (TZ), with their offset from UTC; in JSON they are UTC.

Exit status: 0 all was shown, 1 something could not be read, 2 wrong usage."
)]
pub(crate) struct Stat {
    #[command(flatten)]
    source: Source,

    /// Files of the volume, or inode numbers as '<12>'
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<OsString>,

    /// List the extents of the file
    #[arg(long)]
    blocks: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A file as JSON.
#[derive(Serialize)]
struct Entry {
    #[serde(flatten)]
    path: Text,
    #[serde(flatten)]
    meta: FileMeta,
    #[serde(skip_serializing_if = "Option::is_none")]
    map: Option<Map>,
    xattrs: Vec<Xattr>,
}

/// The map of a file's blocks.
#[derive(Serialize)]
struct Map {
    /// `inline`, `extents` or `indirect`.
    kind: &'static str,
    /// Depth of the extent tree below the inode.
    #[serde(skip_serializing_if = "Option::is_none")]
    depth: Option<u16>,
    /// Number of extents, with data or unwritten.
    extents: u64,
    /// Number of blocks with data.
    data_blocks: u64,
    /// Number of blocks allocated and never written.
    unwritten_blocks: u64,
    /// The extents; only with `--blocks`.
    #[serde(skip_serializing_if = "Option::is_none")]
    extent_list: Option<Vec<Extent>>,
}

#[derive(Serialize)]
struct Xattr {
    #[serde(flatten)]
    name: Text,
    #[serde(flatten)]
    value: Text,
}

#[derive(Serialize)]
struct Report<'a> {
    device: &'a str,
    files: Vec<Entry>,
}

/// A file to be shown.
struct Shown<'a> {
    path: &'a [u8],
    inode: &'a Inode,
    target: Option<Vec<u8>>,
    map: Option<Map>,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Stat {
    pub(crate) fn run(&self) -> Result<u8> {
        let opened = self.source.open()?;
        let mut complaints = Complaints::new(&self.source.device);
        let mut out = stdout()?;
        let mut files = Vec::new();
        let mut first = true;
        for path in &self.paths {
            let path_bytes = path.as_bytes();
            let inode = match opened.find(path, false) {
                Ok(inode) => inode,
                Err(e) => {
                    complaints.about(path_bytes, e);
                    continue;
                }
            };
            let shown = self.look(&opened, path_bytes, &inode, &mut complaints);
            if self.json {
                files.push(shown.into_json(&opened.volume));
                continue;
            }
            if !std::mem::take(&mut first) {
                writeln!(out)?;
            }
            shown.print(&opened.volume, &mut out)?;
        }
        out.flush()?;
        if self.json {
            print_json_object(&Report { device: &self.source.device, files })?;
        }
        Ok(complaints.exit())
    }

    /// Collects the information to show; reports what cannot be read.
    fn look<'a>(
        &self,
        opened: &Opened,
        path: &'a [u8],
        inode: &'a Inode,
        complaints: &mut Complaints<'_>,
    ) -> Shown<'a> {
        let volume = &opened.volume;
        let target = target_of(volume, inode).unwrap_or_else(|e| {
            complaints.about(path, e);
            None
        });
        let map = map_of(volume, inode, self.blocks).unwrap_or_else(|e| {
            complaints.about(path, e);
            None
        });
        let mut xattrs = Vec::new();
        match volume.list_xattrs(inode) {
            Err(e) => complaints.about(path, e),
            Ok(names) => {
                for name in names {
                    match volume.get_xattr(inode, &name) {
                        Ok(value) => xattrs.push((name, value)),
                        Err(e) => complaints.about(path, format!("{}: {e}", escape(&name))),
                    }
                }
            }
        }
        Shown { path, inode, target, map, xattrs }
    }
}

/// The map of a file; `None` for files without one. Extents are listed only with `with_list`.
fn map_of(volume: &Volume, inode: &Inode, with_list: bool) -> fs::Result<Option<Map>> {
    let flags = inode.raw().flags();
    if !has_map(inode) {
        return Ok(None);
    }
    let (kind, depth) = if flags.contains(InodeFlags::INLINE_DATA) {
        ("inline", None)
    } else if flags.contains(InodeFlags::EXTENTS) {
        let root = RawNode::from_bytes(&inode.raw().disk.i_block);
        ("extents", root.map(|root| root.header.eh_depth.get()))
    } else {
        ("indirect", None)
    };
    let mut map =
        Map { kind, depth, extents: 0, data_blocks: 0, unwritten_blocks: 0, extent_list: with_list.then(Vec::new) };
    let mut extents = Extents::of(volume, inode);
    while let Some(extent) = extents.next_extent()? {
        map.extents += 1;
        *(if extent.unwritten { &mut map.unwritten_blocks } else { &mut map.data_blocks }) += extent.len;
        if let Some(list) = &mut map.extent_list {
            list.push(extent);
        }
    }
    Ok(Some(map))
}

impl Shown<'_> {
    fn into_json(self, volume: &Volume) -> Entry {
        let xattr = |(name, value): (Vec<u8>, Vec<u8>)| Xattr {
            name: Text::new("name", &name),
            value: Text::new("value", &value),
        };
        Entry {
            path: Text::new("path", self.path),
            meta: FileMeta::of(volume, self.inode, self.target.as_deref()),
            map: self.map,
            xattrs: self.xattrs.into_iter().map(xattr).collect(),
        }
    }

    fn print(&self, volume: &Volume, out: &mut impl Write) -> io::Result<()> {
        let a = volume.attributes(self.inode);
        let mut row = |label: &str, text: String| writeln!(out, "{label:>9}  {text}");
        let name = escape(self.path);
        row(
            "Path",
            match &self.target {
                Some(target) => format!("{name} -> {}", escape(target)),
                None => name,
            },
        )?;
        row("Inode", format!("{}, generation {}", a.inode, a.generation))?;
        row(
            "Type",
            match a.device {
                Some((major, minor)) => format!("{}, {major}:{minor}", kind_text(a.kind)),
                None => kind_text(a.kind).to_owned(),
            },
        )?;
        row("Mode", format!("{:04o} ({})", a.mode & 0o7777, mode_letters(a.kind, a.mode)))?;
        let project = if a.project == 0 { String::new() } else { format!(", project {}", a.project) };
        row("Owner", format!("user {}, group {}{project}", a.uid, a.gid))?;
        row("Links", a.links.to_string())?;
        let exact = if a.size < 1024 { String::new() } else { format!(" ({} bytes)", a.size) };
        row("Size", format!("{}{exact}", human(a.size)))?;
        let sectors = counted(a.blocks, "sector", "sectors");
        row("On disk", format!("{} ({sectors} of 512 bytes)", human(a.blocks.saturating_mul(512))))?;
        let flags = flag_names(a.flags);
        row("Flags", if flags.is_empty() { "none".to_owned() } else { flags.join(", ") })?;
        row("Accessed", local_time(a.atime, FULL_TIME))?;
        row("Modified", local_time(a.mtime, FULL_TIME))?;
        row("Changed", local_time(a.ctime, FULL_TIME))?;
        if let Some(created) = a.crtime {
            row("Created", local_time(created, FULL_TIME))?;
        }
        if let Some(map) = &self.map {
            row("Map", map.sentence())?;
        }
        for (at, (name, value)) in self.xattrs.iter().enumerate() {
            let label = if at == 0 { "Xattrs" } else { "" };
            row(label, format!("{} = {}", escape(name), readable(name, value)))?;
        }
        match self.map.as_ref().and_then(|map| map.extent_list.as_deref()) {
            Some(extents) if !extents.is_empty() => print_extents(extents, out),
            _ => Ok(()),
        }
    }
}

impl Map {
    fn sentence(&self) -> String {
        if self.kind == "inline" {
            return "none, the content is in the inode".to_owned();
        }
        let mut out = match self.depth {
            Some(0) => "extents in the inode".to_owned(),
            Some(depth) => format!("extent tree of depth {depth}"),
            None => "direct and indirect blocks".to_owned(),
        };
        let extents = counted(self.extents, "extent", "extents");
        // writing to a String cannot fail
        let _ = match (self.data_blocks, self.unwritten_blocks) {
            (0, 0) => write!(out, "; nothing is mapped"),
            (data, 0) => write!(out, "; {} in {extents}", counted(data, "block", "blocks")),
            (data, unwritten) => {
                write!(out, "; {} and {unwritten} unwritten in {extents}", counted(data, "block", "blocks"))
            }
        };
        out
    }
}

fn print_extents(extents: &[Extent], out: &mut impl Write) -> io::Result<()> {
    let digits = |numbers: &dyn Fn(&Extent) -> u64, title: &str| {
        extents.iter().map(|extent| numbers(extent).to_string().len()).max().unwrap_or(0).max(title.len())
    };
    let wide = [
        digits(&|extent| extent.file_block, "file block"),
        digits(&|extent| extent.block, "block"),
        digits(&|extent| extent.len, "blocks"),
    ];
    let [a, b, c] = wide;
    writeln!(out, "\n{:>a$}  {:>b$}  {:>c$}", "file block", "block", "blocks")?;
    for extent in extents {
        let note = if extent.unwritten { "  unwritten" } else { "" };
        writeln!(out, "{:>a$}  {:>b$}  {:>c$}{note}", extent.file_block, extent.block, extent.len)?;
    }
    Ok(())
}

/// Maximum number of bytes of an attribute's value in text output; JSON has all of it.
const SHOWN: usize = 256;

/// An attribute's value as text: an access control list, a quoted string, or bytes in hexadecimal.
fn readable(name: &[u8], value: &[u8]) -> String {
    if name.starts_with(b"system.posix_acl_")
        && let Ok(acl) = Acl::from_xattr(value)
    {
        return acl_text(&acl);
    }
    let shown = value.get(..SHOWN).unwrap_or(value);
    let more = if shown.len() < value.len() { format!("… ({} bytes)", value.len()) } else { String::new() };
    match std::str::from_utf8(value.strip_suffix(b"\0").unwrap_or(value)) {
        Ok(text) if !text.chars().any(char::is_control) => {
            let shown: String = text.chars().take(SHOWN).collect();
            format!("\"{}\"{more}", escape(shown.as_bytes()))
        }
        _ => format!("0x{}{more}", hex(shown)),
    }
}

/// An access control list in the format of setfacl.
fn acl_text(acl: &Acl) -> String {
    let entry = |entry: &format::acl::AclEntry| {
        let who = match entry.tag {
            Tag::UserObj => "user:".to_owned(),
            Tag::User(id) => format!("user:{id}"),
            Tag::GroupObj => "group:".to_owned(),
            Tag::Group(id) => format!("group:{id}"),
            Tag::Mask => "mask:".to_owned(),
            Tag::Other => "other:".to_owned(),
        };
        let bit = |bit: u16, letter| if entry.perm & bit != 0 { letter } else { '-' };
        format!("{who}:{}{}{}", bit(4, 'r'), bit(2, 'w'), bit(1, 'x'))
    };
    acl.0.iter().map(entry).collect::<Vec<_>>().join(",")
}

fn kind_text(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Regular => "regular file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symbolic link",
        FileKind::CharDevice => "character device",
        FileKind::BlockDevice => "block device",
        FileKind::Fifo => "named pipe",
        FileKind::Socket => "socket",
    }
}
