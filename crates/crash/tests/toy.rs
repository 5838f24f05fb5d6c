//! The explorer on a file system of a hundred lines: the correct one passes, and each bug in it is detected.
//!
//! The toy has one directory of small files. A commit writes it completely to one of two slots, flushes, and writes a
//! head with the slot, its sequence number and its checksum; reading uses the newest head with a complete slot.

use blockdev::{BlockDevice, MemoryDevice};
use extant_crash::campaign;
use extant_crash::explore::{Explorer, FindingKind, Options};
use extant_crash::guarantee::Guarantee;
use extant_crash::model::{Body, Node, State};
use extant_crash::op::{Op, Workload};
use extant_crash::system::{Refused, Session, System};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The offsets of the heads and the slots, in bytes.
const HEADS: [u64; 2] = [0, 512];
const SLOTS: [u64; 2] = [65536, 131072];

/// The fault of the toy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bug {
    None,
    NoFlushAfterHead,
    /// Also the checksum is not verified, which would compensate.
    HeadFirst,
    SameSlot,
    FsyncForgotten,
    RecoveryErasesFirst,
    WrongAnswer,
    LosesOnUnmount,
    PanicsOnLink,
    ReadsWrong,
}

struct Toy(Bug);

impl Toy {
    fn commit(&self, device: &dyn BlockDevice, state: &State, sequence: u64) -> Result<(), Refused> {
        let said = |e: blockdev::Error| e.to_string();
        let slot = if self.0 == Bug::SameSlot { 0 } else { (sequence % 2) as usize };
        let bytes = encode(state);
        let mut head = sequence.to_le_bytes().to_vec();
        head.extend((bytes.len() as u64).to_le_bytes());
        head.extend(sum(&bytes).to_le_bytes());
        head.push(slot as u8);
        if self.0 == Bug::HeadFirst {
            device.write(HEADS[(sequence % 2) as usize], &head).map_err(said)?;
            device.flush().map_err(said)?;
        }
        for (number, piece) in bytes.chunks(1024).enumerate() {
            device.write(SLOTS[slot] + number as u64 * 1024, piece).map_err(said)?;
        }
        device.flush().map_err(said)?;
        device.write(HEADS[(sequence % 2) as usize], &head).map_err(said)?;
        if self.0 == Bug::NoFlushAfterHead { Ok(()) } else { device.flush().map_err(said) }
    }

    fn load(&self, device: &dyn BlockDevice) -> Result<(State, u64), Refused> {
        let mut found = None;
        for at in HEADS {
            let mut head = [0; 25];
            device.read(at, &mut head).map_err(|e| e.to_string())?;
            let number = |from: usize| u64::from_le_bytes(head[from..from + 8].try_into().unwrap());
            let (sequence, len, slot) = (number(0), number(8), usize::from(head[24]));
            if len > 60_000 || slot > 1 || sequence == 0 {
                continue;
            }
            let mut bytes = vec![0; len as usize];
            device.read(SLOTS[slot], &mut bytes).map_err(|e| e.to_string())?;
            let whole = sum(&bytes) == number(16) || self.0 == Bug::HeadFirst;
            if whole && found.as_ref().is_none_or(|(_, newest)| *newest < sequence) {
                found = Some((decode(&bytes), sequence));
            }
        }
        found.ok_or_else(|| "no complete slot".into())
    }
}

fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01B3))
}

/// Name, content, name, content …, each preceded by its length.
fn encode(state: &State) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (path, id) in state.paths().into_iter().skip(1) {
        let data = state.node(id).unwrap().data().unwrap().clone();
        for part in [path.as_bytes(), &data] {
            bytes.extend((part.len() as u32).to_le_bytes());
            bytes.extend(part);
        }
    }
    bytes
}

fn decode(bytes: &[u8]) -> State {
    let mut state = State::empty();
    let mut entries = BTreeMap::new();
    let mut parts = Vec::new();
    let mut rest = bytes;
    while let Some((len, after)) = rest.split_at_checked(4) {
        let len = u32::from_le_bytes(len.try_into().unwrap()) as usize;
        let Some((part, after)) = after.split_at_checked(len) else { break };
        parts.push(part);
        rest = after;
    }
    for (number, pair) in parts.chunks_exact(2).enumerate() {
        let id = 10 + number as u64;
        let body = Body::File(Arc::new(pair[1].to_vec()));
        entries.insert(String::from_utf8_lossy(pair[0]).into_owned(), id);
        state.nodes.insert(id, Arc::new(Node { mode: 0o644, links: 1, xattrs: BTreeMap::new(), body }));
    }
    state.nodes.insert(2, Arc::new(Node { mode: 0o755, links: 2, xattrs: BTreeMap::new(), body: Body::Dir(entries) }));
    state
}

struct Mounted {
    toy: Toy,
    device: Arc<dyn BlockDevice>,
    state: State,
    sequence: u64,
}

impl Mounted {
    fn commit(&mut self) -> Result<(), Refused> {
        self.sequence += 1;
        self.toy.commit(&*self.device, &self.state, self.sequence)
    }
}

impl Session for Mounted {
    fn apply(&mut self, op: &Op) -> Result<u64, Errno> {
        match op {
            Op::Create { .. } | Op::Unlink { .. } | Op::Rename { .. } | Op::Append { .. } | Op::Write { .. } => {}
            Op::Link { .. } if self.toy.0 == Bug::PanicsOnLink => panic!("no links here"),
            Op::Sync | Op::Fsync { .. } | Op::Fdatasync { .. } => {
                self.state.apply(op, 1024)?;
                if self.toy.0 != Bug::FsyncForgotten {
                    self.commit().map_err(|_| Errno::IO)?;
                }
                return Ok(0);
            }
            _ => return Err(Errno::OPNOTSUPP),
        }
        if self.toy.0 == Bug::WrongAnswer && matches!(op, Op::Create { .. }) {
            let _ = self.state.apply(op, 1024);
            return Ok(0);
        }
        self.state.apply(op, 1024)?;
        Ok(if let Op::Append { len, .. } | Op::Write { len, .. } = op { *len } else { 0 })
    }

