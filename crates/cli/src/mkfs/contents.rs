//! The source of `-d`, examined before anything is written to the device.

use crate::copy_in::is_header;
use crate::error_report::{Failure, Result, without_errno};
use check::render::escape;
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

/// Maximum length in bytes of an archive without files: tar(1) pads up to 10 KiB.
const NOTHING: u64 = 64 << 10;

/// Magic numbers of compressed files, the program that compresses them, and the command that decompresses to standard
/// output.
const COMPRESSED: [(&[u8], &str, &str); 4] = [
    (b"\x1F\x8B", "gzip", "zcat"),
    (b"\xFD7zXZ\0", "xz", "xzcat"),
    (b"\x28\xB5\x2F\xFD", "zstd", "zstdcat"),
    (b"BZh", "bzip2", "bzcat"),
];

/// The source of -d: readable, and of the right kind as far as its beginning shows.
pub(super) enum Contents<'a> {
    Folder(&'a Path),
    StandardInput,
    Archive(&'a Path, File),
}

impl<'a> Contents<'a> {
    pub(super) fn open(from: &'a Path, device: &Path) -> Result<Self> {
        let name = escape(from.as_os_str().as_bytes());
        let unreadable = |e: io::Error| Failure::Message(format!("{name}: {}", without_errno(&e.to_string())));
        if from == Path::new("-") {
            return Ok(Self::StandardInput);
        }
        let found = from.metadata().map_err(unreadable)?;
        if found.is_dir() {
            std::fs::read_dir(from).map_err(unreadable)?;
            return Ok(Self::Folder(from));
        }
        let number = |metadata: &Metadata| (metadata.dev(), metadata.ino());
        if device.metadata().is_ok_and(|device| number(&device) == number(&found)) {
            return Err(Failure::Message(format!("{name}: -d names the file to be overwritten")));
        }
        let archive = File::open(from).map_err(unreadable)?;
        // a pipe can be read only once, after the volume exists
        if found.is_file()
            && let Some(why) = objection(&archive, found.len()).map_err(unreadable)?
        {
            let why = why.replace("FILE", &name);
            return Err(Failure::Message(format!("{name}: {why}")));
        }
        Ok(Self::Archive(from, archive))
    }
}

/// The reason why a file cannot be a tar archive.
fn objection(archive: &File, len: u64) -> io::Result<Option<String>> {
    let mut first = [0; 512];
    let at_most = usize::try_from(len).map_or(first.len(), |len| len.min(first.len()));
    archive.read_exact_at(&mut first[..at_most], 0)?;
    if let Some((_, by, with)) = COMPRESSED.iter().find(|(mark, ..)| first.starts_with(mark)) {
        return Ok(Some(format!("{by}-compressed: decompress it first (`{with} FILE | extant mkfs -d - …`)")));
    }
    if is_header(&first) {
        return Ok(None);
    }
    if len < 512 {
        return Ok(Some("too short for a tar archive".to_owned()));
    }
    // an archive without files is a short run of zeroes
    let mut all = Vec::new();
    let nothing = len <= NOTHING && archive.try_clone()?.take(NOTHING).read_to_end(&mut all).is_ok();
    io::Seek::rewind(&mut &*archive)?;
    let nothing = nothing && all.iter().all(|byte| *byte == 0);
    Ok((!nothing).then(|| "not a tar archive: it does not begin with a header".to_owned()))
}
