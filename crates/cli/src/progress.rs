//! A progress bar with the remaining time, for work at a terminal that takes longer than two seconds.

use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use std::fmt;
use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Delay before a bar is shown: shorter work needs none.
const QUIET: Duration = Duration::from_secs(2);
/// The share and the seconds from which on progress shows the remaining time if no estimate is known.
const SHARE: f64 = 0.02;
const SECONDS: f64 = 3.0;
/// The share from which on only progress counts, and not the estimate.
const SURE: f64 = 0.25;

/// The unit of the bar.
pub(crate) enum Unit {
    /// Bytes, shown as numbers.
    Bytes,
    /// Any unit; only the percentage is shown.
    Share,
    /// Files of unknown number.
    Files,
    /// Named steps.
    Steps,
}

/// A progress bar, usable from any thread.
pub(crate) struct Bar {
    bar: ProgressBar,
    /// The estimated duration in milliseconds; 0 if unknown.
    expected: Arc<AtomicU64>,
    started: Instant,
    shown: AtomicBool,
}

/// Whether standard error is a terminal.
pub(crate) fn on_terminal() -> bool {
    io::stderr().is_terminal()
}

impl Bar {
    /// A bar that is never shown.
    pub(crate) fn hidden() -> Self {
        let (bar, expected) = (ProgressBar::hidden(), Arc::default());
        Self { bar, expected, started: Instant::now(), shown: AtomicBool::new(true) }
    }

    /// A bar that appears after a delay, if standard error is a terminal.
    pub(crate) fn new(what: &str, total: u64, unit: Unit) -> Self {
        if !on_terminal() {
            return Self::hidden();
        }
        let template = match unit {
            Unit::Bytes => "{msg} [{bar:40}] {percent:>3} %  {binary_bytes} of {binary_total_bytes}{left}",
            Unit::Share => "{msg} [{bar:40}] {percent:>3} %{left}",
            Unit::Files => "{msg}: {pos} files, {elapsed}",
            Unit::Steps => "[{bar:20}] {pos} of {len}{left}: {msg}",
        };
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::hidden());
        let expected: Arc<AtomicU64> = Arc::default();
        if let Ok(style) = ProgressStyle::with_template(template) {
            let estimate = Arc::clone(&expected);
            let left = move |state: &ProgressState, out: &mut dyn fmt::Write| {
                let expected = Some(estimate.load(Ordering::Relaxed)).filter(|millis| *millis > 0);
                let (done, elapsed) = (f64::from(state.fraction()), state.elapsed().as_secs_f64());
                if let Some(left) = remaining(done, elapsed, expected.map(|millis| millis as f64 / 1000.0)) {
                    // a failure to draw is no error of the work
                    let _ = write!(out, ", {:#} left", HumanDuration(left));
                }
            };
            bar.set_style(style.with_key("left", left).progress_chars("=> "));
        }
        bar.set_message(what.to_owned());
        Self { bar, expected, started: Instant::now(), shown: AtomicBool::new(false) }
    }

    /// Sets the estimated duration of the work, which begins now.
    pub(crate) fn expect(&self, seconds: f64) {
        self.expected.store((seconds.max(0.0) * 1000.0) as u64, Ordering::Relaxed);
        self.bar.reset_elapsed();
    }

    /// A bar of steps, which appears with the first step: each may take long.
    pub(crate) fn steps() -> Self {
        Self::new("", 0, Unit::Steps)
    }

    /// Begins the next step, after `done` of `of`.
    pub(crate) fn step(&self, what: &str, done: u64, of: u64) {
        self.bar.set_message(what.to_owned());
        self.reveal();
        self.set(done, of);
    }

    /// Advances the bar by an amount.
    pub(crate) fn advance(&self, by: u64) {
        self.bar.inc(by);
        self.show();
    }

    /// Sets the amounts done and total.
    pub(crate) fn set(&self, done: u64, total: u64) {
        self.bar.set_length(total);
        self.bar.set_position(done.min(total));
        self.show();
    }

    fn show(&self) {
        if !self.shown.load(Ordering::Relaxed) && self.started.elapsed() >= QUIET {
            self.reveal();
        }
    }

    fn reveal(&self) {
        if !self.shown.swap(true, Ordering::Relaxed) {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
    }

    /// Removes the bar from the terminal.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// The remaining time of work of which a share is done after a time; `None` while it is unknown. An estimate of the
/// duration counts less, the more is done.
fn remaining(done: f64, elapsed: f64, expected: Option<f64>) -> Option<Duration> {
    let by_progress = || elapsed / done;
    let total = match expected {
        Some(expected) if done <= 0.0 => expected,
        Some(expected) => {
            let weight = (done / SURE).min(1.0);
            expected * (1.0 - weight) + by_progress() * weight
        }
        None if done < SHARE || elapsed < SECONDS => return None,
        None => by_progress(),
    };
    Duration::try_from_secs_f64((total - elapsed).max(0.0)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remaining_time_begins_with_the_estimate() {
        let left = |done, elapsed, expected| remaining(done, elapsed, expected).map(|left| left.as_secs_f64());
        assert_eq!(left(0.0, 1.0, Some(20.0)), Some(19.0));
        // slow so far, but little is done
        let early = left(0.001, 2.0, Some(20.0)).unwrap();
        assert!((15.0..30.0).contains(&early), "{early}");
        assert_eq!(left(0.5, 10.0, Some(100.0)), Some(10.0));
        assert_eq!(left(0.01, 5.0, None), None);
        assert_eq!(left(0.5, 2.0, None), None);
        assert_eq!(left(0.5, 5.0, None), Some(5.0));
        assert_eq!(left(1.0, 5.0, None), Some(0.0));
        assert_eq!(left(0.0, 50.0, Some(20.0)), Some(0.0));
    }
}
