//! The names under which other programs call this one: fsck(8) calls `fsck.TYPE`, mkfs(8) `mkfs.TYPE`, mount(8)
//! `mount.TYPE`. Their command lines are translated to `extant COMMAND …`.

use std::ffi::{OsStr, OsString};
use std::path::Path;

mod fsck;

/// The meaning of a command line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Line {
    /// Run this command line, the program's name first.
    Run(Vec<OsString>),
    /// Nothing to do.
    Nothing,
    /// A wrong command line: one sentence, and the exit status.
    Wrong(String, u8),
}

/// Names under which the program is `extant check`.
const CHECKERS: [&str; 6] = ["fsck.extant", "fsck.ext2", "fsck.ext3", "fsck.ext4", "fsck.rext3", "e2fsck"];

/// Names under which the program is `extant mkfs`, and the type of each.
const MAKERS: [(&str, &str); 4] =
    [("mkfs.extant", "extant"), ("mkfs.ext2", "ext2"), ("mkfs.ext3", "ext3"), ("mkfs.ext4", "ext4")];

/// Names under which mount(8) calls the program: the type in fstab, and the types in the list of mounts.
const MOUNTERS: [&str; 3] = ["mount.extant", "mount.fuse.extant", "mount.fuseblk.extant"];

/// Whether a command line is from mount.fuse(8), which runs the type's program as `extant DEVICE DIR -o OPTIONS` if
/// `mount.fuse.extant` is not installed. No command has a slash in its name.
fn is_mount_fuse(line: &[OsString]) -> bool {
    line.get(1)
        .is_some_and(|first| first.as_encoded_bytes().contains(&b'/') && !first.as_encoded_bytes().starts_with(b"-"))
}

/// Commands with commands of their own, and so with a `help` among them.
const GROUPS: [&str; 3] = ["bench", "kero", "snapshot"];

/// Whether a command line is for the help of `help` itself, which the parser does not have: `extant help --help`.
fn is_help_of_help(line: &[OsString]) -> bool {
    let (group, help, flag) = match line {
        [_, help, flag] => (None, help, flag),
        [_, group, help, flag] => (Some(group), help, flag),
        _ => return false,
    };
    let is_group = group.is_none_or(|group| GROUPS.iter().any(|name| group == name));
    is_group && help == "help" && (flag == "--help" || flag == "-h")
}

/// The name under which the program was called.
fn name_of(line: &[OsString]) -> &str {
    line.first().and_then(|name| Path::new(name).file_name()).and_then(OsStr::to_str).unwrap_or("extant")
}

/// The command that the program is under the name of a command line, and its usage under that name; `None` for the
/// program's own name.
pub(crate) fn usage(line: &[OsString]) -> Option<(&'static str, String)> {
    let name = name_of(line);
    if CHECKERS.contains(&name) {
        Some(("check", format!("{name} [OPTIONS] <DEVICE>")))
    } else if MAKERS.iter().any(|row| row.0 == name) {
        Some(("mkfs", format!("{name} [OPTIONS] <DEVICE> [SIZE]")))
    } else if MOUNTERS.contains(&name) {
        Some(("mount", format!("{name} <DEVICE> <DIR> [-sfnv] [-o OPTIONS]")))
    } else {
        None
    }
}

/// Interprets a command line according to the name of the program.
pub(crate) fn read(mut line: Vec<OsString>) -> Line {
    let name = name_of(&line);
    let rest = line.iter().skip(1).cloned();
    if CHECKERS.contains(&name) {
        fsck::read(rest)
    } else if let Some((_, kind)) = MAKERS.iter().find(|row| row.0 == name) {
        Line::Run(["extant", "mkfs", "-t", kind].map(OsString::from).into_iter().chain(rest).collect())
    } else if MOUNTERS.contains(&name) {
        mount(rest)
    } else if is_mount_fuse(&line) {
        // if it is not such a line, the usual parser reports the error
        Some(mount(rest)).filter(|read| !matches!(read, Line::Wrong(..))).unwrap_or(Line::Run(line))
    } else if is_help_of_help(&line) {
        // the help of the program, or of the command, includes that
        line.remove(line.len() - 2);
        Line::Run(line)
    } else {
        Line::Run(line)
    }
}

