//! The end of a transaction: by its process, without its process, or by unmounting.
//!
//! A rollback has an order, so that no process reads undone changes:
//!
//! 1. requests of members are refused, and the kernel writes back the pages that they, or others, have changed through
//!    mappings: pages of a transaction that is being rolled back are refused, and a process that mapped them gets an
//!    error from fsync(2);
//! 2. the volume has its state from before the transaction, for every process;
//! 3. the kernel's cached state of the transaction is invalidated;
//! 4. other processes may change the volume.
//!
//! Step 3 can be delayed by a waiting process that has locked what the kernel needs: pages covered by a waiting
//! write(2), or a directory, of a process whose call does not look up the name again. Then step 4 does not wait for it.
//! The kernel could invalidate all names without a lock (FUSE_NOTIFY_INC_EPOCH), but that unmounts all file systems
//! mounted on directories of the volume.

use super::members::Members;
use super::{CHECK_INTERVAL, NO_ACCESS_INTERVAL, Running, Shared, members};
use crate::ops::node_of;
use fs::{DirtySet, InodeNo};
use fuse_wire::{Caller, Filesystem, Kernel, Operation, Reply, Request};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, open, syncfs};
use rustix::thread::gettid;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The number of consecutive checks, [`CHECK_INTERVAL`] apart, in which members must appear stuck before waiting
/// requests let them proceed without an error.
const STUCK: u32 = 2;
/// The interval between checks whether members of a rolled-back transaction still exist.
const MEMBERS_INTERVAL: Duration = Duration::from_millis(250);
/// The maximum time for invalidations, where a process waits that may have locked what the kernel needs.
const FORGET: Duration = Duration::from_millis(100);
/// The extended attribute that the kernel or the server may cache and that a rollback changes.
const CAPABILITY: &[u8] = b"security.capability";

/// Makes the kernel write back its dirty pages.
fn write_back_pages(running: &Running) {
    let root = running.root.lock().as_ref().and_then(|root| root.try_clone().ok());
    if let Some(root) = root {
        // pages of the transaction are refused, which is the error returned here
        let _ = syncfs(root);
    }
}

/// Commits a transaction, or rolls it back where that is impossible.
pub(super) fn commit(inner: &Arc<dyn Filesystem>, shared: &Arc<Shared>, running: &Arc<Running>) -> fs::Result<()> {
    if let Some(why) = overdue(running) {
        roll_back(inner, shared, running, &why)?;
    }
    running.committing.store(true, Ordering::SeqCst);
    let mut forgetting = None;
    let outcome = running.transaction.commit_or(|dirty| forgetting = invalidate(inner, shared, running, dirty));
    end(running, forgetting);
    outcome
}

/// Rolls a transaction back, unless it is over.
pub(super) fn roll_back(
    inner: &Arc<dyn Filesystem>,
    shared: &Arc<Shared>,
    running: &Arc<Running>,
    why: &str,
) -> fs::Result<()> {
    if running.is_over() {
        return Ok(());
    }
    running.transaction.require_rollback(why);
    write_back_pages(running);
    let mut forgetting = None;
    let outcome = running.transaction.undo(why, |dirty| forgetting = invalidate(inner, shared, running, dirty));
    end(running, forgetting);
    outcome
}

/// Rolls a transaction back when the volume is no longer accessible.
pub(super) fn end_unmounted(running: &Running) -> fs::Result<()> {
    let outcome =
        running.transaction.undo("the volume was unmounted", |_| running.undone.store(true, Ordering::SeqCst));
    end(running, None);
    running.unmounted.store(true, Ordering::SeqCst);
    outcome
}

fn end(running: &Running, forgetting: Option<JoinHandle<()>>) {
    if let Some(forgetting) = forgetting {
        // after a panic there some cached state remains in the kernel
        let _ = forgetting.join();
    }
    running.over.store(true, Ordering::SeqCst);
}

fn overdue(running: &Running) -> Option<String> {
    let over = running.deadline.is_some_and(|deadline| Instant::now() >= deadline);
    over.then(|| format!("it exceeded its time limit of {} s", running.time.as_secs()))
}

