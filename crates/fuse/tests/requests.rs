//! Single requests at their limits: large directories, reads at and beyond the end, holes, names, attributes, flags,
//! and many readers at once.

mod common;

use common::{ready, serve, serve_writable};
use rustix::fs::{Dir, RawDir, SeekFrom, XattrFlags, seek};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::mem::MaybeUninit;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use testkit::{Image, Rng, tools};

/// A folder with the files from which a volume is made.
fn folder(files: &[(&str, &[u8])]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (name, content) in files {
        std::fs::write(folder.path().join(name), content).expect("writing a file");
    }
    folder
}

#[test]
fn a_directory_of_50_000_names_is_read_while_seeking() {
    const NAMES: usize = 50_000;
    if !ready() || !testkit::need(&["mount", "umount"]) || !tools::has_loop() {
        return;
    }
    let image = Image::mke2fs(&["-t", "ext4", "-b", "1024", "-N", "60000"], 64 << 20).build();
    let writing = testkit::oracle::kernel_mount(image.path(), "").expect("mount");
    for n in 0..NAMES {
        File::create(writing.path().join(format!("name-{n:05}-{}", "x".repeat(n % 30)))).expect("create");
    }
    writing.unmount();
    let served = serve(image.path());
    let mut dir = Dir::new(File::open(served.path()).expect("open")).expect("dir");

    let mut after = Vec::new(); // for each entry, in order: the cookie after it, and its name
    while let Some(entry) = dir.read() {
        let entry = entry.expect("entry");
        after.push((entry.offset(), entry.file_name().to_bytes().to_vec()));
    }
    let names: BTreeSet<_> = after.iter().map(|(_, name)| name.clone()).collect();
    assert_eq!((after.len(), names.len()), (NAMES + 3, NAMES + 3)); // with ".", ".." and lost+found

    let mut rng = Rng::new(5);
    for _ in 0..300 {
        let place = rng.index(after.len() - 1);
        dir.seek(after[place].0).expect("seek");
        for (_, name) in after[place + 1..].iter().take(40) {
            assert_eq!(dir.read().expect("more").expect("entry").file_name().to_bytes(), name);
        }
    }
    dir.seek(after.last().expect("last").0).expect("seek");
    assert!(dir.read().is_none());
    dir.rewind();
    assert_eq!(dir.read().expect("first").expect("entry").file_name().to_bytes(), after[0].1);
    // a second reader is served from the kernel's cache alone, with the same result
    let again = served.path().read_dir().expect("listing").count();
    assert_eq!(again, NAMES + 1);
}

/// The names in the next part of a listing: the result of one request of the program.
fn part(dir: &File) -> BTreeSet<Vec<u8>> {
    let mut buf = vec![MaybeUninit::uninit(); 32 << 10];
    let mut list = RawDir::new(dir, &mut buf);
    let mut names = BTreeSet::new();
    while let Some(entry) = list.next() {
        names.insert(entry.expect("entry").file_name().to_bytes().to_vec());
        if list.is_buffer_empty() {
            break;
        }
    }
    names
}

/// No process can change a directory while a part of its listing is being read: parts are small while a process does.
#[test]
fn a_directory_that_changes_is_listed_in_small_parts() {
    const NAMES: usize = 3000;
    const FEW: usize = 32;
    if !ready() {
        return;
    }
    for options in [["-t", "ext4"], ["-t", "ext2"]] {
        let image = Image::mke2fs(&options, 32 << 20).build();
        let served = serve_writable(image.path(), "");
        let name = |n: usize| served.path().join(format!("name-{n:05}"));
        (0..NAMES).for_each(|n| drop(File::create(name(n)).expect("create")));
        let dir = File::open(served.path()).expect("open");
        let mut seen = part(&dir);
        assert!((1..=FEW).contains(&seen.len()), "{options:?}: {} after {NAMES} were made", seen.len());
        let undisturbed = part(&dir);
        assert!(undisturbed.len() > FEW, "{options:?}: {}", undisturbed.len());
        seen.extend(undisturbed);
        let mut removed = BTreeSet::new();
        for n in (0..NAMES).step_by(2) {
            std::fs::remove_file(name(n)).expect("remove");
            removed.insert(format!("name-{n:05}").into_bytes());
            let next = part(&dir);
            assert!(next.len() <= FEW, "{options:?}: {} beside a process that removes", next.len());
            for name in next {
                assert!(!removed.contains(&name), "{options:?}: a name that is gone");
                assert!(seen.insert(name), "{options:?}: a name twice");
            }
        }
        loop {
            let next = part(&dir);
            if next.is_empty() {
                break;
            }
            for name in next {
                assert!(seen.insert(name), "{options:?}: a name twice");
            }
        }
        for n in (1..NAMES).step_by(2) {
            assert!(seen.contains(format!("name-{n:05}").as_bytes()), "{options:?}: name {n} is missing");
        }
    }
}

