//! The snapshots of a mounted volume, accessed through its mount.

use super::{DIRECTORY, INFO, LIST, ROLLBACK};
use fs::SnapshotInfo;
use fuse_wire::DAEMON;
use rustix::fs::{XattrFlags, getxattr, setxattr};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The maximum length of an attribute's value: a number in decimal.
const LONGEST: usize = 32;
/// The maximum length of a snapshot's name, in bytes.
const LONGEST_NAME: usize = 128;

/// The snapshots of a mounted native volume.
#[derive(Debug)]
pub struct MountedSnapshots {
    /// The folder `.extant/snapshots`.
    folder: PathBuf,
}

impl MountedSnapshots {
    /// Opens the snapshots of the volume that contains `dir`.
    ///
    /// # Errors
    /// `InvalidInput` where that is not an Extant volume, or not native; `PermissionDenied` to a user who may not
    /// access its snapshots; errors of the system.
    pub fn of(dir: &Path) -> io::Result<Self> {
        let dir = dir.canonicalize()?;
        let device = dir.metadata()?.dev();
        let same = |dir: &&Path| dir.metadata().is_ok_and(|metadata| metadata.dev() == device);
        let root = dir.ancestors().take_while(same).last().unwrap_or(&dir).to_owned();
        let wrong = |why| io::Error::new(io::ErrorKind::InvalidInput, why);
        if text(&root, DAEMON).is_err() {
            let why = "it is not on a volume mounted by `extant mount`: snapshots need a native volume (`extant mkfs -t extant`)";
            return Err(wrong(why));
        }
        let folder = root.join(OsStr::from_bytes(DIRECTORY)).join(OsStr::from_bytes(LIST));
        if folder.metadata().is_err_and(|e| e.kind() == io::ErrorKind::PermissionDenied) {
            let why = "only root and the user who mounted it may access its snapshots (mount option snapdir)";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        if !folder.is_dir() {
            let why = "snapshots need a mounted native volume (`extant mkfs -t extant`), not mounted with -o snapshot=";
            return Err(wrong(why));
        }
        Ok(Self { folder })
    }

    fn of_name(&self, name: &[u8]) -> PathBuf {
        self.folder.join(OsStr::from_bytes(name))
    }

    /// Lists the snapshots, oldest first, each with its unique space in bytes if `space`, which only root and the
    /// mount's owner get.
    ///
    /// # Errors
    /// Errors of the volume.
    pub fn list(&self, space: bool) -> io::Result<Vec<(SnapshotInfo, Option<u64>)>> {
        let mut all = Vec::new();
        for entry in self.folder.read_dir()? {
            let name = entry?.file_name().as_bytes().to_vec();
            let number = |which: usize| {
                let value = text(&self.of_name(&name), INFO[which])?;
                value.parse::<i64>().map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
            };
            let (generation, time) = (number(0)?.cast_unsigned(), number(1)?);
            let alone = match space.then(|| number(2)).transpose() {
                Err(e) if e.kind() == io::ErrorKind::PermissionDenied => None,
                alone => alone?.map(i64::cast_unsigned),
            };
            all.push((SnapshotInfo { name: name.clone(), generation, time }, alone));
        }
        all.sort_by_key(|(info, _)| info.generation);
        Ok(all)
    }

    /// The snapshot to which the volume is rolled back at unmount; `None` for none.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn scheduled_rollback(&self) -> io::Result<Option<Vec<u8>>> {
        let mut name = [0; LONGEST_NAME];
        match getxattr(&self.folder, ROLLBACK, &mut name[..]) {
            Ok(length) => Ok(name.get(..length).map(<[u8]>::to_vec)),
            Err(Errno::NODATA) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Takes a snapshot.
    ///
    /// # Errors
    /// `AlreadyExists`, `InvalidInput` for an invalid name, `PermissionDenied` to a user who is neither root nor the
    /// mount's owner, `StorageFull`, `ReadOnlyFilesystem`, and others of the volume.
    pub fn create(&self, name: &[u8]) -> io::Result<()> {
        check_name(name)?;
        std::fs::create_dir(self.of_name(name)).map_err(with_reason)
    }

    /// Deletes a snapshot.
    ///
    /// # Errors
    /// `NotFound`, and as [`MountedSnapshots::create`].
    pub fn delete(&self, name: &[u8]) -> io::Result<()> {
        check_name(name)?;
        std::fs::remove_dir(self.of_name(name)).map_err(with_reason)
    }

    /// Checks that there is a snapshot of this name, damaged or not.
    ///
    /// # Errors
    /// `NotFound`, and `InvalidInput` for an invalid name.
    pub fn check_exists(&self, name: &[u8]) -> io::Result<()> {
        check_name(name)?;
        match self.of_name(name).symlink_metadata() {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        }
    }

    /// Schedules a rollback to a snapshot at unmount; `None` cancels it.
    ///
    /// # Errors
    /// As [`MountedSnapshots::delete`].
    pub fn rollback(&self, name: Option<&[u8]>) -> io::Result<()> {
        name.map(check_name).transpose()?;
        Ok(setxattr(&self.folder, ROLLBACK, name.unwrap_or_default(), XattrFlags::empty())?)
    }
}

/// Checks that a snapshot can have this name. The kernel would interpret an invalid one as a path, and an empty one as
/// no name.
fn check_name(name: &[u8]) -> io::Result<()> {
    let is_name = (1..=LONGEST_NAME).contains(&name.len())
        && !name.iter().any(|byte| matches!(byte, 0 | b'/'))
        && name != b"."
        && name != b"..";
    let why = "a snapshot's name has 1 to 128 bytes, no slash, and is neither . nor ..";
    if is_name { Ok(()) } else { Err(io::Error::new(io::ErrorKind::InvalidInput, why)) }
}

/// Adds the reason to an error as a sentence: the kernel passes on only its number.
fn with_reason(e: io::Error) -> io::Error {
    match e.kind() {
        io::ErrorKind::InvalidInput => {
            io::Error::new(e.kind(), "snapshots cannot be taken or deleted within a transaction")
        }
        io::ErrorKind::ReadOnlyFilesystem => {
            io::Error::new(e.kind(), "the volume is mounted read-only: snapshots cannot be taken or deleted")
        }
        _ => e,
    }
}

fn text(path: &Path, name: &str) -> io::Result<String> {
    let mut value = [0; LONGEST];
    let length = getxattr(path, name, &mut value[..])?;
    Ok(String::from_utf8_lossy(value.get(..length).unwrap_or_default()).into_owned())
}
