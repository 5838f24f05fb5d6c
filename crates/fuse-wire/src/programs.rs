//! The paths of the helper programs for mounting.
//!
//! mount(8) runs its helpers with an empty environment. Without PATH only /bin and /usr/bin are searched, while
//! losetup(8) is in /usr/sbin on most systems. So the directories of an administrator's PATH are always searched as
//! well.

use std::env;
use std::ffi::OsStr;
use std::path::PathBuf;

/// The directories searched after those of PATH.
const USUAL: [&str; 6] = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// The path of a program; `None` where it is not found.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    find_in(env::var_os("PATH").as_deref(), name)
}

fn find_in(path: Option<&OsStr>, name: &str) -> Option<PathBuf> {
    let named = path.into_iter().flat_map(env::split_paths).filter(|dir| dir.is_absolute());
    named.chain(USUAL.map(PathBuf::from)).map(|dir| dir.join(name)).find(|program| program.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn found_without_a_path_and_by_it_first() {
        let empty = OsStr::new("");
        for path in [None, Some(empty), Some(OsStr::new("/no/such/folder"))] {
            assert!(find_in(path, "sh").is_some_and(|found| found.is_absolute()), "{path:?}");
        }
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::write(folder.path().join("sh"), "").expect("a file");
        assert_eq!(find_in(Some(folder.path().as_os_str()), "sh"), Some(folder.path().join("sh")));
        assert_eq!(find_in(None, "no-such-program"), None);
    }
}
