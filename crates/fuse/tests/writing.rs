//! Volumes mounted for writing, as programs use them, over both transports. e2fsck checks the result.

mod common;

use blockdev::{BlockDevice, Geometry, MemoryDevice};
use common::{TRANSPORTS, ready, serve, serve_with, serve_writable};
use parking_lot::{Condvar, Mutex};
use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags, RenameFlags, SeekFrom, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use testkit::{Image, Rng, oracle, tools};

fn errno(e: &io::Error) -> Option<Errno> {
    Errno::from_io_error(e)
}

fn assert_consistent(image: &Path) {
    let verdict = oracle::e2fsck(image);
    assert!(verdict.clean, "{verdict:?}");
}

const FORMATS: [&[&str]; 3] = [&["-t", "ext4"], &["-t", "ext3"], &["-t", "ext2", "-b", "1024"]];

#[test]
fn what_programs_do_every_day() {
    if !ready() {
        return;
    }
    for (format, transport) in FORMATS.iter().flat_map(|format| TRANSPORTS.map(|transport| (*format, transport))) {
        let image = Image::mke2fs(format, 64 << 20).build();
        let served = serve_writable(image.path(), transport);
        let root = served.path();
        fs::create_dir(root.join("dir")).expect("mkdir");
        fs::write(root.join("dir/a"), "first\n").expect("write");
        OpenOptions::new().append(true).open(root.join("dir/a")).expect("open").write_all(b"second\n").expect("append");
        fs::rename(root.join("dir/a"), root.join("b")).expect("rename");
        fs::hard_link(root.join("b"), root.join("dir/c")).expect("link");
        symlink("dir/c", root.join("s")).expect("symlink");
        assert_eq!(fs::read_to_string(root.join("s")).expect("read"), "first\nsecond\n");
        assert_eq!(fs::metadata(root.join("b")).expect("stat").nlink(), 2);

        fs::set_permissions(root.join("b"), Permissions::from_mode(0o4751)).expect("chmod");
        rustix::fs::chown(root.join("b"), Some(rustix::fs::Uid::from_raw(70_000)), None).expect("chown");
        let seen = fs::metadata(root.join("b")).expect("stat");
        assert_eq!((seen.mode() & 0o7777, seen.uid(), seen.gid()), (0o751, 70_000, 0), "chown takes set-user-id off");
        let time = |tv_sec| Timespec { tv_sec, tv_nsec: 0 };
        let times = Timestamps { last_access: time(1_000_000_000), last_modification: time(-5) };
        rustix::fs::utimensat(CWD, root.join("b"), &times, AtFlags::empty()).expect("utimensat");
        let seen = fs::metadata(root.join("b")).expect("stat");
        assert_eq!((seen.atime(), seen.mtime()), (1_000_000_000, -5));

        let file = File::options().read(true).write(true).open(root.join("b")).expect("open");
        file.set_len(100_000).expect("longer");
        file.write_all_at(b"far", 90_000).expect("write");
        let mut buf = [1; 8];
        file.read_exact_at(&mut buf, 89_998).expect("read");
        assert_eq!(&buf, b"\0\0far\0\0\0");
        file.set_len(3).expect("shorter");
        assert_eq!(fs::read(root.join("dir/c")).expect("read"), b"fir");
        drop(file);

        rustix::fs::setxattr(root.join("b"), "user.colour", b"green", XattrFlags::CREATE).expect("setxattr");
        let again = rustix::fs::setxattr(root.join("b"), "user.colour", b"red", XattrFlags::CREATE);
        assert_eq!(again, Err(Errno::EXIST));
        rustix::fs::removexattr(root.join("b"), "user.colour").expect("removexattr");
        assert_eq!(rustix::fs::removexattr(root.join("b"), "user.colour"), Err(Errno::NODATA));

        let copy = fs::copy(root.join("b"), root.join("copy")).expect("copy");
        assert_eq!((copy, fs::read(root.join("copy")).expect("read")), (3, b"fir".to_vec()));
        let dir = File::open(root).expect("open");
        dir.sync_all().expect("fsync of a directory");
        rustix::fs::syncfs(&dir).expect("syncfs");
        drop(dir);

        fs::remove_file(root.join("b")).expect("unlink");
        let e = fs::remove_dir(root.join("dir")).expect_err("not empty");
        assert_eq!(errno(&e), Some(Errno::NOTEMPTY));
        fs::remove_dir_all(root.join("dir")).expect("rm -r");
        assert_eq!(served.problems(), Vec::<String>::new());
        served.end().expect("the session ends well");
        assert_consistent(image.path());
        let served = serve(image.path());
        let mut names: Vec<_> =
            served.path().read_dir().expect("list").map(|e| e.expect("entry").file_name()).collect();
        names.sort();
        assert_eq!(names, ["copy", "lost+found", "s"]);
    }
}

