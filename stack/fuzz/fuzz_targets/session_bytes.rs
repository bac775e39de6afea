#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| apps::fuzz::session_bytes(data));
