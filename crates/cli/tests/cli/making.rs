//! `extant mkfs`: its volumes compared with those of mke2fs with the same options, and refusals.

use crate::common::{EXTANT, command, exits, fails, json, prints, text};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;
use testkit::oracle::{e2fsck, kernel_mount};
use testkit::tools::{self, LIMIT, run_with};

const TIME: &str = "1700000000";
const UUID: &str = "11111111-2222-3333-4444-555555555555";

/// The configuration that Debian ships, used instead of the machine's own.
const CONFIG: &str = "[defaults]
base_features = sparse_super,large_file,filetype,resize_inode,dir_index,ext_attr
default_mntopts = acl,user_xattr
enable_periodic_fsck = 0
blocksize = 4096
inode_size = 256
inode_ratio = 16384
[fs_types]
ext3 = { 
features = has_journal
}
ext4 = {
features = has_journal,extent,huge_file,flex_bg,metadata_csum,64bit,dir_nlink,extra_isize
}
small = {
blocksize = 1024
inode_ratio = 4096
}
floppy = {
blocksize = 1024
inode_ratio = 8192
}
big = {
inode_ratio = 32768
}
huge = {
inode_ratio = 65536
}
largefile = {
inode_ratio = 1048576
blocksize = -1
}
";

/// A folder with a file of the same length for each program.
struct Pair {
    folder: TempDir,
}

impl Pair {
    fn new(len: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("mke2fs.conf"), CONFIG).unwrap();
        for name in ["theirs", "ours"] {
            File::create(folder.path().join(name)).unwrap().set_len(len).unwrap();
        }
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// `options` as arguments, with a fixed UUID and hash seed.
    fn options(options: &str) -> Vec<String> {
        let mut words: Vec<String> = options.split_whitespace().map(str::to_owned).collect();
        let seed = format!("hash_seed={UUID}");
        match words.iter().position(|word| word == "-E") {
            Some(at) => words[at + 1] = format!("{},{seed}", words[at + 1]),
            None => words.extend(["-E".to_owned(), seed]),
        }
        words.extend(["-U".to_owned(), UUID.to_owned()]);
        words
    }

    fn make_theirs(&self, options: &str) {
        let mut mke2fs = tools::command("mke2fs");
        mke2fs.env("E2FSPROGS_FAKE_TIME", TIME).env("MKE2FS_CONFIG", self.path("mke2fs.conf"));
        let ran = run_with(mke2fs.arg("-qF").args(Self::options(options)).arg(self.path("theirs")), b"", LIMIT);
        assert_eq!(ran.exit, Some(0), "mke2fs {options}: {}", ran.text());
    }

    fn make_ours(&self, options: &str) {
        let mut words = vec!["mkfs".to_owned(), "-q".to_owned()];
        words.extend(Self::options(options));
        words.push(text(&self.path("ours")).to_owned());
        let ran = run_with(command(&words).env("SOURCE_DATE_EPOCH", TIME), b"", LIMIT);
        let noted = ran.text().ends_with("the volume is too small for a journal and is created without one\n");
        assert!(ran.exit == Some(0) && (noted || ran.text().is_empty()), "extant mkfs {options}: {}", ran.text());
    }
}

/// The output of dumpe2fs without intended differences: the amount written, its checksum, and the time of the
/// multiple-mount-protection block.
fn shown(image: &Path) -> String {
    let ran = run_with(tools::command("dumpe2fs").arg(image), b"", LIMIT);
    let text = String::from_utf8(ran.stdout).unwrap();
    let ours = |line: &&str| !["Lifetime writes:", "Checksum:", "    mmp_"].iter().any(|start| line.starts_with(start));
    text.lines().filter(ours).map(|line| format!("{line}\n")).collect()
}

/// Creates a volume with both programs: the output of dumpe2fs must be equal, neither e2fsck nor Extant's checker may
/// find errors, and the kernel, if it can mount such a volume, must be able to use it.
fn same(len: u64, options: &str, mounts: bool) {
    let pair = Pair::new(len);
    pair.make_theirs(options);
    pair.make_ours(options);
    let ours = pair.path("ours");
    assert_eq!(shown(&ours), shown(&pair.path("theirs")), "{options}");
    verify(&ours, options, mounts);
}

