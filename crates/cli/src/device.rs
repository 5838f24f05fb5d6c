//! DEVICE as the command line has it: any bytes, which need not be text.

use crate::failure::{Failure, Result};
use blockdev::{BlockDevice, OpenOptions, Scheme};
use std::ffi::{OsStr, OsString};
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

/// The kinds of devices of the layers above `blockdev`.
pub(crate) const SCHEMES: &[Scheme] = &[::kero::SCHEME, simdev::MODEL];

/// Opens a device, whatever it contains.
pub(crate) fn open(device: impl AsRef<OsStr>, options: OpenOptions) -> blockdev::Result<Arc<dyn BlockDevice>> {
    blockdev::open_with(device, options, SCHEMES)
}

/// Opens a device with a volume, or for one. What stands beneath a Kero layer is none, however much it looks like one.
pub(crate) fn open_volume(device: impl AsRef<OsStr>, options: OpenOptions) -> Result<Arc<dyn BlockDevice>> {
    let opened = open(&device, options)?;
    if ::kero::is_layered(&*opened) {
        let name = device.as_ref().to_string_lossy();
        let why = format!("it has a Kero layer: use kero:{name}, or remove the layer with `extant kero drain`");
        return Err(Failure::on(&name, why));
    }
    Ok(opened)
}

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