/// A part of a file's cached state that the kernel must update or invalidate.
enum Forgotten {
    /// A node, the offset of its last byte, and that byte: the kernel computes the offset of appends, and the end of
    /// mappings, from its own size.
    End((u64, u64, [u8; 1])),
    /// The attributes and content of a node.
    Node(u64),
    /// A name in a directory.
    Name(u64, Vec<u8>),
}

impl Forgotten {
    fn node(&self) -> u64 {
        match self {
            Self::End((node, ..)) | Self::Node(node) | Self::Name(node, _) => *node,
        }
    }

    fn notify(&self, kernel: &Kernel) {
        match self {
            Self::End((node, at, byte)) => kernel.lengthen(*node, *at, byte),
            Self::Node(node) => kernel.forget_inode(*node),
            Self::Name(dir, name) => kernel.forget_name(*dir, name),
        }
    }
}

/// Ends all activity of a transaction's members, and invalidates the kernel's caches. Other processes still wait.
fn invalidate(
    inner: &Arc<dyn Filesystem>,
    shared: &Arc<Shared>,
    running: &Running,
    dirty: &DirtySet,
) -> Option<JoinHandle<()>> {
    running.members.orphan();
    shared.rolled_back.lock().push(Arc::clone(&running.members));
    shared.any_rolled_back.store(true, Ordering::Release);
    running.undone.store(true, Ordering::SeqCst);
    record_capabilities(&**inner, shared, dirty);
    let page_writes = running.page_writes.lock().clone();
    shared.rolled_back_pages.add(page_writes.iter().copied());
    shared.kernel.get()?;
    let ends = dirty.longer.iter().filter_map(|number| last_byte(shared, *number)).map(Forgotten::End);
    let nodes = dirty.inodes.iter().map(|number| node_of(*number)).chain(page_writes).map(Forgotten::Node);
    let names = dirty.names.iter().map(|(dir, name)| Forgotten::Name(node_of(*dir), name.clone()));
    let mut all: Vec<Forgotten> = ends.chain(nodes).chain(names).collect();
    // waiting requests with a directory locked are answered, which unlocks it
    make_way(shared, running, STUCK);
    // locked nodes may take until their processes continue, and must not delay the rest
    let locked = shared.waiting.locked();
    all.sort_by_key(|what| locked.contains(&what.node()));
    forget_all(shared, all)
}

