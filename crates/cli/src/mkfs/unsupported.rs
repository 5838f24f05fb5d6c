//! Options of mke2fs that this program does not have: each is refused with what to do instead.

use crate::error_report::{Failure, Result};
use clap::{ArgAction, Args};
use std::ffi::OsString;

/// These options as parsed. They are not in the help.
#[derive(Debug, Args)]
pub(super) struct Unsupported {
    /// Test for bad blocks
    #[arg(short = 'c', hide = true, action = ArgAction::Count)]
    bad_block_test: u8,

    /// List of bad blocks
    #[arg(short = 'l', hide = true, value_name = "FILE", allow_hyphen_values = true)]
    bad_block_list: Vec<OsString>,

    /// Direct I/O
    #[arg(short = 'D', hide = true, action = ArgAction::Count)]
    direct_io: u8,

    /// Creator
    #[arg(short = 'o', hide = true, value_name = "OS", allow_hyphen_values = true)]
    creator: Vec<OsString>,

    /// Revision of the format
    #[arg(short = 'r', hide = true, value_name = "REVISION", allow_hyphen_values = true)]
    revision: Vec<OsString>,

    /// Write superblocks and group descriptors only
    #[arg(short = 'S', hide = true, action = ArgAction::Count)]
    superblocks_only: u8,

    /// Undo file
    #[arg(short = 'z', hide = true, value_name = "UNDO", allow_hyphen_values = true)]
    undo_file: Vec<OsString>,

    /// Do not discard blocks
    #[arg(short = 'K', hide = true, action = ArgAction::Count)]
    without_discard: u8,

    /// Geometry of a RAID
    #[arg(short = 'R', hide = true, value_name = "OPTIONS", allow_hyphen_values = true)]
    raid_geometry: Vec<OsString>,

    /// Sparse copies of the superblock
    #[arg(short = 's', hide = true, value_name = "FLAG", allow_hyphen_values = true)]
    sparse_copies: Vec<OsString>,
}

impl Unsupported {
    /// Refuses the first of the options that is used.
    pub(super) fn check(&self) -> Result<()> {
        let refused = [
            (self.bad_block_test > 0, "-c", "blocks are not tested: use badblocks(8), and e2fsck -l with its list"),
            (!self.bad_block_list.is_empty(), "-l", "bad blocks are not recorded: use e2fsck -l on the new volume"),
            (self.direct_io > 0, "-D", "direct I/O is not supported: omit it"),
            (!self.creator.is_empty(), "-o", "the creator is always Linux: omit it"),
            (!self.revision.is_empty(), "-r", "the revision of the format is always 1: omit it"),
            (
                self.superblocks_only > 0,
                "-S",
                "superblocks and descriptors are not rewritten alone: use `extant check -fy -b SB` with a backup superblock",
            ),
            (!self.undo_file.is_empty(), "-z", "no undo file is written: copy the device first"),
            (self.without_discard > 0, "-K", "it is obsolete: use -E nodiscard"),
            (!self.raid_geometry.is_empty(), "-R", "it is obsolete: use -E stride= and stripe_width="),
            (!self.sparse_copies.is_empty(), "-s", "it is obsolete: use -O sparse_super or -O ^sparse_super"),
        ];
        match refused.into_iter().find(|(used, ..)| *used) {
            Some((_, option, why)) => Err(Failure::Usage(format!("{option}: not supported; {why}"))),
            None => Ok(()),
        }
    }
}
