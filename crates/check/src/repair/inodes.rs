//! Inodes: fields, flags and maps, by what the check said of each.

use super::attributes;
use super::inline;
use super::maps;
use super::system_inodes;
use super::work::Work;
use crate::problem::Problem;
use crate::table::Code;
use blockdev::Result;
use format::extent::{self, RawNode};
use format::feature::Incompat;
use format::inode::{EXTRA_ISIZE, FileKind, InodeBuf, InodeFlags};
use format::{FsBlock, InodeNo};
use std::collections::{BTreeMap, HashSet};

/// A regular file that its owner may read and write.
const REGULAR: u16 = 0x8180;

/// The type of a directory.
const DIRECTORY: u16 = 0x4000;

/// Repairs all inodes that have a problem.
pub(super) fn repair(work: &Work<'_>, problems: &[&Problem]) -> Result<()> {
    let mut by_inode: BTreeMap<InodeNo, Vec<&Problem>> = BTreeMap::new();
    for problem in problems {
        match problem.inode {
            // what a block of attributes says concerns all inodes that have it
            Some(_) if of_block(problem) => {}
            Some(inode) => by_inode.entry(inode).or_default().push(problem),
            None => {}
        }
    }
    // a feature that was missing changes how all inodes are to be read
    let features: Vec<&Problem> = problems.iter().copied().filter(|p| is_feature_problem(p.code)).collect();
    for problem in &features {
        if let Some(number) = problem.inode {
            Case { work, number }.repair(&[problem])?;
        }
    }
    if !features.is_empty() {
        return Ok(());
    }
    attributes::repair_blocks(work, problems)?;
    for (number, problems) in by_inode {
        Case { work, number }.repair(&problems)?;
    }
    Ok(())
}

/// Whether a problem is one of an attribute block.
fn of_block(problem: &Problem) -> bool {
    match problem.code {
        Code::XattrBlockUnreadable
        | Code::XattrBlockBad
        | Code::XattrBlockCountWrong
        | Code::XattrEntriesCollide
        | Code::XattrNameBad
        | Code::XattrValueBad
        | Code::XattrBlockChecksumWrong
        | Code::XattrRefcountWrong => true,
        Code::InodeXattrHashWrong => problem.block.is_some(),
        _ => false,
    }
}

/// What is to become of an inode.
enum Fate {
    Keep,
    Clear,
}

struct Case<'a, 'w> {
    work: &'a Work<'w>,
    number: InodeNo,
}

impl Case<'_, '_> {
    fn repair(&self, problems: &[&Problem]) -> Result<()> {
        let Some(mut inode) = self.work.inode(self.number)? else { return Ok(()) };
        let has = |code| problems.iter().any(|p| p.code == code);
        let lost_root = has(Code::RootNotDirectory) && !has(Code::LooksLikeDirectory);
        if self.number == InodeNo::ROOT && (lost_root || has(Code::DirectoryEmpty)) {
            return super::connections::make_root(self.work);
        }
        if self.number == InodeNo::RESIZE && problems.iter().any(|p| is_map_problem(p.code)) {
            return system_inodes::make_resize_inode(self.work);
        }
        // a directory that lost its type has nothing else wrong with it that is to be believed
        let lost: Vec<&Problem> = problems.iter().copied().filter(|p| p.code == Code::LooksLikeDirectory).collect();
        let problems = if lost.is_empty() { problems } else { &lost };
        // how an inode is to be read comes before what stands in it
        let shape: Vec<&Problem> = problems.iter().copied().filter(|p| is_shape_problem(p.code)).collect();
        let problems = if shape.is_empty() { problems } else { &shape };
        let mut map = false;
        for problem in problems {
            map |= is_map_problem(problem.code);
            if let Fate::Clear = self.field(problem, &mut inode)? {
                return self.clear();
            }
        }
        if map {
            self.work.make_stale();
            let too_many =
                problems.iter().filter(|p| p.code == Code::BlockOutOfRange).count() >= maps::TOO_MANY as usize;
            let ordinary = self.number.get() >= self.work.volume().geometry.first_inode;
            if !maps::clean(self.work, self.number, &mut inode)? || too_many && ordinary && !self.has_extents(&inode) {
                return self.clear();
            }
        }
        self.work.put_inode(self.number, inode)
    }

    fn has_extents(&self, inode: &InodeBuf) -> bool {
        inode.raw().flags().contains(InodeFlags::EXTENTS)
    }

