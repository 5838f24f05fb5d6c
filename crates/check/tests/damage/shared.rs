//! Attribute blocks that several inodes share: their reference counts remain right, whatever a repair does to one of
//! the inodes.

use crate::repaired::{Wrong, contents, wrong_with};
use blockdev::MemoryDevice;
use damage::{Kind, damage};
use format::xattr::{self, XattrHeader};
use format::{FsBlock, superblock::Superblock};
use testkit::oracle::{debugfs, e2fsck};
use testkit::{Image, need};
use zerocopy::FromBytes;

/// Files that share one attribute block.
const USERS: usize = 4;

/// A clean volume with small files that share a block of attributes.
fn volume(args: &[&str]) -> Vec<u8> {
    let folder = tempfile::tempdir().expect("a folder");
    let (small, value) = (folder.path().join("small"), folder.path().join("value"));
    std::fs::write(&small, b"a few bytes").expect("a file");
    std::fs::write(&value, vec![b'v'; 300]).expect("a file");
    let mut commands: Vec<String> = (0..USERS).map(|n| format!("write {} f{n}", small.display())).collect();
    commands.push(format!("ea_set -f {} f0 user.shared", value.display()));
    let commands: Vec<&str> = commands.iter().map(String::as_str).collect();
    let image = Image::mke2fs(args, 8 << 20).debugfs(&commands).build();
    let field = |name: &str, file: &str| {
        let said = debugfs(image.path(), &format!("stat {file}"));
        let at = said.find(name).unwrap_or_else(|| panic!("{said}")) + name.len();
        said[at..].split_whitespace().next().and_then(|n| n.parse::<u64>().ok()).expect("a number")
    };
    let (acl, sectors) = (field("File ACL:", "f0"), field("Blockcount:", "f0"));
    for n in 1..USERS {
        image.debugfs(&[&format!("sif f{n} file_acl {acl}"), &format!("sif f{n} blocks {sectors}")]);
    }
    let mut bytes = image.bytes();
    let geometry = Superblock::parse(&bytes[1024..2048]).expect("a volume").geometry;
    let at = geometry.byte_offset(FsBlock(acl)).expect("a block") as usize;
    let block = &mut bytes[at..at + geometry.block_size as usize];
    XattrHeader::mut_from_prefix(block).expect("a header").0.h_refcount = (USERS as u32).into();
    if geometry.metadata_csum {
        let _ = xattr::write_block_checksum(block, FsBlock(acl), geometry.checksum_seed);
    }
    image.set_bytes(&bytes);
    let verdict = e2fsck(image.path());
    assert!(verdict.clean, "{args:?}: {}", verdict.text);
    bytes
}

#[test]
fn the_reference_count_fits_after_a_user_was_freed() {
    if !need(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let scratch = Image::from_bytes(&[]);
    let mut findings = Vec::new();
    for args in [
        &["-t", "ext2", "-b", "1024", "-I", "128"][..],
        &["-t", "ext4", "-b", "1024", "-I", "256", "-O", "inline_data,ea_inode,^has_journal"],
    ] {
        let intact = volume(args);
        for kind in Kind::all() {
            let device = MemoryDevice::from_vec(intact.clone());
            if damage(&device, kind, 1).is_ok()
                && let Some(Wrong::Damaged(wrong)) = wrong_with(&contents(&device), &scratch)
            {
                findings.push(format!("{args:?}: {kind:x?}: {wrong}"));
            }
        }
    }
    assert!(findings.is_empty(), "{} findings:\n{}", findings.len(), findings.join("\n"));
}