/// Sends all invalidations. Returns when the kernel has processed them, or earlier where it waits for locks of waiting
/// requests.
fn forget_all(shared: &Arc<Shared>, all: Vec<Forgotten>) -> Option<JoinHandle<()>> {
    if all.is_empty() {
        return None;
    }
    let (progress, task) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicI32::new(0)));
    let work = {
        let (shared, progress, task) = (Arc::clone(shared), Arc::clone(&progress), Arc::clone(&task));
        move || {
            let Some(kernel) = shared.kernel.get() else { return };
            task.store(gettid().as_raw_nonzero().get(), Ordering::SeqCst);
            for what in all {
                what.notify(kernel);
                progress.fetch_add(1, Ordering::SeqCst);
            }
        }
    };
    let forgetting = std::thread::Builder::new().name("fuse-forget".to_owned()).spawn(work).ok()?;
    let mut last = (0, Instant::now());
    while !forgetting.is_finished() {
        let now = progress.load(Ordering::SeqCst);
        // a thread that waits for a processor continues by itself
        let sleeps = members::sleeps(task.load(Ordering::SeqCst));
        if now != last.0 || !sleeps {
            last = (now, Instant::now());
        } else if last.1.elapsed() > FORGET && shared.waiting.count() > 0 {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Some(forgetting)
}

/// A file's node, the offset of its last byte, and that byte.
fn last_byte(shared: &Shared, number: InodeNo) -> Option<(u64, u64, [u8; 1])> {
    let inode = shared.volume.inode(number).ok()?;
    let at = shared.volume.attributes_of(number).ok()?.size.checked_sub(1)?;
    let mut byte = [0];
    let read = shared.volume.read_at(&inode, at, &mut byte).ok()?;
    (read == 1).then_some((node_of(number), at, byte))
}

/// Makes the file system update its record of which files have capabilities.
fn record_capabilities(inner: &dyn Filesystem, shared: &Shared, dirty: &DirtySet) {
    let (uid, gid, pid) = (0, 0, 0);
    let mut space = [0; 64];
    for number in &dirty.inodes {
        let request = Request {
            unique: 0,
            node: node_of(*number),
            caller: Caller { uid, gid, pid },
            operation: Operation::GetXattr { name: CAPABILITY, size: 0 },
        };
        let _guard = shared.volume.read_guard();
        let known = shared.volume.inode(*number).is_ok_and(|inode| inode.kind == fs::FileKind::Regular);
        if known {
            // a missing attribute is also an error
            let _ = inner.answer(&request, &mut Reply::new(&mut space));
        }
    }
}

/// Watches a transaction until its process ends it: records its members, lets them proceed past waiting requests, and
/// rolls it back when its time is over or its process has ended.
pub(super) fn watch(
    inner: &Arc<dyn Filesystem>,
    shared: Arc<Shared>,
    running: &Arc<Running>,
    process: &OwnedFd,
    mounted_on: &Path,
) {
    if let Ok(root) = open(mounted_on, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()) {
        let mut place = running.root.lock();
        if shared.is_current(running) {
            *place = Some(root);
        }
    }
    let (mut quiet, mut answered) = (0, 0);
    while shared.is_current(running) && !running.unmounted.load(Ordering::SeqCst) {
        running.members.look();
        let now = shared.answered.load(Ordering::SeqCst);
        let asks_nothing = now == answered && shared.answering.load(Ordering::SeqCst) == 0;
        let stuck = asks_nothing && shared.waiting.count() > 0 && running.members.are_stuck();
        (quiet, answered) = (if stuck { quiet + 1 } else { 0 }, now);
        if quiet >= STUCK && !running.is_over() && make_way(&shared, running, quiet) {
            quiet = 0;
        }
        if has_ended(process, running) {
            // a device error, which the next call that changes something reports
            let _ = roll_back(inner, &shared, running, "the process that began it was killed");
            if shared.is_current(running) {
                shared.clear();
            }
        } else if let Some(why) = overdue(running) {
            let _ = roll_back(inner, &shared, running, &why);
        }
    }
    drop(running.root.lock().take());
    let (members, shared) = (Arc::clone(&running.members), Arc::downgrade(&{ shared }));
    watch_rolled_back(&members, &shared);
}

fn make_way(shared: &Shared, running: &Running, quiet: u32) -> bool {
    let needed = |node| super::inode_of(node).is_some_and(|inode| running.transaction.has_changed(inode));
    shared.waiting.make_way(quiet, needed, |node| shared.forget_attributes(node))
}

/// Waits for a short interval; returns whether the process that began the transaction has ended.
fn has_ended(process: &OwnedFd, running: &Running) -> bool {
    let left = running.deadline.filter(|_| !running.is_over()).map(|end| end.saturating_duration_since(Instant::now()));
    let most = left.map_or(CHECK_INTERVAL, |left| left.clamp(NO_ACCESS_INTERVAL / 4, CHECK_INTERVAL));
    let most = Timespec { tv_sec: 0, tv_nsec: most.subsec_nanos().into() };
    let mut fds = [PollFd::new(process, PollFlags::IN)];
    poll(&mut fds, Some(&most)).is_ok_and(|ready| ready > 0)
}

/// Refuses requests of members of a rolled-back transaction until all members have ended.
fn watch_rolled_back(members: &Arc<Members>, shared: &Weak<Shared>) {
    loop {
        let Some(shared) = shared.upgrade() else { return };
        if !shared.rolled_back.lock().iter().any(|rolled_back| Arc::ptr_eq(rolled_back, members)) {
            return;
        }
        if !members.remain() {
            let mut rolled_back = shared.rolled_back.lock();
            rolled_back.retain(|rolled_back| !Arc::ptr_eq(rolled_back, members));
            shared.any_rolled_back.store(!rolled_back.is_empty(), Ordering::Release);
            return;
        }
        drop(shared);
        std::thread::sleep(MEMBERS_INTERVAL);
    }
}
