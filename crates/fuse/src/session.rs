//! A mounted file system from its mounting to its end.

use crate::mount::Mount;
use crate::ops::Ops;
use crate::options::MountOptions;
use crate::pages::{self, Pages};
use crate::problems::Teller;
use crate::snapshots::WithSnapshots;
use crate::transactions::WithTransactions;
use crate::transport::{Filesystem, Transport, serve};
use crate::watchdog::Watchdog;
use crate::{Error, Result};
use fs::Volume;
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
    pages: Arc<Pages>,
    mount: Arc<Mount>,
}

/// Ends a [`Session`] from another thread.
#[derive(Clone)]
pub struct Unmounter {
    mount: Arc<Mount>,
    filesystem: Arc<dyn Filesystem>,
    pages: Arc<Pages>,
    /// Why the kernel may have more than it wrote back.
    not_written: Arc<OnceLock<String>>,
}

/// Mounts a volume on a directory. Nothing is answered before [`Session::run`].
///
/// `on_problem` gets one sentence for each file in which damage is met, from any thread.
///
/// # Errors
/// [`Error::Mount`] where the directory, the system or the user's rights do not allow it.
pub fn mount(
    volume: Arc<Volume>,
    dir: &Path,
    options: &MountOptions,
    on_problem: impl Fn(&str) + Send + Sync + 'static,
) -> Result<Session> {
    volume.start_background();
    mount_filesystem(answering(volume, Some(dir), options, on_problem), dir, options)
}

/// What answers requests about a volume that is mounted on a directory, or, for [`Messages`](crate::Messages), nowhere.
/// `on_problem` as for [`mount`].
pub fn answering(
    volume: Arc<Volume>,
    dir: Option<&Path>,
    options: &MountOptions,
    on_problem: impl Fn(&str) + Send + Sync + 'static,
) -> Arc<dyn Filesystem> {
    let teller: Teller = Arc::new(on_problem);
    let ops = Ops::new(Arc::clone(&volume), options, Arc::clone(&teller));
    if options.snapshot.is_some() || volume.snapshots().is_err() {
        return Arc::new(ops);
    }
    let mounted_on = dir.map(|dir| dir.canonicalize().unwrap_or_else(|_| dir.to_owned()));
    let filesystem = WithSnapshots::new(ops, options, teller, mounted_on.clone());
    // no directory is called by the empty path
    let mounted_on = mounted_on.unwrap_or_default();
    Arc::new(WithTransactions::new(filesystem, volume, mounted_on, options.writeback_cache))
}

/// Mounts any file system on a directory, in the same way and with the same transport. Nothing is answered before
/// [`Session::run`].
///
/// # Errors
/// [`Error::Mount`] where the directory, the system or the user's rights do not allow it.
pub fn mount_filesystem(filesystem: Arc<dyn Filesystem>, dir: &Path, options: &MountOptions) -> Result<Session> {
    let (mount, connection) = Mount::new(dir, options)?;
    // a ring lets go of the connection a while after its process has ended
    let transport = if options.auto_unmount { Transport::Device } else { options.transport };
    let watchdog = mount.watchdog(&options.watchdog);
    let pages = Arc::new(Pages::of(mount.number()));
    Ok(Session { filesystem, connection, transport, watchdog, pages, mount: Arc::new(mount) })
}

impl Session {
    /// Answers requests until the file system is unmounted.
    ///
    /// # Errors
    /// [`Error::Connection`] where the kernel closed it in another way; [`Error::Finish`] where something that was
    /// written did not reach the device.
    pub fn run(self) -> Result<()> {
        let served = serve(self.connection, Arc::clone(&self.filesystem), self.transport, self.watchdog, self.pages)
            .map_err(Error::Connection);
        let finished = self.filesystem.finish().map_err(Error::Finish);
        drop(self.mount);
        served.and(finished)
    }

    /// What the user should know of the way in which it is mounted: where no loop device could be had, sync(2) does not
    /// reach it.
    #[must_use]
    pub fn warning(&self) -> Option<&str> {
        self.mount.warning()
    }

    /// What ends this session from another thread.
    #[must_use]
    pub fn unmounter(&self) -> Unmounter {
        Unmounter {
            mount: Arc::clone(&self.mount),
            filesystem: Arc::clone(&self.filesystem),
            pages: Arc::clone(&self.pages),
            not_written: Arc::default(),
        }
    }
}

impl Unmounter {
    /// Unmounts the file system. Where files are still open it disappears from the directory tree, but [`Session::run`]
    /// returns only when they are closed. The kernel has then written back what programs had written to them by now, through
    /// mappings too, for which this waits a minute at most; what is written to them later may never come. Requests must be
    /// answered meanwhile.
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
        // before it is detached: then no path leads there. Also where no file is open below this path: the same volume may be
        // attached elsewhere, by a bind mount or in another mount namespace
        let written = if write_back { self.pages.write_back(&place) } else { Ok(()) };
        self.mount.detach()?;
        if let Err(e) = written
            && self.mount.is_attached()
        {
            let why = match e {
                pages::Error::Start(why) | pages::Error::Write(why) => why,
                pages::Error::Refused(why) => io::Error::from(why).to_string(),
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
