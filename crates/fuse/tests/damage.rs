//! Damage is an error for the affected file, reported once, and the mount continues.

mod common;

use blockdev::{BlockDevice, Geometry, MemoryDevice};
use common::{ready, serve, serve_device, serve_writable};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use testkit::damage::Damager;
use testkit::{Image, Rng, Spec, Tree, cases, oracle};

fn errno(e: &io::Error) -> Option<Errno> {
    Errno::from_io_error(e)
}

/// Makes a volume with the regular files `names`, each with different content of 300 000 bytes; also returns that
/// content.
fn volume(args: &[&str], names: &[&str]) -> (Image, Vec<Vec<u8>>) {
    let source = tempfile::tempdir().expect("a temporary folder");
    let contents: Vec<_> = (0..names.len() as u64).map(|seed| Rng::new(seed).bytes(300_000)).collect();
    for (name, content) in names.iter().zip(&contents) {
        std::fs::write(source.path().join(name), content).expect("writing a file");
    }
    (Image::mke2fs(args, 16 << 20).with_folder(source.path()).build(), contents)
}

/// The offset of an inode, in bytes; from debugfs's "located at block 37, offset 0x0100".
fn place(image: &Image, name: &str, block_size: usize) -> usize {
    let said = oracle::debugfs(image.path(), &format!("imap {name}"));
    let number = |after: &str| {
        let text = said.split(after).nth(1).expect("imap").split([',', '\n']).next().expect("a number");
        match text.strip_prefix("0x") {
            Some(digits) => usize::from_str_radix(digits, 16).expect("a number"),
            None => text.parse().expect("a number"),
        }
    };
    number("located at block ") * block_size + number("offset ")
}

#[test]
fn a_corrupt_inode_is_an_error_for_its_file_alone() {
    if !ready() {
        return;
    }
    let (image, contents) = volume(&["-t", "ext4", "-b", "1024"], &["valid", "broken", "other"]);
    let mut bytes = image.bytes();
    bytes[place(&image, "broken", 1024) + 4] ^= 1; // i_size, which the checksum covers
    image.set_bytes(&bytes);
    let served = serve(image.path());
    let mut names: Vec<_> = served.path().read_dir().expect("listing").map(|e| e.expect("entry").file_name()).collect();
    names.sort();
    assert_eq!(names, ["broken", "lost+found", "other", "valid"]);
    for _ in 0..3 {
        let e = served.path().join("broken").symlink_metadata().expect_err("the inode is corrupt");
        assert_eq!(errno(&e), Some(Errno::UCLEAN), "{e}");
        let e = File::open(served.path().join("broken")).expect_err("the inode is corrupt");
        assert_eq!(errno(&e), Some(Errno::UCLEAN), "{e}");
        assert!(std::fs::read(served.path().join("valid")).expect("read") == contents[0]);
        assert!(std::fs::read(served.path().join("other")).expect("read") == contents[2]);
    }
    let problems = served.problems();
    assert!(problems.len() == 1 && problems[0].contains("checksum"), "{problems:?}");
}

/// Accepted content then finds no usable block: the user gets the reason, which is not a lack of space.
#[test]
fn a_group_that_is_not_used_any_more_is_named() {
    if !ready() {
        return;
    }
    let (image, _) = volume(&["-t", "ext2", "-b", "4096"], &["file"]);
    // one group, whose bitmap has one more block in use than its descriptor counts
    image.debugfs(&["setb 3000"]);
    let served = serve_writable(image.path(), "");
    let file = File::create(served.path().join("new")).expect("created");
    file.write_all_at(&[7; 40_000], 0).expect("accepted");
    let e = file.sync_all().expect_err("no place that can be trusted");
    assert_eq!(errno(&e), Some(Errno::NOSPC), "{e}");
    let problems = served.problems();
    let named = |problem: &String| problem.starts_with("group 0 is damaged") && problem.contains("extant check");
    assert!(problems.iter().filter(|problem| named(problem)).count() == 1, "{problems:?}");
    drop(file);
    served.end().expect_err("not all that was written is on the device");
    assert!(oracle::debugfs(image.path(), "stats").contains("with errors"), "it is marked for a check");
}

