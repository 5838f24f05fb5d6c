//! Superblocks as read: those that describe a possible volume are accepted.

use crate::memory;
use crate::options::Refusal;
use crate::phases::superblock::descriptors::Table;
use crate::scan::Scanner;
use format::feature::{Compat, ExtantRo, Features, Incompat, RoCompat};
use format::superblock::{self, DiskSuperblock, Geometry};
use format::{FsBlock, GroupNo};

/// The first inode that is not reserved, on all volumes created by mkfs.
pub(super) const FIRST_INODE: u32 = 11;

/// The reason why a superblock was rejected.
pub(super) enum Rejection {
    /// It contradicts itself; a copy may be better.
    Corrupt(String),
    /// It contradicts itself in a field for which e2fsck does not try a copy and aborts.
    Field(String),
    /// The volume cannot be checked by this version, or the superblock contradicts itself in a way for which no copy is
    /// tried, as in e2fsck.
    Final(String),
}

/// A superblock that describes a possible volume.
#[derive(Clone)]
pub(super) struct Accepted {
    pub(super) disk: DiskSuperblock,
    pub(super) geometry: Geometry,
    /// Its first byte on the device.
    pub(super) at: u64,
}

impl Accepted {
    /// The group of the superblock: 0 for the primary.
    pub(super) fn group(&self) -> GroupNo {
        self.geometry.group_of(self.block()).unwrap_or(GroupNo(0))
    }

    /// The block of the superblock.
    pub(super) fn block(&self) -> FsBlock {
        FsBlock(self.at / u64::from(self.geometry.block_size))
    }

    /// Whether the volume is as long as the device.
    pub(super) fn fits(&self, scanner: &Scanner<'_>) -> bool {
        self.geometry.blocks == scanner.device.geometry().len / u64::from(self.geometry.block_size)
    }
}

pub(super) fn read_superblock(scanner: &Scanner<'_>, at: u64) -> Result<DiskSuperblock, Rejection> {
    let corrupt = |what: &str| Rejection::Corrupt(what.to_owned());
    let mut bytes = [0; DiskSuperblock::SIZE];
    if at.checked_add(bytes.len() as u64).is_none_or(|end| end > scanner.device.geometry().len) {
        return Err(corrupt("the device ends before the superblock does"));
    }
    scanner.counters.count(at, bytes.len() as u64);
    scanner.device.read(at, &mut bytes).map_err(|error| corrupt(&error.to_string()))?;
    DiskSuperblock::from_slice(&bytes).ok_or_else(|| corrupt("the device ends before the superblock does"))
}

pub(super) fn accept_at(scanner: &Scanner<'_>, at: u64) -> Result<Accepted, Rejection> {
    let disk = read_superblock(scanner, at)?;
    let geometry = check(&disk)?;
    Ok(Accepted { disk, geometry, at })
}

/// The geometry of a volume by its superblock; `None` where it describes none that we can check.
pub(crate) fn geometry_of(disk: &DiskSuperblock) -> Option<Geometry> {
    check(disk).ok()
}