#[test]
fn names_are_moved_as_the_flags_say() {
    if !ready() {
        return;
    }
    let image = Image::mke2fs(&["-t", "ext4"], 32 << 20).build();
    let served = serve_writable(image.path(), "");
    let root = served.path();
    let path = |name: &str| root.join(name);
    fs::write(path("a"), "a").expect("write");
    fs::write(path("b"), "b").expect("write");
    let rename = |from: &str, to: &str, flags| rustix::fs::renameat_with(CWD, path(from), CWD, path(to), flags);
    assert_eq!(rename("a", "b", RenameFlags::NOREPLACE), Err(Errno::EXIST));
    rename("a", "b", RenameFlags::EXCHANGE).expect("exchange");
    assert_eq!(fs::read_to_string(path("a")).expect("read"), "b");
    rename("a", "c", RenameFlags::NOREPLACE).expect("rename");
    rename("c", "b", RenameFlags::empty()).expect("rename");
    assert_eq!(fs::read_to_string(path("b")).expect("read"), "b");
    rename("b", "d", RenameFlags::WHITEOUT).expect("whiteout");
    assert_eq!(fs::symlink_metadata(path("b")).expect("stat").mode() & 0o170_000, 0o020_000);
    fs::create_dir_all(path("x/y/z")).expect("mkdir");
    assert_eq!(rename("x", "x/y/z/x", RenameFlags::empty()), Err(Errno::INVAL));

    // the kernel passes on names of more than 255 bytes
    let long = "n".repeat(255);
    File::create(path(&long)).expect("create");
    let longer = "n".repeat(256);
    let too_long = |e: io::Error| assert_eq!(errno(&e), Some(Errno::NAMETOOLONG));
    too_long(File::create(path(&longer)).expect_err("create"));
    too_long(fs::create_dir(path(&longer)).expect_err("mkdir"));
    too_long(fs::rename(path("d"), path(&longer)).expect_err("rename"));
    too_long(fs::rename(path(&longer), path("d")).expect_err("rename"));
    too_long(fs::hard_link(path("d"), path(&longer)).expect_err("link"));
    too_long(symlink("d", path(&longer)).expect_err("symlink"));
    too_long(fs::remove_file(path(&longer)).expect_err("unlink"));
    too_long(fs::remove_dir(path(&longer)).expect_err("rmdir"));
    let fifo = rustix::fs::mknodat(CWD, path(&longer), rustix::fs::FileType::Fifo, Mode::RUSR, 0);
    assert_eq!(fifo, Err(Errno::NAMETOOLONG));
    fs::remove_file(path(&long)).expect("unlink");
    assert_eq!(fs::read_to_string(path("d")).expect("read"), "b");
    served.end().expect("the session ends well");
    assert_consistent(image.path());
}

#[test]
fn files_without_a_name_live_until_they_are_closed() {
    if !ready() {
        return;
    }
    for transport in TRANSPORTS {
        let image = Image::mke2fs(&["-t", "ext4"], 64 << 20).build();
        let served = serve_writable(image.path(), transport);
        let root = served.path();
        let free = || rustix::fs::statvfs(root).expect("statvfs").f_ffree;
        let before = free();
        let mut file = File::options().read(true).write(true).create_new(true).open(root.join("f")).expect("create");
        file.write_all(&[7; 300_000]).expect("write");
        fs::remove_file(root.join("f")).expect("unlink");
        assert_eq!(file.metadata().expect("fstat").nlink(), 0);
        file.write_all(&[8; 10]).expect("write");
        file.rewind().expect("seek");
        let mut content = Vec::new();
        file.read_to_end(&mut content).expect("read");
        assert!(content.len() == 300_010 && content[299_999] == 7 && content[300_000] == 8);
        assert_eq!(free(), before - 1);
        drop(file);
        // the kernel forgets it a moment after it is closed
        while free() != before {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }

        let unnamed = rustix::fs::open(root, OFlags::TMPFILE | OFlags::RDWR, Mode::RUSR).expect("O_TMPFILE");
        rustix::io::write(&unnamed, b"named later").expect("write");
        let link = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&unnamed));
        rustix::fs::linkat(CWD, link, CWD, root.join("named"), AtFlags::SYMLINK_FOLLOW).expect("linkat");
        drop(unnamed);
        assert_eq!(fs::read(root.join("named")).expect("read"), b"named later");
        served.end().expect("the session ends well");
        assert_consistent(image.path());
    }
}

