//! A request refused for lack of space leaves the content unchanged, also in mappings.

mod common;

use common::{TRANSPORTS, ready, serve_writable};
use std::process::Command;
use testkit::{Image, need, oracle};

/// Writes content followed by a hole on a volume without free blocks, and zeroes the whole range.
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
