//! The errors in creating a volume.

/// An error in creating a volume.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The device refused a request.
    #[error(transparent)]
    Device(#[from] blockdev::Error),
    /// The options exclude each other, or are not possible on this device: a sentence without a full stop.
    #[error("{0}")]
    Options(String),
}

/// The result of creating a volume.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Returns the error that the options are not possible.
pub(super) fn refuse<T>(why: impl Into<String>) -> Result<T> {
    Err(Error::Options(why.into()))
}
