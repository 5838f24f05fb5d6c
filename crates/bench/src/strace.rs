//! The reads of a process from a volume, as reported by strace(1): the same source for every program.
//!
//! Reads are in the order of the calls of all threads, which depends on the scheduler and differs between runs of a
//! program with threads. A second order is one thread after the other, each inserted where it was started: that one is
//! the same in every run if the reads of each thread are. Reads through io_uring are not visible, only the number of
//! submitted requests; with the volume in the page cache Extant submits none.

use crate::error::Trying;
use crate::interruption::Folder;
use crate::process::{Program, find};
use crate::{Error, Result};
use blockdev::Op;
use serde::Serialize;
use simdev::{Counts, Event};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

/// The calls that start a thread.
const BEGINS: [&str; 4] = ["clone", "clone3", "fork", "vfork"];

/// The calls that start a thread, read, set the position of the next read, or submit reads.
const CALLS: &str = "trace=clone,clone3,fork,vfork,open,openat,lseek,read,pread64,preadv,preadv2,io_uring_enter";

/// Reads from a volume.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Reads {
    /// Number of reads.
    pub reads: u64,
    /// Bytes read, each as often as it was read.
    pub bytes: u64,
    /// Reads that do not start at the end of the previous one; the first is not counted.
    pub non_contiguous: u64,
    /// Reads among these that start before that position.
    pub backward: u64,
    /// Requests submitted to io_uring, which are in no other figure.
    pub unseen: u64,
}

impl Reads {
    fn add(&mut self, position: &mut Option<u64>, offset: u64, bytes: u64) {
        self.reads += 1;
        self.bytes = self.bytes.saturating_add(bytes);
        if let Some(position) = *position {
            self.non_contiguous += u64::from(offset != position);
            self.backward += u64::from(offset < position);
        }
        *position = Some(offset.saturating_add(bytes));
    }
}

impl From<Counts> for Reads {
    fn from(counts: Counts) -> Self {
        Self {
            reads: counts.requests,
            bytes: counts.bytes,
            non_contiguous: counts.seeks,
            backward: counts.backward_seeks,
            unseen: 0,
        }
    }
}

/// The reads of a program, as reported by strace.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// The counts of its reads.
    pub(crate) reads: Reads,
    /// Each of them, in order.
    pub(crate) events: Vec<Event>,
    /// The same reads, one thread after the other.
    pub(crate) by_thread: Vec<Event>,
}

/// A step of a thread.
enum Step {
    Read(Event),
    /// It started this thread.
    Began(u64),
}

/// The reads of a program's threads, one thread after the other; each thread is inserted where it was started, the
/// first thread first.
fn by_thread(first: Option<u64>, mut threads: BTreeMap<u64, Vec<Step>>) -> Vec<Event> {
    let mut events = Vec::new();
    let mut begin = |thread: Option<u64>| threads.remove(&thread?).map(Vec::into_iter);
    let mut running: Vec<_> = begin(first).into_iter().collect();
    while let Some(thread) = running.last_mut() {
        match thread.next() {
            Some(Step::Read(event)) => events.push(event),
            Some(Step::Began(other)) => running.extend(begin(Some(other))),
            None => drop(running.pop()),
        }
    }
    // threads whose start was not traced
    events.extend(threads.into_values().flatten().filter_map(|step| match step {
        Step::Read(event) => Some(event),
        Step::Began(_) => None,
    }));
    events
}

/// Runs a program under strace and returns its reads of `volume`; `None` where strace is missing or not permitted.
pub(crate) fn watch(program: &Program, volume: &Path) -> Result<Option<Seen>> {
    let Some(path) = find("strace") else { return Ok(None) };
    let volume = volume.canonicalize().trying("find", volume)?;
    let folder = Folder::in_dir(&std::env::temp_dir())?;
    let log = folder.join("log");
    let mut args: Vec<_> = ["-f", "-y", "-s", "0", "-e", CALLS, "-o"].map(Into::into).to_vec();
    args.extend([log.clone().into_os_string(), program.path.clone().into_os_string()]);
    args.extend(program.args.iter().cloned());
    let run = Program { path, args, answers: program.answers };
    match run.run() {
        Ok(_) => {}
        // no permission to trace, as in some containers
        Err(Error::Failed(said)) if said.contains("ptrace") => return Ok(None),
        Err(e) => return Err(e),
    }
    let text = std::fs::read(&log).trying("read", &log)?;
    Ok(Some(parse(&String::from_utf8_lossy(&text), &volume.to_string_lossy())))
}

