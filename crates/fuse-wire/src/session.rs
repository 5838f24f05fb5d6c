//! A mounted file system from its mounting to its end.

use crate::connection_watchdog::Watchdog;
use crate::filesystem::Filesystem;
use crate::mount::{AttachOptions, Mount};
use crate::transport::link::Link;
use crate::transport::{StayAwake, Transport, serve};
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
    awake: StayAwake,
    watchdog: Watchdog,
    writeback: Arc<Writeback>,
    mount: Arc<Mount>,
}

/// Ends a [`Session`] from another thread.
#[derive(Clone)]
pub struct Unmounter {
    mount: Arc<Mount>,
    filesystem: Arc<dyn Filesystem>,
    writeback: Arc<Writeback>,
    /// Why the kernel may have more than it wrote back.
    not_written: Arc<OnceLock<String>>,
}

impl Session {
    /// Mounts a file system on a directory. Nothing is answered before [`Session::run`].
    ///
    /// # Errors
    /// [`Error::Mount`] where the directory, the system or the user's rights do not allow it.
    pub fn mount(filesystem: Arc<dyn Filesystem>, dir: &Path, options: &AttachOptions) -> Result<Self> {
        let (mount, connection) = Mount::new(dir, options)?;
        // a ring closes the connection a while after its process has ended
        let transport = if options.auto_unmount { Transport::Device } else { options.transport };
        let watchdog = mount.watchdog(&options.watchdog);
        let writeback = Arc::new(Writeback::of(mount.number()));
        let awake = options.awake;
        Ok(Self { filesystem, connection, transport, awake, watchdog, writeback, mount: Arc::new(mount) })
    }

    /// Answers requests until the file system is unmounted.
    ///
    /// # Errors
    /// [`Error::Connection`] where the kernel closed it in another way; [`Error::Finish`] where something that was
    /// written did not reach the device.
    pub fn run(self) -> Result<()> {
        let link = Link::new(self.connection, Arc::clone(&self.filesystem), self.watchdog, self.writeback);
        let served = serve(link, self.transport, self.awake).map_err(Error::Connection);
        let finished = self.filesystem.finish().map_err(Error::Finish);
        drop(self.mount);
        served.and(finished)
    }

    /// A warning for the user about the way in which it is mounted: where no loop device could be had, sync(2) does not
    /// reach it.
    #[must_use]
    pub fn warning(&self) -> Option<&str> {
        self.mount.warning()
    }

    /// A handle that ends this session from another thread.
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
    /// Unmounts the file system. Where files are still open it disappears from the directory tree, but [`Session::run`]
    /// returns only when they are closed. The kernel has then written back what programs had written to them by now,
    /// through mappings too, for which this waits a minute at most; what is written to them later may never come.
    /// Requests must be answered meanwhile.
    ///
    /// # Errors
    /// [`Error::Unmount`].
    pub fn unmount(&self) -> Result<()> {
        if !self.mount.is_attached() {
            return Ok(());
        }
        // first: where it cannot be detached it goes on, and transactions with it
        let place = self.mount.place()?;
        // not what belongs to a transaction: the kernel would wait for its end
        let write_back = self.filesystem.stop();
        // before it is detached: then no path leads there. Also where no file is open below this path: the same volume
        // may be attached elsewhere, by a bind mount or in another mount namespace
        let written = if write_back { self.writeback.write_back(&place) } else { Ok(()) };
        self.mount.detach()?;
        if let Err(e) = written
            && self.mount.is_attached()
        {
            let why = match e {
                WritebackError::Start(why) | WritebackError::Write(why) => why,
                WritebackError::Refused(why) => io::Error::from(why).to_string(),
            };
            // the first time matters: most was there then
            let _ = self.not_written.set(format!("files are open, of which the kernel may have more: {why}"));
        }
        Ok(())
    }

    /// Brings everything to the device although files may be open still; they cannot be written any more. For a process
    /// that has to end now.
    ///
    /// # Errors
    /// [`Error::Finish`], also where [`Unmounter::unmount`] could not have the kernel write back what it had.
    pub fn finish(&self) -> Result<()> {
        self.filesystem.finish().map_err(Error::Finish)?;
        self.not_written.get().map_or(Ok(()), |why| Err(Error::Finish(io::Error::other(why.clone()))))
    }
}
