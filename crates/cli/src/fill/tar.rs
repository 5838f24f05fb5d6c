//! Reading tar archives: the forms of POSIX (ustar, pax) and of GNU tar.
//!
//! Written by hand because the records of pax archives hold binary values (attributes), and a library that splits them at
//! newlines loses names that stand behind such a value.

use fs::Timestamp;
use std::collections::HashMap;
use std::io::{self, Error, ErrorKind, Read};

/// Bytes in a block of an archive.
const BLOCK: usize = 512;
/// The records of one member, or a long name, may have so many bytes.
const RECORDS_MAX: u64 = 64 << 20;
/// More pieces than this the map of a sparse file may not have.
const PIECES_MAX: usize = 1 << 20;
/// The prefix of a record that holds an extended attribute.
const XATTR: &[u8] = b"SCHILY.xattr.";

/// What the records say, by their keys.
type Records = HashMap<Vec<u8>, Vec<u8>>;

/// One file of an archive. Its data follows in the [`Reader`].
#[derive(Debug)]
pub(super) struct Member {
    /// Type flag: `0` a file, `1` a hard link, `2` a symbolic link, `3` and `4` devices, `5` a directory, `6` a pipe.
    pub(super) kind: u8,
    pub(super) path: Vec<u8>,
    /// What a link leads to.
    pub(super) target: Vec<u8>,
    pub(super) mode: u16,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) atime: Timestamp,
    pub(super) mtime: Timestamp,
    pub(super) device: (u32, u32),
    /// Length of the file.
    pub(super) len: u64,
    /// Where the data goes, in order: offset and length.
    pub(super) pieces: Vec<(u64, u64)>,
    pub(super) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// It has an access control list as text, which names users of another machine.
    pub(super) has_acl_text: bool,
}

/// An archive that is read from its start to its end. Reading from it gives the data of the member that was given last.
pub(super) struct Reader<R> {
    from: R,
    /// Bytes of the member that were not read yet, and those that fill its last block.
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
    // its own field counts as blanks
    number(&block[148..156]).ok() == Some(outside + 8 * u64::from(b' '))
}

impl<R: Read> Reader<R> {
    pub(super) fn new(from: R) -> Self {
        Self { from, left: 0, padding: 0, global: Records::new() }
    }

