//! Inodes: fields, flags and maps, by the problems of each.

use super::attributes;
use super::inline;
use super::maps;
use super::system_inodes;
use super::values;
use super::work::Work;
use crate::phases::inodes::is_special;
use crate::problem::Problem;
use crate::table::Code;
use blockdev::Result;
use format::extent::{self, RawNode};
use format::feature::Incompat;
use format::inode::{EXTRA_ISIZE, FileKind, InodeBuf, InodeFlags};
use format::{FsBlock, InodeNo};
use std::collections::{BTreeMap, HashMap, HashSet};

/// The mode of a regular file that its owner may read and write.
const REGULAR: u16 = 0x8180;

/// The type of a regular file.
const REGULAR_TYPE: u16 = 0x8000;

/// The type of a directory.
const DIRECTORY: u16 = 0x4000;

/// Repairs all inodes that have a problem.
pub(super) fn repair(work: &Work<'_>, problems: &[&Problem]) -> Result<()> {
    let mut by_inode: BTreeMap<InodeNo, Vec<&Problem>> = BTreeMap::new();
    for problem in problems {
        match problem.inode {
            // a problem of an attribute block concerns all inodes that refer to it
            Some(_) if of_block(problem) => {}
            Some(inode) => by_inode.entry(inode).or_default().push(problem),
            None => {}
        }
    }
    // a feature that was missing changes how all inodes are to be read
    let features: Vec<&Problem> =
        problems.iter().copied().filter(|p| row(p.code).concerns == Concerns::Feature).collect();
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

/// These problems without those of an inode that lost its type which follow from the wrong type.
pub(super) fn trusted(mut problems: Vec<&Problem>) -> Vec<&Problem> {
    let mut lost: HashMap<InodeNo, Code> = HashMap::new();
    for code in [Code::LooksLikeDirectory, Code::XattrValueInodeModeWrong] {
        lost.extend(problems.iter().filter(|p| p.code == code).filter_map(|p| Some((p.inode?, code))));
    }
    problems.retain(|p| p.inode.and_then(|inode| lost.get(&inode)).is_none_or(|code| p.code == *code));
    problems
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

/// The inodes whose map is rewritten because of one of these problems.
pub(super) fn with_invalid_map(problems: &[Problem]) -> HashSet<InodeNo> {
    problems.iter().filter(|p| row(p.code).concerns == Concerns::Map).filter_map(|p| p.inode).collect()
}

/// The verdict on an inode.
enum Verdict {
    Write,
    Clear,
}

/// The subject of a problem of an inode.
#[derive(PartialEq, Eq)]
enum Concerns {
    /// The superblock lacks a feature that the inode uses, which changes how all inodes are read.
    Feature,
    /// The format of the inode, which is repaired before its content.
    Reading,
    /// The block map, which is then rewritten.
    Map,
    /// A field.
    Field,
}

/// The fix of a problem.
enum Fix<'a, 'w> {
    /// The inode is cleared.
    Clear,
    Remove(InodeFlags),
    Add(InodeFlags),
    Feature(Incompat),
    Set(fn(&mut InodeBuf)),
    By(fn(&Case<'a, 'w>, &Problem, &mut InodeBuf) -> Result<Verdict>),
    /// The inode is rewritten with its checksum, or its map is rewritten.
    Rewrite,
}

struct Row<'a, 'w> {
    concerns: Concerns,
    /// Whether the results of the check for other structures may become invalid.
    stale: bool,
    fix: Fix<'a, 'w>,
}

/// Whether a repair makes the results of the check stale.
const STALE: bool = true;
const SAME: bool = false;

/// The fix of each problem of an inode.
fn row<'a, 'w>(code: Code) -> Row<'a, 'w> {
    use Concerns::{Feature, Field, Map, Reading};
    let (concerns, stale, fix) = match code {
        Code::InodeModeWrong
        | Code::CharacterDeviceBad
        | Code::BlockDeviceBad
        | Code::FifoBad
        | Code::SocketBad
        | Code::SymlinkInvalid
        | Code::DirectoryEmpty
        | Code::ExtentFlagWithoutFeature
        | Code::EncryptionXattrCorrupt
        | Code::InodeMapUndecidable => (Field, SAME, Fix::Clear),
        Code::InlineLinkTooShort => (Reading, STALE, Fix::Set(attributes::drop_inline_flag)),
        Code::LooksLikeDirectory => (Reading, STALE, Fix::Set(make_directory)),
        Code::BlockMapWithBigalloc => (Field, STALE, Fix::By(Case::extents_under_bigalloc)),
        Code::RootHasDeletionTime | Code::InodeInUseHasDeletionTime => (Field, SAME, Fix::Set(undelete)),
        Code::OrphanLinkInDeletionTime | Code::DeletedInodeWithoutTime => (Field, SAME, Fix::By(Case::deletion_time)),
        Code::ReservedInodeModeWrong => (Field, SAME, Fix::By(Case::reserved_mode)),
        Code::JournalInodeModeWrong | Code::QuotaInodeModeWrong | Code::OrphanFileModeWrong => {
            (Reading, STALE, Fix::Set(|i| i.set_mode(REGULAR)))
        }
        Code::JournalInodeNotClear | Code::QuotaInodeNotClear | Code::BadBlocksInodeInvalid => {
            (Field, STALE, Fix::By(Case::wipe))
        }
        Code::InodeSizeWrong | Code::InlineDataTooShort => (Field, SAME, Fix::By(Case::size)),
        Code::InodeBlockCountWrong => (Field, SAME, Fix::By(Case::block_count)),
        Code::FragmentAddressNotZero => (Field, SAME, Fix::Set(|i| i.disk_mut().i_obso_faddr = 0.into())),
        Code::XattrBlockHighNotZero => (Field, STALE, Fix::Set(|i| i.disk_mut().i_file_acl_high = 0.into())),
        Code::XattrBlockOutOfRange => (Field, STALE, Fix::Set(|i| i.set_file_acl(FsBlock(0)))),
        Code::BlockCountHighNotZero => (Field, STALE, Fix::Set(|i| i.disk_mut().i_blocks_high = 0.into())),
        Code::ImagicFlagWithoutFeature => (Field, SAME, Fix::Remove(InodeFlags::IMAGIC)),
        Code::CasefoldFlagOnNonDirectory => (Field, SAME, Fix::Remove(InodeFlags::CASEFOLD)),
        Code::CasefoldFlagWithoutFeature => (Field, STALE, Fix::Remove(InodeFlags::CASEFOLD)),
        Code::HtreeFlagOnNonDirectory => (Field, SAME, Fix::Remove(InodeFlags::INDEX)),
        Code::HtreeFlagWithoutFeature => (Field, STALE, Fix::Remove(InodeFlags::INDEX)),
        Code::XattrValueInodeNotRegular => (Field, STALE, Fix::Remove(InodeFlags::EA_INODE)),
        Code::EncryptionXattrMissing => (Reading, STALE, Fix::Remove(InodeFlags::ENCRYPT)),
        Code::SpecialFileImmutable => (Field, SAME, Fix::Remove(InodeFlags::IMMUTABLE.union(InodeFlags::APPEND))),
        Code::SpecialFileHasMapFlag => (Reading, STALE, Fix::Remove(MAP_FLAGS)),
        Code::SpecialFileSizeNotZero => (Field, SAME, Fix::Set(|i| i.set_size(0))),
        Code::FastSymlinkHasExtentFlag => (Reading, STALE, Fix::Remove(InodeFlags::EXTENTS)),
        Code::ExtentFeatureMissing => (Feature, STALE, Fix::Feature(Incompat::EXTENT)),
        Code::ExtentFlagMissing => (Reading, STALE, Fix::Add(InodeFlags::EXTENTS)),
        Code::ExtentHeaderMissing => (Field, STALE, Fix::Set(empty_tree)),
        Code::InlineDataFeatureMissing => (Feature, STALE, Fix::By(Case::inline_feature)),
        Code::InlineInodeHasExtentFlag => (Reading, STALE, Fix::By(Case::decide_map)),
        Code::InlineDataXattrMissing => (Reading, SAME, Fix::By(Case::inline_value)),
        Code::ExtraSizeWrong => (Reading, STALE, Fix::By(Case::extra_size)),
        Code::InodeXattrNameLengthWrong
        | Code::InodeXattrValueSizeWrong
        | Code::InodeXattrHashWrong
        | Code::InodeXattrEntriesCollide => (Field, STALE, Fix::By(Case::attributes)),
        Code::XattrValueInodeWrong => (Field, STALE, Fix::By(Case::value_inode)),
        Code::XattrValueSizeWrong => (Reading, STALE, Fix::By(Case::value_size)),
        Code::InodeXattrOffsetUnused => (Field, STALE, Fix::By(Case::value_offset)),
        Code::XattrValueInodeModeWrong => (Reading, STALE, Fix::Set(make_regular)),
        Code::XattrValueInodeFlagMissing => (Field, STALE, Fix::By(Case::value_inode_flag)),
        Code::XattrValueInodeFeatureMissing => (Feature, STALE, Fix::Feature(Incompat::EA_INODE)),
        Code::BlockOutOfRange
        | Code::DirectoryTooBig
        | Code::RegularFileTooBig
        | Code::SymlinkTooBig
        | Code::ExtentStartInvalid
        | Code::ExtentLengthInvalid
        | Code::ExtentLengthZero
        | Code::ExtentsOutOfOrder
        | Code::ExtentTooLong
        | Code::ExtentHeaderInvalid
        | Code::ExtentBlockChecksumWrong
        | Code::ExtentIndexStartWrong
        | Code::ExtentEndOutOfBounds
        | Code::ExtentTreeTooDeep
        | Code::DirectoryExtentUninit
        | Code::ClusterMisaligned
        | Code::IndirectBlockForeign => (Map, SAME, Fix::Rewrite),
        _ => (Field, SAME, Fix::Rewrite),
    };
    Row { concerns, stale, fix }
}

/// Flags for an extent tree, or for inline data without a map.
const MAP_FLAGS: InodeFlags = InodeFlags::EXTENTS.union(InodeFlags::INLINE_DATA);

/// Clears the deletion time of an inode.
fn undelete(inode: &mut InodeBuf) {
    inode.disk_mut().i_dtime = 0.into();
}

/// Sets the type of an inode to directory.
fn make_directory(inode: &mut InodeBuf) {
    inode.set_mode(inode.raw().disk.i_mode.get() & 0o7777 | DIRECTORY);
}

/// Sets the type of an inode to regular file.
fn make_regular(inode: &mut InodeBuf) {
    inode.set_mode(inode.raw().disk.i_mode.get() & 0o7777 | REGULAR_TYPE);
}

/// Writes the root of an empty extent tree.
fn empty_tree(inode: &mut InodeBuf) {
    let mut root = [0; 60];
    if extent::write_leaf(&mut root, &[]).is_some() {
        inode.set_block(root);
    }
}

/// The inode of the value in a problem of an attribute.
fn value_of(problem: &Problem) -> Option<u32> {
    problem.found.and_then(|n| u32::try_from(n).ok())
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
        if self.number == InodeNo::RESIZE && problems.iter().any(|p| row(p.code).concerns == Concerns::Map) {
            return system_inodes::make_resize_inode(self.work);
        }
        let problems = &trusted(problems.to_vec());
        // the format of an inode is repaired before its content
        let reading: Vec<&Problem> =
            problems.iter().copied().filter(|p| row(p.code).concerns == Concerns::Reading).collect();
        let problems = if reading.is_empty() { problems } else { &reading };
        let mut map = false;
        for problem in problems {
            map |= row(problem.code).concerns == Concerns::Map;
            if let Verdict::Clear = self.field(problem, &mut inode)? {
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
        // a system inode is either valid or cleared
        if self.number.get() < self.work.volume().geometry.first_inode {
            self.work.make_stale();
            return self.work.wipe_inode(self.number);
        }
        self.work.clear_inode(self.number)
    }

    /// Repairs one problem that does not concern the map.
    fn field(&self, problem: &Problem, inode: &mut InodeBuf) -> Result<Verdict> {
        let Row { stale, fix, .. } = row(problem.code);
        if stale {
            self.work.make_stale();
        }
        let flags = inode.raw().flags();
        match fix {
            Fix::Clear => return Ok(Verdict::Clear),
            Fix::Remove(wrong) => inode.set_flags(flags - wrong),
            Fix::Add(missing) => inode.set_flags(flags | missing),
            Fix::Feature(feature) => self.add_feature(feature)?,
            Fix::Set(set) => set(inode),
            Fix::By(fix) => return fix(self, problem, inode),
            Fix::Rewrite => {}
        }
        Ok(Verdict::Write)
    }

    fn deletion_time(&self, _: &Problem, inode: &mut InodeBuf) -> Result<Verdict> {
        let links = inode.raw().disk.i_links_count.get();
        inode.disk_mut().i_dtime = if links == 0 { self.work.now32() } else { 0 }.into();
        Ok(Verdict::Write)
    }

    fn extents_under_bigalloc(&self, _: &Problem, inode: &mut InodeBuf) -> Result<Verdict> {
        // where only the flag is missing the tree is still there
        if !has_extent_header(inode) && !maps::convert(self.work, self.number, inode)? {
            return Ok(Verdict::Clear);
        }
        inode.set_flags(inode.raw().flags() | InodeFlags::EXTENTS);
        Ok(Verdict::Write)
    }

    fn reserved_mode(&self, _: &Problem, inode: &mut InodeBuf) -> Result<Verdict> {
        if !matches!(self.number, InodeNo::BOOT_LOADER | InodeNo::RESIZE) {
            return Ok(Verdict::Clear);
        }
        inode.set_mode(0);
        Ok(Verdict::Write)
    }

    fn wipe(&self, _: &Problem, inode: &mut InodeBuf) -> Result<Verdict> {
        let size = self.work.volume().geometry.inode_size as usize;
        if let Some(blank) = InodeBuf::from_slot(&vec![0; size]) {
            *inode = blank;
        }
        Ok(Verdict::Write)
    }

    fn size(&self, problem: &Problem, inode: &mut InodeBuf) -> Result<Verdict> {
        if let Some(size) = problem.expected {
            inode.set_size(size);
        }
        // the blocks of the directory have changed
        if inode.kind() == Some(FileKind::Directory) {
            self.work.make_stale();
        }
        Ok(Verdict::Write)
    }

    fn block_count(&self, problem: &Problem, inode: &mut InodeBuf) -> Result<Verdict> {
        if let Some(sectors) = problem.expected {
            self.work.set_sectors(inode, sectors);
        }
        Ok(Verdict::Write)
    }

    fn inline_feature(&self, problem: &Problem, inode: &mut InodeBuf) -> Result<Verdict> {
        if attributes::inline_value(inode).is_none() {
            return self.decide_map(problem, inode);
        }
        self.add_feature(Incompat::INLINE_DATA)?;
        Ok(Verdict::Write)
    }

    fn inline_value(&self, problem: &Problem, inode: &mut InodeBuf) -> Result<Verdict> {
        // the flag is stray where blocks are mapped
        if is_special(inode.kind()) || has_mapped_blocks(self.work, inode) {
            self.work.make_stale();
            return self.decide_map(problem, inode);
        }
        if inode.raw().flags().contains(InodeFlags::EXTENTS) {
            return Ok(Verdict::Write);
        }
        self.work.make_stale();
        // the part in `i_block` alone is not the file if the file is longer
        if inode.kind() == Some(FileKind::Regular) && inode.raw().size() > inline::I_BLOCK as u64 {
            inode.set_size(0);
        }
        let moved = inline::move_out(self.work, self.number, inode)?;
        Ok(if moved { Verdict::Write } else { Verdict::Clear })
    }

    /// Repairs attributes in the inode; a wrong hash may also be that of an entry in its block, if the value is in
    /// another inode.
    fn attributes(&self, problem: &Problem, inode: &mut InodeBuf) -> Result<Verdict> {
        let name = problem.name.as_deref().unwrap_or_default();
        if problem.code == Code::InodeXattrHashWrong
            && attributes::drop_hashed(self.work, inode, name, problem.found.unwrap_or_default())?
        {
            return Ok(Verdict::Write);
        }
        // several problems are repaired at once, after which nothing is invalid
        let mut before = self.work.inode(self.number)?;
        if before.as_mut().is_some_and(attributes::drop_invalid) {
            attributes::drop_invalid(inode);
        } else if problem.code == Code::InodeXattrEntriesCollide {
            // overlapping attributes cannot be assigned to a file
            attributes::drop_all(inode);
        } else {
            attributes::drop_all_but_data(inode);
        }
        Ok(Verdict::Write)
    }

    fn extra_size(&self, _: &Problem, inode: &mut InodeBuf) -> Result<Verdict> {
        let space = self.work.volume().geometry.inode_size.saturating_sub(128);
        if let Some(extra) = inode.extra_mut() {
            extra.i_extra_isize = (space.min(u32::from(EXTRA_ISIZE)) as u16).into();
        }
        Ok(Verdict::Write)
    }

    fn value_inode(&self, problem: &Problem, inode: &mut InodeBuf) -> Result<Verdict> {
        let targets: HashSet<u32> = value_of(problem).into_iter().collect();
        attributes::drop_values(self.work, inode, &targets)?;
        Ok(Verdict::Write)
    }

    fn value_offset(&self, _: &Problem, inode: &mut InodeBuf) -> Result<Verdict> {
        attributes::clear_offsets(self.work, inode)?;
        Ok(Verdict::Write)
    }

    fn value_size(&self, problem: &Problem, inode: &mut InodeBuf) -> Result<Verdict> {
        let target = problem.count.and_then(|n| u32::try_from(n).ok());
        let stated = problem.found.and_then(|n| u32::try_from(n).ok());
        if let (Some(target), Some(stated)) = (target, stated) {
            // an inode is not the value of its own attribute
            let other = target != self.number.get();
            match if other { values::fit(self.work, InodeNo(target), stated)? } else { None } {
                Some(size) => attributes::set_value_size(self.work, inode, target, stated, size)?,
                None => attributes::drop_values(self.work, inode, &HashSet::from([target]))?,
            }
        }
        Ok(Verdict::Write)
    }

    fn value_inode_flag(&self, problem: &Problem, inode: &mut InodeBuf) -> Result<Verdict> {
        let Some(target) = value_of(problem) else { return Ok(Verdict::Write) };
        let record = self.work.walk().and_then(|walk| walk.ctx.inodes.get(InodeNo(target)));
        let named = self.work.walk().is_some_and(|walk| walk.ctx.inodes.names(InodeNo(target)) > 0);
        if named || record.is_none_or(|record| record.kind != Some(FileKind::Regular)) {
            // a user's file, which could not be read with the flag, or an inode without a value
            attributes::drop_values(self.work, inode, &HashSet::from([target]))?;
        } else {
            self.work.edit_inode(InodeNo(target), |value| {
                let flags = value.raw().flags() | InodeFlags::EA_INODE;
                value.set_flags(flags);
            })?;
        }
        Ok(Verdict::Write)
    }

    fn add_feature(&self, feature: Incompat) -> Result<()> {
        self.work.edit_superblock(|sb| {
            super::superblock::have_features(sb);
            sb.s_feature_incompat = (sb.s_feature_incompat.get() | feature.bits()).into();
        })
    }

    /// Removes the extents and inline data flags that contradict the content of an inode, or each other.
    fn decide_map(&self, _: &Problem, inode: &mut InodeBuf) -> Result<Verdict> {
        let flags = inode.raw().flags();
        let wrong = if is_special(inode.kind()) {
            MAP_FLAGS
        } else if has_extent_header(inode) {
            InodeFlags::INLINE_DATA
        } else if attributes::inline_value(inode).is_some() {
            InodeFlags::EXTENTS
        } else if has_mapped_blocks(self.work, inode) || needs_no_blocks(inode) {
            MAP_FLAGS
        } else {
            return Ok(Verdict::Clear);
        };
        inode.set_flags(flags - wrong);
        Ok(Verdict::Write)
    }
}

/// Whether the words of `i_block` can only be the block numbers of a file.
fn has_mapped_blocks(work: &Work<'_>, inode: &InodeBuf) -> bool {
    let words: [u32; 15] = inode.raw().block_words();
    let file = matches!(inode.kind(), Some(FileKind::Regular | FileKind::Directory | FileKind::Symlink));
    let used = inode.raw().disk.i_blocks_lo.get() != 0 && words.iter().any(|word| *word != 0);
    file && !has_extent_header(inode)
        && used
        && words.iter().all(|word| *word == 0 || work.volume().contains((*word).into()))
}

/// Whether a file or link needs neither a map nor inline data: it has no blocks, or its target is in `i_block`.
fn needs_no_blocks(inode: &InodeBuf) -> bool {
    let raw = inode.raw();
    let end = raw.disk.i_block.iter().position(|byte| *byte == 0);
    match inode.kind() {
        Some(FileKind::Regular) => raw.disk.i_block.iter().all(|byte| *byte == 0),
        Some(FileKind::Symlink) => end.is_some_and(|end| end as u64 == raw.size()),
        _ => false,
    }
}

/// Whether `i_block` begins with an extent header.
fn has_extent_header(inode: &InodeBuf) -> bool {
    RawNode::from_bytes(&inode.raw().disk.i_block)
        .is_some_and(|n| n.header.eh_magic.get() == extent::MAGIC && n.header.eh_entries.get() <= n.header.eh_max.get())
}
