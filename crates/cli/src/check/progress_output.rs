//! Progress and cancellation of a check: a bar on the terminal, lines in the format of e2fsck -C, and the signals that
//! cancel the check or switch its progress output.

use crate::error_report::Failure;
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

/// Steps per pass in e2fsck's lines.
const STEPS: u64 = 1000;

pub(crate) struct Watch {
    cancelled: Arc<AtomicBool>,
    /// 1 if progress is reported, else 0; set by SIGUSR1 and SIGUSR2.
    reporting: Arc<AtomicUsize>,
    bar: Bar,
    lines: Option<Mutex<Lines>>,
}

/// Writer of the lines `PASS DONE OF DEVICE`.
struct Lines {
    out: File,
    device: String,
    /// The current pass; 0 before the first.
    pass: u64,
    step: u64,
}

impl Watch {
    /// Begins to watch a check. `completion` is e2fsck's -C: a file descriptor for lines; a negative one is used only
    /// from SIGUSR1 on.
    pub(crate) fn new(device: &str, completion: Option<i32>) -> Result<Self, Failure> {
        let lines = match completion {
            Some(fd) if fd != 0 => {
                let number = fd.saturating_abs();
                let out = inherited(number).map_err(|e| match e.kind() {
                    io::ErrorKind::NotFound => Failure::Message(format!("-C {fd}: descriptor {number} is not open")),
                    _ => Failure::on(&format!("-C {fd}"), e),
                })?;
                Some(Mutex::new(Lines { out, device: device.to_owned(), pass: 0, step: 0 }))
            }
            _ => None,
        };
        let cancelled = Arc::new(AtomicBool::new(false));
        let reporting = Arc::new(AtomicUsize::new(usize::from(completion.is_none_or(|fd| fd >= 0))));
        for signal in [SIGINT, SIGTERM] {
            // the second signal ends a program that waits for a device; in this order, or the first would
            signal_hook::flag::register_conditional_shutdown(
                signal,
                i32::from(exit::CANCELLED),
                Arc::clone(&cancelled),
            )
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&cancelled)))
            .map_err(no_signal_handler)?;
        }
        for (signal, value) in [(SIGUSR1, 1), (SIGUSR2, 0)] {
            signal_hook::flag::register_usize(signal, Arc::clone(&reporting), value).map_err(no_signal_handler)?;
        }
        let bar = if lines.is_some() { Bar::hidden() } else { Bar::new("checking", 0, Unit::Share) };
        Ok(Self { cancelled, reporting, bar, lines })
    }

    /// Sets the estimated duration of the check, which begins now.
    pub(crate) fn expect(&self, seconds: f64) {
        self.bar.expect(seconds);
    }

    /// Ends the progress output.
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

fn no_signal_handler(e: io::Error) -> Failure {
    Failure::Message(format!("cannot handle signals: {e}"))
}

/// A duplicate of a file descriptor inherited by number, or where the kernel refuses that, its path in /proc opened,
/// which does not work for sockets.
fn inherited(fd: i32) -> io::Result<File> {
    let path = format!("/proc/self/fd/{fd}");
    // before a descriptor of this process can get that number
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
        // the total is an estimate, and may be exceeded
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

    /// Records that the pass has reached a step; writes a line only for a new step.
    fn advance(&mut self, step: u64, on: bool) {
        if self.pass > 0 && step > self.step {
            self.step = step;
            self.write(on);
        }
    }

    fn write(&mut self, on: bool) {
        if on {
            let Self { out, device, pass, step } = self;
            // the reader of these lines may exit; the check continues
            let _ = out.write_all(format!("{pass} {step} {STEPS} {device}\n").as_bytes());
        }
    }
}
