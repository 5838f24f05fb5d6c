//! Snapshots in a mount: who may take and access them, which data they include, and that nothing is readable of a
//! deleted one.

mod common;

use blockdev::{BlockDevice, FileDevice, Geometry, MemoryDevice, OpenOptions};
use common::{Served, TRANSPORTS, serve_with};
use extant_fuse::{MountedSnapshots, MountedTransaction};
use fs::mkfs::{Kind, MkfsOptions, make};
use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use std::fs::{self as files, File, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use testkit::tools;

/// The maximum time for any step on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);
const PIECE: usize = 64 << 10;
const LENGTH: usize = 64 * PIECE;

fn ready() -> bool {
    tools::has_fuse()
}

fn errno<T>(outcome: io::Result<T>) -> Option<Errno> {
    outcome.err().and_then(|e| Errno::from_io_error(&e))
}

/// A native volume in memory.
fn volume() -> MemoryDevice {
    let device = MemoryDevice::from_vec(vec![0; 64 << 20]);
    make(&device, &MkfsOptions::new(Kind::Extant)).expect("a volume");
    device
}

fn serve(options: &str) -> Served {
    serve_with(Arc::new(volume()), None, &format!("rw,{options}")).expect("opening a volume")
}

fn folder(served: &Served) -> PathBuf {
    served.path().join(".extant/snapshots")
}

/// Opens a file so that the kernel caches no content of it.
fn direct(path: &Path) -> File {
    let direct = rustix::fs::OFlags::DIRECT.bits() as i32;
    File::options().read(true).custom_flags(direct).open(path).expect("open")
}

fn piece(file: &File, number: usize) -> io::Result<Vec<u8>> {
    let mut piece = vec![0; PIECE];
    file.read_exact_at(&mut piece, (number * PIECE) as u64).map(|()| piece)
}

/// A device whose requests can be blocked.
struct Stoppable {
    inner: MemoryDevice,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Whether writes block.
    writes: bool,
    /// Whether the next read blocks.
    next_read: bool,
    waiting: usize,
    open: bool,
}

impl Stoppable {
    fn new() -> Arc<Self> {
        Arc::new(Self { inner: volume(), state: Mutex::default(), changed: Condvar::new() })
    }

    fn set(&self, set: impl FnOnce(&mut State)) {
        set(&mut self.state.lock());
        self.changed.notify_all();
    }

    fn pass(&self, stops: impl FnOnce(&mut State) -> bool) {
        let mut state = self.state.lock();
        if stops(&mut state) {
            state.waiting += 1;
            self.changed.notify_all();
            self.changed.wait_while(&mut state, |state| !state.open);
            state.waiting -= 1;
        }
    }

    /// Returns when a request is blocked.
    fn wait_for_one(&self) {
        let none = |state: &mut State| state.waiting == 0;
        let late = self.changed.wait_while_for(&mut self.state.lock(), none, PATIENCE);
        assert!(!late.timed_out(), "nothing waits");
    }
}

impl BlockDevice for Stoppable {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> blockdev::Result<()> {
        self.pass(|state| std::mem::take(&mut state.next_read));
        self.inner.read(offset, buf)
    }

    fn write(&self, offset: u64, data: &[u8]) -> blockdev::Result<()> {
        self.pass(|state| state.writes);
        self.inner.write(offset, data)
    }

    fn flush(&self) -> blockdev::Result<()> {
        self.inner.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> blockdev::Result<()> {
        self.inner.discard(offset, len)
    }
}

#[test]
fn nothing_is_read_of_a_snapshot_from_when_its_deletion_begins() {
    if !ready() {
        return;
    }
    for transport in TRANSPORTS {
        let device = Stoppable::new();
        let served = serve_with(Arc::clone(&device) as _, None, &format!("rw,{transport}")).expect("a volume");
        files::create_dir(served.path().join("d")).expect("mkdir");
        files::write(served.path().join("d/f"), vec![b'O'; LENGTH]).expect("write");
        let snapshot = folder(&served).join("s");
        files::create_dir(&snapshot).expect("a snapshot");
        let file = direct(&snapshot.join("d/f"));
        let cached = File::open(snapshot.join("d/f")).expect("open");
        let dir = File::open(snapshot.join("d")).expect("open");
        assert!(piece(&file, 0).expect("read") == vec![b'O'; PIECE] && piece(&cached, 1).is_ok());

        device.set(|state| state.writes = true);
        std::thread::scope(|scope| {
            let deletion = scope.spawn(|| files::remove_dir(&snapshot));
            let began = Instant::now();
            while errno(piece(&file, 2)) != Some(Errno::STALE) {
                assert!(began.elapsed() < PATIENCE, "it is read while it is deleted");
                std::thread::sleep(Duration::from_millis(5));
            }
            assert!(!deletion.is_finished(), "nothing could be written");
            device.set(|state| (state.writes, state.open) = (false, true));
            deletion.join().expect("no panic").expect("rmdir");
        });
        for number in 0..4 {
            assert_eq!(errno(piece(&file, number)), Some(Errno::STALE));
        }
        assert_eq!(errno(piece(&cached, 1)), Some(Errno::STALE), "what the kernel had of it");
        let first = rustix::fs::Dir::read_from(&dir).expect("a directory").next();
        assert!(first.is_none_or(|entry| entry.is_err()), "what the kernel had of it");
        assert!(errno(file.metadata()).is_some());
        // the next snapshot of that name is another one
        files::create_dir(&snapshot).expect("a snapshot");
        assert_eq!(errno(piece(&file, 0)), Some(Errno::STALE));
        assert_eq!(files::read(snapshot.join("d/f")).expect("read").len(), LENGTH);
        drop((file, cached, dir));
        served.end().expect("the session ends well");
    }
}

#[test]
fn a_deletion_waits_for_those_who_read() {
    if !ready() {
        return;
    }
    let device = Stoppable::new();
    let served = serve_with(Arc::clone(&device) as _, None, "rw").expect("a volume");
    files::write(served.path().join("f"), vec![b'O'; LENGTH]).expect("write");
    let snapshot = folder(&served).join("s");
    files::create_dir(&snapshot).expect("a snapshot");
    let file = direct(&snapshot.join("f"));
    piece(&file, 0).expect("read");
    device.set(|state| state.next_read = true);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| piece(&file, 2));
        device.wait_for_one();
        let deletion = scope.spawn(|| files::remove_dir(&snapshot));
        // long enough for the deletion, except that it waits for the reader
        std::thread::sleep(Duration::from_millis(300));
        let early = deletion.is_finished();
        device.set(|state| state.open = true);
        assert!(!early, "blocks were freed while they were read");
        assert!(reader.join().expect("no panic").expect("read") == vec![b'O'; PIECE]);
        deletion.join().expect("no panic").expect("rmdir");
    });
    assert_eq!(errno(piece(&file, 0)), Some(Errno::STALE));
}

