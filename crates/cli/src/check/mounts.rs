//! Whether a volume is mounted, and how: read from the mount table, so that it can be said before anything is opened.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// How the numbers of loop devices begin, by the kernel's list of devices. Where none is mounted none has to be looked at.
const LOOP: &str = "7:";

/// How a volume is mounted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Mounted {
    /// Where; the first place of several.
    pub(crate) at: String,
    /// It is the root of this system.
    pub(super) root: bool,
    /// Nothing can be written through the mount.
    pub(super) read_only: bool,
}

/// How the volume on `device` is mounted; `None` where it is not, or where nothing can be learnt of it.
pub(crate) fn of(device: &str) -> Option<Mounted> {
    let table = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let path = fs::canonicalize(device).ok()?;
    let metadata = fs::metadata(&path).ok()?;
    let numbers = if metadata.file_type().is_block_device() {
        let number = metadata.rdev();
        vec![format!("{}:{}", rustix::fs::major(number), rustix::fs::minor(number))]
    } else if table.lines().any(|line| line.split(' ').nth(2).is_some_and(|number| number.starts_with(LOOP))) {
        // also FUSE mounts a file through one, where it may
        blockdev::loop_devices(&metadata).into_iter().map(|(_, number)| number).collect()
    } else {
        Vec::new()
    };
    among(&table, &numbers, &path)
}

/// What is mounted on the file system that a folder lies on: a device or a file; `None` where nothing can be learnt of it.
pub(super) fn source(dir: &Path) -> Option<String> {
    let table = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let number = fs::metadata(dir).ok()?.dev();
    let device = format!("{}:{}", rustix::fs::major(number), rustix::fs::minor(number));
    let source = table.lines().find_map(|line| {
        let (mount, below) = line.split_once(" - ")?;
        (mount.split(' ').nth(2)? == device).then_some(())?;
        Some(unescaped(below.split(' ').nth(1)?))
    })?;
    // who mounts a file writes to the file, and a loop device over it keeps what it was read once
    let number = source.strip_prefix("/dev/").filter(|name| name.starts_with("loop"));
    let backing = number.and_then(|name| fs::read_to_string(format!("/sys/block/{name}/loop/backing_file")).ok());
    let backing = backing.map(|file| file.trim_end_matches('\n').to_owned());
    Some(backing.filter(|file| Path::new(file).exists()).unwrap_or(source))
}

/// Looks a device up by its numbers or, as for mounts through FUSE without a block device, by its name. The lines are
/// proc(5)'s: number of the mount and of its parent, of the device, its root, the mount point, options, optional
/// fields, `-`, type, source, options of the superblock.
fn among(table: &str, numbers: &[String], path: &Path) -> Option<Mounted> {
    let mut found: Option<Mounted> = None;
    for line in table.lines() {
        let Some((mount, below)) = line.split_once(" - ") else { continue };
        let mut fields = mount.split(' ').skip(2);
        let (Some(device), Some(at)) = (fields.next(), fields.nth(1)) else { continue };
        let mut below = below.split(' ');
        let (Some(_), Some(source), Some(options)) = (below.next(), below.next(), below.next()) else { continue };
        let same = numbers.iter().any(|number| number == device) || Path::new(&unescaped(source)) == path;
        if same {
            let read_only = options.split(',').any(|option| option == "ro");
            match &mut found {
                Some(found) => {
                    found.root |= at == "/";
                    found.read_only &= read_only;
                }
                None => found = Some(Mounted { at: unescaped(at), root: at == "/", read_only }),
            }
        }
    }
    found
}

/// Spaces and their kin are written as `\040`.
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

    #[test]
    fn mounts_are_found_by_number_and_by_name() {
        let table = "22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 ro,errors=remount-ro\n\
                     30 22 254:1 /a /mnt/a\\040b rw - ext4 /dev/vda1 ro\n\
                     31 22 7:0 / /mnt rw,relatime - ext4 /dev/loop0 rw\n\
                     32 22 0:44 / /fuse rw - fuse.extant /tmp/my\\040volume.img rw,user_id=0\n\
                     odd line\n";
        let mounted = |at: &str, root, read_only| Some(Mounted { at: at.into(), root, read_only });
        let of_number = |number: &str, path| among(table, &[number.to_owned()], path);
        assert_eq!(of_number("254:1", Path::new("/dev/root")), mounted("/", true, true));
        assert_eq!(of_number("7:0", Path::new("/dev/loop0")), mounted("/mnt", false, false));
        assert_eq!(among(table, &[], Path::new("/tmp/my volume.img")), mounted("/fuse", false, false));
        assert_eq!(of_number("7:1", Path::new("/dev/loop1")), None);
    }
}
