//! See `extant_fuzz::archive`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| extant_fuzz::archive(data));
