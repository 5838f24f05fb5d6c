//! The superblock: fields that contradict the volume, the primary restored from a copy, and the state recorded at the
//! end.

use super::descriptors;
use super::work::{Work, read_superblock, write_superblock};
use crate::phases::{quota, superblock};
use crate::problem::Problem;
use crate::redo;
use crate::table::Code;
use blockdev::{Overlay, Result};
use format::feature::{Compat, Incompat, RoCompat};
use format::superblock::{DiskSuperblock, Flags, State};
use std::hash::{DefaultHasher, Hasher};
use zerocopy::IntoBytes;
use zerocopy::little_endian::U32;

/// Size in bytes of the known extra fields of an inode.
const EXTRA: u32 = format::inode::EXTRA_ISIZE as u32;

/// Repairs the superblock.
pub(super) fn repair(work: &Work<'_>, problems: &[&Problem]) -> Result<()> {
    let of_primary = |code| {
        matches!(
            code,
            Code::SuperblockTryBackup
                | Code::SuperblockFieldTryBackup
                | Code::SuperblockFieldMisleads
                | Code::FirstMetaGroupTooLarge
                | Code::FirstMetaGroupMisleads
        )
    };
    if problems.iter().any(|p| of_primary(p.code)) {
        restore(work)?;
    }
    let mut superblock = work.superblock()?;
    for problem in problems {
        field(work, problem.code, &mut superblock);
    }
    if superblock != work.superblock()? {
        write_superblock(work.device, superblock)?;
    }
    if problems.iter().any(|p| !is_note(p.code)) {
        work.make_stale();
    }
    Ok(())
}

/// Whether no other structure of the volume depends on the repaired field.
fn is_note(code: Code) -> bool {
    matches!(
        code,
        Code::LastMountInFuture
            | Code::LastMountBarelyInFuture
            | Code::LastWriteInFuture
            | Code::LastWriteBarelyInFuture
            | Code::TestFlagSet
            | Code::MinExtraSizeWrong
            | Code::WantExtraSizeWrong
            | Code::RepairLogDamaged
    )
}

/// Replaces the primary superblock and descriptors by those that the check used.
pub(super) fn restore(work: &Work<'_>) -> Result<()> {
    work.make_stale();
    let mut superblock = work.volume().disk;
    superblock.s_block_group_nr = 0.into();
    write_superblock(work.device, superblock)?;
    descriptors::restore(work)
}

/// Makes the primary superblock state the geometry under which the descriptors of a copy made sense. Otherwise the
/// restored primary descriptors would not make sense either, and each check would read the copy again.
pub(super) fn take_geometry(work: &Work<'_>) -> Result<()> {
    let (volume, mut superblock) = (work.volume(), work.superblock()?);
    let flexible = |disk: &DiskSuperblock| disk.features().incompat.contains(Incompat::FLEX_BG);
    let fits = |disk: &DiskSuperblock| {
        flexible(disk) == flexible(&volume.disk)
            && superblock::geometry_of(disk).is_some_and(|geometry| geometry == volume.geometry)
    };
    if fits(&superblock) {
        return Ok(());
    }
    // most fields of a copy are as old as the volume, so only the necessary ones are taken
    superblock.s_reserved_gdt_blocks = volume.disk.s_reserved_gdt_blocks;
    superblock.set_checksum();
    if fits(&superblock) {
        return write_superblock(work.device, superblock);
    }
    superblock = volume.disk;
    superblock.s_block_group_nr = 0.into();
    write_superblock(work.device, superblock)
}

