//! Duplicate names in a directory: every entry but one is renamed as by e2fsck, so that a user finds the same `NAME~0`
//! whichever tool repaired the volume.

use format::InodeNo;
use format::casefold;
use format::hash::NameHash;
use std::collections::{HashMap, HashSet};

/// A directory entry, independent of its location.
#[derive(Debug, Clone)]
pub(super) struct Named {
    pub(super) inode: InodeNo,
    pub(super) name: Vec<u8>,
    pub(super) file_type: u8,
    /// The hash that entries of encrypted casefolded directories carry.
    pub(super) hash: Option<NameHash>,
}

/// Bytes of the longest name.
const LONGEST: usize = 255;

/// Maximum number of names of about the same length that are tried for one entry. A short name has few, which repeat.
const TRIES: usize = 100;

/// Makes names unique: a second entry for the same inode is dropped. Of entries for several inodes the one with the
/// highest number retains the name; the others are renamed, or dropped where names cannot be changed (`fixed`).
pub(super) fn make_unique(mut names: Vec<Named>, folded: bool, fixed: bool) -> Vec<Named> {
    let key = |name: &[u8]| folded.then(|| casefold::fold(name)).flatten().unwrap_or_else(|| name.to_vec());
    let mut pairs: HashSet<(Vec<u8>, InodeNo)> = HashSet::new();
    names.retain(|named| pairs.insert((key(&named.name), named.inode)));
    let mut groups: HashMap<Vec<u8>, Vec<usize>> = HashMap::new();
    for (n, named) in names.iter().enumerate() {
        groups.entry(key(&named.name)).or_default().push(n);
    }
    let mut taken: HashSet<Vec<u8>> = groups.keys().cloned().collect();
    let mut waiting: Vec<Vec<usize>> = groups.into_values().filter(|group| group.len() > 1).collect();
    for group in &mut waiting {
        group.sort_by_key(|n| std::cmp::Reverse(names.get(*n).map(|named| named.inode)));
    }
    waiting.sort_by(|a, b| name_of(&names, a).cmp(name_of(&names, b)));
    let mut gone: HashSet<usize> = HashSet::new();
    // the last name tried for each name: thousands may be equal, and the search continues instead of restarting at 0
    let mut last: HashMap<Vec<u8>, Vec<u8>> = HashMap::new();
    let mut counts: HashMap<Vec<u8>, u64> = HashMap::new();
    while !waiting.is_empty() {
        for group in &mut waiting {
            // every second one, as e2fsck does in a pass, and the rest in the next
            for n in group.iter().skip(1).step_by(2) {
                let Some(named) = names.get_mut(*n) else { continue };
                if fixed {
                    gone.insert(*n);
                    continue;
                }
                let mut name = last.get(&named.name).unwrap_or(&named.name).clone();
                let mut tries = 0;
                while taken.contains(&key(&name)) && tries < TRIES {
                    name = successor(&name, folded);
                    tries += 1;
                }
                if tries == TRIES {
                    name = longer(&named.name, folded, &mut counts, |name| taken.contains(&key(name)));
                }
                taken.insert(key(&name));
                last.insert(std::mem::replace(&mut named.name, name.clone()), name);
            }
            *group = group.iter().copied().step_by(2).collect();
        }
        waiting.retain(|group| group.len() > 1);
    }
    let mut n = 0..;
    names.retain(|_| n.next().is_none_or(|n| !gone.contains(&n)));
    names
}

/// The name with `~` and a number appended, however long; `counts` has the next number for each name.
fn longer(name: &[u8], text: bool, counts: &mut HashMap<Vec<u8>, u64>, is_taken: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let count = counts.entry(name.to_vec()).or_default();
    loop {
        let number = format!("~{count}");
        let most = name.len().min(LONGEST - number.len());
        let next = [stem_of(name, most, text), number.as_bytes()].concat();
        // terminates: every number yields another name, and at most as many are taken as there are entries
        *count += 1;
        if !is_taken(&next) {
            return next;
        }
    }
}

/// At most `most` bytes of a name; whole characters where it must remain valid UTF-8.
fn stem_of(name: &[u8], most: usize, text: bool) -> &[u8] {
    let stem = name.get(..most).unwrap_or(name);
    if text && std::str::from_utf8(name).is_ok() {
        return stem.utf8_chunks().next().map_or(&[], |chunk| chunk.valid().as_bytes());
    }
    stem
}

fn name_of<'n>(names: &'n [Named], group: &[usize]) -> &'n [u8] {
    group.first().and_then(|n| names.get(*n)).map_or(&[], |named| &named.name)
}

