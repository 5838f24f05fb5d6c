//! Runs and records one workload, and verifies every state that a crash could have left.
//!
//! A state is recovered as in its mode; then the checker must find nothing, the tree must satisfy the mode's guarantee,
//! a second recovery must write nothing, and the volume must support further operations. For a sample of states the
//! recovery itself is recorded and interrupted at every write, and a sample is checked by e2fsck.
//!
//! 1. Each distinct content (by fingerprint) is recovered, checked and read once, and compared with the guarantee once
//!    per moment.
//! 2. The first finding ends a workload.
//! 3. A panic of the system under test is a finding.

use std::any::Any;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;

use blockdev::{BlockDevice, Overlay};
use rustix::io::Errno;
use serde::Serialize;
use simdev::{Log, Record, Trace};

use crate::enumerate::{self, BEGIN, Choice, Crash, END, Limits};
use crate::execute::{self, Answer};
use crate::guarantee::{self, Moment, Recovery};
use crate::history::History;
use crate::model::State;
use crate::op::{NoOp, Op, Workload};
use crate::system::{Refused, System};

/// The options of an exploration: its thoroughness.
#[derive(Debug, Clone)]
pub struct Options {
    /// The limits on the states to construct.
    pub limits: Limits,
    /// Run further operations on every N-th distinct state; 0 for none.
    pub work_on_every: u64,
    /// Interrupt the recovery of every N-th distinct state; 0 for none.
    pub nested_every: u64,
    /// Interrupt the recovery again in every N-th state left by such an interruption; 0 for none.
    pub deeper_every: u64,
    /// Mount every N-th distinct state as it is, run some operations, and lose power again; 0 for none. Only where a
    /// mount recovers.
    pub again_every: u64,
    /// Check every N-th distinct state with e2fsck after recovery; 0 for none.
    pub e2fsck_every: u64,
    /// The e2fsck to use.
    pub e2fsck: PathBuf,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            work_on_every: 20,
            nested_every: 50,
            deeper_every: 20,
            again_every: 50,
            e2fsck_every: 0,
            e2fsck: "e2fsck".into(),
        }
    }
}

impl Options {
    /// The arguments of `extant crash` that select these options, without defaults.
    #[must_use]
    pub fn arguments(&self) -> String {
        let default = Self::default();
        let all = [
            ("states", u64::from(self.limits.every_subset), u64::from(default.limits.every_subset)),
            ("most", self.limits.most as u64, default.limits.most as u64),
            ("seed", self.limits.seed, default.limits.seed),
            ("work-on", self.work_on_every, default.work_on_every),
            ("nested", self.nested_every, default.nested_every),
            ("deeper", self.deeper_every, default.deeper_every),
            ("again", self.again_every, default.again_every),
            ("e2fsck-every", self.e2fsck_every, default.e2fsck_every),
        ];
        all.iter().filter(|(_, is, was)| is != was).map(|(name, is, _)| format!(" --{name} {is}")).collect()
    }
}

/// The counts of an exploration, one per thread and summed up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Number of workloads run.
    pub workloads: u64,
    /// Number of operations in them.
    pub operations: u64,
    /// Operations that the volume does not support.
    pub unsupported: u64,
    /// Operations that failed, or were done only in part, for lack of space.
    pub no_space: u64,
    /// Recorded writes, each of at most 4 KiB.
    pub writes: u64,
    /// Recorded flushes.
    pub flushes: u64,
    /// States constructed.
    pub states: u64,
    /// States that differ from all others of their workload; each was recovered, checked and compared.
    pub distinct: u64,
    /// States compared with the guarantee, once per moment.
    pub compared: u64,
    /// Recovered states on which further operations were run.
    pub worked_on: u64,
    /// States left by an interrupted recovery.
    pub nested: u64,
    /// States left by an interrupted recovery of such a state.
    pub deeper: u64,
    /// States of a second loss of power, during the operations after the first.
    pub again: u64,
    /// States checked by e2fsck.
    pub e2fsck: u64,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.workloads += other.workloads;
        self.operations += other.operations;
        self.unsupported += other.unsupported;
        self.no_space += other.no_space;
        self.writes += other.writes;
        self.flushes += other.flushes;
        self.states += other.states;
        self.distinct += other.distinct;
        self.compared += other.compared;
        self.worked_on += other.worked_on;
        self.nested += other.nested;
        self.deeper += other.deeper;
        self.again += other.again;
        self.e2fsck += other.e2fsck;
    }
}

