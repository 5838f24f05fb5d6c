//! The layers beneath a native volume: its map, and the device. Above the map the volume is an ext4 volume; its
//! differences are defined by the [`Layout`](crate::layout::Layout).

use crate::{Error, Result};
use format::native::snapshots::Snapshot;
use format::native::superblock::NativeSuperblock;
use format::native::{BLOCK_SIZE, GROUP_BLOCKS, Layout as NativeLayout};
use format::superblock::Superblock;
use format::{Structure, Where};
use parking_lot::Mutex;
use space::Purpose;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use store::native::Mapped;

/// The native volume beneath an open volume.
pub(crate) struct Native {
    pub(crate) versions: Versions,
    pub(crate) layout: NativeLayout,
    /// Blocks of the device that are never allocated, so that no other program identifies their content as its own.
    reserved: BTreeSet<u64>,
}

/// The versions of a volume's metadata: the live one and the snapshots.
pub(crate) struct Versions {
    pub(crate) mapped: Arc<Mapped>,
    /// Locked while a snapshot is created or deleted.
    pub(crate) change: Mutex<()>,
}

impl Native {
    /// Whether these blocks cannot be used for `purpose`: in groups for another purpose, in reserved blocks, or in the
    /// metadata regions.
    pub(crate) fn is_not_for(&self, purpose: Purpose, blocks: &Range<u64>) -> bool {
        match purpose {
            Purpose::Data => {
                blocks.end > self.layout.metadata_start()
                    || self.reserved.range(blocks.clone()).next().is_some()
                    || self.versions.mapped.is_metadata(blocks.clone())
            }
            Purpose::Metadata => blocks.start < self.layout.metadata_start(),
        }
    }

    pub(crate) fn new(mapped: Arc<Mapped>, superblock: &NativeSuperblock) -> Self {
        let layout = superblock.layout;
        let reserved = if superblock.reserved { layout.backup_blocks() } else { BTreeSet::new() };
        Self { versions: Versions { mapped, change: Mutex::default() }, layout, reserved }
    }
}

/// Checks that the ext4 superblock above a map belongs to the volume beneath.
pub(crate) fn fits(layout: &NativeLayout, uuid: &[u8; 16], sb: &Superblock) -> Result<()> {
    let geometry = &sb.geometry;
    let same = geometry.blocks == layout.logical_blocks()
        && geometry.block_size == BLOCK_SIZE
        && geometry.blocks_per_group == GROUP_BLOCKS
        && geometry.cluster_blocks == 1
        && geometry.metadata_csum
        && sb.disk.s_uuid == *uuid;
    if !same {
        let what = "the superblock above the map is that of another volume";
        return Err(Error::corrupt(Structure::Superblock, Where::Volume, what));
    }
    Ok(())
}

/// The error for a snapshot operation on a volume without snapshots.
pub(crate) fn no_versions() -> Error {
    Error::Unsupported("snapshots need a volume created with `extant mkfs -t extant`".into())
}

/// The error for a native superblock that was not accepted.
pub(crate) fn no_superblock(error: store::Error) -> Error {
    match Error::from(error) {
        e @ (Error::Unsupported(_) | Error::Io(_)) => e,
        // there are no copies elsewhere to specify
        why => Error::Native {
            what: "both superblocks of the native volume are damaged",
            why: Box::new(why),
            next: "it has no other copies",
        },
    }
}

/// The error for a volume above a map that cannot be opened; `of_snapshot`: the map is that of a snapshot. Copies of
/// its superblock do not exist, but another generation may.
pub(crate) fn unreadable(error: Error, of_snapshot: bool) -> Error {
    let why = match error {
        e @ (Error::Unsupported(_) | Error::NotFound) => return e,
        Error::NoSuperblock(why) => *why,
        other => other,
    };
    let why = match why {
        // a hint to another format does not apply to a native volume
        Error::Corrupt { structure, at, what } => {
            Error::Corrupt { structure, at, what: what.split(": this is").next().unwrap_or(what) }
        }
        other => other,
    };
    let (what, next) = if of_snapshot {
        ("the snapshot of the native volume cannot be read", "`extant check -fn` lists what is damaged")
    } else {
        (
            "the newest generation of the native volume cannot be read",
            "run `extant check -fy` to return to the previous generation, if it is intact",
        )
    };
    Error::Native { what, why: Box::new(why), next }
}

/// The active superblock of a native volume, and the device read through its map, or through the map of a snapshot;
/// `None` for other volumes.
pub(crate) fn open(
    device: &Arc<dyn blockdev::BlockDevice>,
    snapshot: Option<&[u8]>,
) -> Result<Option<(NativeSuperblock, Arc<Mapped>)>> {
    if !store::native::is_native(&**device)? {
        return if snapshot.is_some() { Err(no_versions()) } else { Ok(None) };
    }
    let (superblock, _) = store::native::superblock(&**device).map_err(no_superblock)?;
    let mapped = Mapped::new(Arc::clone(device), &superblock);
    let mapped = match snapshot {
        Some(name) => mapped.at(&find(&mapped, name).map_err(|e| unreadable(e, false))?),
        None => mapped,
    };
    Ok(Some((superblock, Arc::new(mapped))))
}

/// The snapshot with that name.
pub(crate) fn find(mapped: &Mapped, name: &[u8]) -> Result<Snapshot> {
    mapped.snapshots()?.iter().flatten().find(|snapshot| snapshot.name == name).cloned().ok_or(Error::NotFound)
}
