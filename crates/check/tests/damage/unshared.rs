//! Volumes whose files share blocks on purpose (`shared_blocks`): clean as they are, and unshared on request.

use crate::repaired::{contents, options};
use blockdev::{BlockDevice, MemoryDevice};
use damage::{Kind, damage};
use extant_check::report::{Report, exit};
use extant_check::{Options, Refusal, Repair, check, repair};
use std::sync::Arc;
use testkit::oracle::e2fsck;
use testkit::tools::run;
use testkit::{Image, need};

const NAMES: [&str; 4] = ["one", "two", "three", "four"];

/// A volume of which two files share their first block.
fn volume(args: &[&str], size: u64) -> Image {
    let folder = tempfile::tempdir().expect("a folder");
    for name in NAMES {
        std::fs::write(folder.path().join(name), vec![7; 60_000]).expect("a file");
    }
    let image = Image::mke2fs(args, size).with_folder(folder.path()).build();
    let device = MemoryDevice::from_vec(image.bytes());
    damage(&device, Kind::Problem(0x01_3001), 3).expect("two files");
    image.set_bytes(&contents(&device));
    image.debugfs(&["feature shared_blocks"]);
    // the block that was freed
    run("e2fsck", &["-fy".as_ref(), image.path().as_os_str()]);
    let verdict = e2fsck(image.path());
    assert!(verdict.clean, "{}", verdict.text);
    image
}

fn unshare(bytes: &mut Vec<u8>) -> Result<Report, Refusal> {
    let device = Arc::new(MemoryDevice::from_vec(std::mem::take(bytes)));
    let as_device: Arc<dyn BlockDevice> = Arc::<MemoryDevice>::clone(&device);
    let options = Options { unshare_blocks: true, ..options(Repair::All) };
    let outcome = repair("volume", &as_device, &options, &(), None);
    *bytes = contents(&*device);
    outcome
}

fn look(bytes: &[u8], options: &Options) -> Report {
    check("volume", &MemoryDevice::from_vec(bytes.to_vec()), options, &()).expect("a volume")
}

#[test]
fn blocks_shared_on_purpose_are_valid_and_are_separated_when_asked() {
    if !need(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    for args in
        [["-t", "ext4", "-b", "1024", "-O", "^has_journal"], ["-t", "ext2", "-b", "4096", "-O", "^resize_inode"]]
    {
        let image = volume(&args, 8 << 20);
        let shared = image.bytes();
        assert!(look(&shared, &options(Repair::No)).problems.is_empty(), "{args:?}: clean as it is");
        let wanted = Options { unshare_blocks: true, ..options(Repair::No) };
        assert!(!look(&shared, &wanted).clean, "{args:?}: what is asked to be separated is found");
        let mut bytes = shared.clone();
        let report = unshare(&mut bytes).expect("a volume with space");
        assert_eq!(report.exit, exit::REPAIRED, "{args:?}: {:?}", report.problems);
        let separated = Image::from_bytes(&bytes);
        let said = separated.debugfs(&["features"]).text();
        assert!(!said.contains("shared_blocks"), "{args:?}: {said}");
        let verdict = e2fsck(separated.path());
        assert!(verdict.clean, "{args:?}: {}", verdict.text);
        assert!(look(&bytes, &options(Repair::No)).problems.is_empty(), "{args:?}");
        let file = |image: &Image, name: &str| {
            let to = image.beside("content");
            image.debugfs(&[&format!("dump /{name} {}", to.display())]);
            std::fs::read(&to).expect("a file")
        };
        for name in NAMES {
            assert!(file(&separated, name) == file(&image, name), "{args:?}: {name} is not what it was");
        }
    }
}

#[test]
fn without_space_nothing_is_lost() {
    if !need(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let image = volume(&["-t", "ext2", "-b", "1024", "-N", "16", "-m", "0"], 1 << 20);
    let rest = image.beside("rest");
    std::fs::write(&rest, vec![9; 1 << 20]).expect("a file");
    image.debugfs(&[&format!("write {} rest", rest.display())]);
    run("e2fsck", &["-fy".as_ref(), image.path().as_os_str()]);
    let shared = image.bytes();
    assert!(look(&shared, &options(Repair::No)).clean);
    let mut bytes = shared.clone();
    let refused = unshare(&mut bytes).expect_err("no space");
    assert!(refused.sentence.contains("free") && refused.exit & exit::LEFT != 0, "{refused}");
    assert!(bytes == shared, "something was written");
}
