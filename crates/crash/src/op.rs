//! The operations of a workload, each as a value and as a line of text.
//!
//! A workload consists of operations separated by `;`. Each is a verb and its arguments, separated by spaces; paths are
//! relative to the root of the volume and contain neither spaces nor `;`. A path `@x` denotes the file opened as `x`
//! (by `open x` or `tmpfile DIR x`), which may have lost its name since. The content of a write or an attribute is
//! generated from the number after `=`, so that the bytes of two writes with different numbers differ at nearly every
//! position.
//!
//! | text | effect |
//! | --- | --- |
//! | `create P`, `mkdir P`, `rmdir P`, `unlink P` | as open(2) with O_CREAT and O_EXCL, mkdir(2), rmdir(2), unlink(2) |
//! | `symlink TARGET P`, `link P P` | the existing name first |
//! | `rename P P`, `rename P P noreplace`, `rename P P exchange` | renameat2(2) |
//! | `write P OFFSET LEN =N`, `append P LEN =N` | pwrite(2) |
//! | `read P` | reads a whole file; the content is compared with the expected one |
//! | `truncate P SIZE` | shortens or extends a file |
//! | `fallocate P HOW OFFSET LEN` | HOW is `plain`, `keep`, `zero`, `zero-keep`, `punch`, `collapse` or `insert` |
//! | `setxattr P NAME LEN =N`, `removexattr P NAME` | names with their prefix, such as `user.x` |
//! | `chmod P MODE` | mode in octal |
//! | `open P`, `close P`, `tmpfile DIR P` | the file is available as `@P` while open |
//! | `fsync P`, `fdatasync P`, `sync` | |
//! | `wait SECONDS` | time passes without other operations |
//! | `snapshot create NAME`, `snapshot delete NAME` | takes or deletes a snapshot |
//! | `begin`, `commit`, `rollback` | the operations between them are atomic |

use std::fmt;
use std::str::FromStr;

/// The effect of rename(2) on an existing target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RenameHow {
    /// The target is replaced.
    Replace,
    /// The call fails.
    NoReplace,
    /// The two names are exchanged.
    Exchange,
}

/// The effect of fallocate(2) on a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FallocateHow {
    /// Allocates space; the file grows to the end of the range.
    Plain,
    /// Allocates space; the size does not change.
    KeepSize,
    /// Zeroes the range; the file grows to its end.
    Zero,
    /// Zeroes the range; the size does not change.
    ZeroKeepSize,
    /// Punches a hole; the size does not change.
    Punch,
    /// Removes the range, and shifts the rest down.
    Collapse,
    /// Inserts zeros before the range, and shifts the rest up.
    Insert,
}

impl FallocateHow {
    /// All variants, each with its word.
    pub const WORDS: [(Self, &'static str); 7] = [
        (Self::Plain, "plain"),
        (Self::KeepSize, "keep"),
        (Self::Zero, "zero"),
        (Self::ZeroKeepSize, "zero-keep"),
        (Self::Punch, "punch"),
        (Self::Collapse, "collapse"),
        (Self::Insert, "insert"),
    ];

    fn word(self) -> &'static str {
        Self::WORDS.iter().find(|(how, _)| *how == self).map_or("", |(_, word)| word)
    }
}

/// One operation. Offsets and lengths are in bytes; `seed` determines the content, see [`pattern`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the fields say what they are; the table above has the rest")]
pub enum Op {
    /// Creates an empty file.
    Create { path: String },
    /// Creates a directory.
    Mkdir { path: String },
    /// Removes an empty directory.
    Rmdir { path: String },
    /// Removes a name of a file.
    Unlink { path: String },
    /// Creates a symbolic link to `target`.
    Symlink { target: String, path: String },
    /// Adds another name to a file.
    Link { from: String, to: String },
    /// Renames a file or directory.
    Rename { from: String, to: String, how: RenameHow },
    /// Writes bytes at an offset.
    Write { path: String, offset: u64, len: u64, seed: u32 },
    /// Writes bytes at the end.
    Append { path: String, len: u64, seed: u32 },
    /// Reads all bytes of a file.
    Read { path: String },
    /// Changes the size.
    Truncate { path: String, size: u64 },
    /// Allocates, zeroes or removes a range.
    Fallocate { path: String, how: FallocateHow, offset: u64, len: u64 },
    /// Sets an extended attribute.
    SetXattr { path: String, name: String, len: u64, seed: u32 },
    /// Removes an extended attribute.
    RemoveXattr { path: String, name: String },
    /// Changes the permission bits.
    Chmod { path: String, mode: u16 },
    /// Opens the file as `@path`.
    Open { path: String },
    /// Closes it.
    Close { path: String },
    /// Creates a file without a name in `dir`, open as `@path`.
    Tmpfile { dir: String, path: String },
    /// fsync(2) of a file or a directory.
    Fsync { path: String },
    /// fdatasync(2).
    Fdatasync { path: String },
    /// syncfs(2).
    Sync,
    /// Lets time pass.
    Wait { seconds: u32 },
    /// Takes a snapshot.
    CreateSnapshot { name: String },
    /// Deletes a snapshot.
    DeleteSnapshot { name: String },
    /// Begins a transaction.
    Begin,
    /// Commits the transaction.
    Commit,
    /// Rolls back the transaction.
    Rollback,
}