#[test]
fn space_is_allocated_and_freed() {
    if !ready() {
        return;
    }
    let image = Image::mke2fs(&["-t", "ext4"], 64 << 20).build();
    let served = serve_writable(image.path(), "");
    let path = served.path().join("f");
    let file = File::options().read(true).write(true).create_new(true).open(&path).expect("create");
    let allocate = |mode, offset, len| rustix::fs::fallocate(&file, mode, offset, len);
    let same_size = FallocateFlags::KEEP_SIZE;
    allocate(same_size, 0, 1 << 20).expect("beyond the end");
    assert_eq!(file.metadata().expect("fstat").len(), 0);
    assert!(file.metadata().expect("fstat").blocks() >= 2048);
    file.write_all_at(&[5; 1 << 20], 0).expect("write");
    file.sync_all().expect("fsync");
    allocate(FallocateFlags::PUNCH_HOLE | same_size, 4096, 8192).expect("punch");
    assert_eq!(rustix::fs::seek(&file, SeekFrom::Hole(0)), Ok(4096));
    assert_eq!(rustix::fs::seek(&file, SeekFrom::Data(4096)), Ok(12_288));
    // of a partially punched page the kernel caches the rest, which may be changed through a mapping
    allocate(FallocateFlags::PUNCH_HOLE | same_size, 50_000, 20_000).expect("punch");
    assert_eq!(rustix::fs::seek(&file, SeekFrom::Hole(12_288)), Ok(13 * 4096));
    assert_eq!(rustix::fs::seek(&file, SeekFrom::Data(13 * 4096)), Ok(17 * 4096));
    allocate(FallocateFlags::ZERO_RANGE, 100_000, 50_000).expect("zero");
    let content = fs::read(&path).expect("read");
    assert!(content[..4096].iter().all(|&b| b == 5) && content[4096..12_288].iter().all(|&b| b == 0));
    assert!(content[100_000..150_000].iter().all(|&b| b == 0) && content[150_000] == 5);
    // the kernel's FUSE permits no other modes
    assert_eq!(allocate(FallocateFlags::COLLAPSE_RANGE, 0, 4096), Err(Errno::OPNOTSUPP));
    drop(file);
    served.end().expect("the session ends well");
    assert_consistent(image.path());
}

#[test]
fn large_pieces_and_direct_ones() {
    if !ready() {
        return;
    }
    for transport in TRANSPORTS {
        let image = Image::mke2fs(&["-t", "ext4"], 128 << 20).build();
        let served = serve_writable(image.path(), transport);
        let path = served.path().join("large");
        let content = Rng::new(8).bytes(20_000_003);
        let file = File::create(&path).expect("create");
        file.write_all_at(&content, 1001).expect("write");
        let mut buf = vec![1; content.len() + 1001];
        File::open(&path).expect("open").read_exact_at(&mut buf, 0).expect("read");
        assert!(buf[..1001].iter().all(|&b| b == 0) && buf[1001..] == content[..]);
        let direct = OFlags::DIRECT.bits() as i32;
        let around = File::options().read(true).write(true).custom_flags(direct).open(&path).expect("open");
        around.write_all_at(&[9; 8192], 4096).expect("write around the page cache");
        file.write_all_at(&[3; 10], 5000).expect("write");
        let mut buf = [0; 8192];
        around.read_exact_at(&mut buf, 4096).expect("read around the page cache");
        assert!(buf[..904].iter().all(|&b| b == 9) && buf[904..914] == [3; 10] && buf[914] == 9);
        drop((file, around));
        served.end().expect("the session ends well");
        assert_consistent(image.path());
        let served = serve(image.path());
        let again = fs::read(served.path().join("large")).expect("read");
        assert!(again[12_288..] == content[12_288 - 1001..]);
    }
}