    fn clear(&self) -> Result<()> {
        if self.number == InodeNo::ROOT {
            return super::connections::make_root(self.work);
        }
        // one of the volume's own is either whole or not there
        if self.number.get() < self.work.volume().geometry.first_inode {
            self.work.make_stale();
            return self.work.wipe_inode(self.number);
        }
        self.work.clear_inode(self.number)
    }

    fn wipe(&self, inode: &mut InodeBuf) {
        self.work.make_stale();
        let size = self.work.volume().geometry.inode_size as usize;
        if let Some(blank) = InodeBuf::from_slot(&vec![0; size]) {
            *inode = blank;
        }
    }

    /// Repairs what one problem says, as far as it is no matter of the map.
    fn field(&self, problem: &Problem, inode: &mut InodeBuf) -> Result<Fate> {
        let remove = |inode: &mut InodeBuf, flags: InodeFlags| {
            let kept = inode.raw().flags() - flags;
            inode.set_flags(kept);
        };
        let now = self.work.now32();
        match problem.code {
            Code::InodeModeWrong
            | Code::CharacterDeviceBad
            | Code::BlockDeviceBad
            | Code::FifoBad
            | Code::SocketBad
            | Code::SymlinkInvalid
            | Code::DirectoryEmpty
            | Code::ExtentFlagWithoutFeature
            | Code::EncryptionXattrCorrupt => return Ok(Fate::Clear),

            Code::LooksLikeDirectory => {
                self.work.make_stale();
                inode.set_mode(inode.raw().disk.i_mode.get() & 0o7777 | DIRECTORY);
            }
            Code::BlockMapWithBigalloc => {
                self.work.make_stale();
                // where only the flag is gone the tree is still there
                if !has_extent_header(inode) && !maps::convert(self.work, self.number, inode)? {
                    return Ok(Fate::Clear);
                }
                inode.set_flags(inode.raw().flags() | InodeFlags::EXTENTS);
            }
            Code::RootHasDeletionTime | Code::InodeInUseHasDeletionTime => inode.disk_mut().i_dtime = 0.into(),
            Code::OrphanLinkInDeletionTime => {
                let links = inode.raw().disk.i_links_count.get();
                inode.disk_mut().i_dtime = if links == 0 { now } else { 0 }.into();
            }
            Code::DeletedInodeWithoutTime => inode.disk_mut().i_dtime = now.into(),
            Code::ReservedInodeModeWrong if matches!(self.number, InodeNo::BOOT_LOADER | InodeNo::RESIZE) => {
                inode.set_mode(0);
            }
            Code::ReservedInodeModeWrong | Code::InodeMapUndecidable => return Ok(Fate::Clear),
            Code::JournalInodeModeWrong | Code::QuotaInodeModeWrong | Code::OrphanFileModeWrong => {
                self.work.make_stale();
                inode.set_mode(REGULAR);
            }
            Code::JournalInodeNotClear | Code::QuotaInodeNotClear | Code::BadBlocksInodeInvalid => self.wipe(inode),

            Code::InodeSizeWrong => {
                if let Some(size) = problem.expected {
                    inode.set_size(size);
                }
                // what the entries of a directory lie in has changed
                if inode.kind() == Some(FileKind::Directory) {
                    self.work.make_stale();
                }
            }
            Code::InodeBlockCountWrong => {
                if let Some(sectors) = problem.expected {
                    self.work.set_sectors(inode, sectors);
                }
            }
            Code::FragmentAddressNotZero => inode.disk_mut().i_obso_faddr = 0.into(),
            Code::XattrBlockHighNotZero => {
                self.work.make_stale();
                inode.disk_mut().i_file_acl_high = 0.into();
            }
            Code::XattrBlockOutOfRange => {
                self.work.make_stale();
                inode.set_file_acl(FsBlock(0));
            }
            Code::BlockCountHighNotZero => {
                self.work.make_stale();
                inode.disk_mut().i_blocks_high = 0.into();
            }
            Code::ImagicFlagWithoutFeature => remove(inode, InodeFlags::IMAGIC),
            Code::CasefoldFlagOnNonDirectory => remove(inode, InodeFlags::CASEFOLD),
            Code::CasefoldFlagWithoutFeature => {
                self.work.make_stale();
                remove(inode, InodeFlags::CASEFOLD);
            }
            Code::HtreeFlagOnNonDirectory => remove(inode, InodeFlags::INDEX),
            Code::HtreeFlagWithoutFeature => {
                self.work.make_stale();
                remove(inode, InodeFlags::INDEX);
            }
            Code::XattrValueInodeNotRegular => {
                self.work.make_stale();
                remove(inode, InodeFlags::EA_INODE);
            }
            Code::EncryptionXattrMissing => {
                self.work.make_stale();
                remove(inode, InodeFlags::ENCRYPT);
            }
            Code::SpecialFileImmutable => remove(inode, InodeFlags::IMMUTABLE | InodeFlags::APPEND),
            Code::SpecialFileHasMapFlag => {
                self.work.make_stale();
                remove(inode, InodeFlags::EXTENTS | InodeFlags::INLINE_DATA);
            }
            Code::SpecialFileSizeNotZero => inode.set_size(0),
            Code::FastSymlinkHasExtentFlag => {
                self.work.make_stale();
                remove(inode, InodeFlags::EXTENTS);
            }

            Code::ExtentFeatureMissing => {
                self.work.make_stale();
                self.add_feature(Incompat::EXTENT)?;
            }
            Code::ExtentFlagMissing => {
                self.work.make_stale();
                let flags = inode.raw().flags() | InodeFlags::EXTENTS;
                inode.set_flags(flags);
            }
            Code::ExtentHeaderMissing => {
                self.work.make_stale();
                let mut root = [0; 60];
                if extent::write_leaf(&mut root, &[]).is_some() {
                    inode.set_block(root);
                }
            }
            Code::InlineDataFeatureMissing if attributes::inline_value(inode).is_some() => {
                self.work.make_stale();
                self.add_feature(Incompat::INLINE_DATA)?;
            }
            Code::InlineDataFeatureMissing | Code::InlineInodeHasExtentFlag => return Ok(self.decide_map(inode)),
            // the flag is stray where blocks are mapped
            Code::InlineDataXattrMissing if is_special(inode) || has_mapped_blocks(self.work, inode) => {
                return Ok(self.decide_map(inode));
            }
            Code::InlineDataXattrMissing if !inode.raw().flags().contains(InodeFlags::EXTENTS) => {
                self.work.make_stale();
                // the part that stands in the inode proper is no file without the rest, where there was more
                if inode.kind() == Some(FileKind::Regular) && inode.raw().size() > inline::I_BLOCK as u64 {
                    inode.set_size(0);
                }
                if !inline::move_out(self.work, self.number, inode)? {
                    return Ok(Fate::Clear);
                }
            }
            Code::ExtraSizeWrong => {
                self.work.make_stale();
                let room = self.work.volume().geometry.inode_size.saturating_sub(128);
                if let Some(extra) = inode.extra_mut() {
                    extra.i_extra_isize = (room.min(u32::from(EXTRA_ISIZE)) as u16).into();
                }
            }
            Code::InodeXattrNameLengthWrong | Code::InodeXattrValueSizeWrong | Code::InodeXattrHashWrong => {
                self.work.make_stale();
                // a value in an inode of its own says so by its hash, wherever its entry stands
                attributes::drop_all_but_data(inode);
            }
            // what others lie over belongs to no file
            Code::InodeXattrEntriesCollide => {
                self.work.make_stale();
                attributes::drop_all(inode);
            }
            Code::XattrValueInodeWrong => {
                self.work.make_stale();
                let targets: HashSet<u32> = problem.found.and_then(|n| u32::try_from(n).ok()).into_iter().collect();
                attributes::drop_values(self.work, inode, &targets)?;
            }
            Code::XattrValueInodeFlagMissing => {
                self.work.make_stale();
                let Some(target) = problem.found.and_then(|n| u32::try_from(n).ok()) else { return Ok(Fate::Keep) };
                let record = self.work.walk().and_then(|walk| walk.ctx.inodes.get(InodeNo(target)));
                let named = self.work.walk().is_some_and(|walk| walk.ctx.inodes.names(InodeNo(target)) > 0);
                if named || record.is_none_or(|record| record.kind != Some(FileKind::Regular)) {
                    // a file of the user's, which nobody could read with the flag, or one that holds no value
                    attributes::drop_values(self.work, inode, &HashSet::from([target]))?;
                } else {
                    self.work.edit_inode(InodeNo(target), |value| {
                        let flags = value.raw().flags() | InodeFlags::EA_INODE;
                        value.set_flags(flags);
                    })?;
                }
            }
            Code::XattrValueInodeFeatureMissing => {
                self.work.make_stale();
                self.add_feature(Incompat::EA_INODE)?;
            }
            // the rest is said by the map, or by the checksum that is written anew in any case
            _ => {}
        }
        Ok(Fate::Keep)
    }

