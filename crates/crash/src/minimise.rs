//! Minimizes a workload with a finding: delta debugging over its operations.

use crate::op::{Op, Workload};

/// The smallest workload found by removing operations for which `still` is true, with at most `tries` calls. `still` is
/// true for the workload itself.
pub fn minimise(workload: &Workload, mut tries: u32, mut still: impl FnMut(&Workload) -> bool) -> Workload {
    let mut smallest = workload.clone();
    let mut part = smallest.ops.len() + smallest.setup.len();
    while part > 0 {
        let mut at = 0;
        while at < smallest.setup.len() + smallest.ops.len() {
            if tries == 0 {
                return smallest;
            }
            tries -= 1;
            let smaller = without(&smallest, at, part);
            if still(&smaller) { smallest = smaller } else { at += part }
        }
        part /= 2;
    }
    smallest
}

/// The workload without `count` operations from number `at` on, counting from the setup.
fn without(workload: &Workload, at: usize, count: usize) -> Workload {
    let mut number = 0;
    let mut remaining = |ops: &[Op]| {
        let mut left = Vec::new();
        for op in ops {
            if !(at..at + count).contains(&number) {
                left.push(op.clone());
            }
            number += 1;
        }
        left
    };
    let setup = remaining(&workload.setup);
    Workload { setup, ops: remaining(&workload.ops) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_needed_goes() {
        let workload: Workload =
            "mkdir A; create b; mkdir C | sync; create A/f; chmod b 600; unlink b; fsync A".parse().unwrap();
        let mut asked = 0;
        let smallest = minimise(&workload, 100, |w| {
            asked += 1;
            let text = w.to_string();
            text.contains("mkdir A") && text.contains("create A/f") && text.contains("fsync A")
        });
        assert_eq!(smallest.to_string(), "mkdir A | create A/f; fsync A");
        assert!(asked < 40, "{asked}");
        assert_eq!(minimise(&workload, 0, |_| true), workload);
        assert_eq!(minimise(&workload, 100, |_| true), Workload::default());
    }
}
