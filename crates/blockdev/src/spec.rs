//! DEVICE as specified by a user: a path, or a scheme for another kind of device.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::{BlockDevice, Error, FileDevice, MemoryDevice, OpenOptions, ReadOnly, Result};

/// A kind of device of a higher crate, which the caller of [`open_with`] supplies.
#[derive(Debug, Clone, Copy)]
pub struct Scheme {
    /// The prefix of the text that names a device of this kind.
    pub prefix: &'static str,
    meaning: Meaning,
}

/// The meaning of a scheme.
#[derive(Debug, Clone, Copy)]
enum Meaning {
    /// Devices, and a function for the underlying device in the text after the prefix.
    Devices { open: Opener, beneath: fn(&str) -> &str },
    /// Devices of this name that cannot be opened.
    Reserved(&'static str),
}

impl Scheme {
    /// A scheme with the function that opens its devices, and one for the underlying device in the text after the
    /// prefix.
    #[must_use]
    pub const fn new(prefix: &'static str, open: Opener, beneath: fn(&str) -> &str) -> Self {
        Self { prefix, meaning: Meaning::Devices { open, beneath } }
    }

    /// A scheme whose devices, described as a phrase, the caller cannot open: paths do not begin with it either.
    #[must_use]
    pub const fn reserved(prefix: &'static str, devices: &'static str) -> Self {
        Self { prefix, meaning: Meaning::Reserved(devices) }
    }
}

/// Opens a device: from the text after the prefix, the options, and the table for underlying devices.
pub type Opener = fn(&str, OpenOptions, &[Scheme]) -> Result<Arc<dyn BlockDevice>>;

/// Opens the device `spec` without schemes of higher layers: [`open_with`] with an empty table.
///
/// # Errors
/// Those of [`open_with`].
pub fn open(spec: impl AsRef<OsStr>, options: OpenOptions) -> Result<Arc<dyn BlockDevice>> {
    open_with(spec, options, &[])
}

/// Opens the device `spec`:
///
/// - a device of a scheme of the table, at any depth: with `a:` and `b:` in it `a:b:F` as well as `b:a:F`;
/// - the path of a regular file or a block device;
/// - `mem:SIZE`, a device of zero bytes in memory.
///
/// A file whose name begins like a scheme is specified by a path that does not: `./mem:1`. Anything that is not UTF-8
/// is a path.
///
/// # Errors
/// [`Error::Open`] with the device's name and the reason, [`Error::Size`] for an invalid SIZE, and those of the table.
/// Devices of a reserved scheme are refused with the kind `Unsupported`.
pub fn open_with(spec: impl AsRef<OsStr>, options: OpenOptions, schemes: &[Scheme]) -> Result<Arc<dyn BlockDevice>> {
    let spec = spec.as_ref();
    match spec.to_str() {
        Some(spec) => open_text(spec, options, schemes),
        None => Ok(Arc::new(FileDevice::open(Path::new(spec), options)?)),
    }
}

/// The path of the regular file or block device `spec`, or of the one beneath it; `None` for `mem:` and others without
/// one. It need not exist.
pub fn path_beneath<'a>(spec: &'a OsStr, schemes: &[Scheme]) -> Option<&'a Path> {
    let Some(mut text) = spec.to_str() else { return Some(Path::new(spec)) };
    while let Some((scheme, rest)) = scheme_of(text, schemes) {
        match scheme.meaning {
            Meaning::Devices { beneath, .. } => text = beneath(rest),
            Meaning::Reserved(_) => return None,
        }
    }
    (!text.starts_with("mem:")).then_some(Path::new(text))
}

/// The scheme that a text begins with, and the rest of the text.
fn scheme_of<'s, 't>(text: &'t str, schemes: &'s [Scheme]) -> Option<(&'s Scheme, &'t str)> {
    schemes.iter().find_map(|scheme| Some((scheme, text.strip_prefix(scheme.prefix)?)))
}

fn open_text(spec: &str, options: OpenOptions, schemes: &[Scheme]) -> Result<Arc<dyn BlockDevice>> {
    if let Some((scheme, rest)) = scheme_of(spec, schemes) {
        return match scheme.meaning {
            Meaning::Devices { open, .. } => open(rest, options, schemes),
            Meaning::Reserved(devices) => {
                let why = format!("{devices} are not available in this version");
                let source = io::Error::new(io::ErrorKind::Unsupported, why);
                Err(Error::Open { device: spec.to_owned(), source })
            }
        };
    }
    match spec.strip_prefix("mem:") {
        Some(size) => {
            let device = MemoryDevice::zeroed(parse_size(size)?)?;
            Ok(if options.write { Arc::new(device) } else { Arc::new(ReadOnly::new(device)) })
        }
        None => Ok(Arc::new(FileDevice::open(Path::new(spec), options)?)),
    }
}