impl Op {
    /// Whether it changes nothing, but requests durability or lets time pass.
    #[must_use]
    pub fn is_sync(&self) -> bool {
        matches!(self, Self::Fsync { .. } | Self::Fdatasync { .. } | Self::Sync | Self::Wait { .. })
    }

    /// The same write limited to its first `done` bytes; `None` if it is not longer.
    #[must_use]
    pub fn shortened(&self, done: u64) -> Option<Self> {
        let mut op = self.clone();
        match &mut op {
            Self::Write { len, .. } | Self::Append { len, .. } if done < *len => *len = done,
            _ => return None,
        }
        Some(op)
    }
}

/// The byte at `position` in the content of `seed`; never 0, so that it differs from a hole.
#[must_use]
pub fn pattern_byte(seed: u32, position: u64) -> u8 {
    let mixed = ((u64::from(seed) << 32) ^ (position / 8)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    1 + ((mixed >> (8 * (position % 8))) as u8 % 255)
}

/// The `len` bytes at `offset` in the content of `seed`.
#[must_use]
pub fn pattern(seed: u32, offset: u64, len: u64) -> Vec<u8> {
    (offset..offset.saturating_add(len)).map(|position| pattern_byte(seed, position)).collect()
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Create { path } => write!(f, "create {path}"),
            Self::Mkdir { path } => write!(f, "mkdir {path}"),
            Self::Rmdir { path } => write!(f, "rmdir {path}"),
            Self::Unlink { path } => write!(f, "unlink {path}"),
            Self::Symlink { target, path } => write!(f, "symlink {target} {path}"),
            Self::Link { from, to } => write!(f, "link {from} {to}"),
            Self::Rename { from, to, how } => {
                let how = match how {
                    RenameHow::Replace => "",
                    RenameHow::NoReplace => " noreplace",
                    RenameHow::Exchange => " exchange",
                };
                write!(f, "rename {from} {to}{how}")
            }
            Self::Write { path, offset, len, seed } => write!(f, "write {path} {offset} {len} ={seed}"),
            Self::Append { path, len, seed } => write!(f, "append {path} {len} ={seed}"),
            Self::Read { path } => write!(f, "read {path}"),
            Self::Truncate { path, size } => write!(f, "truncate {path} {size}"),
            Self::Fallocate { path, how, offset, len } => {
                write!(f, "fallocate {path} {} {offset} {len}", how.word())
            }
            Self::SetXattr { path, name, len, seed } => write!(f, "setxattr {path} {name} {len} ={seed}"),
            Self::RemoveXattr { path, name } => write!(f, "removexattr {path} {name}"),
            Self::Chmod { path, mode } => write!(f, "chmod {path} {mode:o}"),
            Self::Open { path } => write!(f, "open {path}"),
            Self::Close { path } => write!(f, "close {path}"),
            Self::Tmpfile { dir, path } => write!(f, "tmpfile {dir} {path}"),
            Self::Fsync { path } => write!(f, "fsync {path}"),
            Self::Fdatasync { path } => write!(f, "fdatasync {path}"),
            Self::Sync => f.write_str("sync"),
            Self::Wait { seconds } => write!(f, "wait {seconds}"),
            Self::CreateSnapshot { name } => write!(f, "snapshot create {name}"),
            Self::DeleteSnapshot { name } => write!(f, "snapshot delete {name}"),
            Self::Begin => f.write_str("begin"),
            Self::Commit => f.write_str("commit"),
            Self::Rollback => f.write_str("rollback"),
        }
    }
}

/// A line that is not an operation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown operation `{0}`")]
pub struct NoOp(pub String);

impl FromStr for Op {
    type Err = NoOp;

    fn from_str(text: &str) -> Result<Self, NoOp> {
        let words: Vec<&str> = text.split_whitespace().collect();
        parse(&words).ok_or_else(|| NoOp(text.trim().to_owned()))
    }
}

