//! Undo files: the content of a device before a change that is completely known, so that every byte can be restored.
//!
//! The file is complete and flushed before the first change is made. It has checksums of the content of every sector
//! before the change and of the possible contents during and after it, so that another device, or one that was changed
//! since, is distinguished from the right one in any state that an interrupted change can leave. Its format is in
//! FORMAT.md.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::ops::Range;
use std::path::Path;

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::{BlockDevice, Error, Result};

/// The first bytes of the file.
const MAGIC: &[u8; 8] = b"ExtUndo1";
/// The unit of comparison in bytes.
const SECTOR: usize = 512;
/// The maximum size of a record in bytes.
const RECORD: usize = 1 << 20;

/// A planned change: these bytes will be written there. Both ends are on sector boundaries.
#[derive(Debug, Clone)]
pub struct Planned {
    /// First byte on the device.
    pub offset: u64,
    /// The bytes that will be written.
    pub data: Vec<u8>,
}

fn failed(path: &Path) -> impl Fn(io::Error) -> Error + '_ {
    move |source| Error::Open { device: format!("the undo file '{}'", path.display()), source: with_reason(source) }
}

/// The error with its reason as a phrase, if it is a common one.
fn with_reason(error: io::Error) -> io::Error {
    let why = match error.kind() {
        _ if error.get_ref().is_some() => return error, // it already has one
        io::ErrorKind::AlreadyExists => "it already exists, and is not overwritten: specify a new file",
        io::ErrorKind::NotFound => "no such file or directory",
        io::ErrorKind::PermissionDenied => "permission denied",
        _ => return error,
    };
    io::Error::new(error.kind(), why)
}

/// Writes a new undo file for changes that are about to be made to `device`. A range may be changed more than once.
/// When this returns, the file is durable.
///
/// # Errors
/// [`Error::Open`] with the file's name if it already exists or cannot be written; those of the device.
pub fn record(path: &Path, device: &dyn BlockDevice, changes: impl IntoIterator<Item = Result<Planned>>) -> Result<()> {
    let failed = failed(path);
    let file = OpenOptions::new().write(true).create_new(true).open(path).map_err(&failed)?;
    let written = write(file, device, changes, &failed);
    if written.is_err() {
        // an incomplete file restores nothing, and its name would be refused when the repair is repeated
        let _ = fs::remove_file(path);
    }
    written
}

/// Writes the content of an undo file, and makes it durable.
fn write(
    file: File,
    device: &dyn BlockDevice,
    changes: impl IntoIterator<Item = Result<Planned>>,
    failed: impl Fn(io::Error) -> Error,
) -> Result<()> {
    let mut out = Summed { inner: BufWriter::new(file), hash: Xxh3::new() };
    out.put(MAGIC).map_err(&failed)?;
    out.put(&device.geometry().len.to_le_bytes()).map_err(&failed)?;
    let mut before = Vec::new();
    for change in changes {
        let change = change?;
        for (n, data) in (0u64..).zip(change.data.chunks(RECORD)) {
            let offset = change.offset + n * RECORD as u64;
            before.resize(data.len(), 0);
            device.read(offset, &mut before)?;
            out.put(&offset.to_le_bytes()).map_err(&failed)?;
            out.put(&(data.len() as u64).to_le_bytes()).map_err(&failed)?;
            for sector in data.chunks(SECTOR) {
                out.put(&xxh3_64(sector).to_le_bytes()).map_err(&failed)?;
            }
            out.put(&before).map_err(&failed)?;
        }
    }
    // a record of no bytes is the end of the file
    out.put(&[0; 16]).map_err(&failed)?;
    let sum = out.hash.digest();
    out.inner.write_all(&sum.to_le_bytes()).map_err(&failed)?;
    let file = out.inner.into_inner().map_err(|e| failed(e.into_error()))?;
    file.sync_all().map_err(&failed)
}

struct Summed<W> {
    inner: W,
    hash: Xxh3,
}

impl<W: Write> Summed<W> {
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hash.update(bytes);
        self.inner.write_all(bytes)
    }
}

/// A record that was read.
struct Record {
    offset: u64,
    /// The checksum of the planned content of each sector.
    planned: Vec<u64>,
    before: Vec<u8>,
}

