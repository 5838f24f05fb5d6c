//! A client that sends any messages, including invalid ones.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::{JoinHandle, spawn};

use blockdev::BlockDevice;
use extant_serve::connection::{Ended, serve_requests, shake_hands};
use extant_serve::wire::{self, Request, command, option, reply};
use extant_serve::{Export, Notice, Options, Server, Stopper};

/// One side of a connection.
pub(crate) struct Client<S> {
    pub(crate) stream: S,
    structured: bool,
    cookie: u64,
    /// The length and the flags of the export, from the server's answer.
    pub(crate) len: u64,
    pub(crate) flags: u16,
}

/// A reply of any form.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) cookie: u64,
    pub(crate) error: u32,
    /// The data of a read, or the extents.
    pub(crate) data: Vec<u8>,
}

impl<S: Read + Write> Client<S> {
    /// Creates a client that has read the greeting and sent its flags.
    pub(crate) fn greeted(mut stream: S, flags: u32) -> Self {
        assert_eq!(array::<18>(&mut stream)[..], wire::greeting()[..]);
        stream.write_all(&flags.to_be_bytes()).unwrap();
        Self::resumed(stream)
    }

    /// Creates a client that has sent its flags.
    pub(crate) fn resumed(stream: S) -> Self {
        Self { stream, structured: false, cookie: 0, len: 0, flags: 0 }
    }

    /// Creates a client that has completed the handshake.
    pub(crate) fn ready(stream: S, structured: bool) -> Self {
        let mut client = Self::greeted(stream, 3);
        if structured {
            assert_eq!(client.option(option::STRUCTURED_REPLY, b"")[0].0, reply::ACK);
            let found = client.option(option::SET_META_CONTEXT, &contexts(b"", &[wire::ALLOCATION]));
            assert_eq!(found[0].0, reply::META_CONTEXT);
        }
        client.structured = structured;
        client.go(b"");
        client
    }

    /// Selects an export.
    pub(crate) fn go(&mut self, name: &[u8]) {
        let found = self.option(option::GO, &info(name, &[]));
        assert_eq!(found.last().unwrap().0, reply::ACK);
        let export = &found[0].1;
        self.len = u64::from_be_bytes(export[2..10].try_into().unwrap());
        self.flags = u16::from_be_bytes(export[10..12].try_into().unwrap());
    }

    /// Sends an option; returns the kinds and data of the answers.
    pub(crate) fn option(&mut self, number: u32, data: &[u8]) -> Vec<(u32, Vec<u8>)> {
        self.send_option(number, data.len() as u32, data);
        self.answers()
    }

    pub(crate) fn send_option(&mut self, number: u32, len: u32, data: &[u8]) {
        let header = [&wire::OPTION_MAGIC.to_be_bytes()[..], &number.to_be_bytes(), &len.to_be_bytes()].concat();
        self.stream.write_all(&[&header, data].concat()).unwrap();
    }

    pub(crate) fn answers(&mut self) -> Vec<(u32, Vec<u8>)> {
        let mut found = Vec::new();
        loop {
            assert_eq!(array(&mut self.stream), wire::OPTION_REPLY_MAGIC.to_be_bytes());
            let [_option, kind, len] = [(); 3].map(|()| u32::from_be_bytes(array(&mut self.stream)));
            found.push((kind, bytes(&mut self.stream, len as usize)));
            if kind == reply::ACK || kind >> 31 == 1 {
                return found;
            }
        }
    }

    /// Sends a request; returns its number.
    pub(crate) fn send(&mut self, command: u16, flags: u16, offset: u64, len: u32, payload: &[u8]) -> u64 {
        self.cookie += 1;
        let request = Request { flags, command, cookie: self.cookie, offset, len };
        self.stream.write_all(&[&encode(&request), payload].concat()).unwrap();
        self.cookie
    }

    /// Reads a reply; `len` is the length of its request's data.
    pub(crate) fn reply(&mut self, len: usize) -> Reply {
        let magic = u32::from_be_bytes(array(&mut self.stream));
        if magic == wire::SIMPLE_REPLY_MAGIC {
            assert!(!self.structured);
            let error = u32::from_be_bytes(array(&mut self.stream));
            let cookie = u64::from_be_bytes(array(&mut self.stream));
            let data = if error == 0 { bytes(&mut self.stream, len) } else { Vec::new() };
            return Reply { cookie, error, data };
        }
        assert_eq!((magic, self.structured), (wire::STRUCTURED_REPLY_MAGIC, true));
        let [flags, kind] = [(); 2].map(|()| u16::from_be_bytes(array(&mut self.stream)));
        let cookie = u64::from_be_bytes(array(&mut self.stream));
        let size = u32::from_be_bytes(array(&mut self.stream));
        let body = bytes(&mut self.stream, size as usize);
        assert_eq!(flags, wire::chunk::DONE);
        match kind {
            wire::chunk::NONE => Reply { cookie, error: 0, data: body },
            wire::chunk::OFFSET_DATA => Reply { cookie, error: 0, data: body[8..].to_vec() },
            wire::chunk::BLOCK_STATUS => Reply { cookie, error: 0, data: body[4..].to_vec() },
            wire::chunk::ERROR => {
                let message = u16::from_be_bytes(body[4..6].try_into().unwrap());
                assert_eq!(usize::from(message), body.len() - 6);
                Reply { cookie, error: u32::from_be_bytes(body[..4].try_into().unwrap()), data: Vec::new() }
            }
            _ => panic!("chunk {kind}"),
        }
    }

