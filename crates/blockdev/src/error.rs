use std::{fmt, io};

/// What was asked of the device.
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
        /// What was asked.
        op: Op,
        /// Where, in bytes.
        offset: u64,
        /// How much, in bytes.
        len: u64,
        /// The operating system's answer.
        source: io::Error,
    },
    /// The request does not lie inside the device.
    #[error("{op} of {len} bytes at byte {offset} lies beyond the device's end at {end}")]
    OutOfRange {
        /// What was asked.
        op: Op,
        /// Where, in bytes.
        offset: u64,
        /// How much, in bytes.
        len: u64,
        /// The device's length in bytes.
        end: u64,
    },
    /// A change was asked of a device that is read-only.
    #[error("{0} refused: the device is read-only")]
    ReadOnly(Op),
}

/// The result of a request.
pub type Result<T, E = Error> = std::result::Result<T, E>;
