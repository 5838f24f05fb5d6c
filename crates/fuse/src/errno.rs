//! The mapping from the file system's errors to error numbers.

use fs::Error;
use rustix::io::Errno;

/// Returns the error number for the calling process. Damage is EUCLEAN, as in the kernel's ext4 ("Structure needs
/// cleaning"); a device that fails or is too short is EIO.
pub(crate) fn errno(error: &Error) -> Errno {
    match error {
        Error::Io(_) => Errno::IO,
        Error::Unsupported(_) => Errno::OPNOTSUPP,
        Error::Corrupt { .. } | Error::NoSuperblock(_) | Error::Native { .. } => Errno::UCLEAN,
        Error::NotFound => Errno::NOENT,
        Error::Stale(_) => Errno::STALE,
        Error::NotADirectory => Errno::NOTDIR,
        Error::IsADirectory => Errno::ISDIR,
        Error::NameTooLong => Errno::NAMETOOLONG,
        Error::TooManyLinks => Errno::LOOP,
        Error::NoAttribute => Errno::NODATA,
        Error::Encrypted => Errno::NOKEY,
        Error::Invalid(_) => Errno::INVAL,
        Error::NoSpace => Errno::NOSPC,
        Error::Exists => Errno::EXIST,
        Error::NotEmpty => Errno::NOTEMPTY,
        Error::TooManyNames => Errno::MLINK,
        Error::FileTooLarge => Errno::FBIG,
        Error::NotPermitted(_) => Errno::PERM,
        Error::TransactionTooLarge { .. } => Errno::FBIG,
        Error::Cancelled(_) => Errno::CANCELED,
        Error::Busy => Errno::BUSY,
        Error::ReadOnly(_) => Errno::ROFS,
        Error::Impossible(_) => Errno::INVAL,
    }
}

/// Whether an error must be reported to the user: damage and device errors, not invalid requests.
pub(crate) fn is_problem(error: &Error) -> bool {
    matches!(errno(error), Errno::IO | Errno::UCLEAN)
}
