//! Case folding of names in casefolded directories.
//!
//! A volume with the feature casefold has an encoding in its superblock; the only one defined is UTF-8 as of Unicode
//! 12.1. Two names are equal if their folded forms are: canonical decomposition, full case folding, and removal of
//! default ignorable characters. The directory hash is computed from the folded form too.
//!
//! A name that is not valid UTF-8 has no folded form and is compared byte by byte; a volume in strict mode does not
//! allow its creation. Characters that Unicode 12.1 does not assign are valid UTF-8, and fold to themselves.

use caseless::Caseless;
use regex_syntax::hir::{Class, ClassUnicode, HirKind};
use std::cmp::Ordering;
use std::sync::LazyLock;
use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::decompose_canonical;

/// `s_encoding` of UTF-8 as of Unicode 12.1, the only encoding.
pub const ENCODING_UTF8_12_1: u16 = 1;

/// The flag of `s_encoding_flags` by which names without a folded form are not allowed.
pub const FLAG_STRICT: u16 = 1;

/// The assigned characters; later versions of Unicode do not change their folding.
static ASSIGNED: LazyLock<ClassUnicode> = LazyLock::new(|| class(r"\p{Age=12.1}"));

/// The ignorable characters. Some are not assigned yet; U+180F became ignorable after 12.1.
static IGNORABLE: LazyLock<ClassUnicode> = LazyLock::new(|| class(r"[\p{Default_Ignorable_Code_Point}--\x{180F}]"));

fn class(pattern: &str) -> ClassUnicode {
    // only the two patterns above are parsed, both in a test: the other arms are unreachable
    match regex_syntax::parse(pattern).map(|hir| hir.into_kind()) {
        Ok(HirKind::Class(Class::Unicode(class))) => class,
        _ => ClassUnicode::empty(),
    }
}

fn contains(class: &ClassUnicode, c: char) -> bool {
    let place = class.ranges().binary_search_by(|range| match c {
        _ if range.end() < c => Ordering::Less,
        _ if range.start() > c => Ordering::Greater,
        _ => Ordering::Equal,
    });
    place.is_ok()
}

/// The folded form of `name`, or `None` where it has none.
///
/// As in the kernel, a stray continuation byte is a character that folds to itself, except at the start of the name;
/// with any other invalid UTF-8 the name has no folded form.
#[must_use]
pub fn fold(name: &[u8]) -> Option<Vec<u8>> {
    if name.is_ascii() {
        return Some(name.to_ascii_lowercase());
    }
    let is_continuation = |byte: &u8| matches!(byte, 0x80..=0xBF);
    if name.first().is_some_and(is_continuation) {
        return None;
    }
    let mut folded = Vec::with_capacity(name.len());
    let mut run = Vec::new();
    for chunk in name.utf8_chunks() {
        for c in chunk.valid().chars() {
            // neither kind has a combining class: marks are not reordered across it
            if contains(&IGNORABLE, c) {
                fold_run(&mut run, &mut folded);
            } else if !contains(&ASSIGNED, c) {
                fold_run(&mut run, &mut folded);
                folded.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
            } else {
                // before folding, as some characters fold only after decomposition
                decompose_canonical(c, |part| run.push(part));
            }
        }
        fold_run(&mut run, &mut folded);
        if !chunk.invalid().iter().all(is_continuation) {
            return None;
        }
        folded.extend_from_slice(chunk.invalid());
    }
    Some(folded)
}

/// Folds decomposed characters, sorts the result canonically and appends it to `folded`.
fn fold_run(run: &mut Vec<char>, folded: &mut Vec<u8>) {
    for c in run.drain(..).default_case_fold().nfd() {
        folded.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
    }
}

/// Whether `a` and `b` are the same name in a casefolded directory.
#[must_use]
pub fn eq(a: &[u8], b: &[u8]) -> bool {
    if a == b {
        return true;
    }
    if a.is_ascii() && b.is_ascii() {
        return a.eq_ignore_ascii_case(b);
    }
    match (fold(a), fold(b)) {
        (Some(a), Some(b)) => a == b,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn folded(name: &str) -> String {
        String::from_utf8(fold(name.as_bytes()).unwrap()).unwrap()
    }

    #[test]
    fn folds() {
        assert_eq!(folded("README.txt"), "readme.txt");
        assert_eq!(folded("Straße"), "strasse");
        assert_eq!(folded("ÄÖ"), "a\u{308}o\u{308}");
        assert_eq!(folded("Σίσυφος"), folded("ΣΊΣΥΦΟΣ"));
        assert_eq!(folded("각"), "\u{1100}\u{1161}\u{11A8}");
        assert_eq!(folded("ﬁ"), "fi");
        // soft hyphen and variation selector are ignored
        assert_eq!(folded("a\u{AD}b\u{FE0F}"), "ab");
        // canonical order: dot below before diaeresis
        assert_eq!(folded("a\u{308}\u{323}"), "a\u{323}\u{308}");
        // iota subscript folds to a letter and so ends a run of marks
        assert_eq!(folded("\u{1FC3}"), "\u{3B7}\u{3B9}");
    }

    #[test]
    fn no_folded_form() {
        assert_eq!(fold(b"\xFF"), None);
        assert_eq!(fold(b"caf\xC3"), None);
        assert_eq!(fold(b"\xC0\x80"), None);
        assert_eq!(fold(b"\x80A"), None);
        assert_eq!(fold(b"\xED\xA0\x80"), None);
    }

    #[test]
    fn folds_to_itself() {
        // U+1C89 came with Unicode 16 and has a small letter there; U+180F was assigned later, as ignorable; U+2065 is
        // ignorable and not assigned
        assert_eq!(folded("A\u{1C89}\u{180F}B"), "a\u{1C89}\u{180F}b");
        assert_eq!(folded("A\u{2065}B"), "ab");
        assert_eq!(fold(b"A\x80B"), Some(b"a\x80b".to_vec()));
        // marks around it are not reordered
        assert_eq!(folded("a\u{308}\u{1C8F}\u{323}"), "a\u{308}\u{1C8F}\u{323}");
    }

    #[test]
    fn same_name() {
        assert!(eq(b"Makefile", b"MAKEFILE"));
        assert!(eq("é".as_bytes(), "E\u{301}".as_bytes()));
        assert!(eq(b"\xFF", b"\xFF"));
        assert!(!eq(b"\xFFa", b"\xFFA"));
        assert!(!eq("é".as_bytes(), b"e"));
    }

    proptest! {
        #[test]
        fn any_bytes(a in proptest::collection::vec(any::<u8>(), 0..40), b in proptest::collection::vec(any::<u8>(), 0..40)) {
            prop_assert_eq!(eq(&a, &b), eq(&b, &a));
            let _ = fold(&a);
        }

        #[test]
        fn folding_twice_is_folding_once(name in ".*") {
            if let Some(once) = fold(name.as_bytes()) {
                prop_assert_eq!(fold(&once), Some(once.clone()));
                prop_assert!(eq(&once, name.as_bytes()));
            }
        }
    }
}
