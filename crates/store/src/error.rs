/// Why the store could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The device refused a request.
    #[error(transparent)]
    Device(#[from] blockdev::Error),
    /// The bytes are not what they should be, or need something we do not have.
    #[error(transparent)]
    Format(#[from] format::Error),
}

/// The result of a call into the store.
pub type Result<T, E = Error> = std::result::Result<T, E>;