#[test]
fn reads_end_where_the_file_ends() {
    if !ready() {
        return;
    }
    let content = Rng::new(6).bytes(3 << 20);
    let short = &content[..100_001];
    let source = folder(&[("long", &content), ("short", short), ("empty", b"")]);
    let image = Image::mke2fs(&["-t", "ext4", "-b", "1024"], 16 << 20).with_folder(source.path()).build();
    let served = serve(image.path());
    let open = |name: &str| File::open(served.path().join(name)).expect("open");

    let mut buf = vec![0xAA; 8192];
    let file = open("short");
    assert_eq!(file.read_at(&mut buf, 100_000).expect("read"), 1);
    assert_eq!(buf[0], short[100_000]);
    for offset in [100_001, 100_002, 1 << 40, i64::MAX as u64 - 8192] {
        assert_eq!(file.read_at(&mut buf, offset).expect("read"), 0, "at {offset}");
    }
    assert_eq!(open("empty").read_at(&mut buf, 0).expect("read"), 0);
    let mut whole = Vec::new();
    open("long").read_to_end(&mut whole).expect("read");
    assert!(whole == content);
    // bypassing the page cache, at offsets that are not block boundaries
    let direct: OpenOptions = {
        use std::os::unix::fs::OpenOptionsExt;
        let mut options = File::options();
        options.read(true).custom_flags(rustix::fs::OFlags::DIRECT.bits() as i32);
        options
    };
    let file = direct.open(served.path().join("long")).expect("open");
    let mut buf = vec![0; 2_000_000];
    assert_eq!(file.read_at(&mut buf, 1023).expect("read"), buf.len());
    assert!(buf[..] == content[1023..1023 + buf.len()]);
}

#[test]
fn holes_are_found() {
    if !ready() {
        return;
    }
    let source = tempfile::tempdir().expect("a temporary folder");
    let file = File::create(source.path().join("sparse")).expect("create");
    file.write_all_at(&[1; 4096], 1 << 20).expect("write");
    file.set_len(3 << 20).expect("length");
    drop(file);
    let image = Image::mke2fs(&["-t", "ext4", "-b", "4096"], 16 << 20).with_folder(source.path()).build();
    let served = serve(image.path());
    let file = File::open(served.path().join("sparse")).expect("open");
    assert_eq!(seek(&file, SeekFrom::Data(0)), Ok(1 << 20));
    assert_eq!(seek(&file, SeekFrom::Hole(0)), Ok(0));
    assert_eq!(seek(&file, SeekFrom::Hole(1 << 20)), Ok((1 << 20) + 4096));
    assert_eq!(seek(&file, SeekFrom::Data((1 << 20) + 4096)), Err(Errno::NXIO));
    assert_eq!(seek(&file, SeekFrom::Hole(3 << 20)), Err(Errno::NXIO));
}

#[test]
fn many_readers_see_the_same_bytes() {
    if !ready() {
        return;
    }
    let mut rng = Rng::new(7);
    let mut content = || {
        let length = rng.magnitude(1 << 20) as usize + 10_000;
        rng.bytes(length)
    };
    let contents: BTreeMap<_, _> = (0..20).map(|n| (format!("file{n}"), content())).collect();
    let files: Vec<_> = contents.iter().map(|(name, bytes)| (name.as_str(), &bytes[..])).collect();
    let source = folder(&files);
    let image = Image::mke2fs(&["-t", "ext4", "-b", "1024"], 48 << 20).with_folder(source.path()).build();
    let served = Arc::new(serve(image.path()));
    std::thread::scope(|scope| {
        for seed in 0..12 {
            let (served, contents) = (&served, &contents);
            scope.spawn(move || {
                let mut rng = Rng::new(seed);
                let names: Vec<_> = contents.keys().collect();
                for _ in 0..150 {
                    let name = *rng.pick(&names);
                    let content = &contents[name];
                    let file = File::open(served.path().join(name)).expect("open");
                    let at = rng.index(content.len());
                    let mut buf = vec![0; rng.magnitude(300_000) as usize];
                    let read = file.read_at(&mut buf, at as u64).expect("read");
                    assert!(buf[..read] == content[at..at + read] && (read == buf.len() || at + read == content.len()));
                    assert_eq!(served.path().read_dir().expect("listing").count(), contents.len() + 1);
                }
            });
        }
    });
    assert_eq!(served.problems(), Vec::<String>::new());
}

