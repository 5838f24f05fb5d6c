//! Reasons why a volume was not damaged.

/// The reason why a volume was not damaged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device failed, or is read-only.
    #[error(transparent)]
    Io(#[from] blockdev::Error),
    /// The volume has no known format, or is already damaged.
    #[error(transparent)]
    Format(#[from] format::Error),
    /// The volume lacks a structure that the damage needs; nothing was changed except in preparation.
    #[error("{0}")]
    Unfit(&'static str),
    /// No kind of damage has this name or number.
    #[error("there is no such kind of damage")]
    Unknown,
}

pub(crate) type Result<T> = std::result::Result<T, Error>;

/// Returns `Unfit` with this sentence, unless `met`.
pub(crate) fn need(met: bool, without: &'static str) -> Result<()> {
    if met { Ok(()) } else { Err(Error::Unfit(without)) }
}