/// The reads of the file `volume` in a log of `strace -f -y`.
fn parse(log: &str, volume: &str) -> Seen {
    let Seen { mut reads, mut events, .. } = Seen::default();
    let mut position = None;
    let mut threads: BTreeMap<u64, Vec<Step>> = BTreeMap::new();
    let mut add = |threads: &mut BTreeMap<u64, Vec<Step>>, thread, offset, len| {
        reads.add(&mut position, offset, len);
        let event = Event { op: Op::Read, offset, len };
        events.push(event);
        threads.entry(thread).or_default().push(Step::Read(event));
    };
    let calls = whole_calls(log);
    let first = calls.first().map(|(thread, _)| *thread);
    let mut unseen = 0;
    // the position of each file descriptor
    let mut positions: HashMap<u32, u64> = HashMap::new();
    for (thread, line) in &calls {
        let Some(call) = Call::parse(line) else { continue };
        match call.name {
            name if BEGINS.contains(&name) => threads.entry(*thread).or_default().push(Step::Began(call.result)),
            "io_uring_enter" => unseen += call.result,
            "open" | "openat" if call.opened == Some(volume) => drop(positions.insert(call.result as u32, 0)),
            _ => {}
        }
        let Some((fd, true)) = call.fd.map(|(fd, path)| (fd, path == volume)) else { continue };
        match call.name {
            "lseek" => drop(positions.insert(fd, call.result)),
            "read" => {
                let stands = positions.entry(fd).or_default();
                add(&mut threads, *thread, *stands, call.result);
                *stands += call.result;
            }
            "pread64" | "preadv" | "preadv2" => {
                let skip = usize::from(call.name == "preadv2"); // the flags
                let offset = call.args.rsplit(", ").nth(skip).and_then(|text| text.parse().ok());
                if let Some(offset) = offset {
                    add(&mut threads, *thread, offset, call.result);
                }
            }
            _ => {}
        }
    }
    reads.unseen = unseen;
    Seen { reads, events, by_thread: by_thread(first, threads) }
}

/// The lines of a log, each with its thread; a call that was interrupted by another thread's in the log is joined, at
/// the position where it began.
fn whole_calls(log: &str) -> Vec<(u64, String)> {
    const RESUMED: &str = " resumed>";
    let mut calls: Vec<(u64, String)> = Vec::new();
    let mut open: HashMap<u64, usize> = HashMap::new();
    for line in log.lines() {
        let Some((thread, call)) = line.split_once(char::is_whitespace) else { continue };
        let Ok(thread) = thread.parse::<u64>() else { continue };
        let call = call.trim_start();
        if let Some(start) = call.strip_suffix("<unfinished ...>") {
            open.insert(thread, calls.len());
            calls.push((thread, start.trim_end().to_owned()));
        } else if let Some((_, rest)) = call.strip_prefix("<... ").and_then(|rest| rest.split_once(RESUMED)) {
            if let Some(start) = open.remove(&thread).and_then(|at| calls.get_mut(at)) {
                let (_, start) = start;
                start.push(' ');
                start.push_str(rest.trim_start());
            }
        } else {
            calls.push((thread, call.to_owned()));
        }
    }
    calls
}

/// One call that succeeded.
struct Call<'a> {
    name: &'a str,
    args: &'a str,
    /// The first argument, where it is an open file, and the file's path.
    fd: Option<(u32, &'a str)>,
    result: u64,
    /// The path of the file descriptor that is the result.
    opened: Option<&'a str>,
}

impl<'a> Call<'a> {
    /// Reads `name(FD</path>, …) = RESULT`.
    fn parse(line: &'a str) -> Option<Self> {
        let (name, rest) = line.split_once('(')?;
        let (args, result) = rest.rsplit_once(" = ")?;
        let args = args.trim_end().strip_suffix(')')?;
        let (result, opened) = number_and_path(result);
        Some(Self { name, args, fd: number_and_path_of_fd(args), result: result?, opened })
    }
}

fn number_and_path_of_fd(args: &str) -> Option<(u32, &str)> {
    let first = args.split_once(">,").map_or(args, |(first, _)| first);
    match number_and_path(first) {
        (Some(number), Some(path)) => Some((u32::try_from(number).ok()?, path)),
        _ => None,
    }
}

