//! Directory blocks damaged at random, with right checksums, so that nothing but the damage itself reveals it.

use crate::volume::{Dir, Volume, entries, programs, put_u16, put_u32, rec_len};
use extant_check::table::Code;
use testkit::{Image, Rng, cases};

fn volumes() -> Vec<(Volume, Vec<Dir>)> {
    let scratch = Image::from_bytes(&[]);
    let folder = scratch.beside("tree");
    std::fs::create_dir_all(folder.join("many/sub")).expect("a folder");
    std::fs::create_dir_all(folder.join("few/deep/deeper")).expect("a folder");
    std::fs::write(folder.join("few/file"), b"content").expect("a file");
    for n in 0..90 {
        let name = folder.join(format!("many/a-name-of-some-length-{n:03}"));
        std::fs::hard_link(folder.join("few/file"), name).expect("a hard link");
    }
    let formats: [&[&str]; 4] = [
        &["-t", "ext2", "-b", "1024", "-N", "64"],
        &["-t", "ext4", "-b", "1024", "-N", "64", "-O", "^has_journal"],
        &["-t", "ext4", "-b", "1024", "-N", "64", "-O", "^has_journal,^metadata_csum,^dir_index,^filetype"],
        &["-t", "ext4", "-b", "65536", "-N", "64", "-O", "^has_journal"],
    ];
    let volume = |args: &[&str]| {
        let size = if args.contains(&"65536") { 8 << 20 } else { 2 << 20 };
        let volume = Volume::new(Image::mke2fs(args, size).with_folder(&folder).indexed().build());
        let dirs = ["/", "/many", "/few", "/few/deep"].map(|path| volume.dir(path)).to_vec();
        (volume, dirs)
    };
    formats.map(volume).into()
}

fn corrupt(block: &mut [u8], rng: &mut Rng, inodes: &[u32]) -> String {
    let places = entries(block);
    if places.is_empty() {
        return "nothing left".into();
    }
    let at = *rng.pick(&places);
    let len = rec_len(block, at);
    let other = *rng.pick(&places);
    match rng.below(9) {
        0 | 1 => {
            let inode = *rng.pick(inodes);
            put_u32(block, at, inode);
            format!("inode {inode} at {at}")
        }
        2 => {
            let choices = [0, 8, 12, len as u16, (len + 4) as u16, (len as u16).wrapping_sub(4), 13, u16::MAX];
            let value = *rng.pick(&choices);
            put_u16(block, at + 4, value);
            format!("record length {value} at {at}")
        }
        3 => {
            block[at + 6] = *rng.pick(&[0, 1, 2, 3, 11, 255]);
            format!("name length {} at {at}", block[at + 6])
        }
        4 => {
            block[at + 7] = rng.below(9) as u8;
            format!("type {} at {at}", block[at + 7])
        }
        5 => {
            let name: Vec<u8> = block[other + 6..].iter().copied().take(len.saturating_sub(6).min(40)).collect();
            if at + 6 + name.len() <= block.len() {
                block[at + 6..at + 6 + name.len()].copy_from_slice(&name);
            }
            format!("name of {other} at {at}")
        }
        6 => {
            let place = (at + 8 + rng.index(12)).min(block.len() - 1);
            block[place] = *rng.pick(&[0, b'.', b'/', 0x80, 0xFF]);
            format!("{:#x} at {place}", block[place])
        }
        7 => {
            // where an index has its header and its first entries
            let place = 24 + rng.index(48);
            block[place] = *rng.pick(&[0, 1, 2, 3, 4, 8, 255]);
            format!("{:#x} at {place}", block[place])
        }
        _ => {
            let place = rng.index(block.len());
            block[place] = rng.below(256) as u8;
            format!("{:#x} at {place}", block[place])
        }
    }
}

#[test]
fn the_verdict_is_that_of_e2fsck() {
    if !programs() {
        return;
    }
    let mut volumes = volumes();
    let mut found = std::collections::BTreeSet::<Code>::new();
    for case in cases("directory blocks", 160) {
        let mut rng = case.rng();
        let chosen = rng.index(volumes.len());
        let (volume, dirs) = &mut volumes[chosen];
        let dir = rng.pick(dirs).clone();
        let block = rng.index(dir.blocks.len());
        let inodes = [0, 1, 2, 7, 11, 12, 13, 14, 40, 64, 65, u32::MAX, dir.inode, rng.between(11, 64) as u32];
        let whole = volume.bytes.clone();
        volume.image.set_bytes(&whole);
        let mut said = String::new();
        let edits = rng.between(1, 3);
        volume.edit_checked(&dir, block, |bytes| {
            for _ in 0..edits {
                said = format!("{said} {};", corrupt(bytes, &mut rng, &inodes));
            }
        });
        println!("volume {chosen}, inode {}, block {block}:{said}", dir.inode);
        found.extend(volume.codes());
        volume.bytes = whole;
    }
    assert!(found.len() > 1, "{found:?}");
}
