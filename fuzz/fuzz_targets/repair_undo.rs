//! See `extant_fuzz::repair_undo`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| extant_fuzz::repair_undo(data));
