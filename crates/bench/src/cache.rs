//! The page cache, emptied of one file.

use crate::Result;
use crate::error::Trying;
use std::fs::File;
use std::path::Path;

/// Drops the cached pages of `path`, so that the next read goes to the device. Needs no root, and does not affect the
/// rest of the cache.
pub(crate) fn drop_cached(path: &Path) -> Result<()> {
    let file = File::open(path).trying("open", path)?;
    // dirty pages would remain cached
    file.sync_all().trying("write back", path)?;
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).trying("drop the cache of", path)
}
