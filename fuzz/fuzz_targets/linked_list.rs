//! See `extant_fuzz::linked_list`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| extant_fuzz::linked_list(data));
