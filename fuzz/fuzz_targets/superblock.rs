//! See `extant_fuzz::superblock`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| extant_fuzz::superblock(data));
