//! Kero's layer. An input is a byte of flags and then changes to the blocks that the layer has for itself, 5 bytes
//! each: a block, a byte of it, and what to write there. Checksums are put right afterwards, and the chain of the
//! records with them.

use blockdev::{BlockDevice, MemoryDevice};
use kero::bytes::{PLACEHOLDER_MAGIC, RECORD_MAGIC, SUPERBLOCK_MAGIC};
use kero::{BLOCK, FormatOptions, Kero, Options, drain, format};
use std::sync::OnceLock;

/// Bytes of the device and of its log.
const LEN: u64 = 3 << 20;
const LOG: u64 = 256 << 10;
const SIZE: usize = BLOCK as usize;

/// A device whose log has wrapped, with a checkpoint and groups of all kinds behind it.
fn device() -> &'static [u8] {
    static DEVICE: OnceLock<Vec<u8>> = OnceLock::new();
    DEVICE.get_or_init(|| {
        let device = MemoryDevice::zeroed(LEN).expect("memory");
        let options = FormatOptions {
            log: Some(LOG),
            least_log: LOG,
            empty: true,
            uuid: Some([7; 16]),
            ..FormatOptions::default()
        };
        format(&device, &options).expect("a device that is large enough");
        let kero = Kero::open(&device, Options::default()).expect("a new layer");
        for round in 0..30u8 {
            let block = u64::from(round);
            kero.write((40 + block % 7) * BLOCK, &[round; 3 * SIZE]).expect("memory");
            kero.write_fresh((300 + 2 * block) * BLOCK, &[round; SIZE]).expect("memory");
            if round % 9 == 5 {
                kero.discard(1 << 20, 1 << 20).expect("memory");
            }
            kero.idle(2).expect("memory");
            kero.flush().expect("memory");
        }
        drop(kero);
        let mut bytes = vec![0; LEN as usize];
        device.read(0, &mut bytes).expect("memory");
        bytes
    })
}

/// The blocks that are the layer's own: both placeholders, and everything behind the data.
fn own() -> Vec<usize> {
    let blocks = (LEN / BLOCK) as usize;
    [0, 16].into_iter().chain(blocks - (LOG / BLOCK) as usize - 4..blocks).collect()
}

fn number(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|four| four.try_into().ok()).map_or(0, u32::from_le_bytes)
}

fn sequence(bytes: &[u8], block: usize) -> u64 {
    let at = block * SIZE + 0x18;
    u64::from(number(bytes, at)) | u64::from(number(bytes, at + 4)) << 32
}

/// Puts all checksums right.
fn repair_checksums(bytes: &mut [u8]) {
    let begins = |bytes: &[u8], block: usize, magic: [u8; 8]| bytes[block * SIZE..].starts_with(&magic);
    let mut records: Vec<usize> = own().into_iter().filter(|block| begins(bytes, *block, RECORD_MAGIC)).collect();
    records.sort_by_key(|block| sequence(bytes, *block));
    let mut before: Option<(u64, u32)> = None;
    for block in records {
        let start = block * SIZE;
        let mut slot = block;
        for entry in (start + 0x40..start + SIZE - 11).step_by(12) {
            if matches!(bytes[entry + 5], 1 | 5) && (slot + 2) * SIZE <= bytes.len() {
                slot += 1;
                let sum = crc32c::crc32c(&bytes[slot * SIZE..(slot + 1) * SIZE]);
                bytes[entry + 8..entry + 12].copy_from_slice(&sum.to_le_bytes());
            }
        }
        let this = sequence(bytes, block);
        if let Some((_, sum)) = before.filter(|(sequence, _)| sequence.checked_add(1) == Some(this)) {
            bytes[start + 0x30..start + 0x34].copy_from_slice(&sum.to_le_bytes());
        }
        bytes[start + 0x3C..start + 0x40].fill(0);
        let sum = crc32c::crc32c(&bytes[start..start + SIZE]);
        bytes[start + 0x3C..start + 0x40].copy_from_slice(&sum.to_le_bytes());
        before = Some((this, sum));
    }
    for block in own() {
        let start = block * SIZE;
        if begins(bytes, block, SUPERBLOCK_MAGIC) {
            let at = (u64::from(number(bytes, start + 0x38)) + u64::from(number(bytes, start + 0x48))) as usize;
            let sum = bytes.get(at.saturating_mul(SIZE)..).map_or(0, |rest| number(rest, 0x3C));
            bytes[start + 0x4C..start + 0x50].copy_from_slice(&sum.to_le_bytes());
        } else if !begins(bytes, block, PLACEHOLDER_MAGIC) {
            continue;
        }
        let sum = crc32c::crc32c(&bytes[start..start + 508]);
        bytes[start + 508..start + 512].copy_from_slice(&sum.to_le_bytes());
    }
}

/// Changes to fields of every structure.
pub(crate) fn changes() -> Vec<Vec<u8>> {
    let own = own();
    let mut seeds = vec![vec![1], vec![0]];
    for (index, block) in own.iter().enumerate() {
        let magic = &device()[block * SIZE..block * SIZE + 8];
        if [PLACEHOLDER_MAGIC, RECORD_MAGIC, SUPERBLOCK_MAGIC].iter().any(|known| known == magic) {
            for at in (0x18..0x60u16).step_by(4) {
                let [low, high] = at.to_le_bytes();
                seeds.push([&[1][..], &[index as u8, low, high, 0, 1], &[index as u8, low, high, 0, 0xFF]].concat());
            }
        }
    }
    seeds
}

/// Any changes to a layer. Guarantee: no panic, and what is written and flushed behind an opening that succeeded is
/// read then and after the next one.
pub fn layer(data: &[u8]) {
    let Some((flags, changes)) = data.split_first() else { return };
    let mut bytes = device().to_vec();
    let own = own();
    for change in changes.chunks_exact(5) {
        let at = usize::from(u16::from_le_bytes([change[1], change[2]])) % SIZE;
        let block = own[(usize::from(change[0]) | usize::from(change[3]) << 8) % own.len()];
        bytes[block * SIZE + at] = change[4];
    }
    if flags & 1 != 0 {
        repair_checksums(&mut bytes);
    }
    let device = MemoryDevice::from_vec(bytes);
    let force = flags & 2 != 0;
    let options = || Options { force, ..Options::default() };
    if let Ok(kero) = Kero::open(&device, options()) {
        let len = kero.geometry().len;
        let mut all = vec![0; len as usize];
        kero.read(0, &mut all).expect("memory");
        let at = u64::from(*flags) * 16 * BLOCK % (len - 9 * BLOCK);
        let wrote = kero.write(at + 5, &[0xA5; 30_000]).and_then(|()| kero.discard(at + 40_000, 1 << 20).or(Ok(())));
        if wrote.and_then(|()| kero.flush()).is_ok() {
            all[at as usize + 5..at as usize + 30_005].fill(0xA5);
            let mut part = vec![0; 30_000];
            kero.read(at + 5, &mut part).expect("memory");
            assert!(part == all[at as usize + 5..at as usize + 30_005], "not what was written");
            drop(kero);
            if let Ok(again) = Kero::open(&device, options()) {
                again.read(at + 5, &mut part).expect("memory");
                assert!(part == all[at as usize + 5..at as usize + 30_005], "flushed, and lost");
            }
        }
    }
    // whatever it says
    let _ = drain(&device, options());
}
