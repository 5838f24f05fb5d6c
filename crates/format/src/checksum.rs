//! The checksums of the format.
//!
//! metadata_csum uses CRC32C as the kernel does: without the initial and final inversions of the usual definition.
//! gdt_csum uses CRC-16/ARC.

/// CRC32C over `data`, continuing from `seed`, without inversion before or after (the kernel's `ext4_chksum`).
#[inline]
#[must_use]
pub fn crc32c(seed: u32, data: &[u8]) -> u32 {
    // the library's function inverts on both sides; undo both
    !crc32c::crc32c_append(!seed, data)
}

/// CRC-16/ARC (polynomial 0xA001 reflected), continuing from `seed`; group descriptors under gdt_csum.
#[must_use]
pub fn crc16(seed: u16, data: &[u8]) -> u16 {
    data.iter().fold(seed, |crc, &byte| (crc >> 8) ^ CRC16_TABLE[usize::from((crc as u8) ^ byte)])
}

const CRC16_TABLE: [u16; 256] = {
    let mut table = [0u16; 256];
    let mut i = 0;
    while i < 256 {
        let mut crc = i as u16;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 != 0 { (crc >> 1) ^ 0xA001 } else { crc >> 1 };
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
    fn known_values() {
        // the catalogue's check values for "123456789": CRC-32C 0xE3069283, CRC-16/ARC 0xBB3D
        assert_eq!(!crc32c(!0, b"123456789"), 0xE306_9283);
        assert_eq!(crc16(0, b"123456789"), 0xBB3D);
    }

    #[test]
    fn continues_where_it_stopped() {
        assert_eq!(crc32c(crc32c(!0, b"1234"), b"56789"), crc32c(!0, b"123456789"));
        assert_eq!(crc16(crc16(!0, b"1234"), b"56789"), crc16(!0, b"123456789"));
    }
}
