//! See `extant_fuzz::fuse_request`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| extant_fuzz::fuse_request(data));
