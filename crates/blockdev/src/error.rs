use std::{fmt, io};

/// The operation that was requested of the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// Opening, or a query of the size.
    Open,
    /// A read.
    Read,
    /// A write.
    Write,
    /// A flush.
    Flush,
    /// A discard.
    Discard,
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Op::Open => "open",
            Op::Read => "read",
            Op::Write => "write",
            Op::Flush => "flush",
            Op::Discard => "discard",
        })
    }
}

/// The reason why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The underlying storage returned an error.
    #[error("{op} of {len} bytes at byte {offset} failed: {source}")]
    Io {
        /// The operation that was requested.
        op: Op,
        /// The offset in bytes.
        offset: u64,
        /// The length in bytes.
        len: u64,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The request is not inside the device.
    #[error("{op} of {len} bytes at byte {offset} is beyond the end of the device at {end}")]
    OutOfRange {
        /// The operation that was requested.
        op: Op,
        /// The offset in bytes.
        offset: u64,
        /// The length in bytes.
        len: u64,
        /// The device's length in bytes.
        end: u64,
    },
    /// A change was requested of a read-only device.
    #[error("{0} refused: the device is read-only")]
    ReadOnly(Op),
    /// The device could not be opened. The source's kind is the reason: `NotFound`, `IsADirectory`, `PermissionDenied`,
    /// `ResourceBusy` (locked by another process), `Unsupported`, or the kind of the system's error.
    #[error("cannot open {device}: {source}")]
    Open {
        /// The device as specified by the user.
        device: String,
        /// The reason, as a phrase.
        source: io::Error,
    },
    /// A text is not a size, or is one of more than 64 bits.
    #[error("invalid size `{0}`: use a number of bytes, or a number followed by K, M, G, T, P or E (powers of 1024)")]
    Size(String),
    /// The content of a described structure, the log of a recorded device, is invalid.
    #[error("corrupt: {what} at byte {offset}")]
    Corrupt {
        /// The damage that was found.
        what: &'static str,
        /// The offset in those bytes.
        offset: u64,
    },
    /// The parameters of a modelled device cannot be read, or do not describe a device.
    #[error("invalid parameters: {0}")]
    Parameters(String),
}

/// The result of a request.
pub type Result<T, E = Error> = std::result::Result<T, E>;
