//! Sequences of requests to a mounted volume, as bytes, with snapshots and transactions. An input is two bytes (which
//! volume; what the session agrees on) and then requests of ten bytes each; what the kernel can only know from an
//! answer comes from the answers.

use crate::made;
use blockdev::{BlockDevice, MemoryDevice};
use fs::Volume;
use fs::mkfs::Kind;
use fuse::MountOptions;
use fuse_wire::{Features, Messages};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use testkit::Rng;

/// Bytes of a request in an input.
const REQUEST: usize = 10;
/// Requests of an input.
const MOST: usize = 120;
/// Requests of others that may wait for a transaction at once.
const WAITING: usize = 6;
/// The time limit for the answer to a request that waited, when nothing blocks it any more.
const PATIENCE: Duration = Duration::from_secs(15);
/// Bytes of a request's header, and of an answer's header.
const HEADER: usize = 40;
const ANSWER: usize = 16;
const ROOT: u64 = 1;
/// Among the kinds of requests: a snapshot was made; a transaction began, was committed, was rolled back.
const SNAPSHOT: u32 = 1000;
const ENDS: u32 = 2000;
/// Modes of fallocate(2), and one that is none.
const MODES: [u32; 7] = [0, 1, 3, 8, 0x10, 0x20, 0x44];

/// Kinds of requests, as the kernel numbers them.
mod kind {
    pub(super) const LOOKUP: u32 = 1;
    pub(super) const FORGET: u32 = 2;
    pub(super) const GETATTR: u32 = 3;
    pub(super) const SETATTR: u32 = 4;
    pub(super) const READLINK: u32 = 5;
    pub(super) const SYMLINK: u32 = 6;
    pub(super) const MKNOD: u32 = 8;
    pub(super) const MKDIR: u32 = 9;
    pub(super) const UNLINK: u32 = 10;
    pub(super) const RMDIR: u32 = 11;
    pub(super) const LINK: u32 = 13;
    pub(super) const OPEN: u32 = 14;
    pub(super) const READ: u32 = 15;
    pub(super) const WRITE: u32 = 16;
    pub(super) const STATFS: u32 = 17;
    pub(super) const FSYNC: u32 = 20;
    pub(super) const SETXATTR: u32 = 21;
    pub(super) const GETXATTR: u32 = 22;
    pub(super) const LISTXATTR: u32 = 23;
    pub(super) const REMOVEXATTR: u32 = 24;
    pub(super) const FLUSH: u32 = 25;
    pub(super) const OPENDIR: u32 = 27;
    pub(super) const READDIR: u32 = 28;
    pub(super) const FSYNCDIR: u32 = 30;
    pub(super) const ACCESS: u32 = 34;
    pub(super) const CREATE: u32 = 35;
    pub(super) const INTERRUPT: u32 = 36;
    pub(super) const IOCTL: u32 = 39;
    pub(super) const FALLOCATE: u32 = 43;
    pub(super) const READDIRPLUS: u32 = 44;
    pub(super) const RENAME2: u32 = 45;
    pub(super) const LSEEK: u32 = 46;
    pub(super) const COPY_FILE_RANGE: u32 = 47;
    pub(super) const SYNCFS: u32 = 50;
    pub(super) const TMPFILE: u32 = 51;
    pub(super) const STATX: u32 = 52;
}

/// The volumes that are mounted.
pub(crate) fn volumes() -> &'static [Vec<u8>] {
    static VOLUMES: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    VOLUMES.get_or_init(|| {
        vec![
            made::volume(Kind::Extant, 16 << 20, None, ""),
            made::volume(Kind::Ext4, 8 << 20, Some(1024), ""),
            made::volume(Kind::Ext2, 4 << 20, Some(1024), ""),
            made::volume(Kind::Rext3, 4 << 20, Some(1024), "^has_journal"),
            made::volume(Kind::Ext3, 8 << 20, Some(1024), ""),
        ]
    })
}

