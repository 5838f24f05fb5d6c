//! Native volumes: this crate's own reader of the metadata map, and the checks of the physical layer beneath the ext4
//! volume.
//!
//! 1. The map of the newest generation and of each snapshot is walked; nodes that several share are read and checked
//!    once.
//! 2. Every block that one of them refers to is read once, in the order of the device, and compared with the checksum
//!    in its entry.
//! 3. The physical blocks that a generation uses must be exactly those in its chunk table ([`used_blocks`]), and the
//!    blocks that snapshots pin must have no other use and be counted correctly ([`pinned`]).
//! 4. Then the volume above each map is checked as any ext4 volume. That check receives the chunks of the regions as
//!    blocks in use, and compares the kind and owner of each block that it finds with those in the map ([`identity`]).
//!
//! On a volume in use these checks are made of the generation that a snapshot pins ([`online`]).

mod copies;
mod counted;
mod identity;
mod image;
mod layer;
mod online;
mod pinned;
mod reader;
mod remedy;
mod repair;
mod used_blocks;

pub(crate) use identity::Identities;
pub(crate) use image::Image;
pub use online::{Glance, InUse};
pub(crate) use online::{gone_of, read_in_use};
pub(crate) use remedy::VersionsChecked;
pub(crate) use repair::{check, repair};

pub(crate) use layer::{PhysicalLayer, Version, wrong_structure};

use crate::options::Refusal;
use crate::report::exit;
use blockdev::BlockDevice;
use counted::Counted;
use format::native::BLOCK_SIZE;
use format::native::snapshots::Snapshot;
use format::native::superblock::{COPIES, NativeSuperblock};
use layer::SIZE;
use reader::{Reader, Start};

/// Whether a device contains a native volume.
pub(crate) fn is_native(device: &dyn BlockDevice) -> bool {
    (0..COPIES).any(|copy| {
        let mut block = vec![0; BLOCK_SIZE as usize];
        let read = device.read(copy * SIZE, &mut block).is_ok();
        read && (NativeSuperblock::is_there(&block) || NativeSuperblock::was_there(&block))
    })
}

/// Reads the physical layer beneath all versions of the volume.
///
/// # Errors
/// [`Refusal`], where there is no usable superblock.
pub(crate) fn read(device: &dyn BlockDevice) -> Result<PhysicalLayer, Refusal> {
    let blocks = copies::read(device);
    let (superblock, at) = copies::active(device, &blocks).map_err(no_superblock)?;
    let damaged = copies::damage(device, &blocks, &superblock, at);
    let torn = copies::torn(&blocks, &superblock, at);
    let generation = superblock.generation;
    let abandoned = NativeSuperblock::newest(&blocks).is_ok_and(|(newest, _)| newest.generation > generation)
        && copies::restored(device, &blocks, &superblock, at).is_none();
    let recounted = copies::recounted(device, &superblock);
    let miscounted = recounted.as_ref().map(|found| (at, copies::miscount(&superblock, found)));
    let superblock = recounted.unwrap_or(superblock);
    Ok(PhysicalLayer { damaged, torn, abandoned, miscounted, ..read_generation(device, superblock) })
}

/// The refusal where neither superblock is valid: errors that remain, unless another version of the format wrote them.
fn no_superblock(error: format::Error) -> Refusal {
    match error {
        format::Error::Unsupported(_) => Refusal::new(error.to_string()),
        _ => {
            let next = "nothing can be repaired: restore the volume from a backup";
            Refusal { exit: exit::LEFT, ..Refusal::new(format!("{}; {next} ({error})", copies::NONE_LEFT)) }
        }
    }
}

/// Reads the physical layer beneath all versions of the volume, as a superblock has it.
pub(crate) fn read_generation(device: &dyn BlockDevice, superblock: NativeSuperblock) -> PhysicalLayer {
    let listed = Some(superblock.snapshots);
    read_listed(device, superblock, listed, &|_| true)
}

/// As [`read_generation`], with those of its snapshots that are `wanted`. The blocks pinned by others are not checked,
/// nor, where any are left out, the blocks pinned by all of them together. The list has `listed` records, where that is
/// known.
fn read_listed(
    device: &dyn BlockDevice,
    superblock: NativeSuperblock,
    listed: Option<u32>,
    wanted: &dyn Fn(&Snapshot) -> bool,
) -> PhysicalLayer {
    let counted = Counted::new(device);
    let mut reader = Reader::new(&counted, &superblock);
    let (ends, blocks) = (device.geometry().len / SIZE, superblock.layout.blocks());
    let truncated = (ends < blocks).then_some((ends, blocks));
    let start = Start {
        root: superblock.root,
        map_log: superblock.map_log.iter().copied().collect(),
        generation: superblock.generation,
        records: superblock.chunks,
    };
    let live = reader.version(None, start);
    let (list, left_out): (Vec<_>, Vec<_>) = reader.list(&live, listed).into_iter().partition(wanted);
    let mut snapshots: Vec<Version> = Vec::new();
    for snapshot in list {
        let name = crate::render::escape(&snapshot.name);
        if snapshots.iter().any(|other| other.name.as_ref() == Some(&name)) {
            let what = format!("the snapshot {name} is in the list twice");
            reader.wrong_record(&name, snapshot.root.physical, what);
        }
        snapshots.push(reader.snapshot(name, &snapshot, superblock.generation));
    }
    reader.sums();
    if left_out.is_empty() {
        pinned::check(&mut reader, &live, &snapshots);
    }
    let left_out = left_out.iter().map(|snapshot| crate::render::escape(&snapshot.name)).collect();
    let Reader { nodes, wrong, unreadable, no_mount, faulty, bad, lost_tables, live_is_faulty, .. } = reader;
    PhysicalLayer {
        superblock,
        scan: counted.scan(),
        nodes,
        live,
        snapshots,
        wrong,
        unreadable,
        no_mount,
        faulty,
        bad,
        lost_tables,
        live_is_faulty,
        truncated,
        damaged: None,
        miscounted: None,
        torn: None,
        abandoned: false,
        left_out,
    }
}
