//! The table in README.md of what survives a loss of power equals, cell by cell, what the explorer verifies.

use extant_crash::guarantee::GUARANTEES;

const README: &str = include_str!("../../../README.md");

/// The rows of the first table after a heading, without the separator line.
fn table(heading: &str) -> Vec<Vec<&'static str>> {
    let rest = README.split_once(heading).expect("the heading").1;
    let lines = rest.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    let cells = |line: &'static str| line.trim_matches('|').split('|').map(str::trim).collect::<Vec<_>>();
    lines.filter(|line| !line.contains("---")).map(cells).collect()
}

#[test]
fn the_table_says_what_is_checked() {
    let rows = table("## What survives a loss of power");
    let wanted: Vec<Vec<String>> = GUARANTEES
        .iter()
        .map(|guarantee| {
            let mode = format!("`{}`", guarantee.mode.options());
            std::iter::once(mode).chain(guarantee.columns().map(str::to_owned)).collect()
        })
        .collect();
    assert_eq!(rows.len(), wanted.len() + 1, "a row for each mode, and the head");
    for (row, wanted) in rows[1..].iter().zip(&wanted) {
        for (column, (cell, wanted)) in rows[0].iter().zip(row.iter().zip(wanted)) {
            assert_eq!(cell, wanted, "{}: {column}", wanted);
        }
        assert_eq!(row.len(), wanted.len());
    }
}
