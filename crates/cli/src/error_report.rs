//! Errors of commands: one sentence on standard error, and an exit status.

use crate::device::Device;
use check::render::escape;
use parking_lot::{Mutex, MutexGuard};
use std::io::{self, Write};

/// The reason why a command ends early.
#[derive(Debug)]
pub(crate) enum Failure {
    /// A sentence for the user, without the prefix `extant: `.
    Message(String),
    /// A sentence: the request contradicts the volume, or the volume is in use by others, so that a fallback is no
    /// option either.
    Refused(String),
    /// A sentence: the command line has unknown words, or words that cannot be combined.
    Usage(String),
    /// The reader of the output has exited (`| head`): not a failure, and no message.
    ReaderGone,
}

impl Failure {
    /// A failure that concerns `device`.
    pub(crate) fn on(device: &str, why: impl ToString) -> Self {
        Self::Message(format!("{}: {}", escape(device.as_bytes()), without_errno(&why.to_string())))
    }
}

/// Writing to standard output is the only operation that commands use with `?`.
impl From<io::Error> for Failure {
    fn from(e: io::Error) -> Self {
        match e.kind() {
            io::ErrorKind::BrokenPipe => Self::ReaderGone,
            _ => Self::Message(format!("cannot write the output: {}", without_errno(&e.to_string()))),
        }
    }
}

/// The device could not be opened; the error names it.
impl From<blockdev::Error> for Failure {
    fn from(e: blockdev::Error) -> Self {
        let sentence = without_errno(&escape(e.to_string().as_bytes()));
        match e {
            blockdev::Error::Open { source, .. } if source.kind() == io::ErrorKind::ResourceBusy => {
                Self::Refused(sentence)
            }
            _ => Self::Message(sentence),
        }
    }
}

pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

/// Prints one sentence to standard error. A failure to do so is ignored.
pub(crate) fn say(sentence: &str) {
    let _ = writeln!(io::stderr().lock(), "extant: {sentence}");
}

/// Prints one sentence to standard error, and records it as an error of the command, for JSON output.
pub(crate) fn say_error(sentence: &str) {
    say(sentence);
    record(None, sentence, sentence);
}

static WARNINGS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Prints a warning of one sentence to standard error, and records it for JSON output.
pub(crate) fn warn(sentence: &str) {
    say(sentence);
    WARNINGS.lock().push(sentence.to_owned());
}

/// The warnings that were printed so far.
pub(crate) fn warnings() -> Vec<String> {
    WARNINGS.lock().clone()
}

/// Number of errors that JSON output lists: a damaged volume may have any number.
const LISTED: usize = 1000;

/// The errors after which a command continued, for JSON output.
#[derive(Debug)]
pub(crate) struct Recorded {
    pub(crate) count: u64,
    /// The sentence of the first one.
    pub(crate) first: String,
    /// The first ones: the path, if they concern one, and the reason.
    pub(crate) listed: Vec<(Option<Vec<u8>>, String)>,
}

static RECORDED: Mutex<Recorded> = Mutex::new(Recorded { count: 0, first: String::new(), listed: Vec::new() });

fn record(path: Option<&[u8]>, reason: &str, sentence: &str) {
    let mut recorded = RECORDED.lock();
    if recorded.count == 0 {
        sentence.clone_into(&mut recorded.first);
    }
    recorded.count += 1;
    if recorded.listed.len() < LISTED {
        let path = path.map(|path| if path.len() > LONG { short(path).into_bytes() } else { path.to_vec() });
        recorded.listed.push((path, reason.to_owned()));
    }
}

/// The errors that were reported so far.
pub(crate) fn recorded() -> MutexGuard<'static, Recorded> {
    RECORDED.lock()
}

/// Adds the mount point of a volume in use, so that the user can unmount it.
pub(crate) fn with_place(device: &Device, failure: Failure) -> Failure {
    match (failure, blockdev::mounted(device)) {
        (Failure::Refused(why), Some(mounted)) => {
            Failure::Refused(format!("{why}; it is mounted {}: unmount it first", escape(mounted.place().as_bytes())))
        }
        (failure, _) => failure,
    }
}

/// Removes the error number that the standard library appends to the system's text.
pub(crate) fn without_errno(sentence: &str) -> String {
    let mut out = String::with_capacity(sentence.len());
    let mut rest = sentence;
    while let Some((before, after)) = rest.split_once(" (os error ") {
        out.push_str(before);
        rest = after.split_once(')').map_or("", |(_, after)| after);
    }
    out + rest
}

/// Number of bytes of the beginning and of the end that messages show of a long path.
const SHOWN: usize = 1024;
/// The maximum length of a path that is shown completely.
const LONG: usize = 4 * SHOWN;

/// A path for a message; of a very long one, as on a hostile volume, the beginning and the end.
pub(crate) fn short(path: &[u8]) -> String {
    match (path.get(..SHOWN), path.get(path.len().saturating_sub(SHOWN)..)) {
        (Some(start), Some(end)) if path.len() > LONG => {
            format!("{} [{} bytes] {}", escape(start), path.len() - 2 * SHOWN, escape(end))
        }
        _ => escape(path),
    }
}

/// Reports an error of a single file, after which the command continues.
pub(crate) fn report_file_error(path: &[u8], reason: &str, sentence: &str) {
    say(sentence);
    record(Some(path), reason, sentence);
}

/// Errors of single files, after which the command continues with the others.
#[derive(Debug)]
pub(crate) struct Complaints<'a> {
    device: &'a str,
    count: u64,
}

impl<'a> Complaints<'a> {
    pub(crate) fn new(device: &'a str) -> Self {
        Self { device, count: 0 }
    }

    /// Reports an error of the file at `path` of the volume.
    pub(crate) fn about(&mut self, path: &[u8], why: impl ToString) {
        self.count += 1;
        let why = without_errno(&why.to_string());
        report_file_error(path, &why, &self.sentence(Some(path), &why));
    }

    /// The sentence of an error of a file of the volume, or of the volume itself.
    pub(crate) fn sentence(&self, path: Option<&[u8]>, why: &str) -> String {
        let device = escape(self.device.as_bytes());
        match path {
            Some(path) => format!("{device}: {}: {why}", short(path)),
            None => format!("{device}: {why}"),
        }
    }

    /// The exit status: 1 if there was any error.
    pub(crate) fn exit(&self) -> u8 {
        u8::from(self.count > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_paths_are_shortened() {
        assert_eq!(short(b"/a/b\n"), escape(b"/a/b\n"));
        let long = [&b"/start/"[..], &[b'x'; 100_000], b"/end"].concat();
        let shown = short(&long);
        assert!(shown.starts_with("/start/xx") && shown.ends_with("x/end") && shown.len() < 3000, "{shown}");
    }

    #[test]
    fn numbers_of_the_system_are_left_out() {
        let error = io::Error::from_raw_os_error(2).to_string();
        assert_eq!(without_errno(&format!("a: {error}; b: {error}")), {
            let plain = error.replace(" (os error 2)", "");
            format!("a: {plain}; b: {plain}")
        });
        assert_eq!(without_errno("nothing (to) do"), "nothing (to) do");
        assert_eq!(without_errno("cut (os error 2"), "cut");
    }
}
