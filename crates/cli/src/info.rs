//! `extant info`: superblock, group descriptors and journal of a volume.
//!
//! One list of rows produces both the text and the JSON, so that both show the same.

use crate::error_report::{Complaints, Failure, Result};
use crate::output::{print_json, print_json_object, stdout};
use crate::source::Source;
use check::render::escape;
use clap::Args;
use fs::{Volume, VolumeSummary};
use fuse::Statistics;
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::{Value, json};
use std::io::{self, Write};

mod export;
mod groups;
mod rows;
mod space_maps;

#[derive(Debug, Args)]
#[command(
    about = "Show a volume's superblock, features and layout",
    after_help = "Examples:
  extant info volume.img              as dumpe2fs -h
  extant info --groups volume.img     with the block groups
  extant info -b 32768 volume.img     from a backup superblock (8193 with blocks of 1 KiB)
  extant info --json volume.img | jq -r .identity.uuid
  extant info --export /dev/sdb1      type, UUID and label, as udev expects them
  extant info --fuse /mnt             how a mounted volume is served: transport, messages by kind

The volume is shown as it is on the device, without replaying the journal. Of more than 2^20 groups none is \
    listed, and the blocks for metadata are those that the superblock counts. Times are local (TZ), with \
    their offset from UTC; in JSON they are UTC.

Exit status: 0 all was shown, 1 something could not be read, 2 wrong usage."
)]
pub(crate) struct Info {
    #[command(flatten)]
    source: Source,

    /// Show each block group
    #[arg(short, long)]
    groups: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,

    /// DEVICE is a directory on which a volume is mounted: show its transport, the number of messages of each kind, and
    /// the time spent polling for them
    #[arg(long, conflicts_with_all = ["export", "groups"])]
    fuse: bool,

    /// Print type, UUID and label as udev properties
    #[arg(long, conflicts_with_all = ["json", "groups"])]
    export: bool,

    /// With --export: print nothing for volumes in other formats than Extant's own
    #[arg(long, requires = "export")]
    own: bool,
}

/// A titled group of rows.
struct Section {
    title: &'static str,
    key: &'static str,
    rows: Vec<Row>,
}

/// One row, with its text and its JSON value.
struct Row {
    label: &'static str,
    key: &'static str,
    text: String,
    value: Value,
}

impl Section {
    fn new(title: &'static str, key: &'static str) -> Self {
        Self { title, key, rows: Vec::new() }
    }

    fn row(&mut self, label: &'static str, key: &'static str, text: impl Into<String>, value: impl Into<Value>) {
        self.rows.push(Row { label, key, text: text.into(), value: value.into() });
    }

    /// Adds a number that is the same in text and JSON.
    fn number(&mut self, label: &'static str, key: &'static str, number: impl Into<u64>) {
        let number = number.into();
        self.row(label, key, number.to_string(), number);
    }
}

/// Serializes each section under its key, in display order.
struct Report<'a> {
    device: &'a str,
    sections: &'a [Section],
    groups: Option<Vec<groups::Group>>,
}

impl Serialize for Report<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_map(None)?;
        object.serialize_entry("device", self.device)?;
        for section in self.sections {
            object.serialize_entry(section.key, section)?;
        }
        if let Some(groups) = &self.groups {
            object.serialize_entry("groups", groups)?;
        }
        object.end()
    }
}

impl Serialize for Section {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.rows.iter().map(|row| (row.key, &row.value)))
    }
}

/// Number of free blocks of a volume, as shown.
pub(crate) fn free_blocks(volume: &Volume) -> fs::Result<u64> {
    let (summary, maps) = (volume.summary()?, volume.space_maps()?);
    Ok(rows::free_blocks(volume, &summary, maps.as_ref()))
}

impl Info {
    pub(crate) fn run(&self) -> Result<u8> {
        if self.fuse {
            return self.connection();
        }
        let opened = self.source.open_as_it_stands()?;
        if self.export {
            let summary = opened.volume.summary().map_err(|e| Failure::on(&self.source.device, e))?;
            let mut out = stdout()?;
            if summary.is_own || !self.own {
                export::print(&opened.volume, &summary, &mut out)?;
            }
            out.flush()?;
            return Ok(0);
        }
        let mut complaints = Complaints::new(&self.source.device);
        let maps = opened.volume.space_maps().unwrap_or_else(|e| {
            complaints.about(b"space maps", e);
            None
        });
        let summary = opened.volume.summary().unwrap_or_else(|e| {
            complaints.about(b"native metadata", e);
            VolumeSummary::of_superblock(opened.volume.superblock())
        });
        let mounted = blockdev::mounted(&self.source.device).is_some();
        let sections = rows::sections(&opened.volume, &summary, maps.as_ref(), mounted, &mut complaints);
        let groups = if self.groups { groups::read(&opened.volume, &summary, &mut complaints) } else { None };
        if self.json {
            print_json_object(&Report { device: &self.source.device, sections: &sections, groups })?;
        } else {
            let mut out = stdout()?;
            print_sections(&sections, &mut out)?;
            if let Some(groups) = groups {
                groups::print(&groups, &mut out)?;
                if let Some(maps) = &maps {
                    space_maps::print(maps, &mut out)?;
                }
            }
            out.flush()?;
        }
        Ok(complaints.exit())
    }

    /// Prints how a mounted volume is served.
    fn connection(&self) -> Result<u8> {
        let statistics = Statistics::of_mount(self.source.device.as_ref());
        let statistics = statistics.map_err(|e| Failure::on(&self.source.device, e))?;
        if self.json {
            let messages: serde_json::Map<_, _> =
                statistics.messages.into_iter().map(|(kind, count)| (kind, count.into())).collect();
            let polled = statistics.polled.as_secs_f64();
            print_json(&json!({ "transport": statistics.transport, "polled_seconds": polled, "messages": messages }))?;
            return Ok(0);
        }
        let mut out = stdout()?;
        writeln!(out, "transport  {}", statistics.transport)?;
        writeln!(out, "polling    {:.3} s", statistics.polled.as_secs_f64())?;
        writeln!(out, "messages   {}", statistics.messages.iter().map(|(_, count)| count).sum::<u64>())?;
        for (kind, count) in &statistics.messages {
            writeln!(out, "  {kind:18} {count}")?;
        }
        out.flush()?;
        Ok(0)
    }
}

fn print_sections(sections: &[Section], out: &mut impl Write) -> io::Result<()> {
    let rows = sections.iter().flat_map(|section| &section.rows);
    let width = rows.map(|row| row.label.len()).max().unwrap_or(0);
    for (at, section) in sections.iter().enumerate() {
        writeln!(out, "{}{}", if at == 0 { "" } else { "\n" }, section.title)?;
        for row in &section.rows {
            let indent = width + 4;
            writeln!(out, "  {:width$}  {}", row.label, wrapped(&row.text, indent))?;
        }
    }
    Ok(())
}

/// Wraps a text at 100 columns where possible, with an indent for all lines but the first. A word without spaces, such
/// as a name, stays in one line.
fn wrapped(text: &str, indent: usize) -> String {
    let mut out = String::new();
    let mut column = indent;
    for word in text.split(' ') {
        let len = word.chars().count();
        if out.is_empty() {
            column += len;
        } else if column + 1 + len <= 100 {
            out.push(' ');
            column += 1 + len;
        } else {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent));
            column = indent + len;
        }
        out.push_str(word);
    }
    out
}

/// A text of the volume, for display.
fn quoted(text: &str) -> String {
    if text.is_empty() { "none".to_owned() } else { escape(text.as_bytes()) }
}
