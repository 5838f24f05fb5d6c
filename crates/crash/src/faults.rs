//! One workload on a device whose n-th request fails, for every n: what is answered, what is still written, and what is
//! on the volume when it is opened again without faults.
//!
//! 1. Nothing panics, and nothing goes on for ever: a run may make only a few times the requests of one without faults.
//! 2. After a write or a flush has failed, no call that asks for durability succeeds, no operation changes anything,
//!    and nothing is written; the rest of the batch in which the failure was is on its way already.
//! 3. A failed read is answered with an error (of input and output, or that there is no space where the maps of free
//!    space cannot be read), or does not matter at all.
//!    An operation that was to zero bytes may have zeroed some.
//! 4. The volume is recovered as its mode recovers, once with all that was written, and once without what no flush has
//!    followed. The checker must find nothing, and the guarantee of the mode must hold for what had returned before the
//!    failure. One that calls itself clean is verified as such: a failed write may well leave it clean, where it was to
//!    be the first.
//! 5. Where the volume could be unmounted in spite of a failed read, it is consistent without recovery, and a sync that
//!    succeeded after the failure has made everything before the failed operation durable.

use parking_lot::{Mutex, MutexGuard};
use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use blockdev::{BlockDevice, Error, Geometry, Op as Request, Read, Result, Write};
use rustix::io::Errno;
use serde::Serialize;
use simdev::{Fault, Faulty, Logged, Record};

use crate::explore::{Explorer, Start, consistent, panic_message};
use crate::guarantee::{self, Moment};
use crate::history::History;
use crate::op::{FallocateHow, Op, Workload};
use crate::play;
use crate::system::{Session, System};

/// The request that fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Strike {
    /// Which of all requests, from 0.
    pub request: u64,
    /// The kind of that request.
    pub kind: Request,
    /// All requests after it fail as well.
    pub for_ever: bool,
}

impl fmt::Display for Strike {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { request, kind, for_ever } = self;
        write!(f, "request {request}, a {kind}, fails{}", if *for_ever { " as do all after it" } else { "" })
    }
}

/// The counts of workloads and runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Workloads.
    pub workloads: u64,
    /// Runs in which a read failed first.
    pub reads: u64,
    /// Runs in which a write failed first.
    pub writes: u64,
    /// Runs in which a flush failed first.
    pub flushes: u64,
    /// Runs in which some call answered with an error.
    pub answered: u64,
    /// Runs after which the volume could be unmounted as if nothing had happened.
    pub unmounted: u64,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.workloads += other.workloads;
        self.reads += other.reads;
        self.writes += other.writes;
        self.flushes += other.flushes;
        self.answered += other.answered;
        self.unmounted += other.unmounted;
    }
}

/// The outcome of one run.
struct Ran {
    /// The requests, in their order.
    requests: Vec<Request>,
    /// Operations that the volume does not support or has no space for.
    refused: Vec<usize>,
    answered: bool,
    unmounted: bool,
}

/// Runs the workload without faults and then with every read, write and flush failing, once and for ever after; where
/// there are more than `limit` of a kind, with `limit` of them, evenly spread. Returns what was found to be wrong, each
/// with the arguments, the workload and the failure that repeat it.
pub fn every_request(system: &dyn System, workload: &Workload, limit: usize, counts: &mut Counts) -> Vec<String> {
    counts.workloads += 1;
    let options = crate::explore::Options::default();
    let mut explorer = Explorer::new(system, &options);
    let wrong = |strike: &str, why: String| {
        format!("{strike}: {why}\n  extant crash {} --faults {limit} --workload '{workload}'", system.arguments())
    };
    let start = match explorer.start(&workload.setup) {
        Ok(start) => start,
        Err((_, why)) => return vec![wrong("the setup", why)],
    };
    let (requests, refused) = match run(system, &start, &workload.ops, None, &[], u64::MAX) {
        Ok(ran) => (ran.requests, ran.refused),
        Err(why) => return vec![wrong("without faults", why)],
    };
    let most = 8 * requests.len() as u64 + 1000;
    let mut found = Vec::new();
    for kind in [Request::Read, Request::Write, Request::Flush] {
        let all: Vec<u64> = (0..).zip(&requests).filter(|(_, k)| **k == kind).map(|(number, _)| number).collect();
        for &request in all.iter().step_by(all.len().div_ceil(limit.max(1)).max(1)) {
            for for_ever in [false, true] {
                let strike = Strike { request, kind, for_ever };
                match kind {
                    Request::Read => counts.reads += 1,
                    Request::Write => counts.writes += 1,
                    _ => counts.flushes += 1,
                }
                let one = || run(system, &start, &workload.ops, Some(strike), &refused, most);
                match catch_unwind(AssertUnwindSafe(one)) {
                    Ok(Ok(ran)) => {
                        counts.answered += u64::from(ran.answered);
                        counts.unmounted += u64::from(ran.unmounted);
                    }
                    Ok(Err(why)) => found.push(wrong(&strike.to_string(), why)),
                    Err(panic) => {
                        found.push(wrong(&strike.to_string(), format!("a panic: {}", panic_message(&*panic))));
                    }
                }
            }
        }
    }
    found
}

