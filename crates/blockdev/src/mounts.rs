//! Mounts of a volume: read from the mount table, and for mounts of other mount namespaces from the reports of the
//! kernel's ext4.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::stack::{self, Device, Layer, System, numbers};

/// The file system type of Extant's mounts without a block device. Their sources are the absolute paths of volumes, or
/// names chosen by users.
const FUSE_TYPE: &str = "fuse.extant";
/// The type of those on a block device, a loop device created for the mount.
const FUSEBLK_TYPE: &str = "fuseblk.extant";

/// The mount of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mounted {
    /// The mount point; the first of several. `None` for a mount in another mount namespace.
    pub at: Option<PathBuf>,
    /// It is the root of this system.
    pub root: bool,
    /// The mount is read-only.
    pub read_only: bool,
    /// Extant serves it, or did: the volume is locked for as long as it does.
    pub ours: bool,
}

impl Mounted {
    /// The mount point, as a phrase at the end of a sentence: `at /mnt`.
    #[must_use]
    pub fn place(&self) -> String {
        match &self.at {
            Some(at) => format!("at {}", at.display()),
            None => "in another mount namespace".to_owned(),
        }
    }

    fn and(self, other: Self) -> Self {
        Self {
            at: self.at.or(other.at),
            root: self.root || other.root,
            read_only: self.read_only && other.read_only,
            ours: self.ours && other.ours,
        }
    }
}

/// The mount of the volume in a file or on a block device, also through another device with the same bytes: a loop
/// device, a partition, a mapping. `None` if it is not mounted, or if that cannot be determined.
#[must_use]
pub fn mounted(device: impl AsRef<Path>) -> Option<Mounted> {
    let path = fs::canonicalize(device).ok()?;
    let metadata = fs::metadata(&path).ok()?;
    let system = System::new();
    // the length of a block device does not matter here: all of it is included
    let len = if metadata.is_file() { metadata.len() } else { u64::MAX };
    let layers = system.layers(&metadata, len);
    let mut devices = system.others(&layers);
    devices.extend(system.devices(&layers));
    through(&layers, &devices, Some(&path))
}

/// The mount of any of these layers and devices, or of the file at the path.
pub(crate) fn through(layers: &[Layer], devices: &[Device], path: Option<&Path>) -> Option<Mounted> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    // a relative one is a name that the user chose (fsname=), whatever file has that name in the current directory; the
    // lock of the process that serves still refuses writers
    let is_ours = |source: &Path| {
        let found = source.is_absolute().then(|| fs::metadata(source).ok()).flatten();
        found.is_some_and(|found| layers.iter().any(|layer| stack::is_at(layer.base, &found)))
    };
    let here = among(&table, devices, |kind, source| Some(source) == path || kind == FUSE_TYPE && is_ours(source));
    let elsewhere = devices.iter().filter_map(by_ext4);
    here.into_iter().chain(elsewhere).reduce(Mounted::and)
}

/// The source of the mount that contains a folder: a device or a file, or the name that the user chose for it; `None`
/// if that cannot be determined.
#[must_use]
pub fn mount_source(dir: &Path) -> Option<PathBuf> {
    let table = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let device = numbers(fs::metadata(dir).ok()?.dev());
    let source = table.lines().find_map(|line| {
        let (mount, below) = line.split_once(" - ")?;
        (mount.split(' ').nth(2)? == device).then_some(())?;
        Some(unescaped(below.split(' ').nth(1)?))
    })?;
    // a process that mounts a file writes to the file, and a loop device over it caches earlier reads
    Some(behind_loop(&source).unwrap_or_else(|| source.into()))
}

/// The sources of the volume that Extant serves on a mount point, the uppermost of several: the one in the list of
/// mounts, and, if that is a loop device, its file. Empty if no volume is mounted there.
#[must_use]
pub fn sources_at(place: &Path) -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let Some(source) = source_at(&table, place) else { return Vec::new() };
    let file = behind_loop(&source);
    [PathBuf::from(source)].into_iter().chain(file).collect()
}

fn source_at(table: &str, place: &Path) -> Option<String> {
    let row = |line: &str| {
        let (mount, below) = line.split_once(" - ")?;
        let at = unescaped(mount.split(' ').nth(4)?);
        let mut below = below.split(' ');
        let (kind, source) = (below.next()?, below.next()?);
        (Path::new(&at) == place).then(|| matches!(kind, FUSE_TYPE | FUSEBLK_TYPE).then(|| unescaped(source)))
    };
    table.lines().filter_map(row).next_back()?
}

