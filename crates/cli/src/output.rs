//! Output shared by all commands: names, sizes, times, modes, JSON.
//!
//! Names come from the volume and may contain any bytes. In text they are escaped ([`check::render::escape`]); in JSON
//! they are strings, and a name that is not UTF-8 has a second field, whose key ends in `_bytes`, with its bytes in
//! hexadecimal.

use crate::error_report::{Result, recorded, warnings};
use fs::{FileKind, Timestamp};
use jiff::tz::TimeZone;
use serde::ser::{SerializeMap, SerializeSeq};
use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};
use std::cell::Cell;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::marker::PhantomData;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};

/// Standard output without Rust's line buffer.
///
/// # Errors
/// Fails if standard output is closed.
pub(crate) fn raw_stdout() -> io::Result<File> {
    Ok(File::from(io::stdout().as_fd().try_clone_to_owned()?))
}

/// Standard output for text. The caller must flush it.
pub(crate) fn stdout() -> io::Result<BufWriter<File>> {
    Ok(BufWriter::with_capacity(1 << 16, raw_stdout()?))
}

/// Whether JSON output has begun.
static JSON_BEGUN: AtomicBool = AtomicBool::new(false);

/// Prints `value` as JSON in several lines.
pub(crate) fn print_json(value: &impl Serialize) -> Result<()> {
    JSON_BEGUN.store(true, Ordering::Relaxed);
    let mut out = stdout()?;
    serde_json::to_writer_pretty(&mut out, value).map_err(io::Error::from)?;
    out.write_all(b"\n")?;
    Ok(out.flush()?)
}

/// Prints `value`, an object, as [`print_json`] does. If errors of single files were reported before its end, it has
/// three more members: `error`, a sentence; `errors`, a list with `path` and `reason`; `exit`, the exit status. If
/// warnings were printed, they are in `warnings`.
pub(crate) fn print_json_object<T: Serialize>(value: &T) -> Result<()> {
    print_json(&WithErrors { value, errors: Errors })
}

#[derive(Serialize)]
struct WithErrors<'a, T> {
    #[serde(flatten)]
    value: &'a T,
    /// Behind the value, which may be generated while it is printed.
    #[serde(flatten)]
    errors: Errors,
}

/// The errors that were reported until this is serialised.
struct Errors;

/// An error of a single file, or of the whole command.
#[derive(Serialize)]
struct OneError<'a> {
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    path: Option<Text>,
    reason: &'a str,
}

impl Serialize for Errors {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let recorded = recorded();
        let mut members = serializer.serialize_map(None)?;
        if recorded.count > 0 {
            let error = match recorded.count {
                1 => recorded.first.clone(),
                count => format!("{count} errors; the first: {}", recorded.first),
            };
            let mut errors = Vec::new();
            for (path, reason) in &recorded.listed {
                errors.push(OneError { path: path.as_deref().map(|path| Text::new("path", path)), reason });
            }
            members.serialize_entry("error", &error)?;
            members.serialize_entry("errors", &errors)?;
            members.serialize_entry("exit", &1)?;
        }
        let warnings = warnings();
        if !warnings.is_empty() {
            members.serialize_entry("warnings", &warnings)?;
        }
        members.end()
    }
}

/// Whether an error can still be printed as JSON: there was no output before it.
pub(crate) fn json_is_empty() -> bool {
    !JSON_BEGUN.load(Ordering::Relaxed)
}

/// Prints the error that ends a command as JSON, instead of its output. Write errors are ignored.
pub(crate) fn print_json_error(sentence: &str, exit: u8) {
    if json_is_empty() {
        let _ = print_json(&json!({ "error": sentence, "exit": exit }));
    }
}

/// A JSON list that is written while it is generated, so that it is never completely in memory: each entry of a deep
/// tree has a path as long as the tree is deep.
pub(crate) struct Stream<F, T>(Cell<Option<F>>, PhantomData<fn(T)>);

/// Callback for the entries of a [`Stream`].
pub(crate) type Taker<'a, T> = &'a mut dyn FnMut(T) -> io::Result<()>;

impl<F: FnOnce(Taker<'_, T>) -> io::Result<()>, T> Stream<F, T> {
    /// `make` generates the entries; it is called once.
    pub(crate) fn new(make: F) -> Self {
        Self(Cell::new(Some(make)), PhantomData)
    }
}

impl<F: FnOnce(Taker<'_, T>) -> io::Result<()>, T: Serialize> Serialize for Stream<F, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(None)?;
        let mut failed = None;
        if let Some(make) = self.0.take() {
            let made = make(&mut |entry| {
                list.serialize_element(&entry).map_err(|e| {
                    failed = Some(e);
                    io::ErrorKind::Other.into()
                })
            });
            match (made, failed) {
                (_, Some(e)) => return Err(e),
                (Err(e), None) => return Err(serde::ser::Error::custom(e)),
                (Ok(()), None) => {}
            }
        }
        list.end()
    }
}

/// A size in the largest suitable unit: `512 bytes`, `4 KiB`, `1.5 GiB`.
pub(crate) fn human(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return if bytes == 1 { "1 byte".into() } else { format!("{bytes} bytes") };
    }
    // the unit with a value of 1 or more, unless tenths round it up to 1 024
    let mut power = (bytes.ilog2() / 10) as usize;
    let tenths = |power: usize| {
        let unit = 1u128 << (10 * power);
        (u128::from(bytes) * 10 + unit / 2) / unit
    };
    if tenths(power) >= 10_240 && power < UNITS.len() {
        power += 1;
    }
    let (number, unit) = (tenths(power), UNITS[power - 1]);
    if number % 10 == 0 { format!("{} {unit}", number / 10) } else { format!("{}.{} {unit}", number / 10, number % 10) }
}