    /// Sends a request and reads its reply: the data, or the error.
    pub(crate) fn ask(
        &mut self,
        command: u16,
        flags: u16,
        offset: u64,
        len: u32,
        payload: &[u8],
    ) -> Result<Vec<u8>, u32> {
        let cookie = self.send(command, flags, offset, len, payload);
        let reply = self.reply(if command == command::READ { len as usize } else { 0 });
        assert_eq!(reply.cookie, cookie);
        if reply.error == 0 { Ok(reply.data) } else { Err(reply.error) }
    }

    pub(crate) fn read(&mut self, offset: u64, len: u32) -> Result<Vec<u8>, u32> {
        self.ask(command::READ, 0, offset, len, b"")
    }

    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), u32> {
        self.ask(command::WRITE, 0, offset, data.len() as u32, data).map(drop)
    }

    pub(crate) fn flush(&mut self) -> Result<(), u32> {
        self.ask(command::FLUSH, 0, 0, 0, b"").map(drop)
    }

    pub(crate) fn disconnect(mut self) -> S {
        self.send(command::DISC, 0, 0, 0, b"");
        self.stream
    }

    /// Whether the server has closed the connection.
    pub(crate) fn is_closed(&mut self) -> bool {
        matches!(self.stream.read(&mut [0]), Ok(0) | Err(_))
    }
}

fn array<const N: usize>(stream: &mut impl Read) -> [u8; N] {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).unwrap();
    bytes
}

fn bytes(stream: &mut impl Read, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    stream.read_exact(&mut bytes).unwrap();
    bytes
}

pub(crate) fn encode(request: &Request) -> Vec<u8> {
    let mut bytes = wire::REQUEST_MAGIC.to_be_bytes().to_vec();
    bytes.extend(request.flags.to_be_bytes());
    bytes.extend(request.command.to_be_bytes());
    bytes.extend(request.cookie.to_be_bytes());
    bytes.extend(request.offset.to_be_bytes());
    bytes.extend(request.len.to_be_bytes());
    bytes
}

/// Encodes the data of INFO and GO.
pub(crate) fn info(name: &[u8], wanted: &[u16]) -> Vec<u8> {
    let mut data = string(name);
    data.extend((wanted.len() as u16).to_be_bytes());
    wanted.iter().for_each(|wanted| data.extend(wanted.to_be_bytes()));
    data
}

/// Encodes the data of SET_META_CONTEXT.
pub(crate) fn contexts(name: &[u8], queries: &[&[u8]]) -> Vec<u8> {
    let mut data = string(name);
    data.extend((queries.len() as u32).to_be_bytes());
    queries.iter().for_each(|query| data.extend(string(query)));
    data
}

fn string(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes(), text].concat()
}

/// Serves a connection without a server: both phases over a pair of sockets.
pub(crate) fn pair(export: &Arc<Export>) -> (UnixStream, JoinHandle<Result<(), Ended>>) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let export = Arc::clone(export);
    let served = spawn(move || {
        let stop = AtomicBool::new(false);
        let (mut input, mut output) = (theirs.try_clone().unwrap(), theirs.try_clone().unwrap());
        let outcome = match shake_hands(&export, &mut input, &mut output, &stop) {
            Ok(Some(agreed)) => serve_requests(&export, agreed, input, output, &stop, &|_| {}),
            ended => ended.map(drop),
        };
        theirs.shutdown(std::net::Shutdown::Both).ok();
        outcome
    });
    (ours, served)
}

pub(crate) fn export(device: impl BlockDevice + 'static, read_only: bool) -> Arc<Export> {
    Arc::new(Export::new(Arc::new(device), "disk", read_only))
}

/// A running server.
pub(crate) struct Running {
    pub(crate) uri: String,
    pub(crate) stopper: Stopper,
    served: JoinHandle<Result<(), extant_serve::Error>>,
    folder: tempfile::TempDir,
}

impl Running {
    pub(crate) fn new(device: Arc<dyn BlockDevice>, options: Options) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let address = format!("unix:{}", folder.path().join("socket").display()).parse().unwrap();
        let server = Server::bind(device, &address, options).unwrap();
        Self::run(server, folder)
    }

    pub(crate) fn tcp(device: Arc<dyn BlockDevice>) -> Self {
        let server = Server::bind(device, &"127.0.0.1:0".parse().unwrap(), Options::default()).unwrap();
        Self::run(server, tempfile::tempdir().unwrap())
    }

    fn run(server: Server, folder: tempfile::TempDir) -> Self {
        let (uri, stopper) = (server.uri().to_owned(), server.stopper());
        let notify = |notice: Notice| assert!(!notice.to_string().is_empty());
        Self { uri, stopper, served: spawn(move || server.run(&notify)), folder }
    }

    pub(crate) fn socket(&self) -> std::path::PathBuf {
        self.folder.path().join("socket")
    }

    pub(crate) fn connect(&self) -> UnixStream {
        connect(&self.socket())
    }

    pub(crate) fn connect_tcp(&self) -> TcpStream {
        TcpStream::connect(self.uri.strip_prefix("nbd://").unwrap().trim_end_matches('/')).unwrap()
    }

    /// Stops the server, and waits for its end.
    pub(crate) fn stop(self) -> Result<(), extant_serve::Error> {
        self.stopper.stop();
        self.served.join().unwrap()
    }
}

pub(crate) fn connect(path: &Path) -> UnixStream {
    UnixStream::connect(path).unwrap()
}
