//! Reads tar archives in the formats of POSIX (ustar, pax) and GNU tar.
//!
//! Written by hand because the records of pax archives contain binary values (attributes): a library that splits
//! records at newlines loses the names after such a value.

use fs::Timestamp;
use std::collections::HashMap;
use std::io::{self, Error, ErrorKind, Read};

/// Bytes in a block of an archive.
const BLOCK: usize = 512;
/// Memory limit in bytes for the records of one member, for the global records, and for a long name. The map of a
/// sparse file is not included: its segments are counted.
const RECORDS_MAX: usize = 1 << 20;
/// Memory overhead of a record in bytes, beside its key and value.
const RECORD_COST: usize = 64;
/// Maximum number of segments in the map of a sparse file.
const SEGMENTS_MAX: usize = 1 << 20;
/// Prefix of a record with an extended attribute.
const XATTR: &[u8] = b"SCHILY.xattr.";
/// Prefix of a record with an access control list in text form.
const ACL: &[u8] = b"SCHILY.acl.";

/// The content of records.
#[derive(Debug, Default)]
struct Records {
    /// Values by key.
    values: HashMap<Vec<u8>, Vec<u8>>,
    /// Memory used by the values, in bytes.
    bytes: usize,
    /// The map of a sparse file: offsets and lengths, alternating.
    map: Option<Vec<u64>>,
}

impl Records {
    fn insert(&mut self, key: Vec<u8>, value: Vec<u8>) -> io::Result<()> {
        self.bytes += key.len() + value.len() + RECORD_COST;
        if let Some(old) = self.values.get(&key) {
            self.bytes -= key.len() + old.len() + RECORD_COST;
        }
        if self.bytes > RECORDS_MAX {
            return Err(too_long());
        }
        self.values.insert(key, value);
        Ok(())
    }

    /// Appends a number to the map.
    fn extend_map(&mut self, number: u64) -> io::Result<()> {
        let map = self.map.get_or_insert_default();
        if map.len() >= 2 * SEGMENTS_MAX {
            return Err(wrong("a sparse file with too many segments"));
        }
        map.push(number);
        Ok(())
    }

    /// Whether there is a record that can only apply to a single file.
    fn has_attributes(&self) -> bool {
        self.values.keys().any(|key| key.starts_with(XATTR) || key.starts_with(ACL))
    }
}

/// The records that apply to one file: its own take precedence over the global ones.
#[derive(Clone, Copy)]
struct PaxRecords<'a> {
    own: &'a Records,
    all: &'a Records,
}

impl<'a> PaxRecords<'a> {
    fn get(self, key: &[u8]) -> Option<&'a Vec<u8>> {
        self.own.values.get(key).or_else(|| self.all.values.get(key))
    }
}

/// One file of an archive. Its data follows in the [`Reader`].
#[derive(Debug)]
pub(super) struct Member {
    /// Type flag: `0` file, `1` hard link, `2` symbolic link, `3` and `4` devices, `5` directory, `6` pipe.
    pub(super) kind: u8,
    pub(super) path: Vec<u8>,
    /// The target of a link.
    pub(super) target: Vec<u8>,
    pub(super) mode: u16,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) atime: Timestamp,
    pub(super) mtime: Timestamp,
    pub(super) device: (u32, u32),
    /// Length of the file.
    pub(super) len: u64,
    /// The extents of the data in the file, in order: offset and length.
    pub(super) segments: Vec<(u64, u64)>,
    pub(super) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Access control lists present only in text form: `access` or `default`, and the list.
    pub(super) acls: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Reads an archive from start to end. Reading from it returns the data of the member returned last.
pub(super) struct Reader<R> {
    from: R,
    /// Bytes of the member that were not read yet, with the padding of its last block.
    left: u64,
    padding: u64,
    global: Records,
}

impl<R: Read> Read for Reader<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let most = self.left.min(buf.len() as u64) as usize;
        let got = self.from.read(&mut buf[..most])?;
        if got == 0 && most > 0 {
            return Err(cut_short());
        }
        self.left -= got as u64;
        Ok(got)
    }
}

