//! A progress bar with the remaining time, for work at a terminal that takes longer than two seconds.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{self, IsTerminal};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Delay before a bar is shown: shorter work needs none.
const QUIET: Duration = Duration::from_secs(2);

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
        Self { bar: ProgressBar::hidden(), started: Instant::now(), shown: AtomicBool::new(true) }
    }

    /// A bar that appears after a delay, if standard error is a terminal.
    pub(crate) fn new(what: &str, total: u64, unit: Unit) -> Self {
        if !on_terminal() {
            return Self::hidden();
        }
        let template = match unit {
            Unit::Bytes => "{msg} [{bar:40}] {percent:>3} %  {binary_bytes} of {binary_total_bytes}, {eta} left",
            Unit::Share => "{msg} [{bar:40}] {percent:>3} %, {eta} left",
            Unit::Files => "{msg}: {pos} files, {elapsed}",
            Unit::Steps => "[{bar:20}] {pos} of {len}, {eta} left: {msg}",
        };
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::hidden());
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_message(what.to_owned());
        Self { bar, started: Instant::now(), shown: AtomicBool::new(false) }
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
