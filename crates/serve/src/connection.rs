//! One client, from the greeting to the end: the handshake, then requests. Any bytes in, any bytes out; no sockets.
//!
//! 1. Several workers serve a connection. One at a time reads a request with its payload, then carries it out while the
//!    next worker reads; replies are written whole, in the order in which requests are done.
//! 2. A request is carried out when all of it has arrived, and replied to when it is done. A client that disappears in
//!    the middle of one leaves no part of it.
//! 3. Memory is bounded by [`MEMORY`] a connection, whatever lengths a client announces.
//! 4. Once `stop` is set no request is begun; those under way are carried out and replied to.

use parking_lot::Mutex;
use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::budget::{Budget, Grant};
use crate::command::payload;
use crate::export::Export;
use crate::handshake::{Agreed, Handshake, Next};
use crate::wire::{self, OPTION_DATA_MAX, OPTION_HEADER_LEN, PAYLOAD_MAX, REQUEST_LEN, Request, command};

/// Requests of one connection that are carried out at the same time.
pub const WORKERS: usize = 8;
/// Bytes of payload in memory for one connection.
pub const MEMORY: u64 = 2 * PAYLOAD_MAX as u64;

/// Why a connection ended before its client said so.
#[derive(Debug, thiserror::Error)]
pub enum Ended {
    /// The client is gone, or does not read or write.
    #[error("the client disconnected")]
    Gone,
    /// It did nothing for too long.
    #[error("the handshake took too long")]
    Slow,
    /// It does not follow the protocol.
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

/// Agrees with a client on what it wants; `None` where it wants nothing.
///
/// # Errors
/// Why the connection is to be closed.
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

/// Serves the requests of a client until it disconnects, is gone, or `stop` is set. `problem` takes a sentence for each
/// request that failed because of the device.
///
/// # Errors
/// Why it ended, unless the client said so.
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
            // where the system has no more threads, fewer do
            .map_while(|_| {
                thread::Builder::new().name("nbd worker".into()).spawn_scoped(scope, || connection.work()).ok()
            })
            .collect();
        let mut outcome = connection.work();
        for other in others {
            let theirs = other.join().unwrap_or(Err(Ended::Io(io::Error::other("a worker panicked"))));
            // the first error of any
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
    /// Replies cannot be written any more.
    lost: AtomicBool,
    stop: &'a AtomicBool,
    problem: &'a (dyn Fn(&str) + Sync),
}

struct Input<R> {
    source: R,
    /// The client may send more.
    open: bool,
}

/// A request that has arrived as a whole, with the memory for it.
struct Arrived<'a> {
    request: Request,
    payload: Vec<u8>,
    _memory: Option<Grant<'a>>,
}

impl<R: Read, W: Write> Connection<'_, R, W> {
    /// Reads requests and carries them out, one after the other, until there are no more.
    fn work(&self) -> Result<(), Ended> {
        while let Some(arrived) = self.next()? {
            let request = &arrived.request;
            // what was read for a write is accounted for; what a read will take is not yet
            let wanted = if request.command == command::READ { u64::from(request.len.min(PAYLOAD_MAX)) } else { 0 };
            let _memory = self.budget.grant(wanted);
            let answer = self.export.answer(request, self.agreed, &arrived.payload);
            drop(arrived);
            if let Some(sentence) = &answer.problem {
                (self.problem)(sentence);
            }
            let mut output = self.output.lock();
            if let Err(e) = output.write_all(&answer.reply).and_then(|()| output.flush()) {
                // a reply of which a part was written leaves nothing that could follow it
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
        // a stop shuts the way in: that nothing arrives then is no fault of the client
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
            // the reply will refuse it; what follows it can still be read
            skip(source, len)?;
            return Ok(Some(Arrived { request, payload: Vec::new(), _memory: None }));
        }
        let memory = self.budget.grant(u64::from(len));
        let payload = take(source, len)?;
        Ok(Some(Arrived { request, payload, _memory: Some(memory) }))
    }
}

/// Reads a header; `None` where the client has closed the connection before it.
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

/// Reads `len` bytes. The system has no page of memory for them before they arrive.
fn take(input: &mut impl Read, len: u32) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(len as usize);
    input.by_ref().take(u64::from(len)).read_to_end(&mut bytes)?;
    if bytes.len() < len as usize { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(bytes) }
}

/// Reads `len` bytes and forgets them.
fn skip(input: &mut impl Read, len: u32) -> io::Result<()> {
    let skipped = io::copy(&mut input.by_ref().take(u64::from(len)), &mut io::sink())?;
    if skipped < u64::from(len) { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
}