/// One run and the judgement of what it left.
fn run(
    system: &dyn System,
    start: &Start,
    ops: &[Op],
    strike: Option<Strike>,
    known: &[usize],
    most: u64,
) -> std::result::Result<Ran, String> {
    let plan = strike.map(|Strike { request, for_ever, .. }| match for_ever {
        false => Fault::RequestError { request },
        true => Fault::Dead { request },
    });
    let record = Arc::new(Record::in_memory(start.device.clone()));
    let watch = Arc::new(Watch::new(Faulty::new(record.clone(), plan.into_iter().collect()), most));
    let mut history = History::new(start.state.clone(), system.block_size());
    let mut returned = 0;
    let (mut answered, mut unmounted) = (false, false);
    let mut refused = Vec::new();
    match system.mount(watch.clone()) {
        Err(why) if strike.is_none() => return Err(why),
        Err(_) => answered = true,
        Ok(mut session) => {
            for (number, op) in ops.iter().enumerate() {
                let before = history.clone();
                let expected = history.push(op);
                if play::is_mistake(expected) {
                    returned = history.len();
                    continue;
                }
                let got = play::ask(&mut *session, op, history.last())?;
                if let Some(shorter) = got.ok().and_then(|written| op.shortened(written)) {
                    // no space for the rest, which a fault may well bring
                    let _ = history.replace(&shorter);
                }
                let got = got.map(|_| ());
                if watch.failed() && op.is_sync() && got.is_ok() {
                    return Err(format!("`{op}` succeeds although a write or flush has failed"));
                }
                // where only a fault brings such an answer, it is an error like others: free space that cannot be read
                let lacks = got.is_err_and(play::is_refusal);
                if lacks && (strike.is_none() || known.contains(&number)) {
                    refused.push(number);
                    history.refuse();
                } else if got != expected {
                    if strike.is_none() || !matches!(got, Err(Errno::IO | Errno::ROFS | Errno::NOSPC)) {
                        return Err(format!("`{op}`: {got:?} instead of {expected:?}"));
                    }
                    answered = true;
                    if let Some(durable) = after_error(&mut *session, &mut history, before, op, watch.failed())? {
                        returned = durable;
                    }
                    break;
                }
                if watch.failed() {
                    break;
                }
                returned = history.len();
            }
            answered |= watch.failed();
            unmounted = end(session, strike.is_none(), || watch.failed())?;
            answered |= !unmounted;
        }
    }
    let seen = watch.seen();
    if seen.after_failure > 0 {
        return Err(format!("{} requests to change the device after one had failed", seen.after_failure));
    }
    if unmounted && !answered {
        // every call has said that all is well
        let _ = history.push(&Op::Sync);
        returned = history.len();
    }
    let moment = Moment { returned, begun: history.len(), torn: false };
    verify(system, start, &record, &history, moment, unmounted)?;
    Ok(Ran { requests: seen.requests.clone(), refused, answered, unmounted })
}

/// Takes what an operation that failed leaves into the history, which had the state `before` it. Returns how much of
/// the history is durable, where a sync could make it so.
fn after_error(
    session: &mut dyn Session,
    history: &mut History,
    before: History,
    op: &Op,
    has_failed: bool,
) -> std::result::Result<Option<usize>, String> {
    let in_part = (!has_failed).then(|| zeroed(session, &before, op)).flatten();
    let mut durable = None;
    if !has_failed && session.apply(&Op::Sync).is_ok() {
        // what was done before the failed operation is durable now
        *history = before;
        let _ = history.push(&Op::Sync);
        durable = Some(history.len());
        let _ = history.push(op);
    }
    if let Some((path, range, bytes)) = in_part {
        history.refuse();
        history.zeroed_in_part(path, range, bytes)?;
    }
    Ok(durable)
}

