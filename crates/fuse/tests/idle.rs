//! An idle mount: no thread of the server wakes. The only test of its program, so that all threads belong to the
//! mounts.

mod common;

use common::{TRANSPORTS, ready, serve_writable};
use std::fs;
use std::time::{Duration, Instant};
use testkit::{Image, tools};

/// Longer than any idle time after which the server becomes active.
const QUIET: Duration = Duration::from_secs(6);
/// The maximum time that a busy machine may take until all work is done.
const PATIENCE: Duration = Duration::from_secs(180);

/// The number of times that the threads of this process have gone to sleep, without the calling thread.
fn slept() -> u64 {
    let this = rustix::thread::gettid().as_raw_nonzero().to_string();
    let tasks = fs::read_dir("/proc/self/task").expect("threads").map(|task| task.expect("a thread"));
    let others = tasks.filter(|task| task.file_name() != *this);
    // a thread that ended meanwhile has no file
    let texts = others.filter_map(|task| fs::read_to_string(task.path().join("status")).ok());
    texts
        .map(|text| {
            let count = text.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            count.map_or(0, |count| count.trim().parse::<u64>().expect("a number"))
        })
        .sum()
}

#[test]
fn a_mount_in_quiet_wakes_no_thread() {
    if !ready() || !tools::is_root() {
        return;
    }
    let images = TRANSPORTS.map(|transport| (Image::mke2fs(&["-t", "ext4"], 16 << 20).build(), transport));
    let both = images.each_ref().map(|(image, transport)| serve_writable(image.path(), transport));
    for served in &both {
        for n in 0..100 {
            fs::write(served.path().join(format!("file-{n}")), b"content").expect("written");
        }
        fs::remove_file(served.path().join("file-7")).expect("removed");
    }
    let end = Instant::now() + PATIENCE;
    loop {
        let before = slept();
        std::thread::sleep(QUIET);
        let woken = slept().wrapping_sub(before);
        if woken == 0 {
            break;
        }
        assert!(Instant::now() < end, "{woken} times in {QUIET:?}");
    }
    // and later changes are written as before
    for served in &both {
        fs::write(served.path().join("late"), b"content").expect("written");
    }
}
