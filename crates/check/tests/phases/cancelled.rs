//! A cancelled check reports no problem in parts that it did not read, wherever it is cancelled.

use blockdev::{BlockDevice, FileDevice, MemoryDevice, OpenOptions};
use extant_check::report::exit;
use extant_check::{Options, Progress, Repair, check, estimate, repair};
use simdev::Trace;
use std::sync::Arc;
use testkit::{Image, Spec, Tree, need};

/// Cancels after a number of reads.
struct After<'a>(&'a Trace<Arc<MemoryDevice>>, u64);

impl Progress for After<'_> {
    fn cancelled(&self) -> bool {
        self.0.counters().reads.requests >= self.1
    }
}

#[test]
fn a_check_cancelled_at_any_read_finds_nothing_on_an_intact_volume() {
    if !need(&["mke2fs"]) {
        return;
    }
    let tree = Tree::new(7, &Spec::small());
    for args in [
        &["-t", "ext2", "-b", "1024"] as &[_],
        &["-t", "ext3", "-b", "1024", "-J", "size=1"],
        &["-t", "ext4", "-b", "1024", "-J", "size=1", "-O", "orphan_file"],
    ] {
        let image = Image::mke2fs(args, 24 << 20).with_tree(&tree).build();
        let device = Arc::new(MemoryDevice::from_vec(image.bytes()));
        for threads in [1, 3] {
            let options = Options { threads, ..Options::default() };
            let mut ended = false;
            for reads in 1..10_000 {
                let said = format!("{args:?}, {threads} threads, cancelled after {reads} reads");
                let trace = Trace::new(Arc::clone(&device));
                let report = check("volume", &trace, &options, &After(&trace, reads));
                ended = trace.counters().reads.requests < reads;
                match report {
                    Ok(report) if ended => assert!(report.clean, "{said}: {:?}", report.problems),
                    Ok(report) => {
                        assert!(report.problems.is_empty() && !report.clean, "{said}: {:?}", report.problems);
                        assert_eq!(report.exit, exit::CANCELLED, "{said}");
                    }
                    Err(refusal) => assert_eq!(refusal.exit, exit::CANCELLED, "{said}: {refusal}"),
                }
                if ended {
                    assert!(reads > 5, "{said}");
                    break;
                }
            }
            assert!(ended, "{args:?}: it does not end");
        }
    }
}

#[test]
fn no_descriptors_are_read_once_a_check_or_an_estimate_is_cancelled() {
    if !need(&["mke2fs"]) {
        return;
    }
    struct Cancelled;
    impl Progress for Cancelled {
        fn cancelled(&self) -> bool {
            true
        }
    }
    // 16384 groups
    let args = ["-t", "ext2", "-b", "1024", "-g", "1024", "-I", "128", "-N", "262144", "-O", "^resize_inode"];
    let image = Image::mke2fs(&args, 16 << 30).build();
    let device = Trace::new(FileDevice::open(image.path(), OpenOptions::default()).expect("an image"));
    let refusal = check("volume", &device, &Options::default(), &Cancelled).expect_err("cancelled");
    assert_eq!(refusal.exit, exit::CANCELLED, "{refusal}");
    let refusal = estimate(&device, &Options::default(), None, &Cancelled).expect_err("cancelled");
    assert_eq!(refusal.exit, exit::CANCELLED, "{refusal}");
    let read = device.counters().reads.bytes;
    assert!(read < 16384 * 32, "{read}");
}

#[test]
fn a_repair_cancelled_at_any_read_changes_nothing() {
    if !need(&["mke2fs", "debugfs"]) {
        return;
    }
    let (args, tree) = (["-t", "ext4", "-b", "1024", "-J", "size=1"], Tree::new(7, &Spec::small()));
    let image = Image::mke2fs(&args, 24 << 20).with_tree(&tree);
    let image = image.debugfs(&["clri <11>", "set_super_value free_blocks_count 7"]).build();
    let options = Options { threads: 2, repair: Repair::All, ..Options::default() };
    let bytes = image.bytes();
    for reads in (1..10_000).step_by(3) {
        let trace = Arc::new(Trace::new(Arc::new(MemoryDevice::from_vec(bytes.clone()))));
        let device: Arc<dyn BlockDevice> = Arc::<Trace<_>>::clone(&trace);
        match repair("volume", &device, &options, &After(&trace, reads), None) {
            Ok(report) if report.repaired => {
                assert_eq!(report.exit, exit::REPAIRED);
                return assert!(reads > 5);
            }
            Ok(report) => assert!(report.exit & exit::CANCELLED != 0, "after {reads} reads: {:?}", report.problems),
            Err(refusal) => assert_eq!(refusal.exit, exit::CANCELLED, "after {reads} reads: {refusal}"),
        }
        assert_eq!(trace.counters().writes.requests, 0, "after {reads} reads");
    }
    panic!("no repair came to its end");
}