fn verify(image: &Path, options: &str, mounts: bool) {
    let consistent = |when: &str| {
        let verdict = e2fsck(image);
        assert!(verdict.clean, "{options}, {when}: {}", verdict.text);
        let ran = exits(0, &["check", "-fn", text(image)]);
        assert!(ran.text().contains("No errors found"), "{options}, {when}: {}", ran.text());
    };
    consistent("new");
    if !mounts || !tools::is_root() || !tools::has_loop() {
        return;
    }
    let mounted = kernel_mount(image, "").unwrap_or_else(|e| panic!("{options}: {e}"));
    let folder = mounted.path().join("folder");
    std::fs::create_dir(&folder).unwrap();
    for n in 0..50 {
        std::fs::write(folder.join(format!("file {n}")), vec![n; 3000]).unwrap();
    }
    mounted.unmount();
    consistent("written to by the kernel");
}

fn ready() -> bool {
    testkit::need(&["mke2fs", "dumpe2fs", "e2fsck"])
}

const M: u64 = 1 << 20;

#[test]
fn the_three_types_at_their_sizes() {
    if !ready() {
        return;
    }
    for kind in ["ext2", "ext3", "ext4"] {
        for (len, mounts) in [(M, true), (8 * M, true), (40 * M, true), (600 * M, true), (40 << 30, false)] {
            same(len, &format!("-t {kind}"), mounts);
        }
    }
    same(1 << 40, "-t ext4", true);
}

#[test]
fn geometry_as_asked() {
    if !ready() {
        return;
    }
    for (len, options, mounts) in [
        (100 * M, "-t ext4 -b 2048", true),
        (16 * M, "-t ext4 -b 4096", true),
        (128 * M, "-t ext4 -b 1024 -I 512 -i 1024", true),
        (100 * M, "-t ext4 -b 1024 -g 8000", true),
        (57 * M, "-t ext4 -G 4 -b 1024 -N 64", true),
        (100 * M, "-t ext4 -G 1", true),
        (100 * M, "-t ext4 -I 128 -m 12.5", true),
        (100 * M, "-t ext4 -i 65536 -L label -M /mnt/there", true),
        (900 * M, "-t ext4 -b 8192 -I 1024", false),
        (900 * M, "-t ext3 -b 16384", false),
        (100 * M, "-t ext4 -b 65536", false),
        (900 * M, "-t ext4 -T largefile", true),
        (40 * M, "-t ext3 -b 1024 -E stride=16", true),
        (100 * M, "-t ext4 -E stride=16,stripe_width=64,resize=1000000", true),
        (300 * M, "-t ext4 -b 1024 -E packed_meta_blocks=1", true),
        (100 * M, "-t ext2 -J size=8", true),
        (100 * M, "-t ext4 -b 4096 -N 20000 -g 24000", true),
        (200 * M, "-t ext4 -b 8192 -i 4096 -N 12", false),
    ] {
        same(len, options, mounts);
    }
}