/// The command line of mount(8) for its helpers: `mount.TYPE DEVICE DIR [-sfnv] [-N NAMESPACE] [-o OPTIONS] [-t TYPE]`.
fn mount(words: impl Iterator<Item = OsString>) -> Line {
    let mut places = Vec::new();
    let mut line: Vec<OsString> = vec!["extant".into(), "mount".into(), "--as-mount".into()];
    let mut words = words;
    let mut pretend = false;
    while let Some(word) = words.next() {
        let flags = match word.to_str().and_then(|word| word.strip_prefix('-')) {
            Some(flags) if !flags.is_empty() => flags.to_owned(),
            _ => {
                places.push(word);
                continue;
            }
        };
        for (at, flag) in flags.char_indices() {
            match flag {
                // unknown options and the list of mounts are handled by mount(8)
                's' | 'n' | 'v' => {}
                'f' => pretend = true,
                'o' | 't' | 'N' => {
                    let attached = &flags[at + 1..];
                    let value = if attached.is_empty() { words.next() } else { Some(attached.into()) };
                    match (flag, value) {
                        (_, None) => return wrong(format!("-{flag} needs a value")),
                        ('o', Some(options)) => line.extend(["-o".into(), options]),
                        ('N', Some(_)) => return wrong("-N: other mount namespaces are not supported"),
                        _ => {}
                    }
                    break;
                }
                other => return wrong(format!("unknown option -{other}: see mount(8), \"external helpers\"")),
            }
        }
    }
    if places.len() != 2 {
        return wrong("DEVICE and DIR are required: mount.extant DEVICE DIR [-sfnv] [-o OPTIONS]");
    }
    if pretend {
        return Line::Nothing;
    }
    // a name may begin with a dash, or be a number
    line.push("--".into());
    line.append(&mut places);
    Line::Run(line)
}

/// Rejects a command line that mount(8) would not pass.
fn wrong(sentence: impl Into<String>) -> Line {
    Line::Wrong(sentence.into(), 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> Line {
        read(text.split(' ').map(OsString::from).collect())
    }

    fn run(text: &str) -> Line {
        Line::Run(text.split(' ').map(OsString::from).collect())
    }

    #[test]
    fn checkers() {
        assert_eq!(line("/sbin/fsck.ext4 -a -C0 /dev/sda1"), run("extant check --as-fsck -p -C0 /dev/sda1"));
        assert_eq!(line("e2fsck -fn x"), run("extant check --as-fsck -n -f x"));
        assert_eq!(line("fsck.rext3 x"), run("extant check --as-fsck x"));
        assert_eq!(line("fsck.extant"), run("extant check --as-fsck"));
    }

    #[test]
    fn makers() {
        assert_eq!(line("/sbin/mkfs.ext3 -L x /dev/sda1"), run("extant mkfs -t ext3 -L x /dev/sda1"));
        assert_eq!(line("mkfs.extant -t ext2 x 8M"), run("extant mkfs -t extant -t ext2 x 8M"));
    }

    #[test]
    fn other_names_change_nothing() {
        assert_eq!(line("/usr/bin/extant ls x"), run("/usr/bin/extant ls x"));
        assert_eq!(line("extant-0.1 --help"), run("extant-0.1 --help"));
        assert_eq!(line("extant ./volume.img"), run("extant ./volume.img"));
        assert_eq!(read(Vec::new()), Line::Run(Vec::new()));
    }

    #[test]
    fn usage_has_the_name_called() {
        let usage = |name: &str| usage(&[OsString::from(name)]);
        assert_eq!(usage("/sbin/fsck.ext4"), Some(("check", "fsck.ext4 [OPTIONS] <DEVICE>".to_owned())));
        assert_eq!(usage("mkfs.ext3"), Some(("mkfs", "mkfs.ext3 [OPTIONS] <DEVICE> [SIZE]".to_owned())));
        assert!(usage("mount.extant").is_some_and(|(command, _)| command == "mount"));
        assert_eq!((usage("extant"), usage("/usr/bin/other")), (None, None));
    }

    #[test]
    fn help_of_help() {
        assert_eq!(line("extant help --help"), run("extant --help"));
        assert_eq!(line("extant snapshot help -h"), run("extant snapshot -h"));
        for text in ["extant help check", "extant ls help --help", "extant help", "extant help check --help"] {
            assert_eq!(line(text), run(text), "{text}");
        }
    }

    #[test]
    fn mount_helper() {
        let plain = "extant mount --as-mount -o ro,nodev -- /dev/sda1 /mnt";
        for text in [
            "mount.extant /dev/sda1 /mnt -o ro,nodev",
            "/sbin/mount.extant /dev/sda1 /mnt -sn -o ro,nodev",
            "mount.extant -v -oro,nodev /dev/sda1 -t fuse.extant /mnt",
            "mount.extant -svoro,nodev /dev/sda1 /mnt",
            "/sbin/mount.fuse.extant /dev/sda1 /mnt -o ro,nodev",
            "mount.fuseblk.extant /dev/sda1 /mnt -o ro,nodev",
            "extant /dev/sda1 /mnt -o ro,nodev",
        ] {
            assert_eq!(line(text), run(plain), "{text}");
        }
        assert_eq!(line("mount.extant a b"), run("extant mount --as-mount -- a b"));
        assert_eq!(line("mount.extant a b -f -o ro"), Line::Nothing);
        for text in [
            "mount.extant a",
            "mount.extant a b c",
            "mount.extant a b -o",
            "mount.extant a b -x",
            "mount.extant a b -N 3",
        ] {
            assert!(matches!(line(text), Line::Wrong(..)), "{text}");
        }
    }
}
