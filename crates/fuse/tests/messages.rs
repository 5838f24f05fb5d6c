//! The kernel's messages for each system call: the table of docs/design/fuse.md, and that an idle mount causes none.

mod common;

use common::{TRANSPORTS, ready, serve_writable};
use extant_fuse::Statistics;
use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::Duration;
use testkit::{Image, tools};

/// The messages so far by kind, without those that have no answer and come at any time, and those caused by this query.
fn messages(dir: &Path) -> BTreeMap<String, u64> {
    let all = Statistics::of_mount(dir).expect("statistics").messages.into_iter();
    all.filter(|(kind, _)| !matches!(&kind[..], "FORGET" | "BATCH_FORGET" | "RELEASE" | "RELEASEDIR" | "INTERRUPT"))
        .collect()
}

/// The kinds of messages that `call` causes, with their number where it is more than one.
fn caused(dir: &Path, call: impl FnOnce()) -> String {
    let before = messages(dir);
    call();
    let mut after = messages(dir);
    // the query itself, once for its length and once for its value
    if let Some(asked) = after.get_mut("GETXATTR") {
        *asked -= 1;
    }
    let more = after.into_iter().map(|(kind, count)| (count - before.get(&kind).unwrap_or(&0), kind));
    let more = more.filter(|(count, _)| *count > 0);
    more.map(|(count, kind)| if count > 1 { format!("{count} {kind}") } else { kind }).collect::<Vec<_>>().join(" ")
}

#[test]
fn each_call_causes_as_few_messages_as_the_table_says() {
    if !ready() || !tools::is_root() {
        return;
    }
    for transport in TRANSPORTS {
        let content = tempfile::tempdir().expect("a temporary folder");
        fs::create_dir(content.path().join("dir")).expect("a folder");
        for name in ["old", "dir/old"] {
            fs::write(content.path().join(name), b"content").expect("a file");
        }
        let image = Image::mke2fs(&["-t", "ext4"], 16 << 20).with_folder(content.path()).build();
        let served = serve_writable(image.path(), transport);
        let dir = served.path();
        let at = |name: &str| dir.join(name);
        let mut table = Vec::new();
        let mut row = |call: &str, messages: String| {
            table.push(format!("{call}: {}", if messages.is_empty() { "-" } else { &messages }))
        };
        let stat = |name: &str| _ = rustix::fs::stat(at(name));
        // including the birth time, which Rust's standard library requests
        let statx = |name: &str| _ = fs::metadata(at(name));
        let read = |name: &str| fs::File::open(at(name)).and_then(|mut file| file.read(&mut [0; 64])).expect("read");
        row("stat cold", caused(dir, || stat("dir/old")));
        row("stat warm", caused(dir, || stat("dir/old")));
        row("stat of a name that is not there, cold", caused(dir, || stat("none")));
        row("stat of a name that is not there, warm", caused(dir, || stat("none")));
        row("open, read, close, cold", caused(dir, || _ = read("old")));
        row("open, read, close, warm", caused(dir, || _ = read("old")));
        row("statx with the time of creation, cold", caused(dir, || statx("old")));
        row("statx with the time of creation, warm", caused(dir, || statx("old")));
        row("readdir cold", caused(dir, || drop(fs::read_dir(at("dir")).map(Iterator::count))));
        row("readdir warm", caused(dir, || drop(fs::read_dir(at("dir")).map(Iterator::count))));
        let mut file = None;
        row("open(O_CREAT) of a new file", caused(dir, || file = fs::File::create_new(at("new")).ok()));
        let mut file = file.expect("a new file");
        row("its first write", caused(dir, || file.write_all(b"a").expect("write")));
        row("its second write", caused(dir, || file.write_all(b"b").expect("write")));
        row("fsync", caused(dir, || file.sync_all().expect("fsync")));
        let back = |mut file: &fs::File| {
            file.seek(SeekFrom::Start(0)).expect("seek");
            file.read_exact(&mut [0; 2]).expect("read");
        };
        row(
            "open to read and write",
            caused(dir, || drop(fs::OpenOptions::new().read(true).write(true).open(at("new")))),
        );
        drop(file);
        let file = fs::File::open(at("new")).expect("open");
        row("read of what was written, cold", caused(dir, || back(&file)));
        row("read of what was written, warm", caused(dir, || back(&file)));
        drop(file);
        row("mkdir", caused(dir, || fs::create_dir(at("folder")).expect("mkdir")));
        row("rename", caused(dir, || fs::rename(at("new"), at("folder/moved")).expect("rename")));
        row("chmod", caused(dir, || rustix::fs::chmod(at("old"), 0o600.into()).expect("chmod")));
        row("stat after it", caused(dir, || stat("old")));
        row("unlink", caused(dir, || fs::remove_file(at("folder/moved")).expect("unlink")));
        row("rmdir", caused(dir, || fs::remove_dir(at("folder")).expect("rmdir")));
        row("statfs", caused(dir, || _ = rustix::fs::statfs(dir)));
        assert_eq!(table.join("\n"), TABLE.trim(), "{transport}");
    }
}

const TABLE: &str = "
stat cold: 2 LOOKUP
stat warm: -
stat of a name that is not there, cold: LOOKUP
stat of a name that is not there, warm: -
open, read, close, cold: LOOKUP OPEN READ
open, read, close, warm: OPEN
statx with the time of creation, cold: STATX
statx with the time of creation, warm: -
readdir cold: OPENDIR READDIR READDIRPLUS
readdir warm: GETATTR
open(O_CREAT) of a new file: CREATE LOOKUP
its first write: GETXATTR WRITE
its second write: WRITE
fsync: FSYNC
open to read and write: OPEN
read of what was written, cold: READ
read of what was written, warm: -
mkdir: LOOKUP MKDIR
rename: LOOKUP RENAME
chmod: SETATTR
stat after it: -
unlink: UNLINK
rmdir: RMDIR
statfs: STATFS
";

/// The processor time of this process's threads so far, in ticks.
fn used() -> u64 {
    let stat = fs::read_to_string("/proc/self/stat").expect("stat");
    let fields = stat.rsplit_once(')').expect("a name").1.split_whitespace().skip(11).take(2);
    fields.map(|ticks| ticks.parse::<u64>().expect("a number")).sum()
}

#[test]
fn an_idle_mount_rests() {
    if !ready() || !tools::is_root() {
        return;
    }
    let images = TRANSPORTS.map(|transport| (Image::mke2fs(&["-t", "ext4"], 16 << 20).build(), transport));
    let both = images.each_ref().map(|(image, transport)| serve_writable(image.path(), transport));
    let polled = || both.each_ref().map(|served| Statistics::of_mount(served.path()).expect("statistics").polled);
    for served in &both {
        // dense requests
        (0..20_000).for_each(|n| drop(fs::symlink_metadata(served.path().join(format!("none-{n}")))));
    }
    std::thread::sleep(Duration::from_millis(100));
    let before = (polled(), used());
    std::thread::sleep(Duration::from_secs(2));
    let after = (polled(), used());
    // the query is a request, after which a thread may stay awake
    let more = after.0.iter().zip(&before.0).map(|(after, before)| *after - *before).max();
    assert!(more < Some(Duration::from_millis(1)), "{more:?}");
    assert!(after.1 - before.1 <= 5, "{} ticks in two seconds", after.1 - before.1);
}
