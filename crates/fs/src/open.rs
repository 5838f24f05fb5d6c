//! Opening a volume.
//!
//! Opening reads the superblock and, if the volume was not unmounted, the journal. Nothing is guessed: an invalid
//! superblock is an error, and a copy is used only if the caller specifies it. The journal's content is overlaid in
//! memory, so that all later reads see the volume as after a replay, and nothing is written.

use crate::base::Base;
use crate::disk::Disk;
use crate::layout::Layout;
use crate::mmp::Heartbeat;
use crate::native;
use crate::options::OpenOptions;
use crate::{Error, Maps, Result, Warning};
use blockdev::BlockDevice;
use format::feature::{Compat, Incompat};
use format::mmp::{Mmp, Use};
use format::native::superblock::NativeSuperblock;
use format::superblock::{DiskSuperblock, MAGIC, OFFSET, State, Superblock};
use format::{FsBlock, Structure, Where};
use std::sync::Arc;
use store::Store;
use store::native::Mapped;
use store::recovery::linked::Finding;
use store::recovery::{JournalLocation, Recovery, recover};

/// Opens the volume on a device; see [`Volume::open`](crate::Volume::open). The heartbeat marks it as in use, if it is
/// open for writing and has a block for that.
pub(crate) fn open(device: Arc<dyn BlockDevice>, options: &OpenOptions) -> Result<(Maps, Option<Heartbeat>)> {
    let mut volume = match native::open(&device, options.snapshot.as_deref())? {
        Some((superblock, mapped)) => {
            let sb = asked_superblock(&*mapped, options);
            let above = sb.and_then(|sb| above_map(&superblock, mapped, sb, options));
            // with a specified copy, the error is that of a location where a native volume has none
            let named = options.superblock.is_some();
            above.map_err(|e| if named { e } else { native::unreadable(e, options.snapshot.is_some()) })?
        }
        None => {
            let sb = asked_superblock(&*device, options)?;
            over(disk(device, sb, options))
        }
    };
    volume.warn_of_device(options)?;
    let Some(write) = &options.write else {
        volume.recover(options)?;
        volume.warn_of_state();
        volume.warn_of_user();
        return Ok((volume, None));
    };
    volume.may_be_written(options)?;
    let mut heartbeat = Heartbeat::begin(&volume, write)?;
    let outcome = volume.recover(options).and_then(|()| {
        volume.warn_of_state();
        volume.start_writing(write.clone(), options.cache_bytes)
    });
    if let Err(e) = outcome {
        // the volume is not in use after all; the error of opening it is the one to return
        heartbeat.iter_mut().for_each(|heartbeat| drop(heartbeat.clear(write)));
        return Err(e);
    }
    Ok((volume, heartbeat))
}

/// The volume above the map of a native one, for reading.
pub(crate) fn over_map(superblock: &NativeSuperblock, mapped: Arc<Mapped>, options: &OpenOptions) -> Result<Maps> {
    let sb = primary_superblock(&*mapped)?;
    above_map(superblock, mapped, sb, options)
}

fn above_map(
    superblock: &NativeSuperblock,
    mapped: Arc<Mapped>,
    sb: Superblock,
    options: &OpenOptions,
) -> Result<Maps> {
    native::fits(&superblock.layout, &superblock.uuid, &sb)?;
    let store = Store::native(Arc::clone(&mapped), options.cache_bytes);
    let layout = Arc::new(Layout::above_map(&sb, superblock, mapped));
    Ok(over(Disk { store, sb, backup: options.superblock, layout }))
}

/// A volume on its device, for reading.
fn over(disk: Disk) -> Maps {
    Maps::over(Base::over(disk))
}

fn disk(device: Arc<dyn BlockDevice>, sb: Superblock, options: &OpenOptions) -> Disk {
    let store = Store::new(device, sb.geometry.block_size, options.cache_bytes);
    let layout = Arc::new(Layout::on_device(&sb));
    Disk { store, sb, backup: options.superblock, layout }
}

/// A recovery, and the warnings for writing its result to the device and for an overlay in memory.
type ToRecover = (Box<dyn Recovery>, Warning, Warning);