#[test]
fn names_that_are_not_there_and_names_that_cannot_be() {
    if !ready() {
        return;
    }
    let source = folder(&[("there", b"x")]);
    let image = Image::mke2fs(&["-t", "ext4"], 16 << 20).with_folder(source.path()).build();
    let served = serve(image.path());
    let look = |name: &str| served.path().join(name).symlink_metadata().expect_err(name).kind();
    for _ in 0..2 {
        assert_eq!(look("missing"), ErrorKind::NotFound);
        assert_eq!(look(&"n".repeat(255)), ErrorKind::NotFound);
    }
    // the kernel passes longer names on, and refuses only those longer than a page
    assert_eq!(look(&"n".repeat(256)), ErrorKind::InvalidFilename);
    assert_eq!(look("there/below"), ErrorKind::NotADirectory);
    let write = File::create(served.path().join("new")).expect_err("read-only").kind();
    assert_eq!(write, ErrorKind::ReadOnlyFilesystem);
    let write = OpenOptions::new().write(true).open(served.path().join("there")).expect_err("read-only").kind();
    assert_eq!(write, ErrorKind::ReadOnlyFilesystem);
    assert_eq!(served.problems(), Vec::<String>::new());
}

fn value(path: &Path, name: &str, size: usize) -> Result<Vec<u8>, Errno> {
    let mut buf = vec![0; size];
    rustix::fs::getxattr(path, name, &mut buf[..]).map(|length| buf[..length].to_vec())
}

#[test]
fn attributes_and_flags() {
    if !ready() || !testkit::need(&["lsattr"]) {
        return;
    }
    let source = folder(&[("coloured", b"x"), ("bare", b"x")]);
    let path = source.path().join("coloured");
    rustix::fs::setxattr(path, "user.colour", b"green", XattrFlags::CREATE).expect("setxattr");
    let image = Image::mke2fs(&["-t", "ext4"], 16 << 20)
        .with_folder(source.path())
        .debugfs(&["ea_set coloured trusted.secret 42", "set_inode_field bare flags 0x80050"])
        .build();
    let served = serve(image.path());
    let (coloured, bare) = (served.path().join("coloured"), served.path().join("bare"));
    assert_eq!(value(&coloured, "user.colour", 100), Ok(b"green".to_vec()));
    assert_eq!(value(&coloured, "user.colour", 4), Err(Errno::RANGE));
    assert_eq!(rustix::fs::getxattr_query(&coloured, "user.colour"), Ok(5));
    assert_eq!(value(&coloured, "user.size", 100), Err(Errno::NODATA));
    assert_eq!(value(&bare, "user.colour", 100), Err(Errno::NODATA));
    let mut names = [0; 200];
    let length = rustix::fs::listxattr(&coloured, &mut names[..]).expect("listxattr");
    let root = rustix::process::geteuid().is_root();
    let expected: &[u8] = if root { b"user.colour\0trusted.secret\0" } else { b"user.colour\0" };
    let sorted = |list: &[u8]| list.split(|&b| b == 0).map(<[u8]>::to_vec).collect::<BTreeSet<_>>();
    assert_eq!(sorted(&names[..length]), sorted(expected));
    // not stored on the volume, so not in the list either
    assert_eq!(value(served.path(), "extant.daemon", 20), Ok(std::process::id().to_string().into_bytes()));
    assert_eq!(rustix::fs::listxattr(served.path(), &mut names[..]), Ok(0));

    let said = tools::must("lsattr", &[&bare]).text();
    let flags = said.split(' ').next().expect("flags");
    assert!(flags.contains('i') && flags.contains('d') && flags.contains('e') && !flags.contains('a'), "{said}");
}
