//! Every command, with both forms of replies, and refused requests.

use std::io::Write;
use std::os::unix::net::UnixStream;

use blockdev::{BlockDevice, FileDevice, MemoryDevice, OpenOptions};
use extant_serve::connection::Ended;
use extant_serve::wire::{Errno, PAYLOAD_MAX, command, command_flag, export_flag};
use simdev::{Fault, Faulty};

use crate::client::{Client, export, pair};

const LEN: u64 = 1 << 26;
const INVAL: Result<Vec<u8>, u32> = Err(Errno::Inval as u32);
const NOSPC: Result<Vec<u8>, u32> = Err(Errno::NoSpc as u32);
const PERM: Result<Vec<u8>, u32> = Err(Errno::Perm as u32);
const IO: u32 = Errno::Io as u32;

#[test]
fn all_commands() {
    for structured in [false, true] {
        let (stream, served) = pair(&export(MemoryDevice::zeroed(LEN).unwrap(), false));
        let mut client = Client::ready(stream, structured);
        assert_eq!(client.len, LEN);
        assert_eq!(client.flags & export_flag::SEND_DF != 0, structured);
        client.write(1000, &[7; 5000]).unwrap();
        assert_eq!(client.read(999, 3), Ok(vec![0, 7, 7]));
        client.ask(command::WRITE, command_flag::FUA, LEN - 1, 1, &[9]).unwrap();
        assert_eq!(client.read(LEN - 2, 2), Ok(vec![0, 9]));
        client.flush().unwrap();
        for (flags, at) in [(0, 1001), (command_flag::NO_HOLE, 2001), (command_flag::FUA, 3001)] {
            client.ask(command::WRITE_ZEROES, flags, at, 10, b"").unwrap();
            assert_eq!(client.read(at - 1, 12).unwrap(), [&[7][..], &[0; 10], &[7]].concat());
        }
        client.ask(command::WRITE_ZEROES, command_flag::NO_HOLE, 1, (LEN - 1) as u32, b"").unwrap();
        assert_eq!(client.read(1000, 4), Ok(vec![0; 4]));
        client.ask(command::TRIM, command_flag::FUA, 0, LEN as u32, b"").unwrap();
        let big = vec![3; PAYLOAD_MAX as usize];
        client.write(17, &big).unwrap();
        assert_eq!(client.read(17, PAYLOAD_MAX), Ok(big));
        client.disconnect();
        served.join().unwrap().unwrap();
    }
}

#[test]
fn requests_that_are_refused_leave_the_connection_as_it_was() {
    for structured in [false, true] {
        let (stream, served) = pair(&export(MemoryDevice::zeroed(LEN).unwrap(), false));
        let mut client = Client::ready(stream, structured);
        assert_eq!(client.ask(command::READ, 0, LEN, 1, b""), INVAL);
        assert_eq!(client.ask(command::READ, 0, u64::MAX, 1, b""), INVAL);
        assert_eq!(client.ask(command::READ, 0, 0, PAYLOAD_MAX + 1, b""), INVAL);
        assert_eq!(client.ask(command::READ, 0, 0, 0, b""), INVAL);
        assert_eq!(client.ask(command::WRITE, 0, LEN - 1, 2, b"ab"), NOSPC);
        assert_eq!(client.ask(command::WRITE, command_flag::DF, 0, 2, b"ab"), INVAL);
        assert_eq!(client.ask(command::WRITE_ZEROES, 0, LEN - 1, 2, b""), NOSPC);
        assert_eq!(client.ask(command::WRITE_ZEROES, 1 << 4, 0, 2, b""), INVAL);
        assert_eq!(client.ask(command::TRIM, 0, 1, u32::MAX, b""), INVAL);
        assert_eq!(client.ask(5, 0, 0, 1, b""), INVAL);
        assert_eq!(client.ask(77, 0, 0, 1, b""), INVAL);
        // its payload is skipped, so that the next request is found
        let much = vec![1; PAYLOAD_MAX as usize + 1];
        assert_eq!(client.ask(command::WRITE, 0, 0, much.len() as u32, &much), INVAL);
        assert_eq!(client.read(0, 4), Ok(vec![0; 4]));
        if !structured {
            assert_eq!(client.ask(command::BLOCK_STATUS, 0, 0, 1, b""), INVAL);
        }
        client.disconnect();
        served.join().unwrap().unwrap();
    }
}

#[test]
fn a_read_only_export_is_not_changed() {
    let (stream, served) = pair(&export(MemoryDevice::from_vec(vec![5; 4096]), true));
    let mut client = Client::ready(stream, true);
    assert_ne!(client.flags & export_flag::READ_ONLY, 0);
    assert_eq!(client.flags & (export_flag::SEND_TRIM | export_flag::SEND_FLUSH), 0);
    assert_eq!(client.ask(command::WRITE, 0, 0, 3, b"abc"), PERM);
    assert_eq!(client.ask(command::WRITE_ZEROES, 0, 0, 3, b""), PERM);
    assert_eq!(client.ask(command::TRIM, 0, 0, 3, b""), PERM);
    client.flush().unwrap();
    assert_eq!(client.read(0, 4096), Ok(vec![5; 4096]));
    client.disconnect();
    served.join().unwrap().unwrap();
}

