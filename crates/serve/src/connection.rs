//! One client connection, from the greeting to the end: the handshake, then requests. It reads and writes bytes and
//! does not depend on sockets.
//!
//! 1. Several workers serve a connection. One at a time reads a request with its payload, then executes it while the
//!    next worker reads; replies are written whole, in the order in which requests finish.
//! 2. A request is executed when all of it has arrived, and answered when it is done. If a client disconnects in the
//!    middle of a request, no part of that request is executed.
//! 3. Memory is limited to [`MEMORY`] for each connection, whatever lengths a client announces.
//! 4. After `stop` is set no request is started; those in progress are finished and answered.

use parking_lot::Mutex;
use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::budget::{Budget, Grant};
use crate::command::payload;
use crate::export::Export;
use crate::handshake::{Agreed, Handshake, Next};
use crate::wire::{self, OPTION_DATA_MAX, OPTION_HEADER_LEN, PAYLOAD_MAX, REQUEST_LEN, Request, command};

/// The number of requests of one connection that are executed concurrently.
pub const WORKERS: usize = 8;
/// The memory for the payload of one connection, in bytes.
pub const MEMORY: u64 = 2 * PAYLOAD_MAX as u64;

/// The reason why a connection ended before its client disconnected.
#[derive(Debug, thiserror::Error)]
pub enum Ended {
    /// The connection is closed, or does not accept data.
    #[error("the client disconnected")]
    Gone,
    /// The client was inactive for too long.
    #[error("the handshake took too long")]
    Slow,
    /// The client violates the protocol.
    #[error("the client does not follow the protocol: {0}")]
    Protocol(&'static str),
    /// Another error of the connection.
    #[error("{0}")]
    Io(io::Error),
}

impl From<io::Error> for Ended {
    fn from(e: io::Error) -> Self {
        use io::ErrorKind as Kind;
        match e.kind() {
            Kind::UnexpectedEof | Kind::BrokenPipe | Kind::ConnectionReset | Kind::ConnectionAborted => Self::Gone,
            Kind::WouldBlock | Kind::TimedOut => Self::Slow,
            _ => Self::Io(e),
        }
    }
}

/// Performs the handshake with a client; `None` where the client ends it.
///
/// # Errors
/// The reason why the connection must be closed.
pub fn shake_hands(
    export: &Export,
    input: &mut impl Read,
    output: &mut impl Write,
    stop: &AtomicBool,
) -> Result<Option<Agreed>, Ended> {
    output.write_all(&wire::greeting())?;
    let mut flags = [0; 4];
    input.read_exact(&mut flags)?;
    let mut handshake = Handshake::new(export.description(), u32::from_be_bytes(flags))
        .ok_or(Ended::Protocol("it sets flags that were not offered"))?;
    while let Some(bytes) = header::<OPTION_HEADER_LEN>(input)? {
        let header = wire::parse_option_header(&bytes).ok_or(Ended::Protocol("not an option"))?;
        let mut answer = Vec::new();
        let next = if header.len > OPTION_DATA_MAX {
            skip(input, header.len)?;
            Handshake::too_long(header.option, &mut answer)
        } else {
            let data = take(input, header.len)?;
            if stop.load(Ordering::SeqCst) {
                Handshake::shut_down(header.option, &mut answer)
            } else {
                handshake.option(header.option, &data, &mut answer)
            }
        };
        output.write_all(&answer)?;
        match next {
            Next::Option => {}
            Next::Requests(agreed) => return Ok(Some(agreed)),
            Next::End => return Ok(None),
        }
    }
    Ok(None)
}

/// Serves the requests of a client until it disconnects, the connection closes, or `stop` is set. `problem` receives a
/// sentence for each request that failed because of the device.
///
/// # Errors
/// The reason why the connection ended, unless the client disconnected.
pub fn serve_requests<R: Read + Send, W: Write + Send>(
    export: &Export,
    agreed: Agreed,
    input: R,
    output: W,
    stop: &AtomicBool,
    problem: &(dyn Fn(&str) + Sync),
) -> Result<(), Ended> {
    let connection = Connection {
        export,
        agreed,
        input: Mutex::new(Input { source: input, open: true }),
        output: Mutex::new(output),
        budget: Budget::new(MEMORY),
        lost: AtomicBool::new(false),
        stop,
        problem,
    };
    thread::scope(|scope| {
        let others: Vec<_> = (1..WORKERS)
            // without resources for more threads, fewer workers serve
            .map_while(|_| {
                thread::Builder::new().name("nbd worker".into()).spawn_scoped(scope, || connection.work()).ok()
            })
            .collect();
        let mut outcome = connection.work();
        for other in others {
            let theirs = other.join().unwrap_or(Err(Ended::Io(io::Error::other("a worker panicked"))));
            // the first error counts
            outcome = outcome.and(theirs);
        }
        outcome
    })
}

struct Connection<'a, R, W> {
    export: &'a Export,
    agreed: Agreed,
    input: Mutex<Input<R>>,
    output: Mutex<W>,
    budget: Budget,
    /// Whether writing a reply failed.
    lost: AtomicBool,
    stop: &'a AtomicBool,
    problem: &'a (dyn Fn(&str) + Sync),
}