/// Random sequences, and some in which a snapshot, and a transaction, are made, used and ended.
pub(crate) fn sequences() -> Vec<Vec<u8>> {
    let mut rng = Rng::new(9);
    let mut seeds = Vec::new();
    let look = |node: u8, name: u8| [0, 0, node, name, 0, 0, 0, 0, 0, 0];
    // kinds as `Session::request` numbers them; the names of `name`
    let snapshots: [[u8; REQUEST]; 6] = [
        look(0, 0),
        look(1, 1),
        [8, 0, 2, 20, 0, 0, 0, 0, 0, 0],
        look(2, 20),
        look(3, 3),
        [10, 0, 2, 20, 0, 0, 0, 0, 0, 0],
    ];
    // a file is made, and used in a few ways, by others too while a transaction runs
    let tour: [[u8; REQUEST]; 11] = [
        [27, 0, 0, 14, 0, 0, 0, 0, 0, 0],
        look(0, 3),
        [15, 0, 1, 0, 0, 0, 0, 0, 0, 40],
        [14, 0, 1, 0, 0, 0, 0, 0, 0, 10],
        [12, 0, 2, 15, 1, 0, 0, 0, 0, 0],
        [19, 0, 1, 0, 0, 9, 0, 0, 0, 2],
        [30, 0, 1, 0, 0, 0, 1, 0, 1, 32],
        [34, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        [15, 6, 1, 0, 0, 0, 0, 0, 0, 40],
        [15, 0, 1, 0, 0, 0, 0, 0, 0, 20],
        [35, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    ];
    for volume in 0..volumes().len() as u8 {
        for n in 0..12 {
            let mut seed = vec![volume, n];
            if n % 3 == 0 {
                seed.extend(tour.concat());
            }
            let requests = rng.between(5, 40) as usize;
            if n % 3 == 1 {
                seed.extend(snapshots.concat());
            }
            if n % 3 == 2 {
                seed.extend([34, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
            }
            for _ in 0..requests {
                let mut request = rng.bytes(REQUEST);
                // most of them are of one process
                request[1] = if rng.chance(75) { 0 } else { 6 + rng.below(2) as u8 };
                seed.extend(request);
            }
            seed.extend([35 + n % 2, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
            seeds.push(seed);
        }
    }
    seeds
}

/// A session of many requests. Guarantee: each is answered by what fits the request, no request waits for ever, nothing
/// panics, the session ends well, and the volume is consistent then.
pub fn session(data: &[u8]) {
    run(data);
}

/// Runs a session; the kinds of requests that were not refused, and how often others had to wait.
fn run(data: &[u8]) -> (BTreeSet<u32>, usize) {
    let Some((&[volume, how], requests)) = data.split_first_chunk() else { return Default::default() };
    let bytes = volumes()[usize::from(volume) % volumes().len()].clone();
    let device = Arc::new(MemoryDevice::from_vec(bytes));
    let as_device: Arc<dyn BlockDevice> = Arc::<MemoryDevice>::clone(&device);
    let lists = ["", "sync", "strictatime", "allow_other", "dirsync", "writeback_cache", "snapdir=all", "noatime"];
    let options = MountOptions::parse(&[lists[usize::from(how % 8)]]).expect("options");
    let opened = Arc::new(Volume::open(as_device, &made::writing()).expect("a consistent volume"));
    let broken = Arc::new(AtomicBool::new(false));
    let hear = {
        let broken = Arc::clone(&broken);
        move |problem: &str| broken.store(problem.contains("an error in Extant itself"), Ordering::SeqCst)
    };
    let offered = if how & 8 == 0 { Features::all() } else { Features::SETXATTR_EXT };
    let filesystem = fuse::answering(Arc::clone(&opened), None, &options, hear);
    let messages = Messages::new(filesystem, offered).expect("a session");
    let mut session = Session {
        extended: messages.features().contains(Features::SETXATTR_EXT),
        messages: Arc::new(messages),
        nodes: vec![(ROOT, 0)],
        unique: 1,
        running: false,
        waiting: Vec::new(),
        done: BTreeSet::new(),
        waited: 0,
    };
    for request in requests.as_chunks::<REQUEST>().0.iter().take(MOST) {
        session.request(request);
    }
    session.messages.finish().expect("a consistent volume in memory");
    session.join();
    assert!(!broken.load(Ordering::SeqCst), "a panic in a request");
    let done = (std::mem::take(&mut session.done), session.waited);
    drop((session, opened));
    let options = check::Options { threads: 1, ..check::Options::default() };
    let after = MemoryDevice::from_vec(made::contents(&*device));
    let report = check::check("volume", &after, &options, &()).expect("a volume that was consistent");
    assert!(report.clean, "{:?}", report.problems);
    done
}

struct Session {
    messages: Arc<Messages>,
    extended: bool,
    /// The nodes that answers named, and how often; the root first.
    nodes: Vec<(u64, u64)>,
    unique: u64,
    /// A transaction may be running.
    running: bool,
    waiting: Vec<JoinHandle<()>>,
    /// Kinds of requests that were not refused: those of the kernel, and the numbers that ends of transactions have
    /// here.
    done: BTreeSet<u32>,
    waited: usize,
}

/// Numbers of 32 bits as they lie in a message.
fn le32(numbers: &[u32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// Numbers of 64 bits as they lie in a message.
fn le64(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// A name with its end.
fn name(which: u8) -> Vec<u8> {
    let mut name = match which % 24 {
        0 => b".extant".to_vec(),
        1 => b"snapshots".to_vec(),
        2 => b"first".to_vec(),
        3 => b"dir".to_vec(),
        4 => b"deep".to_vec(),
        5 => b"pieces".to_vec(),
        6 => b"other".to_vec(),
        7 => b"link".to_vec(),
        8 => b"hard".to_vec(),
        9 => b"lost+found".to_vec(),
        10 => vec![b'n'; 255],
        11 => vec![b'n'; 256],
        12 => format!("{:>90}", which / 4).into_bytes(),
        13 => b"second".to_vec(),
        n => vec![b'a' + n],
    };
    name.push(0);
    name
}

/// The name of an attribute with its end; some mean something to the session.
fn attribute(which: u8) -> Vec<u8> {
    let mut name = match which % 16 {
        0 => b"extant.daemon".to_vec(),
        1 => b"extant.sync".to_vec(),
        2 => b"extant.rollback".to_vec(),
        3 => b"extant.space".to_vec(),
        4 => b"extant.txn.".to_vec(),
        5 => b"security.capability".to_vec(),
        6 => b"system.posix_acl_access".to_vec(),
        7 => b"system.posix_acl_default".to_vec(),
        8 => b"trusted.dir".to_vec(),
        n => vec![b'u', b's', b'e', b'r', b'.', b'a' + n],
    };
    name.push(0);
    name
}

impl Session {
    fn node(&self, which: u8) -> u64 {
        self.nodes[usize::from(which) % self.nodes.len()].0
    }

    fn request(&mut self, &[what, who, first, called, second, also, a, b, c, d]: &[u8; REQUEST]) {
        let (mut node, to) = (self.node(first), self.node(second));
        let (called, also_called) = (name(called), name(also));
        let number = u32::from_le_bytes([a, b, c, d]);
        let offset = u64::from(u16::from_le_bytes([a, b])) * u64::from(c);
        let length = u32::from(d) * 64;
        let read = [le64(&[0, offset]), le32(&[length, 0, 0, 0, 0, 0])].concat();
        let with = |head: Vec<u8>, tail: &[u8]| [&head[..], tail].concat();
        let fill = vec![b; length as usize];
        let (opcode, body) = match what % 37 {
            0 | 1 => (kind::LOOKUP, called),
            2 => return self.forget(first),
            3 => (kind::GETATTR, vec![0; 16]),
            4 => {
                let mut all = le32(&[number & 0x3FF, 0]);
                all.extend(le64(&[0, offset, 0, 5, 6, 7]));
                all.extend(le32(&[1, 2, 3, u32::from(a) * 5, 0, u32::from(b), u32::from(c), 0]));
                (kind::SETATTR, all)
            }
            5 => (kind::READLINK, Vec::new()),
            6 => (kind::SYMLINK, with(called, &[&vec![b't'; 1 + usize::from(d) * 4][..], &[0]].concat())),
            7 => (kind::MKNOD, with(le32(&[u32::from(a) << 8 | u32::from(b), 259, 0o22, 0]), &called)),
            8 => (kind::MKDIR, with(le32(&[0o755, 0o22]), &called)),
            9 => (kind::UNLINK, called),
            10 => (kind::RMDIR, called),
            11 => (kind::RENAME2, [le64(&[to]), le32(&[number & 7, 0]), called, also_called].concat()),
            12 => (kind::LINK, with(le64(&[to]), &called)),
            13 => (kind::OPEN, le32(&[number & 0o3003, 0])),
            14 => (kind::READ, read),
            15 | 16 => {
                let (paged, flags) = (u32::from(what > 200), if also & 1 != 0 { 0o2001 } else { 1 });
                let data = vec![c; 1 + length as usize];
                let head = [le64(&[0, offset]), le32(&[data.len() as u32, paged, 0, 0, flags, 0])].concat();
                (kind::WRITE, with(head, &data))
            }
            17 => (kind::STATFS, Vec::new()),
            18 => (kind::FSYNC, [le64(&[0]), le32(&[number & 1, 0])].concat()),
            19 => {
                let head =
                    if self.extended { vec![length, number & 3, number >> 2 & 1, 0] } else { vec![length, number & 3] };
                (kind::SETXATTR, [le32(&head), attribute(also), fill].concat())
            }
            20 => (kind::GETXATTR, with(le32(&[length, 0]), &attribute(also))),
            21 => (kind::LISTXATTR, le32(&[length, 0])),
            22 => (kind::REMOVEXATTR, attribute(also)),
            23 => (if a & 1 == 0 { kind::FLUSH } else { kind::OPENDIR }, vec![0; 24]),
            24 => (
                if c & 1 == 0 { kind::READDIR } else { kind::READDIRPLUS },
                [le64(&[0, a.into()]), le32(&[4096, 0, 0, 0, 0, 0])].concat(),
            ),
            25 => (kind::FSYNCDIR, vec![0; 16]),
            26 => (kind::ACCESS, le32(&[number & 7, 0])),
            27 => {
                let tmpfile = c & 7 == 7;
                let head = le32(&[0o102, 0o100_644, 0o22, 0]);
                (if tmpfile { kind::TMPFILE } else { kind::CREATE }, with(head, &called))
            }
            28 => (kind::INTERRUPT, le64(&[self.unique.saturating_sub(u64::from(a % 8))])),
            29 => {
                const COMMANDS: [(u32, u32, u32); 7] = [
                    (0x8008_6601, 0, 8),
                    (0x4008_6602, 8, 0),
                    (0x801C_581F, 0, 28),
                    (0x401C_5820, 28, 0),
                    (0xC018_5879, 24, 24),
                    (0x8008_7601, 0, 8),
                    (0x1234, 4, 4),
                ];
                let (command, taken, returned) = COMMANDS[usize::from(a) % COMMANDS.len()];
                let input = [le32(&[number & 0x00FF_0000]), vec![0; 24]].concat();
                let head = [le64(&[0]), le32(&[0, command]), le64(&[0]), le32(&[taken, returned])].concat();
                (kind::IOCTL, with(head, &input[..taken as usize]))
            }
            30 => (
                kind::FALLOCATE,
                [
                    le64(&[0, offset & !1023, u64::from(length) & !1023]),
                    le32(&[MODES[usize::from(also) % MODES.len()], 0]),
                ]
                .concat(),
            ),
            31 => (kind::LSEEK, [le64(&[0, offset]), le32(&[u32::from(also & 7), 0])].concat()),
            32 => (kind::COPY_FILE_RANGE, le64(&[0, offset, to, 0, u64::from(also) * 100, length.into(), 0])),
            33 => (if a & 1 == 0 { kind::SYNCFS } else { kind::STATX }, vec![0; 24]),
            34 => {
                node = ROOT;
                // it may begin while one runs, and be refused
                let seconds = if a % 4 == 3 { 0 } else { 600 };
                (
                    kind::GETXATTR,
                    with(le32(&[4096, 0]), format!("extant.txn.begin.{seconds}.0123456789abcdef\0").as_bytes()),
                )
            }
            what => {
                node = ROOT;
                let command = if what == 35 { "commit" } else { "rollback" };
                (kind::GETXATTR, with(le32(&[4096, 0]), format!("extant.txn.{command}\0").as_bytes()))
            }
        };
        let ends = what % 37 >= 34;
        self.unique += 1;
        // another process, and the kernel itself
        let process = match who % 8 {
            6 if !ends => 1,
            7 if !ends => 0,
            _ => std::process::id(),
        };
        let owner = if who & 0x80 != 0 && !ends { 1000 } else { 0 };
        let message = self.message(opcode, node, (owner, process), &body);
        if self.running && process != std::process::id() {
            return self.aside(opcode, message);
        }
        let answer = self.messages.answer(&message);
        let value = verify(opcode, self.unique, answer, &body);
        self.record_node(opcode, value.as_deref());
        // the value of a refused command is the reason
        let done = value.as_ref().is_some_and(|value| !ends || value.is_empty());
        if done {
            self.done.insert(if ends { ENDS + u32::from(what % 37) } else { opcode });
            if opcode == kind::MKDIR && node >> 32 != 0 {
                self.done.insert(SNAPSHOT);
            }
        }
        match what % 37 {
            34 => self.running |= done,
            35 | 36 if value.is_some() => {
                self.running = false;
                self.join();
            }
            _ => {}
        }
    }

    fn message(&self, opcode: u32, node: u64, (owner, process): (u32, u32), body: &[u8]) -> Vec<u8> {
        let len = (HEADER + body.len()) as u32;
        let head = [le32(&[len, opcode]), le64(&[self.unique, node]), le32(&[owner, owner, process, 0])].concat();
        [&head[..], body].concat()
    }

    /// A process that is no member may have to wait until the transaction is over.
    fn aside(&mut self, opcode: u32, message: Vec<u8>) {
        if self.waiting.len() < WAITING {
            let (messages, unique) = (Arc::clone(&self.messages), self.unique);
            self.waited += 1;
            self.waiting.push(std::thread::spawn(move || {
                let answer = messages.answer(&message);
                verify(opcode, unique, answer, &message[HEADER..]);
            }));
        }
    }

    /// All that waited are answered, and soon.
    fn join(&mut self) {
        let until = Instant::now() + PATIENCE;
        for thread in self.waiting.drain(..) {
            while !thread.is_finished() {
                assert!(Instant::now() < until, "a request waits for ever");
                std::thread::sleep(Duration::from_millis(1));
            }
            thread.join().expect("a request that waited");
        }
    }

    /// The kernel forgets a node that it will not ask for again.
    fn forget(&mut self, which: u8) {
        let at = usize::from(which) % self.nodes.len();
        if at > 0 {
            let (node, lookups) = self.nodes.remove(at);
            let message = self.message(kind::FORGET, node, (0, 0), &le64(&[lookups]));
            assert!(self.messages.answer(&message).is_none(), "an answer to what has none");
        }
    }

    /// Remembers the node that an answer names.
    fn record_node(&mut self, opcode: u32, value: Option<&[u8]>) {
        let names = matches!(
            opcode,
            kind::LOOKUP | kind::MKNOD | kind::MKDIR | kind::SYMLINK | kind::LINK | kind::CREATE | kind::TMPFILE
        );
        let Some(node) =
            value.filter(|_| names).and_then(|value| value.first_chunk()).map(|node| u64::from_le_bytes(*node))
        else {
            return;
        };
        match self.nodes.iter_mut().find(|(known, _)| *known == node) {
            Some((_, lookups)) => *lookups += 1,
            None if node != 0 => self.nodes.push((node, 1)),
            None => {}
        }
    }
}

/// Verifies that an answer is one to such a request; returns its value, where it is no error.
fn verify(opcode: u32, unique: u64, answer: Option<Vec<u8>>, body: &[u8]) -> Option<Vec<u8>> {
    if opcode == kind::INTERRUPT {
        assert!(answer.is_none());
        return None;
    }
    let answer = answer.expect("every request is answered");
    let number = |at: usize| u32::from_le_bytes(answer[at..at + 4].try_into().expect("four bytes"));
    let error = number(4) as i32;
    assert_eq!(number(0) as usize, answer.len());
    assert_eq!(answer[8..ANSWER], unique.to_le_bytes());
    assert!((-4095..=0).contains(&error) && (error == 0 || answer.len() == ANSWER));
    let asked =
        |at: usize| body.get(at..at + 4).map_or(0, |size| u32::from_le_bytes(size.try_into().expect("four bytes")));
    let value = &answer[ANSWER..];
    match opcode {
        kind::READ | kind::READDIR | kind::READDIRPLUS => assert!(value.len() <= asked(16) as usize),
        kind::GETXATTR | kind::LISTXATTR if asked(0) > 0 => assert!(value.len() <= asked(0) as usize),
        kind::WRITE if error == 0 => assert!(number(ANSWER) <= asked(16)),
        _ => {}
    }
    (error == 0).then(|| value.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Else sequences would consist of refusals only.
    #[test]
    fn seeds_do_what_they_should() {
        let (mut done, mut waited) = (BTreeSet::new(), 0);
        for seed in sequences() {
            let (kinds, others) = run(&seed);
            done.extend(kinds);
            waited += others;
        }
        let wanted = [
            kind::LOOKUP,
            kind::SETATTR,
            kind::SYMLINK,
            kind::MKDIR,
            kind::LINK,
            kind::READ,
            kind::WRITE,
            kind::SETXATTR,
            kind::CREATE,
            kind::READDIRPLUS,
            kind::FALLOCATE,
            kind::SYNCFS,
            SNAPSHOT,
            ENDS + 34,
            ENDS + 35,
            ENDS + 36,
        ];
        let missing: Vec<_> = wanted.iter().filter(|kind| !done.contains(kind)).collect();
        assert!(missing.is_empty() && waited > 5, "never done: {missing:?}; {waited} waited; done: {done:?}");
    }
}
