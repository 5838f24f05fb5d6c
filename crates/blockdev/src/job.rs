//! One read or write of a file in progress: the bytes still to be transferred, and the outcome. The system may transfer
//! fewer bytes than requested; every strategy (one by one, threads, io_uring) accounts for that here, so none can
//! return short.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// The memory that the bytes are read into, or written from.
#[derive(Debug)]
pub(crate) enum Buffer<'a> {
    /// Filled by a read.
    Fill(&'a mut [u8]),
    /// Emptied by a write.
    Drain(&'a [u8]),
}

/// One request, until it is complete.
#[derive(Debug)]
pub(crate) struct Job<'a> {
    offset: u64,
    buffer: Buffer<'a>,
    /// The number of bytes that must be transferred. Less than the buffer's length only if an aligned read extends
    /// beyond the file's end.
    want: usize,
    /// The rest is requested again from a multiple of this: 1, or the alignment of O_DIRECT.
    step: usize,
    done: usize,
    outcome: Option<io::Result<()>>,
}

impl<'a> Job<'a> {
    /// A read that is complete when the first `want` bytes of `buf` are filled.
    pub(crate) fn read(offset: u64, buf: &'a mut [u8], want: usize, step: usize) -> Self {
        Self::new(offset, Buffer::Fill(buf), want, step)
    }

    /// A write of all of `data`.
    pub(crate) fn write(offset: u64, data: &'a [u8], step: usize) -> Self {
        Self::new(offset, Buffer::Drain(data), data.len(), step)
    }

    fn new(offset: u64, buffer: Buffer<'a>, want: usize, step: usize) -> Self {
        let outcome = (want == 0).then_some(Ok(()));
        Self { offset, buffer, want, step, done: 0, outcome }
    }

    /// Whether the request is complete.
    pub(crate) fn ended(&self) -> bool {
        self.outcome.is_some()
    }

    /// The offset on the device of the remaining bytes, and their part of the buffer.
    pub(crate) fn rest(&mut self) -> (u64, Buffer<'_>) {
        let rest = match &mut self.buffer {
            Buffer::Fill(buf) => Buffer::Fill(&mut buf[self.done..]),
            Buffer::Drain(data) => Buffer::Drain(&data[self.done..]),
        };
        (self.offset + self.done as u64, rest)
    }

    /// Accounts for `moved` transferred bytes.
    pub(crate) fn advance(&mut self, moved: usize) {
        let done = self.done + moved;
        if done >= self.want {
            self.outcome = Some(Ok(()));
            return;
        }
        let whole = done - done % self.step;
        if whole > self.done {
            self.done = whole;
            return;
        }
        self.outcome = Some(Err(match self.buffer {
            Buffer::Fill(_) => io::Error::new(io::ErrorKind::UnexpectedEof, "it has shrunk since it was opened"),
            Buffer::Drain(_) => io::Error::new(io::ErrorKind::WriteZero, "it accepts no more bytes"),
        }));
    }

    /// Completes the request with an error.
    pub(crate) fn fail(&mut self, error: io::Error) {
        self.outcome = Some(Err(error));
    }

    /// Transfers the remaining bytes, waiting for each call.
    pub(crate) fn run(&mut self, file: &File) {
        while !self.ended() {
            let moved = match self.rest() {
                (offset, Buffer::Fill(buf)) => file.read_at(buf, offset),
                (offset, Buffer::Drain(data)) => file.write_at(data, offset),
            };
            match moved {
                Ok(n) => self.advance(n),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => self.fail(e),
            }
        }
    }

    /// Transfers the remaining bytes, and returns the outcome.
    pub(crate) fn finish(mut self, file: &File) -> io::Result<()> {
        self.run(file);
        self.outcome.unwrap_or(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_read_is_resumed_from_an_aligned_place() {
        let mut buf = [0; 2048];
        let mut job = Job::read(4096, &mut buf, 1100, 512);
        job.advance(700);
        assert!(!job.ended());
        let (offset, Buffer::Fill(rest)) = job.rest() else { panic!("a read fills") };
        assert_eq!((offset, rest.len()), (4096 + 512, 1536));
        job.advance(588); // 512 + 588 = 1100
        assert!(job.ended());
    }

    #[test]
    fn no_progress_is_an_error() {
        let file = tempfile::tempfile().unwrap();
        let mut buf = [0; 2048];
        for (step, moved) in [(1, 0), (512, 0), (512, 511)] {
            let mut job = Job::read(0, &mut buf, 1024, step);
            job.advance(moved);
            assert_eq!(job.finish(&file).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        }
        let mut job = Job::write(0, &buf, 1);
        job.advance(0);
        assert_eq!(job.finish(&file).unwrap_err().kind(), io::ErrorKind::WriteZero);
    }
}
