//! See `extant_fuzz::repair_cut`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| extant_fuzz::repair_cut(data));
