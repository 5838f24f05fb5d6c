//! DEVICE as a user writes it: a path, or a scheme that names another kind of device.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::model::{Model, Parameters};
use crate::{BlockDevice, Error, FileDevice, MemoryDevice, OpenOptions, ReadOnly, Result};

/// Schemes that the command line reserves for devices to come.
const LATER: [(&str, &str); 4] = [
    ("nbd://", "network block devices"),
    ("nbd+unix://", "network block devices"),
    ("s3://", "object stores"),
    ("kero:", "the block mapping layer"),
];

/// Opens the device that `spec` names:
///
/// - the path of a regular file or a block device;
/// - `mem:SIZE`, a device of zero bytes in memory;
/// - `model:KIND:SPEC`, the device that SPEC names, with a virtual clock: see [`open_model`].
///
/// A file whose name begins like a scheme is reached by a path that does not: `./mem:1`. What is no text is a path.
///
/// # Errors
/// [`Error::Open`] with the device's name and the reason, [`Error::Size`] for a wrong SIZE, [`Error::Parameters`] for
/// those of a model. `nbd://`, `nbd+unix://`, `s3://` and `kero:` are refused with the kind `Unsupported`.
pub fn open(spec: impl AsRef<OsStr>, options: OpenOptions) -> Result<Arc<dyn BlockDevice>> {
    let spec = spec.as_ref();
    match spec.to_str() {
        Some(spec) => open_text(spec, options),
        None => Ok(Arc::new(FileDevice::open(Path::new(spec), options)?)),
    }
}

fn open_text(spec: &str, options: OpenOptions) -> Result<Arc<dyn BlockDevice>> {
    if let Some((_, what)) = LATER.iter().find(|(scheme, _)| spec.starts_with(scheme)) {
        let source = io::Error::new(io::ErrorKind::Unsupported, format!("{what} are not available in this version"));
        return Err(Error::Open { device: spec.to_owned(), source });
    }
    if let Some(model) = open_model(spec, options)? {
        return Ok(Arc::new(model));
    }
    match spec.strip_prefix("mem:") {
        Some(size) => {
            let device = MemoryDevice::zeroed(parse_size(size)?)?;
            Ok(if options.write { Arc::new(device) } else { Arc::new(ReadOnly::new(device)) })
        }
        None => Ok(Arc::new(FileDevice::open(Path::new(spec), options)?)),
    }
}

/// Opens `model:KIND:SPEC`, the device that SPEC names as a [`Model`], whose clock the caller can read; `None` for what is
/// no model. KIND is `hdd`, `ssd`, or the path of a file of parameters in whose name is no colon; such a file that is
/// called `hdd` is reached as `./hdd`.
///
/// # Errors
/// Those of [`open`] for SPEC; [`Error::Open`] if there is no SPEC or the parameters cannot be read;
/// [`Error::Parameters`] if they are wrong, or describe a device that is shorter than what SPEC names.
pub fn open_model(spec: &str, options: OpenOptions) -> Result<Option<Model<Arc<dyn BlockDevice>>>> {
    let Some(rest) = spec.strip_prefix("model:") else { return Ok(None) };
    let (kind, below) = rest.split_once(':').ok_or_else(|| {
        let source = io::Error::new(io::ErrorKind::InvalidInput, "a model is written model:KIND:DEVICE");
        Error::Open { device: spec.to_owned(), source }
    })?;
    let parameters = Parameters::named(kind)?;
    Model::new(open(below, options)?, &parameters).map(Some)
}

/// Reads a size in bytes: a decimal number, alone or followed by one of `K M G T P E` in either case, which stand for
/// the powers of 1024; `KiB` and so on are taken too. `4096`, `64M` and `1GiB` are sizes.
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
            assert!(message.starts_with(&format!("`{text}` is not a size")), "{message}");
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
    fn models() {
        let writable = OpenOptions { write: true, ..OpenOptions::default() };
        assert!(open_model("mem:1M", writable).unwrap().is_none());
        for kind in ["hdd", "ssd"] {
            let model = open_model(&format!("model:{kind}:mem:1M"), writable).unwrap().unwrap();
            assert_eq!((model.geometry().len, model.clock().as_nanos()), (1 << 20, 0));
            model.write(4096, &[1; 4096]).unwrap();
            assert!(model.clock().as_nanos() > 0);
            assert!(open(format!("model:{kind}:mem:1M"), OpenOptions::default()).unwrap().geometry().read_only);
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "kind = disk\ncapacity = 1M\n").unwrap();
        let spec = |size| format!("model:{}:mem:{size}", file.path().display());
        assert_eq!(open(spec("1M"), writable).unwrap().geometry().len, 1 << 20);
        assert!(matches!(open(spec("2M"), writable), Err(Error::Parameters(_))));
        assert!(matches!(open("model:hdd", writable), Err(Error::Open { .. })));
        assert!(matches!(open("model:hdd:", writable), Err(Error::Open { .. })));
        assert!(matches!(open("model:tape:mem:1M", writable), Err(Error::Open { .. })));
        assert!(matches!(open("model:hdd:mem:lots", writable), Err(Error::Size(_))));
    }

    #[test]
    fn schemes_to_come_are_refused_by_name() {
        for spec in ["nbd://host/x", "nbd+unix:///x?socket=y", "s3://bucket/x", "kero:image"] {
            let Err(Error::Open { device, source }) = open(spec, OpenOptions::default()) else {
                panic!("{spec} opened")
            };
            assert_eq!((device.as_str(), source.kind()), (spec, io::ErrorKind::Unsupported));
            assert!(source.to_string().ends_with("not available in this version"), "{source}");
        }
    }
}
