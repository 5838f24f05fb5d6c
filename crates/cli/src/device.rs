//! DEVICE as the command line has it: any bytes, which need not be text.

use crate::failure::{Failure, Result};
use blockdev::{BlockDevice, OpenOptions, Scheme};
use std::ffi::{OsStr, OsString};
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

/// The kinds of devices of the layers above `blockdev`, and those to come.
pub(crate) const SCHEMES: &[Scheme] = &[::kero::SCHEME, simdev::MODEL, NBD, NBD_UNIX, S3];
/// The same, where layers are refused.
const UNLAYERED: &[Scheme] = &[
    Scheme::reserved(::kero::SCHEME.prefix, "the block mapping layer"),
    Scheme::reserved(simdev::MODEL.prefix, "modelled devices"),
    NBD,
    NBD_UNIX,
    S3,
];
const NBD: Scheme = Scheme::reserved("nbd://", "network block devices");
const NBD_UNIX: Scheme = Scheme::reserved("nbd+unix://", "network block devices");
const S3: Scheme = Scheme::reserved("s3://", "object stores");

/// Opens a device, whatever it contains.
pub(crate) fn open(device: impl AsRef<OsStr>, options: OpenOptions) -> blockdev::Result<Arc<dyn BlockDevice>> {
    blockdev::open_with(device, options, SCHEMES)
}

/// As [`open`], without layers above the device of the system.
pub(crate) fn open_unlayered(
    device: impl AsRef<OsStr>,
    options: OpenOptions,
) -> blockdev::Result<Arc<dyn BlockDevice>> {
    blockdev::open_with(device, options, UNLAYERED)
}

/// Opens a device with a volume, or for one. The device beneath a Kero layer is refused, however much it looks like a
/// volume.
pub(crate) fn open_volume(device: impl AsRef<OsStr>, options: OpenOptions) -> Result<Arc<dyn BlockDevice>> {
    let opened = open(&device, options)?;
    if ::kero::is_layered(&*opened) {
        let name = device.as_ref().to_string_lossy();
        let why = format!("it has a Kero layer: use kero:{name}, or remove the layer with `extant kero drain`");
        return Err(Failure::on(&name, why));
    }
    Ok(opened)
}

/// A device: its own bytes, by which it is opened, and a text for messages.
#[derive(Debug, Clone, Default)]
pub(crate) struct Device {
    raw: OsString,
    shown: String,
}

impl From<OsString> for Device {
    fn from(raw: OsString) -> Self {
        Self { shown: raw.to_string_lossy().into_owned(), raw }
    }
}

/// Its name in messages. Not for opening it.
impl Deref for Device {
    type Target = str;

    fn deref(&self) -> &str {
        &self.shown
    }
}

impl Device {
    /// The file or block device it names or lies on; `None` where there is none, as with `mem:`.
    pub(crate) fn path(&self) -> Option<&Path> {
        blockdev::path_beneath(&self.raw, SCHEMES)
    }
}

impl AsRef<OsStr> for Device {
    fn as_ref(&self) -> &OsStr {
        &self.raw
    }
}

impl AsRef<Path> for Device {
    fn as_ref(&self) -> &Path {
        Path::new(&self.raw)
    }
}
