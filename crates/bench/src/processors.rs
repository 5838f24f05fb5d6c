//! The processors that the measured work and its servers run on.
//!
//! Threads and processes inherit them from the thread that starts them. Two kinds of threads are not bound: the
//! kernel's own, such as those of a loop device, and over io_uring those of a server for the queues of the other
//! processors, which get no requests.

use crate::{Error, Result};
use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The processors of the calling thread, restricted until this is dropped.
pub(crate) struct Processors {
    /// The processors before, where they were restricted.
    before: Option<CpuSet>,
    count: usize,
}

impl Processors {
    /// Binds the calling thread, and what it starts from now on, to the first `count` processors that it may use;
    /// `None` does not restrict it.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where `count` is 0 or exceeds the available processors; [`Error::Io`].
    pub(crate) fn bind(count: Option<usize>) -> Result<Self> {
        let Some(count) = count else {
            let count = std::thread::available_parallelism().map_or(1, usize::from);
            return Ok(Self { before: None, count });
        };
        let before = sched_getaffinity(None).map_err(|e| failed("read the processors of this process", e))?;
        let chosen = first(&before, count)?;
        sched_setaffinity(None, &chosen).map_err(|e| failed("restrict this process to some processors", e))?;
        Ok(Self { before: Some(before), count })
    }

    /// The number of processors.
    pub(crate) fn count(&self) -> usize {
        self.count
    }
}

impl Drop for Processors {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // they were usable before; if one of them is offline by now, the others still are
            let _ = sched_setaffinity(None, before);
        }
    }
}

fn failed(what: &str, e: Errno) -> Error {
    Error::Io { what: format!("cannot {what}"), source: e.into() }
}

/// The first `count` of the available processors.
fn first(available: &CpuSet, count: usize) -> Result<CpuSet> {
    let numbers: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|number| available.is_set(*number)).collect();
    if count == 0 || count > numbers.len() {
        let most = numbers.len();
        return Err(Error::Unsupported(format!(
            "{count} processors: the number must be from 1 to {most}, as available"
        )));
    }
    let mut chosen = CpuSet::new();
    numbers.iter().take(count).for_each(|number| chosen.set(*number));
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_available_ones_are_chosen() {
        let mut available = CpuSet::new();
        for number in [1, 4, 7] {
            available.set(number);
        }
        let chosen = first(&available, 2).unwrap();
        assert!(chosen.is_set(1) && chosen.is_set(4) && chosen.count() == 2, "{chosen:?}");
        assert_eq!(first(&available, 3).unwrap(), available);
        for count in [0, 4] {
            let error = first(&available, count).unwrap_err().to_string();
            assert_eq!(error, format!("{count} processors: the number must be from 1 to 3, as available"));
        }
    }

    #[test]
    fn a_thread_is_bound_until_the_end() {
        let before = sched_getaffinity(None).unwrap();
        assert!(Processors::bind(Some(CpuSet::MAX_CPU + 1)).is_err());
        let bound = Processors::bind(Some(1)).unwrap();
        assert_eq!(bound.count(), 1);
        // inherited
        let inside = std::thread::spawn(|| sched_getaffinity(None).unwrap().count()).join().unwrap();
        assert_eq!(inside, 1);
        drop(bound);
        assert_eq!(sched_getaffinity(None).unwrap(), before);
        assert!(Processors::bind(None).unwrap().count() > 0);
    }
}
