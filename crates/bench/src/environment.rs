//! The machine and the programs that a figure belongs to.

use crate::transport::IoUring;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

/// The environment of a measurement. What the system does not report is empty.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Environment {
    /// Name and release of the kernel.
    pub kernel: String,
    /// The processor's name.
    pub cpu: String,
    /// Threads that the machine runs at once for this process.
    pub cores: usize,
    /// Bytes of main memory.
    pub memory_bytes: u64,
    /// Load average of the last minute before the measurement: more than a few tenths mean that other processes were
    /// running.
    pub load: f64,
    /// Whether FUSE over io_uring is on in the kernel.
    pub fuse_io_uring: IoUring,
    /// The programs compared, with their versions.
    pub versions: BTreeMap<String, String>,
}

impl Environment {
    /// The environment of this machine now; the versions are added with [`Environment::with`].
    #[must_use]
    pub fn here() -> Self {
        let uname = rustix::system::uname();
        let words = |file, key: &str| {
            let text = fs::read_to_string(file).unwrap_or_default();
            let line = text.lines().find(|line| line.starts_with(key));
            line.and_then(|line| line.split_once(':')).map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
        };
        let memory = words("/proc/meminfo", "MemTotal");
        let kib: u64 = memory.split_whitespace().next().and_then(|kib| kib.parse().ok()).unwrap_or(0);
        let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        Self {
            kernel: format!("{} {}", uname.sysname().to_string_lossy(), uname.release().to_string_lossy()),
            cpu: words("/proc/cpuinfo", "model name"),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: kib.saturating_mul(1024),
            load: load.split_whitespace().next().and_then(|load| load.parse().ok()).unwrap_or(0.0),
            fuse_io_uring: IoUring::here(),
            versions: BTreeMap::new(),
        }
    }

    /// Adds a program, with the first line of output of `program flag`.
    #[must_use]
    pub fn with(mut self, name: &str, program: &Path, flag: &str) -> Self {
        let said = Command::new(program).arg(flag).output().map(|output| [output.stdout, output.stderr].concat());
        let said = said.unwrap_or_default();
        let line = String::from_utf8_lossy(&said).lines().next().unwrap_or_default().trim().to_owned();
        self.versions.insert(name.to_owned(), line);
        self
    }

    /// The environment as text: one line for the machine, one for each program.
    #[must_use]
    pub fn lines(&self) -> String {
        let Self { kernel, cpu, cores, load, .. } = self;
        let memory = self.memory_bytes as f64 / (1u64 << 30) as f64;
        let io_uring = self.fuse_io_uring.words();
        let mut text =
            format!("{kernel}, {cpu} ({cores} cores), {memory:.1} GiB of memory, load {load:.2}, {io_uring}\n");
        for (name, version) in &self.versions {
            text.push_str(&format!("{name}: {version}\n"));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_has_a_name() {
        let here = Environment::here().with("shell", Path::new("/bin/sh"), "--no-such-flag");
        assert!(here.kernel.starts_with("Linux ") && here.cores > 0 && here.memory_bytes > 1 << 20, "{here:?}");
        assert!(here.versions.contains_key("shell"));
        let lines = here.lines();
        assert!(lines.lines().count() == 2 && lines.contains("FUSE over io_uring"), "{lines}");
    }
}
