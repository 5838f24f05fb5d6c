//! The page cache, emptied of one file.

use crate::Result;
use crate::error::Trying;
use std::fs::File;
use std::path::Path;

/// Drops the cached pages of `path`, so that its next reader goes to the device. Needs no root, and leaves the rest
/// of the cache, programs among it, as it is.
pub(crate) fn drop_cached(path: &Path) -> Result<()> {
    let file = File::open(path).trying("open", path)?;
    // pages that are not written yet would stay
    file.sync_all().trying("write back", path)?;
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).trying("drop the cache of", path)
}
