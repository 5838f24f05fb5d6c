//! The self-check of an inode: everything that can be checked by its own bytes.
//!
//! Runs on several threads over parts of the inode tables, in no particular order. An inode in use is recorded in
//! [`Inodes`](crate::inode_records::Inodes), its data blocks are claimed, and the blocks still to be read for it are
//! passed on in [`Harvest`]. Everything is checked as it is on the device: as nothing is repaired, the other fields of
//! an inode with a wrong field are checked as well.

pub(crate) mod block_maps;
pub(crate) mod encryption_policies;
pub(crate) mod extent_order;
pub(crate) mod file_totals;
mod lookalikes;
pub(crate) mod value_inodes;
pub(crate) mod xattrs;

use self::xattrs::InInode;
use crate::context::Context;
use crate::inode_records::{Directory, InodeRecord, Marks};
use crate::phases::inodes::block_maps::{Trees, words};
use crate::phases::inodes::file_totals::{FileFields, OpenFile, Tally, check_sums};
use crate::phases::quota;
use crate::problem::Problem;
use crate::report::Counts;
use crate::scan::Scanner;
use crate::scan::found::{Found, InlineDirectory, Node, XattrRef};
use crate::scan::regions::Layers;
use crate::scan::walk::Claimer;
use crate::table::Code;
use format::extent::{self, RawNode};
use format::feature::{Compat, Incompat, RoCompat};
use format::inode::{DiskInode, FileKind, InodeFlags, RawInode};
use format::xattr::MAGIC;
use format::{FsBlock, InodeNo};
use parking_lot::Mutex;

/// The findings in the inode tables that are passed on to later rounds.
#[derive(Debug, Default)]
pub(crate) struct Harvest {
    pub(crate) found: Found,
    pub(crate) files: Vec<OpenFile>,
    pub(crate) directories: Vec<Directory>,
    pub(crate) inline: Vec<InlineDirectory>,
    pub(crate) xattrs: Vec<XattrRef>,
    /// Symbolic links whose target is in a block: inode and `i_size`.
    pub(crate) links: Vec<(InodeNo, u64)>,
    /// The contents of the volume.
    pub(crate) counts: Counts,
    /// The first regular file of 2 GiB or more.
    pub(crate) large_file: Option<InodeNo>,
    /// The first directory of 2 GiB or more.
    pub(crate) large_directory: Option<InodeNo>,
    /// The usage of every user, group and project.
    pub(crate) quota: quota::Usage,
}

impl Harvest {
    /// Moves everything from `other` to the end of this.
    pub(crate) fn append(&mut self, other: &mut Self) {
        self.found.append(&mut other.found);
        self.files.append(&mut other.files);
        self.directories.append(&mut other.directories);
        self.inline.append(&mut other.inline);
        self.xattrs.append(&mut other.xattrs);
        self.links.append(&mut other.links);
        self.counts += &other.counts;
        self.large_file = first(self.large_file, other.large_file);
        self.large_directory = first(self.large_directory, other.large_directory);
        self.quota.append(&mut other.quota);
    }
}

/// Checks slots of the inode tables.
pub(crate) struct InodeCheck<'a> {
    pub(crate) ctx: &'a Context<'a>,
    pub(crate) claimer: &'a dyn Claimer,
    /// The reader of the first block of an inode that may be a directory.
    pub(crate) scanner: &'a Scanner<'a>,
    /// The receiver of files whose trees can be assembled from regions.
    pub(crate) layers: Option<&'a Layers<'a>>,
    /// Whether a small deletion time indicates an orphan; `false` where a time in the superblock is as small.
    pub(crate) low_dtime: bool,
}

/// The role of an inode by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    BadBlocks,
    Root,
    Journal,
    Quota,
    OrphanFile,
    /// Another reserved inode.
    Reserved,
    /// A user's file.
    Ordinary,
}

