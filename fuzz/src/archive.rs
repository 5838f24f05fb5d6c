//! The reader of tar archives, which is a part of the program and no library: its file is compiled in here.

use crate::copy_in::{Filler, unpack};
use crate::made::{contents, writing};
use crate::session::volumes;
use blockdev::{BlockDevice, MemoryDevice};
use fs::{InodeNo, Volume};
use std::io::Read;
use std::sync::Arc;

#[allow(dead_code, clippy::duplicate_mod, reason = "to `fill` it is private")]
#[path = "../../crates/cli/src/copy_in/tar.rs"]
mod tar;

use tar::Reader;

/// Bytes in a block of an archive.
const BLOCK: usize = 512;

/// A tar archive. The checksums of headers are corrected if the first byte requests it. Guarantee: reading ends,
/// returns no more data than there is, and a member's name, attributes and map take no more memory than the archive has
/// bytes, but for the records that are for all.
pub fn archive(data: &[u8]) {
    let Some((&flags, data)) = data.split_first() else { return };
    let mut bytes = data.to_vec();
    if flags & 1 != 0 {
        bytes.chunks_exact_mut(BLOCK).for_each(fix_checksum);
    }
    let mut reader = Reader::new(&bytes[..]);
    let mut data = 0;
    while let Ok(Some(member)) = reader.next() {
        assert!(member.path.len() <= bytes.len() && member.target.len() <= bytes.len());
        assert!(member.segments.len() <= bytes.len() && member.xattrs.len() <= bytes.len());
        let mut content = Vec::new();
        // a truncated archive is an error, and all before the cut was returned
        let whole = reader.read_to_end(&mut content);
        data += content.len();
        assert!(data <= bytes.len());
        if whole.is_err() {
            break;
        }
    }
}

/// A tar archive comes into a volume, as with `mkfs -d`; the first byte selects it, and whether checksums of
/// headers are corrected. Guarantee: it ends, and whatever was in the archive, the volume is consistent.
pub fn fill(data: &[u8]) {
    let Some((&flags, data)) = data.split_first() else { return };
    let mut bytes = data.to_vec();
    if flags & 1 != 0 {
        bytes.chunks_exact_mut(BLOCK).for_each(fix_checksum);
    }
    let volume = volumes()[usize::from(flags >> 1) % volumes().len()].clone();
    let device = Arc::new(MemoryDevice::from_vec(volume));
    let as_device: Arc<dyn BlockDevice> = Arc::<MemoryDevice>::clone(&device);
    let volume = Volume::open(as_device, &writing()).expect("a consistent volume");
    let mut filler = Filler::new(&volume, "volume", flags & 128 != 0, Arc::default());
    let outcome = unpack(&mut filler, &bytes[..], b"archive", InodeNo::ROOT);
    let (status, _) = filler.finish(outcome, true);
    assert!(status <= 1);
    volume.unmount().expect("a consistent volume in memory");
    drop(volume);
    let options = check::Options { threads: 1, ..check::Options::default() };
    let after = MemoryDevice::from_vec(contents(&*device));
    let report = check::check("volume", &after, &options, &()).expect("a volume that was consistent");
    assert!(report.clean, "{:?}", report.problems);
}

/// Archives for each volume.
pub(crate) fn fillings() -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for (n, seed) in (0u8..).zip(seeds()) {
        for volume in 0..volumes().len() as u8 {
            let mut seed = seed.clone();
            seed[0] |= volume << 1 | (n & 1) << 7;
            all.push(seed);
        }
    }
    all
}

/// Puts the checksum of a block right that names itself a header.
fn fix_checksum(block: &mut [u8]) {
    if block.get(257..262) != Some(b"ustar") {
        return;
    }
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}

