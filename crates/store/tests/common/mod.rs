//! Code shared by the tests of recovery and of the journal engine.

use extant_store::recovery::BlockExtent;
use format::FsBlock;
use std::fmt::Write;
use testkit::{Image, tools};

/// The blocks of an inode, named in the syntax of debugfs (`<8>`, `/file`), as debugfs maps them, in the file's order.
pub(crate) fn runs_of(image: &Image, inode: &str) -> Vec<BlockExtent> {
    let size = testkit::oracle::debugfs(image.path(), &format!("stat {inode}"));
    let size = size.split("Size: ").nth(1).and_then(|rest| rest.split_whitespace().next());
    let size: u64 = size.and_then(|digits| digits.parse().ok()).expect("the file's size");
    let blocks = size / u64::from(block_size(&image.bytes()));
    let script = (0..blocks).fold(String::new(), |mut script, n| {
        writeln!(script, "bmap {inode} {n}").expect("writing to a string");
        script
    });
    let mut command = tools::command("debugfs");
    let ran = tools::run_with(command.args(["-f", "-"]).arg(image.path()), script.as_bytes(), tools::LIMIT);
    let mapped: Vec<u64> = String::from_utf8_lossy(&ran.stdout).lines().filter_map(|line| line.parse().ok()).collect();
    assert_eq!(mapped.len() as u64, blocks, "{}", ran.text());
    let follow = |&a: &u64, &b: &u64| b == a + 1;
    mapped.chunk_by(follow).map(|run| BlockExtent { first: FsBlock(run[0]), count: run.len() as u64 }).collect()
}

/// The blocks of the journal.
pub(crate) fn journal_runs(image: &Image) -> Vec<BlockExtent> {
    runs_of(image, "<8>")
}

pub(crate) fn block_size(bytes: &[u8]) -> u32 {
    1024 << bytes[1024 + 0x18]
}

/// Random content of a block; some of it begins with the journal's magic number.
pub(crate) fn content(rng: &mut testkit::Rng, size: usize) -> Vec<u8> {
    let mut bytes = rng.bytes(size);
    if rng.chance(20) {
        bytes[..4].copy_from_slice(&format::jbd2::MAGIC.to_be_bytes());
    }
    bytes
}
