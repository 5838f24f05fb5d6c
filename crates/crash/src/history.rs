//! The history before a crash: the operations, the states between them, and the times at which they became durable.
//!
//! State 0 is the start of the exploration, state `n` follows the `n`th operation. A [`DurableSet`] consists of numbers
//! of states: the object of a number must be at least as new as in that state after any later crash.

use std::collections::BTreeMap;
use std::ops::Range;

use rustix::io::Errno;

use crate::guarantee::Scope;
use crate::model::{Body, Id, Node, State};
use crate::op::{Op, RenameHow};
use std::sync::Arc;

/// Seconds without an operation after which a mode that commits every 5 s has committed everything: delayed data gets
/// its blocks after one interval, and the metadata that refers to it is written after another.
const COMMITTED_AFTER: u32 = 12;

/// Operations and the states between them.
#[derive(Debug, Clone)]
pub struct History {
    states: Vec<State>,
    ops: Vec<Op>,
    block_size: u64,
}

/// The durable states at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DurableSet {
    /// The state as of which everything is durable.
    pub volume: usize,
    /// The state as of which names, attributes and sizes of everything are durable.
    pub tree: usize,
    /// The states as of which single files and directories are durable: the content, and for a file its attributes.
    pub nodes: BTreeMap<Id, usize>,
}

impl DurableSet {
    /// The state as of which the content of a node is durable.
    #[must_use]
    pub fn node(&self, id: Id) -> usize {
        self.volume.max(self.nodes.get(&id).copied().unwrap_or(0))
    }
}

impl History {
    /// A history without operations: `first` is completely durable, on a volume with a block size of `block_size`
    /// bytes.
    #[must_use]
    pub fn new(first: State, block_size: u64) -> Self {
        Self { states: vec![first], ops: Vec::new(), block_size }
    }

    /// Runs an operation on the model; a failed one is part of the history and changes nothing.
    ///
    /// # Errors
    /// The error of the model.
    pub fn push(&mut self, op: &Op) -> Result<(), Errno> {
        let mut next = self.last().clone();
        let answer = next.apply(op, self.block_size);
        self.states.push(if answer.is_ok() { next } else { self.last().clone() });
        self.ops.push(op.clone());
        answer
    }

    /// Reverts the last operation, which the volume refused for lack of space or support: in its place nothing
    /// happened, and nothing became durable.
    pub fn refuse(&mut self) {
        if let ([.., before, after], Some(op)) = (&mut self.states[..], self.ops.last_mut()) {
            *after = before.clone();
            *op = Op::Wait { seconds: 0 };
        }
    }

    /// Applies to the newest state that bytes of a file in `range` were zeroed, as many as `read` shows.
    ///
    /// # Errors
    /// The difference, if `read` has other changes.
    pub fn zeroed_in_part(&mut self, path: &str, range: Range<u64>, read: Vec<u8>) -> Result<(), String> {
        let Some(state) = self.states.last_mut() else { return Ok(()) };
        let id = state.resolve(path).map_err(|e| e.to_string())?;
        let Some(node) = state.nodes.get_mut(&id) else { return Ok(()) };
        let Some(before) = node.data() else { return Ok(()) };
        if read.len() != before.len() {
            return Err(format!("refused, and {} bytes instead of {}", read.len(), before.len()));
        }
        let fits = |(at, (new, old)): (u64, (&u8, &u8))| new == old || *new == 0 && range.contains(&at);
        if !(0..).zip(read.iter().zip(before.iter())).all(fits) {
            return Err("refused, and bytes are neither unchanged nor zeroed".into());
        }
        Arc::make_mut(node).body = Body::File(Arc::new(read));
        Ok(())
    }

    /// Replaces the last operation by `op`, which was done instead.
    ///
    /// # Errors
    /// The error of the model.
    pub fn replace(&mut self, op: &Op) -> Result<(), Errno> {
        self.states.truncate(self.states.len().saturating_sub(1).max(1));
        self.ops.pop();
        self.push(op)
    }