/// A page-aligned buffer, as direct writes require.
#[repr(align(4096))]
struct Pages([u8; 39 * 4096]);

#[test]
fn a_direct_write_that_fits_in_part_says_that_the_volume_is_full() {
    if !ready() {
        return;
    }
    for transport in TRANSPORTS {
        let image = Image::mke2fs(&["-t", "ext4", "-b", "4096"], 16 << 20).build();
        let served = serve_writable(image.path(), transport);
        let direct = || {
            let flags = OFlags::DIRECT.bits() as i32;
            OpenOptions::new().read(true).write(true).create(true).custom_flags(flags).open(served.path().join("file"))
        };
        let (file, pages) = (direct().expect("created"), Box::new(Pages([7; 39 * 4096])));
        let (mut at, mut refused) = (0, 0);
        while refused < 5 {
            let len = pages.0.len() - refused * 7 * 4096;
            match file.write_at(&pages.0[..len], at) {
                Ok(written) => at += written as u64,
                Err(e) => {
                    assert_eq!(errno(&e), Some(Errno::NOSPC), "{e}");
                    refused += 1;
                }
            }
        }
        assert!(at > 4 << 20, "{at}");
        let mut read = vec![0; at as usize];
        File::open(served.path().join("file")).expect("open").read_exact(&mut read).expect("read");
        assert!(read.iter().all(|byte| *byte == 7));
        drop(file);
        served.end().expect("unmounted");
        assert_consistent(image.path());
    }
}

#[test]
fn many_threads_at_once() {
    if !ready() {
        return;
    }
    for (format, transport) in [(FORMATS[0], TRANSPORTS[0]), (FORMATS[0], TRANSPORTS[1]), (FORMATS[2], TRANSPORTS[0])] {
        let image = Image::mke2fs(format, 128 << 20).build();
        let served = serve_writable(image.path(), transport);
        let shared = served.path().join("shared");
        fs::create_dir(&shared).expect("mkdir");
        std::thread::scope(|scope| {
            for thread in 0..8u64 {
                let (root, shared) = (served.path(), &shared);
                scope.spawn(move || {
                    let mut rng = Rng::new(thread);
                    let own = root.join(format!("own-{thread}"));
                    fs::create_dir(&own).expect("mkdir");
                    for round in 0..150 {
                        let name = format!("{thread}-{round}");
                        let length = rng.magnitude(40_000) as usize;
                        let content = rng.bytes(length);
                        fs::write(own.join(&name), &content).expect("write");
                        fs::rename(own.join(&name), shared.join(&name)).expect("rename");
                        assert!(fs::read(shared.join(&name)).expect("read") == content);
                        if round % 3 != 0 {
                            fs::remove_file(shared.join(&name)).expect("unlink");
                        }
                    }
                    fs::remove_dir(&own).expect("rmdir");
                });
            }
        });
        assert_eq!(shared.read_dir().expect("list").count(), 8 * 50);
        assert_eq!(served.problems(), Vec::<String>::new());
        served.end().expect("the session ends well");
        assert_consistent(image.path());
    }
}

/// Opens a file in ways that an immutable and an append-only one refuse, and prints each outcome.
const WAYS: &str = "import fcntl, mmap, os, sys\n\
    path, how = sys.argv[1:]\n\
    def way(name, work):\n\
    \x20   try: work(); print(name, end=' ')\n\
    \x20   except OSError as e: print(name + '=' + os.strerror(e.errno).split()[0], end=' ')\n\
    def write(flags, then=None):\n\
    \x20   f = os.open(path, flags)\n\
    \x20   if then is not None: fcntl.fcntl(f, fcntl.F_SETFL, then)\n\
    \x20   os.pwrite(f, b'X', 0); (then is None) or os.fsync(f); os.close(f)\n\
    def mapped():\n\
    \x20   f = os.open(path, os.O_RDWR); m = mmap.mmap(f, 4); m[0:4] = b'ZZZZ'; m.flush()\n\
    def shared():\n\
    \x20   f = os.open(path, os.O_RDWR | os.O_APPEND); m = mmap.mmap(f, 4); m[0:4] = b'ZZZZ'; m.flush()\n\
    way('read', lambda: os.close(os.open(path, os.O_RDONLY)))\n\
    way('write', lambda: write(os.O_WRONLY))\n\
    way('map', mapped)\n\
    way('cut', lambda: os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_TRUNC)))\n\
    way('shorten', lambda: os.truncate(path, 0))\n\
    way('share', shared)\n\
    way('append', lambda: write(os.O_WRONLY | os.O_APPEND))\n\
    if how == 'a': way('unflagged', lambda: write(os.O_WRONLY | os.O_APPEND, 0))\n";

