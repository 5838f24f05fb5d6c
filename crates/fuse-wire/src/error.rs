use std::io;
use std::path::PathBuf;

/// Why a volume could not be mounted, served or unmounted.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A mount option is wrong: a sentence that names it.
    #[error("{0}")]
    Option(String),
    /// The file system could not be attached to the directory.
    #[error("cannot mount on {}: {source}", dir.display())]
    Mount {
        /// The directory.
        dir: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file system could not be detached from the directory.
    #[error("cannot unmount {}: {source}", dir.display())]
    Unmount {
        /// The directory.
        dir: PathBuf,
        /// Why; of the kind `ResourceBusy` where files are still open.
        source: io::Error,
    },
    /// The file system is unmounted, and something that was written to it did not reach the device.
    #[error("unmounted, but not all that was written reached the device: {0}")]
    Finish(io::Error),
    /// The connection to the kernel broke.
    #[error("the connection to the kernel broke: {0}")]
    Connection(io::Error),
}

/// The result of mounting and unmounting.
pub type Result<T, E = Error> = std::result::Result<T, E>;
