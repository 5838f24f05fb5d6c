//! See `extant_fuzz::undo`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| extant_fuzz::undo(data));
