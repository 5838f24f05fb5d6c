//! The NBD server. An input is a byte of flags, and all that a client sends.

use blockdev::{BlockDevice, MemoryDevice};
use serve::Export;
use serve::connection::{serve_requests, shake_hands};
use serve::handshake::Agreed;
use serve::wire::{self, option};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

const LEN: u64 = 1 << 16;

/// The bytes of an option.
fn option(number: u32, data: &[u8]) -> Vec<u8> {
    [&wire::OPTION_MAGIC.to_be_bytes()[..], &number.to_be_bytes(), &(data.len() as u32).to_be_bytes(), data].concat()
}

/// A name, and numbers behind it: what GO and INFO take.
fn info(name: &[u8], wanted: &[u16]) -> Vec<u8> {
    let wanted: Vec<u8> = [wanted.len() as u16].iter().chain(wanted).flat_map(|number| number.to_be_bytes()).collect();
    [&(name.len() as u32).to_be_bytes()[..], name, &wanted].concat()
}

/// The bytes of a request without what is written.
fn request(command: u16, flags: u16, offset: u64, len: u32) -> Vec<u8> {
    let head = [0x2560_9513_u32.to_be_bytes().as_slice(), &flags.to_be_bytes(), &command.to_be_bytes()].concat();
    [&head[..], &7_u64.to_be_bytes(), &offset.to_be_bytes(), &len.to_be_bytes()].concat()
}

/// Handshakes of every option, and requests of every kind.
pub(crate) fn conversations() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    let hello = 3_u32.to_be_bytes();
    let context =
        [&4_u32.to_be_bytes()[..], b"disk", &1_u32.to_be_bytes(), &15_u32.to_be_bytes(), b"base:allocation"].concat();
    for number in 1..12 {
        for data in [&b""[..], b"disk", &info(b"disk", &[0, 3]), &context] {
            let go = option(option::GO, &info(b"", &[3]));
            seeds.push([&[0], &hello[..], &option(number, data), &go, &request(0, 0, 0, 512)].concat());
        }
    }
    for command in 0..9 {
        for flags in [0, 1, 2, 4, 8] {
            for (offset, len) in [(0, 1), (4096, 8192), (LEN - 1, 1), (LEN, 1), (u64::MAX, 2), (0, u32::MAX)] {
                let payload = if command == 1 { vec![1; len.min(9000) as usize] } else { Vec::new() };
                let talk =
                    [request(command, flags, offset, len), payload, request(3, 0, 0, 0), request(2, 0, 0, 0)].concat();
                seeds.push([&[1 << 1 | 1 << 2], &talk[..]].concat());
                seeds.push([&[1 << 1], &talk[..]].concat());
            }
        }
    }
    seeds
}

/// Any bytes from a client. Guarantee: no panic, no waiting for more than there is, and a read-only export does not
/// change.
pub fn nbd(data: &[u8]) {
    let Some((flags, mut input)) = data.split_first() else { return };
    let (read_only, requests, structured) = (flags & 1 != 0, flags & 2 != 0, flags & 4 != 0);
    let before: Vec<u8> = (0..LEN).map(|at| (at % 251) as u8).collect();
    let device = Arc::new(MemoryDevice::from_vec(before.clone()));
    let export = Export::new(Arc::clone(&device) as Arc<dyn BlockDevice>, "disk", read_only);
    let (mut output, stop) = (Vec::new(), AtomicBool::new(false));
    let agreed = if requests {
        Some(Agreed { structured, allocation: structured })
    } else {
        shake_hands(&export, &mut input, &mut output, &stop).ok().flatten()
    };
    if let Some(agreed) = agreed {
        // how it ended is the client's business
        let _ = serve_requests(&export, agreed, input, &mut output, &stop, &|_| {});
    }
    let mut after = vec![0; LEN as usize];
    device.read(0, &mut after).expect("memory");
    assert!(!read_only || after == before, "a read-only export has changed");
}
