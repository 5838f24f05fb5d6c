//! The server's use of memory: proportional to the files in use, and within the limit of a control group.

mod common;

use blockdev::FileDevice;
use common::ready;
use extant_fuse::{MountOptions, mount, unmount};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use testkit::{Image, oracle, tools};

/// Whether the kernel can prune files (FUSE_NOTIFY_PRUNE); prints the reason if not.
fn kernel_can_prune() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("the kernel's version");
    let mut parts = release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse::<u32>().unwrap_or(0));
    let new = (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) >= (6, 18);
    if !new {
        tools::skip("needs Linux 6.18");
    }
    new
}

/// Whether `holds` becomes true within 20 seconds.
fn soon(mut holds: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + Duration::from_secs(20);
    while Instant::now() < end {
        if holds() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    holds()
}

#[test]
fn the_kernel_prunes_files_that_no_process_uses_and_no_others() {
    const FILES: usize = 1000;
    if !ready() || !kernel_can_prune() {
        return;
    }
    let image = Image::mke2fs(&["-t", "ext4", "-N", "4000"], 32 << 20).build();
    let access = blockdev::OpenOptions { write: true, ..blockdev::OpenOptions::default() };
    let device = Arc::new(FileDevice::open(image.path(), access).expect("opening an image"));
    let options = MountOptions::parse(&["rw"]).expect("options");
    let how = options.volume_options().pop().expect("one way to open it");
    let volume = Arc::new(::fs::Volume::open(device, &how).expect("opening a volume"));
    let dir = tempfile::tempdir().expect("a temporary folder");
    let session = mount(Arc::clone(&volume), dir.path(), &options, |problem| panic!("{problem}")).expect("mount");
    let unmounter = session.unmounter();
    let server = std::thread::spawn(|| session.run());

    let sub = dir.path().join("sub");
    fs::create_dir(&sub).expect("mkdir");
    for n in 0..FILES {
        fs::write(sub.join(n.to_string()), n.to_string()).expect("write");
    }
    let open = fs::File::open(sub.join("7")).expect("open");
    let nameless = fs::File::open(sub.join("8")).expect("open");
    fs::remove_file(sub.join("8")).expect("unlink");
    assert!(volume.looked_up() >= FILES, "{} looked up", volume.looked_up());
    // recently used files are spared, so it takes more than one round
    assert!(
        soon(|| {
            volume.limit_looked_up(10);
            volume.looked_up() <= 20
        }),
        "{} looked up",
        volume.looked_up()
    );
    // open files are unaffected
    for (file, content) in [(&open, "7"), (&nameless, "8")] {
        assert_eq!(std::io::read_to_string(file).expect("read"), content);
    }
    let link = fs::read_link(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&open))).expect("its name");
    assert_eq!(link, sub.canonicalize().expect("a path").join("7"), "a file in use has its name");
    assert_eq!(fs::read_dir(&sub).expect("list").count(), FILES - 1);
    for n in (0..FILES).filter(|n| *n != 8) {
        assert_eq!(fs::read_to_string(sub.join(n.to_string())).expect("read"), n.to_string());
    }
    drop((open, nameless));
    fs::remove_dir_all(&sub).expect("remove all");
    assert!(soon(|| volume.looked_up() == 0), "{} looked up", volume.looked_up());
    unmounter.unmount().expect("unmount");
    server.join().expect("no panic").expect("the session ends well");
    drop(volume);
    let verdict = oracle::e2fsck(image.path());
    assert!(verdict.clean, "{verdict:?}");
}

/// A control group with a memory limit, removed when dropped.
struct ControlGroup(PathBuf);

impl ControlGroup {
    /// Makes a control group; `None`, with the reason printed, where that is impossible.
    fn new(bytes: u64) -> Option<Self> {
        if !tools::is_root() {
            return None;
        }
        let name = format!("extant-test-{}", std::process::id());
        for (root, limit) in [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")] {
            let group = Self(Path::new(root).join(&name));
            if fs::create_dir(&group.0).is_ok() && fs::write(group.0.join(limit), bytes.to_string()).is_ok() {
                return Some(group);
            }
        }
        tools::skip("needs a control group whose memory can be limited");
        None
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        // a process that has just ended may be counted for a moment
        soon(|| !self.0.exists() || fs::remove_dir(&self.0).is_ok());
    }
}

#[test]
fn a_server_with_little_memory_goes_on() {
    serve_with_little_memory("rw,commit=100");
    // content that is in the log as well, and waits for its checkpoint
    serve_with_little_memory("rw,commit=100,data=journal");
}

fn serve_with_little_memory(options: &str) {
    // far more content than the group's memory limit, none of which is written because of its age
    const FILES: usize = 8000;
    const LENGTH: usize = 12 << 10;
    if !ready() {
        return;
    }
    let Some(group) = ControlGroup::new(64 << 20) else { return };
    let mut program = std::env::current_exe().expect("this program");
    program.pop();
    program.pop();
    program.push("examples/mount");
    let image = Image::mke2fs(&["-t", "ext4", "-N", "9000"], 256 << 20).build();
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mut server = Command::new("sh")
        .args(["-c", "echo $$ > \"$1/cgroup.procs\" && shift && exec \"$@\"", "sh"])
        .args([group.0.as_path(), &program, image.path(), dir.path(), Path::new(options)])
        .stdout(Stdio::piped())
        .spawn()
        .expect("starting the program");
    let mut said = String::new();
    BufReader::new(server.stdout.as_mut().expect("its output")).read_line(&mut said).expect("its output");
    assert_eq!(said, "mounted\n");

    // several writers at once
    let large = |n: u8| -> std::io::Result<()> {
        let mut file = fs::File::create(dir.path().join(format!("large-{n}")))?;
        (0..64).try_for_each(|_| std::io::Write::write_all(&mut file, &[n; 1 << 20]))?;
        file.sync_all()?;
        fs::remove_file(dir.path().join(format!("large-{n}")))
    };
    let larges = std::thread::scope(|scope| {
        let all = [1, 2].map(|n| scope.spawn(move || large(n)));
        all.into_iter().try_for_each(|one| one.join().expect("no panic"))
    });
    let small = |n: usize| {
        let sub = dir.path().join((n / 1000).to_string());
        if n.is_multiple_of(1000) {
            fs::create_dir(&sub)?;
        }
        fs::write(sub.join(n.to_string()), [n as u8; LENGTH])
    };
    let made = larges.and_then(|()| (0..FILES).try_for_each(small));
    let died = server.try_wait().expect("waiting");
    if died.is_some() || made.is_err() {
        server.kill().ok();
        server.wait().ok();
        tools::run("umount", &["-l".as_ref(), dir.path().as_os_str()]);
        panic!("the server ended: {died:?}; {made:?}");
    }
    unmount(dir.path()).expect("unmount");
    assert!(server.wait().expect("waiting").success());
    let volume = common::open(image.path());
    for n in (0..FILES).step_by(97) {
        let path = format!("/{}/{n}", n / 1000);
        let inode = volume.resolve(path.as_bytes()).and_then(|number| volume.inode(number)).expect("a file");
        let mut bytes = vec![0; LENGTH + 1];
        assert_eq!(volume.read_at(&inode, 0, &mut bytes).expect("read"), LENGTH);
        assert!(bytes[..LENGTH].iter().all(|byte| *byte == n as u8));
    }
    drop(volume);
    let verdict = oracle::e2fsck(image.path());
    assert!(verdict.clean, "{verdict:?}");
}
