//! The command line of e2fsck, for calls by fsck(8), systemd and scripts under its names.
//!
//! Parsed like getopt(3): short options combined or separate, before and after DEVICE, repeated or not. Options that
//! Extant has are passed on; options without effect here are dropped; unsupported options are refused with one
//! sentence. Long options are `extant check`'s own.

use super::Line;
use check::report::exit;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// Options with a value: the last one applies, except that all values of `E` do.
const VALUED: &[u8] = b"bBCEIjlLNPz";

/// Parses the words after the program's name.
pub(super) fn read(words: impl Iterator<Item = OsString>) -> Line {
    let mut line = Options::default();
    let mut words = words;
    while let Some(word) = words.next() {
        let bytes = word.as_bytes();
        if bytes == b"--" {
            line.rest.push(word);
            line.rest.extend(words.by_ref());
        } else if bytes.len() < 2 || bytes[0] != b'-' || bytes[1] == b'-' {
            line.rest.push(word);
        } else if let Err(wrong) = line.cluster(&bytes[1..], &mut words) {
            return wrong;
        }
    }
    line.finish()
}

#[derive(Default)]
struct Options {
    /// One of -p, -n and -y.
    mode: Option<u8>,
    force: bool,
    verbose: bool,
    times: usize,
    version: bool,
    valued: Vec<(u8, OsString)>,
    rest: Vec<OsString>,
}

impl Options {
    /// Parses the letters after one dash.
    fn cluster(&mut self, letters: &[u8], words: &mut impl Iterator<Item = OsString>) -> Result<(), Line> {
        for (at, &letter) in letters.iter().enumerate() {
            if VALUED.contains(&letter) {
                let attached = letters.get(at + 1..).filter(|rest| !rest.is_empty());
                let value = match attached {
                    Some(value) => OsString::from_vec(value.to_vec()),
                    None => words.next().ok_or_else(|| wrong(letter, "a value is required"))?,
                };
                return self.value(letter, value);
            }
            match letter {
                b'a' | b'p' | b'n' | b'y' => {
                    let mode = if letter == b'a' { b'p' } else { letter };
                    if self.mode.is_some_and(|before| before != mode) {
                        let sentence = "only one of -p (or -a), -n and -y can be used";
                        return Err(Line::Wrong(sentence.into(), exit::OPERATIONAL));
                    }
                    self.mode = Some(mode);
                }
                b'f' => self.force = true,
                b'v' => self.verbose = true,
                b't' => self.times += 1,
                b'V' => self.version = true,
                // asking before each step, verbosity, emptying caches, preserving the list of bad blocks: no effect
                b'r' | b'd' | b'F' | b'k' => {}
                b'c' => {
                    return Err(wrong(letter, "blocks are not tested: use badblocks(8), and e2fsck -l with its list"));
                }
                b'D' => return Err(wrong(letter, "rebuilding directories is not supported: use e2fsck -D")),
                _ => return Err(wrong(letter, "unknown option; --help lists them")),
            }
        }
        Ok(())
    }

    fn value(&mut self, letter: u8, value: OsString) -> Result<(), Line> {
        match letter {
            // sizes of e2fsck's buffers
            b'I' | b'P' => return Ok(()),
            b'l' | b'L' => return Err(wrong(letter, "the list of bad blocks is checked, but not changed: use e2fsck")),
            b'j' => return Err(wrong(letter, "an external journal is not replayed: use e2fsck")),
            b'E' => {}
            _ => self.valued.retain(|(before, _)| *before != letter),
        }
        self.valued.push((letter, value));
        Ok(())
    }

    /// The equivalent command line of `extant check`.
    fn finish(self) -> Line {
        let mut line: Vec<OsString> = vec!["extant".into(), "check".into()];
        if self.version {
            line.push("--version".into());
            return Line::Run(line);
        }
        line.push("--as-fsck".into());
        line.extend(self.mode.map(flag));
        line.extend(self.force.then(|| flag(b'f')));
        line.extend(self.verbose.then(|| flag(b'v')));
        line.extend(std::iter::repeat_n(flag(b't'), self.times));
        for (letter, value) in self.valued {
            // in one word, since a value may begin with a dash
            let mut word = flag(letter);
            word.push(value);
            line.push(word);
        }
        line.extend(self.rest);
        Line::Run(line)
    }
}

fn flag(letter: u8) -> OsString {
    OsStr::from_bytes(&[b'-', letter]).to_owned()
}

fn wrong(letter: u8, why: &str) -> Line {
    Line::Wrong(format!("-{}: {why}", letter.escape_ascii()), exit::USAGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> Line {
        read(text.split(' ').map(OsString::from))
    }

    fn run(text: &str) -> Line {
        Line::Run(text.split(' ').map(OsString::from).collect())
    }

    #[test]
    fn as_getopt_reads_it() {
        for (text, checked) in [
            ("-a -C0 /dev/sda1", "-p -C0 /dev/sda1"),
            ("-C 3 /dev/sda1 -pfa", "-p -f -C3 /dev/sda1"),
            ("/dev/sda1 -y -f -y -vtt", "-y -f -v -t -t /dev/sda1"),
            ("-C -5 -n x", "-n -C-5 x"),
            ("-b 1 -b8193 -B 1024 x", "-b8193 -B1024 x"),
            ("-E nodiscard -E fixes_only x", "-Enodiscard -Efixes_only x"),
            ("-rdF -k -I 4 -P256 x", "x"),
            ("-n -- -x", "-n -- -x"),
            ("--json --threads 2 -n x", "-n --json --threads 2 x"),
        ] {
            assert_eq!(line(text), run(&format!("extant check --as-fsck {checked}")), "{text}");
        }
        assert_eq!(line("-V"), run("extant check --version"));
    }

    #[test]
    fn invalid_and_refused_options() {
        for (text, status) in [
            ("-n -p x", 8),
            ("-py x", 8),
            ("-Q x", 16),
            ("-s x", 16),
            ("-c x", 16),
            ("-l list x", 16),
            ("-j journal x", 16),
            ("-D x", 16),
            ("x -C", 16),
        ] {
            assert!(matches!(line(text), Line::Wrong(_, s) if s == status), "{text}: {:?}", line(text));
        }
    }
}
