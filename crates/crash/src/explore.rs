//! One workload from beginning to end: it is run and recorded, and every state a crash could have left is verified.
//!
//! A state is recovered as its mode recovers; then the checker must find nothing, the tree must be one that the mode
//! guarantees, a second recovery must write nothing, and the volume must bear more work. Of some states recovery itself
//! is recorded and cut everywhere, and some are shown to e2fsck.
//!
//! 1. What a state holds is recovered, checked and read once for each content (by fingerprint), and compared with
//!    the guarantee once for each moment.
//! 2. The first finding ends a workload.
//! 3. A panic of what is explored is a finding.

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
use simdev::{Record, Trace};

use crate::enumerate::{self, BEGIN, Choice, Crash, END, Limits};
use crate::guarantee::{self, Moment, Recovery};
use crate::history::History;
use crate::model::State;
use crate::op::{NoOp, Op, Workload};
use crate::play::{self, Answer};
use crate::system::{Refused, System};

/// The options of an exploration: how thoroughly it looks.
#[derive(Debug, Clone)]
pub struct Options {
    /// Which states are made.
    pub limits: Limits,
    /// Of every so many distinct states one bears more work; 0 for none.
    pub work_on_every: u64,
    /// Of every so many distinct states the recovery of one is cut in turn; 0 for none.
    pub nested_every: u64,
    /// Of every so many states that such a cut makes, the recovery is cut in turn; 0 for none.
    pub deeper_every: u64,
    /// Of every so many distinct states one is mounted as it is, worked on, and the power goes once more; 0 for none.
    /// Where a mount recovers.
    pub again_every: u64,
    /// Of every so many distinct states one is shown to e2fsck after recovery; 0 for none.
    pub e2fsck_every: u64,
    /// The e2fsck to ask.
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
    /// The arguments of `extant crash` that make these out of the default.
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

/// The counts of an exploration. Threads count for themselves and add up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Workloads that were run.
    pub workloads: u64,
    /// Operations in them.
    pub operations: u64,
    /// Operations that the volume does not support.
    pub unsupported: u64,
    /// Operations that it had no space for, or for only a part of what was to be written.
    pub no_space: u64,
    /// Writes that were recorded, each 4 KiB or less.
    pub writes: u64,
    /// Flushes that were recorded.
    pub flushes: u64,
    /// States that were made.
    pub states: u64,
    /// Of them those that differ from all others of their workload; each was recovered, checked and compared.
    pub distinct: u64,
    /// States that were compared with the guarantee, once for each moment.
    pub compared: u64,
    /// Recovered states that bore more work.
    pub worked_on: u64,
    /// States made by cutting a recovery.
    pub nested: u64,
    /// States made by cutting the recovery of such a state.
    pub deeper: u64,
    /// States of a second loss of power, in the work after the first.
    pub again: u64,
    /// States that e2fsck has looked at.
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
pub enum Kind {
    /// An operation answered what POSIX does not.
    Answer,
    /// Without any crash the volume does not contain what it should, or is inconsistent.
    Content,
    /// The volume could not be recovered.
    Recovery,
    /// The checker finds problems after recovery.
    Inconsistent,
    /// The volume holds what the mode's guarantee excludes.
    Guarantee,
    /// A second recovery wrote something.
    NotIdempotent,
    /// A recovered volume did not bear more work.
    WorkAfter,
    /// A second loss of power breaks a guarantee.
    Again,
    /// Recovery that was cut does not lead to what it leads to when it is not.
    CutRecovery,
    /// e2fsck finds problems where our checker finds none.
    E2fsck,
    /// A panic.
    Panic,
}

/// A broken guarantee.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The arguments of `extant crash` that choose what was explored, and how.
    pub arguments: String,
    /// The workload.
    pub workload: Workload,
    /// The kind of the finding.
    pub kind: Kind,
    /// The state, unless there was no crash.
    pub at: Option<(Choice, Moment)>,
    /// The fault, in words.
    pub why: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.kind {
            Kind::Answer => "an operation returns the wrong answer",
            Kind::Content => "the volume is wrong without a crash",
            Kind::Recovery => "recovery fails",
            Kind::Inconsistent => "the checker finds problems after recovery",
            Kind::Guarantee => "the guarantee is broken",
            Kind::NotIdempotent => "a second recovery does something",
            Kind::WorkAfter => "the recovered volume bears no more work",
            Kind::Again => "a second crash does harm",
            Kind::CutRecovery => "a crash during recovery does harm",
            Kind::E2fsck => "e2fsck finds problems after recovery",
            Kind::Panic => "a panic",
        };
        writeln!(f, "{what}: {}", self.why)?;
        if let Some((choice, moment)) = &self.at {
            writeln!(f, "  crash in {choice}; {} of {} operations had returned", moment.returned, moment.begun)?;
        }
        write!(f, "  extant crash {} --workload '{}'", self.arguments, self.workload)
    }
}

