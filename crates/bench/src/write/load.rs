//! The load files of dbench, which list the requests of a file server's client, and their replay by many clients at
//! once.
//!
//! A line is the name of an SMB request, its parameters, and the status that the server returned. Names are relative to
//! `\clients\client1`; each client works in a directory of its own. A request that failed on the server may fail or
//! succeed. Range locks are skipped: they do not reach a file system.

use super::clients::{Client, Make};
use crate::error::Trying;
use crate::{Error, Result};
use std::path::Path;
use std::sync::Barrier;

/// The client's directory in the load file.
const HOME: &str = "clients/client1";
/// Maximum size of a request in bytes, and the size of the buffer that is written.
const LARGEST: u64 = 1 << 20;

/// A parsed load file.
#[derive(Debug, Clone)]
pub struct Load {
    steps: Vec<Step>,
}

#[derive(Debug, Clone)]
struct Step {
    what: Action,
    /// Whether the request succeeded on the server.
    done: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Action {
    Open { path: String, make: Make, handle: u32 },
    Close(u32),
    Read { handle: u32, offset: u64, len: u64 },
    Write { handle: u32, offset: u64, len: u64 },
    Flush(u32),
    Look(u32),
    Touch(u32),
    Stat(String),
    List(String),
    Space,
    Unlink(String),
    Rename(String, String),
    Mkdir(String),
    RemoveTree(String),
}

impl Load {
    /// Reads a load file.
    ///
    /// # Errors
    /// [`Error::Io`], and [`Error::Failed`] for a line that cannot be parsed.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).trying("read", path)?;
        Self::parse(&text).map_err(|what| Error::Failed(format!("{}, {what}", path.display())))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut steps = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let words = words(line);
            let step = step(&words).ok_or_else(|| format!("line {}: not a request of a client: {line}", number + 1))?;
            steps.extend(step);
        }
        Ok(Self { steps })
    }

    /// Replays the first fraction `part` of it (1 is all) by all clients at once, each in its own directory, and
    /// returns the total number of bytes read and written.
    ///
    /// # Errors
    /// The first error of a client in a request that succeeded on the server.
    pub(super) fn replay(&self, clients: &mut [Box<dyn Client>], part: f64) -> Result<u64> {
        let steps = &self.steps[..((self.steps.len() as f64 * part.min(1.0)) as usize)];
        let barrier = Barrier::new(clients.len());
        let barrier = &barrier;
        std::thread::scope(|scope| {
            let running: Vec<_> = clients
                .iter_mut()
                .enumerate()
                .map(|(number, client)| {
                    scope.spawn(move || {
                        barrier.wait();
                        run(steps, &mut **client, &format!("client{}", number + 1))
                    })
                })
                .collect();
            running.into_iter().try_fold(0, |sum, client| {
                let bytes = client.join().map_err(|_| Error::Failed("a client panicked".into()))??;
                Ok(sum + bytes)
            })
        })
    }
}

/// The words of a line: a name in quotation marks is one.
fn words(line: &str) -> Vec<&str> {
    let mut words = Vec::new();
    for (number, part) in line.split('"').enumerate() {
        if number % 2 == 1 {
            words.push(part);
        } else {
            words.extend(part.split_whitespace());
        }
    }
    words
}

fn number(word: &str) -> Option<u64> {
    match word.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => word.parse().ok(),
    }
}

fn handle(word: &str) -> Option<u32> {
    number(word)?.try_into().ok()
}

/// A name below the client's directory; empty for that directory and what is above it.
fn name(word: &str) -> Option<String> {
    let path = word.replace('\\', "/");
    let path = path.trim_matches('/');
    if HOME.starts_with(path) {
        return Some(String::new());
    }
    Some(path.strip_prefix(HOME)?.trim_start_matches('/').to_owned())
}

