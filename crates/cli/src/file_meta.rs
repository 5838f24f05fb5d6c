//! The metadata of a file that `ls`, `tree` and `stat` print in JSON, under the same keys.

use crate::output::{Text, kind_word, utc_time};
use fs::{FileKind, Inode, InodeFlags, Volume};
use serde::Serialize;

/// An inode as JSON; fields that do not apply to the file are omitted.
#[derive(Debug, Serialize)]
pub(crate) struct FileMeta {
    inode: u32,
    kind: &'static str,
    /// Permission bits in octal, as for chmod.
    mode: String,
    uid: u32,
    gid: u32,
    links: u16,
    /// Size in bytes.
    size: u64,
    /// Allocated space, in units of 512 bytes.
    blocks: u64,
    atime: String,
    mtime: String,
    ctime: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    crtime: Option<String>,
    flags: Vec<String>,
    generation: u32,
    project: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    major: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    minor: Option<u32>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    target: Option<Text>,
}

impl FileMeta {
    /// The metadata of an inode. The target of an unreadable link is omitted; the caller reports it.
    pub(crate) fn of(volume: &Volume, inode: &Inode, target: Option<&[u8]>) -> Self {
        let attributes = volume.attributes(inode);
        Self {
            inode: inode.number.get(),
            kind: kind_word(inode.kind),
            mode: format!("{:04o}", attributes.mode & 0o7777),
            uid: attributes.uid,
            gid: attributes.gid,
            links: attributes.links,
            size: attributes.size,
            blocks: attributes.blocks,
            atime: utc_time(attributes.atime),
            mtime: utc_time(attributes.mtime),
            ctime: utc_time(attributes.ctime),
            crtime: attributes.crtime.map(utc_time),
            flags: flag_names(attributes.flags),
            generation: attributes.generation,
            project: attributes.project,
            major: attributes.device.map(|(major, _)| major),
            minor: attributes.device.map(|(_, minor)| minor),
            target: target.map(|target| Text::new("target", target)),
        }
    }
}

/// The names of the flags set; flags without a name are in hexadecimal.
pub(crate) fn flag_names(flags: InodeFlags) -> Vec<String> {
    let mut names: Vec<_> = flags.iter_names().map(|(name, _)| name.to_lowercase()).collect();
    let unknown = flags.bits() & !InodeFlags::all().bits();
    if unknown != 0 {
        names.push(format!("{unknown:#x}"));
    }
    names
}

/// The target of a symbolic link; `None` for other kinds.
///
/// # Errors
/// Fails if the link is damaged.
pub(crate) fn target_of(volume: &Volume, inode: &Inode) -> fs::Result<Option<Vec<u8>>> {
    if inode.kind == FileKind::Symlink { volume.read_link(inode).map(Some) } else { Ok(None) }
}
