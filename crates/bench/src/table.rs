//! Markdown tables: columns as wide as their widest cell, figures right-aligned.

use crate::Spread;

/// Rows of text in columns.
#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(head: impl IntoIterator<Item: Into<String>>) -> Self {
        Self { rows: vec![head.into_iter().map(Into::into).collect()] }
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// The table as Markdown.
    pub(crate) fn text(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| self.rows.iter().filter_map(|row| row.get(column)).map(|c| c.chars().count()).max();
        let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0).max(3)).collect();
        let mut text = String::new();
        for (number, row) in self.rows.iter().enumerate() {
            for (column, width) in widths.iter().enumerate() {
                let cell = row.get(column).map_or("", String::as_str);
                // the first column names, the others count
                text += &if column == 0 { format!("| {cell:<width$} ") } else { format!("| {cell:>width$} ") };
            }
            text += "|\n";
            if number == 0 {
                for (column, width) in widths.iter().enumerate() {
                    text += &if column == 0 {
                        format!("| {} ", "-".repeat(*width))
                    } else {
                        format!("| {}: ", "-".repeat(width - 1))
                    };
                }
                text += "|\n";
            }
        }
        text
    }
}

/// `median (min–max)`, with the significant digits.
pub(crate) fn spread(spread: &Spread) -> String {
    let digits = digits(spread.median);
    format!("{:.digits$} ({:.digits$}–{:.digits$})", spread.median, spread.min, spread.max)
}

/// As [`spread`], or a dash.
pub(crate) fn maybe(value: Option<&Spread>) -> String {
    value.map_or_else(|| "–".to_owned(), spread)
}

/// Three significant digits, at most four after the point.
fn digits(value: f64) -> usize {
    match value.abs() {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 1.0 => 2,
        v if v >= 0.1 => 3,
        _ => 4,
    }
}

/// Bytes in MiB.
pub(crate) fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / (1u64 << 20) as f64)
}

/// With a space before each three digits.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(["peer", "s"]);
        table.row(["extant".into(), "0.31".into()]);
        table.row(["é".into(), "12".into()]);
        assert_eq!(table.text(), "| peer   |    s |\n| ------ | ---: |\n| extant | 0.31 |\n| é      |   12 |\n");
    }

    #[test]
    fn figures_are_as_long_as_they_mean() {
        let spread_of = |values: [f64; 3]| spread(&Spread::of(values).unwrap());
        assert_eq!(spread_of([0.93, 0.9, 1.0]), "0.930 (0.900–1.000)");
        assert_eq!(spread_of([1234.5, 1000.0, 2000.0]), "1234 (1000–2000)");
        assert_eq!(maybe(None), "–");
        assert_eq!((grouped(0), grouped(999), grouped(1_234_567)), ("0".into(), "999".into(), "1 234 567".into()));
        assert_eq!(mib(3 << 19), "1.5 MiB");
    }
}