/// The file of a loop device, if it exists.
fn behind_loop(source: &str) -> Option<PathBuf> {
    let name = source.strip_prefix("/dev/").filter(|name| name.starts_with("loop"))?;
    let file = fs::read_to_string(format!("/sys/block/{name}/loop/backing_file")).ok()?;
    Some(PathBuf::from(file.trim_end_matches('\n'))).filter(|file| file.exists())
}

/// The mount of a device by the kernel's ext4, as reported by that, in any namespace.
fn by_ext4(device: &Device) -> Option<Mounted> {
    let options = fs::read_to_string(format!("/proc/fs/ext4/{}/options", device.name)).ok()?;
    Some(Mounted { at: None, root: false, read_only: options.lines().next() == Some("ro"), ours: false })
}

/// Looks devices up by their numbers or, for mounts through FUSE without a block device, by the result of `by_source`
/// for the mount's type and source. The lines have the format of proc(5): number of the mount and of its parent, of the
/// device, its root, the mount point, options, optional fields, `-`, type, source, options of the superblock.
fn among(table: &str, devices: &[Device], by_source: impl Fn(&str, &Path) -> bool) -> Option<Mounted> {
    let numbers: Vec<_> = devices.iter().map(Device::numbers).collect();
    let row = |line: &str| {
        let (mount, below) = line.split_once(" - ")?;
        let mut fields = mount.split(' ').skip(2);
        let (device, at) = (fields.next()?, fields.nth(1)?);
        let mut below = below.split(' ');
        let (kind, source, options) = (below.next()?, below.next()?, below.next()?);
        let same = numbers.iter().any(|number| number == device) || by_source(kind, Path::new(&unescaped(source)));
        let read_only = options.split(',').any(|option| option == "ro");
        let ours = matches!(kind, FUSE_TYPE | FUSEBLK_TYPE);
        same.then(|| Mounted { at: Some(unescaped(at).into()), root: at == "/", read_only, ours })
    };
    table.lines().filter_map(row).reduce(Mounted::and)
}

/// Decodes spaces and similar characters, which are written as `\040`.
fn unescaped(word: &str) -> String {
    let mut out = Vec::new();
    let mut rest = word.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let octal = after.get(..3).filter(|_| byte == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(letter) => {
                out.push(letter);
                rest = after.get(3..).unwrap_or_default();
            }
            None => {
                out.push(byte);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::makedev;

    #[test]
    fn mounts_are_found_by_number_and_by_name() {
        let table = "22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 ro,errors=remount-ro\n\
                     30 22 254:1 /a /mnt/a\\040b rw - ext4 /dev/vda1 ro\n\
                     31 22 7:0 / /mnt rw,relatime - ext4 /dev/loop0 rw\n\
                     32 22 0:44 / /fuse rw - fuse.extant /tmp/my\\040volume.img rw,user_id=0\n\
                     odd line\n";
        let is =
            |at: &str, root, read_only| Some(Mounted { at: Some(at.into()), root, read_only, ours: at == "/fuse" });
        let of_number = |major, minor| {
            let device =
                Device { name: String::new(), number: makedev(major, minor), has_partitions: false, same_start: true };
            among(table, &[device], |_, _| false)
        };
        assert_eq!(of_number(254, 1), is("/", true, true));
        assert_eq!(of_number(7, 0), is("/mnt", false, false));
        assert_eq!(of_number(7, 1), None);
        let named = among(table, &[], |kind, source| kind == FUSE_TYPE && source == Path::new("/tmp/my volume.img"));
        assert_eq!(named, is("/fuse", false, false));
        let source = |place| source_at(table, Path::new(place));
        assert_eq!(source("/fuse").as_deref(), Some("/tmp/my volume.img"));
        assert_eq!((source("/mnt"), source("/none")), (None, None));
        let above = format!("{table}33 32 0:45 / /fuse rw - tmpfs none rw\n");
        assert_eq!(source_at(&above, Path::new("/fuse")), None);
    }

    #[test]
    fn mounted_for_writing_anywhere_is_mounted_for_writing() {
        let elsewhere = Mounted { at: None, root: false, read_only: false, ours: false };
        let here = Mounted { at: Some("/mnt".into()), root: false, read_only: true, ours: false };
        assert_eq!(elsewhere.place(), "in another mount namespace");
        let both = elsewhere.and(here);
        assert_eq!((both.place().as_str(), both.read_only), ("at /mnt", false));
    }
}
