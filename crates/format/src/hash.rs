//! The hash of a name in an indexed directory.
//!
//! Three functions, each in a signed and an unsigned form: the first systems hashed names as the C type `char`, whose
//! sign depends on the processor; now the superblock's flags select the form. The two differ only for bytes of 0x80 and
//! above. The result is two numbers: the hash orders the directory, the minor hash breaks ties.

/// The bit that is 0 in every hash: in an index it marks a block that continues the hash of the previous one.
pub const CONTINUES: u32 = 1;

/// The value that means "after the last name" to readers of a directory; no name has this hash.
const END_OF_DIRECTORY: u32 = 0x7FFF_FFFF << 1;

/// The hash function of names: `hash_version` of an index root, or with the sign of the superblock's flags,
/// `s_def_hash_version`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HashVersion {
    /// The original function, with signed bytes.
    Legacy,
    /// MD4 with fewer rounds, with signed bytes.
    HalfMd4,
    /// TEA as a compression function, with signed bytes.
    Tea,
    /// [`HashVersion::Legacy`] with unsigned bytes.
    LegacyUnsigned,
    /// [`HashVersion::HalfMd4`] with unsigned bytes.
    HalfMd4Unsigned,
    /// [`HashVersion::Tea`] with unsigned bytes.
    TeaUnsigned,
    /// SipHash with the directory's encryption key; the hash is stored in the directory entry. See
    /// [`crate::dir::EntryHash`].
    SipHash,
}

impl HashVersion {
    /// The version with the number `raw`, as index roots and the superblock store it, or `None` for an undefined
    /// number.
    #[must_use]
    pub fn from_raw(raw: u8) -> Option<Self> {
        Some(match raw {
            0 => HashVersion::Legacy,
            1 => HashVersion::HalfMd4,
            2 => HashVersion::Tea,
            3 => HashVersion::LegacyUnsigned,
            4 => HashVersion::HalfMd4Unsigned,
            5 => HashVersion::TeaUnsigned,
            6 => HashVersion::SipHash,
            _ => return None,
        })
    }

    /// The number of this version.
    #[must_use]
    pub fn raw(self) -> u8 {
        match self {
            HashVersion::Legacy => 0,
            HashVersion::HalfMd4 => 1,
            HashVersion::Tea => 2,
            HashVersion::LegacyUnsigned => 3,
            HashVersion::HalfMd4Unsigned => 4,
            HashVersion::TeaUnsigned => 5,
            HashVersion::SipHash => 6,
        }
    }

    /// The unsigned form of this version. Index roots store the signed number even if the superblock's flags say
    /// unsigned, so a reader applies this to that number.
    #[must_use]
    pub fn to_unsigned(self) -> Self {
        match self {
            HashVersion::Legacy => HashVersion::LegacyUnsigned,
            HashVersion::HalfMd4 => HashVersion::HalfMd4Unsigned,
            HashVersion::Tea => HashVersion::TeaUnsigned,
            other => other,
        }
    }
}

/// The hash of a name, in the order of an indexed directory: by hash, then by minor hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct NameHash {
    /// The hash, with bit 0 clear.
    pub hash: u32,
    /// The minor hash; 0 for the legacy function.
    pub minor: u32,
}

/// A function for hashes of names: a version and the volume's seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hasher {
    version: HashVersion,
    start: [u32; 4],
}

impl Hasher {
    /// The start values of MD4, used where the superblock has no seed.
    const DEFAULT_SEED: [u32; 4] = [0x6745_2301, 0xEFCD_AB89, 0x98BA_DCFE, 0x1032_5476];

    /// A hasher for `version` with `seed` (`s_hash_seed`; all zero means the default), or `None` for
    /// [`HashVersion::SipHash`], which needs the key of an unlocked directory.
    #[must_use]
    pub fn new(version: HashVersion, seed: [u32; 4]) -> Option<Self> {
        if version == HashVersion::SipHash {
            return None;
        }
        Some(Hasher { version, start: if seed == [0; 4] { Self::DEFAULT_SEED } else { seed } })
    }

    /// The version this hasher computes.
    #[must_use]
    pub fn version(&self) -> HashVersion {
        self.version
    }