/// Whether a block is a member's header, by its checksum.
pub(crate) fn is_header(block: &[u8; BLOCK]) -> bool {
    let outside = block[..148].iter().chain(&block[156..]).map(|byte| u64::from(*byte)).sum::<u64>();
    // the checksum field counts as spaces
    number(&block[148..156]).ok() == Some(outside + 8 * u64::from(b' '))
}

impl<R: Read> Reader<R> {
    pub(super) fn new(from: R) -> Self {
        Self { from, left: 0, padding: 0, global: Records::default() }
    }

    /// The next file; `None` at the end.
    pub(super) fn next(&mut self) -> io::Result<Option<Member>> {
        let mut own = Records::default();
        let (mut long_name, mut long_target) = (None, None);
        loop {
            let Some(header) = self.header()? else { return Ok(None) };
            let kind = header[156];
            let size = number(&header[124..136])?;
            match kind {
                b'x' | b'X' => self.records(size, &mut own)?,
                b'g' => {
                    let mut all = std::mem::take(&mut self.global);
                    self.records(size, &mut all)?;
                    // every file would have them, including formats of their own
                    if all.map.is_some() || all.has_attributes() {
                        return Err(wrong("attributes or a sparse map in a global header"));
                    }
                    self.global = all;
                }
                b'L' => long_name = Some(self.long_name(size)?),
                b'K' => long_target = Some(self.long_name(size)?),
                _ => {
                    let all = std::mem::take(&mut self.global);
                    let member = self.member(&header, PaxRecords { own: &own, all: &all }, long_name, long_target);
                    self.global = all;
                    return member.map(Some);
                }
            }
        }
    }

    /// The next header; `None` at the end of the archive.
    fn header(&mut self) -> io::Result<Option<[u8; BLOCK]>> {
        let rest = self.left + self.padding;
        if io::copy(&mut self.from.by_ref().take(rest), &mut io::sink())? < rest {
            return Err(cut_short());
        }
        (self.left, self.padding) = (0, 0);
        let mut header = [0; BLOCK];
        // an archive ends with zero blocks: without them the end may be missing
        if fill(&mut self.from, &mut header)? < BLOCK {
            return Err(cut_short());
        }
        if header.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        if !is_header(&header) {
            return Err(wrong("invalid header checksum: not a tar archive, or a damaged one"));
        }
        Ok(Some(header))
    }

    fn expect_data(&mut self, size: u64) -> io::Result<()> {
        if size > i64::MAX as u64 {
            return Err(wrong("a file longer than the maximum file size"));
        }
        self.left = size;
        self.padding = size.next_multiple_of(BLOCK as u64) - size;
        Ok(())
    }

    /// The name of the next member, stored as the data of this one.
    fn long_name(&mut self, size: u64) -> io::Result<Vec<u8>> {
        if size > RECORDS_MAX as u64 {
            return Err(too_long());
        }
        self.expect_data(size)?;
        let mut bytes = Vec::new();
        self.by_ref().read_to_end(&mut bytes)?;
        bytes.truncate(until_zero(&bytes).len());
        Ok(bytes)
    }

    /// Reads records of the form `LENGTH KEY=VALUE\n`, where LENGTH is the total length.
    fn records(&mut self, size: u64, into: &mut Records) -> io::Result<()> {
        self.expect_data(size)?;
        while self.left > 0 {
            let before = self.left;
            let Some(len) = self.record_len()? else { break };
            let end = before.checked_sub(len).filter(|end| *end < self.left).ok_or_else(malformed)?;
            let key = self.key(end)?;
            // without the newline
            let len = (self.left - end).checked_sub(1).ok_or_else(malformed)?;
            match &key[..] {
                b"GNU.sparse.map" => {
                    into.map = Some(Vec::new());
                    self.map_in_record(len, into)?;
                }
                // the first form of the map is many records with the same keys
                b"GNU.sparse.offset" | b"GNU.sparse.numbytes" => self.map_in_record(len, into)?,
                _ if len > RECORDS_MAX as u64 => return Err(too_long()),
                _ => {
                    let mut value = vec![0; len as usize];
                    self.read_exact(&mut value)?;
                    into.insert(key, value)?;
                }
            }
            if self.byte()? != b'\n' {
                return Err(malformed());
            }
        }
        Ok(())
    }

