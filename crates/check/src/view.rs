//! The results of a completed check, for the repair.

use crate::context::Context;
use crate::inode_records::Directories;
use crate::phases::multiply_claimed::Sharing;
use crate::phases::quota::Usage;
use crate::problem::Problems;
use crate::scan::Scanner;
use crate::volume::Volume;

/// The results of one completed check, for the repair of its problems.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    pub(crate) volume: &'a Volume,
    pub(crate) scanner: &'a Scanner<'a>,
    pub(crate) problems: &'a Problems,
    /// `None` where the check ended in phase 0.
    pub(crate) walk: Option<Walk<'a>>,
}

/// The results of the phases after 0.
#[derive(Clone, Copy)]
pub(crate) struct Walk<'a> {
    pub(crate) ctx: &'a Context<'a>,
    pub(crate) directories: &'a Directories,
    pub(crate) used: &'a Usage,
    pub(crate) sharing: &'a Sharing,
}