/// The kind of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FindingKind {
    /// An operation has a result other than that of POSIX.
    Answer,
    /// The volume has the wrong content, or is inconsistent, even without a crash.
    Content,
    /// The volume could not be recovered.
    Recovery,
    /// The checker finds problems after recovery.
    Inconsistent,
    /// The content of the volume violates the mode's guarantee.
    Guarantee,
    /// A second recovery wrote something.
    NotIdempotent,
    /// A recovered volume does not support further operations.
    WorkAfter,
    /// A second loss of power breaks a guarantee.
    Again,
    /// An interrupted recovery leads to another result than an uninterrupted one.
    CutRecovery,
    /// e2fsck finds problems where Extant's checker finds none.
    E2fsck,
    /// A panic.
    Panic,
}

/// A broken guarantee.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The arguments of `extant crash` that reproduce the exploration.
    pub arguments: String,
    /// The workload.
    pub workload: Workload,
    /// The kind of the finding.
    pub kind: FindingKind,
    /// The state, unless there was no crash.
    pub at: Option<(Choice, Moment)>,
    /// The fault, as text.
    pub why: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.kind {
            FindingKind::Answer => "an operation returns the wrong answer",
            FindingKind::Content => "the volume is wrong even without a crash",
            FindingKind::Recovery => "recovery fails",
            FindingKind::Inconsistent => "the checker finds problems after recovery",
            FindingKind::Guarantee => "the guarantee is broken",
            FindingKind::NotIdempotent => "a second recovery is not a no-op",
            FindingKind::WorkAfter => "operations on the recovered volume fail",
            FindingKind::Again => "a second crash violates the guarantee",
            FindingKind::CutRecovery => "a crash during recovery changes the result",
            FindingKind::E2fsck => "e2fsck finds problems after recovery",
            FindingKind::Panic => "a panic",
        };
        writeln!(f, "{what}: {}", self.why)?;
        if let Some((choice, moment)) = &self.at {
            writeln!(f, "  crash in {choice}; {} of {} operations had returned", moment.returned, moment.begun)?;
        }
        write!(f, "  extant crash {} --workload '{}'", self.arguments, self.workload)
    }
}

/// The fault of one state: its kind, and a sentence.
pub(crate) type Wrong = (FindingKind, String);

/// A volume after the setup: the start of the exploration of many workloads.
pub(crate) struct Start {
    pub(crate) device: Overlay,
    pub(crate) state: State,
    /// The volume ran out of space during the setup.
    full: bool,
}

/// Explores workloads one after the other; one per thread.
pub struct Explorer<'a> {
    system: &'a dyn System,
    options: &'a Options,
    starts: HashMap<Vec<Op>, Arc<Start>>,
    fresh: Option<Arc<dyn BlockDevice>>,
    /// The counts so far.
    pub counts: Counts,
}

impl<'a> Explorer<'a> {
    /// An explorer of this system.
    #[must_use]
    pub fn new(system: &'a dyn System, options: &'a Options) -> Self {
        Self { system, options, starts: HashMap::new(), fresh: None, counts: Counts::default() }
    }

    /// Explores one workload; the first finding ends it.
    pub fn explore(&mut self, workload: &Workload) -> Option<Finding> {
        self.counts.workloads += 1;
        let mut at = None;
        let outcome = catch_unwind(AssertUnwindSafe(|| self.run(workload, &mut at)));
        let (kind, why) = match outcome {
            Ok(Ok(())) => return None,
            Ok(Err(wrong)) => wrong,
            Err(panic) => (FindingKind::Panic, panic_message(&*panic)),
        };
        let arguments = self.system.arguments() + &self.options.arguments();
        Some(Finding { arguments, workload: workload.clone(), kind, at, why })
    }

