//! A sample that is a child process.

use crate::error::Trying;
use crate::interruption;
use crate::runner::{Worker, timed};
use crate::{Error, Result, Sample};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The interval at which the memory of a process is sampled. Memory used only after the last sample is missed.
const SAMPLE_INTERVAL: Duration = Duration::from_micros(500);

/// A program with its arguments, to be run many times.
#[derive(Debug, Clone)]
pub(crate) struct Program {
    pub(crate) path: PathBuf,
    pub(crate) args: Vec<OsString>,
    /// The exit statuses that are results, not failures.
    pub(crate) answers: &'static [i32],
}

impl Program {
    /// Runs it once and discards its output.
    ///
    /// # Errors
    /// [`Error::Failed`] where it ends with any other status.
    pub(crate) fn run(&self) -> Result<Sample> {
        let mut command = self.command();
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let run = || {
            let (child, _registered) = interruption::spawn(&mut command, &self.path)?;
            child.wait_with_output().trying("run", &self.path)
        };
        let (output, sample) = timed(Worker::Children, run);
        let output = output?;
        match output.status.code() {
            Some(code) if self.answers.contains(&code) => Ok(sample),
            _ => {
                let said = String::from_utf8_lossy(&output.stderr);
                let last = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it printed nothing");
                Err(Error::Failed(format!("{} ended with {}: {last}", self.path.display(), output.status)))
            }
        }
    }

    /// Runs it once, and returns its largest resident memory in bytes.
    ///
    /// The memory is sampled while it runs, because the value that the system reports afterwards (`ru_maxrss`) is at
    /// least that of *this* process when it started the other.
    pub(crate) fn peak_memory(&self) -> Result<u64> {
        let mut command = self.command();
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let (mut child, _registered) = interruption::spawn(&mut command, &self.path)?;
        let status = PathBuf::from(format!("/proc/{}/status", child.id()));
        let mut peak = 0;
        while running(&mut child, &self.path)? {
            peak = std::fs::read_to_string(&status).ok().and_then(|text| peak_in(&text)).unwrap_or(peak);
            std::thread::sleep(SAMPLE_INTERVAL);
        }
        Ok(peak)
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        command.args(&self.args).stdin(Stdio::null());
        command
    }
}

fn running(child: &mut Child, path: &Path) -> Result<bool> {
    Ok(child.try_wait().trying("wait for", path)?.is_none())
}

/// `VmHWM` of a process's status, in bytes.
fn peak_in(status: &str) -> Option<u64> {
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    kib.checked_mul(1024)
}

/// The full path of `name`, in the PATH or where system programs are.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(system).map(|dir| dir.join(name)).find(|file| file.is_file())
}

/// As [`find`].
///
/// # Errors
/// [`Error::Unsupported`], with the package that has it.
pub(crate) fn need(name: &str, package: &str) -> Result<PathBuf> {
    find(name).ok_or_else(|| Error::Unsupported(format!("{name} is not installed (package {package})")))
}

/// Runs a program that has to succeed.
pub(crate) fn must<A: AsRef<std::ffi::OsStr>>(program: &Path, args: impl IntoIterator<Item = A>) -> Result<()> {
    let args = args.into_iter().map(|a| a.as_ref().to_owned()).collect();
    Program { path: program.to_owned(), args, answers: &[0] }.run().map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, answers: &'static [i32]) -> Program {
        Program { path: find("sh").expect("a shell"), args: ["-c".into(), script.into()].to_vec(), answers }
    }

    #[test]
    fn a_child_is_timed_and_its_status_checked() {
        let sample = shell("i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; exit 4", &[0, 4]).run().unwrap();
        assert!(sample.cpu.is_some_and(|cpu| cpu > Duration::ZERO && cpu <= sample.wall * 2), "{sample:?}");
        let error = shell("echo first >&2; echo the reason >&2; exit 8", &[0]).run().unwrap_err().to_string();
        assert!(error.ends_with("ended with exit status: 8: the reason"), "{error}");
    }

    #[test]
    fn the_memory_of_a_child_is_its_own() {
        let ours = vec![1u8; 64 << 20];
        let peak = shell("sleep 0.05", &[0]).peak_memory().unwrap();
        assert!(std::hint::black_box(&ours).len() > 32 << 20);
        assert!((1..32 << 20).contains(&peak), "{peak}");
        assert_eq!(peak_in("VmPeak:\t    10 kB\nVmHWM:\t      3584 kB\n"), Some(3584 * 1024));
        assert_eq!(peak_in("Name:\tx\n"), None);
    }
}
