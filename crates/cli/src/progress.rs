//! A bar with the remaining time, for what takes longer than two seconds in front of a person.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{self, IsTerminal};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The time after which a bar is shown: work that is over sooner needs none.
const QUIET: Duration = Duration::from_secs(2);

/// The unit in which the bar counts.
pub(crate) enum Unit {
    /// Bytes, which are shown.
    Bytes,
    /// Anything; only the share is shown.
    Share,
    /// Files, whose number is unknown.
    Files,
    /// Steps, each of which has a name.
    Steps,
}

/// The bar. Any thread may move it on.
pub(crate) struct Bar {
    bar: ProgressBar,
    started: Instant,
    shown: AtomicBool,
}

/// Whether a bar would be seen.
pub(crate) fn on_terminal() -> bool {
    io::stderr().is_terminal()
}

impl Bar {
    /// A bar that is never shown.
    pub(crate) fn hidden() -> Self {
        Self { bar: ProgressBar::hidden(), started: Instant::now(), shown: AtomicBool::new(true) }
    }

    /// A bar that shows itself after a while, where standard error is a terminal.
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

    /// A bar of steps, which shows itself with the first: each may take long.
    pub(crate) fn steps() -> Self {
        Self::new("", 0, Unit::Steps)
    }

    /// The next step begins, with `done` of `of` behind it.
    pub(crate) fn step(&self, what: &str, done: u64, of: u64) {
        self.bar.set_message(what.to_owned());
        self.reveal();
        self.set(done, of);
    }

    /// So much more is done.
    pub(crate) fn advance(&self, by: u64) {
        self.bar.inc(by);
        self.show();
    }

    /// So much is done, of so much.
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

    /// Takes it off the screen.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
