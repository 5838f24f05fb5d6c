//! A picture of free space as SVG: the volume from left to right and from top to bottom, in cells that are darker the
//! more of them is in use; beneath it, the share of free space in extents of each size. Readable in black and white.

use super::free::{CELLS, FreeExtents};
use crate::output::human;
use std::fmt::Write as _;

const COLUMNS: usize = 128;
const CELL: usize = 7;
const MARGIN: usize = 14;
const LINE: usize = 18;
/// Length of the longest bar.
const BAR: f64 = 560.0;

/// Draws the free space of the volume `name`.
pub(super) fn svg(free: &FreeExtents, name: &str) -> String {
    let width = 2 * MARGIN + COLUMNS * CELL;
    let rows = CELLS / COLUMNS;
    let map_top = MARGIN + 2 * LINE;
    let bars_top = map_top + rows * CELL + 2 * LINE;
    let height = bars_top + free.classes.len() * LINE + MARGIN;
    let bytes = |blocks: u64| human(blocks.saturating_mul(u64::from(free.block_size)));
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" \
         font-size=\"13\">\n<rect width=\"{width}\" height=\"{height}\" fill=\"#fff\"/>\n<text x=\"{MARGIN}\" y=\"{}\">{}: \
         {} free in {} extents; a cell is {}, white where all of it is free, black where nothing is</text>\n",
        MARGIN + LINE,
        escape(name),
        bytes(free.free),
        free.extents,
        bytes(free.cell_blocks()),
    );
    cells(free, map_top, &mut out);
    for (n, class) in free.classes.iter().enumerate() {
        let share = class.blocks as f64 / free.free.max(1) as f64;
        let y = bars_top + n * LINE;
        // writing to a String cannot fail
        let _ = writeln!(
            out,
            "<text x=\"{MARGIN}\" y=\"{}\">{} to {}</text><rect x=\"{}\" y=\"{y}\" width=\"{:.1}\" height=\"{}\" \
             fill=\"#555\"/><text x=\"{:.1}\" y=\"{}\">{:.1} %, {}</text>",
            y + LINE - 5,
            bytes(class.from),
            bytes(class.from.saturating_mul(2)),
            MARGIN + 150,
            BAR * share,
            LINE - 4,
            (MARGIN + 156) as f64 + BAR * share,
            y + LINE - 5,
            100.0 * share,
            class.extents,
        );
    }
    out.push_str("</svg>\n");
    out
}

/// The cells of the volume, each run of one shade as a rectangle.
fn cells(free: &FreeExtents, top: usize, out: &mut String) {
    let size = free.cell_blocks();
    let all = free.blocks.end - free.blocks.start;
    let shade = |cell: usize| {
        let start = cell as u64 * size;
        let length = size.min(all.checked_sub(start).filter(|rest| *rest > 0)?);
        let of = free.cells.get(cell).copied().unwrap_or(0);
        // full black would hide the borders of adjacent cells
        Some(32 + (of * 223 / length).min(223))
    };
    let mut at = 0;
    while at < CELLS {
        let row_end = (at / COLUMNS + 1) * COLUMNS;
        let this = shade(at);
        let end = (at + 1..row_end).find(|&next| shade(next) != this).unwrap_or(row_end);
        if let Some(level) = this {
            let (x, y) = (MARGIN + at % COLUMNS * CELL, top + at / COLUMNS * CELL);
            // writing to a String cannot fail
            let _ = writeln!(
                out,
                "<rect x=\"{x}\" y=\"{y}\" width=\"{}\" height=\"{CELL}\" fill=\"#{level:02x}{level:02x}{level:02x}\" \
                 stroke=\"#ccc\" stroke-width=\"0.3\"/>",
                (end - at) * CELL
            );
        }
        at = end;
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shades_and_bars() {
        let mut free = FreeExtents::new(4096, 0..8192);
        free.add(0..256);
        free.add(257..258);
        free.finish();
        let picture = svg(&free, "a<b");
        assert!(picture.contains("a&lt;b: 1 MiB free in 2 extents; a cell is 8 KiB"), "{picture}");
        assert!(picture.contains("width=\"896\" height=\"7\" fill=\"#ffffff\""), "a row of free cells: {picture}");
        assert!(picture.contains("fill=\"#8f8f8f\""), "half of a cell");
        assert!(picture.contains("99.6 %, 1") && picture.contains("0.4 %, 1"));
        assert_eq!(picture.matches("<rect").count() - 1 - 2, 1 + 2 + 30, "one a shade and row");
    }
}
