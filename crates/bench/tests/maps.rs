//! The experiments of the paper on space maps, small.

use extant_bench::maps::{Figures, Options, Worked, run};

/// The figures of the smallest volumes that have all of it.
fn figures() -> Figures {
    let dir = tempfile::tempdir().expect("a directory");
    let options = Options { dir: dir.path().into(), size: 1 << 29, seed: 1 };
    let figures = run(&options, &|_| ()).expect("figures");
    assert!(dir.path().read_dir().expect("a listing").next().is_none(), "volumes are removed");
    figures
}

#[test]
fn space_maps_ask_less_of_the_disk_than_bitmaps() {
    let figures = figures();
    let (kernels, ours): (Vec<&Worked>, Vec<&Worked>) =
        figures.work.iter().partition(|worked| worked.layout.starts_with("kernel"));
    // three layouts: five amounts of PostMark, five rounds of trees and large files
    assert_eq!((ours.len(), figures.mounts.len()), (30, 3));
    assert!(ours.iter().all(|worked| worked.seconds.is_some_and(|seconds| seconds > 0.0)));
    let of = |layout: &str| {
        let rows = ours.iter().filter(|worked| worked.layout == layout);
        rows.fold((0, 0), |(elsewhere, journal), row| (elsewhere + row.elsewhere, journal + row.journal_bytes))
    };
    let (bitmaps, maps) = (of("bitmaps"), of("space maps"));
    // the log costs no more than the bitmap blocks that it replaces; on so small a volume their numbers are about equal
    assert!(maps.0 < bitmaps.0 && maps.1 * 20 < bitmaps.1 * 21, "maps {maps:?}, bitmaps {bitmaps:?}");
    for free in &figures.free {
        assert!((0.85..0.97).contains(&free.fill) && free.extents > 0 && free.largest > 0, "{free:?}");
    }
    for mount in &figures.mounts {
        assert!(mount.open > 0.0 && mount.open <= mount.block && mount.block <= mount.gib, "{mount:?}");
    }
    the_kernel_is_beside_them(&figures, &kernels);
    aged_files_are_compared(&figures);
    memory_is_computed(&figures);
}

/// Checks the kernel's rows, or that a sentence says why they are missing.
fn the_kernel_is_beside_them(figures: &Figures, kernels: &[&Worked]) {
    if let Some(why) = &figures.kernel_missing {
        assert!(why.starts_with("Figures of the kernel are missing: ") && why.ends_with('.'), "{why}");
        assert!(figures.text().ends_with(&format!("{why}\n")), "{why}");
        return;
    }
    assert_eq!((kernels.len(), figures.free.len()), (20, 5));
    for worked in kernels {
        assert!(worked.seconds.is_none() && worked.requests >= worked.elsewhere, "{worked:?}");
        assert!(worked.requests > 0 && worked.journal_bytes > 0, "{worked:?}");
    }
}

fn aged_files_are_compared(figures: &Figures) {
    let layouts: Vec<&str> = figures.aged.iter().map(|aged| aged.layout).collect();
    assert_eq!(layouts, ["bitmaps", "bitmaps, flexible groups of 8 GiB", "space maps"]);
    assert_eq!(figures.aged[0].of_bitmaps, 1.0);
    for aged in &figures.aged {
        assert!((0.65..0.75).contains(&aged.fill) && aged.fragments >= 1.0 && aged.of_bitmaps > 0.0, "{aged:?}");
        assert!(aged.files * aged.file_bytes * 4 < aged.size, "{aged:?}");
    }
}

fn memory_is_computed(figures: &Figures) {
    let rows: Vec<(&str, &str)> = figures.memory.iter().map(|row| (row.layout, row.state)).collect();
    let [holes, every_second] = ["2 000 holes in each 8 GiB", "every second block"];
    assert_eq!(
        rows,
        [("bitmaps", holes), ("bitmaps", every_second), ("space maps", holes), ("space maps", every_second)]
    );
    for row in &figures.memory {
        assert_eq!(row.total, row.tables + row.sets + row.trees, "{row:?}");
        assert!(row.tables > 0 && row.sets > 0 && (row.trees > 0) == (row.layout == "space maps"), "{row:?}");
    }
    let [of_bitmaps, _, of_maps, worst] = &figures.memory[..] else { panic!("{:?}", figures.memory) };
    // 31 holes in a group are shorter as runs than as bits
    assert!(of_maps.total < of_bitmaps.total, "{of_maps:?}, {of_bitmaps:?}");
    // a group's set, and the same as of the last close
    assert!(worst.of_bitmaps < 2.5, "{worst:?}");
}
