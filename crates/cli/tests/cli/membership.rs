//! Membership in a transaction, and the guarantees for other processes meanwhile.

use crate::common::{EXTANT, exits, prints, ready, text};
use crate::transactions::{LOOK, MountedVolume};
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use testkit::{need, tools};

fn wait_for(path: &Path) {
    let end = Instant::now() + Duration::from_secs(100);
    while !path.exists() {
        assert!(Instant::now() < end, "{} does not appear", path.display());
        std::thread::sleep(LOOK);
    }
}

/// Starts a shell in a transaction; it creates a file when it has begun, and ends when another file exists.
fn paused(place: &MountedVolume, script: &str) -> (std::process::Child, std::path::PathBuf) {
    let (began, go) = (place.folder.path().join("began"), place.folder.path().join("go"));
    let script = format!("touch {}; while [ ! -e {} ]; do sleep 0.02; done; {script}", began.display(), go.display());
    let child = place.command(&["--timeout", "3600"], &script).spawn().unwrap();
    wait_for(&began);
    (child, go)
}

#[test]
fn all_threads_of_a_member_are_members() {
    const PROGRAM: &str = "import os, threading\n\
        def work(): os.mkdir('by-a-thread'); open('f1', 'w').write('thread')\n\
        t = threading.Thread(target=work); t.start(); t.join()\n";
    if !ready() || !tools::has_fuse() || !need(&["python3"]) {
        return;
    }
    let place = MountedVolume::new("transport=best");
    let (mut child, go) = paused(&place, &format!("exec python3 -c \"{PROGRAM}\""));
    // another process waits, and has locked the directory that the thread needs
    let path = place.mnt().join("d/other");
    let other = std::thread::spawn(move || fs::write(path, "theirs"));
    std::thread::sleep(Duration::from_millis(200));
    fs::write(go, "").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    other.join().unwrap().unwrap();
    assert_eq!(fs::read(place.mnt().join("d/f1")).unwrap(), b"thread");
    assert!(place.mnt().join("d/by-a-thread").is_dir());
    place.end();
}

#[test]
fn who_waits_can_be_killed() {
    if !ready() || !tools::has_fuse() {
        return;
    }
    let place = MountedVolume::new("transport=best");
    let (mut child, go) = paused(&place, "exit 0");
    for script in ["echo x >> f7", "mkdir waits", "chmod 700 f8", "touch f9"] {
        let mut waits = Command::new("sh").args(["-c", script]).current_dir(place.mnt().join("d")).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(200));
        assert!(waits.try_wait().unwrap().is_none(), "{script} does not wait");
        // either the child of the shell waits, or the shell itself
        let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", waits.id())).unwrap();
        children.split_whitespace().for_each(|process| drop(tools::run("kill", &["-9", process])));
        waits.kill().unwrap();
        let (killed, mut status) = (Instant::now(), None);
        while killed.elapsed() < Duration::from_secs(20) && status.is_none() {
            std::thread::sleep(LOOK);
            status = waits.try_wait().unwrap();
        }
        let status = status.expect("it does not end during the transaction");
        assert!(status.signal() == Some(9) || !status.success(), "{script}: {status}");
    }
    fs::write(go, "").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(!place.mnt().join("d/waits").exists());
    place.end();
}

/// Another process stores in a mapping and syncs it: either the data survives, or the call fails.
#[test]
fn what_others_sync_of_a_mapping_survives_a_rollback_or_is_refused() {
    const PROGRAM: &str = "import mmap, os, sys\n\
        f = os.open('f5', os.O_RDWR); os.ftruncate(f, 4096); m = mmap.mmap(f, 4096)\n\
        for n in range(int(sys.argv[1])): m[n * 8:n * 8 + 6] = b'STORED'\n\
        print('stored', flush=True); sys.stdin.readline(); out = 'stays'\n\
        try: m.flush(); os.fsync(f)\n\
        except OSError as e: out = 'refused'\n\
        print(out, flush=True)\n";
    if !ready() || !tools::has_fuse() || !need(&["python3"]) {
        return;
    }
    for options in ["transport=best", "transport=device"] {
        let place = MountedVolume::new(options);
        let start = || {
            let mut python = Command::new("python3");
            python.args(["-c", PROGRAM, "3"]).current_dir(place.mnt().join("d"));
            python.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
        };
        // the store precedes the transaction, the sync is during it
        let mut other = start();
        let mut said = std::io::BufReader::new(other.stdout.take().unwrap());
        let mut line = String::new();
        std::io::BufRead::read_line(&mut said, &mut line).unwrap();
        assert_eq!(line, "stored\n");
        let (mut child, go) = paused(&place, "echo x >> f5; exit 7");
        drop(other.stdin.take());
        std::thread::sleep(Duration::from_millis(200));
        fs::write(go, "").unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(7));
        line.clear();
        std::io::BufRead::read_line(&mut said, &mut line).unwrap();
        assert!(other.wait().unwrap().success());
        let volume = place.folder.path().join("volume");
        place.unmount();
        let content = exits(0, &["cat", text(&volume), "/d/f5"]).stdout;
        let there = content.starts_with(b"STORED");
        assert!(line == "refused\n" || (line == "stays\n" && there), "{options}: {line}, {}", content.escape_ascii());
    }
}

