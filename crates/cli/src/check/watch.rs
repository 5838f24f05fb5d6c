//! Who watches a check: a bar on the terminal, lines as e2fsck writes them with -C, and the signals that end it early.

use crate::failure::Failure;
use crate::progress::{Bar, Unit};
use check::Progress;
use check::report::exit;
use check::table::Phase;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Steps of a pass in e2fsck's lines.
const STEPS: u64 = 1000;

pub(super) struct Watch {
    cancelled: Arc<AtomicBool>,
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
    /// Watches a check. `completion` is e2fsck's -C.
    pub(super) fn new(device: &str, completion: Option<i32>) -> Result<Self, Failure> {
        let cancelled = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // the second one ends a program that waits for a device; in this order, or the first would do so
            signal_hook::flag::register_conditional_shutdown(
                signal,
                i32::from(exit::CANCELLED),
                Arc::clone(&cancelled),
            )
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&cancelled)))
            .map_err(|e| Failure::Message(format!("signals cannot be watched: {e}")))?;
        }
        let bar = match completion {
            None | Some(0) => Bar::new("checking", 0, Unit::Share),
            Some(_) => Bar::hidden(),
        };
        let lines = match completion {
            Some(fd) if fd > 0 => {
                // the way to a descriptor that was handed down by number
                let out = OpenOptions::new().append(true).open(format!("/proc/self/fd/{fd}"));
                let out = out.map_err(|e| Failure::on(&format!("-C {fd}"), e))?;
                Some(Mutex::new(Lines { out, device: device.to_owned(), pass: 0, step: 0 }))
            }
            _ => None,
        };
        Ok(Self { cancelled, bar, lines })
    }

    /// The check is over.
    pub(super) fn finish(&self) {
        self.bar.finish();
        self.tell(|lines| lines.tell(STEPS));
    }

    fn tell(&self, what: impl FnOnce(&mut Lines)) {
        if let Some(lines) = &self.lines {
            what(&mut lines.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }
}

impl Progress for Watch {
    fn phase(&self, phase: Phase) {
        // of 1B and its kin the digit; e2fsck counts from 1 to 5
        let pass = phase.label().bytes().next().map_or(0, |digit| u64::from(digit.saturating_sub(b'0')));
        self.tell(|lines| lines.begin(pass));
    }

    fn advanced(&self, done: u64, total: u64) {
        if total == 0 {
            return;
        }
        self.bar.set(done, total);
        // it is an estimate, and may be exceeded
        let step = u128::from(done) * u128::from(STEPS) / u128::from(total);
        self.tell(|lines| lines.tell(u64::try_from(step).map_or(STEPS, |step| step.min(STEPS))));
    }

    fn cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }
}

impl Lines {
    fn begin(&mut self, pass: u64) {
        if (self.pass + 1..=5).contains(&pass) {
            self.tell(STEPS);
            self.pass = pass;
            self.step = 0;
            self.write();
        }
    }

    /// The pass has come to that step; only news is told.
    fn tell(&mut self, step: u64) {
        if self.pass > 0 && step > self.step {
            self.step = step;
            self.write();
        }
    }

    fn write(&mut self) {
        let Self { out, device, pass, step } = self;
        // whoever reads this may stop doing so; that is no reason to stop checking
        let _ = out.write_all(format!("{pass} {step} {STEPS} {device}\n").as_bytes());
    }
}
