use std::{fmt, io};

/// The operation that was requested of the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// Opening, or asking for the size.
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

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The storage below said no.
    #[error("{op} of {len} bytes at byte {offset} failed: {source}")]
    Io {
        /// The operation that was requested.
        op: Op,
        /// The offset in bytes.
        offset: u64,
        /// The length in bytes.
        len: u64,
        /// The operating system's answer.
        source: io::Error,
    },
    /// The request does not lie inside the device.
    #[error("{op} of {len} bytes at byte {offset} lies beyond the device's end at {end}")]
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
    /// A change was asked of a device that is read-only.
    #[error("{0} refused: the device is read-only")]
    ReadOnly(Op),
    /// The device could not be opened. The source's kind says why: `NotFound`, `IsADirectory`, `PermissionDenied`,
    /// `ResourceBusy` (locked by another process), `Unsupported`, or what the system said.
    #[error("cannot open {device}: {source}")]
    Open {
        /// The device as the user wrote it.
        device: String,
        /// Why, in words.
        source: io::Error,
    },
    /// A text that should be a size is none, or is more than 64 bits count.
    #[error("invalid size `{0}`: use a number of bytes, or a number followed by K, M, G, T, P or E (powers of 1024)")]
    Size(String),
    /// Bytes that should describe something, the log of a recorded device, do not.
    #[error("corrupt: {what} at byte {offset}")]
    Corrupt {
        /// The damage that was found.
        what: &'static str,
        /// The offset in those bytes.
        offset: u64,
    },
    /// The parameters of a modelled device cannot be read, or describe no device.
    #[error("wrong parameters: {0}")]
    Parameters(String),
}

/// The result of a request.
pub type Result<T, E = Error> = std::result::Result<T, E>;