fn parse(words: &[&str]) -> Option<Op> {
    let path = |word: &&str| (*word).to_owned();
    let seed = |word: &&str| word.strip_prefix('=')?.parse().ok();
    Some(match words {
        ["create", p] => Op::Create { path: path(p) },
        ["mkdir", p] => Op::Mkdir { path: path(p) },
        ["rmdir", p] => Op::Rmdir { path: path(p) },
        ["unlink", p] => Op::Unlink { path: path(p) },
        ["symlink", target, p] => Op::Symlink { target: path(target), path: path(p) },
        ["link", from, to] => Op::Link { from: path(from), to: path(to) },
        ["rename", from, to, rest @ ..] => {
            let how = match rest {
                [] => RenameHow::Replace,
                ["noreplace"] => RenameHow::NoReplace,
                ["exchange"] => RenameHow::Exchange,
                _ => return None,
            };
            Op::Rename { from: path(from), to: path(to), how }
        }
        ["write", p, offset, len, n] => {
            Op::Write { path: path(p), offset: offset.parse().ok()?, len: len.parse().ok()?, seed: seed(n)? }
        }
        ["append", p, len, n] => Op::Append { path: path(p), len: len.parse().ok()?, seed: seed(n)? },
        ["read", p] => Op::Read { path: path(p) },
        ["truncate", p, size] => Op::Truncate { path: path(p), size: size.parse().ok()? },
        ["fallocate", p, word, offset, len] => {
            let (how, _) = FallocateHow::WORDS.into_iter().find(|(_, w)| w == word)?;
            Op::Fallocate { path: path(p), how, offset: offset.parse().ok()?, len: len.parse().ok()? }
        }
        ["setxattr", p, name, len, n] => {
            Op::SetXattr { path: path(p), name: path(name), len: len.parse().ok()?, seed: seed(n)? }
        }
        ["removexattr", p, name] => Op::RemoveXattr { path: path(p), name: path(name) },
        ["chmod", p, mode] => Op::Chmod { path: path(p), mode: u16::from_str_radix(mode, 8).ok()? & 0o7777 },
        ["open", p] => Op::Open { path: path(p) },
        ["close", p] => Op::Close { path: path(p) },
        ["tmpfile", dir, p] => Op::Tmpfile { dir: path(dir), path: path(p) },
        ["fsync", p] => Op::Fsync { path: path(p) },
        ["fdatasync", p] => Op::Fdatasync { path: path(p) },
        ["sync"] => Op::Sync,
        ["wait", seconds] => Op::Wait { seconds: seconds.parse().ok()? },
        ["snapshot", "create", name] => Op::CreateSnapshot { name: path(name) },
        ["snapshot", "delete", name] => Op::DeleteSnapshot { name: path(name) },
        ["begin"] => Op::Begin,
        ["commit"] => Op::Commit,
        ["rollback"] => Op::Rollback,
        _ => return None,
    })
}

/// A sequence of operations on a mounted volume.
///
/// The `setup` is run first and the volume unmounted: its content is the start of the exploration. In text the setup
/// precedes a `|`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Workload {
    /// The operations before the exploration begins.
    pub setup: Vec<Op>,
    /// The operations that are explored.
    pub ops: Vec<Op>,
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |ops: &[Op]| ops.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        if !self.setup.is_empty() {
            write!(f, "{} | ", list(&self.setup))?;
        }
        f.write_str(&list(&self.ops))
    }
}

impl FromStr for Workload {
    type Err = NoOp;

    fn from_str(text: &str) -> Result<Self, NoOp> {
        let list = |text: &str| -> Result<Vec<Op>, NoOp> {
            text.split(';').filter(|op| !op.trim().is_empty()).map(str::parse).collect()
        };
        let (setup, ops) = text.split_once('|').unwrap_or(("", text));
        Ok(Self { setup: list(setup)?, ops: list(ops)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_value_are_the_same() {
        let text = "mkdir A; create A/foo; write A/foo 0 8192 =3 | create foo; symlink A/foo l; link foo bar; \
                    rename foo A/foo; rename a b noreplace; rename a b exchange; append foo 100 =4; read foo; truncate foo 7; \
                    fallocate foo zero-keep 4096 1024; setxattr foo user.x 40 =5; removexattr foo user.x; \
                    chmod foo 640; open foo; unlink foo; append @foo 9 =6; close foo; tmpfile A t; link @t A/t; \
                    rmdir B; fsync foo; fdatasync A; sync; wait 6; snapshot create s; snapshot delete s; \
                    begin; rollback; begin; commit";
        let workload: Workload = text.parse().unwrap();
        assert_eq!(workload.to_string(), text.split_whitespace().collect::<Vec<_>>().join(" "));
        assert_eq!((workload.setup.len(), workload.ops.len()), (3, 30));
        for (how, word) in FallocateHow::WORDS {
            let op = Op::Fallocate { path: "f".into(), how, offset: 0, len: 1 };
            assert_eq!(op.to_string(), format!("fallocate f {word} 0 1"));
            assert_eq!(op.to_string().parse(), Ok(op));
        }
    }

    #[test]
    fn nonsense_is_refused_with_what_it_was() {
        for text in
            ["creat foo", "create", "create a b", "write f 0 9", "write f 0 9 3", "chmod f 9", "rename a b over"]
        {
            let refused = Workload::from_str(&format!("sync; {text}")).unwrap_err();
            assert_eq!(refused, NoOp(text.into()));
        }
    }

    #[test]
    fn patterns_differ_and_hold_no_zero() {
        let (a, b) = (pattern(1, 0, 4096), pattern(2, 0, 4096));
        assert!(!a.contains(&0));
        assert!(a.iter().zip(&b).filter(|(a, b)| a == b).count() < 64);
        assert_eq!(pattern(1, 100, 10), a[100..110]);
        assert_ne!(pattern(1, 0, 512), a[512..1024]);
    }
}
