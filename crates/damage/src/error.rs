//! Why a volume was not damaged.

/// Why a volume was not damaged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device failed, or is read-only.
    #[error(transparent)]
    Io(#[from] blockdev::Error),
    /// The volume is of no known format, or damaged already.
    #[error(transparent)]
    Format(#[from] format::Error),
    /// The volume lacks what the damage needs; nothing was changed, or only what the damage prepared.
    #[error("{0}")]
    Unfit(&'static str),
    /// No kind has this name or number.
    #[error("there is no such kind of damage")]
    Unknown,
}

pub(crate) type Result<T> = std::result::Result<T, Error>;

/// `Unfit` with this sentence, unless `met`.
pub(crate) fn need(met: bool, without: &'static str) -> Result<()> {
    if met { Ok(()) } else { Err(Error::Unfit(without)) }
}
