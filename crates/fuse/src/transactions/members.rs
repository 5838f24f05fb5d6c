//! The processes that belong to a transaction.
//!
//! The members are the process that began the transaction and all its descendants, which are determined from the
//! parents in /proc. That is insufficient where a parent has ended. While the process that began lives, it adopts such
//! processes (PR_SET_CHILD_SUBREAPER), so it is their ancestor again. When it has been killed they have no such
//! ancestor, so all members are recorded when they are seen, by PID and start time; and each carries a mark in its
//! initial environment. A process with neither the mark, nor a recorded member among its ancestors, is not a member:
//! one that lost its environment and its parents, all within [`super::CHECK_INTERVAL`] and after its transaction's
//! process was killed.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The environment variable with the mark.
pub(super) const VARIABLE: &str = "EXTANT_TXN";
/// The time for which it is cached whether a process is a member: PIDs are reused, but not that soon.
const KNOWN: Duration = Duration::from_secs(1);
/// The maximum number of generations between a member and the process that began the transaction.
const DEEPEST: usize = 256;

/// The members of a transaction.
pub(super) struct Members {
    /// The PID and start time of the process that began the transaction.
    client: (u32, u64),
    /// `EXTANT_TXN=…`, as in the environment of members.
    mark: Vec<u8>,
    /// Whether the process that began has ended, or ended the transaction: then the marks are checked.
    orphaned: AtomicBool,
    /// All members seen, with the start time of each.
    seen: Mutex<HashMap<u32, u64>>,
    known: Mutex<(Instant, HashMap<u32, bool>)>,
}

/// Whether `/proc` contains the PIDs that requests have, and not those of another PID namespace.
pub(super) fn is_proc_ours() -> bool {
    fs::read_link("/proc/self").is_ok_and(|own| own.to_str() == Some(&std::process::id().to_string()))
}

/// The process of a thread `task`, and its parent.
pub(super) fn process(task: u32) -> Option<(u32, u32)> {
    let status = fs::read_to_string(format!("/proc/{task}/status")).ok()?;
    let of = |field: &str| status.lines().find_map(|line| line.strip_prefix(field)?.trim().parse().ok());
    Some((of("Tgid:")?, of("PPid:")?))
}

/// The start time of a process, in clock ticks; `None` where it has ended.
fn started(process: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // proc(5): field 2 may contain anything; after it come the state, and the start time as field 22
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let ended = matches!(fields.next()?, "Z" | "X");
    (!ended).then(|| fields.nth(18)?.parse().ok())?
}

/// The PIDs of all processes.
fn all_processes() -> impl Iterator<Item = u32> {
    fs::read_dir("/proc").into_iter().flatten().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// The threads of a process.
pub(super) fn tasks(process: u32) -> impl Iterator<Item = u32> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten();
    tasks.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// The child processes of a process, including adopted ones.
fn children(process: u32) -> Vec<u32> {
    let of = |task| fs::read_to_string(format!("/proc/{process}/task/{task}/children")).unwrap_or_default();
    tasks(process)
        .flat_map(|task| of(task).split_whitespace().filter_map(|n| n.parse().ok()).collect::<Vec<_>>())
        .collect()
}

/// Whether a thread of this process is in uninterruptible sleep in the kernel.
pub(super) fn sleeps(task: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/self/task/{task}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('D'))
}

/// Whether a thread waits for a lock of the kernel's file systems.
pub(super) fn sleeps_on_a_lock(process: u32, task: u32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{process}/task/{task}/stat")) else { return false };
    if !stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('D')) {
        return false;
    }
    // of a task that sleeps on a lock, the kernel shows the function that took the lock (path_openat, do_unlinkat); of
    // others, what they wait for: a device (folio_wait_bit_common, io_schedule), an answer of ours
    // (request_wait_answer)
    let place = fs::read_to_string(format!("/proc/{process}/task/{task}/wchan")).unwrap_or_default();
    !["wait", "io_", "bio_"].iter().any(|other| place.contains(other))
}

/// Whether a thread ends as soon as its call returns: SIGKILL is pending, which all fatal signals become.
pub(super) fn is_being_killed(task: u32) -> bool {
    const SIGKILL: u64 = 1 << (9 - 1);
    let Ok(status) = fs::read_to_string(format!("/proc/{task}/status")) else { return true };
    let pending =
        |field: &str| status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix(field)?.trim(), 16).ok());
    ["SigPnd:", "ShdPnd:"].iter().any(|field| pending(field).is_some_and(|set| set & SIGKILL != 0))
}

impl Members {
    /// The members, with only the process `client`; `None` where it has ended.
    pub(super) fn of(client: u32, mark: &str) -> Option<Self> {
        let start = started(client)?;
        Some(Self {
            client: (client, start),
            mark: format!("{VARIABLE}={mark}").into_bytes(),
            orphaned: AtomicBool::new(false),
            seen: Mutex::new(HashMap::from([(client, start)])),
            known: Mutex::new((Instant::now(), HashMap::new())),
        })
    }

