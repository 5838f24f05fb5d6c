//! Volumes read by another implementation, the crate ext4-view, for comparison. Extents only: it returns an error for a
//! hole in a block map.

mod common;

use common::{device, open};
use extant_fs::{FileKind, InodeNo};
use std::error::Error;
use std::sync::Arc;
use testkit::{Image, Spec, Tree, need};

/// Passes the bytes of our device to the other implementation.
struct Reader(Arc<dyn blockdev::BlockDevice>);

impl ext4_view::Ext4Read for Reader {
    fn read(&mut self, start: u64, dst: &mut [u8]) -> Result<(), Box<dyn Error + Send + Sync + 'static>> {
        Ok(self.0.read(start, dst)?)
    }
}

#[test]
fn another_implementation_shows_the_same() {
    if !need(&["mke2fs", "e2fsck"]) {
        return;
    }
    for (seed, args) in [
        (41, &["-t", "ext4", "-b", "1024", "-O", "64bit"][..]),
        (42, &["-t", "ext4", "-b", "2048", "-O", "^metadata_csum", "-I", "128"]),
        (43, &["-t", "ext4", "-b", "4096"]),
    ] {
        let tree = Tree::new(seed, &Spec { wide: 300, ..Spec::small() });
        let image = Image::mke2fs(args, 32 << 20).with_tree(&tree).indexed().build();
        let volume = open(image.path());
        let other = ext4_view::Ext4::load(Box::new(Reader(device(image.path())))).expect("the other opens it");
        let mut files = 0;
        for (path, inode) in volume.walk(InodeNo::ROOT) {
            let (inode, path) = (inode.unwrap(), [b"/", &path[..]].concat());
            let path = ext4_view::Path::try_from(&path[..]).expect("a path");
            let metadata = other.symlink_metadata(path).expect("metadata");
            let ours = volume.attributes(&inode);
            assert_eq!((metadata.len(), metadata.mode()), (ours.size, ours.mode & 0o7777), "{path:?}");
            assert_eq!((metadata.uid(), metadata.gid()), (ours.uid, ours.gid), "{path:?}");
            match inode.kind {
                FileKind::Regular => {
                    let mut content = vec![0; inode.size as usize + 1];
                    let len = volume.read_at(&inode, 0, &mut content).unwrap();
                    assert!(other.read(path).expect("content") == content[..len], "{path:?}");
                    files += 1;
                }
                FileKind::Symlink => {
                    let target = other.read_link(path).expect("a link");
                    let target: &[u8] = target.as_ref();
                    assert_eq!(target, volume.read_link(&inode).unwrap(), "{path:?}");
                }
                FileKind::Directory => {
                    let mut theirs: Vec<Vec<u8>> = other
                        .read_dir(path)
                        .expect("a directory")
                        .map(|entry| {
                            let entry = entry.expect("an entry");
                            AsRef::<[u8]>::as_ref(&entry.file_name()).to_vec()
                        })
                        .collect();
                    let mut ours: Vec<_> =
                        volume.read_dir(&inode, 0).unwrap().map(|entry| entry.unwrap().name).collect();
                    theirs.sort();
                    ours.sort();
                    assert_eq!(theirs, ours, "{path:?}");
                }
                _ => {}
            }
        }
        assert!(files > 50);
    }
}