    fn run(&mut self, workload: &Workload, at: &mut Option<(Choice, Moment)>) -> Result<(), Wrong> {
        let start = self.start(&workload.setup)?;
        let no_space = self.counts.no_space;
        let record = Arc::new(Record::in_memory(start.device.clone()));
        let history = self.record(&record, &start.state, &workload.ops)?;
        let log = record.log().map_err(internal)?;
        let whole = start.device.clone();
        log.replay_to(log.entries().len(), &whole).map_err(internal)?;
        self.consistent_and_same(&whole, history.last())?;
        let mut verifier = Verifier {
            system: self.system,
            options: self.options,
            history: &history,
            full: start.full || self.counts.no_space > no_space,
            contents: HashMap::new(),
            compared: HashSet::new(),
            counts: &mut self.counts,
        };
        for entry in log.entries() {
            match entry.what {
                simdev::Logged::Write { len, .. } => verifier.counts.writes += len.div_ceil(4096),
                simdev::Logged::Flush => verifier.counts.flushes += 1,
                _ => {}
            }
        }
        let limits = Limits { whole: self.system.whole(), ..self.options.limits.clone() };
        let found = enumerate::states(&log, &start.device, &limits, |crash| {
            // known even if the verification panics
            *at = Some((crash.choice.clone(), crash.moment));
            match verifier.state(&crash) {
                Ok(()) => ControlFlow::Continue(()),
                Err(wrong) => ControlFlow::Break(wrong),
            }
        });
        match found.map_err(internal)? {
            Some(wrong) => Err(wrong),
            None => Ok(()),
        }
    }

    /// A volume after `setup`, unmounted.
    pub(crate) fn start(&mut self, setup: &[Op]) -> Result<Arc<Start>, Wrong> {
        if let Some(start) = self.starts.get(setup) {
            return Ok(start.clone());
        }
        let fresh = match &self.fresh {
            Some(fresh) => fresh.clone(),
            None => self.fresh.insert(self.system.format().map_err(|why| (FindingKind::Content, why))?).clone(),
        };
        let device = Overlay::new(fresh);
        let no_space = self.counts.no_space;
        let state = if setup.is_empty() {
            consistent(self.system, &device)?
        } else {
            let first = consistent(self.system, &device)?;
            let record = Arc::new(Record::in_memory(device.clone()));
            let history = self.record(&record, &first, setup)?;
            let log = record.log().map_err(internal)?;
            log.replay_to(log.entries().len(), &device).map_err(internal)?;
            self.consistent_and_same(&device, history.last())?
        };
        let start = Arc::new(Start { device, state, full: self.counts.no_space > no_space });
        self.starts.insert(setup.to_vec(), start.clone());
        Ok(start)
    }

    /// Runs operations on a recorded device; the last operation of the history is the unmount, as a sync.
    fn record(&mut self, record: &Arc<Record<Overlay, Vec<u8>>>, first: &State, ops: &[Op]) -> Result<History, Wrong> {
        let mut history = History::new(first.clone(), self.system.block_size());
        let answer = |why: Refused| (FindingKind::Answer, why);
        let mark = |text| record.mark(text).map_err(internal);
        let mut session = self.system.mount(record.clone()).map_err(answer)?;
        for op in ops {
            self.counts.operations += 1;
            mark(BEGIN)?;
            match execute::step(&mut *session, &mut history, op).map_err(answer)? {
                Answer::Refused(Errno::OPNOTSUPP) => self.counts.unsupported += 1,
                Answer::Refused(_) | Answer::Short => self.counts.no_space += 1,
                Answer::Done | Answer::Failed(_) | Answer::Skipped => {}
            }
            mark(END)?;
        }
        if history.last().before.is_some() {
            mark(BEGIN)?;
            execute::step(&mut *session, &mut history, &Op::Rollback).map_err(answer)?;
            mark(END)?;
        }
        // on the model this always succeeds
        let _ = history.push(&Op::Sync);
        mark(BEGIN)?;
        session.unmount().map_err(|why| (FindingKind::Answer, format!("unmounting: {why}")))?;
        mark(END)?;
        Ok(history)
    }