impl Record {
    /// The parts of the old content before and after a range of the device.
    fn outside(&self, range: &Range<u64>) -> [(u64, &[u8]); 2] {
        let within = |at: u64| at.saturating_sub(self.offset).min(self.before.len() as u64) as usize;
        let (start, end) = (within(range.start), within(range.end));
        let ((first, _), (_, last)) = (self.before.split_at(start), self.before.split_at(end));
        [(self.offset, first), (self.offset + end as u64, last)]
    }
}

/// A mark on a volume that is partly restored, so that other programs do not treat it as intact.
pub trait Mark {
    /// The bytes of the device that contain the mark; both ends are on sector boundaries.
    fn place(&self) -> Range<u64>;

    /// The content of the place with the mark; `None` where no program treats a volume with this content as intact.
    fn marked(&self, content: &[u8]) -> Option<Vec<u8>>;

    /// The contents from which [`marked`](Self::marked) may have made this one, also where only some of its sectors
    /// were written, and where sectors after the first were restored since. May include others: they are compared with
    /// the undo file.
    fn unmarked(&self, content: &[u8]) -> Vec<Vec<u8>>;
}

/// Restores everything that an undo file of `device` contains, and flushes it; returns the number of bytes. Can be
/// repeated after an interruption.
///
/// # Errors
/// [`Error::Open`] with the file's name if it cannot be read or is not a complete undo file, or if the device is
/// another one or was changed since; nothing is written then. Those of the device.
pub fn restore(path: &Path, device: &dyn BlockDevice) -> Result<u64> {
    restore_from(path, device, None)
}

/// As [`restore`], with a mark on the volume from before the first other write until everything else is restored. There
/// is no mark where the file does not contain all of its place, or nothing else has to be restored.
///
/// # Errors
/// Those of [`restore`].
pub fn restore_marked(path: &Path, device: &dyn BlockDevice, mark: &dyn Mark) -> Result<u64> {
    restore_from(path, device, Some(mark))
}

fn restore_from(path: &Path, device: &dyn BlockDevice, mark: Option<&dyn Mark>) -> Result<u64> {
    let refuse = |why: &str| failed(path)(io::Error::new(io::ErrorKind::InvalidData, why));
    let mark = mark.filter(|mark| mark.place().end <= device.geometry().len);
    let mut stated = Stated::by(path, device, mark.map_or(0..0, |mark| mark.place()))?;
    let Some(differs) = stated.compare(device, mark)? else {
        return Err(refuse("it belongs to another device, or the device has changed since; nothing was restored"));
    };
    let marked = mark.filter(|_| differs).and_then(|mark| {
        let marked = mark.marked(&stated.current)?;
        stated.identifies(mark, &marked).then_some(marked)
    });
    if let Some(marked) = marked {
        device.write(stated.place.start, &marked)?;
        device.flush()?;
        stated.current = marked;
    }
    let mut total = 0;
    read(path, device, |record| {
        total += record.before.len() as u64;
        for (offset, bytes) in record.outside(&stated.place) {
            if !bytes.is_empty() {
                device.write(offset, bytes)?;
            }
        }
        Ok(())
    })?;
    device.flush()?;
    stated.restore_place(device)?;
    Ok(total)
}

/// The contents of a device that an undo file states.
struct Stated {
    /// The checksums of the possible contents of each sector; the first is that of the content before the change.
    sectors: HashMap<u64, Vec<u64>>,
    /// The place of the mark; empty without one.
    place: Range<u64>,
    /// The content of the place on the device.
    current: Vec<u8>,
    /// The content of the place before the change.
    before: Vec<u8>,
}

impl Stated {
    fn by(path: &Path, device: &dyn BlockDevice, place: Range<u64>) -> Result<Self> {
        let mut current = vec![0; (place.end - place.start) as usize];
        device.read(place.start, &mut current)?;
        let mut stated = Self { sectors: HashMap::new(), place, before: current.clone(), current };
        read(path, device, |record| {
            stated.add(&record);
            Ok(())
        })?;
        Ok(stated)
    }