#[test]
fn a_snapshot_that_cannot_be_deleted_can_be_read() {
    if !ready() {
        return;
    }
    let served = serve("");
    files::write(served.path().join("f"), vec![b'O'; LENGTH]).expect("write");
    let snapshot = folder(&served).join("s");
    files::create_dir(&snapshot).expect("a snapshot");
    let file = direct(&snapshot.join("f"));
    let transaction = MountedTransaction::begin(served.path(), 60).expect("a transaction");
    assert_eq!(errno(files::remove_dir(&snapshot)), Some(Errno::INVAL), "not in a transaction");
    assert!(piece(&file, 0).expect("read") == vec![b'O'; PIECE]);
    transaction.rollback().expect("rollback");
    assert!(files::read(snapshot.join("f")).expect("read").len() == LENGTH);
    MountedSnapshots::of(served.path()).expect("mounted").rollback(Some(b"s")).expect("noted");
    assert_eq!(errno(files::remove_dir(&snapshot)), Some(Errno::BUSY), "the volume goes back to it");
    assert!(piece(&file, 3).is_ok());
    MountedSnapshots::of(served.path()).expect("mounted").rollback(None).expect("noted");
    files::remove_dir(&snapshot).expect("rmdir");
    assert_eq!(errno(piece(&file, 0)), Some(Errno::STALE));
}