fn field(work: &Work<'_>, code: Code, sb: &mut DiskSuperblock) {
    let geometry = &work.volume().geometry;
    let extra = (geometry.inode_size.saturating_sub(128)).min(EXTRA) as u16;
    let compat = |sb: &mut DiskSuperblock, set: Compat, clear: Compat| {
        sb.s_feature_compat = (sb.s_feature_compat.get() & !clear.bits() | set.bits()).into();
    };
    let incompat = |sb: &mut DiskSuperblock, set: Incompat, clear: Incompat| {
        sb.s_feature_incompat = (sb.s_feature_incompat.get() & !clear.bits() | set.bits()).into();
    };
    let ro_compat = |sb: &mut DiskSuperblock, set: RoCompat, clear: RoCompat| {
        sb.s_feature_ro_compat = (sb.s_feature_ro_compat.get() & !clear.bits() | set.bits()).into();
    };
    let now = (work.now32(), (work.now >> 32) as u8);
    match code {
        Code::UuidMissing => {
            // all metadata checksums are seeded with the UUID
            let seeded = Incompat::from_bits_retain(sb.s_feature_incompat.get()).contains(Incompat::CSUM_SEED);
            if !geometry.metadata_csum || seeded {
                sb.s_uuid = new_uuid(sb, work.now);
            }
        }
        Code::HurdHasFileType => incompat(sb, Incompat::empty(), Incompat::FILETYPE),
        Code::ReservedGdtBlocksWithoutFeature => sb.s_reserved_gdt_blocks = 0.into(),
        Code::ResizeInodeWithMetaGroups => {
            compat(sb, Compat::empty(), Compat::RESIZE_INODE);
            sb.s_reserved_gdt_blocks = 0.into();
        }
        Code::BothChecksumFeatures => ro_compat(sb, RoCompat::empty(), RoCompat::GDT_CSUM),
        Code::SixtyFourBitWithoutExtents => incompat(sb, Incompat::EXTENT, Incompat::empty()),
        Code::ChecksumSeedWithoutChecksums => incompat(sb, Incompat::empty(), Incompat::CSUM_SEED),
        Code::TestFlagSet => sb.s_flags = (sb.s_flags.get() & !Flags::TEST_FILESYS.bits()).into(),
        Code::DirectoryHashSignUnknown => sb.s_flags = (sb.s_flags.get() | Flags::SIGNED_HASH.bits()).into(),
        Code::DefaultHashInvalid => sb.s_def_hash_version = 1,
        Code::JournalDeviceBesideInode => sb.s_journal_dev = 0.into(),
        Code::MinExtraSizeWrong => sb.s_min_extra_isize = extra.into(),
        Code::WantExtraSizeWrong => sb.s_want_extra_isize = extra.into(),
        Code::LargeFileFeatureMissing => ro_compat(sb, RoCompat::LARGE_FILE, RoCompat::empty()),
        Code::LargeDirFeatureMissing => incompat(sb, Incompat::LARGE_DIR, Incompat::empty()),
        Code::DirNlinkFeatureMissing => ro_compat(sb, RoCompat::DIR_NLINK, RoCompat::empty()),
        Code::LastMountInFuture | Code::LastMountBarelyInFuture => {
            (sb.s_mtime, sb.s_mtime_hi) = (now.0.into(), now.1);
        }
        Code::LastWriteInFuture | Code::LastWriteBarelyInFuture => {
            (sb.s_wtime, sb.s_wtime_hi) = (now.0.into(), now.1);
        }
        Code::RepairLogDamaged => redo::clear_pointer(sb.as_mut_bytes()),
        Code::SystemInodeWithoutFeature => {
            for (field, _) in superblock::own_files_without_feature(sb, geometry) {
                *own_file(sb, field) = 0.into();
            }
        }
        Code::QuotaInodeElsewhere => {
            for (field, _, right) in quota::misled(work.view.scanner, work.volume()) {
                *own_file(sb, field) = right.into();
            }
        }
        Code::QuotaInodeNumberWrong => {
            for number in [&mut sb.s_usr_quota_inum, &mut sb.s_grp_quota_inum, &mut sb.s_prj_quota_inum] {
                let quota = number.get();
                if quota < geometry.first_inode && ![0, 3, 4].contains(&quota) || quota > geometry.inodes {
                    *number = 0.into();
                }
            }
        }
        _ => {}
    }
}

/// The field that names a system inode.
fn own_file<'a>(sb: &'a mut DiskSuperblock, field: &str) -> &'a mut U32 {
    match field {
        "s_usr_quota_inum" => &mut sb.s_usr_quota_inum,
        "s_grp_quota_inum" => &mut sb.s_grp_quota_inum,
        "s_prj_quota_inum" => &mut sb.s_prj_quota_inum,
        _ => &mut sb.s_orphan_file_inum,
    }
}

/// Converts a superblock to a revision with features: in revision 0 the first inode and the inode size were implicit.
pub(super) fn have_features(sb: &mut DiskSuperblock) {
    if sb.s_rev_level.get() == 0 {
        sb.s_rev_level = 1.into();
        sb.s_first_ino = 11.into();
        sb.s_inode_size = 128.into();
        (sb.s_feature_compat, sb.s_feature_incompat, sb.s_feature_ro_compat) = (0.into(), 0.into(), 0.into());
    }
}

