//! Changing the flags of a mounted volume.
//!
//! A remount sets all flags anew, so the unchanged ones must be passed again: a mount that lost nosuid and nodev would
//! run the set-user-id programs of the user who created its volume.

use crate::ops::ACCESS;
use crate::options::{MountOptions, is_ignored, split_options};
use crate::{Error, Result};
use fuse_wire::{MountInfo, SYNC_ONCE, is_ours, mounted_on, read_sync, resolve};
use rustix::io::Errno;
use rustix::mount::MountFlags;
use std::ffi::OsStr;
use std::io;
use std::path::Path;

/// The option names and their effect on the flags: each sets one or clears it.
const CHANGES: [(&str, MountFlags, bool); 10] = [
    ("ro", MountFlags::RDONLY, true),
    ("rw", MountFlags::RDONLY, false),
    ("nosuid", MountFlags::NOSUID, true),
    ("suid", MountFlags::NOSUID, false),
    ("nodev", MountFlags::NODEV, true),
    ("dev", MountFlags::NODEV, false),
    ("noexec", MountFlags::NOEXEC, true),
    ("exec", MountFlags::NOEXEC, false),
    ("nosymfollow", MountFlags::NOSYMFOLLOW, true),
    ("symfollow", MountFlags::NOSYMFOLLOW, false),
];

/// The options that the server process also applies, and cannot change.
const FIXED: [(&str, MountFlags, bool); 6] = [
    ("sync", MountFlags::SYNCHRONOUS, true),
    ("async", MountFlags::SYNCHRONOUS, false),
    ("dirsync", MountFlags::DIRSYNC, true),
    ("noatime", MountFlags::NOATIME, true),
    ("atime", MountFlags::NOATIME, false),
    ("relatime", MountFlags::RELATIME, true),
];

/// Changes the flags of a mounted volume, as mount(8) does with `remount`: those that the lists name (`ro`, `rw`,
/// `nodev`, `nosuid`, `noexec`, `nosymfollow` and their opposites), and no others. The server process is unchanged, so
/// a volume that it opened read-only remains read-only. Options that it applies itself cannot be changed: they are an
/// error, or ignored where mount(8) `repeats` the line of fstab.
///
/// # Errors
/// [`Error::Option`] for an option that is unknown or cannot be changed; [`Error::Mount`]: no Extant volume is mounted
/// there, it was mounted read-only and `rw` is requested, or it is the mount of a user other than root and `suid` or
/// `dev` is requested. [`Error::Remount`]: it is read-only now, but some of the written data did not reach the device.
pub fn remount<S: AsRef<str>>(dir: &Path, lists: &[S], repeats: bool) -> Result<()> {
    MountOptions::parse(lists)?;
    let on_dir = |source| Error::Mount { dir: dir.to_owned(), source };
    let place = resolve(dir).map_err(on_dir)?;
    is_ours(&place).map_err(on_dir)?;
    let Some(mounted) = mounted_on(&place).map_err(on_dir)? else {
        return Err(on_dir(io::Error::new(io::ErrorKind::NotFound, "nothing is mounted there")));
    };
    let flags = changed(lists, &mounted, repeats)?;
    let becomes_writable = mounted.flags.contains(MountFlags::RDONLY) && !flags.contains(MountFlags::RDONLY);
    if becomes_writable && !is_open_for_writing(&place).map_err(on_dir)? {
        let why = "it was mounted read-only; unmount it, and mount it again";
        return Err(on_dir(io::Error::new(io::ErrorKind::ReadOnlyFilesystem, why)));
    }
    rustix::mount::mount_remount(&place, flags, "").map_err(|e| on_dir(e.into()))?;
    // all written data is durable after this, as with any file system; for a mount without a device the kernel does not
    // request that
    let synced = match flags.contains(MountFlags::RDONLY) {
        true => read_sync(&place, SYNC_ONCE),
        false => Ok(()),
    };
    match synced {
        // another user's mount, which root may remount but not access
        Err(e) if Errno::from_io_error(&e) == Some(Errno::ACCESS) => Ok(()),
        outcome => outcome.map_err(|why| Error::Remount { dir: dir.to_owned(), why }),
    }
}

