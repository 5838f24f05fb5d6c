//! Comparison of FORMAT.md with the code of Kero's structures.

use extant_kero::bytes::{DiskEntry, DiskPlaceholder, DiskRecord, DiskSuperblock, FieldAt};

/// The rows of the table under a heading, and the size stated above it.
fn table(text: &str, heading: &str) -> (usize, Vec<(usize, usize, String)>) {
    let (mut size, mut rows) = (0, Vec::new());
    let section = text.split("\n### ").find(|section| section.starts_with(heading)).expect("a section");
    for line in section.lines() {
        if let Some(words) = line.strip_suffix(" bytes.")
            && rows.is_empty()
        {
            size = words.rsplit(' ').next().and_then(|number| number.parse().ok()).unwrap_or(size);
        }
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        if let [_, offset, bytes, field, ..] = cells.as_slice()
            && let Some(offset) = offset.strip_prefix("0x")
        {
            let offset = usize::from_str_radix(offset, 16).expect("an offset in hexadecimal");
            rows.push((offset, bytes.parse().expect("a size"), field.trim_matches('`').to_owned()));
        }
    }
    (size, rows)
}

#[test]
fn tables_are_the_structures() {
    let text = include_str!("../../../FORMAT.md");
    let structures: [(&str, usize, &[FieldAt]); 4] = [
        ("Kero: superblock", DiskSuperblock::SIZE, DiskSuperblock::FIELDS),
        ("Kero: placeholder", DiskPlaceholder::SIZE, DiskPlaceholder::FIELDS),
        ("Kero: record", DiskRecord::SIZE, DiskRecord::FIELDS),
        ("Kero: entry", DiskEntry::SIZE, DiskEntry::FIELDS),
    ];
    for (heading, size, fields) in structures {
        let fields: Vec<_> = fields.iter().map(|field| (field.offset, field.size, field.name.to_owned())).collect();
        assert_eq!(table(text, heading), (size, fields), "{heading}");
    }
}
