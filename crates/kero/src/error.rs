//! The errors of the layer, one sentence each.

use std::fmt;

/// The reason why a request was refused or failed. Each message states the problem, the location, and a remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The underlying device failed.
    #[error("{0}")]
    Device(#[from] blockdev::Error),
    /// The underlying device cannot contain data, log and superblocks.
    #[error(
        "a device of {device} bytes is too small for a log of {log} bytes: Kero needs {needed}; choose a larger device or a smaller log"
    )]
    TooSmall {
        /// Bytes of the device.
        device: u64,
        /// Bytes of the log.
        log: u64,
        /// Bytes that would suffice.
        needed: u64,
    },
    /// The device has more blocks than a table entry can address.
    #[error("a device of {0} bytes is too large: Kero addresses 16 TiB of data; use a part of the device")]
    TooLarge(u64),
    /// The size of the log cannot be used.
    #[error("a log of {log} bytes cannot be used here: choose {least} to {most} bytes")]
    LogSize {
        /// Requested bytes.
        log: u64,
        /// Minimum in bytes.
        least: u64,
        /// Maximum in bytes.
        most: u64,
    },
    /// The volume on the device extends into the blocks that Kero needs for itself.
    #[error(
        "the volume on the device reaches to byte {volume}, and Kero needs everything from byte {data} on: shrink the volume first"
    )]
    Occupied {
        /// End of the volume.
        volume: u64,
        /// First byte of Kero's own blocks.
        data: u64,
    },
    /// `format` of a device that has a layer already.
    #[error("the device has a Kero layer already: drain it first")]
    AlreadyFormatted,
    /// The device has no layer.
    #[error("the device has no Kero layer (block 0 contains no placeholder); use it without `kero:`")]
    NotFormatted,
    /// The placeholder is missing, the superblocks are not.
    #[error(
        "block {block} no longer contains Kero's placeholder, so the device was written without the layer: the content of the log may be older; read it as kero:force,DEVICE, or remove the layer with `extant kero drain --force`"
    )]
    PlaceholderGone {
        /// Block of 4 KiB, 0 or 16.
        block: u32,
    },
    /// `format` was not completed.
    #[error("the layer was never completely formatted: drain the device, then format it again")]
    Unfinished,
    /// `drain` was not completed.
    #[error("the layer is being removed from the device: drain it again")]
    Draining,
    /// The device ends before the superblocks that the placeholder names.
    #[error("the device has {device} bytes, and its layer was formatted for {expected}: use all of the device")]
    Shortened {
        /// Bytes of the device.
        device: u64,
        /// Bytes that the placeholder names.
        expected: u64,
    },
    /// Invalid bytes of the layer.
    #[error("Kero: {0}; restore the device from a backup")]
    Corrupt(#[from] Corrupt),
    /// The log is on another device, which was not specified.
    #[error("its log is on another device: specify that as well, kero:log=LOG,DEVICE")]
    LogElsewhere,
    /// The device specified for the log contains no log, or that of another layer.
    #[error(
        "the device specified for its log contains no log, or that of another layer: specify the one it was formatted with, kero:log=LOG,DEVICE"
    )]
    WrongLog,
    /// The thread could not be started.
    #[error("cannot start the background thread of the layer: {0}")]
    Thread(String),
    /// Only reads are allowed.
    #[error("{0} refused: the layer is open read-only")]
    ReadOnly(&'static str),
    /// Writing ended at an earlier error.
    #[error("writing ended at an earlier error ({0}): reads still work; reopen the device after its cause is fixed")]
    Failed(String),
    /// Another instance of the layer writes to the device.
    #[error(
        "the layer has changed at byte {offset} since it was opened here: another server writes to the device, so nothing more is read or written here, and unflushed data is lost; use a device from one place at a time"
    )]
    Taken {
        /// First byte of a block that has changed.
        offset: u64,
    },
    /// Content of the log is damaged.
    #[error(
        "the content of byte {data} is damaged in the log (at byte {offset} of the device, wrong checksum), so it was not written to its home location: open the layer again and write these 4096 bytes anew, restore the device from a backup, or remove the layer with `extant kero drain --force`, which moves them as they are"
    )]
    Damaged {
        /// First byte of the block in the data.
        data: u64,
        /// First byte of its slot on the device.
        offset: u64,
    },
    /// No space for another group.
    #[error("the log has no space for a group of {blocks} blocks: use a larger log")]
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
    /// First byte of its block on the device.
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
    /// Converts an error of opening `device`.
    pub(crate) fn into_open(self, device: &str) -> blockdev::Error {
        match self {
            Self::Device(error) => error,
            other => {
                blockdev::Error::Open { device: device.to_owned(), source: std::io::Error::other(other.to_string()) }
            }
        }
    }

    /// Converts an error for callers of a block device.
    pub(crate) fn into_device(self, op: blockdev::Op, offset: u64, len: u64) -> blockdev::Error {
        match self {
            Self::Device(error) => error,
            Self::ReadOnly(_) => blockdev::Error::ReadOnly(op),
            other => blockdev::Error::Io { op, offset, len, source: std::io::Error::other(other.to_string()) },
        }
    }
}
