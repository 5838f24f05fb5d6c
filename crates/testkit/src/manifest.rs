//! Everything visible to a walk over a tree, as plain data, for comparing two readers of one volume.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::fmt;
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The file type of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum FileKind {
    Regular,
    Directory,
    Symlink,
    Fifo,
    Socket,
    CharDevice,
    BlockDevice,
}

/// A time in UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time {
    /// Seconds since 1970; negative before.
    pub seconds: i64,
    /// Nanoseconds beyond `seconds`, below 10^9.
    pub nanoseconds: u32,
}

/// The BLAKE3 hash of a file's content.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ContentHash(pub [u8; 32]);

impl ContentHash {
    /// The hash of everything that `reader` returns.
    pub fn of(reader: impl Read) -> io::Result<Self> {
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader(reader)?;
        Ok(Self(hasher.finalize().into()))
    }

    /// The hash of a file of `size` bytes that is zero except for `pieces`: offset and bytes, in order, without
    /// overlap.
    #[must_use]
    pub fn of_pieces(size: u64, pieces: &[(u64, Vec<u8>)]) -> Self {
        static ZEROS: [u8; 65536] = [0; 65536];
        let mut hasher = blake3::Hasher::new();
        let mut at = 0;
        for (offset, bytes) in pieces.iter().map(|(offset, bytes)| (*offset, &bytes[..])).chain([(size, &[][..])]) {
            while at < offset {
                let length = (offset - at).min(ZEROS.len() as u64);
                hasher.update(&ZEROS[..length as usize]);
                at += length;
            }
            hasher.update(bytes);
            at += bytes.len() as u64;
        }
        Self(hasher.finalize().into())
    }
}

impl fmt::Debug for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().take(6).try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The known metadata and content of one name. `None` means unknown, and equals anything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// File type.
    pub kind: FileKind,
    /// Permission bits with set-uid, set-gid and sticky: 0 to 0o7777.
    pub mode: u32,
    /// Owner and group.
    pub owner: Option<(u32, u32)>,
    /// Link count.
    pub links: Option<u64>,
    /// Length in bytes.
    pub size: Option<u64>,
    /// Space used, in units of 512 bytes.
    pub blocks: Option<u64>,
    /// Time of last access.
    pub accessed: Option<Time>,
    /// Time of last change of the content.
    pub modified: Option<Time>,
    /// Time of last change of the inode.
    pub changed: Option<Time>,
    /// Major and minor number of a device.
    pub device: Option<(u32, u32)>,
    /// Target of a symbolic link.
    pub target: Option<Vec<u8>>,
    /// Extended attributes: full name with prefix, value.
    pub xattrs: Option<BTreeMap<OsString, Vec<u8>>>,
    /// Content of a regular file.
    pub content: Option<ContentHash>,
    /// The first path, in order, of the same inode; the entry's own if it is the only one.
    pub first_name: Option<PathBuf>,
}

impl Entry {
    /// An entry with only these fields known.
    #[must_use]
    pub fn new(kind: FileKind, mode: u32) -> Self {
        Self {
            kind,
            mode,
            owner: None,
            links: None,
            size: None,
            blocks: None,
            accessed: None,
            modified: None,
            changed: None,
            device: None,
            target: None,
            xattrs: None,
            content: None,
            first_name: None,
        }
    }
}

/// A field that [`Manifest::forget`] can exclude from a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field {
    /// Time of last access.
    Accessed,
    /// Time of last change of the content.
    Modified,
    /// Time of last change of the inode.
    Changed,
    /// Fractions of a second, in all times.
    Nanoseconds,
    /// Owner and group.
    Owner,
    /// Space used.
    Blocks,
    /// Length and link count of directories, which differ between file systems.
    DirectorySize,
    /// Extended attributes.
    Xattrs,
}

/// A tree: path relative to its root (which is `.`) to entry.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Manifest(pub BTreeMap<PathBuf, Entry>);

impl Manifest {
    /// Removes fields in which the two sides of a comparison cannot agree.
    #[must_use]
    pub fn forget(mut self, fields: &[Field]) -> Self {
        for entry in self.0.values_mut() {
            for field in fields {
                match field {
                    Field::Accessed => entry.accessed = None,
                    Field::Modified => entry.modified = None,
                    Field::Changed => entry.changed = None,
                    Field::Nanoseconds => {
                        for time in [&mut entry.accessed, &mut entry.modified, &mut entry.changed] {
                            time.iter_mut().for_each(|t| t.nanoseconds = 0);
                        }
                    }
                    Field::Owner => entry.owner = None,
                    Field::Blocks => entry.blocks = None,
                    Field::DirectorySize if entry.kind == FileKind::Directory => {
                        entry.size = None;
                        entry.links = None;
                    }
                    Field::DirectorySize => {}
                    Field::Xattrs => entry.xattrs = None,
                }
            }
        }
        self
    }

