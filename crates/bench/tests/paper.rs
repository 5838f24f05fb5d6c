//! The paper's experiments, small.

use extant_bench::paper::{Options, checks};

#[test]
fn rext3_is_read_faster_whatever_its_age() {
    let dir = tempfile::tempdir().expect("a directory");
    let options = Options { dir: dir.path().into(), size: 512 << 20, rounds: vec![0, 20], seed: 1 };
    let rows = checks(&options, &|_| ()).expect("figures");
    assert_eq!(rows.len(), 4);
    for pair in rows.chunks(2) {
        let [ext3, rext3] = pair else { panic!("two formats") };
        assert_eq!((ext3.format.as_str(), rext3.format.as_str()), ("ext3", "rext3"));
        assert!(rext3.seconds < ext3.seconds && rext3.of_bandwidth > ext3.of_bandwidth, "{pair:?}");
    }
}
