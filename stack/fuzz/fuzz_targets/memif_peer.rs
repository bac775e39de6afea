#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| stack::sim::fuzz::memif_peer(data));