#[test]
fn a_snapshot_takes_along_what_the_kernel_has() {
    const PROGRAM: &str = "import mmap, os, sys\n\
        root = sys.argv[1]\n\
        f = os.open(root + '/f', os.O_RDWR | os.O_CREAT); os.write(f, b'before' + b'.' * 4090); os.fsync(f)\n\
        g = os.open(root + '/g', os.O_RDWR | os.O_CREAT); os.write(g, b'before' + b'.' * 4090); os.fsync(g)\n\
        m = mmap.mmap(g, 4096); m[0:6] = b'MAPPED'; os.pwrite(f, b'WRITES', 0)\n\
        os.mkdir(root + '/.extant/snapshots/s')\n\
        for name in ('f', 'g'): print(open(root + '/.extant/snapshots/s/' + name, 'rb').read()[:6].decode())\n";
    if !ready() || !testkit::need(&["python3", "sync"]) {
        return;
    }
    let ways =
        ["", "writeback_cache,"].into_iter().flat_map(|way| TRANSPORTS.map(|transport| format!("{way}{transport}")));
    for options in ways {
        let served = serve(&options);
        let ran = Command::new("python3").args(["-c", PROGRAM]).arg(served.path()).output().expect("python3");
        let said = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
        assert_eq!((&*said.0, &*said.1), ("WRITES\nMAPPED\n", ""), "{options}");
        assert_eq!(served.problems(), Vec::<String>::new());
    }
}

#[test]
fn a_file_of_a_snapshot_cannot_be_opened_for_writing() {
    const PROGRAM: &str = "import errno, mmap, os, sys\n\
        path = sys.argv[1]\n\
        for flags in (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_APPEND, os.O_RDWR | os.O_TRUNC):\n\
        \x20   try: os.open(path, flags); print('opened')\n\
        \x20   except OSError as e: print(errno.errorcode[e.errno])\n\
        f = os.open(path, os.O_RDONLY); m = mmap.mmap(f, 0, flags=mmap.MAP_PRIVATE); m[0:1] = b'X'\n\
        try: mmap.mmap(f, 0, flags=mmap.MAP_SHARED); print('mapped')\n\
        except OSError as e: print(errno.errorcode[e.errno])\n";
    if !ready() || !testkit::need(&["python3"]) {
        return;
    }
    let ways =
        ["", "writeback_cache,"].into_iter().flat_map(|way| TRANSPORTS.map(|transport| format!("{way}{transport}")));
    for options in ways {
        let served = serve(&options);
        files::write(served.path().join("f"), "old content").expect("write");
        files::create_dir(folder(&served).join("s")).expect("a snapshot");
        let path = folder(&served).join("s/f");
        let ran = Command::new("python3").args(["-c", PROGRAM]).arg(&path).output().expect("python3");
        let said = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
        assert_eq!((&*said.0, &*said.1), ("EROFS\nEROFS\nEROFS\nEROFS\nEACCES\n", ""), "{options}");
        assert_eq!(files::read_to_string(&path).expect("read"), "old content");
    }
}

