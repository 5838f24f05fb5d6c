//! Names of an encrypted directory when its key is not there.
//!
//! The kernel's form (fs/crypto, "no-key names"), so that both show the same: base64url without padding of the two
//! hashes of the name, 4 bytes each, and the encrypted name; of one longer than 149 bytes the first 149 and the SHA-256
//! of the others. It holds only letters, digits, "-" and "_", is at most 252 bytes long, and finds its entry again.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use format::hash::NameHash;
use sha2::{Digest, Sha256};

/// Bytes of the encrypted name that are shown as they are.
const SHOWN: usize = 149;
const HASHES: usize = 8;
const DIGEST: usize = 32;

/// The text that stands for an encrypted name.
pub(crate) fn encode(encrypted: &[u8], hash: NameHash) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HASHES + SHOWN + DIGEST);
    bytes.extend(hash.hash.to_le_bytes());
    bytes.extend(hash.minor.to_le_bytes());
    match encrypted.split_at_checked(SHOWN) {
        Some((shown, rest)) if !rest.is_empty() => {
            bytes.extend(shown);
            bytes.extend(Sha256::digest(rest));
        }
        _ => bytes.extend(encrypted),
    }
    URL_SAFE_NO_PAD.encode(bytes).into_bytes()
}

/// An encrypted name, read from its text.
pub(crate) struct NoKeyName {
    /// The hashes in the text; zero where its directory has none.
    pub(crate) hash: NameHash,
    name: Vec<u8>,
}

impl NoKeyName {
    /// Reads the text back; `None` where it is none.
    pub(crate) fn decode(text: &[u8]) -> Option<Self> {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let (hash, rest) = bytes.split_first_chunk::<4>()?;
        let (minor, name) = rest.split_first_chunk::<4>()?;
        if name.is_empty() || name.len() > SHOWN && name.len() != SHOWN + DIGEST {
            return None;
        }
        let hash = NameHash { hash: u32::from_le_bytes(*hash), minor: u32::from_le_bytes(*minor) };
        Some(Self { hash, name: name.to_vec() })
    }

    /// Whether the text stands for this encrypted name.
    pub(crate) fn is(&self, encrypted: &[u8]) -> bool {
        match self.name.split_at_checked(SHOWN) {
            Some((shown, digest)) if !digest.is_empty() => encrypted
                .split_at_checked(SHOWN)
                .is_some_and(|(start, rest)| start == shown && Sha256::digest(rest)[..] == *digest),
            _ => self.name == encrypted,
        }
    }
}

/// The text that stands for the target of an encrypted symbolic link: on the device a length of two bytes, the
/// encrypted target, and padding. `None` where the length is wrong.
pub(crate) fn link_target(content: &[u8]) -> Option<Vec<u8>> {
    let (len, rest) = content.split_first_chunk::<2>()?;
    let encrypted = rest.get(..usize::from(u16::from_le_bytes(*len)))?;
    if encrypted.is_empty() {
        return None;
    }
    Some(encode(encrypted, NameHash::default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_every_length_find_themselves_and_no_other() {
        let hash = NameHash { hash: 0x1234_5678, minor: 0x9ABC_DEF0 };
        for len in [1, 16, 148, 149, 150, 200, 255] {
            let name: Vec<u8> = (0..len).map(|i| (i * 7) as u8).collect();
            let text = encode(&name, hash);
            assert!(text.len() <= 252 && text.iter().all(|c| c.is_ascii_alphanumeric() || b"-_".contains(c)));
            let back = NoKeyName::decode(&text).unwrap();
            assert_eq!(back.hash, hash);
            assert!(back.is(&name));
            let mut other = name.clone();
            *other.last_mut().unwrap() ^= 1;
            assert!(!back.is(&other));
            assert!(!back.is(&name[1..]));
        }
    }

    #[test]
    fn other_texts_are_none() {
        for text in [&b""[..], b"a", b"AAAAAAAAAAA", b"a name with spaces", b"AAAAAAAAAAA="] {
            assert!(NoKeyName::decode(text).is_none(), "{text:?}");
        }
    }

    #[test]
    fn link_targets() {
        assert!(link_target(b"\x10\x00too short").is_none());
        assert!(link_target(b"\x00\x00padding").is_none());
        assert_eq!(link_target(b"\x03\x00abc..."), Some(encode(b"abc", NameHash::default())));
    }
}
