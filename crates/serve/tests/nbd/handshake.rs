//! The forms of the handshake.

use std::io::{Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use blockdev::MemoryDevice;
use extant_serve::connection::Ended;
use extant_serve::wire::{OPTION_DATA_MAX, info, option, reply};
use extant_serve::{Options, Server};

use crate::client::{self, Client, Running, export, pair};

fn memory() -> MemoryDevice {
    MemoryDevice::zeroed(1 << 20).unwrap()
}

#[test]
fn the_old_way_to_choose_an_export() {
    for (flags, len) in [(1, 134), (3, 10), (0, 134)] {
        let (stream, served) = pair(&export(memory(), false));
        let mut client = Client::greeted(stream, flags);
        client.send_option(option::EXPORT_NAME, 4, b"disk");
        let mut answer = vec![0; len];
        client.stream.read_exact(&mut answer).unwrap();
        assert_eq!(answer[..8], (1_u64 << 20).to_be_bytes());
        client.write(5, b"abc").unwrap();
        assert_eq!(client.read(4, 5), Ok(b"\0abc\0".to_vec()));
        client.disconnect();
        served.join().unwrap().unwrap();
    }
    let (stream, served) = pair(&export(memory(), false));
    let mut client = Client::greeted(stream, 3);
    client.send_option(option::EXPORT_NAME, 5, b"other");
    assert!(client.is_closed());
    served.join().unwrap().unwrap();
}

#[test]
fn a_client_may_look_before_it_chooses() {
    let (stream, served) = pair(&export(memory(), false));
    let mut client = Client::greeted(stream, 3);
    assert_eq!(client.option(option::LIST, b"")[0], (reply::SERVER, b"\0\0\0\x04disk".to_vec()));
    assert_eq!(client.option(option::INFO, &client::info(b"x", &[]))[0].0, reply::ERR_UNKNOWN);
    assert_eq!(client.option(option::INFO, &client::info(b"disk", &[info::BLOCK_SIZE])).len(), 3);
    assert_eq!(client.option(option::STARTTLS, b"")[0].0, reply::ERR_UNSUP);
    assert_eq!(client.option(999, b"what")[0].0, reply::ERR_UNSUP);
    client.go(b"disk");
    assert_eq!(client.len, 1 << 20);
    client.disconnect();
    served.join().unwrap().unwrap();

    let (stream, served) = pair(&export(memory(), false));
    let mut client = Client::greeted(stream, 3);
    assert_eq!(client.option(option::ABORT, b""), [(reply::ACK, vec![])]);
    assert!(client.is_closed());
    served.join().unwrap().unwrap();
}

#[test]
fn options_that_are_too_long_are_passed_over() {
    let (stream, served) = pair(&export(memory(), false));
    let mut client = Client::greeted(stream, 3);
    let long = vec![b'x'; OPTION_DATA_MAX as usize + 1];
    for number in [option::GO, option::LIST, option::SET_META_CONTEXT, 12345] {
        client.send_option(number, long.len() as u32, &long);
        assert_eq!(client.answers()[0].0, reply::ERR_TOO_BIG);
    }
    client.go(b"");
    client.disconnect();
    served.join().unwrap().unwrap();
}

#[test]
fn what_is_not_the_protocol_ends_the_connection() {
    for sent in [&b"GET / HTTP/1.1\r\n\r\n                         "[..], &[0xff; 40], &[0; 40]] {
        let (mut stream, served) = pair(&export(memory(), false));
        stream.write_all(sent).unwrap();
        stream.read_to_end(&mut Vec::new()).ok(); // a reset where bytes were left unread
        assert!(matches!(served.join().unwrap(), Err(Ended::Protocol(_))));
    }
}

#[test]
fn slow_clients_do_not_stay() {
    let options = Options { handshake: Duration::from_millis(300), connections: 1, ..Options::default() };
    let server = Running::new(Arc::new(memory()), options);
    let start = Instant::now();
    let mut client = Client::greeted(server.connect(), 3);
    client.send_option(option::LIST, 0, b"");
    client.answers();
    // one byte at a time, each within the limit
    while client.stream.write_all(b"I").is_ok() {
        std::thread::sleep(Duration::from_millis(20));
        assert!(start.elapsed() < Duration::from_secs(60));
    }
    // the connection's slot is free again; after the handshake a client has no time limit
    let mut client = loop {
        let mut stream = server.connect();
        let mut greeting = [0; 18];
        if stream.read_exact(&mut greeting).is_ok() {
            stream.write_all(&3_u32.to_be_bytes()).unwrap();
            break Client::resumed(stream);
        }
        assert!(start.elapsed() < Duration::from_secs(60));
    };
    client.go(b"");
    std::thread::sleep(Duration::from_millis(400));
    assert_eq!(client.read(0, 1), Ok(vec![0]));
    client.disconnect();
    server.stop().unwrap();
}

#[test]
fn names_have_a_bound() {
    let folder = tempfile::tempdir().unwrap();
    let address = format!("unix:{}", folder.path().join("s").display()).parse().unwrap();
    for name in ["x".repeat(4097), "a\0b".to_owned()] {
        let options = Options { name, ..Options::default() };
        assert!(Server::bind(Arc::new(memory()), &address, options).is_err());
        assert!(!folder.path().join("s").exists());
    }
}