    /// The length of the next record; `None` after the last.
    fn record_len(&mut self) -> io::Result<Option<u64>> {
        let mut len: Option<u64> = None;
        while self.left > 0 {
            match (self.byte()?, len) {
                (0, None) => return Ok(None),
                (b' ', Some(_)) => return Ok(len),
                (digit @ b'0'..=b'9', before) => {
                    let tens = before.unwrap_or(0).checked_mul(10).ok_or_else(malformed)?;
                    len = Some(tens.checked_add(u64::from(digit - b'0')).ok_or_else(malformed)?);
                }
                _ => return Err(malformed()),
            }
        }
        Err(malformed())
    }

    /// The key of a record; `end` is the number of bytes left after the record.
    fn key(&mut self, end: u64) -> io::Result<Vec<u8>> {
        let mut key = Vec::new();
        while self.left > end {
            match self.byte()? {
                b'=' => return Ok(key),
                _ if key.len() == RECORDS_MAX => return Err(too_long()),
                byte => key.push(byte),
            }
        }
        Err(malformed())
    }

    /// The numbers in a record's value, separated by commas.
    fn map_in_record(&mut self, len: u64, into: &mut Records) -> io::Result<()> {
        let end = self.left - len;
        while self.left > end {
            let mut digits = Vec::new();
            while self.left > end {
                match self.byte()? {
                    b',' => break,
                    byte if digits.len() < 20 => digits.push(byte),
                    _ => return Err(no_map()),
                }
            }
            into.extend_map(decimal(&digits).ok_or_else(no_map)?)?;
        }
        Ok(())
    }

    fn byte(&mut self) -> io::Result<u8> {
        let mut byte = [0];
        self.read_exact(&mut byte)?;
        Ok(byte[0])
    }