    /// The hash of `name`. In a casefolded directory pass the folded name ([`crate::casefold::fold`]), or the name
    /// itself where it cannot be folded.
    #[must_use]
    pub fn hash(&self, name: &[u8]) -> NameHash {
        let (hash, minor) = match self.version {
            HashVersion::Legacy => (legacy(name, signed), 0),
            HashVersion::LegacyUnsigned => (legacy(name, unsigned), 0),
            HashVersion::HalfMd4 => self.half_md4(name, signed),
            HashVersion::HalfMd4Unsigned => self.half_md4(name, unsigned),
            HashVersion::Tea => self.tea(name, signed),
            // `new` rejects SipHash
            HashVersion::TeaUnsigned | HashVersion::SipHash => self.tea(name, unsigned),
        };
        let hash = hash & !CONTINUES;
        NameHash { hash: if hash == END_OF_DIRECTORY { END_OF_DIRECTORY - 2 } else { hash }, minor }
    }

    #[inline(always)]
    fn half_md4(&self, name: &[u8], extend: impl Fn(u8) -> u32 + Copy) -> (u32, u32) {
        let mut state = self.start;
        let mut rest = name;
        while !rest.is_empty() {
            half_md4_compress(&mut state, &words::<8>(rest, extend));
            rest = rest.get(32..).unwrap_or_default();
        }
        (state[1], state[2])
    }

    #[inline(always)]
    fn tea(&self, name: &[u8], extend: impl Fn(u8) -> u32 + Copy) -> (u32, u32) {
        let mut state = [self.start[0], self.start[1]];
        let mut rest = name;
        while !rest.is_empty() {
            tea_compress(&mut state, &words::<4>(rest, extend));
            rest = rest.get(16..).unwrap_or_default();
        }
        (state[0], state[1])
    }
}

fn signed(byte: u8) -> u32 {
    byte as i8 as u32
}

fn unsigned(byte: u8) -> u32 {
    u32::from(byte)
}

/// The next `N` words of a name with the remaining bytes `rest`: big-endian, padded with the remaining length. A
/// negative signed byte borrows from the previous ones, as in the sum of C `char`s.
#[inline(always)]
fn words<const N: usize>(rest: &[u8], extend: impl Fn(u8) -> u32) -> [u32; N] {
    let len = rest.len() as u32;
    let pad = len | len << 8;
    let pad = pad | pad << 16;
    let mut out = [pad; N];
    for (word, bytes) in out.iter_mut().zip(rest.chunks(4)) {
        *word = bytes.iter().fold(pad, |word, &byte| (word << 8).wrapping_add(extend(byte)));
    }
    out
}

fn legacy(name: &[u8], extend: impl Fn(u8) -> u32) -> u32 {
    const MODULUS: u32 = 0x7FFF_FFFF;
    let (mut newest, mut before) = (0x12A3_FE2D_u32, 0x37AB_E8F9_u32);
    for &byte in name {
        let mut next = before.wrapping_add(newest ^ extend(byte).wrapping_mul(7_152_373));
        if next > MODULUS {
            next -= MODULUS;
        }
        (newest, before) = (next, newest);
    }
    newest << 1
}

/// One block of MD4 (RFC 1320) with half the steps: eight words, in a different order in each round.
#[inline]
fn half_md4_compress(state: &mut [u32; 4], input: &[u32; 8]) {
    #[inline(always)]
    fn round(
        s: &mut [u32; 4],
        words: [u32; 8],
        constant: u32,
        shifts: [u32; 4],
        mix: impl Fn(u32, u32, u32) -> u32 + Copy,
    ) {
        // four steps, one for each of the four state words; twice
        for half in [[words[0], words[1], words[2], words[3]], [words[4], words[5], words[6], words[7]]] {
            let [mut a, mut b, mut c, mut d] = *s;
            let step = |target: u32, x, y, z, word: u32, shift| {
                target.wrapping_add(mix(x, y, z)).wrapping_add(word).wrapping_add(constant).rotate_left(shift)
            };
            a = step(a, b, c, d, half[0], shifts[0]);
            d = step(d, a, b, c, half[1], shifts[1]);
            c = step(c, d, a, b, half[2], shifts[2]);
            b = step(b, c, d, a, half[3], shifts[3]);
            *s = [a, b, c, d];
        }
    }

    let mut s = *state;
    let w = *input;
    round(&mut s, w, 0, [3, 7, 11, 19], |x, y, z| (x & y) | (!x & z));
    // the constants are the square roots of 2 and 3, as in MD4
    let odd_first = [w[1], w[3], w[5], w[7], w[0], w[2], w[4], w[6]];
    round(&mut s, odd_first, 0x5A82_7999, [3, 5, 9, 13], |x, y, z| (x & y) | (x & z) | (y & z));
    let folded = [w[3], w[7], w[2], w[6], w[1], w[5], w[0], w[4]];
    round(&mut s, folded, 0x6ED9_EBA1, [3, 9, 11, 15], |x, y, z| x ^ y ^ z);
    for (old, new) in state.iter_mut().zip(s) {
        *old = old.wrapping_add(new);
    }
}

