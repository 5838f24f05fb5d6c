//! The state that a request relies on while it waits for a transaction of other processes.
//!
//! The kernel checked names and permissions before it sent the request, and its view may include changes of the
//! transaction. After a rollback the same names may lead to other files, and the same files may belong to another user.
//! In that case the request is answered with ESTALE: the kernel then repeats its checks, and resolves paths again.
//!
//! Writes and allocations are not checked for permissions: the process has the file open, whatever its permissions are
//! by then. Whether the file still exists is checked by its inode number.

use crate::ops::number_of;
use fs::{InodeNo, Volume};
use fuse_wire::{Changes, Operation, Request, SetTime};

/// The owner and group of a file, and its permissions where they matter.
#[derive(Debug, PartialEq, Eq)]
struct File {
    generation: u32,
    uid: u32,
    gid: u32,
    mode: Option<u16>,
}

/// The state that a request relies on.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Preconditions {
    files: Vec<Option<File>>,
    /// The inodes to which the names lead.
    names: Vec<Option<InodeNo>>,
}

impl Preconditions {
    /// The current state. A file that cannot be read counts as missing.
    pub(crate) fn of(volume: &Volume, request: &Request<'_>) -> Self {
        let mut needs = Self::default();
        let here = request.node;
        match request.operation {
            // if the name exists by now, the answer is that it exists
            Operation::MkNod { .. } | Operation::MkDir { .. } | Operation::Symlink { .. } => needs.file(volume, here),
            Operation::Unlink { name } | Operation::RmDir { name } | Operation::Create { name: Some(name), .. } => {
                needs.name(volume, here, name);
            }
            Operation::Rename { name, to, new_name, .. } => {
                needs.name(volume, here, name);
                needs.name(volume, to, new_name);
            }
            Operation::Link { target, .. } => {
                needs.file(volume, here);
                needs.file(volume, target);
            }
            // the owner may do it whatever the mode
            Operation::SetAttr(ref changes) if !by_mode(changes) => needs.owner(volume, here),
            Operation::Create { name: None, .. }
            | Operation::SetAttr(_)
            | Operation::SetXattr { .. }
            | Operation::RemoveXattr { .. }
            | Operation::Ioctl { .. } => needs.file(volume, here),
            _ => {}
        }
        needs
    }

    fn file(&mut self, volume: &Volume, node: u64) {
        self.files.push(file(volume, node));
    }

    fn owner(&mut self, volume: &Volume, node: u64) {
        self.files.push(file(volume, node).map(|file| File { mode: None, ..file }));
    }

    /// Adds a name, the file it leads to (whose owner matters in sticky directories), and its directory.
    fn name(&mut self, volume: &Volume, dir: u64, name: &[u8]) {
        self.file(volume, dir);
        let _guard = volume.read_guard();
        let number = number_of(dir).and_then(|dir| volume.lookup(&*volume.inode(dir).ok()?, name).ok());
        if let Some(number) = number {
            self.file(volume, u64::from(number.get()));
        }
        self.names.push(number);
    }
}

fn file(volume: &Volume, node: u64) -> Option<File> {
    let a = volume.attributes_of(number_of(node)?).ok()?;
    Some(File { generation: a.generation, uid: a.uid, gid: a.gid, mode: Some(a.mode) })
}

/// Whether the attributes may be changed by users other than the owner, if the mode permits writing.
fn by_mode(changes: &Changes) -> bool {
    let now = |time: &Option<SetTime>| matches!(time, Some(SetTime::Now));
    changes.size.is_some() || now(&changes.atime) || now(&changes.mtime)
}
