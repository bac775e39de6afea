#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sim::fuzz::wire_parse(data));
