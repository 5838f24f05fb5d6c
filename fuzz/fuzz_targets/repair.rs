//! See `extant_fuzz::repair`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| extant_fuzz::repair(data));
