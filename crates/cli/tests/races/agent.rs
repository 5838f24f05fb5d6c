//! Starts the helper processes of `agent.py` and communicates with them.

use crate::world::World;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use testkit::tools;

/// The source of the helper, which each round writes beside its volume.
pub(crate) const TEXT: &str = include_str!("agent.py");
/// The name of that file.
pub(crate) const SCRIPT: &str = "agent.py";
/// Options for a quick start: no site packages, no environment, no bytecode files.
pub(crate) const FLAGS: [&str; 3] = ["-I", "-S", "-B"];

/// The system's interpreter: the one in PATH may be a slow wrapper script.
pub(crate) fn python() -> PathBuf {
    let system = Path::new("/usr/bin/python3");
    if system.exists() { system.to_owned() } else { tools::find("python3").expect("need() was asked") }
}

/// A helper that answers commands.
#[derive(Debug)]
pub(crate) struct Agent {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Agent {
    pub(crate) fn start(world: &World, role: &str, arguments: &[&Path]) -> Self {
        let mut command = Command::new(python());
        command.args(FLAGS).arg(world.outside(SCRIPT)).arg(role).args(arguments);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("python3");
        let (input, output) = (child.stdin.take(), child.stdout.take().expect("a pipe"));
        Self { child, input, output: BufReader::new(output) }
    }

    /// The next output line; `None` if it has died.
    pub(crate) fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let length = self.output.read_line(&mut line).ok()?;
        (length > 0).then(|| line.trim_end().to_owned())
    }

    /// The answer to a command; `None` if it has died.
    pub(crate) fn ask(&mut self, command: &str) -> Option<String> {
        writeln!(self.input.as_mut()?, "{command}").ok()?;
        self.line()
    }

    /// Closes its input, and returns its last line.
    pub(crate) fn finish(&mut self) -> Option<String> {
        self.input = None;
        let line = self.line();
        let _ = self.child.wait();
        line
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.input = None;
        // a helper that waits for the server ends with the server
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
