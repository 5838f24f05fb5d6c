//! The measurement of linked writes, small.

use extant_bench::linked::{Options, Worked, run};

#[test]
fn linked_writes_cost_less_than_a_journal_and_recovery_less_than_a_check() {
    let dir = tempfile::tempdir().expect("a directory");
    let options = Options { dir: dir.path().into(), scale: 0.02, seed: 1 };
    let figures = run(&options, &|_| ()).expect("figures");
    // four workloads, three uses of syncs, five modes; three volumes, two amounts of changes
    assert_eq!((figures.work.len(), figures.recovery.len()), (60, 6));
    let of = |row: &Worked, mode: &str| -> Worked {
        let same = |other: &&Worked| other.work == row.work && other.syncs == row.syncs && other.mode == mode;
        figures.work.iter().find(same).expect("a row").clone()
    };
    for row in figures.work.iter().filter(|row| row.mode == "linked") {
        assert_eq!((row.incomplete, row.journal_bytes), (Some(0), 0), "{row:?}");
        assert!(row.copy_bytes > 0 && row.record_bytes + row.copy_bytes <= row.list_bytes, "{row:?}");
        let generations = row.generations.expect("a list");
        assert!(0 < generations && generations < row.flushes, "{row:?}");
        if row.syncs == "one sync" {
            // a flush for each generation and one for the sync; one more before a slot that relies on data
            assert!(row.flushes <= 2 * generations + 2, "{row:?}");
            let journal = of(row, "journal");
            assert!(row.unmounted_bytes < journal.unmounted_bytes, "{row:?}, {journal:?}");
            // besides the list nearly nothing is written that is not written without it
            let none = of(row, "none");
            assert!(row.home_bytes < none.bytes + none.bytes / 10 + (64 << 10), "{row:?}, {none:?}");
        }
    }
    let none = figures.work.iter().filter(|row| row.mode == "none");
    assert!(none.clone().all(|row| row.to_none == 1.0 && row.list_bytes + row.journal_bytes == 0));
    assert_eq!(none.filter(|row| row.paper_seconds.is_some()).count(), 4);
    let ext3 = figures.work.iter().filter(|row| row.mode.starts_with("journal"));
    assert!(ext3.clone().count() == 24 && ext3.clone().all(|row| row.journal_bytes > 0 && row.generations.is_none()));
    for row in &figures.recovery {
        assert!(row.listed >= row.changed && row.lost <= row.changed && row.clean_seconds < row.seconds, "{row:?}");
        // a write is needed for what was lost, and less is read than by a check
        assert!(row.written_bytes > 0 && row.read_bytes > 0, "{row:?}");
    }
    let largest = figures.recovery.last().expect("a volume");
    assert!(largest.seconds < largest.check_seconds && largest.read_bytes < largest.check_bytes, "{largest:?}");
    let text = figures.text();
    assert!(text.contains("| rm -rf, cold |   one sync |") && text.contains(" 55.64 |"), "{text}");
    // all volumes were removed
    assert_eq!(std::fs::read_dir(dir.path()).expect("a listing").count(), 0);
}
