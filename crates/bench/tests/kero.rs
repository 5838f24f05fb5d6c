//! The experiments of the paper on decoupled address updates, small.

use extant_bench::kero::{Figures, Layered, Options, Worked, run};

fn figures() -> Figures {
    let dir = tempfile::tempdir().expect("a directory");
    run(&Options { dir: dir.path().into(), scale: 0.004, seed: 1 }, &|_| ()).expect("figures")
}

fn row<'a>(figures: &'a Figures, work: &str, peer: &str) -> &'a Worked {
    let found = figures.work.iter().find(|row| row.work == work && row.peer == peer);
    found.unwrap_or_else(|| panic!("no row for {work} of {peer}"))
}

fn layer(row: &Worked) -> Layered {
    row.layer.unwrap_or_else(|| panic!("no layer: {row:?}"))
}

#[test]
fn each_block_is_counted_as_often_as_it_is_written() {
    let figures = figures();
    // PostMark; a large file in three steps and two sets of small ones in four; two kinds of random writes in three
    assert_eq!(figures.work.len(), 8 * (1 + 3 + 2 * 4 + 2 * 3));
    for row in &figures.work {
        assert!(row.seconds > 0.0 && row.home_seconds >= row.seconds && row.read_seconds <= row.seconds, "{row:?}");
        assert!(row.written + row.read > 0 || row.work.contains("delete"), "{row:?}");
        assert_eq!(row.layer.is_some(), row.peer.contains("Kero"), "{row:?}");
        assert!(
            !row.peer.starts_with("ext3 data=journal") || row.to_journal == 1.0 && row.home_to_journal == 1.0,
            "{row:?}"
        );
        assert!(
            !row.peer.starts_with("ext3 ordered") || row.to_ordered == 1.0 && row.home_to_ordered == 1.0,
            "{row:?}"
        );
    }
    // new content is written once, unless a journal or a log of a device in use has it first
    let output = |peer| row(&figures, "Bonnie++: block output", peer);
    assert!(output("ext3 data=journal").home_factor > 1.9, "{:?}", output("ext3 data=journal"));
    assert!(output("ext2 on Kero, used device").home_factor > 1.9, "{:?}", output("ext2 on Kero, used device"));
    for once in ["ext3 ordered", "ext2", "ext2 on Kero"] {
        assert!(output(once).home_factor < 1.7, "{:?}", output(once));
    }
    // overwritten content is not
    let rewrite = row(&figures, "Bonnie++: rewrite", "ext2 on Kero");
    assert!(rewrite.home_factor > 1.9, "{rewrite:?}");
    // an fsync for each block is a group of its own, with a header; 4 MiB of log are 1 024 blocks
    for (batch, flushes) in [("fsync for each", 128), ("fsync for 8", 16)] {
        let first = row(&figures, &format!("4 KiB writes, {batch}: first"), "ext2 on Kero");
        assert!(first.flushes >= flushes && layer(first).groups >= flushes && first.factor > 1.0, "{first:?}");
        assert_eq!(layer(first).split, 0, "{first:?}");
        let later = row(&figures, &format!("4 KiB writes, {batch}: after two laps"), "ext2 on Kero, short log");
        assert!(layer(later).home_bytes > 0 && layer(later).laps > 0.1, "{later:?}");
    }
}

#[test]
fn a_full_log_opens_in_bounded_time_and_figures_repeat() {
    let [once, again] = [figures(), figures()];
    let text = |figures: &Figures| serde_json::to_string(&figures.work).expect("JSON");
    assert_eq!(text(&once), text(&again));
    for (opened, same) in once.opened.iter().zip(&again.opened) {
        assert_eq!((opened.seconds, opened.read, opened.mapped), (same.seconds, same.read, same.mapped));
        assert!(opened.seconds > 0.0 && opened.seconds <= 2.0, "{opened:?}");
        assert!(opened.mapped >= opened.log / 3, "{opened:?}");
        assert!(opened.of_log <= 0.0025 && opened.look_up_ns > 0.0, "{opened:?}");
    }
    let tables = once.text();
    for part in ["| PostMark", " ext2 on Kero, short log |", "| full log of"] {
        assert!(tables.contains(part), "{part}: {tables}");
    }
}
