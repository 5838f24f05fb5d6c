//! `extant frag`: the fragmentation of the free space of a volume, and of its files.

use crate::error_report::{Complaints, Failure, Result};
use crate::output::{counted, human, print_json_object, stdout};
use crate::progress::{Bar, Unit};
use crate::source::{Opened, Source};
use clap::Args;
use free::FreeExtents;
use fs::GroupNo;
use serde::Serialize;
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;

mod files;
mod free;
mod picture;

#[derive(Debug, Args)]
#[command(
    about = "Show how fragmented free space and files are",
    after_help = "Examples:
  extant frag volume.img                     free extents by size, and a summary of all files
  extant frag volume.img /var/log /disk.raw  these files, and those below these directories
  extant frag --svg space.svg volume.img     a picture of the volume: where free space lies
  extant frag --json volume.img | jq .free.extents

Free extents are merged across group boundaries. Blocks that a snapshot uses are not free. A fragment of a file ends where \
    the next block of the file does not follow on the device; a hole does not end it, if the blocks behind it lie next to those \
    before it, or where they would be without the hole.

The volume is not changed, and is shown as on the device, with its journal replayed in memory. Free space of a group \
    whose record contradicts the volume is reported as unknown.

Exit status: 0 all was shown, 1 something could not be read, 2 wrong usage."
)]
pub(crate) struct Frag {
    #[command(flatten)]
    source: Source,

    /// Files and directories of the volume; if omitted, a summary of free space and all files
    #[arg(value_name = "PATH")]
    paths: Vec<OsString>,

    /// Write a picture of the free space to FILE
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    device: &'a str,
    block_size: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    free: Option<&'a FreeExtents>,
    files: &'a files::Files,
}

impl Frag {
    pub(crate) fn run(&self) -> Result<u8> {
        let opened = self.source.open()?;
        let mut complaints = Complaints::new(&self.source.device);
        let free = if self.paths.is_empty() || self.svg.is_some() {
            Some(self.free_extents(&opened, &mut complaints)?)
        } else {
            None
        };
        if let (Some(file), Some(free)) = (&self.svg, &free) {
            let picture = picture::svg(free, &self.source.device);
            std::fs::write(file, picture).map_err(|e| Failure::on(&file.to_string_lossy(), e))?;
        }
        let files = files::read(&opened, &self.paths, &mut complaints);
        let free = free.filter(|_| self.paths.is_empty());
        let block_size = opened.volume.superblock().geometry.block_size;
        if self.json {
            print_json_object(&Report { device: &self.source.device, block_size, free: free.as_ref(), files: &files })?;
        } else {
            let mut out = stdout()?;
            if let Some(free) = &free {
                print_free(free, &mut out)?;
            }
            files.print(&mut out)?;
            out.flush()?;
        }
        Ok(complaints.exit())
    }

    /// The free space of all groups; reports groups whose free space is unknown.
    fn free_extents(&self, opened: &Opened, complaints: &mut Complaints<'_>) -> Result<FreeExtents> {
        let geometry = &opened.volume.superblock().geometry;
        let stored = opened.volume.stored_free_space().map_err(|e| Failure::on(&self.source.device, e))?;
        let groups = stored.groups();
        let last = groups.end.checked_sub(1).map(|last| geometry.group_blocks(GroupNo(last)).end);
        // the groups of a native volume have more block numbers than its device has blocks
        let own = opened.volume.summary().map_or(geometry.blocks, |summary| summary.blocks);
        let blocks = u64::from(geometry.first_data_block)..last.unwrap_or(geometry.blocks).min(own);
        let mut free = FreeExtents::new(geometry.block_size, blocks);
        let bar = Bar::new("free space", u64::from(groups.end), Unit::Share);
        for group in groups {
            match stored.of_group(GroupNo(group)) {
                Ok(runs) => runs.into_iter().for_each(|run| free.add(run)),
                Err(e) => {
                    free.unknown_groups += 1;
                    complaints.about(format!("group {group}").as_bytes(), &e);
                    if matches!(e, fs::Error::Io(_)) {
                        break;
                    }
                }
            }
            bar.advance(1);
        }
        bar.finish();
        free.finish();
        Ok(free)
    }
}

fn print_free(free: &FreeExtents, out: &mut impl Write) -> io::Result<()> {
    let size = |blocks: u64| human(blocks.saturating_mul(u64::from(free.block_size)));
    let all = free.blocks.end - free.blocks.start;
    let share = |blocks: u64, of: u64| 100.0 * blocks as f64 / of.max(1) as f64;
    writeln!(out, "Free space")?;
    writeln!(out, "  free       {} of {} ({:.1} %)", size(free.free), size(all), share(free.free, all))?;
    if free.unknown_groups > 0 {
        let groups = counted(free.unknown_groups, "group", "groups");
        writeln!(out, "  unknown    in {groups}; run `extant check`")?;
    }
    let extents = counted(free.extents, "extent", "extents");
    if let Some(mean) = free.free.checked_div(free.extents) {
        let (least, mean, most) = (size(free.smallest), size(mean), size(free.largest));
        writeln!(out, "  in         {extents}: smallest {least}, mean {mean}, largest {most}")?;
        writeln!(out, "\n  {:>21}  {:>10}  {:>12}  {:>6}", "extents of", "extents", "blocks", "share")?;
        for class in &free.classes {
            let range = format!("{} to {}", size(class.from), size(class.from.saturating_mul(2)));
            let share = share(class.blocks, free.free);
            writeln!(out, "  {range:>21}  {:>10}  {:>12}  {share:>4.1} %", class.extents, class.blocks)?;
        }
    }
    writeln!(out)
}