/// Two processes store into pages of one file during a transaction that is rolled back: both get the error, once,
/// although a third process got it before.
#[test]
fn every_open_file_hears_that_its_pages_were_rolled_back() {
    const PROGRAM: &str = "import mmap, os, sys\n\
        f = os.open('f5', os.O_RDWR); m = mmap.mmap(f, 16384); at = int(sys.argv[1])\n\
        print('open', m[at], flush=True); sys.stdin.readline()\n\
        if at: m[at:at + 6] = b'STORED'\n\
        print('stored', flush=True); sys.stdin.readline()\n\
        def sync():\n\
        \x20   try: os.fsync(f); return 'synced'\n\
        \x20   except OSError: return 'refused'\n\
        print(sync(), sync(), flush=True)\n";
    if !ready() || !tools::has_fuse() || !need(&["python3"]) {
        return;
    }
    for options in ["transport=best", "transport=device"] {
        let place = MountedVolume::new(options);
        fs::write(place.mnt().join("d/f5"), [b'o'; 16384]).unwrap();
        fs::File::open(place.mnt().join("d/f5")).unwrap().sync_all().unwrap();
        let mut all: Vec<_> = ["0", "4096", "8192"]
            .into_iter()
            .map(|at| {
                let mut python = Command::new("python3");
                python.args(["-c", PROGRAM, at]).current_dir(place.mnt().join("d"));
                let mut child = python.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
                let said = std::io::BufReader::new(child.stdout.take().unwrap());
                (child, said)
            })
            .collect();
        let mut lines = |next: bool| -> Vec<String> {
            all.iter_mut()
                .map(|(child, said)| {
                    if next {
                        std::io::Write::write_all(child.stdin.as_mut().unwrap(), b"\n").unwrap();
                    }
                    let mut line = String::new();
                    std::io::BufRead::read_line(said, &mut line).unwrap();
                    line
                })
                .collect()
        };
        assert_eq!(lines(false), ["open 111\n"; 3]);
        let (mut child, go) = paused(&place, "echo x > new; sync -f f5; exit 7");
        assert_eq!(lines(true), ["stored\n"; 3]);
        fs::write(go, "").unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(7));
        assert_eq!(lines(true), ["refused synced\n"; 3], "{options}");
        fs::File::open(place.mnt().join("d/f5")).unwrap().sync_all().unwrap();
        for (mut child, _) in all {
            assert!(child.wait().unwrap().success());
        }
        place.end();
    }
}

/// A server in a PID namespace: a process outside has the number 0 there, like the kernel itself.
const IN_A_CONTAINER: &str = r#"
cd "$1"
extant=$2
$extant mount volume mnt || exit 9
touch up
while [ ! -e outside ]; do sleep 0.02; done
$extant txn mnt -- sh -c 'touch mnt/member; touch began; while [ ! -e go ]; do sleep 0.02; done; exit 7'
echo "ended $?" > ended
while [ ! -e done ]; do sleep 0.02; done
$extant umount mnt
"#;