/// Ends a session; whether unmounting succeeded. After a write or flush that failed, nothing may succeed.
fn end(
    mut session: Box<dyn Session>,
    without_fault: bool,
    has_failed: impl Fn() -> bool,
) -> std::result::Result<bool, String> {
    if has_failed() {
        for text in ["mkdir zz", "fsync .", "sync"] {
            let probe = text.parse::<Op>().map_err(|e| e.to_string())?;
            if session.apply(&probe).is_ok() {
                return Err(format!("`{probe}` succeeds after a write or flush has failed"));
            }
        }
    }
    match session.unmount() {
        Ok(()) if has_failed() => Err("unmounting succeeds although a write or flush has failed".into()),
        Err(why) if without_fault => Err(format!("unmounting: {why}")),
        outcome => Ok(outcome.is_ok()),
    }
}

/// The content of a file after an operation that was to zero bytes of it has failed, where it did a part of that.
fn zeroed<'o>(session: &mut dyn Session, before: &History, op: &'o Op) -> Option<(&'o str, Range<u64>, Vec<u8>)> {
    let Op::Fallocate { path, how, offset, len } = op else { return None };
    if !matches!(how, FallocateHow::Punch | FallocateHow::Zero | FallocateHow::ZeroKeepSize) {
        return None;
    }
    let range = *offset..offset.saturating_add(*len);
    let bytes = session.read(path).ok()?;
    before.clone().zeroed_in_part(path, range.clone(), bytes.clone()).ok()?;
    Some((path, range, bytes))
}

/// Opens what is on the device without faults.
fn verify(
    system: &dyn System,
    start: &Start,
    record: &Record<blockdev::Overlay, Vec<u8>>,
    history: &History,
    moment: Moment,
    unmounted: bool,
) -> std::result::Result<(), String> {
    let log = record.log().map_err(|e| e.to_string())?;
    let all = log.entries().len();
    let flushed = log.entries().iter().rposition(|entry| matches!(entry.what, Logged::Flush)).map_or(0, |at| at + 1);
    for (what, point) in [("all that was written", all), ("what was flushed", flushed)] {
        let in_context = |why: String| format!("with {what}: {why}");
        let device = Arc::new(start.device.clone());
        log.replay_to(point, &device).map_err(|e| e.to_string())?;
        let clean =
            unmounted || system.recover(device.clone()).map_err(|why| in_context(format!("recovery: {why}")))?;
        let observed = consistent(system, &device).map_err(|(_, why)| in_context(why))?;
        guarantee::verify(system.guarantee(), history, moment, clean, &observed).map_err(in_context)?;
    }
    Ok(())
}

#[derive(Debug, Default)]
struct Seen {
    requests: Vec<Request>,
    /// A write, flush or discard has failed.
    failed: bool,
    /// Requests to change the device since.
    after_failure: u64,
}

/// A device that counts requests and sees what comes after a failure.
#[derive(Debug)]
struct Watch<D> {
    device: D,
    most: u64,
    seen: Mutex<Seen>,
}

impl<D: BlockDevice> Watch<D> {
    fn new(device: D, most: u64) -> Self {
        Self { device, most, seen: Mutex::default() }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock() // counts have no broken state
    }

    fn failed(&self) -> bool {
        self.seen().failed
    }

    fn begin(&self, kind: Request, count: usize) {
        let mut seen = self.seen();
        seen.requests.extend(std::iter::repeat_n(kind, count));
        if seen.failed && kind != Request::Read {
            seen.after_failure += count as u64;
        }
        let endless = seen.requests.len() as u64 > self.most;
        drop(seen);
        assert!(!endless, "more than {} requests: this does not end", self.most);
    }

    fn change(&self, kind: Request, make: impl FnOnce(&D) -> Result<()>) -> Result<()> {
        self.begin(kind, 1);
        make(&self.device).inspect_err(|_: &Error| self.seen().failed = true)
    }
}

impl<D: BlockDevice> BlockDevice for Watch<D> {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.begin(Request::Read, 1);
        self.device.read(offset, buf)
    }

    fn read_many(&self, reads: &mut [Read<'_>]) {
        self.begin(Request::Read, reads.len());
        self.device.read_many(reads);
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.change(Request::Write, |device| device.write(offset, data))
    }

    fn write_fresh(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.change(Request::Write, |device| device.write_fresh(offset, data))
    }

    fn write_many(&self, writes: &mut [Write<'_>]) {
        self.begin(Request::Write, writes.len());
        self.device.write_many(writes);
        self.seen().failed |= writes.iter().any(|write| write.result.is_err());
    }

    fn flush(&self) -> Result<()> {
        self.change(Request::Flush, BlockDevice::flush)
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.change(Request::Discard, |device| device.discard(offset, len))
    }
}
