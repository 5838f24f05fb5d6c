//! Mounts with `writeback_cache`: the kernel caches written data. No data is lost, nor sizes and times.

mod common;

use common::{TRANSPORTS, ready, serve, serve_writable};
use rustix::fs::{SeekFrom, Timespec, Timestamps, UTIME_OMIT};
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Command, Stdio};
use testkit::{Image, Rng, oracle, tools};

fn assert_consistent(image: &Path) {
    let verdict = oracle::e2fsck(image);
    assert!(verdict.clean, "{verdict:?}");
}

fn options(transport: &str) -> String {
    format!("writeback_cache,{transport}")
}

/// A file, and its expected content.
struct Model {
    file: File,
    content: Vec<u8>,
}

impl Model {
    fn write(&mut self, at: usize, bytes: &[u8]) {
        self.file.write_all_at(bytes, at as u64).expect("write");
        let end = at + bytes.len();
        if end > self.content.len() {
            self.content.resize(end, 0);
        }
        self.content[at..end].copy_from_slice(bytes);
    }

    fn set_len(&mut self, len: usize) {
        self.file.set_len(len as u64).expect("truncate");
        self.content.resize(len, 0);
    }
}

#[test]
fn what_is_cached_arrives() {
    if !ready() {
        return;
    }
    let formats: [&[&str]; 2] = [&["-t", "ext4"], &["-t", "ext2", "-b", "1024"]];
    for (format, transport) in formats.iter().flat_map(|format| TRANSPORTS.map(|transport| (*format, transport))) {
        let image = Image::mke2fs(format, 64 << 20).build();
        let served = serve_writable(image.path(), &options(transport));
        let path = served.path().join("file");
        let mut rng = Rng::new(7);
        // the kernel reads parts of pages through a descriptor that is write-only
        let file = OpenOptions::new().write(true).create_new(true).open(&path).expect("create");
        let mut model = Model { file, content: Vec::new() };
        for round in 0..400 {
            match rng.below(20) {
                0 => model.set_len(rng.index(300_000)),
                1 => model.file.sync_all().expect("fsync"),
                2 => {
                    let bytes = rng.bytes(999);
                    OpenOptions::new().append(true).open(&path).expect("open").write_all(&bytes).expect("append");
                    model.content.extend_from_slice(&bytes);
                }
                3 => {
                    let end = rng.index(200_000);
                    model.write(end, &[1; 70_000]);
                }
                _ => {
                    let (at, len) = (rng.index(300_000), 1 + rng.index(3000));
                    model.write(at, &rng.bytes(len));
                }
            }
            assert_eq!(path.metadata().expect("stat").len(), model.content.len() as u64, "round {round}");
            if round % 50 == 0 {
                assert!(fs::read(&path).expect("read") == model.content, "round {round}");
            }
        }
        // times that were set remain, though content reaches the device after them
        let time = |tv_sec| Timespec { tv_sec, tv_nsec: 123_456_789 };
        let times = Timestamps { last_access: time(5), last_modification: time(1_000_000_007) };
        rustix::fs::futimens(&model.file, &times).expect("futimens");
        let Model { file, content } = model;
        file.sync_all().expect("fsync");
        let before = file.metadata().expect("stat");
        assert!(before.blocks() > 0, "space that is taken is seen");
        drop(file);
        assert_eq!(served.problems(), Vec::<String>::new());
        served.end().expect("the session ends well");
        assert_consistent(image.path());
        let served = serve(image.path());
        let after = served.path().join("file").metadata().expect("stat");
        assert!(fs::read(served.path().join("file")).expect("read") == content);
        assert_eq!((after.mtime(), after.mtime_nsec()), (1_000_000_007, 123_456_789));
        assert_eq!((after.ctime(), after.ctime_nsec()), (before.ctime(), before.ctime_nsec()));
        assert_eq!(after.len(), before.len());
    }
}

/// Whether the image in its current state contains a file with this content: after a replay of the journal, where there
/// is one.
fn contains(image: &Path, name: &str, content: &[u8]) -> bool {
    let copy = tempfile::NamedTempFile::new().expect("a temporary file");
    fs::copy(image, copy.path()).expect("copy");
    let served = serve_writable(copy.path(), "");
    fs::read(served.path().join(name)).expect("read") == content
}

