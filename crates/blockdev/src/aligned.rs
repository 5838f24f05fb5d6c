//! Memory that starts at a multiple of a certain number, without unsafe code: a little more than requested is
//! allocated, and the part that begins at the right address is exposed.

use std::ops::{Deref, DerefMut};

/// Zeroed bytes whose address is a multiple of a power of two. O_DIRECT reads into such memory need no copy.
#[derive(Debug)]
pub struct AlignedBuf {
    bytes: Vec<u8>, // never grown, so that its address stays
    start: usize,
    len: usize,
}

impl AlignedBuf {
    /// `len` zeroed bytes at an address that is a multiple of `align`, which is a power of two in bytes.
    ///
    /// # Panics
    /// If `align` is not a power of two.
    pub fn zeroed(len: usize, align: usize) -> Self {
        assert!(align.is_power_of_two(), "alignment {align} is not a power of two");
        let bytes = vec![0; len.saturating_add(align - 1)];
        let address = bytes.as_ptr().addr();
        Self { start: address.next_multiple_of(align) - address, len, bytes }
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_and_length_are_as_asked() {
        for align in [1, 2, 512, 4096, 1 << 20] {
            for len in [0, 1, 511, 512, 5000] {
                let mut b = AlignedBuf::zeroed(len, align);
                assert_eq!((b.as_ptr().addr() % align, b.len()), (0, len));
                b.fill(7);
                let moved = b;
                assert_eq!(moved.as_ptr().addr() % align, 0);
                assert!(moved.iter().all(|&x| x == 7));
            }
        }
    }
}
