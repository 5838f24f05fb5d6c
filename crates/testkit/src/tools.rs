//! External programs: found, run, and stopped after a time limit.
//!
//! A missing program fails the test: an unnoticed skip is a test that cannot fail. `make setup` installs missing
//! programs; EXTANT_TEST_SKIP_MISSING=1 turns the failure into a skip. For capabilities that a machine may lack
//! permanently (root, FUSE, loop devices) there is a skip, written past the test runner's capture so that it is
//! visible.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Default time limit of a program.
pub const LIMIT: Duration = Duration::from_secs(300);

/// The path of `tool`: in PATH, or in Debian's directories for administration programs.
#[must_use]
pub fn find(tool: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let more = ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    let runs = |p: &PathBuf| p.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0);
    std::env::split_paths(&path).chain(more).map(|folder| folder.join(tool)).find(runs)
}

/// Whether all `tools` are installed. A missing one fails the test, or skips it (`false`) with
/// EXTANT_TEST_SKIP_MISSING.
pub fn need(tools: &[&str]) -> bool {
    let missing: Vec<_> = tools.iter().filter(|tool| find(tool).is_none()).copied().collect();
    if missing.is_empty() {
        return true;
    }
    let missing = missing.join(", ");
    let may_skip = std::env::var_os("EXTANT_TEST_SKIP_MISSING").is_some();
    assert!(may_skip, "missing: {missing}. `make setup` installs it; EXTANT_TEST_SKIP_MISSING=1 skips such tests.");
    skip(&format!("missing {missing}"));
    false
}

/// Reports, past the capture of the test runner, that the running test skips something.
pub fn skip(why: &str) {
    let thread = std::thread::current();
    let line = format!("SKIPPED {}: {why}\n", thread.name().unwrap_or("a test"));
    std::io::stderr().write_all(line.as_bytes()).ok(); // there is no one left to notify where this fails
}

/// Whether the user is root; else reports a skip.
pub fn is_root() -> bool {
    noted(rustix::process::geteuid().is_root(), "needs root")
}

/// Whether a FUSE file system can be mounted; else reports a skip.
pub fn has_fuse() -> bool {
    let device = rustix::fs::access("/dev/fuse", rustix::fs::Access::READ_OK | rustix::fs::Access::WRITE_OK).is_ok();
    let mounter = rustix::process::geteuid().is_root() || find("fusermount3").is_some();
    noted(device && mounter, "needs /dev/fuse and fusermount3")
}

/// Whether the kernel can mount an image through a loop device; else reports a skip.
pub fn has_loop() -> bool {
    is_root() && noted(Path::new("/dev/loop-control").exists(), "needs loop devices")
}

fn noted(holds: bool, otherwise: &str) -> bool {
    if !holds {
        skip(otherwise);
    }
    holds
}

/// The outcome of a program.
#[derive(Debug, Clone)]
pub struct Ran {
    /// Exit status; `None` if it was killed, by its time limit or by another signal.
    pub exit: Option<i32>,
    /// Whether its time limit ended it.
    pub timed_out: bool,
    /// Its standard output.
    pub stdout: Vec<u8>,
    /// Its standard error.
    pub stderr: Vec<u8>,
}

impl Ran {
    /// Both outputs, as text.
    #[must_use]
    pub fn text(&self) -> String {
        format!("{}{}", String::from_utf8_lossy(&self.stdout), String::from_utf8_lossy(&self.stderr))
    }
}

/// Runs a program without standard input for at most [`LIMIT`].
pub fn run<A: AsRef<OsStr>>(tool: &str, args: &[A]) -> Ran {
    run_with(command(tool).args(args), b"", LIMIT)
}

/// Runs a program that must succeed; panics with its output otherwise.
pub fn must<A: AsRef<OsStr>>(tool: &str, args: &[A]) -> Ran {
    let ran = run(tool, args);
    let args: Vec<_> = args.iter().map(AsRef::as_ref).collect();
    assert_eq!(
        ran.exit,
        Some(0),
        "{tool} {args:?}{}: {}",
        if ran.timed_out { " took too long" } else { "" },
        ran.text()
    );
    ran
}

/// The command for `tool`, with English output and UTC. Panics if it is missing; see [`need`].
#[must_use]
pub fn command(tool: &str) -> Command {
    let found = find(tool).unwrap_or_else(|| panic!("missing: {tool}. `make setup` installs it."));
    let mut command = Command::new(found);
    command.env("LC_ALL", "C").env("TZ", "UTC");
    command
}

/// Runs `command` with `input` on its standard input and kills it after `limit`.
pub fn run_with(command: &mut Command, input: &[u8], limit: Duration) -> Ran {
    let started = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = started.unwrap_or_else(|e| panic!("{command:?} does not start: {e}"));
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // a program may close the pipe without reading its input
            stdin.map(|mut pipe| pipe.write_all(input).ok());
        });
        let stdout = scope.spawn(move || drain(stdout));
        let stderr = scope.spawn(move || drain(stderr));
        let end = Instant::now() + limit;
        let mut pause = Duration::from_micros(200);
        let mut timed_out = false;
        let status = loop {
            if let Some(status) = child.try_wait().expect("waiting for a child") {
                break status;
            }
            if Instant::now() >= end && !timed_out {
                timed_out = true;
                child.kill().expect("killing a child that did not end");
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(10));
        };
        let read =
            |thread: std::thread::ScopedJoinHandle<'_, Vec<u8>>| thread.join().expect("reading a child's output");
        Ran { exit: status.code(), timed_out, stdout: read(stdout), stderr: read(stderr) }
    })
}

fn drain(pipe: Option<impl Read>) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(mut pipe) = pipe {
        pipe.read_to_end(&mut bytes).expect("reading a pipe");
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_and_run() {
        assert!(find("sh").is_some() && find("no-such-program-anywhere").is_none());
        let ran = run("sh", &["-c", "echo out; echo err >&2; exit 3"]);
        assert_eq!((ran.exit, ran.timed_out, ran.text().as_str()), (Some(3), false, "out\nerr\n"));
        assert_eq!(run_with(&mut command("cat"), b"in", LIMIT).stdout, b"in");
    }

    #[test]
    fn more_output_than_a_pipe_holds() {
        let input = vec![b'x'; 1 << 20];
        assert_eq!(run_with(&mut command("cat"), &input, LIMIT).stdout.len(), input.len());
    }

    #[test]
    fn a_program_that_does_not_end_is_killed() {
        let ran = run_with(command("sleep").arg("1000"), b"", Duration::from_millis(20));
        assert_eq!((ran.exit, ran.timed_out), (None, true));
    }

    #[test]
    #[should_panic(expected = "make setup")]
    fn a_missing_program_fails_the_test() {
        if std::env::var_os("EXTANT_TEST_SKIP_MISSING").is_some() {
            panic!("make setup is what this would say without EXTANT_TEST_SKIP_MISSING");
        }
        need(&["sh", "no-such-program-anywhere"]);
    }
}
