//! The system that is explored: anything that mounts a device, does operations, and recovers after a crash.

use std::fs::File;
use std::ops::Range;
use std::sync::Arc;

use blockdev::BlockDevice;
use rustix::io::Errno;

use crate::above;
use crate::guarantee::Guarantee;
use crate::model::State;
use crate::op::Op;

/// The reason why something could not be done, as a sentence.
pub type Refused = String;

/// A file system in one mode. Everything is done on the thread that asks, and the same requests make the same writes:
/// a finding could not be repeated otherwise.
pub trait System: Sync {
    /// The arguments of `extant crash` that choose it.
    fn arguments(&self) -> String;

    /// The guarantee of its mode.
    fn guarantee(&self) -> &'static Guarantee;

    /// Bytes of its volumes that its format takes to be written whole, see [`Limits::whole`](crate::enumerate::Limits).
    fn whole(&self) -> Range<u64> {
        0..0
    }

    /// Whether e2fsck can read its volumes.
    fn suits_e2fsck(&self) -> bool {
        true
    }

    /// Writes what e2fsck is to look at into a file that is empty.
    ///
    /// # Errors
    /// Why that could not be done.
    fn write_for_e2fsck(&self, device: &Arc<dyn BlockDevice>, file: &File) -> Result<(), Refused> {
        above::copy(&**device, file)
    }

    /// Whether what e2fsck finds is what it finds on consistent volumes of the format, too.
    fn is_known_to_e2fsck(&self, _said: &str) -> bool {
        false
    }

    /// Bytes in a block of its volumes.
    fn block_size(&self) -> u64;

    /// A new volume, unmounted.
    ///
    /// # Errors
    /// Why there is none.
    fn format(&self) -> Result<Arc<dyn BlockDevice>, Refused>;

    /// Mounts the volume for writing.
    ///
    /// # Errors
    /// Why it cannot be mounted.
    fn mount(&self, device: Arc<dyn BlockDevice>) -> Result<Box<dyn Session>, Refused>;

    /// Does what the mode does after a crash, so that the checker finds nothing and the volume can be used: replays the
    /// journal, or checks and repairs. Leaves the volume unmounted. Says whether the volume called itself clean.
    ///
    /// # Errors
    /// Why it cannot be recovered: a broken guarantee.
    fn recover(&self, device: Arc<dyn BlockDevice>) -> Result<bool, Refused>;

    /// The problems that the checker finds; nothing is written.
    ///
    /// # Errors
    /// Why it cannot be checked.
    fn problems(&self, device: &dyn BlockDevice) -> Result<Vec<String>, Refused>;

    /// All that the volume holds; nothing is written.
    ///
    /// # Errors
    /// Why it cannot be read.
    fn observe(&self, device: Arc<dyn BlockDevice>) -> Result<State, Refused>;
}

/// A mounted volume. Dropped without [`Session::unmount`], it is left as a crash leaves it.
pub trait Session {
    /// Does one operation and returns when it has been acknowledged; what it guarantees by then is the mode's matter.
    /// Returns how many bytes a write has written, fewer than asked for where there was no more space; 0 for
    /// operations that write none.
    ///
    /// # Errors
    /// The answer of POSIX.
    fn apply(&mut self, op: &Op) -> Result<u64, Errno>;

    /// All bytes of a regular file.
    ///
    /// # Errors
    /// The answer of POSIX.
    fn read(&mut self, path: &str) -> Result<Vec<u8>, Errno>;

    /// Unmounts it.
    ///
    /// # Errors
    /// Why that could not be done as it should be.
    fn unmount(self: Box<Self>) -> Result<(), Refused>;
}
