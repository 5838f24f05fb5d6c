//! The checksum of the journal's first scheme.

/// CRC-32 with its most significant bit first (polynomial 0x04C11DB7), continuing from `seed`, without inversion: the
/// kernel's `crc32_be`, used by the feature CHECKSUM for a transaction's descriptor and data blocks.
#[must_use]
pub fn crc32_be(seed: u32, data: &[u8]) -> u32 {
    data.iter().fold(seed, |crc, &byte| (crc << 8) ^ TABLE[usize::from((crc >> 24) as u8 ^ byte)])
}

const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        let mut crc = (i as u32) << 24;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000_0000 != 0 { (crc << 1) ^ 0x04C1_1DB7 } else { crc << 1 };
            bit += 1;
        }
        table[i] = crc;
        i += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_value() {
        // the catalogue's CRC-32/BZIP2 is this with inversions around it; its check value is 0xFC891918
        assert_eq!(!crc32_be(!0, b"123456789"), 0xFC89_1918);
        assert_eq!(crc32_be(crc32_be(!0, b"1234"), b"56789"), crc32_be(!0, b"123456789"));
    }
}
