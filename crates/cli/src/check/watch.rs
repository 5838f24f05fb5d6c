//! The progress and the cancellation of a check: a bar on the terminal, lines as e2fsck writes them with -C, and the
//! signals that cancel it or switch its progress output.

use crate::failure::Failure;
use crate::progress::{Bar, Unit};
use check::Progress;
use check::report::exit;
use check::table::Phase;
use parking_lot::Mutex;
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Steps of a pass in e2fsck's lines.
const STEPS: u64 = 1000;

pub(crate) struct Watch {
    cancelled: Arc<AtomicBool>,
    /// 1 where progress is reported, 0 where not; SIGUSR1 and SIGUSR2 set it.
    reporting: Arc<AtomicUsize>,
    bar: Bar,
    lines: Option<Mutex<Lines>>,
}

/// The lines `PASS DONE OF DEVICE`.
struct Lines {
    out: File,
    device: String,
    /// The pass that is under way; 0 before the first.
    pass: u64,
    step: u64,
}

impl Watch {
    /// Watches a check. `completion` is e2fsck's -C: a file descriptor for lines, where it is negative only from
    /// SIGUSR1 on.
    pub(crate) fn new(device: &str, completion: Option<i32>) -> Result<Self, Failure> {
        let lines = match completion {
            Some(fd) if fd != 0 => {
                let out = inherited(fd.saturating_abs()).map_err(|e| Failure::on(&format!("-C {fd}"), e))?;
                Some(Mutex::new(Lines { out, device: device.to_owned(), pass: 0, step: 0 }))
            }
            _ => None,
        };
        let cancelled = Arc::new(AtomicBool::new(false));
        let reporting = Arc::new(AtomicUsize::new(usize::from(completion.is_none_or(|fd| fd >= 0))));
        for signal in [SIGINT, SIGTERM] {
            // the second one ends a program that waits for a device; in this order, or the first would do so
            signal_hook::flag::register_conditional_shutdown(
                signal,
                i32::from(exit::CANCELLED),
                Arc::clone(&cancelled),
            )
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&cancelled)))
            .map_err(unwatched)?;
        }
        for (signal, value) in [(SIGUSR1, 1), (SIGUSR2, 0)] {
            signal_hook::flag::register_usize(signal, Arc::clone(&reporting), value).map_err(unwatched)?;
        }
        let bar = if lines.is_some() { Bar::hidden() } else { Bar::new("checking", 0, Unit::Share) };
        Ok(Self { cancelled, reporting, bar, lines })
    }

    /// The check is over.
    pub(crate) fn finish(&self) {
        self.bar.finish();
        self.report(|lines, on| lines.advance(STEPS, on));
    }

    fn is_reporting(&self) -> bool {
        self.reporting.load(Ordering::Relaxed) == 1
    }

    fn report(&self, write: impl FnOnce(&mut Lines, bool)) {
        if let Some(lines) = &self.lines {
            write(&mut lines.lock(), self.is_reporting());
        }
    }
}

fn unwatched(e: io::Error) -> Failure {
    Failure::Message(format!("cannot handle signals: {e}"))
}

/// The file behind a descriptor that was inherited by number: a copy of it, or where the kernel refuses that, its path
/// in /proc, which does not work for sockets.
fn inherited(fd: i32) -> io::Result<File> {
    let path = format!("/proc/self/fd/{fd}");
    // before a descriptor of our own can get that number
    std::fs::symlink_metadata(&path)?;
    let copy = pidfd_open(getpid(), PidfdFlags::empty()).and_then(|own| pidfd_getfd(own, fd, PidfdGetfdFlags::empty()));
    match copy {
        Ok(copy) => Ok(File::from(copy)),
        Err(_) => OpenOptions::new().append(true).open(path),
    }
}

impl Progress for Watch {
    fn phase(&self, phase: Phase) {
        // the digit of 1B and similar passes; e2fsck counts from 1 to 5
        let pass = phase.label().bytes().next().map_or(0, |digit| u64::from(digit.saturating_sub(b'0')));
        self.report(|lines, on| lines.begin(pass, on));
    }

    fn advanced(&self, done: u64, total: u64) {
        if total == 0 {
            return;
        }
        if self.is_reporting() {
            self.bar.set(done, total);
        }
        // it is an estimate, and may be exceeded
        let step = u128::from(done) * u128::from(STEPS) / u128::from(total);
        let step = u64::try_from(step).map_or(STEPS, |step| step.min(STEPS));
        self.report(|lines, on| lines.advance(step, on));
    }

    fn cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }
}

impl Lines {
    fn begin(&mut self, pass: u64, on: bool) {
        if (self.pass + 1..=5).contains(&pass) {
            self.advance(STEPS, on);
            self.pass = pass;
            self.step = 0;
            self.write(on);
        }
    }

    /// The pass has come to that step; a line is written only if it is a new one.
    fn advance(&mut self, step: u64, on: bool) {
        if self.pass > 0 && step > self.step {
            self.step = step;
            self.write(on);
        }
    }

    fn write(&mut self, on: bool) {
        if on {
            let Self { out, device, pass, step } = self;
            // the reader of these lines may go away; that does not stop the check
            let _ = out.write_all(format!("{pass} {step} {STEPS} {device}\n").as_bytes());
        }
    }
}
