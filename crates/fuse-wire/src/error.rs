use std::io;
use std::path::PathBuf;

/// The reason why a volume could not be mounted, served or unmounted.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An invalid mount option: a sentence that names it.
    #[error("{0}")]
    Option(String),
    /// The file system could not be attached to the directory.
    #[error("cannot mount on {}: {source}", dir.display())]
    Mount {
        /// The directory.
        dir: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The file system could not be detached from the directory.
    #[error("cannot unmount {}: {source}", dir.display())]
    Unmount {
        /// The directory.
        dir: PathBuf,
        /// The cause; of the kind `ResourceBusy` where files are still open.
        source: io::Error,
    },
    /// The file system is unmounted, but some of the written data did not reach the device.
    #[error("unmounted, but not all that was written reached the device: {0}")]
    Finish(io::Error),
    /// The mount is read-only now, but some of the written data did not reach the device.
    #[error("{} is read-only now, but not all that was written reached the device: {why}", dir.display())]
    Remount {
        /// The directory.
        dir: PathBuf,
        /// The cause, with the files where they are known.
        why: io::Error,
    },
    /// The connection to the kernel failed.
    #[error("the connection to the kernel failed: {0}")]
    Connection(io::Error),
}

/// The result of mounting and unmounting.
pub type Result<T, E = Error> = std::result::Result<T, E>;
