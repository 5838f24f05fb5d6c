//! Phase 4: whether each inode has at least one name, and as many as its link count.

use crate::context::Context;
use crate::inode_records::{InodeRecord, Marks};
use crate::problem::Problem;
use crate::table::Code;
use format::InodeNo;
use format::feature::RoCompat;
use format::inode::FileKind;

/// The most links a directory can count (`EXT4_LINK_MAX`); one with more counts 1, under the feature dir_nlink.
const LINK_MAX: u32 = 65_000;

/// Checks all inodes in use, in the order of their numbers. Returns the number of hard links: names of files other than
/// directories, without the first name of each.
pub(crate) fn check(ctx: &Context<'_>) -> u64 {
    let mut links = 0u64;
    for (inode, record) in ctx.inodes.used() {
        // system inodes need no name; a root without links was already reported as missing
        if record.marks.contains(Marks::OWN) && (inode != InodeNo::ROOT || record.links == 0) {
            continue;
        }
        let names = ctx.inodes.names(inode);
        if record.kind != Some(FileKind::Directory) {
            links += u64::from(names.saturating_sub(1));
        }
        check_inode(ctx, inode, record, names);
    }
    links
}

fn check_inode(ctx: &Context<'_>, inode: InodeNo, record: InodeRecord, names: u32) {
    let directory = record.kind == Some(FileKind::Directory);
    if names == 0 {
        // an inode with an attribute value has one link; its users are attributes and were counted with them
        if !record.marks.contains(Marks::VALUE) {
            check_unattached(ctx, inode, record);
        } else if record.links != 1 {
            let problem = Problem::new(Code::LinkCountWrong).inode(inode);
            ctx.report(problem.found(u64::from(record.links)).expected(1));
        }
        return;
    }
    let mut expected = names;
    if directory && names > LINK_MAX {
        if !ctx.volume.features.ro_compat.contains(RoCompat::DIR_NLINK) {
            ctx.report(Problem::new(Code::DirNlinkFeatureMissing).inode(inode));
        }
        expected = 1;
    }
    let links = u32::from(record.links);
    if links == expected {
        return;
    }
    // a directory that once had too many subdirectories retains the count 1
    if directory && links == 1 && record.marks.contains(Marks::INDEX) {
        return;
    }
    let problem = |code| Problem::new(code).inode(inode).found(u64::from(links));
    ctx.report(if expected == names {
        problem(Code::LinkCountWrong).expected(u64::from(expected))
    } else {
        problem(Code::DirectoryLinkCountOverflow).expected(u64::from(names))
    });
}

fn check_unattached(ctx: &Context<'_>, inode: InodeNo, record: InodeRecord) {
    if record.marks.contains(Marks::EA_INODE) {
        ctx.report(Problem::new(Code::XattrValueInodeFlagStray).inode(inode));
    }
    if record.marks.contains(Marks::EMPTY) && record.kind == Some(FileKind::Regular) {
        ctx.report(Problem::new(Code::InodeUnattachedEmpty).inode(inode));
    }
    ctx.report(Problem::new(Code::InodeUnattached).inode(inode));
}
