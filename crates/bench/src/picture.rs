//! A picture of the reads from a volume: one panel per program, with time from left to right and the offset on the
//! volume from bottom to top. SVG, readable in black and white.

use std::fmt::Write as _;

/// The reads of one program.
#[derive(Debug)]
pub struct Panel<'a> {
    /// The title above it.
    pub title: &'a str,
    /// First bytes of the reads, in order.
    pub offsets: &'a [u64],
}

const WIDTH: f64 = 720.0;
const PANEL: f64 = 200.0;
const MARGIN: f64 = 14.0;
const HEAD: f64 = 26.0;
/// Maximum number of dots in a panel; more would overlap.
const DOTS: usize = 3000;

/// Draws the panels, one above the other; `len` is the volume's length in bytes.
#[must_use]
pub fn svg(panels: &[Panel<'_>], len: u64) -> String {
    let height = MARGIN + panels.len() as f64 * (HEAD + PANEL + MARGIN);
    let full = WIDTH + 2.0 * MARGIN;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {full} {height}\" font-family=\"sans-serif\" \
         font-size=\"13\">\n<rect width=\"{full}\" height=\"{height}\" fill=\"#fff\"/>\n"
    );
    for (n, panel) in panels.iter().enumerate() {
        let top = MARGIN + n as f64 * (HEAD + PANEL + MARGIN) + HEAD;
        let title = escape(panel.title);
        // writing to a String cannot fail
        let _ = write!(
            out,
            "<text x=\"{MARGIN}\" y=\"{}\" fill=\"#000\">{title}</text>\n\
             <rect x=\"{MARGIN}\" y=\"{top}\" width=\"{WIDTH}\" height=\"{PANEL}\" fill=\"#fafafa\" stroke=\"#999\"/>\n\
             <path stroke=\"#000\" stroke-width=\"1.6\" stroke-linecap=\"round\" d=\"",
            top - 8.0
        );
        let count = panel.offsets.len();
        let step = count.div_ceil(DOTS).max(1);
        for (at, offset) in panel.offsets.iter().enumerate().step_by(step) {
            let x = MARGIN + WIDTH * (at as f64 + 0.5) / count as f64;
            let y = top + PANEL * (1.0 - *offset as f64 / len.max(1) as f64);
            let _ = write!(out, "M{x:.1} {y:.1}h0");
        }
        out.push_str("\"/>\n");
    }
    out.push_str("</svg>\n");
    out
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dots_lie_in_their_panel_and_are_bounded() {
        let offsets: Vec<u64> = (0..100_000).collect();
        let drawn = svg(&[Panel { title: "a < b", offsets: &offsets }, Panel { title: "none", offsets: &[] }], 100_000);
        assert!(drawn.contains("a &lt; b") && drawn.matches("<path").count() == 2);
        let dots = drawn.matches('M').count();
        assert!((1..=DOTS).contains(&dots), "{dots}");
        let first = drawn.split("d=\"M").nth(1).and_then(|d| d.split('h').next()).expect("a dot");
        let (x, y) = first.split_once(' ').expect("two numbers");
        let (x, y): (f64, f64) = (x.parse().expect("x"), y.parse().expect("y"));
        assert!((x - MARGIN).abs() < 1.0 && (y - (MARGIN + HEAD + PANEL)).abs() < 1.0, "{x} {y}");
    }
}
