//! The errors of the layer, a sentence each.

use std::fmt;

/// Why a request was refused or failed. Each says what, where, and what can be done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device beneath failed.
    #[error("{0}")]
    Device(#[from] blockdev::Error),
    /// The device beneath cannot contain data, log and superblocks.
    #[error(
        "a device of {device} bytes is too small for a log of {log} bytes: Kero needs {needed}; choose a larger device or a smaller log"
    )]
    TooSmall {
        /// Bytes of the device.
        device: u64,
        /// Bytes of the log.
        log: u64,
        /// Bytes that would do.
        needed: u64,
    },
    /// The device has more blocks than a table entry can name.
    #[error("a device of {0} bytes is too large: Kero addresses 16 TiB of data; use a part of the device")]
    TooLarge(u64),
    /// The size of the log cannot be used.
    #[error("a log of {log} bytes cannot be used here: choose {least} to {most} bytes")]
    LogSize {
        /// Bytes asked for.
        log: u64,
        /// Least bytes.
        least: u64,
        /// Most bytes.
        most: u64,
    },
    /// The volume on the device reaches into the blocks that Kero needs for itself.
    #[error(
        "the volume on the device reaches to byte {volume}, and Kero needs everything from byte {data} on: shrink the volume first"
    )]
    Occupied {
        /// End of the volume.
        volume: u64,
        /// First byte of what would be Kero's own blocks.
        data: u64,
    },
    /// `format` of a device that has the layer already.
    #[error("the device has a Kero layer already: drain it first")]
    AlreadyFormatted,
    /// No layer is there.
    #[error("the device has no Kero layer (block 0 contains no placeholder); use it without `kero:`")]
    NotFormatted,
    /// The placeholder is gone, the superblocks are not.
    #[error(
        "block {block} no longer contains Kero's placeholder, so the device was written without the layer: what the log contains may be older: read it as kero:force,DEVICE, or remove the layer with `extant kero drain --force`"
    )]
    PlaceholderGone {
        /// Block of 4 KiB, 0 or 16.
        block: u32,
    },
    /// `format` did not end.
    #[error("the layer was never completely formatted: drain the device, then format it again")]
    Unfinished,
    /// `drain` did not end.
    #[error("the layer is being removed from the device: drain it once more")]
    Draining,
    /// The device ends before the superblocks that the placeholder names.
    #[error("the device has {device} bytes, and its layer was made for {expected}: use all of the device")]
    Shortened {
        /// Bytes of the device.
        device: u64,
        /// Bytes that the placeholder names.
        expected: u64,
    },
    /// Bytes of the layer that cannot be.
    #[error("Kero: {0}; restore the device from a copy")]
    Corrupt(#[from] Corrupt),
    /// The log lies on another device, which was not named.
    #[error("its log lies on another device: name that as well, kero:log=LOG,DEVICE")]
    LogElsewhere,
    /// The device that was named for the log has none, or that of another layer.
    #[error(
        "the device named as its log contains none, or that of another layer: name the one it was formatted with, kero:log=LOG,DEVICE"
    )]
    WrongLog,
    /// No thread could be started.
    #[error("cannot start the background thread of the layer: {0}")]
    Thread(String),
    /// Only reads are admitted.
    #[error("{0} refused: the layer is open read-only")]
    ReadOnly(&'static str),
    /// Writing ended at an earlier error.
    #[error("writing ended at an earlier error ({0}): reads go on; open the device anew when its cause is gone")]
    Failed(String),
    /// Another opening writes to the device.
    #[error(
        "the layer has changed at byte {offset} since it was opened here: another server writes to the device, so nothing more is read or written here, and what was not flushed is lost; use a device from one place at a time"
    )]
    Taken {
        /// First byte of a block that is not as it was left.
        offset: u64,
    },
    /// No space for another group.
    #[error("the log has no space for a group of {blocks} blocks: make a larger log")]
    LogFull {
        /// Blocks of 4 KiB.
        blocks: u64,
    },
}

/// A defect in the bytes of the layer, and its location.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Corrupt {
    /// The defect.
    pub what: &'static str,
    /// First byte of the block it stands in, on the device.
    pub offset: u64,
}

impl fmt::Display for Corrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at byte {}", self.what, self.offset)
    }
}

impl std::error::Error for Corrupt {}

/// The result of a request.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// The same, of opening `device`.
    pub(crate) fn into_open(self, device: &str) -> blockdev::Error {
        match self {
            Self::Device(error) => error,
            other => {
                blockdev::Error::Open { device: device.to_owned(), source: std::io::Error::other(other.to_string()) }
            }
        }
    }

    /// The same for a caller that knows devices only.
    pub(crate) fn into_device(self, op: blockdev::Op, offset: u64, len: u64) -> blockdev::Error {
        match self {
            Self::Device(error) => error,
            Self::ReadOnly(_) => blockdev::Error::ReadOnly(op),
            other => blockdev::Error::Io { op, offset, len, source: std::io::Error::other(other.to_string()) },
        }
    }
}
