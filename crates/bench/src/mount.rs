//! Mounted file systems: each sample mounts anew, so that it is independent of the previous one.

use crate::error::Trying;
use crate::interruption::{self, Folder, Registered, Undo};
use crate::process::{must, need};
use crate::transport::confirm;
use crate::upper_bound::{Served, Tree};
use crate::{Error, Result, Transport};
use fuse_wire::Statistics;
use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The time limit for a mount to appear, and for processes to close it.
const PATIENCE: Duration = Duration::from_secs(30);

/// A file system that can be mounted.
#[derive(Debug, Clone, Copy)]
pub(crate) enum FileSystem<'a> {
    /// The volume by Extant through FUSE.
    Extant { program: &'a Path, volume: &'a Path, transport: Option<Transport> },
    /// The volume by the kernel through a loop device.
    Kernel { volume: &'a Path },
    /// A tree in memory through FUSE.
    UpperBound { tree: &'a Arc<Tree>, transport: Option<Transport> },
}

impl FileSystem<'_> {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Extant { transport: None, .. } => "extant",
            Self::Extant { transport: Some(Transport::DevFuse), .. } => "extant@dev-fuse",
            Self::Extant { transport: Some(Transport::IoUring), .. } => "extant@io_uring",
            Self::Kernel { .. } => "kernel",
            Self::UpperBound { transport: None, .. } => "upper-bound",
            Self::UpperBound { transport: Some(Transport::DevFuse), .. } => "upper-bound@dev-fuse",
            Self::UpperBound { transport: Some(Transport::IoUring), .. } => "upper-bound@io_uring",
        }
    }

    /// The transport that is asked for.
    pub(crate) fn transport(&self) -> Option<Transport> {
        match self {
            Self::Extant { transport, .. } | Self::UpperBound { transport, .. } => *transport,
            Self::Kernel { .. } => None,
        }
    }

    /// Mounts it, to be read only.
    pub(crate) fn attach(&self) -> Result<Attached> {
        match self {
            Self::Extant { program, volume, transport } => Attached::by_extant(program, volume, *transport),
            Self::Kernel { volume } => Attached::by_kernel(volume, None, "ro,loop"),
            Self::UpperBound { tree, transport } => Attached::by_upper_bound(tree, *transport),
        }
    }
}

/// A mounted file system. It is unmounted when dropped; [`Attached::detach`] also returns errors.
#[derive(Debug)]
pub(crate) struct Attached {
    dir: Folder,
    server: Server,
    /// Unmounts it where a signal ends this process.
    _mount: Registered,
}

/// The server of a mounted file system.
#[derive(Debug)]
enum Server {
    Kernel,
    Program {
        child: Child,
        _registered: Registered,
    },
    UpperBound(Option<Served>),
    /// None: it is unmounted.
    Gone,
}

impl Attached {
    /// The directory that it is mounted on.
    pub(crate) fn path(&self) -> &Path {
        &self.dir
    }

    /// The number of the server's process, where that is a process of its own.
    pub(crate) fn server(&self) -> Option<u32> {
        match &self.server {
            Server::Program { child, .. } => Some(child.id()),
            Server::Kernel | Server::UpperBound(_) | Server::Gone => None,
        }
    }

    /// The transport of its requests, as its server reports it; `None` for servers that do not.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where it is another than the one asked for.
    pub(crate) fn transport(&self, asked: Option<Transport>) -> Result<Option<String>> {
        let used = Statistics::of_mount(&self.dir).ok().map(|statistics| statistics.transport);
        confirm(asked, used.as_deref())?;
        Ok(used)
    }

    /// A tree in memory, served by this process.
    pub(crate) fn by_upper_bound(tree: &Arc<Tree>, transport: Option<Transport>) -> Result<Self> {
        let dir = Folder::for_mount()?;
        let place = dir.to_path_buf();
        let unmount = |_: &Served| Undo::Call(Box::new(move || interruption::unmount(&place)));
        let (session, mount) = interruption::make(|| tree.mount(&dir, transport), unmount)?;
        Ok(Self { dir, server: Server::UpperBound(Some(session)), _mount: mount })
    }

    /// Mounts a volume by the kernel, which detects the format where `format` is `None`.
    pub(crate) fn by_kernel(volume: &Path, format: Option<&str>, options: &str) -> Result<Self> {
        let dir = Folder::for_mount()?;
        let mount = interruption::mount(&dir)?;
        let format = format.map(|format| ["-t", format]);
        let args = format.iter().flatten().copied().chain(["-o", options]).map(OsStr::new);
        must(&need("mount", "mount")?, args.chain([volume.as_os_str(), dir.as_os_str()]))?;
        Ok(Self { dir, server: Server::Kernel, _mount: mount })
    }

    fn by_extant(program: &Path, volume: &Path, transport: Option<Transport>) -> Result<Self> {
        let options = ["ro"].into_iter().chain(transport.map(Transport::option)).collect::<Vec<_>>().join(",");
        Self::by_server(program, &["mount", "-f", "-o", &options].map(OsStr::new), volume)
    }

    /// Mounts a volume by a program that runs in the foreground while it is mounted, with the arguments, the volume and
    /// the mount point.
    pub(crate) fn by_server(program: &Path, args: &[&OsStr], volume: &Path) -> Result<Self> {
        let dir = Folder::for_mount()?;
        let mount = interruption::mount(&dir)?;
        let mut command = Command::new(program);
        command.args(args).arg(volume).arg(&*dir);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let (child, registered) = interruption::spawn(&mut command, program)?;
        let mut attached = Self { dir, server: Server::Program { child, _registered: registered }, _mount: mount };
        attached.wait_until_mounted()?;
        Ok(attached)
    }

    fn wait_until_mounted(&mut self) -> Result<()> {
        let outside = std::env::temp_dir();
        let device = |path: &Path| path.metadata().map(|metadata| metadata.dev());
        let before = device(&outside).trying("look at", &outside)?;
        let start = Instant::now();
        // an error means that the server does not answer yet
        while device(&self.dir).map_or(true, |now| now == before) {
            let Server::Program { child, .. } = &mut self.server else { return Ok(()) };
            if let Some(status) = child.try_wait().trying("wait for the server of", &self.dir)? {
                let mut said = String::new();
                if let Some(stderr) = &mut child.stderr {
                    // output that cannot be read is dispensable
                    let _ = stderr.read_to_string(&mut said);
                }
                return Err(Error::Failed(format!("the mount's server ended with {status}: {}", said.trim())));
            }
            if start.elapsed() > PATIENCE {
                return Err(Error::Failed("the volume was not mounted in time".into()));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Unmounts it, and returns when its server has ended.
    pub(crate) fn detach(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        let umount = || {
            let start = Instant::now();
            loop {
                match must(&need("umount", "mount")?, [&*self.dir]) {
                    // another process still uses it, such as a desktop's
                    Err(_) if start.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(50)),
                    outcome => return outcome,
                }
            }
        };
        match &mut self.server {
            Server::Kernel => umount()?,
            Server::Program { child, .. } => {
                if child.try_wait().ok().flatten().is_none() {
                    umount()?;
                }
                child.wait().trying("wait for the server of", &self.dir)?;
            }
            Server::UpperBound(session) => {
                if let Some(session) = session.take() {
                    session.end().trying("unmount", &self.dir)?;
                }
            }
            Server::Gone => {}
        }
        self.server = Server::Gone;
        Ok(())
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        // an error of the measurement is already being returned, and is more specific
        let _ = self.end();
    }
}