fn is_open_for_writing(dir: &Path) -> io::Result<bool> {
    let mut mode = [0; 8];
    let length = rustix::fs::getxattr(dir, OsStr::new(ACCESS), &mut mode[..])?;
    Ok(mode.get(..length) == Some(b"rw".as_slice()))
}

/// The new flags of a mount.
fn changed<S: AsRef<str>>(lists: &[S], mounted: &MountInfo, repeats: bool) -> Result<MountFlags> {
    let mut flags = mounted.flags;
    for word in split_options(lists).iter().map(String::as_str) {
        if let Some((_, flag, set)) = CHANGES.iter().find(|row| row.0 == word) {
            flags.set(*flag, *set);
            continue;
        }
        let is_unchanged = match FIXED.iter().find(|row| row.0 == word) {
            Some((_, flag, set)) => mounted.flags.contains(*flag) == *set,
            None => repeats || is_ignored(word),
        };
        if !is_unchanged && word != "remount" {
            return Err(Error::Option(format!(
                "`{word}` cannot be changed while the volume is mounted: unmount it first"
            )));
        }
    }
    let safe = MountFlags::NOSUID | MountFlags::NODEV;
    let lost = mounted.flags & (safe - flags);
    match mounted.user {
        Some(user) if user != 0 && !lost.is_empty() => Err(Error::Option(format!(
            "`suid` and `dev` are refused: the volume was mounted by user {user}, who is not root"
        ))),
        _ => Ok(with_access_times(flags)),
    }
}

/// Adds `STRICTATIME` where no other flag of access times is set: the list of mounts has no name for it.
fn with_access_times(flags: MountFlags) -> MountFlags {
    if flags.intersects(MountFlags::NOATIME | MountFlags::RELATIME) { flags } else { flags | MountFlags::STRICTATIME }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mounted(flags: MountFlags, user: u32) -> MountInfo {
        MountInfo { device: 0, kind: "fuse.extant".into(), flags, user: Some(user) }
    }

    #[test]
    fn only_what_is_named_changes() {
        let careful = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        for times in [MountFlags::RELATIME, MountFlags::NOATIME, MountFlags::RELATIME | MountFlags::NODIRATIME] {
            for more in [MountFlags::empty(), careful, careful | MountFlags::SYNCHRONOUS, MountFlags::NOSYMFOLLOW] {
                let before = mounted(times | more, 1000);
                let frozen = changed(&["remount,ro"], &before, false).expect("a change");
                assert_eq!(frozen, before.flags | MountFlags::RDONLY);
                let again = mounted(frozen, 1000);
                assert_eq!(changed(&["remount,rw"], &again, false).expect("a change"), before.flags);
                assert_eq!(changed(&["remount"], &again, false).expect("no change"), frozen);
            }
        }
        let strict = changed(&["remount,ro"], &mounted(MountFlags::empty(), 0), false).expect("a change");
        assert_eq!(strict, MountFlags::RDONLY | MountFlags::STRICTATIME);
    }

    #[test]
    fn what_others_may_do_through_a_users_mount_stays_forbidden() {
        let before = mounted(MountFlags::NOSUID | MountFlags::NODEV | MountFlags::RELATIME, 1000);
        for list in ["remount,suid", "remount,dev", "remount,ro,dev,suid"] {
            for repeats in [false, true] {
                let said = changed(&[list], &before, repeats).expect_err(list).to_string();
                assert!(said.contains("mounted by user 1000"), "{said}");
            }
        }
        let of_root = MountInfo { user: Some(0), ..before };
        assert_eq!(changed(&["remount,suid,dev"], &of_root, false).expect("root's own"), MountFlags::RELATIME);
    }

    #[test]
    fn what_the_server_does_cannot_be_changed() {
        let before = mounted(MountFlags::RELATIME, 0);
        for list in
            ["remount,sync", "remount,dirsync", "remount,noatime", "consistency=none,remount", "remount,commit=9"]
        {
            let said = changed(&[list], &before, false).expect_err(list).to_string();
            assert!(said.contains("while the volume is mounted"), "{said}");
        }
        // mount(8) repeats the line of fstab, but a guarantee that is not met is refused
        assert!(changed(&["rw,remount,commit=9,consistency=none,allow_other,user_id=0"], &before, true).is_ok());
        assert!(changed(&["rw,remount,sync"], &before, true).is_err());
        assert!(changed(&["rw,remount,async,nofail,x-a"], &before, false).is_ok());
    }
}