/// The name to try after this one: with `~0` at its end, within the words of four bytes that the name has; and where it
/// ends in `~` and a number already, with the next number, as long as before. `text` where it must remain valid UTF-8.
fn successor(name: &[u8], text: bool) -> Vec<u8> {
    let digits = name.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    let stem = name.len() - digits;
    let Some(sign) = stem.checked_sub(1).filter(|at| digits > 0 && name.get(*at) == Some(&b'~')) else {
        let most = name.len().next_multiple_of(4).min(LONGEST) - 2;
        return [stem_of(name, most, text), b"~0"].concat();
    };
    let mut next = name.to_vec();
    for byte in next.iter_mut().rev().take(digits) {
        match *byte {
            b'9' => *byte = b'0',
            _ => {
                *byte += 1;
                return next;
            }
        }
    }
    // one digit more takes the place of the last byte of the stem
    match (sign.checked_sub(1), next.as_mut_slice()) {
        (Some(1..), all) => {
            if let Some([before, sign]) = all.get_mut(sign - 1..=sign) {
                (*before, *sign) = (b'~', b'1');
            }
        }
        (Some(0), [first, ..]) => {
            let next = *first + u8::from(*first < 0x7F);
            *first = if first.is_ascii_alphanumeric() && next.is_ascii_alphanumeric() { next } else { b'a' };
        }
        (_, [first, ..]) => *first = b'a',
        (_, []) => {}
    }
    next
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(names: &[(u32, &str)]) -> Vec<(u32, String)> {
        let named = |(inode, name): &(u32, &str)| Named {
            inode: InodeNo(*inode),
            name: name.as_bytes().to_vec(),
            file_type: 1,
            hash: None,
        };
        let all = make_unique(names.iter().map(named).collect(), false, false);
        all.into_iter().map(|n| (n.inode.get(), String::from_utf8(n.name).expect("text"))).collect()
    }

    /// The names chosen by e2fsck 1.47 for an entry with the same name as another.
    #[test]
    fn a_second_name_is_the_one_that_e2fsck_chooses() {
        let long = "a".repeat(255);
        let cut = |len: usize| long[..len].to_owned();
        for (name, expected) in [
            ("foo".to_owned(), "fo~0".to_owned()),
            ("ab".into(), "ab~0".into()),
            ("abcd".into(), "ab~0".into()),
            ("abcde".into(), "abcde~0".into()),
            ("abcdef".into(), "abcdef~0".into()),
            ("abcdefg".into(), "abcdef~0".into()),
            ("abcdefgh".into(), "abcdef~0".into()),
            ("12".into(), "12~0".into()),
            ("foo~".into(), "fo~0".into()),
            ("foo~a1".into(), "foo~a1~0".into()),
            ("foo~01".into(), "foo~02".into()),
            ("foo~09".into(), "foo~10".into()),
            ("foo~9".into(), "fo~10".into()),
            ("foo~99".into(), "fo~100".into()),
            ("f~9~9".into(), "f~~10".into()),
            ("~0".into(), "~1".into()),
            ("~9".into(), "a0".into()),
            ("~99".into(), "a00".into()),
            ("a~9".into(), "b~0".into()),
            ("a~99".into(), "b~00".into()),
            ("ab~9".into(), "a~10".into()),
            ("foo~12345678901234567890".into(), "foo~12345678901234567891".into()),
            (cut(255), cut(253) + "~0"),
            (cut(254), cut(253) + "~0"),
            (cut(253), cut(253) + "~0"),
            (cut(252), cut(250) + "~0"),
            (cut(253) + "~9", cut(252) + "~10"),
            (cut(252) + "~9", cut(251) + "~10"),
            (cut(252) + "~99", cut(251) + "~100"),
        ] {
            assert_eq!(after(&[(12, &name), (13, &name)]), [(12, expected), (13, name.clone())]);
        }
    }

    #[test]
    fn of_many_the_highest_inode_retains_the_name() {
        let five = [(14, "dupl"), (12, "dupl"), (16, "dupl"), (13, "dupl"), (15, "dupl")];
        let expected = [(14, "du~2"), (12, "du~3"), (16, "dupl"), (13, "du~1"), (15, "du~0")];
        assert_eq!(after(&five), expected.map(|(inode, name)| (inode, name.to_owned())));
        let twelve: Vec<(u32, &str)> = (12..24).map(|inode| (inode, "foo")).collect();
        let names: Vec<String> = after(&twelve).into_iter().map(|(_, name)| name).collect();
        let expected = ["fo~5", "fo~8", "fo~4", "f~10", "fo~3", "fo~7", "fo~2", "fo~9", "fo~1", "fo~6", "fo~0", "foo"];
        assert_eq!(names, expected);
        // a name of another entry is skipped
        let taken = [(12, "foo~0"), (13, "foo~1"), (14, "foo~0"), (15, "same"), (15, "same")];
        let expected = [(12, "foo~2"), (13, "foo~1"), (14, "foo~0"), (15, "same")];
        assert_eq!(after(&taken), expected.map(|(inode, name)| (inode, name.to_owned())));
    }

    #[test]
    fn thousands_of_one_name_take_no_time() {
        for name in ["thousands", "same", "a", "~9", &"x".repeat(255)] {
            let many: Vec<(u32, &str)> = (12..20_012).map(|inode| (inode, name)).collect();
            let names: HashSet<String> = after(&many).into_iter().map(|(_, name)| name).collect();
            assert_eq!(names.len(), many.len());
            assert!(names.iter().all(|name| (1..=255).contains(&name.len())));
        }
    }

    #[test]
    fn pairs_of_all_short_names_take_no_time() {
        let short: Vec<String> = (0..30_000u32).map(|n| format!("{n:04x}")).collect();
        let many: Vec<(u32, &str)> = (0..60_000u32).map(|n| (12 + n, short[n as usize / 2].as_str())).collect();
        let names: HashSet<String> = after(&many).into_iter().map(|(_, name)| name).collect();
        assert_eq!(names.len(), many.len());
    }
}