#[test]
fn a_corrupt_map_is_an_error_for_what_it_maps() {
    if !ready() {
        return;
    }
    let (image, contents) = volume(&["-t", "ext2", "-b", "1024"], &["valid", "broken"]);
    image.debugfs(&["set_inode_field broken block[IND] 0xfffffff0"]);
    let served = serve(image.path());
    let file = File::open(served.path().join("broken")).expect("open");
    let mut buf = [0; 12 * 1024];
    file.read_exact_at(&mut buf, 0).expect("the direct blocks are intact");
    assert!(buf[..] == contents[1][..buf.len()]);
    let e = file.read_at(&mut buf, 100_000).expect_err("the map is corrupt");
    assert_eq!(errno(&e), Some(Errno::UCLEAN), "{e}");
    assert!(std::fs::read(served.path().join("valid")).expect("read") == contents[0]);
    assert_eq!(served.problems().len(), 1, "{:?}", served.problems());
}

#[test]
fn a_corrupt_directory_block_hides_its_own_names_and_says_so() {
    if !ready() {
        return;
    }
    let source = tempfile::tempdir().expect("a temporary folder");
    for n in 0..200 {
        File::create(source.path().join(format!("{n:0>100}"))).expect("create");
    }
    let image = Image::mke2fs(&["-t", "ext4", "-b", "1024"], 8 << 20).with_folder(source.path()).build();
    // the fifth block of the root directory: its checksum no longer matches
    let block: usize = oracle::debugfs(image.path(), "bmap <2> 4")
        .lines()
        .find_map(|line| line.trim().parse().ok())
        .expect("a block number");
    let mut bytes = image.bytes();
    bytes[block * 1024 + 9] ^= 0xff;
    image.set_bytes(&bytes);
    let served = serve(image.path());
    for _ in 0..2 {
        let (mut listed, mut errors) = (0, Vec::new());
        for entry in served.path().read_dir().expect("listing") {
            match entry {
                Ok(_) => listed += 1,
                Err(e) => errors.push(errno(&e)),
            }
        }
        // the names of all blocks but one, including lost+found; then the error
        assert!((180..200).contains(&listed), "{listed}");
        assert!(errors == [Some(Errno::IO)] || errors == [Some(Errno::UCLEAN)], "{errors:?}");
    }
    let found = (0..200).filter(|n| served.path().join(format!("{n:0>100}")).exists()).count();
    assert!((180..200).contains(&found), "{found}");
    assert_eq!(served.problems().len(), 1, "{:?}", served.problems());
}

#[test]
fn an_image_that_is_cut_short_returns_eio_and_the_mount_lives() {
    if !ready() {
        return;
    }
    let names: Vec<_> = (0..20).map(|n| format!("file{n:02}")).collect();
    let (image, contents) =
        volume(&["-t", "ext4", "-b", "4096"], &names.iter().map(String::as_str).collect::<Vec<_>>());
    let bytes = image.bytes();
    let served = serve(image.path());
    assert_eq!(served.path().read_dir().expect("listing").count(), 21);
    let last = served.path().join(&names[19]);
    let file = File::open(&last).expect("open");
    File::options().write(true).open(image.path()).expect("image").set_len(1 << 20).expect("cut");
    let e = file.read_at(&mut [0; 100], 0).expect_err("the content is gone");
    assert_eq!(errno(&e), Some(Errno::IO), "{e}");
    assert!(last.symlink_metadata().is_ok());
    // after the restoration no error remains. The file retains its inode, so the device sees the change.
    std::fs::write(image.path(), &bytes).expect("image");
    assert!(std::fs::read(&last).expect("read") == contents[19]);
    assert_eq!(served.problems().len(), 1, "{:?}", served.problems());
}

