//! What a request relies on that waits for a transaction of others.
//!
//! The kernel has looked at names and permissions before it sent the request, and it may have seen what the transaction
//! did. When that is rolled back the same names may lead to other files, and the same files may be somebody else's. Where
//! that is so the request is answered with ESTALE: the kernel then looks again, and asks anew for what goes by a name.
//!
//! Content is written and space is taken by whoever has the file open, whatever its permissions are by then; that a file
//! does not exist any more is seen by its number.

use crate::ops::number_of;
use crate::request::{Operation, Request};
use fs::{InodeNo, Volume};

/// Who owns a file, and who may do what with it.
#[derive(Debug, PartialEq, Eq)]
struct File {
    generation: u32,
    uid: u32,
    gid: u32,
    mode: u16,
}

/// What a request relies on.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    files: Vec<Option<File>>,
    /// Where names lead.
    names: Vec<Option<InodeNo>>,
}

impl Seen {
    /// As it is now. What cannot be looked at is as if it were not there.
    pub(crate) fn of(volume: &Volume, request: &Request<'_>) -> Self {
        let mut seen = Self::default();
        let here = request.node;
        match request.operation {
            Operation::Unlink { name }
            | Operation::RmDir { name }
            | Operation::MkNod { name, .. }
            | Operation::MkDir { name, .. }
            | Operation::Symlink { name, .. }
            | Operation::Create { name: Some(name), .. } => seen.name(volume, here, name),
            Operation::Rename { name, to, new_name, .. } => {
                seen.name(volume, here, name);
                seen.name(volume, to, new_name);
            }
            Operation::Link { target, name } => {
                seen.name(volume, here, name);
                seen.file(volume, target);
            }
            Operation::Create { name: None, .. }
            | Operation::SetAttr(_)
            | Operation::SetXattr { .. }
            | Operation::RemoveXattr { .. }
            | Operation::Ioctl { .. } => seen.file(volume, here),
            _ => {}
        }
        seen
    }

    fn file(&mut self, volume: &Volume, node: u64) {
        let of = |number| {
            let a = volume.attributes_of(number).ok()?;
            Some(File { generation: a.generation, uid: a.uid, gid: a.gid, mode: a.mode })
        };
        self.files.push(number_of(node).and_then(of));
    }

    /// A name, the file it leads to (whose owner counts in sticky directories), and its directory.
    fn name(&mut self, volume: &Volume, dir: u64, name: &[u8]) {
        self.file(volume, dir);
        let _pass = volume.looking();
        let number = number_of(dir).and_then(|dir| volume.lookup(&*volume.inode(dir).ok()?, name).ok());
        if let Some(number) = number {
            self.file(volume, u64::from(number.get()));
        }
        self.names.push(number);
    }
}
