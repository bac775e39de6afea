#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sim::fuzz::host_links(data));