    fn add(&mut self, record: &Record) {
        let sectors = record.before.chunks(SECTOR).zip(&record.planned);
        for (n, (before, planned)) in (0u64..).zip(sectors) {
            let offset = record.offset + n * SECTOR as u64;
            self.sectors.entry(offset).or_default().extend([xxh3_64(before), *planned]);
            if self.place.contains(&offset) {
                let at = (offset - self.place.start) as usize;
                if let Some(into) = self.before.get_mut(at..at + SECTOR) {
                    into.copy_from_slice(before);
                }
            }
        }
    }

    /// Compares the device with the file: whether sectors outside the place have to be restored. `None` where a sector
    /// has none of the stated contents.
    fn compare(&self, device: &dyn BlockDevice, mark: Option<&dyn Mark>) -> Result<Option<bool>> {
        let mut sector = [0; SECTOR];
        let mut sectors: Vec<_> = self.sectors.iter().collect();
        sectors.sort_unstable();
        let (mut differs, mut unknown) = (false, false);
        for (offset, sums) in sectors {
            device.read(*offset, &mut sector)?;
            let sum = xxh3_64(&sector);
            match (sums.contains(&sum), self.place.contains(offset)) {
                (true, true) => {}
                (true, false) => differs |= sums.first() != Some(&sum),
                (false, true) => unknown = true,
                (false, false) => return Ok(None),
            }
        }
        let is_marked = || mark.is_some_and(|mark| self.identifies(mark, &self.current));
        Ok((!unknown || is_marked()).then_some(differs))
    }

    /// Whether each sector of this content of the place is a stated one.
    fn contains(&self, content: &[u8]) -> bool {
        (0u64..).zip(content.chunks(SECTOR)).all(|(n, sector)| {
            let sums = self.sectors.get(&(self.place.start + n * SECTOR as u64));
            sums.is_some_and(|sums| sums.contains(&xxh3_64(sector)))
        })
    }

    /// Whether this content of the place is a stated one, with or without the mark.
    fn identifies(&self, mark: &dyn Mark, content: &[u8]) -> bool {
        self.contains(content) || mark.unmarked(content).iter().any(|content| self.contains(content))
    }

    /// Restores the place, last of all, in one write.
    fn restore_place(&self, device: &dyn BlockDevice) -> Result<()> {
        if self.before == self.current {
            return Ok(());
        }
        if self.contains(&self.current) {
            device.write(self.place.start, &self.before)?;
            return device.flush();
        }
        // the file does not state the mark, so its later sectors can only be identified together with the first one
        for (n, sector) in self.before.chunks(SECTOR).enumerate().rev() {
            device.write(self.place.start + (n * SECTOR) as u64, sector)?;
            device.flush()?;
        }
        Ok(())
    }
}