    fn consistent_and_same(&self, device: &Overlay, model: &State) -> Result<State, Wrong> {
        let observed = consistent(self.system, device)?;
        guarantee::same(model, &observed).map_err(|why| (FindingKind::Content, why))?;
        Ok(observed)
    }
}

/// The message of a panic.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
}

/// Checks a volume and returns its state, if the checker finds nothing.
pub(crate) fn consistent(system: &dyn System, device: &Overlay) -> Result<State, Wrong> {
    let content = |why: String| (FindingKind::Content, why);
    let problems = system.problems(device).map_err(content)?;
    if let Some(first) = problems.first() {
        return Err(content(format!("{} problems, the first: {first}", problems.len())));
    }
    system.observe(Arc::new(device.clone())).map_err(content)
}

/// An internal failure of the explorer, impossible because the device is in memory.
fn internal(e: blockdev::Error) -> Wrong {
    (FindingKind::Panic, e.to_string())
}

/// A recovered state.
struct Content {
    state: State,
    clean: bool,
}

/// Verifies the states of one workload.
struct Verifier<'a> {
    system: &'a dyn System,
    options: &'a Options,
    history: &'a History,
    /// The volume is out of space.
    full: bool,
    contents: HashMap<u128, Arc<Content>>,
    compared: HashSet<(u128, Moment)>,
    counts: &'a mut Counts,
}

