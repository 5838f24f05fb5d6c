//! Directories, attributes and inline data of volumes made by e2fsprogs.

use extant_format::casefold;
use extant_format::checksum::crc32c;
use extant_format::dir::{ChecksumState, DirFormat, Entries, LeafTail, dot_entries, leaf_checksum};
use extant_format::hash::{HashVersion, Hasher};
use extant_format::htree::{DxRoot, Index, IndexFormat, block_checksum};
use extant_format::inline::{DATA_XATTR, I_BLOCK_LEN, InlineData, InlineDir};
use extant_format::xattr::{self, Value, XattrArea};
use extant_format::{FsBlock, InodeNo};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

const BLOCK_SIZE: u32 = 1024;

/// A volume in a file, with the superblock fields that these tests need.
struct Volume {
    dir: TempDir,
}

/// The bytes of an inode.
struct RawInode {
    number: u32,
    bytes: Vec<u8>,
}

fn run(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().unwrap_or_else(|e| panic!("{program} (e2fsprogs): {e}"));
    // status 1 of e2fsck means that it changed the volume
    let code = output.status.code().unwrap();
    assert!(code == 0 || program == "e2fsck" && code == 1, "{program} {args:?}: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

impl Volume {
    fn new(options: &[&str], fill: impl FnOnce(&Path)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let source = dir.path().join("source");
        std::fs::create_dir(&source).unwrap();
        fill(&source);
        let volume = Volume { dir };
        let image = volume.image();
        let mut args =
            vec!["-q", "-t", "ext4", "-b", "1024", "-I", "256", "-N", "8192", "-d", source.to_str().unwrap()];
        args.extend(options);
        args.extend([image.to_str().unwrap(), "16M"]);
        run("mke2fs", &args);
        volume
    }

    fn image(&self) -> PathBuf {
        self.dir.path().join("volume.img")
    }

    fn debugfs(&self, request: &str) -> String {
        run("debugfs", &["-w", "-R", request, self.image().to_str().unwrap()])
    }

    fn read(&self, at: u64, len: usize) -> Vec<u8> {
        use std::os::unix::fs::FileExt;
        let mut bytes = vec![0; len];
        std::fs::File::open(self.image()).unwrap().read_exact_at(&mut bytes, at).unwrap();
        bytes
    }

    /// All content of a file or directory.
    fn content(&self, path: &str) -> Vec<u8> {
        let out = self.dir.path().join("content");
        self.debugfs(&format!("dump {path} {}", out.display()));
        std::fs::read(out).unwrap()
    }

    fn seed(&self) -> u32 {
        crc32c(!0, &self.read(1024 + 0x68, 16))
    }

    fn inode(&self, path: &str) -> RawInode {
        let text = self.debugfs(&format!("imap {path}"));
        let word_after = |label: &str| {
            let rest = &text[text.find(label).unwrap_or_else(|| panic!("{text}")) + label.len()..];
            rest.split(|c: char| !c.is_ascii_alphanumeric()).find(|w| !w.is_empty()).unwrap().to_owned()
        };
        let number = word_after("Inode ").parse().unwrap();
        let block: u64 = word_after("located at block").parse().unwrap();
        let offset = u64::from_str_radix(word_after("offset 0x").trim_start_matches("0x"), 16).unwrap();
        RawInode { number, bytes: self.read(block * u64::from(BLOCK_SIZE) + offset, 256) }
    }
}

impl RawInode {
    fn word(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.bytes[at..at + 4].try_into().unwrap())
    }

    fn i_block(&self) -> &[u8; I_BLOCK_LEN] {
        self.bytes[0x28..0x64].try_into().unwrap()
    }

    /// The seed of its checksums.
    fn seed(&self, volume: &Volume) -> u32 {
        crc32c(crc32c(volume.seed(), &self.number.to_le_bytes()), &self.bytes[0x64..0x68])
    }

    fn xattrs(&self) -> Option<XattrArea<'_>> {
        let extra = usize::from(self.bytes[0x80]);
        XattrArea::in_inode(&self.bytes[128 + extra..]).unwrap()
    }
}

const DIR: DirFormat = DirFormat { block_size: BLOCK_SIZE, file_type: true, hashed: false };
const INDEX: IndexFormat = IndexFormat { dir: DIR, checksums: true, large_dir: false };

fn names_of(content: &[u8]) -> BTreeSet<Vec<u8>> {
    let blocks = content.chunks(BLOCK_SIZE as usize);
    blocks
        .flat_map(|block| Entries::new(block, DIR).map(Result::unwrap))
        .filter(|e| e.is_used() && !e.is_dot())
        .map(|e| e.name.to_vec())
        .collect()
}

