//! The system under test: mounts a device, runs operations, and recovers after a crash.

use std::fs::File;
use std::ops::Range;
use std::sync::Arc;

use blockdev::BlockDevice;
use rustix::io::Errno;

use crate::e2fsck_view;
use crate::guarantee::Guarantee;
use crate::model::State;
use crate::op::Op;

/// The reason of a failure, as a sentence.
pub type Refused = String;

/// A file system in one mode. Everything runs on the calling thread, and the same requests cause the same writes:
/// otherwise a finding could not be reproduced.
pub trait System: Sync {
    /// The arguments of `extant crash` that select it.
    fn arguments(&self) -> String;

    /// The guarantee of its mode.
    fn guarantee(&self) -> &'static Guarantee;

    /// Byte range of its volumes that the format assumes to be written atomically, see
    /// [`Limits::whole`](crate::enumerate::Limits).
    fn whole(&self) -> Range<u64> {
        0..0
    }

    /// Whether e2fsck can read its volumes.
    fn e2fsck_can_read(&self) -> bool {
        true
    }

    /// Writes the volume for e2fsck into an empty file.
    ///
    /// # Errors
    /// The reason of a failure.
    fn write_for_e2fsck(&self, device: &Arc<dyn BlockDevice>, file: &File) -> Result<(), Refused> {
        e2fsck_view::copy(&**device, file)
    }

    /// Whether e2fsck reports the same on consistent volumes of the format.
    fn is_known_to_e2fsck(&self, _said: &str) -> bool {
        false
    }

    /// Block size of its volumes in bytes.
    fn block_size(&self) -> u64;

    /// Creates a volume, unmounted.
    ///
    /// # Errors
    /// The reason of a failure.
    fn format(&self) -> Result<Arc<dyn BlockDevice>, Refused>;

    /// Mounts the volume for writing.
    ///
    /// # Errors
    /// The reason why it cannot be mounted.
    fn mount(&self, device: Arc<dyn BlockDevice>) -> Result<Box<dyn Session>, Refused>;

    /// Recovers the volume after a crash as in the mode, so that the checker finds nothing and the volume can be used:
    /// replays the journal, or checks and repairs. The volume is unmounted afterwards. Returns whether the volume was
    /// marked clean.
    ///
    /// # Errors
    /// The reason why it cannot be recovered: a broken guarantee.
    fn recover(&self, device: Arc<dyn BlockDevice>) -> Result<bool, Refused>;

    /// The problems found by the checker; nothing is written.
    ///
    /// # Errors
    /// The reason why it cannot be checked.
    fn problems(&self, device: &dyn BlockDevice) -> Result<Vec<String>, Refused>;

    /// The complete content of the volume; nothing is written.
    ///
    /// # Errors
    /// The reason why it cannot be read.
    fn observe(&self, device: Arc<dyn BlockDevice>) -> Result<State, Refused>;
}

/// A mounted volume. If dropped without [`Session::unmount`], it is left as after a crash.
pub trait Session {
    /// Runs one operation and returns when it is acknowledged; the mode determines what is durable then. Returns the
    /// number of bytes written, fewer than requested if space ran out; 0 for operations that write no data.
    ///
    /// # Errors
    /// The errno of POSIX.
    fn apply(&mut self, op: &Op) -> Result<u64, Errno>;

    /// All bytes of a regular file.
    ///
    /// # Errors
    /// The errno of POSIX.
    fn read(&mut self, path: &str) -> Result<Vec<u8>, Errno>;

    /// Unmounts the volume.
    ///
    /// # Errors
    /// The reason of a failure.
    fn unmount(self: Box<Self>) -> Result<(), Refused>;
}
