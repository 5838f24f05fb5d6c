//! The entry of the mount on a directory in the kernel's list of mounts.

use rustix::fs::{AtFlags, CWD, StatxFlags};
use rustix::mount::MountFlags;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// A line of /proc/self/mountinfo.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountInfo {
    /// The device number, as the kernel encodes it: the major number above 20 bits of the minor.
    pub device: u32,
    /// The file system type.
    pub kind: OsString,
    /// The flags of the mount and of its file system.
    pub flags: MountFlags,
    /// The user who mounted it, for FUSE file systems.
    pub user: Option<u32>,
}

/// The names of flags in the list.
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

/// The fields of a line that determine which mount is where.
struct Line {
    /// The IDs of the mount and of its parent mount.
    number: u32,
    parent: u32,
    point: PathBuf,
    mounted: MountInfo,
}

/// Returns the file system visible on a directory; mounts covered by another mount are not visible.
///
/// # Errors
/// The list of mounts cannot be read.
pub fn mounted_on(dir: &Path) -> io::Result<Option<MountInfo>> {
    Ok(find_from(&std::fs::read("/proc/self/mountinfo")?, dir, root()))
}

/// The mount points at which the file system with this device number is visible.
pub(crate) fn places_of(device: u32) -> io::Result<Vec<PathBuf>> {
    Ok(find_places(&std::fs::read("/proc/self/mountinfo")?, device, root()))
}

/// The ID of the mount that contains this process's root; `None` where the kernel does not report it. Mounts made over
/// that root later are listed, but no path leads into them.
fn root() -> Option<u32> {
    let asked = StatxFlags::MNT_ID;
    let said = rustix::fs::statx(CWD, "/", AtFlags::STATX_DONT_SYNC, asked).ok()?;
    StatxFlags::from_bits_retain(said.stx_mask).contains(asked).then(|| u32::try_from(said.stx_mnt_id).ok())?
}

fn find_places(mounts: &[u8], device: u32, root: Option<u32>) -> Vec<PathBuf> {
    let lines = lines(mounts);
    let of_it = lines.iter().filter(|line| line.mounted.device == device);
    let seen = of_it.filter(|line| top(&lines, &line.point, root).is_some_and(|top| top.number == line.number));
    seen.map(|line| line.point.clone()).collect()
}

/// As [`mounted_on`], for the bytes of a list of mounts.
#[cfg_attr(not(test), allow(dead_code, reason = "the fuzz targets read lists with it"))]
pub(crate) fn find(mounts: &[u8], dir: &Path) -> Option<MountInfo> {
    find_from(mounts, dir, None)
}

fn find_from(mounts: &[u8], dir: &Path, root: Option<u32>) -> Option<MountInfo> {
    let lines = lines(mounts);
    top(&lines, dir, root).map(|line| line.mounted.clone())
}

/// The mount that is visible on a directory: the one that a path walk from the root enters. The order of the list does
/// not determine it, as mounts can be moved.
fn top<'l>(lines: &'l [Line], dir: &Path, root: Option<u32>) -> Option<&'l Line> {
    let mut at: Option<&Line> = root.and_then(|root| lines.iter().find(|line| line.number == root));
    let prefixes: Vec<&Path> = dir.ancestors().collect();
    // a path walk begins in the root mount, not in mounts over it
    let known = usize::from(at.is_some());
    for prefix in prefixes.into_iter().rev().skip(known) {
        let lies_on = |line: &Line| match at {
            Some(below) => line.parent == below.number,
            // the parent mount of the root, or of a process whose root is not a mount point, is not listed
            None => line.parent == line.number || !lines.iter().any(|other| other.number == line.parent),
        };
        let mut next = lines.iter().find(|line| line.point == prefix && lies_on(line));
        // follows mounts on the root of other mounts; at most as many steps as there are mounts
        for _ in 0..lines.len() {
            let Some(here) = next else { break };
            at = Some(here);
            let lies_here = |line: &&Line| line.parent == here.number && line.number != here.number;
            next = lines.iter().filter(|line| line.point == prefix).find(lies_here);
        }
    }
    at.filter(|line| line.point == dir)
}

/// Parses the lines. proc(5): fields 1 and 2 are the IDs of the mount and of its parent, field 3 is the device number,
/// field 5 the mount point, and field 6 has the flags of the mount. After a lone "-", field 1 is the type and field 3
/// has the options of the file system.
fn lines(mounts: &[u8]) -> Vec<Line> {
    let read = |line: &[u8]| {
        let mut fields = line.split(|&byte| byte == b' ');
        let mut number = || std::str::from_utf8(fields.next()?).ok()?.parse().ok();
        let (number, parent) = (number()?, number()?);
        let device = device(fields.next()?)?;
        let point = PathBuf::from(unescape(fields.nth(1)?));
        let of_mount = fields.next()?;
        let mut below = fields.skip_while(|field| *field != b"-").skip(1);
        let (kind, _source, of_system) = (below.next()?, below.next(), below.next().unwrap_or_default());
        let words = || [of_mount, of_system].into_iter().flat_map(|list| list.split(|&byte| byte == b','));
        let mut flags = MountFlags::empty();
        for (word, flag) in WORDS {
            flags.set(flag, words().any(|w| w == word.as_bytes()));
        }
        let user = words().find_map(|word| std::str::from_utf8(word.strip_prefix(b"user_id=")?).ok()?.parse().ok());
        Some(Line { number, parent, point, mounted: MountInfo { device, kind: unescape(kind), flags, user } })
    };
    mounts.split(|&byte| byte == b'\n').filter_map(read).collect()
}