#[test]
fn features_as_asked() {
    if !ready() {
        return;
    }
    for (len, options, mounts) in [
        (100 * M, "-t ext4 -O ^flex_bg,^resize_inode", true),
        (100 * M, "-t ext4 -O ^has_journal", true),
        (100 * M, "-t ext4 -O ^metadata_csum", true),
        (100 * M, "-t ext4 -O ^metadata_csum,uninit_bg", true),
        (100 * M, "-t ext4 -O ^extent,^64bit", true),
        (100 * M, "-t ext2 -O metadata_csum", true),
        (100 * M, "-t ext2 -O none", true),
        (600 * M, "-t ext3 -O ^large_file", true),
        (100 * M, "-t ext2 -O ^sparse_super,^resize_inode", true),
        (100 * M, "-t ext4 -O sparse_super2", true),
        (100 * M, "-t ext4 -O sparse_super2 -E num_backup_sb=1", true),
        (300 * M, "-t ext4 -O meta_bg,^resize_inode -b 1024", true),
        (200 * M, "-t ext4 -O bigalloc", true),
        (900 * M, "-t ext4 -O bigalloc,^resize_inode -C 65536", true),
        (100 * M, "-t ext4 -O quota,project -E root_owner=1000:70000", false),
        (100 * M, "-t ext4 -O quota -E quotatype=grpquota", false),
        (900 * M, "-t ext4 -O orphan_file", true),
        (100 * M, "-t ext2 -O mmp", false),
        (100 * M, "-t ext4 -O inline_data,ea_inode,metadata_csum_seed", true),
        (100 * M, "-t ext4 -E encoding=utf8,encoding_flags=strict", false),
        (100 * M, "-t ext4 -O encrypt,verity,stable_inodes,large_dir", false),
        (100 * M, "-t ext4 -O fast_commit", true),
    ] {
        same(len, options, mounts);
    }
}

#[test]
fn what_mke2fs_does_not_make() {
    if !testkit::need(&["e2fsck"]) {
        return;
    }
    // too few blocks for the usual share of inodes: the reserved inodes exist all the same
    for (len, options) in [(64 << 10, "-t ext2"), (100 << 10, "-t ext4 -L tiny")] {
        let pair = Pair::new(len);
        let name = pair.path("ours");
        let words = [&["mkfs", "-q"][..], &options.split(' ').collect::<Vec<_>>(), &[text(&name)]].concat();
        exits(0, &words);
        verify(&name, options, false);
    }
    // inode tables left for the kernel to zero
    let pair = Pair::new(100 * M);
    pair.make_ours("-t ext4 -E lazy_itable_init=1,lazy_journal_init=1,nodiscard");
    verify(&pair.path("ours"), "lazy", true);
}

#[test]
fn equal_options_make_equal_volumes() {
    let (one, other) = (Pair::new(64 * M), Pair::new(64 * M));
    // previous content is irrelevant
    let junk = vec![0xA5; 1 << 20];
    let file = File::options().write(true).open(other.path("ours")).unwrap();
    (0..64).for_each(|n| file.write_all_at(&junk, n * M).unwrap());
    for pair in [&one, &other] {
        pair.make_ours("-t ext4 -O quota,orphan_file");
    }
    assert!(std::fs::read(one.path("ours")).unwrap() == std::fs::read(other.path("ours")).unwrap());
}

/// The offsets at which a superblock copy could be found on a volume of the usual layout.
fn copies(bytes: &[u8]) -> Vec<usize> {
    let magic = |at: &usize| bytes[at + 56..at + 58] == [0x53, 0xEF] && bytes[at + 76] == 1;
    (0..bytes.len() - 1024).step_by(1024).filter(magic).collect()
}

#[test]
fn nothing_of_an_older_volume_is_left() {
    let pair = Pair::new(64 * M);
    pair.make_ours("-t ext2 -b 1024 -O ^sparse_super,^resize_inode");
    assert_eq!(copies(&std::fs::read(pair.path("ours")).unwrap()).len(), 8);
    // on a file, discarding alone would suffice
    pair.make_ours("-F -t ext4 -b 4096 -E nodiscard");
    assert_eq!(copies(&std::fs::read(pair.path("ours")).unwrap()), [1024]);
}

#[test]
fn what_is_there_is_not_overwritten_unasked() {
    let pair = Pair::new(16 * M);
    let ours = pair.path("ours");
    pair.make_ours("-t ext4 -L precious");
    let before = std::fs::read(&ours).unwrap();
    let sentence = fails(1, &["mkfs", "-t", "ext2", text(&ours)]);
    assert_eq!(
        sentence,
        format!("extant: {}: contains an ext4 volume labelled `precious`; use -F to overwrite", text(&ours))
    );
    assert!(std::fs::read(&ours).unwrap() == before);
    exits(0, &["mkfs", "-F", "-t", "ext2", text(&ours)]);
    if tools::is_root() && tools::has_loop() {
        let mounted = kernel_mount(&ours, "").unwrap();
        let sentence = fails(1, &["mkfs", "-F", "-t", "ext2", text(&ours)]);
        assert!(sentence.contains("locked by another process"), "{sentence}");
        mounted.unmount();
    }
}