impl Verifier<'_> {
    fn state(&mut self, crash: &Crash<'_>) -> Result<(), Wrong> {
        self.counts.states += 1;
        let print = crash.device.fingerprint();
        if !self.compared.insert((print, crash.moment)) {
            return Ok(());
        }
        self.counts.compared += 1;
        if let Some(content) = self.contents.get(&print) {
            return self.guarantee(crash.moment, content);
        }
        self.counts.distinct += 1;
        let recovered = Arc::new(crash.device.clone());
        let content = Arc::new(self.recover(&recovered)?);
        self.contents.insert(print, content.clone());
        self.recover_again(&recovered, &content)?;
        self.guarantee(crash.moment, &content)?;
        self.verify_sampled(crash, &recovered, &content)
    }

    fn guarantee(&self, moment: Moment, content: &Content) -> Result<(), Wrong> {
        guarantee::verify(self.system.guarantee(), self.history, moment, content.clean, &content.state)
            .map_err(|why| (FindingKind::Guarantee, why))
    }

    /// Runs the checks that are limited to a sample of the states because of their duration.
    fn verify_sampled(&mut self, crash: &Crash<'_>, recovered: &Overlay, content: &Content) -> Result<(), Wrong> {
        let number = self.counts.distinct;
        let is_due = |every: u64| every > 0 && number.is_multiple_of(every);
        if is_due(self.options.work_on_every) {
            self.counts.worked_on += 1;
            self.work_on(recovered, &content.state).map_err(|why| (FindingKind::WorkAfter, why))?;
        }
        if self.system.e2fsck_can_read() && is_due(self.options.e2fsck_every) {
            self.counts.e2fsck += 1;
            self.e2fsck(recovered)?;
        }
        if is_due(self.options.again_every) && self.system.guarantee().recovery == Recovery::Mount {
            self.crash_again(crash.device, &content.state)?;
        }
        if is_due(self.options.nested_every) {
            self.cut_recovery(crash.device, crash.moment, &content.state, true)?;
        }
        Ok(())
    }

    fn recover(&self, device: &Arc<Overlay>) -> Result<Content, Wrong> {
        let clean = self.system.recover(device.clone()).map_err(|why| (FindingKind::Recovery, why))?;
        let state = consistent(self.system, device).map_err(|(_, why)| {
            (FindingKind::Inconsistent, if clean { format!("the volume is marked clean: {why}") } else { why })
        })?;
        Ok(Content { state, clean })
    }

    /// Recovers a recovered volume again: nothing may be written; in modes in which a mount recovers, which marks the
    /// volume, no visible content may change.
    fn recover_again(&self, recovered: &Overlay, content: &Content) -> Result<(), Wrong> {
        let device = Arc::new(recovered.clone());
        let trace = Arc::new(Trace::new(device.clone()));
        self.system.recover(trace.clone()).map_err(|why| (FindingKind::Recovery, format!("second recovery: {why}")))?;
        let writes = trace.counters().writes.requests;
        let changed =
            |why: String| (FindingKind::NotIdempotent, format!("{writes} writes in the second recovery: {why}"));
        if writes == 0 {
            return Ok(());
        }
        if self.system.guarantee().recovery != Recovery::Mount {
            return Err(changed("nothing should be written".into()));
        }
        let again = consistent(self.system, &device).map_err(|(_, why)| changed(why))?;
        guarantee::same(&content.state, &again).map_err(changed)
    }

    /// Runs some operations on a recovered volume: their results and effects must be correct, and the volume
    /// consistent.
    fn work_on(&self, recovered: &Overlay, state: &State) -> Result<(), String> {
        let device = Arc::new(recovered.clone());
        let mut history = History::new(state.clone(), self.system.block_size());
        let mut session = self.system.mount(device.clone())?;
        for op in WORK_AFTER.split(';') {
            let op: Op = op.parse().map_err(|e: NoOp| e.to_string())?;
            match execute::step(&mut *session, &mut history, &op)? {
                Answer::Done => {}
                Answer::Short | Answer::Refused(_) if self.full => {}
                // a consequence of the lack of space
                Answer::Failed(_) if self.full => {}
                answer => return Err(format!("`{op}`: {answer:?}")),
            }
        }
        session.unmount()?;
        let problems = self.system.problems(&device)?;
        if let Some(first) = problems.first() {
            return Err(format!("{} problems, the first: {first}", problems.len()));
        }
        guarantee::same(history.last(), &self.system.observe(device)?)
    }

    /// Interrupts the recovery of `device` at each of its writes; recovering from that must lead to a state that the
    /// guarantee allows at that moment, and in modes in which a mount recovers, to the identical state. With `deeper`,
    /// a sample of these recoveries is interrupted again.
    fn cut_recovery(&mut self, device: &Overlay, moment: Moment, whole: &State, deeper: bool) -> Result<(), Wrong> {
        let record = Arc::new(Record::in_memory(device.clone()));
        self.system.recover(record.clone()).map_err(|why| (FindingKind::Recovery, why))?;
        let log = record.log().map_err(internal)?;
        let limits = Limits { every_subset: 4, samples: 8, ..self.options.limits.clone() };
        self.cut_states(&log, device, limits, |this, cut| {
            let count = if deeper { &mut this.counts.nested } else { &mut this.counts.deeper };
            *count += 1;
            let every = this.options.deeper_every;
            let again = deeper && every > 0 && this.counts.nested.is_multiple_of(every);
            let moment = Moment { torn: moment.torn || cut.moment.torn, ..moment };
            let verdict = this.recover(&Arc::new(cut.device.clone())).and_then(|content| {
                if this.system.guarantee().recovery == Recovery::Mount {
                    guarantee::same(whole, &content.state).map_err(|why| (FindingKind::Guarantee, why))?;
                }
                // a clean mark is now set by the recovery
                this.guarantee(moment, &Content { clean: false, ..content })?;
                if again { this.cut_recovery(cut.device, moment, whole, false) } else { Ok(()) }
            });
            verdict.map_err(|(_, why)| (FindingKind::CutRecovery, format!("in {}: {why}", cut.choice)))
        })
    }

    /// Calls `see` with each different state of a log, until it fails.
    fn cut_states(
        &mut self,
        log: &Log,
        device: &Overlay,
        limits: Limits,
        mut see: impl FnMut(&mut Self, Crash<'_>) -> Result<(), Wrong>,
    ) -> Result<(), Wrong> {
        let limits = Limits { lacking_two: 0, whole: self.system.whole(), ..limits };
        let mut seen = HashSet::new();
        let found = enumerate::states(log, device, &limits, |cut| {
            if !seen.insert(cut.device.fingerprint()) {
                return ControlFlow::Continue(());
            }
            see(self, cut).map_or_else(ControlFlow::Break, ControlFlow::Continue)
        });
        found.map_err(internal)?.map_or(Ok(()), Err)
    }

    /// Mounts the state left by a crash, runs operations, and verifies the states that a second crash may leave:
    /// `whole` and the operations since, as the mode guarantees. A write torn by the first crash must not appear
    /// complete because of a part of a later one.
    fn crash_again(&mut self, device: &Overlay, whole: &State) -> Result<(), Wrong> {
        let failed = |why: Refused| (FindingKind::Again, why);
        let record = Arc::new(Record::in_memory(device.clone()));
        let mut history = History::new(whole.clone(), self.system.block_size());
        let mut session = self.system.mount(record.clone()).map_err(failed)?;
        for op in WORK_AGAIN.split(';') {
            let op: Op = op.parse().map_err(|e: NoOp| failed(e.to_string()))?;
            record.mark(BEGIN).map_err(internal)?;
            execute::step(&mut *session, &mut history, &op).map_err(failed)?;
            record.mark(END).map_err(internal)?;
        }
        drop(session);
        let log = record.log().map_err(internal)?;
        let limits = Limits { every_subset: 3, samples: 4, ends: true, most: 60, ..self.options.limits.clone() };
        self.cut_states(&log, device, limits, |this, cut| {
            this.counts.again += 1;
            let verdict = this.recover(&Arc::new(cut.device.clone())).and_then(|content| {
                guarantee::verify(this.system.guarantee(), &history, cut.moment, content.clean, &content.state)
                    .map_err(|why| (FindingKind::Guarantee, why))
            });
            verdict.map_err(|(_, why)| (FindingKind::Again, format!("second crash in {}: {why}", cut.choice)))
        })
    }

    /// Runs `e2fsck -fn`; an error if it finds problems.
    fn e2fsck(&self, device: &Overlay) -> Result<(), Wrong> {
        let failed = |e: io::Error| (FindingKind::E2fsck, format!("cannot ask e2fsck: {e}"));
        let file = tempfile::NamedTempFile::new_in(memory()).map_err(failed)?;
        let device: Arc<dyn BlockDevice> = Arc::new(device.clone());
        self.system.write_for_e2fsck(&device, file.as_file()).map_err(|why| (FindingKind::E2fsck, why))?;
        let mut command = Command::new(&self.options.e2fsck);
        let ran = command.arg("-fn").arg(file.path()).stdin(Stdio::null()).output().map_err(failed)?;
        if ran.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&ran.stdout).into_owned();
        if self.system.is_known_to_e2fsck(&said) {
            return Ok(());
        }
        Err((FindingKind::E2fsck, format!("{}: {}", ran.status, said.split_whitespace().collect::<Vec<_>>().join(" "))))
    }
}

/// The operations that a recovered volume must support.
const WORK_AFTER: &str = "mkdir zz; create zz/a; append zz/a 5000 =901; link zz/a zz/b; rename zz/b zz/c; \
                          setxattr zz/a user.z 40 =902; sync; write zz/a 700 3000 =903; truncate zz/a 2500; \
                          create zz/d; append zz/d 3000 =904; unlink zz/a; symlink zz/c zz/l; fsync zz; unlink zz/d";

/// The operations between two crashes.
const WORK_AGAIN: &str = "create zz; append zz 3000 =905; fsync zz";

/// A folder in memory, if there is one.
fn memory() -> PathBuf {
    let shm = PathBuf::from("/dev/shm");
    if shm.is_dir() { shm } else { std::env::temp_dir() }
}