#[test]
fn who_asks_from_another_pid_namespace_is_no_member() {
    if !ready() || !tools::has_fuse() || !tools::is_root() || !need(&["unshare", "nsenter"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("mnt")).unwrap();
    prints(&["mkfs", "-t", "extant", text(&at("volume")), "32M"]);
    let args = ["--pid", "--fork", "--mount-proc", "--propagation", "private", "sh", "-c", IN_A_CONTAINER, "sh"];
    let mut inside = Command::new("unshare").args(args).arg(folder.path()).arg(EXTANT).spawn().unwrap();
    wait_for(&at("up"));
    let shell = fs::read_to_string(format!("/proc/{0}/task/{0}/children", inside.id())).unwrap();
    let write = |name: &str| {
        let mut command = Command::new("nsenter");
        let script = format!("echo theirs > {0}/{name} && sync {0}/{name}", text(&at("mnt")));
        command.args(["--mount", "--target", shell.trim(), "sh", "-c", &script]).spawn().unwrap()
    };
    assert!(write("before").wait().unwrap().success());
    fs::write(at("outside"), "").unwrap();
    wait_for(&at("began"));
    let mut during = write("during");
    std::thread::sleep(Duration::from_millis(300));
    let waits = during.try_wait().unwrap().is_none();
    fs::write(at("go"), "").unwrap();
    wait_for(&at("ended"));
    let written = during.wait().unwrap().success();
    fs::write(at("done"), "").unwrap();
    inside.wait().unwrap();
    assert_eq!(fs::read_to_string(at("ended")).unwrap(), "ended 7\n");
    let names = prints(&["ls", text(&at("volume")), "/"]);
    assert!(names.contains("before") && !names.contains("member"), "{names}");
    // it waited, or was refused: acknowledged data is there
    assert!(waits || !written);
    assert_eq!(names.contains("during"), written, "{names}");
}

/// Process numbers are of no use to a server in another PID namespace.
#[test]
fn where_proc_is_of_another_namespace_no_transaction_begins() {
    if !ready() || !tools::has_fuse() || !tools::is_root() || !need(&["unshare"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("mnt")).unwrap();
    prints(&["mkfs", "-t", "extant", text(&at("volume")), "32M"]);
    let script = format!(
        "cd {} && {EXTANT} mount volume mnt && {{ {EXTANT} txn mnt -- touch mnt/member; echo $?; {EXTANT} umount mnt; }}",
        text(folder.path())
    );
    let ran = Command::new("unshare").args(["--pid", "--fork", "sh", "-c", &script]).output().unwrap();
    let (out, said) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(out.ends_with("125\n") && said.contains("/proc belongs to another PID namespace"), "{out} {said}");
    assert!(!prints(&["ls", text(&at("volume")), "/"]).contains("member"));
}

#[test]
fn a_command_whose_time_is_over_is_ended() {
    if !ready() || !tools::has_fuse() {
        return;
    }
    let place = MountedVolume::new("transport=best");
    let began = Instant::now();
    let ran = place.run(&["--timeout", "1"], "touch new; exec sleep 600");
    assert!(began.elapsed() < Duration::from_secs(100));
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.code() == Some(125) && said.contains("exceeded its time limit of 1 s"), "{said}");
    assert!(!place.mnt().join("d/new").exists());
    place.end();
}

/// The process that stored in a mapping may have ended before the lack of space is detected.
#[test]
fn what_was_stored_in_a_mapping_and_has_no_space_is_not_part_of_anything() {
    const STORE: &str = "import mmap, os, sys, time\n\
        f = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT); n = 4000000; os.ftruncate(f, n); m = mmap.mmap(f, n)\n\
        m[:] = b'M' * n; print('stored', flush=True); sys.stdin.readline(); os._exit(0)\n";
    if !ready() || !tools::has_fuse() || !need(&["python3", "sync"]) {
        return;
    }
    let place = MountedVolume::new("transport=best");
    let piece = vec![7; 1 << 20];
    let mut fill = fs::File::create(place.mnt().join("fill")).unwrap();
    while std::io::Write::write_all(&mut fill, &piece).is_ok() {}
    fs::write(place.folder.path().join("store.py"), STORE).unwrap();
    let store = format!("python3 {} ", text(&place.folder.path().join("store.py")));
    let ran = place.run(&[], &format!("{store} m < /dev/null > /dev/null"));
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.code() == Some(125) && said.contains("mapping"), "{said}");
    assert!(!place.mnt().join("d/m").exists());
    // the same beside a snapshot
    let mut python = Command::new("python3");
    python.arg(place.folder.path().join("store.py")).arg(place.mnt().join("n"));
    let mut python = python.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut stdout = std::io::BufReader::new(python.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut stdout, &mut line).unwrap();
    let ran = crate::common::extant(&["snapshot", "create", text(&place.mnt()), "s"]);
    assert!(ran.exit == Some(1) && ran.text().to_lowercase().contains("no space"), "{}", ran.text());
    drop(python.stdin.take());
    python.wait().unwrap();
    drop((stdout, fill));
    // the loss would be reported, but nothing is missing of a file that was removed
    fs::remove_file(place.mnt().join("n")).unwrap();
    place.end();
}