/// Sets the features that a file on the volume needs.
pub(super) fn add_features(work: &Work<'_>, problems: &[&Problem]) -> Result<()> {
    let needs = |p: &&&Problem| {
        matches!(p.code, Code::LargeFileFeatureMissing | Code::LargeDirFeatureMissing | Code::DirNlinkFeatureMissing)
    };
    if !problems.iter().any(|p| needs(&p)) {
        return Ok(());
    }
    work.make_stale();
    work.edit_superblock(|sb| {
        have_features(sb);
        for problem in problems.iter().filter(needs) {
            field(work, problem.code, sb);
        }
    })
}

/// A version 4 UUID derived from the superblock and the time, so that an interrupted repair that is repeated with the
/// same time has the same result.
fn new_uuid(sb: &DiskSuperblock, now: u64) -> [u8; 16] {
    let mut uuid = [0; 16];
    for (half, bytes) in (0u8..).zip(uuid.chunks_exact_mut(8)) {
        let mut hasher = DefaultHasher::new();
        hasher.write(sb.as_bytes());
        hasher.write_u64(now);
        hasher.write_u8(half);
        bytes.copy_from_slice(&hasher.finish().to_le_bytes());
    }
    uuid[6] = uuid[6] & 0x0F | 0x40;
    uuid[8] = uuid[8] & 0x3F | 0x80;
    uuid
}

/// Whether the superblock has the volume state that [`mark`] would set.
pub(super) fn is_marked(device: &Overlay, consistent: bool) -> Result<bool> {
    let state = State::from_bits_retain(read_superblock(device)?.s_state.get());
    Ok(state.contains(State::VALID) == consistent && !(consistent && state.contains(State::ERROR)))
}

/// Sets the error flag in a superblock that is marked clean. A superblock with a wrong checksum is not changed: its
/// state is unknown, and the checksum alone makes each run check the volume. Returns whether it was changed.
pub(super) fn mark_errors(device: &Overlay) -> Result<bool> {
    let mut sb = read_superblock(device)?;
    let state = State::from_bits_retain(sb.s_state.get());
    let summed = sb.features().ro_compat.contains(RoCompat::METADATA_CSUM);
    let intact = !summed || sb.checksum() == sb.s_checksum.get();
    if sb.s_magic.get() != format::superblock::MAGIC
        || !intact
        || !state.contains(State::VALID)
        || state.contains(State::ERROR)
    {
        return Ok(false);
    }
    sb.s_state = (state | State::ERROR).bits().into();
    write_superblock(device, sb)?;
    Ok(true)
}

/// Records the check in the superblock, as e2fsck does: time of the check, mount count, state; and where the volume is
/// consistent, clears the recorded errors. Returns whether the volume is now marked clean and was not before.
pub(super) fn mark(device: &Overlay, now: u64, consistent: bool) -> Result<bool> {
    let mut sb = read_superblock(device)?;
    if sb.s_magic.get() != format::superblock::MAGIC {
        return Ok(false);
    }
    let mut state = State::from_bits_retain(sb.s_state.get());
    let made_valid = consistent && !state.contains(State::VALID);
    if consistent {
        state = (state | State::VALID) - State::ERROR;
        sb.s_error_count = 0.into();
        (sb.s_first_error_time, sb.s_first_error_time_hi) = (0.into(), 0);
        (sb.s_last_error_time, sb.s_last_error_time_hi) = (0.into(), 0);
        (sb.s_first_error_ino, sb.s_last_error_ino) = (0.into(), 0.into());
        (sb.s_first_error_block, sb.s_last_error_block) = (0.into(), 0.into());
        (sb.s_first_error_line, sb.s_last_error_line) = (0.into(), 0.into());
        (sb.s_first_error_func, sb.s_last_error_func) = ([0; 32], [0; 32]);
        (sb.s_first_error_errcode, sb.s_last_error_errcode) = (0, 0);
    } else {
        state -= State::VALID;
    }
    sb.s_state = state.bits().into();
    sb.s_mnt_count = 0.into();
    (sb.s_lastcheck, sb.s_lastcheck_hi) = ((now as u32).into(), (now >> 32) as u8);
    (sb.s_wtime, sb.s_wtime_hi) = ((now as u32).into(), (now >> 32) as u8);
    write_superblock(device, sb)?;
    Ok(made_valid)
}
