//! The state that the kernel caches - names, modes, pages, files without a name - equals that of the volume.

mod common;

use common::{TRANSPORTS, acl_bytes, ready, serve_writable};
use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags, RenameFlags, SeekFrom, XattrFlags};
use std::fs::{self, File, Permissions};
use std::io::{BufRead, BufReader, ErrorKind};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use testkit::{Image, oracle, tools};

/// The maximum time that the kernel may take to forget a file, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn assert_consistent(image: &Path) {
    let verdict = oracle::e2fsck(image);
    assert!(verdict.clean, "{verdict:?}");
}

fn nameless(dir: &Path) -> OwnedFd {
    rustix::fs::open(dir, OFlags::TMPFILE | OFlags::RDWR, Mode::RUSR | Mode::WUSR).expect("O_TMPFILE")
}

#[test]
fn space_of_files_without_a_name_comes_back() {
    if !ready() {
        return;
    }
    // with relatime the kernel sends OPEN for each open
    let ways = TRANSPORTS.map(|transport| format!("{transport},noatime"));
    let ways = ways.into_iter().chain(TRANSPORTS.map(|transport| format!("{transport},relatime")));
    for options in ways {
        let image = Image::mke2fs(&["-t", "ext4"], 32 << 20).build();
        let served = serve_writable(image.path(), &options);
        let root = served.path();
        let free = || {
            let seen = rustix::fs::statvfs(root).expect("statvfs");
            (seen.f_bfree, seen.f_ffree)
        };
        let before = free();
        let content = vec![7; 1 << 20];
        for round in 0..4 {
            let file = nameless(root);
            rustix::io::write(&file, &content).expect("write");
            let now = free();
            assert!(now.0 < before.0 && now.1 == before.1 - 1, "{options}: it takes space while it is open");
            if round % 2 == 1 {
                let link = format!("/proc/self/fd/{}", file.as_raw_fd());
                rustix::fs::linkat(CWD, link, CWD, root.join("named"), AtFlags::SYMLINK_FOLLOW).expect("linkat");
                fs::remove_file(root.join("named")).expect("unlink");
            }
            drop(file);
            wait_until(&format!("{options}, round {round}: the space does not come back"), || free() == before);
        }
        served.end().expect("the session ends well");
        assert_consistent(image.path());
    }
}

/// A case-insensitive folder, on a volume mounted for writing.
#[test]
fn a_folder_without_case_shows_what_it_has() {
    if !ready() || !testkit::need(&["chattr"]) {
        return;
    }
    for transport in TRANSPORTS {
        let image = Image::mke2fs(&["-t", "ext4", "-O", "casefold", "-E", "encoding=utf8"], 32 << 20).build();
        let served = serve_writable(image.path(), transport);
        let dir = served.path().join("d");
        let at = |name: &str| dir.join(name);
        let is_missing = |name: &str| at(name).metadata().is_err_and(|e| e.kind() == ErrorKind::NotFound);
        let read = |name: &str| fs::read_to_string(at(name)).expect(name);
        fs::create_dir(&dir).expect("mkdir");
        // a name that was looked up before the folder became case-insensitive
        assert!(is_missing("EARLY"));
        tools::must("chattr", &["+F".as_ref(), dir.as_os_str()]);
        fs::write(at("early"), "early").expect("write");
        assert_eq!(read("EARLY"), "early");

        assert!(is_missing("BAR"));
        fs::write(at("bar"), "bar").expect("write");
        assert_eq!(read("BAR"), "bar");
        fs::remove_file(at("Bar")).expect("unlink");
        assert!(is_missing("bar") && is_missing("BAR"));
        fs::write(at("BAR"), "again").expect("write");
        assert_eq!((read("bar"), fs::read_dir(&dir).expect("list").count()), ("again".to_owned(), 2));

        fs::write(at("x"), "one").expect("write");
        assert_eq!(read("X"), "one");
        fs::write(at("t"), "two").expect("write");
        fs::rename(at("t"), at("x")).expect("rename");
        assert_eq!((read("X"), read("x")), ("two".to_owned(), "two".to_owned()));
        assert!(is_missing("T"));
        assert_eq!((read("BAR"), read("X")), ("again".to_owned(), "two".to_owned()));
        rustix::fs::renameat_with(CWD, at("bar"), CWD, at("x"), RenameFlags::EXCHANGE).expect("exchange");
        assert_eq!((read("BAR"), read("X")), ("two".to_owned(), "again".to_owned()));
        fs::hard_link(at("x"), at("link")).expect("link");
        assert_eq!(read("LINK"), "again");
        fs::remove_file(at("LINK")).expect("unlink");
        assert!(is_missing("link"));
        assert!(is_missing("SUB"));
        fs::create_dir(at("sub")).expect("mkdir");
        assert!(at("SUB").is_dir());
        fs::remove_dir(at("Sub")).expect("rmdir");
        assert!(is_missing("sub") && is_missing("SUB"));

        // a name that was cached in a case-sensitive folder and is moved from there
        let plain = served.path().join("plain");
        fs::write(&plain, "plain").expect("write");
        assert_eq!(fs::read_to_string(&plain).expect("read"), "plain");
        fs::rename(&plain, at("moved")).expect("rename");
        fs::remove_file(at("MOVED")).expect("unlink");
        assert!(is_missing("moved"));
        // names that were listed with their attributes
        fs::write(at("listed"), "").expect("write");
        for entry in fs::read_dir(&dir).expect("list") {
            entry.expect("entry").metadata().expect("stat");
        }
        fs::remove_file(at("LISTED")).expect("unlink");
        assert!(is_missing("listed"));
        served.end().expect("the session ends well");
        assert_consistent(image.path());
    }
}

