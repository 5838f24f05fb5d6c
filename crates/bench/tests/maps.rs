//! The experiments of the paper on space maps, small.

use extant_bench::maps::{Options, run};

#[test]
fn space_maps_ask_less_of_the_disk_than_bitmaps() {
    let dir = tempfile::tempdir().expect("a directory");
    let options = Options { dir: dir.path().into(), size: 1 << 29, seed: 1 };
    let figures = run(&options, &|_| ()).expect("figures");
    // three layouts: five amounts of PostMark, five rounds of trees and large files
    assert_eq!((figures.work.len(), figures.free.len(), figures.mounts.len()), (30, 3, 3));
    let of = |layout: &str| {
        let rows = figures.work.iter().filter(|worked| worked.layout == layout);
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
}