#[test]
fn snapshots_are_for_the_user_who_mounted_the_volume_unless_said_otherwise() {
    if !ready() || !tools::is_root() || !testkit::need(&["setpriv", "getfattr"]) {
        return;
    }
    for (options, open) in
        [("allow_other", false), ("allow_other,snapdir=owner", false), ("allow_other,snapdir=all", true)]
    {
        let served = serve(options);
        let root = served.path();
        for dir in [root, &root.join("d")] {
            files::create_dir_all(dir).expect("mkdir");
            files::set_permissions(dir, Permissions::from_mode(0o755)).expect("chmod");
        }
        files::write(root.join("d/f"), "old").expect("write");
        files::create_dir(folder(&served).join("s")).expect("a snapshot");
        files::set_permissions(root.join("d/f"), Permissions::from_mode(0o600)).expect("chmod");
        let other = |script: &str| {
            let ran = Command::new("setpriv")
                .args(["--reuid=4321", "--regid=4321", "--clear-groups", "sh", "-c", script])
                .current_dir(root)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status();
            ran.expect("setpriv").success()
        };
        assert!(!other("cat d/f"));
        assert_eq!(other("cat .extant/snapshots/s/d/f"), open, "{options}");
        assert_eq!(other("ls .extant/snapshots"), open, "{options}");
        assert_eq!(other("getfattr -n extant.time .extant/snapshots/s"), open, "{options}");
        // computing it is expensive
        assert!(!other("getfattr -n extant.space .extant/snapshots/s"), "{options}");
        assert!(!other("mkdir .extant/snapshots/t") && !other("rmdir .extant/snapshots/s"), "{options}");
        assert!(files::read_to_string(folder(&served).join("s/d/f")).is_ok());
        let list = MountedSnapshots::of(root).expect("mounted").list(true).expect("list");
        assert!(list.len() == 1 && list[0].1.is_some());
    }
}

/// Run by root in a mount namespace of its own, where every user may use /dev/fuse.
const AS_USER: &str = r#"
cd "$1"
mknod fuse c 10 229 && chmod 666 fuse && mount --bind fuse /dev/fuse || exit 9
mkdir dir && chown 65534 dir volume.img
user() { setpriv --reuid=65534 --regid=65534 --clear-groups "$@"; }
(exec setpriv --reuid=65534 --regid=65534 --clear-groups ./mount volume.img dir rw) > said & server=$!
for n in $(seq 200); do grep -q mounted said && break; sleep 0.05; done
user mkdir dir/.extant/snapshots/s && echo made
user ls dir/.extant/snapshots dir/.extant/snapshots/s
user stat -c '%u %g %a' dir/.extant dir/.extant/snapshots
user rmdir dir/.extant/snapshots/s && echo deleted
user ls dir/.extant/snapshots
user kill $server; wait $server; echo "ended: $?"
"#;

const AS_USER_SAYS: &str = "\
made
dir/.extant/snapshots:
s

dir/.extant/snapshots/s:
lost+found
65534 65534 700
65534 65534 700
deleted
ended: 0
";

#[test]
fn a_user_who_mounts_a_volume_makes_snapshots() {
    let programs = ["unshare", "setpriv", "mount", "fusermount3", "mknod"];
    if !ready() || !tools::is_root() || !testkit::need(&programs) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    files::set_permissions(folder.path(), Permissions::from_mode(0o755)).expect("mode");
    let program = std::env::current_exe().expect("this program").with_file_name("../examples/mount");
    files::copy(program, folder.path().join("mount")).expect("copying the program");
    let image = folder.path().join("volume.img");
    File::create(&image).expect("create").set_len(64 << 20).expect("length");
    let device = FileDevice::open(&image, OpenOptions { write: true, ..OpenOptions::default() }).expect("opening");
    make(&device, &MkfsOptions::new(Kind::Extant)).expect("a volume");
    drop(device);
    let mut command = tools::command("unshare");
    // `timeout` ends all processes of the script
    command
        .args(["--mount", "--propagation", "private", "timeout", "50", "sh", "-c", AS_USER, "sh"])
        .arg(folder.path());
    let ran = tools::run_with(&mut command, b"", tools::LIMIT);
    if ran.exit == Some(9) {
        return tools::skip("device nodes cannot be made here");
    }
    assert_eq!(String::from_utf8_lossy(&ran.stdout), AS_USER_SAYS, "{}", String::from_utf8_lossy(&ran.stderr));
}
