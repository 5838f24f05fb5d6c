//! The figures as tables in Markdown.

use super::{Figures, Recovered, Worked};
use crate::table::{Table, grouped};

/// The note below the first table.
const NOTE: &str = "Time is the disk's until the final sync. Requests are reads and writes; seeks are those that do \
not begin where the previous one ended. Amounts are KiB written: list and journal with padding, home everything else; \
until unmounted they include the blocks of a journal that are written home later. The paper's seconds and KiB are from \
its table 1 (2006), with another machine and another amount of work; it measured no linked writes.\n";

fn kib(bytes: u64) -> String {
    grouped(bytes.div_ceil(1024))
}

fn or_dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "–".to_owned())
}

fn work(rows: &[Worked]) -> String {
    let mut table = Table::new([
        "work",
        "syncs",
        "mode",
        "virtual s",
        "/ none",
        "requests",
        "seeks",
        "flushes",
        "generations",
        "incomplete",
        "KiB",
        "list",
        "records",
        "copies",
        "journal",
        "home",
        "until unmounted",
        "paper's s",
        "paper's KiB",
    ]);
    for row in rows {
        table.row([
            row.work.to_owned(),
            row.syncs.to_owned(),
            row.mode.to_owned(),
            format!("{:.3}", row.seconds),
            format!("{:.3}", row.to_none),
            grouped(row.requests),
            grouped(row.seeks),
            grouped(row.flushes),
            or_dash(row.generations.map(grouped)),
            or_dash(row.incomplete.map(grouped)),
            kib(row.bytes),
            kib(row.list_bytes),
            kib(row.record_bytes),
            kib(row.copy_bytes),
            kib(row.journal_bytes),
            kib(row.home_bytes),
            kib(row.unmounted_bytes),
            or_dash(row.paper_seconds.map(|seconds| format!("{seconds:.2}"))),
            or_dash(row.paper_bytes.map(kib)),
        ]);
    }
    table.text()
}

fn recovery(rows: &[Recovered]) -> String {
    let mut table = Table::new([
        "recovery of, MiB",
        "files",
        "listed",
        "lost",
        "virtual s",
        "reads",
        "KiB read",
        "KiB written",
        "clean open, s",
        "full check, s",
        "its reads",
        "its KiB",
    ]);
    for row in rows {
        table.row([
            grouped(row.size >> 20),
            grouped(row.changed),
            grouped(row.listed),
            grouped(row.lost),
            format!("{:.3}", row.seconds),
            grouped(row.reads),
            kib(row.read_bytes),
            kib(row.written_bytes),
            format!("{:.3}", row.clean_seconds),
            format!("{:.3}", row.check_seconds),
            grouped(row.check_reads),
            kib(row.check_bytes),
        ]);
    }
    table.text()
}

impl Figures {
    /// For people: tables in Markdown.
    #[must_use]
    pub fn text(&self) -> String {
        format!("{}\n{NOTE}\n\n{}", work(&self.work), recovery(&self.recovery))
    }
}
