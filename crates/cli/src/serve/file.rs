//! Serves a device as the only file of a mount.

use super::{Holes, Serving};
use crate::error_report::{Failure, Result, say, without_errno};
use crate::watchdog;
use ::serve::{File, FileOptions};
use blockdev::BlockDevice;
use check::render::escape;
use fuse_wire::{AttachOptions, Session};
use signal_hook::iterator::Signals;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

/// The file's name unless specified with --name.
const NAME: &str = "disk";

/// Declares this process as an I/O flusher, so that its memory allocations do not wait for writes of the kernel to this
/// process. Must be called before threads are started. Without the privilege (CAP_SYS_RESOURCE) a user cannot attach
/// loop devices to the file either.
pub(super) fn expect_writes_of_the_kernel() {
    let _ = rustix::process::configure_io_flusher_behavior(true);
}

impl Serving {
    /// Serves a file in `dir` until a signal, or until it is unmounted.
    pub(super) fn serve_file(
        &self,
        device: Arc<dyn BlockDevice>,
        dir: &Path,
        holes: Holes,
        mut signals: Signals,
    ) -> Result<u8> {
        let name = self.name.clone().unwrap_or_else(|| NAME.to_owned());
        if name.is_empty() || name.len() > 255 || name.contains(['/', '\0']) || [".", ".."].contains(&name.as_str()) {
            return Err(Failure::Message(format!("invalid file name '{}'", escape(name.as_bytes()))));
        }
        let len = device.geometry().len;
        let read_only = self.read_only || device.geometry().read_only;
        let options = FileOptions { name: name.clone(), read_only, punch: holes == Holes::Punched };
        let about = escape(self.device.as_bytes());
        let report = {
            let about = about.clone();
            move |problem: &str| say(&format!("{about}: {}", without_errno(&escape(problem.as_bytes()))))
        };
        let file = Arc::new(File::new(device, options, report));
        let attach = AttachOptions {
            read_only,
            nodev: true,
            nosuid: true,
            noexec: true,
            source: Some(self.device.to_string()),
            watchdog: watchdog::line(),
            ..AttachOptions::default()
        };
        let sentence = |e: fuse_wire::Error| Failure::Message(without_errno(&escape(e.to_string().as_bytes())));
        let session = Session::mount(file, dir, &attach).map_err(sentence)?;
        let unmounter = session.unmounter();
        std::thread::spawn(move || {
            for _ in signals.forever() {
                match unmounter.unmount().and_then(|()| unmounter.finish()) {
                    // a program that still has it open would prevent this process from exiting
                    Ok(()) => std::process::exit(0),
                    Err(fuse_wire::Error::Finish(e)) => {
                        say(&format!("{about}: not all that was written may have reached the device: {e}"));
                        std::process::exit(1);
                    }
                    Err(e) => say(&e.to_string()),
                }
            }
        });
        let place = dir.canonicalize().unwrap_or_else(|_| dir.to_owned()).join(&name);
        self.announce(len, place.as_os_str().as_bytes())?;
        session.run().map_err(sentence)?;
        Ok(0)
    }
}
