//! The DEVICE argument: any bytes, which need not be UTF-8.

use crate::error_report::{Failure, Result};
use blockdev::{BlockDevice, OpenOptions, Scheme};
use check::render::escape;
use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The schemes of the layers above `blockdev`, and reserved ones.
pub(crate) const SCHEMES: &[Scheme] = &[::kero::SCHEME, simdev::MODEL, NBD, NBD_UNIX, S3];
/// The same schemes, for commands that refuse layers.
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

/// Opens a device, whatever its content.
pub(crate) fn open(device: impl AsRef<OsStr>, options: OpenOptions) -> blockdev::Result<Arc<dyn BlockDevice>> {
    blockdev::open_with(device, options, SCHEMES)
}

/// Opens a device without layers above the system's device; otherwise as [`open`].
pub(crate) fn open_unlayered(
    device: impl AsRef<OsStr>,
    options: OpenOptions,
) -> blockdev::Result<Arc<dyn BlockDevice>> {
    blockdev::open_with(device, options, UNLAYERED)
}

/// Opens a device that contains, or will contain, a volume. The device beneath a Kero layer is refused even if it looks
/// like a volume.
pub(crate) fn open_volume(device: impl AsRef<OsStr>, options: OpenOptions) -> Result<Arc<dyn BlockDevice>> {
    let opened = open(&device, options)?;
    refuse_layer(&*opened, device.as_ref())?;
    Ok(opened)
}

/// Refuses the device beneath a Kero layer.
pub(crate) fn refuse_layer(opened: &dyn BlockDevice, device: &OsStr) -> Result<()> {
    if ::kero::is_layered(opened) {
        let name = device.to_string_lossy();
        let why = format!("it has a Kero layer: use kero:{name}, or remove the layer with `extant kero drain`");
        return Err(Failure::on(&name, why));
    }
    Ok(())
}

/// Time for which a reader, or the replacement of a file, waits for the end of a process that has just unmounted the
/// volume.
const ENDING: Duration = Duration::from_millis(500);
/// Interval of looks at a lock.
const AGAIN: Duration = Duration::from_millis(20);

/// The reason why a volume that is not in the list of mounts may change while it is read.
pub(crate) const IN_USE: &str = "it is in use: another process has it locked for writing";

/// The reason why a file that is not in the list of mounts is not replaced.
const IN_USE_OR_BENEATH: &str =
    "it is in use: another process has it locked, as a mounted volume is, or uses a loop device over it";

/// Whether another process has the volume locked for writing, as `extant serve` has, and a mount with the option
/// `fsname`, which is found in the list of mounts only by that name.
pub(crate) fn is_locked(device: &Device) -> bool {
    let Some(path) = device.path() else { return false };
    let start = Instant::now();
    while blockdev::is_locked_for_writing(path) {
        if start.elapsed() >= ENDING {
            return true;
        }
        std::thread::sleep(AGAIN);
    }
    false
}

/// The reason why an existing file must not be replaced: it contains a volume in use, which would lose its name and all
/// later changes. `None` for other files, for what is not a regular file, and if it cannot be determined.
pub(crate) fn volume_in_use(path: &Path) -> Option<String> {
    if !path.symlink_metadata().is_ok_and(|found| found.is_file()) {
        return None;
    }
    if let Some(mounted) = blockdev::mounted(path) {
        return Some(format!(
            "it is a volume that is mounted {}: unmount it first",
            escape(mounted.place().as_bytes())
        ));
    }
    let is_busy = || match blockdev::check_unused(path) {
        Ok(()) => false,
        Err(e) if e.kind() == ErrorKind::ResourceBusy => true,
        Err(_) => blockdev::is_locked_for_writing(path),
    };
    let start = Instant::now();
    while is_busy() {
        if start.elapsed() >= ENDING {
            return Some(IN_USE_OR_BENEATH.to_owned());
        }
        std::thread::sleep(AGAIN);
    }
    None
}

/// A device: the original bytes, used to open it, and a text for messages.
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

/// The name in messages, not for opening.
impl Deref for Device {
    type Target = str;

    fn deref(&self) -> &str {
        &self.shown
    }
}

impl Device {
    /// The path of the file or block device; `None` where there is none, as for `mem:`.
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
