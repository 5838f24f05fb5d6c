//! Replaces the module of the program that prints its messages: they are formatted, and discarded.

use check::render::escape;

/// The reason why a command ends early.
#[derive(Debug)]
pub(crate) enum Failure {
    /// A sentence for the user.
    #[allow(dead_code, reason = "it is discarded")]
    Message(String),
}

pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

pub(crate) fn say(sentence: &str) {
    std::hint::black_box(sentence.len());
}

pub(crate) fn say_error(sentence: &str) {
    say(sentence);
}

pub(crate) fn report_file_error(path: &[u8], reason: &str, sentence: &str) {
    std::hint::black_box((path.len(), reason.len(), sentence.len()));
}

pub(crate) fn without_errno(sentence: &str) -> String {
    sentence.to_owned()
}

pub(crate) fn short(path: &[u8]) -> String {
    escape(path)
}

/// Errors of single files.
#[derive(Debug)]
pub(crate) struct Complaints<'a> {
    device: &'a str,
    count: u64,
}

impl<'a> Complaints<'a> {
    pub(crate) fn new(device: &'a str) -> Self {
        Self { device, count: 0 }
    }

    pub(crate) fn about(&mut self, path: &[u8], why: impl ToString) {
        self.count += 1;
        say(&format!("{}: {}: {}", self.device, short(path), why.to_string()));
    }

    #[allow(clippy::unused_self, reason = "as the program's")]
    pub(crate) fn sentence(&self, path: Option<&[u8]>, why: &str) -> String {
        format!("{}: {why}", path.map(short).unwrap_or_default())
    }

    pub(crate) fn exit(&self) -> u8 {
        u8::from(self.count > 0)
    }
}
