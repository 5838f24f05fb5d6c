//! Tests of `extant crash`.

use crate::common::prints;

#[test]
fn a_sentence_says_how_much_was_explored_and_whether_the_guarantees_were_met() {
    let modes = ["journal", "none"];
    let workload = ["--workload", "create a; append a 5000 =1; fsync a", "--threads", "1"];
    let said = prints(&[&["crash", "--mode", modes[0], "--mode", modes[1]][..], &workload].concat());
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines.len(), 6, "{said}");
    let number = |line: &str, of: &str, after: &str| -> u64 {
        let count = line.strip_prefix(of).and_then(|rest| rest.strip_suffix(after));
        count.and_then(|count| count.parse().ok()).unwrap_or_else(|| panic!("{of}: {line}"))
    };
    let each = " states that a loss of power can leave, of 1 workload: all guarantees were met";
    let sum: u64 = [0, 1].map(|n| number(lines[2 * n], &format!("{}: explored ", modes[n]), each)).iter().sum();
    let all = " states that a loss of power can leave, of 2 workloads: all guarantees were met";
    assert_eq!(number(lines[4], "all 2 modes: explored ", all), sum, "{said}");
    for details in [lines[1], lines[3], lines[5]] {
        assert!(details.starts_with("  ") && details.ends_with("; seed 1"), "{said}");
    }
}
