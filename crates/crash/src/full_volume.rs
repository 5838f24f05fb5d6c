//! Workloads on a full volume: operations when only a few blocks, or no inode, are free.
//!
//! The setup writes until the volume is full and then removes a few small files, so that a few blocks are free on any
//! format. Half of the workloads then run one operation and make it durable, the other half random ones. The volume
//! should be small ([`LEN`]), since every state reads a file that fills it.

use crate::generate::{self, Pairs};
use crate::op::{Op, Workload};

/// A length for volumes to be filled, in bytes: space for a journal and about a megabyte.
pub const LEN: u64 = 5 << 19;

/// `count` workloads, chosen by the seed.
#[must_use]
pub fn sample(seed: u64, count: usize) -> Vec<Workload> {
    let mut numbers = fastrand::Rng::with_seed(seed);
    let one = generate::one();
    (0..count)
        .map(|number| {
            let mut workload = match number % 4 {
                0 | 1 => numbers.choice(&one).cloned().unwrap_or_default(),
                2 => generate::random(numbers.u64(..), 10),
                _ => Pairs::new().sample(numbers.u64(..), 1).pop().unwrap_or_default(),
            };
            if number % 8 == 4 {
                no_inode(&mut workload);
            } else {
                no_block(&mut workload, numbers.u64(..6));
            }
            workload
        })
        .collect()
}

/// Adds operations to the setup that fill the volume except for some blocks.
fn no_block(workload: &mut Workload, free: u64) {
    let spare = |n: u64| format!("spare{n}");
    for n in 0..free {
        // one block each: the free space is not contiguous
        workload.setup.push(Op::Create { path: spare(n) });
        workload.setup.push(Op::Append { path: spare(n), len: 1000, seed: 900 });
        workload.setup.push(Op::Append { path: "fill".into(), len: 3000, seed: 901 });
    }
    workload.setup.insert(0, Op::Create { path: "fill".into() });
    workload.setup.push(Op::Sync);
    // a short write, and another one for what it left
    for _ in 0..2 {
        workload.setup.push(Op::Append { path: "fill".into(), len: 2 * LEN, seed: 901 });
    }
    workload.setup.extend((0..free).map(|n| Op::Unlink { path: spare(n) }));
}

/// Adds operations that create files until no inode is left.
fn no_inode(workload: &mut Workload) {
    workload.setup.extend((0..100).map(|n| Op::Create { path: format!("many{n}") }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_come_from_their_seed() {
        let some = sample(3, 16);
        assert_eq!(some, sample(3, 16));
        assert_ne!(some, sample(4, 16));
        for workload in &some {
            assert_eq!(workload.to_string().parse(), Ok(workload.clone()));
            let text = workload.to_string();
            assert!(text.contains("append fill") || text.contains("create many99"), "{text}");
        }
    }
}