/// Whether a superblock describes a volume that we can check.
pub(super) fn check(disk: &DiskSuperblock) -> Result<Geometry, Rejection> {
    let corrupt = |what: &str| Err(Rejection::Corrupt(what.to_owned()));
    if disk.s_magic.get() != superblock::MAGIC {
        return corrupt("the superblock's magic number is missing");
    }
    let features = disk.features();
    let summed = features.ro_compat.contains(RoCompat::METADATA_CSUM);
    // before any other field is trusted
    if summed && disk.checksum() != disk.s_checksum.get() {
        return corrupt("the superblock's checksum does not match");
    }
    if disk.s_rev_level.get() > 1 {
        return Err(Rejection::Final(format!("revision {} of the format is not known", disk.s_rev_level)));
    }
    if summed && disk.s_checksum_type != 1 {
        let what = format!("checksums of type {} are not known", disk.s_checksum_type);
        return Err(Rejection::Final(what));
    }
    check_features(disk, &features)?;
    if disk.first_inode() < 11 || disk.first_inode() > disk.s_inodes_count.get() {
        return Err(Rejection::Field(format!("the superblock's s_first_ino is {}", disk.first_inode())));
    }
    if u32::from(disk.s_reserved_gdt_blocks.get()) > 256u32.checked_shl(disk.s_log_block_size.get()).unwrap_or(0) {
        return Err(Rejection::Field(format!(
            "the superblock's s_reserved_gdt_blocks is {}",
            disk.s_reserved_gdt_blocks
        )));
    }
    // with these values e2fsck's block count for a superblock and its descriptors overflows to 0, and it continues
    let first = disk.s_first_meta_bg.get();
    if features.incompat.contains(Incompat::META_BG) && first >= u32::MAX - 1 {
        return Err(Rejection::Field(format!("the superblock's s_first_meta_bg is {first}")));
    }
    let descriptor = disk.s_desc_size.get();
    let wide = features.incompat.contains(Incompat::BIT64);
    // also checked without 64bit, except for the size, which means nothing then
    let possible = descriptor.is_power_of_two() && descriptor <= 1024 && (descriptor >= 64 || !wide);
    if !(possible || descriptor == 0 && !wide) {
        return Err(Rejection::Field(format!("the superblock's s_desc_size is {descriptor}")));
    }
    let mut geometry = Geometry::of(disk).map_err(|error| Rejection::Corrupt(error.to_string()))?;
    // blocks reserved for growth belong to the groups whether or not the resize inode lists them; meta groups do not
    // use them
    let reserved = disk.s_reserved_gdt_blocks.get();
    geometry.reserved_descriptor_blocks =
        if features.incompat.contains(Incompat::META_BG) { 0 } else { u32::from(reserved) };
    let bigalloc = features.ro_compat.contains(RoCompat::BIGALLOC);
    if !bigalloc && disk.s_log_cluster_size != disk.s_log_block_size {
        return corrupt("s_log_cluster_size differs from s_log_block_size, but there are no clusters");
    }
    if !bigalloc && disk.s_clusters_per_group != disk.s_blocks_per_group {
        return corrupt("s_clusters_per_group differs from s_blocks_per_group, but there are no clusters");
    }
    if disk.s_log_groups_per_flex > 31 {
        return corrupt("s_log_groups_per_flex is 32 or more");
    }
    Ok(geometry)
}

/// Rejects unknown features: their structures would be reported as damage.
fn check_features(disk: &DiskSuperblock, features: &Features) -> Result<(), Rejection> {
    features.check_readable().map_err(|error| Rejection::Final(error.to_string()))?;
    disk.extant().check_readable().map_err(|error| Rejection::Final(error.to_string()))?;
    let extant = disk.extant_ro();
    if extant.bits() & !ExtantRo::all().bits() != 0 {
        let names = ExtantRo::from_bits_retain(extant.bits() & !ExtantRo::all().bits()).names().join(", ");
        return Err(Rejection::Final(format!("the volume uses {names}, which this version cannot check")));
    }
    let compat = Compat::all() - Compat::LAZY_BG - Compat::EXCLUDE_INODE - Compat::EXCLUDE_BITMAP;
    let ro_compat = RoCompat::all() - RoCompat::BTREE_DIR - RoCompat::HAS_SNAPSHOT - RoCompat::REPLICA;
    let unknown =
        Features::from_words(features.compat.bits() & !compat.bits(), 0, features.ro_compat.bits() & !ro_compat.bits());
    if unknown != Features::default() {
        let names = unknown.names().join(", ");
        return Err(Rejection::Final(format!("the volume uses {names}, which this version cannot check")));
    }
    if features.incompat.contains(Incompat::CASEFOLD) && disk.s_encoding.get() != 1 {
        let what = format!("the volume's names have encoding {}, which is not known", disk.s_encoding);
        return Err(Rejection::Final(what));
    }
    Ok(())
}

pub(super) fn read_table(scanner: &Scanner<'_>, accepted: &Accepted) -> Result<Table, Refusal> {
    let geometry = &accepted.geometry;
    // before memory is allocated for it
    let bytes = u64::from(geometry.descriptor_blocks) * u64::from(geometry.block_size);
    if bytes > scanner.device.geometry().len {
        return Err(Refusal::new(format!(
            "the superblock has {} groups, more than the device has space for descriptors",
            geometry.groups
        )));
    }
    memory::check_groups(geometry.groups)?;
    if (scanner.cancelled)() {
        return Err(Refusal::cancelled());
    }
    let table = Table::read(scanner, &accepted.disk, geometry, accepted.group());
    // the rest of the table was not read
    if (scanner.cancelled)() { Err(Refusal::cancelled()) } else { Ok(table) }
}