    /// Removes `path` and everything below it; for example `lost+found`, which only a volume has. The root then has one
    /// subdirectory less.
    #[must_use]
    pub fn without(mut self, path: impl AsRef<Path>) -> Self {
        let path = path.as_ref();
        if self.0.get(path).is_some_and(|entry| entry.kind == FileKind::Directory) {
            let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
            if let Some(links) = self.0.get_mut(parent).and_then(|entry| entry.links.as_mut()) {
                *links = links.saturating_sub(1);
            }
        }
        self.0.retain(|other, _| !other.starts_with(path));
        self
    }

    /// One sentence per difference, `self` named before `other`.
    #[must_use]
    pub fn diff(&self, other: &Manifest) -> Vec<String> {
        let mut lines = Vec::new();
        for (path, left) in &self.0 {
            match other.0.get(path) {
                Some(right) => diff_entry(path, left, right, &mut lines),
                None => lines.push(format!("{} is missing in the other", path.display())),
            }
        }
        let added = other.0.keys().filter(|path| !self.0.contains_key(*path));
        lines.extend(added.map(|path| format!("{} is only in the other", path.display())));
        lines
    }

    /// Panics with the first differences unless `self` and `other` agree. Two empty trees do not.
    pub fn assert_same(&self, other: &Manifest) {
        assert!(!self.0.is_empty(), "there is nothing to compare");
        let lines = self.diff(other);
        let shown: Vec<_> = lines.iter().take(20).map(String::as_str).collect();
        assert!(lines.is_empty(), "{} differences:\n{}", lines.len(), shown.join("\n"));
    }
}

fn diff_entry(path: &Path, left: &Entry, right: &Entry, lines: &mut Vec<String>) {
    let mut say = |what: &str, left: &dyn fmt::Debug, right: &dyn fmt::Debug| {
        lines.push(format!("{}: {what} is {left:?}, in the other {right:?}", path.display()));
    };
    if left.kind != right.kind {
        say("type", &left.kind, &right.kind);
    }
    if left.mode != right.mode {
        say("mode", &format_args!("{:o}", left.mode), &format_args!("{:o}", right.mode));
    }
    macro_rules! known {
        ($($field:ident)*) => { $(
            if let (Some(l), Some(r)) = (&left.$field, &right.$field) && l != r {
                say(stringify!($field), l, r);
            }
        )* };
    }
    known!(owner links size blocks accessed modified changed device content first_name);
    if let (Some(l), Some(r)) = (&left.target, &right.target)
        && l != r
    {
        say("target", &String::from_utf8_lossy(l), &String::from_utf8_lossy(r));
    }
    if let (Some(l), Some(r)) = (&left.xattrs, &right.xattrs) {
        for name in l.keys().chain(r.keys().filter(|name| !l.contains_key(*name))) {
            let (l, r) = (l.get(name), r.get(name));
            if l != r {
                let show = |value: Option<&Vec<u8>>| value.map(|v| v.escape_ascii().to_string());
                say(&format!("attribute {}", name.display()), &show(l), &show(r));
            }
        }
    }
}

/// Everything below `root`, and `root` itself, as shown by the kernel: all fields of an [`Entry`] are known except
/// those that do not apply to its kind. Fails at the first file that cannot be read.
pub fn walk(root: &Path) -> io::Result<Manifest> {
    let mut manifest = Manifest::default();
    let mut inodes = HashMap::new();
    let mut open = vec![PathBuf::from(".")];
    while let Some(path) = open.pop() {
        let full = root.join(&path);
        let with_path = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", full.display()));
        let metadata = full.symlink_metadata().map_err(with_path)?;
        let entry = read_entry(&full, &metadata).map_err(with_path)?;
        if entry.kind == FileKind::Directory {
            for name in full.read_dir().map_err(with_path)? {
                let name = name.map_err(with_path)?.file_name();
                open.push(if path == Path::new(".") { PathBuf::from(name) } else { path.join(name) });
            }
        }
        inodes.insert(path.clone(), metadata.ino());
        manifest.0.insert(path, entry);
    }
    let mut first_names: HashMap<u64, PathBuf> = HashMap::new();
    for (path, entry) in &mut manifest.0 {
        entry.first_name = Some(first_names.entry(inodes[path]).or_insert_with(|| path.clone()).clone());
    }
    Ok(manifest)
}

fn read_entry(path: &Path, metadata: &Metadata) -> io::Result<Entry> {
    let kind = kind_of(metadata)?;
    let time = |seconds: i64, nanoseconds: i64| Some(Time { seconds, nanoseconds: nanoseconds as u32 });
    let mut entry = Entry {
        owner: Some((metadata.uid(), metadata.gid())),
        links: Some(metadata.nlink()),
        size: Some(metadata.len()),
        blocks: Some(metadata.blocks()),
        accessed: time(metadata.atime(), metadata.atime_nsec()),
        modified: time(metadata.mtime(), metadata.mtime_nsec()),
        changed: time(metadata.ctime(), metadata.ctime_nsec()),
        xattrs: Some(xattrs(path)?),
        ..Entry::new(kind, metadata.mode() & 0o7777)
    };
    match kind {
        FileKind::Regular => entry.content = Some(ContentHash::of(File::open(path)?)?),
        FileKind::Symlink => entry.target = Some(path.read_link()?.into_os_string().into_vec()),
        FileKind::CharDevice | FileKind::BlockDevice => {
            entry.device = Some((rustix::fs::major(metadata.rdev()), rustix::fs::minor(metadata.rdev())));
        }
        FileKind::Directory | FileKind::Fifo | FileKind::Socket => {}
    }
    Ok(entry)
}

