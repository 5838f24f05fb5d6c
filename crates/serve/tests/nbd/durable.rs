//! The content of the device when a reply arrives: a recording device shows the order.

use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use blockdev::{BlockDevice, Geometry, MemoryDevice, Result};
use extant_serve::Options;
use extant_serve::wire::{command, command_flag};
use simdev::{Logged, Record};

use crate::client::{Client, Running};

type Recorded = Arc<Record<MemoryDevice, Vec<u8>>>;

fn recorded() -> Recorded {
    Arc::new(Record::in_memory(MemoryDevice::zeroed(1 << 20).unwrap()))
}

/// The number of changes in the log after the last flush.
fn unflushed(device: &Recorded) -> usize {
    let log = device.log().unwrap();
    log.entries().iter().rev().take_while(|entry| entry.what != Logged::Flush).count()
}

#[test]
fn fua_is_on_the_device_before_the_reply() {
    let device = recorded();
    let server = Running::new(Arc::clone(&device) as _, Options::default());
    let mut client = Client::ready(server.connect(), true);
    client.write(0, &[1; 4096]).unwrap();
    assert_eq!(unflushed(&device), 1);
    for round in 0..20 {
        client.write(8192 * round, &[2; 512]).unwrap();
        let (command, payload) = match round % 3 {
            0 => (command::WRITE, &[3; 512][..]),
            1 => (command::WRITE_ZEROES, &[][..]),
            _ => (command::TRIM, &[][..]),
        };
        client.ask(command, command_flag::FUA, 8192 * round, 512, payload).unwrap();
        assert_eq!(unflushed(&device), 0, "{round}");
    }
    // a read makes nothing durable
    client.write(0, b"x").unwrap();
    client.ask(command::READ, command_flag::FUA, 0, 1, b"").unwrap();
    assert_eq!(unflushed(&device), 1);
    server.stop().unwrap();
}

#[test]
fn a_flush_covers_all_connections_also_those_that_are_gone() {
    let device = recorded();
    let server = Running::new(Arc::clone(&device) as _, Options::default());
    let mut flusher = Client::ready(server.connect(), false);
    for round in 0..10 {
        let mut writers: Vec<_> = (0..4).map(|_| Client::ready(server.connect(), round % 2 == 0)).collect();
        for (number, writer) in (0..).zip(&mut writers) {
            writer.write(4096 * number, &[round; 4096]).unwrap();
        }
        if round % 3 == 0 {
            writers.clear(); // without a disconnect request
        }
        assert_eq!(unflushed(&device), 4);
        flusher.flush().unwrap();
        assert_eq!(unflushed(&device), 0);
    }
    server.stop().unwrap();
}

#[test]
fn a_server_that_ends_flushes() {
    let device = recorded();
    let server = Running::new(Arc::clone(&device) as _, Options::default());
    Client::ready(server.connect(), true).write(0, b"x").unwrap();
    assert_eq!(unflushed(&device), 1);
    server.stop().unwrap();
    assert_eq!(unflushed(&device), 0);
}

/// A device whose flushes block until they are released.
struct Slow {
    memory: MemoryDevice,
    flushes: AtomicU32,
    free: Mutex<bool>,
    freed: Condvar,
}

impl BlockDevice for Slow {
    fn geometry(&self) -> Geometry {
        self.memory.geometry()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.memory.read(offset, buf)
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.memory.write(offset, data)
    }

    fn flush(&self) -> Result<()> {
        self.flushes.fetch_add(1, Ordering::SeqCst);
        let mut free = self.free.lock();
        self.freed.wait_while(&mut free, |free| !*free);
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.memory.discard(offset, len)
    }
}

#[test]
fn one_flush_serves_all_who_wait() {
    let device = Arc::new(Slow {
        memory: MemoryDevice::zeroed(1 << 20).unwrap(),
        flushes: AtomicU32::new(0),
        free: Mutex::new(false),
        freed: Condvar::new(),
    });
    let server = Running::new(Arc::clone(&device) as _, Options::default());
    let mut clients: Vec<_> = (0..8).map(|_| Client::ready(server.connect(), true)).collect();
    clients[0].send(command::FLUSH, 0, 0, 0, b"");
    while device.flushes.load(Ordering::SeqCst) == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    for client in &mut clients[1..] {
        client.send(command::WRITE, command_flag::FUA, 0, 1, b"x");
    }
    // other requests do not wait; meanwhile the writes have reached their flush
    for _ in 0..20 {
        clients[0].send(command::READ, 0, 0, 1, b"");
        assert_eq!(clients[0].reply(1).error, 0);
        std::thread::sleep(Duration::from_millis(10));
    }
    *device.free.lock() = true;
    device.freed.notify_all();
    for client in &mut clients {
        assert_eq!(client.reply(0).error, 0);
    }
    // on a busy machine one of them may have arrived late
    let flushes = device.flushes.load(Ordering::SeqCst);
    assert!((2..=4).contains(&flushes), "{flushes}");
    server.stop().unwrap();
}
