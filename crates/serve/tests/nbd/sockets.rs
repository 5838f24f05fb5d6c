//! Real sockets: their files, the limit of connections, and the end of a server.

use parking_lot::Mutex;
use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use blockdev::{BlockDevice, Geometry, MemoryDevice, Result};
use extant_serve::wire::{PAYLOAD_MAX, command};
use extant_serve::{Address, Options, Server};

use crate::client::{Client, Running};

fn memory() -> Arc<dyn BlockDevice> {
    Arc::new(MemoryDevice::zeroed(64 << 20).unwrap())
}

fn bind(address: &Address) -> std::result::Result<Server, String> {
    Server::bind(memory(), address, Options::default()).map_err(|e| e.to_string())
}

#[test]
fn the_file_of_a_socket_comes_and_goes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let address = Address::Unix(path.clone());
    let mode = || fs::symlink_metadata(&path).unwrap().permissions().mode() & 0o7777;
    let server = bind(&address).unwrap();
    assert_eq!(mode(), 0o600);
    let sentence = bind(&address).unwrap_err();
    assert!(sentence.ends_with("another process listens there"), "{sentence}");
    drop(server);
    assert!(!path.exists());
    // the file left by a killed server is replaced
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let server = bind(&address).unwrap();
    assert_eq!(mode(), 0o600);
    // a file created in its place is not removed
    fs::remove_file(&path).unwrap();
    fs::write(&path, "precious").unwrap();
    drop(server);
    assert_eq!(fs::read(&path).unwrap(), b"precious");
    let sentence = bind(&address).unwrap_err();
    assert!(sentence.ends_with("a file that is not a socket is there"), "{sentence}");
    assert_eq!(fs::read(&path).unwrap(), b"precious");
    assert!(bind(&Address::Unix(folder.path().join("none/socket"))).is_err());
    assert!(bind(&Address::Unix(folder.path().join("x".repeat(120)))).unwrap_err().contains("107 bytes"));
}

#[test]
fn tcp() {
    let server = Running::tcp(memory());
    assert!(server.uri.starts_with("nbd://127.0.0.1:"), "{}", server.uri);
    let mut clients: Vec<_> = (0..3).map(|n| Client::ready(server.connect_tcp(), n % 2 == 0)).collect();
    let data: Vec<u8> = (0..PAYLOAD_MAX).map(|at| (at / 1000) as u8).collect();
    clients[0].write(5, &data).unwrap();
    assert_eq!(clients[2].read(5, PAYLOAD_MAX), Ok(data));
    clients.pop().unwrap().disconnect();
    server.stop().unwrap();
}

#[test]
fn connections_are_counted() {
    let server = Running::new(memory(), Options { connections: 2, ..Options::default() });
    let (mut one, two) = (Client::ready(server.connect(), true), Client::ready(server.connect(), true));
    let mut rest = Vec::new();
    server.connect().read_to_end(&mut rest).unwrap();
    assert_eq!(rest, b"");
    two.disconnect().read_to_end(&mut rest).unwrap();
    // the slot is free a moment after the connection is closed
    let mut greeting = [0; 18];
    while server.connect().read_exact(&mut greeting).is_err() {}
    assert_eq!(one.read(0, 1), Ok(vec![0]));
    server.stop().unwrap();
}

/// A device whose writes signal that they have begun, and block until they are released.
struct Gated {
    memory: MemoryDevice,
    begun: Mutex<Sender<()>>,
    go_on: Mutex<Receiver<()>>,
}

impl BlockDevice for Gated {
    fn geometry(&self) -> Geometry {
        self.memory.geometry()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.memory.read(offset, buf)
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.begun.lock().send(()).unwrap();
        self.go_on.lock().recv().unwrap();
        self.memory.write(offset, data)
    }

    fn flush(&self) -> Result<()> {
        self.memory.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.memory.discard(offset, len)
    }
}

#[test]
fn a_request_under_way_is_finished_when_the_server_is_stopped() {
    let (begun, begins) = channel();
    let (goes_on, go_on) = channel();
    let memory = MemoryDevice::zeroed(1 << 20).unwrap();
    let device = Arc::new(Gated { memory, begun: Mutex::new(begun), go_on: Mutex::new(go_on) });
    let server = Running::new(Arc::clone(&device) as _, Options::default());
    let (mut client, mut idle) = (Client::ready(server.connect(), true), Client::ready(server.connect(), true));
    let half = Client::greeted(server.connect(), 3);
    let cookie = client.send(command::WRITE, 0, 0, 4, b"last");
    begins.recv().unwrap();
    server.stopper.stop();
    assert!(idle.is_closed());
    goes_on.send(()).unwrap();
    let reply = client.reply(0);
    assert_eq!((reply.cookie, reply.error), (cookie, 0));
    assert!(client.is_closed());
    let socket = server.socket();
    server.stop().unwrap();
    assert!(!socket.exists());
    drop(half);
    let mut found = [0; 4];
    device.read(0, &mut found).unwrap();
    assert_eq!(&found, b"last");
}

#[test]
fn a_server_ends_also_where_a_client_does_not_read() {
    let server = Running::new(memory(), Options::default());
    let mut client = Client::ready(server.connect(), true);
    for _ in 0..8 {
        client.send(command::READ, 0, 0, PAYLOAD_MAX, b"");
    }
    std::thread::sleep(std::time::Duration::from_millis(200));
    server.stop().unwrap();
    drop(client);
}