#[test]
fn immutable_and_append_only_files_are_neither_opened_nor_overwritten() {
    if !ready() || !tools::is_root() || !testkit::need(&["chattr", "python3"]) {
        return;
    }
    let more = ["", ",writeback_cache", ",noatime,nofuseblk"];
    for (format, options) in FORMATS.iter().zip(more).chain([(&FORMATS[0], more[1])]) {
        let image = Image::mke2fs(format, 32 << 20).build();
        let served = serve_writable(image.path(), &format!("{}{options}", TRANSPORTS[1]));
        for (flag, refused, content) in [
            (
                "i",
                "read write=Operation map=Operation cut=Operation shorten=Operation share=Operation append=Operation ",
                "one\n",
            ),
            (
                "a",
                "read write=Operation map=Operation cut=Operation shorten=Operation share=No append unflagged=Operation ",
                "one\nX",
            ),
        ] {
            let path = served.path().join(flag);
            fs::write(&path, "one\n").expect("write");
            tools::must("chattr", &[format!("+{flag}").as_ref(), path.as_os_str()]);
            let ways = Command::new("python3").args(["-c", WAYS]).arg(&path).arg(flag).output().expect("python3");
            let writeback = options.contains("writeback");
            let refused = if writeback { refused.replace("share=No", "share=Operation") } else { refused.to_owned() };
            assert_eq!(String::from_utf8_lossy(&ways.stdout), refused, "{format:?} {options}: {ways:?}");
            is_soon(&path, content.as_bytes());
            if flag == "a" {
                // data appended past the page cache is visible to other readers
                let (mut log, mut reader) =
                    (OpenOptions::new().append(true).open(&path).expect("open"), File::open(&path).expect("open"));
                let mut seen = String::new();
                for line in 0..300 {
                    reader.read_to_string(&mut seen).expect("read");
                    writeln!(log, "line {line}").expect("write");
                }
                reader.read_to_string(&mut seen).expect("read");
                let expected: String = (0..300).map(|line| format!("line {line}\n")).collect();
                assert_eq!(seen, format!("{content}{expected}"), "{format:?} {options}");
            }
            tools::must("chattr", &[format!("-{flag}").as_ref(), path.as_os_str()]);
            fs::write(&path, "other\n").expect("write");
        }
        served.end().expect("the session ends well");
        assert_consistent(image.path());
    }
}

