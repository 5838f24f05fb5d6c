//! The usage of users, groups and projects, counted over all inodes and compared with the quota files.

use crate::context::Context;
use crate::problem::Problem;
use crate::scan::Scanner;
use crate::system_inode::{SystemInode, read_slot};
use crate::table::Code;
use crate::volume::Volume;
use format::feature::{Incompat, RoCompat};
use format::inode::{FileKind, InodeFlags, RawInode};
use format::quota::{BLOCK_SIZE, Entry, Kind, QuotaFile};
use format::superblock::DiskSuperblock;
use format::{Error, InodeNo, Structure};
use std::collections::HashMap;

/// The usage of one id.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Use {
    pub(crate) bytes: u64,
    pub(crate) inodes: u64,
}

impl Use {
    fn add(&mut self, other: Self) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.inodes = self.inodes.saturating_add(other.inodes);
    }
}

/// The usage of every id. Each thread has its own counts, which are added.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    users: HashMap<u32, Use>,
    groups: HashMap<u32, Use>,
    projects: HashMap<u32, Use>,
    /// User, group and project of the inodes whose attributes may have values in other inodes.
    owners: HashMap<InodeNo, [u32; 3]>,
}

impl Usage {
    /// Counts an inode in use, where the volume has quota. The volume's own inodes are not charged.
    pub(crate) fn count(&mut self, volume: &Volume, inode: InodeNo, raw: &RawInode<'_>) {
        let features = volume.features.ro_compat;
        if !features.contains(RoCompat::QUOTA) {
            return;
        }
        let own = [volume.disk.s_prj_quota_inum, volume.disk.s_orphan_file_inum].map(|n| n.get());
        let ordinary = inode.get() >= volume.geometry.first_inode && !own.contains(&inode.get());
        if !ordinary && inode != InodeNo::ROOT {
            return;
        }
        // the owners of the files that share the value are charged instead
        if raw.flags().contains(InodeFlags::EA_INODE) {
            return;
        }
        let attributes = raw.file_acl(true).get() != 0 || raw.attribute_area().iter().any(|byte| *byte != 0);
        if attributes && volume.features.incompat.contains(Incompat::EA_INODE) {
            self.owners.insert(inode, [raw.uid(), raw.gid(), raw.project()]);
        }
        let sectors = raw.sectors(features.contains(RoCompat::HUGE_FILE), volume.geometry.block_size);
        let used = Use { bytes: sectors.saturating_mul(512), inodes: 1 };
        self.users.entry(raw.uid()).or_default().add(used);
        self.groups.entry(raw.gid()).or_default().add(used);
        self.projects.entry(raw.project()).or_default().add(used);
    }

    /// Charges attribute values in other inodes to the inodes that share them, each as one inode; their blocks are
    /// already counted.
    pub(crate) fn charge(&mut self, values: impl IntoIterator<Item = (InodeNo, u64)>) {
        for (inode, count) in values {
            let Some([user, group, project]) = self.owners.get(&inode).copied() else { continue };
            let more = Use { bytes: 0, inodes: count };
            self.users.entry(user).or_default().add(more);
            self.groups.entry(group).or_default().add(more);
            self.projects.entry(project).or_default().add(more);
        }
    }

    /// The usage of the ids of one kind.
    pub(crate) fn of(&self, kind: Kind) -> impl Iterator<Item = (u32, Use)> + '_ {
        let all = match kind {
            Kind::User => &self.users,
            Kind::Group => &self.groups,
            Kind::Project => &self.projects,
        };
        all.iter().map(|(id, used)| (*id, *used))
    }

    /// Adds what another thread counted.
    pub(crate) fn append(&mut self, other: &mut Self) {
        self.owners.extend(other.owners.drain());
        for (all, more) in [
            (&mut self.users, &mut other.users),
            (&mut self.groups, &mut other.groups),
            (&mut self.projects, &mut other.projects),
        ] {
            for (id, used) in more.drain() {
                all.entry(id).or_default().add(used);
            }
        }
    }
}

