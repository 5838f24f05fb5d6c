//! Runs one workload on a device whose n-th request fails, for every n, and verifies the results, the later writes, and
//! the content of the volume when it is opened without faults.
//!
//! 1. No panic, and no endless loop: a run may issue only a few times the requests of a run without faults.
//! 2. After a failed write or flush, no durability call succeeds, no operation changes anything, and nothing is
//!    written; the rest of the batch with the failure has already been submitted.
//! 3. A failed read returns an error (EIO, or ENOSPC if the maps of free space cannot be read), or has no effect at
//!    all. An operation that zeroes bytes may have zeroed some.
//! 4. The volume is recovered as in its mode, once with everything written, and once without the writes that no flush
//!    has followed. The checker must find nothing, and the guarantee of the mode must hold for the operations that had
//!    returned before the failure. A volume marked clean is verified as such: it may well be clean after a failed
//!    write, if that was the first.
//! 5. If the volume could be unmounted in spite of a failed read, it is consistent without recovery, and a successful
//!    sync after the failure has made everything before the failed operation durable.

use parking_lot::{Mutex, MutexGuard};
use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use blockdev::{BlockDevice, Error, Geometry, Op as Request, Read, Result, Write};
use rustix::io::Errno;
use serde::Serialize;
use simdev::{Fault, Faulty, Logged, Record};

use crate::execute;
use crate::explore::{Explorer, Start, consistent, panic_message};
use crate::guarantee::{self, Moment};
use crate::history::History;
use crate::op::{FallocateHow, Op, Workload};
use crate::system::{Session, System};

/// The request that fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FailedRequest {
    /// Index of the request among all requests, from 0.
    pub request: u64,
    /// The kind of that request.
    pub kind: Request,
    /// Whether all later requests fail as well.
    pub permanent: bool,
}

impl fmt::Display for FailedRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { request, kind, permanent } = self;
        write!(f, "request {request}, a {kind}, fails{}", if *permanent { ", and so do all later ones" } else { "" })
    }
}

/// The counts of workloads and runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Number of workloads.
    pub workloads: u64,
    /// Number of runs in which a read failed first.
    pub reads: u64,
    /// Number of runs in which a write failed first.
    pub writes: u64,
    /// Number of runs in which a flush failed first.
    pub flushes: u64,
    /// Number of runs in which some call returned an error.
    pub answered: u64,
    /// Number of runs after which the volume could be unmounted normally.
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
struct RunOutcome {
    /// The requests in order.
    requests: Vec<Request>,
    /// Operations that the volume does not support or has no space for.
    refused: Vec<usize>,
    answered: bool,
    unmounted: bool,
}

/// Runs the workload without faults, and then with every read, write and flush failing, once and permanently; if there
/// are more than `limit` of a kind, with `limit` of them, evenly spread. Returns the errors found, each with the
/// arguments, the workload and the failure that reproduce it.
pub fn every_request(system: &dyn System, workload: &Workload, limit: usize, counts: &mut Counts) -> Vec<String> {
    counts.workloads += 1;
    let options = crate::explore::Options::default();
    let mut explorer = Explorer::new(system, &options);
    let wrong = |failure: &str, why: String| {
        format!("{failure}: {why}\n  extant crash {} --faults {limit} --workload '{workload}'", system.arguments())
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
            for permanent in [false, true] {
                let failure = FailedRequest { request, kind, permanent };
                match kind {
                    Request::Read => counts.reads += 1,
                    Request::Write => counts.writes += 1,
                    _ => counts.flushes += 1,
                }
                let one = || run(system, &start, &workload.ops, Some(failure), &refused, most);
                match catch_unwind(AssertUnwindSafe(one)) {
                    Ok(Ok(ran)) => {
                        counts.answered += u64::from(ran.answered);
                        counts.unmounted += u64::from(ran.unmounted);
                    }
                    Ok(Err(why)) => found.push(wrong(&failure.to_string(), why)),
                    Err(panic) => {
                        found.push(wrong(&failure.to_string(), format!("a panic: {}", panic_message(&*panic))));
                    }
                }
            }
        }
    }
    found
}

/// Runs a workload once and verifies the resulting volume.
fn run(
    system: &dyn System,
    start: &Start,
    ops: &[Op],
    failure: Option<FailedRequest>,
    known: &[usize],
    most: u64,
) -> std::result::Result<RunOutcome, String> {
    let plan = failure.map(|FailedRequest { request, permanent, .. }| match permanent {
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
        Err(why) if failure.is_none() => return Err(why),
        Err(_) => answered = true,
        Ok(mut session) => {
            for (number, op) in ops.iter().enumerate() {
                let before = history.clone();
                let expected = history.push(op);
                if execute::is_mistake(expected) {
                    returned = history.len();
                    continue;
                }
                let got = execute::ask(&mut *session, op, history.last())?;
                if let Some(shorter) = got.ok().and_then(|written| op.shortened(written)) {
                    // no space for the rest, possibly because of a fault
                    let _ = history.replace(&shorter);
                }
                let got = got.map(|_| ());
                if watch.failed() && op.is_sync() && got.is_ok() {
                    return Err(format!("`{op}` succeeds although a write or flush has failed"));
                }
                // if only a fault causes this result, it counts as an error: free space that cannot be read
                let lacks = got.is_err_and(execute::is_refusal);
                if lacks && (failure.is_none() || known.contains(&number)) {
                    refused.push(number);
                    history.refuse();
                } else if got != expected {
                    if failure.is_none() || !matches!(got, Err(Errno::IO | Errno::ROFS | Errno::NOSPC)) {
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
            unmounted = end(session, failure.is_none(), || watch.failed())?;
            answered |= !unmounted;
        }
    }
    let seen = watch.seen();
    if seen.after_failure > 0 {
        return Err(format!("{} requests to change the device after a failed one", seen.after_failure));
    }
    if unmounted && !answered {
        // every call has reported success
        let _ = history.push(&Op::Sync);
        returned = history.len();
    }
    let moment = Moment { returned, begun: history.len(), torn: false };
    verify(system, start, &record, &history, moment, unmounted)?;
    Ok(RunOutcome { requests: seen.requests.clone(), refused, answered, unmounted })
}

/// Adds the effects of a failed operation to the history, which had the state `before` it. Returns the length of the
/// durable history, if a sync succeeded afterwards.
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
        // everything before the failed operation is durable now
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

/// Ends a session; returns whether unmounting succeeded. After a failed write or flush, nothing may succeed.
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

/// The content of a file after a failed operation that zeroes bytes of it, if it was done in part.
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

/// Opens the content of the device without faults, and verifies it.
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
    /// Number of requests to change the device since then.
    after_failure: u64,
}

/// A device that counts requests and observes those after a failure.
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
        assert!(!endless, "more than {} requests: possibly endless", self.most);
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