/// Waits until a file has this content: until the kernel has forgotten pages that were refused.
fn is_soon(path: &Path, content: &[u8]) {
    let begin = std::time::Instant::now();
    while fs::read(path).expect("read") != content {
        assert!(begin.elapsed().as_secs() < 30, "{path:?}: {:?}", fs::read(path).expect("read").get(..8));
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

#[test]
fn what_is_appended_with_o_sync_is_durable_where_the_kernel_sends_no_fsync() {
    if !ready() || !tools::is_root() || !testkit::need(&["chattr"]) {
        return;
    }
    for format in FORMATS {
        let image = Image::mke2fs(format, 32 << 20).build();
        let served = serve_writable(image.path(), "commit=60");
        for (name, how) in [("sync", OFlags::SYNC), ("dsync", OFlags::DSYNC)] {
            let path = served.path().join(name);
            fs::write(&path, "one\n").expect("write");
            tools::must("chattr", &["+a".as_ref(), path.as_os_str()]);
            let how = i32::try_from(how.bits()).expect("a flag of open(2)");
            let mut log = OpenOptions::new().append(true).custom_flags(how).open(&path).expect("open");
            log.write_all(b"two\n").expect("write");
            // the state of the device after a crash
            let copy = tempfile::NamedTempFile::new().expect("a temporary file");
            fs::copy(image.path(), copy.path()).expect("copy");
            let again = serve(copy.path());
            assert_eq!(fs::read_to_string(again.path().join(name)).expect("read"), "one\ntwo\n", "{format:?} {name}");
            tools::must("chattr", &["-a".as_ref(), path.as_os_str()]);
        }
    }
}

/// Changes a file through a mapping before and after it gets a flag.
const MAPPED: &str = "import mmap, os, subprocess, sys\n\
    path, flag = sys.argv[1:]\n\
    f = os.open(path, os.O_RDWR); m = mmap.mmap(f, 8192)\n\
    m[0:6] = b'before'\n\
    subprocess.run(['chattr', '+' + flag, path], check=True)\n\
    m[0:6] = b'behind'\n\
    try: m.flush(); print('flushed')\n\
    except OSError: pass\n";

#[test]
fn what_mappings_change_of_a_file_that_becomes_immutable_or_append_only_is_not_seen_by_any_process() {
    if !ready() || !tools::is_root() || !testkit::need(&["chattr", "python3"]) {
        return;
    }
    for options in ["noatime", "writeback_cache"] {
        let image = Image::mke2fs(FORMATS[0], 32 << 20).build();
        let served = serve_writable(image.path(), options);
        for flag in ["i", "a"] {
            let path = served.path().join(flag);
            fs::write(&path, [b'o'; 8192]).expect("write");
            let done = Command::new("python3").args(["-c", MAPPED]).arg(&path).arg(flag).output().expect("python3");
            assert!(done.status.success() && done.stdout.is_empty(), "{options} +{flag}: {done:?}");
            // data written before remains, as on ext4
            let mut expected = [b'o'; 8192];
            expected[..6].copy_from_slice(b"before");
            is_soon(&path, &expected);
            tools::must("chattr", &[format!("-{flag}").as_ref(), path.as_os_str()]);
        }
        served.end().expect("the session ends well");
        assert_consistent(image.path());
    }
}

#[test]
fn unmounted_with_data_in_flight_again_and_again() {
    if !ready() || !tools::is_root() || !testkit::need(&["umount", "losetup"]) {
        return;
    }
    let image = Image::mke2fs(&["-t", "ext4"], 128 << 20).build();
    for round in 0..8u64 {
        let content = Rng::new(round).bytes(8 << 20);
        let served = serve_writable(image.path(), TRANSPORTS[round as usize % 2]);
        if round > 0 {
            let before = Rng::new(round - 1).bytes(8 << 20);
            assert!(fs::read(served.path().join("f")).expect("read") == before);
        }
        fs::write(served.path().join("f"), &content).expect("write");
        let on_device = fs::read_to_string("/proc/self/mounts")
            .expect("mounts")
            .lines()
            .any(|line| line.contains(served.path().to_str().expect("UTF-8")) && line.contains(" fuseblk.extant rw,"));
        if on_device {
            // all changes are durable when umount(8) returns, although the session may end a moment later
            // a program that another test starts at this moment has the file open until its exec
            let begin = std::time::Instant::now();
            while tools::run("umount", &[served.path().as_os_str()]).exit != Some(0) {
                assert!(begin.elapsed().as_secs() < 30, "it stays busy");
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            assert_consistent(image.path());
        }
        served.end().expect("the session ends well");
    }
    assert_consistent(image.path());
}

#[test]
fn other_users_may_do_what_modes_and_lists_allow() {
    if !ready() || !tools::is_root() || !testkit::need(&["setpriv"]) {
        return;
    }
    let image = Image::mke2fs(&["-t", "ext4"], 32 << 20).build();
    let served = serve_writable(image.path(), "allow_other");
    let root = served.path();
    fs::set_permissions(root, Permissions::from_mode(0o755)).expect("chmod");
    let make = |name: &str, mode| {
        fs::create_dir(root.join(name)).expect("mkdir");
        fs::set_permissions(root.join(name), Permissions::from_mode(mode)).expect("chmod");
    };
    make("open", 0o777);
    make("sticky", 0o1777);
    make("closed", 0o700);
    make("group", 0o2770);
    fs::write(root.join("sticky/roots"), "").expect("write");
    fs::write(root.join("closed/f"), "").expect("write");
    rustix::fs::chown(root.join("group"), None, Some(rustix::fs::Gid::from_raw(5555))).expect("chown");
    fs::set_permissions(root.join("group"), Permissions::from_mode(0o2770)).expect("chmod");
    let as_user = |groups: &str, script: &str| {
        let ran = Command::new("setpriv")
            .args(["--reuid=4321", "--regid=4321", &format!("--groups={groups}"), "sh", "-c", script])
            .current_dir(root)
            .stderr(Stdio::null())
            .status();
        ran.expect("running").success()
    };
    let may = |script: &str| as_user("4321", script);
    assert!(may("echo x > open/mine && cat open/mine && chmod 600 open/mine && touch -d 2001-01-01 open/mine"));
    assert!(!may("echo x > closed/new") && !may("cat closed/f") && !may("ls closed") && !may("echo x > new"));
    assert!(may("echo x > sticky/mine && rm sticky/mine") && !may("rm -f sticky/roots && test ! -e sticky/roots"));
    assert!(!may("chown 0 open/mine") && !may("chmod 777 sticky/roots"));
    assert!(!may("ls group") && as_user("4321,5555", "mkdir group/sub && echo x > group/f"));
    let sub = fs::metadata(root.join("group/sub")).expect("stat");
    assert_eq!((sub.uid(), sub.gid(), sub.mode() & 0o2000), (4321, 5555, 0o2000));
    assert_eq!(fs::metadata(root.join("group/f")).expect("stat").gid(), 5555);
    // a write by another user removes set-user-id, root's does not
    fs::write(root.join("open/suid"), "x").expect("write");
    fs::set_permissions(root.join("open/suid"), Permissions::from_mode(0o6777)).expect("chmod");
    OpenOptions::new().append(true).open(root.join("open/suid")).expect("open").write_all(b"y").expect("write");
    assert_eq!(fs::metadata(root.join("open/suid")).expect("stat").mode() & 0o7777, 0o6777);
    assert!(may("echo z >> open/suid"));
    assert_eq!(fs::metadata(root.join("open/suid")).expect("stat").mode() & 0o7777, 0o777);
    // where the group may not execute the file, set-group-id remains for its members
    for (groups, script, left) in [
        ("4321", ": > open/sgid", 0o767),
        ("4321", "echo x >> open/sgid", 0o767),
        ("4321", "truncate -s 1 open/sgid", 0o767),
        ("4321,0", ": > open/sgid", 0o2767),
        ("4321,0", "echo x >> open/sgid", 0o2767),
    ] {
        fs::write(root.join("open/sgid"), "x").expect("write");
        fs::set_permissions(root.join("open/sgid"), Permissions::from_mode(0o2767)).expect("chmod");
        assert!(as_user(groups, script), "{script}");
        assert_eq!(fs::metadata(root.join("open/sgid")).expect("stat").mode() & 0o7777, left, "{groups}: {script}");
    }
    served.end().expect("the session ends well");
    assert_consistent(image.path());
}

/// A device that fails, panics or blocks on request.
struct Moody {
    inner: MemoryDevice,
    mood: AtomicU8,
    gate: Mutex<bool>,
    opened: Condvar,
}

const WELL: u8 = 0;
const FAILS_WRITES: u8 = 1;
const PANICS_ON_READ: u8 = 2;
const WAITS_ON_READ: u8 = 3;

impl Moody {
    fn new(image: &Image) -> Arc<Self> {
        let (mood, gate, opened) = (AtomicU8::new(WELL), Mutex::new(false), Condvar::new());
        Arc::new(Self { inner: MemoryDevice::from_vec(image.bytes()), mood, gate, opened })
    }

    fn is(&self, mood: u8) -> bool {
        self.mood.load(Ordering::SeqCst) == mood
    }

    fn becomes(&self, mood: u8) {
        self.mood.store(mood, Ordering::SeqCst);
    }
}

impl BlockDevice for Moody {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> blockdev::Result<()> {
        assert!(!self.is(PANICS_ON_READ), "a bug that strikes");
        if self.is(WAITS_ON_READ) {
            let closed = |open: &mut bool| !*open;
            self.opened.wait_while(&mut self.gate.lock(), closed);
        }
        self.inner.read(offset, buf)
    }

    fn write(&self, offset: u64, data: &[u8]) -> blockdev::Result<()> {
        if self.is(FAILS_WRITES) {
            // beyond the end: a device error
            return self.inner.write(u64::MAX / 2, data);
        }
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
fn a_device_that_fails_is_reported_to_every_fsync_and_the_volume_is_read_only() {
    if !ready() {
        return;
    }
    let image = Image::mke2fs(&["-t", "ext4"], 32 << 20).build();
    let device = Moody::new(&image);
    let served = serve_with(Arc::clone(&device) as _, None, "rw").expect("a volume");
    let mut file = File::create(served.path().join("f")).expect("create");
    file.write_all(b"before").expect("write");
    file.sync_all().expect("fsync");
    device.becomes(FAILS_WRITES);
    file.write_all(&[1; 100_000]).expect("it waits in memory");
    for _ in 0..3 {
        let e = file.sync_all().expect_err("the device fails");
        assert_eq!(errno(&e), Some(Errno::IO), "{e}");
    }
    device.becomes(WELL);
    let e = file.sync_all().expect_err("what was lost stays lost");
    assert_eq!(errno(&e), Some(Errno::IO), "{e}");
    let e = File::create(served.path().join("g")).expect_err("read-only");
    assert_eq!(errno(&e), Some(Errno::ROFS), "{e}");
    assert_eq!(fs::read(served.path().join("f")).expect("read")[..6], *b"before");
    drop(file);
    assert!(!served.problems().is_empty());
    assert!(matches!(served.end(), Err(extant_fuse::Error::Finish(_))));
}

#[test]
fn a_panic_makes_the_volume_read_only_and_the_mount_lives() {
    if !ready() {
        return;
    }
    let image = Image::mke2fs(&["-t", "ext4", "-b", "1024"], 32 << 20).build();
    image.debugfs(&["mkdir deep", "mkdir deep/er"]);
    let device = Moody::new(&image);
    let served = serve_with(Arc::clone(&device) as _, None, "rw").expect("a volume");
    fs::write(served.path().join("f"), "before").expect("write");
    File::open(served.path().join("f")).expect("open").sync_all().expect("fsync");
    device.becomes(PANICS_ON_READ);
    let e = served.path().join("deep").read_dir().and_then(Iterator::collect::<io::Result<Vec<_>>>);
    assert_eq!(errno(&e.expect_err("a panic")), Some(Errno::IO));
    device.becomes(WELL);
    let e = fs::write(served.path().join("g"), "after").expect_err("read-only");
    assert_eq!(errno(&e), Some(Errno::ROFS), "{e}");
    assert_eq!(served.path().join("deep").read_dir().expect("list").count(), 1);
    assert_eq!(fs::read(served.path().join("f")).expect("read"), b"before");
    assert!(served.problems().iter().any(|p| p.contains("an internal error of Extant: a bug that strikes")));
    assert!(served.end().is_err());
}

#[test]
fn a_program_killed_while_it_waits_leaves_the_mount_alone() {
    if !ready() || !testkit::need(&["cat"]) {
        return;
    }
    let source = tempfile::tempdir().expect("a temporary folder");
    fs::write(source.path().join("f"), [7; 50_000]).expect("write");
    let image = Image::mke2fs(&["-t", "ext4"], 32 << 20).with_folder(source.path()).build();
    for transport in TRANSPORTS {
        let device = Moody::new(&image);
        let served = serve_with(Arc::clone(&device) as _, None, &format!("rw,{transport}")).expect("a volume");
        device.becomes(WAITS_ON_READ);
        let path = served.path().join("f");
        let mut waiting: Vec<_> = (0..3)
            .map(|_| Command::new("cat").arg(&path).stdout(Stdio::null()).spawn().expect("running cat"))
            .collect();
        std::thread::sleep(std::time::Duration::from_millis(50));
        waiting.iter_mut().for_each(|cat| cat.kill().expect("kill"));
        device.becomes(WELL);
        *device.gate.lock() = true;
        device.opened.notify_all();
        for mut cat in waiting {
            cat.wait().expect("waiting");
        }
        assert!(fs::read(&path).expect("read") == [7; 50_000]);
        served.end().expect("the session ends well");
    }
}