/// The inodes of the quota files by the superblock: each field, its number and the kind.
fn numbers(disk: &DiskSuperblock) -> [(&'static str, InodeNo, Kind); 3] {
    [
        ("s_usr_quota_inum", InodeNo(disk.s_usr_quota_inum.get()), Kind::User),
        ("s_grp_quota_inum", InodeNo(disk.s_grp_quota_inum.get()), Kind::Group),
        ("s_prj_quota_inum", InodeNo(disk.s_prj_quota_inum.get()), Kind::Project),
    ]
}

/// Superblock fields that name an inode other than a quota file of that kind, on a volume with quota: the field, the
/// inode, and the right value, which is the reserved inode where that is such a file, else 0. A wrong quota file is
/// rewritten, and the inode in the field may be a user's file.
pub(crate) fn misled(scanner: &Scanner<'_>, volume: &Volume) -> Vec<(&'static str, InodeNo, u32)> {
    if !volume.features.ro_compat.contains(RoCompat::QUOTA) {
        return Vec::new();
    }
    let fields = numbers(&volume.disk);
    let mut misled = Vec::new();
    for (field, number, kind) in fields {
        let reserved = match kind {
            Kind::User => Some(InodeNo::USER_QUOTA),
            Kind::Group => Some(InodeNo::GROUP_QUOTA),
            Kind::Project => None,
        };
        let ordinary = number.get() >= volume.geometry.first_inode && number.get() <= volume.geometry.inodes;
        // the reserved inode of another kind
        let other = Some(number) != reserved && [InodeNo::USER_QUOTA, InodeNo::GROUP_QUOTA].contains(&number);
        if !(ordinary || other || number == InodeNo::ROOT) || has_header(scanner, volume, number, kind) {
            continue;
        }
        // a quota file with a damaged header still has the attributes that mkfs sets, and is not of another kind
        let others = [Kind::User, Kind::Group, Kind::Project].into_iter().filter(|other| *other != kind);
        if !other
            && is_hidden(scanner, volume, number)
            && !others.into_iter().any(|kind| has_header(scanner, volume, number, kind))
        {
            continue;
        }
        let there = reserved.filter(|reserved| has_header(scanner, volume, *reserved, kind));
        misled.push((field, number, there.map_or(0, InodeNo::get)));
    }
    misled
}

fn has_header(scanner: &Scanner<'_>, volume: &Volume, number: InodeNo, kind: Kind) -> bool {
    let Some(file) = SystemInode::read(scanner, volume, number) else { return false };
    let block = file.read_block(scanner, volume, 0);
    block.is_some_and(|block| QuotaFile::parse(&block, kind, file.size).is_ok())
}

/// Whether an inode has the attributes that mkfs sets for quota files: immutable, owned by root, one link.
fn is_hidden(scanner: &Scanner<'_>, volume: &Volume, number: InodeNo) -> bool {
    let Some(slot) = read_slot(scanner, volume, number) else { return false };
    RawInode::from_slot(&slot).is_some_and(|raw| {
        raw.flags().contains(InodeFlags::IMMUTABLE)
            && raw.kind() == Some(FileKind::Regular)
            && raw.uid() == 0
            && raw.disk.i_links_count.get() == 1
    })
}

/// Compares each quota file with the usage.
pub(crate) fn check(scanner: &Scanner<'_>, ctx: &Context<'_>, usage: &Usage) {
    let disk = &ctx.volume.disk;
    if !ctx.volume.features.ro_compat.contains(RoCompat::QUOTA) {
        return;
    }
    for ((_, inode, kind), used) in numbers(disk).into_iter().zip([&usage.users, &usage.groups, &usage.projects]) {
        if inode.get() == 0 {
            continue;
        }
        let problem = Problem::new(Code::QuotaUsageWrong).inode(inode);
        match stated(scanner, ctx.volume, inode, kind) {
            Ok(stated) if stated.size > MOST_BYTES => {
                ctx.report(problem.found(stated.size).name(format!("size is {}", stated.size)));
            }
            Ok(stated) => {
                if let Some(id) = differing_id(stated, used) {
                    ctx.report(problem.found(id.into()).name(format!("usage of id {id} is wrong")));
                }
            }
            Err(error) => ctx.report(problem.name(error.to_string())),
        }
    }
}

/// Maximum size of a quota file in bytes, as in e2fsck.
const MOST_BYTES: u64 = 1 << 31;

/// The content of a quota file.
#[derive(Debug, Default)]
pub(crate) struct Stated {
    /// The file's size.
    size: u64,
    pub(crate) entries: Vec<Entry>,
    /// Seconds for which the soft limits of blocks and of inodes may be exceeded.
    pub(crate) grace: Option<(u32, u32)>,
}

/// Reads a quota file.
pub(crate) fn stated(scanner: &Scanner<'_>, volume: &Volume, inode: InodeNo, kind: Kind) -> Result<Stated, Error> {
    let unreadable = || Error::corrupt(Structure::Quota, "cannot be read");
    let file = SystemInode::read(scanner, volume, inode).ok_or_else(unreadable)?;
    let read = |n: u32, bytes: &mut [u8; BLOCK_SIZE]| {
        let at = u64::from(n) * BLOCK_SIZE as u64;
        let block_size = u64::from(volume.geometry.block_size);
        let block = file.block(at / block_size).and_then(|block| volume.offset(block)).ok_or_else(unreadable)?;
        let offset = block + at % block_size;
        scanner.counters.count(offset, BLOCK_SIZE as u64);
        scanner.device.read(offset, bytes).map_err(|_| unreadable())
    };
    let mut header = [0; BLOCK_SIZE];
    read(0, &mut header)?;
    let quota = QuotaFile::parse(&header, kind, file.size)?;
    let mut entries = Vec::new();
    quota.walk(read, |entry| entries.push(entry))?;
    let grace = (quota.disk().dqi_bgrace.get(), quota.disk().dqi_igrace.get());
    Ok(Stated { size: file.size, entries, grace: Some(grace) })
}

/// The smallest id whose usage is wrong in the file or missing.
fn differing_id(stated: Stated, used: &HashMap<u32, Use>) -> Option<u32> {
    let stated: HashMap<u32, Use> =
        stated.entries.into_iter().map(|e| (e.id, Use { bytes: e.bytes, inodes: e.inodes })).collect();
    let nothing = Use::default();
    let wrong = stated.iter().filter(|(id, stated)| **stated != used.get(id).copied().unwrap_or(nothing));
    let missing = used.keys().filter(|id| !stated.contains_key(id));
    wrong.map(|(id, _)| *id).chain(missing.copied()).min()
}