/// The request in a line: `None` where it is unknown, `Some(None)` where it is skipped.
fn step(words: &[&str]) -> Option<Option<Step>> {
    // older files begin each line with the time
    let words = if words.first()?.parse::<f64>().is_ok() { &words[1..] } else { words };
    let (status, words) = words.split_last()?;
    let what = match *words {
        ["NTCreateX", path, options, disposition, id] => Action::Open {
            path: name(path)?,
            make: Make::of(number(options)? & 1 == 1, number(disposition)?)?,
            handle: handle(id)?,
        },
        ["Close", id] => Action::Close(handle(id)?),
        ["ReadX", id, offset, len, _] => {
            Action::Read { handle: handle(id)?, offset: number(offset)?, len: number(len)?.min(LARGEST) }
        }
        ["WriteX", id, offset, len, _] => {
            Action::Write { handle: handle(id)?, offset: number(offset)?, len: number(len)?.min(LARGEST) }
        }
        ["Flush", id] => Action::Flush(handle(id)?),
        ["QUERY_FILE_INFORMATION", id, _] => Action::Look(handle(id)?),
        ["SET_FILE_INFORMATION", id, _] => Action::Touch(handle(id)?),
        ["QUERY_PATH_INFORMATION", path, _] => Action::Stat(name(path)?),
        ["QUERY_FS_INFORMATION", _] => Action::Space,
        ["FIND_FIRST", pattern, ..] => {
            Action::List(name(pattern)?.rsplit_once('/').map_or("", |(dir, _)| dir).to_owned())
        }
        ["Unlink", path, ..] => Action::Unlink(name(path)?),
        ["Rename", old, new] => Action::Rename(name(old)?, name(new)?),
        ["Mkdir", path] => match name(path)? {
            path if path.is_empty() => return Some(None),
            path => Action::Mkdir(path),
        },
        ["Deltree", path] => Action::RemoveTree(name(path)?),
        ["LockX" | "UnlockX" | "Sleep", ..] => return Some(None),
        _ => return None,
    };
    Some(Some(Step { what, done: matches!(*status, "NT_STATUS_OK" | "0x00000000" | "SUCCESS") }))
}

/// Runs the requests in the directory `home`, and returns the number of bytes read and written.
fn run(steps: &[Step], client: &mut dyn Client, home: &str) -> Result<u64> {
    let content: Vec<u8> = (0..LARGEST).map(|at| (at % 251) as u8).collect();
    let mut buf = vec![0; LARGEST as usize];
    let mut bytes = 0;
    let at = |path: &str| if path.is_empty() { home.to_owned() } else { format!("{home}/{path}") };
    for Step { what, done } in steps {
        let outcome = match what {
            Action::Open { path, make, handle } => {
                let opened = client.open(*handle, &at(path), *make);
                if opened.is_ok() && !done {
                    client.close(*handle)?;
                }
                opened
            }
            Action::Close(handle) => client.close(*handle),
            Action::Read { handle, offset, len } => {
                client.read_some(*handle, *offset, &mut buf[..*len as usize]).map(|read| bytes += read as u64)
            }
            Action::Write { handle, offset, len } => {
                bytes += len;
                client.write_all(*handle, *offset, &content[..*len as usize])
            }
            Action::Flush(handle) => client.flush(*handle),
            Action::Look(handle) => client.look(*handle),
            Action::Touch(handle) => client.touch(*handle),
            Action::Stat(path) => client.tree().stat(&at(path)),
            Action::List(path) => client.list(&at(path)).map(drop),
            Action::Space => client.space(),
            Action::Unlink(path) => client.tree().unlink(&at(path)),
            Action::Rename(old, new) => client.rename(&at(old), &at(new)),
            Action::Mkdir(path) => client.tree().mkdir(&at(path)),
            Action::RemoveTree(path) => {
                // it may already be missing
                let _ = client.tree().stat(&at(path)).and_then(|()| remove_tree(client, &at(path)));
                Ok(())
            }
        };
        if *done {
            outcome?;
        }
    }
    // after a partial replay files may still be open
    client.close_all()?;
    if client.tree().stat(home).is_ok() {
        remove_tree(client, home)?;
    }
    Ok(bytes)
}

fn remove_tree(client: &mut dyn Client, path: &str) -> Result<()> {
    for (name, is_dir) in client.list(path)? {
        let path = format!("{path}/{name}");
        if is_dir { remove_tree(client, &path)? } else { client.tree().unlink(&path)? }
    }
    client.tree().rmdir(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_understood() {
        let text = r#"
            Deltree "\clients\client1" NT_STATUS_OK
            Mkdir "\clients" NT_STATUS_OK
            NTCreateX "\clients\client1\a b" 0x40 0x2 7 NT_STATUS_OK
            1.5 WriteX 7 10 20 20 NT_STATUS_OK
            LockX 7 0 1 NT_STATUS_OK
            FIND_FIRST "\clients\client1\dir\*.JNK" 260 1366 0 NT_STATUS_NO_SUCH_FILE
        "#;
        let load = Load::parse(text).unwrap();
        let what: Vec<_> = load.steps.iter().map(|step| (&step.what, step.done)).collect();
        let make = Make::of(false, 2).unwrap();
        assert_eq!(
            what,
            [
                (&Action::RemoveTree(String::new()), true),
                (&Action::Open { path: "a b".into(), make, handle: 7 }, true),
                (&Action::Write { handle: 7, offset: 10, len: 20 }, true),
                (&Action::List("dir".into()), false),
            ]
        );
        for wrong in ["Dance 7 NT_STATUS_OK", "Close NT_STATUS_OK", "Unlink \"\\elsewhere\" 0x6 NT_STATUS_OK"] {
            assert!(Load::parse(wrong).unwrap_err().starts_with("line 1"), "{wrong}");
        }
    }
}
