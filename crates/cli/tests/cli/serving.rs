//! A device served to NBD clients: messages, socket, termination.

use crate::common::{EXTANT, command, exits, fails, text};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use testkit::tools::{find, must, skip};

const MIB: u64 = 1 << 20;

/// A server that accepts connections.
pub(crate) struct Served {
    pub(crate) child: Child,
    pub(crate) said: String,
    pub(crate) socket: PathBuf,
}

impl Served {
    fn new(device: &str, socket: PathBuf, more: &[&str]) -> Self {
        Self::start(&["serve", device], socket, more)
    }

    /// Starts a server with these arguments.
    pub(crate) fn start(words: &[&str], socket: PathBuf, more: &[&str]) -> Self {
        let address = format!("unix:{}", text(&socket));
        let mut command = command(&[words, &["--nbd", &address], more].concat());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
        Self { child, said, socket }
    }

    /// Ends the server by a signal; returns its exit status and its output on standard error.
    pub(crate) fn end(mut self, signal: Signal) -> (Option<i32>, String) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        let mut said = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        (self.child.wait().unwrap().code(), said)
    }
}

fn image(folder: &Path) -> PathBuf {
    let path = folder.join("volume.img");
    fs::File::create(&path).unwrap().set_len(8 * MIB).unwrap();
    path
}

#[test]
fn it_serves_until_a_signal() {
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path());
    for (signal, more) in [(Signal::TERM, &["--read-only"][..]), (Signal::INT, &["-v", "--name", "a b"])] {
        let served = Served::new(text(&image), folder.path().join("socket"), more);
        let name = if more.len() == 3 { "a%20b" } else { "" };
        let socket = text(&served.socket).to_owned();
        assert_eq!(served.said, format!("{}: serving 8 MiB at nbd+unix:///{name}?socket={socket}\n", text(&image)));
        assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
        let mut greeting = [0; 18];
        let mut client = UnixStream::connect(&socket).unwrap();
        client.read_exact(&mut greeting).unwrap();
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        // both the volume and the socket are locked
        let sentence = fails(1, &["serve", text(&image), "--nbd", "unix:/nowhere/s"]);
        assert!(sentence.contains("locked by another process"), "{sentence}");
        let sentence = fails(1, &["serve", "mem:1M", "--nbd", &format!("unix:{socket}")]);
        assert!(sentence.ends_with("another process listens there"), "{sentence}");
        let (status, said) = served.end(signal);
        assert_eq!(status, Some(0), "{said}");
        assert!(!Path::new(&socket).exists());
    }
}

#[test]
fn addresses_are_checked() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "precious").unwrap();
    for words in [&["serve", "mem:1M"][..], &["kero", "serve", "mem:1M"]] {
        let said = exits(2, words).text();
        assert!(said.contains("<--nbd <ADDRESS>|--file <DIR>>"), "{said}");
    }
    exits(2, &["serve", "mem:1M", "--nbd", "unix:x", "--file", text(folder.path())]);
    for address in ["here", "unix:", ":10809", "host:port"] {
        let ran = exits(2, &["serve", "mem:1M", "--nbd", address]);
        assert!(ran.text().contains("unix:PATH or HOST:PORT"), "{}", ran.text());
    }
    exits(2, &["serve", "mem:1M", "--nbd", "unix:x", "--connections", "0"]);
    let sentence = fails(1, &["serve", "mem:1M", "--nbd", &format!("unix:{}", text(&file))]);
    assert!(sentence.ends_with("a file that is not a socket is there"), "{sentence}");
    assert_eq!(fs::read(&file).unwrap(), b"precious");
    fails(1, &["serve", text(&folder.path().join("none")), "--nbd", "unix:x"]);
    assert!(exits(0, &["serve", "--help"]).text().contains("NBD has no authentication"));
}

#[test]
fn other_clients_read_what_is_there() {
    if find("nbdinfo").is_none() || find("nbdcopy").is_none() {
        skip("missing nbdinfo, nbdcopy (Debian: libnbd-bin)");
        return;
    }
    assert!(Path::new(EXTANT).exists());
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path());
    let (source, copy) = (folder.path().join("source"), folder.path().join("copy"));
    let mut bytes: Vec<u8> = (0..8 * MIB).map(|at| (at / 777 % 251) as u8).collect();
    bytes[3 * MIB as usize..5 * MIB as usize].fill(0);
    fs::write(&source, &bytes).unwrap();
    let served = Served::new(text(&image), folder.path().join("socket"), &[]);
    let uri = format!("nbd+unix:///?socket={}", text(&served.socket));
    must("nbdcopy", &[text(&source), &uri]);
    must("nbdcopy", &[uri.as_str(), text(&copy)]);
    assert!(fs::read(&copy).unwrap() == bytes);
    let said = must("nbdinfo", &["--json", &uri]).text();
    assert!(said.contains("\"export-size\": 8388608") && said.contains("\"can_multi_conn\": true"), "{said}");
    let (status, said) = served.end(Signal::TERM);
    assert_eq!((status, said.as_str()), (Some(0), ""));
    assert!(fs::read(&image).unwrap() == bytes);
}