/// Sixteen rounds of TEA with the input as the key.
#[inline]
fn tea_compress(state: &mut [u32; 2], key: &[u32; 4]) {
    const DELTA: u32 = 0x9E37_79B9;
    let [mut left, mut right] = *state;
    let mut sum = 0u32;
    for _ in 0..16 {
        sum = sum.wrapping_add(DELTA);
        left = left.wrapping_add(tea_mix(right, sum, key[0], key[1]));
        right = right.wrapping_add(tea_mix(left, sum, key[2], key[3]));
    }
    state[0] = state[0].wrapping_add(left);
    state[1] = state[1].wrapping_add(right);
}

#[inline(always)]
fn tea_mix(half: u32, sum: u32, low_key: u32, high_key: u32) -> u32 {
    (half << 4).wrapping_add(low_key) ^ half.wrapping_add(sum) ^ (half >> 5).wrapping_add(high_key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The results of libext2fs 1.47.0: name, then hash and minor hash for versions 0 to 5.
    type Known = (&'static [u8], [(u32, u32); 6]);

    #[rustfmt::skip]
    const DEFAULT_SEED: &[Known] = &[
        (b"a", [
            (0xE74B_53E2, 0x0000_0000), (0xD5FA_7D7A, 0xACB4_8187), (0x6D0E_A4C0, 0xC189_22DF),
            (0xE74B_53E2, 0x0000_0000), (0xD5FA_7D7A, 0xACB4_8187), (0x6D0E_A4C0, 0xC189_22DF),
        ]),
        (b"hello", [
            (0x3225_2546, 0x0000_0000), (0x1746_DA32, 0x4200_13B5), (0x6F5B_B1A8, 0x2319_17C2),
            (0x3225_2546, 0x0000_0000), (0x1746_DA32, 0x4200_13B5), (0x6F5B_B1A8, 0x2319_17C2),
        ]),
        (b"exactly-16-bytes", [
            (0xA11B_110A, 0x0000_0000), (0x76E1_C7D2, 0xB461_B064), (0x783B_90B6, 0x184F_C771),
            (0xA11B_110A, 0x0000_0000), (0x76E1_C7D2, 0xB461_B064), (0x783B_90B6, 0x184F_C771),
        ]),
        (b"a name of just thirty-two bytes!", [
            (0x7305_504C, 0x0000_0000), (0x1910_96B2, 0x8FE7_38F2), (0xCCF0_1DE0, 0x3701_0ACB),
            (0x7305_504C, 0x0000_0000), (0x1910_96B2, 0x8FE7_38F2), (0xCCF0_1DE0, 0x3701_0ACB),
        ]),
        (b"a name of more than thirty-two bytes, in two blocks", [
            (0x358B_585A, 0x0000_0000), (0x6442_9170, 0xAFF4_1D35), (0xC0DB_0836, 0xBABD_6C99),
            (0x358B_585A, 0x0000_0000), (0x6442_9170, 0xAFF4_1D35), (0xC0DB_0836, 0xBABD_6C99),
        ]),
        (b"\xff\x80\xfe\x81\x7f", [
            (0x002F_1198, 0x0000_0000), (0x25ED_AF28, 0x7003_3404), (0xB1B8_9D9A, 0x43D0_8657),
            (0x91A9_8FB2, 0x0000_0000), (0xFFD5_2A84, 0xFF51_410D), (0x8F7C_81B2, 0x0794_E92A),
        ]),
    ];
    #[rustfmt::skip]
    const OTHER_SEED: &[Known] = &[
        (b"a", [
            (0xE74B_53E2, 0x0000_0000), (0x574C_BFC2, 0xDD91_399A), (0x0BD7_C194, 0x503D_3A6F),
            (0xE74B_53E2, 0x0000_0000), (0x574C_BFC2, 0xDD91_399A), (0x0BD7_C194, 0x503D_3A6F),
        ]),
        (b"hello", [
            (0x3225_2546, 0x0000_0000), (0xDB6A_9AA2, 0x6B79_79C1), (0xD11C_92EA, 0x97F3_703A),
            (0x3225_2546, 0x0000_0000), (0xDB6A_9AA2, 0x6B79_79C1), (0xD11C_92EA, 0x97F3_703A),
        ]),
        (b"exactly-16-bytes", [
            (0xA11B_110A, 0x0000_0000), (0xF877_AA64, 0xA6DC_DA3A), (0x3757_7E6E, 0xEA8B_04CB),
            (0xA11B_110A, 0x0000_0000), (0xF877_AA64, 0xA6DC_DA3A), (0x3757_7E6E, 0xEA8B_04CB),
        ]),
        (b"a name of just thirty-two bytes!", [
            (0x7305_504C, 0x0000_0000), (0xA02D_B4EA, 0xE2FF_2B46), (0xDA3C_AA74, 0x5E02_753E),
            (0x7305_504C, 0x0000_0000), (0xA02D_B4EA, 0xE2FF_2B46), (0xDA3C_AA74, 0x5E02_753E),
        ]),
        (b"a name of more than thirty-two bytes, in two blocks", [
            (0x358B_585A, 0x0000_0000), (0x3D40_4DC2, 0xA5A1_946F), (0xB373_476C, 0xCA02_7BEF),
            (0x358B_585A, 0x0000_0000), (0x3D40_4DC2, 0xA5A1_946F), (0xB373_476C, 0xCA02_7BEF),
        ]),
        (b"\xff\x80\xfe\x81\x7f", [
            (0x002F_1198, 0x0000_0000), (0x9B01_7688, 0x35D9_6968), (0x874B_638E, 0x8046_D52F),
            (0x91A9_8FB2, 0x0000_0000), (0x430E_0690, 0x643F_848E), (0x9C6F_A638, 0xC9F1_FBC5),
        ]),
    ];
    const LONGEST: [(u32, u32); 6] = [
        (0x0DD5_2F98, 0x0000_0000),
        (0x8723_1DBE, 0x8DD6_5D64),
        (0xE9FE_C508, 0x4247_4C53),
        (0xEEEF_C074, 0x0000_0000),
        (0xCA01_EB1C, 0x2333_28EB),
        (0x3012_ACBE, 0x0D1D_6D6B),
    ];
    const SEED: [u32; 4] = [0x1234_5678, 0x9ABC_DEF0, 0x0FED_CBA9, 0x8765_4321];

    fn hasher(raw: u8, seed: [u32; 4]) -> Hasher {
        Hasher::new(HashVersion::from_raw(raw).unwrap(), seed).unwrap()
    }

    #[test]
    fn known_values() {
        for (table, seed) in [(DEFAULT_SEED, [0; 4]), (OTHER_SEED, SEED)] {
            for (name, hashes) in table {
                for (version, &(hash, minor)) in (0u8..).zip(hashes) {
                    assert_eq!(hasher(version, seed).hash(name), NameHash { hash, minor }, "{version} {name:?}");
                }
            }
        }
    }

    #[test]
    fn longest_name() {
        let name: Vec<u8> = (0..255).map(|i| ((i * 37 + 1) % 255 + 1) as u8).collect();
        for (version, &(hash, minor)) in (0u8..).zip(&LONGEST) {
            assert_eq!(hasher(version, [0; 4]).hash(&name), NameHash { hash, minor }, "{version}");
        }
    }

    #[test]
    fn versions_have_numbers() {
        for raw in 0..=6 {
            assert_eq!(HashVersion::from_raw(raw).unwrap().raw(), raw);
        }
        assert_eq!(HashVersion::from_raw(7), None);
        assert_eq!(Hasher::new(HashVersion::SipHash, SEED), None);
        assert_eq!(HashVersion::HalfMd4.to_unsigned(), HashVersion::HalfMd4Unsigned);
        assert_eq!(HashVersion::SipHash.to_unsigned(), HashVersion::SipHash);
    }

    #[test]
    fn the_end_is_no_hash() {
        // the hash of an empty name is a word of the seed, so a seed can produce the end-of-directory value
        let end = Hasher::new(HashVersion::HalfMd4, [1, END_OF_DIRECTORY, 0, 0]).unwrap();
        assert_eq!(end.hash(b"").hash, END_OF_DIRECTORY - 2);
    }

    proptest! {
        #[test]
        fn sign_matters_only_above_ascii(name in proptest::collection::vec(0u8..0x80, 0..300), version in 0u8..3) {
            let signed = hasher(version, SEED);
            let unsigned = hasher(signed.version().to_unsigned().raw(), SEED);
            prop_assert_eq!(signed.hash(&name), unsigned.hash(&name));
        }

        #[test]
        fn bit_zero_is_clear(name in proptest::collection::vec(any::<u8>(), 0..1000), version in 0u8..6) {
            prop_assert_eq!(hasher(version, SEED).hash(&name).hash & CONTINUES, 0);
        }
    }
}
