//! Trees of files generated from a seed, with a model of their content.

use crate::manifest::{ContentHash, Entry, FileKind, Manifest, Time};
use crate::rng::Rng;
use rustix::fs::{CWD, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags};
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// The range of modification times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Times {
    /// 1980 to 2037, whole seconds: preserved by mke2fs 1.47.0, and possible in an inode of 128 bytes.
    Seconds,
    /// The same years, with nanoseconds.
    Nanoseconds,
    /// 1902 to 2445, with nanoseconds: the range of an ext4 inode with extra fields.
    Far,
}

/// The composition of a tree. Counts are of names; hard links and special files are part of `files`.
#[derive(Debug, Clone)]
pub struct Spec {
    /// Number of names that are not directories, distributed over the directories.
    pub files: usize,
    /// Number of directories below the root.
    pub directories: usize,
    /// Number of names in one more directory, all empty files: enough of them make it a hash tree.
    pub wide: usize,
    /// Length in bytes of the largest file with content; small ones are frequent.
    pub largest: u64,
    /// Length in bytes of the largest sparse file.
    pub largest_sparse: u64,
    /// Number of files written such that a file system that allocates on write fragments them.
    pub fragmented: usize,
    /// Maximum number of bytes of the extended attributes of a file, including names; 0 for none.
    pub xattr_bytes: usize,
    /// Modification times.
    pub times: Times,
}

impl Spec {
    /// About 120 names and at most 2 MB: enough variety for a test that creates many volumes, also with blocks of 1 KB.
    #[must_use]
    pub fn small() -> Self {
        Self {
            files: 90,
            directories: 12,
            wide: 20,
            largest: 100_000,
            largest_sparse: 2 << 20,
            fragmented: 2,
            xattr_bytes: 600,
            times: Times::Seconds,
        }
    }

    /// About 2 000 names and 30 MB, with a directory that is a hash tree in every block size.
    #[must_use]
    pub fn medium() -> Self {
        Self {
            files: 900,
            directories: 80,
            wide: 1000,
            largest: 1 << 20,
            largest_sparse: 32 << 20,
            fragmented: 6,
            ..Self::small()
        }
    }
}

/// A folder with files, and the model of its content. Removed when dropped.
#[derive(Debug)]
pub struct Tree {
    folder: tempfile::TempDir,
    model: Manifest,
}

impl Tree {
    /// Writes the tree of `seed` into a temporary folder.
    #[must_use]
    pub fn new(seed: u64, spec: &Spec) -> Self {
        let folder = tempfile::Builder::new().prefix("extant-tree-").tempdir().expect("a temporary folder");
        let model = fill(folder.path(), seed, spec).expect("writing a tree");
        Self { folder, model }
    }

    /// The folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The model of the tree. Unknown in it are owners if the test is not root, the sizes of directories, allocated
    /// space, and times other than that of modification.
    #[must_use]
    pub fn model(&self) -> &Manifest {
        &self.model
    }
}

/// Writes the tree of `seed` into `root`, an existing folder: a temporary one or a mounted volume. Returns the model,
/// as in [`Tree::model`]. As root, the tree also contains device nodes, sockets and foreign owners.
pub fn fill(root: &Path, seed: u64, spec: &Spec) -> io::Result<Manifest> {
    let mut writer = Writer {
        root,
        rng: Rng::new(seed),
        spec,
        is_root: rustix::process::geteuid().is_root(),
        model: Manifest::default(),
        directories: vec![PathBuf::from(".")],
        linkable: Vec::new(),
        names: 0,
    };
    writer.model.0.insert(".".into(), Entry { links: Some(2), ..Entry::new(FileKind::Directory, 0o755) });
    for _ in 0..spec.directories {
        writer.directory()?;
    }
    for _ in 0..spec.files {
        writer.file()?;
    }
    for _ in 0..spec.fragmented {
        writer.fragmented()?;
    }
    if spec.wide > 0 {
        writer.wide()?;
    }
    writer.finish()
}

struct Writer<'a> {
    root: &'a Path,
    rng: Rng,
    spec: &'a Spec,
    is_root: bool,
    model: Manifest,
    directories: Vec<PathBuf>,
    /// Names of files that can be hard-linked.
    linkable: Vec<PathBuf>,
    names: usize,
}

