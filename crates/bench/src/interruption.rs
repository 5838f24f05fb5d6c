//! Cleanup after a signal that ends a benchmark: of programs that run, mounts, tracing, temporary files.
//!
//! The process registers each of them when it is made, and removes the registration after it is undone in the usual
//! way. The thread that receives the signal calls [`undo_all`], and then ends the process.

use crate::Result;
use crate::error::Trying;
use crate::process::find;
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use std::fs;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// Work that undoes something.
pub(crate) type Call = Box<dyn FnOnce() + Send>;

/// A way to undo something.
pub(crate) enum Undo {
    /// Kills a child process, and waits for its end.
    End(Pid),
    /// Any other work.
    Call(Call),
}

/// The registrations, in the order in which they were added.
struct Registry {
    entries: Mutex<Entries>,
}

struct Entries {
    /// `None` after the work has been undone.
    list: Option<Vec<(u64, Undo)>>,
    next: u64,
}

/// The registry of this process.
static REGISTRY: Registry = Registry::new();

/// A registration, which ends with this value.
pub(crate) struct Registered {
    number: u64,
    registry: &'static Registry,
}

impl std::fmt::Debug for Registered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registered").field("number", &self.number).finish_non_exhaustive()
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let mut entries = self.registry.entries.lock();
        if let Some(list) = &mut entries.list {
            list.retain(|(number, _)| *number != self.number);
        }
    }
}

impl Registry {
    const fn new() -> Self {
        Self { entries: Mutex::new(Entries { list: Some(Vec::new()), next: 0 }) }
    }

    /// Makes something and registers how it is undone; a signal is handled before or after both. Does not return after
    /// [`Registry::undo_all`].
    fn make<T>(
        &'static self,
        make: impl FnOnce() -> Result<T>,
        undo: impl FnOnce(&T) -> Undo,
    ) -> Result<(T, Registered)> {
        {
            let mut entries = self.entries.lock();
            let number = entries.next;
            if let Some(list) = &mut entries.list {
                let made = make()?;
                list.push((number, undo(&made)));
                entries.next += 1;
                return Ok((made, Registered { number, registry: self }));
            }
        }
        wait_for_the_end()
    }

    fn is_undone(&self) -> bool {
        self.entries.lock().list.is_none()
    }

    /// Ends the processes, and undoes all else, the last registration first.
    fn undo_all(&self) {
        let list = self.entries.lock().list.take().unwrap_or_default();
        let mut calls = Vec::new();
        for (_, undo) in list {
            match undo {
                Undo::End(process) => end(process),
                Undo::Call(call) => calls.push(call),
            }
        }
        while let Some(call) = calls.pop() {
            call();
        }
    }
}

/// Kills a child process, and waits for its end without taking its exit status from the thread that waits for it.
fn end(process: Pid) {
    // it may have ended
    let _ = kill_process(process, Signal::KILL);
    let _ = waitid(WaitId::Pid(process), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
}

/// Waits until another thread ends the process.
fn wait_for_the_end() -> ! {
    loop {
        std::thread::park();
    }
}

/// Undoes all that benchmarks of this process did to the system. Afterwards they do not continue: the caller ends the
/// process.
pub fn undo_all() {
    REGISTRY.undo_all();
}

/// Does not return if [`undo_all`] was called: the errors of a benchmark that follow from it are not reported.
pub fn wait_if_undone() {
    if REGISTRY.is_undone() {
        wait_for_the_end();
    }
}

/// Makes something and registers how it is undone.
pub(crate) fn make<T>(make: impl FnOnce() -> Result<T>, undo: impl FnOnce(&T) -> Undo) -> Result<(T, Registered)> {
    REGISTRY.make(make, undo)
}

/// Starts a program, which is killed if a signal arrives before the registration ends.
pub(crate) fn spawn(command: &mut Command, path: &Path) -> Result<(Child, Registered)> {
    make(|| command.spawn().trying("run", path), |child| Undo::End(Pid::from_child(child)))
}

/// Registers a mount that is made afterwards on `dir`.
pub(crate) fn mount(dir: &Path) -> Result<Registered> {
    let dir = dir.to_owned();
    make(|| Ok(()), |()| Undo::Call(Box::new(move || unmount(&dir)))).map(|((), registered)| registered)
}

/// Unmounts what is mounted on `dir`, although this process may use it.
pub(crate) fn unmount(dir: &Path) {
    let Some(umount) = find("umount") else { return };
    let mut command = Command::new(umount);
    // an error means that it is not mounted
    let _ = command.arg("-l").arg(dir).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
}

/// Registers a file that is made afterwards at `path`.
pub(crate) fn file(path: &Path) -> Result<Registered> {
    let path = path.to_owned();
    let remove = move || drop(fs::remove_file(path));
    make(|| Ok(()), |()| Undo::Call(Box::new(remove))).map(|((), registered)| registered)
}

/// A temporary directory, which is removed with its files when dropped.
#[derive(Debug)]
pub(crate) struct Folder {
    // dropped before the registration
    dir: TempDir,
    _registered: Registered,
}

impl Folder {
    /// A directory in `parent` for files.
    pub(crate) fn in_dir(parent: &Path) -> Result<Self> {
        Self::new(parent, |dir| drop(fs::remove_dir_all(dir)))
    }

    /// A directory to mount on. A signal removes it only if it is empty, so that no file of a mount is removed.
    pub(crate) fn for_mount() -> Result<Self> {
        Self::new(&std::env::temp_dir(), |dir| drop(fs::remove_dir(dir)))
    }

    fn new(parent: &Path, remove: impl FnOnce(PathBuf) + Send + 'static) -> Result<Self> {
        let new = || tempfile::Builder::new().prefix("extant-bench-").tempdir_in(parent);
        let (dir, registered) = make(
            || new().trying("make a directory in", parent),
            |dir: &TempDir| {
                let path = dir.path().to_owned();
                Undo::Call(Box::new(move || remove(path)))
            },
        )?;
        Ok(Self { dir, _registered: registered })
    }
}

impl Deref for Folder {
    type Target = Path;

    fn deref(&self) -> &Path {
        self.dir.path()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn note(notes: &Arc<Mutex<Vec<u32>>>, number: u32) -> Undo {
        let notes = Arc::clone(notes);
        Undo::Call(Box::new(move || notes.lock().push(number)))
    }

    #[test]
    fn all_that_is_registered_is_undone_backwards_and_processes_first() {
        // not the registry of the other tests
        static OWN: Registry = Registry::new();
        let notes = Arc::default();
        let one = |number| OWN.make(|| Ok(()), |()| note(&notes, number)).unwrap().1;
        let first = one(1);
        drop(one(2));
        let third = one(3);
        let sleep = || Command::new("sleep").arg("600").spawn().trying("run", Path::new("sleep"));
        let (mut child, registered) = OWN.make(sleep, |child| Undo::End(Pid::from_child(child))).unwrap();
        assert!(!OWN.is_undone());
        OWN.undo_all();
        assert!(OWN.is_undone());
        assert_eq!(*notes.lock(), [3, 1]);
        assert!(child.try_wait().unwrap().is_some_and(|status| !status.success()));
        drop((first, third, registered));
        OWN.undo_all();
        assert_eq!(*notes.lock(), [3, 1]);
    }
}
