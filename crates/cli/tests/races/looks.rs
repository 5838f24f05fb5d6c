//! The visible state of files: the results of stat(2) that the tests can predict, and the content that the server has.

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, StatxFlags, statx};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;

/// Alignment in bytes that O_DIRECT requires for addresses and lengths.
const ALIGNED: usize = 4096;

/// Files below a folder, by name.
pub(crate) type Tree = BTreeMap<String, Seen>;

/// A file, a folder (without content) or a symbolic link (with its target).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) inode: u64,
    pub(crate) mode: u32,
    pub(crate) links: u32,
    pub(crate) modified: (i64, u32),
    pub(crate) content: Vec<u8>,
}

/// The file at a path, read from the server, not from the kernel's attribute cache.
pub(crate) fn one(path: &Path) -> io::Result<Seen> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_FORCE_SYNC;
    let stat = statx(CWD, path, flags, StatxFlags::BASIC_STATS)?;
    let mode = u32::from(stat.stx_mode);
    let (links, content) = match FileType::from_raw_mode(mode) {
        FileType::RegularFile => (stat.stx_nlink, std::fs::read(path)?),
        FileType::Symlink => (stat.stx_nlink, std::fs::read_link(path)?.into_os_string().into_encoded_bytes()),
        _ => (0, Vec::new()),
    };
    let modified = (stat.stx_mtime.tv_sec, stat.stx_mtime.tv_nsec);
    Ok(Seen { inode: stat.stx_ino, mode, links, modified, content })
}

/// Everything below a folder.
pub(crate) fn all(folder: &Path) -> io::Result<Tree> {
    fn add(folder: &Path, above: &str, tree: &mut Tree) -> io::Result<()> {
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            let name = format!("{above}{}", entry.file_name().to_string_lossy());
            let seen = one(&entry.path())?;
            if FileType::from_raw_mode(seen.mode) == FileType::Directory {
                add(&entry.path(), &format!("{name}/"), tree)?;
            }
            tree.insert(name, seen);
        }
        Ok(())
    }
    let mut tree = Tree::new();
    add(folder, "", &mut tree)?;
    Ok(tree)
}

/// The differences of a file from the expected state.
pub(crate) fn difference(expected: &Seen, seen: &Seen) -> Option<String> {
    if expected == seen {
        return None;
    }
    let mut text = String::new();
    let mut add = |what: &str, a: String, b: String| {
        if a != b {
            text += &format!("{what} is {b}, should be {a}; ");
        }
    };
    add("inode", expected.inode.to_string(), seen.inode.to_string());
    add("mode", format!("{:o}", expected.mode), format!("{:o}", seen.mode));
    add("number of links", expected.links.to_string(), seen.links.to_string());
    add("time", format!("{:?}", expected.modified), format!("{:?}", seen.modified));
    if let Some(difference) = bytes(&expected.content, &seen.content) {
        text += &difference;
    }
    Some(text)
}

/// The first difference of two trees.
pub(crate) fn differences(expected: &Tree, seen: &Tree) -> Option<String> {
    for (name, one) in expected {
        match seen.get(name) {
            None => return Some(format!("{name} is not there")),
            Some(other) => {
                if let Some(difference) = difference(one, other) {
                    return Some(format!("{name}: {difference}"));
                }
            }
        }
    }
    seen.keys().find(|name| !expected.contains_key(*name)).map(|name| format!("{name} must not exist"))
}

/// The first difference of two contents, with an excerpt.
pub(crate) fn bytes(expected: &[u8], seen: &[u8]) -> Option<String> {
    if expected == seen {
        return None;
    }
    let at = expected.iter().zip(seen).take_while(|(a, b)| a == b).count();
    let show = |bytes: &[u8]| {
        let from = at.min(bytes.len());
        String::from_utf8_lossy(&bytes[from..bytes.len().min(from + 48)]).escape_debug().to_string()
    };
    let zeros = seen.iter().skip(at).take_while(|byte| **byte == 0).count();
    Some(format!(
        "{} bytes, should be {}; at {at} is \"{}\" ({zeros} zero bytes), should be \"{}\"",
        seen.len(),
        expected.len(),
        show(seen),
        show(expected)
    ))
}

/// Reads from a descriptor opened with [`open_direct`], bypassing the kernel's page cache.
pub(crate) fn read_direct(file: &std::fs::File, offset: u64, length: usize) -> io::Result<Vec<u8>> {
    let mut buf = vec![0; length + ALIGNED];
    let from = buf.as_ptr().align_offset(ALIGNED);
    let part = &mut buf[from..from + length];
    let read = rustix::io::pread(file, &mut *part, offset)?;
    Ok(part[..read].to_vec())
}

/// Opens a file so that reads bypass the page cache.
pub(crate) fn open_direct(path: &Path) -> io::Result<std::fs::File> {
    Ok(rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC, Mode::empty())?.into())
}

/// The content of a small file, read from the server.
pub(crate) fn content_direct(path: &Path) -> io::Result<Vec<u8>> {
    read_direct(&open_direct(path)?, 0, 64 << 10)
}

pub(crate) fn is_mounted(dir: &Path) -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    mounts.lines().any(|line| line.split(' ').nth(1) == dir.to_str())
}

/// `tag` repeated up to a length.
pub(crate) fn fill(tag: &str, length: usize) -> Vec<u8> {
    tag.bytes().cycle().take(length).collect()
}
