//! What was refused is nowhere: not in mappings, not on the device later.

mod common;

use common::{TRANSPORTS, ready, serve_writable};
use std::process::Command;
use testkit::{Image, need, oracle};

const FORMATS: [&[&str]; 3] = [&["-t", "ext4"], &["-t", "ext3"], &["-t", "ext2", "-b", "1024"]];

/// A file of which a mapping has all pages, with space for none or some of the 400 KiB that are written; then a byte of each page
/// is stored through the mapping, when there is space again.
const MAPPED: &str = "import mmap, os, sys\n\
    os.chdir(sys.argv[1])\n\
    f = os.open('f', os.O_RDWR | os.O_CREAT); os.ftruncate(f, 1 << 20); os.pwrite(f, b'D' * 8192, 0); os.fsync(f)\n\
    m = mmap.mmap(f, 1 << 20); m[8192:600000]\n\
    g = os.open('fill', os.O_RDWR | os.O_CREAT)\n\
    for size in (65536, 4096, 512):\n\
    \x20   try:\n\
    \x20       while True: os.write(g, b'x' * size)\n\
    \x20   except OSError: pass\n\
    os.fsync(g); freed = int(sys.argv[2])\n\
    if freed: os.ftruncate(g, os.fstat(g).st_size - freed); os.fsync(g)\n\
    done = 0\n\
    try:\n\
    \x20   while done < 400 << 10: done += os.pwrite(f, b'W' * ((400 << 10) - done), 8192 + done)\n\
    \x20   print('all was written')\n\
    except OSError as e: print(os.strerror(e.errno), done > 0)\n\
    os.ftruncate(g, 1 << 20); os.fsync(g)\n\
    for page in range(2, 102): m[page * 4096] = ord('m')\n\
    m.flush(); os.fsync(f); n = os.pread(f, 1 << 20, 0).count(b'W')\n\
    print(n <= done)\n";

#[test]
fn a_write_that_is_refused_is_not_in_mappings() {
    if !ready() || !need(&["python3"]) {
        return;
    }
    for (format, transport) in FORMATS.iter().flat_map(|format| TRANSPORTS.map(|transport| (*format, transport))) {
        // in part, too: the answer says how much
        for (freed, said) in
            [("0", "No space left on device False\nTrue\n"), ("65536", "No space left on device True\nTrue\n")]
        {
            let image = Image::mke2fs(format, 32 << 20).build();
            let served = serve_writable(image.path(), transport);
            let ran =
                Command::new("python3").args(["-c", MAPPED]).arg(served.path()).arg(freed).output().expect("python3");
            assert_eq!(String::from_utf8_lossy(&ran.stdout), said, "{format:?} {transport} {freed}: {ran:?}");
            served.end().expect("the session ends well");
            let verdict = oracle::e2fsck(image.path());
            assert!(verdict.clean, "{verdict:?}");
        }
    }
}

/// Content and then a hole in a volume without free blocks: all of it is to be zero.
const ZEROED: &str = "import mmap, os, subprocess, sys\n\
    os.chdir(sys.argv[1])\n\
    f = os.open('f', os.O_RDWR | os.O_CREAT); os.pwrite(f, b'D' * (1 << 20), 0); os.ftruncate(f, 8 << 20); os.fsync(f)\n\
    m = mmap.mmap(f, 8 << 20); m[:]\n\
    g = os.open('fill', os.O_RDWR | os.O_CREAT)\n\
    for size in (65536, 4096, 512):\n\
    \x20   try:\n\
    \x20       while True: os.write(g, b'x' * size)\n\
    \x20   except OSError: pass\n\
    os.fsync(g)\n\
    ran = subprocess.run(['fallocate', '-z', '-o', '4096', '-l', str(7 << 20), 'f'], capture_output=True)\n\
    print(ran.returncode, b'No space' in ran.stderr)\n\
    d = os.open('f', os.O_RDONLY | os.O_DIRECT); b = mmap.mmap(-1, 8 << 20); os.preadv(d, [b], 0)\n\
    print(b[:] == m[:] == os.pread(f, 8 << 20, 0), b[:].count(b'D'))\n";

#[test]
fn a_range_that_cannot_be_zeroed_is_as_it_was() {
    if !ready() || !need(&["python3", "fallocate"]) {
        return;
    }
    for transport in TRANSPORTS {
        let image = Image::mke2fs(&["-t", "ext4"], 32 << 20).build();
        let served = serve_writable(image.path(), transport);
        let ran = Command::new("python3").args(["-c", ZEROED]).arg(served.path()).output().expect("python3");
        assert_eq!(String::from_utf8_lossy(&ran.stdout), format!("1 True\nTrue {}\n", 1 << 20), "{transport}: {ran:?}");
        served.end().expect("the session ends well");
        let verdict = oracle::e2fsck(image.path());
        assert!(verdict.clean, "{verdict:?}");
    }
}
