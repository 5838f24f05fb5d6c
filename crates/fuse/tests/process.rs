//! A volume served by another process: how it ends, the rights of its user, and the access of other users.

mod common;

use common::{acl_bytes, ready};
use extant_fuse::unmount;
use parking_lot::Mutex;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use testkit::{Image, tools};

/// The lock for tests with a mount namespace of their own. A namespace that is created while a volume is mounted
/// contains the mount, and with it the lock of the volume, until the namespace ends. So such a test must not run with
/// the one that mounts the same volume again.
static NAMESPACES: Mutex<()> = Mutex::new(());

/// The program `examples/mount.rs`.
fn program() -> PathBuf {
    let mut path = std::env::current_exe().expect("this program");
    path.pop();
    path.pop();
    path.push("examples/mount");
    assert!(path.exists(), "{} is missing: `cargo build -p extant-fuse --examples` makes it", path.display());
    path
}

/// A process that serves a volume. When this is dropped the process is killed and its mount removed.
struct Server {
    dir: tempfile::TempDir,
    process: Child,
}

impl Server {
    fn new(image: &Path, options: &str) -> Self {
        let dir = tempfile::Builder::new().prefix("extant-fuse-").tempdir().expect("a temporary folder");
        let mut process = Command::new(program())
            .arg(image)
            .arg(dir.path())
            .arg(options)
            .stdout(Stdio::piped())
            .spawn()
            .expect("starting the program");
        let mut said = String::new();
        let stdout = process.stdout.as_mut().expect("its output");
        std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut said).expect("its output");
        assert_eq!(said, "mounted\n");
        Self { dir, process }
    }

    fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.process), signal).expect("kill");
    }

    /// Whether it ended by itself and without an error, within ten seconds.
    fn ends_well(&mut self) -> bool {
        let end = Instant::now() + Duration::from_secs(10);
        while Instant::now() < end {
            if let Some(status) = self.process.try_wait().expect("waiting") {
                return status.success();
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }

    fn is_mounted(&self) -> bool {
        let mounts = std::fs::read_to_string("/proc/self/mounts").expect("the list of mounts");
        mounts.lines().any(|line| line.split(' ').nth(1) == self.dir.path().to_str())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.process.kill().ok(); // it may have ended
        self.process.wait().ok();
        if self.is_mounted() {
            tools::run("umount", &["-l".as_ref(), self.dir.path().as_os_str()]);
        }
    }
}

/// Unmounts. A file that this process has closed can remain open for a moment in a program that another test starts,
/// between its fork and its exec.
fn unmounted(dir: &Path) {
    let end = Instant::now() + Duration::from_secs(10);
    while let Err(refused) = unmount(dir) {
        assert!(refused.to_string().contains("busy") && Instant::now() < end, "unmount: {refused}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn image() -> Image {
    let source = tempfile::tempdir().expect("a temporary folder");
    std::fs::write(source.path().join("hello"), "hello\n").expect("writing a file");
    Image::mke2fs(&["-t", "ext4"], 16 << 20).with_folder(source.path()).build()
}

#[test]
fn signals_unmount() {
    if !ready() {
        return;
    }
    let image = image();
    for signal in [rustix::process::Signal::TERM, rustix::process::Signal::INT] {
        let mut server = Server::new(image.path(), "ro,fsname=a volume");
        let mounts = std::fs::read_to_string("/proc/self/mounts").expect("the list of mounts");
        let line = mounts.lines().find(|line| line.contains(server.dir.path().to_str().expect("UTF-8"))).expect("it");
        assert!(line.starts_with("a\\040volume ") && line.contains(" fuse.extant ro,"), "{line}");
        assert_eq!(std::fs::read(server.dir.path().join("hello")).expect("read"), b"hello\n");
        server.signal(signal);
        assert!(server.ends_well());
        assert!(!server.is_mounted());
    }
}

#[test]
fn unmounting_waits_for_the_server_and_refuses_while_files_are_open() {
    if !ready() {
        return;
    }
    let image = image();
    for _ in 0..5 {
        let mut server = Server::new(image.path(), "ro");
        let open = std::fs::File::open(server.dir.path().join("hello")).expect("open");
        let said = unmount(server.dir.path()).expect_err("a file is open").to_string();
        assert!(said.contains("busy"), "{said}");
        drop(open);
        unmounted(server.dir.path());
        let ended = server.process.try_wait().expect("waiting").expect("it has ended by now");
        assert!(ended.success() && !server.is_mounted());
    }
}

#[test]
fn a_mount_whose_server_was_killed_can_be_unmounted() {
    if !ready() {
        return;
    }
    let image = image();
    let mut server = Server::new(image.path(), "ro");
    server.signal(rustix::process::Signal::KILL);
    server.process.wait().expect("waiting");
    assert!(server.dir.path().join("hello").metadata().is_err());
    unmounted(server.dir.path());
    assert!(!server.is_mounted());

    if tools::is_root() && testkit::need(&["fusermount3"]) {
        let mut server = Server::new(image.path(), "ro,auto_unmount");
        server.signal(rustix::process::Signal::KILL);
        server.process.wait().expect("waiting");
        let end = Instant::now() + Duration::from_secs(10);
        while server.is_mounted() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(!server.is_mounted());
    }
}

#[test]
fn what_was_synced_survives_the_server_and_two_cannot_serve_one_volume() {
    if !ready() {
        return;
    }
    let _alone = NAMESPACES.lock();
    let image = image();
    for transport in common::TRANSPORTS {
        let mut server = Server::new(image.path(), &format!("rw,{transport}"));
        let second = tempfile::tempdir().expect("a temporary folder");
        for options in ["rw", "ro"] {
            // a read-only mount without a lock would show a volume that changes meanwhile
            let ran = tools::run(
                program().to_str().expect("UTF-8"),
                &[image.path().as_os_str(), second.path().as_os_str(), options.as_ref()],
            );
            assert_eq!(ran.exit, Some(1), "{}", ran.text());
        }
        let path = server.dir.path().join("synced");
        std::fs::write(&path, transport).expect("write");
        std::fs::File::open(&path).expect("open").sync_all().expect("fsync");
        std::fs::write(server.dir.path().join("not synced"), [7; 100_000]).expect("write");
        server.signal(rustix::process::Signal::KILL);
        server.process.wait().expect("waiting");
        assert!(path.metadata().is_err());
        unmounted(server.dir.path());
        assert!(!server.is_mounted());

        let mut server = Server::new(image.path(), "rw");
        assert_eq!(std::fs::read_to_string(server.dir.path().join("synced")).expect("read"), transport);
        std::fs::write(server.dir.path().join("hello"), "again\n").expect("write");
        server.signal(rustix::process::Signal::TERM);
        assert!(server.ends_well());
        let verdict = testkit::oracle::e2fsck(image.path());
        assert!(verdict.clean, "{verdict:?}");
    }
}

/// Run by root in a mount namespace of its own, where /dev/fuse and /etc/fuse.conf permit access to every user.
const AS_USERS: &str = r#"
cd "$1"
mknod fuse c 10 229 && chmod 666 fuse && mount --bind fuse /dev/fuse || exit 9
echo user_allow_other > conf
[ -e /etc/fuse.conf ] && mount --bind conf /etc/fuse.conf
mkdir dir && chown 65534 dir
ids='--reuid=65534 --regid=65534 --clear-groups'
user() { setpriv $ids "$@"; }
other() { setpriv --reuid=4321 --regid=4321 --clear-groups "$@"; }
says() { name=$1; shift; echo "$name: $("$@" 2>/dev/null || echo refused)"; }
serve() {
    : > said # what the server before said must not be taken for this one's
    (exec setpriv $ids ./mount volume.img dir "$1") > said & server=$!
    for n in $(seq 200); do grep -q mounted said && break; sleep 0.05; done
    echo "-- $1"
}
# other mounts of the machine stand in this namespace too
here=$(pwd -P)
mounts() { grep " $here/dir fuse.extant " /proc/self/mounts; }
ends() { user kill $server; wait $server; echo "ended: $?"; mounts | grep -c .; }

serve ro
mounts | grep -o 'fuse.extant ro,nosuid,nodev.*user_id=65534' | cut -d, -f1-3
says user user cat dir/hello
says root cat dir/hello
says other other cat dir/hello
says 'secret by user' user cat dir/secret
ends

serve ro,allow_root
says user user cat dir/hello
says root cat dir/hello
says other other cat dir/hello
says 'other looks' other stat -c %s dir/hello
says 'other lists' other ls dir
ends

serve ro,allow_other
says other other cat dir/hello
says 'secret by other' other cat dir/secret
says 'secret by root' cat dir/secret
says 'list by user' user cat dir/listed
says 'list by other' other cat dir/listed
ends

serve ro,allow_other,auto_unmount
user kill -9 $server; wait $server 2>/dev/null
for n in $(seq 200); do mounts >/dev/null || break; sleep 0.05; done
mounts | grep -c .
user ./mount volume.img dir ro,auto_unmount 2>&1 || echo failed
user ./mount volume.img /usr ro 2>&1 || echo failed
"#;

const AS_USERS_SAY: &str = "\
-- ro
fuse.extant ro,nosuid,nodev
user: hello
root: refused
other: refused
secret by user: refused
ended: 0
0
-- ro,allow_root
user: hello
root: hello
other: refused
other looks: refused
other lists: refused
ended: 0
0
-- ro,allow_other
other: hello
secret by other: refused
secret by root: secret
list by user: refused
list by other: listed
ended: 0
0
-- ro,allow_other,auto_unmount
0
cannot mount on dir: for users other than root, auto_unmount works only together with allow_other
failed
cannot mount on /usr: user has no write access to mountpoint /usr
failed
";

/// An access control list as programs pass it to the kernel: user 4321 may read, the group and others may not.
fn acl() -> Vec<u8> {
    acl_bytes([(1, 6, u32::MAX), (2, 4, 4321), (4, 0, u32::MAX), (0x10, 4, u32::MAX), (0x20, 0, u32::MAX)])
}

#[test]
fn users_see_what_they_may() {
    let programs = ["unshare", "setpriv", "mount", "fusermount3", "mknod"];
    if !ready() || !tools::is_root() || !testkit::need(&programs) {
        return;
    }
    if !Path::new("/etc/fuse.conf").exists() {
        return tools::skip("needs /etc/fuse.conf");
    }
    let _alone = NAMESPACES.lock();
    let source = tempfile::tempdir().expect("a temporary folder");
    for (name, mode) in [("hello", 0o644), ("secret", 0o600), ("listed", 0o640)] {
        let path = source.path().join(name);
        std::fs::write(&path, format!("{name}\n")).expect("writing a file");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).expect("mode");
    }
    std::fs::set_permissions(source.path(), PermissionsExt::from_mode(0o755)).expect("mode");
    let image = Image::mke2fs(&["-t", "ext4"], 16 << 20).with_folder(source.path()).build();
    let list = image.beside("acl");
    std::fs::write(&list, acl()).expect("writing a file");
    image.debugfs(&[&format!("ea_set -f {} listed system.posix_acl_access", list.display())]);

    let folder = tempfile::tempdir().expect("a temporary folder");
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).expect("mode");
    std::fs::copy(program(), folder.path().join("mount")).expect("copying the program");
    let volume = folder.path().join("volume.img");
    std::fs::write(&volume, image.bytes()).expect("copying the volume");
    std::fs::set_permissions(&volume, PermissionsExt::from_mode(0o644)).expect("mode");
    let mut command = tools::command("unshare");
    // `timeout` ends all processes of the script
    command
        .args(["--mount", "--propagation", "private", "timeout", "50", "sh", "-c", AS_USERS, "sh"])
        .arg(folder.path());
    let ran = tools::run_with(&mut command, b"", tools::LIMIT);
    if ran.exit == Some(9) {
        return tools::skip("device nodes cannot be made here");
    }
    assert_eq!(String::from_utf8_lossy(&ran.stdout), AS_USERS_SAY, "{}", String::from_utf8_lossy(&ran.stderr));
}
