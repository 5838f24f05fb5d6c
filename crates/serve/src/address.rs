//! Listening addresses, as a user writes them.

use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// A listening address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// A Unix socket: `unix:PATH`.
    Unix(PathBuf),
    /// A TCP port of one address of this machine: `HOST:PORT`.
    Tcp(String),
}

/// An invalid listening address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an address: write unix:PATH or HOST:PORT, such as 127.0.0.1:10809 or [::1]:10809")]
pub struct BadAddress(String);

impl FromStr for Address {
    type Err = BadAddress;

    fn from_str(text: &str) -> Result<Self, BadAddress> {
        let bad = || BadAddress(text.to_owned());
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() || path.contains('\0') { Err(bad()) } else { Ok(Self::Unix(path.into())) };
        }
        let (host, port) = text.rsplit_once(':').ok_or_else(bad)?;
        // an IPv6 address contains colons
        let bracketed = host.starts_with('[') && host.ends_with(']');
        let plain = !host.is_empty() && !host.contains([':', '/', '[', ']']);
        if (bracketed || plain) && port.bytes().all(|digit| digit.is_ascii_digit()) && port.parse::<u16>().is_ok() {
            Ok(Self::Tcp(text.to_owned()))
        } else {
            Err(bad())
        }
    }
}

/// The URI of an export on the Unix socket at `path`.
pub(crate) fn unix_uri(path: &Path, name: &str) -> String {
    format!("nbd+unix:///{}?socket={}", escaped(name.as_bytes()), escaped(path.as_os_str().as_bytes()))
}

/// The URI of an export at the TCP address `place`.
pub(crate) fn tcp_uri(place: impl std::fmt::Display, name: &str) -> String {
    format!("nbd://{place}/{}", escaped(name.as_bytes()))
}

fn escaped(bytes: &[u8]) -> String {
    let mut out = String::new();
    for &byte in bytes {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            out.push(char::from(byte));
        } else {
            // writing to a String cannot fail
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        assert_eq!("unix:a b".parse(), Ok(Address::Unix("a b".into())));
        for tcp in ["localhost:1", "127.0.0.1:65535", "[::1]:0", "[::]:10809"] {
            assert_eq!(tcp.parse(), Ok(Address::Tcp(tcp.to_owned())));
        }
        for bad in ["", "unix:", ":1", "a", "a:", "a:b", "a:65536", "::1:5", "a:+1", "nbd://a:1", "a/b:1", "]x[:1"] {
            assert!(bad.parse::<Address>().is_err(), "{bad}");
        }
    }

    #[test]
    fn uris() {
        assert_eq!(unix_uri(Path::new("/run/a b?"), "x y"), "nbd+unix:///x%20y?socket=/run/a%20b%3F");
        assert_eq!(tcp_uri("[::1]:5", ""), "nbd://[::1]:5/");
    }
}