/// The content of a file: data with holes in between.
struct Content {
    size: u64,
    pieces: Vec<(u64, Vec<u8>)>,
}

impl Writer<'_> {
    /// A unique name, in any of the usual forms, in an existing directory.
    fn path(&mut self) -> PathBuf {
        self.names += 1;
        let number = self.names;
        let form = self.rng.below(100);
        let name: Vec<u8> = match form {
            0..4 => [format!("{number}-").into_bytes(), vec![b'n'; self.rng.between(100, 240) as usize]].concat(),
            4..6 => format!("{number:0>255}").into_bytes(),
            6..9 => format!("name with spaces {number}").into_bytes(),
            9..12 => format!("größe-名前-{number}").into_bytes(),
            12..14 => [b"\xff\x80 not UTF-8 \n".as_slice(), number.to_string().as_bytes()].concat(),
            14..17 => format!(".hidden{number}").into_bytes(),
            _ => format!("{}{number}", ["f", "file-", "IMG_", "x"][self.rng.index(4)]).into_bytes(),
        };
        let folder = self.rng.pick(&self.directories).clone();
        let name = OsString::from_vec(name);
        if folder == Path::new(".") { PathBuf::from(name) } else { folder.join(name) }
    }

    fn directory(&mut self) -> io::Result<()> {
        let path = self.path();
        std::fs::create_dir(self.root.join(&path))?;
        let mode = *self.rng.pick(&[0o755, 0o700, 0o1777, 0o2755]);
        let xattrs = self.rng.chance(15);
        self.set_attributes(&path, Entry { links: Some(2), ..Entry::new(FileKind::Directory, mode) }, xattrs)?;
        self.count_in_parent(&path);
        if path.components().count() < 8 {
            self.directories.push(path);
        }
        Ok(())
    }

    fn count_in_parent(&mut self, path: &Path) {
        let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if let Some(links) = self.model.0.get_mut(parent).and_then(|entry| entry.links.as_mut()) {
            *links += 1;
        }
    }

    fn file(&mut self) -> io::Result<()> {
        match self.rng.below(100) {
            0..66 => self.regular(),
            66..72 => self.sparse(),
            72..82 => self.symlink(),
            82..92 => self.hard_link(),
            _ => self.special(),
        }
    }

    fn regular(&mut self) -> io::Result<()> {
        let size = match self.rng.below(10) {
            0 => 0,
            1..3 => self.rng.between(1, 150), // fits into an inode, or just does not
            3 => {
                (*self.rng.pick(&[1024u64, 2048, 4096, 8192, 12 << 10]) + self.rng.below(3) - 1).min(self.spec.largest)
            }
            _ => self.rng.magnitude(self.spec.largest),
        };
        let bytes = self.rng.bytes(size as usize);
        let path = self.path();
        self.put(&path, &Content { size, pieces: vec![(0, bytes)] })
    }

    fn sparse(&mut self) -> io::Result<()> {
        let size = self.rng.magnitude(self.spec.largest_sparse).max(20_000);
        let mut pieces = Vec::new();
        let mut at = 0;
        loop {
            let offset = at + self.rng.magnitude(size / 3);
            let length = self.rng.between(1, 9000);
            if offset + length > size {
                break;
            }
            pieces.push((offset, self.rng.bytes(length as usize)));
            at = offset + length;
        }
        let path = self.path();
        self.put(&path, &Content { size, pieces })
    }

    /// Writes every second part first, and syncs them, then the parts in between.
    fn fragmented(&mut self) -> io::Result<()> {
        let count = self.rng.between(8, 40);
        let pieces: Vec<_> = (0..count).map(|n| (n * 8192, self.rng.bytes(8192))).collect();
        let path = self.path();
        let file = File::create_new(self.root.join(&path))?;
        for odd in [0, 1] {
            for (offset, bytes) in pieces.iter().skip(odd).step_by(2) {
                file.write_all_at(bytes, *offset)?;
            }
            file.sync_all()?;
        }
        self.regular_entry(&path, &Content { size: count * 8192, pieces })
    }

    fn put(&mut self, path: &Path, content: &Content) -> io::Result<()> {
        let file = File::create_new(self.root.join(path))?;
        for (offset, bytes) in &content.pieces {
            file.write_all_at(bytes, *offset)?;
        }
        file.set_len(content.size)?;
        self.regular_entry(path, content)
    }

    fn regular_entry(&mut self, path: &Path, content: &Content) -> io::Result<()> {
        let mode = *self.rng.pick(&[0o644, 0o600, 0o755, 0o4755, 0o2711, 0o444]);
        let entry = Entry {
            links: Some(1),
            size: Some(content.size),
            content: Some(ContentHash::of_pieces(content.size, &content.pieces)),
            ..Entry::new(FileKind::Regular, mode)
        };
        let xattrs = self.rng.chance(25);
        self.set_attributes(path, entry, xattrs)?;
        self.linkable.push(path.to_owned());
        Ok(())
    }

    fn symlink(&mut self) -> io::Result<()> {
        // up to 59 bytes are stored in the inode, more in a block; the limit is one block, even of 1 KB
        let length = *self.rng.pick(&[1u64, 7, 59, 60, 61, 300, 1000]) as usize;
        let target: Vec<u8> = b"../target/".iter().cycle().take(length).copied().collect();
        let path = self.path();
        symlink(OsString::from_vec(target.clone()), self.root.join(&path))?;
        let size = Some(length as u64);
        self.set_attributes(
            &path,
            Entry { links: Some(1), size, target: Some(target), ..Entry::new(FileKind::Symlink, 0o777) },
            false,
        )
    }

    fn hard_link(&mut self) -> io::Result<()> {
        if self.linkable.is_empty() {
            return self.regular();
        }
        let first = self.rng.pick(&self.linkable).clone();
        let path = self.path();
        std::fs::hard_link(self.root.join(&first), self.root.join(&path))?;
        let entry = self.model.0[&first].clone();
        self.model.0.insert(path, entry);
        Ok(())
    }

    fn special(&mut self) -> io::Result<()> {
        let path = self.path();
        let kinds = [FileKind::Fifo, FileKind::CharDevice, FileKind::BlockDevice, FileKind::Socket];
        let kind = if self.is_root { *self.rng.pick(&kinds) } else { FileKind::Fifo };
        // small numbers fit the old device encoding, the others need the new one
        let (major, minor) = *self.rng.pick(&[(1, 3), (8, 255), (259, 1), (4095, 70_000)]);
        let (file_type, device) = match kind {
            FileKind::CharDevice => (rustix::fs::FileType::CharacterDevice, Some((major, minor))),
            FileKind::BlockDevice => (rustix::fs::FileType::BlockDevice, Some((major, minor))),
            FileKind::Socket => (rustix::fs::FileType::Socket, None),
            _ => (rustix::fs::FileType::Fifo, None),
        };
        let number = device.map_or(0, |(major, minor)| rustix::fs::makedev(major, minor));
        rustix::fs::mknodat(CWD, self.root.join(&path), file_type, Mode::from(0o600), number)?;
        self.set_attributes(&path, Entry { links: Some(1), size: Some(0), device, ..Entry::new(kind, 0o640) }, false)
    }

    fn wide(&mut self) -> io::Result<()> {
        let folder = PathBuf::from("wide");
        std::fs::create_dir(self.root.join(&folder))?;
        self.set_attributes(&folder, Entry { links: Some(2), ..Entry::new(FileKind::Directory, 0o755) }, false)?;
        self.count_in_parent(&folder);
        for number in 0..self.spec.wide {
            let path = folder.join(format!("entry-{number:06}"));
            self.put(&path, &Content { size: 0, pieces: Vec::new() })?;
        }
        Ok(())
    }

    /// Sets the metadata of the file `path` from `entry`, with a random owner and attributes, and adds it to the model.
    fn set_attributes(&mut self, path: &Path, mut entry: Entry, with_xattrs: bool) -> io::Result<()> {
        let full = self.root.join(path);
        if self.is_root {
            let (uid, gid) = (*self.rng.pick(&[0, 1000, 70_000]), *self.rng.pick(&[0, 100, 4_000_000_000]));
            let (owner, group) = (Uid::from_raw(uid), Gid::from_raw(gid));
            rustix::fs::chownat(CWD, &full, Some(owner), Some(group), rustix::fs::AtFlags::SYMLINK_NOFOLLOW)?;
            entry.owner = Some((uid, gid));
        }
        let mut xattrs = std::collections::BTreeMap::new();
        if with_xattrs {
            // ext4 rounds each value and each entry (16 bytes and the name) up to 4 bytes
            let mut space = self.spec.xattr_bytes;
            for number in 0..self.rng.between(1, 5) {
                let name = OsString::from(format!("user.name{number}"));
                let length = self.rng.magnitude(self.spec.xattr_bytes.max(1) as u64) as usize;
                let Some(left) = space.checked_sub(length + name.len() + 24) else { continue };
                space = left;
                let value = self.rng.bytes(length);
                rustix::fs::lsetxattr(&full, &name, &value, XattrFlags::CREATE)?;
                xattrs.insert(name, value);
            }
        }
        entry.xattrs = Some(xattrs);
        if entry.kind != FileKind::Symlink {
            // after the owner, since a change of owner clears set-uid; after the attributes, which mode 0o444 would
            // prevent
            std::fs::set_permissions(&full, std::fs::Permissions::from_mode(entry.mode))?;
        }
        entry.modified = Some(self.time());
        self.model.0.insert(path.to_owned(), entry);
        Ok(())
    }

    fn time(&mut self) -> Time {
        let seconds = match self.spec.times {
            Times::Far => self.rng.between(0, 17_100_000_000) as i64 - 2_140_000_000,
            Times::Seconds | Times::Nanoseconds => self.rng.between(320_000_000, 2_140_000_000) as i64,
        };
        let nanoseconds = if self.spec.times == Times::Seconds { 0 } else { self.rng.below(1_000_000_000) as u32 };
        Time { seconds, nanoseconds }
    }

    /// Sets the times last, since creating names in a directory changes its times; then completes the model.
    fn finish(mut self) -> io::Result<Manifest> {
        let mut linked: std::collections::HashMap<u64, (PathBuf, u64, Option<Time>)> = std::collections::HashMap::new();
        let mut inodes = Vec::with_capacity(self.model.0.len());
        for (path, entry) in &self.model.0 {
            let inode = std::os::unix::fs::MetadataExt::ino(&self.root.join(path).symlink_metadata()?);
            linked.entry(inode).or_insert_with(|| (path.clone(), 0, entry.modified)).1 += 1;
            inodes.push(inode);
        }
        for ((path, entry), inode) in self.model.0.iter_mut().zip(inodes) {
            let (first, names, modified) = &linked[&inode];
            entry.first_name = Some(first.clone());
            entry.modified = *modified;
            if entry.kind != FileKind::Directory {
                entry.links = Some(*names);
            }
            if let Some(Time { seconds, nanoseconds }) = *modified {
                let time = Timespec { tv_sec: seconds, tv_nsec: nanoseconds.into() };
                let times = Timestamps { last_access: time, last_modification: time };
                let full = self.root.join(path);
                rustix::fs::utimensat(CWD, &full, &times, rustix::fs::AtFlags::SYMLINK_NOFOLLOW)?;
            }
        }
        if let Some(root) = self.model.0.get_mut(Path::new(".")) {
            std::fs::set_permissions(self.root, std::fs::Permissions::from_mode(root.mode))?;
        }
        Ok(self.model)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Field, walk};

    #[test]
    fn the_model_is_what_a_walk_sees() {
        let spec = Spec { times: Times::Nanoseconds, ..Spec::small() };
        let tree = Tree::new(1, &spec);
        let walked = walk(tree.path()).expect("walk");
        // the link counts of directories depend on the folder's file system
        tree.model().clone().forget(&[Field::DirectorySize]).assert_same(&walked);
        let kinds = |kind| tree.model().0.values().filter(|entry| entry.kind == kind).count();
        for kind in [FileKind::Regular, FileKind::Directory, FileKind::Symlink, FileKind::Fifo] {
            assert!(kinds(kind) > 0, "no {kind:?} in the tree");
        }
        let with_attributes = |entry: &&Entry| entry.xattrs.as_ref().is_some_and(|x| !x.is_empty());
        assert!(tree.model().0.values().filter(with_attributes).count() > 3);
    }

    #[test]
    fn a_seed_makes_the_same_tree_again_and_another_seed_another() {
        let (a, b, c) = (Tree::new(5, &Spec::small()), Tree::new(5, &Spec::small()), Tree::new(6, &Spec::small()));
        assert_eq!(a.model(), b.model());
        assert!(!a.model().diff(c.model()).is_empty());
    }
}
