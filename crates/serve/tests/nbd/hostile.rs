//! Arbitrary bytes, truncated at any point.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use blockdev::{BlockDevice, MemoryDevice};
use extant_serve::connection::{Ended, serve_requests, shake_hands};
use extant_serve::wire::{self, PAYLOAD_MAX, Request, command, option};
use extant_serve::{Export, Options};
use proptest::prelude::*;

use crate::client::{Client, Running, encode, info};

const LEN: u64 = 1 << 16;

/// Returns the server's answer to these bytes.
fn talk(device: &Arc<MemoryDevice>, mut input: &[u8]) -> (Vec<u8>, Result<(), Ended>) {
    let export = Export::new(Arc::clone(device) as _, "disk", false);
    let (mut output, stop) = (Vec::new(), AtomicBool::new(false));
    let ended = match shake_hands(&export, &mut input, &mut output, &stop) {
        Ok(Some(agreed)) => serve_requests(&export, agreed, input, &mut output, &stop, &|_| {}),
        ended => ended.map(drop),
    };
    (output, ended)
}

fn memory() -> Arc<MemoryDevice> {
    Arc::new(MemoryDevice::zeroed(LEN).unwrap())
}

fn content(device: &MemoryDevice) -> Vec<u8> {
    let mut bytes = vec![0; LEN as usize];
    device.read(0, &mut bytes).unwrap();
    bytes
}

fn put_option(out: &mut Vec<u8>, number: u32, data: &[u8]) {
    out.extend(wire::OPTION_MAGIC.to_be_bytes());
    out.extend(number.to_be_bytes());
    out.extend((data.len() as u32).to_be_bytes());
    out.extend(data);
}

/// The bytes that a client sends in the handshake.
fn opening(structured: bool) -> Vec<u8> {
    let mut out = 3_u32.to_be_bytes().to_vec();
    if structured {
        put_option(&mut out, option::STRUCTURED_REPLY, b"");
    }
    put_option(&mut out, option::GO, &info(b"", &[3]));
    out
}

#[test]
fn a_client_that_disappears_leaves_whole_requests() {
    let mut sent = opening(true);
    let mut ends = Vec::new();
    for number in 1..=20 {
        let len = 1 + 37 * number as u32 % 100;
        let request = Request { flags: 0, command: command::WRITE, cookie: number, offset: 1000 * number, len };
        sent.extend(encode(&request));
        sent.extend(vec![number as u8; len as usize]);
        ends.push((sent.len(), request));
    }
    for cut in (0..=sent.len()).step_by(3) {
        let device = memory();
        let (_, ended) = talk(&device, &sent[..cut]);
        let mut expected = vec![0; LEN as usize];
        for (_, request) in ends.iter().filter(|(end, _)| *end <= cut) {
            expected[request.offset as usize..][..request.len as usize].fill(request.cookie as u8);
        }
        assert!(content(&device) == expected, "cut at {cut}");
        assert!(matches!(ended, Ok(()) | Err(Ended::Gone)), "cut at {cut}: {ended:?}");
    }
}

#[test]
fn announced_lengths_take_no_memory() {
    let server = Running::new(memory(), Options::default());
    let before = resident();
    let mut clients: Vec<_> = (0..8).map(|_| Client::ready(server.connect(), true)).collect();
    for client in &mut clients {
        client.send(command::WRITE, 0, 0, PAYLOAD_MAX, b"only this");
    }
    for client in &mut clients[..2] {
        // a later client is served by the same server nevertheless
        let mut other = Client::ready(server.connect(), true);
        assert_eq!(other.read(0, 1), Ok(vec![0]));
        assert_eq!(client.len, LEN);
    }
    let taken = resident().saturating_sub(before);
    assert!(taken < 128 << 20, "{taken} bytes");
    server.stop().unwrap();
}

/// The resident memory of this process in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap();
    status.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

fn any_request() -> impl Strategy<Value = Vec<u8>> {
    let near = prop_oneof![0..LEN, LEN - 10..LEN + 10, any::<u64>()];
    let len = prop_oneof![0..300_u32, 0..300_u32, Just(PAYLOAD_MAX + 1), any::<u32>()];
    let fields = (0..16_u16, 0..10_u16, any::<u64>(), near, len, any::<bool>());
    (fields, prop::collection::vec(any::<u8>(), 0..300)).prop_map(|(fields, payload)| {
        let (flags, command, cookie, offset, len, honest) = fields;
        let len = if honest && command == command::WRITE { payload.len() as u32 } else { len };
        let mut bytes = encode(&Request { flags, command, cookie, offset, len });
        if command == command::WRITE {
            bytes.extend(payload);
        }
        bytes
    })
}

fn any_option() -> impl Strategy<Value = Vec<u8>> {
    (0..13_u32, prop::collection::vec(prop_oneof![0..8_u8, any::<u8>()], 0..40)).prop_map(|(number, data)| {
        let mut bytes = Vec::new();
        put_option(&mut bytes, number, &data);
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..400), known in 0..3_usize) {
        let sent = [[Vec::new(), opening(false), opening(true)][known].clone(), bytes].concat();
        let device = memory();
        let (output, _) = talk(&device, &sent);
        prop_assert!(output.len() < 1 << 20);
        if known == 0 {
            prop_assert!(content(&device).iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    fn any_options(options in prop::collection::vec(any_option(), 0..20)) {
        let mut sent = 3_u32.to_be_bytes().to_vec();
        sent.extend(options.concat());
        let (output, _) = talk(&memory(), &sent);
        prop_assert!(output.len() < 100 + 300 * options.len());
    }

    #[test]
    fn any_requests(structured: bool, requests in prop::collection::vec(any_request(), 0..30)) {
        let sent = [opening(structured), requests.concat()].concat();
        let (output, ended) = talk(&memory(), &sent);
        prop_assert!(output.len() as u64 <= 400 + (LEN + 5000) * requests.len() as u64);
        prop_assert!(!matches!(ended, Err(Ended::Slow | Ended::Io(_))));
    }
}
