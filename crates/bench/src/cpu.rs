//! CPU time of processes, user and system, with the threads that have ended, to the nanosecond.
//!
//! The kernel's own threads (of loop devices, of journals, of write-back) belong to no process and are not included.

use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;
use rustix::time::ClockId;
use std::time::Duration;

/// CPU time so far of this process and, where it is a process of its own, of a server with the number `server`; `None`
/// where that has ended.
pub(crate) fn with_server(server: Option<u32>) -> Option<Duration> {
    let ours = Duration::try_from(rustix::time::clock_gettime(ClockId::ProcessCPUTime)).ok()?;
    match server {
        Some(server) => Some(ours + of_process(server)?),
        None => Some(ours),
    }
}

/// CPU time so far of another process. Files in /proc have it in units of 10 ms only.
fn of_process(number: u32) -> Option<Duration> {
    let clock = clock_getcpuclockid(Pid::from_raw(i32::try_from(number).ok()?)).ok()?;
    clock_gettime(clock).ok().map(Duration::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::time::Instant;

    #[test]
    fn the_time_of_a_server_is_added() {
        let mut busy = Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let (start, mut measured) = (Instant::now(), Duration::ZERO);
        while measured < Duration::from_millis(20) && start.elapsed() < Duration::from_secs(60) {
            measured = of_process(busy.id()).unwrap_or_default();
            std::thread::sleep(Duration::from_millis(1));
        }
        let (both, ours) = (with_server(Some(busy.id())), with_server(None));
        // before anything that may fail: it does not end by itself
        busy.kill().unwrap();
        busy.wait().unwrap();
        assert!(measured >= Duration::from_millis(20), "{measured:?}");
        assert!(both > Some(measured) && ours > Some(Duration::ZERO), "{both:?} {ours:?}");
        assert_eq!(with_server(Some(busy.id())), None);
    }
}
