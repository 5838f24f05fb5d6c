//! Access control lists in text form, as tar(1) stores them with `--acls`.

use format::acl::{Acl, AclEntry, Tag};
use std::collections::HashMap;

/// The ids of this machine's users and groups, by name: an archive has names where the machine that created it knew
/// any.
#[derive(Debug)]
pub(super) struct Names {
    users: HashMap<Vec<u8>, u32>,
    groups: HashMap<Vec<u8>, u32>,
}

impl Names {
    /// The users and groups of passwd(5) and group(5).
    pub(super) fn of_this_machine() -> Self {
        let read = |path: &str| by_name(&std::fs::read(path).unwrap_or_default());
        Self { users: read("/etc/passwd"), groups: read("/etc/group") }
    }
}

/// The third field of each line, by the first.
fn by_name(table: &[u8]) -> HashMap<Vec<u8>, u32> {
    let of_line = |line: &[u8]| {
        let mut fields = line.split(|byte| *byte == b':');
        Some((fields.next()?.to_vec(), number(fields.nth(1)?)?))
    };
    table.split(|byte| *byte == b'\n').filter_map(of_line).collect()
}

fn number(text: &[u8]) -> Option<u32> {
    // the last number is not a user or group
    std::str::from_utf8(text).ok()?.parse().ok().filter(|id| *id != u32::MAX)
}

/// Parses a list that the kernel would accept; `None` if it is invalid, or has a name that this machine does not know.
/// As with tar(1), a number takes precedence over a name.
pub(super) fn parse(text: &[u8], names: &Names) -> Option<Acl> {
    let mut entries = entries(text).map(|entry| parse_entry(entry, names)).collect::<Option<Vec<_>>>()?;
    entries.sort_by_key(|entry| match entry.tag {
        Tag::UserObj => (0, 0),
        Tag::User(id) => (1, id),
        Tag::GroupObj => (2, 0),
        Tag::Group(id) => (3, id),
        Tag::Mask => (4, 0),
        Tag::Other => (5, 0),
    });
    Some(Acl(entries)).filter(Acl::is_valid)
}

/// The permissions that a list grants to the owning group: none without such an entry.
pub(super) fn group(text: &[u8]) -> u16 {
    let group = entries(text).filter_map(fields).find(|(tag, who, _)| tag_word(tag) == Some("group") && who.is_empty());
    group.and_then(|(.., perm)| permissions(perm)).unwrap_or(0)
}

/// As [`group`], for a list in the binary form of an attribute.
pub(super) fn group_of(attribute: &[u8]) -> u16 {
    let list = Acl::from_xattr(attribute).unwrap_or_default();
    list.0.iter().find(|entry| entry.tag == Tag::GroupObj).map_or(0, |entry| entry.perm & 7)
}

/// The entries of a list, separated by newlines or commas, without comments and blanks.
fn entries(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let plain = |line: &'_ [u8]| line.iter().position(|byte| *byte == b'#').unwrap_or(line.len());
    let lines = text.split(|byte| *byte == b'\n').map(move |line| line.get(..plain(line)).unwrap_or(line));
    lines.flat_map(|line| line.split(|byte| *byte == b',')).map(<[u8]>::trim_ascii).filter(|entry| !entry.is_empty())
}

/// The tag, name and permissions of an entry. A number may follow, as in `user:name:rw-:1234`.
fn fields(entry: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let mut fields = entry.split(|byte| *byte == b':');
    Some((fields.next()?, fields.next()?, fields.next()?))
}

fn parse_entry(entry: &[u8], names: &Names) -> Option<AclEntry> {
    let (tag, who, perm) = fields(entry)?;
    let id = |known: &HashMap<Vec<u8>, u32>| number(who).or_else(|| known.get(who).copied());
    let tag = match (tag_word(tag)?, who.is_empty()) {
        ("user", true) => Tag::UserObj,
        ("user", false) => Tag::User(id(&names.users)?),
        ("group", true) => Tag::GroupObj,
        ("group", false) => Tag::Group(id(&names.groups)?),
        ("mask", true) => Tag::Mask,
        ("other", true) => Tag::Other,
        _ => return None,
    };
    Some(AclEntry { tag, perm: permissions(perm)? })
}

/// The tag that a word denotes, in full or by its first letter.
fn tag_word(word: &[u8]) -> Option<&'static str> {
    const TAGS: [&str; 4] = ["user", "group", "mask", "other"];
    TAGS.into_iter().find(|tag| word == tag.as_bytes() || Some(word) == tag.as_bytes().get(..1))
}

/// Parses `rwx`, with `-` for permissions not granted.
fn permissions(text: &[u8]) -> Option<u16> {
    let bit = |byte: u8, letter: u8, bit: u16| match byte {
        b'-' => Some(0),
        byte if byte == letter => Some(bit),
        _ => None,
    };
    let [r, w, x] = text else { return None };
    Some(bit(*r, b'r', 4)? | bit(*w, b'w', 2)? | bit(*x, b'x', 1)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Names {
        let users = by_name(b"root:x:0:0:root:/root:/bin/sh\nann:x:1001:1001::/:\nbroken\n77:x:5:5::/:\n");
        Names { users, groups: by_name(b"root:x:0:\nstaff:x:50:ann\n") }
    }

    #[test]
    fn lists_are_read_in_both_forms() {
        let expected = [
            (Tag::UserObj, 6),
            (Tag::User(77), 7),
            (Tag::User(1001), 6),
            (Tag::GroupObj, 4),
            (Tag::Group(50), 1),
            (Tag::Mask, 6),
            (Tag::Other, 0),
        ];
        let expected = Some(Acl(expected.map(|(tag, perm)| AclEntry { tag, perm }).to_vec()));
        let lines = b"user::rw-\nuser:ann:rw-\nuser:77:rwx\t#effective:rw-\ngroup::r--\ngroup:staff:--x\nmask::rw-\nother::---\n";
        assert_eq!(parse(lines, &names()), expected);
        let short = b"u::rw-,u:ann:rw-:1234,u:77:rwx,g::r--,g:staff:--x:50,m::rw-,o::---";
        assert_eq!(parse(short, &names()), expected);
        assert_eq!((group(lines), group(short)), (4, 4));
    }

    #[test]
    fn invalid_lists_and_unknown_names_are_refused() {
        for text in [
            "user::rw-,user:bob:rw-,group::r--,mask::rw-,other::---",
            "user::rw-,group:ann:rw-,group::r--,mask::rw-,other::---",
            "user::rw-,user:4294967295:rw-,group::r--,mask::rw-,other::---",
            "user::rw-,user:ann:rw-,group::r--,other::---",
            "user::rwz,group::r--,other::---",
            "user::rw-,group::r--",
            "user::rw-,group::r--,mask:1:r--,other::---",
            "owner@:rwxp::allow",
            "",
        ] {
            assert_eq!(parse(text.as_bytes(), &names()), None, "{text}");
        }
        assert_eq!(group(b"user::rw-,group:5:rwx,group::r-x"), 5);
        assert_eq!((group(b"user::rw-"), group(b"group::?"), group(b"")), (0, 0, 0));
    }
}
