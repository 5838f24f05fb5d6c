//! DEVICE as the command line has it: any bytes, which need not be text.

use std::ffi::{OsStr, OsString};
use std::ops::Deref;
use std::path::Path;

/// A device: to be opened by its own bytes, and a text for sentences.
#[derive(Debug, Clone, Default)]
pub(crate) struct Device {
    given: OsString,
    shown: String,
}

impl From<OsString> for Device {
    fn from(given: OsString) -> Self {
        Self { shown: given.to_string_lossy().into_owned(), given }
    }
}

/// What it is called in sentences. Not for opening it.
impl Deref for Device {
    type Target = str;

    fn deref(&self) -> &str {
        &self.shown
    }
}

impl AsRef<OsStr> for Device {
    fn as_ref(&self) -> &OsStr {
        &self.given
    }
}

impl AsRef<Path> for Device {
    fn as_ref(&self) -> &Path {
        Path::new(&self.given)
    }
}
