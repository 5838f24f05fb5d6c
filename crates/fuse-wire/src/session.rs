//! A mounted file system from mount to unmount.

use crate::connection_watchdog::Watchdog;
use crate::filesystem::Filesystem;
use crate::mount::{AttachOptions, Mount};
use crate::transport::link::Link;
use crate::transport::{Transport, serve};
use crate::writeback::{Writeback, WritebackError};
use crate::{Error, Result};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// A mounted file system. It is unmounted when this is dropped.
pub struct Session {
    filesystem: Arc<dyn Filesystem>,
    connection: OwnedFd,
    transport: Transport,
    watchdog: Watchdog,
    writeback: Arc<Writeback>,
    mount: Arc<Mount>,
}

/// A handle that ends a [`Session`] from another thread.
#[derive(Clone)]
pub struct Unmounter {
    mount: Arc<Mount>,
    filesystem: Arc<dyn Filesystem>,
    writeback: Arc<Writeback>,
    /// The reason why the kernel may have dirty pages that were not written back.
    not_written: Arc<OnceLock<String>>,
}

/// Makes all changes durable; an error also where data was lost earlier.
fn finish(filesystem: &dyn Filesystem) -> Result<()> {
    filesystem.finish().map_err(Error::Finish)?;
    filesystem.lost().map_or(Ok(()), |files| Err(Error::Finish(io::Error::other(files))))
}

impl Session {
    /// Mounts a file system on a directory. Requests are answered only by [`Session::run`].
    ///
    /// # Errors
    /// [`Error::Mount`] where the directory, the system or the user's privileges do not allow it.
    pub fn mount(filesystem: Arc<dyn Filesystem>, dir: &Path, options: &AttachOptions) -> Result<Self> {
        let (mount, connection) = Mount::new(dir, options)?;
        // a ring closes the connection only some time after its process has ended
        let transport = if options.auto_unmount { Transport::Device } else { options.transport };
        let watchdog = mount.watchdog(&options.watchdog);
        let writeback = Arc::new(Writeback::of(mount.number()));
        Ok(Self { filesystem, connection, transport, watchdog, writeback, mount: Arc::new(mount) })
    }

    /// Answers requests until the file system is unmounted.
    ///
    /// # Errors
    /// [`Error::Connection`] where the connection ended in another way; [`Error::Finish`] where some of the written
    /// data did not reach the device.
    pub fn run(self) -> Result<()> {
        let link = Link::new(self.connection, Arc::clone(&self.filesystem), self.watchdog, self.writeback);
        let served = serve(link, self.transport).map_err(Error::Connection);
        let finished = finish(&*self.filesystem);
        drop(self.mount);
        served.and(finished)
    }

    /// A warning for the user about the type of the mount: without a loop device, sync(2) does not reach it.
    #[must_use]
    pub fn warning(&self) -> Option<&str> {
        self.mount.warning()
    }

    /// Returns a handle that ends this session from another thread.
    #[must_use]
    pub fn unmounter(&self) -> Unmounter {
        Unmounter {
            mount: Arc::clone(&self.mount),
            filesystem: Arc::clone(&self.filesystem),
            writeback: Arc::clone(&self.writeback),
            not_written: Arc::default(),
        }
    }
}

impl Unmounter {
    /// Unmounts the file system. First it waits, at most a minute, until the kernel has written back all data written
    /// by programs so far, including through mappings. Where files are still open the file system then disappears from
    /// the directory tree, but [`Session::run`] returns only when they are closed; data written to them later may be
    /// lost. Requests must be answered meanwhile.
    ///
    /// # Errors
    /// [`Error::Unmount`].
    pub fn unmount(&self) -> Result<()> {
        if !self.mount.is_attached() {
            return Ok(());
        }
        // first: where the mount cannot be detached it stays in use, and so do its transactions
        let place = self.mount.place()?;
        // not the data of a transaction: the kernel would wait for the end of the transaction
        let write_back = self.filesystem.stop();
        // before detaching, after which no path leads there; also where no file is open below this path: the same
        // volume may be attached elsewhere, by a bind mount or in another mount namespace
        let written = if write_back { self.writeback.write_back(&place) } else { Ok(()) };
        self.mount.detach()?;
        if let Err(e) = written
            && self.mount.is_attached()
        {
            let why = match e {
                WritebackError::Start(why) | WritebackError::Write(why) => why,
                WritebackError::Refused(why) => io::Error::from(why).to_string(),
            };
            // the first failure counts: most of the dirty pages existed then
            let _ = self.not_written.set(format!("files are open, of which the kernel may have unwritten data: {why}"));
        }
        Ok(())
    }

    /// Makes all changes durable although files may still be open; they can no longer be written to. For a process that
    /// must end now.
    ///
    /// # Errors
    /// [`Error::Finish`], also where [`Unmounter::unmount`] could not have the kernel write back its dirty pages.
    pub fn finish(&self) -> Result<()> {
        finish(&*self.filesystem)?;
        self.not_written.get().map_or(Ok(()), |why| Err(Error::Finish(io::Error::other(why.clone()))))
    }
}