struct Input<R> {
    source: R,
    /// Whether the client may send more requests.
    open: bool,
}

/// A request that has fully arrived, with the memory for it.
struct Arrived<'a> {
    request: Request,
    payload: Vec<u8>,
    _memory: Option<Grant<'a>>,
}

impl<R: Read, W: Write> Connection<'_, R, W> {
    /// Reads and executes requests, one at a time, until there are no more.
    fn work(&self) -> Result<(), Ended> {
        while let Some(arrived) = self.next()? {
            let request = &arrived.request;
            // the memory of a write's payload is granted already; that of a read's data is not
            let wanted = if request.command == command::READ { u64::from(request.len.min(PAYLOAD_MAX)) } else { 0 };
            let _memory = self.budget.grant(wanted);
            let answer = self.export.answer(request, self.agreed, &arrived.payload);
            drop(arrived);
            if let Some(sentence) = &answer.problem {
                (self.problem)(sentence);
            }
            let mut output = self.output.lock();
            if let Err(e) = output.write_all(&answer.reply).and_then(|()| output.flush()) {
                // after a partial reply the stream is unusable
                self.lost.store(true, Ordering::SeqCst);
                return Err(e.into());
            }
        }
        Ok(())
    }

    /// Waits for a request; `None` at the end.
    fn next(&self) -> Result<Option<Arrived<'_>>, Ended> {
        let mut input = self.input.lock();
        if !input.open || self.stop.load(Ordering::SeqCst) || self.lost.load(Ordering::SeqCst) {
            return Ok(None);
        }
        let arrived = self.arrive(&mut input.source);
        input.open = matches!(arrived, Ok(Some(_)));
        // a stop shuts down the read side: an incomplete request is then not the client's fault
        if self.stop.load(Ordering::SeqCst) { Ok(arrived.ok().flatten()) } else { arrived }
    }

    fn arrive(&self, source: &mut R) -> Result<Option<Arrived<'_>>, Ended> {
        let Some(bytes) = header::<REQUEST_LEN>(source)? else { return Err(Ended::Gone) };
        let request = wire::parse_request(&bytes).ok_or(Ended::Protocol("not a request"))?;
        if request.command == command::DISC {
            return Ok(None);
        }
        let len = payload(&request);
        if len > PAYLOAD_MAX {
            // the reply will refuse it; the next request can still be read
            skip(source, len)?;
            return Ok(Some(Arrived { request, payload: Vec::new(), _memory: None }));
        }
        let memory = self.budget.grant(u64::from(len));
        let payload = take(source, len)?;
        Ok(Some(Arrived { request, payload, _memory: Some(memory) }))
    }
}

/// Reads a header; `None` where the client closed the connection before it.
fn header<const N: usize>(input: &mut impl Read) -> io::Result<Option<[u8; N]>> {
    let mut bytes = [0; N];
    let mut rest = &mut bytes[..];
    while !rest.is_empty() {
        match input.read(rest) {
            Ok(0) if rest.len() == N => return Ok(None),
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => rest = rest.get_mut(read..).unwrap_or_default(),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(Some(bytes))
}

/// Reads `len` bytes. Memory is allocated only as they arrive.
fn take(input: &mut impl Read, len: u32) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(len as usize);
    input.by_ref().take(u64::from(len)).read_to_end(&mut bytes)?;
    if bytes.len() < len as usize { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(bytes) }
}

/// Reads `len` bytes and discards them.
fn skip(input: &mut impl Read, len: u32) -> io::Result<()> {
    let skipped = io::copy(&mut input.by_ref().take(u64::from(len)), &mut io::sink())?;
    if skipped < u64::from(len) { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
}