    /// The next file; `None` at the end.
    pub(super) fn next(&mut self) -> io::Result<Option<Member>> {
        let mut records = self.global.clone();
        let (mut long_name, mut long_target) = (None, None);
        loop {
            let Some(header) = self.header()? else { return Ok(None) };
            let kind = header[156];
            let size = number(&header[124..136])?;
            match kind {
                b'x' | b'X' => parse_records(&self.special(size)?, &mut records)?,
                b'g' => {
                    let bytes = self.special(size)?;
                    parse_records(&bytes, &mut self.global)?;
                    parse_records(&bytes, &mut records)?;
                }
                b'L' => long_name = Some(until_zero(&self.special(size)?).to_vec()),
                b'K' => long_target = Some(until_zero(&self.special(size)?).to_vec()),
                _ => return self.member(&header, &records, long_name, long_target).map(Some),
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
        // an archive ends with blocks of zeroes: without them nobody knows what is missing
        if fill(&mut self.from, &mut header)? < BLOCK {
            return Err(cut_short());
        }
        if header.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        if !is_header(&header) {
            return Err(wrong("a header with a wrong checksum: no tar archive, or a damaged one"));
        }
        Ok(Some(header))
    }

    fn expect_data(&mut self, size: u64) -> io::Result<()> {
        if size > i64::MAX as u64 {
            return Err(wrong("a file longer than a file can be"));
        }
        self.left = size;
        self.padding = size.next_multiple_of(BLOCK as u64) - size;
        Ok(())
    }

    /// The data of a member that says something of the next one.
    fn special(&mut self, size: u64) -> io::Result<Vec<u8>> {
        if size > RECORDS_MAX {
            return Err(wrong("records or a name of absurd length"));
        }
        self.expect_data(size)?;
        let mut bytes = Vec::new();
        self.by_ref().read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn member(
        &mut self,
        header: &[u8; BLOCK],
        records: &Records,
        long_name: Option<Vec<u8>>,
        long_target: Option<Vec<u8>>,
    ) -> io::Result<Member> {
        let record = |name: &str| records.get(name.as_bytes());
        let count = |name: &str, plain: &[u8]| match record(name).map(|value| decimal(value)) {
            Some(Some(value)) => Ok(value),
            Some(None) => Err(wrong("a record that should be a number is none")),
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
            // the oldest form knows directories by their names
            0 | b'0' | b'7' if path.ends_with(b"/") => b'5',
            0 | b'7' => b'0',
            kind => kind,
        };
        let stored = if (b'1'..=b'6').contains(&kind) { 0 } else { count("size", &header[124..136])? };
        self.expect_data(stored)?;
        let (mut len, mut pieces) = (stored, vec![(0, stored)]);
        let real = record("GNU.sparse.realsize").or(record("GNU.sparse.size"));
        if kind == b'S' {
            (len, pieces) = self.old_sparse(header)?;
        } else if let Some(real) = real.and_then(|value| decimal(value)) {
            (len, pieces) = (real, self.sparse_map(records)?);
        }
        let seconds = number(&header[136..148])?.cast_signed();
        let mtime = record("mtime").and_then(|value| time(value)).unwrap_or(Timestamp { seconds, nanos: 0 });
        let mut xattrs: Vec<(Vec<u8>, Vec<u8>)> = records
            .iter()
            .filter_map(|(key, value)| Some((key.strip_prefix(XATTR)?.to_vec(), value.clone())))
            .collect();
        xattrs.sort_unstable();
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
            pieces,
            xattrs,
            has_acl_text: records.keys().any(|key| key.starts_with(b"SCHILY.acl.")),
        })
    }

    /// GNU's first form of sparse files: four pieces in the header, more in blocks behind it.
    fn old_sparse(&mut self, header: &[u8; BLOCK]) -> io::Result<(u64, Vec<(u64, u64)>)> {
        let len = number(&header[483..495])?;
        let mut pieces = Vec::new();
        let mut add = |fields: &[u8]| -> io::Result<()> {
            for piece in fields.chunks_exact(24).filter(|piece| piece[0] != 0) {
                pieces.push((number(&piece[..12])?, number(&piece[12..])?));
            }
            if pieces.len() > PIECES_MAX { Err(wrong("a sparse file of too many pieces")) } else { Ok(()) }
        };
        add(&header[386..482])?;
        let mut more = header[482] != 0;
        while more {
            let mut block = [0; BLOCK];
            self.from.read_exact(&mut block)?;
            add(&block[..504])?;
            more = block[504] != 0;
        }
        Ok((len, pieces))
    }

    /// The later forms, in records or at the start of the data.
    fn sparse_map(&mut self, records: &Records) -> io::Result<Vec<(u64, u64)>> {
        let numbers: Option<Vec<u64>> = match records.get(&b"GNU.sparse.map"[..]) {
            Some(map) if map.is_empty() => Some(Vec::new()),
            Some(map) => map.split(|byte| *byte == b',').map(decimal).collect(),
            None => self.map_in_data()?,
        };
        match numbers.filter(|numbers| numbers.len().is_multiple_of(2)) {
            Some(numbers) => Ok(numbers.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect()),
            None => Err(wrong("the map of a sparse file makes no sense")),
        }
    }

    /// A count and that many pairs of numbers, each in a line, padded to whole blocks.
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
        let Some(count) = line()?.filter(|count| *count <= PIECES_MAX as u64) else { return Ok(None) };
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

fn cut_short() -> Error {
    Error::new(ErrorKind::UnexpectedEof, "the archive is cut short")
}

fn until_zero(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// A number of a header: octal digits, or where the first bit is set a number of base 256.
fn number(field: &[u8]) -> io::Result<u64> {
    let Some(first) = field.first() else { return Ok(0) };
    if first & 0x80 != 0 {
        // negative ones are times before 1970, in the two's complement of the whole field
        let start = if *first == 0xFF { u64::MAX } else { 0 };
        return Ok(field.iter().enumerate().fold(start, |value, (place, byte)| {
            value << 8 | u64::from(if place == 0 && *first == 0x80 { 0 } else { *byte })
        }));
    }
    let text = until_zero(field).trim_ascii();
    text.iter().try_fold(0u64, |value, digit| match digit {
        b'0'..=b'7' => Ok(value << 3 | u64::from(digit - b'0')),
        _ => Err(wrong("a field that should be a number is none")),
    })
}

fn decimal(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Records have the form `LENGTH KEY=VALUE` and a newline, where LENGTH counts all of it.
fn parse_records(mut bytes: &[u8], into: &mut Records) -> io::Result<()> {
    let malformed = || wrong("a record that makes no sense");
    // the map of a sparse file in its first form is many records of the same keys
    let mut map: Vec<Vec<u8>> = Vec::new();
    while !until_zero(bytes).is_empty() {
        let space = bytes.iter().position(|byte| *byte == b' ').ok_or_else(malformed)?;
        let len = decimal(&bytes[..space]).and_then(|len| usize::try_from(len).ok()).ok_or_else(malformed)?;
        let record = bytes.get(space + 1..len).and_then(|rest| rest.strip_suffix(b"\n")).ok_or_else(malformed)?;
        let equals = record.iter().position(|byte| *byte == b'=').ok_or_else(malformed)?;
        let (key, value) = (&record[..equals], &record[equals + 1..]);
        if matches!(key, b"GNU.sparse.offset" | b"GNU.sparse.numbytes") {
            map.push(value.to_vec());
        }
        into.insert(key.to_vec(), value.to_vec());
        bytes = &bytes[len..];
    }
    if !map.is_empty() {
        into.insert(b"GNU.sparse.map".to_vec(), map.join(&b','));
    }
    Ok(())
}

/// Seconds with a fraction, as a record has them.
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

    #[test]
    fn records_may_hold_newlines() {
        let mut records = Records::new();
        parse_records(b"9 a=1\n2\n\n10 path=b\n\0\0", &mut records).unwrap();
        assert_eq!(records.get(&b"a"[..]), Some(&b"1\n2\n".to_vec()));
        assert_eq!(records.get(&b"path"[..]), Some(&b"b".to_vec()));
        for wrong in [&b"9 a=1\n"[..], b"x a=1\n", b"6 a1b\n", b"99999999999999999999 a=b\n", b"1 a=b\n"] {
            assert!(parse_records(wrong, &mut records).is_err());
        }
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
    fn what_is_no_archive_is_refused() {
        assert!(Reader::new(&[7; 1024][..]).next().is_err());
        assert!(Reader::new(&[0; 1024][..]).next().unwrap().is_none());
        assert!(Reader::new(&[][..]).next().is_err());
        assert!(Reader::new(&[0; 100][..]).next().is_err());
    }
}
