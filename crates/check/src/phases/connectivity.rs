//! Phase 3: whether every directory is connected to the root, and whether each `..` names the parent.
//!
//! The parent of a directory is the directory whose entry names it; phase 2 found it for each. From any directory the
//! chain of parents ends at the root or at a directory without a parent, or is a loop. Each directory is visited once:
//! the walk of a chain stops at a directory whose end is known.

use crate::context::Context;
use crate::inode_records::{Directories, Directory, Marks};
use crate::problem::Problem;
use crate::table::Code;
use format::InodeNo;

/// Checks all directories and marks those that are connected to the root as [`Marks::CONNECTED`].
pub(crate) fn check(ctx: &Context<'_>, directories: &Directories) {
    // a root that is not a directory was reported with the inodes
    if ctx.inodes.get(InodeNo::ROOT).is_none_or(|root| root.links == 0) {
        ctx.report(Problem::new(Code::RootMissing).inode(InodeNo::ROOT));
    }
    let mut ends = vec![End::Unknown; directories.iter().len()];
    let mut chain = Vec::new();
    for start in 0..ends.len() {
        walk(ctx, directories, start, &mut ends, &mut chain);
    }
    for directory in directories.iter() {
        check_dotdot(ctx, directory);
    }
}

/// The end of the chain of parents of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Unknown,
    /// The current walk has visited the directory.
    Underway,
    Root,
    Elsewhere,
}

/// Follows the parents of one directory up to one whose end is known, and records the end of all visited directories.
fn walk(ctx: &Context<'_>, directories: &Directories, start: usize, ends: &mut [End], chain: &mut Vec<usize>) {
    chain.clear();
    let mut at = start;
    let end = loop {
        let (Some(end), Some(directory)) = (ends.get_mut(at), directories.nth(at)) else { return };
        match *end {
            End::Root => break End::Root,
            End::Elsewhere => break End::Elsewhere,
            End::Underway => {
                // one problem per loop, at its first directory
                let ring = chain.iter().skip_while(|n| **n != at).copied();
                if let Some(first) = ring.min().and_then(|n| directories.nth(n)) {
                    report_disconnected(ctx, Code::DirectoryLoop, first);
                }
                break End::Elsewhere;
            }
            End::Unknown => {}
        }
        chain.push(at);
        if directory.inode == InodeNo::ROOT {
            break End::Root;
        }
        *end = End::Underway;
        match directory.parent().and_then(|parent| directories.place(parent)) {
            Some(parent) => at = parent,
            None => {
                report_disconnected(ctx, Code::DirectoryUnconnected, directory);
                break End::Elsewhere;
            }
        }
    };
    for n in chain.iter() {
        if let Some(slot) = ends.get_mut(*n) {
            *slot = end;
        }
        if end == End::Root
            && let Some(directory) = directories.nth(*n)
        {
            ctx.inodes.mark(directory.inode, Marks::CONNECTED);
        }
    }
}

fn report_disconnected(ctx: &Context<'_>, code: Code, directory: &Directory) {
    let dotdot = directory.dotdot().map_or(0, InodeNo::get);
    ctx.report(Problem::new(code).inode(directory.inode).found(u64::from(dotdot)));
}

/// Checks the `..` of a directory. The root is its own parent; an unattached directory has no parent to compare with.
fn check_dotdot(ctx: &Context<'_>, directory: &Directory) {
    let parent = if directory.inode == InodeNo::ROOT { Some(InodeNo::ROOT) } else { directory.parent() };
    let dotdot = directory.dotdot();
    if let Some(parent) = parent
        && dotdot != Some(parent)
    {
        let found = dotdot.map_or(0, InodeNo::get);
        ctx.report(
            Problem::new(Code::DotDotWrong)
                .inode(directory.inode)
                .found(u64::from(found))
                .expected(u64::from(parent.get())),
        );
    }
}
