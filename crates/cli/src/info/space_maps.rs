//! The space maps of a volume: table, log, and the head of each metablockgroup.

use super::Section;
use crate::output::{counted, human};
use fs::{SpaceMapHead, SpaceMapSummary};
use serde_json::{Value, json};
use std::io::{self, Write};
use std::ops::Range;

/// The rows for all metablockgroups.
pub(super) fn section(maps: &SpaceMapSummary, block_size: u32) -> Section {
    let mut s = Section::new("Space maps", "space_maps");
    let count = maps.maps.len() as u64;
    let per = counted(maps.groups_per_map.into(), "group", "groups");
    let heads: Vec<Value> = maps.maps.iter().map(head_value).collect();
    s.row("Metablockgroups", "metablockgroups", format!("{count} of {per}"), heads);
    s.number("Groups in each", "groups_per_metablockgroup", maps.groups_per_map);
    let mut blocks = |label, key, range: &Range<u64>, more: String| {
        let size = human((range.end - range.start).saturating_mul(block_size.into()));
        let text = format!("blocks {}-{} ({size}){more}", range.start, range.end - 1);
        s.row(label, key, text, json!([range.start, range.end - 1]));
    };
    blocks("Table of heads", "table", &maps.table, String::new());
    let records = maps.maps.iter().map(|map| map.records).sum::<u64>();
    let used = format!("; {} in use, {}", maps.log_used, counted(records, "record", "records"));
    blocks("Log", "log", &maps.log, used);
    s.number("Log blocks in use", "log_blocks_used", maps.log_used);
    s.number("Log records", "log_records", records);
    s.number("Next sequence", "sequence", maps.sequence);
    let damaged = maps.maps.iter().filter(|map| map.damaged.is_some()).count() as u64;
    if damaged > 0 {
        let text = format!("{} (`extant check` lists and repairs them)", counted(damaged, "map", "maps"));
        s.row("Damaged", "damaged_maps", text, damaged);
    }
    s
}

fn head_value(head: &SpaceMapHead) -> Value {
    json!({
        "groups": [head.groups.start, head.groups.end.saturating_sub(1)],
        "free_blocks": head.free,
        "log_records": head.records,
        "tree": head.tree.map(|tree| json!({
            "block": tree.block, "length": tree.length, "sequence": tree.sequence, "longest_run": tree.longest,
        })),
        "damaged": head.damaged,
    })
}

/// Prints a line for each metablockgroup.
pub(super) fn print(maps: &SpaceMapSummary, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "\nMetablockgroups")?;
    writeln!(
        out,
        "  {:>15}  {:>12}  {:>12}  {:>12}  {:>10}  {:>10}  {:>8}",
        "groups", "free blocks", "longest run", "tree", "bytes", "sequence", "records"
    )?;
    for head in &maps.maps {
        let groups = format!("{}-{}", head.groups.start, head.groups.end.saturating_sub(1));
        write!(out, "  {groups:>15}  {:>12}", head.free)?;
        match head.tree {
            Some(tree) => {
                write!(out, "  {:>12}  {:>12}  {:>10}  {:>10}", tree.longest, tree.block, tree.length, tree.sequence)?
            }
            None => write!(out, "  {:>12}  {:>12}  {:>10}  {:>10}", "?", "?", "?", "?")?,
        }
        writeln!(out, "  {:>8}{}", head.records, head.damaged.map(|why| format!("  {why}")).unwrap_or_default())?;
    }
    Ok(())
}
