//! Adding the layer to a device, and removing it.
//!
//! `format`: copies of blocks 0 and 16, a first checkpoint and superblocks, flush; placeholder 0, its first sector
//! before the others, flush; placeholder 16, flush; superblocks with the state "in use", one after the other. `drain`
//! is the reverse: everything moves home, superblocks with the state "being removed", block 16, block 0, its first
//! sector last. So while anything of the device is not at home, the first sector of block 0 is the placeholder.

use blockdev::{BlockDevice, Op};

use crate::bytes::{Entry, Phase, Placeholder, Record, Superblock, VERSION};
use crate::device::{Kero, Options};
use crate::error::{Error, Result};
use crate::layout::{BLOCK, LEAST_LOG, Layout, MIB, MOST_LOG, MOVED};
use crate::locate::{Located, locate};
use crate::table::Table;

/// The size of a sector in bytes; it is written as a whole or not at all.
const SECTOR: u64 = 512;

/// The options of `format`.
#[derive(Debug, Clone)]
pub struct FormatOptions {
    /// The size of the log in bytes; by default a 64th of the device, 4 MiB to 4 GiB.
    pub log: Option<u64>,
    /// The minimum size of a log in bytes: 4 MiB. Shorter in tests.
    pub least_log: u64,
    /// Discards the content of the device. Otherwise all of it is the layer's content.
    pub empty: bool,
    /// The end of the volume on the device in bytes, if there is one: it must not extend into Kero's own blocks.
    pub volume: Option<u64>,
    /// The first block that is on another device, as in [`Joined`](crate::Joined): that is for the log alone.
    pub split: Option<u64>,
    /// The layer's UUID; random by default.
    pub uuid: Option<[u8; 16]>,
}

impl Default for FormatOptions {
    fn default() -> Self {
        Self { log: None, least_log: 4 << 20, empty: false, volume: None, split: None, uuid: None }
    }
}

/// Whether block 0 contains a placeholder: the rest of the device is not what it appears to be then.
pub fn is_layered(device: &(impl BlockDevice + ?Sized)) -> bool {
    let mut bytes = vec![0; BLOCK as usize];
    device.geometry().len >= BLOCK && device.read(0, &mut bytes).is_ok() && Placeholder::parse(&bytes, 0).is_some()
}

/// The layout of a device of `len` bytes.
fn layout_for(len: u64, options: &FormatOptions) -> Result<Layout> {
    let most = (4 << 30u64).max(options.least_log);
    let usual = match options.split {
        // all of the other device, without the superblocks and homes on it
        Some(split) => (len.saturating_sub(split * BLOCK).saturating_sub(4 * BLOCK)).min(most),
        None => (len / 64).clamp(options.least_log, most),
    };
    let wanted = options.log.unwrap_or(usual);
    let refused = Error::LogSize { log: wanted, least: options.least_log, most: u64::from(MOST_LOG) * BLOCK };
    if wanted < options.least_log || wanted > u64::from(MOST_LOG) * BLOCK {
        return Err(refused);
    }
    let log = (wanted / BLOCK) as u32;
    let segment = Layout::segment_for(log);
    let log = log / segment * segment;
    if log < LEAST_LOG {
        return Err(refused);
    }
    let blocks = match options.split {
        Some(split) if split + u64::from(log) + 4 > len / BLOCK => {
            return Err(Error::TooSmall {
                device: len - split * BLOCK,
                log: wanted,
                needed: (u64::from(log) + 4) * BLOCK,
            });
        }
        Some(split) => split + u64::from(log) + 4,
        None => len / BLOCK,
    };
    let needed = u64::from(log) + 4 + u64::from(MIB);
    if blocks < needed {
        return Err(Error::TooSmall { device: len, log: wanted, needed: needed * BLOCK });
    }
    if blocks - u64::from(log) - 4 > u64::from(u32::MAX) {
        return Err(Error::TooLarge(len));
    }
    let layout = Layout::new(blocks, log, segment).map_err(|_| refused)?;
    match options.volume {
        Some(volume) if volume > u64::from(layout.data) * BLOCK => {
            Err(Error::Occupied { volume, data: u64::from(layout.data) * BLOCK })
        }
        _ => Ok(layout),
    }
}

