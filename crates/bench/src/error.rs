//! Errors of a measurement.

use std::io;
use std::path::Path;

/// [`std::result::Result`] with [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason why a measurement failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call failed.
    #[error("{what}: {source}")]
    Io {
        /// The failed operation, with the file's name.
        what: String,
        /// The reason.
        source: io::Error,
    },
    /// The volume could not be opened or read.
    #[error(transparent)]
    Device(#[from] blockdev::Error),
    /// The volume cannot be checked, or a peer ended with an unexpected result.
    #[error("{0}")]
    Failed(String),
    /// A program or the privilege of root is missing.
    #[error("{0}")]
    Unsupported(String),
}

/// An error of a volume as one of the measurement.
pub(crate) fn failed(e: fs::Error) -> Error {
    Error::Failed(e.to_string())
}

/// Adds the failed operation to an [`io::Error`].
pub(crate) trait Trying<T> {
    /// `verb` and the path are the beginning of the sentence: `cannot open x: no such file`.
    fn trying(self, verb: &str, path: &Path) -> Result<T>;
}

impl<T, E: Into<io::Error>> Trying<T> for Result<T, E> {
    fn trying(self, verb: &str, path: &Path) -> Result<T> {
        self.map_err(|e| Error::Io { what: format!("cannot {verb} {}", path.display()), source: e.into() })
    }
}