/// An access control list as programs pass it to the kernel: for the owner, user 5, the group, the mask and others.
fn acl(group: u16, mask: u16) -> Vec<u8> {
    acl_bytes([(1, 6, u32::MAX), (2, 7, 5), (4, group, u32::MAX), (0x10, mask, u32::MAX), (0x20, 0, u32::MAX)])
}

#[test]
fn an_attribute_that_changes_mode_or_space_is_seen() {
    const LIST: &str = "system.posix_acl_access";
    if !ready() || !tools::is_root() || !testkit::need(&["stat"]) {
        return;
    }
    for options in ["", "allow_other"] {
        let image = Image::mke2fs(&["-t", "ext4", "-b", "4096"], 32 << 20).build();
        let served = serve_writable(image.path(), options);
        let path = served.path().join("f");
        // stat(1) requests from the kernel only what it prints
        let shown = |format: &str| {
            let ran = Command::new("stat").args(["-c", format]).arg(&path).output().expect("stat");
            String::from_utf8_lossy(&ran.stdout).trim().to_owned()
        };
        fs::write(&path, "x").expect("write");
        fs::set_permissions(&path, Permissions::from_mode(0o640)).expect("chmod");
        assert_eq!(shown("%a"), "640");
        rustix::fs::setxattr(&path, LIST, &acl(4, 7), XattrFlags::empty()).expect("setxattr");
        assert_eq!(shown("%a"), "670", "{options}");
        rustix::fs::setxattr(&path, LIST, &acl(0, 0), XattrFlags::empty()).expect("setxattr");
        assert_eq!(shown("%a"), "600", "{options}");
        let blocks = path.metadata().expect("stat").blocks();
        assert_eq!(shown("%b"), blocks.to_string());
        rustix::fs::setxattr(&path, "user.large", &[1; 2000], XattrFlags::empty()).expect("setxattr");
        assert_eq!(shown("%b"), (blocks + 8).to_string(), "{options}");
        rustix::fs::removexattr(&path, "user.large").expect("removexattr");
        let left = shown("%b");
        served.end().expect("the session ends well");
        assert_consistent(image.path());
        let served = serve_writable(image.path(), options);
        let seen = served.path().join("f").metadata().expect("stat");
        assert_eq!((seen.mode() & 0o7777, seen.blocks().to_string()), (0o600, left), "{options}");
    }
}

/// The ranges of the file that lseek(2) reports as data.
fn data(file: &File) -> Vec<(u64, u64)> {
    let (mut parts, mut at) = (Vec::new(), 0);
    while let Ok(start) = rustix::fs::seek(file, SeekFrom::Data(at)) {
        at = rustix::fs::seek(file, SeekFrom::Hole(start)).expect("there is one at the end");
        assert!(at > start);
        parts.push((start, at));
    }
    parts
}

