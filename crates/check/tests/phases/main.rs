//! Phases 0 and 5 against e2fsck: each case corrupts one structure, states the problem that has to be found, and
//! compares the verdict with e2fsck's.

mod cancelled;
mod estimate;
mod fragments;
mod groups;
mod journal;
mod superblock;
mod system_inodes;

use blockdev::MemoryDevice;
use extant_check::report::{Report, exit};
use extant_check::table::Code;
use extant_check::{Options, Refusal, check};
use testkit::{Image, oracle::e2fsck, repair_checksums};

/// The report of the check on these bytes, or its refusal.
fn ours(bytes: &[u8]) -> Result<Report, Refusal> {
    check("volume", &MemoryDevice::from_vec(bytes.to_vec()), &Options::default(), &())
}

/// Bytes of a volume, and fields in them.
#[derive(Clone)]
struct Volume(Vec<u8>);

impl Volume {
    fn of(image: &Image) -> Self {
        Self(image.bytes())
    }

    fn put(&mut self, at: usize, value: &[u8]) {
        self.0[at..at + value.len()].copy_from_slice(value);
    }

    fn u16(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.0[at], self.0[at + 1]])
    }

    fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.0[at..at + 4].try_into().expect("four bytes"))
    }

    /// Sets bits of a word.
    fn set_u32(&mut self, at: usize, bits: u32) {
        let value = self.u32(at) | bits;
        self.put(at, &value.to_le_bytes());
    }

    /// Clears bits of a word.
    fn clear_u32(&mut self, at: usize, bits: u32) {
        let value = self.u32(at) & !bits;
        self.put(at, &value.to_le_bytes());
    }
}

/// The expected result of a case.
#[derive(Debug, Clone, Copy)]
enum Finds {
    /// No problem.
    Nothing,
    /// This problem, perhaps among others.
    This(Code),
    /// The refusal: there is nothing to check.
    Refusal,
    /// Any problems; only the verdict is compared.
    Anything,
}

/// Corrupts a copy of `volume`, and compares the verdict with e2fsck's and the problems with the expected ones. Returns
/// the difference.
fn compare(volume: &Volume, said: &str, finds: Finds, corrupt: impl FnOnce(&mut Volume)) -> Option<String> {
    let mut damaged = volume.clone();
    corrupt(&mut damaged);
    let theirs = e2fsck(Image::from_bytes(&damaged.0).path());
    let ours = ours(&damaged.0);
    let clean = ours.as_ref().is_ok_and(|report| report.exit == exit::CLEAN);
    let codes = ours.as_ref().map(|report| report.problems.iter().map(|p| p.code).collect::<Vec<_>>());
    let found = match (finds, &codes) {
        (Finds::Anything, _) | (Finds::Refusal, Err(_)) => true,
        (Finds::Nothing, Ok(codes)) => codes.is_empty(),
        (Finds::This(code), Ok(codes)) => codes.contains(&code),
        _ => false,
    };
    // a volume larger than its device has lost data, whatever e2fsck's verdict
    let expected = theirs.clean && !matches!(finds, Finds::This(Code::BeyondDevice));
    (clean != expected || !found)
        .then(|| format!("{said}: finds {codes:?}, not {finds:?}; e2fsck {:?} {}", theirs.exit, theirs.text))
}

/// As [`compare`], with all checksums corrected after the damage.
fn compare_repaired(volume: &Volume, said: &str, finds: Finds, corrupt: impl FnOnce(&mut Volume)) -> Option<String> {
    compare(volume, said, finds, |volume| {
        corrupt(volume);
        repair_checksums(&mut volume.0);
    })
}

/// Fails with all differences at once.
fn no_difference(differences: impl IntoIterator<Item = Option<String>>) {
    let differences: Vec<_> = differences.into_iter().flatten().collect();
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}