/// One header and its data.
fn member(kind: u8, name: &[u8], magic: &[u8; 8], data: &[u8]) -> Vec<u8> {
    let mut block = vec![0; BLOCK];
    block[..name.len()].copy_from_slice(name);
    block[100..108].copy_from_slice(b"0000644\0");
    block[108..116].copy_from_slice(b"0001750\0");
    block[116..124].copy_from_slice(b"0001750\0");
    block[124..136].copy_from_slice(format!("{:011o}\0", data.len()).as_bytes());
    block[136..148].copy_from_slice(b"14700000000\0");
    block[156] = kind;
    block[157..163].copy_from_slice(b"target");
    block[257..265].copy_from_slice(magic);
    fix_checksum(&mut block);
    block.extend(data);
    block.resize(block.len().next_multiple_of(BLOCK), 0);
    block
}

/// A record of a pax header: its length counts itself.
fn record(key: &[u8], value: &[u8]) -> Vec<u8> {
    let rest = [b" ", key, b"=", value, b"\n"].concat();
    [format!("{:02}", rest.len() + 2).as_bytes(), &rest].concat()
}

/// Archives of each form, with a flag before each that lets the checksums be put right.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    const USTAR: &[u8; 8] = b"ustar\x0000";
    const GNU: &[u8; 8] = b"ustar  \0";
    let mut sparse = member(b'S', b"old-sparse", GNU, b"data");
    sparse[386..410].copy_from_slice(b"00000000000\x0000000000004\0");
    sparse[483..495].copy_from_slice(b"00000010000\0");
    fix_checksum(&mut sparse[..BLOCK]);
    let mut far = member(b'0', b"base-256", GNU, b"");
    far[124..136].copy_from_slice(&[0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    fix_checksum(&mut far);
    let records = [
        record(b"mtime", b"1700000000.123456"),
        record(b"SCHILY.xattr.user.a", b"a\nb=\0cd"),
        record(b"path", b"new name"),
        record(b"linkpath", b"there"),
    ]
    .concat();
    let map = [
        record(b"GNU.sparse.major", b"1"),
        record(b"GNU.sparse.minor", b"0"),
        record(b"GNU.sparse.name", b"sparse file"),
        record(b"GNU.sparse.realsize", b"10000"),
    ]
    .concat();
    let old_map = [record(b"GNU.sparse.size", b"9000"), record(b"GNU.sparse.map", b"0,4,4096,4,9000,0")].concat();
    let mut in_data = b"2\n0\n4\n8192\n4\n".to_vec();
    in_data.resize(BLOCK, 0);
    in_data.extend(b"datadata");
    let parts = [
        member(b'0', b"file", USTAR, b"content"),
        member(b'0', b"folder/", USTAR, b""),
        [member(b'5', b"folder", USTAR, b""), member(b'1', b"hard", USTAR, b""), member(b'2', b"soft", USTAR, b"")]
            .concat(),
        [member(b'3', b"character", USTAR, b""), member(b'4', b"block", USTAR, b""), member(b'6', b"pipe", USTAR, b"")]
            .concat(),
        [member(b'L', b"././@LongLink", GNU, &[b'n'; 300]), member(b'K', b"././@LongLink", GNU, &[b't'; 300])].concat(),
        [member(b'x', b"records", USTAR, &records), member(b'0', b"old name", USTAR, b"content")].concat(),
        [member(b'g', b"for all", USTAR, &record(b"comment", b"x")), member(b'0', b"file", USTAR, b"content")].concat(),
        [member(b'x', b"records", USTAR, &map), member(b'0', b"sparse", USTAR, &in_data)].concat(),
        [member(b'x', b"records", USTAR, &old_map), member(b'0', b"sparse", USTAR, b"datadata")].concat(),
        sparse,
        far,
    ];
    let all = parts.concat();
    parts.into_iter().chain([all]).map(|part| [&[1][..], &part, &[0; 2 * BLOCK]].concat()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_read_to_their_ends() {
        for seed in seeds() {
            let mut reader = Reader::new(&seed[1..]);
            let mut count = 0;
            while let Some(member) = reader.next().unwrap_or_else(|e| panic!("{e}: {seed:?}")) {
                count += 1;
                assert!(!member.path.is_empty());
            }
            assert!(count > 0 || seed[1..].starts_with(b"././@LongLink"));
        }
    }
}
