//! The file that mkfs creates for a volume, and its removal where the volume is not finished.

use crate::copy_in::not_ignored;
use crate::device::Device;
use crate::error_report::{Result, say};
use crate::output::print_json;
use check::render::escape;
use parking_lot::Mutex;
use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::thread::JoinHandle;

/// A file that mkfs created.
#[derive(Clone)]
pub(super) struct CreatedFile {
    path: Device,
    /// Device and inode of the file, once it is created: another one under its name is not removed. Locked while the file
    /// is created.
    identity: Arc<Mutex<Option<(u64, u64)>>>,
}

impl CreatedFile {
    /// Removes the file; returns whether it was there and is removed.
    pub(super) fn remove(&self) -> bool {
        let Some(identity) = *self.identity.lock() else { return false };
        let present = std::fs::symlink_metadata(&self.path).map(|file| (file.dev(), file.ino()));
        present.is_ok_and(|present| present == identity) && std::fs::remove_file(&self.path).is_ok()
    }
}

/// While it exists, a termination signal removes the unfinished file: an incomplete volume is of no use.
pub(super) struct Cleanup {
    file: CreatedFile,
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

impl Cleanup {
    /// `fills`: files are copied into the volume, so the copy ends early.
    pub(super) fn of(path: &Device, json: bool, fills: bool) -> Result<Self> {
        let mut signals = Signals::new(not_ignored([SIGINT, SIGTERM, SIGHUP]))?;
        let file = CreatedFile { path: path.clone(), identity: Arc::default() };
        let (handle, created) = (signals.handle(), file.clone());
        let thread = std::thread::spawn(move || {
            if signals.forever().next().is_some() {
                let end = if created.remove() { "the unfinished file was removed" } else { "nothing was made" };
                let sentence = format!("{}: interrupted: {end}", escape(created.path.as_bytes()));
                say(&sentence);
                if json {
                    let _ = print_json(&json!({
                        "device": &*created.path,
                        "made": false,
                        "incomplete": fills,
                        "error": sentence,
                        "exit": 1,
                    }));
                }
                std::process::exit(1);
            }
        });
        Ok(Self { file, handle, thread: Some(thread) })
    }

    /// Creates the file, which must not exist, for reading and writing.
    pub(super) fn create(&self) -> io::Result<File> {
        let mut identity = self.file.identity.lock();
        let file = File::options().read(true).write(true).create_new(true).open(&self.file.path)?;
        let created = file.metadata()?;
        *identity = Some((created.dev(), created.ino()));
        Ok(file)
    }

    /// Ends the handling of signals; returns the file.
    pub(super) fn end(self) -> CreatedFile {
        self.file.clone()
    }
}

impl Drop for Cleanup {
    fn drop(&mut self) {
        self.handle.close();
        // a signal that arrived earlier is still handled
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
