//! The kernel's requests to a loop device, from its block events (tracefs, root only), after merging.

use crate::error::Trying;
use crate::interruption::{self, Folder, Registered, Undo};
use crate::process::{must, need};
use crate::{Error, Result};
use blockdev::Op;
use parking_lot::Mutex;
use simdev::Event;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The requests of the kernel to a loop device.
pub(crate) struct BlockEvents {
    instance: PathBuf,
    /// Tracefs, where it had to be mounted for this.
    mounted: Option<(Folder, Registered)>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// Removes the instance where a signal ends this process.
    _registered: Registered,
}

#[derive(Default)]
struct Shared {
    events: Mutex<Seen>,
    /// The number of polls without new events.
    idle: AtomicU64,
    stop: std::sync::atomic::AtomicBool,
}

#[derive(Default)]
struct Seen {
    events: Vec<Event>,
    /// Whether events were lost.
    lost: bool,
}

const PAUSE: Duration = Duration::from_millis(5);
/// Time limit for the removal of an instance, whose pipe a thread closes.
const REMOVAL: Duration = Duration::from_secs(2);

impl BlockEvents {
    /// The block events of the loop device of `image`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the kernel does not support these events; [`Error::Io`].
    pub(crate) fn of(image: &Path) -> Result<Self> {
        let minor = loop_number(image)?;
        let (root, mounted) = tracefs()?;
        let instance = root.join("instances").join(format!("extant-bench-{}-{minor}", std::process::id()));
        let shared = Arc::<Shared>::default();
        let (stopped, at) = (Arc::clone(&shared), instance.clone());
        let remove = |(): &()| Undo::Call(Box::new(move || stopped.remove(&at)));
        let ((), registered) = interruption::make(|| fs::create_dir(&instance).trying("make", &instance), remove)?;
        let mut events = Self { instance, mounted, shared, thread: None, _registered: registered };
        let issue = events.instance.join("events/block/block_rq_issue");
        let set = |path: PathBuf, value: &str| fs::write(&path, value).trying("write to", &path);
        set(events.instance.join("buffer_size_kb"), "16384")?;
        // the kernel counts a device by its major number, shifted by 20 bits, and its minor one
        set(issue.join("filter"), &format!("dev == {}", (7u64 << 20) | minor))?;
        set(issue.join("enable"), "1")?;
        let pipe = events.instance.join("trace_pipe");
        let nonblock = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or(0);
        let file = OpenOptions::new().read(true).custom_flags(nonblock).open(&pipe).trying("open", &pipe)?;
        let shared = Arc::clone(&events.shared);
        events.thread = Some(std::thread::spawn(move || shared.follow(file)));
        Ok(events)
    }

    /// The requests since the last call, in the order in which the device got them; `None` where events were lost.
    pub(crate) fn take(&self) -> Option<Vec<Event>> {
        // two polls, as one may have been in progress
        let until = self.shared.idle.load(Ordering::Acquire) + 2;
        while self.shared.idle.load(Ordering::Acquire) < until {
            std::thread::sleep(PAUSE);
        }
        let seen = std::mem::take(&mut *self.shared.events.lock());
        (!seen.lost).then_some(seen.events)
    }
}

impl Drop for BlockEvents {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // the thread has no result
            let _ = thread.join();
        }
        // on failure an unused directory remains in tracefs
        let _ = fs::remove_dir(&self.instance);
        if let Some((dir, _)) = &self.mounted
            && let Ok(umount) = need("umount", "mount")
        {
            let _ = must(&umount, [&**dir]);
        }
    }
}

impl Shared {
    /// Stops the thread that follows, and removes the instance after that has closed its pipe.
    fn remove(&self, instance: &Path) {
        self.stop.store(true, Ordering::Release);
        let start = Instant::now();
        while fs::remove_dir(instance).is_err() && instance.exists() && start.elapsed() < REMOVAL {
            std::thread::sleep(PAUSE);
        }
    }

