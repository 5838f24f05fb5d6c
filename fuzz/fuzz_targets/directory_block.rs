//! See `extant_fuzz::directory_block`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| extant_fuzz::directory_block(data));