#[test]
fn what_cannot_be_filled_is_not_made() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (volume, new, typo) = (at("volume"), at("new"), at("typo"));
    prints(&["mkfs", "-q", "-t", "ext4", &volume, "8M"]);
    let before = std::fs::read(&volume).unwrap();
    std::fs::create_dir(at("folder")).unwrap();
    for (words, why) in [
        (&["-d", &typo][..], "typo: No such file"),
        (&["-t", "ext4", "-O", "quota", "-d", &at("folder")], "writing is not supported with quota"),
    ] {
        let sentence = fails(1, &[&["mkfs", "-F"], words, &[&volume]].concat());
        assert!(sentence.contains(why), "{sentence}");
        assert!(std::fs::read(&volume).unwrap() == before, "{why}");
        fails(1, &[&["mkfs"], words, &[&new, "32M"]].concat());
        assert!(!Path::new(&new).exists(), "{why}");
    }
}

#[test]
fn an_image_inside_its_source_is_skipped() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("file"), "content\n").unwrap();
    let image = folder.path().join("own.img");
    File::create(&image).unwrap().set_len(8 << 20).unwrap();
    let ran = exits(0, &["mkfs", "-q", "-d", text(folder.path()), text(&image)]);
    assert!(ran.text().contains("own.img: skipped: it is the image being written"), "{}", ran.text());
    assert_eq!(prints(&["ls", text(&image), "/"]), "file\nlost+found\n");
}

/// A file that is named, unlike one that is found in a folder, must be copied.
#[test]
fn an_image_is_not_put_into_itself() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("own.img");
    prints(&["mkfs", "-q", text(&image), "8M"]);
    let sentence = fails(1, &["put", text(&image), text(&image), "/self"]);
    assert!(sentence.ends_with("own.img: it is the image being written"), "{sentence}");
    let ran = exits(1, &["put", "--json", text(&image), text(&image), "/"]);
    let put: serde_json::Value = serde_json::from_slice(&ran.stdout).unwrap();
    let listed = serde_json::json!([{ "path": text(&image), "reason": "it is the image being written" }]);
    assert!(put["exit"] == 1 && put["files"] == 0 && put["errors"] == listed, "{put}");
    let ran = exits(0, &["put", "-r", text(&image), text(folder.path()), "/folder"]);
    assert!(ran.text().contains("own.img: skipped: it is the image being written"), "{}", ran.text());
    assert_eq!(prints(&["ls", text(&image), "/"]), "folder\nlost+found\n");
}

#[test]
fn the_size_makes_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new.img");
    let name = text(&path);
    let report = prints(&["mkfs", "-t", "ext4", "-U", UUID, name, "8M"]);
    assert!(report.contains("is now ext4, 8 MiB in 8192 blocks of 1 KiB") && report.contains(UUID), "{report}");
    assert_eq!(path.metadata().unwrap().len(), 8 * M);
    // a number alone is in KiB, or in blocks
    prints(&["mkfs", "-F", "-t", "ext2", name, "10240"]);
    assert_eq!(path.metadata().unwrap().len(), 10 * M);
    let made = json(&["mkfs", "-F", "--json", "-t", "ext2", "-b", "4096", name, "1024"]);
    assert_eq!((&made["blocks"], &made["made"]), (&1024.into(), &true.into()));
    assert_eq!(path.metadata().unwrap().len(), 10 * M);
    assert!(e2fsck(&path).clean);
}

#[test]
fn a_dry_run_writes_nothing() {
    let pair = Pair::new(8 * M);
    let ours = pair.path("ours");
    let report = prints(&["mkfs", "-n", "-t", "ext4", text(&ours)]);
    assert!(report.contains("would be ext4"), "{report}");
    assert!(std::fs::read(&ours).unwrap().iter().all(|byte| *byte == 0));
    let missing = pair.path("missing");
    let planned = json(&["mkfs", "-n", "--json", "-t", "ext4", text(&missing), "1T"]);
    assert_eq!((&planned["blocks"], &planned["made"]), (&(1u64 << 28).into(), &false.into()));
    assert_eq!(planned["backup_superblocks"][0], 32768);
    assert!(!missing.exists());
}

