//! What the kernel's list of mounts says of the one on a directory.

use rustix::mount::MountFlags;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// A line of /proc/self/mountinfo.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mounted {
    /// The number of the device that the kernel gave it, as the kernel has it: the major number above 20 bits of the minor.
    pub(crate) device: u32,
    /// The file system's type.
    pub(crate) kind: OsString,
    /// The flags of the mount and of the file system below it.
    pub(crate) flags: MountFlags,
    /// The user who mounted it, of a FUSE file system.
    pub(crate) user: Option<u32>,
}

/// The words that the list has for flags.
const WORDS: [(&str, MountFlags); 10] = [
    ("ro", MountFlags::RDONLY),
    ("nosuid", MountFlags::NOSUID),
    ("nodev", MountFlags::NODEV),
    ("noexec", MountFlags::NOEXEC),
    ("noatime", MountFlags::NOATIME),
    ("nodiratime", MountFlags::NODIRATIME),
    ("relatime", MountFlags::RELATIME),
    ("nosymfollow", MountFlags::NOSYMFOLLOW),
    ("sync", MountFlags::SYNCHRONOUS),
    ("dirsync", MountFlags::DIRSYNC),
];

/// The file system mounted last on a directory.
pub(crate) fn mounted_on(dir: &Path) -> io::Result<Option<Mounted>> {
    Ok(find(&std::fs::read("/proc/self/mountinfo")?, dir))
}

/// Where the file system with this number is mounted and nothing lies over it.
pub(crate) fn places_of(device: u32) -> io::Result<Vec<PathBuf>> {
    let mounts = std::fs::read("/proc/self/mountinfo")?;
    let place = |line: &[u8]| line.split(|&byte| byte == b' ').nth(4).map(|field| PathBuf::from(unescape(field)));
    let places = mounts.split(|&byte| byte == b'\n').filter_map(place);
    Ok(places.filter(|place| find(&mounts, place).is_some_and(|mounted| mounted.device == device)).collect())
}

/// proc(5): the third field is the device's number, the fifth the mount point, the sixth has the flags of the mount; the first
/// after a lone "-" is the type, the third the options of the file system.
pub(crate) fn find(mounts: &[u8], dir: &Path) -> Option<Mounted> {
    let read = |line: &[u8]| {
        let mut fields = line.split(|&byte| byte == b' ');
        let device = device(fields.nth(2)?)?;
        let mounted_on = unescape(fields.nth(1)?);
        let of_mount = fields.next()?;
        let mut below = fields.skip_while(|field| *field != b"-").skip(1);
        let (kind, _source, of_system) = (below.next()?, below.next(), below.next().unwrap_or_default());
        if mounted_on != dir.as_os_str() {
            return None;
        }
        let words = || [of_mount, of_system].into_iter().flat_map(|list| list.split(|&byte| byte == b','));
        let mut flags = MountFlags::empty();
        for (word, flag) in WORDS {
            flags.set(flag, words().any(|w| w == word.as_bytes()));
        }
        let user = words().find_map(|word| std::str::from_utf8(word.strip_prefix(b"user_id=")?).ok()?.parse().ok());
        Some(Mounted { device, kind: unescape(kind), flags, user })
    };
    mounts.split(|&byte| byte == b'\n').filter_map(read).next_back()
}

/// `major:minor`.
fn device(field: &[u8]) -> Option<u32> {
    let (major, minor) = std::str::from_utf8(field).ok()?.split_once(':')?;
    Some(major.parse::<u32>().ok()? << 20 | minor.parse::<u32>().ok()?)
}

/// proc(5): spaces and other bytes that would part fields are written as `\040`.
fn unescape(field: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(field.len());
    let mut at = 0;
    while let Some(&byte) = field.get(at) {
        let digits = field.get(at + 1..at + 4).filter(|digits| digits.iter().all(|d| matches!(d, b'0'..=b'7')));
        match digits {
            Some(digits) if byte == b'\\' => {
                bytes.push(digits.iter().fold(0u8, |n, digit| (n << 3) | (digit - b'0')));
                at += 4;
            }
            _ => {
                bytes.push(byte);
                at += 1;
            }
        }
    }
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_mount_on_a_directory_is_found() {
        let mounts = b"22 28 0:20 / /mnt/a\\040b rw - ext4 /dev/vda rw\n\
            23 28 0:21 / /mnt/a\\040b rw,nosuid,relatime shared:5 master:1 - fuse.extant disk\\134x ro,sync,user_id=1000,group_id=0\n\
            24 28 7:22 / /mnt/other rw,noatime - tmpfs tmpfs rw\n";
        let found = find(mounts, Path::new("/mnt/a b")).expect("it is mounted");
        let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::RELATIME | MountFlags::SYNCHRONOUS;
        assert_eq!(found, Mounted { device: 21, kind: "fuse.extant".into(), flags, user: Some(1000) });
        let other = find(mounts, Path::new("/mnt/other")).expect("it is mounted");
        assert_eq!(other.device, 7 << 20 | 22);
        assert_eq!((other.kind.to_str(), other.flags, other.user), (Some("tmpfs"), MountFlags::NOATIME, None));
        assert_eq!(find(mounts, Path::new("/mnt")), None);
    }
}