#[test]
fn what_was_synced_is_on_the_device() {
    if !ready() {
        return;
    }
    for transport in TRANSPORTS {
        let image = Image::mke2fs(&["-t", "ext4"], 32 << 20).build();
        let served = serve_writable(image.path(), &options(transport));
        let content = Rng::new(3).bytes(3_000_001);
        let file = File::create(served.path().join("a")).expect("create");
        for (n, piece) in content.chunks(1000).enumerate() {
            file.write_all_at(piece, n as u64 * 1000).expect("write");
        }
        file.sync_all().expect("fsync");
        assert!(contains(image.path(), "a", &content));
        let mut content = content;
        let mut change = |at: usize, bytes: &[u8]| {
            file.write_all_at(bytes, at as u64).expect("write");
            content[at..at + bytes.len()].copy_from_slice(bytes);
            content.clone()
        };
        let content = change(1_234_567, b"more");
        file.sync_data().expect("fdatasync");
        assert!(contains(image.path(), "a", &content));
        let mounts = fs::read_to_string("/proc/self/mounts").expect("the list of mounts");
        let hears_of_sync = |line: &str| line.contains(&format!(" {} fuseblk ", served.path().display()));
        // the server receives sync(2) only where the system had a free loop device
        if mounts.lines().any(hears_of_sync) {
            let content = (0..700).map(|n| change(n * 4099, b"once more")).last().expect("some");
            rustix::fs::syncfs(&file).expect("syncfs");
            assert!(contains(image.path(), "a", &content));
        }
    }
}

/// Writes a new file, or stores into a mapping of it, renames it over an old one, syncs another file, and waits.
const REPLACES: &str = "import mmap, os, sys\n\
    folder, how, size = sys.argv[1:]\n\
    os.chdir(folder); size = int(size)\n\
    f = os.open('new', os.O_RDWR | os.O_CREAT)\n\
    if how == 'mapped':\n\
    \x20   os.ftruncate(f, size); m = mmap.mmap(f, size); m[:] = b'N' * size\n\
    else: os.write(f, b'N' * size)\n\
    os.rename('new', 'old')\n\
    o = os.open('other', os.O_RDWR | os.O_CREAT); os.write(o, b'x'); os.fsync(o)\n\
    print('done', end='', flush=True); sys.stdin.read()\n";

#[test]
fn a_file_that_replaces_another_is_there_before_the_other_goes() {
    if !ready() || !testkit::need(&["python3"]) {
        return;
    }
    // with `sync` each page write is a flush, so that takes long
    for (more, how, size) in [
        ("writeback_cache", "written", 8192),
        ("writeback_cache", "mapped", 8192),
        ("commit=60", "mapped", 8192),
        ("sync", "mapped", 8 << 20),
    ] {
        for transport in TRANSPORTS {
            let image = Image::mke2fs(&["-t", "ext4"], 32 << 20).build();
            let served = serve_writable(image.path(), &format!("{transport},{more}"));
            let old = File::create(served.path().join("old")).expect("create");
            old.write_all_at(b"OLD", 0).expect("write");
            old.sync_all().expect("fsync");
            let mut child = Command::new("python3")
                .args(["-c", REPLACES])
                .arg(served.path())
                .args([how, &size.to_string()])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .expect("python3");
            let mut said = [0; 4];
            child.stdout.take().expect("a pipe").read_exact(&mut said).expect("it gets that far");
            assert!(contains(image.path(), "old", &vec![b'N'; size]), "{transport} {more} {how}");
            drop(child.stdin.take());
            child.wait().expect("waiting");
        }
    }
}

/// Stores into a mapping on a full volume, and renames the file over an old one.
const REPLACES_FULL: &str = "import mmap, os, sys\n\
    os.chdir(sys.argv[1])\n\
    f = os.open('new', os.O_RDWR | os.O_CREAT); os.ftruncate(f, 65536); m = mmap.mmap(f, 65536)\n\
    fill = os.open('fill', os.O_WRONLY | os.O_CREAT)\n\
    for size in (1 << 20, 1024):\n\
    \x20   try:\n\
    \x20       while True: os.write(fill, b'f' * size)\n\
    \x20   except OSError: pass\n\
    m[:] = b'N' * 65536\n\
    try: os.rename('new', 'old'); print('renamed')\n\
    except OSError as e: print(os.strerror(e.errno))\n\
    print(open('old').read())\n";

#[test]
fn a_file_whose_content_has_no_space_replaces_no_other() {
    if !ready() || !testkit::need(&["python3"]) {
        return;
    }
    for transport in TRANSPORTS {
        let image = Image::mke2fs(&["-t", "ext4", "-m", "0"], 16 << 20).build();
        let served = serve_writable(image.path(), transport);
        let old = File::create(served.path().join("old")).expect("create");
        old.write_all_at(b"OLD", 0).expect("write");
        old.sync_all().expect("fsync");
        let ran = Command::new("python3").args(["-c", REPLACES_FULL]).arg(served.path()).output().expect("python3");
        assert_eq!(String::from_utf8_lossy(&ran.stdout), "No space left on device\nOLD\n", "{transport}: {ran:?}");
        assert!(contains(image.path(), "old", b"OLD"), "{transport}");
        let problems = served.problems();
        let lost = |problem: &&String| problem.ends_with("is lost: No space left on device");
        assert_eq!(problems.iter().filter(lost).count(), 1, "{problems:?}");
        drop(old);
        let said = served.end().expect_err("the content of one file is lost").to_string();
        assert!(said.ends_with("reached the device: /new: No space left on device"), "{said}");
    }
}

