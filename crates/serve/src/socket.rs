//! Unix and TCP sockets, and the file of a Unix socket.
//!
//! 1. The file has the mode 0600 from its creation.
//! 2. An existing file at the path is replaced only if it is a socket of the same user without a listener. One server
//!    at a time does that, by a lock on the directory, so that none removes the new socket of another.
//! 3. The file is removed when the listener is dropped, if it is still the same file.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags, fchmod, flock};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with, sockopt};

use crate::address::{Address, tcp_uri, unix_uri};

/// The maximum number of connections waiting to be accepted.
const BACKLOG: i32 = 128;

/// The socket at which a server listens.
#[derive(Debug)]
pub(crate) enum Listener {
    Unix(UnixListener, SocketFile),
    Tcp(TcpListener),
}

impl Listener {
    /// Listens at `address`.
    pub(crate) fn new(address: &Address) -> io::Result<Self> {
        let listener = match address {
            Address::Unix(path) => {
                let (listener, file) = listen_at(path)?;
                listener.set_nonblocking(true)?;
                Self::Unix(listener, file)
            }
            Address::Tcp(place) => {
                let listener = TcpListener::bind(place)?;
                listener.set_nonblocking(true)?;
                Self::Tcp(listener)
            }
        };
        Ok(listener)
    }

    /// The first waiting connection; `WouldBlock` where there is none.
    pub(crate) fn accept(&self) -> io::Result<Stream> {
        match self {
            Self::Unix(listener, _) => listener.accept().map(|(stream, _)| Stream::Unix(stream)),
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nodelay(true)?;
                // with keepalive, a client without power is detected eventually
                sockopt::set_socket_keepalive(&stream, true)?;
                sockopt::set_tcp_keepidle(&stream, Duration::from_secs(60))?;
                Ok(Stream::Tcp(stream))
            }
        }
    }

    /// The URI of the export `name` on this socket.
    pub(crate) fn uri(&self, name: &str) -> io::Result<String> {
        Ok(match self {
            Self::Unix(_, file) => unix_uri(&file.path, name),
            Self::Tcp(listener) => tcp_uri(listener.local_addr()?, name),
        })
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(listener, _) => listener.as_fd(),
            Self::Tcp(listener) => listener.as_fd(),
        }
    }
}

/// The file of a Unix socket; dropping this removes it.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _lock = lock_directory_of(&self.path);
        if identity(&self.path).is_ok_and(|found| found == self.identity) {
            // if it cannot be removed, the next server replaces it as stale
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn listen_at(path: &Path) -> io::Result<(UnixListener, SocketFile)> {
    let address = SocketAddrUnix::new(path)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "the path of a socket has at most 107 bytes"))?;
    let _lock = lock_directory_of(path)?;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // the file that bind(2) creates has the mode of the socket
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    match bind(&socket, &address) {
        Err(Errno::ADDRINUSE) => {
            remove_stale(path)?;
            bind(&socket, &address)?;
        }
        bound => bound?,
    }
    let file = SocketFile { path: std::path::absolute(path)?, identity: identity(path)? };
    listen(&socket, BACKLOG)?;
    Ok((UnixListener::from(socket), file))
}

/// Locks the directory of `path`: other servers cannot replace or remove sockets in it meanwhile.
fn lock_directory_of(path: &Path) -> io::Result<OwnedFd> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::open(folder, flags, Mode::empty())?;
    match flock(&folder, FlockOperation::LockExclusive) {
        // a file system without locks
        Ok(()) | Err(Errno::NOLCK | Errno::NOSYS | Errno::OPNOTSUPP) => Ok(folder),
        Err(e) => Err(e.into()),
    }
}

/// Removes a socket without a listener.
fn remove_stale(path: &Path) -> io::Result<()> {
    let refused = |why: &str| io::Error::new(io::ErrorKind::AlreadyExists, why);
    let found = fs::symlink_metadata(path)?;
    if !found.file_type().is_socket() {
        return Err(refused("a file that is not a socket is there"));
    }
    if found.uid() != rustix::process::geteuid().as_raw() {
        return Err(refused("a socket of another user is there"));
    }
    match UnixStream::connect(path) {
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        Ok(_) => Err(refused("another process listens there")),
        Err(e) => Err(e),
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|found| (found.dev(), found.ino()))
}

/// A connection.
#[derive(Debug)]
pub(crate) enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Stream {
    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        Ok(match self {
            Self::Unix(stream) => Self::Unix(stream.try_clone()?),
            Self::Tcp(stream) => Self::Tcp(stream.try_clone()?),
        })
    }

    /// Shuts down reading, or both directions, also for threads that wait in them.
    pub(crate) fn shut_down(&self, way: Shutdown) {
        // a closed connection needs no shutdown
        let _ = match self {
            Self::Unix(stream) => stream.shutdown(way),
            Self::Tcp(stream) => stream.shutdown(way),
        };
    }

    fn set_read_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Unix(stream) => stream.set_read_timeout(limit),
            Self::Tcp(stream) => stream.set_read_timeout(limit),
        }
    }

    fn set_write_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Unix(stream) => stream.set_write_timeout(limit),
            Self::Tcp(stream) => stream.set_write_timeout(limit),
        }
    }
}

impl Read for &Stream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Unix(stream) => (&mut &*stream).read(buf),
            Stream::Tcp(stream) => (&mut &*stream).read(buf),
        }
    }
}

impl Write for &Stream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Unix(stream) => (&mut &*stream).write(buf),
            Stream::Tcp(stream) => (&mut &*stream).write(buf),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A connection with a deadline, or without a limit.
#[derive(Debug)]
pub(crate) struct Timed<'a> {
    stream: &'a Stream,
    until: Option<Instant>,
}

impl<'a> Timed<'a> {
    /// Limits the connection to `limit` from now on.
    pub(crate) fn new(stream: &'a Stream, limit: Duration) -> Self {
        Self { stream, until: Instant::now().checked_add(limit) }
    }

    /// Removes the limit.
    pub(crate) fn unlimited(&mut self) -> io::Result<()> {
        self.until = None;
        self.stream.set_read_timeout(None)?;
        self.stream.set_write_timeout(None)
    }

    fn left(&self) -> io::Result<Option<Duration>> {
        let Some(until) = self.until else { return Ok(None) };
        match until.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
            left => Ok(Some(left)),
        }
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if let Some(left) = self.left()? {
            self.stream.set_read_timeout(Some(left))?;
        }
        self.stream.read(buf)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        if let Some(left) = self.left()? {
            self.stream.set_write_timeout(Some(left))?;
        }
        self.stream.write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
