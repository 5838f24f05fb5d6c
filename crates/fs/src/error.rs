use format::{InodeNo, Structure, Where};

/// An error of the file system. Each kind corresponds to one POSIX error; that table is in the crate that answers the
/// kernel.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The device refused a request, or is shorter than the volume.
    #[error(transparent)]
    Io(blockdev::Error),
    /// The volume or the file is consistent as far as known, but needs something unsupported.
    #[error("unsupported: {0}")]
    Unsupported(String),
    /// The bytes contradict the format.
    #[error("corrupt {structure}{at}: {what}")]
    Corrupt {
        /// The kind of structure.
        structure: Structure,
        /// The location of the structure.
        at: Where,
        /// The problem with it, as a phrase without a full stop.
        what: &'static str,
    },
    /// No valid superblock was found at the requested location. Copies may exist elsewhere.
    #[error(
        "{0}; a copy of the superblock may be intact: specify its block with -b \
         (the first is often 32768, or 8193 with blocks of 1024 bytes)"
    )]
    NoSuperblock(Box<Error>),
    /// A native volume cannot be opened in its present state. Its superblocks have no copies to specify, so the next
    /// step differs from that for ext volumes.
    #[error("{what} ({why}); {next}")]
    Native {
        /// The part that cannot be read.
        what: &'static str,
        /// The reason.
        why: Box<Error>,
        /// The next step, or the reason why there is none.
        next: &'static str,
    },
    /// No file has that name or number.
    #[error("no such file or directory")]
    NotFound,
    /// The inode of that number is not in use, or no longer in use.
    #[error("inode {0} is not in use")]
    Stale(InodeNo),
    /// The operation needs a directory.
    #[error("not a directory")]
    NotADirectory,
    /// The operation is not possible on a directory.
    #[error("is a directory")]
    IsADirectory,
    /// A name is longer than 255 bytes.
    #[error("the name is longer than 255 bytes")]
    NameTooLong,
    /// A path follows more than 40 symbolic links.
    #[error("too many symbolic links")]
    TooManyLinks,
    /// The file has no attribute of that name.
    #[error("no such attribute")]
    NoAttribute,
    /// The content is encrypted, and no key is available.
    #[error("encrypted, and the key is not available")]
    Encrypted,
    /// The call is invalid for a file of this kind.
    #[error("{0}")]
    Invalid(&'static str),
    /// No free block, or no free inode.
    #[error("no space left on the volume")]
    NoSpace,
    /// The name, or the attribute, already exists.
    #[error("already exists")]
    Exists,
    /// The directory contains names besides "." and "..".
    #[error("the directory is not empty")]
    NotEmpty,
    /// The file has the maximum number of names, or the directory the maximum number of subdirectories.
    #[error("too many links")]
    TooManyNames,
    /// A file would exceed the maximum size of its format, or of the volume.
    #[error("the file would be too large")]
    FileTooLarge,
    /// Forbidden by the file's flags (immutable, append-only), or by the format.
    #[error("not permitted: {0}")]
    NotPermitted(&'static str),
    /// A transaction changes more blocks than a generation can contain; it can only be rolled back.
    #[error("the transaction exceeds its limit of {limit} metadata blocks and must be rolled back")]
    TransactionTooLarge {
        /// Maximum number of blocks that it may change.
        limit: usize,
    },
    /// The transaction was rolled back, with the reason.
    #[error("the transaction was rolled back: {0}")]
    Cancelled(String),
    /// Another transaction exists.
    #[error("another transaction is in progress")]
    Busy,
    /// The volume is read-only, with the reason.
    #[error("{0}")]
    ReadOnly(String),
    /// The volume cannot be written in the requested mode; another mode may be possible.
    #[error("it cannot be mounted for writing with these options: {0}")]
    Impossible(&'static str),
}

impl Error {
    /// A corruption of an inode's own structure.
    pub(crate) fn corrupt(structure: Structure, at: impl Into<Where>, what: &'static str) -> Self {
        Error::Corrupt { structure, at: at.into(), what }
    }

    /// Converts the error of an inode that a directory refers to: an entry for an inode that is not in use is damage.
    #[must_use]
    pub fn of_named(self) -> Self {
        match self {
            Error::Stale(number) => Error::corrupt(
                Structure::Inode,
                Where::Inode(number),
                "a directory entry refers to it, but it is not in use",
            ),
            other => other,
        }
    }

    /// Whether this is the error for a damaged volume (as opposed to an invalid request, or a failed device).
    #[must_use]
    pub fn is_corruption(&self) -> bool {
        match self {
            Error::Corrupt { .. } => true,
            Error::NoSuperblock(why) | Error::Native { why, .. } => why.is_corruption(),
            _ => false,
        }
    }
}

impl From<format::Error> for Error {
    fn from(e: format::Error) -> Self {
        match e {
            format::Error::Unsupported(what) => Error::Unsupported(what),
            format::Error::Corrupt { structure, at, what } => Error::Corrupt { structure, at, what },
        }
    }
}

impl From<blockdev::Error> for Error {
    fn from(e: blockdev::Error) -> Self {
        Error::Io(e)
    }
}

impl From<store::Error> for Error {
    fn from(e: store::Error) -> Self {
        match e {
            store::Error::Device(e) => e.into(),
            store::Error::Format(e) => e.into(),
            e @ (store::Error::ReadOnly | store::Error::Failed(_)) => Error::ReadOnly(e.to_string()),
            store::Error::TransactionTooLarge { limit } => Error::TransactionTooLarge { limit },
            // no operation of the file system is that large
            e @ (store::Error::TooLarge { .. } | store::Error::Journal(_)) => Error::Unsupported(e.to_string()),
            store::Error::NoSpace => Error::NoSpace,
            store::Error::Native(why) | store::Error::Linked(why) => {
                Error::ReadOnly(format!("the volume cannot be written: {why}"))
            }
        }
    }
}

/// Adds the inode to errors of the format's parser, which only sees the bytes.
pub(crate) trait OfInode<T> {
    /// Adds the inode to a corruption without a location.
    fn of(self, inode: InodeNo) -> Result<T>;
}

impl<T> OfInode<T> for format::Result<T> {
    fn of(self, inode: InodeNo) -> Result<T> {
        self.map_err(|e| e.at(Where::Inode(inode)).into())
    }
}

/// The result of a call into the file system.
pub type Result<T, E = Error> = std::result::Result<T, E>;
