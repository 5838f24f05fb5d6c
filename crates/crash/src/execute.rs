//! Runs one operation on a mounted volume and on the model, and compares the results. It drives any kind of mount: the
//! library, a FUSE mount, the kernel's mount.

use rustix::io::Errno;

use crate::history::History;
use crate::model::State;
use crate::op::{FallocateHow, Op};
use crate::system::Session;

/// The outcome of one operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Success.
    Done,
    /// Space for only a part of the data; the history has that part.
    Short,
    /// Not supported, or no space: nothing happened, and the history records that; of a range to be zeroed, some bytes
    /// may be zero.
    Refused(Errno),
    /// The expected failure.
    Failed(Errno),
    /// A mistake of the workload; the operation was not run on the volume.
    Skipped,
}

/// Whether the errno is one that the model cannot predict.
pub(crate) fn is_refusal(errno: Errno) -> bool {
    matches!(errno, Errno::OPNOTSUPP | Errno::NOSPC | Errno::DQUOT)
}

/// Whether the workload is invalid: a file that is not open, a name in use, a file larger than the model allows.
pub(crate) fn is_mistake(expected: Result<(), Errno>) -> bool {
    matches!(expected, Err(Errno::BADF | Errno::BUSY | Errno::FBIG))
}

/// Runs an operation in a session and returns the result; bytes that it reads are compared with the model in its state
/// after the operation.
///
/// # Errors
/// The difference, if other bytes are read.
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

/// Runs the next operation of a history.
///
/// # Errors
/// The difference between the actual and the expected result.
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
                // as in Linux, a part was zeroed before space ran out
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