impl Maps {
    /// Recovers the state after a crash: overlays it in memory or, if the volume is to be written, writes it to the
    /// device.
    fn recover(&mut self, options: &OpenOptions) -> Result<()> {
        let Some((recovery, written, shown)) = self.what_to_recover(options)? else { return Ok(()) };
        let device = Arc::clone(self.store.device());
        let (device, warning) = if options.write.is_some() {
            self.may_be_replayed()?;
            recovery.apply(&*device)?;
            (device, written)
        } else if recovery.is_empty() {
            return Ok(());
        } else {
            (recovery.overlay(device), shown)
        };
        // recovery may change the superblock itself, but not the geometry of the volume
        let sb = if self.backup.is_some() { self.sb.clone() } else { primary_superblock(&*device)? };
        if sb.geometry.block_size != self.sb.geometry.block_size || sb.geometry.blocks < self.sb.geometry.blocks {
            return Err(Error::corrupt(
                Structure::Journal,
                Where::Volume,
                "it contains the superblock of another volume",
            ));
        }
        let mut warnings = std::mem::take(&mut self.base.warnings);
        warnings.push(warning);
        *self = over(disk(device, sb, options));
        self.base.warnings = warnings;
        Ok(())
    }

    /// The recovery that is necessary, with the warnings for writing its result and for an overlay.
    fn what_to_recover(&mut self, options: &OpenOptions) -> Result<Option<ToRecover>> {
        if let Some(recovery) = self.journal_to_replay(options)? {
            return Ok(Some((recovery, Warning::JournalWrittenHome, Warning::JournalReplayed)));
        }
        let mutant = options.write.as_ref().map(crate::WriteOptions::mutant).unwrap_or_default();
        Ok(match self.linked_finding(mutant)? {
            Some(Finding::Repair(repair)) => {
                let written = Warning::ListRepaired { inodes: repair.inodes, lost: repair.lost };
                Some((Box::new(repair), written, Warning::ListShown))
            }
            Some(Finding::Check(why)) => {
                self.base.warnings.push(Warning::ListNeedsCheck(why));
                None
            }
            Some(Finding::Void) | None => None,
        })
    }

    /// The content of the journal, if it is to be replayed. A copy of the superblock does not record whether the
    /// journal is empty, so then the journal itself is checked.
    fn journal_to_replay(&mut self, options: &OpenOptions) -> Result<Option<Box<dyn Recovery>>> {
        let wanted = self.sb.features.incompat.contains(Incompat::NEEDS_RECOVERY) || self.backup.is_some();
        if !wanted || !self.sb.features.compat.contains(Compat::HAS_JOURNAL) {
            return Ok(None);
        }
        if options.ignore_journal {
            self.base.warnings.push(Warning::JournalIgnored);
            return Ok(None);
        }
        let block_size = self.sb.geometry.block_size;
        let journal = match (self.sb.journal_inode(), &options.external_journal) {
            (Some(_), _) => self.journal()?,
            (None, Some(other)) => {
                JournalLocation::external(Arc::clone(other), block_size, &self.sb.disk.s_journal_uuid)?
            }
            (None, None) => {
                let what = "the volume was not unmounted and its journal is on another device, which is not specified";
                return Err(Error::Unsupported(what.to_owned()));
            }
        };
        let recovered = recover(&journal, self.sb.geometry.blocks)?;
        if !recovered.damage.is_empty() {
            self.base
                .warnings
                .push(Warning::JournalDamaged(recovered.damage.iter().map(ToString::to_string).collect()));
        }
        if recovered.fast_commits > 0 {
            let (commits, changes) = (recovered.fast_commits, recovered.fast_commit_changes);
            self.base.warnings.push(Warning::FastCommits { commits, changes });
        }
        Ok(Some(Box::new(recovered)))
    }

    fn warn_of_device(&mut self, options: &OpenOptions) -> Result<()> {
        let mut warnings: Vec<_> = options.superblock.map(Warning::BackupSuperblock).into_iter().collect();
        if options.write.is_none() {
            warnings.extend(self.layout.may_lack()?.map(Warning::MayLack));
        }
        let volume = self.layout.device_blocks().saturating_mul(u64::from(self.sb.geometry.block_size));
        let device = self.storage().geometry().len;
        if device < volume {
            warnings.push(Warning::Truncated { device, volume });
        }
        self.base.warnings = warnings;
        Ok(())
    }

