//! The paper's experiments, small.

use extant_bench::paper::{Options, checks};

#[test]
fn rext3_is_read_faster_whatever_its_age() {
    let dir = tempfile::tempdir().expect("a directory");
    let options = Options { dir: dir.path().into(), size: 512 << 20, rounds: vec![0, 20], seed: 1 };
    let rows = checks(&options, &|_| ()).expect("figures");
    // four fillings and two ages
    assert_eq!(rows.len(), 12);
    for pair in rows.chunks(2) {
        let [ext3, rext3] = pair else { panic!("two formats") };
        assert_eq!((ext3.format.as_str(), rext3.format.as_str()), ("ext3", "rext3"));
        assert!(rext3.seconds < ext3.seconds, "{pair:?}");
        // of a nearly empty ext3 volume only inode tables are read, in order
        assert!(rext3.fill < 0.9 || rext3.of_bandwidth > ext3.of_bandwidth, "{pair:?}");
        // a second read of a part follows a complete first read
        assert!(ext3.shared >= 1.0 && rext3.shared >= 1.0, "{pair:?}");
    }
}