impl InodeCheck<'_> {
    /// Checks one slot.
    pub(crate) fn check(&self, inode: InodeNo, slot: &[u8], harvest: &mut Harvest) {
        let Some(raw) = RawInode::from_slot(slot) else { return };
        let geometry = &self.ctx.volume.geometry;
        let checksum_ok =
            !geometry.metadata_csum || raw.checksum(geometry, inode) == raw.stored_checksum() || raw.is_zero();
        let role = self.role(inode);
        let links = raw.disk.i_links_count.get();
        let orphan = self.ctx.volume.orphans.contains(&inode);
        if role == Role::Ordinary && links == 0 && !orphan {
            self.check_free(inode, &raw, checksum_ok);
            return;
        }
        if !checksum_ok {
            self.wrong_checksum(inode, &raw);
        }
        let mut marks = marks_of(&raw);
        if role != Role::Ordinary || orphan && links == 0 {
            marks |= Marks::OWN;
        }
        let (kind, ordinary) = (raw.kind(), matches!(role, Role::Ordinary | Role::Root));
        let unused_own = !ordinary && role != Role::BadBlocks && raw.is_zero();
        if self.claimer.is_checking() {
            self.ctx.inodes.put(inode, InodeRecord { kind, marks, links });
        }
        // as e2fsck does, system inodes count as used, but not as files
        harvest.counts.count_inode(kind.filter(|_| ordinary), raw.size());
        harvest.quota.count(self.ctx.volume, inode, &raw);
        if unused_own {
            return;
        }
        self.check_role(inode, role, &raw);
        if !ordinary {
            self.check_own(inode, role, &raw);
        }
        if orphan && links == 0 {
            // only its blocks can still be checked
            let attributes = self.check_extra(inode, &raw);
            let kind = if kind == Some(FileKind::Directory) { Some(FileKind::Regular) } else { kind };
            return self.walk(inode, &raw, kind, attributes.value_clusters, harvest);
        }
        if !ordinary {
            self.check_own_flags(inode, role, &raw);
            // the resize inode is the only one on most volumes
            self.check_size(inode, &raw, kind.filter(|kind| *kind == FileKind::Regular), harvest);
            if role != Role::BadBlocks || self.bad_blocks_shape(inode, &raw) {
                self.walk(inode, &raw, kind, 0, harvest);
            }
            return;
        }
        if raw.disk.i_dtime.get() != 0 && role == Role::Ordinary && !orphan {
            // a link of an intact list is right
            match self.is_low_dtime(&raw) {
                true if self.ctx.volume.pending.contains(&inode) => {}
                true => self.report(Problem::new(Code::OrphanLinkInDeletionTime).inode(inode)),
                false => self.report(Problem::new(Code::InodeInUseHasDeletionTime).inode(inode)),
            }
        }
        self.check_fields(inode, &raw, kind);
        if self.claimer.is_checking() && lookalikes::like_directory(self.scanner, self.ctx.volume, inode, &raw) {
            self.report(Problem::new(Code::LooksLikeDirectory).inode(inode).name(lookalikes::kind_name(kind)));
        }
        self.check_size(inode, &raw, kind, harvest);
        let attributes = self.check_extra(inode, &raw);
        self.check_map_flags(inode, &raw, kind, &attributes);
        self.check_kind(inode, &raw, kind, &attributes, harvest);
    }

    /// Checks that a system inode has nothing that only users' inodes may have.
    fn check_own(&self, inode: InodeNo, role: Role, raw: &RawInode<'_>) {
        let (flags, kind) = (raw.flags(), raw.kind());
        let report = |wrong: bool, code| {
            if wrong {
                self.report(Problem::new(code).inode(inode));
            }
        };
        let features = &self.ctx.volume.features;
        let (reserved, named) = (role == Role::Reserved, role != Role::BadBlocks);
        let maps_growth = inode == InodeNo::RESIZE && raw.disk.i_block != [0; 60];
        report(maps_growth && !features.compat.contains(Compat::RESIZE_INODE), Code::ResizeInodeNotClear);
        report(self.is_low_dtime(raw), Code::OrphanLinkInDeletionTime);
        report(reserved && flags.contains(InodeFlags::EXTENTS | InodeFlags::INLINE_DATA), Code::InodeMapUndecidable);
        let has_extents = reserved && flags.contains(InodeFlags::EXTENTS);
        report(has_extents && !features.incompat.contains(Incompat::EXTENT), Code::ExtentFlagWithoutFeature);
        let has_value = reserved && flags.contains(InodeFlags::EA_INODE);
        report(has_value && kind != Some(FileKind::Regular), Code::XattrValueInodeNotRegular);
        let no_directory = named && kind != Some(FileKind::Directory);
        report(no_directory && flags.contains(InodeFlags::INDEX), Code::HtreeFlagOnNonDirectory);
        report(no_directory && flags.contains(InodeFlags::CASEFOLD), Code::CasefoldFlagOnNonDirectory);
    }

    /// Records large files and directories, which require a feature.
    fn check_size(&self, inode: InodeNo, raw: &RawInode<'_>, kind: Option<FileKind>, harvest: &mut Harvest) {
        if raw.size() < 1 << 31 {
            return;
        }
        match kind {
            Some(FileKind::Regular) => harvest.large_file = first(harvest.large_file, Some(inode)),
            Some(FileKind::Directory) => harvest.large_directory = first(harvest.large_directory, Some(inode)),
            _ => {}
        }
    }

    /// Checks a slot without links, which is free and should have a deletion time.
    fn check_free(&self, inode: InodeNo, raw: &RawInode<'_>, checksum_ok: bool) {
        if !checksum_ok {
            self.wrong_checksum(inode, raw);
        }
        let dtime = raw.disk.i_dtime.get();
        if raw.disk.i_mode.get() != 0 && dtime == 0 {
            self.report(Problem::new(Code::DeletedInodeWithoutTime).inode(inode));
        } else if dtime != 0 && self.is_low_dtime(raw) {
            self.report(Problem::new(Code::OrphanLinkInDeletionTime).inode(inode));
        }
    }

    fn wrong_checksum(&self, inode: InodeNo, raw: &RawInode<'_>) {
        let (stored, computed) = (raw.stored_checksum(), raw.checksum(&self.ctx.volume.geometry, inode));
        let problem = Problem::new(Code::InodeChecksumWrong).inode(inode);
        self.report(problem.found(stored.into()).expected(computed.into()));
    }

    /// Whether the deletion time is smaller than the number of inodes, and so a link of the orphan list.
    fn is_low_dtime(&self, raw: &RawInode<'_>) -> bool {
        let dtime = raw.disk.i_dtime.get();
        self.low_dtime && dtime != 0 && dtime < self.ctx.volume.geometry.inodes
    }

    fn role(&self, inode: InodeNo) -> Role {
        let volume = self.ctx.volume;
        let disk = &volume.disk;
        let n = inode.get();
        if n >= volume.geometry.first_inode {
            let orphans = volume.features.compat.contains(Compat::ORPHAN_FILE) && n == disk.s_orphan_file_inum.get();
            // regardless of the features, as for user and group quota
            let project = n == disk.s_prj_quota_inum.get();
            return match (orphans, project) {
                (true, _) => Role::OrphanFile,
                (_, true) => Role::Quota,
                _ => Role::Ordinary,
            };
        }
        match inode {
            InodeNo::BAD_BLOCKS => Role::BadBlocks,
            InodeNo::ROOT => Role::Root,
            InodeNo::JOURNAL => Role::Journal,
            InodeNo::USER_QUOTA | InodeNo::GROUP_QUOTA => Role::Quota,
            _ => Role::Reserved,
        }
    }

    /// Checks that a system inode has the type that its number requires.
    fn check_role(&self, inode: InodeNo, role: Role, raw: &RawInode<'_>) {
        let features = &self.ctx.volume.features;
        let regular = raw.kind() == Some(FileKind::Regular);
        let has_content =
            raw.disk.i_links_count.get() != 0 || raw.disk.i_blocks_lo.get() != 0 || raw.block_words::<1>() != [0];
        let mode = raw.disk.i_mode.get();
        let code = match role {
            Role::Root if raw.kind() != Some(FileKind::Directory) => Some(Code::RootNotDirectory),
            Role::Root if raw.disk.i_dtime.get() != 0 => Some(Code::RootHasDeletionTime),
            Role::Journal if self.is_journal(inode) => (!regular).then_some(Code::JournalInodeModeWrong),
            Role::Journal => has_content.then_some(Code::JournalInodeNotClear),
            Role::Quota if features.ro_compat.contains(RoCompat::QUOTA) && self.is_quota(inode) => {
                (!regular).then_some(Code::QuotaInodeModeWrong)
            }
            Role::Quota => has_content.then_some(Code::QuotaInodeNotClear),
            Role::OrphanFile => (!regular).then_some(Code::OrphanFileModeWrong),
            Role::Reserved => match inode {
                InodeNo::BOOT_LOADER => raw.kind() == Some(FileKind::Directory),
                InodeNo::RESIZE => mode != 0 && !regular,
                _ => mode != 0,
            }
            .then_some(Code::ReservedInodeModeWrong),
            _ => None,
        };
        if let Some(code) = code {
            self.report(Problem::new(code).inode(inode).found(u64::from(mode)));
        }
        // its number is an ordinary one: without links the kernel and e2fsck consider it free
        if role == Role::OrphanFile && raw.disk.i_links_count.get() == 0 {
            self.report(Problem::new(Code::LinkCountWrong).inode(inode).found(0).expected(1));
        }
    }

    /// Checks that a system inode has neither the inline data nor the encrypt flag: if trusted, the first would free
    /// all of its blocks.
    fn check_own_flags(&self, inode: InodeNo, role: Role, raw: &RawInode<'_>) {
        let flags = raw.flags();
        let report = |code| self.report(Problem::new(code).inode(inode));
        if flags.contains(InodeFlags::INLINE_DATA) {
            report(if flags.contains(InodeFlags::EXTENTS) {
                Code::InlineInodeHasExtentFlag
            } else if !self.ctx.volume.features.incompat.contains(Incompat::INLINE_DATA) {
                Code::InlineDataFeatureMissing
            } else {
                Code::InlineDataXattrMissing
            });
        }
        if role == Role::Journal && flags.contains(InodeFlags::ENCRYPT) {
            report(Code::EncryptionXattrMissing);
        }
    }

    fn is_journal(&self, inode: InodeNo) -> bool {
        // regardless of the features, which phase 0 checks
        self.ctx.volume.disk.s_journal_inum.get() == inode.get()
    }

    fn is_quota(&self, inode: InodeNo) -> bool {
        let disk = &self.ctx.volume.disk;
        let named = match inode {
            InodeNo::USER_QUOTA => disk.s_usr_quota_inum,
            InodeNo::GROUP_QUOTA => disk.s_grp_quota_inum,
            _ => disk.s_prj_quota_inum,
        };
        named.get() == inode.get()
    }

    /// Whether the bad blocks inode has a block map and nothing else.
    fn bad_blocks_shape(&self, inode: InodeNo, raw: &RawInode<'_>) -> bool {
        let d = raw.disk;
        let clean = d.i_mode.get() == 0
            && raw.uid() == 0
            && raw.gid() == 0
            && d.i_links_count.get() == 0
            && d.i_file_acl_lo.get() == 0
            && !raw.flags().intersects(InodeFlags::EXTENTS | InodeFlags::INLINE_DATA);
        if !clean {
            self.report(Problem::new(Code::BadBlocksInodeInvalid).inode(inode));
        }
        clean
    }

    /// Checks fields that must be zero, or whose meaning depends on a feature.
    fn check_fields(&self, inode: InodeNo, raw: &RawInode<'_>, kind: Option<FileKind>) {
        let features = &self.ctx.volume.features;
        let d = raw.disk;
        let report = |code, found: u64| self.report(Problem::new(code).inode(inode).found(found));
        if kind.is_none() {
            report(Code::InodeModeWrong, u64::from(d.i_mode.get()));
        }
        if d.i_obso_faddr.get() != 0 {
            report(Code::FragmentAddressNotZero, u64::from(d.i_obso_faddr.get()));
        }
        let linux = self.ctx.volume.disk.s_creator_os.get() == 0;
        if linux && !features.incompat.contains(Incompat::BIT64) && d.i_file_acl_high.get() != 0 {
            report(Code::XattrBlockHighNotZero, u64::from(d.i_file_acl_high.get()));
        }
        if linux && !features.ro_compat.contains(RoCompat::HUGE_FILE) && d.i_blocks_high.get() != 0 {
            report(Code::BlockCountHighNotZero, u64::from(d.i_blocks_high.get()));
        }
        let flags = raw.flags();
        if flags.contains(InodeFlags::IMAGIC) && !features.compat.contains(Compat::IMAGIC_INODES) {
            report(Code::ImagicFlagWithoutFeature, u64::from(flags.bits()));
        }
        if flags.contains(InodeFlags::CASEFOLD) {
            if kind != Some(FileKind::Directory) {
                report(Code::CasefoldFlagOnNonDirectory, u64::from(d.i_mode.get()));
            } else if !features.incompat.contains(Incompat::CASEFOLD) {
                report(Code::CasefoldFlagWithoutFeature, u64::from(flags.bits()));
            }
        }
        if flags.contains(InodeFlags::EA_INODE) && self.claimer.is_checking() {
            xattrs::found_value_inode(self.ctx, inode, raw);
        }
    }

    /// Checks the fields and attributes beyond the first 128 bytes.
    fn check_extra<'b>(&self, inode: InodeNo, raw: &RawInode<'b>) -> InInode<'b> {
        let space = raw.bytes().len().saturating_sub(DiskInode::SIZE);
        let extra = usize::from(raw.extra_isize());
        if space == 0 || extra == 0 {
            if self.claimer.is_checking() {
                xattrs::check_context(self.ctx, inode, raw, false);
            }
            return InInode::default();
        }
        if extra < 4 || extra > space || !extra.is_multiple_of(4) {
            self.report(Problem::new(Code::ExtraSizeWrong).inode(inode).found(extra as u64));
            return InInode::default();
        }
        if !self.claimer.is_checking() {
            return InInode::default();
        }
        let attributes = xattrs::check_in_inode(self.ctx, inode, raw);
        if attributes.encryption {
            self.ctx.inodes.mark(inode, Marks::CONTEXT);
        }
        attributes
    }

    /// Checks the flags for the format of `i_block` against the features and the content of `i_block`.
    fn check_map_flags(&self, inode: InodeNo, raw: &RawInode<'_>, kind: Option<FileKind>, attributes: &InInode<'_>) {
        let features = &self.ctx.volume.features;
        let flags = raw.flags();
        let (extents, inline) = (flags.contains(InodeFlags::EXTENTS), flags.contains(InodeFlags::INLINE_DATA));
        let report = |code| self.report(Problem::new(code).inode(inode));
        if inline {
            if extents {
                report(Code::InlineInodeHasExtentFlag);
            }
            if !features.incompat.contains(Incompat::INLINE_DATA) {
                report(Code::InlineDataFeatureMissing);
            } else if attributes.system_data.is_none() {
                report(Code::InlineDataXattrMissing);
            }
        }
        let header = has_tree(raw);
        let mapped = is_mapped(raw, kind);
        if extents && !inline {
            if !features.incompat.contains(Incompat::EXTENT) {
                report(if header { Code::ExtentFeatureMissing } else { Code::ExtentFlagWithoutFeature });
            } else if mapped && raw.disk.i_block.iter().all(|b| *b == 0) {
                report(Code::ExtentHeaderMissing);
            }
        } else if !inline && mapped && header {
            // the words of an extent header are invalid as block numbers
            report(if features.incompat.contains(Incompat::EXTENT) {
                Code::ExtentFlagMissing
            } else {
                Code::ExtentFeatureMissing
            });
        }
    }

    fn check_kind(
        &self,
        inode: InodeNo,
        raw: &RawInode<'_>,
        kind: Option<FileKind>,
        attributes: &InInode<'_>,
        harvest: &mut Harvest,
    ) {
        let flags = raw.flags();
        let report = |code| self.report(Problem::new(code).inode(inode));
        if kind != Some(FileKind::Directory) && flags.contains(InodeFlags::INDEX) {
            report(Code::HtreeFlagOnNonDirectory);
        }
        match kind {
            Some(FileKind::Directory) => {
                if flags.contains(InodeFlags::INDEX) && !self.ctx.volume.features.compat.contains(Compat::DIR_INDEX) {
                    report(Code::HtreeFlagWithoutFeature);
                }
                if self.claimer.is_checking() {
                    self.found_directory(inode, raw, attributes, harvest);
                }
            }
            Some(FileKind::Symlink) => self.check_link(inode, raw, attributes, &mut harvest.counts),
            Some(FileKind::CharDevice | FileKind::BlockDevice | FileKind::Fifo | FileKind::Socket) => {
                self.check_special(inode, raw, kind);
            }
            Some(FileKind::Regular) | None => {}
        }
        if let Some(data) = attributes.system_data
            && flags.contains(InodeFlags::INLINE_DATA)
        {
            let capacity = (raw.disk.i_block.len() + data.len()) as u64;
            let wrong = match kind {
                Some(FileKind::Directory) => (raw.size() != capacity).then_some(Code::InodeSizeWrong),
                // either the size or that of the attribute is wrong, and the file may lose its end
                _ => (raw.size() > capacity).then_some(Code::InlineDataTooShort),
            };
            if let Some(code) = wrong {
                self.report(Problem::new(code).inode(inode).found(raw.size()).expected(capacity));
            }
        }
        self.walk(inode, raw, kind, attributes.value_clusters, harvest);
    }

    fn found_directory(&self, inode: InodeNo, raw: &RawInode<'_>, attributes: &InInode<'_>, harvest: &mut Harvest) {
        let inline = raw.flags().contains(InodeFlags::INLINE_DATA);
        if inline && raw.flags().contains(InodeFlags::INDEX) {
            self.report(Problem::new(Code::HtreeRootBad).inode(inode));
        }
        let block_size = u64::from(self.ctx.volume.geometry.block_size);
        let blocks = if inline { 0 } else { u32::try_from(raw.size().div_ceil(block_size)).unwrap_or(u32::MAX) };
        harvest.directories.push(Directory::new(inode, raw.seed(&self.ctx.volume.geometry, inode), blocks));
        if inline {
            harvest.inline.push(InlineDirectory {
                inode,
                i_block: raw.disk.i_block,
                system_data: attributes.system_data.unwrap_or_default().into(),
            });
        }
    }

    /// Checks a symbolic link whose target is in the inode.
    fn check_link(&self, inode: InodeNo, raw: &RawInode<'_>, attributes: &InInode<'_>, counts: &mut Counts) {
        let size = raw.size();
        let flags = raw.flags();
        let encrypted = flags.contains(InodeFlags::ENCRYPT);
        let bad = if flags.contains(InodeFlags::INLINE_DATA) {
            let (head, tail) = (&raw.disk.i_block, attributes.system_data.unwrap_or_default());
            let whole: Vec<u8> = head.iter().chain(tail).copied().collect();
            let length = match whole.as_slice() {
                [low, high, ..] if encrypted => usize::from(*low) + usize::from(*high) * 256 + 2,
                _ => whole.iter().position(|b| *b == 0).unwrap_or(whole.len()),
            };
            let fits = size > 0 && length as u64 == size;
            let is_whole = whole.len() as u64 == size || attributes.system_data.is_none();
            if fits && !is_whole && size < head.len() as u64 {
                self.report(Problem::new(Code::InlineLinkTooShort).inode(inode).found(size));
                return;
            }
            !fits || !is_whole
        } else if is_short_link(raw, raw.kind()) {
            counts.fast_symlinks += 1;
            if flags.contains(InodeFlags::EXTENTS) && self.ctx.volume.features.incompat.contains(Incompat::EXTENT) {
                let header =
                    RawNode::from_bytes(&raw.disk.i_block).is_some_and(|n| n.header.eh_magic.get() == extent::MAGIC);
                if !header {
                    self.report(Problem::new(Code::FastSymlinkHasExtentFlag).inode(inode));
                }
                // the kernel would read the header as the target
                header
            } else {
                !short_target_fits(&raw.disk.i_block, size as usize, encrypted)
            }
        } else {
            // the target ends with a zero byte
            size == 0 || size >= u64::from(self.ctx.volume.geometry.block_size)
        };
        if bad {
            self.report(Problem::new(Code::SymlinkInvalid).inode(inode).found(size));
        } else if flags.intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND) {
            self.report(Problem::new(Code::SpecialFileImmutable).inode(inode));
        }
    }

    /// Checks that a device, pipe or socket has no data.
    fn check_special(&self, inode: InodeNo, raw: &RawInode<'_>, kind: Option<FileKind>) {
        let flags = raw.flags();
        let report = |code| self.report(Problem::new(code).inode(inode));
        if flags.intersects(InodeFlags::EXTENTS | InodeFlags::INLINE_DATA) {
            report(Code::SpecialFileHasMapFlag);
        }
        let immutable = flags.intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND);
        let words = words(&raw.disk.i_block);
        // device numbers take two words; the others must be zero only on an immutable inode
        let stray = immutable && words.iter().skip(4).any(|w| *w != 0);
        // a wrong index flag alone is cleared
        if flags.contains(InodeFlags::EXTENTS) || stray {
            report(match kind {
                Some(FileKind::CharDevice) => Code::CharacterDeviceBad,
                Some(FileKind::BlockDevice) => Code::BlockDeviceBad,
                Some(FileKind::Fifo) => Code::FifoBad,
                _ => Code::SocketBad,
            });
        } else if immutable {
            report(Code::SpecialFileImmutable);
        }
        if raw.size() != 0 {
            self.report(Problem::new(Code::SpecialFileSizeNotZero).inode(inode).found(raw.size()));
        }
    }

    /// Walks the part of the map that is in the inode; a map that continues in blocks is left open for the rounds.
    fn walk(
        &self,
        inode: InodeNo,
        raw: &RawInode<'_>,
        kind: Option<FileKind>,
        value_clusters: u64,
        harvest: &mut Harvest,
    ) {
        let volume = self.ctx.volume;
        let features = &volume.features;
        let mut flags = raw.flags();
        if is_mapped(raw, kind) && has_tree(raw) && features.incompat.contains(Incompat::EXTENT) {
            // a missing flag is one problem, and no reason to read the tree as block numbers
            flags |= InodeFlags::EXTENTS;
        }
        let fields = FileFields {
            inode,
            kind,
            flags,
            size: if kind == Some(FileKind::Symlink) { u64::from(raw.disk.i_size_lo.get()) } else { raw.size() },
            sectors: raw.sectors(features.ro_compat.contains(RoCompat::HUGE_FILE), volume.geometry.block_size),
            seed: raw.seed(&volume.geometry, inode),
        };
        let mut tally = Tally { clusters: value_clusters, ..Tally::default() };
        let acl = raw.file_acl(features.incompat.contains(Incompat::BIT64));
        let has_acl = self.check_acl_block(&fields, acl, &mut tally, harvest);
        // the bad blocks inode has a map but no type; any other inode without a type has no valid map
        if is_special(kind) || kind.is_none() && inode != InodeNo::BAD_BLOCKS {
            self.settle(fields, tally, has_acl, Vec::new(), harvest);
            return;
        }
        let trees = Trees { ctx: self.ctx, claimer: self.claimer };
        let before = harvest.found.nodes.len();
        let mut long_link = false;
        if has_no_map(raw) {
            // all data is in the inode
        } else if flags.contains(InodeFlags::EXTENTS) {
            trees.extent_root(&fields, &raw.disk.i_block, &mut tally, &mut harvest.found);
            if let Some(node) = RawNode::from_bytes(&raw.disk.i_block)
                && let Some(depth) = harvest.counts.extent_depths.get_mut(usize::from(node.header.eh_depth.get()))
            {
                *depth += 1;
            }
        } else {
            let own = matches!(inode, InodeNo::BAD_BLOCKS | InodeNo::RESIZE);
            if volume.features.ro_compat.contains(RoCompat::BIGALLOC) && raw.block_words::<15>() != [0; 15] && !own {
                self.report(Problem::new(Code::BlockMapWithBigalloc).inode(inode));
            }
            let words = words(&raw.disk.i_block);
            trees.indirect_root(&fields, &words, &mut tally, &mut harvest.found);
            let depth = words.iter().skip(12).rposition(|w| *w != 0).map_or(0, |n| n + 1);
            // a target has one block, whatever else the map contains; an impossible number is removed
            let leads_on = words.iter().skip(12).any(|w| *w != 0 && volume.contains(u64::from(*w)));
            long_link = kind == Some(FileKind::Symlink) && leads_on;
            if matches!(self.role(inode), Role::Ordinary | Role::Root)
                && let Some(depth) = harvest.counts.indirect_depths.get_mut(depth)
            {
                *depth += 1;
            }
        }
        let sized = (1..u64::from(volume.geometry.block_size)).contains(&fields.size);
        let in_inode = flags.contains(InodeFlags::INLINE_DATA) || is_short_link(raw, kind);
        let mapped = tally.last.is_some() || harvest.found.nodes.len() > before;
        if long_link || kind == Some(FileKind::Symlink) && !in_inode && !mapped && sized {
            self.report(Problem::new(Code::SymlinkInvalid).inode(inode).found(fields.size));
        } else if kind == Some(FileKind::Symlink) && mapped && self.claimer.is_checking() {
            harvest.links.push((inode, fields.size));
        }
        let tops = harvest.found.nodes.split_off(before);
        self.settle(fields, tally, has_acl, tops, harvest);
    }

    /// Checks the totals of a file at once, or leaves it open where its map continues in blocks (`tops`), or where its
    /// attribute block may refer to values that count as its own.
    fn settle(&self, fields: FileFields, tally: Tally, has_acl: bool, mut tops: Vec<Node>, harvest: &mut Harvest) {
        if !self.claimer.is_checking() {
            return;
        }
        let values = has_acl && self.ctx.volume.features.incompat.contains(Incompat::EA_INODE);
        if tops.is_empty() && !values {
            if tally.is_fragmented(&fields, &self.ctx.volume.geometry) {
                harvest.counts.count_fragmented(fields.kind);
            }
            return check_sums(self.ctx, &fields, &tally);
        }
        let mut file = OpenFile { fields, tally: Mutex::new(tally) };
        if let Some(layers) = self.layers.filter(|_| !values) {
            (file, tops) = match layers.open(file, tops) {
                None => return,
                Some(back) => back,
            };
        }
        harvest.files.push(file);
        harvest.found.nodes.append(&mut tops);
    }

    /// Checks the location of the attribute block, which a later round reads. Returns whether there is one.
    fn check_acl_block(&self, fields: &FileFields, acl: FsBlock, tally: &mut Tally, harvest: &mut Harvest) -> bool {
        if acl.get() == 0 {
            return false;
        }
        let features = &self.ctx.volume.features;
        if !features.compat.contains(Compat::EXT_ATTR) || !self.ctx.volume.contains(acl.get()) {
            self.report(Problem::new(Code::XattrBlockOutOfRange).inode(fields.inode).block(acl));
            return false;
        }
        tally.clusters += 1;
        harvest.xattrs.push(XattrRef { block: acl.get(), inode: fields.inode });
        true
    }

    fn report(&self, problem: Problem) {
        self.ctx.report_if(self.claimer.is_checking(), || problem);
    }
}