/// The superblock and the record of a layer without a mapping; the record is in block 0 of the log.
fn first_checkpoint(layout: Layout, uuid: [u8; 16], content: bool) -> (Vec<u8>, Superblock) {
    let mut bytes = Table::new(&layout, content).encode();
    bytes.resize(bytes.len().next_multiple_of(BLOCK as usize), 0);
    let fits = layout.segment as usize - 1;
    let parts: Vec<&[u8]> = bytes.chunks(BLOCK as usize).collect();
    let (mut out, mut before, mut first, mut number) = (Vec::new(), 0, None, 0);
    let mut records = parts.chunks(fits).zip(1..).peekable();
    let instance = fastrand::u64(..);
    while let Some((parts, sequence)) = records.next() {
        let entries = (number..)
            .zip(parts)
            .map(|(number, part)| Entry::Part { number, checksum: crc32c::crc32c(part) })
            .collect();
        number += parts.len() as u32;
        let last = records.peek().is_none();
        let record = Record { sequence, group: 1, instance, before, last, checkpoint: true, entries };
        let (header, checksum) = record.encode(&uuid);
        out.extend_from_slice(&header);
        parts.iter().for_each(|part| out.extend_from_slice(part));
        before = checksum;
        first.get_or_insert(checksum);
    }
    let superblock = Superblock {
        version: VERSION,
        uuid,
        phase: Phase::Formatting,
        generation: 0,
        layout,
        checkpoint: 0,
        checksum: first.unwrap_or_default(),
        sequence: 1,
        group: 1,
        instance,
    };
    (out, superblock)
}

/// Adds a layer to a device. The device's data becomes the layer's content, at the same addresses, unless
/// [`FormatOptions::empty`] is set.
///
/// # Errors
/// Those of the device, and a description if the device, the log or the volume on it is not suitable.
pub fn format<D: BlockDevice>(device: &D, options: &FormatOptions) -> Result<()> {
    let geometry = device.geometry();
    geometry.admit(Op::Write, 0, 0)?;
    let layout = layout_for(geometry.len, options)?;
    if is_layered(device) {
        return Err(Error::AlreadyFormatted);
    }
    if options.empty {
        device.discard(0, u64::from(layout.data) * BLOCK)?;
    }
    let uuid = options.uuid.unwrap_or_else(|| fastrand::u128(..).to_le_bytes());
    for address in MOVED {
        let bytes = if options.empty { vec![0; BLOCK as usize] } else { block_at(device, address)? };
        device.write(layout.home(address), &bytes)?;
    }
    let (records, mut superblock) = first_checkpoint(layout, uuid, !options.empty);
    device.write(layout.slot(0), &records)?;
    for block in layout.superblocks() {
        superblock.generation += 1;
        device.write(block * BLOCK, &superblock.encode())?;
    }
    device.flush()?;
    for address in MOVED {
        let placeholder = Placeholder {
            uuid,
            block: address,
            blocks: layout.blocks,
            superblocks: layout.superblocks(),
            split: options.split.unwrap_or_default(),
        };
        let bytes = placeholder.encode();
        let (sector, rest) = bytes.split_at(SECTOR as usize);
        device.write(u64::from(address) * BLOCK, sector)?;
        device.flush()?;
        device.write(u64::from(address) * BLOCK + SECTOR, rest)?;
        device.flush()?;
    }
    superblock.phase = Phase::Active;
    write_superblocks(device, &mut superblock)
}

/// Writes both superblocks, the second one after the first is durable.
fn write_superblocks(device: &dyn BlockDevice, superblock: &mut Superblock) -> Result<()> {
    for block in superblock.layout.superblocks() {
        superblock.generation += 1;
        device.write(block * BLOCK, &superblock.encode())?;
        device.flush()?;
    }
    Ok(())
}

