//! See `extant_fuzz::fill`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| extant_fuzz::fill(data));
