//! Reads the content of a volume into a [`State`], through the file system's read path.

use std::collections::BTreeMap;
use std::sync::Arc;

use blockdev::BlockDevice;
use fs::{FileKind, Inode, InodeNo, OpenOptions, Volume};

use crate::model::{Body, Node, State};
use crate::system::Refused;

/// Maximum number of bytes read of a file: explored volumes are small, and damage must not exhaust memory.
const MAX_SIZE: u64 = 64 << 20;

/// Maximum number of bytes of cached metadata.
const CACHE: usize = 1 << 20;

/// The complete content of the volume on `device`, with its journal. Nothing is written.
///
/// # Errors
/// The first object that cannot be read, with its path.
pub fn tree(device: Arc<dyn BlockDevice>) -> Result<State, Refused> {
    let options = OpenOptions { cache_bytes: CACHE, ..OpenOptions::default() };
    let volume = Volume::open(device, &options).map_err(|e| e.to_string())?;
    of_volume(&volume)
}

/// The complete content of an open volume.
///
/// # Errors
/// The first object that cannot be read, with its path.
pub fn of_volume(volume: &Volume) -> Result<State, Refused> {
    let mut state = files(volume)?;
    let snapshots = match volume.snapshots() {
        Err(fs::Error::Unsupported(_)) => Vec::new(),
        other => other.map_err(|e| format!("the list of snapshots: {e}"))?,
    };
    for snapshot in snapshots {
        let name = String::from_utf8_lossy(&snapshot.name).into_owned();
        let refused = |e: fs::Error| format!("the snapshot {name}: {e}");
        let open = volume.open_snapshot(&snapshot.name, CACHE).map_err(refused)?;
        let content = files(&open).map_err(|why| format!("the snapshot {name}: {why}"))?;
        state.snapshots.insert(name, Arc::new(content));
    }
    Ok(state)
}

/// The files of a volume, or of a snapshot.
fn files(volume: &Volume) -> Result<State, Refused> {
    let root = InodeNo::ROOT;
    let mut state = State::of(BTreeMap::new(), u64::from(root.get()));
    let mut queue = vec![(String::new(), root)];
    while let Some((path, number)) = queue.pop() {
        let refused = |e: fs::Error| format!("/{path}: {e}");
        if state.nodes.contains_key(&u64::from(number.get())) {
            continue;
        }
        let inode = volume.inode(number).map_err(refused)?;
        let mut below = Vec::new();
        let body = body(volume, &inode, &mut below).map_err(refused)?;
        let mut xattrs = BTreeMap::new();
        for name in volume.list_xattrs(&inode).map_err(refused)? {
            let value = volume.get_xattr(&inode, &name).map_err(refused)?;
            xattrs.insert(String::from_utf8_lossy(&name).into_owned(), value.into());
        }
        let attributes = volume.attributes(&inode);
        let (mode, links) = (attributes.mode & 0o7777, u32::from(attributes.links));
        state.nodes.insert(u64::from(number.get()), Arc::new(Node { mode, links, xattrs, body }));
        queue.extend(below.into_iter().map(|(name, number)| (format!("{path}/{name}"), number)));
    }
    Ok(state)
}

fn body(volume: &Volume, inode: &Arc<Inode>, below: &mut Vec<(String, InodeNo)>) -> fs::Result<Body> {
    Ok(match inode.kind {
        FileKind::Regular => Body::File(Arc::new(bytes(volume, inode, inode.size)?)),
        FileKind::Directory => {
            let mut entries = BTreeMap::new();
            for entry in volume.read_dir(inode, 0)? {
                let entry = entry?;
                if matches!(&entry.name[..], b"." | b"..") {
                    continue;
                }
                let name = String::from_utf8_lossy(&entry.name).into_owned();
                if entries.insert(name.clone(), u64::from(entry.inode.get())).is_some() {
                    return Err(fs::Error::Invalid("a directory has a name twice"));
                }
                below.push((name, entry.inode));
            }
            Body::Dir(entries)
        }
        FileKind::Symlink => Body::Symlink(String::from_utf8_lossy(&volume.read_link(inode)?).into_owned()),
        FileKind::CharDevice => Body::Other("a character device"),
        FileKind::BlockDevice => Body::Other("a block device"),
        FileKind::Fifo => Body::Other("a pipe"),
        FileKind::Socket => Body::Other("a socket"),
    })
}

/// The first `size` bytes of a regular file, up to a limit.
pub(crate) fn bytes(volume: &Volume, inode: &Inode, size: u64) -> fs::Result<Vec<u8>> {
    match inode.kind {
        FileKind::Regular => {}
        FileKind::Directory => return Err(fs::Error::IsADirectory),
        _ => return Err(fs::Error::Invalid("not a regular file")),
    }
    let mut bytes = vec![0; usize::try_from(size.min(MAX_SIZE)).unwrap_or(0)];
    let read = volume.read_at(inode, 0, &mut bytes)?;
    bytes.truncate(read);
    Ok(bytes)
}