/// Parses a size in bytes: a decimal number, alone or followed by one of `K M G T P E` in either case, for the powers
/// of 1024; `KiB` and so on are accepted, too. `4096`, `64M` and `1GiB` are sizes.
///
/// # Errors
/// [`Error::Size`] for any other text, and for a size of 2^64 bytes or more.
pub fn parse_size(text: &str) -> Result<u64> {
    let wrong = || Error::Size(text.to_owned());
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let power = match unit.to_ascii_lowercase().as_str() {
        "" => 0,
        "k" | "kib" => 1,
        "m" | "mib" => 2,
        "g" | "gib" => 3,
        "t" | "tib" => 4,
        "p" | "pib" => 5,
        "e" | "eib" => 6,
        _ => return Err(wrong()),
    };
    let number: u64 = number.parse().map_err(|_| wrong())?;
    number.checked_mul(1 << (10 * power)).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("64M", 64 << 20),
            ("64m", 64 << 20),
            ("1G", 1 << 30),
            ("3KiB", 3072),
            ("2T", 2 << 40),
            ("7p", 7 << 50),
            ("15E", 15 << 60),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse_size(text).unwrap(), bytes, "{text}");
        }
        for text in
            ["", "M", "-1", "+1", " 1", "1 ", "1.5G", "64X", "1KB", "16E", "18446744073709551616", "0x10", "1Kk", "é"]
        {
            let message = parse_size(text).unwrap_err().to_string();
            assert!(message.starts_with(&format!("invalid size `{text}`")), "{message}");
        }
    }

    #[test]
    fn memory_devices() {
        let writable = OpenOptions { write: true, ..OpenOptions::default() };
        let device = open("mem:64K", writable).unwrap();
        assert_eq!(device.geometry().len, 65536);
        device.write(65535, &[1]).unwrap();
        assert!(open("mem:64K", OpenOptions::default()).unwrap().geometry().read_only);
        assert!(matches!(open("mem:lots", writable), Err(Error::Size(_))));
        assert!(matches!(open("mem:15E", writable), Err(Error::Open { .. })));
    }

    #[test]
    fn a_table_opens_what_lies_above_at_any_depth() {
        // a device that has half of the underlying bytes, nested twice
        fn half(rest: &str, options: OpenOptions, schemes: &[Scheme]) -> Result<Arc<dyn BlockDevice>> {
            let len = open_with(rest, options, schemes)?.geometry().len;
            Ok(Arc::new(MemoryDevice::zeroed(len / 2)?))
        }
        fn beneath(rest: &str) -> &str {
            rest
        }
        let table = [Scheme::new("half:", half, beneath), Scheme::reserved("far://", "devices elsewhere")];
        let len = |spec: &str| open_with(spec, OpenOptions::default(), &table).map(|device| device.geometry().len);
        assert_eq!(len("half:mem:1M").unwrap(), 512 << 10);
        assert_eq!(len("half:half:mem:4M").unwrap(), 1 << 20);
        assert!(matches!(len("half:mem:lots"), Err(Error::Size(_))));
        assert!(open("half:mem:1M", OpenOptions::default()).is_err(), "no such file");
        let path = |spec| path_beneath(OsStr::new(spec), &table);
        assert_eq!(path("half:half:mem:4M"), None);
        assert_eq!(path("half:half:/a/b"), Some(Path::new("/a/b")));
        assert_eq!(path("image"), Some(Path::new("image")));
        assert_eq!(path("half:far://bucket"), None);
    }

    #[test]
    fn reserved_schemes_are_refused_by_name() {
        let table = [Scheme::reserved("far://", "devices elsewhere"), Scheme::reserved("layer:", "layers")];
        for (spec, says) in [("far://bucket/x", "devices elsewhere are not"), ("layer:image", "layers are not")] {
            let Err(Error::Open { device, source }) = open_with(spec, OpenOptions::default(), &table) else {
                panic!("{spec} opened")
            };
            assert_eq!((device.as_str(), source.kind()), (spec, io::ErrorKind::Unsupported));
            assert_eq!(source.to_string(), format!("{says} available in this version"));
            // without the table it is the name of a file
            assert!(open(spec, OpenOptions::default()).is_err_and(|e| !e.to_string().contains("not available")));
        }
    }
}
