//! Results for people.

use super::figures::Figures;
use crate::table::{Table, grouped};

impl Figures {
    /// For people: tables in Markdown.
    #[must_use]
    pub fn text(&self) -> String {
        let tables = [self.work_text(), self.free_text(), self.mounts_text(), self.aged_text(), self.memory_text()];
        let missing = self.kernel_missing.iter().map(|sentence| format!("{sentence}\n"));
        tables.into_iter().chain(missing).collect::<Vec<_>>().join("\n")
    }

    fn work_text(&self) -> String {
        let mut work = Table::new([
            "work",
            "layout",
            "requests for allocation",
            "non-contiguous",
            "/ bitmaps",
            "/ same layout",
            "all non-contiguous",
            "journal KiB",
            "virtual s",
        ]);
        for row in &self.work {
            work.row([
                row.work.clone(),
                row.layout.to_owned(),
                grouped(row.requests),
                grouped(row.elsewhere),
                format!("{:.3}", row.of_bitmaps),
                format!("{:.3}", row.of_same_layout),
                grouped(row.all_elsewhere),
                grouped(row.journal_bytes >> 10),
                row.seconds.map_or_else(|| "–".to_owned(), |seconds| format!("{seconds:.2}")),
            ]);
        }
        work.text()
    }

    fn free_text(&self) -> String {
        let mut free = Table::new(["free space of", "in use", "extents", "in 1 GiB and more", "largest MiB"]);
        for row in &self.free {
            free.row([
                row.layout.to_owned(),
                format!("{:.1} %", 100.0 * row.fill),
                grouped(row.extents),
                format!("{:.1} %", 100.0 * row.in_large),
                grouped(row.largest >> 20),
            ]);
        }
        free.text()
    }

    fn mounts_text(&self) -> String {
        let mut mounts = Table::new(["opening", "GiB", "open, s", "a block", "a contiguous GiB", "requests"]);
        for row in &self.mounts {
            mounts.row([
                row.layout.to_owned(),
                grouped(row.size >> 30),
                format!("{:.3}", row.open),
                format!("{:.3}", row.block),
                format!("{:.3}", row.gib),
                grouped(row.requests),
            ]);
        }
        mounts.text()
    }

    fn aged_text(&self) -> String {
        let mut aged =
            Table::new(["large files, aged", "MiB", "in use", "files", "MiB each", "fragments", "/ bitmaps"]);
        for row in &self.aged {
            aged.row([
                row.layout.to_owned(),
                grouped(row.size >> 20),
                format!("{:.1} %", 100.0 * row.fill),
                grouped(row.files),
                grouped(row.file_bytes >> 20),
                format!("{:.1}", row.fragments),
                format!("{:.3}", row.of_bitmaps),
            ]);
        }
        aged.text()
    }

    fn memory_text(&self) -> String {
        let mut memory =
            Table::new(["memory, KiB", "free", "GiB", "groups", "tables", "sets", "trees", "total", "/ bitmaps"]);
        for row in &self.memory {
            memory.row([
                row.layout.to_owned(),
                row.state.to_owned(),
                format!("{:.1}", row.size as f64 / f64::from(1u32 << 30)),
                grouped(row.groups.into()),
                grouped(row.tables >> 10),
                grouped(row.sets >> 10),
                grouped(row.trees >> 10),
                grouped(row.total >> 10),
                format!("{:.3}", row.of_bitmaps),
            ]);
        }
        memory.text()
    }
}
