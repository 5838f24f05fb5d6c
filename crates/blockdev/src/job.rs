//! One read or write of a file on its way: what is still to be moved, and how it ended. The system may move fewer bytes
//! than asked; every strategy (one by one, threads, io_uring) accounts for that here, and so none can return short.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// The memory that the bytes go to, or come from.
#[derive(Debug)]
pub(crate) enum Buffer<'a> {
    /// A read fills it.
    Fill(&'a mut [u8]),
    /// A write empties it.
    Drain(&'a [u8]),
}

/// One request, until it has ended.
#[derive(Debug)]
pub(crate) struct Job<'a> {
    offset: u64,
    buffer: Buffer<'a>,
    /// The number of bytes that must be moved. Less than the buffer's length only where an aligned read reaches beyond
    /// the file's end.
    want: usize,
    /// A rest is asked for again from a multiple of this: 1, or the alignment of O_DIRECT.
    step: usize,
    done: usize,
    outcome: Option<io::Result<()>>,
}

impl<'a> Job<'a> {
    /// A read that has ended when the first `want` bytes of `buf` are filled.
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

    /// Whether nothing is left to do.
    pub(crate) fn ended(&self) -> bool {
        self.outcome.is_some()
    }

    /// The offset on the device of the bytes that are still to be moved, and their part of the buffer.
    pub(crate) fn rest(&mut self) -> (u64, Buffer<'_>) {
        let rest = match &mut self.buffer {
            Buffer::Fill(buf) => Buffer::Fill(&mut buf[self.done..]),
            Buffer::Drain(data) => Buffer::Drain(&data[self.done..]),
        };
        (self.offset + self.done as u64, rest)
    }

    /// Takes account of `moved` bytes of the rest.
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
            Buffer::Fill(_) => io::Error::new(io::ErrorKind::UnexpectedEof, "it became shorter since it was opened"),
            Buffer::Drain(_) => io::Error::new(io::ErrorKind::WriteZero, "it accepts no more bytes"),
        }));
    }

    /// Ends with an error.
    pub(crate) fn fail(&mut self, error: io::Error) {
        self.outcome = Some(Err(error));
    }

    /// Does what is left, waiting for each call.
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

    /// Does what is left, and returns how it ended.
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