#[test]
fn linear_directory() {
    let names: BTreeSet<Vec<u8>> = (0..300).map(|i| format!("file {i} {}", "x".repeat(i % 200)).into_bytes()).collect();
    let volume = Volume::new(&["-O", "metadata_csum,^metadata_csum_seed"], |source| {
        std::fs::create_dir(source.join("d")).unwrap();
        for name in &names {
            std::fs::write(source.join("d").join(std::str::from_utf8(name).unwrap()), "").unwrap();
        }
    });
    let content = volume.content("/d");
    let inode = volume.inode("/d");
    assert!(content.len() > 10 * BLOCK_SIZE as usize);
    assert_eq!(names_of(&content), names);
    assert_eq!(dot_entries(&content[..BLOCK_SIZE as usize], DIR).unwrap(), (InodeNo(inode.number), InodeNo::ROOT));
    for block in content.chunks(BLOCK_SIZE as usize) {
        assert_eq!(leaf_checksum(block, inode.seed(&volume)), ChecksumState::Good);
        assert!(matches!(leaf_checksum(block, volume.seed()), ChecksumState::Bad { .. }));
    }
}

/// Finds `hash` from the root down and calls `contains` for each leaf that may have it.
fn look_up(content: &[u8], root: &DxRoot<'_>, hash: u32, contains: impl Fn(&[u8]) -> bool) -> bool {
    let block = |index: &Index<'_>, i: usize| {
        let at = usize::try_from(index.block(i).unwrap().get()).unwrap() * BLOCK_SIZE as usize;
        &content[at..at + BLOCK_SIZE as usize]
    };
    let mut index = root.index;
    let mut after = None;
    for _ in 0..root.indirect_levels {
        let i = index.position(hash);
        after = index.next_may_contain(i, hash);
        index = Index::parse_node(block(&index, i), &INDEX).unwrap();
    }
    let mut i = index.position(hash);
    loop {
        if contains(block(&index, i)) {
            return true;
        }
        match index.next_may_contain(i, hash) {
            Some(true) => i += 1,
            Some(false) => return false,
            None => {
                // in these directories no hash is in two index blocks
                assert_ne!(after, Some(true));
                return false;
            }
        }
    }
}

fn indexed(algorithm: &str, unsigned: bool, casefold: bool) {
    let suffix = if casefold { "Ä" } else { "ä" };
    // long, so that not too many of them need two levels of index blocks
    let names: Vec<String> = (0..2400).map(|i| format!("{i:04}-{:>70}", suffix)).collect();
    let features = if casefold { "casefold,^metadata_csum_seed" } else { "^metadata_csum_seed" };
    let volume = Volume::new(&["-O", features], |source| {
        std::fs::create_dir(source.join("d")).unwrap();
        for name in &names {
            std::fs::write(source.join("d").join(name), "").unwrap();
        }
    });
    let image = volume.image();
    let image = image.to_str().unwrap();
    run("tune2fs", &["-E", &format!("hash_alg={algorithm}"), image]);
    volume.debugfs(&format!("set_super_value flags {}", if unsigned { 2 } else { 1 }));
    if casefold {
        volume.debugfs(&format!("set_inode_field /d flags {:#x}", volume.inode("/d").word(0x20) | 0x4000_0000));
    }
    run("e2fsck", &["-fyD", image]);

    let content = volume.content("/d");
    let inode = volume.inode("/d");
    let seed = inode.seed(&volume);
    let root = DxRoot::parse(&content[..BLOCK_SIZE as usize], &INDEX).unwrap();
    assert_eq!((root.own, root.parent, root.indirect_levels), (InodeNo(inode.number), InodeNo::ROOT, 1));
    assert_eq!(names_of(&content).len(), names.len());
    for block in content.chunks(BLOCK_SIZE as usize) {
        assert_eq!(block_checksum(block, BLOCK_SIZE, LeafTail::Checksum, seed), ChecksumState::Good);
    }
    let words = volume.read(1024 + 0xEC, 16);
    let hash_seed = std::array::from_fn(|i| u32::from_le_bytes(words[4 * i..][..4].try_into().unwrap()));
    let version = if unsigned { root.hash_version.to_unsigned() } else { root.hash_version };
    let hasher = Hasher::new(version, hash_seed).unwrap();
    for name in &names {
        let folded = casefold::fold(name.as_bytes()).unwrap();
        let hash = hasher.hash(if casefold { &folded } else { name.as_bytes() }).hash;
        let found =
            look_up(&content, &root, hash, |leaf| Entries::new(leaf, DIR).find(name.as_bytes()).unwrap().is_some());
        assert!(found, "{name}");
    }
    let expected = match algorithm {
        "legacy" => HashVersion::Legacy,
        "tea" => HashVersion::Tea,
        _ => HashVersion::HalfMd4,
    };
    assert_eq!(root.hash_version, expected);
}

#[test]
fn indexed_by_half_md4() {
    indexed("half_md4", false, false);
    indexed("half_md4", true, false);
}

#[test]
fn indexed_by_tea_and_legacy() {
    indexed("tea", true, false);
    indexed("legacy", false, false);
}

#[test]
fn indexed_casefolded() {
    indexed("half_md4", false, true);
}