#[test]
fn refusals_are_one_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("volume");
    let name = text(&path);
    for (options, size, why) in [
        ("-t ext5", "8M", "unknown type; use extant, ext2, ext3, ext4, rext3 or spacemap"),
        ("-t ext4 -O nonsense", "8M", "unknown feature `nonsense`"),
        ("-t ext4 -O dirdata", "8M", "cannot be created with the feature dirdata"),
        ("-t ext4 -O bigalloc,^extent,^64bit", "8M", "bigalloc needs the feature extent"),
        ("-t ext4 -O resize_inode,meta_bg", "8M", "exclude each other"),
        ("-t ext4 -b 3000", "8M", "a power of two from 1024 to 65536"),
        ("-t ext4 -I 100", "8M", "a power of two from 128"),
        ("-t ext4 -I 128 -O inline_data", "8M", "too small for the feature inline_data"),
        ("-t ext4 -m 60", "8M", "use 0 to 50"),
        ("-t ext4 -N 5000000", "8M", "do not fit"),
        ("-t ext4 -G 3", "8M", "use a power of two (-G)"),
        ("-t ext4 -g 100", "8M", "in steps of 8"),
        ("-t ext4 -J size=7", "8M", "more than half"),
        ("-t ext4 -C 4096", "8M", "-C needs the feature bigalloc"),
        ("-t ext4 -E stride=x", "8M", "not a number"),
        ("-t ext4 -E foo", "8M", "unknown extended option 'foo'"),
        ("-t ext4 -U nonsense", "8M", "invalid UUID 'nonsense'"),
        ("-t extant -j", "32M", "-j and -J"),
        ("-t extant -J size=4", "32M", "-j and -J"),
        ("-t extant -O has_journal", "32M", "feature has_journal is not available with -t extant"),
        ("-t extant -O ^filetype", "32M", "feature filetype cannot be omitted with -t extant"),
        ("-t ext4", "0", "the size is 0: specify the size of the volume"),
        ("-t extant", "0", "the size is 0: specify the size of the volume"),
        ("-t ext4 -L a-label-of-17-byte", "8M", "the maximum is 16 bytes"),
        ("-t ext2", "8", "no space for a volume"),
        ("-t ext2", "nonsense", "invalid size 'nonsense'"),
        ("-t ext4", "2P", "more than the 8388608 that a volume may have"),
        ("-t ext4 -b 1024", "10P", "more than the 8388608 that a volume may have"),
        ("-t ext4", "100000T", "more than the 8388608 that a volume may have"),
        ("-t extant", "2P", "to 64 TiB"),
        ("-t ext2 -b 1024", "5T", "more than 32 bits can count"),
    ] {
        let words = [&["mkfs"][..], &options.split(' ').collect::<Vec<_>>(), &[name, size]].concat();
        // unknown words are a usage error
        let nothing = [
            "unknown type",
            "unknown feature",
            "cannot be created with",
            "not a number",
            "unknown extended",
            "invalid UUID",
            "invalid size",
            "-j and -J",
            "a power of two from",
            "use 0 to 50",
            "the maximum is",
        ];
        let sentence = fails(if nothing.iter().any(|words| why.contains(words)) { 2 } else { 1 }, &words);
        assert!(sentence.contains(why), "{options}: {sentence}");
        assert!(!path.exists(), "{options}");
    }
    let sentence = fails(1, &["mkfs", "-t", "ext4", name]);
    assert!(sentence.ends_with("no such file: add a SIZE to create it, for example 1G"), "{sentence}");
    assert_eq!(fails(1, &["mkfs", "-n", "-t", "ext4", name]), sentence);
    // an error for lack of size names the minimum, below which mkfs fails; other errors do not
    let small = [("-t ext2", "8"), ("-t ext4 -J size=7", "8M"), ("-t ext4 -N 60000", "8M")];
    for (options, size) in small {
        let line = |size: &str| {
            let words = options.split(' ').chain([name, size]);
            ["mkfs", "-n"].into_iter().chain(words).map(str::to_owned).collect::<Vec<_>>()
        };
        let sentence = fails(1, &line(size));
        let named = "; the minimum for these options is ";
        let least = sentence.rsplit_once(named).and_then(|(_, least)| least.strip_suffix(" KiB"));
        let least: u64 = least.and_then(|least| least.parse().ok()).unwrap_or_else(|| panic!("{sentence}"));
        exits(0, &line(&least.to_string()));
        fails(1, &line(&(least - 1).to_string()));
    }
    let sentence = fails(1, &["mkfs", "-n", "-t", "extant", name, "3M"]);
    assert!(sentence.ends_with("a native volume must be 16 MiB to 64 TiB"), "{sentence}");
    let sentence = fails(2, &["mkfs", "-n", "-t", "ext4", "-I", "100", name, "8M"]);
    assert!(!sentence.contains("the minimum"), "the size is not the cause: {sentence}");
    let note = exits(0, &["mkfs", "-q", "-t", "ext4", name, "1M"]);
    assert!(note.text().contains("too small for a journal"), "{}", note.text());
}

