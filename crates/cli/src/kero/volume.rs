//! The content of a device that gets a layer, and its end.

use ::kero::{BLOCK, FormatOptions, Layout};
use blockdev::{BlockDevice, Result};
use format::superblock::{DiskSuperblock, Geometry, OFFSET};

/// The content found on a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Found {
    /// No identified content.
    Nothing,
    /// A volume, and the offset of its end in bytes.
    Ends(u64),
    /// Content of unknown length: a phrase.
    Unknown(String),
}

/// The content of a device, as a phrase.
pub(super) fn contents(device: &dyn BlockDevice) -> Result<Option<String>> {
    let layered = ::kero::is_layered(device).then(|| "a Kero layer".to_owned());
    let mut start = [0; 8];
    let log = device.geometry().len >= BLOCK
        && device.read(0, &mut start).is_ok()
        && start == ::kero::bytes::SUPERBLOCK_MAGIC;
    let log = log.then(|| "the log of a Kero layer".to_owned());
    Ok(layered.or(log).or(fs::mkfs::contents(device)?))
}

/// The content of a device, and its end.
pub(super) fn found(device: &dyn BlockDevice) -> Result<Found> {
    let Some(what) = fs::mkfs::contents(device)? else { return Ok(Found::Nothing) };
    let mut bytes = vec![0; (72 << 10).min(device.geometry().len) as usize];
    device.read(0, &mut bytes)?;
    Ok(end(&bytes).map_or(Found::Unknown(what), Found::Ends))
}

/// The end in bytes of a volume that begins with these bytes.
fn end(bytes: &[u8]) -> Option<u64> {
    let number = |at: usize, len: usize| bytes.get(at..at + len);
    let little = |at| Some(u64::from_le_bytes(number(at, 8)?.try_into().ok()?));
    let native = [0, 0x1000].into_iter().filter(|at| number(*at, 8) == Some(b"ExtantFS"));
    if let Some(blocks) = native.filter_map(|at| little(at + 0x20)).max() {
        return blocks.checked_mul(4096);
    }
    if number(0, 4) == Some(b"XFSB") {
        let block = u32::from_be_bytes(number(4, 4)?.try_into().ok()?);
        return u64::from_be_bytes(number(8, 8)?.try_into().ok()?).checked_mul(block.into());
    }
    if number(0x1_0040, 8) == Some(b"_BHRfS_M") {
        // the size of this device, in its device item in the superblock
        return little(0x1_0000 + 0xC9 + 8);
    }
    let disk = DiskSuperblock::from_slice(bytes.get(OFFSET as usize..)?)?;
    let geometry = Geometry::of(&disk).ok()?;
    geometry.blocks.checked_mul(geometry.block_size.into())
}

/// The end of the data that is not zero, on a device without identified content.
pub(super) fn last_content(
    device: &dyn BlockDevice,
    options: &FormatOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Option<u64>> {
    const STEP: u64 = 1 << 20;
    let len = device.geometry().len;
    let log = options.log.unwrap_or_else(|| (len / 64).clamp(options.least_log, 4 << 30)) / BLOCK;
    let segment = Layout::segment_for(u32::try_from(log).unwrap_or(u32::MAX));
    let blocks = (len / BLOCK).saturating_sub(log / u64::from(segment) * u64::from(segment) + 4);
    let (first, mut buf) = (blocks * BLOCK, vec![0; STEP as usize]);
    let mut at = first;
    while at < len {
        progress(at - first, len - first);
        let extent = device.extent(at, len - at)?;
        if extent.hole {
            at += extent.len.max(1);
            continue;
        }
        let part = extent.len.clamp(1, STEP).min(len - at) as usize;
        if let Some(part) = buf.get_mut(..part) {
            device.read(at, part)?;
            if let Some(found) = part.iter().position(|byte| *byte != 0) {
                return Ok(Some(at + found as u64));
            }
        }
        at += part as u64;
    }
    Ok(None)
}
