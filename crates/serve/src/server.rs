//! Connections: accepting, counting and ending them.

use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::HashMap;
use std::fmt;
use std::io::{self, BufReader, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use blockdev::BlockDevice;
use rustix::event::{PollFd, PollFlags, poll};

use crate::address::Address;
use crate::connection::{Ended, serve_requests, shake_hands};
use crate::export::Export;
use crate::socket::{Listener, Stream, Timed};
use crate::wire::STRING_MAX;

/// The time that clients have to read their replies after the server was stopped.
const GRACE: Duration = Duration::from_secs(5);
/// The delay before retrying where the system cannot accept a connection, for example for lack of descriptors.
const PAUSE: Duration = Duration::from_millis(100);
/// The maximum number of reported device failures, so that a broken disk does not fill the log.
const PROBLEMS: u64 = 100;

/// The options of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// The name of the export, which is also the default export.
    pub name: String,
    /// Refuses all changes.
    pub read_only: bool,
    /// The maximum number of connections.
    pub connections: usize,
    /// The time limit for a client's handshake.
    pub handshake: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { name: String::new(), read_only: false, connections: 16, handshake: Duration::from_secs(10) }
    }
}

/// The reason why a server cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It cannot listen at the address.
    #[error("cannot listen at {address}: {source}")]
    Listen {
        /// The address as the user wrote it.
        address: String,
        /// The cause.
        source: io::Error,
    },
    /// The name of the export is longer than the protocol allows, or has a zero byte.
    #[error("the name of an export has at most 4096 bytes and no zero byte")]
    Name,
    /// Waiting for connections failed.
    #[error("cannot wait for connections: {0}")]
    Wait(io::Error),
    /// The last flush failed: writes acknowledged since the one before may be lost.
    #[error("not all that was written may have reached the device: {0}")]
    Flush(blockdev::Error),
}

/// An event for the operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// A client has completed the handshake.
    Opened {
        /// The number of the connection.
        number: u64,
    },
    /// A connection ended.
    Closed {
        /// The number of the connection.
        number: u64,
        /// The reason, unless its client disconnected.
        why: Option<String>,
    },
    /// The maximum number of connections was reached.
    Full,
    /// The device failed, which needs attention.
    Problem(String),
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Opened { number } => write!(f, "connection {number}: opened"),
            Self::Closed { number, why: None } => write!(f, "connection {number}: closed"),
            Self::Closed { number, why: Some(why) } => write!(f, "connection {number}: closed: {why}"),
            Self::Full => write!(f, "a connection was refused: the maximum number of connections is open"),
            Self::Problem(sentence) => write!(f, "{sentence}"),
        }
    }
}

/// A listening server.
pub struct Server {
    export: Export,
    listener: Listener,
    options: Options,
    uri: String,
    woken: UnixStream,
    shared: Arc<Shared>,
}

/// The state that the server, its connections and its stoppers share.
struct Shared {
    stop: AtomicBool,
    wake: UnixStream,
    open: Mutex<HashMap<u64, Stream>>,
    closed: Condvar,
    problems: AtomicU64,
}

/// Stops a server, from any thread.
#[derive(Clone)]
pub struct Stopper(Arc<Shared>);

impl Stopper {
    /// Stops the server: no request is started from now on; [`Server::run`] returns when those in progress are done.
    pub fn stop(&self) {
        self.0.stop.store(true, Ordering::SeqCst);
        // a full buffer also wakes the server
        let _ = (&self.0.wake).write(&[0]);
        self.0.open().values().for_each(|stream| stream.shut_down(Shutdown::Read));
    }
}

impl Shared {
    fn open(&self) -> MutexGuard<'_, HashMap<u64, Stream>> {
        self.open.lock()
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("uri", &self.uri).finish_non_exhaustive()
    }
}

impl Server {
    /// Listens at `address`; connections are accepted by [`Server::run`].
    ///
    /// # Errors
    /// [`Error::Listen`], and [`Error::Name`].
    pub fn bind(device: Arc<dyn BlockDevice>, address: &Address, options: Options) -> Result<Self, Error> {
        if options.name.len() > STRING_MAX || options.name.contains('\0') {
            return Err(Error::Name);
        }
        let refused = |source| Error::Listen {
            address: match address {
                Address::Unix(path) => path.display().to_string(),
                Address::Tcp(place) => place.clone(),
            },
            source,
        };
        let listener = Listener::new(address).map_err(refused)?;
        let uri = listener.uri(&options.name).map_err(refused)?;
        let (wake, woken) = UnixStream::pair().map_err(refused)?;
        wake.set_nonblocking(true).map_err(refused)?;
        let shared = Shared {
            stop: AtomicBool::new(false),
            wake,
            open: Mutex::default(),
            closed: Condvar::new(),
            problems: AtomicU64::new(0),
        };
        let export = Export::new(device, &options.name, options.read_only);
        Ok(Self { export, listener, options, uri, woken, shared: Arc::new(shared) })
    }

