//! The statistics of a layer, as text, JSON and for Prometheus.

use crate::output::human;
use ::kero::{BLOCK, Kero};
use blockdev::BlockDevice;
use serde_json::Value;
use std::fmt::Write;

/// One statistic.
pub(super) struct Row {
    /// Name in JSON and for Prometheus.
    pub(super) name: &'static str,
    /// Label in the text output.
    pub(super) text: &'static str,
    value: Number,
    /// Whether it only grows.
    counter: bool,
}

#[derive(Clone, Copy)]
enum Number {
    Bytes(u64),
    Count(u64),
    Factor(f64),
}

impl Row {
    pub(super) fn json(&self) -> Value {
        match self.value {
            Number::Bytes(number) | Number::Count(number) => number.into(),
            Number::Factor(number) => number.into(),
        }
    }

    pub(super) fn shown(&self) -> String {
        match self.value {
            Number::Bytes(bytes) => human(bytes),
            Number::Count(number) => number.to_string(),
            Number::Factor(number) => format!("{number:.3}"),
        }
    }
}

/// All statistics; with `since`, also those of the time since the layer was opened.
pub(super) fn rows<D: BlockDevice>(kero: &Kero<D>, since: bool) -> Vec<Row> {
    let (stats, layout) = (kero.stats(), kero.layout());
    let row = |name, text, value| Row { name, text, value, counter: false };
    let mut rows = vec![
        row("data_bytes", "data", Number::Bytes(u64::from(layout.data) * BLOCK)),
        row("log_bytes", "log", Number::Bytes(stats.log_size)),
        row("log_segment_bytes", "log segment", Number::Bytes(u64::from(layout.segment) * BLOCK)),
        row("log_used_bytes", "log, used", Number::Bytes(stats.log_used)),
        row("log_mapped_bytes", "log, newest content", Number::Bytes(stats.log_mapped)),
        row("group_bytes", "largest group", Number::Bytes(kero.group_bytes())),
        row("newest_group", "newest group", Number::Count(kero.newest_group())),
        row("table_memory_bytes", "memory of the table", Number::Bytes(stats.table_memory)),
    ];
    if since {
        let row = |name, text, value| Row { name, text, value, counter: true };
        rows.extend([
            row("read_bytes_total", "read", Number::Bytes(stats.read_bytes)),
            row("hit_bytes_total", "read from the log", Number::Bytes(stats.hit_bytes)),
            row("written_bytes_total", "written", Number::Bytes(stats.written_bytes)),
            row("log_written_bytes_total", "written to the log", Number::Bytes(stats.log_bytes)),
            row("checkpoint_bytes_total", "written for checkpoints", Number::Bytes(stats.checkpoint_bytes)),
            row("in_place_bytes_total", "written in place", Number::Bytes(stats.in_place_bytes)),
            row("gone_home_bytes_total", "written back", Number::Bytes(stats.gone_home_bytes)),
            row("again_bytes_total", "appended again", Number::Bytes(stats.again_bytes)),
            row("groups_total", "groups", Number::Count(stats.groups)),
            row("groups_split_total", "groups split", Number::Count(stats.split)),
            row("groups_by_time_total", "groups ended by time", Number::Count(stats.by_time)),
            row("cleaning_groups_total", "groups that made space", Number::Count(stats.cleaning_groups)),
            row("checkpoints_total", "checkpoints", Number::Count(stats.checkpoints)),
        ]);
        rows.push(Row {
            name: "write_factor",
            text: "write factor",
            value: Number::Factor(stats.write_factor()),
            counter: false,
        });
    }
    rows
}

/// The statistics in the text format of Prometheus.
pub(super) fn prometheus(rows: &[Row], device: &str) -> String {
    let device = device.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let mut out = String::new();
    for row in rows {
        let kind = if row.counter { "counter" } else { "gauge" };
        let name = format!("extant_kero_{}", row.name);
        // writing to a string does not fail
        let _ = writeln!(
            out,
            "# HELP {name} {}.\n# TYPE {name} {kind}\n{name}{{device=\"{device}\"}} {}",
            row.text,
            row.json()
        );
    }
    out
}
