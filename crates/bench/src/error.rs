//! Errors of a measurement.

use std::io;
use std::path::Path;

/// [`std::result::Result`] with [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why there are no figures.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The system refused something.
    #[error("{what}: {source}")]
    Io {
        /// The operation that was tried, with the file's name.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
    /// The volume could not be opened or read.
    #[error(transparent)]
    Device(#[from] blockdev::Error),
    /// The volume cannot be checked, or a peer ended in another way than a measurement needs.
    #[error("{0}")]
    Failed(String),
    /// The machine or the user lacks something: a program, root.
    #[error("{0}")]
    Unsupported(String),
}

/// Says what was tried when an [`io::Error`] turns up.
pub(crate) trait Trying<T> {
    /// `verb` and the path are the beginning of the sentence: `cannot open x: no such file`.
    fn trying(self, verb: &str, path: &Path) -> Result<T>;
}

impl<T, E: Into<io::Error>> Trying<T> for Result<T, E> {
    fn trying(self, verb: &str, path: &Path) -> Result<T> {
        self.map_err(|e| Error::Io { what: format!("cannot {verb} {}", path.display()), source: e.into() })
    }
}
