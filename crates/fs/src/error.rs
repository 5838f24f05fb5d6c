use format::{InodeNo, Structure, Where};

/// Why the file system could not do what was asked. Each kind stands for one answer of POSIX; the table of those is in
/// the crate that speaks to a kernel.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The device refused a request, or ends before the volume does.
    #[error(transparent)]
    Io(blockdev::Error),
    /// The volume or the file is consistent as far as we know, but needs something we do not have.
    #[error("unsupported: {0}")]
    Unsupported(String),
    /// The bytes contradict the format.
    #[error("corrupt {structure}{at}: {what}")]
    Corrupt {
        /// Which structure.
        structure: Structure,
        /// The location of the structure.
        at: Where,
        /// The problem with it, as a phrase without a full stop.
        what: &'static str,
    },
    /// No superblock was accepted at the place asked for. Copies may exist elsewhere.
    #[error(
        "{0}; a copy of the superblock may be whole: specify its block with -b \
         (the first is often 32768, or 8193 with blocks of 1024 bytes)"
    )]
    NoSuperblock(Box<Error>),
    /// A native volume cannot be opened as it stands. There are no copies of its superblocks to be named, so the next
    /// step is another one than for ext volumes.
    #[error("{what} ({why}); {next}")]
    Native {
        /// The part that cannot be read.
        what: &'static str,
        /// The reason.
        why: Box<Error>,
        /// The next step, or the reason why there is none.
        next: &'static str,
    },
    /// There is no file of that name or number.
    #[error("no such file or directory")]
    NotFound,
    /// The inode of that number is not in use, or not any more.
    #[error("inode {0} is not in use")]
    Stale(InodeNo),
    /// A directory is needed here.
    #[error("not a directory")]
    NotADirectory,
    /// A directory cannot be used like this.
    #[error("is a directory")]
    IsADirectory,
    /// A name is longer than 255 bytes.
    #[error("the name is longer than 255 bytes")]
    NameTooLong,
    /// A path leads through more than 40 symbolic links.
    #[error("too many symbolic links")]
    TooManyLinks,
    /// The file has no attribute of that name.
    #[error("no such attribute")]
    NoAttribute,
    /// The content is encrypted, and we have no key.
    #[error("encrypted, and there is no key")]
    Encrypted,
    /// The call makes no sense for a file of this kind.
    #[error("{0}")]
    Invalid(&'static str),
    /// There is no space: no free block, or no free inode.
    #[error("no space left on the volume")]
    NoSpace,
    /// The name, or the attribute, is there already.
    #[error("already exists")]
    Exists,
    /// A directory has names besides "." and "..".
    #[error("the directory is not empty")]
    NotEmpty,
    /// The file has as many names as the format can count, or the directory as many subdirectories.
    #[error("too many links")]
    TooManyNames,
    /// A file would become larger than its format, or the volume's, can count.
    #[error("the file would be too large")]
    FileTooLarge,
    /// The file's flags (immutable, append-only) forbid it, or the format does.
    #[error("not permitted: {0}")]
    NotPermitted(&'static str),
    /// A transaction changes more than a generation can hold; it can only be rolled back.
    #[error("the transaction exceeds its limit of {limit} metadata blocks and must be rolled back")]
    TransactionTooLarge {
        /// Blocks it may change.
        limit: usize,
    },
    /// The transaction was rolled back, with the reason.
    #[error("the transaction was rolled back: {0}")]
    Cancelled(String),
    /// There is another transaction.
    #[error("another transaction is in progress")]
    Busy,
    /// The volume is read-only, with the reason.
    #[error("{0}")]
    ReadOnly(String),
    /// It was to be written in a way that a volume of its kind cannot be; another way may do.
    #[error("it cannot be mounted for writing with these options: {0}")]
    Impossible(&'static str),
}

impl Error {
    /// A corruption of an inode's own structure.
    pub(crate) fn corrupt(structure: Structure, at: impl Into<Where>, what: &'static str) -> Self {
        Error::Corrupt { structure, at: at.into(), what }
    }

    /// The same where a directory names the inode: an entry that leads to one that is not in use is damage.
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

    /// Whether this is the answer for a damaged volume (as opposed to a wrong request, or a device that failed).
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
            // no operation of ours is that large
            e @ (store::Error::TooLarge { .. } | store::Error::Journal(_)) => Error::Unsupported(e.to_string()),
            store::Error::NoSpace => Error::NoSpace,
            store::Error::Native(why) | store::Error::Linked(why) => {
                Error::ReadOnly(format!("the volume cannot be written: {why}"))
            }
        }
    }
}

/// Says of which inode a structure is, where the format's parser only knew the bytes.
pub(crate) trait OfInode<T> {
    /// Adds the inode to a corruption that has no place yet.
    fn of(self, inode: InodeNo) -> Result<T>;
}

impl<T> OfInode<T> for format::Result<T> {
    fn of(self, inode: InodeNo) -> Result<T> {
        self.map_err(|e| e.at(Where::Inode(inode)).into())
    }
}

/// The result of a call into the file system.
pub type Result<T, E = Error> = std::result::Result<T, E>;