/// The fault of one state: its kind, and a sentence.
pub(crate) type Wrong = (Kind, String);

/// A volume after its setup: where the exploration of many workloads begins.
pub(crate) struct Start {
    pub(crate) device: Overlay,
    pub(crate) state: State,
    /// The setup met the end of the volume's space.
    full: bool,
}

/// Explores workloads one after the other. Each thread has its own.
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
            Err(panic) => (Kind::Panic, panic_message(&*panic)),
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
            // known also where its verification panics
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

    /// The volume on which `setup` has been done, unmounted.
    pub(crate) fn start(&mut self, setup: &[Op]) -> Result<Arc<Start>, Wrong> {
        if let Some(start) = self.starts.get(setup) {
            return Ok(start.clone());
        }
        let fresh = match &self.fresh {
            Some(fresh) => fresh.clone(),
            None => self.fresh.insert(self.system.format().map_err(|why| (Kind::Content, why))?).clone(),
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

    /// Runs operations on a recorded device; the last of the history is the unmount, as a sync.
    fn record(&mut self, record: &Arc<Record<Overlay, Vec<u8>>>, first: &State, ops: &[Op]) -> Result<History, Wrong> {
        let mut history = History::new(first.clone(), self.system.block_size());
        let answer = |why: Refused| (Kind::Answer, why);
        let mark = |text| record.mark(text).map_err(internal);
        let mut session = self.system.mount(record.clone()).map_err(answer)?;
        for op in ops {
            self.counts.operations += 1;
            mark(BEGIN)?;
            match play::step(&mut *session, &mut history, op).map_err(answer)? {
                Answer::Refused(Errno::OPNOTSUPP) => self.counts.unsupported += 1,
                Answer::Refused(_) | Answer::Short => self.counts.no_space += 1,
                Answer::Done | Answer::Failed(_) | Answer::Skipped => {}
            }
            mark(END)?;
        }
        if history.last().before.is_some() {
            mark(BEGIN)?;
            play::step(&mut *session, &mut history, &Op::Rollback).map_err(answer)?;
            mark(END)?;
        }
        // the model answers nothing but success
        let _ = history.push(&Op::Sync);
        mark(BEGIN)?;
        session.unmount().map_err(|why| (Kind::Answer, format!("unmounting: {why}")))?;
        mark(END)?;
        Ok(history)
    }

    fn consistent_and_same(&self, device: &Overlay, model: &State) -> Result<State, Wrong> {
        let observed = consistent(self.system, device)?;
        guarantee::same(model, &observed).map_err(|why| (Kind::Content, why))?;
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
    let content = |why: String| (Kind::Content, why);
    let problems = system.problems(device).map_err(content)?;
    if let Some(first) = problems.first() {
        return Err(content(format!("{} problems, the first: {first}", problems.len())));
    }
    system.observe(Arc::new(device.clone())).map_err(content)
}

/// A failure of the explorer itself: the device is memory, so this does not happen.
fn internal(e: blockdev::Error) -> Wrong {
    (Kind::Panic, e.to_string())
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
    /// The volume has no space for everything.
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
        self.again(&recovered, &content)?;
        self.guarantee(crash.moment, &content)?;
        self.look_closer(crash, &recovered, &content)
    }

    fn guarantee(&self, moment: Moment, content: &Content) -> Result<(), Wrong> {
        guarantee::verify(self.system.guarantee(), self.history, moment, content.clean, &content.state)
            .map_err(|why| (Kind::Guarantee, why))
    }

    /// Runs the checks that are done with some states only, for the time they take.
    fn look_closer(&mut self, crash: &Crash<'_>, recovered: &Overlay, content: &Content) -> Result<(), Wrong> {
        let number = self.counts.distinct;
        let is_due = |every: u64| every > 0 && number.is_multiple_of(every);
        if is_due(self.options.work_on_every) {
            self.counts.worked_on += 1;
            self.work_on(recovered, &content.state).map_err(|why| (Kind::WorkAfter, why))?;
        }
        if self.system.suits_e2fsck() && is_due(self.options.e2fsck_every) {
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
        let clean = self.system.recover(device.clone()).map_err(|why| (Kind::Recovery, why))?;
        let state = consistent(self.system, device).map_err(|(_, why)| {
            (Kind::Inconsistent, if clean { format!("the volume calls itself clean: {why}") } else { why })
        })?;
        Ok(Content { state, clean })
    }

    /// Recovers a recovered volume: nothing may be written, or where a mount recovers, which marks the volume, nothing
    /// that can be seen may change.
    fn again(&self, recovered: &Overlay, content: &Content) -> Result<(), Wrong> {
        let device = Arc::new(recovered.clone());
        let trace = Arc::new(Trace::new(device.clone()));
        self.system.recover(trace.clone()).map_err(|why| (Kind::Recovery, format!("the second time: {why}")))?;
        let writes = trace.counters().writes.requests;
        let changed = |why: String| (Kind::NotIdempotent, format!("{writes} writes the second time: {why}"));
        if writes == 0 {
            return Ok(());
        }
        if self.system.guarantee().recovery != Recovery::Mount {
            return Err(changed("nothing was left to do".into()));
        }
        let again = consistent(self.system, &device).map_err(|(_, why)| changed(why))?;
        guarantee::same(&content.state, &again).map_err(changed)
    }

    /// Some operations on a recovered volume: they answer and do what they should, and leave it consistent.
    fn work_on(&self, recovered: &Overlay, state: &State) -> Result<(), String> {
        let device = Arc::new(recovered.clone());
        let mut history = History::new(state.clone(), self.system.block_size());
        let mut session = self.system.mount(device.clone())?;
        for op in WORK_AFTER.split(';') {
            let op: Op = op.parse().map_err(|e: NoOp| e.to_string())?;
            match play::step(&mut *session, &mut history, &op)? {
                Answer::Done => {}
                Answer::Short | Answer::Refused(_) if self.full => {}
                // what follows from it
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

    /// Cuts the recovery of what is on `device` at each of its writes; recovering from that must lead to what the
    /// guarantee allows at that moment, and where recovery is the mount's to the very same. Of some the recovery is cut
    /// once more, as `deeper` says.
    fn cut_recovery(&mut self, device: &Overlay, moment: Moment, whole: &State, deeper: bool) -> Result<(), Wrong> {
        let record = Arc::new(Record::in_memory(device.clone()));
        self.system.recover(record.clone()).map_err(|why| (Kind::Recovery, why))?;
        let log = record.log().map_err(internal)?;
        let limits = Limits {
            every_subset: 4,
            lacking_two: 0,
            samples: 8,
            whole: self.system.whole(),
            ..self.options.limits.clone()
        };
        let mut seen = HashSet::new();
        let found = enumerate::states(&log, device, &limits, |cut| {
            if !seen.insert(cut.device.fingerprint()) {
                return ControlFlow::Continue(());
            }
            let count = if deeper { &mut self.counts.nested } else { &mut self.counts.deeper };
            *count += 1;
            let every = self.options.deeper_every;
            let again = deeper && every > 0 && self.counts.nested.is_multiple_of(every);
            let moment = Moment { torn: moment.torn || cut.moment.torn, ..moment };
            let verdict = self.recover(&Arc::new(cut.device.clone())).and_then(|content| {
                if self.system.guarantee().recovery == Recovery::Mount {
                    guarantee::same(whole, &content.state).map_err(|why| (Kind::Guarantee, why))?;
                }
                // where it calls itself clean, that is now the word of the recovery
                self.guarantee(moment, &Content { clean: false, ..content })?;
                if again { self.cut_recovery(cut.device, moment, whole, false) } else { Ok(()) }
            });
            match verdict {
                Ok(()) => ControlFlow::Continue(()),
                Err((_, why)) => ControlFlow::Break((Kind::CutRecovery, format!("in {}: {why}", cut.choice))),
            }
        });
        found.map_err(internal)?.map_or(Ok(()), Err)
    }

    /// Mounts what a crash left, works on it, and looks at what a second crash may leave of that: `whole` and what was
    /// done since, as the mode guarantees. What the first crash tore must not become whole by a part of what comes
    /// next.
    fn crash_again(&mut self, device: &Overlay, whole: &State) -> Result<(), Wrong> {
        let failed = |why: Refused| (Kind::Again, why);
        let record = Arc::new(Record::in_memory(device.clone()));
        let mut history = History::new(whole.clone(), self.system.block_size());
        let mut session = self.system.mount(record.clone()).map_err(failed)?;
        for op in WORK_AGAIN.split(';') {
            let op: Op = op.parse().map_err(|e: NoOp| failed(e.to_string()))?;
            record.mark(BEGIN).map_err(internal)?;
            play::step(&mut *session, &mut history, &op).map_err(failed)?;
            record.mark(END).map_err(internal)?;
        }
        drop(session);
        let log = record.log().map_err(internal)?;
        let limits = Limits {
            every_subset: 3,
            lacking_two: 0,
            samples: 4,
            ends: true,
            most: 60,
            whole: self.system.whole(),
            ..self.options.limits.clone()
        };
        let mut seen = HashSet::new();
        let found = enumerate::states(&log, device, &limits, |cut| {
            if !seen.insert(cut.device.fingerprint()) {
                return ControlFlow::Continue(());
            }
            self.counts.again += 1;
            let verdict = self.recover(&Arc::new(cut.device.clone())).and_then(|content| {
                guarantee::verify(self.system.guarantee(), &history, cut.moment, content.clean, &content.state)
                    .map_err(|why| (Kind::Guarantee, why))
            });
            match verdict {
                Ok(()) => ControlFlow::Continue(()),
                Err((_, why)) => ControlFlow::Break((Kind::Again, format!("the second in {}: {why}", cut.choice))),
            }
        });
        found.map_err(internal)?.map_or(Ok(()), Err)
    }

    /// The verdict of `e2fsck -fn`.
    fn e2fsck(&self, device: &Overlay) -> Result<(), Wrong> {
        let failed = |e: io::Error| (Kind::E2fsck, format!("cannot ask e2fsck: {e}"));
        let file = tempfile::NamedTempFile::new_in(memory()).map_err(failed)?;
        let device: Arc<dyn BlockDevice> = Arc::new(device.clone());
        self.system.write_for_e2fsck(&device, file.as_file()).map_err(|why| (Kind::E2fsck, why))?;
        let mut command = Command::new(&self.options.e2fsck);
        let ran = command.arg("-fn").arg(file.path()).stdin(Stdio::null()).output().map_err(failed)?;
        if ran.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&ran.stdout).into_owned();
        if self.system.is_known_to_e2fsck(&said) {
            return Ok(());
        }
        Err((Kind::E2fsck, format!("{}: {}", ran.status, said.split_whitespace().collect::<Vec<_>>().join(" "))))
    }
}

/// The operations that a recovered volume must bear.
const WORK_AFTER: &str = "mkdir zz; create zz/a; append zz/a 5000 =901; link zz/a zz/b; rename zz/b zz/c; \
                          setxattr zz/a user.z 40 =902; sync; write zz/a 700 3000 =903; truncate zz/a 2500; \
                          create zz/d; append zz/d 3000 =904; unlink zz/a; symlink zz/c zz/l; fsync zz; unlink zz/d";

/// The operations between two crashes.
const WORK_AGAIN: &str = "create zz; append zz 3000 =905; fsync zz";

/// A folder in memory where there is one.
fn memory() -> PathBuf {
    let shm = PathBuf::from("/dev/shm");
    if shm.is_dir() { shm } else { std::env::temp_dir() }
}