/// A device that panics on request.
struct Buggy {
    inner: MemoryDevice,
    strikes: AtomicBool,
}

impl BlockDevice for Buggy {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> blockdev::Result<()> {
        assert!(!self.strikes.load(Ordering::Relaxed), "a bug that strikes");
        self.inner.read(offset, buf)
    }

    fn write(&self, offset: u64, data: &[u8]) -> blockdev::Result<()> {
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
fn a_panic_in_a_request_is_eio_and_the_mount_lives() {
    if !ready() {
        return;
    }
    let (image, contents) = volume(&["-t", "ext4", "-b", "1024"], &["file"]);
    let device = Arc::new(Buggy { inner: MemoryDevice::from_vec(image.bytes()), strikes: AtomicBool::new(false) });
    let served = serve_device(Arc::clone(&device) as Arc<dyn BlockDevice>).expect("a volume");
    let path = served.path().join("file");
    let file = File::open(&path).expect("open");
    device.strikes.store(true, Ordering::Relaxed);
    // more often than there are threads
    for _ in 0..40 {
        let e = file.read_at(&mut [0; 10], 0).expect_err("a panic");
        assert_eq!(errno(&e), Some(Errno::IO), "{e}");
    }
    device.strikes.store(false, Ordering::Relaxed);
    assert!(std::fs::read(&path).expect("read") == contents[0]);
    let problems = served.problems();
    assert!(
        problems.len() == 1 && problems[0].ends_with("an internal error of Extant: a bug that strikes"),
        "{problems:?}"
    );
}

/// Reads everything that can be read, of at most `left` names.
fn look_around(path: &Path, left: &mut u32) {
    let Ok(entries) = path.read_dir() else { return };
    for entry in entries.map_while(Result::ok) {
        *left = left.saturating_sub(1);
        if *left == 0 {
            return;
        }
        let path = entry.path();
        let Ok(metadata) = path.symlink_metadata() else { continue };
        let mut buf = vec![0; 1 << 16];
        rustix::fs::llistxattr(&path, &mut buf[..]).ok();
        rustix::fs::lgetxattr(&path, "user.name0", &mut buf[..]).ok();
        if metadata.is_dir() {
            look_around(&path, left);
        } else if metadata.is_symlink() {
            path.read_link().ok();
        } else if metadata.is_file()
            && let Ok(file) = File::open(&path)
        {
            file.read_at(&mut buf, metadata.len().saturating_sub(5000)).ok();
            file.take(1 << 20).read_to_end(&mut buf).ok();
        }
    }
}

#[test]
fn damaged_volumes_do_not_end_the_session() {
    if !ready() {
        return;
    }
    let tree = Tree::new(31, &Spec { wide: 300, ..Spec::small() });
    // without checksums, so that damage is not detected when the volume is opened
    let image = Image::mke2fs(&["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"], 16 << 20)
        .with_tree(&tree)
        .indexed()
        .build();
    let ranges = testkit::damage::metadata_ranges(image.path(), 1024);
    let mut mounted = 0;
    for case in cases("mounted damage", 60) {
        let mut rng = case.rng();
        let mut bytes = image.bytes();
        let damager = Damager::within(1024, ranges.iter().cloned());
        (0..rng.magnitude(20)).for_each(|_| drop(damager.any(&mut bytes, &mut rng)));
        // dropping it asserts that the session ended without an error, by the unmount
        let Some(served) = serve_device(Arc::new(MemoryDevice::from_vec(bytes))) else { continue };
        look_around(served.path(), &mut 2000);
        assert!(rustix::fs::statvfs(served.path()).is_ok() || served.path().read_dir().is_err());
        assert!(!served.problems().iter().any(|p| p.contains("internal error of Extant")), "{:?}", served.problems());
        mounted += 1;
    }
    assert!(mounted > 10, "{mounted}");
}
