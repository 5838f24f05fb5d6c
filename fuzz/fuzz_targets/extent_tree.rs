//! See `extant_fuzz::extent_tree`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| extant_fuzz::extent_tree(data));