    /// The URI of the export; with the port assigned by the system if port 0 was requested.
    #[must_use]
    pub fn uri(&self) -> &str {
        &self.uri
    }

    /// Returns a handle that stops the server.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        Stopper(Arc::clone(&self.shared))
    }

    /// Serves until the server is stopped; then requests in progress are finished, the device is flushed, and the file
    /// of a Unix socket is removed.
    ///
    /// # Errors
    /// [`Error::Wait`], and [`Error::Flush`] where acknowledged writes may be lost.
    pub fn run(self, notify: &(dyn Fn(Notice) + Sync)) -> Result<(), Error> {
        let Self { export, listener, options, woken, shared, .. } = self;
        let attend = |number: u64, stream: &Stream| {
            let ended = attend(&export, &options, &shared, number, stream, notify);
            stream.shut_down(Shutdown::Both);
            shared.open().remove(&number);
            shared.closed.notify_all();
            notify(Notice::Closed { number, why: ended.err().map(|why| why.to_string()) });
        };
        let waited = thread::scope(|scope| {
            let mut number = 0;
            let waited = loop {
                match next(&listener, &woken, &shared) {
                    Ok(Some(stream)) => {
                        number += 1;
                        if !shared.register(number, &stream, options.connections) {
                            notify(Notice::Full);
                            continue;
                        }
                        // the server may have been stopped before the connection was registered
                        if shared.stopped() {
                            break Ok(());
                        }
                        let attend = &attend;
                        let named = thread::Builder::new().name(format!("nbd {number}"));
                        if named.spawn_scoped(scope, move || attend(number, &stream)).is_err() {
                            shared.open().remove(&number);
                            notify(Notice::Full);
                        }
                    }
                    Ok(None) => break Ok(()),
                    Err(e) => break Err(e),
                }
            };
            // no client can connect from now on
            drop(listener);
            Stopper(Arc::clone(&shared)).stop();
            shared.end();
            waited
        });
        export.flush().map_err(Error::Flush)?;
        waited.map_err(Error::Wait)
    }
}

impl Shared {
    /// Registers a connection; `false` where the maximum number is open, or no descriptor is available.
    fn register(&self, number: u64, stream: &Stream, most: usize) -> bool {
        let mut open = self.open();
        let twin = if open.len() < most { stream.try_clone().ok() } else { None };
        twin.is_some_and(|twin| open.insert(number, twin).is_none())
    }

    /// Waits for the connections to end; after [`GRACE`], closes those whose clients do not read.
    fn end(&self) {
        let until = Instant::now() + GRACE;
        let mut open = self.open();
        while !open.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                open.values().for_each(|stream| stream.shut_down(Shutdown::Both));
                return;
            }
            self.closed.wait_for(&mut open, left);
        }
    }
}

/// Waits for a connection; `None` after a stop.
fn next(listener: &Listener, woken: &UnixStream, shared: &Shared) -> io::Result<Option<Stream>> {
    loop {
        let mut fds = [PollFd::new(listener, PollFlags::IN), PollFd::new(woken, PollFlags::IN)];
        match poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        if shared.stopped() {
            return Ok(None);
        }
        match listener.accept() {
            Ok(stream) => return Ok(Some(stream)),
            // another thread has accepted it, or the client has disconnected
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(_) => thread::sleep(PAUSE),
        }
    }
}

/// Serves one client.
fn attend(
    export: &Export,
    options: &Options,
    shared: &Shared,
    number: u64,
    stream: &Stream,
    notify: &(dyn Fn(Notice) + Sync),
) -> Result<(), Ended> {
    let mut input = BufReader::with_capacity(1 << 16, Timed::new(stream, options.handshake));
    let mut output = Timed::new(stream, options.handshake);
    let Some(agreed) = shake_hands(export, &mut input, &mut output, &shared.stop)? else { return Ok(()) };
    input.get_mut().unlimited()?;
    output.unlimited()?;
    notify(Notice::Opened { number });
    let problem = |sentence: &str| match shared.problems.fetch_add(1, Ordering::SeqCst) {
        count if count < PROBLEMS => notify(Notice::Problem(sentence.to_owned())),
        PROBLEMS => {
            notify(Notice::Problem(format!("{PROBLEMS} failures of the device; further ones are not reported")))
        }
        _ => {}
    };
    serve_requests(export, agreed, input, output, &shared.stop, &problem)
}