    fn member(
        &mut self,
        header: &[u8; BLOCK],
        said: PaxRecords<'_>,
        long_name: Option<Vec<u8>>,
        long_target: Option<Vec<u8>>,
    ) -> io::Result<Member> {
        let record = |name: &str| said.get(name.as_bytes());
        let count = |name: &str, plain: &[u8]| match record(name).map(|value| decimal(value)) {
            Some(Some(value)) => Ok(value),
            Some(None) => Err(wrong("invalid number in a record")),
            None => number(plain),
        };
        let mut path = until_zero(&header[..100]).to_vec();
        let prefix = until_zero(&header[345..500]);
        if header[257..263] == *b"ustar\0" && !prefix.is_empty() {
            path = [prefix, b"/", &path].concat();
        }
        let path = record("GNU.sparse.name").or(record("path")).cloned().or(long_name).unwrap_or(path);
        let target = until_zero(&header[157..257]).to_vec();
        let target = record("linkpath").cloned().or(long_target).unwrap_or(target);
        let kind = match header[156] {
            // the oldest format marks directories by a trailing slash
            0 | b'0' | b'7' if path.ends_with(b"/") => b'5',
            0 | b'7' => b'0',
            kind => kind,
        };
        let stored = if (b'1'..=b'6').contains(&kind) { 0 } else { count("size", &header[124..136])? };
        self.expect_data(stored)?;
        let (mut len, mut segments) = (stored, vec![(0, stored)]);
        let real = record("GNU.sparse.realsize").or(record("GNU.sparse.size"));
        if kind == b'S' {
            (len, segments) = self.old_sparse(header)?;
        } else if let Some(real) = real.and_then(|value| decimal(value)) {
            (len, segments) = (real, self.sparse_map(said.own.map.as_deref())?);
        }
        let seconds = number(&header[136..148])?.cast_signed();
        let mtime = record("mtime").and_then(|value| time(value)).unwrap_or(Timestamp { seconds, nanos: 0 });
        let with_prefix = |prefix: &'static [u8]| {
            let of =
                move |(key, value): (&Vec<u8>, &Vec<u8>)| Some((key.strip_prefix(prefix)?.to_vec(), value.clone()));
            said.own.values.iter().filter_map(of)
        };
        let mut xattrs: Vec<(Vec<u8>, Vec<u8>)> = with_prefix(XATTR).collect();
        xattrs.sort_unstable();
        // tar(1) writes a list as text even if it also writes the attribute with the list
        let is_there =
            |which: &[u8]| xattrs.iter().any(|(name, _)| name.strip_prefix(b"system.posix_acl_") == Some(which));
        let mut acls: Vec<(Vec<u8>, Vec<u8>)> = with_prefix(ACL).filter(|(which, _)| !is_there(which)).collect();
        acls.sort_unstable();
        let devices = matches!(kind, b'3' | b'4');
        let device = |field: &[u8]| if devices { number(field) } else { Ok(0) };
        Ok(Member {
            kind: if kind == b'S' { b'0' } else { kind },
            path,
            target,
            mode: (number(&header[100..108])? & 0o7777) as u16,
            uid: count("uid", &header[108..116])? as u32,
            gid: count("gid", &header[116..124])? as u32,
            atime: record("atime").and_then(|value| time(value)).unwrap_or(mtime),
            mtime,
            device: (device(&header[329..337])? as u32, device(&header[337..345])? as u32),
            len,
            segments,
            xattrs,
            acls,
        })
    }

    /// GNU's first format of sparse files: four segments in the header, more in the blocks after it.
    fn old_sparse(&mut self, header: &[u8; BLOCK]) -> io::Result<(u64, Vec<(u64, u64)>)> {
        let len = number(&header[483..495])?;
        let mut segments = Vec::new();
        let mut add = |fields: &[u8]| -> io::Result<()> {
            for segment in fields.chunks_exact(24).filter(|segment| segment[0] != 0) {
                segments.push((number(&segment[..12])?, number(&segment[12..])?));
            }
            if segments.len() > SEGMENTS_MAX { Err(wrong("a sparse file with too many segments")) } else { Ok(()) }
        };
        add(&header[386..482])?;
        let mut more = header[482] != 0;
        while more {
            let mut block = [0; BLOCK];
            self.from.read_exact(&mut block)?;
            add(&block[..504])?;
            more = block[504] != 0;
        }
        Ok((len, segments))
    }

    /// The later formats, in records or at the start of the data.
    fn sparse_map(&mut self, in_records: Option<&[u64]>) -> io::Result<Vec<(u64, u64)>> {
        let in_data = if in_records.is_none() { self.map_in_data()? } else { None };
        let numbers = in_records.or(in_data.as_deref()).filter(|numbers| numbers.len().is_multiple_of(2));
        Ok(numbers.ok_or_else(no_map)?.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect())
    }

    /// A count and that many pairs of numbers, one number per line, padded to whole blocks.
    fn map_in_data(&mut self) -> io::Result<Option<Vec<u64>>> {
        let mut read = 0;
        let mut line = || -> io::Result<Option<u64>> {
            let mut digits = Vec::new();
            loop {
                let mut byte = [0];
                self.read_exact(&mut byte)?;
                read += 1;
                match byte[0] {
                    b'\n' => return Ok(decimal(&digits)),
                    byte if digits.len() < 20 => digits.push(byte),
                    _ => return Ok(None),
                }
            }
        };
        let Some(count) = line()?.filter(|count| *count <= SEGMENTS_MAX as u64) else { return Ok(None) };
        let mut numbers = Vec::new();
        for _ in 0..count * 2 {
            let Some(number) = line()? else { return Ok(None) };
            numbers.push(number);
        }
        let mut padding = vec![0; usize::next_multiple_of(read, BLOCK) - read];
        self.read_exact(&mut padding)?;
        Ok(Some(numbers))
    }
}