/// Sets flags with chattr(1).
fn chattr(flags: &str, path: &Path) {
    tools::must("chattr", &[flags.as_ref(), path.as_os_str()]);
}

#[test]
fn files_that_only_grow_can_be_synced_and_closed() {
    if !ready() || !tools::is_root() || !testkit::need(&["chattr"]) {
        return;
    }
    for transport in TRANSPORTS {
        let image = Image::mke2fs(&["-t", "ext4"], 32 << 20).build();
        let served = serve_writable(image.path(), &options(transport));
        let path = served.path().join("log");
        fs::write(&path, "one\n").expect("write");
        let time = |tv_sec| Timespec { tv_sec, tv_nsec: 5 };
        let times = Timestamps { last_access: time(5), last_modification: time(1_000_000_007) };
        let before = OpenOptions::new().append(true).open(&path).expect("open");
        rustix::fs::futimens(&before, &times).expect("futimens");
        chattr("+a", &path);
        before.sync_all().expect("fsync");
        let mut file = OpenOptions::new().append(true).open(&path).expect("open");
        for line in ["two\n", "three\n"] {
            file.write_all(line.as_bytes()).expect("write");
            file.sync_all().expect("fsync");
        }
        file.write_all(b"four\n").expect("write");
        let seen = file.metadata().expect("stat");
        drop(file);
        // times set explicitly remain
        let other = Timestamps { last_access: time(5), last_modification: time(6) };
        assert_eq!(rustix::fs::futimens(&before, &other), Err(Errno::PERM));
        let file = File::open(&path).expect("open");
        let only = |tv_sec| Timestamps {
            last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            last_modification: time(tv_sec),
        };
        assert_eq!(rustix::fs::futimens(&file, &only(6)), Err(Errno::PERM));
        drop((file, before));
        assert_eq!(served.problems(), Vec::<String>::new());
        served.end().expect("the session ends well");
        assert_consistent(image.path());
        let served = serve(image.path());
        let path = served.path().join("log");
        assert_eq!(fs::read_to_string(&path).expect("read"), "one\ntwo\nthree\nfour\n");
        let after = path.metadata().expect("stat");
        assert_eq!((after.mtime(), after.mtime_nsec()), (seen.mtime(), seen.mtime_nsec()));
    }
}

#[test]
fn holes_are_not_reported_where_data_is_cached() {
    if !ready() {
        return;
    }
    let image = Image::mke2fs(&["-t", "ext4"], 32 << 20).build();
    let served = serve_writable(image.path(), "writeback_cache");
    let file = File::create_new(served.path().join("a")).expect("create");
    file.set_len(1 << 20).expect("longer");
    file.write_all_at(&[1; 5000], 500_000).expect("write");
    // all of it may be data, but data must not be reported as a hole
    let data = rustix::fs::seek(&file, SeekFrom::Data(0)).expect("seek");
    assert!(data <= 500_000, "{data}");
    let hole = rustix::fs::seek(&file, SeekFrom::Hole(500_000)).expect("seek");
    assert!(hole >= 505_000, "{hole}");
}

#[test]
fn pages_written_through_a_mapping_arrive() {
    if !ready() || !testkit::need(&["python3"]) {
        return;
    }
    let image = Image::mke2fs(&["-t", "ext4"], 32 << 20).build();
    let served = serve_writable(image.path(), "writeback_cache");
    let program = "import mmap,sys\n\
                   f=open(sys.argv[1],'w+b'); f.truncate(100001); m=mmap.mmap(f.fileno(),100001)\n\
                   m[70000:70003]=b'map'; m[100000:100001]=b'!'; f.seek(70001); assert f.read(1)==b'a'\n\
                   f.seek(5); f.write(b'write'); f.flush(); assert m[5:10]==b'write'\n";
    let path = served.path().join("mapped");
    let status = Command::new("python3").args(["-c", program]).arg(&path).status().expect("python3");
    assert!(status.success());
    served.end().expect("the session ends well");
    assert_consistent(image.path());
    let served = serve(image.path());
    let content = fs::read(served.path().join("mapped")).expect("read");
    let mut expected = vec![0; 100_001];
    expected[5..10].copy_from_slice(b"write");
    expected[70_000..70_003].copy_from_slice(b"map");
    expected[100_000] = b'!';
    assert!(content == expected);
}