    fn add_feature(&self, feature: Incompat) -> Result<()> {
        self.work.edit_superblock(|sb| {
            super::superblock::have_features(sb);
            sb.s_feature_incompat = (sb.s_feature_incompat.get() | feature.bits()).into();
        })
    }

    /// Where the flags for extents and inline data contradict what stands in an inode, or each other: removes those that do.
    fn decide_map(&self, inode: &mut InodeBuf) -> Fate {
        self.work.make_stale();
        let flags = inode.raw().flags();
        let wrong = if is_special(inode) {
            InodeFlags::EXTENTS | InodeFlags::INLINE_DATA
        } else if has_extent_header(inode) {
            InodeFlags::INLINE_DATA
        } else if attributes::inline_value(inode).is_some() {
            InodeFlags::EXTENTS
        } else if has_mapped_blocks(self.work, inode) || stands_in_inode(inode) {
            InodeFlags::EXTENTS | InodeFlags::INLINE_DATA
        } else {
            return Fate::Clear;
        };
        inode.set_flags(flags - wrong);
        Fate::Keep
    }
}

/// Whether the words of `i_block` can only be the block numbers of a file.
fn has_mapped_blocks(work: &Work<'_>, inode: &InodeBuf) -> bool {
    let words: [u32; 15] = inode.raw().block_words();
    let file = matches!(inode.kind(), Some(FileKind::Regular | FileKind::Directory | FileKind::Symlink));
    let used = inode.raw().disk.i_blocks_lo.get() != 0 && words.iter().any(|word| *word != 0);
    file && !has_extent_header(inode)
        && used
        && words.iter().all(|word| *word == 0 || work.volume().holds((*word).into()))
}