#[test]
fn what_is_written_through_a_mapping_is_no_hole() {
    const PROGRAM: &str = "import mmap, os, sys\n\
        f = os.open(sys.argv[1], os.O_RDWR)\n\
        m = mmap.mmap(f, 0)\n\
        for at in sys.argv[2:]: m[int(at):int(at) + 3] = b'new'\n\
        print('written', flush=True)\n\
        sys.stdin.read()\n";
    const MIB: u64 = 1 << 20;
    if !ready() || !testkit::need(&["python3", "cp", "cmp"]) {
        return;
    }
    for (transport, block) in TRANSPORTS.into_iter().zip(["1024", "4096"]) {
        let image = Image::mke2fs(&["-t", "ext4", "-b", block], 64 << 20).build();
        let served = serve_writable(image.path(), transport);
        let path = served.path().join("f");
        let file = File::options().read(true).write(true).create_new(true).open(&path).expect("create");
        file.set_len(16 * MIB).expect("longer");
        file.write_all_at(&[1; 65_536], 8 * MIB).expect("write");
        // ranges that no process has read are exact
        let exact = vec![(8 * MIB, 8 * MIB + 65_536)];
        if cfg!(target_arch = "x86_64") {
            assert_eq!(data(&file), exact);
        }
        // written whole, so that the kernel caches it as one folio, and punched: one page of it, and most of it
        file.write_all_at(&vec![2; 65_536], 12 * MIB).expect("write");
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, punch, 12 * MIB + 9 * 1024, 1024).expect("punch");
        rustix::fs::fallocate(&file, punch, 12 * MIB + 20_000, 30_000).expect("punch");
        let changed = [4096, MIB, 12 * MIB + 9 * 1024 + 5, 12 * MIB + 40_000, 16 * MIB - 3];
        let mut program = Command::new("python3")
            .args(["-c", PROGRAM])
            .arg(&path)
            .args(changed.map(|at| at.to_string()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3");
        let mut said = String::new();
        BufReader::new(program.stdout.as_mut().expect("its output")).read_line(&mut said).expect("its output");
        assert_eq!(said, "written\n");
        let parts = data(&file);
        for at in changed {
            assert!(parts.iter().any(|(start, end)| (*start..*end).contains(&at)), "{at} is a hole of {parts:?}");
        }
        let hole = 3 * MIB;
        assert!(parts.iter().all(|(start, end)| !(*start..*end).contains(&hole)), "{parts:?}");
        let copy = tempfile::tempdir().expect("a temporary folder");
        let copy = copy.path().join("copy");
        tools::must("cp", &[path.as_os_str(), copy.as_os_str()]);
        tools::must("cmp", &[path.as_os_str(), copy.as_os_str()]);
        drop(program.stdin.take());
        assert!(program.wait().expect("waiting").success());
        drop(file);
        served.end().expect("the session ends well");
        assert_consistent(image.path());
    }
}

/// GNU tar does not read a file with a block count of 0.
#[test]
fn what_only_the_kernel_has_is_in_an_archive() {
    const PROGRAM: &str = "import mmap, os, subprocess, sys\n\
        os.chdir(sys.argv[1])\n\
        f = os.open('f', os.O_RDWR | os.O_CREAT)\n\
        os.ftruncate(f, 1 << 20)\n\
        m = mmap.mmap(f, 1 << 20)\n\
        m[70000:70005] = b'hello'\n\
        w = os.open('w', os.O_RDWR | os.O_CREAT)\n\
        os.write(w, b'written')\n\
        sys.stdout.buffer.write(subprocess.run('tar -cSf - f w | tar -xOf -', shell=True, capture_output=True).stdout)\n";
    if !ready() || !testkit::need(&["python3", "tar"]) {
        return;
    }
    for options in ["", "writeback_cache"] {
        let image = Image::mke2fs(&["-t", "ext4"], 64 << 20).build();
        let served = serve_writable(image.path(), options);
        let ran = Command::new("python3").args(["-c", PROGRAM]).arg(served.path()).output().expect("python3");
        let mut expected = vec![0; 1 << 20];
        expected[70_000..70_005].copy_from_slice(b"hello");
        expected.extend(b"written");
        assert!(ran.stdout == expected, "{options:?}: {}", String::from_utf8_lossy(&ran.stderr));
        served.end().expect("the session ends well");
        assert_consistent(image.path());
    }
}