#[test]
fn under_the_names_of_mkfs() {
    let folder = tempfile::tempdir().unwrap();
    for (name, format) in
        [("mkfs.extant", "extant"), ("mkfs.ext2", "ext2"), ("mkfs.ext3", "ext3"), ("mkfs.ext4", "ext4")]
    {
        let program = folder.path().join(name);
        std::os::unix::fs::symlink(EXTANT, &program).unwrap();
        let image = folder.path().join(format!("{name}.img"));
        let ran = run_with(Command::new(&program).args([text(&image), "16M"]), b"", LIMIT);
        assert_eq!(ran.exit, Some(0), "{}", ran.text());
        assert!(ran.text().contains(&format!("is now {format}, 16 MiB")), "{}", ran.text());
    }
    // options of mke2fs that are not supported are named, and nothing is made
    let program = folder.path().join("mkfs.ext4");
    let image = folder.path().join("refused.img");
    let options =
        ["-c", "-cc", "-l list", "-D", "-o hurd", "-r 0", "-S", "-z undo", "-K", "-R stride=4", "-s 1", "-Fc"];
    for option in options {
        let words = option.split(' ').chain([text(&image), "16M"]);
        let ran = run_with(Command::new(&program).args(words), b"", LIMIT);
        let letter = if option == "-Fc" { "-c" } else { &option[..2] };
        let said = ran.text();
        assert!(said.starts_with(&format!("extant: {letter}: not supported; ")), "{option}: {said}");
        assert!(ran.exit == Some(2) && said.lines().count() == 1 && !image.exists(), "{option}: {said}");
    }
    let ran = run_with(&mut Command::new(&program), b"", LIMIT);
    assert!(ran.exit == Some(2) && ran.text().contains("Usage: mkfs.ext4 "), "{}", ran.text());
    let image = folder.path().join("plain.img");
    let report = prints(&["mkfs", text(&image), "16M"]);
    assert!(report.contains("is now ext4, 16 MiB"), "{report}");
}

