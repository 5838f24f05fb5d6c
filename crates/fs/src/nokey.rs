//! Names of an encrypted directory without its key.
//!
//! The kernel's form (fs/crypto, "no-key names"), so that both return the same: base64url without padding of the two
//! hashes of the name, 4 bytes each, and the encrypted name; if it is longer than 149 bytes, its first 149 and the
//! SHA-256 of the others. A no-key name contains only letters, digits, "-" and "_", is at most 252 bytes long, and
//! identifies its entry.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use format::hash::NameHash;
use sha2::{Digest, Sha256};

/// Bytes of the encrypted name that are included unhashed.
const SHOWN: usize = 149;
const HASHES: usize = 8;
const DIGEST: usize = 32;

/// The no-key name of an encrypted name.
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

/// An encrypted name, decoded from its no-key name.
pub(crate) struct NoKeyName {
    /// The hashes in the no-key name; zero if its directory has none.
    pub(crate) hash: NameHash,
    name: Vec<u8>,
}

impl NoKeyName {
    /// Decodes a no-key name; `None` if it is invalid.
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

    /// Whether this is the no-key name of this encrypted name.
    pub(crate) fn is(&self, encrypted: &[u8]) -> bool {
        match self.name.split_at_checked(SHOWN) {
            Some((shown, digest)) if !digest.is_empty() => encrypted
                .split_at_checked(SHOWN)
                .is_some_and(|(start, rest)| start == shown && Sha256::digest(rest)[..] == *digest),
            _ => self.name == encrypted,
        }
    }
}

/// The no-key name for the target of an encrypted symbolic link: on the device a length of two bytes, the encrypted
/// target, and padding. `None` if the length is invalid.
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