/// Parses `major:minor`.
fn device(field: &[u8]) -> Option<u32> {
    let (major, minor) = std::str::from_utf8(field).ok()?.split_once(':')?;
    Some(major.parse::<u32>().ok()? << 20 | minor.parse::<u32>().ok()?)
}

/// proc(5): spaces and other separators are escaped as in `\040`.
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

    fn line(number: u32, parent: u32, device: u32, point: &str, kind: &str) -> String {
        format!("{number} {parent} 0:{device} / {point} rw,relatime shared:1 - {kind} source rw\n")
    }

    #[test]
    fn the_mount_that_is_seen_is_found() {
        let mounts = "20 1 8:1 / / rw - ext4 /dev/root rw\n\
            22 20 0:20 / /mnt/a\\040b rw - ext4 /dev/vda rw\n\
            23 22 0:21 / /mnt/a\\040b rw,nosuid,relatime shared:5 master:1 - fuse.extant disk\\134x ro,sync,user_id=1000,group_id=0\n\
            24 20 7:22 / /mnt/other rw,noatime - tmpfs tmpfs rw\n";
        let found = find(mounts.as_bytes(), Path::new("/mnt/a b")).expect("it is mounted");
        let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::RELATIME | MountFlags::SYNCHRONOUS;
        assert_eq!(found, MountInfo { device: 21, kind: "fuse.extant".into(), flags, user: Some(1000) });
        let other = find(mounts.as_bytes(), Path::new("/mnt/other")).expect("it is mounted");
        assert_eq!(other.device, 7 << 20 | 22);
        assert_eq!((other.kind.to_str(), other.flags, other.user), (Some("tmpfs"), MountFlags::NOATIME, None));
        assert_eq!(find(mounts.as_bytes(), Path::new("/mnt")), None);
    }

    #[test]
    fn mounts_that_were_moved_lie_where_they_were_moved_to() {
        let root = line(20, 1, 1, "/", "ext4");
        let seen = |more: &[String], dir: &str| {
            let mounts = format!("{root}{}", more.concat());
            find(mounts.as_bytes(), Path::new(dir)).map(|mounted| mounted.device)
        };
        // an older mount was moved over a newer one
        let over = [line(42, 43, 5, "/m", "tmpfs"), line(43, 20, 6, "/m", "fuse.extant")];
        assert_eq!(seen(&over, "/m"), Some(5));
        assert_eq!(find_places(format!("{root}{}", over.concat()).as_bytes(), 6, None), Vec::<PathBuf>::new());
        // another mount covers the parent folder, and contains a folder of the same name
        let above = [line(30, 20, 6, "/p/m", "fuse.extant"), line(31, 20, 5, "/p", "tmpfs")];
        assert_eq!((seen(&above, "/p/m"), seen(&above, "/p")), (None, Some(5)));
        let both = [above[0].clone(), above[1].clone(), line(32, 31, 7, "/p/m", "xfs")];
        assert_eq!(seen(&both, "/p/m"), Some(7));
        // the process's root is a folder of a mount that is not listed
        let lone = line(50, 49, 8, "/m", "fuse.extant") + &line(51, 50, 9, "/m/n", "tmpfs");
        assert_eq!(find(lone.as_bytes(), Path::new("/m/n")).map(|mounted| mounted.device), Some(9));
        assert_eq!(find_places(lone.as_bytes(), 8, None), [Path::new("/m")]);
        // a mount over the root of a process is not visible to it
        let covered = format!("{root}{}{}", line(21, 20, 9, "/", "tmpfs"), line(30, 20, 6, "/m", "fuse.extant"));
        assert_eq!(find_places(covered.as_bytes(), 6, Some(20)), [Path::new("/m")]);
        assert_eq!(find_from(covered.as_bytes(), Path::new("/"), Some(20)).map(|mounted| mounted.device), Some(1));
        assert_eq!(find_places(covered.as_bytes(), 6, None), Vec::<PathBuf>::new());
        // a loop in the list terminates
        let circle = line(60, 61, 1, "/", "a") + &line(61, 60, 2, "/", "b") + &line(62, 62, 3, "/", "c");
        assert!(find(circle.as_bytes(), Path::new("/")).is_some());
    }
}
