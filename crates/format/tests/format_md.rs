//! FORMAT.md matches the code: every table has the fields of its structure, and every structure has a table.

use extant_format::{self as format, FieldAt};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Every disk structure under the name in its heading in FORMAT.md.
macro_rules! structures {
    ($($path:path),* $(,)?) => {{
        use format::*;
        let all: Vec<(&str, usize, &[FieldAt])> = vec![
            $( (stringify!($path), <$path>::SIZE, <$path>::FIELDS) ),*
        ];
        all.into_iter()
            .map(|(path, size, fields)| (format!("format::{}", path.replace(' ', "")), (size, fields)))
            .collect::<BTreeMap<_, _>>()
    }};
}

fn structures() -> BTreeMap<String, (usize, &'static [FieldAt])> {
    structures![
        superblock::DiskSuperblock,
        group::DiskGroup,
        inode::DiskInode,
        inode::DiskInodeExtra,
        extent::ExtentHeader,
        extent::ExtentIndex,
        extent::DiskExtent,
        extent::ExtentTail,
        extent::OwnedExtentTail,
        indirect::IndirectTail,
        dir::DirEntry,
        dir::EntryHash,
        dir::DirTail,
        dir::OwnedDirTail,
        htree::DxRootInfo,
        htree::DxCountLimit,
        htree::DxEntry,
        htree::DxTail,
        xattr::XattrHeader,
        xattr::XattrIbodyHeader,
        xattr::XattrEntry,
        acl::AclHeader,
        acl::AclEntryShort,
        acl::AclEntryFull,
        jbd2::DiskHeader,
        jbd2::DiskSuperblock,
        jbd2::DiskTag,
        jbd2::DiskTag3,
        jbd2::DiskRevoke,
        jbd2::DiskCommit,
        jbd2::DiskBlockTail,
        jbd2::fast_commit::DiskRecord,
        jbd2::fast_commit::DiskHead,
        jbd2::fast_commit::DiskAddRange,
        jbd2::fast_commit::DiskDelRange,
        jbd2::fast_commit::DiskEntry,
        jbd2::fast_commit::DiskInodeRecord,
        jbd2::fast_commit::DiskTail,
        mmp::DiskMmp,
        orphan::DiskOrphanTail,
        quota::DiskQuotaHeader,
        quota::DiskDataHeader,
        quota::DiskEntry0,
        quota::DiskEntry1,
        native::superblock::DiskMapLogEntry,
        native::superblock::DiskSector,
        native::superblock::DiskNativeSuperblock,
        native::map::DiskEntry,
        native::chunk_table::DiskChunk,
        native::snapshots::DiskSnapshot,
        space_map::head::DiskMapHead,
        space_map::ring::DiskRingHeader,
        space_map::ring::DiskRecord,
        space_map::tree::DiskTree,
        space_map::tree::DiskContainer,
        space_map::tree::DiskFreeRun,
        redo::DiskRedoPointer,
        redo::DiskRedoIndex,
        redo::DiskRedoEntry,
        linked::DiskListSlot,
        linked::DiskListInode,
        linked::DiskListPointers,
        linked::DiskListRun,
        linked::DiskListGroup,
        linked::DiskListFresh,
        linked::DiskListCopy,
        linked::DiskListRedo,
    ]
}

/// A row of a table: offset, size and field.
type Row = (usize, usize, String);

/// The tables of FORMAT.md: structure, stated size, rows.
fn tables(text: &str) -> BTreeMap<String, (usize, Vec<Row>)> {
    let mut tables = BTreeMap::new();
    let mut current: Option<(String, usize, Vec<Row>)> = None;
    for line in text.lines() {
        if line.starts_with('#') {
            if let Some((name, size, rows)) = current.take() {
                assert!(tables.insert(name.clone(), (size, rows)).is_none(), "{name} has two tables");
            }
            if let Some(name) = line.strip_prefix("### `").and_then(|l| l.strip_suffix('`')) {
                current = Some((name.to_owned(), 0, Vec::new()));
            }
            continue;
        }
        let Some((_, size, rows)) = &mut current else { continue };
        if let Some(words) = line.strip_suffix(" bytes.")
            && rows.is_empty()
        {
            *size = words.rsplit(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0);
        }
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        if let [_, offset, bytes, field, ..] = cells.as_slice()
            && let Some(offset) = offset.strip_prefix("0x")
        {
            let offset = usize::from_str_radix(offset, 16).expect("an offset in hexadecimal");
            rows.push((offset, bytes.parse().expect("a size"), field.trim_matches('`').to_owned()));
        }
    }
    if let Some((name, size, rows)) = current {
        tables.insert(name, (size, rows));
    }
    tables
}

fn read(path: impl AsRef<Path>) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[test]
fn tables_are_the_structures() {
    let structures = structures();
    let tables = tables(&read("../../FORMAT.md"));
    for (name, (size, fields)) in &structures {
        let (stated, rows) = tables.get(name).unwrap_or_else(|| panic!("FORMAT.md has no table for {name}"));
        assert_eq!(stated, size, "size of {name}");
        let fields: Vec<_> = fields.iter().map(|f| (f.offset, f.size, f.name.to_owned())).collect();
        assert_eq!(rows, &fields, "table of {name}");
    }
    for name in tables.keys() {
        assert!(structures.contains_key(name), "FORMAT.md describes {name}, which the code does not have");
    }
}

#[test]
fn no_structure_is_left_out() {
    let known = structures();
    let known: Vec<&str> = known.keys().filter_map(|name| name.rsplit("::").next()).collect();
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    let mut seen = 0;
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of sources") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = fs::read_to_string(&path).expect("a source file");
            for declared in text.split("disk_struct! {").skip(1) {
                let Some(name) = declared.split("pub struct ").nth(1).and_then(|s| s.split([' ', '[']).next()) else {
                    continue;
                };
                if name.starts_with('$') || path.ends_with("disk.rs") || path.ends_with("lib.rs") {
                    continue;
                }
                seen += 1;
                assert!(
                    known.contains(&name),
                    "{} declares {name}: add it to this test and to FORMAT.md",
                    path.display()
                );
            }
        }
    }
    assert_eq!(seen, known.len());
}