#[test]
fn holes_differ_from_data() {
    const MIB: u64 = 1 << 20;
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(8 * MIB).unwrap();
    let device = FileDevice::open(file.path(), OpenOptions { write: true, ..OpenOptions::default() }).unwrap();
    for at in [2, 3, 6] {
        device.write(at * MIB, &[1; MIB as usize]).unwrap();
    }
    let holes = device.extent(0, MIB).unwrap().hole;
    let (stream, served) = pair(&export(device, false));
    let mut client = Client::ready(stream, true);
    let status = |client: &mut Client<UnixStream>, flags, offset, len: u64| -> Vec<(u64, u32)> {
        let data = client.ask(command::BLOCK_STATUS, flags, offset, len as u32, b"").unwrap();
        let word = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().unwrap());
        data.chunks(8).map(|extent| (u64::from(word(&extent[..4])), word(&extent[4..]))).collect()
    };
    // on a file system without holes everything is data
    if holes {
        assert_eq!(status(&mut client, 0, 0, 8 * MIB), [(2 * MIB, 3), (2 * MIB, 0), (2 * MIB, 3), (MIB, 0), (MIB, 3)]);
        assert_eq!(status(&mut client, command_flag::REQ_ONE, MIB, 7 * MIB), [(MIB, 3)]);
        assert_eq!(status(&mut client, 0, 3 * MIB + 1, 5), [(5, 0)]);
        client.ask(command::WRITE_ZEROES, 0, 2 * MIB, MIB as u32, b"").unwrap();
        client.ask(command::WRITE_ZEROES, command_flag::NO_HOLE, 0, MIB as u32, b"").unwrap();
        assert_eq!(status(&mut client, 0, 0, 4 * MIB), [(MIB, 0), (2 * MIB, 3), (MIB, 0)]);
    }
    client.disconnect();
    served.join().unwrap().unwrap();
}

#[test]
fn errors_of_the_device_are_errors_of_the_request() {
    let faults = vec![Fault::ReadError { range: 4096..8192 }, Fault::WriteError { range: 8192..12288 }];
    let (stream, served) = pair(&export(Faulty::new(MemoryDevice::zeroed(1 << 16).unwrap(), faults), false));
    let mut client = Client::ready(stream, true);
    assert_eq!(client.read(4096, 1), Err(IO));
    assert_eq!(client.write(8192, b"x"), Err(IO));
    assert_eq!(client.read(0, 4096), Ok(vec![0; 4096]));
    client.write(0, b"fine").unwrap();
    client.flush().unwrap();
    client.disconnect();
    served.join().unwrap().unwrap();
}

#[test]
fn after_a_flush_that_failed_nothing_is_written() {
    let device = Faulty::new(MemoryDevice::zeroed(1 << 16).unwrap(), vec![Fault::FlushError { flush: 1 }]);
    let export = export(device, false);
    let (stream, served) = pair(&export);
    let (mut client, mut other) = (Client::ready(stream, true), Client::ready(pair(&export).0, false));
    client.flush().unwrap();
    client.write(0, b"before").unwrap();
    assert_eq!(client.ask(command::WRITE, command_flag::FUA, 6, 1, b"!"), Err(IO));
    for client in [&mut client, &mut other] {
        assert_eq!(client.write(0, b"later"), Err(IO));
        assert_eq!(client.flush(), Err(IO));
        assert_eq!(client.ask(command::WRITE_ZEROES, 0, 0, 1, b""), Err(IO));
        assert_eq!(client.read(0, 6), Ok(b"before".to_vec()));
    }
    client.disconnect();
    served.join().unwrap().unwrap();
}

#[test]
fn a_panic_of_the_device_is_an_error_of_the_request() {
    struct Panics(MemoryDevice);
    impl BlockDevice for Panics {
        fn geometry(&self) -> blockdev::Geometry {
            self.0.geometry()
        }
        fn read(&self, offset: u64, buf: &mut [u8]) -> blockdev::Result<()> {
            assert_ne!(offset, 13);
            self.0.read(offset, buf)
        }
        fn write(&self, offset: u64, data: &[u8]) -> blockdev::Result<()> {
            self.0.write(offset, data)
        }
        fn flush(&self) -> blockdev::Result<()> {
            panic!("a flush")
        }
        fn discard(&self, _: u64, _: u64) -> blockdev::Result<()> {
            Ok(())
        }
    }
    let (stream, served) = pair(&export(Panics(MemoryDevice::zeroed(4096).unwrap()), false));
    let mut client = Client::ready(stream, true);
    assert_eq!(client.read(13, 1), Err(IO));
    assert_eq!(client.read(12, 1), Ok(vec![0]));
    assert_eq!(client.flush(), Err(IO));
    assert_eq!(client.write(0, b"x"), Err(IO));
    client.disconnect();
    served.join().unwrap().unwrap();
}

#[test]
fn replies_to_many_requests_in_flight() {
    let bytes: Vec<u8> = (0..1 << 20).map(|at: u32| (at / 4096) as u8).collect();
    let (stream, served) = pair(&export(MemoryDevice::from_vec(bytes), false));
    let mut client = Client::ready(stream, true);
    let cookies: Vec<u64> = (0..256).map(|block| client.send(command::READ, 0, block * 4096, 16, b"")).collect();
    let mut found: Vec<_> = cookies.iter().map(|_| client.reply(16)).map(|reply| (reply.cookie, reply.data)).collect();
    found.sort();
    let expected: Vec<_> = cookies.iter().zip(0..=255).map(|(cookie, block)| (*cookie, vec![block; 16])).collect();
    assert_eq!(found, expected);
    // the last request is answered although the client disconnects
    client.send(command::WRITE, 0, 0, 1, b"x");
    let mut stream = client.disconnect();
    served.join().unwrap().unwrap();
    stream.write_all(b"more").ok();
}

#[test]
fn a_request_with_another_magic_number_ends_the_connection() {
    let (stream, served) = pair(&export(MemoryDevice::zeroed(4096).unwrap(), false));
    let mut client = Client::ready(stream, true);
    client.stream.write_all(&[0x25; 28]).unwrap();
    assert!(client.is_closed());
    assert!(matches!(served.join().unwrap(), Err(Ended::Protocol(_))));
}
