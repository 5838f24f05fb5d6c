//! Several concurrent clients, compared with an array.

use std::os::unix::net::UnixStream;
use std::sync::Arc;

use blockdev::{BlockDevice, FileDevice, MemoryDevice, OpenOptions};
use extant_serve::Options;
use extant_serve::wire::{command, command_flag};

use crate::client::{Client, Running};

const LEN: u64 = 1 << 20;
const CLIENTS: u64 = 4;
/// The length of a client's segments in bytes: each client has every fourth one, so that clients share sectors.
const PIECE: u64 = 100;

/// A client with its segments of the array.
struct Player {
    client: Client<UnixStream>,
    number: u64,
    rng: fastrand::Rng,
    model: Vec<u8>,
}

impl Player {
    /// The first byte of the segment `index` of this client.
    fn at(&self, index: u64) -> u64 {
        (index * CLIENTS + self.number) * PIECE
    }

    fn own(&self) -> std::ops::Range<u64> {
        0..(LEN / (PIECE * CLIENTS) - 1)
    }

    /// Sends several requests for different segments, then reads all replies.
    fn round(&mut self) {
        let mut pieces: Vec<u64> = self.own().collect();
        self.rng.shuffle(&mut pieces);
        let mut reads = Vec::new();
        let flight: Vec<_> = pieces.into_iter().take(12).collect();
        for index in &flight {
            let start = self.at(*index) + self.rng.u64(0..PIECE);
            let len = self.rng.u64(1..=self.at(*index) + PIECE - start);
            let range = start as usize..(start + len) as usize;
            let durable = if self.rng.u8(0..8) == 0 { command_flag::FUA } else { 0 };
            match self.rng.u8(0..4) {
                0 => {
                    let cookie = self.client.send(command::READ, 0, start, len as u32, b"");
                    reads.push((cookie, self.model[range].to_vec()));
                }
                1 => {
                    let flags = durable | if self.rng.bool() { command_flag::NO_HOLE } else { 0 };
                    self.client.send(command::WRITE_ZEROES, flags, start, len as u32, b"");
                    self.model[range].fill(0);
                }
                _ => {
                    let data: Vec<u8> = (0..len).map(|_| self.rng.u8(..)).collect();
                    self.client.send(command::WRITE, durable, start, len as u32, &data);
                    self.model[range].copy_from_slice(&data);
                }
            }
        }
        for _ in &flight {
            let reply = self.client.reply(0);
            assert_eq!(reply.error, 0);
            if let Some((_, expected)) = reads.iter().find(|(cookie, _)| *cookie == reply.cookie) {
                assert_eq!(&reply.data, expected);
            }
        }
        if self.rng.u8(0..4) == 0 {
            self.client.flush().unwrap();
        }
    }
}

fn play(device: Arc<dyn BlockDevice>, rounds: u64) {
    let server = Running::new(device, Options::default());
    let players: Vec<_> = (0..CLIENTS)
        .map(|number| Player {
            client: Client::ready(server.connect(), true),
            number,
            rng: fastrand::Rng::with_seed(number),
            model: vec![0; LEN as usize],
        })
        .collect();
    let models: Vec<_> = std::thread::scope(|scope| {
        let running: Vec<_> = players
            .into_iter()
            .map(|mut player| {
                scope.spawn(move || {
                    (0..rounds).for_each(|_| player.round());
                    player.model
                })
            })
            .collect();
        running.into_iter().map(|player| player.join().unwrap()).collect()
    });
    let mut client = Client::ready(server.connect(), false);
    let found = client.read(0, LEN as u32).unwrap();
    for (at, byte) in found.iter().enumerate() {
        let owner = at as u64 / PIECE % CLIENTS;
        assert_eq!(*byte, models[owner as usize][at], "byte {at}");
    }
    server.stop().unwrap();
}

#[test]
fn clients_that_share_sectors_lose_nothing() {
    play(Arc::new(MemoryDevice::zeroed(LEN).unwrap()), 60);
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(LEN).unwrap();
    for direct in [false, true] {
        let options = OpenOptions { write: true, direct, ..OpenOptions::default() };
        match FileDevice::open(file.path(), options) {
            Ok(device) => {
                device.write_zeroes(0, LEN).unwrap();
                play(Arc::new(device), 20);
            }
            // a file system without direct I/O
            Err(_) if direct => {}
            Err(e) => panic!("{e}"),
        }
    }
}