    /// The newest state.
    #[must_use]
    pub fn last(&self) -> &State {
        self.states.last().unwrap_or_else(|| unreachable!("the first state always exists"))
    }

    /// The number of operations.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ops.len()
    }

    /// Whether there are no operations.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// State `number`, or the newest for a larger number.
    #[must_use]
    pub fn state(&self, number: usize) -> &State {
        self.states.get(number).unwrap_or_else(|| self.last())
    }

    /// The part of state `number` that survives a loss of power.
    #[must_use]
    pub fn outside(&self, number: usize) -> &State {
        self.state(number).outside()
    }

    /// The states around `number` in which a transaction is completely applied, or not at all, as in that one.
    #[must_use]
    pub fn era(&self, number: usize) -> Range<usize> {
        let border = |n: &usize| {
            matches!(self.ops.get(n - 1), Some(Op::Begin | Op::Commit))
                && self.state(*n).before.is_some() != self.state(n - 1).before.is_some()
        };
        let committed = |n: &usize| border(n) && self.state(*n).before.is_none();
        let start = (1..=number.min(self.len())).rev().find(border).unwrap_or(0);
        let end = (number + 1..=self.len()).find(committed).unwrap_or(usize::MAX);
        start..end
    }

    /// The operation that led to state `number`, as text, or the start of the exploration.
    #[must_use]
    pub fn after(&self, number: usize) -> String {
        number
            .checked_sub(1)
            .and_then(|n| self.ops.get(n))
            .map_or_else(|| "the beginning".into(), |op| format!("`{op}`"))
    }

    /// The set of durable states once the first `returned` operations have returned, with this scope of fsync(2).
    #[must_use]
    pub fn durable(&self, returned: usize, fsync: Scope) -> DurableSet {
        let mut durable = DurableSet::default();
        for (number, op) in self.ops.iter().enumerate().take(returned) {
            let now = number + 1;
            let (before, after) = (self.state(number), self.state(now));
            match op {
                // a failed one did nothing
                Op::Begin | Op::Commit if before.before.is_some() != after.before.is_some() => {
                    (durable.volume, durable.tree) = (now, now);
                }
                Op::CreateSnapshot { .. } if before.snapshots.len() != after.snapshots.len() => {
                    (durable.volume, durable.tree) = (now, now);
                }
                // delayed data does not get its blocks by this
                Op::DeleteSnapshot { .. } if before.snapshots.len() != after.snapshots.len() => durable.tree = now,
                // durable at the commit
                _ if before.before.is_some() => {}
                Op::Sync => (durable.volume, durable.tree) = (now, now),
                Op::Fsync { path } | Op::Fdatasync { path } => {
                    let Ok(id) = self.state(now).resolve(path) else { continue };
                    match (fsync, op) {
                        (Scope::Volume, _) => (durable.volume, durable.tree) = (now, now),
                        (Scope::EarlierMetadata, Op::Fsync { .. }) => {
                            durable.tree = durable.tree.max(self.newest_change_of(id, now));
                        }
                        (Scope::EarlierMetadata, _) => durable.tree = durable.tree.max(self.size_since(id, now)),
                        (Scope::Node, _) => {}
                    }
                    // fdatasync does not cover attributes: it makes the node durable only where nothing but bytes is
                    // compared
                    if fsync != Scope::Node
                        || !matches!(op, Op::Fdatasync { .. })
                        || self.only_bytes_since(id, now, &durable)
                    {
                        durable.nodes.insert(id, now);
                    }
                }
                Op::Wait { seconds } if *seconds >= COMMITTED_AFTER && fsync != Scope::Node => {
                    (durable.volume, durable.tree) = (now, now);
                }
                _ => {}
            }
        }
        durable
    }

    /// The newest state up to `now` caused by a change of the node, or of one of its names.
    fn newest_change_of(&self, id: Id, now: usize) -> usize {
        let changes = |number: &usize| {
            let before = self.state(number - 1);
            let named = match self.ops.get(number - 1) {
                Some(Op::Rename { from, to, .. }) => before.resolve(from) == Ok(id) || before.resolve(to) == Ok(id),
                _ => false,
            };
            // a failed operation changed nothing
            let after = self.state(*number);
            before.node(id) != after.node(id) || named && before != after
        };
        (1..=now).rev().find(changes).unwrap_or(0)
    }

    /// The first state from which, up to state `now`, the node exists with its current size.
    fn size_since(&self, id: Id, now: usize) -> usize {
        let size = |number: usize| self.state(number).node(id).map(|node| node.data().map(|data| data.len()));
        (0..now).rev().take_while(|&number| size(number) == size(now)).last().unwrap_or(now)
    }

    /// Whether only the bytes and the size of the node changed between its durable state and state `now`.
    fn only_bytes_since(&self, id: Id, now: usize, durable: &DurableSet) -> bool {
        let rest = |number: usize| self.state(number).node(id).map(|node| (node.mode, node.links, node.xattrs.clone()));
        (durable.node(id)..now).all(|number| rest(number) == rest(now))
    }

    /// The last state up to `number` in which the node replaced another one; 0 if it never did.
    #[must_use]
    pub fn replaced_by(&self, id: Id, number: usize) -> usize {
        let renames = |n: &usize| match n.checked_sub(1).and_then(|op| self.ops.get(op)) {
            Some(Op::Rename { from, to, how: RenameHow::Replace }) => {
                let before = self.state(n - 1);
                let replaced = before.resolve(to).is_ok_and(|other| other != id);
                before.resolve(from) == Ok(id) && replaced && self.state(*n).resolve(to) == Ok(id)
            }
            _ => false,
        };
        (1..=number).rev().find(renames).unwrap_or(0)
    }

    /// The sizes that a file may have on the device in state `number`: its own, and those since state `from` below
    /// which it was never truncated afterwards. Appended data may get its blocks later than the changes around it.
    #[must_use]
    pub fn sizes(&self, id: Id, from: usize, number: usize) -> Vec<usize> {
        let size = |n: usize| self.outside(n).node(id).and_then(|node| node.data()).map(|data| data.len());
        let mut sizes: Vec<usize> = Vec::new();
        for size in (from..=number).rev().map_while(size) {
            if sizes.last().is_none_or(|least| size <= *least) {
                sizes.push(size);
            }
        }
        sizes
    }

    /// Whether bytes are those of a file in state `number`, or, if the next operation writes to it, partly those after
    /// that: a write is not a transaction.
    #[must_use]
    pub fn is_written_in_part(&self, id: Id, number: usize, bytes: &[u8]) -> bool {
        let Some(Op::Write { path, .. } | Op::Append { path, .. }) = self.ops.get(number) else { return false };
        if self.state(number).resolve(path) != Ok(id) {
            return false;
        }
        let data = |n: usize| self.outside(n).node(id).and_then(|node| node.data());
        let Some((before, after)) = data(number).zip(data(number + 1)) else { return false };
        let either = |(at, byte): (usize, &u8)| before.get(at) == Some(byte) || after.get(at) == Some(byte);
        (before.len()..=after.len()).contains(&bytes.len()) && bytes.iter().enumerate().all(either)
    }

    /// The versions of a node in states `from..=to`, without consecutive duplicates; `None` where it did not exist.
    pub fn versions(&self, id: Id, from: usize, to: usize) -> Vec<Option<&Arc<Node>>> {
        let mut versions: Vec<_> = (from..=to).map(|number| self.outside(number).node(id)).collect();
        versions.dedup();
        versions
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Workload;

    fn history(text: &str) -> History {
        let mut history = History::new(State::empty(), 1024);
        for op in &text.parse::<Workload>().unwrap().ops {
            history.push(op).unwrap();
        }
        history
    }

    #[test]
    fn the_durable_set_follows_what_has_returned() {
        let history =
            history("create f; append f 10 =1; fsync f; create g; sync; append g 5 =2; write f 0 5 =3; fdatasync f");
        let id = history.last().resolve("f").unwrap();
        assert_eq!(history.durable(2, Scope::EarlierMetadata), DurableSet::default());
        let durable = history.durable(3, Scope::EarlierMetadata);
        assert_eq!((durable.volume, durable.tree, durable.node(id)), (0, 2, 3));
        let durable = history.durable(8, Scope::EarlierMetadata);
        assert_eq!(
            (durable.volume, durable.tree, durable.node(id)),
            (5, 5, 8),
            "no size changed, so no metadata was made durable"
        );
        assert_eq!(
            self::history("create f; mkdir d; create d/g; wait 12").durable(4, Scope::EarlierMetadata).volume,
            4
        );
        assert_eq!(self::history("create f; wait 12").durable(2, Scope::Node), DurableSet::default());
        // a file synced without a change since does not make later changes durable
        assert_eq!(self::history("create f; create g; fsync f").durable(3, Scope::EarlierMetadata).tree, 1);
        assert_eq!(self::history("create f; create g; rename f h; fsync h").durable(4, Scope::EarlierMetadata).tree, 3);
        let mut failed = self::history("mkdir d; create f");
        assert_eq!(failed.push(&"rename d f".parse().unwrap()), Err(Errno::NOTDIR));
        failed.push(&"fsync d".parse().unwrap()).unwrap();
        assert_eq!(failed.durable(4, Scope::EarlierMetadata).tree, 1);
        assert_eq!(history.durable(3, Scope::Node).tree, 0);
        assert_eq!(history.durable(8, Scope::Volume).volume, 8);
    }

    #[test]
    fn fdatasync_makes_durable_what_was_made_since() {
        let history = history("create a; create f; append f 9 =1; mkdir b; fdatasync f");
        assert_eq!(history.durable(5, Scope::EarlierMetadata).tree, 3);
    }

    #[test]
    fn of_a_write_a_part_may_be_there() {
        let history = history("create f; append f 3000 =1; write f 1000 4000 =2; truncate f 10");
        let id = history.last().resolve("f").unwrap();
        let data = |n: usize| history.state(n).node(id).unwrap().data().unwrap().to_vec();
        let (old, new) = (data(2), data(3));
        let part = [&new[..2048], &old[2048..]].concat();
        assert!(history.is_written_in_part(id, 2, &part) && history.is_written_in_part(id, 2, &new[..4096]));
        assert!(!history.is_written_in_part(id, 1, &part) && !history.is_written_in_part(id, 3, &new[..100]));
        assert!(!history.is_written_in_part(id, 2, &old[..2048]));
    }

    #[test]
    fn what_the_volume_could_not_do_is_taken_back() {
        let mut history = history("create f");
        history.push(&"append f 9 =1".parse().unwrap()).unwrap();
        history.refuse();
        assert_eq!((history.len(), history.state(2) == history.state(1)), (2, true));
        history.push(&"append f 9 =1".parse().unwrap()).unwrap();
        history.replace(&"append f 4 =1".parse().unwrap()).unwrap();
        let id = history.last().resolve("f").unwrap();
        assert_eq!((history.len(), history.last().node(id).unwrap().data().unwrap().len()), (3, 4));
        history.push(&Op::Sync).unwrap();
        history.refuse();
        assert_eq!(
            history.durable(4, Scope::Volume),
            DurableSet::default(),
            "a sync that failed makes nothing durable"
        );
        assert_eq!(history.push(&"create f".parse().unwrap()), Err(Errno::EXIST));
        assert_eq!(history.len(), 5);
    }
}