    fn read(&mut self, path: &str) -> Result<Vec<u8>, Errno> {
        let node = self.state.node(self.state.resolve(path)?).ok_or(Errno::NOENT)?;
        let mut bytes = node.data().ok_or(Errno::ISDIR)?.to_vec();
        if self.toy.0 == Bug::ReadsWrong {
            bytes.reverse();
        }
        Ok(bytes)
    }

    fn unmount(mut self: Box<Self>) -> Result<(), Refused> {
        if self.toy.0 == Bug::LosesOnUnmount { Ok(()) } else { self.commit() }
    }
}

impl System for Toy {
    fn arguments(&self) -> String {
        "--mode toy".into()
    }

    fn guarantee(&self) -> &'static Guarantee {
        Guarantee::of("journal-data").unwrap()
    }

    fn block_size(&self) -> u64 {
        1024
    }

    fn format(&self) -> Result<Arc<dyn BlockDevice>, Refused> {
        let device = Arc::new(MemoryDevice::zeroed(1 << 18).map_err(|e| e.to_string())?);
        Toy(Bug::None).commit(&*device, &State::empty(), 1)?;
        Ok(device)
    }

    fn mount(&self, device: Arc<dyn BlockDevice>) -> Result<Box<dyn Session>, Refused> {
        let (state, sequence) = self.load(&*device)?;
        Ok(Box::new(Mounted { toy: Toy(self.0), device, state, sequence }))
    }

    fn recover(&self, device: Arc<dyn BlockDevice>) -> Result<bool, Refused> {
        let (state, sequence) = self.load(&*device)?;
        if self.0 == Bug::RecoveryErasesFirst {
            HEADS
                .iter()
                .try_for_each(|at| device.write(*at, &[0; 25]))
                .and_then(|()| device.flush())
                .map_err(|e| e.to_string())?;
            self.commit(&*device, &state, sequence + 1)?;
        }
        Ok(false)
    }

    fn problems(&self, _: &dyn BlockDevice) -> Result<Vec<String>, Refused> {
        Ok(Vec::new())
    }

    fn observe(&self, device: Arc<dyn BlockDevice>) -> Result<State, Refused> {
        Ok(self.load(&*device)?.0)
    }
}

const WORK: &str = "create a; append a 3000 =1; create x | create b; append b 500 =2; fsync b; rename b a; create c; \
                    create c; append c 3000 =3; read c; sync; unlink x; append a 100 =4; fsync a; link a d; create e";

/// The toy does not support the operations after recovery.
fn options() -> Options {
    Options { work_on_every: 0, nested_every: 7, ..Options::default() }
}

#[test]
fn the_correct_toy_passes() {
    let (toy, options) = (Toy(Bug::None), options());
    let mut explorer = Explorer::new(&toy, &options);
    assert_eq!(explorer.explore(&WORK.parse().unwrap()), None);
    let counts = explorer.counts;
    assert!(counts.distinct > 30 && counts.states > counts.distinct, "{counts:?}");
    assert_eq!((counts.workloads, counts.unsupported), (1, 1));
}

#[test]
fn every_broken_toy_is_caught() {
    for (bug, kind) in [
        (Bug::NoFlushAfterHead, FindingKind::Guarantee),
        (Bug::HeadFirst, FindingKind::Guarantee),
        (Bug::SameSlot, FindingKind::Guarantee),
        (Bug::FsyncForgotten, FindingKind::Guarantee),
        (Bug::RecoveryErasesFirst, FindingKind::CutRecovery),
        (Bug::WrongAnswer, FindingKind::Answer),
        (Bug::LosesOnUnmount, FindingKind::Content),
        (Bug::PanicsOnLink, FindingKind::Panic),
        (Bug::ReadsWrong, FindingKind::Answer),
    ] {
        let (toy, options) = (Toy(bug), options());
        let found = Explorer::new(&toy, &options).explore(&WORK.parse().unwrap());
        let found = found.unwrap_or_else(|| panic!("{bug:?} is not detected"));
        assert_eq!(found.kind, kind, "{bug:?}: {found}");
    }
}

#[test]
fn a_finding_is_made_small_and_can_be_repeated() {
    let (toy, options) = (Toy(Bug::FsyncForgotten), options());
    let workloads: Vec<Workload> = vec![WORK.parse().unwrap(); 3];
    let report = campaign::run(&toy, &workloads, &options, 2, 1, &|_| {});
    let [found] = &report.findings[..] else { panic!("{report:?}") };
    assert!(found.workload.ops.len() <= 2, "{found}");
    let text = found.to_string();
    let (_, command) = text.split_once("--workload '").unwrap();
    let again: Workload = command.trim_end_matches('\'').parse().unwrap();
    assert_eq!(again, found.workload);
    assert_eq!(Explorer::new(&toy, &options).explore(&again).unwrap().kind, FindingKind::Guarantee);
    // the arguments name the closer checks if they found the bug
    let toy = Toy(Bug::RecoveryErasesFirst);
    let report = campaign::run(&toy, &workloads, &options, 1, 1, &|_| {});
    assert_eq!(report.findings[0].arguments, "--mode toy --work-on 0 --nested 1 --deeper 0 --again 0");
}