fn kind_of(metadata: &Metadata) -> io::Result<FileKind> {
    let t = metadata.file_type();
    let kinds = [
        (t.is_file(), FileKind::Regular),
        (t.is_dir(), FileKind::Directory),
        (t.is_symlink(), FileKind::Symlink),
        (t.is_fifo(), FileKind::Fifo),
        (t.is_socket(), FileKind::Socket),
        (t.is_char_device(), FileKind::CharDevice),
        (t.is_block_device(), FileKind::BlockDevice),
    ];
    let found = kinds.into_iter().find(|(holds, _)| *holds).map(|(_, kind)| kind);
    found.ok_or_else(|| io::Error::other(format!("file type {:o} is unknown", metadata.mode())))
}

/// Extended attributes of the file itself; symbolic links are not followed.
fn xattrs(path: &Path) -> io::Result<BTreeMap<OsString, Vec<u8>>> {
    let mut names = vec![0u8; 65536]; // the kernel's limit for a list, and for a value
    let length = match rustix::fs::llistxattr(path, &mut names[..]) {
        Ok(length) => length,
        Err(rustix::io::Errno::OPNOTSUPP) => 0,
        Err(e) => return Err(e.into()),
    };
    let mut found = BTreeMap::new();
    let mut value = if length > 0 { vec![0u8; 65536] } else { Vec::new() };
    for name in names[..length].split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
        let name = OsString::from_vec(name.to_vec());
        let length = rustix::fs::lgetxattr(path, name.as_bytes(), &mut value[..])?;
        found.insert(name, value[..length].to_vec());
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Rng, Spec, Tree};

    #[test]
    fn every_difference_is_named() {
        let tree = Tree::new(7, &Spec::small());
        let walked = walk(tree.path()).expect("walk");
        walked.assert_same(&walked);
        let file = walked.0.iter().find(|(_, e)| e.kind == FileKind::Regular).map(|(p, _)| p.clone()).expect("a file");
        type Change = (&'static str, fn(&mut Entry));
        let changes: [Change; 9] = [
            ("type", |e| e.kind = FileKind::Fifo),
            ("mode", |e| e.mode ^= 0o100),
            ("owner", |e| e.owner = Some((1, 999_999))),
            ("links", |e| e.links = Some(77)),
            ("size", |e| e.size = e.size.map(|s| s + 1)),
            ("modified", |e| e.modified.iter_mut().for_each(|t| t.nanoseconds ^= 1)),
            ("attribute user.new", |e| {
                e.xattrs.get_or_insert_default().insert("user.new".into(), vec![1]);
            }),
            ("content", |e| e.content = Some(ContentHash([0; 32]))),
            ("first_name", |e| e.first_name = Some("x".into())),
        ];
        for (name, change) in changes {
            let mut other = walked.clone();
            change(other.0.get_mut(&file).expect("the file"));
            let (there, back) = (walked.diff(&other), other.diff(&walked));
            assert!(there.len() == 1 && back.len() == 1, "{name}: {there:?} {back:?}");
            assert!(there[0].contains(name) && there[0].contains(&file.display().to_string()), "{}", there[0]);
        }
        let less = walked.clone().without(&file);
        assert_eq!(walked.diff(&less).len(), 1);
        assert_eq!(less.diff(&walked).len(), 1);
    }

    #[test]
    fn pieces_hash_as_the_file_they_make() {
        let mut whole = vec![0; 200_000];
        whole[5..8].copy_from_slice(b"abc");
        whole[150_000..150_002].copy_from_slice(b"de");
        let pieces = [(5, b"abc".to_vec()), (150_000, b"de".to_vec())];
        assert_eq!(ContentHash::of_pieces(200_000, &pieces), ContentHash::of(&whole[..]).expect("hash"));
        assert_eq!(ContentHash::of_pieces(0, &[]), ContentHash::of(&[][..]).expect("hash"));
    }

    #[test]
    fn what_is_forgotten_does_not_count() {
        let mut rng = Rng::new(1);
        let mut entry = Entry::new(FileKind::Regular, 0o644);
        entry.modified = Some(Time { seconds: 5, nanoseconds: rng.below(1000) as u32 + 1 });
        let left = Manifest([(PathBuf::from("a"), entry.clone())].into());
        entry.modified = Some(Time { seconds: 5, nanoseconds: 0 });
        let right = Manifest([(PathBuf::from("a"), entry)].into());
        assert_eq!(left.diff(&right).len(), 1);
        left.forget(&[Field::Nanoseconds]).assert_same(&right);
    }
}