/// The marks of an inode in use by its own bytes.
fn marks_of(raw: &RawInode<'_>) -> Marks {
    let flags = raw.flags();
    let mut marks = Marks::USED;
    let attributes = raw.file_acl(true).get() != 0 || raw.attribute_area().starts_with(&MAGIC.to_le_bytes());
    let blocks = raw.disk.i_blocks_lo.get() != 0 || raw.disk.i_blocks_high.get() != 0;
    if raw.size() == 0 && !attributes && !blocks && !flags.contains(InodeFlags::INLINE_DATA) {
        marks |= Marks::EMPTY;
    }
    for (flag, mark) in [
        (InodeFlags::INDEX, Marks::INDEX),
        (InodeFlags::EA_INODE, Marks::EA_INODE),
        (InodeFlags::ENCRYPT, Marks::ENCRYPTED),
        (InodeFlags::CASEFOLD, Marks::CASEFOLD),
        (InodeFlags::INLINE_DATA, Marks::INLINE),
    ] {
        if flags.contains(flag) {
            marks |= mark;
        }
    }
    marks
}

/// The lower of two numbers, where there are any, so that the order of threads does not matter.
fn first(one: Option<InodeNo>, other: Option<InodeNo>) -> Option<InodeNo> {
    one.into_iter().chain(other).min()
}

