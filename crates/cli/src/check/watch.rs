//! Who watches a check: a bar on the terminal, lines as e2fsck writes them with -C, and the signals that end it early,
//! or let it tell how far it is.

use crate::failure::Failure;
use crate::progress::{Bar, Unit};
use check::Progress;
use check::report::exit;
use check::table::Phase;
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Steps of a pass in e2fsck's lines.
const STEPS: u64 = 1000;

pub(crate) struct Watch {
    cancelled: Arc<AtomicBool>,
    /// 1 where it is told how far the check is, 0 where not; SIGUSR1 and SIGUSR2 set it.
    told: Arc<AtomicUsize>,
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
    /// Watches a check. `completion` is e2fsck's -C: a file descriptor for lines, where it is negative only from SIGUSR1 on.
    pub(crate) fn new(device: &str, completion: Option<i32>) -> Result<Self, Failure> {
        let lines = match completion {
            Some(fd) if fd != 0 => {
                let out = inherited(fd.saturating_abs()).map_err(|e| Failure::on(&format!("-C {fd}"), e))?;
                Some(Mutex::new(Lines { out, device: device.to_owned(), pass: 0, step: 0 }))
            }
            _ => None,
        };
        let cancelled = Arc::new(AtomicBool::new(false));
        let told = Arc::new(AtomicUsize::new(usize::from(completion.is_none_or(|fd| fd >= 0))));
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
            signal_hook::flag::register_usize(signal, Arc::clone(&told), value).map_err(unwatched)?;
        }
        let bar = if lines.is_some() { Bar::hidden() } else { Bar::new("checking", 0, Unit::Share) };
        Ok(Self { cancelled, told, bar, lines })
    }

    /// The check is over.
    pub(crate) fn finish(&self) {
        self.bar.finish();
        self.tell(|lines, aloud| lines.tell(STEPS, aloud));
    }

    fn aloud(&self) -> bool {
        self.told.load(Ordering::Relaxed) == 1
    }

    fn tell(&self, what: impl FnOnce(&mut Lines, bool)) {
        if let Some(lines) = &self.lines {
            what(&mut lines.lock().unwrap_or_else(PoisonError::into_inner), self.aloud());
        }
    }
}

fn unwatched(e: io::Error) -> Failure {
    Failure::Message(format!("signals cannot be watched: {e}"))
}

/// The file behind a descriptor that was handed down by number: a copy of it, or where the kernel gives none the way
/// through /proc, which is closed for sockets.
fn inherited(fd: i32) -> io::Result<File> {
    let way = format!("/proc/self/fd/{fd}");
    // before a descriptor of our own can get that number
    std::fs::symlink_metadata(&way)?;
    let copy = pidfd_open(getpid(), PidfdFlags::empty()).and_then(|own| pidfd_getfd(own, fd, PidfdGetfdFlags::empty()));
    match copy {
        Ok(copy) => Ok(File::from(copy)),
        Err(_) => OpenOptions::new().append(true).open(way),
    }
}

impl Progress for Watch {
    fn phase(&self, phase: Phase) {
        // of 1B and its kin the digit; e2fsck counts from 1 to 5
        let pass = phase.label().bytes().next().map_or(0, |digit| u64::from(digit.saturating_sub(b'0')));
        self.tell(|lines, aloud| lines.begin(pass, aloud));
    }

    fn advanced(&self, done: u64, total: u64) {
        if total == 0 {
            return;
        }
        if self.aloud() {
            self.bar.set(done, total);
        }
        // it is an estimate, and may be exceeded
        let step = u128::from(done) * u128::from(STEPS) / u128::from(total);
        let step = u64::try_from(step).map_or(STEPS, |step| step.min(STEPS));
        self.tell(|lines, aloud| lines.tell(step, aloud));
    }

    fn cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }
}

impl Lines {
    fn begin(&mut self, pass: u64, aloud: bool) {
        if (self.pass + 1..=5).contains(&pass) {
            self.tell(STEPS, aloud);
            self.pass = pass;
            self.step = 0;
            self.write(aloud);
        }
    }

    /// The pass has come to that step; only news is told.
    fn tell(&mut self, step: u64, aloud: bool) {
        if self.pass > 0 && step > self.step {
            self.step = step;
            self.write(aloud);
        }
    }

    fn write(&mut self, aloud: bool) {
        if aloud {
            let Self { out, device, pass, step } = self;
            // whoever reads this may stop doing so; that is no reason to stop checking
            let _ = out.write_all(format!("{pass} {step} {STEPS} {device}\n").as_bytes());
        }
    }
}