    fn follow(&self, mut pipe: File) {
        let mut buf = vec![0; 64 << 10];
        let mut rest = String::new();
        while !self.stop.load(Ordering::Acquire) {
            match pipe.read(&mut buf) {
                Ok(0) => self.rest(),
                Ok(read) => {
                    rest.push_str(&String::from_utf8_lossy(&buf[..read]));
                    let whole = rest.rfind('\n').map_or(0, |at| at + 1);
                    let mut seen = self.events.lock();
                    for line in rest[..whole].lines() {
                        seen.lost |= line.contains("LOST");
                        seen.events.extend(event(line));
                    }
                    drop(seen);
                    rest.drain(..whole);
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock || e.kind() == ErrorKind::Interrupted => self.rest(),
                Err(_) => {
                    self.events.lock().lost = true;
                    self.rest();
                }
            }
        }
    }

    fn rest(&self) {
        self.idle.fetch_add(1, Ordering::AcqRel);
        std::thread::sleep(PAUSE);
    }
}

/// Parses an event line: `… block_rq_issue: 7,0 WS 4096 () 2048 + 8 none,0,0 [task]`, with the operation, the first
/// sector and the number of sectors.
fn event(line: &str) -> Option<Event> {
    let (_, said) = line.split_once("block_rq_issue: ")?;
    let mut words = said.split_whitespace();
    let what = words.nth(1)?;
    let (before, after) = said.split_once(" + ")?;
    let first: u64 = before.rsplit(' ').next()?.parse().ok()?;
    let count: u64 = after.split(' ').next()?.parse().ok()?;
    let op = match what.trim_start_matches('F').chars().next() {
        Some('W') => Op::Write,
        Some('R') => Op::Read,
        Some('D') => Op::Discard,
        None => Op::Flush,
        // a flush is reported as FF, or without these letters
        Some(_) if what.starts_with('F') => Op::Flush,
        Some(_) => return None,
    };
    Some(Event { op, offset: first * 512, len: count * 512 })
}

/// The number of the loop device that has a file.
fn loop_number(image: &Path) -> Result<u64> {
    let whole = image.canonicalize().trying("find", image)?;
    for device in fs::read_dir("/sys/block").trying("list", Path::new("/sys/block"))?.flatten() {
        let backing = fs::read_to_string(device.path().join("loop/backing_file")).unwrap_or_default();
        if Path::new(backing.trim_end()) == whole {
            let number = device.file_name().to_string_lossy().strip_prefix("loop").and_then(|n| n.parse().ok());
            return number.ok_or_else(|| Error::Failed("a loop device has no number".into()));
        }
    }
    Err(Error::Failed(format!("{}: it has no loop device", image.display())))
}

/// The directory of the kernel's events, mounted if need be.
fn tracefs() -> Result<(PathBuf, Option<(Folder, Registered)>)> {
    let usual = PathBuf::from("/sys/kernel/tracing");
    if usual.join("instances").is_dir() {
        return Ok((usual, None));
    }
    let dir = Folder::for_mount()?;
    let mount = interruption::mount(&dir)?;
    must(&need("mount", "mount")?, ["-t".as_ref(), "tracefs".as_ref(), "none".as_ref(), dir.as_os_str()])?;
    Ok((dir.to_path_buf(), Some((dir, mount))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_lines_are_understood() {
        let line = |what: &str, at: &str| {
            format!(" a-1 [000] d..1. 5.6: block_rq_issue: 7,0 {what} 4096 () {at} none,0,0 [a]")
        };
        let of = |op, offset, len| Some(Event { op, offset, len });
        assert_eq!(event(&line("WS", "16 + 8")), of(Op::Write, 8192, 4096));
        assert_eq!(event(&line("FWFS", "16 + 8")), of(Op::Write, 8192, 4096));
        assert_eq!(event(&line("RA", "0 + 8")), of(Op::Read, 0, 4096));
        assert_eq!(event(&line("FF", "0 + 0")), of(Op::Flush, 0, 0));
        assert_eq!(event("CPU:0 [LOST 5 EVENTS]"), None);
    }
}