    /// Whether this process began the transaction.
    pub(super) fn is_client(&self, process: u32) -> bool {
        self.client.0 == process
    }

    /// Whether the process of a task is a member.
    pub(super) fn has(&self, task: u32) -> bool {
        if task == 0 {
            return false;
        }
        {
            let mut known = self.known.lock();
            if known.0.elapsed() > KNOWN {
                *known = (Instant::now(), HashMap::new());
            }
            if let Some(is) = known.1.get(&task) {
                return *is;
            }
        }
        let is = self.is_below(task) || (self.orphaned.load(Ordering::SeqCst) && self.is_marked(task));
        self.known.lock().1.insert(task, is);
        is
    }

    /// Whether the process of a task, or one of its ancestors, is a recorded member. Then all on the path are recorded.
    fn is_below(&self, task: u32) -> bool {
        let mut path = Vec::new();
        let mut at = task;
        for _ in 0..DEEPEST {
            let Some((process, parent)) = process(at) else { return false };
            let Some(start) = started(process) else { return false };
            path.push((process, start));
            if self.seen.lock().get(&process) == Some(&start) {
                self.seen.lock().extend(path);
                return true;
            }
            if parent == 0 {
                return false;
            }
            at = parent;
        }
        false
    }

    fn is_marked(&self, task: u32) -> bool {
        let Some((process, _)) = process(task) else { return false };
        let environment = fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
        if !environment.split(|byte| *byte == 0).any(|entry| entry == self.mark) {
            return false;
        }
        let Some(start) = started(process) else { return false };
        self.seen.lock().insert(process, start);
        true
    }

    /// Records all descendants of the recorded members.
    pub(super) fn look(&self) {
        let mut to_do: Vec<u32> = self.seen.lock().keys().copied().collect();
        while let Some(process) = to_do.pop() {
            for child in children(process) {
                let Some(start) = started(child) else { continue };
                if self.seen.lock().insert(child, start) != Some(start) {
                    to_do.push(child);
                }
            }
        }
    }

    /// Continues without the process that began the transaction, or after its end: records all members, wherever they
    /// are now.
    pub(super) fn orphan(&self) {
        // processes that it starts from now on are not members
        self.seen.lock().remove(&self.client.0);
        self.orphaned.store(true, Ordering::SeqCst);
        self.known.lock().1.clear();
        // the existing members are recorded now
        for process in all_processes() {
            let _ = self.has(process);
        }
        self.look();
        self.known.lock().1.clear();
    }

    /// Whether any members of an orphaned transaction still exist.
    pub(super) fn remain(&self) -> bool {
        self.look();
        self.seen.lock().retain(|process, start| started(*process) == Some(*start));
        if self.seen.lock().is_empty() {
            // no recorded one: an unrecorded one may have the mark
            self.orphan();
        }
        !self.seen.lock().is_empty()
    }

    /// Whether a thread of a member sleeps in the kernel on a lock of a file system.
    pub(super) fn are_stuck(&self) -> bool {
        let members: Vec<u32> = self.seen.lock().keys().copied().collect();
        members.into_iter().any(|process| tasks(process).any(|task| sleeps_on_a_lock(process, task)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn processes_know_who_made_them() {
        let (process, parent) = process(std::process::id()).expect("this process");
        assert_eq!(process, std::process::id());
        assert_eq!(parent, std::os::unix::process::parent_id());
        assert!(started(process).is_some() && tasks(process).any(|task| task == process));
        assert!(!is_being_killed(process));
    }

    #[test]
    fn members_are_known_when_no_process_is_above_them_any_more() {
        let mut shell = Command::new("sh")
            .args(["-c", "sleep 60 & echo $!; read wait"])
            .env(VARIABLE, "this")
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("a shell");
        let mut said = String::new();
        let stdout = shell.stdout.take().expect("a pipe");
        std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut said).expect("a line");
        let sleeping: u32 = said.trim().parse().expect("a number");
        let of_shell = |mark| Members::of(shell.id(), mark).expect("members");
        let (seen, marked, neither) = (of_shell("that"), of_shell("this"), of_shell("another"));
        seen.look();
        assert!(seen.has(sleeping) && seen.has(shell.id()) && !seen.has(0));
        assert!(!seen.has(std::process::id()) && !seen.has(1));
        shell.kill().expect("kill");
        shell.wait().expect("wait");
        for members in [&seen, &marked, &neither] {
            members.orphan();
        }
        assert!(seen.has(sleeping) && marked.has(sleeping) && !neither.has(sleeping));
        assert!(seen.remain() && marked.remain() && !neither.remain());
        Command::new("kill").arg(sleeping.to_string()).status().expect("kill");
        while seen.remain() || marked.remain() {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
