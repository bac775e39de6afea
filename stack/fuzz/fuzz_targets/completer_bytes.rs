#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| stack::sim::fuzz::completer_bytes(data));