/// Reads `3</path>`, `3</path` or `3`.
fn number_and_path(text: &str) -> (Option<u64>, Option<&str>) {
    let (number, path) = text.split_once('<').map_or((text, None), |(n, path)| (n, Some(path)));
    (number.trim().parse().ok(), path.map(|path| path.trim_end_matches('>')))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = r#"10 openat(AT_FDCWD</home>, "/lib/x.so", O_RDONLY) = 3</lib/x.so>
10 read(3</lib/x.so>, ""..., 832) = 832
10 openat(AT_FDCWD</home>, "v.img", O_RDONLY) = 3</home/v.img>
10 pread64(3</home/v.img>, ""..., 1024, 1024) = 1024
10 pread64(3</home/v.img>, ""..., 1024, 2048) = 1024
10 pread64(3</home/v.img>, 0x5581, 1024, 900000) = -1 EIO (Input/output error)
10 clone3({flags=CLONE_VM} => {parent_tid=[11]}, 88) = 11
10 preadv2(3</home/v.img>,  <unfinished ...>
11 preadv2(3</home/v.img>, [{iov_base=""..., iov_len=4096}], 1, 4096, RWF_NOWAIT) = 4096
10 <... preadv2 resumed>[{iov_base=""..., iov_len=8192}], 1, 65536, RWF_NOWAIT) = 8192
11 preadv2(3</home/v.img>, [{iov_base=0x55, iov_len=4096}], 1, 0, RWF_NOWAIT) = -1 EAGAIN (Resource temporarily unavailable)
10 openat(AT_FDCWD</home>, "v.img", O_RDONLY) = 4</home/v.img>
10 read(4</home/v.img>, ""..., 4096) = 4096
10 read(4</home/v.img>, ""..., 4096) = 4096
10 lseek(4</home/v.img>, 20480, SEEK_SET) = 20480
10 read(4</home/v.img>, ""..., 4096) = 100
10 pread64(5</home/v.img.other>, ""..., 4096, 7) = 4096
10 io_uring_enter(6<anon_inode:[io_uring]>, 12, 12, IORING_ENTER_GETEVENTS, NULL, 8) = 12
10 +++ exited with 0 +++
"#;

    #[test]
    fn reads_of_the_volume_are_counted_in_their_order() {
        // 1024, 2048: follows; 65536: begun first; 4096: back; 0: back; 4096: follows; 20480: forward
        let expected =
            Reads { reads: 7, bytes: 2 * 1024 + 8192 + 3 * 4096 + 100, non_contiguous: 4, backward: 2, unseen: 12 };
        let Seen { reads, events, by_thread } = parse(LOG, "/home/v.img");
        assert_eq!(reads, expected);
        let places = [(1024, 1024), (2048, 1024), (65536, 8192), (4096, 4096), (0, 4096), (4096, 4096), (20480, 100)];
        let events_at = |places: [(u64, u64); 7]| places.map(|(offset, len)| Event { op: Op::Read, offset, len });
        assert_eq!(events, events_at(places));
        // thread 11 reads 4096 when it begins
        let ordered = [(1024, 1024), (2048, 1024), (4096, 4096), (65536, 8192), (0, 4096), (4096, 4096), (20480, 100)];
        assert_eq!(by_thread, events_at(ordered));
        assert_eq!(parse(LOG, "/lib/x.so").reads, Reads { reads: 1, bytes: 832, unseen: 12, ..Reads::default() });
    }

    #[test]
    fn a_broken_log_is_no_panic() {
        for cut in 0..LOG.len() {
            parse(&LOG[..cut], "/home/v.img");
            parse(&LOG[cut..], "/home/v.img");
        }
    }

    #[test]
    fn a_real_program_is_seen() {
        if !testkit::need(&["strace", "dd"]) {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("bytes");
        std::fs::write(&file, vec![0; 12288]).unwrap();
        let args = [format!("if={}", file.display()), "of=/dev/null".into(), "bs=4096".into(), "skip=1".into()];
        let dd = Program { path: find("dd").unwrap(), args: args.map(Into::into).to_vec(), answers: &[0] };
        let Some(Seen { reads, .. }) = watch(&dd, &file).unwrap() else {
            println!("SKIPPED: this process must not trace others");
            return;
        };
        // two blocks, and the end of the file
        assert_eq!(reads, Reads { reads: 3, bytes: 8192, ..Reads::default() });
    }
}