/// Whether a file or link needs neither a map nor inline data: it has no blocks, or its target stands in `i_block`.
fn stands_in_inode(inode: &InodeBuf) -> bool {
    let raw = inode.raw();
    let end = raw.disk.i_block.iter().position(|byte| *byte == 0);
    match inode.kind() {
        Some(FileKind::Regular) => raw.disk.i_block.iter().all(|byte| *byte == 0),
        Some(FileKind::Symlink) => end.is_some_and(|end| end as u64 == raw.size()),
        _ => false,
    }
}

/// Whether an inode is a device, pipe or socket.
fn is_special(inode: &InodeBuf) -> bool {
    matches!(inode.kind(), Some(FileKind::CharDevice | FileKind::BlockDevice | FileKind::Fifo | FileKind::Socket))
}

/// Whether the superblock lacks a feature that an inode uses.
fn is_feature_problem(code: Code) -> bool {
    matches!(code, Code::ExtentFeatureMissing | Code::InlineDataFeatureMissing | Code::XattrValueInodeFeatureMissing)
}

/// Whether a problem says that an inode is to be read in another way.
fn is_shape_problem(code: Code) -> bool {
    matches!(
        code,
        Code::InlineInodeHasExtentFlag
            | Code::InlineDataXattrMissing
            | Code::JournalInodeModeWrong
            | Code::QuotaInodeModeWrong
            | Code::OrphanFileModeWrong
            | Code::EncryptionXattrMissing
            | Code::LooksLikeDirectory
            | Code::SpecialFileHasMapFlag
            | Code::ExtentFlagMissing
            | Code::FastSymlinkHasExtentFlag
            | Code::ExtraSizeWrong
    )
}

/// Whether a problem is one of the block map, which is then written anew.
fn is_map_problem(code: Code) -> bool {
    matches!(
        code,
        Code::BlockOutOfRange
            | Code::DirectoryTooBig
            | Code::RegularFileTooBig
            | Code::SymlinkTooBig
            | Code::ExtentStartInvalid
            | Code::ExtentLengthInvalid
            | Code::ExtentLengthZero
            | Code::ExtentsOutOfOrder
            | Code::ExtentHeaderInvalid
            | Code::ExtentBlockChecksumWrong
            | Code::ExtentIndexStartWrong
            | Code::ExtentEndOutOfBounds
            | Code::DirectoryExtentUninit
            | Code::ClusterMisaligned
            | Code::IndirectBlockForeign
    )
}

/// Whether `i_block` begins as the root of a tree of extents does.
fn has_extent_header(inode: &InodeBuf) -> bool {
    RawNode::from_bytes(&inode.raw().disk.i_block)
        .is_some_and(|n| n.header.eh_magic.get() == extent::MAGIC && n.header.eh_entries.get() <= n.header.eh_max.get())
}
