//! See `extant_fuzz::layer`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| extant_fuzz::layer(data));