/// Reads an undo file to its end; `each` is called with records before the checksum of the file is verified.
fn read(path: &Path, device: &dyn BlockDevice, mut each: impl FnMut(Record) -> Result<()>) -> Result<()> {
    let failed = failed(path);
    let refuse = |why: &str| failed(io::Error::new(io::ErrorKind::InvalidData, why));
    let torn = |error: io::Error| match error.kind() {
        io::ErrorKind::UnexpectedEof => refuse("it is empty or incomplete: nothing was repaired with it"),
        _ => failed(error),
    };
    // opening a pipe without a writer would never return
    if !fs::metadata(path).map_err(&failed)?.is_file() {
        return Err(refuse("it is not a regular file"));
    }
    let file = File::open(path).map_err(&failed)?;
    let mut input = BufReader::new(file);
    let mut hash = Xxh3::new();
    let mut take = |len: usize| -> Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        input.read_exact(&mut bytes).map_err(torn)?;
        hash.update(&bytes);
        Ok(bytes)
    };
    let number = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
    if take(MAGIC.len())? != MAGIC {
        return Err(refuse("it is not an undo file of this program"));
    }
    let len = device.geometry().len;
    if number(&take(8)?) != len {
        return Err(refuse("it belongs to another device, with another size; nothing was restored"));
    }
    loop {
        let (offset, size) = (number(&take(8)?), number(&take(8)?));
        if size == 0 {
            break;
        }
        let whole = size <= RECORD as u64 && [size, offset].iter().all(|n| n.is_multiple_of(SECTOR as u64));
        if !whole || offset.checked_add(size).is_none_or(|end| end > len) {
            return Err(refuse("it is damaged"));
        }
        // fits: at most `RECORD`
        let size = size as usize;
        let planned = take(size / SECTOR * 8)?.chunks_exact(8).map(number).collect();
        each(Record { offset, planned, before: take(size)? })?;
    }
    let sum = hash.digest();
    let mut stored = [0; 8];
    input.read_exact(&mut stored).map_err(torn)?;
    if u64::from_le_bytes(stored) != sum {
        return Err(refuse("it is damaged: its checksum does not match"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDevice;

    /// A complete file whose only record does not begin at a sector boundary.
    #[test]
    fn records_lie_on_sectors_and_files_are_files() {
        let folder = tempfile::tempdir().unwrap();
        let (path, device) = (folder.path().join("undo"), device());
        let refused = |path: &Path| restore(path, &device).unwrap_err().to_string();
        for (offset, says) in [(512u64, "another device, or"), (256, "damaged")] {
            let mut file =
                [&MAGIC[..], &65_536u64.to_le_bytes(), &offset.to_le_bytes(), &512u64.to_le_bytes()].concat();
            file.extend(xxh3_64(&[7; SECTOR]).to_le_bytes());
            file.extend([9; SECTOR]);
            file.extend([0; 16]);
            let sum = xxh3_64(&file);
            file.extend(sum.to_le_bytes());
            fs::write(&path, file).unwrap();
            let said = refused(&path);
            assert!(said.contains(says), "{offset}: {said}");
        }
        assert!(refused(Path::new("/dev/null")).contains("not a regular file"));
    }

    fn device() -> MemoryDevice {
        MemoryDevice::from_vec((0..65536u32).map(|n| (n >> 7) as u8).collect())
    }

    fn bytes(device: &MemoryDevice) -> Vec<u8> {
        let mut bytes = vec![0; 65536];
        device.read(0, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn puts_every_byte_back_from_any_state() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("undo");
        let device = device();
        let original = bytes(&device);
        let (first, second, twice) = (vec![1; 4096], vec![2; 512], vec![3; 512]);
        let changes = [
            Planned { offset: 8192, data: first },
            Planned { offset: 1024, data: second },
            Planned { offset: 1024, data: twice },
        ];
        record(&path, &device, changes.iter().cloned().map(Ok)).unwrap();
        assert!(matches!(record(&path, &device, []), Err(Error::Open { .. })), "never overwrites a file");
        for made in 0..=3 {
            for change in changes.iter().take(made) {
                device.write(change.offset, &change.data).unwrap();
            }
            // torn by sectors
            device.write(8192, &original[8192..8192 + 512]).unwrap();
            assert_eq!(restore(&path, &device).unwrap(), 4096 + 512 + 512);
            assert_eq!(bytes(&device), original);
        }
    }

    #[test]
    fn refuses_what_is_not_its_device() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("undo");
        let device = device();
        record(&path, &device, [Ok(Planned { offset: 4096, data: vec![9; 512] })]).unwrap();
        let says = |path: &Path, device: &MemoryDevice| restore(path, device).unwrap_err().to_string();
        assert!(says(&path, &MemoryDevice::from_vec(vec![0; 65536])).contains("another device"));
        assert!(says(&path, &MemoryDevice::from_vec(vec![0; 512])).contains("another size"));
        device.write(4100, &[8]).unwrap();
        let before = bytes(&device);
        assert!(says(&path, &device).contains("changed since"));
        assert_eq!(bytes(&device), before);
        let whole = fs::read(&path).unwrap();
        for cut in [0, 7, 20, whole.len() - 1] {
            fs::write(&path, &whole[..cut]).unwrap();
            assert!(says(&path, &device).contains("incomplete"), "{cut}");
        }
        let mut damaged = whole;
        *damaged.last_mut().unwrap() ^= 1;
        fs::write(&path, damaged).unwrap();
        assert!(says(&path, &device).contains("damaged"));
    }

    /// The same name can be used again.
    #[test]
    fn a_file_that_could_not_be_completed_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let (path, device) = (folder.path().join("undo"), device());
        let change = |offset| Ok(Planned { offset, data: vec![9; 512] });
        record(&path, &device, [change(4096), change(1 << 40)]).unwrap_err();
        assert!(!path.exists());
        record(&path, &device, [change(4096)]).unwrap();
    }
}
