//! See `extant_fuzz::xattr`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| extant_fuzz::xattr(data));