/// Reads until the buffer is full or the stream ends.
pub(super) fn fill(from: &mut dyn Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match from.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(filled)
}

fn wrong(what: &'static str) -> Error {
    Error::new(ErrorKind::InvalidData, what)
}

fn malformed() -> Error {
    wrong("malformed record")
}

fn no_map() -> Error {
    wrong("malformed map of a sparse file")
}

fn too_long() -> Error {
    wrong("records or a name of more than 1 MiB")
}

fn cut_short() -> Error {
    Error::new(ErrorKind::UnexpectedEof, "the archive is truncated")
}

fn until_zero(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// A number of a header: octal digits, or base 256 if the first bit is set.
fn number(field: &[u8]) -> io::Result<u64> {
    let Some(first) = field.first() else { return Ok(0) };
    if first & 0x80 != 0 {
        // negative numbers are times before 1970, in two's complement over the whole field
        let start = if *first == 0xFF { u64::MAX } else { 0 };
        return Ok(field.iter().enumerate().fold(start, |value, (place, byte)| {
            value << 8 | u64::from(if place == 0 && *first == 0x80 { 0 } else { *byte })
        }));
    }
    let text = until_zero(field).trim_ascii();
    text.iter().try_fold(0u64, |value, digit| match digit {
        b'0'..=b'7' => Ok(value << 3 | u64::from(digit - b'0')),
        _ => Err(wrong("invalid number in a header")),
    })
}

fn decimal(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Parses a time in a record: seconds with a fraction.
fn time(text: &[u8]) -> Option<Timestamp> {
    let text = std::str::from_utf8(text).ok()?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let seconds: i64 = whole.parse().ok()?;
    let digits: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    let nanos: u32 = digits.parse().ok()?;
    if whole.starts_with('-') && nanos > 0 {
        return Some(Timestamp { seconds: seconds.checked_sub(1)?, nanos: 1_000_000_000 - nanos });
    }
    Some(Timestamp { seconds, nanos })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_headers() {
        assert_eq!(number(b"0000644\0").unwrap(), 0o644);
        assert_eq!(number(b"   17 \0\0").unwrap(), 0o17);
        assert_eq!(number(b"\0\0\0\0").unwrap(), 0);
        assert_eq!(number(&[0x80, 0, 0, 0, 2, 0, 0, 0, 1]).unwrap(), 2 << 32 | 1);
        assert_eq!(number(&[0xFF; 12]).unwrap().cast_signed(), -1);
        assert!(number(b"12x").is_err());
    }

    #[test]
    fn fractions_of_seconds() {
        assert_eq!(time(b"12.5"), Some(Timestamp { seconds: 12, nanos: 500_000_000 }));
        assert_eq!(time(b"-1.25"), Some(Timestamp { seconds: -2, nanos: 750_000_000 }));
        assert_eq!(time(b"7"), Some(Timestamp { seconds: 7, nanos: 0 }));
        assert_eq!(time(b"x"), None);
    }

    /// The content of records, read from a member's data.
    fn records(bytes: &[u8]) -> io::Result<Records> {
        let mut records = Records::default();
        Reader::new(bytes).records(bytes.len() as u64, &mut records)?;
        Ok(records)
    }

    #[test]
    fn records_may_hold_newlines() {
        let read = records(b"9 a=1\n2\n\n10 path=b\n\0\0").unwrap();
        assert_eq!(read.values.get(&b"a"[..]), Some(&b"1\n2\n".to_vec()));
        assert_eq!(read.values.get(&b"path"[..]), Some(&b"b".to_vec()));
        let wrong =
            ["9 a=1\n", "x a=1\n", "6 a1b\n", "99999999999999999999 a=b\n", "1 a=b\n", "6 a=1", "5 a=1\n", "3 \n"];
        for wrong in wrong {
            assert!(records(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    /// A record, and a member that contains it.
    fn member_of(kind: u8, key: &str, value: &[u8]) -> Vec<u8> {
        let rest = key.len() + value.len() + 3;
        let len = (rest..).find(|len| len.to_string().len() + rest == *len).unwrap();
        let data = [format!("{len} {key}=").as_bytes(), value, b"\n"].concat();
        let mut member = header_of(kind, data.len());
        member.extend(data);
        member.resize(member.len().next_multiple_of(BLOCK), 0);
        member
    }

    fn header_of(kind: u8, size: usize) -> Vec<u8> {
        let mut header = vec![0; BLOCK];
        header[..4].copy_from_slice(b"file");
        header[100..108].copy_from_slice(b"0000644\0");
        header[124..136].copy_from_slice(format!("{size:011o}\0").as_bytes());
        header[156] = kind;
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum::<u32>() + 8 * u32::from(b' ');
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        header
    }

    /// Memory use is bounded: neither the records of one member in many headers nor global records exceed the limit,
    /// and global records are not copied for each member.
    #[test]
    fn records_of_many_headers_are_bounded_together() {
        let large = vec![b'x'; RECORDS_MAX / 4];
        for kind in [b'x', b'g'] {
            let headers = |count: usize| {
                let members = (0..count).map(|n| member_of(kind, &format!("key{n}"), &large));
                members.chain([header_of(b'0', 0), vec![0; BLOCK]]).collect::<Vec<_>>().concat()
            };
            assert!(Reader::new(&headers(3)[..]).next().unwrap().is_some());
            let error = Reader::new(&headers(4)[..]).next().unwrap_err();
            assert!(error.to_string().contains("more than 1 MiB"), "{error}");
            // a value that replaces another
            let again = [member_of(kind, "key", &large).repeat(9), header_of(b'0', 0)].concat();
            assert!(Reader::new(&again[..]).next().unwrap().is_some());
        }
        // each record counts its overhead
        let tiny: Vec<u8> = (0..20_000).flat_map(|n| format!("10 {n:05}=\n").into_bytes()).collect();
        assert!(records(&tiny[..10 * 10_000]).is_ok() && records(&tiny).is_err());
        for kind in [b'L', b'K'] {
            let error = Reader::new(&header_of(kind, RECORDS_MAX + 1)[..]).next().unwrap_err();
            assert!(error.to_string().contains("more than 1 MiB"), "{error}");
        }
        let archive = [member_of(b'g', "SCHILY.xattr.user.a", b"1"), header_of(b'0', 0)].concat();
        assert!(Reader::new(&archive[..]).next().is_err());
    }

    #[test]
    fn maps_in_records() {
        let first_form = b"23 GNU.sparse.offset=5\n25 GNU.sparse.numbytes=6\n".repeat(2);
        assert_eq!(records(&first_form).unwrap().map, Some(vec![5, 6, 5, 6]));
        assert_eq!(records(b"18 GNU.sparse.map=\n\0").map(|read| read.map).ok(), None);
        assert_eq!(records(b"19 GNU.sparse.map=\n\0").unwrap().map, Some(Vec::new()));
        assert!(records(b"22 GNU.sparse.map=5,x\n\0").is_err());
    }

    #[test]
    fn a_file_of_absurd_length() {
        let mut header = [0; BLOCK];
        header[..4].copy_from_slice(b"file");
        header[100..108].copy_from_slice(b"0000644\0");
        header[124..136].fill(0xFF);
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum::<u32>() + 8 * u32::from(b' ');
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        let error = Reader::new(&header[..]).next().unwrap_err();
        assert!(error.to_string().contains("longer than"), "{error}");
    }

    #[test]
    fn files_that_are_not_archives_are_refused() {
        assert!(Reader::new(&[7; 1024][..]).next().is_err());
        assert!(Reader::new(&[0; 1024][..]).next().unwrap().is_none());
        assert!(Reader::new(&[][..]).next().is_err());
        assert!(Reader::new(&[0; 100][..]).next().is_err());
    }
}