#[test]
fn what_fills_a_volume_is_looked_at_before_anything_is_overwritten() {
    if !ready() || !testkit::need(&["tar", "gzip"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| text(&folder.path().join(name)).to_owned();
    std::fs::create_dir(at("root")).unwrap();
    std::fs::write(at("root/file"), "content").unwrap();
    let tar = |args: &[&str]| assert_eq!(tools::run("tar", args).exit, Some(0));
    tar(&["-C", &at("root"), "-cf", &at("root.tar"), "."]);
    tar(&["-C", &at("root"), "-czf", &at("root.tgz"), "."]);
    tar(&["-cf", &at("empty.tar"), "-T", "/dev/null"]);
    prints(&["mkfs", "-t", "ext4", &at("old.img"), "16M"]);
    let (archive, old) = (std::fs::read(at("root.tar")).unwrap(), std::fs::read(at("old.img")).unwrap());
    // exchanged operands, the same file twice, a file in use by another process, not an archive
    assert!(fails(1, &["mkfs", "-F", "-d", &at("old.img"), &at("root.tar"), "16M"]).contains("not a tar archive"));
    assert!(fails(1, &["mkfs", "-F", "-d", &at("root.tar"), &at("root.tar"), "16M"]).contains("overwritten"));
    assert!(fails(1, &["mkfs", &at("root.tar"), "16M"]).contains("a tar archive"));
    assert!(fails(1, &["mkfs", &at("root.tgz"), "16M"]).contains("gzip"));
    assert!(fails(1, &["mkfs", "-F", "-d", &at("root.tgz"), &at("old.img")]).contains("zcat"));
    assert!(archive == std::fs::read(at("root.tar")).unwrap() && old == std::fs::read(at("old.img")).unwrap());
    for (source, there) in [("empty.tar", false), ("root.tar", true)] {
        prints(&["mkfs", "-F", "-d", &at(source), &at("old.img")]);
        assert_eq!(prints(&["ls", &at("old.img"), "/"]).contains("file"), there);
    }
    assert!(fails(1, &["mkfs", "-n", "-t", "ext4", &at("no.img"), "100000T"]).contains("no.img"));
}

#[test]
fn a_dry_run_says_what_prevents_writing_to_a_device() {
    let pair = Pair::new(16 * M);
    let ours = pair.path("ours");
    pair.make_ours("-t ext4 -L precious");
    let dry = |more: &[&str]| exits(0, &[&["mkfs", "-n", "-t", "ext2"], more, &[text(&ours)]].concat()).text();
    let said = dry(&[]);
    assert!(said.contains("labelled `precious`; use -F to overwrite") && said.contains("would be"), "{said}");
    assert!(!dry(&["-F"]).contains("precious"));
    if tools::is_root() && tools::has_loop() {
        let mounted = kernel_mount(&ours, "").unwrap();
        let said = dry(&["-F"]);
        assert!(said.contains("it is mounted at"), "{said}");
        mounted.unmount();
    }
}

/// A volume that a user creates is writable by that user; a volume made for others belongs to root.
#[test]
fn the_root_directory_belongs_to_who_makes_the_volume() {
    if !tools::is_root() || !testkit::need(&["setpriv"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(folder.path(), Some(4321), Some(4322)).unwrap();
    let tree = folder.path().join("tree");
    std::fs::create_dir(&tree).unwrap();
    let image = folder.path().join("volume");
    let owner = |kind: &str, more: &[&str], epoch: bool| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=4321", "--regid=4322", "--clear-groups", EXTANT, "mkfs", "-q", "-F", "-t", kind]);
        command.args(more).args([text(&image), "32M"]).env_remove("SOURCE_DATE_EPOCH");
        if epoch {
            command.env("SOURCE_DATE_EPOCH", TIME);
        }
        let ran = run_with(&mut command, b"", LIMIT);
        assert_eq!(ran.exit, Some(0), "{}", ran.text());
        let metadata = json(&["stat", "--json", text(&image), "/"]);
        std::fs::remove_file(&image).unwrap();
        let number = |key: &str| metadata["files"][0][key].as_u64().unwrap_or_else(|| panic!("{metadata}"));
        (number("uid"), number("gid"))
    };
    for kind in ["ext2", "ext4", "rext3", "extant"] {
        assert_eq!(owner(kind, &[], false), (4321, 4322), "{kind}");
    }
    assert_eq!(owner("ext4", &["-E", "root_owner=5:6"], false), (5, 6));
    assert_eq!(owner("ext4", &["-E", "root_owner"], true), (4321, 4322));
    assert_eq!(owner("ext4", &[], true), (0, 0), "equal options make equal volumes");
    assert_eq!(owner("ext4", &["-d", text(&tree)], false), (0, 0), "as the folder");
}