/// Whether an inode is a symbolic link short enough for `i_block`.
fn is_short_link(raw: &RawInode<'_>, kind: Option<FileKind>) -> bool {
    kind == Some(FileKind::Symlink) && (1..60).contains(&raw.size())
}

/// Whether an inode of this type has a map of blocks unless a flag says otherwise.
fn is_mapped(raw: &RawInode<'_>, kind: Option<FileKind>) -> bool {
    matches!(kind, Some(FileKind::Regular | FileKind::Directory | FileKind::Symlink)) && !is_short_link(raw, kind)
}

/// Whether `i_block` begins with the header of an extent tree.
fn has_tree(raw: &RawInode<'_>) -> bool {
    RawNode::from_bytes(&raw.disk.i_block)
        .is_some_and(|n| n.header.eh_magic.get() == extent::MAGIC && n.header.eh_max.get() == n.capacity())
}

/// Whether a short link has a block nevertheless: extents with a header.
fn has_block_map(raw: &RawInode<'_>) -> bool {
    raw.flags().contains(InodeFlags::EXTENTS)
        && RawNode::from_bytes(&raw.disk.i_block).is_some_and(|n| n.header.eh_magic.get() == extent::MAGIC)
}

/// Whether `i_block` contains something else than a map of blocks: data, the target of a short link, or the number of a
/// device.
pub(crate) fn has_no_map(raw: &RawInode<'_>) -> bool {
    let kind = raw.kind();
    raw.flags().contains(InodeFlags::INLINE_DATA) || is_special(kind) || is_short_link(raw, kind) && !has_block_map(raw)
}

/// Whether it is a device, pipe or socket.
pub(crate) fn is_special(kind: Option<FileKind>) -> bool {
    matches!(kind, Some(FileKind::CharDevice | FileKind::BlockDevice | FileKind::Fifo | FileKind::Socket))
}

/// Whether the target in `i_block` ends exactly at `i_size`. An encrypted one starts with its own length.
fn short_target_fits(i_block: &[u8; 60], size: usize, encrypted: bool) -> bool {
    if encrypted {
        let [low, high, ..] = *i_block;
        return usize::from(low) + usize::from(high) * 256 + 2 == size;
    }
    i_block.iter().position(|b| *b == 0) == Some(size)
}
