//! One operation, done by a mounted volume and by the model at once, and their answers compared. Whatever mounts a
//! volume is driven by this: the library, a FUSE mount, the kernel's mount.

use rustix::io::Errno;

use crate::history::History;
use crate::model::State;
use crate::op::{FallocateHow, Op};
use crate::system::Session;

/// The outcome of one operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// It was done.
    Done,
    /// There was space for only a part of what was to be written; the history has that part.
    Short,
    /// It is not supported, or there is no space for it: nothing happened, and the history says so; where bytes were to
    /// be zeroed, some of them may be.
    Refused(Errno),
    /// It failed as it should.
    Failed(Errno),
    /// A mistake of the workload; the volume was not asked.
    Skipped,
}

/// Whether the answer is one that the model cannot know.
pub(crate) fn is_refusal(errno: Errno) -> bool {
    matches!(errno, Errno::OPNOTSUPP | Errno::NOSPC | Errno::DQUOT)
}

/// Whether the workload asks for what it may not: a file that is not open, a name that is taken, a file beyond what a
/// model may hold.
pub(crate) fn is_mistake(expected: Result<(), Errno>) -> bool {
    matches!(expected, Err(Errno::BADF | Errno::BUSY | Errno::FBIG))
}

/// Asks a session for an operation and returns its answer; the bytes that it reads are compared with the model, in its
/// state after the operation.
///
/// # Errors
/// The difference, if it reads other bytes.
pub(crate) fn ask(session: &mut dyn Session, op: &Op, model: &State) -> Result<Result<u64, Errno>, String> {
    let Op::Read { path } = op else { return Ok(session.apply(op)) };
    let read = session.read(path);
    let node = model.resolve(path).ok().and_then(|id| model.node(id));
    if let (Ok(bytes), Some(data)) = (&read, node.and_then(|node| node.data()))
        && bytes != &**data
    {
        let at = bytes.iter().zip(data.iter()).take_while(|(a, b)| a == b).count();
        return Err(format!("`{op}`: {} bytes instead of {}, different from byte {at} on", bytes.len(), data.len()));
    }
    Ok(read.map(|_| 0))
}

/// Does the next operation of a history.
///
/// # Errors
/// The difference between the answer and the one that it should be.
pub fn step(session: &mut dyn Session, history: &mut History, op: &Op) -> Result<Answer, String> {
    let expected = history.push(op);
    if is_mistake(expected) {
        return Ok(Answer::Skipped);
    }
    match (expected, ask(session, op, history.last())?) {
        (_, Err(errno)) if is_refusal(errno) => {
            if *op == Op::Commit {
                // nothing of the transaction is left
                history.replace(&Op::Rollback).map_err(|e| format!("`{op}`: {e}"))?;
                return Ok(Answer::Refused(errno));
            }
            history.refuse();
            if let Op::Fallocate { path, how, offset, len } = op
                && errno == Errno::NOSPC
                && matches!(how, FallocateHow::Zero | FallocateHow::ZeroKeepSize)
            {
                // as in Linux, what could be zeroed before space ran out is
                let read = session.read(path).map_err(|e| format!("`{op}`: {e} when it is read"))?;
                let range = *offset..offset.saturating_add(*len);
                history.zeroed_in_part(path, range, read).map_err(|why| format!("`{op}`: {why}"))?;
            }
            Ok(Answer::Refused(errno))
        }
        (Ok(()), Ok(written)) => match op.shortened(written) {
            None => Ok(Answer::Done),
            Some(shorter) => {
                history.replace(&shorter).map_err(|e| format!("`{shorter}`: {e}"))?;
                Ok(Answer::Short)
            }
        },
        (Err(expected), Err(got)) if expected == got => Ok(Answer::Failed(got)),
        (expected, got) => {
            let word = |errno: Option<Errno>| errno.map_or_else(|| "success".to_owned(), |e| e.to_string());
            Err(format!("`{op}`: {} instead of {}", word(got.err()), word(expected.err())))
        }
    }
}