fn block_at(device: &dyn BlockDevice, address: u32) -> Result<Vec<u8>> {
    let mut bytes = vec![0; BLOCK as usize];
    device.read(u64::from(address) * BLOCK, &mut bytes)?;
    Ok(bytes)
}

/// Removes the layer: all content moves to its home location, and a plain device remains. Completes an interrupted
/// removal or `format`.
///
/// # Errors
/// Those of the device and of opening. Nothing is lost: it can be repeated.
pub fn drain<D: BlockDevice>(device: &D, options: Options) -> Result<()> {
    drain_with(device, options, &mut |_| {}).map(drop)
}

/// The progress of removing a layer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Drained {
    /// Bytes in the log at the start.
    pub total: u64,
    /// Of these, bytes that are at home.
    pub done: u64,
}

/// As [`drain`]; calls `progress` with the progress so far.
///
/// # Errors
/// Those of [`drain`].
pub fn drain_with<D: BlockDevice>(device: &D, options: Options, progress: &mut dyn FnMut(Drained)) -> Result<Drained> {
    device.geometry().admit(Op::Write, 0, 0)?;
    let located = locate(device, options.force)?;
    let mut superblock = located.newest;
    let mut drained = Drained::default();
    if superblock.phase == Phase::Active {
        let mut see = |so_far| {
            drained = so_far;
            progress(so_far);
        };
        superblock = empty_log(device, &located, options, &mut see)?;
    }
    finish(device, &superblock)?;
    Ok(drained)
}

/// Moves everything home; the superblocks then have the state "being removed".
fn empty_log<D: BlockDevice>(
    device: &D,
    located: &Located,
    options: Options,
    progress: &mut dyn FnMut(Drained),
) -> Result<Superblock> {
    let kero = Kero::open_located(device, located, Options { read_only: false, ..options })?;
    let _log = kero.log();
    let mut state = kero.exclusive();
    state.settle(device)?;
    let layout = state.layout;
    let segments: Vec<u32> = (0..).take(state.ring.segments.len()).collect();
    let total = u64::from(state.table.mapped()) * BLOCK;
    // blocks that cannot move home now, as they may still be verified, are appended and moved with the next group
    for _ in 0..2 * layout.log {
        progress(Drained { total, done: total - (u64::from(state.table.mapped()) * BLOCK).min(total) });
        if state.table.mapped() == 0 {
            break;
        }
        state.ensure_space(device, layout.group())?;
        state.clean(device, &segments, segments.len())?;
    }
    if state.table.mapped() > 0 {
        return Err(Error::LogFull { blocks: u64::from(state.table.mapped()) });
    }
    state.ensure_space(device, layout.checkpoint_cost())?;
    state.checkpoint(device)?;
    let located = locate(device, true)?;
    let mut superblock = Superblock { phase: Phase::Removing, ..located.newest };
    write_superblocks(device, &mut superblock)?;
    Ok(superblock)
}

/// Restores blocks 0 and 16 and removes the superblocks.
fn finish(device: &dyn BlockDevice, superblock: &Superblock) -> Result<()> {
    let layout = superblock.layout;
    let copy = |address: u32| {
        let mut bytes = vec![0; BLOCK as usize];
        device.read(layout.home(address), &mut bytes).map(|()| bytes)
    };
    device.write(16 * BLOCK, &copy(16)?)?;
    device.flush()?;
    let bytes = copy(0)?;
    let (sector, rest) = bytes.split_at(SECTOR as usize);
    device.write(SECTOR, rest)?;
    device.flush()?;
    device.write(0, sector)?;
    device.flush()?;
    for block in layout.superblocks() {
        device.write(block * BLOCK, &[0; BLOCK as usize])?;
    }
    Ok(device.flush()?)
}
