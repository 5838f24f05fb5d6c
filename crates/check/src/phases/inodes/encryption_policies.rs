//! Encryption policies: an inode in an encrypted directory must have the directory's policy.

use format::InodeNo;
use parking_lot::RwLock;
use std::collections::HashMap;

/// Bytes at the end of an encryption context that differ between inodes.
const NONCE: usize = 16;

/// The policy of each encrypted inode. Policies are compared, not interpreted.
#[derive(Debug, Default)]
pub(crate) struct Policies(RwLock<Known>);

#[derive(Debug, Default)]
struct Known {
    /// A number for each policy.
    numbers: HashMap<Box<[u8]>, u32>,
    of: HashMap<InodeNo, u32>,
}

impl Policies {
    /// Records the encryption context of an inode.
    pub(crate) fn put(&self, inode: InodeNo, context: &[u8]) {
        let policy = match context.first() {
            Some(1 | 2) => context.get(..context.len().saturating_sub(NONCE)).unwrap_or_default(),
            // other versions are unknown
            _ => &[],
        };
        let mut guard = self.0.write();
        let known = &mut *guard;
        let number = match known.numbers.get(policy) {
            Some(number) => *number,
            None => {
                let number = known.numbers.len() as u32;
                known.numbers.insert(policy.into(), number);
                number
            }
        };
        known.of.insert(inode, number);
    }

    /// Whether the policies of two inodes differ; `None` while one is not known.
    pub(crate) fn differ(&self, one: InodeNo, other: InodeNo) -> Option<bool> {
        let known = self.0.read();
        Some(known.of.get(&one)? != known.of.get(&other)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nonce_is_no_part_of_the_policy() {
        let policies = Policies::default();
        let context = |policy: u8, nonce: u8| [&[1], [policy; 11].as_slice(), &[nonce; NONCE]].concat();
        for (inode, context) in [(11, context(1, 1)), (12, context(1, 2)), (13, context(2, 1))] {
            policies.put(InodeNo(inode), &context);
        }
        let differ = |a, b| policies.differ(InodeNo(a), InodeNo(b));
        assert_eq!([differ(11, 12), differ(12, 13), differ(13, 14)], [Some(false), Some(true), None]);
    }
}
