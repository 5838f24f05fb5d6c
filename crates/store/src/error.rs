use std::sync::Arc;

/// An error of the store.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The device refused a request.
    #[error(transparent)]
    Device(#[from] blockdev::Error),
    /// The bytes are invalid, or need an unsupported feature.
    #[error(transparent)]
    Format(#[from] format::Error),
    /// The volume was not opened for writing.
    #[error("the volume is read-only")]
    ReadOnly,
    /// A write or flush failed earlier; nothing has been written since. The text describes the failure.
    #[error("the volume became read-only after a failed write: {0}")]
    Failed(Arc<str>),
    /// The journal's content cannot be written home, or the journal cannot be written to. The text is the reason.
    #[error("{0}")]
    Journal(String),
    /// A native volume cannot be written in its present state. The text is the reason.
    #[error("{0}")]
    Native(&'static str),
    /// The list of linked writes cannot be used. The text is the reason.
    #[error("{0}")]
    Linked(&'static str),
    /// No space for the metadata of an operation.
    #[error("no space is left for metadata")]
    NoSpace,
    /// One operation announces more blocks than a generation can contain.
    #[error("an operation on {credits} metadata blocks exceeds the limit of {limit} for one generation")]
    TooLarge {
        /// Blocks the operation announced.
        credits: usize,
        /// Blocks a generation can contain.
        limit: usize,
    },
    /// The generation is that of a transaction and has no space for one more operation.
    #[error("the transaction changes more than the {limit} metadata blocks that a generation can contain")]
    TransactionTooLarge {
        /// Blocks this generation can contain.
        limit: usize,
    },
}

/// The result of a call into the store.
pub type Result<T, E = Error> = std::result::Result<T, E>;