#[test]
fn attributes() {
    let volume = Volume::new(&["-O", "metadata_csum,^metadata_csum_seed"], |source| {
        std::fs::write(source.join("f"), "content").unwrap();
    });
    let long = "v".repeat(401);
    volume.debugfs("ea_set /f user.short abc");
    volume.debugfs(&format!("ea_set /f user.long {long}"));
    volume.debugfs("ea_set /f security.label text");
    let inode = volume.inode("/f");
    let at = FsBlock(u64::from(inode.word(0x68)));
    assert_ne!(at, FsBlock(0), "the long value needs a block");
    let block = volume.read(at.get() * u64::from(BLOCK_SIZE), BLOCK_SIZE as usize);
    assert_eq!(xattr::block_checksum(&block, at, volume.seed()), ChecksumState::Good);

    let mut seen = BTreeSet::new();
    for area in [XattrArea::in_block(&block).unwrap(), inode.xattrs().unwrap()] {
        assert!(area.overlap().is_none());
        for attribute in area.iter() {
            let Value::Here(value) = area.value(&attribute).unwrap() else { panic!("{attribute:?}") };
            let hash = attribute.entry.e_hash.get();
            assert!(hash == xattr::entry_hash(attribute.name, value, true) || hash == 0);
            let name = xattr::full_name(attribute.entry.e_name_index, attribute.name).unwrap();
            seen.insert((String::from_utf8(name).unwrap(), String::from_utf8(value.to_vec()).unwrap()));
        }
    }
    let expected = [("user.short", "abc"), ("user.long", long.as_str()), ("security.label", "text")];
    assert_eq!(seen, expected.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
}

#[test]
fn values_in_inodes() {
    // too long for an attribute block
    let value: Vec<u8> = (0..1024).map(|i| (i % 251) as u8).collect();
    let volume = Volume::new(&["-O", "ea_inode,metadata_csum,^metadata_csum_seed"], |source| {
        std::fs::write(source.join("f"), "content").unwrap();
        std::fs::write(source.join("value"), &value).unwrap();
    });
    volume.debugfs(&format!("ea_set -f {} /f user.long", volume.dir.path().join("source/value").display()));
    let inode = volume.inode("/f");
    let at = u64::from(inode.word(0x68));
    let block = volume.read(at * u64::from(BLOCK_SIZE), BLOCK_SIZE as usize);
    let areas = inode.xattrs().into_iter().chain((at != 0).then(|| XattrArea::in_block(&block).unwrap()));
    let found: Vec<_> = areas.filter_map(|area| Some((area, area.find(xattr::index::USER, b"long")?))).collect();
    let [(area, attribute)] = found.as_slice() else { panic!("{found:?}") };
    let Value::Inode { inode: value_inode, size } = area.value(attribute).unwrap() else { panic!("{attribute:?}") };
    assert_eq!(size, 1024);
    assert_eq!(volume.content(&format!("<{value_inode}>")), value);
    let value_hash = xattr::inode_value_hash(&value, volume.seed());
    // the value's inode stores its hash as its access time
    assert_eq!(volume.inode(&format!("<{value_inode}>")).word(0x08), value_hash);
    assert_eq!(attribute.entry.e_hash.get(), xattr::entry_hash(b"long", &value_hash.to_le_bytes(), true));
}

#[test]
fn inline_data() {
    let files = [("file number 1", 30), ("file number 3", 90)];
    let volume = Volume::new(&["-O", "inline_data,^metadata_csum_seed"], |source| {
        std::fs::create_dir(source.join("d")).unwrap();
        for (name, len) in files {
            std::fs::write(source.join("d").join(name), "0123456789".repeat(len / 10)).unwrap();
        }
    });
    let value_of = |inode: &RawInode| -> Vec<u8> {
        let Some(area) = inode.xattrs() else { return Vec::new() };
        let Some(attribute) = area.find(DATA_XATTR.0, DATA_XATTR.1) else { return Vec::new() };
        match area.value(&attribute).unwrap() {
            Value::Here(value) => value.to_vec(),
            Value::Inode { .. } => panic!("{attribute:?}"),
        }
    };
    let dir = volume.inode("/d");
    let value = value_of(&dir);
    let inline = InlineDir::new(dir.i_block(), &value, DIR);
    assert_eq!(inline.parent, InodeNo::ROOT);
    let entries: Vec<_> = inline.entries().map(Result::unwrap).filter(|e| e.is_used()).collect();
    assert!(entries.iter().map(|e| e.name).eq(files.map(|(name, _)| name.as_bytes())));
    for (entry, (_, len)) in entries.iter().zip(files) {
        let inode = volume.inode(&format!("<{}>", entry.inode));
        let value = value_of(&inode);
        assert_eq!(value.len(), len.saturating_sub(I_BLOCK_LEN));
        let data = InlineData::new(inode.i_block(), &value, u64::from(inode.word(4))).unwrap();
        assert_eq!(data.parts().concat(), "0123456789".repeat(len / 10).as_bytes());
    }
}