/// A count with its noun, in the plural unless the count is 1.
pub(crate) fn counted(count: u64, one: &str, more: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {more}") }
}

/// A local time for text output.
pub(crate) fn local_time(time: Timestamp, format: &str) -> String {
    match moment(time) {
        Some(moment) => moment.to_zoned(TimeZone::system()).strftime(format).to_string(),
        None => beyond_calendars(time),
    }
}

/// Time format with nanoseconds.
pub(crate) const FULL_TIME: &str = "%Y-%m-%d %H:%M:%S.%9f %z";
/// Time format with seconds, for times that the volume stores in seconds.
pub(crate) const SECONDS: &str = "%Y-%m-%d %H:%M:%S %z";
/// Time format with minutes.
pub(crate) const MINUTES: &str = "%Y-%m-%d %H:%M";

/// A time in JSON: RFC 3339, UTC, nine decimal places.
pub(crate) fn utc_time(time: Timestamp) -> String {
    moment(time).map_or_else(|| beyond_calendars(time), |moment| format!("{moment:.9}"))
}

fn moment(time: Timestamp) -> Option<jiff::Timestamp> {
    // nanoseconds on a damaged volume may have any value of 30 bits
    let nanos = i32::try_from(time.nanos).ok().filter(|nanos| *nanos < 1_000_000_000)?;
    jiff::Timestamp::new(time.seconds, nanos).ok()
}

/// A time outside the range of the calendar.
fn beyond_calendars(time: Timestamp) -> String {
    format!("@{}.{:09}", time.seconds, time.nanos)
}

/// The type of a file as a word, for JSON.
pub(crate) fn kind_word(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Regular => "file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symlink",
        FileKind::CharDevice => "character-device",
        FileKind::BlockDevice => "block-device",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
    }
}

/// The ten letters of the mode in `ls -l`.
pub(crate) fn mode_letters(kind: FileKind, mode: u16) -> String {
    let mut out = String::with_capacity(10);
    out.push(match kind {
        FileKind::Regular => '-',
        FileKind::Directory => 'd',
        FileKind::Symlink => 'l',
        FileKind::CharDevice => 'c',
        FileKind::BlockDevice => 'b',
        FileKind::Fifo => 'p',
        FileKind::Socket => 's',
    });
    for (shift, special, with_x, without_x) in [(6, 0o4000, 's', 'S'), (3, 0o2000, 's', 'S'), (0, 0o1000, 't', 'T')] {
        let bits = mode >> shift;
        out.push(if bits & 4 != 0 { 'r' } else { '-' });
        out.push(if bits & 2 != 0 { 'w' } else { '-' });
        out.push(match (mode & special != 0, bits & 1 != 0) {
            (true, true) => with_x,
            (true, false) => without_x,
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    out
}

/// Bytes in hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut out, byte| {
        // writing to a String cannot fail
        let _ = write!(out, "{byte:02x}");
        out
    })
}

/// Bytes from a volume as one or two flattened fields of a JSON object.
#[derive(Debug, Clone)]
pub(crate) struct Text {
    key: &'static str,
    bytes: Vec<u8>,
}

impl Text {
    pub(crate) fn new(key: &'static str, bytes: &[u8]) -> Self {
        Self { key, bytes: bytes.to_vec() }
    }
}

impl Serialize for Text {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let mut fields = Map::new();
        fields.insert(self.key.to_owned(), Value::from(String::from_utf8_lossy(&self.bytes)));
        if std::str::from_utf8(&self.bytes).is_err() {
            fields.insert(format!("{}_bytes", self.key), Value::from(hex(&self.bytes)));
        }
        fields.serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (bytes, text) in [
            (0, "0 bytes"),
            (1, "1 byte"),
            (1023, "1023 bytes"),
            (1024, "1 KiB"),
            (1536, "1.5 KiB"),
            ((1 << 20) - 1, "1 MiB"),
            (128 << 20, "128 MiB"),
            (3 << 39, "1.5 TiB"),
            (u64::MAX, "16 EiB"),
        ] {
            assert_eq!(human(bytes), text);
        }
    }

    #[test]
    fn modes() {
        assert_eq!(mode_letters(FileKind::Regular, 0o100_644), "-rw-r--r--");
        assert_eq!(mode_letters(FileKind::Directory, 0o1777), "drwxrwxrwt");
        assert_eq!(mode_letters(FileKind::Regular, 0o6711), "-rws--s--x");
        assert_eq!(mode_letters(FileKind::Fifo, 0o7000), "p--S--S--T");
    }

    #[test]
    fn times() {
        let at = |seconds, nanos| utc_time(Timestamp { seconds, nanos });
        assert_eq!(at(0, 0), "1970-01-01T00:00:00.000000000Z");
        assert_eq!(at(-1, 5), "1969-12-31T23:59:59.000000005Z");
        assert_eq!(at(15_032_385_535, 999_999_999), "2446-05-10T22:38:55.999999999Z");
        // possible only by damage, or with 40 bits of seconds
        assert_eq!(at(1 << 40, 0), "@1099511627776.000000000");
        assert_eq!(at(0, (1 << 30) - 1), "@0.1073741823");
        assert_eq!(local_time(Timestamp { seconds: 1 << 40, nanos: 0 }, MINUTES), "@1099511627776.000000000");
    }

    #[test]
    fn names_in_json() {
        let json = |bytes: &[u8]| serde_json::to_value(Text::new("name", bytes)).unwrap();
        assert_eq!(json("größe\n".as_bytes()), serde_json::json!({ "name": "größe\n" }));
        assert_eq!(json(b"a\xff"), serde_json::json!({ "name": "a\u{fffd}", "name_bytes": "61ff" }));
    }
}
