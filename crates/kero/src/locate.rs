//! Finding the layer of a device: the placeholder in block 0 names the superblocks.

use blockdev::BlockDevice;

use crate::bytes::{Phase, Placeholder, Superblock, UNKNOWN_VERSION};
use crate::error::{Corrupt, Error, Result};
use crate::layout::BLOCK;

/// The superblocks of a device with a layer, and the newest of them.
#[derive(Debug)]
pub(crate) struct Located {
    pub(crate) superblocks: [Option<Superblock>; 2],
    pub(crate) newest: Superblock,
}

/// Finds the layer of a device by its placeholder.
pub(crate) fn locate(device: &dyn BlockDevice, force: bool) -> Result<Located> {
    let blocks = device.geometry().len / BLOCK;
    if blocks < 2 {
        return Err(Error::NotFormatted);
    }
    let read = |block: u64| {
        let mut bytes = vec![0; BLOCK as usize];
        device.read(block * BLOCK, &mut bytes).map(|()| bytes)
    };
    let Some(placeholder) = Placeholder::parse(&read(0)?, 0) else {
        // the second superblock is the last block of a device whose length has not changed
        return match Superblock::parse(&read(blocks - 1)?) {
            Ok(last) if last.phase == Phase::Active && last.layout.blocks == blocks => {
                if force {
                    superblocks_at(device, last.layout.superblocks())
                } else {
                    Err(Error::PlaceholderGone { block: 0 })
                }
            }
            _ => Err(Error::NotFormatted),
        };
    };
    if placeholder.split > 0 && placeholder.split >= blocks {
        return Err(Error::LogElsewhere);
    }
    if placeholder.blocks > blocks || placeholder.superblocks.iter().any(|block| *block >= blocks) {
        return Err(Error::Shortened {
            device: device.geometry().len,
            expected: placeholder.blocks.saturating_mul(BLOCK),
        });
    }
    // a separate log device may contain another layer's log, or none
    let elsewhere = placeholder.split > 0;
    let mut located = superblocks_at(device, placeholder.superblocks).map_err(|error| match error {
        Error::Corrupt(_) if elsewhere => Error::WrongLog,
        error => error,
    })?;
    for superblock in &mut located.superblocks {
        *superblock = superblock.filter(|superblock| superblock.uuid == placeholder.uuid);
    }
    if located.newest.uuid != placeholder.uuid && elsewhere {
        return Err(Error::WrongLog);
    }
    if located.newest.uuid != placeholder.uuid {
        return Err(Corrupt { what: "superblocks of another layer", offset: placeholder.superblocks[0] * BLOCK }.into());
    }
    let other = Placeholder::parse(&read(16)?, 16).filter(|other| other.uuid == placeholder.uuid);
    if other.is_none() && located.newest.phase == Phase::Active && !force {
        return Err(Error::PlaceholderGone { block: 16 });
    }
    Ok(located)
}

fn superblocks_at(device: &dyn BlockDevice, at: [u64; 2]) -> Result<Located> {
    let mut superblocks = [None, None];
    let mut refused = "no superblock";
    for (found, block) in superblocks.iter_mut().zip(at) {
        let mut bytes = vec![0; BLOCK as usize];
        device.read(block * BLOCK, &mut bytes)?;
        match Superblock::parse(&bytes) {
            Ok(superblock) if superblock.layout.superblocks() == at => *found = Some(superblock),
            Ok(_) => refused = "superblock whose location differs from the placeholder",
            // the other copy is older, and says nothing of what is in the log since
            Err(UNKNOWN_VERSION) => return Err(Corrupt { what: UNKNOWN_VERSION, offset: block * BLOCK }.into()),
            Err(what) => refused = what,
        }
    }
    if let [Some(a), Some(b)] = superblocks
        && (a.uuid != b.uuid || a.layout != b.layout)
    {
        return Err(Corrupt { what: "superblock that contradicts the other one", offset: at[0] * BLOCK }.into());
    }
    let newest = superblocks.iter().flatten().max_by_key(|superblock| superblock.generation).copied();
    let newest = newest.ok_or(Corrupt { what: refused, offset: at[0] * BLOCK })?;
    Ok(Located { superblocks, newest })
}