    fn warn_of_state(&mut self) {
        let state = State::from_bits_retain(self.sb.disk.s_state.get());
        if state.contains(State::ERROR) {
            self.base.warnings.push(Warning::HasErrors);
        }
        if !state.contains(State::VALID) && !self.sb.features.compat.contains(Compat::HAS_JOURNAL) {
            self.base.warnings.push(Warning::NotUnmounted);
        }
    }

    fn warn_of_user(&mut self) {
        if let Some(host) = self.user() {
            self.base.warnings.push(Warning::InUse { host });
        }
    }

    /// The host that has the volume mounted, according to its multiple-mount-protection block. An invalid block counts
    /// as no host.
    fn user(&self) -> Option<String> {
        let block = self.store.block(self.sb.mmp_block()?).ok()?;
        let seed = self.sb.geometry.metadata_csum.then_some(self.sb.geometry.checksum_seed);
        let mmp = Mmp::parse(&block, seed).ok()?;
        let used = matches!(mmp.disk().usage(), Use::Mounted(_) | Use::Fsck);
        used.then(|| String::from_utf8_lossy(mmp.node_name()).into_owned())
    }
}

/// The superblock requested by the options.
fn asked_superblock(device: &dyn BlockDevice, options: &OpenOptions) -> Result<Superblock> {
    match options.superblock {
        None => primary_superblock(device),
        Some(block) => backup_superblock(device, block, options.block_size),
    }
}

fn primary_superblock(device: &dyn BlockDevice) -> Result<Superblock> {
    read_superblock(device, OFFSET).map_err(|e| match e {
        Error::Unsupported(_) => e,
        other => Error::NoSuperblock(Box::new(other)),
    })
}

fn backup_superblock(device: &dyn BlockDevice, block: FsBlock, block_size: Option<u32>) -> Result<Superblock> {
    let sizes = block_size.map_or_else(|| (10..=16).map(|n| 1u32 << n).collect(), |size| vec![size]);
    let mut outcome: Option<(u8, Error)> = None;
    for size in sizes {
        let Some(offset) = block.get().checked_mul(u64::from(size)) else { continue };
        // with larger blocks, block 0 contains the primary superblock, behind the boot sector
        let offset = if block.get() == 0 { OFFSET } else { offset };
        let error = match read_superblock(device, offset) {
            Ok(sb) if sb.geometry.block_size == size => return Ok(sb),
            Ok(_) => Error::corrupt(Structure::Superblock, Where::Block(block), "the one there has another block size"),
            Err(e @ Error::Unsupported(_)) => return Err(e),
            Err(e) => e,
        };
        let rank = relevance(device, offset);
        if outcome.as_ref().is_none_or(|(most, _)| rank > *most) {
            outcome = Some((rank, error));
        }
    }
    let none = || Error::corrupt(Structure::Superblock, Where::Block(block), "that block contains no copy");
    Err(Error::NoSuperblock(Box::new(outcome.map_or_else(none, |(_, error)| error))))
}

/// The rank of the reason why there is no usable superblock at an offset: that of an existing one is the most relevant;
/// with a larger block size than that of the volume, the offset is often beyond the end of the device.
fn relevance(device: &dyn BlockDevice, offset: u64) -> u8 {
    let mut bytes = [0; DiskSuperblock::SIZE];
    if device.geometry().len < offset.saturating_add(DiskSuperblock::SIZE as u64) {
        return 0;
    }
    let read = device.read(offset, &mut bytes);
    let has_magic = DiskSuperblock::from_slice(&bytes).is_some_and(|disk| disk.s_magic.get() == MAGIC);
    // an error of the device is as relevant as damage
    if read.is_err() || has_magic { 2 } else { 1 }
}

fn read_superblock(device: &dyn BlockDevice, offset: u64) -> Result<Superblock> {
    let mut bytes = [0; DiskSuperblock::SIZE];
    if device.geometry().len < offset.saturating_add(DiskSuperblock::SIZE as u64) {
        return Err(Error::corrupt(Structure::Superblock, Where::Volume, "the device ends before it"));
    }
    device.read(offset, &mut bytes)?;
    Ok(Superblock::parse(&bytes)?)
}
